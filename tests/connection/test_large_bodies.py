"""Bodies that nobody joins: through peers of all frame sizes, to the log, to a dead letter, and over a kill -9."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from amqpd.protocol.frame import LARGE_BODY_BYTES
from amqpd.testing import BrokerProcess

SIZES = [LARGE_BODY_BYTES, LARGE_BODY_BYTES + 1, 3 * LARGE_BODY_BYTES + 77]
BODIES = [os.urandom(size) for size in SIZES]
PERSISTENT = pika.BasicProperties(delivery_mode=2, content_type="application/octet-stream")


class House:
    """A broker, and clients that are closed before it goes."""

    def __init__(self, directory: Path) -> None:
        self.broker = BrokerProcess(directory)
        self.broker.start()
        self._connections: list[pika.BlockingConnection] = []

    def channel(self, frame_max: int = 131072) -> BlockingChannel:
        parameters = pika.URLParameters(self.broker.url)
        parameters.frame_max = frame_max
        connection = pika.BlockingConnection(parameters)
        self._connections.append(connection)
        return connection.channel()

    def close_all(self) -> None:
        for connection in self._connections:
            connection.close()
        self._connections.clear()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path / "data")
    try:
        yield house
        house.close_all()
    finally:
        house.broker.kill()
    assert "Traceback" not in house.broker.stderr, house.broker.stderr


def fetch(opened: BlockingChannel, queue: str) -> bytes:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        method, _, body = opened.basic_get(queue, auto_ack=True)
        if method is not None:
            assert body is not None
            return body
        time.sleep(0.01)
    raise AssertionError("no message came")


def test_through_frames_of_every_size(house: House) -> None:
    """Published in small frames and in large ones, fetched and consumed in others; unacked ones come back."""
    small, large = house.channel(4096), house.channel()
    large.queue_declare("q", durable=True)
    for body in BODIES:
        for publisher in (small, large):
            publisher.basic_publish("", "q", body, PERSISTENT)
            assert fetch(large, "q") == body
            publisher.basic_publish("", "q", body, PERSISTENT)
            publisher.basic_publish("", "q", body, PERSISTENT)
            assert fetch(small, "q") == body
            for method, _, seen in small.consume("q", inactivity_timeout=30):
                assert seen == body
                small.basic_nack(method.delivery_tag, requeue=True)  # the log gives it back
                break
            small.cancel()
            assert fetch(large, "q") == body


def test_returned_and_dead_lettered(house: House) -> None:
    opened = house.channel(8192)
    opened.queue_declare("dead", durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    opened.queue_declare("q", durable=True, arguments=arguments)
    opened.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError) as raised:
        opened.basic_publish("", "nowhere", BODIES[2], PERSISTENT, mandatory=True)
    assert raised.value.messages[0].body == BODIES[2]
    opened.basic_publish("", "q", BODIES[2], PERSISTENT)
    method, _, body = opened.basic_get("q")
    assert body == BODIES[2]
    opened.basic_reject(method.delivery_tag, requeue=False)
    assert fetch(opened, "dead") == BODIES[2]


@pytest.mark.slow
def test_in_a_transaction_and_over_a_kill(house: House) -> None:
    opened = house.channel()
    opened.queue_declare("q", durable=True)
    opened.tx_select()
    for body in BODIES:
        opened.basic_publish("", "q", body, PERSISTENT)
    opened.basic_publish("", "q", b"small", PERSISTENT)
    opened.tx_commit()
    house.close_all()
    house.broker.kill()
    house.broker.start()
    again = house.channel()
    assert [fetch(again, "q") for _ in range(4)] == [*BODIES, b"small"]


def test_behind_a_declaration_that_waits(house: House) -> None:
    """The channel is busy with the disk when the body is complete: it keeps its place among the commands."""
    opened = house.channel()
    for number in range(5):
        name = f"q{number}"
        opened._impl.queue_declare(name, durable=True)  # its answer is not waited for
        opened._impl.basic_publish("", name, BODIES[2], PERSISTENT)
    assert [fetch(opened, f"q{number}") for number in range(5)] == [BODIES[2]] * 5
