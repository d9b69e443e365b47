"""Settlements, delivery marks, indexes and the high watermark of a storage that has a clock: written every 50 ms."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import inf
from typing import Any

import pytest

from amqpd.storage.acks.ack_set import DELIVERED, SETTLED, AckFileReader
from amqpd.storage.acks.acks import AHEAD_MAX
from amqpd.storage.fsync_thread import BOUNDS_ACKS_S
from amqpd.storage.group_commit import POSTPONE_FROM
from amqpd.storage.local_log import LocalLog
from amqpd.storage.log.checkpoint import HIGH_WATERMARK, decode_high_watermark
from amqpd.storage.log.record import RecordRoute

TICK_MS = 50
Call = Callable[[], None]


class Paced:
    """A House whose clock calls what was asked for later."""

    def __init__(self, make_house: Callable[..., Any], **arguments: Any) -> None:
        self.waiting: list[tuple[int, Call]] = []
        self.house = make_house(later=self._later, **arguments)

    def _later(self, delay_s: float, call: Call) -> None:
        self.waiting.append((self.house.clock.now_ms + round(delay_s * 1000), call))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.house, name)

    def pass_ms(self, ms: int) -> None:
        self.house.clock.now_ms += ms
        due = [call for time_ms, call in self.waiting if time_ms <= self.house.clock.now_ms]
        self.waiting = [each for each in self.waiting if each[0] > self.house.clock.now_ms]
        for call in due:
            call()
        self.house.loop()

    def again(self, *arguments: Any) -> LocalLog:
        self.waiting = []
        store: LocalLog = self.house.again(*arguments)
        return store

    def entries(self, kind: int) -> list[tuple[int, int]]:
        found = AckFileReader(bytes(self.house.data(self.house.names(".settled")[-1])))
        assert not found.bad_count
        return [(a, b) for each, a, b, _ in found.entries if each == kind]

    def deliver(self, *offsets: int) -> None:
        for offset in offsets:
            self.house.store.mark_delivered(offset)


@pytest.fixture
def paced(make_house: Callable[..., Any]) -> Paced:
    made = Paced(make_house)
    made.begin()
    return made


def test_what_is_settled_is_written_with_the_tick(paced: Paced) -> None:
    store = paced.store
    offsets = paced.append(b"a", b"b", b"c")
    paced.deliver(*offsets)
    paced.turn()
    store.ack(0, 1)
    paced.turn()
    assert paced.entries(DELIVERED) == [(2, 0)] and paced.entries(SETTLED) == []
    store = paced.again()
    assert paced.offsets() == [0, 1, 2] and store.redelivered(0), "a kill within 50 ms brings it back"
    store.ack(0, 1)
    paced.turn()
    paced.pass_ms(20)
    store.ack(1, 1)
    paced.turn()
    paced.pass_ms(TICK_MS - 20)
    assert paced.entries(SETTLED) == [(0, 1)], "in one entry"
    paced.again()
    assert paced.offsets() == [2]


def test_a_tick_in_the_middle_of_a_turn(paced: Paced) -> None:
    """What the turn has appended is left to its end, which writes the settlements too; and no timer is lost."""
    paced.deliver(*paced.append(b"a", b"b"))
    paced.turn()
    paced.store.ack(0, 1)
    paced.turn()
    paced.append(b"c")
    paced.store.ack(1, 1)
    paced.pass_ms(TICK_MS)
    assert paced.entries(SETTLED) == []
    paced.turn()
    assert paced.entries(SETTLED) == [(0, 1)]
    assert len(paced.waiting) == 1
    for _ in range(20):
        paced.pass_ms(TICK_MS)
    assert not paced.waiting, "an idle queue is not looked at"


class TestAnOverdueTick:
    """A turn of the loop takes so long that the timer of the tick cannot come.

    `write_overdue_acks` is called between two of its reads.
    """

    def written(self, paced: Paced) -> dict[float, int]:
        """How often acks were written, by the bound that the oldest one's age was within."""
        counts = paced.storage.commits.ack_ages.counts
        return {bound: count for bound, count in zip((*BOUNDS_ACKS_S, inf), counts, strict=True) if count}

    def test_acks_are_written_all_the_same(self, paced: Paced) -> None:
        paced.deliver(*paced.append(b"a", b"b", b"c"))
        paced.turn()
        paced.store.ack(0, 1)
        paced.turn()
        paced.clock.now_ms += TICK_MS - 1
        paced.storage.commits.write_overdue_acks()
        assert paced.entries(SETTLED) == []
        paced.clock.now_ms += 1
        paced.store.ack(1, 1)
        paced.storage.commits.write_overdue_acks()
        assert paced.entries(SETTLED) == [(0, 1)]
        paced.clock.now_ms += TICK_MS - 1
        paced.store.ack(2, 1)
        paced.storage.commits.write_overdue_acks()
        assert paced.entries(SETTLED) == [(0, 1)], "those that were written have an age no longer"
        paced.again()
        assert paced.offsets() == [2]

    def test_what_the_same_turn_has_appended_is_written_before_its_acks(self, paced: Paced) -> None:
        paced.storage.commits.write_overdue_acks()
        paced.deliver(*paced.append(b"a", b"b"))
        paced.storage.commits.write_overdue_acks()
        paced.clock.now_ms += TICK_MS
        paced.store.ack(0, 1)
        paced.storage.commits.write_overdue_acks()
        assert paced.store.record_count == 1
        paced.again()
        assert paced.offsets() == [1]
        assert paced.append(b"c") == [2], "no offset is given out again that a file calls settled"

    def test_a_commit_that_waits_for_the_turn_still_comes(self, paced: Paced) -> None:
        paced.append(b"a")
        paced.storage.commits.write_overdue_acks()
        paced.clock.now_ms += TICK_MS
        paced.store.ack(0, 1)
        paced.storage.commits.write_overdue_acks()
        assert paced.commits == []
        paced.turn()
        assert paced.commits == [(1, [])]

    def test_many_logs_are_written_in_slices(self, make_house: Callable[..., Any]) -> None:
        paced = Paced(make_house)
        paced.begin()
        stores = [paced.store, *[paced.storage.create_queue("v", f"q{each}", "/")[1] for each in range(9)]]
        for store in stores:
            store.append_parts(RecordRoute(b"", b"k"), b"", b"x", True)
        paced.turn()
        for store in stores:
            store.ack(0, 1)
        paced.turn()
        paced.storage.context.dirty_max = 4
        paced.clock.now_ms += TICK_MS
        left = []
        for _ in range(4):
            paced.storage.commits.write_overdue_acks()
            left.append(sum(store.has_unwritten_acks for store in stores))
        assert left == [6, 2, 0, 0]
        assert self.written(paced) == {0.05: 3}

    def test_the_age_of_the_oldest_ack_is_counted(self, paced: Paced) -> None:
        paced.append(*[b"x"] * 9)
        paced.turn()
        for _ in range(4):
            paced.pass_ms(TICK_MS)
        assert self.written(paced) == {}, "no ack, no age"
        for offset, late_ms in enumerate((0, 10, 350)):
            paced.store.ack(offset, 1)
            paced.turn()
            paced.pass_ms(TICK_MS + late_ms)
        assert self.written(paced) == {0.05: 1, 0.06: 1, 0.5: 1}

    def test_a_deleted_log_leaves_no_age(self, paced: Paced) -> None:
        paced.append(b"a")
        paced.storage.commits.write_overdue_acks()
        paced.storage.commits.remove(paced.store)
        paced.clock.now_ms += 60_000
        _, paced.house.store = paced.storage.create_queue("v", "other", "/")
        paced.append(b"b")
        paced.store.ack(0, 1)
        paced.turn()
        paced.storage.commits.write_overdue_acks()
        assert self.written(paced) == {}


