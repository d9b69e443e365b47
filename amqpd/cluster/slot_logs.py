"""The replicated logs of one slot: what they append goes to Kafka at the end of each turn, what they settle 50 ms
later.

Who owns a slot has one `SlotLogs` for it, over the slot's `KafkaProducer`, whose partitions were taken over: those of
its vhosts' queues, free ones too, and `settled` n. In order:

    take_back(batches)      of `settled` n up to its barrier: what the owners before have told
    begin(log, place)       a queue's log, whose partition the producer has; it can be used at once where nothing live
                            is left to be read, else it is read from Kafka at its first use (`QueueLog.open_soon`)
    read_all()              reads those too that nobody uses, one after the other
    drop_orphans(placed)    what is told of logs without a place ends
    renew(held)             the same producer id has a later epoch from here on
    keep_alive()            hourly: a record to each partition, so that Kafka does not forget who writes it
    give_up()               nothing comes any more: all is stored, and the next owner is told that it was
    close()

Numbers: a partition's records are numbered by one `KafkaSequencer` (`replica`), whoever writes them.

What waits for Kafka's answers counts as unsynced (`GroupCommit.unsynced_bytes`), so publishers are held by the same
bound as for a slow disk.

Space in Kafka: what stands before a log's head is freed, now and then, by DeleteRecords, which frees from the front
only.

How much a log has in Kafka (its *span*, from its head to its end, settled or not) is counted by what was appended, to
MARK_BYTES exact. A span that is large and holds little that is live is one message that nobody settles, with all that
came behind it: told once in the broker's log.

What is live of a queue's log comes back from Kafka: at its first use by a new owner, or one log after the other
behind a takeover (`read_all`), whichever comes first; nobody but who asked waits.

Of those that are asked for some are read at once, each in parts of FILL_SIZE between which the loop has its turn. What
Kafka does not answer is asked for again until the slot is given up; where the log cannot be read, who asked is told,
and the next who asks goes on where it stopped.

Who waits until what a log has settled is in Kafka: transactions, before their tx.commit-ok.

A slot's settlements are told in passes (`logs.py`), each over all logs that had changed when it began. Who has asked
before that is heard by the pass, and answered when Kafka has what `settled` has at the pass's end.
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
from amqpd.cluster.replicated_log import ReplicaKeeper, ReplicatedLog
from amqpd.kafka.connection import KafkaDisconnected
from amqpd.kafka.keyed_records import KeyedRecord, keyed_batch, read_keyed
from amqpd.kafka.partition import WINDOW, Partition
from amqpd.kafka.producer import KafkaProducer, KafkaRefused
from amqpd.kafka.requests import ProducerId
from amqpd.storage.acks.ack_set import DELIVERED
from amqpd.storage.group_commit import GroupCommit
from amqpd.storage.log.appender import KafkaSequencer
from amqpd.storage.log.batch import BatchHeader, ClosedBatch
from amqpd.storage.queue_log import QueueLog

logger = logging.getLogger(__name__)

DeleteRecords = Callable[[str, Mapping[int, int]], Awaitable[object]]
"""(topic, partition -> offset): what stands before it goes: `TopicAdmin.delete_records`."""

MARK_BYTES: Final = 1 << 20
FREE_BYTES: Final = 4 << 20
"""So much is freed at once, or all there is where nothing live is left."""
REST_BYTES: Final = 64 * 1024
"""Less than that stays, also of an empty log."""
WIDE_BYTES: Final = 1 << 30
LIVE_SHARE: Final = 100
"""A span of over WIDE_BYTES of which less than one in LIVE_SHARE bytes is live."""


class LogSpan:
    """Bytes of one log in Kafka, by offset."""

    def __init__(self) -> None:
        self.freed_offset = 0
        self.told = False
        self._total = 0
        self._marks: deque[tuple[int, int]] = deque()  # (first offset of a batch, bytes before it)
        self._freed = 0

    def add(self, base_offset: int, size: int) -> None:
        """A batch has come behind the others."""
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
        """From the head on, which is never less than it was."""
        return 0 if head >= end else self._total - self._before(head)

    def due(self, head: int, end: int) -> bool:
        """Whether there is enough before the head to be freed."""
        gone = (self._total if head >= end else self._before(head)) - self._freed
        return head > self.freed_offset and (gone >= FREE_BYTES or (head >= end and gone >= REST_BYTES))

    def free(self, head: int, end: int) -> None:
        """It is freed."""
        self.freed_offset = head
        self._freed = self._total if head >= end else self._before(head)


class RecordTruncation:
    """Of the logs of one slot."""

    def __init__(self) -> None:
        self.spans: dict[ReplicatedLog, LogSpan] = {}

    def span(self, log: ReplicatedLog) -> LogSpan:
        """Its span, empty where nothing has come yet."""
        found = self.spans.get(log)
        if found is None:
            found = self.spans[log] = LogSpan()
        return found

    def forget(self, log: ReplicatedLog) -> None:
        """It is not of this slot any more."""
        self.spans.pop(log, None)

    def look(self) -> dict[str, dict[int, tuple[ReplicatedLog, int]]]:
        """What is to be freed: topic -> partition -> (log, before which offset). Cost: 1 us a log that was written
        to.
        """
        due: dict[str, dict[int, tuple[ReplicatedLog, int]]] = {}
        for log, span in self.spans.items():
            partition = log.partition
            if partition is None or log.failed or log.deleted or not log.ready:
                continue
            head, end = int(log.settlements.head), int(log.next_offset)
            size = span.size_bytes(head, end)
            log.span_bytes = size
            if size > WIDE_BYTES and log.size_bytes * LIVE_SHARE < size and not span.told:
                span.told = True
                logger.warning(
                    "queue '%s': Kafka keeps %d MiB for %d messages of %d bytes, since the oldest is not settled",
                    log.name,
                    size >> 20,
                    log.record_count,
                    log.size_bytes,
                )
            elif size <= WIDE_BYTES // 2:
                span.told = False
            if span.due(head, end):
                due.setdefault(partition.topic.decode(), {})[int(partition.number)] = (log, head)
        return due

    async def free(self, delete_records: DeleteRecords) -> int:
        """Has Kafka free what may go. Returns how many logs that concerned. Raises: what `delete_records` does."""
        count = 0
        for topic, partitions in self.look().items():
            await delete_records(topic, {number: head for number, (_, head) in partitions.items()})
            for log, head in partitions.values():
                span = self.spans.get(log)
                if span is not None:
                    span.free(head, int(log.next_offset))
            count += len(partitions)
        return count


Read = Callable[[str, int, int, int], AsyncIterator[bytes]]
"""(topic, partition, first offset, behind the last) -> its batches: `KafkaReader.read`."""

FILL_SIZE: Final = 128 * 1024
FILLS_AT_ONCE: Final = 4
RETRY_S: Final = 1.0


def left_of(log: ReplicatedLog) -> list[tuple[int, int]]:
    """What of it is to be read; the barrier, which is the last record of those before, is not."""
    return log.spans(log.end_offset - 1)


def _length(log: ReplicatedLog) -> int:
    return sum(end - first for first, end in left_of(log))


class _RefillTask:
    """A log that is read back. spans: what is left of it. task: None where it has stopped."""

    def __init__(self, spans: list[tuple[int, int]]) -> None:
        self.spans = spans
        self.waiting: list[Callable[[], None]] = []
        self.task: asyncio.Task[None] | None = None


class LogRefill:
    """Of the logs of one slot. Loop thread only; `close` it."""

    def __init__(self, read: Read, fronts: RecordTruncation) -> None:
        self._read = read
        self._fronts = fronts
        self._filling: dict[ReplicatedLog, _RefillTask] = {}
        self._turn = asyncio.Semaphore(FILLS_AT_ONCE)
        self._behind: asyncio.Task[None] | None = None

    def read_all(self, logs: Iterable[ReplicatedLog]) -> None:
        """Those that nobody has asked for are read one after the other, the shortest first."""
        left = [log for log in logs if not log.ready and not log.deleted]
        if left and self._behind is None:
            left.sort(key=_length)
            self._behind = asyncio.get_running_loop().create_task(self._read_all(left))

    async def _read_all(self, logs: list[ReplicatedLog]) -> None:
        for log in logs:
            if log.ready or log.deleted or log in self._filling:
                continue
            read = asyncio.Event()
            self.open(log, read.set)
            await read.wait()
        self._behind = None

    def open(self, log: ReplicatedLog, done: Callable[[], None]) -> bool:
        """See `QueueLog.open_soon`, of one that is not ready."""
        filling = self._filling.get(log)
        if filling is None:
            filling = self._filling[log] = _RefillTask(left_of(log))
        if filling.task is None:
            filling.task = asyncio.get_running_loop().create_task(self._fill(log, filling))
        filling.waiting.append(done)
        return False

    async def _fill(self, log: ReplicatedLog, filling: _RefillTask) -> None:
        try:
            async with self._turn:
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
        assert partition is not None  # it was opened
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
        """Nothing of it goes on. Who waits is told, and finds it as it is: not read."""
        tasks = [each.task for each in self._filling.values() if each.task is not None]
        if self._behind is not None:
            tasks.append(self._behind)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        loop = asyncio.get_running_loop()
        for filling in self._filling.values():
            for done in filling.waiting:
                loop.call_soon(done)
        self._filling.clear()


class AckWaiter(NamedTuple):
    """Who asked, and of which log."""

    log: ReplicatedLog
    done: Callable[[bool], None]


class AckWaits:
    """Of one slot. heard: by the pass that goes on."""

    def __init__(self) -> None:
        self._asking: list[AckWaiter] = []
        self.heard: list[AckWaiter] = []
        self._sent: deque[tuple[int, Callable[[bool], None]]] = deque()

    def ask(self, log: ReplicatedLog, done: Callable[[bool], None]) -> None:
        self._asking.append(AckWaiter(log, done))

    def begin(self) -> None:
        """A pass begins."""
        self.heard += self._asking
        self._asking = []

    def told(self, end: int) -> None:
        """The pass is over, all of it is below `end` of `settled`. What was settled before Kafka had its message is
        told when Kafka has it (`ReplicatedLog.moved`): in a later pass.
        """
        heard, self.heard = self.heard, []
        for each in heard:
            log = each.log
            if log.failed or log.deleted:
                each.done(bool(log.deleted))
            elif log.settlements.behind:
                self._asking.append(each)
            else:
                self._sent.append((end, each.done))

    def moved(self, high_watermark: int) -> None:
        """Kafka has `settled` up to there."""
        while self._sent and self._sent[0][0] <= high_watermark:
            self._sent.popleft()[1](True)

    def refuse(self) -> None:
        """Nothing is told any more."""
        waiting = [each.done for each in (*self._asking, *self.heard)] + [done for _, done in self._sent]
        self._asking, self.heard = [], []
        self._sent.clear()
        for done in waiting:
            done(False)


REFUSED_RETRY_MS: Final = 10_000  # before what Kafka has refused of a queue is sent again
TELL_DELAY_S: Final = 0.01
TELL_PAUSE_S: Final = 0.05
"""Between two times that settlements go to Kafka; what is settled while nothing was goes after TELL_DELAY_S."""
SLICE_S: Final = 0.004
_BATCH_SIZE_MAX: Final = 512 * 1024
_BATCH_COUNT_MAX: Final = 4096


class LogPosition(NamedTuple):
    """Where a durable queue's log is. first_offset: its first; what the partition has below is of another queue."""

    topic: str
    number: int
    first_offset: int


