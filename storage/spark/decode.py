"""Where the fields of every record in a piece of log begin and end, as numbers that Arrow takes for offsets.

A record's key, value and two headers stand one after the other, so their borders, eight for each record, only rise.
Arrow's binary array is a buffer of bytes and a buffer of rising i32 offsets into it: the piece of log *is* the bytes
and the borders *are* the offsets, and a column is every eighth element of that one array (arrow.py). No object is
made for a record, and no field is touched.

    per record: i32 borders (little endian) of routing key, gap, body, gap, exchange, gap, properties, gap

Whole batches only, and none that is compressed: the scan ends there, and the caller unpacks it (compression.py) into
bytes that are scanned instead. A batch that a checksum, its header or its records give away as bad ends the scan; the
caller (read.py) decides whether that is an error. A batch whose headers come in another order than ours (another
program wrote it) ends the scan too, and is read record by record.

Compiled by mypyc: some 60 ns a record without the checksum; interpreted about 2 us.
"""

from __future__ import annotations

from typing import Any, Final, final

from google_crc32c import value
from librt.strings import BytesWriter, read_i64_le, write_i64_le
from mypy_extensions import i64

from amqpd.storage.log.batch import CRC_START, HEADER_SIZE, LOG_APPEND_TIME, BatchHeader
from amqpd.storage.log.record import BadRecord, read_varint

# How a scan ended.
MORE: Final[i64] = 0
"""The bytes end before the next batch does; `needed` says how many are wanted from `position` on."""
FULL: Final[i64] = 1
"""As many rows as were asked for."""
DONE: Final[i64] = 2
"""The next batch is at or behind the last offset wanted."""
BAD: Final[i64] = 3
"""No good batch stands at `position`; `reason` says why."""
IRREGULAR: Final[i64] = 4
"""The batch at `position` is good, and its records have headers in another order than ours."""
PACKED: Final[i64] = 5
"""The batch at `position` is good, and its records are compressed."""

_MARK_EXCHANGE: Final = b"\x04\x10exchange"
_MARK_PROPERTIES: Final = b"\x14properties"
_NOTHING: Final = b""
COMPILED: Final[bool] = not __file__.endswith(".py")


@final
class Borders:
    """What scans of one piece have found so far, as the buffers that the module describes.

    rows: records found. offsets: their offsets, i64 little endian. timestamps: the broker's time of each in us, i64
    little endian. position: where the next scan goes on. expected: no batch from there on may start below it. at_end:
    the bytes end where the file does. segment_end: no batch of the file reaches it. buffer: the same bytes as a
    pyarrow.Buffer, whose slices, for the checksum, are no copies; None: bytes are sliced.
    """

    def __init__(self, expected: i64, segment_end: i64) -> None:
        self.at_end: bool = False
        self.buffer: Any = None
        self.segment_end: i64 = segment_end
        self.rows: i64 = 0
        self.position: i64 = 0
        self.needed: i64 = 0
        self.expected: i64 = expected
        self.reason: str = ""
        self.borders: BytesWriter = BytesWriter()
        self.offsets: BytesWriter = BytesWriter()
        self.timestamps: BytesWriter = BytesWriter()
        # What stood between body and properties last time, from which records differ only when their route does.
        self.middle: bytes = _NOTHING
        self.exchange_start: i64 = 0
        self.at: i64 = 0  # in the bytes, while a record is read: behind what was read last

    def clear(self) -> None:
        """Forgets the rows, keeps the place."""
        self.rows = 0
        self.borders.truncate(0)
        self.offsets.truncate(0)
        self.timestamps.truncate(0)


