"""Transactions with real clients: kafka-python, aiokafka, confluent-kafka (if it is installed)."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import time
import uuid
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from transaction_client import new_topic

if folder := os.environ.get("CONFLUENT_KAFKA"):
    sys.path.append(folder)
needs_confluent = pytest.mark.skipif(
    importlib.util.find_spec("confluent_kafka") is None,
    reason="needs confluent-kafka: pip install --target FOLDER confluent-kafka, CONFLUENT_KAFKA=FOLDER",
)


def expected(rounds: int = 6) -> list[bytes]:
    return [b"%d.%d" % (number, part) for number in range(rounds) if number % 2 == 0 for part in range(3)]


def read_all(address: str, topic: str, isolation: str) -> list[bytes]:
    """Read with kafka-python to the end that the broker names."""
    consumer = KafkaConsumer(bootstrap_servers=address, isolation_level=isolation, enable_auto_commit=False)
    place = TopicPartition(topic, 0)
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    end = consumer.end_offsets([place])[place]
    found: list[bytes] = []
    deadline = time.monotonic() + 60
    while consumer.position(place) < end:
        assert time.monotonic() < deadline, f"the position stays at {consumer.position(place)}, the end is {end}"
        found += [each.value for each in consumer.poll(timeout_ms=500).get(place, [])]
    consumer.close()
    return found


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_kafka_python_commits_and_aborts(kafka_address: str, isolation: str) -> None:
    topic = new_topic(kafka_address)
    producer = KafkaProducer(bootstrap_servers=kafka_address, transactional_id=f"t-{uuid.uuid4().hex}")
    producer.init_transactions()
    for number in range(6):
        producer.begin_transaction()
        for part in range(3):
            producer.send(topic, b"%d.%d" % (number, part))
        producer.flush()
        if number % 2 == 0:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close()
    assert read_all(kafka_address, topic, isolation) == expected()


async def test_aiokafka_commits_and_aborts(kafka_address: str) -> None:
    topic = new_topic(kafka_address)
    producer = AIOKafkaProducer(bootstrap_servers=kafka_address, transactional_id=f"t-{uuid.uuid4().hex}")
    await producer.start()
    for number in range(6):
        await producer.begin_transaction()
        for part in range(3):
            await producer.send_and_wait(topic, b"%d.%d" % (number, part))
        if number % 2 == 0:
            await producer.commit_transaction()
        else:
            await producer.abort_transaction()
    await producer.stop()
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka_address, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    await consumer.start()
    consumer.assign([AioPartition(topic, 0)])
    found = [(await asyncio.wait_for(consumer.getone(), 30)).value for _ in expected()]
    await consumer.stop()
    assert found == expected()


@needs_confluent
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_librdkafka_copies_exactly_once_and_logs_nothing(
    kafka_address: str, isolation: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Records are read, written and their offsets committed in one transaction; every third one is aborted."""
    import confluent_kafka as ck

    source, target = new_topic(kafka_address), new_topic(kafka_address)
    plain = ck.Producer({"bootstrap.servers": kafka_address})
    for number in range(60):
        plain.produce(source, b"%d" % number)
    plain.flush(30)
    common = {"bootstrap.servers": kafka_address, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = ck.Consumer({**common, "group.id": f"g-{uuid.uuid4().hex}", "isolation.level": "read_committed"})
    place = ck.TopicPartition(source, 0, 0)
    consumer.assign([place])
    producer = ck.Producer({"bootstrap.servers": kafka_address, "transactional.id": f"t-{uuid.uuid4().hex}"})
    producer.init_transactions(30)
    copied = turn = 0
    while copied < 60:
        messages = consumer.consume(5, 30)
        producer.begin_transaction()
        for each in messages:
            producer.produce(target, each.value() + b"!")
        producer.send_offsets_to_transaction(consumer.position([place]), consumer.consumer_group_metadata(), 30)
        turn += 1
        if turn % 3 == 0:
            producer.abort_transaction(30)
            consumer.seek(ck.TopicPartition(source, 0, copied))
        else:
            producer.commit_transaction(30)
            copied += len(messages)
    (committed,) = consumer.committed([ck.TopicPartition(source, 0)], 30)
    assert committed.offset == 60
    consumer.close()
    reader: Any = ck.Consumer(
        {**common, "group.id": "unused", "isolation.level": isolation, "enable.partition.eof": True}
    )
    reader.assign([ck.TopicPartition(target, 0, 0)])
    found = []
    while True:
        message = reader.poll(30)
        assert message is not None
        if message.error():
            assert message.error().code() == ck.KafkaError._PARTITION_EOF
            break
        found.append(message.value())
    reader.close()
    assert found == [b"%d!" % number for number in range(60)]
    assert "abort" not in capfd.readouterr().err, "librdkafka complains about abort markers that it does not expect"
