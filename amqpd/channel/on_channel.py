"""channel.* and access.request. A handler gets its channel and a decoded command; it raises, it never sends an
error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amqpd.channel import basic
from amqpd.channel.counters import channel_counts
from amqpd.channel.events import channel_closed
from amqpd.errors import NotImplementedByBroker
from amqpd.protocol import commands
from amqpd.protocol.commands import (
    AccessRequestOk,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
)

if TYPE_CHECKING:
    from amqpd.channel.channel import Channel


def close(channel: Channel, _command: ChannelClose) -> None:
    release(channel)
    channel.closing = True
    channel.owner.forget(channel)
    channel.output.send(channel.number, ChannelCloseOk())


def release(channel: Channel) -> None:
    """Consumers go, what is unacked goes back to its place, an open transaction is forgotten."""
    broker = channel.session.broker
    channel.publisher.settle_counts()
    broker.channels.closed_count += 1
    broker.admission.close_channel(channel.session.user.name)
    broker.channels.ended.add(channel_counts(channel))
    channel.session.vhost.counts.ended_channels.add(channel_counts(channel))
    if channel.confirms is not None:
        broker.channels.ended_confirm_count += channel.confirms.sequence
    for consumer in list(channel.deliveries.consumers.values()):
        basic.remove_consumer(channel, consumer)
    channel.deliveries.stop_clocks()
    basic.end_replies(channel)
    channel.deliveries.window_turn = None
    channel_closed(channel.session, channel.number)
    if channel.confirms is not None:
        channel.confirms.ended = True
    committing = False
    if channel.transaction is not None:
        committing = channel.transaction.committing
        channel.transaction.refuse()
        channel.transaction.clear()
    basic.requeue_all(channel, channel.deliveries.take_all(committing))


def flow(channel: Channel, command: ChannelFlow) -> None:
    if not command.active:
        # rabbit: stopping the flow of deliveries is not implemented; prefetch is the means
        raise NotImplementedByBroker("active=false", commands.CHANNEL_FLOW)
    channel.output.send(channel.number, ChannelFlowOk(True))


def access_request(channel: Channel, _command: commands.AccessRequest) -> None:
    # rabbit: tickets are long gone; old clients get one all the same
    channel.output.send(channel.number, AccessRequestOk(1))


HANDLERS: dict[int, Any] = {
    commands.CHANNEL_CLOSE: close,
    commands.CHANNEL_FLOW: flow,
    commands.ACCESS_REQUEST: access_request,
}
