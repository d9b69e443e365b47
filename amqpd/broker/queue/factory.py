"""What a declaration's arguments make of a queue: its kind, its rules, its log's export.

x-queue-type names the kind (types.py), x-export makes the log keep what is settled for an export
(storage/acks/retained.py), of x-export-max-bytes at most; everything else is a rule (config.py).
"""

from __future__ import annotations

from amqpd.broker.queue.arguments import rules_of
from amqpd.broker.queue.grouped_queue import GroupedQueue
from amqpd.broker.queue.queue import Queue
from amqpd.broker.queue.services import QueueServices
from amqpd.broker.queue.types import kind_of
from amqpd.storage.queue_log import QueueLog


def make_queue(
    host: QueueServices,
    name: str,
    durable: bool,
    auto_delete: bool,
    owner: object,
    arguments: dict[str, object],
    store: QueueLog | None,
) -> Queue:
    """An empty queue, or the one whose log `store` is. The arguments have been validated."""
    rules = rules_of(arguments)
    kind = GroupedQueue if rules.group_by else Queue
    queue = kind(host, name, durable, auto_delete, owner, arguments, rules, store)
    queue.kind = kind_of(arguments).name
    export = arguments.get("x-export")
    if isinstance(export, str) and store is not None:
        limit = arguments.get("x-export-max-bytes")
        host.declare_export(store, export, limit if isinstance(limit, int) else None)
    return queue
