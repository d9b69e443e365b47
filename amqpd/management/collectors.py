"""Values of all metrics, and the paths that return them.

- `/metrics`: the node's metrics, and sums over all queues, channels and connections.
- `/metrics/per-object`: the node's metrics, and each queue, channel and connection.
- `/metrics/detailed`: the families that the query names, with RabbitMQ's names of families and some of ours.

These paths are on the listener of `metrics.port`, without a password as on RabbitMQ's port 15692, and on the port
of the API. There, sums need no password, and metrics that name queues need the tag monitoring.

Counters never fall. RabbitMQ's sums over channels fall when channels close, and `rate()` takes that for a restart.
`AggregateCollector` adds the counters of closed objects, and takes a snapshot of the open ones before its first
slice: an object that is closed meanwhile keeps its counters and counts once.

Deliveries are counted by queue, publishes by channel and by queue. RabbitMQ's metrics for a channel and queue, or a
channel and exchange, therefore have a label less here. Sums over the labels that exist are the same.

All loops run in slices. An object that is created or deleted meanwhile can be missing.
"""

from __future__ import annotations

import asyncio
import platform
import resource
import time
from typing import TYPE_CHECKING, Final

from amqpd import __version__
from amqpd._build import is_compiled
from amqpd.broker.queue.log_opener import opened
from amqpd.broker.queue.stream import StreamReader
from amqpd.broker.queue.types import KINDS
from amqpd.broker.stats import QUEUE_COUNTERS, queue_counts
from amqpd.broker.vhost.parameters import CLUSTER_ID
from amqpd.channel.channel import CHANNEL_COUNTERS, channel_counts
from amqpd.management import kafka_metrics, prometheus
from amqpd.management.connections import pid
from amqpd.management.message_counts import queue_bytes, unacked_bytes
from amqpd.management.overview import THREADS_MAX
from amqpd.management.prometheus import CONTENT_TYPE, MetricsWriter, format_labels
from amqpd.management.request import ApiResponse, Role
from amqpd.management.router import ApiRoute
from amqpd.management.stats import (
    IO,
    LAG_BOUNDS_S,
    NODE_COUNTERS,
    connection_octets,
    queue_lengths,
    read_proc_numbers,
    unroutable_counts,
)
from amqpd.management.time_slice import TimeSlice
from amqpd.storage.fsync_thread import BOUNDS_ACKS_S, BOUNDS_BYTES, BOUNDS_LOGS, BOUNDS_S
from amqpd.storage.local_log import LocalLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from amqpd.broker.broker import Broker
    from amqpd.broker.queue.queue import Queue
    from amqpd.broker.vhost.vhost import VHost
    from amqpd.channel.channel import Channel
    from amqpd.connection.connection import Connection
    from amqpd.connection.registry import ConnectionRegistry
    from amqpd.management.prometheus import Family
    from amqpd.management.request import ApiRequest


OPENING_S: Final = 1.0


class LogOpeningBudget:
    """Time budget of one scrape for opening logs that were not used since the start: OPENING_S in total.

    Opening a log after a clean stop takes 0.2 ms, so the first scrape shows all of some thousand queues. With more
    queues, or after a kill, opening all logs would take longer than Prometheus' timeout. The next scrapes open the
    rest.
    """

    def __init__(self) -> None:
        self._until = time.monotonic() + OPENING_S

    async def has_opened(self, queue: Queue) -> bool:
        """Return whether the log is open or has failed to open. False if the budget is used up before that."""
        if queue.opening is None:
            return True
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            return False
        try:
            async with asyncio.timeout(left_s):
                await opened(queue)
        except TimeoutError:
            return False  # opening continues in the background
        return True


