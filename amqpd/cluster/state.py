"""What every node knows of the cluster, whoever serves what: read from `meta`, and followed as it changes.

    slot 0              its rows: vhosts, users, permissions, global parameters, users' limits; the slot of each vhost,
                        operators' wishes
    each other slot     one note, ["owner", n]: who serves it. An owner writes it to its slot's own `meta` when it has
                        taken the slot, so it needs no other node for that

All of `meta` is read at the start, what is in other slots than 0 by a look for that one key: the rest of it is only the
owner's to know.

`open` returns when all that Kafka had then is known. From there on changes come within some milliseconds, and are told
in their order, on the loop:

    on_row(change)      Put(row) or Delete(the row that was there), of slot 0
    on_vhost(name)      it came, changed, got a slot or left: `vhost`, `slot_of` say what it is now
    on_owner(slot)      another owner, or another epoch
    on_note(note)       of slot 0, such as a wish

Nothing is told before `open` has returned.

A node that writes to slot 0 sees what it wrote here (`written`), when all nodes that are up to date do.

A record on which this program fails (a bug) is passed over and counted while all is read at the start, so that it
cannot keep every node from starting. One that comes later ends the reading: `on_lost` is told, and the node has to end,
for it would go on with users and owners that are not so any more; started again it reads all anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
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
from amqpd.kafka.consumer import SLICE_S, FollowedPartition, TopicFollower
from amqpd.kafka.keyed_records import keyed_records
from amqpd.kafka.producer import KafkaRefused
from amqpd.storage.log.batch import BatchHeader
from amqpd.storage.log.record import BadRecord
from amqpd.storage.metadata.rows import Change, Delete, DeleteBindings, Put, VhostRow
from amqpd.storage.metadata.store import MetadataError, MetadataState

logger = logging.getLogger(__name__)

MOVE_TIMEOUT_S: Final = 30.0
"""For how long a connection waits for the owner of its vhost."""


class Owner(NamedTuple):
    """Who serves a slot, as it has said itself.

    node: its name. address: where its inner port is reached, host:port. fingerprint: SHA-256 of its certificate, in
    hex. producer_id, epoch: under which it writes the slot; a later epoch, or another id, is another owner. time_ms:
    when it said so.
    """

    node: str
    address: str
    fingerprint: str
    producer_id: int
    epoch: int
    time_ms: int

    def note(self, slot: int) -> PutAnnotation:
        """What an owner writes to its own `meta`."""
        return PutAnnotation((OWNER, slot), self._asdict())

    def was_before(self, other: Owner) -> bool:
        """It wrote the slot before that one; False where the producer ids differ, which says nothing."""
        return self.producer_id == other.producer_id and self.epoch < other.epoch

    @staticmethod
    def of(note: Any) -> Owner:
        """Raises: NewerFormat, not as this version writes it."""
        try:
            texts = [note[name] for name in ("node", "address", "fingerprint")]
            numbers = [note[name] for name in ("producer_id", "epoch", "time_ms")]
        except KeyError as error:
            raise NewerFormat(f"an owner's note lacks {error}") from None
        if not all(isinstance(each, str) for each in texts) or not all(type(each) is int for each in numbers):
            raise NewerFormat("an owner's note has other values than this version writes")
        return Owner(*texts, *numbers)


def free_slot(slots: int, taken: Iterable[int]) -> int:
    """The slot for a new vhost: the one with the fewest vhosts, of several the first. Slot 0, which all nodes read,
    holds none where there is another. taken: the slots of the vhosts there are, one each.
    """
    counts = Counter(taken)
    return min(range(1 if slots > 1 else 0, slots), key=lambda slot: (counts[slot], slot))


class ClusterState:
    """Of one cluster, for one node. Loop thread only.

    on_row, on_vhost, on_owner, on_note: whoever wants to hear adds himself; what he raises is logged.
    """

    def __init__(self, access: KafkaAccess, topic: str, slots: int) -> None:
        """topic: `meta`'s name. slots: how many partitions it has."""
        self.topic = topic
        self.slots = slots
        self.table = RowTable(ALL_TABLES)
        self.owners: dict[int, Owner] = {}
        self.on_row: list[Callable[[Change], None]] = []
        self.on_vhost: list[Callable[[str], None]] = []
        self.on_owner: list[Callable[[int], None]] = []
        self.on_note: list[Callable[[PutAnnotation], None]] = []
        self.on_lost: Callable[[str], None] = lambda _: None
        """Nothing more will be known; with the reason."""
        self.foreign_count = 0
        """Records, in slots other than 0, whose note cannot be read."""
        self.problem = ""
        """What a later version of amqpd has written that this one does not know; empty: nothing."""
        self._owner_keys = [note_key((OWNER, slot)) for slot in range(slots)]
        self._follower = TopicFollower(access, self._take, self._lost)
        self._followed: list[FollowedPartition] = []
        self._opened = False
        self._waiting: set[asyncio.Future[None]] = set()

    async def open(self) -> None:
        """Reads all there is. Cost: all of `meta` over the network, and 10 us a row of slot 0. Raises: MetadataError,
        a later version has written to it, or Kafka does not answer.
        """
        self._followed = [self._follower.follow(self.topic, slot) for slot in range(self.slots)]
        try:
            await self._follower.caught_up(self._followed)
        except (KafkaDisconnected, KafkaRefused) as error:
            raise MetadataError(f"the cluster's metadata cannot be read: {error}") from error
        if self.problem:
            raise MetadataError(f"{self.problem}; start the later version that wrote it")
        foreign = self.table.foreign_count + self.foreign_count
        if foreign:
            logger.warning("%d records of %s are not amqpd's and were passed over", foreign, self.topic)
        self._opened = True

    async def close(self) -> None:
        """Nothing is followed any more."""
        await self._follower.close()
        self._wake()

    # -- what is known -----------------------------------------------------------------------------------------------

    def vhost(self, name: str) -> VhostRow | None:
        """Its row, whatever its state; None: there is no such vhost."""
        return self.table.row(VhostRow(name, ""))

    def vhosts(self) -> list[VhostRow]:
        """All, by name, those included that are being deleted."""
        return sorted(self.table.rows(VhostRow))

    def vhosts_of(self, slot: int) -> list[VhostRow]:
        """Those of one slot, by name. Cost: a look at each vhost."""
        return [row for row in self.vhosts() if self.slot_of(row.name) == slot]

    def slot_of(self, vhost: str) -> int | None:
        """None: there is no such vhost."""
        note = self.table.notes.get((VHOST_SLOT, vhost))
        slot = None if note is None else note.get("slot")
        return slot if type(slot) is int and 0 <= slot < self.slots and self.vhost(vhost) is not None else None

    def owner_of(self, slot: int) -> Owner | None:
        """Who has said last that it serves it; it may be gone since. None: nobody ever did."""
        return self.owners.get(slot)

    def hear(self, slot: int, owner: Owner) -> None:
        """That owner has said so to this node, which Kafka does not answer: here as if it had been read."""
        self._keep_owner(slot, owner)

    def owner_of_vhost(self, vhost: str) -> Owner | None:
        """None: there is no such vhost, or nobody has served it yet."""
        slot = self.slot_of(vhost)
        return None if slot is None else self.owners.get(slot)

    def wish(self, slot: int) -> str | None:
        """The node that an operator wants to have it; None: no matter."""
        note = self.table.notes.get((WISH, slot))
        node = None if note is None else note.get("node")
        return node if isinstance(node, str) else None

    def metadata_state(self, instance_id: str) -> MetadataState:
        """What a broker begins with: users and all else that is the cluster's, and no vhost. Permissions are there of
        all vhosts that are not being deleted.
        """
        state = self.table.state(self.vhosts(), instance_id)
        return state._replace(
            vhosts=[], deleting_vhosts=[], exchanges=[], queues=[], deleting_queues=[], bindings=[], policies=[],
            parameters=[], stored_offsets=[], seen_caches=[], seen=[],
        )  # fmt: skip

    def tell_again(self, changes: Iterable[Change]) -> None:
        """Whoever has made these changes here hears what they are now: another node may have been behind him."""
        for change in changes:
            if isinstance(change, DeleteBindings):
                continue
            now = self.table.row(change.row)
            self._tell(self.on_row, Delete(change.row) if now is None else Put(now))

    # -- waiting -----------------------------------------------------------------------------------------------------

    @property
    def next_offset(self) -> int:
        """Below it everything of slot 0 is known."""
        return self._followed[0].next_offset

    async def written(self, offset: int) -> None:
        """Waits until all below `offset` of slot 0 is known and told. Raises: KafkaLost, closed before."""
        await self._follower.reached(self._followed[0], offset)

    async def caught_up(self) -> None:
        """Waits until all that Kafka has of slot 0 now is known and told. Raises: KafkaLost, KafkaRefused."""
        await self._follower.caught_up(self._followed[:1])

    async def changed(self, timeout_s: float = MOVE_TIMEOUT_S) -> bool:
        """Waits for the next change of an owner or of a vhost; False: there was none in that time."""
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

    # -- what comes --------------------------------------------------------------------------------------------------

    async def _take(self, followed: FollowedPartition, batch: bytes) -> None:
        slot = followed.number
        # In other slots a look for one key is enough, and most batches have none.
        if slot and self._owner_keys[slot] not in batch and not BatchHeader(batch, 0).compressed():
            return
        until = time.perf_counter() + SLICE_S
        try:
            for records in keyed_records(batch):
                for record in records:
                    self._take_one(slot, record.key, record.value)
                    if time.perf_counter() >= until:
                        await asyncio.sleep(0)
                        until = time.perf_counter() + SLICE_S
        except BadRecord as error:
            self.foreign_count += 1
            logger.error("%s %d: a batch cannot be read and is passed over: %s", self.topic, slot, error)

    def _take_one(self, slot: int, key: bytes, value: bytes | None) -> None:
        try:
            if slot == 0:
                self._take_record(key, value)
            if key == self._owner_keys[slot]:
                self._take_owner(slot, value)
        except Exception:
            if self._opened:
                raise
            self.foreign_count += 1
            logger.exception("%s %d: a bug of the broker: a record is passed over: %r", self.topic, slot, key)

    def _lost(self, error: BaseException) -> None:
        if self._opened:
            self.on_lost(f"what nodes share cannot be read any more: {error!r}")
        self._wake()

    def _take_record(self, key: bytes, value: bytes | None) -> None:
        try:
            change = self.table.read(key, value)
        except NewerFormat as error:
            if not self.problem:
                self.problem = f"{self.topic}: {error}"
                logger.error("%s: it is passed over", self.problem)
            return
        if change is None:
            return
        if isinstance(change, PutAnnotation):
            if change.key[0] == VHOST_SLOT:
                self._tell_vhost(str(change.key[1]))
            if change.key[0] != OWNER:
                self._tell(self.on_note, change)
            return
        assert not hasattr(change, "kind")  # no record says DeleteBindings
        self._tell(self.on_row, change)
        row = change.row
        if isinstance(row, VhostRow):
            self._tell_vhost(row.name)

    def _take_owner(self, slot: int, value: bytes | None) -> None:
        try:
            owner = None if value is None else Owner.of(decode_object(value))
        except (Foreign, NewerFormat) as error:
            self.foreign_count += 1
            logger.error("%s %d: its owner cannot be read and is passed over: %s", self.topic, slot, error)
            return
        before = self.owners.get(slot)
        if before is not None and owner is not None and owner.was_before(before):
            return  # that a later one has come since was heard while Kafka did not answer
        self._keep_owner(slot, owner)

    def _keep_owner(self, slot: int, owner: Owner | None) -> None:
        if owner == self.owners.get(slot):
            return
        if owner is None:
            del self.owners[slot]
        else:
            self.owners[slot] = owner
        self._tell(self.on_owner, slot)
        if self._opened:
            self._wake()

    def _tell_vhost(self, name: str) -> None:
        self._tell(self.on_vhost, name)
        if self._opened:
            self._wake()

    def _tell(self, listeners: list[Callable[[Any], None]], what: object) -> None:
        if not self._opened:
            return
        for listener in listeners[:]:
            try:
                listener(what)
            except Exception:
                # One listener's bug must not cost the others, or the cluster, what comes behind.
                logger.exception("a listener failed on %r", what)
