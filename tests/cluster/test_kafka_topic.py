"""Queues with a Kafka topic of their own (`x-kafka-topic`): what stock consumers read, and who may declare one."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import kafka_rig
import pika
import pytest
from amqpd_nodes import NodeFailed, Nodes
from kafka_logs import create_topic, delete_topic
from kafka_rig import Kafka

from amqpd.broker.queue import arguments as queue_arguments
from amqpd.errors import PreconditionFailed
from amqpd.protocol.properties import decode_properties

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses importlib.resources.read_text
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

KEPT = pika.BasicProperties(delivery_mode=2)
ONE = {"cluster.replication_factor": 1, "cluster.required_insync": 1, "cluster.slots": 4}


@pytest.fixture
def node(tmp_path: Path, kafka: Kafka, topic: str) -> Iterator[Nodes]:
    settings = {**ONE, "cluster.kafka_topics": rf"{topic}\.shop\..*"}
    with Nodes(tmp_path, kafka, 1, name=topic, settings=settings) as nodes:
        yield nodes


@pytest.fixture
def connect() -> Iterator[Callable[[Nodes], Any]]:
    connections: list[pika.BlockingConnection] = []

    def connected(nodes: Nodes) -> Any:
        host, port = nodes[1].amqp
        connections.append(pika.BlockingConnection(pika.ConnectionParameters(host, port, socket_timeout=120)))
        channel = connections[-1].channel()
        channel.confirm_delivery()
        return channel

    yield connected
    for each in connections:
        with suppress(pika.exceptions.AMQPError):
            each.close()


def read(kafka: Kafka, topic: str, count: int) -> list[tuple[bytes, bytes, dict[str, bytes]]]:
    """Return (key, value, headers) of the messages in the topic, as a stock consumer reads them. Records without the
    header `exchange` are no messages: a barrier, or the record that keeps the producer id alive.
    """
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap, enable_auto_commit=False)
    try:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        found: list[tuple[bytes, bytes, dict[str, bytes]]] = []
        while len(found) < count:
            for records in consumer.poll(timeout_ms=1000).values():
                found += [
                    (record.key, record.value, headers)
                    for record in records
                    if "exchange" in (headers := dict(record.headers))
                ]
        return found
    finally:
        consumer.close()


def test_stock_consumer_reads_published_messages(
    kafka: Kafka, node: Nodes, connect: Callable[[Nodes], Any], topic: str
) -> None:
    channel = connect(node)
    name = f"{topic}.shop.orders"
    channel.exchange_declare("sales", "topic", durable=True)
    for kind, queue in (("classic", "q"), ("stream", "s")):
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind, "x-kafka-topic": f"{name}.{kind}"})
        channel.queue_bind(queue, "sales", "eu.#")
    for number in range(5):
        properties = pika.BasicProperties(content_type="text/plain", headers={"n": number}, message_id=f"id-{number}")
        channel.basic_publish("sales", f"eu.{number}", b"order %d" % number, properties)
    for kind in ("classic", "stream"):
        messages = read(kafka, f"{name}.{kind}", 5)
        assert [(key, value) for key, value, _ in messages] == [(b"eu.%d" % n, b"order %d" % n) for n in range(5)]
        for number, (_, _, headers) in enumerate(messages):
            assert headers["exchange"] == b"sales"
            properties = decode_properties(headers["properties"])
            assert properties.content_type == "text/plain"
            assert properties.message_id == f"id-{number}"
            assert properties.headers == {"n": number}
    method, _, body = channel.basic_get("q", auto_ack=True)
    assert (method.routing_key, body) == ("eu.0", b"order 0")
    channel.queue_delete("q")
    channel.queue_declare("q", durable=True, arguments={"x-kafka-topic": f"{name}.again"})


def test_example_program_of_the_manual_runs(
    kafka: Kafka, node: Nodes, connect: Callable[[Nodes], Any], topic: str
) -> None:
    name = f"{topic}.shop.manual"
    text = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text("utf-8")
    declaration, program = (
        block.split("```")[0].replace("shop.orders", name).replace("localhost:9092", kafka.bootstrap)
        for block in text.partition("## A queue that others read in Kafka")[2].split("```python\n")[1:3]
    )
    host, port = node[1].amqp
    address = f'pika.ConnectionParameters("{host}", {port})'
    for source in (declaration.replace('pika.ConnectionParameters("localhost")', address), program):
        command = [sys.executable, "-P", "-c", source]
        run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert run.returncode == 0, run.stderr
    assert run.stdout == "1 b'' b'orders' b'a first order' {'region': 'eu'}\n"


def test_spark_example_of_the_manual_runs(
    kafka: Kafka, node: Nodes, connect: Callable[[Nodes], Any], topic: str, tmp_path: Path
) -> None:
    """Spark's own Kafka source reads the topic; the session contains nothing of amqpd."""
    kafka_rig.need("" if kafka_rig.spark_jars() else "no jars of Spark's Kafka source: make kafka-spark")
    pytest.importorskip("pyspark")
    name = f"{topic}.shop.spark"
    channel = connect(node)
    channel.queue_declare("lake", durable=True, arguments={"x-queue-type": "stream", "x-kafka-topic": name})
    for number in range(100):
        properties = pika.BasicProperties(delivery_mode=2, headers={"region": "eu"})
        channel.basic_publish("", "lake", b"order %d" % number, properties)
    text = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text("utf-8")
    shown = text.partition("Spark, with its package")[2].split("```python\n")[1].split("```")[0]
    source = shown.replace("shop.orders", name).replace("localhost:9092", kafka.bootstrap)
    frame, ended, _ = source.rpartition(".show()")
    assert ended
    session = (
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false')"
        f".config('spark.jars', {','.join(map(str, kafka_rig.spark_jars()))!r}).getOrCreate()\n"
    )
    print_rows = "for row in rows.orderBy('offset').collect(): print(row[1], bytes(row[2]).decode(), row[3][0].key)\n"
    run = subprocess.run(
        [sys.executable, "-P", "-c", f"{session}rows = {frame.lstrip()}\n{print_rows}"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert run.returncode == 0, run.stderr[-4000:]
    assert run.stdout.splitlines() == [f"lake order {number} exchange" for number in range(100)]


def test_foreign_record_in_the_topic_harms_only_its_queue(
    kafka: Kafka, node: Nodes, connect: Callable[[Nodes], Any], topic: str
) -> None:
    channel = connect(node)
    name = f"{topic}.shop.orders"
    channel.queue_declare("own", durable=True, arguments={"x-kafka-topic": name})
    channel.queue_declare("other", durable=True)
    channel.basic_publish("", "own", b"one", KEPT)
    stranger = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    stranger.send(name, b"no message", partition=0).get(60)
    stranger.close()
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", "own", b"stored behind the stranger's", KEPT)
    for number in range(3):
        channel.basic_publish("", "other", b"%d" % number, KEPT)
    node.kill(1)
    node.start(1)
    channel = connect(node)
    bodies = []
    while (got := channel.basic_get("own", auto_ack=True))[0] is not None:
        bodies.append(got[2])
    assert b"one" in bodies and b"no message" not in bodies
    channel.basic_publish("", "own", b"two", KEPT)
    assert channel.basic_get("own", auto_ack=True)[2] == b"two"
    assert channel.basic_get("other", auto_ack=True)[2] == b"0"


def test_topic_that_is_not_allowed_or_taken_is_refused(
    kafka: Kafka, node: Nodes, connect: Callable[[Nodes], Any], topic: str
) -> None:
    create_topic(kafka.bootstrap, f"{topic}.shop.taken")
    connect(node).queue_declare("first", durable=True, arguments={"x-kafka-topic": f"{topic}.shop.first"})
    for wanted, code, text in (
        ("elsewhere", 403, "access to topic 'elsewhere' of Kafka refused: cluster.kafka_topics does not allow it"),
        (f"amqpd.{topic}.meta", 403, "does not allow it"),
        (f"{topic}.shop.taken", 406, "exists already"),
        (f"{topic}.shop.first", 406, "belongs to another queue"),
        ("no/name", 406, "expected a name of letters"),
    ):
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            connect(node).queue_declare("q", durable=True, arguments={"x-kafka-topic": wanted})
        assert refused.value.reply_code == code
        assert text in refused.value.reply_text
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="not durable"):
        connect(node).queue_declare("q", arguments={"x-kafka-topic": f"{topic}.shop.q"})
    declaration = {"durable": True, "arguments": {"x-kafka-topic": f"{topic}.shop.taken"}}
    with pytest.raises(NodeFailed, match=r"topic .*taken.* exists already"):
        node.api(1, "PUT", "/api/queues/%2F/q", declaration)
    connect(node).queue_declare("first", durable=True, arguments={"x-kafka-topic": f"{topic}.shop.first"})


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "x" * 250, 5])
def test_invalid_topic_name_is_refused(name: object) -> None:
    with pytest.raises(PreconditionFailed, match="x-kafka-topic"):
        queue_arguments.validate("q", "/", {"x-kafka-topic": name})


