"""Settled sets against Python's sets, and the entries of `.settled` files under damage."""

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
def test_set_against_a_set(base: int, ranges: list[tuple[int, int]], bits: bool) -> None:
    settled = AckSet(base)
    twin: set[int] = set()
    if bits:
        for offset in range(base, base + 1100, 2):  # more ranges than are kept as such
            twin.add(offset)
            assert settled.add(offset, offset) == 1
        assert settled.range_count() == -1
    for start, length in ranges:
        offsets = set(range(base + start, base + start + length + 1))
        assert settled.add(base + start, base + start + length) == len(offsets - twin)
        twin |= offsets
    assert settled.count == len(twin)
    assert settled.highest == max(twin, default=-1)
    for offset in range(base - 1, base + 3100, 7):
        assert settled.contains(offset) == (offset in twin)
    assert {each for first, last in settled.ranges() for each in range(first, last + 1)} == twin
    copy = AckSet(base)
    for start in range(base, base + 3100, 128):
        low, high = settled.words(start)
        copy.add_bits(start, low, high, base + 3099)
    assert copy.count == len(twin)


def test_full_bits_become_a_range_again() -> None:
    settled = AckSet(5)
    for offset in range(5, 5005, 2):
        settled.add(offset, offset)
    assert settled.range_count() == -1
    for offset in range(6, 5005, 2):
        settled.add(offset, offset)
    assert settled.range_count() == 1
    assert settled.ranges() == [(5, 5004)]


def test_ten_million_alternating_settlements_cost_bits() -> None:
    settled = AckSet(0)
    for offset in range(0, 200_000, 2):
        settled.add(offset, offset)
    bits = settled._bits if hasattr(settled, "_bits") else None  # a compiled class shows no private attribute
    if bits is not None:
        assert len(bits) < 200_000 // 8 + 128
    assert settled.count == 100_000


@pytest.mark.parametrize("count", [0, 1, 1_048_575])
@pytest.mark.parametrize("due_ms", [0, 1, 1_700_000_000_000, (1 << 42) - 1])
def test_a_tally_is_both_numbers(count: int, due_ms: int) -> None:
    told = pack_returned(count, due_ms)
    assert (told & COUNT_MAX, told >> DELIVERY_COUNT_BITS) == (count, due_ms)


def test_a_tally_of_too_much_stands_still() -> None:
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


def test_each_flipped_bit_costs_its_entry_only() -> None:
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


def test_a_torn_entry_is_bad() -> None:
    data = b"".join(encode_entry(*entry) for entry in ENTRIES)
    for size in range(len(data)):
        file = AckFileReader(data[:size])
        assert file.entries == ENTRIES[: size // ENTRY_SIZE]
        assert file.bad_count == (1 if size % ENTRY_SIZE else 0)
        assert file.torn == (len(file.entries) * ENTRY_SIZE if size % ENTRY_SIZE else -1)
