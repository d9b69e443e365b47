"""Routes: what a publish method's bytes come to, and the short way for routing keys that were not met before.

A publisher keeps routes by the bytes of the method; each is valid as long as what it depends on keeps its version.
`Publisher` makes them, with all checks; `KnownExchange` does where an earlier publish has passed these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mypy_extensions import i64

from amqpd.broker.destination import Destination, Versioned
from amqpd.broker.message import FRAME_END_BYTE, Envelope, Message
from amqpd.broker.passed import NOT_SENT
from amqpd.broker.publish.offering import prepare
from amqpd.broker.tap import Tap
from amqpd.storage.queue_log import QueueLog

if TYPE_CHECKING:
    from amqpd.routing.base import ExchangeType


@final
class Route:
    """What a publish method's bytes come to: checked, resolved, and valid while `source` keeps its version.

    per_message: the exchange (or one behind it) looks at more than the key, so `destinations` is found anew for each.
    """

    def __init__(
        self,
        envelope: Envelope,
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
        # Of the exchange, where it alone decides, by the routing key alone.
        self.matcher: ExchangeType | None = None
        # Where it goes, where that is one queue: most publishes have one, and ask nothing else.
        self.only: Destination | None = destinations[0] if len(destinations) == 1 and destinations[0].routed else None
        # Whether it goes to a queue at all; what an exchange keeps of it is none, and stands last (`kept`).
        self.routed = len(destinations) > 0 and destinations[0].routed
        self.kept = len(destinations) > 0 and not destinations[len(destinations) - 1].routed
        self.queue_count: i64 = len(destinations) - 1 if self.kept else len(destinations)
        # What its publisher counts of its exchange.
        self.sent = NOT_SENT
        # While the vhost is traced: who is told of each publish, and under which keys it is where CC or BCC name more.
        self.tap: Tap | None = None
        self.keys: list[str] | None = None
        self.durable = False
        # Whether one of them keeps what is transient, too.
        self.keeps_all = False
        # Whether one of its logs is safe by its own high watermark, and not with the commit of its turn.
        self.remote = False
        # Of those: what a transaction's messages may take together, as the least of them says; -1: any size.
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
        """Those that the message, once offered, has to be safe in. Cost: all destinations."""
        logs: list[QueueLog] = []
        if self.durable:
            for destination in self.destinations:
                log = destination.log() if message.persistent or destination.keeps_all else None
                if log is not None:
                    logs.append(log)
        return logs

    def still_there(self) -> Route:
        """The same, less the destinations that went since: for what was kept in a transaction.

        rabbit: a publish is routed when it is made, not when it is committed.
        """
        for destination in self.destinations:
            if destination.gone():
                return self.to([each for each in self.destinations if not each.gone()])
        return self

    def to(self, destinations: list[Destination]) -> Route:
        """The same publish with destinations found for one message."""
        route = Route(self.envelope, destinations, self.mandatory, self.source, self.per_message)
        route.sent = self.sent
        if self.tap is not None:
            route.trace(self.tap, self.keys)
        return route

    def trace(self, tap: Tap, keys: list[str] | None) -> None:
        """Publishes of it are told to the tap: they go no short way, and neither do new keys of its exchange."""
        self.tap = tap
        self.keys = keys
        self.only = None
        self.matcher = None


@final
class KnownExchange:
    """An exchange that the session may publish to and whose matcher alone decides, by the routing key alone.

    A key that was not met before costs one look at the matcher. Valid while `source` keeps its version.
    """

    def __init__(self, route: Route, matcher: ExchangeType) -> None:
        self.name = route.envelope.exchange
        self.source = route.source
        self.version = route.version
        self.sent = route.sent
        self.matcher = matcher

    def route(self, method: bytes, key_start: i64) -> Route | None:
        """method: a publish's payload; its routing key lies from `key_start` up to the bits, which end it.

        None: another exchange is bound here and has a say.
        """
        bits: i64 = len(method) - 1
        routing_key = method[key_start:bits].decode("utf-8", "surrogateescape")
        destinations: list[Destination] = []
        for destination in self.matcher.match(routing_key, None):
            if not isinstance(destination, Destination):
                return None
            destinations.append(destination)
        suffix = b"\0" + method[6:bits] + FRAME_END_BYTE
        route = Route(Envelope(self.name, routing_key, suffix), destinations, method[bits] == 1, self.source, False)
        route.sent = self.sent
        return route
