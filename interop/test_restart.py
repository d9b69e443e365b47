"""The broker stops cleanly or by SIGKILL and restarts on the same port: what clients notice and what survives.

These tests stop their broker, so they start their own. They are skipped if TEST_INTEROP_URL names a broker.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aio_pika
import kombu
import pika
import pytest
from kombu.mixins import ConsumerMixin

from amqpd.testing import BrokerProcess

pytestmark = pytest.mark.skipif(
    "TEST_INTEROP_URL" in os.environ, reason="ends the broker: not with one that is only lent"
)
PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as broker:
        yield broker
        assert "Traceback" not in broker.stderr, broker.stderr


def restart(broker: BrokerProcess, how: str) -> None:
    if how == "kill":
        broker.kill()
    else:
        broker.stop()
    broker.start()


def wait_for_acks_on_disk(broker: BrokerProcess, count: int) -> None:
    """Wait until so many acks are on disk, so that a kill does not undo them. This takes 50 ms, or longer on a busy
    machine.
    """
    wait(lambda: f"({count} offsets settled)" in broker.ctl("verify_log", str(broker.data_dir)).stdout)


def connect(broker: BrokerProcess) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(broker.url))


HOW = pytest.mark.parametrize("how", ["kill", pytest.param("stop", marks=pytest.mark.slow)])


@HOW
def test_confirmed_messages_and_durable_objects_survive_a_restart(own_broker: BrokerProcess, how: str) -> None:
    connection = connect(own_broker)
    channel = connection.channel()
    channel.exchange_declare("orders", "topic", durable=True)
    channel.exchange_declare("fleeting", "fanout")
    channel.queue_declare("durable", durable=True, arguments={"x-unknown": "kept"})
    channel.queue_declare("transient")
    channel.queue_declare("mine", durable=True, exclusive=True)
    channel.queue_bind("durable", "orders", "eu.#", {"note": 1})
    channel.confirm_delivery()
    bodies = [b"", b"small", bytes(range(256)) * 2000, *(str(n).encode() for n in range(200))]
    for body in bodies:
        channel.basic_publish("orders", "eu.new", body, PERSISTENT, mandatory=True)
    channel.basic_publish("", "durable", b"not persistent", mandatory=True)
    tags = [channel.basic_get("durable")[0].delivery_tag for _ in range(5)]
    for tag in tags[:3]:  # five were delivered before: once the acks are on disk, the deliveries are as well
        channel.basic_ack(tag)
    channel.queue_declare("durable", passive=True)  # the acks have been read
    wait_for_acks_on_disk(own_broker, 3)
    restart(own_broker, how)
    with pytest.raises(pika.exceptions.AMQPError):  # noqa: PT012 - which one fails is not known
        connection.process_data_events(1)
        channel.queue_declare("durable", passive=True)

    with connect(own_broker) as connection:
        channel = connection.channel()
        for kind, name in (("queue", "transient"), ("queue", "mine"), ("exchange", "fleeting")):
            with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
                getattr(connection.channel(), f"{kind}_declare")(name, passive=True)
            assert caught.value.reply_code == 404, name
        got = []
        while (message := channel.basic_get("durable", auto_ack=True))[0] is not None:
            got.append((message[2], message[0].redelivered))
        assert [body for body, _ in got] == bodies[3:]
        assert [redelivered for _, redelivered in got[:2]] == [True, True]  # delivered before, but not acked
        assert not any(redelivered for _, redelivered in got[2:])
        channel.basic_publish("orders", "eu.again", b"the binding is there", PERSISTENT)
        assert channel.basic_get("durable", auto_ack=True)[2] == b"the binding is there"


def test_clean_stop_closes_connections_with_320(own_broker: BrokerProcess) -> None:
    connection = connect(own_broker)
    channel = connection.channel()
    stopping = threading.Thread(target=own_broker.stop)
    stopping.start()
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:  # noqa: PT012 - which one fails is not known
        for _ in range(100):
            connection.process_data_events(0.1)
    stopping.join()
    assert channel.is_closed
    assert caught.value.reply_code == 320
    assert caught.value.reply_text == "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"


@pytest.mark.slow
@HOW
async def test_aio_pika_robust_connection_recovers(own_broker: BrokerProcess, how: str) -> None:
    connection = await aio_pika.connect_robust(f"{own_broker.url}?reconnect_interval=0.1", timeout=30)
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("robust", durable=True)
        got: list[bytes] = []

        async def take(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            async with message.process():
                got.append(message.body)

        await queue.consume(take)
        await channel.default_exchange.publish(aio_pika.Message(b"before"), queue.name)
        await until(lambda: got == [b"before"])
        await asyncio.to_thread(restart, own_broker, how)
        async with asyncio.timeout(60):
            while True:
                try:
                    await channel.default_exchange.publish(aio_pika.Message(b"after"), queue.name, timeout=30)
                    break
                except (TimeoutError, aio_pika.exceptions.AMQPError, ConnectionError, RuntimeError):
                    await asyncio.sleep(0.1)
        await until(lambda: b"after" in got)


async def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - a callback fills it
            await asyncio.sleep(0.01)


@pytest.mark.slow
@HOW
def test_kombu_consumer_mixin_recovers(own_broker: BrokerProcess, how: str) -> None:
    queue = kombu.Queue("mixin", durable=True)
    got: list[Any] = []

    class Worker(ConsumerMixin):  # type: ignore[misc]
        def __init__(self, connection: kombu.Connection) -> None:
            self.connection = connection

        def get_consumers(self, consumer: Any, channel: Any) -> list[Any]:
            return [consumer(queue, callbacks=[self.take])]

        def take(self, body: Any, message: kombu.Message) -> None:
            got.append(body)
            message.ack()

    with kombu.Connection(own_broker.url) as connection, kombu.Connection(own_broker.url) as other:
        worker = Worker(connection)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        policy = {"max_retries": 50, "interval_start": 0.1, "interval_step": 0.1, "interval_max": 0.5}
        try:
            producer = other.Producer()
            producer.publish("before", routing_key="mixin", declare=[queue])
            wait(lambda: got == ["before"])
            wait_for_acks_on_disk(own_broker, 1)
            restart(own_broker, how)
            producer.publish("after", routing_key="mixin", retry=True, retry_policy=policy)
            wait(lambda: got == ["before", "after"])
        finally:
            worker.should_stop = True
            thread.join(30)


def wait(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s"
        time.sleep(0.01)
