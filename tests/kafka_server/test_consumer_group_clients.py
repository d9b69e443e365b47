"""The consumer protocol with confluent-kafka: share, leave, resume, patterns, static members."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pika
import pytest
from kafka_socket import address_of

from amqpd.testing import BrokerProcess

confluent_kafka = pytest.importorskip("confluent_kafka", reason="needs confluent-kafka")


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid.uuid4().hex}"


@pytest.fixture
def consumer(kafka_broker: BrokerProcess, topic: str) -> Iterator[Callable[..., Any]]:
    """A function that returns a consumer of the group `topic`."""
    with_end: list[Any] = []

    def make(*topics: str, **options: Any) -> Any:
        settings = {
            "bootstrap.servers": address_of(kafka_broker),
            "group.id": topic,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 500,
        }
        client = confluent_kafka.Consumer(settings | options)
        client.subscribe(list(topics))
        with_end.append(client)
        return client

    yield make
    for client in with_end:
        client.close()


def publish(broker: BrokerProcess, name: str, *bodies: bytes) -> None:
    with closing(pika.BlockingConnection(pika.URLParameters(broker.url))) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
        for body in bodies:
            channel.basic_publish("", name, body, pika.BasicProperties(delivery_mode=2))


def read(count: int, *clients: Any) -> set[bytes]:
    """Return the next `count` values, all committed."""
    values: set[bytes] = set()
    while len(values) < count:
        for client in clients:
            message = client.poll(0.1)
            if message is not None:
                assert message.error() is None
                values.add(message.value())
                client.commit(message, asynchronous=False)
    return values


def poll_until(is_done: Callable[[], bool], *clients: Any) -> None:
    while not is_done():
        for client in clients:
            message = client.poll(0.1)
            assert message is None, message.value()


def owned(client: Any) -> set[str]:
    return {each.topic for each in client.assignment()}


def test_two_members_share_topics_and_one_leaves(
    kafka_broker: BrokerProcess, topic: str, consumer: Callable[..., Any]
) -> None:
    names = [f"{topic}-{number}" for number in range(4)]
    for name in names:
        publish(kafka_broker, name, f"{name} 1".encode())
    first = consumer(*names)
    assert read(4, first) == {f"{name} 1".encode() for name in names}
    second = consumer(*names)
    poll_until(lambda: len(owned(first)) == len(owned(second)) == 2, first, second)
    assert owned(first) | owned(second) == set(names)
    for name in names:
        publish(kafka_broker, name, f"{name} 2".encode())
    assert read(4, first, second) == {f"{name} 2".encode() for name in names}
    first.close()
    poll_until(lambda: owned(second) == set(names), second)  # and nothing is read again
    publish(kafka_broker, names[0], b"last")
    assert read(1, second) == {b"last"}


def test_topic_that_is_created_later_matches_the_pattern(
    kafka_broker: BrokerProcess, topic: str, consumer: Callable[..., Any]
) -> None:
    publish(kafka_broker, f"{topic}-1", b"one")
    client = consumer(f"^{topic}-.*")
    assert read(1, client) == {b"one"}
    publish(kafka_broker, f"{topic}-2", b"two")
    assert read(1, client) == {b"two"}


def test_group_resumes_where_it_has_committed(
    kafka_broker: BrokerProcess, topic: str, consumer: Callable[..., Any]
) -> None:
    publish(kafka_broker, topic, b"one", b"two")
    first = consumer(topic)
    assert read(1, first) == {b"one"}
    first.close()
    second = consumer(topic, **{"group.instance.id": "one", "group.remote.assignor": "range"})
    assert read(1, second) == {b"two"}


def test_instance_id_in_use_is_a_fatal_error(
    kafka_broker: BrokerProcess, topic: str, consumer: Callable[..., Any]
) -> None:
    publish(kafka_broker, topic, b"one")
    first = consumer(topic, **{"group.instance.id": "one"})
    assert read(1, first) == {b"one"}
    second = consumer(topic, **{"group.instance.id": "one"})
    message = None
    while message is None:
        message = second.poll(1)
    assert message.error().code() == confluent_kafka.KafkaError._FATAL
    first.close()
    third = consumer(topic, **{"group.instance.id": "one"})
    poll_until(lambda: owned(third) == {topic}, third)
