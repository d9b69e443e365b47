"""Cluster state that every node knows, read from `meta` and followed.

    slot 0          rows: vhosts, users, permissions, global parameters, user limits; the slot of each vhost, and where
                    operators moved slots
    other slots     one note, ["owner", n]: the node that serves the slot. An owner writes it to its own partition, so
                    a takeover depends on no other node

A node reads all of `meta` at its start. In slots other than 0 it looks only for that note.

`open` returns when the state is up to date. Later changes arrive within milliseconds. Callbacks run on the loop, in
the order of the changes, but not before `open` returned:

    on_row(change)      Put(row) or Delete(previous row), of slot 0
    on_vhost(name)      a vhost was created, changed, assigned to a slot or deleted; ask `vhost` and `slot_of`
    on_owner(slot)      another owner or another epoch
    on_note(note)       a note of slot 0, such as a request to move a slot

A node that writes to slot 0 waits with `wait_applied` until it has read its own change, as other nodes do.

A record that causes an exception (a bug) is skipped and counted during the start; otherwise no node could start.
Later it ends the reading and calls `on_lost`: the node must stop, because its users and owners would become stale.
Started again, the node reads everything again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from amqpd.cluster.row_codec import (
    OWNER,
    VHOST_SLOT,
    WISH,
    Foreign,
    NewerFormat,
    PutAnnotation,
    decode_object,
    note_key,
)
from amqpd.cluster.row_table import ALL_TABLES, RowTable
from amqpd.kafka.config import KafkaAccess
from amqpd.kafka.connection import KafkaDisconnected
from amqpd.kafka.consumer import FollowedPartition, LoopSlice, TopicFollower
from amqpd.kafka.keyed_records import keyed_records
from amqpd.kafka.producer import KafkaRefused
from amqpd.storage.log.batch import BatchHeader
from amqpd.storage.log.record import BadRecord
from amqpd.storage.metadata.rows import Change, Delete, DeleteBindings, Put, VhostRow
from amqpd.storage.metadata.store import MetadataError, MetadataState

logger = logging.getLogger(__name__)

MOVE_TIMEOUT_S: Final = 30.0
"""Maximum time for which a connection waits for the owner of its vhost."""


class Owner(NamedTuple):
    """Owner of a slot, as it announced itself.

    Attributes:
        node: its name.
        address: host:port of its peer port.
        fingerprint: SHA-256 of its certificate in hexadecimal.
        producer_id, epoch: with which it writes the slot. A later epoch or another id is another owner.
        time_ms: time of the announcement.
    """

    node: str
    address: str
    fingerprint: str
    producer_id: int
    epoch: int
    time_ms: int

    def note(self, slot: int) -> PutAnnotation:
        return PutAnnotation((OWNER, slot), self._asdict())

    def is_before(self, other: Owner) -> bool:
        """Return whether this owner is earlier than the other one. False if the producer ids differ: their order is
        unknown.
        """
        return self.producer_id == other.producer_id and self.epoch < other.epoch

    @staticmethod
    def from_note(note: Any) -> Owner:
        """Decode the value of an owner's note. Raises NewerFormat."""
        try:
            texts = [note[name] for name in ("node", "address", "fingerprint")]
            numbers = [note[name] for name in ("producer_id", "epoch", "time_ms")]
        except KeyError as error:
            raise NewerFormat(f"an owner's note lacks {error}") from None
        if not all(isinstance(each, str) for each in texts) or not all(type(each) is int for each in numbers):
            raise NewerFormat("an owner's note has other values than this version writes")
        return Owner(*texts, *numbers)


def free_slot(slots: int, taken: Iterable[int]) -> int:
    """Return the slot for a new vhost: the first one with the fewest vhosts.

    Slot 0, which all nodes read, gets no vhost if there are other slots.

    Args:
        taken: the slot of each existing vhost.
    """
    counts = Counter(taken)
    return min(range(1 if slots > 1 else 0, slots), key=lambda slot: (counts[slot], slot))


