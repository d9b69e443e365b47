"""Large bodies kept in parts: through peers of all frame sizes, the log, dead letters and a kill -9."""

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


class BrokerRig:
    """A broker process and its clients, which are closed before it."""

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
def rig(tmp_path: Path) -> Iterator[BrokerRig]:
    rig = BrokerRig(tmp_path / "data")
    try:
        yield rig
        rig.close_all()
    finally:
        rig.broker.kill()
    assert "Traceback" not in rig.broker.stderr, rig.broker.stderr


def fetch(channel: BlockingChannel, queue: str) -> bytes:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is not None:
            assert body is not None
            return body
        time.sleep(0.01)
    raise AssertionError("no message within 30 s")


def test_bodies_pass_through_all_frame_sizes(rig: BrokerRig) -> None:
    """Publish in small or large frames, get and consume in others. Unacked messages are requeued."""
    small, large = rig.channel(4096), rig.channel()
    large.queue_declare("q", durable=True)
    for body in BODIES:
        for publisher in (small, large):
            publisher.basic_publish("", "q", body, PERSISTENT)
            assert fetch(large, "q") == body
            publisher.basic_publish("", "q", body, PERSISTENT)
            publisher.basic_publish("", "q", body, PERSISTENT)
            assert fetch(small, "q") == body
            for method, _, delivered_body in small.consume("q", inactivity_timeout=30):
                assert delivered_body == body
                small.basic_nack(method.delivery_tag, requeue=True)  # requeued, so the next read is from the log
                break
            small.cancel()
            assert fetch(large, "q") == body


def test_large_body_is_returned_and_dead_lettered(rig: BrokerRig) -> None:
    channel = rig.channel(8192)
    channel.queue_declare("dead", durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("q", durable=True, arguments=arguments)
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError) as raised:
        channel.basic_publish("", "nowhere", BODIES[2], PERSISTENT, mandatory=True)
    assert raised.value.messages[0].body == BODIES[2]
    channel.basic_publish("", "q", BODIES[2], PERSISTENT)
    method, _, body = channel.basic_get("q")
    assert body == BODIES[2]
    channel.basic_reject(method.delivery_tag, requeue=False)
    assert fetch(channel, "dead") == BODIES[2]


@pytest.mark.slow
def test_large_bodies_of_transaction_survive_kill(rig: BrokerRig) -> None:
    channel = rig.channel()
    channel.queue_declare("q", durable=True)
    channel.tx_select()
    for body in BODIES:
        channel.basic_publish("", "q", body, PERSISTENT)
    channel.basic_publish("", "q", b"small", PERSISTENT)
    channel.tx_commit()
    rig.close_all()
    rig.broker.kill()
    rig.broker.start()
    new_channel = rig.channel()
    assert [fetch(new_channel, "q") for _ in range(4)] == [*BODIES, b"small"]


def test_large_body_behind_pending_declaration(rig: BrokerRig) -> None:
    """The channel waits for the disk when the body is complete. The publish keeps its place among the commands."""
    channel = rig.channel()
    for number in range(5):
        name = f"q{number}"
        channel._impl.queue_declare(name, durable=True)  # do not wait for its reply
        channel._impl.basic_publish("", name, BODIES[2], PERSISTENT)
    assert [fetch(channel, f"q{number}") for number in range(5)] == [BODIES[2]] * 5


def test_a_header_above_frame_max_is_logged_once_for_a_connection(rig: BrokerRig) -> None:
    """The header is sent in one frame, as by RabbitMQ (tests/conformance/test_fields.py)."""
    channel, small = rig.channel(), rig.channel(4096)
    channel.queue_declare("q", durable=True)
    channel.confirm_delivery()
    for body in (b"", b"x", BODIES[1]):
        channel.basic_publish("", "q", body, pika.BasicProperties(headers={"long": "x" * 100_000}, delivery_mode=2))
    for body in (b"", b"x", BODIES[1]):
        _, properties, got = small.basic_get("q", auto_ack=True)
        assert (properties.headers, got) == ({"long": "x" * 100_000}, body)
    text = "bytes in one frame, but the client's frame_max is 4096; it is sent"
    assert rig.broker.says(text)
    assert rig.broker.stderr.count(text) == 1
