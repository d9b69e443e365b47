"""Share groups: ShareGroupHeartbeat and ShareGroupDescribe.

Each member may have all partitions of every topic that it subscribes to, so members never wait for each other. Members
are in memory only: after a restart of the broker they get 25 (UNKNOWN_MEMBER_ID) and join again.

    epoch 0      join, or join again
    epoch > 0    the epoch of the last response or the one before; another one gets 110 (FENCED_MEMBER_EPOCH)
    epoch -1     leave

A member that sends no heartbeat for SESSION_MS is removed, also one of a deleted vhost. What it has acquired is
released then, and when it leaves.

A share group and a consumer group of one name are two groups. Its name and its topics need read permission.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpd.broker.flow.timers import CallTimer
from amqpd.kafka_server import topics
from amqpd.kafka_server.connection import Api, Call
from amqpd.kafka_server.messages import (
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    FENCED_MEMBER_EPOCH,
    GROUP_ID_NOT_FOUND,
    GROUP_MAX_SIZE_REACHED,
    INVALID_REQUEST,
    NAME_MAX,
    NONE,
    NOT_ASKED,
    POLICY_VIOLATION,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_MEMBER_ID,
)
from amqpd.kafka_server.pace import Steps
from amqpd.kafka_server.request_reader import BodyWriter, RequestReader
from amqpd.kafka_server.share_wire import TOPICS_MAX

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.broker.vhost.vhost import VHost

MEMBERS_MAX: Final = 1000
"""Members of a group."""
GROUPS_MAX: Final = 10_000
"""With members, in a vhost."""
DESCRIBED_MAX: Final = 1000
HEARTBEAT_MS: Final = 5000
SESSION_MS: Final = 45_000
LEAVE: Final = -1
EPOCH_MAX: Final = 0x7FFF_FFFF
LOADING: Final = (COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE)
"""A member may leave meanwhile."""


class Heartbeat(NamedTuple):
    """A ShareGroupHeartbeat. topics: None if they are those of the last one."""

    group: str
    member_id: str
    epoch: int
    rack: str | None
    topics: tuple[str, ...] | None


class ShareMember:
    """A member.

    Attributes:
        epoch, last_epoch: of the last response and the one before.
        topics: the names that it subscribes to.
        assigned: those that exist.
    """

    def __init__(self, member_id: str, client_id: str, host: str, timer: CallTimer) -> None:
        self.id = member_id
        self.client_id = client_id
        self.host = host
        self.timer = timer
        self.rack: str | None = None
        self.epoch = self.last_epoch = 0
        self.topics: tuple[str, ...] = ()
        self.assigned: tuple[topics.PartitionedTopic, ...] = ()


class ShareGroup:
    """A group with members. epoch: rises with every change of members, subscriptions and assignments."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.members: dict[str, ShareMember] = {}

    def changed(self) -> None:
        self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1


