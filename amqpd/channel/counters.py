"""What channels count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from amqpd.channel.channel import Channel

CHANNEL_COUNTERS: Final = ("publish", "confirm", "deliver_get", "ack")


def channel_counts(channel: Channel) -> tuple[int, ...]:
    """In the order of CHANNEL_COUNTERS. Delivery tags begin with 1."""
    confirmed = channel.confirms.confirmed_sequence if channel.confirms is not None else 0
    return (channel.published_count, confirmed, channel.deliveries.next_tag - 1, channel.deliveries.acked_count)
