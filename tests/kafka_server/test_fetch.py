"""Fetch and ListOffsets with stock clients: kafka-python and aiokafka read what pika has published."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import time
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pika
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition as AioPartition
from kafka_socket import build

from amqpd.testing import BrokerProcess

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python loads its definitions with `read_text`
    from kafka import KafkaConsumer, TopicPartition
    from kafka.protocol.consumer import FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse
    from kafka.protocol.metadata import MetadataRequest, MetadataResponse

MANY = 100_000
VERSIONS = range(4, 17)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with start(tmp_path_factory.mktemp("fetch")) as started:
        yield started


def start(path: Path, **settings: object) -> BrokerProcess:
    return BrokerProcess(path, settings={"kafka.port": 0, "kafka.host": "127.0.0.1", **settings}).start()


def address(broker: BrokerProcess) -> str:
    assert broker.ready is not None
    return "{}:{}".format(*broker.ready.listeners["kafka"])


class Stream:
    """A stream and the channel that publishes to it."""

    def __init__(self, broker: BrokerProcess, name: str, **arguments: Any) -> None:
        self.name = name
        self.partition = TopicPartition(name, 0)
        self.connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        self.channel = self.connection.channel()
        self.channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream", **arguments})
        self.channel.exchange_declare("route", "topic")
        self.channel.queue_bind(name, "route", f"{name}.#")
        self.channel.confirm_delivery()

    def publish(self, *bodies: bytes, mode: int = 2) -> None:
        for body in bodies:
            self.channel.basic_publish("", self.name, body, pika.BasicProperties(delivery_mode=mode))

    def publish_many(self, bodies: Iterator[bytes]) -> None:
        """Publish without a wait for each confirm; the confirm of the last one follows those of the others."""
        channel = self.connection.channel()
        for body in bodies:
            channel.basic_publish("", self.name, body, pika.BasicProperties(delivery_mode=2))
        channel.close()


@pytest.fixture
def stream(broker: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[Stream]:
    made = Stream(broker, request.node.name.replace("[", "-").replace("]", ""))
    yield made
    if made.connection.is_open:
        made.connection.close()


@pytest.fixture
def consumer(broker: BrokerProcess, stream: Stream) -> Iterator[Any]:
    made = KafkaConsumer(bootstrap_servers=address(broker), auto_offset_reset="earliest", enable_auto_commit=False)
    made.assign([stream.partition])
    yield made
    made.close()


def read(consumer: Any, count: int) -> list[Any]:
    """Return the next records, at least `count`."""
    records: list[Any] = []
    deadline = time.monotonic() + 60
    while len(records) < count and time.monotonic() < deadline:
        for each in consumer.poll(timeout_ms=1000).values():
            records += each
    return records


def test_kafka_python_reads_key_value_and_offset_of_what_pika_published(stream: Stream, consumer: Any) -> None:
    stream.publish(b"one", b"two")
    stream.channel.basic_publish("route", f"{stream.name}.eu", b"three")
    records = read(consumer, 3)
    assert [(each.offset, each.key, each.value) for each in records] == [
        (0, stream.name.encode(), b"one"),
        (1, stream.name.encode(), b"two"),
        (2, f"{stream.name}.eu".encode(), b"three"),
    ]
    assert abs(records[0].timestamp / 1000 - time.time()) < 3600


async def test_aiokafka_reads_transient_and_persistent_messages(broker: BrokerProcess, stream: Stream) -> None:
    stream.publish(b"kept")
    stream.publish(b"transient", mode=1)
    stream.publish(b"kept, too")
    consumer = AIOKafkaConsumer(bootstrap_servers=address(broker), auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([AioPartition(stream.name, 0)])
        records = [await asyncio.wait_for(consumer.getone(), 30) for _ in range(3)]
        assert [each.value for each in records] == [b"kept", b"transient", b"kept, too"]
        assert await consumer.end_offsets([AioPartition(stream.name, 0)]) == {AioPartition(stream.name, 0): 3}
    finally:
        await consumer.stop()


def test_kafka_python_reads_transient_messages(stream: Stream, consumer: Any) -> None:
    stream.publish(b"transient", mode=1)
    assert [each.value for each in read(consumer, 1)] == [b"transient"]


def test_messages_of_a_transaction_are_read_and_its_marker_is_skipped(stream: Stream, consumer: Any) -> None:
    channel = stream.connection.channel()
    channel.tx_select()
    for body in (b"a", b"b"):
        channel.basic_publish("", stream.name, body, pika.BasicProperties(delivery_mode=2))
    channel.tx_commit()
    stream.publish(b"c")
    assert [each.value for each in read(consumer, 3)] == [b"a", b"b", b"c"]


def test_a_seek_to_an_offset_in_the_middle_of_a_batch_continues_there(stream: Stream, consumer: Any) -> None:
    stream.publish_many(b"%d" % number for number in range(1000))
    for offset in (1, 63, 500, 999):
        consumer.seek(stream.partition, offset)
        assert next(consumer).value == b"%d" % offset


def test_beginning_and_end_offsets_are_those_of_the_log(stream: Stream, consumer: Any) -> None:
    assert consumer.beginning_offsets([stream.partition]) == {stream.partition: 0}
    assert consumer.end_offsets([stream.partition]) == {stream.partition: 0}
    stream.publish(b"one", b"two")
    assert consumer.end_offsets([stream.partition]) == {stream.partition: 2}


def test_a_time_finds_the_first_record_at_or_after_it(stream: Stream, consumer: Any) -> None:
    stream.publish(*(b"%d" % number for number in range(10)))
    times = [each.timestamp for each in read(consumer, 10)]
    for wanted in (0, times[0], times[4], times[9]):
        found = consumer.offsets_for_times({stream.partition: wanted})[stream.partition]
        first = next(number for number, time_ms in enumerate(times) if time_ms >= wanted)
        assert (found.offset, found.timestamp) == (first, times[first])
    assert consumer.offsets_for_times({stream.partition: times[9] + 1})[stream.partition] is None


async def test_aiokafka_seeks_to_a_time(broker: BrokerProcess, stream: Stream) -> None:
    stream.publish(b"one", b"two")
    partition = AioPartition(stream.name, 0)
    consumer = AIOKafkaConsumer(bootstrap_servers=address(broker), auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([partition])
        second = [await asyncio.wait_for(consumer.getone(), 30) for _ in range(2)][1]
        found = await consumer.offsets_for_times({partition: second.timestamp})
        consumer.seek(partition, found[partition].offset)
        assert (await asyncio.wait_for(consumer.getone(), 30)).timestamp == second.timestamp
    finally:
        await consumer.stop()


@pytest.mark.slow
def test_100_000_messages_arrive_in_order(stream: Stream, consumer: Any) -> None:
    stream.publish_many(b"%d" % number for number in range(MANY))
    records = read(consumer, MANY)
    assert [each.value for each in records] == [b"%d" % number for number in range(MANY)]
    assert [each.offset for each in records] == list(range(MANY))


@pytest.mark.slow
async def test_aiokafka_reads_100_000_messages_in_order(broker: BrokerProcess, stream: Stream) -> None:
    stream.publish_many(b"%d" % number for number in range(MANY))
    consumer = AIOKafkaConsumer(bootstrap_servers=address(broker), auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([AioPartition(stream.name, 0)])
        offsets: list[int] = []
        while len(offsets) < MANY:
            for records in (await asyncio.wait_for(consumer.getmany(timeout_ms=5000), 30)).values():
                offsets += [each.offset for each in records]
                assert all(each.value == b"%d" % each.offset for each in records)
        assert offsets == list(range(MANY))
    finally:
        await consumer.stop()


def test_a_message_larger_than_all_limits_is_read(broker: BrokerProcess, stream: Stream) -> None:
    body = b"x" * (3 << 20)
    stream.publish(b"small", body, b"last")
    consumer = KafkaConsumer(
        bootstrap_servers=address(broker), auto_offset_reset="earliest", max_partition_fetch_bytes=1000
    )
    try:
        consumer.assign([stream.partition])
        assert [each.value for each in read(consumer, 3)] == [b"small", body, b"last"]
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_read(broker: BrokerProcess, codec: str) -> None:
    stream = Stream(broker, f"compressed-{codec}", **{"x-compression": codec})
    stream.publish_many(b"the same again and again %d" % number for number in range(2000))
    consumer = KafkaConsumer(bootstrap_servers=address(broker), auto_offset_reset="earliest")
    try:
        consumer.assign([stream.partition])
        records = read(consumer, 2000)
        assert [each.value for each in records] == [b"the same again and again %d" % number for number in range(2000)]
        middle = records[1000].timestamp
        found = consumer.offsets_for_times({stream.partition: middle})[stream.partition]
        assert found.offset == next(each.offset for each in records if each.timestamp >= middle)
    finally:
        consumer.close()
        stream.connection.close()


@pytest.mark.slow
def test_after_a_restart_the_same_messages_are_read(tmp_path: Path) -> None:
    with start(tmp_path) as broker:
        stream = Stream(broker, "again")
        stream.publish_many(b"%d" % number for number in range(1000))
        stream.connection.close()
        broker.stop()
        broker.start(same_ports=False)
        consumer = KafkaConsumer(bootstrap_servers=address(broker), auto_offset_reset="earliest")
        consumer.assign([stream.partition])
        assert [each.value for each in read(consumer, 1000)] == [b"%d" % number for number in range(1000)]
        consumer.close()


@pytest.mark.slow
def test_after_retention_the_start_is_higher_and_a_consumer_below_it_is_reset(tmp_path: Path) -> None:
    with start(tmp_path, **{"storage.upkeep_interval_s": 1}) as broker:
        stream = Stream(broker, "short", **{"x-max-length-bytes": 200_000, "x-stream-max-segment-size-bytes": 100_000})
        stream.publish_many(bytes(10_000) for _ in range(200))
        consumer = KafkaConsumer(bootstrap_servers=address(broker), auto_offset_reset="earliest")
        consumer.assign([stream.partition])
        deadline = time.monotonic() + 60
        while (begin := consumer.beginning_offsets([stream.partition])[stream.partition]) == 0:
            assert time.monotonic() < deadline
        assert 0 < begin < 200
        consumer.seek(stream.partition, 0)
        records = read(consumer, 1)
        while records[-1].offset < 199:
            records += read(consumer, 1)
        assert [each.offset for each in records] == list(range(records[0].offset, 200))
        assert records[0].offset >= begin
        with Client(broker) as client:
            answer = client.fetch(11, one(stream, 0)).responses[0].partitions[0]
        assert (answer.error_code, answer.high_watermark) == (1, -1)
        consumer.close()
        stream.connection.close()


# -- requests of any version over a plain socket


class Client:
    """A plain socket with Kafka's frames."""

    def __init__(self, broker: BrokerProcess) -> None:
        host, _, port = address(broker).rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, key: int, version: int, body: bytes, flexible: bool) -> None:
        head = struct.pack(">hhih", key, version, 7, -1) + (b"\0" if flexible else b"")
        self.socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)

    def receive(self, flexible: bool) -> bytes:
        size = struct.unpack(">i", self._exactly(4))[0]
        return self._exactly(size)[5 if flexible else 4 :]

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionError("closed")
            data += part
        return bytes(data)

    def send_fetch(self, version: int, topics: list[dict[str, Any]], **fields: Any) -> None:
        """Send a Fetch as kafka-python encodes it."""
        request = build(
            FetchRequest,
            {
                "max_wait_ms": 0,
                "min_bytes": 1,
                "max_bytes": 1 << 30,
                "isolation_level": 1,
                "topics": topics,
                **fields,
            },
            version,
        )
        self.send(1, version, bytes(request.encode()), version >= 12)

    def fetch(self, version: int, topics: list[dict[str, Any]], **fields: Any) -> Any:
        self.send_fetch(version, topics, **fields)
        return self.fetched(version)

    def fetched(self, version: int) -> Any:
        return FetchResponse[version].decode(self.receive(version >= 12))

    def list_offset(self, version: int, name: str, timestamp: int, partition: int = 0) -> Any:
        topic = {"name": name, "partitions": [{"partition_index": partition, "timestamp": timestamp}]}
        request = build(ListOffsetsRequest, {"replica_id": -1, "topics": [topic]}, version)
        self.send(2, version, bytes(request.encode()), version >= 6)
        return ListOffsetsResponse[version].decode(self.receive(version >= 6)).topics[0].partitions[0]


