"""Clients of other nodes: a connection here whose socket is an inner one.

The other node has done TLS, the login and tune; what comes is connection.open and all behind it, and the handshake goes
on from there as if it had been here from the beginning. Peer, certificate and cipher are told as they are at the other
node. It is never relayed again: who does not run the vhost answers NOT_MINE, or 320 where it has gone meanwhile.

With the link of the other node's process (link.py) all end that it relays.

While the other node has a resource alarm, which it says by that link, those of its clients that publish are not read,
and are told by connection.blocked, as at the node itself: their bytes go through its memory. Looked at each HOLD_S, so
that a publish costs nothing: one that comes is held behind the next look. When this node's own alarm ends before the
other's, they may be told so, and are held again when they publish.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from amqpd.auth.internal_backend import Refused
from amqpd.broker.flow.alarms import REASONS
from amqpd.cluster import preamble as words
from amqpd.cluster.peer_link import refuse, welcome
from amqpd.cluster.link import DISK, MEMORY, Link
from amqpd.cluster.proxy import moving
from amqpd.connection.handover import Login
from amqpd.connection.channel_zero import OPEN, Handshake
from amqpd.connection.read_pause import ALARM
from amqpd.connection.transport import WRITE_HIGH_BYTES, WRITE_LOW_BYTES, Transport
from amqpd.errors import ConnectionForced
from amqpd.protocol.commands import ConnectionBlocked

if TYPE_CHECKING:
    from amqpd.auth.internal_backend import User
    from amqpd.broker.broker import Broker
    from amqpd.cluster.preamble import Client, Preamble
    from amqpd.cluster.view import View
    from amqpd.connection.server import AmqpFrontEnd
    from amqpd.protocol.commands import ConnectionOpen

log = logging.getLogger(__name__)

POSITION_WAIT_S: Final = 2.0
"""How long it is waited for what the other node has read of the cluster's users and permissions."""
LOOK_S: Final = 0.05
HOLD_S: Final = 0.25
_REASONS: Final = {MEMORY: REASONS["memory"], DISK: REASONS["disk"], MEMORY | DISK: REASONS["memory"]}


class RelayedHandshake(Handshake):
    """From connection.open on."""

    def _look_elsewhere(self, command: ConnectionOpen, user: User) -> None:
        raise ConnectionForced(moving(command.virtual_host))

    def hold_for_node(self, reason: str) -> None:
        """As `hold_for_alarm`, for an alarm of the node that relays it."""
        connection = self.connection
        if not connection.gate.holds(ALARM):
            connection.gate.hold(ALARM)
            if connection.capabilities.get("connection.blocked") is True:
                connection.output.send(0, ConnectionBlocked(reason))


class RelayedTransport(Transport):
    """The inner connection of one client. left: called when it is gone."""

    handshake = RelayedHandshake

    def __init__(
        self,
        broker: Broker,
        amqp: AmqpFrontEnd,
        node: str,
        client: Client,
        user: User,
        left: Callable[[RelayedTransport], None],
    ) -> None:
        super().__init__(broker, amqp.connections, amqp.heartbeats, client.tls)
        self._names = amqp.connections.by_name
        self._client = client
        self._user = user
        self._left = left
        self.node = node
        self._published_count = 0  # as of the last look while its node has an alarm
        self.peer, self.local, self.peer_is_loopback = client.peer, client.local, client.loopback

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(WRITE_HIGH_BYTES, WRITE_LOW_BYTES)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.begin()
        client = self._client
        self.control.take_over(
            Login(
                self._user,
                client.mechanism,
                client.client_properties,
                client.channel_max,
                client.frame_max,
                client.heartbeat_s,
                client.connected_at,
            )
        )

    def hold_if_it_publishes(self, reason: str, first: bool) -> None:
        """first: at the first look it only begins to count."""
        control = self.control
        if control.step != OPEN:
            return
        assert isinstance(control, RelayedHandshake)
        published = int(control.connection.published_count)
        if published > self._published_count and not first:
            control.hold_for_node(reason)
        self._published_count = published

    def name(self) -> str:
        # Unlike sockets of one machine those of two may have the same addresses.
        name = super().name()
        return name if name not in self._names else f"{name} at {self.node}"

    def peer_certificate(self) -> dict[str, Any]:
        return dict(self._client.certificate)

    def cipher(self) -> tuple[str, str]:
        return self._client.cipher

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._left(self)


