"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: the consumer protocol (KIP-848).

consumer_group.py decides. coordinator.py has the groups and their timers, as for the classic protocol. A group is of
one protocol while it has members; without members it changes to that of the next one that joins.

Subscribing by name needs read permission on each topic. A pattern matches only topics that the user may read. Members
are in memory only: after a restart they get 25 (UNKNOWN_MEMBER_ID) and join again.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from amqpd.auth.patterns import InvalidPattern
from amqpd.kafka_server import errors, topics
from amqpd.kafka_server.assignors import NO_PARTITIONS, Partition, Partitions
from amqpd.kafka_server.connection import Call, typed_api
from amqpd.kafka_server.consumer_group import (
    JOIN,
    LEAVE_STATIC,
    ConsumerProtocolGroup,
    HeartbeatAnswer,
    MemberHeartbeat,
    Subscription,
)
from amqpd.kafka_server.group_topics import GroupTopics, topic_names, topic_pattern
from amqpd.kafka_server.messages import NAME_MAX
from amqpd.kafka_server.pace import Steps

if TYPE_CHECKING:
    from amqpd.broker.vhost.vhost import VHost
    from amqpd.kafka_server.consumer_group import ReconcilingMember
    from amqpd.kafka_server.coordinator import GroupCoordinator

PARTITIONS_PER_STEP: Final = 1000
CONSUMER_PROTOCOL: Final = 1
"""Type of a member."""
GROUPS_MAX: Final = 1000
"""Groups that one ConsumerGroupDescribe may name."""
DESCRIBED_BYTES_MAX: Final = 32 << 20
"""Names and partitions in one answer; further groups get an error."""
MEMBER_BYTES: Final = 1000
PARTITION_BYTES: Final = 280
"""With the name of its topic."""
NO_ROOM: Final = "the groups of this broker need too much memory"


def _heartbeat(call: Call) -> Steps[None]:
    asked = yield from _asked(call)
    coordinator = call.connection.server.coordinator
    error, message = coordinator.error_for(asked.group_id, call.session), ""
    if not error:
        error, message = _fields_error(asked, call.version)
    if not error and (asked.names is not None or asked.pattern is not None):
        error, message = yield from _subscription_error(call, asked.names or frozenset())
    answer = HeartbeatAnswer(error, message or None) if error else _answer(call, coordinator, asked)
    call.reply(
        {
            "error_code": answer.error,
            "error_message": answer.message if answer.error else None,
            "member_id": answer.member_id,
            "member_epoch": answer.epoch,
            "heartbeat_interval_ms": answer.interval_ms,
            "assignment": None if answer.assignment is None else _assignment(answer.assignment, None),
        }
    )


def _asked(call: Call) -> Steps[MemberHeartbeat]:
    """Return the request. Raises: MalformedRequest."""
    request, owned = call.request, None
    if request.topic_partitions is not None:
        owned = set[Partition]()
        for topic in request.topic_partitions:
            for start in range(0, len(topic.partitions), PARTITIONS_PER_STEP):
                owned.update((topic.topic_id, index) for index in topic.partitions[start : start + PARTITIONS_PER_STEP])
                yield
    names = request.subscribed_topic_names
    return MemberHeartbeat(
        request.group_id,
        request.member_id,
        request.member_epoch,
        request.instance_id,
        request.rack_id,
        request.rebalance_timeout_ms,
        None if names is None else frozenset(names),
        request.subscribed_topic_regex,
        request.server_assignor,
        None if owned is None else frozenset(owned),
        call.connection.client_id,
        call.connection.peer[0],
        call.session.user,
    )


def _assignment(partitions: Partitions, names: Mapping[bytes, str] | None) -> dict[str, Any]:
    """Return the partitions by topic. names: of the topics, if the struct has them; others are left out."""
    found: dict[bytes, list[int]] = {}
    for topic_id, index in sorted(partitions):
        if names is None or topic_id in names:
            found.setdefault(topic_id, []).append(index)
    return {
        "topic_partitions": [
            {"topic_id": each, "topic_name": names[each] if names is not None else "", "partitions": indexes}
            for each, indexes in found.items()
        ]
    }


def _fields_error(asked: MemberHeartbeat, version: int) -> tuple[int, str]:
    """Return why fields have impossible values."""
    if len(asked.member_id) > NAME_MAX:
        return errors.INVALID_REQUEST, f"a member id can have {NAME_MAX} characters"
    if not asked.member_id and (version >= 1 or asked.epoch != JOIN):
        return errors.INVALID_REQUEST, "the member id is missing"
    for text in (asked.instance_id, asked.rack_id):
        if text is not None and not 0 < len(text) <= NAME_MAX:
            return errors.INVALID_REQUEST, f"an instance id and a rack have 1 to {NAME_MAX} characters"
    if asked.epoch < LEAVE_STATIC:
        return errors.INVALID_REQUEST, f"{asked.epoch} is not an epoch"
    if asked.pattern:
        try:
            topic_pattern(asked.pattern)
        except InvalidPattern as error:
            return errors.INVALID_REGULAR_EXPRESSION, str(error)
    return errors.NONE, ""


