"""What channels count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from amqpd.channel.channel import Channel

CHANNEL_COUNTERS: Final = ("publish", "confirm", "deliver_get", "ack")


def channel_counts(channel: Channel) -> tuple[int, ...]:
    """In the order of CHANNEL_COUNTERS. Delivery tags begin with 1."""
    confirmed = channel.confirmed_sequence if channel.confirming else 0
    return (channel.published_count, confirmed, channel.next_tag - 1, channel.acked_count)
