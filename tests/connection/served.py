"""Test rig: a connection of the in-memory broker behind a real `Transport` and `ChannelZero`, after the handshake."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import pamqp.commands as spec
import pamqp.frame
from memory_broker import FRAME_MAX, Event, MemoryBroker, User

from amqpd.connection.channel_zero import OPEN
from amqpd.connection.heartbeat import Heartbeats
from amqpd.connection.transport import Transport

PERSISTENT = b"\x10\x00\x02"
MIB = 1 << 20
ports = itertools.count(50000)


def publishes(queue: str, bodies: list[bytes]) -> bytes:
    """Return the frames of persistent publishes on channel 1."""
    method = pamqp.frame.marshal(spec.Basic.Publish(routing_key=queue), 1)
    parts = []
    for body in bodies:
        header = b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + PERSISTENT
        parts += [method, b"\x02\x00\x01" + len(header).to_bytes(4, "big") + header + b"\xce"]
        parts.append(b"\x03\x00\x01" + len(body).to_bytes(4, "big") + body + b"\xce")
    return b"".join(parts)


def publish_without_body(body_size: int) -> bytes:
    """Return the method and header frames of a publish to q, without the body."""
    whole = publishes("q", [b"x"])
    return whole[:-9].replace((1).to_bytes(8, "big") + PERSISTENT, body_size.to_bytes(8, "big") + PERSISTENT)


class Socket:
    """Fake asyncio transport with the methods that amqpd calls."""

    def __init__(self, peer: tuple[str, int] | None = None) -> None:
        self.peer = peer or ("127.0.0.1", next(ports))
        self.data = b""
        self.reading = True
        self.pauses = 0
        self.closing = False
        self.aborted = False
        self.ended = False
        self.unsent_bytes = 0
        self.limits: tuple[int, int] = (0, 0)

    def get_extra_info(self, name: str) -> object:
        return {"peername": self.peer, "sockname": ("127.0.0.1", 5672)}.get(name)

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        self.limits = (high, low)

    def write(self, data: bytes) -> None:
        assert not self.closing, "a write on a closing transport raises in uvloop"
        assert not self.ended, "a write after the end of the stream raises in asyncio"
        self.data += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    def pause_reading(self) -> None:
        assert self.reading, "a second pause raises in asyncio"
        self.reading = False
        self.pauses += 1

    def resume_reading(self) -> None:
        assert not self.reading, "resuming what is not paused raises in asyncio"
        self.reading = True


class Served:
    """A client connection after the handshake. capabilities: those that the client announced."""

    def __init__(self, memory_broker: MemoryBroker, **capabilities: bool) -> None:
        self.memory_broker = memory_broker
        self.socket = Socket()
        loop: Any = memory_broker.loop
        self.transport = Transport(memory_broker.broker, memory_broker.connections, Heartbeats(loop), False)
        raw: Any = self.socket
        self.transport.connection_made(raw)
        connection = self.connection = self.transport.connection
        connection.capabilities = {name.replace("_blocked", ".blocked"): on for name, on in capabilities.items()}
        user: Any = User("guest")
        connection.open(user, memory_broker.vhost)
        connection.channels.count_max = 2047
        connection.set_frame_max(FRAME_MAX)
        self.transport.control.step = OPEN
        memory_broker.connections.add(connection)

    def send(self, channel: int, *methods: Any) -> None:
        self.transport.data_received(b"".join([pamqp.frame.marshal(method, channel) for method in methods]))

    def received(self) -> list[Event]:
        """Return the methods received since the last call, without contents."""
        self.memory_broker.settle()
        data, self.socket.data = self.socket.data, b""
        events = []
        while data:
            kind, channel, size = struct.unpack_from(">BHI", data)
            frame, data = data[: size + 8], data[size + 8 :]
            if kind == 1:
                events.append(Event(channel, pamqp.frame.unmarshal(frame)[2]))
        return events

    def received_names(self) -> list[str]:
        return [event.method.name for event in self.received()]
