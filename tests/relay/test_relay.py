"""Stock clients at a node that does not own their vhost: proxied connections behave like direct ones."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from contextlib import suppress

import aio_pika
import pika
import pytest
from pika.exceptions import (
    AMQPConnectionError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
)
from relay_rig import Rig, connections, wait_until

MIB = 1 << 20


def connect(rig: Rig, node: str = "a", vhost: str = "v", **parameters: object) -> pika.BlockingConnection:
    url_parameters = pika.URLParameters(rig.url(node, vhost))
    url_parameters.socket_timeout = 60
    url_parameters.stack_timeout = 60
    url_parameters.blocked_connection_timeout = 60
    for name, value in parameters.items():
        setattr(url_parameters, name, value)
    return pika.BlockingConnection(url_parameters)


def lose_socket(connection: pika.BlockingConnection) -> None:
    """End the connection's socket without connection.close."""
    connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]
    with suppress(AMQPConnectionError):
        connection.process_data_events(60)
    with suppress(AMQPConnectionError):
        connection.close()


def test_publish_confirm_consume(rig: Rig) -> None:
    connection = connect(rig)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("plain")
    for number in range(50):
        channel.basic_publish("", "plain", b"%d" % number, mandatory=True)
    got = [channel.basic_get("plain", auto_ack=True)[2] for _ in range(50)]
    assert got == [b"%d" % number for number in range(50)]
    connection.close()


def test_large_messages_both_ways(rig: Rig) -> None:
    connection = connect(rig)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("large")
    bodies = [os.urandom(size) for size in (0, 1, 131_064, 131_065, MIB, 5 * MIB)]
    for body in bodies:
        channel.basic_publish("", "large", body)
    received = []
    for _method, _properties, body in channel.consume("large", auto_ack=True):
        received.append(body)
        if len(received) == len(bodies):
            break
    assert received == bodies
    connection.close()


def test_owner_lists_proxied_connection(rig: Rig) -> None:
    connection = connect(rig, client_properties={"connection_name": "who"})
    wait_until(lambda: len(connections(rig, "b")) == 1, "the connection is listed")
    listed = connections(rig, "b")[0]
    socket_name = connection._impl._transport._sock.getsockname() if hasattr(connection, "_impl") else None  # type: ignore[union-attr]
    assert listed["user_provided_name"] == "who"
    assert listed["node"] == "a"
    assert listed["port"] == rig["a"].amqp_port
    assert (listed["user"], listed["vhost"], listed["auth_mechanism"]) == ("guest", "v", "PLAIN")
    if socket_name is not None:
        assert listed["peer_port"] == socket_name[1]
    assert connections(rig, "a") == []
    connection.close()
    wait_until(lambda: connections(rig, "b") == [], "the connection is closed")


def test_channel_and_connection_errors_have_their_codes(rig: Rig) -> None:
    connection = connect(rig)
    with pytest.raises(ChannelClosedByBroker) as not_found:
        connection.channel().queue_declare("nothing there", passive=True)
    assert not_found.value.reply_code == 404
    channel = connection.channel()
    with pytest.raises(ConnectionClosedByBroker) as invalid:
        channel.exchange_declare("x", "no such type")
    assert invalid.value.reply_code == 503


def test_missing_vhost_and_missing_permission_are_refused(rig: Rig) -> None:
    with pytest.raises(ProbableAccessDeniedError, match=r"\(530\) 'NOT_ALLOWED - vhost nowhere not found'"):
        connect(rig, vhost="nowhere")
    for node in ("a", "b"):
        rig[node].api("PUT", "/api/users/nobody", {"password": "nobody", "tags": ""})
    error_pattern = r"\(530\) .*access to vhost 'v' refused for user 'nobody'"
    with pytest.raises(ProbableAccessDeniedError, match=error_pattern):
        pika.BlockingConnection(pika.URLParameters(rig.url("a", "v", "nobody")))


@pytest.mark.slow
def test_user_unknown_to_owner_is_refused(rig: Rig) -> None:
    rig["a"].api("PUT", "/api/users/only_a", {"password": "only_a", "tags": ""})
    error_pattern = r"\(530\) .*access to vhost 'v' refused for user 'only_a'"
    with pytest.raises(ProbableAccessDeniedError, match=error_pattern):
        pika.BlockingConnection(pika.URLParameters(rig.url("a", "v", "only_a")))


def test_admin_api_of_owner_closes_connection(rig: Rig) -> None:
    connection = connect(rig)
    wait_until(lambda: len(connections(rig, "b")) == 1, "the connection is listed")
    name = connections(rig, "b")[0]["name"].replace(" ", "%20").replace(">", "%3E")
    rig["b"].api("DELETE", f"/api/connections/{name}")
    with pytest.raises(ConnectionClosedByBroker) as closed:
        connection.process_data_events(60)
    assert closed.value.reply_code == 320
    assert "Closed via management plugin" in closed.value.reply_text


