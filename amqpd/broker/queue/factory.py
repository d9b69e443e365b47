"""Construction of a queue from the arguments of its declaration.

x-queue-type is the type (types.py). With x-export the log keeps settled messages for an export
(storage/acks/retained.py), at most x-export-max-bytes. All other arguments are rules (config.py).
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
    """Make a queue from validated arguments. store: its log; None for a queue in memory."""
    rules = rules_of(arguments)
    kind = GroupedQueue if rules.group_by else Queue
    queue = kind(host, name, durable, auto_delete, owner, arguments, rules, store)
    queue.kind = kind_of(arguments).name
    export = arguments.get("x-export")
    if isinstance(export, str) and store is not None:
        limit = arguments.get("x-export-max-bytes")
        host.storage.export_hold(store).declare(export, limit if isinstance(limit, int) else None)
    return queue
