"""Unacked messages by delivery tag; one entry may represent many deliveries of a stream."""

from __future__ import annotations

import random

import pytest

from amqpd.broker.consumer import QueueBase, QueueEntry
from amqpd.channel.unacked import Unacked
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
