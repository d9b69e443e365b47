"""Who is told of every message that is published in a vhost, and of every delivery: the firehose, while it is on.

Whoever publishes or delivers knows this base class only. Nobody asks for it on the message path: a route that is traced
has no short way (`Route.only`), a consumer that is traced begins each delivery anew (`ChannelConsumer.trace`).
"""

from __future__ import annotations

from mypy_extensions import i64, mypyc_attr

from amqpd.broker.destination import Destination
from amqpd.broker.message import Message


@mypyc_attr(allow_interpreted_subclasses=True)
class Tap:
    """Of one vhost. connection, user: whose the channel of this number is."""

    def published(
        self,
        message: Message,
        keys: list[str],
        destinations: list[Destination],
        connection: str,
        user: str,
        number: i64,
    ) -> None:
        """It was published under these keys (its own, then CC and BCC), and goes to these destinations."""
        raise NotImplementedError

    def delivered(
        self, message: Message, queue: str, redelivered: bool, connection: str, user: str, number: i64
    ) -> None:
        """It was taken from the queue of this name, by a consumer or basic.get."""
        raise NotImplementedError

    def is_behind(self) -> bool:
        """Whether publishers should let it have its turn."""
        raise NotImplementedError
