"""Decoding to Arrow gives the same rows as the scalar decoder and kafka-python, for any records."""

from __future__ import annotations

import json
import math
import warnings
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from librt.strings import BytesWriter

from amqpd.protocol.field_table import CodecError, Timestamp
from amqpd.protocol.properties import Properties, decode_properties, encode_properties, headers_span
from amqpd.storage.export.arrow import Decoder, headers_map
from amqpd.storage.export.columns import BASE, COLUMNS
from amqpd.storage.export.columns import PROPERTIES as STRUCT_FIELDS
from amqpd.storage.export.decode import BAD, DONE, FULL, IRREGULAR, MORE, FieldOffsets, scan, text_of
from amqpd.storage.log.batch import BatchCursor, BatchHeader, close_batch
from amqpd.storage.log.record import Record, RecordRoute, varint, write_record
from interop.bench.export_decode import celery_headers

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses importlib.resources.read_text
    from kafka.record.default_records import DefaultRecordBatch as KafkaBatch

# Generating these records is slow; on a busy machine hypothesis would reject it.
BIG = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SHORT = st.binary(max_size=40)
TEXT = st.text(max_size=20)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        TEXT, st.booleans(), st.integers(-(2**63), 2**63 - 1), st.none(), st.binary(max_size=10).map(bytearray),
        st.integers(0, 2**40).map(Timestamp), st.floats(allow_nan=False, allow_infinity=False),
        st.integers(-(10**6), 10**6).map(lambda n: Decimal(n).scaleb(-2)),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=4,
)  # fmt: skip
SHORT_TEXT = st.one_of(st.none(), TEXT)
PROPERTIES = st.builds(
    Properties,
    content_type=SHORT_TEXT,
    content_encoding=SHORT_TEXT,
    headers=st.one_of(st.none(), st.dictionaries(TEXT, VALUES, max_size=4)),
    delivery_mode=st.one_of(st.none(), st.integers(0, 255)),
    priority=st.one_of(st.none(), st.integers(0, 255)),
    correlation_id=SHORT_TEXT,
    reply_to=SHORT_TEXT,
    expiration=SHORT_TEXT,
    message_id=SHORT_TEXT,
    timestamp=st.one_of(st.none(), st.integers(0, 2**64 - 1)),
    type=SHORT_TEXT,
    user_id=SHORT_TEXT,
    app_id=SHORT_TEXT,
    cluster_id=SHORT_TEXT,
).map(encode_properties)
RECORDS = st.tuples(
    SHORT,  # exchange
    SHORT,  # routing key
    st.one_of(PROPERTIES, PROPERTIES, st.binary(max_size=30)),
    st.one_of(st.binary(max_size=70), st.integers(60, 20000).map(lambda size: b"z" * size)),
)


def batches(records: list[tuple[bytes, bytes, bytes, bytes]], per_batch: int, base: int = 0) -> bytes:
    parts = []
    for start in range(0, len(records), per_batch):
        writer = BytesWriter()
        chosen = records[start : start + per_batch]
        for delta, (exchange, key, properties, body) in enumerate(chosen):
            source = properties + body
            size = len(properties)
            write_record(writer, RecordRoute(exchange, key), delta, source, 0, size, size, len(source))
        closed = close_batch(
            BytesWriter(), writer.getvalue(), base + start, len(chosen), 3, 8, 1_700_000_000_123 + start, 0, -1, -1, -1
        )
        parts.append(closed.header + closed.records)
    return b"".join(parts)


def decode(data: bytes, columns: list[str] | None = None, rows_max: int = 1 << 30) -> list[dict[str, Any]]:
    found = FieldOffsets(0, 1 << 40)
    decoder = Decoder("/", "tasks", columns or list(COLUMNS))
    rows: list[dict[str, Any]] = []
    while True:
        status = scan(found, data, 0, 1 << 40, rows_max, True, b"", 0, 0)
        batch = decoder.batch(data, found)
        batch.validate(full=True)
        rows += batch.to_pylist()
        found.clear()
        if status != FULL:
            assert status == MORE and found.position == len(data), (status, found.reason)
            return rows


