"""This process as a node of a cluster: what it knows, what it serves, how it joins and leaves.

Start: Kafka's topics are made or checked, `meta` is read and followed, the broker begins with the cluster's users and
no vhost; the inner port listens; then the node joins the group, takes the slots that it is assigned, and their vhosts
come into the running broker. Clients are let in once the cluster has its users.

Stop: no new clients; each slot is given up, which closes its connections; then the group is told, so that other nodes
have the slots at once; then the server stops as ever. Drain: the same, but the process stays, and goes on relaying.

`amqpd.server` imports this where `cluster.kafka` is set, and nowhere else.

What other nodes have changed of what is the cluster's, made so in this node's broker.

Users, permissions, users' limits, global parameters, what is said of a vhost that is served here. A row that this node
has written itself comes back the same way, and is found to be so already.

Whether Kafka keeps up with publishers: what raises the alarm `store`.

Publishers are held while too many bytes are unsynced (`LoopTurn.unsynced_bytes_max`), as for a slow disk. Where that
lasts from one look of the alarms to the next, the alarm is raised, and clients are told by connection.blocked; it ends
when half of the bound is free again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from amqpd.broker.flow.loop_turn import LoopTurn
from amqpd.broker.vhost import vhosts
from amqpd.broker.vhost.recovery import RecoveryFindings, RecoveryReport
from amqpd.cluster import peer_link
from amqpd.cluster.check import wait_for_kafka
from amqpd.cluster.metadata import ClusterMetadata, NotOwner
from amqpd.cluster.operations import ClusterOperations
from amqpd.cluster.ownership import LeaseMonitor, OwnedSlot, SlotOwnership
from amqpd.cluster.peer_server import PeerServer, PeerStatusMonitor
from amqpd.cluster.placement import NodeTopicPolicy
from amqpd.cluster.row_codec import WISH, PutAnnotation, SlotChange
from amqpd.cluster.slots import Slots
from amqpd.cluster.state import ClusterState
from amqpd.cluster.storage import ClusterStorage
from amqpd.cluster.view import NodeState, View
from amqpd.kafka.admin import PATIENCE_S, ClusterOptions, TopicAdmin, UnsafeTopic, options_of
from amqpd.kafka.config import split
from amqpd.kafka.connection import KafkaDisconnected, KafkaIncompatible
from amqpd.kafka.consumer import KafkaReader
from amqpd.kafka.group import Assignor, GroupMembership, Member, Peer
from amqpd.kafka.outages import AiokafkaLog
from amqpd.kafka.producer import KafkaRefused
from amqpd.storage.metadata.rows import DeleteBindings, Put, VhostRow
from amqpd.storage.metadata.store import DATABASE_NAME, MetadataError

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.config import Settings
    from amqpd.connection.server import AmqpFrontEnd
    from amqpd.management.front_end import AdminFrontEnd
    from amqpd.storage.metadata.rows import Change, Row


def follow(state: ClusterState, broker: Broker) -> None:
    """From here on. What was there before is what the broker began with (`ClusterState.metadata_state`)."""

    def changed(change: Change) -> None:
        if isinstance(change, DeleteBindings):  # of no table of slot 0
            return
        broker.auth.follow(change)
        broker.user_limits.follow(change)
        broker.global_parameters.follow(change)
        row = change.row
        if isinstance(row, VhostRow) and isinstance(change, Put) and row.state != "deleting":
            vhost = broker.vhosts.get(row.name)
            if vhost is not None and not vhost.deleted and vhost.id == row.id and vhost.row() != row:
                vhosts.become(vhost, row)

    state.on_row.append(changed)


class ReplicationAlarm:
    """Asked once at each look (`Alarms.store_waits`)."""

    def __init__(self, turn: LoopTurn) -> None:
        self._turn = turn
        self._full = False
        self._raised = False

    def __call__(self) -> bool:
        turn = self._turn
        unsynced = int(turn.commits.unsynced_bytes)
        full = unsynced >= turn.unsynced_bytes_max
        self._raised = (full and self._full) or (self._raised and unsynced >= turn.unsynced_bytes_max // 2)
        self._full = full
        return self._raised


logger = logging.getLogger(__name__)

STOP_S: Final = 3.0
JOIN_S: Final = 60.0
"""How long a start waits for the cluster's users, which its first node writes."""
KEEP_ALIVE_S: Final = 3600.0
"""Between two records to a partition: Kafka forgets who wrote it after a day (`producer.id.expiration.ms`)."""
RENEW_S: Final = 86_400.0
"""Between two epochs of a slot's producer id, which Kafka forgets after a week (`transactional.id.expiration.ms`)."""
FREE_S: Final = 60.0
"""Between two times that Kafka is told what of the queues' logs nobody needs any more."""
UPKEEP_S: Final = 5.0
REFUSED_AGAIN_S: Final = 1.0
"""Later than the session time-out, after which the group has removed a dead member."""
SERVED_S: Final = 15.0
"""How long who declares a vhost waits until it is served."""


