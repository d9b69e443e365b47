"""Delivery statistics of a channel per queue.

Open consumers count their own deliveries. `DeliveryStats` counts basic.get and the deliveries of closed
consumers.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import Consumer, QueueBase

QUEUES_MAX: Final = 1024
"""Queues counted separately. Above this, the channel drops all per-queue counts; its totals stay."""

QUEUES_KEPT: Final = 16
"""Up to this many queues, the channel does not check for deleted ones."""


@final
class QueueDeliveryStats:
    """Message counts of one queue, or totals of a channel.

    Attributes:
        get_empty: basic.gets that found no message.
        ack: acked messages that a consumer received; messages of basic.get are not included.
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
    """The counts of one channel.

    Attributes:
        totals: totals over all queues.
        queues: counts per queue.
    """

    def __init__(self) -> None:
        self.totals = QueueDeliveryStats()
        self.queues: dict[QueueBase, QueueDeliveryStats] = {}
        self._cleanup_at: i64 = QUEUES_KEPT

    def add_ended(self, consumer: Consumer) -> None:
        """Add the counts of a closed consumer. Its later acks appear only in the channel's total."""
        self.totals.add_consumer(consumer)
        if not consumer.queue.deleted:
            self._queue_stats(consumer.queue).add_consumer(consumer)

    def count_get(self, queue: QueueBase, no_ack: bool, redelivered: bool) -> None:
        for had in (self.totals, self._queue_stats(queue)):
            if no_ack:
                had.get_no_ack += 1
            else:
                had.get += 1
            if redelivered:
                had.redeliver += 1

    def count_get_empty(self, queue: QueueBase) -> None:
        self.totals.get_empty += 1
        self._queue_stats(queue).get_empty += 1

    def _queue_stats(self, queue: QueueBase) -> QueueDeliveryStats:
        had = self.queues.get(queue)
        if had is None:
            if len(self.queues) >= self._cleanup_at:
                self._forget_deleted()
            had = self.queues[queue] = QueueDeliveryStats()
        return had

    def _forget_deleted(self) -> None:
        """Remove deleted queues, so that a client with a queue per reply does not fill the memory.

        Cost: linear in the queues; runs when their number has doubled.
        """
        for queue in list(self.queues):
            if queue.deleted:
                del self.queues[queue]
        if len(self.queues) >= QUEUES_MAX:
            self.queues.clear()
        count: i64 = len(self.queues)
        self._cleanup_at = min(max(2 * count, QUEUES_KEPT), QUEUES_MAX)
