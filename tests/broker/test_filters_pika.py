"""Filters on work queues as a stock client meets them, over the wire and over a kill -9."""

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


class Collector:
    """A consumer that keeps what it gets and acks when it is told to."""

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
        """So many, and no more within a moment."""
        until = time.monotonic() + seconds
        while len(self.got) < count and time.monotonic() < until:
            self.channel.connection.process_data_events(0.05)
        self.channel.connection.process_data_events(0.2)
        return self.got


@pytest.fixture
def connection(amqpd_url: str) -> Any:
    with pika.BlockingConnection(pika.URLParameters(amqpd_url)) as connection:
        yield connection


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_each_gets_what_it_wants(connection: pika.BlockingConnection, kind: str) -> None:
    channel, name = connection.channel(), f"filtered-{kind}"
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind})
    red = Collector(channel, name, True, arguments=RED)
    odd = Collector(channel, name, True, arguments={"x-filter": "n IN (1, 3, 5, 7) AND colour <> 'red'"})
    for number in range(10):
        publish(channel, name, number, ["red", "blue", "green"][number % 3])
    assert red.wait(4) == [0, 3, 6, 9]
    assert odd.wait(3) == [1, 5, 7]
    waiting = channel.queue_declare(name, passive=True).method.message_count
    assert waiting == 3
    assert [int(channel.basic_get(name, True)[2]) for _ in range(3)] == [2, 4, 8]
    connection.channel().queue_delete(name)


def test_refusals(connection: pika.BlockingConnection) -> None:
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
def test_over_a_kill(tmp_path: Path, until_settled: Any) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("q", durable=True)
            for number in range(40):
                publish(channel, "q", number, ["blue", "red"][number % 4 == 3])
            channel.basic_qos(prefetch_count=6)
            red = Collector(channel, "q", False, arguments=RED)
            assert red.wait(6) == [3, 7, 11, 15, 19, 23]
            for tag in red.tags[:3]:
                channel.basic_ack(tag)
            red.wait(9)
            until_settled(broker, "q", 37)
        broker.kill()
        broker.start()
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            red = Collector(channel, "q", True, arguments=RED)
            assert red.wait(7) == [15, 19, 23, 27, 31, 35, 39]
            assert red.redelivered == [True] * 6 + [False]
            anything = Collector(channel, "q", True, arguments={})
            assert anything.wait(30) == [number for number in range(40) if number % 4 != 3]
            assert not any(anything.redelivered)
            connection.process_data_events(0.2)
            assert channel.queue_declare("q", passive=True).method.message_count == 0


@pytest.mark.slow
def test_the_last_of_a_long_backlog(tmp_path: Path) -> None:
    """It comes after a restart, and another queue is served beside it: for how long, tests/limits/test_held.py says."""
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
            red = Collector(connection.channel(), "q", True, arguments=RED)
            other = connection.channel()
            other.queue_declare("other")
            while not red.got:
                other.basic_publish("", "other", b"now")
                while other.basic_get("other", True)[0] is None:
                    pass
                connection.process_data_events(0)
            assert red.wait(1) == [30_000]
