"""What a channel has had from each queue, as far as no consumer of it counts that: by basic.get, and by consumers that
are gone. Those that are there count for themselves: `add_consumer` takes in what one has had.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import Consumer, QueueBase

QUEUES_MAX: Final = 1024
"""Queues that a channel counts apart. When there are more it begins anew with them; its sums stay."""

QUEUES_KEPT: Final = 16
"""So many are kept without a look at which of them are deleted."""


@final
class QueueDeliveryStats:
    """From one queue, or from all of them: messages, but for get_empty, which counts asking in vain. ack: as far as a
    consumer got them.
    """

    def __init__(self) -> None:
        self.deliver: i64 = 0
        self.deliver_no_ack: i64 = 0
        self.get: i64 = 0
        self.get_no_ack: i64 = 0
        self.get_empty: i64 = 0
        self.redeliver: i64 = 0
        self.ack: i64 = 0

    def add_consumer(self, consumer: Consumer) -> None:
        """What a consumer has had."""
        self.redeliver += consumer.redelivered_count
        if consumer.no_ack:
            self.deliver_no_ack += consumer.delivered_count
        else:
            self.deliver += consumer.delivered_count
            self.ack += consumer.delivered_count - consumer.in_flight - consumer.given_back_count

    def add(self, other: QueueDeliveryStats) -> None:
        self.deliver += other.deliver
        self.deliver_no_ack += other.deliver_no_ack
        self.get += other.get
        self.get_no_ack += other.get_no_ack
        self.get_empty += other.get_empty
        self.redeliver += other.redeliver
        self.ack += other.ack


@final
class DeliveryStats:
    """Of one channel. whole: of all queues; queues: of each that is there."""

    def __init__(self) -> None:
        self.whole = QueueDeliveryStats()
        self.queues: dict[QueueBase, QueueDeliveryStats] = {}
        self._look_at: i64 = QUEUES_KEPT

    def end(self, consumer: Consumer) -> None:
        """A consumer takes nothing more. What it acks from now on stands in the channel's sum alone."""
        self.whole.add_consumer(consumer)
        if not consumer.queue.deleted:
            self._of(consumer.queue).add_consumer(consumer)

    def got(self, queue: QueueBase, no_ack: bool, redelivered: bool) -> None:
        """basic.get."""
        for had in (self.whole, self._of(queue)):
            if no_ack:
                had.get_no_ack += 1
            else:
                had.get += 1
            if redelivered:
                had.redeliver += 1

    def got_nothing(self, queue: QueueBase) -> None:
        self.whole.get_empty += 1
        self._of(queue).get_empty += 1

    def _of(self, queue: QueueBase) -> QueueDeliveryStats:
        had = self.queues.get(queue)
        if had is None:
            if len(self.queues) >= self._look_at:
                self._forget_deleted()
            had = self.queues[queue] = QueueDeliveryStats()
        return had

    def _forget_deleted(self) -> None:
        """Who makes a queue for each answer does not keep them all in memory. Cost: all; when they have doubled."""
        for queue in list(self.queues):
            if queue.deleted:
                del self.queues[queue]
        if len(self.queues) >= QUEUES_MAX:
            self.queues.clear()
        count: i64 = len(self.queues)
        self._look_at = min(max(2 * count, QUEUES_KEPT), QUEUES_MAX)


class DeliveryStatsMixin:
    """What a channel counts of its deliveries."""

    def __init__(self) -> None:
        self.acked_count: i64 = 0
        # Made when something has to be counted here.
        self.served: DeliveryStats | None = None

    def had(self) -> DeliveryStats:
        if self.served is None:
            self.served = DeliveryStats()
        return self.served
