"""Ack sets compared with Python's sets, and damaged entries of `.settled` files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpd.storage.acks.ack_set import (
    BITS,
    BOOT,
    COUNT_MAX,
    DELIVERY_COUNT_BITS,
    ENTRY_SIZE,
    RETURNED,
    SETTLED,
    AckFileReader,
    AckSet,
    encode_entry,
    pack_returned,
)

RANGES = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 40)), max_size=80)


@given(st.integers(0, 1 << 40), RANGES, st.booleans())
def test_ack_set_equals_a_python_set(base: int, ranges: list[tuple[int, int]], bits: bool) -> None:
    ack_set = AckSet(base)
    twin: set[int] = set()
    if bits:
        for offset in range(base, base + 1100, 2):  # more ranges than are kept as ranges
            twin.add(offset)
            assert ack_set.add(offset, offset) == 1
        assert ack_set.range_count() == -1
    for start, length in ranges:
        offsets = set(range(base + start, base + start + length + 1))
        assert ack_set.add(base + start, base + start + length) == len(offsets - twin)
        twin |= offsets
    assert ack_set.count == len(twin)
    assert ack_set.highest == max(twin, default=-1)
    for offset in range(base - 1, base + 3100, 7):
        assert ack_set.contains(offset) == (offset in twin)
    assert {each for first, last in ack_set.ranges() for each in range(first, last + 1)} == twin
    copy = AckSet(base)
    for start in range(base, base + 3100, 128):
        low, high = ack_set.words(start)
        copy.add_bits(start, low, high, base + 3099)
    assert copy.count == len(twin)


def test_full_bits_become_one_range() -> None:
    ack_set = AckSet(5)
    for offset in range(5, 5005, 2):
        ack_set.add(offset, offset)
    assert ack_set.range_count() == -1
    for offset in range(6, 5005, 2):
        ack_set.add(offset, offset)
    assert ack_set.range_count() == 1
    assert ack_set.ranges() == [(5, 5004)]


def test_alternating_acks_take_one_bit_per_offset() -> None:
    ack_set = AckSet(0)
    for offset in range(0, 200_000, 2):
        ack_set.add(offset, offset)
    bits = ack_set._bits if hasattr(ack_set, "_bits") else None  # a compiled class shows no private attribute
    if bits is not None:
        assert len(bits) < 200_000 // 8 + 128
    assert ack_set.count == 100_000


@pytest.mark.parametrize("count", [0, 1, 1_048_575])
@pytest.mark.parametrize("due_ms", [0, 1, 1_700_000_000_000, (1 << 42) - 1])
def test_returned_value_packs_count_and_due_time(count: int, due_ms: int) -> None:
    packed = pack_returned(count, due_ms)
    assert (packed & COUNT_MAX, packed >> DELIVERY_COUNT_BITS) == (count, due_ms)


def test_returned_value_is_limited() -> None:
    assert pack_returned(1 << 40, 5) == pack_returned(COUNT_MAX, 5)
    assert pack_returned(1, 1 << 50) >> DELIVERY_COUNT_BITS == (1 << 42) - 1
    assert pack_returned(3, -1) == 3


ENTRIES = [(SETTLED, 3, 9, 700), (RETURNED, 4, 2, 0), (BITS, 128, -1, 5), (BOOT, -(1 << 62), 1 << 62, 0)]


def test_entries_round_trip() -> None:
    data = b"".join(encode_entry(*entry) for entry in ENTRIES)
    assert len(data) == 4 * ENTRY_SIZE
    file = AckFileReader(data)
    assert file.entries == ENTRIES
    assert (file.bad_count, file.torn) == (0, -1)
    assert file.entries_by_position() == [(number * ENTRY_SIZE, entry) for number, entry in enumerate(ENTRIES)]


def test_flipped_bit_loses_only_its_entry() -> None:
    data = b"".join(encode_entry(*entry) for entry in ENTRIES)
    for place in range(len(data) * 8):
        broken = bytearray(data)
        broken[place // 8] ^= 1 << (place % 8)
        number = place // 8 // ENTRY_SIZE
        file = AckFileReader(bytes(broken))
        assert file.entries == ENTRIES[:number] + ENTRIES[number + 1 :]
        assert (file.bad_count, file.bad) == (1, [number * ENTRY_SIZE])
        slots = [(each * ENTRY_SIZE, None if each == number else entry) for each, entry in enumerate(ENTRIES)]
        assert file.entries_by_position() == slots


def test_torn_entry_is_bad() -> None:
    data = b"".join(encode_entry(*entry) for entry in ENTRIES)
    for size in range(len(data)):
        file = AckFileReader(data[:size])
        assert file.entries == ENTRIES[: size // ENTRY_SIZE]
        assert file.bad_count == (1 if size % ENTRY_SIZE else 0)
        assert file.torn == (len(file.entries) * ENTRY_SIZE if size % ENTRY_SIZE else -1)


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 40)), max_size=60), st.integers(0, 500))
def test_next_free_is_the_first_offset_that_is_not_settled(ranges: list[tuple[int, int]], offset: int) -> None:
    acked = AckSet(100)
    for first, count in ranges:
        acked.add(100 + first, 100 + first + count)
    expected = 100 + offset
    while acked.contains(expected):
        expected += 1
    assert acked.next_free(100 + offset) == expected
