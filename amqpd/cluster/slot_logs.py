"""Replicated logs of one slot: their appends go to Kafka at the end of a loop turn, their acks 50 ms later.

The owner of a slot has one `SlotLogs` over the slot's `KafkaProducer`. The producer has already taken over the
partitions of the slot's queues, the free partitions and partition n of `settled`. Calls in this order:

    read_acks(batches)      read `settled` n up to its barrier: the acks of earlier owners
    assign(log, place)      assign a queue's log to its partition. The log is ready at once if no live message must be
                            read; otherwise its first use reads it from Kafka (`QueueLog.open_soon`)
    drop_orphans(placed)    delete the acks of logs without a position
    read_all()              also read the unused logs, one after the other
    renew(held)             use a later epoch of the same producer id
    keep_alive(key)         hourly: a record to each partition, so that Kafka does not forget the writer
    give_up()               store everything, then tell the next owner that everything is stored
    close()

**Sequence numbers.** One `KafkaSequencer` per partition (`replica`) numbers all its records.

**Flow control.** Bytes that Kafka has not answered count as unsynced (`GroupCommit.unsynced_bytes`), so the same
bound pauses publishers as with a slow disk.

**Space in Kafka.** Records before a log's head are deleted now and then by DeleteRecords. Kafka deletes only at the
start of a partition. A log's *span* is its bytes in Kafka from its head to its end, acked or not; it is counted
from the appends, MARK_BYTES exact. A large span with few live bytes means that one old message is not acked: a
warning says so once.

**Reading back** (`LogRefill`). The live messages of a log are read from Kafka by `read_all` after the takeover, or
earlier at the log's first use. FILLS_AT_ONCE logs are read at a time, in parts of FILL_SIZE between which other
work runs. If Kafka does not answer, the read is repeated until the slot is given up. If the log cannot be read, the
callers are notified, and the next call continues at the same place.

**Waiting for acks** (`AckWaits`). A transaction sends tx.commit-ok after Kafka has stored its acks. Acks are
written in passes; a pass covers all logs that had changed when it began. A caller that asked before a pass is
answered when Kafka has stored `settled` up to the end of that pass.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Container, Iterable, Mapping
from typing import Final, NamedTuple

from amqpd.cluster.replicated_acks import (
    NOT_DELIVERED,
    AckRecordWriter,
    ReplicatedAckReader,
    ReplicatedAcks,
    owner_record,
)
from amqpd.cluster.replicated_log import ReplicatedLog
from amqpd.kafka.connection import KafkaDisconnected
from amqpd.kafka.consumer import LoopSlice
from amqpd.kafka.keyed_records import KeyedRecord, keyed_batch, read_keyed
from amqpd.kafka.partition import WINDOW, Partition
from amqpd.kafka.producer import KafkaProducer, KafkaRefused, ignore
from amqpd.kafka.requests import ProducerId
from amqpd.storage.acks.ack_set import DELIVERED
from amqpd.storage.group_commit import GroupCommit
from amqpd.storage.log.appender import KafkaSequencer
from amqpd.storage.log.batch import BatchHeader, ClosedBatch
from amqpd.storage.queue_log import QueueLog

logger = logging.getLogger(__name__)

DeleteRecords = Callable[[str, Mapping[int, int]], Awaitable[object]]
"""`TopicAdmin.delete_records`: (topic, partition -> offset) deletes what is before the offset."""

MARK_BYTES: Final = 1 << 20
FREE_BYTES: Final = 4 << 20
"""Bytes that are deleted at once. An empty log deletes less."""
REST_BYTES: Final = 64 * 1024
"""Fewer bytes are not deleted, even if the log is empty."""
WIDE_BYTES: Final = 1 << 30
LIVE_SHARE: Final = 100
"""A warning is logged if a span is larger than WIDE_BYTES and less than 1/LIVE_SHARE of it is live."""


class LogSpan:
    """Bytes of one log in Kafka, by offset."""

    def __init__(self) -> None:
        self.freed_offset = 0
        self.is_warned = False
        self._total = 0
        self._marks: deque[tuple[int, int]] = deque()  # (first offset of a batch, bytes before it)
        self._freed = 0

    def add(self, base_offset: int, size: int) -> None:
        marks = self._marks
        if not marks or self._total - marks[-1][1] >= MARK_BYTES:
            marks.append((base_offset, self._total))
        self._total += size

    def add_batches(self, batches: Iterable[ClosedBatch]) -> None:
        for batch in batches:
            self.add(int(batch.base_offset), int(batch.size))

    def _before(self, offset: int) -> int:
        marks = self._marks
        while len(marks) > 1 and marks[1][0] <= offset:
            marks.popleft()
        return marks[0][1] if marks and marks[0][0] <= offset else self._freed

    def size_bytes(self, head: int, end: int) -> int:
        """Return the bytes from `head` on. The head never decreases."""
        return 0 if head >= end else self._total - self._before(head)

    def is_deletion_due(self, head: int, end: int) -> bool:
        """Return whether enough bytes before the head can be deleted."""
        gone = (self._total if head >= end else self._before(head)) - self._freed
        return head > self.freed_offset and (gone >= FREE_BYTES or (head >= end and gone >= REST_BYTES))

    def mark_deleted(self, head: int, end: int) -> None:
        """Record that Kafka deleted everything before the head."""
        self.freed_offset = head
        self._freed = self._total if head >= end else self._before(head)


class RecordTruncation:
    """Spans of one slot's logs, and the deletion of records in Kafka that no queue needs."""

    def __init__(self) -> None:
        self.spans: dict[ReplicatedLog, LogSpan] = {}

    def span(self, log: ReplicatedLog) -> LogSpan:
        """Return the span of the log; a new one if nothing was appended."""
        found = self.spans.get(log)
        if found is None:
            found = self.spans[log] = LogSpan()
        return found

    def remove(self, log: ReplicatedLog) -> None:
        self.spans.pop(log, None)

    def deletable(self) -> dict[str, dict[int, tuple[ReplicatedLog, int]]]:
        """Update the spans of all logs and return what can be deleted. Cost: 1 us per log.

        Returns: topic -> partition -> (log, offset before which everything can be deleted).
        """
        due: dict[str, dict[int, tuple[ReplicatedLog, int]]] = {}
        for log, span in self.spans.items():
            partition = log.partition
            if partition is None or log.failed or log.deleted or not log.ready:
                continue
            head, end = int(log.ack_writer.head), int(log.next_offset)
            size = span.size_bytes(head, end)
            log.span_bytes = size
            if size > WIDE_BYTES and log.size_bytes * LIVE_SHARE < size and not span.is_warned:
                span.is_warned = True
                logger.warning(
                    "queue '%s': Kafka keeps %d MiB for %d messages of %d bytes, because the oldest one is not acked",
                    log.name,
                    size >> 20,
                    log.record_count,
                    log.size_bytes,
                )
            elif size <= WIDE_BYTES // 2:
                span.is_warned = False
            if span.is_deletion_due(head, end):
                due.setdefault(partition.topic.decode(), {})[int(partition.number)] = (log, head)
        return due

    async def delete_unneeded(self, delete_records: DeleteRecords) -> int:
        """Delete what no queue needs. Return the number of logs.

        Raises the errors of `delete_records`.
        """
        count = 0
        for topic, partitions in self.deletable().items():
            await delete_records(topic, {number: head for number, (_, head) in partitions.items()})
            for log, head in partitions.values():
                span = self.spans.get(log)
                if span is not None:
                    span.mark_deleted(head, int(log.next_offset))
            count += len(partitions)
        return count


