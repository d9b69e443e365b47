"""Snapshot of a queue's log, and its division into parts for tasks.

A `Snapshot` reads the high watermark first and lists the files then, so all its offsets were complete and synced.
An offset between `start` and `end` is in one of four states:

- in a segment that exists
- settled, in a segment that was removed; its `.settled` file still exists, or the log start checkpoint of a queue that
  is no stream is above the offset
- superseded, in a compacted log: a segment in which each record has a later one of the same key disappears. Missing
  offsets below the first dirty offset count as superseded
- lost

`.index` and `.timeindex` are hints: they are never synced and may be wrong. A part names the batch that it expects
at its position. A reader that does not find it reads from the start of the segment (arrow.py). So planning with
indexes gives the same records as a full scan, only sooner.

Compaction (compaction.py) names a new segment `.log.swap` while it replaces old ones. With this name it replaces
all segments in its range, even if their files still exist.

Settled offsets are determined here, once, and travel with the part as bits: a task that Spark runs twice returns
the same rows. Transient messages count during the run of the broker that received them, and not after a restart.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from amqpd.protocol.field_table import CodecError, decode_table
from amqpd.storage.acks import ack_set
from amqpd.storage.acks.ack_set import AckFileReader, recorded_end, totals_entries
from amqpd.storage.compaction import CLEANER_OFFSET, decode_clean_offsets
from amqpd.storage.export.files import DESCRIPTION, LogFiles, QueueName
from amqpd.storage.log import checkpoint
from amqpd.storage.log.batch import HEADER_SIZE, BatchHeader
from amqpd.storage.log.segment import OffsetIndex, TimeIndex, segment_name
from amqpd.storage.queue_json import read_description

logger = logging.getLogger(__name__)

SPLIT_BYTES = 32 << 20
_LISTS_MAX = 4
_SUFFIXES = (".log", ".settled", ".log.swap")


class DataLoss(Exception):
    """Records are missing: removed, cut off or damaged. `failOnDataLoss=false` continues without them."""


@dataclass(frozen=True)
class LogPartition:
    """A piece of one segment for one task: records with first <= offset < stop that are not settled.

    Attributes:
        base: Base offset of the segment.
        end: End of the segment, as planned.
        log_size: Size of the segment's log, as planned.
        position: Position of the first batch.
        anchor: Last offset of that batch; -1 for the first batch of the segment.
        size_bytes: Approximate number of bytes to read.
        bits: Settled offsets from `bits_base` on.
        swap: As in `SegmentView`.
        whole: Settled messages are read, too.
    """

    queue: QueueName
    base: int
    end: int
    log_size: int
    first: int
    stop: int
    position: int
    anchor: int
    size_bytes: int
    bits: bytes = field(repr=False, default=b"")
    bits_base: int = 0
    transient_start: int = 0
    swap: bool = False
    whole: bool = False


@dataclass
class SegmentView:
    """A segment: base <= offset < end.

    Attributes:
        size: Bytes of its log; -1 if it does not exist.
        swap: Its log is named `.log.swap`. Indexes of its name belong to another log.
        instead: Base offsets of the segments that it replaces.
        entries: Content of the `.settled` files, once read.
        bits: Settled offsets, once computed.
    """

    base: int
    end: int
    size: int
    swap: bool = False
    instead: list[int] = field(default_factory=list)
    entries: bytes | None = None
    bits: bytes | None = None


class Snapshot:
    """One queue's log at one moment.

    Cost: two small reads and a listing; `.settled` files and indexes are read when needed.
    Raises: SourceError, OSError; FileNotFoundError if a segment is removed meanwhile.

    Attributes:
        mark: The high watermark before the listing.
        sizes: The listing: the size of every file by name. A list is not made at one moment: if segments are removed
            and begun meanwhile, the newest may be missing in it. Then `end` is below `mark`.
    """

    def __init__(self, files: LogFiles, queue: QueueName) -> None:
        self.queue = queue
        self.files = files
        mark = self.mark = self._high_watermark()
        sizes = self.sizes = self.files.sizes()
        bases = _bases(sizes)
        if any(name.endswith(".log.deleted") for name in sizes) and any(_log_size(sizes, base) < 0 for base in bases):
            sizes = self.files.sizes()  # a file that was renamed during the listing may be missing in it
            bases = _bases(sizes)
        self.transient_start = self._epoch_start()
        cleanings = decode_clean_offsets(self.files.read(CLEANER_OFFSET))
        self.clean_end = cleanings[-1][0] if cleanings else 0
        self.segments: list[SegmentView] = []
        swapped = self._swap_segments(sizes)
        instead = {base: swap for swap in swapped for base in swap.instead}
        for number, base in enumerate(bases):
            end = bases[number + 1] if number + 1 < len(bases) else max(mark, base)
            size = sizes.get(segment_name(base) + ".log", -1)
            view = instead.get(base, SegmentView(base, min(end, max(mark, base)), size))
            if not self.segments or view is not self.segments[-1]:
                self.segments.append(view)
        if self.segments and self.segments[-1].size >= 0:
            last = self.segments[-1]
            last.end = min(last.end, self._complete_end(last))
        self.end = self.segments[-1].end if self.segments else mark
        self.start = next((each.base for each in self.segments if each.size >= 0), self.end)

    def _swap_segments(self, sizes: dict[str, int]) -> list[SegmentView]:
        """Return the `.log.swap` segments with the bases of the segments that they replace, their own included.

        A `.log.swap` file that its `.settled` file does not know is not from a compaction and is ignored.
        """
        found: list[SegmentView] = []
        for name, size in sizes.items():
            if name[20:] != ".log.swap" or not name[:20].isdigit():
                continue
            base = int(name[:20])
            prefix = segment_name(base)
            new = self.files.read(f"{prefix}.settled.swap")  # first: see _entries
            end = recorded_end(AckFileReader(self.files.read(f"{prefix}.settled") + new).entries, size)
            if not end:
                logger.warning("%s of queue %s is not from a compaction and is ignored", name, self.queue.queue)
                continue
            covered = [each for each in _bases(sizes) if base <= each < end]
            found.append(SegmentView(base, end, size, True, covered))
        return found

    def _high_watermark(self) -> int:
        for _ in range(3):  # it is written in place, so a read may see half of a write
            data = self.files.read(checkpoint.HIGH_WATERMARK)
            mark = checkpoint.decode_high_watermark(data)
            if mark or not any(data):
                return mark
        logger.warning("the high watermark of queue %s is damaged: no message counts as synced", self.queue.queue)
        return 0

    def _epoch_start(self) -> int:
        """Return the first offset of the broker's present (or last) run."""
        try:
            lines = self.files.read(checkpoint.LEADER_EPOCH).decode("ascii").split("\n")[2:]
            starts = [int(words[1]) for line in lines if len(words := line.split()) == 2]
        except ValueError:
            return 0
        return starts[-1] if starts else 0

    def _settled_start(self) -> int:
        """Return the offset below which all messages are settled and the broker has removed their segments.

        0 for a stream, which removes messages unread, and if the queue's type or the offset is unknown.
        """
        described = read_description(self.files.read(DESCRIPTION), self.queue.id)
        try:
            arguments, _ = decode_table(described.arguments, 0) if described is not None else ({}, 0)
            lines = self.files.read(checkpoint.LOG_START).decode("ascii").split("\n")
            start = int(lines[2])
        except (CodecError, ValueError, IndexError):  # an earlier version has written no arguments
            return 0
        return 0 if described is None or arguments.get("x-queue-type") == "stream" else start

    # -- inside segments

    def _index(self, segment: SegmentView) -> OffsetIndex:
        if segment.swap:
            return OffsetIndex()
        index = OffsetIndex(self.files.read(segment_name(segment.base) + ".index"))
        index.truncate(segment.size)  # the active segment may have grown since it was listed
        if index.plausible(segment.size):
            return index
        name = segment_name(segment.base)
        logger.warning("%s.index of queue %s is wrong and is ignored", name, self.queue.queue)
        return OffsetIndex()

    def headers(self, segment: SegmentView, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of the whole batches from `position` on, up to the first one that does not fit."""
        name = segment_name(segment.base) + (".log.swap" if segment.swap else ".log")
        chunk, start = b"", 0
        expected = segment.base
        while position + HEADER_SIZE <= segment.size:
            at = position - start
            if at < 0 or at + HEADER_SIZE > len(chunk):
                chunk, start, at = self.files.pread(name, self.files.header_size, position), position, 0
                if len(chunk) < HEADER_SIZE:
                    return
            header = BatchHeader(chunk, at)
            if not header.is_plausible() or header.base_offset < expected or position + header.size > segment.size:
                return
            yield position, header
            position += header.size
            expected = header.last_offset + 1

    def _entry(self, segment: SegmentView, index: OffsetIndex, relative: int) -> tuple[int, int]:
        """Return (last offset, position) of the batch to begin with for an offset; (-1, 0) for the segment's first."""
        number, position = index.floor(relative)
        return (segment.base + number, position) if number >= 0 else (-1, 0)

    def _complete_end(self, segment: SegmentView) -> int:
        """Return the end of the last segment's whole batches. A copy of a growing segment has a partial batch at
        its end.
        """
        index = self._index(segment)
        anchor, position = index.entry(len(index) - 1) if len(index) else (-1, 0)
        for begin in (position, 0) if position else (0,):
            end = segment.base
            for place, header in self.headers(segment, begin):
                if place == begin and begin and header.last_offset != segment.base + anchor:
                    break
                end = header.last_offset + 1
            if end > segment.base:
                return end
        return segment.base

    def settled_bits(self, segment: SegmentView) -> bytes:
        """Return a bit for each offset of the segment, set if it is settled. Cost: 0.3 us an entry compiled."""
        if segment.bits is None:
            segment.bits = bits_of(self._entries(segment), segment.base, segment.end)
        return segment.bits

    def _entries(self, segment: SegmentView) -> bytes:
        """Return the content of the segment's `.settled` files; they are read once."""
        if segment.entries is None:
            segment.entries = b""
            for base in [*segment.instead[1:], segment.base]:
                name = segment_name(base) + ".settled"
                # The new file first: if it replaces the old one between the two reads, the second read gets
                # everything.
                new = self.files.read(name + ".swap")
                segment.entries += self.files.read(name) + new
        return segment.entries

    # -- queries

    def offset_at(self, timestamp_ms: int) -> int | None:
        """Return the first offset of the first batch of that time or later; None if there is none before `end`.

        Cost: one look-up in `.timeindex` per segment, then the headers behind it.
        """
        for segment in self.segments:
            if segment.size < 0 or segment.end <= segment.base:
                continue
            name = segment_name(segment.base) + ".timeindex"
            times = TimeIndex(b"" if segment.swap else self.files.read(name))
            position = 0
            if len(times):
                if segment is not self.segments[-1] and times.entry(len(times) - 1)[0] < timestamp_ms:
                    continue
                relative = times.offset_before(timestamp_ms)
                anchor, position = self._entry(segment, self._index(segment), relative)
                if position and not self._has_anchor(segment, anchor, position):
                    position = 0
            for _, header in self.headers(segment, position):
                if header.base_offset >= segment.end:
                    break
                if header.max_timestamp_ms >= timestamp_ms and not header.is_control():
                    return int(header.base_offset)
        return None

    def _has_anchor(self, segment: SegmentView, anchor: int, position: int) -> bool:
        first = next(iter(self.headers(segment, position)), None)
        return first is not None and first[1].last_offset == anchor

    def losses(self, first: int, stop: int, *, include_settled: bool) -> list[tuple[int, int, str]]:
        """Return the missing ranges in first <= offset < stop, as (first, last, reason)."""
        found: list[tuple[int, int, str]] = []
        if stop > self.end:
            low = max(first, self.end)
            found.append((low, max(low, stop - 1), "the log ends before them"))
        known = self.segments[0].base if self.segments else self.end
        missing = max(first, self.clean_end)
        if missing < min(known, stop) and not include_settled:
            missing = max(missing, self._settled_start())
        if missing < min(known, stop):
            found.append((missing, min(known, stop) - 1, "their segments have been removed"))
        for segment in self.segments:
            low, high = max(first, segment.base), min(stop, segment.end) - 1
            if high < low:
                continue
            if segment.size < 0:
                if include_settled:
                    found.append((low, high, "they were settled and their segment has been removed"))
                elif (
                    not _all_set(self.settled_bits(segment), low - segment.base, high - segment.base)
                    and high >= self._settled_start()  # else the `.settled` file, too, was removed since it was listed
                ):
                    found.append((low, high, "their segment's log is missing"))
            elif segment is not self.segments[-1] and (cut := self._cut(segment)) is not None and cut <= high:
                found.append((max(low, cut), high, "their segment's log was cut off"))
        return found

    def _cut(self, segment: SegmentView) -> int | None:
        """Return the first missing offset of a sealed segment whose file is shorter than its noted size; else None."""
        noted = totals_entries(AckFileReader(self._entries(segment)).entries)
        return self._complete_end(segment) if noted and noted[-1][1] > segment.size else None

    def log_bytes(self, first: int) -> int:
        """Return the bytes of log from the batch with this offset to the end, settled messages included.

        Cost: a look-up in one index, and the headers behind it. A wrong index makes the number wrong.
        """
        total = 0
        for segment in self.segments:
            if segment.size <= 0 or segment.end <= first:
                continue
            total += segment.size
            if segment.base < first:
                _, position = self._entry(segment, self._index(segment), first - segment.base)
                with suppress(FileNotFoundError):  # it was removed meanwhile
                    found = self.headers(segment, position)
                    total -= next((at for at, header in found if header.last_offset >= first), 0)
        return total

    def parts(
        self, first: int, stop: int, *, split_bytes: int = SPLIT_BYTES, include_settled: bool = False
    ) -> list[LogPartition]:
        """Return the parts for first <= offset < stop. Segments and ranges that are completely settled make no
        part.

        Args:
            split_bytes: Approximate size of a part, which has at least one batch.
        """
        found: list[LogPartition] = []
        for segment in self.segments:
            low, high = max(first, segment.base), min(stop, segment.end)
            if segment.size <= 0 or high <= low:
                continue
            bits = b"" if include_settled else self.settled_bits(segment)
            if bits and _all_set(bits, low - segment.base, high - 1 - segment.base):
                continue
            index = self._index(segment) if low > segment.base or segment.size > split_bytes else OffsetIndex()
            found += self._split(segment, index, low, high, bits, split_bytes)
        return [replace(part, whole=True) for part in found] if include_settled else found

    def _split(
        self, segment: SegmentView, index: OffsetIndex, low: int, high: int, bits: bytes, split_bytes: int
    ) -> Iterator[LogPartition]:
        # The number of entries that are not above `low`.
        number = bisect_right(range(len(index)), low - segment.base, key=lambda place: index.entry(place)[0])
        anchor, position = -1, 0
        if number:
            relative, position = index.entry(number - 1)
            anchor = segment.base + relative
        begin, next_position = low, segment.size
        while number < len(index):
            relative, next_position = index.entry(number)
            border = segment.base + relative + 1
            if border >= high:
                break
            if next_position - position >= split_bytes:
                yield from self._part(segment, begin, border, position, anchor, next_position - position, bits)
                begin, position, anchor = border, next_position, segment.base + relative
            number += 1
            next_position = segment.size
        yield from self._part(segment, begin, high, position, anchor, next_position - position, bits)

    def _part(
        self, segment: SegmentView, first: int, stop: int, position: int, anchor: int, size_bytes: int, bits: bytes
    ) -> Iterator[LogPartition]:
        low = (first - segment.base) // 8
        piece = bits[low : (stop - segment.base + 7) // 8].rstrip(b"\0")
        if piece and _all_set(bits, first - segment.base, stop - 1 - segment.base):
            return
        yield LogPartition(
            self.queue,
            segment.base,
            segment.end,
            segment.size,
            first,
            stop,
            position,
            anchor,
            size_bytes,
            piece,
            segment.base + low * 8,
            self.transient_start,
            segment.swap,
        )


def snapshot_of(files: LogFiles, queue: QueueName) -> Snapshot:
    """Return a snapshot of a log that a broker may use: it is made again if segments are removed meanwhile.

    Raises: SourceError, OSError.
    """
    for _ in range(_LISTS_MAX):
        with suppress(FileNotFoundError):
            found = Snapshot(files, queue)
            if found.end >= found.mark:
                return found
    return Snapshot(files, queue)  # the end of a copy may be missing


def _bases(sizes: dict[str, int]) -> list[int]:
    """Return the base offsets of all segments of which the listing has a file."""
    return sorted({int(name[:20]) for name in sizes if name[:20].isdigit() and name[20:] in _SUFFIXES})


def _log_size(sizes: dict[str, int], base: int) -> int:
    name = segment_name(base)
    return sizes.get(f"{name}.log", sizes.get(f"{name}.log.swap", -1))


def bits_of(entries: bytes, base: int, end: int) -> bytes:
    """Return the settled bits of a segment from the content of its `.settled` file; empty if nothing is settled."""
    bits = bytearray((end - base + 7) // 8 + 16)
    touched = False
    for kind, a, b, c in AckFileReader(entries).entries:
        if kind in (ack_set.SETTLED, ack_set.LOST):
            low, high = max(a, base) - base, min(b, end - 1) - base
            if high >= low:
                _set(bits, low, (1 << high - low + 1) - 1)
                touched = True
        elif kind == ack_set.BITS and base <= a < end:
            _set(bits, a - base, (b & (1 << 64) - 1) | (c & (1 << 64) - 1) << 64)
            touched = True
    if not touched:
        return b""
    count = end - base
    del bits[(count + 7) // 8 :]
    if count & 7:
        bits[-1] &= (1 << (count & 7)) - 1
    return bytes(bits)


def _set(bits: bytearray, low: int, word: int) -> None:
    """Set the bits of `word`, whose lowest bit has the number `low`."""
    first, stop = low >> 3, (low + word.bit_length() + 7) >> 3
    merged = int.from_bytes(bits[first:stop], "little") | word << (low & 7)
    bits[first:stop] = merged.to_bytes(stop - first, "little")


def _all_set(bits: bytes, low: int, high: int) -> bool:
    """Return whether all bits low..high are set, both included."""
    wanted = (1 << high - low + 1) - 1
    return int.from_bytes(bits[low >> 3 : (high >> 3) + 1], "little") >> (low & 7) & wanted == wanted


def split_size(sizes: Sequence[int], split_bytes: int, parts_min: int) -> int:
    """Return the split size that gives at least `parts_min` parts, as far as indexes allow it."""
    total = sum(sizes)
    return min(split_bytes, max(1, total // parts_min)) if parts_min > 1 and total else split_bytes
