"""Interfaces of a queue's log: `QueueLog`, `Cursor`, and the waiters for a high watermark.

`append` adds a message at the end, at an offset one above the last; no offset is used twice. A `Cursor` reads from
any offset. The log also records which messages are settled, delivered or returned. The *log end offset* is the
offset of the next append. Everything below the *high watermark* survives a crash; a confirm waits for it.

`LocalLog` (local_log.py) is the log on a local disk. One group commit syncs all local logs of a data directory, and
`GroupCommit.on_commit` names the synced generation. A log with `local = False` moves its high watermark by itself,
and its users call `when_safe`.

All methods run on the event loop's thread. The module is compiled, because every message passes through it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from amqpd.storage.log.prepared import PreparedTransaction
from amqpd.storage.log.producer_state import Producers
from amqpd.storage.log.record import Record, RecordRoute, RecordViews, views_of


@final
class HighWatermarkWaiters:
    """Callbacks that wait for offsets of one log, sorted by offset. Each call looks only at the head of the queue."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Callable[[bool], None]]] = deque()
        self._unwritten: list[Callable[[bool], None]] = []  # callbacks for messages whose write failed

    def wait(self, offset: i64, done: Callable[[bool], None]) -> None:
        """Call `done(True)` when the high watermark is above `offset`, `done(False)` if the log fails first.

        Cost: O(1) for the highest offset so far. Only readers of streams ask for lower ones, and rarely.
        """
        waiting = self._waiting
        waiting.append((offset, done))
        place = len(waiting) - 1
        while place > 0 and waiting[place - 1][0] > offset:
            waiting[place] = waiting[place - 1]
            place -= 1
        waiting[place] = (offset, done)

    def on_high_watermark(self, high_watermark: i64) -> None:
        """Call the callbacks of all offsets below `high_watermark`, in the order of their offsets."""
        if self._unwritten:
            unwritten = self._unwritten
            self._unwritten = []
            for done in unwritten:
                done(False)
        waiting = self._waiting
        while waiting and waiting[0][0] < high_watermark:
            waiting.popleft()[1](True)

    def fail_all(self) -> None:
        """Fail every callback: the log has failed."""
        waiting = self._waiting
        while waiting:
            waiting.popleft()[1](False)

    def on_not_written(self, first: i64, last: i64) -> None:
        """Mark the callbacks of `first` to `last` as failed: these offsets are a gap that the high watermark skips.

        The next `on_high_watermark` calls them, because a write is running now.
        """
        waiting = self._waiting
        self._unwritten += [each[1] for each in waiting if first <= each[0] <= last]
        left = [each for each in waiting if each[0] < first or each[0] > last]
        waiting.clear()
        waiting.extend(left)


_NO_RANGES: Final[list[tuple[int, int]]] = []  # shared, must stay empty


class LogUnusable(Exception):
    """The log cannot be opened, and a retry would fail too.

    Either a newer version wrote its files (`UnknownFormat`), or they are damaged and recovery is strict
    (`DamagedLog`).
    """


class LogFailed(Exception):
    """The log accepts no more appends after a permanent write or sync error. Older messages are still readable."""


@final
class ReadResult:
    """The result of one read.

    Attributes:
        records: live records in order.
        next_offset: where the next read starts.
        waiting: the read ended before a batch that is not in memory; the disk read has begun.
    """

    def __init__(self, records: list[Record], next_offset: i64, waiting: bool) -> None:
        self.records: list[Record] = records
        self.next_offset: i64 = next_offset
        self.waiting: bool = waiting


@final
class BatchBytes:
    """The result of a read.

    Attributes:
        parts: whole batches, one each.
        size_bytes: the size of all parts.
        next_offset: where the next read starts.
        is_full: the read ended before a batch that did not fit.
        waiting: the read ended before a batch that is not in memory; the disk read has begun.
        abort_markers: (producer, offset) of each abort marker in `parts`.
    """

    def __init__(self, next_offset: i64) -> None:
        self.abort_markers: list[tuple[int, int]] = []
        self.parts: list[bytes] = []
        self.size_bytes: i64 = 0
        self.next_offset: i64 = next_offset
        self.is_full: bool = False
        self.waiting: bool = False


