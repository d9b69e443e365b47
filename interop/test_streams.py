"""Streams over AMQP, as RabbitMQ's guide has them: declared with arguments, published to, read from anywhere and again.

https://www.rabbitmq.com/docs/streams (the parts on clients of AMQP 0-9-1). Against either broker.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from .conftest import Broker, wait_for

STREAM = {"x-queue-type": "stream"}


class Room:
    """A connection with a channel, and a stream of its own name."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.broker = broker
        self.name = name
        self.connection = pika.BlockingConnection(broker.pika())
        self.channel: BlockingChannel = self.connection.channel()

    def declare(self, **arguments: Any) -> None:
        table = STREAM | {name.replace("_", "-"): value for name, value in arguments.items()}
        self.channel.queue_declare(self.name, durable=True, arguments=table)

    def fill(self, count: int, first: int = 0, properties: pika.BasicProperties | None = None) -> list[bytes]:
        bodies = [b"m%d" % number for number in range(first, first + count)]
        channel = self.connection.channel()
        channel.confirm_delivery()
        for body in bodies:
            channel.basic_publish("", self.name, body, properties)
        channel.close()
        return bodies

    def read(
        self, count: int, prefetch: int = 100, settle: bool = True, last: int = -1, **arguments: Any
    ) -> list[tuple[int, bytes]]:
        """(offset, body) of the first `count` deliveries, on a channel of their own, or of all up to the offset `last`;
        with neither of what comes within a moment. Fewer when no more come.
        """
        table = {name.replace("_", "-"): value for name, value in arguments.items()}
        channel = self.connection.channel()
        channel.basic_qos(prefetch_count=prefetch)
        found: list[tuple[int, bytes]] = []

        def take(_channel: Any, method: Any, properties: Any, body: bytes) -> None:
            assert not method.redelivered
            found.append((properties.headers["x-stream-offset"], body))
            if settle:
                channel.basic_ack(method.delivery_tag)

        channel.basic_consume(self.name, take, arguments=table)
        deadline = time.monotonic() + (30 if count or last >= 0 else 0.3)
        while time.monotonic() < deadline and not (0 < count <= len(found)):
            if found and found[-1][0] == last:
                break
            self.connection.process_data_events(0.05)
        channel.close()  # pika nacks what it has and has not given to `take`, which a stream refuses: so there is none
        return found[:count] if count else found

    def refused(self, code: int, does: Callable[[BlockingChannel], object]) -> str:
        """The text with which the broker closes the channel (406) or the connection (540)."""
        connection = pika.BlockingConnection(self.broker.pika())
        channel = connection.channel()
        closed = (pika.exceptions.ChannelClosedByBroker, pika.exceptions.ConnectionClosedByBroker)

        def does_it() -> None:
            does(channel)
            connection.process_data_events(5)

        with pytest.raises(closed) as caught:
            does_it()
        if connection.is_open:
            connection.close()
        assert caught.value.reply_code == code
        return str(caught.value.reply_text).partition(" - ")[2].replace(self.name, "S")


@pytest.fixture
def room(broker: Broker, unique: Callable[[str], str]) -> Iterator[Room]:
    room = Room(broker, unique("stream"))
    yield room
    if room.connection.is_closed:
        room.connection = pika.BlockingConnection(broker.pika())
    room.connection.channel().queue_delete(room.name)
    room.connection.close()


def numbered(first: int, last: int) -> list[tuple[int, bytes]]:
    return [(number, b"m%d" % number) for number in range(first, last)]


