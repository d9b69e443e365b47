"""Dashboards and alert rules, ours and RabbitMQ's, in a real Prometheus on a broker under load: none is empty.

For RabbitMQ the tables list facts: the metrics that its dashboard RabbitMQ-Overview (grafana.com 10991, for 3.8 and
3.13) and the rules of its Kubernetes operator read, and their expressions.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from amqpd.testing import BrokerProcess

GRAFANA = Path(__file__).parents[2] / "docs" / "grafana"
IDENTITY = 'rabbitmq_identity_info{rabbitmq_cluster="$cluster", namespace=""}'
# Expressions of panels; {0}: the metric, or its rate.
SUM = "sum({0} * on(instance) group_left(rabbitmq_cluster) " + IDENTITY + ")"
SUM_OF_JOB = "sum({0} * on(instance, job) group_left(rabbitmq_cluster) " + IDENTITY + ")"
BY_NODE = "sum({0} * on(instance) group_left(rabbitmq_cluster, rabbitmq_node) " + IDENTITY + ") by(rabbitmq_node)"
BY_JOB_AND_NODE = (
    "sum({0} * on(instance, job) group_left(rabbitmq_cluster, rabbitmq_node) " + IDENTITY + ") by(rabbitmq_node)"
)
GAUGES = (
    *("rabbitmq_queue_messages_ready", "rabbitmq_queue_messages_unacked", "rabbitmq_queues", "rabbitmq_connections"),
    *("rabbitmq_channels", "rabbitmq_channel_consumers", "rabbitmq_global_publishers", "rabbitmq_global_consumers"),
    *("rabbitmq_consumers", "rabbitmq_build_info", "rabbitmq_erlang_uptime_seconds"),
    *("rabbitmq_resident_memory_limit_bytes", "rabbitmq_process_resident_memory_bytes"),
    *("rabbitmq_disk_space_available_bytes", "rabbitmq_disk_space_available_limit_bytes"),
    *("rabbitmq_process_max_fds", "rabbitmq_process_open_fds"),
    *("rabbitmq_process_max_tcp_sockets", "rabbitmq_process_open_tcp_sockets"),
)
CHANNEL_COUNTERS = (
    *("messages_published_total", "messages_confirmed_total", "messages_unroutable_dropped_total"),
    *("messages_unroutable_returned_total", "messages_delivered_total", "messages_delivered_ack_total"),
    *("messages_redelivered_total", "messages_acked_total", "get_total", "get_ack_total", "get_empty_total"),
)
GLOBAL_COUNTERS = (
    *("received", "received_confirm", "confirmed", "routed", "unroutable_dropped", "unroutable_returned", "delivered"),
    *("delivered_consume_auto_ack", "delivered_consume_manual_ack", "delivered_get_auto_ack"),
    *("delivered_get_manual_ack", "get_empty", "redelivered", "acknowledged"),
)
CHURN = (
    *("connections_opened", "connections_closed", "channels_opened", "channels_closed"),
    *("queues_declared", "queues_created", "queues_deleted"),
)
COUNTERS = (
    *(f"rabbitmq_channel_{name}" for name in CHANNEL_COUNTERS),
    *(f"rabbitmq_global_messages_{name}_total" for name in GLOBAL_COUNTERS),
    *(f"rabbitmq_{name}_total" for name in CHURN),
    "rabbitmq_queue_messages_published_total",
)
NEVER_RISE = frozenset({"rabbitmq_channel_messages_redelivered_total", "rabbitmq_global_messages_redelivered_total"})
"""This load has no redeliveries."""

CLUSTER = "group_left(rabbitmq_cluster) max by (instance, rabbitmq_cluster) (rabbitmq_identity_info)"
NODE = (
    "group_left(rabbitmq_cluster, rabbitmq_node) "
    "max by (instance, rabbitmq_node, rabbitmq_cluster) (rabbitmq_identity_info)"
)
OPERATOR_RULES = {
    # Name: the expression that the rule compares with a bound; it must have a value.
    "UnroutableMessages, dropped": "sum by(namespace, rabbitmq_cluster) "
    f"(increase(rabbitmq_channel_messages_unroutable_dropped_total[5m]) * on (instance) {CLUSTER})",
    "UnroutableMessages, returned": "sum by(namespace, rabbitmq_cluster) "
    f"(increase(rabbitmq_channel_messages_unroutable_returned_total[5m]) * on (instance) {CLUSTER})",
    "MemoryAlarm": "max by(rabbitmq_cluster) "
    f"(max_over_time(rabbitmq_alarms_memory_used_watermark[5m]) * on(instance) {CLUSTER})",
    "RabbitmqDiskAlarm": "max by(rabbitmq_cluster) "
    f"(max_over_time(rabbitmq_alarms_free_disk_space_watermark[5m]) * on(instance) {CLUSTER})",
    "RabbitmqFileDescriptorAlarm": "max by(rabbitmq_cluster) "
    f"(max_over_time(rabbitmq_alarms_file_descriptor_limit[5m]) * on(instance) {CLUSTER})",
    "FileDescriptorsNearLimit": "sum by(namespace, rabbitmq_cluster, pod, rabbitmq_node) "
    f"(max_over_time(rabbitmq_process_open_fds[5m]) * on(instance) {NODE}) / "
    f"sum by(namespace, rabbitmq_cluster, pod, rabbitmq_node) (rabbitmq_process_max_fds * on(instance) {NODE})",
    "TCPSocketsNearLimit": "sum by(namespace, rabbitmq_cluster, pod, rabbitmq_node) "
    f"(max_over_time(rabbitmq_process_open_tcp_sockets[5m]) * on(instance) {NODE}) / "
    f"sum by(namespace, rabbitmq_cluster, pod, rabbitmq_node) (rabbitmq_process_max_tcp_sockets * on(instance) {NODE})",
    "HighConnectionChurn": "(sum by (namespace, rabbitmq_cluster) "
    f"(rate(rabbitmq_connections_closed_total[5m]) * on (instance) {CLUSTER}) + sum by (namespace, rabbitmq_cluster) "
    f"(rate(rabbitmq_connections_opened_total[5m]) * on (instance) {CLUSTER})) / "
    f"sum by (namespace, rabbitmq_cluster) (rabbitmq_connections * on (instance) {CLUSTER})",
    "LowDiskWatermarkPredicted, free": "predict_linear(rabbitmq_disk_space_available_bytes[24h], 60*60*24) "
    f"* on (instance) {NODE}",
    "LowDiskWatermarkPredicted, limit": f"rabbitmq_disk_space_available_limit_bytes * on (instance) {NODE}",
    "QueueIsGrowing": f"avg_over_time(rabbitmq_detailed_queue_messages[10m]) * on (instance) {CLUSTER}",
    "QueueHasNoConsumers": '(((rabbitmq_detailed_queue_consumers{vhost="/", queue=~".*"} == 0) + '
    "rabbitmq_detailed_queue_messages) > 0) * on (instance, job) group_left(rabbitmq_cluster) rabbitmq_identity_info",
}


def numbers(samples: list[dict[str, Any]]) -> list[float]:
    return [float(each["value"][1]) for each in samples]


class TestMetricsText:
    @pytest.mark.parametrize(
        "path", ["/metrics", "/metrics/per-object", "/metrics/detailed?family=queue_metrics&family=log_metrics"]
    )
    def test_promtool_accepts_metrics(self, broker: BrokerProcess, promtool: str, path: str) -> None:
        host, port = broker.ready.listeners["prometheus"]
        with urllib.request.urlopen(f"http://{host}:{port}{path}") as answer:
            text = answer.read()
        process = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
        # promtool prints its findings; the names are those of RabbitMQ.
        assert (process.returncode, process.stdout + process.stderr) == (0, b"")


class TestRabbitMqDashboard:
    @pytest.fixture
    def cluster(self, prometheus: Any) -> str:
        found = prometheus.ask("rabbitmq_identity_info")
        assert len(found) == 1
        name: str = found[0]["metric"]["rabbitmq_cluster"]
        return name

    @pytest.mark.parametrize("template", [SUM, SUM_OF_JOB, BY_NODE, BY_JOB_AND_NODE])
    def test_no_panel_is_empty(self, prometheus: Any, cluster: str, template: str) -> None:
        empty, constant = [], []
        for name in (*GAUGES, *COUNTERS):
            expression = name if name in GAUGES else f"rate({name}[60s])"
            found = numbers(prometheus.ask(template.replace("{0}", expression).replace("$cluster", cluster)))
            if not found or any(math.isnan(value) for value in found):
                empty.append(name)
            elif name in COUNTERS and name not in NEVER_RISE and sum(found) == 0:
                constant.append(name)
        assert (empty, constant) == ([], [])

    def test_variables_have_values(self, prometheus: Any) -> None:
        for name in ("rabbitmq_cluster", "rabbitmq_node"):
            assert prometheus.get(f"/api/v1/label/{name}/values")
        found = prometheus.ask("rabbitmq_build_info * on(instance) group_left(rabbitmq_node) rabbitmq_identity_info")
        assert {"rabbitmq_version", "erlang_version", "prometheus_plugin_version", "prometheus_client_version"} <= set(
            found[0]["metric"]
        )


class TestRabbitMqRules:
    @pytest.mark.parametrize("rule", OPERATOR_RULES)
    def test_rule_expression_has_a_value(self, prometheus: Any, rule: str) -> None:
        assert numbers(prometheus.ask(OPERATOR_RULES[rule]))


class TestScrapes:
    def test_each_target_has_its_own_identity(self, prometheus: Any) -> None:
        found = prometheus.ask("up")
        assert sorted(each["metric"]["job"] for each in found) == ["amqpd", "amqpd-queues"]
        assert {each["value"][1] for each in found} == {"1"}

    def test_no_series_comes_from_both(self, prometheus: Any) -> None:
        """A sample that both targets send is dropped, as a duplicate or as out of order. Prometheus counts these."""
        names = r"prometheus_target_scrapes_sample_(?:out_of_order|duplicate_timestamp)_total"
        dropped = re.compile(rf"^({names}) (\S+)$", re.MULTILINE)
        with urllib.request.urlopen(f"{prometheus.url}/metrics") as answer:
            counted = dict(dropped.findall(answer.read().decode()))
        assert (len(counted), set(counted.values())) == (2, {"0"})


class TestAmqpdDashboardAndRules:
    def test_no_panel_of_the_dashboard_is_empty(self, prometheus: Any) -> None:
        dashboard = json.loads((GRAFANA / "amqpd.json").read_text("utf-8"))
        expressions = [
            (panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel.get("targets", ())
        ]
        assert len(expressions) > 30
        empty = []
        for title, expression in expressions:
            found = numbers(prometheus.ask(expression.replace("$instance", ".*")))
            if not found or any(math.isnan(value) for value in found):
                empty.append((title, expression))
        assert empty == []

    def test_panels_do_not_overlap(self) -> None:
        used_cells: set[tuple[int, int]] = set()
        for panel in json.loads((GRAFANA / "amqpd.json").read_text("utf-8"))["panels"]:
            position = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(position["x"], position["x"] + position["w"])
                for y in range(position["y"], position["y"] + position["h"])
            }
            assert not cells & used_cells, panel["title"]
            assert max(x for x, _ in cells) < 24
            used_cells |= cells

    def test_promtool_accepts_rules(self, promtool: str) -> None:
        process = subprocess.run(
            [promtool, "check", "rules", str(GRAFANA / "alerts.yml")], capture_output=True, text=True, check=False
        )
        assert process.returncode == 0, process.stdout + process.stderr

    def test_each_rule_fires_in_its_cases_only(self, promtool: str, tmp_path: Path) -> None:
        rules = (GRAFANA / "alerts.yml").read_text("utf-8")
        cases = Path(__file__).with_name("alerts_test.yml").read_text("utf-8")
        (tmp_path / "alerts.yml").write_text(rules, "utf-8")
        (tmp_path / "cases.yml").write_text(cases, "utf-8")
        process = subprocess.run(
            [promtool, "test", "rules", "cases.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert process.returncode == 0, process.stdout + process.stderr
        named = set(re.findall(r"alert: (\w+)", rules))
        assert named == set(re.findall(r'alertname="(\w+)"', cases))

    def test_metrics_of_rules_exist(self, prometheus: Any) -> None:
        text = (GRAFANA / "alerts.yml").read_text("utf-8")
        named = {name for line in re.findall(r"^ *expr: (.*)$", text, re.MULTILINE) for name in metrics_in(line)}
        assert len(named) > 12
        assert sorted(name for name in named if not prometheus.ask(name)) == []

    def test_unroutable_alert_fires_under_load(self, prometheus: Any) -> None:
        """Messages are dropped all the time, so its expression has a value."""
        text = (GRAFANA / "alerts.yml").read_text("utf-8")
        expression = re.search(r"alert: AmqpdUnroutable\n *expr: (.*)", text)
        assert expression is not None
        assert prometheus.ask(expression[1])


def metrics_in(expression: str) -> list[str]:
    return re.findall(r"\b((?:rabbitmq|amqpd)_\w+)", expression)
