"""Record batches that another program closed (a Kafka client, say): looked at, and put at the end as they are.

What stands in a log is never doubted again before it is read, so everything is checked here: sizes, checksum, offset
deltas, and that each record can be read. Then, as Kafka's broker does, the batch gets its base offset and the leader
epoch, which the checksum does not cover; not another byte changes.

Compressed ones stay compressed, and times that their program gave (CreateTime) stay as they are: a broker that takes
batches of Kafka's clients keeps them byte for byte. To be checked they are unpacked once.

Refused: transactional and control batches (their numbers are offsets of the log they come from), batches that a cleaner
has left holes in, and those that unpack to more than readers take.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i64_be
from mypy_extensions import i64

from amqpd.storage.log.batch import (
    COMPRESSION,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    TRANSIENT,
    BatchHeader,
    ClosedBatch,
    crc_fits,
)
from amqpd.storage.log.compression import plain
from amqpd.storage.log.decoder import RecordDecoder
from amqpd.storage.log.record import BadRecord, read_offset_delta, read_varint, record_stop, value_size

_ATTRIBUTES: Final[i64] = LOG_APPEND_TIME | TRANSIENT | COMPRESSION
_EPOCH_END: Final[i64] = 16  # of the fields that the checksum does not cover


class BadBatch(ValueError):
    """The bytes are not whole record batches that a log takes; nothing of them was appended."""


def check_batches(data: bytes) -> list[ClosedBatch]:
    """The batches that `data` consists of, in order; their offsets are still those that they came with.

    Cost: the CRC, unpacking what is compressed, and some 150 ns a record. Raises: BadBatch.
    """
    batches: list[ClosedBatch] = []
    decoder = RecordDecoder()
    position: i64 = 0
    size: i64 = len(data)
    while position < size:
        if position + HEADER_SIZE > size:
            raise BadBatch(f"{size - position} bytes at {position} are no batch")
        header = BatchHeader(data, position)
        if header.attributes & ~_ATTRIBUTES != 0:
            raise BadBatch(f"the batch at {position} has attributes {header.attributes:#x}: it is refused")
        if not header.plausible() or header.count != header.last_offset - header.base_offset + 1:
            raise BadBatch(f"the header at {position} is no batch's")
        if position + header.size > size:
            raise BadBatch(f"the batch at {position} is cut short")
        if not crc_fits(data, position, header):
            raise BadBatch(f"the checksum of the batch at {position} is wrong")
        try:
            image, at, whole = plain(data, position, header)
            bodies = _check_records(image, at, whole, decoder)
        except BadRecord as error:
            raise BadBatch(f"a record of the batch at {position}: {error}") from error
        batches.append(
            ClosedBatch(
                data[position : position + HEADER_SIZE],
                data[position + HEADER_SIZE : position + header.size],
                header.base_offset,
                header.last_offset,
                header.max_timestamp_ms,
                bodies,
                header.attributes,
                -1,
                [],
            )
        )
        position += header.size
    return batches


def _check_records(data: bytes, position: i64, header: BatchHeader, decoder: RecordDecoder) -> i64:
    """Bytes of the bodies. The header's max timestamp is what looks for a time believe, so no record may be later.

    Raises: BadRecord.
    """
    create_time: bool = header.attributes & LOG_APPEND_TIME == 0
    end: i64 = position + header.size
    position += HEADER_SIZE
    total: i64 = 0
    number: i64 = 0
    while number < header.count:
        start: i64 = 0
        stop: i64 = 0
        delta: i64 = 0
        fields: i64 = 0
        start, stop = record_stop(data, position, end)
        delta, fields = read_offset_delta(data, start)
        if create_time:
            timestamp_ms: i64 = 0
            timestamp_ms, _ = read_varint(data, start + 1)
            if header.base_timestamp_ms + timestamp_ms > header.max_timestamp_ms:
                raise BadRecord("its time is later than the latest that the header tells")
        if delta != number:
            raise BadRecord(f"offset delta {delta}, expected {number}")
        decoder.read(data, fields, stop, number, header.max_timestamp_ms, True)
        total += value_size(data, start, stop)
        position = stop
        number += 1
    if position != end:
        raise BadRecord(f"{end - position} bytes follow the last record")
    return total


def place(scratch: BytesWriter, batch: ClosedBatch, base_offset: i64, epoch: i64) -> ClosedBatch:
    """`batch` with that base offset and leader epoch. scratch: any writer, emptied here."""
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
