"""Checks every batch of one segment, and says what there is and what is wrong.

Three things can be wrong with bytes where a batch should be. Their checksum is right but the offset does not fit its
neighbours (the CRC does not cover it): that one batch is passed over. They are no batch: reading goes on at the next
position that `.index` knows and that has a good batch whose offset fits; bodies are never searched. Neither finds
anything good behind: the tail is torn, and ends where the last good batch ends.

What a medium can do to a log besides bad bytes inside a file: files that are missing, cut short, or not of this log.

A crash leaves gaps too, so the high watermark is the judge: below it everything was synced once, and what is not there
any more has been lost. Above it nothing was ever confirmed.

A file of the right name whose batches belong to other offsets is no segment of this log (a copy, somebody's backup). It
is moved out of the way as `.foreign`, never deleted, and never read. One odd batch does not make a file foreign: the
checksum does not cover base offsets, so a single bad one is that batch's damage.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from amqpd.storage.acks.ack_set import AckSet, Entry, settle_told, totals_of
from amqpd.storage.filesystem import READ, FileSystem
from amqpd.storage.log.batch import (
    HEADER_SIZE,
    TRANSACTIONAL,
    BadRecord,
    BatchHeader,
    body_size_bytes,
    crc_fits,
    missing_offsets,
    plain,
)
from amqpd.storage.log.producer_state import Producer, Producers
from amqpd.storage.log.segment import OffsetIndex, Segment

if TYPE_CHECKING:
    from amqpd.storage.log.log import Log


logger = logging.getLogger(__name__)

SCAN_CHUNK_SIZE: Final[i64] = 1 << 20
# What is read before it may be somebody else's turn.
PIECE_BYTES: Final[i64] = 1 << 20


class Scan:
    """What scanning found; `run` sets the segment's size, end, body bytes and indexes besides.

    next_base: where the next segment starts, -1 for none. lost: offset ranges behind which good batches follow.
    producers: gets who has numbered what is there. hole: (first offset, position, body bytes before, base of the
    segment) of the first hole from `floor` on, here or in a segment before; numbered_behind: and behind it there is
    something that a producer has numbered.
    transient: (first, last, bytes of bodies) of messages that do not count after a restart. aborted: likewise, pieces
    of transactions that are not whole, also in segments before this one. gaps: offsets that never were a message.
    high_watermark: of the log. before: the scan of the segment before, whose last transaction may go on here.
    open_transaction: (first offset, position, body bytes before, base of the segment) of a transaction that has no
    commit marker.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        segment: Segment,
        next_base: int,
        high_watermark: int,
        before: Scan | None,
        producers: Producers,
    ) -> None:
        self.lost: list[tuple[int, int]] = []
        self.gaps: list[tuple[int, int]] = []
        self.producers = producers
        self.hole: tuple[int, int, int, int] | None = None
        self.floor = high_watermark
        self.numbered_behind = False
        self.transient: list[tuple[int, int, int]] = []
        self.aborted: list[tuple[int, int, int]] = []
        self.epoch = -1
        self.torn_bytes = 0
        self.open_transaction: tuple[int, int, int, int] | None = None
        self._intact = False
        self._transaction_end = -1
        self._transaction_parts: list[tuple[int, int, int]] = []
        if before is not None and before.open_transaction is not None:
            self.open_transaction = before.open_transaction
            self._intact = before._intact
            self._transaction_end = before._transaction_end
            self._transaction_parts = before._transaction_parts
        self._high_watermark = high_watermark
        self._filesystem = filesystem
        self._segment = segment
        self._next_base: i64 = next_base
        self._file_size: i64 = segment.size
        self._index: OffsetIndex = segment.stored_index()
        self._fd = -1
        self._chunk = b""
        self._chunk_start: i64 = 0

    def run(self) -> Generator[None, None, None]:
        """Reads the whole log file, a MiB at a time. Cost: 0.3 ms a MiB from the page cache, some 1 ms a MiB unpacked
        where it is compressed. Raises: OSError.
        """
        segment = self._segment
        segment.size = 0
        segment.begin_index()
        self._fd = self._filesystem.open(segment.prefix + ".log", READ)
        try:
            end = yield from self._batches()
        finally:
            self._filesystem.close(self._fd)
            self._chunk = b""
        if self.open_transaction is not None and segment.end < self._next_base:
            self._intact = False
            self._end_transaction()
        if end < self._file_size:
            self.torn_bytes = self._file_size - end
            segment.size = end
            if segment.end < self._next_base:  # not the last segment: what is missing here does not end the log
                self._lose(segment.end, self._next_base - 1, end)
                segment.end = self._next_base

    def _batches(self) -> Generator[None, None, int]:
        """Goes over the batches; returns where the last good one ends."""
        segment = self._segment
        position: i64 = 0
        expected: i64 = segment.base
        good_end: i64 = 0
        rest_at: i64 = PIECE_BYTES
        while position < self._file_size:
            if position >= rest_at:
                rest_at = position + PIECE_BYTES
                yield
            header = self._whole_batch(position)
            at: i64 = position - self._chunk_start
            bodies: i64 = -1
            holes: list[tuple[int, int]] = []
            if header is not None:
                if not self._fits(header, expected, position):
                    logger.error("%s.log: the batch at %d has an offset that cannot be", segment.prefix, position)
                    position += header.size
                    continue
                try:
                    chunk, at, whole = plain(self._chunk, at, header)
                    holes = missing_offsets(chunk, at, whole)
                    bodies = 0 if header.control() else body_size_bytes(chunk, at, whole)
                except BadRecord as error:
                    logger.error("%s.log at %d: %s", segment.prefix, position, error)
            if header is None or bodies < 0:
                found = self._next_good(position, expected)
                if found < 0:
                    break
                logger.error("%s.log: bad bytes at %d to %d", segment.prefix, position, found)
                position = found
                continue
            if header.base_offset > expected:
                missing = (expected, header.base_offset - 1)
                if good_end < position:
                    self._lose(missing[0], missing[1], good_end)
                else:
                    self.gaps.append(missing)
            self.gaps += holes
            if good_end < position:  # bad bytes in between stay where they are; readers need to get past them
                segment.size = position
                segment.index_next()
            self._note(header, position, bodies, good_end)
            position += header.size
            good_end = position
            expected = header.last_offset + 1
        return good_end

    def _lose(self, first: int, last: int, position: int) -> None:
        """These offsets are not there, and good batches follow. position: where the last good one before them ends."""
        self.lost.append((first, last))
        self.note_hole(first, position)

    def note_hole(self, offset: int, position: int) -> None:
        """From this offset on something is missing behind `position`."""
        if self.hole is None and offset >= self.floor:
            self.hole = (offset, position, self._segment.body_bytes, self._segment.base)

    def _note(self, header: BatchHeader, position: int, bodies: int, good_end: int) -> None:
        segment = self._segment
        in_transaction = header.attributes & TRANSACTIONAL != 0
        if self.open_transaction is not None:
            whole = header.base_offset == self._transaction_end
            if not in_transaction or header.producer_id != self.open_transaction[0] or not whole:
                self._intact = False
            if not in_transaction or header.producer_id != self.open_transaction[0]:
                self._end_transaction()  # its marker is missing
        if header.control():
            if self.open_transaction is None:
                self._intact = False
            self._end_transaction()
            self.gaps.append((header.base_offset, header.last_offset))
        elif in_transaction:
            if self.open_transaction is None:  # its number is the offset of its first message
                self._intact = header.base_offset == header.producer_id
                start = position if self._intact else good_end  # its first batches are among the bad bytes
                self.open_transaction = (header.producer_id, start, segment.body_bytes, segment.base)
            self._transaction_parts.append((header.base_offset, header.last_offset, bodies))
            self._transaction_end = header.last_offset + 1
        elif header.producer_id >= 0 and not header.transient():
            self.numbered_behind = self.hole is not None or self.numbered_behind
            last: int = header.base_sequence + header.last_offset - header.base_offset
            self.producers.note(
                Producer(header.producer_id, header.producer_epoch, last, header.last_offset, header.max_timestamp_ms),
                self._high_watermark,
            )
        if header.transient():
            self.transient.append((header.base_offset, header.last_offset, bodies))
        segment.note(header.last_offset, header.size, header.max_timestamp_ms)
        segment.body_bytes += bodies
        self.epoch = max(self.epoch, header.epoch)

    def _end_transaction(self) -> None:
        """One has ended, with a marker or without: unless it is whole, or was synced as such once, none of it counts.

        (What was confirmed and has been damaged since loses the damaged batch alone, as anything else.)
        """
        if self.open_transaction is not None and not self._intact and self.open_transaction[0] >= self._high_watermark:
            self.aborted += self._transaction_parts
        self.open_transaction = None
        self._transaction_parts = []

    def _whole_batch(self, position: i64) -> BatchHeader | None:
        """The header of the batch at `position`, which is whole and in the chunk, and has the right checksum."""
        header = self._header(position)
        if header is None or not header.plausible() or position + header.size > self._file_size:
            return None
        at: i64 = self._load(position, header.size)
        if at < 0 or not crc_fits(self._chunk, at, header):
            return None
        return header

    def _fits(self, header: BatchHeader, expected: i64, position: i64) -> bool:
        if header.base_offset < expected or header.last_offset - self._segment.base >= 0x7FFF_FFFF:
            return False
        if 0 <= self._next_base <= header.last_offset:
            return False
        if header.base_offset == expected:
            return True
        # A gap is legal, but if the batch behind this one starts before this one ends, it is this one that is wrong.
        # (Only the header is looked at: a file that holds both is damaged in one of them in any case.)
        chunk, start = self._chunk, self._chunk_start
        behind = self._header(position + header.size)
        wrong = behind is not None and behind.plausible() and expected <= behind.base_offset <= header.last_offset
        self._chunk, self._chunk_start = chunk, start
        return not wrong

    def _header(self, position: i64) -> BatchHeader | None:
        at: i64 = self._load(position, HEADER_SIZE)
        return BatchHeader(self._chunk, at) if at >= 0 else None

    def _load(self, position: i64, wanted: i64) -> i64:
        """Where `position` is in the chunk once `wanted` bytes from it are there; -1 if the file has not so many."""
        at: i64 = position - self._chunk_start
        if at >= 0 and at + wanted <= len(self._chunk):
            return at
        if position + wanted > self._file_size:
            return -1
        size: i64 = SCAN_CHUNK_SIZE
        if wanted > size:
            size = wanted
        self._chunk = self._filesystem.pread(self._fd, size, position)
        self._chunk_start = position
        return 0 if len(self._chunk) >= wanted else -1

    def _next_good(self, position: i64, expected: i64) -> int:
        """Where the next good batch is: behind this one as its header says, if that one goes on, or else at a position
        that the index knows. -1: there is none, the tail is torn.
        """
        bad = self._header(position)
        if bad is not None and bad.size >= HEADER_SIZE:
            behind = self._whole_batch(position + bad.size)
            if (
                behind is not None
                and bad.leads_to(behind, expected)
                and self._fits(behind, expected, position + bad.size)
            ):
                return position + bad.size
        if bad is not None:
            told: i64 = bad.size
            bit: i64 = 0
            while bit < 32:
                size: i64 = bad.size_less_bit(bit)
                bit += 1
                if size < HEADER_SIZE or position + size >= self._file_size:
                    continue
                at: i64 = self._load(position, size)
                bad.size = size
                if at >= 0 and crc_fits(self._chunk, at, bad):
                    behind = self._whole_batch(position + size)
                    if behind is not None and self._fits(behind, expected, position + size):
                        return position + size
                bad.size = told
        while True:
            position = self._index.next_position(position)
            if position < 0 or position >= self._file_size:
                return -1
            header = self._whole_batch(position)
            if header is not None and self._fits(header, expected, position):
                return position


