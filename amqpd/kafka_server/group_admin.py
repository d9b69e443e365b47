"""Groups as a whole: DescribeGroups, ListGroups, DeleteGroups.

All of them are about the groups of the session's vhost. Permissions: see coordinator.py.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from amqpd.kafka_server import errors
from amqpd.kafka_server.connection import Call, typed_api
from amqpd.kafka_server.groups import ConsumerGroup, GroupState
from amqpd.kafka_server.pace import Steps
from amqpd.kafka_server.topics import check_count, is_permitted

if TYPE_CHECKING:
    from amqpd.kafka_server.consumer_group import ConsumerProtocolGroup

GROUPS_MAX: Final = 10_000
"""Groups that one request may name."""
DESCRIBED_BYTES_MAX: Final = 32 << 20
"""Metadata and assignments in one answer; further groups get an error."""
MEMBER_BYTES: Final = 100
CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
SHARE: Final = "share"
"""Types of groups. CONSUMER is also the protocol type of consumers, in groups of both types."""


def _names(names: list[str]) -> list[str]:
    """Return the names, each once. Raises: MalformedRequest if there are too many."""
    check_count(len(names), GROUPS_MAX)
    return list(dict.fromkeys(names))


def _describe_groups(call: Call) -> Steps[None]:
    coordinator = call.connection.server.coordinator
    size_bytes = 0
    described: list[dict[str, Any]] = []
    for name in _names(call.request.groups):
        yield
        error = coordinator.error_for(name, call.session)
        entry = None if error else coordinator.find(call.session.vhost, name)
        group = None if entry is None else entry.group
        if not isinstance(group, ConsumerGroup):
            described.append(_absent(call, name, error, group))
            continue
        size_bytes += group.size_bytes + MEMBER_BYTES * len(group.members)
        if size_bytes > DESCRIBED_BYTES_MAX:
            described.append({"group_id": name, "error_code": errors.POLICY_VIOLATION})
        else:
            described.append(_described(group))
    call.reply({"groups": described})


def _absent(call: Call, name: str, error: int, group: ConsumerProtocolGroup | None) -> dict[str, Any]:
    """Describe a group that does not exist or is not of the classic protocol, as Kafka does."""
    fields: dict[str, Any] = {"group_id": name, "error_code": error, "group_state": ""}
    if error == errors.NONE:
        fields["group_state"] = GroupState.DEAD.value
        if call.version >= 6:
            fields["error_code"] = errors.GROUP_ID_NOT_FOUND
            fields["error_message"] = "no such group" if group is None else "not a group of the classic protocol"
    return fields


def _described(group: ConsumerGroup) -> dict[str, Any]:
    members: list[dict[str, Any]] = []
    is_stable = group.state is GroupState.STABLE
    for member in group.members.values():
        fields: dict[str, Any] = {
            "member_id": member.id,
            "group_instance_id": member.instance_id,
            "client_id": member.client_id,
            "client_host": f"/{member.host}",
            "member_metadata": member.metadata(group.protocol) if is_stable else b"",
            "member_assignment": member.assignment if is_stable else b"",
        }
        members.append(fields)
    return {
        "group_id": group.name,
        "error_code": errors.NONE,
        "group_state": group.state.value,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol if is_stable else "",
        "members": members,
    }


def _list_groups(call: Call) -> Steps[None]:
    coordinator = call.connection.server.coordinator
    error = coordinator.load_error()
    listed: list[dict[str, Any]] = []
    if error == errors.NONE:
        states = {each.lower() for each in call.request.states_filter}
        types = {each.lower() for each in call.request.types_filter}
        for entry in coordinator.entries(call.session.vhost):
            yield
            group = entry.group
            if isinstance(group, ConsumerGroup):
                kind, state, protocol = CLASSIC, group.state.value, group.protocol_type
            else:
                kind, state, protocol = CONSUMER, group.phase.value, CONSUMER
            if not is_permitted(call.session, group.name, "read"):
                continue
            if (not states or state.lower() in states) and (not types or kind in types):
                listed.append(
                    {"group_id": group.name, "protocol_type": protocol, "group_state": state, "group_type": kind}
                )
        if call.version >= 5 and (not types or SHARE in types):
            listed += _share_groups(call, states)
    call.reply({"error_code": error, "groups": listed})


def _share_groups(call: Call, states: set[str]) -> list[dict[str, Any]]:
    """Return the share groups in one of these states; no states: in any."""
    server, vhost = call.connection.server, call.session.vhost
    found = dict.fromkeys(server.share_states.groups(vhost), "Empty")
    found |= dict.fromkeys(server.share_groups.names(vhost), "Stable")
    return [
        {"group_id": name, "protocol_type": SHARE, "group_state": state, "group_type": SHARE}
        for name, state in found.items()
        if is_permitted(call.session, name, "read") and (not states or state.lower() in states)
    ]


def _delete_groups(call: Call) -> Steps[None]:
    coordinator = call.connection.server.coordinator
    vhost = call.session.vhost
    results: dict[str, int] = {}
    left = 1  # removals that are not synced, and the request itself
    server = call.connection.server

    def end_one() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            call.reply({"results": [{"group_id": name, "error_code": code} for name, code in results.items()]})

    def deleted(name: str, safe: bool) -> None:
        """Set the result when the removal is synced. If it is not, the group is still there: 15."""
        results[name] = errors.NONE if safe else errors.COORDINATOR_NOT_AVAILABLE
        end_one()

    for name in _names(call.request.groups_names):
        yield
        error = coordinator.error_for(name, call.session, "configure")
        entry = None if error else coordinator.find(vhost, name)
        results[name] = error
        if entry is not None and entry.group.is_unused:
            left += 1
            coordinator.delete(entry, partial(deleted, name))
        elif entry is None and not error and server.share_groups.find(vhost, name) is not None:
            results[name] = errors.NON_EMPTY_GROUP
        elif entry is None and not error and server.share_states.partitions_of(vhost, name):
            left += 1
            server.share_sessions.end_group(vhost.id, name)
            server.share_streams.remove_group(vhost, name, partial(deleted, name))
        elif not error:
            results[name] = errors.GROUP_ID_NOT_FOUND if entry is None else errors.NON_EMPTY_GROUP
    end_one()


APIS: Final = (
    typed_api(15, "DescribeGroups", 0, 6, 5, _describe_groups),
    typed_api(16, "ListGroups", 0, 5, 3, _list_groups),
    typed_api(42, "DeleteGroups", 0, 2, 2, _delete_groups),
)
