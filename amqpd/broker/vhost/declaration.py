"""Parameters of queue.declare and exchange.declare, and the placeholder of a queue that is not created yet."""

from __future__ import annotations

from typing import NamedTuple

from amqpd.broker.queue.queue import Queue
from amqpd.protocol.field_table import encode_table
from amqpd.storage.metadata.store import random_id


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
