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
from typing import TYPE_CHECKING, Any, Final

from amqpd.broker.flow.timers import CallTimer
from amqpd.kafka_server import errors, topics
from amqpd.kafka_server.connection import Call, typed_api
from amqpd.kafka_server.messages import NAME_MAX
from amqpd.kafka_server.pace import Steps
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
LOADING: Final = (errors.COORDINATOR_LOAD_IN_PROGRESS, errors.COORDINATOR_NOT_AVAILABLE)
"""A member may leave meanwhile."""


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

    def beat(self, call: Call, assigned: tuple[topics.PartitionedTopic, ...]) -> ShareMember | int:
        """Join a member, or renew its session. Return the member or an error code. assigned: the topics that exist."""
        asked, session = call.request, call.session
        vhost_id = session.vhost.id
        group = self.find(session.vhost, asked.group_id)
        member = None if group is None else group.members.get(asked.member_id)
        if asked.member_epoch == 0:
            if group is None:
                groups = self._groups.setdefault(vhost_id, {})
                if len(groups) >= GROUPS_MAX:
                    return errors.POLICY_VIOLATION
                group = groups[asked.group_id] = ShareGroup(asked.group_id)
            if member is None:
                if len(group.members) >= MEMBERS_MAX:
                    return errors.GROUP_MAX_SIZE_REACHED
                timer = CallTimer(partial(self._on_silence, session.vhost, asked.group_id, asked.member_id))
                member = ShareMember(asked.member_id, call.header.client_id, call.connection.peer[0], timer)
                group.members[asked.member_id] = member
                group.changed()
        elif group is None or member is None:
            return errors.UNKNOWN_MEMBER_ID
        elif asked.member_epoch not in (member.epoch, member.last_epoch):
            return errors.FENCED_MEMBER_EPOCH
        self._timers.arm(member.timer, self._timers.now_ms() + SESSION_MS)
        if asked.rack_id is not None:
            member.rack = asked.rack_id
        if asked.subscribed_topic_names is not None:
            member.topics = tuple(dict.fromkeys(asked.subscribed_topic_names))
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


def _heartbeat(call: Call) -> Steps[None]:
    asked, server = call.request, call.connection.server
    topics.check_count(len(asked.subscribed_topic_names or ()), TOPICS_MAX)
    error = server.coordinator.error_for(asked.group_id, call.session)
    if error not in (errors.NONE, *LOADING):
        _answer_heartbeat(call, error)
    elif not 0 < len(asked.member_id) <= NAME_MAX or asked.member_epoch < LEAVE or len(asked.rack_id or "") > NAME_MAX:
        _answer_heartbeat(call, errors.INVALID_REQUEST)
    elif asked.member_epoch == LEAVE:
        is_member = server.share_groups.remove(call.session.vhost, asked.group_id, asked.member_id)
        _answer_heartbeat(call, errors.NONE if is_member else errors.UNKNOWN_MEMBER_ID)
    elif error != errors.NONE:
        _answer_heartbeat(call, error)
    elif asked.member_epoch == 0 and not asked.subscribed_topic_names:
        _answer_heartbeat(call, errors.INVALID_REQUEST)
    else:
        yield from _beat(call)


def _beat(call: Call) -> Steps[None]:
    """Find the topics, join a member or renew its session, and answer."""
    asked, groups, vhost = call.request, call.connection.server.share_groups, call.session.vhost
    group = groups.find(vhost, asked.group_id)
    known = None if group is None else group.members.get(asked.member_id)
    names = dict.fromkeys(asked.subscribed_topic_names or ())
    if asked.subscribed_topic_names is None and known is not None:
        names = dict.fromkeys(known.topics)
    assigned: list[topics.PartitionedTopic] = []
    for name in names:
        yield
        found = topics.find_topic(call.session, name, "read")
        if isinstance(found, topics.PartitionedTopic):
            assigned.append(found)
        elif found == errors.TOPIC_AUTHORIZATION_FAILED and asked.subscribed_topic_names is not None:
            _answer_heartbeat(call, errors.TOPIC_AUTHORIZATION_FAILED)
            return
    before = () if known is None else known.assigned
    member = groups.beat(call, tuple(assigned))
    if isinstance(member, int):
        _answer_heartbeat(call, member)
        return
    old = {topic.id: topic for topic in before}
    is_prepared = False
    try:
        for topic in assigned:
            if old.get(topic.id) != topic:
                yield from _prepare(call, asked.group_id, topic)
        is_prepared = True
    finally:
        if not is_prepared:  # the connection is closed: the member's next heartbeat does it
            member.assigned = before
    is_told = asked.member_epoch == 0 or asked.subscribed_topic_names is not None or member.assigned != before
    _answer_heartbeat(call, errors.NONE, member, is_told or asked.member_epoch != member.epoch)


def _answer_heartbeat(call: Call, error: int, member: ShareMember | None = None, with_assignment: bool = False) -> None:
    call.reply(
        {
            "error_code": error,
            "member_id": call.request.member_id,
            "member_epoch": call.request.member_epoch if member is None else member.epoch,
            "heartbeat_interval_ms": HEARTBEAT_MS,
            "assignment": None if member is None or not with_assignment else _assignment(member),
        }
    )


def _assignment(member: ShareMember) -> dict[str, Any]:
    return {
        "topic_partitions": [
            {"topic_id": topic.id.bytes, "topic_name": topic.name, "partitions": range(len(topic.partitions))}
            for topic in member.assigned
        ]
    }


# -- ShareGroupDescribe ------------------------------------------------------------------------------------------------


def _describe(call: Call) -> Steps[None]:
    topics.check_count(len(call.request.group_ids), DESCRIBED_MAX)
    server, vhost = call.connection.server, call.session.vhost
    described: list[dict[str, Any]] = []
    for name in call.request.group_ids:
        yield
        error = server.coordinator.error_for(name, call.session)
        group = None if error else server.share_groups.find(vhost, name)
        if not error and group is None and not server.share_states.partitions_of(vhost, name):
            error = errors.GROUP_ID_NOT_FOUND
        epoch = 0 if group is None else group.epoch
        members: list[dict[str, Any]] = []
        described.append(
            {
                "error_code": error,
                "group_id": name,
                "group_state": "Stable" if group is not None else "Dead" if error else "Empty",
                "group_epoch": epoch,
                "assignment_epoch": epoch,
                "assignor_name": "simple",
                "members": members,
            }
        )
        for member in [] if group is None else list(group.members.values()):
            yield
            members.append(
                {
                    "member_id": member.id,
                    "rack_id": member.rack,
                    "member_epoch": member.epoch,
                    "client_id": member.client_id,
                    "client_host": f"/{member.host}",
                    "subscribed_topic_names": member.topics,
                    "assignment": _assignment(member),
                }
            )
    call.reply({"groups": described})


APIS: Final = (
    typed_api(76, "ShareGroupHeartbeat", 1, 1, 0, _heartbeat),
    typed_api(77, "ShareGroupDescribe", 1, 1, 0, _describe),
)
