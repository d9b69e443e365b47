"""Listeners that let nobody in for a while, and the connections of one user: what `amqpctl suspend_listeners`,
`resume_listeners` and `close_all_user_connections` ask for."""

from __future__ import annotations

from typing import Final

from amqpd.management.node_admin import CannotListen
from amqpd.management.request import NO_CONTENT, Call, Reply, Role, reply
from amqpd.management.connections import reason, tell_forced
from amqpd.management.router import Route
from amqpd.management.time_slice import Slices


async def suspend(call: Call) -> Reply:
    """Stops listening for AMQP clients; those connected stay. rabbit: the listeners are still told of, as they are to
    come back. The admin API goes on: it has to hear so.
    """
    await call.server.suspend_listeners()
    return NO_CONTENT


async def resume(call: Call) -> Reply:
    """Lets clients in again, after suspend_listeners."""
    try:
        await call.server.resume_listeners()
    except OSError as error:
        raise CannotListen(str(error)) from error
    return NO_CONTENT


async def close_user_connections(call: Call) -> Reply:
    """Closes all connections of the user, and counts them.
    rabbit: nobody of that name is no error. Cost: a look at every connection, in slices."""
    name, why = call.text("username"), reason(call.text("reason", ""))
    closed = 0
    slices = Slices()
    for connection in list(call.server.connections):
        here = call.server.connections.by_name.get(connection.name) is connection
        if here and connection.session.user.name == name:
            tell_forced(call, connection, why)
            connection.control.force(why)
            closed += 1
        if slices.due:
            await slices.rest()
    call.broker.turn.want()
    return reply({"closed": closed})


ROUTES: Final = (
    Route("POST", "api/amqpd/suspend_listeners", Role.ADMINISTRATOR, suspend),
    Route("POST", "api/amqpd/resume_listeners", Role.ADMINISTRATOR, resume),
    Route("POST", "api/amqpd/close_user_connections", Role.ADMINISTRATOR, close_user_connections),
)
