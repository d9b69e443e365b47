"""AMQP server: the plain and TLS listeners and their connections.

`listeners` distinguishes the ports; all clients are in one `connections`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from amqpd.connection.heartbeat import Heartbeats
from amqpd.connection.registry import ConnectionRegistry
from amqpd.connection.transport import Transport
from amqpd.protocol_server import TcpFrontEnd

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.config import Settings
    from amqpd.config.schema import AmqpSettings

STOP_WAIT_S: Final = 3.0
SHUTDOWN: Final = "broker forced connection closure with reason 'shutdown'"


class AmqpFrontEnd(TcpFrontEnd):
    """The AMQP front end. It listens as `amqp` unless that port is off, and as `amqps` if `amqp.tls.port` is set."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, "amqp")
        self.connections = ConnectionRegistry(broker)
        self.heartbeats = Heartbeats(broker.loop)

    def section(self, settings: Settings) -> AmqpSettings:
        return settings.amqp

    def new_connection(self, tls: bool) -> Transport:
        return Transport(self._broker, self.connections, self.heartbeats, tls)

    async def stop(self) -> None:
        """Close all connections with 320. Return when they have closed, or after STOP_WAIT_S."""
        self.stop_listening()
        self.heartbeats.finish_unopened()
        for connection in self.connections:
            connection.control.force(SHUTDOWN)
        router = self.connections.vhost_router
        if router is not None:
            router.force_all(SHUTDOWN)
        self._broker.turn.schedule()
        loop = self._broker.loop
        deadline = loop.time() + STOP_WAIT_S
        while self._served() and loop.time() < deadline:  # noqa: ASYNC110  # once per stop
            await asyncio.sleep(0.01)
        self.heartbeats.abort_all()

    def _served(self) -> int:
        """Return the number of clients, including those that other nodes serve."""
        router = self.connections.vhost_router
        return self.heartbeats.open_count() + (0 if router is None else router.count())

    def close(self) -> None:
        self.heartbeats.stop()
        self.connections.malloc_trimmer.stop()
