"""OffsetBitmap: the offsets that a filter has skipped."""

from __future__ import annotations

import random

from amqpd.broker.queue.offset_bitmap import CHUNK_SIZE, OffsetBitmap


class TestOffsetBitmap:
    def test_bitmap_matches_a_set(self) -> None:
        rng = random.Random(5)
        bits = OffsetBitmap()
        twin: set[int] = set()
        for _ in range(3000):
            offset = rng.choice([rng.randrange(3 * CHUNK_SIZE), rng.randrange(400)])
            bits.add(offset)
            twin.add(offset)
        for offset in [*twin, *range(500)]:
            assert bits.has(offset) == (offset in twin)
        found = [offset for first, last in bits.gaps(3, 5 * CHUNK_SIZE) for offset in range(first, last + 1)]
        absent = [offset for offset in range(3, 5 * CHUNK_SIZE + 1) if offset not in twin]
        assert found == absent
        for offset in range(3, 500):
            assert bits.first_absent(offset) == next(each for each in absent if each >= offset)
        bits.drop_below(CHUNK_SIZE + 5)
        assert not bits.has(min(twin))
        assert all(bits.has(offset) for offset in twin if offset >= CHUNK_SIZE)

    def test_full_chunk(self) -> None:
        bits = OffsetBitmap()
        for offset in range(CHUNK_SIZE + 3):
            bits.add(offset)
        bits.add(7)
        assert bits.has(0)
        assert bits.has(CHUNK_SIZE - 1)
        assert not bits.has(CHUNK_SIZE + 3)
        assert bits.gaps(0, CHUNK_SIZE + 9) == [(CHUNK_SIZE + 3, CHUNK_SIZE + 9)]
        assert bits.gaps(0, CHUNK_SIZE - 1) == []
        assert bits.first_absent(5) == CHUNK_SIZE + 3
        bits.clear()
        assert not bits
