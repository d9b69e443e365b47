"""Streams with pika through kills, stops and retention."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pika.exceptions
import pytest

from amqpd.testing import BrokerProcess

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
STREAM = {"x-queue-type": "stream"}
Delivery = tuple[int, bytes]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {"storage.segment_size_bytes": 1 << 20, "storage.upkeep_interval_s": 1}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        yield broker
        assert "Traceback" not in broker.stderr, broker.stderr


def connect(broker: BrokerProcess) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(broker.url))


def read_all(broker: BrokerProcess, count: int = -1, **arguments: object) -> list[Delivery]:
    """Return (offset, body) of all messages; with `count`, fail if more or fewer than `count` arrive."""
    connection = connect(broker)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=1000)
    if count < 0:
        count = channel.queue_declare("s", passive=True).method.message_count
    found: list[Delivery] = []
    until = time.monotonic() + 30
    table = {"x-stream-offset": "first"} | {name.replace("_", "-"): value for name, value in arguments.items()}
    for method, properties, body in channel.consume("s", arguments=table, inactivity_timeout=0.5):
        if method is None:
            if len(found) >= count or time.monotonic() > until:
                break
            continue
        found.append((properties.headers["x-stream-offset"], body))
        channel.basic_ack(method.delivery_tag)
    connection.close()
    assert len(found) == count
    return found


class Publisher(threading.Thread):
    """Publishes numbers until the broker ends. confirmed: how many are confirmed."""

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__()
        self.connection = connect(broker)
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self.confirmed = 0
        self.enough_confirmed = threading.Event()

    def run(self) -> None:
        try:
            while True:
                mode = pika.BasicProperties(delivery_mode=1 + self.confirmed % 2)
                self.channel.basic_publish("", "s", b"%d" % self.confirmed, mode)
                self.confirmed += 1
                if self.confirmed >= 200:
                    self.enough_confirmed.set()
        except pika.exceptions.AMQPError:
            self.enough_confirmed.set()


class Follower(threading.Thread):
    """Consumes without acks until the broker ends."""

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__()
        self.connection = connect(broker)
        self.channel = self.connection.channel()
        self.channel.basic_qos(prefetch_count=60_000)
        self.channel.basic_consume("s", self.on_message, arguments={"x-stream-offset": "first"})
        self.found: list[Delivery] = []

    def on_message(self, _channel: object, _method: object, properties: pika.BasicProperties, body: bytes) -> None:
        self.found.append((properties.headers["x-stream-offset"], body))

    def run(self) -> None:
        try:
            self.channel.start_consuming()
        except pika.exceptions.AMQPError:
            return


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_confirmed_and_delivered_messages_survive(broker: BrokerProcess, how: str) -> None:
    with connect(broker) as connection:
        connection.channel().queue_declare("s", durable=True, arguments=STREAM)
    publisher, follower = Publisher(broker), Follower(broker)
    publisher.start()
    follower.start()
    assert publisher.enough_confirmed.wait(60)
    getattr(broker, how)()
    publisher.join(30)
    follower.join(30)
    broker.start()
    found = read_all(broker)
    assert [offset for offset, _ in found] == list(range(len(found)))
    assert [int(body) for _, body in found] == list(range(len(found)))
    assert publisher.confirmed <= len(found) <= publisher.confirmed + 1
    assert follower.found == found[: len(follower.found)]
    assert follower.found


def test_named_consumer_continues_after_kill(broker: BrokerProcess) -> None:
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare("s", durable=True, arguments=STREAM)
    channel.confirm_delivery()
    for number in range(10):
        channel.basic_publish("", "s", b"%d" % number)
    read_all(broker, 10, x_stream_consumer_name="me")  # the end of the consumer writes the offset
    for number in range(10, 15):
        channel.basic_publish("", "s", b"%d" % number)
    connection.close()
    ctl = broker.ctl("--formatter", "json", "list_stream_offsets", "s")
    assert '"offset": 10' in ctl.stdout or '"offset":10' in ctl.stdout, ctl
    broker.kill()
    broker.start()
    found = read_all(broker, 5, x_stream_consumer_name="me")
    assert found == [(number, b"%d" % number) for number in range(10, 15)]


def test_policy_removes_old_segments_of_running_stream(broker: BrokerProcess) -> None:
    connection = connect(broker)
    channel = connection.channel()
    small = {"x-stream-max-segment-size-bytes": 65536}
    channel.queue_declare("s", durable=True, arguments=STREAM | small)
    channel.confirm_delivery()
    body = b"." * 30_000
    for _ in range(60):
        channel.basic_publish("", "s", body)
    result = broker.ctl("set_policy", "short", "^s$", '{"max-length-bytes": 200000}', "--apply-to", "streams")
    assert result.returncode == 0, result.stderr

    def message_count() -> int:
        return int(channel.queue_declare("s", passive=True).method.message_count)

    for _ in range(200):
        if message_count() < 20:
            break
        connection.sleep(0.2)
    assert 3 <= message_count() < 20
    found = read_all(broker)
    assert [offset for offset, _ in found] == list(range(60 - message_count(), 60))
    connection.close()


def test_consumer_gets_more_than_one_turn_writes(broker: BrokerProcess) -> None:
    """Delivery stops when the output buffer is full and continues without an ack or a new message."""
    bodies = [b"%04d" % number * 3000 for number in range(600)]
    connection = connect(broker)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("s", durable=True, arguments=STREAM)
    for body in bodies:
        channel.basic_publish("", "s", body)
    channel.basic_qos(prefetch_count=1000)
    found: list[bytes] = []
    channel.basic_consume(
        "s", lambda _channel, _method, _properties, body: found.append(body), arguments={"x-stream-offset": "first"}
    )
    until = time.monotonic() + 60
    while len(found) < len(bodies) and time.monotonic() < until:
        connection.process_data_events(0.1)
    assert found == bodies
    connection.close()
