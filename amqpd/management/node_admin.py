"""What `amqpctl` needs beyond RabbitMQ's API, under /api/amqpd: stop and start, closing connections.

Limits of memory and disk, alarms by hand, the clock, and what else may be changed until the next start.

What is for good is a setting. For operators, and for clients' own test suites (`amqpctl eval`).

What `amqpctl backup` asks of the broker: a copy of the metadata, which nobody else can read while it runs.

It is written by the metadata's own thread, behind every change that was submitted before, to `.backup/metadata.sqlite`
in the data directory; the rest of a backup is files that amqpctl reads by itself. rabbit: has nothing like it.

The cluster: who is in it, who runs what, and vhosts that an operator wants elsewhere; a node by itself has none.

Listeners that let nobody in for a while, and the connections of one user: what `amqpctl suspend_listeners`,
`resume_listeners` and `close_all_user_connections` ask for.

Maintenance: `amqpctl drain` and `revive`, and what a load balancer or Kubernetes asks without a password.

Drained, a broker lets no client in and has closed the connections there were, after a grace in which they may go by
themselves; it keeps its messages, the admin API stays, and so it is until `revive` or a start. rabbit:
`rabbitmq-upgrade drain` closes them at once, with the same text, and forgets it at a restart.

`/health/live`: the loop answers. `/health/ready`: clients can connect; 503 before the listeners are there, after
`stop_app` and `suspend_listeners`, while it is drained, while it stops, and while a node of a cluster reaches neither
Kafka nor another node. Neither says more than that.

The settings read again, as SIGHUP does, for `amqpctl reload`.

`amqpctl reset`: a broker as after its first start. Everything declared goes with its messages, every user too.

The app has to be stopped, as in RabbitMQ, so nobody is connected. What stays: the settings, and the audit log, which
then says who did it. A crash in the middle leaves some of it: the next `reset` ends it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from functools import partial
from typing import TYPE_CHECKING, Final

from amqpd.auth.internal_backend import AuthenticationRefused, NoSuchVhost
from amqpd.broker.flow.alarms import REASONS
from amqpd.broker.publish.firehose import trace
from amqpd.broker.vhost import vhosts
from amqpd.broker.vhost.parameters import CLUSTER_ID, cluster_id_row
from amqpd.broker.vhost.pending import wait_done
from amqpd.management.connections import pid, reason, tell_forced
from amqpd.management.definitions import DefinitionsError
from amqpd.management.diagnostics import version_item
from amqpd.management.overview import clock_state
from amqpd.management.queues import drop, purge
from amqpd.management.request import (
    NO_CONTENT,
    ApiError,
    ApiRequest,
    ApiResponse,
    BadRequest,
    ClusterControl,
    NoSuchNode,
    NotMoved,
    ResourceNotFound,
    Role,
    Unavailable,
    number,
    reply,
)
from amqpd.management.router import ApiRoute
from amqpd.management.time_slice import TimeSlice

if TYPE_CHECKING:
    from amqpd.connection.registry import ConnectionRegistry


STOP_DELAY_S: Final = 0.05
PACE_MAX: Final = 1_000_000


class CannotListen(ApiError):
    """start_app: a port is taken by now."""

    status = 500
    error = "cannot_listen"


async def ping(call: ApiRequest) -> ApiResponse:
    """Whether the broker answers."""
    return reply({"status": "ok", "node": call.node})


async def version(call: ApiRequest) -> ApiResponse:
    """Version of amqpd, of the build, of Python."""
    return reply(version_item(call))


async def stop_app(call: ApiRequest) -> ApiResponse:
    """Disconnects AMQP clients and lets none in; the admin API stays. Answers when the clients are gone."""
    await call.server.stop_app()
    return NO_CONTENT


async def start_app(call: ApiRequest) -> ApiResponse:
    """Lets clients in again, after stop_app."""
    if not call.server.app_running:
        try:
            await call.server.start_app()
        except OSError as error:
            raise CannotListen(str(error)) from error
    return NO_CONTENT


async def stop(call: ApiRequest) -> ApiResponse:
    """The process ends cleanly, after this answer."""
    call.broker.loop.call_later(STOP_DELAY_S, call.server.stop)
    return reply({"pid": os.getpid()}, 202)


async def authenticate_user(call: ApiRequest) -> ApiResponse:
    """Whether name and password are right."""
    name = call.text("username")
    try:
        user = await call.broker.auth.authenticate(name, call.text("password").encode(), True)
    except AuthenticationRefused:
        return reply({"authenticated": False, "user": name, "reason": "user authentication failed"})
    return reply({"authenticated": True, "user": user.name})


async def close_connection(call: ApiRequest) -> ApiResponse:
    """By pid, as a list of connections shows it, or by name."""
    name, wanted = call.text("name", ""), call.text("pid", "")
    if not name and not wanted:
        raise BadRequest("name or pid is needed")
    for connection in call.server.connections:
        if connection.name == name or pid(call, connection.session) == wanted:
            why = reason(call.text("reason", ""))
            tell_forced(call, connection, why)
            connection.control.force(why)
            call.broker.turn.schedule()
            return NO_CONTENT
    raise ResourceNotFound(f"no connection '{name or wanted}'")


async def close_all_connections(call: ApiRequest) -> ApiResponse:
    """Closes all connections, or those of a vhost; at most `limit` (0: no limit), with a pause between two."""
    why = reason(call.text("reason", ""))
    limit = number("limit", call.fields().get("limit", 0), 0, PACE_MAX)
    delay_ms = number("per_connection_delay_ms", call.fields().get("per_connection_delay_ms", 0), 0, PACE_MAX)
    found = list(call.server.connections)
    if call.fields().get("vhost") is not None:
        name = call.text("vhost")
        if not call.broker.vhosts.exists(name):
            raise ResourceNotFound(f"vhost '{name}' does not exist")
        found = [each for each in found if each.session.vhost.name == name]
    closed = 0
    slices = TimeSlice()
    for connection in found[:limit] if limit else found:
        if call.server.connections.by_name.get(connection.name) is connection:
            tell_forced(call, connection, why)
            connection.control.force(why)
            closed += 1
        if delay_ms:
            await asyncio.sleep(delay_ms / 1000)
        elif slices.expired:
            await slices.yield_loop()
    call.broker.turn.schedule()
    return reply({"closed": closed})


async def switch_tracing(call: ApiRequest) -> ApiResponse:
    """The firehose of a vhost, `on` or not."""
    name = call.text("vhost", "/")
    vhost = call.broker.vhosts.get(name)
    if vhost is None:
        raise ResourceNotFound(f"vhost '{name}' does not exist")
    await wait_done(partial(trace, vhost, call.node, call.flag("on")))
    return NO_CONTENT


# -- queues, with an answer that says how many messages went -----------------------------------------------------------


def _named(call: ApiRequest) -> ApiRequest:
    """The same call with the body's vhost and queue as if they stood in the path."""
    params = {**call.params, "vhost": call.text("vhost", "/"), "queue": call.text("queue")}
    return ApiRequest(
        call.broker, call.server, call.rates, call.caller, call.method, params, call.query, call.headers, call.body
    )


