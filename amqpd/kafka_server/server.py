"""The listener for Kafka's protocol, and the state that its connections share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, cast

from amqpd.auth.internal_backend import AuthenticationRefused
from amqpd.broker.events import KAFKA_PROTOCOL
from amqpd.broker.listeners import BrokerListener
from amqpd.broker.session import Session
from amqpd.config.schema import KafkaSettings
from amqpd.connection import peer_certificate
from amqpd.errors import NotAllowed
from amqpd.kafka_server import (
    access_admin,
    config_admin,
    coordinator,
    fetch,
    partition_admin,
    produce,
    quotas,
    sasl,
    share_groups,
    share_offsets,
    share_sessions,
    topic_admin,
    topics,
    transaction_admin,
    transaction_requests,
)
from amqpd.kafka_server.connection import Api, Call, KafkaClientConnection, RequestStats, api_versions, typed_api
from amqpd.kafka_server.group_operations import GroupOperations
from amqpd.kafka_server.message_schema import encode_steps
from amqpd.kafka_server.messages import API_VERSIONS
from amqpd.kafka_server.pace import Pace, run_all
from amqpd.kafka_server.share_states import ShareStates
from amqpd.kafka_server.share_stream import ShareStreams
from amqpd.listeners import is_loopback
from amqpd.protocol_server import TcpFrontEnd

if TYPE_CHECKING:
    from amqpd.auth.internal_backend import AuthChange, User
    from amqpd.broker.broker import Broker
    from amqpd.broker.consumer import QueueBase
    from amqpd.broker.listeners import ListedConnection
    from amqpd.config import Settings
    from amqpd.connection.malloc_trim import MallocTrimmer
    from amqpd.connection.unauthenticated import UnauthenticatedSockets


LOCAL_ANONYMOUS_USER: Final = KafkaSettings.anonymous_user
"""The default of `kafka.anonymous_user`."""


def _answer_api_versions(call: Call) -> None:
    """Answer with a body that is made once for each version: it takes 0.2 ms, half of the time of a login."""
    server = call.connection.server
    body = server.api_versions_bodies.get(call.version)
    if body is None:
        body = run_all(encode_steps(call.api.response, call.version, call.is_flexible, api_versions(server.apis)))
        server.api_versions_bodies[call.version] = body
    call.reply_bytes(body)


def every_api() -> tuple[Api, ...]:
    """Return all requests that the broker understands."""
    versions = typed_api(API_VERSIONS, "ApiVersions", 0, 4, 3, _answer_api_versions, before_login=True)
    modules = (
        topics,
        topic_admin,
        partition_admin,
        config_admin,
        produce,
        fetch,
        coordinator,
        transaction_requests,
        transaction_admin,
        share_groups,
        share_sessions,
        share_offsets,
        sasl,
        access_admin,
        quotas,
    )
    return (versions, *(api for module in modules for api in module.APIS))


class KafkaServer(BrokerListener):
    """State that all connections share.

    Attributes:
        apis: by API key.
        api_versions_bodies: of the responses of ApiVersions, by version.
        unopened: limit on sockets that have not logged in, shared with AMQP.
        malloc_trimmer: returns memory after connections have closed, shared with AMQP.
        coordinator: the consumer groups of all vhosts.
        fetches: the Fetch requests that wait for records.
        pace: the time that requests take in a turn of the event loop.
        quotas: byte rates of users.
        operations: what operators see of groups and do with them.
        stats: counters for metrics.
        tasks: of `KafkaClientConnection.start_task`.
        share_sessions, share_groups, share_states, share_streams: of the share groups of all vhosts.
    """

    def __init__(self, broker: Broker, unopened: UnauthenticatedSockets, malloc_trimmer: MallocTrimmer) -> None:
        self.broker = broker
        self.unopened = unopened
        self.malloc_trimmer = malloc_trimmer
        self.settings: KafkaSettings = broker.settings.kafka
        self.connections: set[KafkaClientConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.apis = {api.key: api for api in every_api()}
        self.api_versions_bodies: dict[int, bytes] = {}
        self.pace = Pace(broker.turn, broker.loop.call_soon)
        self.coordinator = coordinator.GroupCoordinator(broker, self.pace)
        self.fetches = fetch.WaitingFetches(broker, self.pace)
        self.operations = GroupOperations(self.coordinator, self.fetches)
        self.stats = RequestStats()
        self.quotas = quotas.ClientQuotas(broker.user_limits, broker.timers)
        self.share_states = ShareStates(self.coordinator.offsets, broker)
        self.coordinator.on_sweep.append(self.share_states.remove_void)
        self.share_streams = ShareStreams(broker, self.share_states, self.fetches)
        self.share_sessions = share_sessions.ShareSessions(broker, self.share_streams)
        self.share_groups = share_groups.ShareGroups(broker, self.share_sessions.member_left)
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
        session = Session(broker, vhost, user, connection.name, connection.peer, front_end="kafka")
        broker.admission.on_opened(session, user.name, vhost)
        connection.on_close.append(lambda: broker.admission.on_closed(session, user.name, vhost))
        connection.logged_in(session)
        return ""

    def log_in_without_sasl(self, connection: KafkaClientConnection) -> str:
        """Log a client without SASL in: as the user of its TLS certificate, if the listener asks for certificates and
        the client has shown one, else as `kafka.anonymous_user`. Return why not, or "".

        The default of this setting is for clients on this machine only, also if `amqp.loopback_users` does not have it:
        its password would protect nothing.
        """
        certificate = connection.peer_certificate() if self.settings.tls.verify_peer else {}
        name = self.settings.anonymous_user
        if not certificate and not name:
            return "a request before the login"
        connection.mechanism = "EXTERNAL" if certificate else ""
        try:
            is_local = is_loopback(connection.peer[0])
            if certificate:
                name = peer_certificate.external_user_name(certificate, self.broker.settings.auth)
            elif name == LOCAL_ANONYMOUS_USER and not is_local:
                raise AuthenticationRefused(f"user {name!r} without SASL can only connect via a loopback address")
            user = self.broker.auth.authenticate_external(name, is_local)
        except AuthenticationRefused as error:
            self.record_login(connection, name, str(error))
            return str(error)
        why = self.log_in(connection, user, self.settings.vhost)
        self.record_login(connection, name, why)
        return why

    def record_login(self, connection: KafkaClientConnection, name: str, error: str) -> None:
        """Count a login and emit its event, which the audit log records, as for AMQP. error: "" for success."""
        broker = self.broker
        broker.auth.login_stats.count_login("kafka", connection.peer[0], name, not error)
        events = broker.catalogue.events
        if events.has_listeners:
            about = {
                "name": name,
                "connection_type": "network",
                "connection_name": connection.name,
                "host": connection.local[0],
                "peer_host": connection.peer[0],
                "peer_port": connection.peer[1],
                "protocol": KAFKA_PROTOCOL,
                "auth_mechanism": connection.mechanism,
                "ssl": connection.tls,
                **peer_certificate.tls_info(connection.peer_certificate()),
            }
            outcome = {"error": error} if error else {}
            events.emit(f"user.authentication.{'failure' if error else 'success'}", {**about, **outcome}, "")

    # -- BrokerListener

    def on_alarm_end(self) -> None:
        for connection in list(self.connections):
            connection.on_alarm_end()

    def listed_connections(self) -> Iterator[ListedConnection]:
        return (cast("ListedConnection", each) for each in self.connections if each.session is not None)

    def on_user_changed(self, change: AuthChange) -> None:
        for connection in list(self.connections):
            session = connection.session
            if session is not None and (why := session.revocation_reason(change)):
                connection.close(why)

    def vhost_deleted(self, name: str) -> None:
        for connection in list(self.connections):
            if connection.session is not None and connection.session.vhost.name == name:
                connection.close(f"vhost '{name}' was deleted")
        self.coordinator.vhost_deleted()

    def on_offsets_lost(self, queue: QueueBase, ranges: list[tuple[int, int]]) -> None:
        self.share_sessions.on_offsets_lost(queue, ranges)


class KafkaFrontEnd(TcpFrontEnd):
    """The Kafka front end: `kafka` on `kafka.port`, and `kafkas` on `kafka.tls.port`."""

    def __init__(self, broker: Broker, unopened: UnauthenticatedSockets, malloc_trimmer: MallocTrimmer) -> None:
        super().__init__(broker, "kafka")
        self.server = KafkaServer(broker, unopened, malloc_trimmer)

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
        self.server.share_groups.stop()
        self.server.share_streams.stop()
