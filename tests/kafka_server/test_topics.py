"""Streams as topics: Metadata, CreateTopics, DeleteTopics, DescribeConfigs and DescribeCluster."""

from __future__ import annotations

import asyncio
import json
import secrets
import struct
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock
from urllib.parse import quote

import pika
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioNewTopic
from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
from aiokafka.admin.config_resource import ConfigResourceType as AioConfigResourceType
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewTopic
from kafka.protocol.admin import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
)
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest
from kafka_socket import KafkaSocket

from amqpd.broker.consumer import LogNotOpen
from amqpd.errors import ResourceError
from amqpd.kafka_server.topics import QUEUES_PER_STEP, names_of_topics, open_queue
from amqpd.testing import BrokerProcess

NewTopicFields = CreateTopicsRequest.CreatableTopic
NOT_ASKED = None
EVERY_METADATA = range(13)


@pytest.fixture
def client(kafka_address: str) -> Iterator[KafkaSocket]:
    with KafkaSocket(kafka_address) as socket:
        yield socket


@pytest.fixture
def topic(kafka_broker: BrokerProcess) -> str:
    """A stream of this test."""
    name = new_name()
    declare(kafka_broker, name)
    return name


def new_name() -> str:
    return f"t-{secrets.token_hex(6)}"


def declare(broker: BrokerProcess, name: str, arguments: dict[str, Any] | None = None, kind: str = "stream") -> None:
    path = f"/api/queues/%2F/{quote(name, safe='')}"
    body: dict[str, Any] = {"durable": False, "auto_delete": True}
    if kind != "transient":
        body = {"durable": True, "arguments": {"x-queue-type": kind, **(arguments or {})}}
    broker.api("PUT", path, body)


def arguments_of(broker: BrokerProcess, name: str) -> dict[str, Any]:
    answer: Any = broker.api("GET", f"/api/queues/%2F/{name}")
    return dict(answer["arguments"])


def queue_names(broker: BrokerProcess) -> set[str]:
    answer: Any = broker.api("GET", "/api/queues/%2F")
    return {each["name"] for each in answer}


def creation(*topics: Any, validate_only: bool = False) -> Any:
    return CreateTopicsRequest(topics=list(topics), timeout_ms=1000, validate_only=validate_only)


def new_topic(name: str, configs: dict[str, str | None] | None = None, **fields: Any) -> Any:
    pairs = [NewTopicFields.CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()]
    values = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": pairs, **fields}
    return NewTopicFields(name=name, **values)


def created(client: KafkaSocket, topic: Any, version: int = 7, validate_only: bool = False) -> Any:
    """Ask for one topic, and return its result."""
    (result,) = client.ask(creation(topic, validate_only=validate_only), version).topics
    return result


def metadata(client: KafkaSocket, names: list[str] | None, version: int = 12, operations: bool = False) -> Any:
    topics = None
    if names is not None:
        topics = [MetadataRequest.MetadataRequestTopic(topic_id=None, name=name) for name in names]
    request = MetadataRequest(
        topics=topics,
        allow_auto_topic_creation=True,
        include_cluster_authorized_operations=operations,
        include_topic_authorized_operations=operations,
    )
    return client.ask(request, version)


def described(client: KafkaSocket, name: str, kind: int = 2, version: int = 4, keys: list[str] | None = None) -> Any:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True)
    (result,) = client.ask(request, version).results
    return result


def values(result: Any) -> dict[str, str]:
    assert result.error_code == 0, result.error_message
    return {each.name: each.value for each in result.configs}