def scan(
    found: Borders,
    data: bytes,
    first: i64,
    stop: i64,
    rows_max: i64,
    check_crc: bool,
    settled: bytes,
    settled_base: i64,
    transient_start: i64,
) -> i64:
    """Goes over the batches of `data` from `found.position` on; adds the records with first <= offset < stop.

    data: at most 2 GiB. rows_max: the scan ends with the batch that reaches it. settled: one bit per offset from
    `settled_base` on, lowest bit first; those whose bit is set are passed over. transient_start: transient batches that
    begin below it are of an earlier life of the broker and do not count. Returns how it ended.
    """
    size: i64 = len(data)
    position: i64 = found.position
    found.reason = ""
    while True:
        found.position = position
        if found.rows >= rows_max:
            return FULL
        if position + HEADER_SIZE > size:
            found.needed = HEADER_SIZE
            return MORE
        header = BatchHeader(data, position)
        if not header.plausible():
            found.reason = "no batch begins there"
            return BAD
        if header.base_offset < found.expected or header.last_offset >= found.segment_end:
            found.reason = "the batch's offset does not fit its neighbours"
            return BAD
        if header.base_offset > found.expected:
            gap: i64 = _gap(found, data, position, header)
            if gap != DONE:
                return gap
        if header.base_offset >= stop:
            return DONE
        end: i64 = position + header.size
        dead = header.transient() and header.base_offset < transient_start
        if header.last_offset < first or header.control() or dead:
            found.expected = header.last_offset + 1
            position = end
            if position > size:
                found.position = position
                found.needed = HEADER_SIZE
                return MORE
            continue
        if end > size:
            found.needed = header.size
            return MORE
        if check_crc and not _whole(found, data, position, header):
            return BAD
        ended: i64 = _batch(found, data, position, header, first, stop, settled, settled_base)
        if ended != DONE:
            return ended
        found.expected = header.last_offset + 1
        position = end


def _gap(found: Borders, data: bytes, position: i64, header: BatchHeader) -> i64:
    """DONE where the batch at `position` may follow a gap: that is legal, but the checksum does not cover the offset.
    If the batch behind starts before this one ends, it is this one that is wrong.
    """
    behind: i64 = position + header.size
    if behind + HEADER_SIZE <= len(data):
        after = BatchHeader(data, behind)
        if after.plausible() and found.expected <= after.base_offset <= header.last_offset:
            found.reason = "the batch's offset does not fit its neighbours"
            return BAD
    elif not found.at_end:
        found.needed = header.size + HEADER_SIZE
        return MORE
    return DONE


def _whole(found: Borders, data: bytes, position: i64, header: BatchHeader) -> bool:
    """Whether the batch's checksum is right."""
    buffer = found.buffer
    start = position + CRC_START
    end = position + header.size
    crc: i64 = value(data[start:end] if buffer is None else buffer.slice(start, end - start))
    if crc != header.crc:
        found.reason = "the checksum is wrong"
        return False
    return True


def _stands(wanted: bytes, size: i64, data: bytes, position: i64) -> bool:
    """Whether `wanted`, of `size` >= 8 bytes, is in `data` at `position`, word by word: no call into Python's bytes."""
    at: i64 = 0
    while at + 8 <= size:
        if read_i64_le(wanted, at) != read_i64_le(data, position + at):
            return False
        at += 8
    return read_i64_le(wanted, size - 8) == read_i64_le(data, position + size - 8)


def _field(found: Borders, data: bytes) -> i64:
    """Where the field begins whose length stands at `found.at`; that is then behind the field. A null one is empty."""
    # Zigzag, so an odd number is a negative length; one or two bytes in nearly all cases.
    position: i64 = found.at
    number: i64 = data[position]
    position += 1
    if number >= 0x80:
        byte: i64 = data[position]
        if byte < 0x80:
            number = (number & 0x7F) | (byte << 7)
            position += 1
        else:
            number, position = read_varint(data, position - 1)
            number <<= 1
    found.at = position if number & 1 or number < 0 else position + (number >> 1)
    return position


def _record_end(found: Borders, data: bytes, position: i64, end: i64) -> i64:
    """Where the record at `position` ends; `found.at` is then behind its length. Raises: BadRecord, IndexError."""
    found.at = position
    start: i64 = _field(found, data)
    record_end: i64 = found.at
    if record_end <= start:
        raise BadRecord("a record of no or negative length")
    if record_end > end:
        raise BadRecord("a record runs past the end of its batch")
    found.at = start
    return record_end


