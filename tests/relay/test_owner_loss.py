"""Proxied clients when the owner of their vhost stops, hangs, or changes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker, ProbableAccessDeniedError
from relay_rig import Rig, connections, wait_until

from amqpd.auth.internal_backend import User
from amqpd.cluster.proxy import ProxiedChannelZero
from amqpd.connection.channel_zero import HEADER
from amqpd.errors import ConnectionForced
from amqpd.protocol import methods


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Rig]:
    """Nodes a, b and c; b owns `v`."""
    with Rig(tmp_path, ("a", "b", "c")) as rig:
        rig.own("v", "b")
        yield rig


def connect(rig: Rig, node: str = "a", vhost: str = "v") -> pika.BlockingConnection:
    url = rig.url(node, vhost, query="?socket_timeout=60&stack_timeout=60&blocked_connection_timeout=60")
    return pika.BlockingConnection(pika.URLParameters(url))


def close_of(connection: pika.BlockingConnection) -> tuple[int, str]:
    """Return the code and text with which the broker closes the connection."""
    with pytest.raises(ConnectionClosedByBroker) as ended:
        connection.process_data_events(60)
    return ended.value.reply_code, ended.value.reply_text


MOVING = (320, "CONNECTION_FORCED - vhost 'v' is moving")


def test_owner_is_killed_and_another_takes_over(nodes: Rig) -> None:
    connection = connect(nodes)
    connection.channel().queue_declare("q")
    nodes["b"].kill()
    assert close_of(connection) == MOVING
    nodes.own("v", "c")
    new_connection = connect(nodes)
    new_connection.channel().queue_declare("q")
    assert [each["node"] for each in connections(nodes, "c")] == ["a"]
    new_connection.close()


def test_owner_is_killed_during_deliveries(nodes: Rig) -> None:
    """The close with 320 follows a whole frame, although the last delivery was cut."""
    connection = connect(nodes)
    channel = connection.channel()
    channel.queue_declare("q")
    for _ in range(40):
        channel.basic_publish("", "q", os.urandom(1 << 20))
    sizes: list[int] = []

    def on_message(_channel: object, _method: object, _properties: object, body: bytes) -> None:
        sizes.append(len(body))
        if len(sizes) == 3:
            nodes["b"].kill()

    channel.basic_consume("q", on_message, auto_ack=True)
    with pytest.raises(ConnectionClosedByBroker) as ended:
        channel.start_consuming()
    assert (ended.value.reply_code, ended.value.reply_text) == MOVING
    assert set(sizes) == {1 << 20}


def test_owner_stops(nodes: Rig) -> None:
    connection = connect(nodes)
    stopping = threading.Thread(target=nodes["b"].stop)
    stopping.start()
    assert close_of(connection) == (320, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'")
    stopping.join()


def test_proxying_node_stops(nodes: Rig) -> None:
    connection = connect(nodes)
    stopping = threading.Thread(target=nodes["a"].stop)
    stopping.start()
    assert close_of(connection) == (320, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'")
    stopping.join()
    wait_until(lambda: connections(nodes, "b") == [], "the owner has closed the connection")


def test_proxying_node_is_killed(nodes: Rig) -> None:
    connection = connect(nodes)
    connection.channel().queue_declare("mine", exclusive=True)
    wait_until(lambda: len(connections(nodes, "b")) == 1, "the connection is listed")
    nodes["a"].kill()
    wait_until(lambda: connections(nodes, "b") == [], "the owner has closed the connection")
    found: Any = nodes["b"].api("GET", "/api/queues")
    assert found == []
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        connection.process_data_events(60)


def test_change_of_owner_closes_connection(nodes: Rig) -> None:
    connection = connect(nodes)
    nodes.own("v", "c")
    assert close_of(connection) == MOVING
    new_connection = connect(nodes)
    assert [each["node"] for each in connections(nodes, "c")] == ["a"]
    new_connection.close()


def test_owner_that_has_lost_the_vhost_lets_the_client_reconnect() -> None:
    """The vhost left the owner between its answer to the proxy and connection.open: the owner proxies no further."""
    control: Any = ProxiedChannelZero.__new__(ProxiedChannelZero)
    control.broker = SimpleNamespace(vhosts={})
    control.connections = SimpleNamespace(vhost_router=SimpleNamespace(closed="", is_remote=lambda vhost: True))
    control.connection, control._user = None, User("guest", ())
    with pytest.raises(ConnectionForced) as refusal:
        control._open(methods.ConnectionOpen("v"))
    assert (refusal.value.code, refusal.value.reply_text) == MOVING


def test_vhost_moves_to_proxying_node_while_open_waits(nodes: Rig) -> None:
    nodes.own("v", None)
    opened: list[pika.BlockingConnection] = []
    opener = threading.Thread(target=lambda: opened.append(connect(nodes)))
    opener.start()
    opener.join(1)
    assert not opened
    nodes.own("v", "a")
    opener.join(60)
    assert [each["node"] for each in connections(nodes, "a")] == [connections(nodes, "a")[0]["node"]]
    assert connections(nodes, "b") == []
    opened[0].channel().queue_declare("here")
    opened[0].close()


def test_open_waits_for_an_owner(nodes: Rig) -> None:
    nodes.own("v", None)
    opened: list[pika.BlockingConnection] = []
    opener = threading.Thread(target=lambda: opened.append(connect(nodes)))
    opener.start()
    opener.join(1)
    assert not opened
    nodes.own("v", "c")
    opener.join(60)
    assert len(connections(nodes, "c")) == 1
    opened[0].close()


def test_vhost_is_deleted_while_open_waits(nodes: Rig) -> None:
    nodes.own("v", None)
    errors: list[Exception] = []

    def open_connection() -> None:
        try:
            connect(nodes)
        except ProbableAccessDeniedError as error:
            errors.append(error)

    thread = threading.Thread(target=open_connection)
    thread.start()
    thread.join(1)
    nodes.forget("v")
    thread.join(60)
    assert "vhost v not found" in str(errors[0])


def test_open_waits_until_owner_has_the_vhost(nodes: Rig) -> None:
    """The table names b as the owner, but b does not have the vhost yet, as during a takeover."""
    nodes.own("late", "b")
    opened: list[pika.BlockingConnection] = []
    opener = threading.Thread(target=lambda: opened.append(connect(nodes, vhost="late")))
    opener.start()
    opener.join(0.7)
    assert not opened
    opener.join(60)
    opened[0].close()


def test_stopped_owner_process_is_detected(nodes: Rig) -> None:
    """The kernel of the owner still answers, but the link does not. When the process wakes, its proxied clients are
    gone.
    """
    connection = connect(nodes)
    wait_until(lambda: len(connections(nodes, "b")) == 1, "the connection is listed")
    os.kill(nodes["b"].pid, signal.SIGSTOP)
    try:
        assert close_of(connection) == MOVING
    finally:
        os.kill(nodes["b"].pid, signal.SIGCONT)
    assert nodes["a"].says("node b is silent for 6 s")
    wait_until(lambda: connections(nodes, "b") == [], "the owner has closed the connection")
    new_connection = connect(nodes)
    new_connection.close()


def test_client_that_disconnects_while_open_waits(nodes: Rig) -> None:
    nodes.own("v", None)
    import socket

    with socket.create_connection(("127.0.0.1", nodes["a"].amqp_port), timeout=60) as sock:
        handshake(sock)
        time.sleep(0.2)
    nodes.own("v", "b")
    wait_until(lambda: nodes["b"].says("has opened vhost") or nodes["a"].says("proxied"), "the client was proxied", 20)
    wait_until(lambda: connections(nodes, "b") == [], "the connection is closed")


def test_waiting_client_is_not_proxied_by_stopping_node(nodes: Rig) -> None:
    """Another client, which does not answer, delays the stop until the vhost has an owner again."""
    import socket

    nodes.own("w", "b")
    nodes.own("v", None)
    address = ("127.0.0.1", nodes["a"].amqp_port)
    with (
        socket.create_connection(address, timeout=60) as blocking,
        socket.create_connection(address, timeout=60) as waiting,
    ):
        handshake(blocking, "w")
        blocking.recv(4096)
        handshake(waiting)
        time.sleep(0.2)
        stopping = threading.Thread(target=nodes["a"].stop)
        stopping.start()
        assert waiting.recv(4096) == b"", "the socket is not closed"
        nodes.own("v", "b")
        time.sleep(0.5)
        assert nodes["a"].running
        assert connections(nodes, "b") == [], "the client was proxied"
    stopping.join()
    assert nodes.problems("a") == []


def handshake(sock: Any, vhost: str = "v") -> None:
    """Do the handshake up to connection.open."""
    sock.sendall(HEADER)
    sock.recv(4096)
    ok = methods.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US")
    sock.sendall(methods.frame(0, ok))
    sock.recv(4096)
    sock.sendall(
        methods.frame(0, methods.ConnectionTuneOk(0, 131072, 0)) + methods.frame(0, methods.ConnectionOpen(vhost))
    )
