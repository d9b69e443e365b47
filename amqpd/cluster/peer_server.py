"""Which slots other nodes serve, as they say themselves: asked while Kafka does not tell.

A node that is cut off from Kafka may have been replaced, and would hear of it from Kafka alone: its clients stood still
until it gave up what it could not store, `cluster.delivery_timeout_s` later. So, while a slot's lease has lapsed
(ownership.py), or the group has not answered for the session time-out, it asks the nodes it knows, each ASK_S:

    a slot of ours is served elsewhere      it has ended, as where Kafka says so: 320, and clients come back
    any slot is                             its clients are relayed there
    no node answers, nor does Kafka         all connections are closed, and none is opened: 320, try another node
    they answer, and serve none of it       Kafka is away from all, or a takeover is on its way: all goes on as it is

A node says only what it serves itself, with a lease that has not lapsed: behind its barrier, so that what we would
still write Kafka refuses. Who is wrong about it costs clients a connection, and nobody a message.

An inner connection of kind SERVED carries the answer, u32 length and JSON: {"slots": {slot: the owner's note}}.

Changes of what is the whole cluster's, from a node that does not own slot 0 to the one that does.

An inner connection of kind WRITE carries one submission and its answer, each as u32 length and JSON:

    asked      the changes, as rows.py has them for other nodes
    answered   {"offset": n}, behind the records; or {"error": text, "not_owner": whether nothing was written because
               another node owns slot 0}

Where no answer comes it is not known whether anything was written; what is the cluster's is told by slot 0 anyway.

The inner port as a front end: what other nodes come in by, and this node's clients go out by.

AMQP     a client of another node, whose vhost is here            proxy.py
LINK     whether that node is there                               peer_link.py
SERVED   what this node serves, for one that Kafka leaves alone    peer_server.py
HTTP     requests of another node's admin API                     peer_http.py, api_gateway.py
WRITE    changes of what is the cluster's, for slot 0's owner     peer_server.py
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
    identity,
    refuse,
    welcome,
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
    from amqpd.cluster.view import NodeState, View
    from amqpd.connection.server import AmqpFrontEnd
    from amqpd.management.cluster_gateway import ClusterApi
    from amqpd.management.front_end import AdminFrontEnd
    from amqpd.management.request import ClusterControl


log = logging.getLogger(__name__)

FORWARD_ANSWER_S: Final = 60.0
"""How long an answer may take: slot 0's owner may be waiting for Kafka."""
SIZE_MAX: Final = 64 << 20
_LENGTH: Final = struct.Struct(">I")

Write: TypeAlias = "Callable[[Sequence[SlotChange]], Awaitable[int]]"


class Frames(asyncio.Protocol):
    """One message each way. came: it has come, or is none, or the connection has ended without it (None)."""

    def __init__(self, came: Callable[[bytes | None], None]) -> None:
        self._came: Callable[[bytes | None], None] | None = came
        self._data = bytearray()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._came is None:
            return
        self._data += data
        if len(self._data) < _LENGTH.size:
            return
        end = _LENGTH.size + _LENGTH.unpack_from(self._data)[0]
        if end > SIZE_MAX:
            self._told(None)
        elif len(self._data) >= end:
            self._told(bytes(self._data[_LENGTH.size : end]))

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._told(None)

    def _told(self, message: bytes | None) -> None:
        came, self._came = self._came, None
        if came is not None:
            came(message)

    def say(self, message: object) -> None:
        """Nothing happens where the connection has ended."""
        if self.transport is not None:
            body = json.dumps(message).encode()
            self.transport.write(_LENGTH.pack(len(body)) + body)

    def end(self) -> None:
        """Behind what was said."""
        if self.transport is not None:
            self.transport.close()


async def forward(connector: PeerConnector, node: NodeState, changes: Sequence[SlotChange]) -> int:
    """The offset behind them, in slot 0. node: its owner. Raises: NotOwner, nothing was written; WriteFailed."""
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[bytes | None] = loop.create_future()

    def came(message: bytes | None) -> None:
        if not answered.done():
            answered.set_result(message)

    frames = Frames(came)
    try:
        await connector.open(node, connector.preamble(peer_link.WRITE), frames)
    except (PeerUnreachable, PeerRefused) as error:
        raise NotOwner(f"cannot write the metadata: {error}") from error
    try:
        frames.say(changes_to_json(changes))
        async with asyncio.timeout(FORWARD_ANSWER_S):
            message = await answered
    except TimeoutError:
        message = None
    finally:
        frames.end()
    if message is None:
        raise WriteFailed(f"cannot write the metadata: node {node.name}, which owns slot 0, did not answer")
    said: Any = json.loads(message)
    if "offset" in said:
        return int(said["offset"])
    raise (NotOwner if said["not_owner"] else WriteFailed)(str(said["error"]))


