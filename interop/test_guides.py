"""The examples of RabbitMQ's guides as short programs: Time-To-Live, Queue Length Limit, Dead Letter Exchanges,
Priority Queues, Consumer Priorities, Single Active Consumer, Alternate Exchanges, Sender-selected Distribution,
Exchange to Exchange Bindings. Policies, limits, streams, filters and the firehose have their own files.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

Unique = Callable[[str], str]


def queue(channel: BlockingChannel, name: str, **arguments: Any) -> str:
    table = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    channel.queue_declare(name, exclusive=True, arguments=table)
    return name


def publish(channel: BlockingChannel, key: str, *bodies: str, exchange: str = "", **properties: Any) -> None:
    for body in bodies:
        channel.basic_publish(exchange, key, body.encode(), pika.BasicProperties(**properties))


def take(channel: BlockingChannel, name: str, count: int, within_s: float = 30.0) -> list[tuple[str, dict[str, Any]]]:
    """Return up to `count` messages with headers that arrive in time."""
    found: list[tuple[str, dict[str, Any]]] = []
    deadline = time.monotonic() + within_s
    while len(found) < count and time.monotonic() < deadline:
        method, properties, body = channel.basic_get(name, auto_ack=True)
        if method:
            found.append((body.decode(), dict(properties.headers or {})))
        else:
            time.sleep(0.01)
    return found


def bodies(channel: BlockingChannel, name: str, count: int) -> list[str]:
    return [body for body, _ in take(channel, name, count)]


def ready(channel: BlockingChannel, name: str) -> int:
    return int(channel.queue_declare(name, passive=True).method.message_count)


def wait_for_messages(channel: BlockingChannel, count: int, within_s: float = 30.0) -> Callable[[list[Any]], None]:
    def until(found: list[Any]) -> None:
        deadline = time.monotonic() + within_s
        while len(found) < count and time.monotonic() < deadline:
            channel.connection.process_data_events(0.02)
        assert len(found) == count

    return until


def wait_for_expiry(channel: BlockingChannel, name: str) -> None:
    """Check repeatedly, less and less often, if the queue exists: each check counts as a use."""
    for seconds in (0.5, 1, 2, 4, 8, 16, 32):
        time.sleep(seconds)
        ready(channel, name)


class TestTimeToLive:
    def test_message_ttl_of_a_queue(self, channel: BlockingChannel, unique: Unique, eventually: Any) -> None:
        name = queue(channel, unique("q"), message_ttl=100)
        publish(channel, name, "gone", delivery_mode=2)
        eventually(lambda: ready(channel, name) == 0)

    def test_expiration_of_a_message(self, channel: BlockingChannel, unique: Unique, eventually: Any) -> None:
        name = queue(channel, unique("q"))
        publish(channel, name, "gone", expiration="100")
        publish(channel, name, "stays")
        eventually(lambda: ready(channel, name) == 1)
        assert bodies(channel, name, 1) == ["stays"]

    def test_lower_ttl_of_queue_and_message_counts(
        self, channel: BlockingChannel, unique: Unique, eventually: Any
    ) -> None:
        name = queue(channel, unique("q"), message_ttl=100)
        publish(channel, name, "gone", expiration="60000")
        eventually(lambda: ready(channel, name) == 0)

    def test_unused_queue_expires(self, channel: BlockingChannel, unique: Unique) -> None:
        name = queue(channel, unique("q"), expires=200)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
            wait_for_expiry(channel, name)
        assert closed.value.reply_code == 404


class TestLengthLimit:
    def test_max_length_drops_the_oldest(self, channel: BlockingChannel, unique: Unique) -> None:
        name = queue(channel, unique("q"), max_length=2)
        publish(channel, name, "1", "2", "3")
        assert bodies(channel, name, 2) == ["2", "3"]

    def test_max_length_bytes_drops_the_oldest(self, channel: BlockingChannel, unique: Unique) -> None:
        name = queue(channel, unique("q"), max_length_bytes=10)
        publish(channel, name, "aaaaaa", "bbbbbb")
        assert bodies(channel, name, 1) == ["bbbbbb"]

    def test_reject_publish_nacks_the_publisher(self, channel: BlockingChannel, unique: Unique) -> None:
        name = queue(channel, unique("q"), max_length=1, overflow="reject-publish")
        publish(channel, name, "1")
        with pytest.raises(pika.exceptions.NackError):
            publish(channel, name, "2")
        assert bodies(channel, name, 1) == ["1"]

    def test_reject_publish_dlx_dead_letters_the_message(self, channel: BlockingChannel, unique: Unique) -> None:
        dead = queue(channel, unique("dead"))
        limits = {"dead_letter_exchange": "", "dead_letter_routing_key": dead}
        name = queue(channel, unique("q"), max_length=1, overflow="reject-publish-dlx", **limits)
        publish(channel, name, "1")
        with pytest.raises(pika.exceptions.NackError):
            publish(channel, name, "2")
        assert bodies(channel, dead, 1) == ["2"]


class TestDeadLetters:
    @pytest.mark.parametrize(
        ("reason", "arguments", "expiration"),
        [("rejected", {}, None), ("expired", {}, "50"), ("maxlen", {"max_length": 0}, None)],
    )
    def test_dead_letter_has_x_death_with_the_reason(
        self,
        channel: BlockingChannel,
        unique: Unique,
        reason: str,
        arguments: dict[str, Any],
        expiration: str | None,
    ) -> None:
        """A dead letter keeps its routing key. Its headers say where, why and how often it was dead-lettered."""
        exchange, dead = unique("dlx"), queue(channel, unique("dead"))
        channel.exchange_declare(exchange, "fanout", auto_delete=True)
        channel.queue_bind(dead, exchange)
        name = queue(channel, unique("q"), dead_letter_exchange=exchange, **arguments)
        publish(channel, name, "letter", expiration=expiration)
        if reason == "rejected":
            method = channel.basic_get(name)[0]
            channel.basic_reject(method.delivery_tag, requeue=False)
        ((body, headers),) = take(channel, dead, 1)
        assert body == "letter"
        (death,) = headers["x-death"]
        assert (death["reason"], death["queue"], death["exchange"]) == (reason, name, "")
        assert (death["count"], death["routing-keys"]) == (1, [name])
        assert death.get("original-expiration") == expiration
        assert (headers["x-first-death-reason"], headers["x-first-death-queue"]) == (reason, name)

    def test_dead_letter_routing_key_replaces_the_key(self, channel: BlockingChannel, unique: Unique) -> None:
        dead = queue(channel, unique("dead"))
        name = queue(channel, unique("q"), dead_letter_exchange="", dead_letter_routing_key=dead)
        publish(channel, name, "letter")
        channel.basic_nack(channel.basic_get(name)[0].delivery_tag, requeue=False)
        assert bodies(channel, dead, 1) == ["letter"]

    def test_retry_with_a_delay_queue_counts_in_x_death(self, channel: BlockingChannel, unique: Unique) -> None:
        """Two queues: the delay queue dead-letters back to the work queue, and each round is counted."""
        work, later = unique("work"), unique("later")
        queue(channel, work, dead_letter_exchange="", dead_letter_routing_key=later)
        queue(channel, later, dead_letter_exchange="", dead_letter_routing_key=work, message_ttl=50)
        publish(channel, work, "task")
        for tries in range(3):
            method = properties = None
            deadline = time.monotonic() + 30
            while method is None and time.monotonic() < deadline:
                method, properties, _ = channel.basic_get(work)
            assert method is not None
            deaths = (properties.headers or {}).get("x-death", [])
            assert [(each["queue"], each["reason"], each["count"]) for each in deaths] == (
                [(later, "expired", tries), (work, "rejected", tries)] if tries else []
            )
            channel.basic_reject(method.delivery_tag, requeue=False)


class TestPriorities:
    def test_higher_message_priority_is_delivered_first(self, channel: BlockingChannel, unique: Unique) -> None:
        name = queue(channel, unique("q"), max_priority=10)
        for priority in (1, 5, 10, 3, 200):
            publish(channel, name, f"{priority}", priority=priority)
        publish(channel, name, "none")
        assert bodies(channel, name, 6) == ["10", "200", "5", "3", "1", "none"]

    def test_low_priority_consumer_gets_what_the_other_cannot_take(
        self, channel: BlockingChannel, unique: Unique
    ) -> None:
        """The consumer of high priority has no credit left."""
        name = queue(channel, unique("q"))
        channel.basic_qos(prefetch_count=1)
        got: list[tuple[str, str]] = []

        def on_message(_channel: Any, method: Any, _properties: Any, body: bytes) -> None:
            got.append((method.consumer_tag, body.decode()))

        channel.basic_consume(name, on_message, consumer_tag="low", arguments={"x-priority": -5})
        channel.basic_consume(name, on_message, consumer_tag="high", arguments={"x-priority": 10})
        publish(channel, name, "1")
        wait_for_messages(channel, 1)(got)
        publish(channel, name, "2")
        wait_for_messages(channel, 2)(got)
        assert got == [("high", "1"), ("low", "2")]

    def test_only_the_active_consumer_gets_messages(self, channel: BlockingChannel, unique: Unique) -> None:
        name = queue(channel, unique("q"), single_active_consumer=True)
        got: list[tuple[str, str]] = []

        def on_message(_channel: Any, method: Any, _properties: Any, body: bytes) -> None:
            got.append((method.consumer_tag, body.decode()))

        channel.basic_consume(name, on_message, auto_ack=True, consumer_tag="first")
        channel.basic_consume(name, on_message, auto_ack=True, consumer_tag="second")
        publish(channel, name, "1", "2")
        wait_for_messages(channel, 2)(got)
        channel.basic_cancel("first")
        publish(channel, name, "3")
        wait_for_messages(channel, 3)(got)
        assert got == [("first", "1"), ("first", "2"), ("second", "3")]


class TestRouting:
    def test_alternate_exchange_gets_unrouted_messages(self, channel: BlockingChannel, unique: Unique) -> None:
        alternate, exchange = unique("ae"), unique("x")
        channel.exchange_declare(alternate, "fanout", auto_delete=True)
        channel.exchange_declare(exchange, "direct", auto_delete=True, arguments={"alternate-exchange": alternate})
        routed, unrouted = queue(channel, unique("routed")), queue(channel, unique("unrouted"))
        channel.queue_bind(routed, exchange, "key1")
        channel.queue_bind(unrouted, alternate)
        publish(channel, "key1", "known", exchange=exchange)
        publish(channel, "key2", "unknown", exchange=exchange)
        assert bodies(channel, routed, 1) == ["known"]
        assert bodies(channel, unrouted, 1) == ["unknown"]

    def test_cc_and_bcc_add_destinations(self, channel: BlockingChannel, unique: Unique) -> None:
        names = [queue(channel, unique(name)) for name in ("to", "cc", "bcc")]
        publish(channel, names[0], "letter", headers={"CC": [names[1]], "BCC": [names[2]]})
        found = [take(channel, name, 1) for name in names]
        assert found == [[("letter", {"CC": [names[1]]})]] * 3

    def test_exchange_to_exchange_binding_routes(self, channel: BlockingChannel, unique: Unique) -> None:
        source, destination = unique("source"), unique("destination")
        channel.exchange_declare(source, "direct", auto_delete=True)
        channel.exchange_declare(destination, "fanout", auto_delete=True)
        channel.exchange_bind(destination, source, "key")
        name = queue(channel, unique("q"))
        channel.queue_bind(name, destination)
        publish(channel, "key", "through", exchange=source)
        publish(channel, "other", "not", exchange=source)
        assert bodies(channel, name, 1) == ["through"]
        assert ready(channel, name) == 0
