"""A client at a node that does not run its vhost, through stock clients: it notices nothing."""

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


def connected(rig: Rig, node: str = "a", vhost: str = "v", **parameters: object) -> pika.BlockingConnection:
    given = pika.URLParameters(rig.url(node, vhost))
    given.socket_timeout = 60
    given.stack_timeout = 60
    given.blocked_connection_timeout = 60
    for name, value in parameters.items():
        setattr(given, name, value)
    return pika.BlockingConnection(given)


def lost(connection: pika.BlockingConnection) -> None:
    """Its socket ends without a word."""
    connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]
    with suppress(AMQPConnectionError):
        connection.process_data_events(60)
    with suppress(AMQPConnectionError):
        connection.close()


def test_publish_confirm_consume(rig: Rig) -> None:
    connection = connected(rig)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("plain")
    for number in range(50):
        channel.basic_publish("", "plain", b"%d" % number, mandatory=True)
    got = [channel.basic_get("plain", auto_ack=True)[2] for _ in range(50)]
    assert got == [b"%d" % number for number in range(50)]
    connection.close()


def test_large_messages_both_ways(rig: Rig) -> None:
    connection = connected(rig)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("large")
    bodies = [os.urandom(size) for size in (0, 1, 131_064, 131_065, MIB, 5 * MIB)]
    for body in bodies:
        channel.basic_publish("", "large", body)
    seen = []
    for _method, _properties, body in channel.consume("large", auto_ack=True):
        seen.append(body)
        if len(seen) == len(bodies):
            break
    assert seen == bodies
    connection.close()


def test_its_owner_lists_it_as_it_is_at_the_node(rig: Rig) -> None:
    connection = connected(rig, client_properties={"connection_name": "who"})
    wait_until(lambda: len(connections(rig, "b")) == 1, "it is listed")
    shown = connections(rig, "b")[0]
    local = connection._impl._transport._sock.getsockname() if hasattr(connection, "_impl") else None  # type: ignore[union-attr]
    assert shown["user_provided_name"] == "who"
    assert shown["node"] == "a"
    assert shown["port"] == rig["a"].amqp_port
    assert (shown["user"], shown["vhost"], shown["auth_mechanism"]) == ("guest", "v", "PLAIN")
    if local is not None:
        assert shown["peer_port"] == local[1]
    assert connections(rig, "a") == []
    connection.close()
    wait_until(lambda: connections(rig, "b") == [], "it is gone")


def test_errors_of_channel_and_connection_have_their_codes(rig: Rig) -> None:
    connection = connected(rig)
    with pytest.raises(ChannelClosedByBroker) as gone:
        connection.channel().queue_declare("nothing there", passive=True)
    assert gone.value.reply_code == 404
    channel = connection.channel()
    with pytest.raises(ConnectionClosedByBroker) as wrong:
        channel.exchange_declare("x", "no such type")
    assert wrong.value.reply_code == 503


def test_no_such_vhost_and_no_permission(rig: Rig) -> None:
    with pytest.raises(ProbableAccessDeniedError, match=r"\(530\) 'NOT_ALLOWED - vhost nowhere not found'"):
        connected(rig, vhost="nowhere")
    for node in ("a", "b"):
        rig[node].api("PUT", "/api/users/nobody", {"password": "nobody", "tags": ""})
    refused = r"\(530\) .*access to vhost 'v' refused for user 'nobody'"
    with pytest.raises(ProbableAccessDeniedError, match=refused):
        pika.BlockingConnection(pika.URLParameters(rig.url("a", "v", "nobody")))


@pytest.mark.slow
def test_the_owner_does_not_know_the_user(rig: Rig) -> None:
    rig["a"].api("PUT", "/api/users/only_a", {"password": "only_a", "tags": ""})
    refused = r"\(530\) .*access to vhost 'v' refused for user 'only_a'"
    with pytest.raises(ProbableAccessDeniedError, match=refused):
        pika.BlockingConnection(pika.URLParameters(rig.url("a", "v", "only_a")))


def test_closed_by_the_admin_api_at_its_owner(rig: Rig) -> None:
    connection = connected(rig)
    wait_until(lambda: len(connections(rig, "b")) == 1, "it is listed")
    name = connections(rig, "b")[0]["name"].replace(" ", "%20").replace(">", "%3E")
    rig["b"].api("DELETE", f"/api/connections/{name}")
    with pytest.raises(ConnectionClosedByBroker) as closed:
        connection.process_data_events(60)
    assert closed.value.reply_code == 320
    assert "Closed via management plugin" in closed.value.reply_text


