"""The exchange amq.rabbitmq.event: keys and headers of RabbitMQ's plugin rabbitmq_event_exchange 3.10.8."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from amqpd.testing import BrokerProcess

PERFORMED_BY = {"user_who_performed_action"}
AUTHENTICATION = {
    "ssl", "auth_mechanism", "protocol", "peer_port", "peer_host", "connection_name", "host", "name", "connection_type",
}  # fmt: skip
# Headers of RabbitMQ 3.10.8 besides `timestamp_in_ms`; for connection.created without those of the peer
# certificate.
RECORDED: dict[str, set[str]] = {
    "queue.created": PERFORMED_BY | {"exclusive", "owner_pid", "arguments", "auto_delete", "durable", "name", "vhost"},
    "queue.deleted": PERFORMED_BY | {"name", "vhost"},
    "exchange.created": PERFORMED_BY
    | {"policy", "arguments", "internal", "auto_delete", "durable", "type", "name", "vhost"},
    "exchange.deleted": PERFORMED_BY | {"name", "vhost"},
    "binding.created": PERFORMED_BY
    | {
        "vhost", "arguments", "routing_key", "destination_kind", "destination_name", "source_kind", "source_name",
    },
    "binding.deleted": PERFORMED_BY
    | {
        "vhost", "arguments", "routing_key", "destination_kind", "destination_name", "source_kind", "source_name",
    },
    "connection.created": PERFORMED_BY
    | {
        "node", "connected_at", "client_properties", "channel_max", "frame_max", "timeout", "vhost", "user", "protocol",
        "auth_mechanism", "ssl", "peer_host", "host", "peer_port", "port", "name", "pid", "type", "user_provided_name",
    },
    "connection.closed": {"client_properties", "node", "pid", "name", "user_provided_name"},
    "channel.created": PERFORMED_BY | {"vhost", "user", "number", "connection", "name", "pid"},
    "channel.closed": PERFORMED_BY | {"pid"},
    "consumer.created": PERFORMED_BY
    | {"arguments", "prefetch_count", "queue", "vhost", "channel", "ack_required", "exclusive", "consumer_tag"},
    "consumer.deleted": PERFORMED_BY | {"queue", "vhost", "channel", "consumer_tag"},
    "policy.set": PERFORMED_BY | {"apply-to", "priority", "definition", "pattern", "vhost", "name"},
    "policy.cleared": PERFORMED_BY | {"vhost", "name"},
    "operator.policy.cleared": PERFORMED_BY | {"vhost", "name"},
    "parameter.set": PERFORMED_BY | {"value", "name", "component", "vhost"},
    "parameter.cleared": PERFORMED_BY | {"name", "component", "vhost"},
    "vhost.created": PERFORMED_BY | {"tags", "description", "cluster_state", "tracing", "default_queue_type", "name"},
    "vhost.updated": PERFORMED_BY | {"tags", "description", "cluster_state", "tracing", "default_queue_type", "name"},
    "vhost.deleted": PERFORMED_BY | {"name"},
    "user.created": PERFORMED_BY | {"name"},
    "user.tags.set": PERFORMED_BY | {"tags", "name"},
    "user.password.changed": PERFORMED_BY | {"name"},
    "user.deleted": PERFORMED_BY | {"name"},
    "permission.created": PERFORMED_BY | {"read", "write", "configure", "vhost", "user"},
    "permission.deleted": PERFORMED_BY | {"vhost", "user"},
    "topic.permission.created": PERFORMED_BY | {"read", "write", "exchange", "vhost", "user"},
    "topic.permission.deleted": PERFORMED_BY | {"vhost", "user"},
    "user.authentication.success": AUTHENTICATION,
    "user.authentication.failure": AUTHENTICATION | {"error"},
    "alarm.set": {"node", "source"},
    "alarm.cleared": {"node", "source"},
    "vhost.limits.cleared": PERFORMED_BY | {"name"},
    "vhost.limits.set": PERFORMED_BY | {"name", "max-queues"},
    "user.limits.set": PERFORMED_BY | {"name", "username", "max-channels"},
    "user.limits.cleared": PERFORMED_BY | {"name", "username"},
}  # fmt: skip


class EventQueue:
    """A queue bound to the event exchange."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        self.channel = self.connection.channel()
        self.queue = self.channel.queue_declare("", exclusive=True).method.queue
        self.channel.queue_bind(self.queue, "amq.rabbitmq.event", "#")

    def read_until(self, key: str) -> list[tuple[str, dict[str, Any]]]:
        """Return all events up to and including the next one with this key."""
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

    def expect(self, key: str) -> dict[str, Any]:
        """Return the headers of the next event with this key, after checking their names."""
        headers = self.read_until(key)[-1][1]
        names = set(headers)
        expected = RECORDED[key] - ({"vhost"} if headers.get("component") == "global" else set())
        assert names == expected, f"{key} has {names ^ expected}"
        return headers


