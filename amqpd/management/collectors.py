"""Metrics of each queue, channel, connection, exchange and vhost: `/metrics/per-object` and `/metrics/detailed`.

A `Reader` walks over one kind of thing once and puts down the samples of all the families that were asked for, with a
rest every few milliseconds; what goes meanwhile is left out, what comes meanwhile, too. `/metrics/detailed` names its
families as RabbitMQ does, with those that RabbitMQ 4 has for queues without their channels, and a few of ours.

Counters of deliveries are kept by queue, those of publishes by channel and by queue: so what RabbitMQ tells for each
pair of channel and queue, or channel and exchange, has a label less here. Sums by the labels there are, are the same.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from amqpd.broker.stats import queue_counts
from amqpd.broker.queue.log_opener import opened
from amqpd.broker.queue.stream import StreamReader
from amqpd.channel.counters import channel_counts
from amqpd.management.connections import pid
from amqpd.management.counted import lengths
from amqpd.management.message_counts import queue_bytes, unacked_bytes
from amqpd.management import prometheus
from amqpd.management.text import labels
from amqpd.storage.local_log import LocalLog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet

    from amqpd.broker.vhost.vhost import VHost
    from amqpd.broker.queue.queue import Queue
    from amqpd.channel.channel import Channel
    from amqpd.connection.connection import Connection
    from amqpd.management.request import Call
    from amqpd.management.text import Family, Sheet
    from amqpd.management.time_slice import Slices


OPENING_S: Final = 1.0


class Openings:
    """Opens the logs of queues that nothing has used since the start, for OPENING_S in all.

    A log after a clean stop takes 0.2 ms, so that a broker with some thousand queues shows all of them at the first
    scrape. With more queues, or after a kill, a scrape that opened every log would outlast Prometheus' patience. The
    next scrapes then open the others.
    """

    def __init__(self) -> None:
        self._until = time.monotonic() + OPENING_S

    async def has_opened(self, queue: Queue) -> bool:
        """Return whether the log is open, or cannot be opened; False once the time is up."""
        if queue.opening is None:
            return True
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            return False
        try:
            async with asyncio.timeout(left_s):
                await opened(queue)
        except TimeoutError:
            return False  # it goes on opening
        return True


class LogSpan:
    """Of one log, or of several: records not settled, offsets from first to end, bytes and number of segments."""

    def __init__(self) -> None:
        self.records = 0
        self.span_records = 0
        self.bytes = 0
        self.segments = 0
        self.first_offset = 0
        self.end_offset = 0

    def add(self, queue: Queue) -> None:
        """Adds those of a queue that has a log; first_offset and end_offset are the last one's. Cost: its segments."""
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


def export_lags(call: Call, queue: Queue) -> dict[str, int]:
    """By exporter: offsets it has not committed."""
    store = queue.store
    if not isinstance(store, LocalLog) or not store.ready:
        return {}
    hold = call.broker.storage.find_hold(store)
    if hold is None:
        return {}
    end = store.next_offset
    return {name: max(0, end - offset) for name, offset in sorted(hold.exported.items())}


def hindmost_export(call: Call, queue: Queue) -> int:
    return max(export_lags(call, queue).values(), default=0)


