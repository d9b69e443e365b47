"""The state of a stream's partition in a share group, without a broker: tables, and a random walk beside a model."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from amqpd.kafka_server.share_state import ATTEMPTS_MAX, OPEN_MAX, ShareState, decode_snapshot
from amqpd.kafka_server.share_wire import ACCEPT, GAP, REJECT, RELEASE, RENEW, AckRange, OffsetRange

LOCK_MS = 100


def ack(first: int, last: int, kind: int) -> AckRange:
    return AckRange(first, last, bytes([kind]))


def update(state: ShareState, member: str, *acks: AckRange, is_written: bool = True) -> bool:
    updated = state.begin_update(member, acks, 1000)
    if updated is None:
        return False
    state.end_update(updated, is_written)
    return True


def test_records_are_acquired_once_and_settled() -> None:
    state = ShareState(10)
    assert state.first_wanted() == 10
    assert state.acquire("a", 10, 12, 100, 5) == [(10, 1), (11, 1), (12, 1)]
    assert state.first_wanted() == 13
    assert state.acquire("b", 10, 14, 1, 5) == [(13, 1)]
    assert update(state, "a", ack(10, 11, ACCEPT), ack(12, 12, REJECT))
    assert (state.start, state.end) == (13, 14)
    assert update(state, "b", ack(13, 13, RELEASE))
    assert state.first_wanted() == 13
    assert state.acquire("a", 10, 14, 100, 5) == [(13, 2), (14, 1)]


def test_an_acknowledgement_of_others_records_changes_nothing() -> None:
    state = ShareState(0)
    state.acquire("a", 0, 1, 10, 5)
    state.acquire("b", 2, 2, 10, 5)
    assert not update(state, "a", ack(0, 2, ACCEPT))
    assert not update(state, "a", ack(0, 3, ACCEPT))
    assert state.ranges() == [OffsetRange(0, 2, 1)]


def test_a_failed_write_leaves_the_records_with_their_member() -> None:
    state = ShareState(0)
    state.acquire("a", 0, 0, 10, 5)
    assert update(state, "a", ack(0, 0, ACCEPT), is_written=False)
    assert update(state, "a", ack(0, 0, ACCEPT))
    assert state.start == 1


def test_a_snapshot_has_updates_that_are_being_written_and_no_locks() -> None:
    state = ShareState(0)
    state.acquire("a", 0, 3, 10, 5)
    state.begin_update("a", [ack(0, 0, ACCEPT), ack(1, 1, RELEASE)], 0)
    again = decode_snapshot(state.snapshot())
    assert again is not None
    assert again.ranges() == [OffsetRange(1, 3, 1)]
    assert again.acquire("b", 0, 9, 10, 5) == [(1, 2), (2, 2), (3, 2), (4, 1), (5, 1), (6, 1), (7, 1), (8, 1), (9, 1)]


def test_a_record_is_archived_after_its_last_attempt() -> None:
    state = ShareState(0)
    for count in range(1, ATTEMPTS_MAX + 1):
        assert state.acquire("a", 0, 0, 1, 5) == [(0, count)]
        assert state.expire(5)
    assert state.first_wanted() == 1
    assert state.start == 1


def test_only_so_many_records_are_open() -> None:
    state = ShareState(0)
    assert len(state.acquire("a", 0, 2 * OPEN_MAX, 2 * OPEN_MAX, 5)) == OPEN_MAX
    assert state.first_wanted() == -1
    assert update(state, "a", ack(7, 7, ACCEPT))
    assert state.first_wanted() == OPEN_MAX


def test_gaps_and_removed_records_are_skipped() -> None:
    state = ShareState(0)
    state.acquire("a", 0, 4, 10, 5)
    state.release_member("a")
    state.skip_to(3)
    assert state.first_wanted() == 3
    state.remove_below(1000)
    assert (state.first_wanted(), state.start) == (1000, 1000)
    assert update(state, "a", ack(0, 4, GAP))


def test_an_acknowledgement_of_what_retention_has_removed_is_ignored() -> None:
    state = ShareState(0)
    state.acquire("a", 0, 4, 10, 5)
    state.remove_below(3)
    assert update(state, "a", ack(0, 4, ACCEPT))
    assert (state.start, state.open_count) == (5, 0)


def test_an_acknowledgement_below_the_start_is_ignored() -> None:
    state = ShareState(0)
    state.acquire("a", 0, 4, 10, 5)
    assert update(state, "a", ack(0, 1, ACCEPT))
    assert update(state, "a", ack(0, 2, ACCEPT))
    assert state.start == 3
    assert update(state, "a", ack(4, 4, ACCEPT))
    assert not update(state, "a", ack(4, 4, ACCEPT))


@pytest.mark.parametrize(
    "data",
    [b"", b"\x01", b"\x02" + bytes(8), b"\x01" + bytes(9), b"\x01" + bytes(8) + b"\xff" * 18, b"\x01" + bytes(8 + 18)],
)
def test_damaged_snapshots_are_refused(data: bytes) -> None:
    assert decode_snapshot(data) is None


class Walk(RuleBasedStateMachine):
    """A state beside a list that has, for each offset: its attempts, and who has it or None, or "final"."""

    def __init__(self) -> None:
        super().__init__()
        self.state = ShareState(0)
        self.model: list[tuple[int, str | None, int]] = []  # attempts, member, due
        self.final: set[int] = set()
        self.now = 0

    def acquired(self, member: str) -> list[int]:
        return [at for at, each in enumerate(self.model) if at not in self.final and each[1] == member]

    def give_back(self, offset: int) -> None:
        attempts = self.model[offset][0]
        self.model[offset] = (attempts, None, 0)
        if attempts >= ATTEMPTS_MAX:
            self.final.add(offset)

    @rule(member=st.sampled_from("ab"), size=st.integers(1, 5), most=st.integers(1, 4))
    def acquire(self, member: str, size: int, most: int) -> None:
        first = self.state.first_wanted()
        expected = []
        for offset in range(first, first + size):
            if len(expected) == most:
                break
            if offset == len(self.model):
                self.model.append((0, None, 0))
            attempts, holder, _ = self.model[offset]
            if offset not in self.final and holder is None:
                self.model[offset] = (attempts + 1, member, self.now + LOCK_MS)
                expected.append((offset, attempts + 1))
        assert self.state.acquire(member, first, first + size - 1, most, self.now + LOCK_MS) == expected
        assert expected

    @precondition(lambda self: self.model)
    @rule(data=st.data(), member=st.sampled_from("ab"), written=st.booleans())
    def acknowledge(self, data: st.DataObject, member: str, written: bool) -> None:
        first = data.draw(st.integers(0, len(self.model) - 1))
        last = data.draw(st.integers(first, min(first + 3, len(self.model) - 1)))
        kind = data.draw(st.sampled_from((ACCEPT, RELEASE, REJECT, RENEW)))
        open_from = max(first, self.state.start)  # what is below is ignored
        is_possible = set(range(open_from, last + 1)) <= set(self.acquired(member))
        updated = self.state.begin_update(member, [ack(first, last, kind)], self.now + LOCK_MS)
        assert (updated is not None) == is_possible
        if updated is None:
            return
        self.state.end_update(updated, written)
        for offset in range(open_from, last + 1):
            if kind == RENEW:
                self.model[offset] = (self.model[offset][0], member, self.now + LOCK_MS)
            elif written and kind == RELEASE:
                self.give_back(offset)
            elif written:
                self.final.add(offset)

    @rule(ms=st.integers(1, LOCK_MS))
    def wait(self, ms: int) -> None:
        self.now += ms
        self.state.expire(self.now)
        for offset, (_, member, due) in enumerate(self.model):
            if offset not in self.final and member is not None and due <= self.now:
                self.give_back(offset)

    @rule(member=st.sampled_from("ab"))
    def leave(self, member: str) -> None:
        self.state.release_member(member)
        for offset in self.acquired(member):
            self.give_back(offset)

    @rule()
    def restart(self) -> None:
        state = decode_snapshot(self.state.snapshot())
        assert state is not None
        self.state = state
        for offset in range(len(self.model)):
            if offset not in self.final:
                self.model[offset] = (self.model[offset][0], None, 0)

    @invariant()
    def is_as_the_model(self) -> None:
        open_offsets = [at for at in range(len(self.model)) if at not in self.final]
        ready = [at for at in open_offsets if self.model[at][1] is None]
        assert self.state.end == len(self.model)
        assert self.state.start == (open_offsets[0] if open_offsets else len(self.model))
        assert self.state.open_count == len(open_offsets)
        assert self.state.first_wanted() == (ready[0] if ready else len(self.model))
        dues = [self.model[at][2] for at in open_offsets if self.model[at][1] is not None]
        assert self.state.next_due_ms() == min(dues, default=-1)


TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
