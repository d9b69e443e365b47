"""AlterConfigs and IncrementalAlterConfigs of topics."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kafka.protocol.admin import (
    AlterConfigsRequest,
    CreateTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from kafka_socket import KafkaSocket

from amqpd.testing import BrokerProcess

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
TOPIC_SOURCE, POLICY_SOURCE, DEFAULT_SOURCE = 1, 3, 5


@pytest.fixture
def client(kafka_address: str) -> Iterator[KafkaSocket]:
    with KafkaSocket(kafka_address) as socket:
        yield socket


@pytest.fixture
def topic(client: KafkaSocket) -> str:
    """A topic with two partitions."""
    name = f"c-{secrets.token_hex(6)}"
    create(client, name)
    return name


def address_of(broker: BrokerProcess) -> str:
    assert broker.ready is not None
    host, port = broker.ready.listeners["kafka"]
    return f"{host}:{port}"


def create(client: KafkaSocket, name: str, count: int = 2) -> None:
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=count, replication_factor=1, assignments=[], configs=[]
    )
    (result,) = client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000, validate_only=False), 7).topics
    assert result.error_code == 0, result.error_message


def alter(client: KafkaSocket, name: str, configs: dict[str, str | None], version: int = 2, **fields: Any) -> Any:
    """Replace all configs."""
    resource = AlterConfigsRequest.AlterConfigsResource
    pairs = [resource.AlterableConfig(name=key, value=value) for key, value in configs.items()]
    asked = resource(resource_type=fields.pop("kind", 2), resource_name=name, configs=pairs)
    request = AlterConfigsRequest(resources=[asked], **{"validate_only": False, **fields})
    (result,) = client.ask(request, version).responses
    return result


def change(
    client: KafkaSocket, name: str, *changes: tuple[str, int, str | None], version: int = 1, kind: int = 2
) -> Any:
    """Change single configs: name, operation, value."""
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    configs = [resource.AlterableConfig(name=key, config_operation=how, value=value) for key, how, value in changes]
    asked = resource(resource_type=kind, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[asked], validate_only=False)
    (result,) = client.ask(request, version).responses
    return result


def described(client: KafkaSocket, name: str) -> dict[str, tuple[str, int]]:
    """Return value and source of each config."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=2, resource_name=name, configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=False, include_documentation=False)
    (result,) = client.ask(request, 4).results
    assert result.error_code == 0
    return {each.name: (each.value, each.config_source) for each in result.configs}


def arguments_of(broker: BrokerProcess, name: str) -> dict[str, Any]:
    answer: Any = broker.api("GET", f"/api/queues/%2F/{name}")
    return dict(answer["arguments"])


@pytest.mark.parametrize("version", [0, 1])
def test_a_set_config_is_an_argument_of_each_stream(
    kafka_broker: BrokerProcess, client: KafkaSocket, topic: str, version: int
) -> None:
    result = change(client, topic, ("retention.ms", SET, "3600000"), ("segment.bytes", SET, "1048576"), version=version)
    assert (result.error_code, result.error_message, result.resource_name) == (0, None, topic)
    for number in range(2):
        assert arguments_of(kafka_broker, f"{topic}-{number}") == {
            "x-queue-type": "stream",
            "x-max-age": "1h",
            "x-stream-max-segment-size-bytes": 1048576,
        }
    found = described(client, topic)
    assert found["retention.ms"] == ("3600000", TOPIC_SOURCE)
    assert found["retention.bytes"] == ("-1", DEFAULT_SOURCE)


def test_a_deleted_config_has_its_default(kafka_broker: BrokerProcess, client: KafkaSocket, topic: str) -> None:
    change(client, topic, ("retention.ms", SET, "60000"), ("compression.type", SET, "zstd"))
    assert change(client, topic, ("retention.ms", DELETE, None)).error_code == 0
    found = described(client, topic)
    assert found["retention.ms"] == ("-1", DEFAULT_SOURCE)
    assert found["compression.type"] == ("zstd", TOPIC_SOURCE)


def test_the_cleanup_policy_is_a_list(client: KafkaSocket, topic: str) -> None:
    assert change(client, topic, ("retention.ms", SET, "60000")).error_code == 0
    assert change(client, topic, ("cleanup.policy", APPEND, "compact")).error_code == 0
    assert described(client, topic)["cleanup.policy"] == ("compact,delete", TOPIC_SOURCE)
    assert change(client, topic, ("cleanup.policy", SUBTRACT, "compact")).error_code == 0
    assert described(client, topic)["cleanup.policy"][0] == "delete"
    assert change(client, topic, ("retention.ms", APPEND, "1")).error_code == 42


@pytest.mark.parametrize("version", [0, 1, 2])
def test_alter_configs_replaces_all(client: KafkaSocket, topic: str, version: int) -> None:
    change(client, topic, ("retention.ms", SET, "60000"))
    assert alter(client, topic, {"retention.bytes": "1000000"}, version).error_code == 0
    found = described(client, topic)
    assert found["retention.ms"] == ("-1", DEFAULT_SOURCE)
    assert found["retention.bytes"] == ("1000000", TOPIC_SOURCE)


def test_validation_changes_nothing(client: KafkaSocket, topic: str) -> None:
    assert alter(client, topic, {"retention.bytes": "1000000"}, validate_only=True).error_code == 0
    assert alter(client, topic, {"retention.bytes": "x"}, validate_only=True).error_code == 40
    assert described(client, topic)["retention.bytes"] == ("-1", DEFAULT_SOURCE)


