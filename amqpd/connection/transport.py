"""The only sockets that speak AMQP: asyncio's view of a connection.

A plain `asyncio.Protocol` (a native class cannot be one); it hands bytes down and carries bytes out, and it alone
pauses and resumes reading. A write after the socket is gone is dropped here: uvloop raises for it, which would end a
turn half way.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import struct
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from amqpd.connection.channel_zero import WANT_HEADER, ChannelZero
from amqpd.connection.connection import Connection
from amqpd.connection.heartbeat import Heartbeats
from amqpd.connection.interfaces import TransportBase

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.connection.registry import ConnectionRegistry

log = logging.getLogger(__name__)

# Bytes the transport may hold before deliveries rest, and where they go on.
WRITE_HIGH_BYTES: Final = 256 * 1024
WRITE_LOW_BYTES: Final = 64 * 1024
# How long a connection that is finished is read on for the peer's own end.
LINGER_S: Final = 1.0
# SO_LINGER on, for 0 s: a close sends a reset.
RESET: Final = struct.pack("ii", 1, 0)
# rabbit: frames before the login are small
HANDSHAKE_FRAME_MAX: Final = 8192


class Transport(TransportBase, asyncio.Protocol):
    """One socket."""

    handshake: ClassVar[type[ChannelZero]] = ChannelZero

    def __init__(self, broker: Broker, connections: ConnectionRegistry, heartbeats: Heartbeats, tls: bool) -> None:
        super().__init__()
        self.broker = broker
        self.heartbeats = heartbeats
        self.tls = tls
        self._transport: asyncio.Transport | None = None
        self._reading_paused = False
        self._finished = False
        self._linger: asyncio.TimerHandle | None = None
        self.control = self.handshake(broker, connections, self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(WRITE_HIGH_BYTES, WRITE_LOW_BYTES)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer = _address(transport.get_extra_info("peername"))
        self.local = _address(transport.get_extra_info("sockname"))
        self.peer_is_loopback = is_loopback(self.peer[0])
        self.begin()
        self.control.connections.unopened.entered(self)

    def name(self) -> str:
        """Of the connection, for logs and lists. rabbit: in this form."""
        return f"{_shown(self.peer)} -> {_shown(self.local)}"

    def begin(self) -> None:
        """The addresses are known."""
        self.connection = Connection(self.broker, self, self.control, self.name(), HANDSHAKE_FRAME_MAX)
        self.control.begin(self.connection)
        self.heartbeats.add(self.connection)

    def data_received(self, data: bytes) -> None:
        if self._finished:
            return
        if self.control.step == WANT_HEADER:
            data = self.control.on_header(data)
            if not data:
                return
        self.connection.receive(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        self.heartbeats.remove(self.connection)
        self.control.connections.unopened.left(self)
        self.control.lost()
        # The connection and its control know this transport; see Connection.let_go.
        del self.connection, self.control

    def hand_over(self, protocol: asyncio.Protocol) -> asyncio.Transport:
        # Paused as it is. Its place among the descriptors is kept until `unopened.left` is told.
        transport = self._transport
        assert transport is not None  # the connection waits behind connection.open
        self._transport = None
        self.heartbeats.remove(self.connection)
        del self.connection, self.control
        transport.set_protocol(protocol)
        return transport

    def pause_writing(self) -> None:
        self.connection.output.pause_writing()

    def resume_writing(self) -> None:
        self.connection.output.resume_writing()

    # -- called by the connection ------------------------------------------------------------------------------------

    def peer_certificate(self) -> dict[str, Any]:
        shown = None if self._transport is None else self._transport.get_extra_info("peercert")
        return shown or {}

    def cipher(self) -> tuple[str, str]:
        link = None if self._transport is None else self._transport.get_extra_info("ssl_object")
        found = None if link is None else link.cipher()
        return ("", "") if link is None or found is None else (link.version() or "", found[0])

    def write(self, data: bytes) -> None:
        transport = self._transport
        if transport is not None and not self._finished and not transport.is_closing():
            transport.write(data)

    def writelines(self, pieces: list[bytes | memoryview]) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.writelines(pieces)

    def close(self) -> None:
        """Ends the stream when what was written has gone out, and closes when the peer has ended its own.

        Until then, and at most LINGER_S, what still comes is thrown away: a socket closed over unread bytes resets, and
        a peer that sent something behind its connection.close would lose the close-ok before it.
        """
        transport = self._transport
        if transport is None or self._finished or transport.is_closing():
            return
        self.connection.gate.disable()
        if not transport.can_write_eof():
            # TLS cannot end one direction.
            transport.close()
            return
        self._finished = True
        transport.write_eof()
        self._linger = self.broker.loop.call_later(LINGER_S, transport.close)

    def abort(self) -> None:
        """Resets the socket: the peer has not answered for too long.

        After a mere end of the stream its kernel would take one more publish and say nothing; a reset is an error for
        whatever it does next.
        """
        transport = self._transport
        if transport is None:
            return
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        transport.abort()

    def pause_reading(self) -> None:
        transport = self._transport
        if transport is not None and not self._reading_paused and not transport.is_closing():
            self._reading_paused = True
            transport.pause_reading()

    def resume_reading(self) -> None:
        transport = self._transport
        if transport is not None and self._reading_paused and not transport.is_closing():
            self._reading_paused = False
            transport.resume_reading()


def _address(raw: object) -> tuple[str, int]:
    if isinstance(raw, tuple) and len(raw) >= 2:
        return str(raw[0]), int(raw[1])
    return "unix", 0


def _shown(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Judged by the peer's own address, never by the listener's."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host == "unix"
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
