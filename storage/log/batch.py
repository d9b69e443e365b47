"""Record batches: Kafka's record batch v2, written by us with one small freedom that the format leaves.

    base offset i64 | batch length i32 | partition leader epoch i32 | magic i8 = 2 | CRC-32C u32 over what follows |
    attributes i16 | last offset delta i32 | base timestamp i64 | max timestamp i64 | producer id i64 | producer epoch
    i16 | base sequence i32 | record count i32 | records

All big endian; batch length counts what follows it. Attributes: bits 0 to 2 how the records are compressed
(compression.py), bit 3 LogAppendTime (always ours: the max timestamp is the time of all; without it, CreateTime, each
record has its own, the base timestamp and its delta), bit 4 part of a transaction, bit 5 control batch, and bit 14,
which Kafka leaves free: *transient*. A transient batch is delivered as any other, is not waited for by a confirm, and
does not count after a restart.

A batch closes at 64 records or 64 KiB (a larger message goes alone): one record is cheap to read, and offset deltas
stay one byte. It never mixes transient and persistent messages. The CRC does not cover the base offset nor the epoch.

While a batch is open its records stand in a `BytesWriter` that is borrowed for the length of a loop turn; closed, it
is two `bytes`, header and records, which go to the file as they are in one `writev`. Of a large message the record
comes in parts (`ClosedBatch.more`), which nobody joins.
"""

from __future__ import annotations

from typing import Final, final

from google_crc32c import extend, value
from librt.strings import BytesWriter, read_i64_be, write_i64_be
from mypy_extensions import i64

from amqpd.storage.log.decoder import RECORD_OVERHEAD_BYTES, RecordDecoder
from amqpd.storage.log.places import Places
from amqpd.storage.log.record import (
    BadRecord,
    Record,
    read_offset_delta,
    read_varint,
    record_stop,
    value_size,
    varint,
)
from amqpd.storage.acks.ack_set import COUNT_MAX, SettledSet, write_u32

HEADER_SIZE: Final[i64] = 61
CRC_START: Final[i64] = 21
LENGTH_OVERHEAD: Final[i64] = 12
MAGIC: Final[i64] = 2
RECORDS_MAX: Final[i64] = 64
RECORDS_SIZE_BYTES_MAX: Final[i64] = 65536 - 61

LOG_APPEND_TIME: Final[i64] = 0x08
TRANSACTIONAL: Final[i64] = 0x10
CONTROL: Final[i64] = 0x20
TRANSIENT: Final[i64] = 0x4000
COMPRESSION: Final[i64] = 0x07
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
"""Names of the numbers that `COMPRESSION` masks; there are no others. See compression.py."""
_CODEC_MAX: Final[i64] = 4

NO_PRODUCER: Final[i64] = -1
_CRC_PIECE: Final[i64] = 1 << 14  # stays in the nearest cache between its copy and its sum
_NO_PARTS: Final[list[bytes]] = []
_NO_BYTES: Final = b""
# What places may hold of a batch, whatever part of it they are of.
_HELD_SIZE_MAX: Final[i64] = 128 * 1024
# Control record: key = version 0, type 1 (commit); value = version 0, coordinator epoch 0.
_COMMIT_RECORD: Final = (
    b"\x00\x00\x00" + varint(4) + b"\x00\x00\x00\x01" + varint(6) + b"\x00\x00\x00\x00\x00\x00" + b"\x00"
)
COMMIT_RECORDS: Final = varint(len(_COMMIT_RECORD)) + _COMMIT_RECORD


@final
class ClosedBatch:
    """A batch ready for the file. `last_offset` is inclusive; `position` in the file is known once it is written.

    more: what follows `records` in the file, in parts. joins: messages for Kafka, which may go there in one batch with
    those of their neighbours.
    """

    def __init__(
        self,
        header: bytes,
        records: bytes,
        base_offset: i64,
        last_offset: i64,
        timestamp_ms: i64,
        body_size_bytes: i64,
        attributes: i64,
        transaction_start: i64,
        more: list[bytes],
    ) -> None:
        self.header: bytes = header
        self.records: bytes = records
        self.base_offset: i64 = base_offset
        self.last_offset: i64 = last_offset
        self.timestamp_ms: i64 = timestamp_ms
        self.body_size_bytes: i64 = body_size_bytes
        self.attributes: i64 = attributes
        self.transaction_start: i64 = transaction_start
        self.more: list[bytes] = more
        size: i64 = len(header) + len(records)
        for part in more:
            size += len(part)
        self.size: i64 = size
        self.joins: bool = False


