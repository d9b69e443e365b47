"""The HTTP listeners alone: connection limit per address, timeout of the first request, unix socket peers."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from unittest.mock import MagicMock

import pytest
import uvloop
from aiohttp import web

from amqpd.listeners import unix_socket
from amqpd.management import server
from amqpd.management import server as management_server
from amqpd.management.server import LimitedHttpServer

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@asynccontextmanager
async def running_server(handler: Any = None) -> AsyncIterator[int]:
    """Yield the port of a server that answers each request with 204, or with `handler`."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        http_server.on_request(request.protocol)
        return web.Response(status=204)

    http_server = LimitedHttpServer(handler or answer)
    runner = web.ServerRunner(http_server, shutdown_timeout=0.1)
    await runner.setup()
    sock = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, sock).start()
    try:
        yield sock.getsockname()[1]
    finally:
        await runner.cleanup()
        sock.close()


async def test_connection_beyond_limit_per_address_is_closed(monkeypatch):
    monkeypatch.setattr(management_server, "CONNECTIONS_PER_PEER_MAX", 3)
    async with running_server() as port:
        pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        refused_reader, refused = await asyncio.open_connection("127.0.0.1", port)
        refused.write(REQUEST)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await refused_reader.readexactly(12)
        for reader, writer in pairs:
            writer.write(REQUEST)
            assert await reader.readexactly(12) == b"HTTP/1.1 204"
        refused.close()
        pairs.pop()[1].close()
        async with asyncio.timeout(30):
            while True:  # the closed connection counts until the server has read its end
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(REQUEST)
                with suppress(ConnectionError, asyncio.IncompleteReadError):
                    assert await reader.readexactly(12) == b"HTTP/1.1 204"
                    break
                writer.close()
                await asyncio.sleep(0.01)
        for _, each in [*pairs, (reader, writer)]:
            each.close()


async def test_addresses_of_an_ipv6_network_count_together(monkeypatch):
    """A client can have 2^64 addresses in its network."""
    monkeypatch.setattr(management_server, "CONNECTIONS_PER_PEER_MAX", 3)

    async def answer(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=204)

    http_server = LimitedHttpServer(answer)
    transports = []
    for number in range(8):
        transport = MagicMock()
        peer = f"2001:db8::{number:x}" if number % 2 else f"2001:db8:1:{number:x}::1"
        transport.get_extra_info = {"peername": (peer, 1, 0, 0)}.get
        http_server().connection_made(transport)
        transports.append(transport)
    await asyncio.sleep(0)
    assert [each.abort.called for each in transports] == [False] * 7 + [True]


def test_connections_beyond_limit_are_closed_without_traceback_on_uvloop(monkeypatch, caplog):
    """In uvloop, `abort` does not call the protocol back synchronously."""
    monkeypatch.setattr(management_server, "CONNECTIONS_PER_PEER_MAX", 3)

    async def connect_many() -> None:
        loop_errors: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: loop_errors.append(context))
        async with running_server() as port:
            pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
            for reader, _ in pairs[3:]:
                with suppress(ConnectionError):  # a reset also ends the connection
                    assert await reader.read() == b""
            pairs[0][1].write(REQUEST)
            assert await pairs[0][0].readexactly(12) == b"HTTP/1.1 204"
            for _, writer in pairs:
                writer.close()
        assert loop_errors == []

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(connect_many())
    assert "Traceback" not in caplog.text
    assert caplog.text.count("3 connections") == 1


async def test_client_that_does_not_read_its_answers_is_reset(monkeypatch):
    """Such a client would hold a socket, and an answer in memory, until its machine stops."""
    monkeypatch.setattr(management_server, "WRITE_WAIT_S", 0.5)
    ended = asyncio.Event()
    monkeypatch.setattr(management_server.HttpConnection, "connection_lost", lambda *_: ended.set())

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        http_server = request.protocol._manager
        assert isinstance(http_server, LimitedHttpServer)
        http_server.on_request(request.protocol)
        return web.Response(body=bytes(32 << 20))

    async with running_server(answer) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(REQUEST)
            async with asyncio.timeout(60):
                await ended.wait()


async def test_connection_without_complete_first_request_is_closed(monkeypatch):
    monkeypatch.setattr(management_server, "HEADER_WAIT_S", 2.0)
    async with running_server() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST[:-2])
        quick_reader, quick = await asyncio.open_connection("127.0.0.1", port)
        quick.write(REQUEST)
        assert await quick_reader.readexactly(12) == b"HTTP/1.1 204"
        assert await asyncio.wait_for(reader.read(), 30) == b""
        quick.write(REQUEST)
        assert b" 204 " in await asyncio.wait_for(quick_reader.readuntil(b"\r\n\r\nHTTP/1.1 204 "), 30)
        writer.close()
        quick.close()


