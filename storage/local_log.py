"""`LocalLog`: the log of one queue on the local disk.

`append` writes into the open batch, and `ack` extends a run of offsets. Neither makes an object per message or a
system call. `write` runs once per loop turn, closes the batch and writes all batches of the turn with one `writev`.
From then on a kill of the process loses no message. After the sync of the group commit, a power cut loses none
either.

If the storage has a clock (`LogContext.has_ticks`), `tick` writes settled offsets, at most 50 ms later and many
together; otherwise `write` does. So a kill may bring back messages settled in the last 50 ms, as redelivered.

The delivered mark is written before the deliveries are sent. During steady delivery it runs ahead, so that not
every turn writes it. After a kill, up to AHEAD_MAX messages may then be marked redelivered that no consumer
received.

Invariants:
- Offsets rise by one per append and are never used twice, even after a failed write.
- `record_count` and `size_bytes` (of bodies) describe live messages. They are correct after `recover`, which the
  first use calls.
- A write puts batches first, then settled offsets and delivered marks. The marks are in the file before a delivery
  is on a socket.

Parts: `Appender` (log/appender.py), `CursorSet` (log/cursor.py), `QueueAcks` (acks/acks.py; absent if no message
was settled), and `Log`, the segments (log/log.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64, mypyc_attr

from amqpd.storage.acks.acks import QueueAcks
from amqpd.storage.log import writer
from amqpd.storage.log.appender import Appender
from amqpd.storage.log.cursor import CursorSet, latest_time_ms, log_start, offset_before, segment_start
from amqpd.storage.log.log import Log
from amqpd.storage.log.prepared import PreparedTransaction
from amqpd.storage.log.producer_state import Producers
from amqpd.storage.log.record import BadRecord, RecordRoute
from amqpd.storage.loop_log import GroupCommitLog, LogContext
from amqpd.storage.queue_log import Cursor
from amqpd.storage.sync_job import SyncPart

_GROUP_LARGE: Final = 9  # logs in one sync: from here on `tick` publishes the high watermark
# A busy log does these in every Nth tick of 50 ms, an idle one does both at once.
_PUBLISH_TICKS: Final[i64] = 4
_INDEX_TICKS: Final[i64] = 20


@mypyc_attr(allow_interpreted_subclasses=True)
class LogKeeper:
    """Opens and removes the logs of a data directory. `Storage` implements it; its module imports this one."""

    def recover(self, store: LocalLog) -> None:
        """Recover the log from the disk. Raises: OSError; UnknownFormat; DamagedLog."""
        raise NotImplementedError

    def open_soon(self, store: LocalLog, done: Callable[[], None]) -> bool:
        raise NotImplementedError

    def delete_queue(self, store: LocalLog) -> None:
        raise NotImplementedError

    def retire_queue(self, store: LocalLog, done: Callable[[], None]) -> None:
        raise NotImplementedError


class LocalLog(GroupCommitLog):
    """The log of one queue in segments on the local disk.

    Only `Storage` creates one; cluster/replicated_log.py has the only subclass. Loop thread only.

    Attributes:
        appender: the end of the log.
    """

    def __init__(
        self, context: LogContext, log: Log, vhost_id: str, queue_id: str, name: str, keeper: LogKeeper, ready: bool
    ) -> None:
        super().__init__(context, vhost_id, queue_id, name, log.directory, ready)
        self.log: Log = log
        self._keeper: LogKeeper = keeper
        self.appender: Appender = Appender(self, log)
        self._cursors: CursorSet = CursorSet(log)
        self._acks: QueueAcks | None = None
        # state of `tick`
        self._tick_end: i64 = 0
        self._ticks: i64 = 0

    # -- opening and removal

    def recover(self) -> None:
        """See `QueueLog.recover`. Raises: OSError; UnknownFormat.

        Cost: after a clean stop about 0.2 ms plus 0.3 us per entry of settled offsets. After a kill also 25 ms per
        64 MiB written since the recovery point.
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
        """Take over the result of recovery, except the log itself.

        Args:
            delivered_mark: as stored in the files.
            seen_end: offsets below it may have been delivered. If it is higher than the stored mark (after a power
                cut), the next write stores it, at the latest that of the next delivery.
        """
        log = self.log
        self._tick_end = log.end
        # The entry needs the boot id of this process: it is written together with the first entry of this process.
        if seen_end - 1 > delivered_mark:
            log.mark_delivered(seen_end - 1, 0)
        log.delivered_mark = seen_end - 1
        self._acks = None
        if seen_end > 0 or returned:
            self._acks = QueueAcks(self, log, seen_end - 1, returned)
            self._acks.mark_waits = seen_end - 1 > delivered_mark
        self.lost = lost
        self.next_offset = log.end
        self.recompute_counts()

    def recompute_counts(self) -> None:
        """Compute the counts from the segments again, after a failed write, a compaction or `ack_range`.

        Cost: a step per segment.
        """
        self.on_segments_changed(0)
        acks = self._acks
        if acks is not None:
            acks.flush_runs()
        count = 0
        size = 0
        for segment in self.log.segments:
            live = segment.live
            if live > 0 and not segment.is_removed:
                count += live
                size += max(0, segment.body_bytes - segment.settled_body_bytes)
        self.record_count = count
        self.size_bytes = size
        if self.on_counts_changed is not None:
            self.on_counts_changed()

    def on_segments_changed(self, seen_end: i64) -> None:
        """Update cursors and delivered marks after segments changed. The caller updates the counts.

        Args:
            seen_end: live messages below it may have been delivered.
        """
        self._cursors.reset_positions()
        if seen_end > 0:
            self._ensure_acks().mark_delivered_below(seen_end)

    # -- append

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
        """See `QueueLog.producers`. They survive a restart (log/producer_state.py)."""
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

    # -- high watermark

    @property
    def high_watermark(self) -> i64:
        return self.log.watermark.offset

    @property
    def last_stable_offset(self) -> i64:
        return self.log.stable_end()

    def on_not_written(self, first: i64, last: i64) -> None:
        if self.log.transactions is not None:
            self.log.transactions.undo_from(first)
        super().on_not_written(first, last)

    @property
    def write_error(self) -> str:
        error = self.log.error
        return "" if error is None else str(error.strerror)

    # -- read

    @property
    def cursor(self) -> Cursor:
        return self._cursors.queue_cursor(self)

    def new_cursor(self) -> Cursor:
        return self._cursors.new(self)

    def read_end(self) -> i64:
        self._write_now()
        return self.log.watermark.offset if self.failed else self.next_offset

    def offset_before(self, timestamp_ms: i64) -> i64:
        self._write_now()
        return offset_before(self.log, timestamp_ms)

    def log_start(self) -> i64:
        return log_start(self.log)

    def segment_start(self) -> i64:
        return segment_start(self.log)

    def latest_time_ms(self) -> i64:
        self._write_now()
        return latest_time_ms(self.log)

    # -- settle

    def ack(self, offset: i64, body_size_bytes: i64 = 0) -> None:
        """See `QueueLog.ack`.

        Args:
            body_size_bytes: without it `size_bytes` is too large until the segment is removed, and a limit in bytes
                would drop messages too early.
        """
        acks = self._acks
        if acks is None:
            acks = self._ensure_acks()
        acks.ack(offset, body_size_bytes)

    def _ensure_acks(self) -> QueueAcks:
        """Return the acks of this log; create them if recovery left none."""
        if not self.ready:
            self.recover()
        acks = self._acks
        if acks is None:
            acks = self._acks = QueueAcks(self, self.log, -1, {})
        return acks

    def ack_range(self, first: i64, last: i64, body_size_bytes: i64 = 0) -> None:
        """See `QueueLog.ack_range`. Cost: per segment, not per message."""
        if last < first:
            return
        self._write_now()  # the live messages are counted in what is written
        self.mark_dirty()
        self.log.ack(first, last, body_size_bytes)
        acks = self._acks
        if acks is not None:
            acks.forget_returned(first, last)
        self.recompute_counts()

    def write_acks_this_turn(self) -> None:
        acks = self._acks
        if acks is not None:
            acks.due = True
        self.mark_dirty()

    def skip_older(self, offset: i64, until_ms: i64, count_max: i64, settles: bool) -> tuple[i64, i64, i64]:
        """See `QueueLog.skip_older`. Cost: about 50 ns per message."""
        count: i64 = 0
        size: i64 = 0
        acks = self._ensure_acks()
        if acks.has_unflushed_runs:
            self._write_now()  # otherwise settled messages would be counted
        log = self.log
        end: i64 = log.watermark.offset if self.failed else log.end
        place = self._cursors.queue_cursor(self)
        while count < count_max and offset < end:
            batch = place.batch_at(offset, _nothing)
            if batch is None or batch.timestamp_ms > until_ms or batch.base_offset >= end:
                break
            segment = log.segment_of(batch.base_offset)
            live: i64 = 0
            live_bytes: i64 = 0
            try:
                live, live_bytes = batch.skip_rest(offset, segment.settled if segment is not None else None)
            except BadRecord:
                break  # `read` handles damage
            first: i64 = max(offset, batch.base_offset)
            offset = batch.last_offset + 1
            if live > 0 and settles:
                acks.ack_range(first, offset - 1, live_bytes)
            count += live
            size += live_bytes
        return offset, count, size

    @property
    def delivered_mark(self) -> i64:
        """The highest offset known to be delivered, also before a restart; -1 for none."""
        acks = self._acks
        return acks.delivered_mark if acks is not None else -1

    def mark_delivered(self, offset: i64) -> None:
        acks = self._acks
        if acks is None:
            acks = self._ensure_acks()
        acks.mark_delivered(offset)

    def clear_delivered_mark(self) -> None:
        if self._acks is not None:
            self._acks.delivered_mark = -1  # the clean-shutdown mark stores it

    def mark_delayed(self, offset: i64, delivery_count: i64, due_ms: i64) -> None:
        acks = self._acks
        if acks is None:
            acks = self._ensure_acks()
        acks.mark_returned(offset, delivery_count, due_ms)

    def redelivered(self, offset: i64) -> bool:
        acks = self._acks
        return acks is not None and acks.redelivered(offset)

    def maybe_delivered_before(self, offset: i64) -> bool:
        acks = self._acks
        return acks is not None and acks.maybe_delivered_before(offset)

    # -- end of a loop turn

    def write(self) -> None:
        if not self.ready:
            self.recover()
        self.appender.write()
        paced = self.context.has_ticks
        log = self.log
        acks = self._acks
        due = not paced
        if acks is not None and acks.write_delivered_mark():
            due = True
        if due or log.ack_file_writer.pending:
            self.write_late()
            if not paced:
                log.flush_index()
        elif log.failed:
            self.failed = True
        if paced and not self.deferred:
            self.deferred = True
            self.context.late.append(self)
        self.appender.return_writer()
        self.dirty = False

    def tick(self) -> bool:
        log = self.log
        acks = self._acks
        busy = self.next_offset > self._tick_end
        if acks is not None and acks.tick():
            busy = True
        self._tick_end = self.next_offset
        is_refused = log.refused_errno is not None and len(log.ack_file_writer.pending) > 0 and not log.failed
        if not is_refused or self._ticks % _INDEX_TICKS == 0:
            self.write_late()
        self._ticks += 1
        if log.watermark.unpublished and not log.failed and (not busy or self._ticks % _PUBLISH_TICKS == 0):
            log.publish()
        if not busy or self._ticks % _INDEX_TICKS == 0:
            log.flush_index()
        if len(log.ack_file_writer.pending) > 0 and not log.failed:
            busy = True  # a full disk refused them; they are tried again once a second
        self.deferred = busy
        return busy

    def write_late(self) -> None:
        acks = self._acks
        if acks is not None:
            acks.write_all()
        log = self.log
        log.flush()
        if not log.cleaning:
            log.ack_file_writer.rewrite(log.delivered_mark, self.returned)
        if log.failed:
            self.failed = True

    @property
    def has_unwritten_acks(self) -> bool:
        return self._acks is not None and self._acks.has_unflushed_runs

    def write_acks(self) -> None:
        # If its message were in no file, the next message with this offset would count as settled.
        self._write_now()
        self.write_late()

    def _write_now(self) -> None:
        """Write everything, so that the segments are complete."""
        if not self.ready:
            self.recover()
        self.appender.write()
        acks = self._acks
        if acks is not None:
            acks.flush_runs()

    # -- group commit

    @property
    def unsynced(self) -> bool:
        return self.log.dirty

    def collect(self, part: SyncPart, settled_too: bool = True) -> None:
        self.log.collect(part, settled_too)

    def synced(self, part: SyncPart, group_size: int = 1) -> None:
        late = self.context.has_ticks and group_size >= _GROUP_LARGE
        has_aborted = self.log.synced(part, self.context.clock.time_ms(), not late)
        if self.log.failed:
            self.failed = True
        if has_aborted:
            self.mark_dirty()
            self.recompute_counts()
        self.on_high_watermark()
        if late and self.log.watermark.unpublished:
            self.mark_dirty_later()

    @property
    def has_unsynced_acks(self) -> bool:
        return len(self.log.unsynced.ack_files) > 0

    def collect_background(self, part: SyncPart) -> None:
        self.log.collect_background(part)

    def background_synced(self, part: SyncPart) -> None:
        self.log.background_synced(part)
        if self.log.failed:
            self.failed = True
        elif self.log.watermark.unpublished:
            self.mark_dirty_later()

    def write_shutdown_state(self) -> None:
        """Write everything for a clean stop, totals and indexes too. Raises nothing."""
        self.write()
        self.write_late()
        writer.finish(self.log)

    def dispose(self) -> None:
        """Detach a deleted log: its parts get a dummy owner, so that no reference cycle remains."""
        self._cursors.dispose()
        self.on_counts_changed = None
        dummy_owner = GroupCommitLog(self.context, self.vhost_id, self.queue_id, self.name, self.directory, True)
        dummy_owner.next_offset = self.next_offset
        dummy_owner.failed = dummy_owner.deleted = dummy_owner.dirty = dummy_owner.deferred = True
        self.appender.owner = dummy_owner
        acks = self._acks
        if acks is not None:
            acks.owner = dummy_owner

    def close_unsynced_files(self) -> None:
        if self.log.close_descriptors():
            self._cursors.release()

    def release_files(self) -> bool:
        """Close descriptors and release buffers. Return False if something is unsynced."""
        if self.dirty or not self.log.release():
            return False
        self._cursors.release()
        return True


def _nothing() -> None:
    """Ignore the callback: the caller of `skip_older` asks again."""