async def purge_queue(call: ApiRequest) -> ApiResponse:
    """Drops all messages that are ready, and counts them."""
    call = _named(call)
    vhost = call.vhost()
    call.check(vhost.name, "read", "queue", call.params["queue"])
    queue = call.queue()
    vhost.check_exclusive(queue, None)
    return reply({"message_count": purge(call, queue)})


async def delete_queue(call: ApiRequest) -> ApiResponse:
    """Deletes the queue, and counts its messages."""
    call = _named(call)
    vhost = call.vhost()
    call.check(vhost.name, "configure", "queue", call.params["queue"])
    queue = call.queue()
    vhost.check_exclusive(queue, None)
    return reply({"message_count": await drop(call, queue, call.flag("if_unused"), call.flag("if_empty"))})


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
)


BYTES_MAX: Final = (1 << 63) - 1
CHANNEL_MAX: Final = 65535
RELATIVE_MAX: Final = 1000.0
USERS_MAX: Final = 1000


async def memory_high_watermark(call: ApiRequest) -> ApiResponse:
    """Sets the memory alarm, above which publishers have to wait: a share of the memory, or bytes. Checked at once."""
    alarms, fields = call.broker.alarms, call.fields()
    if "bytes" in fields:
        alarms.limit_memory_bytes(number("bytes", fields["bytes"], 1, BYTES_MAX))
    else:
        alarms.limit_memory_share(_fraction(call, "share", 1))
    alarms.look()
    return reply({"limit_bytes": alarms.memory_limit_bytes})


