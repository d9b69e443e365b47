"""The rows of a slot that this node owns, on their way to the slot's `meta`.

    submit(changes, done)    done(None) once they are in Kafka, done(WriteFailed) when they are not, or it is not known
    fail(text)               the slot is not ours any more: all that waits is refused, and all that comes

A submission is stored whole or not at all: its records are in one batch. Those that come while batches are on the way
go together in the next one. They are stored, and answered, in the order in which they came.

What is larger than a batch may be is refused before anything of it is written. What only goes along with it (tombstones
of what was in a vhost, bindings of an exchange) may be larger: it comes in batches behind the first (row_table.py).

A new durable queue is given its place (placement.py) in the batch of its row. Where there is no free partition it waits
until there is one, and what is behind it goes on: it can have nothing to do with a queue that nobody knows yet. The
place of a deleted queue is free again once that is stored.

Nothing is applied that is not written, so memory here is ahead of Kafka by what is on the way, and no further. When
that fails the slot has ended, and memory with it: whoever takes the slot reads it anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Final, Protocol

from amqpd.cluster.placement import QueuePlacement
from amqpd.cluster.row_codec import SlotChange, key_of
from amqpd.cluster.row_table import RowTable, Submission
from amqpd.kafka.consumer import SLICE_S
from amqpd.kafka.keyed_records import KeyedRecord
from amqpd.kafka.partition import WINDOW, Partition
from amqpd.kafka.producer import KafkaProducer
from amqpd.storage.log.batch import HEADER_SIZE
from amqpd.storage.metadata.rows import Put
from amqpd.storage.metadata.store import Done, MetadataError, WriteFailed

logger = logging.getLogger(__name__)

GROUP_BYTES: Final = 512 * 1024
"""Of records that go together, though they were submitted by themselves."""
GROUP_MAX: Final = 1000
"""Submissions that go together."""


class RecordNumberer(Protocol):
    """Who numbers what goes to the slot's partitions (`SlotLogs`)."""

    @property
    def producer(self) -> KafkaProducer: ...

    def write(self, partition: Partition, records: list[KeyedRecord]) -> None:
        """One batch behind what was offered; `producer.flush` sends it."""

    def may_write(self, partition: Partition) -> bool:
        """False: batches of an epoch before are on the way, behind which the next one waits."""


class _PendingSubmission:
    """A submission. made, asked, along: what it comes to and its records, once it is applied."""

    __slots__ = ("along", "asked", "changes", "done", "made")

    def __init__(self, changes: Sequence[SlotChange], done: Done) -> None:
        self.changes = changes
        self.done = done
        self.made: Submission | None = None
        self.asked: list[KeyedRecord] = []
        self.along: list[KeyedRecord] = []