class FakeRequest:
    def __init__(self, sock: socket.socket) -> None:
        self.transport = self
        self.sock = sock

    def get_extra_info(self, name: str) -> socket.socket:
        assert name == "socket"
        return self.sock


async def answer_to(sent: bytes) -> bytes:
    """Return all that the server sends until it closes the connection."""
    async with running_server() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        response = await asyncio.wait_for(reader.read(), 30)
        writer.close()
    return response


@pytest.mark.parametrize(
    "sent", [b"GET /secret HTTP/9.9\r\n\r\n", b"\x16\x03\x01secret\r\n\r\n", b"GET / HTTP/1.1\r\nsecret\r\n\r\n"]
)
async def test_error_reply_shows_neither_request_nor_library(sent):
    response = await answer_to(sent)
    head, _, body = response.partition(b"\r\n\r\n")
    assert head.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 ")), response
    assert b"\r\nServer: amqpd\r\n" in head + b"\r\n"
    assert body == b'{"error":"bad_request","reason":"the request is not HTTP"}'
    assert not {word for word in (b"secret", b"python", b"aiohttp") if word in response.lower()}


@pytest.mark.parametrize(
    "sent", [b"GET /%s HTTP/1.1\r\n\r\n" % (b"x" * 9000), b"GET / HTTP/1.1\r\nA: %s\r\n\r\n" % (b"x" * 9000)]
)
async def test_error_reply_names_the_limit_of_a_long_line(sent):
    response = await answer_to(sent)
    assert response.split(b" ")[1] == b"431", response
    assert response.endswith(b'"reason":"the path or a header has more than 8190 bytes"}')


async def test_handler_exception_reply_does_not_show_library():
    async def fail(_request: web.BaseRequest) -> web.StreamResponse:
        raise RuntimeError("secret")

    async with running_server(fail) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST)
        response = await asyncio.wait_for(reader.read(), 30)
        writer.close()
    assert response.startswith(b"HTTP/1.1 500 ")
    assert not {word for word in (b"secret", b"python", b"aiohttp") if word in response.lower()}


def test_peer_of_same_user_is_own_peer():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert server._is_own_peer(FakeRequest(ours))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12 warns of a fork beside threads
def test_peer_of_another_user_is_not_own_peer(monkeypatch):
    """A process of another user makes the socket pair and sends one end."""
    here, there = socket.socketpair()
    with here, there:
        child = os.fork()
        if child == 0:
            os.setuid(65534)
            pair = socket.socketpair()
            socket.send_fds(there, [b"x"], [pair[0].fileno()])
            os._exit(0)
        _, descriptors, _, _ = socket.recv_fds(here, 1, 1)
        os.waitpid(child, 0)
    with socket.socket(fileno=descriptors[0]) as sock:
        assert not server._is_own_peer(FakeRequest(sock))
        monkeypatch.setattr(os, "geteuid", lambda: 65534)
        assert server._is_own_peer(FakeRequest(sock))


class TestUnixSocket:
    def test_socket_mode_is_600_for_any_umask(self, tmp_path):
        before = os.umask(0)
        try:
            unix_socket(tmp_path / "s").close()
            assert os.umask(0) == 0
        finally:
            os.umask(before)
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600

    def test_socket_that_cannot_be_created_is_named(self, tmp_path, monkeypatch):
        """A disk without free inodes, or one that knows no sockets: `No space left on device` alone names nothing."""

        class FullDisk(socket.socket):
            def bind(self, address):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(socket, "socket", FullDisk)
        with pytest.raises(OSError, match=r"No space left on device: '\S*/s'"):
            unix_socket(tmp_path / "s")

    def test_stale_socket_is_replaced(self, tmp_path):
        unix_socket(tmp_path / "s").close()
        unix_socket(tmp_path / "s").close()

    def test_file_that_is_not_a_socket_is_kept_and_reported(self, tmp_path):
        (tmp_path / "s").write_text("mine")
        with pytest.raises(OSError, match="not a socket"):
            unix_socket(tmp_path / "s")
        (tmp_path / "s").unlink()
        (tmp_path / "s").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(OSError, match="not a socket"):
            unix_socket(tmp_path / "s")
