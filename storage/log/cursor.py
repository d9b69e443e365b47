"""Read positions in a local log (`LocalCursor`, `CursorSet`), and the search for a time (`offset_before`).

A cursor reads the files. `GroupCommitLog.read_end` first writes what this turn has appended and settled. The cursor
keeps its current batch, so that sequential reads need no look-up. When the log closes its descriptors, the cursors
drop their bytes and look their position up again.

Search for a time: the answer is in the first segment whose latest batch is not before the time. `.timeindex` gives an
offset up to which all records are earlier; the caller reads the records after it. An entry is believed only if the
batch it names ends there and is earlier than the time. Otherwise reading starts with the segment, so a damaged or
missing `.timeindex` costs time but gives the same answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from amqpd.storage.log.batch import HEADER_SIZE, BatchCursor, BatchHeader, crc_fits, is_commit_marker
from amqpd.storage.log.log import Log
from amqpd.storage.log.raw_reader import RawBatchReader
from amqpd.storage.log.reader import SKIP_COUNT_MIN, LogReader
from amqpd.storage.log.record import BadRecord, Record, RecordViews
from amqpd.storage.loop_log import GroupCommitLog
from amqpd.storage.queue_log import BatchBytes, Cursor, ReadResult, TimeSearch

if TYPE_CHECKING:
    from amqpd.storage.log.segment import Segment


logger = logging.getLogger(__name__)

# A read of views ends at the end of a batch if at most an eighth of the budget is left: views keep whole batches in
# memory.
SHORT_BY: Final[i64] = 8


@final
class CursorSet:
    """All open cursors of one log. After the deletion of the log it references none."""

    def __init__(self, log: Log) -> None:
        self._log: Log = log
        self._queue_cursor: LocalCursor | None = None
        self._all: list[LocalCursor] = []

    def queue_cursor(self, owner: GroupCommitLog) -> LocalCursor:
        """Return the cursor of the queue itself, created if necessary.

        Args:
            owner: the log.
        """
        cursor = self._queue_cursor
        if cursor is None:
            cursor = self.new(owner)
            if not owner.deleted:
                self._queue_cursor = cursor
        return cursor

    def new(self, owner: GroupCommitLog) -> LocalCursor:
        """Return a new cursor."""
        cursor = LocalCursor(owner, self._log, self)
        if not owner.deleted:
            self._all.append(cursor)
        return cursor

    def remove(self, cursor: LocalCursor) -> None:
        """Remove a closed cursor."""
        if cursor in self._all:
            self._all.remove(cursor)
        if cursor is self._queue_cursor:
            self._queue_cursor = None

    def reset_positions(self) -> None:
        """Make all cursors look their position up again: the log has other segments now."""
        for cursor in self._all:
            cursor.reset_position()

    def release(self) -> None:
        """Make all cursors drop their bytes: the descriptors are closed."""
        for cursor in self._all:
            cursor.release()

    def dispose(self) -> None:
        """Drop all cursors: the queue is deleted."""
        self.release()
        self._queue_cursor = None
        self._all = []


@final
class LocalCursor(Cursor):
    """Read position of one reader in a local log."""

    def __init__(self, owner: GroupCommitLog, log: Log, cursors: CursorSet) -> None:
        self._owner: GroupCommitLog = owner
        self._log: Log = log
        self._cursors: CursorSet = cursors
        self._reader: LogReader = LogReader(log, owner.context.ahead)
        self._batch: BatchCursor | None = None
        self._waiting: bool = False
        self._raw: RawBatchReader | None = None  # created by the first read of batches

    def read(self, offset: i64, size_bytes_max: i64) -> ReadResult:
        return self._read(offset, size_bytes_max, None)

    def read_if_cached(self, offset: i64, size_bytes_max: i64, arrived: Callable[[], None]) -> ReadResult:
        return self._read(offset, size_bytes_max, arrived)

    def read_safe(self, offset: i64, size_bytes_max: i64, arrived: Callable[[], None]) -> ReadResult:
        return self._read_below(self._log.stable_end(), offset, size_bytes_max, arrived)

    def views_below_hw(self, offset: i64, size_bytes_max: i64, arrived: Callable[[], None]) -> RecordViews:
        self._reader.copies_batches = True
        views = RecordViews()
        next_offset = self._read_on(self._log.stable_end(), offset, size_bytes_max, arrived, [], views)
        views.close(next_offset, self._waiting)
        return views

    def read_settled(self, offset: i64, size_bytes_max: i64, arrived: Callable[[], None]) -> ReadResult:
        self._reader.reads_acked_segments = True
        fetch = self._read_below(self._owner.read_end(), offset, size_bytes_max, arrived)
        log = self._log
        found: list[Record] = []
        for record in fetch.records:
            segment = log.segment_of(record.offset)
            if segment is None or segment.is_removed or segment.removing or not segment.settled.contains(record.offset):
                continue
            if not in_ranges(record.offset, segment.acked_transient):
                found.append(record)
        return ReadResult(found, fetch.next_offset, fetch.waiting)

    def batches_below_hw(
        self, offset: i64, size_bytes_max: i64, one: bool, arrived: Callable[[], None], committed: bool = True
    ) -> BatchBytes:
        self._batch = None
        try:
            return self._raw_reader().read(self._end(committed), offset, size_bytes_max, one, arrived)
        finally:
            self._report_reader_losses()

    def find_time_below_hw(
        self, offset: i64, timestamp_ms: i64, batches_max: i64, arrived: Callable[[], None], committed: bool = True
    ) -> TimeSearch:
        self._batch = None
        try:
            return self._raw_reader().find_time(self._end(committed), offset, timestamp_ms, batches_max, arrived)
        finally:
            self._report_reader_losses()

    def _end(self, committed: bool) -> i64:
        return self._log.stable_end() if committed else self._log.watermark.offset

    def _raw_reader(self) -> RawBatchReader:
        raw = self._raw
        if raw is None:
            raw = self._raw = RawBatchReader(self._reader)
        return raw

    def last_batch_offset(self, end: i64, arrived: Callable[[], None]) -> i64:
        self._waiting = False
        offset = end - 1
        while offset >= 0:
            batch = self.batch_at(offset, arrived)
            if batch is None:
                return -1 if self._waiting else end
            if batch.base_offset > offset:
                return end  # the message has left the log
            segment = self._log.segment_of(batch.base_offset)
            if batch.remaining > 0 and segment is not None and segment.live > 0:
                return batch.base_offset
            offset = batch.base_offset - 1  # a commit marker
        return end

    def read_first(self, offset: i64, arrived: Callable[[], None]) -> Record | None:
        fetch = self._read(offset, 1, arrived)
        if not fetch.waiting:
            self.release()
        return fetch.records[0] if fetch.records else None

    def _read(self, offset: i64, size_bytes_max: i64, arrived: Callable[[], None] | None) -> ReadResult:
        return self._read_below(self._owner.read_end(), offset, size_bytes_max, arrived)

    def _read_below(self, end: i64, offset: i64, size_bytes_max: i64, arrived: Callable[[], None] | None) -> ReadResult:
        records: list[Record] = []
        next_offset = self._read_on(end, offset, size_bytes_max, arrived, records, None)
        return ReadResult(records, next_offset, self._waiting)

    def _read_on(
        self,
        end: i64,
        offset: i64,
        size_bytes_max: i64,
        arrived: Callable[[], None] | None,
        records: list[Record],
        views: RecordViews | None,
    ) -> i64:
        """Append records to `records`, or to `views` if given. Return the offset to continue at."""
        owner = self._owner
        log = self._log
        self._waiting = False
        budget: i64 = max(size_bytes_max, 1)
        while budget > 0 and offset < end:
            batch = self.batch_at(offset, arrived)
            if batch is None or batch.base_offset >= end:
                break
            segment = log.segment_of(batch.base_offset)
            set_ = segment.settled if segment is not None and not self._reader.reads_acked_segments else None
            if views is not None and set_ is not None and set_.highest - offset >= SKIP_COUNT_MIN:
                free: i64 = set_.next_free(offset)
                if free - offset >= SKIP_COUNT_MIN:  # an aborted transaction
                    offset = free
                    continue
            try:
                if views is None:
                    budget = batch.read(offset, set_, owner.returned, budget, records)
                else:
                    budget = batch.read_views(offset, set_, budget, views)
            except BadRecord:
                self._batch = None
                self._report_invalid(max(offset, batch.next_offset), batch.last_offset)
                offset = batch.last_offset + 1
                continue
            offset = batch.next_offset
            if views is not None and batch.remaining == 0 and budget < size_bytes_max // SHORT_BY:
                break  # the next batch would be split
        return offset

    def batch_at(self, offset: i64, arrived: Callable[[], None] | None) -> BatchCursor | None:
        """Return the batch with `offset`, or the first one after it. None at the end.

        Args:
            arrived: if set, never wait for the disk: return None, and call it when the batch has been fetched.

        Raises: OSError.
        """
        batch = self._batch
        if batch is None or batch.remaining == 0 or offset < batch.next_offset or offset > batch.last_offset:
            if arrived is not None and not self._reader.is_cached(offset, arrived):
                self._waiting = True
                return None
            batch = self._reader.cursor(offset)
            self._report_reader_losses()
            self._batch = batch
        return batch

    def _report_reader_losses(self) -> None:
        reader = self._reader
        if reader.lost:
            self._note_lost(reader.lost, reader.lost_live)
            reader.lost = []
            reader.lost_live = 0

    def _report_invalid(self, first: i64, last: i64) -> None:
        """Report offsets as lost: a batch with a right checksum has no valid records, a defect of its writer."""
        segment = self._log.segment_of(first)
        if segment is not None:
            self._note_lost([(first, last)], self._log.mark_lost(segment, first, last))
            logger.error("queue '%s': the batch of offsets %d to %d has invalid records", self._owner.name, first, last)

    def _note_lost(self, lost: list[tuple[int, int]], live: i64) -> None:
        owner = self._owner
        owner.lost = owner.lost + lost
        owner.record_count -= live
        owner.mark_dirty()

    def reset_position(self) -> None:
        """Look the position up at the next read."""
        self._batch = None

    def release(self) -> None:
        self._batch = None
        self._reader.release()

    def close(self) -> None:
        self.release()
        self._cursors.remove(self)


def in_ranges(offset: i64, ranges: list[tuple[int, int, int]]) -> bool:
    """Return whether `offset` is in one of the ranges (first, last, bytes)."""
    for first, last, _ in ranges:  # noqa: SIM110  # a generator would cost a nested function when compiled
        if first <= offset <= last:
            return True
    return False


def offset_before(log: Log, timestamp_ms: int) -> int:
    """See `QueueLog.offset_before`. Everything appended must be in the segments."""
    for segment in log.segments:
        if segment.is_removed or segment.live == 0 or segment.latest_ms() < timestamp_ms:
            continue
        relative = segment.times().offset_before(timestamp_ms)
        if 0 < relative < segment.end - segment.base and _entry_is_early(log, segment, relative, timestamp_ms):
            return segment.base + relative + 1
        return segment.base
    return log.end


def log_start(log: Log) -> int:
    """See `QueueLog.log_start`. Cost: a step per segment that is settled."""
    policy = log.policy
    if policy is not None and policy.compaction is not None:  # compaction settles records, too
        return segment_start(log)
    for segment in log.segments:
        if not segment.is_removed and segment.live > 0:
            first: i64 = segment.settled.first_free()
            if policy is not None and first > segment.base:  # a queue has no transactions of producers
                first = max(_start_of_aborted(log, segment, first), log.deleted_end)
            return min(first, log.watermark.offset)
    return log.watermark.offset


def _start_of_aborted(log: Log, segment: Segment, first: i64) -> i64:
    """Return where the aborted transactions begin whose records end before `first`, or `first` if there are none.

    They are settled as deleted records are, but an abort does not move the start of a log in Kafka. The answer is kept
    until `first` changes. Cost: a read; before an abort marker also a step for each batch of the segment up to it.
    """
    if log.start_of_aborted[0] == first:
        return log.start_of_aborted[1]
    start: i64 = first
    reader = LogReader(log)
    reader.reads_acked_segments = True
    try:
        header = reader.find(first)
        if (
            header is not None
            and header.base_offset == first
            and header.is_control()
            and not is_commit_marker(reader.found_batch(header), 0)
        ):
            offset: i64 = segment.base
            start = offset
            while offset < first:
                header = reader.find(offset)
                if header is None:
                    break
                offset = header.last_offset + 1
                if header.is_control() or not header.is_of_producer_transaction():
                    start = min(offset, first)
    except OSError as error:
        logger.error("a log cannot be read at offset %d: %s", first, error)
        start = first
    finally:
        reader.release()
    if first < log.end:
        log.start_of_aborted = (first, start)
    return start


def segment_start(log: Log) -> int:
    """See `QueueLog.segment_start`. Cost: a step per segment that is settled."""
    policy = log.policy
    if policy is not None and policy.compaction is not None and policy.max_age_ms < 0 and policy.max_bytes < 0:
        return log.deleted_end
    for segment in log.segments:
        if not segment.is_removed and segment.live > 0:
            return min(max(segment.base, log.deleted_end), log.watermark.offset)
    return log.watermark.offset


def latest_time_ms(log: Log) -> int:
    """See `QueueLog.latest_time_ms`. Everything appended must be in the segments."""
    latest = -1
    for segment in log.segments:
        if not segment.is_removed and segment.live > 0:
            latest = max(latest, segment.latest_ms())
    return latest


def _entry_is_early(log: Log, segment: Segment, relative: int, timestamp_ms: int) -> bool:
    """Return whether a good batch earlier than `timestamp_ms` ends at the relative offset, as the index entry says."""
    found, position = segment.index().floor(relative)
    if found != relative:
        return False
    filesystem, fd = log.filesystem, segment.open_log().fd
    data = filesystem.pread(fd, int(HEADER_SIZE), position)
    if len(data) < HEADER_SIZE:
        return False
    header = BatchHeader(data, 0)
    if (
        not header.is_plausible()
        or header.last_offset != segment.base + relative
        or position + header.size > segment.size
    ):
        return False
    data = filesystem.pread(fd, int(header.size), position)
    return crc_fits(data, 0, header) and header.max_timestamp_ms < timestamp_ms
