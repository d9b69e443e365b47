"""The exchange amq.rabbitmq.event: keys and headers of RabbitMQ's plugin rabbitmq_event_exchange, as of 3.10.8."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from amqpd.testing import BrokerProcess

WHO = {"user_who_performed_action"}
AUTHENTICATION = {
    "ssl", "auth_mechanism", "protocol", "peer_port", "peer_host", "connection_name", "host", "name", "connection_type",
}  # fmt: skip
# What 3.10.8's have beside `timestamp_in_ms`; of connection.created less what is about a peer's certificate.
RECORDED: dict[str, set[str]] = {
    "queue.created": WHO | {"exclusive", "owner_pid", "arguments", "auto_delete", "durable", "name", "vhost"},
    "queue.deleted": WHO | {"name", "vhost"},
    "exchange.created": WHO
    | {"policy", "arguments", "internal", "auto_delete", "durable", "type", "name", "vhost"},
    "exchange.deleted": WHO | {"name", "vhost"},
    "binding.created": WHO
    | {
        "vhost", "arguments", "routing_key", "destination_kind", "destination_name", "source_kind", "source_name",
    },
    "binding.deleted": WHO
    | {
        "vhost", "arguments", "routing_key", "destination_kind", "destination_name", "source_kind", "source_name",
    },
    "connection.created": WHO
    | {
        "node", "connected_at", "client_properties", "channel_max", "frame_max", "timeout", "vhost", "user", "protocol",
        "auth_mechanism", "ssl", "peer_host", "host", "peer_port", "port", "name", "pid", "type", "user_provided_name",
    },
    "connection.closed": {"client_properties", "node", "pid", "name", "user_provided_name"},
    "channel.created": WHO | {"vhost", "user", "number", "connection", "name", "pid"},
    "channel.closed": WHO | {"pid"},
    "consumer.created": WHO
    | {"arguments", "prefetch_count", "queue", "vhost", "channel", "ack_required", "exclusive", "consumer_tag"},
    "consumer.deleted": WHO | {"queue", "vhost", "channel", "consumer_tag"},
    "policy.set": WHO | {"apply-to", "priority", "definition", "pattern", "vhost", "name"},
    "policy.cleared": WHO | {"vhost", "name"},
    "operator.policy.cleared": WHO | {"vhost", "name"},
    "parameter.set": WHO | {"value", "name", "component", "vhost"},
    "parameter.cleared": WHO | {"name", "component", "vhost"},
    "vhost.created": WHO | {"tags", "description", "cluster_state", "tracing", "default_queue_type", "name"},
    "vhost.updated": WHO | {"tags", "description", "cluster_state", "tracing", "default_queue_type", "name"},
    "vhost.deleted": WHO | {"name"},
    "user.created": WHO | {"name"},
    "user.tags.set": WHO | {"tags", "name"},
    "user.password.changed": WHO | {"name"},
    "user.deleted": WHO | {"name"},
    "permission.created": WHO | {"read", "write", "configure", "vhost", "user"},
    "permission.deleted": WHO | {"vhost", "user"},
    "topic.permission.created": WHO | {"read", "write", "exchange", "vhost", "user"},
    "topic.permission.deleted": WHO | {"vhost", "user"},
    "user.authentication.success": AUTHENTICATION,
    "user.authentication.failure": AUTHENTICATION | {"error"},
    "alarm.set": {"node", "source"},
    "alarm.cleared": {"node", "source"},
    "vhost.limits.cleared": WHO | {"name"},
    "vhost.limits.set": WHO | {"name", "max-queues"},
    "user.limits.set": WHO | {"name", "username", "max-channels"},
    "user.limits.cleared": WHO | {"name", "username"},
}  # fmt: skip


class Heard:
    """What one queue, bound to the exchange, gets."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        self.channel = self.connection.channel()
        self.queue = self.channel.queue_declare("", exclusive=True).method.queue
        self.channel.queue_bind(self.queue, "amq.rabbitmq.event", "#")

    def until(self, key: str) -> list[tuple[str, dict[str, Any]]]:
        """Everything up to the next of this key."""
        found = []
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            method, properties, body = self.channel.basic_get(self.queue, auto_ack=True)
            if method is None:
                time.sleep(0.005)
                continue
            headers = dict(properties.headers)
            assert (method.exchange, body, properties.delivery_mode) == ("amq.rabbitmq.event", b"", 2)
            assert headers.pop("timestamp_in_ms") // 1000 == properties.timestamp
            found.append((method.routing_key, headers))
            if method.routing_key == key:
                return found
        raise AssertionError(f"no {key} came within 30 s, but {[each for each, _ in found]}")

    def one(self, key: str) -> dict[str, Any]:
        headers = self.until(key)[-1][1]
        told = set(headers)
        expected = RECORDED[key] - ({"vhost"} if headers.get("component") == "global" else set())
        assert told == expected, f"{key} has {told ^ expected}"
        return headers


