"""SlicedAcks: after a sync, the sources' messages are acked in slices of the loop, or at once when the broker stops."""

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


class RecordingSource(RepublishSource):
    """A source that records its safe offsets. Each `on_safe` call takes `took_ms` milliseconds."""

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
def sliced_acks(room: Any, soon: list[Callable[[], None]]) -> SlicedAcks:
    return SlicedAcks(room.turn, room.timers, soon.append)


def run_turn(soon: list[Callable[[], None]]) -> None:
    """Run one turn of the loop."""
    calls = soon[:]
    soon.clear()
    for call in calls:
        call()


def test_few_acks_in_one_slice(room: Any, sliced_acks: SlicedAcks, soon: list[Callable[[], None]]) -> None:
    source, other = RecordingSource(room), RecordingSource(room)
    sliced_acks.run_slice()
    sliced_acks.add(PendingRepublish(source, 3, 9, 100, None))
    sliced_acks.add(PendingRepublish(other, 0, 0, 1, None))
    sliced_acks.add(PendingRepublish(source, 11, 11, 100, None))
    sliced_acks.run_slice()
    assert source.offsets == [*range(3, 10), 11]
    assert source.sizes == {100}
    assert other.offsets == [0]
    assert not soon


def test_slices_are_bounded_by_count(room: Any, sliced_acks: SlicedAcks, soon: list[Callable[[], None]]) -> None:
    source = RecordingSource(room)
    count = 5 * ACK_SLICE_COUNT_MAX // 2
    sliced_acks.add(PendingRepublish(source, 7, 7 + count - 1, 1, None))
    sliced_acks.run_slice()
    slices = [len(source.offsets)]
    sliced_acks.run_slice()  # another sync
    slices.append(len(source.offsets) - sum(slices))
    assert len(soon) == 1
    while soon:
        run_turn(soon)
        slices.append(len(source.offsets) - sum(slices))
    assert slices == [ACK_SLICE_COUNT_MAX, ACK_SLICE_COUNT_MAX, count - 2 * ACK_SLICE_COUNT_MAX]
    assert source.offsets == list(range(7, 7 + count))


def test_slices_are_bounded_by_time(room: Any, sliced_acks: SlicedAcks, soon: list[Callable[[], None]]) -> None:
    source = RecordingSource(room, took_ms=1)
    for number in range(10):
        sliced_acks.add(PendingRepublish(source, number * STEP_COUNT, (number + 1) * STEP_COUNT - 1, 1, None))
    sliced_acks.run_slice()
    turns = 1
    while soon:
        assert len(source.offsets) == turns * SLICE_MS * STEP_COUNT
        run_turn(soon)
        turns += 1
    assert turns == 10 // SLICE_MS
    assert source.offsets == list(range(10 * STEP_COUNT))


def test_stop_acks_everything_at_once(room: Any, sliced_acks: SlicedAcks, soon: list[Callable[[], None]]) -> None:
    source = RecordingSource(room, took_ms=1)
    sliced_acks.add(PendingRepublish(source, 0, 99_999, 1, None))
    sliced_acks.run_slice()
    sliced_acks.stop()
    assert source.offsets == list(range(100_000))
    sliced_acks.add(PendingRepublish(source, 100_000, 199_999, 1, None))  # of the last sync
    sliced_acks.run_slice()
    assert len(source.offsets) == 200_000
    run_turn(soon)
    assert len(source.offsets) == 200_000