class LogTotals:
    """Sums over the logs of queues: unsettled records, offsets between first and end, bytes, segments."""

    def __init__(self) -> None:
        self.records = 0
        self.span_records = 0
        self.bytes = 0
        self.segments = 0
        self.first_offset = 0
        self.end_offset = 0

    def add(self, queue: Queue) -> None:
        """Add the log of a queue, if it has one that is open. Cost: its segments.

        Sets `first_offset` and `end_offset` to those of this log.
        """
        store = queue.store
        if not isinstance(store, LocalLog) or not store.ready:
            return
        segments = store.log.segments
        self.end_offset = store.next_offset
        self.first_offset = segments[0].base if segments else self.end_offset
        self.records += store.record_count
        self.span_records += self.end_offset - self.first_offset
        self.bytes += sum(segment.size for segment in segments)
        self.segments += len(segments)


def export_lags(call: ApiRequest, queue: Queue) -> dict[str, int]:
    """Return, for each exporter of the queue, the number of offsets that it has not committed."""
    store = queue.store
    if not isinstance(store, LocalLog) or not store.ready:
        return {}
    hold = call.broker.storage.find_export_hold(store)
    if hold is None:
        return {}
    end = store.next_offset
    return {name: max(0, end - offset) for name, offset in sorted(hold.exported.items())}


