"""Requests and responses of ConsumerGroupHeartbeat and ConsumerGroupDescribe, decoded and encoded by hand: kafka-python
has no definitions of them.

Both have the versions 0 and 1, which are flexible: lengths are varints, and structs end with tagged fields.
Source: https://kafka.apache.org/protocol
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpd.kafka_server.assignors import Partition, Partitions
from amqpd.kafka_server.consumer_group import MemberHeartbeat
from amqpd.kafka_server.messages import NONE, NOT_ASKED, MalformedRequest, RequestHeader
from amqpd.kafka_server.pace import Steps
from amqpd.kafka_server.request_reader import UUID_SIZE, BodyWriter, RequestReader

if TYPE_CHECKING:
    from amqpd.kafka_server.connection import Call
    from amqpd.kafka_server.consumer_group import ConsumerProtocolGroup, HeartbeatAnswer, ReconcilingMember

PARTITIONS_MAX: Final = 100_000
"""Partitions that a heartbeat may name."""
NAMES_MAX: Final = 25_000
"""Topics or groups that a request may name."""
NAMES_PER_STEP: Final = 32
PARTITIONS_PER_STEP: Final = 1000

_CONSUMER_PROTOCOL: Final = 1
"""Member type: it uses the consumer protocol."""


def _texts(reader: RequestReader) -> Steps[list[str] | None]:
    count = reader.nullable_count(NAMES_MAX)
    if count < 0:
        return None
    texts: list[str] = []
    for _ in range(count):
        texts.append(reader.text())
        if len(texts) % NAMES_PER_STEP == 0:
            yield
    return texts


def _numbers(reader: RequestReader) -> tuple[int, ...]:
    count = max(reader.nullable_count(PARTITIONS_MAX, 4), 0)
    return struct.unpack(f">{count}i", reader.take(4 * count))


# -- ConsumerGroupHeartbeat


def decode_heartbeat(call: Call) -> Steps[MemberHeartbeat]:
    """Return a request. Raises: MalformedRequest. Cost: 5 us, and 0.2 us for each name and partition."""
    reader = RequestReader(call.frame, call.header.size)
    group_id = reader.text()
    member_id = reader.text()
    epoch = reader.int32()
    instance_id = reader.nullable_text()
    rack_id = reader.nullable_text()
    rebalance_timeout_ms = reader.int32()
    names = yield from _texts(reader)
    pattern = reader.nullable_text() if call.version >= 1 else None
    assignor = reader.nullable_text()
    owned = yield from _decode_partitions(reader)
    reader.end_struct()
    return MemberHeartbeat(
        group_id,
        member_id,
        epoch,
        instance_id,
        rack_id,
        rebalance_timeout_ms,
        None if names is None else frozenset(names),
        pattern,
        assignor,
        owned,
        call.connection.client_id,
        call.connection.peer[0],
        call.session.user,
    )


def _decode_partitions(reader: RequestReader) -> Steps[Partitions | None]:
    count = reader.nullable_count(PARTITIONS_MAX, UUID_SIZE + 2)
    if count < 0:
        return None
    owned: set[Partition] = set()
    for _ in range(count):
        topic_id, indexes = reader.take(UUID_SIZE), _numbers(reader)
        for start in range(0, len(indexes), PARTITIONS_PER_STEP):
            owned.update((topic_id, index) for index in indexes[start : start + PARTITIONS_PER_STEP])
            yield
        if len(owned) > PARTITIONS_MAX:
            raise MalformedRequest(f"a heartbeat with more than {PARTITIONS_MAX} partitions")
        reader.end_struct()
    return frozenset(owned)


def encode_heartbeat(answer: HeartbeatAnswer) -> bytes:
    """Return the body of a response."""
    writer = BodyWriter(flexible=True)
    writer.int32(0)  # throttle time
    writer.int16(answer.error)
    writer.string(answer.message if answer.error else None)
    writer.string(answer.member_id)
    writer.int32(answer.epoch)
    writer.int32(answer.interval_ms)
    if answer.assignment is None:
        writer.int8(-1)
    else:
        writer.int8(1)
        _write_assignment(writer, answer.assignment, None)
    writer.end()
    return bytes(writer.data)


def _write_assignment(writer: BodyWriter, partitions: Partitions, names: Mapping[bytes, str] | None) -> None:
    """Add the partitions by topic. names: of the topics, if the struct has them; others are left out."""
    topics: dict[bytes, list[int]] = {}
    for topic_id, index in sorted(partitions):
        if names is None or topic_id in names:
            topics.setdefault(topic_id, []).append(index)
    writer.count(len(topics))
    for topic_id, indexes in topics.items():
        writer.data += topic_id
        if names is not None:
            writer.string(names[topic_id])
        writer.count(len(indexes))
        writer.data += struct.pack(f">{len(indexes)}i", *indexes)
        writer.end()
    writer.end()


# -- ConsumerGroupDescribe


class DescribedGroup(NamedTuple):
    """A group of a ConsumerGroupDescribe response. group: None with an error."""

    name: str
    error: int
    message: str | None
    group: ConsumerProtocolGroup | None


def decode_describe(frame: bytes, header: RequestHeader) -> Steps[list[str]]:
    """Return the names of the groups. Raises: MalformedRequest."""
    reader = RequestReader(frame, header.size)
    names = yield from _texts(reader)
    if names is None:
        raise MalformedRequest("an array that must not be null")
    reader.take(1)  # include authorized operations
    reader.end_struct()
    return names


def encode_describe(
    version: int, groups: Sequence[DescribedGroup], names_of: Callable[[set[bytes]], Mapping[bytes, str]]
) -> Steps[bytes]:
    """Return the body of a response. names_of: returns the names of those topics that still exist."""
    writer = BodyWriter(flexible=True)
    writer.int32(0)  # throttle time
    writer.count(len(groups))
    for each in groups:
        group = each.group
        writer.int16(each.error)
        writer.string(each.message if each.error else None)
        writer.string(each.name)
        writer.string("" if group is None else group.phase.value)
        writer.int32(0 if group is None else group.epoch)
        writer.int32(0 if group is None else group.target_epoch)
        writer.string("" if group is None else group.assignor)
        members = [] if group is None or each.error != NONE else list(group.members.values())
        writer.count(len(members))
        for member in members:
            yield
            target = group.targets.get(member.id, frozenset()) if group is not None else frozenset()
            _write_member(writer, version, member, target, names_of)
        writer.int32(NOT_ASKED)  # authorized operations
        writer.end()
        yield
    writer.end()
    return bytes(writer.data)


def _write_member(
    writer: BodyWriter,
    version: int,
    member: ReconcilingMember,
    target: Partitions,
    names_of: Callable[[set[bytes]], Mapping[bytes, str]],
) -> None:
    names = names_of({topic_id for topic_id, _ in member.assigned | target})
    writer.string(member.id)
    writer.string(member.instance_id)
    writer.string(member.rack_id)
    writer.int32(member.epoch)
    writer.string(member.client_id)
    writer.string(f"/{member.host}")
    subscribed = sorted(member.subscription.names)
    writer.count(len(subscribed))
    for name in subscribed:
        writer.string(name)
    writer.string(member.subscription.pattern or None)
    _write_assignment(writer, member.assigned, names)
    _write_assignment(writer, target, names)
    if version >= 1:
        writer.int8(_CONSUMER_PROTOCOL)
    writer.end()
