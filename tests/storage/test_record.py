"""Records: varints, header order, and damage that the decoder must refuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from librt.strings import BytesWriter

from amqpd.protocol.properties import with_headers
from amqpd.storage.log.record import (
    BadRecord,
    Record,
    RecordDecoder,
    RecordRoute,
    RecordViews,
    matches_at,
    read_offset_delta,
    read_record,
    read_varint,
    record_stop,
    value_size,
    varint,
    varint_size,
    write_record,
)


@given(st.integers(-(2**63), 2**63 - 1))
def test_varint_round_trip(number: int) -> None:
    data = varint(number)
    assert read_varint(data + b"\xff", 0) == (number, len(data))


@pytest.mark.parametrize(
    ("number", "data"),
    [(0, b"\x00"), (-1, b"\x01"), (1, b"\x02"), (63, b"\x7e"), (64, b"\x80\x01"), (300, b"\xd8\x04"), (-2, b"\x03")],
)
def test_varints_are_zigzag(number: int, data: bytes) -> None:
    assert varint(number) == data


@given(st.integers(0, 2**40))
def test_varint_size(number: int) -> None:
    assert varint_size(number) == len(varint(number))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 11, b"\xff" * 9])
def test_bad_varints(data: bytes) -> None:
    with pytest.raises(BadRecord):
        read_varint(data, 0)


def encode(exchange: bytes, key: bytes, properties: bytes, body: bytes, delta: int) -> bytes:
    writer = BytesWriter()
    source = b"<" + properties + b"|" + body + b">"
    start = len(properties) + 2
    write_record(writer, RecordRoute(exchange, key), delta, source, 1, start - 1, start, start + len(body))
    return writer.getvalue()


@given(
    st.binary(max_size=255),
    st.binary(max_size=255),
    st.binary(max_size=300),
    st.binary(max_size=9000),
    st.integers(0, 9999),
)
def test_round_trip(exchange: bytes, key: bytes, properties: bytes, body: bytes, delta: int) -> None:
    data = encode(exchange, key, properties, body, delta)
    start, stop = record_stop(data, 0, len(data))
    assert stop == len(data)
    assert value_size(data, start, stop) == len(body)
    found, position = read_offset_delta(data, start)
    assert found == delta
    record = read_record(data, position, stop, 7, 8, False)
    assert (record.exchange, record.routing_key, record.properties, record.body) == (exchange, key, properties, body)
    assert (record.offset, record.timestamp_ms, record.persistent, record.delivery_count) == (7, 8, False, 0)


def test_unordered_and_unknown_headers_are_read() -> None:
    """Other programs write this format, too. Unknown headers are skipped; null key and value are empty."""
    headers = b"".join(
        varint(len(name)) + name + varint(-1 if content is None else len(content)) + (content or b"")
        for name, content in [(b"properties", b"PP"), (b"traceparent", b"x" * 70), (b"null", None), (b"exchange", b"E")]
    )
    data = varint(-1) + varint(-1) + varint(4) + headers
    record = read_record(data, 0, len(data), 0, 0, True)
    assert (record.exchange, record.routing_key, record.properties, record.body) == (b"E", b"", b"PP", b"")


def test_cut_records_are_refused() -> None:
    data = encode(b"ex", b"key", b"\x10\x00\x02", b"body", 3)
    for size in range(len(data)):
        with pytest.raises(BadRecord):
            record_stop(data[:size], 0, size)
    _, position = read_offset_delta(data, record_stop(data, 0, len(data))[0])
    for size in range(position, len(data)):
        with pytest.raises(BadRecord):
            read_record(data[:size], position, size, 0, 0, True)


def fields(record: Record) -> tuple[object, ...]:
    return (
        record.offset,
        record.timestamp_ms,
        record.exchange,
        record.routing_key,
        record.properties,
        record.body,
        record.persistent,
        record.tombstone,
    )


SHAPES = st.tuples(
    st.sampled_from([b"", b"ex", b"e" * 255]),
    st.sampled_from([b"", b"key", b"kez", b"key" * 80]),
    st.sampled_from([b"\x00\x00", b"\x10\x00\x02", b"\x10\x00\x01", b"p" * 900, b"p" * 2000]),
    st.sampled_from([b"", b"b", b"c", b"b" * 63, b"b" * 64, b"b" * 9000]),
)


@given(st.lists(SHAPES, min_size=1, max_size=20))
def test_decoder_cache_does_not_change_a_record(shapes: list[tuple[bytes, bytes, bytes, bytes]]) -> None:
    """After any other records, each record is the same as when it is read on its own."""
    decoder = RecordDecoder()
    for number, (exchange, key, properties, body) in enumerate(shapes):
        data = b"behind" + encode(exchange, key, properties, body, number) + b"before"
        _, stop = record_stop(data, 6, len(data))
        _, position = read_offset_delta(data, record_stop(data, 6, len(data))[0])
        record = decoder.read(data, position, stop, number, 7, number % 2 == 0)
        assert fields(record) == fields(read_record(data, position, stop, number, 7, number % 2 == 0))
        assert record.body == body and record.properties == properties


@given(st.lists(SHAPES, min_size=1, max_size=20))
def test_views_equal_the_records(shapes: list[tuple[bytes, bytes, bytes, bytes]]) -> None:
    decoder, views, expected = RecordDecoder(), RecordViews(), []
    for number, (exchange, key, properties, body) in enumerate(shapes):
        data = b"behind" + encode(exchange, key, properties, body, number) + b"before"
        _, stop = record_stop(data, 6, len(data))
        _, position = read_offset_delta(data, record_stop(data, 6, len(data))[0])
        counted = decoder.read_view(data, position, stop, number, 7 + number, number % 2 == 0, views)
        assert counted == len(body) + len(properties) + 64
        expected.append(fields(read_record(data, position, stop, number, 7 + number, number % 2 == 0)))
    views.close(len(shapes), False)
    assert [fields(record) for record in records_of(views)] == expected
    assert views.index_of(0) == 0 and views.index_of(len(shapes)) == len(shapes)


def records_of(views: RecordViews) -> list[Record]:
    found = []
    for index in range(views.count):
        shared = views.shared_fields[views.shared_fields_index(index)]
        record = Record(
            views.offset(index),
            views.timestamp_ms(index),
            shared.exchange,
            shared.routing_key,
            shared.properties,
            views.body(index),
            shared.persistent,
        )
        record.tombstone = views.body_size(index) < 0
        found.append(record)
    return found


@given(st.binary(max_size=40), st.integers(0, 50), st.integers(0, 40), st.booleans())
def test_matches_at(data: bytes, position: int, size: int, damaged: bool) -> None:
    part = bytearray(data[position : position + size])
    if part and damaged:
        part[size % len(part)] ^= 1
    assert matches_at(data, position, bytes(part)) == data.startswith(bytes(part), position)
    assert not matches_at(data, position, data + b"x")


def test_decoder_reuses_equal_objects() -> None:
    decoder = RecordDecoder()
    found = []
    for number in range(3):
        data = encode(b"exchange", b"key", b"\x10\x00\x02", b"%d" % number * (number + 1), 0)
        _, position = read_offset_delta(data, record_stop(data, 0, len(data))[0])
        found.append(decoder.read(data, position, len(data), number, 0, True))
    assert [record.body for record in found] == [b"0", b"11", b"222"]
    for record in found:
        assert record.exchange is found[0].exchange
        assert record.routing_key is found[0].routing_key
        assert record.properties is found[0].properties


PLAIN = b"\x10\x00\x02"


def read_with(decoder: RecordDecoder, data: bytes) -> Record:
    _, position = read_offset_delta(data, record_stop(data, 0, len(data))[0])
    return decoder.read(data, position, len(data), 0, 0, True)


@pytest.mark.parametrize("before", [[PLAIN], [b"other"], [b"other", b"one more"], [PLAIN, b"other"]])
def test_decoder_refuses_cut_records(before: list[bytes]) -> None:
    data = encode(b"ex", b"key", b"\x10\x00\x02", b"body", 3)
    _, position = read_offset_delta(data, record_stop(data, 0, len(data))[0])
    for size in range(position, len(data)):
        decoder = RecordDecoder()
        for properties in before:
            read_with(decoder, encode(b"ex", b"key", properties, b"another body", 3))
        with pytest.raises(BadRecord):
            decoder.read(data[:size], position, size, 0, 0, True)


def test_changing_properties_leave_other_fields_cached() -> None:
    decoder = RecordDecoder()
    first = read_with(decoder, encode(b"exchange", b"key", b"id 0", b"body", 0))
    for number in range(1, 5):
        record = read_with(decoder, encode(b"exchange", b"key", b"id %d" % number * number, b"b" * number, 0))
        assert (record.properties, record.body) == (b"id %d" % number * number, b"b" * number)
        assert record.exchange is first.exchange and record.routing_key is first.routing_key
    repeated = [read_with(decoder, encode(b"exchange", b"key", b"the same", b"body", 0)) for _ in range(3)]
    assert repeated[0].properties is repeated[1].properties is repeated[2].properties


def test_decoder_reads_headers_in_another_order() -> None:
    """Other programs may write this format with another header order than the broker."""
    exchange = varint(8) + b"exchange" + varint(1) + b"E"
    properties = varint(10) + b"properties" + varint(3)
    other = varint(5) + b"other" + varint(3) + b"xyz"
    first, second = b"\x10\x00\x01", b"\x10\x00\x02"
    for headers in (
        [exchange, properties + first],
        [properties + first, exchange],
        [exchange, properties + first, other],
        [exchange, properties + second],
        [properties + second, exchange],
        [exchange, properties + second, other],
    ):
        decoder = RecordDecoder()
        read_with(decoder, encode(b"E", b"k", first, b"v", 0))
        for _ in range(2):
            data = varint(1) + b"k" + varint(1) + b"v" + varint(len(headers)) + b"".join(headers)
            record = decoder.read(data, 0, len(data), 0, 0, True)
            wanted = second if second in data else first
            if other in headers:
                wanted = with_headers(wanted, {"other": b"xyz"})
            assert (record.exchange, record.properties, record.body) == (b"E", wanted, b"v")


def test_decoder_reads_a_null_value_as_a_tombstone() -> None:
    decoder = RecordDecoder()
    behind = varint(2) + varint(8) + b"exchange" + varint(1) + b"E" + varint(10) + b"properties" + varint(2) + b"PP"
    for value, tombstone in [(varint(3) + b"abc", False), (varint(-1), True), (varint(0), False), (varint(-1), True)]:
        data = varint(1) + b"k" + value + behind
        record = decoder.read(data, 0, len(data), 0, 0, True)
        assert (record.tombstone, record.exchange, record.properties) == (tombstone, b"E", b"PP")
