"""Routes, and the delivery of one message to the queues of its route.

A `Route` is the result of all checks for one basic.publish. `Publisher` makes and caches routes. `ExchangeRouteCache`
makes the route of a new routing key without repeating the checks of the exchange.

Every publish ends here, from a client or from the broker. `prepare` opens the logs of all destinations, so that the
message is offered to all of them or to none. `offer_to_all` then enqueues it. The caller decides about a refusal. A
client gets a nack for REFUSED and for FAILED. The republisher drops a message that a full queue refuses; if a log has
failed, it tries again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import Destination, LogNotOpen, TraceHook, Versioned
from amqpd.broker.message import FRAME_END_BYTE, Message, MessageRoute
from amqpd.broker.stats import UNCOUNTED
from amqpd.storage.queue_log import QueueLog

if TYPE_CHECKING:
    from amqpd.routing.base import ExchangeType


# Results of `offer_to_all`.
TAKEN: Final = 0  # every destination accepted the message
REFUSED: Final = 1  # at least one refused it, and would refuse it again
FAILED: Final = 2  # at least one log has failed, for instance on a full disk; it may accept the message later


def prepare(destinations: list[Destination]) -> None:
    """Open the logs of all destinations. The first call for a queue after a start may wait for its log.

    Raises:
        LogNotOpen: some logs are being opened; the error names their queues.
        ResourceError: a log cannot be opened.
    """
    waits: list[Destination] | None = None
    for destination in destinations:
        try:
            destination.prepare()
        except LogNotOpen as error:
            waits = [*(waits or ()), *error.destinations]
    if waits is not None:
        raise LogNotOpen(waits)


def offer_to_all(destinations: list[Destination], message: Message, logs: list[QueueLog] | None) -> i64:
    """Enqueue the message in every destination, after `prepare`. Return TAKEN, REFUSED or FAILED.

    Args:
        logs: a list that gets the logs to sync before the message is safe.
    """
    outcome: i64 = TAKEN
    for destination in destinations:
        if outcome != TAKEN and destination.requires_all_accepted:
            continue
        taken = destination.enqueue(message)
        kept = message.persistent or destination.keeps_all
        log = destination.log() if kept and (logs is not None or not taken) else None
        if taken:
            if log is not None and logs is not None:
                logs.append(log)
        elif log is not None and log.failed:
            outcome = FAILED
        elif outcome == TAKEN:
            outcome = REFUSED
    if outcome != TAKEN:
        refuse(destinations)
    return outcome


def reserve(destinations: list[Destination]) -> None:
    """Reserve the message in the exchange state among the destinations, because it is enqueued later or in slices."""
    for destination in reversed(destinations):
        if destination.is_queue:
            break
        destination.reserve()


def refuse(destinations: list[Destination]) -> None:
    """Remove a failed message from the exchange state among the destinations."""
    for destination in reversed(destinations):
        if destination.is_queue:
            break
        destination.refuse()


@final
class ConfirmLog(QueueLog):
    """Adapter for a confirm that waits for something else than records. It stores nothing.

    Args:
        when_done: what `when_safe` calls.
    """

    def __init__(self, when_done: Callable[[Callable[[bool], None]], object]) -> None:
        super().__init__("", "", "", "", False)
        self._when_done = when_done

    def when_safe(self, offset: i64, done: Callable[[bool], None]) -> None:
        self._when_done(done)


@final
class Route:
    """Resolved and checked basic.publish. It is valid while `source` keeps its version.

    Attributes:
        per_message: the exchange, or one behind it, depends on more than the routing key. Then `destinations` is empty
            and is found for each message.
        matcher: the exchange type, if it alone decides, by the routing key alone. New keys then use
            `ExchangeRouteCache`.
        only: the destination if it is a single queue, as for most publishes.
        routed: at least one destination is a queue.
        has_state: exchange state is among the destinations. It is last.
        sent: the publisher's counters of the exchange.
        tap: the firehose of a traced vhost.
        keys: the routing keys, if CC or BCC add some.
        durable: a destination is durable.
        keeps_all: a durable destination stores transient messages, too.
        remote: a log is safe by its own high watermark, and not by the commit of its turn.
        transaction_bytes_max: maximum bytes of one transaction, the smallest of the remote logs; -1 for no limit.

    Raises: LogNotOpen, ResourceError: as `prepare`.
    """

    def __init__(
        self,
        envelope: MessageRoute,
        destinations: list[Destination],
        mandatory: bool,
        source: Versioned,
        per_message: bool,
    ) -> None:
        self.envelope = envelope
        self.destinations = destinations
        self.mandatory = mandatory
        self.source = source
        self.version = source.version
        self.per_message = per_message
        self.matcher: ExchangeType | None = None
        self.only: Destination | None = destinations[0] if len(destinations) == 1 and destinations[0].is_queue else None
        self.routed = len(destinations) > 0 and destinations[0].is_queue
        self.has_state = len(destinations) > 0 and not destinations[len(destinations) - 1].is_queue
        self.queue_count: i64 = len(destinations) - 1 if self.has_state else len(destinations)
        self.sent = UNCOUNTED
        self.tap: TraceHook | None = None
        self.keys: list[str] | None = None
        self.durable = False
        self.keeps_all = False
        self.remote = False
        self.transaction_bytes_max: i64 = -1
        prepare(destinations)
        for destination in destinations:
            if destination.durable:
                self.durable = True
                if destination.keeps_all:
                    self.keeps_all = True
                log = destination.log()
                if log is not None and not log.local:
                    self.remote = True
                    least = log.transaction_bytes_max
                    if least >= 0 and (self.transaction_bytes_max < 0 or least < self.transaction_bytes_max):
                        self.transaction_bytes_max = least

    def logs(self, message: Message) -> list[QueueLog]:
        """Return the logs to sync before this message is safe. Cost: all destinations."""
        logs: list[QueueLog] = []
        if self.durable:
            for destination in self.destinations:
                log = destination.log() if message.persistent or destination.keeps_all else None
                if log is not None:
                    logs.append(log)
        return logs

    def without_deleted(self) -> Route:
        """Return the route without its deleted destinations, for a message that waited in a transaction.

        rabbit: a publish is routed when it arrives, not at the commit.
        """
        for destination in self.destinations:
            if destination.is_deleted():
                return self.to([each for each in self.destinations if not each.is_deleted()])
        return self

    def to(self, destinations: list[Destination]) -> Route:
        """Return the route of the same publish with other destinations."""
        route = Route(self.envelope, destinations, self.mandatory, self.source, self.per_message)
        route.sent = self.sent
        if self.tap is not None:
            route.trace(self.tap, self.keys)
        return route

    def trace(self, tap: TraceHook, keys: list[str] | None) -> None:
        """Report the publishes of this route to the firehose, which excludes the shortcuts `only` and `matcher`."""
        self.tap = tap
        self.keys = keys
        self.only = None
        self.matcher = None


@final
class ExchangeRouteCache:
    """Checked exchange whose type alone decides, by the routing key alone. A new key costs one look-up in the type.

    The object is valid while `source` keeps its version.
    """

    def __init__(self, route: Route, matcher: ExchangeType) -> None:
        self.name = route.envelope.exchange
        self.source = route.source
        self.version = route.version
        self.sent = route.sent
        self.matcher = matcher

    def route(self, method: bytes, key_start: i64) -> Route | None:
        """Return the route of a new routing key, or None if the key leads to another exchange.

        Args:
            method: the payload of basic.publish. The routing key ends before the last byte, the bits.
            key_start: the index of the first byte of the routing key.
        """
        bits: i64 = len(method) - 1
        routing_key = method[key_start:bits].decode("utf-8", "surrogateescape")
        destinations: list[Destination] = []
        for destination in self.matcher.match(routing_key, None):
            if not isinstance(destination, Destination):
                return None
            destinations.append(destination)
        suffix = b"\0" + method[6:bits] + FRAME_END_BYTE
        route = Route(MessageRoute(self.name, routing_key, suffix), destinations, method[bits] == 1, self.source, False)
        route.sent = self.sent
        return route
