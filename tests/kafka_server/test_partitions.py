"""Topics with several partitions: super streams, for Kafka's clients and for AMQP's."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from group_members import poll_until
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewPartitions, NewTopic
from kafka.partitioner import murmur2
from kafka.protocol.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest
from kafka_socket import KafkaSocket

from amqpd.broker.vhost.exchange import Binding, BindingKey, Exchange
from amqpd.broker.vhost.super_streams import SuperStreams
from amqpd.testing import BrokerProcess

SETTINGS = {"kafka.port": 0, "kafka.host": "127.0.0.1"}
ORDER = "x-stream-partition-order"


@pytest.fixture
def client(kafka_address: str) -> Iterator[KafkaSocket]:
    with KafkaSocket(kafka_address) as socket:
        yield socket


@pytest.fixture
def admin(kafka_address: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=kafka_address)
    yield client
    client.close()


def address_of(broker: BrokerProcess) -> str:
    assert broker.ready is not None
    host, port = broker.ready.listeners["kafka"]
    return f"{host}:{port}"


def new_name() -> str:
    return f"p-{secrets.token_hex(6)}"


def creation(name: str, count: int, validate_only: bool = False) -> Any:
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=count, replication_factor=1, assignments=[], configs=[]
    )
    return CreateTopicsRequest(topics=[topic], timeout_ms=1000, validate_only=validate_only)


def create(client: KafkaSocket, name: str, count: int, validate_only: bool = False) -> Any:
    (result,) = client.ask(creation(name, count, validate_only), 7).topics
    return result


def delete(client: KafkaSocket, name: str) -> int:
    topic = DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=None)
    (result,) = client.ask(DeleteTopicsRequest(topics=[topic], timeout_ms=1000), 6).responses
    return int(result.error_code)


def grow(client: KafkaSocket, name: str, count: int, version: int = 3, **fields: Any) -> Any:
    topic = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
    request = CreatePartitionsRequest(topics=[topic], timeout_ms=1000, **{"validate_only": False, **fields})
    (result,) = client.ask(request, version).results
    return result


def metadata(client: KafkaSocket, name: str | None = None, topic_id: Any = None) -> Any:
    asked = MetadataRequest.MetadataRequestTopic(topic_id=topic_id, name=name)
    (topic,) = client.ask(MetadataRequest(topics=[asked], allow_auto_topic_creation=False), 12).topics
    return topic


def all_topics(client: KafkaSocket) -> set[str]:
    return {each.name for each in client.ask(MetadataRequest(topics=None), 12).topics}


def partition_count(client: KafkaSocket, name: str) -> int:
    topic = metadata(client, name)
    assert [each.partition_index for each in topic.partitions] == list(range(len(topic.partitions)))
    return len(topic.partitions)


def queue_names(broker: BrokerProcess) -> set[str]:
    answer: Any = broker.api("GET", "/api/queues/%2F")
    return {each["name"] for each in answer}


def exchanges(broker: BrokerProcess) -> dict[str, Any]:
    answer: Any = broker.api("GET", "/api/exchanges/%2F")
    return {each["name"]: each for each in answer}


def declare_stream(broker: BrokerProcess, name: str) -> None:
    broker.api("PUT", f"/api/queues/%2F/{name}", {"durable": True, "arguments": {"x-queue-type": "stream"}})


def bind(broker: BrokerProcess, exchange: str, queue: str, order: int) -> None:
    path = f"/api/bindings/%2F/e/{exchange}/q/{queue}"
    broker.api("POST", path, {"routing_key": str(order), "arguments": {ORDER: order}})


def declare_super_stream(broker: BrokerProcess, name: str, count: int, kind: str = "direct") -> None:
    """As `amqpctl add_super_stream`."""
    body = {"type": kind, "durable": True, "arguments": {"x-super-stream": True}}
    broker.api("PUT", f"/api/exchanges/%2F/{name}", body)
    for number in range(count):
        declare_stream(broker, f"{name}-{number}")
        bind(broker, name, f"{name}-{number}", number)


class TestTopics:
    def test_a_new_topic_with_partitions_is_an_exchange_with_streams(
        self, kafka_broker: BrokerProcess, client: KafkaSocket
    ) -> None:
        name = new_name()
        result = create(client, name, 3)
        assert (result.error_code, result.num_partitions, result.error_message) == (0, 3, None)
        exchange = exchanges(kafka_broker)[name]
        assert (exchange["type"], exchange["durable"]) == ("x-murmur2-hash", True)
        assert exchange["arguments"] == {"x-super-stream": True}
        assert {f"{name}-{number}" for number in range(3)} <= queue_names(kafka_broker)
        assert partition_count(client, name) == 3
        assert metadata(client, topic_id=result.topic_id).name == name

    def test_a_super_stream_of_amqp_is_a_topic(self, kafka_broker: BrokerProcess, client: KafkaSocket) -> None:
        name = new_name()
        declare_super_stream(kafka_broker, name, 4)
        assert partition_count(client, name) == 4

    def test_the_list_of_topics_has_the_super_stream_without_its_streams(
        self, kafka_broker: BrokerProcess, client: KafkaSocket
    ) -> None:
        name = new_name()
        declare_super_stream(kafka_broker, name, 2)
        assert {each for each in all_topics(client) if each.startswith(name)} == {name}
        assert partition_count(client, f"{name}-1") == 1

    def test_a_stream_wins_over_a_super_stream_of_its_name(
        self, kafka_broker: BrokerProcess, client: KafkaSocket
    ) -> None:
        name = new_name()
        declare_super_stream(kafka_broker, name, 2)
        before = metadata(client, name)
        declare_stream(kafka_broker, name)
        topic = metadata(client, name)
        assert len(topic.partitions) == 1
        assert topic.topic_id != before.topic_id
        assert metadata(client, topic_id=before.topic_id).error_code == 100
        assert delete(client, name) == 0
        assert metadata(client, name).topic_id == before.topic_id

    def test_partitions_after_a_gap_do_not_count(self, kafka_broker: BrokerProcess, client: KafkaSocket) -> None:
        name = new_name()
        declare_super_stream(kafka_broker, name, 4)
        topic_id = metadata(client, name).topic_id
        kafka_broker.api("DELETE", f"/api/queues/%2F/{name}-2")
        assert partition_count(client, name) == 2
        declare_stream(kafka_broker, f"{name}-2")
        bind(kafka_broker, name, f"{name}-2", 2)
        assert partition_count(client, name) == 4
        assert metadata(client, name).topic_id == topic_id
        kafka_broker.api("DELETE", f"/api/queues/%2F/{name}-0")
        assert metadata(client, name).error_code == 3
        assert metadata(client, topic_id=topic_id).error_code == 100

    def test_a_deleted_exchange_is_no_topic(self, kafka_broker: BrokerProcess, client: KafkaSocket) -> None:
        name = new_name()
        declare_super_stream(kafka_broker, name, 2)
        kafka_broker.api("DELETE", f"/api/exchanges/%2F/{name}")
        assert metadata(client, name).error_code == 3
        assert f"{name}-0" in all_topics(client)

    @pytest.mark.slow
    def test_the_id_is_the_same_after_a_restart(self, tmp_path: Path) -> None:
        with BrokerProcess(tmp_path, settings=SETTINGS) as broker, KafkaSocket(address_of(broker)) as client:
            topic_id = create(client, "orders", 3).topic_id
        with BrokerProcess(tmp_path, settings=SETTINGS) as broker, KafkaSocket(address_of(broker)) as client:
            topic = metadata(client, "orders")
            assert (topic.topic_id, len(topic.partitions)) == (topic_id, 3)
            assert delete(client, "orders") == 0
            assert create(client, "orders", 3).topic_id != topic_id


class TestAdministration:
    def test_a_taken_name_leaves_nothing_half_made(self, kafka_broker: BrokerProcess, client: KafkaSocket) -> None:
        name = new_name()
        declare_stream(kafka_broker, f"{name}-2")
        result = create(client, name, 4)
        assert (result.error_code, result.error_message) == (36, f"there is a queue '{name}-2' already")
        assert name not in exchanges(kafka_broker)
        assert {each for each in queue_names(kafka_broker) if each.startswith(name)} == {f"{name}-2"}
        kafka_broker.api("DELETE", f"/api/queues/%2F/{name}-2")
        assert create(client, name, 4).error_code == 0

    def test_one_of_two_clients_that_create_a_topic_gets_it(self, kafka_address: str) -> None:
        name = new_name()
        with KafkaSocket(kafka_address) as one, KafkaSocket(kafka_address) as other:
            request = creation(name, 50)
            for client in (one, other):
                client.send(request, 7)
            codes = [client.decode(request, 7, client.receive()).topics[0].error_code for client in (one, other)]
            assert sorted(codes) == [0, 36]
            assert partition_count(one, name) == 50

    def test_a_client_that_leaves_gets_all_or_nothing(
        self, kafka_broker: BrokerProcess, kafka_address: str, client: KafkaSocket
    ) -> None:
        name = new_name()
        with KafkaSocket(kafka_address) as gone:
            gone.send(creation(name, 500), 7)
        code = create(client, name, 500).error_code  # waits for the first creation, if there is one
        assert code in (0, 36)
        assert partition_count(client, name) == 500
        assert len({each for each in queue_names(kafka_broker) if each.startswith(name)}) == 500
        assert delete(client, name) == 0

    @pytest.mark.parametrize("count", [1, 3])
    def test_a_topic_that_exists_is_refused(self, client: KafkaSocket, count: int) -> None:
        name = new_name()
        assert create(client, name, 2).error_code == 0
        assert create(client, name, count).error_code == 36

    def test_an_exchange_of_the_name_is_refused(self, kafka_broker: BrokerProcess, client: KafkaSocket) -> None:
        name = new_name()
        kafka_broker.api("PUT", f"/api/exchanges/%2F/{name}", {"type": "topic", "durable": True})
        assert create(client, name, 2).error_code == 36
        assert create(client, name, 1).error_code == 0
        assert grow(client, name, 2).error_code == 36

    def test_the_queue_limit_of_the_vhost_is_kept(self, tmp_path: Path) -> None:
        with BrokerProcess(tmp_path, settings=SETTINGS) as broker, KafkaSocket(address_of(broker)) as client:
            broker.api("PUT", "/api/vhost-limits/%2F/max-queues", {"value": 5})
            assert create(client, "six", 6, validate_only=True).error_code == 44
            assert create(client, "six", 6).error_code == 44
            assert queue_names(broker) == set()
            assert create(client, "five", 5).error_code == 0
            assert grow(client, "five", 6).error_code == 44

    def test_validation_creates_nothing(self, kafka_broker: BrokerProcess, client: KafkaSocket) -> None:
        name = new_name()
        assert create(client, name, 3, validate_only=True).num_partitions == 3
        assert metadata(client, name).error_code == 3
        assert create(client, name, 1).error_code == 0
        assert grow(client, name, 3, validate_only=True).error_code == 0
        assert partition_count(client, name) == 1
        assert name not in exchanges(kafka_broker)

    def test_deletion_removes_exchange_and_streams(self, kafka_broker: BrokerProcess, client: KafkaSocket) -> None:
        name = new_name()
        create(client, name, 3)
        kafka_broker.api("DELETE", f"/api/queues/%2F/{name}-1")
        assert delete(client, name) == 0
        assert name not in exchanges(kafka_broker)
        assert not {each for each in queue_names(kafka_broker) if each.startswith(name)}
        assert delete(client, name) == 3
        assert create(client, name, 3).error_code == 0

    @pytest.mark.parametrize("version", range(4))
    def test_a_topic_gets_more_partitions(self, client: KafkaSocket, version: int) -> None:
        name = new_name()
        topic_id = create(client, name, 2).topic_id
        result = grow(client, name, 5, version)
        assert (result.error_code, result.name, result.error_message) == (0, name, None)
        assert partition_count(client, name) == 5
        assert metadata(client, name).topic_id == topic_id

    def test_a_stream_becomes_the_first_partition(self, kafka_address: str, client: KafkaSocket) -> None:
        name = new_name()
        topic_id = create(client, name, 1).topic_id
        producer = KafkaProducer(bootstrap_servers=kafka_address)
        producer.send(name, b"before").get(10)
        producer.close()
        assert grow(client, name, 3).error_code == 0
        producer = KafkaProducer(bootstrap_servers=kafka_address)
        producer.send(name, b"after", partition=2).get(10)
        producer.close()
        topic = metadata(client, name)
        assert (topic.topic_id, len(topic.partitions)) == (topic_id, 3)
        assert {each for each in all_topics(client) if each.startswith(name)} == {name}
        assert read_all(kafka_address, name, 2) == {0: [b"before"], 1: [], 2: [b"after"]}
        assert delete(client, name) == 0
        assert metadata(client, f"{name}-1").error_code == 3

    @pytest.mark.parametrize(("count", "code"), [(2, 37), (1, 37), (0, 37), (-1, 37), (1003, 37)])
    def test_a_wrong_count_is_refused(self, client: KafkaSocket, count: int, code: int) -> None:
        name = new_name()
        create(client, name, 2)
        assert grow(client, name, count).error_code == code
        assert partition_count(client, name) == 2

    def test_partitions_of_an_unknown_topic_are_refused(self, client: KafkaSocket) -> None:
        assert grow(client, new_name(), 2).error_code == 3

    def test_a_user_needs_permission_for_each_stream(self, tmp_path: Path) -> None:
        with BrokerProcess(tmp_path, settings=SETTINGS) as broker, KafkaSocket(address_of(broker)) as client:
            declare_super_stream(broker, "t", 2)
            permissions = {"configure": "^(t|u)$", "write": "^t(-0)?$", "read": "^t(-0)?$"}
            broker.api("PUT", "/api/permissions/%2F/guest", permissions)
            assert create(client, "u", 2).error_code == 29
            assert delete(client, "t") == 29
            assert grow(client, "t", 3).error_code == 29
            assert partition_count(client, "t") == 2
            assert [each[0] for each in latest(client, "t", [0, 1, 2])] == [0, 29, 3]

    def test_the_admin_client_of_kafka_python_creates_grows_and_deletes(self, admin: KafkaAdminClient) -> None:
        name = new_name()
        admin.create_topics([NewTopic(name, 2, 1)])
        admin.create_partitions({name: NewPartitions(6)})
        (topic,) = admin.describe_topics([name])
        assert len(topic["partitions"]) == 6
        admin.delete_topics([name])


def latest(client: KafkaSocket, name: str, indexes: list[int]) -> list[tuple[int, int]]:
    """Return error code and latest offset of partitions."""
    wanted = ListOffsetsRequest.ListOffsetsTopic
    partitions = [
        wanted.ListOffsetsPartition(partition_index=each, current_leader_epoch=-1, timestamp=-1) for each in indexes
    ]
    request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[wanted(name=name, partitions=partitions)])
    (topic,) = client.ask(request, 6).topics
    return [(each.error_code, each.offset) for each in topic.partitions]


def read_all(address: str, name: str, count: int, **options: Any) -> dict[int, list[bytes]]:
    """Return the values of all partitions of a topic, which has `count` records."""
    consumer = KafkaConsumer(
        name, bootstrap_servers=address, auto_offset_reset="earliest", consumer_timeout_ms=20_000, **options
    )
    found: dict[int, list[bytes]] = {}
    for record in consumer:
        found.setdefault(record.partition, []).append(record.value)
        if sum(map(len, found.values())) == count:
            break
    partitions = consumer.partitions_for_topic(name) or set()
    consumer.close()
    return {number: found.get(number, []) for number in sorted(partitions)}


class TestRecords:
    def test_records_of_both_protocols_with_one_key_are_in_one_partition(
        self, kafka_broker: BrokerProcess, kafka_address: str, client: KafkaSocket
    ) -> None:
        name = new_name()
        create(client, name, 7)
        keys = [f"key {number}" for number in range(60)] + ["", "é", "x" * 200]
        producer = KafkaProducer(bootstrap_servers=kafka_address)
        for key in keys:
            producer.send(name, key=key.encode(), value=key.encode())
        producer.close()
        with pika.BlockingConnection(pika.URLParameters(kafka_broker.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for key in keys:
                channel.basic_publish(name, key, key.encode(), mandatory=True)
        found = read_all(kafka_address, name, 2 * len(keys))
        for number, values in found.items():
            assert sorted(values) == sorted(
                key.encode() for key in keys for _ in range(2) if (murmur2(key.encode()) & 0x7FFFFFFF) % 7 == number
            )

    def test_a_direct_super_stream_routes_by_partition_number(
        self, kafka_broker: BrokerProcess, kafka_address: str
    ) -> None:
        name = new_name()
        declare_super_stream(kafka_broker, name, 3)
        with pika.BlockingConnection(pika.URLParameters(kafka_broker.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for number in range(3):
                channel.basic_publish(name, str(number), b"%d" % number, mandatory=True)
        assert read_all(kafka_address, name, 3) == {0: [b"0"], 1: [b"1"], 2: [b"2"]}

    def test_a_group_of_two_shares_the_partitions_and_resumes(self, kafka_address: str, client: KafkaSocket) -> None:
        name, group = new_name(), new_name()
        create(client, name, 4)
        producer = KafkaProducer(bootstrap_servers=kafka_address)
        for number in range(40):
            producer.send(name, b"%d" % number, partition=number % 4)
        producer.close()
        options: dict[str, Any] = {"group_id": group, "enable_auto_commit": False}
        consumer = KafkaConsumer(
            bootstrap_servers=kafka_address, auto_offset_reset="earliest", consumer_timeout_ms=20_000, **options
        )
        other = KafkaConsumer(bootstrap_servers=kafka_address, auto_offset_reset="earliest", **options)
        for each in (consumer, other):
            each.subscribe([name])
        poll_until(lambda: len(consumer.assignment()) == len(other.assignment()) == 2, consumer, other)
        assert consumer.assignment() | other.assignment() == {TopicPartition(name, number) for number in range(4)}
        for each in (consumer, other):
            each.close()
        admin = KafkaAdminClient(bootstrap_servers=kafka_address)
        assert read_all(kafka_address, name, 40, group_id=group + "2")[3] == [b"%d" % n for n in range(3, 40, 4)]
        offsets = admin.list_group_offsets(group + "2")
        admin.close()
        found = offsets.get(group + "2", offsets)
        assert {place.partition: value.offset for place, value in found.items()} == dict.fromkeys(range(4), 10)

    def test_offsets_of_a_partition_that_was_made_again_are_void(
        self, kafka_broker: BrokerProcess, kafka_address: str, client: KafkaSocket
    ) -> None:
        name, group = new_name(), new_name()
        create(client, name, 2)
        producer = KafkaProducer(bootstrap_servers=kafka_address)
        for number in (0, 1):
            producer.send(name, b"x", partition=number)
        producer.close()
        read_all(kafka_address, name, 2, group_id=group)
        kafka_broker.api("DELETE", f"/api/queues/%2F/{name}-1")
        declare_stream(kafka_broker, f"{name}-1")
        bind(kafka_broker, name, f"{name}-1", 1)
        consumer = KafkaConsumer(bootstrap_servers=kafka_address, group_id=group)
        assert consumer.committed(TopicPartition(name, 0)) == 1
        assert consumer.committed(TopicPartition(name, 1)) is None
        consumer.close()

    async def test_aiokafka_produces_and_consumes_all_partitions(self, kafka_address: str, client: KafkaSocket) -> None:
        name = new_name()
        create(client, name, 3)
        async with AIOKafkaProducer(bootstrap_servers=kafka_address) as producer:
            for number in range(30):
                sent = await producer.send_and_wait(name, b"%d" % number, key=b"k%d" % number)
                assert sent.partition == (murmur2(b"k%d" % number) & 0x7FFFFFFF) % 3
        async with AIOKafkaConsumer(name, bootstrap_servers=kafka_address, auto_offset_reset="earliest") as consumer:
            found = {(await asyncio.wait_for(consumer.getone(), 20)).value for _ in range(30)}
        assert found == {b"%d" % number for number in range(30)}


def test_a_request_creates_at_most_ten_thousand_partitions(client: KafkaSocket) -> None:
    name = new_name()
    topics = [
        CreateTopicsRequest.CreatableTopic(
            name=f"{name}-{number}", num_partitions=count, replication_factor=1, assignments=[], configs=[]
        )
        for number, count in enumerate([1000] * 10 + [1, 2_000_000_000])
    ]
    request = CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=True)
    assert [each.error_code for each in client.ask(request, 7).topics] == [0] * 10 + [42, 42]
    assert create(client, name, 2_000_000_000).error_code == 37


class FakeStream:
    """A stream without a log."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.id = uuid.uuid5(uuid.NAMESPACE_DNS, name).hex
        self.kind = "stream"


