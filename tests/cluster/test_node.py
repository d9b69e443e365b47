"""One node over one Kafka broker: durability after a kill, start, stop, vhosts, refusals."""

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
    """Connections that are closed at the end of the test, even if broken."""
    connections: list[pika.BlockingConnection] = []

    def connected(nodes: Nodes, number: int = 1, vhost: str = "/") -> pika.BlockingConnection:
        host, port = nodes[number].amqp
        connections.append(pika.BlockingConnection(pika.ConnectionParameters(host, port, vhost, socket_timeout=60)))
        return connections[-1]

    yield connected
    for each in connections:
        with suppress(pika.exceptions.AMQPError):
            each.close()


def drain(channel: pika.adapters.blocking_connection.BlockingChannel, queue: str) -> list[tuple[bytes, bool]]:
    """Get and ack all messages of the queue. Return (body, redelivered) of each."""
    found = []
    while True:
        method, _, body = channel.basic_get(queue)
        if method is None:
            return found
        found.append((body, method.redelivered))
        channel.basic_ack(method.delivery_tag)


def test_confirmed_messages_and_declarations_survive_a_kill(node: Nodes, connect) -> None:
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
    connection.process_data_events(0.5)  # acks go to Kafka within 50 ms
    node.kill(1)
    node.start(1)
    channel = connect(node).channel()
    channel.confirm_delivery()
    assert [int(body) for body, _ in drain(channel, "orders")] == list(range(10, 30))
    channel.basic_publish("shop", "a.c", b"behind")
    assert drain(channel, "orders") == [(b"behind", False)]
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="404"):
        channel.queue_declare("gone", passive=True)


def test_after_a_clean_stop_only_delivered_messages_are_redelivered(node: Nodes, connect) -> None:
    connection = connect(node)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True)
    for number in range(4):
        channel.basic_publish("", "q", b"%d" % number)
    channel.basic_get("q")  # not acked
    node.stop(1)
    node.start(1)
    assert drain(connect(node).channel(), "q") == [(b"0", True), (b"1", False), (b"2", False), (b"3", False)]


def test_recreated_vhost_has_no_queue_of_the_deleted_one(node: Nodes, connect) -> None:
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


def test_reset_is_refused_in_a_cluster(node: Nodes) -> None:
    node.api(1, "POST", "/api/amqpd/stop_app")
    with pytest.raises(NodeFailed, match=r"400 .*in a cluster"):
        node.api(1, "POST", "/api/amqpd/reset")
    assert [each["name"] for each in node.api(1, "GET", "/api/vhosts")] == ["/"]
    size = node.api(1, "GET", "/api/health/checks/reached-target-cluster-size")
    assert (size["status"], size["cluster_size"]) == ("ok", 1)


def test_data_directory_of_a_single_node_is_refused(tmp_path: Path, kafka: Kafka) -> None:
    (tmp_path / "metadata.sqlite").write_bytes(b"")
    settings = ["--cluster.kafka", kafka.bootstrap, "--cluster.name", "x", "--cluster.secret", "0123456789abcdef"]
    command = [sys.executable, "-P", "-m", "amqpd", "--data-dir", str(tmp_path), *settings]
    env = {name: value for name, value in os.environ.items() if not name.startswith("AMQPD_")}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)
    assert ended.returncode == 69
    assert "cluster_import" in ended.stderr


@pytest.mark.external
@pytest.mark.parametrize("kind", ["classic", "stream"])
def test_publish_works_again_after_kafka_refused_one(node: Nodes, connect, kind: str) -> None:
    """The topic's max.message.bytes is lowered and raised again. The consumer and the owner stay."""
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
    partition = node.api(1, "GET", "/api/queues/%2F/q")["kafka"]

    def limit(size: int) -> None:
        change = ["--alter", "--entity-type", "topics", "--entity-name", partition["topic"]]
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
    assert got == [b"1", b"2", b"4"]  # the nacked message 2 was stored later
    assert node[1].log_text.count("is served here: epoch 0") == 2  # slot 0 and the slot of `/`, each taken once


@pytest.mark.external
@pytest.mark.parametrize(
    ("setting", "value", "why"),
    [
        ("cluster.secret", "quite another secret", "cluster.secret differs from that of the cluster's nodes"),
        ("cluster.node", "amqpd-1", "cluster.node amqpd-1 is already used by the node at"),
    ],
)
def test_node_with_wrong_secret_or_taken_name_exits(
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


def test_server_without_kafka_does_not_import_amqpd_cluster() -> None:
    program = "import amqpd.server, sys; print([each for each in sys.modules if each.startswith('amqpd.cluster')])"
    command = [sys.executable, "-P", "-c", program]
    output = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert output.stdout.strip() == "[]"
