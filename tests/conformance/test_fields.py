"""Content that the broker must not change: property bytes, field types, bodies of any size in any frames."""

from __future__ import annotations

import struct
import time

import pytest
from parties import Broker
from peer import Content, Peer
from wire import Field, body, header, heartbeat, longstr, method, properties, publish, shortstr, table

LETTERS: dict[str, bytes] = {
    "S": b"S" + longstr("text"),
    "S-empty": b"S" + longstr(""),
    "S-binary": b"S" + longstr(bytes(range(256))),
    "I": b"I" + struct.pack(">i", -5),
    "I-min": b"I\x80\0\0\0",
    "l": b"l" + struct.pack(">q", -(2**63)),
    "s": b"s" + struct.pack(">h", -300),
    "b": b"b\x80",
    "B": b"B\xff",
    "i": b"i\xff\xff\xff\xff",
    "u": b"u\xff\xff",
    "f": b"f" + struct.pack(">f", 1.5),
    "d": b"d" + struct.pack(">d", -0.0),
    "d-nan": b"d\x7f\xf8\0\0\0\0\0\1",
    "t": b"t\1",
    "t-false": b"t\0",
    "T": b"T" + struct.pack(">Q", 1_700_000_000),
    "T-max": b"T" + b"\xff" * 8,
    "V": b"V",
    "x": b"x" + longstr(b"\0\1\2"),
    "D": b"D\x02" + struct.pack(">I", 314),
    "A": b"A" + longstr(b"I\0\0\0\1" + b"S" + longstr("a") + b"V"),
    "A-empty": b"A" + longstr(b""),
    "F": b"F" + longstr(shortstr("k") + b"t\1"),
    "F-empty": b"F" + longstr(b""),
    "nested": b"F" + longstr(shortstr("a") + b"A" + longstr(b"F" + longstr(shortstr("b") + b"D\0\0\0\0\1"))),
}
EVERYTHING = longstr(b"".join(shortstr(name) + value for name, value in LETTERS.items() if name != "d-nan"))
ALL_PROPERTIES = {
    "content_type": "text/plain; charset=utf-8",
    "content_encoding": "gzip",
    "headers": EVERYTHING,
    "delivery_mode": 1,
    "priority": 9,
    "correlation_id": "c" * 255,
    "reply_to": "r",
    "expiration": "600000",
    "message_id": "",
    "timestamp": 2**63,
    "type": b"\xff\xfe",
    "user_id": "guest",
    "app_id": "app",
    "cluster_id": "cluster",
}


def round_trip(peer: Peer, props: bytes, payload: bytes = b"x") -> None:
    """Publish, and check that basic.get and basic.deliver return exactly the same bytes."""
    peer.publish(payload=payload, props=props)
    got = peer.get()
    assert got is not None
    assert (got.props, got.body) == (props, payload)
    tag = peer.call("basic.consume", queue=peer.q, no_ack=True)["consumer_tag"]
    peer.publish(payload=payload, props=props)
    delivered = peer.content("basic.deliver")
    assert (delivered.props, delivered.body) == (props, payload)
    peer.call("basic.cancel", consumer_tag=tag)


def skip_nan(broker_is_ours: bool, letter: str) -> None:
    if letter == "d-nan" and not broker_is_ours:
        pytest.skip("RabbitMQ 3.10.8: 541")


@pytest.mark.parametrize("letter", LETTERS)
def test_field_types_are_unchanged(broker_is_ours: bool, peer: Peer, letter: str) -> None:
    skip_nan(broker_is_ours, letter)
    peer.queue()
    round_trip(peer, properties(headers=longstr(shortstr("key") + LETTERS[letter])))


@pytest.mark.parametrize("name", ALL_PROPERTIES)
def test_each_property_alone(speaker: Peer, name: str) -> None:
    speaker.queue()
    round_trip(speaker, properties(**{name: ALL_PROPERTIES[name]}))


