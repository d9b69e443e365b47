"""How a consumer comes to a queue, and how it leaves: what the queue's order and its filters do for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpd.broker.queue.fifo import FifoOrder
from amqpd.broker.queue.filters import Filters

if TYPE_CHECKING:
    from amqpd.broker.consumer import Consumer
    from amqpd.broker.queue.queue import Queue


def join(queue: Queue, consumer: Consumer) -> None:
    """It is served from the next pump on. The caller has checked what it asks for."""
    order = queue.order
    order.join(queue, consumer)
    if consumer.arguments.selector is not None and queue.filters is None and isinstance(order, FifoOrder):
        queue.filters = Filters(queue, queue.host, order)
        queue.order = queue.filters.order
    if queue.filters is not None:
        queue.filters.join(consumer)
    queue.add_consumer(consumer)


def leave(queue: Queue, consumer: Consumer) -> None:
    """It gets nothing more; what it has unacked stays with its front end."""
    queue.order.leave(queue, consumer)
    if queue.filters is not None:
        queue.filters.leave(consumer)
    queue.remove_consumer(consumer)