def one(stream: Stream, offset: int, size: int = 1 << 20, **key: Any) -> list[dict[str, Any]]:
    """Return the topics of a Fetch for one partition. key: `topic_id` instead of the name."""
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": size}
    return [{**(key or {"topic": stream.name}), "partitions": [partition]}]


def topic_id(broker: BrokerProcess, name: str) -> uuid.UUID:
    """Return the id that Metadata reports."""
    with Client(broker) as client:
        request = build(MetadataRequest, {"topics": [{"topic_id": uuid.UUID(int=0), "name": name}]}, 12)
        client.send(3, 12, bytes(request.encode()), True)
        found: uuid.UUID = MetadataResponse[12].decode(client.receive(True)).topics[0].topic_id
        return found


def only(answer: Any) -> Any:
    """Return the partition of an answer for one partition."""
    return answer.responses[0].partitions[0]


@pytest.mark.parametrize("version", VERSIONS)
def test_all_versions_return_the_stored_batches_below_the_high_watermark(
    broker: BrokerProcess, stream: Stream, version: int
) -> None:
    stream.publish(b"one", b"two")
    key = {"topic_id": topic_id(broker, stream.name)} if version >= 13 else {}
    with Client(broker) as client:
        answer = client.fetch(version, one(stream, 1, **key))
        found = only(answer)
        assert (found.error_code, found.high_watermark, found.last_stable_offset) == (0, 2, 2)
        assert found.aborted_transactions == []
        assert b"two" in bytes(found.records)
        if version >= 5:
            assert found.log_start_offset == 0
        if version >= 7:
            assert (answer.error_code, answer.session_id) == (0, 0)
        if version >= 13:
            assert answer.responses[0].topic_id == key["topic_id"]