def close_batch(
    scratch: BytesWriter,
    records: bytes,
    base_offset: i64,
    count: i64,
    epoch: i64,
    attributes: i64,
    timestamp_ms: i64,
    body_size_bytes: i64,
    producer_id: i64,
    sequence: i64,
    transaction_start: i64,
    more: list[bytes] = _NO_PARTS,
    producer_epoch: i64 = 0,
) -> ClosedBatch:
    """Puts the header before `records` and what follows them. Cost: about 1 us and the CRC (26 GB/s).

    scratch: any writer, emptied here. producer_id: NO_PRODUCER, the transaction's number, or whose messages these are:
    `sequence` is the first one's number then.
    transaction_start: first offset of the transaction the batch belongs to, -1 for none.
    """
    last_delta: i64 = count - 1
    epoch_of_producer: i64 = 0xFFFF if producer_id < 0 else producer_epoch
    scratch.truncate(0)
    # The 40 bytes that the CRC covers are five words, whatever the fields' borders.
    write_i64_be(scratch, (attributes << 48) | (last_delta << 16) | (timestamp_ms >> 48))
    write_i64_be(scratch, (timestamp_ms << 16) | (timestamp_ms >> 48))
    write_i64_be(scratch, (timestamp_ms << 16) | ((producer_id >> 48) & 0xFFFF))
    low: i64 = producer_id & 0xFFFF_FFFF_FFFF
    if low >= 0x8000_0000_0000:
        low -= 0x1_0000_0000_0000  # a number of a word's size, to Python too
    write_i64_be(scratch, (low << 16) | epoch_of_producer)
    write_i64_be(scratch, (sequence << 32) | count)
    covered = scratch.getvalue()
    crc: i64 = extend(value(covered), records)
    length: i64 = len(records) + HEADER_SIZE - LENGTH_OVERHEAD
    for part in more:
        crc = extend(crc, part)
        length += len(part)
    scratch.truncate(0)
    write_i64_be(scratch, base_offset)
    write_i64_be(scratch, (length << 32) | epoch)
    scratch.append(2)  # magic
    write_u32(scratch, crc)
    scratch.write(covered)
    header = scratch.getvalue()
    return ClosedBatch(
        header,
        records,
        base_offset,
        base_offset + last_delta,
        timestamp_ms,
        body_size_bytes,
        attributes,
        transaction_start,
        more,
    )


@final
class BatchHeader:
    """The fields of a batch's header that readers here need. `size`: the whole batch in bytes."""

    def __init__(self, data: bytes, position: i64) -> None:
        # read in words of eight bytes, whatever the fields' borders
        word: i64 = read_i64_be(data, position + 8)
        self.base_offset: i64 = read_i64_be(data, position)
        self.size: i64 = LENGTH_OVERHEAD + (word >> 32)
        self.epoch: i64 = word & 0xFFFF_FFFF
        word = read_i64_be(data, position + 16)
        self.magic: i64 = (word >> 56) & 0xFF
        self.crc: i64 = (word >> 24) & 0xFFFF_FFFF
        word = read_i64_be(data, position + 21)
        self.attributes: i64 = (word >> 48) & 0xFFFF
        self.last_offset: i64 = self.base_offset + ((word >> 16) & 0xFFFF_FFFF)
        self.base_timestamp_ms: i64 = read_i64_be(data, position + 27)
        self.max_timestamp_ms: i64 = read_i64_be(data, position + 35)
        self.producer_id: i64 = read_i64_be(data, position + 43)
        word = read_i64_be(data, position + 49)
        self.producer_epoch: i64 = (word >> 32) & 0xFFFF
        self.base_sequence: i64 = word & 0xFFFF_FFFF
        self.count: i64 = read_i64_be(data, position + 53) & 0xFFFF_FFFF

    def plausible(self) -> bool:
        """Whether the fields can be those of a batch; says nothing about the checksum."""
        return (
            self.magic == MAGIC
            and self.size >= HEADER_SIZE
            and self.base_offset >= 0
            and self.last_offset >= self.base_offset
            and self.count > 0
            and self.count <= self.last_offset - self.base_offset + 1
            and self.attributes & COMPRESSION <= _CODEC_MAX
        )

    def emptied(self) -> bool:
        """Whether it is a batch of which Kafka's compaction has left the header alone; no log of ours has one."""
        return (
            self.magic == MAGIC
            and self.count == 0
            and self.size == HEADER_SIZE
            and self.base_offset >= 0
            and self.last_offset >= self.base_offset
        )

    def leads_to(self, behind: BatchHeader, expected: i64) -> bool:
        """Whether `behind`, found where this damaged batch ends, goes on from it: by its last offset or by its count,
        of which one bad bit spoils one. expected: the first offset that this one may have.
        """
        return behind.base_offset >= expected and (
            behind.base_offset == self.last_offset + 1 or behind.base_offset == expected + self.count
        )

    def size_less_bit(self, bit: i64) -> i64:
        """The size if that bit of the length, 0 to 31, is the wrong one. Where the checksum, which does not cover the
        length, is right by it, the batch behind starts there.
        """
        wrong: i64 = 0x1_0000_0000 >> (32 - bit)  # 1 << bit is an int to C, and negative for bit 31
        return LENGTH_OVERHEAD + (((self.size - LENGTH_OVERHEAD) & 0xFFFF_FFFF) ^ wrong)

    def transient(self) -> bool:
        """Whether the batch does not count after a restart."""
        return self.attributes & TRANSIENT != 0

    def control(self) -> bool:
        """Whether it holds a marker instead of messages."""
        return self.attributes & CONTROL != 0

    def compressed(self) -> bool:
        """Whether its records are, and `compression.plain` comes before them."""
        return self.attributes & COMPRESSION != 0


