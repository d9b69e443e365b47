"""One process as a node of a cluster over Apache Kafka.

`amqpd.server` imports this module only if `cluster.kafka` is set.

Start, in this order:

1. Create or check Kafka's topics; read `meta` and follow it.
2. Start the broker with the cluster's users and no vhost.
3. Open the peer port, on which other nodes connect.
4. Join the consumer group and take the assigned slots. Their vhosts are loaded into the running broker.
5. Accept clients once the cluster has users.

Stop: refuse new clients, give up each slot (its connections are closed), then leave the group so that other nodes
get the slots at once. Draining is the same, but the process stays and continues to proxy connections.

`follow` applies rows of slot 0 that any node has changed to this node's broker. `ReplicationAlarm` decides about
the alarm `store`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextvars import Context
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
from amqpd.cluster.peer_server import PeerServer, PeerStatusMonitor, forward_changes
from amqpd.cluster.placement import NodeTopicPolicy
from amqpd.cluster.row_codec import WISH, PutAnnotation, SlotChange
from amqpd.cluster.slots import Slots
from amqpd.cluster.state import ClusterState
from amqpd.cluster.storage import ClusterStorage
from amqpd.cluster.view import ClusterView
from amqpd.kafka.admin import PATIENCE_S, ClusterOptions, TopicAdmin, UnsafeTopic, cluster_options
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


def apply_cluster_rows(state: ClusterState, broker: Broker) -> None:
    """Apply each later change of slot 0 to the broker: users, permissions, limits, global parameters, vhosts served
    here.

    A row that this node wrote itself also comes back here and changes nothing. The broker starts with the earlier
    rows (`ClusterState.metadata_state`). A change is the broker's own: its context has no acting user or connection.
    """

    def changed(change: Change) -> None:
        if isinstance(change, DeleteBindings):  # DeleteBindings concerns no table of slot 0
            return
        broker.auth.apply_change(change)
        broker.user_limits.apply_replicated(change)
        broker.global_parameters.apply_replicated(change)
        row = change.row
        if isinstance(row, VhostRow) and isinstance(change, Put) and row.state != "deleting":
            vhost = broker.vhosts.get(row.name)
            if vhost is not None and not vhost.deleted and vhost.id == row.id and vhost.row() != row:
                vhosts.become(vhost, row)

    state.on_row.append(lambda change: Context().run(changed, change))


class ReplicationAlarm:
    """Condition of the alarm `store`: Kafka does not keep up with the publishers.

    A full window of unsynced bytes (`LoopTurn.unsynced_bytes_max`) already pauses publishers. The alarm is raised
    if the window is full at two checks in a row, and ends when half of it is free. `Alarms.is_store_slow` calls the
    object once at each check.
    """

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
"""Maximum time for which a start waits until the cluster has users. The first node of a cluster writes them."""
KEEP_ALIVE_S: Final = 3600.0
"""Interval of keep-alive records. Kafka forgets the writer of a partition after a day
(`producer.id.expiration.ms`).
"""
RENEW_S: Final = 86_400.0
"""Interval of new epochs. Kafka forgets a slot's producer id after a week (`transactional.id.expiration.ms`)."""
FREE_S: Final = 60.0
"""Interval at which Kafka deletes records that no queue needs any more."""
UPKEEP_S: Final = 5.0
REFUSED_AGAIN_S: Final = 1.0
"""Margin after the session time-out. By then the group has removed a dead member."""
SERVED_S: Final = 15.0
"""Maximum time for which a client that declares a vhost waits until a node serves it."""


