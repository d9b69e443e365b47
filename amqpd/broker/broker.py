"""The broker: vhosts, users, metadata, and the end of each turn.

It has no socket and no HTTP of its own, and knows no channel: `amqpd.server` builds it, channels and the admin API call
down into it, and what all clients have to hear goes through `clients`. What is declared and deleted goes through
`declared`, which answers on the loop when it is durable.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from amqpd.auth.backends import BackendContext, InternalBackend
from amqpd.broker.catalogue.declared import Coming, Declared, Done, Name, promise
from amqpd.broker.catalogue.deletion import Deletions
from amqpd.broker.catalogue.exchange import Binding, Exchange
from amqpd.broker.catalogue.restore import Report
from amqpd.broker.catalogue.unavailable import Unavailable
from amqpd.broker.catalogue.vhost import VHost
from amqpd.broker.clients import Clients
from amqpd.broker.counters import Ended
from amqpd.broker.destination import Destination
from amqpd.broker.flow.alarms import Alarms
from amqpd.broker.flow.timers import Timers
from amqpd.broker.flow.turn import Turn
from amqpd.broker.flow.unfinished_bodies import UnfinishedBodies
from amqpd.broker.hosting import BrokerHost
from amqpd.broker.publishing.dead_letters import DeadLetters
from amqpd.broker.queues.host import QueueHost
from amqpd.broker.queues.opening import Opener
from amqpd.broker.queues.pump_retries import PumpRetries
from amqpd.broker.queues.queue import Queue
from amqpd.broker.queues.queue_kinds import make_queue
from amqpd.broker.queues.windows import Windows
from amqpd.protocol.codec import decode_table
from amqpd.routing.exchange import ExchangeType, exchange_type
from amqpd.storage.filesystem import Clock
from amqpd.storage.metadata.metadata import (
    Change,
    Delete,
    ExchangeRow,
    Metadata,
    MetadataState,
    Put,
    VhostRow,
    random_id,
)
from amqpd.storage.queue_log import QueueLog
from amqpd.storage.storage import Storage

if TYPE_CHECKING:
    from amqpd.settings import Settings

log = logging.getLogger(__name__)

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
        self.deletions = Deletions(storage, metadata, self._forget, self._deleted)
        self.start_report = Report()
        self.opener = Opener(loop.call_soon)
        self.vhosts: dict[str, VHost] = {}
        self.dead_letters = DeadLetters(self.turn, self.timers, loop.call_soon, self.vhosts)
        self.pump_retries = PumpRetries(loop.call_later)
        self.windows = Windows()
        self.turn.log_failed = self._log_failed
        storage.on_commit = self.turn.committed
        self.message_size_max_bytes = settings.amqp.message_size_max_bytes
        self.clients = Clients()  # whoever serves them takes this over, before load()
        self.reply_consumers: dict[str, Destination] = {}
        self.auth: InternalBackend = None  # type: ignore[assignment]  # load() brings it, before any connection
        self.declared = Declared(metadata.submit, loop.call_soon, loop.call_later)
        self.alarm_reason = ""
        self.alarms = Alarms(
            loop,
            settings.data_dir,
            settings.limits.memory_high_watermark,
            settings.limits.disk_free_bytes,
            self._alarm_changed,
        )
        # Of bodies alone the memory alarm must not come, for it would hold those that end them.
        self.unfinished_bodies = UnfinishedBodies(
            max(
                self.message_size_max_bytes,
                min(settings.limits.unfinished_bodies_bytes, self.alarms.memory_limit_bytes // 4),
            )
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
            self.deletions.finish_vhost(row)
        for row in state.vhosts:
            self.vhosts[row.name] = self.new_vhost(row)
        for exchange_row in state.exchanges:
            vhost = self.vhosts[exchange_row.vhost]
            exchange = Exchange(
                exchange_row.name,
                exchange_row.type,
                _matcher(exchange_row),
                True,
                exchange_row.auto_delete,
                exchange_row.internal,
                _table(exchange_row.arguments),
            )
            vhost.add_exchange(exchange)
        for queue_row in state.queues:
            vhost = self.vhosts[queue_row.vhost]
            store = self.storage.open_queue(
                vhost.id, queue_row.id, queue_row.name, vhost.name, None, queue_row.auto_delete, queue_row.arguments
            )
            queue = make_queue(
                vhost.queue_host, queue_row.name, True, queue_row.auto_delete, None, _table(queue_row.arguments), store
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
                self.remove([Delete(binding_row)])
                continue
            vhost.add_binding(Binding(source, destination, binding_row.routing_key, _table(binding_row.arguments)))
        for queue_row in state.deleting_queues:
            self.deletions.finish(self.vhosts[queue_row.vhost].id, queue_row)

    def _forget(self, changes: Sequence[Change]) -> None:
        """Rows of what is deleted. When the broker stops before this, the next start sees to them."""
        self.remove(changes)

    def new_vhost(self, row: VhostRow) -> VHost:
        """One that `add_vhost` has not made known yet."""
        vhost = VHost(self, row.name, row.id)
        vhost.become(row)
        return vhost

    def host_queues(self, vhost_name: str, vhost_id: str) -> QueueHost:
        """What the queues of this vhost need of the broker."""
        return BrokerHost(
            vhost_name,
            vhost_id,
            self.turn,
            self.timers,
            self.windows,
            self.storage,
            self.opener,
            self.pump_retries,
            self.dead_letters,
            self._expire_queue,
        )

    def _expire_queue(self, queue: Queue) -> None:
        """x-expires: nobody has used it for long enough."""
        _, changes = self.vhosts[queue.vhost_name].delete_queue(queue)
        self.remove(changes, [queue])

    def add_vhost(self, vhost: VHost) -> None:
        """Its row is committed."""
        self.vhosts[vhost.name] = vhost
        log.info("vhost '%s' was added", vhost.name, extra={"vhost": vhost.name})

    # -- metadata ----------------------------------------------------------------------------------------------------

    async def committed(self, changes: Sequence[Change]) -> None:
        """Returns once the changes are durable. Raises: MetadataError."""
        if changes:
            future, done = promise()
            self.metadata.submit(changes, done)
            await future

    async def make(self, coming: Coming | None) -> None:
        """Returns once it is durable and there. Raises: MetadataError, OnItsWay."""
        if coming is not None:
            future, done = promise()
            self.declared.make(coming, done)
            await future

    def remove(self, changes: Sequence[Change], queues: Sequence[Queue] = (), done: Done | None = None) -> None:
        """Removes the rows of what memory has forgotten, however often the database fails, then the queues'
        directories: see deletion.py.

        done: called with None when neither comes back, or with the error of the first try.
        """
        told = done is None

        def renamed() -> None:
            if done is not None and not told:
                done(None)

        def tried(error: BaseException | None) -> None:
            nonlocal told
            if error is not None and done is not None:
                told = True
                done(error)

        if changes:
            self.declared.remove(changes, lambda: self.deletions.drop(queues, renamed), tried)
        else:
            self.deletions.drop(queues, renamed)

    async def removed(self, changes: Sequence[Change], queues: Sequence[Queue] = ()) -> None:
        """The same. Raises: MetadataError when the first try failed."""
        future, done = promise()
        self.remove(changes, queues, done)
        await future

    def _deleted(self, count: int) -> None:
        self.queue_deleted_count += count

    # -- vhosts ------------------------------------------------------------------------------------------------------

    async def create_vhost(
        self, name: str, description: str = "", tags: Sequence[str] = (), default_queue_type: str = "classic"
    ) -> None:
        """A vhost of this name, when there is none. Raises: MetadataError, OnItsWay."""
        if name not in self.vhosts:
            row = VhostRow(name, random_id(), description, tuple(tags), default_queue_type)
            await self.make(Coming([Put(row)], partial(self.add_vhost, self.new_vhost(row)), [Delete(row)]))

    async def change_vhost(self, vhost: VHost, description: str, tags: Sequence[str], default_queue_type: str) -> None:
        """Raises: MetadataError, OnItsWay."""
        row = VhostRow(vhost.name, vhost.id, description, tuple(tags), default_queue_type)
        if row != vhost.row():
            await self.make(Coming([Put(row)], partial(vhost.become, row), [Put(vhost.row())]))

    async def delete_vhost(self, name: str) -> None:
        """Deletes it with all that is in it, and closes its connections. Raises: KeyError, MetadataError, OnItsWay."""
        vhost = self.vhosts[name]
        row = vhost.row()._replace(state="deleting")
        future, done = promise()
        await self.make(Coming([Put(row)], partial(self._end_vhost, vhost, row, done), [Put(vhost.row())]))
        await future

    def _end_vhost(self, vhost: VHost, row: VhostRow, done: Done) -> None:
        """Its tombstone is committed: a restart would not show it either. Its name is free when its row is gone.

        done: called when its directory will not come back either.
        """
        vhost.deleted = True
        del self.vhosts[vhost.name]
        about = {"vhost": vhost.name}
        log.info("vhost '%s' was deleted with its %d queues", vhost.name, len(vhost.queues), extra=about)
        self.clients.vhost_deleted(vhost)
        queues = list(vhost.queues.values())
        for queue in queues:
            vhost.delete_queue(queue)
        self.auth.forget_vhost(vhost.name)
        name = Name(vhost.name, "vhost", vhost.name)
        self.declared.hold(name)

        def renamed() -> None:
            self.declared.free([name])
            self.remove([Delete(row)])  # which holds it again
            done(None)

        self.deletions.drop_vhost(vhost, queues, renamed)

    def _log_failed(self, store: QueueLog) -> None:
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
                    extra={"vhost": vhost.name, "queue": queue.name},
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


def _matcher(row: ExchangeRow) -> ExchangeType:
    """Of an exchange that was declared in an earlier life; a guest's package may be gone, or broken."""
    try:
        return exchange_type(row.type)()
    except Exception as error:  # noqa: BLE001  # a guest may fail in any way, and must not keep the broker from starting
        matcher = Unavailable(row.type)
        log.error("exchange '%s' in vhost '%s' is unavailable (%s): %s", row.name, row.vhost, error, matcher.reason)
        return matcher


def _table(encoded: bytes) -> dict[str, object]:
    return decode_table(encoded, 0)[0] if encoded else {}

