"""Committed offsets of consumer groups: OffsetCommit, OffsetFetch, OffsetDelete.

Each needs read permission on the topic. The coordinator checks the member and its generation, committed_offsets.py
keeps the offsets. A commit is answered when it is synced.

Topics and partitions are looked at in steps, then the group is checked, so that nothing can change between this check
and the commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from amqpd.kafka_server import errors, topics
from amqpd.kafka_server.committed_offsets import METADATA_MAX, CommittedOffset, NewOffset, OffsetKey
from amqpd.kafka_server.connection import Call, typed_api
from amqpd.kafka_server.consumer_group import ConsumerProtocolGroup
from amqpd.kafka_server.groups import ConsumerGroup, GroupState
from amqpd.kafka_server.messages import MalformedRequest
from amqpd.kafka_server.pace import Steps
from amqpd.kafka_server.request_reader import RequestReader

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue
    from amqpd.kafka_server.coordinator import GroupCoordinator, GroupEntry

PARTITIONS_MAX: Final = 20_000
"""Topics and partitions that one request may name."""
GROUPS_MAX: Final = 1000
"""Groups that one OffsetFetch may name."""
NAMES_PER_STEP: Final = 64
EPOCHS: Final = 9
"""First version of OffsetCommit and OffsetFetch for members of the consumer protocol."""

Fields = dict[str, Any]
OffsetResults = dict[str, dict[int, int]]
"""Topic -> partition -> error code."""


# -- OffsetCommit


def _offset_commit(call: Call) -> Steps[None]:
    coordinator = call.connection.server.coordinator
    if is_too_large(call):
        return
    replaced = coordinator.offsets.of_group(call.session.vhost.id, call.request.group_id)
    results, changes = yield from collect_offsets(call, replaced)
    entry = coordinator.error_for(call.request.group_id, call.session) or _committing_group(call, coordinator)
    if isinstance(entry, int):
        answer_offsets(call, with_error(results, entry), True)
        return
    coordinator.offsets.change(changes, partial(_committed, call, coordinator, entry, results))


def is_too_large(call: Call) -> bool:
    """Return whether an OffsetCommit or TxnOffsetCommit names too many partitions; then it is answered.

    A client would repeat it again and again if its connection was closed.
    """
    if sum(1 + len(each.partitions) for each in call.request.topics) <= PARTITIONS_MAX:
        return False
    results: OffsetResults = {}
    for topic in call.request.topics:
        codes = results.setdefault(topic.name, {})
        codes.update((each.partition_index, errors.INVALID_COMMIT_OFFSET_SIZE) for each in topic.partitions)
    answer_offsets(call, results, True)
    return True


def collect_offsets(
    call: Call, replaced: Mapping[tuple[str, int], CommittedOffset]
) -> Steps[tuple[OffsetResults, list[NewOffset]]]:
    """Return the error code of each partition, and the offsets to commit, of an OffsetCommit or TxnOffsetCommit.

    A partition that is deleted in these steps has an error: its offset could overwrite one of a new topic of this name.

    Args:
        replaced: offsets whose memory becomes free, so that known groups can commit in a full vhost.
    """
    request, vhost = call.request, call.session.vhost
    coordinator = call.connection.server.coordinator
    wall_ms = coordinator.broker.timers.wall_ms()
    results: OffsetResults = {}
    offsets: list[NewOffset] = []
    queues: list[Queue] = []
    size_bytes = coordinator.offsets.group_bytes(vhost.id, request.group_id)
    for topic in request.topics:
        yield
        codes = results.setdefault(topic.name, {})
        found = topics.find_topic(call.session, topic.name, "read")
        for each in topic.partitions:
            yield
            index, metadata = each.partition_index, each.committed_metadata or ""
            own = found if isinstance(found, int) else topics.partition_of(call.session, found, index, "read")
            if isinstance(own, int):
                codes[index] = own
            elif len(metadata) > METADATA_MAX:
                codes[index] = errors.OFFSET_METADATA_TOO_LARGE
            else:
                stream_id = bytes.fromhex(own.queue.id)
                value = CommittedOffset(
                    each.committed_offset, each.committed_leader_epoch, metadata, wall_ms, stream_id
                )
                old = None if index in codes else replaced.get((topic.name, index))
                added = value.size_bytes - (0 if old is None else old.size_bytes)
                if added <= 0 or coordinator.offsets.has_room(vhost.id, size_bytes + added):
                    size_bytes += added
                    codes[index] = errors.NONE
                    offsets.append((OffsetKey(vhost.id, request.group_id, topic.name, index), value))
                    queues.append(own.queue)
                else:
                    codes[index] = errors.INVALID_COMMIT_OFFSET_SIZE
    if any(queue.deleted for queue in queues):
        for (key, _), queue in zip(offsets, queues, strict=True):
            if queue.deleted:
                results[key.topic][key.partition] = errors.UNKNOWN_TOPIC_OR_PARTITION
        offsets = [offset for offset, queue in zip(offsets, queues, strict=True) if not queue.deleted]
    return results, offsets


def with_error(results: OffsetResults, error: int) -> OffsetResults:
    """Return the results of a request that is refused as a whole."""
    return {name: dict.fromkeys(codes, error) for name, codes in results.items()}


def _committing_group(call: Call, coordinator: GroupCoordinator) -> GroupEntry | int:
    """Return the group of this commit, or its error code. A simple consumer's commit makes a new group."""
    request = call.request
    generation = request.generation_id_or_member_epoch
    vhost = call.session.vhost
    entry = coordinator.find(vhost, request.group_id)
    if entry is None and generation >= 0:
        return errors.GROUP_ID_NOT_FOUND if call.version >= EPOCHS else errors.ILLEGAL_GENERATION
    if entry is None:
        entry = coordinator.find_or_add(vhost, request.group_id)
    error = entry.commit_error(request.member_id, request.group_instance_id, generation, coordinator.now_ms())
    if not error and generation >= 0 and call.version < EPOCHS and isinstance(entry.group, ConsumerProtocolGroup):
        error = errors.UNSUPPORTED_VERSION
    return error or entry


