"""Field tables: compared with pamqp in both directions, and exact bytes where pamqp cannot help."""

from __future__ import annotations

import math
import struct
from datetime import UTC, datetime
from decimal import Decimal

import pamqp.decode
import pamqp.encode
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpd.protocol.field_table import (
    HAS_CC_OR_BCC,
    CodecError,
    Timestamp,
    decode_table,
    encode_entry,
    encode_table,
    field_end,
    longstr,
    shortstr,
    summarize_table,
)

names = st.text(max_size=30)
common = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(max_size=20)
    | st.none()
    | st.binary(max_size=20).map(bytearray)
)


def nested(values):
    return st.recursive(
        values,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
        max_leaves=12,
    )


def decimals(smallest: int):
    return st.builds(
        lambda number, scale: Decimal(number).scaleb(-scale), st.integers(smallest, 2**31 - 1), st.integers(0, 255)
    )


timestamps = st.integers(0, 2**64 - 1).map(Timestamp)
our_tables = st.dictionaries(
    names, nested(common | st.floats(allow_nan=False) | decimals(-(2**31)) | timestamps), max_size=6
)
# pamqp reads the decimal's number as unsigned and turns timestamps into datetimes (years only a datetime can hold).
tables_for_pamqp = st.dictionaries(names, nested(common | st.floats(allow_nan=False) | decimals(0)), max_size=6)
tables_from_pamqp = st.dictionaries(
    names, nested(common | st.floats(width=32, allow_nan=False) | decimals(-(2**31))), max_size=6
)