class TestReading:
    def test_read_twice(self, room: Room) -> None:
        """The guide's first: publish, consume from the start, and consume from the start again."""
        room.declare()
        room.fill(50)
        assert room.read(50, x_stream_offset="first") == numbered(0, 50)
        assert room.read(50, x_stream_offset="first") == numbered(0, 50)

    @pytest.mark.parametrize("offset", [0, 7, 49])
    def test_from_an_offset(self, room: Room, offset: int) -> None:
        room.declare()
        room.fill(50)
        assert room.read(50 - offset, x_stream_offset=offset) == numbered(offset, 50)

    def test_from_the_last(self, room: Room) -> None:
        """The last chunk, a batch here: how many are in it is the broker's business."""
        room.declare()
        room.fill(50)
        found = room.read(0, last=49, x_stream_offset="last")
        assert found == numbered(50 - len(found), 50)
        assert found

    @pytest.mark.parametrize("arguments", [{}, {"x_stream_offset": "next"}])
    def test_from_now_on(self, room: Room, arguments: dict[str, Any]) -> None:
        room.declare()
        room.fill(5)
        channel = room.connection.channel()
        channel.basic_qos(prefetch_count=10)
        found: list[bytes] = []
        table = {name.replace("_", "-"): value for name, value in arguments.items()}
        channel.basic_consume(room.name, lambda *each: found.append(each[3]), arguments=table)
        bodies = room.fill(3, first=5)
        wait_for(lambda: room.connection.process_data_events(0.01) or len(found) >= 3)
        assert found == bodies

    @pytest.mark.parametrize(("offset", "count"), [("1h", 5), ("7D", 5), ("1Y", 5)])
    def test_from_so_long_ago(self, room: Room, offset: str, count: int) -> None:
        room.declare()
        room.fill(5)
        assert room.read(count, x_stream_offset=offset) == numbered(0, 5)

    def test_from_a_time(self, room: Room) -> None:
        room.declare()
        room.fill(5)
        assert room.read(5, x_stream_offset=dt.datetime(2020, 1, 1, tzinfo=dt.UTC)) == numbered(0, 5)
        assert room.read(0, x_stream_offset=dt.datetime(2100, 1, 1, tzinfo=dt.UTC)) == []

    def test_beyond_the_end(self, room: Room) -> None:
        room.declare()
        room.fill(5)
        assert room.read(0, x_stream_offset=1000) == []

    def test_headers_of_the_publisher_stay(self, room: Room) -> None:
        room.declare()
        room.fill(1, properties=pika.BasicProperties(headers={"a": "two", "b": 1}, message_id="9", delivery_mode=1))
        channel = room.connection.channel()
        channel.basic_qos(prefetch_count=1)
        for method, properties, body in channel.consume(room.name, arguments={"x-stream-offset": "first"}):
            assert (method.routing_key, body) == (room.name, b"m0")
            assert list(properties.headers.items()) == [("a", "two"), ("b", 1), ("x-stream-offset", 0)]
            assert (properties.message_id, properties.delivery_mode) == ("9", 1)
            break
        channel.close()

    def test_through_an_exchange(self, room: Room) -> None:
        room.declare()
        room.channel.exchange_declare(room.name, "topic")
        room.channel.queue_bind(room.name, room.name, "a.#")
        for key in ("a", "a.b", "c"):
            room.channel.basic_publish(room.name, key, key.encode())
        assert room.read(2, x_stream_offset="first") == [(0, b"a"), (1, b"a.b")]
        room.channel.exchange_delete(room.name)

    def test_large_ones(self, room: Room) -> None:
        room.declare()
        bodies = [bytes([number]) * (300_000 * number) for number in range(4)]
        for body in bodies:
            room.channel.basic_publish("", room.name, body)
        assert [body for _, body in room.read(4, x_stream_offset="first")] == bodies


class TestCredit:
    def test_acks_are_credit(self, room: Room) -> None:
        room.declare()
        room.fill(20)
        channel = room.connection.channel()
        channel.basic_qos(prefetch_count=4)
        tags: list[int] = []
        take = lambda _channel, method, _properties, _body: tags.append(method.delivery_tag)  # noqa: E731
        channel.basic_consume(room.name, take, arguments={"x-stream-offset": "first"})

        def so_many(count: int) -> bool:
            room.connection.process_data_events(0.05)
            return len(tags) >= count

        wait_for(lambda: so_many(4))
        channel.basic_ack(2)
        wait_for(lambda: so_many(5))
        channel.basic_ack(5, multiple=True)
        wait_for(lambda: so_many(9))
        room.connection.process_data_events(0.3)
        assert tags == list(range(1, 10))
        channel.close()

    def test_a_window_of_the_whole_channel_that_comes_later(self, room: Room) -> None:
        room.declare()
        channel = room.connection.channel()
        channel.basic_qos(prefetch_count=5)
        channel.basic_consume(room.name, lambda *each: None)
        channel.basic_qos(prefetch_count=5, global_qos=True)
        channel.close()

    def test_what_was_not_acked_is_there_for_all(self, room: Room) -> None:
        room.declare()
        room.fill(10)
        assert room.read(10, settle=False, x_stream_offset="first") == numbered(0, 10)
        assert room.read(10, x_stream_offset="first") == numbered(0, 10)


REFUSED = "not supported by stream queues queue 'S' in vhost '/'"


def consume(name: str, prefetch: int = 1, **how: Any) -> Callable[[BlockingChannel], object]:
    def does(channel: BlockingChannel) -> None:
        if prefetch:
            channel.basic_qos(prefetch_count=prefetch)
        channel.basic_consume(name, lambda *each: None, **how)

    return does


