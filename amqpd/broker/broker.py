"""The broker: vhosts, users, metadata, and the end of each turn.

It has no socket and no HTTP of its own, and knows no channel: `amqpd.server` builds it, channels and the admin API call
down into it, and what all clients have to hear goes through `clients`. Metadata changes go through `commit`, which
answers on the loop when they are durable.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from amqpd.auth.backends import BackendContext, InternalBackend
from amqpd.broker.alarms import Alarms
from amqpd.broker.clients import Clients
from amqpd.broker.counters import Ended
from amqpd.broker.deadletter import DeadLetters
from amqpd.broker.destination import Destination
from amqpd.broker.exchange import Binding, Exchange
from amqpd.broker.flow import Turn
from amqpd.broker.pump_retries import PumpRetries
from amqpd.broker.queue import Queue
from amqpd.broker.queue_kinds import make_queue
from amqpd.broker.timers import Timers
from amqpd.broker.vhost import VHost
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
        self.timers = Timers(loop.call_later, Clock())
        self.turn = Turn(storage, loop.call_soon, self.timers)
        self.dead_letters = DeadLetters(self.turn, self.timers, loop.call_soon)
        self.pump_retries = PumpRetries(loop.call_later)
        self.turn.log_failed = self._log_failed
        storage.on_commit = self.turn.committed
        self.message_size_max_bytes = settings.amqp.message_size_max_bytes
        self.vhosts: dict[str, VHost] = {}
        self.clients = Clients()  # whoever serves them takes this over, before load()
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
        self.cluster_name = f"amqpd@{os.uname().nodename}"
        self.started_at = time.time()
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
        self.auth.listeners.append(self.clients.user_changed)
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
        self.clients.vhost_deleted(vhost)
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
                    self.clients.forget_offsets(queue, ranges)
        # A full disk raises the alarm now, not at the next look.
        self.alarms.look()

    def _alarm_changed(self, reason: str) -> None:
        self.alarm_reason = reason
        self.turn.alarmed = bool(reason)
        if not reason:
            self.clients.alarm_ended()

    def wall_time(self) -> float:
        """Seconds since 1970, for people's eyes only."""
        return time.time()


def _table(encoded: bytes) -> dict[str, object]:
    return decode_table(encoded, 0)[0] if encoded else {}


def _logged(error: BaseException | None) -> None:
    if error is not None:
        log.error("metadata change failed: %s", error)

