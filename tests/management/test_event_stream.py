"""Events over HTTP for consume_event_stream; threads for maybe_stuck and runtime_thread_stats."""

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


class FakeLoop:
    """An event loop whose call_soon callbacks run in `emit`."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []
        self.events = Events(self.callbacks.append)

    def emit(self, key: str) -> None:
        self.events.emit(key, {"name": key})
        while self.callbacks:
            self.callbacks.pop(0)()


def keys(found: list[Event]) -> list[str]:
    return [event.key for event in found]


def test_recorder_receives_events_with_and_without_exchange_binding() -> None:
    loop = FakeLoop()
    published: list[Event] = []
    loop.events.publish = published.append
    loop.emit("before")
    recorder = EventRecorder(loop.events)
    loop.emit("a")
    assert keys(recorder.events_since(0)[1]) == ["a"]
    loop.events.bind(True)
    loop.emit("b")
    loop.events.bind(False)
    loop.emit("c")
    assert keys(recorder.events_since(1)[1]) == ["b", "c"] and recorder.events_since(3) == (3, [])
    assert keys(published) == ["a", "b", "c"]  # without a binding the exchange drops them
    loop.events.watch(None)
    loop.emit("after")
    assert keys(published) == ["a", "b", "c"] and not loop.events.exchange_bound


def test_recorder_keeps_the_newest_events() -> None:
    loop = FakeLoop()
    recorder = EventRecorder(loop.events)
    for number in range(COUNT_MAX + 5):
        recorder.on_event(Event(f"{number}", {}, 0))
    position, found = recorder.events_since(0)
    assert (position, keys(found)[0], len(found)) == (5 + ANSWER_MAX, "5", ANSWER_MAX)
    assert keys(recorder.events_since(COUNT_MAX + 3)[1]) == [f"{COUNT_MAX + 3}", f"{COUNT_MAX + 4}"]


def test_recorder_stops_after_idle_time_without_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = FakeLoop()
    now = 1000.0
    monkeypatch.setattr(diagnostics.time, "monotonic", lambda: now)
    recorder = EventRecorder(loop.events)
    now += IDLE_S
    loop.emit("a")
    recorder.events_since(0)
    now += IDLE_S + 1
    loop.emit("b")
    assert not loop.events.exchange_bound and loop.events.watcher is None


def test_http_returns_events_after_position(amqpd_broker: BrokerProcess) -> None:
    """The first request starts the recording. Later requests get the events since then."""
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


def test_threads_show_the_one_that_answers(amqpd_broker: BrokerProcess) -> None:
    found = amqpd_broker.api("GET", "/api/amqpd/threads")
    answering_threads = [each for each in found if any("get_threads" in line for line in each["at"])]
    assert [each["name"] for each in answering_threads] == ["MainThread"]
    assert answering_threads[0]["user_s"] > 0 and answering_threads[0]["state"] == "R"
    assert all(each["state"] in "RSDTI" for each in found)
