"""The log of a queue that Apache Kafka keeps: a partition there, and a cache of what is live of it on this disk.

The cache is a `LocalLog` that is never synced and gone at the next start. What is appended is closed as Kafka takes it
(log/appender.py) and listed with a `ReplicaKeeper` at the end of the turn, who sends it; the high watermark is the
partition's, and moves with Kafka's answers (`moved`). Consumers of a work queue wait for none of that; readers of a
stream see what is below the high watermark.

Offsets are the partition's. It has records that are no messages (a new owner's barrier, what is written hourly so that
Kafka does not forget the owner): they are gaps here, and count as settled.

What is settled, delivered and given back is noted (`settlements`), told to Kafka by the keeper a little later, and read
back by the next owner: `open`, then `fill` with the partition's batches, then `filled`. Until that it is not ready.

Compiled by mypyc.

A record batch that comes back from Kafka, for a cache of what is live of its log: what of it is settled, and whether
it holds messages at all.

A batch of ours has records with the header `properties`; of one that has none all is passed over: a barrier, what is
written hourly, or a batch that somebody else has written. So is one that we would never write (transactional, control),
and one that cannot be read.

Compiled by mypyc.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from amqpd.cluster.replicated_acks import AckRecordWriter, ReplicatedAcks
from amqpd.kafka.keyed_records import KeyedRecord, read_keyed
from amqpd.kafka.partition import Partition
from amqpd.storage.acks.ack_set import tally
from amqpd.storage.local_log import LocalLog, LogKeeper
from amqpd.storage.log.appender import KafkaSequencer
from amqpd.storage.log.batch import CONTROL, HEADER_SIZE, TRANSACTIONAL, BatchHeader, ClosedBatch, plain
from amqpd.storage.log.log import Log
from amqpd.storage.log.record import BadRecord, RecordRoute, read_offset_delta, read_record, record_stop, value_size
from amqpd.storage.loop_log import LogContext

logger = logging.getLogger(__name__)

_FOREIGN: Final[i64] = TRANSACTIONAL | CONTROL


@final
class BatchFilterResult:
    """What came of one. batch: None where nothing of it is live. runs: what of it is settled, both ends inclusive;
    settled_bytes: of the bodies in them. foreign_count: of its records, where somebody else has written it.
    """

    def __init__(self) -> None:
        self.batch: ClosedBatch | None = None
        self.runs: list[tuple[int, int]] = []
        self.settled_bytes: i64 = 0
        self.foreign_count: i64 = 0
        self.total_bytes: i64 = 0
        self.live_count: i64 = 0
        # The run that is open, where it begins; the first offset that nothing is known of.
        self._run: i64 = -1
        self._next_offset: i64 = 0

    def begin(self, offset: i64) -> None:
        """The batch's first."""
        self._next_offset = offset

    def record(self, offset: i64, settled: bool, size: i64) -> None:
        """The next one; offsets before it that no record has count as settled."""
        self.total_bytes += size
        if settled:
            self.settled_bytes += size
            if self._run < 0:
                self._run = self._next_offset
        else:
            self.live_count += 1
            if self._run < 0 and offset > self._next_offset:
                self._run = self._next_offset
            if self._run >= 0:
                self.runs.append((self._run, offset - 1))
                self._run = -1
        self._next_offset = offset + 1

    def end(self, last_offset: i64) -> None:
        """There are no more."""
        if self._run < 0 and self._next_offset <= last_offset:
            self._run = self._next_offset
        if self._run >= 0:
            self.runs.append((self._run, last_offset))


def filter_live_records(data: bytes, first_offset: i64, told: ReplicatedAcks, name: str) -> BatchFilterResult:
    """One batch, whole, its checksum right. first_offset: what is below is not of this log. name: of its queue, for
    what is logged. Cost: some 50 ns a record, and a copy of the batch.
    """
    filled = BatchFilterResult()
    header = BatchHeader(data, 0)
    if header.last_offset < first_offset:
        return filled
    if header.attributes & _FOREIGN != 0:
        filled.foreign_count = header.count
        return filled
    try:
        if not _records(data, header, first_offset, told, filled):
            filled.foreign_count = _foreign(data, header)
            return filled
    except BadRecord as error:
        logger.error("queue '%s': the batch at %d in Kafka cannot be read: %s", name, header.base_offset, error)
        filled.foreign_count = header.count
        return filled
    if filled.live_count > 0:
        filled.batch = ClosedBatch(
            data[:HEADER_SIZE],
            data[HEADER_SIZE:],
            header.base_offset,
            header.last_offset,
            header.max_timestamp_ms,
            filled.total_bytes,
            0,
            -1,
            [],
        )
    return filled


