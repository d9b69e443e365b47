"""Handlers of all methods except basic.*, and the dispatch of a method to its handler.

A handler gets its channel and the decoded command. It raises errors and never sends them.

A transaction checks publishes and settlements when they arrive, and keeps them. tx.commit applies the
publishes, then the settlements, and is answered when all of it is synced. After a crash before the answer, each
queue has all of the transaction's publishes or none. Across queues there is one promise: a settlement is on the
disk only if the persistent publishes are. Therefore they are synced first, and tx_commit.py runs each commit
that has both.

If a log has failed before the commit, nothing is committed. If a log fails during the commit, or a queue
refuses (x-overflow=reject-publish), other queues keep their messages and nothing is settled. In each case the
channel is closed with 406, and its unacked entries return to their queues.
"""

from __future__ import annotations

import logging
from contextvars import Token
from typing import TYPE_CHECKING, Any

from amqpd.broker.consume import reject_on_stream
from amqpd.broker.consumer import LogNotOpen
from amqpd.broker.events import ACTOR, ORIGIN, EventOrigin
from amqpd.broker.queue.types import kind_of
from amqpd.broker.session import Session, check_permission, check_topic_keys
from amqpd.broker.vhost import declare
from amqpd.broker.vhost.declaration import ExchangeDeclaration, QueueDeclaration
from amqpd.broker.vhost.pending import DeclarationPending
from amqpd.channel import basic
from amqpd.channel.basic import apply_tx_ack
from amqpd.channel.channel import Channel, PublisherConfirms, Transaction, channel_counts
from amqpd.channel.consumer import REPLY_TO
from amqpd.channel.events import channel_closed, refused
from amqpd.channel.replies import (
    NOT_DELETED,
    DeferredReply,
    NotAhead,
    defer_for_selector_budget,
    normalize_name,
    queue_name,
    retry_when_committed,
)
from amqpd.channel.tx_commit import SMALL_COUNT, TransactionCommit, commit_failed, reply_when_safe, route_at_commit
from amqpd.errors import (
    AccessRefused,
    AmqpError,
    CommandInvalid,
    FrameError,
    NotFound,
    NotImplementedByBroker,
    PreconditionFailed,
    ResourceError,
)
from amqpd.protocol import methods
from amqpd.protocol.methods import (
    TX_COMMIT,
    AccessRequestOk,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ConfirmSelect,
    ConfirmSelectOk,
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
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
    TxCommit,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)

if TYPE_CHECKING:
    from amqpd.broker.consumer import Destination
    from amqpd.storage.queue_log import QueueLog


log = logging.getLogger(__name__)


def queue_declare(channel: Channel, command: QueueDeclare) -> None:
    session = channel.session
    vhost = session.vhost
    broker = session.broker
    name = normalize_name(command.queue)
    is_reply_to = name.startswith(REPLY_TO)
    if (command.passive or is_reply_to) and channel.unanswered:
        raise NotAhead
    if is_reply_to:
        _declare_reply_to(channel, name, command.no_wait)
        return
    if command.passive:
        # rabbit: an empty name means no queue here, not the one last declared
        queue = vhost.accessible_queue(name, session)
        queue.touch()
        channel.last_queue = name
        if not command.no_wait:
            channel.output.send(channel.number, QueueDeclareOk(name, queue.ready_count, len(queue.consumers)))
        return
    arguments = dict(command.arguments)
    if not name:
        asked = QueueDeclaration(name, command.durable and not command.exclusive, False, command.auto_delete, arguments)
        kind = kind_of(asked.with_default_type(vhost.default_queue_type).arguments)
        if kind.durable_only:  # rabbit: the first of all checks
            raise PreconditionFailed(f"Cannot declare a server-named queue for type {kind.module}")
        name = vhost.server_name()
    check_permission(session, "configure", "queue", name)
    if arguments and vhost.find_queue(name) is None:
        _check_named_by_arguments(channel, name, arguments)
    asked = QueueDeclaration(name, command.durable, command.exclusive, command.auto_delete, arguments, session)
    answer = DeferredReply(channel, command)
    new = declare.declare_queue(vhost, asked, answer.done)
    broker.catalogue.queue_declared_count += 1
    channel.last_queue = name
    ok = QueueDeclareOk(name, 0, 0)
    if not new:
        found = vhost.queues[name]
        found.touch()
        ok = QueueDeclareOk(name, found.ready_count, len(found.consumers))
    answer.reply(b"" if command.no_wait else methods.frame(channel.number, ok))