class SlotLogs(ReplicaKeeper):
    """See above. Loop thread only.

    producer: its `on_moved`, `on_refused` and `on_fenced` are this one's from here on. held: producer id and epoch that
    its partitions were taken over by. settled: the slot's partition of `settled`. read: for what is read back.
    on_failed: a log takes nothing more, or could not be written (`LoopTurn.log_failed`). on_accepted: a log that Kafka
    had refused takes more. on_room: fewer bytes are unsynced (`LoopTurn.room`). on_fenced: nothing is sent any more,
    with the
    reason: the slot is to be given up; every publish that was not safe has been refused.
    """

    def __init__(
        self,
        producer: KafkaProducer,
        held: ProducerId,
        settled: Partition,
        commits: GroupCommit,
        read: Read,
        *,
        on_failed: Callable[[QueueLog], None],
        on_room: Callable[[], None],
        on_fenced: Callable[[str], None],
        on_accepted: Callable[[QueueLog], None] = lambda _: None,
        transaction_bytes_max: int = 8 << 20,
    ) -> None:
        super().__init__()
        self.producer = producer
        self.held = held
        self.settled = settled
        self.logs: dict[Partition, ReplicatedLog] = {}
        self.watched: dict[Partition, Callable[[], None]] = {}
        """Of others in this slot (its `meta`): called when Kafka has more of it. One that is refused ends the slot."""
        self.unsafe_bytes = 0
        self.on_failed = on_failed
        self.on_accepted = on_accepted
        self.on_room = on_room
        self.on_fenced = on_fenced
        self._commits = commits
        self._loop = asyncio.get_running_loop()
        self._transaction_bytes_max = transaction_bytes_max
        self._told = ReplicatedAckReader()
        self._replicas: dict[Partition, KafkaSequencer] = {}
        self._places: dict[tuple[str, int], Partition] = {}
        self.fronts = RecordTruncation()
        self._reading = LogRefill(read, self.fronts)
        self._changing: set[Partition] = set()  # they have batches of an earlier epoch on the way
        self._held_back: set[ReplicatedLog] = set()  # with batches of the later one
        self._late: dict[Partition, list[ClosedBatch]] = {}  # such batches of queues that were deleted meanwhile
        self._lost: set[ReplicatedLog] = set()  # whose topic somebody has deleted
        # telling
        self._telling: deque[ReplicatedLog] = deque()
        self._records: list[KeyedRecord] = []
        self._tell_timer: asyncio.Handle | None = None
        self._told_s = 0.0
        self._waits = AckWaits()
        self.ended = ""
        producer.on_moved = self.moved
        producer.on_refused = self.refused
        producer.on_fenced = self.fenced

    # -- taking over

    async def take_back(self, batches: AsyncIterable[bytes]) -> None:
        """What `settled` has, up to the barrier. Raises: BadSettlement, BadRecord, and what reading does."""
        until = time.perf_counter() + SLICE_S
        async for batch in batches:
            self._told.read(read_keyed(batch))
            if time.perf_counter() >= until:
                await asyncio.sleep(0)
                until = time.perf_counter() + SLICE_S

    @property
    def taken_cleanly(self) -> bool:
        """Whether the owner before has given all up, and none was between."""
        told, held = self._told, self.held
        return bool(told.clean_producer_id == held.producer_id and told.clean_epoch + 1 == held.epoch)

    def begin(self, log: ReplicatedLog, place: LogPosition) -> None:
        """The log is the one at that place. Raises: KeyError where the producer does not have its partition.

        One whose partition is closed, for it is gone, is empty and takes nothing; what is told of it stays as it is.
        """
        partition = self.partition(place)
        told = self._told.logs.pop(log.settlements.log_id, None) or ReplicatedAcks()
        end = int(partition.next_offset)
        if partition.closed:
            log.open(partition, self.replica(partition), ReplicatedAcks(), end, end, end)
            log.settlements = AckRecordWriter(log.settlements.log_id, told)
            self.logs[partition] = log
            self._lost.add(log)
            log.filled()
            log.refuse(partition.text)
            logger.error("queue '%s' takes and gives nothing: topic %s: %s", log.name, place.topic, partition.text)
            return
        partition.retry_ms = REFUSED_RETRY_MS
        seen_end = int(told.delivered_mark) + 1 if self.taken_cleanly else end
        log.open(partition, self.replica(partition), told, place.first_offset, end, seen_end)
        self.logs[partition] = log
        if not left_of(log):
            log.seen_end = 0 if told.delivered_mark == NOT_DELIVERED else min(seen_end, int(told.delivered_mark) + 1)
            log.filled()

    def partition(self, place: LogPosition) -> Partition:
        """The producer's partition of that place. Raises: KeyError."""
        found = self._places.get((place.topic, place.number))
        if found is None or found.closed:  # a topic of its own may have gone, and another one of its name have come
            for each in self.producer.partitions:
                self._places[each.topic.decode(), int(each.number)] = each
            found = self._places[place.topic, place.number]
        return found

    def replica(self, partition: Partition) -> KafkaSequencer:
        """How its records are numbered. The barrier was the first."""
        found = self._replicas.get(partition)
        if found is None:
            held = self.held
            found = KafkaSequencer(held.producer_id, held.epoch, 1, self._transaction_bytes_max)
            self._replicas[partition] = found
        return found

    def drop_orphans(self, placed: Container[str]) -> int:
        """What is told of logs that have no place any more ends: their queues are deleted. Returns how many they were.

        placed: ids of queues that have one, whether they have begun or not.
        """
        told = self._told.logs
        orphans = [log_id for log_id in told if log_id.hex() not in placed]
        for log_id in orphans:
            self._records += AckRecordWriter(log_id, told.pop(log_id)).forget()
        if self._records:
            self._arm(TELL_DELAY_S)
        return len(orphans)

    # -- what is appended

    def wake(self) -> None:
        self._loop.call_soon(self.send)

    def send(self) -> None:
        """What the logs have closed goes to Kafka. Cost: 1 us a log, and that of the requests."""
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
        batches = log.take()
        partition = log.partition
        if partition is not None and not self.ended:
            self.fronts.span(log).add_batches(batches)
            self.producer.offer(partition, batches)
            self._count(log, partition)

    def _count(self, log: ReplicatedLog, partition: Partition) -> None:
        """What it has unsafe counts as unsynced."""
        more = int(partition.unsafe_bytes - log.unsafe_bytes)
        log.unsafe_bytes = partition.unsafe_bytes
        self.unsafe_bytes += more
        commits = self._commits
        commits.unsynced_bytes += more

    def moved(self, partition: Partition) -> None:
        """Kafka has more of it."""
        if partition is self.settled:
            self._waits.moved(int(partition.high_watermark))
        if self._changing and partition in self._changing and not partition.order:
            self._changing.discard(partition)
            late = self._late.pop(partition, None)
            if late is not None:
                self.producer.offer(partition, late)
            held_back = self.logs.get(partition)
            if held_back is not None and held_back in self._held_back:
                self._held_back.discard(held_back)
                self._offer(held_back)  # the producer, which has had an answer, sends it
        log = self.logs.get(partition)
        if log is None:
            watch = self.watched.get(partition)
            if watch is not None:
                watch()
            return
        self._count(log, partition)
        if log.refused and not partition.closed and not partition.refused:
            log.accept()
            self.on_accepted(log)
        log.moved(partition.high_watermark)
        self.on_room()

    def refused(self, partition: Partition) -> None:
        """Kafka does not take a batch of it: that log alone takes nothing, for ever or until it does."""
        log = self.logs.get(partition)
        if log is not None:
            self._end(log, partition.text)
            self.on_room()
        elif partition is self.settled:
            self.fenced(f"settlements are refused: {partition.text}")
        elif partition in self.watched:
            self.fenced(f"the metadata is refused: {partition.text}")

    def fenced(self, text: str) -> None:
        """All ends: what is not safe never will be."""
        if self.ended:
            return
        self.ended = text
        for log in list(self.logs.values()):
            self._end(log, text)
        self._waits.refuse()
        self.on_room()
        self.on_fenced(text)

    def _end(self, log: ReplicatedLog, text: str) -> None:
        if log.unsafe_bytes:
            self.unsafe_bytes -= int(log.unsafe_bytes)
            self._commits.unsynced_bytes -= int(log.unsafe_bytes)
            log.unsafe_bytes = 0
        log.refuse(text)
        self.on_failed(log)

    # -- what is settled

    def tell_soon(self) -> None:
        self._arm(max(TELL_DELAY_S, self._told_s + TELL_PAUSE_S - self._loop.time()))

    def _arm(self, delay_s: float) -> None:
        if self._tell_timer is None and not self.ended:
            self._tell_timer = self._loop.call_later(delay_s, self._tell)

    def _tell(self) -> None:
        """A slice of what has changed goes to Kafka."""
        self._tell_timer = None
        if self.ended:
            return
        if not self._telling:
            if len(self.settled.order) >= WINDOW or self.settled in self._changing:
                # What comes meanwhile goes together.
                self._arm(TELL_PAUSE_S)
                return
            self._told_s = self._loop.time()
            self._telling.extend(self.changed)
            self.changed.clear()
            self._waits.begin()
        until = time.perf_counter() + SLICE_S
        while self._telling:
            log = self._telling.popleft()
            self._records += self._told_by(log)
            if time.perf_counter() >= until:
                break
        self._write_records()
        if self._waits.heard and not self._telling and not self._records:
            self._waits.told(int(self.settled.next_offset))
            self._waits.moved(int(self.settled.high_watermark))
        if self._telling and self._tell_timer is None:
            self._tell_timer = self._loop.call_soon(self._tell)
        elif self.changed:
            self._arm(TELL_PAUSE_S)

    def when_settled(self, log: ReplicatedLog, done: Callable[[bool], None]) -> None:
        """A transaction waits for no others: what there is is told at the end of this turn,
        as long as fewer than WINDOW batches of `settled` are on the way.
        """
        if self.ended:
            done(False)
            return
        self._waits.ask(log, done)
        if self._tell_timer is not None:
            self._tell_timer.cancel()
        self._tell_timer = self._loop.call_soon(self._tell)

    def _told_by(self, log: ReplicatedLog) -> list[KeyedRecord]:
        """Nothing of one that is lost: its topic may be back one day."""
        records = log.tell()
        return [] if log in self._lost else records

    def _unread(self, log: ReplicatedLog) -> list[KeyedRecord]:
        """Of one that was not read back yet: what those before may have delivered, where they were not given up. Else
        the next owner would go by what they had told, since this one is.
        """
        settlements = log.settlements
        settlements.note(DELIVERED, int(log.seen_end) - 1, 0, 0)
        return settlements.tell(settlements.head, int(log.end_offset), 0, 0)

    def _write_records(self) -> None:
        if not self._records:
            return
        if self.settled in self._changing:
            self._arm(TELL_PAUSE_S)
            return
        records, self._records = self._records, []
        part: list[KeyedRecord] = []
        size = 0
        for record in records:
            part.append(record)
            size += int(record.size())
            if size >= _BATCH_SIZE_MAX or len(part) >= _BATCH_COUNT_MAX:
                self.write(self.settled, part)
                part = []
                size = 0
        if part:
            self.write(self.settled, part)
        self.producer.flush()

    def write(self, partition: Partition, records: list[KeyedRecord]) -> None:
        """One batch of keyed records behind what was offered; `producer.flush` sends it."""
        replica = self.replica(partition)
        base, now = partition.next_offset, int(time.time() * 1000)
        sequence = replica.number(len(records))
        batch = keyed_batch(records, base, now, replica.producer_id, replica.epoch, sequence)
        self.producer.offer(partition, [batch])

    def may_write(self, partition: Partition) -> bool:
        """False: batches of an epoch before are on the way to it, behind which the next one waits."""
        return partition not in self._changing

    # -- reading back

    def read_all(self) -> None:
        """All logs of the slot have begun: what of them is live is read, though nobody uses them yet."""
        self._reading.read_all(list(self.logs.values()))

    def open_log(self, log: ReplicatedLog, done: Callable[[], None]) -> bool:
        if self.ended:
            raise OSError(f"queue '{log.name}': {self.ended}")
        return self._reading.open(log, done)

    # -- its life

    def retire(self, log: ReplicatedLog) -> None:
        """Its queue is deleted: what is told of it ends."""
        partition = log.partition
        if partition is not None and self.logs.get(partition) is log:
            self._held_back.discard(log)
            if partition.refused:
                partition.close(partition.refused, partition.text)  # else whoever is to use it again waits for it
            # What it has goes all the same: it has numbers, which the partition's next record follows.
            if partition in self._changing:
                self._late.setdefault(partition, []).extend(log.take())
            else:
                self._offer(log)
                self.producer.flush()
            self.fronts.forget(log)
            del self.logs[partition]
            log.end_waiting()
            if log.unsafe_bytes:
                self.unsafe_bytes -= int(log.unsafe_bytes)
                self._commits.unsynced_bytes -= int(log.unsafe_bytes)
                log.unsafe_bytes = 0
        if not self.ended:
            self._records += log.settlements.forget()
            self._arm(TELL_DELAY_S)

    async def free_fronts(self, delete_records: DeleteRecords) -> int:
        """Has Kafka free what all owners to come know as settled; now and then. Returns of how many logs. Raises: as
        `delete_records`.
        """
        return await self.fronts.free(delete_records)

    def keep_alive(self, key: bytes) -> None:
        """A record to each partition that has none on the way. key: of it, the slot's transactional id."""
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
        """The same producer id with a later epoch: what is closed from here on has it. What of the one before is on the
        way is answered first, partition by partition.
        """
        self.held = held
        for partition in self.producer.partitions:
            self.replica(partition)  # those that come later have their barrier with this epoch
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
        """Nothing is published, delivered or settled any more: all there is goes to Kafka, and behind it that it did.

        Raises: KafkaRefused where it cannot; then the next owner takes what is not settled for delivered.
        """
        for log in list(self.logs.values()):
            if log.ready and not log.failed and not log.deleted:
                log.write()
        self.send()
        # Queues that Kafka takes nothing more of have ended by themselves; the others are given up all the same.
        await self.producer.stored([each for each in self.logs if not each.closed and not each.refused])
        until = time.perf_counter() + SLICE_S
        for log in list(self.logs.values()):
            log.note_all()
            self._records += self._told_by(log) if log.ready else self._unread(log)
            if time.perf_counter() >= until:
                await asyncio.sleep(0)
                until = time.perf_counter() + SLICE_S
        self.changed.clear()
        self._telling.clear()
        while self._records:
            await self.producer.stored([self.settled])  # also what is of an epoch before, if there is anything
            self._write_records()
        await self.producer.stored([self.settled])
        self.write(self.settled, [owner_record(self.held.producer_id, self.held.epoch)])
        self.producer.flush()
        await self.producer.stored([self.settled])

    async def close(self) -> None:
        """Nothing of it goes on. Its logs take nothing more."""
        self.ended = self.ended or "the slot was given up"
        if self._tell_timer is not None:
            self._tell_timer.cancel()
        await self._reading.close()
        for log in self.logs.values():
            log.keeper = None
            if not log.failed:
                self._end(log, self.ended)
        self._waits.refuse()
        self.logs.clear()
