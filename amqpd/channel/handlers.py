"""queue.*: declare, bind, unbind, purge, delete."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from amqpd.broker.access import check, check_topic_keys
from amqpd.broker.vhost import bindings, declare
from amqpd.broker.vhost.declaration import QueueDeclaration
from amqpd.broker.consume import refuse_of_streams
from amqpd.channel.replies import NOT_DELETED, Answer
from amqpd.channel.naming import clean, queue_name
from amqpd.channel.reply_to import REPLY_TO
from amqpd.channel.selectors import wait_for_share
from amqpd.errors import AccessRefused, NotFound, ResourceError
from amqpd.protocol import commands
from amqpd.protocol.commands import (
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
    QueueUnbind,
    QueueUnbindOk,
)

if TYPE_CHECKING:
    from amqpd.channel.channel import Channel

log = logging.getLogger(__name__)


def declare(channel: Channel, command: QueueDeclare) -> None:
    session = channel.session
    vhost = session.vhost
    broker = session.broker
    if command.passive:
        # rabbit: an empty name means no queue here, not the one last declared
        name = clean(command.queue)
        if name.startswith(REPLY_TO):
            _declare_reply_to(channel, name, command.no_wait)
            return
        queue = vhost.usable_queue(name, session)
        queue.used()
        channel.last_queue = name
        if not command.no_wait:
            channel.output.send(channel.number, QueueDeclareOk(name, queue.ready_count, len(queue.consumers)))
        return
    name = clean(command.queue)
    if name.startswith("amq.rabbitmq.reply-to"):
        raise AccessRefused(f"queue name '{name}' contains reserved prefix 'amq.*'")
    if not name:
        name = vhost.server_name()
    arguments = dict(command.arguments)
    check(session, "configure", "queue", name)
    _check_dead_letter(channel, name, arguments)
    asked = QueueDeclaration(name, command.durable, command.exclusive, command.auto_delete, arguments, session)
    answer = Answer(channel, command)
    new = declare.declare(vhost, asked, answer.done)
    broker.catalogue.queue_declared_count += 1
    channel.last_queue = name
    ok = QueueDeclareOk(name, 0, 0)
    if not new:
        found = vhost.queues[name]
        found.used()
        ok = QueueDeclareOk(name, found.ready_count, len(found.consumers))
    answer.reply(b"" if command.no_wait else commands.frame(channel.number, ok))


def _check_dead_letter(channel: Channel, name: str, arguments: dict[str, object]) -> None:
    """rabbit: whoever dead-letters must be able to read the queue and to write to the exchange."""
    target = arguments.get("x-dead-letter-exchange")
    if isinstance(target, str):
        session = channel.session
        check(session, "read", "queue", name)
        check(session, "write", "exchange", target)


def _declare_reply_to(channel: Channel, name: str, no_wait: bool) -> None:
    """rabbit: the plain name is always there, a full key while its consumer is."""
    session = channel.session
    if name != REPLY_TO and name not in session.vhost.reply_consumers:
        raise NotFound(f"no queue '{name}' in vhost '{session.vhost.name}'")
    if not no_wait:
        channel.output.write(commands.frame(channel.number, QueueDeclareOk(name, 0, 1)))


def bind(channel: Channel, command: QueueBind) -> None:
    if command.arguments and wait_for_share(channel, command, command.arguments):
        return
    session = channel.session
    vhost = session.vhost
    name, exchange_name, key = _ends(channel, command)
    queue = vhost.usable_queue(name, session)
    exchange = vhost.settled_exchange(exchange_name)
    check_topic_keys(session, exchange, (key,), "read")
    answer = Answer(channel, command)
    bindings.bind(vhost, exchange, queue, key, dict(command.arguments), answer.done)
    answer.reply(b"" if command.no_wait else commands.frame(channel.number, QueueBindOk()))


def unbind(channel: Channel, command: QueueUnbind) -> None:
    session = channel.session
    vhost = session.vhost
    name, exchange_name, key = _ends(channel, command)
    queue = vhost.find_queue(name)
    exchange = vhost.find_exchange(exchange_name)
    answer = Answer(channel, command)
    if queue is not None:
        vhost.check_exclusive(queue, session)
    if queue is None or exchange is None:
        # rabbit: unbinding what is not there succeeds
        answer.done(None)
    else:
        check_topic_keys(session, exchange, (key,), "read")
        bindings.unbind(vhost, exchange, queue, key, dict(command.arguments), answer.done)
    answer.reply(commands.frame(channel.number, QueueUnbindOk()))


def _ends(channel: Channel, command: QueueBind | QueueUnbind) -> tuple[str, str, str]:
    """Queue, exchange and routing key of a binding, which this user may make and take away. Raises: 403, 404."""
    session = channel.session
    name = queue_name(channel, command.queue)
    # spec: 1.7.2.3 no queue name and no key: both are the queue last declared
    key = name if not command.queue and not command.routing_key else command.routing_key
    exchange_name = clean(command.exchange)
    session.vhost.check_not_default(exchange_name)
    check(session, "write", "queue", name)
    check(session, "read", "exchange", exchange_name)
    return name, exchange_name, key


def purge(channel: Channel, command: QueuePurge) -> None:
    session = channel.session
    name = queue_name(channel, command.queue)
    check(session, "read", "queue", name)
    queue = session.vhost.usable_queue(name, session)
    session.vhost.check_not_own(name)
    refuse_of_streams(queue, "queue.purge", commands.QUEUE_PURGE)
    count = queue.purge()
    about = {"vhost": session.vhost.name, "name": name, "messages": count}
    session.broker.catalogue.events.record("queue.purged", about)
    session.turn.want()
    if not command.no_wait:
        channel.output.send(channel.number, QueuePurgeOk(count))


def delete(channel: Channel, command: QueueDelete) -> None:
    session = channel.session
    vhost = session.vhost
    name = queue_name(channel, command.queue)
    check(session, "configure", "queue", name)
    queue = vhost.find_queue(name)
    if queue is None:
        # rabbit: deleting what is not there succeeds
        if not command.no_wait:
            channel.output.send(channel.number, QueueDeleteOk(0))
        return
    vhost.check_exclusive(queue, session)
    try:
        queue.prepare()
    except ResourceError as error:
        if command.if_empty:
            raise
        log.warning("%s; it is deleted all the same", error.reply_text)
    declare.check_deletable(vhost, queue, command.if_unused, command.if_empty)
    answer = Answer(channel, command, NOT_DELETED)
    tags: list[str] = []
    channel.deliveries.cancelled_here = tags
    try:
        count = declare.delete(vhost, queue, answer.done)
    finally:
        channel.deliveries.cancelled_here = None
    reply = b"" if command.no_wait else commands.frame(channel.number, QueueDeleteOk(count))
    # rabbit: a client that deletes what it consumes has its answer before the notification
    reply += b"".join([channel.deliveries.cancel_frame(tag) for tag in tags])
    answer.reply(reply)


HANDLERS: dict[int, Any] = {
    commands.QUEUE_DECLARE: declare,
    commands.QUEUE_BIND: bind,
    commands.QUEUE_UNBIND: unbind,
    commands.QUEUE_PURGE: purge,
    commands.QUEUE_DELETE: delete,
}
