"""Route cache for keys published the first time: changes of bindings and permissions take effect at once."""

from __future__ import annotations

from collections.abc import Iterator

import pamqp.commands as spec
import pamqp.frame
import pytest
from memory_broker import Client, MemoryBroker

from amqpd.broker.publish.publisher import ROUTES_MAX

PLAIN = b"\0\0"


@pytest.fixture
def memory_broker() -> Iterator[MemoryBroker]:
    memory_broker = MemoryBroker()
    yield memory_broker
    memory_broker.end()


@pytest.fixture
def client(memory_broker: MemoryBroker) -> Client:
    client = Client(memory_broker, "client")
    client.say(1, spec.Channel.Open())
    client.say(1, spec.Exchange.Declare(exchange="t", exchange_type="topic"))
    for queue, pattern in (("a", "a.#"), ("b", "*.b")):
        client.say(1, spec.Queue.Declare(queue=queue), spec.Queue.Bind(queue=queue, exchange="t", routing_key=pattern))
    memory_broker.loop.run()
    client.heard()
    return client


def counts(memory_broker: MemoryBroker) -> tuple[int, ...]:
    return tuple(memory_broker.vhost.queues[name].ready_count for name in ("a", "b"))


def test_new_keys_are_routed(memory_broker: MemoryBroker, client: Client) -> None:
    for number in range(10):
        client.publish(1, f"a.{number}", [b"x", b"y"], PLAIN, "t")
        client.publish(1, f"{number}.b", [b"z"], PLAIN, "t")
        client.publish(1, f"{number}.c", [b"nobody's"], PLAIN, "t")
    client.publish(1, "a.b", [b"both"], PLAIN, "t")
    assert counts(memory_broker) == (21, 11)


def test_delivery_has_its_own_routing_key(memory_broker: MemoryBroker, client: Client) -> None:
    client.say(1, spec.Basic.Consume(queue="a", no_ack=True))
    memory_broker.loop.run()
    client.heard()
    keys = ["a.1", "a.22", "a.333", "a.1", "a", "a.\u00e9"]
    for key in keys:
        client.publish(1, key, [b"x"], PLAIN, "t")
    memory_broker.loop.run()
    received_events = client.heard()
    assert [event.method.routing_key for event in received_events] == keys
    assert {(event.method.exchange, event.body) for event in received_events} == {("t", b"x")}


def test_publishes_that_differ_only_in_properties(memory_broker: MemoryBroker, client: Client) -> None:
    """The cached header is used for the next publish only if the whole content header is identical."""
    short, long, persistent = b"\x01\x00\x0510000", b"\x01\x00\x0560000", b"\x10\x00\x02"
    order = [short, short, short, long, short, PLAIN, PLAIN, persistent, persistent, PLAIN, long, long, long]
    for properties in order:
        client.publish(1, "a.1", [b"x"], properties, "t")
    queue = memory_broker.vhost.queues["a"]
    messages = []
    while (entry := queue.take()) is not None:
        messages.append(entry.message)
    assert [each.properties() for each in messages] == order
    assert [each.persistent for each in messages] == [each is persistent for each in order]
    expirations = [None if each.info is None else each.info.expiration for each in messages]
    assert expirations == [{short: b"10000", long: b"60000"}.get(each) for each in order]


def test_missing_default_exchange_queue_is_not_cached(memory_broker: MemoryBroker, client: Client) -> None:
    """A route to no queue is not cached, because the declaration of that queue does not clear the cache."""
    for _ in range(3):
        client.publish(1, "late", [b"x"], PLAIN, "")
    client.say(1, spec.Queue.Declare(queue="late"))
    memory_broker.loop.run()
    for _ in range(3):
        client.publish(1, "late", [b"x"], PLAIN, "")
    assert memory_broker.vhost.queues["late"].ready_count == 3


def test_new_binding_applies_to_next_publish(memory_broker: MemoryBroker, client: Client) -> None:
    client.publish(1, "x.1", [b"x"], PLAIN, "t")
    client.publish(1, "x.2", [b"x"], PLAIN, "t")
    client.say(1, spec.Queue.Bind(queue="a", exchange="t", routing_key="x.*"))
    memory_broker.loop.run()
    client.publish(1, "x.3", [b"x"], PLAIN, "t")
    client.publish(1, "x.1", [b"x"], PLAIN, "t")
    assert counts(memory_broker) == (2, 0)
    client.say(1, spec.Exchange.Declare(exchange="h", exchange_type="headers"))
    client.say(1, spec.Exchange.Bind(destination="h", source="t", routing_key="#"))
    client.say(1, spec.Queue.Bind(queue="b", exchange="h", arguments={"x-match": "all", "k": "v"}))
    memory_broker.loop.run()
    client.publish(1, "y.4", [b"x"], PLAIN, "t")
    client.publish(1, "y.5", [b"x"], b"\x20\0\0\0\0\x08\x01kS\0\0\0\x01v", "t")
    assert counts(memory_broker) == (2, 1)


def test_changed_topic_permissions_apply_to_next_publish(
    memory_broker: MemoryBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.publish(1, "a.1", [b"x"], PLAIN, "t")
    monkeypatch.setattr(memory_broker.broker.auth, "has_topic_permissions", lambda *_: True)
    monkeypatch.setattr(memory_broker.broker.auth, "is_topic_allowed", lambda *arguments: arguments[-1] != "a.3")
    client.connection.clear_route_cache()
    client.publish(1, "a.2", [b"x"], PLAIN, "t")
    client.publish(1, "a.3", [b"x"], PLAIN, "t")
    memory_broker.loop.run()
    assert counts(memory_broker) == (2, 0)
    assert [event.method.reply_code for event in client.heard()] == [403]


def test_unroutable_new_key_is_returned(memory_broker: MemoryBroker, client: Client) -> None:
    client.publish(1, "a.1", [b"x"], PLAIN, "t")
    method = spec.Basic.Publish(exchange="t", routing_key="q.1", mandatory=True)
    frames = [pamqp.frame.marshal(method, 1), b"\x02\0\x01\0\0\0\x0e\0\x3c\0\0" + bytes(8) + PLAIN + b"\xce"]
    client.connection.receive(b"".join(frames))
    memory_broker.loop.run()
    (event,) = client.heard()
    assert (event.method.name, event.method.routing_key) == ("Basic.Return", "q.1")


def test_route_cache_is_bounded(memory_broker: MemoryBroker, client: Client) -> None:
    channel = client.connection.channels.by_number[1]
    for number in range(ROUTES_MAX + 50):
        client.publish(1, f"n.{number}", [b""], PLAIN, "t")
    assert len(channel.publisher._routes) < 60
    client.publish(1, "a.b", [b"x"], PLAIN, "t")
    assert counts(memory_broker) == (1, 1)


def test_routes_to_deleted_queues_leave_the_cache(memory_broker: MemoryBroker, client: Client) -> None:
    """A server that answers to one reply queue after another would keep the last thousands of them in memory."""
    for number in range(300):
        client.publish(1, f"a.{number}", [b""], PLAIN, "t")
    for number in range(2000):
        client.say(1, spec.Queue.Declare(queue=f"reply-{number}"))
        client.publish(1, f"reply-{number}", [b"x"], PLAIN, "")
        client.say(1, spec.Queue.Delete(queue=f"reply-{number}"))
        memory_broker.loop.run()
    routes = client.connection.channels.by_number[1].publisher._routes
    assert sum(route.version != route.source.version for route in routes.values()) <= 300
    assert sum(route.version == route.source.version for route in routes.values()) == 300
    assert counts(memory_broker) == (300, 0)