class RelayedClients:
    """All that other nodes relay to this one; `link` and `amqp` are what the inner port hands connections to."""

    def __init__(self, broker: Broker, amqp: AmqpFrontEnd, view: View) -> None:
        self._broker = broker
        self._amqp = amqp
        self._view = view
        # By run, another node's process.
        self._links: dict[str, Link] = {}
        self._by_run: dict[str, set[RelayedTransport]] = {}
        # Of processes with a resource alarm: what they say, and the next look at their clients.
        self._alarms: dict[str, int] = {}
        self._look: asyncio.TimerHandle | None = None

    def count(self) -> int:
        """Clients of other nodes."""
        return sum(map(len, self._by_run.values()))

    async def link(self, preamble: Preamble, transport: asyncio.Transport) -> None:
        """The other end of its link: see link.py."""
        run = preamble.run
        link = Link(preamble.node, lambda ended: self._ended(run, ended), heard=partial(self._alarmed, run))
        former = self._links.get(run)
        self._links[run] = link
        if former is not None:
            former.close()  # it has lost that one, and what went with it
        welcome(transport, link)

    async def amqp(self, preamble: Preamble, transport: asyncio.Transport) -> None:
        """A client of another node."""
        client, run = preamble.client, preamble.run
        assert client is not None  # of this kind
        deadline = self._broker.loop.time() + POSITION_WAIT_S
        while self._view.position() < client.position and self._broker.loop.time() < deadline:
            # Its user may have been made, or let into the vhost, a moment ago.
            await self._view.changed(LOOK_S)
        if client.vhost not in self._broker.vhosts:
            refuse(transport, words.NOT_MINE, moving(client.vhost))
        elif run not in self._links:
            refuse(transport, words.NOT_MINE, "there is no link to that node's process")
        else:
            try:
                user = self._broker.auth.vouched(client.user, client.loopback)
            except Refused as refused:
                log.warning("node %s relays somebody who may not log in: %s", preamble.node, refused.reason)
                text = f"access to vhost '{client.vhost}' refused for user '{client.user}'"
                refuse(transport, words.REFUSED, text)
                return
            relayed = self._by_run.setdefault(run, set())
            one = RelayedTransport(self._broker, self._amqp, preamble.node, client, user, partial(self._left, run))
            relayed.add(one)
            welcome(transport, one)

    def close(self) -> None:
        """The node stops: links end, and with them all that is relayed."""
        for link in list(self._links.values()):
            link.close()

    # -- alarms of other nodes

    def _alarmed(self, run: str, alarms: int) -> None:
        """alarms: what that node says; 0: none any more."""
        had = self._alarms.pop(run, 0)
        if alarms in _REASONS:
            self._alarms[run] = alarms
            if not had:
                self._hold(run, first=True)
            if self._look is None:
                self._look = self._broker.loop.call_later(HOLD_S, self._look_again)
        elif had and not self._broker.turn.alarmed:
            for relayed in list(self._by_run.get(run, ())):
                if relayed.control.step == OPEN:
                    relayed.control.release_from_alarm()

    def _look_again(self) -> None:
        self._look = None
        for run in self._alarms:
            self._hold(run, first=False)
        if self._alarms:
            self._look = self._broker.loop.call_later(HOLD_S, self._look_again)

    def _hold(self, run: str, first: bool) -> None:
        """Cost: 1 us a client of that node."""
        for relayed in list(self._by_run.get(run, ())):
            relayed.hold_if_it_publishes(_REASONS[self._alarms[run]], first)

    def _left(self, run: str, relayed: RelayedTransport) -> None:
        found = self._by_run.get(run)
        if found is not None:
            found.discard(relayed)
            if not found:
                del self._by_run[run]

    def _ended(self, run: str, link: Link) -> None:
        if self._links.get(run) is not link:
            return
        del self._links[run]
        self._alarms.pop(run, None)
        for relayed in list(self._by_run.get(run, ())):
            relayed.abort()
