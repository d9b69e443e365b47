"""What is asked for when a queue or an exchange is declared, and what stands for the queue until it is made."""

from __future__ import annotations

from typing import NamedTuple

from amqpd.broker.queue.queue import Queue
from amqpd.storage.metadata.store import random_id


class QueueDeclaration(NamedTuple):
    """queue.declare. owner: who asks, and whom an exclusive queue ends with (a session); None from the admin API."""

    name: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: dict[str, object]
    owner: object = None

    def with_default_type(self, kind: str) -> QueueDeclaration:
        """The same in a vhost whose default queue type this is.

        rabbit: it is as if it had been asked for, where the queue may be of it and names none.
        """
        if kind == "classic" or not self.durable or self.auto_delete:
            return self
        return self._replace(arguments={"x-queue-type": kind, **self.arguments})


class ExchangeDeclaration(NamedTuple):
    """exchange.declare. kind: its type."""

    name: str
    kind: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: dict[str, object]


class NewQueue:
    """A queue that is checked and whose row is on its way. A transaction binds it before it is made.

    id: empty for what is not durable. made: the queue, once it is.
    """

    def __init__(self, asked: QueueDeclaration) -> None:
        self.name = asked.name
        self.durable = asked.durable
        self.auto_delete = asked.auto_delete
        self.exclusive_owner = asked.owner if asked.exclusive else None
        self.arguments = asked.arguments
        self.kind = str(asked.arguments.get("x-queue-type", "classic"))
        self.id = random_id() if asked.durable else ""
        self.made: Queue | None = None
