"""Kafka's record batch v2: header, records, compression.

A batch is a header of 61 bytes and then the records (record.py). Numbers are big endian:

    offset  field                    type
         0  base offset              i64
         8  batch length             i32   bytes after this field
        12  partition leader epoch   i32
        16  magic                    i8    2
        17  CRC-32C                  u32   over everything after this field
        21  attributes               i16   see below
        23  last offset delta        i32
        27  base timestamp           i64
        35  max timestamp            i64
        43  producer id              i64   -1 for none; of our transactions: offset of the first message
        51  producer epoch           i16
        53  base sequence            i32
        57  record count             i32

    attribute bit
    0 to 2   compression of the records: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd
    3        LogAppendTime: the max timestamp holds for all records. We set it, except in batches for Kafka. Without it
             (CreateTime) each record has its own time: base timestamp and delta
    4        part of a transaction. With LogAppendTime it is one of ours, whose batches follow each other; otherwise it
             is one of a Kafka producer (transactions.py)
    5        control batch: a marker, no messages
    14       ours, free in Kafka: transient. Such a batch is delivered as usual, but no confirm waits for it, and it
             does not count after a restart

A batch of ours is closed at 64 records or 64 KiB (a larger message is alone in its batch). So reading one record is
cheap and an offset delta is one byte. Transient and persistent messages are never in one batch. The CRC does not
cover the base offset and the epoch, so these are assigned last.

An open batch is a `BytesWriter`, borrowed for one loop turn. A closed batch is two `bytes`, header and records, which
one `writev` writes. A large message has its body in further parts (`ClosedBatch.more`), which are never joined.

Compression covers the records of a batch together, not its header: offsets, times and count are readable without it.
Formats written here:

    gzip      RFC 1952, level 1; several members are read
    snappy    blocks of Kafka's Java client (xerial): 82 "SNAPPY" 00, two i32 (1, 1), then for each 32 KiB an i32 with
              the size of the block, and raw snappy; one raw block alone is read too
    lz4       frame format with independent blocks, which Kafka's Java client requires
    zstd      RFC 8878, level 3

The checksum is over the compressed bytes and is checked first. Still no size in them is trusted: records that
decompress to more than UNPACKED_MAX, or not at all, raise BadRecord. An attempt costs at most that memory and about
15 ms. `decompressed` returns any batch as if it had never been compressed; all readers of records use it.

cramjam (snappy, lz4, zstd) and zlib release the interpreter lock while they work. cramjam is imported with the first
batch that needs it: 2 ms.
"""

from __future__ import annotations

import zlib
from typing import Any, Final, final

from google_crc32c import extend, value
from librt.strings import BytesWriter, read_i32_le, read_i64_be, write_i64_be
from mypy_extensions import i64

from amqpd.storage.acks.ack_set import COUNT_MAX, AckSet, write_u32
from amqpd.storage.log.record import (
    RECORD_OVERHEAD_BYTES,
    BadRecord,
    Record,
    RecordDecoder,
    RecordsTooLarge,
    RecordViews,
    read_offset_delta,
    read_varint,
    record_stop,
    value_size,
    varint,
)

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
"""Codec names; the index is the number in the attributes."""
_CODEC_MAX: Final[i64] = 4

NO_PRODUCER: Final[i64] = -1
_CRC_PIECE: Final[i64] = 1 << 14  # small enough for the L1 cache between copy and CRC
_NO_PARTS: Final[list[bytes]] = []
_NO_BYTES: Final = b""
# Views reference the bytes of batches up to this size; from larger batches they copy.
_HELD_SIZE_MAX: Final[i64] = 128 * 1024


def _marker_records(marker_type: bytes) -> bytes:
    """Return a control record: key = version 0 and the type; value = version 0, coordinator epoch 0."""
    record = b"\x00\x00\x00" + varint(4) + b"\x00\x00" + marker_type + varint(6) + b"\x00" * 6 + b"\x00"
    return varint(len(record)) + record


COMMIT_RECORDS: Final = _marker_records(b"\x00\x01")
ABORT_RECORDS: Final = _marker_records(b"\x00\x00")
_MARKER_TYPE_AT: Final[i64] = HEADER_SIZE + 8  # low byte; the lengths before it have one byte each


