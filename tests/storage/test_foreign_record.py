"""Records of other programs as messages: what a decoder returns for any key, value, headers and time."""

from __future__ import annotations

import struct
from typing import Any, Final

import lz4.frame
import pytest
from foreign_batches import check_batches
from google_crc32c import value as crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from librt.strings import BytesWriter

from amqpd.protocol.field_table import Int64
from amqpd.protocol.properties import Properties, decode_properties, encode_properties
from amqpd.storage.log.appender import BadBatch
from amqpd.storage.log.batch import LZ4, NO_PRODUCER, BatchCursor, BatchHeader, close_batch
from amqpd.storage.log.foreign_record import (
    HEADERS_MAX,
    MESSAGE_BYTES_MAX,
    Header,
    are_properties,
    is_short_text,
    message_fields,
)
from amqpd.storage.log.record import Record, RecordDecoder, RecordRoute, RecordViews, varint, write_record

TIME_MS: Final = 1_700_000_000_123
OURS: Final = encode_properties(Properties(content_type="a/b", headers={"n": 5, "s": "x"}))

Foreign = tuple[int, bytes | None, bytes | None, list[Header]]


def field(content: bytes | None) -> bytes:
    return varint(-1) if content is None else varint(len(content)) + content


def encoded(record: Foreign, number: int) -> bytes:
    """Return a record after TIME_MS, as a producer encodes it."""
    later_ms, key, value, headers = record
    parts = [b"\0", varint(later_ms), varint(number), field(key), field(value), varint(len(headers))]
    body = b"".join(parts + [field(name) + field(content) for name, content in headers])
    return varint(len(body)) + body


def batch(records: list[Foreign], ours: int = 0) -> bytes:
    """Return a batch of these records, after some that AMQP publishers wrote."""
    writer = BytesWriter()
    route = RecordRoute(b"ex", b"k")
    for number in range(ours):
        write_record(writer, route, number, OURS + b"body", 0, len(OURS), len(OURS), len(OURS) + 4)
    data = writer.getvalue() + b"".join(encoded(each, ours + at) for at, each in enumerate(records))
    count = ours + len(records)
    closed = close_batch(BytesWriter(), data, 0, count, 0, 0, TIME_MS, 0, NO_PRODUCER, -1, -1)
    return bytes(closed.header + closed.records)


def read(data: bytes, decoder: RecordDecoder | None = None) -> list[Record]:
    records: list[Record] = []
    BatchCursor(data, 0, BatchHeader(data, 0), decoder).read(0, None, {}, 1 << 40, records)
    return records


def fields_of(record: Record) -> tuple[object, ...]:
    return (record.exchange, record.routing_key, record.properties, record.body, record.tombstone, record.timestamp_ms)


def message(headers: list[Header], key: bytes = b"k", is_null: bool = False, time_ms: int = TIME_MS) -> Properties:
    """Return the properties of the message for a record."""
    return decode_properties(message_fields(key, is_null, headers, time_ms)[2])


NAMES = st.sampled_from(
    [
        b"exchange",
        b"properties",
        b"type",
        b"priority",
        b"a",
        b"",
        b"timestamp_in_ms",
        b"x-tombstone",
        b"\xff",
        b"n" * 256,
    ]
)
CONTENTS = st.sampled_from([None, b"", b"1", b"\xff\xfe", OURS, b"v" * 300])
KEYS = st.sampled_from([None, b"", b"k", b"\xff", b"k" * 255, b"k" * 256, "ü".encode() * 128])
FOREIGN = st.tuples(
    st.sampled_from([0, 0, -1]),
    KEYS,
    st.sampled_from([None, b"", b"v"]),
    st.lists(st.tuples(NAMES, CONTENTS), max_size=4),
)


