"""The end of a log: the open batch, the open transaction, and the closed batches that wait to be written.

`append` writes into the open batch. It makes no object per message and no system call. `write`, once per loop turn,
closes the batch and writes all batches of the turn with one `writev`.

Offsets increase by one with each append and are never used twice, also when a write fails. `QueueLog.failed_ranges`
names the offsets that did not reach the files.

Compression: with a codec, each batch is compressed when it is closed. It may then have more than 64 records, because
many small records compress better together.

Logs replicated to Kafka (`replica` is set): Kafka receives the batches as they are closed here, so they must be
batches of a Kafka producer:

- The only attribute is the compression. Kafka rejects or rewrites LogAppendTime, control records and unknown bits.
- The batch has one CreateTime for all its records.
- A transient message is stored as a persistent one.
- A transaction is one batch, because Kafka writes markers of its own.
- Kafka assigns the same offsets. A batch that could not be written to the local cache is still sent, so there is no
  gap.

`append_checked` appends record batches that another program has closed, for instance a Kafka client. Readers trust
the log, so `BatchCheck` checks everything: sizes, checksum, offset deltas, and every record. Then the batch gets its
base offset and leader epoch, which the checksum does not cover. All other bytes stay, also compression and CreateTime.
`BatchCheck` rejects transactional and control batches (they name offsets of their old log), compacted batches
with holes, and batches that decompress to more than readers accept. With `transactional` it accepts batches of a
transaction whose coordinator is here; `append_checked` appends these, and the marker of the transaction.
"""

from __future__ import annotations

from time import monotonic
from typing import Any, Final, final

from librt.strings import BytesWriter, write_i64_be
from mypy_extensions import i64

from amqpd.storage.log.batch import (
    COMMIT_RECORDS,
    COMPRESSION,
    CONTROL,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    LZ4,
    NO_PRODUCER,
    RECORDS_MAX,
    RECORDS_SIZE_BYTES_MAX,
    TRANSACTIONAL,
    TRANSIENT,
    BatchHeader,
    ClosedBatch,
    close_batch,
    compress_records,
    crc_fits,
    is_lz4_frame,
    unpack,
    with_max_timestamp,
)
from amqpd.storage.log.foreign_record import MESSAGE_BYTES_MAX, SHORT_BYTES_MAX, are_properties, is_short_text
from amqpd.storage.log.log import Log
from amqpd.storage.log.prepared import PreparedTransaction
from amqpd.storage.log.producer_state import EPOCH_MAX, SEQUENCE_MAX
from amqpd.storage.log.record import (
    BadRecord,
    Record,
    RecordDecoder,
    RecordRoute,
    RecordsTooLarge,
    body_and_headers,
    encode_around_body,
    read_offset_delta,
    read_varint,
    record_stop,
    write_record,
    write_tombstone,
)
from amqpd.storage.log.transactions import Transactions
from amqpd.storage.log.writer import append as append_to
from amqpd.storage.loop_log import GroupCommitLog, LogContext

_ATTRIBUTES: Final[i64] = LOG_APPEND_TIME | TRANSIENT | COMPRESSION
_EPOCH_END: Final[i64] = 16  # base offset, length and epoch end here; the checksum does not cover them


class BadBatch(ValueError):
    """The bytes are not whole record batches that a log accepts. Nothing was appended."""


class DamagedBatch(BadBatch):
    """A batch is incomplete, or its header or checksum is wrong: the bytes have changed since it was made."""


class BatchTooLarge(BadBatch):
    """The records of a batch decompress to more bytes than readers accept."""


HEADERS_MAX: Final[i64] = 100_000
"""Headers of one record of another program; their check takes 2 ms."""
_LOOK_WORK: Final[i64] = 4096  # eighths of a record between two looks at the clock
_RECORD_WORK: Final[i64] = 8  # a header is an eighth
_EVER: Final = float("inf")


