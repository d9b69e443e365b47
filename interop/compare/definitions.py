"""Definitions of both brokers: the keys that only one of them exports, each with its reason.

interop/test_definitions.py checks that definitions are otherwise unchanged from RabbitMQ to amqpd and back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

SAMPLES: Final = Path(__file__).parents[2] / "tests" / "samples" / "definitions"
"""RabbitMQ's documents by version; README.md there says which ones RabbitMQ itself exported."""


class Apart(NamedTuple):
    """kind: a list of the document; empty: the document itself. keys: of its items; for global_parameters: names."""

    kind: str
    keys: tuple[str, ...]
    reason: str


APART: Final = (
    Apart(
        "",
        (
            *("rabbit_version", "rabbitmq_version", "product_name", "product_version"),
            *("rabbitmq_definition_format", "original_cluster_name", "explanation"),
        ),
        "each broker names itself; no import reads it",
    ),
    Apart("global_parameters", ("cluster_name", "internal_cluster_id"), "each broker has its own"),
    Apart("queues", ("type",), "RabbitMQ 3.10 has it in the arguments alone; amqpd exports both, as 3.13 does"),
    Apart(
        "vhosts",
        ("description", "tags", "metadata", "default_queue_type", "limits"),
        "RabbitMQ 3.10 exports the name alone; amqpd the rest as well, as 3.13 does",
    ),
    Apart("bindings", ("properties_key",), "a name used in URLs; exported by newer versions only"),
)
PASSWORDS: Final = (
    "a user whose password was set or used on amqpd has it as argon2id, which RabbitMQ does not read: there a new one "
    "is needed, unless `auth.password_hashing` names a hash of RabbitMQ's"
)


def keys_apart(kind: str) -> frozenset[str]:
    return frozenset(key for each in APART if each.kind == kind for key in each.keys)
