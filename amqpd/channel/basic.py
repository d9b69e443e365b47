"""Handlers of the basic class: qos, consume, cancel, get, ack, reject, nack, recover. channel.py has the hot ones."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from amqpd.broker import consume
from amqpd.broker.consumer import NO_ARGUMENTS, QueueBase, QueueEntry
from amqpd.broker.queue.consumer_arguments import consumer_arguments
from amqpd.broker.queue.queue import Queue, for_consumer
from amqpd.broker.queue.types import KINDS
from amqpd.channel.consumer import REPLY_TO, ReplyConsumer
from amqpd.channel.events import consumer_created, consumer_deleted
from amqpd.channel.replies import defer_for_selector_budget, queue_name
from amqpd.errors import NotAllowed, NotImplementedByBroker, PreconditionFailed
from amqpd.protocol import methods
from amqpd.protocol.field_table import encode_table
from amqpd.protocol.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicQos,
    BasicQosOk,
    BasicRecover,
    BasicRecoverAsync,
    BasicRecoverOk,
    BasicReject,
    encode,
)

if TYPE_CHECKING:
    from amqpd.channel.channel import Channel
    from amqpd.channel.consumer import ChannelConsumer

ACK, REQUEUE, DISCARD, GIVE_BACK = 0, 1, 2, 3


def basic_qos(channel: Channel, command: BasicQos) -> None:
    if command.prefetch_size:
        raise NotImplementedByBroker(f"prefetch_size!=0 ({command.prefetch_size})", methods.BASIC_QOS)
    deliveries = channel.deliveries
    if deliveries.window_size > 0 and not deliveries.has_consumed and not command.global_:
        deliveries.channel_wide_qos = False  # nameko: one basic.qos for each consumer. Celery sends one for all
    # rabbit: only basic.consume checks whether the type of the queue has a window
    # py-amqp expects the specification's meaning from a broker that is not called RabbitMQ
    if command.global_ or deliveries.channel_wide_qos:
        deliveries.window_size = command.prefetch_count
    else:
        deliveries.prefetch_count = command.prefetch_count
        # rabbit: also removes the channel's window
        deliveries.window_size = 0
    channel.output.send(channel.number, BasicQosOk())
    deliveries.activate_all()


def basic_consume(channel: Channel, command: BasicConsume) -> None:
    session = channel.session
    vhost = session.vhost
    if command.queue == REPLY_TO:
        _consume_replies(channel, command)
        return
    if command.arguments and defer_for_selector_budget(channel, command, command.arguments):
        return
    name = queue_name(channel, command.queue)
    tag = _new_tag(channel, command.consumer_tag)  # rabbit: before all other checks
    queue = consume.readable_queue(session, name)
    arguments = consumer_arguments(
        name, vhost.name, queue.kind, command.arguments, encode_table(command.arguments) if command.arguments else b""
    )
    deliveries = channel.deliveries
    is_channel_wide = deliveries.channel_wide_qos  # then basic.qos of this client has set the window
    prefetch_count = deliveries.window_size if is_channel_wide else deliveries.prefetch_count
    consume.check_stream_consumer(queue, prefetch_count, command.no_ack, arguments, methods.BASIC_CONSUME)
    if deliveries.window_size > 0 and not is_channel_wide and not KINDS[queue.kind].global_qos:
        raise NotImplementedByBroker(
            f"queue '{name}' in vhost '{vhost.name}' does not support global qos", methods.BASIC_CONSUME
        )
    consume.check_exclusive(queue, command.exclusive)
    consume.check_filter(queue, arguments)
    consume.check_groups(queue, command.no_ack, arguments)
    consumer = channel.deliveries.make_consumer(queue, tag, command.no_ack, command.exclusive, arguments)
    channel.deliveries.consumers[tag] = consumer
    if not command.no_wait:
        channel.output.send(channel.number, BasicConsumeOk(tag))
    consumer.set_tap(vhost.tap)
    consumer.apply_timeout(queue.rules.consumer_timeout_ms)
    consumer_created(session, channel.number, consumer, consumer.prefetch_count)
    consume.start_consumer(queue, consumer)


def _new_tag(channel: Channel, tag: str) -> str:
    if not tag:
        return f"amq.ctag-{secrets.token_urlsafe(16)}"
    reply = channel.reply_consumer
    if tag in channel.deliveries.consumers or (reply is not None and reply.tag == tag):
        raise NotAllowed(f"attempt to reuse consumer tag '{tag}'", methods.BASIC_CONSUME)
    return tag


def _consume_replies(channel: Channel, command: BasicConsume) -> None:
    session = channel.session
    tag = _new_tag(channel, command.consumer_tag)
    if channel.reply_consumer is not None:
        raise PreconditionFailed("reply consumer already set")
    if not command.no_ack:
        raise PreconditionFailed("reply consumer cannot acknowledge")
    # A consumer needs a queue; this empty one is in no vhost.
    empty_queue = QueueBase(REPLY_TO, session.vhost.name)
    reply = ReplyConsumer(channel.deliveries.make_consumer(empty_queue, tag, True, False, NO_ARGUMENTS))
    channel.reply_consumer = reply
    channel.publisher.reply_key = reply.key.encode()
    session.vhost.reply_consumers[reply.key] = reply
    if not command.no_wait:
        channel.output.send(channel.number, BasicConsumeOk(tag))


def basic_cancel(channel: Channel, command: BasicCancel) -> None:
    consumer = channel.deliveries.consumers.get(command.consumer_tag)
    if consumer is not None:
        if consumer.queue.pump_wanted:
            # rabbit: the consumer still gets the messages that preceding acks made room for
            consumer.queue.dispatch()
        remove_consumer(channel, consumer)
    elif channel.reply_consumer is not None and channel.reply_consumer.tag == command.consumer_tag:
        remove_reply_consumer(channel)
    # rabbit: an unknown tag is no error
    if not command.no_wait:
        channel.output.send(channel.number, BasicCancelOk(command.consumer_tag))


def remove_reply_consumer(channel: Channel) -> None:
    """Remove the channel's direct reply-to consumer, if there is one."""
    reply = channel.reply_consumer
    if reply is not None:
        channel.session.vhost.reply_consumers.pop(reply.key, None)
        channel.reply_consumer = None
        channel.publisher.reply_key = b""
        reply.dispose()


