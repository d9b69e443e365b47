"""BestEffortPublisher: the broker's own messages for several queues, some of which cannot take them."""

from __future__ import annotations

from typing import Any

import pytest

from amqpd.broker.consumer import LogNotOpen
from amqpd.broker.publish import firehose
from amqpd.broker.publish.firehose import WAITING_MAX, BestEffortPublisher
from amqpd.errors import ResourceError


class FakeQueue:
    """A fake queue. state: open, shut (cannot be opened), opening, gone (deleted)."""

    def __init__(self, state: str = "open") -> None:
        self.state = state
        self.got: list[object] = []

    def is_deleted(self) -> bool:
        return self.state == "gone"


@pytest.fixture
def open_callbacks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Callbacks that the publisher registered for when the queues are open."""
    callbacks: list[Any] = []

    def prepare(queues: list[Any]) -> None:
        if any(each.state == "shut" for each in queues):
            raise ResourceError("cannot be opened")
        if opening := [each for each in queues if each.state == "opening"]:
            raise LogNotOpen(opening)

    def offer(queues: list[Any], message: object, _logs: None) -> None:
        for each in queues:
            each.got.append(message)

    monkeypatch.setattr(firehose, "prepare", prepare)
    monkeypatch.setattr(firehose, "offer_to_all", offer)
    monkeypatch.setattr(firehose, "when_open", lambda _queues, done: callbacks.append(done))
    return callbacks


def offer_to(publisher: BestEffortPublisher, queues: list[Any], message: Any = "m") -> None:
    publisher.offer(queues, message)


def test_unopenable_queue_does_not_affect_the_others(open_callbacks: list[Any]) -> None:
    queues = [FakeQueue(), FakeQueue("shut"), FakeQueue("opening"), FakeQueue("gone"), FakeQueue()]
    publisher = BestEffortPublisher(lambda: None)
    offer_to(publisher, queues)
    assert [each.got for each in queues] == [["m"], [], [], [], ["m"]]
    assert publisher.lost_count == 1
    queues[2].state = "open"
    open_callbacks.pop()()
    assert queues[2].got == ["m"]
    assert not open_callbacks


def test_messages_waiting_for_an_opening_queue_are_bounded(open_callbacks: list[Any]) -> None:
    queue = FakeQueue("opening")
    publisher = BestEffortPublisher(lambda: None)
    for number in range(WAITING_MAX + 3):
        offer_to(publisher, [queue], number)
    assert publisher.lost_count == 3
    queue.state = "open"
    for done in open_callbacks:
        done()
    assert queue.got == list(range(WAITING_MAX))
