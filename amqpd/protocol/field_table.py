"""Field tables of AMQP 0-9-1: bytes to Python values and back.

A table is its length in bytes, u32, and then entries: name as short string, type letter, value. An array is the same
without names. The type letters are RabbitMQ's, which differ from the specification's:

    t bool        b int8     B uint8    s int16   u uint16   I int32   i uint32   l int64   (L int64: read, never
    written)
    f float32     d float64  D decimal (scale u8, value i32)   T timestamp (u64 seconds)
    S long string (str if it is UTF-8, else bytes)   x byte array (bytearray)   A array   F table   V void (None)

Invariants:
- Every length is checked against its container before it is used.
- Tables and arrays nest at most 128 deep, the outermost table included: neither input nor a value that contains itself
  exhausts the stack.
- Every error is a CodecError.
- Names that are not UTF-8 survive a round trip (surrogateescape).

Decoding is for reading values. A message passes through as the bytes that arrived, because an int does not keep the
type letter of its number.

Compiled by mypyc. The module imports nothing else of amqpd. Source: AMQP 0-9-1 4.2.5.5 and RabbitMQ's errata.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Final

from librt.strings import (
    BytesWriter,
    read_f32_be,
    read_f64_be,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    write_f64_be,
    write_i32_be,
    write_i64_be,
)
from mypy_extensions import i64, mypyc_attr

DEPTH_MAX: Final = 128
SHORT_STRING_SIZE_BYTES_MAX: Final = 255

# The letters as numbers: mypyc inlines literals, but not calls of ord().
_BOOL: Final = 0x74  # t
_INT8: Final = 0x62  # b
_UINT8: Final = 0x42  # B
_INT16: Final = 0x73  # s
_UINT16: Final = 0x75  # u
_INT32: Final = 0x49  # I
_UINT32: Final = 0x69  # i
_INT64: Final = 0x6C  # l
_INT64_SPEC: Final = 0x4C  # L
_FLOAT: Final = 0x66  # f
_DOUBLE: Final = 0x64  # d
_DECIMAL: Final = 0x44  # D
_TIMESTAMP: Final = 0x54  # T
_STRING: Final = 0x53  # S
_BYTES: Final = 0x78  # x
_ARRAY: Final = 0x41  # A
_TABLE: Final = 0x46  # F
_VOID: Final = 0x56  # V

# The layout after each letter: a fixed number of octets, a length and octets, or a length and fields. One look-up in
# this table replaces up to eighteen comparisons, which were half the cost of `summarize_table`.
_FIXED_MAX: Final = 8
_OCTETS: Final = 16
_NEST: Final = 17
_UNKNOWN: Final = 255


def _value_layouts() -> bytes:
    shapes = bytearray([_UNKNOWN]) * 256
    for size, letters in ((0, b"V"), (1, b"tbB"), (2, b"su"), (4, b"Iif"), (5, b"D"), (8, b"lLdT")):
        for letter in letters:
            shapes[letter] = size
    for letter in b"Sx":
        shapes[letter] = _OCTETS
    for letter in b"AF":
        shapes[letter] = _NEST
    return bytes(shapes)


_VALUE_LAYOUTS: Final = _value_layouts()

_U64: Final = 18446744073709551616

HAS_CC_OR_BCC: Final = 1  # summarize_table: the table has an entry CC or BCC
PRODUCER_ID: Final = b"x-producer-id"
HAS_PRODUCER_ID: Final = 2  # summarize_table: the table has an entry x-producer-id


class CodecError(ValueError):
    """Bytes that are not a valid field, or a value that no field type can hold. Bytes of a client cause 501."""


@mypyc_attr(native_class=False)
class Timestamp(int):
    """Seconds since 1970 as u64 (type T). The class keeps the type for encoding."""

    __slots__ = ()


@mypyc_attr(native_class=False)
class Int64(int):
    """An integer that is always encoded as type l, however small: a count of RabbitMQ."""

    __slots__ = ()


def decode_table(data: bytes, start: i64, end: i64 = -1) -> tuple[dict[str, object], i64]:
    """Decode the table whose length is at `start`. Return it and the position after it.

    If a name occurs twice, the first entry counts. Cost: the size of the table.

    Args:
        end: the table must end at or before it; -1 is the end of `data`.

    Raises: CodecError.
    """
    size: i64 = len(data)
    if end < 0:
        end = size
    if start < 0 or end > size or end - start < 4:
        raise CodecError("table length is cut off")
    stop = start + 4 + read_u32(data, start)
    if stop > end:
        raise CodecError("table is longer than what holds it")
    return _decode_entries(data, start + 4, stop, 1), stop


def _decode_entries(data: bytes, position: i64, end: i64, depth: i64) -> dict[str, object]:
    if depth > DEPTH_MAX:
        raise CodecError("tables and arrays nest deeper than 128")
    table: dict[str, object] = {}
    while position < end:
        length: i64 = data[position]
        after = position + 1 + length
        if after >= end:
            raise CodecError("entry of a table is cut off")
        name = data[position + 1 : after].decode("utf-8", "surrogateescape")
        value, position = decode_value(data, after, end, depth)
        if name not in table:  # rabbit: equal names are accepted, the first one counts
            table[name] = value
    return table


def _decode_items(data: bytes, position: i64, end: i64, depth: i64) -> list[object]:
    if depth > DEPTH_MAX:
        raise CodecError("tables and arrays nest deeper than 128")
    items: list[object] = []
    while position < end:
        value, position = decode_value(data, position, end, depth)
        items.append(value)
    return items


def decode_value(data: bytes, position: i64, end: i64, depth: i64) -> tuple[object, i64]:
    """Decode the value whose type letter is at `position`, before `end`. Return it and the position after it.

    Args:
        depth: the depth of the table or array that contains the value.

    Raises: CodecError.
    """
    kind: i64 = data[position]
    position += 1
    value: object
    if kind in (_STRING, _TABLE, _ARRAY, _BYTES):
        if end - position < 4:
            raise CodecError("length of a field is cut off")
        length = read_u32(data, position)
        position += 4
        stop = position + length
        if stop > end:
            raise CodecError("field is longer than what holds it")
        if kind == _STRING:
            raw = data[position:stop]
            try:
                value = raw.decode("utf-8")
            except UnicodeDecodeError:
                value = raw  # a long string can be any octets
        elif kind == _TABLE:
            value = _decode_entries(data, position, stop, depth + 1)
        elif kind == _ARRAY:
            value = _decode_items(data, position, stop, depth + 1)
        else:
            value = bytearray(data[position:stop])
        return value, stop
    stop = position + _fixed_size(kind)
    if stop > end:
        raise CodecError("value of a field is cut off")
    if kind == _INT32:
        value = read_i32_be(data, position)
    elif kind in (_INT64, _INT64_SPEC):
        value = read_i64_be(data, position)
    elif kind == _BOOL:
        value = data[position] != 0
    elif kind == _VOID:
        value = None
    elif kind == _TIMESTAMP:
        value = Timestamp(read_u64(data, position))
    elif kind == _DOUBLE:
        value = read_f64_be(data, position)
    elif kind == _FLOAT:
        value = read_f32_be(data, position)
    elif kind == _UINT8:
        value = data[position]
    elif kind == _INT8:
        octet: i64 = data[position]
        value = octet - 256 if octet > 127 else octet
    elif kind == _INT16:
        value = read_i16_be(data, position)
    elif kind == _UINT16:
        value = read_u16(data, position)
    elif kind == _UINT32:
        value = read_u32(data, position)
    else:  # _DECIMAL: _fixed_size rejects all other letters
        scale: int = data[position]
        number: int = read_i32_be(data, position + 1)
        value = Decimal(number).scaleb(-scale)
    return value, stop


def _fixed_size(kind: i64) -> i64:
    """Return the size of a value of a fixed-size type. Raises: CodecError for an unknown letter."""
    size: i64 = _VALUE_LAYOUTS[kind]
    if size > _FIXED_MAX:
        raise CodecError("unknown field type " + str(kind))
    return size


def field_end(data: bytes, position: i64, end: i64) -> i64:
    """Return the end of the field whose type letter is at `position`, without reading nested values.

    Raises: CodecError if the type is unknown or the field ends after `end`.
    """
    if position >= end:
        raise CodecError("entry of a table is cut off")
    kind: i64 = data[position]
    position += 1
    if kind in (_STRING, _BYTES, _TABLE, _ARRAY):
        if end - position < 4:
            raise CodecError("length of a field is cut off")
        position += 4 + read_u32(data, position)
    else:
        position += _fixed_size(kind)
    if position > end:
        raise CodecError("field is longer than what holds it")
    return position


def read_u16(data: bytes, position: i64) -> i64:
    """Return the u16 at `position`. The caller has checked the bounds."""
    signed: int = read_i16_be(data, position)  # via int: i16 and i64 do not mix, and a cast costs time when interpreted
    number: i64 = signed
    return number & 0xFFFF


def read_u32(data: bytes, position: i64) -> i64:
    """Return the u32 at `position`. The caller has checked the bounds."""
    signed: int = read_i32_be(data, position)
    number: i64 = signed
    return number & 0xFFFFFFFF


def read_u64(data: bytes, position: i64) -> int:
    """Return the u64 at `position`. The caller has checked the bounds."""
    signed: i64 = read_i64_be(data, position)
    number: int = signed
    return number if number >= 0 else number + _U64


def summarize_table(data: bytes, start: i64, end: i64) -> i64:
    """Check that a table with its length fills exactly [start, end), and return flags for some top-level names.

    The flags are HAS_CC_OR_BCC and HAS_PRODUCER_ID: names that change how a message is published. `decode_table`
    accepts every table that passes. Cost: about 10 ns per entry (compiled), no allocation. Raises: CodecError.
    """
    if start < 0 or end > len(data) or end - start < 4:
        raise CodecError("table length is cut off")
    if start + 4 + read_u32(data, start) != end:
        raise CodecError("table length does not agree with what holds it")
    found: i64 = 0
    position = start + 4
    limit = end
    named = True  # entries of a table have names, items of an array do not
    depth: i64 = 1
    outer: list[int] | None = None  # ends of the enclosing tables and arrays, times two, plus one for a table
    shapes = _VALUE_LAYOUTS
    while True:
        if position == limit:
            if outer is None or depth == 1:
                return found
            enclosing: i64 = outer.pop()
            limit = enclosing >> 1
            named = enclosing & 1 == 1
            depth -= 1
            continue
        if named:
            length: i64 = data[position]
            name = position + 1
            position = name + length
            if position >= limit:
                raise CodecError("entry of a table is cut off")
            if depth == 1 and length >= 2 and (length <= 3 or length == 13):
                found |= _header_flags(data, name, length)
        kind: i64 = data[position]
        position += 1
        shape: i64 = _OCTETS
        if kind != _STRING:
            shape = shapes[kind]
        if shape <= _FIXED_MAX:
            position += shape
            if position > limit:
                raise CodecError("value of a field is cut off")
            continue
        if shape == _UNKNOWN:
            raise CodecError("unknown field type " + str(kind))
        if limit - position < 4:
            raise CodecError("length of a field is cut off")
        # The u32 at `position`. The table's length is before it, so the eight octets that end with it exist.
        stop = position + 4 + (read_i64_be(data, position - 4) & 0xFFFFFFFF)
        position += 4
        if stop > limit:
            raise CodecError("field is longer than what holds it")
        if shape == _OCTETS:
            position = stop
            continue
        if depth == DEPTH_MAX:
            raise CodecError("tables and arrays nest deeper than 128")
        if outer is None:
            outer = []
        outer.append((limit << 1) + 1 if named else limit << 1)
        depth += 1
        limit = stop
        named = kind == _TABLE


def _header_flags(data: bytes, name: i64, length: i64) -> i64:
    """Return the flags of a name with 2, 3 or 13 octets: CC, BCC, x-producer-id; 0 for others."""
    if length == 13:
        numbered = data[name] == 0x78 and data[name + 2] == 0x70 and data[name : name + 13] == PRODUCER_ID
        return HAS_PRODUCER_ID if numbered else 0
    if length == 3:
        selects = data[name] == 0x42 and data[name + 1] == 0x43 and data[name + 2] == 0x43
    else:
        selects = data[name] == 0x43 and data[name + 1] == 0x43
    return HAS_CC_OR_BCC if selects else 0


def encode_table(table: Mapping[str, object]) -> bytes:
    """Encode `table`, with its length in front. Cost: its size.

    Types:
    - bool t; int I, or l above 32 bits and for Int64; float d; Decimal D; Timestamp T
    - str and bytes S; bytearray x; list and tuple A; a mapping F; None V

    Raises: CodecError for other types, a number out of range, a name over 255 bytes, nesting over 128.
    """
    if len(table) == 0:
        return b"\x00\x00\x00\x00"
    writer = BytesWriter()
    try:
        _encode_entries(writer, table, 1)
    except UnicodeEncodeError:
        raise CodecError("text that UTF-8 cannot hold") from None
    return writer.getvalue()


def encode_entry(name: str, value: object) -> bytes:
    """Encode one entry of a table: name, type letter, value. Raises: CodecError."""
    return encode_table({name: value})[4:]


def shortstr(value: str | bytes) -> bytes:
    """Encode a short string: one octet of length, then UTF-8. Raises: CodecError over 255 bytes."""
    try:
        raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    except UnicodeEncodeError:
        raise CodecError("text that UTF-8 cannot hold") from None
    if len(raw) > SHORT_STRING_SIZE_BYTES_MAX:
        raise CodecError("short string of more than 255 bytes")
    return bytes((len(raw),)) + raw


def longstr(value: str | bytes) -> bytes:
    """Encode a long string: length as u32, then UTF-8."""
    try:
        raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    except UnicodeEncodeError:
        raise CodecError("text that UTF-8 cannot hold") from None
    return len(raw).to_bytes(4, "big") + raw


def _reserve_length(writer: BytesWriter, depth: i64) -> i64:
    """Write a placeholder for a length. Return its position. Raises: CodecError if the nesting is too deep."""
    if depth > DEPTH_MAX:
        raise CodecError("tables and arrays nest deeper than 128")
    start: i64 = len(writer)
    writer.write(b"\x00\x00\x00\x00")
    return start


def _fill_length(writer: BytesWriter, start: i64) -> None:
    """Overwrite the placeholder at `start` with the number of bytes written after it."""
    length: int = len(writer) - start - 4
    if length > 0xFFFFFFFF:
        raise CodecError("table of more than 4 GiB")
    writer[start] = (length >> 24) & 0xFF
    writer[start + 1] = (length >> 16) & 0xFF
    writer[start + 2] = (length >> 8) & 0xFF
    writer[start + 3] = length & 0xFF


def _encode_entries(writer: BytesWriter, table: Mapping[str, object], depth: i64) -> None:
    start = _reserve_length(writer, depth)
    for name, value in table.items():
        raw = name.encode("utf-8", "surrogateescape")
        size: int = len(raw)
        if size > SHORT_STRING_SIZE_BYTES_MAX:
            raise CodecError("name of more than 255 bytes in a table")
        writer.append(size)
        writer.write(raw)
        _encode_value(writer, value, depth)
    _fill_length(writer, start)


def _encode_value(writer: BytesWriter, value: object, depth: i64) -> None:
    if isinstance(value, (str, bytes, bytearray)):
        raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else bytes(value)
        size: int = len(raw)
        if size > 0x7FFFFFFF:
            raise CodecError("string of more than 2 GiB")
        writer.append(_BYTES if isinstance(value, bytearray) else _STRING)
        write_i32_be(writer, size)
        writer.write(raw)
    elif isinstance(value, bool):
        writer.append(_BOOL)
        writer.append(1 if value else 0)
    elif isinstance(value, Timestamp):
        if value < 0 or value >= _U64:
            raise CodecError("timestamp out of range")
        writer.append(_TIMESTAMP)
        write_i64_be(writer, value if value <= 0x7FFFFFFFFFFFFFFF else value - _U64)
    elif isinstance(value, int):
        if -0x80000000 <= value <= 0x7FFFFFFF and not isinstance(value, Int64):
            writer.append(_INT32)
            write_i32_be(writer, value)
        elif -0x8000000000000000 <= value <= 0x7FFFFFFFFFFFFFFF:
            writer.append(_INT64)
            write_i64_be(writer, value)
        else:
            raise CodecError("integer of more than 64 bits")
    elif value is None:
        writer.append(_VOID)
    elif isinstance(value, float):
        writer.append(_DOUBLE)
        write_f64_be(writer, value)
    elif isinstance(value, Mapping):
        writer.append(_TABLE)
        _encode_entries(writer, value, depth + 1)
    elif isinstance(value, (list, tuple)):
        writer.append(_ARRAY)
        start = _reserve_length(writer, depth + 1)
        for item in value:
            _encode_value(writer, item, depth + 1)
        _fill_length(writer, start)
    elif isinstance(value, Decimal):
        _encode_decimal(writer, value)
    else:
        raise CodecError("no field type for " + type(value).__name__)


def _encode_decimal(writer: BytesWriter, value: Decimal) -> None:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise CodecError("decimal that is no number")
    if exponent > 9 or exponent < -255 or len(digits) > 10:  # bounds first: an integer of these digits could be huge
        raise CodecError("decimal out of range")
    number = 0
    for digit in digits:
        number = number * 10 + digit
    if exponent > 0:
        number *= int("1" + "0" * exponent)
        exponent = 0
    if sign:
        number = -number
    if not -0x80000000 <= number <= 0x7FFFFFFF:
        raise CodecError("decimal out of range")
    writer.append(_DECIMAL)
    writer.append(-exponent)
    write_i32_be(writer, number)
