"""The broker: vhosts, users, metadata, queues, and the objects that they share.

`amqpd.server` creates it. It has no sockets and no HTTP, and imports no front end; it notifies them through
`clients`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import TYPE_CHECKING, Final

from amqpd.auth.internal_backend import InternalBackend
from amqpd.broker.audit import AUDIT, Audit, open_stream
from amqpd.broker.delayed.delayed_messages import DelayScheduler
from amqpd.broker.events import EVENT_EXCHANGE, as_broker, auth_events
from amqpd.broker.flow.alarms import Alarms, PartialBodyMemory
from amqpd.broker.flow.loop_turn import LoopTurn
from amqpd.broker.flow.timers import Timers
from amqpd.broker.jobs.job import QueueJob
from amqpd.broker.jobs.jobs import JobManager
from amqpd.broker.listeners import BrokerListener
from amqpd.broker.publish.dead_letter import DeadLetterPublisher
from amqpd.broker.publish.exchange_state import ExchangeStates
from amqpd.broker.publish.firehose import add_event_exchange, start_events
from amqpd.broker.publish.republisher import Republisher
from amqpd.broker.queue.log_opener import FailedQueueRetry, LogOpener
from amqpd.broker.queue.queue import Queue
from amqpd.broker.queue.services import MemoryWindows, QueueServices
from amqpd.broker.stats import ChannelTotals
from amqpd.broker.vhost import declare, loader
from amqpd.broker.vhost.limits import ConnectionLimiter, UserLimits
from amqpd.broker.vhost.loader import load
from amqpd.broker.vhost.parameters import CLUSTER_NAME, GlobalParameters
from amqpd.broker.vhost.recovery import RecoveryFindings, RecoveryReport
from amqpd.broker.vhost.vhost import VHost, VhostServices
from amqpd.broker.vhost.vhosts import VHosts
from amqpd.storage.metadata.rows import VhostRow
from amqpd.storage.metadata.store import MetadataState, MetadataStore
from amqpd.storage.queue_log import QueueLog
from amqpd.storage.storage import Storage

if TYPE_CHECKING:
    from amqpd.auth.internal_backend import AuthChange
    from amqpd.config import Settings

log = logging.getLogger(__name__)

FAILURE_REPORT_S: Final = 60.0


class Broker:
    """The broker of a process.

    Attributes:
        channel_max: proposed to new connections; 0 for no limit.
        clients: the listeners of all front ends.
        alarm_reason: the reason of the current alarm, or "".
        unfinished_bodies: memory budget for incomplete message bodies.
    """

    def __init__(
        self, settings: Settings, storage: Storage, metadata: MetadataStore, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.settings = settings
        self.storage = storage
        self.metadata = metadata
        self.loop = loop
        self.timers = Timers(loop.call_later, storage.clock_watch)
        self.turn = LoopTurn(storage, loop.call_soon, self.timers)
        self.catalogue = VhostServices(storage, metadata, loop.call_soon, loop.call_later)
        self.vhosts = VHosts(self.catalogue, self._host_queues, {}, self._vhost_ended)
        self.start_report = RecoveryReport()
        self.opener = LogOpener(loop.call_soon)
        self.republisher = Republisher(self.turn, self.timers, loop.call_soon)
        self.dead_letters = DeadLetterPublisher(self.republisher, self.vhosts)
        self.delays = DelayScheduler(storage, self.turn, self.timers, self.republisher, self.vhosts, loop.call_soon)
        self.pump_retries = FailedQueueRetry(loop.call_later)
        self.windows = MemoryWindows()
        self.exchange_states = ExchangeStates(self.vhosts, self.turn, self.timers, loop.call_soon, metadata.submit)
        self.catalogue.exchange_states = self.exchange_states
        self.turn.log_failed = self._log_failed
        # Failures of logs that were logged since the last FAILURE_REPORT_S began, and its end.
        self._reports: set[tuple[str, str, str]] = set()
        self._reports_end_s = 0.0
        storage.commits.on_commit = self.turn.committed
        self.message_size_max_bytes = settings.amqp.message_size_max_bytes
        if settings.cluster.kafka:  # transient queues too: the route is known only later
            self.message_size_max_bytes = min(self.message_size_max_bytes, settings.cluster.max_message_bytes)
        self.channel_max = settings.amqp.channel_max
        self.clients: list[BrokerListener] = []
        self.auth: InternalBackend = None  # type: ignore[assignment]  # set by load(), before any connection
        self.alarm_reason = ""
        self.alarms = Alarms(
            loop,
            settings.data_dir,
            settings.limits,
            self._alarm_changed,
            storage.filesystem,
        )
        # Below the memory alarm, so that incomplete bodies alone do not raise it: the alarm would block the clients
        # that complete them.
        self.unfinished_bodies = PartialBodyMemory(
            max(
                self.message_size_max_bytes,
                min(settings.limits.unfinished_bodies_bytes, self.alarms.memory_limit_bytes // 4),
            )
        )
        self._started_s = time.monotonic()
        self.global_parameters = GlobalParameters(self.catalogue)
        self._begin_events()
        self.user_limits = UserLimits(self.catalogue)
        self.admission = ConnectionLimiter(self.user_limits)
        self.channels = ChannelTotals()  # see amqpd.process; the catalogue has those of queues
        self.jobs = JobManager(self.republisher, self.turn, loop.call_soon)
        self.jobs.begun = self._record_job

    # -- start -------------------------------------------------------------------------------------------------------

    def load(self, findings: RecoveryFindings) -> None:
        """Restore all durable objects and continue deletions that a crash interrupted. Logs are opened, not read."""
        state = findings.state
        self.start_report = findings.report
        self.catalogue.deletions.take_over(findings)
        self.auth = InternalBackend(
            self.metadata,
            state,
            self.vhosts.exists,
            self.settings.amqp.loopback_users,
            self.settings.auth.password_hashing,
            self.settings.kafka.is_on,
        )
        self.auth.listeners.append(self._user_changed)
        self.exchange_states.load(state.seen_caches, state.seen)
        self.auth.closed_names = frozenset({AUDIT})
        load(self.vhosts, state)
        self.delays.begin()
        self.global_parameters.load(state.global_parameters)
        self.user_limits.load(state.user_limits)
        events = self.catalogue.events
        if events.vhost_name:
            start_events(self.vhosts.get(events.vhost_name))
            if events.vhost_name not in self.vhosts:
                log.warning("vhost '%s' does not exist yet, it will get exchange %s", events.vhost_name, EVENT_EXCHANGE)
        if self.settings.audit.enabled:
            # From here on, because a start restores objects without an acting user.
            events.audit_hook = self.audit.record

    async def load_vhosts(self, state: MetadataState) -> list[VHost]:
        """Load complete vhosts while the broker runs; users and global objects stay. Raises: as `loader.load_vhost`."""
        self.exchange_states.load(state.seen_caches, state.seen)
        return await loader.load_vhost(self.vhosts, state)

    def close_vhost(self, vhost: VHost, why: str) -> None:
        """Make the vhost unavailable and close its connections with 320 and this text.

        Queues and logs stay until `unload_vhost`.
        """
        if vhost.deleted:
            return
        vhost.deleted = True  # its auto-delete queues must stay
        del self.vhosts[vhost.name]
        if vhost.name == self.catalogue.events.vhost_name:
            self.catalogue.events.bind(False)
        for clients in self.clients:
            clients.on_vhost_unloaded(vhost.name, why)

    async def unload_vhost(self, vhost: VHost, why: str) -> None:
        """Remove the vhost from this node without deleting anything: another node continues it.

        The effects are complete before the first await. Returns when the memory is free.
        """
        self.close_vhost(vhost, why)
        if not vhost.unloaded:
            await loader.unload_vhost(self.vhosts, vhost)

    def _begin_events(self) -> None:
        events = self.catalogue.events
        settings = self.settings.audit
        row = VhostRow(settings.vhost or self.settings.default.vhost, "")
        stream = open_stream(self.storage, self._host_queues(row), settings)
        self.audit = Audit(stream, self.turn, self.loop.call_soon, self.loop.call_later)
        events.vhost_name = self.settings.event_exchange_vhost
        events.node, events.started_at = f"amqpd@{os.uname().nodename}", int(time.time())
        self.vhosts.made = self._vhost_made
        self.vhosts.added = self._vhost_added
        self.alarms.on_change = self._emit_alarm

    def _vhost_made(self, vhost: VHost) -> None:
        add_event_exchange(self.catalogue.events, vhost)
        if vhost.name == self.audit.queue.vhost_name:
            vhost.own_queues[AUDIT] = self.audit.queue

    def _vhost_added(self, vhost: VHost) -> None:
        if vhost.name == self.catalogue.events.vhost_name:
            start_events(vhost)

    def _emit_alarm(self, kind: str, on: bool) -> None:
        about = {"source": kind, "node": self.node_name}
        self.catalogue.events.emit("alarm.set" if on else "alarm.cleared", about, "")

    def _record_job(self, job: QueueJob) -> None:
        about = {"vhost": job.source.vhost_name, "name": job.source.name, "action": job.kind, "job": job.id}
        limit = {"limit": int(job.limit)} if job.limit else {}
        dry = {"dry_run": True} if job.counts_only else {}
        self.catalogue.events.record("queue.messages", {**job.description, **about, **limit, **dry})

    @property
    def node_name(self) -> str:
        """Return the node's name, `amqpd@host`."""
        return self.catalogue.events.node

    @property
    def cluster_name(self) -> str:
        """Return the global parameter cluster_name, by default the setting, the cluster's or the node's name."""
        cluster = self.settings.cluster
        default = self.settings.cluster_name or (cluster.name if cluster.kafka else self.node_name)
        return str(self.global_parameters.get(CLUSTER_NAME, default))

    def _vhost_ended(self, vhost: VHost) -> None:
        if vhost.name == self.catalogue.events.vhost_name:
            self.catalogue.events.bind(False)
        for clients in self.clients:
            clients.vhost_deleted(vhost.name)
        self.auth.remove_vhost(vhost.name)

    def _host_queues(self, row: VhostRow) -> QueueServices:
        """Return the services of the broker for the queues of this vhost."""
        return QueueServices(
            row.name,
            row.id,
            self.turn,
            self.timers,
            self.windows,
            self.storage,
            self.opener,
            self.pump_retries,
            self.dead_letters,
            self.catalogue.stored_offsets,
            self._expire_queue,
            self.delays,
        )

    def _expire_queue(self, queue: Queue) -> None:
        """Delete a queue that was unused for its x-expires."""
        vhost = self.vhosts.get(queue.vhost_name)
        if vhost is None:  # it is being loaded; its leases begin then
            queue.touch()
            return
        with as_broker():
            declare.delete_queue(vhost, queue)

    def _log_failed(self, store: QueueLog) -> None:
        """Handle a log that could not write: its queue drops what is missing. The caller nacks the publishers."""
        ranges = store.take_failed_ranges()
        if store is self.audit.queue.store:
            self.audit.count_unwritten(ranges)
        for vhost in self.vhosts.values():
            for queue in vhost.queues.values():
                if queue.store is not store:
                    continue
                self._report_failure(queue, store)
                if ranges:
                    queue.on_write_failed(ranges)
                    for clients in self.clients:
                        clients.on_offsets_lost(queue, ranges)
        # A full disk raises the alarm at once.
        self.alarms.check()

    def _report_failure(self, queue: Queue, store: QueueLog) -> None:
        """Log that the queue's log could not write, once in FAILURE_REPORT_S for each queue and reason."""
        effect = "accepts nothing more" if store.failed else "could not write; publishers are nacked"
        report = queue.vhost_name, queue.name, f"{effect}: {store.write_error}" if store.write_error else effect
        now_s = time.monotonic()
        if now_s >= self._reports_end_s:
            self._reports_end_s = now_s + FAILURE_REPORT_S
            self._reports.clear()
        if report not in self._reports:
            self._reports.add(report)
            vhost_name, name, text = report
            about = {"vhost": vhost_name, "queue": name}
            log.error("queue '%s' in vhost '%s': the log %s", name, vhost_name, text, extra=about)

    def log_accepted(self, store: QueueLog) -> None:
        """Resume the queue of a log that accepts messages again after a failure."""
        for vhost in self.vhosts.values():
            for queue in vhost.queues.values():
                if queue.store is store:
                    about = {"vhost": vhost.name, "queue": queue.name}
                    text = "queue '%s' in vhost '%s': the log accepts messages again"
                    log.warning(text, queue.name, vhost.name, extra=about)
                    queue.order.on_log_resumed(queue)

    def _alarm_changed(self, reason: str) -> None:
        self.alarm_reason = reason
        self.turn.alarmed = self.catalogue.events.alarmed = bool(reason)
        if not reason:
            for clients in self.clients:
                clients.on_alarm_end()

    def _user_changed(self, change: AuthChange) -> None:
        if self.catalogue.events.has_listeners:
            for key, about in auth_events(self.auth, change):
                self.catalogue.events.emit(key, about)
        if change.kind == "user_deleted":
            self.user_limits.forget(change.user)
        for clients in self.clients:
            clients.on_user_changed(change)

    def uptime_s(self) -> float:
        """Return seconds since the start; a clock that is set does not change them."""
        return time.monotonic() - self._started_s

    def wall_time(self) -> float:
        """Return seconds since 1970, for display only."""
        return time.time()
