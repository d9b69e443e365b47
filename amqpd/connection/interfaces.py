"""What a connection asks of those around it: its socket, and channel 0. Both are interpreted, and above it.

`transport.Transport` is the socket, `handshake.Handshake` follows channel 0 from the protocol header to the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mypy_extensions import i64, mypyc_attr

from amqpd.errors import AmqpError


@mypyc_attr(allow_interpreted_subclasses=True)
class TransportBase:
    """A socket. What is written after it is gone is dropped."""

    def __init__(self) -> None:
        self.peer: tuple[str, int] = ("", 0)
        self.local: tuple[str, int] = ("", 0)
        self.peer_is_loopback = False
        self.tls = False
        # The node whose socket it is, where that is not this one.
        self.node = ""

    def peer_certificate(self) -> dict[str, Any]:
        """What a TLS client has shown, and `amqp.tls.ca` has signed, as the module ssl has it; else empty."""
        return {}

    def cipher(self) -> tuple[str, str]:
        """Version of TLS and cipher suite, as OpenSSL names them; empty without TLS."""
        return "", ""

    def write(self, data: bytes) -> None:
        """Hands it to the kernel, or keeps what that does not take."""
        raise NotImplementedError

    def writelines(self, pieces: list[bytes | memoryview]) -> None:
        """The same for all of them, in one call."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends the stream when what was written has gone out."""
        raise NotImplementedError

    def abort(self) -> None:
        """Resets the socket; what was written may be lost."""
        raise NotImplementedError

    def hand_over(self, protocol: Any) -> Any:
        """The socket is another protocol's from here on; returns asyncio's transport. The connection has ended."""
        raise NotImplementedError

    def pause_reading(self) -> None:
        """Nothing is read until `resume_reading`. Twice is as once."""
        raise NotImplementedError

    def resume_reading(self) -> None:
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class ChannelZeroBase:
    """Channel 0 of a connection: its handshake, its close, and what it is told of alarms."""

    def __init__(self) -> None:
        # Of the login, for those who list connections: SASL mechanism; seconds since 1970.
        self.mechanism = ""
        self.connected_at = 0.0

    def soon(self, function: Callable[[], None]) -> None:
        """Calls it in the next turn of the loop."""
        raise NotImplementedError

    def on_method(self, number: i64, method: i64, payload: bytes) -> None:
        """A method on channel 0, or any before the connection is open. Raises: AmqpError."""
        raise NotImplementedError

    def fail(self, error: AmqpError) -> None:
        """A hard error: closes the connection, in the handshake most often without a word."""
        raise NotImplementedError

    def force(self, reason: str) -> None:
        """Closes from outside: the CLI, the admin API, a vhost that goes, a stop. 320."""
        raise NotImplementedError

    def closed_by_client(self) -> None:
        """A connection.close that waited for what came before it is answered now."""
        raise NotImplementedError

    def finished(self) -> None:
        """Writes what is left and closes the socket."""
        raise NotImplementedError

    def release(self) -> None:
        """What the connection holds goes back: consumers, unacked messages, exclusive queues."""
        raise NotImplementedError

    def hold_for_alarm(self) -> None:
        """A publish while an alarm lasts: this connection is not read until it is over, and is told why."""
        raise NotImplementedError

    def release_from_alarm(self) -> None:
        """The alarm is over."""
        raise NotImplementedError
