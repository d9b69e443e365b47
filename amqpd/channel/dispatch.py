"""A method on a channel to the handler of its class."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Token

from amqpd.broker.vhost.pending import OnItsWay
from amqpd.broker.destination import NotOpenYet
from amqpd.broker.events import ACTOR, ORIGIN, Origin
from amqpd.channel import basic, on_channel, on_confirm, on_exchange, handlers, on_tx
from amqpd.channel.channel import Channel
from amqpd.channel.replies import wait_for
from amqpd.channel.events import refused
from amqpd.errors import AccessRefused, AmqpError, CommandInvalid, FrameError, NotImplementedByBroker
from amqpd.protocol import commands

Handler = Callable[[Channel, commands.Command], None]

HANDLERS: dict[int, Handler] = {
    **on_channel.HANDLERS,
    **on_exchange.HANDLERS,
    **handlers.HANDLERS,
    **basic.HANDLERS,
    **on_confirm.HANDLERS,
    **on_tx.HANDLERS,
}


def dispatch(channel: Channel, method: int, payload: bytes) -> None:
    """A method on an open channel: legal here, decoded, handled by the module of its class."""
    handler = HANDLERS.get(method)
    if handler is None:
        check_known(method)
        # Known, but not for a client to send.
        raise CommandInvalid("unimplemented method", method)
    try:
        command = commands.decode(payload)
    except commands.MethodSyntaxError as error:
        if "UTF-8" in error.reason:
            # rabbit: a name that is not UTF-8 is told apart, and with no method
            raise FrameError("Malformed UTF-8 in shortstr") from None
        raise FrameError(error.text, method) from None
    session = channel.session
    tokens: tuple[Token[str], Token[Origin | None]] | None = None
    if session.broker.catalogue.events.heard:
        tokens = ACTOR.set(session.user.name), ORIGIN.set(session)
    try:
        handler(channel, command)
    except OnItsWay as name:
        wait_for(channel, payload, name)
    except NotOpenYet as logs:  # handlers look for their queue before they do anything
        channel.owner.wait_for_logs(channel, logs.destinations, payload)
    except AmqpError as error:
        if not error.method:
            error.method = method
        if isinstance(error, AccessRefused):
            refused(session, error)
        raise
    finally:
        if tokens is not None:
            ACTOR.reset(tokens[0])
            ORIGIN.reset(tokens[1])


def check_known(method: int) -> None:
    """Raises: NotImplementedByBroker for ids that AMQP 0-9-1 does not have."""
    if commands.method_name(method)[0].isdigit():
        raise NotImplementedByBroker(f"unknown method {method >> 16}.{method & 0xFFFF}", method)
