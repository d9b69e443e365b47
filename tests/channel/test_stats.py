"""What a channel counts by queue, and for how long it knows a queue."""

from __future__ import annotations

from amqpd.broker.consumer import QueueBase
from amqpd.channel.stats import QUEUES_KEPT, QUEUES_MAX, DeliveryStats


def test_deleted_queues_are_not_kept() -> None:
    """A channel that makes a queue for each answer, asks it with basic.get, and deletes it."""
    served = DeliveryStats()
    lasting = [QueueBase(f"lasting {number}", "/") for number in range(5)]
    for number in range(10 * QUEUES_KEPT):
        queue = QueueBase(f"answer {number}", "/")
        served.count_get(queue, no_ack=True, redelivered=False)
        served.count_get(lasting[number % 5], no_ack=False, redelivered=False)
        queue.deleted = True
        assert len(served.queues) <= QUEUES_KEPT
    assert [served.queues[queue].get for queue in lasting] == [2 * QUEUES_KEPT] * 5
    assert (served.totals.get, served.totals.get_no_ack) == (10 * QUEUES_KEPT, 10 * QUEUES_KEPT)


def test_no_more_than_so_many() -> None:
    served = DeliveryStats()
    for number in range(3 * QUEUES_MAX):
        served.count_get_empty(QueueBase(str(number), "/"))
        assert len(served.queues) <= QUEUES_MAX
    assert served.totals.get_empty == 3 * QUEUES_MAX
