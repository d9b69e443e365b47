"""Registry of the open AMQP connections of a broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from amqpd.broker.events import as_broker
from amqpd.broker.listeners import BrokerListener
from amqpd.broker.vhost import declare
from amqpd.channel import handlers
from amqpd.connection.handover import VhostRouter
from amqpd.connection.malloc_trim import MallocTrimmer, malloc_trim
from amqpd.connection.unauthenticated import UnauthenticatedSockets

if TYPE_CHECKING:
    from amqpd.auth.internal_backend import AuthChange
    from amqpd.broker.broker import Broker
    from amqpd.broker.consumer import QueueBase
    from amqpd.connection.connection import Connection


class ConnectionRegistry(BrokerListener):
    """The open connections by name, and the listener for broker events that concern them.

    Attributes:
        opened_count, closed_count: since the start.
        ended_received_bytes, ended_sent_bytes: totals of the closed connections.
        vhost_router: the router to other nodes of a cluster.
    """

    def __init__(self, broker: Broker) -> None:
        self.by_name: dict[str, Connection] = {}
        self.opened_count = 0
        self.closed_count = 0
        self.ended_received_bytes = 0
        self.ended_sent_bytes = 0
        self.admission = broker.admission
        limits = broker.settings.limits
        self.unopened = UnauthenticatedSockets(
            broker.loop.call_soon, limits.unopened_share, limits.reserved_descriptors
        )
        self.vhost_router: VhostRouter | None = None
        self.malloc_trimmer = MallocTrimmer(broker.loop, malloc_trim())
        broker.clients.append(self)

    def __iter__(self) -> Iterator[Connection]:
        """Iterate over a snapshot, because connections can end during the loop."""
        return iter(list(self.by_name.values()))

    def add(self, connection: Connection) -> None:
        self.by_name[connection.name] = connection
        session = connection.session
        self.admission.on_opened(session, session.user.name, session.vhost)
        self.opened_count += 1

    def release(self, connection: Connection) -> None:
        """Release all resources of an ending connection. Can be called twice."""
        self.by_name.pop(connection.name, None)
        connection.drop_partial_bodies()
        for channel in connection.channels.all():
            if not channel.closing:
                channel.closing = True
                handlers.release_channel(channel)
            connection.pending_commands.drop(channel.number)
        session = connection.opened
        if session is None:
            return
        self.admission.on_closed(session, session.user.name, session.vhost)
        with as_broker():  # rabbit
            declare.delete_queues(session.vhost, session.vhost.exclusive_queues(session))

    # -- events of the broker ------------------------------------------------------------------------------------------

    def on_user_changed(self, change: AuthChange) -> None:
        """Drop cached routes of all connections. Close those of a user without access."""
        for connection in self:
            connection.clear_route_cache()
            if why := connection.session.revocation_reason(change):
                connection.control.force(why)

    def vhost_deleted(self, name: str) -> None:
        self.on_vhost_unloaded(name, f"vhost '{name}' is deleted")

    def on_vhost_unloaded(self, name: str, why: str) -> None:
        for connection in self:
            if connection.session.vhost.name == name:
                connection.control.force(why)

    def on_offsets_lost(self, queue: QueueBase, ranges: list[tuple[int, int]]) -> None:
        for connection in self:
            for channel in connection.channels.all():
                channel.deliveries.clear_offsets(queue, ranges)

    def on_alarm_end(self) -> None:
        for connection in self:
            connection.control.resume_after_alarm()
