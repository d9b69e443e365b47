"""The inner port, for who is a node and who is not: proofs, garbage, slow bytes, crowds, and changes for slot 0."""

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
from amqpd.storage.metadata.store import Put, UserRow, WriteFailed

CLIENT = ProxiedClient(
    "guest", "v", "PLAIN", {"product": "x", "capabilities": {"a": True}}, 2047, 131072, 60, 1.5, ("10.0.0.1", 5),
    ("10.0.0.2", 5672), False, True, ("TLSv1.3", "TLS_AES_256_GCM_SHA384"),
    {"subject": [[["commonName", "me"]]]}, 7,
)  # fmt: skip


class TestPreamble:
    def test_there_and_back(self) -> None:
        said = Preamble(peer_link.AMQP, "a", "0f", CLIENT)
        body = peer_link.encode_preamble(said)
        assert peer_link.decode_preamble(body) == said
        proven = peer_link.compute_proof(b"secret", b"n" * 32, "ab" * 32, body)
        assert peer_link.split_preamble(peer_link.frame_preamble(body, proven)) == (body, proven)
        assert peer_link.split_preamble(peer_link.frame_preamble(body, proven)[:-1]) is None

    def test_a_client_with_much_to_say_is_told_in_short(self) -> None:
        properties = {"product": "x", "more": "y" * 20_000}
        body = peer_link.encode_preamble(
            Preamble(peer_link.AMQP, "a", "0f", CLIENT._replace(client_properties=properties))
        )
        assert len(body) < peer_link.PREAMBLE_BYTES_MAX
        client = peer_link.decode_preamble(body).client
        assert client is not None
        assert (client.client_properties, client.certificate) == ({"product": "x"}, {})

    @pytest.mark.parametrize("other", ["secret", "nonce", "fingerprint", "body"])
    def test_a_proof_is_of_one_secret_nonce_node_and_preamble(self, other: str) -> None:
        given = {"secret": b"s" * 16, "nonce": b"n" * 32, "fingerprint": "ab" * 32, "body": b"{}"}
        proven = peer_link.compute_proof(*given.values())  # type: ignore[arg-type]
        assert peer_link.is_proof(proven, *given.values())  # type: ignore[arg-type]
        changed = {**given, other: "cd" * 32 if other == "fingerprint" else b"x" * 32}
        assert not peer_link.is_proof(proven, *changed.values())  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "body",
        [
            b"", b"[]", b"null", b"{}", b'{"kind":"amqp","node":"a","run":"b"}', b"[" * 15_000,
            b'{"kind":"amqp","node":"a","run":"b","client":{}}', b'{"kind":"x","node":"a","run":"b"}',
            b'{"kind":"link","node":1,"run":"b"}', b"\xff\xfe", b'{"kind":"amqp","node":"a","run":"b","client":[]}',
        ],
    )  # fmt: skip
    def test_what_is_none(self, body: bytes) -> None:
        with pytest.raises(BadPreamble):
            peer_link.decode_preamble(body)

    @pytest.mark.parametrize("length", [0, peer_link.PREAMBLE_BYTES_MAX + 1, 0xFFFFFFFF])
    def test_its_length_is_looked_at_before_it_is_waited_for(self, length: int) -> None:
        with pytest.raises(BadPreamble):
            peer_link.split_preamble(struct.pack(">I", length))


class TestIdentity:
    def test_it_stays_and_is_private(self, tmp_path: Path) -> None:
        first = identity(tmp_path)
        assert identity(tmp_path).fingerprint == first.fingerprint
        assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600
        other = tmp_path / "other"
        other.mkdir()
        assert identity(other).fingerprint != first.fingerprint

    def test_a_file_that_is_none(self, tmp_path: Path) -> None:
        (tmp_path / NAME).write_text("nothing", "ascii")
        with pytest.raises(OSError, match="PEM"):
            identity(tmp_path)


