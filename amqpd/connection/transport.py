"""Asyncio protocol of an AMQP socket.

A native class cannot be an `asyncio.Protocol`, so this class is interpreted. It alone pauses and resumes reading. It
drops writes after the socket closed: uvloop raises an exception for them, which would stop a turn half way.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from amqpd.connection.channel_zero import WANT_HEADER, ChannelZero
from amqpd.connection.connection import Connection
from amqpd.connection.heartbeat import Heartbeats
from amqpd.listeners import address_or_unknown, is_loopback

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.connection.registry import ConnectionRegistry

log = logging.getLogger(__name__)

# Limits of the transport's write buffer: deliveries pause above the first and resume below the second.
WRITE_HIGH_BYTES: Final = 256 * 1024
WRITE_LOW_BYTES: Final = 64 * 1024
# Time to wait for the client's end of stream after ours.
LINGER_S: Final = 1.0
# Time without progress of the output of a connection that was closed.
STALL_S: Final = 60.0
# SO_LINGER with 0 seconds: closing the socket sends a reset.
RESET: Final = struct.pack("ii", 1, 0)
# rabbit: frames before the login are small
HANDSHAKE_FRAME_MAX: Final = 8192


class Transport(asyncio.Protocol):
    """One AMQP socket. Writes after it is closed are dropped.

    Attributes:
        node: the node that has the socket, if not this one.
    """

    handshake: ClassVar[type[ChannelZero]] = ChannelZero

    def __init__(self, broker: Broker, connections: ConnectionRegistry, heartbeats: Heartbeats, tls: bool) -> None:
        self.broker = broker
        self.heartbeats = heartbeats
        self.tls = tls
        self.peer: tuple[str, int] = ("", 0)
        self.local: tuple[str, int] = ("", 0)
        self.peer_is_loopback = False
        self.node = ""
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
        self.peer = address_or_unknown(transport.get_extra_info("peername"))
        self.local = address_or_unknown(transport.get_extra_info("sockname"))
        self.peer_is_loopback = is_loopback(self.peer[0])
        self.begin()
        self.control.connections.unopened.add(self)

    def name(self) -> str:
        """Return the connection's name for logs and lists, in RabbitMQ's form."""
        return f"{_shown(self.peer)} -> {_shown(self.local)}"

    def begin(self) -> None:
        """Create the connection; peer and local address are known."""
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
        self.control.connections.unopened.remove(self)
        self.control.on_socket_closed()
        # Break the cycle: the connection and its channel 0 refer to this transport. See Connection.dispose.
        del self.connection, self.control

    def hand_over(self, protocol: asyncio.Protocol) -> asyncio.Transport:
        """Give the socket to another protocol. The connection has ended."""
        # Reading stays paused. `unopened` counts the socket as a used descriptor until `remove`.
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
        """Return the verified client certificate in the form of the ssl module, or an empty dict."""
        shown = None if self._transport is None else self._transport.get_extra_info("peercert")
        return shown or {}

    def cipher(self) -> tuple[str, str]:
        """Return TLS version and cipher suite by OpenSSL's names; empty without TLS."""
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
        """End the stream after the written data, and close when the client ends its stream.

        Until then, and for LINGER_S at most, received bytes are dropped. Closing a socket with unread bytes sends a
        reset, which could destroy the close-ok before the client reads it.
        """
        transport = self._transport
        if transport is None or self._finished or transport.is_closing():
            return
        self.connection.read_pause.disable()
        if not transport.can_write_eof():
            # TLS cannot end one direction.
            transport.close()
            return
        self._finished = True
        transport.write_eof()
        self._linger = self.broker.loop.call_later(LINGER_S, self._end_linger)

    def _end_linger(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._limit_stall(0)

    def eof_received(self) -> None:
        # uvloop closes the socket after this call, once the output is sent.
        self._limit_stall(0)

    def _limit_stall(self, unsent_bytes: int) -> None:
        """Reset the socket if the client reads nothing of its output for STALL_S: a close waits for all of it.

        Args:
            unsent_bytes: the size of the output at the previous call.
        """
        transport = self._transport
        left = 0 if transport is None else transport.get_write_buffer_size()
        if left and left == unsent_bytes:
            about = {"connection": self.connection.name}
            log.warning("the client of a closed connection read nothing for %d s, it is reset", STALL_S, extra=about)
            self.abort()
        elif left:
            self._linger = self.broker.loop.call_later(STALL_S, self._limit_stall, left)

    def abort(self) -> None:
        """Reset the socket, because the client did not answer for too long.

        After a normal end of stream the client's kernel would accept one more publish without an error. After a
        reset, its next call fails.
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


def _shown(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
