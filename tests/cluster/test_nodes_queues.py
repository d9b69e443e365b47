"""Every kind of queue in a cluster: its contents survive a kill of its node, and unsupported features are refused. One
Kafka broker, two nodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pika
import pika.exceptions
import pytest
from amqpd_nodes import Nodes
from kafka_rig import Kafka
from nodes_story import count
from pika.adapters.blocking_connection import BlockingChannel

WAIT_S = 120


@pytest.fixture
def nodes(kafka: Kafka, tmp_path: Path) -> Iterator[Nodes]:
    with Nodes(tmp_path, kafka, 2, name=f"q{tmp_path.name.rsplit('-', 1)[-1]}{time.time_ns() % 10**9}") as nodes:
        yield nodes
        for client in Client.made:
            client.close()
        Client.made.clear()


class Client:
    """A connection to one node with a confirming channel. made: all clients of the test."""

    made: ClassVar[list[Client]] = []

    def __init__(self, nodes: Nodes, number: int) -> None:
        host, port = nodes[number].amqp
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                parameters = pika.ConnectionParameters(host, port, heartbeat=0, stack_timeout=WAIT_S)
                self.connection = pika.BlockingConnection(parameters)
                break
            except (pika.exceptions.AMQPError, OSError):
                assert time.monotonic() < deadline
                time.sleep(0.2)
        self.made.append(self)
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()

    def close(self) -> None:
        with suppress(pika.exceptions.AMQPError, OSError):
            self.connection.close()

    def publish(self, queue: str, *bodies: str, exchange: str = "", **properties: Any) -> None:
        given = pika.BasicProperties(delivery_mode=2, **properties)
        for body in bodies:
            self.channel.basic_publish(exchange, queue, body.encode(), given)

    def ready(self, queue: str) -> int:
        return int(self.channel.queue_declare(queue, passive=True).method.message_count)

    def get(self, queue: str, ack: bool = True) -> tuple[str, bool, Any] | None:
        method, properties, body = self.channel.basic_get(queue)
        if method is None:
            return None
        if ack:
            self.channel.basic_ack(method.delivery_tag)
        return body.decode(), bool(method.redelivered), properties

    def drain(self, queue: str) -> list[str]:
        found = []
        while (got := self.get(queue)) is not None:
            found.append(got[0])
        return found

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < deadline
            self.connection.sleep(0.05)


def kill_owner(nodes: Nodes, vhost: str = "/") -> Client:
    """Kill the owner of the vhost and return a client of the other node."""
    owner = nodes.owner_of(vhost)
    nodes.kill(owner)
    return Client(nodes, 3 - owner)


QUEUES: dict[str, dict[str, Any]] = {
    "classic": {},
    "quorum": {"x-queue-type": "quorum"},
    "priority": {"x-max-priority": 5},
    "short": {"x-max-length": 3},
    "grouped": {"x-group-by": "header:customer"},
    "single": {"x-single-active-consumer": True},
    "lazy": {"x-queue-mode": "lazy"},
}


def test_work_queues_survive_a_kill(nodes: Nodes) -> None:
    client = Client(nodes, 1)
    for name, arguments in QUEUES.items():
        client.channel.queue_declare(name, durable=True, arguments=arguments)
        client.publish(name, *"abcdef", headers={"customer": "anna"})
    client.channel.queue_declare("transient", durable=False)
    client.publish("transient", "x")
    for name in ("classic", "quorum"):
        got = client.get(name)
        assert got is not None
        assert got[:2] == ("a", False)
    client.publish("priority", "urgent", priority=4)
    for _ in range(2):
        method, _, _ = client.channel.basic_get("quorum")
        client.channel.basic_nack(method.delivery_tag, requeue=True)
    client.connection.sleep(1)  # acks are sent to Kafka within 50 ms
    after = kill_owner(nodes)
    for name in QUEUES:
        after.until(lambda name=name: after.ready(name) >= 0)  # type: ignore[misc]
    got = after.get("quorum")
    assert got is not None
    assert got[:2] == ("b", True)
    assert got[2].headers["x-delivery-count"] == 2
    assert after.drain("quorum") == list("cdef")
    assert after.drain("classic") == list("bcdef")
    assert after.drain("priority") == ["urgent", *"abcdef"]
    assert after.drain("short") == list("def")
    for name in ("grouped", "single", "lazy"):
        assert after.drain(name) == list("abcdef")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
        after.ready("transient")


def test_stream_survives_a_kill(nodes: Nodes) -> None:
    client = Client(nodes, 1)
    client.channel.queue_declare(
        "stream", durable=True, arguments={"x-queue-type": "stream", "x-compression": "zstd", "x-max-age": "7D"}
    )
    client.publish("stream", *(f"{number}" for number in range(500)))
    assert read_stream(client, "stream", 490, 10) == [f"{number}" for number in range(490, 500)]
    after = kill_owner(nodes)
    after.publish("stream", "more")
    assert read_stream(after, "stream", "first", 501) == [*(f"{number}" for number in range(500)), "more"]


def read_stream(client: Client, queue: str, offset: int | str, count: int) -> list[str]:
    channel = client.connection.channel()
    channel.basic_qos(prefetch_count=100)
    found: list[str] = []

    def take(_: Any, method: Any, __: Any, body: bytes) -> None:
        found.append(body.decode())
        channel.basic_ack(method.delivery_tag)

    argument: Any = offset if isinstance(offset, str) else offset + first_offset(client, queue)
    channel.basic_consume(queue, take, arguments={"x-stream-offset": argument})
    client.until(lambda: len(found) >= count)
    channel.close()
    return found[:count]


def first_offset(client: Client, queue: str) -> int:
    """Return the first offset of a stream. In Kafka the first message is after a barrier."""
    channel = client.connection.channel()
    channel.basic_qos(prefetch_count=1)
    found: list[int] = []
    channel.basic_consume(
        queue,
        lambda _, __, properties, ___: found.append(int(properties.headers["x-stream-offset"])),
        arguments={"x-stream-offset": "first"},
    )
    client.until(lambda: bool(found))
    channel.close()
    return found[0]


def test_dead_letters_ttl_and_delayed_retries_survive_a_kill(nodes: Nodes) -> None:
    client = Client(nodes, 1)
    declare = client.channel.queue_declare
    declare("dead", durable=True)
    dead: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    declare("source", durable=True, arguments=dead)
    declare("expiring", durable=True, arguments={**dead, "x-message-ttl": 300})
    declare("retried", durable=True, arguments={"x-delayed-retry-type": "all", "x-delayed-retry-min": 60_000,
                                                "x-delayed-retry-max": 60_000})  # fmt: skip
    client.publish("source", "rejected", "kept")
    method, _, _ = client.channel.basic_get("source")
    client.channel.basic_reject(method.delivery_tag, requeue=False)
    client.publish("expiring", "late")
    client.until(lambda: client.ready("dead") == 2)
    client.publish("retried", "again", "waits")
    method, _, _ = client.channel.basic_get("retried")
    client.channel.basic_reject(method.delivery_tag, requeue=True)
    client.connection.sleep(1)
    after = kill_owner(nodes)
    assert sorted(after.drain("dead")) == ["late", "rejected"]
    assert after.drain("source") == ["kept"]
    assert after.drain("expiring") == []
    assert after.drain("retried") == ["waits"]  # the other message is not due yet
    after.publish("expiring", "later")
    after.until(lambda: after.ready("dead") == 1)


def publish_and_commit(channel: BlockingChannel, *bodies: bytes) -> None:
    """Publish to `orders` and commit. A too large transaction fails during the publish."""
    for body in bodies:
        channel.basic_publish("", "orders", body, pika.BasicProperties(delivery_mode=2))
    channel.tx_commit()


def test_committed_transaction_survives_a_kill(nodes: Nodes) -> None:
    client = Client(nodes, 1)
    client.channel.queue_declare("orders", durable=True)
    channel = client.connection.channel()
    channel.tx_select()
    publish_and_commit(channel, *(f"{number}".encode() for number in range(3000)))
    for number in range(10):
        channel.basic_publish("", "orders", f"not {number}".encode(), pika.BasicProperties(delivery_mode=2))
    for _ in range(5):
        method, _, _ = channel.basic_get("orders")
        channel.basic_ack(method.delivery_tag)
    channel.tx_rollback()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="too large: for queues of a cluster"):
        publish_and_commit(channel, *(b"x" * 100_000 for _ in range(90)))
    after = kill_owner(nodes)
    assert after.drain("orders") == [f"{number}" for number in range(3000)]


def test_acks_of_a_transaction_survive_a_kill(nodes: Nodes) -> None:
    """The owner is killed as soon as tx.commit-ok has arrived."""
    for turn in range(4):
        client = Client(nodes, nodes.running[0].number)
        client.channel.queue_declare("orders", durable=True)
        client.channel.queue_declare("done", durable=True)
        client.publish("orders", *(f"{turn}.{number}" for number in range(6)))
        channel = client.connection.channel()
        channel.tx_select()
        acked = []
        for number in range(4):
            method, _, body = channel.basic_get("orders")
            acked.append(body.decode())
            if turn % 2:
                channel.basic_publish("", "done", f"{turn}.{number}".encode(), pika.BasicProperties(delivery_mode=2))
            channel.basic_ack(method.delivery_tag)
        channel.tx_commit()
        owner = nodes.owner_of("/")
        after = kill_owner(nodes)
        assert not set(acked) & set(after.drain("orders"))
        assert after.drain("done") == ([f"{turn}.{number}" for number in range(4)] if turn % 2 else [])
        nodes.start(owner)


def refusal_text(nodes: Nodes, ask: Callable[[BlockingChannel], object]) -> str:
    client = Client(nodes, 1)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as answer:
        ask(client.channel)
    assert answer.value.reply_code == 406
    return str(answer.value.reply_text)


def test_features_without_cluster_support_are_refused(nodes: Nodes) -> None:
    for name, value in (("x-retain", "1D"), ("x-export", "lake")):
        arguments = {name: value}
        text = refusal_text(nodes, partial(declare_durable, arguments=arguments))
        assert f"invalid arg '{name}' for queue 'q' in vhost '/': not in a cluster: " in text
    text = refusal_text(
        nodes,
        lambda channel: channel.exchange_declare(
            "later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"}
        ),
    )
    assert "cannot be of type 'x-delayed-message': not in a cluster" in text
    client = Client(nodes, 1)
    client.channel.queue_declare("q", durable=True)
    numbers = {"x-producer-id": 7, "x-producer-epoch": 0, "x-sequence": 1}
    text = refusal_text(nodes, lambda channel: publish_and_wait(channel, "q", b"x", numbers))
    assert "invalid header 'x-producer-id': queue 'q' in vhost '/' is in a cluster" in text
    text = refusal_text(nodes, lambda channel: publish_and_wait(channel, "q", b"x" * ((8 << 20) + 1), {}))
    assert f"message size {(8 << 20) + 1} is larger than configured max size {8 << 20}" in text
    client.publish("q", "x" * (8 << 20), headers={"large": "y" * 100_000})
    assert client.ready("q") == 1


def declare_durable(channel: BlockingChannel, arguments: dict[str, Any]) -> None:
    channel.queue_declare("q", durable=True, arguments=arguments)


def publish_and_wait(channel: BlockingChannel, queue: str, body: bytes, headers: dict[str, Any]) -> None:
    channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, headers=headers))
    channel.queue_declare(queue, passive=True)


def test_recreated_queue_never_shows_old_messages(nodes: Nodes) -> None:
    """This holds for any node that serves the queue by then."""
    client = Client(nodes, 1)
    for turn in range(count(6, 12)):
        client.channel.queue_declare("again", durable=True)
        assert client.ready("again") == 0
        client.publish("again", *(f"{turn}.{number}" for number in range(5)))
        if turn % 3 == 2:
            client.channel.queue_purge("again")
            client.publish("again", f"{turn} purged")
            client.connection.sleep(0.5)
            owner = nodes.owner_of("/")
            client = kill_owner(nodes)
            assert client.drain("again") == [f"{turn} purged"]
            nodes.start(owner)
        client.channel.queue_delete("again")
    client.channel.queue_declare("again", durable=True)
    assert client.ready("again") == 0
