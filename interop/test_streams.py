"""Streams over AMQP as in RabbitMQ's guide: declared with arguments, published to, read from any offset, repeatedly.

https://www.rabbitmq.com/docs/streams (the parts on AMQP 0-9-1 clients). On either broker.
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


class StreamClient:
    """A connection with a channel, and a stream with its own name."""

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
        """Return (offset, body) of the first `count` deliveries on a new channel, or of all up to the offset `last`.
        With neither, return what arrives within a moment. Returns fewer if no more arrive.
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
        channel.close()  # no unprocessed delivery is left: pika would nack it, which a stream refuses
        return found[:count] if count else found

    def refusal_text(self, code: int, does: Callable[[BlockingChannel], object]) -> str:
        """Return the text with which the broker closes the channel (406) or the connection (540)."""
        connection = pika.BlockingConnection(self.broker.pika())
        channel = connection.channel()
        closed = (pika.exceptions.ChannelClosedByBroker, pika.exceptions.ConnectionClosedByBroker)

        def run() -> None:
            does(channel)
            connection.process_data_events(5)

        with pytest.raises(closed) as caught:
            run()
        if connection.is_open:
            connection.close()
        assert caught.value.reply_code == code
        return str(caught.value.reply_text).partition(" - ")[2].replace(self.name, "S")


@pytest.fixture
def client(broker: Broker, unique: Callable[[str], str]) -> Iterator[StreamClient]:
    client = StreamClient(broker, unique("stream"))
    yield client
    if client.connection.is_closed:
        client.connection = pika.BlockingConnection(broker.pika())
    client.connection.channel().queue_delete(client.name)
    client.connection.close()


def numbered(first: int, last: int) -> list[tuple[int, bytes]]:
    return [(number, b"m%d" % number) for number in range(first, last)]


class TestReading:
    def test_stream_can_be_read_twice(self, client: StreamClient) -> None:
        """The guide's first example."""
        client.declare()
        client.fill(50)
        assert client.read(50, x_stream_offset="first") == numbered(0, 50)
        assert client.read(50, x_stream_offset="first") == numbered(0, 50)

    @pytest.mark.parametrize("offset", [0, 7, 49])
    def test_read_from_an_offset(self, client: StreamClient, offset: int) -> None:
        client.declare()
        client.fill(50)
        assert client.read(50 - offset, x_stream_offset=offset) == numbered(offset, 50)

    def test_read_from_the_last_chunk(self, client: StreamClient) -> None:
        """The last chunk is a batch here; the broker decides how many messages it has."""
        client.declare()
        client.fill(50)
        found = client.read(0, last=49, x_stream_offset="last")
        assert found == numbered(50 - len(found), 50)
        assert found

    @pytest.mark.parametrize("arguments", [{}, {"x_stream_offset": "next"}])
    def test_default_offset_and_next_read_only_new_messages(
        self, client: StreamClient, arguments: dict[str, Any]
    ) -> None:
        client.declare()
        client.fill(5)
        channel = client.connection.channel()
        channel.basic_qos(prefetch_count=10)
        found: list[bytes] = []
        table = {name.replace("_", "-"): value for name, value in arguments.items()}
        channel.basic_consume(client.name, lambda *each: found.append(each[3]), arguments=table)
        bodies = client.fill(3, first=5)
        wait_for(lambda: client.connection.process_data_events(0.01) or len(found) >= 3)
        assert found == bodies

    @pytest.mark.parametrize(("offset", "count"), [("1h", 5), ("7D", 5), ("1Y", 5)])
    def test_read_from_an_interval_ago(self, client: StreamClient, offset: str, count: int) -> None:
        client.declare()
        client.fill(5)
        assert client.read(count, x_stream_offset=offset) == numbered(0, 5)

    def test_read_from_a_timestamp(self, client: StreamClient) -> None:
        client.declare()
        client.fill(5)
        assert client.read(5, x_stream_offset=dt.datetime(2020, 1, 1, tzinfo=dt.UTC)) == numbered(0, 5)
        assert client.read(0, x_stream_offset=dt.datetime(2100, 1, 1, tzinfo=dt.UTC)) == []

    def test_offset_after_the_end_reads_nothing(self, client: StreamClient) -> None:
        client.declare()
        client.fill(5)
        assert client.read(0, x_stream_offset=1000) == []

    def test_publishers_headers_are_kept(self, client: StreamClient) -> None:
        client.declare()
        client.fill(1, properties=pika.BasicProperties(headers={"a": "two", "b": 1}, message_id="9", delivery_mode=1))
        channel = client.connection.channel()
        channel.basic_qos(prefetch_count=1)
        for method, properties, body in channel.consume(client.name, arguments={"x-stream-offset": "first"}):
            assert (method.routing_key, body) == (client.name, b"m0")
            assert list(properties.headers.items()) == [("a", "two"), ("b", 1), ("x-stream-offset", 0)]
            assert (properties.message_id, properties.delivery_mode) == ("9", 1)
            break
        channel.close()

    def test_messages_are_routed_through_an_exchange(self, client: StreamClient) -> None:
        client.declare()
        client.channel.exchange_declare(client.name, "topic")
        client.channel.queue_bind(client.name, client.name, "a.#")
        for key in ("a", "a.b", "c"):
            client.channel.basic_publish(client.name, key, key.encode())
        assert client.read(2, x_stream_offset="first") == [(0, b"a"), (1, b"a.b")]
        client.channel.exchange_delete(client.name)

    def test_large_messages_are_read(self, client: StreamClient) -> None:
        client.declare()
        bodies = [bytes([number]) * (300_000 * number) for number in range(4)]
        for body in bodies:
            client.channel.basic_publish("", client.name, body)
        assert [body for _, body in client.read(4, x_stream_offset="first")] == bodies