def _committed(
    call: Call, coordinator: GroupCoordinator, entry: GroupEntry, results: OffsetResults, safe: bool
) -> None:
    coordinator.changed(entry)
    answer_offsets(call, results, safe)


def answer_offsets(call: Call, results: OffsetResults, safe: bool) -> None:
    """Answer when the offsets are synced. If they are not, the client tries again: 15."""
    if call.connection.closed:
        return
    if not safe:
        results = {
            name: {index: code or errors.COORDINATOR_NOT_AVAILABLE for index, code in codes.items()}
            for name, codes in results.items()
        }
    call.reply({"topics": _topics_of(results)})


def _topics_of(results: OffsetResults) -> list[Fields]:
    return [
        {
            "name": name,
            "partitions": [{"partition_index": index, "error_code": code} for index, code in codes.items()],
        }
        for name, codes in results.items()
    ]


# -- OffsetFetch


def _offset_fetch(call: Call) -> None:
    """Answer when the commits that came before are visible, so that a member that takes over repeats none of them."""
    request = call.request
    if call.version < 8:
        topics.check_partitions((each.partition_indexes for each in request.topics or ()), PARTITIONS_MAX)
    else:
        topics.check_count(len(request.groups), GROUPS_MAX)
        topics.check_partitions(
            (topic.partition_indexes for each in request.groups for topic in each.topics or ()), PARTITIONS_MAX
        )
        if len({each.group_id for each in request.groups}) < len(request.groups):
            raise MalformedRequest("a group is named twice in one request")
    server = call.connection.server
    server.coordinator.offsets.after_changes(partial(server.pace.run, call.connection, _fetch_steps(call)))


def _fetch_steps(call: Call) -> Steps[None]:
    request = call.request
    coordinator = call.connection.server.coordinator
    if call.version < 8:
        error = coordinator.error_for(request.group_id, call.session)
        fields = yield from _fetched(call, request.group_id, request.topics, error, request.require_stable)
        call.reply({"error_code": fields["error_code"], "topics": fields["topics"]})
        return
    groups: list[Fields] = []
    for each in request.groups:
        yield
        error = coordinator.error_for(each.group_id, call.session)
        if error == errors.NONE:
            error = _fetch_error(call, each)
        groups.append((yield from _fetched(call, each.group_id, each.topics, error, request.require_stable)))
    call.reply({"groups": groups})


def _fetch_error(call: Call, wanted: Any) -> int:
    """Return the error code for a member of the consumer protocol. Its epoch must be the current one."""
    entry = call.connection.server.coordinator.find(call.session.vhost, wanted.group_id)
    group = None if entry is None else entry.group
    if not isinstance(group, ConsumerProtocolGroup):
        return errors.NONE
    return group.fetch_error(wanted.member_id, wanted.member_epoch)


def _fetched(call: Call, name: str, wanted: Any, error: int, stable: bool) -> Steps[Fields]:
    """Return the offsets of one group.

    Args:
        wanted: its topics; None for all that have an offset.
        error: of the whole group.
        stable: answer 88 where a transaction has an offset that is pending.
    """
    coordinator = call.connection.server.coordinator
    vhost = call.session.vhost
    answer: Fields = {"group_id": name, "error_code": error, "topics": []}
    if wanted is None:
        if error:
            return answer
        asked: dict[str, list[int]] = {}
        for topic, partition in list(coordinator.offsets.of_group(vhost.id, name)):
            yield
            asked.setdefault(topic, []).append(partition)
    else:
        if error and call.version >= 2:
            return answer
        asked = {each.name: list(each.partition_indexes) for each in wanted}
    for topic, indexes in asked.items():
        yield
        code = error
        if not code and topics.find_topic(call.session, topic, "read") == errors.TOPIC_AUTHORIZATION_FAILED:
            code = errors.TOPIC_AUTHORIZATION_FAILED
        shown: list[Fields] = []
        for index in indexes:
            yield
            shown.append(_partition(call, OffsetKey(vhost.id, name, topic, index), code, stable))
        if wanted is None:  # what the user may not read, and what was deleted, is left out
            shown = [
                each
                for each in shown
                if each["committed_offset"] >= 0 or each["error_code"] == errors.UNSTABLE_OFFSET_COMMIT
            ]
        if shown or wanted is not None:
            answer["topics"].append({"name": topic, "partitions": shown})
    return answer


