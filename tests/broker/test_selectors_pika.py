"""Selectors over the wire with pika: x-jms-topic exchanges and filters on streams, also after kill -9."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from amqpd.testing import BrokerProcess


@pytest.fixture
def channel(amqpd_url: str) -> Iterator[BlockingChannel]:
    with pika.BlockingConnection(pika.URLParameters(amqpd_url)) as connection:
        yield connection.channel()


def publish(channel: BlockingChannel, exchange: str, body: bytes, **headers: object) -> None:
    channel.basic_publish(exchange, "some.key", body, pika.BasicProperties(headers=headers, delivery_mode=2))


def drain(channel: BlockingChannel, queue: str) -> list[bytes]:
    found = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return found
        found.append(body)


def test_jms_topic_routes_by_selector(channel: BlockingChannel) -> None:
    exchange, queues = "jms-topic", {}
    channel.exchange_declare(exchange, "x-jms-topic", auto_delete=True)
    for arguments in (
        {"x-selector": "colour = 'red' AND weight > 2"},
        {"rjms_erlang_selector": "{'=',{'ident',<<\"colour\">>},<<\"blue\">>}."},
        {"x-selector": ""},
    ):
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, exchange, "unused", arguments)
        queues[queue] = arguments
    publish(channel, exchange, b"heavy red", colour="red", weight=3)
    publish(channel, exchange, b"light red", colour="red", weight=1)
    publish(channel, exchange, b"blue", colour="blue")
    channel.basic_publish(exchange, "k", b"no headers")
    assert [drain(channel, queue) for queue in queues] == [
        [b"heavy red"],
        [b"blue"],
        [b"heavy red", b"light red", b"blue", b"no headers"],
    ]


def test_jms_exchange_behind_a_topic_exchange(channel: BlockingChannel) -> None:
    channel.exchange_declare("jms.durable.topic", "topic", auto_delete=True)
    channel.exchange_declare("jms.selector", "x-jms-topic", auto_delete=True, arguments={"rjms_version": "2.9.0"})
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.exchange_bind("jms.selector", "jms.durable.topic", "news")
    selector = "{'and',{'=',{'ident',<<\"JMSType\">>},<<\"car\">>},{'>',{'ident',<<\"JMSPriority\">>},4}}."
    channel.queue_bind(queue, "jms.selector", "news", {"rjms_erlang_selector": selector})
    for key, kind in (("news", "car"), ("news", "bike"), ("other", "car")):
        properties = pika.BasicProperties(headers={"JMSType": kind, "JMSPriority": 9})
        channel.basic_publish("jms.durable.topic", key, f"{key} {kind}".encode(), properties)
    assert drain(channel, queue) == [b"news car"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (None, "has one selector, in x-selector"),
        ({"x-selector": "a = "}, "x-selector: line 1, column 5: the selector is incomplete"),
        ({"x-selector": 1}, "x-selector is not a text"),
        ({"x-selector": "p.type = 'a'"}, "an exchange sees the headers"),
        ({"rjms_erlang_selector": 'os:cmd("id").'}, "not a term of RabbitMQ's JMS client"),
        ({"x-selector": "NOT " * 1000 + "a"}, "x-selector: the selector has more than 500 words and signs"),
    ],
)
def test_invalid_selector_closes_the_channel(channel: BlockingChannel, arguments: dict[str, object], text: str) -> None:
    channel.exchange_declare("jms-bad", "x-jms-topic")
    queue = channel.queue_declare("", exclusive=True).method.queue
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        channel.queue_bind(queue, "jms-bad", "", arguments)
    assert closed.value.reply_code == 406
    assert closed.value.reply_text.startswith("PRECONDITION_FAILED - ") and text in closed.value.reply_text


@pytest.mark.slow
def test_bindings_with_selectors_survive_kill(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            channel.exchange_declare("x", "x-jms-topic", durable=True)
            channel.queue_declare("q", durable=True)
            channel.queue_bind("q", "x", "", {"x-selector": "colour = 'red'"})
        broker.kill()
        broker.start()
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            channel.exchange_declare("x", "x-jms-topic", durable=True)
            publish(channel, "x", b"red", colour="red")
            publish(channel, "x", b"blue", colour="blue")
            assert drain(channel, "q") == [b"red"]
            channel.queue_unbind("q", "x", "", {"x-selector": "colour = 'red'"})
            publish(channel, "x", b"red", colour="red")
            assert drain(channel, "q") == []


@pytest.fixture
def stream(channel: BlockingChannel) -> Iterator[str]:
    channel.queue_declare("filtered", durable=True, arguments={"x-queue-type": "stream"})
    channel.basic_qos(prefetch_count=100)
    yield "filtered"
    channel.connection.channel().queue_delete("filtered")


def consume(channel: BlockingChannel, queue: str, count: int, **arguments: object) -> list[bytes]:
    """Consume until `count` messages have arrived, then 0.2 s longer. Return the bodies."""
    got: list[bytes] = []
    table = {"x-stream-offset": "first"} | {name.replace("_", "-"): value for name, value in arguments.items()}

    def on_message(_channel: object, method: pika.spec.Basic.Deliver, _properties: object, body: bytes) -> None:
        got.append(body)
        channel.basic_ack(method.delivery_tag)

    tag = channel.basic_consume(queue, on_message, arguments=table)
    for _ in range(300):
        if len(got) >= count:
            break
        channel.connection.process_data_events(0.1)
    channel.connection.process_data_events(0.2)
    channel.basic_cancel(tag)
    return got


def test_stream_filters(channel: BlockingChannel, stream: str) -> None:
    for number in range(300):
        headers = {"n": number, "x-stream-filter-value": f"v{number % 3}"} if number % 2 else {"n": number}
        channel.basic_publish("", stream, b"%d" % number, pika.BasicProperties(headers=headers, type=f"t{number % 5}"))
    assert consume(channel, stream, 2, x_filter="n > 297") == [b"298", b"299"]
    assert consume(channel, stream, 60, x_filter="p.type = 't3'") == [b"%d" % n for n in range(3, 300, 5)]
    matching_values = [b"%d" % n for n in range(1, 300, 2) if n % 3 != 2]
    assert consume(channel, stream, 100, x_stream_filter=["v0", "v1"]) == matching_values
    arguments = {"x_stream_filter": "v0", "x_stream_match_unfiltered": True, "x_filter": "n BETWEEN 8 AND 10"}
    matching_both = consume(channel, stream, 3, **arguments)
    assert matching_both == [b"8", b"9", b"10"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x-filter": "n >"}, "invalid arg 'x-filter' for queue 'filtered' in vhost '/': line 1, column 4: the"),
        ({"x-filter": 5}, "{unacceptable_type,signedint}"),
        ({"x-stream-filter": [1]}, "invalid arg 'x-stream-filter' for queue 'filtered' in vhost '/': {unaccept"),
    ],
)
def test_invalid_filter_closes_the_channel(
    channel: BlockingChannel, stream: str, arguments: dict[str, object], text: str
) -> None:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        channel.basic_consume(stream, lambda *_: None, arguments=arguments)
    assert closed.value.reply_code == 406 and text in closed.value.reply_text