class TestMetadata:
    @pytest.mark.parametrize("version", EVERY_METADATA)
    def test_a_stream_is_a_topic_with_one_partition(self, client: KafkaSocket, topic: str, version: int) -> None:
        answer = metadata(client, [topic], version)
        (found,) = answer.topics
        assert (found.error_code, found.name, found.is_internal) == (0, topic, False)
        (partition,) = found.partitions
        assert (partition.error_code, partition.partition_index, partition.leader_id) == (0, 0, 0)
        assert (partition.replica_nodes, partition.isr_nodes) == ([0], [0])
        assert partition.leader_epoch == -1
        if version >= 10:
            assert isinstance(found.topic_id, uuid.UUID)

    @pytest.mark.parametrize("version", EVERY_METADATA)
    def test_an_unknown_name_is_error_3_and_nothing_is_created(
        self, kafka_broker: BrokerProcess, client: KafkaSocket, version: int
    ) -> None:
        name = new_name()
        (found,) = metadata(client, [name], version).topics
        assert (found.error_code, found.name, found.partitions) == (3, name, [])
        assert name not in queue_names(kafka_broker)

    def test_metadata_for_null_returns_every_durable_queue_with_a_legal_name(
        self, kafka_broker: BrokerProcess, client: KafkaSocket
    ) -> None:
        legal, illegal, classic, transient = new_name(), f"{new_name()} with spaces", new_name(), new_name()
        declare(kafka_broker, legal)
        declare(kafka_broker, illegal)
        declare(kafka_broker, classic, kind="classic")
        declare(kafka_broker, transient, kind="transient")
        for version in EVERY_METADATA:
            names = {each.name for each in metadata(client, None if version else [], version).topics}
            assert {legal, classic} <= names
            assert not {illegal, transient} & names

    @pytest.mark.parametrize("version", EVERY_METADATA[1:])
    def test_metadata_for_an_empty_list_returns_no_topic(self, client: KafkaSocket, topic: str, version: int) -> None:
        assert metadata(client, [], version).topics == []

    @pytest.mark.parametrize("version", range(5))
    def test_versions_that_older_clients_need_are_listed(self, client: KafkaSocket, version: int) -> None:
        """kafka-python 2.0 sends Metadata 0; librdkafka 2.10 compresses only if there is Produce 0."""
        ranges = {each.api_key: each.min_version for each in client.ask(ApiVersionsRequest(), version).api_keys}
        assert (ranges[0], ranges[3]) == (0, 0)

    @pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "x" * 250])
    def test_an_illegal_name_is_error_17(self, client: KafkaSocket, name: str) -> None:
        (found,) = metadata(client, [name]).topics
        assert (found.error_code, found.name) == (17, name)

    def test_metadata_returns_the_address_to_which_the_client_has_connected(
        self, client: KafkaSocket, kafka_address: str
    ) -> None:
        for version in EVERY_METADATA:
            answer = metadata(client, [], version)
            (broker,) = answer.brokers
            assert (broker.node_id, f"{broker.host}:{broker.port}", broker.rack) == (0, kafka_address, None)
            assert answer.controller_id == (0 if version else -1)
            if version >= 2:
                assert answer.cluster_id.startswith("rabbitmq-cluster-id-")

    def test_a_topic_is_found_by_its_id(self, client: KafkaSocket, topic: str) -> None:
        (found,) = metadata(client, [topic]).topics
        wanted = [MetadataRequest.MetadataRequestTopic(topic_id=found.topic_id, name=None)]
        (again,) = client.ask(MetadataRequest(topics=wanted), 12).topics
        assert (again.error_code, again.name, again.topic_id) == (0, topic, found.topic_id)

    @pytest.mark.parametrize("topic_id", [None, uuid.uuid4()])
    def test_an_unknown_id_is_error_100(self, client: KafkaSocket, topic_id: uuid.UUID | None) -> None:
        wanted = [MetadataRequest.MetadataRequestTopic(topic_id=topic_id, name=None)]
        (found,) = client.ask(MetadataRequest(topics=wanted), 12).topics
        assert (found.error_code, found.name, found.topic_id) == (100, None, topic_id)

    @pytest.mark.parametrize("version", [8, 9, 10, 11, 12])
    def test_authorized_operations_are_returned_only_on_request(
        self, client: KafkaSocket, topic: str, version: int
    ) -> None:
        answer = metadata(client, [topic, "missing"], version, operations=True)
        assert answer.topics[0].authorized_operations == {3, 4, 5, 6, 7, 8, 10, 11}
        assert answer.topics[1].authorized_operations is NOT_ASKED
        if version <= 10:
            assert answer.authorized_operations == {5, 8, 10, 12}
        assert metadata(client, [topic], version).topics[0].authorized_operations is NOT_ASKED

    def test_too_many_names_close_the_connection(self, client: KafkaSocket) -> None:
        names = b"".join(struct.pack(">h5s", 5, b"%05d" % number) for number in range(10_001))
        client.send_frame(3, 1, struct.pack(">i", 10_001) + names)
        assert client.is_closed()

    @pytest.mark.parametrize(
        ("key", "version", "body"),
        [
            (3, 1, b"\x7f\xff\xff\xff"),
            (3, 1, b"\x00\x00\x00\x02\x7f\xffabc"),
            (19, 2, b"\x7f\xff\xff\xff"),
            (20, 1, b"\x7f\xff\xff\xff"),
            (32, 1, b"\x7f\xff\xff\xff\x02"),
            (60, 0, b""),
        ],
    )
    def test_bytes_that_end_too_early_close_the_connection(
        self, client: KafkaSocket, key: int, version: int, body: bytes
    ) -> None:
        client.send_frame(key, version, body, b"\0" if key == 60 else b"")
        assert client.is_closed()

    @pytest.mark.parametrize(
        ("key", "version", "body"),
        [
            (3, 1, b"\x00\x00\x00\x01\xff\xff"),  # a null name
            (19, 2, b"\x00\x00\x00\x01\xff\xff\x00\x00\x00\x01\x00\x01" + 2 * b"\xff\xff\xff\xff" + bytes(5)),
            (19, 2, b"\xff\xff\xff\xff" + bytes(5)),  # null topics
            (20, 1, b"\x00\x00\x00\x01\xff\xff" + bytes(4)),
            (20, 1, b"\xff\xff\xff\xff" + bytes(4)),
            (32, 1, b"\x00\x00\x00\x01\x02\xff\xff\xff\xff\xff\xff\x00"),
            (32, 1, b"\xff\xff\xff\xff\x00"),
        ],
    )
    def test_a_null_where_none_is_allowed_closes_the_connection(
        self, client: KafkaSocket, key: int, version: int, body: bytes
    ) -> None:
        client.send_frame(key, version, body)
        assert client.is_closed()

    def test_a_request_above_a_mebibyte_closes_the_connection(self, client: KafkaSocket) -> None:
        metadata(client, [])  # the limit before the login is lower
        client.send_frame(3, 1, struct.pack(">i", 1 << 20) + bytes(1 << 20))
        assert client.is_closed()


