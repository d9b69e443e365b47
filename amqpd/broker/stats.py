"""What queues count, and the sums of those that have ended.

What went through exchanges, counted where it is sent: nothing is added up per message.

A publisher counts its messages; when its route changes, those of the route that was come to what it has sent through
that exchange (`Sent`), and to the exchange's own counts (`ExchangeStats`). What has come since stands in no count yet:
who reads has each publisher of the vhost asked first (`Publisher.settle_counts`).

rabbit: `publish_in` and `publish_out` of an exchange are of what clients publish to it, not of what comes to it from
another exchange or as a dead letter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import QueueBase

QUEUE_COUNTERS: Final = ("publish", "deliver", "deliver_no_ack", "get", "get_no_ack", "redeliver", "ack", "get_empty")


def queue_counts(queue: QueueBase) -> tuple[int, ...]:
    """In the order of QUEUE_COUNTERS."""
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
    """Sums of what objects had counted when they ended, so that totals never fall."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def add(self, counts: Sequence[int]) -> None:
        """counts: in the order of the object's counters."""
        if not self.counts:
            self.counts = [0] * len(counts)
        for index, count in enumerate(counts):
            self.counts[index] += count


class EndedUnroutableTotals:
    """What publishers of vhosts that are deleted had sent to no queue: returned to them, and both that and dropped."""

    def __init__(self) -> None:
        self.returned_count = 0
        self.unroutable_count = 0


class VhostCounts:
    """Of one vhost: what was returned to its publishers, and what the queues and channels that ended had counted."""

    def __init__(self) -> None:
        self.returned_count = 0
        self.ended_queues = EndedTotals()
        self.ended_channels = EndedTotals()


class ChannelTotals:
    """Channels since the start: opened, closed, and what those that ended had counted; of what they had published,
    in ended_confirm_count what they had wanted confirmed.
    """

    def __init__(self) -> None:
        self.opened_count = 0
        self.closed_count = 0
        self.ended = EndedTotals()
        self.ended_confirm_count = 0


@final
class ExchangeStats:
    """Through one exchange. in_count: messages published to it. out_count: queues they went to, once for each."""

    def __init__(self) -> None:
        self.in_count: i64 = 0
        self.out_count: i64 = 0


@final
class PublisherStats:
    """By one publisher through one exchange. whole: of the exchange, all publishers together."""

    def __init__(self, exchange: str, whole: ExchangeStats) -> None:
        self.exchange = exchange
        self.whole = whole
        self.in_count: i64 = 0
        self.out_count: i64 = 0

    def add(self, count: i64, queue_count: i64) -> None:
        """So many messages, each to so many queues."""
        self.in_count += count
        self.whole.in_count += count
        self.out_count += count * queue_count
        self.whole.out_count += count * queue_count


UNCOUNTED: Final = PublisherStats("", ExchangeStats())
"""Of a route that nobody publishes by."""
