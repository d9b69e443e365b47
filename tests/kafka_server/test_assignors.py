"""The assignors uniform and range, at random."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpd.kafka_server.assignors import (
    ASSIGNORS,
    Assignment,
    Assignor,
    Topics,
    assign_range,
    assign_uniform,
    partitions_of,
)

A, B, C = (letter * 16 for letter in (b"a", b"b", b"c"))
NAMES = st.sampled_from(["one", "two", "three", "four", "five"])
TOPICS = st.dictionaries(st.sampled_from([A, B, C, b"d" * 16]), st.integers(0, 9), max_size=4)


@st.composite
def groups(draw: st.DrawFn) -> dict[str, Topics]:
    """Members with different subscriptions to the same topics."""
    counts = draw(TOPICS)
    subscription = st.sets(st.sampled_from(sorted(counts)) if counts else st.nothing())
    subscriptions = draw(st.dictionaries(NAMES, subscription, min_size=1))
    return {name: {topic: counts[topic] for topic in topics} for name, topics in subscriptions.items()}


def sizes(assignment: Assignment) -> list[int]:
    return sorted(len(each) for each in assignment.values())


def check_complete(members: Mapping[str, Topics], assignment: Assignment) -> None:
    """Each partition of a subscribed topic has one owner, which has subscribed to the topic."""
    assert set(assignment) == set(members)
    assigned = [each for partitions in assignment.values() for each in partitions]
    assert len(assigned) == len(set(assigned))
    assert set(assigned) == {each for topics in members.values() for each in partitions_of(topics)}
    for member, partitions in assignment.items():
        assert partitions <= partitions_of(members[member])


@pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=list(ASSIGNORS))
@given(before=groups(), members=groups())
def test_each_partition_has_one_owner_that_wants_it(
    assign: Assignor, before: dict[str, Topics], members: dict[str, Topics]
) -> None:
    check_complete(members, assign(members, assign(before, {})))


@given(before=groups(), names=st.lists(NAMES, min_size=1, unique=True), topics=TOPICS)
def test_uniform_gives_equal_numbers_and_moves_no_more_than_it_must(
    before: dict[str, Topics], names: list[str], topics: Topics
) -> None:
    previous = assign_uniform(before, {})
    members = dict.fromkeys(names, topics)
    assignment = assign_uniform(members, previous)
    check_complete(members, assignment)
    assert sizes(assignment)[-1] - sizes(assignment)[0] <= 1
    everything = partitions_of(topics)
    least, extra = divmod(len(everything), len(names))
    held = sorted((len(previous.get(name, frozenset()) & everything) for name in names), reverse=True)
    most_kept = sum(min(count, least + (number < extra)) for number, count in enumerate(held))
    assert sum(len(assignment[name] & previous.get(name, frozenset())) for name in names) == most_kept


@given(before=groups(), members=groups())
def test_uniform_with_different_subscriptions_cannot_be_made_more_even_by_one_move(
    before: dict[str, Topics], members: dict[str, Topics]
) -> None:
    assignment = assign_uniform(members, assign_uniform(before, {}))
    for owner, partitions in assignment.items():
        for topic, _ in partitions:
            for other, topics in members.items():
                assert topic not in topics or len(partitions) <= len(assignment[other]) + 1, (owner, other)


@pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=list(ASSIGNORS))
@given(members=groups())
def test_assignment_without_a_change_stays(assign: Assignor, members: dict[str, Topics]) -> None:
    assignment = assign(members, {})
    assert assign(members, assignment) == assignment


def test_uniform_keeps_all_when_a_member_leaves() -> None:
    topics = {A: 6, B: 3}
    three = assign_uniform(dict.fromkeys(["one", "two", "three"], topics), {})
    two = assign_uniform(dict.fromkeys(["one", "two"], topics), three)
    assert three["one"] < two["one"] and three["two"] < two["two"]
    assert sizes(two) == [4, 5]


def test_uniform_spreads_each_topic() -> None:
    assignment = assign_uniform({"one": {A: 4, B: 4}, "two": {A: 4, B: 4}}, {})
    assert all(sum(topic == A for topic, _ in partitions) == 2 for partitions in assignment.values())


def test_range_gives_the_same_numbers_of_topics_with_equal_counts() -> None:
    topics = {A: 5, B: 5}
    assignment = assign_range(dict.fromkeys(["one", "two"], topics), {})
    assert assignment["one"] == {(topic, index) for topic in (A, B) for index in (0, 1, 2)}
    assert assignment["two"] == {(topic, index) for topic in (A, B) for index in (3, 4)}


def test_range_with_more_members_than_partitions_leaves_the_last_ones_without() -> None:
    assignment = assign_range({"one": {A: 2}, "two": {A: 2}, "three": {A: 2, B: 1}}, {})
    assert assignment == {"one": {(A, 0)}, "two": {(A, 1)}, "three": {(B, 0)}}


def test_no_members_get_nothing() -> None:
    assert assign_uniform({}, {}) == assign_range({}, {}) == {}
