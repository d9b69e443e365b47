"""Maintenance: `amqpctl drain` and `revive`, and what a load balancer or Kubernetes asks without a password.

Drained, a broker lets no client in and has closed the connections there were, after a grace in which they may go by
themselves; it keeps its messages, the admin API stays, and so it is until `revive` or a start. rabbit:
`rabbitmq-upgrade drain` closes them at once, with the same text, and forgets it at a restart.

`/health/live`: the loop answers. `/health/ready`: clients can connect; 503 before the listeners are there, after
`stop_app` and `suspend_listeners`, while it is drained, while it stops, and while a node of a cluster reaches neither
Kafka nor another node. Neither says more than that.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from amqpd.management.node_admin import CannotListen
from amqpd.management.request import NO_CONTENT, BadRequest, Call, Reply, Role, Unavailable, reply
from amqpd.management.cluster_control import NotMoved
from amqpd.management.connections import tell_forced
from amqpd.management.router import Route
from amqpd.management.time_slice import Slices

if TYPE_CHECKING:
    from amqpd.connection.registry import Connections

log = logging.getLogger(__name__)

GRACE_MAX_S: Final = 3600.0
LOOK_S: Final = 0.1
DRAIN_S: Final = 120.0
"""How long the vhosts of a node in a cluster may take to go elsewhere."""
WHY: Final = "Node was put into maintenance mode"


async def drain(call: Call) -> Reply:
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
    slices = Slices()
    for connection in list(server.connections):
        if server.connections.by_name.get(connection.name) is connection:
            tell_forced(call, connection, WHY)
        connection.control.force(WHY)
        closed += 1
        if slices.due:
            call.broker.turn.want()
            await slices.rest()
    call.broker.turn.want()
    return reply({"closed": closed})


def _served(connections: Connections) -> int:
    """Clients of this node, those that another one serves among them."""
    elsewhere = connections.elsewhere
    return len(connections.by_name) + (0 if elsewhere is None else elsewhere.count())


async def revive(call: Call) -> Reply:
    """Clients get in again, on the same ports."""
    try:
        await call.server.resume_listeners()
    except OSError as error:
        raise CannotListen(str(error)) from error
    if call.cluster is not None:
        call.cluster.undrain()
    log.info("revived: clients get in again")
    return NO_CONTENT


async def live(_call: Call) -> Reply:
    """The broker's loop answers."""
    return reply({"status": "ok"})


async def ready(call: Call) -> Reply:
    """Clients can connect, else 503 with the reason."""
    trouble = call.server.not_ready
    return reply({"status": "failed", "reason": trouble}, 503) if trouble else reply({"status": "ok"})


ROUTES: Final = (
    Route("GET", "health/live", Role.PUBLIC, live),
    Route("GET", "health/ready", Role.PUBLIC, ready),
    Route("POST", "api/amqpd/drain", Role.ADMINISTRATOR, drain),
    Route("POST", "api/amqpd/revive", Role.ADMINISTRATOR, revive),
)