def _check_named_by_arguments(channel: Channel, name: str, arguments: dict[str, object]) -> None:
    """Check the permissions for names in arguments of a new queue.

    rabbit: a dead-letter exchange needs read on the queue and write on the exchange. A Kafka topic needs configure on
    its name, as if the queue had this name.
    """
    session = channel.session
    target = arguments.get("x-dead-letter-exchange")
    if isinstance(target, str):
        check_permission(session, "read", "queue", name)
        check_permission(session, "write", "exchange", target)
    topic = arguments.get("x-kafka-topic")
    if isinstance(topic, str) and session.vhost.catalogue.own_topics is None:
        check_permission(session, "configure", "queue", topic)


def _declare_reply_to(channel: Channel, name: str, no_wait: bool) -> None:
    """Handle a declare of direct reply-to.

    rabbit: whether passive or not, the plain name always exists, a key while its consumer does.
    """
    session = channel.session
    if name != REPLY_TO and name not in session.vhost.reply_consumers:
        raise NotFound(f"no queue '{name}' in vhost '{session.vhost.name}'")
    if not no_wait:
        channel.output.write(methods.frame(channel.number, QueueDeclareOk(name, 0, 1)))


def queue_bind(channel: Channel, command: QueueBind) -> None:
    if command.arguments and defer_for_selector_budget(channel, command, command.arguments):
        return
    session = channel.session
    vhost = session.vhost
    name, exchange_name, key = _binding_names(channel, command)
    exchange = vhost.exchange_to_bind(exchange_name)  # rabbit: before the queue, if both are missing
    queue = vhost.queue_to_bind(name, session)
    check_topic_keys(session, exchange, (key,), "read")
    answer = DeferredReply(channel, command)
    declare.bind(vhost, exchange, queue, key, dict(command.arguments), answer.done)
    answer.reply(b"" if command.no_wait else methods.frame(channel.number, QueueBindOk()))


def queue_unbind(channel: Channel, command: QueueUnbind) -> None:
    session = channel.session
    vhost = session.vhost
    name, exchange_name, key = _binding_names(channel, command)
    queue = vhost.find_queue(name)
    exchange = vhost.find_exchange(exchange_name)
    answer = DeferredReply(channel, command)
    if queue is not None:
        vhost.check_exclusive(queue, session)
    if queue is None or exchange is None:
        # rabbit: unbinding a missing binding succeeds
        answer.done(None)
    else:
        check_topic_keys(session, exchange, (key,), "read")
        declare.unbind(vhost, exchange, queue, key, dict(command.arguments), answer.done)
    answer.reply(methods.frame(channel.number, QueueUnbindOk()))


def _binding_names(channel: Channel, command: QueueBind | QueueUnbind) -> tuple[str, str, str]:
    """Return queue, exchange and routing key of a binding that this user may change.

    Raises:
        AccessRefused: a permission is missing, or the exchange is the default one.
        NotFound: the queue name is empty and the channel has declared no queue.
    """
    session = channel.session
    name = queue_name(channel, command.queue)
    # spec: 1.7.2.3 without queue name and key, both are the queue declared last
    key = name if not command.queue and not command.routing_key else command.routing_key
    exchange_name = normalize_name(command.exchange)
    session.vhost.check_not_default(exchange_name)
    check_permission(session, "write", "queue", name)
    check_permission(session, "read", "exchange", exchange_name)
    return name, exchange_name, key


def queue_purge(channel: Channel, command: QueuePurge) -> None:
    session = channel.session
    name = queue_name(channel, command.queue)
    check_permission(session, "read", "queue", name)
    queue = session.vhost.accessible_queue(name, session)
    session.vhost.check_not_system(name)
    reject_on_stream(queue, "queue.purge", methods.QUEUE_PURGE)
    count = queue.purge()
    about = {"vhost": session.vhost.name, "name": name, "messages": count}
    session.broker.catalogue.events.record("queue.purged", about)
    session.turn.schedule()
    if not command.no_wait:
        channel.output.send(channel.number, QueuePurgeOk(count))