class ForwardedWriter:
    """Of slot 0's owner, or of a node that is taken for it. write: `ClusterMetadata.write_own`."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, preamble: Preamble, transport: asyncio.Transport) -> None:
        """An inner connection of kind WRITE."""

        def came(message: bytes | None) -> None:
            if message is None:
                frames.end()
                return
            task = asyncio.get_running_loop().create_task(self._answer(preamble.node, frames, message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        frames = Frames(came)
        welcome(transport, frames)

    async def _answer(self, node: str, frames: Frames, message: bytes) -> None:
        try:
            offset = await self._write(changes_from_json(json.loads(message)))
        except (MetadataError, Foreign, NewerFormat, ValueError, RecursionError) as error:
            log.info("node %s asked for a change of what is the cluster's: %s", node, error)
            frames.say({"error": str(error), "not_owner": isinstance(error, NotOwner)})
        except Exception:
            log.exception("node %s asked for a change: a bug of the broker", node)
            frames.say({"error": "an error of slot 0's owner; its log says more", "not_owner": False})
        else:
            frames.say({"offset": offset})


logger = logging.getLogger(__name__)

ASK_S: Final = 1.0
ANSWER_S: Final = 2.0
ROUNDS: Final = 2
"""In which nobody has answered, before clients are sent away."""
CUT_OFF: Final = "this node reaches neither Kafka nor another node of the cluster: connect to another node"


class PeerStatusMonitor:
    """Of one node. owned: the slots it serves. answers: whether Kafka does. on_cut_off: told why clients are sent
    away, "" when they are let in again.
    """

    def __init__(
        self,
        connector: PeerConnector,
        view: View,
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
        self._silent: set[str] = set()  # names of nodes that did not answer when they were asked last
        self.cut_off = ""

    def start(self) -> None:
        """Looks each ASK_S whether there is anything to ask."""
        self._asking = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Nothing is asked any more."""
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
                logger.exception("other nodes were not asked: a bug of the broker")

    async def poll(self) -> None:
        """Asks, if there is anything to ask. Cost: a TLS handshake a node."""
        said = False
        others = [node for node in self._view.nodes() if node.name != self._view.me]
        wanted = not self._answers() or any(owned.halted for owned in self._owned().values())
        if wanted and others:
            said = any(await asyncio.gather(*(self._ask(node) for node in others)))
        alone = bool(others) and not said and not self._answers()
        self._unanswered = self._unanswered + 1 if alone else 0
        why = CUT_OFF if self._unanswered >= ROUNDS else ""
        if why != self.cut_off:
            self.cut_off = why
            logger.warning("clients are sent away: %s", why) if why else logger.warning("clients are let in again")
            self._on_cut_off(why)

    async def _ask(self, node: NodeState) -> bool:
        """Whether it has answered."""
        answered: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

        def came(message: bytes | None) -> None:
            if not answered.done():
                answered.set_result(message)

        frames = Frames(came)
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._connector.open(node, self._connector.preamble(peer_link.SERVED), frames)
                message = await answered
        except (PeerUnreachable, PeerRefused, TimeoutError) as error:
            if node.name not in self._silent:
                self._silent.add(node.name)
                logger.info("node %s is asked what it serves: %s", node.name, str(error) or "no answer")
            return False
        finally:
            frames.end()
        if message is None:
            return False
        self._silent.discard(node.name)
        try:
            found = {int(slot): Owner.of(note) for slot, note in json.loads(message)["slots"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, NewerFormat) as error:
            logger.error("node %s says what is not understood: %r", node.name, error)
            return False
        for slot, owner in found.items():
            if (owner.node, owner.fingerprint) == (node.name, node.fingerprint) and 0 <= slot < self._state.slots:
                self._hear(slot, owner)
        return True

    def _hear(self, slot: int, owner: Owner) -> None:
        known = self._state.owner_of(slot)
        if known is not None and (owner == known or owner.was_before(known)):
            return
        ours = self._owned().get(slot)
        if ours is not None:
            if not ours.halted or (ours.held.producer_id == owner.producer_id and owner.epoch <= ours.epoch):
                return
            ours.logs.fenced(f"node {owner.node} says that it serves it, by epoch {owner.epoch}")
        self._state.hear(slot, owner)

    # -- answering -----------------------------------------------------------------------------------------------------

    def served_slots(self) -> dict[int, Owner]:
        """What this node may say that it serves: it has told Kafka, and Kafka has answered since, not long ago."""
        now = asyncio.get_running_loop().time()
        found: dict[int, Owner] = {}
        for slot, owned in self._owned().items():
            owner = self._state.owner_of(slot)
            if owner is None or owned.ended or now - owned.producer.answered_s > self._timeout_s:
                continue
            if (owner.producer_id, owner.epoch) == (owned.held.producer_id, owned.epoch):
                found[slot] = owner
        return found

    async def take(self, _preamble: Preamble, transport: asyncio.Transport) -> None:
        """An inner connection of kind SERVED; who asks ends it."""
        frames = Frames(lambda _: frames.end())
        welcome(transport, frames)
        said: dict[str, Any] = {str(slot): owner._asdict() for slot, owner in self.served_slots().items()}
        frames.say({"slots": said})


Serve: TypeAlias = "Callable[[Preamble, asyncio.Transport], Awaitable[None]]"


class PeerServer(FrontEnd):
    """Its listeners are `cluster`, one each per address. admin: it answers for the whole cluster, and other nodes'
    requests; it starts later. view: who runs what. secret: the cluster's. listen: host and port. write: what writes to
    slot 0 where this node owns it.

    The port stays through `stop_app`, as the admin API does.
    """

    stays = True

    def __init__(
        self,
        broker: Broker,
        amqp: AmqpFrontEnd,
        admin: AdminFrontEnd,
        view: View,
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
        admin.whole = self._whole
        self.control: ClusterControl | None = None
        """What operators may do with the cluster; given before the admin API serves."""
        self.connector = PeerConnector(view.me, secret)
        self.relays = ConnectionProxy(broker, view, self.connector)
        self.relayed = ProxiedClients(broker, amqp, view)
        self.identity: NodeCertificate | None = None
        self._kinds: dict[str, Serve] = {
            peer_link.AMQP: self.relayed.amqp,
            peer_link.LINK: self.relayed.link,
            peer_link.HTTP: self._take_http,
        }
        if write is not None:
            self._kinds[peer_link.WRITE] = ForwardedWriter(write).take
        self._door: PeerListener | None = None

    async def start(self) -> None:
        """Raises: OSError."""
        if self.identity is None:
            self.identity = await asyncio.to_thread(identity, self._broker.settings.data_dir)
        self._door = PeerListener(self.identity, self._secret, self._kinds)
        self.listeners += self._door.listen(*self._listen)
        self._amqp.connections.elsewhere = self.relays

    @property
    def port(self) -> int:
        """The port listened on; 0 before `start`."""
        return 0 if self._door is None else self._door.port

    @property
    def refused_count(self) -> int:
        """Sockets that were no node's, since the start."""
        return 0 if self._door is None else self._door.refused_count

    def cut_off(self, why: str) -> None:
        """All clients go, 320, and no connection is opened any more; "": they are again. The node confirms nothing, and
        cannot ask who could serve its clients: they have to find him.
        """
        self.relays.closed = why
        self._view.tell()  # connections that wait for an owner are refused
        if why:
            self.relays.force_all(why)
            for connection in list(self._amqp.connections):
                connection.control.force(why)
            self._broker.turn.schedule()

    async def forward(self, node: NodeState, changes: Sequence[SlotChange]) -> int:
        """Slot 0's owner writes them. Returns the offset behind. Raises: WriteFailed; NotOwner, nothing was written."""
        return await forward(self.connector, node, changes)

    def _whole(self) -> ClusterApi:
        """For the admin API, which imports what it takes behind the ready line."""
        from amqpd.cluster.api_gateway import ApiGateway

        return ApiGateway(self._broker, self._view, self.connector, self.control)

    async def _take_http(self, _preamble: Preamble, transport: asyncio.Transport) -> None:
        """Requests of another node's admin API."""
        protocol = self._admin.inner_connection()
        if protocol is None:
            refuse(transport, peer_link.NOT_MINE, "its admin API does not serve yet")
        else:
            welcome(transport, protocol)

    async def stop(self) -> None:
        """What is still relayed ends: AMQP, which stops before, has told clients so."""
        self.listeners.clear()
        self._amqp.connections.elsewhere = None
        if self._door is not None:
            self._door.close()
            self._door = None
        self.relayed.close()
        self.relays.close()

    async def suspend(self) -> None:
        """Nothing: it is not for clients."""

    async def resume(self) -> None:
        """Nothing: it was not suspended."""
