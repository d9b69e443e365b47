"""Helper functions with which the tests of this folder use pika's BlockingConnection."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

Unique = Callable[[str], str]
Eventually = Callable[..., Any]


def send(channel: BlockingChannel, routing_key: str, *bodies: str, exchange: str = "", **properties: Any) -> None:
    for body in bodies:
        channel.basic_publish(exchange, routing_key, body.encode(), pika.BasicProperties(**properties))


def get(channel: BlockingChannel, queue: str, *, auto_ack: bool = True) -> Any:
    """Return (method, properties, body text), or None if the queue is empty."""
    method, properties, body = channel.basic_get(queue, auto_ack=auto_ack)
    return None if method is None else (method, properties, body.decode())


def drain(channel: BlockingChannel, queue: str) -> list[str]:
    bodies = []
    while (message := get(channel, queue)) is not None:
        bodies.append(message[2])
    return bodies


class Received(list[tuple[Any, Any, str]]):
    """A consumer's deliveries. `wait(n)` serves the connection until there are n, or fails after a timeout."""

    def __init__(self, channel: BlockingChannel) -> None:
        super().__init__()
        self.channel = channel

    def __call__(self, channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        self.append((method, properties, body.decode()))

    @property
    def bodies(self) -> list[str]:
        return [body for _, _, body in self]

    def wait(self, count: int, timeout_s: float = 30.0) -> Received:
        deadline = time.monotonic() + timeout_s
        while len(self) < count:
            assert time.monotonic() < deadline, f"{count} messages expected, {self.bodies} received"
            self.channel.connection.process_data_events(time_limit=0.05)
        return self


def serve(connection: pika.BlockingConnection, timeout_s: float = 30.0) -> None:
    """Read until the timeout. An end of the connection is raised here."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        connection.process_data_events(time_limit=0.1)


@contextmanager
def channel_error(code: int, text: str) -> Iterator[None]:
    """Expect that the broker closes the channel with exactly this code and text."""
    with pytest.raises(ChannelClosedByBroker) as caught:
        yield
    assert (caught.value.reply_code, caught.value.reply_text) == (code, text)


@contextmanager
def connection_error(code: int, text: str) -> Iterator[None]:
    with pytest.raises(ConnectionClosedByBroker) as caught:
        yield
    assert (caught.value.reply_code, caught.value.reply_text) == (code, text)


def bound(channel: BlockingChannel, exchange: str, *keys: str, arguments: dict[str, Any] | None = None) -> str:
    queue: str = channel.queue_declare("", exclusive=True).method.queue
    for key in keys:
        channel.queue_bind(queue, exchange, key, arguments)
    return queue
