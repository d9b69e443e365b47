"""Scans of pieces of log: field borders of many records, in the form of Arrow's buffers.

`scan`: an Arrow binary array is a buffer of bytes and a buffer of rising i32 offsets. The key, the value and the
two headers of a record follow one another, so their borders rise. So the piece of log is the buffer of bytes, the
borders are its offsets, and a column is every eighth element (arrow.py). No object is made per record, and no field
is copied here.

    per record: i32 borders (little endian) of routing key, gap, body, gap, exchange, gap, properties, gap

A scan reads whole, uncompressed batches. It ends at a compressed batch, which the caller unpacks, and at a bad batch,
about which arrow.py decides. It also ends at a batch of another program whose headers have another order; the caller
reads that record by record. Cost: compiled some 60 ns a record without the checksum, interpreted about 2 us.

`scan_properties` does the same for a column of raw properties. The borders rise, because fields have the order of
their flags:

    per row: i32 borders (little endian) of the 13 fields, begin and end; an absent field is empty
             i64 flags, for the validity of the columns
             i32 delivery mode, i32 priority, i64 timestamp in us (0 if absent)

`scan_headers` writes the values of header tables as texts, and the numbers of their names. Numbers become digits,
booleans true and false, tables and arrays JSON, bytes that are not UTF-8 base64. Of equal names the first counts. An
entry that equals the one at its place in an earlier table is compared, not decoded.

Malformed properties (only other programs can write them) have no fields and no headers.

Compiled by mypyc.
"""

from __future__ import annotations

import json
from base64 import b64encode
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any, Final, final

from google_crc32c import value
from librt.strings import BytesWriter, read_i32_be, read_i32_le, read_i64_be, read_i64_le, write_i32_le, write_i64_le
from mypy_extensions import i32, i64

from amqpd.protocol import properties as p
from amqpd.protocol.field_table import CodecError, decode_value, read_u32
from amqpd.storage.log.batch import CRC_START, HEADER_SIZE, LOG_APPEND_TIME, BatchHeader
from amqpd.storage.log.record import BadRecord, read_varint

# Results of a scan.
MORE: Final[i64] = 0
"""The bytes end inside the next batch; `needed` is the number of bytes wanted from `position` on."""
FULL: Final[i64] = 1
"""The scan has the requested number of rows."""
DONE: Final[i64] = 2
"""The next batch is behind the last wanted offset."""
BAD: Final[i64] = 3
"""There is no good batch at `position`; `reason` says why."""
IRREGULAR: Final[i64] = 4
"""The batch at `position` is good, but the headers of its records are not in our order."""
PACKED: Final[i64] = 5
"""The batch at `position` is good and compressed."""

_MARK_EXCHANGE: Final = b"\x04\x10exchange"
_MARK_PROPERTIES: Final = b"\x14properties"
_NOTHING: Final = b""
COMPILED: Final[bool] = not __file__.endswith(".py")


@final
class FieldOffsets:
    """The results of scans of one piece, in the buffers that the module describes.

    Attributes:
        rows: Number of records.
        offsets: Their offsets, i64 little endian.
        timestamps: Their timestamps in us, i64 little endian.
        position: Start of the next scan.
        expected: The next batch must not start below this offset.
        at_end: The bytes end at the end of the file.
        segment_end: All batches of the file are below this offset.
        buffer: The same bytes as a pyarrow.Buffer, whose slices are no copies; used for checksums. None: bytes are
            sliced.
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
        # The last bytes between a body and its properties. They are equal for records with the same route.
        self.middle: bytes = _NOTHING
        self.exchange_start: i64 = 0
        self.at: i64 = 0  # position behind the last field that was read

    def clear(self) -> None:
        """Drop the rows and keep the position."""
        self.rows = 0
        self.borders.truncate(0)
        self.offsets.truncate(0)
        self.timestamps.truncate(0)


def scan(
    found: FieldOffsets,
    data: bytes,
    first: i64,
    stop: i64,
    rows_max: i64,
    check_crc: bool,
    settled: bytes,
    settled_base: i64,
    transient_start: i64,
) -> i64:
    """Scan the batches of `data` from `found.position` on; add the records with first <= offset < stop.

    Args:
        data: At most 2 GiB.
        rows_max: The scan ends with the batch that reaches this number of rows.
        settled: A bit per offset from `settled_base` on, lowest bit first. Offsets with a set bit are skipped.
        transient_start: Transient batches below this offset are from an earlier run of the broker and do not count.

    Returns:
        MORE, FULL, DONE, BAD, IRREGULAR or PACKED.
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
        if not header.is_plausible():
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
        dead = header.is_transient() and header.base_offset < transient_start
        if header.last_offset < first or header.is_control() or dead:
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
        if check_crc and not _crc_is_right(found, data, position, header):
            return BAD
        result: i64 = _batch(found, data, position, header, first, stop, settled, settled_base)
        if result != DONE:
            return result
        found.expected = header.last_offset + 1
        position = end