@final
class TimeSearch:
    """The result of a step of a search for a time.

    Attributes:
        offset: the offset of the first record of that time or later; -1 if it is not found yet.
        timestamp_ms: the time of that record, since 1970.
        next_offset: where the search continues; -1 if it is over.
        waiting: the disk is being read; `arrived` will be called. Otherwise the caller may continue.
    """

    def __init__(self, next_offset: i64) -> None:
        self.offset: i64 = -1
        self.timestamp_ms: i64 = -1
        self.next_offset: i64 = next_offset
        self.waiting: bool = False


@mypyc_attr(allow_interpreted_subclasses=True)
class Cursor:
    """The position of one reader in a log. Cursors of the same log are independent."""

    def read(self, offset: i64, size_bytes_max: i64) -> ReadResult:
        """Return the live messages from `offset`: at least one if there is one, then up to `size_bytes_max`.

        A message counts as its body and properties plus 64 bytes. Waits for the disk.

        Cost: about 0.3 us per message of 1 KiB from the page cache after a read that ended here, else also a look-up.
        Raises: OSError if the disk read fails.
        """
        raise NotImplementedError

    def read_if_cached(self, offset: i64, size_bytes_max: i64, arrived: Callable[[], None]) -> ReadResult:
        """Like `read`, but do not wait for the disk: return what precedes the first batch that is not in memory.

        If the result is `waiting`, `arrived` is called on the loop when the batch is in memory.
        """
        raise NotImplementedError

    def read_safe(self, offset: i64, size_bytes_max: i64, arrived: Callable[[], None]) -> ReadResult:
        """Like `read_if_cached`, but only below the last stable offset, and without writing the open batch.

        A result without records that is not `waiting` means that there are none below that offset.
        """
        raise NotImplementedError

    def views_below_hw(self, offset: i64, size_bytes_max: i64, arrived: Callable[[], None]) -> RecordViews:
        """Like `read_safe`, but return views: no object per record and no copy of bodies."""
        fetch = self.read_safe(offset, size_bytes_max, arrived)
        return views_of(fetch.records, fetch.next_offset, fetch.waiting)

    def batches_below_hw(
        self, offset: i64, size_bytes_max: i64, one: bool, arrived: Callable[[], None], committed: bool = True
    ) -> BatchBytes:
        """Return the record batches from the one with `offset` on, as they are stored, below the high watermark.

        Do not wait for the disk: return what precedes the first batch that is not in memory. If the result is
        `waiting`, `arrived` is called on the loop when the batch is in memory. Use a cursor for this purpose only.

        Args:
            one: return the first batch even if it has more than `size_bytes_max`.
            committed: read below the last stable offset.

        Batches of aborted transactions are left out, their markers are not.

        Cost: about 10 us per batch (interpreted), and two copies of its bytes. Raises: OSError.
        """
        raise NotImplementedError

    def find_time_below_hw(
        self, offset: i64, timestamp_ms: i64, batches_max: i64, arrived: Callable[[], None], committed: bool = True
    ) -> TimeSearch:
        """Return the first record from `offset` on whose time is `timestamp_ms` (since 1970) or later.

        Do not wait for the disk, as `batches_below_hw`. Use a cursor for this purpose only.

        Args:
            batches_max: the search pauses after so many batches.
            committed: search below the last stable offset.

        Raises: OSError.
        """
        raise NotImplementedError

    def read_settled(self, offset: i64, size_bytes_max: i64, arrived: Callable[[], None]) -> ReadResult:
        """Like `read_if_cached`, but return settled messages that are still in the log instead of live ones.

        An empty result does not mean the end: continue from `next_offset` until it is the log end offset. Use a
        cursor for this purpose only.
        """
        raise NotImplementedError

    def last_batch_offset(self, end: i64, arrived: Callable[[], None]) -> i64:
        """Return the first offset of the last batch that has messages below `end`.

        Args:
            end: at most the last stable offset.
            arrived: called when the disk has answered.

        Returns: `end` if there is no such batch; -1 while the disk is read.
        Raises: OSError.
        """
        raise NotImplementedError

    def read_first(self, offset: i64, arrived: Callable[[], None]) -> Record | None:
        """Return the first live message from `offset`, and release the bytes after it.

        Returns: None if there is none, or while the disk is read. Then `arrived` is called on the loop.
        Raises: OSError.
        """
        raise NotImplementedError

    def read_one(self, offset: i64) -> Record | None:
        """Return the message at `offset`, None if it is settled or does not exist. Waits for the disk.

        Cost: about 10 us from the page cache. Raises: OSError.
        """
        fetch = self.read(offset, 1)
        if fetch.records and fetch.records[0].offset == offset:
            return fetch.records[0]
        return None

    def release(self) -> None:
        """Release buffers and pending disk reads. The cursor remains usable."""
        raise NotImplementedError

    def close(self) -> None:
        """Remove the cursor from the log."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class QueueLog:
    """The log of one queue, as the broker uses it.

    Only methods whose docstring names LogFailed, LogUnusable or OSError raise them; the others raise nothing.

    Attributes:
        vhost_id, queue_id: "" for a log that does not survive the broker.
        name: the queue's name, for log lines and error texts.
        directory: the directory of the files; "" if there are none on this machine.
        record_count, size_bytes: live messages, and the bytes of their bodies.
        next_offset: the log end offset.
        failed: the log accepts no more appends.
        unwritten_end: the offset after the last one that could not be written.
        deleted: the queue was deleted; the log must not be used.
        transaction_bytes_max: limit for the records of one transaction; -1 for none.
        lost: ranges of offsets that damage made unreadable.
    """

    def __init__(self, vhost_id: str, queue_id: str, name: str, directory: str, local: bool) -> None:
        self.vhost_id: str = vhost_id
        self.queue_id: str = queue_id
        self.name: str = name
        self.directory: str = directory
        # True: appends are safe when `GroupCommit.on_commit` names their generation. False: see `when_safe`.
        self.local: bool = local
        self.next_offset: i64 = 0
        self.record_count: i64 = 0
        self.size_bytes: i64 = 0
        self.failed: bool = False
        self.unwritten_end: i64 = 0
        self.deleted: bool = False
        self.transaction_bytes_max: i64 = -1
        self.lost: list[tuple[int, int]] = _NO_RANGES
        self.failed_ranges: list[tuple[int, int]] = _NO_RANGES  # see `take_failed_ranges`
        # Called when retention, compaction or a failed write changed the counts.
        self.on_counts_changed: Callable[[], None] | None = None
        self._safety: HighWatermarkWaiters | None = None
        self._producers: Producers | None = None

    # -- opening and removal

    def recover(self) -> None:
        """Make the log usable and its counts correct. Waits for the disk. Other methods call it when they need it.

        Raises: OSError; LogUnusable.
        """
        raise NotImplementedError

    def open_soon(self, done: Callable[[], None]) -> bool:
        """Return whether the log is usable now. Otherwise recover it in the background.

        `done` is called on the loop when `recover`, or another `open_soon`, will not wait for the disk.

        Raises: as `recover`.
        """
        raise NotImplementedError

    def remove(self) -> None:
        """Remove the log of a queue that has no row in the metadata."""
        raise NotImplementedError

    def retire(self, done: Callable[[], None]) -> None:
        """Remove the log of a deleted queue.

        `done` is called on the loop when no crash can restore the log. The files are deleted after that.
        """
        raise NotImplementedError

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
        """Append one message and return its offset. Properties and body are slices of `source` and are copied once.

        `local` tells how to learn that a persistent message is safe. No confirm waits for a transient message.

        Raises: LogFailed.
        """
        raise NotImplementedError

    def append_parts(self, route: RecordRoute, properties: bytes, body: bytes, persistent: bool) -> i64:
        """Like `append`, for properties and body in two objects. Cost: one more copy of both."""
        source = properties + body
        return self.append(route, source, 0, len(properties), len(properties), len(source), persistent)

    def append_large(
        self, route: RecordRoute, properties: bytes, parts: list[bytes], body_size: i64, persistent: bool
    ) -> i64:
        """Like `append`, for a large body in parts, which are not joined. Raises: LogFailed."""
        raise NotImplementedError

    def append_tombstone(self, route: RecordRoute, properties: bytes) -> i64:
        """Append a persistent message without a value. Compaction then removes its routing key. Raises: LogFailed."""
        raise NotImplementedError

    def append_prepared(self, prepared: PreparedTransaction) -> i64:
        """Append a prepared transaction and return the offset of its first record. Raises: LogFailed."""
        raise NotImplementedError

    def producers(self) -> Producers:
        """Return the producers of the messages in this log, as `set_producer` and the caller recorded them.

        This base class does not keep them over a restart.
        """
        if self._producers is None:
            self._producers = Producers()
        return self._producers

    def set_producer(self, producer_id: i64, epoch: i64, sequence: i64) -> None:
        """Set the producer's numbers for the next message only. NO_PRODUCER clears them. Not inside a transaction."""

    def begin_transaction(self) -> None:
        """Begin a transaction: after a crash the log has all appends until `end_transaction`, or none.

        Both calls and the appends belong to one loop turn, without a read, write or other append between them.

        Raises: LogFailed.
        """
        raise NotImplementedError

    def end_transaction(self) -> None:
        raise NotImplementedError

    def flush_batches(self) -> None:
        """Write the open batch now, so that `failed_ranges` is complete."""
        raise NotImplementedError

    def take_failed_ranges(self) -> list[tuple[int, int]]:
        """Return the offset ranges (inclusive) that `append` returned since the last call and that were not written.

        They are not in the log, not counted and never used again. The caller nacks and drops these messages.
        """
        ranges, self.failed_ranges = self.failed_ranges, _NO_RANGES
        return ranges

    @property
    def write_error(self) -> str:
        """The reason of the last write to files, if that failed; "" otherwise."""
        return ""

    # -- high watermark

    def location(self) -> dict[str, object]:
        """Return where the log is, for people; nothing if it is on this disk."""
        return {}

    @property
    def high_watermark(self) -> i64:
        """The offset below which no crash removes a message."""
        raise NotImplementedError

    @property
    def last_stable_offset(self) -> i64:
        """The offset below which every transaction is committed or aborted; at most the high watermark.

        Readers of streams end there.
        """
        return self.high_watermark

    def when_safe(self, offset: i64, done: Callable[[bool], None]) -> None:
        """Call `done(True)` on the loop when the high watermark is above `offset`.

        `done(False)` means that the write failed, or that the log failed or was deleted. If the result
        is known, `done` is called before this method returns.
        """
        if offset < self.high_watermark:
            done(True)
        elif self.failed:
            done(False)
        else:
            if self._safety is None:
                self._safety = HighWatermarkWaiters()
            self._safety.wait(offset, done)

    def on_high_watermark(self) -> None:
        """Call waiters after the high watermark rose or the log failed. For subclasses. Cost: 2 ns without waiters."""
        safety = self._safety
        if safety is not None:
            safety.on_high_watermark(self.high_watermark)
            if self.failed:
                safety.fail_all()

    def on_not_written(self, first: i64, last: i64) -> None:
        """Record that these offsets are a gap. For subclasses, which call `on_high_watermark` next."""
        self.unwritten_end = last + 1
        if self._producers is not None:
            self._producers.undo_from(first)
        safety = self._safety
        if safety is not None:
            safety.on_not_written(first, last)

    # -- read

    @property
    def has_lost_offsets(self) -> bool:
        """True if damage made offsets unreadable; `lost` lists them."""
        return len(self.lost) > 0

    @property
    def cursor(self) -> Cursor:
        """The cursor of the queue itself. Other readers use `new_cursor`."""
        raise NotImplementedError

    def new_cursor(self) -> Cursor:
        """Return a new cursor. Cost: 1 us."""
        raise NotImplementedError

    def offset_before(self, timestamp_ms: i64) -> i64:
        """Return an offset at or shortly before the first message appended at `timestamp_ms` (since 1970) or later.

        Returns: the log end offset if there is no such message.
        Cost: a step per segment and three small reads.
        Raises: OSError.
        """
        raise NotImplementedError

    def log_start(self) -> i64:
        """Return the offset of the first record that is left. Compaction and aborted transactions do not move it.

        At most the high watermark.
        """
        raise NotImplementedError

    def segment_start(self) -> i64:
        """Return the lowest offset from which a reader misses nothing: earlier records or segments were removed.

        At most `log_start`. Records that are settled for other reasons, for example as parts of aborted transactions,
        do not move it.
        """
        raise NotImplementedError

    def latest_time_ms(self) -> i64:
        """Return the latest time of a message (since 1970), -1 if there is none.

        Cost: a step per segment. Raises: OSError.
        """
        raise NotImplementedError

    # -- settle

    def ack(self, offset: i64, body_size_bytes: i64 = 0) -> None:
        """Settle the message at `offset`. A second call for the same offset only makes `size_bytes` wrong.

        Args:
            body_size_bytes: subtracted from `size_bytes`.
        """
        raise NotImplementedError

    def ack_range(self, first: i64, last: i64, body_size_bytes: i64 = 0) -> None:
        """Settle `first` to `last`, both inclusive. Offsets that are not live are ignored."""
        raise NotImplementedError

    def write_acks_this_turn(self) -> None:
        """Write settled offsets before any byte of this turn goes to a socket.

        Messages delivered without acks need it, because nothing else records that they left. So does a purge, whose
        messages are gone when the client gets purge-ok.
        """
        raise NotImplementedError

    def when_acks_safe(self, done: Callable[[bool], None]) -> None:
        """Call `done(True)` on the loop when earlier settles are safe, else `done(False)`.

        Safe means: as the group commit of their turn makes them.

        For local logs, only the caller waits for the group of its turn; this method answers at once.
        """
        done(not self.failed or self.deleted)

    def skip_older(self, offset: i64, until_ms: i64, count_max: i64, settles: bool) -> tuple[i64, i64, i64]:
        """Skip live messages from `offset` in batches appended at `until_ms` (wall clock) or earlier.

        The method works on whole batches. It stops after `count_max` messages, and before a batch that is younger,
        not in memory or not written. No message in the range may be unacked.

        Args:
            settles: settle the skipped messages.

        Returns: the next offset, the number of messages, and the bytes of their bodies.
        Raises: OSError if the disk read fails.
        """
        raise NotImplementedError

    def mark_delivered(self, offset: i64) -> None:
        """Record a delivery of `offset`. After a crash, it and all earlier messages count as redelivered."""
        raise NotImplementedError

    def clear_delivered_mark(self) -> None:
        """Forget deliveries at a stop, when no live message is unacked: after a clean stop none is redelivered.

        A log that does not store this reports more messages as redelivered.
        """

    def mark_returned(self, offset: i64, delivery_count: i64) -> None:
        """Record that `offset` was returned to the queue after `delivery_count` deliveries."""
        raise NotImplementedError

    def mark_delayed(self, offset: i64, delivery_count: i64, due_ms: i64) -> None:
        """Like `mark_returned`, and delay the next delivery until `due_ms` (since 1970), also over a restart.

        This base class forgets the time.
        """
        self.mark_returned(offset, delivery_count)

    def returned_offsets(self) -> list[int]:
        """Return the offsets of live messages that were returned. Cost: about 5 ns each."""
        return []

    def due_ms(self, offset: i64) -> i64:
        """Return the due time that `mark_delayed` set for `offset`; 0 if it need not wait."""
        return 0

    def delivery_count(self, offset: i64) -> i64:
        """Return the count that `mark_returned` set for `offset`; 0 if it was not returned."""
        raise NotImplementedError

    def redelivered(self, offset: i64) -> bool:
        """Return whether a consumer may have received it: before a restart, or because it was returned."""
        raise NotImplementedError

    def maybe_delivered_before(self, offset: i64) -> bool:
        """Return whether `offset` may have left the ready order before a restart.

        A consumer may have received it, or it is in another queue as a dead letter. A log that does not know
        returns True more often.
        """
        return self.redelivered(offset)
