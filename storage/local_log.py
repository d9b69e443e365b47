"""The log of one queue on this machine's disk: messages in, offsets out, and a memory of what was settled.

`append` writes into the open batch, `settle` extends a run; neither makes an object per message nor a system call.
`write`, once per loop turn, closes the batch and writes all of the turn's batches in one `writev`. After that a kill of
the process loses no message; after the sync that the group commit (commit/) sees to, a power cut neither.

What was settled is written by `tick`, up to 50 ms later and for all of that while together, when the storage has a
clock to call it (`LogContext.paced`), else by `write` too. So a kill may bring back what was settled within the last
50 ms, as redelivered. The delivery mark precedes the deliveries; while they go on without a pause it runs ahead of
them, so that it need not be written with every turn: after a kill up to AHEAD_MAX messages may be called redelivered
that nobody has seen.

Offsets rise by one with each append and are never used twice, also when a write fails. `record_count` and `size_bytes`
(of bodies) are what is in the log and not settled; both are true from `recover` on, which the first use calls by
itself.

Order of writes: batches, then settlements and delivery marks, the latter before a byte of a delivery reaches a socket.

Its parts, each with one idea: the `Appender` (log/appender.py), the `CursorSet` (log/cursor.py), the `QueueAcks`
(storage/acks/acks.py; none where nobody settles), and beneath them the `Log` of segments (log/log.py). This file is
what they are together: a queue's log, a turn's, a job's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64, mypyc_attr

from amqpd.storage.acks.acks import QueueAcks
from amqpd.storage.log import writer
from amqpd.storage.log.appender import Appender
from amqpd.storage.log.cursor import CursorSet, offset_before
from amqpd.storage.log.log import Log
from amqpd.storage.log.prepared import PreparedTransaction
from amqpd.storage.log.producer_state import Producers
from amqpd.storage.log.record import BadRecord, RecordRoute
from amqpd.storage.loop_log import GroupCommitLog, LogContext
from amqpd.storage.queue_log import Cursor
from amqpd.storage.sync_job import SyncPart

_GROUP_LARGE: Final = 9  # logs
# Ticks of 50 ms between two that do this for a log that is busy; one that comes to rest does both at once.
_PUBLISH_TICKS: Final[i64] = 4
_INDEX_TICKS: Final[i64] = 20


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


class LocalLog(GroupCommitLog):
    """The log of one queue in segments on this disk. Made by `Storage` only. Loop thread only. Subclassed by
    `ReplicatedLog` alone (cluster/replicated_log.py).

    torn_bytes: cut off at recovery. appender: what else may be put at its end.
    """

    def __init__(
        self,
        context: LogContext,
        log: Log,
        vhost_id: str,
        queue_id: str,
        name: str,
        keeper: LogKeeper,
        ready: bool,
    ) -> None:
        super().__init__(context, vhost_id, queue_id, name, log.directory, ready)
        self.log: Log = log
        self.torn_bytes: i64 = 0
        self._keeper: LogKeeper = keeper
        self.appender: Appender = Appender(self, log)
        self._cursors: CursorSet = CursorSet(log)
        self._settlements: QueueAcks | None = None
        # for `tick`
        self._tick_end: i64 = 0
        self._ticks: i64 = 0

    # -- its life

    def recover(self) -> None:
        """See `QueueLog.recover`. Cost: after a clean stop some 0.2 ms and 0.3 us per settlement entry; after a kill
        besides 25 ms per 64 MiB written since the recovery point. Raises: OSError; UnknownFormat.
        """
        if not self.ready:
            self._keeper.recover(self)
            self.ready = True

    def open_soon(self, done: Callable[[], None]) -> bool:
        return self._keeper.open_soon(self, done)

    def remove(self) -> None:
        self._keeper.delete_queue(self)

    def retire(self, done: Callable[[], None]) -> None:
        self._keeper.retire_queue(self, done)

    def recovered(
        self, delivered_mark: i64, seen_end: i64, returned: dict[int, int], lost: list[tuple[int, int]]
    ) -> None:
        """What recovery found, besides the log itself.

        delivered_mark: as the files tell it. seen_end: offsets below may have been delivered; when that is more (after
        a power cut), the files tell so with the first write.
        """
        log = self.log
        self._tick_end = log.end
        if seen_end - 1 > delivered_mark:  # goes with the first entry of this life, whose boot id would deny it
            log.mark_delivered(seen_end - 1, 0)
        log.delivered_mark = seen_end - 1
        self._settlements = None
        if seen_end > 0 or returned:
            self._settlements = QueueAcks(self, log, seen_end - 1, returned)
        self.lost = lost
        self.next_offset = log.end
        self.recount()

    def recount(self, seen_end: i64 = 0) -> None:
        """Take the counts from the segments: a failed write, a cleaning or a range has changed what is live.

        seen_end: what is live below may have been delivered. Cost: a step per segment.
        """
        self.changed_beneath(seen_end)
        settlements = self._settlements
        if settlements is not None:
            settlements.flush_runs()
        count = 0
        size = 0
        for segment in self.log.segments:
            live = segment.live
            if live > 0 and not segment.gone:
                count += live
                size += max(0, segment.body_bytes - segment.settled_body_bytes)
        self.record_count = count
        self.size_bytes = size
        if self.recounted is not None:
            self.recounted()

    def changed_beneath(self, seen_end: i64) -> None:
        """As `recount`, by who sees to the counts: cursors look up their places, what was delivered is noted."""
        self._cursors.leave_batches()
        if seen_end > 0:
            self._begin_settling().seen(seen_end)

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
        return self.appender.append(route, source, properties_start, properties_end, body_start, body_end, persistent)

    def append_large(
        self, route: RecordRoute, properties: bytes, parts: list[bytes], body_size: i64, persistent: bool
    ) -> i64:
        return self.appender.append_large(route, properties, parts, body_size, persistent)

    def append_tombstone(self, route: RecordRoute, properties: bytes) -> i64:
        return self.appender.append_tombstone(route, properties)

    def append_prepared(self, prepared: PreparedTransaction) -> i64:
        return self.appender.append_prepared(prepared)

    def producers(self) -> Producers:
        """See `QueueLog.producers`; remembered over restarts (storage/log/producer_state.py)."""
        if not self.ready:
            self.recover()
        if self._producers is None:
            if self.log.producers is None:
                self.log.producers = Producers()
            self._producers = self.log.producers
        return self._producers

    def set_producer(self, producer_id: i64, epoch: i64, sequence: i64) -> None:
        self.appender.set_producer(producer_id, epoch, sequence)

    def begin_transaction(self) -> None:
        self.appender.begin_transaction()

    def end_transaction(self) -> None:
        self.appender.end_transaction()

    def flush_batches(self) -> None:
        self.mark_dirty()
        self._write_now()

    # -- safety

    @property
    def high_watermark(self) -> i64:
        return self.log.watermark.offset

    # -- reading

    @property
    def cursor(self) -> Cursor:
        return self._cursors.own(self)

    def new_cursor(self) -> Cursor:
        return self._cursors.new(self)

    def read_end(self) -> i64:
        self._write_now()
        return self.log.watermark.offset if self.failed else self.next_offset

    def offset_before(self, timestamp_ms: i64) -> i64:
        self._write_now()
        return offset_before(self.log, timestamp_ms)

    # -- settling

    def settle(self, offset: i64, body_size_bytes: i64 = 0) -> None:
        """See `QueueLog.settle`.

        body_size_bytes: left out, `size_bytes` is too large until its segment is drained, and a limit in bytes would
        drop what is within it.
        """
        settlements = self._settlements
        if settlements is None:
            settlements = self._begin_settling()
        settlements.settle(offset, body_size_bytes)

    def _begin_settling(self) -> QueueAcks:
        """The first time since recovery, which may find that it is not."""
        if not self.ready:
            self.recover()
        settlements = self._settlements
        if settlements is None:
            settlements = self._settlements = QueueAcks(self, self.log, -1, {})
        return settlements

    def settle_range(self, first: i64, last: i64, body_size_bytes: i64 = 0) -> None:
        """See `QueueLog.settle_range`. Cost: per segment, not per message."""
        if last < first:
            return
        self._write_now()  # so that the count of live ones is taken from what is there
        self.mark_dirty()
        self.log.settle(first, last, body_size_bytes)
        settlements = self._settlements
        if settlements is not None:
            settlements.forget_returned(first, last)
        self.recount()

    def settle_with_turn(self) -> None:
        settlements = self._settlements
        if settlements is not None:
            settlements.due = True
        self.mark_dirty()

    def pass_older(self, offset: i64, until_ms: i64, count_max: i64, settles: bool) -> tuple[i64, i64, i64]:
        """See `QueueLog.pass_older`. Cost: some 50 ns a message."""
        count: i64 = 0
        size: i64 = 0
        settlements = self._begin_settling()
        if settlements.waiting:
            self._write_now()  # so that nothing is counted that was settled before
        log = self.log
        end: i64 = log.watermark.offset if self.failed else log.end
        place = self._cursors.own(self)
        while count < count_max and offset < end:
            batch = place.batch_at(offset, _nothing)
            if batch is None or batch.timestamp_ms > until_ms or batch.base_offset >= end:
                break
            segment = log.segment_of(batch.base_offset)
            live: i64 = 0
            live_bytes: i64 = 0
            try:
                live, live_bytes = batch.pass_over(offset, segment.settled if segment is not None else None)
            except BadRecord:
                break  # `read` knows what to do
            first: i64 = max(offset, batch.base_offset)
            offset = batch.last_offset + 1
            if live > 0 and settles:
                settlements.settle_run(first, offset - 1, live_bytes)
            count += live
            size += live_bytes
        return offset, count, size

    @property
    def delivered_mark(self) -> i64:
        """The highest offset that was given to a consumer, in this life or, as far as is known, before it; -1: none."""
        settlements = self._settlements
        return settlements.delivered_mark if settlements is not None else -1

    def mark_delivered(self, offset: i64) -> None:
        settlements = self._settlements
        if settlements is None:
            settlements = self._begin_settling()
        settlements.mark_delivered(offset)

    def forget_delivered(self) -> None:
        if self._settlements is not None:
            self._settlements.delivered_mark = -1  # the clean-shutdown mark says so

    def mark_delayed(self, offset: i64, delivery_count: i64, due_ms: i64) -> None:
        settlements = self._settlements
        if settlements is None:
            settlements = self._begin_settling()
        settlements.mark_returned(offset, delivery_count, due_ms)

    def redelivered(self, offset: i64) -> bool:
        settlements = self._settlements
        return settlements is not None and settlements.redelivered(offset)

    def seen_earlier(self, offset: i64) -> bool:
        settlements = self._settlements
        return settlements is not None and settlements.seen_earlier(offset)

    # -- the end of a turn

    def write(self) -> None:
        if not self.ready:
            self.recover()
        self.appender.write()
        paced = self.context.has_ticks
        log = self.log
        settlements = self._settlements
        due = not paced
        if settlements is not None and settlements.tell_delivered_mark():
            due = True
        if due or log.settled_files.pending:
            self.write_late()
            if not paced:
                log.flush_index()
        elif log.failed:
            self.failed = True
        if paced and not self.deferred:
            self.deferred = True
            self.context.late.append(self)
        self.appender.give_writer_back()
        self.dirty = False

    def tick(self) -> bool:
        log = self.log
        settlements = self._settlements
        busy = self.next_offset > self._tick_end
        if settlements is not None and settlements.tick():
            busy = True
        self._tick_end = self.next_offset
        self.write_late()
        self._ticks += 1
        if log.watermark.unpublished and not log.failed and (not busy or self._ticks % _PUBLISH_TICKS == 0):
            log.publish()
        if not busy or self._ticks % _INDEX_TICKS == 0:
            log.flush_index()
        self.deferred = busy
        return busy

    def write_late(self) -> None:
        settlements = self._settlements
        if settlements is not None:
            settlements.note_all()
        log = self.log
        log.flush()
        if not log.cleaning:
            log.settled_files.rewrite(log.delivered_mark, self.returned)
        if log.failed:
            self.failed = True

    @property
    def settles(self) -> bool:
        return self._settlements is not None and self._settlements.waiting

    def write_settled(self) -> None:
        self._write_now()  # a settlement of an offset that is in no file would count for another message
        self.write_late()

    def _write_now(self) -> None:
        """The segments know all there is."""
        if not self.ready:
            self.recover()
        self.appender.write()
        settlements = self._settlements
        if settlements is not None:
            settlements.flush_runs()

    # -- the group commit

    @property
    def unsynced(self) -> bool:
        return self.log.dirty

    def collect(self, part: SyncPart, settled_too: bool = True) -> None:
        self.in_job = True
        self.log.collect(part, settled_too)

    def synced(self, part: SyncPart, group_size: int = 1) -> None:
        self.in_job = False
        late = self.context.has_ticks and group_size >= _GROUP_LARGE
        self.log.synced(part, self.context.clock.time_ms(), not late)
        if self.log.failed:
            self.failed = True
        self.safety_moved()
        if late and self.log.watermark.unpublished:
            self.mark_dirty_later()

    def finish(self) -> None:
        """A clean stop is at hand: everything is written, totals and indexes too. Raises nothing."""
        self.write()
        self.write_late()
        writer.finish(self.log)

    def let_go(self) -> None:
        """The queue is deleted. Its parts get another owner, in no list, so that no circle of references stays."""
        self._cursors.let_go()
        self.recounted = None
        nobody = GroupCommitLog(self.context, self.vhost_id, self.queue_id, self.name, self.directory, True)
        nobody.next_offset = self.next_offset
        nobody.failed = nobody.deleted = nobody.dirty = nobody.deferred = True
        self.appender.owner = nobody
        settlements = self._settlements
        if settlements is not None:
            settlements.owner = nobody

    def close_unsynced_files(self) -> None:
        if self.log.shed():
            self._cursors.release()

    def release(self) -> bool:
        """Gives up descriptors and buffers; False if something is unsynced."""
        if self.dirty or not self.log.release():
            return False
        self._cursors.release()
        return True


def _nothing() -> None:
    """Who settles what is old asks again by itself."""