@pytest.fixture(scope="module")
def event_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"event_exchange_vhost": "/"}
    with BrokerProcess(tmp_path_factory.mktemp("events"), settings=settings) as process:
        yield process


@pytest.fixture
def events(event_broker: BrokerProcess) -> Iterator[EventQueue]:
    found = EventQueue(event_broker)
    found.expect("binding.created")
    yield found
    found.connection.close()


@pytest.fixture
def connect(event_broker: BrokerProcess) -> Iterator[Callable[..., pika.BlockingConnection]]:
    connections = []

    def open_connection(user: str = "guest", password: str = "guest", vhost: str = "/") -> pika.BlockingConnection:
        parameters = pika.ConnectionParameters(
            "127.0.0.1",
            event_broker.amqp_port,
            vhost,
            pika.PlainCredentials(user, password),
            client_properties={"connection_name": "mine"},
        )
        connections.append(pika.BlockingConnection(parameters))
        return connections[-1]

    yield open_connection
    for each in connections:
        if each.is_open:
            each.close()


@pytest.fixture
def channel(connect, events: EventQueue) -> BlockingChannel:
    found = connect().channel()
    events.read_until("channel.created")
    return found


def test_events_of_connection_and_channel(events: EventQueue, connect, event_broker: BrokerProcess) -> None:
    connection = connect()
    login = events.expect("user.authentication.success")
    assert (login["name"], login["connection_type"], login["auth_mechanism"]) == ("guest", "network", "PLAIN")
    created = events.expect("connection.created")
    assert (created["user"], created["vhost"], created["user_provided_name"]) == ("guest", "/", "mine")
    assert created["client_properties"]["connection_name"] == "mine"
    (listed,) = [
        each for each in event_broker.api("GET", "/api/connections") if each.get("user_provided_name") == "mine"
    ]
    assert (created["pid"], created["name"]) == (listed["pid"], listed["name"])
    channel = connection.channel(7)
    opened = events.expect("channel.created")
    assert (opened["number"], opened["connection"], opened["name"]) == (7, created["pid"], f"{created['name']} (7)")
    channel.close()
    assert events.expect("channel.closed") == {"pid": opened["pid"], "user_who_performed_action": "guest"}
    connection.close()
    closed = events.expect("connection.closed")
    assert (closed["pid"], closed["name"]) == (created["pid"], created["name"])


@pytest.mark.parametrize("durable", [True, False])
def test_events_of_queue(events: EventQueue, channel: BlockingChannel, durable: bool) -> None:
    channel.queue_declare("q", durable=durable, arguments={"x-max-length": 3})
    assert events.expect("queue.created") == {
        "vhost": "/",
        "name": "q",
        "durable": durable,
        "auto_delete": False,
        "exclusive": False,
        "owner_pid": "",
        "arguments": {"x-max-length": 3},
        "user_who_performed_action": "guest",
    }
    channel.queue_declare("q", durable=durable, arguments={"x-max-length": 3})  # a redeclare makes no event
    channel.queue_delete("q")
    expected = {"vhost": "/", "name": "q", "user_who_performed_action": "guest"}
    assert events.read_until("queue.deleted") == [("queue.deleted", expected)]


