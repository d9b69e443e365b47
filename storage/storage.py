"""All the logs of one data directory (data_directory.py): where they lie, how they come and how they go.

`Storage` makes, opens and deletes logs, one for each queue, and puts the parts together that all of them share: the
group commit (`commits`, storage/group_commit.py), what opens a log of an earlier life (storage.py), descriptors and the
reserve (fd_budget.py), the background work (storage/maintenance.py), the directories that leave
(storage/directory_removal.py).

Everything here runs on the loop's thread, except the committer and the workers, which are given immutable work and
post their answers back. A start takes the directory and reads no log; a clean stop syncs everything and leaves each log
its mark, so that the next start need not scan it.

Logs of an earlier life come into use: read on the loop in slices, made whole by a thread, given to their queues.

A log is opened by its first use (`recover`), which waits for the disk, or ahead of it (`open_soon`), which does not:
it is read for SLICE_S a turn of the loop, one log after the other, the file work of recovery (log/recovery.py) then
stands with another thread, and whoever asked is called when it is done. Who cannot wait has the rest read at once.

After a power cut clean marks are not to be trusted with what was delivered. Only when every log that is open has taken
note of that does the data directory name the present boot of the machine.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from amqpd.storage.acks.replay import AckedReplay
from amqpd.storage.acks.retained import AckedRetention, ExportHold, ExportLosses, RetainedBytes, find_hold
from amqpd.storage.clock_watch import ClockWatch
from amqpd.storage.data_directory import RESERVE, SPILL, DataDirectory
from amqpd.storage.directory_removal import DirectoryRemover
from amqpd.storage.fd_budget import FdBudget
from amqpd.storage.filesystem import Clock, FileSystem
from amqpd.storage.fsync_thread import FsyncThread, InlineCommitter, Removal
from amqpd.storage.group_commit import GroupCommit
from amqpd.storage.local_log import LocalLog, LogKeeper
from amqpd.storage.log import recovery
from amqpd.storage.log.checkpoint import FORMAT_WITH_DELAYS
from amqpd.storage.log.log import Log
from amqpd.storage.log.writer import mark_clean
from amqpd.storage.loop_log import LogContext
from amqpd.storage.maintenance import LogMaintenance
from amqpd.storage.queue_json import DirectorySurvey, describe, survey
from amqpd.storage.queue_log import LogUnusable, QueueLog
from amqpd.storage.retention_policy import RetentionPolicy
from amqpd.storage.worker import ReadAhead, WorkerThread

logger = logging.getLogger(__name__)

# Of one log's reading, before the loop has its turn.
SLICE_S: Final = 0.004


class LogRecoveryQueue:
    """The logs that are being opened. Loop thread only, but for the writing.

    post: calls a function with arguments on the loop, from any thread. strict: see `recovery.Reading`. inline: no
    thread and no slices, for simulations. cut_noted: no log is left that has yet to take note of a power cut.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        place: DataDirectory,
        clock: Clock,
        post: Callable[..., object],
        *,
        strict: bool,
        inline: bool,
    ) -> None:
        self.cut_noted = not place.power_cut
        self._filesystem = filesystem
        self._place = place
        self._clock = clock
        self._post = post
        self._strict = strict
        self._thread = None if inline else WorkerThread("amqpd-recovery")
        self._readings: dict[LocalLog, recovery.RecoveryReader] = {}  # not read to their ends
        self._failed: set[LocalLog] = set()  # could not be read in slices: who tries again is to meet the error
        self._scheduled = False
        self._read: dict[LocalLog, recovery.RecoveredLog] = {}  # read, and not in use yet
        self._uncut: set[LocalLog] = set()  # logs that have not taken note of the power cut

    def expect(self, store: LocalLog) -> None:
        """The store has a log of an earlier life, which has to take note of a power cut if there was one."""
        if not self.cut_noted:
            self._uncut.add(store)

    def recover(self, store: LocalLog) -> None:
        """Opens the store's log now. Waits for the disk, or for the thread that is at it. Raises: as `Reading.go_on`
        and `Opening.finish`; then it may be tried again.
        """
        opening = self._read.pop(store, None)
        if opening is None:
            opening = self._begin(store)
        opening.write()  # waits for the thread that is at it
        opening.finish()
        self._uncut.discard(store)
        if not self.cut_noted and not self._uncut:
            self.cut_noted = True  # every log has taken note of the power cut, so the next start need not
            self._place.note_boot()

    def open_soon(self, store: LocalLog, done: Callable[[], None]) -> bool:
        """See `Storage.open_soon`."""
        if store.ready:
            return True
        opening = self._read.get(store)
        if opening is None:
            reading = self._readings.get(store)
            if reading is None:
                if self._thread is None or store in self._failed:
                    opening = self._begin(store)
                else:
                    reading = self._reading(store)
                    try:
                        opening = reading.go_on(SLICE_S)
                    except OSError:
                        opening = self._begin(store)
            if opening is None:
                assert reading is not None  # it has just gone on, or does in another turn
                reading.waiting.append(done)
                self._readings[store] = reading
                self._go_on_soon()
                return False
            if self._is_whole(store, opening):
                store.recover()
                return True
        elif opening.told:  # whoever asks again behind `done` is not called a second time
            store.recover()
            return True
        opening.waiting.append(done)
        return False

    def _is_whole(self, store: LocalLog, opening: recovery.RecoveredLog) -> bool:
        """The log has been read. False: the thread has something to write."""
        self._read[store] = opening
        if self._thread is None or not opening.waits:
            return True
        self._thread.call(partial(self._write, opening))
        return False

    def _go_on_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._post(self._go_on)

    def _go_on(self) -> None:
        """A slice of the log that was begun first."""
        self._scheduled = False
        if not self._readings:
            return
        store, reading = next(iter(self._readings.items()))
        try:
            opening = reading.go_on(SLICE_S)
        except Exception as error:
            if not isinstance(error, OSError | LogUnusable):
                logger.exception("the log of queue '%s' cannot be read", store.name)
            del self._readings[store]
            self._failed.add(store)
            _tell(reading.waiting)  # who tries it meets the error too, and tells of it
        else:
            if opening is not None:
                del self._readings[store]
                if self._is_whole(store, opening):
                    opening.told = True
                    _tell(reading.waiting)
                else:
                    opening.waiting += reading.waiting
        if self._readings:
            self._go_on_soon()

    def _reading(self, store: LocalLog) -> recovery.RecoveryReader:
        place = self._place
        return recovery.RecoveryReader(store, place.boot, self._clock, power_cut=place.power_cut, strict=self._strict)

    def _begin(self, store: LocalLog) -> recovery.RecoveredLog:
        """Reads all of it, or what is left, at once."""
        self._failed.discard(store)
        reading = self._readings.pop(store, None)
        if reading is None:
            reading = self._reading(store)
        elif reading.waiting:
            self._post(_tell, reading.waiting)
        try:
            return reading.all()
        except OSError as error:
            if not self._filesystem.room_after(error):
                raise
            return self._reading(store).all()

    def _write(self, opening: recovery.RecoveredLog) -> None:
        """In the thread."""
        opening.write()
        self._post(self._written, opening)

    def _written(self, opening: recovery.RecoveredLog) -> None:
        opening.told = True
        waiting, opening.waiting = opening.waiting, []
        _tell(waiting)

    def drop(self, store: LocalLog) -> None:
        """The store is being deleted."""
        self._uncut.discard(store)
        self._failed.discard(store)
        reading = self._readings.pop(store, None)
        if reading is not None:
            reading.end()
        opening = self._read.pop(store, None)
        if opening is not None:
            opening.drop()  # or it goes on, and finds its files or not: nobody will look

    def close(self) -> None:
        """Logs that nobody has waited for are not made whole any more. Blocks for the one that is being written."""
        for reading in self._readings.values():
            reading.end()
        self._readings.clear()
        for opening in self._read.values():
            opening.drop()
        if self._thread is not None:
            self._thread.close()


