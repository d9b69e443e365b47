"""Look-up of offsets by time, compared with a linear search, with and without a correct `.timeindex`."""

from __future__ import annotations

import random
from typing import Any

import pytest
from time_search import offset_at

START = 1_700_000_000_000


@pytest.fixture
def timed_log(make_harness: Any) -> Any:
    """A log of several segments: 160 turns with one to four messages each, at uneven times."""
    harness = make_harness(segment_size_bytes=20_000)
    harness.create_log()
    chance = random.Random(5)
    harness.times = []
    for _ in range(160):
        bodies = [b"x" * chance.choice([1, 100, 700]) for _ in range(chance.randint(1, 4))]
        harness.append(*bodies)
        harness.times += [harness.clock.now_ms] * len(bodies)
        harness.end_turn()
        harness.clock.now_ms += chance.choice([0, 1, 10, 1000])
    return harness


def linear_search(harness: Any, timestamp_ms: int) -> int:
    live = set(harness.offsets())
    found = (offset for offset, time_ms in enumerate(harness.times) if time_ms >= timestamp_ms and offset in live)
    return next(found, harness.store.next_offset)


def check_look_up(harness: Any) -> None:
    for timestamp_ms in [0, START - 1, *sorted({*harness.times})[::11], harness.times[-1], harness.times[-1] + 1]:
        for each in (timestamp_ms, timestamp_ms + 1):
            assert offset_at(harness.store, each) == linear_search(harness, each), each


def test_look_up_of_every_time(timed_log: Any) -> None:
    assert len(timed_log.names(".log")) > 3
    check_look_up(timed_log)


@pytest.mark.parametrize("clean", [True, False])
def test_look_up_after_a_restart(timed_log: Any, clean: bool) -> None:
    if clean:
        timed_log.storage.close(clean=True)
    timed_log.restart()
    check_look_up(timed_log)


def test_acked_messages_are_not_found(timed_log: Any) -> None:
    for first in range(0, 350, 50):
        timed_log.store.ack_range(first, first + 37)
    timed_log.end_turn()
    check_look_up(timed_log)


def test_open_batch_is_found(harness: Any) -> None:
    harness.create_log()
    harness.append(b"one")
    harness.clock.now_ms += 10
    assert offset_at(harness.store, START) == 0
    assert offset_at(harness.store, START + 10) == 0
    assert offset_at(harness.store, START + 11) == 1


@pytest.mark.parametrize("damage", ["gone", "empty", "zeros", "later", "earlier", "bits"])
def test_damaged_time_index_gives_the_same_result(timed_log: Any, damage: str) -> None:
    timed_log.storage.close(clean=True)
    chance = random.Random(damage)
    for name in timed_log.names(".timeindex"):
        data = timed_log.data(name)
        if damage == "gone":
            timed_log.filesystem.unlink(f"{timed_log.directory}/{name}")
        elif damage == "empty":
            del data[:]
        elif damage == "zeros":
            data[:] = bytes(len(data))
        elif damage == "bits":
            for _ in range(5):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        else:  # each entry has the time of a neighbour
            entries = [bytes(data[at : at + 12]) for at in range(0, len(data), 12)]
            times = [entry[:8] for entry in entries]
            times = [times[0], *times[:-1]] if damage == "earlier" else [*times[1:], times[-1]]
            data[:] = b"".join(time_ms + entry[8:] for time_ms, entry in zip(times, entries, strict=True))
    timed_log.restart()
    check_look_up(timed_log)


@pytest.mark.parametrize("codec", [0, 4])
def test_late_message_of_a_long_turn_is_found_by_its_time(make_harness: Any, codec: int) -> None:
    """A batch has one time. The time of its first record would hide the later records from a reader that starts at a
    time.
    """
    harness = make_harness(segment_size_bytes=20_000)
    harness.create_log()
    harness.store.appender.codec = codec
    harness.append(b"early")
    harness.end_turn()
    harness.clock.now_ms += 1000
    harness.append(b"in time")
    harness.clock.now_ms += 300
    wanted = harness.clock.time_ms()
    harness.clock.now_ms += 5
    harness.append(b"late")
    harness.end_turn()
    assert offset_at(harness.store, wanted) == 1, "its neighbour is found with it, and none is left out"
    harness.clock.now_ms += 1
    assert offset_at(harness.store, harness.clock.time_ms()) == harness.store.next_offset