Entries = dict[int, list[Entry]]


def set_aside_foreign(filesystem: FileSystem, directory: str, names: list[str]) -> list[str]:
    """Renames `.log` files that are not of this log; the names that stay. Raises: OSError.

    Cost: two small reads a segment.
    """
    logs = sorted(name for name in names if name[:20].isdigit() and name[20:] == ".log")
    stay = list(names)
    for number, name in enumerate(logs):
        following = int(logs[number + 1][:20]) if number + 1 < len(logs) else -1
        if _foreign(filesystem, f"{directory}/{name}", int(name[:20]), following):
            logger.error("%s/%s holds other offsets than its name says: it is set aside", directory, name)
            filesystem.rename(f"{directory}/{name}", f"{directory}/{name}.foreign")
            stay.remove(name)
    return stay


def _foreign(filesystem: FileSystem, path: str, base: int, following: int) -> bool:
    """Whether the first batch lies outside of base..following, and no second one says that it is only a bad number."""
    first: BatchHeader | None = None
    fd = filesystem.open(path, READ)
    try:
        for _ in range(2):
            data = filesystem.pread(fd, HEADER_SIZE, first.size if first is not None else 0)
            if len(data) < HEADER_SIZE:
                break
            header = BatchHeader(data, 0)
            if not header.plausible():
                return False
            outside = header.base_offset < base or 0 <= following <= header.base_offset
            if first is None and not outside:
                return False
            if first is not None and not outside and header.base_offset != first.last_offset + 1:
                return False
            first = header
    finally:
        filesystem.close(fd)
    return first is not None


