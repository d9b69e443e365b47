"""A consumer for tests, with an optional filter: it records deliveries and acks on request."""

from __future__ import annotations

from typing import Any

from amqpd.broker import consume
from amqpd.broker.consumer import Consumer, QueueEntry
from amqpd.broker.message import Message
from amqpd.broker.queue.consumer_arguments import consumer_arguments
from amqpd.broker.queue.queue import Queue


class Taker(Consumer):
    """A consumer that takes up to `credit` unacked messages; 0 means unlimited."""

    def __init__(self, queue: Queue, credit: int, no_ack: bool, arguments: dict[str, object]) -> None:
        given = consumer_arguments(queue.name, "/", queue.kind, arguments, b"")
        super().__init__(queue, f"c{id(self)}", no_ack, False, given)
        self.credit = credit
        self.taken_from = queue
        self.got: list[bytes] = []
        self.redelivered: list[bool] = []
        self.entries: list[QueueEntry] = []
        self.when_got: Any = None

    def can_take(self) -> bool:
        return self.credit == 0 or self.in_flight < self.credit

    def deliver(self, message: Message, entry: QueueEntry | None, redelivered: bool) -> None:
        self.got.append(message.body())
        self.redelivered.append(redelivered)
        if entry is not None:
            self.in_flight += 1
            entry.consumer = self
            if self.taken_from.logged:
                entry.message = None
            self.entries.append(entry)
        if self.when_got is not None:
            self.when_got(self, message.body(), redelivered)

    def cancel(self) -> None:
        self.cancelled = True

    def _back(self, index: int) -> QueueEntry:
        entry = self.entries.pop(index)
        self.in_flight -= 1
        if self.parked:
            self.taken_from.activate(self)
        entry.consumer = None
        return entry

    def ack(self, index: int = 0) -> None:
        entry = self._back(index)
        entry.queue.ack(entry)

    def ack_all(self) -> None:
        while self.entries:
            self.ack()

    def reject(self, index: int = 0) -> None:
        entry = self._back(index)
        entry.queue.reject(entry)

    def requeue(self, index: int = 0) -> None:
        entry = self._back(index)
        entry.queue.requeue(entry, True)
        self.taken_from.schedule_dispatch()

    def leave(self, requeue: bool = True) -> None:
        self.taken_from.remove_consumer(self)
        while requeue and self.entries:
            self.requeue()


def take(
    room: Any,
    queue: Queue,
    wanted: str = "",
    credit: int = 0,
    *,
    no_ack: bool = False,
    priority: int = 0,
    turn: bool = True,
    when_got: Any = None,
) -> Taker:
    """Start a consumer of `queue` with the filter `wanted`. Raises the errors of basic.consume."""
    arguments: dict[str, object] = {"x-filter": wanted} if wanted else {}
    if priority:
        arguments["x-priority"] = priority
    taker = Taker(queue, credit, no_ack, arguments)
    taker.when_got = when_got
    consume.check_exclusive(queue, exclusive=False)
    consume.check_filter(queue, taker.arguments)
    consume.start_consumer(queue, taker)
    if turn:
        room.turns()
    return taker
