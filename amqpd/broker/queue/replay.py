"""Settled messages that a queue's log still has (x-retain): to copy them, or to make them ready again.

    AckedBrowse   returns copies and changes nothing
    Replay        makes the wanted messages ready again, at their places, marked as redelivered

`Replay` works in steps. It gathers the wanted messages, then makes them unsettled in the log in one step
(storage/acks/replay.py). When no crash can undo that, it gives them to the ready order. Unacked messages are not
affected.

In a queue ordered by arrival the window goes back to the first of them. Its `FilteredOrder` (filtered.py) has one bit
for each later message: ready or not. In a queue with priorities each message enters the index again, a slice at a
time.

Between the commit in the log and the last step the messages are unsettled, but not ready. Some can be ahead of the
window, after a start or after acks out of order. The window and searches would read those too early. So
`_exclude_from_reads` excludes them before the commit, like messages that a filter took early. A purge, a length limit
and a time to live do not see them either.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import QueueEntry
from amqpd.broker.message import LogMessageFactory
from amqpd.broker.queue.entry_deque import EntryDeque
from amqpd.broker.queue.filtered import FilteredOrder, MessagePredicate
from amqpd.broker.queue.log_reader import SETTLED, QueueLogReader
from amqpd.broker.queue.offset_bitmap import OffsetBitmap
from amqpd.broker.queue.priority import PriorityOrder
from amqpd.broker.queue.queue import Queue
from amqpd.broker.queue.scan import SLICE_MS, QueueScan
from amqpd.storage.acks.replay import AckedReplay
from amqpd.storage.log.record import Record

# Messages made ready per slice, with priorities.
LEVEL_COUNT: Final = 1024
# Cost of the bits of a segment in a slice, expressed in bytes of headers.
BITS_STEP: Final = 8192
EXPIRED: Final = "expired"


@final
class LogRange:
    """A part of a log, by offset and by time of the append.

    Attributes:
        begin, until: offsets; `until` is not included, -1 for the end.
        begin_ms, until_ms: ms since 1970; `until_ms` is not included, -1 for any time.
    """

    def __init__(self, begin: i64, until: i64 = -1, begin_ms: i64 = -1, until_ms: i64 = -1) -> None:
        self.begin: Final = begin
        self.until: Final = until
        self.begin_ms: Final = begin_ms
        self.until_ms: Final = until_ms


class AckedScan(QueueScan):
    """Base class: search of the settled messages in a section of the log."""

    def __init__(self, queue: Queue, judge: MessagePredicate, wake: Callable[[], None], section: LogRange) -> None:
        super().__init__(queue, judge, wake)
        if 0 <= section.until < self.end:
            self.end = section.until
        self.position = section.begin
        self._section = section
        self._reader = QueueLogReader(SETTLED)
        self._from_log = LogMessageFactory()

    def next_settled(self) -> QueueEntry | None:
        """Return the next wanted message. None at the end, when the slice is over, or while the disk is read."""
        while not self._scans.is_used_up:
            record = self._next_record(self._reader)
            if record is None:
                return None
            if self._is_outside_times(record):
                continue
            message = self._from_log.message(record)
            if self.judge.wants(message):
                return QueueEntry(self.queue, record.offset, message, True)
        return None

    def _is_outside_times(self, record: Record) -> bool:
        """Return whether the record was appended outside the times of the section."""
        if record.timestamp_ms < self._section.begin_ms:
            return True
        return 0 <= self._section.until_ms <= record.timestamp_ms

    def close(self) -> None:
        self._reader.close()


@final
class AckedBrowse(AckedScan):
    """Search that returns copies of settled messages."""

    def __init__(self, queue: Queue, judge: MessagePredicate, wake: Callable[[], None], section: LogRange) -> None:
        super().__init__(queue, judge, wake, section)
        # Heap of the offsets that were given back, and the reader for them.
        self._again: list[int] = []
        self._again_reader = QueueLogReader(SETTLED)

    def collect(self, entries: list[QueueEntry], count_max: i64, bytes_max: i64) -> None:
        """Append the next wanted messages: first those given back, then the log."""
        self.waits = False
        self._scans.begin_slice(SLICE_MS)
        store = self.queue.backing.store
        while self._again and store is not None and count_max > 0 and bytes_max > 0 and not self._scans.is_used_up:
            offset: i64 = self._again[0]
            record = self._again_reader.next(store, offset, self.wake)
            if record is None and (self._again_reader.waits or self._again_reader.behind):
                self.waits = self._again_reader.waits
                return
            heappop(self._again)
            self._scans.step(0)
            if record is None or record.offset != offset:
                continue  # it was removed from the log meanwhile
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
        if not self._again and not self._scans.is_used_up:
            after = self.next_settled()  # looks whether there is more
            if after is not None:
                heappush(self._again, after.offset)

    def return_message(self, entry: QueueEntry) -> None:
        heappush(self._again, entry.offset)
        self.ended = False

    def close(self) -> None:
        super().close()
        self._again_reader.close()


@final
class Replay(AckedScan):
    """Search that makes settled messages ready again.

    Args:
        rewind: the replay of the queue's log.
        limit: limit of messages; 0 for none.
        leave: called with the reason for a message that stays settled.
        fail: called with the reason if the replay is impossible.
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
        # Segments that the present step has not processed. For a queue ordered by arrival: the order that excludes the
        # messages, and the offsets between them that are not ready.
        self._bases: list[int] = []
        self._gathered = False
        self._excluding_order: FilteredOrder | None = None
        self._between = OffsetBitmap()
        self._first: i64 = -1
        self._last: i64 = -1
        # With priorities: ranges of offsets to make ready, and the position in the first range.
        self._ranges: list[tuple[int, int]] = []
        self._next_offset: i64 = 0
        self._unsettled_again = False

    def collect(self, entries: list[QueueEntry], count_max: i64, bytes_max: i64) -> None:
        """Do a slice of the present step: gather, exclude, commit, make ready. `entries` stays empty."""
        self.waits = False
        if self._unsettled_again and isinstance(self.queue.order, PriorityOrder):
            self._requeue_priorities()
        elif self._unsettled_again:
            self._make_all_ready()
        elif self.committed:
            self._continue_commit()
        elif self._gathered:
            self._exclude_from_reads()
        else:
            self._gather()

    def _gather(self) -> None:
        """Search the wanted messages. Expired ones stay settled. Fail if the queue would exceed its length limit."""
        rewind = self._rewind
        queue = self.queue
        order = queue.order
        if isinstance(order, PriorityOrder) and not order.is_next_in_memory(queue):
            self.waits = True  # the index of unsettled messages is being built
            return
        self._scans.begin_slice(SLICE_MS)
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
        if not queue.has_room(self._count, self._size_bytes):
            self._fail(f"queue '{queue.name}' would exceed its length limit with {self._count} more messages")
            return
        self.ended = False
        self._gathered = True
        self._bases = rewind.bases()

    def _exclude_from_reads(self) -> None:
        """Exclude the messages from reads of the log, a segment at a time, then begin the commit in the log."""
        queue = self.queue
        if not isinstance(queue.order, PriorityOrder):  # a priority order reads only what its index has
            order = queue.use_filtered_order().order
            order.rewinding = True
            self._excluding_order = order
            if queue.dead_letters_logged_count > 0:
                self.waits = True  # `dead_letter_range` would take every unsettled message
                return
            scans = self._scans
            scans.begin_slice(SLICE_MS)
            while self._bases:
                if scans.is_used_up:
                    return
                taken = self._rewind.taken[self._bases.pop(0)]
                if taken.highest >= order.cold_offset:
                    order.ahead.add_bits(taken.base, taken.as_bits())
                scans.step(BITS_STEP)
        self.committed = True
        self.waits = True
        self._rewind.begin()

    def _continue_commit(self) -> None:
        """Continue the commit in the log, a part per turn. If it fails, the replay fails."""
        rewind = self._rewind
        rewind.run_slice()
        if not rewind.is_finished:
            self.waits = True
            self.queue.host.turn.schedule()
            return
        error = rewind.error
        if error is not None:
            self.ended = True
            self._fail(f"queue '{self.queue.name}' could not be rewound: {error}")
            return
        self._bases = rewind.bases()
        self._unsettled_again = True
        self._reader.close()
        self._reader = QueueLogReader()

    def _make_all_ready(self) -> None:
        """Collect which messages are ready, a segment at a time within a slice; then make all ready at once."""
        rewind = self._rewind
        scans = self._scans
        scans.begin_slice(SLICE_MS)
        between = self._between
        while self._bases:
            if scans.is_used_up:
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

    def _requeue_priorities(self) -> None:
        """Requeue the messages of a priority queue one by one, at most LEVEL_COUNT per slice."""
        queue = self.queue
        order = queue.order
        store = queue.backing.store
        assert isinstance(order, PriorityOrder)
        if not order.is_next_in_memory(queue):
            self.waits = True  # its index is being built
            return
        if not order.cool():
            return
        scans = self._scans
        scans.begin_slice(SLICE_MS)
        count: i64 = 0
        while count < LEVEL_COUNT and not scans.is_used_up:
            if not self._ranges and self._bases:
                self._ranges = self._rewind.ranges_of(self._bases.pop(0))
                self._next_offset = self._ranges[0][0]
            if not self._ranges or store is None:
                self.ended = True
                break
            last: i64 = self._ranges[0][1]
            record = None
            if self._next_offset <= last:
                record = self._reader.next(store, self._next_offset, self.wake)
                if record is None and self._reader.waits:
                    self.waits = True
                    break
            if record is None or record.offset > last:
                del self._ranges[0]
                if self._ranges:
                    self._next_offset = self._ranges[0][0]
                continue
            self._next_offset = record.offset + 1
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
        order = self._excluding_order
        if order is not None:
            order.rewinding = False
            if not self.queue.deleted:
                self.queue.schedule_dispatch()  # changes back to the FIFO order if possible


def make_ready(queue: Queue, first: i64, last: i64, between: OffsetBitmap, count: i64, size_bytes: i64) -> None:
    """Make messages of a queue ordered by arrival ready again. Its log has them as unsettled already.

    Args:
        first, last: the range of offsets.
        between: offsets in the range that are not ready. The order keeps this set.
        count, size_bytes: number of the messages, and of their body bytes.

    Cost: A step per entry in the window, and per message that was taken early from the log.
    """
    filtered = queue.use_filtered_order().order
    if queue.ready_count == 0:
        filtered.skip_to_end()
    behind = filtered.cold_offset
    # Messages that were taken early and are not replayed stay excluded. Before the window every unsettled message that
    # is not replayed is excluded, too: it is unacked, returned, or a pending dead letter.
    ahead = filtered.ahead
    ahead.keep_common(between, first, last)
    if first < behind:
        if last < behind - 1:
            between.add_range(last + 1, behind - 1)
        else:
            between.remove_range(behind, last)
        hot = EntryDeque()
        hot_bytes: i64 = 0
        for entry in filtered.hot.entries():
            if entry.offset < first:
                hot.append(entry)
                hot_bytes += entry.body_size
            else:
                between.remove(entry.offset)
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
