"""Feature flags: RabbitMQ's names for what a node may have switched off, and amqpd never has; and deprecated features,
which RabbitMQ is to lose and amqpd keeps.

Clients' suites, Ansible and upgrade scripts ask for the list and enable all of it; both are right here at any time.
Only flags whose feature is there are on the list, and of deprecated features those that amqpd has.

What of RabbitMQ's API has nothing to do on a broker of one node: it answers as RabbitMQ on one node does, so that
scripts of upgrades and maintenance go on. Beside them the older names of paths.
"""

from __future__ import annotations

from typing import Any, Final

from amqpd.management import definitions, definitions_import
from amqpd.management.overview import this_node
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
"""rabbit: by its names, as 4.x tells them."""


def item(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "desc": FLAGS[name],
        "doc_url": "",
        "provided_by": "amqpd",
        "stability": "stable",
        "state": "enabled",
    }


async def get_flags(_call: ApiRequest) -> ApiResponse:
    """Feature flags, all of them enabled."""
    return reply([item(name) for name in sorted(FLAGS)])


async def enable(call: ApiRequest) -> ApiResponse:
    """Enables the flag. rabbit: 204 also for what is enabled already."""
    if call.params["name"] not in FLAGS:
        raise BadRequest("unsupported")
    return NO_CONTENT


def _deprecated_item(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "desc": DEPRECATED[name],
        "deprecation_phase": "permitted_by_default",
        "doc_url": "",
        "provided_by": "amqpd",
        "state": "permitted",
    }


async def get_deprecated(_call: ApiRequest) -> ApiResponse:
    """Deprecated features of RabbitMQ, as amqpd has them."""
    return reply([_deprecated_item(name) for name in sorted(DEPRECATED)])


async def get_deprecated_used(call: ApiRequest) -> ApiResponse:
    """Deprecated features that are in use now.
    Rates are always collected. Cost: a look at each channel and queue, as far as the first."""
    slices = TimeSlice()
    used = {"management_metrics_collection"}
    for connection in list(call.server.connections):
        if any(channel.deliveries.window_size > 0 for channel in connection.channels.all()):
            used.add("global_qos")
            break
        if slices.expired:
            await slices.yield_loop()
    for queue in [each for vhost in call.broker.vhosts.values() for each in vhost.queues.values()]:
        if not queue.durable and queue.exclusive_owner is None:
            used.add("transient_nonexcl_queues")
            break
        if slices.expired:
            await slices.yield_loop()
    return reply([_deprecated_item(name) for name in sorted(used)])


ROUTES: Final = (
    ApiRoute("GET", "api/deprecated-features", Role.MONITORING, get_deprecated),
    ApiRoute("GET", "api/deprecated-features/used", Role.MONITORING, get_deprecated_used),
    ApiRoute("GET", "api/feature-flags", Role.MONITORING, get_flags),
    ApiRoute("PUT", "api/feature-flags/{name}/enable", Role.ADMINISTRATOR, enable),
)


ACTIONS: Final = ("sync", "cancel_sync")


async def rebalance(_call: ApiRequest) -> ApiResponse:
    """Does nothing, as on a single node of RabbitMQ."""
    return NO_CONTENT


async def succeed(call: ApiRequest) -> ApiResponse:
    """rabbit: copies of a classic mirrored queue are brought up to date, of which there are none."""
    call.check(call.queue().vhost_name, "read", "queue", call.params["queue"])
    action = call.fields().get("action")
    if action not in ACTIONS:
        raise BadRequest(f"action is one of {', '.join(ACTIONS)}")
    return NO_CONTENT


async def start_vhost(call: ApiRequest) -> ApiResponse:
    """Answers 204 if the vhost exists: a vhost that exists is running. rabbit: 400 for one that is not, and for another
    node.
    """
    if call.params["node"] != call.node or call.params["vhost"] not in call.broker.vhosts:
        raise BadRequest(f"no vhost '{call.params['vhost']}' on a node '{call.params['node']}'")
    return NO_CONTENT


async def reset_stats(call: ApiRequest) -> ApiResponse:
    """Resets rates; counters are the objects' own and stay."""
    this_node(call)
    call.rates.forget()
    return NO_CONTENT


async def login(_call: ApiRequest) -> ApiResponse:
    """Checks name and password of the form; later requests bring them again."""
    return reply([])


async def no_extra_tables(call: ApiRequest) -> ApiResponse:
    """Memory of Erlang's tables (ETS): zero, as there are none."""
    this_node(call)
    return reply({"ets_tables_memory": {"total": 0}})


_ETS: Final = "api/nodes/{node}/memory/ets"
_OLD_DEFINITIONS: Final = "api/all-configuration"


def _renamed() -> tuple[ApiRoute, ...]:
    """rabbit: /all-configuration is what /definitions was called."""
    found: list[ApiRoute] = []
    for route in (*definitions.ROUTES, *definitions_import.ROUTES):
        if route.path == "api/definitions":
            found.append(route._replace(path=_OLD_DEFINITIONS))
    return tuple(found)


ONE_NODE_ROUTES: Final = (
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
