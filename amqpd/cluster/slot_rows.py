"""Writer of a slot's rows to the slot's `meta`.

A submission is stored completely or not at all, because its requested records are in one batch. Submissions that
arrive while batches are unanswered share the next batch. They are stored and answered in order. A submission that
is larger than a batch is refused before anything is written. Only the tombstones of dependent rows may follow in
further batches (`row_table.py`).

The batch of a new durable queue also has its position (`placement.py`). If no partition is free, the submission
waits and later ones overtake it: they cannot depend on a queue that does not exist yet. The position of a deleted
queue is free after its deletion was stored.

The rows in memory are ahead of Kafka only by the unanswered batches. If one of them fails, the slot ends together
with its rows in memory, and the next owner reads the slot again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Final, NamedTuple

from amqpd.cluster.placement import QueuePlacement
from amqpd.cluster.row_codec import SlotChange, key_of
from amqpd.cluster.row_table import RowTable, Submission
from amqpd.cluster.slot_logs import SlotLogs
from amqpd.kafka.consumer import LoopSlice
from amqpd.kafka.keyed_records import KeyedRecord
from amqpd.kafka.partition import WINDOW, Partition
from amqpd.storage.log.batch import HEADER_SIZE
from amqpd.storage.metadata.rows import Put
from amqpd.storage.metadata.store import Done, MetadataError, WriteFailed

logger = logging.getLogger(__name__)

GROUP_BYTES: Final = 512 * 1024
"""Limit of the records that share a batch, if they belong to several submissions."""
GROUP_MAX: Final = 1000
"""Maximum number of submissions that share a batch."""


class _PendingSubmission(NamedTuple):
    """Changes that wait to be applied."""

    changes: Sequence[SlotChange]
    done: Done


class _AppliedSubmission(NamedTuple):
    """Applied changes that wait for their answer."""

    submission: Submission
    done: Done


class RowWriter:
    """Writer of the rows of one slot. Loop thread only. Call `on_stored` when Kafka stored more of the partition.

    Args:
        table: the rows that `meta` has.
        bytes_max: maximum size of a batch.
        prepare: completes the changes of a submission just before they are applied. Raises WriteFailed to refuse
        them.
        placement: gives positions to new queues; None if the slot gets no queues.
    """

    def __init__(
        self,
        table: RowTable,
        partition: Partition,
        writer: SlotLogs,
        bytes_max: int,
        placement: QueuePlacement | None = None,
        prepare: Callable[[Sequence[SlotChange]], Sequence[SlotChange]] | None = None,
    ) -> None:
        self.table = table
        self.partition = partition
        self.placement = placement
        self.ended = ""
        self._writer = writer
        self._bytes_max = bytes_max - int(HEADER_SIZE)
        self._prepare = prepare
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_PendingSubmission] = deque()
        # submissions that wait for partitions
        self._unplaced: deque[_PendingSubmission] = deque()
        # the submission that is being applied, in slices
        self._steps: Generator[None, None, Submission] | None = None
        # submissions that were applied but not written; then those that were written, with the offset behind them
        self._group: list[_AppliedSubmission] = []
        self._group_bytes = 0
        self._written: deque[tuple[int, list[_AppliedSubmission]]] = deque()
        self._is_pumping = False
        self._is_scheduled = False
        self._placing: asyncio.Task[None] | None = None
        if placement is not None:
            placement.dedicated_topics.write = self.write

    def expects(self, key: bytes) -> bool:
        """Return whether a waiting submission writes a row with this record key. Cost: a look at each waiting
        change.
        """
        return any(
            isinstance(change, Put) and key_of(change.row) == key
            for each in (*self._queue, *self._unplaced)
            for change in each.changes
        )

    def submit(self, changes: Sequence[SlotChange], done: Done) -> None:
        """Write changes. `done` is called with None when Kafka has stored them, or with the error.

        After WriteFailed it may be unknown whether Kafka stored them.

        Cost: about 20 us per change, in slices of the loop if there are many.
        """
        if self.ended:
            self._loop.call_soon(done, WriteFailed(self.ended))
            return
        self._queue.append(_PendingSubmission(changes, done))
        self._run()

    async def write(self, changes: Sequence[SlotChange]) -> int:
        """Write changes and return the offset behind them. Raises WriteFailed: see `submit`."""
        stored: asyncio.Future[int] = self._loop.create_future()

        def done(error: BaseException | None) -> None:
            if stored.done():
                return
            if error is None:
                stored.set_result(int(self.partition.high_watermark))
            else:
                stored.set_exception(error)

        self.submit(changes, done)
        return await stored

    def on_stored(self) -> None:
        """Answer the submissions that Kafka has stored, and continue with the waiting ones."""
        high_watermark = self.partition.high_watermark
        while self._written and self._written[0][0] <= high_watermark:
            for submission, done in self._written.popleft()[1]:
                if self.placement is not None:
                    self.placement.on_stored(submission)
                answer(done, None)
        self._run()

    def fail(self, text: str) -> None:
        """Refuse all waiting and later submissions: another node may own the slot. Unanswered batches may be
        stored.

        The answers are sent after the caller returns. The caller closes the clients' connections first, with 320.
        """
        if self.ended:
            return
        self.ended = text
        if self._steps is not None:
            self._steps.close()
            self._steps = None
        if self._placing is not None:
            self._placing.cancel()
        waiting = [each.done for _, group in self._written for each in group]
        waiting += [each.done for each in self._group]
        waiting += [each.done for each in (*self._unplaced, *self._queue)]
        self._written.clear()
        self._unplaced.clear()
        self._queue.clear()
        self._group = []
        for done in waiting:
            self._loop.call_soon(answer, done, WriteFailed(text))

    # -- from the queue to Kafka

    def _run(self) -> None:
        if not self._is_pumping and not self._is_scheduled:
            self._is_pumping = True
            try:
                if not self._pump():
                    self._is_scheduled = True
                    self._loop.call_soon(self._run_scheduled)
            finally:
                self._is_pumping = False

    def _run_scheduled(self) -> None:
        self._is_scheduled = False
        self._run()

    def _pump(self) -> bool:
        """Apply and write the waiting submissions. Return False to continue in the next loop turn."""
        slices = LoopSlice()
        while not self.ended:
            room = len(self.partition.order) < WINDOW and self._writer.may_write(self.partition)
            if self._steps is None and (not self._queue or not room or self._full()):
                break
            if self._steps is None:
                self._begin(self._queue[0])
            while self._steps is not None:
                if not self._step(self._queue[0]):
                    break
                if slices.is_over:
                    return False
        if not self.ended and self._group and self._writer.may_write(self.partition):
            self._write()
            return not self._queue  # the rest follows in the next loop turn
        return True

    def _full(self) -> bool:
        return self._group_bytes >= GROUP_BYTES or len(self._group) >= GROUP_MAX

    def _begin(self, waiting: _PendingSubmission) -> None:
        """Begin to apply the first submission, or answer it with an error, or let it wait for partitions."""
        try:
            changes = waiting.changes if self._prepare is None else self._prepare(waiting.changes)
            if self.placement is not None and not self.placement.has_room(changes):
                self._unplaced.append(self._queue.popleft())
                if self._placing is None:
                    self._placing = self._loop.create_task(self._make_room())
                return
        except MetadataError as error:
            self._queue.popleft()
            if self.placement is not None:
                self.placement.delete_unused_topics(waiting.changes)
            answer(waiting.done, error)
            return
        self._steps = self._applying(changes)

    def _applying(self, changes: Sequence[SlotChange]) -> Generator[None, None, Submission]:
        """Apply the changes with positions for new queues."""
        if self.placement is not None:
            changes = yield from self.placement.assign_positions(changes)
        return (yield from self.table.apply_in_steps(changes, self._bytes_max))

    async def _make_room(self) -> None:
        """Create partitions for the waiting queues. After a failure the first of them is refused."""
        assert self.placement is not None
        try:
            await self.placement.make_room([change for each in self._unplaced for change in each.changes])
        except MetadataError as error:
            self._no_place(error)
        except Exception as error:
            logger.exception("no partition for a queue: a bug in amqpd, please report it")
            self._no_place(WriteFailed(f"cannot write the metadata: {error!r}"))
        finally:
            self._placing = None
        # The new submissions go behind the one that is being applied.
        first = [self._queue.popleft()] if self._steps is not None else []
        self._queue = deque((*first, *self._unplaced, *self._queue))
        self._unplaced.clear()
        self._run()

    def _no_place(self, error: MetadataError) -> None:
        if self._unplaced:
            waiting = self._unplaced.popleft()
            if self.placement is not None:
                self.placement.delete_unused_topics(waiting.changes)
            answer(waiting.done, error)

    def _step(self, waiting: _PendingSubmission) -> bool:
        """Do one step of the first submission. Return False after its last step."""
        assert self._steps is not None
        try:
            next(self._steps)
        except StopIteration as end:
            self._steps = None
            self._queue.popleft()
            made: Submission = end.value
            if self._group and self._group_bytes + made.size > self._bytes_max:
                self._write()
            self._group.append(_AppliedSubmission(made, waiting.done))
            self._group_bytes += made.size
            if self._group_bytes > self._bytes_max:
                self._write()  # in several batches; the last contains no later submission
            return False
        except WriteFailed as error:
            self._steps = None
            self._queue.popleft()
            if self.placement is not None:
                self.placement.free_unwritten(waiting.changes)
            answer(waiting.done, error)
            return False
        return True

    def _write(self) -> None:
        """Send the applied submissions to Kafka. Cost: 0.5 us per record."""
        group, self._group, self._group_bytes = self._group, [], 0
        part, along = _merge_records([submission for submission, _ in group])
        size = sum(record.size() for record in part)
        for record in along:
            size += record.size()
            if size > self._bytes_max and part:
                self._writer.write(self.partition, part)
                part, size = [], record.size()
            part.append(record)
        if part:
            self._writer.write(self.partition, part)
        self._written.append((int(self.partition.next_offset), group))
        self._writer.producer.flush()
        if not part:  # answer submissions without records after the earlier ones
            self.on_stored()


def answer(done: Done, error: BaseException | None) -> None:
    """Call `done`. An exception is logged: it must not stop the other answers."""
    try:
        done(error)
    except Exception:
        logger.exception("metadata: a callback failed")


def _merge_records(group: list[Submission]) -> tuple[list[KeyedRecord], list[KeyedRecord]]:
    """Return the requested records and the tombstones of dependent rows. Of each key only the last record is left."""
    if len(group) == 1:
        return group[0].requested, group[0].dependent
    asked: dict[bytes, KeyedRecord] = {}
    along: dict[bytes, KeyedRecord] = {}
    for each in group:
        for record in each.requested:
            along.pop(record.key, None)
            asked[record.key] = record
        for record in each.dependent:
            (asked if record.key in asked else along)[record.key] = record
    return list(asked.values()), list(along.values())
