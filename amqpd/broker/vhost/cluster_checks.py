"""What a node of a cluster refuses, since it needs a log on the disk of one node: each with its reason, in one table.

All of it is told when it is declared (406, or a policy that is refused); a message with a producer's numbers when it is
published. Everything else is as on a single node.

Queues that have a topic of Kafka for themselves (x-kafka-topic), so that others can read it by its name, there.

In a cluster only, and only names that its operator allows (`cluster.kafka_topics`): a topic is something of his Kafka,
which others use for other things. Those that are amqpd's own (`amqpd.*`) or Kafka's (`__*`) are never given out, nor is
one that exists already, whoever made it: a queue's topic comes with the queue, and goes with it.

Whether it exists is Kafka's to say, so the first declaration asks and waits, and is then given once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpd.broker.vhost.declaration import ExchangeDeclaration, QueueDeclaration
from amqpd.broker.vhost.exchange import DELAYED_MESSAGE
from amqpd.broker.vhost.pending import DeclarationPending, ObjectName
from amqpd.errors import AccessRefused, PreconditionFailed

if TYPE_CHECKING:
    from amqpd.broker.vhost.vhost import VHost


class RefusedInCluster(NamedTuple):
    """One thing. kind: argument, policy, exchange, header or command. name: as users write it."""

    kind: str
    name: str
    why: str


_KEPT: Final = "what is settled is not kept in Kafka"
_EXPORT: Final = "exports read the log on a node's disk; a queue's topic in Kafka can be read itself"
_COMPACT: Final = "a vhost's topic in Kafka is not compacted"

REFUSED: Final = (
    RefusedInCluster("argument", "x-retain", _KEPT),
    RefusedInCluster("argument", "x-export", _EXPORT),
    RefusedInCluster("argument", "x-export-max-bytes", _EXPORT),
    RefusedInCluster("argument", "x-compact", _COMPACT),
    RefusedInCluster("policy", "retain", _KEPT),
    RefusedInCluster("policy", "cleanup-policy", _COMPACT),
    RefusedInCluster("exchange", DELAYED_MESSAGE, "what is delayed waits on the disk of one node"),
    RefusedInCluster("header", "x-producer-id", "Kafka's records have the node's own numbers"),
    RefusedInCluster("command", "rewind", _KEPT),
)
"""All of it; docs/cluster.md shows it."""

_BY_KIND: Final = {(each.kind, each.name): each for each in REFUSED}
_HARMLESS: Final[Mapping[str, object]] = {"x-compact": False, "cleanup-policy": "delete"}


def check_queue(vhost: str, asked: QueueDeclaration) -> None:
    """Raises: PreconditionFailed."""
    for name, value in asked.arguments.items():
        row = _BY_KIND.get(("argument", name))
        if row is not None and value != _HARMLESS.get(name):
            raise PreconditionFailed(
                f"invalid arg '{name}' for queue '{asked.name}' in vhost '{vhost}': not in a cluster: {row.why}"
            )


def check_exchange(vhost: str, asked: ExchangeDeclaration) -> None:
    """Raises: PreconditionFailed."""
    row = _BY_KIND.get(("exchange", asked.kind))
    if row is not None:
        raise PreconditionFailed(
            f"exchange '{asked.name}' in vhost '{vhost}' cannot be of type '{asked.kind}': not in a cluster: {row.why}"
        )


def policy_faults(definition: Mapping[str, object]) -> list[str]:
    """A line for each key that cannot be followed."""
    found = []
    for name, value in definition.items():
        row = _BY_KIND.get(("policy", name))
        if row is not None and value != _HARMLESS.get(name):
            found.append(f"{name} is not possible in a cluster: {row.why}")
    return found


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
        name = ObjectName("", "kafka topic", topic)
        declared.hold(name)
        topics.ask(topic, lambda: declared.free([name]))
        raise DeclarationPending(declared, name)