class TestPermissions:
    @pytest.fixture
    def limited(self, kafka_broker: BrokerProcess, tmp_path: Path) -> Iterator[KafkaSocket]:
        """A client of a broker whose anonymous user may configure c-*, write w-* and read r-* only."""
        settings = {"kafka.port": 0, "kafka.host": "127.0.0.1", "kafka.anonymous-user": "limited"}
        with BrokerProcess(tmp_path, settings=settings) as broker:
            broker.api("PUT", "/api/users/limited", {"password": "x", "tags": ""})
            rights = {"configure": "^c-", "write": "^w-", "read": "^r-"}
            broker.api("PUT", "/api/permissions/%2F/limited", rights)
            for name in ("c-old", "w-old", "r-old", "x-old"):
                declare(broker, name)
            assert broker.ready is not None
            host, port = broker.ready.listeners["kafka"]
            with KafkaSocket(f"{host}:{port}") as client:
                yield client

    def test_a_topic_without_permission_is_hidden_and_refused(self, limited: KafkaSocket) -> None:
        assert {each.name for each in metadata(limited, None).topics} == {"w-old", "r-old"}
        named = metadata(limited, ["w-old", "r-old", "x-old", "x-missing"], operations=True).topics
        assert [(each.error_code, each.authorized_operations) for each in named] == [
            (0, {4, 8, 10}),
            (0, {3, 8, 10}),
            (29, None),
            (29, None),
        ]
        (by_id,) = limited.ask(
            MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(topic_id=named[0].topic_id, name=None)]), 12
        ).topics
        assert (by_id.error_code, by_id.name) == (0, "w-old")
        assert [created(limited, new_topic(name)).error_code for name in ("c-new", "w-new", "x-old")] == [0, 29, 29]
        deletion = DeleteTopicsRequest(topic_names=["c-new", "r-old", "x-missing"], timeout_ms=1000)
        assert [each.error_code for each in limited.ask(deletion, 5).responses] == [0, 29, 29]
        codes = [described(limited, name).error_code for name in ("c-old", "w-old", "r-old", "x-old")]
        assert codes == [0, 0, 0, 29]