def _gap(found: FieldOffsets, data: bytes, position: i64, header: BatchHeader) -> i64:
    """Check the batch at `position`, which follows a gap in the offsets. Return DONE if it is right, BAD, or MORE.

    A gap is legal, but the checksum does not cover the offset. If the next batch starts before this one ends, this
    one is wrong.
    """
    next_position: i64 = position + header.size
    if next_position + HEADER_SIZE <= len(data):
        next_header = BatchHeader(data, next_position)
        if next_header.is_plausible() and found.expected <= next_header.base_offset <= header.last_offset:
            found.reason = "the batch's offset does not fit its neighbours"
            return BAD
    elif not found.at_end:
        found.needed = header.size + HEADER_SIZE
        return MORE
    return DONE


def _crc_is_right(found: FieldOffsets, data: bytes, position: i64, header: BatchHeader) -> bool:
    buffer = found.buffer
    start = position + CRC_START
    end = position + header.size
    crc: i64 = value(data[start:end] if buffer is None else buffer.slice(start, end - start))
    if crc != header.crc:
        found.reason = "the checksum is wrong"
        return False
    return True


def _equals_at(wanted: bytes, size: i64, data: bytes, position: i64) -> bool:
    """Return whether `data` has `wanted` at `position`. Compares words of 8 bytes without calling methods of bytes.

    Args:
        size: The length of `wanted`; `data` has as many bytes from `position` on.
    """
    if not COMPILED:
        return data.startswith(wanted, position)
    at: i64 = 0
    while at + 8 <= size:
        if read_i64_le(wanted, at) != read_i64_le(data, position + at):
            return False
        at += 8
    if size >= 8:
        return read_i64_le(wanted, size - 8) == read_i64_le(data, position + size - 8)
    while at < size:
        if wanted[at] != data[position + at]:
            return False
        at += 1
    return True


def _field(found: FieldOffsets, data: bytes) -> i64:
    """Return the start of the field whose length is at `found.at`; move `found.at` behind it. A null field is empty."""
    # Zigzag: an odd number is a negative length. One or two bytes in nearly all cases.
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


def _record_end(found: FieldOffsets, data: bytes, position: i64, end: i64) -> i64:
    """Return the end of the record at `position`; move `found.at` behind its length. Raises BadRecord, IndexError."""
    found.at = position
    start: i64 = _field(found, data)
    record_end: i64 = found.at
    if record_end <= start:
        raise BadRecord("a record of no or negative length")
    if record_end > end:
        raise BadRecord("a record runs past the end of its batch")
    found.at = start
    return record_end