async def disk_free_limit(call: ApiRequest) -> ApiResponse:
    """Sets the disk alarm, below which publishers have to wait: bytes, or a multiple of the memory there is. Checked
    at once.
    """
    alarms, fields = call.broker.alarms, call.fields()
    if "bytes" in fields:
        limit_bytes = number("bytes", fields["bytes"], 0, BYTES_MAX)
    else:
        limit_bytes = int(alarms.memory_total_bytes * _fraction(call, "mem_relative", RELATIVE_MAX))
    alarms.disk_free_limit_bytes = limit_bytes
    alarms.look()
    return reply({"limit_bytes": limit_bytes})


def _fraction(call: ApiRequest, name: str, most: float) -> float:
    """Raises: BadRequest."""
    value = call.fields().get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= most:
        raise BadRequest(f"{name} is a number from 0 to {most:g}")
    return float(value)


async def set_alarm(call: ApiRequest) -> ApiResponse:
    """Raises an alarm by hand."""
    call.broker.alarms.raise_by_hand(_kind(call))
    return NO_CONTENT


async def clear_alarm(call: ApiRequest) -> ApiResponse:
    """Over, unless memory or disk are low indeed."""
    call.broker.alarms.clear_by_hand(_kind(call))
    return NO_CONTENT


def _kind(call: ApiRequest) -> str:
    """Raises: ResourceNotFound."""
    kind = call.params["name"]
    if kind not in REASONS:
        raise ResourceNotFound(f"there is no alarm '{kind}': memory or disk")
    return kind


async def get_clock(call: ApiRequest) -> ApiResponse:
    """Whether a jump of the wall clock is held; `jump_s` is below 0 when the clock went back."""
    return reply(clock_state(call))


async def accept_clock(call: ApiRequest) -> ApiResponse:
    """Accepts the wall clock as it is: retention, time to live and delays follow it now."""
    watch = call.broker.storage.clock_watch
    watch.accept()
    watch.save()
    return reply(clock_state(call))


async def set_channel_max(call: ApiRequest) -> ApiResponse:
    """What connections that log in from now on are offered; 0: no limit."""
    call.broker.channel_max = number("value", call.fields().get("value"), 0, CHANNEL_MAX)
    return NO_CONTENT


async def get_loopback_users(call: ApiRequest) -> ApiResponse:
    """Users who may log in from this machine only."""
    return reply({"value": sorted(call.broker.auth.loopback_users)})


async def set_loopback_users(call: ApiRequest) -> ApiResponse:
    """Who is let in from a loopback address only, from the next login on."""
    value = call.fields().get("value")
    if not isinstance(value, list) or len(value) > USERS_MAX or not all(isinstance(name, str) for name in value):
        raise BadRequest(f"value is a list of at most {USERS_MAX} names")
    call.broker.auth.loopback_users = frozenset(value)
    return NO_CONTENT


