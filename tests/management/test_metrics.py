"""Metrics: RabbitMQ's names and labels, counters that do not fall, and access.

tests/prometheus runs a real Prometheus. Here a parser as strict as Prometheus reads the text.
"""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from amqpd.management import prometheus
from amqpd.management.collectors import DETAILED_GROUPS
from amqpd.management.prometheus import Family, MetricsWriter, format_labels
from amqpd.management.stats import LAG_BOUNDS_S, LoopLag
from amqpd.management.time_slice import TimeSlice
from amqpd.testing import BrokerProcess
from interop.compare.metrics import HEARD, LABELS_LESS, LABELS_MORE, MISSING

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "metrics.md"
"""The page generated from the families; tests/docs/test_references.py compares both."""

HEADING = re.compile(r"# TYPE (\S+) (gauge|counter|histogram)\n# HELP (\S+) (.*)")
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\\n]|\\["\\n])*)"')
SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(" + LABEL.pattern + "(?:," + LABEL.pattern + r")*)\})? (\S+)")

Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


def parse_metrics(text: str) -> Samples:
    """Return samples by name and labels. Fails for text that Prometheus would reject or count as two families."""
    found: Samples = {}
    family_name = ""
    for name, _kind, help_name, _text in HEADING.findall(text):
        assert name == help_name
    lines = text.splitlines()
    headings = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(headings) == len(set(headings)), "a family is repeated"
    for line in lines:
        if line.startswith("#"):
            family_name = line.split()[2]
            continue
        match = SAMPLE.fullmatch(line)
        assert match is not None, line
        name = match[1]
        assert re.sub("_(bucket|sum|count)$", "", name) in (
            family_name,
            re.sub("_(bucket|sum|count)$", "", family_name),
        ), line
        labels = tuple(LABEL.findall(match[2] or ""))
        series = found.setdefault(name, {})
        assert labels not in series, f"repeated sample: {line}"
        series[labels] = float(match[match.lastindex or 0])
    return found


class TestText:
    async def text(self, writer: MetricsWriter) -> str:
        return b"".join(await writer.chunks(TimeSlice())).decode()

    async def test_samples_of_a_family_are_adjacent(self) -> None:
        writer = MetricsWriter()
        gauge, counter = Family("rabbitmq_a", "gauge", "A"), Family("rabbitmq_b", "counter", "B\nis\\it")
        for name in "xy":
            writer.add(gauge, 1, format_labels(queue=name))
            writer.add(counter, 2.5, format_labels(queue=name))
        assert await self.text(writer) == (
            "# TYPE rabbitmq_a gauge\n# HELP rabbitmq_a A\n"
            'rabbitmq_a{queue="x"} 1\nrabbitmq_a{queue="y"} 1\n'
            "# TYPE rabbitmq_b counter\n# HELP rabbitmq_b B\\nis\\\\it\n"
            'rabbitmq_b{queue="x"} 2.5\nrabbitmq_b{queue="y"} 2.5\n'
        )

    def test_label_values_are_escaped(self) -> None:
        assert format_labels(vhost='a"b', queue="c\\d\ne") == '{vhost="a\\"b",queue="c\\\\d\\ne"}'
        assert format_labels() == ""

    async def test_histogram_buckets_are_cumulative(self) -> None:
        writer = MetricsWriter()
        writer.add_histogram(Family("amqpd_h", "histogram", "H"), (0.5, 1.0), [3, 0, 2], 9.5)
        found = parse_metrics(await self.text(writer))
        assert found["amqpd_h_bucket"] == {(("le", "0.5"),): 3, (("le", "1"),): 3, (("le", "+Inf"),): 5}
        assert (found["amqpd_h_sum"], found["amqpd_h_count"]) == ({(): 9.5}, {(): 5})

    def test_names_of_detailed_metrics(self) -> None:
        assert Family("rabbitmq_queue_messages", "gauge", "").detailed() == "rabbitmq_detailed_queue_messages"
        assert Family("amqpd_log_bytes", "gauge", "").detailed() == "amqpd_detailed_log_bytes"
        assert Family("rabbitmq_cluster_vhost_status", "gauge", "").detailed() == "rabbitmq_cluster_vhost_status"


