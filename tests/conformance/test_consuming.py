"""Consumers: names, fairness, tags, cancellation, priorities."""

from __future__ import annotations

import re

from deliveries import Declare, fill, rest, take
from parties import Broker
from peer import Peer
from wire import method


def test_server_generated_names(speaker: Peer) -> None:
    first = speaker.call("queue.declare", exclusive=True)["queue"]
    second = speaker.call("queue.declare", exclusive=True)["queue"]
    assert re.fullmatch(r"amq\.gen-[A-Za-z0-9_-]{22}", first)
    assert first != second
    tag = speaker.call("basic.consume", queue=first)["consumer_tag"]
    assert re.fullmatch(r"amq\.ctag-[A-Za-z0-9_-]{22}", tag)


def test_round_robin_of_consumers(speaker: Peer, declare_queue: Declare) -> None:
    declare_queue(speaker)
    for tag in ("a", "b", "c"):
        speaker.call("basic.consume", queue=speaker.q, consumer_tag=tag, no_ack=True)
    delivered_to = []
    for n in range(9):
        speaker.publish(payload=b"%d" % n)
        delivered_to.append(speaker.content("basic.deliver").method["consumer_tag"])
    assert sorted(delivered_to[:3]) == ["a", "b", "c"]
    assert delivered_to == delivered_to[:3] * 3


def test_delivery_tags_count_per_channel(speaker: Peer, declare_queue: Declare) -> None:
    declare_queue(speaker)
    fill(speaker, 3)
    speaker.call("basic.consume", queue=speaker.q)
    assert [content.method["delivery_tag"] for content in take(speaker, 3)] == [1, 2, 3]
    speaker.publish()
    assert take(speaker, 1)[0].method["delivery_tag"] == 4


def test_deleted_queue_cancels_its_consumer(speaker: Peer) -> None:
    speaker.queue()
    speaker.call("basic.consume", queue=speaker.q, consumer_tag="T")
    speaker.channel(2)
    speaker.method("queue.delete", 2, queue=speaker.q)
    got = {frame.name: frame for frame in (speaker.read(), speaker.read())}
    assert got["basic.cancel"].arguments == {"consumer_tag": "T", "nowait": True}
    assert got["basic.cancel"].channel == 1
    assert got["queue.delete-ok"].channel == 2
    speaker.fence()


def test_delete_ok_precedes_cancel_on_the_same_channel(speaker: Peer, declare_queue: Declare) -> None:
    """kombu deletes its own queue, and treats a notification before the reply as an error."""
    declare_queue(speaker)
    speaker.call("basic.consume", queue=speaker.q, consumer_tag="T")
    speaker.method("queue.delete", queue=speaker.q)
    assert speaker.read().name == "queue.delete-ok"
    assert speaker.expect("basic.cancel")["consumer_tag"] == "T"


def test_ack_before_cancel_triggers_delivery(speaker: Peer, declare_queue: Declare) -> None:
    """RabbitMQ: the queue handles ack and cancel in order; php-amqp's suite relies on the delivery between them."""
    declare_queue(speaker)
    fill(speaker, 3)
    speaker.call("basic.qos", prefetch_count=1)
    speaker.call("basic.consume", queue=speaker.q, consumer_tag="T")
    assert speaker.content("basic.deliver").body == b"0"
    speaker.send(method("basic.ack", delivery_tag=1), method("basic.cancel", consumer_tag="T"))
    assert speaker.content("basic.deliver").body == b"1"
    speaker.expect("basic.cancel-ok")


def test_no_cancel_notification_without_the_capability(broker: Broker) -> None:
    with broker.peer() as peer:
        peer.handshake(client_properties={"capabilities": {"consumer_cancel_notify": False}})
        peer.channel()
        peer.queue()
        peer.call("basic.consume", queue=peer.q, consumer_tag="T")
        peer.call("queue.delete", queue=peer.q)
        peer.fence()


def test_cancel_does_not_requeue(speaker: Peer, declare_queue: Declare) -> None:
    declare_queue(speaker)
    fill(speaker, 2)
    speaker.call("basic.consume", queue=speaker.q, consumer_tag="T")
    got = take(speaker, 2)
    speaker.call("basic.cancel", consumer_tag="T")
    assert rest(speaker) == []
    speaker.method("basic.ack", delivery_tag=got[1].method["delivery_tag"], multiple=True)
    speaker.fence()


def test_single_active_consumer(speaker: Peer) -> None:
    """One consumer at a time, then the next one; an exclusive consumer is refused."""
    speaker.queue(arguments={"x-single-active-consumer": True})
    for tag in ("a", "b"):
        speaker.call("basic.consume", queue=speaker.q, consumer_tag=tag, no_ack=True)
    for _ in range(2):
        speaker.publish()
        assert speaker.content("basic.deliver").method["consumer_tag"] == "a"
    speaker.call("basic.cancel", consumer_tag="a")
    speaker.publish()
    assert speaker.content("basic.deliver").method["consumer_tag"] == "b"
    speaker.method("basic.consume", queue=speaker.q, consumer_tag="c", exclusive=True)
    speaker.expect_channel_close(403, 60, 20, "queue '{q}' in vhost '/' in exclusive use")


def test_consumer_priorities(speaker: Peer, declare_queue: Declare) -> None:
    """The highest priority with credit first; the next priority when its window is full."""
    declare_queue(speaker)
    speaker.call("basic.qos", prefetch_count=2)
    for tag, priority in (("low", -1), ("none", None), ("high", 10)):
        arguments = {} if priority is None else {"x-priority": priority}
        speaker.call("basic.consume", queue=speaker.q, consumer_tag=tag, arguments=arguments)
    order = []
    for n in range(6):
        speaker.publish(payload=b"%d" % n)
        order.append(speaker.content("basic.deliver").method["consumer_tag"])
    assert order == ["high", "high", "none", "none", "low", "low"]