@final
class ClosedBatch:
    """A batch ready for the file.

    Attributes:
        last_offset: inclusive.
        transaction_start: offset of the first message of its transaction, -1 for none.
        more: parts that follow `records` in the file.
        joins: messages for Kafka that may be sent in one batch with their neighbours.
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
    """Return the batch of `records` and `more` with its header.

    Args:
        scratch: any writer; its content is lost.
        producer_id: NO_PRODUCER, the offset that names the transaction, or the producer of all these messages.
        sequence: the number of the first message.
        transaction_start: offset of the first message of the transaction, -1 for none.

    Cost: about 1 us and the CRC (26 GB/s).
    """
    last_delta: i64 = count - 1
    epoch_of_producer: i64 = 0xFFFF if producer_id < 0 else producer_epoch
    scratch.truncate(0)
    # The 40 header bytes under the CRC are written as five words, across the borders of the fields.
    write_i64_be(scratch, (attributes << 48) | (last_delta << 16) | (timestamp_ms >> 48))
    write_i64_be(scratch, (timestamp_ms << 16) | (timestamp_ms >> 48))
    write_i64_be(scratch, (timestamp_ms << 16) | ((producer_id >> 48) & 0xFFFF))
    low: i64 = producer_id & 0xFFFF_FFFF_FFFF
    if low >= 0x8000_0000_0000:
        low -= 0x1_0000_0000_0000  # keeps the value within 64 bits when interpreted, too
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
    """The header fields of the batch at `position` that readers need. Nothing is checked.

    Attributes:
        size: the bytes of the whole batch.
    """

    def __init__(self, data: bytes, position: i64) -> None:
        # Read in words of eight bytes, across the borders of the fields.
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

    def is_plausible(self) -> bool:
        """Return whether the fields can belong to a batch. The checksum is not looked at."""
        return (
            self.magic == MAGIC
            and self.size >= HEADER_SIZE
            and self.base_offset >= 0
            and self.last_offset >= self.base_offset
            and self.count > 0
            and self.count <= self.last_offset - self.base_offset + 1
            and self.attributes & COMPRESSION <= _CODEC_MAX
        )

    def is_header_only(self) -> bool:
        """Return whether Kafka's compaction has left only the header. No log of ours has such a batch."""
        return (
            self.magic == MAGIC
            and self.count == 0
            and self.size == HEADER_SIZE
            and self.base_offset >= 0
            and self.last_offset >= self.base_offset
        )

    def is_followed_by(self, behind: BatchHeader, expected: i64) -> bool:
        """Return whether the header `behind`, found where this damaged batch ends, continues it.

        The last offset or the record count must fit: one bad bit damages only one of them.

        Args:
            expected: the first offset that this batch may have.
        """
        return behind.base_offset >= expected and (
            behind.base_offset == self.last_offset + 1 or behind.base_offset == expected + self.count
        )

    def size_less_bit(self, bit: i64) -> i64:
        """Return the size with one bit of the length field, 0 to 31, flipped.

        The checksum does not cover the length. If the checksum is right for this size, the next batch starts there.
        """
        wrong: i64 = 0x1_0000_0000 >> (32 - bit)  # in C, 1 << bit is an int, and negative for bit 31
        return LENGTH_OVERHEAD + (((self.size - LENGTH_OVERHEAD) & 0xFFFF_FFFF) ^ wrong)

    def is_transient(self) -> bool:
        """Return whether the batch does not count after a restart."""
        return self.attributes & TRANSIENT != 0

    def is_control(self) -> bool:
        """Return whether it contains a marker instead of messages."""
        return self.attributes & CONTROL != 0

    def is_of_producer_transaction(self) -> bool:
        """Return whether it belongs to a transaction of a Kafka producer, as a part or as its marker."""
        return self.attributes & (TRANSACTIONAL | LOG_APPEND_TIME) == TRANSACTIONAL

    def is_compressed(self) -> bool:
        """Return whether its records are compressed. Readers then call `decompressed` first."""
        return self.attributes & COMPRESSION != 0


def is_commit_marker(data: bytes, position: i64) -> bool:
    """Return whether the control batch at `position` is a commit marker, not an abort marker."""
    return position + _MARKER_TYPE_AT < len(data) and data[position + _MARKER_TYPE_AT] == 1


def marker_batch(scratch: BytesWriter, producer_id: i64, epoch: i64, commits: bool, timestamp_ms: i64) -> ClosedBatch:
    """Return the marker that ends a producer's transaction, without offset and leader epoch."""
    records = COMMIT_RECORDS if commits else ABORT_RECORDS
    attributes: i64 = TRANSACTIONAL | CONTROL
    return close_batch(scratch, records, 0, 1, 0, attributes, timestamp_ms, 0, producer_id, -1, -1, _NO_PARTS, epoch)


