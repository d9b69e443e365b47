"""Spark's own Kafka source and sink, format("kafka"), with the broker's listener: the same rows as format("amqp")."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pika import BasicProperties, BlockingConnection, ConnectionParameters

from amqpd.testing import BrokerProcess

pytestmark = [pytest.mark.slow, pytest.mark.external]

COUNT = 40
KINDS = ("stream", "quorum")


class Place(NamedTuple):
    """A running broker as both formats reach it."""

    broker: BrokerProcess
    channel: Any
    bootstrap: str

    def amqp(self, spark: Any, queue: str) -> Any:
        """Return the queue's rows by format("amqp"), in order."""
        options = {"path": str(self.broker.data_dir), "queue": queue, "includeHeaders": "true"}
        frame = spark.read.format("amqp").options(**options, includeProperties="true", startingOffsets="earliest")
        return frame.load().orderBy("offset").collect()

    def kafka(self, reader: Any, topic: str) -> Any:
        """Return a frame of the topic by format("kafka"). reader: `read` or `readStream` of the session."""
        options = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": topic, "includeHeaders": "true"}
        return reader.format("kafka").options(**options, startingOffsets="earliest").load()

    def publish(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            headers = {"customer": f"c{number}"} if number % 2 else None
            properties = BasicProperties(delivery_mode=2, content_type="text/plain", headers=headers)
            self.channel.basic_publish("orders", f"eu.{number}", b"order %d" % number, properties)


@pytest.fixture
def place(spark: Any, kafka_source_jars: list[Path], tmp_path: Path) -> Iterator[Place]:
    if not kafka_source_jars:
        why = "no jars of Spark's Kafka source: make kafka kafka-spark"
        if os.environ.get("TEST_REQUIRE_KAFKA"):
            pytest.fail(why)
        pytest.skip(why)
    with BrokerProcess(tmp_path / "data", settings={"kafka.port": 0, "kafka.host": "127.0.0.1"}) as broker:
        assert broker.ready is not None
        connection = BlockingConnection(ConnectionParameters("127.0.0.1", broker.amqp_port, heartbeat=0))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare("orders", "topic", durable=True)
        for kind in KINDS:
            for name in (kind, f"{kind}-copy"):
                channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind})
            channel.queue_bind(kind, "orders", "eu.#")
        yield Place(broker, channel, f"127.0.0.1:{broker.ready.listeners['kafka'][1]}")
        connection.close()
        assert "Traceback" not in broker.stderr, broker.stderr


def headers_of(row: Any) -> dict[str, bytes]:
    return {each["key"]: bytes(each["value"]) for each in row["headers"] or ()}


def content_of(rows: Any) -> list[tuple[str, bytes, dict[str, str]]]:
    """Return (key, value, headers) of rows of format("amqp"), without the time that a Kafka producer adds."""
    return [
        (
            row["routing_key"],
            bytes(row["value"]),
            {name: text for name, text in (row["headers"] or {}).items() if name != "timestamp_in_ms"},
        )
        for row in rows
    ]


def test_kafka_source_and_sink_agree_with_format_amqp(spark: Any, place: Place, tmp_path: Path) -> None:
    place.publish(0, COUNT)
    for _ in range(3):  # offsets that are missing in the middle
        method, _, _ = place.channel.basic_get("quorum")
        if method.delivery_tag != 1:
            place.channel.basic_ack(method.delivery_tag)

    # Batches.
    for kind in KINDS:
        ours, theirs = place.amqp(spark, kind), place.kafka(spark.read, kind).orderBy("offset").collect()
        assert [row["offset"] for row in ours] == [row["offset"] for row in theirs], kind
        assert len(ours) == (COUNT if kind == "stream" else COUNT - 2)
        for our, their in zip(ours, theirs, strict=True):
            found = headers_of(their)
            assert (their["topic"], their["partition"], found["exchange"]) == (kind, 0, b"orders")
            assert bytes(their["key"]).decode() == our["routing_key"]
            assert bytes(their["value"]) == bytes(our["value"])
            assert their["timestamp"] == our["timestamp"]
            if kind == "stream":
                assert found["properties"] == bytes(our["raw_properties"])
            else:
                assert found["content-type"].decode() == our["properties"]["content_type"]
                assert found.get("customer", b"").decode() == (our["headers"] or {}).get("customer", "")

    # Streams, through a checkpoint.
    for round_number in range(2):
        for kind in KINDS:
            writer = place.kafka(spark.readStream, kind).writeStream.format("kafka").trigger(availableNow=True)
            options = {"kafka.bootstrap.servers": place.bootstrap, "topic": f"{kind}-copy", "includeHeaders": "true"}
            query = writer.options(**options, checkpointLocation=str(tmp_path / kind)).start()
            query.awaitTermination()
            copies, ours = (content_of(place.amqp(spark, name)) for name in (f"{kind}-copy", kind))
            assert copies == ours, (kind, round_number)
        place.publish(COUNT + round_number * 10, 10)

    # A batch into a stream and a queue, read by AMQP.
    for kind in KINDS:
        target = f"{kind}-target"
        place.channel.queue_declare(target, durable=True, arguments={"x-queue-type": kind})
        frame = spark.range(5).selectExpr("concat('key-', id) AS key", "concat('value-', id) AS value").coalesce(1)
        frame.write.format("kafka").options(**{"kafka.bootstrap.servers": place.bootstrap}, topic=target).save()
        sent = [(row["routing_key"], bytes(row["value"])) for row in place.amqp(spark, target)]
        assert sent == [(f"key-{number}", b"value-%d" % number) for number in range(5)]
    method, _, body = place.channel.basic_get("quorum-target", auto_ack=True)
    assert (method.routing_key, body) == ("key-0", b"value-0")


def test_example_of_the_manual_copies_orders(spark: Any, place: Place) -> None:
    text = (Path(__file__).parents[2] / "docs" / "kafka.md").read_text("utf-8")
    example = text.partition("## Spark\n")[2].split("```python\n")[1].split("```")[0]
    for queue, kind in (("orders", "quorum"), ("eu-orders", "stream")):
        place.channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
    place.channel.queue_bind("orders", "orders", "#")
    place.publish(0, 4)
    place.channel.basic_publish("orders", "us.1", b"not this one", BasicProperties(delivery_mode=2))
    exec(example.replace("127.0.0.1:9092", place.bootstrap), {"spark": spark})
    copies = sorted((row["routing_key"], bytes(row["value"])) for row in place.amqp(spark, "eu-orders"))
    assert copies == [(f"eu.{number}", b"order %d" % number) for number in range(4)]