Read = Callable[[str, int, int, int], AsyncIterator[bytes]]
"""`KafkaReader.read`: (topic, partition, first offset, end) -> batches."""

FILL_SIZE: Final = 128 * 1024
FILLS_AT_ONCE: Final = 4
RETRY_S: Final = 1.0


def ranges_to_read(log: ReplicatedLog) -> list[tuple[int, int]]:
    """Return the ranges of the log that must be read, without the barrier, which is the last record of earlier
    owners.
    """
    return log.spans(log.end_offset - 1)


def _length(log: ReplicatedLog) -> int:
    return sum(end - first for first, end in ranges_to_read(log))


class _RefillTask:
    """Reading of one log.

    Attributes:
        spans: the ranges that are left.
        waiting: callbacks of callers.
        task: None after a failure.
    """

    def __init__(self, spans: list[tuple[int, int]]) -> None:
        self.spans = spans
        self.waiting: list[Callable[[], None]] = []
        self.task: asyncio.Task[None] | None = None


class LogRefill:
    """Reader of the logs of one slot, from Kafka into their caches. Loop thread only; call `close` at the end."""

    def __init__(self, read: Read, fronts: RecordTruncation) -> None:
        self._read = read
        self._fronts = fronts
        self._filling: dict[ReplicatedLog, _RefillTask] = {}
        self._reads = asyncio.Semaphore(FILLS_AT_ONCE)
        self._reading_all: asyncio.Task[None] | None = None

    def read_all(self, logs: Iterable[ReplicatedLog]) -> None:
        """Read all logs that are not in use, one after the other, the shortest first."""
        left = [log for log in logs if not log.ready and not log.deleted]
        if left and self._reading_all is None:
            left.sort(key=_length)
            self._reading_all = asyncio.get_running_loop().create_task(self._read_all(left))

    async def _read_all(self, logs: list[ReplicatedLog]) -> None:
        for log in logs:
            if log.ready or log.deleted or log in self._filling:
                continue
            read = asyncio.Event()
            self.open(log, read.set)
            await read.wait()
        self._reading_all = None

    def open(self, log: ReplicatedLog, done: Callable[[], None]) -> bool:
        """See `QueueLog.open_soon`. The log is not ready."""
        filling = self._filling.get(log)
        if filling is None:
            filling = self._filling[log] = _RefillTask(ranges_to_read(log))
        if filling.task is None:
            filling.task = asyncio.get_running_loop().create_task(self._fill(log, filling))
        filling.waiting.append(done)
        return False

    async def _fill(self, log: ReplicatedLog, filling: _RefillTask) -> None:
        try:
            async with self._reads:
                while filling.spans and not log.deleted:
                    try:
                        await self._fill_span(log, filling)
                    except KafkaDisconnected as error:
                        logger.warning("queue '%s' is still being read from Kafka: %s", log.name, error)
                        await asyncio.sleep(RETRY_S)
                if not log.deleted:
                    log.filled()
                del self._filling[log]
        except (OSError, KafkaRefused) as error:
            logger.error("queue '%s' cannot be read from Kafka: %s", log.name, error)
        except Exception:
            logger.exception("queue '%s' cannot be read from Kafka", log.name)
        filling.task = None
        waiting, filling.waiting = filling.waiting, []
        for done in waiting:
            done()

    async def _fill_span(self, log: ReplicatedLog, filling: _RefillTask) -> None:
        partition = log.partition
        assert partition is not None  # set by `open`
        first, end = filling.spans[0]
        part: list[bytes] = []
        size = 0
        async for batch in self._read(partition.topic.decode(), int(partition.number), first, end):
            part.append(batch)
            size += len(batch)
            if size >= FILL_SIZE:
                self._fill_part(log, filling, part)
                part, size = [], 0
                await asyncio.sleep(0)
                if log.deleted:
                    return
        if part:
            self._fill_part(log, filling, part)
        filling.spans.pop(0)

    def _fill_part(self, log: ReplicatedLog, filling: _RefillTask, batches: list[bytes]) -> None:
        log.fill(batches)
        span = self._fronts.span(log)
        for batch in batches:
            span.add(int(BatchHeader(batch, 0).base_offset), len(batch))
        filling.spans[0] = (int(BatchHeader(batches[-1], 0).last_offset) + 1, filling.spans[0][1])

    async def close(self) -> None:
        """Stop reading. Callers are notified and find the log not ready."""
        tasks = [each.task for each in self._filling.values() if each.task is not None]
        if self._reading_all is not None:
            tasks.append(self._reading_all)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        loop = asyncio.get_running_loop()
        for filling in self._filling.values():
            for done in filling.waiting:
                loop.call_soon(done)
        self._filling.clear()