class ClusterView(View):
    """What the relay and the admin API ask. state: followed. peers: who is in the group. held: whether a slot is served
    here.
    """

    def __init__(self, me: str, state: ClusterState, assignor: Assignor, held: Callable[[int], bool]) -> None:
        super().__init__()
        self.me = me
        self._state = state
        self._assignor = assignor
        self._held = held
        state.on_vhost.append(lambda _: self.tell())
        state.on_owner.append(lambda _: self.tell())

    def knows(self, vhost: str) -> bool:
        row = self._state.vhost(vhost)
        return row is not None and row.state != "deleting"

    def vhosts(self) -> list[str]:
        return [row.name for row in self._state.vhosts() if row.state != "deleting"]

    def owner_of(self, vhost: str) -> NodeState | None:
        slot = self._state.slot_of(vhost)
        return None if slot is None else self.owner_of_slot(slot)

    def owner_of_slot(self, slot: int) -> NodeState | None:
        """Who has said so last, unless he is not in the group any more, or does not serve it any more."""
        owner = self._state.owner_of(slot)
        if owner is None or (owner.node == self.me and not self._held(slot)):
            return None
        if not any(peer.node == owner.node and peer.fingerprint == owner.fingerprint for peer in self._assignor.peers):
            return None
        return NodeState(owner.node, *split(owner.address), owner.fingerprint)

    def nodes(self) -> list[NodeState]:
        return [NodeState(peer.node, *split(peer.address), peer.fingerprint) for peer in self._assignor.peers]

    def controller(self) -> NodeState | None:
        return self.owner_of_slot(0)

    def position(self) -> int:
        return self._state.next_offset


