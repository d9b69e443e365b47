"""Classic and quorum queues as topics: producers, plain consumers, and what a record is as a message."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from kafka.errors import KafkaError
from kafka.record.default_records import DefaultRecordBatchBuilder
from test_produce import Client, batch, part

from amqpd.kafka_server.message_records import BatchRecord, encode_batch, message_of, record_of, records_of
from amqpd.protocol.properties import decode_properties
from amqpd.testing import BrokerProcess

KINDS = pytest.mark.parametrize("kind", ["classic", "quorum"])


@pytest.fixture
def channel(kafka_broker: BrokerProcess) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(kafka_broker.url))
    yield connection.channel()
    connection.close()


def declare(channel: Any, kind: str = "quorum", **arguments: object) -> str:
    name = f"q-{uuid.uuid4()}"
    more = {key.replace("_", "-"): value for key, value in arguments.items()}
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind, **more})
    return name


def bodies(channel: Any, name: str) -> list[bytes]:
    """Take all messages of a queue."""
    found: list[bytes] = []
    while (taken := channel.basic_get(name, auto_ack=True))[0] is not None:
        found.append(taken[2])
    return found


# -- messages and records


@given(
    st.binary(max_size=20),
    st.binary(max_size=40),
    st.lists(
        st.tuples(
            st.one_of(
                st.sampled_from([b"type", b"priority", b"expiration", b"a", b"message-id"]), st.binary(max_size=8)
            ),
            st.none() | st.binary(max_size=12),
        ).filter(lambda header: header[0] not in (b"exchange", b"properties", b"timestamp_in_ms")),
        max_size=5,
    ),
    st.integers(0, 1 << 45),
)
@settings(max_examples=300, deadline=None)
def test_a_record_is_the_same_after_its_way_through_a_queue(
    key: bytes, value: bytes, headers: list[tuple[bytes, bytes | None]], time_ms: int
) -> None:
    message = message_of(BatchRecord(time_ms, key, value, headers))
    (again,) = records_of(encode_batch([record_of(message, 7, 1)]))
    assert (again.timestamp_ms, again.key, again.value) == (time_ms, key, value)

    def by_name(found: list[tuple[bytes, bytes | None]]) -> dict[bytes, list[bytes | None]]:
        return {name: [each for each_name, each in found if each_name == name] for name, _ in found}

    kept = by_name([header for header in again.headers if header[0] != b"properties"])
    wanted = by_name(headers)
    assert kept.keys() == wanted.keys()
    for name, values in wanted.items():
        assert sorted(kept[name], key=repr) == sorted(values, key=repr)
    repeated = message_of(again)
    assert repeated.properties() == message.properties() or b"properties" not in dict(again.headers)


def test_properties_that_text_cannot_say_come_back_from_their_header() -> None:
    first = message_of(BatchRecord(5, b"k", b"v", [(b"type", b"t")]))
    properties = decode_properties(first.properties())._replace(headers={"n": 5, "t": {"x": True}}, user_id="guest")
    from amqpd.broker.message import MessageRoute, make_message
    from amqpd.protocol.properties import encode_properties

    message = make_message(MessageRoute("ex", "k"), encode_properties(properties), b"v", True, None)
    (record,) = records_of(encode_batch([record_of(message, 0, 1)]))
    headers = dict(record.headers)
    assert (headers[b"n"], headers[b"exchange"]) == (b"5", b"ex")
    again = message_of(record)
    assert decode_properties(again.properties()) == properties
    assert again.envelope.exchange == "ex"


# -- producers


@KINDS
def test_records_of_a_producer_are_messages_with_key_headers_and_time(
    kafka_address: str, channel: Any, kind: str
) -> None:
    name = declare(channel, kind)
    producer = KafkaProducer(bootstrap_servers=kafka_address, compression_type="gzip", linger_ms=50)
    headers = [("a", b"1"), ("content-type", b"text/plain"), ("a", b"2")]
    sent = [producer.send(name, b"v%d" % n, b"k%d" % n, headers=headers, timestamp_ms=1234567) for n in range(3)]
    assert [each.get(20).offset for each in sent] == [0, 1, 2]
    producer.close()
    method, properties, body = channel.basic_get(name)
    assert (method.routing_key, method.exchange, body) == ("k0", "", b"v0")
    assert (properties.content_type, properties.delivery_mode, properties.timestamp) == ("text/plain", 2, 1234)
    properties.headers.pop("x-delivery-count", None)  # of quorum queues
    assert properties.headers == {"a": ["1", "2"], "timestamp_in_ms": 1234567}
    assert bodies(channel, name) == [b"v1", b"v2"]


def test_a_consumer_with_credit_gets_records_at_once(kafka_address: str, channel: Any) -> None:
    name = declare(channel)
    found: list[bytes] = []
    channel.basic_consume(name, lambda _c, _m, _p, body: found.append(body), auto_ack=True)
    producer = KafkaProducer(bootstrap_servers=kafka_address)
    for number in range(5):
        producer.send(name, b"%d" % number)
    producer.flush()
    while len(found) < 5:
        channel.connection.process_data_events(1)
    producer.close()
    assert found == [b"0", b"1", b"2", b"3", b"4"]


def test_priority_and_expiration_of_a_record_are_those_of_its_message(kafka_address: str, channel: Any) -> None:
    dead = declare(channel)
    name = declare(channel, "classic", x_max_priority=5, x_dead_letter_exchange="", x_dead_letter_routing_key=dead)
    producer = KafkaProducer(bootstrap_servers=kafka_address)
    for priority in (b"1", b"4", b"2"):
        producer.send(name, priority, headers=[("priority", priority)])
    producer.send(name, b"short", headers=[("expiration", b"0"), ("priority", b"5")])
    producer.flush()
    producer.close()
    assert [channel.basic_get(name, auto_ack=True)[2] for _ in range(3)] == [b"4", b"2", b"1"]
    begin = time.monotonic()
    while (letter := channel.basic_get(dead, auto_ack=True))[0] is None:
        assert time.monotonic() - begin < 20
    assert letter[2] == b"short"


def test_a_full_queue_holds_a_producer_back_until_there_is_room(kafka_address: str, channel: Any) -> None:
    name = declare(channel, x_max_length=2, x_overflow="reject-publish")
    producer = KafkaProducer(bootstrap_servers=kafka_address, linger_ms=100)
    outcomes = [producer.send(name, b"%d" % number) for number in range(7)]
    found: list[bytes] = []
    begin = time.monotonic()
    while len(found) < 7 and time.monotonic() - begin < 60:
        found += bodies(channel, name)
    assert found == [b"%d" % number for number in range(7)]
    for outcome in outcomes:
        outcome.get(20)
    producer.close()


def errors_of(client: Client, name: str, data: bytes) -> int:
    client.send({name: [part(data)]})
    code: int = client.receive()[0].error_code
    return code


def test_a_batch_that_is_sent_again_adds_only_what_is_missing(kafka_broker: BrokerProcess, channel: Any) -> None:
    name = declare(channel)
    with Client(kafka_broker) as client:
        assert errors_of(client, name, batch(b"0", b"1", producer=77, epoch=0, sequence=0)) == 0
        assert errors_of(client, name, batch(b"0", b"1", producer=77, epoch=0, sequence=0)) == 0
        assert errors_of(client, name, batch(b"1", b"2", producer=77, epoch=0, sequence=1)) == 0
        assert errors_of(client, name, batch(b"9", producer=77, epoch=0, sequence=9)) == 45
        assert errors_of(client, name, batch(b"3", producer=77, epoch=1, sequence=0)) == 0
        assert errors_of(client, name, batch(b"4", producer=77, epoch=0, sequence=3)) == 47
        assert errors_of(client, name, batch(b"a" * 10)) == 0
    assert bodies(channel, name) == [b"0", b"1", b"2", b"3", b"a" * 10]


def test_sequences_continue_with_zero_after_the_highest(kafka_broker: BrokerProcess, channel: Any) -> None:
    name = declare(channel)
    top = 2**31 - 1
    with Client(kafka_broker) as client:
        assert errors_of(client, name, batch(b"0", b"1", b"2", producer=78, epoch=0, sequence=top - 1)) == 0
        assert errors_of(client, name, batch(b"0", b"1", b"2", producer=78, epoch=0, sequence=top - 1)) == 0
        assert errors_of(client, name, batch(b"3", producer=78, epoch=0, sequence=1)) == 0
    assert bodies(channel, name) == [b"0", b"1", b"2", b"3"]


@pytest.mark.slow
def test_after_a_kill_a_repeated_batch_is_known(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings={"kafka.port": 0, "kafka.host": "127.0.0.1"}) as broker:
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            name = declare(connection.channel())
        data = batch(*(b"%d" % number for number in range(500)), producer=5, epoch=0, sequence=0)
        with Client(broker) as client:
            assert errors_of(client, name, data) == 0
            broker.kill()
        broker.start()
        with Client(broker) as client:
            assert errors_of(client, name, data) == 0
            assert errors_of(client, name, batch(b"500", producer=5, epoch=0, sequence=500)) == 0
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            assert [int(body) for body in bodies(connection.channel(), name)] == list(range(501))
        assert "Traceback" not in broker.stderr


@pytest.mark.parametrize(
    ("key", "headers"),
    [
        (b"k" * 65_537, []),
        (b"k", [("n" * 40_000, b"v"), ("n", b"v" * 30_000)]),
        (b"k", [("", b"")] * 4097),
        (b"k", [("properties", b"\x00\x10\x05admin")]),
        (b"k", [("properties", b"\x01\x00\x03-5x")]),
        (b"k", [("exchange", b"e"), ("properties", b"\xff")]),
    ],
)
def test_a_record_that_cannot_be_a_message_is_refused(
    kafka_broker: BrokerProcess, channel: Any, key: bytes, headers: list[tuple[str, bytes]]
) -> None:
    name = declare(channel)
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    builder.append(0, int(time.time() * 1000), b"k", b"first", [])
    builder.append(1, int(time.time() * 1000), key, b"bad", headers)
    with Client(kafka_broker) as client:
        assert errors_of(client, name, bytes(builder.build())) == 87
    assert bodies(channel, name) == []


# -- topics and plain consumers


def test_queues_are_topics_and_can_be_created_as_such(kafka_address: str, channel: Any) -> None:
    admin = KafkaAdminClient(bootstrap_servers=kafka_address)
    name = f"made-{uuid.uuid4()}"
    admin.create_topics([NewTopic(name, 1, 1, topic_configs={"x-queue-type": "quorum"})])
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})  # it is the same
    channel.queue_declare("transient-queue", durable=False, exclusive=True)
    assert name in admin.list_topics()
    assert "transient-queue" not in admin.list_topics()
    described = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
    assert described["topic"][name]["x-queue-type"]["value"] == "quorum"
    for configs in ({"x-queue-type": "heap"}, {"x-queue-type": "quorum", "retention.ms": "1000"}):
        with pytest.raises(KafkaError, match="INVALID_CONFIG|x-queue-type|streams only"):
            admin.create_topics([NewTopic(f"bad-{uuid.uuid4()}", 1, 1, topic_configs=configs)])
    admin.delete_topics([name])
    assert name not in admin.list_topics()
    admin.close()


def test_a_plain_consumer_reads_what_is_not_settled_and_takes_nothing(kafka_address: str, channel: Any) -> None:
    name = declare(channel)
    channel.confirm_delivery()
    for number in range(6):
        channel.basic_publish("", name, b"%d" % number, pika.BasicProperties(delivery_mode=2))
    for _ in range(2):
        channel.basic_get(name, auto_ack=True)
    unacked = channel.basic_get(name)[0]
    consumer = KafkaConsumer(bootstrap_servers=kafka_address, consumer_timeout_ms=20_000)
    partition = TopicPartition(name, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    found = []
    for record in consumer:
        found.append((record.offset, record.value))
        if len(found) == 4:
            break
    assert found == [(number, b"%d" % number) for number in range(2, 6)]
    channel.basic_publish("", name, b"new", pika.BasicProperties(delivery_mode=2))
    record = next(consumer)
    assert (record.offset, record.value) == (6, b"new")
    consumer.close()
    channel.basic_nack(unacked.delivery_tag)
    assert bodies(channel, name) == [b"2", b"3", b"4", b"5", b"new"]
