"""Handlers for the groups of Kafka's clients: lists, members, offsets and lag, reset, deletion. Not in RabbitMQ.

Reading needs the tag monitoring, because a group shows addresses of clients and names of topics. Changes need the
permissions of Kafka's clients: read for the group's name and on the topic to reset offsets, configure for the group's
name to delete it. A broker without a Kafka listener answers 404.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from amqpd.broker.queue.log_opener import opened
from amqpd.management.listing import collect, document_reply, listing, sort_by_name
from amqpd.management.queue_jobs import time_ms
from amqpd.management.request import (
    NO_CONTENT,
    ApiRequest,
    ApiResponse,
    BadRequest,
    ResourceNotFound,
    Role,
    Unavailable,
    name_of,
    parse_int,
    reply,
)
from amqpd.management.router import ApiRoute
from amqpd.management.time_slice import TimeSlice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqpd.broker.vhost.vhost import VHost
    from amqpd.kafka_server.group_listing import GroupListing, GroupSummary
    from amqpd.kafka_server.group_operations import GroupOperations

Places: TypeAlias = "Sequence[tuple[str, int]]"
"""Topics and partitions."""

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
    found: list[dict[str, Any]] = []
    for vhost in call.vhosts():
        summaries = await collect(groups.summaries(vhost), slices)
        for group in await sort_by_name(summaries, name_of, slices):
            places = groups.places(vhost, group.name)
            await _open(groups, vhost, places, slices)
            found.append(_group_item(vhost, group, await _lag(groups, vhost, group.name, places, slices)))
    return await listing(call, found, lambda item: item, lambda item: item["name"])


async def get_group(call: ApiRequest) -> ApiResponse:
    """Return a group of Kafka's clients: members with their partitions, committed offsets and lag."""
    groups = _operations(call).listing
    slices = TimeSlice()
    vhost, name = call.vhost(), call.params["name"]
    members = await collect(groups.members(vhost, name), slices)
    readers = {
        (topic, partition): member.id
        for member in members
        for topic, partitions in member.assignment.items()
        for partition in partitions
    }
    places = await sort_by_name(list({*groups.places(vhost, name), *readers}), _place_key, slices)
    await _open(groups, vhost, places, slices)
    lag = await _lag(groups, vhost, name, places, slices)
    group = groups.find(vhost, name)
    if group is None:
        raise ResourceNotFound(f"no Kafka group '{name}' in vhost '{vhost.name}'")
    offsets = (groups.offset(vhost, name, place, readers.get(place, "")) for place in places)
    return await document_reply(
        {
            **_group_item(vhost, group, lag),
            "members": [each._asdict() for each in members],
            "offsets": (None if each is None else each._asdict() for each in offsets),
        }
    )


async def _open(groups: GroupListing, vhost: VHost, places: Places, slices: TimeSlice) -> None:
    """Open the logs of partitions, so that their ends are known. A log that cannot be opened has none."""
    for queue in groups.streams(vhost, places):
        await opened(queue)
        await slices.yield_if_due()


async def _lag(groups: GroupListing, vhost: VHost, name: str, places: Places, slices: TimeSlice) -> int | None:
    """Return the sum of the lags that are known, None if there is none."""
    lags = await collect((groups.lag(vhost, name, place) for place in places), slices)
    known = [lag for lag in lags if lag is not None]
    return sum(known) if known else None


def _group_item(vhost: VHost, group: GroupSummary, lag: int | None) -> dict[str, Any]:
    """Return a group as an item of a list."""
    return {"vhost": vhost.name, **group._asdict(), "lag": lag}


def _place_key(place: tuple[str, int]) -> str:
    return f"{place[0]}\0{place[1]:010}"


async def reset_offsets(call: ApiRequest) -> ApiResponse:
    """Set committed offsets of a group without members; with `dry_run` only return them.

    One of `to` (earliest, latest), `offset`, `time` and `shift` says where.
    """
    operations = _operations(call)
    vhost = call.vhost()
    topic = call.text("topic")
    unknown = sorted(set(call.fields()) - _FIELDS)
    if unknown:
        raise BadRequest(f"unknown fields: {', '.join(unknown)}")
    call.check(vhost.name, "read", "group", call.params["name"])
    for name in _queues_of(vhost, topic):
        call.check(vhost.name, "read", "queue", name)
    partition = call.fields().get("partition")
    if partition is not None:
        partition = parse_int("partition", partition, 0, PARTITION_MAX)
    kind, value = _target(call)
    changes = await operations.reset(vhost, call.params["name"], topic, partition, kind, value, call.flag("dry_run"))
    return reply([each._asdict() for each in changes])


def _queues_of(vhost: VHost, topic: str) -> list[str]:
    """Return the names that need a permission for a topic: its queue's or its own, and those of its streams."""
    queue, super_stream = vhost.kafka_topics.get(topic), vhost.super_streams.get(topic)
    streams = () if super_stream is None else super_stream.streams()
    return [topic if queue is None else queue.name, *(each.name for each in streams)]


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
    operations, vhost = _operations(call), call.vhost()
    call.check(vhost.name, "configure", "group", call.params["name"])
    await operations.delete(vhost, call.params["name"])
    return NO_CONTENT


_ONE: Final = "api/amqpd/kafka/groups/{vhost}/{name}"
ROUTES: Final = (
    ApiRoute("GET", "api/amqpd/kafka/groups", Role.MONITORING, get_groups),
    ApiRoute("GET", "api/amqpd/kafka/groups/{vhost}", Role.MONITORING, get_groups),
    ApiRoute("GET", _ONE, Role.MONITORING, get_group),
    ApiRoute("DELETE", _ONE, Role.MANAGEMENT, delete_group),
    ApiRoute("POST", _ONE + "/offsets", Role.MANAGEMENT, reset_offsets),
)
