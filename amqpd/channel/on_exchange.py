"""exchange.*: declare, delete, bind, unbind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amqpd.broker.catalogue.declared import Coming
from amqpd.channel.access import check, check_topic_keys
from amqpd.channel.durable import reply_made, reply_removed
from amqpd.channel.naming import clean
from amqpd.protocol import commands
from amqpd.protocol.commands import (
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
)

if TYPE_CHECKING:
    from amqpd.channel.channel import Channel


def declare(channel: Channel, command: ExchangeDeclare) -> None:
    session = channel.session
    vhost = session.vhost
    name = clean(command.exchange)
    reply = b"" if command.no_wait else commands.frame(channel.number, ExchangeDeclareOk())
    if command.passive:
        vhost.check_not_default(name)
        vhost.settled_exchange(name)
        reply_made(channel, command, None, reply)
        return
    vhost.check_not_default(name)
    check(session, "configure", "exchange", name)
    alternate = command.arguments.get("alternate-exchange")
    if isinstance(alternate, str):
        # rabbit: whoever names an alternate must be able to read here and to write there
        check(session, "read", "exchange", name)
        check(session, "write", "exchange", alternate)
    found = vhost.declare_exchange(
        name, command.type, command.durable, command.auto_delete, command.internal, dict(command.arguments)
    )
    reply_made(channel, command, found if isinstance(found, Coming) else None, reply)


def delete(channel: Channel, command: ExchangeDelete) -> None:
    session = channel.session
    vhost = session.vhost
    name = clean(command.exchange)
    vhost.check_not_default(name)
    check(session, "configure", "exchange", name)
    exchange = vhost.find_exchange(name)
    # rabbit: deleting what is not there succeeds
    changes = [] if exchange is None else vhost.delete_exchange(exchange, command.if_unused)
    reply_removed(channel, changes, b"" if command.no_wait else commands.frame(channel.number, ExchangeDeleteOk()))


def bind(channel: Channel, command: ExchangeBind) -> None:
    session = channel.session
    vhost = session.vhost
    destination_name, source_name = clean(command.destination), clean(command.source)
    vhost.check_not_default(destination_name)
    vhost.check_not_default(source_name)
    check(session, "write", "exchange", destination_name)
    check(session, "read", "exchange", source_name)
    source = vhost.settled_exchange(source_name)
    destination = vhost.settled_exchange(destination_name)
    check_topic_keys(session, source, (command.routing_key,), "read")
    coming = vhost.bind(source, destination, command.routing_key, dict(command.arguments))
    reply_made(channel, command, coming, b"" if command.no_wait else commands.frame(channel.number, ExchangeBindOk()))


def unbind(channel: Channel, command: ExchangeUnbind) -> None:
    session = channel.session
    vhost = session.vhost
    destination_name, source_name = clean(command.destination), clean(command.source)
    vhost.check_not_default(destination_name)
    vhost.check_not_default(source_name)
    check(session, "write", "exchange", destination_name)
    check(session, "read", "exchange", source_name)
    source = vhost.find_exchange(source_name)
    destination = vhost.find_exchange(destination_name)
    coming: Coming | None = None
    if source is not None and destination is not None:
        check_topic_keys(session, source, (command.routing_key,), "read")
        coming = vhost.unbind(source, destination, command.routing_key, dict(command.arguments))
    reply_made(channel, command, coming, b"" if command.no_wait else commands.frame(channel.number, ExchangeUnbindOk()))


HANDLERS: dict[int, Any] = {
    commands.EXCHANGE_DECLARE: declare,
    commands.EXCHANGE_DELETE: delete,
    commands.EXCHANGE_BIND: bind,
    commands.EXCHANGE_UNBIND: unbind,
}
