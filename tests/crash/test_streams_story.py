"""The judge of streams reports each kind of breach, and nothing that is allowed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from streams_story import AGE_S, KEPT_BYTES, NAMED, OPERATED, Reader, StreamStory, body

NOW = 1000.0


class ScriptedStory(StreamStory):
    """A story at time NOW in which message n has offset n, unless a test says otherwise."""

    def sends(self, count: int = 1, at: float = NOW) -> None:
        for _ in range(count):
            self.confirmed(self.publish(at), at)

    def reads(self, kind: str, argument: int = 0, name: str = "") -> Reader:
        reader = self.asks(kind, argument, name)
        self.begins(reader)
        return reader

    def gives(self, reader: Reader, *offsets: int) -> None:
        for offset in offsets:
            self.given(reader, offset, offset)

    def starts(self, how: str = "kill", first: int = 0, now: float = NOW, **stored: int) -> None:
        """End the life and start the next one, which finds all messages from `first` on."""
        self.ended(how)
        self.sends(at=now)
        self.found([(number, number) for number in range(first, len(self.sent_at))], stored, now)

    def sends_enough(self) -> int:
        """Send so many bytes that all earlier messages may be deleted. Return the first offset that may not."""
        first, sizes = len(self.sent_at), 0
        while sizes < KEPT_BYTES:
            self.sends()
            sizes += len(body(len(self.sent_at) - 1))
        return first


def seen_and_lost(story: ScriptedStory) -> None:
    """A message that was delivered must stay, even if it was not confirmed."""
    reader = story.reads("next")
    number = story.publish(NOW)
    story.given(reader, number, number)
    story.ended("kill")
    story.sends()
    story.found([(0, number + 1)], {}, NOW)


def another_message_there(story: ScriptedStory) -> None:
    story.sends(3)
    story.gives(story.reads("first"), 0, 1)
    story.given(story.reads("offset", 1), 1, 2)


def confirmed_and_lost(story: ScriptedStory) -> None:
    story.sends(3)
    story.ended("cut")
    story.sends()
    story.found([(0, 0), (1, 2), (2, 3)], {}, NOW)


def cut_too_far(story: ScriptedStory) -> None:
    story.sends(10)
    story.starts(first=2)


def cut_too_soon(story: ScriptedStory) -> None:
    """Messages older than AGE_S may be deleted without later ones; this one is 0.1 s too young."""
    story.sends(10)
    story.starts(first=2, now=NOW + AGE_S - 0.1)


def cut_came_back(story: ScriptedStory) -> None:
    story.sends(10)
    story.starts(first=5, now=NOW + AGE_S)
    story.gives(story.reads("first"), 4)


def offset_left_out(story: ScriptedStory) -> None:
    story.sends(2)
    story.ended("kill")
    story.sends()
    story.found([(0, 0), (1, 1), (3, 2)], {}, NOW)


def hole_that_was_seen(story: ScriptedStory) -> None:
    story.sends(2)
    story.gives(story.reads("first", 0), 0, 1, 2)
    story.ended("cut")
    story.found([(0, 0), (1, 1), (3, 3)], {}, NOW)


def out_of_order(story: ScriptedStory) -> None:
    story.sends(2)
    story.ended("kill")
    story.sends()
    story.found([(0, 1), (1, 0), (2, 2)], {}, NOW)


def passed_over(story: ScriptedStory) -> None:
    story.sends(10)
    story.gives(story.reads("first"), 0, 1, 5)
    story.starts()


def came_twice(story: ScriptedStory) -> None:
    story.sends(10)
    story.gives(story.reads("first"), 0, 1, 1)


def began_too_early(story: ScriptedStory) -> None:
    story.sends(10)
    story.gives(story.reads("offset", 5), 4)


def began_too_late(story: ScriptedStory) -> None:
    story.sends(10)
    story.gives(story.reads("offset", 5), 6)
    story.starts()


def next_was_old(story: ScriptedStory) -> None:
    story.sends(10)
    story.gives(story.reads("first"), 0, 1, 2)
    story.gives(story.reads("next"), 2)


def next_passed_over(story: ScriptedStory) -> None:
    story.sends(3)
    reader = story.reads("next")
    story.sends(3)
    story.gives(reader, 5)
    story.starts()


def last_was_an_earlier_batch(story: ScriptedStory) -> None:
    story.sends(1)
    story.sends(1, NOW + 1)
    story.gives(story.reads("last"), 0)


def older_than_asked(story: ScriptedStory) -> None:
    story.sends(1)
    story.sends(1, NOW + 5)
    story.gives(story.reads("time", int(NOW) + 2), 0)


def younger_than_asked(story: ScriptedStory) -> None:
    story.sends(1)
    story.sends(3, NOW + 5)
    story.gives(story.reads("time", int(NOW) + 2), 2)
    story.starts(now=NOW + 6)


def never_published(story: ScriptedStory) -> None:
    story.given(story.reads("first"), 0, 7)


def named(story: ScriptedStory, acked: int = 5) -> Reader:
    story.sends(10)
    reader = story.reads("first", 0, NAMED)
    story.gives(reader, *range(10))
    for offset in range(acked):
        story.acks(reader, offset)
    return reader


def stored_beyond_the_acks(story: ScriptedStory) -> None:
    reader = named(story)
    story.acks(reader, 7)
    story.starts(**{NAMED: 6})


def shown_beyond_the_acks(story: ScriptedStory) -> None:
    named(story)
    story.tells(NAMED, 6, written=False)


def told_and_back(story: ScriptedStory) -> None:
    named(story)
    story.tells(NAMED, 4, written=True)
    story.starts(**{NAMED: 3})


def told_and_forgotten(story: ScriptedStory) -> None:
    named(story)
    story.tells(NAMED, 4, written=True)
    story.starts("cut")


def found_and_back(story: ScriptedStory) -> None:
    named(story)
    story.starts(**{NAMED: 4})
    story.starts(**{NAMED: 3})


def stopped_and_not_stored(story: ScriptedStory) -> None:
    reader = named(story)
    story.hears(reader, reader.frontier)
    story.starts("stop", **{NAMED: 4})


def went_on_before_what_is_stored(story: ScriptedStory) -> None:
    named(story)
    story.starts(**{NAMED: 4})
    story.gives(story.reads("stored", 4, NAMED), 3)


def went_on_behind_what_it_acked(story: ScriptedStory) -> None:
    story.ends(named(story))
    story.gives(story.reads("stored", story.stored, NAMED), 6)
    story.starts(**{NAMED: 5})


def operator_answered_and_lost(story: ScriptedStory) -> None:
    named(story)
    story.sets(3)
    story.answered(3)
    story.starts()


def operator_got_another(story: ScriptedStory) -> None:
    named(story)
    story.sets(3)
    story.answered(3)
    story.sets(4)
    story.starts(**{OPERATED: 5})


BREACHES: dict[Callable[[ScriptedStory], None], str] = {
    seen_and_lost: "showed message 0, now it shows 1",
    another_message_there: "showed message 1, now it shows 2",
    confirmed_and_lost: "message 1 was confirmed, and is lost",
    cut_too_far: "message 1 was confirmed, and is cut",
    cut_too_soon: "message 1 was confirmed, and is cut",
    cut_came_back: "offset 4 was cut, and is back",
    offset_left_out: "offset 3 follows 1",
    hole_that_was_seen: "offset 3 follows 1",
    out_of_order: "message 0 follows 1",
    passed_over: "a reader passed over 0 to 4",
    came_twice: "offset 1 came after 1",
    began_too_early: "from offset 5 on was given 4",
    began_too_late: "a reader passed over 0 to 5",
    next_was_old: "was given 2, which had been seen",
    next_passed_over: "a reader passed over",
    last_was_an_earlier_batch: "of an earlier one",
    older_than_asked: "not older than 1002 was given message 0",
    younger_than_asked: "a reader passed over",
    never_published: "7, which was never published",
    stored_beyond_the_acks: "6 is stored for reader, which has acked up to 5",
    shown_beyond_the_acks: "6 is stored for reader, which has acked up to 5",
    told_and_back: "3 is stored for reader, and 4 was written",
    told_and_forgotten: "-1 is stored for reader, and 4 was written",
    found_and_back: "3 is stored for reader, and 4 was written",
    stopped_and_not_stored: "4 is stored for reader, and 5 was written",
    went_on_before_what_is_stored: "had stored 4, and was given 3",
    went_on_behind_what_it_acked: "a reader passed over",
    operator_answered_and_lost: "None is stored for operator, 3 was answered",
    operator_got_another: "5 is stored for operator",
}


@pytest.mark.parametrize("breach", BREACHES, ids=lambda each: each.__name__)
def test_breach_is_reported(breach: Callable[[ScriptedStory], None]) -> None:
    story = ScriptedStory()
    breach(story)
    assert BREACHES[breach] in "\n".join(story.violations), story.violations


def test_power_cut_may_leave_hole_of_unconfirmed_messages() -> None:
    """Readers skip the hole."""
    story = ScriptedStory()
    story.sends(2)
    for _ in range(4):
        story.publish(NOW)
    story.ended("cut")
    story.found([(0, 0), (1, 1), (4, 4)], {}, NOW)
    story.gives(story.reads("first", 0), 0, 1, 4)
    story.gives(story.reads("offset", 3), 4)
    story.ended("kill")
    story.found([(0, 0), (1, 1), (4, 4)], {}, NOW)
    assert not story.violations


def test_correct_story_has_no_violation() -> None:
    """Retention under a reader, acks in any order, an operator whose last command was not answered, a clean stop."""
    story = ScriptedStory()
    story.sends(3)
    reader = story.reads("first", 0, NAMED)
    story.gives(reader, 0, 1)
    first = story.sends_enough()
    story.sends(5)
    story.gives(reader, first, first + 1)
    for offset in (1, 0, first + 1, first):
        story.acks(reader, offset)
    story.hears(reader, reader.frontier)
    story.tells(NAMED, first, written=True)
    story.tells(OPERATED, 1, written=True)
    story.sets(4)
    story.answered(4)
    story.sets(9)
    story.starts("stop", first, **{NAMED: first + 2, OPERATED: 9})
    story.gives(story.reads("first"), first)
    story.gives(story.reads("stored", story.stored, NAMED), first + 2)
    story.gives(story.reads("time", int(NOW)), first)
    newest = len(story.sent_at) - 1
    story.gives(story.reads("last"), newest)
    reader = story.reads("next")
    story.sends()
    story.gives(reader, newest + 1)
    story.publish(NOW)  # not confirmed and not found
    story.ended("cut")
    end = len(story.sent_at)
    story.sends()
    story.found(
        [(each, each) for each in range(first, end - 1)] + [(end - 1, end)], {NAMED: first + 2, OPERATED: 9}, NOW
    )
    assert story.violations == []
    assert story.start == first
