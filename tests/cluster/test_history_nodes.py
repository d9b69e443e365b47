"""The judge of histories over several nodes: it allows what one node may not do, and nothing else."""

from __future__ import annotations

import pytest
from history import TTL_S, Sent
from history_nodes import NodesJudge, NodesStream
from history_story import Story

APART_S = 120.0


@pytest.fixture
def story() -> Story:
    return Story(NodesJudge())


def late(story: Story) -> None:
    """Publish 2 and 3 in one life and deliver 1, from the life before, after them."""
    story.end("cut")
    story.publish("work", 2, 3)
    story.through("work", 2, 3)
    story.through("work", 1)


def test_nacked_message_may_be_lost(story: Story) -> None:
    for message in (1, 2):
        story.note("publish", "work", message, Sent("confirm"))
        story.note("nacked", "work", message)
    story.publish("work", 3)
    story.through("work", 2, 3)
    assert not story.found()


def test_nack_after_a_confirm_does_not_excuse_a_loss(story: Story) -> None:
    story.publish("work", 1)
    story.note("nacked", "work", 1)
    assert "work 1 is lost" in story.found()


def test_unconfirmed_message_of_an_earlier_life_may_come_late(story: Story) -> None:
    story.note("publish", "work", 1, Sent("confirm"))
    late(story)
    assert not story.found()


def test_confirmed_message_of_an_earlier_life_may_not_come_late(story: Story) -> None:
    story.publish("work", 1)
    late(story)
    assert "work 1 (priority 0) came first after 3" in story.found()


@pytest.mark.parametrize("returns", [0, 1])
def test_message_returned_from_a_lost_client_may_come_late(story: Story, returns: int) -> None:
    """The message was on its way to a client in the life before."""
    story.publish("retry", 1)
    story.end("cut")
    story.publish("retry", 2)
    story.through("retry", 2)
    story.give("retry", 1, again=True, returns=returns)
    story.settle("retry", 1)
    assert ("retry 1 (priority 0) came first after 2" in story.found()) == (not returns)


def test_order_within_one_life_is_kept(story: Story) -> None:
    for message in (1, 2):
        story.note("publish", "work", message, Sent("confirm"))
    story.through("work", 2, 1)
    assert "work 1 (priority 0) came first after 2" in story.found()


@pytest.mark.parametrize("clock_s", [0.0, APART_S])
def test_early_expiry_is_allowed_with_a_clock_difference(clock_s: float) -> None:
    story = Story(NodesJudge(clock_s))
    story.publish("aged", 1)
    story.now += TTL_S / 2
    story.through("aged.dead", 1, reason="expired")
    assert ("expired" in story.found()) == (not clock_s)


@pytest.mark.parametrize(("marked", "allowed"), [((False, True, True), True), ((False, False, True), False)])
def test_dead_letter_repeated_by_two_owners(marked: tuple[bool, ...], allowed: bool) -> None:
    story = Story(NodesJudge())
    story.publish("aged", 1)
    story.now += TTL_S
    story.give("aged.dead", 1, reason="expired", marked=marked[0])
    story.end("cut", 0.01)
    for each in marked[1:]:
        story.through("aged.dead", 1, reason="expired", marked=each)
    assert ("aged.dead 1 came again without redelivered" not in story.found()) == allowed


def test_dead_letter_repeated_without_an_owner_change_is_reported(story: Story) -> None:
    """The `marked` flag does not excuse the repeat."""
    story.publish("aged", 1)
    story.now += TTL_S
    story.through("aged.dead", 1, reason="expired")
    story.through("aged.dead", 1, reason="expired", marked=True)
    assert "aged.dead 1 came again without redelivered" in story.found()


