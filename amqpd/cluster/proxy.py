"""Clients whose vhost another node runs: their bytes go there, and what comes back goes to them.

Behind connection.open a client's socket is a pipe. The owner of the vhost is asked by an inner connection of the
client's own (peer_link.py), whose preamble has what was agreed on so far; it then sees connection.open itself and
answers
it: every check, limit and reply is its own, as for a client of its own. Nothing is looked at on the way there, and of
what comes back no more than where frames end (protocol/frame.py), so that a connection.close of this node's can
be put behind the last whole one.

Back-pressure goes through: who does not read stops whoever writes to him, by pausing the other socket. Kept per client:
in each direction what the transport holds (BUFFER_HIGH_BYTES and one read), and of what comes back a frame that has
begun.

How it ends:

    the client ends                  the inner connection ends when what he sent is there; the owner sees a lost client
    connection.close went by         the owner's end of the stream is the client's: passed on
    the owner is gone, or is silent,
    or no longer the vhost's owner   320 `vhost 'v' is moving`: he connects anew, and is taken to the new owner

While this node has a resource alarm it holds those of its clients that publish, as it does its own: the owner, who sees
what they do, is told by the link, and stops reading them (proxy.py).

While nobody runs the vhost connection.open waits, MOVING_S at most, then 320 with the same text.

Clients of other nodes: a connection here whose socket is an inner one.

The other node has done TLS, the login and tune; what comes is connection.open and all behind it, and the handshake goes
on from there as if it had been here from the beginning. Peer, certificate and cipher are told as they are at the other
node. It is never relayed again: who does not run the vhost answers NOT_MINE, or 320 where it has gone meanwhile.

With the link of the other node's process (peer_link.py) all end that it relays.

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

from amqpd.auth.internal_backend import AuthenticationRefused
from amqpd.broker.flow.alarms import REASONS
from amqpd.cluster import peer_link
from amqpd.cluster.peer_link import (
    DISK,
    MEMORY,
    PeerConnector,
    PeerHeartbeat,
    PeerRefused,
    PeerUnreachable,
    refuse,
    welcome,
)
from amqpd.connection.channel_zero import OPEN, ChannelZero
from amqpd.connection.close_handler import CLOSE_OK_FRAME
from amqpd.connection.handover import Handover, NegotiatedLogin, VhostRouter
from amqpd.connection.read_pause import ALARM
from amqpd.connection.transport import LINGER_S, RESET, WRITE_HIGH_BYTES, WRITE_LOW_BYTES, Transport
from amqpd.errors import ConnectionForced, NotAllowed
from amqpd.protocol import methods
from amqpd.protocol.frame import FrameBoundaryScanner
from amqpd.protocol.methods import ConnectionBlocked, ConnectionClose, ConnectionOpen

if TYPE_CHECKING:
    from amqpd.auth.internal_backend import User
    from amqpd.broker.broker import Broker
    from amqpd.cluster.peer_link import Preamble, ProxiedClient
    from amqpd.cluster.view import NodeState, View
    from amqpd.connection.server import AmqpFrontEnd


log = logging.getLogger(__name__)

BUFFER_HIGH_BYTES: Final = 128 * 1024
BUFFER_LOW_BYTES: Final = 32 * 1024
MOVING_S: Final = 30.0
"""How long connection.open waits for an owner."""
LOOK_S: Final = 0.5
"""Between two looks for one, if nothing is told of a change before."""
UNKNOWN_S: Final = 3.0
"""How long a user whom the owner does not know yet is asked for again."""
CLOSE_WAIT_S: Final = 3.0
OPENING_MAX: Final = 32
"""Inner connections that are being opened at the same time."""


def moving(vhost: str) -> str:
    """Why a connection is closed whose vhost goes to another node."""
    return f"vhost '{vhost}' is moving"


class _ClientSide(asyncio.Protocol):
    """The client's socket."""

    def __init__(self, relay: ProxiedConnection) -> None:
        self._relay = relay

    def data_received(self, data: bytes) -> None:
        self._relay.from_client(data)

    def pause_writing(self) -> None:
        self._relay.hold_owner(True)

    def resume_writing(self) -> None:
        self._relay.hold_owner(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._relay.client_lost()


class _OwnerSide(asyncio.Protocol):
    """The inner connection."""

    def __init__(self, relay: ProxiedConnection) -> None:
        self._relay = relay

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._relay.owner = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._relay.from_owner(data)

    def pause_writing(self) -> None:
        self._relay.hold_client(True)

    def resume_writing(self) -> None:
        self._relay.hold_client(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._relay.owner_lost(exc is None)


class ProxiedConnection:
    """One client. node: who serves it. client, owner: the two sockets, None when closed."""

    def __init__(self, relays: ConnectionProxy, handover: Handover, node: NodeState) -> None:
        self._relays = relays
        self._handover = handover
        self.vhost = handover.vhost
        self.name = handover.name
        self.node = node
        self.client: asyncio.Transport | None = None
        self.owner: asyncio.Transport | None = None
        self._boundaries = FrameBoundaryScanner(handover.login.frame_max)
        self._passed_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        # connection.close of ours is out: only its answer is of interest.
        self._closing = False

    def begin(self) -> None:
        """The owner has said welcome: the client's socket is ours."""
        assert self.owner is not None
        client, rest = self._handover.take(_ClientSide(self))
        self.client = client
        client.set_write_buffer_limits(BUFFER_HIGH_BYTES, BUFFER_LOW_BYTES)
        self.owner.set_write_buffer_limits(BUFFER_HIGH_BYTES, BUFFER_LOW_BYTES)
        self.owner.write(methods.frame(0, ConnectionOpen(self.vhost)) + rest)
        if client.is_closing():
            self.client_lost()
        else:
            client.resume_reading()

    # -- bytes

    def from_client(self, data: bytes) -> None:
        if self._closing:
            if CLOSE_OK_FRAME in data or (len(data) < 12 and CLOSE_OK_FRAME.endswith(data)):
                self._end_client()
        elif self.owner is not None:
            self._passed_bytes += len(data)
            self.owner.write(data)

    def from_owner(self, data: bytes) -> None:
        if self.client is None or self._closing:
            return
        self._passed_bytes += len(data)
        whole = self._boundaries.complete_frames(data)
        if whole:
            self.client.write(whole)
        if self._boundaries.is_broken:
            log.error("node %s sent a frame that is none", self.node.name, extra={"connection": self.name})
            self.close(moving(self.vhost))

    def hold_owner(self, on: bool) -> None:
        """The client does not read what is there for it, or does again."""
        owner = self.owner
        if owner is not None and not owner.is_closing():
            if on:
                owner.pause_reading()
            else:
                owner.resume_reading()

    def hold_client(self, on: bool) -> None:
        """The owner does not read, or does again."""
        client = self.client
        if client is not None and not client.is_closing() and not self._closing:
            if on:
                client.pause_reading()
            else:
                client.resume_reading()

    # -- ends

    def client_lost(self) -> None:
        """What it has sent goes on to the owner, who is told then by the end of the stream."""
        if self.client is None:
            return
        self.client = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._relays.left(self)
        self._handover.gone(self._passed_bytes)
        if self.owner is not None and not self.owner.is_closing():
            self.owner.resume_reading()  # nobody is held by what comes; its end is to be seen
            self.owner.close()

    def owner_lost(self, cleanly: bool) -> None:
        """cleanly: by the end of its stream, else by a reset."""
        self.owner = None
        client = self.client
        if client is None or self._closing:
            return
        if not self._boundaries.saw_close:
            self.close(moving(self.vhost))
        elif cleanly:
            self._end_client()
        else:
            self._reset_client()

    def close(self, reason: str) -> None:
        """320, from this node; the owner sees a lost client."""
        client, owner = self.client, self.owner
        if self._closing or client is None:
            return
        self._closing = True
        log.warning("a relayed connection is closed: %s", reason, extra=self._about())
        if owner is not None:
            self.owner = None
            owner.abort()
        if self._boundaries.saw_close:
            self._end_client()
            return
        error = ConnectionForced(reason)
        client.write(methods.frame(0, ConnectionClose(error.code, error.reply_text)))
        self._timer = self._relays.loop.call_later(CLOSE_WAIT_S, self._reset_client)
        if not client.is_closing():
            client.resume_reading()

    def _end_client(self) -> None:
        """The end of the stream; the socket when the client has ended its own, or after LINGER_S."""
        client = self.client
        self._closing = True
        if client is None or client.is_closing():
            return
        client.resume_reading()
        if not client.can_write_eof():
            client.close()
            return
        if self._timer is not None:
            self._timer.cancel()
        client.write_eof()
        self._timer = self._relays.loop.call_later(LINGER_S, self._lingered)

    def _lingered(self) -> None:
        """It has not ended its stream. One that does not even read what is there for it is not waited for for ever."""
        client = self.client
        if client is None:
            return
        if client.get_write_buffer_size() == 0:
            client.close()
        else:
            self._timer = self._relays.loop.call_later(CLOSE_WAIT_S, self._reset_client)

    def _reset_client(self) -> None:
        client = self.client
        if client is None:
            return
        sock = client.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        client.abort()

    def _about(self) -> dict[str, object]:
        return {"connection": self.name, "vhost": self.vhost}


class ConnectionProxy(VhostRouter):
    """All of this node. view: who runs what."""

    def __init__(self, broker: Broker, view: View, connector: PeerConnector) -> None:
        self.loop = broker.loop
        self._broker = broker
        self._view = view
        self._connector = connector
        self._relays: set[ProxiedConnection] = set()
        # By fingerprint: a node that was started anew with another certificate is another.
        self._links: dict[str, PeerHeartbeat] = {}
        self._linking: dict[str, asyncio.Task[None]] = {}
        self._unreached: dict[str, tuple[float, str]] = {}
        # A thousand clients that come back at once would have a thousand TLS handshakes overtake their deadlines.
        self._opening = asyncio.Semaphore(OPENING_MAX)
        self.relayed_count = 0
        """Clients that were taken elsewhere since the start."""
        view.listeners.append(self._owners_changed)
        broker.alarms.heard.append(self._tell_alarms)

    # -- Elsewhere

    def runs(self, vhost: str) -> bool:
        return self._view.knows(vhost)

    def count(self) -> int:
        return len(self._relays)

    def of_vhosts(self) -> dict[str, int]:
        """How many there are, by vhost."""
        found: dict[str, int] = {}
        for relay in self._relays:
            found[relay.vhost] = found.get(relay.vhost, 0) + 1
        return found

    def force_all(self, reason: str) -> int:
        relays = list(self._relays)
        for relay in relays:
            relay.close(reason)
        return len(relays)

    def close(self) -> None:
        """The node stops: its links end, and with them what is left."""
        for link in list(self._links.values()):
            link.close()
        for relay in list(self._relays):
            relay.close(moving(relay.vhost))

    async def carry(self, handover: Handover) -> None:
        try:
            await self._carry(handover)
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("a connection was not relayed: a bug of the broker")
            handover.refuse(ConnectionForced(moving(handover.vhost)))

    # -- inside

    async def _carry(self, handover: Handover) -> None:
        vhost, login = handover.vhost, handover.login
        begun = self.loop.time()
        beat_at = begun + login.heartbeat_s / 2
        refused = ""
        while True:
            now = self.loop.time()
            if self.closed:
                handover.refuse(ConnectionForced(self.closed))
                return
            if vhost in self._broker.vhosts:
                handover.stay()
                return
            if not self._view.knows(vhost):
                handover.refuse(NotAllowed(f"vhost {vhost} not found", methods.CONNECTION_OPEN))
                return
            node = self._view.owner_of(vhost)
            if node is not None and node.name != self._view.me:
                try:
                    await self._join_while_owner(handover, node)
                    return
                except PeerUnreachable as error:
                    log.info("%s", error, extra={"connection": handover.name, "vhost": vhost})
                except PeerRefused as error:
                    if error.answer == peer_link.REFUSED and now - begun > UNKNOWN_S:
                        refused = str(error)
            if refused:
                handover.refuse(NotAllowed(refused, methods.CONNECTION_OPEN))
                return
            if now - begun > MOVING_S:
                handover.refuse(ConnectionForced(moving(vhost)))
                return
            if login.heartbeat_s and now >= beat_at:
                beat_at = now + login.heartbeat_s / 2
                handover.alive()
            await self._view.changed(LOOK_S)

    async def _join_while_owner(self, handover: Handover, node: NodeState) -> None:
        """As `_join`, but a node that does not answer is not waited for once another has the vhost."""
        joining = self.loop.create_task(self._join(handover, node))
        moved = self.loop.create_task(self._moved(handover.vhost, node))
        try:
            await asyncio.wait((joining, moved), return_when=asyncio.FIRST_COMPLETED)
            if not joining.done():
                raise PeerUnreachable(f"node {node.name} does not run it any more")
            await joining
        finally:
            joining.cancel()
            moved.cancel()
            await asyncio.gather(joining, moved, return_exceptions=True)

    async def _moved(self, vhost: str, node: NodeState) -> None:
        """Returns when it is not that node any more who runs the vhost."""
        while True:
            owner = self._view.owner_of(vhost)
            if owner is None or owner.fingerprint != node.fingerprint:
                return
            await self._view.changed(LOOK_S)

    async def _join(self, handover: Handover, node: NodeState) -> None:
        """Raises: NotReached, Refused."""
        await self._link_to(node)
        relay = ProxiedConnection(self, handover, node)
        async with self._opening:
            try:
                await self._connector.open(node, self._preamble(handover), _OwnerSide(relay))
                relay.begin()
            except BaseException:
                if relay.owner is not None:
                    relay.owner.abort()
                raise
        if relay.client is not None:
            self._relays.add(relay)
            self.relayed_count += 1
            about = {"connection": relay.name, "vhost": relay.vhost, "user": handover.login.user.name}
            log.info("relayed to node %s", node.name, extra=about)

    async def _link_to(self, node: NodeState) -> None:
        """There is a link when it returns: whoever asks for one that is being made waits for that, and one that could
        not be made is not asked for again at once. Raises: NotReached, Refused.
        """
        key = node.fingerprint
        known = self._links.get(key)
        if known is not None and known.alive:
            return
        failed_at, why = self._unreached.get(key, (0.0, ""))
        if why and self.loop.time() - failed_at < LOOK_S:
            raise PeerUnreachable(why)
        making = self._linking.get(key)
        if making is None:
            making = self._linking[key] = self.loop.create_task(self._link(node))
            making.add_done_callback(partial(self._linked, key))
        await asyncio.shield(making)

    def _linked(self, key: str, making: asyncio.Task[None]) -> None:
        """Clients that waited may have gone: then nobody else asks how it ended."""
        self._linking.pop(key, None)
        error = None if making.cancelled() else making.exception()
        if error is not None and not isinstance(error, (PeerUnreachable, PeerRefused)):
            log.error("a link to another node could not be made", exc_info=error)

    async def _link(self, node: NodeState) -> None:
        link = PeerHeartbeat(node.name, lambda ended: self._link_ended(node.fingerprint, ended), says=self._alarms())
        try:
            await self._connector.open(node, self._connector.preamble(peer_link.LINK), link)
        except (PeerUnreachable, PeerRefused) as error:
            self._unreached[node.fingerprint] = (self.loop.time(), str(error))
            raise
        self._unreached.pop(node.fingerprint, None)
        self._links[node.fingerprint] = link
        link.say(self._alarms())  # it may have changed while the link was made

    def _alarms(self) -> int:
        """For owners; `store` is about what is served here, and none of theirs."""
        raised = self._broker.alarms.raised
        return (MEMORY if "memory" in raised else 0) | (DISK if "disk" in raised else 0)

    def _tell_alarms(self) -> None:
        for link in list(self._links.values()):
            link.say(self._alarms())

    def _link_ended(self, fingerprint: str, link: PeerHeartbeat) -> None:
        if self._links.get(fingerprint) is link:
            del self._links[fingerprint]
        for relay in list(self._relays):
            if relay.node.fingerprint == fingerprint:
                relay.close(moving(relay.vhost))

    def _preamble(self, handover: Handover) -> peer_link.Preamble:
        login, wire = handover.login, handover.wire
        shown = wire.peer_certificate()
        client = peer_link.ProxiedClient(
            login.user.name,
            handover.vhost,
            login.mechanism,
            login.client_properties,
            login.channel_max,
            login.frame_max,
            login.heartbeat_s,
            float(login.connected_at),
            wire.peer,
            wire.local,
            wire.peer_is_loopback,
            wire.tls,
            wire.cipher(),
            {name: shown[name] for name in ("subject", "issuer", "notBefore", "notAfter") if name in shown},
            self._view.position(),
        )
        return self._connector.preamble(peer_link.AMQP, client)

    def left(self, relay: ProxiedConnection) -> None:
        """Its client is gone."""
        self._relays.discard(relay)

    def _owners_changed(self) -> None:
        """Those whose vhost another node runs now go there, by connecting anew. Where nobody is known to run it the one
        that did says so himself, or is found silent: that this node knows of none may be its own trouble.
        """
        owners: dict[str, str | None] = {}
        for relay in list(self._relays):
            vhost = relay.vhost
            if vhost not in owners:
                owner = self._view.owner_of(vhost)
                owners[vhost] = None if owner is None else owner.fingerprint
            if owners[vhost] not in (None, relay.node.fingerprint):
                relay.close(moving(vhost))


POSITION_WAIT_S: Final = 2.0
"""How long it is waited for what the other node has read of the cluster's users and permissions."""
STATE_POLL_S: Final = 0.05
HOLD_S: Final = 0.25
_REASONS: Final = {MEMORY: REASONS["memory"], DISK: REASONS["disk"], MEMORY | DISK: REASONS["memory"]}


class ProxiedChannelZero(ChannelZero):
    """From connection.open on."""

    def _look_elsewhere(self, command: ConnectionOpen, user: User) -> None:
        raise ConnectionForced(moving(command.virtual_host))

    def hold_for_node(self, reason: str) -> None:
        """As `hold_for_alarm`, for an alarm of the node that relays it."""
        connection = self.connection
        if not connection.gate.holds(ALARM):
            connection.gate.pause(ALARM)
            if connection.capabilities.get("connection.blocked") is True:
                connection.output.send(0, ConnectionBlocked(reason))


class ProxiedTransport(Transport):
    """The inner connection of one client. left: called when it is gone."""

    handshake = ProxiedChannelZero

    def __init__(
        self,
        broker: Broker,
        amqp: AmqpFrontEnd,
        node: str,
        client: ProxiedClient,
        user: User,
        left: Callable[[ProxiedTransport], None],
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
            NegotiatedLogin(
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
        assert isinstance(control, ProxiedChannelZero)
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


class ProxiedClients:
    """All that other nodes relay to this one; `link` and `amqp` are what the inner port hands connections to."""

    def __init__(self, broker: Broker, amqp: AmqpFrontEnd, view: View) -> None:
        self._broker = broker
        self._amqp = amqp
        self._view = view
        # By run, another node's process.
        self._links: dict[str, PeerHeartbeat] = {}
        self._by_run: dict[str, set[ProxiedTransport]] = {}
        # Of processes with a resource alarm: what they say, and the next look at their clients.
        self._alarms: dict[str, int] = {}
        self._look: asyncio.TimerHandle | None = None

    def count(self) -> int:
        """Clients of other nodes."""
        return sum(map(len, self._by_run.values()))

    async def link(self, preamble: Preamble, transport: asyncio.Transport) -> None:
        """The other end of its link: see peer_link.py."""
        run = preamble.run
        link = PeerHeartbeat(preamble.node, lambda ended: self._ended(run, ended), heard=partial(self._alarmed, run))
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
            await self._view.changed(STATE_POLL_S)
        if client.vhost not in self._broker.vhosts:
            refuse(transport, peer_link.NOT_MINE, moving(client.vhost))
        elif run not in self._links:
            refuse(transport, peer_link.NOT_MINE, "there is no link to that node's process")
        else:
            try:
                user = self._broker.auth.authenticate_external(client.user, client.loopback)
            except AuthenticationRefused as refused:
                log.warning("node %s relays somebody who may not log in: %s", preamble.node, refused.reason)
                text = f"access to vhost '{client.vhost}' refused for user '{client.user}'"
                refuse(transport, peer_link.REFUSED, text)
                return
            relayed = self._by_run.setdefault(run, set())
            one = ProxiedTransport(self._broker, self._amqp, preamble.node, client, user, partial(self._left, run))
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

    def _left(self, run: str, relayed: ProxiedTransport) -> None:
        found = self._by_run.get(run)
        if found is not None:
            found.discard(relayed)
            if not found:
                del self._by_run[run]

    def _ended(self, run: str, link: PeerHeartbeat) -> None:
        if self._links.get(run) is not link:
            return
        del self._links[run]
        self._alarms.pop(run, None)
        for relayed in list(self._by_run.get(run, ())):
            relayed.abort()
