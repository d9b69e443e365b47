"""The judge of a queue with groups: correct deliveries pass, and each kind of violation is reported."""

from __future__ import annotations

from typing import Any, cast

import pytest
from groups_story import Consumer, GroupsStory
from quickclient import Message


class Groups:
    """A script for the judge: which consumer gets which number of the one group."""

    def __init__(self) -> None:
        self.story = GroupsStory(1)
        self.story.next["customer 0"] = 9
        self.story.confirmed["customer 0"] = {0, 1, 2}
        self.consumers = {name: Consumer(cast("Any", None)) for name in "ab"}
        self._tag = 0

    def give(self, name: str, *numbers: int, again: bool = False) -> None:
        for number in numbers:
            self._tag += 1
            message = Message(self._tag, again, b"", b"customer 0/%d" % number)
            self.story.deliver(self.consumers[name], message)

    def again(self, name: str, *numbers: int) -> None:
        self.give(name, *numbers, again=True)

    def ack(self, name: str) -> None:
        consumer = self.consumers[name]
        self.story.leave(consumer, list(consumer.held), done=True)

    def go(self, name: str) -> None:
        consumer = self.consumers[name]
        self.story.leave(consumer, list(consumer.held), done=False)

    def found(self) -> list[str]:
        self.story.drained()
        return self.story.failures


def test_group_in_order_has_no_violation() -> None:
    groups = Groups()
    groups.give("a", 0, 1)
    groups.go("a")
    groups.give("b", 0, 1, again=True)
    groups.ack("b")
    groups.story.ended()
    groups.give("a", 1, again=True)  # the broker did not read its ack
    groups.give("a", 2)
    groups.ack("a")
    assert groups.found() == []


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        (
            [("give", "a", 0, 1), ("again", "b", 0), ("ack", "a"), ("go", "b"), ("give", "a", 2), ("ack", "a")],
            "another",
        ),
        ([("give", "a", 1, 0, 2), ("ack", "a")], "before [0]"),
        ([("give", "a", 0, 1), ("ack", "a")], "2: lost"),
        ([("give", "a", 0, 1, 2), ("ack", "a"), ("give", "b", 2), ("ack", "b")], "answered before, and not marked"),
    ],
)
def test_group_out_of_order_is_one_violation(steps: list[tuple[Any, ...]], text: str) -> None:
    groups = Groups()
    for step, *more in steps:
        getattr(groups, step)(*more)
    found = groups.found()
    assert len(found) == 1, found
    assert text in found[0]


def test_message_of_an_earlier_epoch_is_a_violation() -> None:
    groups = Groups()
    groups.give("a", 0, 1, 2)
    groups.ack("a")
    assert groups.found() == []
    groups.give("a", 2, again=True)
    assert ["after everything had been answered" in each for each in groups.found()] == [True]
