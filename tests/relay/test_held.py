"""Whoever does not read holds whoever writes to him, through both nodes, and neither fills up; a thousand; TLS."""

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


def resident(broker: BrokerProcess) -> int:
    """Bytes."""
    for line in Path(f"/proc/{broker.pid}/status").read_text("ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


def opened(rig: Rig, vhost: str = "v") -> socket.socket:
    """A bare client at a, with channel 1 open; confirms are not asked for."""
    return opened_at(rig, "a", vhost)


def opened_at(rig: Rig, node: str, vhost: str = "v") -> socket.socket:
    """The same at any node."""
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
    """Frames of one message."""
    method = methods.frame(1, methods.BasicPublish("", queue))
    header = (60).to_bytes(2, "big") + bytes(2) + len(body).to_bytes(8, "big") + bytes(2)
    frames = [method, b"\x02\0\x01" + len(header).to_bytes(4, "big") + header + b"\xce"]
    for start in range(0, len(body), 131_064):
        part = body[start : start + 131_064]
        frames.append(b"\x03\0\x01" + len(part).to_bytes(4, "big") + part + b"\xce")
    return b"".join(frames)


def test_a_client_that_does_not_read(rig: Rig) -> None:
    """400 MiB wait for it: a few of them stand in buffers, none of them at its node's cost."""
    filler = pika.BlockingConnection(pika.URLParameters(rig.url("b", "v")))
    channel = filler.channel()
    channel.queue_declare("much", durable=True)
    for _ in range(400):
        channel.basic_publish("", "much", bytes(MIB), pika.BasicProperties(delivery_mode=2))
    with opened(rig) as sock:  # what the first one takes of malloc stays with it, 20 MiB
        sock.sendall(methods.frame(1, methods.BasicConsume(queue="much", consumer_tag="c", no_ack=True)))
        read(sock, 64 * MIB)
    wait_until(lambda: len(connections(rig, "b")) == 1, "it is gone")
    before = {name: resident(rig[name]) for name in "ab"}
    with opened(rig) as sock:
        sock.sendall(methods.frame(1, methods.BasicConsume(queue="much", consumer_tag="c", no_ack=True)))
        steady(rig)
        grown = {name: resident(rig[name]) - before[name] for name in "ab"}
        assert grown["a"] < 8 * MIB, grown
        assert grown["b"] < 32 * MIB, grown
        assert len(connections(rig, "b")) == 2  # longer than a link or TCP_USER_TIMEOUT would bear
        read(sock, 64 * MIB)
    channel.queue_delete("much")
    filler.close()


def read(sock: socket.socket, size: int) -> None:
    while size > 0:
        got = len(sock.recv(MIB))
        assert got
        size -= got


def steady(rig: Rig) -> None:
    """Nothing moves any more, and has not for longer than a silent node is given."""
    moved = -1
    since = time.monotonic()
    while time.monotonic() - since < 8:
        found = sum(int(each["send_oct"]) + int(each["recv_oct"]) for each in connections(rig, "b"))
        if found != moved:
            moved, since = found, time.monotonic()
        time.sleep(0.25)


def test_an_owner_that_does_not_read(rig: Rig) -> None:
    """An alarm holds publishers: what one has sent behind it waits in his own socket."""
    before = {name: resident(rig[name]) for name in "ab"}
    with opened(rig) as sock:
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
            grown = {name: resident(rig[name]) - before[name] for name in "ab"}
            assert grown["a"] < 8 * MIB, grown
            assert grown["b"] < 16 * MIB, grown
        finally:
            rig["b"].api("DELETE", "/api/amqpd/alarms/memory")
        wait_until(lambda: length(rig, "held") >= sent, "what was sent whole is there")


def length(rig: Rig, queue: str) -> int:
    found: Any = rig["b"].api("GET", f"/api/queues/v/{queue}")
    return int(found["messages"])


def test_a_thousand(rig: Rig) -> None:
    sockets = []
    try:
        before = {name: resident(rig[name]) for name in "ab"}
        for _ in range(1000):
            sockets.append(opened(rig))
        wait_until(lambda: len(connections(rig, "b")) == 1000, "all are there")
        each = {name: (resident(rig[name]) - before[name]) // 1000 for name in "ab"}
        print("bytes of memory for each of 1,000:", each)
        assert each["a"] < 192 * 1024, each
        assert each["b"] < 256 * 1024, each
        client = pika.BlockingConnection(pika.URLParameters(rig.url("a", "v")))
        client.channel().queue_declare("one more")
        client.close()
    finally:
        for sock in sockets:
            sock.close()
    wait_until(lambda: connections(rig, "b") == [], "all are gone")


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


def test_a_client_with_a_certificate(tls_nodes: Rig, authority: trustme.CA) -> None:
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
    shown = connections(tls_nodes, "b")[0]
    assert (shown["user"], shown["auth_mechanism"], shown["ssl"]) == ("client", "EXTERNAL", True)
    assert shown["ssl_protocol"] == "tlsv1.3"
    assert "CN=client" in shown["peer_cert_subject"]
    assert "trustme" in shown["peer_cert_issuer"]
    tls_nodes.own("v", "a")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        connection.process_data_events(60)
    assert closed.value.reply_code == 320