class ObjectCollector:
    """Writes the metrics of each queue, channel, connection, exchange and vhost for one answer.

    Args:
        openings: a queue whose log it does not open in time has no samples.
        wanted: the groups of families to write.
        vhosts: names of the vhosts to include; None for all.
        queues: names of the queues to include; None for all.
    """

    def __init__(
        self,
        call: ApiRequest,
        sheet: MetricsWriter,
        openings: LogOpeningBudget,
        wanted: AbstractSet[str],
        vhosts: AbstractSet[str] | None = None,
        queues: AbstractSet[str] | None = None,
    ) -> None:
        self._call = call
        self._sheet = sheet
        self._openings = openings
        self._wanted = wanted
        self._queues = queues
        self._vhosts = [each for each in call.broker.vhosts.values() if vhosts is None or each.name in vhosts]
        self._names = {vhost.name for vhost in self._vhosts}

    async def read(self, slices: TimeSlice) -> None:
        """Write the samples of all wanted families."""
        for group in prometheus.GROUPS:
            for family in group.values():
                if family.group in self._wanted:
                    self._sheet.add_family(family)
        if not self._wanted.isdisjoint(_BY_QUEUE):
            await self._read_queues(slices)
        if not self._wanted.isdisjoint(_BY_CHANNEL | _BY_CONNECTION):
            await self._read_connections(slices)
        for vhost in self._vhosts:
            self._read_vhost(vhost)
            if not self._wanted.isdisjoint(_BY_EXCHANGE):
                await self._read_exchanges(vhost, slices)
        if _KAFKA in self._wanted:
            await kafka_metrics.put_lags(self._sheet, self._call, self._vhosts, self._openings, slices)

    def _put(self, group: Mapping[str, Family], values: Iterable[float], label_set: str) -> None:
        put_group(self._sheet, group, values, label_set)

    # -- queues ------------------------------------------------------------------------------------------------------

    async def _read_queues(self, slices: TimeSlice) -> None:
        readers = [reader for name, reader in _BY_QUEUE.items() if name in self._wanted]
        for vhost in self._vhosts:
            for queue in list(vhost.queues.values()):
                if self._queues is not None and queue.name not in self._queues:
                    continue
                if not await self._openings.has_opened(queue):
                    continue
                label_set = format_labels(vhost=queue.vhost_name, queue=queue.name)
                for reader in readers:
                    reader(self, queue, label_set)
                await slices.yield_if_due()

    def coarse(self, queue: Queue, label_set: str) -> None:
        messages, ready, unacked = queue_lengths(queue)
        self._put(prometheus.QUEUE_COARSE, (ready, unacked, messages), label_set)

    def consumers(self, queue: Queue, label_set: str) -> None:
        self._put(prometheus.QUEUE_CONSUMERS, (len(queue.consumers),), label_set)

    def queue(self, queue: Queue, label_set: str) -> None:
        """Write `queue_metrics`. rabbit: includes the number of consumers, unless `queue_consumer_count` is wanted
        too.
        """
        if "queue_consumer_count" not in self._wanted:
            self.consumers(queue, label_set)
        utilisation = self._call.rates.utilisation(queue)
        self._put(prometheus.QUEUE, (utilisation, utilisation, *_queue_sizes(queue)), label_set)

    def published(self, queue: Queue, _label_set: str) -> None:
        """Write the publishes to the queue. rabbit: with the label `queue_vhost` instead of `vhost`."""
        label_set = format_labels(queue_vhost=queue.vhost_name, queue=queue.name)
        self._put(prometheus.QUEUE_PUBLISHED, (int(queue.published_count),), label_set)

    def deliveries(self, queue: Queue, label_set: str) -> None:
        self._put(prometheus.QUEUE_DELIVERY, queue_counts(queue)[1:], label_set)

    def deliveries_by_queue(self, queue: Queue, label_set: str) -> None:
        self._put(prometheus.QUEUE_DELIVERY_OWN, queue_counts(queue)[1:], label_set)

    def log(self, queue: Queue, label_set: str) -> None:
        if not isinstance(queue.store, LocalLog) or not queue.store.ready:
            return
        log = LogTotals()
        log.add(queue)
        values = (log.first_offset, log.end_offset, log.records, log.bytes, log.segments)
        self._put(prometheus.LOG, values, label_set)

    def exports(self, queue: Queue, _label_set: str) -> None:
        for name, lag in export_lags(self._call, queue).items():
            label_set = format_labels(vhost=queue.vhost_name, queue=queue.name, exporter=name)
            self._sheet.add(prometheus.EXPORT["amqpd_export_lag_records"], lag, label_set)

    def stream_lag(self, queue: Queue, label_set: str) -> None:
        readers = [each.reader for each in queue.consumers if isinstance(each.reader, StreamReader)]
        begun = [reader for reader in readers if reader.offset >= 0]
        if begun and queue.store is not None:
            lag = max(int(queue.store.next_offset - reader.offset) for reader in begun)
            self._put(prometheus.STREAM_LAG, (max(0, lag),), label_set)

    # -- connections, channels ---------------------------------------------------------------------------------------

    async def _read_connections(self, slices: TimeSlice) -> None:
        for connection in self._call.server.connections:
            if connection.session.vhost.name not in self._names:
                continue
            self._connection(connection)
            if not self._wanted.isdisjoint(_BY_CHANNEL):
                for channel in connection.channels.all():
                    if not channel.closing:
                        self._channel(channel)
            await slices.yield_if_due()

    def _connection(self, connection: Connection) -> None:
        # rabbit: the label of connections is `channel`
        label_set = format_labels(channel=pid(self._call, connection.session))
        if "connection_coarse_metrics" in self._wanted:
            self._put(prometheus.CONNECTION_COARSE, connection_octets(connection), label_set)
        if "connection_metrics" in self._wanted:
            self._put(prometheus.CONNECTION, (len(connection.channels.by_number),), label_set)

    def _channel(self, channel: Channel) -> None:
        name = pid(self._call, channel.session, channel.number)
        if "channel_metrics" in self._wanted:
            self._put(prometheus.CHANNEL, channel_gauges(channel), format_labels(channel=name))
        if "channel_exchange_metrics" in self._wanted:
            label_set = format_labels(channel=name, vhost=channel.session.vhost.name)
            self._put(prometheus.CHANNEL_PUBLISHED, channel_counts(channel)[:2], label_set)

    # -- vhosts, exchanges -------------------------------------------------------------------------------------------

    def _read_vhost(self, vhost: VHost) -> None:
        label_set = format_labels(vhost=vhost.name)
        if "channel_exchange_metrics" in self._wanted:
            self._put(prometheus.UNROUTABLE, unroutable_counts(vhost), label_set)
        if "vhost_status" in self._wanted:
            self._sheet.add(prometheus.CLUSTER["cluster_vhost_status"], 1, label_set)

    async def _read_exchanges(self, vhost: VHost, slices: TimeSlice) -> None:
        for exchange in list(vhost.exchanges.values()):
            if exchange.name == "":
                continue  # rabbit
            label_set = format_labels(vhost=vhost.name, exchange=exchange.name, type=exchange.kind)
            if "exchange_names" in self._wanted:
                self._sheet.add(prometheus.CLUSTER["cluster_exchange_name"], 1, label_set)
            if "exchange_bindings" in self._wanted:
                self._sheet.add(prometheus.CLUSTER["cluster_exchange_bindings"], len(exchange.bindings), label_set)
            await slices.yield_if_due()