def queue_delete(channel: Channel, command: QueueDelete) -> None:
    session = channel.session
    vhost = session.vhost
    name = queue_name(channel, command.queue)
    check_permission(session, "configure", "queue", name)
    queue = vhost.find_queue(name)
    if queue is None:
        # rabbit: deleting a missing queue succeeds
        if not command.no_wait:
            channel.output.send(channel.number, QueueDeleteOk(0))
        return
    vhost.check_exclusive(queue, session)
    try:
        queue.prepare()
    except ResourceError as error:
        if command.if_empty:
            raise
        log.warning("%s; the queue is deleted nevertheless", error.reply_text)
    declare.check_queue_deletable(vhost, queue, command.if_unused, command.if_empty)
    answer = DeferredReply(channel, command, NOT_DELETED)
    tags: list[str] = []
    channel.deliveries.self_cancelled_tags = tags
    try:
        count = declare.delete_queue(vhost, queue, answer.done)
    finally:
        channel.deliveries.self_cancelled_tags = None
    reply = b"" if command.no_wait else methods.frame(channel.number, QueueDeleteOk(count))
    # rabbit: a client that deletes a queue that it consumes gets delete-ok before basic.cancel
    reply += b"".join([channel.deliveries.cancel_frame(tag) for tag in tags])
    answer.reply(reply)


def channel_close(channel: Channel, _command: ChannelClose) -> None:
    release_channel(channel)
    channel.closing = True
    channel.owner.free_channel(channel)
    channel.output.send(channel.number, ChannelCloseOk())


def release_channel(channel: Channel) -> None:
    """Release what a closing channel holds: its consumers, unacked entries and open transaction."""
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
    basic.remove_reply_consumer(channel)
    channel.deliveries.window_turn = None
    channel_closed(channel.session, channel.number)
    if channel.confirms is not None:
        channel.confirms.ended = True
    committing = False
    if channel.transaction is not None:
        committing = channel.transaction.committing
        channel.transaction.cancel_reservations()
        channel.transaction.clear()
    channel.deliveries.requeue(channel.deliveries.take_all_unacked(committing), True)


def channel_flow(channel: Channel, command: ChannelFlow) -> None:
    if not command.active:
        # rabbit: stopping deliveries is not implemented; clients use prefetch
        raise NotImplementedByBroker("active=false", methods.CHANNEL_FLOW)
    channel.output.send(channel.number, ChannelFlowOk(True))


def access_request(channel: Channel, _command: methods.AccessRequest) -> None:
    # rabbit: access tickets have no meaning; old clients still get one
    channel.output.send(channel.number, AccessRequestOk(1))


def confirm_select(channel: Channel, command: ConfirmSelect) -> None:
    if channel.transaction is not None:
        raise PreconditionFailed("cannot switch from tx to confirm mode")
    if channel.confirms is None:
        channel.confirms = PublisherConfirms(channel.session.turn, channel.output, channel.number)
    if not command.no_wait:
        channel.output.send(channel.number, ConfirmSelectOk())


def exchange_declare(channel: Channel, command: ExchangeDeclare) -> None:
    session = channel.session
    vhost = session.vhost
    name = normalize_name(command.exchange)
    vhost.check_not_default(name)
    if command.passive:
        if channel.unanswered:
            raise NotAhead
        vhost.exchange_or_wait(name)
        if not command.no_wait:
            channel.output.send(channel.number, ExchangeDeclareOk())
        return
    check_permission(session, "configure", "exchange", name)
    alternate = command.arguments.get("alternate-exchange")
    if isinstance(alternate, str) and vhost.find_exchange(name) is None:
        # rabbit: a new exchange needs read on itself and write on its alternate
        check_permission(session, "read", "exchange", name)
        check_permission(session, "write", "exchange", alternate)
    flags = (command.durable, command.auto_delete, command.internal)
    answer = DeferredReply(channel, command)
    declare.declare_exchange(
        vhost, ExchangeDeclaration(name, command.type, *flags, dict(command.arguments)), answer.done
    )
    answer.reply(b"" if command.no_wait else methods.frame(channel.number, ExchangeDeclareOk()))


