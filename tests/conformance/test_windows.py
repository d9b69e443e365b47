"""basic.qos: the number of unacked deliveries per consumer and per channel."""

from __future__ import annotations

import pytest
from deliveries import Declare, fill, numbers, take
from parties import Broker
from peer import Peer
from wire import method, publish


def test_prefetch_per_consumer(speaker: Peer) -> None:
    """global=false applies to consumers started afterwards, each with its own window."""
    speaker.queue()
    speaker.queue(speaker.q + "2")
    speaker.call("basic.qos", prefetch_count=2)
    speaker.call("basic.consume", queue=speaker.q, consumer_tag="two")
    speaker.call("basic.qos", prefetch_count=3)
    speaker.call("basic.consume", queue=speaker.q + "2", consumer_tag="three")
    for n in range(6):
        speaker.publish(payload=b"%d" % n)
        speaker.publish(speaker.q + "2", b"%d" % n)
    got = [speaker.content("basic.deliver") for _ in range(5)]
    speaker.fence()
    by_tag = {tag: [int(c.body) for c in got if c.method["consumer_tag"] == tag] for tag in ("two", "three")}
    assert by_tag == {"two": [0, 1], "three": [0, 1, 2]}
    first = next(c for c in got if c.method["consumer_tag"] == "two")
    speaker.method("basic.ack", delivery_tag=first.method["delivery_tag"])
    following = speaker.content("basic.deliver")
    assert (following.method["consumer_tag"], following.body) == ("two", b"2")


def test_prefetch_zero_is_unlimited(speaker: Peer, declare_queue: Declare) -> None:
    declare_queue(speaker)
    fill(speaker, 50)
    speaker.call("basic.consume", queue=speaker.q)
    assert numbers(take(speaker, 50)) == list(range(50))


def test_prefetch_does_not_limit_no_ack_consumers(speaker: Peer) -> None:
    speaker.queue()
    fill(speaker, 5)
    speaker.call("basic.qos", prefetch_count=1)
    speaker.call("basic.consume", queue=speaker.q, no_ack=True)
    assert numbers([speaker.content("basic.deliver") for _ in range(5)]) == list(range(5))


def test_acks_in_any_order_open_the_window(speaker: Peer, declare_queue: Declare) -> None:
    declare_queue(speaker)
    fill(speaker, 6)
    speaker.call("basic.qos", prefetch_count=3)
    speaker.call("basic.consume", queue=speaker.q)
    tags = [speaker.content("basic.deliver").method["delivery_tag"] for _ in range(3)]
    speaker.fence()
    speaker.method("basic.ack", delivery_tag=tags[1])
    assert speaker.content("basic.deliver").body == b"3"
    speaker.method("basic.ack", delivery_tag=tags[2], multiple=True)
    assert [speaker.content("basic.deliver").body for _ in range(2)] == [b"4", b"5"]


def test_global_window_is_shared_by_consumers(speaker: Peer) -> None:
    """global=true: one window for all consumers of the channel, also no-ack consumers."""
    speaker.queue()
    speaker.queue(speaker.q + "2")
    speaker.call("basic.qos", prefetch_count=2, global_=True)
    speaker.call("basic.consume", queue=speaker.q, consumer_tag="a")
    speaker.call("basic.consume", queue=speaker.q + "2", consumer_tag="b")
    for n in range(3):
        speaker.publish(payload=b"%d" % n)
        speaker.publish(speaker.q + "2", b"%d" % n)
    got = [speaker.content("basic.deliver") for _ in range(2)]
    speaker.fence()
    speaker.method("basic.ack", delivery_tag=got[-1].method["delivery_tag"], multiple=True)
    more = [speaker.content("basic.deliver") for _ in range(2)]
    speaker.fence()
    speaker.method("basic.ack", delivery_tag=more[-1].method["delivery_tag"], multiple=True)
    last = [speaker.content("basic.deliver") for _ in range(2)]
    assert sorted(int(c.body) for c in got + more + last) == [0, 0, 1, 1, 2, 2]


def test_global_window_rotates_the_consumers_of_a_queue(speaker: Peer, broker_is_ours: bool) -> None:
    """Each time the channel's window opens, the consumer after the one that filled it is next."""
    speaker.queue()
    fill(speaker, 9)
    speaker.call("basic.qos", prefetch_count=1, global_=True)
    for tag in ("a", "b", "c"):
        speaker.method("basic.consume", queue=speaker.q, consumer_tag=tag)
    served = consumers_served(speaker, 9)
    assert served == ["a", "b", "c"] * 3 if broker_is_ours else set(served) > {"a"}