def _keep_middle(found: FieldOffsets, data: bytes, position: i64, record_end: i64) -> bool:
    """Keep the bytes between a record's body and its properties for the next records. Return False if amqpd did not
    write them.
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


def _row(found: FieldOffsets, data: bytes, record_end: i64, offset: i64, timestamp_us: i64) -> bool:
    """Add the record whose key length is at `found.at`. Return False if its headers are not in our order."""
    key: i64 = _field(found, data)
    key_end: i64 = found.at
    body: i64 = _field(found, data)
    body_end: i64 = found.at
    position: i64 = body_end
    # Headers.
    middle = found.middle
    middle_size: i64 = len(middle)
    if middle_size == 0 or position + middle_size > record_end or not _equals_at(middle, middle_size, data, position):
        if not _keep_middle(found, data, position, record_end):
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
    found: FieldOffsets,
    data: bytes,
    position: i64,
    header: BatchHeader,
    first: i64,
    stop: i64,
    settled: bytes,
    settled_base: i64,
) -> i64:
    """Add the wanted records of a batch, or none of them. Return DONE, BAD, IRREGULAR or PACKED."""
    if header.is_compressed():
        return PACKED
    rows: i64 = found.rows
    try:
        regular = _records(found, data, position, header, first, stop, settled, settled_base)
    except (BadRecord, IndexError) as error:
        regular = True
        found.reason = "the checksum is right, but the records are invalid: " + str(error)
    if regular and found.reason == "":
        return DONE
    found.rows = rows
    back: int = rows
    found.borders.truncate(back * 32)
    found.offsets.truncate(back * 8)
    found.timestamps.truncate(back * 8)
    return BAD if regular else IRREGULAR


def _records(
    found: FieldOffsets,
    data: bytes,
    position: i64,
    header: BatchHeader,
    first: i64,
    stop: i64,
    settled: bytes,
    settled_base: i64,
) -> bool:
    """Add the records of one batch. Return False if headers are not in our order. Raises BadRecord, IndexError."""
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


FIELD_COUNT: Final[i64] = 13
_TIMESTAMP_MAX: Final[i64] = 253402300799  # the year 9999: Spark shows no later ones
_STRING: Final[i64] = 0x53
_VOID: Final[i64] = 0x56
_BOOL: Final[i64] = 0x74
_INT32: Final[i64] = 0x49
_ARRAY: Final[i64] = 0x41
_TABLE: Final[i64] = 0x46
_SHORT_MAX: Final[i64] = 64
_SHORTS_MAX: Final = 1024


@final
class PropertyColumns:
    """Results of `scan_properties`, in the buffers that the module describes.

    Attributes:
        seen: The flags of all rows together.
    """

    def __init__(self) -> None:
        self.seen: i64 = 0
        self.borders: BytesWriter = BytesWriter()
        self.flags: BytesWriter = BytesWriter()
        self.delivery_modes: BytesWriter = BytesWriter()
        self.priorities: BytesWriter = BytesWriter()
        self.timestamps: BytesWriter = BytesWriter()


@final
class _Entry:
    """An entry of a header table.

    Attributes:
        number: The number of its name.
        raw: Its bytes, of name and value.
        text: Its value as text; None for null.
    """

    def __init__(self, name: bytes, number: i32, raw: bytes, text: bytes | None) -> None:
        self.name = name
        self.number: i32 = number
        self.raw = raw
        self.text = text


@final
class HeaderColumns:
    """Results of `scan_headers`: i32 offsets of rows in the entries and of values in their texts, i32 numbers of names.

    Attributes:
        present: A byte per value; 0 for null.
        names: Names as UTF-8, by number.
        numbers: Numbers of names as they are in the log.
        entries: Entries of an earlier table in their order, with different names. Most tables have the same names.
        entry_keys: The numbers of their names, as in `keys`.
        shorts: Texts of arrays and tables of at most _SHORT_MAX bytes.
    """

    def __init__(self) -> None:
        self.names: list[bytes] = []
        self.numbers: dict[bytes, i32] = {}
        self.entries: list[_Entry] = []
        self.entry_keys: bytes = _NOTHING
        self.shorts: dict[bytes, bytes] = {}
        self.rows: BytesWriter = BytesWriter()
        self.keys: BytesWriter = BytesWriter()
        self.value_offsets: BytesWriter = BytesWriter()
        self.values: BytesWriter = BytesWriter()
        self.present: BytesWriter = BytesWriter()
        self.entry_count: i64 = 0


def scan_properties(data: bytes, borders: bytes, first: i64, step: i64, rows: i64, found: PropertyColumns) -> None:
    """Write the field borders of `rows` raw properties in `data`. Malformed ones have no fields.

    Args:
        borders: Begin and end of each row in `data`, i32 little endian: at `first`, and then every `step` bytes.

    Cost: some 0.1 us a row compiled.
    """
    while rows > 0:
        rows -= 1
        _scan_row(data, i64(read_i32_le(borders, first)), i64(read_i32_le(borders, first + 4)), found)
        first += step


def _scan_row(data: bytes, start: i64, end: i64, found: PropertyColumns) -> None:
    borders = found.borders
    size: int = len(borders)
    flags: i64 = 0
    delivery_mode: i32 = 0
    priority: i32 = 0
    timestamp_us: i64 = 0
    position: i64 = start
    if end - start >= 2:
        high: i64 = data[start]
        low: i64 = data[start + 1]
        flags = (high << 8) | low
        position += 2
    flag: i64 = p.CONTENT_TYPE
    while flag > p.CLUSTER_ID:
        begin: i64 = position
        if flags & flag != 0:
            if flag == p.DELIVERY_MODE or flag == p.PRIORITY:
                position += 1
                if position <= end:
                    number: i64 = data[begin]
                    if flag == p.PRIORITY:
                        priority = i32(number)
                    else:
                        delivery_mode = i32(number)
            elif flag == p.TIMESTAMP:
                position += 8
                if position <= end:
                    seconds: i64 = read_i64_be(data, begin)  # a u64; its upper half is negative here
                    if 0 <= seconds <= _TIMESTAMP_MAX:
                        timestamp_us = seconds * 1_000_000
                    else:
                        flags &= ~p.TIMESTAMP
            elif flag == p.HEADERS:
                position = position + 4 + read_u32(data, position) if position + 4 <= end else end + 1
            else:
                begin += 1
                length: i64 = 0 if position >= end else data[position]
                position = begin + length
            if position > end:
                break
        write_i64_le(borders, begin | (position << 32))
        flag >>= 1
    if position > end or flags & 3 != 0:
        borders.truncate(size)
        flags = 0
        delivery_mode = 0
        priority = 0
        timestamp_us = 0
        count: i64 = FIELD_COUNT
        while count > 0:
            write_i64_le(borders, end | (end << 32))
            count -= 1
    found.seen |= flags
    write_i64_le(found.flags, flags)
    write_i32_le(found.delivery_modes, delivery_mode)
    write_i32_le(found.priorities, priority)
    write_i64_le(found.timestamps, timestamp_us)


def scan_headers(data: bytes, borders: bytes, first: i64, step: i64, rows: i64, found: HeaderColumns) -> None:
    """Write the entries of `rows` header tables in `data`, each with its u32 length, or empty.

    Args:
        borders: As for `scan_properties`.

    Cost: 0.1 us an entry compiled, a quarter of that if it is the same in the table before.
    """
    write_i32_le(found.rows, 0)
    write_i32_le(found.value_offsets, 0)
    while rows > 0:
        rows -= 1
        start = i64(read_i32_le(borders, first))
        end = i64(read_i32_le(borders, first + 4))
        first += step
        if end - start > 4:
            _scan_table(data, start, end, found)
        write_i32_le(found.rows, i32(found.entry_count))


def _scan_table(data: bytes, start: i64, end: i64, found: HeaderColumns) -> None:
    """Write the entries of one table; write nothing if it is malformed."""
    value_size: int = len(found.values)
    offset_size: int = len(found.value_offsets)
    present_size: int = len(found.present)
    try:
        found.entry_count += _write_entries(data, start + 4, start + 4 + read_u32(data, start), end, found)
    except CodecError:
        found.values.truncate(value_size)
        found.value_offsets.truncate(offset_size)
        found.present.truncate(present_size)


def _write_entries(data: bytes, position: i64, stop: i64, end: i64, found: HeaderColumns) -> i64:
    """Write the entries in [position, stop) and return their number. Raises: CodecError."""
    if stop > end:
        raise CodecError("table is longer than its field")
    known = found.entries
    known_count: i64 = len(known)
    changed: list[_Entry] | None = None  # the entries, once their names differ from those of `known`
    names: set[int] = set()  # numbers of their names
    count: i64 = 0
    while position < stop:
        entry: _Entry | None = None
        if changed is None and count < known_count:
            entry = known[count]
            size: i64 = len(entry.raw)
            if position + size <= stop and _equals_at(entry.raw, size, data, position):
                _write_value(found, entry.text)
                position += size
                count += 1
                continue
        start = position
        position += 1 + data[position]
        if position >= stop:
            raise CodecError("entry of a table is cut off")
        name = data[start + 1 : position]
        text, position = _text_at(data, position, stop, found)
        if entry is not None and entry.name == name:
            entry.raw = data[start:position]
            entry.text = text
        else:
            if changed is None:
                changed = known[:count]
                names = {int(each.number) for each in changed}
            number = _number_of(name, found)
            if number in names:
                continue
            names.add(number)
            changed.append(_Entry(name, number, data[start:position], text))
        _write_value(found, text)
        count += 1
    if changed is not None:
        keys = BytesWriter()
        for each in changed:
            write_i32_le(keys, each.number)
        found.entries, found.entry_keys = changed, keys.getvalue()
    elif count < known_count:
        found.keys.write(found.entry_keys[: count * 4])
        return count
    found.keys.write(found.entry_keys)
    return count


def _write_value(found: HeaderColumns, text: bytes | None) -> None:
    if text is None:
        found.present.append(0)
    else:
        found.present.append(1)
        found.values.write(text)
    write_i32_le(found.value_offsets, i32(len(found.values)))


def _number_of(name: bytes, found: HeaderColumns) -> i32:
    """Return the number of a name's text. Bytes that are not UTF-8 are `\\xff` in it: a map has different names."""
    number = found.numbers.get(name)
    if number is None:
        text = name if name.isascii() else name.decode("utf-8", "backslashreplace").encode()
        if text not in found.numbers:
            found.numbers[text] = i32(len(found.names))
            found.names.append(text)
        number = found.numbers[name] = found.numbers[text]
    return number