@pytest.fixture(scope="module")
def telling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"event_exchange_vhost": "/"}
    with BrokerProcess(tmp_path_factory.mktemp("events"), settings=settings) as process:
        yield process


@pytest.fixture
def heard(telling: BrokerProcess) -> Iterator[Heard]:
    found = Heard(telling)
    found.one("binding.created")
    yield found
    found.connection.close()


@pytest.fixture
def connect(telling: BrokerProcess) -> Iterator[Callable[..., pika.BlockingConnection]]:
    made = []

    def call(user: str = "guest", password: str = "guest", vhost: str = "/") -> pika.BlockingConnection:
        parameters = pika.ConnectionParameters(
            "127.0.0.1",
            telling.amqp_port,
            vhost,
            pika.PlainCredentials(user, password),
            client_properties={"connection_name": "mine"},
        )
        made.append(pika.BlockingConnection(parameters))
        return made[-1]

    yield call
    for each in made:
        if each.is_open:
            each.close()


@pytest.fixture
def channel(connect, heard: Heard) -> BlockingChannel:
    found = connect().channel()
    heard.until("channel.created")
    return found


def test_a_connection_and_its_channel(heard: Heard, connect, telling: BrokerProcess) -> None:
    connection = connect()
    login = heard.one("user.authentication.success")
    assert (login["name"], login["connection_type"], login["auth_mechanism"]) == ("guest", "network", "PLAIN")
    came = heard.one("connection.created")
    assert (came["user"], came["vhost"], came["user_provided_name"]) == ("guest", "/", "mine")
    assert came["client_properties"]["connection_name"] == "mine"
    (listed,) = [each for each in telling.api("GET", "/api/connections") if each.get("user_provided_name") == "mine"]
    assert (came["pid"], came["name"]) == (listed["pid"], listed["name"])
    channel = connection.channel(7)
    opened = heard.one("channel.created")
    assert (opened["number"], opened["connection"], opened["name"]) == (7, came["pid"], f"{came['name']} (7)")
    channel.close()
    assert heard.one("channel.closed") == {"pid": opened["pid"], "user_who_performed_action": "guest"}
    connection.close()
    gone = heard.one("connection.closed")
    assert (gone["pid"], gone["name"]) == (came["pid"], came["name"])


@pytest.mark.parametrize("durable", [True, False])
def test_a_queue(heard: Heard, channel: BlockingChannel, durable: bool) -> None:
    channel.queue_declare("q", durable=durable, arguments={"x-max-length": 3})
    assert heard.one("queue.created") == {
        "vhost": "/",
        "name": "q",
        "durable": durable,
        "auto_delete": False,
        "exclusive": False,
        "owner_pid": "",
        "arguments": {"x-max-length": 3},
        "user_who_performed_action": "guest",
    }
    channel.queue_declare("q", durable=durable, arguments={"x-max-length": 3})  # it was there
    channel.queue_delete("q")
    expected = {"vhost": "/", "name": "q", "user_who_performed_action": "guest"}
    assert heard.until("queue.deleted") == [("queue.deleted", expected)]


@pytest.mark.parametrize("cancelled", [True, False])
def test_an_auto_delete_queue_goes_by_itself(heard: Heard, channel: BlockingChannel, cancelled: bool) -> None:
    """RabbitMQ: whoever cancels its last consumer."""
    channel.queue_declare("brief", auto_delete=True)
    tag = channel.basic_consume("brief", lambda *_: None)
    heard.until("consumer.created")
    if cancelled:
        channel.basic_cancel(tag)
    else:
        channel.close()
    gone = heard.one("queue.deleted")
    assert (gone["name"], gone["user_who_performed_action"]) == ("brief", "rmq-internal")