class TestCredit:
    def test_acks_give_credit(self, client: StreamClient) -> None:
        client.declare()
        client.fill(20)
        channel = client.connection.channel()
        channel.basic_qos(prefetch_count=4)
        tags: list[int] = []
        take = lambda _channel, method, _properties, _body: tags.append(method.delivery_tag)  # noqa: E731
        channel.basic_consume(client.name, take, arguments={"x-stream-offset": "first"})

        def has_received(count: int) -> bool:
            client.connection.process_data_events(0.05)
            return len(tags) >= count

        wait_for(lambda: has_received(4))
        channel.basic_ack(2)
        wait_for(lambda: has_received(5))
        channel.basic_ack(5, multiple=True)
        wait_for(lambda: has_received(9))
        client.connection.process_data_events(0.3)
        assert tags == list(range(1, 10))
        channel.close()

    def test_global_qos_after_consume_is_accepted(self, client: StreamClient) -> None:
        client.declare()
        channel = client.connection.channel()
        channel.basic_qos(prefetch_count=5)
        channel.basic_consume(client.name, lambda *each: None)
        channel.basic_qos(prefetch_count=5, global_qos=True)
        channel.close()

    def test_unacked_messages_can_be_read_again(self, client: StreamClient) -> None:
        client.declare()
        client.fill(10)
        assert client.read(10, settle=False, x_stream_offset="first") == numbered(0, 10)
        assert client.read(10, x_stream_offset="first") == numbered(0, 10)


REFUSED = "not supported by stream queues queue 'S' in vhost '/'"


def consume(name: str, prefetch: int = 1, **how: Any) -> Callable[[BlockingChannel], object]:
    def does(channel: BlockingChannel) -> None:
        if prefetch:
            channel.basic_qos(prefetch_count=prefetch)
        channel.basic_consume(name, lambda *each: None, **how)

    return does


def declare(name: str, arguments: dict[str, Any]) -> Callable[[BlockingChannel], object]:
    return lambda channel: channel.queue_declare(name, durable=True, arguments=STREAM | arguments)


