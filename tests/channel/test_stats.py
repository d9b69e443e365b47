"""Delivery counters of a channel by queue, and how many queues it keeps."""

from __future__ import annotations

from amqpd.broker.consumer import QueueBase
from amqpd.channel.stats import QUEUES_KEPT, QUEUES_MAX, DeliveryStats


def test_deleted_queues_are_not_kept() -> None:
    """A channel that declares a queue per reply, gets from it and deletes it."""
    stats = DeliveryStats()
    lasting = [QueueBase(f"lasting {number}", "/") for number in range(5)]
    for number in range(10 * QUEUES_KEPT):
        queue = QueueBase(f"answer {number}", "/")
        stats.count_get(queue, no_ack=True, redelivered=False)
        stats.count_get(lasting[number % 5], no_ack=False, redelivered=False)
        queue.deleted = True
        assert len(stats.queues) <= QUEUES_KEPT
    assert [stats.queues[queue].get for queue in lasting] == [2 * QUEUES_KEPT] * 5
    assert (stats.totals.get, stats.totals.get_no_ack) == (10 * QUEUES_KEPT, 10 * QUEUES_KEPT)


def test_number_of_queues_is_bounded() -> None:
    stats = DeliveryStats()
    for number in range(3 * QUEUES_MAX):
        stats.count_get_empty(QueueBase(str(number), "/"))
        assert len(stats.queues) <= QUEUES_MAX
    assert stats.totals.get_empty == 3 * QUEUES_MAX