@pytest.mark.parametrize("cancelled", [True, False])
def test_auto_delete_queue_is_deleted_by_the_broker(
    events: EventQueue, channel: BlockingChannel, cancelled: bool
) -> None:
    """RabbitMQ: the user of the event is rmq-internal, not the user who cancels the last consumer."""
    channel.queue_declare("brief", auto_delete=True)
    tag = channel.basic_consume("brief", lambda *_: None)
    events.read_until("consumer.created")
    if cancelled:
        channel.basic_cancel(tag)
    else:
        channel.close()
    deleted = events.expect("queue.deleted")
    assert (deleted["name"], deleted["user_who_performed_action"]) == ("brief", "rmq-internal")


def test_exclusive_queue_is_deleted_by_the_broker(events: EventQueue, channel: BlockingChannel) -> None:
    channel.queue_declare("mine", exclusive=True)
    created = events.expect("queue.created")
    assert created["exclusive"] is True
    assert created["owner_pid"].endswith(".0>")
    channel.connection.close()
    assert events.expect("queue.deleted") == {
        "vhost": "/",
        "name": "mine",
        "user_who_performed_action": "rmq-internal",
    }


def test_events_of_exchanges_and_bindings(events: EventQueue, channel: BlockingChannel) -> None:
    channel.exchange_declare("x", "topic", durable=True)
    assert events.expect("exchange.created")["type"] == "topic"
    channel.queue_declare("q2", exclusive=True)
    channel.queue_bind("q2", "x", "a.#", {"k": 1})
    bound = events.expect("binding.created")
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
    assert events.expect("binding.deleted") == bound
    channel.exchange_bind("amq.fanout", "x", "e")
    assert events.expect("binding.created")["destination_kind"] == "exchange"
    channel.exchange_delete("x")
    assert events.expect("exchange.deleted")["name"] == "x"
    assert events.expect("binding.deleted")["destination_name"] == "amq.fanout"


def test_events_of_consumers(events: EventQueue, channel: BlockingChannel) -> None:
    channel.queue_declare("q3", exclusive=True)
    channel.basic_qos(prefetch_count=5)
    channel.basic_consume("q3", lambda *_: None, consumer_tag="ct", arguments={"x-priority": 2})
    created = events.expect("consumer.created")
    assert (created["consumer_tag"], created["queue"], created["prefetch_count"]) == ("ct", "q3", 5)
    assert (created["ack_required"], created["exclusive"], created["arguments"]) == (True, False, {"x-priority": 2})
    channel.basic_cancel("ct")
    assert events.expect("consumer.deleted")["channel"] == created["channel"]
    channel.basic_consume("q3", lambda *_: None, consumer_tag="again", arguments={"x-consumer-timeout": 100})
    channel.basic_publish("", "q3", b"")
    channel.connection.process_data_events(0.1)
    assert events.expect("consumer.deleted")["consumer_tag"] == "again"
    channel.basic_consume("q3", lambda *_: None, consumer_tag="third")
    channel.queue_delete("q3")
    assert events.expect("consumer.deleted")["consumer_tag"] == "third"


def test_events_of_failed_login(events: EventQueue, connect) -> None:
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        connect("guest", "wrong")
    failed = events.expect("user.authentication.failure")
    assert failed["name"] == "guest"
    assert "guest" in failed["error"]
    closed = events.expect("connection.closed")
    assert closed["name"] == failed["connection_name"]
    assert closed["pid"].endswith(".0.0>")