class ClusterNode:
    """One per process. storage, metadata: the broker's. `attach` hands it the broker; then `start`, `join` (by the
    inner port's start), `leave`, `close`.
    """

    def __init__(self, settings: Settings, storage_options: dict[str, Any]) -> None:
        """Raises: OSError, ValueError of files that settings name; MetadataError, the directory is a single node's."""
        _check_directory(settings.data_dir)
        self.settings = settings
        self.options: ClusterOptions = options_of(settings.cluster)
        options = self.options
        self._outages = options.access.outages
        AiokafkaLog(self._outages).begin()
        self.storage = ClusterStorage(settings.data_dir, **storage_options)
        self.state = ClusterState(options.access, options.meta_topic, options.slots)
        self.metadata = ClusterMetadata(self.state, options.node, self._forward)
        self.topics = TopicAdmin(options)
        self.reader = KafkaReader(options.access)
        self.draining = False
        self.joined = asyncio.Event()
        self._assignor = Assignor(options.settled_topic, options.slots, self._said, self._wishes, False)
        self._members = GroupMembership(
            options.access,
            options.group,
            self._assignor,
            options.settled_topic,
            self._assigned,
            options.session_timeout_s,
            options.heartbeat_s,
        )
        self.view = ClusterView(options.node, self.state, self._assignor, lambda slot: slot in self.owned)
        self._timers: list[asyncio.TimerHandle] = []
        self._inhabited: set[int] = set()  # slots with vhosts, or that had some
        self._upkeep: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._secret_mark = ""
        self._admitted = asyncio.Event()
        self._refused_since_s = 0.0  # 0: the group's leader does not refuse this node
        self._turned_away = asyncio.Event()

    def attach(
        self,
        broker: Broker,
        amqp: AmqpFrontEnd,
        admin: AdminFrontEnd,
        first_rows: Callable[[], Sequence[Row]],
        fail: Callable[[str], None],
    ) -> PeerServer:
        """The broker is made. fail: the process is to stop, and its exit code to say that it did not want to. Returns
        the inner port, which is to start before clients are let in.
        """
        options = self.options
        self.broker = broker
        self._fail = fail
        self.state.on_lost = fail
        broker.vhosts.elsewhere = self.view.knows
        broker.catalogue.events.node = options.node
        broker.vhosts.when_served = self._when_served
        broker.catalogue.own_topics = NodeTopicPolicy(self.topics, options.kafka_topics, self.storage.places)
        broker.alarms.store_waits = ReplicationAlarm(broker.turn)
        self.takeovers = SlotOwnership(
            options, broker, self.storage, self.metadata, self.reader, self.topics, self._announced, first_rows
        )
        self.slots = Slots(self.takeovers, self._members.known, self._members.rejoin, self._wanted_here, self._outages)
        self.leases = LeaseMonitor(self.takeovers.owned.values, self.takeovers.prolong, options.session_timeout_s)
        self.inner = NodeFrontEnd(self, amqp, admin)
        broker.alarms.store_waits = ReplicationAlarm(broker.turn)
        return self.inner

    @property
    def peers(self) -> list[Peer]:
        """Who is in the group."""
        return self._assignor.peers

    @property
    def owned(self) -> dict[int, OwnedSlot]:
        """Slots that this node serves."""
        return self.takeovers.owned

    @property
    def kafka_answers(self) -> bool:
        """Whether it has, the group or what a slot has written, and was asked less than the session time-out ago; else
        others may have all of this node's slots.
        """
        answered = (owned.producer.answered_s for owned in self.owned.values())
        asked_s = max(self._members.heard_s, *answered, 0.0)
        return asyncio.get_running_loop().time() - asked_s <= self.options.session_timeout_s

    @property
    def cut_off(self) -> str:
        """Why it opens no connection; "": it does."""
        return self.inner.hearsay.cut_off

    # -- its life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """The topics are there, `meta` is read, the broker has the cluster's users. Raises: MetadataError, which says
        what is wrong with Kafka.
        """
        options = self.options
        logger.info("asking Kafka at %s", ", ".join(options.access.kafka))
        self._secret_mark = await asyncio.to_thread(peer_link.secret_mark, options.secret, options.cluster)
        try:
            await wait_for_kafka(options.access, PATIENCE_S)
            await self.topics.prepare()
        except (UnsafeTopic, KafkaDisconnected, KafkaRefused, KafkaIncompatible) as error:
            raise MetadataError(f"Kafka cannot be used: {error}") from error
        await self.state.open()
        self.broker.load(RecoveryFindings(self.metadata.open(), [], [], [], RecoveryReport()))
        follow(self.state, self.broker)
        self.state.on_vhost.append(self._vhost_changed)
        self.state.on_note.append(self._note_changed)
        self.state.on_owner.append(self._owner_changed)

    async def join(self) -> None:
        """Behind the inner port's start: the node is in the group, and the cluster has its users. Raises:
        MetadataError, nobody has written them for JOIN_S; the node does not belong to the cluster.
        """
        logger.info(
            "node %s of cluster %s over Kafka at %s: a confirm means replicated (%d copies, %d in sync), not synced",
            self.options.node, self.options.cluster, ", ".join(self.options.access.kafka),
            self.options.replication_factor, self.options.required_insync,
        )  # fmt: skip
        self.leases.start()
        self.inner.hearsay.start()
        self._upkeep = asyncio.get_running_loop().create_task(self._look_after())
        self._members.start()
        deadline = time.monotonic() + JOIN_S
        while not (self._admitted.is_set() and self.broker.auth.users() and self.state.owners):
            if self._turned_away.is_set():
                await self.leave()
                raise MetadataError(f"this node does not belong to cluster {self.options.cluster}: {self._refusal}")
            if time.monotonic() > deadline:
                why = self._members.problem or self._refusal or "no node serves slot 0"
                raise MetadataError(f"the cluster has no users after {JOIN_S:g} s: {why}")
            await self.state.changed(0.2)

    async def leave(self) -> None:
        """All that it serves is given up, then the group is told."""
        self._stopping = True
        try:
            await self.slots.stop(STOP_S)
            async with asyncio.timeout(STOP_S):
                await self._members.leave()
        except TimeoutError:
            logger.warning("the group was left without a word: Kafka does not answer")
        except Exception:
            logger.exception("the cluster was not left cleanly; the node stops all the same")

    async def close(self) -> None:
        """The server has stopped."""
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.gather(self._upkeep, return_exceptions=True)
        self.leases.stop()
        await self.inner.hearsay.stop()
        ends = (self.takeovers.close(), self.state.close(), self.reader.close(), self.topics.close())
        for end in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(end, Exception):
                logger.error("a connection to Kafka did not end as it should", exc_info=end)

    async def drain(self) -> None:
        """Its slots go to other nodes; returns when they have gone. It stays in the group, and gets none."""
        self.draining = True
        self._members.rejoin()
        while self.slots.said() and self.draining:
            await self.state.changed(0.2)

    def undrain(self) -> None:
        """It may have slots again."""
        self.draining = False
        self._members.rejoin()

    # -- the group -----------------------------------------------------------------------------------------------------

    def _said(self) -> Member:
        """What the group is told."""
        busy = frozenset(slot for slot, owned in self.owned.items() if owned.busy)
        name, address, fingerprint = self._announced()
        mark, run = self._secret_mark, self.inner.connector.run
        return Member(name, self.slots.said(), busy, self.draining, address, fingerprint, secret=mark, run=run)

    def _announced(self) -> tuple[str, str, str]:
        """Name, address of the inner port, fingerprint."""
        host, port = self.options.address
        identity = self.inner.identity
        assert identity is not None  # the inner port listens
        host = f"[{host}]" if ":" in host else host
        return self.options.node, f"{host}:{port or self.inner.port}", identity.fingerprint

    def _wishes(self) -> dict[int, str]:
        found = {slot: self.state.wish(slot) for slot in range(self.options.slots)}
        return {slot: node for slot, node in found.items() if node is not None}

    def _assigned(self, generation: int, slots: frozenset[int]) -> None:
        found = (self.state.slot_of(row.name) for row in self.state.table.rows(VhostRow))
        self._inhabited = {slot for slot in found if slot is not None}
        self.slots.assigned(generation, slots)
        self.view.tell()
        if self._refusal:
            self._refused()
        else:
            self._refused_since_s = 0.0
            self._admitted.set()

    @property
    def _refusal(self) -> str:
        return self._assignor.refusal

    def _refused(self) -> None:
        """Handle a refusal: this node has no slot, and stops when a second round refuses it as well.

        A process that was killed while it joined may be in the first round still, with the name of this one.
        """
        now = asyncio.get_running_loop().time()
        timeout_s = self.options.session_timeout_s
        if not self._refused_since_s:
            self._refused_since_s = now
            again_s = timeout_s + REFUSED_AGAIN_S
            logger.error("this node is given no slot: %s; it asks once more in %g s", self._refusal, again_s)
            asyncio.get_running_loop().call_later(again_s, self._members.rejoin)
        elif now - self._refused_since_s > timeout_s and not self._turned_away.is_set():
            self._turned_away.set()
            if self._admitted.is_set():  # else its start ends
                self._fail(self._refusal)

    def _wanted_here(self, slot: int) -> bool:
        return slot == 0 or slot in self._inhabited

    # -- what slot 0 tells ---------------------------------------------------------------------------------------------

    def _vhost_changed(self, name: str) -> None:
        slot = self.state.slot_of(name)
        if slot is not None:
            self._inhabited.add(slot)
            self.slots.look(slot)
        self.takeovers.vhost_changed(name)

    def _note_changed(self, note: PutAnnotation) -> None:
        if note.key[0] == WISH and int(note.key[1]) in self.slots.said() and note.value is not None:
            self._members.rejoin()  # who has the slot, or is about to, asks for the round in which it goes

    def _owner_changed(self, slot: int) -> None:
        """Who has just taken slot 0 looks at all: the owner before may not have come to it."""
        if 0 in self.owned:
            for each in range(self.options.slots) if slot == 0 else (slot,):
                self._end_wish(each)

    def _end_wish(self, slot: int) -> None:
        """A wish that has come true is one no more: where the slot goes later is nobody's wish."""
        owner = self.state.owner_of(slot)
        rows = self.metadata.slots.get(0)
        if owner is not None and rows is not None:
            # As it stands in what is being written: here a later wish may not be known yet.
            wish = rows.table.notes.get((WISH, slot))
            if wish is not None and wish.get("node") == owner.node:
                rows.submit([PutAnnotation((WISH, slot), None)], _logged)

    def _when_served(self, vhost: str, done: Callable[[BaseException | None], None]) -> None:
        """A vhost was declared: whoever did goes on once somebody serves it, or after SERVED_S."""

        async def wait() -> None:
            deadline = time.monotonic() + SERVED_S
            while time.monotonic() < deadline and not self._stopping:
                owner = self.view.owner_of(vhost)
                if owner is not None and (owner.name != self.options.node or vhost in self.broker.vhosts):
                    break
                await self.state.changed(0.02)
            done(None)

        task = asyncio.get_running_loop().create_task(wait())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wish(self, slot: int, node: str | None) -> None:
        """An operator wants the slot to be there; None: no matter. Raises: MetadataError."""
        value = None if node is None else {"node": node}
        await self.metadata.write_cluster([PutAnnotation((WISH, slot), value)])

    async def _forward(self, changes: Sequence[SlotChange]) -> int:
        """Slot 0's owner writes them."""
        keeper = self.view.controller()
        if keeper is None:
            raise NotOwner("cannot write the metadata: no node serves slot 0 just now")
        return await self.inner.forward(keeper, changes)

    # -- now and then --------------------------------------------------------------------------------------------------

    async def _look_after(self) -> None:
        """Records that keep what Kafka would forget, and what it need not keep."""
        freed_s = time.monotonic()
        while True:
            await asyncio.sleep(min(UPKEEP_S, KEEP_ALIVE_S / 4, RENEW_S / 4))
            now = time.monotonic()
            for slot, owned in list(self.owned.items()):
                try:
                    await self._keep(owned, now)
                except (KafkaDisconnected, KafkaRefused, MetadataError, OSError) as error:
                    self._outages.failed(f"slot {slot} is not renewed just now", error)
                except Exception:
                    logger.exception("slot %d: a bug of the broker", slot)
            if now - freed_s >= FREE_S:
                freed_s = now
                await self._free()

    async def _keep(self, owned: OwnedSlot, now: float) -> None:
        if now - owned.renewed_s >= RENEW_S:
            owned.renewed_s = owned.kept_alive_s = now
            await self.takeovers.renew(owned)
        elif now - owned.kept_alive_s >= KEEP_ALIVE_S:
            owned.kept_alive_s = now
            self.takeovers.keep_alive(owned)

    async def _free(self) -> None:
        """Kafka frees what is below the heads of the queues' logs."""
        for slot, owned in list(self.owned.items()):
            try:
                await owned.logs.free_fronts(self.topics.delete_records)
            except (KafkaDisconnected, KafkaRefused, KafkaIncompatible, OSError) as error:
                self._outages.failed(f"slot {slot}: nothing is freed just now", error)