def with_max_timestamp(head: bytes, records: bytes, timestamp_ms: i64) -> bytes:
    """Return the header of a batch with another max timestamp, and its new checksum."""
    writer = BytesWriter()
    write_i64_be(writer, timestamp_ms)
    covered = head[CRC_START:35] + writer.getvalue() + head[43:]
    crc: i64 = extend(value(covered), records)
    return head[: CRC_START - 4] + int(crc).to_bytes(4, "big") + covered


def crc_fits(data: bytes, position: i64, header: BatchHeader) -> bool:
    """Return whether the checksum of the batch at `position` is right. False if the batch is not complete in `data`.

    Cost: the CRC and one copy, in pieces that reuse memory.
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


def verified_bytes(data: bytes, position: i64, header: BatchHeader) -> bytes:
    """Return the bytes that the checksum of the batch at `position` covers (from CRC_START), empty if it is wrong.

    Cost: the CRC and one copy.
    """
    end: i64 = position + header.size
    if end > len(data):
        return _NO_BYTES
    covered = data[position + CRC_START : end]
    crc: i64 = value(covered)
    return covered if crc == header.crc else _NO_BYTES


def body_size_bytes(data: bytes, position: i64, header: BatchHeader) -> i64:
    """Return the size of all bodies in the uncompressed batch at `position`.

    Cost: about 30 ns per record. Raises: BadRecord.
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
    """Return the offset ranges inside the uncompressed batch that no record has: compaction removed those records.

    Cost: none if the count is complete, else about 50 ns per record. Raises: BadRecord.
    """
    found: list[tuple[int, int]] = []
    if header.is_control() or header.count == header.last_offset - header.base_offset + 1:
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
    """A position inside one uncompressed batch, where reading continues. It references the bytes of the batch.

    Attributes:
        remaining: records not read yet; 0 for a control batch.
        next_offset: all records not read yet have this offset or a higher one.
        timestamp_ms: the latest time in the batch.
    """

    def __init__(self, data: bytes, position: i64, header: BatchHeader, decoder: RecordDecoder | None = None) -> None:
        self._decoder: RecordDecoder = decoder if decoder is not None else RecordDecoder()
        self._data: bytes = data
        self._position: i64 = position + HEADER_SIZE
        self._end: i64 = position + header.size
        self.remaining: i64 = 0 if header.is_control() else header.count
        self.base_offset: i64 = header.base_offset
        self.last_offset: i64 = header.last_offset
        self.next_offset: i64 = header.base_offset
        self.timestamp_ms: i64 = header.max_timestamp_ms
        self._base_timestamp_ms: i64 = header.base_timestamp_ms
        self._create_time: bool = header.attributes & LOG_APPEND_TIME == 0
        self._persistent: bool = not header.is_transient()

    def read(
        self, wanted: i64, settled: AckSet | None, returned: dict[int, int], budget: i64, records: list[Record]
    ) -> i64:
        """Append records with an offset of at least `wanted` that are not settled, while `budget` bytes last.

        The record that uses up the budget is still returned.

        Args:
            returned: offset -> packed count and due time (ack_set.py), for the delivery counts.

        Returns: the remaining budget.
        Cost: about 120 ns per record, 15 ns per skipped record. Raises: BadRecord.
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
            if decoder.work_bytes > 0:
                budget -= decoder.work_bytes
                decoder.work_bytes = 0
        self._position = position
        if self.remaining == 0:
            self.next_offset = self.last_offset + 1
        return budget

    def read_views(self, wanted: i64, settled: AckSet | None, budget: i64, views: RecordViews) -> i64:
        """Add views of records to `views`; otherwise as `read`. Delivery counts are not read.

        From a batch of more than 128 KiB the bodies are copied, so that a few views do not keep a large batch in
        memory.

        Cost: about 40 ns per record.
        """
        data = self._data
        copies: bool = len(data) > _HELD_SIZE_MAX
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
            if copies:
                record = decoder.read(data, start, stop, offset, timestamp_ms, self._persistent)
                views.add_record(record)
                budget -= len(record.body) + len(record.properties) + RECORD_OVERHEAD_BYTES
            else:
                budget -= decoder.read_view(data, start, stop, offset, timestamp_ms, self._persistent, views)
            if decoder.work_bytes > 0:
                budget -= decoder.work_bytes
                decoder.work_bytes = 0
        self._position = position
        if self.remaining == 0:
            self.next_offset = self.last_offset + 1
        return budget

    def skip_rest(self, wanted: i64, settled: AckSet | None) -> tuple[i64, i64]:
        """Go to the end of the batch. Return the number of unsettled records with an offset of at least `wanted`, and
        the size of their bodies.

        Cost: about 40 ns per record. Raises: BadRecord; then the position does not change.
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


NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

UNPACKED_MAX: Final = 16 << 20
"""Maximum bytes of the records of one batch after decompression: about 15 ms. Batches of ours have 64 KiB."""

_PACKED_MAX: Final = UNPACKED_MAX + UNPACKED_MAX // 8
_GZIP_MEMBERS_MAX: Final = 64
"""Maximum number of gzip members in a batch. Producers write one. Each costs a copy of the rest of the batch."""
_SNAPPY_BLOCKS_MAX: Final = 16 * 1024
"""Maximum number of blocks in a batch. Producers write blocks of 1 KiB or more."""

_GZIP_LEVEL: Final = 1  # Kafka's level 6 saves another sixth, but takes five times as long: 2 ms for 64 KiB
_ZSTD_LEVEL: Final = 3
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK: Final = 32 * 1024
# Magic number; version 1, independent blocks, no checksums; blocks of up to 4 MiB; checksum of these two bytes.
_LZ4_HEADER: Final = b"\x04\x22\x4d\x18\x60\x70\x73"
_LZ4_BLOCK: Final = 4 << 20
_LZ4_END: Final = b"\x00\x00\x00\x00"
_LEAST_RECORDS: Final = 256
_MOST_RECORDS: Final = 512 * 1024
_MOST_RECORDS_GZIP: Final = 128 * 1024
_GAIN_SHARE: Final = 16
_GUESS: Final = 8  # first guess: decompressed size / compressed size
_LEAST: Final = 4096
_BUFFER_IS_FULL: Final = "failed to write whole buffer"  # cramjam, for LZ4 and Zstandard


def compress(codec: int, data: bytes) -> bytes:
    """Return `data` compressed. Cost for 64 KiB of JSON: snappy and lz4 0.1 ms, zstd 0.15, gzip 0.4."""
    if codec == GZIP:
        return zlib.compress(data, _GZIP_LEVEL, 31)
    import cramjam

    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL))
    parts: list[bytes] = []
    if codec == SNAPPY:
        parts.append(_XERIAL_HEADER)
        for start in range(0, len(data), _XERIAL_BLOCK):
            block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK]))
            parts += (len(block).to_bytes(4, "big"), block)
        return b"".join(parts)
    if codec == LZ4:
        parts.append(_LZ4_HEADER)
        for start in range(0, len(data), _LZ4_BLOCK):
            block = bytes(cramjam.lz4.compress_block(data[start : start + _LZ4_BLOCK], store_size=False))
            parts += (len(block).to_bytes(4, "little"), block)
        parts.append(_LZ4_END)
        return b"".join(parts)
    raise ValueError(f"unknown codec {codec}")


def compress_records(codec: int, records: bytes) -> bytes:
    """Return the records of a batch compressed, or unchanged if that is not worth it.

    They stay unchanged under 256 bytes, if they would shrink by less than a sixteenth (most compressed bodies), and
    over 512 KiB (gzip: 128 KiB), where compression would block the loop for more than 1 ms.
    """
    size = len(records)
    if not _LEAST_RECORDS <= size <= (_MOST_RECORDS_GZIP if codec == GZIP else _MOST_RECORDS):
        return records
    packed = compress(codec, records)
    return packed if len(packed) <= size - size // _GAIN_SHARE else records


def decompress(codec: int, data: bytes) -> bytes:
    """Return the decompressed `data`, from `compress` or from another program.

    Cost: about 2 ms per MiB. Raises: BadRecord, also for more than UNPACKED_MAX bytes.
    """
    return bytes(unpack(codec, data))


def unpack(codec: int, data: bytes) -> Any:
    """Return an object with the decompressed `data`, of which `bytes` makes a copy: see `decompress`.

    Each of the two steps takes half of the time, some 15 ms for UNPACKED_MAX bytes.
    """
    if len(data) > _PACKED_MAX:
        raise RecordsTooLarge(f"compressed records of {len(data)} bytes; at most {_PACKED_MAX} are accepted")
    if codec == GZIP:
        return _decompress_gzip(data)
    if codec == SNAPPY:
        return _unpack_snappy(data)
    import cramjam

    decompress_into = cramjam.lz4.decompress_into if codec == LZ4 else cramjam.zstd.decompress_into
    if codec not in (LZ4, ZSTD):
        raise BadRecord(f"unknown codec {codec}")
    room = min(max(_GUESS * len(data), _LEAST), UNPACKED_MAX)
    while True:
        out = bytearray(room)
        try:
            size = decompress_into(data, out)
        except cramjam.DecompressionError as error:
            # A full buffer and damaged data have the same class of error.
            if room >= UNPACKED_MAX and str(error) != _BUFFER_IS_FULL:
                raise BadRecord(f"cannot be decompressed: {error}") from None
            if room >= UNPACKED_MAX:
                raise RecordsTooLarge(f"cannot be decompressed to at most {UNPACKED_MAX} bytes: {error}") from None
            room = min(4 * room, UNPACKED_MAX)
            continue
        return memoryview(out)[:size]


