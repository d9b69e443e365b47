"""Metrics: the table of all families, and the writer of Prometheus' text format.

If RabbitMQ has a metric, its name and type are those of RabbitMQ 3.10 and 3.13 (rabbitmq_prometheus). Metrics with
`amqpd_` and all help texts are ours. docs/reference/metrics.md is generated from the table.

    # TYPE rabbitmq_queue_messages_ready gauge
    # HELP rabbitmq_queue_messages_ready Messages that wait for a consumer
    rabbitmq_queue_messages_ready{vhost="/",queue="orders"} 12

The format requires the samples of a family to be together, but objects are visited one by one. So `MetricsWriter`
collects lines by family and joins them at the end, in chunks.

Source: Prometheus exposition format 0.0.4. RabbitMQ 3.10 does not escape quotes in queue names, which no parser
accepts; amqpd escapes them.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from amqpd.broker.stats import QUEUE_COUNTERS
from amqpd.management.time_slice import TimeSlice

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
CHUNK_BYTES: Final = 64 * 1024
AMQPD_PREFIX: Final = "amqpd_"
RABBITMQ_PREFIX: Final = "rabbitmq_"
CLUSTER_PATH: Final = "rabbitmq_cluster_"
DETAILED: Final = "detailed_"


class Family(NamedTuple):
    """A metric.

    Attributes:
        name: with its prefix, as on `/metrics`.
        kind: gauge, counter or histogram.
        group: name of its group in `/metrics/detailed?family=`; empty if it is not there.
    """

    name: str
    kind: str
    help: str
    group: str = ""

    def detailed(self) -> str:
        """Return the name on `/metrics/detailed`. RabbitMQ: metrics of a whole cluster keep their name."""
        if self.name.startswith(CLUSTER_PATH):
            return self.name
        prefix = AMQPD_PREFIX if self.name.startswith(AMQPD_PREFIX) else RABBITMQ_PREFIX
        return prefix + DETAILED + self.name.removeprefix(prefix)


def escape_label(text: str) -> str:
    """Escape a label's value."""
    if "\\" in text or '"' in text or "\n" in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return text


def format_labels(**values: str) -> str:
    """Return labels in braces, in the given order; empty without labels."""
    return "{" + ",".join(f'{name}="{escape_label(value)}"' for name, value in values.items()) + "}" if values else ""


def format_value(value: float) -> str:
    """Format a sample's value."""
    if isinstance(value, int):
        return str(value)
    return "NaN" if math.isnan(value) else f"{value:.15g}"


class MetricsWriter:
    """The body of one response, collected line by line. With `detailed`, names are those of `/metrics/detailed`."""

    def __init__(self, *, detailed: bool = False) -> None:
        self._detailed = detailed
        self._lines: dict[str, list[str]] = {}

    def add_family(self, family: Family) -> list[str]:
        """Return the family's list of lines, which begins with its heading. Append samples to it."""
        name = family.detailed() if self._detailed else family.name
        lines = self._lines.get(name)
        if lines is None:
            help_text = family.help.replace("\\", "\\\\").replace("\n", "\\n")
            lines = self._lines[name] = [f"# TYPE {name} {family.kind}\n# HELP {name} {help_text}\n"]
        return lines

    def add(self, family: Family, value: float, label_text: str = "") -> None:
        """Add a sample. `label_text` is the result of `format_labels`."""
        name = family.detailed() if self._detailed else family.name
        self.add_family(family).append(f"{name}{label_text} {format_value(value)}\n")

    def add_histogram(
        self, family: Family, bounds: tuple[float, ...], counts: list[int], total: float, **labels: str
    ) -> None:
        """Add a histogram.

        Args:
            counts: values per bucket, not cumulative, and one item for values above all bounds.
            total: sum of all values.
            labels: labels of all its samples.
        """
        name = family.detailed() if self._detailed else family.name
        lines = self.add_family(family)
        below = 0
        for bound, count in zip((*bounds, math.inf), counts, strict=True):
            below += count
            shown_bound = "+Inf" if bound == math.inf else format_value(bound)
            lines.append(f"{name}_bucket{format_labels(**labels, le=shown_bound)} {below}\n")
        label_text = format_labels(**labels)
        lines += [f"{name}_sum{label_text} {format_value(total)}\n", f"{name}_count{label_text} {below}\n"]

    async def chunks(self, slices: TimeSlice) -> list[bytes]:
        """Return the body in chunks and clear the writer in slices, because 10,000 queues have many lines."""
        found: list[bytes] = []
        piece: list[str] = []
        size = 0
        while self._lines:
            lines = self._lines.pop(next(iter(self._lines)))
            lines.reverse()
            while lines:
                line = lines.pop()
                piece.append(line)
                size += len(line)
                if size >= CHUNK_BYTES:
                    found.append("".join(piece).encode())
                    piece, size = [], 0
                    await slices.yield_if_due()
        found.append("".join(piece).encode())
        return found