def find_missing(log: Log, entries: Entries, clean: bool) -> list[tuple[Segment | None, int, int]]:
    """(segment or None, first, last) of what was synced once and is not there. The log's end moves behind it.

    After segments were checked and `.settled` entries applied. entries: of `.settled`, by base offset.
    """
    found: list[tuple[Segment | None, int, int]] = []
    high_watermark = log.watermark.offset
    segments = log.segments
    for number, segment in enumerate(segments):
        limit = high_watermark
        if number + 1 < len(segments):
            limit = min(limit, segments[number + 1].base)
        entries_of = entries.get(segment.base, [])
        if segment.gone:
            end = min(segment.end, limit)
            found += [(segment, first, last) for first, last in untold_ranges(entries_of, segment.base, end)]
        elif number + 1 < len(segments):
            end = min(max([each[0] for each in totals_of(entries_of)], default=0), limit)
            if segment.end < end:
                holes = untold_ranges(entries_of, segment.end, end)
                segment.settled.add(segment.end, end - 1)
                segment.end = end
                found += [(segment, first, last) for first, last in holes]
    if not clean and log.end < high_watermark:
        last = segments[-1] if segments else None
        found.append((last, log.end, high_watermark - 1))
        log.end = high_watermark
        if last is not None:
            last.end = high_watermark
    for place, first, last_offset in found:
        logger.error("%s: offsets %d to %d were synced and are not there", log.directory, first, last_offset)
        if place is not None:
            place.settled.add(first, last_offset)
            place.lost.append((first, last_offset))
    return found


def untold(entries: list[Entry], segment: Segment) -> bool:
    """Whether the `.settled` entries of a segment that is gone leave out some of its offsets."""
    return bool(untold_ranges(entries, segment.base, segment.end))


def untold_ranges(entries: list[Entry], start: int, end: int) -> list[tuple[int, int]]:
    """The ranges of start..end, `end` not included, of which `.settled` entries tell nothing."""
    told = AckSet(start)
    settle_told(entries, told, end)
    holes = []
    for low, high in [*told.ranges(), (end, end)]:
        if start < low:
            holes.append((start, low - 1))
        start = high + 1
    return holes