class TestCreateTopics:
    @pytest.mark.parametrize("version", range(2, 8))
    def test_a_topic_is_a_durable_stream(self, kafka_broker: BrokerProcess, client: KafkaSocket, version: int) -> None:
        name = new_name()
        result = created(client, new_topic(name), version)
        assert (result.error_code, result.error_message, result.name) == (0, None, name)
        queue: Any = kafka_broker.api("GET", f"/api/queues/%2F/{name}")
        assert (queue["type"], queue["durable"]) == ("stream", True)
        (found,) = metadata(client, [name]).topics
        assert found.error_code == 0
        if version >= 7:
            assert result.topic_id == found.topic_id
        if version >= 5:
            assert (result.num_partitions, result.replication_factor) == (1, 1)
            assert {each.name: each.value for each in result.configs}["cleanup.policy"] == "delete"

    def test_configs_are_arguments_and_are_described(self, kafka_broker: BrokerProcess, client: KafkaSocket) -> None:
        name = new_name()
        configs: dict[str, str | None] = {
            "retention.ms": "604800000",
            "retention.bytes": "1000000000",
            "segment.bytes": "1048576",
            "cleanup.policy": "compact,delete",
            "compression.type": "zstd",
            "min.insync.replicas": "1",
            "message.timestamp.type": "CreateTime",
        }
        assert created(client, new_topic(name, configs)).error_code == 0
        assert arguments_of(kafka_broker, name) == {
            "x-queue-type": "stream",
            "x-max-age": "7D",
            "x-max-length-bytes": 1_000_000_000,
            "x-stream-max-segment-size-bytes": 1_048_576,
            "x-compact": True,
            "x-compression": "zstd",
        }
        result = described(client, name)
        assert values(result).items() >= configs.items()
        assert {each.name for each in result.configs if each.config_source == 1} == set(configs) - {
            "min.insync.replicas",
            "message.timestamp.type",
        }

    @pytest.mark.parametrize(
        ("configs", "arguments"),
        [
            ({"retention.ms": "-1", "retention.bytes": "-1"}, {}),
            ({"retention.ms": "1000"}, {"x-max-age": "1s"}),
            ({"retention.ms": "5400000"}, {"x-max-age": "90m"}),
            ({"retention.bytes": "0"}, {"x-max-length-bytes": 0}),
            ({"cleanup.policy": "delete", "compression.type": "producer"}, {}),
            ({"cleanup.policy": "compact"}, {"x-compact": True}),
            ({"cleanup.policy": "delete, compact", "retention.ms": "3600000"}, {"x-compact": True, "x-max-age": "1h"}),
            ({"compression.type": "uncompressed"}, {"x-compression": "none"}),
        ],
    )
    def test_each_config_is_kept(
        self,
        kafka_broker: BrokerProcess,
        client: KafkaSocket,
        configs: dict[str, str | None],
        arguments: dict[str, Any],
    ) -> None:
        name = new_name()
        assert created(client, new_topic(name, configs)).error_code == 0
        assert arguments_of(kafka_broker, name) == {"x-queue-type": "stream", **arguments}
        expected = {**configs}
        if expected.get("cleanup.policy") == "delete, compact":
            expected["cleanup.policy"] = "compact,delete"
        assert values(described(client, name)).items() >= expected.items()

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("retention.ms", "0"),
            ("retention.ms", "-2"),
            ("retention.ms", "a week"),
            ("retention.ms", "9" * 5000),
            ("retention.ms", "²"),
            ("retention.bytes", str(1 << 63)),
            ("retention.bytes", "--1"),
            ("segment.bytes", "1000"),
            ("segment.bytes", str(1 << 31)),
            ("cleanup.policy", "sometimes"),
            ("cleanup.policy", ""),
            ("compression.type", "brotli"),
            ("compression.type", "none"),
            ("min.insync.replicas", "2"),
            ("message.timestamp.type", "LogAppendTime"),
            ("segment.ms", "1000"),
            ("max.message.bytes", "1000"),
            ("no.such.config", "1"),
            ("retention.ms", None),
        ],
    )
    def test_a_config_that_cannot_be_kept_is_error_40_with_its_name(
        self, kafka_broker: BrokerProcess, client: KafkaSocket, name: str, value: str | None
    ) -> None:
        topic = new_name()
        result = created(client, new_topic(topic, {name: value}))
        assert result.error_code == 40
        assert name in result.error_message
        assert topic not in queue_names(kafka_broker)

    def test_limits_with_compaction_alone_are_error_40(self, client: KafkaSocket) -> None:
        result = created(client, new_topic(new_name(), {"cleanup.policy": "compact", "retention.ms": "1000"}))
        assert result.error_code == 40
        assert "compact,delete" in result.error_message

    def test_a_config_given_twice_is_error_40(self, client: KafkaSocket) -> None:
        pair = NewTopicFields.CreatableTopicConfig(name="retention.ms", value="1000")
        topic = NewTopicFields(
            name=new_name(), num_partitions=1, replication_factor=1, assignments=[], configs=[pair, pair]
        )
        assert created(client, topic).error_code == 40

    @pytest.mark.parametrize(("partitions", "replicas"), [(-1, -1), (1, -1), (-1, 1)])
    def test_the_defaults_are_one_partition_and_replica(
        self, client: KafkaSocket, partitions: int, replicas: int
    ) -> None:
        topic = new_topic(new_name(), num_partitions=partitions, replication_factor=replicas)
        assert created(client, topic).error_code == 0

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"num_partitions": 1001}, 37),
            ({"num_partitions": 0}, 37),
            ({"replication_factor": 3}, 38),
            ({"replication_factor": 0}, 38),
            ({"assignments": [NewTopicFields.CreatableReplicaAssignment(partition_index=0, broker_ids=[0])]}, 39),
        ],
    )
    def test_a_wrong_number_of_partitions_or_replicas_is_refused(
        self, kafka_broker: BrokerProcess, client: KafkaSocket, fields: dict[str, Any], code: int
    ) -> None:
        name = new_name()
        result = created(client, new_topic(name, **fields))
        assert result.error_code == code
        assert result.error_message
        assert name not in queue_names(kafka_broker)

    @pytest.mark.parametrize("name", ["", ".", "a/b", "x" * 250, "amq.audit-of-mine"])
    def test_a_name_that_is_illegal_or_reserved_is_error_17(self, client: KafkaSocket, name: str) -> None:
        assert created(client, new_topic(name)).error_code == 17

    @pytest.mark.parametrize("kind", ["stream", "classic", "quorum"])
    def test_a_name_in_use_is_error_36(self, kafka_broker: BrokerProcess, client: KafkaSocket, kind: str) -> None:
        name = new_name()
        declare(kafka_broker, name, kind=kind)
        for validate_only in (True, False):
            assert created(client, new_topic(name), validate_only=validate_only).error_code == 36

    def test_validate_only_creates_nothing(self, kafka_broker: BrokerProcess, client: KafkaSocket) -> None:
        name = new_name()
        result = created(client, new_topic(name, {"retention.ms": "60000"}), validate_only=True)
        assert (result.error_code, result.topic_id) == (0, None)
        assert {each.name: each.value for each in result.configs}["retention.ms"] == "60000"
        assert name not in queue_names(kafka_broker)
        assert created(client, new_topic(name, {"retention.ms": "0"}), validate_only=True).error_code == 40

    def test_each_topic_of_a_request_has_its_own_result(self, client: KafkaSocket, topic: str) -> None:
        good, twice = new_name(), new_name()
        wanted = [new_topic(good), new_topic(topic), new_topic(twice), new_topic("a b"), new_topic(twice)]
        results = client.ask(creation(*wanted), 7).topics
        assert [(each.name, each.error_code) for each in results] == [(good, 0), (topic, 36), (twice, 42), ("a b", 17)]

    def test_hundreds_of_topics_are_created_and_deleted_in_one_request(self, client: KafkaSocket) -> None:
        names = [new_name() for _ in range(300)]
        results = client.ask(creation(*map(new_topic, names)), 7).topics
        assert [(each.name, each.error_code) for each in results] == [(name, 0) for name in names]
        resources = [
            DescribeConfigsRequest.DescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=None)
            for name in names
        ]
        configs = client.ask(DescribeConfigsRequest(resources=resources), 4).results
        assert [each.resource_name for each in configs] == names
        responses = client.ask(DeleteTopicsRequest(topic_names=names, timeout_ms=1000), 5).responses
        assert {each.error_code for each in responses} == {0}

    def test_two_clients_create_one_topic_once(self, kafka_address: str) -> None:
        name = new_name()
        with KafkaSocket(kafka_address) as one, KafkaSocket(kafka_address) as other:
            first, second = creation(new_topic(name)), creation(new_topic(name))
            one.send(first, 7)
            other.send(second, 7)
            frames = [one.receive(), other.receive()]
        codes = {KafkaSocket.decode(first, 7, frame).topics[0].error_code for frame in frames}
        assert codes == {0, 36}

    def test_a_topic_above_the_queue_limit_of_the_vhost_is_refused(
        self, kafka_broker: BrokerProcess, client: KafkaSocket
    ) -> None:
        count = len(queue_names(kafka_broker))
        kafka_broker.api("PUT", "/api/vhost-limits/%2F/max-queues", {"value": count + 1})
        try:
            names = [new_name(), new_name()]
            for validate_only in (True, False):
                results = client.ask(creation(*map(new_topic, names), validate_only=validate_only), 7).topics
                assert [each.error_code for each in results] == [0, 44]
                assert "limit" in results[1].error_message
        finally:
            kafka_broker.api("DELETE", "/api/vhost-limits/%2F/max-queues")

    def test_other_clients_create_topics_after_one_has_disconnected_during_creation(
        self, kafka_address: str, client: KafkaSocket
    ) -> None:
        with KafkaSocket(kafka_address) as leaving:
            leaving.send(creation(*(new_topic(new_name()) for _ in range(200))), 7)
        assert created(client, new_topic(new_name())).error_code == 0

    def test_more_than_a_thousand_topics_close_the_connection(self, client: KafkaSocket) -> None:
        client.send(creation(*(new_topic(f"n{number}") for number in range(1001))), 7)
        assert client.is_closed()


