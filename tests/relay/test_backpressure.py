"""Backpressure through proxied connections, memory of a thousand of them, and TLS."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pika
import pytest
import trustme
from pika.credentials import ExternalCredentials
from relay_rig import Rig, connections, wait_until

from amqpd.connection.channel_zero import HEADER
from amqpd.protocol import methods
from amqpd.testing import BrokerProcess

MIB = 1 << 20


def resident_bytes(broker: BrokerProcess) -> int:
    """Return the anonymous resident memory in bytes."""
    for line in Path(f"/proc/{broker.pid}/status").read_text("ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


def open_client(rig: Rig, vhost: str = "v") -> socket.socket:
    """Return a plain client socket at a, with channel 1 open and without confirms."""
    return open_client_at(rig, "a", vhost)


def open_client_at(rig: Rig, node: str, vhost: str = "v") -> socket.socket:
    """Return such a client at any node."""
    sock = socket.create_connection(("127.0.0.1", rig[node].amqp_port), timeout=60)
    sock.sendall(HEADER)
    sock.recv(4096)
    sock.sendall(methods.frame(0, methods.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US")))
    sock.recv(4096)
    sock.sendall(
        methods.frame(0, methods.ConnectionTuneOk(0, 131072, 0))
        + methods.frame(0, methods.ConnectionOpen(vhost))
        + methods.frame(1, methods.ChannelOpen())
    )
    answers = b""
    while len(answers) < 13 + 16:
        answers += sock.recv(4096)
    return sock


def publish(queue: str, body: bytes) -> bytes:
    """Return the frames of one message."""
    method = methods.frame(1, methods.BasicPublish("", queue))
    header = (60).to_bytes(2, "big") + bytes(2) + len(body).to_bytes(8, "big") + bytes(2)
    frames = [method, b"\x02\0\x01" + len(header).to_bytes(4, "big") + header + b"\xce"]
    for start in range(0, len(body), 131_064):
        part = body[start : start + 131_064]
        frames.append(b"\x03\0\x01" + len(part).to_bytes(4, "big") + part + b"\xce")
    return b"".join(frames)


def test_client_that_does_not_read(rig: Rig) -> None:
    """400 MiB are ready for the client: some of it is in buffers, but not in the memory of its node."""
    filler = pika.BlockingConnection(pika.URLParameters(rig.url("b", "v")))
    channel = filler.channel()
    channel.queue_declare("much", durable=True)
    for _ in range(400):
        channel.basic_publish("", "much", bytes(MIB), pika.BasicProperties(delivery_mode=2))
    with open_client(rig) as sock:  # the first client's memory stays with malloc, 20 MiB
        sock.sendall(methods.frame(1, methods.BasicConsume(queue="much", consumer_tag="c", no_ack=True)))
        read(sock, 64 * MIB)
    wait_until(lambda: len(connections(rig, "b")) == 1, "the connection is closed")
    before = {name: resident_bytes(rig[name]) for name in "ab"}
    with open_client(rig) as sock:
        sock.sendall(methods.frame(1, methods.BasicConsume(queue="much", consumer_tag="c", no_ack=True)))
        wait_until_idle(rig)
        grown = {name: resident_bytes(rig[name]) - before[name] for name in "ab"}
        assert grown["a"] < 8 * MIB, grown
        assert grown["b"] < 32 * MIB, grown
        assert len(connections(rig, "b")) == 2  # longer than the timeouts of a silent link and of TCP_USER_TIMEOUT
        read(sock, 64 * MIB)
    channel.queue_delete("much")
    filler.close()


def read(sock: socket.socket, size: int) -> None:
    while size > 0:
        got = len(sock.recv(MIB))
        assert got
        size -= got


def wait_until_idle(rig: Rig) -> None:
    """Wait until no byte moves for longer than a silent node is tolerated."""
    moved = -1
    since = time.monotonic()
    while time.monotonic() - since < 8:
        found = sum(int(each["send_oct"]) + int(each["recv_oct"]) for each in connections(rig, "b"))
        if found != moved:
            moved, since = found, time.monotonic()
        time.sleep(0.25)


def test_owner_with_alarm_pauses_publisher(rig: Rig) -> None:
    """An alarm pauses publishers: further messages stay in the client's socket."""
    before = {name: resident_bytes(rig[name]) for name in "ab"}
    with open_client(rig) as sock:
        sock.sendall(methods.frame(1, methods.QueueDeclare(queue="held")))
        sock.recv(4096)
        rig["b"].api("PUT", "/api/amqpd/alarms/memory", {})
        try:
            message = publish("held", bytes(MIB))
            sock.settimeout(2)
            sent = 0
            with suppress(TimeoutError):
                while sent < 400:
                    sock.sendall(message)
                    sent += 1
            assert sent < 40
            grown = {name: resident_bytes(rig[name]) - before[name] for name in "ab"}
            assert grown["a"] < 8 * MIB, grown
            assert grown["b"] < 16 * MIB, grown
        finally:
            rig["b"].api("DELETE", "/api/amqpd/alarms/memory")
        wait_until(lambda: length(rig, "held") >= sent, "all complete messages are queued")