def is_lz4_frame(data: bytes) -> bool:
    """Return whether `data` is one LZ4 frame and nothing else. Of several, Java's consumers read only the first.

    Cost: 2 ns a block compiled; a producer may make a block of each byte.
    """
    if len(data) < len(_LZ4_HEADER) or data[:4] != _LZ4_HEADER[:4]:
        return False
    flags: i64 = data[4]
    position: i64 = len(_LZ4_HEADER) + (flags & 8)  # the size of the content has eight bytes
    while position + 4 <= len(data):
        size: i64 = i64(read_i32_le(data, position)) & 0x7FFF_FFFF
        position += 4
        if size == 0:
            return position + (flags & 4) == len(data)  # a checksum of the content has four bytes
        position += size + (flags & 16) // 4  # and so has that of each block
    return False


def _decompress_gzip(data: bytes) -> bytes:
    parts: list[bytes] = []
    left = UNPACKED_MAX
    rest = data
    while rest:
        if len(parts) == _GZIP_MEMBERS_MAX:
            raise BadRecord(f"more than {_GZIP_MEMBERS_MAX} gzip members")
        unpacker = zlib.decompressobj(31)
        try:
            part = unpacker.decompress(rest, left + 1)
        except zlib.error as error:
            raise BadRecord(f"cannot be decompressed: {error}") from None
        left -= len(part)
        if left < 0:
            raise RecordsTooLarge(f"decompresses to more than {UNPACKED_MAX} bytes")
        if not unpacker.eof:
            raise BadRecord("the compressed data is incomplete")
        parts.append(part)
        rest = unpacker.unused_data
    return b"".join(parts) if len(parts) != 1 else parts[0]


def _unpack_snappy(data: bytes) -> Any:
    if not data.startswith(_XERIAL_MAGIC):
        return _unpack_snappy_block(data, UNPACKED_MAX)
    parts: list[Any] = []
    unpacked = 0
    position, size = len(_XERIAL_HEADER), len(data)
    while position < size:
        if len(parts) == _SNAPPY_BLOCKS_MAX:
            raise BadRecord(f"more than {_SNAPPY_BLOCKS_MAX} snappy blocks")
        end = position + 4 + int.from_bytes(data[position : position + 4], "big")
        if position + 4 > size or end > size:
            raise BadRecord("a snappy block extends past the end of its batch")
        part = _unpack_snappy_block(data[position + 4 : end], UNPACKED_MAX - unpacked)
        unpacked += len(part)
        parts.append(part)
        position = end
    return b"".join(parts)


def _unpack_snappy_block(data: bytes, left: int) -> Any:
    import cramjam

    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if size > left:
            raise RecordsTooLarge(f"decompresses to more than {UNPACKED_MAX} bytes")
        return cramjam.snappy.decompress_raw(data)
    except cramjam.DecompressionError as error:
        raise BadRecord(f"cannot be decompressed: {error}") from None


def decompressed(data: bytes, at: int, header: BatchHeader) -> tuple[bytes, int, BatchHeader]:
    """Return the uncompressed batch as (bytes, its position in them, its header).

    The arguments are returned if the batch is not compressed. The caller has checked that all of the batch is in
    `data` and that its checksum is right. The new header keeps the old checksum, which does not fit the new bytes.

    Cost: that of `decompress` and a copy. Raises: BadRecord.
    """
    codec = int(header.attributes & COMPRESSION)
    if codec == NONE:
        return data, at, header
    records_at = at + int(HEADER_SIZE)
    records = decompress(codec, data[records_at : at + int(header.size)])
    image = b"".join(
        (
            data[at : at + 8],
            (int(HEADER_SIZE) - int(LENGTH_OVERHEAD) + len(records)).to_bytes(4, "big"),
            data[at + 12 : at + 21],
            (int(header.attributes) & ~int(COMPRESSION)).to_bytes(2, "big"),
            data[at + 23 : records_at],
            records,
        )
    )
    return image, 0, BatchHeader(image, 0)
