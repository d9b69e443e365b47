"""What consumers get from a broker after a crash: first what comes at once, then what its publishers send once more,
then what was due later, when that time has come.
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


class Taker(Consumer):
    """A consumer of a queue with groups: it has `CREDIT` messages at a time, and acks the oldest when told."""

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
        others = [each.tag for each in self._drain.takers if each is not self and group in each.groups()]
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
    """What is taken out of all queues of a life, in order."""

    def __init__(self, life: BrokerLife) -> None:
        self.life = life
        self.copies: list[Copy] = []
        self.broken: list[str] = []
        self.takers: list[Taker] = []
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
        takers = [each for each in self.takers if each.queue is queue]
        if not takers:
            takers = [Taker(queue, f"{queue.name} {number}", self) for number in range(2)]
            self.takers += takers
            for taker in takers:
                consume.start_consumer(queue, taker)
        for _ in range(ROUNDS_MAX):
            life.turns()
            busy = [taker for taker in takers if taker.entries]
            if not busy:
                break
            for taker in busy:
                taker.ack()
            queue.schedule_dispatch()
        if queue.ready_count:
            self.broken.append(f"{queue.ready_count} messages of {queue.name} go to nobody")


def look(
    image: Image, rows: Rows, boot: int, segment_size_bytes: int, ledger: BrokerLedger, *, repeats: bool = True
) -> BrokerOutcome:
    """A start on an image. ledger: says what time it is, until when messages wait and what is sent once more."""
    own = BrokerLedger()
    own.rows, own.now_ms, own.groups = [rows], ledger.now_ms, ledger.groups
    life = BrokerLife(Disk(image), own, boot, segment_size_bytes=segment_size_bytes)
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
    """For a ledger that nobody asks."""
    return sent.copy()


def _nothing() -> None:
    """Who waits for the disk asks again."""
