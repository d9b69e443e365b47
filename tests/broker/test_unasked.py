"""Messages of the broker's own, offered to queues of which some cannot take them."""

from __future__ import annotations

from typing import Any

import pytest

from amqpd.broker.consumer import LogNotOpen
from amqpd.broker.publish import firehose
from amqpd.broker.publish.firehose import WAITING_MAX, BestEffortPublisher
from amqpd.errors import ResourceError


class Queue:
    """Stands for a queue. state: open, shut (it cannot be opened), opening, gone."""

    def __init__(self, state: str = "open") -> None:
        self.state = state
        self.got: list[object] = []

    def is_deleted(self) -> bool:
        return self.state == "gone"


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is called when the queues that are being opened are open."""
    found: list[Any] = []

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
    monkeypatch.setattr(firehose, "when_open", lambda _queues, done: found.append(done))
    return found


def offered(to: BestEffortPublisher, queues: list[Any], message: Any = "m") -> None:
    to.offer(queues, message)


def test_one_that_cannot_be_opened_does_not_keep_it_from_the_others(waiting: list[Any]) -> None:
    queues = [Queue(), Queue("shut"), Queue("opening"), Queue("gone"), Queue()]
    tried = BestEffortPublisher(lambda: None)
    offered(tried, queues)
    assert [each.got for each in queues] == [["m"], [], [], [], ["m"]]
    assert tried.lost_count == 1
    queues[2].state = "open"
    waiting.pop()()
    assert queues[2].got == ["m"]
    assert not waiting


def test_what_waits_for_a_log_is_bounded(waiting: list[Any]) -> None:
    queue = Queue("opening")
    tried = BestEffortPublisher(lambda: None)
    for number in range(WAITING_MAX + 3):
        offered(tried, [queue], number)
    assert tried.lost_count == 3
    queue.state = "open"
    for done in waiting:
        done()
    assert queue.got == list(range(WAITING_MAX))
