"""Recorder: lists of messages, assertions and their error texts."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import pika
import pytest

from amqpd.testing import BrokerFailed, BrokerProcess, BrokerThread, Recorder, Vhost, commands

DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


def test_published_messages_with_their_queues(channel, recorder: Recorder) -> None:
    channel.queue_declare("orders")
    channel.queue_declare("copies")
    channel.queue_bind("orders", "amq.topic", "order.#")
    channel.queue_bind("copies", "amq.topic", "#")
    properties = pika.BasicProperties(content_type="text/plain", headers={"tenant": "a", "try": 2})
    channel.basic_publish("amq.topic", "order.new", b"4711", properties)
    channel.basic_publish("amq.topic", "invoice", b"12")
    (message,) = recorder.published(routing_key="order.new")
    assert (message.event, message.exchange, message.body, message.user) == ("published", "amq.topic", b"4711", "guest")
    assert sorted(message.queues) == ["copies", "orders"]
    assert (message.properties.content_type, message.headers) == ("text/plain", {"tenant": "a", "try": 2})
    assert [each.body for each in recorder.published()] == [b"4711", b"12"]
    assert [each.body for each in recorder.published(queue="orders")] == [b"4711"]
    assert [each.body for each in recorder.published(headers={"tenant": "a"})] == [b"4711"]
    assert recorder.published(headers={"tenant": "b"}) == recorder.published(headers={"other": None}) == []
    assert [each.body for each in recorder.published(where=lambda each: len(each.body) == 2)] == [b"12"]
    assert recorder.published(exchange="amq.direct") == []
    recorder.clear()
    assert recorder.messages == []


def test_unroutable_messages(channel, recorder: Recorder) -> None:
    channel.queue_declare("orders")
    channel.basic_publish("", "orders", b"1")
    channel.basic_publish("", "order", b"2")
    (message,) = recorder.assert_unroutable(1)
    assert (message.body, message.queues, message.is_routed) == (b"2", (), False)
    recorder.assert_unroutable(0, routing_key="orders")


def test_delivered_messages(channel, recorder: Recorder) -> None:
    channel.queue_declare("orders")
    channel.basic_publish("", "orders", b"1")
    method, _, _ = channel.basic_get("orders")
    channel.basic_nack(method.delivery_tag, requeue=True)
    channel.basic_consume("orders", lambda channel, method, *_: channel.stop_consuming(), auto_ack=True)
    channel.start_consuming()
    first, second = recorder.assert_delivered(2, queue="orders")
    assert (first.redelivered, second.redelivered) == (False, True)
    assert first.body == second.body == b"1"


@pytest.mark.parametrize("reason", ["rejected", "maxlen", "delivery_limit"])
def test_dead_lettered_messages(channel, recorder: Recorder, reason: str) -> None:
    arguments = {
        "rejected": {},
        "maxlen": {"x-max-length": 1},
        "delivery_limit": {"x-queue-type": "quorum", "x-delivery-limit": 0},
    }
    channel.queue_declare("dead")
    channel.queue_declare("orders", durable=True, arguments={**DEAD, **arguments[reason]})
    channel.basic_publish("", "orders", b"1")
    if reason == "maxlen":
        channel.basic_publish("", "orders", b"2")
    else:
        method, _, _ = channel.basic_get("orders")
        channel.basic_nack(method.delivery_tag, requeue=reason == "delivery_limit")
    (message,) = recorder.assert_dead_lettered(1, queue="orders", reason=reason)
    assert (message.exchange, message.routing_key, message.queues, message.body) == ("", "dead", ("dead",), b"1")
    assert message.headers["x-first-death-queue"] == "orders"
    assert recorder.dead_lettered(queue="dead") == []


def test_dead_letter_without_a_queue(channel, recorder: Recorder) -> None:
    channel.queue_declare("orders", arguments=DEAD)
    channel.basic_publish("", "orders", b"1")
    method, _, _ = channel.basic_get("orders")
    channel.basic_reject(method.delivery_tag, requeue=False)
    (message,) = recorder.assert_dead_lettered(1)
    assert message.describe() == (
        "exchange '', routing key 'dead', 1 bytes b'1', from queue 'orders' (rejected), unroutable"
    )


def test_assertion_waits_for_messages(channel, recorder: Recorder) -> None:
    channel.queue_declare("orders")
    publish = threading.Timer(0.1, channel.basic_publish, ("", "orders", b"1"))  # nothing else uses the channel now
    publish.start()
    recorder.assert_published(1, timeout_s=60)
    publish.join()


def test_failure_shows_what_there_is(channel, recorder: Recorder) -> None:
    with pytest.raises(AssertionError) as failed:
        recorder.assert_published(exchange="orders", timeout_s=0.01)
    assert str(failed.value).splitlines()[1:] == ["no message was published"]
    channel.queue_declare("orders")
    for number in range(23):
        channel.basic_publish("", "orders", b"%d" % number)
    with pytest.raises(AssertionError) as failed:
        recorder.assert_published(2, body=b"7", timeout_s=0.01)
    lines = str(failed.value).splitlines()
    assert re.fullmatch(
        r"2 messages published with body=b'7' expected in vhost 'test-\w+' within 0.01 s, found 1", lines[0]
    )
    assert lines[1:5] == [
        "found:",
        "  exchange '', routing key 'orders', 1 bytes b'7', to orders",
        "others that were published:",
        "  exchange '', routing key 'orders', 1 bytes b'0', to orders",
    ]
    assert lines[-1] == "  and 2 more"
    with pytest.raises(AssertionError, match=r"^0 messages published expected in vhost '\S+', found 23\nfound:"):
        recorder.assert_published(0)


def test_wrong_conditions_are_refused_without_a_message(recorder: Recorder) -> None:
    with pytest.raises(TypeError, match="unknown conditions: key, timeout; there are exchange, routing_key, body, "):
        recorder.published(key="orders", timeout=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unknown conditions: exchnage"):
        recorder.assert_published(0, exchnage="orders")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="body must be bytes, not str"):
        recorder.assert_published(body="4711")  # type: ignore[arg-type]


def test_waits_end_while_a_test_holds_the_clock(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As freezegun and time-machine do."""
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    assert not BrokerProcess(tmp_path).says("ready", timeout_s=0.01)
    with pytest.raises(AssertionError, match=r"within 0.01 s, found 0"):
        recorder.assert_published(timeout_s=0.01)