def _records(
    data: bytes, header: BatchHeader, first_offset: i64, told: ReplicatedAcks, filled: BatchFilterResult
) -> bool:
    """Whether they are messages of ours. Raises: BadRecord."""
    image, at, whole = plain(data, 0, header)
    end: i64 = at + whole.size
    position: i64 = at + HEADER_SIZE
    left: i64 = whole.count
    filled.begin(header.base_offset)
    while left > 0:
        start: i64 = 0
        stop: i64 = 0
        delta: i64 = 0
        fields: i64 = 0
        start, stop = record_stop(image, position, end)
        delta, fields = read_offset_delta(image, start)
        offset: i64 = whole.base_offset + delta
        if left == whole.count and not read_record(image, fields, stop, offset, 0, True).properties:
            return False
        settled: bool = offset < first_offset or told.settled(offset)
        filled.record(offset, settled, value_size(image, start, stop))
        position = stop
        left -= 1
    filled.end(header.last_offset)
    return True


def _foreign(data: bytes, header: BatchHeader) -> i64:
    """How many of its records are somebody else's: a barrier, and what is written hourly, is one record alone that has
    no value.
    """
    return 0 if header.count == 1 and read_keyed(data)[0].value is None else header.count


_NOTHING: Final[list[tuple[int, int]]] = []


@mypyc_attr(allow_interpreted_subclasses=True)
class ReplicaKeeper:
    """Who sends what these logs have closed, tells what they have settled, and opens them.

    written: logs with batches that nobody has taken since `wake`; changed: those with settlements since `tell_soon`.
    Each stands there once; whoever takes the list clears it.
    """

    def __init__(self) -> None:
        self.written: list[ReplicatedLog] = []
        self.changed: list[ReplicatedLog] = []

    def wake(self) -> None:
        """`written` has its first: they are to be sent when the turn ends."""
        raise NotImplementedError

    def tell_soon(self) -> None:
        """`changed` has its first: they are to be told within 50 ms."""
        raise NotImplementedError

    def open_log(self, log: ReplicatedLog, done: Callable[[], None]) -> bool:
        """See `QueueLog.open_soon`. Raises: OSError."""
        raise NotImplementedError

    def when_settled(self, log: ReplicatedLog, done: Callable[[bool], None]) -> None:
        """See `QueueLog.when_settled`; what the log has settled is noted."""
        raise NotImplementedError


