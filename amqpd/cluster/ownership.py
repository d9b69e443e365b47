"""Takeover of a slot: this node becomes the only writer of a slot, reads its data and serves it, or gives it up.

Taking over slot n (`take_over`):

1. Get the next epoch of the slot's producer id from Kafka. Write a barrier with it to `meta` n and `settled` n.
   From now on Kafka refuses declarations and acks of the previous owner.
2. Read `meta` n up to the barrier: rows and the positions of queues.
3. Write a barrier to every partition of the slot's vhosts, free partitions too. From now on Kafka refuses publishes
   of the previous owner.
4. Read `settled` n up to its barrier, assign the queues' logs to their partitions, and load the vhosts into the
   running broker.
5. Announce the new owner in `meta` n. Other nodes now proxy connections to this node.

Nothing is served before step 4. Nothing is confirmed unless it is in Kafka behind the barrier.

Giving up (`give_up`):

1. Close connections with 320.
2. Store what was published, delivered and acked, then a record that everything was stored.
3. Unload the vhosts.

Dropping (`drop`): Kafka gave the slot to another node, or did not answer for too long. All of this happens at once:
connections are closed with 320, waiting publishes are nacked, declarations are refused, the vhosts disappear.

**Lease** (`LeaseMonitor`). If Kafka does not answer, another node may already own the slot, because the group gives
the slots away after the session time-out. The durable queues of a slot stop delivering when the last answered
request was *sent* longer ago than this time-out. They continue when Kafka answers and the slot is still ours.
Publishing needs no lease: only Kafka's answer confirms a publish.

The requests that confirm publishes and acks also renew the lease. An idle slot writes a record to its `settled`
partition under the same epoch, after PROLONG_SHARE of the time-out.

Consumers of a suspended queue stay. They get messages again when Kafka answers, or lose their connection when the
slot belongs to another node.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from amqpd.broker.vhost import vhosts as vhost_calls
from amqpd.broker.vhost.pending import DeclarationPending
from amqpd.cluster.metadata import ClusterMetadata, slot_assigner
from amqpd.cluster.placement import QueuePlacement, dedicated_topic_marks
from amqpd.cluster.proxy import moving_text
from amqpd.cluster.row_codec import NewerFormat, Note, NoteKey
from amqpd.cluster.row_table import ALL_TABLES, SLOT_TABLES, RowTable
from amqpd.cluster.slot_logs import LogPosition, SlotLogs
from amqpd.cluster.slot_rows import RowWriter
from amqpd.cluster.state import ClusterState, Owner
from amqpd.cluster.storage import ClusterStorage, PlacedLog
from amqpd.kafka.consumer import LoopSlice
from amqpd.kafka.keyed_records import KeyedRecord, keyed_records
from amqpd.kafka.partition import UNKNOWN, Partition
from amqpd.kafka.producer import KafkaProducer, KafkaRefused, fencing_epoch, init_producer_id, take_over
from amqpd.kafka.requests import ProducerId
from amqpd.storage.log.record import BadRecord
from amqpd.storage.metadata.rows import Delete, Put, Row, VhostRow
from amqpd.storage.metadata.store import MetadataClosed, MetadataError

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.broker.vhost.vhost import VHost
    from amqpd.kafka.admin import ClusterOptions, TopicAdmin
    from amqpd.kafka.consumer import KafkaReader
    from amqpd.storage.queue_log import QueueLog


logger = logging.getLogger(__name__)


async def read_rows(reader: KafkaReader, topic: str, slot: int, end: int) -> RowTable:
    """Read the rows of a slot from its partition of `meta`, up to the offset `end`.

    Records of other programs and unreadable batches are skipped, counted and logged.

    Cost: 10 us per record, in slices of the loop.

    Raises:
        MetadataError: a later version of amqpd wrote to the partition.
        and the errors of `KafkaReader.read`.
    """
    table = RowTable(SLOT_TABLES if slot else ALL_TABLES)
    slices = LoopSlice()
    async for batch in reader.read(topic, slot, 0, end):
        try:
            for records in keyed_records(batch):
                for record in records:
                    table.read(record.key, record.value)
                    if slices.is_over:
                        await slices.yield_loop()
        except BadRecord as error:
            table.foreign_count += 1
            logger.error("%s %d: a batch cannot be read and is skipped: %s", topic, slot, error)
        except NewerFormat as error:
            raise MetadataError(f"{topic} {slot}: {error}; start the later version that wrote it") from error
    if table.foreign_count:
        logger.warning("%s %d: %d records are not amqpd's and were skipped", topic, slot, table.foreign_count)
    return table


GIVE_UP_S: Final = 2.5
"""Maximum time for storing what is left. The next owner recovers the rest."""
BARRIERS_AT_ONCE: Final = 500
LOAD_RETRY_S: Final = 5.0
"""Pause after a failure to load a vhost."""


class OwnedSlot:
    """A slot that this node serves.

    Attributes:
        held: producer id and epoch of the slot.
        vhosts: the loaded vhosts by name.
        end_reason: why the slot is no longer ours; "" while it is.
        end_event: set when the slot ended.
        is_suspended: its queues do not deliver, because Kafka has not answered for longer than the session time-out.
        renewed_s: monotonic time of the last new epoch.
        kept_alive_s: monotonic time of the last keep-alive records.
        changing: serializes a new epoch and the end.
        changing_vhosts: names of vhosts that are being loaded or deleted.
    """

    def __init__(self, slot: int, held: ProducerId, producer: KafkaProducer, meta: Partition, logs: SlotLogs) -> None:
        self.slot = slot
        self.held = held
        self.producer = producer
        self.meta = meta
        self.logs = logs
        self.vhosts: dict[str, VHost] = {}
        self.rows: RowWriter | None = None
        self.placement: QueuePlacement | None = None
        self.end_reason = ""
        self.end_event = asyncio.Event()
        self.is_suspended = False
        self.renewed_s = self.kept_alive_s = time.monotonic()
        self.given_up = False
        self.changing = asyncio.Lock()
        self.changing_vhosts: set[str] = set()

    @property
    def epoch(self) -> int:
        return int(self.held.epoch)

    @property
    def has_clients(self) -> bool:
        """Return whether a client is connected to one of its vhosts."""
        return any(vhost.connected for vhost in self.vhosts.values())


class SlotOwnership:
    """The slots of this node: `Slots` calls it.

    Args:
        announced: returns the name, address and fingerprint of this node.
        first_rows: returns the rows that the first owner of slot 0 of a new cluster writes.
    """

    def __init__(
        self,
        options: ClusterOptions,
        broker: Broker,
        storage: ClusterStorage,
        metadata: ClusterMetadata,
        reader: KafkaReader,
        topics: TopicAdmin,
        announced: Callable[[], tuple[str, str, str]],
        first_rows: Callable[[], Sequence[Row]],
    ) -> None:
        self.options = options
        self.state: ClusterState = metadata.state
        self.broker = broker
        self._storage = storage
        self._metadata = metadata
        self._reader = reader
        self._topics = topics
        self._announced = announced
        self._first_rows = first_rows
        self._tasks: set[asyncio.Task[None]] = set()
        self.owned: dict[int, OwnedSlot] = {}

    # -- taking --------------------------------------------------------------------------------------------------------

    async def take_over(self, slot: int) -> OwnedSlot:
        """Take over a slot; the module's docstring lists the steps.

        Cost: five round trips and the reading: 100 ms for a small slot.

        Raises: slots.TAKE_ERRORS: the slot cannot be taken over now.
        """
        began = time.monotonic()
        options = self.options
        await self.state.wait_caught_up()
        producer = KafkaProducer(options.access, delivery_timeout_s=options.delivery_timeout_s)
        owned: OwnedSlot | None = None
        try:
            meta = producer.open(options.meta_topic, slot, UNKNOWN)
            settled = producer.open(options.settled_topic, slot, UNKNOWN)
            before = self.state.owner_of(slot)
            recorded = None if before is None else ProducerId(0, before.producer_id, before.epoch)
            key = options.transactional_id(slot)
            held = await take_over(producer, key, [meta, settled], recorded)
            logs = SlotLogs(
                producer,
                held,
                settled,
                self._storage.commits,
                self._reader.read,
                on_room=self.broker.turn.resume_paused,
                transaction_bytes_max=options.max_message_bytes,
            )
            owned = OwnedSlot(slot, held, producer, meta, logs)
            self._connect_callbacks(owned)
            table = await read_rows(self._reader, options.meta_topic, slot, int(meta.next_offset) - 1)
            await self.state.wait_caught_up()  # later vhosts of the slot arrive in vhost_changed
            vhosts = self.state.vhosts_of(slot)
            partitions, lost = await self._fence_queues(producer, vhosts, table.notes, key, held, recorded)
            end = int(settled.next_offset) - 1
            await logs.read_acks(self._reader.read(options.settled_topic, slot, 0, end))
            self._place(owned, table, partitions, vhosts, lost)
            await self._serve(owned, table, vhosts)
            self.owned[slot] = owned
            await self._announce(owned)
        except BaseException:
            if owned is not None:
                self.owned.pop(slot, None)
                owned.end_reason = owned.end_reason or "the takeover failed"
                await self.unload(owned)
            else:
                await producer.close()
            raise
        logger.info(
            "slot %d is served here: epoch %d, %d vhosts, %d rows; it took %.0f ms",
            slot, owned.epoch, len(owned.vhosts), len(table), (time.monotonic() - began) * 1000,
        )  # fmt: skip
        for row in self.state.vhosts_of(slot):
            self.vhost_changed(row.name)  # vhosts that were declared during the takeover
        return owned

    def _connect_callbacks(self, owned: OwnedSlot) -> None:
        logs = owned.logs
        queue_log_failed = self.broker.turn.log_failed
        assert queue_log_failed is not None  # set by the broker's constructor

        def failed(log: QueueLog) -> None:
            if not logs.ended:  # otherwise all logs end with their vhosts
                queue_log_failed(log)

        logs.on_failed = failed
        logs.on_accepted = self.broker.log_accepted
        logs.on_fenced = lambda text: self._end_slot(owned, text)

    def _end_slot(self, owned: OwnedSlot, why: str) -> None:
        """Stop serving the slot: another node owns it, or may own it."""
        if owned.end_reason:
            return
        owned.end_reason = why
        self._metadata.remove_slot(owned.slot, f"cannot write the metadata: {why}")
        for vhost in owned.vhosts.values():
            self.broker.close_vhost(vhost, moving_text(vhost.name))
        owned.end_event.set()

    async def _fence_queues(
        self,
        producer: KafkaProducer,
        vhosts: Sequence[VhostRow],
        notes: Mapping[NoteKey, Note],
        key: str,
        held: ProducerId,
        recorded: ProducerId | None,
    ) -> tuple[list[Partition], dict[str, str]]:
        """Write barriers to every partition of the vhosts, and to the topics that single queues have.

        If the slot has a new producer id, a barrier under the old id with a later epoch comes first. A barrier of
        another id alone would not fence the previous owner.

        Args:
            held: the current producer id and epoch.
            recorded: those that the previous owner announced.

        Returns: The partitions, and for each lost topic the reason.
        """
        marks = dedicated_topic_marks(notes)
        lost = await self._topics.lost_dedicated(marks) if marks else {}
        own = marks.keys() - lost.keys()
        of_vhosts = {self.options.queues_topic(row.id) for row in vhosts}
        counts = await self._reader.brokers.partitions(of_vhosts | own)
        partitions = [
            producer.open(topic, number, UNKNOWN) for topic, count in sorted(counts.items()) for number in range(count)
        ]
        for each in partitions:
            each.shared = each.topic.decode() in own
        for first in range(0, len(partitions), BARRIERS_AT_ONCE):
            some = partitions[first : first + BARRIERS_AT_ONCE]
            if recorded is not None and recorded.producer_id != held.producer_id:
                await producer.fence(some, key, fencing_epoch(recorded))
            await producer.fence(some, key, held)
        return partitions, lost

    def _place(
        self,
        owned: OwnedSlot,
        table: RowTable,
        partitions: list[Partition],
        vhosts: Sequence[VhostRow],
        lost: Mapping[str, str],
    ) -> None:
        """Assign the queues' logs to their partitions.

        Args:
            lost: see `QueuePlacement.load`.

        Raises: MetadataError: see `QueuePlacement.load`.
        """
        slot, logs, options = owned.slot, owned.logs, self.options

        def vhost_id(name: str) -> str | None:
            row = self.state.vhost(name)
            return row.id if row is not None and self.state.slot_of(name) == slot else None

        def placed(queue_id: str, place: LogPosition) -> None:
            self._storage.places[queue_id] = PlacedLog(logs, place)

        def freed(queue_id: str) -> None:
            self._storage.places.pop(queue_id, None)

        key = options.transactional_id(slot)
        placement = QueuePlacement(logs, self._topics, key, options.queues_topic, vhost_id, placed, freed)
        placement.load(table.notes, partitions, vhosts, lost)
        for queue_id, place in placement.places.items():
            placed(queue_id, place)
        owned.placement = placement
        prepare = slot_assigner(table, options.slots) if slot == 0 else None
        owned.rows = RowWriter(table, owned.meta, logs, options.max_message_bytes, placement, prepare)
        logs.watch_meta(owned.meta, owned.rows.on_stored)

    async def _serve(self, owned: OwnedSlot, table: RowTable, vhosts: Sequence[VhostRow]) -> None:
        """Load the vhosts of the slot into the broker, after removing rows that a crash left without a parent."""
        rows = owned.rows
        assert rows is not None  # set by `_place`
        if owned.slot == 0 and len(table) == 0 and not table.notes:
            await rows.write([Put(row) for row in self._first_rows()])
        self._metadata.add_slot(owned.slot, rows)
        if orphans := list(table.orphan_deletions()):
            logger.warning("slot %d: %d rows that a crash left behind are removed", owned.slot, len(orphans))
            await rows.write(orphans)
        for vhost in await self.broker.load_vhosts(table.state(vhosts, self._metadata.node)):
            owned.vhosts[vhost.name] = vhost
        assert owned.placement is not None  # set by `_place`
        owned.logs.drop_orphans(owned.placement.places)
        owned.logs.read_all()
        if owned.end_reason:
            raise KafkaRefused(owned.end_reason)

    async def _announce(self, owned: OwnedSlot) -> None:
        assert owned.rows is not None  # set by `_place`
        held = owned.held
        owner = Owner(*self._announced(), int(held.producer_id), int(held.epoch), int(time.time() * 1000))
        await owned.rows.write([owner.note(owned.slot)])

    # -- while it is served --------------------------------------------------------------------------------------------

    def vhost_changed(self, name: str) -> None:
        """Load or delete a vhost of this node's slots, after a change of its row."""
        slot = self.state.slot_of(name)
        owned = None if slot is None else self.owned.get(slot)
        row = self.state.vhost(name)
        if row is None:
            self._forget_vhost(name)
        if owned is None or row is None or owned.end_reason or name in owned.changing_vhosts:
            return
        here = owned.vhosts.get(name)
        if row.state == "deleting" and (here is None or not here.deleted):
            work = self._finish_deletion(owned, row, here)
        elif row.state != "deleting" and (here is None or (here.id != row.id and here.deleted)):
            work = self._load_vhost(owned, row)
        else:
            return
        owned.changing_vhosts.add(name)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _forget_vhost(self, name: str) -> None:
        for owned in self.owned.values():
            here = owned.vhosts.get(name)
            if here is not None and here.deleted:
                del owned.vhosts[name]

    async def _load_vhost(self, owned: OwnedSlot, row: VhostRow) -> None:
        try:
            assert owned.rows is not None  # set by `_place`
            for vhost in await self.broker.load_vhosts(owned.rows.table.state([row], self._metadata.node)):
                if owned.end_reason:
                    await self.broker.unload_vhost(vhost, moving_text(vhost.name))
                else:
                    owned.vhosts[vhost.name] = vhost
        except Exception:
            logger.exception("vhost '%s' cannot be served; next try in %g s", row.name, LOAD_RETRY_S)
            await asyncio.sleep(LOAD_RETRY_S)
        finally:
            owned.changing_vhosts.discard(row.name)
        self.vhost_changed(row.name)

    async def _finish_deletion(self, owned: OwnedSlot, row: VhostRow, here: VHost | None) -> None:
        """Complete a deletion that another node requested, or that a crash interrupted."""
        try:
            self.broker.catalogue.declared.check(row.name, "vhost", row.name)
            if here is not None:
                vhost_calls.end(self.broker.vhosts, here, row)
            else:
                self.broker.catalogue.deletions.forget([Delete(row)])
        except DeclarationPending:
            logger.debug("vhost '%s' is being deleted here", row.name)
        except MetadataClosed:
            logger.debug("vhost '%s' is deleted by the next owner", row.name)
        finally:
            owned.changing_vhosts.discard(row.name)

    async def renew(self, owned: OwnedSlot) -> None:
        """Get the next epoch of the same producer id, so that Kafka does not forget the id.

        Raises:
            KafkaDisconnected: Kafka does not answer.
            KafkaRefused: another node owns the slot.
        """
        async with owned.changing:
            if owned.end_event.is_set() or owned.given_up:
                return
            key = self.options.transactional_id(owned.slot)
            held = await init_producer_id(self.options.access, key, owned.held)
            if owned.end_event.is_set():
                return
            if held.producer_id != owned.held.producer_id:
                self._end_slot(owned, "Kafka gave it another producer id")
                return
            owned.held = held
            owned.logs.renew(held)
            owned.logs.keep_alive(key.encode())
            await self._announce(owned)

    def keep_alive(self, owned: OwnedSlot) -> None:
        owned.logs.keep_alive(self.options.transactional_id(owned.slot).encode())

    def renew_lease(self, owned: OwnedSlot) -> None:
        """Write a record to `settled`. Its answer proves that the slot is still ours."""
        settled = owned.logs.settled
        if not settled.order and owned.logs.may_write(settled):
            owned.logs.write(settled, [KeyedRecord(self.options.transactional_id(owned.slot).encode(), None)])
            owned.producer.flush()

    # -- giving up -----------------------------------------------------------------------------------------------------

    async def give_up(self, owned: OwnedSlot) -> None:
        """Store what is left and unload the slot. Raises nothing."""
        owned.given_up = True
        self.owned.pop(owned.slot, None)
        self.broker.catalogue.stored_offsets.flush()
        for vhost in list(owned.vhosts.values()):
            self.broker.close_vhost(vhost, moving_text(vhost.name))
        try:
            # Complete a new epoch first: the last records must have one epoch.
            async with asyncio.timeout(GIVE_UP_S), owned.changing:
                await asyncio.sleep(0)
                if owned.rows is not None:
                    await owned.rows.write([])
                await owned.logs.give_up()
        except (TimeoutError, KafkaRefused, MetadataError) as error:
            why = str(error) or f"no answer within {GIVE_UP_S:g} s"
            logger.warning("slot %d: the next owner recovers what was not stored: %s", owned.slot, why)
        owned.end_reason = owned.end_reason or "it was given up"
        await self._unload(owned)
        logger.info("slot %d was given up", owned.slot)

    async def unload(self, owned: OwnedSlot) -> None:
        """Unload a slot that ended. Raises nothing."""
        self.owned.pop(owned.slot, None)
        self._end_slot(owned, owned.end_reason)
        await self._unload(owned)

    async def _unload(self, owned: OwnedSlot) -> None:
        self._metadata.remove_slot(owned.slot, f"cannot write the metadata: {owned.end_reason}")
        if owned.placement is not None:
            await owned.placement.close()
        for vhost in list(owned.vhosts.values()):
            await self.broker.unload_vhost(vhost, moving_text(vhost.name))
        owned.vhosts.clear()
        await owned.logs.close()
        for queue_id in [each for each, placed in self._storage.places.items() if placed.logs is owned.logs]:
            del self._storage.places[queue_id]
        await owned.producer.close()

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


