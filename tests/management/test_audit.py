"""The audit log of a broker: records of AMQP, HTTP and amqpctl actions, access to it, and its state after a kill."""

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

from amqpd.storage.export import offsets
from amqpd.storage.export.arrow import Decoder, PartReader
from amqpd.storage.export.options import parse
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
    offset = 0
    while True:
        page = api.get("/api/audit?" + urlencode({"count": 1000, "offset": offset, **query}))
        assert page["lost"] == 0
        found += page["records"]
        offset = page["next_offset"]
        if page["ended"]:
            return found


def last_record(api: Any, event: str, name: str) -> dict[str, Any]:
    """Return the last record of this event and name. The record is written by a later commit, so poll."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        found = records(api, where=f"event = '{event}' AND name = '{name}'")
        if found:
            return found[-1]
        time.sleep(0.02)
    raise AssertionError(f"no {event} of {name}")


def connect(broker: BrokerProcess, user: str = "guest", password: str = "guest") -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(f"amqp://{user}:{password}@127.0.0.1:{broker.amqp_port}/%2F"))


def wait_for_close(connection: pika.BlockingConnection) -> None:
    """Wait until the broker has closed the connection; pika then closes its socket, too."""
    with pytest.raises(pika.exceptions.AMQPError):
        connection.process_data_events(30)


def test_client_actions_over_amqp_are_recorded(broker: BrokerProcess, api: Any) -> None:
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
    record = last_record(api, "queue.deleted", "orders")
    assert (record["user"], record["front_end"], record["vhost"], record["result"]) == ("guest", "amqp", "/", "ok")
    assert record["connection"].startswith(record["peer"] + " -> ")
    assert last_record(api, "queue.created", "orders")["details"]["arguments"] == {"x-max-length": 3}
    assert last_record(api, "queue.purged", "orders")["details"] == {"messages": 1}
    for event in ("binding.created", "binding.deleted"):
        assert last_record(api, event, "orders")["details"]["source_name"] == "sales"
    assert last_record(api, "exchange.created", "sales")["details"]["type"] == "topic"
    assert last_record(api, "exchange.deleted", "sales")["user"] == "guest"
    assert last_record(api, "user.authentication.success", "guest")["result"] == "ok"
    assert records(api, where="name = 'mine'") == []  # exclusive queues are not recorded
    connection.close()
    assert "the body" not in json.dumps(records(api))


def test_message_requests_over_http_are_summed_up_in_one_record(broker: BrokerProcess, api: Any) -> None:
    """Repeated publish and get requests of a user become one record per path, not one per request."""
    api.send_ok("PUT", "/api/queues/%2F/byhand", {})
    message = {"routing_key": "byhand", "payload": "the body by hand", "payload_encoding": "string", "properties": {}}
    for _ in range(3):
        api.send_ok("POST", "/api/exchanges/%2F/amq.default/publish", message)
    api.send_ok(
        "POST", "/api/queues/%2F/byhand/get?x=y", {"count": 2, "ackmode": "ack_requeue_false", "encoding": "auto"}
    )
    for name in ("POST /api/exchanges/%2F/amq.default/publish", "POST /api/queues/%2F/byhand/get"):
        record = last_record(api, "admin.request", name)
        assert (record["user"], record["front_end"], record["result"]) == ("guest", "http", "ok")
        assert len(records(api, where=f"event = 'admin.request' AND name = '{name}'")) == 1
    assert "by hand" not in json.dumps(records(api))


def test_changes_over_http_and_amqpctl_are_recorded(broker: BrokerProcess, api: Any) -> None:
    api.send_ok("PUT", "/api/users/eve", {"password": "a-secret-word", "tags": "monitoring"})
    api.send_ok("PUT", "/api/permissions/%2F/eve", {"configure": "", "write": "", "read": ".*"})
    api.send_ok("PUT", "/api/policies/%2F/short", {"pattern": "^x", "definition": {"max-length": 3}})
    api.send_ok("PUT", "/api/vhosts/shop", {})
    api.send_ok("PUT", "/api/vhost-limits/shop/max-queues", {"value": 7})
    api.send_ok("PUT", "/api/queues/shop/q", {"durable": True})
    api.send_ok("DELETE", "/api/queues/shop/q/contents")
    api.send_ok("DELETE", "/api/vhosts/shop")
    assert last_record(api, "permission.created", "eve")["details"] == {"configure": "", "write": "", "read": ".*"}
    assert last_record(api, "user.tags.set", "eve")["details"] == {"tags": ["monitoring"]}
    assert last_record(api, "policy.set", "short")["details"]["definition"] == {"max-length": 3}
    assert last_record(api, "vhost.limits.set", "shop")["details"] == {"max-queues": 7}
    assert last_record(api, "queue.purged", "q")["vhost"] == "shop"
    assert last_record(api, "vhost.deleted", "shop")["front_end"] == "http"
    assert last_record(api, "queue.deleted", "q")["user"] == "guest"  # deleted with the vhost
    broker.ctl("set_alarm", "disk")
    broker.ctl("clear_alarm", "disk")
    record = last_record(api, "admin.request", "PUT /api/amqpd/alarms/disk")
    assert (record["user"], record["front_end"]) == ("rmq-cli", "amqpctl")
    assert last_record(api, "alarm.cleared", "disk")["user"] == "rmq-internal"
    api.send_ok("POST", "/api/definitions", {"vhosts": [{"name": "more"}]})
    items = last_record(api, "definitions.imported", "definitions")["details"]["items"]
    assert items == {"vhosts": 1, "permissions": 1}
    connection = connect(broker)
    name = next(each["name"] for each in api.get("/api/connections"))
    api.send_ok("DELETE", f"/api/connections/{quote(name, safe='')}")
    assert last_record(api, "connection.force_closed", name)["details"]["user"] == "guest"
    wait_for_close(connection)
    assert "a-secret-word" not in json.dumps(records(api))
    assert "argon2" not in json.dumps(records(api)).lower()


def test_message_move_is_recorded(broker: BrokerProcess, api: Any) -> None:
    connection = connect(broker)
    channel = connection.channel()
    for name in ("source", "target"):
        channel.queue_declare(name, durable=True)
    channel.basic_publish("", "source", b"x")
    channel.queue_declare("source", passive=True)
    api.send_ok("POST", "/api/queues/%2F/source/jobs", {"action": "move", "to_queue": "target", "wait_ms": 5000})
    details = last_record(api, "queue.messages", "source")["details"]
    assert (details["action"], details["to_queue"]) == ("move", "target")
    connection.close()


def test_failed_logins_and_refused_access_are_recorded(broker: BrokerProcess, api: Any, make_api: Any) -> None:
    for _ in range(3):
        assert make_api(broker, "mallory", "no")("GET", "/api/overview").status == 401
    with pytest.raises(pika.exceptions.AMQPError):
        connect(broker, "mallory", "wrong-word")
    failed: list[dict[str, Any]] = []
    until = time.monotonic() + 30
    while len(failed) < 2 and time.monotonic() < until:
        failed = records(api, where="event = 'user.authentication.failure' AND name = 'mallory'")
    assert [each["front_end"] for each in failed] == [
        "http",
        "amqp",
    ]  # repeated failures are summed up in one later record
    assert {each["result"] for each in failed} == {"refused"}
    assert "wrong-word" not in json.dumps(failed)
    api.send_ok("PUT", "/api/users/carl", {"password": "secret", "tags": "management"})
    api.send_ok("PUT", "/api/permissions/%2F/carl", {"configure": "^$", "write": "", "read": ".*"})
    connection = connect(broker, "carl", "secret")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker):
        connection.channel().queue_delete("target")
    assert make_api(broker, "carl", "secret")("DELETE", "/api/users/guest").status == 401
    connection.close()
    last_record(api, "access.refused", "queue.delete")
    assert "not" in last_record(api, "access.refused", "DELETE /api/users/guest")["reason"].lower()


def test_reading_is_refused_to_user_without_permission_or_bad_query(
    broker: BrokerProcess, api: Any, make_api: Any
) -> None:
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
def test_change_over_amqp_is_refused(broker: BrokerProcess, action: int) -> None:
    connection = connect(broker)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        FORBIDDEN[action](connection.channel())
    assert refused.value.args[0] == 403
    connection.close()


def test_publish_to_audit_queue_is_unroutable(broker: BrokerProcess, api: Any) -> None:
    connection = connect(broker)
    channel = connection.channel()
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", "amq.audit", b"forged", mandatory=True)
    connection.close()
    assert "forged" not in json.dumps(records(api))


@pytest.mark.parametrize("user", ["guest", None])
def test_change_over_http_is_refused_to_users_and_operator(
    broker: BrokerProcess, user: str | None, make_api: Any
) -> None:
    caller = make_api(broker, user)
    assert caller("PUT", "/api/queues/%2F/amq.audit", {"durable": True}).status == 401
    assert caller("DELETE", "/api/queues/%2F/amq.audit").status == 401
    assert caller("DELETE", "/api/queues/%2F/amq.audit/contents").status == 401
    assert caller("POST", "/api/bindings/%2F/e/amq.topic/q/amq.audit", {"routing_key": "k"}).status == 401
    job = {"action": "delete", "wait_ms": 1000}
    assert caller("POST", "/api/queues/%2F/amq.audit/jobs", job).status in (400, 401)
    forged = {"exchange": "", "routing_key": "user.deleted", "properties": "AAA=", "body": "e30=", "persistent": True}
    assert caller("POST", "/api/amqpd/append/%2F/amq.audit", {"messages": [forged]}).status == 401


def test_audit_queue_is_in_no_list(broker: BrokerProcess, api: Any) -> None:
    assert "amq.audit" not in {each["name"] for each in api.get("/api/queues")}
    assert "amq.audit" not in json.dumps(api.get("/api/definitions"))
    assert api.get("/api/queues/%2F/amq.audit")["type"] == "stream"  # a request by name finds it


def test_amqpctl_audit_log_shows_records(broker: BrokerProcess, api: Any) -> None:
    last_record(api, "queue.deleted", "orders")
    shown = broker.ctl("audit_log", "-q", "--where", "event = 'queue.deleted' AND name = 'orders'", "event", "user")
    assert shown.stdout.splitlines() == ["event\tuser", "queue.deleted\tguest"]
    assert len(broker.ctl("audit_log", "-q", "--limit", "2", "--no-table-headers", "event").stdout.splitlines()) == 2
    assert broker.ctl("audit_log", "--where", "(").returncode == 64
    shown_records = json.loads(broker.ctl("audit_log", "--since", "2026-01-01T00:00:00", "--formatter", "json").stdout)
    assert len(shown_records) == len(records(api))


def test_amqpctl_audit_log_follow_shows_new_records(broker: BrokerProcess, api: Any) -> None:
    """The command shows new records until SIGINT ends it."""
    command = [sys.executable, "-P", "-m", "amqpd.cli", "--data-dir", str(broker.data_dir), "-q", "audit_log"]
    command += ["--follow", "--no-table-headers", "name"]
    api.send_ok("PUT", "/api/queues/%2F/before", {"durable": True})
    # A shell that starts the tests in the background makes them and their children ignore SIGINT.
    reset_sigint = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=reset_sigint) as process:  # noqa: PLW1509
        assert process.stdout is not None
        shown = iter(process.stdout)
        assert any(line == "before\n" for line in shown), "--follow first shows the last existing records"
        for name in ("followed-1", "followed-2"):
            api.send_ok("PUT", f"/api/queues/%2F/{name}", {"durable": True})
            assert any(line == f"{name}\n" for line in shown)
        process.send_signal(signal.SIGINT)
        assert [*shown] == []
    assert process.returncode == 0


def test_spark_source_reads_audit_queue(broker: BrokerProcess, api: Any) -> None:
    """The test runs the code of Spark's workers, over the network."""
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
def test_records_survive_kill_and_vhost_deletion(tmp_path: Path, make_api: Any) -> None:
    with BrokerProcess(tmp_path) as broker:
        api = make_api(broker, None)
        connection = connect(broker)
        api.send_ok("PUT", "/api/exchanges/%2F/last-exchange", {"type": "fanout", "durable": True})
        last_record(api, "exchange.created", "last-exchange")
        connection.channel().queue_declare("last-words", durable=True)
        broker.kill()  # the declare-ok has arrived
        wait_for_close(connection)
        broker.start()
        assert last_record(api, "queue.created", "last-words")["user"] == "guest"
        created = [each for each in records(api) if each["event"] in ("exchange.created", "binding.created")]
        assert [each["name"] for each in created] == ["last-exchange"], "objects restored at startup are not recorded"
        count = len(records(api))
        api.send_ok("DELETE", "/api/vhosts/%2F")
        broker.stop()
        broker.start()
        assert last_record(api, "vhost.deleted", "/")["front_end"] == "amqpctl"
        assert len(records(api)) > count
        assert api.get("/api/health/checks/audit-log") == {"status": "ok"}


