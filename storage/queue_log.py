"""The log that a queue of the broker holds, whoever keeps it: the classes that `broker/` and `channel/` name.

A log takes messages at its end (`append`), each at an offset that is one above the last and never used twice, and gives
them out again through a `Cursor`, from any offset on. A work queue's log remembers besides what was settled, delivered
and given back. Its *log end offset* is the next one that an append gets; below the *high watermark* everything is safe,
which is what a confirm waits for.

`LocalLog` (local_log.py) is the one on this machine's disk, which all logs of a data directory make safe together.
Another one subclasses `QueueLog` and `Cursor`, and says with `local = False` that its high watermark moves on its own:
see `when_safe`. Everything here is called on the loop's thread, and compiled, since every message passes.

Who waits until a log is safe up to some offset.

A confirm over local logs does not come here: they are made safe together, and `GroupCommit.on_commit` names the
generation (commit/). This is for logs whose high watermark moves on its own, and for whoever waits for one offset of
one log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from amqpd.storage.log.prepared import PreparedTransaction
from amqpd.storage.log.producer_state import Producers
from amqpd.storage.log.record import Record, RecordRoute, RecordViews, places_of


@final
class HighWatermarkWaiters:
    """The waiting of one log, by offset: the first one that is not safe ends each look."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Callable[[bool], None]]] = deque()
        self._unwritten: list[Callable[[bool], None]] = []  # who waited for what could not be written

    def wait(self, offset: i64, done: Callable[[bool], None]) -> None:
        """`done(True)` once the high watermark has passed `offset`, `done(False)` when the log fails before.

        Cost: O(1) where it is the highest offset so far; a stream's readers ask for the lowest, seldom.
        """
        waiting = self._waiting
        waiting.append((offset, done))
        place = len(waiting) - 1
        while place > 0 and waiting[place - 1][0] > offset:
            waiting[place] = waiting[place - 1]
            place -= 1
        waiting[place] = (offset, done)

    def moved(self, high_watermark: i64) -> None:
        """Offsets below `high_watermark` are safe: who waited for them is told, in the order of waiting."""
        if self._unwritten:
            unwritten = self._unwritten
            self._unwritten = []
            for done in unwritten:
                done(False)
        waiting = self._waiting
        while waiting and waiting[0][0] < high_watermark:
            waiting.popleft()[1](True)

    def failed(self) -> None:
        """What is not safe by now will not be."""
        waiting = self._waiting
        while waiting:
            waiting.popleft()[1](False)

    def not_written(self, first: i64, last: i64) -> None:
        """`first` to `last` are a gap now, which the high watermark passes over: who waits for them is told with the
        next call of `moved`, since this is in the middle of a write.
        """
        waiting = self._waiting
        self._unwritten += [each[1] for each in waiting if first <= each[0] <= last]
        left = [each for each in waiting if each[0] < first or each[0] > last]
        waiting.clear()
        waiting.extend(left)


_NO_RANGES: Final[list[tuple[int, int]]] = []  # never written to


class LogUnusable(Exception):
    """The log cannot be opened, and trying again would not help: a newer version wrote its files (`UnknownFormat`), or
    they are damaged and recovery is strict (`DamagedLog`).
    """


class LogFailed(Exception):
    """The log takes nothing more: a write or a sync failed for a reason that does not pass. What is older can be
    read.
    """


@final
class ReadResult:
    """What one reading brought. records: in order, none of them settled. next_offset: where the next reading goes on.

    waiting: it ended before a batch that is not in memory, and the disk is being asked for it.
    """

    def __init__(self, records: list[Record], next_offset: i64, waiting: bool) -> None:
        self.records: list[Record] = records
        self.next_offset: i64 = next_offset
        self.waiting: bool = waiting


