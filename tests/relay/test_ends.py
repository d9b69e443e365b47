"""What a relayed client hears when its owner goes, stands still, or is another one."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker, ProbableAccessDeniedError
from relay_rig import Rig, connections, wait_until

from amqpd.connection.channel_zero import HEADER
from amqpd.protocol import methods


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Rig]:
    """Nodes a, b and c; b runs `v`."""
    with Rig(tmp_path, ("a", "b", "c")) as rig:
        rig.own("v", "b")
        yield rig


def connected(rig: Rig, node: str = "a", vhost: str = "v") -> pika.BlockingConnection:
    url = rig.url(node, vhost, query="?socket_timeout=60&stack_timeout=60&blocked_connection_timeout=60")
    return pika.BlockingConnection(pika.URLParameters(url))


def closed(connection: pika.BlockingConnection) -> tuple[int, str]:
    """How the broker closes it."""
    with pytest.raises(ConnectionClosedByBroker) as ended:
        connection.process_data_events(60)
    return ended.value.reply_code, ended.value.reply_text


MOVING = (320, "CONNECTION_FORCED - vhost 'v' is moving")


def test_the_owner_is_killed_and_another_one_takes_over(nodes: Rig) -> None:
    connection = connected(nodes)
    connection.channel().queue_declare("q")
    nodes["b"].kill()
    assert closed(connection) == MOVING
    nodes.own("v", "c")
    again = connected(nodes)
    again.channel().queue_declare("q")
    assert [each["node"] for each in connections(nodes, "c")] == ["a"]
    again.close()


def test_killed_in_the_midst_of_deliveries(nodes: Rig) -> None:
    """320 comes behind a whole frame, however the last delivery was cut."""
    connection = connected(nodes)
    channel = connection.channel()
    channel.queue_declare("q")
    for _ in range(40):
        channel.basic_publish("", "q", os.urandom(1 << 20))
    sizes: list[int] = []

    def got(_channel: object, _method: object, _properties: object, body: bytes) -> None:
        sizes.append(len(body))
        if len(sizes) == 3:
            nodes["b"].kill()

    channel.basic_consume("q", got, auto_ack=True)
    with pytest.raises(ConnectionClosedByBroker) as ended:
        channel.start_consuming()
    assert (ended.value.reply_code, ended.value.reply_text) == MOVING
    assert set(sizes) == {1 << 20}


def test_the_owner_stops_as_asked(nodes: Rig) -> None:
    connection = connected(nodes)
    stopping = threading.Thread(target=nodes["b"].stop)
    stopping.start()
    assert closed(connection) == (320, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'")
    stopping.join()


def test_the_client_s_own_node_stops(nodes: Rig) -> None:
    connection = connected(nodes)
    stopping = threading.Thread(target=nodes["a"].stop)
    stopping.start()
    assert closed(connection) == (320, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'")
    stopping.join()
    wait_until(lambda: connections(nodes, "b") == [], "its owner has seen it go")


def test_the_client_s_own_node_is_killed(nodes: Rig) -> None:
    connection = connected(nodes)
    connection.channel().queue_declare("mine", exclusive=True)
    wait_until(lambda: len(connections(nodes, "b")) == 1, "it is listed")
    nodes["a"].kill()
    wait_until(lambda: connections(nodes, "b") == [], "its owner has seen it go")
    found: Any = nodes["b"].api("GET", "/api/queues")
    assert found == []
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        connection.process_data_events(60)


def test_another_owner(nodes: Rig) -> None:
    connection = connected(nodes)
    nodes.own("v", "c")
    assert closed(connection) == MOVING
    again = connected(nodes)
    assert [each["node"] for each in connections(nodes, "c")] == ["a"]
    again.close()


def test_the_vhost_comes_to_the_client_s_own_node_while_it_waits(nodes: Rig) -> None:
    nodes.own("v", None)
    found: list[pika.BlockingConnection] = []
    opening = threading.Thread(target=lambda: found.append(connected(nodes)))
    opening.start()
    opening.join(1)
    assert not found
    nodes.own("v", "a")
    opening.join(60)
    assert [each["node"] for each in connections(nodes, "a")] == [connections(nodes, "a")[0]["node"]]
    assert connections(nodes, "b") == []
    found[0].channel().queue_declare("here")
    found[0].close()


def test_open_waits_for_an_owner(nodes: Rig) -> None:
    nodes.own("v", None)
    found: list[pika.BlockingConnection] = []
    opening = threading.Thread(target=lambda: found.append(connected(nodes)))
    opening.start()
    opening.join(1)
    assert not found
    nodes.own("v", "c")
    opening.join(60)
    assert len(connections(nodes, "c")) == 1
    found[0].close()


def test_the_vhost_is_deleted_while_open_waits(nodes: Rig) -> None:
    nodes.own("v", None)
    found: list[Exception] = []

    def opening() -> None:
        try:
            connected(nodes)
        except ProbableAccessDeniedError as error:
            found.append(error)

    thread = threading.Thread(target=opening)
    thread.start()
    thread.join(1)
    nodes.forget("v")
    thread.join(60)
    assert "vhost v not found" in str(found[0])


def test_the_owner_says_it_is_not_its_own(nodes: Rig) -> None:
    """The table says b, b has no such vhost yet: as where a takeover is known before it is done."""
    nodes.own("late", "b")
    found: list[pika.BlockingConnection] = []
    opening = threading.Thread(target=lambda: found.append(connected(nodes, vhost="late")))
    opening.start()
    opening.join(0.7)
    assert not found
    opening.join(60)
    found[0].close()


def test_an_owner_that_stands_still_is_found_silent(nodes: Rig) -> None:
    """Its kernel goes on answering; the link does not. What it was served is over for it when it wakes."""
    connection = connected(nodes)
    wait_until(lambda: len(connections(nodes, "b")) == 1, "it is listed")
    os.kill(nodes["b"].pid, signal.SIGSTOP)
    try:
        assert closed(connection) == MOVING
    finally:
        os.kill(nodes["b"].pid, signal.SIGCONT)
    assert nodes["a"].says("node b is silent for 6 s")
    wait_until(lambda: connections(nodes, "b") == [], "it has seen its client go")
    again = connected(nodes)
    again.close()


def test_a_client_that_goes_while_open_waits_leaves_nothing(nodes: Rig) -> None:
    nodes.own("v", None)
    import socket

    with socket.create_connection(("127.0.0.1", nodes["a"].amqp_port), timeout=60) as sock:
        handshake(sock)
        time.sleep(0.2)
    nodes.own("v", "b")
    wait_until(lambda: nodes["b"].says("has opened vhost") or nodes["a"].says("proxied"), "it was taken there", 20)
    wait_until(lambda: connections(nodes, "b") == [], "and is gone")


def test_a_client_that_waits_when_its_node_stops_is_taken_nowhere(nodes: Rig) -> None:
    """Another one that does not answer holds the stop up, until the vhost has an owner again."""
    import socket

    nodes.own("w", "b")
    nodes.own("v", None)
    address = ("127.0.0.1", nodes["a"].amqp_port)
    with socket.create_connection(address, timeout=60) as holds, socket.create_connection(address, timeout=60) as waits:
        handshake(holds, "w")
        holds.recv(4096)
        handshake(waits)
        time.sleep(0.2)
        stopping = threading.Thread(target=nodes["a"].stop)
        stopping.start()
        assert waits.recv(4096) == b"", "it hears no more"
        nodes.own("v", "b")
        time.sleep(0.5)
        assert nodes["a"].running
        assert connections(nodes, "b") == [], "nobody has brought it there"
    stopping.join()
    assert nodes.problems("a") == []


def handshake(sock: Any, vhost: str = "v") -> None:
    """As far as connection.open."""
    sock.sendall(HEADER)
    sock.recv(4096)
    ok = methods.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US")
    sock.sendall(methods.frame(0, ok))
    sock.recv(4096)
    sock.sendall(
        methods.frame(0, methods.ConnectionTuneOk(0, 131072, 0)) + methods.frame(0, methods.ConnectionOpen(vhost))
    )