ALARM_ROUTES: Final = (
    ApiRoute("PUT", "api/amqpd/memory_high_watermark", Role.ADMINISTRATOR, memory_high_watermark),
    ApiRoute("PUT", "api/amqpd/disk_free_limit", Role.ADMINISTRATOR, disk_free_limit),
    ApiRoute("PUT", "api/amqpd/alarms/{name}", Role.ADMINISTRATOR, set_alarm),
    ApiRoute("DELETE", "api/amqpd/alarms/{name}", Role.ADMINISTRATOR, clear_alarm),
    ApiRoute("GET", "api/amqpd/clock", Role.MONITORING, get_clock),
    ApiRoute("PUT", "api/amqpd/clock", Role.ADMINISTRATOR, accept_clock),
    ApiRoute("PUT", "api/amqpd/channel_max", Role.ADMINISTRATOR, set_channel_max),
    ApiRoute("GET", "api/amqpd/loopback_users", Role.ADMINISTRATOR, get_loopback_users),
    ApiRoute("PUT", "api/amqpd/loopback_users", Role.ADMINISTRATOR, set_loopback_users),
)


FOLDER: Final = ".backup"
METADATA: Final = "metadata.sqlite"


class NotOurs(ApiError):
    """The metadata are in a database that has backups of its own."""

    status = 409
    error = "other_database"


async def copy_metadata(call: ApiRequest) -> ApiResponse:
    """The metadata as they are now -> `{data_dir, path}`; amqpctl has made the folder. Raises: NotOurs."""
    broker = call.broker
    if broker.settings.metadata.url:
        raise NotOurs("the metadata are not in the data directory (metadata.url): back up that database beside it")
    data_dir = broker.settings.data_dir.absolute()
    path = data_dir / FOLDER / METADATA
    broker.catalogue.stored_offsets.flush()
    await wait_done(partial(broker.metadata.copy, path))
    return reply({"data_dir": str(data_dir), "path": str(path)})


BACKUP_ROUTES: Final = (ApiRoute("POST", "api/amqpd/backup_metadata", Role.ADMINISTRATOR, copy_metadata),)


async def get_cluster(call: ApiRequest) -> ApiResponse:
    """Nodes of a cluster, and who serves what. `clustered` is false of a node by itself, which has nothing more to
    tell."""
    if call.cluster is None:
        return reply({"clustered": False, "node": call.node})
    found = call.cluster.status()
    found["vhosts"] = [each for each in found["vhosts"] if call.may_see(each["name"])]
    return reply({"clustered": True, **found})


async def move_vhost(call: ApiRequest) -> ApiResponse:
    """Answers when the vhost is there, and names those that went along: all of its slot."""
    name, node = call.text("vhost"), call.text("node")
    try:
        return reply({"vhosts": await _cluster(call).move(name, node), "node": node})
    except NoSuchVhost as error:
        raise ResourceNotFound(str(error)) from None
    except NoSuchNode as error:
        raise BadRequest(str(error)) from None
    except NotMoved as error:
        raise Unavailable(str(error)) from None


async def rebalance(call: ApiRequest) -> ApiResponse:
    """Moves vhosts so that all nodes serve about as many. rabbit: leaders of queues; here vhosts, by slots. A node by
    itself has nothing to even out.
    """
    if call.cluster is None:
        return NO_CONTENT
    return reply({"moves": await call.cluster.rebalance()})


def _cluster(call: ApiRequest) -> ClusterControl:
    """Raises: BadRequest."""
    if call.cluster is None:
        raise BadRequest("this broker runs as one node: it is in no cluster")
    return call.cluster


CLUSTER_ROUTES: Final = (
    ApiRoute("GET", "api/amqpd/cluster", Role.MONITORING, get_cluster),
    ApiRoute("POST", "api/amqpd/move_vhost", Role.ADMINISTRATOR, move_vhost),
    ApiRoute("POST", "api/amqpd/rebalance", Role.ADMINISTRATOR, rebalance),
)