def _text_at(data: bytes, position: i64, stop: i64, found: HeaderColumns) -> tuple[bytes | None, i64]:
    """Return the text of the value at `position`, and the position behind it. Raises: CodecError."""
    kind: i64 = data[position]
    if kind == _VOID:
        return None, position + 1
    if kind == _STRING and position + 5 <= stop and position + 5 + read_u32(data, position + 1) <= stop:
        begin = position + 5
        position = begin + read_u32(data, position + 1)
        text = data[begin:position]
        return (text if text.isascii() else _octets_text(text)), position
    if kind == _BOOL and position + 2 <= stop:
        return (b"true" if data[position + 1] else b"false"), position + 2
    if kind == _INT32 and position + 5 <= stop:
        return str(read_i32_be(data, position + 1)).encode(), position + 5
    short = _short_text(data, position, stop, found)
    if short is not None:
        return short, position + 5 + read_u32(data, position + 1)
    begin = position
    value, position = decode_value(data, position, stop, 1)
    text = text_of(value).encode("utf-8", "replace")
    if kind in (_ARRAY, _TABLE) and position - begin <= _SHORT_MAX:
        _keep_short(found, data[begin:position], text)
    return text, position


def _short_text(data: bytes, position: i64, stop: i64, found: HeaderColumns) -> bytes | None:
    """Return the text of the array or table at `position` if an equal one was kept."""
    kind: i64 = data[position]
    if kind not in (_ARRAY, _TABLE) or position + 5 > stop:
        return None
    end: i64 = position + 5 + read_u32(data, position + 1)
    if end > stop or end - position > _SHORT_MAX:
        return None
    return found.shorts.get(data[position:end])