class AckWaiter(NamedTuple):
    """A caller that waits until the acks of a log are stored."""

    log: ReplicatedLog
    done: Callable[[bool], None]


class AckWaits:
    """Callers that wait until acks of this slot are stored in Kafka.

    Attributes:
        covered: callers that the present pass covers.
    """

    def __init__(self) -> None:
        self._asking: list[AckWaiter] = []
        self.covered: list[AckWaiter] = []
        self._sent: deque[tuple[int, Callable[[bool], None]]] = deque()

    @property
    def wants_pass(self) -> bool:
        """Return whether a caller waits that the present pass does not cover."""
        return bool(self._asking)

    def add(self, log: ReplicatedLog, done: Callable[[bool], None]) -> None:
        self._asking.append(AckWaiter(log, done))

    def begin_pass(self) -> None:
        """Start a pass: it covers all callers so far."""
        self.covered += self._asking
        self._asking = []

    def end_pass(self, end: int) -> None:
        """End a pass; its records are below the offset `end` of `settled`.

        An ack of a message that Kafka does not have yet is written later (`ReplicatedLog.set_high_watermark`), so
        its caller waits for a later pass.
        """
        covered, self.covered = self.covered, []
        for each in covered:
            log = each.log
            if log.failed or log.deleted:
                each.done(bool(log.deleted))
            elif log.ack_writer.has_waiting:
                self._asking.append(each)
            else:
                self._sent.append((end, each.done))

    def on_stored(self, high_watermark: int) -> None:
        """Answer the callers whose acks are below the high watermark of `settled`."""
        while self._sent and self._sent[0][0] <= high_watermark:
            self._sent.popleft()[1](True)

    def fail_all(self) -> None:
        waiting = [each.done for each in (*self._asking, *self.covered)] + [done for _, done in self._sent]
        self._asking, self.covered = [], []
        self._sent.clear()
        for done in waiting:
            done(False)


