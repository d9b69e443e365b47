"""The broker as a whole: overview, and its listeners."""

from __future__ import annotations

import platform
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from amqpd import __version__
from amqpd.broker.vhost.pending import finished
from amqpd.broker.vhost.exchange_arguments import DELAYED_MESSAGE
from amqpd.broker.vhost.parameters import CLUSTER_NAME, InvalidParameter
from amqpd.broker.queue.log_opener import opened
from amqpd.management.request import NO_CONTENT, BadRequest, Call, NotThere, Reply, Role, reply
from amqpd.management.certificates import PROTOCOLS
from amqpd.management.counted import CHANNEL, CHURN, LENGTHS, QUEUE, parted
from amqpd.management.message_counts import unacked_apart
from amqpd.management.listing import cut, one
from amqpd.management.router import Route
from amqpd.management.samples import POLICIES, Spans
from amqpd.management.time_slice import Slices
from amqpd.management.spans import spans
from amqpd.routing.registry import exchange_type_names

if TYPE_CHECKING:
    from amqpd.broker.vhost.vhost import VHost


def listeners(call: Call) -> list[dict[str, Any]]:
    """What listens on the network now."""
    return [
        {
            "node": call.node,
            "protocol": PROTOCOLS.get(listener.protocol, listener.protocol),
            "ip_address": listener.host,
            "port": listener.port,
        }
        for listener in call.server.listeners
        if listener.port
    ]


def _secure(protocol: str) -> dict[str, str]:
    """rabbit: a text, and only where it is."""
    return {"ssl": "true"} if protocol == "https" else {}


def contexts(call: Call) -> list[dict[str, Any]]:
    """Where HTTP is served."""
    return [
        {"description": "Management API", "path": "/", "ip": each.host, "port": each.port, **_secure(each.protocol)}
        for each in call.server.listeners
        if each.protocol in ("http", "https")
    ]


def exchange_types() -> list[dict[str, Any]]:
    names = sorted([*exchange_type_names(), DELAYED_MESSAGE])
    return [{"name": name, "description": "", "enabled": True} for name in names]


def churn(call: Call) -> dict[str, Any]:
    """What came and went since the start, with rates."""
    return call.rates.details(call.rates.churn, CHURN, spans(call.query))


class Totals:
    """Objects of the vhosts the caller may see, counted in slices."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(
            (
                *("connections", "channels", "queues", "exchanges", "consumers"),
                *("messages_ready", "messages_unacked", "messages_delayed_retry", "messages_delayed"),
            ),
            0,
        )

    async def count(self, call: Call, vhosts: list[VHost]) -> dict[str, int]:
        """Reads the log of each queue that nobody has used since the start."""
        slices, counts = Slices(), self.counts
        for vhost in vhosts:
            counts["exchanges"] += len(vhost.exchanges)
            counts["messages_delayed"] += call.broker.delays.count_of(vhost.name)
            for queue in list(vhost.queues.values()):
                await opened(queue)
                counts["queues"] += 1
                counts["consumers"] += len(queue.consumers)
                counts["messages_ready"] += queue.ready_count
                counts["messages_unacked"] += unacked_apart(queue)
                counts["messages_delayed_retry"] += queue.delayed_count
                if slices.due:
                    await slices.rest()
        names = {vhost.name for vhost in vhosts}
        for connection in call.server.connections:
            if connection.session.vhost.name in names:
                counts["connections"] += 1
                counts["channels"] += len(connection.channels.by_number)
        return counts


async def overview(call: Call) -> Reply:
    """Totals, rates, listeners and versions of the broker; `fields` cuts it as `columns` does."""
    broker = call.broker
    counts = await Totals().count(call, call.vhosts())
    item: dict[str, Any] = {
        "management_version": __version__,
        "rabbitmq_version": broker.settings.product[1],
        "product_name": broker.settings.product[0],
        "product_version": broker.settings.product[1],
        "amqpd_version": __version__,
        # rabbit: of the runtime; clients expect something there.
        "erlang_version": f"Python {platform.python_version()}",
        "erlang_full_version": f"Python {' '.join(sys.version.split())}",
        "release_series_support_status": "supported",
        "sample_retention_policies": {name: [step.age_s for step in steps] for name, steps in POLICIES.items()},
        "statistics_db_event_queue": 0,
        "rates_mode": "basic",
        "cluster_name": broker.cluster_name,
        "node": call.node,
        "exchange_types": exchange_types(),
        "object_totals": {
            name: counts[name] for name in ("channels", "connections", "consumers", "exchanges", "queues")
        },
        "queue_totals": {
            "messages": counts["messages_ready"] + counts["messages_unacked"] + counts["messages_delayed_retry"],
            "messages_ready": counts["messages_ready"],
            "messages_unacknowledged": counts["messages_unacked"],
            "messages_delayed": counts["messages_delayed"],
            "messages_delayed_retry": counts["messages_delayed_retry"],
        },
        "enable_queue_totals": True,
        "disable_stats": False,
    }
    if call.caller.has(Role.MONITORING):
        within = spans(call.query)
        shown = parted(await call.rates.totals(QUEUE, within))
        published = await _published(call, within)
        item["message_stats"] = {**shown.stats, **published, **call.rates.unroutable(within)}
        for name in LENGTHS:
            item["queue_totals"][f"{name}_details"] = shown.lengths[f"{name}_details"]
        item["churn_rates"] = churn(call)
        item["listeners"] = listeners(call)
        item["contexts"] = [{"node": call.node, **each} for each in contexts(call)]
    return one(call, cut(item, call.query.get("fields", "")))


async def _published(call: Call, within: Spans) -> dict[str, Any]:
    """What publishers sent, each message once however many queues took it."""
    totals = await call.rates.totals(CHANNEL, within)
    return {name: totals[name] for name in ("publish", "publish_details", "confirm", "confirm_details")}


async def cluster_name(call: Call) -> Reply:
    """The name that clients are told."""
    return reply({"name": call.broker.cluster_name})


async def put_cluster_name(call: Call) -> Reply:
    """Kept as the global parameter of that name; clients are told it in server-properties."""
    name = call.text("name")
    try:
        await finished(partial(call.broker.global_parameters.declare, CLUSTER_NAME, name))
    except InvalidParameter as error:
        raise BadRequest(str(error)) from None
    return NO_CONTENT


def this_node(call: Call) -> None:
    """The node of the path, if it names one, is this one: there is no other. Raises: NotThere."""
    if call.params.get("node", call.node) != call.node:
        raise NotThere(f"no node '{call.params['node']}'")


async def extensions(call: Call) -> Reply:
    """Extensions of the page. RabbitMQ: scripts of its page, the first of which its own plugin always names."""
    return reply([{"javascript": "dispatcher.js"}])


async def auth_attempts(call: Call) -> Reply:
    """Which ways to log in the page has: basic auth. rabbit: its OAuth 2 servers (UAA), of which there are none."""
    return reply({"oauth_enabled": False, "enable_uaa": False, "uaa_client_id": "", "uaa_location": ""})


ROUTES: Final = (
    Route("GET", "api/auth", Role.PUBLIC, auth_attempts),
    Route("GET", "api/overview", Role.MANAGEMENT, overview),
    Route("GET", "api/cluster-name", Role.MANAGEMENT, cluster_name),
    Route("PUT", "api/cluster-name", Role.ADMINISTRATOR, put_cluster_name),
    Route("GET", "api/extensions", Role.MANAGEMENT, extensions),
)
