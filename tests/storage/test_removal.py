"""Segments that are drained while the fsync thread works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def test_segment_drained_in_an_open_turn_is_removed_later(make_harness: Callable[..., Any]) -> None:
    """A commit that returns during a turn does not remove a segment whose acks this turn has not written yet."""
    harness = make_harness(segment_size_bytes=4000)
    store = harness.create_log()
    for number in range(20):
        harness.append(b"%d" % number * 500)
        harness.end_turn()
    first = store.log.segments[0]
    assert first.sealed and len(harness.names(".log")) > 3
    harness.append(b"last")
    harness.storage.commits.end_of_turn()  # a job is running
    harness.clock.now_ms += 10_000
    store.ack_range(first.base, first.end - 1, 0)
    harness.run_callbacks()  # the job returns, and the next one is submitted at once
    assert not first.removing and not first.is_removed
    harness.end_turn()
    for _ in range(3):
        harness.clock.now_ms += 10_000
        harness.append(b"more")
        harness.end_turn()
        harness.storage.commits.flush()
        harness.run_callbacks()
    assert first.is_removed
    assert not store.failed and not any(failed for _, failed in harness.commits)
    assert harness.restart().next_offset == 24
    assert harness.offsets()[0] == first.end