def same_values_and_types(left, right) -> bool:
    """Equal with equal types at all levels: True differs from 1, and bytes from a bytearray."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same_values_and_types(left[name], right[name]) for name in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(
            same_values_and_types(one, other) for one, other in zip(left, right, strict=True)
        )
    return left == right


def table_of(entries: bytes) -> bytes:
    return struct.pack(">I", len(entries)) + entries


def accepts(check, *arguments) -> bool:
    """Return True if `check` accepts. An exception other than CodecError fails the test."""
    try:
        check(*arguments)
    except CodecError:
        return False
    return True


@given(our_tables)
def test_round_trip_keeps_values_and_types(table):
    data = encode_table(table)
    summarize_table(data, 0, len(data))
    decoded, end = decode_table(data, 0)
    assert end == len(data)
    assert same_values_and_types(decoded, table)
    assert list(decoded) == list(table)


@given(tables_for_pamqp)
def test_pamqp_decodes_our_encoding(table):
    data = encode_table(table)
    assert pamqp.decode.field_table(data) == (len(data), table)


@given(tables_from_pamqp)
def test_we_decode_the_encoding_of_pamqp(table):
    data = pamqp.encode.field_table(table)
    summarize_table(data, 0, len(data))
    decoded, end = decode_table(data, 0)
    assert end == len(data)
    assert same_values_and_types(decoded, table)


@given(st.integers(0, 2**32 - 1))
def test_timestamps_agree_with_pamqp(seconds):
    moment = datetime.fromtimestamp(seconds, tz=UTC)
    data = pamqp.encode.field_table({"at": moment})
    assert decode_table(data, 0)[0] == {"at": seconds}
    assert encode_table({"at": Timestamp(seconds)}) == data
    assert pamqp.decode.field_table(data)[1] == {"at": moment}


LETTERS = [
    (b"t\x00", False),
    (b"t\x01", True),
    (b"t\x07", True),
    (b"b\x80", -128),
    (b"b\x7f", 127),
    (b"B\xff", 255),
    (b"s\x80\x00", -32768),
    (b"u\xff\xff", 65535),
    (b"I\x80\x00\x00\x00", -(2**31)),
    (b"i\xff\xff\xff\xff", 2**32 - 1),
    (b"l\x80\x00\x00\x00\x00\x00\x00\x00", -(2**63)),
    (b"L\xff\xff\xff\xff\xff\xff\xff\xfe", -2),
    (b"f\x3f\xc0\x00\x00", 1.5),
    (b"d\x40\x09\x21\xfb\x54\x44\x2d\x18", math.pi),
    (b"D\x02\xff\xff\xff\xff", Decimal("-0.01")),
    (b"D\x00\x00\x00\x00\x05", Decimal(5)),
    (b"D\xff\x7f\xff\xff\xff", Decimal((0, (2, 1, 4, 7, 4, 8, 3, 6, 4, 7), -255))),
    (b"S\x00\x00\x00\x03\xe2\x82\xac", "\u20ac"),
    (b"S\x00\x00\x00\x02\xff\xfe", b"\xff\xfe"),
    (b"S\x00\x00\x00\x00", ""),
    (b"x\x00\x00\x00\x02ab", bytearray(b"ab")),
    (b"A\x00\x00\x00\x03Vt\x01", [None, True]),
    (b"A\x00\x00\x00\x00", []),
    (b"T\xff\xff\xff\xff\xff\xff\xff\xff", Timestamp(2**64 - 1)),
    (b"T\x00\x00\x00\x00\x00\x00\x00\x01", Timestamp(1)),
    (b"F\x00\x00\x00\x03\x01aV", {"a": None}),
    (b"V", None),
]


@pytest.mark.parametrize(("field", "value"), LETTERS, ids=[repr(field) for field, _ in LETTERS])
def test_every_field_type(field, value):
    data = table_of(b"\x03key" + field)
    summarize_table(data, 0, len(data))
    decoded, end = decode_table(data, 0)
    assert end == len(data)
    assert same_values_and_types(decoded, {"key": value})
    assert field_end(data, 8, len(data)) == len(data)


@pytest.mark.parametrize(("field", "value"), LETTERS, ids=[repr(field) for field, _ in LETTERS])
def test_a_truncated_value_of_each_type_is_rejected(field, value):
    for size in range(len(field)):
        data = table_of(b"\x03key" + field[:size])
        assert not accepts(decode_table, data, 0)
        assert not accepts(summarize_table, data, 0, len(data))


def test_unknown_field_types_are_rejected():
    known = {field[0] for field, _ in LETTERS}
    for letter in set(range(256)) - known:
        data = table_of(b"\x01k" + bytes((letter,)) + b"\x00" * 8)
        assert not accepts(decode_table, data, 0)
        assert not accepts(summarize_table, data, 0, len(data))


def test_field_type_of_each_python_type():
    table = {"n": 1, "m": 2**31, "b": True, "t": "é", "o": b"\xff", "r": bytearray(b"r"), "f": 0.5, "v": None}
    assert encode_table(table) == table_of(
        b"\x01nI\x00\x00\x00\x01"
        b"\x01ml\x00\x00\x00\x00\x80\x00\x00\x00"
        b"\x01bt\x01"
        b"\x01tS\x00\x00\x00\x02\xc3\xa9"
        b"\x01oS\x00\x00\x00\x01\xff"
        b"\x01rx\x00\x00\x00\x01r"
        b"\x01fd\x3f\xe0\x00\x00\x00\x00\x00\x00"
        b"\x01vV"
    )
    assert encode_table({"d": Decimal("-1.50"), "e": Decimal("2E3")}) == table_of(
        b"\x01dD\x02\xff\xff\xff\x6a" + b"\x01eD\x00\x00\x00\x07\xd0"
    )
    assert encode_table({"l": (1, [])}) == table_of(b"\x01lA\x00\x00\x00\x0aI\x00\x00\x00\x01A\x00\x00\x00\x00")
    assert encode_table({}) == b"\x00\x00\x00\x00"
    assert encode_entry("n", 1) == b"\x01nI\x00\x00\x00\x01"


def test_the_first_of_two_equal_names_is_used():
    data = table_of(b"\x01aI\x00\x00\x00\x01" + b"\x01aI\x00\x00\x00\x02")
    summarize_table(data, 0, len(data))
    assert decode_table(data, 0)[0] == {"a": 1}


def test_a_name_that_is_not_utf8_survives_a_round_trip():
    data = table_of(b"\x02\xff\xc3V")
    summarize_table(data, 0, len(data))
    assert encode_table(decode_table(data, 0)[0]) == data


def nest_tables(depth: int) -> bytes:
    data = table_of(b"")
    for _ in range(depth - 1):
        data = table_of(b"\x01aF" + data)
    return data


def nest_arrays(depth: int) -> bytes:
    """A table that holds arrays, `depth` levels with itself."""
    data = table_of(b"")
    for _ in range(depth - 2):
        data = table_of(b"A" + data)
    return table_of(b"\x01aA" + data)


@pytest.mark.parametrize("nest", [nest_tables, nest_arrays])
def test_nesting_depth_is_limited(nest):
    data = nest(128)
    summarize_table(data, 0, len(data))
    table, _ = decode_table(data, 0)
    assert encode_table(table) == data
    for depth in (129, 1000, 8000):
        data = nest(depth)
        assert not accepts(decode_table, data, 0)
        assert not accepts(summarize_table, data, 0, len(data))


def test_values_nested_too_deep_or_in_a_cycle_are_rejected():
    deep: list[object] = []
    for _ in range(127):
        deep = [deep]
    with pytest.raises(CodecError):
        encode_table({"a": deep})
    cycle: dict[str, object] = {}
    cycle["self"] = cycle
    with pytest.raises(CodecError):
        encode_table(cycle)


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        -(2**63) - 1,
        Decimal("NaN"),
        Decimal("Infinity"),
        Decimal(2**31),
        Decimal("1E-256"),
        Decimal("1E+999999"),
        Timestamp(-1),
        Timestamp(2**64),
        "\ud800",
        ...,
        1j,
    ],
    ids=repr,
)
def test_values_without_a_field_type_are_rejected(value):
    with pytest.raises(CodecError):
        encode_table({"a": value})
    with pytest.raises(CodecError):
        encode_table({"a": [value]})


def test_a_name_of_256_bytes_is_rejected():
    assert decode_table(encode_table({"é" * 127: 1}), 0)[0] == {"é" * 127: 1}
    with pytest.raises(CodecError):
        encode_table({"é" * 128: 1})


def test_short_and_long_strings():
    assert shortstr("é") == b"\x02\xc3\xa9"
    assert shortstr(b"\xff" * 255) == b"\xff" + b"\xff" * 255
    assert longstr("é") == b"\x00\x00\x00\x02\xc3\xa9"
    assert longstr(b"") == b"\x00\x00\x00\x00"
    with pytest.raises(CodecError):
        shortstr(b"x" * 256)


def test_a_length_beyond_its_container_is_rejected():
    data = table_of(b"\x01aV") + b"rest"
    assert decode_table(data, 0) == ({"a": None}, 7)
    assert decode_table(b"ab" + data, 2, 9) == ({"a": None}, 9)
    for start, end in ((0, 6), (0, 3), (8, -1), (-1, -1), (0, len(data) + 1)):
        assert not accepts(decode_table, data, start, end)
    for start, end in ((0, 6), (0, 8), (0, 3), (8, len(data)), (-1, 7), (0, len(data) + 1)):
        assert not accepts(summarize_table, data, start, end)
    # The inner table claims a byte that belongs to the outer one.
    data = table_of(b"\x01aF\x00\x00\x00\x04\x01bV" + b"\x01cV")
    assert not accepts(decode_table, data, 0)
    assert not accepts(summarize_table, data, 0, len(data))
    # 4 GiB claimed by a string and by a table.
    for letter in b"SFAx":
        data = table_of(b"\x01a" + bytes((letter,)) + b"\xff\xff\xff\xff")
        assert not accepts(decode_table, data, 0)
        assert not accepts(summarize_table, data, 0, len(data))
        assert not accepts(field_end, data, 6, len(data))


@given(our_tables, st.data())
def test_validation_and_decoder_agree_on_damaged_tables(table, draw):
    damaged = bytearray(encode_table(table))
    place = draw.draw(st.integers(0, len(damaged) - 1))
    damaged[place] = draw.draw(st.integers(0, 255))
    entries = bytes(damaged[4 : draw.draw(st.integers(4, len(damaged)))])
    data = table_of(entries)
    assert accepts(decode_table, data, 0) == accepts(summarize_table, data, 0, len(data))


@given(st.binary(max_size=40))
def test_validation_and_decoder_agree_on_any_bytes(entries):
    data = table_of(entries)
    assert accepts(decode_table, data, 0) == accepts(summarize_table, data, 0, len(data))
    assert accepts(decode_table, entries, 0) in (True, False)


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ({"CC": ["a"]}, HAS_CC_OR_BCC),
        ({"BCC": ["a"]}, HAS_CC_OR_BCC),
        ({"x": 1, "BCC": 5, "y": 2}, HAS_CC_OR_BCC),
        ({"a": {"CC": ["a"]}, "b": [{"BCC": []}]}, 0),
        ({"C": 1, "CCC": 1, "BC": 1, "CB": 1, "BBC": 1, "BCB": 1, "cc": 1, "ACC": 1, "": 1, "CCx": 1, "BCCx": 1}, 0),
        ({}, 0),
    ],
)
def test_summary_finds_cc_and_bcc(table, found):
    data = encode_table(table)
    assert summarize_table(data, 0, len(data)) == found