@pytest.mark.parametrize(("asked_ms", "kept_ms"), [(1, 1000), (1500, 2000), (60_000, 60_000), (86_400_750, 86_401_000)])
def test_retention_is_rounded_up_to_whole_seconds(client: KafkaSocket, topic: str, asked_ms: int, kept_ms: int) -> None:
    assert change(client, topic, ("retention.ms", SET, str(asked_ms))).error_code == 0
    assert described(client, topic)["retention.ms"] == (str(kept_ms), TOPIC_SOURCE)


def test_the_highest_number_of_kafka_is_the_highest_limit(client: KafkaSocket, topic: str) -> None:
    highest = str((1 << 63) - 1)
    assert alter(client, topic, {"retention.ms": highest, "retention.bytes": highest}).error_code == 0
    assert described(client, topic)["retention.bytes"] == (str(1 << 60), TOPIC_SOURCE)
    assert change(client, topic, ("retention.ms", SET, str(1 << 63))).error_code == 40


@pytest.mark.parametrize(
    ("name", "operation", "value", "code"),
    [
        ("retention.ms", SET, "0", 40),
        ("retention.ms", SET, None, 40),
        ("flush.messages", SET, "1", 40),
        ("flush.messages", DELETE, None, 40),
        ("min.insync.replicas", SET, "2", 40),
        ("min.insync.replicas", SET, "1", 0),
        ("cleanup.policy", APPEND, "other", 40),
        ("retention.ms", 9, "1000", 42),
    ],
)
def test_what_the_broker_cannot_keep_is_refused(
    client: KafkaSocket, topic: str, name: str, operation: int, value: str | None, code: int
) -> None:
    before = described(client, topic)
    assert change(client, topic, (name, operation, value)).error_code == code
    assert described(client, topic) == before


def test_resources_that_cannot_be_altered(client: KafkaSocket, topic: str) -> None:
    assert change(client, "0", ("num.partitions", SET, "2"), kind=4).error_code == 42
    assert alter(client, "0", {"num.partitions": "2"}, kind=4).error_code == 42
    assert alter(client, "x", {}, kind=8).error_code == 42
    assert alter(client, "no-such-topic", {}).error_code == 3
    twice = ("retention.ms", SET, "1000")
    assert change(client, topic, twice, twice).error_code == 42


def test_a_value_that_a_policy_overrides_is_a_policy_violation(
    kafka_broker: BrokerProcess, client: KafkaSocket, topic: str
) -> None:
    path = f"/api/policies/%2F/{topic}"
    policy = {"pattern": f"^{topic}", "definition": {"max-age": "1m"}, "apply-to": "streams", "priority": 0}
    kafka_broker.api("PUT", path, policy)
    assert described(client, topic)["retention.ms"] == ("60000", POLICY_SOURCE)
    result = change(client, topic, ("retention.ms", SET, "3600000"))
    assert (result.error_code, result.error_message) == (
        44,
        f"a policy sets retention.ms of stream '{topic}-0' to 60000",
    )
    assert change(client, topic, ("retention.ms", SET, "30000")).error_code == 0
    assert described(client, topic)["retention.ms"] == ("30000", TOPIC_SOURCE)
    kafka_broker.api("DELETE", path)
    assert described(client, topic)["retention.ms"] == ("30000", TOPIC_SOURCE)


def test_arguments_of_amqp_that_are_no_configs_stay(kafka_broker: BrokerProcess, client: KafkaSocket) -> None:
    name = f"c-{secrets.token_hex(6)}"
    arguments: dict[str, Any] = {"x-queue-type": "stream", "x-max-age": "1Y", "x-stream-filter-size-bytes": 64}
    with pika.BlockingConnection(pika.URLParameters(kafka_broker.url)) as connection:
        connection.channel().queue_declare(name, durable=True, arguments=arguments)
    assert change(client, name, ("retention.bytes", SET, "1000000")).error_code == 0
    arguments["x-max-length-bytes"] = 1000000
    assert arguments_of(kafka_broker, name) == arguments
    with pika.BlockingConnection(pika.URLParameters(kafka_broker.url)) as connection:
        connection.channel().queue_declare(name, durable=True, arguments=arguments)


@pytest.mark.slow
def test_changed_configs_survive_a_kill(tmp_path: Path) -> None:
    settings = {"kafka.port": 0, "kafka.host": "127.0.0.1"}
    with BrokerProcess(tmp_path, settings=settings) as broker, KafkaSocket(address_of(broker)) as client:
        create(client, "t", 3)
        assert change(client, "t", ("retention.ms", SET, "60000")).error_code == 0
        broker.kill()
    with BrokerProcess(tmp_path, settings=settings) as broker, KafkaSocket(address_of(broker)) as client:
        assert described(client, "t")["retention.ms"] == ("60000", TOPIC_SOURCE)
        assert arguments_of(broker, "t-2")["x-max-age"] == "1m"
        broker.api("PUT", "/api/permissions/%2F/guest", {"configure": "^t(-0)?$", "write": ".*", "read": ".*"})
        assert change(client, "t", ("retention.ms", DELETE, None)).error_code == 29


def test_kafka_python_alters_configs(kafka_address: str, client: KafkaSocket, topic: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=kafka_address)
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": "120000"})])
    admin.close()
    assert described(client, topic)["retention.ms"] == ("120000", TOPIC_SOURCE)
