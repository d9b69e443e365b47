"""Paths of RabbitMQ's that this version does not serve: their lists are empty, to set one is 501.

Tools ask for these lists and take a refusal for a failure; a setting that was taken and not obeyed would be worse.
"""

from __future__ import annotations

from typing import Final

from amqpd.management.call import Call, NotBuilt, Reply, Role, reply
from amqpd.management.router import Route


async def none_set(call: Call) -> Reply:
    """The list of something that cannot be set in this version: tools that ask are told that there is none."""
    if "vhost" in call.params:
        call.vhost()
    return reply([])


async def not_built(call: Call) -> Reply:
    """A path of RabbitMQ's that this version does not serve yet."""
    raise NotBuilt("this part of the management API is not part of this version of amqpd")


ROUTES: Final = (
    Route("GET", "api/vhost-limits", Role.MANAGEMENT, none_set),
    Route("GET", "api/vhost-limits/{vhost}", Role.MANAGEMENT, none_set),
    Route("PUT", "api/vhost-limits/{vhost}/{name}", Role.ADMINISTRATOR, not_built),
    Route("GET", "api/user-limits", Role.MANAGEMENT, none_set),
    Route("PUT", "api/user-limits/{user}/{name}", Role.ADMINISTRATOR, not_built),
    Route("GET", "api/feature-flags", Role.MONITORING, none_set),
)
