"""The table of all metrics: name, kind, meaning, and the group that `/metrics/detailed?family=` knows it by.

Names, kinds and texts are those of RabbitMQ 3.10 and 3.13 (rabbitmq_prometheus) where there is such a thing; what is
called `amqpd_` is ours. docs/reference/metrics.md is made of it.
"""

from __future__ import annotations

from typing import Final

from amqpd.broker.counters import QUEUE_COUNTERS
from amqpd.management.metrics.text import Family

GAUGE: Final = "gauge"
COUNTER: Final = "counter"
HISTOGRAM: Final = "histogram"


def _group(group: str, *rows: tuple[str, str, str]) -> dict[str, Family]:
    """By their names without the prefix."""
    return {name: Family(name if name.startswith("amqpd_") else f"rabbitmq_{name}", kind, text, group)
            for name, kind, text in rows}  # fmt: skip


IDENTITY: Final = _group(
    "",
    ("build_info", GAUGE, "RabbitMQ version that is spoken, and that of amqpd and Python"),
    ("identity_info", GAUGE, "Node and cluster"),
)
CHURN: Final = _group(
    "connection_churn_metrics",
    ("connections_opened_total", COUNTER, "Total number of connections opened"),
    ("connections_closed_total", COUNTER, "Total number of connections closed or terminated"),
    ("channels_opened_total", COUNTER, "Total number of channels opened"),
    ("channels_closed_total", COUNTER, "Total number of channels closed"),
    ("queues_declared_total", COUNTER, "Total number of queues declared"),
    ("queues_created_total", COUNTER, "Total number of queues created"),
    ("queues_deleted_total", COUNTER, "Total number of queues deleted"),
)
NODE_COARSE: Final = _group(
    "node_coarse_metrics",
    ("process_open_fds", GAUGE, "Open file descriptors"),
    ("process_open_tcp_sockets", GAUGE, "Open AMQP connections"),
    ("process_resident_memory_bytes", GAUGE, "Memory used in bytes"),
    ("disk_space_available_bytes", GAUGE, "Disk space available in bytes"),
    ("erlang_processes_used", GAUGE, "Threads"),
    ("erlang_gc_runs_total", COUNTER, "Total number of garbage collector runs"),
    ("erlang_scheduler_context_switches_total", COUNTER, "Total number of context switches of the process"),
)
NODE: Final = _group(
    "node_metrics",
    ("process_max_fds", GAUGE, "Open file descriptors limit"),
    ("process_max_tcp_sockets", GAUGE, "Open TCP sockets limit"),
    ("resident_memory_limit_bytes", GAUGE, "Memory high watermark in bytes"),
    ("disk_space_available_limit_bytes", GAUGE, "Free disk space low watermark in bytes"),
    ("erlang_processes_limit", GAUGE, "Threads limit of the machine"),
    ("erlang_uptime_seconds", GAUGE, "Node uptime"),
)
PERSISTER: Final = _group(
    "node_persister_metrics",
    ("io_read_ops_total", COUNTER, "Total number of I/O read operations"),
    ("io_read_bytes_total", COUNTER, "Total number of I/O bytes read"),
    ("io_write_ops_total", COUNTER, "Total number of I/O write operations"),
    ("io_write_bytes_total", COUNTER, "Total number of I/O bytes written"),
    ("io_sync_ops_total", COUNTER, "Total number of groups synced"),
    ("io_sync_time_seconds_total", COUNTER, "Total time groups took to sync"),
)
ALARMS: Final = _group(
    "alarms",
    ("alarms_file_descriptor_limit", GAUGE, "is 1 if file descriptor limit alarm is in effect; there is none here"),
    ("alarms_free_disk_space_watermark", GAUGE, "is 1 if free disk space watermark alarm is in effect"),
    ("alarms_memory_used_watermark", GAUGE, "is 1 if VM memory watermark alarm is in effect"),
)
AUTH: Final = _group(
    "auth_attempt_metrics",
    ("auth_attempts_total", COUNTER, "Total number of authorization attempts"),
    ("auth_attempts_succeeded_total", COUNTER, "Total number of successful authentication attempts"),
    ("auth_attempts_failed_total", COUNTER, "Total number of failed authentication attempts"),
)
AUTH_DETAILED: Final = _group(
    "auth_attempt_detailed_metrics",
    ("auth_attempts_detailed_total", COUNTER, "Total number of authorization attempts with source info"),
    ("auth_attempts_detailed_succeeded_total", COUNTER, "Of those, successful ones"),
    ("auth_attempts_detailed_failed_total", COUNTER, "Of those, failed ones"),
)
OBJECTS: Final = _group(
    "",
    ("connections", GAUGE, "Connections currently open"),
    ("channels", GAUGE, "Channels currently open"),
    ("consumers", GAUGE, "Consumers currently connected"),
    ("queues", GAUGE, "Queues available"),
    ("exchanges", GAUGE, "Exchanges available"),
)
QUEUE_COARSE: Final = _group(
    "queue_coarse_metrics",
    ("queue_messages_ready", GAUGE, "Messages ready to be delivered to consumers"),
    ("queue_messages_unacked", GAUGE, "Messages delivered to consumers but not yet acknowledged"),
    ("queue_messages", GAUGE, "Sum of ready and unacknowledged messages, and of those that wait for their next try"),
)
QUEUE_CONSUMERS: Final = _group("queue_consumer_count", ("queue_consumers", GAUGE, "Consumers on a queue"))
QUEUE: Final = _group(
    "queue_metrics",
    ("queue_consumer_capacity", GAUGE, "Share of time in which consumers took all there was"),
    ("queue_consumer_utilisation", GAUGE, "Same as consumer capacity"),
    ("queue_messages_bytes", GAUGE, "Size in bytes of ready and unacknowledged messages"),
    ("queue_messages_ready_bytes", GAUGE, "Size in bytes of ready messages"),
    ("queue_messages_unacked_bytes", GAUGE, "Size in bytes of all unacknowledged messages"),
    ("queue_messages_delayed_retry", GAUGE, "Messages that wait for their next try"),
)
# Of a queue's own counters, in the order of QUEUE_COUNTERS; `channel_` as RabbitMQ counts them, where the channels are.
QUEUE_PUBLISHED: Final = _group(
    "channel_queue_exchange_metrics",
    ("queue_messages_published_total", COUNTER, "Total number of messages published to queues"),
)
QUEUE_DELIVERY: Final = _group(
    "channel_queue_metrics",
    (
        "channel_messages_delivered_ack_total",
        COUNTER,
        "Total number of messages delivered to consumers in manual acknowledgement mode",
    ),
    (
        "channel_messages_delivered_total",
        COUNTER,
        "Total number of messages delivered to consumers in automatic acknowledgement mode",
    ),
    (
        "channel_get_ack_total",
        COUNTER,
        "Total number of messages fetched with basic.get in manual acknowledgement mode",
    ),
    (
        "channel_get_total",
        COUNTER,
        "Total number of messages fetched with basic.get in automatic acknowledgement mode",
    ),
    ("channel_messages_redelivered_total", COUNTER, "Total number of messages redelivered to consumers"),
    ("channel_messages_acked_total", COUNTER, "Total number of messages acknowledged by consumers"),
    ("channel_get_empty_total", COUNTER, "Total number of times basic.get operations fetched no message"),
)
QUEUE_DELIVERY_OWN: Final = {
    name: Family(family.name.replace("_channel_", "_queue_"), COUNTER, family.help, "queue_delivery_metrics")
    for name, family in QUEUE_DELIVERY.items()
}
"""The same again under the names RabbitMQ 4 has for those who want no channels: on `/metrics/detailed` alone."""
CHANNEL: Final = _group(
    "channel_metrics",
    ("channel_consumers", GAUGE, "Consumers on a channel"),
    ("channel_messages_unacked", GAUGE, "Delivered but not yet acknowledged messages"),
    ("channel_messages_unconfirmed", GAUGE, "Published but not yet confirmed messages"),
    ("channel_messages_uncommitted", GAUGE, "Messages received in a transaction but not yet committed"),
    ("channel_acks_uncommitted", GAUGE, "Message acknowledgements in a transaction not yet committed"),
    ("consumer_prefetch", GAUGE, "Limit of unacknowledged messages for each consumer"),
    ("channel_prefetch", GAUGE, "Total limit of unacknowledged messages for all consumers on a channel"),
)
CHANNEL_PUBLISHED: Final = _group(
    "channel_exchange_metrics",
    ("channel_messages_published_total", COUNTER, "Total number of messages published on a channel"),
    ("channel_messages_confirmed_total", COUNTER, "Total number of messages published and confirmed on the channel"),
)
UNROUTABLE: Final = _group(
    "channel_exchange_metrics",
    (
        "channel_messages_unroutable_returned_total",
        COUNTER,
        "Total number of messages published as mandatory and returned to the publisher as unroutable",
    ),
    (
        "channel_messages_unroutable_dropped_total",
        COUNTER,
        "Total number of messages published as non-mandatory and dropped as unroutable",
    ),
)
CONNECTION_COARSE: Final = _group(
    "connection_coarse_metrics",
    ("connection_incoming_bytes_total", COUNTER, "Total number of bytes received on a connection"),
    ("connection_outgoing_bytes_total", COUNTER, "Total number of bytes sent on a connection"),
)
CONNECTION: Final = _group(
    "connection_metrics",
    ("connection_channels", GAUGE, "Channels on a connection"),
)
CLUSTER: Final = {
    family.name.removeprefix("rabbitmq_"): family
    for family in (
        Family("rabbitmq_cluster_vhost_status", GAUGE, "Whether a given vhost is running", "vhost_status"),
        Family("rabbitmq_cluster_exchange_name", GAUGE, "Enumerates exchanges", "exchange_names"),
        Family("rabbitmq_cluster_exchange_bindings", GAUGE, "Number of bindings of an exchange", "exchange_bindings"),
    )
}
GLOBAL: Final = _group(
    "",
    ("global_publishers", GAUGE, "Channels that have published"),
    ("global_consumers", GAUGE, "Current number of consumers"),
    ("global_messages_received_total", COUNTER, "Total number of messages received from publishers"),
    (
        "global_messages_received_confirm_total",
        COUNTER,
        "Total number of messages received from publishers expecting confirmations",
    ),
    ("global_messages_confirmed_total", COUNTER, "Total number of messages confirmed to publishers"),
    ("global_messages_routed_total", COUNTER, "Total number of messages routed to queues or streams"),
    (
        "global_messages_unroutable_dropped_total",
        COUNTER,
        "Total number of messages published as non-mandatory into an exchange and dropped as unroutable",
    ),
    (
        "global_messages_unroutable_returned_total",
        COUNTER,
        "Total number of messages published as mandatory into an exchange and returned to the publisher as unroutable",
    ),
    ("global_messages_delivered_total", COUNTER, "Total number of messages delivered to consumers"),
    (
        "global_messages_delivered_consume_manual_ack_total",
        COUNTER,
        "Total number of messages delivered to consumers using basic.consume with manual acknowledgment",
    ),
    (
        "global_messages_delivered_consume_auto_ack_total",
        COUNTER,
        "Total number of messages delivered to consumers using basic.consume with automatic acknowledgment",
    ),
    (
        "global_messages_delivered_get_manual_ack_total",
        COUNTER,
        "Total number of messages delivered to consumers using basic.get with manual acknowledgment",
    ),
    (
        "global_messages_delivered_get_auto_ack_total",
        COUNTER,
        "Total number of messages delivered to consumers using basic.get with automatic acknowledgment",
    ),
    ("global_messages_redelivered_total", COUNTER, "Total number of messages redelivered to consumers"),
    ("global_messages_acknowledged_total", COUNTER, "Total number of messages acknowledged by consumers"),
    ("global_messages_get_empty_total", COUNTER, "Total number of times basic.get operations fetched no message"),
)
DEAD_LETTERED: Final = _group(
    "",
    (
        "global_messages_dead_lettered_expired_total",
        COUNTER,
        "Total number of messages dead-lettered due to message TTL exceeded",
    ),
    (
        "global_messages_dead_lettered_rejected_total",
        COUNTER,
        "Total number of messages dead-lettered due to basic.reject or basic.nack",
    ),
    (
        "global_messages_dead_lettered_maxlen_total",
        COUNTER,
        "Total number of messages dead-lettered due to overflow drop-head or reject-publish-dlx",
    ),
    (
        "global_messages_dead_lettered_delivery_limit_total",
        COUNTER,
        "Total number of messages dead-lettered due to delivery-limit exceeded",
    ),
)
OWN: Final = _group(
    "",
    ("amqpd_uptime_seconds", GAUGE, "Time since the start"),
    ("amqpd_storage_ack_age_seconds", HISTOGRAM, "Age of the oldest ack that was in no file, at each write of acks"),
    ("amqpd_loop_lag_seconds", HISTOGRAM, "How late a timer of the loop came, looked at four times a second"),
    ("amqpd_storage_sync_seconds", HISTOGRAM, "How long a group of the group commit took to sync"),
    ("amqpd_storage_group_bytes", HISTOGRAM, "What had been appended to the logs of a group, in bytes"),
    ("amqpd_storage_group_logs", HISTOGRAM, "How many logs a group was of"),
    ("amqpd_clock_jump_seconds", GAUGE, "How far the wall clock is ahead because of a jump that is held; 0: none is"),
    ("amqpd_storage_unsynced_bytes", GAUGE, "Written, not yet synced"),
    ("amqpd_retained_bytes", GAUGE, "Files of settled messages kept by x-retain"),
    ("amqpd_export_lost_records_total", COUNTER, "Given up unexported, over x-export-max-bytes"),
    ("amqpd_log_span_records", GAUGE, "Offsets from the first that is there to the end, of all logs"),
    ("amqpd_queues_unread", GAUGE, "Queues whose logs are not open yet, and whose messages are in no sum"),
    ("amqpd_delayed_messages", GAUGE, "Messages that wait until they are due"),
    ("amqpd_delayed_messages_delayed_total", COUNTER, "Messages that were delayed"),
    ("amqpd_delayed_messages_released_total", COUNTER, "Delayed messages that came due"),
    ("amqpd_delayed_messages_unroutable_total", COUNTER, "Of those, such that no queue took"),
    ("amqpd_delayed_messages_dropped_total", COUNTER, "Delayed messages whose exchange went"),
    ("amqpd_delayed_messages_cancelled_total", COUNTER, "Delayed messages that were cancelled"),
)
LOG: Final = _group(
    "log_metrics",
    ("amqpd_log_first_offset", GAUGE, "First offset that is in the log"),
    ("amqpd_log_end_offset", GAUGE, "Offset that the next message gets"),
    ("amqpd_log_records", GAUGE, "Records in logs that are not settled"),
    ("amqpd_log_bytes", GAUGE, "Bytes of the segments of logs"),
    ("amqpd_log_segments", GAUGE, "Segments of logs"),
)
EXPORT: Final = _group(
    "export_metrics",
    ("amqpd_export_lag_records", GAUGE, "Offsets that exporters have not committed yet"),
)
STREAM_LAG: Final = _group(
    "stream_consumer_metrics",
    ("stream_consumer_max_offset_lag", GAUGE, "Highest lag of a stream's consumers, in offsets"),
)

GROUPS: Final = (
    *(IDENTITY, CHURN, NODE_COARSE, NODE, PERSISTER, ALARMS, AUTH, AUTH_DETAILED, OBJECTS),
    *(QUEUE_COARSE, QUEUE_CONSUMERS, QUEUE, QUEUE_PUBLISHED, QUEUE_DELIVERY, QUEUE_DELIVERY_OWN),
    *(CHANNEL, CHANNEL_PUBLISHED, UNROUTABLE, CONNECTION_COARSE, CONNECTION, CLUSTER, GLOBAL, DEAD_LETTERED, OWN),
    *(LOG, EXPORT, STREAM_LAG),
)
ALL: Final[tuple[Family, ...]] = tuple(family for group in GROUPS for family in group.values())

assert len(QUEUE_DELIVERY) + len(QUEUE_PUBLISHED) == len(QUEUE_COUNTERS)
