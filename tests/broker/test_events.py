"""Delivery of events: order, slices, limits, alarms. tests/management/test_events.py tests their content."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from amqpd.broker import events
from amqpd.broker.events import ACTOR, COUNT_MAX, INTERNAL, Event, Events, as_broker


class Loop:
    """Events on a loop whose callbacks run in `turns`."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.published: list[Event] = []
        self.events = Events(self.soon.append)
        self.events.publish = self.published.append
        self.events.exchange_bound = True

    def turns(self) -> int:
        count = 0
        while self.soon:
            self.soon.pop(0)()
            count += 1
        return count


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_event_without_binding_is_not_scheduled(loop: Loop) -> None:
    loop.events.exchange_bound = False
    loop.events.emit("queue.created", {"name": "q"})
    assert loop.soon == []


def test_events_are_published_in_order_in_one_later_turn(loop: Loop) -> None:
    loop.events.emit("a.created", {"n": 1})
    loop.events.emit("b.created", {"n": 2}, "guest")
    loop.events.emit("c.created", {"n": 3}, "")
    assert loop.published == []
    assert loop.turns() == 1
    assert [event.key for event in loop.published] == ["a.created", "b.created", "c.created"]
    users = [event.headers.get("user_who_performed_action") for event in loop.published]
    assert users == [INTERNAL, "guest", None]
    assert all(event.headers["timestamp_in_ms"] == event.at_ms for event in loop.published)


def test_actor_of_internal_action_is_internal_user(loop: Loop) -> None:
    token = ACTOR.set("ann")
    with as_broker():
        loop.events.emit("a.created", {})
    with pytest.raises(KeyError), as_broker():
        raise KeyError
    loop.events.emit("b.created", {})
    ACTOR.reset(token)
    loop.turns()
    assert [event.headers["user_who_performed_action"] for event in loop.published] == [INTERNAL, "ann"]


def test_actor_is_user_who_performed_action(loop: Loop) -> None:
    token = ACTOR.set("ann")
    loop.events.emit("a.created", {})
    ACTOR.reset(token)
    loop.turns()
    assert loop.published[0].headers["user_who_performed_action"] == "ann"


def test_events_are_published_in_slices(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "SLICE_S", 0.0)
    for number in range(5):
        loop.events.emit("a.created", {"n": number})
    assert loop.turns() == 5
    assert len(loop.published) == 5


def test_excess_events_are_dropped_and_logged(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(COUNT_MAX + 7):
        loop.events.emit("a.created", {"n": number})
    with caplog.at_level(logging.WARNING):
        loop.turns()
    assert len(loop.published) == COUNT_MAX
    assert "7 events are lost" in caplog.text


def test_only_alarm_events_are_published_during_alarm(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    loop.events.alarmed = True
    loop.events.emit("queue.created", {})
    loop.events.emit("alarm.set", {"source": "disk"}, "")
    with caplog.at_level(logging.WARNING):
        loop.turns()
    assert [event.key for event in loop.published] == ["alarm.set"]
    assert "1 events are lost: too many, during an alarm" in caplog.text