def test_commits_that_cannot_wait(paced: Paced) -> None:
    """`flush` is what a tx.commit asks for; `write_acks_this_turn` is for what nobody will answer."""
    paced.append(b"a", b"b", b"c")
    paced.turn()
    paced.store.ack(0, 1)
    paced.storage.commits.flush()
    assert paced.entries(SETTLED) == [(0, 0)]
    paced.loop()
    paced.store.ack(1, 1)
    paced.store.write_acks_this_turn()
    paced.turn()
    assert paced.entries(SETTLED) == [(0, 0), (1, 1)]
    calls = [call for _, call in paced.waiting]
    assert calls and len(set(calls)) == len(calls), "one timer for each purpose, however often it was written"


def test_commits_tell_no_time(paced: Paced) -> None:
    """Deliveries between commits that follow each other within a tick are a burst: its mark is exact."""
    paced.append(*[b"x"] * 60)
    paced.turn()
    store = paced.store
    for first in range(0, 30, 3):
        paced.deliver(first, first + 1, first + 2)
        store.ack(first, 1)
        paced.storage.commits.flush()
        paced.loop()
        paced.pass_ms(2)
    assert paced.waiting
    store = paced.again()
    assert [offset for offset in paced.offsets() if store.redelivered(offset)][-1] == 29


