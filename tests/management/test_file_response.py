"""Files over HTTP: clients that do not read hold neither threads nor much memory."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
from pathlib import Path

import cramjam
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from amqpd.management import file_response
from amqpd.management.file_response import COMPRESSED_MAX, LogFileResponse, MemoryBudget

TestServer.__test__ = False  # type: ignore[attr-defined]
ASKED = f"GET / HTTP/1.1\r\nHost: x\r\nRange: bytes=0-{COMPRESSED_MAX - 1}\r\n\r\n".encode()


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    """A file whose range is compressed to three quarters, which is more than the kernel's buffers take."""
    six_bits = bytes(number & 0x3F for number in range(256))
    data = random.Random(1).randbytes(COMPRESSED_MAX).translate(six_bits)
    (tmp_path / "data").write_bytes(data)
    return data


def small_socket(host: str, port: int, family: socket.AddressFamily) -> socket.socket:
    """Return a listening socket whose connections have small buffers in the kernel."""
    found = socket.socket(family)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    found.bind((host, port))
    return found


async def serve(tmp_path: Path) -> TestServer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return LogFileResponse(str(tmp_path / "data"), {}, compresses=True)

    app = web.Application()
    app.router.add_get("/", answer)
    server = TestServer(app, socket_factory=small_socket)
    await server.start_server()
    return server


async def ask(server: TestServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bool, int]:
    """Ask for the range. Return the connection behind the headers, whether it is compressed, and its length."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=4096)
    writer.write(ASKED)
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
    headers = dict(line.split(": ") for line in lines[1:-2])
    return reader, writer, headers["content-type"] == "application/zstd", int(headers["content-length"])


def test_clients_that_do_not_read_take_a_limited_memory(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is room for a range and seven eighths, so two are compressed. The third client gets the file."""
    size = COMPRESSED_MAX * 15 // 8
    budget = MemoryBudget(size)
    monkeypatch.setattr(file_response, "_budget", budget)

    async def run() -> None:
        server = await serve(tmp_path)
        asked = [await ask(server) for _ in range(3)]
        assert [compressed for _, _, compressed, _ in asked] == [True, True, False]
        assert budget.free_bytes == size - sum(length for _, _, compressed, length in asked if compressed)
        for reader, writer, compressed, length in asked:
            body = await reader.readexactly(length)
            assert (bytes(cramjam.zstd.decompress(body)) if compressed else body) == data
            writer.close()
        await server.close()

    asyncio.run(run())
    assert budget.free_bytes == size


def test_memory_of_a_client_that_hangs_up_is_free_again(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = MemoryBudget(COMPRESSED_MAX)
    monkeypatch.setattr(file_response, "_budget", budget)

    async def run() -> None:
        server = await serve(tmp_path)
        _, writer, compressed, _ = await ask(server)
        assert compressed and budget.free_bytes < COMPRESSED_MAX
        writer.transport.abort()
        while budget.free_bytes < COMPRESSED_MAX:  # noqa: ASYNC110 - the test's time limit ends it
            await asyncio.sleep(0.01)
        await server.close()

    asyncio.run(run())


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_descriptors_are_given_back_if_there_are_too_few(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each such request would keep its client's connection open, and the next ones find fewer."""
    calls = 0

    def dup(_fd: int) -> int:
        nonlocal calls
        calls += 1
        raise OSError(errno.EMFILE, "too many open files")

    async def run() -> None:
        server = await serve(tmp_path)
        monkeypatch.setattr(os, "dup", dup)
        before = count_descriptors()
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert len(await reader.read()) < COMPRESSED_MAX
            writer.close()
            await writer.wait_closed()
        assert calls == 5
        while count_descriptors() > before:  # noqa: ASYNC110 - the test's time limit ends it
            await asyncio.sleep(0.01)
        await server.close()

    asyncio.run(asyncio.wait_for(run(), 20))


def test_clients_that_do_not_read_hold_up_no_others(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are four threads for all clients."""
    monkeypatch.setattr(file_response, "WAIT_S", 600.0)
    whole = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"

    async def run() -> None:
        server = await serve(tmp_path)
        stalled = []
        for _ in range(6):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=4096)
            writer.write(whole)
            await reader.readuntil(b"\r\n\r\n")
            stalled.append(writer)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(whole)
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(len(data)) == data
        for each in (*stalled, writer):
            each.transport.abort()
        await server.close()

    asyncio.run(asyncio.wait_for(run(), 20))


def test_budget_is_never_overdrawn() -> None:
    budget = MemoryBudget(10)
    assert budget.reserve(7) and not budget.reserve(4) and budget.reserve(3) and not budget.reserve(1)
    budget.release(4)
    assert budget.reserve(4) and budget.free_bytes == 0
