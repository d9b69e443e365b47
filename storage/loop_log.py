"""`GroupCommitLog`: a local log as the loop turn and the group commit use it; and `LogContext`, shared by all of
them.

At the end of a turn the group commit writes each log in `LogContext.dirty` once. A tick, every 50 ms, writes the
logs in `late`. A log is in a list only once, and only if it has something to write. Its parts (log/appender.py,
acks/acks.py, log/cursor.py) know the log by this class: through it they ask for a write and update its counts.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64

from amqpd.storage.acks.ack_set import COUNT_MAX, DELIVERY_COUNT_BITS
from amqpd.storage.filesystem import Clock
from amqpd.storage.queue_log import LogFailed, QueueLog
from amqpd.storage.sync_job import JournalSwitch, SyncPart
from amqpd.storage.worker import ReadAhead

DIRTY_MAX: Final[i64] = 256
_NONE_RETURNED: Final[dict[int, int]] = {}  # shared, must stay empty


@final
class LogContext:
    """State shared by all logs of a process: dirty logs, spare writers, clock, read-ahead, the journal's switch."""

    def __init__(self, clock: Clock, ahead: ReadAhead | None) -> None:
        self.clock: Clock = clock
        self.ahead: ReadAhead | None = ahead
        self.dirty: list[GroupCommitLog] = []
        # Write at most this many logs before other work runs. The group commit adapts it to recent write times.
        self.dirty_max: i64 = DIRTY_MAX
        self.has_ticks: bool = False  # True: `tick` is called every 50 ms for the logs in `late`
        self.late: list[GroupCommitLog] = []
        self.writers: list[BytesWriter] = []
        self.scratch: BytesWriter = BytesWriter()
        self.capture: JournalSwitch = JournalSwitch()


class GroupCommitLog(QueueLog):
    """A local log, as loop turns and the group commit write and sync it. `LocalLog` is the only subclass.

    Attributes:
        ready: recovery is complete and the counts are correct.
        is_enqueued: the log waits for the next sync job.
        is_journaled: some of its data is only in the journal.
        needs_commit: since it was last gathered, something was appended for which a confirm waits.
        write_failed: an append of the running turn could not be written, perhaps by a read.
        is_group_failed: an append of an ended turn could not be written; the next group that is submitted fails.
        written_bytes: since `group_commit.write` last reset it.
        last_turn: the last turn that wrote it.
        dirty, deferred: the log is in `LogContext.dirty` or `late`.
    """

    def __init__(
        self, context: LogContext, vhost_id: str, queue_id: str, name: str, directory: str, ready: bool
    ) -> None:
        super().__init__(vhost_id, queue_id, name, directory, True)
        self.context: LogContext = context
        self.ready: bool = ready
        self.is_enqueued: bool = False
        self.is_journaled: bool = False
        self.needs_commit: bool = False
        self.write_failed: bool = False
        self.is_group_failed: bool = False
        self.written_bytes: i64 = 0
        self.last_turn: i64 = 0
        self.returned: dict[int, int] = _NONE_RETURNED  # of live messages: offset -> packed count, due time
        self.dirty: bool = False
        self.deferred: bool = False

    # -- for the parts of the log

    def ensure_open(self) -> None:
        """Prepare for an append. Raises: LogFailed; as `recover`."""
        if not self.ready:
            self.recover()
        if self.failed:
            raise LogFailed(self.name)
        if not self.dirty:
            self.mark_dirty()

    def mark_dirty(self) -> None:
        """Write the log at the end of this turn."""
        if not self.dirty:
            self.dirty = True
            self.context.dirty.append(self)

    def mark_dirty_later(self) -> None:
        """Write the log at the next tick."""
        if self.dirty or self.deferred:
            return
        if self.context.has_ticks:
            self.deferred = True
            self.context.late.append(self)
        else:
            self.mark_dirty()

    def recompute_counts(self) -> None:
        """Compute the counts again after live messages changed."""
        raise NotImplementedError

    def read_end(self) -> i64:
        """Write what was appended and settled, and return the offset where reading ends. Readers see only files."""
        raise NotImplementedError

    def mark_returned(self, offset: i64, delivery_count: i64) -> None:
        self.mark_delayed(offset, delivery_count, 0)

    def returned_offsets(self) -> list[int]:
        return list(self.returned)

    def due_ms(self, offset: i64) -> i64:
        return self.returned.get(offset, 0) >> DELIVERY_COUNT_BITS

    def delivery_count(self, offset: i64) -> i64:
        return self.returned.get(offset, 0) & COUNT_MAX

    # -- for the group commit

    @property
    def unsynced(self) -> bool:
        """True if a sync job is needed."""
        raise NotImplementedError

    def write(self) -> None:
        """Write appends, deliveries and, if necessary, settled offsets since the last call.

        Settled offsets are written if they must not wait, or if the file is written anyway.

        Raises nothing: see `failed` and `take_failed_ranges`.
        """
        raise NotImplementedError

    def tick(self) -> bool:
        """Write deferred data between two turns, at most 50 ms old.

        Return True if the log is busy and needs the next tick.

        All appends are already written. Cost: 0.1 us plus the writes. Raises nothing.
        """
        raise NotImplementedError

    def write_late(self) -> None:
        """Write settled, delivered and returned offsets.

        The next tick still runs, because ticks measure time. Raises nothing.
        """
        raise NotImplementedError

    @property
    def has_unwritten_acks(self) -> bool:
        """True if settled offsets are not written yet."""
        raise NotImplementedError

    def write_acks(self) -> None:
        """Write appends, then settled offsets, between two reads of one turn. Raises nothing.

        The end of the turn and the next tick still run.
        """
        raise NotImplementedError

    def collect(self, part: SyncPart, settled_too: bool = True) -> None:
        """Move what needs a sync into `part`; settled offsets alone only if `settled_too`."""
        raise NotImplementedError

    @property
    def has_unsynced_acks(self) -> bool:
        """True if `.settled` files are written and not synced."""
        raise NotImplementedError

    def collect_background(self, part: SyncPart) -> None:
        """Move files whose bytes the journal has, and settled offsets, into `part`."""
        raise NotImplementedError

    def background_synced(self, part: SyncPart) -> None:
        """Handle the end of a job with a part of `collect_background`."""
        raise NotImplementedError

    def synced(self, part: SyncPart, group_size: int = 1) -> None:
        """Handle the end of a sync job.

        Args:
            group_size: logs in the job. Logs of a large job publish the high watermark later.
        """
        raise NotImplementedError

    def close_unsynced_files(self) -> None:
        """Close descriptors, also unsynced ones: the next job then syncs the whole disk."""
        raise NotImplementedError
