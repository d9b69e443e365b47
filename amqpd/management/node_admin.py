"""What `amqpctl` needs beyond RabbitMQ's API, under /api/amqpd: stop and start, closing connections."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import Final

from amqpd.auth.internal_backend import Refused
from amqpd.broker.vhost.pending import finished
from amqpd.broker.publish.firehose import trace
from amqpd.management.request import NO_CONTENT, ApiError, BadRequest, Call, NotThere, Reply, Role, number, reply
from amqpd.management.connections import pid, reason, tell_forced
from amqpd.management.queues import drop, purge
from amqpd.management.router import Route
from amqpd.management.time_slice import Slices
from amqpd.management.status import version_item

STOP_DELAY_S: Final = 0.05
PACE_MAX: Final = 1_000_000


class CannotListen(ApiError):
    """start_app: a port is taken by now."""

    status = 500
    error = "cannot_listen"


async def ping(call: Call) -> Reply:
    """Whether the broker answers."""
    return reply({"status": "ok", "node": call.node})


async def version(call: Call) -> Reply:
    """Version of amqpd, of the build, of Python."""
    return reply(version_item(call))


async def stop_app(call: Call) -> Reply:
    """Disconnects AMQP clients and lets none in; the admin API stays. Answers when the clients are gone."""
    await call.server.stop_app()
    return NO_CONTENT


async def start_app(call: Call) -> Reply:
    """Lets clients in again, after stop_app."""
    if not call.server.app_running:
        try:
            await call.server.start_app()
        except OSError as error:
            raise CannotListen(str(error)) from error
    return NO_CONTENT


async def stop(call: Call) -> Reply:
    """The process ends cleanly, after this answer."""
    call.broker.loop.call_later(STOP_DELAY_S, call.server.stop)
    return reply({"pid": os.getpid()}, 202)


async def authenticate_user(call: Call) -> Reply:
    """Whether name and password are right."""
    name = call.text("username")
    try:
        user = await call.broker.auth.authenticate(name, call.text("password").encode(), True)
    except Refused:
        return reply({"authenticated": False, "user": name, "reason": "user authentication failed"})
    return reply({"authenticated": True, "user": user.name})


async def close_connection(call: Call) -> Reply:
    """By pid, as a list of connections shows it, or by name."""
    name, wanted = call.text("name", ""), call.text("pid", "")
    if not name and not wanted:
        raise BadRequest("name or pid is needed")
    for connection in call.server.connections:
        if connection.name == name or pid(call, connection.session) == wanted:
            why = reason(call.text("reason", ""))
            tell_forced(call, connection, why)
            connection.control.force(why)
            call.broker.turn.want()
            return NO_CONTENT
    raise NotThere(f"no connection '{name or wanted}'")


async def close_all_connections(call: Call) -> Reply:
    """Closes all connections, or those of a vhost; at most `limit` (0: no limit), with a pause between two."""
    why = reason(call.text("reason", ""))
    limit = number("limit", call.fields().get("limit", 0), 0, PACE_MAX)
    delay_ms = number("per_connection_delay_ms", call.fields().get("per_connection_delay_ms", 0), 0, PACE_MAX)
    found = list(call.server.connections)
    if call.fields().get("vhost") is not None:
        name = call.text("vhost")
        if not call.broker.vhosts.exists(name):
            raise NotThere(f"vhost '{name}' does not exist")
        found = [each for each in found if each.session.vhost.name == name]
    closed = 0
    slices = Slices()
    for connection in found[:limit] if limit else found:
        if call.server.connections.by_name.get(connection.name) is connection:
            tell_forced(call, connection, why)
            connection.control.force(why)
            closed += 1
        if delay_ms:
            await asyncio.sleep(delay_ms / 1000)
        elif slices.due:
            await slices.rest()
    call.broker.turn.want()
    return reply({"closed": closed})


async def switch_tracing(call: Call) -> Reply:
    """The firehose of a vhost, `on` or not."""
    name = call.text("vhost", "/")
    vhost = call.broker.vhosts.get(name)
    if vhost is None:
        raise NotThere(f"vhost '{name}' does not exist")
    await finished(partial(trace, vhost, call.node, call.flag("on")))
    return NO_CONTENT


# -- queues, with an answer that says how many messages went -----------------------------------------------------------


def _named(call: Call) -> Call:
    """The same call with the body's vhost and queue as if they stood in the path."""
    params = {**call.params, "vhost": call.text("vhost", "/"), "queue": call.text("queue")}
    return Call(
        call.broker, call.server, call.rates, call.caller, call.method, params, call.query, call.headers, call.body
    )


async def purge_queue(call: Call) -> Reply:
    """Drops all messages that are ready, and counts them."""
    call = _named(call)
    vhost = call.vhost()
    call.check(vhost.name, "read", "queue", call.params["queue"])
    queue = call.queue()
    vhost.check_exclusive(queue, None)
    return reply({"message_count": purge(call, queue)})


async def delete_queue(call: Call) -> Reply:
    """Deletes the queue, and counts its messages."""
    call = _named(call)
    vhost = call.vhost()
    call.check(vhost.name, "configure", "queue", call.params["queue"])
    queue = call.queue()
    vhost.check_exclusive(queue, None)
    return reply({"message_count": await drop(call, queue, call.flag("if_unused"), call.flag("if_empty"))})


ROUTES: Final = (
    Route("GET", "api/amqpd/ping", Role.MANAGEMENT, ping),
    Route("GET", "api/amqpd/version", Role.MANAGEMENT, version),
    Route("POST", "api/amqpd/stop_app", Role.ADMINISTRATOR, stop_app),
    Route("POST", "api/amqpd/start_app", Role.ADMINISTRATOR, start_app),
    Route("POST", "api/amqpd/stop", Role.ADMINISTRATOR, stop),
    Route("POST", "api/amqpd/authenticate_user", Role.ADMINISTRATOR, authenticate_user, quiet=True),
    Route("POST", "api/amqpd/close_connection", Role.ADMINISTRATOR, close_connection),
    Route("POST", "api/amqpd/close_all_connections", Role.ADMINISTRATOR, close_all_connections),
    Route("POST", "api/amqpd/trace", Role.ADMINISTRATOR, switch_tracing),
    Route("POST", "api/amqpd/purge_queue", Role.MANAGEMENT, purge_queue),
    Route("POST", "api/amqpd/delete_queue", Role.MANAGEMENT, delete_queue),
)
