"""Handlers for vhosts and for limits of vhosts and users.

RabbitMQ's API sets one limit per request. `amqpctl` sets several at once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from amqpd.broker.publish.firehose import trace
from amqpd.broker.queue.log_opener import opened
from amqpd.broker.queue.types import KINDS
from amqpd.broker.vhost import limits, vhosts
from amqpd.broker.vhost.pending import wait_done
from amqpd.channel.channel import channel_counts
from amqpd.management.listing import listing, object_reply, requested_ranges
from amqpd.management.request import (
    CREATED,
    NO_CONTENT,
    ApiRequest,
    ApiResponse,
    BadRequest,
    NotAuthorised,
    ResourceExists,
    Role,
    clean_name,
)
from amqpd.management.router import ApiRoute
from amqpd.management.stats import VHOST, VhostSum, connection_octets, queue_stats, split_stats
from amqpd.management.time_slice import TimeSlice
from amqpd.management.users import check_user, permission_item, set_user_limits, tags_of, topic_item

if TYPE_CHECKING:
    from amqpd.broker.vhost.vhost import VHost


def metadata_item(vhost: VHost) -> dict[str, Any]:
    """Return the vhost's settings again. RabbitMQ: 4.x has the protection here."""
    return {
        "description": vhost.description,
        "tags": list(vhost.tags),
        "default_queue_type": vhost.default_queue_type,
        "protected_from_deletion": vhost.protected,
    }


async def vhost_item(call: ApiRequest, vhost: VHost, slices: TimeSlice) -> dict[str, Any]:
    """Return a vhost with its message counts. Cost: visits every queue of it."""
    delayed = 0
    found = VhostSum(vhost)
    for queue in list(vhost.queues.values()):
        await opened(queue)
        delayed += queue.delayed_count
        found.add_queue(queue_stats(queue))
        await slices.yield_if_due()
    for connection in list(call.server.connections):
        if connection.session.vhost is vhost:
            found.add_connection(connection_octets(connection))
            for channel in connection.channels.all():
                if not channel.closing:
                    found.add_channel(channel_counts(channel))
        await slices.yield_if_due()
    shown = split_stats(call.rates.stats_of_counts(vhost, VHOST, found.counts(), requested_ranges(call.query)))
    return {
        "name": vhost.name,
        **metadata_item(vhost),
        "metadata": metadata_item(vhost),
        "tracing": vhost.firehose is not None,
        "cluster_state": {call.node: "running"},
        **shown.lengths,
        "messages_delayed": call.broker.delays.count_of(vhost.name),
        "messages_delayed_retry": delayed,
        **shown.octets,
        "message_stats": shown.stats,
    }


async def get_vhosts(call: ApiRequest) -> ApiResponse:
    """List virtual hosts."""
    slices = TimeSlice()
    items = [await vhost_item(call, vhost, slices) for vhost in call.vhosts()]
    return await listing(call, items, lambda item: item, lambda item: str(item["name"]))


async def get_vhost(call: ApiRequest) -> ApiResponse:
    """Return one virtual host."""
    return object_reply(call, await vhost_item(call, call.vhost(), TimeSlice()))


