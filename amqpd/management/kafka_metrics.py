"""Metrics of the Kafka listener. A broker without one has none of them.

Clients choose names and number of groups, so one answer has at most LAG_SAMPLES_MAX samples of lag.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from amqpd.management import prometheus
from amqpd.management.listing import collect
from amqpd.management.prometheus import format_labels

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from amqpd.broker.vhost.vhost import VHost
    from amqpd.management.collectors import LogOpeningBudget
    from amqpd.management.prometheus import MetricsWriter
    from amqpd.management.request import ApiRequest
    from amqpd.management.time_slice import TimeSlice

LAG_SAMPLES_MAX: Final = 10_000
LAG: Final = prometheus.KAFKA_LAG["amqpd_kafka_group_lag_records"]


async def put_kafka(sheet: MetricsWriter, call: ApiRequest, slices: TimeSlice) -> None:
    """Write connections, bytes, requests and numbers of groups. Cost: a few us per group."""
    kafka = call.server.kafka
    if kafka is None:
        return
    from amqpd.kafka_server.connection import TIME_BOUNDS_S  # with a listener, the package is loaded

    family, stats, groups = prometheus.KAFKA, kafka.stats, kafka.operations.listing
    sheet.add(family["amqpd_kafka_connections"], len(kafka.connections))
    sheet.add(family["amqpd_kafka_incoming_bytes_total"], stats.received_bytes)
    sheet.add(family["amqpd_kafka_outgoing_bytes_total"], stats.sent_bytes)
    for api, times in sorted(stats.by_api.items()):
        sheet.add_histogram(family["amqpd_kafka_request_seconds"], TIME_BOUNDS_S, times.counts, times.total_s, api=api)
    if groups.load_error():
        return
    counts: Counter[tuple[str, str]] = Counter()
    offset_count = 0
    for vhost in list(call.broker.vhosts.values()):
        counts.update((group.type, group.state) for group in await collect(groups.summaries(vhost), slices))
        offset_count += groups.offset_count(vhost)
    sheet.add_family(family["amqpd_kafka_groups"])
    for (kind, state), count in sorted(counts.items()):
        sheet.add(family["amqpd_kafka_groups"], count, format_labels(type=kind, state=state))
    sheet.add(family["amqpd_kafka_group_offsets"], offset_count)


async def put_lag_sum(sheet: MetricsWriter, call: ApiRequest, openings: LogOpeningBudget, slices: TimeSlice) -> None:
    """Write the lag of all groups together."""
    if call.server.kafka is not None:
        found = _lags(call, call.broker.vhosts.values(), openings, slices)
        sheet.add(LAG, sum([lag async for lag, _ in found]))


async def put_lags(
    sheet: MetricsWriter, call: ApiRequest, vhosts: Iterable[VHost], openings: LogOpeningBudget, slices: TimeSlice
) -> None:
    """Write the lag by group, topic and partition."""
    count = 0
    async for lag, label_text in _lags(call, vhosts, openings, slices):
        if count == LAG_SAMPLES_MAX:
            return
        count += 1
        sheet.add(LAG, lag, label_text)


async def _lags(
    call: ApiRequest, vhosts: Iterable[VHost], openings: LogOpeningBudget, slices: TimeSlice
) -> AsyncIterator[tuple[int, str]]:
    """Yield each lag that is known, with its labels. A log that is not open in time has none."""
    kafka = call.server.kafka
    if kafka is None or kafka.operations.listing.load_error():
        return
    groups = kafka.operations.listing
    for vhost in list(vhosts):
        for group in await collect(groups.summaries(vhost), slices):
            places = groups.places(vhost, group.name)
            for queue in groups.streams(vhost, places):
                await openings.has_opened(queue)
                await slices.yield_if_due()
            for topic, partition in places:
                lag = groups.lag(vhost, group.name, (topic, partition))
                if lag is not None:
                    labels = {"vhost": vhost.name, "group": group.name, "topic": topic, "partition": str(partition)}
                    yield lag, format_labels(**labels)
                await slices.yield_if_due()
