"""The messages that consumers get from a broker after a crash.

First those available at once, then those after publishers repeat their unconfirmed messages, then those that are due
later.
"""

from __future__ import annotations

from typing import Final

from states_broker_ledger import BrokerLedger, BrokerOutcome, Copy, Rows, Sent
from states_broker_life import BrokerLife, headers_of
from states_disk import Disk, Image

from amqpd.broker import consume
from amqpd.broker.consumer import NO_ARGUMENTS, Consumer, QueueEntry
from amqpd.broker.message import Message
from amqpd.broker.queue.queue import Queue, for_consumer

CREDIT: Final = 2
MARGIN_MS: Final = 5000
ROUNDS_MAX: Final = 400


class GroupConsumer(Consumer):
    """A consumer of a queue with groups. It holds up to `CREDIT` messages and acks the oldest on request."""

    def __init__(self, queue: Queue, tag: str, drain: Drain) -> None:
        super().__init__(queue, tag, False, False, NO_ARGUMENTS)
        self.entries: list[tuple[QueueEntry, str]] = []
        self._drain = drain
        self._queue = queue

    def can_take(self) -> bool:
        return self.in_flight < CREDIT

    def deliver(self, message: Message, entry: QueueEntry | None, redelivered: bool) -> None:
        assert entry is not None
        self.in_flight += 1
        entry.consumer = self
        group = str(headers_of(message).get("group", ""))
        self._drain.got(self._queue.name, message, redelivered, entry.delivery_count)
        others = [each.tag for each in self._drain.group_consumers if each is not self and group in each.groups()]
        if group and others:
            self._drain.broken.append(f"group {group} is with {others} and {self.tag} at once")
        self.entries.append((entry, group))

    def groups(self) -> list[str]:
        return [group for _, group in self.entries]

    def cancel(self) -> None:
        self.cancelled = True

    def ack(self) -> None:
        entry, _ = self.entries.pop(0)
        self.in_flight -= 1
        if self.parked:
            self._queue.activate(self)
        entry.consumer = None
        self._queue.ack(entry)


class Drain:
    """Gets the messages of all queues of a life, in order."""

    def __init__(self, life: BrokerLife) -> None:
        self.life = life
        self.copies: list[Copy] = []
        self.broken: list[str] = []
        self.group_consumers: list[GroupConsumer] = []
        self.late = False

    def got(self, queue: str, message: Message, redelivered: bool, count: int) -> None:
        headers = headers_of(message)
        again, moved = "x-delayed-redelivered" in headers, "x-source-queue" in headers
        self.copies.append(Copy(message.body(), queue, redelivered, again, moved, count, self.late))

    def everything(self) -> None:
        life = self.life
        for name, queue in life.vhost.queues.items():
            life.open(name)
            if queue.rules.group_by:
                self._by_groups(queue)
                continue
            while True:
                entry = queue.get(False)
                if entry is not None:
                    message = for_consumer(entry, queue.rules.counts_shown)
                    assert message is not None
                    self.got(name, message, entry.redelivered, entry.delivery_count)
                elif queue.must_wait():
                    queue.when_ready(_nothing)
                    life.turns()
                else:
                    break
        life.turn.schedule()
        life.turns()

    def _by_groups(self, queue: Queue) -> None:
        life = self.life
        group_consumers = [each for each in self.group_consumers if each.queue is queue]
        if not group_consumers:
            group_consumers = [GroupConsumer(queue, f"{queue.name} {number}", self) for number in range(2)]
            self.group_consumers += group_consumers
            for group_consumer in group_consumers:
                consume.start_consumer(queue, group_consumer)
        for _ in range(ROUNDS_MAX):
            life.turns()
            busy = [group_consumer for group_consumer in group_consumers if group_consumer.entries]
            if not busy:
                break
            for group_consumer in busy:
                group_consumer.ack()
            queue.schedule_dispatch()
        if queue.ready_count:
            self.broken.append(f"{queue.ready_count} messages of {queue.name} go to no consumer")


def look(
    image: Image, rows: Rows, boot: int, segment_size_bytes: int, ledger: BrokerLedger, *, repeats: bool = True
) -> BrokerOutcome:
    """Start on an image and drain it. ledger: has the current time, due times, and the messages to repeat."""
    ledger_of_start = BrokerLedger()
    ledger_of_start.rows, ledger_of_start.now_ms, ledger_of_start.groups = [rows], ledger.now_ms, ledger.groups
    life = BrokerLife(Disk(image), ledger_of_start, boot, segment_size_bytes=segment_size_bytes)
    drain = Drain(life)
    drain.everything()
    if repeats:
        for sent in ledger.repeated():
            if sent.exchange in life.vhost.exchanges and sent.queue in life.vhost.queues:
                life.send(_once_more(sent))
        life.turns()
        drain.everything()
    drain.late = True
    last_ms = ledger.waits_ms()
    if last_ms > ledger.now_ms:
        life.leap(last_ms - ledger.now_ms + MARGIN_MS)
        drain.everything()
    for _ in range(3):
        if not left(life):
            break
        life.leap(MARGIN_MS)
        drain.everything()
    outcome = BrokerOutcome(drain.copies, left(life), drain.broken, ledger.now_ms)
    life.forget()
    return outcome


def left(life: BrokerLife) -> int:
    return sum(wheel.count() for wheel in life.delays.wheels_of("/")) + sum(
        queue.delayed_count for queue in life.vhost.queues.values()
    )


def _once_more(sent: Sent) -> Sent:
    """Copy the message, since the ledger of this start is not judged."""
    return sent.copy()


def _nothing() -> None:
    """Do nothing: the caller asks again."""
