"""Events while nobody listens, in a flood, and during an alarm. What they say: tests/management/test_events.py."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from amqpd.broker import events
from amqpd.broker.events import ACTOR, COUNT_MAX, INTERNAL, Event, Events, as_broker


class Loop:
    """call_soon, run by hand."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.told: list[Event] = []
        self.events = Events(self.soon.append)
        self.events.publish = self.told.append
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


def test_nobody_listens(loop: Loop) -> None:
    loop.events.exchange_bound = False
    loop.events.emit("queue.created", {"name": "q"})
    assert loop.soon == []


def test_they_are_told_in_a_turn_of_their_own_and_in_order(loop: Loop) -> None:
    loop.events.emit("a.created", {"n": 1})
    loop.events.emit("b.created", {"n": 2}, "guest")
    loop.events.emit("c.created", {"n": 3}, "")
    assert loop.told == []
    assert loop.turns() == 1
    assert [event.key for event in loop.told] == ["a.created", "b.created", "c.created"]
    who = [event.headers.get("user_who_performed_action") for event in loop.told]
    assert who == [INTERNAL, "guest", None]
    assert all(event.headers["timestamp_in_ms"] == event.at_ms for event in loop.told)


def test_nobody_did_what_happens_by_itself(loop: Loop) -> None:
    token = ACTOR.set("ann")
    with as_broker():
        loop.events.emit("a.created", {})
    with pytest.raises(KeyError), as_broker():
        raise KeyError
    loop.events.emit("b.created", {})
    ACTOR.reset(token)
    loop.turns()
    assert [event.headers["user_who_performed_action"] for event in loop.told] == [INTERNAL, "ann"]


def test_who_did_it(loop: Loop) -> None:
    token = ACTOR.set("ann")
    loop.events.emit("a.created", {})
    ACTOR.reset(token)
    loop.turns()
    assert loop.told[0].headers["user_who_performed_action"] == "ann"


def test_in_slices(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "SLICE_S", 0.0)
    for number in range(5):
        loop.events.emit("a.created", {"n": number})
    assert loop.turns() == 5
    assert len(loop.told) == 5


def test_a_flood_is_bounded_and_told(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(COUNT_MAX + 7):
        loop.events.emit("a.created", {"n": number})
    with caplog.at_level(logging.WARNING):
        loop.turns()
    assert len(loop.told) == COUNT_MAX
    assert "7 events are lost" in caplog.text


def test_during_an_alarm_alarms_alone_are_told(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    loop.events.alarmed = lambda: True
    loop.events.emit("queue.created", {})
    loop.events.emit("alarm.set", {"source": "disk"}, "")
    with caplog.at_level(logging.WARNING):
        loop.turns()
    assert [event.key for event in loop.told] == ["alarm.set"]
    assert "1 events are lost: too many, during an alarm" in caplog.text
