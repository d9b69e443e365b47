"""The peer port: proofs, malformed data, slow bytes, many sockets, and changes for slot 0."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import struct
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pika
import pytest
import uvloop
from relay_rig import SECRET, Rig, wait_until

from amqpd.cluster import peer_link
from amqpd.cluster.metadata import NotOwner
from amqpd.cluster.peer_link import (
    NAME,
    BadPreamble,
    PeerConnector,
    PeerRefused,
    PeerUnreachable,
    Preamble,
    ProxiedClient,
    identity,
    peer_context,
)
from amqpd.cluster.peer_server import forward_changes
from amqpd.cluster.proxy import ConnectionProxy
from amqpd.cluster.row_codec import PutAnnotation
from amqpd.storage.metadata.rows import Put, UserRow
from amqpd.storage.metadata.store import WriteFailed

CLIENT = ProxiedClient(
    "guest", "v", "PLAIN", {"product": "x", "capabilities": {"a": True}}, 2047, 131072, 60, 1.5, ("10.0.0.1", 5),
    ("10.0.0.2", 5672), False, True, ("TLSv1.3", "TLS_AES_256_GCM_SHA384"),
    {"subject": [[["commonName", "me"]]]}, 7,
)  # fmt: skip


class TestPreamble:
    def test_preamble_round_trip(self) -> None:
        preamble = Preamble(peer_link.AMQP, "a", "0f", CLIENT)
        body = peer_link.encode_preamble(preamble)
        assert peer_link.decode_preamble(body) == preamble
        proof = peer_link.compute_proof(b"secret", b"n" * 32, "ab" * 32, body)
        assert peer_link.split_preamble(peer_link.frame_preamble(body, proof)) == (body, proof)
        assert peer_link.split_preamble(peer_link.frame_preamble(body, proof)[:-1]) is None

    def test_large_client_properties_are_shortened(self) -> None:
        properties = {"product": "x", "more": "y" * 20_000}
        body = peer_link.encode_preamble(
            Preamble(peer_link.AMQP, "a", "0f", CLIENT._replace(client_properties=properties))
        )
        assert len(body) < peer_link.PREAMBLE_BYTES_MAX
        client = peer_link.decode_preamble(body).client
        assert client is not None
        assert (client.client_properties, client.certificate) == ({"product": "x"}, {})

    @pytest.mark.parametrize("changed_part", ["secret", "nonce", "fingerprint", "body"])
    def test_proof_depends_on_secret_nonce_node_and_preamble(self, changed_part: str) -> None:
        arguments = {"secret": b"s" * 16, "nonce": b"n" * 32, "fingerprint": "ab" * 32, "body": b"{}"}
        proof = peer_link.compute_proof(*arguments.values())  # type: ignore[arg-type]
        assert peer_link.is_proof(proof, *arguments.values())  # type: ignore[arg-type]
        changed = {**arguments, changed_part: "cd" * 32 if changed_part == "fingerprint" else b"x" * 32}
        assert not peer_link.is_proof(proof, *changed.values())  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "body",
        [
            b"", b"[]", b"null", b"{}", b'{"kind":"amqp","node":"a","run":"b"}', b"[" * 15_000,
            b'{"kind":"amqp","node":"a","run":"b","client":{}}', b'{"kind":"x","node":"a","run":"b"}',
            b'{"kind":"link","node":1,"run":"b"}', b"\xff\xfe", b'{"kind":"amqp","node":"a","run":"b","client":[]}',
        ],
    )  # fmt: skip
    def test_malformed_preamble_is_refused(self, body: bytes) -> None:
        with pytest.raises(BadPreamble):
            peer_link.decode_preamble(body)

    @pytest.mark.parametrize("length", [0, peer_link.PREAMBLE_BYTES_MAX + 1, 0xFFFFFFFF])
    def test_invalid_length_is_refused_at_once(self, length: int) -> None:
        with pytest.raises(BadPreamble):
            peer_link.split_preamble(struct.pack(">I", length))


class TestIdentity:
    def test_identity_is_kept_and_private(self, tmp_path: Path) -> None:
        first = identity(tmp_path)
        assert identity(tmp_path).fingerprint == first.fingerprint
        assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600
        changed_part = tmp_path / "other"
        changed_part.mkdir()
        assert identity(changed_part).fingerprint != first.fingerprint

    def test_invalid_identity_file_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / NAME).write_text("nothing", "ascii")
        with pytest.raises(OSError, match="PEM"):
            identity(tmp_path)


def run(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    async def go() -> Any:
        try:
            return await asyncio.wait_for(work(), 60)
        finally:
            await asyncio.sleep(0.1)  # transports close in later turns of the loop

    return uvloop.run(go())


class TestAuthentication:
    @pytest.mark.slow
    def test_wrong_secret_is_refused(self, rig: Rig) -> None:
        connector = PeerConnector("x", b"another secret, long enough")

        async def go() -> None:
            await connector.open(rig.node("b"), connector.preamble(peer_link.LINK), asyncio.Protocol())

        with pytest.raises(PeerRefused, match="the secrets differ") as refused:
            run(go)
        assert refused.value.answer == peer_link.WRONG_SECRET
        assert rig["b"].says("wrong proof")

    def test_node_with_wrong_certificate_gets_no_preamble(self, rig: Rig) -> None:
        connector = PeerConnector("x", SECRET.encode())
        node = rig.node("b")._replace(fingerprint=rig.node("a").fingerprint)

        async def go() -> None:
            await connector.open(node, connector.preamble(peer_link.LINK), asyncio.Protocol())

        with pytest.raises(PeerUnreachable, match="wrong certificate"):
            run(go)

    @pytest.mark.slow
    def test_client_without_link_is_refused(self, rig: Rig) -> None:
        connector = PeerConnector("x", SECRET.encode())

        async def go() -> None:
            await connector.open(rig.node("b"), connector.preamble(peer_link.AMQP, CLIENT), asyncio.Protocol())

        with pytest.raises(PeerRefused, match="no link"):
            run(go)

    def test_replayed_preamble_is_refused(self, rig: Rig) -> None:
        """A preamble that is valid on one connection is refused on the next."""
        connector = PeerConnector("x", SECRET.encode())
        body = peer_link.encode_preamble(connector.preamble(peer_link.LINK))
        with peer_connection(rig) as (sock, nonce):
            framed_preamble = peer_link.frame_preamble(
                body, peer_link.compute_proof(SECRET.encode(), nonce, rig.node("b").fingerprint, body)
            )
            sock.sendall(framed_preamble)
            assert peer_link.decode_answer(sock.recv(100)) == (peer_link.WELCOME, "", 3)
        with peer_connection(rig) as (sock, _nonce):
            sock.sendall(framed_preamble)
            answer = peer_link.decode_answer(sock.recv(100))
            assert answer is not None
            assert answer.answer == peer_link.WRONG_SECRET


class peer_connection:  # noqa: N801  # used as a function
    """A TLS connection to the peer port of b, and its nonce."""

    def __init__(self, rig: Rig) -> None:
        node = rig.node("b")
        plain = socket.create_connection((node.host, node.port), timeout=30)
        self.sock = peer_context().wrap_socket(plain)

    def __enter__(self) -> tuple[ssl.SSLSocket, bytes]:
        hello = b""
        while len(hello) < peer_link.HELLO_BYTES:
            hello += self.sock.recv(100)
        assert hello.startswith(peer_link.GREETING)
        return self.sock, hello[len(peer_link.GREETING) :]

    def __exit__(self, *_: object) -> None:
        self.sock.close()


class TestMalformedData:
    @pytest.mark.parametrize(
        "garbage", [b"GET / HTTP/1.1\r\n\r\n", b"AMQP\0\0\x09\x01", b"\x16\x03\x01\xff\xff" + b"x" * 70_000]
    )
    def test_socket_without_tls_is_closed(self, rig: Rig, garbage: bytes) -> None:
        node = rig.node("b")
        with socket.create_connection((node.host, node.port), timeout=30) as sock:
            sock.sendall(garbage)
            assert is_closed(sock)

    @pytest.mark.slow
    @pytest.mark.parametrize("garbage", [b"\xff" * 100, struct.pack(">I", 16384), struct.pack(">I", 5) + b"x" * 20_000])
    def test_invalid_preamble_closes_socket(self, rig: Rig, garbage: bytes) -> None:
        with peer_connection(rig) as (sock, _nonce):
            sock.sendall(garbage)
            assert is_closed(sock)

    @pytest.mark.slow
    def test_slow_preamble_times_out_after_five_seconds(self, rig: Rig) -> None:
        started = time.monotonic()
        with peer_connection(rig) as (sock, _nonce):
            sock.settimeout(0.2)
            for byte in struct.pack(">I", 10_000) + b" " * 10_000:
                try:
                    sock.sendall(bytes([byte]))
                    if sock.recv(1) == b"":
                        break
                except TimeoutError:
                    continue
                except OSError:
                    break
            else:
                pytest.fail("the broker read all bytes")
        assert time.monotonic() - started >= peer_link.WAIT_S - 0.5

    @pytest.mark.slow
    def test_ten_thousand_silent_sockets_do_not_disturb_clients(self, rig: Rig) -> None:
        """The sockets come from another address than the nodes. At most 512 wait at once, each for 5 s."""
        node = rig.node("b")
        silent: list[socket.socket] = []

        def open_silent_socket() -> None:
            sock = socket.socket()
            sock.settimeout(30)
            sock.bind(("127.0.0.2", 0))
            sock.connect((node.host, node.port))
            silent.append(sock)
            if len(silent) > 2000:  # limit of this process's descriptors
                silent.pop(0).close()

        try:
            for number in range(10_000):
                open_silent_socket()
                if number % 1000 == 500:
                    client = pika.BlockingConnection(pika.URLParameters(rig.url("a", "v")))
                    client.channel().queue_declare("beside")
                    client.close()
            assert descriptors(rig["b"].pid) < 1000
            # The broker logs one line a second, and a fast machine may have finished before that.
            while not rig["b"].says("too many connections wait", timeout_s=0):
                open_silent_socket()
        finally:
            for sock in silent:
                sock.close()
        wait_until(lambda: descriptors(rig["b"].pid) < 100, "all are closed")


def descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def is_closed(sock: socket.socket) -> bool:
    """Return True when the other end closes the socket."""
    try:
        while sock.recv(4096):
            pass
    except (ConnectionError, ssl.SSLError):
        return True
    return True


class TestChangesForSlot0:
    @pytest.fixture
    def connector(self) -> PeerConnector:
        return PeerConnector("x", SECRET.encode())

    def test_forwarded_changes_return_the_next_offset(self, rig: Rig, connector: PeerConnector) -> None:
        changes = [Put(UserRow("u", "h", "a", ("administrator",))), PutAnnotation(("wish", 3), {"node": "a"})]
        assert run(lambda: forward_changes(connector, rig.node("b"), changes)) == 1002

    def test_refused_changes_and_wrong_owner(self, rig: Rig, connector: PeerConnector) -> None:
        with pytest.raises(WriteFailed, match="this one is refused") as refused:
            run(lambda: forward_changes(connector, rig.node("b"), [Put(UserRow("refused", "", "", ()))]))
        assert not isinstance(refused.value, NotOwner)
        with pytest.raises(NotOwner, match="slot 0 is another's"):
            run(lambda: forward_changes(connector, rig.node("b"), [Put(UserRow("elsewhere", "", "", ()))]))

    def test_unreachable_node_is_not_owner(self, rig: Rig, connector: PeerConnector) -> None:
        with pytest.raises(NotOwner, match="node b at"):
            run(lambda: forward_changes(connector, rig.node("b")._replace(port=1), []))

    def test_malformed_changes_get_an_error(self, rig: Rig, connector: PeerConnector) -> None:
        async def go() -> bytes:
            received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

            class Receiver(asyncio.Protocol):
                def data_received(self, data: bytes) -> None:
                    if not received.done():
                        received.set_result(data)

            transport = await connector.open(rig.node("b"), connector.preamble(peer_link.WRITE), Receiver())
            transport.write(struct.pack(">I", 7) + b'["what"')
            try:
                return await received
            finally:
                transport.abort()

        assert b'"error"' in run(go)


@pytest.mark.slow
async def test_failed_link_without_clients_is_no_unhandled_error() -> None:
    """The clients gave up during the connection attempt; the loop gets no exception, and the next client gets the
    reason.
    """
    loop = asyncio.get_running_loop()
    errors: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _loop, context: errors.append(context))
    failing_now = asyncio.Event()

    async def fail_to_connect(*_: object) -> None:
        await failing_now.wait()
        raise PeerUnreachable("node b at 127.0.0.1:1: no answer")

    connector: Any = SimpleNamespace(open=fail_to_connect, preamble=lambda _: None)
    broker: Any = SimpleNamespace(loop=loop, alarms=SimpleNamespace(listeners=[], raised={}))
    view: Any = SimpleNamespace(listeners=[])
    relays = ConnectionProxy(broker, view, connector)
    node: Any = SimpleNamespace(name="b", fingerprint="ab")
    waiting = asyncio.create_task(relays._link_to(node))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    failing_now.set()
    await asyncio.sleep(0.01)
    gc.collect()
    assert errors == []
    with pytest.raises(PeerUnreachable, match="no answer"):
        await relays._link_to(node)
