"""The broker: vhosts, connections, users, and the one place that ties the rooms together.

It has no socket and no HTTP of its own. `amqpd.server` builds it; connections call `dispatch` with what they decoded;
the admin API calls the same methods that channels do. Metadata changes go through `commit`, which answers on the loop
when they are durable.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from amqpd.auth.backends import AuthChange, BackendContext, InternalBackend
from amqpd.auth.permissions import Kind, TopicKind
from amqpd.broker.alarms import Alarms
from amqpd.broker.deadletter import DeadLetters
from amqpd.broker.exchange import Binding, Exchange
from amqpd.broker.flow import Turn
from amqpd.broker.message import Envelope
from amqpd.broker.queue import Destination, Queue
from amqpd.broker.queue_kinds import make_queue
from amqpd.broker.timers import Timers
from amqpd.broker.vhost import VHost
from amqpd.channel import on_basic, on_channel, on_confirm, on_exchange, on_queue, on_tx
from amqpd.channel.channel import Channel, Route
from amqpd.errors import (
    AccessRefused,
    AmqpError,
    ChannelError,
    CommandInvalid,
    FrameError,
    NotImplementedByBroker,
    SoftError,
)
from amqpd.metrics import Ended, channel_counts
from amqpd.protocol import commands
from amqpd.protocol.assembler import BASIC_PUBLISH
from amqpd.protocol.codec import decode_table
from amqpd.routing.exchange import exchange_type
from amqpd.storage.filesystem import Clock
from amqpd.storage.metadata import (
    Change,
    Delete,
    Metadata,
    MetadataClosed,
    MetadataState,
    Put,
    QueueRow,
    VhostRow,
    random_id,
)
from amqpd.storage.queue_store import QueueStore
from amqpd.storage.storage import Storage

if TYPE_CHECKING:
    from amqpd.connection.connection import Connection
    from amqpd.server import Server
    from amqpd.settings import Settings

log = logging.getLogger(__name__)

Done = Callable[[BaseException | None], None]


class Broker:
    """One per process."""

    def __init__(
        self, settings: Settings, storage: Storage, metadata: Metadata, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.settings = settings
        self.storage = storage
        self.metadata = metadata
        self.loop = loop
        self.turn = Turn(storage, loop.call_soon)
        self.timers = Timers(loop.call_later, Clock())
        self.dead_letters = DeadLetters(self.turn, self.timers, loop.call_soon)
        self.turn.log_failed = self._log_failed
        storage.on_commit = self.turn.committed
        self.message_size_max_bytes = settings.amqp.message_size_max_bytes
        self.vhosts: dict[str, VHost] = {}
        self.connections: dict[str, Connection] = {}
        self.reply_consumers: dict[str, Destination] = {}
        self.auth: InternalBackend = None  # type: ignore[assignment]  # load() brings it, before any connection
        # Metadata changes on their way: who finds a thing already declared waits for them too.
        self.commits_pending = 0
        self.alarm_reason = ""
        self.alarms = Alarms(
            loop,
            settings.data_dir,
            settings.limits.memory_high_watermark,
            settings.limits.disk_free_bytes,
            self._alarm_changed,
        )
        # Set by the server, for the commands that stop and start it.
        self.server: Server | None = None
        self.cluster_name = f"amqpd@{os.uname().nodename}"
        self.started_at = time.time()
        self.connection_opened_count = 0
        self.connection_closed_count = 0
        self.channel_opened_count = 0
        self.channel_closed_count = 0
        self.queue_declared_count = 0
        self.queue_created_count = 0
        self.queue_deleted_count = 0
        # What channels and queues that ended had counted, so that totals never fall; see amqpd.metrics.
        self.ended_channels = Ended()
        self.ended_queues = Ended()

    # -- start -------------------------------------------------------------------------------------------------------

    def load(self, state: MetadataState) -> None:
        """Brings back what was durable. Queues' logs are opened, not read."""
        self.auth = InternalBackend(
            BackendContext(self.metadata, state, self.vhosts.__contains__, self.settings.amqp.loopback_users)
        )
        self.auth.listeners.append(self._auth_changed)
        for row in state.deleting_vhosts:
            self.storage.delete_vhost_files(row.id)
            self.commit([Delete(row)], _logged)
        for row in state.vhosts:
            self._add_vhost(row)
        for exchange_row in state.exchanges:
            vhost = self.vhosts[exchange_row.vhost]
            exchange = Exchange(
                exchange_row.name,
                exchange_row.type,
                exchange_type(exchange_row.type)(),
                True,
                exchange_row.auto_delete,
                exchange_row.internal,
                _table(exchange_row.arguments),
            )
            vhost.add_exchange(exchange)
        for queue_row in state.queues:
            vhost = self.vhosts[queue_row.vhost]
            store = self.storage.open_queue(vhost.id, queue_row.id, queue_row.name, vhost.name)
            queue = make_queue(
                vhost, queue_row.name, True, queue_row.auto_delete, None, _table(queue_row.arguments), store
            )
            queue.id = queue_row.id
            vhost.add_queue(queue)
        for binding_row in state.bindings:
            vhost = self.vhosts[binding_row.vhost]
            destination: Queue | Exchange | None
            if binding_row.destination_type == "queue":
                destination = vhost.queues.get(binding_row.destination)
            else:
                destination = vhost.exchanges.get(binding_row.destination)
            source = vhost.exchanges.get(binding_row.source)
            if source is None or destination is None:
                # One end went with a deletion that a crash cut short.
                self.commit([Delete(binding_row)], _logged)
                continue
            vhost.add_binding(Binding(source, destination, binding_row.routing_key, _table(binding_row.arguments)))
        for queue_row in state.deleting_queues:
            self._finish_deletion(queue_row)

    def _finish_deletion(self, row: QueueRow) -> None:
        """A deletion that a crash interrupted: the files go, then the row."""
        vhost = self.vhosts[row.vhost]
        self.storage.delete_queue_files(vhost.id, row.id, partial(self._forget_row, row))

    def _forget_row(self, row: QueueRow) -> None:
        """A deleted queue's files are gone. When the broker stops before this, the next start sees to the row."""
        try:
            self.commit([Delete(row)], _logged)
        except MetadataClosed:
            self.commits_pending -= 1

    def _add_vhost(self, row: VhostRow) -> VHost:
        vhost = VHost(self, row.name, row.id, row.description, row.tags)
        vhost.default_queue_type = row.default_queue_type
        self.vhosts[row.name] = vhost
        return vhost

    # -- metadata ----------------------------------------------------------------------------------------------------

    def commit(self, changes: Sequence[Change], done: Done) -> None:
        """Calls done(None) on the loop once the changes, and all submitted before, are durable; done(error) if not."""
        self.commits_pending += 1
        self.metadata.submit(changes, partial(self._committed, done))

    def _committed(self, done: Done, error: BaseException | None) -> None:
        self.commits_pending -= 1
        done(error)

    async def committed(self, changes: Sequence[Change]) -> None:
        """Returns once the changes are durable. Raises: MetadataError."""
        if not changes:
            return
        future: asyncio.Future[None] = self.loop.create_future()

        def done(error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self.commit(changes, done)
        await future

    def drop_store(self, queue: Queue) -> None:
        """After the tombstone is committed: the files go, then the row."""
        store = queue.store
        if store is None:
            return
        queue.store = None
        if queue.id:
            row = QueueRow(queue.vhost.name, queue.name, queue.id)
            self.storage.delete_queue(store, partial(self._forget_row, row))
        else:
            self.storage.delete_queue(store)

    def commit_in_background(self, changes: list[Change], queues: Sequence[Queue] = ()) -> None:
        """Changes nobody waits for: an auto-delete, the end of a connection."""

        def done(error: BaseException | None) -> None:
            _logged(error)
            for queue in queues:
                self.drop_store(queue)

        if changes:
            self.commit(changes, done)
        else:
            for queue in queues:
                self.drop_store(queue)

    # -- vhosts ------------------------------------------------------------------------------------------------------

    async def create_vhost(self, name: str, description: str = "", tags: Sequence[str] = ()) -> VHost:
        """The vhost of this name, made when it is not there. Raises: MetadataError."""
        vhost = self.vhosts.get(name)
        if vhost is not None:
            return vhost
        row = VhostRow(name, random_id(), description, tuple(tags))
        await self.committed([Put(row)])
        return self.vhosts.get(name) or self._add_vhost(row)

    async def delete_vhost(self, name: str) -> None:
        """Closes its connections, deletes what is in it. Raises: KeyError."""
        vhost = self.vhosts[name]
        vhost.deleted = True
        del self.vhosts[name]
        for connection in list(self.connections.values()):
            if connection.vhost is vhost:
                connection.control.force(f"vhost '{name}' is down")
        row = VhostRow(name, vhost.id, vhost.description, vhost.tags, vhost.default_queue_type)
        await self.committed([Put(row._replace(state="deleting"))])
        for queue in list(vhost.queues.values()):
            vhost.delete_queue(queue)
            if queue.store is not None:
                self.storage.delete_queue(queue.store)
                queue.store = None
        self.storage.delete_vhost_files(vhost.id)
        self.auth.forget_vhost(name)
        await self.committed([Delete(row)])

    # -- permissions -------------------------------------------------------------------------------------------------

    def check(self, connection: Connection, kind: Kind, thing: str, name: str) -> None:
        """May the connection's user do this? kind: configure, write or read; thing: queue or exchange.

        Cost: a dict look-up after the first time. Raises: AccessRefused.
        """
        if not self.auth.may(connection.user, connection.vhost.name, kind, name or "amq.default"):
            shown = name or "amq.default"
            raise AccessRefused(
                f"access to {thing} '{shown}' in vhost '{connection.vhost.name}' refused for user "
                f"'{connection.user.name}'"
            )

    def check_topic_keys(
        self, connection: Connection, exchange: Exchange, keys: Sequence[str], kind: TopicKind = "write"
    ) -> None:
        """Topic permissions: routing keys on topic exchanges. Raises: AccessRefused."""
        if exchange.kind != "topic":
            return
        for key in keys:
            if not self.auth.may_topic(connection.user, connection.vhost.name, exchange.name, kind, key):
                raise AccessRefused(
                    f"access to topic '{key}' in exchange '{exchange.name}' in vhost '{connection.vhost.name}' "
                    f"refused for user '{connection.user.name}'"
                )

    # -- the road ----------------------------------------------------------------------------------------------------

    def resolve(self, connection: Connection, method: bytes) -> tuple[Route, bool]:
        """A basic.publish to its route. Raises: what the checks raise; see Channel.publish."""
        try:
            command = commands.decode(method)
        except commands.MethodSyntaxError as error:
            raise FrameError(error.text, BASIC_PUBLISH) from None
        assert isinstance(command, commands.BasicPublish)  # the assembler has looked
        try:
            return self._resolve(connection, command)
        except SoftError as error:
            error.method = BASIC_PUBLISH
            raise

    def _resolve(self, connection: Connection, command: commands.BasicPublish) -> tuple[Route, bool]:
        if command.immediate:
            raise NotImplementedByBroker("immediate=true", BASIC_PUBLISH)
        vhost = connection.vhost
        self.check(connection, "write", "exchange", command.exchange)
        exchange = vhost.exchange(command.exchange)
        if exchange.internal:
            raise AccessRefused(f"cannot publish to internal exchange '{exchange.name}' in vhost '{vhost.name}'")
        key = command.routing_key
        self.check_topic_keys(connection, exchange, (key,))
        envelope = Envelope(exchange.name, key)
        if exchange.matcher is None:
            target = vhost.by_name(key)
            if target is None:
                return Route(envelope, [], command.mandatory, exchange.routes, False), False
            return Route(envelope, [target], command.mandatory, target, False), True
        if vhost.needs_headers(exchange):
            return Route(envelope, [], command.mandatory, exchange.routes, True), True
        destinations = vhost.route(exchange, [key], dict)
        route = Route(envelope, destinations, command.mandatory, exchange.routes, False)
        limited = exchange.kind == "topic" and self.auth.topic_limited(connection.user, vhost.name, exchange.name)
        if not limited and not exchange.alternate:
            route.matcher = exchange.matcher
        return route, True

    def dispatch(
        self, connection: Connection, channel: Channel | None, number: int, method: int, payload: bytes
    ) -> None:
        """A method on a channel: legal here, decoded, handled by the module of its class."""
        if method == commands.CHANNEL_OPEN:
            on_channel.open_channel(connection, channel, number)
            return
        if channel is None:
            if method == commands.CHANNEL_CLOSE_OK:
                raise CommandInvalid("unimplemented method", method)
            _known(method)
            raise ChannelError("expected 'channel.open'", method)
        if channel.closing:
            if method == commands.CHANNEL_CLOSE_OK:
                connection.forget_channel(number)
                connection.assembler.take_channel(number)
            elif method == commands.CHANNEL_CLOSE:
                # Both closes have crossed: a client that sent its own still answers ours (spec: 1.5.2.5).
                connection.send(number, commands.ChannelCloseOk())
                channel.crossed = True
            return
        handler = HANDLERS.get(method)
        if handler is None:
            _known(method)
            # Known, but not for a client to send.
            raise CommandInvalid("unimplemented method", method)
        try:
            command = commands.decode(payload)
        except commands.MethodSyntaxError as error:
            if "UTF-8" in error.reason:
                # rabbit: a name that is not UTF-8 is told apart, and with no method
                raise FrameError("Malformed UTF-8 in shortstr") from None
            raise FrameError(error.text, method) from None
        try:
            handler(channel, command)
        except AmqpError as error:
            if not error.method:
                error.method = method
            raise

    # -- ends --------------------------------------------------------------------------------------------------------

    def close_channel(self, channel: Channel) -> None:
        """Consumers go, what is unacked goes back to its place, an open transaction is forgotten."""
        self.channel_closed_count += 1
        self.ended_channels.add(channel_counts(channel))
        for consumer in list(channel.consumers.values()):
            on_basic.remove_consumer(channel, consumer)
        if channel.reply_consumer is not None:
            self.reply_consumers.pop(channel.reply_consumer.key, None)
            channel.reply_consumer.version += 1
            channel.reply_consumer = None
        channel.tx_publishes.clear()
        channel.tx_settlements.clear()
        on_basic.requeue_all(channel, channel.take_all())

    def release_connection(self, connection: Connection) -> None:
        """Everything a connection held, when it ends: by close, by error, by a lost socket. May be called twice."""
        self.connections.pop(connection.name, None)
        for channel in list(connection.channels.values()):
            if not channel.closing:
                channel.closing = True
                self.close_channel(channel)
            connection.forget_channel(channel.number)
        vhost = connection.vhost_or_none()
        if vhost is None:
            return
        changes: list[Change] = []
        gone: list[Queue] = []
        for queue in vhost.exclusive_queues(connection):
            changes += vhost.delete_queue(queue)[1]
            gone.append(queue)
        self.commit_in_background(changes, gone)

    def _auth_changed(self, change: AuthChange) -> None:
        """Routes are checked anew; whoever may not be here any more goes."""
        for connection in list(self.connections.values()):
            connection.forget_routes()
            if connection.user.name != change.user:
                continue
            if change.what == "user_deleted":
                connection.control.force(f"user '{change.user}' was deleted")
            elif not self.auth.may_access_vhost(connection.user, connection.vhost.name):
                connection.control.force(f"access to vhost '{connection.vhost.name}' was revoked")

    def _log_failed(self, store: QueueStore) -> None:
        """A log could not write: its queue forgets what is not there; publishers are nacked by the caller."""
        ranges = store.take_failed_ranges()
        for vhost in self.vhosts.values():
            for queue in vhost.queues.values():
                if queue.store is not store:
                    continue
                log.error(
                    "queue '%s' in vhost '%s': the log %s",
                    queue.name,
                    vhost.name,
                    "accepts nothing more" if store.failed else "could not write; publishers are nacked",
                )
                if ranges:
                    queue.unwritten(ranges)
                    for connection in self.connections.values():
                        for channel in connection.channels.values():
                            channel.forget_offsets(queue, ranges)
        # A full disk raises the alarm now, not at the next look.
        self.alarms.look()

    def _alarm_changed(self, reason: str) -> None:
        self.alarm_reason = reason
        self.turn.alarmed = bool(reason)
        if not reason:
            for connection in list(self.connections.values()):
                connection.control.release_from_alarm()

    @property
    def alarmed(self) -> bool:
        """Whether publishers are held."""
        return bool(self.alarm_reason)

    def wall_time(self) -> float:
        """Seconds since 1970, for people's eyes only."""
        return time.time()


Handler = Callable[[Channel, commands.Command], None]

HANDLERS: dict[int, Handler] = {
    **on_channel.HANDLERS,
    **on_exchange.HANDLERS,
    **on_queue.HANDLERS,
    **on_basic.HANDLERS,
    **on_confirm.HANDLERS,
    **on_tx.HANDLERS,
}


def _known(method: int) -> None:
    """Raises: NotImplementedByBroker for ids that AMQP 0-9-1 does not have."""
    if commands.method_name(method)[0].isdigit():
        raise NotImplementedByBroker(f"unknown method {method >> 16}.{method & 0xFFFF}", method)


def _table(encoded: bytes) -> dict[str, object]:
    return decode_table(encoded, 0)[0] if encoded else {}


def _logged(error: BaseException | None) -> None:
    if error is not None:
        log.error("metadata change failed: %s", error)

