"""Metrics of the node: the process, its alarms, what came and went, logins, the group commit; nothing per object."""

from __future__ import annotations

import gc
import platform
import resource
import threading
import time
from typing import TYPE_CHECKING

from amqpd import __version__
from amqpd._build import is_compiled
from amqpd.management import prometheus
from amqpd.management.loop_lag import BOUNDS_S as LAG_BOUNDS_S
from amqpd.management.text import Sheet, labels
from amqpd.management.node_counts import IO, numbers
from amqpd.management.nodes import THREADS_MAX
from amqpd.metrics import disk_free_bytes, process
from amqpd.storage.sync_times import BOUNDS_ACKS_S, BOUNDS_BYTES, BOUNDS_LOGS, BOUNDS_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqpd.management.request import Call
    from amqpd.management.text import Family


def put(sheet: Sheet, group: Mapping[str, Family], values: Mapping[str, float]) -> None:
    """A sample without labels for each family of the group; values has all of them, by their names."""
    for name, family in group.items():
        sheet.add(family, values[name])


def identity(sheet: Sheet, call: Call) -> None:
    """Which broker answers: dashboards join everything with it, by `instance`."""
    broker = call.broker
    python = platform.python_version()
    build = labels(
        rabbitmq_version=broker.settings.product[1],
        prometheus_plugin_version=broker.settings.product[1],
        prometheus_client_version=__version__,
        erlang_version=f"Python {python}",
        product_name="amqpd",
        product_version=__version__,
        build="compiled" if is_compiled() else "interpreted",
    )
    sheet.add(prometheus.IDENTITY["build_info"], 1, build)
    # rabbit: an id that outlives a change of the cluster's name; the node's does.
    who = labels(
        rabbitmq_node=broker.node_name,
        rabbitmq_cluster=broker.cluster_name,
        rabbitmq_cluster_permanent_id=broker.node_name,
    )
    sheet.add(prometheus.IDENTITY["identity_info"], 1, who)


def churn(sheet: Sheet, call: Call) -> None:
    names = tuple(prometheus.CHURN)
    put(sheet, prometheus.CHURN, dict(zip(names, _churn_counts(call), strict=True)))


def _churn_counts(call: Call) -> tuple[int, ...]:
    broker, connections = call.broker, call.server.connections
    return (
        *(connections.opened_count, connections.closed_count),
        *(broker.channels.opened_count, broker.channels.closed_count),
        *(broker.catalogue.queue_declared_count, broker.catalogue.queue_created_count),
        broker.catalogue.queue_deleted_count,
    )


def node_coarse(sheet: Sheet, call: Call) -> None:
    here = process()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    values = {
        "process_open_fds": here.fd_count,
        "process_open_tcp_sockets": len(call.server.connections.by_name),
        "process_resident_memory_bytes": here.rss_bytes,
        "disk_space_available_bytes": disk_free_bytes(call.broker.settings.data_dir),
        "erlang_processes_used": threading.active_count(),
        "erlang_gc_runs_total": sum(each["collections"] for each in gc.get_stats()),
        "erlang_scheduler_context_switches_total": usage.ru_nvcsw + usage.ru_nivcsw,
    }
    put(sheet, prometheus.NODE_COARSE, values)


def node(sheet: Sheet, call: Call) -> None:
    alarms = call.broker.alarms
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    values = {
        "process_max_fds": limit,
        "process_max_tcp_sockets": limit,
        "resident_memory_limit_bytes": alarms.memory_limit_bytes,
        "disk_space_available_limit_bytes": alarms.disk_free_limit_bytes,
        "erlang_processes_limit": int(THREADS_MAX.read_text("ascii")),
        "erlang_uptime_seconds": time.time() - call.broker.started_at,
    }
    put(sheet, prometheus.NODE, values)


def persister(sheet: Sheet, call: Call) -> None:
    io = numbers(IO)
    times = call.broker.storage.sync_times
    values = {
        "io_read_ops_total": io.get("syscr", 0),
        "io_read_bytes_total": io.get("read_bytes", 0),
        "io_write_ops_total": io.get("syscw", 0),
        "io_write_bytes_total": io.get("write_bytes", 0),
        "io_sync_ops_total": times.count,
        "io_sync_time_seconds_total": times.total_s,
    }
    put(sheet, prometheus.PERSISTER, values)


def alarms(sheet: Sheet, call: Call) -> None:
    raised = call.broker.alarms.raised
    values = {
        "alarms_file_descriptor_limit": 0,
        "alarms_free_disk_space_watermark": int("disk" in raised),
        "alarms_memory_used_watermark": int("memory" in raised),
    }
    put(sheet, prometheus.ALARMS, values)


def auth(sheet: Sheet, call: Call) -> None:
    """By protocol; AMQP is always there, so that alerts have what to look at."""
    for protocol, counts in {"amqp091": [0, 0], **call.broker.auth.attempts.by_protocol}.items():
        _attempts(sheet, prometheus.AUTH, counts, labels(protocol=protocol))


def auth_detailed(sheet: Sheet, call: Call) -> None:
    """Those that `PUT /api/amqpd/auth_attempt_sources` has had counted."""
    for family in prometheus.AUTH_DETAILED.values():
        sheet.begin(family)
    for source, counts in list(call.broker.auth.attempts.by_source.items()):
        given = labels(remote_address=source.address, username=source.user, protocol=source.protocol)
        _attempts(sheet, prometheus.AUTH_DETAILED, counts, given)


def _attempts(sheet: Sheet, group: Mapping[str, Family], counts: list[int], given: str) -> None:
    right, wrong = counts
    for family, count in zip(group.values(), (right + wrong, right, wrong), strict=True):
        sheet.add(family, count, given)


def own(sheet: Sheet, call: Call, span_records: int, unread_count: int) -> None:
    """Metrics that RabbitMQ has no name for. span_records: of all logs. unread_count: queues that the sums lack."""
    broker, group = call.broker, prometheus.OWN
    times, lag, tally = broker.storage.sync_times, call.rates.loop_lag, broker.delays.tally
    sheet.add(group["amqpd_uptime_seconds"], time.time() - broker.started_at)
    sheet.add_histogram(group["amqpd_loop_lag_seconds"], LAG_BOUNDS_S, lag.counts, lag.total_s)
    sheet.add_histogram(group["amqpd_storage_sync_seconds"], BOUNDS_S, times.by_time, times.total_s)
    sheet.add_histogram(group["amqpd_storage_group_bytes"], BOUNDS_BYTES, times.by_bytes, times.total_bytes)
    sheet.add_histogram(group["amqpd_storage_group_logs"], BOUNDS_LOGS, times.by_logs, times.total_logs)
    ages = broker.storage.commits.ack_ages
    sheet.add_histogram(group["amqpd_storage_ack_age_seconds"], BOUNDS_ACKS_S, ages.counts, ages.total_s)
    values: dict[str, float] = {
        "amqpd_clock_jump_seconds": broker.storage.clock_watch.jump_ms / 1000,
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
