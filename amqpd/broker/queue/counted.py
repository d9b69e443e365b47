"""What a quorum queue tells a consumer: how often a message came back."""

from __future__ import annotations

from amqpd.broker.consumer import Entry
from amqpd.broker.message import Message, make_message
from amqpd.protocol.field_table import Long
from amqpd.protocol.properties import scan, with_headers


def outgoing(entry: Entry, counts_shown: bool) -> Message | None:
    """The entry's message as a consumer sees it. counts_shown: by the queue's rules."""
    message = entry.message
    return counted(entry, message) if counts_shown and message is not None else message


def counted(entry: Entry, message: Message) -> Message:
    """rabbit: quorum queues tell how often a message came back, in the header x-delivery-count."""
    count: int = entry.delivery_count
    properties = with_headers(message.properties(), {"x-delivery-count": Long(count)})
    info = scan(properties, 0, len(properties))
    return make_message(message.envelope, properties, message.body(), message.persistent, info)
