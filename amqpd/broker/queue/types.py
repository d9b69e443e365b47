"""Queue types (x-queue-type): one row of defaults and permissions for each.

All types are served by one class, `Queue`. A `quorum` queue is a durable queue that counts deliveries; one node has it,
without replicas. A `stream` keeps its messages after delivery, and each consumer reads at its own position.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class QueueType(NamedTuple):
    """One queue type.

    Attributes:
        module: the name that RabbitMQ's error texts use.
        durable_only: the queue cannot be transient, exclusive or auto-delete, and its log keeps transient messages.
        counts_shown: deliveries have the header x-delivery-count.
        global_qos: a consumer can use the prefetch limit of the whole channel.
        stream: messages are never taken: basic.get, automatic acks, reject, nack and purge are refused.
    """

    name: str
    module: str
    durable_only: bool
    counts_shown: bool
    global_qos: bool
    stream: bool = False


KINDS: Final[dict[str, QueueType]] = {
    kind.name: kind
    for kind in (
        QueueType("classic", "rabbit_classic_queue", durable_only=False, counts_shown=False, global_qos=True),
        QueueType("quorum", "rabbit_quorum_queue", durable_only=True, counts_shown=True, global_qos=False),
        QueueType(
            "stream", "rabbit_stream_queue", durable_only=True, counts_shown=False, global_qos=False, stream=True
        ),
    )
}

CLASSIC: Final = frozenset({"classic"})
QUORUM: Final = frozenset({"quorum"})
STREAM: Final = frozenset({"stream"})
WORK_QUEUES: Final = CLASSIC | QUORUM


def kind_of(arguments: Mapping[str, object]) -> QueueType:
    """Return the type that the arguments name; classic if they name none or an unknown one."""
    name = arguments.get("x-queue-type")
    return KINDS.get(name, KINDS["classic"]) if isinstance(name, str) else KINDS["classic"]