def test_the_client_dies(rig: Rig) -> None:
    """Its exclusive queue goes, what it had not acked comes back."""
    keeper = connected(rig, "b")
    channel = keeper.channel()
    channel.queue_declare("returned")
    channel.basic_publish("", "returned", b"one")
    dying = connected(rig)
    its = dying.channel()
    its.queue_declare("mine", exclusive=True)
    assert its.basic_get("returned")[2] == b"one"
    lost(dying)
    wait_until(lambda: len(connections(rig, "b")) == 1, "only the keeper is left")
    method, _properties, body = channel.basic_get("returned", auto_ack=True)
    assert body == b"one"
    assert method.redelivered
    with pytest.raises(ChannelClosedByBroker) as gone:
        keeper.channel().queue_declare("mine", passive=True)
    assert gone.value.reply_code == 404
    keeper.close()


@pytest.mark.slow
def test_heartbeats_go_through(rig: Rig) -> None:
    connection = connected(rig, heartbeat=1)
    for _ in range(8):
        connection.process_data_events(0.5)
    assert connection.is_open
    connection.close()


@pytest.mark.slow
def test_a_client_that_is_silent_is_dropped_by_its_heartbeat(rig: Rig) -> None:
    connection = connected(rig, heartbeat=1)
    wait_until(lambda: len(connections(rig, "b")) == 1, "it is listed")
    wait_until(lambda: connections(rig, "b") == [], "nothing came of it for two intervals")
    assert rig["b"].says("missed heartbeats")
    lost(connection)


def test_blocked_and_unblocked(rig: Rig) -> None:
    connection = connected(rig)
    told: list[str] = []
    connection.add_on_connection_blocked_callback(lambda _connection, frame: told.append(frame.method.reason))
    connection.add_on_connection_unblocked_callback(lambda _connection, _frame: told.append("over"))
    channel = connection.channel()
    channel.queue_declare("blocked")
    rig["b"].api("PUT", "/api/amqpd/alarms/memory", {})
    try:
        channel.basic_publish("", "blocked", b"x")
        wait_until(lambda: connection.process_data_events(0.05) or bool(told), "it is told")
    finally:
        rig["b"].api("DELETE", "/api/amqpd/alarms/memory")
    wait_until(lambda: connection.process_data_events(0.05) or told[-1:] == ["over"], "it is over")
    connection.close()


@pytest.mark.slow
def test_the_alarm_of_the_node_between_holds_publishers(rig: Rig) -> None:
    """Blocked at its next publish, as at the node itself; who only consumes goes on; a second alarm of the owner's own
    keeps it so.
    """
    publisher, consumer = connected(rig), connected(rig)
    told: list[str] = []
    for connection in (publisher, consumer):
        name = "publisher" if connection is publisher else "consumer"
        connection.add_on_connection_blocked_callback(
            lambda _connection, frame, name=name: told.append(f"{name}: {frame.method.reason}")
        )
        connection.add_on_connection_unblocked_callback(
            lambda _connection, _frame, name=name: told.append(f"{name}: over")
        )
    channel = publisher.channel()
    channel.queue_declare("between")
    got: list[bytes] = []
    consumer.channel().basic_consume("between", lambda _c, _m, _p, body: got.append(body), auto_ack=True)
    channel.basic_publish("", "between", b"before")
    wait_until(lambda: consumer.process_data_events(0.05) or got == [b"before"], "it is delivered")
    rig["a"].api("PUT", "/api/amqpd/alarms/disk", {})
    try:
        time.sleep(1)
        publisher.process_data_events(0.1)
        assert told == [], "nobody has published since"
        channel.basic_publish("", "between", b"one")
        wait_until(lambda: publisher.process_data_events(0.05) or bool(told), "it is told")
        assert told == ["publisher: low on disk"]
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
        assert told == ["publisher: low on disk"]
        rig["b"].api("DELETE", "/api/amqpd/alarms/memory")
    wait_until(lambda: publisher.process_data_events(0.05) or told[-1:] == ["publisher: over"], "it is over")
    wait_until(lambda: consumer.process_data_events(0.05) or got == [b"before", b"one", b"two"], "it goes on")
    assert told == ["publisher: low on disk", "publisher: over"]
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