@pytest.mark.parametrize("durable", [False, True], ids=["transient", "durable"])
def test_all_properties_together(speaker: Peer, durable: bool) -> None:
    speaker.queue(exclusive=False, durable=durable)
    round_trip(speaker, properties(**ALL_PROPERTIES | {"delivery_mode": 2 if durable else 1}))
    speaker.call("queue.delete", queue=speaker.q)


def test_basic_return_has_the_properties(speaker: Peer) -> None:
    props = properties(**ALL_PROPERTIES)
    speaker.publish("nosuch", b"body", props, mandatory=True)
    returned = speaker.content("basic.return")
    assert (returned.props, returned.body) == (props, b"body")


def test_no_properties_and_empty_headers_are_unchanged(speaker: Peer) -> None:
    speaker.queue()
    round_trip(speaker, b"\0\0")
    round_trip(speaker, properties(headers={}))


@pytest.mark.parametrize("letter", LETTERS)
def test_field_types_in_queue_arguments(broker_is_ours: bool, peer: Peer, letter: str) -> None:
    """Unknown arguments of any type are accepted and equivalent to themselves."""
    skip_nan(broker_is_ours, letter)
    raw = longstr(shortstr("x-key") + LETTERS[letter])
    peer.queue(arguments=raw)
    peer.queue(arguments=raw)


def test_headers_exchange_does_not_change_properties(speaker: Peer) -> None:
    """The headers exchange decodes the headers; the delivery still has the published bytes."""
    speaker.queue()
    speaker.call(
        "queue.bind", queue=speaker.q, exchange="amq.headers", arguments={"x-match": "any", "t": True, "I": -5}
    )
    props = properties(headers=EVERYTHING, message_id="m")
    speaker.publish("", b"x", props, exchange="amq.headers")
    got = speaker.get()
    assert got is not None
    assert got.props == props