@pytest.mark.parametrize("version", range(1, 10))
def test_all_versions_of_list_offsets_are_answered(broker: BrokerProcess, stream: Stream, version: int) -> None:
    stream.publish(b"one", b"two")
    with Client(broker) as client:
        assert client.list_offset(version, stream.name, -1).offset == 2
        assert client.list_offset(version, stream.name, -2).offset == 0
        assert client.list_offset(version, stream.name, 0).offset == 0
        assert client.list_offset(version, stream.name, 1 << 60).offset == -1
        assert client.list_offset(version, stream.name, -9).error_code == 42
        assert client.list_offset(version, stream.name, -1, partition=1).error_code == 3
        assert client.list_offset(version, "no.such.stream", -1).error_code == 3


def test_the_latest_time_is_found_with_its_offset(broker: BrokerProcess, stream: Stream) -> None:
    with Client(broker) as client:
        assert client.list_offset(7, stream.name, -3).offset == -1
        stream.publish(b"one", b"two")
        found = client.list_offset(7, stream.name, -3)
        assert client.list_offset(7, stream.name, found.timestamp).offset == found.offset
        assert client.list_offset(7, stream.name, found.timestamp + 1).offset == -1


def test_a_waiting_fetch_is_answered_by_a_publish(broker: BrokerProcess, stream: Stream) -> None:
    with Client(broker) as client:
        client.send_fetch(11, one(stream, 0), max_wait_ms=120_000)
        client.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.socket.recv(1)
        client.socket.settimeout(30)
        stream.publish(b"at last")
        assert b"at last" in bytes(only(client.fetched(11)).records)


