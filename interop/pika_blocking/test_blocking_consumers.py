"""Receiving messages with pika's BlockingConnection: acks, requeue, prefetch, consumers."""

from __future__ import annotations

import re
from typing import Any

import pika
import pytest
from conversation import Eventually, Received, Unique, channel_error, connection_error, drain, get, send
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    DuplicateConsumerTag,
)

# -- acks


def test_get_returns_message_and_remaining_count(channel: BlockingChannel, queue: str) -> None:
    assert get(channel, queue) is None
    send(channel, queue, "a", "b", "c")
    method, _, body = get(channel, queue, auto_ack=False)
    assert (body, method.message_count, method.redelivered, method.exchange, method.routing_key) == (
        "a",
        2,
        False,
        "",
        queue,
    )
    assert channel.queue_declare(queue, passive=True).method.message_count == 2
    channel.basic_ack(method.delivery_tag)
    assert channel.queue_purge(queue).method.message_count == 2
    assert get(channel, queue) is None


@pytest.mark.parametrize("how", ["nack", "reject", "recover", "channel", "connection"])
def test_requeued_messages_keep_order_and_are_redelivered(broker: Any, unique: Unique, how: str) -> None:
    queue = unique("requeue")
    with pika.BlockingConnection(broker.pika()) as keeper:
        first = pika.BlockingConnection(broker.pika())
        channel = first.channel()
        channel.queue_declare(queue, durable=True)
        send(channel, queue, *"abcdef")
        tags = [get(channel, queue, auto_ack=False)[0].delivery_tag for _ in range(4)]
        channel.basic_ack(tags[1])
        if how == "nack":
            channel.basic_nack(0, multiple=True, requeue=True)
        elif how == "reject":
            for tag in (tags[2], tags[0], tags[3]):
                channel.basic_reject(tag, requeue=True)
        elif how == "recover":
            channel.basic_recover(requeue=True)
        elif how == "channel":
            channel.close()
        if how in ("connection", "channel"):
            first.close()
        other_channel = keeper.channel() if first.is_closed else channel
        got = []
        for _ in range(5):
            method, _, body = get(other_channel, queue)
            got.append((body, method.redelivered))
        assert got == [("a", True), ("c", True), ("d", True), ("e", False), ("f", False)]
        keeper.channel().queue_delete(queue)
        if first.is_open:
            first.close()


def test_rejected_message_without_requeue_is_dropped(channel: BlockingChannel, queue: str) -> None:
    send(channel, queue, *"abcd")
    for _ in range(4):
        get(channel, queue, auto_ack=False)
    channel.basic_reject(1, requeue=False)
    channel.basic_nack(3, multiple=True, requeue=False)
    channel.basic_nack(4, requeue=True)
    assert drain(channel, queue) == ["d"]


def test_ack_multiple_acks_all_earlier_messages(channel: BlockingChannel, queue: str) -> None:
    send(channel, queue, *"abcde")
    for _ in range(5):
        get(channel, queue, auto_ack=False)
    channel.basic_ack(2)
    channel.basic_ack(3, multiple=True)
    channel.basic_recover(requeue=True)
    assert drain(channel, queue) == ["d", "e"]
    channel.basic_ack(0, multiple=True)
    assert channel.is_open


def test_requeued_message_goes_to_a_waiting_consumer(channel: BlockingChannel, queue: str) -> None:
    send(channel, queue, "m")
    method, _, _ = get(channel, queue, auto_ack=False)
    received = Received(channel)
    channel.basic_consume(queue, received, auto_ack=True)
    channel.basic_nack(method.delivery_tag, requeue=True)
    got, _, body = received.wait(1)[0]
    assert (body, got.redelivered, got.exchange, got.routing_key) == ("m", True, "", queue)


@pytest.mark.parametrize(
    ("tag", "multiple"), [(82, False), (0, False), (99, True)], ids=["unknown", "zero", "multiple"]
)
@pytest.mark.parametrize("how", ["ack", "nack"])
def test_unknown_delivery_tag_closes_the_channel(channel: BlockingChannel, how: str, tag: int, multiple: bool) -> None:
    with channel_error(406, f"PRECONDITION_FAILED - unknown delivery tag {tag}"):
        getattr(channel, f"basic_{how}")(tag, multiple=multiple)
        channel.queue_declare("", exclusive=True)


def test_second_ack_closes_the_channel(channel: BlockingChannel, queue: str) -> None:
    send(channel, queue, "m")
    get(channel, queue, auto_ack=False)
    channel.basic_ack(1)
    with channel_error(406, "PRECONDITION_FAILED - unknown delivery tag 1"):
        channel.basic_ack(1)
        channel.queue_declare("", exclusive=True)


# -- consumers


def test_prefetch_is_per_consumer(connection: pika.BlockingConnection, queue: str) -> None:
    channel = connection.channel()
    channel.basic_qos(prefetch_count=2)
    one, two, later = Received(channel), Received(channel), Received(channel)
    send(channel, queue, *(str(n) for n in range(10)))
    channel.basic_consume(queue, one)
    channel.basic_consume(queue, two)
    one.wait(2)
    two.wait(2)
    channel.basic_qos(prefetch_count=1)  # applies to consumers started from now on
    channel.basic_consume(queue, later)
    later.wait(1)
    connection.process_data_events(time_limit=0.1)
    assert (len(one), len(two), len(later)) == (2, 2, 1)
    channel.basic_ack(one[0][0].delivery_tag)
    one.wait(3)
    assert sorted(one.bodies + two.bodies + later.bodies) == ["0", "1", "2", "3", "4", "5"]


