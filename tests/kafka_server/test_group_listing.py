"""Assignments of members, decoded for operators."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from amqpd.kafka_server import group_listing
from amqpd.kafka_server.consumer_group import ConsumerProtocolGroup
from amqpd.kafka_server.group_listing import GroupListing, decode_assignment

# version 1, then two topics: "a" with 0 and 2, "ü" with none; then user data
GOOD = bytes.fromhex("0001000000020001610000000200000000000000020002c3bc00000000ffffffff")


def test_topics_and_partitions_are_decoded() -> None:
    assert decode_assignment(GOOD, 10) == {"a": (0, 2), "ü": ()}


def test_no_more_partitions_than_the_limit_are_decoded() -> None:
    assert decode_assignment(GOOD, 1) == {"a": (0,)}
    assert decode_assignment(GOOD, 0) == {}


def test_topics_without_partitions_are_limited_too() -> None:
    """An assignment may have millions of them, and the event loop waits until they are decoded."""
    data = bytes.fromhex("000100000003") + b"".join(b"\0\1" + name + bytes(4) for name in (b"a", b"b", b"c"))
    assert decode_assignment(data, 2) == {"a": (), "b": ()}


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


def test_all_members_together_have_no_more_partitions_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_listing, "PARTITIONS_MAX", 4)
    monkeypatch.setattr(group_listing, "topic_names", lambda _vhost, ids: dict.fromkeys(ids, "t"))
    group: Any = ConsumerProtocolGroup("g", 0)
    for name in ("a", "b", "c"):
        assigned = frozenset((b"t", number) for number in range(3))
        group.members[name] = SimpleNamespace(id=name, instance_id=None, client_id="", host="", assigned=assigned)
    coordinator: Any = SimpleNamespace(find=lambda *_: SimpleNamespace(group=group))
    vhost: Any = None
    shown = [member.assignment for member in GroupListing(coordinator).members(vhost, "g")]
    assert shown == [{"t": (0, 1, 2)}, {"t": (0,)}, {}]
