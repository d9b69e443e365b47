"""The listener for Kafka's protocol, and the state that its connections share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from amqpd import process, tls
from amqpd.auth.internal_backend import AuthenticationRefused
from amqpd.broker.listeners import BrokerListener
from amqpd.broker.session import Session
from amqpd.errors import NotAllowed
from amqpd.kafka_server import (
    coordinator,
    fetch,
    produce,
    sasl,
    topic_admin,
    topics,
    transaction_admin,
    transaction_requests,
)
from amqpd.kafka_server.connection import Api, Call, KafkaClientConnection, api_versions
from amqpd.kafka_server.messages import API_VERSIONS, api_types
from amqpd.listeners import Listener, bound_sockets, is_loopback
from amqpd.protocol_server import FrontEnd

if TYPE_CHECKING:
    import ssl

    from amqpd.auth.internal_backend import AuthChange, User
    from amqpd.broker.broker import Broker
    from amqpd.config import Settings
    from amqpd.config.schema import KafkaSettings

STOP_WAIT_S: Final = 3.0
SECTION: Final = "kafka.tls"


def _answer_api_versions(call: Call) -> None:
    call.reply(api_versions(call.connection.server.apis))


class KafkaServer(BrokerListener):
    """State that all connections share.

    Attributes:
        apis: by API key.
        coordinator: the consumer groups of all vhosts.
        fetches: the Fetch requests that wait for records.
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.settings: KafkaSettings = broker.settings.kafka
        self.connections: set[KafkaClientConnection] = set()
        self.apis: dict[int, Api] = {}
        every: tuple[Api, ...] = (
            *topics.APIS,
            *topic_admin.APIS,
            *produce.APIS,
            *fetch.APIS,
            *coordinator.APIS,
            *sasl.APIS,
        )
        every += (*transaction_requests.APIS, *transaction_admin.APIS)
        versions = Api(
            API_VERSIONS, "ApiVersions", 0, 4, 3, _answer_api_versions, *api_types("ApiVersions"), before_login=True
        )
        for api in (versions, *every):
            self.apis[api.key] = api
        self.coordinator = coordinator.GroupCoordinator(broker)
        self.fetches = fetch.WaitingFetches(broker)
        # Calls that wait for the end of a resource alarm.
        self._blocked: list[Callable[[], None]] = []
        broker.clients.append(self)

    # -- logins

    def log_in(self, connection: KafkaClientConnection, user: User, vhost_name: str) -> str:
        """Log a user in. Return why not, or ""."""
        broker = self.broker
        vhost = broker.vhosts.get(vhost_name)
        if vhost is None:
            return f"vhost '{vhost_name}' not found"
        if not broker.auth.may_access_vhost(user, vhost.name):
            return f"access to vhost '{vhost_name}' refused for user '{user.name}'"
        try:
            broker.admission.check(user.name, vhost)
        except NotAllowed as error:
            return error.text
        session = Session(broker, vhost, user, connection.name, connection.peer)
        broker.admission.on_opened(session, user.name, vhost)
        connection.on_close.append(lambda: broker.admission.on_closed(session, user.name, vhost))
        connection.logged_in(session)
        return ""

    def log_in_anonymously(self, connection: KafkaClientConnection) -> bool:
        """Log a client without SASL in as `kafka.anonymous_user`. Return False if it may not."""
        name = self.settings.anonymous_user
        if not name:
            return False
        try:
            user = self.broker.auth.authenticate_external(name, is_loopback(connection.peer[0]))
        except AuthenticationRefused:
            return False
        return not self.log_in(connection, user, self.settings.vhost)

    # -- alarms

    def when_unblocked(self, call: Callable[[], None]) -> None:
        """Call the function now, or when the memory or disk alarm that blocks publishers has ended."""
        if self.broker.alarm_reason:
            self._blocked.append(call)
        else:
            call()

    def on_alarm_end(self) -> None:
        blocked, self._blocked = self._blocked, []
        for call in blocked:
            call()

    # -- BrokerListener

    def on_user_changed(self, change: AuthChange) -> None:
        for connection in list(self.connections):
            session = connection.session
            if session is not None and (why := session.revocation_reason(change)):
                connection.close(why)

    def vhost_deleted(self, name: str) -> None:
        for connection in list(self.connections):
            if connection.session is not None and connection.session.vhost.name == name:
                connection.close(f"vhost '{name}' was deleted")
        self.coordinator.vhost_deleted(name)


class KafkaFrontEnd(FrontEnd):
    """The Kafka front end: `kafka` on `kafka.port`, and `kafkas` on `kafka.tls.port`."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.server = KafkaServer(broker)
        self._broker = broker
        self._ports: dict[str, int] = {}
        self._tls: ssl.SSLContext | None = None
        self._servers: list[asyncio.AbstractServer] = []
        self._suspended = False

    async def start(self) -> None:
        """Start listening. Raises OSError: a port is in use, or a certificate cannot be read."""
        settings = self._broker.settings.kafka
        self.server.coordinator.start()
        if settings.port is not None:
            await self._listen("kafka", settings.port, None)
        if settings.tls.port is not None:
            if self._tls is None:
                self._tls = tls.server_context(settings.tls, SECTION)
            await self._listen("kafkas", settings.tls.port, self._tls)

    async def _listen(self, protocol: str, port: int, context: ssl.SSLContext | None) -> None:
        host = self._broker.settings.kafka.host
        for sock in bound_sockets(host, self._ports.get(protocol, port)):
            self._ports[protocol] = sock.getsockname()[1]
            address = host if host and "," not in host else sock.getsockname()[0]
            self.listeners.append(Listener(protocol, address, self._ports[protocol]))
            server = await self._broker.loop.create_server(
                lambda: KafkaClientConnection(self.server, context is not None),
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
        """Close all connections. Clients connect again by themselves, so nothing is sent to them."""
        self._close_servers()
        self._suspended = False
        self.listeners.clear()
        for connection in list(self.server.connections):
            connection.close("")
        self._broker.turn.schedule()
        await asyncio.sleep(0)
        for connection in list(self.server.connections):
            connection.abort()

    def check(self, settings: Settings) -> None:
        if self._tls is not None:
            tls.server_context(settings.kafka.tls, SECTION)

    def renew(self, settings: Settings) -> None:
        if self._tls is not None:
            tls.renew(self._tls, settings.kafka.tls, SECTION)

    def close(self) -> None:
        self.server.coordinator.stop()
        self.server.fetches.stop()