def test_the_mark_runs_ahead_of_a_busy_queue(paced: Paced) -> None:
    """Few marks for many turns; a kill calls no more than AHEAD_MAX redelivered that nobody has seen."""
    store = paced.store
    turns = 200
    for _ in range(turns):
        offsets = paced.append(*[b"x"] * 5)
        paced.deliver(*offsets)
        paced.turn()
        for offset in offsets:
            store.ack(offset, 1)
        paced.turn()
        paced.pass_ms(10)
    assert len(paced.entries(DELIVERED)) < turns // 5, "not with every turn"
    assert len(paced.entries(SETTLED)) < turns // 3, "nor every turn's"
    paced.append(*[b"y"] * 1000)
    paced.turn()
    delivered = store.delivered_mark
    store = paced.again()
    marked = [offset for offset in paced.offsets() if store.redelivered(offset)]
    assert len([offset for offset in marked if offset > delivered]) in range(1, AHEAD_MAX + 1)


def test_a_burst_is_marked_exactly(paced: Paced) -> None:
    """Fifty at once, and the kill some ticks later: fifty are redelivered."""
    store = paced.store
    paced.append(*[b"x"] * 200)
    paced.turn()
    for first in range(0, 50, 10):
        paced.deliver(*range(first, first + 10))
        paced.turn()
    paced.pass_ms(150)
    store = paced.again()
    assert [offset for offset in paced.offsets() if store.redelivered(offset)] == list(range(50))


def test_a_slow_queue_is_marked_exactly(paced: Paced) -> None:
    for _ in range(20):
        paced.deliver(*paced.append(b"x"))
        paced.turn()
        paced.pass_ms(200)
    paced.append(b"x", b"x")
    paced.turn()
    store = paced.again()
    assert [store.redelivered(offset) for offset in (18, 19, 20, 21)] == [True, True, False, False]


def test_a_clean_stop_knows_what_was_delivered(paced: Paced) -> None:
    """The file tells of more than was delivered, and a start after a clean stop does not believe it."""
    for _ in range(50):
        paced.deliver(*paced.append(*[b"x"] * 5))
        paced.turn()
        paced.pass_ms(10)
    offsets = paced.append(*[b"x"] * 200)
    paced.turn()
    assert paced.entries(DELIVERED)[-1][0] >= offsets[0]
    paced.storage.close(clean=True)
    store = paced.again()
    assert store.delivered_mark == 249
    assert [store.redelivered(offsets[0] - 1), store.redelivered(offsets[0])] == [True, False]
    paced.deliver(*offsets[:3])
    paced.turn()
    store = paced.again()
    assert store.redelivered(offsets[2])


def test_indexes_reach_their_file_when_the_queue_rests(paced: Paced) -> None:
    for _ in range(10):
        paced.append(b"x" * 3000)
        paced.turn()
    assert paced.names(".index") == []
    for _ in range(3):
        paced.pass_ms(TICK_MS)
    assert len(paced.data(paced.names(".index")[0])) > 0


