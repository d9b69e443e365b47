"""Parameters of queue.declare and exchange.declare, and the queue: a placeholder until the commit, then the object."""

from __future__ import annotations

from typing import NamedTuple

from amqpd.broker.queue.arguments import rules_of
from amqpd.broker.queue.grouped_queue import GroupedQueue
from amqpd.broker.queue.queue import Queue
from amqpd.broker.queue.services import QueueServices
from amqpd.broker.queue.types import kind_of
from amqpd.protocol.field_table import encode_table
from amqpd.storage.metadata.store import random_id
from amqpd.storage.queue_log import QueueLog


class QueueDeclaration(NamedTuple):
    """Parameters of queue.declare.

    Attributes:
        owner: the session, which owns the queue if it is exclusive; None for the admin API.
    """

    name: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: dict[str, object]
    owner: object = None

    def with_default_type(self, kind: str) -> QueueDeclaration:
        """Return the declaration with the vhost's default queue type.

        rabbit: the default applies as if the client had asked for it, unless the client names a type or the queue
        cannot have the default type.
        """
        if kind == "classic" or not self.durable or self.auto_delete:
            return self
        return self._replace(arguments={"x-queue-type": kind, **self.arguments})


class ExchangeDeclaration(NamedTuple):
    """Parameters of exchange.declare. `kind` is the exchange type."""

    name: str
    kind: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: dict[str, object]


class NewQueue:
    """A checked queue whose commit is pending. A batch can bind it already.

    Attributes:
        id: the queue's id; "" if it is not durable.
        table: the encoded arguments.
        made: the queue, after its creation.
    """

    def __init__(self, asked: QueueDeclaration) -> None:
        self.name = asked.name
        self.durable = asked.durable
        self.auto_delete = asked.auto_delete
        self.exclusive_owner = asked.owner if asked.exclusive else None
        self.arguments = asked.arguments
        self.table = encode_table(asked.arguments)
        self.kind = str(asked.arguments.get("x-queue-type", "classic"))
        self.id = random_id() if asked.durable else ""
        self.made: Queue | None = None

    @property
    def deleted(self) -> bool:
        return self.made is not None and self.made.deleted


def make_queue(
    host: QueueServices,
    name: str,
    durable: bool,
    auto_delete: bool,
    owner: object,
    arguments: dict[str, object],
    store: QueueLog | None,
) -> Queue:
    """Make a queue from validated arguments.

    With x-export the log keeps settled messages for an export (storage/acks/retained.py), at most x-export-max-bytes.
    All other arguments except x-queue-type are rules (queue/config.py).

    Args:
        store: its log; None for a queue in memory.
    """
    rules = rules_of(arguments)
    kind = GroupedQueue if rules.group_by else Queue
    queue = kind(host, name, durable, auto_delete, owner, arguments, rules, store)
    queue.kind = kind_of(arguments).name
    export = arguments.get("x-export")
    if isinstance(export, str) and store is not None:
        limit = arguments.get("x-export-max-bytes")
        host.storage.export_hold(store).declare(export, limit if isinstance(limit, int) else None)
    return queue
