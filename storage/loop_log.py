"""A log of this data directory as the loop's turns and the group commit see it (`GroupCommitLog`), and what all of them
share.

A turn writes each log in `LogContext.dirty` once, at its end (group.py); a tick, every 50 ms, those in `late`. A log
enters a list when there is something to write, never twice. The parts of a log (log/appender.py, storage/acks/acks.py,
log/cursor.py) know it as a `GroupCommitLog`: they say by it that there is something to write, and keep its counts.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64

from amqpd.storage.acks.ack_set import COUNT_MAX, TALLY_BITS
from amqpd.storage.filesystem import Clock
from amqpd.storage.queue_log import LogFailed, QueueLog
from amqpd.storage.sync_job import SyncPart
from amqpd.storage.worker import ReadAhead

DIRTY_MAX: Final[i64] = 256
_NONE_RETURNED: Final[dict[int, int]] = {}  # never written to


@final
class LogContext:
    """What all logs of one process share: the turn's dirty ones, spare writers, the clock, the reading ahead."""

    def __init__(self, clock: Clock, ahead: ReadAhead | None) -> None:
        self.clock: Clock = clock
        self.ahead: ReadAhead | None = ahead
        self.dirty: list[GroupCommitLog] = []
        # So many logs are some milliseconds of writing, by what it took of late: then it is the others' turn.
        self.dirty_max: i64 = DIRTY_MAX
        self.has_ticks: bool = False  # somebody calls `tick` for the logs in `late`, every 50 ms
        self.late: list[GroupCommitLog] = []
        self.writers: list[BytesWriter] = []
        self.scratch: BytesWriter = BytesWriter()


class GroupCommitLog(QueueLog):
    """A log of this data directory, as turns and the group commit write and sync it. Subclassed by `LocalLog` alone.

    ready: recovery is done, so that its counts are true. gathered: it waits for the next job. needs_commit: something
    that somebody waits for was appended since it was gathered last. write_failed: or could not be written.
    written_bytes: since `group.write` took them. last_turn: that wrote it. dirty, late: it stands in that list.
    in_job: a job has its share, and is not done.
    """

    def __init__(
        self, context: LogContext, vhost_id: str, queue_id: str, name: str, directory: str, ready: bool
    ) -> None:
        super().__init__(vhost_id, queue_id, name, directory, True)
        self.context: LogContext = context
        self.ready: bool = ready
        self.gathered: bool = False
        self.needs_commit: bool = False
        self.write_failed: bool = False
        self.written_bytes: i64 = 0
        self.last_turn: i64 = 0
        self.in_job: bool = False
        self.returned: dict[int, int] = _NONE_RETURNED  # offset -> tally of what was given back and is live
        self.dirty: bool = False
        self.deferred: bool = False

    # -- for its parts

    def ensure_open(self) -> None:
        """Something is about to be appended. Raises: LogFailed; as `recover`."""
        if not self.ready:
            self.recover()
        if self.failed:
            raise LogFailed(self.name)
        if not self.dirty:
            self.mark_dirty()

    def mark_dirty(self) -> None:
        """Something is to be written at the end of this turn."""
        if not self.dirty:
            self.dirty = True
            self.context.dirty.append(self)

    def mark_dirty_later(self) -> None:
        """Something is to be written, which may wait for the next tick."""
        if self.dirty or self.deferred:
            return
        if self.context.has_ticks:
            self.deferred = True
            self.context.late.append(self)
        else:
            self.mark_dirty()

    def recount(self, seen_end: i64 = 0) -> None:
        """What is live has changed beneath the counts."""
        raise NotImplementedError

    def read_end(self) -> i64:
        """Where reading ends. What was appended and settled is written first: readers look at files alone."""
        raise NotImplementedError

    def mark_returned(self, offset: i64, delivery_count: i64) -> None:
        self.mark_delayed(offset, delivery_count, 0)

    def given_back(self) -> list[int]:
        return list(self.returned)

    def due_ms(self, offset: i64) -> i64:
        return self.returned.get(offset, 0) >> TALLY_BITS

    def delivery_count(self, offset: i64) -> i64:
        return self.returned.get(offset, 0) & COUNT_MAX

    # -- for the group commit

    @property
    def unsynced(self) -> bool:
        """Whether there is something for a job."""
        raise NotImplementedError

    def write(self) -> None:
        """What was appended and delivered since the last call reaches the files, with what was settled if that may not
        wait or has to be written to anyway. Raises nothing: see `failed` and `take_failed_ranges`.
        """
        raise NotImplementedError

    def tick(self) -> bool:
        """Between two turns, 50 ms after what is written at the latest. True: wanted again in 50 ms, the log is busy.

        Nothing that was appended is waiting for `write`. Cost: 0.1 us and what there is to write. Raises nothing.
        """
        raise NotImplementedError

    def write_late(self) -> None:
        """What was settled, delivered and given back reaches the files; the next tick still comes, since by it alone
        time is told. Raises nothing.
        """
        raise NotImplementedError

    @property
    def settles(self) -> bool:
        """Whether something was settled that is not written yet."""
        raise NotImplementedError

    def write_settled(self) -> None:
        """What was settled reaches the files, and before that what was appended. Between two reads of one turn, whose
        end and the next tick still come. Raises nothing.
        """
        raise NotImplementedError

    def collect(self, part: SyncPart, settled_too: bool = True) -> None:
        """Moves what needs a sync into `part`; settlements alone only when `settled_too`."""
        raise NotImplementedError

    def synced(self, part: SyncPart, group_size: int = 1) -> None:
        """A job is done. group_size: how many logs it was for; those of a large one tell readers outside later."""
        raise NotImplementedError

    def close_unsynced_files(self) -> None:
        """Gives up descriptors, also of what is unsynced: the next job syncs the whole disk."""
        raise NotImplementedError
