"""Message content: frames on the wire, properties and body for the log."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from librt.strings import BytesWriter

from amqpd.broker.message import (
    FRAME_PAYLOAD_BYTES,
    KEPT_PROPERTIES_MAX,
    LogMessageFactory,
    Message,
    MessageRoute,
    make_message,
    message_in_parts,
    with_properties,
    write_content,
    write_header,
)
from amqpd.protocol.frame import LARGE_BODY_BYTES
from amqpd.protocol.properties import Properties, encode_properties, scan_properties
from amqpd.storage.log.batch import BatchHeader
from amqpd.storage.log.record import Record

PROPERTIES = b"\x10\x00\x02"


@pytest.mark.parametrize("size", [1, FRAME_PAYLOAD_BYTES, FRAME_PAYLOAD_BYTES + 1, 3 * FRAME_PAYLOAD_BYTES + 5])
def test_properties_and_body_without_frames(size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    body = body[:size]
    message = make_message(
        MessageRoute("x", "k"), PROPERTIES, body, True, scan_properties(PROPERTIES, 0, len(PROPERTIES))
    )
    assert message.properties() == PROPERTIES
    assert message.body() == body
    assert message.unframed() == PROPERTIES + body


@pytest.mark.parametrize("payload_max", [4088, 100_000, 131064, 1 << 20])
def test_large_body_is_sent_in_frames_of_the_peers_size(payload_max: int) -> None:
    parts = [b"a" * 131064, b"b" * 131064, b"c" * 5, b"d" * 90_001]
    body = b"".join(parts)
    header = BytesWriter()
    write_header(header, 1, PROPERTIES, len(body))
    info = scan_properties(PROPERTIES, 0, len(PROPERTIES))
    message = message_in_parts(MessageRoute("x", "k"), header.getvalue(), parts, len(body), True, info)
    assert message.body() == body
    assert message.unframed() == PROPERTIES + body
    assert message.size_bytes() == len(header.getvalue()) + len(body)
    pieces = message.pieces(0x1234, payload_max)
    if payload_max >= 131064:
        assert [piece for piece in pieces if len(piece) > 100 or piece == parts[2]] == parts, "the parts were copied"
    stream = b"".join(pieces)
    written = BytesWriter()
    message.write_content(written, 0x1234, payload_max)
    found = []
    for data in (stream, written.getvalue()):
        bodies, at = [], 0
        while at < len(data):
            kind, channel, size = struct.unpack_from(">BHI", data, at)
            payload = data[at + 7 : at + 7 + size]
            assert data[at + 7 + size] == 0xCE
            assert channel == 0x1234
            assert size <= payload_max
            at += size + 8
            if kind == 2:
                assert payload == struct.pack(">HHQ", 60, 0, len(body)) + PROPERTIES
            else:
                assert kind == 3
                bodies.append(payload)
        assert [len(each) for each in bodies[:-1]] == [payload_max] * (-(-len(body) // payload_max) - 1)
        found.append(b"".join(bodies))
    assert found == [body, body]


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [5],
        [4088],
        [100, 100, 50],
        [100, 4088],
        [4088, 7, 4088],
        [4088, 4088, 7],
        [4088, 4088],
        [4088, 1, 4088, 100],
        [9000],
    ],
)
def test_receiver_gets_full_frames_whatever_the_publisher_sent(sizes: list[int]) -> None:
    """As from RabbitMQ: some clients compute the number of frames from the size of the body."""
    frames = BytesWriter()
    write_header(frames, 1, PROPERTIES, sum(sizes))
    header_size = len(frames)
    for size in sizes:
        frames.write(struct.pack(">BHI", 3, 1, size) + b"x" * size + b"\xce")
    message = Message(
        MessageRoute("", "q"), frames.getvalue(), header_size, sum(sizes), max(sizes, default=0), False, None
    )
    sent = BytesWriter()
    message.write_content(sent, 2, 4088)
    expected = BytesWriter()
    write_content(expected, 2, PROPERTIES, b"x" * sum(sizes), 4088)
    assert sent.getvalue() == expected.getvalue()


def in_parts(message: Message) -> Message:
    header = message.content[: message.header_size]
    return message_in_parts(message.envelope, header, [message.body()], message.body_size, True, message.info)


EXPIRING = encode_properties(Properties(delivery_mode=2, expiration="5000", headers={"a": 1}))


@pytest.mark.parametrize("again", [1, 2])
@pytest.mark.parametrize("properties", [b"\x00\x00", PROPERTIES, EXPIRING, b"\x80\x00\xff" + b"t" * 255])
def test_message_read_from_log_equals_the_published_one(properties: bytes, again: int) -> None:
    """A message of the shared factory equals one built alone, for every size and after any other message."""
    from_log = LogMessageFactory()
    for size in [0, 1, 1, 1000, 1000, FRAME_PAYLOAD_BYTES, FRAME_PAYLOAD_BYTES + 1, LARGE_BODY_BYTES + 1, 1000]:
        for number in range(again):
            body = bytes([number]) * size
            key = b"key%d" % (size % 3)
            record = Record(number, 77, b"ex", key, properties, body, True)
            message = from_log.message(record)
            info = scan_properties(properties, 0, len(properties)) if len(properties) > 3 else None
            alone = make_message(MessageRoute("ex", key.decode()), properties, body, True, info)
            assert (message.header_size, message.body_size) == (alone.header_size, alone.body_size)
            assert message.unframed() == alone.unframed() == properties + body
            for channel, payload_max in [(1, FRAME_PAYLOAD_BYTES), (1, 600), (0x1234, FRAME_PAYLOAD_BYTES), (7, 600)]:
                actual, expected = BytesWriter(), BytesWriter()
                actual.write(b"before")
                message.write_content(actual, channel, payload_max)
                expected.write(b"before")
                alone.write_content(expected, channel, payload_max)
                assert actual.getvalue() == expected.getvalue()
            if message.parts is not None:
                assert b"".join(message.pieces(5, 1000)) == b"".join(in_parts(alone).pieces(5, 1000))
            assert (message.envelope.suffix, message.logged_ms) == (alone.envelope.suffix, 77)
            assert (message.info is None) == (info is None)
            if info is not None and message.info is not None:
                assert message.info.expiration == info.expiration
            assert (message.properties(), message.body()) == (properties, body)


def test_message_read_from_log_keeps_a_priority_that_is_its_only_property() -> None:
    properties = encode_properties(Properties(priority=3))
    info = LogMessageFactory().message(Record(0, 0, b"", b"k", properties, b"body", False)).info
    assert info is not None and info.priority == 3


@pytest.mark.parametrize("size", [0, 5, FRAME_PAYLOAD_BYTES + 1])
@pytest.mark.parametrize(
    "invalid",
    [b"", b"\x80", b"\x80\0", b"\0\1", b"\x20\0\0\0\0\5ab", EXPIRING[:-1], EXPIRING + b"x", b"\x80\0\xff" + b"t"],
)
def test_invalid_properties_of_a_record_are_left_out(invalid: bytes, size: int) -> None:
    """One record must not stop its queue. Records before and after it keep theirs."""
    from_log = LogMessageFactory()
    for properties in (EXPIRING, invalid, invalid, PROPERTIES, invalid, EXPIRING):
        for body in (b"x" * size, b"y" * size, b"z" * (size + 1)):
            message = from_log.message(Record(0, 0, b"", b"k", properties, body, True))
            expected = b"\0\0" if properties is invalid else properties
            assert (message.properties(), message.body()) == (expected, body)
            out = BytesWriter()
            message.write_content(out, 3, FRAME_PAYLOAD_BYTES)
            assert out.getvalue()[7 + 12 : 7 + 12 + len(expected) + 1] == expected + b"\xce"
            assert (message.info is not None) == (properties is EXPIRING)


def test_large_properties_are_not_cached() -> None:
    from_log = LogMessageFactory()
    headers = {f"key{number}": "x" * 200 for number in range(10)}
    for properties in (PROPERTIES, encode_properties(Properties(headers=headers)), PROPERTIES):
        message = from_log.message(Record(0, 0, b"", b"k", properties, b"body", True))
        assert (message.properties(), message.body()) == (properties, b"body")
        cached = [
            getattr(from_log, name)
            for name in ("_properties", "_valid_properties", "_start")
            if hasattr(from_log, name)
        ]
        assert all(len(each) <= KEPT_PROPERTIES_MAX + 64 for each in cached)


@pytest.mark.parametrize("size", [0, 20, FRAME_PAYLOAD_BYTES + 5, LARGE_BODY_BYTES + 5])
def test_dead_letter_is_copied_from_log_to_log(room, size: int) -> None:
    """Small messages share batches in the second log."""
    room.queue("dead")
    room.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    bodies = [b"%02d" % number + bytes(size) for number in range(4 if size > 1000 else 40)]
    for body in bodies:
        room.publish("q", body)
    room.restart()
    queue = room.vhost.queues["q"]
    queue.prepare()
    entries = [queue.get(False) for _ in bodies]
    for entry in entries:
        assert entry is not None
        queue.reject(entry)
    room.turn.schedule()
    room.turns()
    room.restart()
    assert room.vhost.queues["q"].can_open() and room.vhost.queues["q"].ready_count == 0
    dead = room.vhost.queues["dead"]
    assert dead.can_open()
    if size < 1000:
        data = Path(f"{dead.store.log.segments[0].prefix}.log").read_bytes()
        position, count = 0, 0
        while position < len(data):
            position += BatchHeader(data, position).size
            count += 1
        assert count < len(bodies) / 4
    assert room.bodies(dead) == bodies


@pytest.mark.parametrize("size", [0, 10, FRAME_PAYLOAD_BYTES + 5])
def test_body_with_replaced_properties(size: int) -> None:
    """The body's frames keep the channel they arrived on; each reader gets all frames with its own channel."""
    body = bytes(range(256)) * (size // 256) + b"." * (size % 256)
    sent = BytesWriter()
    make_message(MessageRoute("x", "k"), b"\0\0", body, True, None).write_content(sent, 7, FRAME_PAYLOAD_BYTES)
    content = sent.getvalue()
    header_size = 12 + 2 + 8
    received = Message(MessageRoute("x", "k"), content, header_size, size, min(size, FRAME_PAYLOAD_BYTES), True, None)
    changed = with_properties(received, MessageRoute("", "other"), b"\x10\x00\x02", None)
    assert (changed.properties(), changed.body(), changed.body_size) == (b"\x10\x00\x02", body, size)
    assert received.properties() == b"\0\0" and received.body() == body
    for channel in (1, 7):
        out = BytesWriter()
        changed.write_content(out, channel, FRAME_PAYLOAD_BYTES)
        expected = BytesWriter()
        write_content(expected, channel, b"\x10\x00\x02", body, FRAME_PAYLOAD_BYTES)
        assert out.getvalue() == expected.getvalue()
