"""Routes of keys that come for the first time, by the short way: whatever changes meanwhile is obeyed at once."""

from __future__ import annotations

from collections.abc import Iterator

import pamqp.commands as spec
import pamqp.frame
import pytest
from memory_broker import Client, MemoryBroker

from amqpd.broker.publish.publisher import ROUTES_MAX

PLAIN = b"\0\0"


@pytest.fixture
def house() -> Iterator[MemoryBroker]:
    house = MemoryBroker()
    yield house
    house.end()


@pytest.fixture
def client(house: MemoryBroker) -> Client:
    client = Client(house, "client")
    client.say(1, spec.Channel.Open())
    client.say(1, spec.Exchange.Declare(exchange="t", exchange_type="topic"))
    for queue, pattern in (("a", "a.#"), ("b", "*.b")):
        client.say(1, spec.Queue.Declare(queue=queue), spec.Queue.Bind(queue=queue, exchange="t", routing_key=pattern))
    house.loop.run()
    client.heard()
    return client


def counts(house: MemoryBroker) -> tuple[int, ...]:
    return tuple(house.vhost.queues[name].ready_count for name in ("a", "b"))


def test_each_new_key_is_matched(house: MemoryBroker, client: Client) -> None:
    for number in range(10):
        client.publish(1, f"a.{number}", [b"x", b"y"], PLAIN, "t")
        client.publish(1, f"{number}.b", [b"z"], PLAIN, "t")
        client.publish(1, f"{number}.c", [b"nobody's"], PLAIN, "t")
    client.publish(1, "a.b", [b"both"], PLAIN, "t")
    assert counts(house) == (21, 11)


def test_a_delivery_names_its_own_key(house: MemoryBroker, client: Client) -> None:
    client.say(1, spec.Basic.Consume(queue="a", no_ack=True))
    house.loop.run()
    client.heard()
    keys = ["a.1", "a.22", "a.333", "a.1", "a", "a.\u00e9"]
    for key in keys:
        client.publish(1, key, [b"x"], PLAIN, "t")
    house.loop.run()
    heard = client.heard()
    assert [event.method.routing_key for event in heard] == keys
    assert {(event.method.exchange, event.body) for event in heard} == {("t", b"x")}


def test_publishes_alike_but_for_their_properties(house: MemoryBroker, client: Client) -> None:
    """What is known of one publish is used for the next one only where the whole content header is the same."""
    short, long, persistent = b"\x01\x00\x0510000", b"\x01\x00\x0560000", b"\x10\x00\x02"
    order = [short, short, short, long, short, PLAIN, PLAIN, persistent, persistent, PLAIN, long, long, long]
    for properties in order:
        client.publish(1, "a.1", [b"x"], properties, "t")
    queue = house.vhost.queues["a"]
    messages = []
    while (entry := queue.take()) is not None:
        messages.append(entry.message)
    assert [each.properties() for each in messages] == order
    assert [each.persistent for each in messages] == [each is persistent for each in order]
    expirations = [None if each.info is None else each.info.expiration for each in messages]
    assert expirations == [{short: b"10000", long: b"60000"}.get(each) for each in order]


def test_a_default_exchange_key_without_a_queue_is_asked_for_each_time(house: MemoryBroker, client: Client) -> None:
    """Nothing tells a route to nowhere that its queue has come: it is not kept, however alike the publishes are."""
    for _ in range(3):
        client.publish(1, "late", [b"x"], PLAIN, "")
    client.say(1, spec.Queue.Declare(queue="late"))
    house.loop.run()
    for _ in range(3):
        client.publish(1, "late", [b"x"], PLAIN, "")
    assert house.vhost.queues["late"].ready_count == 3


def test_a_binding_made_between_two_keys_counts(house: MemoryBroker, client: Client) -> None:
    client.publish(1, "x.1", [b"x"], PLAIN, "t")
    client.publish(1, "x.2", [b"x"], PLAIN, "t")
    client.say(1, spec.Queue.Bind(queue="a", exchange="t", routing_key="x.*"))
    house.loop.run()
    client.publish(1, "x.3", [b"x"], PLAIN, "t")
    client.publish(1, "x.1", [b"x"], PLAIN, "t")
    assert counts(house) == (2, 0)
    client.say(1, spec.Exchange.Declare(exchange="h", exchange_type="headers"))
    client.say(1, spec.Exchange.Bind(destination="h", source="t", routing_key="#"))
    client.say(1, spec.Queue.Bind(queue="b", exchange="h", arguments={"x-match": "all", "k": "v"}))
    house.loop.run()
    client.publish(1, "y.4", [b"x"], PLAIN, "t")
    client.publish(1, "y.5", [b"x"], b"\x20\0\0\0\0\x08\x01kS\0\0\0\x01v", "t")
    assert counts(house) == (2, 1)


def test_permissions_that_change_are_asked_again(
    house: MemoryBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.publish(1, "a.1", [b"x"], PLAIN, "t")
    monkeypatch.setattr(house.broker.auth, "has_topic_permissions", lambda *_: True)
    monkeypatch.setattr(house.broker.auth, "is_topic_allowed", lambda *arguments: arguments[-1] != "a.3")
    client.connection.clear_route_cache()
    client.publish(1, "a.2", [b"x"], PLAIN, "t")
    client.publish(1, "a.3", [b"x"], PLAIN, "t")
    house.loop.run()
    assert counts(house) == (2, 0)
    assert [event.method.reply_code for event in client.heard()] == [403]


def test_an_unroutable_new_key_comes_back(house: MemoryBroker, client: Client) -> None:
    client.publish(1, "a.1", [b"x"], PLAIN, "t")
    method = spec.Basic.Publish(exchange="t", routing_key="q.1", mandatory=True)
    frames = [pamqp.frame.marshal(method, 1), b"\x02\0\x01\0\0\0\x0e\0\x3c\0\0" + bytes(8) + PLAIN + b"\xce"]
    client.connection.receive(b"".join(frames))
    house.loop.run()
    (event,) = client.heard()
    assert (event.method.name, event.method.routing_key) == ("Basic.Return", "q.1")


def test_keys_that_never_come_twice_do_not_fill_memory(house: MemoryBroker, client: Client) -> None:
    channel = client.connection.channels.by_number[1]
    for number in range(ROUTES_MAX + 50):
        client.publish(1, f"n.{number}", [b""], PLAIN, "t")
    assert len(channel.publisher._routes) < 60
    client.publish(1, "a.b", [b"x"], PLAIN, "t")
    assert counts(house) == (1, 1)