@final
class BatchCheck:
    """The check of one record batch of another program, in pieces: it may have 100,000 records, or as many headers.

    The constructor checks the header and the checksum.

    Args:
        data: has the batch at `position`, which ends at `end` or earlier.
        transactional: accept a batch of a transaction. Its coordinator then writes its marker.

    Attributes:
        size: of the batch.
        max_timestamp_ms: of the records; at least that of the header. Some producers leave -1 in the header, and Kafka
            corrects it.

    Raises: BadBatch. Cost: the CRC.
    """

    def __init__(self, data: bytes, position: i64, end: i64, transactional: bool) -> None:
        if position + HEADER_SIZE > end:
            raise DamagedBatch(f"{end - position} bytes at {position} are too few for a batch")
        header = BatchHeader(data, position)
        accepted: i64 = COMPRESSION | TRANSACTIONAL if transactional else _ATTRIBUTES
        if header.attributes & ~accepted != 0:
            raise BadBatch(f"the batch at {position} has attributes {header.attributes:#x}, which are not accepted")
        if not header.is_plausible() or header.count != header.last_offset - header.base_offset + 1:
            raise DamagedBatch(f"no valid batch header at {position}")
        if position + header.size > end:
            raise DamagedBatch(f"the batch at {position} is incomplete")
        if not crc_fits(data, position, header):
            raise DamagedBatch(f"the checksum of the batch at {position} is wrong")
        if header.producer_id >= 0 and (header.base_sequence > SEQUENCE_MAX or header.producer_epoch > EPOCH_MAX):
            raise BadBatch(f"the batch at {position} has a producer, but no valid epoch and sequence")
        self.size: i64 = header.size
        self.max_timestamp_ms: i64 = header.max_timestamp_ms
        self._data: bytes = data
        self._position: i64 = position
        self._header: BatchHeader = header
        self._decoder = RecordDecoder(converts=False, exact=True)
        # The records, decompressed, where the next one begins, and where they end.
        self._image: bytes = b""
        self._unpacked: Any = None  # of a compressed batch
        self._next: i64 = -1
        self._end: i64 = 0
        self._number: i64 = 0
        self._body_bytes: i64 = 0
        self._valid: bytes | None = None  # properties that were checked

    def run(self, until_s: float = _EVER) -> bool:
        """Check records until this monotonic time. Return whether all are checked.

        Cost: decompression with the first call, a copy with the second one, and about 150 ns per record. Raises:
        BadBatch.
        """
        try:
            if self._next < 0 and not self._unpack(until_s):
                return False
            return self._check_records(until_s)
        except RecordsTooLarge as large:  # another name: mypyc gives `error` one type per function
            raise BatchTooLarge(f"bad record in the batch at {self._position}: {large}") from large
        except BadRecord as error:
            raise BadBatch(f"bad record in the batch at {self._position}: {error}") from error

    def _unpack(self, until_s: float) -> bool:
        """Decompress the records, if there is time. Return whether that is done. Raises: BadRecord."""
        header = self._header
        start: i64 = self._position + HEADER_SIZE
        end: i64 = self._position + header.size
        codec: i64 = header.attributes & COMPRESSION
        if codec == 0:
            self._image = self._data
            self._next = start
            self._end = end
            return True
        if self._unpacked is None:
            if codec == LZ4 and not is_lz4_frame(self._data[start:end]):
                raise BadRecord("the compressed data is not one frame of LZ4")
            self._unpacked = unpack(codec, self._data[start:end])
            if monotonic() >= until_s:
                return False
        self._image = bytes(self._unpacked)
        self._unpacked = None
        self._next = 0
        self._end = len(self._image)
        return monotonic() < until_s

    def _check_records(self, until_s: float) -> bool:
        """Check records until this monotonic time, and find the latest one. Return True when all are checked.

        Raises: BadRecord.
        """
        header = self._header
        data = self._image
        decoder = self._decoder
        create_time: bool = header.attributes & LOG_APPEND_TIME == 0
        work: i64 = 0
        while self._number < header.count:
            if work >= _LOOK_WORK:
                work = 0
                if monotonic() >= until_s:
                    return False
            start: i64 = 0
            stop: i64 = 0
            delta: i64 = 0
            fields: i64 = 0
            headers: i64 = 0
            body_size: i64 = 0
            start, stop = record_stop(data, self._next, self._end)
            delta, fields = read_offset_delta(data, start)
            if create_time:
                timestamp_ms: i64 = 0
                timestamp_ms, _ = read_varint(data, start + 1)
                timestamp_ms += header.base_timestamp_ms
                if timestamp_ms > self.max_timestamp_ms:
                    self.max_timestamp_ms = timestamp_ms
            if delta != self._number:
                raise BadRecord(f"offset delta {delta}, expected {self._number}")
            body_size, headers = body_and_headers(data, fields, stop)
            if headers < 0:
                raise BadRecord(f"a record with {headers} headers")
            if headers > HEADERS_MAX:
                raise RecordsTooLarge(f"a record with {headers} headers; at most {HEADERS_MAX} are accepted")
            record = decoder.read(data, fields, stop, self._number, header.max_timestamp_ms, True)
            if not record.foreign and record.properties is not self._valid:
                self._valid = record.properties
                _check_message(record)
            self._body_bytes += body_size
            self._next = stop
            self._number += 1
            work += _RECORD_WORK + headers
        if self._next != self._end:
            raise BadRecord(f"{self._end - self._next} bytes follow the last record")
        self._image = b""
        return True

    def batch(self) -> ClosedBatch:
        """Return the checked batch, still with its original offsets. Cost: a copy.

        Look-ups by time trust the max timestamp in its header.
        """
        header = self._header
        position: i64 = self._position
        head: bytes = self._data[position : position + HEADER_SIZE]
        records: bytes = self._data[position + HEADER_SIZE : position + header.size]
        if self.max_timestamp_ms != header.max_timestamp_ms:
            head = with_max_timestamp(head, records, self.max_timestamp_ms)
        return ClosedBatch(
            head,
            records,
            header.base_offset,
            header.last_offset,
            self.max_timestamp_ms,
            self._body_bytes,
            header.attributes,
            -1,
            [],
        )


