"""Settled offsets of a segment: `AckSet` in memory, and the entries of its `.settled` file.

A `.settled` file is a sequence of entries of 32 bytes, big endian:

    CRC-32C u32 over the other 28 bytes | kind u8 | three zero bytes | a, b, c i64

    kind 0 header      a: base offset of the segment; b: version (1)
         1 settled     offsets a..b, both inclusive; c: size of their bodies
         2 bits        128 offsets from a: those whose bit is set in b (first 64, lowest bit first) and c are settled
         3 returned    offset a was returned and has now been delivered b times; c: earliest time of the next delivery
                       (ms since 1970), 0 for at once
         4 delivered   no offset above a was ever given to a consumer
         5 totals      the segment ends before offset a; its log has b bytes, with bodies of c bytes
         6 boot        a, b: boot id of the machine while the following entries were written
         7 lost        offsets a..b became unreadable
         8 transient   offsets a..b do not count after a restart; c: size of their bodies
         9 bytes       a: size of the bodies of offsets settled as bits, or as ranges with c = 0; b: the part of it that
                       is transient, which a scan of the segment finds again
        10 times       the first batch was appended at a ms, the latest at b ms; written with each totals

Entries only add facts. So their order matters only for the last `totals`, `delivered` and `returned`, and two files
of one segment may be read together: while a file is rewritten there is also a `.settled.swap`, read after the older
one. A bad entry is skipped. The loss of an entry, or of the file, costs a redelivery, never a message.

`AckFileReader` is the only reader of these bytes. It reports what a header says; the caller decides: recovery ignores
the file of another segment, `dump_log` shows it.

In memory, `AckSet` has ranges while they are few, then one bit per offset. Offsets without a message (commit markers,
gaps, transient messages of an earlier process) are also in the set, so `end - base - count` is the number of
messages.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, final

from google_crc32c import value
from librt.strings import BytesWriter, read_i64_be, write_i64_be
from mypy_extensions import i64

ENTRY_SIZE: Final[i64] = 32
VERSION: Final[i64] = 1
HEADER: Final[i64] = 0
SETTLED: Final[i64] = 1
BITS: Final[i64] = 2
RETURNED: Final[i64] = 3
DELIVERED: Final[i64] = 4
TOTALS: Final[i64] = 5
BOOT: Final[i64] = 6
LOST: Final[i64] = 7
TRANSIENT: Final[i64] = 8
BYTES: Final[i64] = 9
TIMES: Final[i64] = 10
_RANGES_MAX: Final[i64] = 256
# A returned message has one number: the delivery count, and in the bits above the earliest time of its next delivery.
DELIVERY_COUNT_BITS: Final[i64] = 20
COUNT_MAX: Final[i64] = (1 << 20) - 1
_DUE_MS_MAX: Final[i64] = (1 << 42) - 1  # the year 2109
_PADDING: Final = b"\x00\x00\x00"


def write_u32(writer: BytesWriter, number: i64) -> None:
    """Append `number` (0 <= number < 2**32), big endian."""
    bits: int = number
    writer.append((bits >> 24) & 0xFF)
    writer.append((bits >> 16) & 0xFF)
    writer.append((bits >> 8) & 0xFF)
    writer.append(bits & 0xFF)


def write_entry(writer: BytesWriter, scratch: BytesWriter, kind: i64, a: i64, b: i64, c: i64) -> None:
    """Append one entry to `writer`. `scratch` is any writer; its content is lost. Cost: about 0.2 us."""
    scratch.truncate(0)
    kind_byte: int = kind
    scratch.append(kind_byte)
    scratch.write(_PADDING)
    write_i64_be(scratch, a)
    write_i64_be(scratch, b)
    write_i64_be(scratch, c)
    covered = scratch.getvalue()
    crc: i64 = value(covered)
    write_u32(writer, crc)
    writer.write(covered)


def encode_entry(kind: int, a: int, b: int, c: int) -> bytes:
    """Return one entry as bytes."""
    writer = BytesWriter()
    write_entry(writer, BytesWriter(), kind, a, b, c)
    return writer.getvalue()


def pack_returned(count: i64, due_ms: i64) -> i64:
    """Pack the delivery count of a returned message, and in the bits above it its due time, into one number.

    Args:
        count: deliveries; counts above a million are stored as a million.
        due_ms: earliest time of the next delivery since 1970; 0 for at once.
    """
    if count > COUNT_MAX:
        count = COUNT_MAX
    if due_ms < 0 or due_ms > _DUE_MS_MAX:
        due_ms = 0 if due_ms < 0 else _DUE_MS_MAX
    return (due_ms << DELIVERY_COUNT_BITS) | count


@final
class AckSet:
    """The settled offsets of one segment.

    Attributes:
        base: the lowest possible offset.
        count: number of settled offsets.
        highest: the highest settled offset, -1 for none.
    """

    def __init__(self, base: i64) -> None:
        self.base: i64 = base
        self.count: i64 = 0
        self.highest: i64 = -1
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._bits: bytearray | None = None

    def contains(self, offset: i64) -> bool:
        """Return whether `offset` is settled. Cost: about 60 ns."""
        if offset > self.highest or offset < self.base:
            return False
        bits = self._bits
        if bits is not None:
            place: i64 = offset - self.base
            return bits[place >> 3] & (1 << (place & 7)) != 0
        index: i64 = bisect_right(self._firsts, offset) - 1
        return index >= 0 and offset <= self._lasts[index]

    def add(self, first: i64, last: i64) -> i64:
        """Settle `first`..`last`, both inclusive and not below the base. Return how many were not settled before.

        Cost: O(1) at the end of the last range, else a bisection; with bits, one step per 8 offsets.
        """
        if last < first:
            return 0
        before: i64 = self.count
        if self._bits is not None:
            self._add_bits(first, last)
        else:
            firsts = self._firsts
            lasts = self._lasts
            top: i64 = len(lasts) - 1
            if top >= 0 and first == lasts[top] + 1:
                lasts[top] = last
                self.count += last - first + 1
            elif top < 0 or first > lasts[top]:
                firsts.append(first)
                lasts.append(last)
                self.count += last - first + 1
            else:
                self._insert(first, last)
            if len(firsts) > _RANGES_MAX:
                self._to_bits()
        if last > self.highest:
            self.highest = last
            if self._bits is not None and self.count == last - self._lowest() + 1:
                self._to_range()
        elif self._bits is not None and self.count == self.highest - self._lowest() + 1:
            self._to_range()
        return self.count - before

    def remove_all(self, other: AckSet) -> i64:
        """Remove the offsets of `other`, which has the same base. Return how many were removed.

        Cost: a step per range, and a few ns per byte of bits.
        """
        before: i64 = self.count
        mine = self.as_bits()
        left = mine & ~other.as_bits()
        self._firsts = []
        self._lasts = []
        self._bits = None
        self.count = left.bit_count()
        self.highest = self.base + left.bit_length() - 1 if left else -1
        if left:
            self._bits = bytearray(left.to_bytes((left.bit_length() + 7) // 8, "little"))
            if self.count == self.highest - self._lowest() + 1:
                self._to_range()
        return before - self.count

    def as_bits(self) -> int:
        """Return one bit per offset; the lowest bit is the base."""
        bits = self._bits
        if bits is not None:
            return int.from_bytes(bits, "little")
        found = 0
        for index in range(len(self._firsts)):
            first: int = self._firsts[index] - self.base
            last: int = self._lasts[index] - self.base
            found |= ((1 << (last - first + 1)) - 1) << first
        return found

    def ranges(self) -> list[tuple[int, int]]:
        """Return the settled ranges in order, both ends inclusive.

        Cost: with bits, a step per 8 equal bits, else per offset.
        """
        bits = self._bits
        if bits is None:
            return list(zip(self._firsts, self._lasts, strict=True))
        result: list[tuple[int, int]] = []
        first: i64 = -1
        offset: i64 = self.base
        index: i64 = 0
        size: i64 = len(bits)
        while index < size:
            byte: i64 = bits[index]
            index += 1
            if (byte == 0 and first < 0) or (byte == 255 and first >= 0):
                offset += 8
                continue
            place: i64 = 0
            while place < 8:
                if (byte >> place) & 1 != 0:
                    if first < 0:
                        first = offset
                elif first >= 0:
                    result.append((first, offset - 1))
                    first = -1
                place += 1
                offset += 1
        if first >= 0:
            result.append((first, self.highest))
        return result

    def copy(self) -> AckSet:
        """Return a copy for another thread."""
        other = AckSet(self.base)
        other.count = self.count
        other.highest = self.highest
        other._firsts = self._firsts[:]
        other._lasts = self._lasts[:]
        bits = self._bits
        if bits is not None:
            other._bits = bytearray(bits)
        return other

    def first_free(self) -> i64:
        """Return the lowest offset that is not settled."""
        bits = self._bits
        if bits is None:
            if self._firsts and self._firsts[0] == self.base:
                after: i64 = self._lasts[0]
                return after + 1
            return self.base
        index: i64 = 0
        size: i64 = len(bits)
        while index < size and bits[index] == 0xFF:
            index += 1
        offset: i64 = self.base + (index << 3)
        while self.contains(offset):
            offset += 1
        return offset

    def next_free(self, offset: i64) -> i64:
        """Return the lowest offset from `offset` on that is not settled.

        Cost: a bisection; with bits, a step per 8 settled offsets.
        """
        if offset > self.highest or offset < self.base:
            return offset
        bits = self._bits
        if bits is None:
            index: i64 = bisect_right(self._firsts, offset) - 1
            if index >= 0 and self._lasts[index] >= offset:
                after: i64 = self._lasts[index]
                return after + 1
            return offset
        place: i64 = offset - self.base
        while place >> 3 < len(bits) and bits[place >> 3] & (1 << (place & 7)) != 0:
            place += 8 if place & 7 == 0 and bits[place >> 3] == 0xFF else 1
        return self.base + place

    def add_bits(self, start: i64, low: i64, high: i64, last: i64) -> None:
        """Settle the offsets whose bits are set, from `start` up to `last`."""
        place: i64 = 0
        while place < 128:
            word: i64 = low if place < 64 else high
            offset: i64 = start + place
            if (word >> (place & 63)) & 1 != 0 and self.base <= offset <= last:
                self.add(offset, offset)
            place += 1

    def words(self, start: i64) -> tuple[int, int]:
        """Return which of 128 offsets are settled, as two signed words; the lowest bit is `start`."""
        data = bytearray(16)
        place: i64 = 0
        bits = self._bits
        if bits is not None and start >= self.base and (start - self.base) & 7 == 0:
            at: i64 = (start - self.base) >> 3
            part = bits[at : at + 16]
            data[: len(part)] = part
            place = 128
        while place < 128:
            if self.contains(start + place):
                data[place >> 3] |= 1 << (place & 7)
            place += 1
        return int.from_bytes(data[:8], "little", signed=True), int.from_bytes(data[8:], "little", signed=True)

    def range_count(self) -> int:
        """Return the number of ranges, -1 if the set is stored as bits."""
        return len(self._firsts) if self._bits is None else -1

    def _lowest(self) -> i64:
        """Return the lowest settled offset, or a lower bound if the base itself is not settled."""
        bits = self._bits
        if bits is None:
            return self._firsts[0]
        return self.base if len(bits) > 0 and bits[0] & 1 != 0 else self.base - 1

    def _insert(self, first: i64, last: i64) -> None:
        firsts = self._firsts
        lasts = self._lasts
        left: i64 = bisect_right(firsts, first) - 1
        if left < 0 or lasts[left] < first - 1:
            left += 1  # the previous range neither covers nor touches `first`
        right: i64 = left
        size: i64 = len(firsts)
        covered: i64 = 0
        low: i64 = first
        high: i64 = last
        while right < size and firsts[right] <= last + 1:
            some_first: i64 = firsts[right]
            some_last: i64 = lasts[right]
            covered += some_last - some_first + 1
            if some_first < low:
                low = some_first
            if some_last > high:
                high = some_last
            right += 1
        firsts[left:right] = [low]
        lasts[left:right] = [high]
        self.count += high - low + 1 - covered

    def _to_bits(self) -> None:
        firsts = self._firsts
        lasts = self._lasts
        self._bits = bytearray()
        self._firsts = []
        self._lasts = []
        self.count = 0
        for index in range(len(firsts)):
            self._add_bits(firsts[index], lasts[index])

    def _to_range(self) -> None:
        self._bits = None
        self._firsts = [self.base]
        self._lasts = [self.highest]

    def _add_bits(self, first: i64, last: i64) -> None:
        bits = self._bits
        assert bits is not None
        low: i64 = first - self.base
        high: i64 = last - self.base
        missing: i64 = (high >> 3) + 1 - len(bits)
        if missing > 0:
            bits.extend(bytes(missing + 64))
        while low <= high:
            index: i64 = low >> 3
            if low & 7 == 0 and high - low >= 7:
                stop: i64 = (high + 1) >> 3
                old = int.from_bytes(bits[index:stop], "little").bit_count()
                bits[index:stop] = b"\xff" * (stop - index)
                self.count += (stop - index) * 8 - old
                low = stop << 3
                continue
            mask: i64 = 1 << (low & 7)
            byte: i64 = bits[index]
            if byte & mask == 0:
                bits[index] = byte | mask
                self.count += 1
            low += 1


def encode_offsets(offsets: AckSet) -> list[bytes]:
    """Return the entries that settle these offsets: one for each range, or for each 128 offsets of a set of bits."""
    if offsets.range_count() >= 0:
        return [encode_entry(SETTLED, first, last, 0) for first, last in offsets.ranges()]
    parts: list[bytes] = []
    for start in range(offsets.base, offsets.highest + 1, 128):
        low, high = offsets.words(start)
        if low or high:
            parts.append(encode_entry(BITS, start, low, high))
    return parts


Entry = tuple[int, int, int, int]
"""(kind, a, b, c) of an entry."""

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
"""Kind of an entry -> its name."""


@final
class AckFileReader:
    """The entries of one `.settled` file. Cost: 0.3 us per entry.

    Attributes:
        entries: the good ones, in order.
        bad: positions of entries with a wrong checksum or an unknown kind.
        torn: position of an incomplete entry at the end, as a crash leaves it; -1 for none.
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
        """Return the number of unusable entries, including an incomplete one."""
        return len(self.bad) + (1 if self.torn >= 0 else 0)

    def newer_version(self) -> int:
        """Return the version in a header if it is above ours, else 0."""
        for kind, _, b, _ in self.entries:
            if kind == HEADER and b > VERSION:
                return b
        return 0

    def has_other_base(self, base: int) -> bool:
        """Return whether a header belongs to another segment than the one at `base`."""
        for kind, a, _, _ in self.entries:  # noqa: SIM110  # a generator would cost a nested function when compiled
            if kind == HEADER and a != base:
                return True
        return False

    def entries_by_position(self) -> list[tuple[int, Entry | None]]:
        """Return (position, entry) of all entries; the entry is None if it is bad or incomplete."""
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


def add_acked_offsets(entries: list[Entry], known: AckSet, end: int) -> None:
    """Settle in `known` the offsets below `end` that the entries call settled, lost or transient.

    Cost: a step per entry, 128 for one of bits.
    """
    for kind, a, b, c in entries:
        if kind in (SETTLED, LOST, TRANSIENT):
            known.add(max(a, known.base), min(b, end - 1))
        elif kind == BITS:
            known.add_bits(a, b, c, end - 1)


def totals_entries(entries: list[Entry]) -> list[tuple[int, int]]:
    """Return (end offset, size of the log in bytes) of each `totals` entry, latest last."""
    return [(a, b) for kind, a, b, _ in entries if kind == TOTALS]


def recorded_end(entries: list[Entry], log_size: int) -> int:
    """Return the end offset from the latest `totals` entry for a log of `log_size` bytes, 0 if there is none."""
    for end, size in reversed(totals_entries(entries)):
        if size == log_size:
            return end
    return 0