def run(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    async def go() -> Any:
        try:
            return await asyncio.wait_for(work(), 60)
        finally:
            await asyncio.sleep(0.1)  # what it has closed is closed in later turns of the loop

    return uvloop.run(go())


class TestWhoIsANode:
    @pytest.mark.slow
    def test_the_wrong_secret(self, rig: Rig) -> None:
        connector = PeerConnector("x", b"another secret, long enough")

        async def go() -> None:
            await connector.open(rig.node("b"), connector.preamble(peer_link.LINK), asyncio.Protocol())

        with pytest.raises(PeerRefused, match="the secrets differ") as refused:
            run(go)
        assert refused.value.answer == peer_link.WRONG_SECRET
        assert rig["b"].says("wrong proof")

    def test_another_certificate_hears_no_preamble(self, rig: Rig) -> None:
        connector = PeerConnector("x", SECRET.encode())
        node = rig.node("b")._replace(fingerprint=rig.node("a").fingerprint)

        async def go() -> None:
            await connector.open(node, connector.preamble(peer_link.LINK), asyncio.Protocol())

        with pytest.raises(PeerUnreachable, match="wrong certificate"):
            run(go)

    @pytest.mark.slow
    def test_a_client_without_a_link_is_refused(self, rig: Rig) -> None:
        connector = PeerConnector("x", SECRET.encode())

        async def go() -> None:
            await connector.open(rig.node("b"), connector.preamble(peer_link.AMQP, CLIENT), asyncio.Protocol())

        with pytest.raises(PeerRefused, match="no link"):
            run(go)

    def test_a_replayed_preamble(self, rig: Rig) -> None:
        """What was right for one connection is nothing on the next."""
        connector = PeerConnector("x", SECRET.encode())
        body = peer_link.encode_preamble(connector.preamble(peer_link.LINK))
        with spoken(rig) as (sock, nonce):
            said = peer_link.frame_preamble(
                body, peer_link.compute_proof(SECRET.encode(), nonce, rig.node("b").fingerprint, body)
            )
            sock.sendall(said)
            assert peer_link.decode_answer(sock.recv(100)) == (peer_link.WELCOME, "", 3)
        with spoken(rig) as (sock, _nonce):
            sock.sendall(said)
            answer = peer_link.decode_answer(sock.recv(100))
            assert answer is not None
            assert answer.answer == peer_link.WRONG_SECRET


class spoken:  # noqa: N801  # used as a function
    """A TLS connection to b's inner port, and its nonce."""

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


class TestWhoIsNone:
    @pytest.mark.parametrize(
        "garbage", [b"GET / HTTP/1.1\r\n\r\n", b"AMQP\0\0\x09\x01", b"\x16\x03\x01\xff\xff" + b"x" * 70_000]
    )
    def test_no_tls(self, rig: Rig, garbage: bytes) -> None:
        node = rig.node("b")
        with socket.create_connection((node.host, node.port), timeout=30) as sock:
            sock.sendall(garbage)
            assert ended(sock)

    @pytest.mark.slow
    @pytest.mark.parametrize("garbage", [b"\xff" * 100, struct.pack(">I", 16384), struct.pack(">I", 5) + b"x" * 20_000])
    def test_no_preamble(self, rig: Rig, garbage: bytes) -> None:
        with spoken(rig) as (sock, _nonce):
            sock.sendall(garbage)
            assert ended(sock)

    @pytest.mark.slow
    def test_slow_bytes_have_five_seconds_together(self, rig: Rig) -> None:
        begun = time.monotonic()
        with spoken(rig) as (sock, _nonce):
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
                pytest.fail("it listened to the end")
        assert time.monotonic() - begun >= peer_link.WAIT_S - 0.5

    @pytest.mark.slow
    def test_ten_thousand_silent_sockets_disturb_nobody(self, rig: Rig) -> None:
        """They come from another address than the nodes; 512 wait at once, each for 5 s."""
        node = rig.node("b")
        silent: list[socket.socket] = []

        def one_more() -> None:
            sock = socket.socket()
            sock.settimeout(30)
            sock.bind(("127.0.0.2", 0))
            sock.connect((node.host, node.port))
            silent.append(sock)
            if len(silent) > 2000:  # of this process's own descriptors
                silent.pop(0).close()

        try:
            for number in range(10_000):
                one_more()
                if number % 1000 == 500:
                    client = pika.BlockingConnection(pika.URLParameters(rig.url("a", "v")))
                    client.channel().queue_declare("beside")
                    client.close()
            assert descriptors(rig["b"].pid) < 1000
            # It says one thing a second, and a fast machine has been done before that.
            while not rig["b"].says("too many connections wait", timeout_s=0):
                one_more()
        finally:
            for sock in silent:
                sock.close()
        wait_until(lambda: descriptors(rig["b"].pid) < 100, "all are gone")


def descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def ended(sock: socket.socket) -> bool:
    """Whether the other end closes it."""
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

    def test_it_says_the_offset_behind_them(self, rig: Rig, connector: PeerConnector) -> None:
        changes = [Put(UserRow("u", "h", "a", ("administrator",))), PutAnnotation(("wish", 3), {"node": "a"})]
        assert run(lambda: forward_changes(connector, rig.node("b"), changes)) == 1002

    def test_refused_and_not_its_own(self, rig: Rig, connector: PeerConnector) -> None:
        with pytest.raises(WriteFailed, match="this one is refused") as refused:
            run(lambda: forward_changes(connector, rig.node("b"), [Put(UserRow("refused", "", "", ()))]))
        assert not isinstance(refused.value, NotOwner)
        with pytest.raises(NotOwner, match="slot 0 is another's"):
            run(lambda: forward_changes(connector, rig.node("b"), [Put(UserRow("elsewhere", "", "", ()))]))

    def test_nobody_there(self, rig: Rig, connector: PeerConnector) -> None:
        with pytest.raises(NotOwner, match="node b at"):
            run(lambda: forward_changes(connector, rig.node("b")._replace(port=1), []))

    def test_no_changes(self, rig: Rig, connector: PeerConnector) -> None:
        async def go() -> bytes:
            heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

            class Hears(asyncio.Protocol):
                def data_received(self, data: bytes) -> None:
                    if not heard.done():
                        heard.set_result(data)

            transport = await connector.open(rig.node("b"), connector.preamble(peer_link.WRITE), Hears())
            transport.write(struct.pack(">I", 7) + b'["what"')
            try:
                return await heard
            finally:
                transport.abort()

        assert b'"error"' in run(go)


@pytest.mark.slow
async def test_a_link_that_fails_when_its_clients_have_gone_is_told_nowhere_as_a_bug() -> None:
    """They gave up while it was being made; the loop hears of no error, and the next client is told why."""
    loop = asyncio.get_running_loop()
    heard: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _loop, context: heard.append(context))
    go = asyncio.Event()

    async def unreached(*_: object) -> None:
        await go.wait()
        raise PeerUnreachable("node b at 127.0.0.1:1: no answer")

    connector: Any = SimpleNamespace(open=unreached, preamble=lambda _: None)
    broker: Any = SimpleNamespace(loop=loop, alarms=SimpleNamespace(listeners=[], raised={}))
    view: Any = SimpleNamespace(listeners=[])
    relays = ConnectionProxy(broker, view, connector)
    node: Any = SimpleNamespace(name="b", fingerprint="ab")
    waiting = asyncio.create_task(relays._link_to(node))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go.set()
    await asyncio.sleep(0.01)
    gc.collect()
    assert heard == []
    with pytest.raises(PeerUnreachable, match="no answer"):
        await relays._link_to(node)
