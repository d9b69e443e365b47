"""Routes of RabbitMQ's API that have little to do here: feature flags, deprecated features, routes for other nodes.

Test suites of clients, Ansible and upgrade scripts list the feature flags and enable all of them. Only flags whose
feature exists here are listed, and all are always enabled. Deprecated features are listed if amqpd has them; they
will stay.

The other routes answer as RabbitMQ does on a single node, so that scripts for upgrades and maintenance work. Old
names of paths are here too.
"""

from __future__ import annotations

from typing import Any, Final

from amqpd.management import definitions, definitions_import
from amqpd.management.overview import check_node_name
from amqpd.management.request import NO_CONTENT, ApiRequest, ApiResponse, BadRequest, Role, reply
from amqpd.management.router import ApiRoute
from amqpd.management.time_slice import TimeSlice

FLAGS: Final = {
    "consumer_timeout": "Deliveries that are unacked for too long end their consumer",
    "direct_exchange_routing_v2": "Direct exchanges route by a table",
    "implicit_default_bindings": "Default bindings are implicit, not stored",
    "maintenance_mode_status": "Nodes say whether they are drained",
    "quorum_queue": "Queues of type quorum",
    "stream_queue": "Queues of type stream",
    "stream_filtering": "Streams are filtered before they are sent",
    "stream_single_active_consumer": "A group of a stream's consumers has one at work",
    "user_limits": "Limits of a user's connections and channels",
    "virtual_host_metadata": "Vhosts have a description and tags",
}


DEPRECATED: Final = {
    "global_qos": "basic.qos with global=true: one prefetch for all consumers of a channel",
    "management_metrics_collection": "Rates and samples in the HTTP API",
    "transient_nonexcl_queues": "Queues that are neither durable nor exclusive",
}
"""RabbitMQ's names, as in 4.x."""


async def get_flags(_call: ApiRequest) -> ApiResponse:
    """List the feature flags, which are all enabled."""
    about = {"doc_url": "", "provided_by": "amqpd", "stability": "stable", "state": "enabled"}
    return reply([{"name": name, "desc": FLAGS[name], **about} for name in sorted(FLAGS)])


async def enable(call: ApiRequest) -> ApiResponse:
    """Enable a feature flag. RabbitMQ: 204 also if it is enabled already."""
    if call.params["name"] not in FLAGS:
        raise BadRequest("unsupported")
    return NO_CONTENT


def _deprecated_item(name: str) -> dict[str, Any]:
    about = {"deprecation_phase": "permitted_by_default", "doc_url": "", "provided_by": "amqpd", "state": "permitted"}
    return {"name": name, "desc": DEPRECATED[name], **about}


async def get_deprecated(_call: ApiRequest) -> ApiResponse:
    """List the deprecated features of RabbitMQ that amqpd has."""
    return reply([_deprecated_item(name) for name in sorted(DEPRECATED)])


async def get_deprecated_used(call: ApiRequest) -> ApiResponse:
    """List the deprecated features that are in use now.

    Rates are always collected. Cost: visits channels and queues until the first that uses the feature.
    """
    slices = TimeSlice()
    used = {"management_metrics_collection"}
    for connection in list(call.server.connections):
        if any(channel.deliveries.window_size > 0 for channel in connection.channels.all()):
            used.add("global_qos")
            break
        await slices.yield_if_due()
    for queue in [each for vhost in call.broker.vhosts.values() for each in vhost.queues.values()]:
        if not queue.durable and queue.exclusive_owner is None:
            used.add("transient_nonexcl_queues")
            break
        await slices.yield_if_due()
    return reply([_deprecated_item(name) for name in sorted(used)])


ACTIONS: Final = ("sync", "cancel_sync")


async def rebalance(_call: ApiRequest) -> ApiResponse:
    """Do nothing, as on a single node of RabbitMQ."""
    return NO_CONTENT


async def succeed(call: ApiRequest) -> ApiResponse:
    """Accept the actions sync and cancel_sync of a queue and do nothing. RabbitMQ: for mirrors of classic queues."""
    call.check(call.queue().vhost_name, "read", "queue", call.params["queue"])
    action = call.fields().get("action")
    if action not in ACTIONS:
        raise BadRequest(f"action must be one of {', '.join(ACTIONS)}")
    return NO_CONTENT


async def start_vhost(call: ApiRequest) -> ApiResponse:
    """Answer 204 if the virtual host exists, because it is then running.

    RabbitMQ: 400 for one that does not exist, or for another node.
    """
    if call.params["node"] != call.node or call.params["vhost"] not in call.broker.vhosts:
        raise BadRequest(f"no vhost '{call.params['vhost']}' on a node '{call.params['node']}'")
    return NO_CONTENT


async def reset_stats(call: ApiRequest) -> ApiResponse:
    """Reset rates. Counters stay."""
    check_node_name(call)
    call.rates.reset()
    return NO_CONTENT


async def login(_call: ApiRequest) -> ApiResponse:
    """Check name and password of the form. Later requests must send them again."""
    return reply([])


async def no_extra_tables(call: ApiRequest) -> ApiResponse:
    """Return the memory of Erlang's ETS tables, which is always 0."""
    check_node_name(call)
    return reply({"ets_tables_memory": {"total": 0}})


_ETS: Final = "api/nodes/{node}/memory/ets"
_OLD_DEFINITIONS: Final = "api/all-configuration"


def _renamed() -> tuple[ApiRoute, ...]:
    """Return the routes under /all-configuration, the old name of /definitions in RabbitMQ."""
    found: list[ApiRoute] = []
    for route in (*definitions.ROUTES, *definitions_import.ROUTES):
        if route.path == "api/definitions":
            found.append(route._replace(path=_OLD_DEFINITIONS))
    return tuple(found)


ROUTES: Final = (
    ApiRoute("GET", "api/deprecated-features", Role.MONITORING, get_deprecated),
    ApiRoute("GET", "api/deprecated-features/used", Role.MONITORING, get_deprecated_used),
    ApiRoute("GET", "api/feature-flags", Role.MONITORING, get_flags),
    ApiRoute("PUT", "api/feature-flags/{name}/enable", Role.ADMINISTRATOR, enable),
    ApiRoute("POST", "api/rebalance/queues", Role.ADMINISTRATOR, rebalance),
    ApiRoute("POST", "api/queues/{vhost}/{queue}/actions", Role.MANAGEMENT, succeed),
    ApiRoute("POST", "api/vhosts/{vhost}/start/{node}", Role.ADMINISTRATOR, start_vhost),
    ApiRoute("DELETE", "api/reset", Role.ADMINISTRATOR, reset_stats),
    ApiRoute("DELETE", "api/reset/{node}", Role.ADMINISTRATOR, reset_stats),
    ApiRoute("POST", "api/login", Role.MANAGEMENT, login, quiet=True, login_form=True),
    ApiRoute("GET", _ETS, Role.MONITORING, no_extra_tables),
    ApiRoute("GET", _ETS + "/relative", Role.MONITORING, no_extra_tables),
    *_renamed(),
)