class NodeFrontEnd(PeerServer):
    """The inner port; once it listens the node joins."""

    def __init__(self, node: ClusterNode, amqp: AmqpFrontEnd, admin: AdminFrontEnd) -> None:
        options, write = node.options, node.metadata.write_own
        super().__init__(node.broker, amqp, admin, node.view, options.secret, options.listen, write)
        self.control = ClusterOperations(node)
        self.hearsay = PeerStatusMonitor(
            self.connector,
            node.view,
            node.state,
            lambda: node.owned,
            lambda: node.kafka_answers,
            options.session_timeout_s,
            self.cut_off,
        )
        self._kinds[peer_link.SERVED] = self.hearsay.take
        self._node = node
        self._joined = False

    async def start(self) -> None:
        await super().start()
        if not self._joined:
            self._joined = True
            await self._node.join()


def _check_directory(data_dir: Path) -> None:
    if (data_dir / DATABASE_NAME).exists():
        raise MetadataError(
            f"{data_dir} holds what a single node kept; start it with an empty data directory, or import it with "
            "`amqpctl cluster_import`"
        )


def _logged(error: BaseException | None) -> None:
    if error is not None:
        logger.warning("a wish that has come true stays for now: %s", error)


__all__ = ["Change", "ClusterNode", "ClusterView"]