def channel_gauges(channel: Channel) -> tuple[int, ...]:
    """Return the gauges of a channel in the order of `prometheus.CHANNEL`."""
    confirms, transaction, deliveries = channel.confirms, channel.transaction, channel.deliveries
    return (
        len(deliveries.consumers),
        deliveries.unacked.count(),
        confirms.sequence - confirms.confirmed_sequence if confirms is not None else 0,
        len(transaction.publishes) if transaction is not None else 0,
        len(transaction.acks) if transaction is not None else 0,
        deliveries.prefetch_count,
        deliveries.window_size,
    )


def _queue_sizes(queue: Queue) -> tuple[int, ...]:
    """Return the bytes of all, ready and unacked messages, and the number of those that wait for a retry."""
    return queue_bytes(queue), int(queue.ready_bytes), unacked_bytes(queue), int(queue.delayed_count)


_BY_QUEUE: Final[dict[str, Callable[[ObjectCollector, Queue, str], None]]] = {
    "queue_coarse_metrics": ObjectCollector.coarse,
    "queue_consumer_count": ObjectCollector.consumers,
    "queue_metrics": ObjectCollector.queue,
    "channel_queue_exchange_metrics": ObjectCollector.published,
    "channel_queue_metrics": ObjectCollector.deliveries,
    "queue_delivery_metrics": ObjectCollector.deliveries_by_queue,
    "log_metrics": ObjectCollector.log,
    "export_metrics": ObjectCollector.exports,
    "stream_consumer_metrics": ObjectCollector.stream_lag,
}
_BY_CHANNEL: Final = frozenset({"channel_metrics", "channel_exchange_metrics"})
_BY_CONNECTION: Final = frozenset({"connection_coarse_metrics", "connection_metrics"})
_BY_EXCHANGE: Final = frozenset({"exchange_names", "exchange_bindings"})
_KAFKA: Final = kafka_metrics.LAG.group
PER_OBJECT: Final = frozenset({*_BY_QUEUE, *_BY_CHANNEL, *_BY_CONNECTION, _KAFKA} - {"queue_delivery_metrics"})
"""Groups of `/metrics/per-object`. rabbit: exchanges and vhosts are only in `/metrics/detailed`."""
OBJECT_GROUPS: Final = frozenset({*_BY_QUEUE, *_BY_CHANNEL, *_BY_CONNECTION, *_BY_EXCHANGE, "vhost_status", _KAFKA})


def put_group(sheet: MetricsWriter, group: Mapping[str, Family], values: Iterable[float], label_set: str = "") -> None:
    """Write a sample for each family of the group. `values` are in the order of the families."""
    for family, value in zip(group.values(), values, strict=True):
        sheet.add(family, value, label_set)


def put_identity(sheet: MetricsWriter, call: ApiRequest) -> None:
    """Write the versions and names of this broker. Dashboards join other metrics with them by `instance`."""
    broker = call.broker
    python = platform.python_version()
    build = format_labels(
        rabbitmq_version=broker.settings.product[1],
        prometheus_plugin_version=broker.settings.product[1],
        prometheus_client_version=__version__,
        erlang_version=f"Python {python}",
        product_name="amqpd",
        product_version=__version__,
        build="compiled" if is_compiled() else "interpreted",
    )
    sheet.add(prometheus.IDENTITY["build_info"], 1, build)
    # rabbit: an id that stays when the cluster's name changes, the same for all nodes.
    names = format_labels(
        rabbitmq_node=broker.node_name,
        rabbitmq_cluster=broker.cluster_name,
        rabbitmq_cluster_permanent_id=str(broker.global_parameters.get(CLUSTER_ID, "")),
    )
    sheet.add(prometheus.IDENTITY["identity_info"], 1, names)


