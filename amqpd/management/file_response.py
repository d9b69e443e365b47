"""A response with a file or a range of it, which a thread sends by `sendfile` without the event loop.

uvloop has no `sendfile`, so aiohttp's FileResponse would read and write pieces in the loop. Here aiohttp sends the
headers and waits until they have left the transport's buffer. Then a thread sends the file into a duplicate of the
socket's descriptor, for SLICE_S at most. If the client does not read, the event loop waits for it, and the thread
serves others. Nothing else is written to the connection until it has finished. Over TLS the kernel does not know the
keys, so a thread reads pieces, and the loop encrypts and writes them.

A range may be compressed instead: a thread reads and compresses it, and the event loop writes it. Its content type is
`application/zstd` then, and `Content-Range` has its place in the file. A range is sent as it is if it is large, if
compression saves less than an eighth, or if other compressed ranges wait for their clients and have COMPRESSED_MEMORY.
One thread compresses for all clients, so they use one core at most.

The connection is closed if the client does not read for WAIT_S, or the file ends before the announced length.
"""

from __future__ import annotations

import asyncio
import os
import select
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

WAIT_S: Final = 30.0
SLICE_S: Final = 0.25
"""Time for which a thread serves one client, before the next one has its turn."""
READER_WAIT_MS: Final = 20
"""Time for which a thread waits for a client that does not read."""
PIECE_BYTES: Final = 4 << 20
TLS_PIECE_BYTES: Final = 1 << 18
COMPRESSED_MAX: Final = 8 << 20
"""Largest range that is compressed, which is in memory as a whole. A reader asks for so much at once."""
COMPRESSED_MEMORY: Final = 64 << 20
"""Limit of the memory for compressed ranges of all clients: some may not read for a long time."""
COMPRESSION_LEVEL: Final = 1
_threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="amqpd-sendfile")
_compressor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="amqpd-compress")


class MemoryBudget:
    """A number of bytes that several threads reserve and release."""

    def __init__(self, size_bytes: int) -> None:
        self.free_bytes = size_bytes
        self._lock = threading.Lock()

    def reserve(self, count: int) -> bool:
        """Reserve bytes. Return False, and reserve none, if they are not free."""
        with self._lock:
            if count > self.free_bytes:
                return False
            self.free_bytes -= count
            return True

    def release(self, count: int) -> None:
        with self._lock:
            self.free_bytes += count


_budget = MemoryBudget(COMPRESSED_MEMORY)


