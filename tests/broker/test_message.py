"""A message's content: frames on the wire, properties and body for the log."""

from __future__ import annotations

import struct

import pytest
from librt.strings import BytesWriter

from amqpd.broker.message import FRAME_PAYLOAD_BYTES, Envelope, make_message, message_in_parts, write_header
from amqpd.protocol.properties import scan

PROPERTIES = b"\x10\x00\x02"


@pytest.mark.parametrize("size", [1, FRAME_PAYLOAD_BYTES, FRAME_PAYLOAD_BYTES + 1, 3 * FRAME_PAYLOAD_BYTES + 5])
def test_without_its_frames(size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    body = body[:size]
    message = make_message(Envelope("x", "k"), PROPERTIES, body, True, scan(PROPERTIES, 0, len(PROPERTIES)))
    assert message.properties() == PROPERTIES
    assert message.body() == body
    assert message.unframed() == PROPERTIES + body


@pytest.mark.parametrize("payload_max", [4088, 100_000, 131064, 1 << 20])
def test_a_large_body_goes_out_in_frames_that_the_peer_takes(payload_max: int) -> None:
    parts = [b"a" * 131064, b"b" * 131064, b"c" * 5, b"d" * 90_001]
    body = b"".join(parts)
    header = BytesWriter()
    write_header(header, 1, PROPERTIES, len(body))
    info = scan(PROPERTIES, 0, len(PROPERTIES))
    message = message_in_parts(Envelope("x", "k"), header.getvalue(), parts, len(body), True, info)
    assert message.body() == body
    assert message.unframed() == PROPERTIES + body
    assert message.size_bytes() == len(header.getvalue()) + len(body)
    pieces = message.pieces(0x1234, payload_max)
    if payload_max >= 131064:
        assert [piece for piece in pieces if len(piece) > 100 or piece == parts[2]] == parts, "they were copied"
    stream = b"".join(pieces)
    plain = BytesWriter()
    message.write_content(plain, 0x1234, payload_max)
    found = []
    for data in (stream, plain.getvalue()):
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
        found.append(b"".join(bodies))
    assert found == [body, body]
