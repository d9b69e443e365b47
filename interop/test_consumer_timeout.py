"""A delivery that is not acked in time, with pika: channel closure on either broker, and RabbitMQ 4.3's consumer
cancellation on amqpd.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from amqpd.testing import BrokerProcess

TIMEOUT_MS = 1000
WITHIN_S = 30.0
TEXT = (
    "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 1000 ms. "
    "This timeout value can be configured, see consumers doc guide to learn more"
)


@pytest.fixture
def url_of_closing_broker(broker: Any, tmp_path: Path) -> Iterator[str]:
    """The URL of a broker that closes channels after TIMEOUT_MS."""
    if broker.is_rabbitmq:
        broker.run_ctl("eval", f"application:set_env(rabbit, consumer_timeout, {TIMEOUT_MS}).")
        yield broker.url
        broker.run_ctl("eval", "application:set_env(rabbit, consumer_timeout, 1800000).")
        return
    settings = {"consumer_timeout_ms": str(TIMEOUT_MS), "consumer_timeout_response": "close_channel"}
    with BrokerProcess(tmp_path / "data", settings=settings) as process:
        yield process.url


@pytest.mark.slow
@pytest.mark.parametrize("get", [True, False])
def test_ack_timeout_closes_the_channel_and_requeues(url_of_closing_broker: str, get: bool) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url_of_closing_broker))
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_publish("", queue, b"1")
    started = time.monotonic()
    reasons: list[Exception] = []
    channel._impl.add_on_close_callback(lambda _channel, reason: reasons.append(reason))
    if get:
        while channel.basic_get(queue)[0] is None:
            time.sleep(0.01)
    else:
        channel.basic_consume(queue, lambda *_: None)
    while not reasons:
        if time.monotonic() - started > WITHIN_S:
            pytest.skip("this RabbitMQ looks once a minute (channel_tick_interval)")
        connection.process_data_events(0.1)
    (reason,) = reasons
    assert isinstance(reason, ChannelClosedByBroker)
    assert (reason.reply_code, reason.reply_text) == (406, TEXT)
    assert time.monotonic() - started >= TIMEOUT_MS / 1000
    method, _, body = connection.channel().basic_get(queue, auto_ack=True)
    assert (method.redelivered, body) == (True, b"1")
    connection.close()


@pytest.mark.slow
def test_ack_timeout_cancels_the_consumer_and_ignores_its_late_ack(broker: Any) -> None:
    if broker.is_rabbitmq:
        pytest.skip("RabbitMQ does so from 4.3 on, with quorum queues")
    connection = pika.BlockingConnection(broker.pika())
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    tags: list[int] = []
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    channel.basic_publish("", queue, b"1")
    consumer = channel.basic_consume(
        queue,
        lambda _channel, method, *_: tags.append(method.delivery_tag),
        arguments={"x-consumer-timeout": TIMEOUT_MS},
    )
    until = time.monotonic() + WITHIN_S
    while not cancelled and time.monotonic() < until:
        connection.process_data_events(0.1)
    assert cancelled == [consumer]
    channel.basic_ack(tags[0])
    method, _, body = channel.basic_get(queue, auto_ack=True)
    assert (method.redelivered, body) == (True, b"1")
    connection.close()
