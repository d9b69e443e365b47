"""Metrics: RabbitMQ's names and labels, sums that do not fall, and what may be seen where.

A Prometheus of its own looks at them in tests/prometheus; here their text is read by a parser as strict as its own.
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
from amqpd.management.loop_lag import BOUNDS_S, LoopLag
from amqpd.management.prometheus import Family, MetricsWriter, format_labels
from amqpd.management.time_slice import TimeSlice
from amqpd.testing import BrokerProcess
from interop.compare.metrics import HEARD, LABELS_LESS, LABELS_MORE, MISSING

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "metrics.md"
"""Made of the families; tests/docs/test_references.py compares."""

HEADING = re.compile(r"# TYPE (\S+) (gauge|counter|histogram)\n# HELP (\S+) (.*)")
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\\n]|\\["\\n])*)"')
SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(" + LABEL.pattern + "(?:," + LABEL.pattern + r")*)\})? (\S+)")

Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


def parsed(text: str) -> Samples:
    """Samples by name and labels; fails at what a Prometheus would not take, or would take for two families."""
    found: Samples = {}
    headed = ""
    for name, _kind, again, _text in HEADING.findall(text):
        assert name == again
    lines = text.splitlines()
    headings = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(headings) == len(set(headings)), "a family that comes twice"
    for line in lines:
        if line.startswith("#"):
            headed = line.split()[2]
            continue
        match = SAMPLE.fullmatch(line)
        assert match is not None, line
        name = match[1]
        assert re.sub("_(bucket|sum|count)$", "", name) in (headed, re.sub("_(bucket|sum|count)$", "", headed)), line
        given = tuple(LABEL.findall(match[2] or ""))
        series = found.setdefault(name, {})
        assert given not in series, f"twice: {line}"
        series[given] = float(match[match.lastindex or 0])
    return found


class TestText:
    async def text(self, sheet: MetricsWriter) -> str:
        return b"".join(await sheet.chunks(TimeSlice())).decode()

    async def test_a_family_stands_together(self) -> None:
        sheet = MetricsWriter()
        one, two = Family("rabbitmq_a", "gauge", "A"), Family("rabbitmq_b", "counter", "B\nis\\it")
        for name in "xy":
            sheet.add(one, 1, format_labels(queue=name))
            sheet.add(two, 2.5, format_labels(queue=name))
        assert await self.text(sheet) == (
            "# TYPE rabbitmq_a gauge\n# HELP rabbitmq_a A\n"
            'rabbitmq_a{queue="x"} 1\nrabbitmq_a{queue="y"} 1\n'
            "# TYPE rabbitmq_b counter\n# HELP rabbitmq_b B\\nis\\\\it\n"
            'rabbitmq_b{queue="x"} 2.5\nrabbitmq_b{queue="y"} 2.5\n'
        )

    def test_what_a_name_may_hold_is_escaped(self) -> None:
        assert format_labels(vhost='a"b', queue="c\\d\ne") == '{vhost="a\\"b",queue="c\\\\d\\ne"}'
        assert format_labels() == ""

    async def test_a_histogram_adds_up(self) -> None:
        sheet = MetricsWriter()
        sheet.add_histogram(Family("amqpd_h", "histogram", "H"), (0.5, 1.0), [3, 0, 2], 9.5)
        found = parsed(await self.text(sheet))
        assert found["amqpd_h_bucket"] == {(("le", "0.5"),): 3, (("le", "1"),): 3, (("le", "+Inf"),): 5}
        assert (found["amqpd_h_sum"], found["amqpd_h_count"]) == ({(): 9.5}, {(): 5})

    def test_names_of_detailed_metrics(self) -> None:
        assert Family("rabbitmq_queue_messages", "gauge", "").detailed() == "rabbitmq_detailed_queue_messages"
        assert Family("amqpd_log_bytes", "gauge", "").detailed() == "amqpd_detailed_log_bytes"
        assert Family("rabbitmq_cluster_vhost_status", "gauge", "").detailed() == "rabbitmq_cluster_vhost_status"


class TestLoopLag:
    """With a loop that says what time it is."""

    def test_what_holds_the_loop_shows(self) -> None:
        now, calls = [100.0], []
        loop: Any = SimpleNamespace(time=lambda: now[0], call_at=lambda at, *call: calls.append((at, *call)))
        lag = LoopLag()
        lag.start(loop)
        for late_s in (0.0, 0.03, 5.0):
            at, look, *arguments = calls.pop()
            now[0] = at + late_s
            look(*arguments)
        assert len(calls) == 1
        counts = dict(zip((*BOUNDS_S, 9.0), lag.counts, strict=True))
        assert {bound for bound, count in counts.items() if count} == {0.001, 0.05, 9.0}
        assert abs(lag.total_s - 5.03) < 1e-9


class TestTable:
    def test_the_page_names_every_family_of_detailed(self) -> None:
        text = PAGE.read_text("utf-8")
        assert sorted(name for name in DETAILED_GROUPS if f"`{name}`" not in text) == []

    def test_a_name_has_one_kind(self) -> None:
        kinds: dict[str, set[str]] = {}
        for family in prometheus.ALL:
            kinds.setdefault(family.name, set()).add(family.kind)
            assert family.name.startswith(("rabbitmq_", "amqpd_"))
            assert family.name.endswith("_total") == (family.kind == "counter"), family
        assert {name: kind for name, kind in kinds.items() if len(kind) > 1} == {}

    def test_every_group_is_asked_for_by_a_name_that_is_there(self) -> None:
        assert {family.group for family in prometheus.ALL} - {""} == DETAILED_GROUPS


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Generator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("metrics"), settings={"metrics.port": 0}) as process:
        yield process


@pytest.fixture
def ask(broker: BrokerProcess) -> Callable[[str], Samples]:
    host, port = broker.ready.listeners["prometheus"]

    def asked(path: str) -> Samples:
        with urllib.request.urlopen(f"http://{host}:{port}{path}") as answer:
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            return parsed(answer.read().decode())

    return asked


@pytest.fixture
def channel(broker: BrokerProcess) -> Generator[BlockingChannel]:
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        yield connection.channel()


def status(request: str | urllib.request.Request, data: bytes | None = None) -> int:
    """Of an answer that is an error."""
    with pytest.raises(urllib.error.HTTPError) as told:
        urllib.request.urlopen(request, data=data)
    with told.value as error:
        return error.code


def one(samples: Samples, name: str, **given: str) -> float:
    """The one sample with these labels among its own."""
    series = samples[name]
    found = [value for key, value in series.items() if given.items() <= dict(key).items()]
    assert len(found) == 1, (name, given, series)
    return found[0]


CLASSIC = {"protocol": "amqp091", "queue_type": "rabbit_classic_queue"}
AMQP = {"protocol": "amqp091"}
GUEST = {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}


class TestCounts:
    def test_what_a_client_does_is_counted(
        self, ask: Callable[[str], Samples], channel: BlockingChannel, broker: BrokerProcess
    ) -> None:
        before = ask("/metrics")
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
        after = ask("/metrics")

        def rose(name: str, **given: str) -> float:
            return one(after, name, **given) - one(before, name, **given)

        assert rose("rabbitmq_global_messages_received_total", **AMQP) == 8
        assert rose("rabbitmq_global_messages_received_confirm_total", **AMQP) == 8
        assert rose("rabbitmq_global_messages_confirmed_total", **AMQP) == 8
        assert rose("rabbitmq_global_messages_routed_total", **AMQP) == 6
        assert rose("rabbitmq_global_messages_unroutable_returned_total", **AMQP) == 1
        assert rose("rabbitmq_global_messages_unroutable_dropped_total", **AMQP) == 1
        assert rose("rabbitmq_channel_messages_unroutable_dropped_total") == 1
        assert rose("rabbitmq_global_messages_delivered_get_auto_ack_total", **CLASSIC) == 1
        assert rose("rabbitmq_global_messages_delivered_get_manual_ack_total", **CLASSIC) == 2
        assert rose("rabbitmq_global_messages_delivered_total", **CLASSIC) == 3
        assert rose("rabbitmq_global_messages_redelivered_total", **CLASSIC) == 1
        assert rose("rabbitmq_global_messages_acknowledged_total", **CLASSIC) == 1
        assert rose("rabbitmq_global_messages_get_empty_total", **CLASSIC) == 1
        assert rose("rabbitmq_queue_messages_ready") == 4
        assert rose("rabbitmq_queues_created_total") == 2
        assert one(after, "rabbitmq_global_publishers", **AMQP) == 1
        channel.queue_delete("counted")
        channel.queue_delete("empty")

    def test_no_counter_falls_when_what_counted_ends(
        self, ask: Callable[[str], Samples], broker: BrokerProcess
    ) -> None:
        vhost = broker.add_vhost()
        with pika.BlockingConnection(pika.URLParameters(vhost.url)) as connection:
            inner = connection.channel()
            inner.confirm_delivery()
            inner.queue_declare("gone", durable=True, arguments={"x-queue-type": "quorum"})
            inner.basic_publish("", "gone", b"x")
            inner.basic_publish("amq.direct", "nowhere", b"x")
            inner.basic_get("gone", auto_ack=True)
            before = ask("/metrics")
        broker.delete_vhost(vhost.name)
        after = ask("/metrics")
        fallen = [
            (name, given)
            for name, series in before.items()
            for given, value in series.items()
            if name.endswith("_total") and after[name][given] < value
        ]
        assert fallen == []
        quorum = {**AMQP, "queue_type": "rabbit_quorum_queue"}
        assert one(after, "rabbitmq_global_messages_delivered_get_auto_ack_total", **quorum) >= 1

    def test_dead_letters_by_reason(
        self, ask: Callable[[str], Samples], channel: BlockingChannel, broker: BrokerProcess
    ) -> None:
        def count(reason: str) -> float:
            name = f"rabbitmq_global_messages_dead_lettered_{reason}_total"
            return one(ask("/metrics"), name, queue_type="rabbit_classic_queue")

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
    def test_each_queue_and_channel(self, ask: Callable[[str], Samples], channel: BlockingChannel) -> None:
        for name in ('or"de\\rs', "log"):
            channel.queue_declare(name, durable=name == "log")
            for _ in range(3):
                channel.basic_publish("", name, b"123", pika.BasicProperties(delivery_mode=2))
        channel.basic_qos(prefetch_count=7)
        channel.basic_get('or"de\\rs')
        found = ask("/metrics/per-object")
        quoted = {"vhost": "/", "queue": 'or\\"de\\\\rs'}
        assert one(found, "rabbitmq_queue_messages_ready", **quoted) == 2
        assert one(found, "rabbitmq_queue_messages_unacked", **quoted) == 1
        assert one(found, "rabbitmq_queue_messages_bytes", **quoted) >= 6
        assert one(found, "rabbitmq_channel_get_ack_total", **quoted) == 1
        assert one(found, "amqpd_log_end_offset", vhost="/", queue="log") == 3
        assert one(found, "rabbitmq_queue_messages_published_total", queue_vhost="/", queue="log") == 3
        assert one(found, "rabbitmq_consumer_prefetch") == 7
        assert one(found, "rabbitmq_channel_messages_published_total", vhost="/") == 6
        assert one(found, "rabbitmq_connection_incoming_bytes_total") > 0
        for name in ('or"de\\rs', "log"):
            channel.queue_delete(name)

    def test_families_vhosts_and_queues_are_chosen(
        self, ask: Callable[[str], Samples], channel: BlockingChannel, broker: BrokerProcess
    ) -> None:
        vhost = broker.add_vhost()
        channel.queue_declare("here")
        channel.queue_declare("beside")
        with pika.BlockingConnection(pika.URLParameters(vhost.url)) as connection:
            connection.channel().queue_declare("there")
        everything = ask("/metrics/detailed?family=queue_coarse_metrics&family=queue_consumer_count")
        named = {dict(key)["queue"] for key in everything["rabbitmq_detailed_queue_messages"]}
        assert {"here", "beside", "there"} <= named
        assert "rabbitmq_detailed_queue_consumers" in everything
        assert "rabbitmq_build_info" in everything
        of_vhost = ask("/metrics/detailed?family=queue_coarse_metrics&vhost=" + vhost.name)
        assert [dict(key)["queue"] for key in of_vhost["rabbitmq_detailed_queue_messages"]] == ["there"]
        of_queue = ask("/metrics/detailed?family=queue_coarse_metrics&vhost=%2F&queue=here")
        assert [dict(key)["queue"] for key in of_queue["rabbitmq_detailed_queue_messages"]] == ["here"]
        nothing = ask("/metrics/detailed?family=nonsense")
        assert sorted(nothing) == ["rabbitmq_build_info", "rabbitmq_identity_info"]
        channel.queue_delete("here")
        channel.queue_delete("beside")

    def test_a_streams_consumers(self, ask: Callable[[str], Samples], channel: BlockingChannel) -> None:
        channel.queue_declare("events", durable=True, arguments={"x-queue-type": "stream"})
        channel.basic_qos(prefetch_count=1)
        got: list[Any] = []
        channel.basic_consume("events", lambda *delivery: got.append(delivery), arguments={"x-stream-offset": "first"})
        for _ in range(5):
            channel.basic_publish("", "events", b"x")
        channel.connection.process_data_events(0.5)
        found = ask("/metrics/detailed?family=stream_consumer_metrics")
        assert one(found, "rabbitmq_detailed_stream_consumer_max_offset_lag", vhost="/", queue="events") == 4
        channel.queue_delete("events")

    @pytest.mark.parametrize("family", sorted(DETAILED_GROUPS))
    def test_a_family_by_itself(self, ask: Callable[[str], Samples], family: str) -> None:
        names = {each.detailed() for each in prometheus.ALL if each.group == family}
        found = set(ask(f"/metrics/detailed?family={family}"))
        extra = {"rabbitmq_detailed_queue_consumers"} if family == "queue_metrics" else set()
        assert found - {"rabbitmq_build_info", "rabbitmq_identity_info"} - extra <= names


class TestBesideRabbitMq:
    """What 3.10.8 was heard to say is on record: each name is here, with its kind and labels, or has a reason."""

    @pytest.mark.parametrize("path", ["metrics", "per-object"])
    def test_each_name_is_here(self, ask: Callable[[str], Samples], broker: BrokerProcess, path: str) -> None:
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            channel.queue_declare("beside-rabbitmq")
            channel.basic_publish("", "beside-rabbitmq", b"x")
            found = ask("/metrics" if path == "metrics" else "/metrics/per-object")
            channel.queue_delete("beside-rabbitmq")
        kinds = {family.name: family.kind for family in prometheus.ALL}
        wrong = []
        for line in HEARD.read_text("ascii").splitlines():
            where, kind, name, *given = line.split()
            if where != path or any(re.fullmatch(pattern, name) for pattern in MISSING):
                continue
            if name not in found or kinds[name] != kind.replace("untyped", "gauge"):
                wrong.append((name, "is not here", kind))
                continue
            labelled = set(given[0].split(",")) if given else set()
            for key in found[name]:
                less = labelled - set(dict(key))
                if less - LABELS_LESS or set(dict(key)) - labelled - LABELS_MORE.get(name, set()):
                    wrong.append((name, "has other labels", str(key)))
        assert wrong == []

    def test_no_reason_is_idle(self) -> None:
        names = [line.split()[2] for line in HEARD.read_text("ascii").splitlines() if not line.startswith("#")]
        assert [pattern for pattern in MISSING if not any(re.fullmatch(pattern, name) for name in names)] == []
        here = {family.name for family in prometheus.ALL}
        excused = {name for name in names for pattern in MISSING if re.fullmatch(pattern, name)}
        assert sorted(excused & here) == []


class TestWhoMayAsk:
    def test_on_their_own_listener_there_is_nothing_else(self, broker: BrokerProcess) -> None:
        host, port = broker.ready.listeners["prometheus"]
        for path in ("/", "/api/overview", "/metrics/nonsense", "/cli/"):
            assert status(f"http://{host}:{port}{path}") == 404
        assert status(f"http://{host}:{port}/metrics", b"{}") == 405

    def test_on_the_apis_port_names_want_a_password(self, broker: BrokerProcess) -> None:
        with urllib.request.urlopen(f"{broker.http_url}/metrics") as answer:
            assert "rabbitmq_queue_messages_ready" in parsed(answer.read().decode())
        for path in ("/metrics/per-object", "/metrics/detailed?family=queue_metrics"):
            assert status(broker.http_url + path) == 401
            with urllib.request.urlopen(urllib.request.Request(broker.http_url + path, headers=GUEST)) as answer:
                parsed(answer.read().decode())

    def test_it_is_a_listener_as_rabbitmq_calls_it(self, broker: BrokerProcess) -> None:
        listeners = broker.api("GET", "/api/overview")["listeners"]
        port = broker.ready.listeners["prometheus"][1]
        assert [each["port"] for each in listeners if each["protocol"] == "http/prometheus"] == [port]


def test_without_the_setting_nothing_listens(amqpd_broker: BrokerProcess) -> None:
    assert "prometheus" not in amqpd_broker.ready.listeners