@given(st.lists(FOREIGN, max_size=6), st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_each_record_is_a_valid_message_whatever_the_record_before_it_was(records: list[Foreign], ours: int) -> None:
    data = batch([each for each in records for _ in range(2)], ours)
    found = read(data)
    assert [each.properties for each in found[:ours]] == [OURS] * ours
    for record, (_, _, _, headers) in zip(found[ours:], [each for each in records for _ in range(2)], strict=True):
        if [name for name, _ in headers] != [b"exchange", b"properties"]:
            assert is_short_text(record.exchange)
            assert is_short_text(record.routing_key)
            assert are_properties(record.properties)
    alone = [read(batch([each]))[0] for each in records for _ in range(2)]
    assert [fields_of(each) for each in found[ours:]] == [fields_of(each) for each in alone]
    views = RecordViews()
    BatchCursor(data, 0, BatchHeader(data, 0)).read_views(0, None, 1 << 40, views)
    views.close(len(found), False)
    for index, record in enumerate(found):
        shared = views.shared_fields[views.shared_fields_index(index)]
        assert (shared.exchange, shared.routing_key, shared.properties) == fields_of(record)[:3]
        assert (views.body(index), views.body_size(index) < 0) == (record.body, record.tombstone)


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (b"\0\0\0\2k\2v\1", "-1 headers"),  # attributes, time, offset, key, value, number of headers
        (b"\0\0\0\2k\2v\0?", "bytes follow the fields"),
        (b"\0\0\0\2k\2v\2\2a\2b?", "bytes follow the fields"),
    ],
)
def test_a_record_that_kafka_refuses_is_refused(record: bytes, why: str) -> None:
    """Java's consumers cannot read on behind it."""
    records = bytes([len(record) * 2]) + record
    covered = struct.pack(">hiqqqhii", 0, 0, 0, 0, -1, -1, -1, 1) + records
    head = struct.pack(">qiib", 0, len(covered) + 9, -1, 2) + struct.pack(">I", crc32c(covered))
    with pytest.raises(BadBatch, match=why):
        check_batches(head + covered)


@pytest.mark.parametrize("codec", [0, LZ4])
def test_batches_that_earlier_versions_confirmed_stay_readable(harness: Any, codec: int) -> None:
    """Produce accepted bytes behind the fields of a record, and LZ4 of several frames. Both stay readable."""
    fields = [b"\0\2k\4v%d" % number + header for number, header in enumerate([b"\0?", b"\2\2a\2b?"])]
    fields.append(b"\4\2k\4v2\4\x10exchange\0\x14properties\4\0\0?")
    records = b"".join(varint(len(each) + 1) + b"\0" + each for each in fields)
    data = lz4.frame.compress(records[:9]) + lz4.frame.compress(records[9:]) if codec else records
    batch = close_batch(BytesWriter(), data, 0, 3, 0, codec, TIME_MS, 6, NO_PRODUCER, -1, -1)
    with pytest.raises(BadBatch):
        check_batches(batch.header + batch.records)
    store = harness.create_log()
    store.appender.append_checked([batch])
    harness.append(b"next")
    harness.end_turn()
    for is_after_a_kill in (False, True):
        if is_after_a_kill:
            harness.storage.close(clean=False)
            store = harness.restart(harness.filesystem)
        assert [each.body for each in store.cursor.read(0, 1 << 30).records] == [b"v0", b"v1", b"v2", b"next"]
        views = store.new_cursor().views_below_hw(0, 1 << 30, list)
        assert [views.body(index) for index in range(views.count)] == [b"v0", b"v1", b"v2", b"next"]
        assert not store.lost


@given(FOREIGN)
@settings(max_examples=100, deadline=None)
def test_a_batch_that_is_accepted_has_only_valid_messages(record: Foreign) -> None:
    data = batch([record])
    try:
        check_batches(data)
    except BadBatch:
        names = [name for name, _ in record[3]]
        assert names == [b"exchange", b"properties"]
        return
    assert are_properties(read(data)[0].properties)


def test_properties_that_are_too_large_are_refused_with_the_limit() -> None:
    large = encode_properties(Properties(headers={"h": "x" * MESSAGE_BYTES_MAX}))
    with pytest.raises(BadBatch, match=f"at most {MESSAGE_BYTES_MAX} bytes"):
        check_batches(batch([(0, b"k", b"v", [(b"exchange", b""), (b"properties", large)])]))


def test_key_headers_and_time_are_those_of_the_message() -> None:
    headers: list[Header] = [(b"content-type", b"text/plain"), (b"a", b"1"), (b"b", None), (b"a", b"\xff"), (b"", b"e")]
    (record,) = read(batch([(-3, b"key", b"value", headers)]))
    assert (record.routing_key, record.exchange, record.body) == (b"key", b"", b"value")
    assert decode_properties(record.properties) == Properties(
        content_type="text/plain",
        headers={"timestamp_in_ms": TIME_MS - 3, "a": ["1", b"\xff"], "b": None, "": "e"},
        delivery_mode=2,
        timestamp=(TIME_MS - 3) // 1000,
    )