class ShareGroups:
    """The share groups with members, of all vhosts.

    Args:
        on_left: called with vhost id, group and member id of a member that is gone.
    """

    def __init__(self, broker: Broker, on_left: Callable[[tuple[str, str, str]], None]) -> None:
        self._timers = broker.timers
        self._on_left = on_left
        self._groups: dict[str, dict[str, ShareGroup]] = {}  # vhost id -> name -> group

    def stop(self) -> None:
        """End all timers: the broker stops."""
        for groups in self._groups.values():
            for group in groups.values():
                for member in group.members.values():
                    self._timers.cancel(member.timer)
        self._groups.clear()

    def find(self, vhost: VHost, name: str) -> ShareGroup | None:
        """Return a group with members."""
        return self._groups.get(vhost.id, {}).get(name)

    def names(self, vhost: VHost) -> list[str]:
        """Return the names of the groups with members."""
        return list(self._groups.get(vhost.id, ()))

    def beat(self, call: Call, asked: Heartbeat, assigned: tuple[topics.PartitionedTopic, ...]) -> ShareMember | int:
        """Join a member, or renew its session. Return the member or an error code. assigned: the topics that exist."""
        session = call.session
        vhost_id = session.vhost.id
        group = self.find(session.vhost, asked.group)
        member = None if group is None else group.members.get(asked.member_id)
        if asked.epoch == 0:
            if group is None:
                groups = self._groups.setdefault(vhost_id, {})
                if len(groups) >= GROUPS_MAX:
                    return POLICY_VIOLATION
                group = groups[asked.group] = ShareGroup(asked.group)
            if member is None:
                if len(group.members) >= MEMBERS_MAX:
                    return GROUP_MAX_SIZE_REACHED
                timer = CallTimer(partial(self._on_silence, session.vhost, asked.group, asked.member_id))
                member = ShareMember(asked.member_id, call.header.client_id, call.connection.peer[0], timer)
                group.members[asked.member_id] = member
                group.changed()
        elif group is None or member is None:
            return UNKNOWN_MEMBER_ID
        elif asked.epoch not in (member.epoch, member.last_epoch):
            return FENCED_MEMBER_EPOCH
        self._timers.arm(member.timer, self._timers.now_ms() + SESSION_MS)
        if asked.rack is not None:
            member.rack = asked.rack
        if asked.topics is not None:
            member.topics = asked.topics
        if assigned != member.assigned:
            member.assigned = assigned
            group.changed()
        if member.epoch != group.epoch:
            member.last_epoch, member.epoch = member.epoch, group.epoch
        return member

    def _on_silence(self, vhost: VHost, name: str, member_id: str) -> None:
        self.remove(vhost, name, member_id)

    def remove(self, vhost: VHost, name: str, member_id: str) -> bool:
        """Remove a member that leaves or is silent. Return whether there was one."""
        group = self.find(vhost, name)
        member = None if group is None else group.members.pop(member_id, None)
        if group is None or member is None:
            return False
        self._timers.cancel(member.timer)
        group.changed()
        if not group.members:
            groups = self._groups[vhost.id]
            del groups[name]
            if not groups:
                del self._groups[vhost.id]
        self._on_left((vhost.id, name, member_id))
        return True


def _prepare(call: Call, group: str, topic: topics.PartitionedTopic) -> Steps[None]:
    """Have a group begin with the streams of a topic."""
    vhost = call.session.vhost

    def opened(partition: topics.TopicPartition, is_open: bool) -> None:
        # The members may have left meanwhile, and the group may be deleted.
        if is_open and server.share_groups.find(vhost, group) is not None:
            server.share_streams.prepare(vhost, group, partition)

    server = call.connection.server
    for number in range(len(topic.partitions)):
        yield
        partition = topics.partition_of(call.session, topic, number, "read")
        if not isinstance(partition, int) and not partition.is_work_queue:
            topics.open_queue(partition.queue, partial(opened, partition))


# -- ShareGroupHeartbeat -----------------------------------------------------------------------------------------------


def _decode_heartbeat(call: Call) -> Steps[Heartbeat]:
    reader = RequestReader(call.frame, call.header.size)
    group, member_id, epoch, rack = reader.text(), reader.text(), reader.int32(), reader.nullable_text()
    count = reader.nullable_count(TOPICS_MAX)
    names: dict[str, None] = {}
    for _ in range(count):
        names[reader.text()] = None
        yield
    reader.end_struct()
    return Heartbeat(group, member_id, epoch, rack, None if count < 0 else tuple(names))


def _heartbeat(call: Call) -> Steps[None]:
    asked = yield from _decode_heartbeat(call)
    server = call.connection.server
    error = server.coordinator.error_for(asked.group, call.session)
    if error not in (NONE, *LOADING):
        _answer_heartbeat(call, asked, error)
    elif not 0 < len(asked.member_id) <= NAME_MAX or asked.epoch < LEAVE or len(asked.rack or "") > NAME_MAX:
        _answer_heartbeat(call, asked, INVALID_REQUEST)
    elif asked.epoch == LEAVE:
        is_member = server.share_groups.remove(call.session.vhost, asked.group, asked.member_id)
        _answer_heartbeat(call, asked, NONE if is_member else UNKNOWN_MEMBER_ID)
    elif error != NONE:
        _answer_heartbeat(call, asked, error)
    elif asked.epoch == 0 and not asked.topics:
        _answer_heartbeat(call, asked, INVALID_REQUEST)
    else:
        yield from _beat(call, asked)