def _check_message(record: Record) -> None:
    """Check a record with exactly the headers of ours, which readers send as it is. Raises: BadRecord."""
    if len(record.routing_key) > SHORT_BYTES_MAX or not is_short_text(record.exchange):
        raise BadRecord(
            f"with the headers exchange and properties, key and exchange have at most {SHORT_BYTES_MAX} bytes"
        )
    if not are_properties(record.properties):
        raise BadRecord(
            f"its header properties must have at most {MESSAGE_BYTES_MAX} bytes, encoded as AMQP has it; else rename it"
        )


def with_base_offset(scratch: BytesWriter, batch: ClosedBatch, base_offset: i64, epoch: i64) -> ClosedBatch:
    """Return `batch` with this base offset and leader epoch. `scratch` is any writer; its content is lost."""
    scratch.truncate(0)
    write_i64_be(scratch, base_offset)
    write_i64_be(scratch, ((batch.size - LENGTH_OVERHEAD) << 32) | epoch)
    return ClosedBatch(
        scratch.getvalue() + batch.header[_EPOCH_END:],
        batch.records,
        base_offset,
        base_offset + batch.last_offset - batch.base_offset,
        batch.timestamp_ms,
        batch.body_size_bytes,
        batch.attributes,
        -1,
        batch.more,
    )


_KEPT_WRITER_SIZE: Final[i64] = 256 * 1024
_POOL_MAX: Final[i64] = 64
_PACKED_RECORDS_MAX: Final[i64] = 1024
_NO_PARTS: Final[list[bytes]] = []


@final
class KafkaSequencer:
    """Sequence numbers for batches that Kafka receives, and the closed batches that were not taken yet.

    Attributes:
        sequence: the number of the next record; after 2147483647 comes 0.
        transaction_bytes_max: limit for the records of a transaction, which are one batch.
        closed: batches in order, until `take`.
    """

    def __init__(
        self, producer_id: i64, epoch: i64, sequence: i64 = 0, transaction_bytes_max: i64 = RECORDS_SIZE_BYTES_MAX
    ) -> None:
        self.producer_id: i64 = producer_id
        self.epoch: i64 = epoch
        self.sequence: i64 = sequence
        self.transaction_bytes_max: i64 = transaction_bytes_max
        self.closed: list[ClosedBatch] = []

    def reserve_sequences(self, count: i64) -> i64:
        """Reserve sequences for `count` records and return the first one."""
        first: i64 = self.sequence
        self.sequence = (first + count) & SEQUENCE_MAX
        return first

    def take(self) -> list[ClosedBatch]:
        """Return and forget the batches closed since the last call, in order."""
        closed = self.closed
        self.closed = []
        return closed


