"""What `/metrics` adds up: queues, channels and connections, those that have ended included, so that no total falls.

RabbitMQ's sums of per-channel counters fall when channels close, which `rate()` takes for a restart; these do not.
What lives is taken at one moment, before the first rest: what ends meanwhile keeps its counters and is in no sum yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpd.broker.stats import QUEUE_COUNTERS, queue_counts
from amqpd.broker.queue.types import KINDS
from amqpd.channel.counters import CHANNEL_COUNTERS, channel_counts
from amqpd.management.counted import lengths
from amqpd.management.message_counts import queue_bytes, unacked_bytes
from amqpd.management import prometheus
from amqpd.management.node import put
from amqpd.management.collectors import LogSpan, Openings, channel_gauges, hindmost_export
from amqpd.management.text import labels

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.broker.queue.queue import Queue
    from amqpd.channel.channel import Channel
    from amqpd.connection.registry import Connections
    from amqpd.management.request import Call
    from amqpd.management.text import Sheet
    from amqpd.management.time_slice import Slices

PROTOCOL: Final = "amqp091"
_DEATHS: Final = ("expired", "rejected", "maxlen", "delivery_limit")
_PUBLISH, _DELIVER, _DELIVER_NO_ACK, _GET, _GET_NO_ACK, _REDELIVER, _ACK, _GET_EMPTY = range(len(QUEUE_COUNTERS))


class Sums:
    """Of all objects. by_kind: queue counters, by what RabbitMQ calls the kind."""

    def __init__(self, broker: Broker, connections: Connections) -> None:
        self._broker = broker
        self._connections = connections
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
        self.logs = LogSpan()
        self.export_lag = 0
        self.publishers = 0
        self.unread_count = 0
        self._utilised = 0.0
        self._consumed = 0

    async def count(self, call: Call, openings: Openings, slices: Slices) -> None:
        """Add up all of them. Queues whose logs are not open in time are in `unread_count` and in no other sum."""
        for queue in self._queues:
            if await openings.has_opened(queue):
                self._add_queue(call, queue)
            else:
                self.unread_count += 1
            if slices.due:
                await slices.rest()
        if self._consumed:
            for name in ("queue_consumer_capacity", "queue_consumer_utilisation"):
                self.gauges[name] = self._utilised / self._consumed
        for channel in self._channels:
            self._add_channel(channel)
            if slices.due:
                await slices.rest()
        for connection in self._live:
            self.received_bytes += connection.received_bytes
            self.sent_bytes += connection.output.sent_bytes

    def _add_queue(self, call: Call, queue: Queue) -> None:
        counts = self.by_kind[queue.kind]
        for index, count in enumerate(queue_counts(queue)):
            counts[index] += count
        gauges = self.gauges
        messages, ready, unacked = lengths(queue)
        gauges["queue_messages"] += messages
        gauges["queue_messages_ready"] += ready
        gauges["queue_messages_unacked"] += unacked
        gauges["queue_messages_delayed_retry"] += int(queue.delayed_count)
        gauges["queue_messages_bytes"] += queue_bytes(queue)
        gauges["queue_messages_ready_bytes"] += int(queue.ready_bytes)
        gauges["queue_messages_unacked_bytes"] += unacked_bytes(queue)
        if queue.consumers:
            gauges["queue_consumers"] += len(queue.consumers)
            self._utilised += call.rates.utilisation(queue)
            self._consumed += 1
        self.logs.add(queue)
        self.export_lag += hindmost_export(call, queue)

    def _add_channel(self, channel: Channel) -> None:
        for index, count in enumerate(channel_counts(channel)):
            self.channel_counts[index] += count
        if channel.confirms is not None:
            self.received_confirm += channel.confirms.sequence
        if channel.published_count > 0:
            self.publishers += 1
        for name, value in channel_gauges(channel).items():
            self.gauges[name] += value

    # -- onto the sheet ----------------------------------------------------------------------------------------------

    def put_objects(self, sheet: Sheet) -> None:
        """How many there are."""
        values = {
            "connections": len(self._live),
            "channels": len(self._channels),
            "consumers": self.gauges["queue_consumers"],
            "queues": len(self._queues),
            "exchanges": sum(len(vhost.exchanges) for vhost in self._broker.vhosts.values()),
        }
        put(sheet, prometheus.OBJECTS, values)

    def put_sums(self, sheet: Sheet) -> None:
        """What `/metrics/per-object` has one by one, added up."""
        gauges = self.gauges
        for group in (prometheus.QUEUE_COARSE, prometheus.QUEUE_CONSUMERS, prometheus.QUEUE):
            put(sheet, group, gauges)
        queues = [sum(each) for each in zip(*self.by_kind.values(), strict=True)]
        put(sheet, prometheus.QUEUE_PUBLISHED, {"queue_messages_published_total": queues[_PUBLISH]})
        put(sheet, prometheus.QUEUE_DELIVERY, dict(zip(prometheus.QUEUE_DELIVERY, queues[_DELIVER:], strict=True)))
        put(sheet, prometheus.CHANNEL, gauges)
        put(sheet, prometheus.CHANNEL_PUBLISHED, dict(zip(prometheus.CHANNEL_PUBLISHED, self.channel_counts, strict=False)))
        put(sheet, prometheus.UNROUTABLE, dict(zip(prometheus.UNROUTABLE, self._unroutable(), strict=True)))
        put(
            sheet,
            prometheus.CONNECTION_COARSE,
            dict(zip(prometheus.CONNECTION_COARSE, (self.received_bytes, self.sent_bytes), strict=True)),
        )
        put(sheet, prometheus.CONNECTION, {"connection_channels": len(self._channels)})
        for name in ("records", "bytes", "segments"):
            sheet.add(prometheus.LOG[f"amqpd_log_{name}"], getattr(self.logs, name))
        sheet.add(prometheus.EXPORT["amqpd_export_lag_records"], self.export_lag)

    def _unroutable(self) -> tuple[int, int]:
        """Returned, dropped."""
        ended = self._broker.catalogue.ended_unroutable
        vhosts = list(self._broker.vhosts.values())
        returned = ended.returned_count + sum(vhost.counts.returned_count for vhost in vhosts)
        both = ended.unroutable_count + sum(vhost.unroutable_count for vhost in vhosts)
        return returned, max(0, both - returned)

    def put_global(self, sheet: Sheet) -> None:
        """By protocol, and by protocol and kind of queue."""
        group, given = prometheus.GLOBAL, labels(protocol=PROTOCOL)
        returned, dropped = self._unroutable()
        published, confirmed = self.channel_counts[0], self.channel_counts[1]
        values: dict[str, float] = {
            "global_publishers": self.publishers,
            "global_consumers": self.gauges["queue_consumers"],
            "global_messages_received_total": published,
            "global_messages_received_confirm_total": self.received_confirm,
            "global_messages_confirmed_total": confirmed,
            "global_messages_routed_total": sum(counts[_PUBLISH] for counts in self.by_kind.values()),
            "global_messages_unroutable_dropped_total": dropped,
            "global_messages_unroutable_returned_total": returned,
        }
        for name, value in values.items():
            sheet.add(group[name], value, given)
        for kind, counts in self.by_kind.items():
            of_kind = labels(protocol=PROTOCOL, queue_type=KINDS[kind].module)
            by_name = {
                "global_messages_delivered_total": sum(counts[_DELIVER : _GET_NO_ACK + 1]),
                "global_messages_delivered_consume_manual_ack_total": counts[_DELIVER],
                "global_messages_delivered_consume_auto_ack_total": counts[_DELIVER_NO_ACK],
                "global_messages_delivered_get_manual_ack_total": counts[_GET],
                "global_messages_delivered_get_auto_ack_total": counts[_GET_NO_ACK],
                "global_messages_redelivered_total": counts[_REDELIVER],
                "global_messages_acknowledged_total": counts[_ACK],
                "global_messages_get_empty_total": counts[_GET_EMPTY],
            }
            for name, value in by_name.items():
                sheet.add(group[name], value, of_kind)
        self._put_dead_lettered(sheet)

    def _put_dead_lettered(self, sheet: Sheet) -> None:
        """rabbit: what is safe with its targets before it leaves its queue, as all here is, is at_least_once."""
        went = self._broker.dead_letters.went
        for reason in _DEATHS:
            for kind in ("classic", "quorum"):
                counted = went.get((kind, reason))
                given = labels(queue_type=KINDS[kind].module, dead_letter_strategy="at_least_once")
                family = prometheus.DEAD_LETTERED[f"global_messages_dead_lettered_{reason}_total"]
                sheet.add(family, int(counted.count) if counted is not None else 0, given)
