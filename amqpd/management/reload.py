"""The settings read again, as SIGHUP does, for `amqpctl reload`: log level and TLS certificates are taken over."""

from __future__ import annotations

import logging
from typing import Final

from amqpd.management.call import ApiError, Call, Reply, Role, reply
from amqpd.management.router import Route
from amqpd.settings import SettingsError

log = logging.getLogger(__name__)


class CannotReload(ApiError):
    """The broker goes on with what it had, all of it."""

    status = 409
    error = "cannot_reload"


async def reload(call: Call) -> Reply:
    """waiting: settings that have changed and need a restart. Cost: as SIGHUP, some 5 ms for each TLS listener."""
    try:
        waiting = call.server.reload()
    except SettingsError as error:
        raise CannotReload("; ".join(error.problems)) from error
    except OSError as error:  # ssl.SSLError is one
        raise CannotReload(f"the TLS certificate cannot be loaded: {error}") from error
    rest = f"; waiting for a restart: {', '.join(waiting)}" if waiting else ""
    log.info("the settings are read again%s", rest)
    return reply({"waiting": waiting})


ROUTES: Final = (Route("POST", "api/amqpd/reload", Role.ADMINISTRATOR, reload),)