def declare(name: str, arguments: dict[str, Any]) -> Callable[[BlockingChannel], object]:
    return lambda channel: channel.queue_declare(name, durable=True, arguments=STREAM | arguments)


class TestRefusals:
    def test_no_prefetch(self, room: Room) -> None:
        room.declare()
        text = room.refused(406, consume(room.name, 0))
        assert text == "consumer prefetch count is not set for 'queue 'S' in vhost '/''"

    def test_no_acks(self, room: Room) -> None:
        room.declare()
        assert room.refused(540, consume(room.name, auto_ack=True)) == f"automatic acknowledgement {REFUSED}"

    def test_a_window_of_the_whole_channel(self, room: Room) -> None:
        room.declare()

        def both(channel: BlockingChannel) -> None:
            channel.basic_qos(prefetch_count=1)
            channel.basic_qos(prefetch_count=1, global_qos=True)
            channel.basic_consume(room.name, lambda *each: None)

        assert room.refused(540, both) == "queue 'S' in vhost '/' does not support global qos"

    def test_taking_one(self, room: Room) -> None:
        room.declare()
        assert room.refused(540, lambda channel: channel.basic_get(room.name)) == f"basic.get {REFUSED}"

    def test_emptying_it(self, room: Room) -> None:
        room.declare()
        assert room.refused(540, lambda channel: channel.queue_purge(room.name)) == f"queue.purge {REFUSED}"

    @pytest.mark.parametrize("how", ["reject", "reject requeue", "nack", "nack all"])
    def test_giving_back(self, room: Room, how: str) -> None:
        room.declare()
        room.fill(3)

        def give_back(channel: BlockingChannel) -> None:
            channel.basic_qos(prefetch_count=2)
            for method, _, _ in channel.consume(room.name, arguments={"x-stream-offset": "first"}):
                if "nack" in how:
                    channel.basic_nack(method.delivery_tag, multiple="all" in how)
                else:
                    channel.basic_reject(method.delivery_tag, requeue="requeue" in how)
                channel.connection.process_data_events(5)

        assert room.refused(540, give_back) == f"basic.nack and basic.reject {REFUSED}"

    @pytest.mark.parametrize("offset", ["5x", "0m"])
    def test_no_offset(self, room: Room, offset: str) -> None:
        room.declare()
        text = room.refused(406, consume(room.name, arguments={"x-stream-offset": offset}))
        wrong = f'{{invalid_stream_offset_arg,{{longstr,<<"{offset}">>}}}}'
        assert text == f"invalid arg 'x-stream-offset' for queue 'S' in vhost '/': {wrong}"

    def test_a_priority(self, room: Room) -> None:
        room.declare()
        text = room.refused(406, consume(room.name, arguments={"x-priority": 1}))
        assert text == "invalid arg 'x-priority' for queue 'S' in vhost '/' of queue type rabbit_stream_queue"

    @pytest.mark.parametrize(
        ("name", "value", "why"),
        [
            ("x-max-age", "7X", "invalid_max_age"),
            ("x-max-age", "0D", "invalid_max_age"),
            ("x-max-age", 7, "{unacceptable_type,signedint}"),
            ("x-max-length-bytes", -1, "{value_negative,-1}"),
            ("x-stream-max-segment-size-bytes", "a", '"expected integer, got longstr"'),
            ("x-initial-cluster-size", 0, "{value_zero,0}"),
            ("x-queue-leader-locator", "here", "invalid_queue_locator_arg"),
        ],
    )
    def test_bad_arguments(self, room: Room, name: str, value: Any, why: str) -> None:
        text = room.refused(406, declare(room.name, {name: value}))
        assert text == f"invalid arg '{name}' for queue 'S' in vhost '/': {why}"

    def test_a_segment_that_is_too_large(self, room: Room) -> None:
        size = {"x-stream-max-segment-size-bytes": 3_000_000_001}
        text = room.refused(406, declare(room.name, size))
        assert text == "Exceeded max value for x-stream-max-segment-size-bytes"

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("x-message-ttl", 1),
            ("x-expires", 1),
            ("x-max-length", 1),
            ("x-overflow", "drop-head"),
            ("x-max-priority", 1),
            ("x-dead-letter-exchange", "x"),
        ],
    )
    def test_arguments_of_other_kinds(self, room: Room, name: str, value: Any) -> None:
        text = room.refused(406, declare(room.name, {name: value}))
        assert text == f"invalid arg '{name}' for queue 'S' in vhost '/' of queue type rabbit_stream_queue"

    @pytest.mark.parametrize(
        ("flags", "what"),
        [
            ({}, "non-durable"),
            ({"durable": True, "exclusive": True}, "exclusive-owner"),
            ({"durable": True, "auto_delete": True}, "auto-delete"),
        ],
    )
    def test_what_does_not_last(self, room: Room, flags: dict[str, bool], what: str) -> None:
        text = room.refused(406, lambda channel: channel.queue_declare(room.name, arguments=STREAM, **flags))
        assert text == f"invalid property '{what}' for queue 'S' in vhost '/'"


