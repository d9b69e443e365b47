"""Properties and headers of many messages at once, as Arrow's buffers: the same trick as borders.py, one level down.

`scan_properties` takes a column of raw properties (bytes and offsets, as Arrow holds them) and gives the borders of
every field of every row, which rise because the fields stand in the order of their flags:

    per row: i32 borders (little endian) of the 13 fields, begin and end; a field that is absent is empty there
             i64 flags, from which the columns' validity follows
             i32 delivery mode, i32 priority, i64 timestamp in us (0 where absent)

`scan_headers` takes a column of raw header tables and writes keys and values as texts. A value that is no text has
its JSON: numbers as digits, true and false, tables and arrays as JSON, bytes that are no UTF-8 as base64. Of equal
names the first counts. Properties that are none (only another program can have written them) have no fields and no
headers.

Compiled by mypyc.
"""

from __future__ import annotations

import json
from base64 import b64encode
from decimal import Decimal
from typing import Final, final

from librt.strings import BytesWriter, read_i32_le, read_i64_be, write_i32_le, write_i64_le
from mypy_extensions import i32, i64

from amqpd.protocol import properties as p
from amqpd.protocol.codec import CodecError, decode_table, read_u32

FIELD_COUNT: Final[i64] = 13
_TIMESTAMP_MAX: Final[i64] = 253402300799  # the year 9999: what Spark shows, and far below an overflow
_STRING: Final[i64] = 0x53


@final
class PropertyColumns:
    """What `scan_properties` writes; its buffers as above. seen: the flags that any row has."""

    def __init__(self) -> None:
        self.seen: i64 = 0
        self.borders: BytesWriter = BytesWriter()
        self.flags: BytesWriter = BytesWriter()
        self.delivery_modes: BytesWriter = BytesWriter()
        self.priorities: BytesWriter = BytesWriter()
        self.timestamps: BytesWriter = BytesWriter()


@final
class HeaderColumns:
    """What `scan_headers` writes: i32 offsets of rows in the entries, of keys and of values in their texts.

    present: one byte for each value, 0 where it is null.
    """

    def __init__(self) -> None:
        self.rows: BytesWriter = BytesWriter()
        self.key_offsets: BytesWriter = BytesWriter()
        self.keys: BytesWriter = BytesWriter()
        self.value_offsets: BytesWriter = BytesWriter()
        self.values: BytesWriter = BytesWriter()
        self.present: BytesWriter = BytesWriter()
        self.entry_count: i64 = 0


def scan_properties(data: bytes, offsets: bytes, rows: i64, found: PropertyColumns) -> None:
    """Borders of the fields of `rows` properties in `data`; `offsets`: rows + 1 of i32, little endian.

    Cost: some 0.1 us a row compiled. Raises nothing: what is malformed has no fields.
    """
    row: i64 = 0
    start = i64(read_i32_le(offsets, 0))
    while row < rows:
        row += 1
        end = i64(read_i32_le(offsets, row * 4))
        _scan_row(data, start, end, found)
        start = end


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


def scan_headers(data: bytes, offsets: bytes, rows: i64, found: HeaderColumns) -> None:
    """Names and texts of the entries of `rows` header tables in `data` (each with its u32 length, or empty).

    Cost: some 0.1 us an entry that is text, 1 us and more for others. Raises nothing.
    """
    row: i64 = 0
    start = i64(read_i32_le(offsets, 0))
    _write_offset(found.rows, 0)
    _write_offset(found.key_offsets, 0)
    _write_offset(found.value_offsets, 0)
    while row < rows:
        row += 1
        end = i64(read_i32_le(offsets, row * 4))
        if end - start > 4 and not _texts(data, start, end, found):
            _any(data, start, end, found)
        _write_offset(found.rows, found.entry_count)
        start = end


def _write_offset(writer: BytesWriter, number: i64) -> None:
    write_i32_le(writer, i32(number))


def _texts(data: bytes, start: i64, end: i64, found: HeaderColumns) -> bool:
    """One table whose values are all long strings of UTF-8; False, with nothing written, for any other."""
    keys, values = found.keys, found.values
    key_size: int = len(keys)
    value_size: int = len(values)
    offset_size: int = len(found.key_offsets)
    count: i64 = found.entry_count
    seen: list[bytes] = []
    position: i64 = start + 4
    regular = True
    while position < end:
        name_size: i64 = data[position]
        begin: i64 = position + 1
        position = begin + name_size
        if position + 5 > end or data[position] != _STRING:
            regular = False
            break
        text: i64 = position + 5
        position = text + read_u32(data, position + 1)
        if position > end:
            regular = False
            break
        name = data[begin : begin + name_size]
        value = data[text:position]
        if not (name.isascii() and value.isascii()):
            regular = False
            break
        if name in seen:
            continue
        seen.append(name)
        keys.write(name)
        values.write(value)
        _write_offset(found.key_offsets, len(keys))
        _write_offset(found.value_offsets, len(values))
        found.entry_count += 1
    if regular:
        while count < found.entry_count:
            found.present.append(1)
            count += 1
        return True
    keys.truncate(key_size)
    values.truncate(value_size)
    found.key_offsets.truncate(offset_size)
    found.value_offsets.truncate(offset_size)
    found.entry_count = count
    return False


def _any(data: bytes, start: i64, end: i64, found: HeaderColumns) -> None:
    try:
        table, _ = decode_table(data, start, end)
    except CodecError:
        return
    for name, value in table.items():
        text = text_of(value)
        found.keys.write(name.encode("utf-8", "replace"))
        if text is not None:
            found.values.write(text.encode("utf-8", "replace"))
        _write_offset(found.key_offsets, len(found.keys))
        _write_offset(found.value_offsets, len(found.values))
        found.present.append(0 if text is None else 1)
        found.entry_count += 1


def text_of(value: object) -> str | None:
    """A header's value as the text that the map column holds; None for null."""
    if value is None:
        return None
    if isinstance(value, str):
        return value
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _plain(value: object) -> object:
    if isinstance(value, (bytes, bytearray)):
        return b64encode(value).decode()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value
