"""Protocol servers: the ways into the broker, each with its listeners.

AMQP is one (`connection/server.py`), the admin API another one (`management/front_end.py`). The server starts and
stops a list of them. A guest is a protocol server of another program. It does the following:

- It listens on sockets of `listeners.bound_sockets`.
- It makes a `broker.session.Session` for each user, and publishes, consumes and declares through the packages
  below.
- To learn of deleted vhosts and the like, it adds a `broker.listeners.BrokerListener` to `Broker.clients`.

A program passes its guests to `amqpd.__main__.main(guests=[...])`, a test to
`amqpd.testing.embedded(guests=[...])`. `tests/samples/lines.py` is an example: lines of text over TCP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from amqpd import process, tls
from amqpd.listeners import Listener, bound_sockets

if TYPE_CHECKING:
    import ssl

    from amqpd.broker.broker import Broker
    from amqpd.config import Settings
    from amqpd.config.schema import AmqpSettings, KafkaSettings


class FrontEnd:
    """Base class of protocol servers. All methods run on the broker's event loop.

    Attributes:
        listeners: The present listeners; empty before `start` and after `stop`.
    """

    stays: ClassVar[bool] = False
    """True if it stays between `amqpctl stop_app` and `start_app`, as the admin API, which receives `start_app`."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []

    async def start(self) -> None:
        """Listen; after a `stop`, on the same ports again. Raises OSError if a port is in use."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Close the listeners and all connections within 3 s. Does nothing if it is not started."""
        raise NotImplementedError

    async def suspend(self) -> None:
        """Refuse new connections and keep the open ones. `listeners` stays. Does nothing if it is suspended."""
        raise NotImplementedError

    async def resume(self) -> None:
        """End `suspend`, on the same ports. Raises OSError if a port is in use; it stays suspended then."""
        raise NotImplementedError

    def check(self, settings: Settings) -> None:
        """Raise OSError if `renew` would. All protocol servers are checked first, so that all apply the settings or
        none.
        """

    def renew(self, settings: Settings) -> None:
        """Apply reloaded settings to later connections (a certificate). Raises OSError, and keeps the old ones."""

    def close(self) -> None:
        """Stop timers: the process ends and all protocol servers are stopped."""


class TcpFrontEnd(FrontEnd):
    """Base class of AMQP and Kafka: `port` and `tls.port` are in the section of the settings; either may be off.

    A restart of the listeners keeps the ports, even if the settings asked for any free port.

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


Guest: TypeAlias = "Callable[[Broker], FrontEnd]"
