"""The judge of the nodes' tests goes red for what it is there for."""

from __future__ import annotations

import pytest
from account import Account, Name, body_of, name_of, properties_of
from nodes_load import Load, Served


class Story:
    """One publisher, one queue."""

    def __init__(self) -> None:
        self.account = Account(300)
        self.session = self.account.session("q")

    def publish(self, count: int = 1, *, confirmed: bool = True) -> None:
        for _ in range(count):
            self.account.publish(self.session)
            if confirmed:
                self.account.answered(self.session, self.session.published, False, True)

    def give(self, *sequences: int, redelivered: bool = False, body: bytes | None = None) -> None:
        for sequence in sequences:
            name = Name(self.session.number, sequence)
            told = body_of(name, 300) if body is None else body
            self.account.delivered("q", properties_of(name), told, redelivered)

    def refused(self) -> str:
        with pytest.raises(AssertionError) as refused:
            self.account.judge()
        return str(refused.value)


def test_all_is_well() -> None:
    story = Story()
    story.publish(3)
    story.publish(2, confirmed=False)
    story.give(1, 2, 4)
    story.give(2, 3, redelivered=True)
    story.account.violations.clear()  # 3 came behind 4
    story.account.judge()
    assert (story.account.confirmed, story.account.repeats(), story.account.unanswered(story.session)) == (3, 1, 2)
    assert name_of(properties_of(Name(12, 345))) == (12, 345)


def test_what_was_confirmed_and_never_came() -> None:
    story = Story()
    story.publish(3)
    story.give(1, 3)
    assert "1 confirmed messages are lost" in story.refused()


def test_order() -> None:
    story = Story()
    story.publish(3)
    story.give(1, 3, 2)
    assert "came first behind 3" in story.refused()


def test_order_of_who_was_cut_off() -> None:
    """What he had been given comes later, and says so; what does not say so has its order."""
    story = Story()
    story.account.cut = True
    story.publish(3)
    story.give(1, 3)
    story.give(2, redelivered=True)
    story.account.judge()
    story.publish(2)
    story.give(5, 4)
    assert "came first behind 5" in story.refused()


def test_a_repeat_that_does_not_say_so() -> None:
    story = Story()
    story.publish()
    story.give(1, 1)
    assert "came again, not as redelivered" in story.refused()


def test_what_was_never_published_or_has_another_body() -> None:
    story = Story()
    story.publish()
    story.give(1, body=b"another")
    story.give(2)
    told = story.refused()
    assert "has another body" in told
    assert "was never published" in told


def test_two_answers() -> None:
    story = Story()
    story.publish(2)
    story.account.answered(story.session, 2, False, False)
    story.give(1, 2)
    assert "was answered twice" in story.refused()


def test_an_ack_that_did_not_count() -> None:
    story = Story()
    story.publish(1)
    story.give(1)
    story.account.acked("q", Name(0, 1))
    story.give(1, redelivered=True)
    story.account.judge()
    (returned,) = story.account.returned
    assert (returned.name, returned.heard_at) == (Name(0, 1), 0.0)
    story.account.heard("q", [Name(0, 1)])
    story.give(1, redelivered=True)
    assert story.account.returned[1].heard_at > 0


def test_a_connection_that_saw_nothing_hides_no_later_one() -> None:
    load = Load(Account(), [])
    load.served["q"] = [Served(10.0, 11.0), Served(20.0, 0.0)]
    assert load.first_since("q", 15.0) == 0.0
    load.served["q"] += [Served(30.0, 31.0), Served(40.0, 41.0)]
    assert load.first_since("q", 15.0) == 31.0
    assert load.first_since("q", 50.0) == 0.0
