"""The history judge reports each kind of breach: a story of one breach each, and the words of its violation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from history import LETTERS, Sent
from history_story import OLD, Story


@pytest.fixture
def story() -> Story:
    return Story()


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
    """The message was never confirmed, but a later life delivered it, so it is in the log."""
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
    story.give("work", 1, again=True)  # not yet delivered: allowed
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
    """The publish was not confirmed, but the broker had the message and read the reject."""
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
    """A deletion without an answer, and half of the queue's messages are there."""
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
    """The ack counts from commit-ok, however recent."""
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
    letter_without_a_reason: "has 0 deaths",
    letter_of_a_reject_that_was_none: "no consumer rejected it",
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
def test_breach_is_reported_as_one_violation(story: Story, breach: Callable[[Story], None]) -> None:
    breach(story)
    found = story.found()
    assert BREACHES[breach] in found
    assert len(found.splitlines()) == 1, found


def test_breaches_cover_every_dead_letter_queue() -> None:
    assert {breach.__name__.partition("_")[0] for breach in BREACHES} > {"letter", "purge", "deleted", "transaction"}
    assert set(LETTERS) == {"work", "aged", "full", "limit", "ruled", "retry"}
