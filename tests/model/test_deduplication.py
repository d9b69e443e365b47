"""x-message-deduplication with pending messages: copies before the first is safe, failed writes, transactions."""

from __future__ import annotations

from collections.abc import Iterator

import pamqp.commands as spec
import pytest
from memory_broker import Client, MemoryBroker
from test_publisher import Front

from amqpd.broker.publish import fanout
from amqpd.broker.publish.deduplication import DeduplicationCache
from amqpd.protocol.properties import Properties, encode_properties
from amqpd.routing.stateful import Deduplication


@pytest.fixture
def server() -> Iterator[MemoryBroker]:
    server = MemoryBroker()
    client = Client(server, "client")
    client.say(1, spec.Channel.Open())
    for name, persistence in (("once", "memory"), ("disk", "disk")):
        arguments = {"x-cache-size": 3, "x-cache-persistence": persistence}
        client.say(
            1,
            spec.Exchange.Declare(
                exchange=name, exchange_type="x-message-deduplication", durable=True, arguments=arguments
            ),
        )
        client.say(1, spec.Queue.Declare(queue=name, durable=True))
        client.say(1, spec.Queue.Bind(queue=name, exchange=name))
    server.settle()
    yield server
    server.end()


def deduplication_properties(message_id: object, mode: int = 2) -> bytes:
    return encode_properties(Properties(headers={"x-deduplication-header": message_id}, delivery_mode=mode))


def ready(server: MemoryBroker, name: str) -> int:
    return server.vhost.queue(name).ready_count


def cache_of(server: MemoryBroker, name: str) -> DeduplicationCache:
    matcher = server.vhost.exchanges[name].matcher
    assert isinstance(matcher, Deduplication) and isinstance(matcher.memory, DeduplicationCache)
    return matcher.memory


@pytest.mark.parametrize("name", ["once", "disk"])
def test_duplicate_is_confirmed_when_first_copy_is_safe(server: MemoryBroker, name: str) -> None:
    front, other = Front(server), Front(server)
    front.publish(name, "", deduplication_properties("a"))
    other.publish(name, "", deduplication_properties("a"))
    other.publish(name, "", deduplication_properties("a", mode=1))
    assert (front.replies(), other.replies()) == ([], [])
    server.settle()
    assert (front.replies(), other.replies()) == (["OK 1-1"], ["OK 1-2"])
    other.publish(name, "", deduplication_properties("a"))
    server.settle()
    assert other.replies() == ["OK 3-3"]
    assert ready(server, name) == 1 and cache_of(server, name).copy_count == 3


@pytest.mark.parametrize("name", ["once", "disk"])
def test_id_that_expires_before_its_message_is_safe(server: MemoryBroker, name: str) -> None:
    """The next message with this id is new."""
    front = Front(server)
    headers = {"x-deduplication-header": "a", "x-cache-ttl": 0}
    for _ in range(2):
        front.publish(name, "", encode_properties(Properties(headers=headers, delivery_mode=2)))
    assert front.replies() == []
    server.settle()
    assert (front.replies(), ready(server, name)) == (["OK 1-2"], 2)


@pytest.mark.parametrize("name", ["once", "disk"])
def test_failed_write_is_not_remembered_as_seen(server: MemoryBroker, name: str) -> None:
    server.broker.alarms.check = lambda: None  # type: ignore[method-assign]
    front, other = Front(server), Front(server)
    capacity = server.filesystem.capacity
    server.filesystem.capacity = server.filesystem.used()
    front.publish(name, "", deduplication_properties("a"))
    other.publish(name, "", deduplication_properties("a"))
    server.settle()
    assert (front.replies(), other.replies()) == (["LOST 1-1"], ["LOST 1-1"])
    assert cache_of(server, name).count() == 0
    server.filesystem.capacity = capacity
    for _ in range(2):
        other.publish(name, "", deduplication_properties("a"))
        server.settle()
    assert ready(server, name) <= 1
    assert [line[:2] for line in other.replies()] in (
        ["OK", "OK"],
        ["LO", "LO"],
    )  # the failed log may refuse all writes