@pytest.mark.parametrize(("back", "allowed"), [(1, False), (2, True)])
def test_ack_older_than_the_kafka_outage_counts(story: Story, back: int, allowed: bool) -> None:
    """A publish has waited for 3 s: an ack from 3 s ago may be missing in Kafka, one from 11 s ago may not."""
    story.publish("work", 1, 2)
    story.give("work", 1)
    story.give("work", 2)
    story.settle("work", 1)
    story.hear("work", 8.0)
    story.note("publish", "plain", 3, Sent("confirm"))
    story.settle("work", 2)
    story.hear("work", 3.0)
    story.end("cut", 0.0)
    story.through("work", back, again=True)
    assert ("work 1 came back although it was settled" in story.found()) != allowed


def test_nack_of_a_stream_message_is_no_violation() -> None:
    stream = NodesStream()
    number = stream.publish()
    stream.nacked(number)
    assert not stream.violations


@pytest.mark.parametrize(("count", "how", "allowed"), [(400, "cut", True), (400, "stop", False), (40, "cut", False)])
def test_retention_unknown_to_the_next_owner(count: int, how: str, allowed: bool) -> None:
    """A reader passed over offsets 0 to 9, which exist again. Allowed only after a cut, with enough newer messages."""
    stream = NodesStream()
    numbers = [stream.publish() for _ in range(count)]
    for number in numbers:
        stream.confirmed(number)
    stream.found(enumerate(numbers), {})
    reader = stream.asks("first", 0)
    stream.begins(reader)
    stream.given(reader, 10, numbers[10])
    stream.ended(how)
    stream.found(enumerate(numbers), {})
    assert (not stream.violations) == allowed, stream.violations


@pytest.mark.parametrize(("begins_at", "allowed"), [(2, True), (3, False)])
def test_offset_of_a_barrier_has_no_message(begins_at: int, allowed: bool) -> None:
    """0 and 1 were seen. The new owner's first message is at 3, after a barrier at 2; otherwise message 1 is lost."""
    stream = NodesStream()
    first = [stream.publish() for _ in range(2)]
    for number in first:
        stream.confirmed(number)
        stream.see(number, number)
    stream.ended("stop")
    last = stream.publish()
    stream.confirmed(last)
    stream.found([*enumerate(first[: 4 - begins_at]), (3, last)], {})
    assert (not stream.violations) == allowed, stream.violations


@pytest.mark.parametrize(
    ("shows", "broken"), [("nothing", ""), ("a message", "passed over"), ("one unacked", "stored")]
)
def test_stored_offset_may_skip_a_barrier_but_no_message(shows: str, broken: str) -> None:
    """The reader acked 0 to 2, and offset 4 is stored. Allowed if 3 is a barrier, not if 3 is a message."""
    stream = NodesStream()
    numbers = [stream.publish() for _ in range(4)]
    reader = stream.asks("first", 0, "reader")
    stream.begins(reader)
    for number in numbers[:3]:
        stream.given(reader, number, number)
        stream.acks(reader, number)
    if shows == "one unacked":
        stream.see(3, 3)
    stream.tells("reader", 4, False)
    if shows == "a message":
        stream.see(3, 3)
    assert bool(stream.violations) == bool(broken)
    assert broken in "".join(stream.violations)


@pytest.mark.parametrize(("moved", "given", "allowed"), [(True, 1, True), (False, 1, False), (True, 0, False)])
def test_reader_resumes_from_the_stored_offset_at_the_next_owner(moved: bool, given: int, allowed: bool) -> None:
    """The reader acked 0 to 2, and offset 1 was reported as stored. Then the stream moves to another owner."""
    stream = NodesStream()
    numbers = [stream.publish() for _ in range(4)]
    reader = stream.asks("first", 0, "reader")
    for number in numbers[:3]:
        stream.given(reader, number, number)
        stream.acks(reader, number)
    stream.ends(reader)
    stream.tells("reader", 1, True)
    stream.moved = moved
    again = stream.asks("stored", stream.stored, "reader")
    stream.given(again, given, given)
    assert (not stream.violations) == allowed, stream.violations
