"""The store of one queue: messages in, offsets out; a log and a memory of what was settled.

`append` writes into the open batch, `settle` extends a run; neither makes an object per message nor a system call.
`write`, once per loop turn, closes the batch and writes all of the turn's batches in one `writev`. After that a kill of
the process loses no message; after the sync that `Storage` sees to, a power cut neither.

What was settled is written by `tick`, up to 50 ms later and for all of that while together, when the storage has a
clock to call it (`StoreContext.paced`), else by `write` too. So a kill may bring back what was settled within the last
50 ms, as redelivered. The delivery mark precedes the deliveries; while they go on without a pause it runs ahead of
them, so that it need not be written with every turn: after a kill up to AHEAD_MAX messages may be called redelivered
that nobody has seen.

Offsets rise by one with each append and are never used twice, also when a write fails. `record_count` and `size_bytes`
(of bodies) are what is in the log and not settled; both are true from `recover` on, which the first use calls by
itself.

Order of writes: batches, then settlements and delivery marks, the latter before a byte of a delivery reaches a socket.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64, mypyc_attr

from amqpd.storage.commit.job import JobPart
from amqpd.storage.filesystem import Clock
from amqpd.storage.log.batch import (
    COMMIT_RECORDS,
    CONTROL,
    LOG_APPEND_TIME,
    NO_PRODUCER,
    RECORDS_MAX,
    RECORDS_SIZE_BYTES_MAX,
    TRANSACTIONAL,
    TRANSIENT,
    BatchCursor,
    ClosedBatch,
    close_batch,
)
from amqpd.storage.log.log import Log
from amqpd.storage.log.prepared import Prepared
from amqpd.storage.log.readahead import ReadAhead
from amqpd.storage.log.reader import LogReader
from amqpd.storage.log.record import BadRecord, Record, RecordRoute, around_body, write_record, write_tombstone
from amqpd.storage.queue_log import Cursor, Fetch, LogFailed, QueueLog

logger = logging.getLogger(__name__)

_KEPT_WRITER_SIZE: Final[i64] = 256 * 1024
_POOL_MAX: Final[i64] = 64
_NO_LIMIT: Final[i64] = 1 << 60
_NO_PARTS: Final[list[bytes]] = []
DIRTY_MAX: Final[i64] = 256
AHEAD_MAX: Final[i64] = 64  # offsets that the delivery mark may be ahead
_STEADY_TICKS: Final[i64] = 4  # ticks on end with deliveries, before it may
_GROUP_LARGE: Final = 9  # stores
# Ticks of 50 ms between two that do this for a store that is busy; one that comes to rest does both at once.
_PUBLISH_TICKS: Final[i64] = 4
_INDEX_TICKS: Final[i64] = 20


@final
class StoreContext:
    """What all stores of one process share: the turn's dirty stores, spare writers, the clock, the reading ahead."""

    def __init__(self, clock: Clock, ahead: ReadAhead | None) -> None:
        self.clock: Clock = clock
        self.ahead: ReadAhead | None = ahead
        self.dirty: list[LocalLog] = []
        # So many logs are some milliseconds of writing, by what it took of late: then it is the others' turn.
        self.dirty_max: i64 = DIRTY_MAX
        self.paced: bool = False  # somebody calls `tick` for the stores in `late`, every 50 ms
        self.late: list[LocalLog] = []
        self.writers: list[BytesWriter] = []
        self.scratch: BytesWriter = BytesWriter()


@mypyc_attr(allow_interpreted_subclasses=True)
class LogKeeper:
    """Who opens and removes the logs of a data directory, as they see it: `Storage`."""

    def recover(self, store: LocalLog) -> None:
        """Fills the log from the disk; once, before its first use. Raises: OSError; UnknownFormat; DamagedLog."""
        raise NotImplementedError

    def open_soon(self, store: LocalLog, done: Callable[[], None]) -> bool:
        """See `QueueLog.open_soon`."""
        raise NotImplementedError

    def delete_queue(self, store: LocalLog) -> None:
        """See `QueueLog.remove`."""
        raise NotImplementedError

    def retire_queue(self, store: LocalLog, done: Callable[[], None]) -> None:
        """See `QueueLog.retire`."""
        raise NotImplementedError


