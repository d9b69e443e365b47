"""The audit log of a broker: who did what, over AMQP, HTTP and amqpctl; who may read it; what a kill leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pika
import pika.exceptions
import pytest

from amqpd.storage.spark import offsets
from amqpd.storage.spark.arrow import Decoder, PartReader
from amqpd.storage.spark.options import parse
from amqpd.testing import BrokerProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("audit")) as process:
        yield process


@pytest.fixture(scope="module")
def api(broker: BrokerProcess, make_api: Any) -> Any:
    return make_api(broker)


def records(api: Any, **query: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    begin = 0
    while True:
        page = api.get("/api/audit?" + urlencode({"count": 1000, "offset": begin, **query}))
        assert page["lost"] == 0
        found += page["records"]
        begin = page["next_offset"]
        if page["ended"]:
            return found


def last(api: Any, event: str, name: str) -> dict[str, Any]:
    """The last record of it; written by the next commit, some ms later."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        found = records(api, where=f"event = '{event}' AND name = '{name}'")
        if found:
            return found[-1]
        time.sleep(0.02)
    raise AssertionError(f"no {event} of {name}")


def connect(broker: BrokerProcess, user: str = "guest", password: str = "guest") -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(f"amqp://{user}:{password}@127.0.0.1:{broker.amqp_port}/%2F"))


def ended(connection: pika.BlockingConnection) -> None:
    """The broker has ended it, and its socket is closed here, too."""
    with pytest.raises(pika.exceptions.AMQPError):
        connection.process_data_events(30)


def test_what_a_client_does(broker: BrokerProcess, api: Any) -> None:
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare("orders", durable=True, arguments={"x-max-length": 3})
    channel.exchange_declare("sales", "topic")
    channel.queue_bind("orders", "sales", "a.#")
    channel.basic_publish("", "orders", b"the body of a message")
    channel.queue_purge("orders")
    channel.queue_unbind("orders", "sales", "a.#")
    channel.exchange_delete("sales")
    channel.queue_declare("mine", exclusive=True)
    channel.queue_delete("orders")
    record = last(api, "queue.deleted", "orders")
    assert (record["user"], record["front_end"], record["vhost"], record["result"]) == ("guest", "amqp", "/", "ok")
    assert record["connection"].startswith(record["peer"] + " -> ")
    assert last(api, "queue.created", "orders")["details"]["arguments"] == {"x-max-length": 3}
    assert last(api, "queue.purged", "orders")["details"] == {"messages": 1}
    for event in ("binding.created", "binding.deleted"):
        assert last(api, event, "orders")["details"]["source_name"] == "sales"
    assert last(api, "exchange.created", "sales")["details"]["type"] == "topic"
    assert last(api, "exchange.deleted", "sales")["user"] == "guest"
    assert last(api, "user.authentication.success", "guest")["result"] == "ok"
    assert records(api, where="name = 'mine'") == []  # exclusive: its connection's own matter
    connection.close()
    assert "the body" not in json.dumps(records(api))


def test_messages_by_the_admin_api_are_counted(broker: BrokerProcess, api: Any) -> None:
    """Who publishes or takes messages by hand is on record; a thousand requests are two records, not a thousand."""
    api.done("PUT", "/api/queues/%2F/byhand", {})
    sent = {"routing_key": "byhand", "payload": "the body by hand", "payload_encoding": "string", "properties": {}}
    for _ in range(3):
        api.done("POST", "/api/exchanges/%2F/amq.default/publish", sent)
    api.done("POST", "/api/queues/%2F/byhand/get?x=y", {"count": 2, "ackmode": "ack_requeue_false", "encoding": "auto"})
    for name in ("POST /api/exchanges/%2F/amq.default/publish", "POST /api/queues/%2F/byhand/get"):
        record = last(api, "admin.request", name)
        assert (record["user"], record["front_end"], record["result"]) == ("guest", "http", "ok")
        assert len(records(api, where=f"event = 'admin.request' AND name = '{name}'")) == 1
    assert "by hand" not in json.dumps(records(api))