def scalar(data: bytes) -> list[dict[str, Any]]:
    position, rows = 0, []
    while position < len(data):
        header = BatchHeader(data, position)
        records: list[Any] = []
        BatchCursor(data, position, header).read(0, None, {}, 1 << 60, records)
        again = Decoder("/", "tasks", list(COLUMNS)).rows(records).to_pylist()
        found = [scalar_row(record) for record in records]
        assert again == found
        rows += found
        position += header.size
    return rows


def scalar_row(record: Record) -> dict[str, Any]:
    try:
        properties = decode_properties(record.properties)
    except CodecError:
        properties = Properties()
    table = None
    if properties.headers is not None:
        first, end = headers_span(record.properties, 0, len(record.properties))
        table = record.properties[first:end]
    struct: dict[str, Any] = {name: getattr(properties, name) for name, _ in STRUCT_FIELDS}
    for name, value in struct.items():
        if isinstance(value, str):
            struct[name] = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    seconds = properties.timestamp
    known = seconds is not None and seconds <= 253402300799
    struct["timestamp"] = EPOCH + timedelta(seconds=seconds) if known and seconds is not None else None
    return {
        "value": record.body,
        "vhost": "/",
        "queue": "tasks",
        "offset": record.offset,
        "timestamp": EPOCH + timedelta(milliseconds=record.timestamp_ms),
        "exchange": record.exchange.decode("utf-8", "replace"),
        "routing_key": record.routing_key.decode("utf-8", "replace"),
        "properties": struct,
        "headers": headers_map(pa.array([table], pa.binary())).to_pylist()[0],
        "raw_properties": record.properties,
        "raw_headers": table,
    }


@BIG
@given(st.lists(RECORDS, max_size=8), st.integers(1, 5))
def test_arrow_scalar_decoder_and_kafka_python_agree(
    records: list[tuple[bytes, bytes, bytes, bytes]], per_batch: int
) -> None:
    data = batches(records, per_batch)
    rows = decode(data)
    assert rows == scalar(data)
    position = 0
    kafka_records = []
    while position < len(data):
        size = BatchHeader(data, position).size
        kafka_records += list(KafkaBatch(data[position : position + size]))
        position += size
    assert len(rows) == len(kafka_records) == len(records)
    for row, kafka_record, (exchange, key, properties, body) in zip(rows, kafka_records, records, strict=True):
        assert row["offset"] == kafka_record.offset
        assert int(row["timestamp"].timestamp() * 1000 + 0.5) == kafka_record.timestamp
        assert row["value"] == (kafka_record.value or b"") == body
        assert (
            row["routing_key"] == (kafka_record.key or b"").decode("utf-8", "replace") == key.decode("utf-8", "replace")
        )
        headers = dict(kafka_record.headers)
        assert row["exchange"] == headers["exchange"].decode("utf-8", "replace") == exchange.decode("utf-8", "replace")
        assert row["raw_properties"] == headers["properties"] == properties
        assert (row["vhost"], row["queue"]) == ("/", "tasks")


@BIG
@given(st.lists(PROPERTIES, min_size=1, max_size=8))
def test_properties_and_headers_equal_those_of_the_codec(raw: list[bytes]) -> None:
    rows = decode(batches([(b"x", b"k", each, b"") for each in raw], 7), ["properties", "headers", "raw_headers"])
    for row, each in zip(rows, raw, strict=True):
        decoded = decode_properties(each)
        struct = row["properties"]
        for name in struct:
            value = getattr(decoded, name)
            if name == "timestamp":
                if value is not None and value <= 253402300799:
                    assert int(struct[name].timestamp()) == value
                else:
                    assert struct[name] is None
            else:
                assert struct[name] == value, name
        if decoded.headers is None:
            assert row["headers"] is None and row["raw_headers"] is None
        else:
            assert dict(row["headers"]) == {
                name: None if value is None else text_of(value) for name, value in decoded.headers.items()
            }
            assert row["raw_headers"] in each


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("gr\u00fcn", "gr\u00fcn"), (True, "true"), (7, "7"), (Timestamp(9), "9"), (None, None), (1.5, "1.5"),
        (b"\xff\x00", "/wA="), (bytearray(b"ab"), "YWI="), (Decimal("1.20"), "1.20"),
        ([1, {"a": b"\xff"}], '[1, {"a": "/w=="}]'), ({"x": None}, '{"x": null}'),
    ],
)  # fmt: skip
def test_header_value_becomes_text(value: object, text: str | None) -> None:
    raw = encode_properties(Properties(headers={"plain": "text", "name": value}))
    (row,) = decode(batches([(b"", b"", raw, b"")], 1), ["headers"])
    assert dict(row["headers"]) == {"plain": "text", "name": text}


