"""Routes: what a publish method's bytes come to, and the short way for routing keys that were not met before.

A publisher keeps routes by the bytes of the method; each is valid as long as what it depends on keeps its version.
`Publisher` makes them, with all checks; `ExchangeRouteCache` does where an earlier publish has passed these.

One message to the queues it goes to: the lower half of every publish, whoever publishes.

Who has found the destinations (`router.py`) first has them prepared, so that a message is offered to all of them or to
none; then offers it. What a refusal means is the publisher's: a client is nacked for either kind, a dead letter is
dropped by a queue that is full and tried again at one whose log takes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import Destination, LogNotOpen, TraceHook, Versioned
from amqpd.broker.message import FRAME_END_BYTE, Message, MessageRoute
from amqpd.broker.stats import UNCOUNTED
from amqpd.storage.queue_log import QueueLog

if TYPE_CHECKING:
    from amqpd.routing.base import ExchangeType


# How an offer ended: every destination has the message; at least one refused it, and would again; at least one has a
# log that takes nothing now, say of a full disk, and may take it later.
TAKEN: Final = 0
REFUSED: Final = 1
FAILED: Final = 2


def prepare(destinations: list[Destination]) -> None:
    """All of them can take a message now. Cost: nothing to speak of after the first time.

    Raises: NotOpenYet, with all whose logs are being opened; ResourceError where one cannot be.
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
    """Offers the message to each, which have been prepared. Returns TAKEN, REFUSED or FAILED.

    logs: gets those that have to be synced before the message is safe.
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
    """A publish to these is to come, or comes in slices: what exchanges keep of it counts already."""
    for destination in reversed(destinations):
        if destination.is_queue:
            break
        destination.reserve()


def refuse(destinations: list[Destination]) -> None:
    """A publish to these has failed: what exchanges keep of it goes."""
    for destination in reversed(destinations):
        if destination.is_queue:
            break
        destination.refuse()


@final
class Route:
    """What a publish method's bytes come to: checked, resolved, and valid while `source` keeps its version.

    per_message: the exchange (or one behind it) looks at more than the key, so `destinations` is found anew for each.
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
        # Of the exchange, where it alone decides, by the routing key alone.
        self.matcher: ExchangeType | None = None
        # Where it goes, where that is one queue: most publishes have one, and ask nothing else.
        self.only: Destination | None = destinations[0] if len(destinations) == 1 and destinations[0].is_queue else None
        # Whether it goes to a queue at all; what an exchange keeps of it is none, and stands last (`kept`).
        self.routed = len(destinations) > 0 and destinations[0].is_queue
        self.kept = len(destinations) > 0 and not destinations[len(destinations) - 1].is_queue
        self.queue_count: i64 = len(destinations) - 1 if self.kept else len(destinations)
        # What its publisher counts of its exchange.
        self.sent = UNCOUNTED
        # While the vhost is traced: who is told of each publish, and under which keys it is where CC or BCC name more.
        self.tap: TraceHook | None = None
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
            if destination.is_deleted():
                return self.to([each for each in self.destinations if not each.is_deleted()])
        return self

    def to(self, destinations: list[Destination]) -> Route:
        """The same publish with destinations found for one message."""
        route = Route(self.envelope, destinations, self.mandatory, self.source, self.per_message)
        route.sent = self.sent
        if self.tap is not None:
            route.trace(self.tap, self.keys)
        return route

    def trace(self, tap: TraceHook, keys: list[str] | None) -> None:
        """Publishes of it are told to the tap: they go no short way, and neither do new keys of its exchange."""
        self.tap = tap
        self.keys = keys
        self.only = None
        self.matcher = None


@final
class ExchangeRouteCache:
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
        route = Route(MessageRoute(self.name, routing_key, suffix), destinations, method[bits] == 1, self.source, False)
        route.sent = self.sent
        return route