def put_churn(sheet: MetricsWriter, call: ApiRequest) -> None:
    put_group(sheet, prometheus.CHURN, call.rates.churn.counts())


def put_node_coarse(sheet: MetricsWriter, call: ApiRequest) -> None:
    found = dict(zip(NODE_COUNTERS, call.rates.node.counts(), strict=True))
    names = ("fd_used", "sockets_used", "mem_used", "disk_free", "proc_used", "gc_num", "context_switches")
    put_group(sheet, prometheus.NODE_COARSE, [found[name] for name in names])


def put_node(sheet: MetricsWriter, call: ApiRequest) -> None:
    alarms = call.broker.alarms
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    threads = int(THREADS_MAX.read_text("ascii"))
    values = (limit, limit, alarms.memory_limit_bytes, alarms.disk_free_limit_bytes, threads, call.broker.uptime_s())
    put_group(sheet, prometheus.NODE, values)


def put_persister(sheet: MetricsWriter, call: ApiRequest) -> None:
    io = read_proc_numbers(IO)
    times = call.broker.storage.sync_times
    counts = [io.get(name, 0) for name in ("syscr", "read_bytes", "syscw", "write_bytes")]
    put_group(sheet, prometheus.PERSISTER, (*counts, times.count, times.total_s))


def put_alarms(sheet: MetricsWriter, call: ApiRequest) -> None:
    raised = call.broker.alarms.raised
    put_group(sheet, prometheus.ALARMS, (0, int("disk" in raised), int("memory" in raised)))


def put_login_attempts(sheet: MetricsWriter, call: ApiRequest) -> None:
    """Write login attempts by protocol. AMQP is always included, so that alerts find their metric."""
    for protocol, counts in {"amqp091": [0, 0], **call.broker.auth.login_stats.by_protocol}.items():
        _attempts(sheet, prometheus.AUTH, counts, format_labels(protocol=protocol))


def put_login_attempts_by_source(sheet: MetricsWriter, call: ApiRequest) -> None:
    """Write login attempts by source, if `PUT /api/amqpd/auth_attempt_sources` has enabled counting by source."""
    for family in prometheus.AUTH_DETAILED.values():
        sheet.add_family(family)
    for source, counts in list(call.broker.auth.login_stats.by_source.items()):
        label_set = format_labels(remote_address=source.address, username=source.user, protocol=source.protocol)
        _attempts(sheet, prometheus.AUTH_DETAILED, counts, label_set)


def _attempts(sheet: MetricsWriter, group: Mapping[str, Family], counts: list[int], label_set: str) -> None:
    right, wrong = counts
    put_group(sheet, group, (right + wrong, right, wrong), label_set)


def put_amqpd_metrics(sheet: MetricsWriter, call: ApiRequest, span_records: int, unread_count: int) -> None:
    """Write the metrics that RabbitMQ does not have.

    Args:
        span_records: offsets from first to end, of all logs.
        unread_count: queues that are missing in the sums because their logs are not open yet.
    """
    broker, group = call.broker, prometheus.OWN
    times, lag, tally = broker.storage.sync_times, call.rates.loop_lag, broker.delays.stats
    sheet.add(group["amqpd_uptime_seconds"], broker.uptime_s())
    sheet.add_histogram(group["amqpd_loop_lag_seconds"], LAG_BOUNDS_S, lag.counts, lag.total_s)
    sheet.add_histogram(group["amqpd_storage_sync_seconds"], BOUNDS_S, times.by_time, times.total_s)
    sheet.add_histogram(group["amqpd_storage_group_bytes"], BOUNDS_BYTES, times.by_bytes, times.total_bytes)
    sheet.add_histogram(group["amqpd_storage_group_logs"], BOUNDS_LOGS, times.by_logs, times.total_logs)
    ages = broker.storage.commits.ack_ages
    sheet.add_histogram(group["amqpd_storage_ack_age_seconds"], BOUNDS_ACKS_S, ages.counts, ages.total_s)
    values: dict[str, float] = {
        "amqpd_clock_jump_seconds": broker.storage.clock_watch.jump_ms / 1000,
        "amqpd_cluster_kafka_outage_seconds": 0.0 if call.cluster is None else call.cluster.kafka_outage_s(),
        "amqpd_storage_unsynced_bytes": int(broker.storage.commits.unsynced_bytes),
        "amqpd_retained_bytes": broker.storage.retained.bytes,
        "amqpd_export_lost_records_total": broker.storage.export_losses.records,
        "amqpd_log_span_records": span_records,
        "amqpd_queues_unread": unread_count,
        "amqpd_delayed_messages": sum(broker.delays.count_of(name) for name in broker.vhosts),
        "amqpd_delayed_messages_delayed_total": int(tally.delayed),
        "amqpd_delayed_messages_released_total": int(tally.released),
        "amqpd_delayed_messages_unroutable_total": int(tally.unroutable),
        "amqpd_delayed_messages_dropped_total": int(tally.dropped),
        "amqpd_delayed_messages_cancelled_total": int(tally.cancelled),
    }
    for name, value in values.items():
        sheet.add(group[name], value)


