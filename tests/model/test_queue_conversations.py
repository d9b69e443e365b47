"""Conversations about queues, once each: what a machine of random steps seldom meets."""

from __future__ import annotations

import struct
from typing import Any

import pamqp.commands as spec
import pytest
from memory_broker import Client, MemoryBroker

PERSISTENT = b"\x10\x00\x02"
PLAIN = b"\x00\x00"


def one_channel() -> tuple[MemoryBroker, Client]:
    house = MemoryBroker()
    return house, Client(house, "c")


def heard(house: MemoryBroker, client: Client, *methods: Any) -> list[str]:
    client.say(1, *methods)
    house.settle()
    return [event.method.name for event in client.heard()]


def test_recover_leaves_what_the_transaction_has_settled() -> None:
    """rabbit: acked in a transaction is not outstanding, so recover does not bring it back."""
    house, client = one_channel()
    heard(house, client, spec.Channel.Open(), spec.Queue.Declare(queue="q"), spec.Tx.Select())
    client.publish(1, "q", [b"first", b"second"], PLAIN)
    heard(house, client, spec.Tx.Commit(), spec.Basic.Get(queue="q"), spec.Basic.Get(queue="q"))
    assert heard(house, client, spec.Basic.Ack(delivery_tag=1), spec.Basic.Recover(requeue=True)) == ["Basic.RecoverOk"]
    assert house.vhost.queues["q"].ready_count == 1
    assert heard(house, client, spec.Tx.Commit()) == ["Tx.CommitOk"]
    assert (house.vhost.queues["q"].ready_count, house.vhost.queues["q"].unacked_count) == (1, 0)
    house.end()


@pytest.mark.parametrize("header", [b"CC", b"BCC"])
def test_a_commit_reaches_the_queues_of_the_publish(header: bytes) -> None:
    """Also those of BCC, which the message itself no longer names; a queue that is gone by then is left out."""
    house, client = one_channel()
    declare = [spec.Queue.Declare(queue=name, durable=True) for name in ("q", "copy", "gone")]
    heard(house, client, spec.Channel.Open(), *declare, spec.Exchange.Declare(exchange="x", exchange_type="direct"))
    binds = [spec.Queue.Bind(queue=name, exchange="x", routing_key=name) for name in ("q", "copy", "gone")]
    headers = [spec.Exchange.Declare(exchange="h", exchange_type="headers")]
    headers += [spec.Exchange.Bind(destination="h", source="x", routing_key="q")]
    heard(house, client, *binds, *headers, spec.Tx.Select())
    keys = b"".join(b"S" + struct.pack(">I", len(key)) + key for key in (b"copy", b"gone"))
    entry = bytes((len(header),)) + header + b"A" + struct.pack(">I", len(keys)) + keys
    properties = b"\x30\x00" + struct.pack(">I", len(entry)) + entry + b"\x02"
    client.publish(1, "q", [b"both"], properties, "x")
    assert heard(house, client, spec.Queue.Delete(queue="gone"), spec.Tx.Commit()) == ["Queue.DeleteOk", "Tx.CommitOk"]
    assert {name: queue.ready_count for name, queue in house.vhost.queues.items()} == {"q": 1, "copy": 1}
    house.end()


@pytest.mark.parametrize("durable", [True, False])
def test_more_unacked_than_memory_keeps(durable: bool) -> None:
    """What a consumer holds may be in the log alone: it comes back whole, in its place, redelivered."""
    house, client = one_channel()
    heard(house, client, spec.Channel.Open(), spec.Queue.Declare(queue="q", durable=durable))
    bodies = [b"%08d" % number for number in range(2500)]
    client.publish(1, "q", bodies, PERSISTENT)
    assert heard(house, client, spec.Basic.Consume(queue="q", consumer_tag="t")).count("Basic.Deliver") == len(bodies)
    heard(
        house, client, spec.Basic.Cancel(consumer_tag="t"), spec.Basic.Nack(delivery_tag=0, multiple=True, requeue=True)
    )
    client.say(1, spec.Basic.Consume(queue="q", consumer_tag="t", no_ack=True))
    house.settle()
    again = [event for event in client.heard() if isinstance(event.method, spec.Basic.Deliver)]
    assert [event.body for event in again] == bodies
    assert all(event.method.redelivered for event in again)
    house.end()


@pytest.mark.parametrize("how", [{"x-group-by": "routing_key"}, {}])
def test_what_comes_back_to_its_consumer_at_once_costs_no_credit(how: dict[str, Any]) -> None:
    """A full queue whose consumers have filters or groups serves them before it drops, also what they return."""
    house, client = one_channel()
    arguments = {"x-max-length": 0} | how
    heard(house, client, spec.Channel.Open(), spec.Queue.Declare(queue="q", arguments=arguments))
    wanted = {} if how else {"x-filter": "TRUE"}
    heard(house, client, spec.Basic.Qos(prefetch_count=2), spec.Basic.Consume(queue="q", arguments=wanted))
    for tag in range(1, 4):
        client.publish(1, "q", [b"x"], PLAIN)
        assert heard(house, client) == ["Basic.Deliver"]
        assert heard(house, client, spec.Basic.Nack(2 * tag - 1, requeue=True)) == ["Basic.Deliver"]
        assert heard(house, client, spec.Basic.Ack(2 * tag)) == []
    client.publish(1, "q", [b"x", b"y", b"z"], PLAIN)
    assert heard(house, client) == ["Basic.Deliver"] * 2
    house.end()
