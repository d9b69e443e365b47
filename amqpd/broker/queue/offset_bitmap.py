"""A set of offsets, one bit each: what was taken out of a log before its turn.

A range of CHUNK_SIZE offsets is a chunk of 8 KiB, which is there from its first offset on and shrinks to nothing when
all of its offsets are in the set. So a million offsets in a row take some hundred bytes, and scattered ones a bit for
each offset between them.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

CHUNK_BITS: Final = 16
CHUNK_SIZE: Final = 1 << CHUNK_BITS
_FULL: Final = bytearray()  # every offset of the chunk
_ALL: Final = int.from_bytes(b"\xff" * (CHUNK_SIZE >> 3), "little")


@final
class OffsetBitmap:
    """Offsets that are in the set."""

    def __init__(self) -> None:
        self._chunks: dict[int, bytearray] = {}
        self._counts: dict[int, int] = {}
        self._begin: i64 = 0  # no chunk is below this number

    def __bool__(self) -> bool:
        return len(self._chunks) > 0

    def add(self, offset: i64) -> None:
        """Cost: some 50 ns."""
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
        """It is in the set no more; it was."""
        number: i64 = offset >> CHUNK_BITS
        chunk = self._chunks[number]
        if not chunk:
            chunk = bytearray(b"\xff" * (CHUNK_SIZE >> 3))
            self._chunks[number] = chunk
        place: i64 = offset & (CHUNK_SIZE - 1)
        chunk[place >> 3] = chunk[place >> 3] & ~(1 << (place & 7))
        self._counts[number] -= 1

    def add_range(self, first: i64, last: i64) -> None:
        """All of `first`..`last`, ends included. Cost: a step per chunk, and for bytes that have others some."""
        offset = first
        while offset <= last:
            number: i64 = offset >> CHUNK_BITS
            place: i64 = offset & (CHUNK_SIZE - 1)
            if place == 0 and last - offset >= CHUNK_SIZE - 1:
                if number < self._begin:
                    self._begin = number
                self._chunks[number] = _FULL
                self._counts[number] = CHUNK_SIZE
                offset += CHUNK_SIZE
            elif place & 7 == 0 and last - offset >= 7 and self._empty_byte(number, place):
                self.add(offset)  # which makes the chunk
                chunk = self._chunks[number]
                if chunk:
                    chunk[place >> 3] = 255
                    self._count(number, 7)
                offset += 8
            else:
                self.add(offset)
                offset += 1

    def _empty_byte(self, number: i64, place: i64) -> bool:
        chunk = self._chunks.get(number)
        return chunk is None or (len(chunk) > 0 and chunk[place >> 3] == 0)

    def _count(self, number: i64, more: i64) -> None:
        count = self._counts[number] + more
        self._counts[number] = count
        if count == CHUNK_SIZE:
            self._chunks[number] = _FULL

    def remove_range(self, first: i64, last: i64) -> None:
        """None of `first`..`last`, ends included, is in the set any more. Cost: as `add_range`."""
        offset = first
        while offset <= last:
            number: i64 = offset >> CHUNK_BITS
            place: i64 = offset & (CHUNK_SIZE - 1)
            chunk = self._chunks.get(number)
            if chunk is None or (place == 0 and last - offset >= CHUNK_SIZE - 1):
                if chunk is not None:
                    del self._chunks[number]
                    del self._counts[number]
                offset += CHUNK_SIZE - place
                continue
            if not chunk:
                chunk = bytearray(b"\xff" * (CHUNK_SIZE >> 3))
                self._chunks[number] = chunk
            byte: i64 = chunk[place >> 3]
            if place & 7 == 0 and byte == 0:
                offset += 8
                continue
            bit: i64 = 1 << (place & 7)
            if byte & bit != 0:
                chunk[place >> 3] = byte & ~bit
                left = self._counts[number] - 1
                self._counts[number] = left
                if left == 0:
                    del self._chunks[number]
                    del self._counts[number]
            offset += 1

    # -- many at once: some us a chunk, however its offsets lie (shifts by an `int`: by an i64 all would be one) -------

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
        """`base` + n for each bit n that is set in `bits`."""
        number: i64 = base >> CHUNK_BITS
        place: int = base & (CHUNK_SIZE - 1)
        bits <<= place
        while bits:
            self._set_bits(number, self._bits_of(number) | (bits & _ALL))
            bits >>= CHUNK_SIZE
            number += 1

    def remove_bits(self, base: i64, bits: int) -> None:
        """`base` + n for each bit n that is set in `bits` is in the set no more."""
        number: i64 = base >> CHUNK_BITS
        place: int = base & (CHUNK_SIZE - 1)
        bits <<= place
        while bits:
            self._set_bits(number, self._bits_of(number) & ~bits)
            bits >>= CHUNK_SIZE
            number += 1

    def add_from(self, other: OffsetBitmap, first: i64) -> None:
        """What is in `other`, from `first` on."""
        border: i64 = first >> CHUNK_BITS
        for number in other._chunks:
            bits = other._bits_of(number)
            if number == border:
                place: int = first & (CHUNK_SIZE - 1)
                bits = bits >> place << place
            if number >= border:
                self._set_bits(number, self._bits_of(number) | bits)

    def keep_common(self, other: OffsetBitmap, first: i64, last: i64) -> None:
        """Of `first`..`last`, ends included, what is not in `other` too is in the set no more."""
        for number in list(self._chunks):
            start: i64 = number << CHUNK_BITS
            if start > last or start + CHUNK_SIZE <= first:
                continue
            low: i64 = first - start if first > start else 0
            high: i64 = last - start if last < start + CHUNK_SIZE else CHUNK_SIZE - 1
            beside: int = CHUNK_SIZE - 1 - (high - low)
            place: int = low
            span = (_ALL >> beside) << place
            self._set_bits(number, self._bits_of(number) & (other._bits_of(number) | (_ALL ^ span)))

    def has(self, offset: i64) -> bool:
        """Whether the offset is in the set. Cost: some 30 ns."""
        if not self._chunks:
            return False
        chunk = self._chunks.get(offset >> CHUNK_BITS)
        if chunk is None:
            return False
        if not chunk:
            return True
        place: i64 = offset & (CHUNK_SIZE - 1)
        return chunk[place >> 3] & (1 << (place & 7)) != 0

    def drop_below(self, offset: i64) -> None:
        """Nobody asks any more for what is below `offset`: whole chunks of it go. Cost: a step per chunk, once."""
        number: i64 = offset >> CHUNK_BITS
        if not self._chunks or number <= self._begin:
            return
        self._begin = number
        for old in [each for each in self._chunks if each < number]:
            del self._chunks[old]
            del self._counts[old]

    def gaps(self, first: i64, last: i64) -> list[tuple[int, int]]:
        """The ranges of `first`..`last`, ends included, that are not in the set. Cost: a step per chunk without an
        offset in the set, per byte of the others, per offset of bytes that have both.
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
