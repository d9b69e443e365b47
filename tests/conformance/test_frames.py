"""Frames, channel states, content and properties, with the texts of RabbitMQ 3.10.8."""

from __future__ import annotations

import socket
import time

import pytest
from cases import Answers, Case, ChannelClose, Chunked, ConnectionClose, answers, both, filled_queue, own_queue, run
from peer import Peer
from wire import (
    BODY,
    HEADER,
    HEARTBEAT,
    METHOD,
    body,
    frame,
    header,
    longstr,
    method,
    method_payload,
    properties,
    publish,
    shortstr,
)

ALIVE = Answers()
PUBLISH = method("basic.publish")
QOS = method("basic.qos")
NO_METHOD = ConnectionClose(505, 0, 0, "expected method frame, got non method frame instead")
NO_HEADER = ConnectionClose(505, 60, 40, "expected content header for class 60, got non content header frame instead")
NO_BODY = ConnectionClose(505, 60, 40, "expected content body, got non content body frame instead")
BAD_PROPERTIES = ConnectionClose(501)


def declare(name: str | bytes) -> bytes:
    return method("queue.declare", queue=name, exclusive=True)


FRAMES = [
    Case(
        "C1",
        frame(METHOD, 1, method_payload("basic.qos"), end=0),
        ConnectionClose(501, 0, 0, "type 1, all octets = <<0,60,0,10,0,0,0,0,0,0,0>>: {invalid_frame_end_marker,0}"),
    ),
    Case("C2", frame(0, 1, b"xx"), ConnectionClose(501, 0, 0, 'type 0, all octets = <<"xx">>: unknown_frame')),
    Case("C3", frame(9, 1, b"xx"), ConnectionClose(501, 0, 0, 'type 9, all octets = <<"xx">>: unknown_frame')),
    Case("C4", frame(255, 0, b"xx"), ConnectionClose(501, 0, 0, 'type 255, all octets = <<"xx">>: unknown_frame')),
    Case("C5", frame(BODY, 1, bytes(131072)), NO_METHOD, cheap=False),
    Case(
        "C5-published",
        lambda peer: method("basic.publish", routing_key=peer.q) + header(131072) + body(bytes(131072)),
        ALIVE,
        own_queue,
        cheap=False,
    ),
    Case(
        "C6",
        frame(BODY, 1, bytes(131073)),
        ConnectionClose(501, 0, 0, "type 3, all octets = <<>>: {frame_too_large,131073,131064}"),
        cheap=False,
    ),
    Case(
        "C6-header-only",
        frame(BODY, 1, b"", size=131073)[:7],
        ConnectionClose(501, 0, 0, "type 3, all octets = <<>>: {frame_too_large,131073,131064}"),
    ),
    Case(
        "C7",
        frame(METHOD, 1, b"", size=0xFFFFFFFF),
        ConnectionClose(501, 0, 0, "type 1, all octets = <<>>: {frame_too_large,4294967295,131064}"),
    ),
    Case("C8", frame(METHOD, 1, b""), ConnectionClose(501, 0, 0, "type 1, all octets = <<>>: unknown_frame")),
    Case(
        "C9",
        frame(METHOD, 1, b"\0\x3c\0"),
        ConnectionClose(501, 0, 0, "type 1, all octets = <<0,60,0>>: unknown_frame"),
    ),
    Case("C10", frame(8, 0, b"xx"), ConnectionClose(501, 0, 0, 'type 8, all octets = <<"xx">>: unknown_frame')),
    Case("C11", frame(8, 1, b""), ConnectionClose(505, 0, 0, "type 8, all octets = <<>>")),
    Case("C12", method("basic.qos", 7), ConnectionClose(504, 60, 10, "expected 'channel.open'")),
    Case("C12-get", method("basic.get", 7, queue="q"), ConnectionClose(504, 60, 70, "expected 'channel.open'")),
    Case("C13", method("channel.open"), ConnectionClose(504, 20, 10, "second 'channel.open' seen")),
    Case("C14", frame(METHOD, 1, b"\x03\xe7\0\x0a"), ConnectionClose(540), ours="drops the socket"),
    Case("C15", frame(METHOD, 1, b"\0\x32\0\x63"), ConnectionClose(540), ours="drops the socket"),
    Case("C16", method("channel.open-ok"), ConnectionClose(503, 20, 11, "unimplemented method")),
    Case(
        "C17",
        frame(METHOD, 1, method_payload("queue.declare")[:-3]),
        ConnectionClose(501, 50, 10, "cannot decode <<0,0,0,0,0>>"),
    ),
    Case("C17-one-octet", frame(METHOD, 1, b"\0\x3c\0\x0a\1"), ConnectionClose(501, 60, 10, "cannot decode <<1>>")),
    Case("C17-no-arguments", frame(METHOD, 1, b"\0\x14\0\x28"), ConnectionClose(501, 20, 40, "cannot decode <<>>")),
    Case(
        "C18",
        frame(METHOD, 1, method_payload("queue.declare") + b"zz"),
        ConnectionClose(501, 50, 10, "cannot decode <<0,0,0,0,0,0,0,0,122,122>>"),
    ),
    Case("C19", declare(b"a\xff"), ConnectionClose(501, 0, 0, "Malformed UTF-8 in shortstr")),
    Case("C20", declare("a\0b"), ChannelClose(406, 50, 10), ours="takes a NUL in a name"),
    Case("C21", declare(("../" * 85)[:255]), answers("queue.declare-ok", queue=("../" * 85)[:255])),
    Case("C22", declare(".."), answers("queue.declare-ok", queue="..")),
    Case("C23", declare("a\r\nb\x1b[31m"), answers("queue.declare-ok", queue="ab\x1b[31m")),
    Case("C24", declare("<script>"), answers("queue.declare-ok", queue="<script>")),
    Case("C25", declare("amq.x"), ChannelClose(403, 50, 10, "queue name 'amq.x' contains reserved prefix 'amq.*'")),
    Case("C26", method("queue.declare", passive=True), ChannelClose(404, 50, 10, "no queue '' in vhost '/'")),
    Case(
        "C26-after-another",
        method("queue.declare", passive=True),
        ChannelClose(404, 50, 10, "no queue '' in vhost '/'"),
        own_queue,
    ),
]


