"""Message properties: compared with pamqp, exact bytes where pamqp cannot help, and changes compared with a new
encoding.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime

import pamqp.commands
import pamqp.header
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpd.protocol import properties as props
from amqpd.protocol.field_table import CodecError, Timestamp, encode_table, shortstr
from amqpd.protocol.properties import (
    Properties,
    decode_headers,
    decode_properties,
    encode_properties,
    headers_span,
    scan_properties,
    with_headers,
    with_reply_to,
    without_expiration,
    without_headers,
)

texts = st.text(max_size=20)
octets = st.integers(0, 255)
values = (
    st.integers(-(2**31), 2**31 - 1) | st.text(max_size=8) | st.booleans() | st.lists(st.text(max_size=3), max_size=3)
)
anything = st.builds(
    Properties,
    content_type=st.none() | texts,
    content_encoding=st.none() | texts,
    headers=st.none() | st.dictionaries(texts, values, max_size=4),
    delivery_mode=st.none() | octets,
    priority=st.none() | octets,
    correlation_id=st.none() | texts,
    reply_to=st.none() | texts,
    expiration=st.none() | texts,
    message_id=st.none() | texts,
    timestamp=st.none() | st.integers(0, 2**64 - 1),
    type=st.none() | texts,
    user_id=st.none() | texts,
    app_id=st.none() | texts,
    cluster_id=st.none() | texts,
)
# One header of every type letter, also types that do not survive a conversion to Python values.
LETTERED = [
    shortstr(name) + field
    for name, field in (
        ("bool", b"t\x07"),
        ("int8", b"b\x80"),
        ("uint8", b"B\xff"),
        ("int16", b"s\x80\x00"),
        ("uint16", b"u\xff\xff"),
        ("int32", b"I\x00\x00\x00\x01"),
        ("uint32", b"i\xff\xff\xff\xff"),
        ("int64", b"l\x00\x00\x00\x00\x00\x00\x00\x01"),
        ("specified", b"L\x00\x00\x00\x00\x00\x00\x00\x01"),
        ("float", b"f\x3f\xc0\x00\x00"),
        ("double", b"d\x3f\xf8\x00\x00\x00\x00\x00\x00"),
        ("decimal", b"D\x02\x00\x00\x00\x0a"),
        ("string", b"S\x00\x00\x00\x02\xff\xfe"),
        ("bytes", b"x\x00\x00\x00\x01\x00"),
        ("array", b"A\x00\x00\x00\x03b\x01V"),
        ("timestamp", b"T\xff\xff\xff\xff\xff\xff\xff\xff"),
        ("table", b"F\x00\x00\x00\x05\x01as\x00\x01"),
        ("void", b"V"),
        ("\udcff", b"V"),
        ("", b"B\x00"),
    )
]
entries = st.lists(st.sampled_from(LETTERED), max_size=6)
fields = st.fixed_dictionaries(
    {name: st.none() | texts for name in ("content_type", "reply_to", "type", "expiration")}
).map(lambda found: Properties(**found))


def name_of(entry: bytes) -> str:
    return entry[1 : 1 + entry[0]].decode("utf-8", "surrogateescape")


def assemble(rest: Properties, headers: list[bytes] | None) -> bytes:
    """Properties with these raw headers, assembled in another way than in the tested code."""
    if headers is None:
        return encode_properties(rest._replace(headers=None))
    with_mark = encode_properties(rest._replace(headers={"mark": 1}))
    table = b"".join(headers)
    return with_mark.replace(encode_table({"mark": 1}), struct.pack(">I", len(table)) + table, 1)


def accepted(check, *arguments) -> bool:
    """Return True if `check` accepts. An exception other than CodecError fails the test."""
    try:
        check(*arguments)
    except CodecError:
        return False
    return True


@given(anything)
def test_round_trip(properties):
    assert decode_properties(encode_properties(properties)) == properties


@given(anything)
def test_pamqp_decodes_our_encoding(properties):
    if properties.timestamp is not None:
        properties = properties._replace(timestamp=properties.timestamp & 0xFFFFFFFF)
    header = pamqp.header.ContentHeader()
    header.unmarshal(struct.pack(">HHQ", 60, 0, 5) + encode_properties(properties))
    for name, value in header.properties:
        mine = getattr(properties, "type" if name == "message_type" else name)
        if name == "timestamp" and mine is not None:
            mine = datetime.fromtimestamp(mine, tz=UTC)
        if name == "cluster_id" and mine is None:
            mine = ""  # pamqp's value for an absent cluster id
        assert value == mine, name


@given(anything)
def test_we_decode_the_encoding_of_pamqp(properties):
    # pamqp leaves out empty texts, knows two delivery modes and no cluster id, and takes timestamps as datetimes.
    properties = Properties._make(None if value == "" else value for value in properties)
    properties = properties._replace(cluster_id=None)
    if properties.timestamp is not None:
        properties = properties._replace(timestamp=properties.timestamp & 0xFFFFFFFF)
    if properties.delivery_mode is not None:
        properties = properties._replace(delivery_mode=1 + properties.delivery_mode % 2)
    arguments = properties._asdict()
    del arguments["cluster_id"]
    arguments["message_type"] = arguments.pop("type")
    if properties.timestamp is not None:
        arguments["timestamp"] = datetime.fromtimestamp(properties.timestamp, tz=UTC)
    data = pamqp.header.ContentHeader(0, 5, pamqp.commands.Basic.Properties(**arguments)).marshal()[12:]
    scan_properties(data, 0, len(data))
    assert decode_properties(data) == properties


@given(anything, st.binary(max_size=5), st.binary(max_size=5))
def test_scan_reports_the_properties(properties, before, after):
    data = encode_properties(properties)
    start = len(before)
    end = start + len(data)
    inside = before + data + after
    info = scan_properties(inside, start, end)
    assert info.flags == int.from_bytes(data[:2], "big")
    assert info.delivery_mode == (properties.delivery_mode or 0)
    assert info.priority == (-1 if properties.priority is None else properties.priority)
    for name in ("expiration", "user_id"):
        text = getattr(properties, name)
        assert getattr(info, name) == (None if text is None else text.encode()), name
    text = properties.expiration or ""
    plain = 1 <= len(text) <= 18 and all(each in "0123456789" for each in text)
    assert info.expiration_ms == (int(text) if plain else -1)
    assert info.is_direct_reply_to == (properties.reply_to == "amq.rabbitmq.reply-to")
    assert info.has_headers == (properties.headers is not None)
    first, last = headers_span(inside, start, end)
    assert inside[first:last] == (b"" if properties.headers is None else encode_table(properties.headers))
    assert info.headers_start == (0 if properties.headers is None else first - start)
    assert scan_properties(inside, start, end, info) is info
    assert decode_headers(inside, start, end) == (properties.headers or {})


def test_exact_bytes_of_all_properties():
    data = encode_properties(
        Properties("a", "b", {"h": None}, 2, 9, "c", "d", "e", "f", Timestamp(2**64 - 1), "g", "h", "i", "j")
    )
    assert data == (
        b"\xff\xfc\x01a\x01b\x00\x00\x00\x03\x01hV\x02\x09\x01c\x01d\x01e\x01f"
        b"\xff\xff\xff\xff\xff\xff\xff\xff\x01g\x01h\x01i\x01j"
    )
    info = scan_properties(data, 0, len(data))
    assert (info.delivery_mode, info.priority) == (2, 9)
    assert (info.expiration, info.expiration_ms, info.user_id, info.is_direct_reply_to) == (b"e", -1, b"h", False)
    assert (info.headers_start, headers_span(data, 0, len(data))) == (6, (6, 13))
    assert decode_properties(data).timestamp == 2**64 - 1
    for size in range(len(data)):
        assert not accepted(scan_properties, data[:size], 0, size)
        assert not accepted(scan_properties, data, 0, size)
        assert not accepted(decode_properties, data[:size])
    assert not accepted(scan_properties, data, 0, len(data) + 1)
    assert not accepted(scan_properties, data, -1, len(data))


REFUSED = {
    "no flags": b"",
    "half the flags": b"\x80",
    "continuation": b"\x00\x01",
    "continuation with more flags": b"\x00\x01\x00\x00",
    "bit 1": b"\x00\x02",
    "content type that is missing": b"\x80\x00",
    "content type cut off": b"\x80\x00\x05abc",
    "garbage behind": b"\x80\x00\x01aX",
    "garbage without properties": b"\x00\x00X",
    "header of unknown type": b"\x20\x00\x00\x00\x00\x03\x01aZ",
    "header longer than the table": b"\x20\x00\x00\x00\x00\x07\x01aS\x00\x00\x00\x01",
    "table longer than the frame": b"\x20\x00\x00\x00\x00\x04\x01aV",
    "table of 4 GiB": b"\x20\x00\xff\xff\xff\xff\x01aV",
    "table length cut off": b"\x20\x00\x00\x00\x00",
    "delivery mode missing": b"\x10\x00",
    "priority missing": b"\x18\x00\x02",
    "timestamp cut off": b"\x00\x40\x00\x00\x00\x00\x00\x00\x00",
    "reply-to cut off": b"\x02\x00\x02a",
    "expiration cut off": b"\x01\x00\x02a",
    "user id cut off": b"\x00\x10\x02a",
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_bytes_are_rejected(case):
    data = REFUSED[case]
    assert not accepted(scan_properties, data, 0, len(data))
    assert not accepted(decode_properties, data)


def test_headers_nested_too_deep_are_rejected():
    table = b"\x00\x00\x00\x00"
    for _ in range(127):
        table = struct.pack(">I", len(table) + 3) + b"\x01aF" + table
    data = b"\x20\x00" + table
    assert scan_properties(data, 0, len(data)).has_headers
    data = b"\x20\x00" + struct.pack(">I", len(table) + 3) + b"\x01aF" + table
    assert not accepted(scan_properties, data, 0, len(data))
    assert not accepted(decode_properties, data)


@pytest.mark.parametrize(
    ("data", "delivery_mode", "expiration"),
    [
        (b"\x10\x00\x63", 99, None),
        (b"\x10\x00\x00", 0, None),
        (b"\x01\x00\x03abc", 0, b"abc"),
        (b"\x01\x00\x00", 0, b""),
        (b"\x01\x00\x02\xff\xfe", 0, b"\xff\xfe"),
        (b"\x00\x00", 0, None),
    ],
)
def test_values_are_not_interpreted(data, delivery_mode, expiration):
    info = scan_properties(data, 0, len(data))
    assert (info.delivery_mode, info.expiration) == (delivery_mode, expiration)


@given(anything, st.data())
def test_scan_and_decoder_agree_on_damaged_properties(properties, draw):
    damaged = bytearray(encode_properties(properties))
    place = draw.draw(st.integers(0, len(damaged) - 1))
    damaged[place] = draw.draw(octets)
    data = bytes(damaged[: draw.draw(st.integers(0, len(damaged)))])
    assert accepted(scan_properties, data, 0, len(data)) == accepted(decode_properties, data)
    whole = accepted(scan_properties, data, 0, len(data))
    # These functions may overlook damage outside their field, but they accept all bytes that scan accepts.
    assert accepted(without_headers, data, ["a"]) >= whole
    assert accepted(with_headers, data, {"a": 1}) >= whole
    assert accepted(with_reply_to, data, b"r") >= whole
    assert accepted(without_expiration, data) >= whole


@given(st.binary(max_size=40))
def test_scan_and_decoder_agree_on_any_bytes(data):
    assert accepted(scan_properties, data, 0, len(data)) == accepted(decode_properties, data)


def info_fields(info):
    return (
        info.flags,
        info.delivery_mode,
        info.priority,
        info.expiration,
        info.expiration_ms,
        info.user_id,
        info.headers_start,
        info.has_cc_or_bcc,
        info.is_direct_reply_to,
    )


@given(st.lists(anything, min_size=2, max_size=6))
def test_scan_returns_the_last_result_exactly_if_it_fits(messages):
    before = None
    for properties in messages:
        data = encode_properties(properties)
        alone = scan_properties(data, 0, len(data))
        info = scan_properties(data, 0, len(data), before)
        assert info_fields(info) == info_fields(alone)
        assert (info is before) == (before is not None and info_fields(before) == info_fields(alone))
        before = info


CELERY = Properties(
    content_type="application/json",
    content_encoding="utf-8",
    headers={"lang": "py", "task": "t", "id": "1" * 36, "group": None, "timelimit": [None, None], "argsrepr": "(1,)"},
    delivery_mode=2,
    priority=0,
    correlation_id="1" * 36,
    reply_to="r" * 36,
)


def test_different_ids_give_the_same_result_object():
    first, second = (
        encode_properties(
            CELERY._replace(
                headers={**CELERY.headers, "id": digit * 36, "argsrepr": digit * size},
                correlation_id=digit * 36,
                reply_to=digit * 30,
                message_id=digit * size,
                timestamp=Timestamp(size),
            )
        )
        for digit, size in (("7", 5), ("8", 90))
    )
    info = scan_properties(first, 0, len(first))
    assert scan_properties(second, 0, len(second), info) is info


DIFFERENT_PROPERTIES = {
    "flags": CELERY._replace(app_id="a"),
    "delivery mode": CELERY._replace(delivery_mode=1),
    "priority": CELERY._replace(priority=1),
    "expiration": CELERY._replace(expiration="1000"),
    "where the headers begin": CELERY._replace(content_type="text/plain"),
    "CC": CELERY._replace(headers={"CC": ["a"]}),
    "the broker's own reply-to": CELERY._replace(reply_to="amq.rabbitmq.reply-to"),
    "user": CELERY._replace(user_id="anna"),
}


@pytest.mark.parametrize("name", DIFFERENT_PROPERTIES)
def test_change_of_a_relevant_property_gives_a_new_result(name):
    messages = [CELERY, DIFFERENT_PROPERTIES[name], CELERY]
    if name == "expiration":
        messages += [CELERY._replace(expiration=text) for text in ("1000", "1001", "100", "1000 ", "1" * 13, "1" * 14)]
    if name == "user":
        messages += [CELERY._replace(user_id=text) for text in ("anna", "anne", "", "a" * 13, "a" * 12 + "b", "a" * 14)]
    before = None
    for properties in messages:
        data = encode_properties(properties)
        info = scan_properties(data, 0, len(data), before)
        assert info is not before or properties.expiration == "1000" or properties.user_id == "anna"
        assert info_fields(info) == info_fields(scan_properties(data, 0, len(data)))
        before = info


@given(anything, st.data())
def test_damage_is_found_after_an_equal_message(properties, draw):
    """A malformed table is an error also if the message before it was equal."""
    whole = encode_properties(properties)
    known = scan_properties(whole, 0, len(whole))
    damaged = bytearray(whole)
    damaged[draw.draw(st.integers(0, len(damaged) - 1))] = draw.draw(octets)
    data = bytes(damaged[: draw.draw(st.integers(0, len(damaged)))])
    assert accepted(scan_properties, data, 0, len(data), known) == accepted(decode_properties, data)


def test_scan_and_decoder_accept_the_same_values_of_each_type():
    """Fields of all 256 letters with every length up to 12."""
    for letter in range(256):
        taken = 0
        for size in range(13):
            value = bytes(size)
            if size >= 4 and letter in b"SxAF":
                value = (size - 4).to_bytes(4, "big") + b"V" * (size - 4 if letter in b"SxA" else 0)
            table = b"\x01a" + bytes([letter]) + value
            data = b"\x20\x00" + len(table).to_bytes(4, "big") + table
            known = accepted(decode_properties, data)
            assert accepted(scan_properties, data, 0, len(data)) == known, (letter, size)
            taken += known
        assert (taken > 0) == (letter in b"tbBsuIilLfdDTSxAFV"), letter


def test_cc_and_bcc_are_found():
    for name, is_found in (("CC", True), ("BCC", True), ("cc", False)):
        data = encode_properties(Properties(content_type="t", headers={"a": 1, name: ["q"]}))
        assert scan_properties(data, 0, len(data)).has_cc_or_bcc is is_found


@given(fields, entries, st.lists(st.sampled_from([name_of(entry) for entry in LETTERED]), max_size=4))
def test_removing_headers_keeps_everything_else(rest, headers, names):
    data = assemble(rest, headers)
    kept = [entry for entry in headers if name_of(entry) not in names]
    changed = without_headers(data, names)
    assert changed == assemble(rest, kept)
    assert (changed is data) == (kept == headers)
    scan_properties(changed, 0, len(changed))


@given(fields, entries)
def test_a_header_is_set_in_place_or_at_the_end(rest, headers):
    fresh = {"float": "new", "other": 1}
    expected = []
    replaced = False
    for entry in headers:
        if name_of(entry) != "float":
            expected.append(entry)
        elif not replaced:
            expected.append(b"\x05floatS\x00\x00\x00\x03new")
            replaced = True
    if not replaced:
        expected.append(b"\x05floatS\x00\x00\x00\x03new")
    expected.append(b"\x05otherI\x00\x00\x00\x01")
    changed = with_headers(assemble(rest, headers), fresh, ["float"])
    assert changed == assemble(rest, expected)
    dropped = [entry for entry in expected if name_of(entry) != "void"]
    assert with_headers(assemble(rest, headers), fresh, ["void", "absent"]) == assemble(rest, dropped)


def test_setting_a_header_that_occurs_twice():
    one, two, other = b"\x01aI\x00\x00\x00\x01", b"\x01aS\x00\x00\x00\x012", b"\x01bV"
    data = assemble(Properties(type="t"), [one, other, two])
    assert with_headers(data, {"a": True}) == assemble(Properties(type="t"), [b"\x01at\x01", other])
    assert without_headers(data, {"a"}) == assemble(Properties(type="t"), [other])
    assert without_headers(without_headers(data, {"a"}), {"b"}) == assemble(Properties(type="t"), [])
    assert with_headers(data, {"b": None}) == data


@given(fields)
def test_adding_headers_to_properties_without_headers(rest):
    data = assemble(rest, None)
    assert with_headers(data, {"other": 1}) == assemble(rest, [b"\x05otherI\x00\x00\x00\x01"])
    assert with_headers(data, {}, ["a"]) is data
    assert without_headers(data, ["a"]) is data
    assert decode_headers(data, 0, len(data)) == {}


@given(fields, entries)
def test_reply_to_and_expiration(rest, headers):
    data = assemble(rest, headers)
    assert with_reply_to(data, b"there") == assemble(rest._replace(reply_to="there"), headers)
    assert without_expiration(data) == assemble(rest._replace(expiration=None), headers)
    assert (without_expiration(data) is data) == (rest.expiration is None)
    assert with_reply_to(data, b"") == assemble(rest._replace(reply_to=""), headers)
    assert not accepted(with_reply_to, data, b"x" * 256)


@pytest.mark.parametrize(
    "wrong",
    [
        Properties(priority=256),
        Properties(delivery_mode=-1),
        Properties(timestamp=2**64),
        Properties(content_type="x" * 256),
        Properties(headers={"a": ...}),
        Properties(priority="5"),
        Properties(app_id=5),
        Properties(headers="a"),
    ],
    ids=repr,
)
def test_values_that_do_not_fit_a_property_are_rejected(wrong):
    with pytest.raises(CodecError):
        encode_properties(wrong)


def test_flags_are_those_of_the_fields():
    bits = [getattr(props, name.upper()) for name in Properties._fields]
    assert bits == [1 << (15 - place) for place in range(14)]
    assert encode_properties(Properties()) == props.NO_PROPERTIES
