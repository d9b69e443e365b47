"""Counters of queues, exchanges, channels and publishers.

Publishing updates no exchange counter per message. A publisher adds its messages to `PublisherStats` and
`ExchangeStats` when its route changes. Readers first call `Publisher.settle_counts` for each publisher of the vhost.

rabbit: `publish_in` and `publish_out` of an exchange count what clients publish to it, not messages from other
exchanges or dead letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import QueueBase

QUEUE_COUNTERS: Final = ("publish", "deliver", "deliver_no_ack", "get", "get_no_ack", "redeliver", "ack", "get_empty")


def queue_counts(queue: QueueBase) -> tuple[int, ...]:
    """Return the queue's counters in the order of QUEUE_COUNTERS."""
    return (
        queue.published_count,
        queue.delivered_count,
        queue.delivered_no_ack_count,
        queue.get_count,
        queue.get_no_ack_count,
        queue.redelivered_count,
        queue.acked_count,
        queue.get_empty_count,
    )


class EndedTotals:
    """Sums of the counters of closed objects, so that totals never decrease."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def add(self, counts: Sequence[int]) -> None:
        """Add the counters of a closed object. The order is always the same."""
        if not self.counts:
            self.counts = [0] * len(counts)
        for index, count in enumerate(counts):
            self.counts[index] += count


class EndedUnroutableTotals:
    """Totals of deleted vhosts: messages returned, and unroutable messages (returned or dropped)."""

    def __init__(self) -> None:
        self.returned_count = 0
        self.unroutable_count = 0


class VhostCounts:
    """Counters of a vhost: returned messages, and totals of closed queues and channels."""

    def __init__(self) -> None:
        self.returned_count = 0
        self.ended_queues = EndedTotals()
        self.ended_channels = EndedTotals()


class ChannelTotals:
    """Channel counters since the start.

    Attributes:
        ended: totals of closed channels.
        ended_confirm_count: publishes on closed channels in confirm mode.
    """

    def __init__(self) -> None:
        self.opened_count = 0
        self.closed_count = 0
        self.ended = EndedTotals()
        self.ended_confirm_count = 0


@final
class ExchangeStats:
    """Counters of an exchange.

    Attributes:
        in_count: messages published to it.
        out_count: queues that they went to, one for each queue.
    """

    def __init__(self) -> None:
        self.in_count: i64 = 0
        self.out_count: i64 = 0


@final
class PublisherStats:
    """Counters of one publisher for one exchange.

    Attributes:
        whole: the exchange's counters over all publishers.
    """

    def __init__(self, exchange: str, whole: ExchangeStats) -> None:
        self.exchange = exchange
        self.whole = whole
        self.in_count: i64 = 0

    def add(self, count: i64, queue_count: i64) -> None:
        """Add `count` messages, each to `queue_count` queues."""
        self.in_count += count
        self.whole.in_count += count
        self.whole.out_count += count * queue_count


UNCOUNTED: Final = PublisherStats("", ExchangeStats())
"""For a route without publishers."""
