"""Filters on classic and quorum queues over AMQP with pika, also after kill -9."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from amqpd.testing import BrokerProcess

RED = {"x-filter": "colour = 'red'"}


def publish(channel: BlockingChannel, queue: str, number: int, colour: str, mode: int = 2) -> None:
    properties = pika.BasicProperties(headers={"colour": colour, "n": number}, delivery_mode=mode)
    channel.basic_publish("", queue, b"%d" % number, properties)


class RecordingConsumer:
    """A consumer that records deliveries. With `ack` it acks each one."""

    def __init__(self, channel: BlockingChannel, queue: str, ack: bool, **arguments: Any) -> None:
        self.got: list[int] = []
        self.redelivered: list[bool] = []
        self.tags: list[int] = []
        self.channel = channel
        self.ack = ack
        self.tag = channel.basic_consume(queue, self.on_message, arguments=arguments["arguments"])

    def on_message(self, _channel: Any, method: pika.spec.Basic.Deliver, _properties: Any, body: bytes) -> None:
        self.got.append(int(body))
        self.redelivered.append(method.redelivered)
        self.tags.append(method.delivery_tag)
        if self.ack:
            self.channel.basic_ack(method.delivery_tag)

    def wait(self, count: int, seconds: float = 60) -> list[int]:
        """Wait for `count` messages, then 0.2 s for excess ones. Return all received."""
        deadline = time.monotonic() + seconds
        while len(self.got) < count and time.monotonic() < deadline:
            self.channel.connection.process_data_events(0.05)
        self.channel.connection.process_data_events(0.2)
        return self.got


@pytest.fixture
def connection(amqpd_url: str) -> Any:
    with pika.BlockingConnection(pika.URLParameters(amqpd_url)) as connection:
        yield connection


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_consumers_get_matches_and_others_wait(connection: pika.BlockingConnection, kind: str) -> None:
    channel, name = connection.channel(), f"filtered-{kind}"
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind})
    red = RecordingConsumer(channel, name, True, arguments=RED)
    odd = RecordingConsumer(channel, name, True, arguments={"x-filter": "n IN (1, 3, 5, 7) AND colour <> 'red'"})
    for number in range(10):
        publish(channel, name, number, ["red", "blue", "green"][number % 3])
    assert red.wait(4) == [0, 3, 6, 9]
    assert odd.wait(3) == [1, 5, 7]
    waiting = channel.queue_declare(name, passive=True).method.message_count
    assert waiting == 3
    assert [int(channel.basic_get(name, True)[2]) for _ in range(3)] == [2, 4, 8]
    connection.channel().queue_delete(name)


def test_invalid_or_excess_filters_close_channel(connection: pika.BlockingConnection) -> None:
    def refused(queue: str, arguments: dict[str, Any]) -> str:
        channel = connection.channel()
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
            channel.basic_consume(queue, lambda *_: None, arguments=arguments)
        assert closed.value.reply_code == 406
        return str(closed.value.reply_text)

    channel = connection.channel()
    name = channel.queue_declare("", exclusive=True).method.queue
    text = refused(name, {"x-filter": "colour ="})
    assert f"invalid arg 'x-filter' for queue '{name}' in vhost '/': line 1, column 9" in text
    assert "unacceptable_type,signedint" in refused(name, {"x-filter": 1})
    for number in range(8):
        channel.basic_consume(name, lambda *_: None, arguments={"x-filter": f"n = {number}"})
    assert "serves 8 different x-filter values already" in refused(name, {"x-filter": "n = 8"})
    channel.basic_consume(name, lambda *_: None, arguments={"x-filter": "n = 7"})
    levels = channel.queue_declare("", exclusive=True, arguments={"x-max-priority": 3}).method.queue
    assert "has priorities: its consumers cannot have an x-filter" in refused(levels, RED)


@pytest.mark.slow
def test_matches_are_delivered_after_kill(tmp_path: Path, until_settled: Any) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("q", durable=True)
            for number in range(40):
                publish(channel, "q", number, ["blue", "red"][number % 4 == 3])
            channel.basic_qos(prefetch_count=6)
            red = RecordingConsumer(channel, "q", False, arguments=RED)
            assert red.wait(6) == [3, 7, 11, 15, 19, 23]
            for tag in red.tags[:3]:
                channel.basic_ack(tag)
            red.wait(9)
            until_settled(broker, "q", 37)
        broker.kill()
        broker.start()
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            red = RecordingConsumer(channel, "q", True, arguments=RED)
            assert red.wait(7) == [15, 19, 23, 27, 31, 35, 39]
            assert red.redelivered == [True] * 6 + [False]
            unfiltered = RecordingConsumer(channel, "q", True, arguments={})
            assert unfiltered.wait(30) == [number for number in range(40) if number % 4 != 3]
            assert not any(unfiltered.redelivered)
            connection.process_data_events(0.2)
            assert channel.queue_declare("q", passive=True).method.message_count == 0


@pytest.mark.slow
def test_match_at_end_of_long_backlog_is_delivered(tmp_path: Path) -> None:
    """The only match, at the end of 30,000 messages, is delivered after a restart. Another queue is served meanwhile.

    tests/limits/test_held.py checks how long the loop is held.
    """
    with BrokerProcess(tmp_path / "data") as broker:
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            channel.queue_declare("q", durable=True)
            channel.tx_select()
            for number in range(30_000):
                publish(channel, "q", number, "blue")
            publish(channel, "q", 30_000, "red")
            channel.tx_commit()
        broker.kill()
        broker.start()
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            red = RecordingConsumer(connection.channel(), "q", True, arguments=RED)
            other = connection.channel()
            other.queue_declare("other")
            while not red.got:
                other.basic_publish("", "other", b"now")
                while other.basic_get("other", True)[0] is None:
                    pass
                connection.process_data_events(0)
            assert red.wait(1) == [30_000]