def _learn_middle(found: Borders, data: bytes, position: i64, record_end: i64) -> bool:
    """What stands at `position` between a record's body and its properties, for the records that follow; False where
    that is not what we write.
    """
    if not data.startswith(_MARK_EXCHANGE, position):
        return False
    exchange_size: i64 = 0
    number: i64 = 0
    exchange_size, number = read_varint(data, position + 10)
    if exchange_size < 0 or number + exchange_size > record_end:
        return False
    found.exchange_start = number - position
    number += exchange_size
    if not data.startswith(_MARK_PROPERTIES, number):
        return False
    found.middle = data[position : number + 11]
    return True


def _row(found: Borders, data: bytes, record_end: i64, offset: i64, timestamp_us: i64) -> bool:
    """Adds the record whose key's length stands at `found.at`; False when its headers are not in our order."""
    key: i64 = _field(found, data)
    key_end: i64 = found.at
    body: i64 = _field(found, data)
    body_end: i64 = found.at
    position: i64 = body_end
    # Headers.
    middle = found.middle
    middle_size: i64 = len(middle)
    if (
        middle_size == 0
        or position + middle_size > record_end
        or not (_stands(middle, middle_size, data, position) if COMPILED else data.startswith(middle, position))
    ):
        if not _learn_middle(found, data, position, record_end):
            return False
        middle = found.middle
        middle_size = len(middle)
    exchange: i64 = position + found.exchange_start
    position += middle_size
    exchange_end: i64 = position - 11
    found.at = position
    properties: i64 = _field(found, data)
    position = found.at
    if position != record_end:
        return False
    borders = found.borders
    write_i64_le(found.offsets, offset)
    write_i64_le(found.timestamps, timestamp_us)
    write_i64_le(borders, key | (key_end << 32))
    write_i64_le(borders, body | (body_end << 32))
    write_i64_le(borders, exchange | (exchange_end << 32))
    write_i64_le(borders, properties | (position << 32))
    return True


def _batch(
    found: Borders,
    data: bytes,
    position: i64,
    header: BatchHeader,
    first: i64,
    stop: i64,
    settled: bytes,
    settled_base: i64,
) -> i64:
    """Adds the batch's records, all that are wanted or none. DONE; else BAD, IRREGULAR or PACKED."""
    if header.compressed():
        return PACKED
    rows: i64 = found.rows
    try:
        regular = _records(found, data, position, header, first, stop, settled, settled_base)
    except (BadRecord, IndexError) as error:
        regular = True
        found.reason = "the checksum is right and the records are none: " + str(error)
    if regular and found.reason == "":
        return DONE
    found.rows = rows
    back: int = rows
    found.borders.truncate(back * 32)
    found.offsets.truncate(back * 8)
    found.timestamps.truncate(back * 8)
    return BAD if regular else IRREGULAR


def _records(
    found: Borders,
    data: bytes,
    position: i64,
    header: BatchHeader,
    first: i64,
    stop: i64,
    settled: bytes,
    settled_base: i64,
) -> bool:
    """The records of one batch; False when a record's headers are not in our order. Raises: BadRecord, IndexError."""
    timestamp_us: i64 = header.max_timestamp_ms * 1000
    create_time: bool = header.attributes & LOG_APPEND_TIME == 0
    base: i64 = header.base_offset
    end: i64 = position + header.size
    settled_end: i64 = settled_base + len(settled) * 8
    count: i64 = header.count
    rows: i64 = found.rows
    position += HEADER_SIZE
    while count > 0:
        count -= 1
        record_end: i64 = _record_end(found, data, position, end)
        position = found.at
        if create_time:
            timestamp_us, _ = read_varint(data, position + 1)
            timestamp_us = (timestamp_us + header.base_timestamp_ms) * 1000
        # Attributes, timestamp delta, offset delta.
        delta: i64 = data[position + 2]
        if delta < 0x80 and data[position + 1] == 0:
            delta >>= 1
            position += 3
        else:
            delta, position = read_varint(data, position + 1)
            delta, position = read_varint(data, position)
        offset: i64 = base + delta
        if offset < first or offset >= stop:
            position = record_end
            continue
        if settled_base <= offset < settled_end:
            place: i64 = offset - settled_base
            if (settled[place >> 3] >> (place & 7)) & 1:
                position = record_end
                continue
        found.at = position
        if not _row(found, data, record_end, offset, timestamp_us):
            return False
        position = record_end
        rows += 1
    found.rows = rows
    return True
