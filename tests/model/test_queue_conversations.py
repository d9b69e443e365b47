"""Exchanges of commands about queues that the random model tests seldom reach."""

from __future__ import annotations

import struct
from typing import Any

import pamqp.commands as spec
import pytest
from memory_broker import Client, MemoryBroker

PERSISTENT = b"\x10\x00\x02"
PLAIN = b"\x00\x00"


def one_channel() -> tuple[MemoryBroker, Client]:
    server = MemoryBroker()
    return server, Client(server, "c")


def send(server: MemoryBroker, client: Client, *methods: Any) -> list[str]:
    client.say(1, *methods)
    server.settle()
    return [event.method.name for event in client.heard()]


def test_recover_skips_messages_acked_in_open_transaction() -> None:
    """RabbitMQ: a message acked in a transaction is not outstanding, so recover does not requeue it."""
    server, client = one_channel()
    send(server, client, spec.Channel.Open(), spec.Queue.Declare(queue="q"), spec.Tx.Select())
    client.publish(1, "q", [b"first", b"second"], PLAIN)
    send(server, client, spec.Tx.Commit(), spec.Basic.Get(queue="q"), spec.Basic.Get(queue="q"))
    assert send(server, client, spec.Basic.Ack(delivery_tag=1), spec.Basic.Recover(requeue=True)) == ["Basic.RecoverOk"]
    assert server.vhost.queues["q"].ready_count == 1
    assert send(server, client, spec.Tx.Commit()) == ["Tx.CommitOk"]
    assert (server.vhost.queues["q"].ready_count, server.vhost.queues["q"].unacked_count) == (1, 0)
    server.end()


@pytest.mark.parametrize("header", [b"CC", b"BCC"])
def test_commit_delivers_to_queues_routed_at_publish(header: bytes) -> None:
    """Includes BCC queues, although the stored message has no BCC header; skips a queue that was deleted since."""
    server, client = one_channel()
    declare = [spec.Queue.Declare(queue=name, durable=True) for name in ("q", "copy", "gone")]
    send(server, client, spec.Channel.Open(), *declare, spec.Exchange.Declare(exchange="x", exchange_type="direct"))
    binds = [spec.Queue.Bind(queue=name, exchange="x", routing_key=name) for name in ("q", "copy", "gone")]
    headers = [spec.Exchange.Declare(exchange="h", exchange_type="headers")]
    headers += [spec.Exchange.Bind(destination="h", source="x", routing_key="q")]
    send(server, client, *binds, *headers, spec.Tx.Select())
    keys = b"".join(b"S" + struct.pack(">I", len(key)) + key for key in (b"copy", b"gone"))
    entry = bytes((len(header),)) + header + b"A" + struct.pack(">I", len(keys)) + keys
    properties = b"\x30\x00" + struct.pack(">I", len(entry)) + entry + b"\x02"
    client.publish(1, "q", [b"both"], properties, "x")
    assert send(server, client, spec.Queue.Delete(queue="gone"), spec.Tx.Commit()) == ["Queue.DeleteOk", "Tx.CommitOk"]
    assert {name: queue.ready_count for name, queue in server.vhost.queues.items()} == {"q": 1, "copy": 1}
    server.end()


@pytest.mark.parametrize("durable", [True, False])
def test_requeue_of_more_unacked_messages_than_memory_keeps_order(durable: bool) -> None:
    """Unacked messages may be only in the log; they are redelivered complete and in order."""
    server, client = one_channel()
    send(server, client, spec.Channel.Open(), spec.Queue.Declare(queue="q", durable=durable))
    bodies = [b"%08d" % number for number in range(2500)]
    client.publish(1, "q", bodies, PERSISTENT)
    assert send(server, client, spec.Basic.Consume(queue="q", consumer_tag="t")).count("Basic.Deliver") == len(bodies)
    send(
        server,
        client,
        spec.Basic.Cancel(consumer_tag="t"),
        spec.Basic.Nack(delivery_tag=0, multiple=True, requeue=True),
    )
    client.say(1, spec.Basic.Consume(queue="q", consumer_tag="t", no_ack=True))
    server.settle()
    redelivered = [event for event in client.heard() if isinstance(event.method, spec.Basic.Deliver)]
    assert [event.body for event in redelivered] == bodies
    assert all(event.method.redelivered for event in redelivered)
    server.end()


@pytest.mark.parametrize("arguments_of_kind", [{"x-group-by": "routing_key"}, {}])
def test_requeue_to_same_consumer_frees_its_credit(arguments_of_kind: dict[str, Any]) -> None:
    """A full queue with filters or groups delivers to its consumers before it drops, including requeued messages."""
    server, client = one_channel()
    arguments = {"x-max-length": 0} | arguments_of_kind
    send(server, client, spec.Channel.Open(), spec.Queue.Declare(queue="q", arguments=arguments))
    consumer_arguments = {} if arguments_of_kind else {"x-filter": "TRUE"}
    send(server, client, spec.Basic.Qos(prefetch_count=2), spec.Basic.Consume(queue="q", arguments=consumer_arguments))
    for tag in range(1, 4):
        client.publish(1, "q", [b"x"], PLAIN)
        assert send(server, client) == ["Basic.Deliver"]
        assert send(server, client, spec.Basic.Nack(2 * tag - 1, requeue=True)) == ["Basic.Deliver"]
        assert send(server, client, spec.Basic.Ack(2 * tag)) == []
    client.publish(1, "q", [b"x", b"y", b"z"], PLAIN)
    assert send(server, client) == ["Basic.Deliver"] * 2
    server.end()