class LogFileResponse(web.StreamResponse):
    """A response with a file: 200, 206 for a range, 416 for a range beyond the end, 404 for a missing file.

    Args:
        compresses: A range of at most COMPRESSED_MAX is compressed by zstd. Cost: 2 ms of a thread a MiB.
    """

    def __init__(self, path: str, headers: dict[str, str], *, compresses: bool = False) -> None:
        super().__init__(headers=headers)
        self._path = path
        self._compresses = compresses

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        loop = asyncio.get_running_loop()
        try:
            fd = await loop.run_in_executor(_threads, _open, self._path)
        except OSError:
            self.set_status(404)
            self.content_length = 0
            return await super().prepare(request)
        try:
            return await self._send(request, fd)
        finally:
            os.close(fd)

    async def _send(self, request: web.BaseRequest, fd: int) -> AbstractStreamWriter | None:
        loop = asyncio.get_running_loop()
        size = os.fstat(fd).st_size
        start, stop = 0, size
        self.headers["Accept-Ranges"] = "bytes"
        if "Range" in request.headers:
            try:
                wanted = request.http_range
                start, stop, _ = wanted.indices(size)
                satisfiable = start < stop
            except ValueError:
                satisfiable = False
            if not satisfiable:
                self.headers["Content-Range"] = f"bytes */{size}"
                self.set_status(416)
                self.content_length = 0
                return await super().prepare(request)
            self.set_status(206)
            self.headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        if self._compresses and self.status == 206 and stop - start <= COMPRESSED_MAX and request.method != "HEAD":
            reserved = stop - start
            if _budget.reserve(reserved):
                try:
                    data = await loop.run_in_executor(_compressor, _compressed, fd, start, stop - start)
                    if data:
                        _budget.release(reserved - len(data))
                        reserved = len(data)
                        return await self._send_compressed(request, data)
                finally:
                    _budget.release(reserved)
        self.content_length = stop - start
        writer = await super().prepare(request)
        transport = request.transport
        if writer is None or transport is None or start == stop or request.method == "HEAD":
            return writer
        if transport.get_extra_info("ssl_object") is not None:
            await self._send_pieces(transport, fd, start, stop - start)
            await super().write_eof()
            return writer
        # A transport has callbacks for its high and low water mark, not for an empty buffer.
        while transport.get_write_buffer_size() > 0 and not transport.is_closing():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        if transport.is_closing():
            raise ConnectionResetError("the connection is closing")
        try:
            target = os.dup(transport.get_extra_info("socket").fileno())
            try:
                await _send_range(target, fd, start, stop - start)
            finally:
                os.close(target)
        except OSError as error:  # TimeoutError is one
            transport.abort()
            raise ConnectionResetError(str(error) or "the client does not read") from error
        await super().write_eof()
        return writer

    async def _send_compressed(self, request: web.BaseRequest, data: bytes) -> AbstractStreamWriter | None:
        self.content_type = "application/zstd"
        self.content_length = len(data)
        writer = await super().prepare(request)
        transport = request.transport
        if writer is None or transport is None:
            return writer
        try:
            for position in range(0, len(data), TLS_PIECE_BYTES):
                async with asyncio.timeout(WAIT_S):
                    await self.write(data[position : position + TLS_PIECE_BYTES])
            async with asyncio.timeout(WAIT_S):
                await super().write_eof()
        except TimeoutError as error:
            transport.abort()
            raise ConnectionResetError("the client does not read") from error
        return writer

    async def _send_pieces(self, transport: asyncio.Transport, fd: int, position: int, count: int) -> None:
        """Send a range over TLS. Raises: ConnectionResetError, with the connection closed."""
        loop = asyncio.get_running_loop()
        try:
            while count > 0:
                size = min(count, TLS_PIECE_BYTES)
                piece = await loop.run_in_executor(_threads, os.pread, fd, size, position)
                if not piece:
                    raise OSError("the file is shorter than the range")
                async with asyncio.timeout(WAIT_S):
                    await self.write(piece)
                position += len(piece)
                count -= len(piece)
        except OSError as error:  # TimeoutError is one
            transport.abort()
            raise ConnectionResetError(str(error) or "the client does not read") from error


def _open(path: str) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileNotFoundError(path)
    return fd


def _compressed(fd: int, position: int, count: int) -> bytes:
    """Return the range compressed by zstd; b"" if that saves too little, or the file has become shorter."""
    import cramjam

    data = os.pread(fd, count, position)
    found = bytes(cramjam.zstd.compress(data, level=COMPRESSION_LEVEL))
    return found if len(data) == count and len(found) <= count - count // 8 else b""


async def _send_range(target: int, source: int, position: int, count: int) -> None:
    """Send the range. At the end, also of a cancelled call, no thread uses the descriptors. Raises: OSError."""
    loop = asyncio.get_running_loop()
    while count > 0:
        piece = loop.run_in_executor(_threads, _send_some, target, source, position, count)
        try:
            sent = await asyncio.shield(piece)
        except asyncio.CancelledError:
            while not piece.done():  # the thread uses the descriptors for SLICE_S at most
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([piece])
            piece.exception()  # otherwise the loop would log it
            raise
        position += sent
        count -= sent
        if count > 0:
            writable = asyncio.Event()
            loop.add_writer(target, writable.set)
            try:
                async with asyncio.timeout(WAIT_S):
                    await writable.wait()
            finally:
                loop.remove_writer(target)


def _send_some(target: int, source: int, position: int, count: int) -> int:
    """Send until the client does not read, or for SLICE_S. Return the number of bytes sent. Raises: OSError."""
    poll = select.poll()
    poll.register(target, select.POLLOUT)
    until_s = time.monotonic() + SLICE_S
    sent = 0
    while sent < count and time.monotonic() < until_s:
        try:
            piece = os.sendfile(target, source, position + sent, min(count - sent, PIECE_BYTES))
        except BlockingIOError:
            if not poll.poll(READER_WAIT_MS):
                break
            continue
        if piece == 0:
            raise OSError("the file is shorter than the range")
        sent += piece
    return sent
