"""Messages out of the middle of a queue with groups, for who is no consumer (scan.py), whosever a group is."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from amqpd.broker.consumer import Entry
from amqpd.broker.message import Message
from amqpd.broker.queue.filter_cursor import Judge
from amqpd.broker.queue.message_groups import Waiting
from amqpd.broker.queue.grouped_order import GroupedOrder
from amqpd.broker.queue.queue import Queue
from amqpd.broker.queue.scan import LogSearch
from amqpd.storage.log.record import Record


@final
class GroupedSearch(LogSearch):
    """Of a queue with groups."""

    def __init__(self, queue: Queue, judge: Judge, wake: Callable[[], None]) -> None:
        super().__init__(queue, judge, wake)
        order = queue.order
        assert isinstance(order, GroupedOrder)
        self._order = order
        # Of one `collect`: what is to be taken out of memory.
        self._wanted: list[Waiting] = []
        self._index.begin([], order.nodes())
        order.indexes.append(self._index)

    def _has_logged(self, record: Record) -> bool:
        return self._order.has_logged(record)

    def _take_logged(self, record: Record) -> Entry:
        return self._order.take_logged(self.queue, record)

    def _want(self, entry: Entry, message: Message) -> None:
        node = self._index.nodes[entry.offset]
        self._order.give_message(node, message)
        self._wanted.append(node)

    def _end_slice(self) -> None:
        if self._wanted:
            self._order.take_held(self.queue, self._wanted)
            self._wanted = []

    def close(self) -> None:
        super().close()
        if self._index in self._order.indexes:
            self._order.indexes.remove(self._index)
        self._order.searched()