def _subscription_error(call: Call, names: frozenset[str]) -> Steps[tuple[int, str]]:
    """Return why the member may not subscribe to these topics or by a pattern."""
    if len(names) > topics.NAMES_MAX:
        return errors.POLICY_VIOLATION, f"a member can subscribe to {topics.NAMES_MAX} topics by name"
    for name in names:
        yield
        if not topics.is_topic_permitted(call.session, name, "read"):
            return errors.TOPIC_AUTHORIZATION_FAILED, "the user may not read all of these topics"
    # After the last step: other members may have joined before.
    if not call.connection.server.coordinator.has_room(Subscription(names).size_bytes):
        return errors.POLICY_VIOLATION, NO_ROOM
    return errors.NONE, ""


def _answer(call: Call, coordinator: GroupCoordinator, asked: MemberHeartbeat) -> HeartbeatAnswer:
    session = call.session
    is_join = asked.epoch == JOIN
    find = coordinator.for_member if is_join else coordinator.find
    entry = find(session.vhost, asked.group_id)
    if entry is None and is_join:
        return HeartbeatAnswer(errors.POLICY_VIOLATION, "too many groups of the vhost have members")
    now_ms = coordinator.now_ms()
    group = None if entry is None else entry.group_of(ConsumerProtocolGroup, now_ms)
    if group is None and is_join:
        return HeartbeatAnswer(errors.GROUP_ID_NOT_FOUND, "the group has members that use the classic protocol")
    if entry is None or group is None:
        return HeartbeatAnswer(errors.UNKNOWN_MEMBER_ID, "not a member of the group")
    if not asked.member_id:
        asked = asked._replace(member_id=str(uuid.uuid4()))
    size_bytes = group.size_bytes
    answer = group.heartbeat(asked, GroupTopics(session.vhost, session.broker.auth), now_ms)
    coordinator.changed(entry)
    if group.size_bytes > size_bytes and not coordinator.has_room(0):
        group.remove_members(now_ms)
        coordinator.changed(entry)
        return HeartbeatAnswer(errors.POLICY_VIOLATION, NO_ROOM)
    return answer


def _describe(call: Call) -> Steps[None]:
    names = list(dict.fromkeys(call.request.group_ids))
    topics.check_count(len(names), GROUPS_MAX)
    coordinator = call.connection.server.coordinator
    vhost = call.session.vhost
    described: list[dict[str, Any]] = []
    size_bytes = 0
    for name in names:
        yield
        error = coordinator.error_for(name, call.session)
        entry = None if error else coordinator.find(vhost, name)
        group = entry.group if entry is not None else None
        if not isinstance(group, ConsumerProtocolGroup):
            code = error or errors.GROUP_ID_NOT_FOUND
            described.append(_refused(name, code, "not a group of the consumer protocol"))
            continue
        size_bytes += _described_bytes(group)
        if size_bytes > DESCRIBED_BYTES_MAX:
            described.append(_refused(name, errors.POLICY_VIOLATION, "the answer is too long"))
            continue
        members: list[dict[str, Any]] = []
        described.append(
            {
                "group_id": name,
                "group_state": group.phase.value,
                "group_epoch": group.epoch,
                "assignment_epoch": group.target_epoch,
                "assignor_name": group.assignor,
                "members": members,
            }
        )
        for member in list(group.members.values()):
            members.append(_described(vhost, member, group.targets.get(member.id, NO_PARTITIONS)))
            yield
    call.reply({"groups": described})


def _refused(name: str, code: int, text: str) -> dict[str, Any]:
    return {"group_id": name, "error_code": code, "error_message": text}


def _described(vhost: VHost, member: ReconcilingMember, target: Partitions) -> dict[str, Any]:
    names = topic_names(vhost, {topic_id for topic_id, _ in member.assigned | target})
    return {
        "member_id": member.id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": f"/{member.host}",
        "subscribed_topic_names": sorted(member.subscription.names),
        "subscribed_topic_regex": member.subscription.pattern or None,
        "assignment": _assignment(member.assigned, names),
        "target_assignment": _assignment(target, names),
        "member_type": CONSUMER_PROTOCOL,
    }


def _described_bytes(group: ConsumerProtocolGroup) -> int:
    """Return how long the description of a group is at most, nearly."""
    size_bytes = sum(MEMBER_BYTES + each.subscription.size_bytes for each in group.members.values())
    return size_bytes + 2 * PARTITION_BYTES * sum(len(each) for each in group.targets.values())


APIS: Final = (
    typed_api(68, "ConsumerGroupHeartbeat", 0, 1, 0, _heartbeat),
    typed_api(69, "ConsumerGroupDescribe", 0, 1, 0, _describe),
)
