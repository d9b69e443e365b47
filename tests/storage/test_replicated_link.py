"""Responses are assembled from pieces and matched with the requests by correlation id."""

from __future__ import annotations

import pytest

from amqpd.kafka.correlation import Correlator
from amqpd.kafka.requests import CORRELATION_MAX
from amqpd.kafka.wire import BadAnswer


def frame(number: int, body: bytes) -> bytes:
    return (len(body) + 4).to_bytes(4, "big") + number.to_bytes(4, "big") + body


def test_responses_arrive_in_pieces_of_any_size() -> None:
    bodies = [b"", b"a", b"b" * 300, b""]
    data = b"".join(frame(number, body) for number, body in enumerate(bodies))
    for size in (1, 2, 3, 5, 7, 100, len(data)):
        correlator = Correlator(1 << 20)
        assert [correlator.next_correlation_id() for _ in bodies] == [0, 1, 2, 3]
        found = [response for at in range(0, len(data), size) for response in correlator.feed(data[at : at + size])]
        assert [response[4:] for response in found] == bodies
        assert correlator.unanswered == 0


def test_large_response_in_many_pieces() -> None:
    correlator = Correlator(1 << 20)
    correlator.next_correlation_id()
    data = frame(0, bytes(1 << 19))
    for at in range(0, len(data), 1 << 14):
        found = correlator.feed(data[at : at + (1 << 14)])
    assert len(found) == 1
    assert len(found[0]) == (1 << 19) + 4


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (frame(1, b"x"), "the answer to 1, expected that to 0"),
        (frame(0, b"") + frame(0, b""), "without a request"),
        (b"\x00\x00\x00\x03abc", "3 bytes"),
        (b"\xff\xff\xff\xff", "-1 bytes"),
        (b"\x7f\xff\xff\xff", "limit of 1000"),
    ],
)
def test_unexpected_response_is_refused(data: bytes, error: str) -> None:
    correlator = Correlator(1000)
    correlator.next_correlation_id()
    with pytest.raises(BadAnswer, match=error):
        correlator.feed(data)


def test_correlation_ids_restart_at_0() -> None:
    correlator = Correlator(1000)
    correlator._next_id = CORRELATION_MAX
    assert [correlator.next_correlation_id(), correlator.next_correlation_id()] == [CORRELATION_MAX, 0]
