"""Idempotent publishing: what a producer has numbered is in each queue once, however often it sends it.

The headers are `x-producer-id` (0 to 2^63-1), `x-producer-epoch` (0 to 32767) and `x-sequence` (0 to 2^31-1), as
Kafka's producers have them. Of each producer a queue knows the last that it has taken (storage/log/producer_state.py).
A sequence at or below it is a copy: it goes nowhere, and its confirm waits until the first one is safe. A higher one is
taken, whatever is missing between: routing leaves gaps. A higher epoch begins anew, with any sequence; an older one is
a producer that has been replaced, and refused (403). A sequence does not wrap: behind the last comes another epoch.

Such a publish gets a route of its own, whose queues are each a `IdempotentDestination`, or a `Copy` where they have it.
All others never come here: the headers' scan says that there is a header `x-producer-id`.

Compiled by mypyc.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import Destination
from amqpd.broker.message import Message, MessageView
from amqpd.broker.publish.route import Route
from amqpd.broker.queue.queue import Queue
from amqpd.errors import AccessRefused, PreconditionFailed
from amqpd.storage.log.batch import NO_PRODUCER
from amqpd.storage.log.producer_state import Producer
from amqpd.storage.queue_log import QueueLog

PRODUCER_ID: Final = "x-producer-id"
EPOCH: Final = "x-producer-epoch"
SEQUENCE: Final = "x-sequence"
NUMBERS: Final = (PRODUCER_ID, EPOCH, SEQUENCE)
ID_MAX: Final = 2**63 - 1
EPOCH_MAX: Final = 2**15 - 1
SEQUENCE_MAX: Final = 2**31 - 1
_ALWAYS_SAFE: Final = 1 << 62


@final
class ProducerSequence:
    """What a producer says of one message."""

    def __init__(self, producer_id: i64, epoch: i64, sequence: i64) -> None:
        self.producer_id: i64 = producer_id
        self.epoch: i64 = epoch
        self.sequence: i64 = sequence


def numbers_of(headers: Mapping[str, object]) -> ProducerSequence:
    """Raises: PreconditionFailed (406) where one is missing, no integer, or out of its range."""
    return ProducerSequence(
        _number(headers, PRODUCER_ID, ID_MAX),
        _number(headers, EPOCH, EPOCH_MAX),
        _number(headers, SEQUENCE, SEQUENCE_MAX),
    )


def _number(headers: Mapping[str, object], name: str, most: int) -> int:
    value = headers.get(name)
    if value is None:
        raise PreconditionFailed(f"invalid header '{name}': missing beside '{PRODUCER_ID}'")
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise PreconditionFailed(f"invalid header '{name}': not an integer from 0 to {most}")
    return value


def idempotent_route(route: Route, message: Message) -> Route:
    """The same way, less the queues that have the message already. Cost: 2 us, 1 us more per queue.

    Raises: AccessRefused (403) for an older epoch, before any queue has anything of it; PreconditionFailed (406) for
    headers that are none, and where an exchange would delay it, which remembers no producers; NotOpenYet.
    """
    numbers = numbers_of(MessageView(message).headers())
    destinations: list[Destination] = []
    for destination in route.destinations:
        if not isinstance(destination, Queue):
            if destination.durable and destination.is_queue:
                raise PreconditionFailed(f"invalid header '{PRODUCER_ID}': what is delayed has no numbers")
            destinations.append(destination)
            continue
        log = destination.log()
        if log is not None and not log.local:
            raise PreconditionFailed(
                f"invalid header '{PRODUCER_ID}': queue '{destination.name}' in vhost '{destination.vhost_name}' is in "
                "a cluster, whose records have the node's own numbers"
            )
        last = destination.backing.producers().find(numbers.producer_id, destination.host.timers.agreed_ms())
        if last is not None and numbers.epoch < last.epoch:
            raise AccessRefused(
                f"producer {numbers.producer_id} of epoch {numbers.epoch} has been replaced in queue "
                f"'{destination.name}' in vhost '{destination.vhost_name}': its epoch is {last.epoch}"
            )
        if last is not None and last.has(numbers.epoch, numbers.sequence):
            destinations.append(DuplicateDestination(destination, last.offset))
        else:
            destinations.append(IdempotentDestination(destination, numbers))
    return route.to(destinations)


@final
class IdempotentDestination(Destination):
    """One queue, for one message with its producer's numbers."""

    def __init__(self, queue: Queue, numbers: ProducerSequence) -> None:
        super().__init__()
        self.durable = queue.durable
        self.keeps_all = queue.keeps_all
        self._queue = queue
        self._numbers = numbers

    def prepare(self) -> None:
        self._queue.prepare()

    def log(self) -> QueueLog | None:
        return self._queue.log()

    def is_deleted(self) -> bool:
        return self._queue.is_deleted()

    def enqueue(self, message: Message) -> bool:
        queue = self._queue
        backing = queue.backing
        numbers = self._numbers
        producers = backing.producers()
        timers = queue.host.timers
        last = producers.find(numbers.producer_id, timers.agreed_ms())
        if last is not None and (numbers.epoch < last.epoch or last.has(numbers.epoch, numbers.sequence)):
            return numbers.epoch == last.epoch  # others came between, as this one is offered in slices
        store = queue.log()
        backing.numbered = True
        if store is not None:
            store.set_producer(numbers.producer_id, numbers.epoch, numbers.sequence)
        try:
            taken = queue.enqueue(message)
        finally:
            backing.numbered = False
            if store is not None:
                store.set_producer(NO_PRODUCER, 0, -1)
        if taken:
            safe: i64 = _ALWAYS_SAFE
            if backing.store is not None:
                safe = backing.store.high_watermark
            offset, now_ms = backing.next_offset - 1, timers.wall_ms()
            producer = Producer(numbers.producer_id, numbers.epoch, numbers.sequence, offset, now_ms)
            backing.producers().note(producer, safe)
        return taken


@final
class DuplicateDestination(Destination):
    """A queue that has the message already: nothing comes to it, and a confirm waits until what it has is safe.

    offset: of the producer's last message there.
    """

    def __init__(self, queue: Queue, offset: i64) -> None:
        super().__init__()
        self.durable = queue.durable
        self.keeps_all = queue.keeps_all
        self._queue = queue
        self._offset: i64 = offset
        store = queue.log()
        self._log: OriginalLog | None = OriginalLog(store, offset) if store is not None and self.durable else None

    def log(self) -> QueueLog | None:
        return self._log

    def is_deleted(self) -> bool:
        return self._queue.is_deleted()

    def enqueue(self, message: Message) -> bool:
        store = self._queue.log()
        if store is not None and self._offset >= store.high_watermark:
            store.flush_batches()  # of an earlier life it is not synced before somebody wants it
        return True


@final
class OriginalLog(QueueLog):
    """What the confirm of a copy waits for: no log, but it has a high watermark of its own."""

    def __init__(self, store: QueueLog, offset: i64) -> None:
        super().__init__("", "", "", "", False)
        self._store = store
        self._offset: i64 = offset

    def when_safe(self, offset: i64, done: Callable[[bool], None]) -> None:
        """Whatever `offset`: of a message before it."""
        self._store.when_safe(self._offset, done)
