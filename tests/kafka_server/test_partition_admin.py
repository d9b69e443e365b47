"""DeleteRecords, OffsetForLeaderEpoch, DescribeLogDirs and DescribeTopicPartitions."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.protocol.admin import (
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DescribeLogDirsRequest,
    DescribeTopicPartitionsRequest,
)
from kafka.protocol.consumer import ListOffsetsRequest, OffsetForLeaderEpochRequest
from kafka_socket import KafkaSocket
from transaction_client import TransactionClient

from amqpd.testing import BrokerProcess

SETTINGS = {"kafka.port": 0, "kafka.host": "127.0.0.1"}


@pytest.fixture
def client(kafka_address: str) -> Iterator[KafkaSocket]:
    with KafkaSocket(kafka_address) as socket:
        yield socket


def address_of(broker: BrokerProcess) -> str:
    assert broker.ready is not None
    host, port = broker.ready.listeners["kafka"]
    return f"{host}:{port}"


def new_name() -> str:
    return f"a-{secrets.token_hex(6)}"


def create(client: KafkaSocket, name: str, count: int = 1, **configs: str) -> None:
    pairs = [
        CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(name=key.replace("_", "."), value=value)
        for key, value in configs.items()
    ]
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=count, replication_factor=1, assignments=[], configs=pairs
    )
    (result,) = client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000, validate_only=False), 7).topics
    assert result.error_code == 0, result.error_message


def produce(address: str, name: str, count: int, partition: int = 0) -> None:
    producer = KafkaProducer(bootstrap_servers=address)
    for number in range(count):
        producer.send(name, b"%d" % number, partition=partition)
    producer.close()


def deletion(name: str, offsets: dict[int, int]) -> Any:
    topic = DeleteRecordsRequest.DeleteRecordsTopic
    partitions = [topic.DeleteRecordsPartition(partition_index=key, offset=value) for key, value in offsets.items()]
    return DeleteRecordsRequest(topics=[topic(name=name, partitions=partitions)], timeout_ms=1000)


def deleted(client: KafkaSocket, name: str, offsets: dict[int, int], version: int = 2) -> list[tuple[int, int]]:
    """Delete records and return error code and low watermark of each partition."""
    (topic,) = client.ask(deletion(name, offsets), version).topics
    assert topic.name == name
    return [(each.error_code, each.low_watermark) for each in topic.partitions]


def earliest(client: KafkaSocket, name: str) -> int:
    wanted = ListOffsetsRequest.ListOffsetsTopic
    partition = wanted.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-2)
    request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[wanted(name=name, partitions=[partition])])
    return int(client.ask(request, 6).topics[0].partitions[0].offset)


def read(address: str, name: str, count: int) -> list[int]:
    consumer = KafkaConsumer(bootstrap_servers=address, consumer_timeout_ms=20_000)
    consumer.assign([TopicPartition(name, 0)])
    consumer.seek_to_beginning()
    found = [next(consumer).offset for _ in range(count)]
    consumer.close()
    return found


def read_over_amqp(broker: BrokerProcess, name: str) -> int:
    """Return the offset of the first record that an AMQP consumer gets."""
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1)
        found: list[int] = []

        def on_message(_channel: Any, _method: Any, properties: Any, _body: bytes) -> None:
            found.append(properties.headers["x-stream-offset"])

        channel.basic_consume(name, on_message, arguments={"x-stream-offset": "first"})
        while not found:
            connection.process_data_events(20)
    return found[0]


class TestDeleteRecords:
    @pytest.mark.parametrize("version", range(3))
    def test_the_log_begins_exactly_at_the_wanted_record(
        self, kafka_broker: BrokerProcess, kafka_address: str, client: KafkaSocket, version: int
    ) -> None:
        name = new_name()
        create(client, name)
        produce(kafka_address, name, 20)
        assert deleted(client, name, {0: 7}, version) == [(0, 7)]
        assert earliest(client, name) == 7
        assert read(kafka_address, name, 13) == list(range(7, 20))
        assert read_over_amqp(kafka_broker, name) == 7
        answer: Any = kafka_broker.api("GET", f"/api/queues/%2F/{name}")
        assert answer["name"] == name
        assert deleted(client, name, {0: 3}) == [(0, 7)]

    def test_deleted_records_of_a_kept_segment_are_out_of_range(
        self, kafka_address: str, client: KafkaSocket, kafka_broker: BrokerProcess
    ) -> None:
        name = new_name()
        create(client, name)
        produce(kafka_address, name, 5)
        with TransactionClient(kafka_address) as producer:
            assert [producer.init(), *producer.add(name), producer.produce(name, b"no", b"no")] == [0, 0, 0]
            assert producer.end(False) == 0  # its marker has the offset 7
            assert producer.fetch(name, committed=True, offset=4).error_code == 0
            assert deleted(client, name, {0: 6}) == [(0, 6)]
            assert earliest(client, name) == 6
            assert producer.fetch(name, committed=True, offset=4).error_code == 1
            found = producer.fetch(name, committed=True, offset=6)
            assert (found.error_code, found.log_start_offset, found.last_stable_offset) == (0, 6, 8)
            assert [each.first_offset for each in found.aborted_transactions] == [7]
            assert deleted(client, name, {0: 7}) == [(0, 7)]
            assert earliest(client, name) == 7

    def test_minus_one_deletes_all_records(self, kafka_address: str, client: KafkaSocket) -> None:
        name = new_name()
        create(client, name, 2)
        produce(kafka_address, name, 5)
        produce(kafka_address, name, 3, 1)
        assert deleted(client, name, {0: -1, 1: 1, 2: 0}) == [(0, 5), (0, 1), (3, -1)]
        produce(kafka_address, name, 2)
        assert read(kafka_address, name, 2) == [5, 6]

    @pytest.mark.parametrize("offset", [6, -2, 1 << 62])
    def test_an_offset_after_the_end_is_out_of_range(
        self, kafka_address: str, client: KafkaSocket, offset: int
    ) -> None:
        name = new_name()
        create(client, name)
        produce(kafka_address, name, 5)
        assert deleted(client, name, {0: offset}) == [(1, -1)]
        assert earliest(client, name) == 0

    def test_a_compacted_stream_is_refused(self, kafka_address: str, client: KafkaSocket) -> None:
        name = new_name()
        create(client, name, cleanup_policy="compact")
        assert deleted(client, name, {0: 0}) == [(44, -1)]

    def test_an_unknown_topic_is_error_3(self, client: KafkaSocket) -> None:
        assert deleted(client, new_name(), {0: 0}) == [(3, -1)]

    @pytest.mark.slow
    def test_the_start_is_the_same_after_a_kill(self, tmp_path: Path) -> None:
        with BrokerProcess(tmp_path, settings=SETTINGS) as broker, KafkaSocket(address_of(broker)) as client:
            create(client, "t")
            produce(address_of(broker), "t", 20)
            assert deleted(client, "t", {0: 11}) == [(0, 11)]
            broker.kill()
        with BrokerProcess(tmp_path, settings=SETTINGS) as broker, KafkaSocket(address_of(broker)) as client:
            assert deleted(client, "t", {0: 5}) == [(0, 11)]
            assert read(address_of(broker), "t", 9) == list(range(11, 20))

    def test_it_needs_the_permission_to_configure(self, tmp_path: Path) -> None:
        with BrokerProcess(tmp_path, settings=SETTINGS) as broker, KafkaSocket(address_of(broker)) as client:
            create(client, "t")
            broker.api("PUT", "/api/permissions/%2F/guest", {"configure": "^$", "write": ".*", "read": ".*"})
            assert deleted(client, "t", {0: 0}) == [(29, -1)]

    def test_too_many_partitions_close_the_connection(self, client: KafkaSocket) -> None:
        client.send(deletion("t", dict.fromkeys(range(10_001), 0)), 2)
        assert client.is_closed()

    def test_kafka_python_deletes_records(self, kafka_address: str, client: KafkaSocket) -> None:
        name = new_name()
        create(client, name)
        produce(kafka_address, name, 5)
        admin = KafkaAdminClient(bootstrap_servers=kafka_address)
        admin.delete_records({TopicPartition(name, 0): 2})
        admin.close()
        assert earliest(client, name) == 2


class TestOffsetForLeaderEpoch:
    @pytest.mark.parametrize("version", [2, 3, 4])
    @pytest.mark.parametrize(
        ("current", "epoch", "expected"),
        [(-1, 0, (0, 0, 5)), (0, 0, (0, 0, 5)), (-1, 1, (0, -1, -1)), (-1, -1, (0, -1, -1))],
    )
    def test_the_only_epoch_ends_at_the_end_of_the_log(
        self,
        kafka_address: str,
        client: KafkaSocket,
        version: int,
        current: int,
        epoch: int,
        expected: tuple[int, int, int],
    ) -> None:
        name = new_name()
        create(client, name)
        produce(kafka_address, name, 5)
        topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        partition = topic.OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
        request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[topic(topic=name, partitions=[partition])])
        (found,) = client.ask(request, version).topics[0].partitions
        assert (found.error_code, found.leader_epoch, found.end_offset) == expected

    def test_an_unknown_partition_is_error_3(self, client: KafkaSocket) -> None:
        name = new_name()
        create(client, name)
        topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        partition = topic.OffsetForLeaderPartition(partition=1, current_leader_epoch=0, leader_epoch=0)
        request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[topic(topic=name, partitions=[partition])])
        (found,) = client.ask(request, 4).topics[0].partitions
        assert (found.error_code, found.end_offset) == (3, -1)


class TestDescribeLogDirs:
    @pytest.mark.parametrize("version", [1, 2, 3, 4])
    def test_named_partitions_have_the_size_of_their_files(
        self, kafka_broker: BrokerProcess, kafka_address: str, client: KafkaSocket, version: int
    ) -> None:
        name = new_name()
        create(client, name, 2)
        produce(kafka_address, name, 100, 1)
        topic = DescribeLogDirsRequest.DescribableLogDirTopic(topic=name, partitions=[0, 1, 2])
        (directory,) = client.ask(DescribeLogDirsRequest(topics=[topic]), version).results
        assert directory.error_code == 0
        assert Path(directory.log_dir).is_dir()
        (found,) = directory.topics
        sizes = {each.partition_index: each.partition_size for each in found.partitions}
        assert set(sizes) == {0, 1}
        assert sizes[0] == 0
        assert sizes[1] > 100

    def test_null_describes_all_topics(self, client: KafkaSocket) -> None:
        name = new_name()
        create(client, name, 3)
        (directory,) = client.ask(DescribeLogDirsRequest(topics=None), 4).results
        found = {each.name: len(each.partitions) for each in directory.topics}
        assert found[name] == 3
        assert f"{name}-0" not in found

    def test_kafka_python_describes_log_dirs(self, kafka_address: str) -> None:
        admin = KafkaAdminClient(bootstrap_servers=kafka_address)
        assert admin.describe_log_dirs()
        admin.close()


def described(client: KafkaSocket, names: list[str], limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
    topics = [DescribeTopicPartitionsRequest.TopicRequest(name=each) for each in names]
    place = None
    if cursor is not None:
        place = DescribeTopicPartitionsRequest.Cursor(topic_name=cursor[0], partition_index=cursor[1])
    return client.ask(DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=limit, cursor=place), 0)


class TestDescribeTopicPartitions:
    def test_topics_are_described_in_the_order_of_their_names(self, client: KafkaSocket) -> None:
        name = new_name()
        create(client, f"{name}b", 3)
        create(client, f"{name}a")
        answer = described(client, [f"{name}c", f"{name}b", f"{name}a"])
        assert [(each.name, each.error_code, len(each.partitions)) for each in answer.topics] == [
            (f"{name}a", 0, 1),
            (f"{name}b", 0, 3),
            (f"{name}c", 3, 0),
        ]
        assert answer.next_cursor is None
        partition = answer.topics[1].partitions[2]
        assert (partition.partition_index, partition.leader_id, partition.isr_nodes) == (2, 0, [0])
        assert answer.topics[0].topic_authorized_operations > 0

    def test_pages_have_all_partitions_once(self, client: KafkaSocket) -> None:
        name = new_name()
        names = [f"{name}{number}" for number in range(4)]
        for number, each in enumerate(names):
            create(client, each, number + 1)
        found: list[tuple[str, int]] = []
        cursor: tuple[str, int] | None = None
        for _ in range(4):
            answer = described(client, names, 3, cursor)
            page = [(topic.name, each.partition_index) for topic in answer.topics for each in topic.partitions]
            assert len(page) <= 3
            found += page
            if answer.next_cursor is None:
                break
            cursor = (answer.next_cursor.topic_name, answer.next_cursor.partition_index)
        assert answer.next_cursor is None
        assert found == [(each, index) for number, each in enumerate(names) for index in range(number + 1)]

    def test_a_cursor_at_a_topic_that_was_deleted_continues_with_the_next(self, client: KafkaSocket) -> None:
        name = new_name()
        create(client, f"{name}b")
        answer = described(client, [f"{name}a", f"{name}b"], 10, (f"{name}a", 5))
        assert [each.name for each in answer.topics] == [f"{name}b"]

    def test_no_names_describe_all_topics(self, client: KafkaSocket) -> None:
        name = new_name()
        create(client, name, 2)
        assert name in {each.name for each in described(client, [], 2000, (name, 0)).topics}

    def test_a_negative_cursor_closes_the_connection(self, client: KafkaSocket) -> None:
        place = DescribeTopicPartitionsRequest.Cursor(topic_name="t", partition_index=-1)
        client.send(DescribeTopicPartitionsRequest(topics=[], response_partition_limit=1, cursor=place), 0)
        assert client.is_closed()
