"""pika's SelectConnection: callbacks only, and many commands in flight before the first answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import pika
import pytest
from pika.adapters.select_connection import SelectConnection
from pika.channel import Channel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker, ProbableAuthenticationError


class Client:
    """A SelectConnection whose event loop runs until a condition holds, or fails after a timeout."""

    def __init__(self, parameters: pika.ConnectionParameters) -> None:
        self.events: list[Any] = []
        self.connection = SelectConnection(
            parameters,
            on_open_callback=lambda _c: self.events.append("open"),
            on_open_error_callback=lambda _c, error: self.events.append(error),
            on_close_callback=lambda _c, reason: self.events.append(reason),
        )
        self.until(lambda: bool(self.events))
        self.opened = self.events.pop(0)

    def until(self, condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
        deadline = time.monotonic() + timeout_s
        loop = self.connection.ioloop

        def poll() -> None:
            if condition() or time.monotonic() > deadline:
                loop.stop()
            else:
                loop.call_later(0.002, poll)

        poll()
        if not condition():
            loop.start()
        assert condition(), f"not within {timeout_s:g} s; events: {self.events}"

    def ask(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method that takes a callback, and return the method that the callback gets."""
        answers: list[Any] = []
        method(*args, callback=answers.append, **kwargs)
        self.until(lambda: bool(answers))
        return answers[0].method

    def channel(self, number: int | None = None) -> Channel:
        opened: list[Channel] = []
        self.connection.channel(number, on_open_callback=opened.append)
        self.until(lambda: bool(opened))
        return opened[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self.connection.is_open:
            self.connection.close()
            self.until(lambda: self.connection.is_closed)
        self.connection.ioloop.close()  # pika does not close the loop, which has two sockets


@pytest.fixture
def client(broker: Any) -> Iterator[Client]:
    with Client(broker.pika()) as client:
        assert client.opened == "open"
        yield client


@pytest.fixture
def channel(client: Client) -> Channel:
    return client.channel()


@pytest.fixture
def queue(client: Client, channel: Channel) -> str:
    name: str = client.ask(channel.queue_declare, "", exclusive=True).queue
    return name


def test_close_calls_the_close_callback(client: Client) -> None:
    client.connection.close(200, "bye")
    client.until(lambda: bool(client.events))
    assert (client.events[0].reply_code, client.events[0].reply_text) == (200, "bye")


def test_wrong_password_calls_the_error_callback(broker: Any) -> None:
    with Client(broker.pika(credentials=pika.PlainCredentials("nobody", "nothing"))) as client:
        assert isinstance(client.opened, ProbableAuthenticationError)


def test_consumer_gets_all_messages_in_order(client: Client, channel: Channel, queue: str) -> None:
    got: list[bytes] = []

    def on_message(channel: Channel, method: Any, _properties: Any, body: bytes) -> None:
        got.append(body)
        channel.basic_ack(method.delivery_tag)

    client.ask(channel.basic_qos, prefetch_count=10)
    client.ask(channel.basic_consume, queue, on_message)
    for number in range(500):
        channel.basic_publish("", queue, str(number).encode())
    client.until(lambda: len(got) == 500)
    assert got == [str(n).encode() for n in range(500)]
    assert client.ask(channel.queue_declare, queue, passive=True).message_count == 0


def test_commands_are_answered_in_order(client: Client, channel: Channel) -> None:
    """Declarations, publishes and binds are sent together before the first answer, and keep their order."""
    answers: list[str] = []
    count: list[int] = []

    def declared(frame: Any) -> None:
        answers.append(frame.method.NAME)

    queues = [client.ask(channel.queue_declare, "", exclusive=True).queue for _ in range(3)]
    for queue in queues:
        channel.queue_bind(queue, "amq.topic", "orders.#", callback=declared)
        channel.basic_publish("amq.topic", "orders.new", queue.encode())
    channel.queue_purge(queues[0], callback=lambda f: count.append(f.method.message_count))
    client.until(lambda: bool(count))
    assert answers == ["Queue.BindOk"] * 3
    assert count == [3]


def test_nowait_methods_take_effect_in_order_without_answers(
    client: Client, channel: Channel, unique: Callable[[str], str]
) -> None:
    exchange, queue = unique("x"), unique("q")
    channel._send_method(pika.spec.Exchange.Declare(exchange=exchange, type="fanout", auto_delete=True, nowait=True))
    channel._send_method(pika.spec.Queue.Declare(queue=queue, exclusive=True, nowait=True))
    channel._send_method(pika.spec.Queue.Bind(queue=queue, exchange=exchange, nowait=True))
    channel._send_method(pika.spec.Confirm.Select(nowait=True))
    channel.basic_publish(exchange, "", b"m")
    got: list[bytes] = []
    channel.basic_get(queue, callback=lambda _c, _m, _p, body: got.append(body), auto_ack=True)
    client.until(lambda: bool(got))
    channel._send_method(pika.spec.Queue.Unbind(queue=queue, exchange=exchange))
    assert client.ask(channel.queue_delete, queue).message_count == 0
    assert got == [b"m"]


def test_every_publish_is_confirmed(client: Client, channel: Channel, queue: str) -> None:
    acked: set[int] = set()
    refused: set[int] = set()

    def on_confirm(frame: Any) -> None:
        method = frame.method
        target = acked if isinstance(method, pika.spec.Basic.Ack) else refused
        first = 1 if method.multiple else method.delivery_tag
        target.update(range(first, method.delivery_tag + 1))

    selected: list[Any] = []
    channel.confirm_delivery(on_confirm, callback=selected.append)
    client.until(lambda: bool(selected))
    for number in range(300):
        channel.basic_publish("", queue, str(number).encode(), pika.BasicProperties(delivery_mode=2))
    client.until(lambda: len(acked) == 300)
    assert acked == set(range(1, 301))
    assert refused == set()


def test_return_precedes_its_confirm(client: Client, channel: Channel) -> None:
    events: list[str] = []
    channel.add_on_return_callback(lambda _c, method, _p, body: events.append(f"{method.reply_text} {body.decode()}"))
    selected: list[Any] = []
    channel.confirm_delivery(lambda frame: events.append(frame.method.NAME), callback=selected.append)
    client.until(lambda: bool(selected))
    channel.basic_publish("", "nowhere", b"m", mandatory=True)
    client.until(lambda: len(events) == 2)
    assert events == ["NO_ROUTE m", "Basic.Ack"]


def test_deleted_queue_cancels_its_consumer(client: Client, channel: Channel, queue: str) -> None:
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    tag = client.ask(channel.basic_consume, queue, print).consumer_tag
    assert tag
    other = client.channel()
    other.queue_delete(queue)
    client.until(lambda: bool(cancelled))
    assert cancelled == [tag]


def test_client_cancels_its_consumer(client: Client, channel: Channel, queue: str) -> None:
    tag = client.ask(channel.basic_consume, queue, print, consumer_tag="mine").consumer_tag
    assert tag == "mine"
    assert client.ask(channel.basic_cancel, tag).consumer_tag == "mine"
    assert client.ask(channel.queue_declare, queue, passive=True).consumer_count == 0


def test_channel_number_is_usable_again_after_a_channel_error(client: Client, channel: Channel) -> None:
    closed: list[Exception] = []
    channel.add_on_close_callback(lambda _c, reason: closed.append(reason))
    channel.queue_declare("nosuch", passive=True)
    client.until(lambda: bool(closed))
    assert isinstance(closed[0], ChannelClosedByBroker)
    assert (closed[0].reply_code, closed[0].reply_text) == (404, "NOT_FOUND - no queue 'nosuch' in vhost '/'")
    again = client.channel(channel.channel_number)
    assert client.ask(again.queue_declare, "", exclusive=True).message_count == 0


def test_publishes_after_a_channel_error_are_discarded(client: Client, queue: str) -> None:
    failing = client.channel()
    closed: list[Any] = []
    failing.add_on_close_callback(lambda _c, reason: closed.append(reason.reply_code))
    failing.basic_publish("", queue, b"before")
    failing.basic_publish("nosuch", "k", b"fails")
    failing.basic_publish("nosuch", "k", b"fails too")
    client.until(lambda: bool(closed))
    assert closed == [404]
    assert client.ask(client.channel().queue_purge, queue).message_count == 1


def test_unsupported_prefetch_size_closes_the_connection(client: Client, channel: Channel) -> None:
    reasons: list[Exception] = []
    channel.add_on_close_callback(lambda _c, reason: reasons.append(reason))
    channel._send_method(pika.spec.Basic.Qos(prefetch_size=10))
    client.until(lambda: bool(client.events))
    assert isinstance(client.events[0], ConnectionClosedByBroker)
    assert client.events[0].reply_code == 540
    assert len(reasons) == 1


def test_flow_and_update_secret_are_answered(client: Client, channel: Channel) -> None:
    answers: list[Any] = []
    channel.flow(True, callback=answers.append)
    client.until(lambda: bool(answers))
    assert answers == [True]
    client.connection.update_secret("new", "because", callback=answers.append)
    client.until(lambda: len(answers) == 2)


def test_rolled_back_publish_is_not_stored(client: Client, channel: Channel, queue: str) -> None:
    client.ask(channel.tx_select)
    channel.basic_publish("", queue, b"kept")
    client.ask(channel.tx_commit)
    channel.basic_publish("", queue, b"lost")
    client.ask(channel.tx_rollback)
    assert client.ask(client.channel().queue_purge, queue).message_count == 1


@pytest.mark.slow
def test_heartbeats_keep_an_idle_connection(broker: Any) -> None:
    with Client(broker.pika(heartbeat=2)) as client:
        started = time.monotonic()
        client.until(lambda: time.monotonic() - started > 5)
        assert client.connection.is_open


def test_frames_of_large_bodies_are_not_mixed_with_others(client: Client, queue: str) -> None:
    """Several channels publish at once. Other deliveries must not split the frames of a large body."""
    sizes = [10, 3_000_000, 0, 500_000, 131_064]
    got: dict[int, list[int]] = {}
    for size in sizes:
        consumer = client.channel()
        name = client.ask(consumer.queue_declare, "", exclusive=True).queue
        client.ask(
            consumer.basic_consume,
            name,
            lambda _c, _m, _p, body, size=size: got.setdefault(size, []).append(len(body)),
            auto_ack=True,
        )
        publisher = client.channel()
        for _ in range(3):
            publisher.basic_publish("", name, b"x" * size)
    client.until(lambda: sum(map(len, got.values())) == 3 * len(sizes))
    assert got == {size: [size] * 3 for size in sizes}
