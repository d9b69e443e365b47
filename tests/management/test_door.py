"""The doors by themselves: connections per address, a first request that does not come, peers of another user."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvloop
from aiohttp import web

from amqpd.management import server
from amqpd.management import server as doors
from amqpd.management.server import LimitedHttpServer
from amqpd.management.unix_socket import unix_socket

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@asynccontextmanager
async def opened(handler: Any = None) -> AsyncIterator[int]:
    """A door's port; every request is answered with 204, or by `handler`."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        door.on_request(request.protocol)
        return web.Response(status=204)

    door = LimitedHttpServer(handler or answer)
    runner = web.ServerRunner(door, shutdown_timeout=0.1)
    await runner.setup()
    sock = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, sock).start()
    try:
        yield sock.getsockname()[1]
    finally:
        await runner.cleanup()
        sock.close()


async def test_connections_per_address(monkeypatch):
    monkeypatch.setattr(doors, "CONNECTIONS_PER_PEER_MAX", 3)
    async with opened() as port:
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
            while True:  # the one that was closed is counted until its end has been read
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(REQUEST)
                with suppress(ConnectionError, asyncio.IncompleteReadError):
                    assert await reader.readexactly(12) == b"HTTP/1.1 204"
                    break
                writer.close()
                await asyncio.sleep(0.01)
        for _, each in [*pairs, (reader, writer)]:
            each.close()


def test_connections_of_one_address_beyond_the_limit_end_without_a_traceback(monkeypatch, caplog):
    """As uvloop does it: `abort` calls nobody back from within."""
    monkeypatch.setattr(doors, "CONNECTIONS_PER_PEER_MAX", 3)

    async def crowd() -> None:
        complaints: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        async with opened() as port:
            pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
            for reader, _ in pairs[3:]:
                with suppress(ConnectionError):  # a reset is the end as well
                    assert await reader.read() == b""
            pairs[0][1].write(REQUEST)
            assert await pairs[0][0].readexactly(12) == b"HTTP/1.1 204"
            for _, writer in pairs:
                writer.close()
        assert complaints == []

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(crowd())
    assert "Traceback" not in caplog.text
    assert caplog.text.count("3 connections") == 1


async def test_a_first_request_that_does_not_come(monkeypatch):
    monkeypatch.setattr(doors, "HEADER_WAIT_S", 2.0)
    async with opened() as port:
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


@pytest.mark.parametrize(
    "sent", [b"GET /secret HTTP/9.9\r\n\r\n", b"\x16\x03\x01secret\r\n\r\n", b"GET / HTTP/1.1\r\nsecret\r\n\r\n"]
)
async def test_an_error_shows_neither_the_request_nor_the_library(sent):
    async with opened() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        answer = await asyncio.wait_for(reader.read(), 30)
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 ")), answer
    assert b"\r\nServer: amqpd\r\n" in head + b"\r\n"
    assert body == b'{"error":"bad_request","reason":"the request is not HTTP"}'
    assert not {word for word in (b"secret", b"python", b"aiohttp") if word in answer.lower()}


async def test_a_bug_below_the_handler_shows_no_library():
    async def fail(_request: web.BaseRequest) -> web.StreamResponse:
        raise RuntimeError("secret")

    async with opened(fail) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST)
        answer = await asyncio.wait_for(reader.read(), 30)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert not {word for word in (b"secret", b"python", b"aiohttp") if word in answer.lower()}


def test_our_own_peer():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert server._is_own_peer(FakeRequest(ours))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12 warns of a fork beside threads
def test_a_peer_of_another_user(monkeypatch):
    """A socket pair made by another user's process, handed over."""
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
    def test_mode_whatever_the_umask(self, tmp_path):
        before = os.umask(0)
        try:
            unix_socket(tmp_path / "s").close()
            assert os.umask(0) == 0
        finally:
            os.umask(before)
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600

    def test_a_stale_one_is_replaced(self, tmp_path):
        unix_socket(tmp_path / "s").close()
        unix_socket(tmp_path / "s").close()

    def test_what_is_no_socket_stays(self, tmp_path):
        (tmp_path / "s").write_text("mine")
        with pytest.raises(OSError, match="not a socket"):
            unix_socket(tmp_path / "s")
        (tmp_path / "s").unlink()
        (tmp_path / "s").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(OSError, match="not a socket"):
            unix_socket(tmp_path / "s")