def crc_fits(data: bytes, position: i64, header: BatchHeader) -> bool:
    """Whether the checksum of the whole batch at `position` in `data` is right.

    Cost: one copy, and the CRC; in pieces whose memory is used again.
    """
    end: i64 = position + header.size
    if end > len(data):
        return False
    position += CRC_START
    piece_end: i64 = position + _CRC_PIECE
    if piece_end >= end:
        crc: i64 = value(data[position:end])
        return crc == header.crc
    crc = value(data[position:piece_end])
    while piece_end < end:
        position = piece_end
        piece_end = position + _CRC_PIECE
        if piece_end > end:
            piece_end = end
        crc = extend(crc, data[position:piece_end])
    return crc == header.crc


def checked(data: bytes, position: i64, header: BatchHeader) -> bytes:
    """What the checksum of the batch at `position` covers, from CRC_START on, if it is right; else empty.

    Cost: one copy, and the CRC.
    """
    end: i64 = position + header.size
    if end > len(data):
        return _NO_BYTES
    covered = data[position + CRC_START : end]
    crc: i64 = value(covered)
    return covered if crc == header.crc else _NO_BYTES


def body_size_bytes(data: bytes, position: i64, header: BatchHeader) -> i64:
    """Sum of the sizes of the bodies in the (plain) batch at `position`. Cost: about 30 ns a record.

    Raises: BadRecord.
    """
    end: i64 = position + header.size
    position += HEADER_SIZE
    total: i64 = 0
    count: i64 = header.count
    stop: i64 = 0
    while count > 0:
        position, stop = record_stop(data, position, end)
        total += value_size(data, position, stop)
        position = stop
        count -= 1
    return total


def missing_offsets(data: bytes, position: i64, header: BatchHeader) -> list[tuple[int, int]]:
    """Ranges between the (plain) batch's first and last offset that no record of it has: the cleaner took them.

    Cost: none where there are none, else some 50 ns a record. Raises: BadRecord.
    """
    found: list[tuple[int, int]] = []
    if header.control() or header.count == header.last_offset - header.base_offset + 1:
        return found
    end: i64 = position + header.size
    position += HEADER_SIZE
    expected: i64 = header.base_offset
    count: i64 = header.count
    while count > 0:
        start: i64 = 0
        stop: i64 = 0
        delta: i64 = 0
        start, stop = record_stop(data, position, end)
        delta, start = read_offset_delta(data, start)
        offset: i64 = header.base_offset + delta
        if offset > expected:
            found.append((expected, offset - 1))
        expected = offset + 1
        position = stop
        count -= 1
    if expected <= header.last_offset:
        found.append((expected, header.last_offset))
    return found


