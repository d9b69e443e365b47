"""Records of Kafka's producers and messages of AMQP publishers in streams: what the other side sees, and the way
back."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any, Final

import pika
import pytest
from foreign_batches import check_batches
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from librt.strings import BytesWriter
from test_produce import Client, part

from amqpd.broker.message import LogMessageFactory, MessageRoute, make_message
from amqpd.kafka_server.message_records import (
    BatchRecord,
    Header,
    OutgoingRecord,
    encode_batch,
    message_of,
    record_of,
    records_of,
)
from amqpd.protocol.field_table import Int64, Timestamp, shortstr
from amqpd.protocol.properties import Properties, decode_properties, encode_properties
from amqpd.storage.log.batch import NO_PRODUCER, BatchCursor, BatchHeader, close_batch
from amqpd.storage.log.foreign_record import shortened
from amqpd.storage.log.record import Record, RecordRoute, varint, write_record, write_tombstone
from amqpd.testing import BrokerProcess

TIME_MS: Final = 1_700_000_000_123

# -- the way through a stream, without a broker


def produced(records: list[BatchRecord]) -> bytes:
    """Return the batch of a producer."""

    def field(content: bytes | None) -> bytes:
        return varint(-1) if content is None else varint(len(content)) + content

    def encoded(record: BatchRecord) -> bytes:
        headers = [field(name) + field(content) for name, content in record.headers]
        return field(record.key) + field(record.value) + varint(len(headers)) + b"".join(headers)

    return encode_batch([OutgoingRecord(at, each.timestamp_ms, encoded(each)) for at, each in enumerate(records)])


def published(route: RecordRoute, properties: bytes, body: bytes) -> bytes:
    """Return the batch that a stream writes for the message of an AMQP publisher."""
    writer = BytesWriter()
    if not body and (decode_properties(properties).headers or {}).get("x-tombstone") is True:
        write_tombstone(writer, route, 0, properties)
    else:
        data = properties + body
        write_record(writer, route, 0, data, 0, len(properties), len(properties), len(data))
    closed = close_batch(BytesWriter(), writer.getvalue(), 0, 1, 0, 0, TIME_MS, 0, NO_PRODUCER, -1, -1)
    return bytes(closed.header + closed.records)


def consumed(batch: bytes) -> Record:
    """Return the first record of a stream as an AMQP consumer gets it."""
    records: list[Record] = []
    BatchCursor(batch, 0, BatchHeader(batch, 0)).read(0, None, {}, 1 << 40, records)
    return records[0]


def as_record(record: BatchRecord) -> BatchRecord:
    """Return what the stated headers of a record with AMQP's properties say: the record of the same message."""
    (found,) = records_of(encode_batch([record_of(message_of(record), 0, 0)]))
    return found


def by_name(headers: list[Header]) -> dict[bytes, list[bytes | None]]:
    return {name: [content for other, content in headers if other == name] for name, _ in headers}


NAMES = st.sampled_from([b"type", b"priority", b"expiration", b"message-id", b"a", b"b", b"n" * 300]) | st.binary(
    max_size=4
)
RESERVED = (b"exchange", b"properties", b"timestamp_in_ms")


@given(
    st.none() | st.binary(max_size=20) | st.binary(min_size=250, max_size=400),
    st.none() | st.binary(max_size=40),
    st.lists(
        st.tuples(NAMES, st.none() | st.binary(max_size=12)).filter(lambda header: header[0] not in RESERVED),
        max_size=6,
    ),
    st.integers(0, 1 << 45),
)
@settings(max_examples=150, deadline=None)
def test_a_record_that_an_amqp_client_publishes_again_has_lost_nothing(
    key: bytes | None, value: bytes | None, headers: list[Header], time_ms: int
) -> None:
    first = consumed(produced([BatchRecord(time_ms, key, value, headers)]))
    properties = encode_properties(decode_properties(first.properties))  # the client decodes and encodes them
    (again,) = records_of(published(RecordRoute(first.exchange, first.routing_key), properties, first.body))
    assert [name for name, _ in again.headers] == [b"exchange", b"properties"]
    found = as_record(again)
    assert (found.timestamp_ms, found.key, found.value) == (time_ms, key or b"", value)
    kept, wanted = by_name([each for each in found.headers if each[0] != b"properties"]), by_name(headers)
    assert kept.keys() == wanted.keys()
    for name, contents in wanted.items():
        assert sorted(kept[name], key=repr) == sorted(contents, key=repr)