def _beat(call: Call, asked: Heartbeat) -> Steps[None]:
    """Find the topics, join a member or renew its session, and answer."""
    groups, vhost = call.connection.server.share_groups, call.session.vhost
    group = groups.find(vhost, asked.group)
    known = None if group is None else group.members.get(asked.member_id)
    names = asked.topics
    if names is None:
        names = () if known is None else known.topics
    assigned: list[topics.PartitionedTopic] = []
    for name in names:
        yield
        found = topics.find_topic(call.session, name, "read")
        if isinstance(found, topics.PartitionedTopic):
            assigned.append(found)
        elif found == TOPIC_AUTHORIZATION_FAILED and asked.topics is not None:
            _answer_heartbeat(call, asked, TOPIC_AUTHORIZATION_FAILED)
            return
    before = () if known is None else known.assigned
    member = groups.beat(call, asked, tuple(assigned))
    if isinstance(member, int):
        _answer_heartbeat(call, asked, member)
        return
    old = {topic.id: topic for topic in before}
    is_prepared = False
    try:
        for topic in assigned:
            if old.get(topic.id) != topic:
                yield from _prepare(call, asked.group, topic)
        is_prepared = True
    finally:
        if not is_prepared:  # the connection is closed: the member's next heartbeat does it
            member.assigned = before
    is_told = asked.epoch == 0 or asked.topics is not None or member.assigned != before
    _answer_heartbeat(call, asked, NONE, member, is_told or asked.epoch != member.epoch)


def _answer_heartbeat(
    call: Call, asked: Heartbeat, error: int, member: ShareMember | None = None, with_assignment: bool = False
) -> None:
    writer = BodyWriter(True)
    writer.int32(0)  # throttle time
    writer.int16(error)
    writer.string(None)
    writer.string(asked.member_id)
    writer.int32(asked.epoch if member is None else member.epoch)
    writer.int32(HEARTBEAT_MS)
    if member is None or not with_assignment:
        writer.int8(-1)  # null
    else:
        writer.int8(1)
        _write_assignment(writer, member, False)
    writer.end()
    call.reply_bytes(bytes(writer.data))


def _write_assignment(writer: BodyWriter, member: ShareMember, with_names: bool) -> None:
    writer.count(len(member.assigned))
    for topic in member.assigned:
        writer.uuid(topic.id)
        if with_names:
            writer.string(topic.name)
        writer.count(len(topic.partitions))
        for number in range(len(topic.partitions)):
            writer.int32(number)
        writer.end()
    writer.end()


# -- ShareGroupDescribe ------------------------------------------------------------------------------------------------


def _describe(call: Call) -> Steps[None]:
    reader = RequestReader(call.frame, call.header.size)
    names = [reader.text() for _ in range(reader.count(DESCRIBED_MAX))]
    reader.boolean()  # whether authorized operations are wanted: groups have none
    reader.end_struct()
    writer = BodyWriter(True)
    writer.int32(0)  # throttle time
    writer.count(len(names))
    server, vhost = call.connection.server, call.session.vhost
    for name in names:
        yield
        group, error = server.share_groups.find(vhost, name), server.coordinator.error_for(name, call.session)
        is_known = group is not None or bool(error == NONE and server.share_states.partitions_of(vhost, name))
        yield from _describe_group(writer, name, group, error or (NONE if is_known else GROUP_ID_NOT_FOUND))
    writer.end()
    call.reply_bytes(bytes(writer.data))


def _describe_group(writer: BodyWriter, name: str, group: ShareGroup | None, error: int) -> Steps[None]:
    writer.int16(error)
    writer.string(None)
    writer.string(name)
    writer.string("Stable" if group is not None else "Dead" if error != NONE else "Empty")
    epoch = 0 if group is None else group.epoch
    writer.int32(epoch)
    writer.int32(epoch)  # of the assignment
    writer.string("simple")
    members = [] if group is None else list(group.members.values())
    writer.count(len(members))
    for member in members:
        yield
        writer.string(member.id)
        writer.string(member.rack)
        writer.int32(member.epoch)
        writer.string(member.client_id)
        writer.string(member.host)
        writer.count(len(member.topics))
        for topic in member.topics:
            writer.string(topic)
        _write_assignment(writer, member, True)
        writer.end()
    writer.int32(NOT_ASKED)
    writer.end()


APIS: Final = (
    Api(76, "ShareGroupHeartbeat", 1, 1, 0, _heartbeat),
    Api(77, "ShareGroupDescribe", 1, 1, 0, _describe),
)
