"""The settings read again, as SIGHUP does, for `amqpctl reload`."""

from __future__ import annotations

from typing import Final

from amqpd.management.request import ApiError, Call, Reply, Role, reply
from amqpd.management.definitions_report import DefinitionsError
from amqpd.management.router import Route

ASKED_BY: Final = "amqpctl reload"


class CannotReload(ApiError):
    """Settings: the broker goes on with what it had, all of it. Definitions: those of one file, all or nothing."""

    status = 409
    error = "cannot_reload"


async def reload(call: Call) -> Reply:
    """Reads the settings again. `{changed, waiting, imported}`: settings that are taken over, those that need a
    restart, and the definitions that
    were imported again. Cost: files are read, and for each TLS listener 5 ms. Raises: CannotReload, MetadataError.
    """
    found = call.server.reload(ASKED_BY)
    if found.problem:
        raise CannotReload(found.problem)
    try:
        imported = await call.server.reload_definitions(ASKED_BY)
    except DefinitionsError as error:
        raise CannotReload(f"the settings are taken over, the definitions are not: {error}") from error
    return reply({"changed": found.changed, "waiting": found.waiting, "imported": imported or None})


ROUTES: Final = (Route("POST", "api/amqpd/reload", Role.ADMINISTRATOR, reload),)
