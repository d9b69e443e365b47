"""A raw AMQP 0-9-1 peer: sends the bytes of a test, and checks replies and the end of the connection.

A peer with `chunking="bytewise"` sends every byte with its own system call, and of a large message the middle at once.
Times are seconds. `{q}` and `{x}` in an
expected text are replaced by the names that the peer generated for its test.
"""

from __future__ import annotations

import re
import socket
import struct
import time
import uuid
from typing import Any, Final, NamedTuple, Self
from urllib.parse import unquote, urlsplit

from wire import (
    BODY,
    FRAME_END,
    HEADER,
    HEARTBEAT,
    METHOD,
    PROTOCOL,
    Frame,
    decode_method,
    frame,
    heartbeat,
    method,
    publish,
)

PATIENCE_S: Final = 30.0
EDGE: Final = 2048
"""Bytes at the beginning and at the end of what is sent that are always sent one by one."""
REPLY_NAMES: Final = {
    311: "CONTENT_TOO_LARGE", 320: "CONNECTION_FORCED", 403: "ACCESS_REFUSED", 404: "NOT_FOUND",
    405: "RESOURCE_LOCKED", 406: "PRECONDITION_FAILED", 501: "FRAME_ERROR", 502: "SYNTAX_ERROR",
    503: "COMMAND_INVALID", 504: "CHANNEL_ERROR", 505: "UNEXPECTED_FRAME", 506: "RESOURCE_ERROR",
    530: "NOT_ALLOWED", 540: "NOT_IMPLEMENTED",
}  # fmt: skip


class Content(NamedTuple):
    """A method with content: deliver, get-ok or return. props: the received property bytes (flags and fields)."""

    method: Frame
    props: bytes
    body: bytes


class Closed(AssertionError):
    """The broker closed the connection where the test expected a frame."""