def test_the_high_watermark_of_many_queues(make_house: Callable[..., Any]) -> None:
    """One queue's is told at once; of many, when they rest, and at a clean stop."""
    paced = Paced(make_house)
    first = paced.begin()
    stores = [first] + [paced.storage.create_queue("v", f"q{number}", "/")[1] for number in range(9)]

    def told() -> int:
        return decode_high_watermark(bytes(paced.data(HIGH_WATERMARK)))

    paced.append(b"a")
    paced.turn()
    assert told() == 1
    for count in (2, 3):
        for store in stores:
            paced.house.store = store
            paced.append(b"a")
        paced.turn()
        paced.house.store = first
        assert first.high_watermark == count
        assert told() == count - 1
        if count == 2:
            for _ in range(5):
                paced.pass_ms(TICK_MS)
            assert told() == 2
    paced.storage.close(clean=True)
    assert told() == 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_kills_at_any_moment(make_house: Callable[..., Any], seed: int) -> None:
    """A queue at work for a while, killed and recovered again and again; small segments, so that they roll and go."""
    choose = random.Random(seed)
    paced = Paced(make_house, segment_size_bytes=3000)
    paced.begin()
    written: set[int] = set()
    delivered: set[int] = set()
    settled: dict[int, int] = {}  # offset -> when
    ready: list[int] = []
    unacked: list[int] = []
    for _ in range(6):
        store = paced.store
        busy = choose.randint(1, 12)
        for _ in range(choose.randint(1, 150)):
            new = paced.append(*[b"%d" % choose.randrange(1000) * choose.choice([1, 20])] * choose.randint(0, busy))
            ready += new
            count = choose.randint(0, busy) if choose.random() < 0.9 else len(ready)
            going, ready = ready[:count], ready[count:]
            paced.deliver(*going)
            unacked += going
            choose.shuffle(unacked)
            for offset in unacked[: choose.randint(0, len(unacked))]:
                store.ack(offset, 1)
                settled[offset] = paced.clock.now_ms
                unacked.remove(offset)
            if choose.random() < 0.1:
                store.cursor.read(choose.randrange(max(store.next_offset, 1)), 500)
            paced.storage.commits.end_of_turn()
            written |= set(new)  # and only now bytes go to a socket
            delivered |= set(going)
            if choose.random() < 0.7:
                paced.loop()
            paced.pass_ms(choose.choice([0, 1, 5, 20]))
        now_ms = paced.clock.now_ms
        clean = choose.random() < 0.3
        if clean:
            paced.loop()
            paced.storage.close(clean=True)
        last = max(delivered, default=-1)
        store = paced.again()
        found = paced.offsets()
        old = {offset for offset, time_ms in settled.items() if clean or time_ms <= now_ms - TICK_MS - 20}
        assert not old & set(found), "settled long ago, and back"
        assert written - set(settled) <= set(found), "lost"
        marked = {offset for offset in found if store.redelivered(offset)}
        assert delivered & set(found) <= marked, "was delivered, and does not say so"
        ahead = [offset for offset in marked if offset > last]
        assert not ahead if clean else len(ahead) <= AHEAD_MAX
        assert store.record_count == len(found)
        ready = found
        unacked = []
        for offset in found:
            settled.pop(offset, None)
        delivered |= marked
        assert not paced.commits or not any(failed for _, failed in paced.commits)


def test_a_turn_that_touched_many_logs_waits_while_the_committer_works(make_house: Callable[..., Any]) -> None:
    """Once, for 2 ms; a few logs, or a committer that is idle, hold nobody up."""
    paced = Paced(make_house)
    first = paced.begin()
    stores = [first] + [paced.storage.create_queue("v", f"q{number}", "/")[1] for number in range(POSTPONE_FROM)]
    called: list[int] = []

    def run() -> None:
        called.append(paced.clock.now_ms)

    def append(count: int) -> None:
        for store in stores[:count]:
            paced.house.store = store
            paced.append(b"a")
        paced.house.store = first

    append(len(stores))
    assert not paced.storage.commits.postpone(run), "nobody is at work"
    paced.storage.commits.end_of_turn()
    append(3)
    assert not paced.storage.commits.postpone(run), "few logs"
    append(len(stores))
    begun = paced.clock.now_ms
    assert paced.storage.commits.postpone(run)
    paced.house.clock.now_ms += 2
    due = [call for time_ms, call in paced.waiting if time_ms <= paced.clock.now_ms]
    assert len(due) == 1 and due[0] is run
    run()
    assert called == [begun + 2]
    assert not paced.storage.commits.postpone(run), "once a turn"
    assert paced.storage.commits.postpone(run), "and again in the next"
