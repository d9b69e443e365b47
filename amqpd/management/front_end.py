"""Sockets of the admin API, and the start of its HTTP server behind them.

All sockets are bound before the broker prints its ready line, so a client that waits for that line can connect. The
HTTP server is imported, which takes about 300 ms of CPU, at the first connection or when the broker is idle. Until then
the sockets queue connections.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from typing import TYPE_CHECKING, Final

from amqpd import tls
from amqpd.listeners import Listener, bound_socket, unix_socket
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
UNIX_SOCKET: Final = "amqpctl.sock"
RETRY_S: Final = 1.0
# Also the text of an ImportError, if the loader of shared libraries has found no free descriptor.
_NO_DESCRIPTOR: Final = os.strerror(errno.EMFILE)


class AdminFrontEnd(FrontEnd):
    """The listeners of the admin API.

    - `http`, unless it is off
    - `https`, if `http.tls.port` is set
    - `prometheus`, if `metrics.port` is set
    - `unix`: the socket of amqpctl, in the data directory
    """

    stays = True

    def __init__(self, broker: Broker, server: ServerControl) -> None:
        super().__init__()
        self._broker = broker
        self._server = server
        self._tcp_sockets: list[tuple[socket.socket, ssl.SSLContext | None]] = []
        self._unix_socket: socket.socket | None = None
        self._metrics_socket: socket.socket | None = None
        self._admin: AdminServer | None = None
        self.make_cluster_api: Callable[[], ClusterApi] | None = None
        """Creates the interface to the other nodes of the cluster. Set before `start`; None for a single node."""
        self._starting: asyncio.Task[None] | None = None
        self._is_late = False
        self._tls: ssl.SSLContext | None = None

    async def start(self) -> None:
        """Bind all sockets. A cluster node starts the HTTP server, too: the other nodes need it. Raises: OSError."""
        settings = self._broker.settings
        http = settings.http
        if http.port is not None:
            self._tcp_sockets.append((self._bound("http", http.host, http.port), None))
        if http.tls.port is not None:
            self._tls = tls.server_context(http.tls, SECTION)
            self._tcp_sockets.append((self._bound("https", http.tls.host or http.host, http.tls.port), self._tls))
        path = settings.data_dir / UNIX_SOCKET
        self._unix_socket = unix_socket(path)
        self.listeners.append(Listener("unix", str(path), 0))
        metrics = settings.metrics
        if metrics.port is not None:
            self._metrics_socket = self._bound("prometheus", metrics.host, metrics.port)
        if self.make_cluster_api is not None:
            self.start_http()
        else:
            for sock in self._sockets():
                self._broker.loop.add_reader(sock.fileno(), self.start_http)

    def start_http(self) -> None:
        """Import and start the HTTP server in the background, unless that was done."""
        if self._starting is None and self.listeners:
            self._unwatch()
            self._starting = self._broker.loop.create_task(self._serve())
            self._starting.add_done_callback(self._on_started)

    def _on_started(self, task: asyncio.Task[None]) -> None:
        """If the HTTP server did not start, log why and refuse its clients. AMQP continues without it.

        Without a free descriptor for its modules, try again: connections wait in the backlog.
        """
        if task.cancelled() or (error := task.exception()) is None:
            return
        if self._admin is None and _NO_DESCRIPTOR in str(error):
            if not self._is_late:
                log.warning("the admin API starts when a descriptor is free: %s", error)
            self._is_late = True
            self._starting = None
            self._broker.loop.call_later(RETRY_S, self.start_http)
            return
        log.error("the admin API is not available: %s", error, exc_info=error)
        for sock in self._sockets():
            sock.close()

    def _sockets(self) -> list[socket.socket]:
        others = self._unix_socket, self._metrics_socket
        return [sock for sock, _ in self._tcp_sockets] + [sock for sock in others if sock is not None]

    def _unwatch(self) -> None:
        for sock in self._sockets():
            self._broker.loop.remove_reader(sock.fileno())

    def _bound(self, protocol: str, host: str, port: int) -> socket.socket:
        """Bind a socket and add its listener. Raises: OSError."""
        sock = bound_socket(host, port)
        self.listeners.append(Listener(protocol, host, sock.getsockname()[1]))
        return sock

    async def _serve(self) -> None:
        await asyncio.sleep(0)
        from amqpd.management.server import AdminServer

        whole = None if self.make_cluster_api is None else self.make_cluster_api()
        self._admin = AdminServer(self._broker, self._server, whole)
        assert self._unix_socket is not None
        await self._admin.start(self._tcp_sockets, self._unix_socket, self._metrics_socket)

    def inner_connection(self) -> asyncio.Protocol | None:
        """Return the protocol for a connection from another node. None if the HTTP server has not started yet."""
        return None if self._admin is None else self._admin.inner_connection()

    async def stop(self) -> None:
        """Wait for a start that is in progress, end requests within 1 s, and remove the unix socket."""
        started = self.listeners
        self.listeners = []
        if self._starting is not None:
            await asyncio.wait([self._starting])
        else:
            self._unwatch()
        # If the directory is not in place, the socket may be that of another broker.
        if started and self._broker.storage.data_directory.is_in_place():
            (self._broker.settings.data_dir / UNIX_SOCKET).unlink(missing_ok=True)
        if self._admin is not None:
            await self._admin.stop()
        for sock in self._sockets():
            sock.close()

    def check(self, settings: Settings) -> None:
        if self._tls is not None:
            tls.server_context(settings.http.tls, SECTION)

    def renew(self, settings: Settings) -> None:
        """Use certificate and key of `settings` for new connections. Raises: OSError, and keeps the old ones."""
        if self._tls is not None:
            tls.renew(self._tls, settings.http.tls, SECTION)
