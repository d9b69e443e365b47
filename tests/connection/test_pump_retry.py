"""An exception in a queue's pump: logged once with its traceback, retried, and harmless to other queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pamqp.commands as spec
import pytest
from memory_broker import MemoryBroker
from served import Served, publishes

from amqpd.broker.queue.log_opener import FIRST_S, RETRY_S_MAX


@pytest.fixture
def memory_broker() -> Iterator[MemoryBroker]:
    broker = MemoryBroker()
    yield broker
    broker.end()


class RaisingWaiter:
    """A waiter for a message that raises out of the queue's pump `times` times (a compiled queue cannot be patched)."""

    def __init__(self, times: int) -> None:
        self.times = times

    def arm(self, queue: Any) -> None:
        queue.when_ready(lambda: self(queue))

    def __call__(self, queue: Any) -> None:
        if self.times:
            self.times -= 1
            self.arm(queue)
            raise ZeroDivisionError("a bug")


def test_raising_pump_is_retried_and_harms_no_other_queue(
    memory_broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Other queues are pumped, logs written, confirms and sockets served. The pump is retried at growing intervals
    until it succeeds. The traceback is logged once.
    """
    retries: list[tuple[float, Any, tuple[Any, ...]]] = []
    memory_broker.broker.pump_retries.call_later = lambda delay_s, retry, *arguments: retries.append(
        (delay_s, retry, arguments)
    )
    client = Served(memory_broker)
    client.send(1, spec.Channel.Open(), spec.Confirm.Select())
    client.send(1, spec.Queue.Declare(queue="bad"), spec.Queue.Declare(queue="good", durable=True))
    client.send(1, spec.Basic.Consume(queue="bad", no_ack=True), spec.Basic.Consume(queue="good", no_ack=True))
    client.received()
    bad, good = memory_broker.vhost.queues["bad"], memory_broker.vhost.queues["good"]
    bug = RaisingWaiter(7)
    bug.arm(bad)
    answered: list[str] = []
    bad.when_ready(lambda: answered.append("the next"))
    good.when_ready(lambda: answered.append("good"))
    turn = memory_broker.broker.turn
    turn.pump_later(bad)
    turn.pump_later(good)
    client.transport.data_received(publishes("good", [b"one"]))
    assert client.received_names() == ["Basic.Deliver", "Basic.Ack"]
    assert answered == ["good"]
    client.transport.data_received(publishes("bad", [b"usable"]))
    assert client.received_names() == ["Basic.Deliver", "Basic.Ack"]
    turn.pump_later(bad)
    memory_broker.settle()
    assert answered == ["good", "the next"], "the other waiter was lost"
    assert len(retries) == 1, "more than one retry is pending"
    delays = []
    while retries:
        ((delay_s, retry, arguments),) = retries
        delays.append(delay_s)
        retries.clear()
        retry(*arguments)
    assert delays == [FIRST_S, 2, 4, 8, 16, RETRY_S_MAX]
    assert bug.times == 0
    records = [record for record in caplog.records if record.name == "amqpd.broker.queue.log_opener"]
    assert [record.exc_info is not None for record in records] == [True, False, False, False, False, False]
    assert "queue 'bad' in vhost '/': a bug in amqpd, please report it" in records[0].getMessage()


def test_pump_of_deleted_queue_is_not_retried(memory_broker: MemoryBroker) -> None:
    retries: list[tuple[Any, tuple[Any, ...]]] = []
    memory_broker.broker.pump_retries.call_later = lambda _, retry, *arguments: retries.append((retry, arguments))
    client = Served(memory_broker)
    client.send(1, spec.Channel.Open(), spec.Queue.Declare(queue="bad"))
    client.received()
    RaisingWaiter(2).arm(memory_broker.vhost.queues["bad"])
    memory_broker.broker.turn.pump_later(memory_broker.vhost.queues["bad"])
    memory_broker.settle()
    memory_broker.vhost.queues["bad"].getters.clear()
    client.send(1, spec.Queue.Delete(queue="bad"))
    assert client.received_names() == ["Queue.DeleteOk"]
    ((retry, arguments),) = retries
    queue = arguments[0]
    queue.when_ready(retries.clear)
    retry(*arguments)
    assert len(retries) == 1, "pumped or retried"