class ClusterState:
    """Cluster state of one node. Loop thread only.

    Attributes:
        on_row, on_vhost, on_owner, on_note: callbacks; see the module. Exceptions of a callback are logged.
    """

    def __init__(self, access: KafkaAccess, topic: str, slots: int) -> None:
        """Connect to nothing yet.

        Args:
            topic: the name of `meta`.
            slots: number of its partitions.
        """
        self.topic = topic
        self.slots = slots
        self.table = RowTable(ALL_TABLES)
        self.owners: dict[int, Owner] = {}
        self.on_row: list[Callable[[Change], None]] = []
        self.unanswered: set[Change] = set()
        """Changes of this node whose submitter applies them at the answer: `on_row` is not called. `report_again`
        follows."""
        self.on_vhost: list[Callable[[str], None]] = []
        self.on_owner: list[Callable[[int], None]] = []
        self.on_note: list[Callable[[PutAnnotation], None]] = []
        self.on_lost: Callable[[str], None] = lambda _: None
        """Called with the reason when the reading ended."""
        self.foreign_count = 0
        """Records of slots other than 0 whose note cannot be read."""
        self.problem = ""
        """Unknown record of a later version of amqpd, as a text for the log; "" if there is none."""
        self._owner_keys = [note_key((OWNER, slot)) for slot in range(slots)]
        self._follower = TopicFollower(access, self._apply_batch, self._lost)
        self._followed: list[FollowedPartition] = []
        self._opened = False
        self._waiting: set[asyncio.Future[None]] = set()

    async def open(self) -> None:
        """Read everything and follow the topic.

        Cost: all of `meta` over the network, and 10 us per row of slot 0.

        Raises: MetadataError: a later version wrote to it, or Kafka does not answer.
        """
        self._followed = [self._follower.follow(self.topic, slot) for slot in range(self.slots)]
        try:
            await self._follower.wait_caught_up(self._followed)
        except (KafkaDisconnected, KafkaRefused) as error:
            raise MetadataError(f"the cluster's metadata cannot be read: {error}") from error
        if self.problem:
            raise MetadataError(f"{self.problem}; start the later version that wrote it")
        foreign = self.table.foreign_count + self.foreign_count
        if foreign:
            logger.warning("%d records of %s are not amqpd's and were skipped", foreign, self.topic)
        self._opened = True

    async def close(self) -> None:
        await self._follower.close()
        self._wake()

    # -- queries -------------------------------------------------------------------------------------------------------

    def vhost(self, name: str) -> VhostRow | None:
        """Return the vhost's row in any state; None if there is none."""
        return self.table.row(VhostRow(name, ""))

    def vhosts(self) -> list[VhostRow]:
        """Return all vhosts by name, including those in deletion."""
        return sorted(self.table.rows(VhostRow))

    def vhosts_of(self, slot: int) -> list[VhostRow]:
        """Return the vhosts of one slot by name. Cost: a look at each vhost."""
        return [row for row in self.vhosts() if self.slot_of(row.name) == slot]

    def slot_of(self, vhost: str) -> int | None:
        """Return the slot of a vhost; None if there is no such vhost."""
        note = self.table.notes.get((VHOST_SLOT, vhost))
        slot = None if note is None else note.get("slot")
        return slot if type(slot) is int and 0 <= slot < self.slots and self.vhost(vhost) is not None else None

    def owner_of(self, slot: int) -> Owner | None:
        """Return the node that announced the slot last; it may have stopped. None if no node ever did."""
        return self.owners.get(slot)

    def requested_node(self, slot: int) -> str | None:
        """Return the node to which an operator moved the slot; None if no request is open."""
        note = self.table.notes.get((WISH, slot))
        node = None if note is None else note.get("node")
        return node if isinstance(node, str) else None

    def metadata_state(self, instance_id: str) -> MetadataState:
        """Return what the broker starts with: users and the other cluster-wide rows, but no vhost.

        Permissions of all vhosts are included, except vhosts in deletion.
        """
        state = self.table.state(self.vhosts(), instance_id)
        return state._replace(
            vhosts=[], deleting_vhosts=[], exchanges=[], queues=[], deleting_queues=[], bindings=[], policies=[],
            parameters=[], stored_offsets=[], seen_caches=[], seen=[],
        )  # fmt: skip

    def report_again(self, changes: Iterable[Change]) -> None:
        """Report the present rows again to the callbacks after this node applied its own changes.

        Another node may have written later changes of the same rows.
        """
        for change in changes:
            if isinstance(change, DeleteBindings):
                continue
            now = self.table.row(change.row)
            self._notify(self.on_row, Delete(change.row) if now is None else Put(now))

    # -- waiting -----------------------------------------------------------------------------------------------------

    @property
    def next_offset(self) -> int:
        """Everything of slot 0 below this offset is known."""
        return self._followed[0].next_offset

    async def wait_applied(self, offset: int) -> None:
        """Return when all records of slot 0 below `offset` were applied. Raises KafkaDisconnected: closed before."""
        await self._follower.wait_reached(self._followed[0], offset)

    async def wait_caught_up(self) -> None:
        """Return when all records that slot 0 has now were applied.

        Raises:
            KafkaDisconnected: closed before.
            KafkaRefused: Kafka refuses to be read.
        """
        await self._follower.wait_caught_up(self._followed[:1])

    async def wait_change(self, timeout_s: float = MOVE_TIMEOUT_S) -> bool:
        """Wait for the next change of an owner or a vhost. Return False after the time-out."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(future)
        return True

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    # -- records from Kafka --------------------------------------------------------------------------------------------

    async def _apply_batch(self, followed: FollowedPartition, batch: bytes) -> None:
        slot = followed.number
        # Most batches of other slots do not contain the owner's key and need no decoding.
        if slot and self._owner_keys[slot] not in batch and not BatchHeader(batch, 0).is_compressed():
            return
        slices = LoopSlice()
        try:
            for records in keyed_records(batch):
                for record in records:
                    self._apply_one(slot, record.key, record.value)
                    if slices.is_over:
                        await slices.yield_loop()
        except BadRecord as error:
            self.foreign_count += 1
            logger.error("%s %d: a batch cannot be read and is skipped: %s", self.topic, slot, error)

    def _apply_one(self, slot: int, key: bytes, value: bytes | None) -> None:
        try:
            if slot == 0:
                self._apply_record(key, value)
            if key == self._owner_keys[slot]:
                self._apply_owner(slot, value)
        except Exception:
            if self._opened:
                raise
            self.foreign_count += 1
            logger.exception("%s %d: a bug in amqpd, please report it: a record is skipped: %r", self.topic, slot, key)

    def _lost(self, error: BaseException) -> None:
        if self._opened:
            self.on_lost(f"the cluster's metadata cannot be read any more: {error!r}")
        self._wake()

    def _apply_record(self, key: bytes, value: bytes | None) -> None:
        try:
            change = self.table.read(key, value)
        except NewerFormat as error:
            if not self.problem:
                self.problem = f"{self.topic}: {error}"
                logger.error("%s: the record is skipped", self.problem)
            return
        if change is None:
            return
        if isinstance(change, PutAnnotation):
            if change.key[0] == VHOST_SLOT:
                self._notify_vhost(str(change.key[1]))
            if change.key[0] != OWNER:
                self._notify(self.on_note, change)
            return
        assert not hasattr(change, "kind")  # no record is a DeleteBindings
        if change not in self.unanswered:
            self._notify(self.on_row, change)
        row = change.row
        if isinstance(row, VhostRow):
            self._notify_vhost(row.name)

    def _apply_owner(self, slot: int, value: bytes | None) -> None:
        try:
            owner = None if value is None else Owner.from_note(decode_object(value))
        except (Foreign, NewerFormat) as error:
            self.foreign_count += 1
            logger.error("%s %d: the owner's record cannot be read and is skipped: %s", self.topic, slot, error)
            return
        before = self.owners.get(slot)
        if before is not None and owner is not None and owner.is_before(before):
            return  # a later owner announced itself directly while Kafka did not answer
        self.set_owner(slot, owner)

    def set_owner(self, slot: int, owner: Owner | None) -> None:
        """Apply an announcement. It may come from the owner directly, while Kafka does not answer this node."""
        if owner == self.owners.get(slot):
            return
        if owner is None:
            del self.owners[slot]
        else:
            self.owners[slot] = owner
        self._notify(self.on_owner, slot)
        if self._opened:
            self._wake()

    def _notify_vhost(self, name: str) -> None:
        self._notify(self.on_vhost, name)
        if self._opened:
            self._wake()

    def _notify(self, listeners: list[Callable[[Any], None]], what: object) -> None:
        if not self._opened:
            return
        for listener in listeners[:]:
            try:
                listener(what)
            except Exception:
                # A failing callback must not stop the other callbacks.
                logger.exception("a listener failed on %r", what)
