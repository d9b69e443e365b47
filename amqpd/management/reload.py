"""The settings read again, as SIGHUP does, for `amqpctl reload`."""

from __future__ import annotations

from typing import Final

from amqpd.management.call import ApiError, Call, Reply, Role, reply
from amqpd.management.router import Route


class CannotReload(ApiError):
    """The broker goes on with what it had, all of it."""

    status = 409
    error = "cannot_reload"


async def reload(call: Call) -> Reply:
    """`{changed, waiting}`: settings that are taken over, and those that need a restart. Cost: files are read, and for
    each TLS listener 5 ms. Raises: CannotReload.
    """
    found = call.server.reload("amqpctl reload")
    if found.problem:
        raise CannotReload(found.problem)
    return reply({"changed": found.changed, "waiting": found.waiting})


ROUTES: Final = (Route("POST", "api/amqpd/reload", Role.ADMINISTRATOR, reload),)
