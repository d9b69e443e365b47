"""How the broker is at this moment, for a page that looks every few seconds: alarms, what holds connections, how long
syncs take and how late the loop is. And what the caller may do with one queue or exchange, so that nobody is offered
what would be refused.

Counts rise from the start on: who asks twice has what happened in between, by how long it took.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from amqpd.management.request import BadRequest, Call, Reply, Role, reply
from amqpd.management.held import HELD_BY, held_by
from amqpd.management.loop_lag import BOUNDS_S as LAG_BOUNDS_S
from amqpd.management.overview import this_node
from amqpd.management.router import Route
from amqpd.management.time_slice import Slices
from amqpd.storage.sync_times import BOUNDS_S

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue

FAILED_LOGS_MAX: Final = 20


async def get_pulse(call: Call) -> Reply:
    """Alarms, what holds connections, how long syncs took and how late the loop was."""
    broker = call.broker
    slices = Slices()
    held = dict.fromkeys(HELD_BY.values(), 0)
    for connection in list(call.server.connections):
        for word in held_by(connection.gate.reasons):
            held[word] += 1
        if slices.due:
            await slices.rest()
    times, lag = broker.storage.sync_times, call.rates.loop_lag
    failed = await _failed_logs(call, slices)
    return reply(
        {
            "alarms": list(broker.alarms.raised.values()),
            "failed_logs": [{"vhost": q.vhost_name, "name": q.name} for q in failed[:FAILED_LOGS_MAX]],
            "failed_log_count": len(failed),
            "app_running": call.server.app_running,
            "held": held,
            "unsynced_bytes": int(broker.storage.commits.unsynced_bytes),
            "sync": _histogram(BOUNDS_S, times.by_time, times.total_s),
            "loop_lag": _histogram(LAG_BOUNDS_S, lag.counts, lag.total_s),
        }
    )


async def get_pulse_of(call: Call) -> Reply:
    """The same of a node of a cluster, whichever node is asked."""
    this_node(call)
    return await get_pulse(call)


async def _failed_logs(call: Call, slices: Slices) -> list[Queue]:
    """The queues whose log takes nothing more. Cost: a step per queue, in slices."""
    found: list[Queue] = []
    for vhost in list(call.broker.vhosts.values()):
        for queue in list(vhost.queues.values()):
            if queue.store is not None and queue.store.failed:
                found.append(queue)
            if slices.due:
                await slices.rest()
    return found


def _histogram(bounds_s: tuple[float, ...], counts: list[int], total_s: float) -> dict[str, Any]:
    """counts: up to each bound, each by itself, and one more above the last."""
    return {"bounds_s": list(bounds_s), "counts": list(counts), "total_s": total_s}


async def get_rights(call: Call) -> Reply:
    """Which permissions the caller has on the queue or exchange of the query, whether it is there or not."""
    kinds = [kind for kind in ("queue", "exchange") if kind in call.query]
    if len(kinds) != 1:
        raise BadRequest("queue or exchange is needed, one of them")
    vhost, name = call.vhost(), call.query[kinds[0]]
    if kinds[0] == "exchange" and not name:
        name = "amq.default"
    caller, auth = call.caller, call.broker.auth
    inside = call.may_enter(vhost.name)
    return reply(
        {
            kind: inside and (caller.operator or auth.may(caller.user, vhost.name, kind, name))
            for kind in ("configure", "write", "read")
        }
    )


ROUTES: Final = (
    Route("GET", "api/amqpd/pulse", Role.MONITORING, get_pulse),
    Route("GET", "api/amqpd/pulse/{node}", Role.MONITORING, get_pulse_of),
    Route("GET", "api/amqpd/rights/{vhost}", Role.MANAGEMENT, get_rights),
)
