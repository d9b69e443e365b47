"""MemoryWindows: how much all queues with logs hold in memory together."""

from __future__ import annotations

import pytest

from amqpd.broker.queue.services import (
    BYTES_MAX,
    BYTES_MIN,
    COUNT_MAX,
    COUNT_MIN,
    QUEUES_FULL,
    MemoryWindow,
    MemoryWindows,
)


def make_windows(count: int) -> list[MemoryWindow]:
    return [MemoryWindow(0, 0) for _ in range(count)]


@pytest.mark.parametrize("count", [1, QUEUES_FULL, QUEUES_FULL + 1, 200, 1000, 10_000])
def test_all_windows_together_stay_within_bounds(count: int) -> None:
    windows = MemoryWindows()
    windows_of_queues = make_windows(count)
    for queue in windows_of_queues:
        windows.add(queue)
    assert {(queue.count_max, queue.bytes_max) for queue in windows_of_queues} == {
        (windows.count_max, windows.bytes_max)
    }
    if count <= QUEUES_FULL:
        assert (windows.count_max, windows.bytes_max) == (COUNT_MAX, BYTES_MAX)
    assert windows.count_max == COUNT_MIN or count * windows.count_max <= QUEUES_FULL * COUNT_MAX
    assert windows.bytes_max == BYTES_MIN or count * windows.bytes_max <= QUEUES_FULL * BYTES_MAX


def test_windows_grow_when_queues_are_removed() -> None:
    windows = MemoryWindows()
    windows_of_queues = make_windows(1000)
    for queue in windows_of_queues:
        windows.add(queue)
    small = windows.count_max
    for queue in windows_of_queues[5:]:
        windows.remove(queue)
    assert windows.count_max == COUNT_MAX > small
    assert {queue.count_max for queue in windows_of_queues[:5]} == {COUNT_MAX}
