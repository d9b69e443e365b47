"""The ready order of a queue with groups (x-group-by): the next message is the oldest that the consumer may get.

The messages of a group go to one consumer at a time, in order. `GroupedWindow` (grouped_window.py) has the groups and
the messages in memory, `GroupedLogReader` (grouped_log.py) reads the others, and `GroupedQueue` (grouped_queue.py)
chooses the consumer. Expiry and length limits take the oldest ready message, whether its group is locked or not.

Compiled by mypyc.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import Consumer, QueueEntry, within
from amqpd.broker.message import Message
from amqpd.broker.queue.grouped_log import GroupedLogReader
from amqpd.broker.queue.grouped_window import GroupedWindow
from amqpd.broker.queue.message_groups import GroupNode
from amqpd.broker.queue.ready_order import SearchableOrder
from amqpd.broker.queue.scan_index import MemoryIndex
from amqpd.broker.queue.store import QueueStore
from amqpd.storage.log.record import Record
from amqpd.storage.queue_log import QueueLog

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue

# After this many dead letters the offsets of old ones are dropped from `GroupedLogReader.leaving`.
DEAD_LETTERS_PER_CLEANUP: Final = 8192


@final
class GroupedOrder(SearchableOrder):
    """The ready order of one queue. group_by: `routing_key` or `header:NAME`."""

    def __init__(self, backing: QueueStore, group_by: str) -> None:
        super().__init__(backing)
        self.window: Final = GroupedWindow(self.memory)
        self.log: Final = GroupedLogReader(self.window, backing, group_by)
        self._dead_letters: i64 = 0

    # -- figures -----------------------------------------------------------------------------------------------------

    def is_reading(self) -> bool:
        return self.log.reading

    def memory_count(self) -> i64:
        return self.window.hot_count

    def first_at_hand(self) -> Message | None:
        node = self.window.first_free()
        return node.entry.message if node is not None and node.entry is not None else None

    def in_memory(self) -> list[QueueEntry]:
        return [node.entry for node in self.window.ready_nodes() if node.entry is not None]

    def is_cold(self, offset: i64) -> bool:
        return not self.log.leaving.has(offset)

    # -- consumers ---------------------------------------------------------------------------------------------------

    def add_consumer(self, queue: Queue, consumer: Consumer) -> None:
        self.window.add_owner(consumer)

    # -- incoming messages -------------------------------------------------------------------------------------------

    def load_head(self, queue: Queue) -> None:
        store = self.backing.store
        if store is not None:
            record = store.cursor.read_first(self.log.cold_offset, queue.log_arrived)
            if record is not None:
                self.log.take_next(queue, store, record)

    def needs_head(self) -> bool:
        return self.window.oldest() is None

    def add(self, queue: Queue, message: Message, offset: i64) -> bool:
        log = self.log
        if queue.ready_count == 0:
            log.cold_offset = offset
        queue.ready_count += 1
        queue.ready_bytes += message.body_size
        if self.window.owners:
            queue.schedule_dispatch()
        if log.cold_offset != offset:
            return True
        has_log = self.backing.store is not None
        if log.is_full():
            return has_log
        group = self.window.group_of(log.key.of_message(message))
        if has_log and not log.has_room(group):
            log.pass_over(group, offset)
        else:
            self.window.append(group, QueueEntry(queue, offset, message, False), True)
        log.cold_offset = offset + 1
        return True

    def add_prepared(self, queue: Queue, offset: i64, count: i64, size_bytes: i64, first: list[Message]) -> None:
        log = self.log
        if queue.ready_count == 0:
            log.cold_offset = offset
        queue.ready_count += count
        queue.ready_bytes += size_bytes
        for message in first:
            if log.cold_offset != offset or log.is_full():
                break
            group = self.window.group_of(log.key.of_message(message))
            if log.has_room(group):
                self.window.append(group, QueueEntry(queue, offset, message, False), True)
            else:
                log.pass_over(group, offset)
            offset += 1
            log.cold_offset = offset

    def requeue(self, queue: Queue, entry: QueueEntry) -> None:
        window = self.window
        log = self.log
        group = window.unacked.get(entry)
        if group is None:  # `take` or a search took it, and no group counts it
            if self._requeue_in_log(queue, entry):
                return
            message = entry.message
            if message is None:
                self.backing.try_read_back(entry)
                message, entry.message = entry.message, None
            group = window.group_of(log.key.of_message(message) if message is not None else None)
        window.requeue(queue, entry, group)

    def _requeue_in_log(self, queue: Queue, entry: QueueEntry) -> bool:
        """Make a message that a search took ready again in the log.

        Return False if it belongs before the messages that only the log has: it then returns to memory.
        """
        log = self.log
        offset = entry.offset
        if not self.backing.is_logged(offset) or not log.leaving.has(offset):
            return False
        if offset < log.cold_offset:
            if entry.message is None:
                self.backing.try_read_back(entry)
            key = log.key.of_message(entry.message) if entry.message is not None else None
            group = self.window.groups.get(key) if key is not None else None
            if group is None or group.passed_count == 0 or offset <= group.passed_from:
                return False
            log.requeue_passed(group, offset)
        log.leaving.remove(offset)
        queue.ready_count += 1
        queue.ready_bytes += entry.body_size
        queue.schedule_dispatch()
        return True

    def reserve(self, entry: QueueEntry) -> None:
        self.window.hold_for_retry(entry)

    def unreserve(self, queue: Queue, entry: QueueEntry) -> None:
        self.window.release(queue, entry)

    # -- outgoing messages -------------------------------------------------------------------------------------------

    def is_next_in_memory(self, queue: Queue) -> bool:
        self.log.reading = False
        return self.log.oldest(queue, False) is not None or not self.log.reading

    def head(self, queue: Queue) -> QueueEntry | None:
        while True:
            node = self.log.oldest(queue, False)
            if node is None:
                return None
            entry = node.entry
            if self.log.load_message(queue, node):
                return entry
            if node.entry is not None:
                return None  # the disk was asked

    def take(self, queue: Queue) -> QueueEntry | None:
        """Take the oldest message, whether its group is locked or not, to drop it. Raises: OSError; it stays then."""
        while True:
            node = self.log.oldest(queue, True)
            if node is None:
                return None
            entry = node.entry
            assert entry is not None  # `oldest` returns ready nodes
            if entry.message is None:
                self._read_back(node, entry)
            self.window.drop(queue, node)
            if entry.message is not None:
                return entry

    def _read_back(self, node: GroupNode, entry: QueueEntry) -> None:
        self.backing.read_back(entry)
        if entry.message is not None and not node.returned:
            self.memory.hot_bytes += entry.body_size

    def mark_delivered(self, store: QueueLog, offset: i64) -> None:
        window = self.window
        first = window.oldest()
        if (first is None or offset < first.offset) and (window.passed_count == 0 or offset < window.passed_low):
            store.mark_delivered(offset)  # all before it was delivered, too
        else:
            store.mark_returned(offset, store.delivery_count(offset))

    def start_dead_letter(self, entry: QueueEntry) -> None:
        """Note that a message is being dead-lettered. It stays unsettled in the log until the dead letter is safe."""
        if self.backing.store is None or entry.offset < 0:
            return
        leaving = self.log.leaving
        leaving.add(entry.offset)
        self._dead_letters += 1
        if self._dead_letters >= DEAD_LETTERS_PER_CLEANUP:
            self._dead_letters = 0
            leaving.drop_below(self.log.lowest_ready())

    # -- ends --------------------------------------------------------------------------------------------------------

    def purge(self, queue: Queue) -> None:
        backing = self.backing
        store = backing.store
        size = queue.ready_bytes
        if store is not None:
            first = self.log.lowest_ready()
            if first < backing.log_start:
                first = backing.log_start
            # Unacked and requeued messages are between the ready ones: the ranges leave them out.
            leaving = self.log.leaving
            for entry in self.window.unacked:
                if entry.offset >= first:
                    leaving.add(entry.offset)
            for node in self.window.ready_nodes():
                returned = node.entry
                if node.returned and returned is not None:
                    backing.settle(returned)
                    size -= returned.body_size
                    if returned.offset >= first:
                        leaving.add(returned.offset)
            for begin, end in leaving.gaps(first, store.next_offset - 1):
                store.ack_range(begin, end, size if size > 0 else 0)
                size = 0
            store.write_acks_this_turn()
        self._clear_ready(queue)
        self.log.cold_offset = backing.next_offset

    def clear(self, queue: Queue) -> None:
        self._clear_ready(queue)
        self.window.clear_unacked()
        self.log.close()

    def _clear_ready(self, queue: Queue) -> None:
        self.window.clear_ready(queue)
        self.log.reset()

    def drop_unwritten(self, queue: Queue, ranges: list[tuple[int, int]]) -> None:
        gone: list[GroupNode] = []
        for node in self.window.ready_nodes():
            entry = node.entry
            if entry is None or not within(entry.offset, ranges):
                continue
            if node.returned:
                entry.offset = -1  # only in memory: there is nothing to settle
            else:
                gone.append(node)
        self.window.drop_all(queue, gone)
        for first, last in ranges:
            for begin, end in self.log.leaving.gaps(max(first, self.log.cold_offset), last):
                queue.ready_count -= end - begin + 1

    # -- searches (scan.py) ------------------------------------------------------------------------------------------

    def begin_search(self, index: MemoryIndex) -> None:
        index.begin([], self.window.nodes())
        self.window.indexes.append(index)

    def end_search(self, index: MemoryIndex) -> None:
        if index in self.window.indexes:
            self.window.indexes.remove(index)
        self.log.leaving.drop_below(self.log.lowest_ready())

    def is_ready_in_log(self, record: Record) -> bool:
        if record.offset >= self.log.cold_offset:
            return not self.log.leaving.has(record.offset)
        return self.log.group_of_passed(record) is not None

    def take_from_log(self, queue: Queue, record: Record) -> QueueEntry:
        """Take a message for which `is_ready_in_log` is true. Its group is not locked by it."""
        store = self.backing.store
        assert store is not None  # the record came from it
        window = self.window
        log = self.log
        offset = record.offset
        entry = QueueEntry(queue, offset, self.backing.message(record), store.redelivered(offset))
        entry.delivery_count = record.delivery_count
        log.leaving.add(offset)
        key = log.key.of_record(record)
        if offset < log.cold_offset and key is not None:
            group = window.groups[key]
            group.passed_count -= 1
            window.passed_count -= 1
            if group.passed_count == 0:
                window.cold_groups.pop(group, None)
                window.drop_if_empty(group)
        queue.uncount_ready(entry.body_size)
        return entry

    def take_held(self, queue: Queue, wanted: Mapping[QueueEntry, Message], index: MemoryIndex) -> None:
        """Take these entries. Their groups are not locked by them. Cost: a step per message of the groups."""
        nodes = [index.nodes[entry.offset] for entry in wanted]
        for node in nodes:
            if self.backing.is_logged(node.offset):
                self.log.leaving.add(node.offset)
        self.window.drop_all(queue, nodes)