async def put_vhost(call: ApiRequest) -> ApiResponse:
    """Create or change a virtual host.

    Answers 201 for a new one, 204 for a changed one. Fields that are not given keep their values. With `If-Match: *`,
    412 if it does not exist.
    """
    name = call.params["vhost"]
    if clean_name(name, "a vhost") != name:
        raise BadRequest("the name of a vhost must not contain line breaks")
    broker = call.broker
    vhost = broker.vhosts.get(name)
    if vhost is None and call.headers.get("If-Match") == "*":
        raise ResourceExists(f"vhost '{name}' does not exist")
    description = call.text("description", vhost.description if vhost is not None else "")
    given = call.fields().get("tags")
    tags = tags_of(given) if given is not None else list(vhost.tags) if vhost is not None else []
    kind = call.text("default_queue_type", vhost.default_queue_type if vhost is not None else "classic")
    if kind == "undefined":  # RabbitMQ: means no value
        kind = "classic"
    if kind not in KINDS:
        raise BadRequest(f"default_queue_type must be one of {', '.join(KINDS)}, not '{kind}'")
    protected = call.flag("protected_from_deletion", vhost is not None and vhost.protected)
    traced = call.flag("tracing", vhost is not None and vhost.firehose is not None)
    if vhost is None:
        await wait_done(partial(vhosts.declare, broker.vhosts, name, description, tags, kind))
        if traced and name in broker.vhosts:
            await wait_done(partial(trace, broker.vhosts[name], call.node, True))
        if protected and name in broker.vhosts:
            await _set_protection(broker.vhosts[name], True)
        if not call.caller.operator:
            # RabbitMQ: the user that creates a vhost over HTTP gets permissions; `add_vhost` grants none
            await broker.auth.set_permissions(call.caller.user.name, name, ".*", ".*", ".*")
        return CREATED
    await wait_done(partial(vhosts.change, broker.vhosts, vhost, description, tags, kind))
    await _set_protection(vhost, protected)
    await wait_done(partial(trace, vhost, call.node, traced))
    return NO_CONTENT


async def delete_vhost(call: ApiRequest) -> ApiResponse:
    """Delete a virtual host with everything in it."""
    await wait_done(partial(vhosts.delete, call.broker.vhosts, call.any_vhost()))
    return NO_CONTENT


async def protect_vhost(call: ApiRequest) -> ApiResponse:
    """Protect a virtual host from deletion."""
    await _set_protection(call.any_vhost(), True)
    return NO_CONTENT


async def release_vhost(call: ApiRequest) -> ApiResponse:
    """Remove the protection of a virtual host from deletion."""
    await _set_protection(call.any_vhost(), False)
    return NO_CONTENT


async def _set_protection(vhost: VHost, on: bool) -> None:
    if vhost.protected != on:
        await wait_done(partial(vhosts.protect, vhost, on))


async def get_vhost_permissions(call: ApiRequest) -> ApiResponse:
    """List the permissions of all users in the virtual host."""
    rows = call.broker.auth.permissions(vhost=call.vhost().name)
    return await listing(call, rows, permission_item, lambda row: row.user)


async def get_vhost_topic_permissions(call: ApiRequest) -> ApiResponse:
    """List the topic permissions of all users in the virtual host."""
    rows = call.broker.auth.topic_permissions(vhost=call.vhost().name)
    return await listing(call, rows, topic_item, lambda row: row.user)


async def get_vhost_limits(call: ApiRequest) -> ApiResponse:
    """List the limits of all virtual hosts that have any."""
    items = [{"vhost": vhost.name, "value": vhost.limits.value} for vhost in call.vhosts() if vhost.limits.value]
    return await listing(call, items, lambda item: item, lambda item: str(item["vhost"]))


async def put_vhost_limit(call: ApiRequest) -> ApiResponse:
    """Set a limit of the virtual host."""
    vhost = call.any_vhost()
    value = {**vhost.limits.value, call.params["name"]: call.required("value")}
    await wait_done(partial(limits.declare, vhost, limits.PARAMETER, value))
    return NO_CONTENT


async def delete_vhost_limit(call: ApiRequest) -> ApiResponse:
    """Clear a limit of the virtual host. RabbitMQ: no error if it is not set."""
    vhost = call.any_vhost()
    value = {name: limit for name, limit in vhost.limits.value.items() if name != call.params["name"]}
    if value != vhost.limits.value:
        await wait_done(partial(limits.declare, vhost, limits.PARAMETER, value))
    return NO_CONTENT


