"""Handlers for operators under /api/amqpd, most of them for `amqpctl`; RabbitMQ's API has no such routes.

They stop, start, drain, reload and reset the broker, close connections, and set values that last until the next start.
Others are about backups and the cluster, and answer load balancers without a login.

A drained node refuses new connections, and closes open ones after a grace period; messages and the HTTP API remain.
`rabbitmq-upgrade drain` closes connections at once, with the same text. A reset keeps settings and the audit log, which
records it. After a crash during a reset, a second reset completes it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from amqpd.auth.internal_backend import AuthenticationRefused
from amqpd.broker.flow.alarms import REASONS
from amqpd.broker.publish.firehose import trace
from amqpd.broker.vhost import vhosts
from amqpd.broker.vhost.parameters import CLUSTER_ID, cluster_id_row
from amqpd.broker.vhost.pending import wait_done
from amqpd.management.connections import all_connections, close_reason, force_close, force_close_all, pid
from amqpd.management.definitions import DefinitionsError
from amqpd.management.diagnostics import version_item
from amqpd.management.overview import clock_state
from amqpd.management.queues import delete_and_wait, purge
from amqpd.management.request import (
    NO_CONTENT,
    ApiError,
    ApiRequest,
    ApiResponse,
    BadRequest,
    ResourceNotFound,
    Role,
    parse_int,
    reply,
)
from amqpd.management.router import ApiRoute

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


STOP_DELAY_S: Final = 0.05
PACE_MAX: Final = 1_000_000


class CannotListen(ApiError, error="cannot_listen"):
    """A port is in use, so that a listener cannot open it."""


async def ping(call: ApiRequest) -> ApiResponse:
    """Check that the broker answers."""
    return reply({"status": "ok", "node": call.node})


async def version(call: ApiRequest) -> ApiResponse:
    """Return the versions of amqpd, its build and Python."""
    return reply(version_item())


async def stop_app(call: ApiRequest) -> ApiResponse:
    """Disconnect AMQP clients and refuse new connections.

    The HTTP API stays. The answer comes when all clients are disconnected.
    """
    await call.server.stop_app()
    return NO_CONTENT


async def start_app(call: ApiRequest) -> ApiResponse:
    """Accept clients again, after stop_app."""
    if not call.server.app_running:
        await _listen(call.server.start_app)
    return NO_CONTENT


async def _listen(start: Callable[[], Awaitable[None]]) -> None:
    """Open ports by a method of the server. Raises: CannotListen."""
    try:
        await start()
    except OSError as error:
        raise CannotListen(str(error)) from error


async def stop(call: ApiRequest) -> ApiResponse:
    """Stop the broker cleanly, after this answer."""
    call.broker.loop.call_later(STOP_DELAY_S, call.server.stop)
    return reply({"pid": os.getpid()}, 202)


async def authenticate_user(call: ApiRequest) -> ApiResponse:
    """Check a user name and password."""
    name = call.text("username")
    try:
        user = await call.broker.auth.authenticate(name, call.text("password").encode(), True)
    except AuthenticationRefused:
        return reply({"authenticated": False, "user": name, "reason": "user authentication failed"})
    return reply({"authenticated": True, "user": user.name})


async def close_connection(call: ApiRequest) -> ApiResponse:
    """Close a connection, by name or by the pid in the list of connections."""
    name, wanted = call.text("name", ""), call.text("pid", "")
    if not name and not wanted:
        raise BadRequest("name or pid is required")
    for connection in all_connections(call):
        if connection.name == name or pid(call, connection.session) == wanted:
            force_close(call, connection, close_reason(call.text("reason", "")))
            return NO_CONTENT
    raise ResourceNotFound(f"no connection '{name or wanted}'")


async def close_all_connections(call: ApiRequest) -> ApiResponse:
    """Close all connections, or those of a virtual host.

    `limit`: how many (0: no limit). `per_connection_delay_ms`: pause between two.
    """
    why = close_reason(call.text("reason", ""))
    limit = parse_int("limit", call.fields().get("limit", 0), 0, PACE_MAX)
    delay_ms = parse_int("per_connection_delay_ms", call.fields().get("per_connection_delay_ms", 0), 0, PACE_MAX)
    found = all_connections(call)
    if call.fields().get("vhost") is not None:
        vhost = call.any_vhost(call.text("vhost"))
        found = [each for each in found if each.session.vhost is vhost]
    return reply({"closed": await force_close_all(call, found[:limit] if limit else found, why, delay_ms / 1000)})


async def switch_tracing(call: ApiRequest) -> ApiResponse:
    """Start or stop the firehose of a virtual host."""
    vhost = call.any_vhost(call.text("vhost", "/"))
    await wait_done(partial(trace, vhost, call.node, call.flag("on")))
    return NO_CONTENT


# -- purge and delete with the number of messages ----------------------------------------------------------------------


def _with_body_names(call: ApiRequest) -> ApiRequest:
    """Return the request with vhost and queue of the body as if they were in the path."""
    return replace(call, params={**call.params, "vhost": call.text("vhost", "/"), "queue": call.text("queue")})


async def purge_queue(call: ApiRequest) -> ApiResponse:
    """Remove all ready messages of a queue and return their number."""
    call = _with_body_names(call)
    return reply({"message_count": purge(call, call.permitted_queue("read"))})


async def delete_queue(call: ApiRequest) -> ApiResponse:
    """Delete a queue and return its number of messages."""
    call = _with_body_names(call)
    queue = call.permitted_queue("configure")
    return reply({"message_count": await delete_and_wait(call, queue, call.flag("if_unused"), call.flag("if_empty"))})


BYTES_MAX: Final = (1 << 63) - 1
CHANNEL_MAX: Final = 65535
RELATIVE_MAX: Final = 1000.0
USERS_MAX: Final = 1000


async def memory_high_watermark(call: ApiRequest) -> ApiResponse:
    """Set the memory limit above which publishers are blocked.

    Body: `share` of the memory, or `bytes`. The alarm is checked at once.
    """
    alarms, fields = call.broker.alarms, call.fields()
    if "bytes" in fields:
        alarms.limit_memory_bytes(parse_int("bytes", fields["bytes"], 1, BYTES_MAX))
    else:
        alarms.limit_memory_share(_fraction(call, "share", 1))
    alarms.check()
    return reply({"limit_bytes": alarms.memory_limit_bytes})


async def disk_free_limit(call: ApiRequest) -> ApiResponse:
    """Set the limit of free disk space below which publishers are blocked.

    Body: `bytes`, or `mem_relative`, a multiple of the memory. The alarm is checked at once.
    """
    alarms, fields = call.broker.alarms, call.fields()
    if "bytes" in fields:
        limit_bytes = parse_int("bytes", fields["bytes"], 0, BYTES_MAX)
    else:
        limit_bytes = int(alarms.memory_total_bytes * _fraction(call, "mem_relative", RELATIVE_MAX))
    alarms.disk_free_limit_bytes = limit_bytes
    alarms.check()
    return reply({"limit_bytes": limit_bytes})


def _fraction(call: ApiRequest, name: str, most: float) -> float:
    """Return a number of the body from 0 to `most`. Raises: BadRequest."""
    value = call.fields().get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= most:
        raise BadRequest(f"{name} must be a number from 0 to {most:g}")
    return float(value)


async def set_alarm(call: ApiRequest) -> ApiResponse:
    """Raise an alarm manually."""
    call.broker.alarms.raise_by_hand(_kind(call))
    return NO_CONTENT


async def clear_alarm(call: ApiRequest) -> ApiResponse:
    """Clear an alarm that was raised manually. It stays if memory or disk space is low."""
    call.broker.alarms.clear_by_hand(_kind(call))
    return NO_CONTENT


def _kind(call: ApiRequest) -> str:
    """Return the alarm of the path. Raises: ResourceNotFound."""
    kind = call.params["name"]
    if kind not in REASONS:
        raise ResourceNotFound(f"there is no alarm '{kind}'; alarms are memory and disk")
    return kind


async def get_clock(call: ApiRequest) -> ApiResponse:
    """Return whether the broker holds back a jump of the wall clock. `jump_s` is negative if the clock went back."""
    return reply(clock_state(call))


async def accept_clock(call: ApiRequest) -> ApiResponse:
    """Accept the wall clock. Retention, time to live and delays follow it from now on."""
    watch = call.broker.storage.clock_watch
    watch.accept()
    watch.save()
    return reply(clock_state(call))


async def set_channel_max(call: ApiRequest) -> ApiResponse:
    """Set the channel limit for new connections. 0 means no limit."""
    call.broker.channel_max = parse_int("value", call.fields().get("value"), 0, CHANNEL_MAX)
    return NO_CONTENT


async def get_loopback_users(call: ApiRequest) -> ApiResponse:
    """List the users that may log in only from this machine."""
    return reply({"value": sorted(call.broker.auth.loopback_users)})


async def set_loopback_users(call: ApiRequest) -> ApiResponse:
    """Set the users that may log in only from a loopback address, from the next login on."""
    value = call.fields().get("value")
    if not isinstance(value, list) or len(value) > USERS_MAX or not all(isinstance(name, str) for name in value):
        raise BadRequest(f"value must be a list of at most {USERS_MAX} names")
    call.broker.auth.loopback_users = frozenset(value)
    return NO_CONTENT


FOLDER: Final = ".backup"
METADATA: Final = "metadata.sqlite"


class NotOurs(ApiError, status=409, error="other_database"):
    """The metadata are in an external database, which needs its own backup, or in Kafka."""


async def copy_metadata(call: ApiRequest) -> ApiResponse:
    """Copy the metadata database for a backup.

    Returns `{data_dir, path}`. amqpctl has created the folder. Raises: NotOurs.
    """
    broker = call.broker
    if broker.storage.replicates:
        raise NotOurs("a cluster's messages and metadata are in Kafka, with copies: use export_definitions")
    if broker.settings.metadata.url:
        raise NotOurs("the metadata are in an external database (metadata.url): back up that database separately")
    data_dir = broker.settings.data_dir.absolute()
    path = data_dir / FOLDER / METADATA
    broker.catalogue.stored_offsets.flush()
    await wait_done(partial(broker.metadata.copy, path))
    return reply({"data_dir": str(data_dir), "path": str(path)})


async def get_cluster(call: ApiRequest) -> ApiResponse:
    """Return the nodes of the cluster and the virtual hosts that each serves.

    Without a cluster, `clustered` is false and only `node` follows.
    """
    if call.cluster is None:
        return reply({"clustered": False, "node": call.node})
    found = call.cluster.status()
    found["vhosts"] = [each for each in found["vhosts"] if call.may_see(each["name"])]
    return reply({"clustered": True, **found})


async def move_vhost(call: ApiRequest) -> ApiResponse:
    """Move a virtual host to a node, with all virtual hosts of its slot.

    Answers with their names when the node serves them.
    """
    name, node = call.text("vhost"), call.text("node")
    if call.cluster is None:
        raise BadRequest("this node is not in a cluster")
    return reply({"vhosts": await call.cluster.move(name, node), "node": node})


async def rebalance(call: ApiRequest) -> ApiResponse:
    """Move virtual hosts so that all nodes serve about the same number.

    RabbitMQ moves queue leaders; here whole slots move. Does nothing without a cluster.
    """
    if call.cluster is None:
        return NO_CONTENT
    return reply({"moves": await call.cluster.rebalance()})


async def suspend(call: ApiRequest) -> ApiResponse:
    """Stop listening for AMQP clients and keep open connections.

    RabbitMQ: suspended listeners are still listed. The HTTP API stays open, because it must receive the resume
    request.
    """
    await call.server.suspend_listeners()
    return NO_CONTENT


async def resume(call: ApiRequest) -> ApiResponse:
    """Accept clients again, after suspend_listeners."""
    await _listen(call.server.resume_listeners)
    return NO_CONTENT


async def close_user_connections(call: ApiRequest) -> ApiResponse:
    """Close all connections of a user and return their number.

    RabbitMQ: an unknown user is no error.
    """
    name = call.text("username")
    found = [each for each in all_connections(call) if each.session.user.name == name]
    return reply({"closed": await force_close_all(call, found, close_reason(call.text("reason", "")))})


log = logging.getLogger(__name__)

GRACE_MAX_S: Final = 3600.0
POLL_S: Final = 0.1
DRAIN_S: Final = 120.0
"""Time limit for moving the vhosts of a cluster node to other nodes."""
WHY: Final = "Node was put into maintenance mode"


async def drain(call: ApiRequest) -> ApiResponse:
    """Drain the node for maintenance, refusing new connections and closing open ones after `grace_s` seconds.

    Answers when the close frames are queued.
    """
    grace_s = call.fields().get("grace_s", 0)
    if isinstance(grace_s, bool) or not isinstance(grace_s, int | float) or not 0 <= grace_s <= GRACE_MAX_S:
        raise BadRequest(f"grace_s must be a number of seconds from 0 to {GRACE_MAX_S:g}")
    server = call.server
    server.is_drained = True
    await server.suspend_listeners()
    count = len(all_connections(call))
    log.info("drained: new connections are refused; %d connections are closed after %g s", count, grace_s)
    deadline = call.broker.loop.time() + grace_s
    while _client_count(call) and server.is_drained and call.broker.loop.time() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)
    if not server.is_drained:  # `revive` was called meanwhile
        return reply({"closed": 0})
    if call.cluster is not None:
        await call.cluster.drain(DRAIN_S)  # its vhosts move to other nodes, and their clients with them
    router = server.connections.vhost_router
    closed = 0 if router is None else router.force_all(WHY)
    return reply({"closed": closed + await force_close_all(call, all_connections(call), WHY)})


def _client_count(call: ApiRequest) -> int:
    """Return the number of clients of this node, including those whose vhost another node serves."""
    router = call.server.connections.vhost_router
    return len(all_connections(call)) + (0 if router is None else router.count())


async def revive(call: ApiRequest) -> ApiResponse:
    """Accept clients again on the same ports, after drain."""
    await _listen(call.server.resume_listeners)
    if call.cluster is not None:
        call.cluster.undrain()
    log.info("revived: clients can connect again")
    return NO_CONTENT


async def live(_call: ApiRequest) -> ApiResponse:
    """Check that the broker's event loop answers."""
    return reply({"status": "ok"})


