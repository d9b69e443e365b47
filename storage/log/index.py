"""The two sparse indexes of a segment, in Kafka's formats. Neither is ever synced: both can be rebuilt from the log.

`.index`: entries of 8 bytes, relative offset u32 (of the last record of a batch, less the segment's base offset) and
position u32 (where that batch starts). One entry each time 4096 bytes of log have gone by; a segment's first batch has
none.

`.timeindex`: entries of 12 bytes, timestamp i64 (largest in the segment so far) and relative offset u32 (of the last
record of the batch that had it). Added with an index entry, when the time is later than that of the entry before.

The active segment's entries are kept in memory and appended to their files at the end of the turn (`.index`) or when
the segment is sealed (`.timeindex`); those of a sealed segment are read when a look-up needs them.
"""

from __future__ import annotations

import struct

INTERVAL_BYTES = 4096
_OFFSET_ENTRY = struct.Struct(">II")
_TIME_ENTRY = struct.Struct(">qI")
OFFSET_ENTRY_SIZE = _OFFSET_ENTRY.size
TIME_ENTRY_SIZE = _TIME_ENTRY.size


class OffsetIndex:
    """Offset -> position. `flushed`: how many of its bytes are in the file."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data[: len(data) // OFFSET_ENTRY_SIZE * OFFSET_ENTRY_SIZE])
        self.flushed = len(self.data)

    def __len__(self) -> int:
        return len(self.data) // OFFSET_ENTRY_SIZE

    def add(self, relative_offset: int, position: int) -> None:
        """A batch that ends with `relative_offset` starts at `position`. Both must be above those before."""
        self.data += _OFFSET_ENTRY.pack(relative_offset, position)

    def entry(self, number: int) -> tuple[int, int]:
        """(relative offset, position) of the entry; 0 <= number < len."""
        relative_offset, position = _OFFSET_ENTRY.unpack_from(self.data, number * OFFSET_ENTRY_SIZE)
        return relative_offset, position

    def floor(self, relative_offset: int) -> tuple[int, int]:
        """The last entry that is not above `relative_offset`, (-1, 0) if there is none. Cost: a bisection.

        The batch with the offset is the one at that position or one behind it.
        """
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[0] <= relative_offset:
                low = middle + 1
            else:
                high = middle
        return self.entry(low - 1) if low else (-1, 0)

    def next_position(self, position: int) -> int:
        """The first indexed position behind `position`, -1 if there is none."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[1] <= position:
                low = middle + 1
            else:
                high = middle
        return self.entry(low)[1] if low < len(self) else -1

    def cut(self, size: int) -> None:
        """Forgets the entries at and behind position `size`."""
        number = len(self)
        while number and self.entry(number - 1)[1] >= size:
            number -= 1
        del self.data[number * OFFSET_ENTRY_SIZE :]
        self.flushed = min(self.flushed, len(self.data))

    def plausible(self, log_size: int) -> bool:
        """Whether its entries rise and stay inside the log. Cost: one step per entry."""
        before = (-1, -1)
        for entry in _OFFSET_ENTRY.iter_unpack(bytes(self.data)):
            if entry[0] <= before[0] or entry[1] <= before[1]:
                return False
            before = (entry[0], entry[1])
        return before[1] < log_size


class TimeIndex:
    """Time -> offset."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data[: len(data) // TIME_ENTRY_SIZE * TIME_ENTRY_SIZE])

    def __len__(self) -> int:
        return len(self.data) // TIME_ENTRY_SIZE

    def add(self, timestamp_ms: int, relative_offset: int) -> None:
        """Adds an entry if `timestamp_ms` is later than the last one's, so that times and offsets only rise."""
        if not self.data or timestamp_ms > self.entry(len(self) - 1)[0]:
            self.data += _TIME_ENTRY.pack(timestamp_ms, relative_offset)

    def entry(self, number: int) -> tuple[int, int]:
        """(timestamp in ms, relative offset) of the entry; 0 <= number < len."""
        timestamp_ms, relative_offset = _TIME_ENTRY.unpack_from(self.data, number * TIME_ENTRY_SIZE)
        return timestamp_ms, relative_offset

    def offset_before(self, timestamp_ms: int) -> int:
        """Relative offset from which on to look for the first record of `timestamp_ms` or later. Cost: a bisection."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[0] < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return self.entry(low - 1)[1] if low else 0

    def cut(self, relative_offset: int) -> None:
        """Forgets the entries at and behind `relative_offset`."""
        number = len(self)
        while number and self.entry(number - 1)[1] >= relative_offset:
            number -= 1
        del self.data[number * TIME_ENTRY_SIZE :]
