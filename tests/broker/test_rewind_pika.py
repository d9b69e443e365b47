"""Rewinds over the wire with pika: beside consumers, through kill -9, and permissions."""

from __future__ import annotations

import base64
import http.client
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from amqpd.testing import BrokerFailed, BrokerProcess

pytestmark = pytest.mark.slow

COUNT = 3000
RETAINED: dict[str, object] = {"x-retain": "1h"}

FillAndAck = Callable[[dict[str, object]], None]


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as broker:
        yield broker


def connect(broker: BrokerProcess) -> Any:
    return pika.BlockingConnection(pika.URLParameters(broker.url))


def begin_rewind(broker: BrokerProcess, **more: object) -> dict[str, Any]:
    job: Any = broker.api("POST", "/api/queues/%2F/q/jobs", {"action": "rewind", **more})
    return job


def wait_for_end(broker: BrokerProcess, job: dict[str, Any]) -> dict[str, Any]:
    until = time.monotonic() + 60
    while job["ended"] is None and time.monotonic() < until:
        answer: Any = broker.api("GET", f"/api/amqpd/jobs/{job['id']}?wait_ms=5000")
        job = answer
    assert job["state"] == "done", job
    return job


@pytest.fixture
def acked_queue(own_broker: BrokerProcess, until_settled: Any) -> FillAndAck:
    """Return a function that fills the queue and acks all messages, synced to disk."""

    def fill(arguments: dict[str, object]) -> None:
        publish_and_ack(own_broker, arguments)
        until_settled(own_broker, "q", 0)

    return fill


def publish_and_ack(broker: BrokerProcess, arguments: dict[str, object], count: int = COUNT) -> None:
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare("q", durable=True, arguments={**RETAINED, **arguments})
    channel.queue_declare("marker", durable=True)
    for number in range(count):
        properties = pika.BasicProperties(delivery_mode=2, priority=number % 4, headers={"n": number})
        channel.basic_publish("", "q", b"%d" % number, properties)
    assert len(consume(channel, "q", count)) == count
    connection.close()


def consume(channel: Any, queue: str, count: int) -> list[tuple[int, bool]]:
    found: list[tuple[int, bool]] = []
    if count:
        for method, _, body in channel.consume(queue, inactivity_timeout=30):
            if method is None:
                break
            found.append((int(body), method.redelivered))
            channel.basic_ack(method.delivery_tag)
            if len(found) == count:
                break
        channel.cancel()
    return found


def drain(broker: BrokerProcess) -> list[tuple[int, bool]]:
    connection = connect(broker)
    channel = connection.channel()
    found = consume(channel, "q", channel.queue_declare("q", passive=True).method.message_count)
    connection.close()
    return found


@pytest.mark.parametrize("arguments", [{}, {"x-queue-type": "quorum"}, {"x-max-priority": 4}])
def test_rewound_messages_are_redelivered_in_order(
    own_broker: BrokerProcess, acked_queue: FillAndAck, arguments: dict[str, object]
) -> None:
    acked_queue(arguments)
    job = wait_for_end(own_broker, begin_rewind(own_broker, offset=0, where="n >= 100"))
    assert (job["done"], job["from_offset"], job["left"]) == (COUNT - 100, 0, {})
    found = drain(own_broker)
    assert all(redelivered for _, redelivered in found)
    expected = list(range(100, COUNT))
    if "x-max-priority" in arguments:
        expected.sort(key=lambda number: (-(number % 4), number))
    assert [number for number, _ in found] == expected


