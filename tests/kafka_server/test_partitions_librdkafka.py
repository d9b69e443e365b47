"""Topics with several partitions for librdkafka, if confluent-kafka is installed."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from amqpd.testing import BrokerProcess

confluent_kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
admin_api = pytest.importorskip("confluent_kafka.admin")


@pytest.fixture
def admin(kafka_address: str) -> Any:
    return admin_api.AdminClient({"bootstrap.servers": kafka_address})


@pytest.fixture
def topic(admin: Any) -> str:
    """A topic with five partitions."""
    name = f"r-{secrets.token_hex(6)}"
    admin.create_topics([admin_api.NewTopic(name, 5, 1)])[name].result(30)
    return name


@pytest.fixture
def consumer(kafka_address: str) -> Iterator[Any]:
    settings = {
        "bootstrap.servers": kafka_address,
        "group.id": secrets.token_hex(6),
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    client = confluent_kafka.Consumer(settings)
    yield client
    client.close()


def read(consumer: Any, topic: str, count: int) -> list[tuple[int, bytes]]:
    consumer.subscribe([topic])
    found: list[tuple[int, bytes]] = []
    while len(found) < count:
        messages = consumer.consume(count - len(found), 30)
        assert messages, found
        for message in messages:
            assert message.error() is None
            found.append((message.partition(), message.value()))
    return found


def test_keys_are_in_the_partition_that_amqp_publishers_reach(
    kafka_broker: BrokerProcess, kafka_address: str, topic: str, consumer: Any
) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka_address, "partitioner": "murmur2_random"})
    keys = [f"key {number}" for number in range(50)]
    for key in keys:
        producer.produce(topic, key.encode(), key.encode())
    assert producer.flush(30) == 0
    with pika.BlockingConnection(pika.URLParameters(kafka_broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for key in keys:
            channel.basic_publish(topic, key, key.encode(), mandatory=True)
    found = read(consumer, topic, 2 * len(keys))
    places: dict[bytes, set[int]] = {}
    for partition, key_bytes in found:
        places.setdefault(key_bytes, set()).add(partition)
    assert len(places) == len(keys)
    assert all(len(partitions) == 1 for partitions in places.values())
    assert {partition for partition, _ in found} == set(range(5))


def test_the_admin_client_grows_alters_and_trims_a_topic(
    admin: Any, kafka_address: str, topic: str, consumer: Any
) -> None:
    admin.create_partitions([admin_api.NewPartitions(topic, 8)])[topic].result(30)
    assert len(admin.list_topics(topic, 30).topics[topic].partitions) == 8
    change = admin_api.ConfigEntry("retention.ms", "60000", incremental_operation=admin_api.AlterConfigOpType.SET)
    resource = admin_api.ConfigResource("topic", topic, incremental_configs=[change])
    admin.incremental_alter_configs([resource])[resource].result(30)
    wanted = admin_api.ConfigResource("topic", topic)
    assert admin.describe_configs([wanted])[wanted].result(30)["retention.ms"].value == "60000"
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka_address})
    for number in range(10):
        producer.produce(topic, b"%d" % number, partition=7)
    assert producer.flush(30) == 0
    place = confluent_kafka.TopicPartition(topic, 7, 6)
    assert admin.delete_records([place])[place].result(30).low_watermark == 6
    assert sorted(read(consumer, topic, 4)) == [(7, b"%d" % number) for number in range(6, 10)]
    admin.delete_topics([topic])[topic].result(30)
    assert topic not in admin.list_topics(timeout=30).topics
