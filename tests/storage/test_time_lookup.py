"""The offset of a time, against a plain search, with and without a good `.timeindex`."""

from __future__ import annotations

import random
from typing import Any

import pytest
from time_search import offset_at

START = 1_700_000_000_000


@pytest.fixture
def timed(make_house: Any) -> Any:
    """160 turns, one or more messages each, the time between them uneven; several segments."""
    house = make_house(segment_size_bytes=20_000)
    house.begin()
    chance = random.Random(5)
    house.times = []
    for _ in range(160):
        bodies = [b"x" * chance.choice([1, 100, 700]) for _ in range(chance.randint(1, 4))]
        house.append(*bodies)
        house.times += [house.clock.now_ms] * len(bodies)
        house.turn()
        house.clock.now_ms += chance.choice([0, 1, 10, 1000])
    return house


def plain(house: Any, timestamp_ms: int) -> int:
    live = set(house.offsets())
    found = (offset for offset, time_ms in enumerate(house.times) if time_ms >= timestamp_ms and offset in live)
    return next(found, house.store.next_offset)


def agree(house: Any) -> None:
    for timestamp_ms in [0, START - 1, *sorted({*house.times})[::11], house.times[-1], house.times[-1] + 1]:
        for each in (timestamp_ms, timestamp_ms + 1):
            assert offset_at(house.store, each) == plain(house, each), each


def test_every_time(timed: Any) -> None:
    assert len(timed.names(".log")) > 3
    agree(timed)


@pytest.mark.parametrize("clean", [True, False])
def test_after_a_restart(timed: Any, clean: bool) -> None:
    if clean:
        timed.storage.close(clean=True)
    timed.again()
    agree(timed)


def test_what_is_settled_is_no_answer(timed: Any) -> None:
    for first in range(0, 350, 50):
        timed.store.ack_range(first, first + 37)
    timed.turn()
    agree(timed)


def test_the_batch_that_is_open_counts(house: Any) -> None:
    house.begin()
    house.append(b"one")
    house.clock.now_ms += 10
    assert offset_at(house.store, START) == 0
    assert offset_at(house.store, START + 10) == 0
    assert offset_at(house.store, START + 11) == 1


@pytest.mark.parametrize("damage", ["gone", "empty", "zeros", "later", "earlier", "bits"])
def test_a_bad_time_index_gives_the_same_answer(timed: Any, damage: str) -> None:
    timed.storage.close(clean=True)
    chance = random.Random(damage)
    for name in timed.names(".timeindex"):
        data = timed.data(name)
        if damage == "gone":
            timed.filesystem.unlink(f"{timed.directory}/{name}")
        elif damage == "empty":
            del data[:]
        elif damage == "zeros":
            data[:] = bytes(len(data))
        elif damage == "bits":
            for _ in range(5):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        else:  # each entry names the time of a neighbour
            entries = [bytes(data[at : at + 12]) for at in range(0, len(data), 12)]
            times = [entry[:8] for entry in entries]
            times = [times[0], *times[:-1]] if damage == "earlier" else [*times[1:], times[-1]]
            data[:] = b"".join(time_ms + entry[8:] for time_ms, entry in zip(times, entries, strict=True))
    timed.again()
    agree(timed)


@pytest.mark.parametrize("codec", [0, 4])
def test_what_came_late_in_a_long_turn_is_not_older_than_it_is(make_house: Any, codec: int) -> None:
    """A batch has one time: that of its first record would hide the others from who reads on from a time."""
    house = make_house(segment_size_bytes=20_000)
    house.begin()
    house.store.appender.codec = codec
    house.append(b"early")
    house.turn()
    house.clock.now_ms += 1000
    house.append(b"in time")
    house.clock.now_ms += 300
    wanted = house.clock.time_ms()
    house.clock.now_ms += 5
    house.append(b"late")
    house.turn()
    assert offset_at(house.store, wanted) == 1, "the one beside it comes with it, and none is left out"
    house.clock.now_ms += 1
    assert offset_at(house.store, house.clock.time_ms()) == house.store.next_offset
