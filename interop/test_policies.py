"""Policies as in RabbitMQ's documentation (Policies, TTL, Queue Length, Dead Letter Exchanges, Alternate Exchanges),
set with the control command and checked with pika.
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
    """Sets policies for unique names and clears them at the end."""

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


def test_message_ttl_of_a_policy_expires_messages(
    policies: Policies, channel: BlockingChannel, unique: Unique, eventually: Any
) -> None:
    """RabbitMQ applies the queue's TTL when a message arrives, so earlier messages stay. amqpd applies the current TTL
    to all messages. Here the policy is set first.
    """
    name = queue(channel, unique("ttl"))
    policies.set(name, f"^{name}$", {"message-ttl": 100}, "--apply-to", "queues")
    fill(channel, name)
    eventually(lambda: channel.queue_declare(name, passive=True).method.message_count == 0)
    policies.clear(name)
    fill(channel, name)
    time.sleep(0.3)
    assert len(take(channel, name)) == 5


def test_lower_expires_counts_and_a_used_queue_stays(
    policies: Policies, channel: BlockingChannel, broker: Any, unique: Unique, eventually: Any
) -> None:
    name, used = unique("expires"), unique("expires-used")
    queue(channel, name, expires=60_000)
    queue(channel, used)
    consumer = channel.basic_consume(used, lambda *_: None)
    policies.set(name, f"^({name}|{used})$", {"expires": 200}, "--apply-to", "queues")

    def is_deleted() -> bool:
        other = channel.connection.channel()
        try:
            other.queue_declare(name, passive=True)
        except pika.exceptions.ChannelClosedByBroker as error:
            return bool(error.reply_code == 404)
        other.close()
        time.sleep(0.5)  # each check counts as a use
        return False

    assert eventually(is_deleted)
    channel.queue_declare(used, passive=True)
    policies.clear(name)
    channel.basic_cancel(consumer)
    time.sleep(0.5)
    channel.queue_declare(used, passive=True)


def test_max_length_applies_to_existing_and_new_queues(
    policies: Policies, channel: BlockingChannel, unique: Unique
) -> None:
    old, new = queue(channel, unique("old")), unique("new")
    fill(channel, old)
    policies.set(old, f"^({old}|{new})$", {"max-length": 2}, "--apply-to", "queues")
    queue(channel, new)
    fill(channel, new)
    assert take(channel, old) == take(channel, new) == ["3", "4"]
    policies.clear(old)
    fill(channel, old)
    assert len(take(channel, old)) == 5


def test_max_length_bytes_with_reject_publish_nacks(
    policies: Policies, channel: BlockingChannel, unique: Unique
) -> None:
    name = queue(channel, unique("bytes"))
    policies.set(name, f"^{name}$", {"max-length-bytes": 2, "overflow": "reject-publish"}, "--apply-to", "queues")
    fill(channel, name, 2)
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", name, b"2")
    assert take(channel, name) == ["0", "1"]


def test_dead_letter_exchange_of_a_policy(
    policies: Policies, channel: BlockingChannel, unique: Unique, eventually: Any
) -> None:
    name, dead, exchange = queue(channel, unique("work")), queue(channel, unique("dead")), unique("my-dlx")
    channel.exchange_declare(exchange, "direct")
    channel.queue_bind(dead, exchange, "key")
    definition = {"dead-letter-exchange": exchange, "dead-letter-routing-key": "key"}
    policies.set(name, f"^{name}$", definition, "--apply-to", "queues")
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


def test_dead_letter_exchange_argument_precedes_the_policy(
    policies: Policies, channel: BlockingChannel, unique: Unique, eventually: Any
) -> None:
    dlq_of_argument, dlq_of_policy = queue(channel, unique("mine")), queue(channel, unique("theirs"))
    name = queue(channel, unique("work"), dead_letter_exchange="", dead_letter_routing_key=dlq_of_argument)
    policies.set(
        name, f"^{name}$", {"dead-letter-exchange": "", "dead-letter-routing-key": dlq_of_policy, "max-length": 1}
    )
    fill(channel, name, 2)
    assert eventually(lambda: take(channel, dlq_of_argument)) == ["0"]
    assert take(channel, dlq_of_policy) == []


def test_alternate_exchange_of_a_policy(policies: Policies, channel: BlockingChannel, unique: Unique) -> None:
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


def test_only_the_policy_of_highest_priority_applies(
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


def test_lowest_number_of_argument_policy_and_operator_policy_counts(
    policies: Policies, channel: BlockingChannel, unique: Unique
) -> None:
    small, large = unique("small"), unique("large")
    queue(channel, small, max_length=2)
    queue(channel, large, max_length=4)
    policies.set(small, f"^({small}|{large})$", {"max-length": 3})

    def remaining_counts() -> list[int]:
        fill(channel, small)
        fill(channel, large)
        return [len(take(channel, small)), len(take(channel, large))]

    assert remaining_counts() == [2, 3]
    policies.set(large, f"^{large}$", {"max-length": 1}, operator="operator_")
    assert remaining_counts() == [2, 1]
    policies.clear(large, "operator_")
    policies.clear(small)
    assert remaining_counts() == [2, 4]


def test_policy_for_exchanges_does_not_apply_to_queues(
    policies: Policies, channel: BlockingChannel, unique: Unique
) -> None:
    name = queue(channel, unique("q"))
    policies.set(name, f"^{name}$", {"max-length": 1}, "--apply-to", "exchanges")
    fill(channel, name)
    assert len(take(channel, name)) == 5


def test_pattern_with_negative_lookahead(policies: Policies, channel: BlockingChannel, unique: Unique) -> None:
    """RabbitMQ's guides use this pattern; RE2 does not support it."""
    name, other = queue(channel, unique("mine")), queue(channel, unique("amq-mine"))
    head = other[: other.index("amq") + 3]
    policies.set(name, f"^(?!{head}).*", {"max-length": 1}, "--apply-to", "queues", "--priority", "-3")
    fill(channel, name)
    fill(channel, other)
    assert [len(take(channel, name)), len(take(channel, other))] == [1, 5]


def test_policy_applies_to_server_named_exclusive_queue(
    policies: Policies, channel: BlockingChannel, unique: Unique
) -> None:
    policies.set(unique("gen"), r"^amq\.gen-", {"max-length": 1}, "--apply-to", "queues")
    name = channel.queue_declare("", exclusive=True).method.queue
    fill(channel, name)
    assert take(channel, name) == ["4"]


def test_invalid_policy_is_refused_with_rabbitmqs_text(broker: Any, unique: Unique) -> None:
    for definition, error_text in (
        ('{"max-length": -5}', "-5 is not a valid maximum length"),
        ('{"no-such-key": 1}', '[{<<"no-such-key">>,1}] are not recognised policy settings'),
        ("{}", "no policy provided"),
        ("junk", "JSON decoding error. Reason: "),
    ):
        done = broker.run_ctl("set_policy", unique("p"), "^x$", definition)
        assert done.returncode == 69
        assert error_text in done.stderr
    done = broker.run_ctl("clear_policy", unique("none"))
    assert (done.returncode, "Parameter does not exist" in done.stderr) == (69, True)