def test_an_exclusive_queue_goes_by_itself(heard: Heard, channel: BlockingChannel) -> None:
    channel.queue_declare("mine", exclusive=True)
    owned = heard.one("queue.created")
    assert owned["exclusive"] is True
    assert owned["owner_pid"].endswith(".0>")
    channel.connection.close()
    assert heard.one("queue.deleted") == {
        "vhost": "/",
        "name": "mine",
        "user_who_performed_action": "rmq-internal",
    }


def test_exchanges_and_bindings(heard: Heard, channel: BlockingChannel) -> None:
    channel.exchange_declare("x", "topic", durable=True)
    assert heard.one("exchange.created")["type"] == "topic"
    channel.queue_declare("q2", exclusive=True)
    channel.queue_bind("q2", "x", "a.#", {"k": 1})
    bound = heard.one("binding.created")
    assert bound == {
        "vhost": "/",
        "source_name": "x",
        "source_kind": "exchange",
        "destination_name": "q2",
        "destination_kind": "queue",
        "routing_key": "a.#",
        "arguments": {"k": 1},
        "user_who_performed_action": "guest",
    }
    channel.queue_unbind("q2", "x", "a.#", {"k": 1})
    assert heard.one("binding.deleted") == bound
    channel.exchange_bind("amq.fanout", "x", "e")
    assert heard.one("binding.created")["destination_kind"] == "exchange"
    channel.exchange_delete("x")
    assert heard.one("exchange.deleted")["name"] == "x"
    assert heard.one("binding.deleted")["destination_name"] == "amq.fanout"


def test_consumers(heard: Heard, channel: BlockingChannel) -> None:
    channel.queue_declare("q3", exclusive=True)
    channel.basic_qos(prefetch_count=5)
    channel.basic_consume("q3", lambda *_: None, consumer_tag="ct", arguments={"x-priority": 2})
    came = heard.one("consumer.created")
    assert (came["consumer_tag"], came["queue"], came["prefetch_count"]) == ("ct", "q3", 5)
    assert (came["ack_required"], came["exclusive"], came["arguments"]) == (True, False, {"x-priority": 2})
    channel.basic_cancel("ct")
    assert heard.one("consumer.deleted")["channel"] == came["channel"]
    channel.basic_consume("q3", lambda *_: None, consumer_tag="again", arguments={"x-consumer-timeout": 100})
    channel.basic_publish("", "q3", b"")
    channel.connection.process_data_events(0.1)
    assert heard.one("consumer.deleted")["consumer_tag"] == "again"
    channel.basic_consume("q3", lambda *_: None, consumer_tag="third")
    channel.queue_delete("q3")
    assert heard.one("consumer.deleted")["consumer_tag"] == "third"


def test_logins_that_fail(heard: Heard, connect) -> None:
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        connect("guest", "wrong")
    failed = heard.one("user.authentication.failure")
    assert failed["name"] == "guest"
    assert "guest" in failed["error"]
    gone = heard.one("connection.closed")
    assert gone["name"] == failed["connection_name"]
    assert gone["pid"].endswith(".0.0>")


