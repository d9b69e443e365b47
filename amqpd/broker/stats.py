"""What queues count, and the sums of those that have ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from amqpd.broker.consumer import Source

QUEUE_COUNTERS: Final = ("publish", "deliver", "deliver_no_ack", "get", "get_no_ack", "redeliver", "ack", "get_empty")


def queue_counts(queue: Source) -> tuple[int, ...]:
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


class Ended:
    """Sums of what objects had counted when they ended, so that totals never fall."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def add(self, counts: Sequence[int]) -> None:
        """counts: in the order of the object's counters."""
        if not self.counts:
            self.counts = [0] * len(counts)
        for index, count in enumerate(counts):
            self.counts[index] += count


class EndedUnroutable:
    """What publishers of vhosts that are deleted had sent to no queue: returned to them, and both that and dropped."""

    def __init__(self) -> None:
        self.returned_count = 0
        self.unroutable_count = 0


class VhostCounts:
    """Of one vhost: what was returned to its publishers, and what the queues and channels that ended had counted."""

    def __init__(self) -> None:
        self.returned_count = 0
        self.ended_queues = Ended()
        self.ended_channels = Ended()


class ChannelTotals:
    """Channels since the start: opened, closed, and what those that ended had counted; of what they had published,
    in ended_confirm_count what they had wanted confirmed.
    """

    def __init__(self) -> None:
        self.opened_count = 0
        self.closed_count = 0
        self.ended = Ended()
        self.ended_confirm_count = 0