class TestRefusedOperations:
    def test_consume_without_prefetch_is_refused(self, client: StreamClient) -> None:
        client.declare()
        text = client.refusal_text(406, consume(client.name, 0))
        assert text == "consumer prefetch count is not set for 'queue 'S' in vhost '/''"

    def test_consume_with_auto_ack_is_refused(self, client: StreamClient) -> None:
        client.declare()
        assert client.refusal_text(540, consume(client.name, auto_ack=True)) == f"automatic acknowledgement {REFUSED}"

    def test_consume_with_global_qos_is_refused(self, client: StreamClient) -> None:
        client.declare()

        def both(channel: BlockingChannel) -> None:
            channel.basic_qos(prefetch_count=1)
            channel.basic_qos(prefetch_count=1, global_qos=True)
            channel.basic_consume(client.name, lambda *each: None)

        assert client.refusal_text(540, both) == "queue 'S' in vhost '/' does not support global qos"

    def test_basic_get_is_refused(self, client: StreamClient) -> None:
        client.declare()
        assert client.refusal_text(540, lambda channel: channel.basic_get(client.name)) == f"basic.get {REFUSED}"

    def test_purge_is_refused(self, client: StreamClient) -> None:
        client.declare()
        assert client.refusal_text(540, lambda channel: channel.queue_purge(client.name)) == f"queue.purge {REFUSED}"

    @pytest.mark.parametrize("how", ["reject", "reject requeue", "nack", "nack all"])
    def test_nack_and_reject_are_refused(self, client: StreamClient, how: str) -> None:
        client.declare()
        client.fill(3)

        def give_back(channel: BlockingChannel) -> None:
            channel.basic_qos(prefetch_count=2)
            for method, _, _ in channel.consume(client.name, arguments={"x-stream-offset": "first"}):
                if "nack" in how:
                    channel.basic_nack(method.delivery_tag, multiple="all" in how)
                else:
                    channel.basic_reject(method.delivery_tag, requeue="requeue" in how)
                channel.connection.process_data_events(5)

        assert client.refusal_text(540, give_back) == f"basic.nack and basic.reject {REFUSED}"

    @pytest.mark.parametrize("offset", ["5x", "0m"])
    def test_invalid_offset_is_refused(self, client: StreamClient, offset: str) -> None:
        client.declare()
        text = client.refusal_text(406, consume(client.name, arguments={"x-stream-offset": offset}))
        wrong = f'{{invalid_stream_offset_arg,{{longstr,<<"{offset}">>}}}}'
        assert text == f"invalid arg 'x-stream-offset' for queue 'S' in vhost '/': {wrong}"

    def test_consumer_priority_is_refused(self, client: StreamClient) -> None:
        client.declare()
        text = client.refusal_text(406, consume(client.name, arguments={"x-priority": 1}))
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
    def test_invalid_stream_argument_is_refused(self, client: StreamClient, name: str, value: Any, why: str) -> None:
        text = client.refusal_text(406, declare(client.name, {name: value}))
        assert text == f"invalid arg '{name}' for queue 'S' in vhost '/': {why}"

    def test_too_large_segment_size_is_refused(self, client: StreamClient) -> None:
        size = {"x-stream-max-segment-size-bytes": 3_000_000_001}
        text = client.refusal_text(406, declare(client.name, size))
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
    def test_argument_of_other_queue_types_is_refused(self, client: StreamClient, name: str, value: Any) -> None:
        text = client.refusal_text(406, declare(client.name, {name: value}))
        assert text == f"invalid arg '{name}' for queue 'S' in vhost '/' of queue type rabbit_stream_queue"

    @pytest.mark.parametrize(
        ("flags", "what"),
        [
            ({}, "non-durable"),
            ({"durable": True, "exclusive": True}, "exclusive-owner"),
            ({"durable": True, "auto_delete": True}, "auto-delete"),
        ],
    )
    def test_stream_must_be_durable_shared_and_permanent(
        self, client: StreamClient, flags: dict[str, bool], what: str
    ) -> None:
        text = client.refusal_text(406, lambda channel: channel.queue_declare(client.name, arguments=STREAM, **flags))
        assert text == f"invalid property '{what}' for queue 'S' in vhost '/'"


