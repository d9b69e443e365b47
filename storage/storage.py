"""All the logs of one data directory (data_directory.py), and the group commit they share.

**Groups.** What a turn appends is safe when `on_commit(g, ...)` has been called on the loop, g being `generation` just
before the `end_of_turn` that writes it. `end_of_turn` writes every dirty store and, if the committer is idle, hands it
the group and begins the next; while it is at work the next turns' writes gather in one group. Turns in which nothing
was appended but something settled wait for the next append's sync, 50 ms at the latest, since a settlement that is
lost costs a redelivery and never a message. With `later` they are written at that pace, too: see `LocalLog.tick`.

Everything here runs on the loop's thread, except the committer, which is given immutable work and posts its answer
back.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from amqpd.storage.commit import group
from amqpd.storage.commit.committer import Committer, InlineCommitter, Removal, run_job
from amqpd.storage.commit.job import SyncJob
from amqpd.storage.commit.turn_log import DIRTY_MAX, StoreContext, TurnLog
from amqpd.storage.data_directory import RESERVE, SPILL, DataDirectory
from amqpd.storage.description import describe
from amqpd.storage.filesystem import Clock, FileSystem, Reserve
from amqpd.storage.keep.departures import Departures
from amqpd.storage.keep.policy import RetentionPolicy
from amqpd.storage.keep.upkeep import Upkeep
from amqpd.storage.local_log import LocalLog, LogKeeper
from amqpd.storage.log import recovery
from amqpd.storage.log.closing import mark_clean
from amqpd.storage.log.log import Log
from amqpd.storage.log.readahead import ReadAhead
from amqpd.storage.queue_log import QueueLog
from amqpd.storage.settle.hold import Hold, Losses, find_hold
from amqpd.storage.survey import Survey, survey
from amqpd.storage.worker import Worker

logger = logging.getLogger(__name__)

SEGMENT_SIZE_BYTES = 64 << 20
SETTLE_DELAY_S = 0.05
POSTPONE_FROM = 32  # dirty logs
WRITE_SLICE_S = 0.005  # of writing to many logs before it is the others' turn; but DIRTY_MIN logs in any case
DIRTY_MIN = 64
POSTPONE_S = 0.002
RESERVE_RETRY_S = 1.0
OPEN_FILE_COUNT_MAX = 4096  # or three quarters of what the process may open, whichever is less
CLOSE_PAUSE_S = 0.2  # between two looks at all logs for files to close


class Storage(LogKeeper):
    """See the module.

    post: calls a function with arguments on the loop, from any thread (`loop.call_soon_threadsafe`).
    later: calls a function on the loop after so many seconds (`loop.call_later`): settlements are then written every
    50 ms; without it with each turn.
    on_commit: set by the broker; called on the loop with a generation and the stores that failed in it.
    open_file_count_max: descriptors that logs keep open; by default 3/4 of what the process may have, at most 4,096.
    segment_age_ms: `maintain` rolls an active segment whose first message is older; -1: none.
    inline: no thread: each group is synced inside `end_of_turn`, for simulations.
    boot_id: of the machine, 32 hexadecimal digits with or without dashes; read from /proc by default.
    Raises: DataDirectoryInUse, OSError; UnknownFormat when a newer version made the directory: it is not touched.
    """

    def __init__(
        self,
        data_dir: Path | str,
        *,
        post: Callable[..., object],
        later: Callable[[float, Callable[[], None]], object] | None = None,
        clock: Clock | None = None,
        filesystem: FileSystem | None = None,
        segment_size_bytes: int = SEGMENT_SIZE_BYTES,
        segment_age_ms: int = -1,
        open_file_count_max: int | None = None,
        strict: bool = False,
        boot_id: str | None = None,
        inline: bool = False,
    ) -> None:
        self.filesystem = filesystem if filesystem is not None else FileSystem()
        self.data_dir = os.path.abspath(data_dir)
        self.segment_size_bytes = segment_size_bytes
        self.strict = strict
        self.generation = 1
        self.unsynced_bytes = 0
        self.on_commit: Callable[[int, list[QueueLog]], None] = _nobody
        self.export_losses = Losses()
        self.filesystem.open_file_count_max = _own_share() if open_file_count_max is None else open_file_count_max
        self.filesystem.make_room = self._make_room
        self._ahead = ReadAhead(self.filesystem, post)
        self._post = post
        self._opener = None if inline else Worker("amqpd-recovery")
        self._openings: dict[LocalLog, recovery.Opening] = {}  # read, and not in use yet
        self._context = StoreContext(clock if clock is not None else Clock(), None if inline else self._ahead)
        self._context.paced = later is not None
        self._later = later
        self._late_armed = False
        self._write_cost_s = 0.0
        self._closed_some_s = -CLOSE_PAUSE_S
        self._late_wanted = False
        self._ticking: list[TurnLog] = []  # those that the tick at work has not come to
        self._postponed = False
        self._dirty = self._context.dirty
        self._stores: dict[LocalLog, None] = {}  # in their order, so that simulations repeat themselves
        self._removals = 0
        self._turn = 0
        self._gathered: list[TurnLog] = []
        self._gathered_bytes = 0
        self._gathered_commit = False
        self._job: SyncJob | None = None
        self._settle_armed = False
        # When a job last took settlements along, and whether the next one has to.
        self._settled_handed_s = -SETTLE_DELAY_S
        self._settled_wanted = False
        self._closed = False
        filesystem = self.filesystem
        self._place = DataDirectory(filesystem, self.data_dir, boot_id)
        self.boot_id = self._place.boot_id
        self._boot = self._place.boot
        self.power_cut = self._place.power_cut
        self._cut_noted = not self.power_cut
        self._uncut: set[LocalLog] = set()  # logs that have not taken note of the power cut
        filesystem.remove_tree(f"{self.data_dir}/{SPILL}")
        self._reserve = Reserve(filesystem, f"{self.data_dir}/{RESERVE}")
        self._reserve_tried_s = self._context.clock.monotonic()
        try:
            self._reserve.take()
        except OSError as error:
            logger.warning("no room for the settlement reserve: %s", error)
        kind = InlineCommitter if inline else Committer
        self._chores = Worker("amqpd-removal")
        if not inline:
            filesystem.closer = self._close_later
        root_fd = self._place.lock_fd
        self._committer = kind(filesystem, root_fd, post, self._committed, self._settle_due, self._chores.call)
        if isinstance(self._committer, InlineCommitter):
            self._committer.later = later
        self.departures = Departures(
            filesystem, self._committer, self._chores.call if not inline else lambda work: work()
        )
        clock = self._context.clock
        self._upkeep = Upkeep(
            filesystem, clock, self._committer, post, self._gather, self._boot, segment_age_ms, inline
        )

    # -- queues

    def create_queue(
        self,
        vhost_id: str,
        name: str,
        vhost_name: str = "",
        policy: RetentionPolicy | None = None,
        queue_id: str = "",
        auto_delete: bool = False,
        arguments: bytes = b"",
    ) -> tuple[str, LocalLog]:
        """(random 128-bit id in hexadecimal, an empty store). Nothing is on the disk before the first append.

        policy: for a log that keeps what is read; see `set_policy`. queue_id: the one its row has already. vhost_name,
        auto_delete, arguments (an encoded field table): for its queue.json.
        """
        queue_id = queue_id or secrets.token_hex(16)
        log = self._log(vhost_id, queue_id, name, vhost_name, auto_delete, arguments)
        self._keep(log, policy)
        store = LocalLog(self._context, log, vhost_id, queue_id, name, self, True)
        self._stores[store] = None
        return queue_id, store

    def open_queue(
        self,
        vhost_id: str,
        queue_id: str,
        name: str = "",
        vhost_name: str = "",
        policy: RetentionPolicy | None = None,
        auto_delete: bool = False,
        arguments: bytes = b"",
    ) -> LocalLog:
        """The store of an existing queue. Reads nothing: the log is recovered by its first use or by
        `store.recover()`.
        """
        log = self._log(vhost_id, queue_id, name, vhost_name, auto_delete, arguments)
        self._keep(log, policy)
        store = LocalLog(self._context, log, vhost_id, queue_id, name, self, False)
        self._stores[store] = None
        if not self._cut_noted:
            self._uncut.add(store)
        return store

    def recover_all(self) -> None:
        """Recovers every log that is open, now rather than at its first use. Raises: OSError; UnknownFormat;
        DamagedLog (strict only).
        """
        for store in list(self._stores):
            store.recover()

    def temporary_queue(self, name: str = "", first_offset: int = 0) -> LocalLog:
        """A store that is never synced and gone at the next start. `delete_queue` removes its files.

        first_offset: of its first record; the queue kept what is below in memory.
        """
        queue_id = secrets.token_hex(16)
        root = f"{self.data_dir}/{SPILL}"
        log = Log(
            self.filesystem,
            [root, f"{root}/{queue_id}"],
            partial(describe, name, "", False, b"", queue_id),
            self.segment_size_bytes,
            self._boot,
            self._reserve,
            False,
        )
        store = LocalLog(self._context, log, "", queue_id, name, self, True)
        store.next_offset = first_offset
        self._stores[store] = None
        return store

    def set_policy(self, store: LocalLog, policy: RetentionPolicy | None) -> None:
        """What the store's log keeps from now on; the next `maintain` acts on it. None: what is settled goes."""
        self._keep(store.log, policy)

    def _keep(self, log: Log, policy: RetentionPolicy | None) -> None:
        log.policy = policy
        log.removals.delay_ms = policy.file_delete_delay_ms if policy is not None else 0

    def find_hold(self, store: QueueLog) -> Hold | None:
        """What the log keeps for exports, if anything was ever to be kept of it."""
        return store.log.removals.hold if isinstance(store, LocalLog) else None

    def hold(self, store: QueueLog) -> Hold:
        """The same; a new hold keeps nothing before it has exporters. Raises: TypeError when it is not a local log."""
        if not isinstance(store, LocalLog):
            raise TypeError(f"the log of queue '{store.name}' is not on this disk")
        removals = store.log.removals
        if removals.hold is None:
            removals.hold = Hold(self.filesystem, store.log.chain, store.name, self.export_losses)
        return removals.hold

    def hold_changed(self, store: QueueLog) -> None:
        """Somebody has set, cleared or moved a hold: what it lets go is removed soon, on the next commit's way."""
        if isinstance(store, LocalLog) and store.ready and not store.failed:
            store.log.removals.wanted = True
            self._gather(store)

    def maintain(self) -> None:
        """A round of the background work: see upkeep.py. The owner calls it from a timer. Raises nothing.

        Cost: 1 us per log and a step per segment of those that keep, in slices of 5 ms.
        """
        self._upkeep.maintain(list(self._stores))

    def delete_queue(self, store: LocalLog, done: Callable[[], None] | None = None) -> None:
        """The store is not used any more; its files are removed behind the syncs at work. For one that no metadata
        knows of: deletions that are answered go by `retire_queue`.

        done: called on the loop when they are gone. A commit that waits for this store counts as done for it.
        """
        self._abandon(store)
        self._removals += 1
        removal = Removal(store.log.directory, lambda: self._removed(done))
        self._upkeep.when_free(store, lambda: self._committer.submit(removal))

    def retire_queue(self, store: LocalLog, done: Callable[[], None]) -> None:
        """The store is not used any more, and its directory is renamed: see departures.py. `done()` on the loop when
        that is on the medium. A commit that waits for this store counts as done for it.
        """
        self._abandon(store)
        self._upkeep.when_free(store, lambda: self.departures.rename(store.log.chain, done))

    def retire_vhost(self, vhost_id: str, stores: Sequence[QueueLog], done: Callable[[], None]) -> None:
        """The same for a vhost's directory, with these logs in it; those that are elsewhere retire one by one."""
        local = [store for store in stores if isinstance(store, LocalLog)]
        left = 1 + len(stores) - len(local)

        def one_done() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                done()

        for store in stores:
            if not isinstance(store, LocalLog):
                store.retire(one_done)
        for store in local:
            self._abandon(store)
        chain = self.vhost_chain(vhost_id)
        for store in local:
            if self._upkeep.is_at(store):
                self._upkeep.when_free(store, lambda: self.departures.rename(chain, one_done))
                return
        self.departures.rename(chain, one_done)

    def queue_chain(self, vhost_id: str, queue_id: str) -> list[str]:
        """The directories down to a queue's, the data directory first, it being the last."""
        return self._place.queue_chain(vhost_id, queue_id)

    def vhost_chain(self, vhost_id: str) -> list[str]:
        """The same for a vhost's."""
        return self._place.queue_chain(vhost_id, "")[:3]

    def _abandon(self, store: LocalLog) -> None:
        store.deleted = True  # also to `_tick`, which forgets it
        store.failed = True
        self._stores.pop(store, None)
        self._uncut.discard(store)
        opening = self._openings.pop(store, None)
        if opening is not None:
            opening.drop()  # or it goes on, and finds its files or not: nobody will look
        if store in self._dirty:
            self._dirty.remove(store)
        if store in self._gathered:
            self._gathered.remove(store)
        store.drop_reading()
        store.log.abandon()

    def survey(self) -> Survey:
        """Which directories of queues there are, for the start, before any queue is opened."""
        return survey(self.filesystem, self.data_dir)

    def set_aside(self, vhost_id: str, queue_id: str) -> str:
        """Moves a queue's directory to lost+found/, at the start. Returns its new path. Raises: OSError."""
        return self._place.set_aside(vhost_id, queue_id)

    def move_queue(self, queue_id: str, source: str, target: str) -> None:
        """Moves a queue's directory from one vhost's, by ids, to another's, at the start. It is there, synced, when
        this returns. Raises: OSError.
        """
        self._place.move(queue_id, source, target)

    def _log(
        self, vhost_id: str, queue_id: str, name: str, vhost_name: str, auto_delete: bool, arguments: bytes
    ) -> Log:
        return Log(
            self.filesystem,
            self._place.queue_chain(vhost_id, queue_id),
            partial(describe, name, vhost_name, auto_delete, arguments, queue_id),
            self.segment_size_bytes,
            self._boot,
            self._reserve,
            True,
        )

    def recover(self, store: LocalLog) -> None:
        """Fills the log from the disk; once, before its first use. Raises: OSError; UnknownFormat; DamagedLog."""
        opening = self._openings.pop(store, None)
        if opening is None:
            opening = self._begin_opening(store)
        opening.write()  # waits for the thread that is at it
        opening.finish()
        self._uncut.discard(store)
        if not self._cut_noted and not self._uncut:
            self._cut_noted = True  # every log has taken note of the power cut, so the next start need not
            self._place.note_boot()
        if find_hold(self.filesystem, store.log.directory):
            self.hold(store).load()
        if store.log.dirty:  # what was found is synced, and what was settled removed, soon
            self._gather(store)

    def open_soon(self, store: LocalLog, done: Callable[[], None]) -> bool:
        """Whether the store can be used now. Else its log has been read, and what recovery has to write and sync is
        with another thread: `done` is called on the loop when `store.recover()` no longer waits for the disk. Who
        cannot wait calls that at once. Raises: as `recover`.
        """
        if store.ready:
            return True
        opening = self._openings.get(store)
        if opening is None:
            opening = self._begin_opening(store)
            self._openings[store] = opening
            if self._opener is None or not opening.waits:
                store.recover()
                return True
            self._opener.call(partial(self._write_opening, opening))
        opening.waiting.append(done)
        return False

    def _begin_opening(self, store: LocalLog) -> recovery.Opening:
        try:
            return recovery.begin(store, self._boot, self._context.clock, power_cut=self.power_cut, strict=self.strict)
        except OSError as error:
            if not self.filesystem.room_after(error):
                raise
            return recovery.begin(store, self._boot, self._context.clock, power_cut=self.power_cut, strict=self.strict)

    def _write_opening(self, opening: recovery.Opening) -> None:
        """In the thread."""
        opening.write()
        self._post(self._opening_written, opening)

    def _opening_written(self, opening: recovery.Opening) -> None:
        waiting, opening.waiting = opening.waiting, []
        for done in waiting:
            done()

    def _close_later(self, fd: int) -> None:
        self._chores.call(partial(self.filesystem.close, fd))

    def _gather(self, store: LocalLog) -> None:
        if not store.gathered:
            store.gathered = True
            self._gathered.append(store)
            self._arm()

    def _removed(self, done: Callable[[], None] | None) -> None:
        self._removals -= 1
        if done is not None:
            done()

    # -- groups

    @property
    def context(self) -> StoreContext:
        """What all stores share; its `dirty` are those that the end of the running turn writes."""
        return self._context

    @property
    def commit_waiting(self) -> bool:
        """Whether appends of the current generation are written and wait for the committer."""
        return self._gathered_commit

    def end_of_turn(self) -> None:
        """Writes what the turn left, hands the group over if the committer is idle. Raises nothing.

        Before any byte of a delivery of this turn goes to a socket. Cost: 50 ns when there is nothing to do.
        """
        if not self._dirty:
            if self._context.late and not self._late_armed:
                self._arm_tick()
            return
        self._write_dirty()
        if self._late_wanted:
            self._tick()
        if self._context.late and not self._late_armed:
            self._arm_tick()
        if (self._gathered or self._gathered_commit) and self._job is None:
            if self._gathered_commit:
                self._hand_over()
            else:
                self._arm()

    def postpone(self, call: Callable[[], None]) -> bool:
        """Whether the end of this turn had better wait: many logs are dirty, and the committer is at work, so that no
        confirm depends on it. Then `call` is called in 2 ms: one write for what else comes in until then. Each turn is
        put off once.
        """
        if self._postponed:
            self._postponed = False
            return False
        if self._later is None or self._job is None or not POSTPONE_FROM <= len(self._dirty) < self._context.dirty_max:
            return False
        self._postponed = True
        self._later(POSTPONE_S, call)
        return True

    def _write_dirty(self) -> None:
        self._turn += 1
        count = len(self._dirty)
        began = self._context.clock.monotonic() if count >= DIRTY_MIN else 0.0
        size, commit = group.write(self.filesystem, self._dirty, self._gathered, self._turn)
        self._dirty.clear()
        if count >= DIRTY_MIN:
            cost_s = (self._context.clock.monotonic() - began) / count
            self._write_cost_s += (cost_s - self._write_cost_s) / 4
            fitting = int(WRITE_SLICE_S / max(self._write_cost_s, 1e-6))
            self._context.dirty_max = max(DIRTY_MIN, min(DIRTY_MAX, fitting))
        self._gathered_bytes += size
        self.unsynced_bytes += size
        if commit:
            self._gathered_commit = True

    def _arm_tick(self) -> None:
        if self._later is not None and not self._closed:
            self._late_armed = True
            self._later(SETTLE_DELAY_S, self._tick_due)

    def _tick_due(self) -> None:
        self._late_armed = False
        if not self._closed:
            self._tick_or_wait()

    def _tick_or_wait(self) -> None:
        if self._dirty:
            self._late_wanted = True  # the running turn has appended: its end writes that first
            return
        self._tick()
        if self._context.late and not self._late_armed:
            self._arm_tick()
        if (self._gathered or self._gathered_commit) and self._job is None:
            self._hand_over()

    def _tick_on(self) -> None:
        """The next slice of a tick over many logs."""
        if self._ticking and not self._closed:
            self._tick_or_wait()

    def _tick(self) -> None:
        """Writes what could wait, or the next slice of it, and sees to it that the next job syncs it."""
        self._late_wanted = False
        context = self._context
        if not self._ticking:
            self._ticking = context.late
            context.late = []
        stores = self._ticking[: context.dirty_max]
        del self._ticking[: context.dirty_max]
        if self._ticking and self._later is not None:
            self._later(0.0, self._tick_on)
        group.tick(self.filesystem, stores, self._gathered, context.late)
        self._settled_wanted = True

    def _hand_over(self) -> None:
        job = SyncJob(self.generation)
        self.generation += 1
        now = self._context.clock.monotonic()
        settled_too = self._settled_wanted or now >= self._settled_handed_s + SETTLE_DELAY_S
        if settled_too:
            self._settled_wanted = False
            self._settled_handed_s = now
        job.parts = group.collect(self._gathered, settled_too)
        self._gathered = []
        job.size_bytes = self._gathered_bytes
        self._gathered_bytes = 0
        self._gathered_commit = False
        self._job = job
        self._committer.submit(job)

    def _arm(self) -> None:
        if not self._settle_armed and self._job is None:
            self._settle_armed = True
            left = self._settled_handed_s + SETTLE_DELAY_S - self._context.clock.monotonic()
            self._committer.wake(left if 0 < left < SETTLE_DELAY_S else SETTLE_DELAY_S)

    def _settle_due(self) -> None:
        self._settle_armed = False
        if (self._gathered or self._gathered_commit) and self._job is None and not self._closed:
            self._settled_wanted = True
            self._hand_over()

    def _committed(self, job: SyncJob) -> None:
        if job is not self._job:
            return  # `close` did not wait for the loop
        self._job = None
        self._settle_armed = False
        self.unsynced_bytes -= job.size_bytes
        failed = group.synced(job.parts, self._gathered)
        if self._context.late and not self._late_armed:
            self._arm_tick()
        if not self._reserve.held:
            self._take_reserve()
        self.on_commit(job.generation, failed)
        if self._closed:
            return
        # What the running turn has appended is left alone: its end of turn writes it, into the generation read then.
        if (self._gathered or self._gathered_commit) and self._job is None:
            overdue = self._context.clock.monotonic() >= self._settled_handed_s + SETTLE_DELAY_S
            if self._gathered_commit or overdue:
                self._hand_over()
            else:
                self._arm()
        self._close_some_files()

    def _take_reserve(self) -> None:
        now = self._context.clock.monotonic()
        if now < self._reserve_tried_s + RESERVE_RETRY_S:
            return
        self._reserve_tried_s = now
        try:
            self._reserve.take()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                logger.warning("the settlement reserve: %s", error)

    def _close_some_files(self) -> None:
        """Keeps the number of open files below its bound, where who writes would have to close at once what it opens:
        those of the stores that were not written to for longest go.
        """
        total = self.filesystem.open_file_count
        bound = self.filesystem.open_file_count_max
        if total <= bound * 7 // 8:
            return
        now = self._context.clock.monotonic()
        if total <= bound and now < self._closed_some_s + CLOSE_PAUSE_S:
            return
        self._closed_some_s = now
        counts = [(store.last_turn, store.log.open_file_count(), store) for store in self._stores if store.log.segments]
        counts.sort(key=_turn_of)
        for _, count, store in counts:
            if count and store.release():
                total -= count
                if total <= bound * 3 // 4:
                    return

    def _make_room(self) -> bool:
        """Somebody else has taken the descriptors: all goes that no sync is at work on. Whether that was any."""
        before = self.filesystem.open_file_count
        for store in self._stores:
            if store.log.open_file_count():
                store.shed()
        return self.filesystem.open_file_count < before

    # -- start and stop

    def flush(self) -> None:
        """Writes and hands over everything now, also settlements alone; behind the sync at work if there is one."""
        if self._dirty:
            self._write_dirty()
        if self._late_wanted:
            self._tick()
        if self._ticking:
            group.write_late(self.filesystem, self._ticking, self._gathered)
        if self._context.late:
            group.write_late(self.filesystem, self._context.late, self._gathered)
        if self._context.late and not self._late_armed:
            self._arm_tick()
        if self._gathered:
            self._gathered_commit = True
            self._settled_wanted = True
        if (self._gathered or self._gathered_commit) and self._job is None:
            self._hand_over()

    def close(self, *, clean: bool) -> None:
        """Ends the committer. clean: everything is written and synced first, and each log gets its clean-shutdown mark.

        Blocks for the syncs; `on_commit` is called for what they covered, on the loop or, at the end, in here.
        """
        if self._closed:
            return
        self._closed = True
        self._upkeep.stop()
        self._committer.close()
        self.filesystem.closer = None
        for opening in self._openings.values():
            opening.drop()
        if self._opener is not None:
            self._opener.close()
        self._chores.close()
        self._ahead.worker.close()
        if self._job is not None:
            self._committed(self._job)
        if clean:
            self._close_clean()
        for store in self._stores:
            store.log.close_files()
        self._place.close()

    def _close_clean(self) -> None:
        self._sync_unopened()
        for store in self._stores:
            if store.ready:
                store.finish()
        self._dirty.clear()
        job = SyncJob(self.generation)
        self.generation += 1
        for store in self._stores:
            if store.log.dirty or store.write_failed:
                part = group.StorePart(store)
                part.write_failed = store.write_failed
                store.collect(part)
                job.parts.append(part)
        self._gathered.clear()
        job.size_bytes = self.unsynced_bytes
        self._job = job
        run_job(self.filesystem, job, self._place.lock_fd)
        self._committed(job)
        for store in self._stores:
            try:
                mark_clean(store.log, store.delivered_mark)
            except OSError as error:  # the next start then checks more
                logger.warning("clean-shutdown mark of queue %s: %s", store.name, error)
        if self._cut_noted:
            self._place.forget_boot()

    def _sync_unopened(self) -> None:
        """What a kill left in the page cache of logs that nobody has opened since: the stop is clean for them too."""
        if self._place.ended_badly and not all(store.ready for store in self._stores):
            try:
                self.filesystem.syncfs(self._place.lock_fd)
            except OSError as error:  # those logs have no clean mark, so the next start looks at all of them
                logger.error("what an earlier life left could not be synced: %s", error)


def _nobody(generation: int, failed: list[QueueLog]) -> None:
    """Until the broker sets `on_commit`."""


def _own_share() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return OPEN_FILE_COUNT_MAX if soft == resource.RLIM_INFINITY else min(OPEN_FILE_COUNT_MAX, soft * 3 // 4)


def _turn_of(entry: tuple[int, int, LocalLog]) -> int:
    return entry[0]

