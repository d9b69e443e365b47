"""A scripted client that records what it receives: a raw socket, no library.

It answers channel.close and connection.close as every client does, and nothing else. A confirm of several messages is
recorded as single confirms, so that a broker's grouping does not matter.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from . import writing
from .programs import NO_TOOLS, Tools

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "conformance"))
import wire

PATIENCE_S: Final = 60.0
FRAME_MAX: Final = 131072
CAPABILITIES: Final = dict.fromkeys(
    [
        "authentication_failure_close",
        "basic.nack",
        "connection.blocked",
        "consumer_cancel_notify",
        "publisher_confirms",
    ],
    True,
)


class Heard(NamedTuple):
    """stream: the order within it is defined (a channel's replies, its confirms, each consumer's deliveries). line: the
    received method.
    """

    stream: str
    line: str


class Address(NamedTuple):
    host: str
    port: int
    http_port: int
    tools: Tools = NO_TOOLS


class Gone(Exception):
    """The broker has closed the socket."""


class Party:
    """One connection. heard: received lines that were not taken yet."""

    def __init__(self, name: str, address: Address) -> None:
        self.name = name
        self.heard: list[Heard] = []
        self.open = False
        self.channels: set[int] = set()
        self._data = b""
        self._content: dict[int, list[Any]] = {}
        self._acked: dict[int, set[int]] = {}
        self._socket = socket.create_connection((address.host, address.port), timeout=PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self.open = False
        self._socket.close()

    # -- opening

    def connect(self, user: str, password: str, vhost: str) -> None:
        """Connect up to connection.open-ok. A refusal is recorded like other answers."""
        self.send(wire.PROTOCOL)
        self.open = True
        if self._until("connection.start"):
            properties = {"product": "compare", "capabilities": CAPABILITIES, "connection_name": self.name}
            response = f"\0{user}\0{password}"
            self.say(
                "connection.start-ok",
                0,
                client_properties=properties,
                mechanism="PLAIN",
                response=response,
                locale="en_US",
            )
        if self._until("connection.tune"):
            self.say("connection.tune-ok", 0, channel_max=2047, frame_max=FRAME_MAX, heartbeat=0)
            self.say("connection.open", 0, virtual_host=vhost)
            self._until("connection.open-ok")

    def channel(self, number: int) -> None:
        """Open the channel unless it is open."""
        if number not in self.channels and self.open:
            self.say("channel.open", number)
            if self._until("channel.open-ok"):
                self.channels.add(number)

    def _until(self, name: str) -> bool:
        """Read up to this method, which is not recorded. Return False if the connection was closed instead."""
        deadline = time.monotonic() + PATIENCE_S
        while self.open:
            for place, heard in enumerate(self.heard):
                if heard.line.split()[1] == name:
                    del self.heard[place]
                    return True
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                self.read()
            except TimeoutError:
                raise AssertionError(f"{name} was due within {PATIENCE_S:g} s") from None
        return False

    # -- sending

    def send(self, data: bytes) -> None:
        """Send data. A closed socket is no error here: the broker's last answer can still be read."""
        self._socket.settimeout(PATIENCE_S)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(data)

    def say(self, method: str, channel: int, **arguments: Any) -> None:
        if method == "confirm.select":
            self._acked[channel] = set()
        self.send(wire.method(method, channel, **arguments))

    # -- receiving

    def read(self) -> bool:
        """Read the socket once. Return False if it is closed. Raises: TimeoutError, by the socket's timeout."""
        try:
            data = self._socket.recv(262144)
        except ConnectionResetError:
            data = b""
        if not data:
            if self.open:
                self._hear("", "0", "(hangs up)")
            self.close()
            return False
        self._data += data
        while len(self._data) >= 7:
            kind, channel, size = struct.unpack_from(">BHI", self._data)
            if len(self._data) < size + 8:
                break
            payload, self._data = self._data[7 : 7 + size], self._data[size + 8 :]
            self._frame(kind, channel, payload)
            if not self.open:
                return False
        return True

    def _hear(self, stream: str, channel: int | str, line: str) -> None:
        where = f"{self.name}.{channel}"
        self.heard.append(Heard(f"{where} {stream}", f"{where} {line}"))

    def _frame(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == wire.METHOD:
            name, arguments = wire.decode_method(payload)
            if name in ("basic.deliver", "basic.get-ok", "basic.return"):
                self._content[channel] = [name, arguments, None, 0, b""]
            else:
                self._method(channel, name, arguments)
        elif kind == wire.HEADER:
            content = self._content[channel]
            content[2], content[3] = payload[12:], int.from_bytes(payload[4:12], "big")
            self._finish(channel)
        elif kind == wire.BODY:
            self._content[channel][4] += payload
            self._finish(channel)

    def _finish(self, channel: int) -> None:
        name, arguments, properties, size, body = self._content[channel]
        if len(body) < size:
            return
        del self._content[channel]
        line = f"{writing.method(name, arguments)} {writing.properties(properties)} {writing.body(body)}"
        streams = {"basic.deliver": f"to {arguments.get('consumer_tag')}", "basic.return": "confirms"}
        self._hear(streams.get(name, ""), channel, line)

    def _method(self, channel: int, name: str, arguments: dict[str, Any]) -> None:
        if name in ("basic.ack", "basic.nack"):
            last = arguments["delivery_tag"]
            told = self._acked[channel]
            for tag in range(1 if arguments["multiple"] else last, last + 1):
                if tag not in told or not arguments["multiple"]:
                    told.add(tag)
                    self._hear("confirms", channel, f"{name} {tag}")
            return
        if name == "connection.start":
            arguments = {}
        self._hear("", channel, writing.method(name, arguments))
        if name == "channel.close":
            self.channels.discard(channel)
            self.say("channel.close-ok", channel)
        elif name == "channel.close-ok":
            self.channels.discard(channel)
        elif name == "connection.close":
            self.say("connection.close-ok", 0)
            self.close()
        elif name == "connection.close-ok":
            self.close()
