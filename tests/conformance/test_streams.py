"""Streams, byte for byte: deliveries, and errors that close the channel or the connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cases import CHUNKINGS
from parties import Broker, Witness
from peer import Peer
from wire import Field, body, header, method, properties, table

REFUSED = "not supported by stream queues queue '{q}' in vhost '/'"
FROM_FIRST = {"x-stream-offset": "first"}


@pytest.fixture
def stream(witness: Witness) -> Iterator[Callable[[Peer], None]]:
    """Declare the peer's own queue as a stream, and delete it after the test."""
    declared: list[str] = []

    def declare(peer: Peer, **arguments: Any) -> None:
        table = {"x-queue-type": "stream"} | arguments
        declared.append(peer.q)
        peer.queue(exclusive=False, durable=True, arguments=table)

    yield declare
    for name in declared:
        witness.peer.call("queue.delete", queue=name)


def publish_confirmed(peer: Peer, *payloads: bytes, props: bytes = b"\0\0") -> None:
    """Publish on a separate channel and wait for the confirms."""
    peer.channel(9)
    peer.call("confirm.select", 9)
    for payload in payloads:
        peer.publish(peer.q, payload, props, channel=9)
        peer.expect("basic.ack", 9)
    peer.call("channel.close", 9, reply_code=200)


def test_stream_delivery(speaker: Peer, stream: Callable[[Peer], None]) -> None:
    stream(speaker)
    publish_confirmed(speaker, b"one", b"", b"three")
    speaker.call("basic.qos", prefetch_count=10)
    speaker.call("basic.consume", queue=speaker.q, consumer_tag="T", arguments=FROM_FIRST)
    for offset, payload in enumerate((b"one", b"", b"three")):
        got = speaker.content("basic.deliver")
        assert got.body == payload
        assert got.method["delivery_tag"] == offset + 1
        assert got.method["redelivered"] is False
        assert got.props == properties(headers={"x-stream-offset": Field("l", offset)})
    speaker.fence()


def test_offset_header_is_appended_once(speaker: Peer, stream: Callable[[Peer], None]) -> None:
    stream(speaker)
    given = {"a": "1", "b": Field("I", 2)}
    publish_confirmed(speaker, b"x", props=properties(content_type="t", headers=given, delivery_mode=1, message_id="m"))
    speaker.call("basic.qos", prefetch_count=10)
    speaker.call("basic.consume", queue=speaker.q, arguments=FROM_FIRST)
    expected_headers = given | {"x-stream-offset": Field("l", 0)}
    expected = properties(content_type="t", headers=expected_headers, delivery_mode=1, message_id="m")
    assert speaker.content("basic.deliver").props == expected


def test_stream_bodies_on_any_channel_in_any_frame_size(broker: Broker, stream: Callable[[Peer], None]) -> None:
    payloads = [b"a" * 3000, b"", b"b", b"c" * 4088, b"d" * 4089, b"e" * 200_000]
    with broker.peer("s", "whole") as writer:
        writer.handshake()
        writer.channel()
        stream(writer)
        for payload in payloads:
            parts = [payload[at : at + 100_000] for at in range(0, len(payload), 100_000)]
            writer.send(method("basic.publish", routing_key=writer.q), header(len(payload)), *map(body, parts))
        writer.fence()
        name = writer.q
    with broker.peer("s", "whole") as peer:
        peer.handshake(frame_max=4096)
        peer.channel()
        for number in (1, 2, 300, 2047):
            if number > 1:
                peer.channel(number)
            peer.call("basic.qos", number, prefetch_count=10)
            peer.call("basic.consume", number, queue=name, arguments=FROM_FIRST)
            for offset, payload in enumerate(payloads):
                got = peer.content("basic.deliver", number)
                assert (got.method["delivery_tag"], got.body) == (offset + 1, payload)
                assert got.props == properties(headers={"x-stream-offset": Field("l", offset)})
            peer.fence(number)