REFUSED_RETRY_MS: Final = 10_000  # pause before a batch that Kafka refused is sent again
TELL_DELAY_S: Final = 0.01
TELL_PAUSE_S: Final = 0.05
"""Minimum interval between two passes. After an idle time the first acks are written after TELL_DELAY_S."""
_BATCH_SIZE_MAX: Final = 512 * 1024
_BATCH_COUNT_MAX: Final = 4096


class LogPosition(NamedTuple):
    """Place of a durable queue's log in Kafka.

    Attributes:
        first_offset: the log's first offset; earlier records of the partition belong to other queues.
    """

    topic: str
    number: int
    first_offset: int


class SlotLogs:
    """The logs of one slot. Loop thread only.

    Args:
        producer: its callbacks are set here.
        held: producer id and epoch of the takeover.
        settled: the slot's partition of `settled`.
        read: reads batches back from Kafka.
        on_failed: called when a log accepts nothing more, or could not be written (`LoopTurn.log_failed`).
        on_room: called when fewer bytes are unsynced (`LoopTurn.resume_paused`).
        on_fenced: called with the reason when nothing is sent any more. All publishes that are not in Kafka have
        been nacked; the caller must give up the slot.

    Attributes:
        written: logs with closed batches. A log enters itself in this list and the next, in each at most once.
        changed: logs with new acks.
    """

    def __init__(
        self,
        producer: KafkaProducer,
        held: ProducerId,
        settled: Partition,
        commits: GroupCommit,
        read: Read,
        *,
        on_room: Callable[[], None],
        on_failed: Callable[[QueueLog], None] = ignore,
        on_fenced: Callable[[str], None] = ignore,
        transaction_bytes_max: int = 8 << 20,
    ) -> None:
        self.producer = producer
        self.held = held
        self.settled = settled
        self.logs: dict[Partition, ReplicatedLog] = {}
        self.written: list[ReplicatedLog] = []
        self.changed: list[ReplicatedLog] = []
        self._meta: Partition | None = None
        self._on_meta_stored: Callable[[], None] = lambda: None
        self.on_failed = on_failed
        self.on_accepted: Callable[[QueueLog], None] = ignore
        self.on_room = on_room
        self.on_fenced = on_fenced
        self._commits = commits
        self._loop = asyncio.get_running_loop()
        self._transaction_bytes_max = transaction_bytes_max
        self._kafka_acks = ReplicatedAckReader()
        self._replicas: dict[Partition, KafkaSequencer] = {}
        self._places: dict[tuple[str, int], Partition] = {}
        self.truncation = RecordTruncation()
        self._reading = LogRefill(read, self.truncation)
        self._changing: set[Partition] = set()  # with unanswered batches of an earlier epoch
        self._held_back: set[ReplicatedLog] = set()  # with batches of the new epoch that must wait
        self._late: dict[Partition, list[ClosedBatch]] = {}  # such batches of queues that were deleted meanwhile
        self._lost_logs: set[ReplicatedLog] = set()  # a client deleted their topic
        # state of the present pass
        self._pass_logs: deque[ReplicatedLog] = deque()
        self._records: list[KeyedRecord] = []
        self._pass_timer: asyncio.Handle | None = None
        self._pass_began_s = 0.0
        self._waits = AckWaits()
        self.ended = ""
        producer.on_moved = self.moved
        producer.on_refused = self.refused
        producer.on_fenced = self.fenced

    # -- takeover

    def watch_meta(self, meta: Partition, on_stored: Callable[[], None]) -> None:
        """Call `on_stored` when Kafka stored more of the slot's `meta`. If Kafka refuses it, the slot ends."""
        self._meta = meta
        self._on_meta_stored = on_stored

    async def read_acks(self, batches: AsyncIterable[bytes]) -> None:
        """Read the acks of the slot's queues from the topic `settled`, up to its barrier.

        Raises:
            BadSettlement, BadRecord: a record is damaged.
            and the errors of `KafkaReader.read`.
        """
        slices = LoopSlice()
        async for batch in batches:
            self._kafka_acks.read(read_keyed(batch))
            if slices.is_over:
                await slices.yield_loop()

    @property
    def is_clean_takeover(self) -> bool:
        """Return whether the previous owner gave up the slot and stored everything, with no other owner in between."""
        acks, held = self._kafka_acks, self.held
        return bool(acks.clean_producer_id == held.producer_id and acks.clean_epoch + 1 == held.epoch)

    def assign(self, log: ReplicatedLog, place: LogPosition) -> None:
        """Assign a log to its partition.

        If the partition is closed because its topic is gone, the log is empty and accepts nothing. Its acks in
        Kafka are not changed.

        Raises: KeyError: the producer does not have the partition.
        """
        partition = self.partition(place)
        acks = self._kafka_acks.logs.pop(log.ack_writer.log_id, None) or ReplicatedAcks()
        end = int(partition.next_offset)
        if partition.closed:
            log.open(partition, self.replica(partition), ReplicatedAcks(), end, end, end)
            log.ack_writer = AckRecordWriter(log.ack_writer.log_id, acks)
            self.logs[partition] = log
            self._lost_logs.add(log)
            log.filled()
            log.reject_writes(partition.text)
            logger.error("queue '%s' accepts and delivers nothing: topic %s: %s", log.name, place.topic, partition.text)
            return
        partition.retry_ms = REFUSED_RETRY_MS
        seen_end = int(acks.delivered_mark) + 1 if self.is_clean_takeover else end
        log.open(partition, self.replica(partition), acks, place.first_offset, end, seen_end)
        self.logs[partition] = log
        if not ranges_to_read(log):
            log.seen_end = 0 if acks.delivered_mark == NOT_DELIVERED else min(seen_end, int(acks.delivered_mark) + 1)
            log.filled()

    def partition(self, place: LogPosition) -> Partition:
        """Return the producer's partition of a position. Raises KeyError: the producer does not have it."""
        found = self._places.get((place.topic, place.number))
        if found is None or found.closed:  # its dedicated topic may have been deleted and created again
            known = self.producer.partitions  # without those of deleted topics
            self._places = {(each.topic.decode(), int(each.number)): each for each in known}
            self._replicas = {each: self._replicas[each] for each in known if each in self._replicas}
            found = self._places[place.topic, place.number]
        return found

    def replica(self, partition: Partition) -> KafkaSequencer:
        """Return the sequencer of the partition. The barrier had the first sequence number."""
        found = self._replicas.get(partition)
        if found is None:
            held = self.held
            found = KafkaSequencer(held.producer_id, held.epoch, 1, self._transaction_bytes_max)
            self._replicas[partition] = found
        return found

    def drop_orphans(self, placed: Container[str]) -> int:
        """Delete the acks of logs without a position, whose queues are deleted. Return their number.

        Args:
            placed: ids of all placed queues, whether `assign` was called or not.
        """
        acks = self._kafka_acks.logs
        orphans = [log_id for log_id in acks if log_id.hex() not in placed]
        for log_id in orphans:
            self._records += AckRecordWriter(log_id, acks.pop(log_id)).tombstones()
        if self._records:
            self._schedule_pass(TELL_DELAY_S)
        return len(orphans)

    # -- publishing

    def schedule_send(self) -> None:
        """Send the batches of `written` at the end of this turn. Called when the list gets its first log."""
        self._loop.call_soon(self.send_batches)

    def send_batches(self) -> None:
        """Send the closed batches to Kafka. Cost: 1 us per log, and the requests."""
        written = self.written
        if not written:
            return
        self.written = []
        for log in written:
            if log.partition in self._changing:
                self._held_back.add(log)
            else:
                self._offer(log)
        self.producer.flush()

    def _offer(self, log: ReplicatedLog) -> None:
        batches = log.take_batches()
        partition = log.partition
        if partition is not None and not self.ended:
            self.truncation.span(log).add_batches(batches)
            self.producer.offer(partition, batches)
            self._count(log, partition)

    def _count(self, log: ReplicatedLog, partition: Partition) -> None:
        """Count the unanswered bytes of the log as unsynced."""
        more = int(partition.unsafe_bytes - log.unsafe_bytes)
        log.unsafe_bytes = partition.unsafe_bytes
        commits = self._commits
        commits.unsynced_bytes += more

    def moved(self, partition: Partition) -> None:
        """Handle an answer: Kafka stored more of the partition."""
        if partition is self.settled:
            self._waits.on_stored(int(partition.high_watermark))
        if self._changing and partition in self._changing and not partition.order:
            self._changing.discard(partition)
            late = self._late.pop(partition, None)
            if late is not None:
                self.producer.offer(partition, late)
            held_back = self.logs.get(partition)
            if held_back is not None and held_back in self._held_back:
                self._held_back.discard(held_back)
                self._offer(held_back)  # the producer got an answer and flushes after this call
        log = self.logs.get(partition)
        if log is None:
            if partition is self._meta:
                self._on_meta_stored()
            return
        self._count(log, partition)
        if log.refused and not partition.closed and not partition.refused:
            log.accept_writes()
            self.on_accepted(log)
        log.set_high_watermark(partition.high_watermark)
        self.on_room()

    def refused(self, partition: Partition) -> None:
        """Handle a refused batch: the log accepts nothing until Kafka accepts it again. Other logs continue."""
        log = self.logs.get(partition)
        if log is not None:
            self._end_log(log, partition.text)
            self.on_room()
        elif partition is self.settled:
            self.fenced(f"Kafka refuses acks: {partition.text}")
        elif partition is self._meta:
            self.fenced(f"Kafka refuses the slot's metadata: {partition.text}")

    def fenced(self, text: str) -> None:
        """End all logs: what is not in Kafka is nacked."""
        if self.ended:
            return
        self.ended = text
        for log in list(self.logs.values()):
            self._end_log(log, text)
        self._waits.fail_all()
        self.on_room()
        self.on_fenced(text)

    def _end_log(self, log: ReplicatedLog, text: str) -> None:
        if log.unsafe_bytes:
            self._commits.unsynced_bytes -= int(log.unsafe_bytes)
            log.unsafe_bytes = 0
        log.reject_writes(text)
        self.on_failed(log)

    # -- acks

    def schedule_ack_pass(self) -> None:
        """Write the acks of `changed` within 50 ms. Called when the list gets its first log."""
        self._schedule_pass(max(TELL_DELAY_S, self._pass_began_s + TELL_PAUSE_S - self._loop.time()))

    def _schedule_pass(self, delay_s: float) -> None:
        if self._pass_timer is None and not self.ended:
            self._pass_timer = self._loop.call_later(delay_s, self._run_pass)

    def _run_pass(self) -> None:
        """Write a slice of the changed acks to Kafka."""
        self._pass_timer = None
        if self.ended:
            return
        if not self._pass_logs:
            if len(self.settled.order) >= WINDOW or self.settled in self._changing:
                # acks that arrive meanwhile go into one pass
                self._schedule_pass(TELL_PAUSE_S)
                return
            self._pass_began_s = self._loop.time()
            self._pass_logs.extend(self.changed)
            self.changed.clear()
            self._waits.begin_pass()
        slices = LoopSlice()
        while self._pass_logs and not slices.is_over:
            self._records += self._records_of(self._pass_logs.popleft())
        self._write_records()
        if self._waits.covered and not self._pass_logs and not self._records:
            self._waits.end_pass(int(self.settled.next_offset))
            self._waits.on_stored(int(self.settled.high_watermark))
        if self._pass_logs and self._pass_timer is None:
            self._pass_timer = self._loop.call_soon(self._run_pass)
        elif self.changed or self._waits.wants_pass:
            self._schedule_pass(TELL_PAUSE_S)

    def when_settled(self, log: ReplicatedLog, done: Callable[[bool], None]) -> None:
        """See `QueueLog.when_acks_safe`. A transaction need not wait for the next pass.

        A pass starts at the end of this turn if fewer than WINDOW batches of `settled` are unanswered.
        """
        if self.ended:
            done(False)
            return
        self._waits.add(log, done)
        if self._pass_timer is not None:
            self._pass_timer.cancel()
        self._pass_timer = self._loop.call_soon(self._run_pass)

    def _records_of(self, log: ReplicatedLog) -> list[KeyedRecord]:
        """Return the records of a log; none for a lost one, because its topic may return."""
        records = log.take_ack_records()
        return [] if log in self._lost_logs else records

    def _unread_records(self, log: ReplicatedLog) -> list[KeyedRecord]:
        """Return records for a log that was not read back: earlier owners may have delivered its messages.

        The next owner would otherwise believe the delivery mark in Kafka, because this owner gives up cleanly.
        """
        writer = log.ack_writer
        writer.note(DELIVERED, int(log.seen_end) - 1, 0, 0)
        return writer.take_records(writer.head, int(log.end_offset), 0, 0)

    def _write_records(self) -> None:
        if not self._records:
            return
        if self.settled in self._changing:
            self._schedule_pass(TELL_PAUSE_S)
            return
        records, self._records = self._records, []
        part: list[KeyedRecord] = []
        size = 0
        for record in records:
            part.append(record)
            size += record.size()
            if size >= _BATCH_SIZE_MAX or len(part) >= _BATCH_COUNT_MAX:
                self.write(self.settled, part)
                part = []
                size = 0
        if part:
            self.write(self.settled, part)
        self.producer.flush()

    def write(self, partition: Partition, records: list[KeyedRecord]) -> None:
        """Add one batch of keyed records behind the earlier ones; `producer.flush` sends it."""
        replica = self.replica(partition)
        base, now = partition.next_offset, int(time.time() * 1000)
        sequence = replica.reserve_sequences(len(records))
        batch = keyed_batch(records, base, now, replica.producer_id, replica.epoch, sequence)
        self.producer.offer(partition, [batch])

    def may_write(self, partition: Partition) -> bool:
        """Return False while batches of an earlier epoch are unanswered; a new batch must wait for them."""
        return partition not in self._changing

    # -- reading back

    def read_all(self) -> None:
        """Read the live messages of all logs, also of those that no client uses yet."""
        self._reading.read_all(list(self.logs.values()))

    def open_log(self, log: ReplicatedLog, done: Callable[[], None]) -> bool:
        """See `QueueLog.open_soon`. Raises OSError."""
        if self.ended:
            raise OSError(f"queue '{log.name}': {self.ended}")
        return self._reading.open(log, done)

    # -- deletion and end

    def retire(self, log: ReplicatedLog) -> None:
        """Remove the log of a deleted queue and delete its acks in Kafka."""
        partition = log.partition
        if partition is not None and self.logs.get(partition) is log:
            self._held_back.discard(log)
            if partition.refused:
                partition.close(partition.refused, partition.text)  # otherwise the next queue in it would wait
            # Its batches are sent anyway: the partition's next record continues their sequence numbers.
            if partition in self._changing:
                self._late.setdefault(partition, []).extend(log.take_batches())
            else:
                self._offer(log)
                self.producer.flush()
            self.truncation.remove(log)
            del self.logs[partition]
            log.confirm_waiting()
            if log.unsafe_bytes:
                self._commits.unsynced_bytes -= int(log.unsafe_bytes)
                log.unsafe_bytes = 0
        if not self.ended:
            self._records += log.ack_writer.tombstones()
            self._schedule_pass(TELL_DELAY_S)

    def keep_alive(self, key: bytes) -> None:
        """Write a record to each partition that has no unanswered batch.

        Args:
            key: the record's key, which is the slot's transactional id.
        """
        marker = [KeyedRecord(key, None)]
        for partition in self.producer.partitions:
            if partition.closed or partition.order or partition in self._changing or partition.next_offset < 0:
                continue
            log = self.logs.get(partition)
            if log is None:
                self.write(partition, marker)
            elif not log.failed:
                if log.ready:
                    log.flush_batches()
                    self._offer(log)
                self.write(partition, marker)
                log.skip(1)
        self.producer.flush()

    def renew(self, held: ProducerId) -> None:
        """Use a later epoch of the same producer id for new batches.

        A partition with unanswered batches of the old epoch sends new ones after their answers.
        """
        self.held = held
        for partition in self.producer.partitions:
            self.replica(partition)  # partitions that come later have a barrier with this epoch
        for partition, replica in self._replicas.items():
            log = self.logs.get(partition)
            if log is not None and log.ready and not log.failed:
                log.flush_batches()
                self._offer(log)
            replica.epoch = held.epoch
            replica.sequence = 0
            if partition.order:
                self._changing.add(partition)
        self.producer.flush()

    async def give_up(self) -> None:
        """Store everything in Kafka, then a record that says so. No publish, delivery or ack may follow.

        Raises: KafkaRefused: Kafka did not store it. Then the next owner treats all live messages as delivered.
        """
        for log in list(self.logs.values()):
            if log.ready and not log.failed and not log.deleted:
                log.write()
        self.send_batches()
        # Kafka refuses writes to some partitions; the others are stored.
        await self.producer.wait_stored([each for each in self.logs if not each.closed and not each.refused])
        slices = LoopSlice()
        for log in list(self.logs.values()):
            log.collect_acks()
            self._records += self._records_of(log) if log.ready else self._unread_records(log)
            if slices.is_over:
                await slices.yield_loop()
        self.changed.clear()
        self._pass_logs.clear()
        while self._records:
            await self.producer.wait_stored([self.settled])  # also waits for batches of an earlier epoch
            self._write_records()
        await self.producer.wait_stored([self.settled])
        self.write(self.settled, [owner_record(self.held.producer_id, self.held.epoch)])
        self.producer.flush()
        await self.producer.wait_stored([self.settled])

    async def close(self) -> None:
        """Stop reading and writing; the logs accept nothing more."""
        self.ended = self.ended or "the slot was given up"
        if self._pass_timer is not None:
            self._pass_timer.cancel()
        await self._reading.close()
        for log in self.logs.values():
            log.keeper = None
            if not log.failed:
                self._end_log(log, self.ended)
        self._waits.fail_all()
        self.logs.clear()
