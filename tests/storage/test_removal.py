"""Segments that are drained while the committer is at work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def test_drained_in_a_turn_that_has_not_ended(make_house: Callable[..., Any]) -> None:
    """A commit that comes back in the middle of a turn leaves alone what this turn has settled and not yet written."""
    house = make_house(segment_size_bytes=4000)
    store = house.begin()
    for number in range(20):
        house.append(b"%d" % number * 500)
        house.turn()
    first = store.log.segments[0]
    assert first.sealed and len(house.names(".log")) > 3
    house.append(b"last")
    house.storage.commits.end_of_turn()  # a job is at work
    house.clock.now_ms += 10_000
    store.ack_range(first.base, first.end - 1, 0)
    house.loop()  # it comes back, and the next one is handed over at once
    assert not first.removing and not first.is_removed
    house.turn()
    for _ in range(3):
        house.clock.now_ms += 10_000
        house.append(b"more")
        house.turn()
        house.storage.commits.flush()
        house.loop()
    assert first.is_removed
    assert not store.failed and not any(failed for _, failed in house.commits)
    assert house.again().next_offset == 24
    assert house.offsets()[0] == first.end
