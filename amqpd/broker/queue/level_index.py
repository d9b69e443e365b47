"""Which level each waiting message of a priority queue has, that lies in its log alone: a byte a message.

Compiled by mypyc.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

CHUNK_BITS: Final = 12
CHUNK_SIZE: Final = 1 << CHUNK_BITS


@final
class LevelIndex:
    """Offset -> level, one byte each, for up to 128 levels. Chunks without an entry are dropped."""

    def __init__(self) -> None:
        self.chunks: dict[int, bytearray] = {}
        self._counts: dict[int, int] = {}
        self._last: i64 = -1

    def add(self, offset: i64, level: i64) -> None:
        number: i64 = offset >> CHUNK_BITS
        chunk = self.chunks.get(number)
        if chunk is None:
            chunk = bytearray(CHUNK_SIZE)
            self.chunks[number] = chunk
            self._counts[number] = 0
            if number > self._last:
                self._last = number
        chunk[offset & (CHUNK_SIZE - 1)] = level + 1
        self._counts[number] += 1

    def remove(self, offset: i64) -> None:
        """The offset is in it."""
        number: i64 = offset >> CHUNK_BITS
        left = self._counts[number] - 1
        if left:
            self._counts[number] = left
            self.chunks[number][offset & (CHUNK_SIZE - 1)] = 0
        else:
            del self._counts[number]
            del self.chunks[number]

    def level_at(self, offset: i64) -> i64:
        """-1: the offset is not in it."""
        number: i64 = offset >> CHUNK_BITS
        chunk = self.chunks.get(number)
        if chunk is None:
            return -1
        level: i64 = chunk[offset & (CHUNK_SIZE - 1)]
        return level - 1

    def find(self, level: i64, start: i64) -> i64:
        """The lowest offset from `start` on that is of this level; -1: none. Cost: a search through bytes."""
        number: i64 = start >> CHUNK_BITS
        position: int = start & (CHUNK_SIZE - 1)
        wanted: int = level + 1
        while number <= self._last:
            chunk = self.chunks.get(number)
            if chunk is not None:
                at = chunk.find(wanted, position)
                if at >= 0:
                    return (number << CHUNK_BITS) + at
            number += 1
            position = 0
        return -1

    def offsets(self) -> list[int]:
        """Everything in it, ascending."""
        found: list[int] = []
        for number in sorted(self.chunks):
            chunk = self.chunks[number]
            base = number << CHUNK_BITS
            found += [base + position for position in range(CHUNK_SIZE) if chunk[position]]
        return found

    def clear(self) -> None:
        self.chunks.clear()
        self._counts.clear()
        self._last = -1