class TestDeleteTopics:
    @pytest.mark.parametrize("version", range(1, 7))
    def test_a_topic_is_deleted_with_its_queue(
        self, kafka_broker: BrokerProcess, client: KafkaSocket, topic: str, version: int
    ) -> None:
        states = [DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=None) for name in (topic, "missing")]
        request = DeleteTopicsRequest(topics=states, topic_names=[topic, "missing"], timeout_ms=1000)
        results = client.ask(request, version).responses
        assert [(each.name, each.error_code) for each in results] == [(topic, 0), ("missing", 3)]
        assert topic not in queue_names(kafka_broker)
        assert metadata(client, [topic]).topics[0].error_code == 3

    def test_a_topic_is_deleted_by_its_id(self, client: KafkaSocket, topic: str) -> None:
        topic_id = metadata(client, [topic]).topics[0].topic_id
        states = [DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=each) for each in (topic_id, uuid.uuid4())]
        first, second = client.ask(DeleteTopicsRequest(topics=states, timeout_ms=1000), 6).responses
        assert (first.error_code, first.name, first.topic_id) == (0, topic, topic_id)
        assert (second.error_code, second.name) == (100, None)

    def test_name_and_id_together_are_error_42(self, client: KafkaSocket, topic: str) -> None:
        states = [DeleteTopicsRequest.DeleteTopicState(name=topic, topic_id=uuid.uuid4())]
        (result,) = client.ask(DeleteTopicsRequest(topics=states, timeout_ms=1000), 6).responses
        assert result.error_code == 42

    def test_transient_queues_are_unknown_topics(self, kafka_broker: BrokerProcess, client: KafkaSocket) -> None:
        name = new_name()
        declare(kafka_broker, name, kind="transient")
        (result,) = client.ask(DeleteTopicsRequest(topic_names=[name], timeout_ms=1000), 5).responses
        assert result.error_code == 3
        assert name in queue_names(kafka_broker)

    def test_amqp_consumers_are_cancelled(self, kafka_broker: BrokerProcess, client: KafkaSocket, topic: str) -> None:
        with pika.BlockingConnection(pika.URLParameters(kafka_broker.url)) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=10)
            channel.basic_consume(topic, lambda *_: None)
            cancelled: list[Any] = []
            channel.add_on_cancel_callback(cancelled.append)
            client.ask(DeleteTopicsRequest(topic_names=[topic], timeout_ms=1000), 5)
            while not cancelled:
                connection.process_data_events(1)

    def test_a_name_can_be_used_again_at_once(self, client: KafkaSocket) -> None:
        name = new_name()
        first = created(client, new_topic(name)).topic_id
        for _ in range(3):
            client.send(DeleteTopicsRequest(topic_names=[name], timeout_ms=1000), 5)
            client.send(creation(new_topic(name)), 7)
            client.receive()
            (again,) = KafkaSocket.decode(creation(), 7, client.receive()).topics
            assert again.error_code == 0
            assert again.topic_id != first

    @pytest.mark.slow
    def test_topics_survive_a_restart_with_their_ids(self, tmp_path: Path) -> None:
        with BrokerProcess(tmp_path, settings={"kafka.port": 0, "kafka.host": "127.0.0.1"}) as broker:
            ids = []
            for _ in range(2):
                assert broker.ready is not None
                host, port = broker.ready.listeners["kafka"]
                with KafkaSocket(f"{host}:{port}") as client:
                    if not ids:
                        created(client, new_topic("kept"))
                        created(client, new_topic("gone"))
                        client.ask(DeleteTopicsRequest(topic_names=["gone"], timeout_ms=1000), 5)
                    (found,) = metadata(client, None).topics
                    ids.append((found.name, found.topic_id))
                    if len(ids) == 1:
                        broker.kill()
                        broker.start()
            assert ids[0] == ids[1]


