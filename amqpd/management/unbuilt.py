"""Paths of RabbitMQ's that this version does not serve: their lists are empty, and there is no way to set one.

Tools ask for these lists and take a refusal for a failure; a setting that was taken and not obeyed would be worse.
"""

from __future__ import annotations

from typing import Final

from amqpd.management.call import Call, Reply, Role, reply
from amqpd.management.router import Route


async def none_set(_call: Call) -> Reply:
    """The list of something that cannot be set in this version: tools that ask are told that there is none."""
    return reply([])


ROUTES: Final = (
    Route("GET", "api/feature-flags", Role.MONITORING, none_set),
)
