"""Policies as RabbitMQ's documentation shows them (Policies, TTL, Queue Length, Dead Letter Exchanges, Alternate
Exchanges), set with the control command and seen by pika.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

Unique = Callable[[str], str]


class Policies:
    """Sets policies over names that nobody else uses, and clears them at the end."""

    def __init__(self, broker: Any) -> None:
        self.broker = broker
        self.left: dict[tuple[str, str], None] = {}

    def _run(self, *arguments: str) -> str:
        done = self.broker.run_ctl(*arguments)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return str(done.stdout)

    def set(self, name: str, pattern: str, definition: dict[str, Any], *options: str, operator: str = "") -> None:
        self._run(f"set_{operator}policy", name, pattern, json.dumps(definition), *options)
        self.left[operator, name] = None

    def clear(self, name: str, operator: str = "") -> None:
        self._run(f"clear_{operator}policy", name)
        del self.left[operator, name]


@pytest.fixture
def policies(broker: Any) -> Iterator[Policies]:
    policies = Policies(broker)
    yield policies
    for operator, name in list(policies.left):
        policies.clear(name, operator)


def take(channel: BlockingChannel, queue: str) -> list[str]:
    bodies = []
    while (got := channel.basic_get(queue, auto_ack=True))[0]:
        bodies.append(got[2].decode())
    return bodies


def fill(channel: BlockingChannel, queue: str, count: int = 5) -> None:
    for number in range(count):
        channel.basic_publish("", queue, str(number).encode())


def queue(channel: BlockingChannel, name: str, **arguments: Any) -> str:
    table = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    channel.queue_declare(name, durable=True, arguments=table)
    return name


def test_time_to_live(policies: Policies, channel: BlockingChannel, unique: Unique, eventually: Any) -> None:
    """With RabbitMQ a message ages by what its queue said when it came, so what was there before stays; with ours by
    what the queue says, so it goes too."""
    name = queue(channel, unique("ttl"))
    policies.set(name, f"^{name}$", {"message-ttl": 100}, "--apply-to", "queues")
    fill(channel, name)
    eventually(lambda: channel.queue_declare(name, passive=True).method.message_count == 0)
    policies.clear(name)
    fill(channel, name)
    time.sleep(0.3)
    assert len(take(channel, name)) == 5


def test_expires(policies: Policies, channel: BlockingChannel, broker: Any, unique: Unique, eventually: Any) -> None:
    """Of the argument and the policy the lower number; and a queue that is in use stays."""
    name, used = unique("expires"), unique("expires-used")
    queue(channel, name, expires=60_000)
    queue(channel, used)
    consumer = channel.basic_consume(used, lambda *_: None)
    policies.set(name, f"^({name}|{used})$", {"expires": 200}, "--apply-to", "queues")

    def gone() -> bool:
        other = channel.connection.channel()
        try:
            other.queue_declare(name, passive=True)
        except pika.exceptions.ChannelClosedByBroker as error:
            return bool(error.reply_code == 404)
        other.close()
        time.sleep(0.5)  # to ask for it is to use it
        return False

    assert eventually(gone)
    channel.queue_declare(used, passive=True)
    policies.clear(name)
    channel.basic_cancel(consumer)
    time.sleep(0.5)
    channel.queue_declare(used, passive=True)


def test_length(policies: Policies, channel: BlockingChannel, unique: Unique) -> None:
    old, new = queue(channel, unique("old")), unique("new")
    fill(channel, old)
    policies.set(old, f"^({old}|{new})$", {"max-length": 2}, "--apply-to", "queues")
    queue(channel, new)
    fill(channel, new)
    assert take(channel, old) == take(channel, new) == ["3", "4"]
    policies.clear(old)
    fill(channel, old)
    assert len(take(channel, old)) == 5


def test_length_in_bytes_and_what_happens_beyond(policies: Policies, channel: BlockingChannel, unique: Unique) -> None:
    name = queue(channel, unique("bytes"))
    policies.set(name, f"^{name}$", {"max-length-bytes": 2, "overflow": "reject-publish"}, "--apply-to", "queues")
    fill(channel, name, 2)
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", name, b"2")
    assert take(channel, name) == ["0", "1"]


def test_dead_letters(policies: Policies, channel: BlockingChannel, unique: Unique, eventually: Any) -> None:
    name, dead, exchange = queue(channel, unique("work")), queue(channel, unique("dead")), unique("my-dlx")
    channel.exchange_declare(exchange, "direct")
    channel.queue_bind(dead, exchange, "key")
    said = {"dead-letter-exchange": exchange, "dead-letter-routing-key": "key"}
    policies.set(name, f"^{name}$", said, "--apply-to", "queues")
    channel.basic_publish("", name, b"rejected")
    got = channel.basic_get(name)[0]
    channel.basic_reject(got.delivery_tag, requeue=False)
    assert eventually(lambda: take(channel, dead)) == ["rejected"]
    policies.clear(name)
    channel.basic_publish("", name, b"gone")
    got = channel.basic_get(name)[0]
    channel.basic_reject(got.delivery_tag, requeue=False)
    time.sleep(0.2)
    assert take(channel, dead) == []
    channel.exchange_delete(exchange)


def test_the_arguments_dead_letter_exchange_holds(
    policies: Policies, channel: BlockingChannel, unique: Unique, eventually: Any
) -> None:
    mine, theirs = queue(channel, unique("mine")), queue(channel, unique("theirs"))
    name = queue(channel, unique("work"), dead_letter_exchange="", dead_letter_routing_key=mine)
    policies.set(name, f"^{name}$", {"dead-letter-exchange": "", "dead-letter-routing-key": theirs, "max-length": 1})
    fill(channel, name, 2)
    assert eventually(lambda: take(channel, mine)) == ["0"]
    assert take(channel, theirs) == []


def test_alternate_exchange(policies: Policies, channel: BlockingChannel, unique: Unique) -> None:
    exchange, alternate, name = unique("my-direct"), unique("my-ae"), queue(channel, unique("unrouted"))
    channel.exchange_declare(exchange, "direct")
    channel.exchange_declare(alternate, "fanout")
    channel.queue_bind(name, alternate)
    policies.set(exchange, f"^{exchange}$", {"alternate-exchange": alternate}, "--apply-to", "exchanges")
    channel.basic_publish(exchange, "key2", b"caught", mandatory=True)
    assert take(channel, name) == ["caught"]
    policies.clear(exchange)
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish(exchange, "key2", b"returned", mandatory=True)
    channel.exchange_delete(exchange)
    channel.exchange_delete(alternate)


def test_of_two_the_higher_priority_holds_alone(
    policies: Policies, channel: BlockingChannel, unique: Unique, eventually: Any
) -> None:
    name = queue(channel, unique("q"))
    policies.set(f"{name}-low", f"^{name}", {"max-length": 1, "message-ttl": 1}, "--priority", "1")
    policies.set(f"{name}-high", f"^{name}", {"max-length": 3}, "--priority", "2")
    fill(channel, name)
    time.sleep(0.1)
    assert take(channel, name) == ["2", "3", "4"]
    policies.clear(f"{name}-high")
    fill(channel, name)
    eventually(lambda: channel.queue_declare(name, passive=True).method.message_count == 0)


def test_of_numbers_the_lowest_holds(policies: Policies, channel: BlockingChannel, unique: Unique) -> None:
    small, large = unique("small"), unique("large")
    queue(channel, small, max_length=2)
    queue(channel, large, max_length=4)
    policies.set(small, f"^({small}|{large})$", {"max-length": 3})

    def left() -> list[int]:
        fill(channel, small)
        fill(channel, large)
        return [len(take(channel, small)), len(take(channel, large))]

    assert left() == [2, 3]
    policies.set(large, f"^{large}$", {"max-length": 1}, operator="operator_")
    assert left() == [2, 1]
    policies.clear(large, "operator_")
    policies.clear(small)
    assert left() == [2, 4]


def test_what_it_applies_to(policies: Policies, channel: BlockingChannel, unique: Unique) -> None:
    name = queue(channel, unique("q"))
    policies.set(name, f"^{name}$", {"max-length": 1}, "--apply-to", "exchanges")
    fill(channel, name)
    assert len(take(channel, name)) == 5


def test_all_but_the_brokers_own(policies: Policies, channel: BlockingChannel, unique: Unique) -> None:
    """The pattern of RabbitMQ's guides, which a plain RE2 does not take."""
    name, other = queue(channel, unique("mine")), queue(channel, unique("amq-mine"))
    head = other[: other.index("amq") + 3]
    policies.set(name, f"^(?!{head}).*", {"max-length": 1}, "--apply-to", "queues", "--priority", "-3")
    fill(channel, name)
    fill(channel, other)
    assert [len(take(channel, name)), len(take(channel, other))] == [1, 5]


def test_a_server_named_queue_and_an_exclusive_one(
    policies: Policies, channel: BlockingChannel, unique: Unique
) -> None:
    policies.set(unique("gen"), r"^amq\.gen-", {"max-length": 1}, "--apply-to", "queues")
    name = channel.queue_declare("", exclusive=True).method.queue
    fill(channel, name)
    assert take(channel, name) == ["4"]


def test_refusals(broker: Any, unique: Unique) -> None:
    for definition, told in (
        ('{"max-length": -5}', "-5 is not a valid maximum length"),
        ('{"no-such-key": 1}', '[{<<"no-such-key">>,1}] are not recognised policy settings'),
        ("{}", "no policy provided"),
        ("junk", "JSON decoding error. Reason: "),
    ):
        done = broker.run_ctl("set_policy", unique("p"), "^x$", definition)
        assert done.returncode == 69
        assert told in done.stderr
    done = broker.run_ctl("clear_policy", unique("none"))
    assert (done.returncode, "Parameter does not exist" in done.stderr) == (69, True)
