"""Consuming: the rules that hold for a consumer of whatever front end, from its beginning to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpd.broker.access import check
from amqpd.broker.catalogue import queues
from amqpd.errors import AccessRefused

if TYPE_CHECKING:
    from amqpd.broker.delivery import Consumer
    from amqpd.broker.queues.queue import Queue
    from amqpd.broker.session import Session


def queue_for(session: Session, name: str) -> Queue:
    """The queue, which this session may read. Raises: AccessRefused, NotFound, ResourceLocked, NotOpenYet, OnItsWay."""
    check(session, "read", "queue", name)
    return session.vhost.usable_queue(name, session)


def check_free(queue: Queue, exclusive: bool) -> None:
    """Whether there may be one more consumer, or one alone. Raises: AccessRefused."""
    if queue.round_robin.exclusive or (exclusive and (queue.consumers or queue.round_robin.single_active)):
        raise AccessRefused(f"queue '{queue.name}' in vhost '{queue.vhost_name}' in exclusive use")


def begin(queue: Queue, consumer: Consumer) -> None:
    """It is served from here on, in this very call where something is ready."""
    queue.add_consumer(consumer)
    queue.used()
    queue.pump()


def end(session: Session, queue: Queue, consumer: Consumer) -> None:
    """It leaves by itself. What it has unacked stays with its front end; an auto-delete queue may go with its last."""
    queue.remove_consumer(consumer)
    queue.used()
    if queue.auto_delete and not queue.consumers and not queue.deleted:
        queues.delete(session.vhost, queue)
