"""The admin API as a front end: its two sockets at once, what serves them a moment later.

Both are bound before the ready line, so that whoever reads it may connect; aiohttp, some 200 ms of imports that AMQP
clients need not wait for, comes behind it, while the sockets already queue connections.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from amqpd.front_end import FrontEnd
from amqpd.listening import Listener, bound_socket
from amqpd.management.unix_socket import NAME, unix_socket

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from amqpd.broker.broker import Broker
    from amqpd.management.http import AdminServer
    from amqpd.management.server_control import ServerControl

log = logging.getLogger(__name__)


class AdminFrontEnd(FrontEnd):
    """Its listeners are `http`, and `unix`: amqpctl's socket in the data directory.

    imported: called when all that serves HTTP is imported.
    """

    stays = True

    def __init__(self, broker: Broker, server: ServerControl, imported: Callable[[], None]) -> None:
        super().__init__()
        self._broker = broker
        self._server = server
        self._imported = imported
        self._admin: AdminServer | None = None
        self._starting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Both sockets queue connections when it returns. Raises: OSError."""
        settings = self._broker.settings
        http_socket = bound_socket(settings.http.host, settings.http.port)
        self.listeners.append(Listener("http", settings.http.host, http_socket.getsockname()[1]))
        path = settings.data_dir / NAME
        amqpctl_socket = unix_socket(path)
        self.listeners.append(Listener("unix", str(path), 0))
        self._starting = self._broker.loop.create_task(self._serve(http_socket, amqpctl_socket))
        self._starting.add_done_callback(_report)

    async def _serve(self, http_socket: socket.socket, amqpctl_socket: socket.socket) -> None:
        await asyncio.sleep(0)
        from amqpd.management.http import AdminServer

        self._imported()
        self._admin = AdminServer(self._broker, self._server)
        await self._admin.start(http_socket, amqpctl_socket)

    async def stop(self) -> None:
        """Waits for a start that is under way, then ends requests within 1 s; the unix socket goes."""
        self.listeners.clear()
        if self._starting is not None:
            await asyncio.wait([self._starting])
        if self._admin is not None:
            await self._admin.stop()


def _report(task: asyncio.Task[None]) -> None:
    """The admin API did not start: AMQP goes on without it, and the log says why."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the admin API is not available: %s", error, exc_info=error)
