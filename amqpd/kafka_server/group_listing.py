"""Groups for operators: state, members, committed offsets and lag. The HTTP API and the metrics read them here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpd.kafka_server.committed_offsets import OffsetKey
from amqpd.kafka_server.group_admin import CLASSIC, CONSUMER
from amqpd.kafka_server.group_topics import topic_names
from amqpd.kafka_server.groups import ConsumerGroup, GroupState
from amqpd.kafka_server.messages import MalformedRequest
from amqpd.kafka_server.request_reader import RequestReader
from amqpd.kafka_server.topics import partition_queue, topic_of_name

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue
    from amqpd.broker.vhost.vhost import VHost
    from amqpd.kafka_server.coordinator import GroupCoordinator, GroupEntry

PARTITIONS_MAX: Final = 20_000
"""Assigned partitions of a group that are shown."""

Assignment = dict[str, tuple[int, ...]]
"""Topic -> partitions."""


class GroupSummary(NamedTuple):
    """A group as a row of a list.

    Attributes:
        type: `classic` or `consumer`, Kafka's words for the group's protocol.
        protocol_type: `consumer`, `connect` or another text of the clients.
        protocol: the assignor; "" without members.
    """

    name: str
    type: str
    state: str
    protocol_type: str
    protocol: str
    member_count: int


class MemberSummary(NamedTuple):
    """A member of a group. `assignment` is empty during a rebalance and in groups that are not of type `consumer`."""

    id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: Assignment


class OffsetSummary(NamedTuple):
    """A partition that a group has committed or that one of its members reads.

    Attributes:
        offset: the committed one, which is read next; None before the first commit.
        commit_ms: time of the commit since 1970; None without one.
        end_offset: the high watermark; None if the log is not open.
        lag: offsets from the committed one to the end; None if one of the two is unknown.
        member_id: the member that reads the partition, else "".
    """

    topic: str
    partition: int
    offset: int | None
    commit_ms: int | None
    metadata: str
    end_offset: int | None
    lag: int | None
    member_id: str


def partitions_of(vhost: VHost, topic: str) -> list[int]:
    """Return the partitions of a topic, none if it does not exist."""
    found = topic_of_name(vhost, topic)
    return [] if found is None else list(range(len(found.partitions)))


def log_end(vhost: VHost, topic: str, partition: int) -> int | None:
    """Return the high watermark of a partition; None if it does not exist or its log is not open."""
    queue = partition_queue(vhost, topic, partition)
    if queue is None or queue.opening is not None or queue.store is None:
        return None
    return int(queue.store.high_watermark)


class GroupListing:
    """The groups of all vhosts. Before `load_error` is 0, there are none."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def load_error(self) -> int:
        """Return the error code of Kafka's requests: 14 while the offsets are read, 15 if that failed, else 0."""
        return self._coordinator.load_error()

    def summaries(self, vhost: VHost) -> Iterator[GroupSummary]:
        """Yield the groups of a vhost, of all types, also while they change. Cost: some us a group."""
        return map(summary_of, self._coordinator.entries(vhost))

    def find(self, vhost: VHost, name: str) -> GroupSummary | None:
        """Return the group if it has members or offsets."""
        entry = self._coordinator.find(vhost, name)
        return None if entry is None else summary_of(entry)

    def members(self, vhost: VHost, name: str) -> Iterator[MemberSummary]:
        """Yield the members of a group, with at most PARTITIONS_MAX partitions in all."""
        entry = self._coordinator.find(vhost, name)
        if entry is None:
            return
        group = entry.group
        left = PARTITIONS_MAX
        if isinstance(group, ConsumerGroup):
            has_assignment = group.state is GroupState.STABLE and group.protocol_type == CONSUMER
            for each in list(group.members.values()):
                assignment = decode_assignment(each.assignment, left) if has_assignment else {}
                left -= sum(map(len, assignment.values()))
                yield MemberSummary(each.id, each.instance_id, each.client_id, each.host, assignment)
            return
        for member in list(group.members.values()):
            names = topic_names(vhost, {topic_id for topic_id, _ in member.assigned})
            indexes: dict[str, list[int]] = {}
            for topic_id, index in sorted(member.assigned)[:left]:
                if topic_id in names:
                    indexes.setdefault(names[topic_id], []).append(index)
            left = max(left - len(member.assigned), 0)
            assigned = {topic: tuple(found) for topic, found in indexes.items()}
            yield MemberSummary(member.id, member.instance_id, member.client_id, member.host, assigned)

    def places(self, vhost: VHost, name: str) -> list[tuple[str, int]]:
        """Return topic and partition of each committed offset of a group."""
        return list(self._coordinator.offsets.of_group(vhost.id, name))

    def streams(self, vhost: VHost, places: Iterable[tuple[str, int]]) -> Iterator[Queue]:
        """Yield the streams of partitions. Their logs must be open for `lag` and `offsets`."""
        for place in places:
            queue = partition_queue(vhost, *place)
            if queue is not None:
                yield queue

    def offset_count(self, vhost: VHost) -> int:
        """Return the number of committed offsets of a vhost. Cost: 0.1 us a group."""
        return sum(map(len, self._coordinator.offsets.groups(vhost.id).values()))

    def lag(self, vhost: VHost, name: str, place: tuple[str, int]) -> int | None:
        """Return the lag of a committed offset; None if it is unknown or the topic was deleted."""
        found = self.offset(vhost, name, place, "")
        return None if found is None else found.lag

    def offset(self, vhost: VHost, name: str, place: tuple[str, int], member_id: str) -> OffsetSummary | None:
        """Return what is known of a partition; None if it has no committed offset and no member. Cost: 2 us.

        Its log must be open.
        """
        value = self._coordinator.committed(vhost, OffsetKey(vhost.id, name, *place))
        end = log_end(vhost, *place)
        if value is not None:
            lag = None if end is None else max(0, end - value.offset)
            return OffsetSummary(*place, value.offset, value.commit_ms, value.metadata, end, lag, member_id)
        return OffsetSummary(*place, None, None, "", end, None, member_id) if member_id else None


def summary_of(entry: GroupEntry) -> GroupSummary:
    """Return a group as a row of a list."""
    group, count = entry.group, len(entry.group.members)
    if isinstance(group, ConsumerGroup):
        return GroupSummary(group.name, CLASSIC, group.state.value, group.protocol_type, group.protocol, count)
    return GroupSummary(group.name, CONSUMER, group.phase.value, CONSUMER, group.assignor, count)


def decode_assignment(data: bytes, partitions_max: int) -> Assignment:
    """Return the partitions in an assignment of the protocol type `consumer`, at most so many, of as many topics.

    It has a version (int16) and an array of topics, each with its name and an array of partitions (int32). What is
    damaged is left out.
    """
    assignment: Assignment = {}
    reader = RequestReader(data, 0, flexible=False)
    with suppress(MalformedRequest):
        reader.int16()
        for _ in range(min(reader.count(len(data)), partitions_max)):
            if partitions_max == 0:
                break
            topic = reader.string().decode("utf-8", "replace")
            assignment[topic] = tuple(reader.int32s()[:partitions_max])
            partitions_max -= len(assignment[topic])
    return assignment
