"""Consumers, windows, order, requeue, and what goes when its last user went."""

from __future__ import annotations

import re
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from parties import Broker, Witness
from peer import Content, Peer
from wire import method, properties, publish

PERSISTENT = properties(delivery_mode=2)
Declare = Callable[[Peer], None]


@pytest.fixture(params=["memory", "log"])
def kept(request: pytest.FixtureRequest, witness: Witness) -> Iterator[Declare]:
    """Declares the peer's own queue: exclusive, or durable and deleted after the test. Both must behave alike."""
    made: list[str] = []

    def declare(peer: Peer) -> None:
        if request.param == "memory":
            peer.queue()
        else:
            peer.queue(exclusive=False, durable=True)
            made.append(peer.q)

    yield declare
    for name in made:
        witness.peer.call("queue.delete", queue=name)


def fill(peer: Peer, count: int, queue: str | None = None) -> None:
    """Messages "0", "1", ... in the queue for certain."""
    for n in range(count):
        peer.publish(queue, b"%d" % n, PERSISTENT)
    peer.fence()


def take(peer: Peer, count: int, channel: int = 1) -> list[Content]:
    """The next `count` deliveries, and none beyond them."""
    got = [peer.content("basic.deliver", channel) for _ in range(count)]
    peer.fence(channel)
    return got


def numbers(contents: list[Content]) -> list[int]:
    return [int(content.body) for content in contents]


def rest(peer: Peer, queue: str | None = None, channel: int = 1) -> list[tuple[int, bool]]:
    """(number, redelivered) of everything ready."""
    found = []
    while (got := peer.get(queue, channel)) is not None:
        found.append((int(got.body), got.method["redelivered"]))
    return found


def eventually(peer: Peer, queue: str, count: int) -> None:
    """Waits until so many messages are ready: another connection's end takes its moment."""
    for _ in range(200):
        if peer.call("queue.declare", queue=queue, passive=True)["message_count"] == count:
            return
        time.sleep(0.01)
    raise AssertionError(f"there are not {count} messages ready within 2 s")


def test_server_made_names(speaker: Peer) -> None:
    first = speaker.call("queue.declare", exclusive=True)["queue"]
    second = speaker.call("queue.declare", exclusive=True)["queue"]
    assert re.fullmatch(r"amq\.gen-[A-Za-z0-9_-]{22}", first)
    assert first != second
    tag = speaker.call("basic.consume", queue=first)["consumer_tag"]
    assert re.fullmatch(r"amq\.ctag-[A-Za-z0-9_-]{22}", tag)


def test_consumers_take_turns(speaker: Peer, kept: Declare) -> None:
    kept(speaker)
    for tag in ("a", "b", "c"):
        speaker.call("basic.consume", queue=speaker.q, consumer_tag=tag, no_ack=True)
    fill_and_tags = []
    for n in range(9):
        speaker.publish(payload=b"%d" % n)
        fill_and_tags.append(speaker.content("basic.deliver").method["consumer_tag"])
    assert sorted(fill_and_tags[:3]) == ["a", "b", "c"]
    assert fill_and_tags == fill_and_tags[:3] * 3


def test_delivery_tags_count_per_channel(speaker: Peer, kept: Declare) -> None:
    kept(speaker)
    fill(speaker, 3)
    speaker.call("basic.consume", queue=speaker.q)
    assert [content.method["delivery_tag"] for content in take(speaker, 3)] == [1, 2, 3]
    speaker.publish()
    assert take(speaker, 1)[0].method["delivery_tag"] == 4


def test_cancel_is_told_when_the_queue_goes(speaker: Peer) -> None:
    speaker.queue()
    speaker.call("basic.consume", queue=speaker.q, consumer_tag="T")
    speaker.channel(2)
    speaker.method("queue.delete", 2, queue=speaker.q)
    got = {frame.name: frame for frame in (speaker.read(), speaker.read())}
    assert got["basic.cancel"].arguments == {"consumer_tag": "T", "nowait": True}
    assert got["basic.cancel"].channel == 1
    assert got["queue.delete-ok"].channel == 2
    speaker.fence()


def test_delete_ok_precedes_the_cancel_of_the_same_channel(speaker: Peer, kept: Declare) -> None:
    """kombu deletes what it consumes, and takes a notification that comes before its answer for an error."""
    kept(speaker)
    speaker.call("basic.consume", queue=speaker.q, consumer_tag="T")
    speaker.method("queue.delete", queue=speaker.q)
    assert speaker.read().name == "queue.delete-ok"
    assert speaker.expect("basic.cancel")["consumer_tag"] == "T"