def test_a_fetch_waits_for_min_bytes_over_several_publishes(broker: BrokerProcess, stream: Stream) -> None:
    with Client(broker) as client:
        client.send_fetch(11, one(stream, 0), max_wait_ms=120_000, min_bytes=3000)
        for body in (b"a", b"b", b"c"):
            stream.publish(body * 1000)
        records = bytes(only(client.fetched(11)).records)
        assert all(body * 1000 in records for body in (b"a", b"b", b"c"))


def test_a_fetch_without_data_is_answered_empty_after_max_wait(broker: BrokerProcess, stream: Stream) -> None:
    stream.publish(b"one")
    with Client(broker) as client:
        began = time.monotonic()
        found = only(client.fetch(11, one(stream, 1), max_wait_ms=300))
        assert time.monotonic() - began >= 0.3
        assert (found.error_code, found.high_watermark, bytes(found.records or b"")) == (0, 1, b"")


def test_a_fetch_with_too_little_data_returns_it_after_max_wait(broker: BrokerProcess, stream: Stream) -> None:
    stream.publish(b"one")
    with Client(broker) as client:
        found = only(client.fetch(11, one(stream, 0), max_wait_ms=100, min_bytes=1 << 30))
        assert b"one" in bytes(found.records)


@pytest.mark.parametrize(("version", "code"), [(11, 3), (16, 100)])
def test_a_waiting_fetch_is_answered_when_the_queue_is_deleted(
    broker: BrokerProcess, stream: Stream, version: int, code: int
) -> None:
    key = {"topic_id": topic_id(broker, stream.name)} if version >= 13 else {}
    with Client(broker) as client:
        client.send_fetch(version, one(stream, 0, **key), max_wait_ms=120_000)
        client.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.socket.recv(1)
        client.socket.settimeout(30)
        stream.channel.queue_delete(stream.name)
        assert only(client.fetched(version)).error_code == code


