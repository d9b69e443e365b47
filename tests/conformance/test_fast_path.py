"""The fast path of publish and ack: frames that only look like one. As RabbitMQ 3.10.8 does.

A broker that parses publish, header and body in one pass must give the same verdict as one that parses frame by
frame. So every case has a counterpart in test_frames, which takes the slow path.
"""

from __future__ import annotations

from cases import Case, ChannelClose, Chunked, ConnectionClose, answers, both, filled_queue, own_queue, run
from peer import Peer
from wire import BODY, HEADER, METHOD, body, frame, header, longstr, method, method_payload, publish, shortstr

PUBLISH = method("basic.publish")
QOS = method("basic.qos")
CLOSED = "expected 'channel.open'"
NO_METHOD = ConnectionClose(505, 0, 0, "expected method frame, got non method frame instead")
NO_BODY = ConnectionClose(505, 60, 40, "expected content body, got non content body frame instead")


def publish_method(payload: bytes) -> bytes:
    """Return a method frame with this payload, followed by a content."""
    return frame(METHOD, 1, payload) + header(1) + body(b"x")


def with_bad_frame_end(valid_frame: bytes) -> bytes:
    return valid_frame[:-1] + b"\0"


def frame_end_error(kind: int, octets: str) -> ConnectionClose:
    return ConnectionClose(501, 0, 0, f"type {kind}, all octets = <<{octets}>>: {{invalid_frame_end_marker,0}}")


def frame_too_large_error(kind: int) -> ConnectionClose:
    return ConnectionClose(501, 0, 0, f"type {kind}, all octets = <<>>: {{frame_too_large,131073,131064}}")


CASES = [
    Case("publish-unopened", publish("k", channel=7), ConnectionClose(504, 60, 40, CLOSED)),
    Case("publish-channel-0", publish("k", channel=0), ConnectionClose(504, 60, 40)),
    Case("ack-unopened", method("basic.ack", 7, delivery_tag=1), ConnectionClose(504, 60, 80, CLOSED)),
    Case("ack-channel-0", method("basic.ack", 0, delivery_tag=1), ConnectionClose(504, 60, 80)),
    Case(
        "publish-trailing",
        publish_method(method_payload("basic.publish") + b"z"),
        ConnectionClose(501, 60, 40, "cannot decode <<0,0,0,0,0,122>>"),
    ),
    Case(
        "publish-truncated",
        publish_method(method_payload("basic.publish")[:-1]),
        ConnectionClose(501, 60, 40, "cannot decode <<0,0,0,0>>"),
    ),
    Case(
        "ack-trailing",
        frame(METHOD, 1, method_payload("basic.ack") + b"z"),
        ConnectionClose(501, 60, 80, "cannot decode <<0,0,0,0,0,0,0,0,0,122>>"),
    ),
    Case(
        "ack-truncated",
        frame(METHOD, 1, method_payload("basic.ack")[:-1]),
        ConnectionClose(501, 60, 80, "cannot decode <<0,0,0,0,0,0,0,0>>"),
    ),
    Case(
        "end-of-method",
        with_bad_frame_end(PUBLISH) + header(1) + body(b"x"),
        frame_end_error(METHOD, "0,60,0,40,0,0,0,0,0"),
    ),
    Case(
        "end-of-header",
        PUBLISH + with_bad_frame_end(header(1)) + body(b"x"),
        frame_end_error(HEADER, "0,60,0,0,0,0,0,0,0,0,0,1,0,0"),
    ),
    Case("end-of-body", PUBLISH + header(1) + with_bad_frame_end(body(b"x")), frame_end_error(BODY, '"x"')),
    Case("header-elsewhere", PUBLISH + header(1, channel=2) + body(b"x"), NO_METHOD),
    Case("body-elsewhere", PUBLISH + header(1) + body(b"x", 2), NO_METHOD),
    Case("header-too-large", PUBLISH + frame(HEADER, 1, b"", size=131073)[:-1], frame_too_large_error(HEADER)),
    Case(
        "body-too-large", PUBLISH + header(200_000) + frame(BODY, 1, b"", size=131073)[:-1], frame_too_large_error(BODY)
    ),
    Case(
        "body-too-long",
        lambda peer: method("basic.publish", routing_key=peer.q) + header(1) + body(b"xy") + QOS,
        NO_BODY,
        own_queue,
    ),
    Case(
        "body-too-short",
        lambda peer: method("basic.publish", routing_key=peer.q) + header(2) + body(b"x") + PUBLISH,
        NO_BODY,
        own_queue,
    ),
    Case(
        "publish-twice",
        PUBLISH + PUBLISH,
        ConnectionClose(505, 60, 40, "expected content header for class 60, got non content header frame instead"),
    ),
    Case(
        "unused-bits-of-publish",
        lambda peer: publish_method(method_payload("basic.publish", routing_key=peer.q)[:-1] + b"\xfc") + QOS,
        answers("basic.qos-ok"),
        own_queue,
    ),
    Case(
        "unused-bits-of-ack",
        frame(METHOD, 1, method_payload("basic.ack", multiple=True)[:-1] + b"\xff") + QOS,
        answers("basic.qos-ok"),
    ),
    Case(
        "good-then-bad",
        lambda peer: publish(peer.q) * 3 + publish("k", exchange="nosuch") + publish(peer.q) * 3,
        ChannelClose(404, 60, 40, "no exchange 'nosuch' in vhost '/'"),
        own_queue,
    ),
    Case(
        "good-then-get",
        lambda peer: publish(peer.q) * 3 + method("basic.get", no_ack=True),
        answers("basic.get-ok", "<header>", "<body>"),
        own_queue,
    ),
    Case(
        "consumer-tag-not-text",
        lambda peer: method("basic.consume", queue=peer.q, consumer_tag=b"\xff"),
        ConnectionClose(501, None, None, "Malformed UTF-8 in shortstr"),
        own_queue,
    ),
]
TABLES = [
    Case("bad-type", longstr(b"\1aZ"), ConnectionClose(501, 50, 10), ours="drops the socket"),
    Case("overrun", b"\0\0\0\5\1aS\0\0", ConnectionClose(501, 50, 10), ours="drops the socket"),
    Case("no-length", longstr(b"\1aS\0\0\0\1"), ConnectionClose(501, 50, 10), ours="drops the socket"),
    Case("key-only", longstr(b"\1a"), ConnectionClose(501, 50, 10), ours="drops the socket"),
    Case(
        "duplicate",
        longstr((shortstr("x-max-length") + b"I\0\0\0\1") + (shortstr("x-max-length") + b"I\0\0\0\2")),
        answers("queue.declare-ok"),
    ),
]


@both(CASES)
def test_fast_path(peer: Peer, chunked: Chunked) -> None:
    run(peer, chunked)


@both(TABLES)
def test_malformed_tables(peer: Peer, chunked: Chunked) -> None:
    """Malformed argument tables of queue.declare."""
    assert isinstance(chunked.case.payload, bytes)
    peer.bytewise_now()
    peer.method("queue.declare", queue=peer.q, exclusive=True, arguments=chunked.case.payload)
    chunked.case.end.check(peer)


def test_refused_publish_keeps_earlier_ones(peer: Peer) -> None:
    """Six publishes around a refused one in one segment: the three before it are stored, the three after it are not."""
    filled_queue(peer)
    peer.send(publish(peer.q, b"before") * 3 + publish("k", exchange="nosuch") + publish(peer.q, b"after") * 3)
    peer.expect_channel_close(404, 60, 40)
    assert peer.call("queue.purge", queue=peer.q)["message_count"] == 4
