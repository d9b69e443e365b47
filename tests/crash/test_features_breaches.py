"""The history judge on features that RabbitMQ lacks or added recently: allowed and forbidden stories.

The counterpart of `test_history_judge.py` and `test_history_breaches.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from history import PASSES, Sent, retry_s
from history_judge import AGE_S
from history_story import Story


@pytest.fixture
def story() -> Story:
    return Story()


# -- allowed


def rewind(story: Story, number: int, batch: int) -> None:
    story.note("rewind", "kept", more=(number, batch, batch))


def rewound(story: Story, number: int, done: int) -> None:
    story.note("rewound", "kept", more=(number, done))


def test_correct_broker_has_no_violation(story: Story) -> None:
    story.publish("later", 1, 2, after_s=1.0)
    story.publish("moved", 3, 4)
    story.publish("redriven", 5)
    story.publish("kept", 6, 7, batch=1)
    story.note("cancel", "later", 2, 8)
    story.note("cancelled", "later", 2, 8)
    story.give("moved", 3)
    story.settle("moved", 3, "requeue")
    story.hear("moved")
    story.through("moved.to", 3, marked=True)
    story.through("revived", 5)
    story.through("kept", 6, 7)
    rewind(story, 9, 1)
    story.give("kept", 6, again=True)  # before the rewind is answered
    story.settle("kept", 6)
    rewound(story, 9, 2)
    story.through("kept", 7, again=True)
    story.end("cut")
    story.through("due", 1)
    story.through("moved", 4, again=True)
    story.publish("retry", 10)
    story.give("retry", 10)
    story.settle("retry", 10, "requeue")
    story.hear("retry")
    story.end(after_s=0.2)
    story.now += retry_s(1)
    story.give("retry", 10, again=True, returns=1)
    story.settle("retry", 10)
    story.note("publish", "numbered", 11, Sent("confirm"))
    story.through("numbered", 11)
    story.end()
    story.note("publish-again", "numbered", 11)
    story.note("confirmed", "numbered", 11)
    assert story.found() == ""


def test_kill_may_leave_two_copies_marked_as_redelivered(story: Story) -> None:
    story.publish("moved", 1)
    story.publish("later", 2, after_s=0.1)
    story.now += 0.2
    story.end(after_s=0.01)
    story.through("moved.to", 1)
    story.give("due", 2)
    story.settle("due", 2)
    story.through("moved", 1, again=True)
    story.through("due", 2, marked=True)
    assert story.found() == ""


def test_unanswered_rewind_may_bring_all_messages_or_none(story: Story) -> None:
    story.publish("kept", 1, 2, batch=1)
    story.publish("kept", 3, 4, batch=2)
    story.through("kept", 1, 2, 3, 4)
    story.end()
    rewind(story, 5, 1)
    story.end()
    rewind(story, 6, 2)
    story.end()
    story.through("kept", 1, 2, again=True)
    assert story.found() == ""


def test_power_cut_may_lose_unsynced_delivery_and_its_producer_number(story: Story) -> None:
    story.note("publish", "numbered", 1, Sent("confirm"))
    story.note("publish", "numbered", 2, Sent("confirm"))
    story.give("numbered", 1)
    story.give("numbered", 2)
    story.settle("numbered", 2)
    story.end("cut", 0.0)
    for message in (1, 2):
        story.note("publish-again", "numbered", message)
        story.note("confirmed", "numbered", message)
    story.through("numbered", 1, 2)
    assert story.found() == ""


def test_power_cut_may_keep_numbered_message_and_its_ack(story: Story) -> None:
    """Then every later publish with the same number is a duplicate and is not delivered."""
    story.note("publish", "numbered", 1, Sent("confirm"))
    story.give("numbered", 1)
    story.settle("numbered", 1)
    story.end("cut", 0.0)
    story.note("publish-again", "numbered", 1)
    story.end("cut", 0.0)
    story.note("publish-again", "numbered", 1)
    story.note("confirmed", "numbered", 1)
    assert story.found() == ""


def test_retry_that_was_not_written_may_be_delivered_at_once(story: Story) -> None:
    story.publish("retry", 1)
    story.give("retry", 1)
    story.settle("retry", 1, "requeue")
    story.end(after_s=0.001)
    story.through("retry", 1, again=True)
    assert story.found() == ""


def test_message_at_delivery_limit_is_dead_lettered_now_or_after_kill(story: Story) -> None:
    story.publish("retry", 1)
    for returns in range(4):
        story.give("retry", 1, again=bool(returns), returns=returns)
        story.settle("retry", 1, "requeue")
        story.hear("retry", 2 * AGE_S, retry_s(returns + 1))
    story.end(after_s=0.0)
    story.give("retry", 1, again=True, returns=3)
    story.settle("retry", 1, "requeue")
    story.through("retry.dead", 1, reason="delivery_limit")
    assert story.found() == ""


# -- broken


def delayed_too_early(story: Story) -> None:
    story.publish("later", 1, after_s=1.0)
    story.now += 0.9
    story.through("due", 1)


def delayed_and_lost(story: Story) -> None:
    story.publish("later", 1, after_s=1.0)
    story.end()


def delayed_and_lost_in_its_queue(story: Story) -> None:
    story.publish("later", 1, after_s=1.0)
    story.now += 1.0
    story.give("due", 1)
    story.end()


def delayed_twice_and_unmarked(story: Story) -> None:
    story.publish("later", 1, after_s=0.1)
    story.now += 0.2
    story.give("due", 1)
    story.settle("due", 1)
    story.end(after_s=0.0)
    story.through("due", 1)


def delayed_twice_without_a_kill(story: Story) -> None:
    story.publish("later", 1, after_s=0.1)
    story.now += 0.2
    story.give("due", 1)
    story.settle("due", 1, "requeue")
    story.through("due", 1, marked=True)


def delayed_twice_over_a_kill_before_it_was_due(story: Story) -> None:
    story.publish("later", 1, after_s=10.0)
    story.end(after_s=1.0)
    story.now += 10.0
    story.give("due", 1)
    story.settle("due", 1, "requeue")
    story.through("due", 1, marked=True)


def delayed_twice_over_a_stop(story: Story) -> None:
    story.publish("later", 1, after_s=0.1)
    story.now += 0.2
    story.give("due", 1)
    story.settle("due", 1, "requeue")
    story.end("stop", 0.0)
    story.through("due", 1, marked=True)


def delayed_twice_long_after_it_came(story: Story) -> None:
    story.publish("later", 1, after_s=0.1)
    story.now += 0.2
    story.give("due", 1)
    story.settle("due", 1, "requeue")
    story.end()
    story.through("due", 1, marked=True)


def cancelled_and_there(story: Story) -> None:
    story.publish("later", 1, after_s=1.0)
    story.note("cancel", "later", 1, 2)
    story.note("cancelled", "later", 1, 2)
    story.now += 1.0
    story.through("due", 1)


def cancelled_and_there_after_a_kill(story: Story) -> None:
    story.publish("later", 1, after_s=1.0)
    story.publish("work", 3)
    story.note("cancel", "later", 1, 2)
    story.note("cancelled", "later", 1, 2)
    story.now += 2 * AGE_S
    story.through("work", 3)
    story.end()
    story.through("due", 1)


def cancelled_after_it_came(story: Story) -> None:
    story.publish("later", 1, after_s=0.1)
    story.now += 0.2
    story.through("due", 1)
    story.note("cancel", "later", 1, 2)
    story.note("cancelled", "later", 1, 2)


def refused_to_cancel_and_lost(story: Story) -> None:
    story.publish("later", 1, after_s=0.1)
    story.note("cancel", "later", 1, 2)
    story.note("uncancelled", "later", 1, 2)
    story.end()


def retried_too_early(story: Story) -> None:
    story.publish("retry", 1)
    story.give("retry", 1)
    story.settle("retry", 1, "requeue")
    story.now += retry_s(1) / 2
    story.give("retry", 1, again=True, returns=1)
    story.settle("retry", 1)


def retried_too_early_the_second_time(story: Story) -> None:
    """The second delay is longer than the first."""
    story.publish("retry", 1)
    for returns in (0, 1, 2):
        story.give("retry", 1, again=returns > 0, returns=returns)
        story.settle("retry", 1, "requeue" if returns < 2 else "ack")
        story.now += retry_s(1) + 0.01


def retried_too_early_after_a_kill(story: Story) -> None:
    story.publish("retry", 1)
    story.give("retry", 1)
    story.settle("retry", 1, "requeue")
    story.hear("retry", 2 * AGE_S)
    story.end(after_s=0.0)
    story.give("retry", 1, again=True, returns=1)
    story.settle("retry", 1)


def retried_and_not_counted_over_a_kill(story: Story) -> None:
    story.publish("retry", 1)
    story.give("retry", 1)
    story.settle("retry", 1, "requeue")
    story.hear("retry", 2 * AGE_S)
    story.end()
    story.through("retry", 1, again=True)


def retried_and_lost(story: Story) -> None:
    story.publish("retry", 1)
    story.give("retry", 1)
    story.settle("retry", 1, "requeue")
    story.end()


def numbered_twice(story: Story) -> None:
    story.note("publish", "numbered", 1, Sent("confirm"))
    story.give("numbered", 1)
    story.settle("numbered", 1)
    story.end(after_s=0.0)
    story.note("publish-again", "numbered", 1)
    story.note("confirmed", "numbered", 1)
    story.through("numbered", 1)


def numbered_again_and_lost(story: Story) -> None:
    """The second publish was confirmed as if it were a duplicate."""
    story.note("publish", "numbered", 1, Sent("confirm"))
    story.end()
    story.note("publish-again", "numbered", 1)
    story.note("confirmed", "numbered", 1)


def numbered_and_lost_with_a_cut(story: Story) -> None:
    """The message was delivered but not acked: either the cut lost it, or it must come."""
    story.note("publish", "numbered", 1, Sent("confirm"))
    story.give("numbered", 1)
    story.end("cut", 0.0)
    story.note("publish-again", "numbered", 1)
    story.note("confirmed", "numbered", 1)


def numbered_in_another_order(story: Story) -> None:
    story.note("publish", "numbered", 1, Sent("confirm"))
    story.note("publish", "numbered", 2, Sent("confirm"))
    story.end()
    story.note("publish-again", "numbered", 1)
    story.note("publish-again", "numbered", 2)
    story.through("numbered", 2, 1)


def old_producer_was_heard(story: Story) -> None:
    story.note("publish", "numbered", 1, Sent("old"))
    story.through("numbered", 1)


def moved_and_there(story: Story) -> None:
    story.publish("moved", 1)
    story.through("moved.to", 1)
    story.through("moved", 1, again=True)


def moved_and_there_long_after(story: Story) -> None:
    story.publish("moved", 1)
    story.through("moved.to", 1)
    story.end()
    story.through("moved", 1, again=True)


def moved_and_there_over_a_stop(story: Story) -> None:
    story.publish("moved", 1)
    story.give("moved.to", 1)
    story.settle("moved.to", 1)
    story.end("stop", 0.0)
    story.through("moved", 1, again=True)


def moved_and_both_unmarked(story: Story) -> None:
    story.publish("moved", 1)
    story.give("moved.to", 1)
    story.settle("moved.to", 1)
    story.end(after_s=0.0)
    story.through("moved", 1)


def moved_and_both_unmarked_the_other_way(story: Story) -> None:
    story.publish("moved", 1)
    story.give("moved", 1)
    story.settle("moved", 1, "requeue")
    story.through("moved.to", 1)


def moved_twice_and_unmarked(story: Story) -> None:
    story.publish("redriven", 1)
    story.give("revived", 1)
    story.settle("revived", 1)
    story.end(after_s=0.0)
    story.through("revived", 1)


def moved_after_its_ack(story: Story) -> None:
    story.publish("moved", 1)
    story.through("moved", 1)
    story.through("moved.to", 1, marked=True)


def moved_from_elsewhere(story: Story) -> None:
    story.publish("moved", 1)
    story.give("moved.to", 1, home="revived")
    story.settle("moved.to", 1)


def redriven_with_its_death(story: Story) -> None:
    story.publish("redriven", 1)
    story.give("revived", 1, reason="rejected")
    story.settle("revived", 1)


def moved_and_lost(story: Story) -> None:
    story.publish("moved", 1)
    story.give("moved.to", 1)
    story.end()


def moved_to_nowhere(story: Story) -> None:
    story.publish("redriven", 1)
    story.end()


def rewound_but_for_one(story: Story) -> None:
    story.publish("kept", 1, 2, batch=1)
    story.through("kept", 1, 2)
    rewind(story, 3, 1)
    rewound(story, 3, 2)
    story.through("kept", 1, again=True)


def rewound_and_lost_in_a_cut(story: Story) -> None:
    story.publish("kept", 1, batch=1)
    story.through("kept", 1)
    rewind(story, 2, 1)
    rewound(story, 2, 1)
    story.end("cut", 0.0)


def rewound_in_part(story: Story) -> None:
    story.publish("kept", 1, 2, batch=1)
    story.through("kept", 1, 2)
    story.end()
    rewind(story, 3, 1)
    story.end()
    story.through("kept", 2, again=True)


def rewound_in_part_before_the_kill(story: Story) -> None:
    story.publish("kept", 1, 2, batch=1)
    story.through("kept", 1, 2)
    rewind(story, 3, 1)
    story.through("kept", 1, again=True)
    story.end()


def rewound_too_few(story: Story) -> None:
    story.publish("kept", 1, 2, batch=1)
    story.through("kept", 1, 2)
    rewind(story, 3, 1)
    story.give("kept", 1, again=True)
    story.give("kept", 2, again=True)
    rewound(story, 3, 1)
    story.settle("kept", 1)
    story.settle("kept", 2)


def rewound_unmarked(story: Story) -> None:
    story.publish("kept", 1, batch=1)
    story.through("kept", 1)
    rewind(story, 2, 1)
    rewound(story, 2, 1)
    story.through("kept", 1)


def rewound_twice(story: Story) -> None:
    story.publish("kept", 1, batch=1)
    story.through("kept", 1)
    rewind(story, 2, 1)
    rewound(story, 2, 1)
    story.through("kept", 1, again=True)
    story.through("kept", 1, again=True)


def rewound_another_batch(story: Story) -> None:
    story.publish("kept", 1, batch=1)
    story.through("kept", 1)
    rewind(story, 2, 2)
    rewound(story, 2, 0)
    story.through("kept", 1, again=True)


BREACHES = {
    delayed_too_early: "before it was due",
    delayed_and_lost: "later 1 is lost: promised (confirm) in life 0, and never seen",
    delayed_and_lost_in_its_queue: "due 1 is lost: a letter, given last in life 0",
    delayed_twice_and_unmarked: "due 1 came again without redelivered",
    delayed_twice_without_a_kill: "due 1 came again without redelivered",
    delayed_twice_over_a_kill_before_it_was_due: "due 1 came again without redelivered",
    delayed_twice_over_a_stop: "due 1 came again without redelivered",
    delayed_twice_long_after_it_came: "due 1 came again without redelivered",
    cancelled_and_there: "came although it had been cancelled",
    cancelled_and_there_after_a_kill: "came although it had been cancelled",
    cancelled_after_it_came: "was cancelled, and had come before",
    refused_to_cancel_and_lost: "later 1 is lost",
    retried_too_early: "before its retry was due",
    retried_too_early_the_second_time: "before its retry was due",
    retried_too_early_after_a_kill: "before its retry was due",
    retried_and_not_counted_over_a_kill: "still says x-delivery-count 0",
    retried_and_lost: "retry 1 is lost",
    numbered_twice: "numbered 1 came again without redelivered",
    numbered_again_and_lost: "numbered 1 is lost",
    numbered_and_lost_with_a_cut: "numbered 1 is lost",
    numbered_in_another_order: "numbered 1 (priority 0) came first after 2",
    old_producer_was_heard: "its producer had been replaced",
    moved_and_there: "its letter had come in this life",
    moved_and_there_long_after: "long after its letter",
    moved_and_there_over_a_stop: "long after its letter",
    moved_and_both_unmarked: "came unmarked after its copy in moved.to",
    moved_and_both_unmarked_the_other_way: "was seen in moved, and neither copy is marked",
    moved_twice_and_unmarked: "revived 1 came again without redelivered",
    moved_after_its_ack: "its message was acked",
    moved_from_elsewhere: "says it came from 'revived'",
    redriven_with_its_death: "with deaths (('rejected'",
    moved_and_lost: "moved.to 1 is lost: a letter",
    moved_to_nowhere: "redriven 1 is lost",
    rewound_but_for_one: "kept 2 is lost: given 1 times, last in life 0 (rewound)",
    rewound_and_lost_in_a_cut: "kept 1 is lost: given 1 times, last in life 0 (rewound)",
    rewound_in_part: "of rewind 3 came 1 of 2 messages",
    rewound_in_part_before_the_kill: "kept 2 is lost: given 1 times, last in life 0 (rewound)",
    rewound_too_few: "brought back 1, of 2 that were settled for certain",
    rewound_unmarked: "came again without redelivered",
    rewound_twice: "in the life in which it was settled",
    rewound_another_batch: "in the life in which it was settled",
}


@pytest.mark.parametrize("breach", BREACHES, ids=lambda breach: breach.__name__)
def test_breach_is_reported_as_one_violation(story: Story, breach: Callable[[Story], None]) -> None:
    breach(story)
    found = story.found()
    assert BREACHES[breach] in found
    assert len(found.splitlines()) == 1, found


def test_every_lane_has_a_breach() -> None:
    lanes = {breach.__name__.partition("_")[0] for breach in BREACHES}
    assert lanes == {"delayed", "cancelled", "refused", "retried", "numbered", "old", "moved", "redriven", "rewound"}
    assert set(PASSES) == {"moved", "redriven", "later"}
