"""What rates are made of: the counters of each kind of object, in order, and how they are read.

LENGTHS are how many messages there are, which rises and falls. A vhost's counters are those of its queues and channels,
with what those had counted that have ended. What publishers have sent through an exchange since their route changed
last stands in no count yet: `settle` has them count it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from amqpd.broker.stats import QUEUE_COUNTERS, queue_counts
from amqpd.channel.counters import CHANNEL_COUNTERS, channel_counts
from amqpd.management.message_counts import unacked_apart
from amqpd.management.node_counts import NODE_COUNTERS, NodeCounts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amqpd.broker.broker import Broker
    from amqpd.broker.vhost.exchange import Exchange
    from amqpd.broker.vhost.vhost import VHost
    from amqpd.broker.queue.queue import Queue
    from amqpd.connection.connection import Connection
    from amqpd.connection.registry import Connections
    from amqpd.management.time_slice import Slices

LENGTHS: Final = ("messages", "messages_ready", "messages_unacknowledged")
OCTETS: Final = ("recv_oct", "send_oct")
CHURN_COUNTERS: Final = (
    *("connection_created", "connection_closed", "channel_created", "channel_closed"),
    *("queue_declared", "queue_created", "queue_deleted"),
)
UNROUTABLE: Final = ("return_unroutable", "drop_unroutable")
EXCHANGE_COUNTERS: Final = ("publish_in", "publish_out")
VHOST_COUNTERS: Final = (*QUEUE_COUNTERS, "confirm", *UNROUTABLE, *LENGTHS, *OCTETS)

QUEUE, CHANNEL, CONNECTION, CHURN, VHOST, EXCHANGE, NODE = range(7)
NAMES: Final = (
    (*QUEUE_COUNTERS, *LENGTHS),
    CHANNEL_COUNTERS,
    OCTETS,
    CHURN_COUNTERS,
    VHOST_COUNTERS,
    EXCHANGE_COUNTERS,
    NODE_COUNTERS,
)


class Churn:
    """What came and went since the start, all of it."""

    def __init__(self, broker: Broker, connections: Connections) -> None:
        self._broker = broker
        self._connections = connections

    def counts(self) -> tuple[int, ...]:
        """In the order of CHURN_COUNTERS."""
        channels, catalogue = self._broker.channels, self._broker.catalogue
        return (
            self._connections.opened_count,
            self._connections.closed_count,
            channels.opened_count,
            channels.closed_count,
            catalogue.queue_declared_count,
            catalogue.queue_created_count,
            catalogue.queue_deleted_count,
        )


def lengths(queue: Queue) -> tuple[int, int, int]:
    """In the order of LENGTHS."""
    unacked = unacked_apart(queue)
    return (queue.ready_count + unacked + queue.delayed_count, queue.ready_count, unacked)


def counted_queue(queue: Queue) -> tuple[int, ...]:
    return queue_counts(queue) + lengths(queue)


def counted_connection(connection: Connection) -> tuple[int, ...]:
    """In the order of OCTETS."""
    return (connection.received_bytes, connection.output.sent_bytes)


def unroutable(vhost: VHost) -> tuple[int, int]:
    """In the order of UNROUTABLE."""
    returned = vhost.counts.returned_count
    return (returned, max(0, vhost.unroutable_count - returned))


def passed(exchange: Exchange) -> tuple[int, int]:
    """In the order of EXCHANGE_COUNTERS."""
    return (exchange.passed.in_count, exchange.passed.out_count)


async def settle(connections: Iterable[Connection], slices: Slices) -> None:
    """What publishers have sent is in the counts of its exchanges. connections: a snapshot. Cost: 0.2 us a channel."""
    for connection in connections:
        for channel in connection.channels.all():
            channel.publisher.settle_counts()
        if slices.due:
            await slices.rest()


class VhostSum:
    """Adds up a vhost's counters, piece by piece."""

    def __init__(self, vhost: VHost) -> None:
        self.vhost = vhost
        self._queues = list(vhost.counts.ended_queues.counts) or [0] * len(QUEUE_COUNTERS)
        self._lengths = [0, 0, 0]
        self._octets = [0, 0]
        ended = vhost.counts.ended_channels.counts or (0,) * len(CHANNEL_COUNTERS)
        self._published, self._confirmed = ended[0], ended[1]

    def add_queue(self, counts: tuple[int, ...]) -> None:
        """counts: as `counted_queue`."""
        size = len(QUEUE_COUNTERS)
        for index in range(size):
            self._queues[index] += counts[index]
        for index in range(3):
            self._lengths[index] += counts[size + index]

    def add_channel(self, counts: tuple[int, ...]) -> None:
        self._published += counts[0]
        self._confirmed += counts[1]

    def add_connection(self, counts: tuple[int, ...]) -> None:
        self._octets[0] += counts[0]
        self._octets[1] += counts[1]

    def counts(self) -> tuple[int, ...]:
        """In the order of VHOST_COUNTERS. rabbit: `publish` is what came from publishers, once each."""
        return (
            *(self._published, *self._queues[1:]),
            self._confirmed,
            *unroutable(self.vhost),
            *self._lengths,
            *self._octets,
        )


READERS: Final[tuple[Any, ...]] = (
    *(counted_queue, channel_counts, counted_connection, Churn.counts, VhostSum.counts, passed, NodeCounts.counts),
)


class Shown(NamedTuple):
    """What `Rates` tells of an object, by where it stands in an answer."""

    stats: dict[str, Any]
    lengths: dict[str, Any]
    octets: dict[str, Any]


def parted(found: dict[str, Any]) -> Shown:
    parts = Shown({}, {}, {})
    for name, value in found.items():
        counter = name.removesuffix("_details")
        part = parts.lengths if counter in LENGTHS else parts.octets if counter in OCTETS else parts.stats
        part[name] = value
    return parts
