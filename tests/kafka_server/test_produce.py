"""Produce and InitProducerId: stock producers, read back by a consumer of AMQP; raw requests for the rest."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pika
import pytest
from google_crc32c import value as crc32c

from amqpd.kafka_server import errors, produce
from amqpd.testing import BrokerProcess, BrokerThread, embedded

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from aiokafka import AIOKafkaProducer
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.errors import MessageSizeTooLargeError, UnknownTopicOrPartitionError
    from kafka.protocol.producer import InitProducerIdResponse, ProduceRequest, ProduceResponse
    from kafka.record.default_records import DefaultRecordBatchBuilder

    from amqpd.kafka_server.produce import PendingProduce

CODECS = ["gzip", "snappy", "lz4", "zstd"]
NUMBERS = {None: 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
SETTINGS = {"kafka.port": 0, "kafka.host": "127.0.0.1"}


def amqp(broker: BrokerProcess) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(broker.url))


def kafka_port(broker: BrokerProcess) -> int:
    assert broker.ready is not None
    return broker.ready.listeners["kafka"][1]


def declare(broker: BrokerProcess, name: str, **arguments: object) -> None:
    with amqp(broker) as connection:
        connection.channel().queue_declare(name, durable=True, arguments={"x-queue-type": "stream", **arguments})


def bodies(broker: BrokerProcess, name: str, count: int) -> list[bytes]:
    """Return the first bodies of a stream, as an AMQP consumer gets them."""
    found: list[bytes] = []
    with amqp(broker) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=100)
        for method, _, body in channel.consume(name, arguments={"x-stream-offset": "first"}, inactivity_timeout=20):
            assert method is not None, f"only {len(found)} of {count} records"
            found.append(body)
            channel.basic_ack(method.delivery_tag)
            if len(found) == count:
                break
    return found


def batch(
    *values: bytes, producer: int = -1, epoch: int = -1, sequence: int = -1, codec: str | None = None, **other: int
) -> bytes:
    builder = DefaultRecordBatchBuilder(2, NUMBERS[codec], 0, producer, epoch, sequence, 1 << 25)
    for number, each in enumerate(values):
        builder.append(number, other.get("time_ms", int(time.time() * 1000)), b"key", each, [])
    return bytes(builder.build())


def changed(data: bytes, position: int, new: bytes) -> bytes:
    """Return the batch with other bytes and the right checksum."""
    data = data[:position] + new + data[position + len(new) :]
    return data[:17] + crc32c(data[21:]).to_bytes(4, "big") + data[21:]


def part(data: bytes | None, index: int = 0) -> dict[str, Any]:
    return {"index": index, "records": data}


class Client:
    """A raw connection."""

    def __init__(self, broker: BrokerProcess | int) -> None:
        port = broker if isinstance(broker, int) else kafka_port(broker)
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()

    def send_body(self, key: int, version: int, body: bytes, flexible: bool) -> None:
        self.number += 1
        frame = struct.pack(">hhih", key, version, self.number, -1) + (b"\0" if flexible else b"") + body
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def send(self, topics: dict[str, list[dict[str, Any]]], version: int = 9, acks: int = -1, **more: Any) -> None:
        topic = ProduceRequest.fields["topic_data"].data_class
        record = topic.fields["partition_data"].data_class
        data = [
            topic(name=name, partition_data=[record(**each) for each in parts], version=version)
            for name, parts in topics.items()
        ]
        request = ProduceRequest(
            version=version, transactional_id=more.get("transactional_id"), acks=acks, timeout_ms=30000, topic_data=data
        )
        self.send_body(0, version, bytes(request.encode()), version >= 9)

    def receive_body(self, flexible: bool) -> bytes:
        size = struct.unpack(">i", self._exactly(4))[0]
        frame = self._exactly(size)
        assert struct.unpack_from(">i", frame)[0] == self.number
        return frame[5:] if flexible else frame[4:]

    def receive(self, version: int = 9) -> list[Any]:
        """Return the results of the partitions."""
        response = ProduceResponse[version].decode(self.receive_body(version >= 9))
        return [result for topic in response.responses for result in topic.partition_responses]

    def produce(self, name: str, data: bytes | None, version: int = 9, **more: Any) -> Any:
        self.send({name: [part(data)]}, version, **more)
        (result,) = self.receive(version)
        return result

    def producer_id(self, version: int = 4, transactional_id: bytes | None = None) -> Any:
        name = b"\0" if transactional_id is None else bytes([len(transactional_id) + 1]) + transactional_id
        if version < 2:
            name = b"\xff\xff" if transactional_id is None else struct.pack(">h", len(transactional_id)) + name[1:]
        body = name + struct.pack(">i", 1000)
        if version >= 3:
            body += struct.pack(">qh", -1, -1)
        self.send_body(22, version, body + (b"\0" if version >= 2 else b""), version >= 2)
        return InitProducerIdResponse[version].decode(self.receive_body(version >= 2))

    def is_closed(self) -> bool:
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            assert piece, "the connection was closed"
            data += piece
        return data


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("kafka"), settings=SETTINGS) as running:
        yield running


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    with Client(broker) as client:
        yield client


# -- stock producers


@pytest.mark.parametrize("codec", [None, *CODECS])
def test_amqp_consumer_reads_what_kafka_python_sends_with_each_codec(broker: BrokerProcess, codec: str | None) -> None:
    name = f"kafka-python.{codec}"
    declare(broker, name)
    producer = KafkaProducer(bootstrap_servers=f"127.0.0.1:{kafka_port(broker)}", compression_type=codec, linger_ms=20)
    sent = [b"%d " % number * 50 for number in range(500)]
    futures = [producer.send(name, each, key=b"k", headers=[("a", b"b")]) for each in sent]
    offsets = [future.get(30).offset for future in futures]
    producer.close()
    assert offsets == list(range(500))
    assert bodies(broker, name, 500) == sent


@pytest.mark.parametrize("codec", [None, *CODECS])
@pytest.mark.parametrize("idempotent", [False, True])
def test_amqp_consumer_reads_what_aiokafka_sends_with_each_codec(
    broker: BrokerProcess, codec: str | None, idempotent: bool
) -> None:
    name = f"aiokafka.{codec}.{idempotent}"
    declare(broker, name)
    sent = [b"%d " % number * 50 for number in range(500)]

    async def run() -> list[int]:
        producer = AIOKafkaProducer(
            bootstrap_servers=f"127.0.0.1:{kafka_port(broker)}", compression_type=codec, enable_idempotence=idempotent
        )
        await producer.start()
        try:
            futures = [await producer.send(name, each) for each in sent]
            return [(await future).offset for future in futures]
        finally:
            await producer.stop()

    assert asyncio.run(run()) == list(range(500))
    assert bodies(broker, name, 500) == sent


def test_kafka_python_sends_to_a_stream_and_a_transient_queue_is_an_unknown_topic(broker: BrokerProcess) -> None:
    producer = KafkaProducer(bootstrap_servers=f"127.0.0.1:{kafka_port(broker)}", allow_auto_create_topics=False)
    declare(broker, "errors")
    with amqp(broker) as connection:
        connection.channel().queue_declare("transient", auto_delete=True)
    assert producer.send("errors", b"1").get(30).offset == 0
    producer.close()
    with Client(broker) as client:
        assert client.produce("transient", batch(b"a")).error_code == UnknownTopicOrPartitionError.errno


def test_large_first_request_of_a_connection_is_accepted(broker: BrokerProcess, client: Client) -> None:
    declare(broker, "large")
    assert client.produce("large", batch(b"x" * 1_000_000)).error_code == 0
    assert bodies(broker, "large", 1) == [b"x" * 1_000_000]


def test_a_waiting_consumer_of_amqp_gets_new_records_in_the_order_of_the_log(
    broker: BrokerProcess, client: Client
) -> None:
    declare(broker, "mixed")
    with amqp(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_qos(prefetch_count=100)
        got: list[bytes] = []

        def take(channel: Any, method: Any, _: object, body: bytes) -> None:
            got.append(body)
            channel.basic_ack(method.delivery_tag)

        channel.basic_consume("mixed", take)
        for number in range(5):
            assert client.produce("mixed", batch(b"kafka %d" % number, b"too")).base_offset == number * 3
            channel.basic_publish("", "mixed", b"amqp %d" % number)
        until = time.monotonic() + 30
        while len(got) < 15 and time.monotonic() < until:
            connection.process_data_events(1)
        assert got == [each for number in range(5) for each in (b"kafka %d" % number, b"too", b"amqp %d" % number)]
        assert channel.queue_declare("mixed", passive=True).method.message_count == 15


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [(None, None, []), (b"", b"", [("h", None)]), (b"\xff", b"", [("exchange", b"e"), ("x", b"\xff")])],
)
def test_records_without_value_are_empty_messages(
    broker: BrokerProcess, client: Client, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes]]
) -> None:
    name = f"empty.{len(headers)}"
    declare(broker, name)
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    builder.append(0, -1, key, value, headers)
    assert client.produce(name, bytes(builder.build())).error_code == 0
    assert bodies(broker, name, 1) == [b""]


def test_amqp_consumer_gets_a_record_whose_properties_cannot_be_decoded(broker: BrokerProcess, client: Client) -> None:
    declare(broker, "properties")
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    builder.append(0, -1, b"k", b"odd", [("properties", b"\xff")])
    result = client.produce("properties", bytes(builder.build()))
    assert result.error_code == 0
    client.produce("properties", batch(b"next"))
    assert bodies(broker, "properties", 2) == [b"odd", b"next"]


# -- raw requests


@pytest.mark.parametrize("version", range(3, 12))
@pytest.mark.parametrize("acks", [1, -1])
def test_every_version_answers_with_the_offset(broker: BrokerProcess, client: Client, version: int, acks: int) -> None:
    name = f"versions.{version}.{acks}"
    declare(broker, name)
    for number in range(3):
        result = client.produce(name, batch(b"a", b"b"), version, acks=acks)
        assert (result.error_code, result.base_offset, result.log_append_time_ms) == (0, 2 * number, -1)
        assert version < 5 or result.log_start_offset == 0


def test_several_topics_have_one_reply(broker: BrokerProcess, client: Client) -> None:
    declare(broker, "several.1")
    declare(broker, "several.2")
    client.send(
        {
            "several.1": [part(batch(b"1")), part(batch(b"2"), 1)],
            "absent": [part(batch(b"3"))],
            "several.2": [part(batch(b"4")), part(batch(b"5"))],
        }
    )
    assert [(each.index, each.error_code, each.base_offset) for each in client.receive()] == [
        (0, 0, 0),
        (1, 3, -1),
        (0, 3, -1),
        (0, 0, 0),
        (0, 0, 1),
    ]
    assert bodies(broker, "several.2", 2) == [b"4", b"5"]


def test_acks_0_has_no_reply(broker: BrokerProcess, client: Client) -> None:
    declare(broker, "no-acks")
    for number in range(3):
        client.send({"no-acks": [part(batch(b"%d" % number))]}, acks=0)
    assert client.produce("no-acks", batch(b"3")).base_offset == 3
    assert bodies(broker, "no-acks", 4) == [b"0", b"1", b"2", b"3"]


def test_acks_0_with_an_error_closes_the_connection(client: Client) -> None:
    client.send({"absent": [part(batch(b"1"))]}, acks=0)
    assert client.is_closed()


GOOD = batch(b"a", b"b")
NUMBERED = batch(b"a", producer=5, epoch=0, sequence=0)
BOMB = batch(b"x" * (9 << 20), b"y" * (9 << 20), codec="gzip")


@pytest.mark.parametrize(
    ("data", "error"),
    [
        pytest.param(None, 87, id="null"),
        pytest.param(b"", 87, id="empty"),
        pytest.param(GOOD + GOOD, 87, id="two batches"),
        pytest.param(GOOD[:10], 2, id="cut header"),
        pytest.param(GOOD[:-1], 2, id="cut records"),
        pytest.param(GOOD[:-1] + b"?", 2, id="checksum"),
        pytest.param(GOOD[:16] + b"\0" + GOOD[17:], 43, id="magic 0"),
        pytest.param(GOOD[:16] + b"\1" + GOOD[17:], 43, id="magic 1"),
        pytest.param(GOOD[:16] + b"\3" + GOOD[17:], 2, id="magic 3"),
        pytest.param(GOOD[:8] + b"\xff\xff\xff\xff" + GOOD[12:], 2, id="negative length"),
        pytest.param(changed(GOOD, 57, b"\0\0\0\3"), 2, id="count"),
        pytest.param(changed(GOOD, 57, b"\xff\xff\xff\xff"), 10, id="negative count"),
        pytest.param(changed(GOOD, 61, b"\x7f"), 87, id="length of a record"),
        pytest.param(changed(GOOD, 21, b"\0\x05"), 76, id="codec 5"),
        pytest.param(changed(GOOD, 21, b"\0\x08"), 32, id="LogAppendTime"),
        pytest.param(changed(GOOD, 21, b"\0\x10"), 87, id="transactional, without a producer"),
        pytest.param(changed(GOOD, 21, b"\0\x20"), 87, id="control"),
        pytest.param(changed(GOOD, 21, b"\x40\0"), 87, id="transient"),
        pytest.param(changed(GOOD, 21, b"\0\1"), 87, id="not gzip"),
        pytest.param(batch(b"a", time_ms=int(time.time() * 1000) + 2 * 3_600_000), 32, id="in two hours"),
        pytest.param(changed(GOOD, 27, b"\x80" + bytes(7)), 32, id="before all times"),
        pytest.param(changed(NUMBERED, 53, b"\xff\xff\xff\xff"), 87, id="no sequence"),
        pytest.param(changed(NUMBERED, 51, b"\xff\xff"), 87, id="no epoch"),
        pytest.param(BOMB, 10, id="decompresses to 18 MiB"),
    ],
)
def test_a_bad_batch_is_refused(broker: BrokerProcess, client: Client, data: bytes | None, error: int) -> None:
    declare(broker, "bad")
    result = client.produce("bad", data)
    assert (result.error_code, result.base_offset) == (error, -1)
    assert result.error_message
    with amqp(broker) as connection:
        declared = connection.channel().queue_declare("bad", durable=True, passive=True)
    assert declared.method.message_count == 0


@pytest.mark.parametrize("codec", [None, "lz4"])
def test_a_batch_without_a_max_timestamp_is_found_by_its_time(
    broker: BrokerProcess, client: Client, codec: str | None
) -> None:
    """As of sarama before 1.45.1."""
    name = f"no-max-timestamp-{codec}"
    declare(broker, name)
    now_ms = int(time.time() * 1000)
    data = changed(batch(b"1", time_ms=now_ms, codec=codec), 35, b"\xff" * 8)
    assert client.produce(name, data).error_code == 0
    consumer = KafkaConsumer(bootstrap_servers=f"127.0.0.1:{kafka_port(broker)}")
    partition = TopicPartition(name, 0)
    assert consumer.offsets_for_times({partition: now_ms})[partition].offset == 0
    consumer.close()
    late = changed(batch(b"1", time_ms=now_ms + 10**7, codec=codec), 35, b"\xff" * 8)
    assert client.produce(name, late).error_code == errors.INVALID_TIMESTAMP


def test_a_batch_above_the_size_limit_is_refused(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings={**SETTINGS, "amqp.message_size_max_bytes": 5000}) as broker:
        declare(broker, "small")
        with Client(broker) as client:
            assert client.produce("small", batch(b"x" * 5000)).error_code == MessageSizeTooLargeError.errno
            assert client.produce("small", batch(b"x" * 4000)).error_code == 0


def test_unknown_acks_are_refused(broker: BrokerProcess, client: Client) -> None:
    declare(broker, "unsupported")
    assert client.produce("unsupported", GOOD, acks=2).error_code == 21
    assert client.produce("unsupported", GOOD).base_offset == 0


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\0\0\1\0\0\0\0", id="no topics"),
        pytest.param(b"\0\0\1\0\0\0\0\xff\xff\xff\xff\x07", id="two thousand million topics"),
        pytest.param(b"\0\0\1\0\0\0\0\0", id="null topics"),
        pytest.param(b"\0\0\1\0\0\0\0\2\0", id="null name"),
        pytest.param(b"\0\0\1\0\0\0\0\2\2a\xff\xff\xff\xff\x0f", id="many partitions"),
        pytest.param(b"\0\0\1\0\0\0\0\2\2a\2\0\0\0\0\xff\xff\xff\xff\x0f", id="long records"),
        pytest.param(b"\0\0\1\0\0\0\0\2\2a\2\0\0\0\0\1\xff\xff\xff\xff\x0f", id="many tags"),
        pytest.param(b"\0\0\1\0\0\0\0\2\2a\2\0\0\0\0\xff\xff\xff\xff\xff\xff", id="endless number"),
    ],
)
def test_bytes_that_are_no_request_close_the_connection(broker: BrokerProcess, client: Client, body: bytes) -> None:
    client.send_body(0, 9, body, True)
    assert client.is_closed()
    assert not any("bug" in line or "Traceback" in line for line in broker.stderr.splitlines())


def test_a_name_that_is_no_text_is_an_unknown_topic(broker: BrokerProcess, client: Client) -> None:
    client.send_body(0, 3, struct.pack(">hhiihc", -1, 1, 0, 1, 1, b"\xff") + struct.pack(">iii", 1, 0, -1), False)
    size = struct.unpack(">i", client._exactly(4))[0]
    assert struct.unpack_from(">h", client._exactly(size), 4 + 4 + 3 + 4 + 4)[0] == 3


# -- idempotence


def numbered(producer: int, sequence: int, *values: bytes, epoch: int = 0, **other: int) -> bytes:
    return batch(*values, producer=producer, epoch=epoch, sequence=sequence, **other)


@pytest.mark.parametrize("version", range(5))
def test_producer_ids_are_unique(client: Client, version: int) -> None:
    answers = [client.producer_id(version) for _ in range(50)]
    assert {(each.error_code, each.producer_epoch) for each in answers} == {(0, 0)}
    assert len({each.producer_id for each in answers}) == 50
    assert all(each.producer_id > 0 for each in answers)


def test_a_repeated_batch_is_stored_once(broker: BrokerProcess, client: Client) -> None:
    declare(broker, "repeated")
    producer = client.producer_id().producer_id
    sent = [numbered(producer, 2 * number, b"%d" % number, b"too") for number in range(7)]
    assert [client.produce("repeated", each).base_offset for each in sent] == [0, 2, 4, 6, 8, 10, 12]
    again = [client.produce("repeated", each) for each in sent]
    assert [(each.error_code, each.base_offset) for each in again] == [
        (45, -1),
        (45, -1),
        (0, 4),
        (0, 6),
        (0, 8),
        (0, 10),
        (0, 12),
    ]
    assert client.produce("repeated", numbered(producer, 14, b"next")).base_offset == 14


def test_a_repeated_batch_is_answered_and_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    def count(_call: Any, _kind: str, size_bytes: int) -> int:
        counted.append(size_bytes)
        return 0

    monkeypatch.setattr(produce, "count_bytes", count)
    with BrokerThread(tmp_path, settings=SETTINGS) as broker:
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            connection.channel().queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
        with Client(int(broker.kafka_bootstrap.rpartition(":")[2])) as client:
            producer = client.producer_id().producer_id
            for number in (1, 2):
                assert client.produce("s", numbered(producer, 0, b"x")).base_offset == 0
                assert len(counted) == number


def test_wrong_sequence_is_error_45_and_older_epoch_is_error_47(broker: BrokerProcess, client: Client) -> None:
    declare(broker, "epochs")
    producer = client.producer_id().producer_id

    def send(sequence: int, epoch: int) -> tuple[int, int]:
        result = client.produce("epochs", numbered(producer, sequence, b"x", epoch=epoch))
        return result.error_code, result.base_offset

    assert send(7, 0) == (0, 0)  # an unknown producer
    assert send(9, 0) == (45, -1)
    assert send(6, 0) == (45, -1)
    assert send(8, 0) == (0, 1)
    assert send(9, 1) == (45, -1)
    assert send(0, 1) == (0, 2)
    assert send(9, 0) == (47, -1)
    assert send(0, 1) == (0, 2)
    assert send(1, 1) == (0, 3)


def test_sequence_after_the_highest_is_0(broker: BrokerProcess, client: Client) -> None:
    declare(broker, "wrap")
    producer = client.producer_id().producer_id
    last = numbered(producer, 2**31 - 2, b"1", b"2", b"3")
    assert client.produce("wrap", last).base_offset == 0
    assert client.produce("wrap", last).base_offset == 0
    assert client.produce("wrap", numbered(producer, 2, b"4")).error_code == 45
    assert client.produce("wrap", numbered(producer, 1, b"4")).base_offset == 3


@pytest.mark.parametrize("clean", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["kill", "stop"])
def test_repeated_batches_are_known_after_a_restart(tmp_path: Path, clean: bool) -> None:
    with BrokerProcess(tmp_path, settings=SETTINGS) as broker:
        declare(broker, "kept")
        with Client(broker) as client:
            producer = client.producer_id().producer_id
            sent = [numbered(producer, 2 * n, b"%d" % n, b"too", time_ms=1000) for n in range(7)]
            assert [client.produce("kept", each).base_offset for each in sent[:-1]] == [0, 2, 4, 6, 8, 10]
        for _ in range(2):
            if clean:
                broker.stop()
            else:
                broker.kill()
            broker.start()
            with Client(broker) as client:
                again = [client.produce("kept", each).base_offset for each in sent[1:-1]]
                assert again == [2, 4, 6, 8, 10]
                assert client.produce("kept", numbered(producer, 13, b"gap")).error_code == 45
                assert client.producer_id().producer_id != producer
        with Client(broker) as client:
            assert client.produce("kept", sent[-1]).base_offset == 12
        assert bodies(broker, "kept", 14) == [each for n in range(7) for each in (b"%d" % n, b"too")]


@pytest.mark.slow
def test_a_request_waits_for_the_opening_of_its_logs(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings=SETTINGS) as broker:
        names = [f"opened.{number}" for number in range(20)]
        for name in names:
            declare(broker, name)
        with Client(broker) as client:
            client.send({name: [part(batch(b"1"))] for name in names})
            assert [each.base_offset for each in client.receive()] == [0] * 20
        broker.kill()
        broker.start()
        with Client(broker) as client:
            client.send({name: [part(batch(b"2"))] for name in names})
            assert [(each.error_code, each.base_offset) for each in client.receive()] == [(0, 1)] * 20


@pytest.mark.slow
def test_producers_wait_for_the_end_of_an_alarm(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings=SETTINGS) as broker:
        declare(broker, "alarmed")
        assert broker.ctl("set_vm_memory_high_watermark", "absolute", "1000").returncode == 0
        with Client(broker) as client:
            for number in range(3):
                client.send({"alarmed": [part(batch(b"%d" % number))]})
            client.socket.settimeout(0.5)
            with pytest.raises(TimeoutError):
                client.socket.recv(1)
            with amqp(broker) as connection:
                declared = connection.channel().queue_declare("alarmed", durable=True, passive=True)
            assert declared.method.message_count == 0
            client.socket.settimeout(30)
            assert broker.ctl("set_vm_memory_high_watermark", "0.9").returncode == 0
            for number in range(3):
                client.number = number + 1
                assert [each.base_offset for each in client.receive()] == [number]
        assert bodies(broker, "alarmed", 3) == [b"0", b"1", b"2"]


def test_produce_to_a_failed_log_gets_a_storage_error(tmp_path: Path) -> None:
    def send(port: int) -> list[int]:
        with Client(port) as client:
            return [client.produce(name, batch(b"a")).error_code for name in ("failed", "other")]

    def declare_both(port: int) -> None:
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
            for name in ("failed", "other"):
                connection.channel().queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})

    async def run() -> None:
        async with embedded(tmp_path, settings=SETTINGS) as server:
            ports = {each.protocol: each.port for each in server.listeners}
            await asyncio.to_thread(declare_both, ports["amqp"])
            assert await asyncio.to_thread(send, ports["kafka"]) == [0, 0]
            store = server.broker.vhosts["/"].queues["failed"].store
            assert store is not None
            store.failed = True
            assert await asyncio.to_thread(send, ports["kafka"]) == [56, 0]

    asyncio.run(run())


def test_a_request_with_much_work_is_done_in_several_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    run_once = PendingProduce.run

    def counted(pending: PendingProduce) -> None:
        runs.append(1)
        run_once(pending)

    monkeypatch.setattr("amqpd.kafka_server.produce.SLICE_S", 0.0)
    monkeypatch.setattr(PendingProduce, "run", counted)

    def send(amqp_port: int, port: int) -> list[int]:
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", amqp_port)) as connection:
            connection.channel().queue_declare("slices", durable=True, arguments={"x-queue-type": "stream"})
        with Client(port) as client:
            client.send({"slices": [part(GOOD)] * 20})
            client.send({"slices": [part(GOOD)]})
            found = []
            for client.number in (1, 2):
                found += [each.base_offset for each in client.receive()]
            return found

    async def run() -> None:
        async with embedded(tmp_path, settings=SETTINGS) as server:
            ports = {each.protocol: each.port for each in server.listeners}
            offsets = await asyncio.to_thread(send, ports["amqp"], ports["kafka"])
            assert offsets == list(range(0, 42, 2))

    asyncio.run(run())
    assert len(runs) == 21