async def ready(call: ApiRequest) -> ApiResponse:
    """Check that clients can connect, else answer 503 with the reason."""
    reason_text = call.server.not_ready_reason
    return reply({"status": "failed", "reason": reason_text}, 503) if reason_text else reply({"status": "ok"})


ASKED_BY: Final = "amqpctl reload"


class CannotReload(ApiError, status=409, error="cannot_reload"):
    """Reload failed. Settings change all or not at all, and so do the definitions of one file."""


async def reload(call: ApiRequest) -> ApiResponse:
    """Read the settings again.

    Returns `{changed, waiting, imported}`: settings that were applied, settings that need a restart, and the source
    of definitions that were imported again. Cost: reads files, and 5 ms per TLS listener. Raises: CannotReload,
    MetadataError.
    """
    found = call.server.reload(ASKED_BY)
    if found.problem:
        raise CannotReload(found.problem)
    try:
        imported = await call.server.reload_definitions(ASKED_BY)
    except DefinitionsError as error:
        raise CannotReload(f"the settings were applied, the definitions were not: {error}") from error
    return reply({"changed": found.changed, "waiting": found.waiting, "imported": imported or None})


class ApplicationRunning(ApiError, status=409, error="app_running"):
    """AMQP is running, but the request requires that it is stopped."""