def test_what_the_admin_api_and_amqpctl_do(broker: BrokerProcess, api: Any) -> None:
    api.done("PUT", "/api/users/eve", {"password": "a-secret-word", "tags": "monitoring"})
    api.done("PUT", "/api/permissions/%2F/eve", {"configure": "", "write": "", "read": ".*"})
    api.done("PUT", "/api/policies/%2F/short", {"pattern": "^x", "definition": {"max-length": 3}})
    api.done("PUT", "/api/vhosts/shop", {})
    api.done("PUT", "/api/vhost-limits/shop/max-queues", {"value": 7})
    api.done("PUT", "/api/queues/shop/q", {"durable": True})
    api.done("DELETE", "/api/queues/shop/q/contents")
    api.done("DELETE", "/api/vhosts/shop")
    assert last(api, "permission.created", "eve")["details"] == {"configure": "", "write": "", "read": ".*"}
    assert last(api, "user.tags.set", "eve")["details"] == {"tags": ["monitoring"]}
    assert last(api, "policy.set", "short")["details"]["definition"] == {"max-length": 3}
    assert last(api, "vhost.limits.set", "shop")["details"] == {"max-queues": 7}
    assert last(api, "queue.purged", "q")["vhost"] == "shop"
    assert last(api, "vhost.deleted", "shop")["front_end"] == "http"
    assert last(api, "queue.deleted", "q")["user"] == "guest"  # it went with the vhost
    broker.ctl("set_alarm", "disk")
    broker.ctl("clear_alarm", "disk")
    record = last(api, "admin.request", "PUT /api/amqpd/alarms/disk")
    assert (record["user"], record["front_end"]) == ("rmq-cli", "amqpctl")
    assert last(api, "alarm.cleared", "disk")["user"] == "rmq-internal"
    api.done("POST", "/api/definitions", {"vhosts": [{"name": "more"}]})
    assert last(api, "definitions.imported", "definitions")["details"]["items"] == {"vhosts": 1}
    connection = connect(broker)
    name = next(each["name"] for each in api.get("/api/connections"))
    api.done("DELETE", f"/api/connections/{quote(name, safe='')}")
    assert last(api, "connection.force_closed", name)["details"]["user"] == "guest"
    ended(connection)
    assert "a-secret-word" not in json.dumps(records(api))
    assert "argon2" not in json.dumps(records(api)).lower()


def test_surgery(broker: BrokerProcess, api: Any) -> None:
    connection = connect(broker)
    channel = connection.channel()
    for name in ("source", "target"):
        channel.queue_declare(name, durable=True)
    channel.basic_publish("", "source", b"x")
    channel.queue_declare("source", passive=True)
    api.done("POST", "/api/queues/%2F/source/jobs", {"action": "move", "to_queue": "target", "wait_ms": 5000})
    details = last(api, "queue.messages", "source")["details"]
    assert (details["action"], details["to_queue"]) == ("move", "target")
    connection.close()


def test_failures(broker: BrokerProcess, api: Any, make_api: Any) -> None:
    for _ in range(3):
        assert make_api(broker, "mallory", "no")("GET", "/api/overview").status == 401
    with pytest.raises(pika.exceptions.AMQPError):
        connect(broker, "mallory", "wrong-word")
    failed: list[dict[str, Any]] = []
    until = time.monotonic() + 30
    while len(failed) < 2 and time.monotonic() < until:
        failed = records(api, where="event = 'user.authentication.failure' AND name = 'mallory'")
    assert [each["front_end"] for each in failed] == ["http", "amqp"]  # repeated ones come as one, later
    assert {each["result"] for each in failed} == {"refused"}
    assert "wrong-word" not in json.dumps(failed)
    api.done("PUT", "/api/users/carl", {"password": "secret", "tags": "management"})
    api.done("PUT", "/api/permissions/%2F/carl", {"configure": "^$", "write": "", "read": ".*"})
    connection = connect(broker, "carl", "secret")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker):
        connection.channel().queue_delete("target")
    assert make_api(broker, "carl", "secret")("DELETE", "/api/users/guest").status == 401
    connection.close()
    last(api, "access.refused", "queue.delete")
    assert "not" in last(api, "access.refused", "DELETE /api/users/guest")["reason"].lower()


