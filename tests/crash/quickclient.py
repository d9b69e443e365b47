"""A small, fast AMQP 0-9-1 client on asyncio, for load tests that must know the fate of each message.

One `Link` is one connection with channel 1. It does not hide a broker's errors: it keeps no state that would, never
reconnects and never repeats. `on_deliver` and `on_confirm` are called in the order of the bytes. When the socket is
closed every waiting call raises `Gone`, and `gone` is set.

It sends no heartbeats and waits for ever for a broker that hangs, unless `Link.beat` is called.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

PROTOCOL: Final = b"AMQP\x00\x00\x09\x01"
FRAME_MAX: Final = 131072
END: Final = b"\xce"
EMPTY_TABLE: Final = b"\x00\x00\x00\x00"

DELIVER: Final = 0x003C003C
GET_OK: Final = 0x003C0047
GET_EMPTY: Final = 0x003C0048
RETURN: Final = 0x003C0032
CANCEL: Final = 0x003C001E
ACK: Final = 0x003C0050
NACK: Final = 0x003C0078
CONNECTION_CLOSE: Final = 0x000A0032
CHANNEL_CLOSE: Final = 0x00140028
HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00" + END


def field_table(*fields: bytes) -> bytes:
    """Encode a table from encoded fields, with its length."""
    return struct.pack(">I", len(b"".join(fields))) + b"".join(fields)


_CAPABILITY: Final = b"\x16consumer_cancel_notifyt\x01"
HEARS_CANCEL: Final = field_table(b"\x0ccapabilitiesF" + field_table(_CAPABILITY))
"""Client properties with the capability consumer_cancel_notify."""


class Gone(Exception):
    """The connection has ended; the text is the reason."""


class Message(NamedTuple):
    """A delivery. properties: the bytes after the body size of the content header."""

    tag: int
    redelivered: bool
    properties: bytes
    body: bytes


def shortstr(text: str) -> bytes:
    raw = text.encode()
    return bytes([len(raw)]) + raw


def method(number: int, payload: bytes = b"", channel: int = 1) -> bytes:
    return struct.pack(">BHII", 1, channel, len(payload) + 4, number) + payload + END


def content(properties: bytes, body: bytes, channel: int = 1, frame_max: int = FRAME_MAX) -> bytes:
    """Encode header and body frames. properties: flags and fields."""
    header = struct.pack(">BHIHHQ", 2, channel, 12 + len(properties), 60, 0, len(body)) + properties + END
    size = frame_max - 8
    parts = [header]
    for start in range(0, len(body), size):
        piece = body[start : start + size]
        parts += (struct.pack(">BHI", 3, channel, len(piece)), piece, END)
    return b"".join(parts)


def publish_prefix(exchange: str, key: str, channel: int = 1, *, mandatory: bool = False) -> bytes:
    """The method frame of a basic.publish."""
    arguments = b"\x00\x00" + shortstr(exchange) + shortstr(key) + bytes([mandatory])
    return method(0x003C0028, arguments, channel)


class Link(asyncio.Protocol):
    """One connection with its channel 1, made by `connect`. patience_s: timeout of an answer."""

    def __init__(self, patience_s: float = 30.0) -> None:
        self.patience_s = patience_s
        self.loop = asyncio.get_running_loop()
        self.gone = asyncio.Event()
        self.why = "the socket was closed"
        self.close_code = 0  # of connection.close from the broker
        self.on_deliver: Callable[[Message], object] | None = None
        self.on_confirm: Callable[[int, bool, bool], object] | None = None  # tag, multiple, acked
        self.on_return: Callable[[Message], object] | None = None
        self.on_cancel: Callable[[], object] | None = None  # consumer cancelled by the broker; needs HEARS_CANCEL
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._waiting: deque[tuple[asyncio.Future[Any], tuple[int, ...]]] = deque()
        self._content: tuple[int, int, bool] | None = None  # method, tag, redelivered
        self._body_left = -1
        self._properties = b""
        self._body: list[bytes] = []
        self._writable = asyncio.Event()
        self._writable.set()
        self._heard = True  # received something since the last `_beat`
        self._beats: asyncio.TimerHandle | None = None

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=1 << 20)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self.why = repr(exc)
        if self._beats is not None:
            self._beats.cancel()
        self.gone.set()
        self._writable.set()
        for future, _ in self._waiting:
            if not future.done():
                future.set_exception(Gone(self.why))
        self._waiting.clear()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self._heard = True
        if self._rest:
            data = self._rest + data
        at = 0
        end = len(data)
        while end - at >= 8:
            kind, channel, size = struct.unpack_from(">BHI", data, at)
            if end - at < size + 8:
                break
            at += 7
            payload = data[at : at + size]
            at += size + 1
            assert data[at - 1] == 0xCE, "a frame does not end with 0xCE"
            self._frame(kind, channel, payload)
        self._rest = data[at:]

    # -- frames

    def _frame(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == 1:
            self._method(int.from_bytes(payload[:4], "big"), payload, channel)
        elif kind == 2:
            self._body_left = int.from_bytes(payload[4:12], "big")
            self._properties = payload[12:]
            if not self._body_left:
                self._finish()
        elif kind == 3:
            self._body.append(payload)
            self._body_left -= len(payload)
            if not self._body_left:
                self._finish()
        else:
            assert kind == 8, f"frame type {kind}"

    def _method(self, number: int, payload: bytes, channel: int) -> None:
        if number == DELIVER:
            at = 5 + payload[4]
            self._content = (number, int.from_bytes(payload[at : at + 8], "big"), bool(payload[at + 8]))
        elif number in (ACK, NACK):
            if self.on_confirm is not None:
                self.on_confirm(int.from_bytes(payload[4:12], "big"), bool(payload[12] & 1), number == ACK)
        elif number == GET_OK:
            self._content = (number, int.from_bytes(payload[4:12], "big"), bool(payload[12]))
        elif number == RETURN:
            self._content = (number, 0, False)
        elif number == CANCEL and self.on_cancel is not None:
            self.on_cancel()
        elif number in (CONNECTION_CLOSE, CHANNEL_CLOSE):
            code = int.from_bytes(payload[4:6], "big")
            self.close_code = code
            self.why = f"closed by the broker: {code} {payload[7 : 7 + payload[6]].decode('utf-8', 'replace')}"
            if number == CONNECTION_CLOSE:
                self.write(method(0x000A0033, channel=0))
            else:
                self.write(method(0x00140029, channel=channel))
            self.close()
        else:
            self._answer(number, payload)

    def _finish(self) -> None:
        assert self._content is not None, "a content header without a method"
        number, tag, redelivered = self._content
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._content, self._body, self._body_left = None, [], -1
        message = Message(tag, redelivered, self._properties, body)
        if number == DELIVER:
            if self.on_deliver is not None:
                self.on_deliver(message)
        elif number == GET_OK:
            self._answer(number, message)
        elif self.on_return is not None:
            self.on_return(message)

    def _answer(self, number: int, value: object) -> None:
        if not self._waiting:
            raise AssertionError(f"unexpected method {number:#x}")
        future, wanted = self._waiting.popleft()
        assert number in wanted, f"method {number:#x} instead of {wanted}"
        if not future.done():
            future.set_result((number, value))

    # -- commands

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def writable(self) -> None:
        """Wait until less than 1 MiB waits in this process. Raises: Gone."""
        await self._writable.wait()
        if self.gone.is_set():
            raise Gone(self.why)

    def beat(self, heartbeat_s: float) -> None:
        """Send heartbeats from now on; drop the connection if nothing is received for two intervals."""
        self._beat(heartbeat_s / 2, 0)

    def _beat(self, each_s: float, silent: int) -> None:
        silent = 0 if self._heard else silent + 1
        self._heard = False
        if silent >= 4:
            self.why = f"nothing was heard for {4 * each_s:g} s"
            self.abort()
            return
        self.write(HEARTBEAT)
        self._beats = self.loop.call_later(each_s, self._beat, each_s, silent)

    def limit_received(self, size_bytes: int) -> None:
        """Limit the kernel's receive buffer, which keeps about twice that size while the client does not read."""
        assert self._transport is not None
        used = self._transport.get_extra_info("socket")
        used.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size_bytes)

    def pause_reading(self) -> None:
        assert self._transport is not None
        self._transport.pause_reading()

    def close(self) -> None:
        """Close the socket when all data is written, without connection.close."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the socket at once, with unwritten data."""
        if self._transport is not None and not self.gone.is_set():
            self._transport.abort()

    async def ask(self, data: bytes, *answers: int, timeout_s: float = 0.0) -> tuple[int, Any]:
        """Write, and wait for one of these methods: (number, payload or Message). timeout_s: 0 for `patience_s`.

        Raises: Gone, TimeoutError.
        """
        if self.gone.is_set():
            raise Gone(self.why)
        future: asyncio.Future[Any] = self.loop.create_future()
        self._waiting.append((future, answers))
        if data:
            self.write(data)
        async with asyncio.timeout(timeout_s or self.patience_s):
            answer: tuple[int, Any] = await future
        return answer

    async def open_channel(self, channel: int) -> None:
        await self.ask(method(0x0014000A, b"\x00", channel), 0x0014000B)

    async def confirm_select(self) -> None:
        await self.ask(method(0x0055000A, b"\x00"), 0x0055000B)

    async def qos(self, prefetch: int, timeout_s: float = 0.0) -> None:
        await self.ask(method(0x003C000A, struct.pack(">IHB", 0, prefetch, 0)), 0x003C000B, timeout_s=timeout_s)

    async def consume(self, queue: str, *, no_ack: bool = False, tag: str = "c", table: bytes = EMPTY_TABLE) -> None:
        bits = bytes([no_ack << 1])
        await self.ask(method(0x003C0014, b"\x00\x00" + shortstr(queue) + shortstr(tag) + bits + table), 0x003C0015)

    async def cancel(self, tag: str = "c") -> None:
        """Cancel the consumer; no delivery comes after the answer."""
        await self.ask(method(0x003C001E, shortstr(tag) + b"\x00"), 0x003C001F)

    async def declare_queue(
        self,
        queue: str,
        *,
        durable: bool = True,
        exclusive: bool = False,
        passive: bool = False,
        table: bytes = EMPTY_TABLE,
    ) -> tuple[str, int, int]:
        """Return (name, messages, consumers). table: the arguments, with their length."""
        bits = bytes([passive | durable << 1 | exclusive << 2])
        _, payload = await self.ask(method(0x0032000A, b"\x00\x00" + shortstr(queue) + bits + table), 0x0032000B)
        name = payload[5 : 5 + payload[4]].decode()
        messages, consumers = struct.unpack_from(">II", payload, 5 + payload[4])
        return name, messages, consumers

    async def delete_queue(self, queue: str) -> int:
        _, payload = await self.ask(method(0x00320028, b"\x00\x00" + shortstr(queue) + b"\x00"), 0x00320029)
        return int.from_bytes(payload[4:8], "big")

    async def declare_exchange(self, exchange: str, kind: str = "direct", *, passive: bool = False) -> None:
        arguments = b"\x00\x00" + shortstr(exchange) + shortstr(kind) + bytes([passive | 2]) + EMPTY_TABLE
        await self.ask(method(0x0028000A, arguments), 0x0028000B)

    async def delete_exchange(self, exchange: str) -> None:
        await self.ask(method(0x00280014, b"\x00\x00" + shortstr(exchange) + b"\x00"), 0x00280015)

    async def bind(self, queue: str, exchange: str, key: str = "") -> None:
        arguments = b"\x00\x00" + shortstr(queue) + shortstr(exchange) + shortstr(key) + b"\x00" + EMPTY_TABLE
        await self.ask(method(0x00320014, arguments), 0x00320015)

    async def get(self, queue: str, *, no_ack: bool = False) -> Message | None:
        data = method(0x003C0046, b"\x00\x00" + shortstr(queue) + bytes([no_ack]))
        number, value = await self.ask(data, GET_OK, GET_EMPTY)
        return value if number == GET_OK else None

    def publish(self, exchange: str, key: str, properties: bytes, body: bytes) -> None:
        self.write(publish_prefix(exchange, key) + content(properties, body))

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self.write(method(ACK, struct.pack(">QB", tag, multiple)))

    async def tx_select(self) -> None:
        await self.ask(method(0x005A000A), 0x005A000B)

    async def tx_commit(self) -> None:
        await self.ask(method(0x005A0014), 0x005A0015)