PROTOCOL: Final = "amqp091"
_DEATHS: Final = ("expired", "rejected", "maxlen", "delivery_limit")
_SIZES: Final = tuple(prometheus.QUEUE)[2:]
_PUBLISH, _DELIVER, _GET_NO_ACK = (QUEUE_COUNTERS.index(name) for name in ("publish", "deliver", "get_no_ack"))


class AggregateCollector:
    """Sums over all queues, channels and connections, closed ones included.

    Attributes:
        by_kind: queue counters, by kind of queue.
    """

    def __init__(self, broker: Broker, connections: ConnectionRegistry) -> None:
        self._broker = broker
        ended = broker.catalogue.ended_of_kind
        self.by_kind = {name: [*ended[name].counts] or [0] * len(QUEUE_COUNTERS) for name in KINDS}
        self.channel_counts = [*broker.channels.ended.counts] or [0] * len(CHANNEL_COUNTERS)
        self.received_confirm = broker.channels.ended_confirm_count
        self.received_bytes = connections.ended_received_bytes
        self.sent_bytes = connections.ended_sent_bytes
        self._queues = [queue for vhost in broker.vhosts.values() for queue in vhost.queues.values()]
        self._live = list(connections)
        self._channels = [each for owner in self._live for each in owner.channels.all() if not each.closing]
        self.gauges = dict.fromkeys(
            (*prometheus.QUEUE_COARSE, *prometheus.QUEUE_CONSUMERS, *prometheus.QUEUE, *prometheus.CHANNEL), 0.0
        )
        self.logs = LogTotals()
        self.export_lag = 0
        self.publishers = 0
        self.unread_count = 0
        self._utilised = 0.0
        self._consumed = 0

    async def count(self, call: ApiRequest, openings: LogOpeningBudget, slices: TimeSlice) -> None:
        """Add up all objects. A queue whose log is not open in time counts in `unread_count` and in no sum."""
        for queue in self._queues:
            if await openings.has_opened(queue):
                self._add_queue(call, queue)
            else:
                self.unread_count += 1
            await slices.yield_if_due()
        if self._consumed:
            for name in ("queue_consumer_capacity", "queue_consumer_utilisation"):
                self.gauges[name] = self._utilised / self._consumed
        for channel in self._channels:
            self._add_channel(channel)
            await slices.yield_if_due()
        for connection in self._live:
            self.received_bytes += connection.received_bytes
            self.sent_bytes += connection.output.sent_bytes

    def _add_queue(self, call: ApiRequest, queue: Queue) -> None:
        counts = self.by_kind[queue.kind]
        for index, count in enumerate(queue_counts(queue)):
            counts[index] += count
        gauges = self.gauges
        messages, ready, unacked = queue_lengths(queue)
        gauges["queue_messages"] += messages
        gauges["queue_messages_ready"] += ready
        gauges["queue_messages_unacked"] += unacked
        for name, size in zip(_SIZES, _queue_sizes(queue), strict=True):
            gauges[name] += size
        if queue.consumers:
            gauges["queue_consumers"] += len(queue.consumers)
            self._utilised += call.rates.utilisation(queue)
            self._consumed += 1
        self.logs.add(queue)
        self.export_lag += max(export_lags(call, queue).values(), default=0)

    def _add_channel(self, channel: Channel) -> None:
        for index, count in enumerate(channel_counts(channel)):
            self.channel_counts[index] += count
        if channel.confirms is not None:
            self.received_confirm += channel.confirms.sequence
        if channel.publisher.published_count > 0:
            self.publishers += 1
        for name, value in zip(prometheus.CHANNEL, channel_gauges(channel), strict=True):
            self.gauges[name] += value

    # -- output ------------------------------------------------------------------------------------------------------

    def put_objects(self, sheet: MetricsWriter) -> None:
        """Write the number of connections, channels, consumers, queues and exchanges."""
        exchanges = sum(len(vhost.exchanges) for vhost in self._broker.vhosts.values())
        counts = len(self._live), len(self._channels), self.gauges["queue_consumers"], len(self._queues), exchanges
        put_group(sheet, prometheus.OBJECTS, counts)

    def put_sums(self, sheet: MetricsWriter) -> None:
        """Write the sums of the metrics that `/metrics/per-object` has for each object."""
        for group in (prometheus.QUEUE_COARSE, prometheus.QUEUE_CONSUMERS, prometheus.QUEUE, prometheus.CHANNEL):
            put_group(sheet, group, [self.gauges[name] for name in group])
        queues = [sum(each) for each in zip(*self.by_kind.values(), strict=True)]
        put_group(sheet, prometheus.QUEUE_PUBLISHED, queues[:_DELIVER])
        put_group(sheet, prometheus.QUEUE_DELIVERY, queues[_DELIVER:])
        put_group(sheet, prometheus.CHANNEL_PUBLISHED, self.channel_counts[:2])
        put_group(sheet, prometheus.UNROUTABLE, self._unroutable())
        put_group(sheet, prometheus.CONNECTION_COARSE, (self.received_bytes, self.sent_bytes))
        put_group(sheet, prometheus.CONNECTION, (len(self._channels),))
        for name in ("records", "bytes", "segments"):
            sheet.add(prometheus.LOG[f"amqpd_log_{name}"], getattr(self.logs, name))
        sheet.add(prometheus.EXPORT["amqpd_export_lag_records"], self.export_lag)

    def _unroutable(self) -> tuple[int, int]:
        """Return the number of returned and of dropped messages."""
        ended = self._broker.catalogue.ended_unroutable
        vhosts = list(self._broker.vhosts.values())
        returned = ended.returned_count + sum(vhost.counts.returned_count for vhost in vhosts)
        both = ended.unroutable_count + sum(vhost.unroutable_count for vhost in vhosts)
        return returned, max(0, both - returned)

    def put_global(self, sheet: MetricsWriter) -> None:
        """Write RabbitMQ's global metrics, by protocol and by kind of queue."""
        returned, dropped = self._unroutable()
        published, confirmed = self.channel_counts[0], self.channel_counts[1]
        routed = sum(counts[_PUBLISH] for counts in self.by_kind.values())
        clients = self.publishers, self.gauges["queue_consumers"], published, self.received_confirm, confirmed
        put_group(sheet, prometheus.GLOBAL, (*clients, routed, dropped, returned), format_labels(protocol=PROTOCOL))
        for kind, counts in self.by_kind.items():
            # After the sum of deliveries, in the order of QUEUE_COUNTERS.
            values = sum(counts[_DELIVER : _GET_NO_ACK + 1]), *counts[_DELIVER:]
            label_set = format_labels(protocol=PROTOCOL, queue_type=KINDS[kind].module)
            put_group(sheet, prometheus.GLOBAL_BY_KIND, values, label_set)
        self._put_dead_lettered(sheet)

    def _put_dead_lettered(self, sheet: MetricsWriter) -> None:
        """Write dead letters by reason.

        rabbit: the strategy is at_least_once, because a dead letter leaves its queue only when it is safe in its
        targets.
        """
        went = self._broker.dead_letters.published
        for reason in _DEATHS:
            for kind in ("classic", "quorum"):
                counted = went.get((kind, reason))
                label_set = format_labels(queue_type=KINDS[kind].module, dead_letter_strategy="at_least_once")
                family = prometheus.DEAD_LETTERED[f"global_messages_dead_lettered_{reason}_total"]
                sheet.add(family, int(counted.count) if counted is not None else 0, label_set)


