"""Acks, delivery marks, indexes and the high watermark of a storage with timers are written every 50 ms."""

from __future__ import annotations

import errno
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


class TimedHarness:
    """A `LogHarness` whose clock runs the timers that are due."""

    def __init__(self, make_harness: Callable[..., Any], **arguments: Any) -> None:
        self.timers: list[tuple[int, Call]] = []
        self.harness = make_harness(later=self._later, **arguments)

    def _later(self, delay_s: float, call: Call) -> None:
        self.timers.append((self.harness.clock.now_ms + round(delay_s * 1000), call))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.harness, name)

    def advance_ms(self, ms: int) -> None:
        self.harness.clock.now_ms += ms
        due = [call for time_ms, call in self.timers if time_ms <= self.harness.clock.now_ms]
        self.timers = [each for each in self.timers if each[0] > self.harness.clock.now_ms]
        for call in due:
            call()
        self.harness.run_callbacks()

    def restart(self, *arguments: Any) -> LocalLog:
        self.timers = []
        store: LocalLog = self.harness.restart(*arguments)
        return store

    def entries(self, kind: int) -> list[tuple[int, int]]:
        found = AckFileReader(bytes(self.harness.data(self.harness.names(".settled")[-1])))
        assert not found.bad_count
        return [(a, b) for each, a, b, _ in found.entries if each == kind]

    def deliver(self, *offsets: int) -> None:
        for offset in offsets:
            self.harness.store.mark_delivered(offset)


@pytest.fixture
def timed(make_harness: Callable[..., Any]) -> TimedHarness:
    timed = TimedHarness(make_harness)
    timed.create_log()
    return timed


def test_acks_are_written_with_the_next_tick(timed: TimedHarness) -> None:
    store = timed.store
    offsets = timed.append(b"a", b"b", b"c")
    timed.deliver(*offsets)
    timed.end_turn()
    store.ack(0, 1)
    timed.end_turn()
    assert timed.entries(DELIVERED) == [(2, 0)] and timed.entries(SETTLED) == []
    store = timed.restart()
    assert timed.offsets() == [0, 1, 2] and store.redelivered(0), (
        "after a kill within 50 ms the message is delivered again"
    )
    store.ack(0, 1)
    timed.end_turn()
    timed.advance_ms(20)
    store.ack(1, 1)
    timed.end_turn()
    timed.advance_ms(TICK_MS - 20)
    assert timed.entries(SETTLED) == [(0, 1)], "both acks are one entry"
    timed.restart()
    assert timed.offsets() == [2]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
