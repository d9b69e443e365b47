"""Changes of groups by operators: new committed offsets, and deletion. Both need a group without members.

As with Kafka's own tool, an offset outside the log becomes the first or the next offset, and a time after the last
record becomes the next offset. A group that does not exist is made by its first offset.

The coroutines run in tasks of the HTTP API.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from amqpd.broker.queue.log_opener import opened
from amqpd.errors import NotFound, PreconditionFailed, ResourceError
from amqpd.kafka_server.committed_offsets import CommittedOffset, OffsetKey
from amqpd.kafka_server.group_listing import GroupListing, partitions_of, summary_of
from amqpd.kafka_server.list_offsets import SCAN_BATCHES_MAX
from amqpd.kafka_server.messages import NAME_MAX
from amqpd.kafka_server.topics import partition_queue

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue
    from amqpd.broker.vhost.vhost import VHost
    from amqpd.kafka_server.coordinator import GroupCoordinator, GroupEntry
    from amqpd.kafka_server.fetch import WaitingFetches
    from amqpd.storage.queue_log import QueueLog


class OffsetChange(NamedTuple):
    """A committed offset before and after a reset. `before` is None if there was none."""

    topic: str
    partition: int
    before: int | None
    after: int


class GroupOperations:
    """Operations of operators on groups.

    Attributes:
        listing: the groups, for reading.
    """

    def __init__(self, coordinator: GroupCoordinator, fetches: WaitingFetches) -> None:
        self.listing = GroupListing(coordinator)
        self._coordinator = coordinator
        self._fetches = fetches

    async def reset(
        self, vhost: VHost, name: str, topic: str, partition: int | None, kind: str, value: int, dry_run: bool
    ) -> list[OffsetChange]:
        """Commit other offsets for the partitions of a topic, or only compute them.

        Args:
            partition: None for all.
            kind: `earliest`, `latest`, `offset`, `time` (value: ms since 1970) or `shift` (value: may be negative).

        Returns: the changes, synced.
        Raises: NotFound; PreconditionFailed: members, a bad name, or no offset to shift; ResourceError; OSError.
        """
        self._check_loaded()
        if not 0 < len(name) <= NAME_MAX:
            raise PreconditionFailed(f"the name of a group has 1 to {NAME_MAX} characters")
        self._check_unused(vhost, name, self._coordinator.find(vhost, name))
        changes: list[OffsetChange] = []
        queues: list[Queue] = []
        for index in partitions_of(vhost, topic) if partition is None else [partition]:
            queue = partition_queue(vhost, topic, index)
            if queue is None:
                break
            committed = self._coordinator.committed(vhost, OffsetKey(vhost.id, name, topic, index))
            before = None if committed is None else committed.offset
            changes.append(OffsetChange(topic, index, before, await self._offset(queue, before, kind, value)))
            queues.append(queue)
        if not changes:
            raise NotFound(f"no topic '{topic}' with such a partition in vhost '{vhost.name}'")
        if not dry_run:
            await self._commit(vhost, name, changes, queues)
        return changes

    async def delete(self, vhost: VHost, name: str) -> None:
        """Delete a group and its offsets. Raises: NotFound; PreconditionFailed: it has members; ResourceError."""
        self._check_loaded()
        entry = self._coordinator.find(vhost, name)
        if entry is None:
            raise NotFound(f"no Kafka group '{name}' in vhost '{vhost.name}'")
        self._check_unused(vhost, name, entry)
        await self._written(partial(self._coordinator.delete, entry))

    # -- checks

    def _check_loaded(self) -> None:
        if self.listing.load_error():
            raise ResourceError("the committed offsets of Kafka's groups are not read yet")

    def _check_unused(self, vhost: VHost, name: str, entry: GroupEntry | None) -> None:
        if self._coordinator.is_deleting(vhost, name):
            raise PreconditionFailed(f"Kafka group '{name}' is being deleted")
        if entry is not None and not entry.group.is_unused:
            state = summary_of(entry).state
            raise PreconditionFailed(f"Kafka group '{name}' is in use (state {state}): stop its members first")

    # -- reset

    async def _offset(self, queue: Queue, before: int | None, kind: str, value: int) -> int:
        """Return the new offset. Raises: as `reset`."""
        store = queue.store
        if not await opened(queue) or store is None:
            raise ResourceError(f"the log of stream '{queue.name}' cannot be opened")
        first, end = int(store.log_start()), int(store.high_watermark)
        if kind == "earliest":
            return first
        if kind == "latest":
            return end
        if kind == "time":
            return await self._first_offset_at(store, value)
        if kind == "shift" and before is None:
            raise PreconditionFailed(f"the group has no offset of topic '{queue.name}' that could be shifted")
        wanted = value if before is None or kind == "offset" else before + value
        return min(max(wanted, first), end)

    async def _first_offset_at(self, store: QueueLog, time_ms: int) -> int:
        """Return the offset of the first record of this time or later, in slices. Raises: NotFound, OSError."""
        waiter = _DiskWaiter()
        cursor = store.new_cursor()
        self._fetches.wait(store, waiter)
        try:
            position = max(int(store.offset_before(time_ms)), int(store.log_start()))
            while not store.deleted and not waiter.is_cancelled:
                waiter.event.clear()
                found = cursor.find_time_below_hw(position, time_ms, SCAN_BATCHES_MAX, waiter.event.set)
                if found.next_offset < 0:
                    return int(found.offset if found.offset >= 0 else store.high_watermark)
                position = int(found.next_offset)
                if found.waiting:
                    await waiter.event.wait()
                else:
                    await asyncio.sleep(0)
            raise NotFound(f"stream '{store.name}' was deleted")
        finally:
            self._fetches.end_wait(store, waiter)
            cursor.close()

    async def _commit(self, vhost: VHost, name: str, changes: Sequence[OffsetChange], queues: Sequence[Queue]) -> None:
        """Commit as a consumer without a group would.

        Members may have joined, and streams may have been deleted, while logs were opened.
        """
        coordinator = self._coordinator
        self._check_unused(vhost, name, coordinator.find(vhost, name))
        written: list[tuple[OffsetKey, CommittedOffset | None]] = []
        for each, queue in zip(changes, queues, strict=True):
            if queue.deleted:
                raise NotFound(f"topic '{each.topic}' was deleted")
            value = CommittedOffset(each.after, -1, "", coordinator.broker.timers.wall_ms(), bytes.fromhex(queue.id))
            written.append((OffsetKey(vhost.id, name, each.topic, each.partition), value))
        size_bytes = sum(value.size_bytes for _, value in written if value is not None)
        size_bytes += coordinator.offsets.group_bytes(vhost.id, name)
        if not coordinator.offsets.has_room(vhost.id, size_bytes):
            raise PreconditionFailed(f"vhost '{vhost.name}' has no room for more groups or committed offsets")
        entry = coordinator.find_or_add(vhost, name)
        entry.group.idle_since_ms = coordinator.now_ms()
        try:
            await self._written(partial(coordinator.offsets.change, written))
        finally:
            coordinator.changed(entry)

    async def _written(self, write: Callable[[Callable[[bool], None]], None]) -> None:
        """Write and sync. Raises: ResourceError."""
        written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def done(safe: bool) -> None:
            if not written.done():
                written.set_result(safe)

        write(done)
        if not await written:
            raise ResourceError("the offsets of Kafka's groups cannot be written; the broker's log has the reason")


class _DiskWaiter:
    """Wakes a search when the disk has answered, the stream was deleted or the broker stops."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.is_cancelled = False

    def on_log_moved(self, store: QueueLog) -> None:
        if store.deleted:
            self.event.set()

    def cancel(self) -> None:
        self.is_cancelled = True
        self.event.set()
