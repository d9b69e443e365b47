"""A message's content: frames on the wire, properties and body for the log."""

from __future__ import annotations

import pytest

from amqpd.broker.message import FRAME_PAYLOAD_BYTES, Envelope, make_message
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
