"""Search through a queue for messages that a `MessagePredicate` wants, for jobs and lists (broker/jobs).

    BrowseScan     reads and takes nothing, also from streams; to show and to copy
    FifoScan       takes from a queue ordered by arrival, by a cursor in its `FilteredOrder` (filtered.py)
    LogScan        takes from a queue with priorities or groups, from locked groups, too

`LogScan` looks at messages that only memory has, then at the log by offset. An index (scan_index.py) tells it what is
in memory. It does not look at messages that were requeued below its position.

A search ends at the messages that were in the queue when it began. Unacked messages are not taken. If one is requeued
during the search, `FifoScan` looks at it. A taken message counts as unacked without a consumer. The log marks it as
delivered, so that it counts as redelivered after a kill. Nothing here waits for the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop
from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from amqpd.broker.consumer import QueueEntry
from amqpd.broker.flow.loop_turn import ScanBudget
from amqpd.broker.message import LogMessageFactory, Message
from amqpd.broker.queue.filtered import NOTHING, FilterCursor, FilteredOrder, MessagePredicate, free_bit
from amqpd.broker.queue.grouped_order import GroupedOrder
from amqpd.broker.queue.log_reader import LIVE, SAFE, QueueLogReader
from amqpd.broker.queue.priority import PriorityOrder
from amqpd.broker.queue.queue import Queue
from amqpd.broker.queue.ready_order import SearchableOrder
from amqpd.broker.queue.scan_index import MemoryIndex
from amqpd.routing.selector import MATCHES_ALL
from amqpd.storage.log.record import Record

# Time limit of one call of `collect`.
SLICE_MS: Final = 2
# Offsets that a `ReadySpan` covers.
READY_SPAN: Final = 65536


@mypyc_attr(allow_interpreted_subclasses=True)
class QueueScan:
    """Base class of the searches. The log of the queue must be open.

    Attributes:
        judge: decides which messages are wanted.
        wake: called when the disk has delivered.
        end: only messages below this offset are looked at.
        position: messages below were looked at.
        ended: there are no more messages.
        waits: `collect` stopped because the disk is being read.
        committed: the search cannot be stopped any more.
        done_count: messages processed without being returned, since `take_done`.
    """

    def __init__(self, queue: Queue, judge: MessagePredicate, wake: Callable[[], None]) -> None:
        self.queue = queue
        self.judge = judge
        self.wake = wake
        self.end: i64 = queue.backing.next_offset
        self.position: i64 = 0
        self.ended = False
        self.waits = False
        self.committed = False
        self.done_count: i64 = 0
        self._scans = ScanBudget(queue.host.timers)

    def _next_record(self, reader: QueueLogReader) -> Record | None:
        """Return the next record of the log and move behind it. None at the end, or if the search must wait."""
        store = self.queue.backing.store
        if store is None or self.position >= self.end:
            self.ended = True
            return None
        record = reader.next(store, self.position, self.wake)
        if record is None:
            self.waits = reader.waits
            self.ended = not reader.waits and not reader.behind
        elif record.offset >= self.end:
            self.ended = True
            record = None
        else:
            self.position = record.offset + 1
            self._scans.step(len(record.properties))
        return record

    def collect(self, entries: list[QueueEntry], count_max: i64, bytes_max: i64) -> None:
        """Append the next wanted messages to `entries`, in order. Works for SLICE_MS at most.

        Args:
            count_max: limit of messages.
            bytes_max: limit of body bytes; the last message may exceed it.

        Raises:
            OSError: the log cannot be read.
        """
        raise NotImplementedError

    def take_done(self) -> i64:
        """Return `done_count` and reset it."""
        count = self.done_count
        self.done_count = 0
        return count

    def settle(self, entry: QueueEntry) -> None:
        """Settle a message that `collect` returned."""

    def return_message(self, entry: QueueEntry) -> None:
        """Return a message to its place. The search may find it again."""

    def close(self) -> None:
        """End the search. Messages that it returned may still be settled or given back."""


@final
class BrowseScan(QueueScan):
    """Search that takes nothing and returns copies of entries.

    Unacked messages are read from the log; a queue without a log cannot show them.

    Args:
        ready_only: skip messages that are not ready. Ignored for a stream.
        begin: the first offset to look at.
        begin_ms: skip messages that the log got earlier (ms since 1970). Messages only in memory have no such time.
    """

    def __init__(
        self,
        queue: Queue,
        judge: MessagePredicate,
        wake: Callable[[], None],
        ready_only: bool,
        begin: i64 = 0,
        begin_ms: i64 = 0,
    ) -> None:
        super().__init__(queue, judge, wake)
        self._begin_ms = begin_ms
        store = queue.backing.store
        if begin_ms > 0 and store is not None:
            earliest = store.offset_before(begin_ms)
            if earliest > begin:
                begin = earliest
        self._begin = begin
        self._ready_only = ready_only
        self._from_log = LogMessageFactory()
        self._reader = QueueLogReader(SAFE if queue.rules.stream else LIVE)
        self._returned: list[QueueEntry] = []
        self._memory = [entry for entry in queue.order.in_memory() if not queue.backing.is_logged(entry.offset)]
        self._memory.sort()
        self._at: i64 = 0

    def collect(self, entries: list[QueueEntry], count_max: i64, bytes_max: i64) -> None:
        """Append copies of the next wanted messages: first those given back, then memory, then the log."""
        queue = self.queue
        scans = self._scans
        self.waits = False
        scans.begin_slice(SLICE_MS)
        while self._returned and count_max > 0:
            entries.append(self._returned.pop(0))
            count_max -= 1
        size: i64 = len(self._memory)
        while self._at < size:
            entry = self._memory[self._at]
            message = entry.message
            if scans.is_used_up:
                return
            wanted = False
            if message is not None and entry.offset >= self._begin:
                scans.step(message.header_size)
                wanted = self.judge.wants(message)
            if wanted and (count_max <= 0 or bytes_max <= 0):
                return
            self._at += 1
            self.position = entry.offset + 1
            if wanted and message is not None:
                copy = QueueEntry(queue, entry.offset, message, entry.redelivered)
                copy.delivery_count = entry.delivery_count
                entries.append(copy)
                count_max -= 1
                bytes_max -= copy.body_size
        if self._at >= size and not self._returned:
            self._search_log(entries, count_max, bytes_max)

    def _search_log(self, entries: list[QueueEntry], count_max: i64, bytes_max: i64) -> None:
        """Search the log. When `entries` is full, find and keep one more, so that `ended` is exact."""
        queue = self.queue
        scans = self._scans
        store = queue.backing.store
        if self.position < self._begin:
            self.position = self._begin
        if self.position < queue.backing.log_start:
            self.position = queue.backing.log_start
        order = queue.order
        ready: ReadySpan | None = None
        if self._ready_only and not queue.rules.stream:
            if isinstance(order, PriorityOrder) and not order.is_next_in_memory(queue):
                self.waits = True
                return
            ready = ReadySpan(queue, self.position)
        while not scans.is_used_up:
            record = self._next_record(self._reader)
            if record is None or store is None:
                return
            if record.timestamp_ms < self._begin_ms:
                continue
            if ready is not None:
                if record.offset >= ready.end:
                    ready = ReadySpan(queue, record.offset)
                if not ready.has(record.offset):
                    continue
            message = self._from_log.message(record)
            if self.judge.wants(message):
                entry = QueueEntry(queue, record.offset, message, store.redelivered(record.offset))
                entry.delivery_count = record.delivery_count
                if count_max <= 0 or bytes_max <= 0:
                    self._returned.append(entry)
                    return
                entries.append(entry)
                count_max -= 1
                bytes_max -= entry.body_size

    @property
    def next_offset(self) -> int:
        """Return the first offset that was not looked at or not returned."""
        if self._returned:
            return self._returned[0].offset
        if self._at < len(self._memory):
            return self._memory[self._at].offset
        return max(self.position, self._begin)

    def return_message(self, entry: QueueEntry) -> None:
        self.ended = False
        if entry.message is None:
            self.queue.backing.read_back(entry)
        if entry.message is not None:  # otherwise it was settled meanwhile
            self._returned.append(entry)

    def close(self) -> None:
        self._reader.close()
        self._memory.clear()


@final
class ReadySpan:
    """The messages of a queue that are ready, from offset `first` to below `end`. Valid until other code runs.

    Not for streams.

    Cost: To create: about 10 ns for each entry in memory.
    """

    def __init__(self, queue: Queue, first: i64) -> None:
        self.end: i64 = first + READY_SPAN
        self._held: set[int] = set()
        order = queue.order
        for entry in order.in_memory():
            if first <= entry.offset < self.end:
                self._held.add(entry.offset)
        self._order = order
        self._unacked: set[int] = set()
        if isinstance(order, GroupedOrder):
            for entry in order.window.unacked:
                if first <= entry.offset < self.end:
                    self._unacked.add(entry.offset)

    def has(self, offset: i64) -> bool:
        """Return whether the message at an offset is ready. It must be in memory, or in the log and not acked."""
        return offset in self._held or (offset not in self._unacked and self._order.is_cold(offset))


@mypyc_attr(allow_interpreted_subclasses=True)
class TakingScan(QueueScan):
    """Base class of searches that take the messages out of the queue."""

    def settle(self, entry: QueueEntry) -> None:
        queue = self.queue
        queue.uncount_unacked(entry.body_size)
        queue.backing.settle(entry)

    def return_message(self, entry: QueueEntry) -> None:
        self.ended = False
        self.queue.requeue(entry, False)
        self.queue.schedule_dispatch()


@final
class FifoScan(TakingScan):
    """Search of a queue ordered by arrival."""

    def __init__(self, queue: Queue, judge: MessagePredicate, wake: Callable[[], None]) -> None:
        super().__init__(queue, judge, wake)
        self._order: FilteredOrder = queue.use_filtered_order().order
        cursor = FilterCursor(MATCHES_ALL, free_bit(self._order.cursors))
        cursor.judge = judge
        cursor.arrived = wake
        self._order.add_cursor(cursor)
        self._cursor = cursor

    def collect(self, entries: list[QueueEntry], count_max: i64, bytes_max: i64) -> None:
        """Take the next wanted messages: see `QueueScan.collect`.

        Expired messages are discarded. When `entries` is full, look once more, so that `ended` is exact.
        """
        queue = self.queue
        order = self._order
        cursor = self._cursor
        scans = self._scans
        backing = queue.backing
        self.waits = False
        scans.begin_slice(SLICE_MS)
        count: i64 = 0
        while count < count_max and bytes_max > 0:
            cursor.behind = False
            offset = order.find(queue, cursor, scans)
            if offset == NOTHING:
                if not cursor.behind:
                    self.ended = cursor.position >= self.end and cursor.next_again(order.back) is None
                    self.waits = not self.ended
                break
            if offset >= self.end:
                self.ended = True
                break
            if offset < 0:
                self._skip_unlogged(cursor)
                continue
            entry = order.claim(queue, cursor, offset)
            if queue.discard_if_expired(entry):
                continue
            queue.count_unacked(entry.body_size)
            store = backing.store
            if store is not None and offset >= backing.log_start:
                if cursor.refused_count == 0:
                    store.mark_delivered(offset)  # all messages before it were delivered, too
                else:
                    order.mark_delivered(store, offset)
            entries.append(entry)
            count += 1
            bytes_max -= entry.body_size
        if count == count_max and not scans.is_used_up:
            # Look once more, so that the caller need not call again if there is nothing.
            cursor.behind = False
            offset = order.find(queue, cursor, scans)
            nothing = offset == NOTHING and not cursor.behind and cursor.next_again(order.back) is None
            self.ended = offset >= self.end or (nothing and cursor.position >= self.end)
        self.position = cursor.position

    def _skip_unlogged(self, cursor: FilterCursor) -> None:
        """Skip a requeued message that the log could not write: it has no offset and stays."""
        entry = cursor.next_again(self._order.back)
        assert entry is not None  # otherwise it had an offset
        self._order.back[entry] |= cursor.bit
        cursor.matched_back = None
        cursor.refused_count += 1

    def close(self) -> None:
        if self._cursor in self._order.cursors:
            self._order.remove_cursor(self._cursor)
        if not self.queue.deleted:
            self.queue.schedule_dispatch()  # changes back to the FIFO order if possible


@final
class LogScan(TakingScan):
    """Search of a queue with priorities or groups: through memory, then through the log by offset.

    A message that `return_message` returned below the position is looked at again.
    """

    def __init__(self, queue: Queue, judge: MessagePredicate, wake: Callable[[], None], order: SearchableOrder) -> None:
        super().__init__(queue, judge, wake)
        self._order = order
        self._reader = QueueLogReader()
        self._from_memory = True
        self._index = MemoryIndex(queue.backing, self.end)
        # Entries in memory to take at the end of the present slice, with their messages.
        self._wanted: dict[QueueEntry, Message] = {}
        order.begin_search(self._index)

    def collect(self, entries: list[QueueEntry], count_max: i64, bytes_max: i64) -> None:
        """Take the next wanted messages: see `QueueScan.collect`. A slice looks at memory or at the log only."""
        order = self._order
        self.waits = False
        self._scans.begin_slice(SLICE_MS)
        if not order.begin_slice(self.queue):
            self.waits = order.is_reading()
            return
        if not self._index.fill(self._scans):
            return
        found: list[QueueEntry] = []
        try:
            if self._from_memory:
                self._search_memory(found, count_max, bytes_max)
            else:
                self._search_log(found, count_max, bytes_max)
        finally:
            self._give_out(found, entries)

    def _give_out(self, found: list[QueueEntry], entries: list[QueueEntry]) -> None:
        """Take the wanted entries out of memory, and append all that were found to `entries`."""
        queue = self.queue
        if self._wanted:
            self._order.take_held(queue, self._wanted, self._index)
            for entry, message in self._wanted.items():
                entry.message = message
            self._wanted = {}
        for entry in found:
            if queue.discard_if_expired(entry):
                continue
            queue.count_unacked(entry.body_size)
            store = queue.backing.store
            if store is not None and entry.offset >= queue.backing.log_start:
                queue.order.mark_delivered(store, entry.offset)
            entries.append(entry)

    def _search_memory(self, found: list[QueueEntry], count_max: i64, bytes_max: i64) -> None:
        """Search the messages that no log has."""
        scans = self._scans
        backing = self.queue.backing
        alone = self._index.alone
        while alone:
            offset = alone[0]
            entry = self._index.entries.get(offset)
            message = None if entry is None else entry.message
            if entry is None or message is None or offset < self.position:
                heappop(alone)
                continue
            if scans.is_used_up:
                return
            scans.step(message.header_size)
            wanted = self.judge.wants(message)
            if wanted and (len(found) >= count_max or bytes_max <= 0):
                return
            heappop(alone)
            self.position = offset + 1
            if wanted:
                self._wanted[entry] = message
                found.append(entry)
                bytes_max -= entry.body_size
        self._from_memory = False
        self.position = backing.log_start
        if backing.store is None:
            self.ended = True

    def _search_log(self, found: list[QueueEntry], count_max: i64, bytes_max: i64) -> None:
        """Search the log by offset. The index tells which messages are also in memory."""
        queue = self.queue
        order = self._order
        while not self._scans.is_used_up:
            record = self._next_record(self._reader)
            if record is None:
                return
            entry = self._index.entries.get(record.offset)
            if entry is None and not order.is_ready_in_log(record):
                continue
            message = queue.backing.message(record)
            if not self.judge.wants(message):
                continue
            if len(found) >= count_max or bytes_max <= 0:
                self.position = record.offset  # look at it again when there is room
                return
            if entry is None:
                entry = order.take_from_log(queue, record)
            else:
                self._wanted[entry] = message
            found.append(entry)
            bytes_max -= entry.body_size

    def return_message(self, entry: QueueEntry) -> None:
        super().return_message(entry)
        if not self.queue.backing.is_logged(entry.offset):
            self._from_memory = True
        if entry.offset < self.position:
            self.position = entry.offset

    def close(self) -> None:
        self._reader.close()
        self._order.end_search(self._index)
