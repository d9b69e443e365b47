"""Proxied connections: a client connects to one node, and another node owns its vhost.

**On the client's node** (`ConnectionProxy`). After connection.open the client's socket is a pipe to the owner. The
node opens a connection to the owner's peer port (`peer_link.py`); the preamble has everything that was negotiated
so far. The owner then handles connection.open as if the client had connected to it: all checks, limits and replies
are the owner's. The node does not parse the bytes to the owner. In the other direction it only finds the ends of
frames (`protocol/frame.py`), so that it can put its own connection.close after a whole frame.

Back-pressure: a reader that stops pauses reading from the other socket. Memory per client and direction: the
transport's buffer (BUFFER_HIGH_BYTES and one read); from the owner also one partial frame.

How a proxied connection ends:

    - The client disconnects: the inner connection ends after everything was sent; the owner sees a lost client.
    - connection.close was passed: the end of the owner's stream is passed to the client.
    - The owner is lost, is silent or gave up the vhost: 320 `vhost 'v' is moving`. The client reconnects and is
      proxied to the new owner.

If no node owns the vhost, connection.open waits for at most MOVING_S; then the client gets 320 with the same text.

During a resource alarm of this node its publishing clients must not be read. Only the owner can see which clients
publish, so this node sends its alarms to the owner, which pauses them.

**On the owner** (`ProxiedClients`). Each proxied client is a connection whose socket is an inner connection. TLS,
login and tune are complete; connection.open comes next. Address, certificate and cipher are those of the client at
the other node. A connection is never proxied twice: a node that does not own the vhost answers NOT_MINE, or 320 if
it gave up the vhost meanwhile.

All connections that a process proxies end together with its heartbeat link (`peer_link.py`).

While the other node has a resource alarm, its clients that publish are paused and get connection.blocked, because
their bytes use that node's memory. The owner checks them every HOLD_S, so the check costs nothing per publish. If
this node's own alarm ends first, the clients may be unblocked; they are paused again when they publish.
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
    accept_peer,
    refuse_peer,
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
    from amqpd.cluster.view import ClusterView, NodeState
    from amqpd.connection.server import AmqpFrontEnd


log = logging.getLogger(__name__)

BUFFER_HIGH_BYTES: Final = 128 * 1024
BUFFER_LOW_BYTES: Final = 32 * 1024
MOVING_S: Final = 30.0
"""Maximum time for which connection.open waits for an owner."""
POLL_S: Final = 0.5
"""Interval of checks for an owner, in addition to notifications."""
UNKNOWN_S: Final = 3.0
"""Retry time for a user that the owner does not know yet."""
CLOSE_WAIT_S: Final = 3.0
OPENING_MAX: Final = 32
"""Maximum number of inner connections that are being opened."""


def moving_text(vhost: str) -> str:
    """Return the reply text of 320 for a connection whose vhost moves to another node."""
    return f"vhost '{vhost}' is moving"


class _ClientSide(asyncio.Protocol):
    """Protocol of the client's socket."""

    def __init__(self, relay: ProxiedConnection) -> None:
        self._relay = relay

    def data_received(self, data: bytes) -> None:
        self._relay.from_client(data)

    def pause_writing(self) -> None:
        self._relay.set_owner_paused(True)

    def resume_writing(self) -> None:
        self._relay.set_owner_paused(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._relay.on_client_lost()


class _OwnerSide(asyncio.Protocol):
    """asyncio protocol of the connection to the node that serves the vhost."""

    def __init__(self, relay: ProxiedConnection) -> None:
        self._relay = relay

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._relay.owner = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._relay.from_owner(data)

    def pause_writing(self) -> None:
        self._relay.set_client_paused(True)

    def resume_writing(self) -> None:
        self._relay.set_client_paused(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._relay.on_owner_lost(exc is None)


class ProxiedConnection:
    """Proxied connection of one client, on the client's node.

    Attributes:
        node: the owner of the vhost.
        client: the client's socket; None when closed.
        owner: the inner connection; None when closed.
    """

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
        # this node sent connection.close and waits only for close-ok
        self._closing = False

    def start(self) -> None:
        """Take the client's socket from the connection; the owner has accepted the inner connection."""
        assert self.owner is not None
        client, rest = self._handover.take_socket(_ClientSide(self))
        self.client = client
        client.set_write_buffer_limits(BUFFER_HIGH_BYTES, BUFFER_LOW_BYTES)
        self.owner.set_write_buffer_limits(BUFFER_HIGH_BYTES, BUFFER_LOW_BYTES)
        self.owner.write(methods.frame(0, ConnectionOpen(self.vhost)) + rest)
        if client.is_closing():
            self.on_client_lost()
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
            log.error("node %s sent an invalid frame", self.node.name, extra={"connection": self.name})
            self.close(moving_text(self.vhost))

    def set_owner_paused(self, on: bool) -> None:
        """Pause or resume reading from the owner: the client's output buffer is full, or has drained."""
        owner = self.owner
        if owner is not None and not owner.is_closing():
            if on:
                owner.pause_reading()
            else:
                owner.resume_reading()

    def set_client_paused(self, on: bool) -> None:
        """Pause or resume reading from the client: the buffer to the owner is full, or has drained."""
        client = self.client
        if client is not None and not client.is_closing() and not self._closing:
            if on:
                client.pause_reading()
            else:
                client.resume_reading()

    # -- end

    def on_client_lost(self) -> None:
        """Send the remaining bytes to the owner, then close the inner connection."""
        if self.client is None:
            return
        self.client = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._relays.remove(self)
        self._handover.on_socket_closed(self._passed_bytes)
        if self.owner is not None and not self.owner.is_closing():
            self.owner.resume_reading()  # read to the end of the stream and drop the bytes
            self.owner.close()

    def on_owner_lost(self, cleanly: bool) -> None:
        """Close the client: with 320, or as the owner ended its stream after connection.close.

        Args:
            cleanly: the stream ended normally, not with a reset.
        """
        self.owner = None
        client = self.client
        if client is None or self._closing:
            return
        if not self._boundaries.saw_close:
            self.close(moving_text(self.vhost))
        elif cleanly:
            self._end_client()
        else:
            self._reset_client()

    def close(self, reason: str) -> None:
        """Close the client with 320 and abort the inner connection; the owner sees a lost client."""
        client, owner = self.client, self.owner
        if self._closing or client is None:
            return
        self._closing = True
        log.warning("a proxied connection is closed: %s", reason, extra={"connection": self.name, "vhost": self.vhost})
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
        """End the stream to the client. The socket is closed when the client ends its stream, or after LINGER_S."""
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
        """Close a client that did not end its stream; reset it later if it does not read either."""
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


class ConnectionProxy(VhostRouter):
    """Proxied connections of this node's clients.

    Args:
        view: the owners of vhosts.
    """

    def __init__(self, broker: Broker, view: ClusterView, connector: PeerConnector) -> None:
        self.loop = broker.loop
        self._broker = broker
        self._view = view
        self._connector = connector
        self._relays: set[ProxiedConnection] = set()
        # by fingerprint: a restarted node with another certificate is another node
        self._links: dict[str, PeerHeartbeat] = {}
        self._linking: dict[str, asyncio.Task[None]] = {}
        self._unreached: dict[str, tuple[float, str]] = {}
        # Otherwise a thousand reconnecting clients would make all their TLS handshakes too slow.
        self._opening = asyncio.Semaphore(OPENING_MAX)
        view.listeners.append(self._owners_changed)
        broker.alarms.listeners.append(self._send_alarms)

    # -- VhostRouter

    def is_remote(self, vhost: str) -> bool:
        return self._view.knows(vhost)

    def count(self) -> int:
        return len(self._relays)

    def force_all(self, reason: str) -> int:
        relays = list(self._relays)
        for relay in relays:
            relay.close(reason)
        return len(relays)

    def close(self) -> None:
        """Close all links and connections, because the node stops."""
        for link in list(self._links.values()):
            link.close()
        for relay in list(self._relays):
            relay.close(moving_text(relay.vhost))

    async def hand_over(self, handover: Handover) -> None:
        try:
            await self._carry(handover)
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("a connection was not proxied: a bug in amqpd, please report it")
            handover.refuse(ConnectionForced(moving_text(handover.vhost)))

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
                handover.open_here()
                return
            if not self._view.knows(vhost):
                handover.refuse(NotAllowed(f"vhost {vhost} not found", methods.CONNECTION_OPEN))
                return
            node = self._view.owner_of(vhost)
            if node is not None and node.name != self._view.node_name:
                try:
                    await self._proxy_while_owner(handover, node)
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
                handover.refuse(ConnectionForced(moving_text(vhost)))
                return
            if login.heartbeat_s and now >= beat_at:
                beat_at = now + login.heartbeat_s / 2
                handover.send_heartbeat()
            await self._view.wait_change(POLL_S)

    async def _proxy_while_owner(self, handover: Handover, node: NodeState) -> None:
        """Run `_proxy`, but give up if another node becomes the owner while this one does not answer."""
        joining = self.loop.create_task(self._proxy(handover, node))
        moved = self.loop.create_task(self._wait_until_moved(handover.vhost, node))
        try:
            await asyncio.wait((joining, moved), return_when=asyncio.FIRST_COMPLETED)
            if not joining.done():
                raise PeerUnreachable(f"node {node.name} no longer owns the vhost")
            await joining
        finally:
            joining.cancel()
            moved.cancel()
            await asyncio.gather(joining, moved, return_exceptions=True)

    async def _wait_until_moved(self, vhost: str, node: NodeState) -> None:
        while True:
            owner = self._view.owner_of(vhost)
            if owner is None or owner.fingerprint != node.fingerprint:
                return
            await self._view.wait_change(POLL_S)

    async def _proxy(self, handover: Handover, node: NodeState) -> None:
        """Open the inner connection and start the proxy. Raises PeerUnreachable or PeerRefused."""
        await self._link_to(node)
        relay = ProxiedConnection(self, handover, node)
        async with self._opening:
            try:
                await self._connector.open(node, self._preamble(handover), _OwnerSide(relay))
                relay.start()
            except BaseException:
                if relay.owner is not None:
                    relay.owner.abort()
                raise
        if relay.client is not None:
            self._relays.add(relay)
            about = {"connection": relay.name, "vhost": relay.vhost, "user": handover.login.user.name}
            log.info("proxied to node %s", node.name, extra=about)

    async def _link_to(self, node: NodeState) -> None:
        """Ensure a heartbeat link to the node.

        Concurrent callers share one attempt. After a failure the next attempt waits for POLL_S.

        Raises: PeerUnreachable, PeerRefused: there is no link.
        """
        key = node.fingerprint
        known = self._links.get(key)
        if known is not None and known.is_open:
            return
        failed_at, why = self._unreached.get(key, (0.0, ""))
        if why and self.loop.time() - failed_at < POLL_S:
            raise PeerUnreachable(why)
        making = self._linking.get(key)
        if making is None:
            making = self._linking[key] = self.loop.create_task(self._link(node))
            making.add_done_callback(partial(self._linked, key))
        await asyncio.shield(making)

    def _linked(self, key: str, making: asyncio.Task[None]) -> None:
        """Log an unexpected error of an attempt. If all its clients have left, nothing else reports it."""
        self._linking.pop(key, None)
        error = None if making.cancelled() else making.exception()
        if error is not None and not isinstance(error, (PeerUnreachable, PeerRefused)):
            log.error("a link to another node could not be opened", exc_info=error)

    async def _link(self, node: NodeState) -> None:
        link = PeerHeartbeat(node.name, lambda ended: self._link_ended(node.fingerprint, ended), alarms=self._alarms())
        try:
            await self._connector.open(node, self._connector.preamble(peer_link.LINK), link)
        except (PeerUnreachable, PeerRefused) as error:
            self._unreached[node.fingerprint] = (self.loop.time(), str(error))
            raise
        self._unreached.pop(node.fingerprint, None)
        self._links[node.fingerprint] = link
        link.send_alarms(self._alarms())  # the alarms may have changed during the opening

    def _alarms(self) -> int:
        """Return the alarms that other nodes must respect. `store` concerns only the queues of this node."""
        raised = self._broker.alarms.raised
        return (MEMORY if "memory" in raised else 0) | (DISK if "disk" in raised else 0)

    def _send_alarms(self) -> None:
        for link in list(self._links.values()):
            link.send_alarms(self._alarms())

    def _link_ended(self, fingerprint: str, link: PeerHeartbeat) -> None:
        if self._links.get(fingerprint) is link:
            del self._links[fingerprint]
        for relay in list(self._relays):
            if relay.node.fingerprint == fingerprint:
                relay.close(moving_text(relay.vhost))

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

    def remove(self, relay: ProxiedConnection) -> None:
        self._relays.discard(relay)

    def _owners_changed(self) -> None:
        """Close the connections whose vhost has another owner now; the clients reconnect.

        If no owner is known, the connections stay: this may be a problem of this node. The old owner closes them
        itself, or its link goes silent.
        """
        owners: dict[str, str | None] = {}
        for relay in list(self._relays):
            vhost = relay.vhost
            if vhost not in owners:
                owner = self._view.owner_of(vhost)
                owners[vhost] = None if owner is None else owner.fingerprint
            if owners[vhost] not in (None, relay.node.fingerprint):
                relay.close(moving_text(vhost))


POSITION_WAIT_S: Final = 2.0
"""Maximum time to wait until this node has read the users and permissions that the client's node has read."""
STATE_POLL_S: Final = 0.05
HOLD_S: Final = 0.25
_REASONS: Final = {MEMORY: REASONS["memory"], DISK: REASONS["disk"], MEMORY | DISK: REASONS["memory"]}


class ProxiedChannelZero(ChannelZero):
    """Handshake of a proxied client; it begins at connection.open."""

    def _hand_over_if_remote(self, command: ConnectionOpen, user: User) -> None:
        """Refuse a vhost that has left this node. Its new node is for the client's own node to find."""
        raise ConnectionForced(moving_text(command.virtual_host))

    def pause_for_node_alarm(self, reason: str) -> None:
        """Pause the client because of an alarm of its node; see `pause_for_alarm`."""
        connection = self.connection
        if not connection.read_pause.is_set(ALARM):
            connection.read_pause.pause(ALARM)
            if connection.capabilities.get("connection.blocked") is True:
                connection.output.send(0, ConnectionBlocked(reason))


class ProxiedTransport(Transport):
    """Connection of a client of another node.

    Args:
        left: called when the connection is closed.
    """

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
        self._published_count = 0  # at the last check during an alarm of the client's node
        self.peer, self.local, self.peer_is_loopback = client.peer, client.local, client.loopback

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(WRITE_HIGH_BYTES, WRITE_LOW_BYTES)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.begin()
        client = self._client
        self.control.continue_login(
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

    def pause_if_publishing(self, reason: str, first: bool) -> None:
        """Pause the client if it has published since the last check.

        Args:
            first: only start to count.
        """
        control = self.control
        if control.step != OPEN:
            return
        assert isinstance(control, ProxiedChannelZero)
        published = int(control.connection.published_count)
        if published > self._published_count and not first:
            control.pause_for_node_alarm(reason)
        self._published_count = published

    def name(self) -> str:
        # Two hosts can have sockets with equal addresses.
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
    """Clients of other nodes on this node. `link` and `amqp` handle connections of the peer port."""

    def __init__(self, broker: Broker, amqp: AmqpFrontEnd, view: ClusterView) -> None:
        self._broker = broker
        self._amqp = amqp
        self._view = view
        # by run id, which identifies another node's process
        self._links: dict[str, PeerHeartbeat] = {}
        self._by_run: dict[str, set[ProxiedTransport]] = {}
        # alarms of other processes, and the timer of the next check of their clients
        self._alarms: dict[str, int] = {}
        self._check_timer: asyncio.TimerHandle | None = None

    def count(self) -> int:
        return sum(map(len, self._by_run.values()))

    async def link(self, preamble: Preamble, transport: asyncio.Transport) -> None:
        """Accept the heartbeat link of another process."""
        run = preamble.run
        link = PeerHeartbeat(
            preamble.node, lambda ended: self._ended(run, ended), on_alarms=partial(self._alarmed, run)
        )
        former = self._links.get(run)
        self._links[run] = link
        if former is not None:
            former.close()  # that process lost the former link and its connections
        accept_peer(transport, link)

    async def amqp(self, preamble: Preamble, transport: asyncio.Transport) -> None:
        """Accept a client of another node, or refuse it."""
        client, run = preamble.client, preamble.run
        assert client is not None  # always set for this kind
        deadline = self._broker.loop.time() + POSITION_WAIT_S
        while self._view.position() < client.position and self._broker.loop.time() < deadline:
            # the client's user or permission may be new
            await self._view.wait_change(STATE_POLL_S)
        if client.vhost not in self._broker.vhosts:
            refuse_peer(transport, peer_link.NOT_MINE, moving_text(client.vhost))
        elif run not in self._links:
            refuse_peer(transport, peer_link.NOT_MINE, "no link to that node's process")
        else:
            try:
                user = self._broker.auth.authenticate_external(client.user, client.loopback)
            except AuthenticationRefused as refused:
                log.warning("node %s proxies a user that cannot log in: %s", preamble.node, refused.reason)
                text = f"access to vhost '{client.vhost}' refused for user '{client.user}'"
                refuse_peer(transport, peer_link.REFUSED, text)
                return
            relayed = self._by_run.setdefault(run, set())
            one = ProxiedTransport(self._broker, self._amqp, preamble.node, client, user, partial(self._left, run))
            relayed.add(one)
            accept_peer(transport, one)

    def close(self) -> None:
        """Close all links, and with them all proxied connections: the node stops."""
        for link in list(self._links.values()):
            link.close()

    # -- alarms of other nodes

    def _alarmed(self, run: str, alarms: int) -> None:
        """Handle the alarms of another process; 0 means that it has none."""
        had = self._alarms.pop(run, 0)
        if alarms in _REASONS:
            self._alarms[run] = alarms
            if not had:
                self._pause_publishers(run, first=True)
            if self._check_timer is None:
                self._check_timer = self._broker.loop.call_later(HOLD_S, self._check_publishers)
        elif had and not self._broker.turn.alarmed:
            for relayed in list(self._by_run.get(run, ())):
                if relayed.control.step == OPEN:
                    relayed.control.resume_after_alarm()

    def _check_publishers(self) -> None:
        self._check_timer = None
        for run in self._alarms:
            self._pause_publishers(run, first=False)
        if self._alarms:
            self._check_timer = self._broker.loop.call_later(HOLD_S, self._check_publishers)

    def _pause_publishers(self, run: str, first: bool) -> None:
        """Pause the publishing clients of a process. Cost: 1 us per client."""
        for relayed in list(self._by_run.get(run, ())):
            relayed.pause_if_publishing(_REASONS[self._alarms[run]], first)

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