def _keep_short(found: HeaderColumns, raw: bytes, text: bytes) -> None:
    if len(found.shorts) >= _SHORTS_MAX:
        found.shorts.clear()
    found.shorts[raw] = text


def _octets_text(octets: bytes) -> bytes:
    """Return a long string as UTF-8, or as base64 if it is not UTF-8."""
    try:
        octets.decode("utf-8")
    except UnicodeDecodeError:
        return b64encode(octets)
    return octets


def text_of(value: object) -> str:
    """Return a value as JSON, but without quotes if JSON would be one quoted string."""
    if isinstance(value, str):
        return value
    if isinstance(value, (bytes, bytearray)):
        return b64encode(value).decode("ascii")
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, float):
        return json.dumps(value)
    return _json(value)


def _json(value: object) -> str:
    """Return the JSON of a field's value. NaN and infinite numbers are texts, as Spark writes them; all others equal
    those of json.dumps, which costs several times as much for small tables.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        return "[" + ", ".join([_json(each) for each in value]) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join([encode_basestring(name) + ": " + _json(each) for name, each in value.items()]) + "}"
    if isinstance(value, float):
        text = json.dumps(value)
        return text if value - value == 0.0 else '"' + text + '"'  # JSON has no NaN and no Infinity
    return encode_basestring(text_of(value))
