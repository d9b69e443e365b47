"""Peer port of a node, and the messages that nodes exchange there.

    kind     purpose                                            handled in
    AMQP     a client of another node whose vhost is here       proxy.py
    LINK     heartbeat and alarms of another node               peer_link.py
    SERVED   ask which slots this node serves                   PeerStatusMonitor
    HTTP     requests of another node's HTTP API                peer_http.py, api_gateway.py
    WRITE    cluster-wide changes for slot 0's owner            ForwardedWriter

**Forwarded changes** (WRITE). A node that does not own slot 0 sends cluster-wide changes to the node that does.
Request and answer are u32 length and JSON:

    request    the changes (`row_codec.changes_to_json`)
    answer     {"offset": n}, the offset behind the records; or {"error": text, "not_owner": true if nothing was
               written because another node owns slot 0}

Without an answer the outcome is unknown; the sender reads the real state from slot 0.

**Served slots** (SERVED). A node without connection to Kafka may have lost its slots. It would learn this only
after `cluster.delivery_timeout_s`, and its clients would wait so long. Therefore it asks the known nodes every
ASK_S while a slot's lease has expired (`ownership.py`) or the group has not answered for the session time-out:

    a slot of this node is served elsewhere     the slot ends here: 320, and the clients reconnect
    any slot is served elsewhere                this node proxies its clients there
    no node answers, nor does Kafka             all connections are closed with 320 and new ones are refused
    nodes answer but do not serve the slots     Kafka is unreachable for all, or a takeover is in progress: wait

A node names only slots whose lease is valid: they are behind its barrier, so Kafka rejects writes of the asking
node. A wrong answer costs clients a reconnect but never a message. The answer is u32 length and JSON: `{"slots":
{slot: the owner's note}}`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from amqpd.cluster import peer_link
from amqpd.cluster.metadata import NotOwner
from amqpd.cluster.ownership import OwnedSlot
from amqpd.cluster.peer_link import (
    NodeCertificate,
    PeerConnector,
    PeerListener,
    PeerRefused,
    PeerUnreachable,
    accept_peer,
    identity,
    refuse_peer,
)
from amqpd.cluster.proxy import ConnectionProxy, ProxiedClients
from amqpd.cluster.row_codec import Foreign, NewerFormat, changes_from_json, changes_to_json
from amqpd.cluster.state import ClusterState, Owner
from amqpd.protocol_server import FrontEnd
from amqpd.storage.metadata.store import MetadataError, WriteFailed

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.cluster.peer_link import Preamble
    from amqpd.cluster.row_codec import SlotChange
    from amqpd.cluster.view import ClusterView, NodeState
    from amqpd.connection.server import AmqpFrontEnd
    from amqpd.management.cluster_gateway import ClusterApi
    from amqpd.management.front_end import AdminFrontEnd
    from amqpd.management.request import ClusterControl


log = logging.getLogger(__name__)

FORWARD_ANSWER_S: Final = 60.0
"""Time limit of an answer. Slot 0's owner may be waiting for Kafka."""
SIZE_MAX: Final = 64 << 20
_LENGTH: Final = struct.Struct(">I")

Write: TypeAlias = "Callable[[Sequence[SlotChange]], Awaitable[int]]"


class Frames(asyncio.Protocol):
    """Protocol for one message in each direction.

    Args:
        on_message: called once with the message, or with None if it is too large or the connection ended.
    """

    def __init__(self, on_message: Callable[[bytes | None], None]) -> None:
        self._on_message: Callable[[bytes | None], None] | None = on_message
        self._data = bytearray()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._on_message is None:
            return
        self._data += data
        if len(self._data) < _LENGTH.size:
            return
        end = _LENGTH.size + _LENGTH.unpack_from(self._data)[0]
        if end > SIZE_MAX:
            self._finish(None)
        elif len(self._data) >= end:
            self._finish(bytes(self._data[_LENGTH.size : end]))

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._finish(None)

    def _finish(self, message: bytes | None) -> None:
        on_message, self._on_message = self._on_message, None
        if on_message is not None:
            on_message(message)

    def send(self, message: object) -> None:
        """Send a message as JSON. Does nothing if the connection ended."""
        if self.transport is not None:
            body = json.dumps(message).encode()
            self.transport.write(_LENGTH.pack(len(body)) + body)

    def close(self) -> None:
        """Close the connection after everything was sent."""
        if self.transport is not None:
            self.transport.close()


async def ask(connector: PeerConnector, node: NodeState, kind: str, request: object = None) -> bytes | None:
    """Ask a node over a connection of this kind. Return its answer; None if the connection ends without one.

    Raises: PeerUnreachable, PeerRefused.
    """
    answered: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

    def on_message(message: bytes | None) -> None:
        if not answered.done():
            answered.set_result(message)

    frames = Frames(on_message)
    try:
        await connector.open(node, connector.preamble(kind), frames)
        if request is not None:
            frames.send(request)
        return await answered
    finally:
        frames.close()