@final
class LocalLog(QueueLog):
    """See the module. Made by `Storage` only.

    ready: there is nothing on the disk to recover. Loop thread only.
    """

    def __init__(
        self,
        context: StoreContext,
        log: Log,
        vhost_id: str,
        queue_id: str,
        name: str,
        keeper: LogKeeper,
        ready: bool,
    ) -> None:
        super().__init__(vhost_id, queue_id, name, log.directory, True)
        self.log: Log = log
        self.torn_bytes: i64 = 0  # cut off at recovery
        # for Storage
        self.gathered: bool = False
        self.needs_commit: bool = False
        self.write_failed: bool = False
        self.written_bytes: i64 = 0
        self.last_turn: i64 = 0
        self._context: StoreContext = context
        self._keeper: LogKeeper = keeper
        self._ready: bool = ready
        self._seen_end: i64 = 0  # offsets below it may have been delivered in an earlier life
        self._dirty: bool = False
        # for `tick`
        self._late: bool = False
        self._settle_due: bool = False  # what was settled goes with this turn
        self._tick_mark: i64 = -1
        self._tick_end: i64 = 0
        self._ticks: i64 = 0
        self._pace: i64 = 0  # deliveries in a tick, the most of late
        self._steady: i64 = 0  # ticks on end that had some
        self._cursor: LocalCursor | None = None  # the queue's own
        self._cursors: list[LocalCursor] = []  # all there are
        # the open batch
        self._writer: BytesWriter | None = None
        self._count: i64 = 0
        self._persistent: bool = True
        self._timestamp_ms: i64 = 0
        self._body_bytes: i64 = 0
        self._batches: list[ClosedBatch] = []
        # the open transaction
        self._transaction_start: i64 = -1
        self._sequence: i64 = 0
        # settlements of this turn: the open run, and those before it
        self._run_first: i64 = -1
        self._run_next: i64 = -1
        self._run_limit: i64 = 0  # a run does not leave its segment, so that its bytes are those of one segment
        self._run_bytes: i64 = 0
        self._runs: list[tuple[int, int, int]] = []
        self._returns: list[int] = []

    # -- opening

    def recover(self) -> None:
        """Reads what is on the disk, once; every other method does it by itself when needed.

        Cost: after a clean stop some 0.2 ms and 0.3 us per settlement entry; after a kill besides 25 ms per 64 MiB
        written since the recovery point. Raises: OSError; UnknownFormat.
        """
        if not self._ready:
            self._keeper.recover(self)
            self._ready = True

    def open_soon(self, done: Callable[[], None]) -> bool:
        return self._keeper.open_soon(self, done)

    def remove(self) -> None:
        self._keeper.delete_queue(self)

    def retire(self, done: Callable[[], None]) -> None:
        self._keeper.retire_queue(self, done)

    def recovered(
        self, told_mark: i64, seen_end: i64, returned: dict[int, int], lost: list[tuple[int, int]]
    ) -> None:
        """What recovery found, besides the log itself.

        told_mark: the delivery mark as it stands where it has to. seen_end: offsets below may have been delivered; when
        that is more (after a power cut), the mark follows with the first write.
        """
        self.delivered_mark = seen_end - 1
        self._tick_mark = seen_end - 1
        self._tick_end = self.log.end
        if seen_end - 1 > told_mark:  # goes with the first entry of this life, whose boot id would deny it
            self.log.mark_delivered(seen_end - 1, 0)
        self.log.marked = seen_end - 1
        self._seen_end = seen_end
        self.returned = returned
        self.lost = lost
        self.next_offset = self.log.end
        self._recount()

    @property
    def ready(self) -> bool:
        """Whether `record_count`, `size_bytes` and `next_offset` are known."""
        return self._ready

    @property
    def high_watermark(self) -> i64:
        return self.log.synced_end

    def _recount(self) -> None:
        count = 0
        size = 0
        for segment in self.log.segments:
            live = segment.live
            if live > 0 and not segment.gone:
                count += live
                size += max(0, segment.body_bytes - segment.settled_body_bytes)
        self.record_count = count
        self.size_bytes = size

    # -- appending

    def append(
        self,
        route: RecordRoute,
        source: bytes,
        properties_start: i64,
        properties_end: i64,
        body_start: i64,
        body_end: i64,
        persistent: bool,
    ) -> i64:
        """Appends one message; returns its offset.

        Properties and body are slices of `source`, copied once. Cost: about 0.15 us for 1 KiB, CRC and header included.
        A persistent message is safe when `Storage.on_commit` names the generation it was appended in; a transient one
        is never waited for. Raises: LogFailed.
        """
        writer = self._writer
        if writer is None:
            writer = self._open_batch(persistent)
        elif self._count > 0 and (
            self._count >= RECORDS_MAX
            or persistent != self._persistent
            or len(writer) + route.fixed_size + 16 + (body_end - body_start) + (properties_end - properties_start)
            > RECORDS_SIZE_BYTES_MAX
        ):
            self._close_batch()
            writer = self._open_batch(persistent)
        elif self._count == 0:
            writer = self._open_batch(persistent)
        write_record(writer, route, self._count, source, properties_start, properties_end, body_start, body_end)
        body_size: i64 = body_end - body_start
        self._count += 1
        self._body_bytes += body_size
        self.record_count += 1
        self.size_bytes += body_size
        offset: i64 = self.next_offset
        self.next_offset = offset + 1
        return offset

    def append_parts(self, route: RecordRoute, properties: bytes, body: bytes, persistent: bool) -> i64:
        """As `append`, for a message whose parts are two objects. Costs one more copy of both."""
        source = properties + body
        return self.append(route, source, 0, len(properties), len(properties), len(source), persistent)

    def append_large(
        self, route: RecordRoute, properties: bytes, parts: list[bytes], body_size: i64, persistent: bool
    ) -> i64:
        """As `append`, for a large message whose body is at hand in parts: they go to the file as they are, in a batch
        of their own. Cost: their CRC. Raises: LogFailed.
        """
        if self._count > 0:
            self._close_batch()
        self._open_batch(persistent)
        before, behind = around_body(route, properties, body_size)
        self._count = 1
        self._body_bytes = body_size
        self.record_count += 1
        self.size_bytes += body_size
        offset: i64 = self.next_offset
        self.next_offset = offset + 1
        self._close(before, [*parts, behind])
        return offset

    def append_tombstone(self, route: RecordRoute, properties: bytes) -> i64:
        """Appends a record with no value, persistent: in a compacted log its key ends here. Raises: LogFailed."""
        if self._count > 0:
            self._close_batch()
        write_tombstone(self._open_batch(True), route, 0, properties)
        self._count = 1
        self.record_count += 1
        self.next_offset += 1
        return self.next_offset - 1

    def recount(self) -> None:
        """The cleaner has put other segments into the log: the totals follow."""
        for cursor in self._cursors:
            cursor.leave_batch()
        self._flush_runs()
        self._recount()

    def begin_transaction(self) -> None:
        """What is appended until `end_transaction` is there after a crash as a whole or not at all.

        Both calls and the appends between them belong into one loop turn, with no read, write or other append between.
        Raises: LogFailed.
        """
        if self._count > 0:
            self._close_batch()
        self._ensure_open()
        self._transaction_start = self.next_offset
        self._sequence = 0

    def end_transaction(self) -> None:
        """Ends it: one batch stands for itself, several are followed by a commit marker, which takes an offset."""
        start: i64 = self._transaction_start
        if start < 0:
            raise ValueError("no transaction has begun")
        if self._sequence == 0:  # nothing closed since: the batch's own checksum makes it whole
            self._transaction_start = -1
            if self._count > 0:
                self._close_batch()
            return
        if self._count > 0:
            self._close_batch()
        self._batches.append(
            close_batch(
                self._context.scratch,
                COMMIT_RECORDS,
                self.next_offset,
                1,
                self.log.next_epoch(),
                LOG_APPEND_TIME | TRANSACTIONAL | CONTROL,
                self._timestamp_ms,
                0,
                start,
                -1,
                start,
            )
        )
        self.next_offset += 1
        self._transaction_start = -1

    def append_prepared(self, prepared: Prepared) -> i64:
        """What was prepared, closed, as one transaction; returns the offset of its first record.

        Cost: 1 us and the CRC per batch of 64 records. Raises: LogFailed.
        """
        self.begin_transaction()
        self._timestamp_ms = self._context.clock.time_ms()
        first: i64 = self.next_offset
        for batch in prepared.batches:
            self._persistent = batch.persistent
            self._count = batch.count
            self._body_bytes = batch.body_bytes
            self.next_offset += batch.count
            self.record_count += batch.count
            self.size_bytes += batch.body_bytes
            self._close(batch.records)
        self.end_transaction()
        return first

    def _ensure_open(self) -> None:
        if not self._ready:
            self.recover()
        if self.failed:
            raise LogFailed(self.name)
        if not self._dirty:
            self._mark_dirty()

    def _mark_dirty(self) -> None:
        self._dirty = True
        self._context.dirty.append(self)

    def _wake(self) -> None:
        """Something is to be written, which may wait for the next tick."""
        context = self._context
        if context.paced:
            self._late = True
            context.late.append(self)
        else:
            self._mark_dirty()

    def _open_batch(self, persistent: bool) -> BytesWriter:
        self._ensure_open()
        writer = self._writer
        if writer is None:
            writers = self._context.writers
            writer = writers.pop() if writers else BytesWriter()
            self._writer = writer
        self._persistent = persistent
        self._timestamp_ms = self._context.clock.time_ms()
        return writer

    def _close_batch(self) -> None:
        writer = self._writer
        if writer is None:
            return
        self._close(writer.getvalue())
        if len(writer) > _KEPT_WRITER_SIZE:
            self._writer = None
        else:
            writer.truncate(0)

    def _close(self, records: bytes, more: list[bytes] = _NO_PARTS) -> None:
        """The `_count` records that end below `next_offset` are a batch. more: what follows `records` in it."""
        attributes: i64 = LOG_APPEND_TIME
        if not self._persistent:
            attributes |= TRANSIENT
        producer: i64 = NO_PRODUCER
        sequence: i64 = -1
        if self._transaction_start >= 0:
            attributes |= TRANSACTIONAL
            producer = self._transaction_start
            sequence = self._sequence
            self._sequence += self._count
        self._batches.append(
            close_batch(
                self._context.scratch,
                records,
                self.next_offset - self._count,
                self._count,
                self.log.next_epoch(),
                attributes,
                self._timestamp_ms,
                self._body_bytes,
                producer,
                sequence,
                self._transaction_start,
                more,
            )
        )
        if self._persistent and self.log.durable:
            self.needs_commit = True
        self._count = 0
        self._body_bytes = 0

    # -- settling

    def settle(self, offset: i64, body_size_bytes: i64 = 0) -> None:
        """The message at `offset` is done with. Each offset once; twice does no harm but to `size_bytes`.

        body_size_bytes: of its body, so that `size_bytes` follows; left out, `size_bytes` is too large until its
        segment is drained, and a limit in bytes would drop what is within it. (After a restart it is also off where a
        segment mixes persistent and settled transient messages.) Cost: 10 ns in order, some 0.3 us where a new run
        begins.
        """
        self.record_count -= 1
        self.size_bytes -= body_size_bytes
        if offset == self._run_next and offset < self._run_limit:
            self._run_next = offset + 1
            self._run_bytes += body_size_bytes
            return
        self._begin_run(offset, offset, body_size_bytes)

    def settle_with_turn(self) -> None:
        """What was settled is in the file before a byte of this turn goes to a socket: of what a consumer does not
        answer nothing else would tell that it was given away, and what was purged is gone when its client hears so.
        """
        self._settle_due = True
        if not self._dirty:
            self._mark_dirty()

    def settle_range(self, first: i64, last: i64, body_size_bytes: i64 = 0) -> None:
        """Settles all of `first`..`last`, both inclusive, whether live or not. Cost: per segment, not per message."""
        if last < first:
            return
        if self._count > 0 or self._batches or self._runs or self._run_first >= 0:
            self._write_now()  # so that the count of live ones is taken from what is there
        if not self._ready:
            self.recover()
        if not self._dirty:
            self._mark_dirty()
        self.log.settle(first, last, body_size_bytes)
        self._forget_returned(first, last)
        self._recount()

    def pass_older(self, offset: i64, until_ms: i64, count_max: i64, settles: bool) -> tuple[i64, i64, i64]:
        """Goes over what is live from `offset` on in batches that were appended at `until_ms` (wall clock) or before.

        settles: it is settled on the way. Whole batches, until `count_max` messages were met; it stops before one that
        is younger, is not in memory, or is not written yet. None of them is unacked. Returns (where to go on, how many
        they were, bytes of their bodies). Cost: some 50 ns a message. Raises: OSError when the disk does not answer.
        """
        count: i64 = 0
        size: i64 = 0
        if self._runs or self._run_first >= 0 or not self._ready:
            self._write_now()  # so that nothing is counted that was settled before
        end: i64 = self.log.synced_end if self.failed else self.log.end
        place = self._own_cursor()
        while count < count_max and offset < end:
            cursor = place.batch_at(offset, _nothing)
            if cursor is None or cursor.timestamp_ms > until_ms or cursor.base_offset >= end:
                break
            segment = self.log.segment_of(cursor.base_offset)
            live: i64 = 0
            live_bytes: i64 = 0
            try:
                live, live_bytes = cursor.pass_over(offset, segment.settled if segment is not None else None)
            except BadRecord:
                break  # `read` knows what to do
            first: i64 = max(offset, cursor.base_offset)
            last: i64 = cursor.last_offset
            offset = last + 1
            if live > 0 and settles:
                # As many as the run is long: what of it was settled before is added again when the run is.
                self.record_count -= last - first + 1
                self.size_bytes -= live_bytes
                if first == self._run_next and first < self._run_limit:
                    self._run_next = offset
                    self._run_bytes += live_bytes
                else:
                    self._begin_run(first, last, live_bytes)
            count += live
            size += live_bytes
        return offset, count, size

    def _begin_run(self, first: i64, last: i64, body_size_bytes: i64) -> None:
        if not self._ready:
            self.recover()
            self.record_count -= last - first + 1
            self.size_bytes -= body_size_bytes
        if not self._dirty and not self._late:
            self._wake()
        if self._run_first >= 0:
            self._runs.append((self._run_first, self._run_next - 1, self._run_bytes))
        self._run_first = first
        self._run_next = last + 1
        segment = self.log.segment_of(first)
        self._run_limit = segment.end if segment is not None else _NO_LIMIT
        self._run_bytes = body_size_bytes

    def mark_delivered(self, offset: i64) -> None:
        """`offset` is about to be given to a consumer; the mark reaches the file with `write`. Cost: 5 ns."""
        if offset > self.delivered_mark:
            self.delivered_mark = offset
            if not self._dirty:
                self._mark_dirty()

    def mark_returned(self, offset: i64, delivery_count: i64) -> None:
        """`offset` was given back, and has been delivered `delivery_count` times."""
        self.returned[offset] = delivery_count
        self._returns.append(offset)
        if not self._dirty:
            self._mark_dirty()

    def redelivered(self, offset: i64) -> bool:
        """Whether a consumer may have seen it: in an earlier life of the broker, or because it was given back."""
        if offset < self._seen_end:
            return True
        return len(self.returned) > 0 and offset in self.returned

    def _forget_returned(self, first: i64, last: i64) -> None:
        returned = self.returned
        if last - first < 2 * len(returned):
            for offset in range(first, last + 1):
                returned.pop(offset, None)
        else:
            for offset in [each for each in returned if first <= each <= last]:
                del returned[offset]

    def _flush_runs(self) -> None:
        runs = self._runs
        if self._run_first >= 0:
            runs.append((self._run_first, self._run_next - 1, self._run_bytes))
            self._run_first = -1
            self._run_next = -1
            self._run_bytes = 0
        if not runs:
            return
        self._runs = []
        if len(runs) > 1:
            runs.sort()
        first: i64 = 0
        last: i64 = 0
        size: i64 = 0
        low, high, size = runs[0]
        for index in range(1, len(runs)):
            first, last, more = runs[index]
            segment = self.log.segment_of(low)
            if first == high + 1 and segment is not None and first < segment.end:
                high = last
                size += more
            else:
                self._settle_run(low, high, size)
                low, high, size = first, last, more
        self._settle_run(low, high, size)

    def _settle_run(self, first: i64, last: i64, body_size_bytes: i64) -> None:
        live: i64 = self.log.settle(first, last, body_size_bytes)
        self.record_count += last - first + 1 - live  # those that were settled before, or never written
        if self.returned:
            self._forget_returned(first, last)

    # -- reading

    @property
    def cursor(self) -> Cursor:
        return self._own_cursor()

    def _own_cursor(self) -> LocalCursor:
        cursor = self._cursor
        if cursor is None:
            cursor = self._cursor = LocalCursor(self, self._context.ahead)
        return cursor

    def new_cursor(self) -> Cursor:
        return LocalCursor(self, self._context.ahead)

    def read_end(self) -> i64:
        """Where reading ends. What was appended and settled is written first: readers look at files alone."""
        if not self._ready:
            self.recover()
        if self._count > 0 or self._batches or self._runs or self._run_first >= 0:
            self._write_now()
        return self.log.synced_end if self.failed else self.next_offset

    def lose(self, first: i64, last: i64) -> None:
        """For a cursor: a batch with a good checksum holds no records: a defect of the program that wrote it."""
        segment = self.log.segment_of(first)
        if segment is not None:
            self.record_count -= self.log.note_lost(segment, first, last)
            self.lost = [*self.lost, (first, last)]
            logger.error("queue %s: offsets %d to %d are no records", self.name, first, last)
            if not self._dirty:
                self._mark_dirty()

    def note_lost(self, lost: list[tuple[int, int]], live: i64) -> None:
        """For a cursor: these ranges could not be read, `live` of them were not settled."""
        self.lost = self.lost + lost
        self.record_count -= live
        if not self._dirty:
            self._mark_dirty()

    def note_cursor(self, cursor: LocalCursor) -> None:
        """There is one more."""
        self._cursors.append(cursor)

    def _release_cursors(self) -> None:
        for cursor in self._cursors:
            cursor.release()

    def forget_cursor(self, cursor: LocalCursor) -> None:
        """It is closed."""
        if cursor in self._cursors:
            self._cursors.remove(cursor)

    # -- the end of a turn

    def write(self) -> None:
        """What was appended and delivered since the last call reaches the files, with what was settled if that may not
        wait or has to be written to anyway. Raises nothing: see `failed` and `take_failed_ranges`.
        """
        if not self._ready:
            self.recover()
        if self._count > 0 or self._batches:
            self._write_batches()
        paced = self._context.paced
        log = self.log
        due = self._settle_due or not paced
        if self.delivered_mark > log.marked:
            log.mark_delivered(self.delivered_mark, self._ahead())
            due = True
        if due or self._returns or log.settled_files.pending:
            self._write_settled()
            if not paced:
                log.flush_index()
        elif log.failed:
            self.failed = True
        if paced and not self._late:
            self._late = True
            self._context.late.append(self)
        writer = self._writer
        if writer is not None:
            self._writer = None
            if len(self._context.writers) < _POOL_MAX:
                self._context.writers.append(writer)
        self._dirty = False

    def tick(self) -> bool:
        """Between two turns, 50 ms after what is written at the latest. True: wanted again in 50 ms, the store is busy.

        Nothing that was appended is waiting for `write`. Cost: 0.1 us and what there is to write. Raises nothing.
        """
        log = self.log
        mark = self.delivered_mark
        delivered: i64 = mark - self._tick_mark
        self._tick_mark = mark
        pace: i64 = self._pace * 3 // 4
        self._pace = delivered if delivered > pace else pace
        self._steady = self._steady + 1 if delivered > 0 else 0
        busy = self._pace > 0 or self.next_offset > self._tick_end or self._run_first >= 0
        self._tick_end = self.next_offset
        if delivered > 0 and mark + delivered > log.marked:
            ahead = self._ahead()
            if ahead > 0:
                log.mark_delivered(mark, ahead)
        self._write_settled()
        self._ticks += 1
        if log.unpublished and not log.failed and (not busy or self._ticks % _PUBLISH_TICKS == 0):
            log.publish()
        if not busy or self._ticks % _INDEX_TICKS == 0:
            log.flush_index()
        self._late = busy
        return busy

    def write_late(self) -> None:
        """What waits for the next tick is written, and the tick still comes: by it alone time is told."""
        self._write_settled()

    def _ahead(self) -> i64:
        """How far the delivery mark goes beyond the last delivery: what some three ticks bring, if deliveries have gone
        on for a while. A burst has an exact mark: who takes ten messages finds ten redelivered after a kill.
        """
        ahead: i64 = self._pace * 3
        if ahead < 6 or self._steady < _STEADY_TICKS:
            return 0
        return ahead if ahead < AHEAD_MAX else AHEAD_MAX

    def _write_settled(self) -> None:
        """What was settled, delivered and given back reaches the files."""
        self._settle_due = False
        self._flush_runs()
        log = self.log
        if self._returns:
            for offset in self._returns:
                count = self.returned.get(offset)
                if count is not None:
                    log.mark_returned(offset, count)
            self._returns = []
        log.flush()
        if not log.cleaning:
            log.settled_files.rewrite(log.marked, self.returned)
        if log.failed:
            self.failed = True

    def _write_now(self) -> None:
        if not self._ready:
            self.recover()
        if self._count > 0 or self._batches:
            self._write_batches()
        self._flush_runs()

    def _write_batches(self) -> None:
        if self._count > 0:
            self._close_batch()
        batches = self._batches
        if batches:
            self._batches = []
            done: i64 = self.log.append(batches)
            total: i64 = len(batches)
            index: i64 = 0
            size: i64 = 0
            while index < done:
                size += batches[index].size
                index += 1
            if self.log.durable:
                self.written_bytes += size
            else:
                size = self.log.spilled(size)
                if size > 0:
                    self.written_bytes += size
                    self.needs_commit = True
            if done < total:
                self._flush_runs()
                self._not_written(batches, done)

    def _not_written(self, batches: list[ClosedBatch], done: i64) -> None:
        self.write_failed = True
        if self.log.failed:
            self.failed = True
        first: i64 = -1
        last: i64 = -1
        for index in range(done, len(batches)):
            batch = batches[index]
            if batch.attributes & CONTROL:
                continue  # a commit marker is nobody's message
            if first >= 0 and batch.base_offset != last + 1:
                self.failed_ranges.append((first, last))
                first = -1
            if first < 0:
                first = batch.base_offset
            last = batch.last_offset
        if first >= 0:
            self.failed_ranges.append((first, last))
        self._recount()

    def flush_batches(self) -> None:
        """Writes what is in the open batch, so that the log is all there is: for retention and the cleaner."""
        if not self._dirty:
            self._mark_dirty()
        self._write_now()

    # -- for Storage

    def collect(self, part: JobPart, settled_too: bool = True) -> None:
        """Moves what needs a sync into `part`; settlements alone only when `settled_too`."""
        self.log.collect(part, settled_too)

    def synced(self, part: JobPart, group_size: int = 1) -> None:
        """A job is done. group_size: how many stores it was for; those of a large one tell readers outside later."""
        late = self._context.paced and group_size >= _GROUP_LARGE
        self.log.synced(part, self._context.clock.time_ms(), not late)
        if self.log.failed:
            self.failed = True
        self.safety_moved()
        if late and not self._late and self.log.unpublished:
            self._wake()

    def finish(self) -> None:
        """A clean stop is at hand: everything is written, totals and indexes too. Raises nothing."""
        self.write()
        self._write_settled()
        self.log.finish()

    def drop_reading(self) -> None:
        """The queue is deleted: nobody waits for what was to be read."""
        self._release_cursors()

    def shed(self) -> None:
        """Gives up descriptors, also of what is unsynced: the next job syncs the whole disk."""
        if self.log.shed():
            self._release_cursors()

    def release(self) -> bool:
        """Gives up descriptors and buffers; False if something is unsynced."""
        if self._dirty or not self.log.release():
            return False
        self._release_cursors()
        return True


