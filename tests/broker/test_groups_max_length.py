"""Queues with groups and a max-length whose backlog is larger than memory.

The queue drops the oldest message and loses none, also if messages are read into memory, evicted or returned
meanwhile.
"""

from __future__ import annotations

from typing import Any

import pytest
from taker import Taker, take

from amqpd.broker.message import Message
from amqpd.broker.queue.filtered import MessagePredicate
from amqpd.broker.queue.scan import LogScan


class BodyPredicate(MessagePredicate):
    """Matches the message with this body."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    def wants(self, message: Message) -> bool:
        return message.body() == self.body


class GroupedQueueTest:
    """A queue with a max-length and a small memory window, its consumers of credit 1, and the numbers they received."""

    def __init__(self, room: Any, length: int) -> None:
        self.room = room
        self.queue = room.queue("q", x_group_by="header:group", x_max_length=length)
        self.queue.prepare()
        self.queue.order.memory.count_max = 20
        self.received: list[int] = []
        self.consumers: list[Taker] = []
        self.groups = ""

    def consume(self) -> None:
        self.consumers.append(take(self.room, self.queue, credit=1, when_got=self._on_delivery))

    def _on_delivery(self, _taker: Taker, body: bytes, _redelivered: bool) -> None:
        self.received.append(int(body))

    def publish(self, groups: str) -> None:
        for number, group in enumerate(groups, len(self.groups)):
            self.room.publish("q", b"%d" % number, headers={"group": group})
        self.groups += groups
        self.room.turns()

    def drain(self) -> None:
        while any(consumer.entries for consumer in self.consumers):
            for consumer in self.consumers:
                if consumer.entries:
                    consumer.ack()
                    self.room.turns()
        assert (self.queue.ready_count, self.queue.store.record_count) == (0, 0)


@pytest.mark.parametrize(("length", "more"), [(100, 10), (300, 90)])
def test_message_evicted_from_memory_is_dropped_before_later_ones(room: Any, length: int, more: int) -> None:
    grouped = GroupedQueueTest(room, length)
    grouped.consume()
    grouped.consume()
    grouped.publish("a")
    for count in (length + more, 40, 70):
        grouped.publish("a" * count)
    assert grouped.queue.ready_count == length
    grouped.drain()
    end = len(grouped.groups)
    assert grouped.received == [0, *range(end - length, end)]


@pytest.mark.parametrize("more", [20, 50])
def test_message_returned_behind_the_oldest_is_not_lost(room: Any, more: int) -> None:
    groups = "ab" + "a" * 5 + "b" * 15 + "aba" + "b" * 200 + "a" + "b" * 60
    grouped = GroupedQueueTest(room, len(groups))
    grouped.consume()
    grouped.consume()
    grouped.publish(groups)
    grouped.consume()
    scan = LogScan(grouped.queue, BodyPredicate(b"24"), lambda: None, grouped.queue.order)
    entries: list[Any] = []
    for _ in range(100):
        if not entries:
            scan.collect(entries, 1, 1 << 20)
            room.turns()
    grouped.publish("b" * (12 + more))
    entries[0].message = None
    scan.return_message(entries[0])
    scan.close()
    grouped.publish("b" * 170)
    ready = grouped.queue.ready_count
    grouped.drain()
    assert len(grouped.received) == 2 + ready
    for group in "ab":
        numbers = [number for number in grouped.received if grouped.groups[number] == group]
        assert numbers == sorted(numbers)
