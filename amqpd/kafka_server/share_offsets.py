"""DescribeShareGroupOffsets, AlterShareGroupOffsets and DeleteShareGroupOffsets: where share groups are in streams.

A classic or quorum queue has no offsets: its own acks are the state of its messages. A group's offsets can be changed
while it has no members, and only of topics that the user may read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from amqpd.kafka_server import topics
from amqpd.kafka_server.committed_offsets import OffsetKey
from amqpd.kafka_server.connection import Api, Call
from amqpd.kafka_server.messages import (
    GROUP_ID_NOT_FOUND,
    INVALID_REQUEST,
    NON_EMPTY_GROUP,
    NONE,
    STORAGE_ERROR,
    MalformedRequest,
)
from amqpd.kafka_server.pace import Steps
from amqpd.kafka_server.request_reader import NO_ID, BodyWriter, RequestReader
from amqpd.kafka_server.share_state import ShareState, decode_snapshot
from amqpd.kafka_server.share_states import StoredState
from amqpd.kafka_server.share_wire import PARTITIONS_MAX, TOPICS_MAX

if TYPE_CHECKING:
    from uuid import UUID

OFFSET_MAX: Final = (1 << 62) - 1
GROUPS_MAX: Final = 100
PARTITIONS_PER_STEP: Final = 32
_UNKNOWN: Final = -1


# -- describe ----------------------------------------------------------------------------------------------------------


def _describe(call: Call) -> Steps[None]:
    reader = RequestReader(call.frame, call.header.size)
    asked: list[tuple[str, list[tuple[str, list[int]]] | None]] = []
    topics_left, partitions_left = TOPICS_MAX, PARTITIONS_MAX
    for _ in range(reader.count(GROUPS_MAX)):
        group = reader.text()
        count = reader.nullable_count(topics_left)
        topics_left -= max(count, 0)
        names: list[tuple[str, list[int]]] | None = None if count < 0 else []
        for _ in range(count):
            name = reader.text()
            partitions = [reader.int32() for _ in range(reader.count(partitions_left))]
            partitions_left -= len(partitions)
            reader.end_struct()
            if names is not None:
                names.append((name, partitions))
            yield
        reader.end_struct()
        asked.append((group, names))
    reader.end_struct()
    writer = BodyWriter(True)
    writer.int32(0)  # throttle time
    writer.count(len(asked))
    for group, names in asked:
        error = call.connection.server.coordinator.error_for(group, call.session)
        yield from _describe_group(writer, call, group, names, error)
    writer.end()
    call.reply_bytes(bytes(writer.data))


def _describe_group(
    writer: BodyWriter, call: Call, group: str, names: list[tuple[str, list[int]]] | None, error: int
) -> Steps[None]:
    server, vhost = call.connection.server, call.session.vhost
    known = [] if error != NONE else server.share_states.partitions_of(vhost, group)
    if error == NONE and not known and server.share_groups.find(vhost, group) is None:
        error = GROUP_ID_NOT_FOUND
    if names is None:
        by_name: dict[str, list[int]] = {}
        for name, partition in known:
            if topics.is_topic_permitted(call.session, name, "read"):
                by_name.setdefault(name, []).append(partition)
        names = list(by_name.items())
    if error != NONE:
        names = []
    writer.string(group)
    writer.count(len(names))
    for name, partitions in names:
        found = topics.find_topic(call.session, name, "read")
        writer.string(name)
        writer.uuid(NO_ID if isinstance(found, int) else found.id)
        writer.count(len(partitions))
        for partition in partitions:
            own = found if isinstance(found, int) else topics.partition_of(call.session, found, partition, "read")
            _describe_partition(writer, call, group, own, partition)
            yield
        writer.end()
        yield
    writer.int16(error)
    writer.string(None)
    writer.end()


def _describe_partition(
    writer: BodyWriter, call: Call, group: str, found: topics.TopicPartition | int, partition: int
) -> None:
    state = None if isinstance(found, int) else _state_of(call, group, found)
    store = None if isinstance(found, int) else found.queue.store
    writer.int32(partition)
    writer.int64(_UNKNOWN if state is None else state.start)
    writer.int32(0)  # leader epoch
    if call.version >= 1:
        lag = _UNKNOWN if state is None or store is None else state.open_count + max(store.next_offset - state.end, 0)
        writer.int64(lag)
    writer.int16(found if isinstance(found, int) else NONE)
    writer.string(None)
    writer.end()


def _state_of(call: Call, group: str, partition: topics.TopicPartition) -> ShareState | None:
    """Return the state of a group in a stream: the one in use, or the one that is written."""
    server, vhost = call.connection.server, call.session.vhost
    key = OffsetKey(vhost.id, group, partition.topic.name, partition.number)
    stream = server.share_streams.find(key)
    if stream is not None and stream.queue is partition.queue and stream.state is not None:
        return stream.state
    stored = server.share_states.find(vhost, *key[1:])
    return None if stored is None else decode_snapshot(stored.snapshot)


# -- alter and delete --------------------------------------------------------------------------------------------------


class _Change:
    """A new or removed state of one partition. offset: None to remove it."""

    def __init__(self, name: str, partition: int, offset: int | None) -> None:
        self.name = name
        self.partition = partition
        self.offset = offset
        self.error = NONE
        self.topic_id: UUID = NO_ID


Changes = dict[str, list[_Change]]
"""By topic, at least one of each."""


def _begin(
    call: Call, group: str, by_topic: Changes, write_errors: Callable[[BodyWriter, list[_Change]], None]
) -> Steps[None]:
    """Write the changes that are possible, then answer. write_errors: adds the errors of the changes of a topic."""
    server, vhost = call.connection.server, call.session.vhost
    error = server.coordinator.error_for(group, call.session)
    if error == NONE and server.share_groups.find(vhost, group) is not None:
        error = NON_EMPTY_GROUP
    if error == NONE and not server.share_states.partitions_of(vhost, group):
        error = GROUP_ID_NOT_FOUND
    if error != NONE:
        _answer(call, error, {}, write_errors)
        return
    open_count = 1

    def end_one() -> None:
        nonlocal open_count
        open_count -= 1
        if open_count == 0 and not call.connection.closed:
            _answer(call, NONE, by_topic, write_errors)

    def done(change: _Change, safe: bool) -> None:
        if not safe:
            change.error = STORAGE_ERROR
        end_one()

    for change in chain.from_iterable(by_topic.values()):
        yield
        key = OffsetKey(vhost.id, group, change.name, change.partition)
        found = topics.find_partition(call.session, change.name, change.partition, "read")
        if isinstance(found, int):
            change.error = found
        elif found.is_work_queue or not 0 <= (change.offset or 0) <= OFFSET_MAX:
            change.error = INVALID_REQUEST
        elif not server.share_streams.forget_unused(key):
            change.error = NON_EMPTY_GROUP
        else:
            change.topic_id = found.topic.id
            state = None
            if change.offset is not None:
                state = StoredState(bytes.fromhex(found.queue.id), ShareState(change.offset).snapshot())
            open_count += 1
            server.share_states.write(key, state, partial(done, change))
    end_one()


def _answer(
    call: Call, error: int, by_topic: Changes, write_errors: Callable[[BodyWriter, list[_Change]], None]
) -> None:
    writer = BodyWriter(True)
    writer.int32(0)  # throttle time
    writer.int16(error)
    writer.string(None)
    writer.count(len(by_topic))
    for name, changes in by_topic.items():
        writer.string(name)
        writer.uuid(changes[0].topic_id)
        write_errors(writer, changes)
        writer.end()
    writer.end()
    call.reply_bytes(bytes(writer.data))


def _alter(call: Call) -> Steps[None]:
    reader = RequestReader(call.frame, call.header.size)
    group = reader.text()
    by_topic: Changes = {}
    left = PARTITIONS_MAX
    for _ in range(reader.count(TOPICS_MAX)):
        name = reader.text()
        for _ in range(reader.count(left)):
            left -= 1
            partition, offset = reader.int32(), reader.int64()
            reader.end_struct()
            by_topic.setdefault(name, []).append(_Change(name, partition, offset))
            if left % PARTITIONS_PER_STEP == 0:
                yield
        reader.end_struct()
    reader.end_struct()
    yield from _begin(call, group, by_topic, _write_partition_errors)


def _write_partition_errors(writer: BodyWriter, changes: list[_Change]) -> None:
    writer.count(len(changes))
    for change in changes:
        writer.int32(change.partition)
        writer.int16(change.error)
        writer.string(None)
        writer.end()


def _delete(call: Call) -> Steps[None]:
    reader = RequestReader(call.frame, call.header.size)
    group = reader.text()
    by_topic: Changes = {}
    left = PARTITIONS_MAX
    for _ in range(reader.count(TOPICS_MAX)):
        name = reader.text()
        topic = topics.find_topic(call.session, name, "read")
        count = 1 if isinstance(topic, int) else len(topic.partitions)
        left -= count
        if left < 0:
            raise MalformedRequest(f"a request about more than {PARTITIONS_MAX} partitions")
        by_topic[name] = [_Change(name, number, None) for number in range(count)]
        reader.end_struct()
        yield
    reader.end_struct()
    yield from _begin(call, group, by_topic, _write_topic_error)


def _write_topic_error(writer: BodyWriter, changes: list[_Change]) -> None:
    writer.int16(next((change.error for change in changes if change.error), NONE))
    writer.string(None)


APIS: Final = (
    Api(90, "DescribeShareGroupOffsets", 0, 1, 0, _describe),
    Api(91, "AlterShareGroupOffsets", 0, 0, 0, _alter),
    Api(92, "DeleteShareGroupOffsets", 0, 0, 0, _delete),
)
