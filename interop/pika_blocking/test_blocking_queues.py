"""Queues with pika's BlockingConnection: kinds, equivalence, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
import pytest
from conversation import Received, Unique, channel_error, get, send
from pika.adapters.blocking_connection import BlockingChannel


def test_exclusive_queue_is_locked_and_deleted_with_its_connection(
    broker: Any, connection: pika.BlockingConnection, unique: Unique
) -> None:
    queue = unique("mine")
    owner = pika.BlockingConnection(broker.pika())
    owner.channel().queue_declare(queue, exclusive=True, durable=True)
    text = (
        f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{queue}' in vhost '/'. It could be "
        "originally declared on another connection or the exclusive property value does not match that of the original "
        "declaration."
    )
    for attempt in (
        lambda c: c.queue_declare(queue, exclusive=True, durable=True),
        lambda c: c.queue_declare(queue, passive=True),
        lambda c: c.basic_get(queue),
        lambda c: c.basic_consume(queue, Received(c)),
        lambda c: c.queue_purge(queue),
        lambda c: c.queue_delete(queue),
        lambda c: c.queue_bind(queue, "amq.direct", "k"),
    ):
        with channel_error(405, text):
            attempt(connection.channel())
    send(connection.channel(), queue, "anybody may publish")
    assert get(owner.channel(), queue)[2] == "anybody may publish"
    owner.close()
    with channel_error(404, f"NOT_FOUND - no queue '{queue}' in vhost '/'"):
        connection.channel().queue_declare(queue, passive=True)


def test_auto_delete_queue_is_deleted_with_its_last_consumer(
    connection: pika.BlockingConnection, unique: Unique
) -> None:
    queue = unique("auto")
    channel = connection.channel()
    channel.queue_declare(queue, auto_delete=True)
    send(channel, queue, "m")
    assert get(channel, queue)[2] == "m"  # a get does not count as a consumer
    one = channel.basic_consume(queue, Received(channel))
    two = channel.basic_consume(queue, Received(channel))
    channel.basic_cancel(one)
    assert channel.queue_declare(queue, passive=True).method.consumer_count == 1
    channel.basic_cancel(two)
    with channel_error(404, f"NOT_FOUND - no queue '{queue}' in vhost '/'"):
        channel.queue_declare(queue, passive=True)


def test_passive_declare_counts_messages_and_consumers(connection: pika.BlockingConnection, queue: str) -> None:
    channel = connection.channel()
    channel.confirm_delivery()  # RabbitMQ may answer before it has counted an unconfirmed publish
    send(channel, queue, "a", "b")
    answer = channel.queue_declare(queue, passive=True).method
    assert (answer.queue, answer.message_count, answer.consumer_count) == (queue, 2, 0)
    channel.basic_qos(prefetch_count=1)
    received = Received(channel)
    channel.basic_consume(queue, received)
    received.wait(1)
    answer = channel.queue_declare(queue, passive=True).method
    assert (answer.message_count, answer.consumer_count) == (1, 1)


def test_delete_if_unused_and_if_empty_refuse(connection: pika.BlockingConnection, unique: Unique) -> None:
    queue = unique("q")
    channel = connection.channel()
    channel.queue_declare(queue)
    send(channel, queue, "a", "b")
    with channel_error(406, f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' not empty"):
        channel.queue_delete(queue, if_empty=True)
    consumer = connection.channel()
    consumer.basic_qos(prefetch_count=1)
    received = Received(consumer)
    consumer.basic_consume(queue, received)
    received.wait(1)
    with channel_error(406, f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' in use"):
        connection.channel().queue_delete(queue, if_unused=True)
    assert connection.channel().queue_delete(queue).method.message_count == 1
    assert connection.channel().queue_delete(queue).method.message_count == 0  # deleting a missing queue is no error


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"durable": False},
            "inequivalent arg 'durable' for queue '{q}' in vhost '/': received 'false' but current is 'true'",
        ),
        (
            {"auto_delete": True},
            "inequivalent arg 'auto_delete' for queue '{q}' in vhost '/': received 'true' but current is 'false'",
        ),
        (
            {"arguments": {"x-max-length": 11}},
            "inequivalent arg 'x-max-length' for queue '{q}' in vhost '/': received '11' but current is '10'",
        ),
        (
            {"arguments": {"x-max-length": 10, "x-expires": 1000}},
            (
                "inequivalent arg 'x-expires' for queue '{q}' in vhost '/': "
                "received the value '1000' of type 'signedint' but current is none"
            ),
        ),
        (
            {"arguments": {}},
            (
                "inequivalent arg 'x-max-length' for queue '{q}' in vhost '/': "
                "received none but current is the value '10' of type 'signedint'"
            ),
        ),
    ],
    ids=["durable", "auto_delete", "value", "extra", "missing"],
)
def test_inequivalent_queue_declaration_is_refused(
    connection: pika.BlockingConnection, unique: Unique, change: dict[str, Any], text: str
) -> None:
    queue = unique("q")
    plain: dict[str, Any] = {"durable": True, "arguments": {"x-max-length": 10}}
    channel = connection.channel()
    channel.queue_declare(queue, **plain)
    channel.queue_declare(queue, **{**plain, "arguments": {**plain["arguments"], "x-unknown": 1}})
    with channel_error(406, "PRECONDITION_FAILED - " + text.format(q=queue)):
        channel.queue_declare(queue, **{**plain, **change})
    connection.channel().queue_delete(queue)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"x-message-ttl": "soon"},
            "invalid arg 'x-message-ttl' for queue '{q}' in vhost '/': \"expected integer, got longstr\"",
        ),
        ({"x-message-ttl": -1}, "invalid arg 'x-message-ttl' for queue '{q}' in vhost '/': {{value_negative,-1}}"),
        ({"x-expires": 0}, "invalid arg 'x-expires' for queue '{q}' in vhost '/': {{value_zero,0}}"),
        (
            {"x-max-priority": 256},
            "invalid arg 'x-max-priority' for queue '{q}' in vhost '/': {{max_value_exceeded,256}}",
        ),
        ({"x-overflow": "spill"}, "invalid arg 'x-overflow' for queue '{q}' in vhost '/': invalid_overflow"),
    ],
    ids=["type", "negative", "zero", "too-large", "overflow"],
)
def test_invalid_queue_argument_is_refused(
    channel: BlockingChannel, unique: Unique, arguments: dict[str, Any], text: str
) -> None:
    queue = unique("q")
    with channel_error(406, "PRECONDITION_FAILED - " + text.format(q=queue)):
        channel.queue_declare(queue, exclusive=True, arguments=arguments)


def test_reserved_names_are_refused(connection: pika.BlockingConnection) -> None:
    with channel_error(403, "ACCESS_REFUSED - queue name 'amq.foo' contains reserved prefix 'amq.*'"):
        connection.channel().queue_declare("amq.foo")
    with channel_error(403, "ACCESS_REFUSED - exchange name 'amq.foo' contains reserved prefix 'amq.*'"):
        connection.channel().exchange_declare("amq.foo", "direct")
    with channel_error(403, "ACCESS_REFUSED - deletion of system exchange 'amq.direct' in vhost '/' not allowed"):
        connection.channel().exchange_delete("amq.direct")
    connection.channel().exchange_declare("amq.direct", "direct", durable=True)


@pytest.mark.parametrize(
    "attempt",
    [
        lambda c, q: c.exchange_declare("", "direct"),
        lambda c, q: c.exchange_delete(""),
        lambda c, q: c.queue_bind(q, "", "k"),
        lambda c, q: c.queue_unbind(q, "", "k"),
        lambda c, q: c.exchange_bind("amq.direct", "", "k"),
    ],
    ids=["declare", "delete", "bind", "unbind", "exchange-bind"],
)
def test_operations_on_the_default_exchange_are_refused(
    connection: pika.BlockingConnection, queue: str, attempt: Callable[[BlockingChannel, str], Any]
) -> None:
    with channel_error(403, "ACCESS_REFUSED - operation not permitted on the default exchange"):
        attempt(connection.channel(), queue)


@pytest.mark.parametrize(
    ("attempt", "what"),
    [
        (lambda c, q: c.queue_declare("nosuch", passive=True), "queue"),
        (lambda c, q: c.basic_get("nosuch"), "queue"),
        (lambda c, q: c.basic_consume("nosuch", print), "queue"),
        (lambda c, q: c.queue_purge("nosuch"), "queue"),
        (lambda c, q: c.queue_bind("nosuch", "amq.direct", "k"), "queue"),
        (lambda c, q: c.exchange_declare("nosuch", passive=True), "exchange"),
        (lambda c, q: c.queue_bind(q, "nosuch", "k"), "exchange"),
        (lambda c, q: c.exchange_bind("nosuch", "amq.direct", "k"), "exchange"),
        (lambda c, q: c.exchange_bind("amq.direct", "nosuch", "k"), "exchange"),
        (lambda c, q: (c.basic_publish("nosuch", "k", b""), c.queue_declare("", exclusive=True)), "exchange"),
    ],
)
def test_missing_queue_or_exchange_is_404(
    connection: pika.BlockingConnection,
    queue: str,
    attempt: Callable[[BlockingChannel, str], Any],
    what: str,
) -> None:
    with channel_error(404, f"NOT_FOUND - no {what} 'nosuch' in vhost '/'"):
        attempt(connection.channel(), queue)


def test_delete_unbind_and_cancel_of_missing_objects_succeed(channel: BlockingChannel, queue: str) -> None:
    assert channel.queue_delete("nosuch").method.message_count == 0
    channel.exchange_delete("nosuch")
    channel.queue_unbind(queue, "amq.direct", "nosuch")
    channel.queue_unbind("nosuch", "amq.direct", "k")
    channel.queue_unbind(queue, "nosuch", "k")
    channel.exchange_unbind("amq.fanout", "amq.direct", "nosuch")
    channel.basic_cancel("nosuch")
    assert channel.is_open
