"""The window of a queue against `collections.deque`."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import pytest

from amqpd.broker.consumer import QueueEntry
from amqpd.broker.queue.entry_deque import EntryDeque


@pytest.fixture
def entry(room) -> Callable[[int], QueueEntry]:
    queue = room.queue("q")
    return lambda offset: QueueEntry(queue, offset, None, False)


@pytest.mark.parametrize("seed", range(4))
def test_it_is_a_deque(entry: Callable[[int], QueueEntry], seed: int) -> None:
    """In phases that fill and phases that empty it, past the length at which the list is moved up."""
    dice = random.Random(seed)
    fifo, twin = EntryDeque(), deque[QueueEntry]()
    offset = 0
    for phase in range(12):
        for _ in range(2000):
            if dice.random() < (0.9 if phase % 3 == 0 else 0.3):
                one = entry(offset)
                offset += 1
                fifo.append(one)
                twin.append(one)
            elif twin:
                assert fifo.first() is twin[0]
                assert fifo.popleft() is twin.popleft()
            assert len(fifo) == len(twin)
            assert bool(fifo) is bool(twin)
        assert fifo.entries() == list(twin)
    fifo.clear()
    assert not fifo
    assert fifo.entries() == []
    fifo.append(one)
    assert fifo.popleft() is one


def test_nothing_is_there() -> None:
    fifo = EntryDeque()
    for call in (fifo.first, fifo.popleft):
        with pytest.raises(IndexError):
            call()


def test_what_has_gone_is_not_held(entry: Callable[[int], QueueEntry]) -> None:
    """A queue that never runs empty: the list is moved up all the same."""
    fifo = EntryDeque()
    for number in range(100):
        fifo.append(entry(number))
    for number in range(20_000):
        fifo.append(entry(number))
        fifo.popleft()
    assert len(fifo) == 100
    assert len(fifo._entries) < 3000