def test_credit_of_an_ack_is_used_before_a_cancel(speaker: Peer, kept: Declare) -> None:
    """rabbit: the queue works off ack and cancel in their order; php-amqp's suite counts on what comes between."""
    kept(speaker)
    fill(speaker, 3)
    speaker.call("basic.qos", prefetch_count=1)
    speaker.call("basic.consume", queue=speaker.q, consumer_tag="T")
    assert speaker.content("basic.deliver").body == b"0"
    speaker.send(method("basic.ack", delivery_tag=1), method("basic.cancel", consumer_tag="T"))
    assert speaker.content("basic.deliver").body == b"1"
    speaker.expect("basic.cancel-ok")


def test_cancel_is_not_told_to_who_cannot_hear_it(broker: Broker) -> None:
    with broker.peer() as peer:
        peer.handshake(client_properties={"capabilities": {"consumer_cancel_notify": False}})
        peer.channel()
        peer.queue()
        peer.call("basic.consume", queue=peer.q, consumer_tag="T")
        peer.call("queue.delete", queue=peer.q)
        peer.fence()


def test_cancel_does_not_requeue(speaker: Peer, kept: Declare) -> None:
    kept(speaker)
    fill(speaker, 2)
    speaker.call("basic.consume", queue=speaker.q, consumer_tag="T")
    got = take(speaker, 2)
    speaker.call("basic.cancel", consumer_tag="T")
    assert rest(speaker) == []
    speaker.method("basic.ack", delivery_tag=got[1].method["delivery_tag"], multiple=True)
    speaker.fence()


# -- windows ----------------------------------------------------------------------------------------------------------


def test_prefetch_per_consumer(speaker: Peer) -> None:
    """global=false: for consumers started afterwards, each with a window of its own."""
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


def test_prefetch_zero_is_unlimited(speaker: Peer, kept: Declare) -> None:
    kept(speaker)
    fill(speaker, 50)
    speaker.call("basic.consume", queue=speaker.q)
    assert numbers(take(speaker, 50)) == list(range(50))


def test_prefetch_does_not_gate_no_ack_consumers(speaker: Peer) -> None:
    speaker.queue()
    fill(speaker, 5)
    speaker.call("basic.qos", prefetch_count=1)
    speaker.call("basic.consume", queue=speaker.q, no_ack=True)
    assert numbers([speaker.content("basic.deliver") for _ in range(5)]) == list(range(5))


def test_the_window_opens_by_acks_in_any_order(speaker: Peer, kept: Declare) -> None:
    kept(speaker)
    fill(speaker, 6)
    speaker.call("basic.qos", prefetch_count=3)
    speaker.call("basic.consume", queue=speaker.q)
    tags = [speaker.content("basic.deliver").method["delivery_tag"] for _ in range(3)]
    speaker.fence()
    speaker.method("basic.ack", delivery_tag=tags[1])
    assert speaker.content("basic.deliver").body == b"3"
    speaker.method("basic.ack", delivery_tag=tags[2], multiple=True)
    assert [speaker.content("basic.deliver").body for _ in range(2)] == [b"4", b"5"]


def test_global_window(speaker: Peer) -> None:
    """global=true: one window for all consumers of the channel, also for no-ack consumers."""
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


def test_global_window_goes_round_the_consumers_of_a_queue(speaker: Peer, broker_is_ours: bool) -> None:
    """Each time the channel's window opens, the consumer after the one that filled it has its turn."""
    speaker.queue()
    fill(speaker, 9)
    speaker.call("basic.qos", prefetch_count=1, global_=True)
    for tag in ("a", "b", "c"):
        speaker.method("basic.consume", queue=speaker.q, consumer_tag=tag)
    served = _served(speaker, 9)
    assert served == ["a", "b", "c"] * 3 if broker_is_ours else set(served) > {"a"}


def test_global_window_goes_round_the_queues(speaker: Peer, broker_is_ours: bool) -> None:
    """Whichever queue filled the channel's window, the next room in it is another's."""
    tags = ["a", "b", "c"]
    for tag in tags:
        speaker.queue(speaker.q + tag)
        for _ in range(4):
            speaker.publish(speaker.q + tag)
    speaker.call("basic.qos", prefetch_count=1, global_=True)
    for tag in tags:
        speaker.method("basic.consume", queue=speaker.q + tag, consumer_tag=tag)
    served = _served(speaker, 9)
    assert served == tags * 3 if broker_is_ours else set(served) > {"a"}


