"""Requeued messages: their order and their next consumer."""

from __future__ import annotations

import socket
import struct
from typing import Any

import pytest
from deliveries import Declare, eventually, fill, numbers, rest, take
from parties import Broker
from peer import Peer
from wire import properties


def test_requeue_restores_the_order(speaker: Peer, declare_queue: Declare) -> None:
    """Requeue by nack in another order, with one message acked in between."""
    declare_queue(speaker)
    fill(speaker, 5)
    tags = []
    for _ in range(4):
        got = speaker.get(no_ack=False)
        assert got is not None
        tags.append(got.method["delivery_tag"])
    speaker.method("basic.ack", delivery_tag=tags[1])
    for tag in (tags[3], tags[0], tags[2]):
        speaker.method("basic.nack", delivery_tag=tag, requeue=True)
    speaker.fence()
    assert rest(speaker) == [(0, True), (2, True), (3, True), (4, False)]


REQUEUES: dict[str, dict[str, Any]] = {
    "basic.nack": {"delivery_tag": 3, "multiple": True, "requeue": True},
    "basic.nack-all": {"delivery_tag": 0, "multiple": True, "requeue": True},
    "basic.recover": {"requeue": True},
    "basic.recover-async": {"requeue": True},
}


@pytest.mark.parametrize("name", REQUEUES)
def test_requeue_of_several_messages(speaker: Peer, name: str, declare_queue: Declare) -> None:
    declare_queue(speaker)
    fill(speaker, 4)
    for _ in range(3):
        assert speaker.get(no_ack=False) is not None
    speaker.method(name.removesuffix("-all"), **REQUEUES[name])
    if name == "basic.recover":
        speaker.expect("basic.recover-ok")
    speaker.fence()
    assert rest(speaker) == [(0, True), (1, True), (2, True), (3, False)]


def test_reject_without_requeue_drops_message(speaker: Peer, declare_queue: Declare) -> None:
    declare_queue(speaker)
    fill(speaker, 3)
    for _ in range(2):
        assert speaker.get(no_ack=False) is not None
    speaker.method("basic.reject", delivery_tag=1)
    speaker.method("basic.nack", delivery_tag=2)
    speaker.fence()
    assert rest(speaker) == [(2, False)]


def test_multiple_ack_includes_all_lower_tags(speaker: Peer, declare_queue: Declare) -> None:
    """A multiple ack includes its tag and all below; tag 0 means all."""
    declare_queue(speaker)
    fill(speaker, 8)
    speaker.call("basic.consume", queue=speaker.q, consumer_tag="T")
    take(speaker, 8)
    speaker.call("basic.cancel", consumer_tag="T")
    speaker.method("basic.ack", delivery_tag=2)
    speaker.method("basic.ack", delivery_tag=5, multiple=True)
    speaker.call("basic.recover", requeue=True)
    assert rest(speaker) == [(5, True), (6, True), (7, True)]
    fill(speaker, 3)
    for _ in range(3):
        assert speaker.get(no_ack=False) is not None
    speaker.method("basic.ack", multiple=True)
    speaker.call("basic.recover", requeue=True)
    assert rest(speaker) == []


def test_requeued_message_goes_to_waiting_consumer(speaker: Peer, declare_queue: Declare) -> None:
    declare_queue(speaker)
    speaker.call("basic.consume", queue=speaker.q, consumer_tag="T")
    speaker.publish(payload=b"0")
    first = speaker.content("basic.deliver")
    speaker.method("basic.reject", delivery_tag=first.method["delivery_tag"], requeue=True)
    second = speaker.content("basic.deliver")
    assert (second.body, second.method["redelivered"]) == (b"0", True)
    assert second.method["delivery_tag"] == first.method["delivery_tag"] + 1


def test_channel_close_requeues_unacked(speaker: Peer, declare_queue: Declare) -> None:
    declare_queue(speaker)
    speaker.channel(2)
    fill(speaker, 3)
    for _ in range(2):
        assert speaker.get(no_ack=False, channel=2) is not None
    speaker.call("channel.close", 2, reply_code=200)
    assert rest(speaker) == [(0, True), (1, True), (2, False)]


