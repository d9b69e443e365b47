"""The metadata cannot be written (a full disk), then it can: what was answered ok is what a restart finds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from amqpd.testing import BrokerProcess

KEPT = pika.BasicProperties(delivery_mode=2)


class Failing:
    """A broker with a switch."""

    def __init__(self, directory: Path) -> None:
        self.switch = directory / "metadata-fails"
        script = str(Path(__file__).with_name("failing_metadata.py"))
        self.process = BrokerProcess(
            directory / "data", command=[sys.executable, "-P", script, str(self.switch)]
        )

    def fails(self, step: Callable[[BlockingChannel], object]) -> None:
        """`step` while nothing can be written; it is answered with 506."""
        self.switch.touch()
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            self.does(step)
        self.switch.unlink()
        assert closed.value.reply_code == 506

    def does(self, step: Callable[[BlockingChannel], object]) -> None:
        with pika.BlockingConnection(pika.URLParameters(self.process.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            step(channel)

    def restart(self) -> None:
        self.process.stop()
        self.process.start()

    def bodies(self, queue: str) -> list[bytes]:
        found = []
        with pika.BlockingConnection(pika.URLParameters(self.process.url)) as connection:
            channel = connection.channel()
            while (got := channel.basic_get(queue, auto_ack=True))[2] is not None:
                found.append(got[2])
        return found


@pytest.fixture
def failing(tmp_path: Path) -> Iterator[Failing]:
    house = Failing(tmp_path)
    with house.process:
        yield house


def test_what_could_not_be_declared_is_declared_anew_and_lasts(failing: Failing) -> None:
    """Queue, exchange and binding: refused, declared again, published to, and there after a clean restart."""
    failing.fails(lambda channel: channel.queue_declare("q", durable=True))
    failing.does(lambda channel: channel.queue_declare("q", durable=True))
    failing.fails(lambda channel: channel.exchange_declare("x", "fanout", durable=True))
    failing.does(lambda channel: channel.exchange_declare("x", "fanout", durable=True))
    failing.fails(lambda channel: channel.queue_bind("q", "x", "k"))
    failing.does(lambda channel: channel.queue_bind("q", "x", "k"))
    failing.does(lambda channel: channel.basic_publish("", "q", b"direct", KEPT, mandatory=True))
    failing.does(lambda channel: channel.basic_publish("x", "k", b"through x", KEPT, mandatory=True))
    failing.restart()
    failing.does(lambda channel: channel.basic_publish("x", "k", b"afterwards", KEPT, mandatory=True))
    assert failing.bodies("q") == [b"direct", b"through x", b"afterwards"]


def test_what_could_not_be_deleted_does_not_come_back_once_it_can(failing: Failing) -> None:
    """The deletion is done when the disk takes it, without anybody asking again."""
    failing.does(lambda channel: channel.queue_declare("q", durable=True))
    failing.does(lambda channel: channel.basic_publish("", "q", b"old", KEPT))
    failing.fails(lambda channel: channel.queue_delete("q"))
    failing.does(lambda channel: channel.queue_declare("q", durable=True))
    failing.does(lambda channel: channel.basic_publish("", "q", b"new", KEPT))
    failing.restart()
    assert failing.bodies("q") == [b"new"]
