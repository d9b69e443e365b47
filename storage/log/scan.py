"""Checks all batches of a segment, and finds missing and foreign files.

`Scan` finds three kinds of bad bytes where a batch should be:

- The checksum is right, but the offset does not fit the neighbours (the CRC does not cover it): this batch is
  skipped.
- The bytes are no batch: the scan continues at the next position in `.index` with a good batch whose offset fits.
  Bodies are never searched for batches.
- No good batch follows: the tail is torn, and the log ends after the last good batch.

`find_missing` finds offsets that were synced and are not there, because a file is missing or shorter. A crash leaves
gaps too, so the high watermark decides: everything below it was synced once, so a gap there is a loss. Nothing above
it was confirmed.

`set_aside_foreign` finds `.log` files whose batches have other offsets than the file name says, for instance a copy
from a backup. It renames them to `.foreign`; they are neither read nor deleted. A single wrong base offset does not
make a file foreign, because the checksum does not cover it.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from amqpd.storage.acks.ack_set import AckSet, Entry, add_acked_offsets, totals_entries
from amqpd.storage.filesystem import READ, FileSystem
from amqpd.storage.log.batch import (
    HEADER_SIZE,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    body_size_bytes,
    crc_fits,
    decompressed,
    is_commit_marker,
    missing_offsets,
)
from amqpd.storage.log.producer_state import Producers
from amqpd.storage.log.record import BadRecord
from amqpd.storage.log.segment import OffsetIndex, Segment
from amqpd.storage.log.transactions import Transactions

if TYPE_CHECKING:
    from amqpd.storage.log.log import Log


logger = logging.getLogger(__name__)

SCAN_CHUNK_SIZE: Final[i64] = 1 << 20
# Bytes to read before the loop may do something else.
PIECE_BYTES: Final[i64] = 1 << 20


class Scan:
    """Scan of one segment. `run` also sets size, end, body bytes and indexes of the segment.

    Args:
        next_base: where the next segment starts, -1 for none.
        before: the scan of the previous segment, whose last transaction may continue here.
        producers: gets the producers found here.
        transactions: gets their transactions.

    Attributes:
        lost: offset ranges that are missing, with good batches after them.
        gaps: offsets that never had a message.
        transient: (first, last, size of bodies) of messages that do not count after a restart.
        aborted: the same for parts of incomplete transactions, also in earlier segments.
        hole: (first offset, position, body bytes before it, base of its segment) of the first hole at `floor` or
            above, here or in an earlier segment.
        floor: everything below this offset was synced once.
        now_ms: the time at which batches with CreateTime count as appended, wall clock: their own time may be any.
        numbered_behind: a producer has numbered messages after the hole.
        open_transaction: (first offset, position, body bytes before it, base of its segment) of a transaction without
            a commit marker.
        epoch: the highest leader epoch.
        torn_bytes: size of the torn tail.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        segment: Segment,
        next_base: int,
        high_watermark: int,
        before: Scan | None,
        producers: Producers,
        transactions: Transactions,
    ) -> None:
        self.lost: list[tuple[int, int]] = []
        self.gaps: list[tuple[int, int]] = []
        self.producers = producers
        self.transactions = transactions
        self.hole: tuple[int, int, int, int] | None = None
        self.floor = high_watermark
        self.numbered_behind = False
        self.now_ms = 0
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
        """Read the whole log file and yield after each MiB.

        Cost: 0.3 ms per MiB from the page cache, about 1 ms per decompressed MiB. Raises: OSError.
        """
        segment = self._segment
        segment.size = 0
        segment.reset_index()
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
            if segment.end < self._next_base:  # not the last segment, so the log does not end here
                self._record_lost(segment.end, self._next_base - 1, end)
                segment.end = self._next_base

    def _batches(self) -> Generator[None, None, int]:
        """Check the batches and return the end of the last good one."""
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
                if not self._offsets_fit(header, expected, position):
                    logger.error(
                        "%s.log: the batch at %d has an offset that does not fit its neighbours",
                        segment.prefix,
                        position,
                    )
                    position += header.size
                    continue
                try:
                    chunk, at, whole = decompressed(self._chunk, at, header)
                    holes = missing_offsets(chunk, at, whole)
                    bodies = 0 if header.is_control() else body_size_bytes(chunk, at, whole)
                except BadRecord as error:
                    logger.error("%s.log: the batch at %d is unreadable: %s", segment.prefix, position, error)
            if header is None or bodies < 0:
                found = self._next_good(position, expected)
                if found < 0:
                    break
                logger.error("%s.log: the bytes from %d to %d are damaged", segment.prefix, position, found)
                position = found
                continue
            if header.base_offset > expected:
                missing = (expected, header.base_offset - 1)
                if good_end < position:
                    self._record_lost(missing[0], missing[1], good_end)
                else:
                    self.gaps.append(missing)
            self.gaps += holes
            if good_end < position:  # bad bytes stay in the file; the index leads past them
                segment.size = position
                segment.index_next()
            commits = header.is_control() and is_commit_marker(chunk, at)
            self._record_batch(header, position, bodies, good_end, commits)
            position += header.size
            good_end = position
            expected = header.last_offset + 1
        return good_end

    def _record_lost(self, first: int, last: int, position: int) -> None:
        """Record missing offsets before a good batch. `position` is the end of the last good batch before them."""
        self.lost.append((first, last))
        self.record_gap(first, position)

    def record_gap(self, offset: int, position: int) -> None:
        """Record that offsets from `offset` on are missing after `position`."""
        if self.hole is None and offset >= self.floor:
            self.hole = (offset, position, self._segment.body_bytes, self._segment.base)

    def _record_batch(self, header: BatchHeader, position: int, bodies: int, good_end: int, commits: bool) -> None:
        segment = self._segment
        of_producer = header.is_of_producer_transaction()
        in_transaction = header.attributes & TRANSACTIONAL != 0 and not of_producer
        if self.open_transaction is not None:
            whole = header.base_offset == self._transaction_end
            if not in_transaction or header.producer_id != self.open_transaction[0] or not whole:
                self._intact = False
            if not in_transaction or header.producer_id != self.open_transaction[0]:
                self._end_transaction()  # its marker is missing
        if header.is_control() and not of_producer:
            if self.open_transaction is None:
                self._intact = False
            self._end_transaction()
            self.gaps.append((header.base_offset, header.last_offset))
        elif in_transaction:
            if self.open_transaction is None:  # its producer id is the offset of its first message
                self._intact = header.base_offset == header.producer_id
                start = position if self._intact else good_end  # else its first batches are in the bad bytes
                self.open_transaction = (header.producer_id, start, segment.body_bytes, segment.base)
            self._transaction_parts.append((header.base_offset, header.last_offset, bodies))
            self._transaction_end = header.last_offset + 1
        elif header.producer_id >= 0 and not header.is_transient():
            self.numbered_behind = self.hole is not None or self.numbered_behind
            self._record_producer(header, bodies, of_producer, commits)
        if header.is_transient():
            self.transient.append((header.base_offset, header.last_offset, bodies))
        segment.add_batch(header.last_offset, header.size, header.max_timestamp_ms)
        segment.body_bytes += bodies
        self.epoch = max(self.epoch, header.epoch)

    def _record_producer(self, header: BatchHeader, bodies: int, of_producer: bool, commits: bool) -> None:
        """Record a batch of a producer, as the log did when it was appended (`Appender.append_checked`)."""
        stamped = header.attributes & LOG_APPEND_TIME != 0
        time_ms = header.max_timestamp_ms if stamped else self.now_ms
        if header.is_control():
            self.producers.record_marker(header, time_ms, self._high_watermark)
            self.transactions.on_marker(header, commits)
            return
        self.producers.record_batch(header, time_ms, self._high_watermark)
        if of_producer:
            self.transactions.on_batch(header, bodies, False)

    def _end_transaction(self) -> None:
        """Process the end of a transaction, with or without a marker. Unless it is whole, none of it counts.

        An incomplete transaction below the high watermark was confirmed and damaged later: only the damaged batch is
        lost.
        """
        if self.open_transaction is not None and not self._intact and self.open_transaction[0] >= self._high_watermark:
            self.aborted += self._transaction_parts
        self.open_transaction = None
        self._transaction_parts = []

    def _whole_batch(self, position: i64) -> BatchHeader | None:
        """Return the header at `position` if the whole batch is there with the right checksum. It is then in the
        chunk.
        """
        header = self._header(position)
        if header is None or not header.is_plausible() or position + header.size > self._file_size:
            return None
        at: i64 = self._load(position, header.size)
        if at < 0 or not crc_fits(self._chunk, at, header):
            return None
        return header

    def _offsets_fit(self, header: BatchHeader, expected: i64, position: i64) -> bool:
        if header.base_offset < expected or header.last_offset - self._segment.base >= 0x7FFF_FFFF:
            return False
        if 0 <= self._next_base <= header.last_offset:
            return False
        if header.base_offset == expected:
            return True
        # A gap is legal. But if the next batch starts before this one ends, this one is wrong. The header of the next
        # batch suffices: one of the two batches is damaged in any case.
        chunk, start = self._chunk, self._chunk_start
        behind = self._header(position + header.size)
        wrong = behind is not None and behind.is_plausible() and expected <= behind.base_offset <= header.last_offset
        self._chunk, self._chunk_start = chunk, start
        return not wrong

    def _header(self, position: i64) -> BatchHeader | None:
        at: i64 = self._load(position, HEADER_SIZE)
        return BatchHeader(self._chunk, at) if at >= 0 else None

    def _load(self, position: i64, wanted: i64) -> i64:
        """Return where `position` is in the chunk, after reading if necessary; -1 if the file has fewer than `wanted`
        bytes there.
        """
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
        """Return the position of the next good batch, -1 if there is none and the tail is torn.

        It is after this batch by its length, if that batch continues it; by its length with one bit flipped; or in
        the index.
        """
        bad = self._header(position)
        if bad is not None and bad.size >= HEADER_SIZE:
            behind = self._whole_batch(position + bad.size)
            if (
                behind is not None
                and bad.is_followed_by(behind, expected)
                and self._offsets_fit(behind, expected, position + bad.size)
            ):
                return position + bad.size
        if bad is not None:
            size_field: i64 = bad.size
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
                    if behind is not None and self._offsets_fit(behind, expected, position + size):
                        return position + size
                bad.size = size_field
        while True:
            position = self._index.next_position(position)
            if position < 0 or position >= self._file_size:
                return -1
            header = self._whole_batch(position)
            if header is not None and self._offsets_fit(header, expected, position):
                return position