class RowWriter:
    """Of one slot. Loop thread only. `moved` is to be called when Kafka has more of `partition`.

    table: as `meta` has it. bytes_max: of a batch. prepare: makes the changes of a submission whole just before they
    are applied; raises WriteFailed for what may not be. placement: where new queues go; None: none come.
    """

    def __init__(
        self,
        table: RowTable,
        partition: Partition,
        writer: RecordNumberer,
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
        # Those that wait for partitions.
        self._placeless: deque[_PendingSubmission] = deque()
        # What is being applied, in slices.
        self._steps: Generator[None, None, Submission] | None = None
        # Applied, and not written yet; and written, with the offset behind them.
        self._group: list[_PendingSubmission] = []
        self._group_bytes = 0
        self._written: deque[tuple[int, list[_PendingSubmission]]] = deque()
        self._going = False
        self._soon = False
        self._placing: asyncio.Task[None] | None = None
        if placement is not None:
            placement.own.write = self.write

    @property
    def waiting_count(self) -> int:
        """Submissions that are not answered."""
        written = sum(len(group) for _, group in self._written)
        return len(self._queue) + len(self._placeless) + len(self._group) + written

    def expects(self, key: bytes) -> bool:
        """Whether a row of that record is in a submission that waits to be applied. Cost: a look at each change."""
        return any(
            isinstance(change, Put) and key_of(change.row) == key
            for each in (*self._queue, *self._placeless)
            for change in each.changes
        )

    def submit(self, changes: Sequence[SlotChange], done: Done) -> None:
        """See above. Cost: some 20 us a change, in slices of the loop where there are many."""
        if self.ended:
            self._loop.call_soon(done, WriteFailed(self.ended))
            return
        self._queue.append(_PendingSubmission(changes, done))
        self._go()

    async def write(self, changes: Sequence[SlotChange]) -> int:
        """The same for a task; returns the offset behind them. Raises: WriteFailed."""
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

    def moved(self) -> None:
        """Kafka has more of the partition."""
        high_watermark = self.partition.high_watermark
        while self._written and self._written[0][0] <= high_watermark:
            for each in self._written.popleft()[1]:
                self._stored(each)
        self._go()

    def fail(self, text: str) -> None:
        """It is not ours any more: nothing of it is written from here on; what is on the way may be stored. Who waits
        is told behind the caller, who closes clients' connections first: they hear that the vhost moves (320).
        """
        if self.ended:
            return
        self.ended = text
        if self._steps is not None:
            self._steps.close()
            self._steps = None
        if self._placing is not None:
            self._placing.cancel()
        waiting = [each for _, group in self._written for each in group] + self._group
        waiting += (*self._placeless, *self._queue)
        self._written.clear()
        self._placeless.clear()
        self._queue.clear()
        self._group = []
        for each in waiting:
            self._loop.call_soon(self._answer, each, WriteFailed(text))

    # -- from the queue to Kafka

    def _go(self) -> None:
        if not self._going and not self._soon:
            self._going = True
            try:
                if not self._pump():
                    self._soon = True
                    self._loop.call_soon(self._again)
            finally:
                self._going = False

    def _again(self) -> None:
        self._soon = False
        self._go()

    def _pump(self) -> bool:
        """Applies and writes what there is. False: the loop is to have its turn first."""
        until = time.perf_counter() + SLICE_S
        while not self.ended:
            room = len(self.partition.order) < WINDOW and self._writer.may_write(self.partition)
            if self._steps is None and (not self._queue or not room or self._full()):
                break
            if self._steps is None:
                self._begin(self._queue[0])
            while self._steps is not None:
                if not self._step(self._queue[0]):
                    break
                if time.perf_counter() >= until:
                    return False
        if not self.ended and self._group and self._writer.may_write(self.partition):
            self._write()
            return not self._queue  # what is left goes on in a turn of its own
        return True

    def _full(self) -> bool:
        return self._group_bytes >= GROUP_BYTES or len(self._group) >= GROUP_MAX

    def _begin(self, waiting: _PendingSubmission) -> None:
        """The first of the queue is about to be applied, or leaves it."""
        try:
            changes = waiting.changes if self._prepare is None else self._prepare(waiting.changes)
            if self.placement is not None and not self.placement.has_room(changes):
                self._placeless.append(self._queue.popleft())
                if self._placing is None:
                    self._placing = self._loop.create_task(self._make_room())
                return
        except MetadataError as error:
            self._queue.popleft()
            if self.placement is not None:
                self.placement.unwanted(waiting.changes)
            self._answer(waiting, error)
            return
        self._steps = self._applying(waiting, changes)

    def _applying(
        self, waiting: _PendingSubmission, changes: Sequence[SlotChange]
    ) -> Generator[None, None, Submission]:
        """As `RowTable.applying`, with places for new queues, and records that can be written."""
        if self.placement is not None:
            changes = yield from self.placement.placing(changes)
        made = yield from self.table.applying(changes, self._bytes_max)
        for records, found in ((waiting.asked, made.asked), (waiting.along, made.along)):
            for record in found:
                records.append(KeyedRecord(*record))
                yield
        return made

    async def _make_room(self) -> None:
        """As many partitions as those that wait need. Where that fails, the first of them is told."""
        assert self.placement is not None
        try:
            await self.placement.make_room([change for each in self._placeless for change in each.changes])
        except MetadataError as error:
            self._no_place(error)
        except Exception as error:
            logger.exception("no place for a queue: a bug of the broker")
            self._no_place(WriteFailed(f"cannot write the metadata: {error!r}"))
        finally:
            self._placing = None
        # Where one is being applied it is the first, and they come behind it.
        first = [self._queue.popleft()] if self._steps is not None else []
        self._queue = deque((*first, *self._placeless, *self._queue))
        self._placeless.clear()
        self._go()

    def _no_place(self, error: MetadataError) -> None:
        if self._placeless:
            waiting = self._placeless.popleft()
            if self.placement is not None:
                self.placement.unwanted(waiting.changes)
            self._answer(waiting, error)

    def _step(self, waiting: _PendingSubmission) -> bool:
        """One step of the submission that is being applied. False: it was the last."""
        assert self._steps is not None
        try:
            next(self._steps)
        except StopIteration as end:
            self._steps = None
            self._queue.popleft()
            made: Submission = end.value
            waiting.made = made
            if self._group and self._group_bytes + made.size > self._bytes_max:
                self._write()
            self._group.append(waiting)
            self._group_bytes += made.size
            if self._group_bytes > self._bytes_max:
                self._write()  # in several batches, of which none is to have what comes behind
            return False
        except WriteFailed as error:
            self._steps = None
            self._queue.popleft()
            if self.placement is not None:
                self.placement.take_back(waiting.changes)
            self._answer(waiting, error)
            return False
        return True

    def _write(self) -> None:
        """What was applied goes to Kafka. Cost: some 0.5 us a record."""
        group, self._group, self._group_bytes = self._group, [], 0
        part, along = _together(group)
        size = sum(int(record.size()) for record in part)
        for record in along:
            size += int(record.size())
            if size > self._bytes_max and part:
                self._writer.write(self.partition, part)
                part, size = [], int(record.size())
            part.append(record)
        if part:
            self._writer.write(self.partition, part)
        self._written.append((int(self.partition.next_offset), group))
        self._writer.producer.flush()
        if not part:  # nothing to write: it is answered behind what was before it
            self.moved()

    def _stored(self, waiting: _PendingSubmission) -> None:
        assert waiting.made is not None
        if self.placement is not None:
            self.placement.stored(waiting.made)
        self._answer(waiting, None)

    @staticmethod
    def _answer(waiting: _PendingSubmission, error: BaseException | None) -> None:
        try:
            waiting.done(error)
        except Exception:
            # One caller's bug must not cost the others their answer.
            logger.exception("metadata: a done callback failed")


def _together(group: list[_PendingSubmission]) -> tuple[list[KeyedRecord], list[KeyedRecord]]:
    """Their records, (asked for, going along): of each key the last one alone."""
    if len(group) == 1:
        return group[0].asked, group[0].along
    asked: dict[bytes, KeyedRecord] = {}
    along: dict[bytes, KeyedRecord] = {}
    for each in group:
        for record in each.asked:
            along.pop(record.key, None)
            asked[record.key] = record
        for record in each.along:
            (asked if record.key in asked else along)[record.key] = record
    return list(asked.values()), list(along.values())
