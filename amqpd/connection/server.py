"""AMQP server: the plain and TLS listeners and their connections.

`listeners` distinguishes the ports; all clients are in one `connections`. A restart of the listeners keeps the
ports, even if the settings asked for any free port.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from amqpd import process, tls
from amqpd.connection.heartbeat import Heartbeats
from amqpd.connection.registry import ConnectionRegistry
from amqpd.connection.transport import Transport
from amqpd.listeners import Listener, bound_sockets
from amqpd.protocol_server import FrontEnd

if TYPE_CHECKING:
    import ssl

    from amqpd.broker.broker import Broker
    from amqpd.config import Settings

STOP_WAIT_S: Final = 3.0
SECTION: Final = "amqp.tls"
SHUTDOWN: Final = "broker forced connection closure with reason 'shutdown'"


class AmqpFrontEnd(FrontEnd):
    """The AMQP front end. It listens as `amqp` unless that port is off, and as `amqps` if `amqp.tls.port` is set."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.connections = ConnectionRegistry(broker)
        self.heartbeats = Heartbeats(broker.loop)
        self._broker = broker
        self._ports: dict[str, int] = {}  # by protocol
        self._tls: ssl.SSLContext | None = None
        self._servers: list[asyncio.AbstractServer] = []
        self._suspended = False

    async def start(self) -> None:
        """Start listening.

        Raises:
            OSError: a port is in use, or a certificate cannot be read (ssl.SSLError).
        """
        amqp = self._broker.settings.amqp
        if amqp.port is not None:
            await self._listen("amqp", amqp.port, None)
        if amqp.tls.port is not None:
            if self._tls is None:  # otherwise keep the context that a SIGHUP may have renewed
                self._tls = tls.server_context(amqp.tls, SECTION)
            await self._listen("amqps", amqp.tls.port, self._tls)

    async def _listen(self, protocol: str, port: int, context: ssl.SSLContext | None) -> None:
        """Listen on one port at each address. Raises: OSError."""
        host = self._broker.settings.amqp.host
        for sock in bound_sockets(host, self._ports.get(protocol, port)):
            self._ports[protocol] = sock.getsockname()[1]
            address = host if host and "," not in host else sock.getsockname()[0]
            self.listeners.append(Listener(protocol, address, self._ports[protocol]))
            server = await self._broker.loop.create_server(
                lambda: Transport(self._broker, self.connections, self.heartbeats, context is not None),
                sock=sock,
                backlog=process.backlog(),
                ssl=context,
                ssl_handshake_timeout=None if context is None else tls.HANDSHAKE_S,
            )
            self._servers.append(server)

    async def suspend(self) -> None:
        if self.listeners:
            self._suspended = True
        self._close_servers()

    async def resume(self) -> None:
        if not self._suspended:
            return
        listeners = self.listeners[:]
        self.listeners.clear()
        try:
            await self.start()
        except OSError:
            self._close_servers()
            self.listeners[:] = listeners
            raise
        self._suspended = False

    def _close_servers(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()

    async def stop(self) -> None:
        """Close all connections with 320. Return when they have closed, or after STOP_WAIT_S."""
        self._close_servers()
        self._suspended = False
        self.listeners.clear()
        self.heartbeats.finish_unopened()
        for connection in self.connections:
            connection.control.force(SHUTDOWN)
        elsewhere = self.connections.vhost_router
        if elsewhere is not None:
            elsewhere.force_all(SHUTDOWN)
        self._broker.turn.schedule()
        loop = self._broker.loop
        deadline = loop.time() + STOP_WAIT_S
        while self._served() and loop.time() < deadline:  # noqa: ASYNC110  # once per stop
            await asyncio.sleep(0.01)
        self.heartbeats.abort_all()

    def _served(self) -> int:
        """Return the number of clients, including those that other nodes serve."""
        elsewhere = self.connections.vhost_router
        return self.heartbeats.open_count() + (0 if elsewhere is None else elsewhere.count())

    def check(self, settings: Settings) -> None:
        if self._tls is not None:
            tls.server_context(settings.amqp.tls, SECTION)

    def renew(self, settings: Settings) -> None:
        """Load certificate and key for new TLS connections. Raises OSError and keeps the old ones."""
        if self._tls is not None:
            tls.renew(self._tls, settings.amqp.tls, SECTION)

    def close(self) -> None:
        self.heartbeats.stop()
        self.connections.malloc_trimmer.stop()
