"""The sparse indexes: look-up, truncation, implausible entries, and a log whose index has wrong entries."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from amqpd.storage.log.segment import OffsetIndex, TimeIndex


def test_offset_look_up() -> None:
    index = OffsetIndex()
    assert index.floor(100) == (-1, 0)
    for relative, position in [(9, 5000), (19, 10_000), (29, 15_000)]:
        index.add(relative, position)
    assert [index.floor(each)[1] for each in (0, 8, 9, 18, 19, 100)] == [0, 0, 5000, 5000, 10_000, 15_000]
    assert [index.next_position(each) for each in (0, 4999, 5000, 15_000)] == [5000, 5000, 10_000, -1]
    assert bytes(index.data) == struct.pack(">6I", 9, 5000, 19, 10_000, 29, 15_000)
    index.truncate(10_000)
    assert index.floor(100) == (9, 5000)


@pytest.mark.parametrize(
    ("entries", "good"),
    [
        ([(1, 10), (2, 20)], True),
        ([(1, 10), (1, 20)], False),
        ([(2, 10), (1, 20)], False),
        ([(1, 20), (2, 20)], False),
        ([(1, 10), (2, 999)], False),
    ],
)
def test_index_entries_are_plausible_only_in_order_and_in_the_file(entries: list[tuple[int, int]], good: bool) -> None:
    assert OffsetIndex(b"".join(struct.pack(">2I", *entry) for entry in entries)).plausible(100) is good


def test_time_look_up() -> None:
    times = TimeIndex()
    for timestamp, relative in [(1000, 5), (1000, 6), (900, 7), (2000, 8)]:
        times.add(timestamp, relative)
    assert bytes(times.data) == struct.pack(">qIqI", 1000, 5, 2000, 8)
    assert [times.offset_before(each) for each in (0, 1000, 1001, 2000, 2001)] == [0, 0, 5, 5, 8]
    times.truncate(8)
    assert len(times) == 1


def test_index_has_an_entry_per_4096_bytes(make_harness: Callable[..., Any]) -> None:
    """Each entry has the last offset of the batch at its position."""
    harness = make_harness(segment_size_bytes=40_000)
    harness.create_log()
    for _ in range(60):
        harness.clock.now_ms += 10
        harness.append(b"x" * 500, b"y" * 500)
        harness.end_turn()
    name = harness.names(".index")[0]
    entries = list(struct.iter_unpack(">2I", bytes(harness.data(name))))
    log = bytes(harness.log(0))
    assert len(entries) == pytest.approx(len(log) / 5000, abs=3)
    for relative, position in entries:
        base, _, _, _, _, _, delta = struct.unpack_from(">qiibIhi", log, position)
        assert base + delta == relative
    times = list(struct.iter_unpack(">qI", bytes(harness.data(harness.names(".timeindex")[0]))))
    assert times == sorted(times)
    assert times[0][0] % 10 == 0


@pytest.mark.parametrize("clean", [True, False])
def test_flipped_index_bit_loses_no_message(make_harness: Callable[..., Any], clean: bool) -> None:
    """Every fifth bit of an index is flipped in turn; each message is still found by its offset."""
    harness = make_harness(segment_size_bytes=30_000)
    harness.create_log()
    for number in range(60):
        harness.append(*(b"%d" % number * 100 for _ in range(3)))
        harness.end_turn()
    harness.storage.close(clean=clean)
    image = harness.filesystem
    name = harness.names(".index")[0]
    for place in range(0, len(harness.data(name)) * 8, 5):
        harness.data(name)[place // 8] ^= 1 << place % 8
        harness.restart(image.killed())
        for offset in range(0, 90, 7):
            assert harness.store.cursor.read_one(offset).offset == offset
        assert harness.store.lost == []
        harness.filesystem = image
        harness.data(name)[place // 8] ^= 1 << place % 8