def test_deleted_topic_takes_down_only_its_queue(
    kafka: Kafka, node: Nodes, connect: Callable[[Nodes], Any], topic: str
) -> None:
    """Both while the node runs and after a restart. The queue can then be deleted and declared again."""
    channel = connect(node)
    name = f"{topic}.shop.orders"
    arguments = {"x-kafka-topic": name}
    channel.queue_declare("own", durable=True, arguments=arguments)
    channel.queue_declare("other", durable=True)
    channel.basic_publish("", "own", b"one", KEPT)
    delete_topic(kafka.bootstrap, name)
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", "own", b"two", KEPT)
    channel.basic_publish("", "other", b"one", KEPT)
    found = node.api(1, "GET", "/api/queues/%2F/own")
    assert (found["state"], found["kafka"]["refused"]) == ("down", "its topic is gone")
    node.kill(1)
    node.start(1)
    assert connect(node).basic_get("other", auto_ack=True)[2] == b"one"
    found = node.api(1, "GET", "/api/queues/%2F/own")
    assert (found["state"], found["kafka"]["refused"]) == ("down", "its topic is gone")
    with pytest.raises(pika.exceptions.NackError):
        connect(node).basic_publish("", "own", b"three", KEPT)
    assert connect(node).basic_get("own")[0] is None
    connect(node).queue_delete("own")
    connect(node).queue_declare("own", durable=True, arguments=arguments)
    channel = connect(node)
    channel.basic_publish("", "own", b"four", KEPT)
    assert channel.basic_get("own", auto_ack=True)[2] == b"four"