@final
class BatchCursor:
    """A place within one (plain) batch: where reading goes on. Holds the batch's bytes while it does.

    decoder: the one of the log, where batch after batch is read. timestamp_ms: no record is later.
    """

    def __init__(self, data: bytes, position: i64, header: BatchHeader, decoder: RecordDecoder | None = None) -> None:
        self._decoder: RecordDecoder = decoder if decoder is not None else RecordDecoder()
        self._data: bytes = data
        self._position: i64 = position + HEADER_SIZE
        self._end: i64 = position + header.size
        self.remaining: i64 = 0 if header.control() else header.count
        self.base_offset: i64 = header.base_offset
        self.last_offset: i64 = header.last_offset
        self.next_offset: i64 = header.base_offset  # no record of a lower offset is still to come
        self.timestamp_ms: i64 = header.max_timestamp_ms
        self._base_timestamp_ms: i64 = header.base_timestamp_ms
        self._create_time: bool = header.attributes & LOG_APPEND_TIME == 0
        self._persistent: bool = not header.transient()

    def read(
        self,
        wanted: i64,
        settled: SettledSet | None,
        returned: dict[int, int],
        budget: i64,
        records: list[Record],
    ) -> i64:
        """Appends to `records` those from offset `wanted` on that are not settled, while `budget` bytes last.

        returned: offset -> tally (ack_set.py). Returns the budget left; the record that uses it up is still given.
        Cost: about 120 ns a record, 15 ns for one that is passed over. Raises: BadRecord.
        """
        data = self._data
        decoder = self._decoder
        position: i64 = self._position
        end: i64 = self._end
        check: bool = settled is not None and settled.highest >= self.next_offset
        timestamp_ms: i64 = self.timestamp_ms
        create_time: bool = self._create_time
        while self.remaining > 0 and budget > 0:
            start: i64 = 0
            stop: i64 = 0
            start, stop = record_stop(data, position, end)
            delta: i64 = 0
            if create_time:
                timestamp_ms, _ = read_varint(data, start + 1)
                timestamp_ms += self._base_timestamp_ms
            delta, start = read_offset_delta(data, start)
            offset: i64 = self.base_offset + delta
            position = stop
            self.remaining -= 1
            self.next_offset = offset + 1
            if offset < wanted:
                continue
            if check and settled is not None and settled.contains(offset):
                continue
            record = decoder.read(data, start, stop, offset, timestamp_ms, self._persistent)
            if returned:
                record.delivery_count = returned.get(offset, 0) & COUNT_MAX
            records.append(record)
            budget -= len(record.body) + len(record.properties) + RECORD_OVERHEAD_BYTES
        self._position = position
        if self.remaining == 0:
            self.next_offset = self.last_offset + 1
        return budget

    def read_places(self, wanted: i64, settled: SettledSet | None, budget: i64, places: Places) -> i64:
        """As `read`, of records that were never given back: adds them to `places`. Cost: about 40 ns a record; a copy
        of its body where the batch is so large that it is not to be held for a few records.
        """
        data = self._data
        apart: bool = len(data) > _HELD_SIZE_MAX
        decoder = self._decoder
        position: i64 = self._position
        end: i64 = self._end
        check: bool = settled is not None and settled.highest >= self.next_offset
        timestamp_ms: i64 = self.timestamp_ms
        create_time: bool = self._create_time
        while self.remaining > 0 and budget > 0:
            start: i64 = 0
            stop: i64 = 0
            start, stop = record_stop(data, position, end)
            delta: i64 = 0
            if create_time:
                timestamp_ms, _ = read_varint(data, start + 1)
                timestamp_ms += self._base_timestamp_ms
            delta, start = read_offset_delta(data, start)
            offset: i64 = self.base_offset + delta
            position = stop
            self.remaining -= 1
            self.next_offset = offset + 1
            if offset < wanted:
                continue
            if check and settled is not None and settled.contains(offset):
                continue
            if apart:
                record = decoder.read(data, start, stop, offset, timestamp_ms, self._persistent)
                places.add_record(record)
                budget -= len(record.body) + len(record.properties) + RECORD_OVERHEAD_BYTES
            else:
                budget -= decoder.place(data, start, stop, offset, timestamp_ms, self._persistent, places)
        self._position = position
        if self.remaining == 0:
            self.next_offset = self.last_offset + 1
        return budget

    def pass_over(self, wanted: i64, settled: SettledSet | None) -> tuple[i64, i64]:
        """Goes to the batch's end: (how many records from offset `wanted` on are not settled, bytes of their bodies).

        Cost: some 40 ns a record. Raises: BadRecord, and then stays where it is.
        """
        data = self._data
        position: i64 = self._position
        end: i64 = self._end
        left: i64 = self.remaining
        check: bool = settled is not None and settled.highest >= self.next_offset
        count: i64 = 0
        size: i64 = 0
        while left > 0:
            start: i64 = 0
            stop: i64 = 0
            start, stop = record_stop(data, position, end)
            delta: i64 = 0
            delta, _ = read_offset_delta(data, start)
            offset: i64 = self.base_offset + delta
            position = stop
            left -= 1
            if offset < wanted:
                continue
            if check and settled is not None and settled.contains(offset):
                continue
            count += 1
            size += value_size(data, start, stop)
        self._position = position
        self.remaining = 0
        self.next_offset = self.last_offset + 1
        return count, size


__all__ = [
    "BadRecord",
    "BatchCursor",
    "BatchHeader",
    "ClosedBatch",
    "body_size_bytes",
    "checked",
    "close_batch",
    "crc_fits",
    "missing_offsets",
]