def test_a_record_without_headers_has_its_time() -> None:
    wanted = Properties(headers={"timestamp_in_ms": TIME_MS}, delivery_mode=2, timestamp=TIME_MS // 1000)
    assert message([]) == wanted
    assert message([], time_ms=-1) == Properties(delivery_mode=2)


def test_a_null_value_is_a_tombstone_and_a_null_key_an_empty_routing_key() -> None:
    (record,) = read(batch([(0, None, None, [])]))
    headers = decode_properties(record.properties).headers
    assert (record.routing_key, record.body, record.tombstone) == (b"", b"", True)
    assert headers == {"x-tombstone": True, "timestamp_in_ms": TIME_MS}


@pytest.mark.parametrize(
    ("key", "routing_key"),
    [
        (b"k" * 300, b"k" * 255),
        (b"\x00\xff", b"\x00\xef\xbf\xbd"),
        ("ü".encode() * 128, "ü".encode() * 127),
        (b"\xff" * 255, b"\xef\xbf\xbd" * 85),
    ],
)
def test_a_key_that_is_no_short_string_is_in_a_header(key: bytes, routing_key: bytes) -> None:
    assert message_fields(key, False, [], TIME_MS)[1] == routing_key
    found = (message([], key).headers or {})["x-kafka-key"]
    assert found in (key, key.decode("utf-8", "replace"))


def test_header_names_that_are_no_short_strings_are_in_a_header_of_their_own() -> None:
    found = message([(b"n" * 256, b"v"), (b"a", b"1"), (b"\xff", None)]).headers
    assert found == {"timestamp_in_ms": TIME_MS, "a": "1", "x-kafka-headers": [["n" * 256, "v"], [b"\xff", None]]}


def test_headers_beyond_the_limit_are_counted() -> None:
    large = b"v" * (MESSAGE_BYTES_MAX - 1)
    found = message([(b"a", large), (b"b", b"2"), (b"c", b"3")]).headers
    assert found == {"timestamp_in_ms": TIME_MS, "a": large.decode(), "x-kafka-headers-omitted": 2}
    assert message([], b"k" * (MESSAGE_BYTES_MAX + 1)).headers == {
        "timestamp_in_ms": TIME_MS,
        "x-kafka-headers-omitted": 1,
    }


def test_a_long_key_is_omitted_where_the_given_properties_leave_no_room_for_it() -> None:
    properties = encode_properties(Properties(headers={"h": "x" * (MESSAGE_BYTES_MAX - 100)}))
    found = message([(b"properties", properties)], b"k" * 1000).headers
    assert found == {"h": "x" * (MESSAGE_BYTES_MAX - 100), "x-kafka-headers-omitted": 1}


def test_values_that_a_property_cannot_have_stay_headers() -> None:
    found = message([(b"priority", b"high"), (b"expiration", b"-5"), (b"type", b"t" * 256), (b"exchange", b"\xff")])
    assert found.headers == {
        "timestamp_in_ms": TIME_MS,
        "priority": "high",
        "expiration": "-5",
        "type": "t" * 256,
        "exchange": b"\xff",
    }


def test_encoded_properties_count_and_other_headers_are_added() -> None:
    headers: list[Header] = [(b"n", b"6"), (b"content-type", b"c/d"), (b"trace", b"t"), (b"type", b"u")]
    exchange, key, properties = message_fields(
        b"k", False, [*headers, (b"properties", OURS), (b"exchange", b"e")], TIME_MS
    )
    assert (exchange, key) == (b"e", b"k")
    wanted = Properties(content_type="a/b", headers={"n": 5, "s": "x", "trace": "t", "type": "u"})
    assert decode_properties(properties) == wanted
    assert message_fields(b"k", False, [(b"properties", OURS), (b"n", b"6")], TIME_MS)[2] is OURS


def test_a_header_properties_with_other_bytes_is_an_ordinary_header() -> None:
    assert message([(b"properties", b"\xff")]).headers == {"timestamp_in_ms": TIME_MS, "properties": b"\xff"}


def test_a_header_with_the_name_of_the_time_is_kept_beside_it() -> None:
    found = (message([(b"timestamp_in_ms", b"5")]).headers or {})["timestamp_in_ms"]
    assert found == [Int64(TIME_MS), "5"]


def test_without_conversion_a_record_is_as_it_is_stored() -> None:
    (record,) = read(batch([(0, b"k" * 300, b"v", [(b"a", b"1")])]), RecordDecoder(converts=False))
    assert (record.routing_key, record.properties, record.foreign) == (b"k" * 300, b"", True)


def test_equal_records_without_headers_are_accepted_and_foreign() -> None:
    data = batch([(0, b"k", b"v", [])] * 3)
    assert len(check_batches(data)) == 1
    for decoder in (RecordDecoder(), RecordDecoder(converts=False)):
        assert [each.foreign for each in read(data, decoder)] == [True] * 3


def test_headers_beyond_the_count_are_omitted() -> None:
    (record,) = read(batch([(0, b"k", b"v", [(b"", b"")] * (HEADERS_MAX + 5))]))
    headers = decode_properties(record.properties).headers or {}
    assert (len(headers[""]), headers["x-kafka-headers-omitted"]) == (HEADERS_MAX, 5)  # type: ignore[arg-type]
