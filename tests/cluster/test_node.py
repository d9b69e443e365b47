"""One node over one broker of Kafka: what it confirms is there after a kill; how it starts and leaves."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pika
import pytest
from amqpd_nodes import NodeFailed, Nodes
from kafka_rig import Kafka, run_java

from amqpd.testing import parse_ready_line

SINGLE = {"cluster.replication_factor": 1, "cluster.required_insync": 1, "cluster.slots": 4}


@pytest.fixture
def node(tmp_path: Path, kafka: Kafka, topic: str):
    with Nodes(tmp_path, kafka, 1, name=topic, settings=SINGLE) as nodes:
        yield nodes


@pytest.fixture
def connect() -> Iterator[Callable[..., pika.BlockingConnection]]:
    """Connections, closed at the end, whatever became of them."""
    made: list[pika.BlockingConnection] = []

    def connected(nodes: Nodes, number: int = 1, vhost: str = "/") -> pika.BlockingConnection:
        host, port = nodes[number].amqp
        made.append(pika.BlockingConnection(pika.ConnectionParameters(host, port, vhost, socket_timeout=60)))
        return made[-1]

    yield connected
    for each in made:
        with suppress(pika.exceptions.AMQPError):
            each.close()


def drained(channel: pika.adapters.blocking_connection.BlockingChannel, queue: str) -> list[tuple[bytes, bool]]:
    """(body, redelivered) of what is in it, each acked."""
    got = []
    while True:
        method, _, body = channel.basic_get(queue)
        if method is None:
            return got
        got.append((body, method.redelivered))
        channel.basic_ack(method.delivery_tag)


def test_what_was_confirmed_and_declared_is_there_after_a_kill(node: Nodes, connect) -> None:
    connection = connect(node)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("orders", durable=True)
    channel.queue_declare("gone", durable=True)
    channel.exchange_declare("shop", "topic", durable=True)
    channel.queue_bind("orders", "shop", "a.#")
    for number in range(30):
        channel.basic_publish("shop", "a.b", b"%d" % number)
    for number in range(10):
        method, _, body = channel.basic_get("orders")
        assert body == b"%d" % number
        channel.basic_ack(method.delivery_tag)
    channel.queue_delete("gone")
    connection.process_data_events(0.5)  # what is settled goes to Kafka within 50 ms
    node.kill(1)
    node.start(1)
    channel = connect(node).channel()
    channel.confirm_delivery()
    assert [int(body) for body, _ in drained(channel, "orders")] == list(range(10, 30))
    channel.basic_publish("shop", "a.c", b"behind")
    assert drained(channel, "orders") == [(b"behind", False)]
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="404"):
        channel.queue_declare("gone", passive=True)


def test_a_clean_stop_tells_what_was_delivered_and_what_was_not(node: Nodes, connect) -> None:
    connection = connect(node)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True)
    for number in range(4):
        channel.basic_publish("", "q", b"%d" % number)
    channel.basic_get("q")  # and not acked
    node.stop(1)
    node.start(1)
    assert drained(connect(node).channel(), "q") == [(b"0", True), (b"1", False), (b"2", False), (b"3", False)]


def test_a_vhost_is_made_used_and_deleted_and_its_topic_with_it(node: Nodes, connect) -> None:
    node.api(1, "PUT", "/api/vhosts/shop")
    node.api(1, "PUT", "/api/permissions/shop/guest", {"configure": ".*", "write": ".*", "read": ".*"})
    channel = connect(node, vhost="shop").channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True)
    channel.basic_publish("", "q", b"one")
    node.api(1, "DELETE", "/api/vhosts/shop")
    assert [each["name"] for each in node.api(1, "GET", "/api/vhosts")] == ["/"]
    node.api(1, "PUT", "/api/vhosts/shop")
    node.api(1, "PUT", "/api/permissions/shop/guest", {"configure": ".*", "write": ".*", "read": ".*"})
    channel = connect(node, vhost="shop").channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="404"):
        channel.queue_declare("q", passive=True)


def test_what_is_the_clusters_is_not_reset_by_one_node(node: Nodes) -> None:
    node.api(1, "POST", "/api/amqpd/stop_app")
    with pytest.raises(NodeFailed, match=r"400 .*in a cluster"):
        node.api(1, "POST", "/api/amqpd/reset")
    assert [each["name"] for each in node.api(1, "GET", "/api/vhosts")] == ["/"]
    size = node.api(1, "GET", "/api/health/checks/reached-target-cluster-size")
    assert (size["status"], size["cluster_size"]) == ("ok", 1)


def test_the_directory_of_a_single_node_is_refused(tmp_path: Path, kafka: Kafka) -> None:
    (tmp_path / "metadata.sqlite").write_bytes(b"")
    settings = ["--cluster.kafka", kafka.bootstrap, "--cluster.name", "x", "--cluster.secret", "0123456789abcdef"]
    command = [sys.executable, "-P", "-m", "amqpd", "--data-dir", str(tmp_path), *settings]
    env = {name: value for name, value in os.environ.items() if not name.startswith("AMQPD_")}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)
    assert ended.returncode == 69
    assert "cluster_import" in ended.stderr


@pytest.mark.external
@pytest.mark.parametrize("kind", ["classic", "stream"])
def test_what_kafka_refuses_for_a_while_is_taken_later_by_the_same_owner(node: Nodes, connect, kind: str) -> None:
    """A topic's limit is lowered and raised again under a queue, whose consumer stays."""
    channel = connect(node).channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True, arguments={"x-queue-type": kind})
    channel.basic_qos(prefetch_count=10)
    got: list[bytes] = []

    def take(_: object, method: pika.spec.Basic.Deliver, __: object, body: bytes) -> None:
        got.append(body[:1])
        channel.basic_ack(method.delivery_tag)

    channel.basic_consume("q", take, arguments={"x-stream-offset": "first"} if kind == "stream" else None)
    channel.basic_publish("", "q", b"1" * 5000)
    where = node.api(1, "GET", "/api/queues/%2F/q")["kafka"]

    def limit(size: int) -> None:
        change = ["--alter", "--entity-type", "topics", "--entity-name", where["topic"]]
        command = [*change, "--add-config", f"max.message.bytes={size}"]
        run_java("kafka.admin.ConfigCommand", "--bootstrap-server", node.kafka.bootstrap, *command)

    limit(1000)
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", "q", b"2" * 5000)
    assert node.api(1, "GET", "/api/queues/%2F/q")["kafka"]["refused"].startswith("MESSAGE_TOO_LARGE")
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", "q", b"3")
    limit(9_000_000)
    deadline = time.monotonic() + 60
    while node.api(1, "GET", "/api/queues/%2F/q")["kafka"]["refused"]:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    channel.basic_publish("", "q", b"4" * 5000)
    while b"4" not in got:
        channel.connection.process_data_events(0.1)
        assert time.monotonic() < deadline
    assert got == [b"1", b"2", b"4"]  # what was nacked was stored later
    assert node[1].told.count("is served here: epoch 0") == 2  # slot 0 and the one of `/`, each taken once