@mypyc_attr(allow_interpreted_subclasses=True)
class Cursor:
    """One reader's place in a log. A log has as many as there are readers; none moves another."""

    def read(self, offset: i64, size_bytes_max: i64) -> ReadResult:
        """The live messages from `offset` on: at least one if there is one, then as many as `size_bytes_max` holds.

        Sizes are of bodies and properties, 64 bytes more for each. Waits for the disk. Cost: about 0.3 us for 1 KiB
        from the page cache when it goes on where the last one ended; a look-up else. Raises: OSError when the disk
        does not answer.
        """
        raise NotImplementedError

    def read_if_cached(self, offset: i64, size_bytes_max: i64, arrived: Callable[[], None]) -> ReadResult:
        """As `read`, but does not wait for the disk: what stands before a batch that is not in memory, which may be
        nothing. Where the answer says `waiting`, `arrived` is called on the loop when that batch has come.
        """
        raise NotImplementedError

    def read_safe(self, offset: i64, size_bytes_max: i64, arrived: Callable[[], None]) -> ReadResult:
        """As `read_at_hand`, but nothing at the high watermark or above it; writes nothing. No records, and not
        `waiting`: there are none below it.
        """
        raise NotImplementedError

    def views_below_hw(self, offset: i64, size_bytes_max: i64, arrived: Callable[[], None]) -> RecordViews:
        """As `read_safe`, for who passes bodies on: no object for a record, and no copy of its body."""
        fetch = self.read_safe(offset, size_bytes_max, arrived)
        return places_of(fetch.records, fetch.next_offset, fetch.waiting)

    def read_settled(self, offset: i64, size_bytes_max: i64, arrived: Callable[[], None]) -> ReadResult:
        """As `read_at_hand`, of what is settled and still in the log, instead of what is live. No records do not say
        that there are none behind: the log ends at `next_offset` of it, or it is `waiting`. For a cursor that reads
        nothing else.
        """
        raise NotImplementedError

    def last_batch(self, end: i64, arrived: Callable[[], None]) -> i64:
        """The first offset of the last record batch with messages below `end`, which is the high watermark or below;
        `end` where there is none. -1 while the disk is asked: `arrived` is called when it has answered.
        Raises: OSError.
        """
        raise NotImplementedError

    def read_first(self, offset: i64, arrived: Callable[[], None]) -> Record | None:
        """The first live message from `offset` on; keeps none of the bytes behind it. None also while the disk is asked
        for it: `arrived` is called on the loop when it has come. Raises: OSError.
        """
        raise NotImplementedError

    def read_one(self, offset: i64) -> Record | None:
        """The message at `offset`; None if it is settled or never was. Waits for the disk. Cost: some 10 us from the
        page cache. Raises: OSError.
        """
        fetch = self.read(offset, 1)
        if fetch.records and fetch.records[0].offset == offset:
            return fetch.records[0]
        return None

    def release(self) -> None:
        """Forgets the bytes it holds and what it waits for; it may be used again."""
        raise NotImplementedError

    def close(self) -> None:
        """Its reader is gone: the log forgets it."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class QueueLog:
    """The log of one queue, as the broker calls it. What raises LogFailed, LogUnusable or OSError says so; nothing else
    does.

    vhost_id, queue_id: "" of a log that is gone with the broker. name: the queue's, for what people read. directory: of
    its files, "" where it has none on this machine. record_count, size_bytes (of bodies): what is in the log and not
    settled. next_offset: the log end offset. failed: it takes nothing more. deleted: its queue is, and it is not used
    any more. transaction_bytes_max: of a transaction's records; -1: without a limit. lost: ranges of offsets that could
    not be read any more.
    """

    def __init__(self, vhost_id: str, queue_id: str, name: str, directory: str, local: bool) -> None:
        self.vhost_id: str = vhost_id
        self.queue_id: str = queue_id
        self.name: str = name
        self.directory: str = directory
        # What was appended is safe when `GroupCommit.on_commit` names its generation; else when `when_safe` says so.
        self.local: bool = local
        self.next_offset: i64 = 0
        self.record_count: i64 = 0
        self.size_bytes: i64 = 0
        self.failed: bool = False
        self.deleted: bool = False
        self.transaction_bytes_max: i64 = -1
        self.lost: list[tuple[int, int]] = _NO_RANGES
        self.failed_ranges: list[tuple[int, int]] = _NO_RANGES  # see `take_failed_ranges`
        # Called when counts have changed by themselves: retention, compaction, a write that failed.
        self.recounted: Callable[[], None] | None = None
        self._safety: HighWatermarkWaiters | None = None
        self._producers: Producers | None = None

    # -- its life

    def recover(self) -> None:
        """Makes it ready, waiting for the disk where it has to: its counts are true, and it may be used. Once; every
        other method does it by itself when needed. Raises: OSError; LogUnusable.
        """
        raise NotImplementedError

    def open_soon(self, done: Callable[[], None]) -> bool:
        """Whether it can be used now. Else `done` is called on the loop when `recover` no longer waits for the disk:
        that, or to ask again, makes it ready then. Raises: as `recover`.
        """
        raise NotImplementedError

    def remove(self) -> None:
        """It is not used any more, and goes: of a queue that no metadata knows."""
        raise NotImplementedError

    def retire(self, done: Callable[[], None]) -> None:
        """It is not used any more. `done()` on the loop when it will not come back, whatever crashes; what it holds
        goes after that.
        """
        raise NotImplementedError

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
        """Appends one message; returns its offset. Properties and body are slices of `source`, copied once.

        A persistent message is safe as `local` says; a transient one is never waited for. Raises: LogFailed.
        """
        raise NotImplementedError

    def append_parts(self, route: RecordRoute, properties: bytes, body: bytes, persistent: bool) -> i64:
        """As `append`, for a message whose parts are two objects. Costs one more copy of both."""
        source = properties + body
        return self.append(route, source, 0, len(properties), len(properties), len(source), persistent)

    def append_large(
        self, route: RecordRoute, properties: bytes, parts: list[bytes], body_size: i64, persistent: bool
    ) -> i64:
        """As `append`, for a large message whose body is at hand in parts, which nobody joins. Raises: LogFailed."""
        raise NotImplementedError

    def append_tombstone(self, route: RecordRoute, properties: bytes) -> i64:
        """A persistent message with no value: in a compacted log its routing key ends here. Raises: LogFailed."""
        raise NotImplementedError

    def append_prepared(self, prepared: PreparedTransaction) -> i64:
        """What was prepared, as one transaction; returns the offset of its first record. Raises: LogFailed."""
        raise NotImplementedError

    def producers(self) -> Producers:
        """Who has numbered what is in it: with `set_producer`, and noted by the caller. Not over restarts, where a
        log does not say so.
        """
        if self._producers is None:
            self._producers = Producers()
        return self._producers

    def set_producer(self, producer_id: i64, epoch: i64, sequence: i64) -> None:
        """The next message that is appended has these numbers of its producer; NO_PRODUCER behind it: and no other one.
        Not in a transaction.
        """

    def begin_transaction(self) -> None:
        """What is appended until `end_transaction` is there after a crash as a whole or not at all.

        Both calls and the appends between them belong into one loop turn, with no read, write or other append between.
        Raises: LogFailed.
        """
        raise NotImplementedError

    def end_transaction(self) -> None:
        """Ends it."""
        raise NotImplementedError

    def flush_batches(self) -> None:
        """Writes what was appended now, so that `failed_ranges` says whether it could be. Raises nothing."""
        raise NotImplementedError

    def take_failed_ranges(self) -> list[tuple[int, int]]:
        """Offset ranges (inclusive) that `append` gave out and that could not be written, since the last call.

        They are not in the log, not counted, and never given out again: nack them and forget them.
        """
        ranges, self.failed_ranges = self.failed_ranges, _NO_RANGES
        return ranges

    # -- safety

    def about(self) -> dict[str, object]:
        """What people are told of where it is; nothing of one on this disk."""
        return {}

    @property
    def high_watermark(self) -> i64:
        """Offsets below it are safe: no crash takes them."""
        raise NotImplementedError

    def when_safe(self, offset: i64, done: Callable[[bool], None]) -> None:
        """`done(True)` on the loop once the high watermark has passed `offset`, `done(False)` when it could not be
        written, or the log fails, is deleted or is cut before that; in here where it is known.
        """
        if offset < self.high_watermark:
            done(True)
        elif self.failed:
            done(False)
        else:
            if self._safety is None:
                self._safety = HighWatermarkWaiters()
            self._safety.wait(offset, done)

    def safety_moved(self) -> None:
        """For who implements a log: its high watermark has risen, or it has failed. Cost: 2 ns when nobody waits."""
        safety = self._safety
        if safety is not None:
            safety.moved(self.high_watermark)
            if self.failed:
                safety.failed()

    def safety_not_written(self, first: i64, last: i64) -> None:
        """For who implements a log: these offsets are a gap. `safety_moved` follows."""
        if self._producers is not None:
            self._producers.unwritten(first)
        safety = self._safety
        if safety is not None:
            safety.not_written(first, last)

    # -- reading

    @property
    def degraded(self) -> bool:
        """Whether offsets were lost to damage; `lost` says which."""
        return len(self.lost) > 0

    @property
    def cursor(self) -> Cursor:
        """The place of the queue itself, which others leave alone."""
        raise NotImplementedError

    def new_cursor(self) -> Cursor:
        """A place of one's own. Cost: 1 us."""
        raise NotImplementedError

    def offset_before(self, timestamp_ms: i64) -> i64:
        """An offset from which reading comes to the first message that was appended at `timestamp_ms` (since 1970) or
        later, after few that are older; the log end offset where there is none. Cost: a step per segment, three small
        reads. Raises: OSError.
        """
        raise NotImplementedError

    # -- settling

    def settle(self, offset: i64, body_size_bytes: i64 = 0) -> None:
        """The message at `offset` is done with. Each offset once; twice does no harm but to `size_bytes`.

        body_size_bytes: of its body, so that `size_bytes` follows.
        """
        raise NotImplementedError

    def settle_range(self, first: i64, last: i64, body_size_bytes: i64 = 0) -> None:
        """Settles all of `first`..`last`, both inclusive, whether live or not."""
        raise NotImplementedError

    def settle_with_turn(self) -> None:
        """What was settled is written before a byte of this turn goes to a socket: of what a consumer does not answer
        nothing else would tell that it was given away, and what was purged is gone when its client hears so.
        """
        raise NotImplementedError

    def when_settled(self, done: Callable[[bool], None]) -> None:
        """`done(True)` on the loop once what was settled before is as safe as the commit group of that turn makes it;
        `done(False)` when it never will be. Local logs: that group is who is asked, and has answered.
        """
        done(not self.failed or self.deleted)

    def pass_older(self, offset: i64, until_ms: i64, count_max: i64, settles: bool) -> tuple[i64, i64, i64]:
        """Goes over what is live from `offset` on in batches that were appended at `until_ms` (wall clock) or before.

        settles: it is settled on the way. Whole batches, until `count_max` messages were met; it stops before one that
        is younger, is not in memory, or is not written yet. None of them is unacked. Returns (where to go on, how many
        they were, bytes of their bodies). Raises: OSError when the disk does not answer.
        """
        raise NotImplementedError

    def mark_delivered(self, offset: i64) -> None:
        """`offset` is about to be given to a consumer: after a crash it, and all before it, count as redelivered."""
        raise NotImplementedError

    def forget_delivered(self) -> None:
        """The broker stops, and nobody has anything of what is live here: after a clean stop nothing counts as
        redelivered. A log that cannot tell calls more redelivered than was.
        """

    def mark_returned(self, offset: i64, delivery_count: i64) -> None:
        """`offset` was given back, and has been delivered `delivery_count` times."""
        raise NotImplementedError

    def mark_delayed(self, offset: i64, delivery_count: i64, due_ms: i64) -> None:
        """As `mark_returned`, and it is not to be delivered again before `due_ms` (since 1970), a restart between or
        not. A log that keeps no times forgets that in a restart.
        """
        self.mark_returned(offset, delivery_count)

    def given_back(self) -> list[int]:
        """The offsets of what is live and was given back. Cost: some 5 ns each."""
        return []

    def due_ms(self, offset: i64) -> i64:
        """What `mark_delayed` has said of `offset` last; 0: it is not to wait."""
        return 0

    def delivery_count(self, offset: i64) -> i64:
        """What `mark_returned` has said of `offset` last; 0 where it was not given back."""
        raise NotImplementedError

    def redelivered(self, offset: i64) -> bool:
        """Whether a consumer may have seen it: in an earlier life of the broker, or because it was given back."""
        raise NotImplementedError

    def seen_earlier(self, offset: i64) -> bool:
        """Whether it had left its queue's order in an earlier life of the broker, as far as is known: a consumer may
        have seen it, or another queue have it as a dead letter. A log that cannot tell says so of more.
        """
        return self.redelivered(offset)
