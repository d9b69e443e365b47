"""The cluster: who is in it, who runs what, and vhosts that an operator wants elsewhere; a node by itself has none."""

from __future__ import annotations

from typing import Final

from amqpd.auth.internal_backend import NoSuchVhost
from amqpd.management.request import NO_CONTENT, BadRequest, Call, NotThere, Reply, Role, Unavailable, reply
from amqpd.management.cluster_control import ClusterControl, NoSuchNode, NotMoved
from amqpd.management.router import Route


async def get_cluster(call: Call) -> Reply:
    """Nodes of a cluster, and who serves what. `clustered` is false of a node by itself, which has nothing more to
    tell."""
    if call.cluster is None:
        return reply({"clustered": False, "node": call.node})
    found = call.cluster.status()
    found["vhosts"] = [each for each in found["vhosts"] if call.may_see(each["name"])]
    return reply({"clustered": True, **found})


async def move_vhost(call: Call) -> Reply:
    """Answers when the vhost is there, and names those that went along: all of its slot."""
    name, node = call.text("vhost"), call.text("node")
    try:
        return reply({"vhosts": await _cluster(call).move(name, node), "node": node})
    except NoSuchVhost as error:
        raise NotThere(str(error)) from None
    except NoSuchNode as error:
        raise BadRequest(str(error)) from None
    except NotMoved as error:
        raise Unavailable(str(error)) from None


async def rebalance(call: Call) -> Reply:
    """Moves vhosts so that all nodes serve about as many. rabbit: leaders of queues; here vhosts, by slots. A node by
    itself has nothing to even out.
    """
    if call.cluster is None:
        return NO_CONTENT
    return reply({"moves": await call.cluster.rebalance()})


def _cluster(call: Call) -> ClusterControl:
    """Raises: BadRequest."""
    if call.cluster is None:
        raise BadRequest("this broker runs as one node: it is in no cluster")
    return call.cluster


ROUTES: Final = (
    Route("GET", "api/amqpd/cluster", Role.MONITORING, get_cluster),
    Route("POST", "api/amqpd/move_vhost", Role.ADMINISTRATOR, move_vhost),
    Route("POST", "api/amqpd/rebalance", Role.ADMINISTRATOR, rebalance),
)
