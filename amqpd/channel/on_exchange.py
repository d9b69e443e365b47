"""exchange.*: declare, delete, bind, unbind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amqpd.broker.access import check, check_topic_keys
from amqpd.broker.vhost import bindings, exchanges
from amqpd.broker.vhost.declaration import ExchangeDeclaration
from amqpd.channel.replies import NOT_DELETED, Answer
from amqpd.channel.naming import clean
from amqpd.channel.selectors import wait_for_share
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
    vhost.check_not_default(name)
    if command.passive:
        vhost.settled_exchange(name)
        if not command.no_wait:
            channel.output.send(channel.number, ExchangeDeclareOk())
        return
    check(session, "configure", "exchange", name)
    alternate = command.arguments.get("alternate-exchange")
    if isinstance(alternate, str):
        # rabbit: whoever names an alternate must be able to read here and to write there
        check(session, "read", "exchange", name)
        check(session, "write", "exchange", alternate)
    flags = (command.durable, command.auto_delete, command.internal)
    answer = Answer(channel, command)
    exchanges.declare(vhost, ExchangeDeclaration(name, command.type, *flags, dict(command.arguments)), answer.done)
    answer.reply(b"" if command.no_wait else commands.frame(channel.number, ExchangeDeclareOk()))


def delete(channel: Channel, command: ExchangeDelete) -> None:
    session = channel.session
    vhost = session.vhost
    name = clean(command.exchange)
    vhost.check_not_default(name)
    check(session, "configure", "exchange", name)
    exchange = vhost.find_exchange(name)
    answer = Answer(channel, command, NOT_DELETED)
    if exchange is None:
        # rabbit: deleting what is not there succeeds
        answer.done(None)
    else:
        exchanges.delete(vhost, exchange, command.if_unused, answer.done)
    answer.reply(b"" if command.no_wait else commands.frame(channel.number, ExchangeDeleteOk()))


def bind(channel: Channel, command: ExchangeBind) -> None:
    if command.arguments and wait_for_share(channel, command, command.arguments):
        return
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
    answer = Answer(channel, command)
    bindings.bind(vhost, source, destination, command.routing_key, dict(command.arguments), answer.done)
    answer.reply(b"" if command.no_wait else commands.frame(channel.number, ExchangeBindOk()))


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
    answer = Answer(channel, command)
    if source is None or destination is None:
        # rabbit: unbinding what is not there succeeds
        answer.done(None)
    else:
        check_topic_keys(session, source, (command.routing_key,), "read")
        bindings.unbind(vhost, source, destination, command.routing_key, dict(command.arguments), answer.done)
    answer.reply(b"" if command.no_wait else commands.frame(channel.number, ExchangeUnbindOk()))


HANDLERS: dict[int, Any] = {
    commands.EXCHANGE_DECLARE: declare,
    commands.EXCHANGE_DELETE: delete,
    commands.EXCHANGE_BIND: bind,
    commands.EXCHANGE_UNBIND: unbind,
}