async def suspend(call: ApiRequest) -> ApiResponse:
    """Stops listening for AMQP clients; those connected stay. rabbit: the listeners are still told of, as they are to
    come back. The admin API goes on: it has to hear so.
    """
    await call.server.suspend_listeners()
    return NO_CONTENT


async def resume(call: ApiRequest) -> ApiResponse:
    """Lets clients in again, after suspend_listeners."""
    try:
        await call.server.resume_listeners()
    except OSError as error:
        raise CannotListen(str(error)) from error
    return NO_CONTENT


async def close_user_connections(call: ApiRequest) -> ApiResponse:
    """Closes all connections of the user, and counts them.
    rabbit: nobody of that name is no error. Cost: a look at every connection, in slices."""
    name, why = call.text("username"), reason(call.text("reason", ""))
    closed = 0
    slices = TimeSlice()
    for connection in list(call.server.connections):
        here = call.server.connections.by_name.get(connection.name) is connection
        if here and connection.session.user.name == name:
            tell_forced(call, connection, why)
            connection.control.force(why)
            closed += 1
        if slices.expired:
            await slices.yield_loop()
    call.broker.turn.schedule()
    return reply({"closed": closed})


LISTENER_ROUTES: Final = (
    ApiRoute("POST", "api/amqpd/suspend_listeners", Role.ADMINISTRATOR, suspend),
    ApiRoute("POST", "api/amqpd/resume_listeners", Role.ADMINISTRATOR, resume),
    ApiRoute("POST", "api/amqpd/close_user_connections", Role.ADMINISTRATOR, close_user_connections),
)


log = logging.getLogger(__name__)

GRACE_MAX_S: Final = 3600.0
LOOK_S: Final = 0.1
DRAIN_S: Final = 120.0
"""How long the vhosts of a node in a cluster may take to go elsewhere."""
WHY: Final = "Node was put into maintenance mode"


async def drain(call: ApiRequest) -> ApiResponse:
    """Takes the node out of service: no client gets in any more; who is in has `grace_s` to go and is closed then.
    Answers when they are told so.
    """
    grace_s = call.fields().get("grace_s", 0)
    if isinstance(grace_s, bool) or not isinstance(grace_s, int | float) or not 0 <= grace_s <= GRACE_MAX_S:
        raise BadRequest(f"grace_s is a number of seconds from 0 to {GRACE_MAX_S:g}")
    server = call.server
    server.drained = True
    await server.suspend_listeners()
    log.info("drained: no client gets in; %d connections have %g s to go", len(server.connections.by_name), grace_s)
    deadline = call.broker.loop.time() + grace_s
    while _served(server.connections) and server.drained and call.broker.loop.time() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_S)
    if not server.drained:  # a `revive` meanwhile
        return reply({"closed": 0})
    if call.cluster is not None:
        try:
            await call.cluster.drain(DRAIN_S)  # its vhosts, and with them their clients, go to other nodes
        except NotMoved as error:
            raise Unavailable(str(error)) from None
    elsewhere = server.connections.elsewhere
    closed = 0 if elsewhere is None else elsewhere.force_all(WHY)
    slices = TimeSlice()
    for connection in list(server.connections):
        if server.connections.by_name.get(connection.name) is connection:
            tell_forced(call, connection, WHY)
        connection.control.force(WHY)
        closed += 1
        if slices.expired:
            call.broker.turn.schedule()
            await slices.yield_loop()
    call.broker.turn.schedule()
    return reply({"closed": closed})


def _served(connections: ConnectionRegistry) -> int:
    """Clients of this node, those that another one serves among them."""
    elsewhere = connections.elsewhere
    return len(connections.by_name) + (0 if elsewhere is None else elsewhere.count())


async def revive(call: ApiRequest) -> ApiResponse:
    """Clients get in again, on the same ports."""
    try:
        await call.server.resume_listeners()
    except OSError as error:
        raise CannotListen(str(error)) from error
    if call.cluster is not None:
        call.cluster.undrain()
    log.info("revived: clients get in again")
    return NO_CONTENT


