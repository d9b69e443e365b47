"""Names of queues as topics of Kafka's clients, for one vhost.

A durable queue that is not exclusive is a topic. Its name is that of the queue, or the value of its argument
`x-kafka-topic`. Two queues never have the same topic: a declaration that would cause this is refused. A name is
reserved while the commit of its queue is pending.

In a cluster the argument names a topic of Kafka itself, and cluster_checks.py decides. There the names here are not
used, because a cluster has no listener for Kafka's clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpd.broker.queue.argument_checks import KAFKA_TOPIC
from amqpd.errors import PreconditionFailed

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue
    from amqpd.broker.vhost.declaration import NewQueue, QueueDeclaration
    from amqpd.broker.vhost.vhost import Namespace

ARGUMENT: Final = "x-kafka-topic"
KIND: Final = "kafka topic"
"""Kind of a reserved name."""


def topic_name(queue: Queue | NewQueue) -> str:
    """Return the name that this durable queue has as a topic; "" if Kafka does not allow it."""
    name = str(queue.arguments.get(ARGUMENT, queue.name))
    return name if KAFKA_TOPIC.fullmatch(name) is not None else ""


def check_topic(names: Namespace, asked: QueueDeclaration) -> None:
    """Check that a new queue can have its topic, whose name comes from the argument or is the queue's own.

    Raises:
        PreconditionFailed.
        DeclarationPending: another queue with this topic is being declared or deleted.
    """
    vhost = names.vhost.name
    topic = asked.arguments.get(ARGUMENT)
    if topic is None:
        if asked.durable:
            owner = names.find_kafka_topic(asked.name)
            if owner is not None:
                raise PreconditionFailed(
                    f"cannot declare queue '{asked.name}' in vhost '{vhost}': "
                    f"its name is the Kafka topic of queue '{owner.name}' ({ARGUMENT})"
                )
        return
    what = f"invalid arg '{ARGUMENT}' for queue '{asked.name}' in vhost '{vhost}': "
    if not asked.durable:
        raise PreconditionFailed(f"{what}not durable")
    owner = names.find_kafka_topic(str(topic))
    if owner is None and topic != asked.name:
        owner = _queue_of_topic(names, str(topic))
    if owner is not None:
        raise PreconditionFailed(f"{what}topic '{topic}' belongs to queue '{owner.name}'")
    if names.vhost.super_streams.get(str(topic)) is not None:
        raise PreconditionFailed(f"{what}topic '{topic}' belongs to super stream '{topic}'")


def _queue_of_topic(names: Namespace, topic: str) -> Queue | NewQueue | None:
    """Return the queue of this name if it is the topic of this name. Raises: DeclarationPending."""
    queue = names.find_queue(topic)
    if queue is None or not queue.durable or queue.exclusive_owner is not None:
        return None
    return queue if topic_name(queue) == topic else None