def test_lost_client_is_cleaned_up_at_owner(rig: Rig) -> None:
    """Its exclusive queue is deleted, its unacked messages are requeued."""
    direct = connect(rig, "b")
    channel = direct.channel()
    channel.queue_declare("returned")
    channel.basic_publish("", "returned", b"one")
    proxied = connect(rig)
    proxied_channel = proxied.channel()
    proxied_channel.queue_declare("mine", exclusive=True)
    assert proxied_channel.basic_get("returned")[2] == b"one"
    lose_socket(proxied)
    wait_until(lambda: len(connections(rig, "b")) == 1, "only the direct connection is left")
    method, _properties, body = channel.basic_get("returned", auto_ack=True)
    assert body == b"one"
    assert method.redelivered
    with pytest.raises(ChannelClosedByBroker) as not_found:
        direct.channel().queue_declare("mine", passive=True)
    assert not_found.value.reply_code == 404
    direct.close()


@pytest.mark.slow
def test_heartbeats_keep_connection_open(rig: Rig) -> None:
    connection = connect(rig, heartbeat=1)
    for _ in range(8):
        connection.process_data_events(0.5)
    assert connection.is_open
    connection.close()


@pytest.mark.slow
def test_silent_client_is_dropped_by_heartbeat(rig: Rig) -> None:
    connection = connect(rig, heartbeat=1)
    wait_until(lambda: len(connections(rig, "b")) == 1, "the connection is listed")
    wait_until(lambda: connections(rig, "b") == [], "the silent client is dropped")
    assert rig["b"].says("missed heartbeats")
    lose_socket(connection)


def test_blocked_and_unblocked_by_alarm_of_owner(rig: Rig) -> None:
    connection = connect(rig)
    events: list[str] = []
    connection.add_on_connection_blocked_callback(lambda _connection, frame: events.append(frame.method.reason))
    connection.add_on_connection_unblocked_callback(lambda _connection, _frame: events.append("over"))
    channel = connection.channel()
    channel.queue_declare("blocked")
    rig["b"].api("PUT", "/api/amqpd/alarms/memory", {})
    try:
        channel.basic_publish("", "blocked", b"x")
        wait_until(lambda: connection.process_data_events(0.05) or bool(events), "blocked")
    finally:
        rig["b"].api("DELETE", "/api/amqpd/alarms/memory")
    wait_until(lambda: connection.process_data_events(0.05) or events[-1:] == ["over"], "unblocked")
    connection.close()


@pytest.mark.slow
def test_alarm_of_proxying_node_blocks_publisher(rig: Rig) -> None:
    """The publisher is blocked at its next publish, as at the node itself, and the consumer is not. An alarm of the
    owner keeps it blocked.
    """
    publisher, consumer = connect(rig), connect(rig)
    events: list[str] = []
    for connection in (publisher, consumer):
        name = "publisher" if connection is publisher else "consumer"
        connection.add_on_connection_blocked_callback(
            lambda _connection, frame, name=name: events.append(f"{name}: {frame.method.reason}")
        )
        connection.add_on_connection_unblocked_callback(
            lambda _connection, _frame, name=name: events.append(f"{name}: over")
        )
    channel = publisher.channel()
    channel.queue_declare("between")
    got: list[bytes] = []
    consumer.channel().basic_consume("between", lambda _c, _m, _p, body: got.append(body), auto_ack=True)
    channel.basic_publish("", "between", b"before")
    wait_until(lambda: consumer.process_data_events(0.05) or got == [b"before"], "the message is delivered")
    rig["a"].api("PUT", "/api/amqpd/alarms/disk", {})
    try:
        time.sleep(1)
        publisher.process_data_events(0.1)
        assert events == [], "no publish since the alarm"
        channel.basic_publish("", "between", b"one")
        wait_until(lambda: publisher.process_data_events(0.05) or bool(events), "blocked")
        assert events == ["publisher: low on disk"]
        channel.basic_publish("", "between", b"two")
        time.sleep(0.5)
        consumer.process_data_events(0.2)
        assert got == [b"before", b"one"]
        assert rig["a"].running
        rig["b"].api("PUT", "/api/amqpd/alarms/memory", {})
    finally:
        rig["a"].api("DELETE", "/api/amqpd/alarms/disk")
        time.sleep(0.5)
        publisher.process_data_events(0.2)
        assert events == ["publisher: low on disk"]
        rig["b"].api("DELETE", "/api/amqpd/alarms/memory")
    wait_until(lambda: publisher.process_data_events(0.05) or events[-1:] == ["publisher: over"], "unblocked")
    wait_until(
        lambda: consumer.process_data_events(0.05) or got == [b"before", b"one", b"two"],
        "the paused message is delivered",
    )
    assert events == ["publisher: low on disk", "publisher: over"]
    for connection in (publisher, consumer):
        connection.close()


def test_aio_pika_and_update_secret(rig: Rig) -> None:
    async def go() -> None:
        connection = await aio_pika.connect(rig.url("a", "v"))
        channel = await connection.channel()
        queue = await channel.declare_queue("aio", durable=True)
        await channel.default_exchange.publish(aio_pika.Message(b"x" * MIB), "aio")
        message = await queue.get()
        assert message.body == b"x" * MIB
        await message.ack()
        assert connection.transport is not None
        await connection.transport.connection.update_secret("other")
        await connection.close()

    asyncio.run(asyncio.wait_for(go(), 60))
