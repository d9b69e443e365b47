"""Answers put together from pieces, and held against what was asked."""

from __future__ import annotations

import pytest

from amqpd.kafka.correlation import Correlator
from amqpd.kafka.requests import CORRELATION_MAX
from amqpd.kafka.wire import BadAnswer


def frame(number: int, body: bytes) -> bytes:
    return (len(body) + 4).to_bytes(4, "big") + number.to_bytes(4, "big") + body


def test_answers_in_any_pieces() -> None:
    bodies = [b"", b"a", b"b" * 300, b""]
    data = b"".join(frame(number, body) for number, body in enumerate(bodies))
    for size in (1, 2, 3, 5, 7, 100, len(data)):
        link = Correlator(1 << 20)
        assert [link.next_correlation_id() for _ in bodies] == [0, 1, 2, 3]
        found = [answer for at in range(0, len(data), size) for answer in link.feed(data[at : at + size])]
        assert [answer[4:] for answer in found] == bodies
        assert link.unanswered == 0


def test_a_large_answer_is_not_copied_for_each_piece() -> None:
    link = Correlator(1 << 20)
    link.next_correlation_id()
    data = frame(0, bytes(1 << 19))
    for at in range(0, len(data), 1 << 14):
        found = link.feed(data[at : at + (1 << 14)])
    assert len(found) == 1
    assert len(found[0]) == (1 << 19) + 4


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (frame(1, b"x"), "the answer to 1, expected that to 0"),
        (frame(0, b"") + frame(0, b""), "without a request"),
        (b"\x00\x00\x00\x03abc", "3 bytes"),
        (b"\xff\xff\xff\xff", "-1 bytes"),
        (b"\x7f\xff\xff\xff", "limit of 1000"),
    ],
)
def test_what_is_no_answer(data: bytes, why: str) -> None:
    link = Correlator(1000)
    link.next_correlation_id()
    with pytest.raises(BadAnswer, match=why):
        link.feed(data)


def test_numbers_begin_again() -> None:
    link = Correlator(1000)
    link._next_id = CORRELATION_MAX
    assert [link.next_correlation_id(), link.next_correlation_id()] == [CORRELATION_MAX, 0]