def test_what_operators_do(heard: Heard, telling: BrokerProcess) -> None:
    def do(method: str, path: str, body: object = None) -> None:
        telling.api(method, f"/api/{path}", body)

    do("PUT", "vhosts/v", {"description": "d", "tags": "a,b"})
    assert heard.one("vhost.created")["tags"] == ["a", "b"]
    assert heard.one("permission.created")["vhost"] == "v"
    do("PUT", "vhosts/v", {"description": "e"})
    assert heard.one("vhost.updated")["description"] == "e"
    for tracing in (True, False):
        do("PUT", "vhosts/v", {"tracing": tracing})
        assert heard.one("vhost.updated")["tracing"] is tracing
    do("PUT", "users/u", {"password": "p", "tags": "monitoring"})
    assert heard.one("user.created") == {"name": "u", "user_who_performed_action": "guest"}
    assert heard.one("user.tags.set")["tags"] == ["monitoring"]
    do("PUT", "users/u", {"password": "p2", "tags": ""})
    heard.one("user.password.changed")
    assert heard.one("user.tags.set")["tags"] == []
    do("PUT", "permissions/v/u", {"configure": "c", "write": "w", "read": "r"})
    right = heard.one("permission.created")
    assert (right["user"], right["configure"], right["write"], right["read"]) == ("u", "c", "w", "r")
    do("PUT", "topic-permissions/v/u", {"exchange": "amq.topic", "write": "w", "read": "r"})
    assert heard.one("topic.permission.created")["exchange"] == "amq.topic"
    do("DELETE", "topic-permissions/v/u")
    heard.one("topic.permission.deleted")
    do("DELETE", "permissions/v/u")
    heard.one("permission.deleted")
    policy = {"pattern": "^a", "definition": {"max-length": 3}, "priority": 2, "apply-to": "queues"}
    do("PUT", "policies/v/p", policy)
    assert heard.one("policy.set") == {"vhost": "v", "name": "p", "user_who_performed_action": "guest", **policy}
    do("DELETE", "policies/v/p")
    heard.one("policy.cleared")
    do("PUT", "operator-policies/v/p", policy)
    assert heard.one("parameter.set")["value"] == policy
    heard.one("policy.set")
    do("DELETE", "operator-policies/v/p")
    assert heard.one("parameter.cleared")["component"] == "operator_policy"
    heard.one("operator.policy.cleared")
    do("PUT", "global-parameters/g", {"value": {"a": 1}})
    assert heard.one("parameter.set")["value"] == {"a": 1}
    do("DELETE", "global-parameters/g")
    heard.one("parameter.cleared")
    do("PUT", "vhost-limits/v/max-queues", {"value": 9})
    assert heard.one("parameter.set")["component"] == "vhost-limits"
    assert heard.one("vhost.limits.set")["max-queues"] == 9
    do("DELETE", "parameters/vhost-limits/v/limits")
    assert heard.one("parameter.cleared")["component"] == "vhost-limits"
    assert heard.one("vhost.limits.cleared")["name"] == "limits"
    do("PUT", "user-limits/u/max-channels", {"value": 9})
    assert heard.one("user.limits.set")["max-channels"] == 9
    do("DELETE", "user-limits/u/max-channels")
    heard.one("user.limits.cleared")
    do("DELETE", "users/u")
    heard.one("user.deleted")
    do("DELETE", "vhosts/v")
    assert heard.one("vhost.deleted") == {"name": "v", "user_who_performed_action": "guest"}


def test_the_command_line(heard: Heard, telling: BrokerProcess) -> None:
    telling.ctl("add_vhost", "cli")
    assert heard.one("vhost.created")["user_who_performed_action"] == "rmq-cli"
    telling.ctl("delete_vhost", "cli")
    heard.one("vhost.deleted")


def test_alarms(heard: Heard, telling: BrokerProcess) -> None:
    telling.ctl("set_vm_memory_high_watermark", "0.00001")
    assert heard.one("alarm.set")["source"] == "memory"
    telling.ctl("set_vm_memory_high_watermark", "0.9")
    assert heard.one("alarm.cleared")["source"] == "memory"


@pytest.mark.slow
def test_durable_bindings_hear_after_a_restart(tmp_path_factory: pytest.TempPathFactory) -> None:
    data = tmp_path_factory.mktemp("durable")
    settings = {"event_exchange_vhost": "/"}
    with BrokerProcess(data, settings=settings) as process:
        connection = pika.BlockingConnection(pika.URLParameters(process.url))
        channel = connection.channel()
        channel.queue_declare("audit", durable=True)
        channel.queue_bind("audit", "amq.rabbitmq.event", "vhost.#")
        connection.close()
        process.kill()
        process.start()
        process.add_vhost("new")
        connection = pika.BlockingConnection(pika.URLParameters(process.url))
        channel = connection.channel()
        deadline = time.monotonic() + 30
        method = None
        while method is None and time.monotonic() < deadline:
            method, properties, _ = channel.basic_get("audit", auto_ack=True)
        assert method is not None
        assert (method.routing_key, properties.headers["name"]) == ("vhost.created", "new")
        connection.close()


def test_there_is_none_by_default(amqpd_broker: BrokerProcess) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(amqpd_broker.url))
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="no exchange 'amq.rabbitmq.event'"):
        connection.channel().exchange_declare("amq.rabbitmq.event", passive=True)
    connection.close()


@pytest.mark.slow
def test_a_vhost_takes_its_permissions_along(heard: Heard, telling: BrokerProcess) -> None:
    """Each of them is told, and nothing is logged as a bug of ours."""
    telling.api("PUT", "/api/vhosts/leaving", {})
    heard.one("permission.created")
    telling.api("DELETE", "/api/vhosts/leaving")
    gone = heard.one("permission.deleted")
    assert (gone["user"], gone["vhost"]) == ("guest", "leaving")
    assert "Traceback" not in telling.stderr
