"""A message that a vhost of a broker under test has published, delivered or dead-lettered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, cast

if TYPE_CHECKING:
    from amqpd.protocol.properties import Properties

BODY_SHOWN: Final = 60


class RecordedMessage(NamedTuple):
    """One event of a message.

    Attributes:
        event: `published`, `delivered` or `dead-lettered`.
        exchange, routing_key: of the publish; of a dead letter: those with which it was published again.
        encoded_properties: as AMQP has them; see `properties`.
        queue: delivered: from this queue; dead-lettered: it died in this queue.
        queues: published, dead-lettered: the queues that the message was routed to.
        is_routed: False for an unroutable message. A delayed message is routed and has no queue yet.
        reason: dead-lettered: expired, maxlen, rejected or delivery_limit.
        redelivered: delivered: the message was delivered before.
        user: published, delivered: the client's user.
    """

    event: str
    exchange: str
    routing_key: str
    body: bytes
    encoded_properties: bytes
    queue: str = ""
    queues: tuple[str, ...] = ()
    is_routed: bool = True
    reason: str = ""
    redelivered: bool = False
    user: str = ""

    @property
    def properties(self) -> Properties:
        """Return the decoded properties: `content_type`, `headers`, `expiration` and so on, None if not set."""
        from amqpd.protocol.properties import decode_properties

        return decode_properties(self.encoded_properties)

    @property
    def headers(self) -> Mapping[str, object]:
        """Return the headers; empty if there are none."""
        return self.properties.headers or {}

    def describe(self) -> str:
        """Return one line for an error text."""
        body = repr(self.body[:BODY_SHOWN]) + ("..." if len(self.body) > BODY_SHOWN else "")
        text = f"exchange '{self.exchange}', routing key '{self.routing_key}', {len(self.body)} bytes {body}"
        if self.event == "delivered":
            return f"{text}, from queue '{self.queue}'" + (", redelivered" if self.redelivered else "")
        target = f"to {', '.join(self.queues)}" if self.queues else "to no queue yet"
        if not self.is_routed:
            target = "unroutable"
        if self.event == "dead-lettered":
            return f"{text}, from queue '{self.queue}' ({self.reason}), {target}"
        return f"{text}, {target}"


def message_of(fields: list[object]) -> RecordedMessage:
    """Return the message of its fields in JSON, where tuples are lists."""
    message = RecordedMessage._make(cast("list[str]", fields))
    return message._replace(queues=tuple(message.queues))