def _partition(call: Call, key: OffsetKey, error: int, stable: bool) -> Fields:
    value = None
    coordinator, vhost = call.connection.server.coordinator, call.session.vhost
    if error == errors.NONE and stable and coordinator.is_pending(vhost, key):
        error = errors.UNSTABLE_OFFSET_COMMIT
    if error == errors.NONE:
        value = coordinator.committed(vhost, key)
    return {
        "partition_index": key.partition,
        "committed_offset": -1 if value is None else value.offset,
        "committed_leader_epoch": -1 if value is None else value.leader_epoch,
        "metadata": "" if value is None else value.metadata,
        "error_code": error,
    }


# -- OffsetDelete


def _offset_delete(call: Call) -> Steps[None]:
    request = call.request
    topics.check_partitions((each.partitions for each in request.topics), PARTITIONS_MAX)
    coordinator = call.connection.server.coordinator
    vhost = call.session.vhost
    found: dict[str, topics.PartitionedTopic | int] = {}
    for topic in request.topics:
        found[topic.name] = topics.find_topic(call.session, topic.name, "read")
        yield
    error = coordinator.error_for(request.group_id, call.session)
    entry = None if error else coordinator.find(vhost, request.group_id)
    if entry is None:
        call.reply({"error_code": error or errors.GROUP_ID_NOT_FOUND})
        return
    group = entry.group
    subscribed: set[str] | None = set()
    if isinstance(group, ConsumerGroup) and group.state is not GroupState.EMPTY:
        if group.protocol_type != "consumer":
            call.reply({"error_code": errors.NON_EMPTY_GROUP})
            return
        generation, members = group.generation, list(group.members.values())
        subscribed = yield from subscribed_topics([metadata for each in members for _, metadata in each.protocols])
        if entry.group is not group or group.generation != generation or list(group.members.values()) != members:
            # Members have changed meanwhile: clients try again.
            call.reply({"error_code": errors.COORDINATOR_NOT_AVAILABLE})
            return
    results: OffsetResults = {}
    changes: list[tuple[OffsetKey, CommittedOffset | None]] = []
    offsets = coordinator.offsets.of_group(vhost.id, group.name)
    for topic in request.topics:
        own = found[topic.name]
        code = own if isinstance(own, int) else errors.NONE
        partition_count = 0
        if isinstance(own, topics.PartitionedTopic):
            is_subscribed = subscribed is None or topic.name in subscribed
            if isinstance(group, ConsumerProtocolGroup):
                is_subscribed = group.is_subscribed(own.id.bytes)
            code = errors.GROUP_SUBSCRIBED_TO_TOPIC if is_subscribed else errors.NONE
            partition_count = len(own.partitions)
        codes = results.setdefault(topic.name, {})
        for partition in topic.partitions:
            index = partition.partition_index
            codes[index] = code
            key = OffsetKey(vhost.id, group.name, topic.name, index)
            exists = 0 <= index < partition_count  # it may have an offset that is not synced yet
            if code == errors.NONE and (
                exists or (topic.name, index) in offsets or coordinator.offsets.is_pending(key)
            ):
                changes.append((key, None))
            elif code == errors.NONE:
                codes[index] = errors.UNKNOWN_TOPIC_OR_PARTITION
    coordinator.offsets.change(changes, partial(_deleted, call, coordinator, entry, results))


def _deleted(call: Call, coordinator: GroupCoordinator, entry: GroupEntry, results: OffsetResults, safe: bool) -> None:
    coordinator.changed(entry)
    call.reply({"error_code": errors.NONE if safe else errors.COORDINATOR_NOT_AVAILABLE, "topics": _topics_of(results)})


def subscribed_topics(metadata: Sequence[bytes]) -> Steps[set[str] | None]:
    """Return the topics in the metadata of members of the type `consumer`; None if one cannot be read.

    The metadata begins with a version (int16) and the names (an array of strings).
    """
    topics: set[str] = set()
    try:
        for each in metadata:
            reader = RequestReader(each, 0, flexible=False)
            reader.int16()
            for number in range(reader.nullable_count(len(each))):
                if number % NAMES_PER_STEP == 0:
                    yield
                topics.add(reader.string().decode("utf-8", "replace"))
    except MalformedRequest:
        return None
    return topics


APIS: Final = (
    typed_api(8, "OffsetCommit", 2, 9, 8, _offset_commit),
    typed_api(9, "OffsetFetch", 1, 9, 6, _offset_fetch),
    typed_api(47, "OffsetDelete", 0, 0, 127, _offset_delete),
)