class TestDescribeConfigs:
    @pytest.mark.parametrize("version", range(1, 5))
    def test_a_stream_without_arguments_has_the_default_configs(
        self, client: KafkaSocket, topic: str, version: int
    ) -> None:
        result = described(client, topic, version=version)
        assert values(result) == {
            "cleanup.policy": "delete",
            "compression.type": "producer",
            "retention.bytes": "-1",
            "retention.ms": "-1",
            "segment.bytes": str(64 << 20),
            "delete.retention.ms": "86400000",
            "file.delete.delay.ms": "60000",
            "message.timestamp.type": "CreateTime",
            "min.cleanable.dirty.ratio": "0.5",
            "min.compaction.lag.ms": "0",
            "min.insync.replicas": "1",
            "preallocate": "false",
            "remote.storage.enable": "false",
            "unclean.leader.election.enable": "false",
        }
        assert {each.config_source for each in result.configs} == {5}
        if version >= 3:
            assert all(each.documentation for each in result.configs)

    def test_a_policy_is_shown_as_a_default_of_the_broker(
        self, kafka_broker: BrokerProcess, client: KafkaSocket, topic: str
    ) -> None:
        definition = {"max-age": "1h", "cleanup-policy": "compact"}
        path = f"/api/policies/%2F/{topic}"
        kafka_broker.api("PUT", path, {"pattern": f"^{topic}$", "apply-to": "streams", "definition": definition})
        try:
            result = described(client, topic, keys=["retention.ms", "cleanup.policy"])
        finally:
            kafka_broker.api("DELETE", path)
        assert values(result) == {"retention.ms": "3600000", "cleanup.policy": "compact"}
        assert {each.config_source for each in result.configs} == {3}
        by_name = {each.name: each for each in result.configs}
        assert [(each.value, each.source) for each in by_name["retention.ms"].synonyms] == [("3600000", 3), ("-1", 5)]

    def test_configs_of_the_broker_are_described(self, client: KafkaSocket) -> None:
        for name in ("0", ""):
            assert values(described(client, name, kind=4))["auto.create.topics.enable"] == "false"

    @pytest.mark.parametrize(("name", "kind", "code"), [("1", 4, 42), ("x", 8, 42), ("x", 0, 42), ("missing", 2, 3)])
    def test_configs_of_other_resources_are_refused(self, client: KafkaSocket, name: str, kind: int, code: int) -> None:
        result = described(client, name, kind=kind)
        assert (result.error_code, result.resource_name, result.configs) == (code, name, [])
        assert result.error_message