def test_rewind_beside_a_consumer_and_a_publisher(own_broker: BrokerProcess, acked_queue: FillAndAck) -> None:
    acked_queue({})
    connection = connect(own_broker)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=20)
    received: list[int] = []

    def on_message(_channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        received.append(int(body))
        channel.basic_ack(method.delivery_tag)

    channel.basic_consume("q", on_message)
    job = begin_rewind(own_broker, offset=0, until_offset=COUNT)
    for number in range(COUNT, COUNT + 500):
        channel.basic_publish("", "q", b"%d" % number, pika.BasicProperties(delivery_mode=2))
        connection.process_data_events(0)
    wait_for_end(own_broker, job)
    until = time.monotonic() + 30
    while len(received) < COUNT + 500 and time.monotonic() < until:
        connection.process_data_events(0.1)
    connection.close()
    assert sorted(received) == list(range(COUNT + 500))
    assert [number for number in received if number < COUNT] == list(range(COUNT))


@pytest.mark.parametrize("after_ms", [0, 5, 15, 30, 60, 120])
def test_kill_9_rewinds_all_messages_or_none(
    own_broker: BrokerProcess, acked_queue: FillAndAck, until_settled: Any, after_ms: int
) -> None:
    """Messages acked after the rewind stay acked."""
    acked_queue({})
    begin_rewind(own_broker, offset=0, where="n >= 10")
    time.sleep(after_ms / 1000)
    own_broker.kill()
    own_broker.start()
    found = drain(own_broker)
    assert [number for number, _ in found] in ([], list(range(10, COUNT)))
    assert all(redelivered for _, redelivered in found)
    until_settled(own_broker, "q", 0)
    own_broker.kill()
    own_broker.start()
    assert drain(own_broker) == []
    assert wait_for_end(own_broker, begin_rewind(own_broker, offset=0))["done"] == COUNT
    own_broker.kill()
    own_broker.start()
    assert len(drain(own_broker)) == COUNT, "a rewind reported as done survives a kill"


def test_invalid_requests_are_refused(own_broker: BrokerProcess) -> None:
    connection = connect(own_broker)
    channel = connection.channel()
    channel.queue_declare("q", durable=True, arguments=RETAINED)
    for body, status in (
        ({}, 400),
        ({"offset": 0, "time": "2026-01-01"}, 400),
        ({"offset": 0, "until_offset": 5, "until_time": "2026-01-01"}, 400),
        ({"offset": -1}, 400),
        ({"time": "yesterday"}, 400),
        ({"offset": 0, "to_exchange": "amq.direct"}, 400),
        ({"offset": 0, "to_queue": "nowhere"}, 404),
        ({"offset": 0, "to_queue": "q"}, 400),
        ({"offset": 0, "where": "n >"}, 400),
    ):
        with pytest.raises(BrokerFailed, match=f"-> {status} "):
            begin_rewind(own_broker, **body)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="invalid arg 'x-retain' .*: invalid_retain"):
        channel.queue_declare("other", durable=True, arguments={"x-retain": "3 days"})
    connection.close()


def test_rewind_needs_configure_and_read_permission(own_broker: BrokerProcess) -> None:
    connection = connect(own_broker)
    channel = connection.channel()
    channel.queue_declare("q", durable=True, arguments=RETAINED)
    channel.queue_declare("to", durable=True)
    own_broker.ctl("add_user", "anna", "secret")
    own_broker.ctl("set_user_tags", "anna", "management")
    for rights, body, allowed in (
        (("", "", "q"), {"offset": 0}, False),
        (("q", "", "q"), {"offset": 0}, True),
        (("q", "", "q"), {"offset": 0, "to_queue": "to"}, False),
        (("q", "to", "q"), {"offset": 0, "to_queue": "to"}, True),
        (("q", "to", ""), {"offset": 0, "to_queue": "to"}, False),
    ):
        own_broker.ctl("set_permissions", "anna", *(f"^{each}$" for each in rights))
        assert _as_anna(own_broker, {"action": "rewind", **body}) == (200 if allowed else 401)
    connection.close()


def _as_anna(broker: BrokerProcess, body: dict[str, object]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", broker.http_port)
    credentials = base64.b64encode(b"anna:secret").decode()
    headers = {"Authorization": f"Basic {credentials}", "Content-Type": "application/json"}
    connection.request("POST", "/api/queues/%2F/q/jobs", json.dumps({**body, "wait_ms": 1000}), headers)
    status = connection.getresponse().status
    connection.close()
    return status