@pytest.mark.external
@pytest.mark.parametrize(
    ("setting", "value", "why"),
    [
        ("cluster.secret", "quite another secret", "cluster.secret differs from that of the cluster's nodes"),
        ("cluster.node", "amqpd-1", "cluster.node amqpd-1 is already used by the node at"),
    ],
)
def test_a_node_that_does_not_belong_to_the_cluster_ends_before_it_has_a_slot(
    node: Nodes, tmp_path: Path, setting: str, value: str, why: str
) -> None:
    others = {"data-dir": tmp_path / "stranger", "cluster.node": "stranger", "cluster.listen": "127.0.0.1:0"}
    given = dict(each.removeprefix("--").split("=", 1) for each in node.arguments(node[1]))
    del given["cluster.address"]
    settings = {**given, **others, "amqp.port": 0, "http.port": 0, setting: value}
    arguments = [f"--{name}={text}" for name, text in settings.items()]
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "amqpd", *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 69, ended.stderr
    assert f"amqpd: this node does not belong to cluster {node.name}: {why}" in ended.stderr
    assert "is served here" not in ended.stderr
    assert parse_ready_line(ended.stdout) is None
    assert node.api(1, "GET", "/api/vhosts")[0]["name"] == "/"


def test_a_server_without_kafka_imports_nothing_of_a_cluster() -> None:
    program = "import amqpd.server, sys; print([each for each in sys.modules if each.startswith('amqpd.cluster')])"
    command = [sys.executable, "-P", "-c", program]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert told.stdout.strip() == "[]"
