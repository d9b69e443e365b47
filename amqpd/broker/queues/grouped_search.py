"""Messages out of the middle of a queue with groups, for who is no consumer (searching.py): over what memory alone has,
then over the log in order of offset, whosever a group is. What comes back behind its place is looked at once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from mypy_extensions import i64

from amqpd.broker.delivery import Entry
from amqpd.broker.flow.scans import Scans
from amqpd.broker.queues.filter_cursor import Judge
from amqpd.broker.queues.grouped import Waiting
from amqpd.broker.queues.grouped_order import GroupedOrder
from amqpd.broker.queues.queue import Queue
from amqpd.broker.queues.reading import SLICE_MS, LogReader
from amqpd.broker.queues.searching import TakingSearch


@final
class GroupedSearch(TakingSearch):
    """Of a queue with groups."""

    def __init__(self, queue: Queue, judge: Judge, wake: Callable[[], None]) -> None:
        super().__init__(queue, judge, wake)
        order = queue.order
        assert isinstance(order, GroupedOrder)
        self._order = order
        self._scans = Scans(queue.host.timers)
        self._reader = LogReader(wake)
        self._from_memory = True
        # Of one `collect`: what is in memory, by offset; what of it is to be taken out.
        self._held: dict[int, Waiting] = {}
        self._wanted: list[Waiting] = []

    def collect(self, entries: list[Entry], count_max: i64, bytes_max: i64) -> None:
        queue = self.queue
        order = self._order
        self.waits = False
        self._scans.begin_alone(SLICE_MS)
        self._held = {node.offset: node for node in order.waiting()}
        found: list[Entry] = []
        try:
            if self._from_memory:
                self._look_at_memory(found, count_max, bytes_max)
            else:
                self._look_at_log(found, count_max, bytes_max)
        finally:
            if self._wanted:
                order.take_held(queue, self._wanted)
                self._wanted = []
            self._held = {}
        for entry in found:
            if queue.ended(entry):
                continue
            queue.unacked_count += 1
            store = queue.backing.store
            if store is not None and entry.offset >= queue.backing.log_start:
                order.mark_delivered(store, entry.offset)
            entries.append(entry)

    def _look_at_memory(self, found: list[Entry], count_max: i64, bytes_max: i64) -> None:
        """Those that no log has."""
        scans = self._scans
        backing = self.queue.backing
        for offset in sorted(self._held):
            node = self._held[offset]
            entry = node.entry
            if offset < self.position or entry is None or entry.message is None or backing.has(offset):
                continue
            if scans.over or len(found) >= count_max or bytes_max <= 0:
                return
            self.position = offset + 1
            scans.step(entry.message.header_size)
            if self.judge.wants(entry.message):
                self._wanted.append(node)
                found.append(entry)
                bytes_max -= entry.body_size
        self._from_memory = False
        self.position = backing.log_start
        if backing.store is None:
            self.ended = True

    def _look_at_log(self, found: list[Entry], count_max: i64, bytes_max: i64) -> None:
        queue = self.queue
        order = self._order
        scans = self._scans
        store = queue.backing.store
        while len(found) < count_max and bytes_max > 0 and not scans.over:
            if store is None or self.position >= self.end:
                self.ended = True
                return
            record = self._reader.next(store, self.position)
            if record is None:
                self.waits = self._reader.waits
                self.ended = not self.waits
                return
            if record.offset >= self.end:
                self.ended = True
                return
            self.position = record.offset + 1
            scans.step(len(record.properties))
            node = self._held.get(record.offset)
            entry = node.entry if node is not None else None
            if entry is None and not order.has_logged(record):
                continue
            message = queue.backing.message(record)
            if not self.judge.wants(message):
                continue
            if node is None or entry is None:
                entry = order.take_logged(queue, record)
            else:
                order.give_message(node, message)
                self._wanted.append(node)
            found.append(entry)
            bytes_max -= entry.body_size

    def give_back(self, entry: Entry) -> None:
        super().give_back(entry)
        if not self.queue.backing.has(entry.offset):
            self._from_memory = True
        if entry.offset < self.position:
            self.position = entry.offset

    def close(self) -> None:
        self._reader.close()
        self._order.searched()