@final
class Appender:
    """Appends messages to the end of one log. Updates `next_offset` and the counts of its owner.

    Attributes:
        owner: the queue's log.
        codec: compression of the next batches, 0 for none (batch.py).
        replica: set if Kafka receives the next batches too; see the module docstring.
    """

    def __init__(self, owner: GroupCommitLog, log: Log) -> None:
        self.owner: GroupCommitLog = owner
        self._log: Log = log
        self._context: LogContext = owner.context
        # The open batch.
        self._writer: BytesWriter | None = None
        self._count: i64 = 0
        self.codec: i64 = 0
        self.replica: KafkaSequencer | None = None
        self._persistent: bool = True
        self._timestamp_ms: i64 = 0
        self._body_bytes: i64 = 0
        self._batches: list[ClosedBatch] = []
        # The open transaction: offset of its first message, and the records in its closed batches.
        self._transaction_start: i64 = -1
        self._transaction_sequence: i64 = 0
        # Producer of the open batch and sequence of its first message; `_producing`: of the next message too.
        self._producer: i64 = NO_PRODUCER
        self._producer_epoch: i64 = 0
        self._base_sequence: i64 = -1
        self._producing: bool = False
        self._suspended_writer: BytesWriter | None = None  # of an open batch that the next message does not join

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
        """See `QueueLog.append`. Cost: about 0.15 us for 1 KiB, with CRC and header."""
        writer = self._writer
        if writer is None:
            writer = self._open_batch(persistent)
        elif self._count > 0 and (
            self._count >= RECORDS_MAX
            or persistent != self._persistent
            or len(writer) + route.fixed_size + 16 + (body_end - body_start) + (properties_end - properties_start)
            > RECORDS_SIZE_BYTES_MAX
        ):
            size: i64 = (body_end - body_start) + (properties_end - properties_start)
            if not self._fits_open_batch(len(writer) + route.fixed_size + 16 + size, persistent):
                self._close_batch()
                writer = self._open_batch(persistent)
        elif self._count == 0:
            writer = self._open_batch(persistent)
        write_record(writer, route, self._count, source, properties_start, properties_end, body_start, body_end)
        body_size: i64 = body_end - body_start
        self._count += 1
        self._body_bytes += body_size
        owner = self.owner
        owner.record_count += 1
        owner.size_bytes += body_size
        offset: i64 = owner.next_offset
        owner.next_offset = offset + 1
        return offset

    def set_producer(self, producer_id: i64, epoch: i64, sequence: i64) -> None:
        """See `QueueLog.set_producer`.

        The open batch stays open if the next message has the same producer and the next sequence.
        """
        if producer_id == NO_PRODUCER:
            self._producing = False
            if self._count == 0:
                self._reset_producer()
            else:
                self._suspended_writer = self._writer
                self._writer = None
            return
        self._resume_batch()
        if self._count > 0 and (
            producer_id != self._producer
            or epoch != self._producer_epoch
            or sequence != self._base_sequence + self._count
        ):
            self._close_batch()
        if self._count == 0:
            self._producer = producer_id
            self._producer_epoch = epoch
            self._base_sequence = sequence
        self._producing = True

    def _reset_producer(self) -> None:
        self._producer = NO_PRODUCER
        self._base_sequence = -1

    def _resume_batch(self) -> None:
        """Continue the open batch that `set_producer` put aside, if there is one."""
        if self._suspended_writer is not None:
            self._writer = self._suspended_writer
            self._suspended_writer = None

    def append_large(
        self, route: RecordRoute, properties: bytes, parts: list[bytes], body_size: i64, persistent: bool
    ) -> i64:
        """See `QueueLog.append_large`. The message is a batch of its own; its parts go to the file without a copy.

        Cost: the CRC of the parts.
        """
        if self._count > 0:
            self._close_batch()
        self._open_batch(persistent)
        before, after = encode_around_body(route, properties, body_size)
        offset = self._assign_offsets(1, body_size)
        self._close(before, [*parts, after])
        return offset

    def append_tombstone(self, route: RecordRoute, properties: bytes) -> i64:
        """Append a persistent record without a value: compaction then removes older records of its key.

        Raises: LogFailed.
        """
        if self._count > 0:
            self._close_batch()
        write_tombstone(self._open_batch(True), route, 0, properties)
        return self._assign_offsets(1, 0)

    def append_prepared(self, prepared: PreparedTransaction) -> i64:
        """See `QueueLog.append_prepared`. Cost: 1 us and the CRC per batch of 64 records."""
        alone = self.replica is not None and len(prepared.batches) == 1
        self.begin_transaction()
        if alone:
            self._transaction_start = -1  # one batch: its checksum proves that it is whole
        first: i64 = self.owner.next_offset
        for batch in prepared.batches:
            self._persistent = batch.persistent
            self._assign_offsets(batch.count, batch.body_bytes)
            self._close(batch.records)
        if not alone:
            self.end_transaction()
        return first

    def append_checked(self, batches: list[ClosedBatch]) -> i64:
        """Append batches that `BatchCheck` has checked, and record their producers. Return the offset of the first one.

        Cost: 1 us per batch, and 2 us more if it has a producer. Raises: LogFailed; then nothing is appended.
        """
        if self._transaction_start >= 0:
            raise ValueError("batches cannot be appended while a transaction is open")
        if self.replica is not None:
            raise ValueError("batches of other programs cannot be appended to a log that Kafka receives")
        if self._count > 0:
            self._close_batch()
        owner = self.owner
        owner.ensure_open()
        first: i64 = owner.next_offset
        for batch in batches:
            placed = with_base_offset(self._context.scratch, batch, owner.next_offset, self._log.next_epoch())
            self._batches.append(placed)
            owner.record_count += placed.last_offset + 1 - placed.base_offset
            owner.size_bytes += placed.body_size_bytes
            owner.next_offset = placed.last_offset + 1
            if self._log.durable and placed.attributes & TRANSIENT == 0:
                owner.needs_commit = True
            self._record_producer(placed)
        return first

    def _record_producer(self, batch: ClosedBatch) -> None:
        """Record the producer of an appended batch, as recovery does."""
        header = BatchHeader(batch.header, 0)
        if header.producer_id < 0 or batch.attributes & TRANSIENT != 0:
            return
        owner = self.owner
        now_ms: i64 = self._context.clock.time_ms()
        if batch.attributes & CONTROL:
            owner.producers().record_marker(header, now_ms, owner.high_watermark)
        else:
            owner.producers().record_batch(header, now_ms, owner.high_watermark)
        if batch.attributes & TRANSACTIONAL:
            log = self._log
            if log.transactions is None:
                log.transactions = Transactions()
            if batch.attributes & CONTROL:
                log.transactions.on_marker(header, batch.records == COMMIT_RECORDS)
            else:
                log.transactions.on_batch(header, batch.body_size_bytes)

    def add_encoded_batches(self, batches: list[ClosedBatch]) -> None:
        """Add batches that already have their offsets; the next `write` writes them.

        They are not counted as messages: they fill a cache with batches that were appended elsewhere.
        """
        self._batches += batches

    def begin_transaction(self) -> None:
        """See `QueueLog.begin_transaction`."""
        if self._count > 0:
            self._close_batch()
        self.owner.ensure_open()
        self._transaction_start = self.owner.next_offset
        self._transaction_sequence = 0

    def end_transaction(self) -> None:
        """End the transaction. One batch needs no marker; after several, a commit marker takes an offset."""
        start: i64 = self._transaction_start
        if start < 0:
            raise ValueError("no transaction is open")
        if self._transaction_sequence == 0:  # one batch: its checksum proves that it is whole
            self._transaction_start = -1
            if self._count > 0:
                self._close_batch()
            return
        if self._count > 0:
            self._close_batch()
        self._batches.append(
            close_batch(
                self._context.scratch,
                COMMIT_RECORDS,
                self.owner.next_offset,
                1,
                self._log.next_epoch(),
                LOG_APPEND_TIME | TRANSACTIONAL | CONTROL,
                self._timestamp_ms,
                0,
                start,
                -1,
                start,
            )
        )
        self.owner.next_offset += 1
        self._transaction_start = -1

    def _assign_offsets(self, count: i64, body_size: i64) -> i64:
        """Start a batch of `count` records: assign their offsets and count them. Return the first offset."""
        owner = self.owner
        self._count = count
        self._body_bytes = body_size
        owner.record_count += count
        owner.size_bytes += body_size
        offset: i64 = owner.next_offset
        owner.next_offset = offset + count
        return offset

    def _open_batch(self, persistent: bool) -> BytesWriter:
        self.owner.ensure_open()
        if self._suspended_writer is not None:
            self._close_batch()
        writer = self._writer
        if writer is None:
            writers = self._context.writers
            writer = writers.pop() if writers else BytesWriter()
            self._writer = writer
        self._persistent = persistent
        return writer

    def _fits_open_batch(self, size: i64, persistent: bool) -> bool:
        """Return whether a record that brings the open batch to `size` bytes still goes into it, beyond RECORDS_MAX
        records.

        True for batches that will be compressed, and for batches to Kafka, which allows few requests in flight. A
        transaction for Kafka must be one batch.
        """
        replica = self.replica
        if replica is not None and self._transaction_start >= 0:
            return size <= replica.transaction_bytes_max
        return (
            (self.codec != 0 or replica is not None)
            and self._count < _PACKED_RECORDS_MAX
            and persistent == self._persistent
            and size <= RECORDS_SIZE_BYTES_MAX
        )

    def _close_batch(self) -> None:
        self._resume_batch()
        writer = self._writer
        if writer is None:
            return
        self._close(writer.getvalue())
        if len(writer) > _KEPT_WRITER_SIZE:
            self._writer = None
        else:
            writer.truncate(0)

    def _close(self, records: bytes, more: list[bytes] = _NO_PARTS) -> None:
        """Close a batch of the `_count` records that end before `next_offset`.

        The batch has the time at which it is closed. A reader that starts at a time then gets everything appended
        since, also when a loop turn was long.

        Args:
            more: parts that follow `records` in the file.
        """
        self._timestamp_ms = self._context.clock.time_ms()
        attributes: i64 = LOG_APPEND_TIME
        codec: i64 = self.codec
        if codec != 0 and not more:
            packed = compress_records(codec, records)
            if packed is not records:
                records = packed
                attributes |= codec
        if not self._persistent:
            attributes |= TRANSIENT
        producer: i64 = self._producer
        sequence: i64 = self._base_sequence
        if self._transaction_start >= 0:
            attributes |= TRANSACTIONAL
            producer = self._transaction_start
            sequence = self._transaction_sequence
            self._transaction_sequence += self._count
        epoch: i64 = self._producer_epoch if self._transaction_start < 0 else 0
        replica = self.replica
        if replica is not None:
            if self._transaction_start >= 0:
                raise ValueError("a transaction for Kafka must be one batch")
            attributes &= COMPRESSION
            producer = replica.producer_id
            epoch = replica.epoch
            sequence = replica.reserve_sequences(self._count)
        batch = close_batch(
            self._context.scratch,
            records,
            self.owner.next_offset - self._count,
            self._count,
            self._log.next_epoch(),
            attributes,
            self._timestamp_ms,
            self._body_bytes,
            producer,
            sequence,
            self._transaction_start,
            more,
            epoch,
        )
        self._batches.append(batch)
        if replica is not None:
            batch.joins = attributes == 0 and not more
            replica.closed.append(batch)
        if self._producing:
            self._base_sequence += self._count
        elif producer != NO_PRODUCER:
            self._reset_producer()
        if self._persistent and self._log.durable:
            self.owner.needs_commit = True
        self._count = 0
        self._body_bytes = 0

    # -- the end of a turn

    def write(self) -> None:
        """Write everything appended since the last call to the files. Raises nothing.

        Batches that were not written are subtracted from the counts and named in `failed_ranges`.
        """
        if self._count > 0:
            self._close_batch()
        batches = self._batches
        if not batches:
            return
        self._batches = []
        owner = self.owner
        log = self._log
        done: i64 = append_to(log, batches)
        total: i64 = len(batches)
        index: i64 = 0
        size: i64 = 0
        while index < done:
            size += batches[index].size
            index += 1
        if log.durable:
            owner.written_bytes += size
        else:
            size = log.unsynced.count_spilled(size)
            if size > 0:
                owner.written_bytes += size
                owner.needs_commit = True
        if done < total:
            owner.write_failed = True
            if log.failed:
                owner.failed = True
            self._note_failed(batches, done)
            owner.recompute_counts()

    def _note_failed(self, batches: list[ClosedBatch], done: i64) -> None:
        ranges: list[tuple[int, int]] = []
        first: i64 = -1
        last: i64 = -1
        for index in range(done, len(batches)):
            batch = batches[index]
            if batch.attributes & CONTROL and batch.attributes & LOG_APPEND_TIME:
                continue  # a commit marker of ours is no message
            if first >= 0 and batch.base_offset != last + 1:
                ranges.append((first, last))
                first = -1
            if first < 0:
                first = batch.base_offset
            last = batch.last_offset
        if first >= 0:
            ranges.append((first, last))
        owner = self.owner
        owner.failed_ranges = owner.failed_ranges + ranges
        for range_first, range_last in ranges:
            owner.on_not_written(range_first, range_last)

    def return_writer(self) -> None:
        """Return the empty writer to the pool for another log, at the end of a loop turn."""
        writer = self._writer
        if writer is not None:
            self._writer = None
            if len(self._context.writers) < _POOL_MAX:
                self._context.writers.append(writer)
