"""Metadata store of a cluster node: the broker's changes go to Kafka instead of a database.

A broker submits changes as to a database (`storage/metadata/store.py`). Each change goes to a slot:

    cluster-wide    vhosts, users, permissions, topic permissions, global parameters, user limits: slot 0, written by
                    its owner. Another node sends them to that owner, one submission at a time
    of a vhost      everything else: the vhost's slot, which this node must own; otherwise the change is refused

A submission with changes of several slots is no transaction: the cluster-wide part is written first, then slot by
slot. After a failure the earlier parts stay, and the caller reverts them as after any failure.

A vhost is deleted in the opposite order: its contents, its topic, last its row. So the next owner finds and
finishes what a crash interrupted. A node that does not own the vhost's slot only sets the row's state to
`deleting`, and the owner deletes the vhost.

A cluster-wide change is answered when this node has read it from slot 0, so all nodes see one order. If another
node changed the same row later, the broker gets that change again after the answer (`ClusterState.report_again`).

**A vhost name has one id.** Slot 0's owner refuses a second vhost of a name, also while the first is being deleted.
It ignores the deletion of a vhost that was replaced meanwhile. Nodes need no knowledge of pending names on other
nodes.
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
from amqpd.cluster.slot_rows import RowWriter, answer
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
    from amqpd.storage.metadata.store import Done, MetadataState

logger = logging.getLogger(__name__)

OWNER_TIMEOUT_S: Final = 15.0
"""Maximum time for which a cluster-wide change waits for an owner of slot 0."""
SEEN_TIMEOUT_S: Final = 30.0
"""Maximum time until this node has read a change that slot 0's owner has written."""

Forward = Callable[[Sequence[SlotChange]], Awaitable[int]]
"""Lets slot 0's owner on another node write changes; returns the offset behind them.

Raises MetadataError, or NotOwner if nothing was written.
"""


class NotOwner(WriteFailed):
    """Error: the asked node does not own slot 0 or did not answer. Nothing was written; another node may be asked."""


class _PendingChanges(NamedTuple):
    changes: Sequence[Change]
    done: Done