def test_first_of_duplicate_headers_counts() -> None:
    entry = b"\x01aS\x00\x00\x00\x01"
    table = entry + b"1" + entry + b"2"
    raw = b"\x20\x00" + len(table).to_bytes(4, "big") + table
    (row,) = decode(batches([(b"", b"", raw, b"")], 1), ["headers"])
    assert row["headers"] == [("a", "1")]


def test_names_that_are_not_utf8_are_different_texts() -> None:
    """DuckDB refuses a map with two equal names, and so a whole query."""
    table = b"".join(bytes((len(name),)) + name + b"t\x01" for name in (b"\xff", b"\xfe", b"\\xff"))
    (row,) = headers_map(pa.array([len(table).to_bytes(4, "big") + table], pa.binary())).to_pylist()
    assert row == [("\\xff", "true"), ("\\xfe", "true")]


def test_repeated_headers_are_decoded_correctly() -> None:
    raw = [encode_properties(Properties(headers={"tenant": str(number % 3)})) for number in range(100)]
    rows = decode(batches([(b"", b"", each, b"") for each in raw], 64), ["headers"])
    assert [dict(row["headers"]) for row in rows] == [{"tenant": str(number % 3)} for number in range(100)]


def test_row_limit_cuts_at_batches_and_loses_nothing() -> None:
    data = batches([(b"x", b"k%d" % number, b"\0\0", b"body") for number in range(100)], 10)
    assert decode(data, rows_max=25) == decode(data)


def test_only_selected_columns_are_returned_in_order() -> None:
    (row,) = decode(batches([(b"x", b"k", b"\0\0", b"body")], 1), ["routing_key", "offset"])
    assert list(row.items()) == [("routing_key", "k"), ("offset", 0)]


def test_offset_bounds_and_ack_bits_select_records() -> None:
    data = batches([(b"x", b"k", b"\0\0", b"%d" % number) for number in range(20)], 6)
    found = FieldOffsets(0, 1 << 40)
    status = scan(found, data, 3, 17, 1 << 30, True, b"\x05", 8, 0)  # acked: 8 and 10
    assert status == DONE
    rows = Decoder("/", "t", ["offset", "value"]).batch(data, found).to_pylist()
    assert [row["offset"] for row in rows] == [n for n in range(3, 17) if n not in (8, 10)]
    assert [row["value"] for row in rows] == [b"%d" % row["offset"] for row in rows]


def foreign_record(delta: int, headers: list[tuple[bytes, bytes]], value: bytes | None = b"v") -> bytes:
    head = b"\0" + varint(0) + varint(delta) + varint(-1)
    body = varint(-1) if value is None else varint(len(value)) + value
    packed = b"".join(varint(len(name)) + name + varint(len(text)) + text for name, text in headers)
    record = head + body + varint(len(headers)) + packed
    return varint(len(record)) + record


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"properties", b"\0\0"), (b"exchange", b"x")],
        [(b"exchange", b"x"), (b"trace", b"1"), (b"properties", b"\0\0")],
    ],
)
def test_foreign_records_are_left_to_the_generic_parser(headers: list[tuple[bytes, bytes]]) -> None:
    records = foreign_record(0, headers)
    closed = close_batch(BytesWriter(), records, 0, 1, 0, 8, 1, 0, -1, -1, -1)
    found = FieldOffsets(0, 1 << 40)
    assert scan(found, closed.header + closed.records, 0, 9, 9, True, b"", 0, 0) == IRREGULAR
    assert found.rows == 0 and found.borders.getvalue() == b""