def test_global_prefetch_is_one_window_for_the_channel(connection: pika.BlockingConnection, queue: str) -> None:
    channel = connection.channel()
    channel.basic_qos(prefetch_count=3, global_qos=True)
    one, two = Received(channel), Received(channel)
    send(channel, queue, *(str(n) for n in range(10)))
    channel.basic_consume(queue, one)
    channel.basic_consume(queue, two)
    connection.process_data_events(time_limit=0.1)
    assert len(one) + len(two) == 3
    channel.basic_qos(prefetch_count=5, global_qos=True)
    connection.process_data_events(time_limit=0.1)
    assert len(one) + len(two) == 5
    channel.basic_qos(prefetch_count=0, global_qos=True)
    connection.process_data_events(time_limit=0.1)
    assert len(one) + len(two) == 10


def test_deliveries_go_round_robin(connection: pika.BlockingConnection, queue: str) -> None:
    channel = connection.channel()
    consumers = [Received(channel) for _ in range(3)]
    for received in consumers:
        channel.basic_consume(queue, received, auto_ack=True)
    send(channel, queue, *(str(n) for n in range(12)))
    for number, received in enumerate(consumers):
        assert received.wait(4).bodies == [str(n) for n in range(number, 12, 3)]


def test_consumer_of_higher_priority_is_served_first(connection: pika.BlockingConnection, queue: str) -> None:
    channel = connection.channel()
    channel.basic_qos(prefetch_count=2)
    low, high = Received(channel), Received(channel)
    channel.basic_consume(queue, low, arguments={"x-priority": -1})
    channel.basic_consume(queue, high, arguments={"x-priority": 10})
    send(channel, queue, "a", "b", "c")
    high.wait(2)
    low.wait(1)
    assert (high.bodies, low.bodies) == (["a", "b"], ["c"])


def test_cancel_stops_deliveries_and_keeps_unacked(connection: pika.BlockingConnection, queue: str) -> None:
    channel = connection.channel()
    channel.confirm_delivery()  # RabbitMQ may answer a passive declare before it has counted an unconfirmed publish
    received = Received(channel)
    tag = channel.basic_consume(queue, received)
    send(channel, queue, "a")
    received.wait(1)
    channel.basic_cancel(tag)
    send(channel, queue, "b")
    assert channel.queue_declare(queue, passive=True).method.message_count == 1
    channel.basic_ack(received[0][0].delivery_tag)
    assert received.bodies == ["a"]


def test_deleted_queue_cancels_its_consumer(
    connection: pika.BlockingConnection, unique: Unique, eventually: Eventually
) -> None:
    queue = unique("gone")
    channel, other = connection.channel(), connection.channel()
    channel.queue_declare(queue)
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    tag = channel.basic_consume(queue, Received(channel))
    other.queue_delete(queue)
    eventually(lambda: connection.process_data_events(time_limit=0.05) or cancelled)
    assert cancelled == [tag]
    assert channel.consumer_tags == []
    assert channel.is_open


def test_consume_generator_requeues_prefetched_on_cancel(connection: pika.BlockingConnection, queue: str) -> None:
    channel = connection.channel()
    channel.basic_qos(prefetch_count=4)
    send(channel, queue, *"abcdef")
    got = []
    for method, _, body in channel.consume(queue, inactivity_timeout=60):
        assert method is not None
        got.append(body.decode())
        channel.basic_ack(method.delivery_tag)
        if len(got) == 3:
            break
    assert got == ["a", "b", "c"]
    channel.cancel()  # requeues the prefetched messages
    assert drain(channel, queue) == ["d", "e", "f"]
    assert next(channel.consume(queue, inactivity_timeout=0.05)) == (None, None, None)


def test_server_generated_queue_name(channel: BlockingChannel) -> None:
    queue = channel.queue_declare("").method.queue
    assert re.fullmatch(r"amq\.gen-[A-Za-z0-9_-]{22}", queue)
    channel.queue_delete(queue)


def test_empty_name_means_the_last_declared_queue(channel: BlockingChannel) -> None:
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind("", "amq.direct", "")
    channel.basic_publish("amq.direct", queue, b"m")
    assert get(channel, "")[2] == "m"
    received = Received(channel)
    channel.basic_consume("", received, auto_ack=True)
    send(channel, queue, "n")
    assert received.wait(1).bodies == ["n"]
    assert channel.queue_delete("").method.message_count == 0


def test_empty_name_without_a_declared_queue_is_404(channel: BlockingChannel) -> None:
    with channel_error(404, "NOT_FOUND - no previously declared queue"):
        channel.queue_purge("")


def test_reused_consumer_tag_closes_the_connection(connection: pika.BlockingConnection, queue: str) -> None:
    channel = connection.channel()
    channel.basic_consume(queue, Received(channel), consumer_tag="T")
    with pytest.raises(DuplicateConsumerTag):
        channel.basic_consume(queue, Received(channel), consumer_tag="T")
    with connection_error(530, "NOT_ALLOWED - attempt to reuse consumer tag 'T'"):  # bypasses pika's own check
        channel._impl._send_method(pika.spec.Basic.Consume(queue=queue, consumer_tag="T"))
        channel.queue_declare("", exclusive=True)


def test_exclusive_consumer_excludes_others(connection: pika.BlockingConnection, queue: str) -> None:
    first, second = connection.channel(), connection.channel()
    tag = first.basic_consume(queue, Received(first), exclusive=True)
    text = f"ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use"
    with channel_error(403, text):
        second.basic_consume(queue, Received(second))
    first.basic_cancel(tag)
    first.basic_consume(queue, Received(first))
    third = connection.channel()
    with channel_error(403, text):
        third.basic_consume(queue, Received(third), exclusive=True)