def test_a_connection_that_closes_while_its_fetch_waits_is_forgotten(broker: BrokerProcess, stream: Stream) -> None:
    for _ in range(5):
        with Client(broker) as client:
            client.send_fetch(11, one(stream, 0), max_wait_ms=120_000)
    stream.publish(b"one")
    with Client(broker) as client:
        assert b"one" in bytes(only(client.fetch(11, one(stream, 0))).records)
    assert "Traceback" not in broker.stderr


def test_errors_of_partitions_are_answered_at_once(broker: BrokerProcess, stream: Stream) -> None:
    stream.publish(b"one")
    stream.channel.queue_declare("transient", auto_delete=True)
    partition = {"fetch_offset": 0, "partition_max_bytes": 1 << 20}
    topics = [
        {"topic": "no.such.stream", "partitions": [{"partition": 0, **partition}]},
        {"topic": "transient", "partitions": [{"partition": 0, **partition}]},
        {"topic": stream.name, "partitions": [{"partition": 1, **partition}, {"partition": 0, **partition}]},
        *one(stream, 2),
        *one(stream, -1),
    ]
    with Client(broker) as client:
        answer = client.fetch(11, topics, max_wait_ms=120_000, min_bytes=1 << 30)
        codes = [[each.error_code for each in topic.partitions] for topic in answer.responses]
        assert codes == [[3], [3], [3, 0], [1], [1]]
        assert b"one" in bytes(answer.responses[2].partitions[1].records)
        unknown = [{"topic_id": uuid.uuid4(), "partitions": [{"partition": 0, **partition}]}]
        assert only(client.fetch(16, unknown, max_wait_ms=120_000)).error_code == 100


def test_a_fetch_of_a_session_is_answered_with_an_unknown_session(broker: BrokerProcess, stream: Stream) -> None:
    with Client(broker) as client:
        assert client.fetch(11, [], session_id=5, session_epoch=1).error_code == 70
        assert client.fetch(11, one(stream, 0), session_id=0, session_epoch=0).session_id == 0


def test_only_whole_batches_within_the_limits_are_returned_and_the_first_always(
    broker: BrokerProcess, stream: Stream
) -> None:
    for _ in range(10):
        stream.publish(bytes(10_000))
    with Client(broker) as client:
        single = len(bytes(only(client.fetch(11, one(stream, 0, size=1))).records))
        assert 10_000 < single < 11_000
        assert len(bytes(only(client.fetch(11, one(stream, 0, size=3 * single + 10))).records)) == 3 * single
        assert len(bytes(only(client.fetch(11, one(stream, 0), max_bytes=2 * single)).records)) == 2 * single
        both = client.fetch(11, one(stream, 0, size=1) + one(stream, 5, size=1)).responses
        assert [len(bytes(each.partitions[0].records or b"")) for each in both] == [single, 0]


