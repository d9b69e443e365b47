"""Requests and responses of ShareFetch and ShareAcknowledge as bytes. Both have the versions 1 and 2.

Source: KIP-932, KIP-1206 and KIP-1222, https://kafka.apache.org/protocol
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpd.kafka_server import errors
from amqpd.kafka_server.messages import NODE_ID, MalformedRequest
from amqpd.kafka_server.pace import Steps, run_all
from amqpd.kafka_server.request_reader import BodyWriter, RequestReader

if TYPE_CHECKING:
    from uuid import UUID

    from amqpd.kafka_server.connection import Call

GAP: Final = 0
ACCEPT: Final = 1
RELEASE: Final = 2
REJECT: Final = 3
RENEW: Final = 4
RECORD_LIMIT: Final = 1
"""The acquire mode with a strict number of records."""

TOPICS_MAX: Final = 1000
"""Topics of one request, and of one share session."""
PARTITIONS_MAX: Final = 10_000
BATCHES_MAX: Final = 10_000
"""Ranges of acknowledgements in one request."""
BATCHES_PER_STEP: Final = 32
RECORDS_MAX: Final = 100_000
"""Offsets that the acknowledgements of one request may cover."""
PARTITION_RECORDS_MAX: Final = 10_000
"""The same for one partition. A member has at most 2000 records of it."""

_RANGE: Final = struct.Struct(">qqhB")  # first, last, delivery count, no tagged fields


class AckRange(NamedTuple):
    """Acknowledgements of offsets. types: one for all offsets, or one for each."""

    first: int
    last: int
    types: bytes

    def type_at(self, offset: int) -> int:
        return self.types[0] if len(self.types) == 1 else self.types[offset - self.first]

    def record_count(self, first: int) -> int:
        """Return how many offsets from `first` on are not acknowledged as gaps."""
        count = max(self.last - first + 1, 0)
        if len(self.types) == 1:
            return 0 if self.types[0] == GAP else count
        return count - self.types.count(GAP, max(first - self.first, 0))


class SharePartitionRequest(NamedTuple):
    """A partition of a request."""

    number: int
    acks: list[AckRange]


def are_possible(acks: Sequence[AckRange], renews: bool) -> bool:
    """Return whether all ranges have offsets, and known types: one for all offsets or one for each.

    renews: the type RENEW is allowed.
    """
    highest = RENEW if renews else REJECT
    return all(
        0 <= each.first <= each.last
        and len(each.types) in (1, each.last - each.first + 1)
        and max(each.types) <= highest
        for each in acks
    )


class ShareTopicRequest(NamedTuple):
    """A topic of a request."""

    id: UUID
    partitions: list[SharePartitionRequest]


class ShareRequest(NamedTuple):
    """A ShareFetch or ShareAcknowledge request.

    Attributes:
        epoch: of the share session.
        renews: it may have acknowledgements of the type RENEW.
        max_wait_ms to max_records: 0 for ShareAcknowledge.
        is_strict: `max_records` may not be exceeded for the sake of whole batches.
        forgotten: partitions that leave the session.
    """

    group: str
    member_id: str
    epoch: int
    renews: bool
    topics: list[ShareTopicRequest]
    max_wait_ms: int = 0
    min_bytes: int = 0
    max_bytes: int = 0
    max_records: int = 0
    is_strict: bool = False
    forgotten: frozenset[tuple[UUID, int]] = frozenset()


def decode_fetch(call: Call) -> Steps[ShareRequest]:
    """Return a ShareFetch request. Raises: MalformedRequest."""
    reader = RequestReader(call.frame, call.header.size)
    group, member_id, epoch = reader.nullable_text() or "", reader.nullable_text() or "", reader.int32()
    max_wait_ms, min_bytes, max_bytes = reader.int32(), reader.int32(), reader.int32()
    max_records, _ = reader.int32(), reader.int32()  # and the wanted size of batches
    renews = is_strict = False
    if call.version >= 2:
        is_strict = reader.int8() == RECORD_LIMIT
        renews = reader.boolean()
    topics = yield from _decode_topics(reader)
    forgotten: set[tuple[UUID, int]] = set()
    left = PARTITIONS_MAX
    for _ in range(reader.count(TOPICS_MAX)):
        topic_id = reader.uuid()
        count = reader.count(left, 4)
        left -= count
        forgotten.update((topic_id, reader.int32()) for _ in range(count))
        reader.end_struct()
        yield
    reader.end_struct()
    return ShareRequest(
        group,
        member_id,
        epoch,
        renews,
        topics,
        max_wait_ms,
        min_bytes,
        max_bytes,
        max_records,
        is_strict,
        frozenset(forgotten),
    )


def decode_acknowledge(call: Call) -> Steps[ShareRequest]:
    """Return a ShareAcknowledge request. Raises: MalformedRequest."""
    reader = RequestReader(call.frame, call.header.size)
    group, member_id, epoch = reader.nullable_text() or "", reader.nullable_text() or "", reader.int32()
    renews = call.version >= 2 and reader.boolean()
    topics = yield from _decode_topics(reader)
    reader.end_struct()
    return ShareRequest(group, member_id, epoch, renews, topics)


def _decode_topics(reader: RequestReader) -> Steps[list[ShareTopicRequest]]:
    topics: list[ShareTopicRequest] = []
    partitions_left, batches_left, records_left = PARTITIONS_MAX, BATCHES_MAX, RECORDS_MAX
    for _ in range(reader.count(TOPICS_MAX)):
        topic = ShareTopicRequest(reader.uuid(), [])
        for _ in range(reader.count(partitions_left)):
            yield
            partitions_left -= 1
            partition = SharePartitionRequest(reader.int32(), [])
            own_left = min(records_left, PARTITION_RECORDS_MAX)
            for _ in range(reader.count(batches_left)):
                batches_left -= 1
                if batches_left % BATCHES_PER_STEP == 0:
                    yield
                acks = _decode_range(reader, own_left)
                size = max(acks.last - acks.first + 1, 0)
                own_left -= size
                records_left -= size
                partition.acks.append(acks)
            reader.end_struct()
            topic.partitions.append(partition)
        reader.end_struct()
        topics.append(topic)
    return topics


def _decode_range(reader: RequestReader, records_left: int) -> AckRange:
    first, last = reader.int64(), reader.int64()
    types = reader.take(reader.count(RECORDS_MAX))
    reader.end_struct()
    if last - first >= records_left:
        raise MalformedRequest(f"an acknowledgement of the offsets {first} to {last}; at most {records_left} are left")
    return AckRange(first, last, types)


class OffsetRange(NamedTuple):
    """Consecutive offsets with one delivery count."""

    first: int
    last: int
    deliveries: int


def ranges_of(counts: Iterable[tuple[int, int]]) -> list[OffsetRange]:
    """Return offsets with their delivery counts, in ascending order, as ranges. Cost: some 0.1 us per offset."""
    ranges: list[OffsetRange] = []
    first, last, deliveries = 0, -2, 0  # no range yet
    for offset, count in counts:
        if offset != last + 1 or count != deliveries:
            if last >= 0:
                ranges.append(OffsetRange(first, last, deliveries))
            first, deliveries = offset, count
        last = offset
    if last >= 0:
        ranges.append(OffsetRange(first, last, deliveries))
    return ranges


class SharePartitionAnswer:
    """A partition of a response. records: whole batches, empty if none is acquired."""

    def __init__(self, topic_id: UUID, index: int) -> None:
        self.topic_id = topic_id
        self.index = index
        self.error = self.ack_error = errors.NONE
        self.text = ""
        self.records: list[bytes] = []
        self.acquired: list[OffsetRange] = []


def encode_error(call: Call, error: int, lock_ms: int) -> bytes:
    """Return a response without partitions."""
    return b"".join(run_all(encode_steps(call, [], lock_ms, error)))


def encode_steps(
    call: Call,
    answers: list[SharePartitionAnswer],
    lock_ms: int,
    error: int = errors.NONE,
    throttle_ms: int = 0,
) -> Steps[list[bytes]]:
    """Return the body of a response of ShareFetch or ShareAcknowledge, in parts."""
    parts: list[bytes] = []
    is_fetch = call.api.key == SHARE_FETCH
    writer = BodyWriter(True)
    writer.int32(throttle_ms)
    writer.int16(error)
    writer.string(None)
    if is_fetch or call.version >= 2:
        writer.int32(lock_ms)
    by_topic: dict[UUID, list[SharePartitionAnswer]] = {}
    for answer in answers:
        by_topic.setdefault(answer.topic_id, []).append(answer)
    writer.count(len(by_topic))
    for topic_id, partitions in by_topic.items():
        writer.uuid(topic_id)
        writer.count(len(partitions))
        for answer in partitions:
            _write_partition(parts, writer, answer, is_fetch)
            yield
        writer.end()
    writer.count(0)  # endpoints of other leaders
    writer.end()
    parts.append(bytes(writer.data))
    return parts


def _write_partition(parts: list[bytes], writer: BodyWriter, answer: SharePartitionAnswer, is_fetch: bool) -> None:
    writer.int32(answer.index)
    writer.int16(answer.error if is_fetch else answer.ack_error)
    writer.string(answer.text or None)
    if is_fetch:
        writer.int16(answer.ack_error)
        writer.string(None)
    writer.int32(NODE_ID)
    writer.int32(0)  # leader epoch
    writer.end()
    if is_fetch:
        size = sum(len(batch) for batch in answer.records)
        writer.count(size)
        if answer.records:
            parts += [bytes(writer.data), *answer.records]
            writer.data = bytearray()
        writer.count(len(answer.acquired))
        for acquired in answer.acquired:
            writer.data += _RANGE.pack(*acquired, 0)
    writer.end()


SHARE_FETCH: Final = 78
SHARE_ACKNOWLEDGE: Final = 79
