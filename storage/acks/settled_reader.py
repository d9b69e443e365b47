"""Reads `.settled` files: the one place that takes their bytes apart, and judges them.

An entry is good when its checksum is right and its kind is known; a bad one is passed over, and costs what it told.
What a header says is told and not acted upon: recovery does not believe a file of another segment, `dump_log` shows it.
A segment may have two files while one is written anew (`.settled.swap`): what is true of it is what both tell, the
entries of the older one first.
"""

from __future__ import annotations

from typing import Final, final

from google_crc32c import value
from librt.strings import read_i64_be
from mypy_extensions import i64

from amqpd.storage.acks.ack_set import BITS, ENTRY_SIZE, HEADER, LOST, SETTLED, TIMES, TOTALS, TRANSIENT, VERSION, SettledSet

Entry = tuple[int, int, int, int]
"""(kind, a, b, c): see ack_set.py."""

KIND_NAMES: Final = (
    "header",
    "settled",
    "bits",
    "returned",
    "delivered",
    "totals",
    "boot",
    "lost",
    "transient",
    "bytes",
    "times",
)
"""What people call the kinds, by number."""


@final
class SettledFile:
    """The entries of one file, from its bytes. Cost: 0.3 us an entry.

    entries: the good ones, in order. bad: positions in bytes of those whose checksum is wrong or whose kind nobody
    knows. torn: the position of an incomplete one at the end, -1 for none: a crash leaves that.
    """

    def __init__(self, data: bytes) -> None:
        self.entries: list[Entry] = []
        self.bad: list[int] = []
        self.torn: int = -1
        position: i64 = 0
        size: i64 = len(data)
        while position + ENTRY_SIZE <= size:
            crc: i64 = value(data[position + 4 : position + ENTRY_SIZE])
            if crc == (read_i64_be(data, position) >> 32) & 0xFFFF_FFFF and data[position + 4] <= TIMES:
                self.entries.append(
                    (
                        data[position + 4],
                        read_i64_be(data, position + 8),
                        read_i64_be(data, position + 16),
                        read_i64_be(data, position + 24),
                    )
                )
            else:
                self.bad.append(position)
            position += ENTRY_SIZE
        if position < size:
            self.torn = position

    @property
    def bad_count(self) -> int:
        """Entries that tell nothing any more, an incomplete one included."""
        return len(self.bad) + (1 if self.torn >= 0 else 0)

    def newer(self) -> int:
        """The version in a header when it is above ours, else 0."""
        for kind, _, b, _ in self.entries:
            if kind == HEADER and b > VERSION:
                return b
        return 0

    def foreign(self, base: int) -> bool:
        """Whether a header says that this is the file of another segment than the one at `base`."""
        for kind, a, _, _ in self.entries:  # noqa: SIM110  # a generator would cost a nested function when compiled
            if kind == HEADER and a != base:
                return True
        return False

    def slots(self) -> list[tuple[int, Entry | None]]:
        """(position, entry or None where it is bad) of each, an incomplete one included: for who shows the file."""
        found: list[tuple[int, Entry | None]] = []
        bad = set(self.bad)
        position = 0
        for entry in self.entries:
            while position in bad:
                found.append((position, None))
                position += ENTRY_SIZE
            found.append((position, entry))
            position += ENTRY_SIZE
        found += [(each, None) for each in self.bad if each >= position]
        if self.torn >= 0:
            found.append((self.torn, None))
        return found


def settle_told(entries: list[Entry], known: SettledSet, end: int) -> None:
    """Settles in `known` what the entries tell of offsets from its base up to `end`, not included: as settled, lost or
    transient messages of an earlier life. Cost: a step per entry, 128 for one of bits.
    """
    for kind, a, b, c in entries:
        if kind in (SETTLED, LOST, TRANSIENT):
            known.add(max(a, known.base), min(b, end - 1))
        elif kind == BITS:
            known.add_bits(a, b, c, end - 1)


def totals_of(entries: list[Entry]) -> list[tuple[int, int]]:
    """(offset behind the segment's last, size of its log in bytes) of each time totals were noted, latest last."""
    return [(a, b) for kind, a, b, _ in entries if kind == TOTALS]


def told_end(entries: list[Entry], log_size: int) -> int:
    """Where the segment ends, as the latest totals for a log of `log_size` bytes say; 0 where none do."""
    for end, size in reversed(totals_of(entries)):
        if size == log_size:
            return end
    return 0