@pytest.mark.slow
def test_http_change_is_answered_after_its_record_is_on_disk(tmp_path: Path, make_api: Any) -> None:
    with BrokerProcess(tmp_path) as broker:
        api = make_api(broker)
        api.send_ok("PUT", "/api/queues/%2F/orders", {"durable": True})
        api.send_ok("DELETE", "/api/queues/%2F/orders")
        broker.kill()
        broker.start()
        assert [each["event"] for each in records(api, where="name = 'orders'")] == ["queue.created", "queue.deleted"]


@pytest.mark.slow
def test_disabled_audit_log_can_still_be_read(tmp_path: Path, make_api: Any) -> None:
    with BrokerProcess(tmp_path) as broker:
        make_api(broker).send_ok("PUT", "/api/vhosts/a", {})
        last_record(make_api(broker, None), "vhost.created", "a")
    with BrokerProcess(tmp_path, settings={"audit.enabled": False}) as broker:
        make_api(broker).send_ok("PUT", "/api/vhosts/b", {})
        assert [each["name"] for each in records(make_api(broker, None), where="event = 'vhost.created'")] == ["a"]


@pytest.mark.slow
def test_pages_can_be_read_from_the_end_to_the_start(broker: BrokerProcess, api: Any) -> None:
    for number in range(30):
        api.send_ok("PUT", f"/api/users/page-{number}", {"password": "p", "tags": ""})
    all_offsets = [each["offset"] for each in records(api)]
    last_record(api, "user.created", "page-29")
    page = api.get("/api/audit?last=10&count=10")
    found, pages = page["records"], 1
    while page["first_offset"] > page["start_offset"]:
        page = api.get(f"/api/audit?last=10&count=10&before={page['first_offset']}")
        assert page["ended"] is True
        found, pages = page["records"] + found, pages + 1
    offsets = [each["offset"] for each in found]
    assert pages >= 4
    assert offsets == sorted(offsets)
    assert set(all_offsets) <= set(offsets)
    assert page["start_offset"] == offsets[0]
    assert api.get("/api/audit?before=3&count=10")["records"][-1]["offset"] == 2
    assert api("GET", "/api/audit?before=x").status == 400
