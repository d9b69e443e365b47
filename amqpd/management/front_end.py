"""Sockets of the admin API, and the start of its HTTP server behind them.

All sockets are bound before the broker prints its ready line, so a client that waits for that line can connect. The
import of aiohttp takes about 200 ms, so it happens after that line. Meanwhile the sockets queue connections.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from amqpd import tls
from amqpd.listeners import Listener, bound_socket
from amqpd.management.unix_socket import NAME, unix_socket
from amqpd.protocol_server import FrontEnd

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable

    from amqpd.broker.broker import Broker
    from amqpd.config import Settings
    from amqpd.management.cluster_gateway import ClusterApi
    from amqpd.management.request import ServerControl
    from amqpd.management.server import AdminServer

log = logging.getLogger(__name__)

SECTION: Final = "http.tls"


class AdminFrontEnd(FrontEnd):
    """The listeners of the admin API.

    - `http`, unless it is off
    - `https`, if `http.tls.port` is set
    - `prometheus`, if `metrics.port` is set
    - `unix`: the socket of amqpctl, in the data directory

    Args:
        imported: called when the modules of the HTTP server are imported.
    """

    stays = True

    def __init__(self, broker: Broker, server: ServerControl, imported: Callable[[], None]) -> None:
        super().__init__()
        self._broker = broker
        self._server = server
        self._imported = imported
        self._admin: AdminServer | None = None
        self.make_cluster_api: Callable[[], ClusterApi] | None = None
        """Creates the interface to the other nodes of the cluster. Set before `start`; None for a single node."""
        self._starting: asyncio.Task[None] | None = None
        self._tls: ssl.SSLContext | None = None

    async def start(self) -> None:
        """Bind all sockets and start the HTTP server in the background. Raises: OSError."""
        settings = self._broker.settings
        http = settings.http
        tcp_sockets: list[tuple[socket.socket, ssl.SSLContext | None]] = []
        if http.port is not None:
            tcp_sockets.append((self._bound("http", http.host, http.port), None))
        if http.tls.port is not None:
            self._tls = tls.server_context(http.tls, SECTION)
            tcp_sockets.append((self._bound("https", http.tls.host or http.host, http.tls.port), self._tls))
        path = settings.data_dir / NAME
        amqpctl_socket = unix_socket(path)
        self.listeners.append(Listener("unix", str(path), 0))
        metrics = settings.metrics
        metrics_socket = None
        if metrics.port is not None:
            metrics_socket = self._bound("prometheus", metrics.host, metrics.port)
        self._starting = self._broker.loop.create_task(self._serve(tcp_sockets, amqpctl_socket, metrics_socket))
        self._starting.add_done_callback(_report)

    def _bound(self, protocol: str, host: str, port: int) -> socket.socket:
        """Bind a socket and add its listener. Raises: OSError."""
        sock = bound_socket(host, port)
        self.listeners.append(Listener(protocol, host, sock.getsockname()[1]))
        return sock

    async def _serve(
        self,
        tcp_sockets: list[tuple[socket.socket, ssl.SSLContext | None]],
        amqpctl_socket: socket.socket,
        metrics_socket: socket.socket | None,
    ) -> None:
        await asyncio.sleep(0)
        from amqpd.management.server import AdminServer

        self._imported()
        whole = None if self.make_cluster_api is None else self.make_cluster_api()
        self._admin = AdminServer(self._broker, self._server, whole)
        await self._admin.start(tcp_sockets, amqpctl_socket, metrics_socket)

    def inner_connection(self) -> asyncio.Protocol | None:
        """Return the protocol for a connection from another node. None if the HTTP server has not started yet."""
        return None if self._admin is None else self._admin.inner_connection()

    async def stop(self) -> None:
        """Wait for a start that is in progress, end requests within 1 s, and remove the unix socket."""
        self.listeners.clear()
        if self._starting is not None:
            await asyncio.wait([self._starting])
        if self._admin is not None:
            await self._admin.stop()

    def check(self, settings: Settings) -> None:
        if self._tls is not None:
            tls.server_context(settings.http.tls, SECTION)

    def renew(self, settings: Settings) -> None:
        """Use certificate and key of `settings` for new connections. Raises: OSError, and keeps the old ones."""
        if self._tls is not None:
            tls.renew(self._tls, settings.http.tls, SECTION)


def _report(task: asyncio.Task[None]) -> None:
    """Log why the admin API did not start. AMQP continues without it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the admin API is not available: %s", error, exc_info=error)
