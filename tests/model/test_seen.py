"""x-message-deduplication while messages are on their way: copies that come before the first is safe, failures, tx."""

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
def house() -> Iterator[MemoryBroker]:
    house = MemoryBroker()
    client = Client(house, "client")
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
    house.settle()
    yield house
    house.end()


def marked(ident: object, mode: int = 2) -> bytes:
    return encode_properties(Properties(headers={"x-deduplication-header": ident}, delivery_mode=mode))


def ready(house: MemoryBroker, name: str) -> int:
    return house.vhost.queue(name).ready_count


def seen(house: MemoryBroker, name: str) -> DeduplicationCache:
    matcher = house.vhost.exchanges[name].matcher
    assert isinstance(matcher, Deduplication) and isinstance(matcher.memory, DeduplicationCache)
    return matcher.memory


@pytest.mark.parametrize("name", ["once", "disk"])
def test_a_copy_is_confirmed_with_the_first(house: MemoryBroker, name: str) -> None:
    front, other = Front(house), Front(house)
    front.publish(name, "", marked("a"))
    other.publish(name, "", marked("a"))
    other.publish(name, "", marked("a", mode=1))
    assert (front.heard(), other.heard()) == ([], [])
    house.settle()
    assert (front.heard(), other.heard()) == (["OK 1-1"], ["OK 1-2"])
    other.publish(name, "", marked("a"))
    house.settle()
    assert other.heard() == ["OK 3-3"]
    assert ready(house, name) == 1 and seen(house, name).copy_count == 3


@pytest.mark.parametrize("name", ["once", "disk"])
def test_what_could_not_be_written_has_not_been_seen(house: MemoryBroker, name: str) -> None:
    house.broker.alarms.check = lambda: None  # type: ignore[method-assign]
    front, other = Front(house), Front(house)
    capacity = house.filesystem.capacity
    house.filesystem.capacity = house.filesystem.used()
    front.publish(name, "", marked("a"))
    other.publish(name, "", marked("a"))
    house.settle()
    assert (front.heard(), other.heard()) == (["LOST 1-1"], ["LOST 1-1"])
    assert seen(house, name).count() == 0
    house.filesystem.capacity = capacity
    for _ in range(2):
        other.publish(name, "", marked("a"))
        house.settle()
    assert ready(house, name) <= 1
    assert [line[:2] for line in other.heard()] in (["OK", "OK"], ["LO", "LO"])  # the log may take nothing any more


@pytest.mark.parametrize("name", ["once", "disk"])
def test_what_a_queue_refuses_is_nacked_once(house: MemoryBroker, name: str) -> None:
    client = Client(house, "confirmed")
    full = {"x-max-length": 0, "x-overflow": "reject-publish"}
    client.say(1, spec.Channel.Open(), spec.Confirm.Select(), spec.Queue.Delete(queue=name))
    client.say(1, spec.Queue.Declare(queue=name, durable=True, arguments=full))
    client.say(1, spec.Queue.Bind(queue=name, exchange=name))
    house.settle()
    client.heard()
    client.publish(1, "", [b"1", b"2"], marked("a"), exchange=name)
    house.settle()
    client.publish(1, "", [b"3"], marked("b"), exchange=name)
    house.settle()
    answers = [event.method for event in client.heard()]
    assert [(each.name, each.delivery_tag, each.multiple) for each in answers] == [
        ("Basic.Nack", number, False) for number in (1, 2, 3)
    ]


def test_a_copy_that_comes_while_the_first_goes_to_very_many_queues(
    house: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "SLICE_S", 0.0)
    names = [f"q{number}" for number in range(fanout.WIDE_COUNT + 200)]
    client, other = Client(house, "client"), Client(house, "other")
    for each in (client, other):
        each.say(1, spec.Channel.Open(), spec.Confirm.Select())
    for queue in names:
        client.say(1, spec.Queue.Declare(queue=queue), spec.Queue.Bind(queue=queue, exchange="once"))
        house.settle()
    for each in (client, other):
        each.heard()
        each.publish(1, "", [b"x"], marked("a"), exchange="once")
    assert {ready(house, queue) for queue in names} == {0, 1}  # the first is on its way, in no order
    house.settle()
    assert {ready(house, queue) for queue in names} == {1}
    for each in (client, other):
        assert [event.method.name for event in each.heard()] == ["Basic.Ack"]


@pytest.mark.parametrize("name", ["once", "disk"])
def test_what_is_refused_pushes_nothing_out(house: MemoryBroker, name: str) -> None:
    """The cache has room for three."""
    client, front = Client(house, "other"), Front(house)
    client.say(1, spec.Channel.Open())
    for number in range(3):
        front.publish(name, "", marked(number))
    house.settle()
    full = {"x-max-length": 0, "x-overflow": "reject-publish"}
    client.say(1, spec.Queue.Declare(queue="full", arguments=full), spec.Queue.Bind(queue="full", exchange=name))
    house.settle()
    for number in range(3, 9):
        front.publish(name, "", marked(number))
    house.settle()
    client.say(1, spec.Queue.Delete(queue="full"))
    house.settle()
    for number in range(3):
        front.publish(name, "", marked(number))
    house.settle()
    assert seen(house, name).copy_count == 3
    assert ready(house, name) == 9


@pytest.mark.parametrize("name", ["once", "disk"])
@pytest.mark.parametrize("count", [3, 3000])
def test_a_transaction(house: MemoryBroker, name: str, count: int) -> None:
    """Its copies are copies of what it has itself; rolled back, nothing has been seen; a large one goes in slices."""
    seen(house, name).size = 10_000
    client, front = Client(house, "tx"), Front(house)
    client.say(1, spec.Channel.Open(), spec.Tx.Select())
    for end, is_there in ((spec.Tx.Rollback(), 0), (spec.Tx.Commit(), count)):
        for number in range(2 * count):
            client.publish(1, "", [b"x"], marked(number % count), exchange=name)
        front.publish(name, "", marked(0))
        house.settle()
        assert front.heard() == []
        client.say(1, end)
        house.settle()
        assert ready(house, name) == is_there
        assert front.heard() == (["OK 2-2"] if is_there else ["LOST 1-1"])
    front.publish(name, "", marked(count - 1))
    house.settle()
    assert (ready(house, name), front.heard()) == (count, ["OK 3-3"])


def test_a_transaction_that_ends_with_its_channel(house: MemoryBroker) -> None:
    client, front = Client(house, "tx"), Front(house)
    client.say(1, spec.Channel.Open(), spec.Tx.Select())
    client.publish(1, "", [b"x"], marked("a"), exchange="disk")
    client.say(1, spec.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0))
    front.publish("disk", "", marked("a"))
    house.settle()
    assert (ready(house, "disk"), front.heard()) == (1, ["OK 1-1"])