async def reset(call: ApiRequest) -> ApiResponse:
    """Delete all virtual hosts, users and messages, as before the first start.

    Raises: ApplicationRunning, BadRequest in a cluster.
    """
    if call.cluster is not None:
        raise BadRequest("a node in a cluster cannot be reset: vhosts and users belong to the cluster")
    if call.server.app_running:
        raise ApplicationRunning("the app is running; stop it with amqpctl stop_app")
    broker = call.broker
    auth, first = broker.auth, broker.settings.default
    log.warning("reset: all vhosts, users and messages are being deleted")
    for vhost in list(broker.vhosts.values()):
        if vhost.protected:
            await wait_done(partial(vhosts.protect, vhost, False))
        await wait_done(partial(vhosts.delete, broker.vhosts, vhost))
    async with auth.change_lock:
        for name, _ in broker.user_limits.all():
            await wait_done(partial(broker.user_limits.declare, name, {}))
    for name, _ in broker.global_parameters.all():
        await wait_done(partial(broker.global_parameters.clear, name))
    await wait_done(partial(broker.global_parameters.declare, CLUSTER_ID, json.loads(cluster_id_row().value)))
    await wait_done(partial(vhosts.declare, broker.vhosts, first.vhost, "Default virtual host", (), "classic"))
    for row in auth.users():
        if row.name != first.user:
            await auth.delete_user(row.name)
    # The first user is replaced, not deleted, so that one user can always log in. Deleting the vhosts has deleted
    # their permissions.
    await auth.add_user(first.user, first.password.encode(), tags=first.tags, replace=True)
    await auth.set_permissions(first.user, first.vhost, first.configure, first.write, first.read)
    log.warning("reset: done; start_app accepts clients again")
    return NO_CONTENT


