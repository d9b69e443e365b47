"""The group commit: what turns of the loop append becomes safe, many logs and turns at a time.

**Groups.** What a turn appends is safe when `on_commit(g, ...)` has been called on the loop, g being `generation` just
before the `end_of_turn` that writes it. `end_of_turn` writes every dirty store and, if the committer is idle, hands it
the group and begins the next; while it is at work the next turns' writes gather in one group. Turns in which nothing
was appended but something settled wait for the next append's sync, 50 ms at the latest, since a settlement that is
lost costs a redelivery and never a message.

**Ticks.** With `later` (`loop.call_later`) settlements are written every 50 ms and not with each turn, see
`GroupCommitLog.tick`; over many logs in slices, so that the loop is held for no longer than WRITE_SLICE_S. A turn of
the loop that takes longer than that holds up its timers: then settlements are written between two of its reads, see
`look`.

All of it runs on the loop's thread; the committer is given immutable work and posts its answer back.

One group of the commit, store by store: what is done for each of hundreds of dirty logs, and therefore compiled.

`GroupCommit` (group_commit.py) decides when; here stands what happens then to every store: it is written, its share
goes into the job, and the job's end is told to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from amqpd.storage.fd_budget import FdBudget
from amqpd.storage.filesystem import Clock, FileSystem
from amqpd.storage.fsync_thread import AckAges, FsyncThread, run_job
from amqpd.storage.loop_log import DIRTY_MAX, GroupCommitLog, LogContext
from amqpd.storage.queue_log import QueueLog
from amqpd.storage.sync_job import SyncBatch, SyncPart


@final
class LogSyncPart(SyncPart):
    """One store's share in a job, which that store is told the end of."""

    def __init__(self, store: GroupCommitLog) -> None:
        super().__init__(store.name)
        self.store = store


def write(
    filesystem: FileSystem, stores: list[GroupCommitLog], gathered: list[GroupCommitLog], turn: i64
) -> tuple[i64, bool]:
    """Writes what `stores` have of this turn; those with something to sync join `gathered`.

    However many they are, descriptors stay within their bounds: what is beyond is closed at once, unsynced.
    Returns (bytes appended that somebody waits for, whether a commit is wanted).
    """
    size: i64 = 0
    commit = False
    for store in stores:
        store.write()
        store.last_turn = turn
        if filesystem.open_file_count > filesystem.open_file_count_max:
            store.close_unsynced_files()
        # needs_commit: what it appended may be with an earlier group already (something read or rolled the log in
        # mid-turn); if that group's sync fails, this one must say so too.
        if not store.gathered and (store.needs_commit or store.write_failed or store.unsynced):
            store.gathered = True
            gathered.append(store)
        size += store.written_bytes
        store.written_bytes = 0
        if store.needs_commit or store.write_failed:
            store.needs_commit = False
            commit = True
    return size, commit


def tick(
    filesystem: FileSystem, stores: list[GroupCommitLog], gathered: list[GroupCommitLog], busy: list[GroupCommitLog]
) -> bool:
    """Has `stores` write what could wait; those that have more to come join `busy`. Returns whether there were acks."""
    settled = False
    for store in stores:
        if store.deleted:
            continue
        if store.settles:
            settled = True
        if store.tick():
            busy.append(store)
        if filesystem.open_file_count > filesystem.open_file_count_max:
            store.close_unsynced_files()
        if not store.gathered and store.unsynced:
            store.gathered = True
            gathered.append(store)
    return settled


def write_settled(filesystem: FileSystem, stores: list[GroupCommitLog], count_max: i64) -> i64:
    """Has `stores` write what was settled, in the middle of a turn. Returns how many did, at most `count_max`.

    They stay in their lists, and join the next job by them.
    """
    count: i64 = 0
    for store in stores:
        if count >= count_max:
            break
        if store.deleted or not store.settles:
            continue
        store.write_settled()
        count += 1
        if filesystem.open_file_count > filesystem.open_file_count_max:
            store.close_unsynced_files()
    return count


def write_late(filesystem: FileSystem, stores: list[GroupCommitLog], gathered: list[GroupCommitLog]) -> None:
    """Has `stores` write what could wait for the next tick, which then comes all the same."""
    for store in stores:
        if store.deleted:
            continue
        store.write_late()
        if filesystem.open_file_count > filesystem.open_file_count_max:
            store.close_unsynced_files()
        if not store.gathered and store.unsynced:
            store.gathered = True
            gathered.append(store)


def collect(gathered: list[GroupCommitLog], settled_too: bool) -> list[SyncPart]:
    """The share of each store in the next job."""
    parts: list[SyncPart] = []
    for store in gathered:
        part = LogSyncPart(store)
        store.gathered = False
        part.write_failed = store.write_failed
        store.write_failed = False
        store.collect(part, settled_too)
        parts.append(part)
    return parts


