"""Direct reply-to: a consumer without a queue.

`basic.consume` of `amq.rabbitmq.reply-to` makes the channel itself reachable under a key nobody can guess. A publish
from the channel whose reply-to is the plain name gets that key instead; a reply published through the default
exchange under the key goes straight to the consumer, at most once. A key that is unknown or forged reaches nobody.

rabbit: https://www.rabbitmq.com/direct-reply-to.html; texts measured on 3.10.8.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from amqpd.broker.destination import Destination
from amqpd.broker.message import Message
from amqpd.protocol.properties import DIRECT_REPLY_TO

if TYPE_CHECKING:
    from amqpd.channel.consumer import ChannelConsumer


REPLY_TO: Final = DIRECT_REPLY_TO.decode()


class ReplyConsumer(Destination):
    """The one direct reply-to consumer of a channel."""

    def __init__(self, consumer: ChannelConsumer) -> None:
        super().__init__()
        self.tag = consumer.tag
        self._consumer: ChannelConsumer | None = consumer
        # rabbit: where, a dot, and a key of 16 octets with its padding; php-amqp's suite knows the shape
        self.key = f"{REPLY_TO}.{secrets.token_urlsafe(6)}.{secrets.token_urlsafe(16)}=="

    def gone(self) -> bool:
        return self._consumer is None

    def end(self) -> None:
        """Cancelled, or its channel ends. Other connections' routes may name it for long: it keeps nothing alive."""
        self.version += 1
        self._consumer = None

    def offer(self, message: Message) -> bool:
        """Delivers at once. A requester that does not read loses replies beyond its output's bound, as the at-most-once
        promise allows; the broker's memory is not its buffer."""
        consumer = self._consumer
        if consumer is not None and consumer.has_room():
            consumer.deliver(message, None, False)
        return True
