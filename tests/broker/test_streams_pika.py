"""Streams through kills, stops and retention with a stock client."""

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
Place = tuple[int, bytes]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {"storage.segment_size_bytes": 1 << 20, "storage.upkeep_interval_s": 1}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        yield broker
        assert "Traceback" not in broker.stderr, broker.stderr


def connect(broker: BrokerProcess) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(broker.url))


def read_all(broker: BrokerProcess, count: int = -1, **arguments: object) -> list[Place]:
    """(offset, body) of all that is there; of so many where arguments say that it is not all, and what more comes."""
    connection = connect(broker)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=1000)
    if count < 0:
        count = channel.queue_declare("s", passive=True).method.message_count
    found: list[Place] = []
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
    """Publishes numbers until the broker is gone. confirmed: how many of them it has answered for."""

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__()
        self.connection = connect(broker)
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self.confirmed = 0
        self.enough = threading.Event()

    def run(self) -> None:
        try:
            while True:
                mode = pika.BasicProperties(delivery_mode=1 + self.confirmed % 2)
                self.channel.basic_publish("", "s", b"%d" % self.confirmed, mode)
                self.confirmed += 1
                if self.confirmed >= 200:
                    self.enough.set()
        except pika.exceptions.AMQPError:
            self.enough.set()


class Follower(threading.Thread):
    """Reads along, without an ack, until the broker is gone."""

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__()
        self.connection = connect(broker)
        self.channel = self.connection.channel()
        self.channel.basic_qos(prefetch_count=60_000)
        self.channel.basic_consume("s", self.take, arguments={"x-stream-offset": "first"})
        self.found: list[Place] = []

    def take(self, _channel: object, _method: object, properties: pika.BasicProperties, body: bytes) -> None:
        self.found.append((properties.headers["x-stream-offset"], body))

    def run(self) -> None:
        try:
            self.channel.start_consuming()
        except pika.exceptions.AMQPError:
            return


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_what_was_confirmed_and_what_was_shown_is_there(broker: BrokerProcess, how: str) -> None:
    with connect(broker) as connection:
        connection.channel().queue_declare("s", durable=True, arguments=STREAM)
    publisher, follower = Publisher(broker), Follower(broker)
    publisher.start()
    follower.start()
    assert publisher.enough.wait(60)
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


def test_a_named_consumer_goes_on_after_a_kill(broker: BrokerProcess) -> None:
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare("s", durable=True, arguments=STREAM)
    channel.confirm_delivery()
    for number in range(10):
        channel.basic_publish("", "s", b"%d" % number)
    read_all(broker, 10, x_stream_consumer_name="me")  # its end writes the offset
    for number in range(10, 15):
        channel.basic_publish("", "s", b"%d" % number)
    connection.close()
    ctl = broker.ctl("--formatter", "json", "list_stream_offsets", "s")
    assert '"offset": 10' in ctl.stdout or '"offset":10' in ctl.stdout, ctl
    broker.kill()
    broker.start()
    found = read_all(broker, 5, x_stream_consumer_name="me")
    assert found == [(number, b"%d" % number) for number in range(10, 15)]


def test_a_policy_lets_old_files_go_while_it_runs(broker: BrokerProcess) -> None:
    connection = connect(broker)
    channel = connection.channel()
    small = {"x-stream-max-segment-size-bytes": 65536}
    channel.queue_declare("s", durable=True, arguments=STREAM | small)
    channel.confirm_delivery()
    body = b"." * 30_000
    for _ in range(60):
        channel.basic_publish("", "s", body)
    done = broker.ctl("set_policy", "short", "^s$", '{"max-length-bytes": 200000}', "--apply-to", "streams")
    assert done.returncode == 0, done.stderr

    def left() -> int:
        return int(channel.queue_declare("s", passive=True).method.message_count)

    for _ in range(200):
        if left() < 20:
            break
        connection.sleep(0.2)
    assert 3 <= left() < 20
    found = read_all(broker)
    assert [offset for offset, _ in found] == list(range(60 - left(), 60))
    connection.close()


def test_one_that_reads_more_than_a_turn_writes(broker: BrokerProcess) -> None:
    """Its share of a turn ends where the output is full, and leaves at once: it goes on with no ack and no message."""
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