_NODE_GROUPS: Final[dict[str, Callable[[MetricsWriter, ApiRequest], None]]] = {
    "alarms": put_alarms,
    "connection_churn_metrics": put_churn,
    "node_coarse_metrics": put_node_coarse,
    "node_metrics": put_node,
    "node_persister_metrics": put_persister,
    "auth_attempt_metrics": put_login_attempts,
    "auth_attempt_detailed_metrics": put_login_attempts_by_source,
}
DETAILED_GROUPS: Final = frozenset({*_NODE_GROUPS, *OBJECT_GROUPS})
"""Values of `family=`. rabbit: other values are no error."""


async def metrics(call: ApiRequest) -> ApiResponse:
    """Return all metrics, as sums over all objects. Cost: about 10 us per queue."""
    return await _collect(call, False)


async def open_metrics(call: ApiRequest) -> ApiResponse:
    """Return `/metrics` on the metrics listener. rabbit: per object with `prometheus.return_per_object_metrics`."""
    return await _collect(call, call.broker.settings.metrics.return_per_object_metrics)


async def per_object(call: ApiRequest) -> ApiResponse:
    """Return all metrics, for each object"""
    return await _collect(call, True)


async def _collect(call: ApiRequest, one_by_one: bool) -> ApiResponse:
    slices, sheet, openings = TimeSlice(), MetricsWriter(), LogOpeningBudget()
    put_identity(sheet, call)
    for name, put in _NODE_GROUPS.items():
        if name != "auth_attempt_detailed_metrics":
            put(sheet, call)
    sums = AggregateCollector(call.broker, call.server.connections)
    await sums.count(call, openings, slices)
    sums.put_objects(sheet)
    if one_by_one:
        await ObjectCollector(call, sheet, openings, PER_OBJECT).read(slices)
    else:
        sums.put_sums(sheet)
        await kafka_metrics.put_lag_sum(sheet, call, openings, slices)
    sums.put_global(sheet)
    await kafka_metrics.put_kafka(sheet, call, slices)
    put_amqpd_metrics(sheet, call, sums.logs.span_records, sums.unread_count)
    return ApiResponse(200, await sheet.chunks(slices), CONTENT_TYPE)


