"""The metadata of a cluster's node: what one node writes into its database goes to Kafka, where all nodes find it.

A broker submits changes here as it does to a database (storage/metadata/interface.py). Each goes where it belongs:

    the cluster's    vhosts, users, permissions, topic permissions, global parameters, users' limits: slot 0, written
                     by its owner. If that is another node it is asked over the inner link (`forward`), one at a time
    a vhost's        all else: the vhost's slot, which this node has to own. Who does not is refused

A submission that is both is not one transaction any more: first the cluster's part, then slot by slot. When a later
part fails the earlier ones stay; whoever submitted takes them back, as he does after any failure. A vhost's deletion is
the other way round: first what was in it, then its topic, its row last, so that what a crash has left is found and
finished. A node that does not own the vhost's slot leaves that to its owner: it writes the tombstone, the row in state
`deleting`.

What is the cluster's is answered when this node knows it from slot 0, as all others do, so one order holds for all:
what a later writer has set is told once more behind the answer, and is what stays (`ClusterState.tell_again`).

**One vhost, one id.** Slot 0's owner refuses a second vhost of a name, also while the first one is being deleted, and
passes over the deletion of one that has gone since: nodes know no names that are held elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpd.cluster.row_codec import VHOST_SLOT, PutAnnotation, SlotChange, key_of
from amqpd.cluster.row_table import CLUSTER_TABLES, RowTable
from amqpd.cluster.state import ClusterState, free_slot
from amqpd.kafka.connection import KafkaDisconnected
from amqpd.storage.metadata.rows import (
    Change,
    Delete,
    DeleteBindings,
    Put,
    QueueRow,
    Row,
    SeenCacheRow,
    SeenRow,
    StoredOffsetRow,
    VhostRow,
)
from amqpd.storage.metadata.schema import TABLE_OF
from amqpd.storage.metadata.store import MetadataClosed, MetadataError, WriteFailed

if TYPE_CHECKING:
    from amqpd.cluster.slot_rows import RowWriter
    from amqpd.storage.metadata.store import Done, MetadataState

logger = logging.getLogger(__name__)

OWNER_TIMEOUT_S: Final = 15.0
"""For how long a change of what is the cluster's waits for an owner of slot 0."""
SEEN_TIMEOUT_S: Final = 30.0
"""For how long what slot 0's owner has written may stay unknown here."""

Forward = Callable[[Sequence[SlotChange]], Awaitable[int]]
"""Slot 0's owner, another node, writes these; returns the offset behind them. Raises: MetadataError; NotOwner where
nothing was written.
"""


class NotOwner(WriteFailed):
    """Whoever was asked does not own slot 0, or was not reached: nothing was written, and another may be asked."""


class _PendingChanges(NamedTuple):
    changes: Sequence[Change]
    done: Done


def assigning(table: RowTable, slots: int) -> Callable[[Sequence[SlotChange]], Sequence[SlotChange]]:
    """For slot 0's `RowWriter`: a new vhost gets its slot with its row; see above for vhosts of one name."""

    def prepare(changes: Sequence[SlotChange]) -> Sequence[SlotChange]:
        rows = [each.row for each in changes if isinstance(each, Put | Delete)]
        if not any(isinstance(row, VhostRow) for row in rows):
            return changes
        taken = [
            int(note["slot"])
            for key, note in table.notes.items()
            if key[0] == VHOST_SLOT and isinstance(note.get("slot"), int)
        ]
        prepared: list[SlotChange] = []
        for change in changes:
            row = change.row if isinstance(change, Put | Delete) else None
            if not isinstance(row, VhostRow):
                prepared.append(change)
                continue
            now = table.row(row)
            if isinstance(change, Delete):
                if now is not None and row.id and now.id != row.id:
                    continue  # it was made anew since
                prepared += (change, PutAnnotation((VHOST_SLOT, row.name), None))
                continue
            if now is not None and now.id != row.id:
                state = "is being deleted" if now.state == "deleting" else "exists already"
                raise WriteFailed(f"cannot write the metadata: vhost '{row.name}' {state}")
            prepared.append(change)
            if (VHOST_SLOT, row.name) not in table.notes:
                taken.append(free_slot(slots, taken))
                prepared.append(PutAnnotation((VHOST_SLOT, row.name), {"slot": taken[-1]}))
        return prepared

    return prepare