async def connect(
    port: int,
    *,
    user: str = "guest",
    password: str = "guest",
    vhost: str = "/",
    channel: bool = True,
    heartbeat_s: int = 0,
    patience_s: float = 30.0,
    host: str = "127.0.0.1",
    properties: bytes = EMPTY_TABLE,
    greeting_s: float = 0.0,
) -> Link:
    """Open a connection with channel 1. Raises: OSError, Gone (also for a refused login), TimeoutError.

    heartbeat_s: the negotiated value; the link itself sends none. properties: client properties, a table with its
    length. greeting_s: timeout of the connect and of the broker's first methods, 0 for `patience_s`.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(greeting_s or patience_s):
        _, link = await loop.create_connection(lambda: Link(patience_s), host, port)
    try:
        response = f"\x00{user}\x00{password}".encode()
        start_ok = properties + shortstr("PLAIN") + struct.pack(">I", len(response)) + response + shortstr("en_US")
        await link.ask(PROTOCOL, 0x000A000A, timeout_s=greeting_s)
        _, tune = await link.ask(method(0x000A000B, start_ok, 0), 0x000A001E, timeout_s=greeting_s)
        channels = int.from_bytes(tune[4:6], "big")
        link.write(method(0x000A001F, struct.pack(">HIH", channels, FRAME_MAX, heartbeat_s), 0))
        await link.ask(method(0x000A0028, shortstr(vhost) + b"\x00\x00", 0), 0x000A0029)
        if channel:
            await link.open_channel(1)
    except BaseException:
        link.close()
        raise
    return link
