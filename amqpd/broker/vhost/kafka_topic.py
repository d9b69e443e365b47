"""Queues that have a topic of Kafka for themselves (x-kafka-topic), so that others can read it by its name, there.

In a cluster only, and only names that its operator allows (`cluster.kafka_topics`): a topic is something of his Kafka,
which others use for other things. Those that are amqpd's own (`amqpd.*`) or Kafka's (`__*`) are never given out, nor is
one that exists already, whoever made it: a queue's topic comes with the queue, and goes with it.

Whether it exists is Kafka's to say, so the first declaration asks and waits, and is then given once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpd.broker.vhost.pending import Name, OnItsWay
from amqpd.errors import AccessRefused, PreconditionFailed

if TYPE_CHECKING:
    from amqpd.broker.vhost.declaration import QueueDeclaration
    from amqpd.broker.vhost.vhost import VHost

ARGUMENT: Final = "x-kafka-topic"
RESERVED: Final = ("amqpd.", "__")


def check(vhost: VHost, asked: QueueDeclaration) -> None:
    """A new queue that asks for a topic. Raises: PreconditionFailed, AccessRefused; OnItsWay."""
    topic = str(asked.arguments[ARGUMENT])
    what = f"invalid arg '{ARGUMENT}' for queue '{asked.name}' in vhost '{vhost.name}': "
    if not asked.durable:
        raise PreconditionFailed(f"{what}not durable")
    topics = vhost.catalogue.own_topics
    if topics is None:
        raise PreconditionFailed(f"{what}there is no Kafka: this is no node of a cluster")
    if topic.startswith(RESERVED) or not topics.allows(topic):
        raise AccessRefused(f"access to topic '{topic}' of Kafka refused: cluster.kafka_topics does not allow it")
    declared = vhost.catalogue.declared
    declared.check("", "kafka topic", topic)
    objection = topics.objection(topic)
    if objection:
        raise PreconditionFailed(f"{what}topic '{topic}' {objection}")
    if objection is None:
        name = Name("", "kafka topic", topic)
        declared.hold(name)
        topics.ask(topic, lambda: declared.free([name]))
        raise OnItsWay(declared, name)
