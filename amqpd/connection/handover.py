"""Connections whose vhost another node runs, and how one changes hands.

Behind connection.open nothing of a connection is this node's but its socket, where another node runs the vhost: login
and tuning go there as a `NegotiatedLogin`, the socket goes to whoever carries bytes to and fro (`Handover.take`), and
the other node goes on with a handshake that expects connection.open (`ChannelZero.take_over`). Who does that is an
`Elsewhere`; a node by itself has none, and pays one look at an attribute where a vhost is not found.
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
    """What a client and this broker have agreed on before connection.open.

    frame_max: bytes of a whole frame. heartbeat_s: 0 is none. connected_at: seconds since 1970.
    """

    user: User
    mechanism: str
    client_properties: Mapping[str, object]
    channel_max: int
    frame_max: int
    heartbeat_s: int
    connected_at: float


class Handover:
    """A connection that waits behind connection.open and is not read.

    left: tells channel 0 that the connection is somebody else's. refuse: connection.close with this error. stay: it is
    opened here after all.
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
        self.stay = stay
        self._unopened, self._give_back = shared
        self._left = left
        self._unopened.opened(self.wire)  # it has logged in: it is not closed for others any more

    def alive(self) -> None:
        """A heartbeat goes to the client."""
        self.connection.output.write(HEARTBEAT_FRAME)

    def take(self, protocol: asyncio.Protocol) -> tuple[asyncio.Transport, bytes]:
        """The socket is the protocol's from here on, and is not read; with what the client has sent behind
        connection.open. The connection is no more.
        """
        connection = self.connection
        connection.output.flush()
        rest = connection.take_input()
        transport: asyncio.Transport = self.wire.hand_over(protocol)
        self._left()
        connection.let_go()
        del self.connection, self._left, self.refuse, self.stay
        return transport, rest

    def gone(self, size: int) -> None:
        """That socket is closed; `size` bytes have passed."""
        self._unopened.left(self.wire)
        self._give_back.gone(size)


class VhostRouter:
    """The vhosts that other nodes run. closed: why this node opens no vhost just now, wherever it runs; "": it does."""

    closed = ""

    def runs(self, vhost: str) -> bool:
        """Whether there is such a vhost, though not here; perhaps nobody runs it just now."""
        raise NotImplementedError

    async def carry(self, handover: Handover) -> None:
        """Takes the connection to whoever runs its vhost, or refuses it. Raises: nothing but a cancellation."""
        raise NotImplementedError

    def count(self) -> int:
        """Clients of this node that other nodes serve."""
        raise NotImplementedError

    def force_all(self, reason: str) -> int:
        """Closes the connections of them all: 320. Returns how many there were."""
        raise NotImplementedError
