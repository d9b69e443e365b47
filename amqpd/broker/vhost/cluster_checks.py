"""What a node of a cluster refuses, since it needs a log on the disk of one node: each with its reason, in one table.

All of it is told when it is declared (406, or a policy that is refused); a message with a producer's numbers when it is
published. Everything else is as on a single node.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from amqpd.broker.vhost.declaration import ExchangeDeclaration, QueueDeclaration
from amqpd.broker.vhost.exchange_arguments import DELAYED_MESSAGE
from amqpd.errors import PreconditionFailed


class Refused(NamedTuple):
    """One thing. kind: argument, policy, exchange, header or command. name: as users write it."""

    kind: str
    name: str
    why: str


_KEPT: Final = "what is settled is not kept in Kafka"
_EXPORT: Final = "exports read the log on a node's disk; a queue's topic in Kafka can be read itself"
_COMPACT: Final = "a vhost's topic in Kafka is not compacted"

REFUSED: Final = (
    Refused("argument", "x-retain", _KEPT),
    Refused("argument", "x-export", _EXPORT),
    Refused("argument", "x-export-max-bytes", _EXPORT),
    Refused("argument", "x-compact", _COMPACT),
    Refused("policy", "retain", _KEPT),
    Refused("policy", "cleanup-policy", _COMPACT),
    Refused("exchange", DELAYED_MESSAGE, "what is delayed waits on the disk of one node"),
    Refused("header", "x-producer-id", "Kafka's records have the node's own numbers"),
    Refused("command", "rewind", _KEPT),
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
