"""A peer that does not answer is reset; a peer that closes in order sees the end of the stream.

After a mere end of the stream, the peer's kernel would accept its next publish and lose it silently.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pamqp.commands as spec
import pamqp.frame
import pytest
import trustme

from amqpd.testing import BrokerProcess

WAIT_S = 60.0
END = "the end of the stream"
RESET = "a reset"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def broker(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder: Path = tmp_path_factory.mktemp("tls")
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(folder / "certificate.pem", append=True)
    settings = {
        "amqp.tls.port": 0,
        "amqp.tls.certificate": folder / "certificate.pem",
        "amqp.tls.key": folder / "key.pem",
    }
    with BrokerProcess(tmp_path_factory.mktemp("data"), settings=settings) as process:
        yield process
        assert "Traceback" not in process.stderr, process.stderr


def marshal(*methods: Any, channel: int = 0) -> bytes:
    return b"".join([pamqp.frame.marshal(method, channel) for method in methods])


def client(broker: BrokerProcess, heartbeat_s: int, trust: ssl.SSLContext | None = None) -> socket.socket:
    """Return a socket after connection.open, with the broker's replies unread. trust: use TLS."""
    assert broker.ready is not None
    sock = socket.create_connection(broker.ready.listeners["amqp" if trust is None else "amqps"], WAIT_S)
    if trust is not None:
        sock = trust.wrap_socket(sock, server_hostname="localhost")
    sock.sendall(
        b"AMQP\x00\x00\x09\x01"
        + marshal(
            spec.Connection.StartOk({}, "PLAIN", "\0guest\0guest"),
            spec.Connection.TuneOk(2047, 131072, heartbeat_s),
            spec.Connection.Open("/"),
        )
    )
    return sock


def outcome(sock: socket.socket) -> tuple[str, bytes]:
    """Return how the stream ended, and the bytes before. Read below TLS, which does not distinguish the two ends."""
    data = b""
    with socket.socket(fileno=os.dup(sock.fileno())) as plain:
        plain.settimeout(WAIT_S)
        try:
            while piece := plain.recv(65536):
                data += piece
        except ConnectionResetError:
            return RESET, data
    return END, data


@pytest.mark.slow
def test_peer_that_does_not_answer_is_reset(broker: BrokerProcess, authority: trustme.CA) -> None:
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    sleeper, tls_sleeper = client(broker, 1), client(broker, 1, trust)
    # A second channel.open is a hard error. The client does not answer the connection.close.
    unanswering, polite, half_closed = client(broker, 0), client(broker, 0), client(broker, 0)
    unanswering.sendall(marshal(spec.Channel.Open(), spec.Channel.Open(), channel=1))
    polite.sendall(marshal(spec.Connection.Close(200, "bye", 0, 0)))
    half_closed.shutdown(socket.SHUT_WR)
    socks = (sleeper, tls_sleeper, unanswering, polite, half_closed)
    ends = [outcome(sock) for sock in socks]
    with pytest.raises(OSError):
        sleeper.sendall(marshal(spec.Channel.Open(), channel=1))
    for sock in socks:
        sock.close()
    assert [ending for ending, _ in ends] == [RESET, RESET, RESET, END, END]
    assert struct.pack(">HH", 10, 50) in ends[2][1], "no connection.close before the reset"
    assert ends[3][1].endswith(marshal(spec.Connection.CloseOk()))
    assert broker.says("the client did not answer connection.close in 3 s, the connection is reset"), broker.stderr
