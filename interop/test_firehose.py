"""The firehose with pika, as RabbitMQ's guide describes it, on either broker: copies of publishes and deliveries."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

TABLE: dict[str, Any] = {
    "content_type": "text/plain",
    "content_encoding": "utf-8",
    "headers": {"h": 1, "t": {"a": [1, True, "x"]}},
    "delivery_mode": 2,
    "priority": 3,
    "correlation_id": "c",
    "reply_to": "r",
    "expiration": "100000",
    "message_id": "m",
    "timestamp": 1234,
    "type": "ty",
    "app_id": "app",
}
PROPERTIES = pika.BasicProperties(**TABLE)


class Copies:
    """A consumer of amq.rabbitmq.trace with its own connection."""

    def __init__(self, broker: Any) -> None:
        self.connection = pika.BlockingConnection(broker.pika())
        self.channel = self.connection.channel()
        self.queue = self.channel.queue_declare("", exclusive=True).method.queue
        self.channel.queue_bind(self.queue, "amq.rabbitmq.trace", "#")

    def next(self, about: str = "") -> tuple[str, dict[str, Any], bytes]:
        """Return key, headers and body of the next copy. about: skip others, because this connection's gets are traced
        too.
        """
        until = time.monotonic() + 30
        while time.monotonic() < until:
            method, properties, body = self.channel.basic_get(self.queue, auto_ack=True)
            if method is not None and about in method.routing_key:
                assert method.exchange == "amq.rabbitmq.trace"
                set_ones = {name for name, value in vars(properties).items() if value is not None}
                assert set_ones == {"headers"}
                return method.routing_key, properties.headers, body
            if method is None:
                time.sleep(0.01)
        raise AssertionError("no copy came within 30 s")

    def none_left(self) -> bool:
        time.sleep(0.2)
        return self.channel.basic_get(self.queue, auto_ack=True)[0] is None


@pytest.fixture
def copies(broker: Any) -> Iterator[Copies]:
    vhost = broker.vhost.replace("/", "%2F")
    broker.api("PUT", f"/api/vhosts/{vhost}", {"tracing": True})
    try:
        copies = Copies(broker)
        yield copies
        copies.connection.close()
    finally:
        broker.api("PUT", f"/api/vhosts/{vhost}", {"tracing": False})


@pytest.fixture
def channel(broker: Any, copies: Copies) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(broker.pika())
    yield connection.channel()
    connection.close()


def test_publish_is_copied_with_its_properties(broker: Any, copies: Copies, channel: BlockingChannel) -> None:
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, "amq.topic", "traced.*")
    channel.basic_publish("amq.topic", "traced.a", b"body", PROPERTIES)
    key, headers, body = copies.next()
    assert (key, body) == ("publish.amq.topic", b"body")
    node, connection = headers.pop("node"), headers.pop("connection")
    assert node
    assert " -> " in connection
    assert headers == {
        "exchange_name": "amq.topic",
        "routing_keys": ["traced.a"],
        "properties": TABLE,
        "vhost": broker.vhost,
        "channel": 1,
        "user": broker.user,
        "routed_queues": [queue],
    }


def test_deliveries_by_get_and_consume_are_copied(broker: Any, copies: Copies, channel: BlockingChannel) -> None:
    queue = channel.queue_declare("", exclusive=True).method.queue
    for _ in range(2):
        channel.basic_publish("", queue, b"twice", PROPERTIES)
        assert copies.next()[0] == "publish."
    tag = channel.basic_get(queue)[0].delivery_tag
    key, headers, body = copies.next()
    assert (key, body) == (f"deliver.{queue}", b"twice")
    del headers["node"], headers["connection"]
    assert headers == {
        "exchange_name": "",
        "routing_keys": [queue],
        "properties": TABLE,
        "redelivered": 0,
        "vhost": broker.vhost,
        "channel": 1,
        "user": broker.user,
    }
    channel.basic_reject(tag, requeue=True)
    got = []
    channel.basic_consume(queue, lambda *each: got.append(each), auto_ack=True)
    while len(got) < 2:
        channel.connection.process_data_events(0.1)
    seen = [copies.next() for _ in range(2)]
    assert [key for key, _, _ in seen] == [f"deliver.{queue}"] * 2
    assert [headers["redelivered"] for _, headers, _ in seen] == [1, 0]
    assert copies.none_left()  # copies are not copied


def test_deliveries_of_a_stream_are_copied(broker: Any, copies: Copies, channel: BlockingChannel) -> None:
    channel.queue_declare("traced-stream", durable=True, arguments={"x-queue-type": "stream"})
    try:
        channel.basic_publish("", "traced-stream", b"kept", pika.BasicProperties(app_id="app"))
        assert copies.next()[0] == "publish."
        channel.basic_qos(prefetch_count=10)
        channel.basic_consume("traced-stream", lambda *_: None, arguments={"x-stream-offset": "first"})
        until = time.monotonic() + 30
        copied = None
        while copied is None and time.monotonic() < until:
            channel.connection.process_data_events(0.1)
            method, properties, body = copies.channel.basic_get(copies.queue, auto_ack=True)
            if method is not None:
                copied = method.routing_key, properties.headers["redelivered"], body
        assert copied == ("deliver.traced-stream", 0, b"kept")
    finally:
        channel.queue_delete("traced-stream")


def test_unroutable_message_is_copied(copies: Copies, channel: BlockingChannel) -> None:
    returned: list[object] = []
    channel.add_on_return_callback(lambda *each: returned.append(each))
    channel.basic_publish("amq.direct", "nowhere", b"lost", mandatory=True)
    key, headers, body = copies.next()
    assert (key, headers["routed_queues"], body) == ("publish.amq.direct", [], b"lost")
    channel.connection.process_data_events(0.2)
    assert len(returned) == 1


def test_copy_has_the_routing_keys_of_cc_and_bcc(copies: Copies, channel: BlockingChannel) -> None:
    queues = [channel.queue_declare("", exclusive=True).method.queue for _ in range(3)]
    headers = {"CC": [queues[1]], "BCC": [queues[2]]}
    channel.basic_publish("", queues[0], b"", pika.BasicProperties(headers=headers))
    _, seen, _ = copies.next()
    assert seen["routing_keys"] == queues
    assert sorted(seen["routed_queues"]) == sorted(queues)
    assert seen["properties"] == {"headers": {"CC": [queues[1]]}}


def test_publish_in_a_transaction_is_copied_before_the_commit(copies: Copies, channel: BlockingChannel) -> None:
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.tx_select()
    channel.basic_publish("", queue, b"tx")
    assert copies.next()[2] == b"tx"
    channel.tx_rollback()
    assert copies.none_left()


def test_publish_and_get_over_the_http_api_are_copied(broker: Any, copies: Copies, channel: BlockingChannel) -> None:
    queue = channel.queue_declare("http", auto_delete=False).method.queue
    try:
        vhost = broker.vhost.replace("/", "%2F")
        body = {"properties": {}, "routing_key": queue, "payload": "p", "payload_encoding": "string"}
        broker.api("POST", f"/api/exchanges/{vhost}/amq.default/publish", body)
        key, headers, payload = copies.next()
        assert (key, payload, headers["channel"], headers["user"]) == ("publish.", b"p", 1, broker.user)
        request = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
        broker.api("POST", f"/api/queues/{vhost}/{queue}/get", request)
        key, headers, payload = copies.next()
        assert (key, payload, headers["user"]) == ("deliver.http", b"p", broker.user)
    finally:
        channel.queue_delete(queue)


def test_tracing_is_shown_and_can_be_switched(broker: Any, copies: Copies, channel: BlockingChannel) -> None:
    vhost = broker.vhost.replace("/", "%2F")
    assert broker.api("GET", f"/api/vhosts/{vhost}")["tracing"] is True
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_publish("", queue, b"1")
    assert copies.next()[2] == b"1"
    broker.api("PUT", f"/api/vhosts/{vhost}", {"tracing": False})
    assert broker.api("GET", f"/api/vhosts/{vhost}")["tracing"] is False
    channel.basic_publish("", queue, b"2")
    assert channel.basic_get(queue, auto_ack=True)[2] == b"1"
    assert copies.none_left()
    broker.api("PUT", f"/api/vhosts/{vhost}", {"tracing": True})
    channel.basic_publish("", queue, b"3")
    assert copies.next()[2] == b"3"
