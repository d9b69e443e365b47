"""Unacked messages by delivery tag; one entry may represent many deliveries of a stream."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from amqpd.broker.consumer import QueueBase, QueueEntry
from amqpd.channel.unacked import SPARSE_MIN, Unacked
from amqpd.errors import PreconditionFailed


def entries(count: int) -> list[QueueEntry]:
    source = QueueBase("s", "/")
    return [QueueEntry(source, number, None, False) for number in range(count)]


def test_take_runs() -> None:
    one, other = entries(2)
    unacked = Unacked()
    unacked.add_times(1, one, 5)
    unacked.add(6, other)
    unacked.add_times(7, one, 3)
    assert unacked.take_runs(2) == [(one, 2)]
    assert unacked.take_one(4) is one
    assert unacked.take_runs(8) == [(one, 1), (one, 1), (other, 1), (one, 2)]
    assert unacked.next_tag() == 10
    with pytest.raises(PreconditionFailed):
        unacked.take_runs(8)
    assert unacked.take_runs(0) == [(one, 1)]
    assert unacked.take_runs(0) == []
    unacked.add(10, other)
    assert unacked.take_one(10) is other


def test_entry_with_one_delivery_is_not_shared() -> None:
    one, other = entries(2)
    unacked = Unacked()
    unacked.add_times(1, one, 1)
    unacked.add_times(2, other, 1)
    assert not unacked.has_shared_entries
    assert unacked.take_runs(0) == [(one, 1), (other, 1)]


@pytest.mark.parametrize("seed", range(20))
def test_random_acks_equal_those_without_runs(seed: int) -> None:
    """Random acks: the same entries and the same unknown tags as without runs."""
    rng = random.Random(seed)
    known = entries(5)
    runs, single = Unacked(), Unacked()
    tag = 1
    for _ in range(400):
        action = rng.random()
        if action < 0.5:
            entry, count = rng.choice(known), rng.choice((1, 1, 2, 50, 700))
            runs.add_times(tag, entry, count)
            for number in range(count):
                single.add(tag + number, entry)
            tag += count
        elif action < 0.6:
            runs.add_no_ack()
            single.add_no_ack()
            tag += 1
        else:
            acked, multiple = rng.randrange(max(0, tag - 1500), tag + 2), rng.random() < 0.5
            answers: list[list[QueueEntry] | None] = []
            for unacked in (runs, single):
                try:
                    if not multiple:
                        answers.append([unacked.take_one(acked)])
                    elif unacked is single:
                        answers.append(unacked.take_multiple(acked))
                    else:
                        answers.append([entry for entry, count in unacked.take_runs(acked) for _ in range(count)])
                except PreconditionFailed:
                    answers.append(None)
            assert answers[0] == answers[1]
        assert runs.entries() == single.entries()


def test_message_that_stays_unacked_does_not_keep_the_places_of_later_ones() -> None:
    """A consumer with one such message and a thousand others a second took 690 MB a day."""
    stuck, other = entries(2)
    unacked = Unacked()
    unacked.add(1, stuck)
    for tag in range(2, 10 * SPARSE_MIN):
        if tag % 3:
            unacked.add(tag, other)
            unacked.take_one(tag)
        else:
            unacked.add_no_ack()
        assert len(unacked._entries) <= SPARSE_MIN
    assert unacked.entries() == [stuck]
    assert unacked.first_of(0, stuck.queue, None, False) == 1
    assert unacked.take_one(1) is stuck
    with pytest.raises(PreconditionFailed):
        unacked.take_one(1)


@pytest.mark.parametrize("seed", range(5))
def test_random_acks_with_messages_that_stay_unacked_equal_those_of_a_dict(seed: int) -> None:
    rng = random.Random(seed)
    (entry,) = entries(1)
    unacked, twin = Unacked(), dict[int, QueueEntry]()
    tag = stuck = old_max = 0
    for _ in range(12 * SPARSE_MIN):
        old_max = max(old_max, len(unacked._old))
        tag += 1
        new = QueueEntry(entry.queue, tag, None, False)
        unacked.add(tag, new)
        twin[tag] = new
        stuck += rng.random() < 0.01  # about so many stay unacked
        acked = rng.choice(list(twin)[stuck // 2 :] or [tag]) if len(twin) > stuck else 0
        if not acked:
            continue
        assert unacked.take_one(acked) is twin.pop(acked)
        action = rng.random()
        if action < 0.001:
            upto = rng.choice(list(twin) or [0])
            expected = [twin.pop(each) for each in list(twin) if each <= upto or upto == 0]
            taken = [each for each, _ in unacked.take_runs(upto)] if rng.random() < 0.5 else unacked.take_multiple(upto)
            assert taken == expected
        elif action < 0.01:
            upto = rng.choice(list(twin) or [0])
            assert unacked.entries_up_to(upto) == [pair for pair in twin.items() if pair[0] <= upto or upto == 0]
            assert unacked.entries_at(upto) == [(upto, twin[upto])] if upto else True
            first = next((each for each in twin if each >= upto), -1)
            assert unacked.first_of(upto, entry.queue, None, False) == first
            assert unacked.entries() == list(twin.values())
            assert unacked.count() == len(twin)
            with pytest.raises(PreconditionFailed):
                unacked.take_one(acked)
    assert old_max > 1
    assert unacked.take_outstanding() == list(twin.values())
    assert unacked.entries() == []


def test_old_entries_become_late_and_are_settled_in_transactions() -> None:
    stuck, other = entries(2)
    unacked = Unacked()
    unacked.add(1, stuck)
    unacked.add(2, other)
    for tag in range(3, 3 * SPARSE_MIN):
        unacked.add(tag, other)
        unacked.take_one(tag)
    assert list(unacked._old) == [1, 2]
    other.in_transaction = True
    for ask in (unacked.entries_at, unacked.take_one, unacked.take_multiple, unacked.entries_up_to):
        with pytest.raises(PreconditionFailed):
            ask(2)
    assert unacked.take_as_late(stuck.queue, None) == [stuck]
    assert unacked.timed_out(1)
    assert unacked.take_outstanding() == []
    assert unacked.entries() == [other]


class CountingDict(dict[int, QueueEntry]):
    """A dict that counts the keys that iterations visit."""

    visited_count = 0

    def __iter__(self) -> Iterator[int]:
        for key in super().__iter__():
            self.visited_count += 1
            yield key

    def keys(self) -> Any:  # compiled code iterates over this
        return iter(self)


def test_ack_of_some_old_entries_does_not_visit_the_others() -> None:
    """Otherwise acks of 100,000 such messages, each with multiple, stopped the broker for minutes."""
    unacked = Unacked()
    count = SPARSE_MIN // 16
    kept = entries(count)
    for tag in range(1, SPARSE_MIN + 2):
        unacked.add(tag, kept[min(tag, count) - 1])
        if tag > count:
            unacked.take_one(tag)
    old = unacked._old = CountingDict(unacked._old)
    assert len(old) == count
    old.visited_count = 0
    for tag in range(1, count + 1):
        assert unacked.take_multiple(tag) == [kept[tag - 1]]
    assert 0 < old.visited_count < 2 * count
