"""Metrics of both brokers: RabbitMQ's names that amqpd does not have, each with its reason, and missing labels.

`rabbitmq_metrics.txt` is the output of RabbitMQ 3.10.8. tests/management/test_metrics.py compares amqpd's: each name
exists with its kind and labels, or is listed here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

HEARD: Final = Path(__file__).with_name("rabbitmq_metrics.txt")
MISSING: Final = {
    "rabbitmq_raft_.*": "there is no Raft",
    ".*_process_(reductions_total|memory_bytes)": "queues, channels and connections are not processes in amqpd",
    "rabbitmq_(msg_store|queue_index|schema_db)_.*": "there is no message store, and no Mnesia",
    "rabbitmq_io_(seek|reopen)_ops_total": "files are only appended to",
    "rabbitmq_io_(read|write|seek)_time_seconds_total": "times spent in the kernel are not measured",
    "rabbitmq_erlang_(gc_reclaimed_bytes_total|net_ticktime_seconds|scheduler_run_queue)": "about Erlang's runtime",
    "rabbitmq_queue_.*(_ram|_ram_bytes|_paged_out|_paged_out_bytes)": "messages are not paged out: they are in the log",
    "rabbitmq_queue_messages_persistent(_bytes)?": "not counted separately",
    "rabbitmq_queue_disk_(reads|writes)_total": "not counted by queue",
    "rabbitmq_queue_head_message_timestamp": "would have to read the first message of every queue",
    "rabbitmq_connection_(incoming_packets_total|outgoing_packets_total|pending_packets)": "packets are not counted",
    "rabbitmq_global_messages_dead_lettered_confirmed_total": "each is confirmed: see the counts by reason",
}
"""RabbitMQ's names, and why amqpd does not have them."""
LABELS_LESS: Final = {"channel", "exchange", "exchange_vhost"}
"""Deliveries are counted by queue, publishes by channel and by queue, unroutable messages by vhost."""
LABELS_MORE: Final = {"rabbitmq_build_info": {"product_name", "product_version", "build"}}