async def detailed(call: ApiRequest) -> ApiResponse:
    """Return the metrics of the families in the query.

    `family=queue_coarse_metrics&family=...&vhost=...&queue=...`: these families, for these vhosts and queues.
    """
    slices, named, sheet = TimeSlice(), MetricsWriter(), MetricsWriter(detailed=True)
    put_identity(named, call)  # rabbit: without the prefix of detailed metrics
    wanted = frozenset(call.query_all("family"))
    for name, put in _NODE_GROUPS.items():
        if name in wanted:
            put(sheet, call)
    if not wanted.isdisjoint(OBJECT_GROUPS):
        vhosts, queues = frozenset(call.query_all("vhost")), frozenset(call.query_all("queue"))
        await ObjectCollector(call, sheet, LogOpeningBudget(), wanted, vhosts or None, queues or None).read(slices)
    return ApiResponse(200, [*await named.chunks(slices), *await sheet.chunks(slices)], CONTENT_TYPE)


OPEN_ROUTES: Final = tuple(
    ApiRoute("GET", path, Role.PUBLIC, handler)
    for path, handler in (("metrics", open_metrics), ("metrics/per-object", per_object), ("metrics/detailed", detailed))
)
"""Routes of the metrics listener."""
ROUTES: Final = (
    ApiRoute("GET", "metrics", Role.PUBLIC, metrics),
    ApiRoute("GET", "metrics/per-object", Role.MONITORING, per_object),
    ApiRoute("GET", "metrics/detailed", Role.MONITORING, detailed),
)