@final
class ReplicatedLog(LocalLog):
    """The log of one queue in a partition of Kafka. Loop thread only.

    keeper: None once the slot is given up. partition: where it goes, once it was opened. unsafe_bytes: of what waits
    for an answer; span_bytes: what Kafka has from the head on; both as the keeper has counted. refused: why Kafka takes
    nothing more, "" while it does. listed: it stands in `ReplicaKeeper.written`.
    """

    def __init__(
        self,
        context: LogContext,
        log: Log,
        vhost_id: str,
        queue_id: str,
        name: str,
        storage: LogKeeper,
        keeper: ReplicaKeeper,
    ) -> None:
        super().__init__(context, log, vhost_id, queue_id, name, storage, False)
        self.local = False
        log.replicated = True
        self.keeper: ReplicaKeeper | None = keeper
        self.partition: Partition | None = None
        self.unsafe_bytes: i64 = 0
        self.span_bytes: i64 = 0
        self.refused: str = ""
        self.listed: bool = False
        self.first_offset: i64 = 0  # of what is read back
        self.end_offset: i64 = 0  # of what was written by those before: theirs ends there
        self.seen_end: i64 = 0  # below it all may have been delivered
        self._told: ReplicatedAcks = ReplicatedAcks()
        self.settlements: AckRecordWriter = AckRecordWriter(bytes.fromhex(queue_id), self._told)
        self.foreign_count: i64 = 0  # records of the partition that were no messages of ours
        self._in_transaction: bool = False

    # -- its life

    def open(
        self,
        partition: Partition,
        replica: KafkaSequencer,
        told: ReplicatedAcks,
        first_offset: i64,
        end_offset: i64,
        seen_end: i64,
    ) -> None:
        """Names what those before have left. Then `fill` and `filled`, in any number of turns.

        replica: how what it appends is numbered. told: what the topic has of it, this log's from here on. first_offset:
        its own first, whatever the partition has before that. end_offset: where what they wrote ends, and where its
        next append goes. seen_end: what is live below may have been delivered.
        """
        self.partition = partition
        self._told = told
        self.settlements = AckRecordWriter(self.settlements.log_id, told)
        self.first_offset = first_offset if told.head < first_offset else told.head
        self.end_offset = end_offset
        self.seen_end = seen_end
        self.appender.replica = replica
        self.transaction_bytes_max = replica.transaction_bytes_max
        self.log.end = end_offset
        self.next_offset = end_offset
        self.log.watermark.offset = end_offset

    def spans(self, end: i64) -> list[tuple[int, int]]:
        """What is to be read back below `end`, as (first, behind the last)."""
        return self._told.spans(self.first_offset, end)

    def fill(self, batches: list[bytes]) -> None:
        """Record batches as they stand in the partition, whole, in order, their checksums right. What of them is
        settled is; batches of which all is are left out. Cost: some 50 ns a record, and the write. Raises: OSError when
        the disk cannot take them.
        """
        kept: list[BatchFilterResult] = []
        segments = self.log.segments
        there: i64 = segments[len(segments) - 1].end if segments else 0
        for data in batches:
            if BatchHeader(data, 0).last_offset < there:
                continue  # it had come before the disk could take no more
            filled = filter_live_records(data, self.first_offset, self._told, self.name)
            self.foreign_count += filled.foreign_count
            if filled.batch is not None:
                kept.append(filled)
        if not kept:
            return
        log = self.log
        self.appender.fill([each.batch for each in kept if each.batch is not None])
        self.appender.write()
        for each in kept:
            batch = each.batch
            segment = log.segment_of(batch.base_offset) if batch is not None else None
            if segment is not None:
                set_ = segment.settled
                for first, last in each.runs:
                    set_.add(first, last)
                segment.settled_body_bytes += each.settled_bytes
        if self.write_failed or self.failed_ranges:
            self.write_failed = False
            self.failed_ranges = _NOTHING
            raise OSError(f"the cache of queue '{self.name}' could not be written: {log.error}")

    def filled(self) -> None:
        """All that is live is in the cache: the log can be used."""
        told = self._told
        returned: dict[int, int] = {}
        for offset, (count, due_ms) in told.returned.items():
            if offset >= self.first_offset and not told.settled(offset):
                returned[offset] = tally(count, due_ms)
        log = self.log
        log.end = max(log.end, self.end_offset)
        log.noted = self._noted
        self.recovered(told.delivered_mark, self.seen_end, returned, [])
        self.ready = True
        if log.start_offset() > told.head:
            self._changed()
        if self.foreign_count > 0:
            logger.warning("queue '%s': %d records in Kafka are not amqpd's", self.name, self.foreign_count)

    def recover(self) -> None:
        if not self.ready:
            raise OSError(f"the log of queue '{self.name}' is being read from Kafka")

    def open_soon(self, done: Callable[[], None]) -> bool:
        if self.ready:
            return True
        keeper = self.keeper
        if keeper is None:
            raise OSError(f"the slot of queue '{self.name}' was given up")
        return keeper.open_log(self, done)

    def let_go(self) -> None:
        self.log.noted = None
        super().let_go()

    # -- appending

    def append(
        self,
        route: RecordRoute,
        source: bytes,
        properties_start: i64,
        properties_end: i64,
        body_start: i64,
        body_end: i64,
        persistent: bool,
    ) -> i64:
        return self.appender.append(route, source, properties_start, properties_end, body_start, body_end, True)

    def append_large(
        self, route: RecordRoute, properties: bytes, parts: list[bytes], body_size: i64, persistent: bool
    ) -> i64:
        if not self._in_transaction:
            return self.appender.append_large(route, properties, parts, body_size, True)
        source = b"".join([properties, *parts])  # it shares its batch with the others
        size: i64 = len(properties)
        return self.appender.append(route, source, 0, size, size, size + body_size, True)

    def set_producer(self, producer_id: i64, epoch: i64, sequence: i64) -> None:
        """Its numbers are Kafka's: a publisher's own are not kept with the message."""

    def begin_transaction(self) -> None:
        self._in_transaction = True
        self.appender.begin_transaction()

    def end_transaction(self) -> None:
        self._in_transaction = False
        self.appender.end_transaction()

    def skip(self, count: i64) -> None:
        """The partition has got so many records that are no messages. What was appended was taken before that."""
        self.next_offset += count
        self.log.end = int(self.next_offset)
        if self.ready:
            self._changed()
        else:
            self.end_offset = self.next_offset

    # -- the end of a turn

    def write(self) -> None:
        super().write()
        replica = self.appender.replica
        keeper = self.keeper
        if replica is not None and replica.closed and not self.listed and keeper is not None:
            self.listed = True
            keeper.written.append(self)
            if len(keeper.written) == 1:
                keeper.wake()

    def take(self) -> list[ClosedBatch]:
        """The batches that are to be sent, in order."""
        self.listed = False
        replica = self.appender.replica
        return replica.take() if replica is not None else []

    # -- safety

    def moved(self, high_watermark: i64) -> None:
        """All below is in Kafka, on all in-sync replicas."""
        watermark = self.log.watermark
        if high_watermark > watermark.offset and not self.deleted:
            watermark.offset = high_watermark
            self.safety_moved()
            if self.settlements.behind:
                self._changed()

    def end_waiting(self) -> None:
        """Its queue is about to be deleted: what is not safe goes with it, and who waits is told yes.

        rabbit: what a deleted queue has not confirmed is confirmed.
        """
        if not self.failed:
            self.moved(self.next_offset)

    def refuse(self, text: str) -> None:
        """Kafka takes nothing more of it: what is not safe never will be."""
        self.refused = text
        self.failed = True
        self.safety_moved()

    def accept(self) -> None:
        """Kafka takes what it had refused. Whoever waited was told no; what it was about is stored all the same."""
        self.refused = ""
        self.failed = False

    def about(self) -> dict[str, object]:
        """Offsets are Kafka's. waiting_bytes: that Kafka has not answered for. span_bytes: that it has from the first
        offset on, settled or not, as of the last look.
        """
        partition = self.partition
        if partition is None:
            return {}
        return {
            "topic": partition.topic.decode(),
            "partition": partition.number,
            "first_offset": self.settlements.head if self.settlements.head >= 0 else self.first_offset,
            "high_watermark": self.log.watermark.offset,
            "end_offset": self.next_offset,
            "waiting_bytes": self.unsafe_bytes,
            "span_bytes": self.span_bytes,
            "refused": self.refused or None,
        }

    # -- settlements

    def _noted(self, kind: i64, a: i64, b: i64, c: i64) -> None:
        self.settlements.note(kind, a, b, c)
        self._changed()

    def _changed(self) -> None:
        settlements = self.settlements
        keeper = self.keeper
        if not settlements.waiting and keeper is not None:
            settlements.waiting = True
            keeper.changed.append(self)
            if len(keeper.changed) == 1:
                keeper.tell_soon()

    def tell(self) -> list[KeyedRecord]:
        """The records of what was settled, delivered and given back since the last call (`AckRecordWriter.tell`)."""
        settlements = self.settlements
        settlements.waiting = False
        log = self.log
        if not self.ready or self.deleted:
            return []  # where it starts is not known
        return settlements.tell(log.start_offset(), log.watermark.offset, self.record_count, self.size_bytes)

    def when_settled(self, done: Callable[[bool], None]) -> None:
        keeper = self.keeper
        if keeper is None or self.failed or self.deleted:
            done(self.deleted)
        else:
            self.note_all()
            keeper.when_settled(self, done)

    def note_all(self) -> None:
        """What was settled up to now is noted, for the next `tell`."""
        if self.ready and not self.deleted:
            self.write_late()