def _served(speaker: Peer, count: int) -> list[str]:
    """Who gets the next deliveries, each of them acked at once."""
    served: list[str] = []
    while len(served) < count:
        frame = speaker.read()
        if frame.name == "basic.deliver":
            served.append(frame["consumer_tag"])
            speaker.method("basic.ack", delivery_tag=frame["delivery_tag"])
    return served


def test_global_window_may_be_changed_while_running(speaker: Peer, kept: Declare) -> None:
    kept(speaker)
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


def test_both_windows_combine(speaker: Peer) -> None:
    speaker.queue()
    speaker.call("basic.qos", prefetch_count=2)
    speaker.call("basic.qos", prefetch_count=3, global_=True)
    speaker.call("basic.consume", queue=speaker.q, consumer_tag="a")
    fill_only = [publish(speaker.q, b"%d" % n) for n in range(6)]
    speaker.send(*fill_only)
    first = [speaker.content("basic.deliver") for _ in range(2)]
    assert {c.method["consumer_tag"] for c in first} == {"a"}
    speaker.call("basic.consume", queue=speaker.q, consumer_tag="b")
    third = speaker.content("basic.deliver")
    assert third.method["consumer_tag"] == "b"
    speaker.fence()


def test_a_later_qos_per_consumer_lifts_the_global_window(speaker: Peer) -> None:
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


def test_py_amqp_gets_the_specifications_qos(broker: Broker, broker_is_ours: bool) -> None:
    """Told another product than RabbitMQ, py-amqp expects global=false to be one window for the channel,
    running consumers included."""
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


def test_single_active_consumer(speaker: Peer) -> None:
    """One at a time, the next one when it goes; an exclusive consumer has no place there."""
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


def test_consumer_priorities(speaker: Peer, kept: Declare) -> None:
    """The highest with credit first; the next one when its window is full."""
    kept(speaker)
    speaker.call("basic.qos", prefetch_count=2)
    for tag, priority in (("low", -1), ("none", None), ("high", 10)):
        arguments = {} if priority is None else {"x-priority": priority}
        speaker.call("basic.consume", queue=speaker.q, consumer_tag=tag, arguments=arguments)
    order = []
    for n in range(6):
        speaker.publish(payload=b"%d" % n)
        order.append(speaker.content("basic.deliver").method["consumer_tag"])
    assert order == ["high", "high", "none", "none", "low", "low"]


# -- requeue ----------------------------------------------------------------------------------------------------------


def test_requeue_restores_the_order(speaker: Peer, kept: Declare) -> None:
    """By nack, in the wrong order, with one acked in between."""
    kept(speaker)
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
def test_requeue_of_several(speaker: Peer, name: str, kept: Declare) -> None:
    kept(speaker)
    fill(speaker, 4)
    for _ in range(3):
        assert speaker.get(no_ack=False) is not None
    speaker.method(name.removesuffix("-all"), **REQUEUES[name])
    if name == "basic.recover":
        speaker.expect("basic.recover-ok")
    speaker.fence()
    assert rest(speaker) == [(0, True), (1, True), (2, True), (3, False)]


def test_reject_without_requeue_drops(speaker: Peer, kept: Declare) -> None:
    kept(speaker)
    fill(speaker, 3)
    for _ in range(2):
        assert speaker.get(no_ack=False) is not None
    speaker.method("basic.reject", delivery_tag=1)
    speaker.method("basic.nack", delivery_tag=2)
    speaker.fence()
    assert rest(speaker) == [(2, False)]


def test_multiple_acks(speaker: Peer, kept: Declare) -> None:
    """Up to and including the tag; those above stay; 0 is all of them."""
    kept(speaker)
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


def test_requeued_goes_to_the_waiting_consumer(speaker: Peer, kept: Declare) -> None:
    kept(speaker)
    speaker.call("basic.consume", queue=speaker.q, consumer_tag="T")
    speaker.publish(payload=b"0")
    first = speaker.content("basic.deliver")
    speaker.method("basic.reject", delivery_tag=first.method["delivery_tag"], requeue=True)
    second = speaker.content("basic.deliver")
    assert (second.body, second.method["redelivered"]) == (b"0", True)
    assert second.method["delivery_tag"] == first.method["delivery_tag"] + 1


