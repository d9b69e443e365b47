"""Interfaces of a connection to its socket and to channel 0.

`transport.Transport` and `channel_zero.ChannelZero` implement them. They are interpreted and import the compiled
connection, so it knows only these base classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mypy_extensions import i64, mypyc_attr

from amqpd.errors import AmqpError


@mypyc_attr(allow_interpreted_subclasses=True)
class TransportBase:
    """A socket. Writes after it is closed are dropped.

    Attributes:
        node: the node that has the socket, if not this one.
    """

    def __init__(self) -> None:
        self.peer: tuple[str, int] = ("", 0)
        self.local: tuple[str, int] = ("", 0)
        self.peer_is_loopback = False
        self.tls = False
        self.node = ""

    def peer_certificate(self) -> dict[str, Any]:
        """Return the verified client certificate in the form of the ssl module, or an empty dict."""
        return {}

    def cipher(self) -> tuple[str, str]:
        """Return TLS version and cipher suite by OpenSSL's names; empty without TLS."""
        return "", ""

    def write(self, data: bytes) -> None:
        """Write the bytes; the transport buffers what the kernel does not take."""
        raise NotImplementedError

    def writelines(self, pieces: list[bytes | memoryview]) -> None:
        """Write all pieces in one call."""
        raise NotImplementedError

    def close(self) -> None:
        """End the stream after the written data."""
        raise NotImplementedError

    def abort(self) -> None:
        """Reset the socket. Written data can be lost."""
        raise NotImplementedError

    def hand_over(self, protocol: Any) -> Any:
        """Give the socket to another protocol and return asyncio's transport. The connection has ended."""
        raise NotImplementedError

    def pause_reading(self) -> None:
        """Stop reading until `resume_reading`. Does nothing if reading is paused."""
        raise NotImplementedError

    def resume_reading(self) -> None:
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class ChannelZeroBase:
    """Channel 0 of a connection.

    Attributes:
        mechanism: SASL mechanism of the login.
        connected_at: seconds since 1970.
    """

    def __init__(self) -> None:
        self.mechanism = ""
        self.connected_at = 0.0

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call the function in the next loop turn."""
        raise NotImplementedError

    def on_method(self, number: i64, method: i64, payload: bytes) -> None:
        """Handle a method on channel 0, or any method before the connection is open. Raises: AmqpError."""
        raise NotImplementedError

    def fail(self, error: AmqpError) -> None:
        """Handle a hard error. Most errors in the handshake close the socket without an answer."""
        raise NotImplementedError

    def force(self, reason: str) -> None:
        """Close with 320 at the request of amqpctl, the HTTP API, a vhost deletion or a stop."""
        raise NotImplementedError

    def on_client_close(self) -> None:
        """Answer the client's connection.close, after the commands before it are done."""
        raise NotImplementedError

    def close_socket(self) -> None:
        """Write the remaining output and close the socket."""
        raise NotImplementedError

    def release(self) -> None:
        """Release the connection's consumers, unacked messages and exclusive queues."""
        raise NotImplementedError

    def pause_for_alarm(self) -> None:
        """Stop reading a client that published during an alarm, and send connection.blocked."""
        raise NotImplementedError

    def resume_after_alarm(self) -> None:
        """Read the client again: the alarm is over."""
        raise NotImplementedError