ROUTES: Final = (
    ApiRoute("GET", "api/amqpd/ping", Role.MANAGEMENT, ping),
    ApiRoute("GET", "api/amqpd/version", Role.MANAGEMENT, version),
    ApiRoute("POST", "api/amqpd/stop_app", Role.ADMINISTRATOR, stop_app),
    ApiRoute("POST", "api/amqpd/start_app", Role.ADMINISTRATOR, start_app),
    ApiRoute("POST", "api/amqpd/stop", Role.ADMINISTRATOR, stop),
    ApiRoute("POST", "api/amqpd/authenticate_user", Role.ADMINISTRATOR, authenticate_user, quiet=True),
    ApiRoute("POST", "api/amqpd/close_connection", Role.ADMINISTRATOR, close_connection),
    ApiRoute("POST", "api/amqpd/close_all_connections", Role.ADMINISTRATOR, close_all_connections),
    ApiRoute("POST", "api/amqpd/trace", Role.ADMINISTRATOR, switch_tracing),
    ApiRoute("POST", "api/amqpd/purge_queue", Role.MANAGEMENT, purge_queue),
    ApiRoute("POST", "api/amqpd/delete_queue", Role.MANAGEMENT, delete_queue),
    ApiRoute("PUT", "api/amqpd/memory_high_watermark", Role.ADMINISTRATOR, memory_high_watermark),
    ApiRoute("PUT", "api/amqpd/disk_free_limit", Role.ADMINISTRATOR, disk_free_limit),
    ApiRoute("PUT", "api/amqpd/alarms/{name}", Role.ADMINISTRATOR, set_alarm),
    ApiRoute("DELETE", "api/amqpd/alarms/{name}", Role.ADMINISTRATOR, clear_alarm),
    ApiRoute("GET", "api/amqpd/clock", Role.MONITORING, get_clock),
    ApiRoute("PUT", "api/amqpd/clock", Role.ADMINISTRATOR, accept_clock),
    ApiRoute("PUT", "api/amqpd/channel_max", Role.ADMINISTRATOR, set_channel_max),
    ApiRoute("GET", "api/amqpd/loopback_users", Role.ADMINISTRATOR, get_loopback_users),
    ApiRoute("PUT", "api/amqpd/loopback_users", Role.ADMINISTRATOR, set_loopback_users),
    ApiRoute("POST", "api/amqpd/backup_metadata", Role.ADMINISTRATOR, copy_metadata),
    ApiRoute("GET", "api/amqpd/cluster", Role.MONITORING, get_cluster),
    ApiRoute("POST", "api/amqpd/move_vhost", Role.ADMINISTRATOR, move_vhost),
    ApiRoute("POST", "api/amqpd/rebalance", Role.ADMINISTRATOR, rebalance),
    ApiRoute("POST", "api/amqpd/suspend_listeners", Role.ADMINISTRATOR, suspend),
    ApiRoute("POST", "api/amqpd/resume_listeners", Role.ADMINISTRATOR, resume),
    ApiRoute("POST", "api/amqpd/close_user_connections", Role.ADMINISTRATOR, close_user_connections),
    ApiRoute("GET", "health/live", Role.PUBLIC, live),
    ApiRoute("GET", "health/ready", Role.PUBLIC, ready),
    ApiRoute("POST", "api/amqpd/drain", Role.ADMINISTRATOR, drain),
    ApiRoute("POST", "api/amqpd/revive", Role.ADMINISTRATOR, revive),
    ApiRoute("POST", "api/amqpd/reload", Role.ADMINISTRATOR, reload),
    ApiRoute("POST", "api/amqpd/reset", Role.ADMINISTRATOR, reset),
)