def test_who_may_read_it(broker: BrokerProcess, api: Any, make_api: Any) -> None:
    assert make_api(broker, "carl", "secret")("GET", "/api/audit").status == 401
    connection = connect(broker, "carl", "secret")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        connection.channel().basic_consume("amq.audit", print)
    assert refused.value.args[0] == 403
    connection.close()
    for wrong in ("count=0", "since=yesterday", "where=%28", "offset=-1", "last=x"):
        assert api("GET", f"/api/audit?{wrong}").status == 400, wrong
    page = api.get("/api/audit?last=2")
    assert len(page["records"]) == 2
    assert page["ended"]


FORBIDDEN: list[Callable[[Any], object]] = [
    lambda channel: channel.queue_declare("amq.audit", durable=True),
    lambda channel: channel.queue_bind("amq.audit", "amq.topic", "k"),
    lambda channel: channel.queue_unbind("amq.audit", "amq.topic", "k"),
    lambda channel: channel.queue_purge("amq.audit"),
    lambda channel: channel.queue_delete("amq.audit"),
]


@pytest.mark.parametrize("action", range(len(FORBIDDEN)))
def test_nobody_may_change_it_over_amqp(broker: BrokerProcess, action: int) -> None:
    connection = connect(broker)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        FORBIDDEN[action](connection.channel())
    assert refused.value.args[0] == 403
    connection.close()


def test_a_publish_to_it_goes_nowhere(broker: BrokerProcess, api: Any) -> None:
    connection = connect(broker)
    channel = connection.channel()
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", "amq.audit", b"forged", mandatory=True)
    connection.close()
    assert "forged" not in json.dumps(records(api))


@pytest.mark.parametrize("who", ["guest", None])
def test_nor_over_http_the_operator_neither(broker: BrokerProcess, who: str | None, make_api: Any) -> None:
    caller = make_api(broker, who)
    assert caller("PUT", "/api/queues/%2F/amq.audit", {"durable": True}).status == 401
    assert caller("DELETE", "/api/queues/%2F/amq.audit").status == 401
    assert caller("DELETE", "/api/queues/%2F/amq.audit/contents").status == 401
    assert caller("POST", "/api/bindings/%2F/e/amq.topic/q/amq.audit", {"routing_key": "k"}).status == 401
    job = {"action": "delete", "wait_ms": 1000}
    assert caller("POST", "/api/queues/%2F/amq.audit/jobs", job).status in (400, 401)


def test_it_is_in_no_list(broker: BrokerProcess, api: Any) -> None:
    assert "amq.audit" not in {each["name"] for each in api.get("/api/queues")}
    assert "amq.audit" not in json.dumps(api.get("/api/definitions"))
    assert api.get("/api/queues/%2F/amq.audit")["type"] == "stream"  # by its name it is there


def test_amqpctl_shows_it(broker: BrokerProcess, api: Any) -> None:
    last(api, "queue.deleted", "orders")
    shown = broker.ctl("audit_log", "-q", "--where", "event = 'queue.deleted' AND name = 'orders'", "event", "user")
    assert shown.stdout.splitlines() == ["event\tuser", "queue.deleted\tguest"]
    assert len(broker.ctl("audit_log", "-q", "--limit", "2", "--no-table-headers", "event").stdout.splitlines()) == 2
    assert broker.ctl("audit_log", "--where", "(").returncode == 64
    told = json.loads(broker.ctl("audit_log", "--since", "2026-01-01T00:00:00", "--formatter", "json").stdout)
    assert len(told) == len(records(api))


def test_amqpctl_follows_it(broker: BrokerProcess, api: Any) -> None:
    """What comes while it runs is shown, until ctrl-C ends it."""
    command = [sys.executable, "-P", "-m", "amqpd.cli", "--data-dir", str(broker.data_dir), "-q", "audit_log"]
    command += ["--follow", "--no-table-headers", "name"]
    api.done("PUT", "/api/queues/%2F/before", {"durable": True})
    # Who starts the tests in the background may have them ignore ctrl-C, and what they start with them.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=heard) as process:  # noqa: PLW1509
        assert process.stdout is not None
        shown = iter(process.stdout)
        assert any(line == "before\n" for line in shown), "the last ones there were"
        for name in ("followed-1", "followed-2"):
            api.done("PUT", f"/api/queues/%2F/{name}", {"durable": True})
            assert any(line == f"{name}\n" for line in shown)
        process.send_signal(signal.SIGINT)
        assert [*shown] == []
    assert process.returncode == 0


