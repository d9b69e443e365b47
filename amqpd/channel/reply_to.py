"""Direct reply-to: a consumer without a queue.

`basic.consume` of `amq.rabbitmq.reply-to` makes the channel itself reachable under a key nobody can guess. A publish
from the channel whose reply-to is the plain name gets that key instead; a reply published through the default
exchange under the key goes straight to the consumer, at most once. A key that is unknown or forged reaches nobody.

rabbit: https://www.rabbitmq.com/direct-reply-to.html; texts measured on 3.10.8.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from amqpd.broker.destination import Destination
from amqpd.broker.message import Message
from amqpd.channel.properties_check import REPLY_TO

if TYPE_CHECKING:
    from amqpd.channel.channel import Channel, ChannelConsumer


class ReplyConsumer(Destination):
    """The one direct reply-to consumer of a channel."""

    def __init__(self, channel: Channel, consumer: ChannelConsumer) -> None:
        super().__init__()
        self.channel = channel
        self.consumer = consumer
        # rabbit: where, a dot, and a key of 16 octets with its padding; php-amqp's suite knows the shape
        self.key = f"{REPLY_TO}.{secrets.token_urlsafe(6)}.{secrets.token_urlsafe(16)}=="

    def gone(self) -> bool:
        return self.channel.reply_consumer is not self

    def offer(self, message: Message) -> bool:
        """Delivers at once. A requester that does not read loses replies beyond its output's bound, as the at-most-once
        promise allows; the broker's memory is not its buffer."""
        if self.consumer.has_room():
            self.consumer.deliver(message, None, False)
        return True
