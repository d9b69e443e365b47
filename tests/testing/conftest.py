"""Shared by the tests of amqpd.testing: a broker in a thread with its data in memory, and a client of a vhost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from amqpd.testing import BrokerThread, Recorder, Vhost


@pytest.fixture(scope="module")
def thread_broker() -> Iterator[BrokerThread]:
    with BrokerThread(memory=True) as broker:
        yield broker


@pytest.fixture
def vhost(thread_broker: BrokerThread) -> Iterator[Vhost]:
    with thread_broker.vhost() as vhost:
        yield vhost


@pytest.fixture
def recorder(thread_broker: BrokerThread, vhost: Vhost) -> Recorder:
    return thread_broker.record(vhost)


@pytest.fixture
def open_channel() -> Iterator[Callable[[str], BlockingChannel]]:
    """Return a function that connects to a URL and returns a channel. The connections are closed at the end."""
    connections: list[pika.BlockingConnection] = []

    def connect(url: str) -> BlockingChannel:
        connection = pika.BlockingConnection(pika.URLParameters(url))
        connections.append(connection)
        return connection.channel()

    yield connect
    for connection in connections:
        try:
            connection.close()
        except pika.exceptions.AMQPError:
            continue  # the test has dropped it, or stopped the broker


@pytest.fixture
def channel(open_channel: Callable[[str], BlockingChannel], vhost: Vhost) -> BlockingChannel:
    channel = open_channel(vhost.url)
    channel.confirm_delivery()
    return channel