def test_acks_in_any_order_are_credit(speaker: Peer, stream: Callable[[Peer], None]) -> None:
    stream(speaker)
    publish_confirmed(speaker, *(b"%d" % number for number in range(8)))
    speaker.call("basic.qos", prefetch_count=3)
    speaker.call("basic.consume", queue=speaker.q, arguments=FROM_FIRST)
    got = [speaker.content("basic.deliver").body for _ in range(3)]
    speaker.fence()
    speaker.method("basic.ack", delivery_tag=2)
    got.append(speaker.content("basic.deliver").body)
    speaker.fence()
    speaker.method("basic.ack", delivery_tag=4, multiple=True)
    got += [speaker.content("basic.deliver").body for _ in range(3)]
    speaker.fence()
    assert got == [b"%d" % number for number in range(7)]
    speaker.method("basic.ack", delivery_tag=2)
    speaker.expect_channel_close(406, 60, 80, "unknown delivery tag 2")


@pytest.mark.parametrize("named", [False, True])
def test_acks_in_transaction_are_credit_after_commit(
    speaker: Peer, stream: Callable[[Peer], None], named: bool
) -> None:
    """This includes messages delivered before tx.select."""
    stream(speaker)
    publish_confirmed(speaker, *(b"%d" % number for number in range(9)))
    arguments = FROM_FIRST | ({"x-stream-consumer-name": "n"} if named else {})
    speaker.call("basic.qos", prefetch_count=4)
    speaker.call("basic.consume", queue=speaker.q, arguments=arguments)
    got = [speaker.content("basic.deliver").body for _ in range(4)]
    speaker.call("tx.select")
    speaker.method("basic.ack", delivery_tag=2)
    speaker.fence()
    speaker.call("tx.rollback")
    speaker.method("basic.ack", delivery_tag=1)
    speaker.method("basic.ack", delivery_tag=2)
    speaker.fence()
    speaker.send(method("tx.commit"))
    got += take(speaker, "tx.commit-ok", 2)
    speaker.fence()
    speaker.method("basic.ack", delivery_tag=6, multiple=True)
    speaker.send(method("tx.commit"))
    got += take(speaker, "tx.commit-ok", 3)
    speaker.fence()
    assert got == [b"%d" % number for number in range(9)]
    speaker.method("basic.ack", delivery_tag=6)
    speaker.expect_channel_close(406, 60, 80, "unknown delivery tag 6")


def take(speaker: Peer, answer: str, count: int) -> list[bytes]:
    """Return the bodies of `count` deliveries; the reply may come before, between or after them."""
    bodies: list[bytes] = []
    answered = False
    while len(bodies) < count or not answered:
        if speaker._peek() == answer:
            speaker.expect(answer)
            answered = True
        else:
            bodies.append(speaker.content("basic.deliver").body)
    return bodies


def test_offset_next_starts_at_consume_ok(speaker: Peer, stream: Callable[[Peer], None]) -> None:
    stream(speaker)
    publish_confirmed(speaker, b"before")
    speaker.call("basic.qos", prefetch_count=3)
    speaker.call("basic.consume", queue=speaker.q)
    speaker.publish(speaker.q, b"behind")
    assert speaker.content("basic.deliver").body == b"behind"
    speaker.fence()


Action = Callable[[Peer], None]


def get_message(peer: Peer) -> None:
    peer.method("basic.get", queue=peer.q)


def purge(peer: Peer) -> None:
    peer.method("queue.purge", queue=peer.q)


def consume(**options: Any) -> Action:
    def say(peer: Peer) -> None:
        peer.call("basic.qos", prefetch_count=2)
        peer.method("basic.consume", queue=peer.q, consumer_tag="T", **options)

    return say


def requeue_with(name: str, **options: Any) -> Action:
    def say(peer: Peer) -> None:
        consume(arguments=FROM_FIRST)(peer)
        peer.expect("basic.consume-ok")
        peer.content("basic.deliver")
        peer.content("basic.deliver")
        peer.method(name, **({"delivery_tag": 1} | options))

    return say