Entries = dict[int, list[Entry]]


def set_aside_foreign(filesystem: FileSystem, directory: str, names: list[str]) -> list[str]:
    """Rename `.log` files of other logs. Return the remaining names.

    Cost: two small reads per segment. Raises: OSError.
    """
    logs = sorted(name for name in names if name[:20].isdigit() and name[20:] == ".log")
    stay = list(names)
    for number, name in enumerate(logs):
        following = int(logs[number + 1][:20]) if number + 1 < len(logs) else -1
        if _is_foreign(filesystem, f"{directory}/{name}", int(name[:20]), following):
            logger.error("%s/%s has other offsets than its name says and is renamed to .foreign", directory, name)
            filesystem.rename(f"{directory}/{name}", f"{directory}/{name}.foreign")
            stay.remove(name)
    return stay


def _is_foreign(filesystem: FileSystem, path: str, base: int, following: int) -> bool:
    """Return whether the first batch is outside of base..following. If the second one is inside, only the offset of
    the first is damaged.
    """
    first: BatchHeader | None = None
    fd = filesystem.open(path, READ)
    try:
        for _ in range(2):
            data = filesystem.pread(fd, HEADER_SIZE, first.size if first is not None else 0)
            if len(data) < HEADER_SIZE:
                break
            header = BatchHeader(data, 0)
            if not header.is_plausible():
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
    """Return (segment or None, first, last) of offsets that were synced and are not there. Move the end of the log
    after them.

    Called after the segments were checked and the entries were applied.

    Args:
        entries: `.settled` entries by base offset.
        clean: there is a valid clean-shutdown mark.
    """
    found: list[tuple[Segment | None, int, int]] = []
    high_watermark = log.watermark.offset
    segments = log.segments
    for number, segment in enumerate(segments):
        limit = high_watermark
        if number + 1 < len(segments):
            limit = min(limit, segments[number + 1].base)
        entries_of = entries.get(segment.base, [])
        if segment.is_removed:
            end = min(segment.end, limit)
            found += [(segment, first, last) for first, last in unrecorded_ranges(entries_of, segment.base, end)]
        elif number + 1 < len(segments):
            end = min(max([each[0] for each in totals_entries(entries_of)], default=0), limit)
            if segment.end < end:
                holes = unrecorded_ranges(entries_of, segment.end, end)
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
        logger.error("%s: offsets %d to %d were synced and are missing", log.directory, first, last_offset)
        if place is not None:
            place.settled.add(first, last_offset)
            place.lost.append((first, last_offset))
    return found


def has_unrecorded_offsets(entries: list[Entry], segment: Segment) -> bool:
    """Return whether the `.settled` entries of a removed segment leave out some of its offsets."""
    return bool(unrecorded_ranges(entries, segment.base, segment.end))


def unrecorded_ranges(entries: list[Entry], start: int, end: int) -> list[tuple[int, int]]:
    """Return the ranges of start..end - 1 that no `.settled` entry mentions."""
    recorded = AckSet(start)
    add_acked_offsets(entries, recorded, end)
    holes = []
    for low, high in [*recorded.ranges(), (end, end)]:
        if start < low:
            holes.append((start, low - 1))
        start = high + 1
    return holes