def test_many_fetches_at_once_are_all_answered_in_bounded_memory(broker: BrokerProcess, stream: Stream) -> None:
    body = bytes(1 << 20)
    for _ in range(3):
        stream.publish(body)
    topics = [each for _ in range(30) for each in one(stream, 0, size=4 << 20)]
    with Client(broker) as client:
        for _ in range(40):
            client.send_fetch(11, topics)
        sizes = []
        for _ in range(40):
            answer = client.fetched(11)
            sizes.append(sum(len(bytes(each.partitions[0].records or b"")) for each in answer.responses))
        assert max(sizes) <= 18 << 20
        assert sizes[0] > 1 << 20


HOSTILE = [
    b"",
    b"\0" * 10,
    struct.pack(">iiiib", -1, 0, 1, 1, 0) + struct.pack(">iii", 0, 0, 0x7FFFFFFF),
    struct.pack(">iiiib", -1, 0, 1, 1, 0) + struct.pack(">iii", 0, 0, -5),
    struct.pack(">iiiib", -1, 0, 1, 1, 0) + struct.pack(">iiih", 0, 0, 1, 0x7FFF) + b"name",
    struct.pack(">iiiib", -1, 0, 1, 1, 0) + struct.pack(">iiih", 0, 0, 1, -1),
    struct.pack(">iiiib", -1, 0, 1, 1, 0) + struct.pack(">iiih", 0, 0, 1, 1) + b"t" + struct.pack(">i", 1 << 30),
    struct.pack(">iiiib", -1, 0, 1, 1, 0) + struct.pack(">iii", 0, 0, 50_000) + b"\0\0\0\0\0\0" * 50_000,
]


@pytest.mark.parametrize("body", HOSTILE, ids=range(len(HOSTILE)))
def test_bytes_that_are_no_fetch_close_the_connection(broker: BrokerProcess, stream: Stream, body: bytes) -> None:
    with Client(broker) as client:
        client.send(1, 11, body, False)
        with pytest.raises(ConnectionError):
            client.receive(False)
    stream.publish(b"alive")
    with Client(broker) as client:
        assert b"alive" in bytes(only(client.fetch(11, one(stream, 0))).records)
    assert "Traceback" not in broker.stderr


@pytest.mark.parametrize("version", [4, 11, 12, 16])
def test_random_changes_of_a_request_cause_no_traceback(broker: BrokerProcess, stream: Stream, version: int) -> None:
    stream.publish(b"one")
    key = {"topic_id": uuid.UUID(int=5)} if version >= 13 else {}
    fields = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1, "topics": one(stream, 0, **key)}
    request = build(FetchRequest, fields, version)
    whole = bytes(request.encode())
    chance = random.Random(version)
    for _ in range(100):
        changed = bytearray(whole[: chance.randrange(len(whole) + 1)])
        for _ in range(3):
            if changed:
                changed[chance.randrange(len(changed))] = chance.randrange(256)
        if len(changed) >= 8:
            changed[4 if version < 15 else 0 : 8 if version < 15 else 4] = bytes(4)  # max wait
        with Client(broker) as client:
            client.send(1, version, bytes(changed), version >= 12)
            with contextlib.suppress(ConnectionError):
                client.receive(version >= 12)
    assert "Traceback" not in broker.stderr


def test_a_fetch_without_read_permission_is_refused(broker: BrokerProcess, stream: Stream) -> None:
    broker.api("PUT", "/api/users/guest2", {"password": "secret", "tags": ""})
    broker.api("PUT", "/api/permissions/%2F/guest2", {"configure": "", "write": "", "read": "other"})
    with Client(broker) as client:
        client.send(17, 1, struct.pack(">h", 5) + b"PLAIN", False)
        client.receive(False)
        token = b"\0guest2\0secret"
        client.send(36, 1, struct.pack(">i", len(token)) + token, False)
        client.receive(False)
        assert only(client.fetch(11, one(stream, 0))).error_code == 29
        assert client.list_offset(7, stream.name, -1).error_code == 29