def recover(peer: Peer) -> None:
    consume(arguments=FROM_FIRST)(peer)
    peer.expect("basic.consume-ok")
    peer.content("basic.deliver")
    peer.content("basic.deliver")
    peer.method("basic.recover", requeue=True)


@pytest.mark.parametrize("chunking", CHUNKINGS)
@pytest.mark.parametrize(
    ("action", "ids", "operation"),
    [
        pytest.param(get_message, (60, 70), "basic.get", id="get"),
        pytest.param(purge, (50, 30), "queue.purge", id="purge"),
        pytest.param(consume(no_ack=True), (60, 20), "automatic acknowledgement", id="no-ack"),
        pytest.param(requeue_with("basic.reject"), (60, 90), "basic.nack and basic.reject", id="reject"),
        pytest.param(requeue_with("basic.nack", requeue=True), (60, 120), "basic.nack and basic.reject", id="nack"),
        pytest.param(
            requeue_with("basic.nack", delivery_tag=0, multiple=True),
            (60, 120),
            "basic.nack and basic.reject",
            id="nack-all",
        ),
        pytest.param(recover, (60, 110), "basic.recover", id="recover"),
    ],
)
def test_methods_that_remove_messages_are_rejected(
    broker: Broker,
    stream: Callable[[Peer], None],
    broker_is_ours: bool,
    chunking: str,
    action: Action,
    ids: tuple[int, int],
    operation: str,
) -> None:
    if action is recover and not broker_is_ours:
        pytest.skip("RabbitMQ 3.10.8: 541")
    with broker.peer("s", chunking) as peer:
        peer.handshake()
        peer.channel()
        stream(peer)
        publish_confirmed(peer, b"0", b"1")
        peer.bytewise_now()
        action(peer)
        peer.expect_connection_close(540, *(ids if broker_is_ours else (None, None)), f"{operation} {REFUSED}")


def test_consumer_without_prefetch_is_refused(speaker: Peer, stream: Callable[[Peer], None]) -> None:
    stream(speaker)
    speaker.method("basic.consume", queue=speaker.q)
    text = "consumer prefetch count is not set for 'queue '{q}' in vhost '/''"
    speaker.expect_channel_close(406, 60, 20, text)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("abc", '{longstr,<<"abc">>}'),
        ('"\\', '{longstr,<<"\\"\\\\">>}'),
        ("", "{longstr,<<>>}"),
        ("0m", '{longstr,<<"0m">>}'),
        (Field("t", True), "{bool,true}"),
        (None, "{void,undefined}"),
        (Field("d", 1.5), "{double,1.5}"),
        (Field("A", [1]), "{array,[{signedint,1}]}"),
        ({"a": 1}, '{table,[{<<"a">>,signedint,1}]}'),
    ],
)
def test_invalid_offsets_are_refused(
    speaker: Peer, stream: Callable[[Peer], None], broker_is_ours: bool, value: Any, shown: str
) -> None:
    if not broker_is_ours:
        pytest.skip("RabbitMQ 3.10.8: 541 for most of them")
    stream(speaker)
    speaker.call("basic.qos", prefetch_count=1)
    speaker.method("basic.consume", queue=speaker.q, arguments=table({"x-stream-offset": value}))
    text = "invalid arg 'x-stream-offset' for queue '{q}' in vhost '/': {invalid_stream_offset_arg," + shown + "}"
    speaker.expect_channel_close(406, 60, 20, text)


@pytest.mark.parametrize("letter", ["b", "s", "I", "l", "B", "u", "i", "T"])
def test_offset_of_every_integer_type(speaker: Peer, stream: Callable[[Peer], None], letter: str) -> None:
    stream(speaker)
    publish_confirmed(speaker, b"0", b"1", b"2")
    speaker.call("basic.qos", prefetch_count=5)
    arguments = table({"x-stream-offset": Field(letter, 1)})
    speaker.call("basic.consume", queue=speaker.q, arguments=arguments)
    first = 0 if letter == "T" else 1  # type T is a timestamp: one second after the epoch
    for number in range(first, 3):
        assert speaker.content("basic.deliver").body == b"%d" % number
    speaker.fence()