def test_refused_acks_are_written_once_the_disk_takes_them(
    timed: TimedHarness, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    """An idle queue tries it again: otherwise a kill hours later brings its acked messages back.

    Thousands of queues may do so: each tries it once a second.
    """
    timed.deliver(*timed.append(b"a", b"b"))
    timed.end_turn()
    timed.advance_ms(TICK_MS)
    timed.store.close_unsynced_files()
    calls: list[str] = []

    def refuse(name: str, path: str) -> OSError | None:
        if name not in ("write", "open") or not path.endswith(".settled"):
            return None
        calls.append(name)
        return OSError(number, "refused")

    timed.filesystem.fault = refuse
    timed.store.ack(0, 1)
    timed.end_turn()
    timed.advance_ms(TICK_MS)
    per_try = len(calls)
    for _ in range(40):
        timed.advance_ms(TICK_MS)
    assert len(calls) <= 3 * per_try
    assert len([each for each in caplog.messages if "a write failed" in each]) == 1
    timed.filesystem.fault = None
    for _ in range(20):
        timed.advance_ms(TICK_MS)
    assert timed.entries(SETTLED) == [(0, 0)]
    for _ in range(20):
        timed.advance_ms(TICK_MS)
    assert not timed.timers, "an idle queue has no timer"
    timed.restart()
    assert timed.offsets() == [1]


def test_reason_of_a_failed_append_stays_known_when_acks_are_written(timed: TimedHarness) -> None:
    """The broker names it in its report. The few bytes of an ack often find room in a block of their file."""
    timed.deliver(*timed.append(b"a", b"b"))
    timed.end_turn()
    timed.filesystem.fault = lambda name, path: (
        OSError(errno.ENOSPC, "no room") if "write" in name and path.endswith(".log") else None
    )
    timed.append(b"c")
    timed.store.ack(0, 1)
    timed.end_turn()
    timed.advance_ms(TICK_MS)
    assert timed.entries(SETTLED) == [(0, 0)]
    assert timed.store.write_error == "no room"


def test_tick_during_a_turn_writes_nothing(timed: TimedHarness) -> None:
    """The end of the turn writes the appended records and the acks, and no timer is lost."""
    timed.deliver(*timed.append(b"a", b"b"))
    timed.end_turn()
    timed.store.ack(0, 1)
    timed.end_turn()
    timed.append(b"c")
    timed.store.ack(1, 1)
    timed.advance_ms(TICK_MS)
    assert timed.entries(SETTLED) == []
    timed.end_turn()
    assert timed.entries(SETTLED) == [(0, 1)]
    assert len(timed.timers) == 1
    for _ in range(20):
        timed.advance_ms(TICK_MS)
    assert not timed.timers, "an idle queue has no timer"


class TestOverdueTick:
    """A loop turn takes so long that the timer of the tick cannot run.

    `write_overdue_acks` is called between two reads of the turn.
    """

    def writes_by_age(self, timed: TimedHarness) -> dict[float, int]:
        """Numbers of ack writes, by the upper bound of the oldest ack's age."""
        counts = timed.storage.commits.ack_ages.counts
        return {bound: count for bound, count in zip((*BOUNDS_ACKS_S, inf), counts, strict=True) if count}

    def test_overdue_acks_are_written(self, timed: TimedHarness) -> None:
        timed.deliver(*timed.append(b"a", b"b", b"c"))
        timed.end_turn()
        timed.store.ack(0, 1)
        timed.end_turn()
        timed.clock.now_ms += TICK_MS - 1
        timed.storage.commits.write_overdue_acks()
        assert timed.entries(SETTLED) == []
        timed.clock.now_ms += 1
        timed.store.ack(1, 1)
        timed.storage.commits.write_overdue_acks()
        assert timed.entries(SETTLED) == [(0, 1)]
        timed.clock.now_ms += TICK_MS - 1
        timed.store.ack(2, 1)
        timed.storage.commits.write_overdue_acks()
        assert timed.entries(SETTLED) == [(0, 1)], "written acks have no age"
        timed.restart()
        assert timed.offsets() == [2]

    def test_records_of_the_turn_are_written_before_their_acks(self, timed: TimedHarness) -> None:
        timed.storage.commits.write_overdue_acks()
        timed.deliver(*timed.append(b"a", b"b"))
        timed.storage.commits.write_overdue_acks()
        timed.clock.now_ms += TICK_MS
        timed.store.ack(0, 1)
        timed.storage.commits.write_overdue_acks()
        assert timed.store.record_count == 1
        timed.restart()
        assert timed.offsets() == [1]
        assert timed.append(b"c") == [2], "an offset whose ack is in a file is not used again"

    def test_records_of_the_turn_are_committed_at_its_end(self, timed: TimedHarness) -> None:
        timed.append(b"a")
        timed.storage.commits.write_overdue_acks()
        timed.clock.now_ms += TICK_MS
        timed.store.ack(0, 1)
        timed.storage.commits.write_overdue_acks()
        assert timed.commits == []
        timed.end_turn()
        assert timed.commits == [(1, [])]

    def test_many_logs_are_written_in_slices(self, make_harness: Callable[..., Any]) -> None:
        timed = TimedHarness(make_harness)
        timed.create_log()
        stores = [timed.store, *[timed.storage.create_queue("v", f"q{each}", "/")[1] for each in range(9)]]
        for store in stores:
            store.append_parts(RecordRoute(b"", b"k"), b"", b"x", True)
        timed.end_turn()
        for store in stores:
            store.ack(0, 1)
        timed.end_turn()
        timed.storage.context.dirty_max = 4
        timed.clock.now_ms += TICK_MS
        left = []
        for _ in range(4):
            timed.storage.commits.write_overdue_acks()
            left.append(sum(store.has_unwritten_acks for store in stores))
        assert left == [6, 2, 0, 0]
        assert self.writes_by_age(timed) == {0.05: 3}

    def test_the_age_of_the_oldest_ack_is_counted(self, timed: TimedHarness) -> None:
        timed.append(*[b"x"] * 9)
        timed.end_turn()
        for _ in range(4):
            timed.advance_ms(TICK_MS)
        assert self.writes_by_age(timed) == {}, "no ack, no age"
        for offset, late_ms in enumerate((0, 10, 350)):
            timed.store.ack(offset, 1)
            timed.end_turn()
            timed.advance_ms(TICK_MS + late_ms)
        assert self.writes_by_age(timed) == {0.05: 1, 0.06: 1, 0.5: 1}

    def test_deleted_log_has_no_ack_age(self, timed: TimedHarness) -> None:
        timed.append(b"a")
        timed.storage.commits.write_overdue_acks()
        timed.storage.commits.remove(timed.store)
        timed.clock.now_ms += 60_000
        _, timed.harness.store = timed.storage.create_queue("v", "other", "/")
        timed.append(b"b")
        timed.store.ack(0, 1)
        timed.end_turn()
        timed.storage.commits.write_overdue_acks()
        assert self.writes_by_age(timed) == {}


def test_flush_and_write_acks_this_turn_do_not_wait_for_the_tick(timed: TimedHarness) -> None:
    """`flush` serves tx.commit. `write_acks_this_turn` serves deliveries without acks and a purge."""
    timed.append(b"a", b"b", b"c")
    timed.end_turn()
    timed.store.ack(0, 1)
    timed.storage.commits.flush()
    assert timed.entries(SETTLED) == [(0, 0)]
    timed.run_callbacks()
    timed.store.ack(1, 1)
    timed.store.write_acks_this_turn()
    timed.end_turn()
    assert timed.entries(SETTLED) == [(0, 0), (1, 1)]
    calls = [call for _, call in timed.timers]
    assert calls and len(set(calls)) == len(calls), "one timer for each purpose"


def test_delivery_mark_is_exact_for_commits_within_a_tick(timed: TimedHarness) -> None:
    """Deliveries between commits that follow each other within a tick count as one burst."""
    timed.append(*[b"x"] * 60)
    timed.end_turn()
    store = timed.store
    for first in range(0, 30, 3):
        timed.deliver(first, first + 1, first + 2)
        store.ack(first, 1)
        timed.storage.commits.flush()
        timed.run_callbacks()
        timed.advance_ms(2)
    assert timed.timers
    store = timed.restart()
    assert [offset for offset in timed.offsets() if store.redelivered(offset)][-1] == 29


def test_delivery_mark_runs_ahead_of_a_busy_queue(timed: TimedHarness) -> None:
    """Few marks cover many turns. After a kill at most AHEAD_MAX undelivered messages count as redelivered."""
    store = timed.store
    turns = 200
    for _ in range(turns):
        offsets = timed.append(*[b"x"] * 5)
        timed.deliver(*offsets)
        timed.end_turn()
        for offset in offsets:
            store.ack(offset, 1)
        timed.end_turn()
        timed.advance_ms(10)
    assert len(timed.entries(DELIVERED)) < turns // 5, "a mark is not written every turn"
    assert len(timed.entries(SETTLED)) < turns // 3, "acks are not written every turn"
    timed.append(*[b"y"] * 1000)
    timed.end_turn()
    delivered = store.delivered_mark
    store = timed.restart()
    marked = [offset for offset in timed.offsets() if store.redelivered(offset)]
    assert len([offset for offset in marked if offset > delivered]) in range(1, AHEAD_MAX + 1)


def test_delivery_mark_of_a_burst_is_exact(timed: TimedHarness) -> None:
    """50 messages are delivered at once and the kill comes some ticks later: 50 are redelivered."""
    store = timed.store
    timed.append(*[b"x"] * 200)
    timed.end_turn()
    for first in range(0, 50, 10):
        timed.deliver(*range(first, first + 10))
        timed.end_turn()
    timed.advance_ms(150)
    store = timed.restart()
    assert [offset for offset in timed.offsets() if store.redelivered(offset)] == list(range(50))


def test_delivery_mark_of_a_slow_queue_is_exact(timed: TimedHarness) -> None:
    for _ in range(20):
        timed.deliver(*timed.append(b"x"))
        timed.end_turn()
        timed.advance_ms(200)
    timed.append(b"x", b"x")
    timed.end_turn()
    store = timed.restart()
    assert [store.redelivered(offset) for offset in (18, 19, 20, 21)] == [True, True, False, False]


def test_clean_stop_keeps_the_exact_delivery_mark(timed: TimedHarness) -> None:
    """The mark in `.settled` is beyond the delivered messages; a start after a clean stop ignores it."""
    for _ in range(50):
        timed.deliver(*timed.append(*[b"x"] * 5))
        timed.end_turn()
        timed.advance_ms(10)
    offsets = timed.append(*[b"x"] * 200)
    timed.end_turn()
    assert timed.entries(DELIVERED)[-1][0] >= offsets[0]
    timed.storage.close(clean=True)
    store = timed.restart()
    assert store.delivered_mark == 249
    assert [store.redelivered(offsets[0] - 1), store.redelivered(offsets[0])] == [True, False]
    timed.deliver(*offsets[:3])
    timed.end_turn()
    store = timed.restart()
    assert store.redelivered(offsets[2])


def test_indexes_are_written_when_the_queue_is_idle(timed: TimedHarness) -> None:
    for _ in range(10):
        timed.append(b"x" * 3000)
        timed.end_turn()
    assert timed.names(".index") == []
    for _ in range(3):
        timed.advance_ms(TICK_MS)
    assert len(timed.data(timed.names(".index")[0])) > 0


def test_high_watermark_of_many_queues_is_written_when_they_are_idle(make_harness: Callable[..., Any]) -> None:
    """The high watermark of a single active queue is written at once. A clean stop writes all."""
    timed = TimedHarness(make_harness)
    first = timed.create_log()
    stores = [first] + [timed.storage.create_queue("v", f"q{number}", "/")[1] for number in range(9)]

    def stored_high_watermark() -> int:
        return decode_high_watermark(bytes(timed.data(HIGH_WATERMARK)))

    timed.append(b"a")
    timed.end_turn()
    assert stored_high_watermark() == 1
    for count in (2, 3):
        for store in stores:
            timed.harness.store = store
            timed.append(b"a")
        timed.end_turn()
        timed.harness.store = first
        assert first.high_watermark == count
        assert stored_high_watermark() == count - 1
        if count == 2:
            for _ in range(5):
                timed.advance_ms(TICK_MS)
            assert stored_high_watermark() == 2
    timed.storage.close(clean=True)
    assert stored_high_watermark() == 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_kills_at_any_moment(make_harness: Callable[..., Any], seed: int) -> None:
    """A busy queue is killed and recovered repeatedly. Its segments are small, so that they roll and are removed."""
    choose = random.Random(seed)
    timed = TimedHarness(make_harness, segment_size_bytes=3000)
    timed.create_log()
    written: set[int] = set()
    delivered: set[int] = set()
    acked_ms: dict[int, int] = {}  # offset -> time of its ack
    ready: list[int] = []
    unacked: list[int] = []
    for _ in range(6):
        store = timed.store
        busy = choose.randint(1, 12)
        for _ in range(choose.randint(1, 150)):
            new = timed.append(*[b"%d" % choose.randrange(1000) * choose.choice([1, 20])] * choose.randint(0, busy))
            ready += new
            count = choose.randint(0, busy) if choose.random() < 0.9 else len(ready)
            delivering, ready = ready[:count], ready[count:]
            timed.deliver(*delivering)
            unacked += delivering
            choose.shuffle(unacked)
            for offset in unacked[: choose.randint(0, len(unacked))]:
                store.ack(offset, 1)
                acked_ms[offset] = timed.clock.now_ms
                unacked.remove(offset)
            if choose.random() < 0.1:
                store.cursor.read(choose.randrange(max(store.next_offset, 1)), 500)
            timed.storage.commits.end_of_turn()
            written |= set(new)  # only now bytes go to a socket
            delivered |= set(delivering)
            if choose.random() < 0.7:
                timed.run_callbacks()
            timed.advance_ms(choose.choice([0, 1, 5, 20]))
        now_ms = timed.clock.now_ms
        clean = choose.random() < 0.3
        if clean:
            timed.run_callbacks()
            timed.storage.close(clean=True)
        last = max(delivered, default=-1)
        store = timed.restart()
        found = timed.offsets()
        old = {offset for offset, time_ms in acked_ms.items() if clean or time_ms <= now_ms - TICK_MS - 20}
        assert not old & set(found), "acked long ago, but delivered again"
        assert written - set(acked_ms) <= set(found), "a written message is lost"
        marked = {offset for offset in found if store.redelivered(offset)}
        assert delivered & set(found) <= marked, "a delivered message is not marked as redelivered"
        ahead = [offset for offset in marked if offset > last]
        assert not ahead if clean else len(ahead) <= AHEAD_MAX
        assert store.record_count == len(found)
        ready = found
        unacked = []
        for offset in found:
            acked_ms.pop(offset, None)
        delivered |= marked
        assert not timed.commits or not any(failed for _, failed in timed.commits)


def test_turn_with_many_logs_is_postponed_while_the_fsync_thread_works(make_harness: Callable[..., Any]) -> None:
    """The turn's end is postponed once, for 2 ms. With few logs or an idle fsync thread it is not postponed."""
    timed = TimedHarness(make_harness)
    first = timed.create_log()
    stores = [first] + [timed.storage.create_queue("v", f"q{number}", "/")[1] for number in range(POSTPONE_FROM)]
    called: list[int] = []

    def run() -> None:
        called.append(timed.clock.now_ms)

    def append(count: int) -> None:
        for store in stores[:count]:
            timed.harness.store = store
            timed.append(b"a")
        timed.harness.store = first

    append(len(stores))
    assert not timed.storage.commits.postpone(run), "the fsync thread is idle"
    timed.storage.commits.end_of_turn()
    append(3)
    assert not timed.storage.commits.postpone(run), "few logs"
    append(len(stores))
    begun = timed.clock.now_ms
    assert timed.storage.commits.postpone(run)
    timed.harness.clock.now_ms += 2
    due = [call for time_ms, call in timed.timers if time_ms <= timed.clock.now_ms]
    assert len(due) == 1 and due[0] is run
    run()
    assert called == [begun + 2]
    assert not timed.storage.commits.postpone(run), "once a turn"
    assert timed.storage.commits.postpone(run), "again in the next turn"
