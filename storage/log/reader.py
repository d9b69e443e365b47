"""Finds batches in a log and checks them, one after the other or by offset.

A batch is handed out only when its checksum is right and its offsets are those that belong there. A bad one is passed
over to the next position that `.index` knows and whose batch is good; what lay between is lost, told once through
`lost`, and never given to anyone. (Bodies are never searched for something that looks like a batch: a publisher could
have put it there.)

Bytes come in chunks of 256 KiB, the last of which is kept until `release`; reading on where the last read ended needs
no look-up. Who wants each batch in an object of its own (`cuts_out`) has it cut out of the chunk; where batches are
large it is read by itself: its header, which says how much, and then what the checksum covers, which nobody copies.

Who must not wait for the disk asks `at_hand` before each `cursor`: what is not in the page cache is fetched by another
thread (worker.py), in ranges of 4 MiB, and while one is read the next one is fetched.
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
    BatchCursor,
    BatchHeader,
    checked,
    crc_fits,
    plain,
)
from amqpd.storage.log.log import Log
from amqpd.storage.log.record import BadRecord, RecordDecoder
from amqpd.storage.log.segment import Segment
from amqpd.storage.worker import RANGE_SIZE, ReadAhead, ReadAheadRange

logger = logging.getLogger(__name__)

CHUNK_SIZE: Final[i64] = 256 * 1024
# A batch of this size costs less read by itself than copied out of a chunk.
APART_SIZE_MIN: Final[i64] = 16 * 1024
# How far apart `FileSystem.resident` looks.
_LOOK_SIZE: Final[i64] = 64 * 1024


class LogReader:
    """Reads one log. `lost`: ranges found unreadable since they were last taken away; `record_count` has to follow.

    ahead: who reads what is not in memory; None: everything is read as it is asked for.
    """

    def __init__(self, log: Log, ahead: ReadAhead | None = None) -> None:
        self._log = log
        self._ahead = ahead
        self._asked: ReadAheadRange | None = None  # asked for
        self._fetched: OpenFile | None = None  # of the range before it, which ends there
        self._fetched_end: i64 = 0
        self._waiting: Callable[[], None] | None = None  # to call when the range has arrived
        self.reads_settled: bool = False  # segments without a live message, too
        self.cuts_out: bool = False  # each batch is an object of its own, which may be held while the chunk goes
        self._cut_out = b""
        self._chunk_size: i64 = CHUNK_SIZE  # of the next one; a header's where batches are read by themselves
        self.lost: list[tuple[int, int]] = []
        self.lost_live = 0  # how many live offsets these held
        self._segment: Segment | None = None
        self._decoder = RecordDecoder()
        self._chunk = b""
        self._chunk_start: i64 = 0
        # the batch with this offset, or the first behind it, starts at that position
        self._next_offset: i64 = -1
        self._next_position: i64 = 0
        self._expected: i64 = 0  # no batch from there on may start below it

    def release(self) -> None:
        """Forgets the bytes it holds, and what was asked for."""
        self._chunk = b""
        self._segment = None
        self._next_offset = -1
        self._fetched = None
        self._drop_asked()

    def at_hand(self, offset: i64, arrived: Callable[[], None]) -> bool:
        """Whether `cursor(offset)` finds its batch without the disk. If not, it is being fetched: `arrived` is called
        on the loop when it is there.

        Cost: 20 ns from the chunk; once per chunk some 3 us to look into the page cache. Raises: OSError.
        """
        ahead = self._ahead
        if ahead is None:
            return True
        segment = self._segment
        if segment is None or offset != self._next_offset or segment.gone or offset >= segment.end:
            segment = self._seek(offset)
            if segment is None:
                return True
            self._next_offset = offset
        if self._next_position >= segment.size:
            segment = self._behind(segment)
            if segment is None:
                return True
            self._enter(segment, segment.base)
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
        asked = self._asked
        if file is self._fetched and end <= self._fetched_end:
            if asked is None and self._fetched_end - position <= RANGE_SIZE:
                self._ask_behind(ahead, segment)
            return True
        if asked is not None:
            if asked.file is file and asked.position <= position and end <= asked.end:
                self._waiting = arrived
                return False
            self._drop_asked()
        if self._chunk_size == CHUNK_SIZE:
            if self._log.filesystem.resident(file.fd, end - position, position):
                return True
        elif self._batch_resident(file, segment, position, end):
            return True
        # A chunk first, so that whoever waits has something soon, and who wants one message reads no more. Reading on
        # begins the ranges of RANGE_SIZE.
        self._asked = ahead.ask(file, position, end, self._arrived)
        self._waiting = arrived
        return False

    def _batch_resident(self, file: OpenFile, segment: Segment, position: i64, end: i64) -> bool:
        """Whether the batch there, which is to be read by itself, is in the page cache: its header is in the chunk
        then. For a small one the next chunk, as far as `end`, has to be.
        """
        filesystem = self._log.filesystem
        self._chunk = filesystem.read_resident(file.fd, HEADER_SIZE, position)
        self._chunk_start = position
        size: i64 = _batch_size(self._chunk, 0)
        if size < APART_SIZE_MIN or position + size > segment.size:
            self._chunk_size = CHUNK_SIZE
            return filesystem.resident(file.fd, end - position, position)
        # The header's page is there.
        rest: i64 = size - _LOOK_SIZE if size > _LOOK_SIZE else 1
        return filesystem.resident(file.fd, rest, position + size - rest)

    def _ask_behind(self, ahead: ReadAhead, segment: Segment) -> None:
        """The range behind the one that is being read."""
        # A batch may begin in this range and end in the next, and is then read as one: a chunk stands in both.
        position: i64 = self._fetched_end - CHUNK_SIZE
        if self._fetched_end >= segment.size:
            behind = self._behind(segment)
            if behind is None:
                return
            segment = behind
            position = 0
        if segment.size - position > CHUNK_SIZE or segment.sealed:
            end: i64 = position + RANGE_SIZE
            self._asked = ahead.ask(segment.open_log(), position, min(end, segment.size), self._arrived)

    def _arrived(self, asked: ReadAheadRange) -> None:
        if asked is not self._asked:
            return
        self._asked = None
        self._fetched = asked.file
        self._fetched_end = asked.end
        waiting = self._waiting
        if waiting is not None:
            self._waiting = None
            waiting()

    def _drop_asked(self) -> None:
        asked = self._asked
        if asked is not None:
            asked.arrived = None
        self._asked = None
        self._waiting = None

    def cursor(self, offset: i64) -> BatchCursor | None:
        """The first good batch with a record at or behind `offset` in a segment with live messages; None at the end.

        Raises: OSError when the disk does not answer.
        """
        segment = self._segment
        if segment is None or offset != self._next_offset or segment.gone or offset >= segment.end:
            segment = self._seek(offset)
        while segment is not None:
            cursor = self._in_segment(segment, offset)
            if cursor is not None:
                return cursor
            offset = segment.end
            segment = self._behind(segment)
            if segment is not None:
                self._enter(segment, offset)
        return None

    def _seek(self, offset: i64) -> Segment | None:
        """Goes to the batch with `offset`, or before it; None when nothing live is there or behind."""
        segments = self._log.segments
        index: i64 = bisect_right(segments, offset, key=_base_of) - 1
        if index < 0:
            index = 0
        while index < len(segments) and (not self._wants(segments[index]) or segments[index].end <= offset):
            index += 1
        if index >= len(segments):
            return None
        segment = segments[index]
        self._enter(segment, offset)
        return segment

    def _behind(self, segment: Segment) -> Segment | None:
        """The next one with live messages, or with any."""
        segments = self._log.segments
        index: i64 = bisect_right(segments, segment.base, key=_base_of)
        while index < len(segments) and not self._wants(segments[index]):
            index += 1
        return segments[index] if index < len(segments) else None

    def _wants(self, segment: Segment) -> bool:
        if self.reads_settled:
            return not segment.gone and not segment.removing and segment.size > 0
        return segment.live > 0

    def _enter(self, segment: Segment, offset: i64) -> None:
        if segment is not self._segment:
            self._segment = segment
            self._chunk = b""
        self._next_position = 0
        self._expected = segment.base
        if offset <= segment.base:
            return
        relative, position = segment.index().floor(offset - segment.base)
        if relative >= 0 and not self._leads_to(segment, relative, position):
            logger.warning("%s.index is wrong at offset %d and made anew", segment.prefix, segment.base + relative)
            relative, position = segment.walk_index().floor(offset - segment.base)
        if relative >= 0 and self._leads_to(segment, relative, position):
            header = self._header(segment, position)
            if header is not None:
                self._next_position = position
                self._expected = header.base_offset

    def _leads_to(self, segment: Segment, relative: i64, position: i64) -> bool:
        header = self._header(segment, position)
        return header is not None and header.plausible() and header.last_offset == segment.base + relative

    def _in_segment(self, segment: Segment, offset: i64) -> BatchCursor | None:
        position: i64 = self._next_position
        expected: i64 = self._expected
        size: i64 = segment.size
        while position < size:
            header = self._header(segment, position)
            at: i64 = -1
            if header is not None and header.plausible() and position + header.size <= size:
                if header.last_offset < offset and self._belongs(header, segment, position, expected):
                    expected = header.last_offset + 1
                    position += header.size
                    continue
                at = self._checked(segment, position, header)
            if header is None or at < 0:
                position = self._pass_over(segment, position, expected)
                continue
            chunk = self._chunk
            if not self._belongs(header, segment, position, expected):
                # Right bytes with an offset that cannot be: the CRC does not cover it. This batch alone is lost.
                position += header.size
                self._lose_until(segment, position, expected)
                continue
            self._next_position = position + header.size
            self._next_offset = self._expected = header.last_offset + 1
            if not header.compressed():
                cut_out = self._cut_out
                if cut_out:
                    self._cut_out = b""
                    return BatchCursor(cut_out, -CRC_START, header, self._decoder)
                return BatchCursor(chunk, at, header, self._decoder)
            cursor = self._unpacked(segment, chunk, at, header)
            if cursor is not None:
                return cursor
            position = self._next_position
            expected = self._expected
        self._next_position = position
        self._expected = expected
        return None

    def _checked(self, segment: Segment, position: i64, header: BatchHeader) -> i64:
        """Where the batch at `position` stands in the chunk; -1 where its checksum is wrong. Cut out it is besides, or
        instead where it is read by itself.
        """
        if not self.cuts_out or header.compressed():
            at = self._load(segment, position, header.size)
            return at if at >= 0 and crc_fits(self._chunk, at, header) else -1
        apart: bool = header.size >= APART_SIZE_MIN
        self._chunk_size = HEADER_SIZE if apart else CHUNK_SIZE
        at = self._load(segment, position, HEADER_SIZE if apart else header.size)
        if at < 0:
            return -1
        if at + header.size <= len(self._chunk):
            self._cut_out = checked(self._chunk, at, header)
        else:
            size = header.size - CRC_START
            covered = self._log.filesystem.pread(segment.open_log().fd, size, position + CRC_START)
            self._cut_out = covered if self._goes_on(at, covered) and crc_of(covered) == header.crc else b""
        return at if self._cut_out else -1

    def _goes_on(self, at: i64, covered: bytes) -> bool:
        """Whether `covered` begins as the header in the chunk at `at` goes on: they were read one after the other."""
        chunk = self._chunk
        index: i64 = 0
        while index < HEADER_SIZE - CRC_START:
            if index + 8 > len(covered) or read_i64_be(chunk, at + CRC_START + index) != read_i64_be(covered, index):
                return False
            index += 8
        return True

    def _unpacked(self, segment: Segment, chunk: bytes, at: i64, header: BatchHeader) -> BatchCursor | None:
        """The cursor of a compressed batch; None where it does not unpack: it is lost, and it alone."""
        try:
            image, image_at, image_header = plain(chunk, at, header)
        except BadRecord as error:
            lost = len(self.lost)
            self._lose(segment, header.base_offset, header.last_offset)
            if len(self.lost) > lost:  # else it is known
                logger.error("%s.log: the batch of offset %d: %s", segment.prefix, header.base_offset, error)
            return None
        return BatchCursor(image, image_at, image_header, self._decoder)

    def _belongs(self, header: BatchHeader, segment: Segment, position: i64, expected: i64) -> bool:
        if header.base_offset < expected or header.last_offset >= segment.end:
            return False
        if header.base_offset == expected:
            return True
        behind = self._header(segment, position + header.size)  # a gap is legal, an overlap is not
        return behind is None or not behind.plausible() or not expected <= behind.base_offset <= header.last_offset

    def _lose_until(self, segment: Segment, position: i64, first: i64) -> None:
        """The offsets from `first` to the batch at `position` are lost, if one starts there."""
        header = self._header(segment, position)
        last: i64 = segment.end - 1
        if header is not None and header.plausible() and first < header.base_offset <= segment.end:
            last = header.base_offset - 1
        self._lose(segment, first, last)

    def _lose(self, segment: Segment, first: i64, last: i64) -> None:
        if last < first:
            return
        live = self._log.note_lost(segment, first, last)
        if live > 0:  # else recovery has noted it before
            logger.error("%s.log: offsets %d to %d are lost", segment.prefix, first, last)
            self.lost.append((first, last))
            self.lost_live += live

    def _pass_over(self, segment: Segment, position: i64, expected: i64) -> i64:
        """The position of the next good batch behind the bad one at `position`, or the segment's size."""
        last: i64 = segment.end - 1
        bad = self._header(segment, position)
        if bad is not None and bad.size >= HEADER_SIZE and position + bad.size < segment.size:
            header = self._header(segment, position + bad.size)
            if header is not None and header.plausible() and bad.leads_to(header, expected):
                at: i64 = self._load(segment, position + bad.size, header.size)
                if at >= 0 and crc_fits(self._chunk, at, header) and header.last_offset < segment.end:
                    self._lose(segment, expected, header.base_offset - 1)
                    return position + bad.size
        if bad is not None:
            told: i64 = bad.size
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
                    if header is not None and self._belongs(header, segment, position + size, expected):
                        self._lose(segment, expected, header.base_offset - 1)
                        return position + size
                bad.size = told
        index = segment.index()
        while True:
            position = index.next_position(position)
            if position < 0 or position >= segment.size:
                position = segment.size
                break
            header = self._header(segment, position)
            if header is None or not header.plausible() or position + header.size > segment.size:
                continue
            at = self._load(segment, position, header.size)
            if at >= 0 and crc_fits(self._chunk, at, header) and self._belongs(header, segment, position, expected):
                last = header.base_offset - 1
                break
        self._lose(segment, expected, last)
        return position

    def _header(self, segment: Segment, position: i64) -> BatchHeader | None:
        if position + HEADER_SIZE > segment.size:
            return None
        at: i64 = self._load(segment, position, HEADER_SIZE)
        if at < 0:
            return None
        return BatchHeader(self._chunk, at)

    def _load(self, segment: Segment, position: i64, wanted: i64) -> i64:
        """Where `position` is in the chunk once `wanted` bytes from it are there; -1 when the file has not so many."""
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
    """What the batch at `at` says of its size; -1 when that is not in `data`."""
    if at < 0 or at + LENGTH_OVERHEAD > len(data) - 4:
        return -1
    size: i64 = (read_i64_be(data, at + 8) >> 32) + LENGTH_OVERHEAD
    return size if size >= HEADER_SIZE else 0


def _base_of(segment: Segment) -> int:
    return segment.base
