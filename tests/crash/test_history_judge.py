"""The history judge reports no violation for allowed stories. (Forbidden ones: `test_history_breaches.py`.)"""

from __future__ import annotations

import pytest
from history import TTL_S, Sent
from history_judge import AGE_S
from history_story import Story


@pytest.fixture
def story() -> Story:
    return Story()


def test_correct_broker_has_no_violation(story: Story) -> None:
    """Acks, rejects, requeues, dead letters, priorities, purge and deletion, over a kill, a cut and a stop."""
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


def test_uncertain_outcome_is_no_violation(story: Story) -> None:
    story.note("publish", "work", 1, Sent("confirm"))  # never confirmed, never seen
    story.publish("work", 2, 3)
    story.give("work", 2)
    story.settle("work", 2)
    story.give("work", 3)
    story.settle("work", 3, "reject")
    story.note("purge", "purge", more=4)
    story.end(after_s=AGE_S / 2)
    story.through("work", 2, 3, again=True)  # both the ack and the reject are too recent to count
    story.through("work.dead", 3, reason="rejected")  # the dead letter was written nevertheless
    story.end()
    assert story.found() == ""


@pytest.mark.parametrize("after_s", [(), (0.0,), (AGE_S / 2, AGE_S / 4)])
def test_message_may_return_if_broker_had_no_time_for_its_ack(story: Story, after_s: tuple[float, ...]) -> None:
    """The broker answered a request sent after the ack, but none that was sent AGE_S later."""
    story.publish("work", 1)
    story.give("work", 1)
    story.settle("work", 1)
    for each in (0.0, *after_s):
        story.now += each
        story.note("heard", more=("work", story.now))
    story.end()
    story.through("work", 1, again=True)
    assert story.found() == ""


def test_dropped_message_may_return_out_of_order_after_power_cut(story: Story) -> None:
    """Its dead letter was not synced; after the cut it follows messages that were delivered meanwhile."""
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


def test_message_may_return_if_its_dead_letter_came_just_before_power_cut(story: Story) -> None:
    """The message may return until it is settled; the age of its dead letter then proves nothing."""
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


def test_dead_letter_may_be_repeated_once_per_kill(story: Story) -> None:
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
