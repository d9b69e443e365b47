"""What the broker counts, in Prometheus' text format with RabbitMQ's names.

Counters are plain integers on their owners; this module reads them. It adds up what it is given and knows no HTTP.
Names of queues and users never become labels here, so the answer is small whatever the broker holds.

Source: Prometheus exposition format 0.0.4; rabbitmq_prometheus 3.10-3.12 for the names.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpd import __version__
from amqpd._build import is_compiled
from amqpd.storage.filesystem import FileSystem

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.connection.connections import Connections

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PAGE_BYTES: Final = resource.getpagesize()


class Process(NamedTuple):
    """This process, as the kernel sees it. limits: what it may have."""

    rss_bytes: int
    fd_count: int
    fd_limit: int


def process() -> Process:
    """Cost: some 50 us and 1 us per open file."""
    resident = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    open_files = sum(1 for _ in Path("/proc/self/fd").iterdir())
    return Process(resident * _PAGE_BYTES, open_files, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def disk_free_bytes(path: Path) -> int:
    """What an unprivileged process may still write below `path`."""
    return FileSystem().free_bytes(str(path))


class Metric(NamedTuple):
    name: str
    kind: str
    help: str
    value: float


def prometheus(
    broker: Broker,
    connections: Connections,
    objects: Mapping[str, int],
    queues: Mapping[str, int],
    channels: Mapping[str, int],
) -> str:
    """The text. objects: connections, channels ... and messages_ready, messages_unacked, messages_delayed_retry;
    queues, channels: their counters, summed since the start.
    """
    lines: list[str] = []
    for metric in (*_there(objects), *_counted(broker, connections, queues, channels), *_resources(broker)):
        name = metric.name
        lines += [f"# TYPE {name} {metric.kind}", f"# HELP {name} {metric.help}", f"{name} {metric.value:.15g}"]
    lines += _identity(broker)
    return "\n".join(lines) + "\n"


def _there(objects: Mapping[str, int]) -> list[Metric]:
    """What there is now."""
    return [
        Metric("rabbitmq_connections", "gauge", "Connections currently open", objects["connections"]),
        Metric("rabbitmq_channels", "gauge", "Channels currently open", objects["channels"]),
        Metric("rabbitmq_consumers", "gauge", "Consumers currently connected", objects["consumers"]),
        Metric("rabbitmq_queues", "gauge", "Queues available", objects["queues"]),
        Metric("rabbitmq_exchanges", "gauge", "Exchanges available", objects["exchanges"]),
        Metric("rabbitmq_queue_messages_ready", "gauge", "Messages ready to be delivered", objects["messages_ready"]),
        Metric(
            "rabbitmq_queue_messages_unacked", "gauge", "Messages delivered, not acked", objects["messages_unacked"]
        ),
        Metric("amqpd_delayed_messages", "gauge", "Messages that wait until they are due", objects["messages_delayed"]),
        Metric(
            "rabbitmq_queue_messages_delayed_retry",
            "gauge",
            "Messages that wait for their next try",
            objects["messages_delayed_retry"],
        ),
        Metric(
            "rabbitmq_queue_messages",
            "gauge",
            "Messages ready, unacked and waiting for their next try",
            objects["messages_ready"] + objects["messages_unacked"] + objects["messages_delayed_retry"],
        ),
    ]


def _counted(
    broker: Broker, connections: Connections, queues: Mapping[str, int], channels: Mapping[str, int]
) -> list[Metric]:
    """What has happened since the start; never falls."""
    unroutable = sum(vhost.unroutable_count for vhost in broker.vhosts.values())
    return [
        Metric(
            "rabbitmq_connections_opened_total", "counter", "Connections opened", connections.opened_count
        ),
        Metric(
            "rabbitmq_connections_closed_total", "counter", "Connections closed", connections.closed_count
        ),
        Metric("rabbitmq_channels_opened_total", "counter", "Channels opened", broker.channels.opened_count),
        Metric("rabbitmq_channels_closed_total", "counter", "Channels closed", broker.channels.closed_count),
        Metric("rabbitmq_queues_declared_total", "counter", "Queues declared", broker.catalogue.queue_declared_count),
        Metric("rabbitmq_queues_created_total", "counter", "Queues created", broker.catalogue.queue_created_count),
        Metric("rabbitmq_queues_deleted_total", "counter", "Queues deleted", broker.catalogue.queue_deleted_count),
        Metric(
            "rabbitmq_global_messages_received_total", "counter", "Messages from publishers", channels["publish"]
        ),
        Metric(
            "rabbitmq_global_messages_confirmed_total", "counter", "Messages confirmed", channels["confirm"]
        ),
        Metric(
            "rabbitmq_global_messages_routed_total", "counter", "Messages put into queues, once each", queues["publish"]
        ),
        Metric(
            "rabbitmq_global_messages_delivered_total", "counter", "Messages handed to consumers", queues["deliver_get"]
        ),
        Metric(
            "rabbitmq_global_messages_redelivered_total", "counter", "Messages delivered again", queues["redeliver"]
        ),
        Metric("rabbitmq_global_messages_acknowledged_total", "counter", "Messages acknowledged", queues["ack"]),
        Metric(
            "rabbitmq_global_messages_unroutable_total", "counter", "Messages that no queue took", unroutable
        ),
        *_delays(broker),
    ]


def _delays(broker: Broker) -> list[Metric]:
    """What has happened to delayed messages; how many there are is among `_there`."""
    tally = broker.delays.tally
    counts: tuple[tuple[str, str, int], ...] = (
        ("delayed", "Messages that were delayed", tally.delayed),
        ("released", "Delayed messages that came due", tally.released),
        ("unroutable", "Of those, such that no queue took", tally.unroutable),
        ("dropped", "Delayed messages whose exchange went", tally.dropped),
        ("cancelled", "Delayed messages that were cancelled", tally.cancelled),
    )
    return [Metric(f"amqpd_delayed_messages_{name}_total", "counter", text, count) for name, text, count in counts]


def _resources(broker: Broker) -> list[Metric]:
    """Memory, disk, descriptors: what is used, what may be, what is alarmed."""
    here = process()
    return [
        Metric("rabbitmq_resident_memory_limit_bytes", "gauge", "Memory alarm limit", broker.alarms.memory_limit_bytes),
        Metric(
            "rabbitmq_disk_space_available_limit_bytes", "gauge", "Disk limit", broker.alarms.disk_free_limit_bytes
        ),
        Metric("rabbitmq_alarms_memory_used_watermark", "gauge", "Memory alarm", int("memory" in broker.alarms.raised)),
        Metric("rabbitmq_alarms_free_disk_space_watermark", "gauge", "Disk alarm", int("disk" in broker.alarms.raised)),
        Metric("rabbitmq_process_resident_memory_bytes", "gauge", "Resident memory", here.rss_bytes),
        Metric("rabbitmq_process_open_fds", "gauge", "Open file descriptors", here.fd_count),
        Metric("rabbitmq_process_max_fds", "gauge", "Open file descriptors limit", here.fd_limit),
        Metric("rabbitmq_disk_space_available_bytes", "gauge", "Free disk", disk_free_bytes(broker.settings.data_dir)),
        Metric("amqpd_uptime_seconds", "gauge", "Time since the start", time.time() - broker.started_at),
        Metric(
            "amqpd_storage_unsynced_bytes", "gauge", "Written, not yet synced", broker.storage.commits.unsynced_bytes
        ),
        Metric(
            "amqpd_retained_bytes", "gauge", "Files of settled messages kept by x-retain", broker.storage.retained.bytes
        ),
        Metric(
            "amqpd_export_lost_records_total", "counter", "Given up unexported, over x-export-max-bytes",
            broker.storage.export_losses.records,
        ),
    ]


def _identity(broker: Broker) -> list[str]:
    """Lines that say which broker answers."""
    version = broker.settings.product[1]
    build = "compiled" if is_compiled() else "interpreted"
    info = [
        f'rabbitmq_version="{version}"',
        'product_name="amqpd"',
        f'product_version="{__version__}"',
        f'build="{build}"',
    ]
    return [
        "# TYPE rabbitmq_build_info gauge",
        "# HELP rabbitmq_build_info Version",
        f'rabbitmq_build_info{{{",".join(info)}}} 1',
        "# TYPE rabbitmq_identity_info gauge",
        "# HELP rabbitmq_identity_info Node",
        f'rabbitmq_identity_info{{rabbitmq_node="{_label(broker.node_name)}"}} 1',
    ]


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
