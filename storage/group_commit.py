"""Group commit: makes the appends of many logs and many loop turns safe with one sync job.

**Groups.** Appends of a turn belong to `generation`, read before the `end_of_turn` that writes them. They are safe
when `on_commit` is called with that number. `end_of_turn` writes every dirty log. If the fsync thread is idle, it
submits the group and begins the next one; otherwise the writes of further turns gather in one group. Turns that
only settled messages wait for the sync of the next append, at most 50 ms: a lost settle costs a redelivery and
never a message.

**Ticks.** With `later` (`loop.call_later`), settled offsets are written every 50 ms instead of every turn
(`GroupCommitLog.tick`). With many logs a tick works in slices of WRITE_SLICE_S. A loop turn that lasts longer than
50 ms delays its timers; then `write_overdue_acks` writes settled offsets between two reads.

**The journal.** A job of several logs uses the journal (journal.py) if there is one. Then another job syncs these logs
and their settled offsets in the background: every 50 ms if offsets were settled, at the latest after BACKGROUND_S, and
when the journal needs it.

Everything runs on the event loop's thread. The fsync thread gets immutable jobs and posts the result back. The
functions of this module do the work for hundreds of dirty logs per turn, so the module is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from amqpd.storage.fd_budget import FdBudget
from amqpd.storage.filesystem import Clock, FileSystem
from amqpd.storage.fsync_thread import JOURNAL_FROM, AckAges, FsyncThread, sync_parts
from amqpd.storage.journal import Journal
from amqpd.storage.loop_log import DIRTY_MAX, GroupCommitLog, LogContext
from amqpd.storage.queue_log import QueueLog
from amqpd.storage.sync_job import SyncBatch, SyncPart


@final
class LogSyncPart(SyncPart):
    """The files of one log in a job, with the log that learns the result."""

    def __init__(self, store: GroupCommitLog) -> None:
        super().__init__(store.name, store.directory)
        self.store = store


def write(
    filesystem: FileSystem, stores: list[GroupCommitLog], gathered: list[GroupCommitLog], turn: i64
) -> tuple[i64, bool]:
    """Write the appends of this turn; append logs that need a sync to `gathered`.

    If this opens too many files, the log closes its own at once, unsynced.

    Returns: bytes appended for which a confirm waits, and whether a commit is needed.
    """
    size: i64 = 0
    commit = False
    for store in stores:
        store.write()
        store.last_turn = turn
        if store.write_failed:
            store.write_failed = False
            store.is_group_failed = True
        if filesystem.open_file_count > filesystem.open_file_count_max:
            store.close_unsynced_files()
        # needs_commit: a read or a new segment in this turn may have put the append into an earlier group already.
        # If the sync of that group fails, this group must fail too.
        if not store.is_enqueued and (store.needs_commit or store.is_group_failed or store.unsynced):
            store.is_enqueued = True
            gathered.append(store)
        size += store.written_bytes
        store.written_bytes = 0
        if store.needs_commit or store.is_group_failed:
            store.needs_commit = False
            commit = True
    return size, commit


def tick(
    filesystem: FileSystem, stores: list[GroupCommitLog], gathered: list[GroupCommitLog], busy: list[GroupCommitLog]
) -> bool:
    """Run the tick of each log and append logs that need another one to `busy`. Return whether offsets were settled."""
    settled = False
    for store in stores:
        if store.deleted:
            continue
        if store.has_unwritten_acks:
            settled = True
        if store.tick():
            busy.append(store)
        if filesystem.open_file_count > filesystem.open_file_count_max:
            store.close_unsynced_files()
        if not store.is_enqueued and store.unsynced:
            store.is_enqueued = True
            gathered.append(store)
    return settled


def write_acks(filesystem: FileSystem, stores: list[GroupCommitLog], count_max: i64) -> i64:
    """Write settled offsets of up to `count_max` logs during a turn, and return how many logs wrote.

    The logs stay in their lists, which bring them into the next job.
    """
    count: i64 = 0
    for store in stores:
        if count >= count_max:
            break
        if store.deleted or not store.has_unwritten_acks:
            continue
        store.write_acks()
        count += 1
        if filesystem.open_file_count > filesystem.open_file_count_max:
            store.close_unsynced_files()
    return count


def write_late(filesystem: FileSystem, stores: list[GroupCommitLog], gathered: list[GroupCommitLog]) -> None:
    """Write what could wait for the next tick. The tick still runs."""
    for store in stores:
        if store.deleted:
            continue
        store.write_late()
        if filesystem.open_file_count > filesystem.open_file_count_max:
            store.close_unsynced_files()
        if not store.is_enqueued and store.unsynced:
            store.is_enqueued = True
            gathered.append(store)


def collect(gathered: list[GroupCommitLog], settled_too: bool) -> list[SyncPart]:
    parts: list[SyncPart] = []
    for store in gathered:
        part = LogSyncPart(store)
        store.is_enqueued = False
        part.write_failed = store.is_group_failed
        store.is_group_failed = False
        store.collect(part, settled_too)
        parts.append(part)
    return parts


def collect_background(journaled: list[GroupCommitLog], gathered: list[GroupCommitLog], parts: list[SyncPart]) -> None:
    """Collect what no confirm waits for: the files of logs in `journaled`, and acknowledgements of `gathered` logs."""
    for store in gathered:
        if not store.is_journaled:
            journaled.append(store)
    for store in journaled:
        store.is_journaled = False
        if store.deleted:
            continue
        part = LogSyncPart(store)
        store.collect_background(part)
        if part.files or part.closed:
            parts.append(part)


def have_unsynced_acks(stores: list[GroupCommitLog]) -> bool:
    for store in stores:  # noqa: SIM110  # a generator would cost a nested function when compiled
        if store.has_unsynced_acks:
            return True
    return False


def list_journaled(parts: list[SyncPart], journaled: list[GroupCommitLog]) -> None:
    """Append the logs of the parts that the journal may get to `journaled`."""
    for part in parts:
        if part.journal_path and isinstance(part, LogSyncPart) and not part.store.is_journaled:
            part.store.is_journaled = True
            journaled.append(part.store)


def synced(parts: list[SyncPart], gathered: list[GroupCommitLog]) -> list[QueueLog]:
    """Report a completed job to its logs and return those that failed. Logs with more to sync join `gathered`."""
    failed: list[QueueLog] = []
    count = len(parts)
    for part in parts:
        if not isinstance(part, LogSyncPart):
            continue
        store = part.store
        store.synced(part, count)
        if store.deleted:
            continue
        if part.failed or part.write_failed or store.failed:
            failed.append(store)
        if not store.is_enqueued and store.unsynced:
            store.is_enqueued = True  # files of removed segments remain to be deleted
            gathered.append(store)
    return failed


ACK_DELAY_S: Final = 0.05
BACKGROUND_S: Final = 0.5  # after so long at the latest, what only the journal has is synced
POSTPONE_FROM: Final = 32  # dirty logs
# Seconds of writing to many logs before other work runs; at least DIRTY_MIN logs in each slice.
WRITE_SLICE_S: Final = 0.005
DIRTY_MIN: Final = 64
POSTPONE_S: Final = 0.002


@mypyc_attr(allow_interpreted_subclasses=True)  # tests/limits counts the writes of a turn
class GroupCommit:
    """Writes, syncs and confirms groups of logs.

    A log moves from `dirty` (the turn changed it) to `gathered` (written, needs a sync), then into a job of the
    fsync thread.

    Attributes:
        generation: the group of the running turn's appends. It rises when a group is submitted.
        unsynced_bytes: appended and not synced.
        on_commit: called on the loop with a generation and the logs that failed in it.
        commit_waiting: appends of the current generation are written and wait for the fsync thread.
        journal_from: logs in a job from which on it uses the journal.
        on_journal_wanted: called at the first such job; None if there is no journal to create.
        ack_ages: ages of settled offsets when they were written.
    """

    def __init__(
        self,
        context: LogContext,
        filesystem: FileSystem,
        resources: FdBudget,
        later: Callable[[float, Callable[[], None]], object] | None,
    ) -> None:
        self.generation: int = 1
        self.unsynced_bytes: int = 0
        self.on_commit: Callable[[int, list[QueueLog]], None] = _ignore_commit
        self.commit_waiting: bool = False
        self.ack_ages: AckAges = AckAges()
        self._context: LogContext = context
        self._clock: Clock = context.clock
        self._filesystem: FileSystem = filesystem
        self._resources: FdBudget = resources
        self._later: Callable[[float, Callable[[], None]], object] | None = later
        self._committer: FsyncThread | None = None
        self._job: SyncBatch | None = None
        self._closed: bool = False
        # the next group
        self._gathered: list[GroupCommitLog] = []
        self._gathered_bytes: int = 0
        self._turn: i64 = 0
        self._write_cost_s: float = 0.0  # recent average for one log, when many are written
        self._postponed: bool = False
        # ticks
        self._tick_armed: bool = False
        self._tick_wanted: bool = False  # the tick fell into a turn, and runs at its end
        self._ticking: list[GroupCommitLog] = []  # logs left for the current tick
        # Settled offsets that are not written are younger than this time. -1: none, or not checked since.
        self._unwritten_s: float = -1.0
        # The last job with settled offsets; whether the next job must have them; whether a wake-up is scheduled.
        self._settled_handed_s: float = -ACK_DELAY_S
        self._settled_wanted: bool = False
        self._settle_armed: bool = False
        # The journal
        self.journal_from: i64 = JOURNAL_FROM
        self.on_journal_wanted: Callable[[], None] | None = None
        self._journal: Journal | None = None
        self._background_job: SyncBatch | None = None
        self._journaled: list[GroupCommitLog] = []  # logs with data that only the journal has
        self._background_s: float = 0.0  # when the last background job was submitted
        self._background_armed: bool = False
        self._whole_wanted: bool = False  # the next job must have everything

    def use_journal(self, journal: Journal) -> None:
        """Use the journal from the next job on; the fsync thread knows it."""
        self._journal = journal
        self._context.capture.used = True

    def start(self, committer: FsyncThread) -> None:
        """Set the fsync thread, before the first write. It calls `committed` and `submit_waiting` on the loop."""
        self._committer = committer

    # -- called by the loop turn

    def end_of_turn(self) -> None:
        """Write what the turn changed, and submit the group if the fsync thread is idle. Raises nothing.

        Runs before any delivery of this turn is written to a socket. Cost: 50 ns if nothing changed.
        """
        if not self._context.dirty:
            if self._context.late and not self._tick_armed:
                self._arm_tick()
            return
        self._write_dirty()
        if self._tick_wanted:
            self._tick()
        if self._context.late and not self._tick_armed:
            self._arm_tick()
        if (self._gathered or self.commit_waiting) and self._job is None:
            if self.commit_waiting:
                self._submit_job()
            else:
                self._schedule_wake()

    def write_overdue_acks(self) -> None:
        """Write settled offsets if the tick is overdue. `LoopTurn` calls it between two reads of one turn.

        Cost: 0.1 us; after ACK_DELAY_S a write for each log with settled offsets.
        """
        context = self._context
        if self._later is None or not (context.dirty or context.late or self._ticking):
            return
        now_s = self._clock.monotonic()
        if self._unwritten_s < 0.0:
            self._unwritten_s = now_s
        elif now_s >= self._unwritten_s + ACK_DELAY_S:
            left: i64 = context.dirty_max
            for stores in (self._ticking, context.late, context.dirty):
                left -= write_acks(self._filesystem, stores, left)
            if left < context.dirty_max:
                self.ack_ages.add(now_s - self._unwritten_s)
            if left > 0:  # otherwise logs may remain for the next call
                self._unwritten_s = now_s

    def postpone(self, call: Callable[[], None]) -> bool:
        """Return True to postpone the end of this turn by 2 ms, when `call` runs; more input then shares its writes.

        Only if many logs are dirty and the fsync thread is busy, so that no confirm is delayed. A turn is postponed
        once.
        """
        if self._postponed:
            self._postponed = False
            return False
        later = self._later
        context = self._context
        if later is None or self._job is None or not POSTPONE_FROM <= len(context.dirty) < context.dirty_max:
            return False
        self._postponed = True
        later(POSTPONE_S, call)
        return True

    def flush(self) -> None:
        """Write and submit everything now, also settled offsets alone. A running sync job completes first."""
        if self._context.dirty:
            self._write_dirty()
        if self._tick_wanted:
            self._tick()
        if self._ticking:
            write_late(self._filesystem, self._ticking, self._gathered)
        if self._context.late:
            write_late(self._filesystem, self._context.late, self._gathered)
        if self._context.late and not self._tick_armed:
            self._arm_tick()
        if self._gathered:
            self.commit_waiting = True
            self._settled_wanted = True
            self._whole_wanted = True
        if (self._gathered or self.commit_waiting) and self._job is None:
            self._submit_job()

    def enqueue(self, store: GroupCommitLog) -> None:
        """Put the log into the next job. It has something to sync or delete, but no confirm waits."""
        if not store.is_enqueued:
            store.is_enqueued = True
            self._gathered.append(store)
            self._schedule_wake()

    def remove(self, store: GroupCommitLog) -> None:
        """Remove a log that is being deleted: it is not written or synced again.

        A running job counts as complete for it.
        """
        dirty = self._context.dirty
        if store in dirty:
            dirty.remove(store)
        if store in self._gathered:
            self._gathered.remove(store)
        if store.is_journaled:
            store.is_journaled = False
            self._journaled.remove(store)
        if not (dirty or self._context.late or self._ticking):
            self._unwritten_s = -1.0

    def _write_dirty(self) -> None:
        self._turn += 1
        dirty = self._context.dirty
        count = len(dirty)
        began = self._clock.monotonic() if count >= DIRTY_MIN else 0.0
        size, commit = write(self._filesystem, dirty, self._gathered, self._turn)
        dirty.clear()
        if count >= DIRTY_MIN:
            cost_s = (self._clock.monotonic() - began) / count
            self._write_cost_s += (cost_s - self._write_cost_s) / 4
            fitting: i64 = int(WRITE_SLICE_S / max(self._write_cost_s, 1e-6))
            if fitting > DIRTY_MAX:
                fitting = DIRTY_MAX
            self._context.dirty_max = fitting if fitting > DIRTY_MIN else DIRTY_MIN
        self._gathered_bytes += size
        self.unsynced_bytes += size
        if commit:
            self.commit_waiting = True

    # -- ticks

    def _arm_tick(self) -> None:
        later = self._later
        if later is not None and not self._closed:
            self._tick_armed = True
            later(ACK_DELAY_S, self._tick_due)
            if self._unwritten_s < 0.0:
                self._unwritten_s = self._clock.monotonic()

    def _tick_due(self) -> None:
        self._tick_armed = False
        if not self._closed:
            self._tick_or_wait()

    def _tick_or_wait(self) -> None:
        if self._context.dirty:
            self._tick_wanted = True  # the end of the running turn writes its appends first
            return
        self._tick()
        if self._context.late and not self._tick_armed:
            self._arm_tick()
        if (self._gathered or self.commit_waiting) and self._job is None:
            self._submit_job()

    def _continue_tick(self) -> None:
        """Run the next slice of a tick over many logs."""
        if self._ticking and not self._closed:
            self._tick_or_wait()

    def _tick(self) -> None:
        """Write deferred data, or the next slice of it, and include it in the next job."""
        self._tick_wanted = False
        context = self._context
        if not self._ticking:
            self._ticking = context.late
            context.late = []
        stores = self._ticking[: context.dirty_max]
        del self._ticking[: context.dirty_max]
        if self._ticking and self._later is not None:
            self._later(0.0, self._continue_tick)
        if tick(self._filesystem, stores, self._gathered, context.late) and self._unwritten_s >= 0.0:
            self.ack_ages.add(self._clock.monotonic() - self._unwritten_s)
        if not self._ticking:
            self._unwritten_s = -1.0
        self._settled_wanted = True

    # -- to the fsync thread and back

    def _submit_job(self) -> None:
        job = SyncBatch(self.generation)
        self.generation += 1
        now_s = self._clock.monotonic()
        settled_too = self._settled_wanted or now_s >= self._settled_handed_s + ACK_DELAY_S
        if settled_too:
            self._settled_wanted = False
            self._settled_handed_s = now_s
        job.whole = self._whole_wanted
        self._whole_wanted = False
        journal = self._journal
        if journal is not None and journal.usable:
            if len(self._gathered) >= self.journal_from and not job.whole:
                self._sync_in_background_if_due(journal, settled_too, now_s)
                settled_too = False
            job.parts = collect(self._gathered, settled_too)
            list_journaled(job.parts, self._journaled)
            self._context.capture.begin_group(len(self._gathered) >= self.journal_from)
            if self._journaled and not self._background_armed:
                self._arm_background()
        else:
            self._context.capture.on = False
            wanted = self.on_journal_wanted
            if wanted is not None and len(self._gathered) >= self.journal_from:
                self.on_journal_wanted = None
                wanted()
            job.parts = collect(self._gathered, settled_too)
        self._gathered = []
        job.size_bytes = self._gathered_bytes
        self._gathered_bytes = 0
        self.commit_waiting = False
        self._job = job
        committer = self._committer
        assert committer is not None
        committer.submit(job)

    # -- background syncs

    def _sync_in_background_if_due(self, journal: Journal, settled_too: bool, now_s: float) -> None:
        if self._background_job is not None:
            self._settled_wanted = settled_too or self._settled_wanted  # the next one takes them
        elif (
            (settled_too and have_unsynced_acks(self._gathered))
            or journal.needs_background_sync
            or now_s >= self._background_s + BACKGROUND_S
        ):
            self._start_background(journal, now_s)

    def _start_background(self, journal: Journal, now_s: float) -> None:
        job = SyncBatch(self.generation)
        job.journal_mark = journal.sequence
        stores = self._journaled
        self._journaled = []
        collect_background(stores, self._gathered, job.parts)
        self._background_s = now_s
        if job.parts:
            self._background_job = job
            committer = self._committer
            assert committer is not None
            committer.submit_background(job, self.background_synced)

    def _arm_background(self) -> None:
        later = self._later
        if later is not None and not self._closed:
            self._background_armed = True
            later(BACKGROUND_S, self._background_due)

    def _background_due(self) -> None:
        """Sync what only the journal has, when no commit has done it."""
        self._background_armed = False
        journal = self._journal
        if self._closed or journal is None or not self._journaled:
            return
        now_s = self._clock.monotonic()
        if self._background_job is None and now_s >= self._background_s + BACKGROUND_S:
            self._start_background(journal, now_s)
        if self._journaled:
            self._arm_background()

    def background_synced(self, job: SyncBatch) -> None:
        """Complete a job of `_start_background`. Posted by the fsync thread's worker."""
        if job is not self._background_job:
            return  # `finish_job` has completed it at a stop
        self._background_job = None
        failed: list[QueueLog] = []
        for part in job.parts:
            if not isinstance(part, LogSyncPart):
                continue
            store = part.store
            store.background_synced(part)
            if store.deleted:
                continue
            if part.failed:
                failed.append(store)
            if not store.is_enqueued and store.unsynced:
                store.is_enqueued = True
                self._gathered.append(store)
        if failed:
            # Their messages up to this generation were confirmed: the next start has them from the journal.
            self.on_commit(0, failed)

    def _schedule_wake(self) -> None:
        if not self._settle_armed and self._job is None:
            self._settle_armed = True
            left_s = self._settled_handed_s + ACK_DELAY_S - self._clock.monotonic()
            committer = self._committer
            assert committer is not None
            committer.wake(left_s if 0 < left_s < ACK_DELAY_S else ACK_DELAY_S)

    def submit_waiting(self) -> None:
        """Submit data that has waited 50 ms without an append. Posted by the fsync thread."""
        self._settle_armed = False
        if (self._gathered or self.commit_waiting) and self._job is None and not self._closed:
            self._settled_wanted = True
            self._submit_job()

    def committed(self, job: SyncBatch) -> None:
        """Complete a job: notify its logs, call `on_commit`, submit the next group. Posted by the fsync thread."""
        if job is not self._job:
            return  # `finish_job` has completed it at a stop
        self._job = None
        self._settle_armed = False
        self.unsynced_bytes -= job.size_bytes
        failed = synced(job.parts, self._gathered)
        if self._context.late and not self._tick_armed:
            self._arm_tick()
        self._resources.restore_reserve()
        self.on_commit(job.generation, failed)
        if self._closed:
            return
        # The end of the running turn writes its own appends; they belong to the generation read then.
        if (self._gathered or self.commit_waiting) and self._job is None:
            overdue = self._clock.monotonic() >= self._settled_handed_s + ACK_DELAY_S
            if self.commit_waiting or overdue:
                self._submit_job()
            else:
                self._schedule_wake()
        self._resources.close_some_files()

    # -- stop

    def stop(self) -> None:
        """Submit no more jobs. `finish_job` completes the running one."""
        self._closed = True

    def finish_job(self) -> None:
        """Complete the last job after the fsync thread has ended: the loop may not run its callback any more."""
        if self._job is not None:
            self.committed(self._job)
        if self._background_job is not None:
            self.background_synced(self._background_job)

    def sync_all(self, stores: Iterable[GroupCommitLog], root_fd: int) -> None:
        """Sync everything that `stores` have written, as one group. For a clean stop, after `stop`. Blocks.

        Args:
            root_fd: see `sync_parts`.
        """
        self._context.dirty.clear()
        job = SyncBatch(self.generation)
        self.generation += 1
        for store in stores:
            if store.unsynced or store.write_failed or store.is_group_failed or store.is_journaled:
                part = LogSyncPart(store)
                part.write_failed = store.write_failed or store.is_group_failed
                store.collect(part)
                store.collect_background(part)
                store.is_journaled = False
                part.journal_path = ""
                job.parts.append(part)
        self._gathered.clear()
        self._journaled.clear()
        job.size_bytes = self.unsynced_bytes
        self._job = job
        sync_parts(self._filesystem, job.parts, root_fd)
        journal = self._journal
        if journal is not None and True in [part.failed for part in job.parts]:
            journal.stop()
        self.committed(job)


def _ignore_commit(generation: int, failed: list[QueueLog]) -> None:
    """Do nothing, until the broker sets `on_commit`."""
