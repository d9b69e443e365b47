"""`/metrics`, `/metrics/per-object`, `/metrics/detailed`: on a listener of their own (`metrics.port`) and on the API's.

On their own listener nobody is asked who he is, as RabbitMQ asks nobody on 15692. On the API's, sums are for everyone,
and what names queues is for those with the tag monitoring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpd.management.request import Reply, Role
from amqpd.management import node
from amqpd.management.collectors import OBJECT_GROUPS, PER_OBJECT, Openings, Reader
from amqpd.management.sums import Sums
from amqpd.management.text import CONTENT_TYPE, Sheet
from amqpd.management.router import Route
from amqpd.management.time_slice import Slices

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpd.management.request import Call

_NODE_GROUPS: Final[dict[str, Callable[[Sheet, Call], None]]] = {
    "alarms": node.alarms,
    "connection_churn_metrics": node.churn,
    "node_coarse_metrics": node.node_coarse,
    "node_metrics": node.node,
    "node_persister_metrics": node.persister,
    "auth_attempt_metrics": node.auth,
    "auth_attempt_detailed_metrics": node.auth_detailed,
}
DETAILED_GROUPS: Final = frozenset({*_NODE_GROUPS, *OBJECT_GROUPS})
"""What `family=` may say. rabbit: other words are no error."""


async def metrics(call: Call) -> Reply:
    """Everything added up, however many queues there are. Cost: some 10 us per queue."""
    return await _all(call, False)


async def open_metrics(call: Call) -> Reply:
    """On their own listener: rabbit: `prometheus.return_per_object_metrics` makes them what per-object is."""
    return await _all(call, call.broker.settings.metrics.return_per_object_metrics)


async def per_object(call: Call) -> Reply:
    """Everything one by one."""
    return await _all(call, True)


async def _all(call: Call, one_by_one: bool) -> Reply:
    slices, sheet, openings = Slices(), Sheet(), Openings()
    node.identity(sheet, call)
    for name, put in _NODE_GROUPS.items():
        if name != "auth_attempt_detailed_metrics":
            put(sheet, call)
    sums = Sums(call.broker, call.server.connections)
    await sums.count(call, openings, slices)
    sums.put_objects(sheet)
    if one_by_one:
        await Reader(call, sheet, openings, PER_OBJECT).read(slices)
    else:
        sums.put_sums(sheet)
    sums.put_global(sheet)
    node.own(sheet, call, sums.logs.span_records, sums.unread_count)
    return Reply(200, await sheet.chunks(slices), CONTENT_TYPE)


async def detailed(call: Call) -> Reply:
    """Metrics of the families that are asked for. `family=queue_coarse_metrics&family=...&vhost=...&queue=...`: those
    families, of those vhosts and queues."""
    slices, named, sheet = Slices(), Sheet(), Sheet(detailed=True)
    node.identity(named, call)  # rabbit: under its own name
    wanted = frozenset(call.query_all("family"))
    for name, put in _NODE_GROUPS.items():
        if name in wanted:
            put(sheet, call)
    if not wanted.isdisjoint(OBJECT_GROUPS):
        vhosts, queues = frozenset(call.query_all("vhost")), frozenset(call.query_all("queue"))
        await Reader(call, sheet, Openings(), wanted, vhosts or None, queues or None).read(slices)
    return Reply(200, [*await named.chunks(slices), *await sheet.chunks(slices)], CONTENT_TYPE)


OPEN_ROUTES: Final = tuple(
    Route("GET", path, Role.PUBLIC, handler)
    for path, handler in (("metrics", open_metrics), ("metrics/per-object", per_object), ("metrics/detailed", detailed))
)
"""Those of their own listener."""
ROUTES: Final = (
    Route("GET", "metrics", Role.PUBLIC, metrics),
    Route("GET", "metrics/per-object", Role.MONITORING, per_object),
    Route("GET", "metrics/detailed", Role.MONITORING, detailed),
)
