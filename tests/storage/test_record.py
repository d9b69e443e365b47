"""Records: the varints, the constant parts, and damage that must not get past the decoder."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from librt.strings import BytesWriter

from amqpd.storage.record import (
    BadRecord,
    RecordRoute,
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


def test_headers_in_any_order_and_unknown_ones() -> None:
    """Other programs write this format too: headers we do not know are passed over, null key and value are empty."""
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