def exchange_delete(channel: Channel, command: ExchangeDelete) -> None:
    session = channel.session
    vhost = session.vhost
    name = normalize_name(command.exchange)
    declare.check_deletable(vhost, name)
    check_permission(session, "configure", "exchange", name)
    exchange = vhost.find_exchange(name)
    answer = DeferredReply(channel, command, NOT_DELETED)
    if exchange is None:
        # rabbit: deleting a missing exchange succeeds
        answer.done(None)
    else:
        declare.delete_exchange(vhost, exchange, command.if_unused, answer.done)
    answer.reply(b"" if command.no_wait else methods.frame(channel.number, ExchangeDeleteOk()))


def exchange_bind(channel: Channel, command: ExchangeBind) -> None:
    if command.arguments and defer_for_selector_budget(channel, command, command.arguments):
        return
    session = channel.session
    vhost = session.vhost
    destination_name, source_name = _exchange_names(session, command)
    source = vhost.exchange_to_bind(source_name)
    destination = vhost.exchange_to_bind(destination_name)
    check_topic_keys(session, source, (command.routing_key,), "read")
    answer = DeferredReply(channel, command)
    declare.bind(vhost, source, destination, command.routing_key, dict(command.arguments), answer.done)
    answer.reply(b"" if command.no_wait else methods.frame(channel.number, ExchangeBindOk()))


def _exchange_names(session: Session, command: ExchangeBind | ExchangeUnbind) -> tuple[str, str]:
    """Return destination and source of a binding that this user may change. Raises: AccessRefused."""
    destination, source = normalize_name(command.destination), normalize_name(command.source)
    session.vhost.check_not_default(destination)
    session.vhost.check_not_default(source)
    check_permission(session, "write", "exchange", destination)
    check_permission(session, "read", "exchange", source)
    return destination, source


def exchange_unbind(channel: Channel, command: ExchangeUnbind) -> None:
    session = channel.session
    vhost = session.vhost
    destination_name, source_name = _exchange_names(session, command)
    source = vhost.find_exchange(source_name)
    destination = vhost.find_exchange(destination_name)
    answer = DeferredReply(channel, command)
    if source is None or destination is None:
        # rabbit: unbinding a missing binding succeeds
        answer.done(None)
    else:
        check_topic_keys(session, source, (command.routing_key,), "read")
        declare.unbind(vhost, source, destination, command.routing_key, dict(command.arguments), answer.done)
    answer.reply(b"" if command.no_wait else methods.frame(channel.number, ExchangeUnbindOk()))


def tx_select(channel: Channel, _command: TxSelect) -> None:
    if channel.confirms is not None:
        raise PreconditionFailed("cannot switch from confirm to tx mode")
    if channel.transaction is None:
        channel.transaction = Transaction()
        channel.deliveries.begin_transactions()
    channel.output.send(channel.number, TxSelectOk())


def tx_commit(channel: Channel, _command: TxCommit) -> None:
    transaction = _open_transaction(channel)
    kept, settlements = transaction.publishes, transaction.acks
    count = len(settlements) + len(kept)
    if count > SMALL_COUNT or sum(len(route.destinations) for route, _ in kept) > SMALL_COUNT:
        transaction.clear()
        TransactionCommit(channel, transaction, kept, settlements).start()
        return
    publishes = [(route_at_commit(channel, route), message) for route, message in kept]
    synced_logs: dict[Destination, QueueLog] = {}  # those with a log that gets a persistent message
    publish_logs: set[QueueLog] = set()
    for route, message in publishes:
        for destination in route.destinations:
            log = destination.log()
            if log is not None:
                publish_logs.add(log)
                if message.persistent or destination.keeps_all:
                    synced_logs[destination] = log
    settled_logs = {log for _, entry, _ in settlements if (log := entry.queue.log()) is not None}
    for log in publish_logs | settled_logs:
        if log.failed and not log.deleted:
            transaction.cancel_reservations()
            raise PreconditionFailed(f"the log of queue '{log.name}' has failed, nothing is committed", TX_COMMIT)
    transaction.clear()
    accepted = True
    for destination in synced_logs:
        destination.begin_transaction()
    try:
        for route, message in publishes:
            accepted = channel.publisher.offer(route, message) and accepted
            channel.on_routed(route, message)
    finally:
        for destination in synced_logs:
            destination.end_transaction()
    if not accepted:
        raise commit_failed()
    if synced_logs and settlements:
        TransactionCommit(channel, transaction, [], settlements).start_at_sync(synced_logs.values())
        return
    for tag, entry, action in settlements:
        entry.in_transaction = False
        channel.deliveries.unacked.take_one(tag)
        apply_tx_ack(channel, entry, action)
    channel.busy = True
    reply_when_safe(channel, synced_logs.values(), settled_logs)


