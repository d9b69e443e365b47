"""The kinds of queue (x-queue-type): one row each, which is all that tells them apart.

A kind is a row of defaults and of what a declaration and a client may ask of it. There is one class `Queue`.
`quorum` on one node is a durable queue that counts deliveries. A `stream` keeps what is read, and every consumer reads
at its own place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class QueueType(NamedTuple):
    """One kind.

    module: what RabbitMQ calls it in the texts of errors. durable_only: neither transient, exclusive nor auto-delete.
    counts_shown: deliveries carry x-delivery-count. global_qos: a prefetch window of the whole channel may hold it.
    stream: nothing is taken out of it: basic.get, automatic acknowledgement, reject, nack and purge are refused.
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
REPLICATED: Final = QUORUM | STREAM


def kind_of(arguments: Mapping[str, object]) -> QueueType:
    """What these arguments ask for; classic where they do not say, or name a kind that is not there."""
    name = arguments.get("x-queue-type")
    return KINDS.get(name, KINDS["classic"]) if isinstance(name, str) else KINDS["classic"]
