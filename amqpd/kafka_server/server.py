"""The listener for Kafka's protocol, and the state that its connections share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from amqpd.auth.internal_backend import AuthenticationRefused
from amqpd.broker.listeners import BrokerListener
from amqpd.broker.session import Session
from amqpd.errors import NotAllowed
from amqpd.kafka_server import config_admin, coordinator, fetch, partition_admin, produce, sasl, topic_admin, topics
from amqpd.kafka_server.connection import Api, Call, KafkaClientConnection, api_versions
from amqpd.kafka_server.group_operations import GroupOperations
from amqpd.kafka_server.messages import API_VERSIONS, api_types
from amqpd.kafka_server.request_stats import RequestStats
from amqpd.listeners import is_loopback
from amqpd.tcp_front_end import TcpFrontEnd

if TYPE_CHECKING:
    from amqpd.auth.internal_backend import AuthChange, User
    from amqpd.broker.broker import Broker
    from amqpd.config import Settings
    from amqpd.config.schema import KafkaSettings


def _answer_api_versions(call: Call) -> None:
    call.reply(api_versions(call.connection.server.apis))


class KafkaServer(BrokerListener):
    """State that all connections share.

    Attributes:
        apis: by API key.
        coordinator: the consumer groups of all vhosts.
        fetches: the Fetch requests that wait for records.
        operations: what operators see of groups and do with them.
        stats: counters for metrics.
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.settings: KafkaSettings = broker.settings.kafka
        self.connections: set[KafkaClientConnection] = set()
        self.apis: dict[int, Api] = {}
        modules = (topics, topic_admin, partition_admin, config_admin, produce, fetch, coordinator, sasl)
        every = [api for module in modules for api in module.APIS]
        versions = Api(
            API_VERSIONS, "ApiVersions", 0, 4, 3, _answer_api_versions, *api_types("ApiVersions"), before_login=True
        )
        for api in (versions, *every):
            self.apis[api.key] = api
        self.coordinator = coordinator.GroupCoordinator(broker)
        self.fetches = fetch.WaitingFetches(broker)
        self.operations = GroupOperations(self.coordinator, self.fetches)
        self.stats = RequestStats()
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


class KafkaFrontEnd(TcpFrontEnd):
    """The Kafka front end: `kafka` on `kafka.port`, and `kafkas` on `kafka.tls.port`."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, "kafka")
        self.server = KafkaServer(broker)

    def section(self, settings: Settings) -> KafkaSettings:
        return settings.kafka

    def new_connection(self, tls: bool) -> KafkaClientConnection:
        return KafkaClientConnection(self.server, tls)

    async def start(self) -> None:
        self.server.coordinator.start()
        await super().start()

    async def stop(self) -> None:
        """Close all connections. Clients connect again by themselves, so nothing is sent to them."""
        self.stop_listening()
        for connection in list(self.server.connections):
            connection.close("")
        self._broker.turn.schedule()
        await asyncio.sleep(0)
        for connection in list(self.server.connections):
            connection.abort()

    def close(self) -> None:
        self.server.coordinator.stop()
        self.server.fetches.stop()