class ClusterMetadata:
    """Of one node. Loop thread only. slots: those that it owns, by number; `own` and `disown` keep them."""

    def __init__(self, state: ClusterState, node: str, forward: Forward) -> None:
        """node: this one's name. forward: see `Forward`; asked where another node owns slot 0."""
        self.state = state
        self.node = node
        self.slots: dict[int, RowWriter] = {}
        self._forward = forward
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._cluster: deque[_PendingChanges] = deque()
        self._working: asyncio.Task[None] | None = None
        self._mixed: set[asyncio.Task[None]] = set()

    def own(self, slot: int, rows: RowWriter) -> None:
        """This node has taken that slot over."""
        self.slots[slot] = rows

    def disown(self, slot: int, why: str) -> None:
        """It is another's: what waits is refused."""
        rows = self.slots.pop(slot, None)
        if rows is not None:
            rows.fail(why)

    # -- as a database's -----------------------------------------------------------------------------------------------

    def open(self, seed: Callable[[], Sequence[Row]] | None = None) -> MetadataState:
        """What is the cluster's; vhosts come later. seed: not called: a cluster's first rows are slot 0's first owner's
        to write. Raises: nothing; `ClusterState.open` was before.
        """
        return self.state.metadata_state(self.node)

    def warm(self) -> None:
        """There is nothing to make ready."""

    def submit(self, changes: Sequence[Change], done: Done) -> None:
        """See above. Raises: MetadataClosed."""
        self._check_open()
        cluster, slots = self._split(changes)
        if not cluster and len(slots) == 1:
            ((slot, part),) = slots.items()
            rows = self.slots.get(-1 if slot is None else slot)
            if rows is None:
                self._loop.call_soon(done, self._not_here(slot, part))
            else:
                rows.submit(part, done)
        elif not cluster and not slots:
            self._loop.call_soon(done, None)
        elif not slots:
            self._cluster.append(_PendingChanges(cluster, done))
            self._work()
        else:
            task = self._loop.create_task(self._write_parts(changes, done))
            self._mixed.add(task)
            task.add_done_callback(self._mixed.discard)

    def checkpoint(self, done: Done) -> None:
        """done(None) once all that was submitted to slots of this node is answered. Raises: MetadataClosed."""
        self._check_open()
        left = 1

        def one(_error: BaseException | None) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                done(None)

        for rows in list(self.slots.values()):
            left += 1
            rows.submit((), one)
        self._loop.call_soon(one, None)

    def copy(self, path: Path, done: Done) -> None:
        """Refused: Kafka has it. Raises: MetadataClosed."""
        self._check_open()
        self._loop.call_soon(done, MetadataError("a cluster's metadata is in Kafka: there is no copy of it to be made"))

    def close(self, timeout_s: float = 5.0) -> None:
        """Nothing is submitted any more; what waits is refused."""
        self._closed = True
        for slot in list(self.slots):
            self.disown(slot, "the node stops")
        for task in (*self._mixed, *([self._working] if self._working is not None else [])):
            task.cancel()
        waiting, self._cluster = self._cluster, deque()
        for each in waiting:
            _answer(each.done, WriteFailed("the node stops"))

    def _check_open(self) -> None:
        if self._closed:
            raise MetadataClosed("the metadata is not open")

    # -- where it belongs ----------------------------------------------------------------------------------------------

    def _split(self, changes: Iterable[Change]) -> tuple[list[Change], dict[int | None, list[Change]]]:
        """(the cluster's, each slot's; None: of nobody knows which). A vhost's deletion is both."""
        cluster: list[Change] = []
        slots: dict[int | None, list[Change]] = {}
        for change in changes:
            if not isinstance(change, DeleteBindings) and TABLE_OF[type(change.row)].name in CLUSTER_TABLES:
                cluster.append(change)
                if isinstance(change, Put) or not isinstance(change.row, VhostRow):
                    continue
                slot = self.state.slot_of(change.row.name)
                if slot is None:
                    continue
                if slot not in self.slots:  # its owner sees the tombstone, and goes on with it
                    cluster[-1] = Put(change.row._replace(state="deleting"))
                    continue
            else:
                slot = self._slot_of(change, slots)
            slots.setdefault(slot, []).append(change)
        return cluster, slots

    def _slot_of(self, change: Change, parts: dict[int | None, list[Change]]) -> int | None:
        if isinstance(change, DeleteBindings):
            return self.state.slot_of(change.vhost)
        row = change.row
        if isinstance(row, StoredOffsetRow):
            return self._slot_with(QueueRow("", "", row.queue_id), parts)
        if isinstance(row, SeenRow):
            return self._slot_with(SeenCacheRow(row.cache_id, "", ""), parts)
        return self.state.slot_of(str(getattr(row, "vhost", "")))

    def _slot_with(self, parent: QueueRow | SeenCacheRow, parts: dict[int | None, list[Change]]) -> int | None:
        """The slot of a row that is known by its id alone. Cost: a look into each slot of this node."""
        key, table = key_of(parent), TABLE_OF[type(parent)]
        for slot, rows in self.slots.items():
            if rows.table.has(table, key):
                return slot
        for found, part in parts.items():  # it comes with the same submission, or waits in an earlier one
            for each in part:
                if not isinstance(each, DeleteBindings) and type(each.row) is type(parent) and key_of(each.row) == key:
                    return found
        return next((slot for slot, rows in self.slots.items() if rows.expects(key)), None)

    def _not_here(self, slot: int | None, changes: Sequence[Change]) -> WriteFailed:
        vhosts = {
            str(each.vhost if isinstance(each, DeleteBindings) else getattr(each.row, "vhost", "")) for each in changes
        }
        named = ", ".join(f"'{vhost}'" for vhost in sorted(vhosts) if vhost)
        if slot is None:
            what = f"vhost {named} is not there" if named else "its queue is not on this node"
            return WriteFailed(f"cannot write the metadata: {what}")
        owner = self.state.owner_of(slot)
        where = f"node {owner.node} serves it" if owner is not None and owner.node != self.node else "it is moving"
        return WriteFailed(f"cannot write the metadata: vhost {named} is not served by this node: {where}")

    # -- what is the cluster's -----------------------------------------------------------------------------------------

    async def write_cluster(self, changes: Sequence[SlotChange]) -> int:
        """Writes to slot 0, by whoever owns it; returns the offset behind it. Raises: MetadataError."""
        until = self._loop.time() + OWNER_TIMEOUT_S
        while True:
            rows = self.slots.get(0)
            try:
                return await (self._forward(changes) if rows is None else rows.write(changes))
            except NotOwner:
                left = until - self._loop.time()
                if left <= 0 or self._closed:
                    raise
                await self.state.changed(min(left, 1.0))  # slot 0 moves

    async def write_own(self, changes: Sequence[SlotChange]) -> int:
        """The same for another node, which takes this one for slot 0's owner. Raises: MetadataError; NotOwner."""
        rows = self.slots.get(0)
        if rows is None:
            raise NotOwner(f"cannot write the metadata: node {self.node} does not own slot 0")
        return await rows.write(changes)

    def _work(self) -> None:
        if self._working is None:
            self._working = self._loop.create_task(self._write_cluster_parts())

    async def _write_cluster_parts(self) -> None:
        """One after the other, in the order in which they came."""
        try:
            while self._cluster:
                waiting = self._cluster.popleft()
                error: BaseException | None = None
                try:
                    await self._write_and_see(waiting.changes)
                except MetadataError as failed:
                    error = failed
                except asyncio.CancelledError:
                    _answer(waiting.done, WriteFailed("the node stops"))
                    raise
                except Exception as failed:
                    logger.exception("a change of the cluster's metadata: a bug of the broker")
                    error = WriteFailed(f"cannot write the metadata: {failed!r}")
                _answer(waiting.done, error)
                if error is None:
                    self.state.tell_again(waiting.changes)
        finally:
            self._working = None

    async def _write_and_see(self, changes: Sequence[Change]) -> None:
        """Written to slot 0, and known here. Raises: MetadataError."""
        offset = await self.write_cluster(changes)
        try:
            async with asyncio.timeout(SEEN_TIMEOUT_S):
                await self.state.written(offset)
        except (TimeoutError, KafkaDisconnected) as error:
            raise WriteFailed(f"the metadata is written, and slot 0 cannot be read: {error}") from error

    # -- mixed submissions ---------------------------------------------------------------------------------------------

    async def _write_parts(self, changes: Sequence[Change], done: Done) -> None:
        cluster, slots = self._split(changes)
        try:
            ended = [each.row for each in cluster if isinstance(each, Delete) and isinstance(each.row, VhostRow)]
            first = [each for each in cluster if not (isinstance(each, Delete) and isinstance(each.row, VhostRow))]
            if first:
                await self._write_and_see(first)
                _, slots = self._split(changes)  # a new vhost has its slot now
            for slot, part in slots.items():
                rows = self.slots.get(-1 if slot is None else slot)
                if rows is None:
                    raise self._not_here(slot, part)
                await rows.write(part)
            for row in ended:
                await self._end_vhost(row)
        except MetadataError as error:
            _answer(done, error)
        except asyncio.CancelledError:
            _answer(done, WriteFailed("the node stops"))
            raise
        except Exception as error:
            logger.exception("a change of the metadata: a bug of the broker")
            _answer(done, WriteFailed(f"cannot write the metadata: {error!r}"))
        else:
            _answer(done, None)
            self.state.tell_again(cluster)

    async def _end_vhost(self, row: VhostRow) -> None:
        """What was in it is gone: its topic goes, then its row. Raises: MetadataError."""
        slot = self.state.slot_of(row.name)
        rows = None if slot is None else self.slots.get(slot)
        if rows is not None and rows.placement is not None:
            await rows.placement.drop_vhost(row.id)
        await self._write_and_see([Delete(row)])


def _answer(done: Done, error: BaseException | None) -> None:
    try:
        done(error)
    except Exception:
        # One caller's bug must not cost the others their answer.
        logger.exception("metadata: a done callback failed")
