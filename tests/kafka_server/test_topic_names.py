"""The argument `x-kafka-topic`: the topic of a queue with a name of its own."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic
from kafka.errors import InvalidPartitionsError, TopicAlreadyExistsError, TopicAuthorizationFailedError
from kafka_socket import address_of
from pika.exceptions import ChannelClosedByBroker

from amqpd.testing import BrokerProcess, Vhost

ARGUMENT = "x-kafka-topic"


@pytest.fixture
def connection(kafka_broker: BrokerProcess) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(kafka_broker.url))
    yield connection
    connection.close()


@pytest.fixture
def admin(kafka_address: str) -> Iterator[Any]:
    client = KafkaAdminClient(bootstrap_servers=kafka_address)
    yield client
    client.close()


def new_name() -> str:
    return f"t-{secrets.token_hex(6)}"


def declare(connection: Any, queue: str, topic: object, kind: str = "stream", **flags: Any) -> None:
    channel = connection.channel()
    arguments = {"x-queue-type": kind, ARGUMENT: topic}
    channel.queue_declare(queue, durable=flags.pop("durable", True), arguments=arguments, **flags)
    channel.close()


def refusal(connection: Any, queue: str, topic: object, kind: str = "stream", **flags: Any) -> tuple[int, str]:
    """Return code and text of a refused declaration."""
    with pytest.raises(ChannelClosedByBroker) as refused:
        declare(connection, queue, topic, kind, **flags)
    return refused.value.reply_code, refused.value.reply_text


def send(address: str, topic: str, *values: bytes) -> None:
    producer = KafkaProducer(bootstrap_servers=address)
    for value in values:
        producer.send(topic, value).get(20)
    producer.close()


def read(address: str, topic: str, count: int, **options: Any) -> list[bytes]:
    consumer = KafkaConsumer(
        topic, bootstrap_servers=address, auto_offset_reset="earliest", consumer_timeout_ms=20_000, **options
    )
    found = [record.value for _, record in zip(range(count), consumer, strict=False)]
    consumer.close()
    return found


@pytest.mark.parametrize("kind", ["stream", "quorum", "classic"])
def test_a_queue_is_a_topic_under_the_name_of_its_argument(
    connection: Any, kafka_address: str, admin: Any, kind: str
) -> None:
    topic = new_name()
    queue = f"orders of {topic}/x"  # no name of a topic
    declare(connection, queue, topic, kind)
    names = admin.list_topics()
    assert topic in names
    assert queue not in names
    send(kafka_address, topic, b"one")
    connection.channel().basic_publish("", queue, b"two", pika.BasicProperties(delivery_mode=2))
    assert read(kafka_address, topic, 2, group_id=f"g-{topic}") == [b"one", b"two"]
    (offsets,) = admin.list_group_offsets(f"g-{topic}").values()
    assert offsets[TopicPartition(topic, 0)].offset == 2


def test_the_queues_own_name_is_no_topic(connection: Any, admin: Any) -> None:
    topic, queue = new_name(), new_name()
    declare(connection, queue, topic)
    described = {each["name"]: each["error_code"] for each in admin.describe_topics([queue, topic])}
    assert described == {queue: 3, topic: 0}


def test_a_queue_without_the_argument_and_with_another_name_is_no_topic(connection: Any, admin: Any) -> None:
    name = f"no topic {new_name()}"
    connection.channel().queue_declare(name, durable=True)
    assert name not in admin.list_topics()


def test_configs_and_deletion_use_the_topic(connection: Any, kafka_broker: BrokerProcess, admin: Any) -> None:
    topic = new_name()
    queue = f"a b {topic}"
    declare(connection, queue, topic)
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "60000"})
    admin.alter_configs([resource])
    found: Any = kafka_broker.api("GET", f"/api/queues/%2F/{queue.replace(' ', '%20')}")
    assert found["arguments"] == {"x-queue-type": "stream", ARGUMENT: topic, "x-max-age": "1m"}
    with pytest.raises(InvalidPartitionsError, match=ARGUMENT):
        admin.create_partitions({topic: NewPartitions(3)})
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([NewTopic(topic, 1, 1)])
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([NewTopic(topic, 2, 1)])
    admin.delete_topics([topic])
    with pytest.raises(ChannelClosedByBroker, match="no queue"):
        connection.channel().queue_declare(queue, passive=True)
    declare(connection, f"other {topic}", topic)  # the name is free again


def test_a_topic_belongs_to_one_queue(connection: Any, kafka_broker: BrokerProcess, admin: Any) -> None:
    topic = new_name()
    declare(connection, f"first {topic}", topic)
    code, text = refusal(connection, f"second {topic}", topic)
    assert (code, f"topic '{topic}' belongs to queue 'first {topic}'" in text) == (406, True)
    with pytest.raises(ChannelClosedByBroker, match=f"its name is the Kafka topic of queue 'first {topic}'"):
        connection.channel().queue_declare(topic, durable=True)
    connection.channel().queue_declare(topic)  # a transient queue is no topic
    other = new_name()
    connection.channel().queue_declare(other, durable=True)
    code, text = refusal(connection, f"third {topic}", other)
    assert (code, f"topic '{other}' belongs to queue '{other}'" in text) == (406, True)
    admin.create_topics([NewTopic(f"s-{topic}", 2, 1)])
    code, text = refusal(connection, f"fourth {topic}", f"s-{topic}")
    assert (code, f"belongs to super stream 's-{topic}'" in text) == (406, True)
    vhost = kafka_broker.add_vhost()
    try:
        body = {"durable": True, "arguments": {ARGUMENT: topic}}
        kafka_broker.api("PUT", f"/api/queues/{vhost.name}/first", body)  # vhosts have topics of their own
    finally:
        kafka_broker.delete_vhost(vhost.name)


def test_what_is_no_topic_is_refused_and_declarations_must_agree(connection: Any) -> None:
    topic = new_name()
    for value in ("a b", "", "..", "x" * 250, 5):
        code, text = refusal(connection, "q", value)
        assert (code, ARGUMENT in text) == (406, True)
    assert refusal(connection, "q", topic, "classic", durable=False)[1].endswith("not durable")
    assert refusal(connection, "q", topic, "classic", exclusive=True)[1].endswith("not durable")
    declare(connection, f"q {topic}", topic)
    declare(connection, f"q {topic}", topic)
    code, text = refusal(connection, f"q {topic}", f"{topic}-2")
    assert (code, text.startswith(f"PRECONDITION_FAILED - inequivalent arg '{ARGUMENT}'")) == (406, True)
    same = new_name()
    declare(connection, same, same)


def test_two_declarations_at_once_do_not_get_one_topic(kafka_broker: BrokerProcess) -> None:
    """Both are sent before the first one is committed."""
    topic = new_name()
    connections = [pika.BlockingConnection(pika.URLParameters(kafka_broker.url)) for _ in range(4)]
    outcomes: list[str] = []
    channels = [each.channel() for each in connections]
    for number, channel in enumerate(channels):
        arguments = {"x-queue-type": "quorum", ARGUMENT: topic}
        name = f"q{number} {topic}" if number < 3 else topic
        channel._impl.queue_declare(  # without waiting
            name,
            durable=True,
            arguments=arguments if number < 3 else {},
            callback=lambda _ok: outcomes.append("made"),
        )
        channel._impl.add_on_close_callback(lambda _channel, why: outcomes.append(type(why).__name__))
        channel.connection._flush_output()
    while len(outcomes) < 4:
        for each in connections:
            each.process_data_events(0.01)
    assert sorted(outcomes) == ["ChannelClosedByBroker"] * 3 + ["made"]
    for each in connections:
        each.close()


def test_permissions_are_those_of_the_queue(kafka_broker: BrokerProcess, connection: Any) -> None:
    topic, user = new_name(), new_name()
    kafka_broker.api("PUT", f"/api/users/{user}", {"password": "secret", "tags": ""})
    patterns = {"configure": "^mine", "write": "^mine", "read": "^mine"}
    kafka_broker.api("PUT", f"/api/permissions/%2F/{user}", patterns)
    url = kafka_broker.url.replace("guest:guest", f"{user}:secret")
    own = pika.BlockingConnection(pika.URLParameters(url))
    code, text = refusal(own, f"mine {topic}", topic)
    assert (code, f"'{topic}'" in text) == (403, True)
    declare(own, f"mine {topic}", f"mine-{topic}")
    own.close()
    declare(connection, f"mine too {topic}", f"a-{topic}")
    declare(connection, f"yours {topic}", f"mine-b-{topic}")
    login: dict[str, Any] = {
        "bootstrap_servers": address_of(kafka_broker),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": user,
        "sasl_plain_password": "secret",
    }
    producer = KafkaProducer(**login, retries=0)
    assert producer.send(f"a-{topic}", b"x").get(20).offset == 0
    with pytest.raises(TopicAuthorizationFailedError):
        producer.send(f"mine-b-{topic}", b"x").get(20)
    producer.close()
    consumer = KafkaConsumer(**login)
    assert {f"a-{topic}", f"mine-{topic}"} <= consumer.topics()
    assert f"mine-b-{topic}" not in consumer.topics()
    consumer.close()


def test_definitions_and_lists_have_the_argument(kafka_broker: BrokerProcess, tmp_path: Path) -> None:
    vhost: Vhost = kafka_broker.add_vhost()
    body = {"durable": True, "arguments": {ARGUMENT: "orders", "x-queue-type": "stream"}}
    kafka_broker.api("PUT", f"/api/queues/{vhost.name}/a%20b", body)
    definitions: Any = kafka_broker.api("GET", f"/api/definitions/{vhost.name}")
    (queue,) = definitions["queues"]
    assert queue["arguments"][ARGUMENT] == "orders"
    shown = kafka_broker.ctl("-q", "list_queues", "-p", vhost.name, "name", "arguments")
    assert ARGUMENT in shown.stdout and "orders" in shown.stdout
    kafka_broker.delete_vhost(vhost.name)
    again = kafka_broker.add_vhost()
    kafka_broker.api("POST", f"/api/definitions/{again.name}", definitions)
    assert kafka_broker.api("GET", f"/api/definitions/{again.name}") == definitions
    twice = {**definitions, "queues": [{**queue, "name": "c d"}, {**queue, "name": "e f"}]}
    other = kafka_broker.add_vhost()
    with pytest.raises(Exception, match="belongs to queue 'c d'"):
        kafka_broker.api("POST", f"/api/definitions/{other.name}", twice)
    assert kafka_broker.api("GET", f"/api/queues/{other.name}") == []  # all of it or nothing
    for each in (again, other):
        kafka_broker.delete_vhost(each.name)


@pytest.mark.slow
def test_topic_survives_a_restart(tmp_path: Path) -> None:
    settings = {"kafka.port": 0, "kafka.host": "127.0.0.1"}
    with BrokerProcess(tmp_path, settings=settings) as broker:
        broker.api("PUT", "/api/queues/%2F/a%20b", {"durable": True, "arguments": {ARGUMENT: "orders"}})
        send(address_of(broker), "orders", b"one")
        broker.kill()
        broker.start()
        assert read(address_of(broker), "orders", 1) == [b"one"]
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        assert refusal(connection, "c d", "orders")[0] == 406
        connection.close()