async def forward_changes(connector: PeerConnector, node: NodeState, changes: Sequence[SlotChange]) -> int:
    """Send changes to the owner of slot 0 and return the offset behind them.

    Raises:
        NotOwner: nothing was written.
        WriteFailed: the changes were refused, or the outcome is unknown.
    """
    try:
        async with asyncio.timeout(FORWARD_ANSWER_S):
            message = await ask(connector, node, peer_link.WRITE, changes_to_json(changes))
    except (PeerUnreachable, PeerRefused) as error:
        raise NotOwner(f"cannot write the metadata: {error}") from error
    except TimeoutError:
        message = None
    if message is None:
        raise WriteFailed(f"cannot write the metadata: node {node.name}, which owns slot 0, did not answer")
    said: Any = json.loads(message)
    if "offset" in said:
        return int(said["offset"])
    raise (NotOwner if said["not_owner"] else WriteFailed)(str(said["error"]))


class ForwardedWriter:
    """Receiver of the changes that other nodes send to slot 0's owner.

    Args:
        write: `ClusterMetadata.write_forwarded`.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, preamble: Preamble, transport: asyncio.Transport) -> None:

        def on_message(message: bytes | None) -> None:
            if message is None:
                frames.close()
                return
            task = asyncio.get_running_loop().create_task(self._answer(preamble.node, frames, message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        frames = Frames(on_message)
        accept_peer(transport, frames)

    async def _answer(self, node: str, frames: Frames, message: bytes) -> None:
        try:
            offset = await self._write(changes_from_json(json.loads(message)))
        except (MetadataError, Foreign, NewerFormat, ValueError, RecursionError) as error:
            log.info("a cluster-wide change of node %s was refused: %s", node, error)
            frames.send({"error": str(error), "not_owner": isinstance(error, NotOwner)})
        except Exception:
            log.exception("a cluster-wide change of node %s failed: a bug in amqpd, please report it", node)
            frames.send({"error": "an error of slot 0's owner; see its log", "not_owner": False})
        else:
            frames.send({"offset": offset})


ASK_S: Final = 1.0
ANSWER_S: Final = 2.0
ROUNDS: Final = 2
"""Number of rounds without any answer before clients are refused."""
CUT_OFF: Final = "this node reaches neither Kafka nor another node of the cluster: connect to another node"


class PeerStatusMonitor:
    """Monitor that asks other nodes which slots they serve, while Kafka does not answer.

    Args:
        owned: returns the slots that this node serves.
        answers: returns whether Kafka answers.
        on_cut_off: called with the reason when clients must be refused, and with "" when they are accepted again.
    """

    def __init__(
        self,
        connector: PeerConnector,
        view: ClusterView,
        state: ClusterState,
        owned: Callable[[], Mapping[int, OwnedSlot]],
        answers: Callable[[], bool],
        session_timeout_s: float,
        on_cut_off: Callable[[str], None],
    ) -> None:
        self._connector = connector
        self._view = view
        self._state = state
        self._owned = owned
        self._answers = answers
        self._timeout_s = session_timeout_s
        self._on_cut_off = on_cut_off
        self._asking: asyncio.Task[None] | None = None
        self._unanswered = 0  # rounds
        self._silent: set[str] = set()  # names of nodes that did not answer the last question
        self.cut_off = ""

    def start(self) -> None:
        self._asking = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    # -- asking --------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(ASK_S)
            try:
                await self.poll()
            except Exception:
                log.exception("other nodes were not asked: a bug in amqpd, please report it")

    async def poll(self) -> None:
        """Ask all other nodes if Kafka does not answer. Cost: a TLS handshake per node."""
        said = False
        others = [node for node in self._view.nodes() if node.name != self._view.node_name]
        wanted = not self._answers() or any(owned.is_suspended for owned in self._owned().values())
        if wanted and others:
            said = any(await asyncio.gather(*(self._ask(node) for node in others)))
        alone = bool(others) and not said and not self._answers()
        self._unanswered = self._unanswered + 1 if alone else 0
        why = CUT_OFF if self._unanswered >= ROUNDS else ""
        if why != self.cut_off:
            self.cut_off = why
            log.warning("clients are refused: %s", why) if why else log.warning("clients are accepted again")
            self._on_cut_off(why)

    async def _ask(self, node: NodeState) -> bool:
        """Ask one node and apply its answer. Return whether it answered."""
        try:
            async with asyncio.timeout(ANSWER_S):
                message = await ask(self._connector, node, peer_link.SERVED)
        except (PeerUnreachable, PeerRefused, TimeoutError) as error:
            if node.name not in self._silent:
                self._silent.add(node.name)
                log.info("node %s did not report its slots: %s", node.name, str(error) or "no answer")
            return False
        if message is None:
            return False
        self._silent.discard(node.name)
        try:
            found = {int(slot): Owner.from_note(note) for slot, note in json.loads(message)["slots"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, NewerFormat) as error:
            log.error("node %s sent an invalid answer: %r", node.name, error)
            return False
        for slot, owner in found.items():
            if (owner.node, owner.fingerprint) == (node.name, node.fingerprint) and 0 <= slot < self._state.slots:
                self._apply_owner(slot, owner)
        return True

    def _apply_owner(self, slot: int, owner: Owner) -> None:
        known = self._state.owner_of(slot)
        if known is not None and (owner == known or owner.is_before(known)):
            return
        ours = self._owned().get(slot)
        if ours is not None:
            if not ours.is_suspended or (ours.held.producer_id == owner.producer_id and owner.epoch <= ours.epoch):
                return
            ours.logs.fenced(f"node {owner.node} serves it with epoch {owner.epoch}")
        self._state.set_owner(slot, owner)

    # -- answering -----------------------------------------------------------------------------------------------------

    def served_slots(self) -> dict[int, Owner]:
        """Return the slots that this node announced and whose lease is valid."""
        now = asyncio.get_running_loop().time()
        found: dict[int, Owner] = {}
        for slot, owned in self._owned().items():
            owner = self._state.owner_of(slot)
            if owner is None or owned.end_reason or now - owned.producer.answered_s > self._timeout_s:
                continue
            if (owner.producer_id, owner.epoch) == (owned.held.producer_id, owned.epoch):
                found[slot] = owner
        return found

    async def accept(self, _preamble: Preamble, transport: asyncio.Transport) -> None:
        """Accept a connection of kind SERVED and answer; the asking node closes it."""
        frames = Frames(lambda _: frames.close())
        accept_peer(transport, frames)
        said: dict[str, Any] = {str(slot): owner._asdict() for slot, owner in self.served_slots().items()}
        frames.send({"slots": said})


class PeerServer(FrontEnd):
    """The peer port of a node.

    It stays open during `stop_app`, like the HTTP API. Its listeners are named `cluster`.

    Args:
        admin: the HTTP API, which starts later; it answers for the whole cluster and handles requests of other
        nodes.
        view: the owners of vhosts.
        secret: the cluster's secret.
        listen: host and port.
        write: writes to slot 0 if this node owns it.
    """

    stays = True

    def __init__(
        self,
        broker: Broker,
        amqp: AmqpFrontEnd,
        admin: AdminFrontEnd,
        view: ClusterView,
        secret: bytes,
        listen: tuple[str, int],
        write: Write | None = None,
    ) -> None:
        super().__init__()
        self._broker = broker
        self._amqp = amqp
        self._secret = secret
        self._view = view
        self._listen = listen
        self._admin = admin
        admin.make_cluster_api = self._make_gateway
        self.control: ClusterControl | None = None
        """Operations for administrators. Set before the HTTP API serves requests."""
        self.connector = PeerConnector(view.node_name, secret)
        self.relays = ConnectionProxy(broker, view, self.connector)
        self.relayed = ProxiedClients(broker, amqp, view)
        self.identity: NodeCertificate | None = None
        self._kinds: dict[str, Callable[[Preamble, asyncio.Transport], Awaitable[None]]] = {
            peer_link.AMQP: self.relayed.amqp,
            peer_link.LINK: self.relayed.link,
            peer_link.HTTP: self._take_http,
        }
        if write is not None:
            self._kinds[peer_link.WRITE] = ForwardedWriter(write).accept
        self._listener: PeerListener | None = None

    async def start(self) -> None:
        """Load the certificate and listen. Raises OSError."""
        if self.identity is None:
            self.identity = await asyncio.to_thread(identity, self._broker.settings.data_dir)
        self._listener = PeerListener(self.identity, self._secret, self._kinds)
        self.listeners += self._listener.listen(*self._listen)
        self._amqp.connections.vhost_router = self.relays

    @property
    def port(self) -> int:
        return 0 if self._listener is None else self._listener.port

    @property
    def refused_count(self) -> int:
        return 0 if self._listener is None else self._listener.refused_count

    def cut_off(self, why: str) -> None:
        """Close all clients with 320 and refuse new ones; with "" accept clients again.

        The node can confirm nothing and cannot ask which node serves its clients, so the clients must find another
        node.
        """
        self.relays.closed = why
        self._view.notify_listeners()  # waiting connections see that they are refused
        if why:
            self.relays.force_all(why)
            for connection in list(self._amqp.connections):
                connection.control.force(why)
            self._broker.turn.schedule()

    def _make_gateway(self) -> ClusterApi:
        """Return the gateway. The HTTP API calls this after the ready line, so that the import does not delay the
        start.
        """
        from amqpd.cluster.api_gateway import ApiGateway

        return ApiGateway(self._broker, self._view, self.connector, self.control)

    async def _take_http(self, _preamble: Preamble, transport: asyncio.Transport) -> None:
        """Accept a connection for requests of another node's HTTP API."""
        protocol = self._admin.inner_connection()
        if protocol is None:
            refuse_peer(transport, peer_link.NOT_MINE, "its HTTP API has not started yet")
        else:
            accept_peer(transport, protocol)

    async def stop(self) -> None:
        """Close the port and all remaining connections. The AMQP listener stopped before and notified its clients."""
        self.listeners.clear()
        self._amqp.connections.vhost_router = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self.relayed.close()
        self.relays.close()

    async def suspend(self) -> None:
        """Do nothing: clients do not use this port."""

    async def resume(self) -> None:
        """Do nothing: the port was not suspended."""
