"""Set of offsets with one bit each, used for messages that were taken out of a log before their turn.

A chunk of 8 KiB covers CHUNK_SIZE offsets. It is created for the first offset in its range, and becomes one shared
constant when all its offsets are in the set. A million consecutive offsets need about a hundred bytes.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

CHUNK_BITS: Final = 16
CHUNK_SIZE: Final = 1 << CHUNK_BITS
_FULL: Final = bytearray()  # every offset of the chunk
_ALL: Final = int.from_bytes(b"\xff" * (CHUNK_SIZE >> 3), "little")


def _span(number: i64, first: i64, last: i64) -> int:
    """Return the bits of `first` to `last`, ends included, in a chunk that has some of them."""
    start: i64 = number << CHUNK_BITS
    low: int = first - start if first > start else 0
    high: int = last - start if last < start + CHUNK_SIZE else CHUNK_SIZE - 1
    return (_ALL >> (CHUNK_SIZE - 1 - (high - low))) << low


@final
class OffsetBitmap:
    """A set of offsets."""

    def __init__(self) -> None:
        self._chunks: dict[int, bytearray] = {}
        self._counts: dict[int, int] = {}
        self._begin: i64 = 0  # no chunk is below this number

    def __bool__(self) -> bool:
        return len(self._chunks) > 0

    def add(self, offset: i64) -> None:
        """Add an offset. Cost: about 50 ns."""
        number: i64 = offset >> CHUNK_BITS
        chunk = self._chunks.get(number)
        if chunk is None:
            chunk = bytearray(CHUNK_SIZE >> 3)
            self._chunks[number] = chunk
            self._counts[number] = 0
            if number < self._begin:
                self._begin = number
        elif not chunk:
            return
        place: i64 = offset & (CHUNK_SIZE - 1)
        byte: i64 = chunk[place >> 3]
        bit: i64 = 1 << (place & 7)
        if byte & bit != 0:
            return
        chunk[place >> 3] = byte | bit
        count = self._counts[number] + 1
        self._counts[number] = count
        if count == CHUNK_SIZE:
            self._chunks[number] = _FULL

    def remove(self, offset: i64) -> None:
        """Remove an offset, which must be in the set."""
        number: i64 = offset >> CHUNK_BITS
        left = self._counts[number] - 1
        if left == 0:
            del self._chunks[number]
            del self._counts[number]
            return
        self._counts[number] = left
        chunk = self._chunks[number]
        if not chunk:
            chunk = bytearray(b"\xff" * (CHUNK_SIZE >> 3))
            self._chunks[number] = chunk
        place: i64 = offset & (CHUNK_SIZE - 1)
        chunk[place >> 3] = chunk[place >> 3] & ~(1 << (place & 7))

    # -- many at once: a few us per chunk, for any pattern of offsets. Shift counts are `int`: by an i64 mypyc would
    # convert `bits` to i64, too.

    def _bits_of(self, number: i64) -> int:
        chunk = self._chunks.get(number)
        if chunk is None:
            return 0
        return int.from_bytes(chunk, "little") if chunk else _ALL

    def _set_bits(self, number: i64, bits: int) -> None:
        if bits == 0:
            if number in self._chunks:
                del self._chunks[number]
                del self._counts[number]
            return
        if number < self._begin:
            self._begin = number
        self._counts[number] = bits.bit_count()
        self._chunks[number] = _FULL if bits == _ALL else bytearray(bits.to_bytes(CHUNK_SIZE >> 3, "little"))

    def add_bits(self, base: i64, bits: int) -> None:
        """Add `base` + n for each bit n that is set in `bits`."""
        number: i64 = base >> CHUNK_BITS
        place: int = base & (CHUNK_SIZE - 1)
        bits <<= place
        while bits:
            self._set_bits(number, self._bits_of(number) | (bits & _ALL))
            bits >>= CHUNK_SIZE
            number += 1

    def remove_bits(self, base: i64, bits: int) -> None:
        """Remove `base` + n for each bit n that is set in `bits`."""
        number: i64 = base >> CHUNK_BITS
        place: int = base & (CHUNK_SIZE - 1)
        bits <<= place
        while bits:
            self._set_bits(number, self._bits_of(number) & ~bits)
            bits >>= CHUNK_SIZE
            number += 1

    def add_range(self, first: i64, last: i64) -> None:
        """Add `first` to `last`, ends included."""
        number: i64 = first >> CHUNK_BITS
        while number <= last >> CHUNK_BITS:
            self._set_bits(number, self._bits_of(number) | _span(number, first, last))
            number += 1

    def remove_range(self, first: i64, last: i64) -> None:
        """Remove `first` to `last`, ends included."""
        number: i64 = first >> CHUNK_BITS
        while number <= last >> CHUNK_BITS:
            if number in self._chunks:
                self._set_bits(number, self._bits_of(number) & ~_span(number, first, last))
            number += 1

    def add_from(self, other: OffsetBitmap, first: i64) -> None:
        """Add all offsets of `other` that are not below `first`."""
        border: i64 = first >> CHUNK_BITS
        for number in other._chunks:
            bits = other._bits_of(number)
            if number == border:
                place: int = first & (CHUNK_SIZE - 1)
                bits = bits >> place << place
            if number >= border:
                self._set_bits(number, self._bits_of(number) | bits)

    def keep_common(self, other: OffsetBitmap, first: i64, last: i64) -> None:
        """Remove the offsets of `first` to `last`, ends included, that are not in `other`."""
        for number in list(self._chunks):
            start: i64 = number << CHUNK_BITS
            if start > last or start + CHUNK_SIZE <= first:
                continue
            span = _span(number, first, last)
            self._set_bits(number, self._bits_of(number) & (other._bits_of(number) | (_ALL ^ span)))

    def has(self, offset: i64) -> bool:
        """Return whether the offset is in the set. Cost: about 30 ns."""
        if not self._chunks:
            return False
        chunk = self._chunks.get(offset >> CHUNK_BITS)
        if chunk is None:
            return False
        if not chunk:
            return True
        place: i64 = offset & (CHUNK_SIZE - 1)
        return chunk[place >> 3] & (1 << (place & 7)) != 0

    def first_absent(self, offset: i64) -> i64:
        """Return the lowest offset, from `offset` on, that is not in the set. Cost: up to 8 us per chunk."""
        while True:
            number: i64 = offset >> CHUNK_BITS
            chunk = self._chunks.get(number)
            if chunk is None:
                return offset
            if chunk:
                place: int = offset & (CHUNK_SIZE - 1)
                absent = ~int.from_bytes(chunk, "little") >> place
                place += (absent & -absent).bit_length() - 1
                if place < CHUNK_SIZE:
                    return (number << CHUNK_BITS) + place
            offset = (number + 1) << CHUNK_BITS

    def drop_below(self, offset: i64) -> None:
        """Free memory of offsets below `offset`, whole chunks only. The caller does not ask for them again.

        Cost: A step per chunk, once.
        """
        number: i64 = offset >> CHUNK_BITS
        if not self._chunks or number <= self._begin:
            return
        self._begin = number
        for old in [each for each in self._chunks if each < number]:
            del self._chunks[old]
            del self._counts[old]

    def gaps(self, first: i64, last: i64) -> list[tuple[int, int]]:
        """Return the ranges of `first` to `last`, ends included, that are not in the set.

        Cost: A step per empty or full chunk, per empty or full byte of other chunks, per offset of other bytes.
        """
        found: list[tuple[int, int]] = []
        begin: i64 = -1
        offset = first
        while offset <= last:
            place: i64 = offset & (CHUNK_SIZE - 1)
            chunk = self._chunks.get(offset >> CHUNK_BITS)
            step: i64 = CHUNK_SIZE - place
            free = True
            if chunk is not None:
                if not chunk:
                    free = False
                elif place & 7 == 0 and chunk[place >> 3] == 0:
                    step = 8
                elif place & 7 == 0 and chunk[place >> 3] == 255:
                    step = 8
                    free = False
                else:
                    step = 1
                    free = chunk[place >> 3] & (1 << (place & 7)) == 0
            if free:
                if begin < 0:
                    begin = offset
            elif begin >= 0:
                found.append((begin, offset - 1))
                begin = -1
            offset += step
        if begin >= 0:
            found.append((begin, last))
        return found

    def clear(self) -> None:
        self._chunks.clear()
        self._counts.clear()
        self._begin = 0
