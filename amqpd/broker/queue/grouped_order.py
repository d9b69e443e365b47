"""The ready order of a queue with groups (x-group-by): the oldest message that its taker may have is next.

Messages of one group go to one consumer at a time, in order. Which is free and which is whose, grouped_window.py knows;
what memory does not hold is in grouped_log.py; who gets it, grouped_queue.py says. Here is what a queue asks of one:
what comes in, and what ends. Expiry and length limits take the oldest that is ready, whosever its group is.

Compiled by mypyc.
"""

from __future__ import annotations

from heapq import heapify
from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import QueueBase, QueueEntry, within
from amqpd.broker.message import Message
from amqpd.broker.queue.grouped_log import GroupedLog
from amqpd.broker.queue.message_groups import Group, GroupNode
from amqpd.broker.queue.store import QueueStore
from amqpd.storage.log.record import Record
from amqpd.storage.queue_log import QueueLog

# So many dead letters begin their way between two looks at which of them no range can touch any more.
LEAVING_COUNT: Final = 8192


@final
class GroupedOrder(GroupedLog):
    """Of one queue. group_by: `routing_key` or `header:NAME`."""

    def __init__(self, backing: QueueStore, group_by: str) -> None:
        super().__init__(backing, group_by)
        self._leaving_count: i64 = 0

    # -- in ----------------------------------------------------------------------------------------------------------

    def load_head(self, queue: QueueBase) -> None:
        store = self.backing.store
        if store is not None:
            record = store.cursor.read_first(self.cold_offset, queue.log_arrived)
            if record is not None:
                if not self.leaving.has(record.offset):
                    self.meet(queue, store, record)
                self.cold_offset = record.offset + 1

    def needs_head(self) -> bool:
        return self.oldest() is None

    def add(self, queue: QueueBase, message: Message, offset: i64) -> bool:
        if queue.ready_count == 0:
            self.cold_offset = offset
        queue.ready_count += 1
        queue.ready_bytes += message.body_size
        if self.holders:
            queue.schedule_dispatch()
        if self.cold_offset != offset:
            return True
        logged = self.backing.store is not None
        if self.is_full():
            return logged
        group = self.group_of(self.key.of_message(message))
        if logged and not self.has_room(group):
            self.pass_over(group, offset)
        else:
            self.append(group, QueueEntry(queue, offset, message, False), True)
        self.cold_offset = offset + 1
        return True

    def add_prepared(self, queue: QueueBase, offset: i64, count: i64, size_bytes: i64, first: list[Message]) -> None:
        if queue.ready_count == 0:
            self.cold_offset = offset
        queue.ready_count += count
        queue.ready_bytes += size_bytes
        for message in first:
            if self.cold_offset != offset or self.is_full():
                break
            group = self.group_of(self.key.of_message(message))
            if self.has_room(group):
                self.append(group, QueueEntry(queue, offset, message, False), True)
            else:
                self.pass_over(group, offset)
            offset += 1
            self.cold_offset = offset

    # -- out ---------------------------------------------------------------------------------------------------------

    def is_next_in_memory(self, queue: QueueBase) -> bool:
        self.reading = False
        return self.first(queue, False) is not None or not self.reading

    def head(self, queue: QueueBase) -> QueueEntry | None:
        while True:
            node = self.first(queue, False)
            if node is None:
                return None
            entry = node.entry
            if self.has_message(queue, node):
                return entry
            if node.entry is not None:
                return None  # the disk is asked

    def take(self, queue: QueueBase) -> QueueEntry | None:
        """As `ReadyOrder.take`: the oldest, whosever its group is. For those to whom it ends."""
        while True:
            node = self.first(queue, True)
            if node is None:
                return None
            entry = node.entry
            assert entry is not None  # `first` has looked
            if entry.message is None:
                self._read_back(node, entry)  # it stays in its place where that raises
            self.drop(queue, node)
            if entry.message is not None:
                return entry

    def _read_back(self, node: GroupNode, entry: QueueEntry) -> None:
        self.backing.read_back(entry)
        if entry.message is not None and not node.returned:
            self.hot_bytes += entry.body_size

    def mark_delivered(self, store: QueueLog, offset: i64) -> None:
        first = self.oldest()
        if (first is None or offset < first.offset) and (self.passed_count == 0 or offset < self.passed_low):
            store.mark_delivered(offset)  # as was all before it
        else:
            store.mark_returned(offset, store.delivery_count(offset))

    def stamp_arrival(self, now_ms: i64) -> None:
        for node in self.waiting():
            entry = node.entry
            message = entry.message if entry is not None else None
            if message is not None and message.arrived_ms == 0 and message.logged_ms == 0:
                message.arrived_ms = now_ms

    def leaves(self, entry: QueueEntry) -> None:
        """It is on its way as a dead letter: its place in the log lasts until that is safe."""
        if self.backing.store is None or entry.offset < 0:
            return
        self.leaving.add(entry.offset)
        self._leaving_count += 1
        if self._leaving_count >= LEAVING_COUNT:
            self._leaving_count = 0
            self.leaving.drop_below(self._least())

    def _least(self) -> i64:
        """Nothing that is ready is below this offset, but for what came back. It never falls. Cost: O(behind)."""
        least = self.cold_offset
        first = self._line.first()
        if first is not None and first.offset < least:
            least = first.offset
        for node in self._behind:
            if node.entry is not None and not node.returned and node.offset < least:
                least = node.offset
        if self.passed_count > 0 and self.passed_low < least:
            least = self.passed_low
        return least

    # -- ends --------------------------------------------------------------------------------------------------------

    def purge(self, queue: QueueBase) -> None:
        backing = self.backing
        store = backing.store
        size = queue.ready_bytes
        if store is not None:
            first = self._least()
            if first < backing.log_start:
                first = backing.log_start
            # What is unacked, or came back, lies between them.
            leaving = self.leaving
            for entry in self.held:
                if entry.offset >= first:
                    leaving.add(entry.offset)
            for node in self.waiting():
                returned = node.entry
                if node.returned and returned is not None:
                    backing.settle(returned)
                    size -= returned.body_size
                    if returned.offset >= first:
                        leaving.add(returned.offset)
            for begin, end in leaving.gaps(first, store.next_offset - 1):
                store.settle_range(begin, end, size if size > 0 else 0)
                size = 0
            store.settle_with_turn()
        self._forget_ready(queue)
        self.cold_offset = backing.next_offset

    def clear(self, queue: QueueBase) -> None:
        self._forget_ready(queue)
        self.forget_held()
        self._close()
        self.leaving.clear()

    def _forget_ready(self, queue: QueueBase) -> None:
        self.forget_ready(queue)
        self._rest()

    def unwritten(self, queue: QueueBase, ranges: list[tuple[int, int]]) -> None:
        gone: list[GroupNode] = []
        for node in self.waiting():
            entry = node.entry
            if entry is None or not within(entry.offset, ranges):
                continue
            if node.returned:
                entry.offset = -1  # in memory only: there is nothing to settle
            else:
                gone.append(node)
        self._take_out(queue, gone)
        for first, last in ranges:
            begin: i64 = first
            if begin < self.cold_offset:
                begin = self.cold_offset
            end: i64 = last
            if end >= begin:
                queue.ready_count -= end - begin + 1

    # -- out of the middle: of who searches (scan.py) ------------------------------------------------------

    def searched(self) -> None:
        """Somebody has ended his search: bits that nobody asks for any more go."""
        self.leaving.drop_below(self._least())

    def in_memory(self) -> list[QueueEntry]:
        """Entries that are ready and not in the log alone, in no order."""
        return [node.entry for node in self.waiting() if node.entry is not None]

    def has_logged(self, record: Record) -> bool:
        """Whether the message, which is in the log and not settled, is ready, and not in memory."""
        if record.offset >= self.cold_offset:
            return not self.leaving.has(record.offset)
        key = self.key.of_record(record)
        group = self.groups.get(key) if key is not None else None
        return group is not None and self._is_passed(group, record.offset)

    def take_logged(self, queue: QueueBase, record: Record) -> QueueEntry:
        """Such a message is ready no more; it is not its group's any longer."""
        store = self.backing.store
        assert store is not None  # which has it
        offset = record.offset
        entry = QueueEntry(queue, offset, self.backing.message(record), store.redelivered(offset))
        entry.delivery_count = record.delivery_count
        self.leaving.add(offset)
        key = self.key.of_record(record)
        if offset < self.cold_offset and key is not None:
            group = self.groups[key]
            group.passed_count -= 1
            self.passed_count -= 1
            if group.passed_count == 0:
                self.unloaded.pop(group, None)
                self._forget(group)
        queue.ready_count -= 1
        queue.ready_bytes -= entry.body_size
        if queue.ready_count == 0:
            queue.ready_bytes = 0
        return entry

    def take_held(self, queue: QueueBase, nodes: list[GroupNode]) -> None:
        """The same of what is in memory. Cost: a step for each of the same groups' that have not come back."""
        for node in nodes:
            if self.backing.is_logged(node.offset):
                self.leaving.add(node.offset)
        self._take_out(queue, nodes)

    def requeue(self, queue: QueueBase, entry: QueueEntry) -> None:
        offset = entry.offset
        if entry not in self.held and self.backing.is_logged(offset) and self.leaving.has(offset):
            group = None
            if offset < self.cold_offset:
                if entry.message is None:
                    self.backing.read_back(entry)
                key = self.key.of_message(entry.message) if entry.message is not None else None
                group = self.groups.get(key) if key is not None else None
            passed = group is not None and group.passed_count > 0 and offset > group.skipped_from
            if offset >= self.cold_offset or passed:
                # Others of its group that are in the log alone come before it: it is one of them again.
                self.leaving.remove(offset)
                queue.ready_count += 1
                queue.ready_bytes += entry.body_size
                if group is not None:
                    group.passed_count += 1
                    self.passed_count += 1
                    if offset < self.passed_low:
                        self.passed_low = offset
                    if offset < self._reading_offset:
                        group.refused = self._reading_number  # that reading is past it
                queue.schedule_dispatch()
                return
        super().requeue(queue, entry)

    def _take_out(self, queue: QueueBase, nodes: list[GroupNode]) -> None:
        """These, wherever they stand in their groups, are ready no more."""
        touched: dict[Group, None] = {}
        for node in nodes:
            entry = node.entry
            if entry is None:
                continue
            touched[node.group] = None
            if node.returned:
                node.group.gone += 1
            self._uncount(queue, node, entry)
        for group in touched:
            self._close_ranks(group)

    def _close_ranks(self, group: Group) -> None:
        """Some of those in memory have gone."""
        returned = group.returned
        if returned is not None and 2 * group.gone >= len(returned):
            returned = [each for each in returned if each.entry is not None]
            heapify(returned)
            group.returned = returned
            group.gone = 0
        node = group.first
        group.first = None
        group.last = None
        group.count = 0
        while node is not None:
            after = node.next
            node.next = None
            if node.entry is not None:
                group.append(node)
            node = after
        head = group.head()
        if head is not None:
            self._head_changed(group, head)
        elif group.passed_count > 0:
            self.unloaded[group] = None
        else:
            self._forget(group)