def remove_consumer(channel: Channel, consumer: ChannelConsumer) -> None:
    """Cancel a consumer at the client's request.

    The channel keeps its unacked deliveries; an auto-delete queue may be deleted.
    """
    channel.deliveries.consumers.pop(consumer.tag, None)
    queue = consumer.queue
    assert isinstance(queue, Queue)  # a direct reply-to consumer is not in `consumers`
    consume.stop_consumer(channel.session, queue, consumer)
    channel.deliveries.on_consumer_ended(consumer)
    consumer_deleted(channel.session, channel.number, consumer)


def basic_get(channel: Channel, command: BasicGet) -> None:
    session = channel.session
    name = queue_name(channel, command.queue)
    queue = consume.readable_queue(session, name)
    consume.reject_on_stream(queue, "basic.get", methods.BASIC_GET)
    queue.touch()
    entry = queue.get(command.no_ack)
    if entry is None:
        if queue.must_wait():
            _get_later(channel, command, queue)
        else:
            queue.get_empty_count += 1
            channel.deliveries.delivery_stats().count_get_empty(queue)
            channel.output.send(channel.number, BasicGetEmpty())
        return
    message = for_consumer(entry, queue.rules.counts_shown)
    assert message is not None  # queue.get() loaded it
    tag = channel.deliveries.next_tag
    channel.deliveries.next_tag = tag + 1
    channel.deliveries.delivery_stats().count_get(queue, command.no_ack, entry.redelivered)
    if command.no_ack:
        channel.deliveries.unacked.add_no_ack()
    else:
        channel.deliveries.unacked.add(tag, entry)
        channel.deliveries.on_get(queue, queue.rules.consumer_timeout_ms)
    tap = session.vhost.tap
    if tap is not None:
        tap.delivered(message, name, entry.redelivered, session.name, session.user.name, channel.number)
    envelope = message.envelope
    ok = BasicGetOk(tag, entry.redelivered, envelope.exchange, envelope.routing_key, queue.ready_count)
    channel.output.send(channel.number, ok)
    channel.output.write_content(channel.number, message)
    session.turn.schedule()