SHORT = st.text(max_size=10)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 62), 1 << 62)
    | st.builds(Int64, st.integers(0, 9))
    | st.builds(Timestamp, st.integers(0, 1 << 40))
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SHORT, inner, max_size=2),
    max_leaves=4,
)
PROPERTIES = st.builds(
    Properties,
    content_type=st.none() | SHORT,
    headers=st.none() | st.dictionaries(SHORT | st.just("x-tombstone"), VALUES, max_size=4),
    delivery_mode=st.sampled_from([None, 1, 2]),
    priority=st.none() | st.integers(0, 255),
    correlation_id=st.none() | SHORT,
    expiration=st.none() | st.just("60000"),
    timestamp=st.none() | st.integers(0, 1 << 40),
    user_id=st.none() | st.just("guest"),
    content_encoding=st.none(),  # Hypothesis does not see the defaults of a compiled class
    reply_to=st.none(),
    message_id=st.none(),
    type=st.none(),
    app_id=st.none(),
    cluster_id=st.none(),
)


@given(SHORT, st.binary(max_size=255), PROPERTIES, st.binary(max_size=20), st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_message_that_a_kafka_client_produces_again_has_lost_nothing(
    exchange: str, key: bytes, properties: Properties, body: bytes, traced: bool
) -> None:
    raw = encode_properties(properties)
    first = consumed(published(RecordRoute(exchange.encode(), key), raw, body))
    assert first.properties == raw
    (record,) = records_of(published(RecordRoute(exchange.encode(), key), raw, body))
    if traced:  # as OpenTelemetry's producers do
        record.headers.append((b"traceparent", b"00-1"))
    batch = produced([record])
    check_batches(batch)
    again = consumed(batch)
    assert (again.exchange, again.body, again.tombstone) == (first.exchange, first.body, first.tombstone)
    if not traced:
        assert (again.routing_key, again.properties) == (key, raw)
    else:
        headers = decode_properties(again.properties).headers or {}
        assert headers.pop("traceparent", None) == "00-1"
        headers.pop("x-kafka-key", None)
        assert headers == (decode_properties(raw).headers or {})


@given(PROPERTIES)
@settings(max_examples=100, deadline=None)
def test_the_stated_headers_of_a_message_are_the_same_from_a_queue_and_from_a_stream(properties: Properties) -> None:
    raw = encode_properties(properties._replace(delivery_mode=2))
    queued = record_of(make_message(MessageRoute("ex", "k"), raw, b"v", True, None), 0, TIME_MS)
    (record,) = records_of(published(RecordRoute(b"ex", b"k"), raw, b"v"))
    (wanted,) = records_of(encode_batch([queued]))
    assert as_record(record)._replace(timestamp_ms=0) == wanted._replace(timestamp_ms=0)


@pytest.mark.parametrize("exchange", [b"e" * 300, b"\xff" * 100])
def test_an_exchange_that_produce_refuses_today_is_shortened_in_a_log_from_before(exchange: bytes) -> None:
    route = LogMessageFactory().envelope(exchange, b"k" * 300)
    assert route.suffix[1:] == shortstr(shortened(exchange)) + shortstr(b"k" * 255) + b"\xce"


# -- real clients


@pytest.fixture
def channel(kafka_broker: BrokerProcess) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(kafka_broker.url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=100)
    channel.confirm_delivery()
    yield channel
    assert channel.is_open
    connection.close()


def stream(channel: Any) -> str:
    name = f"s-{uuid.uuid4()}"
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    return name


def produce(broker: BrokerProcess, name: str, records: list[BatchRecord]) -> tuple[int, str]:
    """Produce a batch; return error code and text of the response."""
    with Client(broker) as client:
        client.send({name: [part(produced(records))]})
        (result,) = client.receive()
        return int(result.error_code), result.error_message or ""


def deliveries(channel: Any, name: str, count: int, **arguments: object) -> list[Any]:
    """Return the first messages of a stream as (method, properties, body), without `x-stream-offset`."""
    found: list[Any] = []
    more = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    for method, properties, body in channel.consume(name, arguments={"x-stream-offset": "first", **more}):
        del properties.headers["x-stream-offset"]
        found.append((method, properties, body))
        channel.basic_ack(method.delivery_tag)
        if len(found) == count:
            break
    channel.cancel()
    return found


def fetched(address: str, name: str, count: int) -> list[Any]:
    consumer = KafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest", consumer_timeout_ms=30_000)
    consumer.assign([TopicPartition(name, 0)])
    try:
        return [record for _, record in zip(range(count), consumer, strict=False)]  # stops before a wait
    finally:
        consumer.close()


TIME: Final = {"timestamp_in_ms": TIME_MS}
ODD: Final[list[tuple[BatchRecord, str, dict[str, Any]]]] = [
    # record, routing key, headers of the message
    (BatchRecord(TIME_MS, b"k", b"v", []), "k", {}),
    (BatchRecord(TIME_MS, None, b"v", [(b"a", None)]), "", {"a": None}),
    (BatchRecord(TIME_MS, b"", b"v", [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]), "", {"a": ["1", "3"], "b": "2"}),
    (BatchRecord(TIME_MS, b"k", None, []), "k", {"x-tombstone": True}),
    (BatchRecord(TIME_MS, b"k", b"", [(b"a", b"\xff\xfe"), (b"", b"e")]), "k", {"a": b"\xff\xfe", "": "e"}),
    (BatchRecord(TIME_MS, b"k" * 300, b"v", []), "k" * 255, {"x-kafka-key": "k" * 300}),
    (BatchRecord(TIME_MS, b"\x00\xff", b"v", []), "\x00\ufffd", {"x-kafka-key": b"\x00\xff"}),
    (BatchRecord(TIME_MS, b"k", b"v", [(b"n" * 256, b"v")]), "k", {"x-kafka-headers": [["n" * 256, "v"]]}),
    (BatchRecord(TIME_MS, b"k", b"v", [(b"properties", b"\xff"), (b"priority", b"high")]), "k", {}),
]
ODD[-1][2].update({"properties": b"\xff", "priority": "high"})


def test_each_odd_record_has_its_outcome_and_goes_back_complete(
    kafka_broker: BrokerProcess, kafka_address: str, channel: Any
) -> None:
    name, copy = stream(channel), stream(channel)
    assert produce(kafka_broker, name, [record for record, _, _ in ODD]) == (0, "")
    found = deliveries(channel, name, len(ODD))
    for (record, key, headers), (method, properties, body) in zip(ODD, found, strict=True):
        assert (method.routing_key, body) == (key, record.value or b"")
        assert properties.headers == {**headers, **TIME}
        assert (properties.timestamp, properties.delivery_mode) == (TIME_MS // 1000, 2)
    exchange = f"e-{uuid.uuid4()}"
    channel.exchange_declare(exchange, "fanout")
    channel.queue_bind(copy, exchange)
    for method, properties, body in found:
        channel.basic_publish(exchange, method.routing_key, body, properties)
    channel.exchange_delete(exchange)
    for (record, _, _), back in zip(ODD, fetched(kafka_address, copy, len(ODD)), strict=True):
        again = as_record(BatchRecord(back.timestamp, back.key, back.value, [(k.encode(), v) for k, v in back.headers]))
        headers = [each for each in again.headers if each[0] not in (b"exchange", b"properties")]
        wanted = [each for each in record.headers if each[0] != b"properties"]
        assert (again.timestamp_ms, again.key, again.value) == (TIME_MS, record.key or b"", record.value)
        assert by_name(headers) == by_name(wanted)


def test_properties_of_a_record_are_those_of_its_message(kafka_address: str, channel: Any) -> None:
    name = stream(channel)
    producer = KafkaProducer(bootstrap_servers=kafka_address)
    headers = [("content-type", b"text/plain"), ("message-id", b"7"), ("priority", b"3"), ("exchange", b"orders")]
    producer.send(name, b"v", b"k", headers=headers).get(30)
    producer.close()
    ((method, properties, _),) = deliveries(channel, name, 1)
    assert (properties.content_type, properties.message_id, properties.priority) == ("text/plain", "7", 3)
    assert (method.exchange, list(properties.headers)) == ("orders", ["timestamp_in_ms"])


def test_a_message_is_the_same_after_a_kafka_client_has_copied_it(kafka_address: str, channel: Any) -> None:
    name, copy = stream(channel), stream(channel)
    properties = pika.BasicProperties(
        content_type="a/b",
        headers={"n": 5, "t": {"x": True}, "l": ["a", 1]},
        delivery_mode=1,
        user_id="guest",
        app_id="x",
    )
    channel.basic_publish("", name, b"body", properties)
    (record,) = fetched(kafka_address, name, 1)
    assert [key for key, _ in record.headers] == ["exchange", "properties"]
    seen = pika.BasicProperties()
    seen.decode(dict(record.headers)["properties"])
    assert seen == properties
    producer = KafkaProducer(bootstrap_servers=kafka_address)
    producer.send(copy, record.value, record.key, headers=record.headers).get(30)
    producer.send(copy, record.value, record.key, headers=[*record.headers, ("traceparent", b"00")]).get(30)
    producer.close()
    first, second = deliveries(channel, copy, 2)
    assert (first[1], first[0].routing_key, first[2]) == (properties, name, b"body")
    assert second[1].headers == {**properties.headers, "traceparent": "00"}


def test_headers_that_no_frame_can_hold_disturb_no_consumer(kafka_broker: BrokerProcess, channel: Any) -> None:
    name = stream(channel)
    large = BatchRecord(TIME_MS, b"k", b"v", [(b"a", b"x" * 200_000), (b"b", b"2"), (b"c", b"y" * 65_000)])
    many = BatchRecord(TIME_MS, b"k", b"x", [(b"", b"")] * 100_000)
    assert produce(kafka_broker, name, [large, BatchRecord(TIME_MS, b"k" * 200_000, b"w", []), many]) == (0, "")
    first, second, third = deliveries(channel, name, 3)
    assert third[1].headers == {"": [""] * 4096, "x-kafka-headers-omitted": 100_000 - 4096, **TIME}
    assert first[1].headers == {"b": "2", "c": "y" * 65_000, "x-kafka-headers-omitted": 1, **TIME}
    assert (second[1].headers, second[2]) == ({"x-kafka-headers-omitted": 1, **TIME}, b"w")


def test_a_record_that_looks_like_a_message_and_is_none_is_refused(kafka_broker: BrokerProcess, channel: Any) -> None:
    name = stream(channel)
    bad: list[tuple[bytes, bytes, bytes | None]] = [(b"k", b"e", b"\xff"), (b"k", b"e", b""), (b"k", b"e", None)]
    for key, exchange, properties in (*bad, (b"k", b"\xff", b"\0\0"), (b"k" * 256, b"e", b"\0\0")):
        headers: list[Header] = [(b"exchange", exchange), (b"properties", properties)]
        code, text = produce(kafka_broker, name, [BatchRecord(TIME_MS, key, b"v", headers)])
        assert (code, "properties" in text) == (87, True)


@pytest.mark.parametrize("expiration", ["soon", "", "-5"])
def test_a_copy_of_a_record_whose_expiration_is_no_time_is_delivered(
    kafka_broker: BrokerProcess, channel: Any, expiration: str
) -> None:
    name, queue = stream(channel), f"q-{uuid.uuid4()}"
    channel.queue_declare(queue, durable=True)
    properties = encode_properties(Properties(expiration=expiration))
    headers: list[Header] = [(b"exchange", b""), (b"properties", properties)]
    assert produce(kafka_broker, name, [BatchRecord(TIME_MS, b"k", b"v", headers)]) == (0, "")
    done = kafka_broker.ctl("copy_messages", name, "--to-queue", queue)
    assert done.returncode == 0, done.stderr
    _, found, body = channel.basic_get(queue, auto_ack=True)
    assert (body, found.expiration) == (b"v", expiration)


def test_filters_see_the_headers_and_properties_of_records(kafka_broker: BrokerProcess, channel: Any) -> None:
    name = stream(channel)
    records = [
        BatchRecord(TIME_MS, b"k", b"%d" % at, [(b"x-stream-filter-value", value), (b"type", kind)])
        for at, (value, kind) in enumerate([(b"de", b"a"), (b"fr", b"b"), (b"de", b"b"), (b"\xff", b"a")])
    ]
    assert produce(kafka_broker, name, records) == (0, "")
    found = deliveries(channel, name, 2, stream_filter="de")
    assert [body for _, _, body in found] == [b"0", b"2"]
    found = deliveries(channel, name, 2, filter="p.type = 'b'")
    assert [body for _, _, body in found] == [b"1", b"2"]


def test_a_message_with_a_time_that_no_record_can_have_is_fetched(kafka_address: str, channel: Any) -> None:
    name = f"q-{uuid.uuid4()}"
    channel.queue_declare(name, durable=True)
    channel.basic_publish("", name, b"v", pika.BasicProperties(timestamp=TIME_MS, delivery_mode=2))
    (record,) = fetched(kafka_address, name, 1)
    seen = pika.BasicProperties()
    seen.decode(dict(record.headers)["properties"])
    assert (record.timestamp > TIME_MS, seen.timestamp) == (True, TIME_MS)


def test_dump_log_and_copies_agree_with_a_consumer(kafka_broker: BrokerProcess, channel: Any) -> None:
    name, queue = stream(channel), f"q-{uuid.uuid4()}"
    channel.queue_declare(queue, durable=True)
    headers: list[Header] = [(b"a", b"1"), (b"type", b"t")]
    assert produce(kafka_broker, name, [BatchRecord(TIME_MS, b"key", b"v", headers)]) == (0, "")
    ((method, properties, _),) = deliveries(channel, name, 1)
    done = kafka_broker.ctl("copy_messages", name, "--to-queue", queue)
    assert done.returncode == 0, done.stderr
    copied, copied_properties, _ = channel.basic_get(queue, auto_ack=True)
    for added in ("x-source-queue", "x-source-offset"):
        del copied_properties.headers[added]
    assert (copied.routing_key, copied_properties) == (method.routing_key, properties)
    done = kafka_broker.ctl("dump_log", "--deep", "--formatter", "json", name)
    (dumped,) = [each for each in json.loads(done.stdout) if each["type"] == "record"]
    assert (dumped["routing_key"], dumped["properties"]["type"]) == (method.routing_key, properties.type)
    assert dumped["properties"]["headers"] == properties.headers
