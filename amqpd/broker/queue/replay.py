"""Messages of a queue that are settled and still in its log (x-retain), for who wants them once more.

    SettledReading   gives them out as they stand, and changes nothing: to be copied, or counted
    Rewinding        makes them ready again, in their places: what matches is gathered first, taken back in the log as
                     one step (storage/acks/replay.py), and given to the queue's order when no crash can undo it

They come back marked as redelivered. What is unacked meanwhile stays where it is. In order of arrival the window is
put back to the first of them: the order that consumers with filters use (filtered.py) knows of each message
behind it whether it is ready, at a bit a message. With priorities each is noted in the index again, a slice at a time.

From the moment the log has the first of them back until all are ready they are live, and not ready. Where settled ones
lie in front of the window (after a start, when acks came out of order), it would read them by itself, and so would a
search: they are held out of it before anything is taken back (`_hold_out`), as what a filter has taken before its turn.
A purge, a length limit or a time to live meanwhile does not see them either.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import QueueEntry
from amqpd.broker.flow.loop_turn import ScanBudget
from amqpd.broker.message import LogMessageFactory
from amqpd.broker.queue.entry_deque import EntryDeque
from amqpd.broker.queue.filtered import FilteredOrder, MessagePredicate
from amqpd.broker.queue.log_reader import SETTLED
from amqpd.broker.queue.offset_bitmap import OffsetBitmap
from amqpd.broker.queue.priority import PriorityOrder
from amqpd.broker.queue.queue import Queue
from amqpd.broker.queue.scan import SLICE_MS, QueueScan, ScanLogReader
from amqpd.storage.acks.replay import AckedReplay
from amqpd.storage.log.record import Record

# Of a queue with priorities: how many come back in a slice, and how many of them go to its index.
LEVEL_COUNT: Final = 1024
COOL_COUNT: Final = 8192
# What a segment's bits cost, as bytes of headers that are looked at.
BITS_STEP: Final = 8192
EXPIRED: Final = "expired"


@final
class LogRange:
    """A part of a log: from the offset `begin` on and below `until` (-1: to the end), appended between two times (ms
    since 1970, the first included; -1: any).
    """

    def __init__(self, begin: i64, until: i64 = -1, begin_ms: i64 = -1, until_ms: i64 = -1) -> None:
        self.begin: Final = begin
        self.until: Final = until
        self.begin_ms: Final = begin_ms
        self.until_ms: Final = until_ms


class AckedScan(QueueScan):
    """What is settled and in the log, of this section."""

    def __init__(self, queue: Queue, judge: MessagePredicate, wake: Callable[[], None], section: LogRange) -> None:
        super().__init__(queue, judge, wake)
        if 0 <= section.until < self.end:
            self.end = section.until
        self.position = section.begin
        self._section = section
        self._scans = ScanBudget(queue.host.timers)
        self._reader = ScanLogReader(wake, SETTLED)
        self._from_log = LogMessageFactory()

    def next_settled(self) -> QueueEntry | None:
        """The next that is wanted, with its message. None: there is none, or the slice is over, or it waits."""
        queue = self.queue
        store = queue.backing.store
        scans = self._scans
        while not scans.over:
            if store is None or self.position >= self.end:
                self.ended = True
                return None
            record = self._reader.next(store, self.position)
            if record is None:
                self.waits = self._reader.waits
                self.ended = not self.waits and not self._reader.behind
                return None
            if record.offset >= self.end:
                self.ended = True
                return None
            self.position = record.offset + 1
            scans.step(len(record.properties))
            if self._is_early_or_late(record):
                continue
            message = self._from_log.message(record)
            if self.judge.wants(message):
                return QueueEntry(queue, record.offset, message, True)
        return None

    def _is_early_or_late(self, record: Record) -> bool:
        if record.timestamp_ms < self._section.begin_ms:
            return True
        return 0 <= self._section.until_ms <= record.timestamp_ms

    def close(self) -> None:
        self._reader.close()


@final
class AckedBrowse(AckedScan):
    """Gives them out and changes nothing."""

    def __init__(self, queue: Queue, judge: MessagePredicate, wake: Callable[[], None], section: LogRange) -> None:
        super().__init__(queue, judge, wake, section)
        # Offsets that were given back, a heap; who reads them again.
        self._again: list[int] = []
        self._again_reader = ScanLogReader(wake, SETTLED)

    def collect(self, entries: list[QueueEntry], count_max: i64, bytes_max: i64) -> None:
        self.waits = False
        self._scans.begin_alone(SLICE_MS)
        store = self.queue.backing.store
        while self._again and store is not None and count_max > 0 and bytes_max > 0 and not self._scans.over:
            offset: i64 = self._again[0]
            record = self._again_reader.next(store, offset)
            if record is None and (self._again_reader.waits or self._again_reader.behind):
                self.waits = self._again_reader.waits
                return
            heappop(self._again)
            self._scans.step(0)
            if record is None or record.offset != offset:
                continue  # it has left the log meanwhile
            again = QueueEntry(self.queue, offset, self._from_log.message(record), True)
            entries.append(again)
            count_max -= 1
            bytes_max -= again.body_size
        self.ended = False
        while count_max > 0 and bytes_max > 0:
            entry = self.next_settled()
            if entry is None:
                return
            entries.append(entry)
            count_max -= 1
            bytes_max -= entry.body_size
        if not self._again and not self._scans.over:
            after = self.next_settled()  # who has room for no more is not to wait for what is not there
            if after is not None:
                heappush(self._again, after.offset)

    def give_back(self, entry: QueueEntry) -> None:
        heappush(self._again, entry.offset)
        self.ended = False

    def close(self) -> None:
        super().close()
        self._again_reader.close()


@final
class Replay(AckedScan):
    """Makes them ready again. rewind: of the queue's log. limit: how many at most; 0: all. leave: called for one that
    stays, with the reason; fail: with why it cannot be done.
    """

    def __init__(
        self,
        queue: Queue,
        judge: MessagePredicate,
        wake: Callable[[], None],
        section: LogRange,
        rewind: AckedReplay,
        limit: i64,
        leave: Callable[[str], None],
        fail: Callable[[str], None],
    ) -> None:
        super().__init__(queue, judge, wake, section)
        self._rewind = rewind
        self._limit = limit
        self._leave = leave
        self._fail = fail
        self._count: i64 = 0
        self._size_bytes: i64 = 0
        # Segments whose messages are still to be asked for; in order of arrival, the order while it holds them out, and
        # what is not ready between them.
        self._bases: list[int] = []
        self._gathered = False
        self._held_by: FilteredOrder | None = None
        self._between = OffsetBitmap()
        self._first: i64 = -1
        self._last: i64 = -1
        # Of a queue with priorities: what comes back, range by range, and where in the first of them.
        self._ranges: list[tuple[int, int]] = []
        self._at: i64 = 0
        self._back = False

    def collect(self, entries: list[QueueEntry], count_max: i64, bytes_max: i64) -> None:
        self.waits = False
        if self._back and isinstance(self.queue.order, PriorityOrder):
            self._give_levels()
        elif self._back:
            self._give_all()
        elif self.committed:
            self._go_on()
        elif self._gathered:
            self._hold_out()
        else:
            self._gather()

    def _gather(self) -> None:
        rewind = self._rewind
        queue = self.queue
        order = queue.order
        if isinstance(order, PriorityOrder) and not order.is_next_in_memory(queue):
            self.waits = True  # its index is being made, of what is live
            return
        self._scans.begin_alone(SLICE_MS)
        while self._limit == 0 or self._count < self._limit:
            entry = self.next_settled()
            if entry is None:
                break
            info = None if entry.message is None else entry.message.info
            if info is not None and info.expiration is not None and entry.message is not None:
                queue.track_expiration(entry.message)
            if queue.expiry is not None and queue.expiry.is_over(entry):
                self._leave(EXPIRED)
                continue
            rewind.add(entry.offset, entry.body_size)
            self._count += 1
            self._size_bytes += entry.body_size
        if self._limit > 0 and self._count >= self._limit:
            self.ended = True
        if not self.ended or self._count == 0:
            return
        rules = queue.rules
        if not rules.stream and rules.is_over(queue.ready_count + self._count, queue.ready_bytes + self._size_bytes):
            self._fail(f"queue '{queue.name}' would be over its length with {self._count} messages more")
            return
        self.ended = False
        self._gathered = True
        self._bases = rewind.bases()

    def _hold_out(self) -> None:
        """Whoever reads the log passes over what is about to be live in it, a segment after the other."""
        queue = self.queue
        if not isinstance(queue.order, PriorityOrder):  # which reads what its index has, and nothing else
            order = queue.use_filtered_order().order
            order.rewinding = True
            self._held_by = order
            if queue.dead_letters_logged_count > 0:
                self.waits = True  # of a range of them all goes that is live in the log when it is their turn
                return
            scans = self._scans
            scans.begin_alone(SLICE_MS)
            while self._bases:
                if scans.over:
                    return
                taken = self._rewind.taken[self._bases.pop(0)]
                if taken.highest >= order.cold_offset:
                    order.ahead.add_bits(taken.base, taken.as_bits())
                scans.step(BITS_STEP)
        self.committed = True
        self.waits = True
        self._rewind.begin()

    def _go_on(self) -> None:
        rewind = self._rewind
        rewind.go_on()
        if not rewind.over:
            self.waits = True
            self.queue.host.turn.schedule()
            return
        error = rewind.error
        if error is not None:
            self.ended = True
            self._fail(f"queue '{self.queue.name}' could not be rewound: {error}")
            return
        self._bases = rewind.bases()
        self._back = True
        self._reader.close()
        self._reader = ScanLogReader(self.wake)

    def _give_all(self) -> None:
        """A segment after the other, until a slice is over; then all are ready at once."""
        rewind = self._rewind
        scans = self._scans
        scans.begin_alone(SLICE_MS)
        between = self._between
        while self._bases:
            if scans.over:
                return
            taken = rewind.taken[self._bases.pop(0)]
            bits = taken.as_bits()
            if self._first < 0:
                self._first = taken.base + (bits & -bits).bit_length() - 1
                self._last = self._first - 1
            between.add_range(self._last + 1, taken.highest)
            between.remove_bits(taken.base, bits)
            self._last = taken.highest
            scans.step(BITS_STEP)
        if self._first >= 0:
            make_ready(self.queue, self._first, self._last, between, rewind.count, rewind.size_bytes)
        self.done_count += rewind.count
        self.ended = True

    def _give_levels(self) -> None:
        queue = self.queue
        order = queue.order
        store = queue.backing.store
        assert isinstance(order, PriorityOrder)
        if not order.is_next_in_memory(queue):
            self.waits = True  # its index is being made
            return
        if not order.cool(COOL_COUNT):
            return
        scans = self._scans
        scans.begin_alone(SLICE_MS)
        count: i64 = 0
        while count < LEVEL_COUNT and not scans.over:
            if not self._ranges and self._bases:
                self._ranges = self._rewind.ranges_of(self._bases.pop(0))
                self._at = self._ranges[0][0]
            if not self._ranges or store is None:
                self.ended = True
                break
            last: i64 = self._ranges[0][1]
            record = None
            if self._at <= last:
                record = self._reader.next(store, self._at)
                if record is None and self._reader.waits:
                    self.waits = True
                    break
            if record is None or record.offset > last:
                del self._ranges[0]
                if self._ranges:
                    self._at = self._ranges[0][0]
                continue
            self._at = record.offset + 1
            scans.step(len(record.properties))
            entry = QueueEntry(queue, record.offset, queue.backing.message(record), True)
            order.requeue(queue, entry)
            entry.message = None
            count += 1
        self.done_count += count
        if count > 0:
            queue.schedule_dispatch()
            queue.host.turn.schedule()

    def close(self) -> None:
        super().close()
        order = self._held_by
        if order is not None:
            order.rewinding = False
            if not self.queue.deleted:
                self.queue.schedule_dispatch()  # which goes on with a plain order, where that will do


def make_ready(queue: Queue, first: i64, last: i64, between: OffsetBitmap, count: i64, size_bytes: i64) -> None:
    """Of a queue in order of arrival: so many messages from `first` to `last` are live in its log again, and ready from
    now on: all but those in `between`, which is the order's from now on. Cost: what stands in the window, and what was
    taken out of the log before its turn.
    """
    filtered = queue.use_filtered_order().order
    if queue.ready_count == 0:
        filtered.pass_all()
    behind = filtered.cold_offset
    # What was taken before its turn and did not come back stays out; so does, in front of the window, whatever is live
    # and did not come back: it is unacked, returned, or a dead letter on its way.
    ahead = filtered.ahead
    ahead.keep_common(between, first, last)
    if first < behind:
        if last < behind - 1:
            between.add_range(last + 1, behind - 1)
        else:
            between.remove_range(behind, last)
        hot = EntryDeque()
        hot_bytes: i64 = 0
        for entry in filtered.hot.rest():
            if entry.offset < first:
                hot.append(entry)
                hot_bytes += entry.body_size
            else:
                between.remove_range(entry.offset, entry.offset)
        between.add_from(ahead, behind)
        filtered.ahead = between
        filtered.hot = hot
        filtered.memory.hot_bytes = hot_bytes
        filtered.cold_offset = first
    filtered.reading = False
    queue.ready_count += count
    queue.ready_bytes += size_bytes
    for entry in filtered.back:
        filtered.back[entry] = 0
    for cursor in filtered.cursors:
        cursor.begin_anew(filtered.back)
    queue.schedule_dispatch()
    queue.host.turn.schedule()