@pytest.mark.parametrize("name", ["once", "disk"])
def test_message_and_duplicate_refused_by_queue_are_nacked_once_each(server: MemoryBroker, name: str) -> None:
    client = Client(server, "confirmed")
    full = {"x-max-length": 0, "x-overflow": "reject-publish"}
    client.say(1, spec.Channel.Open(), spec.Confirm.Select(), spec.Queue.Delete(queue=name))
    client.say(1, spec.Queue.Declare(queue=name, durable=True, arguments=full))
    client.say(1, spec.Queue.Bind(queue=name, exchange=name))
    server.settle()
    client.heard()
    client.publish(1, "", [b"1", b"2"], deduplication_properties("a"), exchange=name)
    server.settle()
    client.publish(1, "", [b"3"], deduplication_properties("b"), exchange=name)
    server.settle()
    answers = [event.method for event in client.heard()]
    assert [(each.name, each.delivery_tag, each.multiple) for each in answers] == [
        ("Basic.Nack", number, True)  # all earlier publishes were answered
        for number in (1, 2, 3)
    ]


def test_duplicate_during_sliced_fanout_is_not_delivered(server: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "SLICE_S", 0.0)
    names = [f"q{number}" for number in range(fanout.WIDE_COUNT + 200)]
    client, other = Client(server, "client"), Client(server, "other")
    for each in (client, other):
        each.say(1, spec.Channel.Open(), spec.Confirm.Select())
    for queue in names:
        client.say(1, spec.Queue.Declare(queue=queue), spec.Queue.Bind(queue=queue, exchange="once"))
        server.settle()
    for each in (client, other):
        each.heard()
        each.publish(1, "", [b"x"], deduplication_properties("a"), exchange="once")
    assert {ready(server, queue) for queue in names} == {0, 1}  # the fan-out of the first copy is not complete
    server.settle()
    assert {ready(server, queue) for queue in names} == {1}
    for each in (client, other):
        assert [event.method.name for event in each.heard()] == ["Basic.Ack"]


@pytest.mark.parametrize("name", ["once", "disk"])
def test_refused_messages_evict_nothing_from_cache(server: MemoryBroker, name: str) -> None:
    """The cache holds three entries."""
    client, front = Client(server, "other"), Front(server)
    client.say(1, spec.Channel.Open())
    for number in range(3):
        front.publish(name, "", deduplication_properties(number))
    server.settle()
    full = {"x-max-length": 0, "x-overflow": "reject-publish"}
    client.say(1, spec.Queue.Declare(queue="full", arguments=full), spec.Queue.Bind(queue="full", exchange=name))
    server.settle()
    for number in range(3, 9):
        front.publish(name, "", deduplication_properties(number))
    server.settle()
    client.say(1, spec.Queue.Delete(queue="full"))
    server.settle()
    for number in range(3):
        front.publish(name, "", deduplication_properties(number))
    server.settle()
    assert cache_of(server, name).copy_count == 3
    assert ready(server, name) == 9


@pytest.mark.parametrize("name", ["once", "disk"])
@pytest.mark.parametrize("count", [3, 3000])
def test_deduplication_within_transaction_and_after_rollback(server: MemoryBroker, name: str, count: int) -> None:
    """Duplicates within a transaction are dropped; a rollback remembers nothing; a large transaction commits in
    slices.
    """
    cache_of(server, name).size = 10_000
    client, front = Client(server, "tx"), Front(server)
    client.say(1, spec.Channel.Open(), spec.Tx.Select())
    for end, expected in ((spec.Tx.Rollback(), 0), (spec.Tx.Commit(), count)):
        for number in range(2 * count):
            client.publish(1, "", [b"x"], deduplication_properties(number % count), exchange=name)
        front.publish(name, "", deduplication_properties(0))
        server.settle()
        assert front.replies() == []
        client.say(1, end)
        server.settle()
        assert ready(server, name) == expected
        assert front.replies() == (["OK 2-2"] if expected else ["LOST 1-1"])
    front.publish(name, "", deduplication_properties(count - 1))
    server.settle()
    assert (ready(server, name), front.replies()) == (count, ["OK 3-3"])


def test_channel_close_forgets_ids_of_open_transaction(server: MemoryBroker) -> None:
    client, front = Client(server, "tx"), Front(server)
    client.say(1, spec.Channel.Open(), spec.Tx.Select())
    client.publish(1, "", [b"x"], deduplication_properties("a"), exchange="disk")
    client.say(1, spec.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0))
    front.publish("disk", "", deduplication_properties("a"))
    server.settle()
    assert (ready(server, "disk"), front.replies()) == (1, ["OK 1-1"])