@BIG
@given(st.binary(min_size=1, max_size=80))
def test_scan_survives_any_bytes_with_a_valid_checksum(records: bytes) -> None:
    closed = close_batch(BytesWriter(), records, 0, 2, 0, 8, 1, 0, -1, -1, -1)
    found = FieldOffsets(0, 1 << 40)
    status = scan(found, closed.header + closed.records, 0, 9, 9, True, b"", 0, 0)
    assert status in (BAD, IRREGULAR, MORE)
    assert len(found.borders.getvalue()) == found.rows * 32


def test_empty_batch_has_the_schema() -> None:
    batch = Decoder("/", "t", list(BASE)).batch(b"", FieldOffsets(0, 1))
    assert batch.num_rows == 0 and batch.schema.names == list(BASE)
    assert batch.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")


def test_text_of_a_table_is_json() -> None:
    assert json.loads(text_of({"a": [1, True, None]})) == {"a": [1, True, None]}


def test_numbers_that_json_lacks_are_texts() -> None:
    assert json.loads(text_of([math.nan, {"a": -math.inf}, 0.5])) == ["NaN", {"a": "-Infinity"}, 0.5]
    assert (text_of(math.inf), text_of(-0.5)) == ("Infinity", "-0.5")


@given(VALUES)
def test_text_of_a_value_equals_json_dumps(value: Any) -> None:
    def plain(each: Any) -> Any:
        if isinstance(each, bytearray):
            return b64encode(each).decode()
        if isinstance(each, Decimal):
            return str(each)
        if isinstance(each, list):
            return [plain(item) for item in each]
        if isinstance(each, dict):
            return {name: plain(item) for name, item in each.items()}
        return each

    expected = plain(value)
    assert text_of(value) == (expected if isinstance(expected, str) else json.dumps(expected, ensure_ascii=False))


def test_headers_of_a_celery_task_become_text() -> None:
    raw = encode_properties(Properties(headers=celery_headers(7)))
    (row,) = decode(batches([(b"", b"", raw, b"")], 1), ["headers"])
    found = dict(row["headers"])
    assert {name: found[name] for name in ("retries", "ignore_result", "timelimit", "stamps", "eta", "argsrepr")} == {
        "retries": "0", "ignore_result": "false", "timelimit": "[null, null]", "stamps": "{}", "eta": None,
        "argsrepr": "(7, 'EUR')",
    }  # fmt: skip
    assert list(found) == list(celery_headers(7))


def test_malformed_header_table_does_not_affect_other_rows() -> None:
    good = encode_properties(Properties(headers={"a": 1}))
    table = b"\x01bS\x00\x00\x00\x01x" + b"\x01c?"
    bad = b"\x20\x00" + len(table).to_bytes(4, "big") + table
    rows = decode(batches([(b"", b"", each, b"") for each in (good, bad, good)], 3), ["headers"])
    assert [row["headers"] for row in rows] == [[("a", "1")], [], [("a", "1")]]


RAW_VALUES = (
    b"V", b"t\x00", b"t\x02", b"I\xff\xff\xff\xfe", b"S\x00\x00\x00\x01x", b"A\x00\x00\x00\x01V",
    b"F\x00\x00\x00\x00", b"A\x00\x00\x00\x02t\x01", b"F\x00\x00\x00\x09", b"I\x00", b"t", b"d\x3f" + bytes(7),
)  # fmt: skip
"""Encoded values, some of them cut off."""
RAW_NAMES = (b"a", b"b", b"c", "ä".encode(), b"\xff")
RAW_TABLES = st.lists(st.tuples(st.sampled_from(RAW_NAMES), st.sampled_from(RAW_VALUES)), max_size=6)


@given(st.lists(RAW_TABLES, min_size=1, max_size=8))
def test_tables_before_a_table_do_not_change_its_headers(tables: list[list[tuple[bytes, bytes]]]) -> None:
    """The decoder remembers names and short values of earlier tables."""
    raw = []
    for table in tables:
        entries = b"".join(bytes((len(name),)) + name + value for name, value in table)
        raw.append(len(entries).to_bytes(4, "big") + entries)
    together = headers_map(pa.array(raw, pa.binary()))
    together.validate(full=True)
    rows = together.to_pylist()
    assert rows == [headers_map(pa.array([each], pa.binary())).to_pylist()[0] for each in raw]
    for row in rows:
        assert len({name for name, _ in row}) == len(row)