async def live(_call: ApiRequest) -> ApiResponse:
    """The broker's loop answers."""
    return reply({"status": "ok"})


async def ready(call: ApiRequest) -> ApiResponse:
    """Clients can connect, else 503 with the reason."""
    trouble = call.server.not_ready
    return reply({"status": "failed", "reason": trouble}, 503) if trouble else reply({"status": "ok"})


MAINTENANCE_ROUTES: Final = (
    ApiRoute("GET", "health/live", Role.PUBLIC, live),
    ApiRoute("GET", "health/ready", Role.PUBLIC, ready),
    ApiRoute("POST", "api/amqpd/drain", Role.ADMINISTRATOR, drain),
    ApiRoute("POST", "api/amqpd/revive", Role.ADMINISTRATOR, revive),
)


ASKED_BY: Final = "amqpctl reload"


class CannotReload(ApiError):
    """Settings: the broker goes on with what it had, all of it. Definitions: those of one file, all or nothing."""

    status = 409
    error = "cannot_reload"


async def reload(call: ApiRequest) -> ApiResponse:
    """Reads the settings again. `{changed, waiting, imported}`: settings that are taken over, those that need a
    restart, and the definitions that
    were imported again. Cost: files are read, and for each TLS listener 5 ms. Raises: CannotReload, MetadataError.
    """
    found = call.server.reload(ASKED_BY)
    if found.problem:
        raise CannotReload(found.problem)
    try:
        imported = await call.server.reload_definitions(ASKED_BY)
    except DefinitionsError as error:
        raise CannotReload(f"the settings are taken over, the definitions are not: {error}") from error
    return reply({"changed": found.changed, "waiting": found.waiting, "imported": imported or None})


RELOAD_ROUTES: Final = (ApiRoute("POST", "api/amqpd/reload", Role.ADMINISTRATOR, reload),)


class ApplicationRunning(ApiError):
    """What asks for a stopped app got a running one."""

    status = 409
    error = "app_running"


async def reset(call: ApiRequest) -> ApiResponse:
    """Deletes everything, as before the first start. Raises: AppRuns; BadRequest of a node in a cluster."""
    if call.cluster is not None:
        raise BadRequest("the node is in a cluster, whose vhosts and users are not its own: it is not reset")
    if call.server.app_running:
        raise ApplicationRunning("the app is running; stop it with amqpctl stop_app")
    broker = call.broker
    auth, first = broker.auth, broker.settings.default
    log.warning("reset: all vhosts, users and messages go")
    for vhost in list(broker.vhosts.values()):
        if vhost.protected:
            await wait_done(partial(vhosts.protect, vhost, False))
        await wait_done(partial(vhosts.delete, broker.vhosts, vhost))
    async with auth.changing:
        for name, _ in broker.user_limits.all():
            await wait_done(partial(broker.user_limits.declare, name, {}))
    for name, _ in broker.global_parameters.all():
        await wait_done(partial(broker.global_parameters.clear, name))
    await wait_done(partial(broker.global_parameters.declare, CLUSTER_ID, json.loads(cluster_id_row().value)))
    await wait_done(partial(vhosts.declare, broker.vhosts, first.vhost, "Default virtual host", (), "classic"))
    for row in auth.users():
        if row.name != first.user:
            await auth.delete_user(row.name)
    # The first user is replaced, not deleted: at no moment is there nobody who may log in. The vhosts took their
    # permissions with them.
    await auth.add_user(first.user, first.password.encode(), tags=first.tags, replace=True)
    await auth.set_permissions(first.user, first.vhost, first.configure, first.write, first.read)
    log.warning("reset: done, start_app serves clients again")
    return NO_CONTENT


RESET_ROUTES: Final = (ApiRoute("POST", "api/amqpd/reset", Role.ADMINISTRATOR, reset),)
