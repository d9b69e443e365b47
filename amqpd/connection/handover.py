"""Handover of a connection to the node of a cluster that serves its vhost.

After connection.open this node keeps only the socket. Login and tuning go to the other node as a `NegotiatedLogin`;
a proxy takes the socket (`Handover.take_socket`) and forwards bytes. The other node continues the handshake before
connection.open (`ChannelZero.continue_login`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from amqpd.connection.heartbeat import HEARTBEAT_FRAME

if TYPE_CHECKING:
    from amqpd.auth.internal_backend import User
    from amqpd.connection.connection import Connection
    from amqpd.connection.malloc_trim import MallocTrimmer
    from amqpd.connection.unauthenticated import UnauthenticatedSockets
    from amqpd.errors import HardError


class NegotiatedLogin(NamedTuple):
    """Result of login and tuning, before connection.open.

    Attributes:
        frame_max: size of a whole frame in bytes.
        heartbeat_s: 0 for none.
        connected_at: seconds since 1970.
    """

    user: User
    mechanism: str
    client_properties: Mapping[str, object]
    channel_max: int
    frame_max: int
    heartbeat_s: int
    connected_at: float


class Handover:
    """A connection that waits after connection.open and is not read.

    One of `take_socket`, `refuse` and `stay` ends the wait.

    Args:
        left: notifies channel 0 that the proxy has the socket.
        refuse: sends connection.close with this error.
        stay: opens the connection on this node after all.
    """

    def __init__(
        self,
        connection: Connection,
        login: NegotiatedLogin,
        vhost: str,
        shared: tuple[UnauthenticatedSockets, MallocTrimmer],
        left: Callable[[], None],
        refuse: Callable[[HardError], None],
        stay: Callable[[], None],
    ) -> None:
        self.connection = connection
        self.login = login
        self.vhost = vhost
        self.wire = connection.wire
        self.name = connection.name
        self.refuse = refuse
        self.open_here = stay
        self._unopened, self._give_back = shared
        self._left = left
        self._unopened.mark_logged_in(self.wire)  # logged in: it is not closed to make room for others

    def send_heartbeat(self) -> None:
        self.connection.output.write(HEARTBEAT_FRAME)

    def take_socket(self, protocol: asyncio.Protocol) -> tuple[asyncio.Transport, bytes]:
        """Give the socket, not read, to `protocol` and dispose of the connection.

        Returns: the transport, and the bytes that the client sent behind connection.open.
        """
        connection = self.connection
        connection.output.flush()
        rest = connection.take_input()
        transport: asyncio.Transport = self.wire.hand_over(protocol)
        self._left()
        connection.dispose()
        del self.connection, self._left, self.refuse, self.open_here
        return transport, rest

    def on_socket_closed(self, size: int) -> None:
        """Account for the closed socket, through which `size` bytes passed."""
        self._unopened.remove(self.wire)
        self._give_back.on_closed(size)


class VhostRouter:
    """The interface to vhosts on other nodes. A single node has none.

    Attributes:
        closed: why this node opens no vhost at present; "" if it does.
    """

    closed = ""

    def is_remote(self, vhost: str) -> bool:
        """Return whether the vhost exists in the cluster but not on this node. While it moves, no node serves it."""
        raise NotImplementedError

    async def hand_over(self, handover: Handover) -> None:
        """Hand the connection over to the vhost's node, or refuse it. Raises nothing except a cancellation."""
        raise NotImplementedError

    def count(self) -> int:
        """Return the number of this node's clients that other nodes serve."""
        raise NotImplementedError

    def force_all(self, reason: str) -> int:
        """Close these connections with 320 and return their number."""
        raise NotImplementedError
