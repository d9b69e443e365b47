"""What one sync makes safe is settled at its sources in slices of the loop, and at once when the broker stops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from amqpd.broker.publish.republisher import (
    ACK_SLICE_COUNT_MAX,
    SLICE_MS,
    STEP_COUNT,
    PendingRepublish,
    RepublishSource,
    SlicedAcks,
)


class Told(RepublishSource):
    """Keeps what is safe; each telling takes so many milliseconds."""

    def __init__(self, room: Any, took_ms: int = 0) -> None:
        super().__init__("told")
        self.room = room
        self.took_ms = took_ms
        self.offsets: list[int] = []
        self.sizes: set[int] = set()

    def on_safe(self, first: int, last: int, size: int) -> None:
        self.offsets += range(first, last + 1)
        self.sizes.add(size)
        self.room.clock.now_ms += self.took_ms


@pytest.fixture
def soon() -> list[Callable[[], None]]:
    return []


@pytest.fixture
def settling(room: Any, soon: list[Callable[[], None]]) -> SlicedAcks:
    return SlicedAcks(room.turn, room.timers, soon.append)


def run(soon: list[Callable[[], None]]) -> None:
    """A turn of the loop."""
    calls = soon[:]
    soon.clear()
    for call in calls:
        call()


def test_a_few_at_once(room: Any, settling: SlicedAcks, soon: list[Callable[[], None]]) -> None:
    told, other = Told(room), Told(room)
    settling.run_slice()
    settling.add(PendingRepublish(told, 3, 9, 100, None))
    settling.add(PendingRepublish(other, 0, 0, 1, None))
    settling.add(PendingRepublish(told, 11, 11, 100, None))
    settling.run_slice()
    assert told.offsets == [*range(3, 10), 11]
    assert told.sizes == {100}
    assert other.offsets == [0]
    assert not soon


def test_many_in_slices_by_number(room: Any, settling: SlicedAcks, soon: list[Callable[[], None]]) -> None:
    told = Told(room)
    count = 5 * ACK_SLICE_COUNT_MAX // 2
    settling.add(PendingRepublish(told, 7, 7 + count - 1, 1, None))
    settling.run_slice()
    slices = [len(told.offsets)]
    settling.run_slice()  # another sync
    slices.append(len(told.offsets) - sum(slices))
    assert len(soon) == 1
    while soon:
        run(soon)
        slices.append(len(told.offsets) - sum(slices))
    assert slices == [ACK_SLICE_COUNT_MAX, ACK_SLICE_COUNT_MAX, count - 2 * ACK_SLICE_COUNT_MAX]
    assert told.offsets == list(range(7, 7 + count))


def test_many_in_slices_by_time(room: Any, settling: SlicedAcks, soon: list[Callable[[], None]]) -> None:
    told = Told(room, took_ms=1)
    for number in range(10):
        settling.add(PendingRepublish(told, number * STEP_COUNT, (number + 1) * STEP_COUNT - 1, 1, None))
    settling.run_slice()
    turns = 1
    while soon:
        assert len(told.offsets) == turns * SLICE_MS * STEP_COUNT
        run(soon)
        turns += 1
    assert turns == 10 // SLICE_MS
    assert told.offsets == list(range(10 * STEP_COUNT))


def test_all_of_it_when_the_broker_stops(room: Any, settling: SlicedAcks, soon: list[Callable[[], None]]) -> None:
    told = Told(room, took_ms=1)
    settling.add(PendingRepublish(told, 0, 99_999, 1, None))
    settling.run_slice()
    settling.stop()
    assert told.offsets == list(range(100_000))
    settling.add(PendingRepublish(told, 100_000, 199_999, 1, None))  # its last sync
    settling.run_slice()
    assert len(told.offsets) == 200_000
    run(soon)
    assert len(told.offsets) == 200_000