GAUGE: Final = "gauge"
COUNTER: Final = "counter"
HISTOGRAM: Final = "histogram"


def _group(group: str, *rows: tuple[str, str, str]) -> dict[str, Family]:
    """Return families by their names without the prefix."""
    return {name: Family(name if name.startswith("amqpd_") else f"rabbitmq_{name}", kind, text, group)
            for name, kind, text in rows}  # fmt: skip


IDENTITY: Final = _group(
    "",
    ("build_info", GAUGE, "Versions of RabbitMQ (as clients see it), amqpd and Python"),
    ("identity_info", GAUGE, "Node and cluster"),
)
CHURN: Final = _group(
    "connection_churn_metrics",
    ("connections_opened_total", COUNTER, "Connections that were opened"),
    ("connections_closed_total", COUNTER, "Connections that have ended, for any reason"),
    ("channels_opened_total", COUNTER, "Channels that were opened"),
    ("channels_closed_total", COUNTER, "Channels that have ended"),
    ("queues_declared_total", COUNTER, "Declarations of queues, also of queues that existed"),
    ("queues_created_total", COUNTER, "Queues that were created"),
    ("queues_deleted_total", COUNTER, "Queues that were deleted"),
)
NODE_COARSE: Final = _group(
    "node_coarse_metrics",
    ("process_open_fds", GAUGE, "Files and sockets that the process has open"),
    ("process_open_tcp_sockets", GAUGE, "AMQP connections that are open"),
    ("process_resident_memory_bytes", GAUGE, "Memory of the process"),
    ("disk_space_available_bytes", GAUGE, "Free space where the data directory is"),
    ("erlang_processes_used", GAUGE, "Threads"),
    ("erlang_gc_runs_total", COUNTER, "Garbage collections"),
    ("erlang_scheduler_context_switches_total", COUNTER, "Context switches of the process"),
)
NODE: Final = _group(
    "node_metrics",
    ("process_max_fds", GAUGE, "Files and sockets that the process may have open"),
    ("process_max_tcp_sockets", GAUGE, "The same: a socket is a file"),
    ("resident_memory_limit_bytes", GAUGE, "Memory at which the alarm begins"),
    ("disk_space_available_limit_bytes", GAUGE, "Free space below which the alarm begins"),
    ("erlang_processes_limit", GAUGE, "Threads that the machine allows"),
    ("erlang_uptime_seconds", GAUGE, "Time since the start of the node"),
)
PERSISTER: Final = _group(
    "node_persister_metrics",
    ("io_read_ops_total", COUNTER, "Read calls of the process"),
    ("io_read_bytes_total", COUNTER, "Bytes that the process has read"),
    ("io_write_ops_total", COUNTER, "Write calls of the process"),
    ("io_write_bytes_total", COUNTER, "Bytes that the process has written"),
    ("io_sync_ops_total", COUNTER, "Groups of logs that were synced"),
    ("io_sync_time_seconds_total", COUNTER, "Time that these syncs took"),
)
ALARMS: Final = _group(
    "alarms",
    ("alarms_file_descriptor_limit", GAUGE, "Always 0: amqpd has no such alarm"),
    ("alarms_free_disk_space_watermark", GAUGE, "1 while free disk space is below its limit"),
    ("alarms_memory_used_watermark", GAUGE, "1 while memory is above its limit"),
)
AUTH: Final = _group(
    "auth_attempt_metrics",
    ("auth_attempts_total", COUNTER, "Login attempts"),
    ("auth_attempts_succeeded_total", COUNTER, "Logins with the right password or certificate"),
    ("auth_attempts_failed_total", COUNTER, "Logins that were refused"),
)
AUTH_DETAILED: Final = _group(
    "auth_attempt_detailed_metrics",
    ("auth_attempts_detailed_total", COUNTER, "Login attempts by address, user and protocol"),
    ("auth_attempts_detailed_succeeded_total", COUNTER, "Successful logins by address, user and protocol"),
    ("auth_attempts_detailed_failed_total", COUNTER, "Failed logins by address, user and protocol"),
)
OBJECTS: Final = _group(
    "",
    ("connections", GAUGE, "Open connections"),
    ("channels", GAUGE, "Open channels"),
    ("consumers", GAUGE, "Consumers"),
    ("queues", GAUGE, "Queues and streams"),
    ("exchanges", GAUGE, "Exchanges"),
)
QUEUE_COARSE: Final = _group(
    "queue_coarse_metrics",
    ("queue_messages_ready", GAUGE, "Messages that wait for a consumer"),
    ("queue_messages_unacked", GAUGE, "Messages that a consumer has and has not acked"),
    ("queue_messages", GAUGE, "Ready and unacked messages, and those that wait for a retry"),
)
QUEUE_CONSUMERS: Final = _group("queue_consumer_count", ("queue_consumers", GAUGE, "Consumers of the queue"))
QUEUE: Final = _group(
    "queue_metrics",
    ("queue_consumer_capacity", GAUGE, "Share of time in which consumers had taken all messages"),
    ("queue_consumer_utilisation", GAUGE, "The same as queue_consumer_capacity"),
    ("queue_messages_bytes", GAUGE, "Bodies of ready and unacked messages, in bytes"),
    ("queue_messages_ready_bytes", GAUGE, "Bodies of ready messages, in bytes"),
    ("queue_messages_unacked_bytes", GAUGE, "Bodies of unacked messages, in bytes"),
    ("queue_messages_delayed_retry", GAUGE, "Messages that wait for a retry"),
)
# A queue's counters, in the order of QUEUE_COUNTERS. RabbitMQ counts these per channel, so names begin with
# `channel_`.
QUEUE_PUBLISHED: Final = _group(
    "channel_queue_exchange_metrics", ("queue_messages_published_total", COUNTER, "Messages that went into queues")
)
QUEUE_DELIVERY: Final = _group(
    "channel_queue_metrics",
    ("channel_messages_delivered_ack_total", COUNTER, "Deliveries to consumers that ack"),
    ("channel_messages_delivered_total", COUNTER, "Deliveries to consumers without acks (no_ack)"),
    ("channel_get_ack_total", COUNTER, "Messages by basic.get that are acked later"),
    ("channel_get_total", COUNTER, "Messages by basic.get without acks (no_ack)"),
    ("channel_messages_redelivered_total", COUNTER, "Deliveries of messages that were delivered before"),
    ("channel_messages_acked_total", COUNTER, "Messages that clients have acked"),
    ("channel_get_empty_total", COUNTER, "basic.get of a queue without a ready message"),
)
QUEUE_DELIVERY_OWN: Final = {
    name: Family(family.name.replace("_channel_", "_queue_"), COUNTER, family.help, "queue_delivery_metrics")
    for name, family in QUEUE_DELIVERY.items()
}
"""The same counters under RabbitMQ 4's names without channels, on `/metrics/detailed` only."""
CHANNEL: Final = _group(
    "channel_metrics",
    ("channel_consumers", GAUGE, "Consumers of the channel"),
    ("channel_messages_unacked", GAUGE, "Messages that the channel has and has not acked"),
    ("channel_messages_unconfirmed", GAUGE, "Publishes that wait for their confirm"),
    ("channel_messages_uncommitted", GAUGE, "Publishes of the transaction that is open"),
    ("channel_acks_uncommitted", GAUGE, "Acks of the transaction that is open"),
    ("consumer_prefetch", GAUGE, "Unacked messages that a consumer may have"),
    ("channel_prefetch", GAUGE, "Unacked messages that all consumers of the channel may have together"),
)
CHANNEL_PUBLISHED: Final = _group(
    "channel_exchange_metrics",
    ("channel_messages_published_total", COUNTER, "Publishes on the channel"),
    ("channel_messages_confirmed_total", COUNTER, "Publishes on the channel that were confirmed"),
)
UNROUTABLE: Final = _group(
    "channel_exchange_metrics",
    ("channel_messages_unroutable_returned_total", COUNTER, "Mandatory publishes that were returned"),
    ("channel_messages_unroutable_dropped_total", COUNTER, "Publishes without mandatory that reached no queue"),
)
CONNECTION_COARSE: Final = _group(
    "connection_coarse_metrics",
    ("connection_incoming_bytes_total", COUNTER, "Bytes that the broker has received"),
    ("connection_outgoing_bytes_total", COUNTER, "Bytes that the broker has sent"),
)
CONNECTION: Final = _group("connection_metrics", ("connection_channels", GAUGE, "Channels of the connection"))
CLUSTER: Final = {
    family.name.removeprefix("rabbitmq_"): family
    for family in (
        Family("rabbitmq_cluster_vhost_status", GAUGE, "1 while the vhost runs", "vhost_status"),
        Family("rabbitmq_cluster_exchange_name", GAUGE, "Always 1, one sample for each exchange", "exchange_names"),
        Family("rabbitmq_cluster_exchange_bindings", GAUGE, "Bindings from the exchange", "exchange_bindings"),
    )
}
GLOBAL: Final = _group(
    "",
    ("global_publishers", GAUGE, "Channels that have published"),
    ("global_consumers", GAUGE, "Consumers"),
    ("global_messages_received_total", COUNTER, "Publishes by clients"),
    ("global_messages_received_confirm_total", COUNTER, "Publishes by clients on channels with confirms"),
    ("global_messages_confirmed_total", COUNTER, "Publishes that were confirmed"),
    ("global_messages_routed_total", COUNTER, "Messages that went into queues and streams, one for each of them"),
    ("global_messages_unroutable_dropped_total", COUNTER, "Publishes without mandatory that reached no queue"),
    ("global_messages_unroutable_returned_total", COUNTER, "Mandatory publishes that reached no queue"),
)
GLOBAL_BY_KIND: Final = _group(
    "",
    ("global_messages_delivered_total", COUNTER, "Deliveries to consumers and by basic.get"),
    ("global_messages_delivered_consume_manual_ack_total", COUNTER, "Deliveries to consumers that ack"),
    ("global_messages_delivered_consume_auto_ack_total", COUNTER, "Deliveries to consumers without acks (no_ack)"),
    ("global_messages_delivered_get_manual_ack_total", COUNTER, "Messages by basic.get that are acked later"),
    ("global_messages_delivered_get_auto_ack_total", COUNTER, "Messages by basic.get without acks (no_ack)"),
    ("global_messages_redelivered_total", COUNTER, "Deliveries of messages that were delivered before"),
    ("global_messages_acknowledged_total", COUNTER, "Messages that clients have acked"),
    ("global_messages_get_empty_total", COUNTER, "basic.get of a queue without a ready message"),
)
DEAD_LETTERED: Final = _group(
    "",
    ("global_messages_dead_lettered_expired_total", COUNTER, "Dead letters that expired"),
    ("global_messages_dead_lettered_rejected_total", COUNTER, "Dead letters that a consumer rejected"),
    ("global_messages_dead_lettered_maxlen_total", COUNTER, "Dead letters of a queue that was full"),
    ("global_messages_dead_lettered_delivery_limit_total", COUNTER, "Dead letters that were delivered too often"),
)
OWN: Final = _group(
    "",
    ("amqpd_uptime_seconds", GAUGE, "Time since the start"),
    ("amqpd_storage_ack_age_seconds", HISTOGRAM, "Age of the oldest unwritten ack, at each write of acks"),
    ("amqpd_loop_lag_seconds", HISTOGRAM, "Delay of a timer of the event loop, measured four times a second"),
    ("amqpd_storage_sync_seconds", HISTOGRAM, "Duration of the sync of a group commit"),
    ("amqpd_storage_group_bytes", HISTOGRAM, "Bytes appended to the logs of a group commit"),
    ("amqpd_storage_group_logs", HISTOGRAM, "Number of logs in a group commit"),
    ("amqpd_clock_jump_seconds", GAUGE, "Seconds that the wall clock is ahead because of a held jump, else 0"),
    ("amqpd_cluster_kafka_outage_seconds", GAUGE, "How long this node has had trouble with Kafka, else 0"),
    ("amqpd_storage_unsynced_bytes", GAUGE, "Bytes that are written and not yet synced"),
    ("amqpd_retained_bytes", GAUGE, "Size of the files that x-retain keeps, in bytes"),
    ("amqpd_export_lost_records_total", COUNTER, "Records deleted before their export because of x-export-max-bytes"),
    ("amqpd_log_span_records", GAUGE, "Offsets from the first to the end of a log, summed over all logs"),
    ("amqpd_queues_unread", GAUGE, "Queues whose logs are not open yet and whose messages are not counted"),
    ("amqpd_delayed_messages", GAUGE, "Messages that wait until they are due"),
    ("amqpd_delayed_messages_delayed_total", COUNTER, "Messages that were delayed"),
    ("amqpd_delayed_messages_released_total", COUNTER, "Delayed messages that came due"),
    ("amqpd_delayed_messages_unroutable_total", COUNTER, "Delayed messages that came due and reached no queue"),
    ("amqpd_delayed_messages_dropped_total", COUNTER, "Delayed messages dropped because their exchange was deleted"),
    ("amqpd_delayed_messages_cancelled_total", COUNTER, "Delayed messages that were cancelled"),
)
LOG: Final = _group(
    "log_metrics",
    ("amqpd_log_first_offset", GAUGE, "First offset in the log"),
    ("amqpd_log_end_offset", GAUGE, "Offset that the next message gets"),
    ("amqpd_log_records", GAUGE, "Records that are not settled"),
    ("amqpd_log_bytes", GAUGE, "Bytes of the segments of logs"),
    ("amqpd_log_segments", GAUGE, "Segments of logs"),
)
EXPORT: Final = _group(
    "export_metrics", ("amqpd_export_lag_records", GAUGE, "Offsets that exporters have not committed yet")
)
STREAM_LAG: Final = _group(
    "stream_consumer_metrics",
    ("stream_consumer_max_offset_lag", GAUGE, "Highest lag of a stream's consumers, in offsets"),
)
KAFKA: Final = _group(
    "",
    ("amqpd_kafka_connections", GAUGE, "Open connections of Kafka clients"),
    ("amqpd_kafka_incoming_bytes_total", COUNTER, "Bytes that Kafka clients have sent"),
    ("amqpd_kafka_outgoing_bytes_total", COUNTER, "Bytes that were sent to Kafka clients"),
    ("amqpd_kafka_request_seconds", HISTOGRAM, "Time from a request's arrival to its answer, waits included, by API"),
    ("amqpd_kafka_groups", GAUGE, "Groups of Kafka clients, by type and state"),
    ("amqpd_kafka_group_offsets", GAUGE, "Offsets that groups of Kafka clients have committed"),
)
KAFKA_LAG: Final = _group(
    "kafka_group_metrics",
    ("amqpd_kafka_group_lag_records", GAUGE, "Offsets from a group's committed offset to the end of the partition"),
)

GROUPS: Final = (
    *(IDENTITY, CHURN, NODE_COARSE, NODE, PERSISTER, ALARMS, AUTH, AUTH_DETAILED, OBJECTS),
    *(QUEUE_COARSE, QUEUE_CONSUMERS, QUEUE, QUEUE_PUBLISHED, QUEUE_DELIVERY, QUEUE_DELIVERY_OWN),
    *(CHANNEL, CHANNEL_PUBLISHED, UNROUTABLE, CONNECTION_COARSE, CONNECTION, CLUSTER, GLOBAL),
    *(GLOBAL_BY_KIND, DEAD_LETTERED, OWN),
    *(LOG, EXPORT, STREAM_LAG, KAFKA, KAFKA_LAG),
)
ALL: Final[tuple[Family, ...]] = tuple(family for group in GROUPS for family in group.values())

assert len(QUEUE_DELIVERY) + len(QUEUE_PUBLISHED) == len(QUEUE_COUNTERS)
