"""Segments that are drained while the fsync thread works."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest


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


@pytest.mark.parametrize("failing", ["checkpoint", ".log"])
def test_acks_stay_while_the_segment_of_their_messages_stays(
    make_harness: Callable[..., Any], failing: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The removal of a segment's files fails for a while. Its `.settled` file must not be removed without them.

    It is repeated up to 20 times a second; the log has one line.
    """
    harness = make_harness(segment_size_bytes=4000)
    store = harness.create_log()
    for number in range(20):
        harness.append(b"%d" % number * 500)
        harness.end_turn()
    first, second = store.log.segments[:2]
    harness.filesystem.fault = lambda name, path: (
        OSError(errno.EMFILE, "no descriptor") if failing in path and name in ("open", "unlink") else None
    )
    for offset in range(first.base, second.end):
        store.ack(offset, 0)
        harness.clock.now_ms += 1000
        harness.end_turn()
        harness.storage.commits.flush()
        harness.run_callbacks()
    assert len([each for each in caplog.messages if "work after the sync failed" in each]) == 1
    harness.filesystem.fault = None
    third = store.log.segments[2]
    for offset in range(third.base, third.end):
        store.ack(offset, 0)
        harness.clock.now_ms += 1000
        harness.append(b"more")
        harness.end_turn()
        harness.storage.commits.flush()
        harness.run_callbacks()
    assert not any(harness.filesystem.exists(f"{each.prefix}.log") for each in (first, second, third))
    harness.restart()
    assert harness.offsets()[0] == third.end