@pytest.mark.parametrize("kind", ["memory", "log"])
@pytest.mark.parametrize("ending", ["close", "drop", "reset"])
def test_connection_end_requeues_unacked(broker: Broker, peer: Peer, ending: str, kind: str) -> None:
    peer.queue(exclusive=False, durable=kind == "log")
    fill(peer, 4)
    with broker.peer() as other:
        other.handshake()
        other.channel()
        other.call("basic.qos", prefetch_count=3)
        other.call("basic.consume", queue=peer.q)
        assert numbers([other.content("basic.deliver") for _ in range(3)]) == [0, 1, 2]
        other.method("basic.ack", delivery_tag=2)
        other.content("basic.deliver")
        other.fence()
        if ending == "close":
            other.method("connection.close", 0, reply_code=200)
            while other.read().name != "connection.close-ok":
                pass
        elif ending == "reset":
            other.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    eventually(peer, peer.q, 3)
    assert rest(peer) == [(0, True), (2, True), (3, True)]
    peer.call("queue.delete", queue=peer.q)


def test_channel_close_keeps_consumers_of_other_channels(speaker: Peer) -> None:
    speaker.queue()
    speaker.channel(2)
    speaker.call("basic.consume", queue=speaker.q, consumer_tag="one", no_ack=True)
    speaker.call("basic.consume", 2, queue=speaker.q, consumer_tag="two", no_ack=True)
    speaker.call("channel.close", 2, reply_code=200)
    delivered_to = []
    for n in range(4):
        speaker.publish(payload=b"%d" % n)
        delivered_to.append(speaker.content("basic.deliver").method["consumer_tag"])
    assert delivered_to == ["one"] * 4


def test_returned_message_with_a_priority_alone_keeps_it(speaker: Peer) -> None:
    """Priority is the only property: the message, read back from the log for its return, has no delivery mode."""
    speaker.queue(exclusive=False, durable=True, arguments={"x-max-priority": 5})
    try:
        for n, priority in enumerate((5, 1, 5)):
            speaker.publish(payload=b"%d" % n, props=properties(priority=priority))
        speaker.call("basic.qos", prefetch_count=1)
        speaker.call("basic.consume", queue=speaker.q, consumer_tag="c")
        speaker.content("basic.deliver")
        speaker.method("basic.nack", delivery_tag=1, requeue=True)
        assert numbers(take(speaker, 1)) == [0]
    finally:
        speaker.call("queue.delete", queue=speaker.q)


def test_full_quorum_queue_gives_returned_messages_to_consumers_first(speaker: Peer) -> None:
    """The length limit drops only what no consumer has room for."""
    arguments = {"x-queue-type": "quorum", "x-max-length": 1, "x-delivery-limit": 20}
    speaker.queue(exclusive=False, durable=True, arguments=arguments)
    try:
        speaker.call("basic.qos", prefetch_count=4)
        speaker.call("basic.consume", queue=speaker.q, consumer_tag="c")
        for n in range(4):
            speaker.publish(payload=b"%d" % n)
            speaker.content("basic.deliver")
        speaker.method("basic.nack", delivery_tag=0, multiple=True, requeue=True)
        assert numbers(take(speaker, 4)) == [0, 1, 2, 3]
        speaker.call("basic.cancel", consumer_tag="c")
        speaker.method("basic.nack", delivery_tag=0, multiple=True, requeue=True)
        speaker.fence()
        assert rest(speaker) == [(3, True)]
    finally:
        speaker.call("queue.delete", queue=speaker.q)


def test_full_quorum_queue_keeps_returned_messages_that_wait_for_the_output(speaker: Peer) -> None:
    """The length limit drops nothing that the consumer's credit covers, also if the output has no room for it yet."""
    count, body = 40, b"x" * 100_000
    arguments = {"x-queue-type": "quorum", "x-max-length": 1, "x-delivery-limit": 20}
    speaker.queue(exclusive=False, durable=True, arguments=arguments)
    try:
        speaker.call("basic.qos", prefetch_count=count)
        speaker.call("basic.consume", queue=speaker.q, consumer_tag="c")
        for n in range(count):
            speaker.publish(payload=b"%d" % n + body)
            speaker.content("basic.deliver")
        speaker.method("basic.nack", delivery_tag=0, multiple=True, requeue=True)
        returned = [speaker.content("basic.deliver").body for _ in range(count)]
        assert returned == [b"%d" % n + body for n in range(count)]
    finally:
        speaker.call("queue.delete", queue=speaker.q)
