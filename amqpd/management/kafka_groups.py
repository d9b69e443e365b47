"""Handlers for the groups of Kafka's clients: lists, members, offsets and lag, reset, deletion. Not in RabbitMQ.

Reading needs the tag monitoring, because a group shows addresses of clients and names of topics. Changes need access to
the vhost, as for Kafka's clients, and a reset needs read permission on the topic. A broker without a Kafka listener
answers 404.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from amqpd.broker.queue.log_opener import opened
from amqpd.management.listing import document_reply, listing
from amqpd.management.queue_jobs import time_ms
from amqpd.management.request import (
    NO_CONTENT,
    ApiRequest,
    ApiResponse,
    BadRequest,
    ResourceNotFound,
    Role,
    Unavailable,
    parse_int,
    reply,
)
from amqpd.management.router import ApiRoute
from amqpd.management.time_slice import TimeSlice

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amqpd.broker.queue.queue import Queue
    from amqpd.broker.vhost.vhost import VHost
    from amqpd.kafka_server.group_listing import GroupListing, GroupSummary
    from amqpd.kafka_server.group_operations import GroupOperations

OFFSET_MAX: Final = (1 << 63) - 1
PARTITION_MAX: Final = (1 << 31) - 1
_TARGETS: Final = ("to", "offset", "time", "shift")
_FIELDS: Final = frozenset({"topic", "partition", "dry_run", *_TARGETS})


def _operations(call: ApiRequest) -> GroupOperations:
    """Return the operations on groups. Raises: ResourceNotFound without a listener, Unavailable after the start."""
    kafka = call.server.kafka
    if kafka is None:
        raise ResourceNotFound("the broker has no Kafka listener: set kafka.port")
    if kafka.operations.listing.load_error():
        raise Unavailable("the committed offsets of Kafka's groups are not read yet; try again")
    return kafka.operations


async def get_groups(call: ApiRequest) -> ApiResponse:
    """List the groups of Kafka's clients: type, state, protocol, number of members and lag."""
    groups = _operations(call).listing
    slices = TimeSlice()
    found: list[tuple[VHost, GroupSummary]] = []
    seen: set[Queue] = set()
    for vhost in call.vhosts():
        for group in sorted(groups.summaries(vhost)):
            found.append((vhost, group))
            await _open(groups, vhost, groups.places(vhost, group.name), seen)
            if slices.expired:
                await slices.yield_loop()
    return await listing(call, found, partial(_group_item, groups), lambda each: each[1].name)


async def get_group(call: ApiRequest) -> ApiResponse:
    """Return a group of Kafka's clients: members with their partitions, committed offsets and lag."""
    groups = _operations(call).listing
    vhost, name = call.vhost(), call.params["name"]
    members = groups.members(vhost, name)
    assigned = [
        (topic, number) for each in members for topic, partitions in each.assignment.items() for number in partitions
    ]
    await _open(groups, vhost, [*groups.places(vhost, name), *assigned], set())
    group = groups.find(vhost, name)
    if group is None:
        raise ResourceNotFound(f"no Kafka group '{name}' in vhost '{vhost.name}'")
    return await document_reply(
        {
            **_group_item(groups, (vhost, group)),
            "members": [each._asdict() for each in members],
            "offsets": (each._asdict() for each in groups.offsets(vhost, name, members)),
        }
    )


async def _open(groups: GroupListing, vhost: VHost, places: Iterable[tuple[str, int]], seen: set[Queue]) -> None:
    """Open the logs of partitions, so that their ends are known. A log that cannot be opened has none.

    Args:
        seen: streams that are done.
    """
    for queue in groups.streams(vhost, places):
        if queue not in seen:
            seen.add(queue)
            await opened(queue)


def _group_item(groups: GroupListing, each: tuple[VHost, GroupSummary]) -> dict[str, Any]:
    """Return a group. `lag`: the sum of its partitions, null if none is known."""
    vhost, group = each
    lags = [groups.lag(vhost, group.name, place) for place in groups.places(vhost, group.name)]
    known = [lag for lag in lags if lag is not None]
    return {"vhost": vhost.name, **group._asdict(), "lag": sum(known) if known else None}


async def reset_offsets(call: ApiRequest) -> ApiResponse:
    """Let a group without members continue elsewhere in a topic, or with `dry_run` only say where.

    One of `to` (earliest, latest), `offset`, `time` and `shift` says where.
    """
    operations = _operations(call)
    vhost = call.vhost()
    topic = call.text("topic")
    unknown = sorted(set(call.fields()) - _FIELDS)
    if unknown:
        raise BadRequest(f"unknown fields: {', '.join(unknown)}")
    call.check(vhost.name, "read", "queue", topic)
    partition = call.fields().get("partition")
    if partition is not None:
        partition = parse_int("partition", partition, 0, PARTITION_MAX)
    kind, value = _target(call)
    changes = await operations.reset(vhost, call.params["name"], topic, partition, kind, value, call.flag("dry_run"))
    return reply([each._asdict() for each in changes])


def _target(call: ApiRequest) -> tuple[str, int]:
    """Return kind and value of the target of a reset. Raises: BadRequest."""
    given = [name for name in _TARGETS if name in call.fields()]
    if len(given) != 1:
        raise BadRequest(f"exactly one of {', '.join(_TARGETS)} is needed")
    name, value = given[0], call.fields()[given[0]]
    if name == "to":
        if value not in ("earliest", "latest"):
            raise BadRequest("to must be earliest or latest")
        return value, 0
    if name == "time":
        return name, time_ms(value)
    return name, parse_int(name, value, -OFFSET_MAX if name == "shift" else 0, OFFSET_MAX)


async def delete_group(call: ApiRequest) -> ApiResponse:
    """Delete a group without members, with its committed offsets."""
    await _operations(call).delete(call.vhost(), call.params["name"])
    return NO_CONTENT


_ONE: Final = "api/amqpd/kafka/groups/{vhost}/{name}"
ROUTES: Final = (
    ApiRoute("GET", "api/amqpd/kafka/groups", Role.MONITORING, get_groups),
    ApiRoute("GET", "api/amqpd/kafka/groups/{vhost}", Role.MONITORING, get_groups),
    ApiRoute("GET", _ONE, Role.MONITORING, get_group),
    ApiRoute("DELETE", _ONE, Role.MANAGEMENT, delete_group),
    ApiRoute("POST", _ONE + "/offsets", Role.MANAGEMENT, reset_offsets),
)