CHECK_S: Final = 0.25
PROLONG_SHARE: Final = 1 / 3


class LeaseMonitor:
    """Lease check: suspends deliveries of slots whose lease expired.

    Args:
        owned: returns the slots that this node serves.
        prolong: writes a record of a slot to Kafka.
    """

    def __init__(
        self, owned: Callable[[], Iterable[OwnedSlot]], prolong: Callable[[OwnedSlot], None], session_timeout_s: float
    ) -> None:
        self._owned = owned
        self._prolong = prolong
        self._timeout_s = session_timeout_s
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = self._loop.call_later(CHECK_S, self._check_leases)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check_leases(self) -> None:
        self.start()
        now = self._loop.time()
        suspended_slots: list[int] = []
        resumed_slots: list[int] = []
        for owned in list(self._owned()):
            age_s = now - owned.producer.answered_s
            if age_s > self._timeout_s * PROLONG_SHARE:
                self._prolong(owned)
            lapsed = age_s > self._timeout_s
            if lapsed and not owned.is_suspended:
                suspended_slots.append(owned.slot)
            elif owned.is_suspended and not lapsed:
                resumed_slots.append(owned.slot)
            if lapsed or owned.is_suspended:
                owned.is_suspended = lapsed
                suspend_delivery(owned)
        if suspended_slots:
            text = "Kafka has not answered for %g s: the durable queues of slots %s are suspended"
            logger.warning(text, self._timeout_s, ", ".join(map(str, suspended_slots)))
        if resumed_slots:
            logger.warning("Kafka answers: the durable queues of slots %s continue", ", ".join(map(str, resumed_slots)))


def suspend_delivery(owned: OwnedSlot) -> None:
    """Suspend or resume delivery of the slot's durable queues as `owned.is_suspended` says, those of new queues too."""
    for vhost in owned.vhosts.values():
        for queue in vhost.queues.values():
            store = queue.store
            if store is not None and not store.local and queue.round_robin.halted != owned.is_suspended:
                queue.round_robin.suspend(owned.is_suspended)
                if not owned.is_suspended:
                    queue.schedule_dispatch()
