"""What of RabbitMQ's API has nothing to do on a broker of one node: it answers as RabbitMQ on one node does, so that
scripts of upgrades and maintenance go on. Beside them the older names of paths.
"""

from __future__ import annotations

from typing import Final

from amqpd.management import definitions, definitions_import
from amqpd.management.request import NO_CONTENT, BadRequest, Call, Reply, Role, reply
from amqpd.management.overview import this_node
from amqpd.management.router import Route

ACTIONS: Final = ("sync", "cancel_sync")


async def rebalance(_call: Call) -> Reply:
    """Does nothing, as on a single node of RabbitMQ."""
    return NO_CONTENT


async def act(call: Call) -> Reply:
    """rabbit: copies of a classic mirrored queue are brought up to date, of which there are none."""
    call.check(call.queue().vhost_name, "read", "queue", call.params["queue"])
    action = call.fields().get("action")
    if action not in ACTIONS:
        raise BadRequest(f"action is one of {', '.join(ACTIONS)}")
    return NO_CONTENT


async def start_vhost(call: Call) -> Reply:
    """Answers 204 if the vhost exists: a vhost that exists is running. rabbit: 400 for one that is not, and for another
    node.
    """
    if call.params["node"] != call.node or call.params["vhost"] not in call.broker.vhosts:
        raise BadRequest(f"no vhost '{call.params['vhost']}' on a node '{call.params['node']}'")
    return NO_CONTENT


async def reset_stats(call: Call) -> Reply:
    """Resets rates; counters are the objects' own and stay."""
    this_node(call)
    call.rates.forget()
    return NO_CONTENT


async def login(_call: Call) -> Reply:
    """Name and password of the form were right, or nobody would be here; later requests bring them again."""
    return reply([])


async def no_extra_tables(call: Call) -> Reply:
    """Memory of Erlang's tables (ETS): zero, as there are none."""
    this_node(call)
    return reply({"ets_tables_memory": {"total": 0}})


_ETS: Final = "api/nodes/{node}/memory/ets"
_OLD_DEFINITIONS: Final = "api/all-configuration"


def _renamed() -> tuple[Route, ...]:
    """rabbit: /all-configuration is what /definitions was called."""
    found: list[Route] = []
    for route in (*definitions.ROUTES, *definitions_import.ROUTES):
        if route.path == "api/definitions":
            found.append(route._replace(path=_OLD_DEFINITIONS))
    return tuple(found)


ROUTES: Final = (
    Route("POST", "api/rebalance/queues", Role.ADMINISTRATOR, rebalance),
    Route("POST", "api/queues/{vhost}/{queue}/actions", Role.MANAGEMENT, act),
    Route("POST", "api/vhosts/{vhost}/start/{node}", Role.ADMINISTRATOR, start_vhost),
    Route("DELETE", "api/reset", Role.ADMINISTRATOR, reset_stats),
    Route("DELETE", "api/reset/{node}", Role.ADMINISTRATOR, reset_stats),
    Route("POST", "api/login", Role.MANAGEMENT, login, quiet=True, login_form=True),
    Route("GET", _ETS, Role.MONITORING, no_extra_tables),
    Route("GET", _ETS + "/relative", Role.MONITORING, no_extra_tables),
    *_renamed(),
)
