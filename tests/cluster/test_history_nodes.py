"""The judge of histories over nodes: what it lets pass that one node may not do, and nothing more."""

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
    """2 and 3 are published in one life and 1 in the life before, and 1 comes last."""
    story.end("cut")
    story.publish("work", 2, 3)
    story.through("work", 2, 3)
    story.through("work", 1)


def test_a_nack_is_no_promise(story: Story) -> None:
    for message in (1, 2):
        story.note("publish", "work", message, Sent("confirm"))
        story.note("nacked", "work", message)
    story.publish("work", 3)
    story.through("work", 2, 3)
    assert not story.found()


def test_a_nack_does_not_take_back_what_was_promised(story: Story) -> None:
    story.publish("work", 1)
    story.note("nacked", "work", 1)
    assert "work 1 is lost" in story.found()


def test_what_went_by_another_node_comes_at_any_time(story: Story) -> None:
    story.note("publish", "work", 1, Sent("confirm"))
    late(story)
    assert not story.found()


def test_what_was_promised_comes_before_what_is_published_then(story: Story) -> None:
    story.publish("work", 1)
    late(story)
    assert "work 1 (priority 0) came first after 3" in story.found()


@pytest.mark.parametrize("returns", [0, 1])
def test_what_came_back_from_a_client_that_had_gone_has_waited(story: Story, returns: int) -> None:
    """It was on its way to one in the life before."""
    story.publish("retry", 1)
    story.end("cut")
    story.publish("retry", 2)
    story.through("retry", 2)
    story.give("retry", 1, again=True, returns=returns)
    story.settle("retry", 1)
    assert ("retry 1 (priority 0) came first after 2" in story.found()) == (not returns)


def test_order_within_a_life(story: Story) -> None:
    for message in (1, 2):
        story.note("publish", "work", message, Sent("confirm"))
    story.through("work", 2, 1)
    assert "work 1 (priority 0) came first after 2" in story.found()


@pytest.mark.parametrize("clock_s", [0.0, APART_S])
def test_clocks_that_are_apart_expire_early(clock_s: float) -> None:
    story = Story(NodesJudge(clock_s))
    story.publish("aged", 1)
    story.now += TTL_S / 2
    story.through("aged.dead", 1, reason="expired")
    assert ("expired" in story.found()) == (not clock_s)


@pytest.mark.parametrize(("marked", "allowed"), [((False, True, True), True), ((False, False, True), False)])
def test_a_letter_that_two_owners_repeat_between_two_lives(marked: tuple[bool, ...], allowed: bool) -> None:
    story = Story(NodesJudge())
    story.publish("aged", 1)
    story.now += TTL_S
    story.give("aged.dead", 1, reason="expired", marked=marked[0])
    story.end("cut", 0.01)
    for each in marked[1:]:
        story.through("aged.dead", 1, reason="expired", marked=each)
    assert ("aged.dead 1 came again without redelivered" not in story.found()) == allowed


def test_a_letter_is_not_repeated_without_another_owner(story: Story) -> None:
    """Though it says so."""
    story.publish("aged", 1)
    story.now += TTL_S
    story.through("aged.dead", 1, reason="expired")
    story.through("aged.dead", 1, reason="expired", marked=True)
    assert "aged.dead 1 came again without redelivered" in story.found()


@pytest.mark.parametrize(("back", "allowed"), [(1, False), (2, True)])
def test_an_ack_counts_when_it_is_older_than_kafka_was_away(story: Story, back: int, allowed: bool) -> None:
    """A publish has waited for 3 s: the ack of 3 s ago need not be in Kafka, that of 11 s ago is."""
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


def test_a_stream_that_nacks() -> None:
    stream = NodesStream()
    number = stream.publish()
    stream.nacked(number)
    assert not stream.violations


@pytest.mark.parametrize(("count", "how", "allowed"), [(400, "cut", True), (400, "stop", False), (40, "cut", False)])
def test_a_cut_that_the_next_owner_was_not_told_of(count: int, how: str, allowed: bool) -> None:
    """A reader has passed over 0 to 9, which are there again: so much is newer that they may be cut, or is not."""
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
def test_a_barrier_has_an_offset_and_no_message_lies_there(begins_at: int, allowed: bool) -> None:
    """0 and 1 were seen; a new owner's first message is at 3 behind a barrier, or at 2 and 1 is lost."""
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
def test_what_is_stored_for_a_reader_lies_behind_a_barrier(shows: str, broken: str) -> None:
    """It has acked 0 to 2; 3 is a barrier, and 4 is stored for it; or 3 is a message after all, known before or not."""
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
def test_who_goes_on_at_the_next_owner_of_a_stream(moved: bool, given: int, allowed: bool) -> None:
    """It has acked 0 to 2, and was answered; that 1 is stored somebody was told. Then comes another owner."""
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
