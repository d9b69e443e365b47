"""Names as they come from clients."""

from __future__ import annotations

from amqpd.channel.channel import Channel
from amqpd.errors import NotFound, PreconditionFailed


def clean(name: str) -> str:
    """The name as it is used. rabbit: CR and LF are stripped. Raises: PreconditionFailed for a NUL."""
    if "\r" in name or "\n" in name:
        name = name.replace("\r", "").replace("\n", "")
    if "\0" in name:
        # spec: 1.1 (queue-name, exchange-name): no NUL
        raise PreconditionFailed("a name must not contain a NUL character")
    return name


def queue_name(channel: Channel, name: str) -> str:
    """An empty name means the queue last declared on this channel. Raises: NotFound when there is none."""
    name = clean(name)
    if name:
        return name
    if not channel.last_queue:
        raise NotFound("no previously declared queue")
    return channel.last_queue
