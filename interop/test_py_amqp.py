"""py-amqp, the client library of kombu and Celery: AMQPLAIN, `drain_events`, heartbeat ticks."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import amqp
import pytest
from amqp.exceptions import (
    AccessRefused,
    AMQPNotImplementedError,
    ConnectionForced,
    ConsumerCancelled,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
)

Unique = Callable[[str], str]


@pytest.fixture
def connect(broker: Any) -> Iterator[Callable[..., amqp.Connection]]:
    opened: list[amqp.Connection] = []

    def make(**changes: Any) -> amqp.Connection:
        settings: dict[str, Any] = {
            "host": f"{broker.host}:{broker.port}",
            "userid": broker.user,
            "password": broker.password,
            "virtual_host": broker.vhost,
            "connect_timeout": 60,
            "read_timeout": 60,
            "write_timeout": 60,
        }
        connection = amqp.Connection(**{**settings, **changes})
        opened.append(connection)
        connection.connect()
        return connection

    yield make
    for connection in opened:
        with contextlib.suppress(Exception):  # the test or the broker may have closed it
            connection.close()


@pytest.fixture
def connection(connect: Callable[..., amqp.Connection]) -> amqp.Connection:
    return connect()


@pytest.fixture
def channel(connection: amqp.Connection) -> amqp.Channel:
    return connection.channel()


@pytest.fixture
def queue(channel: amqp.Channel) -> str:
    return str(channel.queue_declare(exclusive=True, auto_delete=False).queue)


def drain(connection: amqp.Connection, condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s"
        with contextlib.suppress(TimeoutError):
            connection.drain_events(timeout=0.1)


def expect_no_event(connection: amqp.Connection, timeout_s: float = 0.1) -> None:
    """Check that nothing arrives for a moment."""
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=timeout_s)


def text(message: Any) -> str:
    return message.body.decode() if isinstance(message.body, bytes) else str(message.body)


# -- connection


@pytest.mark.parametrize("method", ["PLAIN", "AMQPLAIN"])
def test_login_with_plain_and_amqplain(connect: Callable[..., amqp.Connection], method: str) -> None:
    connection = connect(login_method=method)
    assert connection.connected
    assert connection.server_capabilities["publisher_confirms"]
    assert {b"PLAIN", b"AMQPLAIN"} <= set(connection.mechanisms)


@pytest.mark.parametrize("method", ["PLAIN", "AMQPLAIN"])
def test_wrong_password_is_refused(connect: Callable[..., amqp.Connection], method: str) -> None:
    with pytest.raises(AccessRefused, match=f"Login was refused using authentication mechanism {method}"):
        connect(login_method=method, password="wrong")


def test_unknown_vhost_is_refused(connect: Callable[..., amqp.Connection]) -> None:
    with pytest.raises(NotAllowed, match="vhost nosuch not found"):
        connect(virtual_host="nosuch")


def test_negotiated_tune_values(connect: Callable[..., amqp.Connection]) -> None:
    connection = connect(heartbeat=5)
    assert (connection.heartbeat, connection.frame_max, connection.channel_max) == (5, 131072, 2047)


@pytest.mark.slow
def test_heartbeat_ticks_keep_an_idle_connection(connect: Callable[..., amqp.Connection]) -> None:
    connection = connect(heartbeat=2)
    received = connection.bytes_recv
    for _ in range(20):
        connection.heartbeat_tick(rate=2)
        with contextlib.suppress(TimeoutError):
            connection.drain_events(timeout=0.25)
    assert connection.bytes_recv > received  # the broker's heartbeats
    assert connection.channel().queue_declare(exclusive=True).message_count == 0


@pytest.mark.slow
def test_client_without_heartbeats_is_disconnected(connect: Callable[..., amqp.Connection], broker: Any) -> None:
    """The client sends nothing with a heartbeat of 1 s: the broker closes after about two intervals."""
    connection = connect(heartbeat=1)
    started = time.monotonic()
    with pytest.raises((OSError, amqp.exceptions.ConnectionError)):  # noqa: PT012 - which one fails is not known
        while time.monotonic() - started < 60:
            with contextlib.suppress(TimeoutError):
                connection.drain_events(timeout=0.5)
    assert 1.0 < time.monotonic() - started < 60.0


def test_connection_closed_by_an_operator_raises(
    connect: Callable[..., amqp.Connection], broker: Any, unique: Unique
) -> None:
    name = unique("amqp")
    connection = connect(client_properties={"connection_name": name})
    broker.close_from_outside(name, "maintenance")
    with pytest.raises(ConnectionForced, match="CONNECTION_FORCED - maintenance"):
        drain(connection, lambda: False)


# -- messages


def test_published_message_is_got_with_its_properties(channel: amqp.Channel, queue: str) -> None:
    assert channel.basic_get(queue) is None
    sent = amqp.Message("grüße", content_type="text/plain", priority=3, correlation_id="7", delivery_mode=2)
    channel.basic_publish(sent, routing_key=queue)
    got = channel.basic_get(queue)
    assert (text(got), got.properties["content_type"], got.priority, got.correlation_id) == (
        "grüße",
        "text/plain",
        3,
        "7",
    )
    assert got.delivery_info["redelivered"] is False
    assert got.delivery_info["message_count"] == 0
    channel.basic_ack(got.delivery_tag)
    assert channel.basic_get(queue) is None


def test_header_values_are_unchanged(channel: amqp.Channel, queue: str) -> None:
    headers = {
        "bool": True,
        "int": -1,
        "big": 2**40,
        "float": 0.5,
        "text": "ü",
        "none": None,
        "decimal": Decimal("3.14"),
        "time": dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC).replace(tzinfo=None),
        "list": [1, [2, {"three": 3}]],
        "table": {"a": {"b": []}},
    }
    channel.basic_publish(amqp.Message("m", application_headers=headers), routing_key=queue)
    assert channel.basic_get(queue, no_ack=True).headers == headers


@pytest.mark.parametrize("size_bytes", [0, 131_072 - 8, 200_000, 3_000_000])
def test_bodies_of_any_size_are_unchanged(channel: amqp.Channel, queue: str, size_bytes: int) -> None:
    body = (b"0123456789abcdef" * (size_bytes // 16 + 1))[:size_bytes]
    channel.basic_publish(amqp.Message(body, content_encoding="binary"), routing_key=queue)
    got = channel.basic_get(queue, no_ack=True).body
    assert (got.encode() if isinstance(got, str) else got) == body


def test_rejected_message_is_redelivered_first(connection: amqp.Connection, channel: amqp.Channel, queue: str) -> None:
    got: list[Any] = []
    channel.basic_qos(0, 1, False)
    tag = channel.basic_consume(queue, callback=got.append)
    for body in "abc":
        channel.basic_publish(amqp.Message(body), routing_key=queue)
    drain(connection, lambda: len(got) == 1)
    channel.basic_reject(got[0].delivery_tag, requeue=True)
    drain(connection, lambda: len(got) == 2)
    assert (text(got[1]), got[1].delivery_info["redelivered"], got[1].delivery_info["consumer_tag"]) == ("a", True, tag)
    channel.basic_ack(got[1].delivery_tag)
    drain(connection, lambda: len(got) == 3)
    assert (text(got[2]), got[2].delivery_info["redelivered"]) == ("b", False)
    channel.basic_cancel(tag)
    channel.basic_ack(got[2].delivery_tag)
    assert text(channel.basic_get(queue, no_ack=True)) == "c"


def test_recover_redelivers_all_unacked_messages(
    connection: amqp.Connection, channel: amqp.Channel, queue: str
) -> None:
    got: list[Any] = []
    for body in "ab":
        channel.basic_publish(amqp.Message(body), routing_key=queue)
    channel.basic_consume(queue, callback=got.append)
    drain(connection, lambda: len(got) == 2)
    channel.basic_recover(requeue=True)
    drain(connection, lambda: len(got) == 4)
    assert [(text(m), m.delivery_info["redelivered"]) for m in got] == [
        ("a", False),
        ("b", False),
        ("a", True),
        ("b", True),
    ]


def test_qos_without_global_depends_on_the_product(
    connection: amqp.Connection, channel: amqp.Channel, queue: str
) -> None:
    """With RabbitMQ, global=false applies to each later consumer. With another product this client expects one window
    per channel, changed for running consumers too, as Celery relies on.
    """
    one: list[Any] = []
    two: list[Any] = []
    channel.basic_qos(0, 2, False)
    channel.basic_consume(queue, callback=one.append)
    channel.basic_consume(queue, callback=two.append)
    for number in range(10):
        channel.basic_publish(amqp.Message(str(number)), routing_key=queue)
    expected = 4 if connection.server_properties["product"] == "RabbitMQ" else 2
    drain(connection, lambda: len(one) + len(two) == expected)
    expect_no_event(connection)
    channel.basic_qos(0, 6, False)
    expected = 4 if connection.server_properties["product"] == "RabbitMQ" else 6
    drain(connection, lambda: len(one) + len(two) == expected)
    expect_no_event(connection)


def test_global_qos_changes_for_running_consumers(
    connection: amqp.Connection, channel: amqp.Channel, queue: str
) -> None:
    got: list[Any] = []
    channel.basic_qos(0, 2, True)
    channel.basic_consume(queue, callback=got.append)
    channel.basic_consume(queue, callback=got.append)
    for number in range(10):
        channel.basic_publish(amqp.Message(str(number)), routing_key=queue)
    drain(connection, lambda: len(got) == 2)
    expect_no_event(connection)
    channel.basic_qos(0, 5, True)
    drain(connection, lambda: len(got) == 5)
    expect_no_event(connection)
    channel.basic_qos(0, 1, True)
    for message in got[:4]:
        channel.basic_ack(message.delivery_tag)
    expect_no_event(connection)
    channel.basic_ack(got[4].delivery_tag)
    drain(connection, lambda: len(got) == 6)
    expect_no_event(connection)


def test_deleted_queue_cancels_its_consumer(connection: amqp.Connection, channel: amqp.Channel, unique: Unique) -> None:
    queue = unique("gone")
    channel.queue_declare(queue, auto_delete=False)
    cancelled: list[str] = []
    tag = channel.basic_consume(queue, callback=print, on_cancel=cancelled.append)
    connection.channel().queue_delete(queue)
    drain(connection, lambda: cancelled)
    assert cancelled == [tag]


def test_consumer_cancelled_without_a_callback_raises(
    connection: amqp.Connection, channel: amqp.Channel, unique: Unique
) -> None:
    queue = unique("gone")
    channel.queue_declare(queue, auto_delete=False)
    tag = channel.basic_consume(queue, callback=print)
    with pytest.raises(ConsumerCancelled, match=tag):  # noqa: PT012 - which one fails is not known
        connection.channel().queue_delete(queue)
        drain(connection, lambda: False)


def test_publish_with_confirms_stores_all_messages(connect: Callable[..., amqp.Connection], unique: Unique) -> None:
    connection = connect(confirm_publish=True)
    channel = connection.channel()
    queue = channel.queue_declare(unique("durable"), durable=True, auto_delete=False).queue
    for number in range(20):
        channel.basic_publish(amqp.Message(str(number), delivery_mode=2), routing_key=queue, mandatory=True)
    assert channel.queue_purge(queue) == 20
    assert channel.queue_delete(queue) == 0


def test_full_queue_nacks_with_reject_publish(connect: Callable[..., amqp.Connection]) -> None:
    channel = connect(confirm_publish=True).channel()
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    queue = channel.queue_declare(exclusive=True, arguments=arguments).queue
    with pytest.raises(amqp.exceptions.MessageNacked):  # noqa: PT012 - which one fails is not known
        for _ in range(5):
            channel.basic_publish_confirm(amqp.Message("m"), routing_key=queue)


def test_unroutable_mandatory_message_is_returned(connection: amqp.Connection, channel: amqp.Channel) -> None:
    returned: list[Any] = []
    channel.events["basic_return"].add(lambda *answer: returned.append(answer))
    channel.basic_publish(amqp.Message("m"), exchange="amq.direct", routing_key="nowhere", mandatory=True)
    drain(connection, lambda: returned)
    error, exchange, routing_key, message = returned[0]
    assert (error.reply_code, error.reply_text) == (312, "NO_ROUTE")
    assert (exchange, routing_key, text(message)) == ("amq.direct", "nowhere", "m")


def test_transaction_publishes_only_on_commit(connection: amqp.Connection, channel: amqp.Channel, queue: str) -> None:
    channel.tx_select()
    channel.basic_publish(amqp.Message("lost"), routing_key=queue)
    channel.tx_rollback()
    channel.basic_publish(amqp.Message("kept"), routing_key=queue)
    assert connection.channel().basic_get(queue) is None
    channel.tx_commit()
    assert text(connection.channel().basic_get(queue, no_ack=True)) == "kept"


# -- exchanges and queues


def test_bindings_route_and_auto_delete(channel: amqp.Channel, queue: str, unique: Unique) -> None:
    source, target = unique("source"), unique("target")
    channel.exchange_declare(source, "topic", auto_delete=True)
    channel.exchange_declare(target, "fanout", auto_delete=True)
    channel.exchange_bind(target, source, "a.#")
    channel.queue_bind(queue, target)
    channel.basic_publish(amqp.Message("m"), exchange=source, routing_key="a.b.c")
    assert text(channel.basic_get(queue, no_ack=True)) == "m"
    channel.queue_unbind(queue, target, "")
    with pytest.raises(NotFound, match=f"no exchange '{target}'"):
        channel.exchange_declare(target, "fanout", passive=True)


def test_nowait_methods_take_effect(channel: amqp.Channel, unique: Unique) -> None:
    exchange, queue = unique("x"), unique("q")
    channel.exchange_declare(exchange, "direct", nowait=True)  # py-amqp's default is auto-delete
    channel.queue_declare(queue, nowait=True, exclusive=True, auto_delete=False)
    channel.queue_bind(queue, exchange, "k", nowait=True)
    got: list[Any] = []
    channel.basic_consume(queue, callback=got.append, nowait=True, consumer_tag="t", no_ack=True)
    channel.basic_publish(amqp.Message("m"), exchange=exchange, routing_key="k")
    drain(channel.connection, lambda: got)
    channel.basic_cancel("t", nowait=True)
    assert channel.queue_declare(queue, passive=True).consumer_count == 0
    channel.queue_purge(queue, nowait=True)
    channel.queue_delete(queue, nowait=True)
    with pytest.raises(NotFound, match="no queue"):
        channel.queue_declare(queue, passive=True)


def test_flow_false_is_not_implemented(channel: amqp.Channel) -> None:
    channel.flow(True)
    with pytest.raises(AMQPNotImplementedError, match="active=false"):
        channel.flow(False)


@pytest.mark.parametrize(
    ("error", "message", "attempt"),
    [
        (NotFound, "no queue 'nosuch' in vhost '/'", lambda c, q: c.queue_declare("nosuch", passive=True)),
        (NotFound, "no exchange 'nosuch' in vhost '/'", lambda c, q: c.queue_bind(q, "nosuch")),
        (AccessRefused, "queue name 'amq.x' contains reserved prefix", lambda c, q: c.queue_declare("amq.x")),
        (AccessRefused, "operation not permitted on the default exchange", lambda c, q: c.queue_bind(q, "", "k")),
        (
            PreconditionFailed,
            "inequivalent arg 'type' for exchange 'amq.direct' in vhost '/': received 'fanout' but current is 'direct'",
            lambda c, q: c.exchange_declare("amq.direct", "fanout", durable=True, auto_delete=False),
        ),
        (
            PreconditionFailed,
            "unknown delivery tag 82",
            lambda c, q: (c.basic_ack(82), c.queue_declare(q, passive=True)),
        ),
    ],
)
def test_channel_error_raises_its_exception(
    connection: amqp.Connection, queue: str, error: type[Exception], message: str, attempt: Callable[..., Any]
) -> None:
    channel = connection.channel()
    with pytest.raises(error, match=re.escape(message)):
        attempt(channel, queue)
    assert connection.connected
    assert connection.channel().queue_declare(queue, passive=True).queue == queue


def test_exclusive_queue_of_another_connection_is_locked(connect: Callable[..., amqp.Connection], queue: str) -> None:
    with pytest.raises(ResourceLocked, match=f"cannot obtain exclusive access to locked queue '{queue}' in vhost '/'"):
        connect().channel().basic_get(queue)


def test_many_channels_publish_and_get(connection: amqp.Connection, queue: str) -> None:
    channels = [connection.channel() for _ in range(300)]
    for number, channel in enumerate(channels):
        channel.basic_publish(amqp.Message(str(number)), routing_key=queue)
        assert text(channel.basic_get(queue, no_ack=True)) == str(number)
    for channel in channels:
        channel.close()
    assert connection.channel().channel_id <= 300
