"""Finds batches of a log by offset, or one after the other, and checks them.

A batch is returned only if its checksum is right and its offsets fit its neighbours. After a bad batch, reading
continues at the next position in `.index` that has a good batch. The offsets between are lost: `lost` reports them
once. Bodies are never searched for a batch, because a publisher could have put bytes there that look like one.

Bytes are read in chunks of 256 KiB, and the last chunk is kept until `release`, so that sequential reads need no
look-up. With `copies_batches` each batch is a `bytes` object of its own, which a reader can keep without the chunk.
A large batch is then read alone: first its header, then the bytes under the checksum, without a copy.

A caller that must not wait for the disk calls `is_cached` before `cursor`. If the batch is not in the page cache, the
read-ahead thread (worker.py) fetches it, and then ranges of 4 MiB, each while the previous one is being read.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from google_crc32c import value as crc_of
from librt.strings import read_i64_be
from mypy_extensions import i64

from amqpd.storage.filesystem import OpenFile
from amqpd.storage.log.batch import (
    CRC_START,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    TRANSACTIONAL,
    TRANSIENT,
    BatchCursor,
    BatchHeader,
    crc_fits,
    decompressed,
    verified_bytes,
)
from amqpd.storage.log.log import Log, base_of
from amqpd.storage.log.record import BadRecord, RecordDecoder
from amqpd.storage.log.segment import Segment
from amqpd.storage.worker import RANGE_SIZE, ReadAhead, ReadAheadRange

logger = logging.getLogger(__name__)

CHUNK_SIZE: Final[i64] = 256 * 1024
# A batch of this size or more costs less if it is read alone than copied out of a chunk.
APART_SIZE_MIN: Final[i64] = 16 * 1024
# Settled offsets in a row that are skipped with a look-up instead of batch by batch.
SKIP_COUNT_MIN: Final[i64] = 1024
# Distance of the pages that `FileSystem.resident` checks.
_LOOK_SIZE: Final[i64] = 64 * 1024


class LogReader:
    """Reader of one log, at one position.

    Args:
        ahead: the read-ahead thread; None: reads wait for the disk.

    Attributes:
        reads_acked_segments: read segments without live messages, too.
        copies_batches: each batch is an object of its own.
        lost: unreadable ranges that the caller has not processed yet. It clears the list.
        lost_live: number of live offsets in `lost`; the caller subtracts them from `record_count`.
    """

    def __init__(self, log: Log, ahead: ReadAhead | None = None) -> None:
        self._log = log
        self._ahead = ahead
        self._requested: ReadAheadRange | None = None  # the range that the read-ahead thread is reading
        self._fetched: OpenFile | None = None  # file of the previous range, and where that range ends
        self._fetched_end: i64 = 0
        self._waiting: Callable[[], None] | None = None  # called when the range has been read
        self.reads_acked_segments: bool = False
        self.copies_batches: bool = False
        self._cut_out = b""
        self._chunk_size: i64 = CHUNK_SIZE  # size of the next chunk; that of a header if batches are read alone
        self.lost: list[tuple[int, int]] = []
        self.lost_live = 0
        self._segment: Segment | None = None
        self._decoder = RecordDecoder()
        self._chunk = b""
        self._chunk_start: i64 = 0
        # The batch that `find` returned last.
        self._found_chunk = b""
        self._found_at: i64 = 0
        # The batch with this offset, or the first one after it, starts at that position.
        self._next_offset: i64 = -1
        self._next_position: i64 = 0
        self._expected: i64 = 0  # lowest base offset that the next batch may have

    def release(self) -> None:
        """Drop the chunk and the pending read-ahead."""
        self._chunk = b""
        self._found_chunk = b""
        self._segment = None
        self._next_offset = -1
        self._fetched = None
        self._cancel_request()

    def is_cached(self, offset: i64, arrived: Callable[[], None]) -> bool:
        """Return whether `cursor(offset)` finds its batch without the disk. If not, the batch is being fetched.

        Args:
            arrived: called on the loop when the batch has been fetched.

        Cost: 20 ns from the chunk; about 3 us per chunk to look into the page cache. Raises: OSError.
        """
        ahead = self._ahead
        if ahead is None:
            return True
        segment = self._segment
        if segment is None or offset != self._next_offset or segment.is_removed or offset >= segment.end:
            segment = self._seek(offset)
            if segment is None:
                return True
            self._next_offset = offset
        if self._next_position >= segment.size:
            segment = self._next_segment(segment)
            if segment is None:
                return True
            self._enter_segment(segment, segment.base)
        position: i64 = self._next_position
        at: i64 = position - self._chunk_start
        size: i64 = _batch_size(self._chunk, at)
        if size >= 0 and at + size <= len(self._chunk):
            return True
        end: i64 = position + CHUNK_SIZE
        if size > CHUNK_SIZE:
            end = position + size
        if end > segment.size:
            end = segment.size
        file = segment.open_log()
        asked = self._requested
        if file is self._fetched and end <= self._fetched_end:
            if asked is None and self._fetched_end - position <= RANGE_SIZE:
                self._request_next_range(ahead, segment)
            return True
        if asked is not None:
            if asked.file is file and asked.position <= position and end <= asked.end:
                self._waiting = arrived
                return False
            self._cancel_request()
        if self._chunk_size == CHUNK_SIZE:
            if self._log.filesystem.resident(file.fd, end - position, position):
                return True
        elif self._batch_resident(file, segment, position, end):
            return True
        # A chunk first: it arrives soon, and a caller that wants one message reads no more. Ranges of RANGE_SIZE follow
        # when the caller continues.
        self._requested = ahead.request(file, position, end, self._range_arrived)
        self._waiting = arrived
        return False

    def _batch_resident(self, file: OpenFile, segment: Segment, position: i64, end: i64) -> bool:
        """Return whether a batch that is read alone is in the page cache. Its header is in the chunk then.

        For a small batch, the next chunk up to `end` must be in the page cache.
        """
        filesystem = self._log.filesystem
        self._chunk = filesystem.read_resident(file.fd, HEADER_SIZE, position)
        self._chunk_start = position
        size: i64 = _batch_size(self._chunk, 0)
        if size < APART_SIZE_MIN or position + size > segment.size:
            self._chunk_size = CHUNK_SIZE
            return filesystem.resident(file.fd, end - position, position)
        # The page of the header is in the cache.
        rest: i64 = size - _LOOK_SIZE if size > _LOOK_SIZE else 1
        return filesystem.resident(file.fd, rest, position + size - rest)

    def _request_next_range(self, ahead: ReadAhead, segment: Segment) -> None:
        """Request the range after the one that is being read."""
        # A batch may begin in this range and end in the next, so the ranges overlap by a chunk.
        position: i64 = self._fetched_end - CHUNK_SIZE
        if self._fetched_end >= segment.size:
            behind = self._next_segment(segment)
            if behind is None:
                return
            segment = behind
            position = 0
        if segment.size - position > CHUNK_SIZE or segment.sealed:
            end: i64 = position + RANGE_SIZE
            self._requested = ahead.request(segment.open_log(), position, min(end, segment.size), self._range_arrived)

    def _range_arrived(self, asked: ReadAheadRange) -> None:
        if asked is not self._requested:
            return
        self._requested = None
        self._fetched = asked.file
        self._fetched_end = asked.end
        waiting = self._waiting
        if waiting is not None:
            self._waiting = None
            waiting()

    def _cancel_request(self) -> None:
        asked = self._requested
        if asked is not None:
            asked.arrived = None
        self._requested = None
        self._waiting = None

    def cursor(self, offset: i64) -> BatchCursor | None:
        """Return the first good batch with a record at or after `offset` in a segment with live messages, None at the
        end.

        Raises: OSError.
        """
        while True:
            header = self.find(offset)
            if header is None:
                return None
            if not header.is_compressed():
                cut_out = self._cut_out
                if cut_out:
                    self._cut_out = b""
                    return BatchCursor(cut_out, -CRC_START, header, self._decoder)
                return BatchCursor(self._found_chunk, self._found_at, header, self._decoder)
            cursor = self._decompressed_cursor(header)
            if cursor is not None:
                return cursor
            offset = header.last_offset + 1

    def find(self, offset: i64) -> BatchHeader | None:
        """Return the header of the batch that `cursor` would return, also of one that does not decompress.

        `found_batch` returns its bytes. The next call continues behind it, or at it after `step_back`.

        Raises: OSError.
        """
        segment = self._segment
        if segment is None or offset != self._next_offset or segment.is_removed or offset >= segment.end:
            segment = self._seek(offset)
        while segment is not None:
            header = self._find_in_segment(segment, offset)
            if header is not None:
                return header
            offset = segment.end
            segment = self._next_segment(segment)
            if segment is not None:
                self._enter_segment(segment, offset)
        return None

    def found_batch(self, header: BatchHeader) -> bytes:
        """Return the bytes of the batch that `find` returned last. Not with `copies_batches`. Cost: a copy."""
        at = self._found_at
        return self._found_chunk[at : at + header.size]

    def found_cursor(self, header: BatchHeader) -> BatchCursor | None:
        """Return a cursor in the batch that `find` returned last, None if it does not decompress.

        Not with `copies_batches`. Cost: that of the decompression.
        """
        if header.is_compressed():
            return self._decompressed_cursor(header)
        return BatchCursor(self._found_chunk, self._found_at, header, self._decoder)

    def found_was_settled(self, header: BatchHeader) -> bool:
        """Return whether the batch that `find` returned last does not count: it is transient and from an earlier
        process, or of an aborted transaction. Its messages are settled.
        """
        if header.attributes & (TRANSIENT | TRANSACTIONAL) == 0 or header.is_control():
            return False
        segment = self._segment
        return segment is not None and segment.settled.contains(header.last_offset)

    def after_settled(self, header: BatchHeader) -> i64:
        """Return where to continue after a batch that `found_was_settled`: behind a long run of settled offsets."""
        segment = self._segment
        behind: i64 = header.last_offset + 1
        if segment is not None:
            free: i64 = segment.settled.next_free(behind)
            if free - behind >= SKIP_COUNT_MIN:
                return free
        return behind

    def step_back(self, header: BatchHeader, offset: i64) -> None:
        """Make `find(offset)` return the batch again that it returned last, without a look-up."""
        self._next_position -= header.size
        self._next_offset = offset
        self._expected = header.base_offset

    def _seek(self, offset: i64) -> Segment | None:
        """Go to the batch with `offset`, or to one before it. Return None if no live segment has it or a later one."""
        segments = self._log.segments
        index: i64 = bisect_right(segments, offset, key=base_of) - 1
        if index < 0:
            index = 0
        while index < len(segments) and (not self._is_wanted(segments[index]) or segments[index].end <= offset):
            index += 1
        if index >= len(segments):
            return None
        segment = segments[index]
        self._enter_segment(segment, offset)
        return segment

    def _next_segment(self, segment: Segment) -> Segment | None:
        """Return the next segment to read."""
        segments = self._log.segments
        index: i64 = bisect_right(segments, segment.base, key=base_of)
        while index < len(segments) and not self._is_wanted(segments[index]):
            index += 1
        return segments[index] if index < len(segments) else None

    def _is_wanted(self, segment: Segment) -> bool:
        if self.reads_acked_segments:
            return not segment.is_removed and not segment.removing and segment.size > 0
        return segment.live > 0

    def _enter_segment(self, segment: Segment, offset: i64) -> None:
        if segment is not self._segment:
            self._segment = segment
            self._chunk = b""
        self._next_position = 0
        self._expected = segment.base
        if offset <= segment.base:
            return
        relative, position = segment.index().floor(offset - segment.base)
        if relative >= 0 and not self._entry_is_right(segment, relative, position):
            logger.warning("%s.index is wrong at offset %d and is rebuilt", segment.prefix, segment.base + relative)
            relative, position = segment.walk_index().floor(offset - segment.base)
        if relative >= 0 and self._entry_is_right(segment, relative, position):
            header = self._header(segment, position)
            if header is not None:
                self._next_position = position
                self._expected = header.base_offset

    def _entry_is_right(self, segment: Segment, relative: i64, position: i64) -> bool:
        header = self._header(segment, position)
        return header is not None and header.is_plausible() and header.last_offset == segment.base + relative

    def _find_in_segment(self, segment: Segment, offset: i64) -> BatchHeader | None:
        position: i64 = self._next_position
        expected: i64 = self._expected
        size: i64 = segment.size
        while position < size:
            header = self._header(segment, position)
            at: i64 = -1
            if header is not None and header.is_plausible() and position + header.size <= size:
                if header.last_offset < offset and self._offsets_fit(header, segment, position, expected):
                    expected = header.last_offset + 1
                    position += header.size
                    continue
                at = self._check_batch(segment, position, header)
            if header is None or at < 0:
                position = self._find_next_good(segment, position, expected)
                continue
            self._found_chunk = self._chunk  # the next look may load another one
            self._found_at = at
            if not self._offsets_fit(header, segment, position, expected):
                # The CRC is right, but does not cover the base offset, which is wrong. Only this batch is lost.
                position += header.size
                self._report_lost_until(segment, position, expected)
                continue
            self._next_position = position + header.size
            self._next_offset = self._expected = header.last_offset + 1
            return header
        self._next_position = position
        self._expected = expected
        return None

    def _check_batch(self, segment: Segment, position: i64, header: BatchHeader) -> i64:
        """Return the position in the chunk of the batch at `position`, -1 if its checksum is wrong.

        With `copies_batches`, `_cut_out` has the bytes of the batch. If the batch is read alone, the chunk has only its
        header.
        """
        if not self.copies_batches or header.is_compressed():
            at = self._load(segment, position, header.size)
            return at if at >= 0 and crc_fits(self._chunk, at, header) else -1
        is_read_alone: bool = header.size >= APART_SIZE_MIN
        self._chunk_size = HEADER_SIZE if is_read_alone else CHUNK_SIZE
        at = self._load(segment, position, HEADER_SIZE if is_read_alone else header.size)
        if at < 0:
            return -1
        if at + header.size <= len(self._chunk):
            self._cut_out = verified_bytes(self._chunk, at, header)
        else:
            size = header.size - CRC_START
            covered = self._log.filesystem.pread(segment.open_log().fd, size, position + CRC_START)
            self._cut_out = covered if self._header_matches(at, covered) and crc_of(covered) == header.crc else b""
        return at if self._cut_out else -1

    def _header_matches(self, at: i64, covered: bytes) -> bool:
        """Return whether `covered` begins with the rest of the header in the chunk at `at`: two reads must agree."""
        chunk = self._chunk
        index: i64 = 0
        while index < HEADER_SIZE - CRC_START:
            if index + 8 > len(covered) or read_i64_be(chunk, at + CRC_START + index) != read_i64_be(covered, index):
                return False
            index += 8
        return True

    def _decompressed_cursor(self, header: BatchHeader) -> BatchCursor | None:
        """Return the cursor of a compressed batch. None if it does not decompress: only this batch is lost."""
        try:
            image, image_at, image_header = decompressed(self._found_chunk, self._found_at, header)
        except BadRecord as error:
            segment = self._segment
            assert segment is not None  # `find` has found the batch in it
            lost = len(self.lost)
            self._report_lost(segment, header.base_offset, header.last_offset)
            if len(self.lost) > lost:  # else it was reported before
                logger.error(
                    "%s.log: the batch with offset %d is unreadable: %s", segment.prefix, header.base_offset, error
                )
            return None
        return BatchCursor(image, image_at, image_header, self._decoder)

    def _offsets_fit(self, header: BatchHeader, segment: Segment, position: i64, expected: i64) -> bool:
        if header.base_offset < expected or header.last_offset >= segment.end:
            return False
        if header.base_offset == expected:
            return True
        behind = self._header(segment, position + header.size)  # gaps are legal, overlaps are not
        return behind is None or not behind.is_plausible() or not expected <= behind.base_offset <= header.last_offset

    def _report_lost_until(self, segment: Segment, position: i64, first: i64) -> None:
        """Report the offsets from `first` to the batch at `position` as lost, or to the end of the segment."""
        header = self._header(segment, position)
        last: i64 = segment.end - 1
        if header is not None and header.is_plausible() and first < header.base_offset <= segment.end:
            last = header.base_offset - 1
        self._report_lost(segment, first, last)

    def _report_lost(self, segment: Segment, first: i64, last: i64) -> None:
        if last < first:
            return
        live = self._log.mark_lost(segment, first, last)
        if live > 0:  # else recovery has reported it
            logger.error("%s.log: offsets %d to %d are lost", segment.prefix, first, last)
            self.lost.append((first, last))
            self.lost_live += live

    def _find_next_good(self, segment: Segment, position: i64, expected: i64) -> i64:
        """Return the position of the next good batch after the bad one at `position`, or the size of the segment.

        The batch after it is found by its length, by its length with one bit flipped, or else in the index.
        """
        last: i64 = segment.end - 1
        bad = self._header(segment, position)
        if bad is not None and bad.size >= HEADER_SIZE and position + bad.size < segment.size:
            header = self._header(segment, position + bad.size)
            if header is not None and header.is_plausible() and bad.is_followed_by(header, expected):
                at: i64 = self._load(segment, position + bad.size, header.size)
                if at >= 0 and crc_fits(self._chunk, at, header) and header.last_offset < segment.end:
                    self._report_lost(segment, expected, header.base_offset - 1)
                    return position + bad.size
        if bad is not None:
            size_field: i64 = bad.size
            bit: i64 = 0
            while bit < 32:
                size: i64 = bad.size_less_bit(bit)
                bit += 1
                if size < HEADER_SIZE or position + size >= segment.size:
                    continue
                at = self._load(segment, position, size)
                bad.size = size
                if at >= 0 and crc_fits(self._chunk, at, bad):
                    header = self._header(segment, position + size)
                    if header is not None and self._offsets_fit(header, segment, position + size, expected):
                        self._report_lost(segment, expected, header.base_offset - 1)
                        return position + size
                bad.size = size_field
        index = segment.index()
        while True:
            position = index.next_position(position)
            if position < 0 or position >= segment.size:
                position = segment.size
                break
            header = self._header(segment, position)
            if header is None or not header.is_plausible() or position + header.size > segment.size:
                continue
            at = self._load(segment, position, header.size)
            if at >= 0 and crc_fits(self._chunk, at, header) and self._offsets_fit(header, segment, position, expected):
                last = header.base_offset - 1
                break
        self._report_lost(segment, expected, last)
        return position

    def _header(self, segment: Segment, position: i64) -> BatchHeader | None:
        if position + HEADER_SIZE > segment.size:
            return None
        at: i64 = self._load(segment, position, HEADER_SIZE)
        if at < 0:
            return None
        return BatchHeader(self._chunk, at)

    def _load(self, segment: Segment, position: i64, wanted: i64) -> i64:
        """Return where `position` is in the chunk, after reading if necessary; -1 if the file has fewer than `wanted`
        bytes there.
        """
        at: i64 = position - self._chunk_start
        if at >= 0 and at + wanted <= len(self._chunk):
            return at
        size: i64 = segment.size - position
        if size > self._chunk_size:
            size = self._chunk_size
        if wanted > size:
            size = wanted
        self._chunk = self._log.filesystem.pread(segment.open_log().fd, size, position)
        self._chunk_start = position
        return 0 if len(self._chunk) >= wanted else -1


def _batch_size(data: bytes, at: i64) -> i64:
    """Return the size in the batch header at `at`, 0 if it is implausible, -1 if it is not in `data`."""
    if at < 0 or at + LENGTH_OVERHEAD > len(data) - 4:
        return -1
    size: i64 = (read_i64_be(data, at + 8) >> 32) + LENGTH_OVERHEAD
    return size if size >= HEADER_SIZE else 0