def slot_assigner(table: RowTable, slots: int) -> Callable[[Sequence[SlotChange]], Sequence[SlotChange]]:
    """Return the `prepare` function of slot 0's RowWriter: it assigns new vhosts to slots and refuses duplicate
    names.
    """

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
                    continue  # the vhost was created again meanwhile
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
    """Metadata store of one node. Loop thread only.

    Attributes:
        slots: slot -> writer of its rows, for the slots that this node owns.
    """

    def __init__(self, state: ClusterState, node: str, forward: Forward) -> None:
        """Prepare the store.

        Args:
            node: the name of this node.
            forward: used while another node owns slot 0.
        """
        self.state = state
        self.node = node
        self.slots: dict[int, RowWriter] = {}
        self._forward = forward
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._cluster: deque[_PendingChanges] = deque()
        self._working: asyncio.Task[None] | None = None
        self._mixed: set[asyncio.Task[None]] = set()

    def add_slot(self, slot: int, rows: RowWriter) -> None:
        """Use the slot's writer: this node took over the slot."""
        self.slots[slot] = rows

    def remove_slot(self, slot: int, why: str) -> None:
        """Refuse waiting changes: the slot belongs to another node."""
        rows = self.slots.pop(slot, None)
        if rows is not None:
            rows.fail(why)

    # -- MetadataStore -------------------------------------------------------------------------------------------------

    def open(self, seed: Callable[[], Sequence[Row]] | None = None) -> MetadataState:
        """Return the cluster-wide rows; vhosts follow with their slots. `ClusterState.open` must have returned.

        Args:
            seed: not called; the first owner of slot 0 writes a new cluster's rows.
        """
        return self.state.metadata_state(self.node)

    def submit(self, changes: Sequence[Change], done: Done) -> None:
        """Write changes to their slots; see the module. Raises MetadataClosed: after `close`."""
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
        """Call `done(None)` when all changes of this node's slots are answered.

        Raises: MetadataClosed: after `close`.
        """
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
        """Refuse the copy: the metadata is in Kafka. Raises MetadataClosed: after `close`."""
        self._check_open()
        self._loop.call_soon(done, MetadataError("a cluster's metadata is in Kafka: it cannot be copied"))

    def close(self, timeout_s: float = 5.0) -> None:
        """Refuse waiting and later changes."""
        self._closed = True
        for slot in list(self.slots):
            self.remove_slot(slot, "the node stops")
        for task in (*self._mixed, *([self._working] if self._working is not None else [])):
            task.cancel()
        waiting, self._cluster = self._cluster, deque()
        for each in waiting:
            answer(each.done, WriteFailed("the node stops"))

    def _check_open(self) -> None:
        if self._closed:
            raise MetadataClosed("the metadata is not open")

    # -- slots of changes ----------------------------------------------------------------------------------------------

    def _split(self, changes: Iterable[Change]) -> tuple[list[Change], dict[int | None, list[Change]]]:
        """Return the cluster-wide changes, and the changes of each slot. None is the slot of unknown vhosts and
        queues.

        The deletion of a vhost is in both parts.
        """
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
                if slot not in self.slots:  # the owner sees this state and deletes the vhost
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
        """Return the slot of a row that is known by its id only. Cost: a look-up per owned slot."""
        key, table = key_of(parent), TABLE_OF[type(parent)]
        for slot, rows in self.slots.items():
            if rows.table.has(table, key):
                return slot
        for found, part in parts.items():  # its parent is in the same submission or in a waiting one
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

    # -- cluster-wide changes ------------------------------------------------------------------------------------------

    async def write_cluster(self, changes: Sequence[SlotChange]) -> int:
        """Write changes to slot 0, on this node or on its owner. Return the offset behind them.

        Raises: MetadataError: they were refused, or the outcome is unknown.
        """
        until = self._loop.time() + OWNER_TIMEOUT_S
        while True:
            rows = self.slots.get(0)
            try:
                return await (self._forward(changes) if rows is None else rows.write(changes))
            except NotOwner:
                left = until - self._loop.time()
                if left <= 0 or self._closed:
                    raise
                await self.state.wait_change(min(left, 1.0))  # slot 0 moves

    async def write_forwarded(self, changes: Sequence[SlotChange]) -> int:
        """Write changes of another node that takes this node for slot 0's owner. Return the offset behind them.

        Raises:
            MetadataError: they were refused, or the outcome is unknown.
            NotOwner: this node does not own slot 0.
        """
        rows = self.slots.get(0)
        if rows is None:
            raise NotOwner(f"cannot write the metadata: node {self.node} does not own slot 0")
        return await rows.write(changes)

    def _work(self) -> None:
        if self._working is None:
            self._working = self._loop.create_task(self._write_cluster_parts())

    async def _write_cluster_parts(self) -> None:
        """Write the waiting submissions in order, one at a time."""
        try:
            while self._cluster:
                waiting = self._cluster.popleft()
                error: BaseException | None = None
                try:
                    await self._write_and_see(waiting.changes)
                except MetadataError as failed:
                    error = failed
                except asyncio.CancelledError:
                    answer(waiting.done, WriteFailed("the node stops"))
                    raise
                except Exception as failed:
                    logger.exception("a cluster-wide change failed: a bug in amqpd, please report it")
                    error = WriteFailed(f"cannot write the metadata: {failed!r}")
                answer(waiting.done, error)
                self.state.report_again(waiting.changes)
        finally:
            self._working = None

    async def _write_and_see(self, changes: Sequence[Change]) -> None:
        """Write changes to slot 0 and wait until this node has read them. The caller answers its submitter, which
        applies them with the acting user, and calls `report_again`. Raises MetadataError.
        """
        self.state.unanswered.update(changes)
        try:
            offset = await self.write_cluster(changes)
            try:
                async with asyncio.timeout(SEEN_TIMEOUT_S):
                    await self.state.wait_applied(offset)
            except (TimeoutError, KafkaDisconnected) as error:
                raise WriteFailed(f"the metadata was written, but slot 0 cannot be read: {error}") from error
        finally:
            self.state.unanswered.difference_update(changes)

    # -- submissions to several slots ----------------------------------------------------------------------------------

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
            answer(done, error)
        except asyncio.CancelledError:
            answer(done, WriteFailed("the node stops"))
            raise
        except Exception as error:
            logger.exception("a change of the metadata failed: a bug in amqpd, please report it")
            answer(done, WriteFailed(f"cannot write the metadata: {error!r}"))
        else:
            answer(done, None)
        self.state.report_again(cluster)

    async def _end_vhost(self, row: VhostRow) -> None:
        """Delete the topic of a vhost without contents, then its row. Raises MetadataError."""
        slot = self.state.slot_of(row.name)
        rows = None if slot is None else self.slots.get(slot)
        if rows is not None and rows.placement is not None:
            await rows.placement.drop_vhost(row.id)
        await self._write_and_see([Delete(row)])