@final
class LocalCursor(Cursor):
    """A place in a local log: the batch it stands in, and the bytes around that."""

    def __init__(self, store: LocalLog, ahead: ReadAhead | None) -> None:
        self._store: LocalLog = store
        self._reader: LogReader = LogReader(store.log, ahead)
        self._batch: BatchCursor | None = None
        self.waiting: bool = False
        store.note_cursor(self)

    def read(self, offset: i64, size_bytes_max: i64) -> Fetch:
        return self._read(offset, size_bytes_max, None)

    def read_at_hand(self, offset: i64, size_bytes_max: i64, arrived: Callable[[], None]) -> Fetch:
        return self._read(offset, size_bytes_max, arrived)

    def read_first(self, offset: i64, arrived: Callable[[], None]) -> Record | None:
        fetch = self._read(offset, 1, arrived)
        if not fetch.waiting:
            self.release()
        return fetch.records[0] if fetch.records else None

    def _read(self, offset: i64, size_bytes_max: i64, arrived: Callable[[], None] | None) -> Fetch:
        store = self._store
        self.waiting = False
        end = store.read_end()
        records: list[Record] = []
        budget: i64 = max(size_bytes_max, 1)
        while budget > 0 and offset < end:
            batch = self.batch_at(offset, arrived)
            if batch is None or batch.base_offset >= end:
                break
            segment = store.log.segment_of(batch.base_offset)
            set_ = segment.settled if segment is not None else None
            try:
                budget = batch.read(offset, set_, store.returned, budget, records)
            except BadRecord:
                self._batch = None
                store.lose(max(offset, batch.next_offset), batch.last_offset)
                offset = batch.last_offset + 1
                continue
            offset = batch.next_offset
        return Fetch(records, offset, self.waiting)

    def batch_at(self, offset: i64, arrived: Callable[[], None] | None) -> BatchCursor | None:
        """The batch with `offset`, or the first behind it, where this place is in it already or goes to it. None at the
        end; also, with `arrived`, while the disk is asked for it, which `waiting` tells. Raises: OSError.
        """
        batch = self._batch
        if batch is None or batch.remaining == 0 or offset < batch.next_offset or offset > batch.last_offset:
            if arrived is not None and not self._reader.at_hand(offset, arrived):
                self.waiting = True
                return None
            batch = self._reader.cursor(offset)
            if self._reader.lost:
                self._store.note_lost(self._reader.lost, self._reader.lost_live)
                self._reader.lost = []
                self._reader.lost_live = 0
            self._batch = batch
        return batch

    def leave_batch(self) -> None:
        """Other segments are in the log: the next reading looks its place up."""
        self._batch = None

    def release(self) -> None:
        self._batch = None
        self._reader.release()

    def close(self) -> None:
        self.release()
        self._store.forget_cursor(self)


def _nothing() -> None:
    """Who settles what is old asks again by itself."""
