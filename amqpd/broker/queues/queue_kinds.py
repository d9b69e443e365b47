"""Which class a queue declaration gets.

    Queue           nothing asked for: the short road
    LimitedQueue    a limit, a time to live, a lease, a dead-letter exchange, or x-queue-type=quorum
    PriorityQueue   x-max-priority; with any of the above

`x-export` makes the log keep what is settled for an export (storage/settle/hold.py), whatever the class.

`quorum` on one node is a durable queue that counts deliveries. A guest's queue type would have to derive from a
compiled class, which only compiled code may, so there is no entry point: a new kind is a module here and a line below.
"""

from __future__ import annotations

from typing import Final

from amqpd.broker.queues.host import QueueHost
from amqpd.broker.queues.limited_queue import LimitedQueue
from amqpd.broker.queues.priority_queue import PriorityQueue
from amqpd.broker.queues.queue import Queue
from amqpd.storage.queue_log import QueueLog

LIMITS: Final = frozenset(
    {
        "x-message-ttl",
        "x-expires",
        "x-max-length",
        "x-max-length-bytes",
        "x-overflow",
        "x-dead-letter-exchange",
        "x-delivery-limit",
    }
)


def make_queue(
    host: QueueHost,
    name: str,
    durable: bool,
    auto_delete: bool,
    owner: object,
    arguments: dict[str, object],
    store: QueueLog | None,
) -> Queue:
    """An empty queue, or the one whose log `store` is."""
    quorum = arguments.get("x-queue-type") == "quorum"
    kind: type[Queue] = Queue
    if "x-max-priority" in arguments:
        kind = PriorityQueue
    elif quorum or not LIMITS.isdisjoint(arguments):
        kind = LimitedQueue
    queue = kind(host, name, durable, auto_delete, owner, arguments, store)
    if quorum:
        queue.kind = "quorum"
    queue.round_robin.single_active = arguments.get("x-single-active-consumer") is True
    export = arguments.get("x-export")
    if isinstance(export, str) and store is not None:
        limit = arguments.get("x-export-max-bytes")
        host.declare_export(store, export, limit if isinstance(limit, int) else None)
    return queue