def synced(parts: list[SyncPart], gathered: list[GroupCommitLog]) -> list[QueueLog]:
    """A job is done. Returns the stores that failed in it; those with something left to do join `gathered`."""
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
        if not store.gathered and store.unsynced:
            store.gathered = True  # files of removed segments are left to go
            gathered.append(store)
    return failed


SETTLE_DELAY_S: Final = 0.05
POSTPONE_FROM: Final = 32  # dirty logs
WRITE_SLICE_S: Final = 0.005  # of writing to many logs before it is the others' turn; but DIRTY_MIN logs in any case
DIRTY_MIN: Final = 64
POSTPONE_S: Final = 0.002


@mypyc_attr(allow_interpreted_subclasses=True)  # tests/limits counts what each turn writes
class GroupCommit:
    """From `dirty` (a turn wrote to it) over `gathered` (written, wants a sync) to a job of the committer, and back.

    generation: of the group that the running turn's appends will be in; it goes up as a group is handed over.
    unsynced_bytes: appended and not yet synced. on_commit: called on the loop with a generation and the stores that
    failed in it. commit_waiting: appends of the current generation are written and wait for the committer. ack_ages:
    how old settlements were when they were written.
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
        self.on_commit: Callable[[int, list[QueueLog]], None] = _nobody
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
        # the group that gathers
        self._gathered: list[GroupCommitLog] = []
        self._gathered_bytes: int = 0
        self._turn: i64 = 0
        self._write_cost_s: float = 0.0  # of one log among many, of late
        self._postponed: bool = False
        # ticks
        self._tick_armed: bool = False
        self._tick_wanted: bool = False  # it came in the middle of a turn, whose end does it
        self._ticking: list[GroupCommitLog] = []  # those that the tick at work has not come to
        # No settlement that is not written is older than this; -1: there is none, or nothing has looked since.
        self._unwritten_s: float = -1.0
        # when a job last took settlements along, whether the next one has to, and whether somebody will see to it
        self._settled_handed_s: float = -SETTLE_DELAY_S
        self._settled_wanted: bool = False
        self._settle_armed: bool = False

    def start(self, committer: FsyncThread) -> None:
        """Names who syncs; before the first store is written to. It calls `committed` and `settle_due` on the loop."""
        self._committer = committer

    # -- from the turn

    def end_of_turn(self) -> None:
        """Writes what the turn left, hands the group over if the committer is idle. Raises nothing.

        Before any byte of a delivery of this turn goes to a socket. Cost: 50 ns when there is nothing to do.
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
                self._hand_over()
            else:
                self._arm()

    def look(self) -> None:
        """Write what was settled when the tick is overdue. `LoopTurn` calls it between two reads of one turn.

        Cost: 0.1 us; when settlements have waited for SETTLE_DELAY_S, a write for each log that has some.
        """
        context = self._context
        if self._later is None or not (context.dirty or context.late or self._ticking):
            return
        now_s = self._clock.monotonic()
        if self._unwritten_s < 0.0:
            self._unwritten_s = now_s
        elif now_s >= self._unwritten_s + SETTLE_DELAY_S:
            left: i64 = context.dirty_max
            for stores in (self._ticking, context.late, context.dirty):
                left -= write_settled(self._filesystem, stores, left)
            if left < context.dirty_max:
                self.ack_ages.add(now_s - self._unwritten_s)
            if left > 0:  # else some may be left for the next look
                self._unwritten_s = now_s

    def postpone(self, call: Callable[[], None]) -> bool:
        """Whether the end of this turn had better wait: many logs are dirty, and the committer is at work, so that no
        confirm depends on it. Then `call` is called in 2 ms: one write for what else comes in until then. Each turn is
        put off once.
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
        """Writes and hands over everything now, also settlements alone; behind the sync at work if there is one."""
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
        if (self._gathered or self.commit_waiting) and self._job is None:
            self._hand_over()

    def gather(self, store: GroupCommitLog) -> None:
        """The store has something to sync or to remove, though nobody waits for it: it goes with the next job."""
        if not store.gathered:
            store.gathered = True
            self._gathered.append(store)
            self._arm()

    def drop(self, store: GroupCommitLog) -> None:
        """The store is being deleted: nothing of it is written or synced any more. A job at work counts as done."""
        dirty = self._context.dirty
        if store in dirty:
            dirty.remove(store)
        if store in self._gathered:
            self._gathered.remove(store)
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
            later(SETTLE_DELAY_S, self._tick_due)
            if self._unwritten_s < 0.0:
                self._unwritten_s = self._clock.monotonic()

    def _tick_due(self) -> None:
        self._tick_armed = False
        if not self._closed:
            self._tick_or_wait()

    def _tick_or_wait(self) -> None:
        if self._context.dirty:
            self._tick_wanted = True  # the running turn has appended: its end writes that first
            return
        self._tick()
        if self._context.late and not self._tick_armed:
            self._arm_tick()
        if (self._gathered or self.commit_waiting) and self._job is None:
            self._hand_over()

    def _tick_on(self) -> None:
        """The next slice of a tick over many logs."""
        if self._ticking and not self._closed:
            self._tick_or_wait()

    def _tick(self) -> None:
        """Writes what could wait, or the next slice of it, and sees to it that the next job syncs it."""
        self._tick_wanted = False
        context = self._context
        if not self._ticking:
            self._ticking = context.late
            context.late = []
        stores = self._ticking[: context.dirty_max]
        del self._ticking[: context.dirty_max]
        if self._ticking and self._later is not None:
            self._later(0.0, self._tick_on)
        if tick(self._filesystem, stores, self._gathered, context.late) and self._unwritten_s >= 0.0:
            self.ack_ages.add(self._clock.monotonic() - self._unwritten_s)
        if not self._ticking:
            self._unwritten_s = -1.0
        self._settled_wanted = True

    # -- to the committer and back

    def _hand_over(self) -> None:
        job = SyncBatch(self.generation)
        self.generation += 1
        now_s = self._clock.monotonic()
        settled_too = self._settled_wanted or now_s >= self._settled_handed_s + SETTLE_DELAY_S
        if settled_too:
            self._settled_wanted = False
            self._settled_handed_s = now_s
        job.parts = collect(self._gathered, settled_too)
        self._gathered = []
        job.size_bytes = self._gathered_bytes
        self._gathered_bytes = 0
        self.commit_waiting = False
        self._job = job
        committer = self._committer
        assert committer is not None
        committer.submit(job)

    def _arm(self) -> None:
        if not self._settle_armed and self._job is None:
            self._settle_armed = True
            left_s = self._settled_handed_s + SETTLE_DELAY_S - self._clock.monotonic()
            committer = self._committer
            assert committer is not None
            committer.wake(left_s if 0 < left_s < SETTLE_DELAY_S else SETTLE_DELAY_S)

    def settle_due(self) -> None:
        """What waits without an append has waited for 50 ms. The committer calls it."""
        self._settle_armed = False
        if (self._gathered or self.commit_waiting) and self._job is None and not self._closed:
            self._settled_wanted = True
            self._hand_over()

    def committed(self, job: SyncBatch) -> None:
        """The job is done: its stores and `on_commit` are told, and the next group goes. The committer calls it."""
        if job is not self._job:
            return  # a stop did not wait for the loop
        self._job = None
        self._settle_armed = False
        self.unsynced_bytes -= job.size_bytes
        failed = synced(job.parts, self._gathered)
        if self._context.late and not self._tick_armed:
            self._arm_tick()
        self._resources.take_reserve_again()
        self.on_commit(job.generation, failed)
        if self._closed:
            return
        # What the running turn has appended is left alone: its end of turn writes it, into the generation read then.
        if (self._gathered or self.commit_waiting) and self._job is None:
            overdue = self._clock.monotonic() >= self._settled_handed_s + SETTLE_DELAY_S
            if self.commit_waiting or overdue:
                self._hand_over()
            else:
                self._arm()
        self._resources.close_some_files()

    # -- a stop

    def stop(self) -> None:
        """Nothing is handed over any more. The job at work, if there is one, is finished: see `finish_job`."""
        self._closed = True

    def finish_job(self) -> None:
        """The committer's thread has ended: what it did last counts, though the loop may never be told."""
        if self._job is not None:
            self.committed(self._job)

    def sync_all(self, stores: Iterable[GroupCommitLog], root_fd: int) -> None:
        """After `stop`, for a clean one: all that `stores` have written is synced, here and now, as one group.

        root_fd: as `run_job`'s. Blocks for the syncs.
        """
        self._context.dirty.clear()
        job = SyncBatch(self.generation)
        self.generation += 1
        for store in stores:
            if store.unsynced or store.write_failed:
                part = LogSyncPart(store)
                part.write_failed = store.write_failed
                store.collect(part)
                job.parts.append(part)
        self._gathered.clear()
        job.size_bytes = self.unsynced_bytes
        self._job = job
        run_job(self._filesystem, job, root_fd)
        self.committed(job)


def _nobody(generation: int, failed: list[QueueLog]) -> None:
    """Until the broker sets `on_commit`."""