def test_events_of_admin_requests(events: EventQueue, event_broker: BrokerProcess) -> None:
    def request(method: str, path: str, body: object = None) -> None:
        event_broker.api(method, f"/api/{path}", body)

    request("PUT", "vhosts/v", {"description": "d", "tags": "a,b"})
    assert events.expect("vhost.created")["tags"] == ["a", "b"]
    assert events.expect("permission.created")["vhost"] == "v"
    request("PUT", "vhosts/v", {"description": "e"})
    assert events.expect("vhost.updated")["description"] == "e"
    for tracing in (True, False):
        request("PUT", "vhosts/v", {"tracing": tracing})
        assert events.expect("vhost.updated")["tracing"] is tracing
    request("PUT", "users/u", {"password": "p", "tags": "monitoring"})
    assert events.expect("user.created") == {"name": "u", "user_who_performed_action": "guest"}
    assert events.expect("user.tags.set")["tags"] == ["monitoring"]
    request("PUT", "users/u", {"password": "p2", "tags": ""})
    events.expect("user.password.changed")
    assert events.expect("user.tags.set")["tags"] == []
    request("PUT", "permissions/v/u", {"configure": "c", "write": "w", "read": "r"})
    permission = events.expect("permission.created")
    assert (permission["user"], permission["configure"], permission["write"], permission["read"]) == (
        "u",
        "c",
        "w",
        "r",
    )
    request("PUT", "topic-permissions/v/u", {"exchange": "amq.topic", "write": "w", "read": "r"})
    assert events.expect("topic.permission.created")["exchange"] == "amq.topic"
    request("DELETE", "topic-permissions/v/u")
    events.expect("topic.permission.deleted")
    request("DELETE", "permissions/v/u")
    events.expect("permission.deleted")
    policy = {"pattern": "^a", "definition": {"max-length": 3}, "priority": 2, "apply-to": "queues"}
    request("PUT", "policies/v/p", policy)
    assert events.expect("policy.set") == {"vhost": "v", "name": "p", "user_who_performed_action": "guest", **policy}
    request("DELETE", "policies/v/p")
    events.expect("policy.cleared")
    request("PUT", "operator-policies/v/p", policy)
    assert events.expect("parameter.set")["value"] == policy
    events.expect("policy.set")
    request("DELETE", "operator-policies/v/p")
    assert events.expect("parameter.cleared")["component"] == "operator_policy"
    events.expect("operator.policy.cleared")
    request("PUT", "global-parameters/g", {"value": {"a": 1}})
    assert events.expect("parameter.set")["value"] == {"a": 1}
    request("DELETE", "global-parameters/g")
    events.expect("parameter.cleared")
    request("PUT", "vhost-limits/v/max-queues", {"value": 9})
    assert events.expect("parameter.set")["component"] == "vhost-limits"
    assert events.expect("vhost.limits.set")["max-queues"] == 9
    request("DELETE", "parameters/vhost-limits/v/limits")
    assert events.expect("parameter.cleared")["component"] == "vhost-limits"
    assert events.expect("vhost.limits.cleared")["name"] == "limits"
    request("PUT", "user-limits/u/max-channels", {"value": 9})
    assert events.expect("user.limits.set")["max-channels"] == 9
    request("DELETE", "user-limits/u/max-channels")
    events.expect("user.limits.cleared")
    request("DELETE", "users/u")
    events.expect("user.deleted")
    request("DELETE", "vhosts/v")
    assert events.expect("vhost.deleted") == {"name": "v", "user_who_performed_action": "guest"}


def test_events_of_amqpctl(events: EventQueue, event_broker: BrokerProcess) -> None:
    event_broker.ctl("add_vhost", "cli")
    assert events.expect("vhost.created")["user_who_performed_action"] == "rmq-cli"
    event_broker.ctl("delete_vhost", "cli")
    events.expect("vhost.deleted")


def test_events_of_alarms(events: EventQueue, event_broker: BrokerProcess) -> None:
    event_broker.ctl("set_vm_memory_high_watermark", "0.00001")
    assert events.expect("alarm.set")["source"] == "memory"
    event_broker.ctl("set_vm_memory_high_watermark", "0.9")
    assert events.expect("alarm.cleared")["source"] == "memory"


@pytest.mark.slow
def test_durable_binding_receives_events_after_restart(tmp_path_factory: pytest.TempPathFactory) -> None:
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


def test_event_exchange_does_not_exist_by_default(amqpd_broker: BrokerProcess) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(amqpd_broker.url))
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="no exchange 'amq.rabbitmq.event'"):
        connection.channel().exchange_declare("amq.rabbitmq.event", passive=True)
    connection.close()


@pytest.mark.slow
def test_vhost_deletion_emits_permission_deleted(events: EventQueue, event_broker: BrokerProcess) -> None:
    """Nothing may be logged as a bug."""
    event_broker.api("PUT", "/api/vhosts/leaving", {})
    events.expect("permission.created")
    event_broker.api("DELETE", "/api/vhosts/leaving")
    deleted = events.expect("permission.deleted")
    assert (deleted["user"], deleted["vhost"]) == ("guest", "leaving")
    assert "Traceback" not in event_broker.stderr