class TestLoopLag:
    """The loop is a fake with a settable clock."""

    def test_late_callbacks_are_counted_by_delay(self) -> None:
        now, calls = [100.0], []
        loop: Any = SimpleNamespace(time=lambda: now[0], call_at=lambda at, *call: calls.append((at, *call)))
        lag = LoopLag()
        lag.start(loop)
        for late_s in (0.0, 0.03, 5.0):
            at, check, *arguments = calls.pop()
            now[0] = at + late_s
            check(*arguments)
        assert len(calls) == 1
        counts = dict(zip((*LAG_BOUNDS_S, 9.0), lag.counts, strict=True))
        assert {bound for bound, count in counts.items() if count} == {0.001, 0.05, 9.0}
        assert abs(lag.total_s - 5.03) < 1e-9


class TestTable:
    def test_reference_page_names_every_detailed_group(self) -> None:
        text = PAGE.read_text("utf-8")
        assert sorted(name for name in DETAILED_GROUPS if f"`{name}`" not in text) == []

    def test_name_has_one_kind_prefix_and_suffix(self) -> None:
        kinds: dict[str, set[str]] = {}
        for family in prometheus.ALL:
            kinds.setdefault(family.name, set()).add(family.kind)
            assert family.name.startswith(("rabbitmq_", "amqpd_"))
            assert family.name.endswith("_total") == (family.kind == "counter"), family
        assert {name: kind for name, kind in kinds.items() if len(kind) > 1} == {}

    def test_detailed_groups_equal_groups_of_families(self) -> None:
        assert {family.group for family in prometheus.ALL} - {""} == DETAILED_GROUPS


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Generator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("metrics"), settings={"metrics.port": 0}) as process:
        yield process


@pytest.fixture
def scrape_path(broker: BrokerProcess) -> Callable[[str], Samples]:
    host, port = broker.ready.listeners["prometheus"]

    def scrape(path: str) -> Samples:
        with urllib.request.urlopen(f"http://{host}:{port}{path}") as answer:
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            return parse_metrics(answer.read().decode())

    return scrape


@pytest.fixture
def channel(broker: BrokerProcess) -> Generator[BlockingChannel]:
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        yield connection.channel()


def status(request: str | urllib.request.Request, data: bytes | None = None) -> int:
    """Send a request that must fail and return the status of the error."""
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(request, data=data)
    with raised.value as error:
        return error.code


def sample(samples: Samples, name: str, **labels: str) -> float:
    """Return the value of the only sample that has these labels."""
    series = samples[name]
    found = [value for key, value in series.items() if labels.items() <= dict(key).items()]
    assert len(found) == 1, (name, labels, series)
    return found[0]


CLASSIC = {"protocol": "amqp091", "queue_type": "rabbit_classic_queue"}
AMQP = {"protocol": "amqp091"}
GUEST = {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}


