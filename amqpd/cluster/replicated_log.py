"""Log of a queue in a partition of Apache Kafka, with a cache of the live messages on the local disk.

The cache is a `LocalLog` that is never synced; the next start deletes it. At the end of a loop turn, the log closes
its batches in Kafka's format and enters itself in the list `written` of its keeper, a `SlotLogs`, which sends them.
Kafka's answers move the high watermark (`set_high_watermark`). Consumers of a work queue also get messages above it;
readers of a stream do not.

Offsets are those of the partition. The partition also contains records that are no messages: the barrier of a new
owner, and hourly records so that Kafka does not forget the owner. These offsets are gaps here and count as acked.

Acked, delivered and returned offsets are collected in `ack_writer`. The keeper writes them to Kafka up to 50 ms
later, and the next owner reads them back: it calls `open`, then `fill` with the partition's batches, then `filled`.
The log is not ready before.

`filter_live_records` decides what of a batch from Kafka goes into the cache. It skips batches that the broker did
not write as messages: the first record has no `properties` header, the batch is transactional or a control batch,
or it cannot be read.

Compiled by mypyc.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from amqpd.cluster.replicated_acks import AckRecordWriter, ReplicatedAcks
from amqpd.kafka.keyed_records import KeyedRecord, read_keyed
from amqpd.kafka.partition import Partition
from amqpd.storage.acks.ack_set import pack_returned
from amqpd.storage.local_log import LocalLog, LogKeeper
from amqpd.storage.log.appender import KafkaSequencer
from amqpd.storage.log.batch import CONTROL, HEADER_SIZE, TRANSACTIONAL, BatchHeader, ClosedBatch, decompressed
from amqpd.storage.log.log import Log
from amqpd.storage.log.record import BadRecord, RecordRoute, read_offset_delta, read_record, record_stop, value_size
from amqpd.storage.loop_log import LogContext

if TYPE_CHECKING:
    from amqpd.cluster.slot_logs import SlotLogs

logger = logging.getLogger(__name__)

_FOREIGN: Final[i64] = TRANSACTIONAL | CONTROL


@final
class BatchFilterResult:
    """Live and acked records of one batch from Kafka.

    Attributes:
        batch: the batch for the cache; None if no record is live.
        runs: acked offsets as (first, last).
        settled_bytes: body bytes of the acked records.
        foreign_count: records that are no messages of ours.
    """

    def __init__(self) -> None:
        self.batch: ClosedBatch | None = None
        self.runs: list[tuple[int, int]] = []
        self.settled_bytes: i64 = 0
        self.foreign_count: i64 = 0
        self.total_bytes: i64 = 0
        self.live_count: i64 = 0
        # _run: first offset of the open run, or -1. next_offset: offset behind the last record.
        self._run: i64 = -1
        self.next_offset: i64 = 0

    def add_record(self, offset: i64, settled: bool, size: i64) -> None:
        """Add the next record. Offsets between it and the previous record count as acked."""
        self.total_bytes += size
        if settled:
            self.settled_bytes += size
            if self._run < 0:
                self._run = self.next_offset
        else:
            self.live_count += 1
            if self._run < 0 and offset > self.next_offset:
                self._run = self.next_offset
            if self._run >= 0:
                self.runs.append((self._run, offset - 1))
                self._run = -1
        self.next_offset = offset + 1

    def finish(self, last_offset: i64) -> None:
        """Close the last run. Offsets up to `last_offset` count as acked."""
        if self._run < 0 and self.next_offset <= last_offset:
            self._run = self.next_offset
        if self._run >= 0:
            self.runs.append((self._run, last_offset))


def filter_live_records(data: bytes, first_offset: i64, acks: ReplicatedAcks, name: str) -> BatchFilterResult:
    """Return which records of a batch are live.

    Args:
        data: one whole batch with a valid checksum.
        first_offset: offsets below do not belong to this log.
        acks: the acks that Kafka has.
        name: the queue, for log lines.

    Cost: about 50 ns per record, and a copy of the batch.
    """
    filled = BatchFilterResult()
    header = BatchHeader(data, 0)
    if header.last_offset < first_offset:
        return filled
    if header.attributes & _FOREIGN != 0:
        filled.foreign_count = header.count
        return filled
    try:
        if not _records(data, header, first_offset, acks, filled):
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
    data: bytes, header: BatchHeader, first_offset: i64, acks: ReplicatedAcks, filled: BatchFilterResult
) -> bool:
    """Add the records to `filled`. Return False if the first one is not a message of ours. Raises BadRecord."""
    image, at, whole = decompressed(data, 0, header)
    end: i64 = at + whole.size
    position: i64 = at + HEADER_SIZE
    left: i64 = whole.count
    filled.next_offset = header.base_offset
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
        settled: bool = offset < first_offset or acks.is_acked(offset)
        filled.add_record(offset, settled, value_size(image, start, stop))
        position = stop
        left -= 1
    filled.finish(header.last_offset)
    return True


def _foreign(data: bytes, header: BatchHeader) -> i64:
    """Return how many records of a batch without messages are foreign.

    A barrier or an hourly record is a single record without value; these are ours.
    """
    return 0 if header.count == 1 and read_keyed(data)[0].value is None else header.count


_NOTHING: Final[list[tuple[int, int]]] = []


@final
class ReplicatedLog(LocalLog):
    """Log of one queue in a partition of Kafka. Loop thread only.

    Attributes:
        keeper: None after the slot was given up.
        partition: None before `open`.
        unsafe_bytes: bytes of batches that Kafka has not answered.
        span_bytes: bytes in Kafka from the first live offset on. The keeper counts both.
        refused: why Kafka rejects writes to this log; "" while it accepts them.
        listed: the log is in `SlotLogs.written`.
        first_offset: first offset that `fill` accepts.
        end_offset: end of the records of earlier owners.
        seen_end: messages below this offset may have been delivered.
        foreign_count: records of the partition that are no messages of ours.
    """

    def __init__(
        self,
        context: LogContext,
        log: Log,
        vhost_id: str,
        queue_id: str,
        name: str,
        storage: LogKeeper,
        keeper: SlotLogs,
    ) -> None:
        super().__init__(context, log, vhost_id, queue_id, name, storage, False)
        self.local = False
        log.replicated = True
        self.keeper: SlotLogs | None = keeper
        self.partition: Partition | None = None
        self.unsafe_bytes: i64 = 0
        self.span_bytes: i64 = 0
        self.refused: str = ""
        self.listed: bool = False
        self.first_offset: i64 = 0
        self.end_offset: i64 = 0
        self.seen_end: i64 = 0
        self._kafka_acks: ReplicatedAcks = ReplicatedAcks()
        self.ack_writer: AckRecordWriter = AckRecordWriter(bytes.fromhex(queue_id), self._kafka_acks)
        self.foreign_count: i64 = 0
        self._in_transaction: bool = False

    # -- recovery

    def open(
        self,
        partition: Partition,
        replica: KafkaSequencer,
        acks: ReplicatedAcks,
        first_offset: i64,
        end_offset: i64,
        seen_end: i64,
    ) -> None:
        """Start recovery after a takeover. `fill` and then `filled` follow, in any number of loop turns.

        Args:
            replica: numbers the batches that this log appends.
            acks: the acks from Kafka. This log owns the object from now on.
            first_offset: first offset of this log; earlier records of the partition belong to other queues.
            end_offset: end of the earlier owners' records, and the offset of the next append.
            seen_end: live messages below may have been delivered.
        """
        self.partition = partition
        self._kafka_acks = acks
        self.ack_writer = AckRecordWriter(self.ack_writer.log_id, acks)
        self.first_offset = first_offset if acks.head < first_offset else acks.head
        self.end_offset = end_offset
        self.seen_end = seen_end
        self.appender.replica = replica
        self.transaction_bytes_max = replica.transaction_bytes_max
        self.log.end = end_offset
        self.next_offset = end_offset
        self.log.watermark.offset = end_offset

    def spans(self, end: i64) -> list[tuple[int, int]]:
        """Return the live ranges below `end` that must be read back, as (first, end)."""
        return self._kafka_acks.spans(self.first_offset, end)

    def fill(self, batches: list[bytes]) -> None:
        """Add batches of the partition to the cache, with their acks. Batches without a live record are left out.

        Args:
            batches: whole batches with valid checksums, in order.

        Cost: about 50 ns per record, and the write.

        Raises: OSError: the disk cannot store them.
        """
        kept: list[BatchFilterResult] = []
        segments = self.log.segments
        there: i64 = segments[len(segments) - 1].end if segments else 0
        for data in batches:
            if BatchHeader(data, 0).last_offset < there:
                continue  # written before the disk failed
            filled = filter_live_records(data, self.first_offset, self._kafka_acks, self.name)
            self.foreign_count += filled.foreign_count
            if filled.batch is not None:
                kept.append(filled)
        if not kept:
            return
        log = self.log
        self.appender.add_encoded_batches([each.batch for each in kept if each.batch is not None])
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
        """Finish recovery: all live messages are in the cache, and the log becomes ready."""
        acks = self._kafka_acks
        returned: dict[int, int] = {}
        for offset, (count, due_ms) in acks.returned.items():
            if offset >= self.first_offset and not acks.is_acked(offset):
                returned[offset] = pack_returned(count, due_ms)
        log = self.log
        log.end = max(log.end, self.end_offset)
        log.on_ack_entry = self._on_ack_entry
        self.recovered(acks.delivered_mark, self.seen_end, returned, [])
        self.ready = True
        if log.start_offset() > acks.head:
            self._list_changed()
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

    def dispose(self) -> None:
        self.log.on_ack_entry = None
        super().dispose()

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
        source = b"".join([properties, *parts])  # shares its batch with other messages of the transaction
        size: i64 = len(properties)
        return self.appender.append(route, source, 0, size, size, size + body_size, True)

    def set_producer(self, producer_id: i64, epoch: i64, sequence: i64) -> None:
        """Ignore the publisher's numbers: the batches carry the numbers of Kafka's producer."""

    def begin_transaction(self) -> None:
        self._in_transaction = True
        self.appender.begin_transaction()

    def end_transaction(self) -> None:
        self._in_transaction = False
        self.appender.end_transaction()

    def skip(self, count: i64) -> None:
        """Skip offsets of records that are no messages. All messages were closed before."""
        self.next_offset += count
        self.log.end = int(self.next_offset)
        if self.ready:
            self._list_changed()
        else:
            self.end_offset = self.next_offset

    # -- end of a turn

    def write(self) -> None:
        super().write()
        replica = self.appender.replica
        keeper = self.keeper
        if replica is not None and replica.closed and not self.listed and keeper is not None:
            self.listed = True
            keeper.written.append(self)
            if len(keeper.written) == 1:
                keeper.schedule_send()

    def take_batches(self) -> list[ClosedBatch]:
        """Return the batches to send, in order."""
        self.listed = False
        replica = self.appender.replica
        return replica.take() if replica is not None else []

    # -- high watermark

    def set_high_watermark(self, high_watermark: i64) -> None:
        """Move the high watermark: all in-sync replicas have the records below."""
        watermark = self.log.watermark
        if high_watermark > watermark.offset and not self.deleted:
            watermark.offset = high_watermark
            self.on_high_watermark()
            if self.ack_writer.has_waiting:
                self._list_changed()

    def confirm_waiting(self) -> None:
        """Confirm what waits, because the queue is being deleted.

        rabbit: a deleted queue confirms what it has not confirmed.
        """
        if not self.failed:
            self.set_high_watermark(self.next_offset)

    def reject_writes(self, text: str) -> None:
        """Nack everything that is not in Kafka, now and later: Kafka rejects writes to this log."""
        self.refused = text
        self.failed = True
        self.on_high_watermark()

    def accept_writes(self) -> None:
        """Accept messages again. What was nacked meanwhile may be stored anyway."""
        self.refused = ""
        self.failed = False

    def location(self) -> dict[str, object]:
        """Return the log's position in Kafka for the HTTP API.

        `waiting_bytes` are not answered by Kafka. `span_bytes` start at the first live offset and are from the last
        count.
        """
        partition = self.partition
        if partition is None:
            return {}
        return {
            "topic": partition.topic.decode(),
            "partition": partition.number,
            "first_offset": self.ack_writer.head if self.ack_writer.head >= 0 else self.first_offset,
            "high_watermark": self.log.watermark.offset,
            "end_offset": self.next_offset,
            "waiting_bytes": self.unsafe_bytes,
            "span_bytes": self.span_bytes,
            "refused": self.refused or None,
        }

    # -- acks

    def _on_ack_entry(self, kind: i64, a: i64, b: i64, c: i64) -> None:
        self.ack_writer.note(kind, a, b, c)
        self._list_changed()

    def _list_changed(self) -> None:
        writer = self.ack_writer
        keeper = self.keeper
        if not writer.waiting and keeper is not None:
            writer.waiting = True
            keeper.changed.append(self)
            if len(keeper.changed) == 1:
                keeper.schedule_ack_pass()

    def take_ack_records(self) -> list[KeyedRecord]:
        """Return the records of offsets that were acked, delivered or returned since the last call."""
        writer = self.ack_writer
        writer.waiting = False
        log = self.log
        if not self.ready or self.deleted:
            return []  # its start is not known yet
        return writer.take_records(log.start_offset(), log.watermark.offset, self.record_count, self.size_bytes)

    def when_acks_safe(self, done: Callable[[bool], None]) -> None:
        keeper = self.keeper
        if keeper is None or self.failed or self.deleted:
            done(self.deleted)
        else:
            self.collect_acks()
            keeper.when_settled(self, done)

    def collect_acks(self) -> None:
        """Collect what was acked up to now, for the next `AckRecordWriter.take_records`."""
        if self.ready and not self.deleted:
            self.write_late()