def _tell(waiting: list[Callable[[], None]]) -> None:
    for done in waiting:
        done()


SEGMENT_SIZE_BYTES = 64 << 20


class Storage(LogKeeper):
    """One per data directory and process. Loop thread only.

    post: calls a function with arguments on the loop, from any thread (`loop.call_soon_threadsafe`).
    later: calls a function on the loop after so many seconds (`loop.call_later`): settlements are then written every
    50 ms; without it with each turn.
    open_file_count_max: descriptors that logs keep open; by default 3/4 of what the process may have, at most 4,096.
    segment_age_ms: `maintain` rolls an active segment whose first message is older; -1: none.
    inline: no thread: each group is synced inside `end_of_turn`, for simulations.
    boot_id: of the machine, 32 hexadecimal digits with or without dashes; read from /proc by default.
    context: what all stores share; its `dirty` are those that the end of the running turn writes.
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
        clock = clock if clock is not None else Clock()
        filesystem = filesystem if filesystem is not None else FileSystem()
        self.clock_watch = ClockWatch(clock)
        self.filesystem = filesystem
        self.data_dir = os.path.abspath(data_dir)
        self.segment_size_bytes = segment_size_bytes
        self.strict = strict
        self.export_losses = ExportLosses()
        self.retained = RetainedBytes()
        self.replicates = False  # durable queues' logs are elsewhere: a node of a cluster
        self._stores: dict[LocalLog, None] = {}  # in their order, so that simulations repeat themselves
        self._closed = False
        reserve_path = f"{self.data_dir}/{RESERVE}"
        self._resources = FdBudget(filesystem, clock, self._stores, reserve_path, open_file_count_max)
        self._ahead = ReadAhead(filesystem, post)
        self.context = LogContext(clock, None if inline else self._ahead)
        self.context.has_ticks = later is not None
        self._place = DataDirectory(filesystem, self.data_dir, boot_id)
        self.boot_id = self._place.boot_id
        self.power_cut = self._place.power_cut
        self._openings = LogRecoveryQueue(filesystem, self._place, clock, post, strict=strict, inline=inline)
        filesystem.remove_tree(f"{self.data_dir}/{SPILL}")
        self._resources.take_reserve()
        self._chores = WorkerThread("amqpd-removal")
        if not inline:
            filesystem.closer = self._close_later
        commits = self.commits = GroupCommit(self.context, filesystem, self._resources, later)
        kind = InlineCommitter if inline else FsyncThread
        self._committer = kind(
            filesystem, self._place.lock_fd, post, commits.committed, commits.settle_due, self._chores.call, clock
        )
        self.sync_times = self._committer.times
        if isinstance(self._committer, InlineCommitter):
            self._committer.later = later
        commits.start(self._committer)
        self.departures = DirectoryRemover(filesystem, self._committer, self._chores.call if not inline else _at_once)
        watch, boot = self.clock_watch, self._place.boot
        self._upkeep = LogMaintenance(
            filesystem, watch, self._committer, post, commits.gather, boot, segment_age_ms, inline
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
        log = self._queue_log(vhost_id, queue_id, name, vhost_name, auto_delete, arguments)
        store = LocalLog(self.context, log, vhost_id, queue_id, name, self, True)
        self.set_policy(store, policy)
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
        log = self._queue_log(vhost_id, queue_id, name, vhost_name, auto_delete, arguments)
        store = LocalLog(self.context, log, vhost_id, queue_id, name, self, False)
        self.set_policy(store, policy)
        self._stores[store] = None
        self._openings.expect(store)
        return store

    def open_own(self, directory: str, queue_id: str, name: str, vhost_name: str, arguments: bytes) -> LocalLog:
        """The store of a queue of the broker's own, in a directory beside `vhosts`; otherwise as `open_queue`."""
        described = partial(describe, name, vhost_name, False, arguments, queue_id)
        log = self._log([self.data_dir, f"{self.data_dir}/{directory}"], described)
        store = LocalLog(self.context, log, "", queue_id, name, self, False)
        self._stores[store] = None
        self._openings.expect(store)
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
        log = self._log([root, f"{root}/{queue_id}"], partial(describe, name, "", False, b"", queue_id), durable=False)
        store = LocalLog(self.context, log, "", queue_id, name, self, True)
        store.next_offset = first_offset
        self._stores[store] = None
        return store

    # -- logs that are no queue's

    def create_log(self, chain: list[str], name: str, vhost_name: str, vhost_id: str) -> LocalLog:
        """An empty store that lives at the end of `chain`, directories from the data directory on; it is somebody's who
        is no queue, `name` in its queue.json. Nothing is on the disk before the first append.
        """
        return self._log_at(chain, name, vhost_name, vhost_id, True)

    def open_log(self, chain: list[str], name: str, vhost_name: str, vhost_id: str) -> LocalLog:
        """The store of one that is there already; as `open_queue` it reads nothing."""
        store = self._log_at(chain, name, vhost_name, vhost_id, False)
        self._openings.expect(store)
        return store

    def _log_at(self, chain: list[str], name: str, vhost_name: str, vhost_id: str, ready: bool) -> LocalLog:
        log_id = os.path.basename(chain[-1])
        log = self._log(chain, partial(describe, name, vhost_name, False, b"", log_id))
        store = LocalLog(self.context, log, vhost_id, log_id, name, self, ready)
        self._stores[store] = None
        return store

    def retire_directory(self, chain: list[str], stores: Sequence[QueueLog], done: Callable[[], None]) -> None:
        """A directory leaves with these logs in it, renamed as a whole, and what was in it goes after that; nothing in
        the metadata knows of it. `done()` on the loop when it does not come back.
        """

        def renamed() -> None:
            done()
            self.departures.remove(chain[-1])

        self._retire_chain(chain, [store for store in stores if isinstance(store, LocalLog)], renamed)

    def delay_chain(self, vhost_id: str, *names: str) -> list[str]:
        """The directories down to one of a vhost's delayed messages: none, its exchange's, a bucket's."""
        chain = self._place.queue_chain(vhost_id, "")[:3]
        for name in ("delays", *names):
            chain.append(f"{chain[-1]}/{name}")
        return chain

    def note_delays(self) -> None:
        """The first message is about to be delayed: from now on an amqpd that would not see such messages does not
        start here. Raises: OSError.
        """
        self._place.note_format(FORMAT_WITH_DELAYS)

    @property
    def ended_badly(self) -> bool:
        """Whether the process before this one was killed, or ended with the machine."""
        return self._place.ended_badly

    def set_policy(self, store: LocalLog, policy: RetentionPolicy | None) -> None:
        """What the store's log keeps from now on; the next `maintain` acts on it. None: what is settled goes."""
        size = policy.segment_size_bytes if policy is not None else -1
        store.log.policy = policy
        store.log.segment_size_bytes = size if size > 0 else self.segment_size_bytes
        store.log.removals.delay_ms = policy.file_delete_delay_ms if policy is not None else 0
        store.appender.codec = policy.codec if policy is not None else 0

    def retain(self, store: LocalLog, max_age_ms: int, max_bytes: int) -> None:
        """What is settled in the store's log stays from now on until it is older, or there is more: see retained.py.
        -1: no limit; both -1: nothing stays because of this. What it lets go is removed soon.
        """
        removals = store.log.removals
        retention = removals.retention
        if max_age_ms < 0 and max_bytes < 0:
            if retention is not None:
                retention.end()
            removals.retention = None
            store.log.segment_size_bytes = self.segment_size_bytes
        else:
            if retention is None:
                retention = removals.retention = AckedRetention(self.clock_watch, self.retained)
            retention.max_age_ms, retention.max_bytes = max_age_ms, max_bytes
            store.log.segment_size_bytes = retention.segment_size_bytes(self.segment_size_bytes)
        self.hold_changed(store)

    def rewind(self, store: LocalLog) -> AckedReplay:
        """To make settled messages live again: see storage/acks/replay.py."""
        return AckedReplay(store, self._committer.submit, self.commits.gather)

    def find_hold(self, store: QueueLog) -> ExportHold | None:
        """What the log keeps for exports, if anything was ever to be kept of it."""
        return store.log.removals.hold if isinstance(store, LocalLog) else None

    def hold(self, store: QueueLog) -> ExportHold:
        """The same; a new hold keeps nothing before it has exporters. Raises: TypeError when it is not a local log."""
        if not isinstance(store, LocalLog):
            raise TypeError(f"the log of queue '{store.name}' is not on this disk")
        removals = store.log.removals
        if removals.hold is None:
            removals.hold = ExportHold(self.filesystem, store.log.chain, store.name, self.export_losses)
        return removals.hold

    def hold_changed(self, store: QueueLog) -> None:
        """Somebody has set, cleared or moved a hold: what it lets go is removed soon, on the next commit's way."""
        if isinstance(store, LocalLog) and store.ready and not store.failed:
            store.log.removals.wanted = True
            self.commits.gather(store)

    def maintain(self) -> None:
        """A round of the background work: see maintenance.py. The owner calls it from a timer. Raises nothing.

        Cost: 1 us per log and a step per segment of those that keep, in slices of 5 ms.
        """
        self._upkeep.maintain(list(self._stores))

    def delete_queue(self, store: LocalLog, done: Callable[[], None] | None = None) -> None:
        """The store is not used any more; its files are removed behind the syncs at work. For one that no metadata
        knows of: deletions that are answered go by `retire_queue`.

        done: called on the loop when they are gone. A commit that waits for this store counts as done for it.
        """
        self._abandon(store)
        removal = Removal(store.log.directory, done if done is not None else _nothing)
        self._upkeep.when_free(store, lambda: self._committer.submit(removal))

    def leave_queue(self, store: QueueLog) -> None:
        """Its queue goes on elsewhere: it is not used here any more, and what it has on this disk goes."""
        store.remove()

    def retire_queue(self, store: LocalLog, done: Callable[[], None]) -> None:
        """The store is not used any more, and its directory is renamed: see directory_removal.py. `done()` on the loop
        when that is on the medium. A commit that waits for this store counts as done for it.
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
        self._retire_chain(self.vhost_chain(vhost_id), local, one_done)

    def _retire_chain(self, chain: list[str], stores: Sequence[LocalLog], done: Callable[[], None]) -> None:
        for store in stores:
            self._abandon(store)
        for store in stores:
            if self._upkeep.is_at(store):
                self._upkeep.when_free(store, lambda: self.departures.rename(chain, done))
                return
        self.departures.rename(chain, done)

    def queue_chain(self, vhost_id: str, queue_id: str) -> list[str]:
        """The directories down to a queue's, the data directory first, it being the last."""
        return self._place.queue_chain(vhost_id, queue_id)

    def vhost_chain(self, vhost_id: str) -> list[str]:
        """The same for a vhost's."""
        return self._place.queue_chain(vhost_id, "")[:3]

    def _abandon(self, store: LocalLog) -> None:
        store.deleted = True  # also to the tick at work, which forgets it
        store.failed = True
        self._stores.pop(store, None)
        self._openings.drop(store)
        self.commits.drop(store)
        store.let_go()
        if store.log.removals.retention is not None:
            store.log.removals.retention.end()
        store.log.abandon()
        store.safety_moved()

    def survey(self) -> DirectorySurvey:
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

    def _queue_log(
        self, vhost_id: str, queue_id: str, name: str, vhost_name: str, auto_delete: bool, arguments: bytes
    ) -> Log:
        described = partial(describe, name, vhost_name, auto_delete, arguments, queue_id)
        return self._log(self._place.queue_chain(vhost_id, queue_id), described)

    def _log(self, chain: list[str], described: Callable[[], bytes], durable: bool = True) -> Log:
        """At the end of `chain`. described: what its queue.json shall say."""
        size_bytes, boot, reserve = self.segment_size_bytes, self._place.boot, self._resources.reserve
        return Log(self.filesystem, chain, described, size_bytes, boot, reserve, durable)

    def recover(self, store: LocalLog) -> None:
        """Fills the log from the disk; once, before its first use. Raises: OSError; UnknownFormat; DamagedLog."""
        self._openings.recover(store)
        if find_hold(self.filesystem, store.log.directory):
            self.hold(store).load()
        if store.log.dirty:  # what was found is synced, and what was settled removed, soon
            self.commits.gather(store)

    def open_soon(self, store: LocalLog, done: Callable[[], None]) -> bool:
        """Whether the store can be used now. Else its log has been read, and what recovery has to write and sync is
        with another thread: `done` is called on the loop when `store.recover()` no longer waits for the disk. Who
        cannot wait calls that at once. Raises: as `recover`.
        """
        return self._openings.open_soon(store, done)

    def _close_later(self, fd: int) -> None:
        self._chores.call(partial(self.filesystem.close, fd))

    # -- the stop

    def close(self, *, clean: bool) -> None:
        """Ends the committer. clean: everything is written and synced first, and each log gets its clean-shutdown mark.

        Blocks for the syncs; `on_commit` is called for what they covered, on the loop or, at the end, in here.
        """
        if self._closed:
            return
        self._closed = True
        self.commits.stop()
        self._upkeep.stop()
        self._committer.close()
        self.filesystem.closer = None
        self._openings.close()
        self._chores.close()
        self._ahead.worker.close()
        self.commits.finish_job()
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
        self.commits.sync_all(self._stores, self._place.lock_fd)
        late = [store for store in self._stores if store.settles]  # what came from there and is safe elsewhere now
        if late:
            for store in late:
                store.finish()
            self.commits.sync_all(late, self._place.lock_fd)
        for store in self._stores:
            try:
                mark_clean(store.log, store.delivered_mark)
            except OSError as error:  # the next start then checks more
                logger.warning("clean-shutdown mark of queue %s: %s", store.name, error)
        if self._openings.cut_noted:
            self._place.forget_boot()

    def _sync_unopened(self) -> None:
        """What a kill left in the page cache of logs that nobody has opened since: the stop is clean for them too."""
        if self._place.ended_badly and not all(store.ready for store in self._stores):
            try:
                self.filesystem.syncfs(self._place.lock_fd)
            except OSError as error:  # those logs have no clean mark, so the next start looks at all of them
                logger.error("what an earlier life left could not be synced: %s", error)


def _nothing() -> None:
    """Whoever deleted the queue did not want to be told."""


def _at_once(work: Callable[[], None]) -> None:
    work()