class Peer:
    """One socket to the broker. It sends only what the test asks for."""

    def __init__(self, url: str, *, chunking: str = "whole", label: str = "t") -> None:
        parts = urlsplit(url)
        self.host = parts.hostname or "127.0.0.1"
        self.port = parts.port or 5672
        self.user = unquote(parts.username or "guest")
        self.password = unquote(parts.password or "guest")
        self.vhost = unquote(parts.path[1:]) if len(parts.path) > 1 else "/"
        self.chunking = "whole"
        self._wanted_chunking = chunking
        self.q = f"c-{label}-{uuid.uuid4().hex[:8]}"
        self.x = f"x-{label}-{uuid.uuid4().hex[:8]}"
        self.buffer = b""
        self.frame_max = 131072
        self.skip_heartbeats = True
        self.socket = socket.create_connection((self.host, self.port), timeout=PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.started = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    # -- sending ----------------------------------------------------------------------------------------------------

    def bytewise_now(self) -> None:
        """Send one byte at a time from now on, if the test runs that way."""
        self.chunking = self._wanted_chunking

    def send(self, *pieces: bytes) -> None:
        """Send raw bytes. Ignores a socket closed by the broker: the next expectation reports it."""
        data = b"".join(pieces)
        try:
            self.socket.settimeout(PATIENCE_S)
            if self.chunking == "whole":
                self.socket.sendall(data)
                return
            middle = range(EDGE, len(data) - EDGE)
            for at in range(len(data)):
                if at not in middle:
                    self.socket.sendall(data[at : at + 1])
                elif at == middle.start:
                    self.socket.sendall(data[middle.start : middle.stop])
                if at % 4 == 0 and at not in middle:  # gives the broker time to read in between
                    time.sleep(0.00005)
        except (BrokenPipeError, ConnectionResetError):
            return

    def method(self, name: str, /, channel: int = 1, **arguments: Any) -> None:
        self.send(method(name, channel, **arguments))

    # -- reading ----------------------------------------------------------------------------------------------------

    def _fill(self, deadline: float) -> bool:
        """Read once into the buffer; return False at the end of the stream. Raises TimeoutError at the deadline."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.socket.settimeout(left)
        try:
            data = self.socket.recv(262144)
        except ConnectionResetError:
            return False
        self.buffer += data
        return bool(data)

    def read(self, within: float = PATIENCE_S) -> Frame:
        """Return the next frame. Raises Closed at the end of the stream, TimeoutError if none arrives."""
        deadline = time.monotonic() + within
        while True:
            found = self._cut()
            if found is not None:
                if found.kind == HEARTBEAT and self.skip_heartbeats:
                    continue
                return found
            if not self._fill(deadline):
                raise Closed(f"the broker closed the socket; left in the buffer: {self.buffer[:80]!r}")

    def _cut(self) -> Frame | None:
        if len(self.buffer) < 7:
            return None
        kind, channel, size = struct.unpack_from(">BHI", self.buffer)
        assert kind in (METHOD, HEADER, BODY, HEARTBEAT), f"the broker sent no frame: {self.buffer[:40]!r}"
        assert size <= self.frame_max - 8, f"the broker sent a frame of {size} bytes, agreed are {self.frame_max - 8}"
        if len(self.buffer) < size + 8:
            return None
        payload = self.buffer[7 : 7 + size]
        assert self.buffer[7 + size] == FRAME_END, f"the broker sent a wrong frame end: {self.buffer[:80]!r}"
        self.buffer = self.buffer[size + 8 :]
        if kind == METHOD:
            name, arguments = decode_method(payload)
            return Frame(kind, channel, payload, name, arguments)
        if kind == HEARTBEAT:
            assert (channel, size) == (0, 0), "the broker sent a wrong heartbeat"
        return Frame(kind, channel, payload, {HEADER: "<header>", BODY: "<body>", HEARTBEAT: "<heartbeat>"}[kind])

    def expect(self, name: str, channel: int | None = 1, within: float = PATIENCE_S) -> Frame:
        """Return the next frame, which must have this name and channel."""
        try:
            got = self.read(within)
        except TimeoutError:
            raise AssertionError(f"expected {name}, nothing received within {within} s") from None
        assert got.name == name, f"expected {name}, got {got}"
        assert channel is None or got.channel == channel, f"expected {name} on channel {channel}, got {got}"
        return got

    def content(self, name: str, channel: int = 1, within: float = PATIENCE_S) -> Content:
        """Return the next method of this name with its content. No frames of other channels may be between."""
        got = self.expect(name, channel, within)
        head = self.expect("<header>", channel)
        class_id, weight, size = struct.unpack_from(">HHQ", head.payload)
        assert (class_id, weight) == (60, 0), f"the broker sent a content header of class {class_id}, weight {weight}"
        data = b""
        while len(data) < size:
            part = self.expect("<body>", channel).payload
            assert part, "the broker sent an empty body frame"
            data += part
        assert len(data) == size, f"the broker announced {size} bytes and sent {len(data)}"
        return Content(got, head.payload[12:], data)

    def call(self, name: str, /, channel: int = 1, **arguments: Any) -> Frame:
        """Send a method and return the `-ok` that must follow."""
        self.send(method(name, channel, **arguments))
        return self.expect(f"{name}-ok", channel)

    def get(self, queue: str | None = None, channel: int = 1, *, no_ack: bool = True) -> Content | None:
        """Send basic.get; return None for get-empty."""
        self.method("basic.get", channel, queue=self.q if queue is None else queue, no_ack=no_ack)
        if self._peek() == "basic.get-empty":
            self.expect("basic.get-empty", channel)
            return None
        return self.content("basic.get-ok", channel)

    def _peek(self) -> str:
        got = self.read()
        if got.kind == METHOD:
            self.buffer = frame(METHOD, got.channel, got.payload) + self.buffer
        return got.name

    # -- conversations ----------------------------------------------------------------------------------------------

    def start(self) -> Frame:
        """Send the protocol header and return connection.start."""
        self.send(PROTOCOL)
        return self.expect("connection.start", 0)

    def start_ok(self, **changes: Any) -> bytes:
        capabilities = {
            "authentication_failure_close": True,
            "basic.nack": True,
            "connection.blocked": True,
            "consumer_cancel_notify": True,
            "publisher_confirms": True,
        }
        arguments: dict[str, Any] = {
            "client_properties": {"product": "conformance", "capabilities": capabilities},
            "mechanism": "PLAIN",
            "response": f"\0{self.user}\0{self.password}",
            "locale": "en_US",
        }
        return method("connection.start-ok", 0, **(arguments | changes))

    def tune_ok(self, channel_max: int = 2047, frame_max: int = 131072, heartbeat: int = 0) -> bytes:
        return method("connection.tune-ok", 0, channel_max=channel_max, frame_max=frame_max, heartbeat=heartbeat)

    def open(self, vhost: str | None = None) -> bytes:
        return method("connection.open", 0, virtual_host=self.vhost if vhost is None else vhost)

    def handshake(
        self, *, channel_max: int = 2047, frame_max: int = 131072, heartbeat: int = 0, **start_ok: Any
    ) -> Frame:
        """Do the whole handshake to open-ok and return connection.tune. `start_ok` replaces arguments of start-ok."""
        self.start()
        self.send(self.start_ok(**start_ok))
        tune = self.expect("connection.tune", 0)
        self.send(self.tune_ok(channel_max, frame_max, heartbeat), self.open())
        if frame_max:
            self.frame_max = frame_max
        self.expect("connection.open-ok", 0)
        return tune

    def channel(self, number: int = 1) -> None:
        self.method("channel.open", number)
        self.expect("channel.open-ok", number)

    def queue(self, name: str | None = None, channel: int = 1, **options: Any) -> None:
        """Declare an exclusive queue: the peer's own unless named."""
        self.call("queue.declare", channel, **({"queue": name or self.q, "exclusive": True} | options))

    def exchange(self, kind: str = "fanout", name: str | None = None, **options: Any) -> None:
        """Declare an auto-delete exchange: the peer's own unless named."""
        self.call("exchange.declare", **({"exchange": name or self.x, "type": kind, "auto_delete": True} | options))

    def fence(self, channel: int = 1) -> None:
        """Check that the channel is open and no other frame is pending: channel.flow, which changes nothing, is
        answered next.
        """
        self.method("channel.flow", channel, active=True)
        self.expect("channel.flow-ok", channel)

    def publish(
        self, routing_key: str | None = None, payload: bytes = b"x", props: bytes = b"\0\0", **more: Any
    ) -> None:
        self.send(publish(self.q if routing_key is None else routing_key, payload, props, **more))

    # -- ends -------------------------------------------------------------------------------------------------------

    def check_close(self, got: Frame, code: int, class_id: int | None, method_id: int | None, text: Any) -> None:
        actual = f"{got['reply_code']} ({got['class_id']},{got['method_id']}) {got['reply_text']!r}"
        assert got["reply_code"] == code, f"expected {code}, got {actual}"
        assert got["reply_text"].startswith(REPLY_NAMES[code] + " - "), f"the text lacks its constant's name: {actual}"
        if class_id is not None:
            assert (got["class_id"], got["method_id"]) == (class_id, method_id), (
                f"expected ({class_id},{method_id}), got {actual}"
            )
        if isinstance(text, re.Pattern):
            assert text.search(got["reply_text"]), f"expected {text.pattern}, got {actual}"
        elif text is not None:
            expected = f"{REPLY_NAMES[code]} - " + text.replace("{q}", self.q).replace("{x}", self.x)
            # Erlang's printer breaks long terms into lines. That is not expected of another broker.
            assert re.sub(r"\n +", "", got["reply_text"]) == expected, f"expected {expected!r}, got {actual}"

    def expect_connection_close(
        self, code: int, class_id: int | None = None, method_id: int | None = None, text: Any = None
    ) -> Frame:
        """Expect connection.close with these values, answer close-ok, and expect the socket to be closed without
        more bytes.

        After a 501 the stream is unusable and the broker may wait for a deadline; test_timeouts covers that.
        """
        got = self.expect("connection.close", 0)
        self.check_close(got, code, class_id, method_id, text)
        self.send(method("connection.close-ok", 0))
        if code != 501:
            self.expect_silent_close(PATIENCE_S)
        return got

    def expect_channel_close(
        self,
        code: int,
        class_id: int | None = None,
        method_id: int | None = None,
        text: Any = None,
        channel: int = 1,
    ) -> Frame:
        """Expect channel.close with these values, answer close-ok, and open the channel again."""
        got = self.expect("channel.close", channel)
        self.check_close(got, code, class_id, method_id, text)
        self.method("channel.close-ok", channel)
        self.channel(channel)
        return got

    def expect_silent_close(self, within: float, *, not_before: float = 0.0) -> float:
        """Expect the socket to close without another byte (except heartbeats); return the seconds since connecting."""
        deadline = time.monotonic() + within
        while True:
            try:
                more = self._fill(deadline)
            except TimeoutError:
                raise AssertionError(f"the socket is still open after {within} s") from None
            if self.skip_heartbeats:
                while self.buffer.startswith(heartbeat()):
                    self.buffer = self.buffer[8:]
            assert not self.buffer, f"expected a silent close, got {self.buffer[:80]!r}"
            if not more:
                break
        took = time.monotonic() - self.started
        assert took >= not_before, f"closed after {took:.1f} s, expected not before {not_before} s"
        return took