def test_global_window_rotates_the_queues(speaker: Peer, broker_is_ours: bool) -> None:
    """Each time the channel's window opens, the queue after the one that filled it is next."""
    tags = ["a", "b", "c"]
    for tag in tags:
        speaker.queue(speaker.q + tag)
        for _ in range(4):
            speaker.publish(speaker.q + tag)
    speaker.call("basic.qos", prefetch_count=1, global_=True)
    for tag in tags:
        speaker.method("basic.consume", queue=speaker.q + tag, consumer_tag=tag)
    served = consumers_served(speaker, 9)
    assert served == tags * 3 if broker_is_ours else set(served) > {"a"}


def consumers_served(speaker: Peer, count: int) -> list[str]:
    """Return the consumer tags of the next deliveries, acking each at once."""
    served: list[str] = []
    while len(served) < count:
        frame = speaker.read()
        if frame.name == "basic.deliver":
            served.append(frame["consumer_tag"])
            speaker.method("basic.ack", delivery_tag=frame["delivery_tag"])
    return served


def test_global_window_changes_while_consuming(speaker: Peer, declare_queue: Declare) -> None:
    declare_queue(speaker)
    fill(speaker, 10)
    speaker.call("basic.qos", prefetch_count=1, global_=True)
    speaker.call("basic.consume", queue=speaker.q)
    tags = [speaker.content("basic.deliver").method["delivery_tag"]]
    speaker.fence()
    speaker.send(method("basic.qos", prefetch_count=4, global_=True))
    speaker.expect("basic.qos-ok")
    tags += [speaker.content("basic.deliver").method["delivery_tag"] for _ in range(3)]
    speaker.call("basic.qos", prefetch_count=2, global_=True)
    speaker.method("basic.ack", delivery_tag=tags[1], multiple=True)
    speaker.fence()
    speaker.method("basic.ack", delivery_tag=tags[2])
    assert speaker.content("basic.deliver").body == b"4"
    speaker.send(method("basic.qos", prefetch_count=0, global_=True))
    speaker.expect("basic.qos-ok")
    assert [speaker.content("basic.deliver").body for _ in range(5)] == [b"5", b"6", b"7", b"8", b"9"]


def test_consumer_and_global_window_combine(speaker: Peer) -> None:
    speaker.queue()
    speaker.call("basic.qos", prefetch_count=2)
    speaker.call("basic.qos", prefetch_count=3, global_=True)
    speaker.call("basic.consume", queue=speaker.q, consumer_tag="a")
    publishes = [publish(speaker.q, b"%d" % n) for n in range(6)]
    speaker.send(*publishes)
    first = [speaker.content("basic.deliver") for _ in range(2)]
    assert {c.method["consumer_tag"] for c in first} == {"a"}
    speaker.call("basic.consume", queue=speaker.q, consumer_tag="b")
    third = speaker.content("basic.deliver")
    assert third.method["consumer_tag"] == "b"
    speaker.fence()


def test_later_qos_per_consumer_removes_global_window(speaker: Peer) -> None:
    """As measured on 3.10.8: global=false ends the channel's window."""
    speaker.queue()
    fill(speaker, 4)
    speaker.call("basic.qos", prefetch_count=1, global_=True)
    speaker.call("basic.qos", prefetch_count=3)
    speaker.call("basic.consume", queue=speaker.q)
    assert numbers(take(speaker, 3)) == [0, 1, 2]


def test_tx_acks_open_the_window_at_commit(speaker: Peer) -> None:
    speaker.queue()
    fill(speaker, 2)
    speaker.call("tx.select")
    speaker.call("basic.qos", prefetch_count=1)
    speaker.call("basic.consume", queue=speaker.q)
    tag = speaker.content("basic.deliver").method["delivery_tag"]
    speaker.method("basic.ack", delivery_tag=tag)
    speaker.fence()
    speaker.method("tx.commit")
    assert {speaker.read().name for _ in range(4)} == {"tx.commit-ok", "basic.deliver", "<header>", "<body>"}


def test_py_amqp_gets_qos_of_the_specification(broker: Broker, broker_is_ours: bool) -> None:
    """py-amqp, which sees a product other than RabbitMQ, expects global=false to be one window for the channel,
    including running consumers.
    """
    if not broker_is_ours:
        pytest.skip("RabbitMQ 3.10.8: is RabbitMQ")
    with broker.peer() as peer:
        peer.handshake(client_properties={"product": "py-amqp", "capabilities": {"consumer_cancel_notify": True}})
        peer.channel()
        peer.queue()
        peer.call("basic.consume", queue=peer.q, consumer_tag="early")
        peer.call("basic.qos", prefetch_count=2)
        peer.send(*[publish(peer.q, b"%d" % n) for n in range(4)])
        assert [peer.content("basic.deliver").body for _ in range(2)] == [b"0", b"1"]
        peer.fence()