def _get_later(channel: Channel, command: BasicGet, queue: Queue) -> None:
    """Repeat basic.get when the disk has delivered the message.

    The channel is busy meanwhile; other channels continue.
    """
    channel.busy = True
    again = partial(channel.owner.retry_command, channel, encode(command))
    # In a loop turn of its own: the caller of these callbacks is in the middle of a change.
    queue.when_ready(partial(channel.owner.call_soon, again))


def basic_ack(channel: Channel, command: BasicAck) -> None:
    """Handle an ack that came while the content of another channel was incomplete. The fast path takes no such acks."""
    channel.ack(_signed_tag(command.delivery_tag), command.multiple)
    channel.session.turn.schedule()


def basic_reject(channel: Channel, command: BasicReject) -> None:
    _reject_or_nack(channel, command.delivery_tag, False, command.requeue, methods.BASIC_REJECT)


def basic_nack(channel: Channel, command: BasicNack) -> None:
    _reject_or_nack(channel, command.delivery_tag, command.multiple, command.requeue, methods.BASIC_NACK)


def _reject_or_nack(channel: Channel, tag: int, multiple: bool, requeue: bool, method: int) -> None:
    unacked = channel.deliveries.unacked
    tag = _signed_tag(tag)
    for _, entry in unacked.entries_up_to(tag) if multiple else unacked.entries_at(tag):
        consume.reject_on_stream(entry.queue, "basic.nack and basic.reject", method)
    # rabbit: from 4.3 on, nack returns a message, and reject means that the consumer failed to process it
    failed = method == methods.BASIC_REJECT
    if channel.transaction is not None:
        back = REQUEUE if failed else GIVE_BACK
        channel.collect(channel.transaction, tag, multiple, back if requeue else DISCARD)
        return
    entries = unacked.take(tag, multiple)
    if requeue:
        channel.deliveries.requeue(entries, failed)
    else:
        reject_all(channel, entries)


def _signed_tag(tag: int) -> int:
    """Return the tag as a signed 64-bit number. A tag of 2^63 or more is then negative, and unknown."""
    return tag if tag < 2**63 else tag - 2**64


def apply_tx_ack(channel: Channel, entry: QueueEntry, action: int) -> None:
    """Settle an entry at the commit. Its tag is removed from the unacked list already."""
    if action == ACK:
        channel.deliveries.ack_entry(entry)
    elif action == DISCARD:
        reject_all(channel, [entry])
    else:
        channel.deliveries.requeue([entry], action == REQUEUE)


def reject_all(channel: Channel, entries: Sequence[QueueEntry]) -> None:
    for entry in entries:
        channel.deliveries.return_credit(entry)
        entry.detach()  # a dead letter can keep the entry for long
        entry.queue.reject(entry)
    channel.session.turn.schedule()


def basic_recover(channel: Channel, command: BasicRecover) -> None:
    _recover(channel, command.requeue, methods.BASIC_RECOVER)
    channel.output.send(channel.number, BasicRecoverOk())


def basic_recover_async(channel: Channel, command: BasicRecoverAsync) -> None:
    _recover(channel, command.requeue, methods.BASIC_RECOVER_ASYNC)


def _recover(channel: Channel, requeue: bool, method: int) -> None:
    if not requeue:
        raise NotImplementedByBroker("requeue=false", method)
    for entry in channel.deliveries.unacked.entries():
        consume.reject_on_stream(entry.queue, "basic.recover", method)  # rabbit: 541
    channel.deliveries.requeue(channel.deliveries.unacked.take_outstanding(), False)


HANDLERS: dict[int, Any] = {
    methods.BASIC_QOS: basic_qos,
    methods.BASIC_CONSUME: basic_consume,
    methods.BASIC_CANCEL: basic_cancel,
    methods.BASIC_GET: basic_get,
    methods.BASIC_ACK: basic_ack,
    methods.BASIC_REJECT: basic_reject,
    methods.BASIC_NACK: basic_nack,
    methods.BASIC_RECOVER: basic_recover,
    methods.BASIC_RECOVER_ASYNC: basic_recover_async,
}
