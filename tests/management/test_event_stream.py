"""Events over HTTP, as consume_event_stream asks for them; threads, as maybe_stuck and runtime_thread_stats do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pika
import pytest

from amqpd.broker.events import Event, Events
from amqpd.management import diagnostics
from amqpd.management.diagnostics import ANSWER_MAX, COUNT_MAX, IDLE_S, EventRecorder
from amqpd.testing import BrokerProcess


class Loop:
    """call_soon, run by hand."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.events = Events(self.soon.append)

    def tell(self, key: str) -> None:
        self.events.emit(key, {"name": key})
        while self.soon:
            self.soon.pop(0)()


def keys(found: list[Event]) -> list[str]:
    return [event.key for event in found]


def test_it_hears_with_and_without_the_exchange() -> None:
    loop = Loop()
    published: list[Event] = []
    loop.events.publish = published.append
    loop.tell("before")
    watch = EventRecorder(loop.events)
    loop.tell("a")
    assert keys(watch.events_since(0)[1]) == ["a"]
    loop.events.bind(True)
    loop.tell("b")
    loop.events.bind(False)
    loop.tell("c")
    assert keys(watch.events_since(1)[1]) == ["b", "c"] and watch.events_since(3) == (3, [])
    assert keys(published) == ["a", "b", "c"]  # who routes to nobody drops them
    loop.events.watch(None)
    loop.tell("after")
    assert keys(published) == ["a", "b", "c"] and not loop.events.exchange_bound


def test_the_last_of_them_are_kept() -> None:
    loop = Loop()
    watch = EventRecorder(loop.events)
    for number in range(COUNT_MAX + 5):
        watch.on_event(Event(f"{number}", {}, 0))
    position, found = watch.events_since(0)
    assert (position, keys(found)[0], len(found)) == (5 + ANSWER_MAX, "5", ANSWER_MAX)
    assert keys(watch.events_since(COUNT_MAX + 3)[1]) == [f"{COUNT_MAX + 3}", f"{COUNT_MAX + 4}"]


def test_it_ends_when_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    now = 1000.0
    monkeypatch.setattr(diagnostics.time, "monotonic", lambda: now)
    watch = EventRecorder(loop.events)
    now += IDLE_S
    loop.tell("a")
    watch.events_since(0)
    now += IDLE_S + 1
    loop.tell("b")
    assert not loop.events.exchange_bound and loop.events.watcher is None


def test_over_http(amqpd_broker: BrokerProcess) -> None:
    """Nobody is told what was before the first question, everybody what came after it."""
    position = amqpd_broker.api("GET", "/api/amqpd/events")["position"]
    with pika.BlockingConnection(pika.URLParameters(amqpd_broker.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("event-stream", arguments={"x-max-length": 5})
        channel.queue_delete("event-stream")
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + 30
    while "connection.closed" not in [each["event"] for each in found]:
        assert time.monotonic() < deadline, found
        answer = amqpd_broker.api("GET", f"/api/amqpd/events?position={position}")
        position = answer["position"]
        assert answer["lost"] == 0
        found += answer["events"]
    created = next(each for each in found if each["event"] == "queue.created" and each["name"] == "event-stream")
    assert created["arguments"] == {"x-max-length": 5}
    assert created["timestamp_in_ms"] > 1_600_000_000_000
    names = [each["event"] for each in found]
    assert names.index("connection.created") < names.index("queue.created") < names.index("queue.deleted")


def test_threads(amqpd_broker: BrokerProcess) -> None:
    found = amqpd_broker.api("GET", "/api/amqpd/threads")
    answering = [each for each in found if any("get_threads" in place for place in each["at"])]
    assert [each["name"] for each in answering] == ["MainThread"]
    assert answering[0]["user_s"] > 0 and answering[0]["state"] == "R"
    assert all(each["state"] in "RSDTI" for each in found)
