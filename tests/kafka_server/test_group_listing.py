"""Assignments of members, decoded for operators."""

from __future__ import annotations

import pytest

from amqpd.kafka_server.group_listing import decode_assignment

# version 1, then two topics: "a" with 0 and 2, "ü" with none; then user data
GOOD = bytes.fromhex("0001000000020001610000000200000000000000020002c3bc00000000ffffffff")


def test_topics_and_partitions_are_decoded() -> None:
    assert decode_assignment(GOOD, 10) == {"a": (0, 2), "ü": ()}


def test_no_more_partitions_than_the_limit_are_decoded() -> None:
    assert decode_assignment(GOOD, 1) == {"a": (0,)}
    assert decode_assignment(GOOD, 0) == {}


@pytest.mark.parametrize("size", range(len(GOOD) - 4))
def test_truncated_assignment_has_what_is_complete(size: int) -> None:
    assert decode_assignment(GOOD[:size], 10) in ({}, {"a": (0, 2)})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 40,
        bytes.fromhex("00017fffffff"),
        bytes.fromhex("0001000000010001617fffffff00000000"),
        bytes.fromhex("000100000001ffff6100000000"),
    ],
)
def test_damaged_assignment_is_empty(data: bytes) -> None:
    assert decode_assignment(data, 10) == {}
