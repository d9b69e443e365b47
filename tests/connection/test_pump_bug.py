"""A pump that raises: told once, tried again, and nobody else is hurt by it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pamqp.commands as spec
import pytest
from memory_broker import MemoryBroker
from served import Served, publishes

from amqpd.broker.queue.log_opener import FIRST_S, RETRY_S_MAX


@pytest.fixture
def house() -> Iterator[MemoryBroker]:
    made = MemoryBroker()
    yield made
    made.end()


class Bug:
    """Raises out of a queue's pump so many times, as one that waits there for a message (a compiled queue takes no
    patch)."""

    def __init__(self, times: int) -> None:
        self.times = times

    def strike(self, queue: Any) -> None:
        queue.when_ready(lambda: self(queue))

    def __call__(self, queue: Any) -> None:
        if self.times:
            self.times -= 1
            self.strike(queue)
            raise ZeroDivisionError("a bug")


def test_one_queues_bug_hurts_no_other(house: MemoryBroker, caplog: pytest.LogCaptureFixture) -> None:
    """The queues behind it in the turn are pumped, logs written, confirms and sockets served; it is tried again, less
    and less often, until it goes well; the traceback is in the log once."""
    retries: list[tuple[float, Any, tuple[Any, ...]]] = []
    house.broker.pump_retries.call_later = lambda delay_s, again, *arguments: retries.append(
        (delay_s, again, arguments)
    )
    client = Served(house)
    client.say(1, spec.Channel.Open(), spec.Confirm.Select())
    client.say(1, spec.Queue.Declare(queue="bad"), spec.Queue.Declare(queue="good", durable=True))
    client.say(1, spec.Basic.Consume(queue="bad", no_ack=True), spec.Basic.Consume(queue="good", no_ack=True))
    client.heard()
    bad, good = house.vhost.queues["bad"], house.vhost.queues["good"]
    bug = Bug(7)
    bug.strike(bad)
    answered: list[str] = []
    bad.when_ready(lambda: answered.append("the next"))
    good.when_ready(lambda: answered.append("good"))
    turn = house.broker.turn
    turn.pump_later(bad)
    turn.pump_later(good)
    client.transport.data_received(publishes("good", [b"one"]))
    assert client.names() == ["Basic.Deliver", "Basic.Ack"]
    assert answered == ["good"]
    client.transport.data_received(publishes("bad", [b"usable"]))
    assert client.names() == ["Basic.Deliver", "Basic.Ack"]
    turn.pump_later(bad)
    house.settle()
    assert answered == ["good", "the next"], "what waited beside the bug was forgotten"
    assert len(retries) == 1, "one retry at a time, whoever else asks for the pump"
    delays = []
    while retries:
        ((delay_s, again, arguments),) = retries
        delays.append(delay_s)
        retries.clear()
        again(*arguments)
    assert delays == [FIRST_S, 2, 4, 8, 16, RETRY_S_MAX]
    assert bug.times == 0
    told = [record for record in caplog.records if record.name == "amqpd.broker.queue.log_opener"]
    assert [record.exc_info is not None for record in told] == [True, False, False, False, False, False]
    assert "queue 'bad' in vhost '/': a bug in amqpd, please report it" in told[0].getMessage()


def test_a_queue_that_is_gone_is_not_tried_again(house: MemoryBroker) -> None:
    retries: list[tuple[Any, tuple[Any, ...]]] = []
    house.broker.pump_retries.call_later = lambda _, again, *arguments: retries.append((again, arguments))
    client = Served(house)
    client.say(1, spec.Channel.Open(), spec.Queue.Declare(queue="bad"))
    client.heard()
    Bug(2).strike(house.vhost.queues["bad"])
    house.broker.turn.pump_later(house.vhost.queues["bad"])
    house.settle()
    house.vhost.queues["bad"].getters = None
    client.say(1, spec.Queue.Delete(queue="bad"))
    assert client.names() == ["Queue.DeleteOk"]
    ((again, arguments),) = retries
    queue = arguments[0]
    queue.when_ready(retries.clear)
    again(*arguments)
    assert len(retries) == 1, "pumped, or armed again"