async def get_user_limits(call: ApiRequest) -> ApiResponse:
    """List the limits of users. A caller without the tag monitoring sees only its own."""
    only = call.params.get("user")
    own = call.caller.user.name
    if only != own and not call.caller.has(Role.MONITORING):
        if only is not None:
            raise NotAuthorised("Not monitoring user")
        only = own
    if only is not None:
        call.broker.auth.user(only)
    items = [{"user": user, "value": value} for user, value in call.broker.user_limits.all() if only in (None, user)]
    return await listing(call, items, lambda item: item, lambda item: str(item["user"]))


async def put_user_limit(call: ApiRequest) -> ApiResponse:
    """Set a limit of a user."""
    check_user(call, call.params["user"])
    await set_user_limits(call, {call.params["name"]: call.required("value")})
    return NO_CONTENT


async def put_user_limits(call: ApiRequest) -> ApiResponse:
    """Set several limits of a user and keep the others. `amqpctl set_user_limits` uses it."""
    value = call.required("value")
    if not isinstance(value, dict):
        raise BadRequest("value must be an object")
    await set_user_limits(call, value)
    return NO_CONTENT


async def delete_user_limit(call: ApiRequest) -> ApiResponse:
    """Clear one limit of a user, or all without a name. RabbitMQ: no error if it is not set."""
    user, user_limits = call.params["user"], call.broker.user_limits
    async with call.broker.auth.change_lock:
        call.broker.auth.user(user)
        name = call.params.get("name")
        value = {other: limit for other, limit in user_limits.get(user).items() if name not in (None, other)}
        if value != user_limits.get(user):
            await wait_done(partial(user_limits.declare, user, value))
    return NO_CONTENT


_VHOST: Final = "api/vhost-limits"
_USER: Final = "api/user-limits"


ROUTES: Final = (
    ApiRoute("GET", "api/vhosts", Role.MANAGEMENT, get_vhosts),
    ApiRoute("GET", "api/vhosts/{vhost}", Role.MANAGEMENT, get_vhost),
    ApiRoute("PUT", "api/vhosts/{vhost}", Role.ADMINISTRATOR, put_vhost),
    ApiRoute("DELETE", "api/vhosts/{vhost}", Role.ADMINISTRATOR, delete_vhost),
    ApiRoute("POST", "api/vhosts/{vhost}/deletion/protection", Role.ADMINISTRATOR, protect_vhost),
    ApiRoute("PUT", "api/vhosts/{vhost}/deletion/protection", Role.ADMINISTRATOR, protect_vhost),
    ApiRoute("DELETE", "api/vhosts/{vhost}/deletion/protection", Role.ADMINISTRATOR, release_vhost),
    ApiRoute("GET", "api/vhosts/{vhost}/permissions", Role.ADMINISTRATOR, get_vhost_permissions),
    ApiRoute("GET", "api/vhosts/{vhost}/topic-permissions", Role.ADMINISTRATOR, get_vhost_topic_permissions),
    ApiRoute("GET", _VHOST, Role.MANAGEMENT, get_vhost_limits),
    ApiRoute("GET", f"{_VHOST}/{{vhost}}", Role.MANAGEMENT, get_vhost_limits),
    ApiRoute("PUT", f"{_VHOST}/{{vhost}}/{{name}}", Role.ADMINISTRATOR, put_vhost_limit),
    ApiRoute("DELETE", f"{_VHOST}/{{vhost}}/{{name}}", Role.ADMINISTRATOR, delete_vhost_limit),
    ApiRoute("GET", _USER, Role.MANAGEMENT, get_user_limits),
    ApiRoute("GET", f"{_USER}/{{user}}", Role.MANAGEMENT, get_user_limits),
    ApiRoute("PUT", f"{_USER}/{{user}}/{{name}}", Role.ADMINISTRATOR, put_user_limit),
    ApiRoute("DELETE", f"{_USER}/{{user}}/{{name}}", Role.ADMINISTRATOR, delete_user_limit),
    ApiRoute("PUT", "api/amqpd/user-limits/{user}", Role.ADMINISTRATOR, put_user_limits),
    ApiRoute("DELETE", "api/amqpd/user-limits/{user}", Role.ADMINISTRATOR, delete_user_limit),
)
