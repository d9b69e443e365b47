"""EntryDeque, the entries that a queue holds in memory, compared with `collections.deque`."""

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
def test_behaves_as_collections_deque(entry: Callable[[int], QueueEntry], seed: int) -> None:
    """Phases that fill and phases that empty the deque, beyond the length at which the list is compacted."""
    random_source = random.Random(seed)
    fifo, model = EntryDeque(), deque[QueueEntry]()
    offset = 0
    for phase in range(12):
        for _ in range(2000):
            if random_source.random() < (0.9 if phase % 3 == 0 else 0.3):
                one = entry(offset)
                offset += 1
                fifo.append(one)
                model.append(one)
            elif model:
                assert fifo.first() is model[0]
                assert fifo.popleft() is model.popleft()
            assert len(fifo) == len(model)
            assert bool(fifo) is bool(model)
        assert fifo.entries() == list(model)
    fifo.clear()
    assert not fifo
    assert fifo.entries() == []
    fifo.append(one)
    assert fifo.popleft() is one


def test_empty_deque_raises_index_error() -> None:
    fifo = EntryDeque()
    for call in (fifo.first, fifo.popleft):
        with pytest.raises(IndexError):
            call()


def test_removed_entries_are_released(entry: Callable[[int], QueueEntry]) -> None:
    """The list is compacted although the deque never becomes empty."""
    fifo = EntryDeque()
    for number in range(100):
        fifo.append(entry(number))
    for number in range(20_000):
        fifo.append(entry(number))
        fifo.popleft()
    assert len(fifo) == 100
    assert len(fifo._entries) < 3000
