"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: the consumer protocol (KIP-848).

consumer_group.py decides. coordinator.py has the groups and their timers, as for the classic protocol. A group is of
one protocol while it has members; without members it changes to that of the next one that joins.

Subscribing by name needs read permission on each topic. A pattern matches only topics that the user may read. Members
are in memory only: after a restart they get 25 (UNKNOWN_MEMBER_ID) and join again.
"""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING, Final

from amqpd.auth.permissions import InvalidPattern
from amqpd.kafka_server import topics
from amqpd.kafka_server.connection import Api, Call
from amqpd.kafka_server.consumer_group import (
    JOIN,
    LEAVE_STATIC,
    ConsumerProtocolGroup,
    HeartbeatAnswer,
    MemberHeartbeat,
    Subscription,
)
from amqpd.kafka_server.consumer_group_wire import (
    DescribedGroup,
    decode_describe,
    decode_heartbeat,
    encode_describe,
    encode_heartbeat,
)
from amqpd.kafka_server.group_topics import GroupTopics, topic_names, topic_pattern
from amqpd.kafka_server.messages import (
    GROUP_ID_NOT_FOUND,
    INVALID_REGULAR_EXPRESSION,
    INVALID_REQUEST,
    NAME_MAX,
    NONE,
    POLICY_VIOLATION,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_MEMBER_ID,
    MalformedRequest,
)
from amqpd.kafka_server.pace import Steps

if TYPE_CHECKING:
    from amqpd.kafka_server.coordinator import GroupCoordinator

GROUPS_MAX: Final = 1000
"""Groups that one ConsumerGroupDescribe may name."""
DESCRIBED_BYTES_MAX: Final = 32 << 20
"""Names and partitions in one answer; further groups get an error."""
MEMBER_BYTES: Final = 1000
PARTITION_BYTES: Final = 280
"""With the name of its topic."""
NO_ROOM: Final = "the groups of this broker need too much memory"


def _heartbeat(call: Call) -> Steps[None]:
    asked = yield from decode_heartbeat(call)
    coordinator = call.connection.server.coordinator
    error, message = coordinator.error_for(asked.group_id, call.session), ""
    if error == NONE:
        error, message = _fields_error(asked, call.version)
    if error == NONE and (asked.names is not None or asked.pattern is not None):
        error, message = yield from _subscription_error(call, asked.names or frozenset())
    answer = HeartbeatAnswer(error, message or None) if error else _answer(call, coordinator, asked)
    call.reply_bytes(encode_heartbeat(answer))


def _fields_error(asked: MemberHeartbeat, version: int) -> tuple[int, str]:
    """Return why fields have impossible values."""
    if len(asked.member_id) > NAME_MAX:
        return INVALID_REQUEST, f"a member id can have {NAME_MAX} characters"
    if not asked.member_id and (version >= 1 or asked.epoch != JOIN):
        return INVALID_REQUEST, "the member id is missing"
    for text in (asked.instance_id, asked.rack_id):
        if text is not None and not 0 < len(text) <= NAME_MAX:
            return INVALID_REQUEST, f"an instance id and a rack have 1 to {NAME_MAX} characters"
    if asked.epoch < LEAVE_STATIC:
        return INVALID_REQUEST, f"{asked.epoch} is not an epoch"
    if asked.pattern:
        try:
            topic_pattern(asked.pattern)
        except InvalidPattern as error:
            return INVALID_REGULAR_EXPRESSION, str(error)
    return NONE, ""


def _subscription_error(call: Call, names: frozenset[str]) -> Steps[tuple[int, str]]:
    """Return why the member may not subscribe to these topics or by a pattern."""
    if len(names) > topics.NAMES_MAX:
        return POLICY_VIOLATION, f"a member can subscribe to {topics.NAMES_MAX} topics by name"
    for name in names:
        yield
        if not topics.is_topic_permitted(call.session, name, "read"):
            return TOPIC_AUTHORIZATION_FAILED, "the user may not read all of these topics"
    # After the last step: other members may have joined before.
    if not call.connection.server.coordinator.has_room(Subscription(names).size_bytes):
        return POLICY_VIOLATION, NO_ROOM
    return NONE, ""


def _answer(call: Call, coordinator: GroupCoordinator, asked: MemberHeartbeat) -> HeartbeatAnswer:
    session = call.session
    is_join = asked.epoch == JOIN
    find = coordinator.for_member if is_join else coordinator.find
    entry = find(session.vhost, asked.group_id)
    if entry is None and is_join:
        return HeartbeatAnswer(POLICY_VIOLATION, "too many groups of the vhost have members")
    now_ms = coordinator.now_ms()
    group = None if entry is None else entry.consumer_group(now_ms)
    if group is None and is_join:
        return HeartbeatAnswer(GROUP_ID_NOT_FOUND, "the group has members that use the classic protocol")
    if entry is None or group is None:
        return HeartbeatAnswer(UNKNOWN_MEMBER_ID, "not a member of the group")
    if not asked.member_id:
        asked = asked._replace(member_id=str(uuid.uuid4()))
    size_bytes = group.size_bytes
    answer = group.heartbeat(asked, GroupTopics(session.vhost, session.broker.auth), now_ms)
    coordinator.changed(entry)
    if group.size_bytes > size_bytes and not coordinator.has_room(0):
        group.remove_members(now_ms)
        coordinator.changed(entry)
        return HeartbeatAnswer(POLICY_VIOLATION, NO_ROOM)
    return answer


def _describe(call: Call) -> Steps[None]:
    names = list(dict.fromkeys((yield from decode_describe(call.frame, call.header))))
    if len(names) > GROUPS_MAX:
        raise MalformedRequest(f"{len(names)} groups in one request; at most {GROUPS_MAX} are accepted")
    coordinator = call.connection.server.coordinator
    vhost = call.session.vhost
    described: list[DescribedGroup] = []
    size_bytes = 0
    for name in names:
        yield
        error = coordinator.error_for(name, call.session)
        entry = None if error else coordinator.find(vhost, name)
        group = entry.group if entry is not None else None
        if not isinstance(group, ConsumerProtocolGroup):
            code = error or GROUP_ID_NOT_FOUND
            described.append(DescribedGroup(name, code, "not a group of the consumer protocol", None))
            continue
        size_bytes += _described_bytes(group)
        if size_bytes > DESCRIBED_BYTES_MAX:
            described.append(DescribedGroup(name, POLICY_VIOLATION, "the answer is too long", None))
        else:
            described.append(DescribedGroup(name, NONE, None, group))
    call.reply_bytes((yield from encode_describe(call.version, described, partial(topic_names, vhost))))


def _described_bytes(group: ConsumerProtocolGroup) -> int:
    """Return how long the description of a group is at most, nearly."""
    size_bytes = sum(MEMBER_BYTES + each.subscription.size_bytes for each in group.members.values())
    return size_bytes + 2 * PARTITION_BYTES * sum(len(each) for each in group.targets.values())


APIS: Final = (
    Api(68, "ConsumerGroupHeartbeat", 0, 1, 0, _heartbeat),
    Api(69, "ConsumerGroupDescribe", 0, 1, 0, _describe),
)