def test_channel_close_requeues(speaker: Peer, kept: Declare) -> None:
    kept(speaker)
    speaker.channel(2)
    fill(speaker, 3)
    for _ in range(2):
        assert speaker.get(no_ack=False, channel=2) is not None
    speaker.call("channel.close", 2, reply_code=200)
    assert rest(speaker) == [(0, True), (1, True), (2, False)]


@pytest.mark.parametrize("kind", ["memory", "log"])
@pytest.mark.parametrize("how", ["close", "drop", "reset"])
def test_connection_end_requeues(broker: Broker, peer: Peer, how: str, kind: str) -> None:
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
        if how == "close":
            other.method("connection.close", 0, reply_code=200)
            while other.read().name != "connection.close-ok":
                pass
        elif how == "reset":
            other.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    eventually(peer, peer.q, 3)
    assert rest(peer) == [(0, True), (2, True), (3, True)]
    peer.call("queue.delete", queue=peer.q)


def test_closing_a_channel_leaves_other_consumers(speaker: Peer) -> None:
    speaker.queue()
    speaker.channel(2)
    speaker.call("basic.consume", queue=speaker.q, consumer_tag="one", no_ack=True)
    speaker.call("basic.consume", 2, queue=speaker.q, consumer_tag="two", no_ack=True)
    speaker.call("channel.close", 2, reply_code=200)
    fill_tags = []
    for n in range(4):
        speaker.publish(payload=b"%d" % n)
        fill_tags.append(speaker.content("basic.deliver").method["consumer_tag"])
    assert fill_tags == ["one"] * 4


# -- what goes with its last user -------------------------------------------------------------------------------------


def gone(peer: Peer, queue: str) -> None:
    peer.method("queue.declare", queue=queue, passive=True)
    peer.expect_channel_close(404, 50, 10, f"no queue '{queue}' in vhost '/'")


def test_auto_delete_after_the_last_consumer(speaker: Peer) -> None:
    speaker.queue(exclusive=False, auto_delete=True)
    for tag in ("a", "b"):
        speaker.call("basic.consume", queue=speaker.q, consumer_tag=tag)
    speaker.call("basic.cancel", consumer_tag="a")
    speaker.call("queue.declare", queue=speaker.q, passive=True)
    speaker.call("basic.cancel", consumer_tag="b")
    gone(speaker, speaker.q)


def test_auto_delete_stays_when_nobody_ever_came(broker: Broker, peer: Peer) -> None:
    with broker.peer() as other:
        other.handshake()
        other.channel()
        other.queue(peer.q, exclusive=False, auto_delete=True)
        other.method("connection.close", 0, reply_code=200)
        other.expect("connection.close-ok", 0)
    assert peer.call("queue.declare", queue=peer.q, passive=True)["consumer_count"] == 0
    peer.call("queue.delete", queue=peer.q)


def test_auto_delete_with_the_channel(speaker: Peer) -> None:
    speaker.queue(exclusive=False, auto_delete=True)
    speaker.channel(2)
    speaker.call("basic.consume", 2, queue=speaker.q)
    speaker.call("channel.close", 2, reply_code=200)
    gone(speaker, speaker.q)


@pytest.mark.parametrize("durable", [False, True])
def test_exclusive_goes_with_the_connection(broker: Broker, peer: Peer, durable: bool) -> None:
    with broker.peer() as other:
        other.handshake()
        other.channel()
        other.queue(peer.q, durable=durable)
        other.method("connection.close", 0, reply_code=200)
        other.expect("connection.close-ok", 0)
    gone(peer, peer.q)


def test_exclusive_outlives_its_channel(speaker: Peer) -> None:
    speaker.channel(2)
    speaker.queue(channel=2)
    speaker.call("channel.close", 2, reply_code=200)
    speaker.publish()
    assert speaker.get() is not None


def test_auto_delete_exchange_goes_with_its_last_binding(speaker: Peer) -> None:
    speaker.exchange("fanout")
    speaker.queue()
    speaker.call("queue.bind", queue=speaker.q, exchange=speaker.x)
    speaker.call("queue.unbind", queue=speaker.q, exchange=speaker.x)
    speaker.method("exchange.declare", exchange=speaker.x, passive=True)
    speaker.expect_channel_close(404, 40, 10, "no exchange '{x}' in vhost '/'")