class ClusterNode:
    """The cluster part of one process.

    Call `attach` with the broker, then `start`; opening the peer port calls `join`. At the end call `leave` and
    `close`.

    Attributes:
        storage: the broker's storage.
        metadata: the broker's metadata store.
        draining: an operator asked this node to give up its slots.
    """

    def __init__(self, settings: Settings, storage_options: dict[str, Any]) -> None:
        """Create the parts; connect to nothing.

        Raises:
            OSError: a file that the settings name cannot be read.
            ValueError: such a file is invalid.
            MetadataError: the data directory belongs to a single node.
        """
        _check_directory(settings.data_dir)
        self.options: ClusterOptions = cluster_options(settings.cluster)
        options = self.options
        self._outages = options.access.outages
        AiokafkaLog(self._outages).attach()
        self.storage = ClusterStorage(settings.data_dir, **storage_options)
        self.state = ClusterState(options.access, options.meta_topic, options.slots)
        self.metadata = ClusterMetadata(self.state, options.node, self._forward)
        self.topics = TopicAdmin(options)
        self.reader = KafkaReader(options.access)
        self.draining = False
        self._assignor = Assignor(options.settled_topic, options.slots, self._member, self._wishes)
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
        self._inhabited: set[int] = set()  # slots that have, or had, a vhost
        self._upkeep: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._secret_mark = ""
        self._admitted = asyncio.Event()
        self._refused_since_s = 0.0  # loop time; 0: the group's leader accepts this node
        self._turned_away = asyncio.Event()

    def attach(
        self,
        broker: Broker,
        amqp: AmqpFrontEnd,
        admin: AdminFrontEnd,
        first_rows: Callable[[], Sequence[Row]],
        fail: Callable[[str], None],
    ) -> PeerServer:
        """Connect this node with the broker.

        Args:
            fail: stops the process with a failure exit code.
            first_rows: returns the rows that the first node of a new cluster writes.

        Returns: The peer port. The caller opens it before it accepts clients.
        """
        options = self.options
        self.broker = broker
        self._fail = fail
        self.state.on_lost = fail
        broker.vhosts.is_on_other_node = self.view.knows
        broker.catalogue.events.node = options.node
        broker.vhosts.when_served = self._when_served
        broker.catalogue.own_topics = NodeTopicPolicy(self.topics, options.kafka_topics, self.storage.places)
        broker.alarms.is_store_slow = ReplicationAlarm(broker.turn)
        self.takeovers = SlotOwnership(
            options, broker, self.storage, self.metadata, self.reader, self.topics, self._announced, first_rows
        )
        self.slots = Slots(
            self.takeovers, self._members.is_current_generation, self._members.rejoin, self._wanted_here, self._outages
        )
        self.leases = LeaseMonitor(self.takeovers.owned.values, self.takeovers.renew_lease, options.session_timeout_s)
        self.inner = NodeFrontEnd(self, amqp, admin)
        return self.inner

    @property
    def peers(self) -> list[Peer]:
        return self._assignor.peers

    @property
    def owned(self) -> dict[int, OwnedSlot]:
        return self.takeovers.owned

    @property
    def kafka_answers(self) -> bool:
        """Return whether Kafka answered a request that was sent within the session time-out.

        The group's heartbeats and the slots' writes count. After that time other nodes may own all slots of this
        node.
        """
        answered = (owned.producer.answered_s for owned in self.owned.values())
        asked_s = max(self._members.heard_s, *answered, 0.0)
        return asyncio.get_running_loop().time() - asked_s <= self.options.session_timeout_s

    @property
    def cut_off(self) -> str:
        """The reason why this node opens no connections; "" if it opens them."""
        return self.inner.status_monitor.cut_off

    # -- its life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Prepare the topics, read `meta` and load the cluster's users into the broker.

        Raises: MetadataError: Kafka cannot be used, with the reason.
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
        apply_cluster_rows(self.state, self.broker)
        self.state.on_vhost.append(self._vhost_changed)
        self.state.on_note.append(self._note_changed)
        self.state.on_owner.append(self._owner_changed)

    async def join(self) -> None:
        """Join the group and return when the cluster has users. Runs after the peer port was opened.

        Raises: MetadataError: there are no users after JOIN_S, or the group's leader refuses this node.
        """
        logger.info(
            "node %s of cluster %s over Kafka at %s: a confirm means replicated (%d copies, %d in sync), not synced",
            self.options.node, self.options.cluster, ", ".join(self.options.access.kafka),
            self.options.replication_factor, self.options.required_insync,
        )  # fmt: skip
        self.leases.start()
        self.inner.status_monitor.start()
        self._upkeep = asyncio.get_running_loop().create_task(self._run_upkeep())
        self._members.start()
        deadline = time.monotonic() + JOIN_S
        while not (self._admitted.is_set() and self.broker.auth.users() and self.state.owners):
            if self._turned_away.is_set():
                await self.leave()
                raise MetadataError(f"this node does not belong to cluster {self.options.cluster}: {self._refusal}")
            if time.monotonic() > deadline:
                why = self._members.problem or self._refusal or "no node serves slot 0"
                raise MetadataError(f"the cluster has no users after {JOIN_S:g} s: {why}")
            await self.state.wait_change(0.2)

    async def leave(self) -> None:
        self._stopping = True
        try:
            await self.slots.stop(STOP_S)
            async with asyncio.timeout(STOP_S):
                await self._members.leave()
        except TimeoutError:
            logger.warning("the group was left without a request: Kafka does not answer")
        except Exception:
            logger.exception("the cluster was not left cleanly; the node stops anyway")

    async def close(self) -> None:
        """Close the connections to Kafka. The server has stopped."""
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.gather(self._upkeep, return_exceptions=True)
        self.leases.stop()
        await self.inner.status_monitor.stop()
        ends = (self.takeovers.close(), self.state.close(), self.reader.close(), self.topics.close())
        for end in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(end, Exception):
                logger.error("a connection to Kafka was not closed cleanly", exc_info=end)

    async def drain(self) -> None:
        """Move all slots to other nodes and return when they are gone. The node stays in the group but gets no
        slots.
        """
        self.draining = True
        self._members.rejoin()
        while self.slots.announced_slots() and self.draining:
            await self.state.wait_change(0.2)

    def undrain(self) -> None:
        self.draining = False
        self._members.rejoin()

    # -- the group -----------------------------------------------------------------------------------------------------

    def _member(self) -> Member:
        """Return what this node sends to the group when it joins."""
        busy = frozenset(slot for slot, owned in self.owned.items() if owned.has_clients)
        name, address, fingerprint = self._announced()
        mark, run = self._secret_mark, self.inner.connector.run
        return Member(
            name, self.slots.announced_slots(), busy, self.draining, address, fingerprint, secret=mark, run=run
        )

    def _announced(self) -> tuple[str, str, str]:
        """Return the node's name, the address of its peer port and the fingerprint of its certificate."""
        host, port = self.options.address
        identity = self.inner.identity
        assert identity is not None  # the inner port listens
        host = f"[{host}]" if ":" in host else host
        return self.options.node, f"{host}:{port or self.inner.port}", identity.fingerprint

    def _wishes(self) -> dict[int, str]:
        found = {slot: self.state.requested_node(slot) for slot in range(self.options.slots)}
        return {slot: node for slot, node in found.items() if node is not None}

    def _assigned(self, generation: int, slots: frozenset[int]) -> None:
        found = (self.state.slot_of(row.name) for row in self.state.table.rows(VhostRow))
        self._inhabited = {slot for slot in found if slot is not None}
        self.slots.assigned(generation, slots)
        self.view.notify_listeners()
        if self._refusal:
            self._refused()
        else:
            self._refused_since_s = 0.0
            self._admitted.set()

    @property
    def _refusal(self) -> str:
        return self._assignor.refusal

    def _refused(self) -> None:
        """Handle a refusal by the group's leader: this node has no slot, and stops when a second round also refuses
        it.

        The first round may still contain a process with this node's name that was killed while it joined.
        """
        now = asyncio.get_running_loop().time()
        timeout_s = self.options.session_timeout_s
        if not self._refused_since_s:
            self._refused_since_s = now
            again_s = timeout_s + REFUSED_AGAIN_S
            logger.error("this node gets no slot: %s; next try in %g s", self._refusal, again_s)
            asyncio.get_running_loop().call_later(again_s, self._members.rejoin)
        elif now - self._refused_since_s > timeout_s and not self._turned_away.is_set():
            self._turned_away.set()
            if self._admitted.is_set():  # otherwise `join` raises
                self._fail(self._refusal)

    def _wanted_here(self, slot: int) -> bool:
        return slot == 0 or slot in self._inhabited

    # -- changes in slot 0 ---------------------------------------------------------------------------------------------

    def _vhost_changed(self, name: str) -> None:
        slot = self.state.slot_of(name)
        if slot is not None:
            self._inhabited.add(slot)
            self.slots.start_serving(slot)
        self.takeovers.vhost_changed(name)

    def _note_changed(self, note: PutAnnotation) -> None:
        if note.key[0] == WISH and int(note.key[1]) in self.slots.announced_slots() and note.value is not None:
            self._members.rejoin()  # the owner asks for the round in which it gives up the slot

    def _owner_changed(self, slot: int) -> None:
        """Remove fulfilled move requests, if this node owns slot 0.

        A new owner of slot 0 checks all slots: the previous owner may not have finished.
        """
        if 0 in self.owned:
            for each in range(self.options.slots) if slot == 0 else (slot,):
                self._end_wish(each)

    def _end_wish(self, slot: int) -> None:
        """Remove the move request of the slot if its node owns the slot now.

        Otherwise the request would move the slot again whenever that node returns from a restart.
        """
        owner = self.state.owner_of(slot)
        rows = self.metadata.slots.get(0)
        if owner is not None and rows is not None:
            # This table includes rows that are still being written. `self.state` may not have a later request yet.
            wish = rows.table.notes.get((WISH, slot))
            if wish is not None and wish.get("node") == owner.node:
                rows.submit([PutAnnotation((WISH, slot), None)], _logged)

    def _when_served(self, vhost: str, done: Callable[[BaseException | None], None]) -> None:
        """Call `done` when a node serves the newly declared vhost, or after SERVED_S."""

        async def wait() -> None:
            deadline = time.monotonic() + SERVED_S
            while time.monotonic() < deadline and not self._stopping:
                owner = self.view.owner_of(vhost)
                if owner is not None and (owner.name != self.options.node or vhost in self.broker.vhosts):
                    break
                await self.state.wait_change(0.02)
            done(None)

        task = asyncio.get_running_loop().create_task(wait())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def request_move(self, slot: int, node: str | None) -> None:
        """Request that a node owns the slot. None removes the request.

        Raises: MetadataError: the request could not be stored.
        """
        value = None if node is None else {"node": node}
        await self.metadata.write_cluster([PutAnnotation((WISH, slot), value)])

    async def _forward(self, changes: Sequence[SlotChange]) -> int:
        """Let the owner of slot 0 write the changes. Return the offset behind them.

        Raises: as `forward_changes`.
        """
        keeper = self.view.controller()
        if keeper is None:
            raise NotOwner("cannot write the metadata: no node serves slot 0 just now")
        return await forward_changes(self.inner.connector, keeper, changes)

    # -- periodic work -------------------------------------------------------------------------------------------------

    async def _run_upkeep(self) -> None:
        """Renew the slots in Kafka and delete records that are not needed, until the task is cancelled."""
        freed_s = time.monotonic()
        while True:
            await asyncio.sleep(min(UPKEEP_S, KEEP_ALIVE_S / 4, RENEW_S / 4))
            now = time.monotonic()
            for slot, owned in list(self.owned.items()):
                try:
                    await self._keep_slot_known(owned, now)
                except (KafkaDisconnected, KafkaRefused, MetadataError, OSError) as error:
                    self._outages.report_failure(f"slot {slot} is not renewed just now", error)
                except Exception:
                    logger.exception("slot %d: a bug in amqpd, please report it", slot)
            if now - freed_s >= FREE_S:
                freed_s = now
                await self._delete_unneeded()

    async def _keep_slot_known(self, owned: OwnedSlot, now: float) -> None:
        if now - owned.renewed_s >= RENEW_S:
            owned.renewed_s = owned.kept_alive_s = now
            await self.takeovers.renew(owned)
        elif now - owned.kept_alive_s >= KEEP_ALIVE_S:
            owned.kept_alive_s = now
            self.takeovers.keep_alive(owned)

    async def _delete_unneeded(self) -> None:
        """Delete the records in Kafka below the head of each queue's log."""
        for slot, owned in list(self.owned.items()):
            try:
                await owned.logs.truncation.delete_unneeded(self.topics.delete_records)
            except (KafkaDisconnected, KafkaRefused, KafkaIncompatible, OSError) as error:
                self._outages.report_failure(f"slot {slot}: nothing is freed just now", error)


class NodeFrontEnd(PeerServer):
    """The peer port of a node. The node joins the group once the port listens."""

    def __init__(self, node: ClusterNode, amqp: AmqpFrontEnd, admin: AdminFrontEnd) -> None:
        options, write = node.options, node.metadata.write_forwarded
        super().__init__(node.broker, amqp, admin, node.view, options.secret, options.listen, write)
        self.control = ClusterOperations(node)
        self.status_monitor = PeerStatusMonitor(
            self.connector,
            node.view,
            node.state,
            lambda: node.owned,
            lambda: node.kafka_answers,
            options.session_timeout_s,
            self.cut_off,
        )
        self._kinds[peer_link.SERVED] = self.status_monitor.accept
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
            f"{data_dir} contains the data of a single node; start it with an empty data directory, or import it with "
            "`amqpctl cluster_import`"
        )


def _logged(error: BaseException | None) -> None:
    if error is not None:
        logger.warning("a completed move request was not removed: %s", error)