class TestCounts:
    def test_client_actions_are_counted(
        self, scrape_path: Callable[[str], Samples], channel: BlockingChannel, broker: BrokerProcess
    ) -> None:
        before = scrape_path("/metrics")
        channel.confirm_delivery()
        channel.queue_declare("counted")
        for _ in range(6):
            channel.basic_publish("", "counted", b"x")
        with pytest.raises(pika.exceptions.UnroutableError):
            channel.basic_publish("amq.direct", "nowhere", b"x", mandatory=True)
        channel.basic_publish("amq.direct", "nowhere", b"x")
        assert channel.basic_get("counted", auto_ack=True)[0]
        method = channel.basic_get("counted")[0]
        channel.basic_nack(method.delivery_tag, requeue=True)
        method = channel.basic_get("counted")[0]
        channel.basic_ack(method.delivery_tag)
        channel.queue_declare("empty")
        channel.basic_get("empty")
        after = scrape_path("/metrics")

        def increase(name: str, **labels: str) -> float:
            return sample(after, name, **labels) - sample(before, name, **labels)

        assert increase("rabbitmq_global_messages_received_total", **AMQP) == 8
        assert increase("rabbitmq_global_messages_received_confirm_total", **AMQP) == 8
        assert increase("rabbitmq_global_messages_confirmed_total", **AMQP) == 8
        assert increase("rabbitmq_global_messages_routed_total", **AMQP) == 6
        assert increase("rabbitmq_global_messages_unroutable_returned_total", **AMQP) == 1
        assert increase("rabbitmq_global_messages_unroutable_dropped_total", **AMQP) == 1
        assert increase("rabbitmq_channel_messages_unroutable_dropped_total") == 1
        assert increase("rabbitmq_global_messages_delivered_get_auto_ack_total", **CLASSIC) == 1
        assert increase("rabbitmq_global_messages_delivered_get_manual_ack_total", **CLASSIC) == 2
        assert increase("rabbitmq_global_messages_delivered_total", **CLASSIC) == 3
        assert increase("rabbitmq_global_messages_redelivered_total", **CLASSIC) == 1
        assert increase("rabbitmq_global_messages_acknowledged_total", **CLASSIC) == 1
        assert increase("rabbitmq_global_messages_get_empty_total", **CLASSIC) == 1
        assert increase("rabbitmq_queue_messages_ready") == 4
        assert increase("rabbitmq_queues_created_total") == 2
        assert sample(after, "rabbitmq_global_publishers", **AMQP) == 1
        channel.queue_delete("counted")
        channel.queue_delete("empty")

    def test_no_counter_falls_when_vhost_is_deleted(
        self, scrape_path: Callable[[str], Samples], broker: BrokerProcess
    ) -> None:
        vhost = broker.add_vhost()
        with pika.BlockingConnection(pika.URLParameters(vhost.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("gone", durable=True, arguments={"x-queue-type": "quorum"})
            channel.basic_publish("", "gone", b"x")
            channel.basic_publish("amq.direct", "nowhere", b"x")
            channel.basic_get("gone", auto_ack=True)
            before = scrape_path("/metrics")
        broker.delete_vhost(vhost.name)
        after = scrape_path("/metrics")
        fallen = [
            (name, labels)
            for name, series in before.items()
            for labels, value in series.items()
            if name.endswith("_total") and after[name][labels] < value
        ]
        assert fallen == []
        quorum = {**AMQP, "queue_type": "rabbit_quorum_queue"}
        assert sample(after, "rabbitmq_global_messages_delivered_get_auto_ack_total", **quorum) >= 1

    def test_dead_letters_are_counted_by_reason(
        self, scrape_path: Callable[[str], Samples], channel: BlockingChannel, broker: BrokerProcess
    ) -> None:
        def count(reason: str) -> float:
            name = f"rabbitmq_global_messages_dead_lettered_{reason}_total"
            return sample(scrape_path("/metrics"), name, queue_type="rabbit_classic_queue")

        before = {reason: count(reason) for reason in ("expired", "rejected", "maxlen")}
        channel.queue_declare("dead")
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-max-length": 3}
        channel.queue_declare("dying", arguments=arguments)
        for _ in range(5):
            channel.basic_publish("", "dying", b"x")
        method = channel.basic_get("dying")[0]
        channel.basic_reject(method.delivery_tag, requeue=False)
        channel.basic_publish("", "dying", b"x", pika.BasicProperties(expiration="1"))
        deadline = time.monotonic() + 20
        expected = {"expired": 0.0, "rejected": 1.0, "maxlen": 2.0}
        while {reason: count(reason) - before[reason] for reason in before} != expected:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        channel.queue_purge("dying")
        channel.basic_publish("", "dying", b"x", pika.BasicProperties(expiration="1"))
        while count("expired") - before["expired"] != 1:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        for name in ("dying", "dead"):
            channel.queue_delete(name)


class TestObjects:
    def test_per_object_metrics_of_queue_and_channel(
        self, scrape_path: Callable[[str], Samples], channel: BlockingChannel
    ) -> None:
        for name in ('or"de\\rs', "log"):
            channel.queue_declare(name, durable=name == "log")
            for _ in range(3):
                channel.basic_publish("", name, b"123", pika.BasicProperties(delivery_mode=2))
        channel.basic_qos(prefetch_count=7)
        channel.basic_get('or"de\\rs')
        found = scrape_path("/metrics/per-object")
        quoted = {"vhost": "/", "queue": 'or\\"de\\\\rs'}
        assert sample(found, "rabbitmq_queue_messages_ready", **quoted) == 2
        assert sample(found, "rabbitmq_queue_messages_unacked", **quoted) == 1
        assert sample(found, "rabbitmq_queue_messages_bytes", **quoted) >= 6
        assert sample(found, "rabbitmq_channel_get_ack_total", **quoted) == 1
        assert sample(found, "amqpd_log_end_offset", vhost="/", queue="log") == 3
        assert sample(found, "rabbitmq_queue_messages_published_total", queue_vhost="/", queue="log") == 3
        assert sample(found, "rabbitmq_consumer_prefetch") == 7
        assert sample(found, "rabbitmq_channel_messages_published_total", vhost="/") == 6
        assert sample(found, "rabbitmq_connection_incoming_bytes_total") > 0
        for name in ('or"de\\rs', "log"):
            channel.queue_delete(name)

    def test_detailed_metrics_are_selected_by_family_vhost_and_queue(
        self, scrape_path: Callable[[str], Samples], channel: BlockingChannel, broker: BrokerProcess
    ) -> None:
        vhost = broker.add_vhost()
        channel.queue_declare("here")
        channel.queue_declare("beside")
        with pika.BlockingConnection(pika.URLParameters(vhost.url)) as connection:
            connection.channel().queue_declare("there")
        all_queues = scrape_path("/metrics/detailed?family=queue_coarse_metrics&family=queue_consumer_count")
        queue_names = {dict(key)["queue"] for key in all_queues["rabbitmq_detailed_queue_messages"]}
        assert {"here", "beside", "there"} <= queue_names
        assert "rabbitmq_detailed_queue_consumers" in all_queues
        assert "rabbitmq_build_info" in all_queues
        of_vhost = scrape_path("/metrics/detailed?family=queue_coarse_metrics&vhost=" + vhost.name)
        assert [dict(key)["queue"] for key in of_vhost["rabbitmq_detailed_queue_messages"]] == ["there"]
        of_queue = scrape_path("/metrics/detailed?family=queue_coarse_metrics&vhost=%2F&queue=here")
        assert [dict(key)["queue"] for key in of_queue["rabbitmq_detailed_queue_messages"]] == ["here"]
        unknown_family = scrape_path("/metrics/detailed?family=nonsense")
        assert sorted(unknown_family) == ["rabbitmq_build_info", "rabbitmq_identity_info"]
        (identity,) = unknown_family["rabbitmq_identity_info"]
        cluster_id = broker.api("GET", "/api/global-parameters/internal_cluster_id")
        assert dict(identity)["rabbitmq_cluster_permanent_id"] == cluster_id["value"]  # type: ignore[index, call-overload]
        channel.queue_delete("here")
        channel.queue_delete("beside")

    def test_stream_consumer_lag_is_shown(
        self, scrape_path: Callable[[str], Samples], channel: BlockingChannel
    ) -> None:
        channel.queue_declare("events", durable=True, arguments={"x-queue-type": "stream"})
        channel.basic_qos(prefetch_count=1)
        deliveries: list[Any] = []
        channel.basic_consume(
            "events", lambda *delivery: deliveries.append(delivery), arguments={"x-stream-offset": "first"}
        )
        for _ in range(5):
            channel.basic_publish("", "events", b"x")
        channel.connection.process_data_events(0.5)
        found = scrape_path("/metrics/detailed?family=stream_consumer_metrics")
        assert sample(found, "rabbitmq_detailed_stream_consumer_max_offset_lag", vhost="/", queue="events") == 4
        channel.queue_delete("events")

    @pytest.mark.parametrize("family", sorted(DETAILED_GROUPS))
    def test_detailed_family_has_only_its_own_names(self, scrape_path: Callable[[str], Samples], family: str) -> None:
        names = {each.detailed() for each in prometheus.ALL if each.group == family}
        found = set(scrape_path(f"/metrics/detailed?family={family}"))
        extra = {"rabbitmq_detailed_queue_consumers"} if family == "queue_metrics" else set()
        assert found - {"rabbitmq_build_info", "rabbitmq_identity_info"} - extra <= names


class TestRabbitMqNames:
    """The recorded metrics of RabbitMQ 3.10.8: each name exists here with its kind and labels, or has a documented
    reason.
    """

    @pytest.mark.parametrize("path", ["metrics", "per-object"])
    def test_rabbitmq_name_has_same_kind_and_labels(
        self, scrape_path: Callable[[str], Samples], broker: BrokerProcess, path: str
    ) -> None:
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            channel.queue_declare("beside-rabbitmq")
            channel.basic_publish("", "beside-rabbitmq", b"x")
            found = scrape_path("/metrics" if path == "metrics" else "/metrics/per-object")
            channel.queue_delete("beside-rabbitmq")
        kinds = {family.name: family.kind for family in prometheus.ALL}
        wrong = []
        for line in HEARD.read_text("ascii").splitlines():
            where, kind, name, *labels = line.split()
            if where != path or any(re.fullmatch(pattern, name) for pattern in MISSING):
                continue
            if name not in found or kinds[name] != kind.replace("untyped", "gauge"):
                wrong.append((name, "is not here", kind))
                continue
            recorded_labels = set(labels[0].split(",")) if labels else set()
            for key in found[name]:
                missing_labels = recorded_labels - set(dict(key))
                if missing_labels - LABELS_LESS or set(dict(key)) - recorded_labels - LABELS_MORE.get(name, set()):
                    wrong.append((name, "has other labels", str(key)))
        assert wrong == []

    def test_every_reason_for_a_missing_name_is_used(self) -> None:
        names = [line.split()[2] for line in HEARD.read_text("ascii").splitlines() if not line.startswith("#")]
        assert [pattern for pattern in MISSING if not any(re.fullmatch(pattern, name) for name in names)] == []
        family_names = {family.name for family in prometheus.ALL}
        excused = {name for name in names for pattern in MISSING if re.fullmatch(pattern, name)}
        assert sorted(excused & family_names) == []


class TestAccess:
    def test_metrics_listener_serves_only_metrics(self, broker: BrokerProcess) -> None:
        host, port = broker.ready.listeners["prometheus"]
        for path in ("/", "/api/overview", "/metrics/nonsense", "/cli/"):
            assert status(f"http://{host}:{port}{path}") == 404
        assert status(f"http://{host}:{port}/metrics", b"{}") == 405

    def test_per_object_metrics_on_api_port_need_a_password(self, broker: BrokerProcess) -> None:
        with urllib.request.urlopen(f"{broker.http_url}/metrics") as answer:
            assert "rabbitmq_queue_messages_ready" in parse_metrics(answer.read().decode())
        for path in ("/metrics/per-object", "/metrics/detailed?family=queue_metrics"):
            assert status(broker.http_url + path) == 401
            with urllib.request.urlopen(urllib.request.Request(broker.http_url + path, headers=GUEST)) as answer:
                parse_metrics(answer.read().decode())

    def test_metrics_listener_has_rabbitmq_protocol_name(self, broker: BrokerProcess) -> None:
        listeners = broker.api("GET", "/api/overview")["listeners"]
        port = broker.ready.listeners["prometheus"][1]
        assert [each["port"] for each in listeners if each["protocol"] == "http/prometheus"] == [port]


def test_metrics_listener_is_off_by_default(amqpd_broker: BrokerProcess) -> None:
    assert "prometheus" not in amqpd_broker.ready.listeners