@pytest.mark.parametrize("frame_max", [4096, 131072])
@pytest.mark.parametrize("size", [0, 1, 4087, 4088, 4089, 8176, 65536, 131064, 131065, 262_129, 1_000_000])
def test_bodies_of_various_sizes(broker: Broker, frame_max: int, size: int) -> None:
    """The peer checks that no frame is longer than agreed."""
    with broker.peer() as peer:
        peer.handshake(frame_max=frame_max)
        peer.channel()
        peer.queue()
        payload = (b"%07d " % size * (size // 8 + 1))[:size]
        peer.publish(payload=payload, frame_max=frame_max)
        got = peer.get()
        assert got is not None
        assert got.body == payload


def test_peers_with_different_frame_sizes(broker: Broker, peer: Peer) -> None:
    """Publish in one frame on one connection, get in 4096-byte frames on another, and the other way round."""
    peer.queue(exclusive=False)
    payload = bytes(range(256)) * 400
    with broker.peer() as small:
        small.handshake(frame_max=4096)
        small.channel()
        peer.publish(payload=payload)
        peer.fence()
        got = small.get(peer.q)
        assert got is not None
        assert got.body == payload
        small.publish(peer.q, payload, frame_max=4096)
        small.fence()
    reply = peer.get()
    assert reply is not None
    assert reply.body == payload
    peer.call("queue.delete", queue=peer.q)


def test_body_in_frames_of_various_sizes(peer: Peer) -> None:
    """A client may split a body anywhere, empty frames included."""
    peer.queue()
    payload = bytes(range(256)) * 4
    parts, at, step = [], 0, 1
    while at < len(payload):
        parts.append(body(b""))
        parts.append(body(payload[at : at + step]))
        at, step = at + step, step * 2
    peer.send(method("basic.publish", routing_key=peer.q), header(len(payload)), *parts)
    got = peer.get()
    assert got is not None
    assert got.body == payload


@pytest.mark.parametrize("channel", [1, 2])
@pytest.mark.parametrize("size", [10_000, 301_000])
def test_consumer_gets_full_frames_whatever_the_publisher_sent(broker: Broker, size: int, channel: int) -> None:
    """As with RabbitMQ, on the channel of the publisher and on another."""
    with broker.peer() as small:
        small.handshake(frame_max=4096)
        for number in {1, channel}:
            small.channel(number)
        small.queue(channel=channel)
        small.method("basic.consume", channel, queue=small.q, no_ack=True)
        small.expect("basic.consume-ok", channel)
        parts = [body(bytes(3000)) for _ in range(size // 3000)] + [body(bytes(size % 3000))]
        small.send(method("basic.publish", routing_key=small.q), header(size), *parts)
        small.expect("basic.deliver", channel)
        small.expect("<header>", channel)
        sizes = [len(small.expect("<body>", channel).payload) for _ in range(-(-size // 4088))]
        assert sizes == [4088] * (size // 4088) + [size % 4088]


def test_header_frame_of_50_kb(peer: Peer) -> None:
    """With a body of 500,000 bytes."""
    peer.queue()
    props = properties(headers={f"key-{n}": "v" * 100 for n in range(450)})
    round_trip(peer, props, bytes(500_000))


def test_empty_body_has_no_body_frame(speaker: Peer) -> None:
    speaker.queue()
    speaker.publish(payload=b"")
    speaker.method("basic.get", queue=speaker.q, no_ack=True)
    speaker.expect("basic.get-ok")
    assert speaker.expect("<header>").payload[4:12] == bytes(8)
    speaker.fence()


def test_interleaved_contents_of_two_channels(speaker: Peer) -> None:
    """AMQP 0-9-1 4.2.6: the frames of a content keep their order on a channel; frames of other channels may be
    between.
    """
    speaker.channel(2)
    speaker.queue()
    a = [method("basic.publish", 1, routing_key=speaker.q), header(6, channel=1), body(b"aaa", 1), body(b"AAA", 1)]
    b = [method("basic.publish", 2, routing_key=speaker.q), header(4, channel=2), body(b"bb", 2), body(b"BB", 2)]
    whole = [part for pair in zip(a, b, strict=True) for part in pair]
    speaker.send(b"".join(whole[:5]), heartbeat(), b"".join(whole[5:]))
    speaker.fence(1)
    speaker.fence(2)
    found = {content.body for content in (speaker.get(), speaker.get()) if content is not None}
    assert found == {b"aaaAAA", b"bbBB"}


def test_method_of_another_channel_inside_content(speaker: Peer) -> None:
    speaker.channel(2)
    speaker.queue()
    speaker.send(method("basic.publish", routing_key=speaker.q), header(2), body(b"a"))
    speaker.fence(2)
    speaker.send(body(b"b"))
    got = speaker.get()
    assert got is not None
    assert got.body == b"ab"


STAGES = {"method": 1, "header": 2, "part": 3}


@pytest.mark.parametrize("size", [2, 100_000])
@pytest.mark.parametrize("stage", STAGES)
def test_unfinished_content_does_not_block_other_channels(speaker: Peer, stage: str, size: int) -> None:
    """Between any two frames of a content a client may send a command on another channel and wait for the reply."""
    payload = bytes(size)
    parts = [method("basic.publish", routing_key=speaker.q), header(size), body(payload[:1]), body(payload[1:])]
    speaker.channel(2)
    speaker.queue()
    speaker.chunking = "whole" if size > 2 else speaker.chunking
    speaker.send(*parts[: STAGES[stage]])
    time.sleep(0.02)
    speaker.fence(2)
    speaker.send(heartbeat())
    speaker.fence(2)
    speaker.send(*parts[STAGES[stage] :])
    got = speaker.get()
    assert got is not None
    assert got.body == payload


def test_content_split_at_every_byte(peer: Peer) -> None:
    """A content in three body frames whose start is split at every byte: complete frames take effect at once, and a
    reply on another channel never waits for the rest.
    """
    peer.channel(2)
    peer.queue()
    payload = bytes(range(256)) * 40
    opening = method("basic.publish", routing_key=peer.q) + header(len(payload)) + body(payload[:1])
    for cut in range(1, len(opening)):
        peer.send(opening[:cut])
        time.sleep(0.002)
        peer.send(opening[cut:])
        peer.fence(2)
        peer.send(body(payload[1:9000]), body(payload[9000:]))
        got = peer.get()
        assert got is not None, f"cut at {cut}"
        assert got.body == payload, f"cut at {cut}"


def test_no_wait_methods_get_no_reply(speaker: Peer) -> None:
    """All methods with a no-wait bit, each in a situation where it has an effect."""
    q, x = speaker.q, speaker.x
    steps = [
        method("exchange.declare", exchange=x, type="fanout", nowait=True),
        method("exchange.bind", destination=x, source="amq.fanout", nowait=True),
        method("exchange.unbind", destination=x, source="amq.fanout", nowait=True),
        method("queue.declare", queue=q, exclusive=True, nowait=True),
        method("queue.bind", queue=q, exchange=x, nowait=True),
        method("queue.purge", queue=q, nowait=True),
        method("basic.consume", queue=q, consumer_tag="T", no_ack=True, nowait=True),
        method("basic.cancel", consumer_tag="T", nowait=True),
        method("queue.delete", queue=q, nowait=True),
        method("exchange.delete", exchange=x, nowait=True),
        method("confirm.select", nowait=True),
    ]
    for step in steps:
        speaker.send(step)
        speaker.fence()
    speaker.publish("nosuch")
    assert speaker.expect("basic.ack")["delivery_tag"] == 1


def test_error_of_no_wait_method_closes_channel(speaker: Peer) -> None:
    speaker.method("queue.bind", queue="nosuch", exchange="amq.direct", nowait=True)
    speaker.expect_channel_close(404, 50, 20, "no queue 'nosuch' in vhost '/'")


def test_no_wait_consumer_gets_deliveries(speaker: Peer) -> None:
    speaker.queue()
    speaker.method("basic.consume", queue=speaker.q, consumer_tag="T", no_ack=True, nowait=True)
    speaker.publish()
    assert speaker.content("basic.deliver").method["consumer_tag"] == "T"


def test_names_of_255_bytes(speaker: Peer) -> None:
    """Queue, exchange, routing key and consumer tag of maximal length, with characters that pamqp would refuse."""
    q = (speaker.q + "[ä]/é " + "q" * 255).encode()[:255]
    x = (speaker.x + "[eu] " + "x" * 255)[:255]
    key = b"\xc3\xa4" * 127 + b"k"
    speaker.call("exchange.declare", exchange=x, type="direct", auto_delete=True)
    assert speaker.call("queue.declare", queue=q, exclusive=True)["queue"].encode() == q
    speaker.call("queue.bind", queue=q, exchange=x, routing_key=key)
    assert speaker.call("basic.consume", queue=q, consumer_tag="t" * 255)["consumer_tag"] == "t" * 255
    speaker.send(method("basic.publish", exchange=x, routing_key=key), header(1), body(b"x"))
    got = speaker.content("basic.deliver").method
    assert (got["exchange"], got["routing_key"].encode()) == (x, key)


def test_routing_key_may_be_any_bytes(speaker: Peer) -> None:
    """To RabbitMQ a routing key is bytes, and the consumer gets the same bytes."""
    speaker.queue()
    speaker.call("queue.bind", queue=speaker.q, exchange="amq.fanout")
    speaker.send(method("basic.publish", exchange="amq.fanout", routing_key=b"\xff\x00k"), header(1), body(b"x"))
    got: Content | None = speaker.get()
    assert got is not None
    assert got.method["routing_key"].encode("utf-8", "surrogateescape") == b"\xff\x00k"


def test_two_thousand_small_messages_in_one_segment(peer: Peer) -> None:
    peer.queue()
    peer.call("confirm.select")
    peer.send(b"".join(publish(peer.q, b"%d" % n) for n in range(2000)))
    confirmed = 0
    while confirmed < 2000:
        ack = peer.expect("basic.ack")
        confirmed = ack["delivery_tag"] if ack["multiple"] else confirmed + 1
    peer.call("basic.consume", queue=peer.q, no_ack=True)
    for n in range(2000):
        assert peer.content("basic.deliver").body == b"%d" % n


def test_test_tables_are_consistent() -> None:
    assert table({"k": Field("I", -5)}) == longstr(shortstr("k") + LETTERS["I"])