def test_messages_beyond_the_limit_raise(monkeypatch: pytest.MonkeyPatch, channel, recorder: Recorder) -> None:
    monkeypatch.setattr(commands, "COUNT_MAX", 2)
    for number in range(5):
        channel.basic_publish("", "orders", b"%d" % number)
    with pytest.raises(OverflowError, match="3 messages of vhost 'test-"):
        recorder.published()
    assert [each.body for each in recorder.published()] == [b"0", b"1"]


def test_properties_count_for_the_limit(monkeypatch: pytest.MonkeyPatch, channel, recorder: Recorder) -> None:
    monkeypatch.setattr(commands, "BYTES_MAX", 1000)
    for number in range(3):
        channel.basic_publish("", "orders", b"%d" % number, pika.BasicProperties(headers={"a": "x" * 400}))
    with pytest.raises(OverflowError, match="1 messages of vhost 'test-"):
        recorder.published()


def test_recorder_beside_the_firehose(thread_broker: BrokerThread, vhost: Vhost, channel, recorder: Recorder) -> None:
    def trace(on: bool) -> None:
        thread_broker.api("PUT", f"/api/vhosts/{vhost.name}", {"tracing": on})
        shown = thread_broker.api("GET", f"/api/vhosts/{vhost.name}")
        assert shown["tracing"] is on  # type: ignore[index]

    shown = thread_broker.api("GET", f"/api/vhosts/{vhost.name}")
    assert shown["tracing"] is False, "recording is not tracing"  # type: ignore[index]
    channel.queue_declare("copies")
    channel.queue_bind("copies", "amq.rabbitmq.trace", "publish.#")
    trace(True)
    channel.basic_publish("", "orders", b"1")
    trace(False)
    channel.basic_publish("", "orders", b"2")
    assert [each.body for each in recorder.published()] == [b"1", b"2"]
    assert channel.queue_declare("copies", passive=True).method.message_count == 1


def test_unknown_vhost_is_refused(thread_broker: BrokerThread) -> None:
    with pytest.raises(BrokerFailed, match="record: there is no vhost 'nosuch'"):
        thread_broker.record("nosuch")


def test_second_recorder_of_a_vhost_gets_later_messages(thread_broker: BrokerThread, vhost: Vhost, channel) -> None:
    first = thread_broker.record(vhost)
    channel.basic_publish("", "orders", b"1")
    assert len(first.published()) == 1
    second = thread_broker.record(vhost)
    channel.basic_publish("", "orders", b"2")
    assert [each.body for each in second.published()] == [b"2"]