class Reader:
    """One answer. openings: queues that it does not open in time have no samples. wanted: groups, as `families` names
    them. vhosts, queues: only these; None is all.
    """

    def __init__(
        self,
        call: Call,
        sheet: Sheet,
        openings: Openings,
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

    async def read(self, slices: Slices) -> None:
        """Puts down everything that is wanted."""
        for group in prometheus.GROUPS:
            for family in group.values():
                if family.group in self._wanted:
                    self._sheet.begin(family)
        if not self._wanted.isdisjoint(_BY_QUEUE):
            await self._read_queues(slices)
        if not self._wanted.isdisjoint(_BY_CHANNEL | _BY_CONNECTION):
            await self._read_connections(slices)
        for vhost in self._vhosts:
            self._read_vhost(vhost)
            if not self._wanted.isdisjoint(_BY_EXCHANGE):
                await self._read_exchanges(vhost, slices)

    def _put(self, group: Mapping[str, Family], values: Mapping[str, float], given: str) -> None:
        for name, value in values.items():
            self._sheet.add(group[name], value, given)

    # -- queues ------------------------------------------------------------------------------------------------------

    async def _read_queues(self, slices: Slices) -> None:
        readers = [reader for name, reader in _BY_QUEUE.items() if name in self._wanted]
        for vhost in self._vhosts:
            for queue in list(vhost.queues.values()):
                if self._queues is not None and queue.name not in self._queues:
                    continue
                if not await self._openings.has_opened(queue):
                    continue
                given = labels(vhost=queue.vhost_name, queue=queue.name)
                for reader in readers:
                    reader(self, queue, given)
                if slices.due:
                    await slices.rest()

    def coarse(self, queue: Queue, given: str) -> None:
        messages, ready, unacked = lengths(queue)
        values = {"queue_messages_ready": ready, "queue_messages_unacked": unacked, "queue_messages": messages}
        self._put(prometheus.QUEUE_COARSE, values, given)

    def consumers(self, queue: Queue, given: str) -> None:
        self._put(prometheus.QUEUE_CONSUMERS, {"queue_consumers": len(queue.consumers)}, given)

    def queue(self, queue: Queue, given: str) -> None:
        """rabbit: with the consumers' number, unless that is asked for by itself as well."""
        if "queue_consumer_count" not in self._wanted:
            self.consumers(queue, given)
        utilisation = self._call.rates.utilisation(queue)
        values: dict[str, float] = {
            "queue_consumer_capacity": utilisation,
            "queue_consumer_utilisation": utilisation,
            "queue_messages_bytes": queue_bytes(queue),
            "queue_messages_ready_bytes": int(queue.ready_bytes),
            "queue_messages_unacked_bytes": unacked_bytes(queue),
            "queue_messages_delayed_retry": int(queue.delayed_count),
        }
        self._put(prometheus.QUEUE, values, given)

    def published(self, queue: Queue, _given: str) -> None:
        """rabbit: this one calls its labels otherwise."""
        given = labels(queue_vhost=queue.vhost_name, queue=queue.name)
        self._put(prometheus.QUEUE_PUBLISHED, {"queue_messages_published_total": int(queue.published_count)}, given)

    def deliveries(self, queue: Queue, given: str) -> None:
        counts = dict(zip(prometheus.QUEUE_DELIVERY, queue_counts(queue)[1:], strict=True))
        self._put(prometheus.QUEUE_DELIVERY, counts, given)

    def own_deliveries(self, queue: Queue, given: str) -> None:
        counts = dict(zip(prometheus.QUEUE_DELIVERY_OWN, queue_counts(queue)[1:], strict=True))
        self._put(prometheus.QUEUE_DELIVERY_OWN, counts, given)

    def log(self, queue: Queue, given: str) -> None:
        if not isinstance(queue.store, LocalLog) or not queue.store.ready:
            return
        span = LogSpan()
        span.add(queue)
        for name in ("first_offset", "end_offset", "records", "bytes", "segments"):
            self._sheet.add(prometheus.LOG[f"amqpd_log_{name}"], getattr(span, name), given)

    def exports(self, queue: Queue, _given: str) -> None:
        for name, lag in export_lags(self._call, queue).items():
            given = labels(vhost=queue.vhost_name, queue=queue.name, exporter=name)
            self._sheet.add(prometheus.EXPORT["amqpd_export_lag_records"], lag, given)

    def stream_lag(self, queue: Queue, given: str) -> None:
        readers = [each.reader for each in queue.consumers if isinstance(each.reader, StreamReader)]
        begun = [reader for reader in readers if reader.offset >= 0]
        if begun and queue.store is not None:
            lag = max(int(queue.store.next_offset - reader.offset) for reader in begun)
            self._put(prometheus.STREAM_LAG, {"stream_consumer_max_offset_lag": max(0, lag)}, given)

    # -- connections, channels ---------------------------------------------------------------------------------------

    async def _read_connections(self, slices: Slices) -> None:
        for connection in self._call.server.connections:
            if connection.session.vhost.name not in self._names:
                continue
            self._connection(connection)
            if not self._wanted.isdisjoint(_BY_CHANNEL):
                for channel in connection.channels.all():
                    if not channel.closing:
                        self._channel(channel)
            if slices.due:
                await slices.rest()

    def _connection(self, connection: Connection) -> None:
        given = labels(channel=pid(self._call, connection.session))  # rabbit: its label for connections
        if "connection_coarse_metrics" in self._wanted:
            values = (int(connection.received_bytes), int(connection.output.sent_bytes))
            self._put(prometheus.CONNECTION_COARSE, dict(zip(prometheus.CONNECTION_COARSE, values, strict=True)), given)
        if "connection_metrics" in self._wanted:
            count = len(connection.channels.by_number)
            self._put(prometheus.CONNECTION, {"connection_channels": count}, given)

    def _channel(self, channel: Channel) -> None:
        name = pid(self._call, channel.session, channel.number)
        if "channel_metrics" in self._wanted:
            self._put(prometheus.CHANNEL, channel_gauges(channel), labels(channel=name))
        if "channel_exchange_metrics" in self._wanted:
            given = labels(channel=name, vhost=channel.session.vhost.name)
            counts = channel_counts(channel)
            self._put(prometheus.CHANNEL_PUBLISHED, dict(zip(prometheus.CHANNEL_PUBLISHED, counts, strict=False)), given)

    # -- vhosts, exchanges -------------------------------------------------------------------------------------------

    def _read_vhost(self, vhost: VHost) -> None:
        given = labels(vhost=vhost.name)
        if "channel_exchange_metrics" in self._wanted:
            returned = vhost.counts.returned_count
            values = (returned, max(0, vhost.unroutable_count - returned))
            self._put(prometheus.UNROUTABLE, dict(zip(prometheus.UNROUTABLE, values, strict=True)), given)
        if "vhost_status" in self._wanted:
            self._sheet.add(prometheus.CLUSTER["cluster_vhost_status"], 1, given)

    async def _read_exchanges(self, vhost: VHost, slices: Slices) -> None:
        for exchange in list(vhost.exchanges.values()):
            if exchange.name == "":
                continue  # rabbit
            given = labels(vhost=vhost.name, exchange=exchange.name, type=exchange.kind)
            if "exchange_names" in self._wanted:
                self._sheet.add(prometheus.CLUSTER["cluster_exchange_name"], 1, given)
            if "exchange_bindings" in self._wanted:
                self._sheet.add(prometheus.CLUSTER["cluster_exchange_bindings"], len(exchange.bindings), given)
            if slices.due:
                await slices.rest()


def channel_gauges(channel: Channel) -> dict[str, int]:
    """By the names in families.CHANNEL."""
    confirms, transaction, deliveries = channel.confirms, channel.transaction, channel.deliveries
    return {
        "channel_consumers": len(deliveries.consumers),
        "channel_messages_unacked": deliveries.unacked.count(),
        "channel_messages_unconfirmed": confirms.sequence - confirms.confirmed_sequence if confirms is not None else 0,
        "channel_messages_uncommitted": len(transaction.publishes) if transaction is not None else 0,
        "channel_acks_uncommitted": len(transaction.settlements) if transaction is not None else 0,
        "consumer_prefetch": deliveries.prefetch_count,
        "channel_prefetch": deliveries.window_size,
    }


_BY_QUEUE: Final[dict[str, Callable[[Reader, Queue, str], None]]] = {
    "queue_coarse_metrics": Reader.coarse,
    "queue_consumer_count": Reader.consumers,
    "queue_metrics": Reader.queue,
    "channel_queue_exchange_metrics": Reader.published,
    "channel_queue_metrics": Reader.deliveries,
    "queue_delivery_metrics": Reader.own_deliveries,
    "log_metrics": Reader.log,
    "export_metrics": Reader.exports,
    "stream_consumer_metrics": Reader.stream_lag,
}
_BY_CHANNEL: Final = frozenset({"channel_metrics", "channel_exchange_metrics"})
_BY_CONNECTION: Final = frozenset({"connection_coarse_metrics", "connection_metrics"})
_BY_EXCHANGE: Final = frozenset({"exchange_names", "exchange_bindings"})
PER_OBJECT: Final = frozenset({*_BY_QUEUE, *_BY_CHANNEL, *_BY_CONNECTION} - {"queue_delivery_metrics"})
"""What `/metrics/per-object` has. rabbit: neither exchanges nor vhosts, which are for `/metrics/detailed` alone."""
OBJECT_GROUPS: Final = frozenset({*_BY_QUEUE, *_BY_CHANNEL, *_BY_CONNECTION, *_BY_EXCHANGE, "vhost_status"})