def refused(id_: str, text: str, **props: object) -> Case:
    """A publish whose properties are refused with a channel error."""
    return Case(
        id_,
        lambda peer: publish(peer.q, b"x", properties(**props)),
        ChannelClose(406, 60, 40, text),
        own_queue,
    )


def accepted(id_: str, props: bytes) -> Case:
    """A publish whose odd properties are accepted and delivered unchanged."""

    class AcceptedUnchanged(Answers):
        def check(self, peer: Peer) -> None:
            peer.fence()
            content = peer.get()
            assert content is not None
            assert (content.props, content.body) == (props, b"x")

    return Case(id_, lambda peer: publish(peer.q, b"x", props), AcceptedUnchanged(), own_queue)


def nested_tables(depth: int) -> bytes:
    value = longstr(b"")
    for _ in range(depth):
        value = longstr(shortstr("a") + b"F" + value)
    return properties(headers=value)


def nested_arrays(depth: int) -> bytes:
    value = longstr(b"")
    for _ in range(depth):
        value = longstr(b"A" + value)
    return properties(headers=longstr(shortstr("a") + b"A" + value))


def publish_with_body_size(size: int) -> bytes:
    return PUBLISH + header(size)


CONTENT = [
    Case("D1", header(1), NO_METHOD),
    Case("D2", body(b"x"), NO_METHOD),
    Case("D3", PUBLISH + QOS, NO_HEADER),
    Case("D4", PUBLISH + body(b"x"), NO_HEADER),
    Case("D5", PUBLISH + header(1) + QOS, NO_BODY),
    Case("D5-header-again", PUBLISH + header(1) + header(1), NO_BODY),
    Case("D5-half-a-body", PUBLISH + header(4) + body(b"xx") + QOS, NO_BODY),
    Case(
        "D6",
        PUBLISH + header(1, class_id=50),
        ConnectionClose(505, 60, 40, "expected content header for class 60, got one for class 50 instead"),
    ),
    Case(
        "D6-short",
        PUBLISH + frame(HEADER, 1, b"\0\x3c\0"),
        ConnectionClose(501, 0, 0, "type 2, all octets = <<0,60,0>>: unknown_frame"),
    ),
    Case(
        "D6-empty",
        PUBLISH + frame(HEADER, 1, b""),
        ConnectionClose(501, 0, 0, "type 2, all octets = <<>>: unknown_frame"),
    ),
    Case("D7", PUBLISH + header(1, weight=1), NO_HEADER),
    Case("D8", PUBLISH + header(3) + body(b"xxxxx") + QOS, NO_BODY),
    Case("D8-at-once", PUBLISH + header(3) + body(b"xxxxx"), NO_BODY, ours="waits for the next frame"),
    Case("D9", publish_with_body_size(1 << 63), ConnectionClose(501), ours="waits for the body"),
    Case("D10", publish_with_body_size(2 << 30), ConnectionClose(501), ours="waits for the body"),
    Case(
        "D11",
        publish_with_body_size(129 << 20),
        ChannelClose(406, 60, 40),
        ours="takes the whole body before it says 406",
    ),
    Case(
        "D12",
        lambda peer: method("basic.publish", routing_key=peer.q) + header(1) + body(b"") * 1000 + body(b"x"),
        ALIVE,
        own_queue,
        cheap=False,
    ),
    Case("D13", PUBLISH + header(0) + body(b"x"), NO_METHOD),
    Case("D13-empty", PUBLISH + header(0) + body(b""), NO_METHOD),
    Case("D14", PUBLISH + header(1, b"\0\1\0\0") + body(b"x"), BAD_PROPERTIES, ours="541"),
    Case("D15", PUBLISH + header(1, b"\x80\0") + body(b"x"), BAD_PROPERTIES, ours="541"),
    Case("D16", PUBLISH + header(1, b"\0\0zz") + body(b"x"), BAD_PROPERTIES, ours="541"),
    Case("D16-no-flags", PUBLISH + header(1, b"") + body(b"x"), BAD_PROPERTIES, ours="541"),
    Case("D17", PUBLISH + header(1, b"\x20\0" + longstr(b"\1aZ")) + body(b"x"), BAD_PROPERTIES, ours="541"),
    Case("D18", PUBLISH + header(1, b"\x20\0\0\0\1\0") + body(b"x"), BAD_PROPERTIES, ours="541"),
    Case(
        "D18-inside",
        PUBLISH + header(1, properties(headers=longstr(shortstr("a") + b"S\0\0\1\0b"))) + body(b"x"),
        BAD_PROPERTIES,
        ours="541",
    ),
    Case("D19", publish("", b"x", nested_tables(1000)), BAD_PROPERTIES, ours="takes any depth"),
    Case("D20", publish("", b"x", nested_arrays(8000)), BAD_PROPERTIES, ours="takes any depth", cheap=False),
    accepted("D19-100-deep", nested_tables(100)),
    accepted("D21", properties(headers=longstr((shortstr("a") + b"t\1") + (shortstr("a") + b"t\0")))),
    accepted("D22", properties(headers=longstr(b"\2\xff\xfet\1"))),
    accepted("D23", properties(timestamp=2**64 - 1)),
    refused("D24", "invalid message: {delivery_mode_unknown,99}", delivery_mode=99),
    refused("D24-last", "invalid expiration 'abc': no_integer", delivery_mode=99, expiration="abc"),
    accepted("D25", properties(priority=255)),
    refused("D26", "invalid expiration 'abc': no_integer", expiration="abc"),
    refused("D26-empty", "invalid expiration '': no_integer", expiration=""),
    refused("D27", "invalid expiration '-1': {value_negative,-1}", expiration="-1"),
    refused("D27-fraction", "invalid expiration '1.5': {leftover_string,\".5\"}", expiration="1.5"),
    accepted("D28", properties(expiration=str(2**33))),
    refused("D29", "user_id property set to 'other' but authenticated user was 'guest'", user_id="other"),
    accepted("D29-own", properties(user_id="guest")),
    refused("D30", 'invalid message: {unacceptable_type_in_header,"CC",signedint}', headers={"CC": 5}),
    refused("D30-BCC", 'invalid message: {unacceptable_type_in_header,"BCC",longstr}', headers={"BCC": "x"}),
    Case(
        "D31",
        lambda peer: publish("k", exchange=peer.x),
        ChannelClose(404, 60, 40, "no exchange '{x}' in vhost '/'"),
    ),
    Case("D32", publish("k", immediate=True), ConnectionClose(540, 60, 40, "immediate=true")),
    Case(
        "D33",
        method("confirm.select") + publish("nosuch", mandatory=True),
        answers("confirm.select-ok", "basic.return", "<header>", "<body>", "basic.ack", delivery_tag=1, multiple=False),
    ),
    Case(
        "D34",
        lambda peer: publish("k", exchange=peer.x),
        ChannelClose(403, 60, 40, "cannot publish to internal exchange '{x}' in vhost '/'"),
        lambda peer: peer.exchange("fanout", internal=True),
    ),
    Case(
        "D35-equal",
        lambda peer: publish("nosuch", b"x", properties(headers={"BCC": [peer.q] * 4000})),
        ALIVE,
        own_queue,
        cheap=False,
    ),
    Case(
        "D35-distinct",
        publish("nosuch", b"x", properties(headers={"BCC": [f"k{n}" for n in range(1001)]})),
        ChannelClose(406, 60, 40),
        ours="takes any number of keys",
        cheap=False,
    ),
    Case(
        "D36",
        publish("amq.rabbitmq.reply-to.xyz", mandatory=True) + publish("amq.rabbitmq.reply-to.xyz"),
        answers("basic.return", "<header>", "<body>"),
    ),
    Case(
        "D37",
        lambda peer: publish(peer.q, b"x", properties(reply_to="amq.rabbitmq.reply-to")),
        ChannelClose(406, 60, 40, "fast reply consumer does not exist"),
        own_queue,
    ),
]


