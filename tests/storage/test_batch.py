"""Record batches, read by our own cursor and by the parsers of kafka-python and aiokafka."""

from __future__ import annotations

import warnings

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from hypothesis import given
from hypothesis import strategies as st
from librt.strings import BytesWriter

from amqpd.storage.acks.ack_set import AckSet
from amqpd.storage.log import batch
from amqpd.storage.log.batch import BatchCursor, BatchHeader, ClosedBatch, body_size_bytes, close_batch, crc_fits
from amqpd.storage.log.record import BadRecord, Record, RecordRoute, write_record

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses importlib.resources.read_text
    from kafka.record.default_records import DefaultRecordBatch as KafkaBatch

BODIES = [b"", b"x", b"two", b"z" * 20000]


def make_batch(
    bodies: list[bytes], base: int = 41, attributes: int = batch.LOG_APPEND_TIME, producer: int = -1
) -> ClosedBatch:
    writer = BytesWriter()
    route = RecordRoute(b"orders", b"eu.new")
    for delta, body in enumerate(bodies):
        source = b"\x10\x00\x02" + body
        write_record(writer, route, delta, source, 0, 3, 3, len(source))
    size = sum(map(len, bodies))
    sequence = -1 if producer < 0 else 5
    return close_batch(
        BytesWriter(),
        writer.getvalue(),
        base,
        len(bodies),
        3,
        attributes,
        1_700_000_000_123,
        size,
        producer,
        sequence,
        -1,
    )


def test_header_fields() -> None:
    closed = make_batch(BODIES)
    header = BatchHeader(b"__" + closed.header, 2)
    assert header.is_plausible()
    assert (header.base_offset, header.last_offset, header.count) == (41, 44, 4)
    assert (header.size, header.epoch, header.magic) == (closed.size, 3, 2)
    assert (header.attributes, header.producer_id, header.max_timestamp_ms) == (8, -1, 1_700_000_000_123)
    assert body_size_bytes(closed.header + closed.records, 0, header) == sum(map(len, BODIES))


@pytest.mark.parametrize("parser", [KafkaBatch, AioBatch])
@pytest.mark.parametrize("attributes", [8, 8 | batch.TRANSIENT])
@pytest.mark.parametrize("producer", [-1, 77])
def test_kafka_clients_parse_our_batch(parser: type, attributes: int, producer: int) -> None:
    closed = make_batch(BODIES, attributes=attributes, producer=producer)
    parsed = parser(bytearray(closed.header + closed.records))
    assert parsed.validate_crc()
    assert (parsed.base_offset, parsed.magic, parsed.producer_id) == (41, 2, producer)
    records = list(parsed)
    assert [record.offset for record in records] == [41, 42, 43, 44]
    assert [record.value for record in records] == BODIES
    assert {record.key for record in records} == {b"eu.new"}
    assert {record.timestamp for record in records} == {1_700_000_000_123}
    for record in records:
        assert [(name, bytes(value)) for name, value in record.headers] == [
            ("exchange", b"orders"),
            ("properties", b"\x10\x00\x02"),
        ]


def test_commit_marker_is_parsed_by_aiokafka() -> None:
    attributes = batch.LOG_APPEND_TIME | batch.TRANSACTIONAL | batch.CONTROL
    closed = close_batch(BytesWriter(), batch.COMMIT_RECORDS, 9, 1, 0, attributes, 1, 0, 4, -1, 4)
    parsed = AioBatch(bytearray(closed.header + closed.records))
    assert parsed.validate_crc()
    assert parsed.is_control_batch
    (record,) = list(parsed)
    assert record.key == b"\x00\x00\x00\x01"  # version 0, type 1: commit
    cursor = BatchCursor(closed.header + closed.records, 0, BatchHeader(closed.header, 0))
    records: list[Record] = []
    cursor.read(0, None, {}, 100, records)
    assert records == []


def test_flipped_bit_fails_crc_or_plausibility_check() -> None:
    closed = make_batch([b"abc", b"defg"])
    data = closed.header + closed.records
    assert crc_fits(data, 0, BatchHeader(data, 0))
    for place in range(12 * 8, len(data) * 8):  # base offset and length are compared with the neighbouring batches
        if 12 * 8 <= place < 16 * 8:
            continue  # the CRC does not cover the leader epoch, as in Kafka
        broken = bytearray(data)
        broken[place // 8] ^= 1 << (place % 8)
        header = BatchHeader(bytes(broken), 0)
        assert not (header.is_plausible() and crc_fits(bytes(broken), 0, header)), place


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=64), st.data())
def test_cursor_skips_acked_records_and_those_before_the_start(bodies: list[bytes], data: st.DataObject) -> None:
    closed = make_batch(bodies, base=100)
    ack_set = AckSet(90)
    acked = data.draw(st.sets(st.integers(100, 100 + len(bodies) - 1)))
    for offset in acked:
        ack_set.add(offset, offset)
    wanted = data.draw(st.integers(90, 170))
    budget = data.draw(st.sampled_from([1, 150, 10_000]))
    cursor = BatchCursor(closed.header + closed.records, 0, BatchHeader(closed.header, 0))
    records: list[Record] = []
    while cursor.remaining:
        cursor.read(wanted, ack_set, {120: 3}, budget, records)
    assert [record.offset for record in records] == [
        offset for offset in range(100, 100 + len(bodies)) if offset >= wanted and offset not in acked
    ]
    assert all(record.body == bodies[record.offset - 100] for record in records)
    assert all(record.delivery_count == (3 if record.offset == 120 else 0) for record in records)
    assert cursor.next_offset == 100 + len(bodies)


def test_records_longer_than_their_batch_are_refused() -> None:
    closed = make_batch([b"abc", b"defg"])
    data = bytearray(closed.header + closed.records)
    data[61 + 1 + data[61] // 2] = 0x7E  # the second record's length, as if a defective writer had checksummed it
    cursor = BatchCursor(bytes(data), 0, BatchHeader(bytes(data), 0))
    with pytest.raises(BadRecord):
        cursor.read(0, None, {}, 1000, [])
