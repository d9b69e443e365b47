"""Prometheus' promtool: the scrape of ../README.md."""

import os
import subprocess
import sys
import urllib.request

LINT = 3
"""promtool's exit code for names that it would choose otherwise; RabbitMQ has some."""
NAMES = (
    "rabbitmq_build_info",
    "rabbitmq_identity_info",
    "rabbitmq_connections",
    "rabbitmq_channels",
    "rabbitmq_consumers",
    "rabbitmq_queues",
    "rabbitmq_queue_messages",
    "rabbitmq_queue_messages_ready",
    "rabbitmq_queue_messages_unacked",
    "rabbitmq_global_messages_received_total",
    "rabbitmq_global_messages_confirmed_total",
    "rabbitmq_global_messages_delivered_total",
    "rabbitmq_global_messages_unroutable_dropped_total",
    "rabbitmq_connections_opened_total",
    "rabbitmq_process_resident_memory_bytes",
    "rabbitmq_resident_memory_limit_bytes",
    "rabbitmq_disk_space_available_bytes",
    "rabbitmq_process_open_fds",
)
"""Metrics of RabbitMQ's dashboard."""


def main(name):
    if name == "version":
        shown = subprocess.run(["promtool", "--version"], capture_output=True, text=True, check=True)
        print(shown.stdout.split()[2])
        return
    if name != "scrape":
        print("not offered: Prometheus reads metrics only")
        return
    with urllib.request.urlopen(os.environ["METRICS_URL"]) as answer:
        content = answer.read()
    checked = subprocess.run(["promtool", "check", "metrics"], input=content, capture_output=True, check=False)
    assert checked.returncode in (0, LINT), checked
    found = {line.split()[2] for line in content.decode().splitlines() if line.startswith("# TYPE")}
    assert set(NAMES) <= found, set(NAMES) - found
    print("pass")


main(*sys.argv[1:])
