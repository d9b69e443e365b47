"""A method on a channel to the handler of its class."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from amqpd.broker.catalogue.declared import OnItsWay
from amqpd.broker.destination import NotOpenYet
from amqpd.channel import on_basic, on_channel, on_confirm, on_exchange, on_queue, on_tx
from amqpd.channel.channel import Channel
from amqpd.channel.durable import wait_for
from amqpd.errors import AmqpError, ChannelError, CommandInvalid, FrameError, NotImplementedByBroker
from amqpd.protocol import commands

if TYPE_CHECKING:
    from amqpd.connection.connection import Connection

Handler = Callable[[Channel, commands.Command], None]

HANDLERS: dict[int, Handler] = {
    **on_channel.HANDLERS,
    **on_exchange.HANDLERS,
    **on_queue.HANDLERS,
    **on_basic.HANDLERS,
    **on_confirm.HANDLERS,
    **on_tx.HANDLERS,
}


def dispatch(
    connection: Connection, channel: Channel | None, number: int, method: int, payload: bytes
) -> None:
    """A method on a channel: legal here, decoded, handled by the module of its class."""
    if method == commands.CHANNEL_OPEN:
        on_channel.open_channel(connection, channel, number)
        return
    if channel is None:
        if method == commands.CHANNEL_CLOSE_OK:
            raise CommandInvalid("unimplemented method", method)
        _known(method)
        raise ChannelError("expected 'channel.open'", method)
    if channel.closing:
        if method == commands.CHANNEL_CLOSE_OK:
            connection.forget_channel(number)
            connection.assembler.take_channel(number)
        elif method == commands.CHANNEL_CLOSE:
            # Both closes have crossed: a client that sent its own still answers ours (spec: 1.5.2.5).
            connection.send(number, commands.ChannelCloseOk())
            channel.crossed = True
        return
    handler = HANDLERS.get(method)
    if handler is None:
        _known(method)
        # Known, but not for a client to send.
        raise CommandInvalid("unimplemented method", method)
    try:
        command = commands.decode(payload)
    except commands.MethodSyntaxError as error:
        if "UTF-8" in error.reason:
            # rabbit: a name that is not UTF-8 is told apart, and with no method
            raise FrameError("Malformed UTF-8 in shortstr") from None
        raise FrameError(error.text, method) from None
    try:
        handler(channel, command)
    except OnItsWay as name:
        wait_for(channel, payload, name)
    except NotOpenYet as logs:  # handlers look for their queue before they do anything
        connection.wait_for_logs(channel, logs.destinations, connection.deferred_method(payload))
    except AmqpError as error:
        if not error.method:
            error.method = method
        raise


def _known(method: int) -> None:
    """Raises: NotImplementedByBroker for ids that AMQP 0-9-1 does not have."""
    if commands.method_name(method)[0].isdigit():
        raise NotImplementedByBroker(f"unknown method {method >> 16}.{method & 0xFFFF}", method)