class TestOurs:
    """What RabbitMQ has in its stream protocol alone, or not at all."""

    @pytest.fixture(autouse=True)
    def ours(self, broker: Broker) -> None:
        if broker.is_rabbitmq:
            pytest.skip("not over AMQP 0-9-1 in RabbitMQ")

    def test_a_named_consumer_goes_on(self, room: Room) -> None:
        room.declare()
        room.fill(4)
        assert room.read(4, x_stream_consumer_name="me", x_stream_offset="first") == numbered(0, 4)
        room.fill(6, first=4)
        assert room.read(6, x_stream_consumer_name="me", x_stream_offset="first") == numbered(4, 10)
        assert room.read(10, x_stream_consumer_name="other", x_stream_offset="first") == numbered(0, 10)
        listed = room.broker.run_ctl("--formatter", "json", "list_stream_offsets", room.name)
        assert listed.returncode == 0, listed.stderr
        assert [(each["name"], each["offset"], each["lag"]) for each in json.loads(listed.stdout)] == [
            ("me", 10, 0),
            ("other", 10, 0),
        ]

    def test_one_active_consumer(self, room: Room) -> None:
        room.declare(x_single_active_consumer=True)
        room.fill(10)
        got: dict[str, list[bytes]] = {"first": [], "second": []}
        channels = {name: room.connection.channel() for name in got}
        for name, channel in channels.items():
            channel.basic_qos(prefetch_count=3)
            take = lambda _channel, _method, _properties, body, name=name: got[name].append(body)  # noqa: E731
            channel.basic_consume(room.name, take, arguments={"x-stream-offset": "first"})
        wait_for(lambda: room.connection.process_data_events(0.01) or len(got["first"]) == 3)
        channels["first"].basic_ack(1)
        wait_for(lambda: room.connection.process_data_events(0.01) or len(got["first"]) == 4)
        assert got["second"] == []
        channels["first"].close()
        wait_for(lambda: room.connection.process_data_events(0.01) or len(got["second"]) == 3)
        assert got["second"] == [b"m1", b"m2", b"m3"]
        channels["second"].close()

    def test_an_exclusive_consumer(self, room: Room) -> None:
        room.declare()
        channel = room.connection.channel()
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume(room.name, lambda *each: None, exclusive=True)

        def second(other: BlockingChannel) -> None:
            other.basic_qos(prefetch_count=1)
            other.basic_consume(room.name, lambda *each: None)

        assert room.refused(403, second) == "queue 'S' in vhost '/' in exclusive use"
        channel.close()

    def test_recover(self, room: Room) -> None:
        room.declare()
        room.fill(1)

        def recover(channel: BlockingChannel) -> None:
            channel.basic_qos(prefetch_count=1)
            for _ in channel.consume(room.name, arguments={"x-stream-offset": "first"}):
                channel.basic_recover(requeue=True)

        assert room.refused(540, recover) == f"basic.recover {REFUSED}"

    def test_the_admin_api(self, room: Room) -> None:
        room.declare(x_max_age="7D")
        room.fill(6)
        channel = room.connection.channel()
        channel.basic_qos(prefetch_count=4)
        got: list[bytes] = []
        channel.basic_consume(room.name, lambda *each: got.append(each[3]), arguments={"x-stream-offset": "first"})
        wait_for(lambda: room.connection.process_data_events(0.01) or len(got) == 4)
        item = wait_for(
            lambda: next(
                iter(
                    each
                    for each in [room.broker.api("GET", f"/api/queues/%2F/{room.name}")]
                    if each["messages_unacknowledged"] == 4
                ),
                None,
            ),
            5,
        )
        assert (item["type"], item["messages"], item["messages_ready"]) == ("stream", 6, 6)
        assert item["arguments"] == {"x-queue-type": "stream", "x-max-age": "7D"}
        (consumer,) = item["consumer_details"]
        assert consumer["arguments"] == {"x-stream-offset": "first"}
        assert consumer["stream"] == {"name": None, "offset": 4, "lag": 2, "committed": None}
        channel.close()
