"""Message groups over the wire with pika: cancelled consumers, timeouts, refusals, kill -9."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from amqpd.testing import BrokerProcess

BY_CUSTOMER = {"x-group-by": "header:customer"}


def publish(channel: BlockingChannel, queue: str, number: int, customer: object) -> None:
    properties = pika.BasicProperties(headers={"customer": customer}, delivery_mode=2)
    channel.basic_publish("", queue, b"%d" % number, properties)


class Worker:
    """A consumer on its own channel. It acks when `ack` is called."""

    def __init__(self, connection: pika.BlockingConnection, queue: str, prefetch: int, **arguments: Any) -> None:
        self.channel = connection.channel()
        self.channel.basic_qos(prefetch_count=prefetch)
        self.got: list[int] = []
        self.redelivered: list[bool] = []
        self.tags: list[int] = []
        self.tag = self.channel.basic_consume(queue, self.on_message, arguments=arguments)

    def on_message(self, _channel: Any, method: pika.spec.Basic.Deliver, _properties: Any, body: bytes) -> None:
        self.got.append(int(body))
        self.redelivered.append(method.redelivered)
        self.tags.append(method.delivery_tag)

    def wait(self, count: int, seconds: float = 30) -> list[int]:
        """Wait for `count` messages, then 0.2 s for unexpected ones. Return the numbers received."""
        until = time.monotonic() + seconds
        while len(self.got) < count and time.monotonic() < until:
            self.channel.connection.process_data_events(0.05)
        self.channel.connection.process_data_events(0.2)
        return self.got

    def ack(self) -> None:
        self.channel.basic_ack(self.tags.pop(0))


@pytest.fixture
def connection(amqpd_url: str) -> Any:
    with pika.BlockingConnection(pika.URLParameters(amqpd_url)) as connection:
        yield connection


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.slow
def test_customers_are_served_in_parallel_each_in_order(
    connection: pika.BlockingConnection, amqpd_broker: BrokerProcess, kind: str
) -> None:
    name = f"orders-{kind}"
    channel = connection.channel()
    channel.queue_declare(name, durable=True, arguments={**BY_CUSTOMER, "x-queue-type": kind})
    one, two = Worker(connection, name, 1), Worker(connection, name, 2)
    for number, customer in enumerate(["anna", "anna", 42, "anna", "42", "cleo"]):
        publish(channel, name, number, customer)
    assert (one.wait(1), two.wait(2)) == ([0], [2, 4])
    columns = ("name", "group_by", "groups_locked", "groups_waiting")
    queues = json.loads(amqpd_broker.ctl("list_queues", *columns, "--formatter", "json").stdout)
    assert {"name": name, "group_by": "header:customer", "groups_locked": 2, "groups_waiting": 1} in queues
    output = amqpd_broker.ctl("list_consumers", "consumer_tag", "groups_held", "--formatter", "json").stdout
    assert {"consumer_tag": one.tag, "groups_held": 1} in json.loads(output)
    two.ack()
    assert two.wait(3) == [2, 4, 5]
    one.ack()
    assert one.wait(2) == [0, 1]
    two.channel.basic_cancel(two.tag)
    publish(channel, name, 6, "cleo")
    one.ack()
    assert one.wait(3) == [0, 1, 3]
    one.ack()
    assert one.wait(3) == [0, 1, 3], "cleo's first message is still unacked on the other channel"
    two.channel.close()
    assert one.wait(4) == [0, 1, 3, 4], "the closed channel's messages were not requeued"
    for count in (5, 6):
        one.ack()
        one.wait(count)
    assert one.got == [0, 1, 3, 4, 5, 6]
    assert one.redelivered == [False, False, False, True, True, False]
    connection.channel().queue_delete(name)


def test_consumer_timeout_moves_group_to_another_consumer(connection: pika.BlockingConnection) -> None:
    channel = connection.channel()
    name = channel.queue_declare("", exclusive=True, arguments={"x-group-by": "routing_key"}).method.queue
    slow = Worker(connection, name, 1, **{"x-consumer-timeout": 1500})
    channel.basic_publish("", name, b"1")
    channel.basic_publish("", name, b"2")
    assert slow.wait(1) == [1]
    other = Worker(connection, name, 5)
    assert other.wait(2) == [1, 2]
    assert other.redelivered == [True, False]


def test_invalid_arguments_and_consumers_are_refused(connection: pika.BlockingConnection) -> None:
    def refused(call: Any) -> str:
        channel = connection.channel()
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
            call(channel)
        assert closed.value.reply_code == 406
        return str(closed.value.reply_text)

    def declare(arguments: dict[str, Any]) -> str:
        return refused(lambda channel: channel.queue_declare("refused", arguments=arguments))

    where = "PRECONDITION_FAILED - invalid arg 'x-group-by' for queue 'refused' in vhost '/'"
    assert declare({"x-group-by": "customer"}) == where + ": \"expected 'routing_key' or 'header:NAME'\""
    assert declare({"x-group-by": True}) == where + ": {unacceptable_type,bool}"
    assert (
        declare({"x-group-by": "routing_key", "x-max-priority": 3})
        == where + ': "cannot be combined with x-max-priority"'
    )
    name = connection.channel().queue_declare("", exclusive=True, arguments=BY_CUSTOMER).method.queue
    text = refused(lambda channel: channel.basic_consume(name, lambda *_: None, auto_ack=True))
    assert text == f"PRECONDITION_FAILED - queue '{name}' in vhost '/' has groups: its consumers must acknowledge"
    wanted = {"x-filter": "a = 1"}
    text = refused(lambda channel: channel.basic_consume(name, lambda *_: None, arguments=wanted))
    assert text.endswith("has groups: its consumers cannot have an x-filter")
    text = refused(lambda channel: channel.queue_declare(name, exclusive=True, arguments={"x-group-by": "routing_key"}))
    assert "inequivalent arg 'x-group-by'" in text


@pytest.mark.slow
def test_groups_survive_kill_in_order(tmp_path: Path, until_settled: Any) -> None:
    """After a kill, unacked messages come first, marked redelivered, and each customer's orders stay in order."""
    with BrokerProcess(tmp_path / "data") as broker:
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("q", durable=True, arguments=BY_CUSTOMER)
            for number in range(60):
                publish(channel, "q", number, f"c{number % 5}")
            workers = [Worker(connection, "q", 2) for _ in range(3)]
            for worker in workers:
                worker.wait(2)
            for worker in workers:
                worker.ack()
            for worker in workers:
                worker.wait(3)
            until_settled(broker, "q", 57)
            unacked = sorted(number for worker in workers for number in worker.got[1:])
            acked = {worker.got[0] for worker in workers}
        broker.kill()
        broker.start()
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            workers = [Worker(connection, "q", 1) for _ in range(4)]
            orders: dict[int, list[int]] = defaultdict(list)
            redelivered: set[int] = set()
            until = time.monotonic() + 60
            while sum(map(len, orders.values())) < 60 - len(acked) and time.monotonic() < until:
                connection.process_data_events(0.02)
                busy_customers = [worker.got[-1] % 5 for worker in workers if worker.tags]
                assert len(busy_customers) == len(set(busy_customers)), "one customer with two workers"
                for worker in workers:
                    if worker.tags:
                        orders[worker.got[-1] % 5].append(worker.got[-1])
                        if worker.redelivered[-1]:
                            redelivered.add(worker.got[-1])
                        worker.ack()
            assert {number for each in orders.values() for number in each} == set(range(60)) - acked
            assert all(each == sorted(each) for each in orders.values())
            assert set(unacked) <= redelivered
