"""Queue jobs over the wire with pika: beside consumers, and through kill -9."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from amqpd.testing import BrokerProcess

pytestmark = pytest.mark.slow

COUNT = 4000


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as broker:
        yield broker


def connect(broker: BrokerProcess) -> Any:
    return pika.BlockingConnection(pika.URLParameters(broker.url))


def begin_job(broker: BrokerProcess, verb: str, queue: str = "source", **more: object) -> dict[str, Any]:
    job: Any = broker.api("POST", f"/api/queues/%2F/{queue}/jobs", {"action": verb, **more})
    return job


def wait_for_end(broker: BrokerProcess, job: dict[str, Any]) -> dict[str, Any]:
    until = time.monotonic() + 60
    while job["ended"] is None and time.monotonic() < until:
        answer: Any = broker.api("GET", f"/api/amqpd/jobs/{job['id']}?wait_ms=5000")
        job = answer
    assert job["state"] == "done", job
    return job


def fill(broker: BrokerProcess, arguments: dict[str, object], count: int = COUNT) -> None:
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare("source", durable=True, arguments=arguments)
    channel.queue_declare("target", durable=True)
    for number in range(count):
        properties = pika.BasicProperties(delivery_mode=2, priority=number % 4, headers={"n": number})
        channel.basic_publish("", "source", b"%d" % number, properties)
    channel.confirm_delivery()
    channel.basic_publish("", "target", b"-1", pika.BasicProperties(delivery_mode=2))
    connection.close()


def drain(broker: BrokerProcess, queue: str) -> list[tuple[int, bool, dict[str, Any]]]:
    connection = connect(broker)
    channel = connection.channel()
    left = channel.queue_declare(queue, passive=True).method.message_count
    found = []
    if left:
        for method, properties, body in channel.consume(queue, auto_ack=True):
            found.append((int(body), method.redelivered, dict(properties.headers or {})))
            left -= 1
            if not left:
                break
    connection.close()
    return found


@pytest.mark.parametrize("arguments", [{}, {"x-queue-type": "quorum"}, {"x-max-priority": 4}])
def test_move_beside_consumers(own_broker: BrokerProcess, arguments: dict[str, object]) -> None:
    """Each message goes either to the target or to the consumer, which requeues some."""
    fill(own_broker, arguments)
    connection = connect(own_broker)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=50)
    acked: list[int] = []
    returned: set[int] = set()

    def on_message(_channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        number = int(body)
        if number % 10 == 0 and number not in returned:
            returned.add(number)
            channel.basic_reject(method.delivery_tag, requeue=True)
        else:
            acked.append(number)
            channel.basic_ack(method.delivery_tag)

    channel.basic_consume("source", on_message)
    job = begin_job(own_broker, "move", to_queue="target", where="n > 1000")
    until = time.monotonic() + 60
    while channel.queue_declare("source", passive=True).method.message_count or time.monotonic() < until - 58:
        connection.process_data_events(0.05)
        assert time.monotonic() < until
    connection.close()
    job = wait_for_end(own_broker, job)
    moved = [number for number, _, _ in drain(own_broker, "target") if number >= 0]
    assert len(moved) == job["done"] > 0
    assert Counter(moved + acked) == Counter(range(COUNT))
    if not arguments.get("x-max-priority"):
        assert moved == sorted(moved) or returned & set(moved)


@pytest.mark.parametrize(("after_s", "end"), [(0.02, "kill"), (0.06, "kill"), (0.15, "kill"), (0.04, "stop")])
@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 4}])
def test_kill_loses_none_and_marks_duplicates(
    own_broker: BrokerProcess, arguments: dict[str, object], after_s: float, end: str
) -> None:
    fill(own_broker, arguments)
    begin_job(own_broker, "move", to_queue="target", where="n >= 0")
    time.sleep(after_s)
    if end == "kill":
        own_broker.kill()
    else:
        own_broker.stop()
    own_broker.start()
    assert own_broker.api("GET", "/api/amqpd/jobs") == []
    wait_for_end(own_broker, begin_job(own_broker, "move", to_queue="target"))
    assert drain(own_broker, "source") == []
    source_offsets: dict[int, int] = {}
    copies: Counter[int] = Counter()
    for number, _, headers in drain(own_broker, "target"):
        if number < 0:
            continue
        assert headers["x-source-queue"] == "source"
        assert source_offsets.setdefault(number, headers["x-source-offset"]) == headers["x-source-offset"]
        copies[number] += 1
        if copies[number] > 1:
            assert headers["x-source-redelivered"] is True, "a duplicate must be marked as redelivered"
    assert set(source_offsets) == set(range(COUNT)), "lost"
    assert len(set(source_offsets.values())) == COUNT, "two messages have the same source offset"


def test_killed_redrive_can_be_repeated(own_broker: BrokerProcess, until_settled: Any) -> None:
    connection = connect(own_broker)
    channel = connection.channel()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "failed"}
    channel.queue_declare("failed", durable=True)
    channel.queue_declare("work", durable=True, arguments=arguments)
    for number in range(2000):
        channel.basic_publish("", "work", b"%d" % number, pika.BasicProperties(delivery_mode=2))
    for method, _, _ in channel.consume("work"):
        channel.basic_reject(method.delivery_tag, requeue=False)
        if method.delivery_tag == 2000:
            break
    connection.close()
    until_settled(own_broker, "work", 0)  # otherwise a kill leaves the message in its queue too
    begin_job(own_broker, "redrive", "failed")
    time.sleep(0.05)
    own_broker.kill()
    own_broker.start()
    job = wait_for_end(own_broker, begin_job(own_broker, "redrive", "failed"))
    assert job["left"] == {}
    found = drain(own_broker, "work")
    assert {number for number, _, _ in found} == set(range(2000))
    assert all("x-death" not in headers and headers["x-redrive-count"] == 1 for _, _, headers in found)
