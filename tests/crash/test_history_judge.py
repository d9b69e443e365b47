"""The judge of histories itself: each kind of broken promise is seen, and what is allowed is not called broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from history import LETTERS, TTL_S, Event, Given, Sent
from history_judge import AGE_S, LETTER_AGE_S, Judge

OLD = LETTER_AGE_S + 5.0


class Story:
    """Tells a judge what happened; each step takes a millisecond. messages: 1 is the first."""

    def __init__(self) -> None:
        self.judge = Judge()
        self.now = 1000.0
        self.number = 100
        self.last: dict[tuple[str, int], int] = {}

    def note(self, what: str, queue: str = "", message: int = -1, more: Any = None) -> None:
        self.now += 0.001
        self.judge.take([Event(self.now, what, queue, message, more)])

    def publish(self, queue: str, *messages: int, how: str = "confirm", priority: int = 0, tx: int = 0) -> None:
        for message in messages:
            self.note("publish", queue, message, Sent(how, priority, tx))
            if how == "confirm":
                self.note("confirmed", queue, message)

    def give(self, queue: str, message: int, *, again: bool = False, returns: int = 0, reason: str = "") -> None:
        home = queue.partition(".")[0]
        deaths = ((reason, home, "", (home,), 1),) if reason else ()
        self.number += 1
        self.last[queue, message] = self.number
        self.note("given", queue, message, Given(self.number, again, queue, returns, deaths))

    def settle(self, queue: str, message: int, verdict: str = "ack", transaction: int = 0) -> None:
        self.note("settle", queue, message, (self.last[queue, message], verdict, transaction))

    def hear(self, queue: str, *after_s: float) -> None:
        """Asked and answered at once, and again so much later: enough for an ack."""
        for each in (0.0, *(after_s or (1.5 * AGE_S,))):
            self.now += each
            self.note("heard", more=(queue, self.now))

    def end(self, how: str = "kill", after_s: float = OLD) -> None:
        self.now += after_s
        self.note("ended", more=how)

    def through(self, queue: str, *messages: int, again: bool = False, reason: str = "") -> None:
        """Given, acked, heard."""
        for message in messages:
            self.give(queue, message, again=again, reason=reason)
            self.settle(queue, message)
        self.hear(queue)

    def found(self) -> str:
        self.end("stop", 0.0)
        self.judge.account()
        return "\n".join(self.judge.violations)


@pytest.fixture
def story() -> Story:
    return Story()


# -- an honest broker


def test_an_honest_broker(story: Story) -> None:
    """Every verdict, every letter, purge, deletion and transaction, over a kill, a cut and a stop."""
    story.publish("work", 1, 2, 3, 4)
    story.through("work", 1)
    story.give("work", 2)
    story.settle("work", 2, "reject")
    story.give("work", 3)
    story.settle("work", 3, "requeue")
    story.give("work", 3, again=True)  # in the same life, and unacked at its end
    story.hear("work")
    story.through("work.dead", 2, reason="rejected")
    story.end()
    story.through("work", 3, again=True)
    story.publish("rank", 5, priority=1)
    story.publish("rank", 6, priority=5)
    story.through("rank", 6, 5)
    story.publish("again", 7, 8)
    story.note("delete", "again", more=9)
    story.note("deleted", "again", more=9)
    story.publish("again", 10)
    story.end("cut")
    story.through("again", 10)
    story.publish("purge", 11, 12)
    story.give("purge", 11)
    story.note("purge", "purge", more=13)
    story.note("purged", "purge", more=13)
    story.settle("purge", 11)
    story.hear("purge")
    story.through("work", 4, again=True)
    story.publish("plain", 14, how="plain")
    story.note("heard-publish", "plain", 14)
    story.end("stop")
    story.through("plain", 14)
    assert story.found() == ""
    assert story.judge.totals["copies accounted for"] == 13
    assert story.judge.totals["settled for certain, ack"] >= 7


def test_what_is_uncertain_is_not_called_broken(story: Story) -> None:
    story.note("publish", "work", 1, Sent("confirm"))  # never confirmed, never seen
    story.publish("work", 2, 3)
    story.give("work", 2)
    story.settle("work", 2)
    story.give("work", 3)
    story.settle("work", 3, "reject")
    story.note("purge", "purge", more=4)
    story.end(after_s=AGE_S / 2)
    story.through("work", 2, 3, again=True)  # too young an ack, too young a reject
    story.through("work.dead", 3, reason="rejected")  # had been written all the same
    story.end()
    assert story.found() == ""


@pytest.mark.parametrize("after_s", [(), (0.0,), (AGE_S / 2, AGE_S / 4)])
def test_an_ack_that_the_broker_had_no_time_for(story: Story, after_s: tuple[float, ...]) -> None:
    """It has answered what was asked behind the ack, and nothing that was asked AGE_S later."""
    story.publish("work", 1)
    story.give("work", 1)
    story.settle("work", 1)
    for each in (0.0, *after_s):
        story.now += each
        story.note("heard", more=("work", story.now))
    story.end()
    story.through("work", 1, again=True)
    assert story.found() == ""


def test_what_was_dropped_may_come_back_late(story: Story) -> None:
    """Its letter was not safe: after the kill it comes behind those that were given meanwhile."""
    story.publish("full", 1, 2)
    story.through("full", 2)
    story.publish("purge", 3)
    story.note("purge", "purge", more=4)
    story.note("purged", "purge", more=4)
    story.publish("purge", 5)
    story.give("purge", 5)
    story.settle("purge", 5)
    story.end("cut", 0.01)
    story.through("full", 1)
    story.through("purge", 3)
    assert story.found() == ""


def test_a_letter_that_came_just_before_a_cut(story: Story) -> None:
    """Its message comes back as often as it likes, until it is settled; the age of the letter tells nothing then."""
    story.publish("work", 1)
    story.give("work", 1)
    story.settle("work", 1, "reject")
    story.give("work.dead", 1, reason="rejected")
    story.settle("work.dead", 1)
    story.end("cut", 0.1)
    story.give("work", 1, again=True)
    story.end("cut")
    story.through("work", 1, again=True)
    assert story.found() == ""


def test_a_letter_may_be_repeated_once_per_kill(story: Story) -> None:
    story.publish("aged", 1)
    story.now += TTL_S
    story.end(after_s=0.01)
    story.through("aged.dead", 1, reason="expired")
    story.give("aged.dead", 1, reason="expired")
    story.settle("aged.dead", 1)
    assert story.found() == ""
    story.publish("aged", 2)
    story.now += TTL_S
    story.through("aged.dead", 2, reason="expired")
    story.give("aged.dead", 2, reason="expired")
    story.settle("aged.dead", 2)
    assert "without redelivered" in story.found()


# -- broken promises: a story of one promised message, and the words of the verdict


def lost(story: Story) -> None:
    story.publish("work", 1, 2)
    story.through("work", 2)


def lost_when_held(story: Story) -> None:
    story.publish("work", 1)
    story.give("work", 1)
    story.end()


def lost_when_requeued(story: Story) -> None:
    story.publish("work", 1)
    story.give("work", 1)
    story.settle("work", 1, "requeue")
    story.hear("work")


def lost_after_it_survived(story: Story) -> None:
    """Never confirmed, but seen in a later life: it is in the log."""
    story.note("publish", "work", 1, Sent("confirm"))
    story.end()
    story.give("work", 1)
    story.end()


def plain_lost_over_a_stop(story: Story) -> None:
    story.publish("plain", 1, how="plain")
    story.note("heard-publish", "plain", 1)
    story.end("stop")


def acked_came_back(story: Story) -> None:
    story.publish("work", 1)
    story.through("work", 1)
    story.end()
    story.through("work", 1, again=True)


def acked_came_back_after_a_stop(story: Story) -> None:
    story.publish("work", 1)
    story.through("work", 1)
    story.end("stop", 0.0)
    story.through("work", 1, again=True)


def acked_came_back_after_a_cut(story: Story) -> None:
    story.publish("work", 1)
    story.through("work", 1)
    story.end("cut")
    story.through("work", 1, again=True)


def acked_came_in_the_same_life(story: Story) -> None:
    story.publish("work", 1)
    story.through("work", 1)
    story.through("work", 1, again=True)


def came_while_held(story: Story) -> None:
    story.publish("work", 1)
    story.give("work", 1)
    story.through("work", 1, again=True)


def repeated_unmarked(story: Story) -> None:
    story.publish("work", 1)
    story.give("work", 1, again=True)  # nobody has seen it: allowed
    story.end()
    story.through("work", 1)


def rejected_came_back(story: Story) -> None:
    story.publish("work", 1)
    story.give("work", 1)
    story.settle("work", 1, "reject")
    story.hear("work", OLD)
    story.end()
    story.through("work", 1, again=True)


def rejected_vanished(story: Story) -> None:
    story.publish("work", 1)
    story.give("work", 1)
    story.settle("work", 1, "reject")
    story.hear("work")


def rejected_vanished_for_certain(story: Story) -> None:
    """Its publish was not promised, but the broker had it and read the reject."""
    story.publish("work", 1, how="plain")
    story.give("work", 1)
    story.settle("work", 1, "reject")
    story.hear("work", OLD)
    story.end()


def letter_vanished(story: Story) -> None:
    story.publish("work", 1)
    story.give("work", 1)
    story.settle("work", 1, "reject")
    story.hear("work")
    story.give("work.dead", 1, reason="rejected")
    story.end()


def letter_came_back(story: Story) -> None:
    story.publish("work", 1)
    story.give("work", 1)
    story.settle("work", 1, "reject")
    story.through("work.dead", 1, reason="rejected")
    story.end()
    story.through("work.dead", 1, again=True, reason="rejected")


def letter_and_message(story: Story) -> None:
    story.publish("full", 1)
    story.through("full.dead", 1, reason="maxlen")
    story.through("full", 1)


def letter_and_message_later(story: Story) -> None:
    story.publish("full", 1)
    story.through("full.dead", 1, reason="maxlen")
    story.end()
    story.through("full", 1, again=True)


def letter_of_another_reason(story: Story) -> None:
    story.publish("full", 1)
    story.through("full.dead", 1, reason="expired")


def letter_without_a_reason(story: Story) -> None:
    story.publish("full", 1)
    story.through("full.dead", 1)


def letter_of_a_reject_that_was_none(story: Story) -> None:
    story.publish("full", 1)
    story.through("full.dead", 1, reason="rejected")


def letter_of_an_acked_one(story: Story) -> None:
    story.publish("full", 1)
    story.through("full", 1)
    story.through("full.dead", 1, reason="maxlen")


def letter_too_early(story: Story) -> None:
    story.publish("aged", 1)
    story.through("aged.dead", 1, reason="expired")


def letter_of_too_few_returns(story: Story) -> None:
    story.publish("limit", 1)
    story.give("limit", 1)
    story.settle("limit", 1, "requeue")
    story.through("limit.dead", 1, reason="delivery_limit")


def returned_too_often(story: Story) -> None:
    story.publish("limit", 1)
    for returns in range(4):
        story.give("limit", 1, again=bool(returns), returns=returns)
        story.settle("limit", 1, "requeue")
    story.through("limit.dead", 1, reason="delivery_limit")


def return_not_counted(story: Story) -> None:
    story.publish("limit", 1)
    story.give("limit", 1)
    story.settle("limit", 1, "requeue")
    story.through("limit", 1, again=True)


def out_of_order(story: Story) -> None:
    story.publish("work", 1, 2)
    story.through("work", 2, 1)


def out_of_order_in_a_level(story: Story) -> None:
    story.publish("rank", 1, 2, priority=3)
    story.publish("rank", 3, priority=1)
    story.through("rank", 3, 2, 1)


def never_published(story: Story) -> None:
    story.through("work", 99)


def back_from_an_earlier_epoch(story: Story) -> None:
    story.publish("work", 1)
    story.through("work", 1)
    assert story.found() == ""
    story.through("work", 1, again=True)


def purged_came_back(story: Story) -> None:
    story.publish("purge", 1)
    story.note("purge", "purge", more=2)
    story.note("purged", "purge", more=2)
    story.end("cut")
    story.through("purge", 1, again=True)


def purge_took_what_was_held(story: Story) -> None:
    story.publish("purge", 1)
    story.give("purge", 1)
    story.note("purge", "purge", more=2)
    story.note("purged", "purge", more=2)
    story.end()


def deleted_came_back(story: Story) -> None:
    story.publish("again", 1)
    story.note("delete", "again", more=2)
    story.note("deleted", "again", more=2)
    story.end()
    story.through("again", 1, again=True)


def deleted_in_part(story: Story) -> None:
    """A deletion that nobody answered, and half of the queue is there."""
    story.publish("again", 1, 2)
    story.note("delete", "again", more=3)
    story.end()
    story.through("again", 1, again=True)


def transaction_in_part(story: Story) -> None:
    story.publish("tx.b", 1, 2, how="tx", tx=9)
    story.note("commit", more=9)
    story.end()
    story.through("tx.b", 1)


def committed_and_lost(story: Story) -> None:
    story.publish("tx.b", 1, 2, how="tx", tx=9)
    story.note("commit", more=9)
    story.note("committed", more=9)
    story.through("tx.b", 1)


def rolled_back_and_there(story: Story) -> None:
    story.publish("tx.b", 1, how="tx", tx=9)
    story.note("rollback", more=9)
    story.note("rolled back", more=9)
    story.through("tx.b", 1)


def never_committed_and_there(story: Story) -> None:
    story.publish("tx.b", 1, how="tx", tx=9)
    story.end()
    story.through("tx.b", 1)


def acked_in_a_commit_came_back(story: Story) -> None:
    """As soon as commit-ok has come, however young it is."""
    story.publish("tx.a", 1)
    story.give("tx.a", 1)
    story.settle("tx.a", 1, transaction=9)
    story.note("commit", more=9)
    story.note("committed", more=9)
    story.end("cut", 0.0)
    story.through("tx.a", 1, again=True)


def acked_in_a_rollback_and_lost(story: Story) -> None:
    story.publish("tx.a", 1)
    story.give("tx.a", 1)
    story.settle("tx.a", 1, transaction=9)
    story.note("rollback", more=9)
    story.note("rolled back", more=9)
    story.end()


def acked_without_a_commit_and_lost(story: Story) -> None:
    story.publish("tx.a", 1)
    story.give("tx.a", 1)
    story.settle("tx.a", 1, transaction=9)
    story.end()


def nacked(story: Story) -> None:
    story.note("publish", "work", 1, Sent("confirm"))
    story.note("nacked", "work", 1)


BREACHES = {
    lost: "never seen",
    lost_when_held: "is lost: given 1 times",
    lost_when_requeued: "is lost: given 1 times",
    lost_after_it_survived: "is lost: given 1 times",
    plain_lost_over_a_stop: "never seen",
    acked_came_back: "although it was settled: ack",
    acked_came_back_after_a_stop: "although it was settled: ack",
    acked_came_back_after_a_cut: "although it was settled: ack",
    acked_came_in_the_same_life: "in the life in which it was settled",
    came_while_held: "holds it",
    repeated_unmarked: "without redelivered",
    rejected_came_back: "although it was settled: reject",
    rejected_vanished: "never came as a letter",
    rejected_vanished_for_certain: "never came as a letter",
    letter_vanished: "is lost: a letter",
    letter_came_back: "although it was settled: ack",
    letter_and_message: "its letter had come in this life",
    letter_and_message_later: "long after its letter",
    letter_of_another_reason: "a death that full cannot have",
    letter_without_a_reason: "tells 0 deaths",
    letter_of_a_reject_that_was_none: "nobody rejected it",
    letter_of_an_acked_one: "its message was acked",
    letter_too_early: "after it was sent",
    letter_of_too_few_returns: "after 1 deliveries",
    returned_too_often: "more often than its queue allows",
    return_not_counted: "still says x-delivery-count 0",
    out_of_order: "came first after 2",
    out_of_order_in_a_level: "came first after 2",
    never_published: "was never published",
    back_from_an_earlier_epoch: "accounted for in an earlier epoch",
    purged_came_back: "although it was settled: purge",
    purge_took_what_was_held: "is lost: given 1 times",
    deleted_came_back: "although it was settled: delete",
    deleted_in_part: "never seen",
    transaction_in_part: "1 of 2 messages of transaction 9",
    committed_and_lost: "promised (tx) in life 0, and never seen",
    rolled_back_and_there: "was rolled back",
    never_committed_and_there: "was never committed",
    acked_in_a_commit_came_back: "although it was settled: ack",
    acked_in_a_rollback_and_lost: "is lost: given 1 times",
    acked_without_a_commit_and_lost: "is lost: given 1 times",
    nacked: "was nacked",
}


@pytest.mark.parametrize("breach", BREACHES, ids=lambda breach: breach.__name__)
def test_a_broken_promise_is_seen(story: Story, breach: Callable[[Story], None]) -> None:
    breach(story)
    found = story.found()
    assert BREACHES[breach] in found
    assert len(found.splitlines()) == 1, found


def test_every_queue_with_letters_is_told_of() -> None:
    assert {breach.__name__.partition("_")[0] for breach in BREACHES} > {"letter", "purge", "deleted", "transaction"}
    assert set(LETTERS) == {"work", "aged", "full", "limit"}
