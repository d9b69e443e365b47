"""DescribeShareGroupOffsets, AlterShareGroupOffsets and DeleteShareGroupOffsets: where share groups are in streams.

A classic or quorum queue has no offsets: its own acks are the state of its messages. A group's offsets can be changed
while it has no members, and only of topics that the user may read.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from amqpd.kafka_server import errors, topics
from amqpd.kafka_server.committed_offsets import OffsetKey
from amqpd.kafka_server.connection import Call, typed_api
from amqpd.kafka_server.pace import Steps
from amqpd.kafka_server.request_reader import NO_ID
from amqpd.kafka_server.share_state import ShareState, decode_snapshot
from amqpd.kafka_server.share_states import StoredState
from amqpd.kafka_server.share_wire import PARTITIONS_MAX, TOPICS_MAX

if TYPE_CHECKING:
    from uuid import UUID

OFFSET_MAX: Final = (1 << 62) - 1
GROUPS_MAX: Final = 100
_UNKNOWN: Final = -1

Fields = dict[str, Any]


# -- describe ----------------------------------------------------------------------------------------------------------


def _describe(call: Call) -> Steps[None]:
    groups = call.request.groups
    topics.check_count(len(groups), GROUPS_MAX)
    asked = [topic for group in groups for topic in group.topics or ()]
    topics.check_count(len(asked), TOPICS_MAX)
    topics.check_count(sum(len(topic.partitions) for topic in asked), PARTITIONS_MAX)
    described: list[Fields] = []
    for group in groups:
        described.append((yield from _described(call, group.group_id, group.topics)))
    call.reply({"groups": described})


def _described(call: Call, group: str, asked: list[Any] | None) -> Steps[Fields]:
    """Return the offsets of a group. asked: topics; None for all that have a state."""
    server, vhost = call.connection.server, call.session.vhost
    error = server.coordinator.error_for(group, call.session)
    known = [] if error else server.share_states.partitions_of(vhost, group)
    if not error and not known and server.share_groups.find(vhost, group) is None:
        error = errors.GROUP_ID_NOT_FOUND
    if error:
        return {"group_id": group, "error_code": error}
    wanted: list[tuple[str, list[int]]]
    if asked is None:
        by_name: dict[str, list[int]] = {}
        for name, partition in known:
            if topics.is_topic_permitted(call.session, name, "read"):
                by_name.setdefault(name, []).append(partition)
        wanted = list(by_name.items())
    else:
        wanted = [(each.topic_name, each.partitions) for each in asked]
    described: list[Fields] = []
    for name, indexes in wanted:
        found = topics.find_topic(call.session, name, "read")
        partitions: list[Fields] = []
        topic_id = NO_ID if isinstance(found, int) else found.id
        described.append({"topic_name": name, "topic_id": topic_id, "partitions": partitions})
        for index in indexes:
            own = found if isinstance(found, int) else topics.partition_of(call.session, found, index, "read")
            partitions.append(_described_partition(call, group, own, index))
            yield
        yield
    return {"group_id": group, "topics": described}


def _described_partition(call: Call, group: str, found: topics.TopicPartition | int, index: int) -> Fields:
    state = None if isinstance(found, int) else _state_of(call, group, found)
    store = None if isinstance(found, int) else found.queue.store
    lag = _UNKNOWN
    if state is not None and store is not None:
        lag = state.open_count + max(store.next_offset - state.end, 0)
    return {
        "partition_index": index,
        "start_offset": _UNKNOWN if state is None else state.start,
        "lag": lag,
        "error_code": found if isinstance(found, int) else errors.NONE,
    }


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
        self.error = errors.NONE
        self.topic_id: UUID = NO_ID


Changes = dict[str, list[_Change]]
"""By topic, at least one of each."""


def _begin(call: Call, by_topic: Changes) -> Steps[None]:
    """Write the changes that are possible, then answer."""
    server, vhost, group = call.connection.server, call.session.vhost, call.request.group_id
    error = server.coordinator.error_for(group, call.session)
    if error == errors.NONE and server.share_groups.find(vhost, group) is not None:
        error = errors.NON_EMPTY_GROUP
    if error == errors.NONE and not server.share_states.partitions_of(vhost, group):
        error = errors.GROUP_ID_NOT_FOUND
    if error != errors.NONE:
        _answer(call, error, {})
        return
    open_count = 1

    def end_one() -> None:
        nonlocal open_count
        open_count -= 1
        if open_count == 0 and not call.connection.closed:
            _answer(call, errors.NONE, by_topic)

    def done(change: _Change, safe: bool) -> None:
        if not safe:
            change.error = errors.STORAGE_ERROR
        end_one()

    for change in chain.from_iterable(by_topic.values()):
        yield
        key = OffsetKey(vhost.id, group, change.name, change.partition)
        found = topics.find_partition(call.session, change.name, change.partition, "read")
        if isinstance(found, int):
            change.error = found
        elif found.is_work_queue or not 0 <= (change.offset or 0) <= OFFSET_MAX:
            change.error = errors.INVALID_REQUEST
        elif not server.share_streams.forget_unused(key):
            change.error = errors.NON_EMPTY_GROUP
        else:
            change.topic_id = found.topic.id
            state = None
            if change.offset is not None:
                state = StoredState(bytes.fromhex(found.queue.id), ShareState(change.offset).snapshot())
            open_count += 1
            server.share_states.write(key, state, partial(done, change))
    end_one()


def _answer(call: Call, error: int, by_topic: Changes) -> None:
    """Answer with the error of each partition, which DeleteShareGroupOffsets does not have, and the topic's first."""
    responses = [
        {
            "topic_name": name,
            "topic_id": changes[0].topic_id,
            "error_code": next((change.error for change in changes if change.error), errors.NONE),
            "partitions": [{"partition_index": each.partition, "error_code": each.error} for each in changes],
        }
        for name, changes in by_topic.items()
    ]
    call.reply({"error_code": error, "responses": responses})


def _alter(call: Call) -> Steps[None]:
    asked = call.request.topics
    topics.check_count(len(asked), TOPICS_MAX)
    topics.check_count(sum(len(topic.partitions) for topic in asked), PARTITIONS_MAX)
    by_topic: Changes = {}
    for topic in asked:
        for each in topic.partitions:
            change = _Change(topic.topic_name, each.partition_index, each.start_offset)
            by_topic.setdefault(topic.topic_name, []).append(change)
            yield
    yield from _begin(call, by_topic)


def _delete(call: Call) -> Steps[None]:
    topics.check_count(len(call.request.topics), TOPICS_MAX)
    by_topic: Changes = {}
    count = 0
    for each in call.request.topics:
        topic = topics.find_topic(call.session, each.topic_name, "read")
        numbers = range(1 if isinstance(topic, int) else len(topic.partitions))
        count += len(numbers)
        topics.check_count(count, PARTITIONS_MAX)
        by_topic[each.topic_name] = [_Change(each.topic_name, number, None) for number in numbers]
        yield
    yield from _begin(call, by_topic)


APIS: Final = (
    typed_api(90, "DescribeShareGroupOffsets", 0, 1, 0, _describe),
    typed_api(91, "AlterShareGroupOffsets", 0, 0, 0, _alter),
    typed_api(92, "DeleteShareGroupOffsets", 0, 0, 0, _delete),
)