def test_the_spark_source_reads_it(broker: BrokerProcess, api: Any) -> None:
    """What Spark's workers run, over the network."""
    options = parse({"url": f"http://guest:guest@127.0.0.1:{broker.http_port}", "queue": "amq.audit"})
    rows: list[dict[str, Any]] = []
    for part in offsets.batch_parts(options):
        files = options.source.open(part.queue)
        for batch in PartReader(files, part, Decoder("/", part.queue.queue, list(options.columns))).batches():
            rows += batch.to_pylist()
        files.close()
    assert len(rows) == len(records(api))
    assert [json.loads(row["value"])["event"] for row in rows][:1] == ["user.authentication.success"]


@pytest.mark.slow
def test_it_survives_a_kill_and_its_vhost(tmp_path: Path, make_api: Any) -> None:
    with BrokerProcess(tmp_path) as broker:
        api = make_api(broker, None)
        connection = connect(broker)
        api.done("PUT", "/api/exchanges/%2F/last-exchange", {"type": "fanout", "durable": True})
        last(api, "exchange.created", "last-exchange")
        connection.channel().queue_declare("last-words", durable=True)
        broker.kill()  # the answer was there
        ended(connection)
        broker.start()
        assert last(api, "queue.created", "last-words")["user"] == "guest"
        made = [each for each in records(api) if each["event"] in ("exchange.created", "binding.created")]
        assert [each["name"] for each in made] == ["last-exchange"], "what a start brings back is nobody's doing"
        count = len(records(api))
        api.done("DELETE", "/api/vhosts/%2F")
        broker.stop()
        broker.start()
        assert last(api, "vhost.deleted", "/")["front_end"] == "amqpctl"
        assert len(records(api)) > count
        assert api.get("/api/health/checks/audit-log") == {"status": "ok"}


@pytest.mark.slow
def test_a_change_over_http_is_answered_when_its_record_is_on_disk(tmp_path: Path, make_api: Any) -> None:
    with BrokerProcess(tmp_path) as broker:
        api = make_api(broker)
        api.done("PUT", "/api/queues/%2F/orders", {"durable": True})
        api.done("DELETE", "/api/queues/%2F/orders")
        broker.kill()
        broker.start()
        assert [each["event"] for each in records(api, where="name = 'orders'")] == ["queue.created", "queue.deleted"]


@pytest.mark.slow
def test_off_it_can_still_be_read(tmp_path: Path, make_api: Any) -> None:
    with BrokerProcess(tmp_path) as broker:
        make_api(broker).done("PUT", "/api/vhosts/a", {})
        last(make_api(broker, None), "vhost.created", "a")
    with BrokerProcess(tmp_path, settings={"audit.enabled": False}) as broker:
        make_api(broker).done("PUT", "/api/vhosts/b", {})
        assert [each["name"] for each in records(make_api(broker, None), where="event = 'vhost.created'")] == ["a"]


@pytest.mark.slow
def test_from_the_end_back_to_the_start(broker: BrokerProcess, api: Any) -> None:
    for number in range(30):
        api.done("PUT", f"/api/users/page-{number}", {"password": "p", "tags": ""})
    whole = [each["offset"] for each in records(api)]
    last(api, "user.created", "page-29")
    page = api.get("/api/audit?last=10&count=10")
    found, pages = page["records"], 1
    while page["first_offset"] > page["start_offset"]:
        page = api.get(f"/api/audit?last=10&count=10&before={page['first_offset']}")
        assert page["ended"] is True
        found, pages = page["records"] + found, pages + 1
    offsets = [each["offset"] for each in found]
    assert pages >= 4
    assert offsets == sorted(offsets)
    assert set(whole) <= set(offsets)
    assert page["start_offset"] == offsets[0]
    assert api.get("/api/audit?before=3&count=10")["records"][-1]["offset"] == 2
    assert api("GET", "/api/audit?before=x").status == 400
