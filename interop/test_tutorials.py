"""RabbitMQ's seven tutorials with pika: the first programs of a newcomer work as they do with RabbitMQ.

Each program of a tutorial is a function with its own connection. Names of the tutorials get a suffix.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

Unique = Callable[[str], str]


@contextmanager
def program(broker: Any) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(broker.pika())
    try:
        yield connection.channel()
    finally:
        if connection.is_open:
            connection.close()


class Receiver(threading.Thread):
    """A consuming program: `body(channel)` declares and subscribes; then the thread serves until the `with`
    block ends.
    """

    def __init__(self, broker: Any, body: Callable[[BlockingChannel], None]) -> None:
        super().__init__(daemon=True)
        self.broker, self.body = broker, body
        self.ready, self.ended = threading.Event(), threading.Event()

    def run(self) -> None:
        with program(self.broker) as channel:
            self.body(channel)
            self.ready.set()
            while not self.ended.is_set():
                channel.connection.process_data_events(time_limit=0.02)

    def __enter__(self) -> Self:
        self.start()
        assert self.ready.wait(60), "the program did not start consuming"
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.join(30)
        assert not self.is_alive()


def test_1_hello_world(broker: Any, unique: Unique, eventually: Callable[..., Any]) -> None:
    hello = unique("hello")
    with program(broker) as channel:
        channel.queue_declare(queue=hello)
        channel.basic_publish(exchange="", routing_key=hello, body="Hello World!")
    got: list[bytes] = []
    with program(broker) as channel:
        channel.queue_declare(queue=hello)

        def callback(ch: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
            got.append(body)
            ch.stop_consuming()

        channel.basic_consume(queue=hello, on_message_callback=callback, auto_ack=True)
        channel.start_consuming()
        channel.queue_delete(hello)
    assert got == [b"Hello World!"]


def test_2_work_queues(broker: Any, unique: Unique, eventually: Callable[..., Any]) -> None:
    """Fair dispatch to two workers. One ends with an unacked task, which the other gets."""
    task_queue = unique("task_queue")
    done: list[tuple[str, bytes, bool]] = []

    def worker(name: str, *, dies: bool) -> Callable[[BlockingChannel], None]:
        def body(channel: BlockingChannel) -> None:
            def callback(ch: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
                assert properties.delivery_mode == pika.DeliveryMode.Persistent.value
                done.append((name, body, method.redelivered))
                if not dies:
                    ch.basic_ack(delivery_tag=method.delivery_tag)

            channel.queue_declare(queue=task_queue, durable=True)
            channel.basic_qos(prefetch_count=1)
            channel.basic_consume(queue=task_queue, on_message_callback=callback)

        return body

    with Receiver(broker, worker("good", dies=False)):
        with Receiver(broker, worker("bad", dies=True)), program(broker) as channel:
            channel.queue_declare(queue=task_queue, durable=True)
            for number in range(10):
                channel.basic_publish(
                    exchange="",
                    routing_key=task_queue,
                    body=f"task {number}",
                    properties=pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent),
                )
            eventually(lambda: len(done) == 10)
        eventually(lambda: len(done) == 11)
    tasks_of_bad_worker = [body for name, body, _ in done if name == "bad"]
    assert len(tasks_of_bad_worker) == 1
    assert done[-1] == ("good", tasks_of_bad_worker[0], True)
    assert sorted(body for name, body, _ in done if name == "good") == [f"task {n}".encode() for n in range(10)]
    with program(broker) as channel:
        assert channel.queue_delete(task_queue).method.message_count == 0


def subscriber(got: list[Any], exchange: str, kind: str, *keys: str) -> Callable[[BlockingChannel], None]:
    """Tutorials 3 to 5: a temporary queue bound to the exchange with these keys."""

    def body(channel: BlockingChannel) -> None:
        channel.exchange_declare(exchange=exchange, exchange_type=kind)
        result = channel.queue_declare(queue="", exclusive=True)
        for key in keys:
            channel.queue_bind(exchange=exchange, queue=result.method.queue, routing_key=key)
        channel.basic_consume(
            queue=result.method.queue,
            on_message_callback=lambda ch, method, properties, body: got.append((method.routing_key, body)),
            auto_ack=True,
        )

    return body


def test_3_publish_subscribe(broker: Any, unique: Unique, eventually: Callable[..., Any]) -> None:
    logs = unique("logs")
    one: list[Any] = []
    two: list[Any] = []
    with program(broker) as channel:
        channel.exchange_declare(exchange=logs, exchange_type="fanout")
        channel.basic_publish(exchange=logs, routing_key="", body="nobody listens yet")
        with (
            Receiver(broker, subscriber(one, logs, "fanout", "")),
            Receiver(broker, subscriber(two, logs, "fanout", "")),
        ):
            channel.basic_publish(exchange=logs, routing_key="", body="info: Hello World!")
            eventually(lambda: one and two)
        channel.exchange_delete(logs)
    assert one == two == [("", b"info: Hello World!")]


def test_4_routing(broker: Any, unique: Unique, eventually: Callable[..., Any]) -> None:
    logs = unique("direct_logs")
    errors: list[Any] = []
    everything: list[Any] = []
    with (
        Receiver(broker, subscriber(errors, logs, "direct", "error")),
        Receiver(broker, subscriber(everything, logs, "direct", "info", "warning", "error")),
        program(broker) as channel,
    ):
        channel.exchange_declare(exchange=logs, exchange_type="direct")
        for severity in ("info", "error", "debug", "warning"):
            channel.basic_publish(exchange=logs, routing_key=severity, body=severity)
        eventually(lambda: len(everything) == 3 and errors)
        channel.exchange_delete(logs)
    assert errors == [("error", b"error")]
    assert everything == [("info", b"info"), ("error", b"error"), ("warning", b"warning")]


def test_5_topics(broker: Any, unique: Unique, eventually: Callable[..., Any]) -> None:
    logs = unique("topic_logs")
    got: dict[str, list[Any]] = {"#": [], "kern.*": [], "*.critical": [], "kern.* *.critical": []}
    sent = ["kern.critical", "cron.info", "kern.info", "cron.critical", "kern", "kern.a.critical"]
    with (
        Receiver(broker, subscriber(got["#"], logs, "topic", "#")),
        Receiver(broker, subscriber(got["kern.*"], logs, "topic", "kern.*")),
        Receiver(broker, subscriber(got["*.critical"], logs, "topic", "*.critical")),
        Receiver(broker, subscriber(got["kern.* *.critical"], logs, "topic", "kern.*", "*.critical")),
        program(broker) as channel,
    ):
        channel.exchange_declare(exchange=logs, exchange_type="topic")
        for key in sent:
            channel.basic_publish(exchange=logs, routing_key=key, body="A critical kernel error")
        eventually(lambda: [len(messages) for messages in got.values()] == [6, 2, 2, 3])
        channel.exchange_delete(logs)
    assert [key for key, _ in got["#"]] == sent
    assert [key for key, _ in got["kern.* *.critical"]] == ["kern.critical", "kern.info", "cron.critical"]


def test_6_rpc(broker: Any, unique: Unique) -> None:
    rpc_queue = unique("rpc_queue")

    def fibonacci(n: int) -> int:
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    def server(channel: BlockingChannel) -> None:
        def on_request(ch: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
            ch.basic_publish(
                exchange="",
                routing_key=properties.reply_to,
                properties=pika.BasicProperties(correlation_id=properties.correlation_id),
                body=str(fibonacci(int(body))),
            )
            ch.basic_ack(delivery_tag=method.delivery_tag)

        channel.queue_declare(queue=rpc_queue)
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume(queue=rpc_queue, on_message_callback=on_request)

    with Receiver(broker, server), program(broker) as channel:
        answers: dict[str, int] = {}
        callback_queue = channel.queue_declare(queue="", exclusive=True).method.queue
        channel.basic_consume(
            queue=callback_queue,
            on_message_callback=lambda _c, _m, properties, body: answers.__setitem__(
                properties.correlation_id, int(body)
            ),
            auto_ack=True,
        )

        def call(n: int) -> int:
            correlation_id = str(uuid.uuid4())
            channel.basic_publish(
                exchange="",
                routing_key=rpc_queue,
                properties=pika.BasicProperties(reply_to=callback_queue, correlation_id=correlation_id),
                body=str(n),
            )
            while correlation_id not in answers:
                channel.connection.process_data_events(time_limit=5)
            return answers[correlation_id]

        assert [call(n) for n in (1, 7, 15)] == [1, 13, 610]
        channel.queue_delete(rpc_queue)


@pytest.mark.parametrize("durable", [False, True], ids=["transient", "durable"])
def test_7_publisher_confirms(broker: Any, unique: Unique, durable: bool) -> None:
    queue = unique("confirms")
    with program(broker) as channel:
        channel.queue_declare(queue, durable=durable)
        channel.confirm_delivery()
        for number in range(100):
            channel.basic_publish("", queue, str(number), pika.BasicProperties(delivery_mode=2), mandatory=True)
        with pytest.raises(pika.exceptions.UnroutableError):
            channel.basic_publish("", unique("nosuch"), b"m", mandatory=True)
        assert channel.queue_purge(queue).method.message_count == 100
        channel.queue_delete(queue)