class TestSuperStreams:
    """The index of super streams in a vhost."""

    def test_several_streams_with_one_number_are_ordered_by_name(self) -> None:
        names, exchange = self.names_with("x")
        late, early = self.bound(names, exchange, "b", 0), self.bound(names, exchange, "a", 0)
        found = names.get("x")
        assert found is not None
        assert [each.name for each in found.partitions] == ["a"]
        names.binding_removed(early)
        assert [each.name for each in found.partitions] == ["b"]
        assert found.id is not None
        assert names.get_by_id(found.id) is found
        names.binding_removed(late)
        assert (found.partitions, found.id) == ((), None)
        assert not names.has_stream(late.destination)

    @pytest.mark.parametrize("order", [-1, 10_000, 1 << 40, True, "0", None])
    def test_invalid_numbers_are_ignored(self, order: Any) -> None:
        names, exchange = self.names_with("x")
        binding = self.bound(names, exchange, "a", order)
        found = names.get("x")
        assert found is not None
        assert found.partitions == ()
        names.binding_removed(binding)

    def test_ids_depend_on_the_name_and_the_first_stream(self) -> None:
        ids = set()
        for exchange_name, stream in (("x", "a"), ("x", "b"), ("y", "a")):
            names, exchange = self.names_with(exchange_name)
            self.bound(names, exchange, stream, 0)
            found = names.get(exchange_name)
            assert found is not None
            ids.add(found.id)
        assert len(ids) == 3

    @staticmethod
    def names_with(name: str) -> tuple[SuperStreams, Exchange]:
        names = SuperStreams()
        exchange = Exchange(name, "direct", None, True, False, False, {"x-super-stream": True})
        names.exchange_added(exchange)
        return names, exchange

    @staticmethod
    def bound(names: SuperStreams, exchange: Exchange, stream: str, order: Any) -> Any:
        binding: Any = Binding.__new__(Binding)
        binding.source, binding.destination = exchange, FakeStream(stream)
        binding.arguments, binding.key = {ORDER: order}, BindingKey(exchange.name, "queue", stream, str(order), b"")
        names.binding_added(binding)
        return binding
