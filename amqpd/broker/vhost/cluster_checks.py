"""Checks for declarations in a cluster.

`REFUSED` lists everything that needs a log on one node's disk, with the reason. A declaration gets a 406, a policy is
refused, and a message with producer numbers is refused when it is published.

`check` is for queues with a Kafka topic of their own (`x-kafka-topic`), which other programs can read by its name. The
operator must allow the name (`cluster.kafka_topics`). Names of amqpd (`amqpd.*`), of Kafka (`__*`) and of existing
topics are refused: the queue's topic is created and deleted with the queue. Only Kafka knows whether a topic exists.
The first declaration therefore asks Kafka, waits and runs again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpd.broker.vhost.declaration import ExchangeDeclaration, QueueDeclaration
from amqpd.broker.vhost.exchange import DELAYED_MESSAGE
from amqpd.broker.vhost.kafka_topics import ARGUMENT
from amqpd.broker.vhost.pending import DeclarationPending, ObjectName
from amqpd.errors import AccessRefused, PreconditionFailed

if TYPE_CHECKING:
    from amqpd.broker.vhost.vhost import OwnTopics, VHost


class RefusedInCluster(NamedTuple):
    """A feature that a cluster refuses.

    Attributes:
        kind: argument, policy, exchange, header or command.
        name: the name that users write.
        why: the reason, for the error text.
    """

    kind: str
    name: str
    why: str


_KEPT: Final = "settled messages are not kept in Kafka"
_EXPORT: Final = "exports read the log on a node's disk; read the queue's topic in Kafka instead"
_SQL: Final = "it reads the log on a node's disk; read the queue's topic in Kafka instead"
_BACKUP: Final = "messages and metadata are in Kafka, with copies; `export_definitions` saves the definitions"
_COMPACT: Final = "a vhost's topic in Kafka is not compacted"

REFUSED: Final = (
    RefusedInCluster("argument", "x-retain", _KEPT),
    RefusedInCluster("argument", "x-export", _EXPORT),
    RefusedInCluster("argument", "x-export-max-bytes", _EXPORT),
    RefusedInCluster("argument", "x-compact", _COMPACT),
    RefusedInCluster("policy", "retain", _KEPT),
    RefusedInCluster("policy", "cleanup-policy", _COMPACT),
    RefusedInCluster("exchange", DELAYED_MESSAGE, "delayed messages wait on the disk of one node"),
    RefusedInCluster("header", "x-producer-id", "Kafka's records have the node's own numbers"),
    RefusedInCluster("command", "rewind", _KEPT),
    RefusedInCluster("command", "export", _EXPORT),
    RefusedInCluster("command", "sql", _SQL),
    RefusedInCluster("command", "backup", _BACKUP),
)
"""All refused features; docs/cluster.md lists them."""

_BY_KIND: Final = {(each.kind, each.name): each for each in REFUSED}
_HARMLESS: Final[Mapping[str, object]] = {"x-compact": False, "cleanup-policy": "delete"}


def check_queue(vhost: str, asked: QueueDeclaration) -> None:
    """Refuse queue arguments that a cluster cannot support. Raises: PreconditionFailed."""
    for name, value in asked.arguments.items():
        row = _BY_KIND.get(("argument", name))
        if row is not None and value != _HARMLESS.get(name):
            raise PreconditionFailed(
                f"invalid arg '{name}' for queue '{asked.name}' in vhost '{vhost}': not in a cluster: {row.why}"
            )


def check_exchange(vhost: str, asked: ExchangeDeclaration) -> None:
    """Refuse exchange types that a cluster cannot support. Raises: PreconditionFailed."""
    row = _BY_KIND.get(("exchange", asked.kind))
    if row is not None:
        raise PreconditionFailed(
            f"exchange '{asked.name}' in vhost '{vhost}' cannot be of type '{asked.kind}': not in a cluster: {row.why}"
        )


def policy_faults(definition: Mapping[str, object]) -> list[str]:
    """Return a line of text for each policy key that a cluster refuses."""
    found = []
    for name, value in definition.items():
        row = _BY_KIND.get(("policy", name))
        if row is not None and value != _HARMLESS.get(name):
            found.append(f"{name} is not possible in a cluster: {row.why}")
    return found


RESERVED: Final = ("amqpd.", "__")


def check(vhost: VHost, topics: OwnTopics, asked: QueueDeclaration) -> None:
    """Check a new queue that has a topic of its own.

    Raises:
        PreconditionFailed, AccessRefused.
        DeclarationPending: Kafka has been asked; declare again when it has answered.
    """
    topic = str(asked.arguments[ARGUMENT])
    what = f"invalid arg '{ARGUMENT}' for queue '{asked.name}' in vhost '{vhost.name}': "
    if not asked.durable:
        raise PreconditionFailed(f"{what}not durable")
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