def tx_rollback(channel: Channel, _command: TxRollback) -> None:
    """Drop the publishes; settled entries are unacked again."""
    transaction = _open_transaction(channel)
    for _, entry, _ in transaction.acks:
        entry.in_transaction = False
    transaction.cancel_reservations()
    transaction.clear()
    channel.output.send(channel.number, TxRollbackOk())


def _open_transaction(channel: Channel) -> Transaction:
    if channel.transaction is None:
        raise PreconditionFailed("channel is not transactional")
    return channel.transaction


HANDLERS: dict[int, Any] = {
    methods.CHANNEL_CLOSE: channel_close,
    methods.CHANNEL_FLOW: channel_flow,
    methods.ACCESS_REQUEST: access_request,
    methods.EXCHANGE_DECLARE: exchange_declare,
    methods.EXCHANGE_DELETE: exchange_delete,
    methods.EXCHANGE_BIND: exchange_bind,
    methods.EXCHANGE_UNBIND: exchange_unbind,
    methods.QUEUE_DECLARE: queue_declare,
    methods.QUEUE_BIND: queue_bind,
    methods.QUEUE_UNBIND: queue_unbind,
    methods.QUEUE_PURGE: queue_purge,
    methods.QUEUE_DELETE: queue_delete,
    **basic.HANDLERS,
    methods.CONFIRM_SELECT: confirm_select,
    methods.TX_SELECT: tx_select,
    methods.TX_COMMIT: tx_commit,
    methods.TX_ROLLBACK: tx_rollback,
}


def dispatch(channel: Channel, method: int, payload: bytes, ahead: bool = False) -> bool:
    """Check, decode and handle a method on an open channel.

    A command that needs a name with a pending commit, or a log that is not open, is retried later.

    Args:
        ahead: earlier commands of the channel have no reply yet. A command that cannot succeed now changes nothing and
            raises none of the errors below.

    Returns:
        False if the caller must dispatch the command again when all earlier commands have their replies.

    Raises:
        CommandInvalid: a client must not send this method.
        NotImplementedByBroker: AMQP 0-9-1 has no such method.
        FrameError: the method cannot be decoded.
        AmqpError: any error of the handler, with the method set.
    """
    handler = HANDLERS.get(method)
    if handler is None:
        check_known(method)
        # A method that only servers send.
        raise CommandInvalid("unimplemented method", method)
    try:
        command = methods.decode(payload)
    except methods.MethodSyntaxError as error:
        if ahead:
            return _wait_for_replies(channel)
        if "UTF-8" in error.reason:
            # rabbit: invalid UTF-8 in a name has a text of its own and no method
            raise FrameError("Malformed UTF-8 in shortstr") from None
        raise FrameError(error.text, method) from None
    session = channel.session
    tokens: tuple[Token[str], Token[EventOrigin | None]] | None = None
    if session.broker.catalogue.events.has_listeners:
        tokens = ACTOR.set(session.user.name), ORIGIN.set(session)
    try:
        handler(channel, command)
    except NotAhead:
        return _wait_for_replies(channel)
    except DeclarationPending as name:
        if ahead:
            return _wait_for_replies(channel)
        retry_when_committed(channel, payload, name)
    except LogNotOpen as logs:  # a handler looks its queues up before it changes anything
        if ahead:
            return _wait_for_replies(channel)
        channel.owner.retry_when_open(channel, logs.destinations, payload)
    except AmqpError as error:
        if ahead:
            return _wait_for_replies(channel)
        if not error.method:
            error.method = method
        if isinstance(error, AccessRefused):
            refused(session, error)
        raise
    finally:
        if tokens is not None:
            ACTOR.reset(tokens[0])
            ORIGIN.reset(tokens[1])
    return True


def _wait_for_replies(channel: Channel) -> bool:
    channel.ahead_max = 0
    return False


def check_known(method: int) -> None:
    """Raise NotImplementedByBroker for a method id that AMQP 0-9-1 does not have."""
    name = methods.method_name(method)
    if name[0].isdigit():
        raise NotImplementedByBroker(f"unknown method {name}", method)