class TestAmqpdOnly:
    """Features that RabbitMQ has only in its stream protocol, or not at all."""

    @pytest.fixture(autouse=True)
    def skip_on_rabbitmq(self, broker: Broker) -> None:
        if broker.is_rabbitmq:
            pytest.skip("not over AMQP 0-9-1 in RabbitMQ")

    def test_named_consumer_resumes_at_its_stored_offset(self, client: StreamClient) -> None:
        client.declare()
        client.fill(4)
        assert client.read(4, x_stream_consumer_name="me", x_stream_offset="first") == numbered(0, 4)
        client.fill(6, first=4)
        assert client.read(6, x_stream_consumer_name="me", x_stream_offset="first") == numbered(4, 10)
        assert client.read(10, x_stream_consumer_name="other", x_stream_offset="first") == numbered(0, 10)
        listed = client.broker.run_ctl("--formatter", "json", "list_stream_offsets", client.name)
        assert listed.returncode == 0, listed.stderr
        assert [(each["name"], each["offset"], each["lag"]) for each in json.loads(listed.stdout)] == [
            ("me", 10, 0),
            ("other", 10, 0),
        ]

    def test_single_active_consumer_is_replaced(self, client: StreamClient) -> None:
        client.declare(x_single_active_consumer=True)
        client.fill(10)
        got: dict[str, list[bytes]] = {"first": [], "second": []}
        channels = {name: client.connection.channel() for name in got}
        for name, channel in channels.items():
            channel.basic_qos(prefetch_count=3)
            take = lambda _channel, _method, _properties, body, name=name: got[name].append(body)  # noqa: E731
            channel.basic_consume(client.name, take, arguments={"x-stream-offset": "first"})
        wait_for(lambda: client.connection.process_data_events(0.01) or len(got["first"]) == 3)
        channels["first"].basic_ack(1)
        wait_for(lambda: client.connection.process_data_events(0.01) or len(got["first"]) == 4)
        assert got["second"] == []
        channels["first"].close()
        wait_for(lambda: client.connection.process_data_events(0.01) or len(got["second"]) == 3)
        assert got["second"] == [b"m1", b"m2", b"m3"]
        channels["second"].close()

    def test_second_consumer_beside_an_exclusive_one_is_refused(self, client: StreamClient) -> None:
        client.declare()
        channel = client.connection.channel()
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume(client.name, lambda *each: None, exclusive=True)

        def second(other: BlockingChannel) -> None:
            other.basic_qos(prefetch_count=1)
            other.basic_consume(client.name, lambda *each: None)

        assert client.refusal_text(403, second) == "queue 'S' in vhost '/' in exclusive use"
        channel.close()

    def test_recover_is_refused(self, client: StreamClient) -> None:
        client.declare()
        client.fill(1)

        def recover(channel: BlockingChannel) -> None:
            channel.basic_qos(prefetch_count=1)
            for _ in channel.consume(client.name, arguments={"x-stream-offset": "first"}):
                channel.basic_recover(requeue=True)

        assert client.refusal_text(540, recover) == f"basic.recover {REFUSED}"

    def test_http_api_shows_the_streams_consumer(self, client: StreamClient) -> None:
        client.declare(x_max_age="7D")
        client.fill(6)
        channel = client.connection.channel()
        channel.basic_qos(prefetch_count=4)
        got: list[bytes] = []
        channel.basic_consume(client.name, lambda *each: got.append(each[3]), arguments={"x-stream-offset": "first"})
        wait_for(lambda: client.connection.process_data_events(0.01) or len(got) == 4)
        item = wait_for(
            lambda: next(
                iter(
                    each
                    for each in [client.broker.api("GET", f"/api/queues/%2F/{client.name}")]
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