class TestDescribeCluster:
    @pytest.mark.parametrize("version", [0, 1])
    def test_there_is_one_broker(self, client: KafkaSocket, kafka_address: str, version: int) -> None:
        answer = client.ask(DescribeClusterRequest(include_cluster_authorized_operations=True), version)
        (broker,) = answer.brokers
        assert (answer.error_code, answer.controller_id, broker.broker_id) == (0, 0, 0)
        assert f"{broker.host}:{broker.port}" == kafka_address
        assert answer.cluster_id == metadata(client, []).cluster_id
        assert answer.authorized_operations == {5, 8, 10, 12}

    def test_a_request_for_controllers_is_error_115(self, client: KafkaSocket) -> None:
        answer = client.ask(DescribeClusterRequest(endpoint_type=2), 1)
        assert (answer.error_code, answer.endpoint_type, answer.brokers) == (115, 2, [])


class TestAdvertised:
    @pytest.mark.parametrize(
        ("advertised", "host", "port"), [("kafka.example.com:9092", "kafka.example.com", 9092), ("[::1]:1", "::1", 1)]
    )
    def test_clients_get_the_advertised_address(self, tmp_path: Path, advertised: str, host: str, port: int) -> None:
        settings = {"kafka.port": 0, "kafka.host": "127.0.0.1", "kafka.advertised": advertised}
        with BrokerProcess(tmp_path, settings=settings) as broker:
            assert broker.ready is not None
            address = broker.ready.listeners["kafka"]
            with KafkaSocket(f"{address[0]}:{address[1]}") as client:
                (found,) = metadata(client, []).brokers
        assert (found.host, found.port) == (host, port)