@both(FRAMES, parser=True)
def test_frames(peer: Peer, chunked: Chunked) -> None:
    run(peer, chunked)


@both(CONTENT, parser=True)
def test_content(peer: Peer, chunked: Chunked) -> None:
    run(peer, chunked)


@pytest.mark.parametrize("wrong", [QOS, header(1), frame(HEARTBEAT, 1, b"")], ids=["method", "header", "heartbeat"])
def test_wrong_frame_instead_of_body_is_refused_at_once(peer: Peer, wrong: bytes) -> None:
    """The broker must not wait for a body of 100,000 bytes before it checks the type of the next frame."""
    peer.send(PUBLISH + header(100_000))
    time.sleep(0.02)
    peer.send(wrong)
    if wrong[0] == HEARTBEAT:
        peer.expect_connection_close(505)
    else:
        peer.expect_connection_close(505, 60, 40, NO_BODY.text)


def test_pipelined_frames_after_a_hard_error_are_discarded(peer: Peer) -> None:
    """The broker reads on for close-ok and ignores all else."""
    filled_queue(peer)
    peer.send(method("channel.open") + method("queue.purge", queue=peer.q) * 3 + publish(peer.q))
    peer.expect_connection_close(504, 20, 10, "second 'channel.open' seen")


def test_frames_after_a_soft_error_are_discarded_until_close_ok(peer: Peer) -> None:
    """AMQP 0-9-1 1.5.2.5: after channel.close only close and close-ok count on that channel; other channels work."""
    peer.channel(2)
    peer.queue(channel=2)
    peer.send(
        method("queue.purge", queue="nosuch"),
        publish(peer.q),
        method("queue.purge", queue=peer.q),
        method("basic.get", 2, queue=peer.q),
    )
    got = {peer.read().name, peer.read().name}
    assert got == {"channel.close", "basic.get-empty"}
    peer.method("channel.close-ok")
    peer.channel()
    peer.fence(2)


def test_simultaneous_channel_closes_are_both_answered(peer: Peer) -> None:
    """AMQP 0-9-1 1.5.2.5: both closes are answered, in any order of the client's replies."""
    peer.send(method("queue.purge", queue="nosuch"), method("channel.close"))
    peer.check_close(peer.expect("channel.close"), 404, 50, 30, "no queue 'nosuch' in vhost '/'")
    peer.expect("channel.close-ok")
    peer.send(publish("nosuch"), method("channel.close-ok"))
    peer.channel()
    peer.fence()


def test_frames_after_connection_close_do_not_cause_reset(peer: Peer) -> None:
    """RabbitMQ: after close-ok the broker reads until the client ends the stream; a reset could overtake close-ok."""
    peer.send(method("connection.close", 0), method("connection.close", 0))
    peer.expect("connection.close-ok", 0)
    for _ in range(20):
        peer.send(publish(peer.q))
        time.sleep(0.01)
    assert peer.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0, "the connection was reset"
