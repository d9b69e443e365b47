"""Groups of Kafka's clients in the admin API and in metrics, with kafka-python as the group's client."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pika
import pytest

from amqpd.management import kafka_metrics
from amqpd.management.collectors import LogOpeningBudget
from amqpd.management.prometheus import MetricsWriter
from amqpd.management.time_slice import TimeSlice
from amqpd.testing import BrokerProcess

with warnings.catch_warnings():
    # kafka-python reads its schemas with importlib.resources.read_text.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, TopicPartition
    from kafka.structs import OffsetAndMetadata

GROUPS = "/api/amqpd/kafka/groups"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"kafka.port": 0, "kafka.host": "127.0.0.1"}
    with BrokerProcess(tmp_path_factory.mktemp("kafka-groups"), settings=settings) as process:
        yield process
        assert "Traceback" not in process.stderr


@pytest.fixture(scope="module")
def api(broker: BrokerProcess, make_api: Any) -> Any:
    return make_api(broker)


@pytest.fixture(scope="module")
def channel(broker: BrokerProcess) -> Iterator[Any]:
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


@pytest.fixture
def topic(channel: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    """A stream with ten messages, and the name of the test."""
    name = request.node.name.partition("[")[0]
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    for number in range(10):
        channel.basic_publish("", name, b"%d" % number)
    yield name
    channel.queue_delete(name)


@pytest.fixture
def connect(broker: BrokerProcess) -> Iterator[Callable[..., Any]]:
    """Return a function that makes a consumer of a group."""
    consumers: list[Any] = []

    def make(group: str, *topics: str) -> Any:
        assert broker.ready is not None
        host, port = broker.ready.listeners["kafka"]
        consumer = KafkaConsumer(
            *topics,
            bootstrap_servers=f"{host}:{port}",
            group_id=group,
            client_id="app",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        consumers.append(consumer)
        return consumer

    yield make
    for consumer in consumers:
        consumer.close()


def commit(consumer: Any, topic: str, offset: int) -> None:
    while not consumer.assignment():
        consumer.poll(timeout_ms=100)
    consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(offset, "note", -1)})


def offset_of(api: Any, group: str) -> int:
    offset: int = api.get(f"{GROUPS}/%2F/{group}")["offsets"][0]["offset"]
    return offset


def reset(api: Any, group: str, topic: str, **target: object) -> Any:
    return api("POST", f"{GROUPS}/%2F/{group}/offsets", {"topic": topic, **target})


def test_group_shows_members_offsets_and_lag(api: Any, topic: str, connect: Callable[..., Any]) -> None:
    consumer = connect("shown", topic)
    commit(consumer, topic, 4)
    described = api.get(f"{GROUPS}/%2F/shown")
    (member,) = described.pop("members")
    (offset,) = described.pop("offsets")
    assert described == {
        "vhost": "/",
        "name": "shown",
        "type": "classic",
        "state": "Stable",
        "protocol_type": "consumer",
        "protocol": "range",
        "member_count": 1,
        "lag": 6,
    }
    assert [each for each in api.get(GROUPS) if each["name"] == "shown"] == [described]
    assert member["id"].startswith("app-")
    assert (member["client_id"], member["host"], member["assignment"]) == ("app", "127.0.0.1", {topic: [0]})
    assert abs(offset.pop("commit_ms") - time.time() * 1000) < 60_000
    assert offset == {
        "topic": topic,
        "partition": 0,
        "offset": 4,
        "metadata": "note",
        "end_offset": 10,
        "lag": 6,
        "member_id": member["id"],
    }


def test_assigned_partition_without_commit_is_shown(api: Any, topic: str, connect: Callable[..., Any]) -> None:
    consumer = connect("uncommitted", topic)
    while not consumer.assignment():
        consumer.poll(timeout_ms=100)
    group = api.get(f"{GROUPS}/%2F/uncommitted")
    assert group["lag"] is None
    (offset,) = group["offsets"]
    assert (offset["topic"], offset["offset"], offset["end_offset"], offset["lag"]) == (topic, None, 10, None)


@pytest.mark.parametrize(
    ("target", "after"),
    [
        ({"to": "earliest"}, 0),
        ({"to": "latest"}, 10),
        ({"offset": 7}, 7),
        ({"offset": 99}, 10),
        ({"shift": -3}, 1),
        ({"shift": -5}, 0),
        ({"shift": 2, "partition": 0}, 6),
        ({"time": "2020-01-01T00:00:00"}, 0),
        ({"time": "2099-01-01T00:00:00"}, 10),
    ],
)
def test_reset_moves_an_idle_group(
    api: Any, topic: str, connect: Callable[..., Any], target: dict[str, object], after: int
) -> None:
    group = f"moved-{after}-{next(iter(target))}"
    consumer = connect(group, topic)
    commit(consumer, topic, 4)
    consumer.close()
    expected = [{"topic": topic, "partition": 0, "before": 4, "after": after}]
    assert reset(api, group, topic, **target, dry_run=True).json == expected
    assert offset_of(api, group) == 4
    assert reset(api, group, topic, **target).json == expected
    assert offset_of(api, group) == after
    if after < 10:
        again = connect(group, topic)
        records: list[Any] = []
        while not records:
            records = [each for some in again.poll(timeout_ms=500).values() for each in some]
        assert records[0].offset == after


def test_reset_to_time_finds_first_record_since_then(api: Any, channel: Any, topic: str) -> None:
    published_ms = begun_ms = int(time.time() * 1000)
    while begun_ms == published_ms:
        begun_ms = int(time.time() * 1000)
    channel.basic_publish("", topic, b"later")
    assert reset(api, "timed", topic, time=begun_ms).json[0]["after"] == 10


def test_reset_makes_a_group_that_does_not_exist(api: Any, topic: str, connect: Callable[..., Any]) -> None:
    assert reset(api, "made", topic, offset=8, dry_run=True).status == 200
    assert api("GET", f"{GROUPS}/%2F/made").status == 404
    assert reset(api, "made", topic, offset=8).json == [{"topic": topic, "partition": 0, "before": None, "after": 8}]
    consumer = connect("made", topic)
    records: list[Any] = []
    while not records:
        records = [each for some in consumer.poll(timeout_ms=500).values() for each in some]
    assert records[0].offset == 8


def test_group_with_members_is_neither_reset_nor_deleted(api: Any, topic: str, connect: Callable[..., Any]) -> None:
    consumer = connect("busy", topic)
    commit(consumer, topic, 4)
    for answer in (reset(api, "busy", topic, to="earliest"), api("DELETE", f"{GROUPS}/%2F/busy")):
        assert answer.status == 400
        assert answer.json["reason"] == "Kafka group 'busy' is in use (state Stable): stop its members first"
    assert offset_of(api, "busy") == 4


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"to": "earliest"}, 400),
        ({"topic": "t"}, 400),
        ({"topic": "t", "to": "middle"}, 400),
        ({"topic": "t", "to": "latest", "offset": 1}, 400),
        ({"topic": "t", "offset": -1}, 400),
        ({"topic": "t", "offset": 1 << 63}, 400),
        ({"topic": "t", "time": "noon"}, 400),
        ({"topic": "t", "to": "latest", "partition": "x"}, 400),
        ({"topic": "t", "to": "latest", "dry": True}, 400),
        ({"topic": "no such topic", "to": "latest"}, 404),
    ],
)
def test_bad_reset_is_refused(api: Any, body: dict[str, object], status: int) -> None:
    assert api("POST", f"{GROUPS}/%2F/g/offsets", body).status == status


def test_partition_that_does_not_exist_and_shift_without_offset_are_refused(api: Any, topic: str) -> None:
    assert reset(api, "none", topic, to="latest", partition=7).status == 404
    answer = reset(api, "none", topic, shift=1)
    assert (answer.status, "no offset of topic" in answer.json["reason"]) == (400, True)
    assert reset(api, "n" * 256, topic, to="latest").status == 400


def test_deleted_group_is_unknown(api: Any, topic: str) -> None:
    reset(api, "deleted", topic, to="latest")
    assert api("DELETE", f"{GROUPS}/%2F/deleted").status == 204
    assert api("GET", f"{GROUPS}/%2F/deleted").status == 404
    assert api("DELETE", f"{GROUPS}/%2F/deleted").json["detail"] == "no Kafka group 'deleted' in vhost '/'"


def test_offset_of_deleted_topic_is_not_shown(api: Any, channel: Any, topic: str) -> None:
    reset(api, "void", topic, to="latest")
    channel.queue_delete(topic)
    channel.queue_declare(topic, durable=True, arguments={"x-queue-type": "stream"})
    group = api.get(f"{GROUPS}/%2F/void")
    assert (group["offsets"], group["lag"]) == ([], None)


def test_reading_needs_monitoring_and_changes_need_permissions(
    broker: BrokerProcess, api: Any, make_api: Any, topic: str
) -> None:
    reset(api, "guarded", topic, to="latest")
    for name, tags, read, configure in (
        ("watcher", "monitoring", "", ""),
        ("reader", "management", f"^({topic}|guarded)$", "^guarded$"),
        ("other", "management", "x", ""),
        ("member", "management", topic, ""),
    ):
        api.send_ok("PUT", f"/api/users/{name}", {"password": "p", "tags": tags})
        if read:
            permissions = {"configure": configure, "write": "", "read": read}
            api.send_ok("PUT", f"/api/permissions/%2F/{name}", permissions)
    watcher, reader, other, member = (make_api(broker, name, "p") for name in ("watcher", "reader", "other", "member"))
    assert watcher("GET", f"{GROUPS}/%2F/guarded").status == 200
    assert reader("GET", f"{GROUPS}/%2F/guarded").status == 401
    assert reset(reader, "guarded", topic, to="earliest").status == 200
    assert reset(watcher, "guarded", topic, to="earliest").status == 401
    assert reset(other, "guarded", topic, to="earliest").status == 401
    # As for Kafka's clients, the name of the group counts, too.
    assert reset(member, "guarded", topic, to="latest").status == 401
    assert member("DELETE", f"{GROUPS}/%2F/guarded").status == 401
    assert watcher("DELETE", f"{GROUPS}/%2F/guarded").status == 401
    assert reader("DELETE", f"{GROUPS}/%2F/guarded").status == 204


def test_reset_needs_read_permission_on_the_queue_of_a_topic_and_on_its_streams(
    broker: BrokerProcess, api: Any, channel: Any, make_api: Any
) -> None:
    stream = {"x-queue-type": "stream"}
    channel.queue_declare("private/q", durable=True, arguments={**stream, "x-kafka-topic": "public"})
    channel.exchange_declare("wide", "direct", durable=True, arguments={"x-super-stream": True})
    for index, name in enumerate(("wide-0", "private-1")):
        channel.queue_declare(name, durable=True, arguments=stream)
        channel.queue_bind(name, "wide", str(index), {"x-stream-partition-order": index})
    api.send_ok("PUT", "/api/users/guest2", {"password": "p", "tags": "management"})
    permissions = {"configure": "", "write": "", "read": "^(public|wide.*|team)$"}
    api.send_ok("PUT", "/api/permissions/%2F/guest2", permissions)
    caller = make_api(broker, "guest2", "p")
    for topic in ("public", "wide"):
        assert reset(api, "team", topic, to="latest", dry_run=True).status == 200
        assert reset(caller, "team", topic, to="latest", dry_run=True).status == 401


@pytest.mark.slow
def test_committed_offsets_and_lag_are_read_after_a_restart(tmp_path: Any, make_api: Any) -> None:
    broker = BrokerProcess(tmp_path, settings={"kafka.port": 0, "kafka.host": "127.0.0.1"})
    with broker:
        api = make_api(broker)
        api.send_ok("PUT", "/api/queues/%2F/kept", {"durable": True, "arguments": {"x-queue-type": "stream"}})
        for _ in range(3):
            message = {"routing_key": "kept", "payload": "x", "payload_encoding": "string", "properties": {}}
            api.send_ok("POST", "/api/exchanges/%2F/amq.default/publish", message)
        assert reset(api, "g", "kept", offset=1).status == 200
    with broker:
        api = make_api(broker)
        while (answer := api("GET", GROUPS)).status == 503:
            pass
        assert [(each["name"], each["lag"]) for each in answer.json] == [("g", 2)]


class TestMetrics:
    def test_lag_groups_requests_and_bytes_are_measured(
        self, api: Any, topic: str, connect: Callable[..., Any]
    ) -> None:
        consumer = connect('say "hi"', topic)
        commit(consumer, topic, 4)
        text = api("GET", "/metrics").body.decode()
        assert 'amqpd_kafka_groups{type="classic",state="Stable"} 1\n' in text
        assert 'amqpd_kafka_request_seconds_bucket{api="OffsetCommit",le="+Inf"}' in text
        assert "\namqpd_kafka_group_lag_records " in text
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("amqpd_kafka"))
        for name in ("connections", "incoming_bytes_total", "outgoing_bytes_total", "group_offsets"):
            assert float(values[f"amqpd_kafka_{name}"]) > 0
        sample = f'{{vhost="/",group="say \\"hi\\"",topic="{topic}",partition="0"}} 6\n'
        assert "\namqpd_kafka_group_lag_records" + sample in api("GET", "/metrics/per-object").body.decode()
        detailed = api("GET", "/metrics/detailed?family=kafka_group_metrics").body.decode()
        assert "\namqpd_detailed_kafka_group_lag_records" + sample in detailed
        elsewhere = api("GET", "/metrics/detailed?family=kafka_group_metrics&vhost=other").body.decode()
        assert "lag_records{" not in elsewhere

    async def test_samples_of_lag_are_limited(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kafka_metrics, "LAG_SAMPLES_MAX", 3)
        groups = SimpleNamespace(
            load_error=lambda: 0,
            summaries=lambda _: [SimpleNamespace(name="g")],
            places=lambda *_: [("t", number) for number in range(5)],
            streams=lambda *_: [],
            lag=lambda *_: 7,
        )
        kafka = SimpleNamespace(operations=SimpleNamespace(listing=groups))
        call: Any = SimpleNamespace(server=SimpleNamespace(kafka=kafka))
        sheet, vhost = MetricsWriter(), SimpleNamespace(name="/")
        await kafka_metrics.put_lags(sheet, call, cast("Any", [vhost]), LogOpeningBudget(), TimeSlice())
        assert b"".join(await sheet.chunks(TimeSlice())).count(b'group="g"') == 3


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", ""), ("GET", "/%2F"), ("GET", "/%2F/g"), ("POST", "/%2F/g/offsets"), ("DELETE", "/%2F/g")],
)
def test_broker_without_listener_says_so(amqpd_broker: BrokerProcess, make_api: Any, method: str, path: str) -> None:
    body = {"topic": "t", "to": "latest"} if method == "POST" else None
    answer = make_api(amqpd_broker)(method, GROUPS + path, body)
    assert answer.status == 404
    assert answer.json["detail"] == "the broker has no Kafka listener: set kafka.port"


def test_broker_without_listener_has_no_kafka_metrics(amqpd_broker: BrokerProcess, make_api: Any) -> None:
    assert b"amqpd_kafka" not in make_api(amqpd_broker)("GET", "/metrics").body