class TestKafkaPython:
    def test_the_admin_client_creates_describes_and_deletes_a_topic(
        self, kafka_broker: BrokerProcess, kafka_address: str
    ) -> None:
        name = new_name()
        admin = KafkaAdminClient(bootstrap_servers=kafka_address)
        try:
            admin.create_topics([NewTopic(name, 1, 1, topic_configs={"retention.ms": "3600000"})])
            assert name in admin.list_topics()
            (found,) = admin.describe_topics([name])
            assert found["error_code"] == 0
            configs = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
            assert "3600000" in json.dumps(configs, default=str)
            assert admin.describe_cluster()["brokers"]
            admin.delete_topics([name])
            assert name not in admin.list_topics()
        finally:
            admin.close()
        assert name not in queue_names(kafka_broker)


class TestAiokafka:
    def test_the_admin_client_creates_describes_and_deletes_a_topic(
        self, kafka_broker: BrokerProcess, kafka_address: str
    ) -> None:
        name = new_name()

        async def use() -> None:
            admin = AIOKafkaAdminClient(bootstrap_servers=kafka_address)
            await admin.start()
            try:
                await admin.create_topics([AioNewTopic(name, 1, 1, topic_configs={"retention.ms": "3600000"})])
                assert name in await admin.list_topics()
                (found,) = await admin.describe_topics([name])
                assert (found["error_code"], len(found["partitions"])) == (0, 1)
                configs = await admin.describe_configs([AioConfigResource(AioConfigResourceType.TOPIC, name)])
                assert "3600000" in str(configs)
                assert (await admin.describe_cluster())["brokers"]
                await admin.delete_topics([name])
                assert name not in await admin.list_topics()
            finally:
                await admin.close()

        asyncio.run(use())
        assert name not in queue_names(kafka_broker)


class FakeQueue:
    """A queue whose log is opened by `open`."""

    def __init__(self, is_open: bool = False) -> None:
        self.deleted = False
        self.error: ResourceError | None = None
        self.is_open = is_open
        self.waiting: list[Callable[[], object]] = []

    def prepare(self) -> None:
        if self.error is not None:
            raise self.error
        if not self.is_open:
            raise LogNotOpen([])

    def when_open(self, done: Callable[[], object]) -> None:
        self.waiting.append(done)

    def open(self, is_open: bool = True) -> None:
        self.is_open = is_open
        waiting, self.waiting = self.waiting, []
        for done in waiting:
            done()


class TestOpenTopic:
    @staticmethod
    def opened(queue: Any) -> list[bool]:
        results: list[bool] = []
        open_queue(queue, results.append)
        return results

    def test_an_open_log_calls_back_at_once(self) -> None:
        assert self.opened(FakeQueue(is_open=True)) == [True]

    def test_a_log_that_is_being_opened_calls_back_later(self) -> None:
        queue = FakeQueue()
        results = self.opened(queue)
        queue.open(is_open=False)  # another caller's opening was over, and this one begins again
        assert results == []
        queue.open()
        assert results == [True]

    def test_a_log_that_cannot_be_opened_calls_back_with_false(self) -> None:
        queue = FakeQueue()
        results = self.opened(queue)
        queue.error = ResourceError("the disk")
        queue.open()
        assert results == [False]

    def test_a_stream_that_is_deleted_meanwhile_calls_back_with_false(self) -> None:
        queue = FakeQueue()
        results = self.opened(queue)
        queue.deleted = True
        queue.open()
        assert results == [False]
        assert self.opened(queue) == [False]


def test_the_topics_of_a_vhost_are_listed_in_steps() -> None:
    """A vhost has 50,000 queues: a list of their names takes 80 ms."""
    queues = {str(n): MagicMock(kind="classic", durable=True, exclusive_owner=None, arguments={}) for n in range(640)}
    for name, queue in queues.items():
        queue.name = name
    vhost = MagicMock(streams={}, work_queues=queues)
    vhost.super_streams.all.return_value = []
    steps = names_of_topics(vhost)
    next(steps)
    del queues["639"]  # while the steps are done
    assert sum(1 for _ in steps) >= 640 // QUEUES_PER_STEP - 1
