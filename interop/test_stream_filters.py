"""Stream filtering as in RabbitMQ's guide: publishers give each message a filter value, consumers subscribe to some
values and filter again themselves.

https://www.rabbitmq.com/docs/stream-filtering (stage 1, over AMQP 0-9-1) and its introduction of 2023. On either
broker: RabbitMQ before 3.13 has no filters and delivers everything, later versions deliver whole chunks. The client's
own filter handles both, and has nothing to remove with amqpd.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import Basic, BasicProperties

from .conftest import Broker

REGIONS = ["amer", "emea", "apac", None]


@pytest.fixture
def channel(broker: Broker) -> Iterator[BlockingChannel]:
    with pika.BlockingConnection(broker.pika()) as connection:
        yield connection.channel()


@pytest.fixture
def stream(channel: BlockingChannel, unique: Callable[[str], str]) -> Iterator[str]:
    name = unique("filtered")
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    publisher = channel.connection.channel()
    publisher.confirm_delivery()
    for number in range(200):
        region = REGIONS[number % 4]
        headers = {"x-stream-filter-value": region} if region else {}
        publisher.basic_publish("", name, b"%d" % number, BasicProperties(headers=headers))
    yield name
    channel.connection.channel().queue_delete(name)


def read(channel: BlockingChannel, stream: str, last: int, **arguments: object) -> list[tuple[int, str | None]]:
    """Return (number, value) of the deliveries up to the number `last`, and of those shortly after it."""
    found: list[tuple[int, str | None]] = []

    def take(_channel: BlockingChannel, method: Basic.Deliver, properties: BasicProperties, body: bytes) -> None:
        found.append((int(body), properties.headers.get("x-stream-filter-value")))
        channel.basic_ack(method.delivery_tag)

    channel.basic_qos(prefetch_count=100)
    table = {"x-stream-offset": "first"} | {name.replace("_", "-"): value for name, value in arguments.items()}
    tag = channel.basic_consume(stream, take, arguments=table)
    deadline = time.monotonic() + 60
    while not any(number == last for number, _ in found) and time.monotonic() < deadline:
        channel.connection.process_data_events(0.1)
    channel.connection.process_data_events(0.3)
    channel.basic_cancel(tag)
    return found


@pytest.mark.parametrize(
    ("values", "unfiltered"), [("amer", False), (["amer"], False), (["amer", "emea"], False), (["apac"], True)]
)
def test_consumer_gets_the_messages_of_its_filter_values(
    broker: Broker, channel: BlockingChannel, stream: str, values: str | Sequence[str], unfiltered: bool
) -> None:
    filter_values = [values] if isinstance(values, str) else list(values)
    wanted = [
        number for number in range(200) if REGIONS[number % 4] in filter_values or (unfiltered and number % 4 == 3)
    ]
    got = read(channel, stream, wanted[-1], x_stream_filter=values, x_stream_match_unfiltered=unfiltered)
    # the client's own filter, which the guide requires
    assert [number for number, value in got if value in filter_values or (unfiltered and value is None)] == wanted
    if broker.process is not None:
        assert len(got) == len(wanted)  # amqpd delivers no other messages
