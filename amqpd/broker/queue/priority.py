"""Priority order (x-max-priority): higher priorities first, and by arrival within a priority.

There is one log, as for every queue. Messages that are only in the log have one byte each in `PriorityIndex`: their
priority. A search for that byte finds the next message of a priority. A million waiting messages cost a megabyte. Each
priority (`PriorityLevel`) has

    returned   a heap of requeued entries; their offsets are below all others of the level
    hot        entries in memory, ascending
    cold       messages that only the log has, noted in the index; all come after `hot`

After a restart the first use of the queue starts to build the index, by one read of the log. A turn reads a range, and
another thread reads it from disk if needed. Until the index is complete nothing is delivered, and new messages are
noted in the index. A caller that cannot wait (basic.get, a length limit) reads the rest at once.

A priority above the maximum counts as the maximum, a missing one as 0. The head, for expiry and for a length limit, is
the message that would be delivered next (rabbit: the same).

Compiled by mypyc.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import QueueEntry, within
from amqpd.broker.message import Message
from amqpd.broker.queue.offset_bitmap import OffsetBitmap
from amqpd.broker.queue.ready_order import SearchableOrder
from amqpd.broker.queue.scan_index import MemoryIndex
from amqpd.broker.queue.services import COLD_READ_BYTES
from amqpd.broker.queue.store import QueueStore
from amqpd.protocol.properties import PropertyInfo, scan_properties, valid_properties
from amqpd.storage.log.record import Record
from amqpd.storage.queue_log import QueueLog

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue

CHUNK_BITS: Final = 12
CHUNK_SIZE: Final = 1 << CHUNK_BITS


@final
class PriorityIndex:
    """Map from offset to level, one byte each, for up to 128 levels. Chunks without an entry are dropped."""

    def __init__(self) -> None:
        self.chunks: dict[int, bytearray] = {}
        self._counts: dict[int, int] = {}
        self._last: i64 = -1

    def add(self, offset: i64, level: i64) -> None:
        number: i64 = offset >> CHUNK_BITS
        chunk = self.chunks.get(number)
        if chunk is None:
            chunk = bytearray(CHUNK_SIZE)
            self.chunks[number] = chunk
            self._counts[number] = 0
            if number > self._last:
                self._last = number
        chunk[offset & (CHUNK_SIZE - 1)] = level + 1
        self._counts[number] += 1

    def remove(self, offset: i64) -> None:
        """Remove an offset, which must be in the index."""
        number: i64 = offset >> CHUNK_BITS
        left = self._counts[number] - 1
        if left:
            self._counts[number] = left
            self.chunks[number][offset & (CHUNK_SIZE - 1)] = 0
        else:
            del self._counts[number]
            del self.chunks[number]

    def level_at(self, offset: i64) -> i64:
        """Return the level of the offset, or -1 if it is not in the index."""
        number: i64 = offset >> CHUNK_BITS
        chunk = self.chunks.get(number)
        if chunk is None:
            return -1
        level: i64 = chunk[offset & (CHUNK_SIZE - 1)]
        return level - 1

    def find(self, level: i64, start: i64) -> i64:
        """Return the lowest offset of this level from `start` on, or -1. Cost: a search through bytes."""
        number: i64 = start >> CHUNK_BITS
        position: int = start & (CHUNK_SIZE - 1)
        wanted: int = level + 1
        while number <= self._last:
            chunk = self.chunks.get(number)
            if chunk is not None:
                at = chunk.find(wanted, position)
                if at >= 0:
                    return (number << CHUNK_BITS) + at
            number += 1
            position = 0
        return -1

    def offsets(self) -> list[int]:
        """Return all offsets, ascending."""
        found: list[int] = []
        for number in sorted(self.chunks):
            chunk = self.chunks[number]
            base = number << CHUNK_BITS
            found += [base + position for position in range(CHUNK_SIZE) if chunk[position]]
        return found

    def clear(self) -> None:
        self.chunks.clear()
        self._counts.clear()
        self._last = -1


# A level may have this many in memory even if others fill the window, so that urgent messages seldom need the log.
LEVEL_HOT_MIN: Final = 64
LEVEL_BODY_MAX: Final = 64 * 1024
# Messages that one `_fill` reads.
FILL_COUNT_MAX: Final = 256
# Returned entries that one slice of a scan moves to the index.
COOL_COUNT: Final = 8192
# An index distinguishes 128 levels. A byte could distinguish 255.
_INDEX_LEVELS_BITS: Final = 7


@final
class PriorityLevel:
    """The ready messages of one priority.

    Attributes:
        cursor: no cold message has a lower offset.
    """

    def __init__(self, number: i64) -> None:
        self.number = number
        self.returned: list[QueueEntry] = []
        self.hot: deque[QueueEntry] = deque()
        self.cold_count: i64 = 0
        self.cursor: i64 = 0


@final
class PriorityOrder(SearchableOrder):
    """The ready order of one queue.

    Args:
        level_max: the highest priority; higher ones count as this one.

    Attributes:
        indexes: the indexes of running searches (scan.py).
    """

    def __init__(self, backing: QueueStore, level_max: i64) -> None:
        super().__init__(backing)
        self.level_max = level_max
        # Levels in use, highest first.
        self._levels: list[PriorityLevel] = []
        self._hot_count: i64 = 0
        self._cold: list[PriorityIndex] = [PriorityIndex(), PriorityIndex()]
        # The log of an earlier run ends at `_scan_end` and is in the index up to `_scan_offset`. `_scan_left` messages
        # are not in the index yet.
        self._scan_offset: i64 = 0
        self._scan_end: i64 = 0
        self._scan_left: i64 = 0
        # Offsets that this reading skips: they wait for their next try, or were requeued since.
        self._passed_over = OffsetBitmap()
        self.indexes: list[MemoryIndex] = []

    # -- the index after a start

    def load_head(self, queue: Queue) -> None:
        if self._scanning():
            queue.schedule_dispatch()
        else:
            self.head(queue)

    def on_log_opened(self, queue: Queue) -> None:
        store = self.backing.store
        if store is not None and queue.ready_count > 0:
            self._scan_end = store.next_offset
            self._scan_left = queue.ready_count

    def exclude_offsets(self, offsets: OffsetBitmap) -> None:
        self._passed_over = offsets

    def _scanning(self) -> bool:
        return self._scan_offset < self._scan_end

    def scan(self, queue: Queue) -> bool:
        """Read the next range of the log into the index. Return True if the index is complete.

        Cost: about 2 us per message, more for large ones.
        """
        if not self._scanning():
            return True
        store = self.backing.store
        assert store is not None  # scanning implies a log
        fetch = store.cursor.read_if_cached(self._scan_offset, COLD_READ_BYTES, queue.log_arrived)
        if not fetch.records and fetch.waiting:
            self._scan_offset = fetch.next_offset
            return False
        if self._index_records(queue, fetch.records):
            self.head(queue)  # its time to live may be over, even if no consumer is ready
            return True
        queue.schedule_dispatch()
        return False

    def _scan_now(self, queue: Queue) -> None:
        """Read the rest of the log into the index, and wait for the disk."""
        store = self.backing.store
        assert store is not None  # scanning implies a log
        while not self._index_records(queue, store.cursor.read(self._scan_offset, COLD_READ_BYTES).records):
            pass

    def _index_records(self, queue: Queue, records: list[Record]) -> bool:
        """Add a range of records to the index. Return True if it was the last one."""
        for record in records:
            if record.offset >= self._scan_end:
                break  # published after the start, and noted then
            self._scan_offset = record.offset + 1
            if self._passed_over.has(record.offset):
                continue
            properties = valid_properties(record.properties)
            info = scan_properties(properties, 0, len(properties)) if len(properties) > 2 else None
            self._add_cold(self._level_of(info), record.offset)
            self._scan_left -= 1
        if records and records[len(records) - 1].offset < self._scan_end - 1:
            return False
        # If the log has fewer than were counted (a damaged batch), correct the count.
        queue.ready_count -= self._scan_left
        self._end_scan()
        queue.schedule_dispatch()  # a basic.get may wait
        return True

    def _end_scan(self) -> None:
        self._scan_offset = self._scan_end
        self._scan_left = 0
        self._passed_over.clear()

    # -- incoming messages -------------------------------------------------------------------------------------------

    def _level_of(self, info: PropertyInfo | None) -> PriorityLevel:
        number: i64 = 0
        if info is not None and info.priority > 0:
            number = info.priority if info.priority < self.level_max else self.level_max
        index = 0
        for level in self._levels:
            if level.number == number:
                return level
            if level.number < number:
                break
            index += 1
        level = PriorityLevel(number)
        self._levels.insert(index, level)
        return level

    def _add_cold(self, level: PriorityLevel, offset: i64) -> None:
        number = level.number
        self._cold[number >> _INDEX_LEVELS_BITS].add(offset, number & 127)
        if level.cold_count == 0 or offset < level.cursor:
            level.cursor = offset
        level.cold_count += 1

    def add(self, queue: Queue, message: Message, offset: i64) -> bool:
        queue.ready_count += 1
        queue.ready_bytes += message.body_size
        level = self._level_of(message.info)
        if level.cold_count == 0 and not self._scanning() and self._has_room(level, message):
            entry = QueueEntry(queue, offset, message, False)
            level.hot.append(entry)
            self._hot_count += 1
            self.memory.hot_bytes += message.body_size
            for index in self.indexes:
                index.add_ready(offset, entry, None)
            return True
        self._add_cold(level, offset)
        return self.backing.store is not None

    def skip_to(self, offset: i64) -> None:
        store = self.backing.store
        if store is not None:
            self.mark_delivered(store, offset)

    def _has_room(self, level: PriorityLevel, message: Message) -> bool:
        if not self.memory.is_full(self._hot_count):
            return True
        return len(level.hot) < LEVEL_HOT_MIN and message.body_size <= LEVEL_BODY_MAX

    def requeue(self, queue: Queue, entry: QueueEntry) -> None:
        held = entry.message is not None
        if not held:
            self.backing.try_read_back(entry)
        message = entry.message
        level = self._level_of(message.info if message is not None else None)
        if not held:
            entry.message = None
        heappush(level.returned, entry)
        for index in self.indexes:
            index.add_ready(entry.offset, entry, None)
        queue.ready_count += 1
        queue.ready_bytes += entry.body_size

    # -- outgoing messages -------------------------------------------------------------------------------------------

    def memory_count(self) -> i64:
        return self._hot_count

    def first_at_hand(self) -> Message | None:
        for level in self._levels:
            if level.returned:
                return level.returned[0].message
            if level.hot:
                return level.hot[0].message
            if level.cold_count > 0:
                break
        return None

    def _highest(self, queue: Queue) -> PriorityLevel | None:
        """Return the level that is served next, with a message in memory."""
        for level in self._levels:
            if level.returned or level.hot:
                return level
            if level.cold_count > 0:
                self._fill(queue, level)
                if level.hot:
                    return level
        return None

    def _fill(self, queue: Queue, level: PriorityLevel) -> None:
        """Read the next messages of a level into memory.

        Messages lost by damage of the log are not counted any more.
        """
        store = self.backing.store
        index = self._cold[level.number >> _INDEX_LEVELS_BITS]
        count: i64 = 0
        size: i64 = 0
        while level.cold_count > 0 and count < FILL_COUNT_MAX and size < COLD_READ_BYTES:
            offset = index.find(level.number & 127, level.cursor)
            if offset < 0 or store is None:
                queue.ready_count -= level.cold_count
                level.cold_count = 0
                return
            record = store.cursor.read_one(offset)  # if this raises, the message stays cold
            index.remove(offset)
            level.cursor = offset + 1
            level.cold_count -= 1
            if record is None:
                # Lost by damage of the log.
                queue.ready_count -= 1
                continue
            message = self.backing.message(record)
            entry = QueueEntry(queue, offset, message, store.redelivered(offset))
            entry.delivery_count = record.delivery_count
            level.hot.append(entry)
            for searched in self.indexes:
                searched.add_ready(offset, entry, None)
            self._hot_count += 1
            self.memory.hot_bytes += entry.body_size
            size += entry.body_size
            count += 1
            info = message.info
            if info is not None and info.expiration is not None:
                queue.track_expiration(message)

    def mark_delivered(self, store: QueueLog, offset: i64) -> None:
        # Not `store.mark_delivered`, which marks all older messages: those of lower levels were not delivered.
        store.mark_returned(offset, store.delivery_count(offset))

    def take(self, queue: Queue) -> QueueEntry | None:
        if self._scanning():
            self._scan_now(queue)
        while queue.ready_count > 0:
            level = self._highest(queue)
            if level is None:
                queue.ready_count = 0
                break
            if level.returned:
                entry = level.returned[0]
                if entry.message is None:
                    self.backing.read_back(entry)  # if this raises, the entry stays
                heappop(level.returned)
            else:
                entry = level.hot.popleft()
                self._hot_count -= 1
                self.memory.hot_bytes -= entry.body_size
            self._remove_from_searches(entry.offset)
            queue.uncount_ready(entry.body_size)
            if entry.message is not None:
                return entry
        return None

    def _remove_from_searches(self, offset: i64) -> None:
        """Update the searches: this message is no longer in memory or no longer ready."""
        for index in self.indexes:
            index.remove(offset)

    def is_next_in_memory(self, queue: Queue) -> bool:
        # Reads jump within the log, so nothing is read ahead, except while the index is built.
        self.reading = self._scanning()
        if self.reading:
            queue.schedule_dispatch()
        return not self.reading

    def head(self, queue: Queue) -> QueueEntry | None:
        if self._scanning():
            return None
        level = self._highest(queue)
        if level is None:
            return None
        if level.returned:
            entry = level.returned[0]
            if entry.message is None:
                self.backing.read_back(entry)
            return entry
        return level.hot[0]

    # -- searches (scan.py) ------------------------------------------------------------------------------------------

    def in_memory(self) -> list[QueueEntry]:
        return [entry for level in self._levels for entry in [*level.returned, *level.hot]]

    def is_cold(self, offset: i64) -> bool:
        return self._cold[0].level_at(offset) >= 0 or self._cold[1].level_at(offset) >= 0

    def begin_search(self, index: MemoryIndex) -> None:
        index.begin(self.in_memory(), [])
        self.indexes.append(index)

    def end_search(self, index: MemoryIndex) -> None:
        if index in self.indexes:
            self.indexes.remove(index)

    def begin_slice(self, queue: Queue) -> bool:
        return self.is_next_in_memory(queue) and self.cool()  # the index must be complete

    def is_ready_in_log(self, record: Record) -> bool:
        return self.is_cold(record.offset)

    def take_from_log(self, queue: Queue, record: Record) -> QueueEntry:
        store = self.backing.store
        assert store is not None  # the record is from it
        offset = record.offset
        half: i64 = 0 if self._cold[0].level_at(offset) >= 0 else 1
        number = self._cold[half].level_at(offset) + (half << _INDEX_LEVELS_BITS)
        self._cold[half].remove(offset)
        for level in self._levels:
            if level.number == number:
                level.cold_count -= 1
        entry = QueueEntry(queue, offset, self.backing.message(record), store.redelivered(offset))
        entry.delivery_count = record.delivery_count
        queue.uncount_ready(entry.body_size)
        return entry

    def take_held(self, queue: Queue, wanted: Mapping[QueueEntry, Message], index: MemoryIndex) -> None:
        for level in self._levels:
            level.returned = [entry for entry in level.returned if entry not in wanted]
            heapify(level.returned)
            kept = deque([entry for entry in level.hot if entry not in wanted])
            self._hot_count -= len(level.hot) - len(kept)
            for entry in level.hot:
                if entry in wanted:
                    self.memory.hot_bytes -= entry.body_size
            level.hot = kept
        for entry in wanted:
            self._remove_from_searches(entry.offset)
            queue.uncount_ready(entry.body_size)

    def cool(self) -> bool:
        """Move returned entries that the log has to the index, if there are very many: COOL_COUNT at most.

        Returns: True if enough have moved.
        """
        count_max: i64 = COOL_COUNT
        for level in self._levels:
            returned = level.returned
            if len(returned) <= self.memory.count_max:
                continue
            while level.hot and self.backing.is_logged(level.hot[-1].offset):  # it is after the returned ones
                entry = level.hot.pop()
                self._hot_count -= 1
                self.memory.hot_bytes -= entry.body_size
                self._remove_from_searches(entry.offset)
                self._add_cold(level, entry.offset)
            while returned and self.backing.is_logged(returned[-1].offset):  # a heap without its last element is a heap
                if count_max == 0:
                    return False
                count_max -= 1
                entry = returned.pop()
                self._remove_from_searches(entry.offset)
                self._add_cold(level, entry.offset)
        return True

    # -- purge -------------------------------------------------------------------------------------------------------

    def purge(self, queue: Queue) -> None:
        store = self.backing.store
        if store is not None:
            if self._scanning():
                # Nothing is unacked yet.
                store.ack_range(self.backing.log_start, store.next_offset - 1, queue.ready_bytes)
            else:
                self._settle_ready(queue, store)
            store.write_acks_this_turn()
        self.clear(queue)

    def _settle_ready(self, queue: Queue, store: QueueLog) -> None:
        """Settle the ready messages one by one: unacked ones are between them."""
        size = queue.ready_bytes
        for level in self._levels:
            for entry in level.returned:
                self.backing.settle(entry)
                size -= entry.body_size
            for entry in level.hot:
                self.backing.settle(entry)
                size -= entry.body_size
        offsets: list[int] = []
        for index in self._cold:
            offsets += index.offsets()
        # Only the total size is known: give each an equal share.
        left: i64 = len(offsets)
        for offset in offsets:
            share: i64 = size // left if size > 0 else 0
            store.ack(offset, share)
            size -= share
            left -= 1

    def drop_unwritten(self, queue: Queue, ranges: list[tuple[int, int]]) -> None:
        for level in self._levels:
            kept: deque[QueueEntry] = deque()
            for entry in level.hot:
                if within(entry.offset, ranges):
                    self._remove_from_searches(entry.offset)
                    self._hot_count -= 1
                    self.memory.hot_bytes -= entry.body_size
                    queue.ready_bytes -= entry.body_size
                    queue.ready_count -= 1
                else:
                    kept.append(entry)
            level.hot = kept
            for entry in level.returned:
                if within(entry.offset, ranges):
                    self._remove_from_searches(entry.offset)
                    entry.offset = -1  # only in memory: nothing to settle
            heapify(level.returned)
            index = self._cold[level.number >> _INDEX_LEVELS_BITS]
            for first, last in ranges:
                for offset in range(first, last + 1):
                    if index.level_at(offset) == level.number & 127:
                        index.remove(offset)
                        level.cold_count -= 1
                        queue.ready_count -= 1

    def clear(self, queue: Queue) -> None:
        self._end_scan()
        for search in self.indexes:
            search.clear()
        self._levels.clear()
        for index in self._cold:
            index.clear()
        self._hot_count = 0
        self.memory.hot_bytes = 0
        queue.ready_count = 0
        queue.ready_bytes = 0