def length(rig: Rig, queue: str) -> int:
    found: Any = rig["b"].api("GET", f"/api/queues/v/{queue}")
    return int(found["messages"])


def test_memory_of_a_thousand_proxied_connections(rig: Rig) -> None:
    sockets = []
    try:
        before = {name: resident_bytes(rig[name]) for name in "ab"}
        for _ in range(1000):
            sockets.append(open_client(rig))
        wait_until(lambda: len(connections(rig, "b")) == 1000, "all are listed")
        bytes_per_client = {name: (resident_bytes(rig[name]) - before[name]) // 1000 for name in "ab"}
        print("bytes of memory for each of 1,000:", bytes_per_client)
        assert bytes_per_client["a"] < 192 * 1024, bytes_per_client
        assert bytes_per_client["b"] < 256 * 1024, bytes_per_client
        client = pika.BlockingConnection(pika.URLParameters(rig.url("a", "v")))
        client.channel().queue_declare("one more")
        client.close()
    finally:
        for sock in sockets:
            sock.close()
    wait_until(lambda: connections(rig, "b") == [], "all are closed")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def tls_nodes(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("tls")
    server = authority.issue_cert("localhost", "127.0.0.1")
    server.private_key_pem.write_to_path(folder / "key.pem")
    for blob in server.cert_chain_pems:
        blob.write_to_path(folder / "certificate.pem", append=True)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    settings: dict[str, object] = {
        "amqp.tls.port": 0,
        "amqp.tls.certificate": folder / "certificate.pem",
        "amqp.tls.key": folder / "key.pem",
        "amqp.tls.ca": folder / "ca.pem",
        "amqp.tls.verify_peer": True,
        "auth.mechanisms": "PLAIN,EXTERNAL",
        "auth.ssl_cert_login_from": "common_name",
    }
    with Rig(folder / "nodes", ("a", "b"), **settings) as rig:
        rig.own("v", "b")
        for name in "ab":
            rig[name].api("PUT", "/api/users/client", {"password": "x", "tags": ""})
        rig["b"].api("PUT", "/api/permissions/v/client", {"configure": ".*", "write": ".*", "read": ".*"})
        yield rig


def test_proxied_client_with_certificate(tls_nodes: Rig, authority: trustme.CA) -> None:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    authority.issue_cert("client.example", common_name="client").configure_cert(context)
    ready = tls_nodes["a"].ready
    assert ready is not None
    connection = pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1",
            ready.listeners["amqps"][1],
            "v",
            ExternalCredentials(),
            ssl_options=pika.SSLOptions(context, "localhost"),
        )
    )
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("tls")
    channel.basic_publish("", "tls", bytes(MIB))
    assert channel.basic_get("tls", auto_ack=True)[2] == bytes(MIB)
    listed = connections(tls_nodes, "b")[0]
    assert (listed["user"], listed["auth_mechanism"], listed["ssl"]) == ("client", "EXTERNAL", True)
    assert listed["ssl_protocol"] == "tlsv1.3"
    assert "CN=client" in listed["peer_cert_subject"]
    assert "trustme" in listed["peer_cert_issuer"]
    tls_nodes.own("v", "a")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        connection.process_data_events(60)
    assert closed.value.reply_code == 320
