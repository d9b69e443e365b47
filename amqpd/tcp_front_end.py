"""Base class of the protocol servers that listen on a plain and a TLS port: AMQP and Kafka.

A restart of the listeners keeps the ports, even if the settings asked for any free port.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from amqpd import process, tls
from amqpd.listeners import Listener, bound_sockets
from amqpd.protocol_server import FrontEnd

if TYPE_CHECKING:
    import ssl

    from amqpd.broker.broker import Broker
    from amqpd.config import Settings
    from amqpd.config.schema import AmqpSettings, KafkaSettings


class TcpFrontEnd(FrontEnd):
    """A protocol server with `port` and `tls.port` in its section of the settings; either may be off.

    Args:
        protocol: name of the plain listener and of the section of the settings; the TLS listener has an `s` after it.
    """

    def __init__(self, broker: Broker, protocol: str) -> None:
        super().__init__()
        self._broker = broker
        self._protocol = protocol
        self._ports: dict[str, int] = {}  # by protocol
        self._tls: ssl.SSLContext | None = None
        self._servers: list[asyncio.AbstractServer] = []
        self._suspended = False

    def section(self, settings: Settings) -> AmqpSettings | KafkaSettings:
        """Return the section of this protocol."""
        raise NotImplementedError

    def new_connection(self, tls: bool) -> asyncio.Protocol:
        """Return the protocol of a new socket."""
        raise NotImplementedError

    async def start(self) -> None:
        """Start listening.

        Raises:
            OSError: a port is in use, or a certificate cannot be read (ssl.SSLError).
        """
        section = self.section(self._broker.settings)
        if section.port is not None:
            await self._listen(section, self._protocol, section.port, None)
        if section.tls.port is not None:
            if self._tls is None:  # otherwise keep the context that a SIGHUP may have renewed
                self._tls = tls.server_context(section.tls, f"{self._protocol}.tls")
            await self._listen(section, f"{self._protocol}s", section.tls.port, self._tls)

    async def _listen(
        self, section: AmqpSettings | KafkaSettings, protocol: str, port: int, context: ssl.SSLContext | None
    ) -> None:
        """Listen on one port at each address. Raises: OSError."""
        host = section.host
        for sock in bound_sockets(host, self._ports.get(protocol, port)):
            self._ports[protocol] = sock.getsockname()[1]
            address = host if host and "," not in host else sock.getsockname()[0]
            self.listeners.append(Listener(protocol, address, self._ports[protocol]))
            server = await self._broker.loop.create_server(
                lambda: self.new_connection(context is not None),
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

    def stop_listening(self) -> None:
        """Close the listening sockets. A later `start` listens on the same ports."""
        self._close_servers()
        self._suspended = False
        self.listeners.clear()

    def _close_servers(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()

    def check(self, settings: Settings) -> None:
        if self._tls is not None:
            tls.server_context(self.section(settings).tls, f"{self._protocol}.tls")

    def renew(self, settings: Settings) -> None:
        """Load certificate and key for new TLS connections. Raises OSError and keeps the old ones."""
        if self._tls is not None:
            tls.renew(self._tls, self.section(settings).tls, f"{self._protocol}.tls")
