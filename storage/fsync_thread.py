"""The fsync thread: makes written files safe and reports it to the loop.

A `SyncBatch` contains all writes since the last one, so there is no object per message. The thread syncs the files
and directories of the batch. Then it does what waited for the syncs (checkpoints, deleting settled segments), and
posts the batch back. The next batch fills meanwhile, so the size of groups adapts to the disk.

One `syncfs` syncs many dirty files. It names no file when it fails. Then each file gets one `fdatasync`, because
its descriptor still reports an error that was not reported yet. A log with files that were closed before a failed
`syncfs` counts as failed. A file whose sync failed is never synced again: the kernel then marks its pages clean,
and a second sync would succeed without the data.

With a journal, a second thread syncs logs and acknowledgements in the background. A job whose syncs are followed by
other work waits for it. Any failed sync stops the journal.

The histograms of the group commit are here too: sync time, bytes and logs per group, and the age of acks when they
are written. A count is for one bucket (not cumulative); the last bucket has no upper bound.
"""

from __future__ import annotations

import logging
import queue
import threading
from bisect import bisect_left
from collections.abc import Callable
from typing import Final

from amqpd.storage.acks.ack_files import FULL
from amqpd.storage.acks.segment_removal import DELETED
from amqpd.storage.filesystem import NO_DESCRIPTOR, Clock, FileSystem, OpenFile
from amqpd.storage.journal import Journal
from amqpd.storage.log.checkpoint import LOG_START
from amqpd.storage.log.producer_state import SUFFIX, write_snapshot
from amqpd.storage.sync_job import SyncBatch, SyncPart
from amqpd.storage.worker import WorkerThread

BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
BOUNDS_BYTES: Final = (1024, 4096, 16384, 65536, 262144, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
BOUNDS_ACKS_S: Final = (0.01, 0.025, 0.05, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
BOUNDS_LOGS: Final = (1, 2, 4, 8, 16, 64, 256, 1024, 4096)


class SyncTimes:
    """Histograms of sync jobs, written by the fsync thread only.

    A reader may see one group that is in one histogram and not yet in another.

    Attributes:
        total_s, total_bytes, total_logs: sums over all groups.
    """

    def __init__(self) -> None:
        self.by_time = [0] * (len(BOUNDS_S) + 1)
        self.by_bytes = [0] * (len(BOUNDS_BYTES) + 1)
        self.by_logs = [0] * (len(BOUNDS_LOGS) + 1)
        self.total_s = 0.0
        self.total_bytes = 0
        self.total_logs = 0

    def add(self, took_s: float, size_bytes: int, logs: int) -> None:
        """Add one group. Cost: 1 us."""
        self.by_time[bisect_left(BOUNDS_S, took_s)] += 1
        self.by_bytes[bisect_left(BOUNDS_BYTES, size_bytes)] += 1
        self.by_logs[bisect_left(BOUNDS_LOGS, logs)] += 1
        self.total_s += took_s
        self.total_bytes += size_bytes
        self.total_logs += logs

    @property
    def count(self) -> int:
        return sum(self.by_time)


class AckAges:
    """Histogram: age of the oldest ack at each write of acks. The loop's thread writes it, 20 times per second."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_ACKS_S) + 1)
        self.total_s = 0.0

    def add(self, age_s: float) -> None:
        """Add one write of acks."""
        self.counts[bisect_left(BOUNDS_ACKS_S, age_s)] += 1
        self.total_s += age_s


logger = logging.getLogger(__name__)

# Files. Below it, one fdatasync each is cheaper. Measured: 200 files take 20 ms one by one, 3 ms together.
SYNCFS_FROM = 9
# Logs. Measured: a commit of two logs takes half of the time and of the CPU with the journal.
JOURNAL_FROM = 2
SETTLED_FILES = (".settled", ".settled.swap")
OPEN_TRIES = 50
OPEN_RETRY_S = 0.1


class Task:
    """Other work for the fsync thread, in order between the jobs: `run` in the thread, then `done` on the loop.

    If `run` raises OSError, it is logged and passed to `done`.
    """

    def __init__(self, run: Callable[[], None], done: Callable[[OSError | None], None]) -> None:
        self.run = run
        self.done = done


class Removal:
    """Deletion of a directory, then `done` on the loop. With `keep` only its content is deleted."""

    def __init__(self, path: str, done: Callable[[], None], *, keep: bool = False) -> None:
        self.path = path
        self.done = done
        self.keep = keep


def sync_with_retry(filesystem: FileSystem, sync: Callable[[str], None], path: str) -> None:
    """Open and sync `path`. Without a free descriptor, use the spare one or retry: no sync has failed in this case.

    Raises: OSError, after OPEN_TRIES x OPEN_RETRY_S without a descriptor, or at once for any other error.
    """
    spare = False
    for left in range(OPEN_TRIES, 0, -1):
        try:
            sync(path)
            break
        except OSError as error:
            if error.errno not in NO_DESCRIPTOR or left == 1:
                raise
        if filesystem.close_spare():
            spare = True
        else:
            filesystem.pause(OPEN_RETRY_S)
    if spare:
        filesystem.open_spare()


def _sync_part(filesystem: FileSystem, part: SyncPart) -> None:
    if part.closed:  # only an open descriptor would report an earlier sync error
        part.failed = True
        logger.error("sync failed for files that were closed before", extra={"queue": part.name})
        return
    try:
        for file in part.files:
            filesystem.fdatasync(file.fd)
        for path in part.paths:
            sync_with_retry(filesystem, filesystem.fsync_file, path)
        for path in part.directories:
            sync_with_retry(filesystem, filesystem.fsync_dir, path)
    except OSError as error:
        part.failed = True
        logger.error("sync failed: %s", error, extra={"queue": part.name})


def _finish_part(filesystem: FileSystem, part: SyncPart) -> None:
    """Do what waited for the part's syncs. Raises: OSError.

    If the disk is full, delete the segments first, then write the checkpoints again. `.settled` files are always
    deleted after the checkpoint.
    """
    full = False
    try:
        _write_checkpoints(filesystem, part)
    except OSError as error:
        if error.errno not in FULL:
            raise
        full = True
    for path in part.unlinks:
        if not (full and path.endswith(SETTLED_FILES)):
            filesystem.unlink(path)
    for path in part.discards:
        if filesystem.exists(path):
            filesystem.rename(path, path + DELETED)
    if full:
        _write_checkpoints(filesystem, part)
        for path in part.unlinks:
            if path.endswith(SETTLED_FILES):
                filesystem.unlink(path)
    for source, target in part.renames:
        filesystem.rename(source, target)


def _write_checkpoints(filesystem: FileSystem, part: SyncPart) -> None:
    for path, data in part.checkpoints:
        if path.endswith(SUFFIX):
            write_snapshot(filesystem, path, data)
            continue
        is_start = part.syncs_start and path.endswith(LOG_START)
        filesystem.replace_file(path, data, sync=is_start)
        if is_start:
            filesystem.fsync_dir(path.removesuffix(f"/{LOG_START}"))


def sync_parts(filesystem: FileSystem, parts: list[SyncPart], root_fd: int) -> bool:
    """Sync the files of parts of a job and mark those that failed. Return whether one `syncfs` has synced everything.

    Args:
        root_fd: a descriptor on the disk of the data directory.
    """
    synced_together = syncfs_failed = False
    if sum(len(part.files) for part in parts) >= SYNCFS_FROM or any(part.closed for part in parts):
        try:
            filesystem.syncfs(root_fd)
            synced_together = True
        except OSError as error:
            logger.error("syncfs failed, syncing file by file: %s", error)
            syncfs_failed = True
    if not synced_together:
        for part in parts:
            _sync_part(filesystem, part)
        # No file reports the error of syncfs, so no part can be trusted.
        if syncfs_failed and not any(part.failed for part in parts):
            for part in parts:
                part.failed = True
    for part in parts:
        if part.failed or not part.has_work_after_sync():
            continue
        try:
            _finish_part(filesystem, part)
        except OSError as error:
            # Costs time at the next start, or disk space until then, but no message.
            part.unfinished = True
            if not part.is_repeated:
                logger.warning("work after the sync failed: %s", error, extra={"queue": part.name})
    return synced_together


class FsyncThread:
    """Runs sync jobs, tasks and removals on a thread.

    Args:
        post: calls a function on the loop, from any thread.
        committed: called on the loop with each completed job.
        acks_due: called on the loop when a `wake` is due.
        run_in_worker: runs a function in another thread. Deleting a long log takes seconds, which would delay syncs.

    Attributes:
        times: durations of the jobs.
        journal: None if the data directory has none. Set before the first job.
        journal_from: logs in a job from which on it uses the journal.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        root_fd: int,
        post: Callable[..., object],
        committed: Callable[[SyncBatch], None],
        acks_due: Callable[[], None],
        run_in_worker: Callable[[Callable[[], None]], None],
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._filesystem = filesystem
        self._root_fd = root_fd
        self._post = post
        self._committed = committed
        self._acks_due = acks_due
        self._run_in_worker = run_in_worker
        self.times = SyncTimes()
        self.journal: Journal | None = None
        self.journal_from = JOURNAL_FROM
        # Directories of logs whose background sync failed. Written by the other thread before `_background_idle`.
        self._failed_in_background: set[str] = set()
        # The files of the running background job.
        self._background_files: frozenset[OpenFile] = frozenset()
        self._background_idle = threading.Event()
        self._background_idle.set()
        self._begin()

    def _begin(self) -> None:
        self._queue: queue.SimpleQueue[SyncBatch | Removal | Task | float | None] = queue.SimpleQueue()
        self._filesystem.open_spare()
        self._background = WorkerThread("amqpd-background-sync")
        self._thread = threading.Thread(target=self._run, name="amqpd-committer", daemon=True)
        self._thread.start()

    def submit(self, work: SyncBatch | Removal | Task) -> None:
        """Submit work. The thread does it in order."""
        self._queue.put(work)

    def submit_background(self, job: SyncBatch, done: Callable[[SyncBatch], None]) -> None:
        """Sync a job in the background, then call `done` on the loop. One at a time."""
        self._background_files = frozenset(file for part in job.parts for file in part.files)
        self._background_idle.clear()
        self._background.call(lambda: self._sync_in_background(job, done))

    def _sync_in_background(self, job: SyncBatch, done: Callable[[SyncBatch], None]) -> None:
        journal = self.journal
        assert journal is not None
        try:
            sync_parts(self._filesystem, job.parts, journal.fd)
        except Exception:
            logger.exception("the background sync failed")
            for part in job.parts:
                part.failed = True
        failed = [part.directory for part in job.parts if part.failed]
        if failed:
            self._failed_in_background.update(failed)
            journal.stop()
        else:
            journal.on_logs_synced(job.journal_mark)
        self._background_files = frozenset()
        self._background_idle.set()
        self._post(done, job)

    def _run_job(self, job: SyncBatch) -> None:
        """Make a job safe: by the journal, or by syncs of its files."""
        journal = self.journal
        if journal is None or journal.fd < 0:
            sync_parts(self._filesystem, job.parts, self._root_fd)
            return
        parts = job.parts
        offered = [part for part in parts if part.journal_path]
        if journal.usable and len(offered) >= self.journal_from and self._append(journal, offered):
            for part in offered:
                part.journaled = True
            parts = [part for part in parts if not part.journaled]
        # What follows the syncs of a job may need acknowledgements that are being synced in the background.
        if job.whole or any(part.directories or part.has_work_after_sync() for part in parts):
            self._background_idle.wait()
        self._fail_like_background(parts)
        parts = [part for part in parts if not part.failed]
        mark = journal.sequence + 1
        synced_together = sync_parts(self._filesystem, parts, self._root_fd)
        # A descriptor reports an error once, perhaps to the other thread.
        if not synced_together and any(file in self._background_files for part in parts for file in part.files):
            self._background_idle.wait()
        self._fail_like_background(parts)
        if any(part.failed for part in parts):
            journal.stop()
        elif synced_together:
            journal.on_logs_synced(mark)

    def _fail_like_background(self, parts: list[SyncPart]) -> None:
        """Mark the parts of logs whose background sync failed."""
        if self._failed_in_background:
            for part in parts:
                part.failed = part.failed or part.directory in self._failed_in_background

    def empty_journal(self) -> None:
        """Sync everything that the journal has, and make its frames void. Fsync thread. Raises: OSError."""
        if self.journal is not None:
            self.journal.sync_and_empty(self._root_fd)

    def _append(self, journal: Journal, parts: list[SyncPart]) -> bool:
        try:
            return journal.append(parts)
        except OSError as error:
            logger.error("a write to the journal failed, the logs are synced instead: %s", error)
            return False

    def wake(self, delay_s: float) -> None:
        """Call `acks_due` on the loop after `delay_s`, unless a job comes first.

        The end of a job has the same effect.
        """
        self._queue.put(delay_s)

    def close(self) -> None:
        """Complete all submitted work, then end the thread."""
        self._queue.put(None)
        self._thread.join()
        self._background.close()
        self._filesystem.close_spare()

    def _run(self) -> None:
        delay_s: float | None = None
        while True:
            try:
                work = self._queue.get(timeout=delay_s)
            except queue.Empty:
                delay_s = None
                self._post(self._acks_due)
                continue
            if work is None:
                return
            if isinstance(work, float):
                delay_s = work
                continue
            if isinstance(work, SyncBatch):
                delay_s = None  # other work, which is rare, restarts the delay
            self._do(work)
            del work  # release its objects while the thread waits

    def _do(self, work: SyncBatch | Removal | Task) -> None:
        if isinstance(work, SyncBatch):
            begun_s = self._clock.monotonic()
            try:
                self._run_job(work)
            except Exception:
                # A bug. Without a result, every publisher would wait forever.
                logger.exception("the fsync thread failed")
                for part in work.parts:
                    part.failed = True
            self.times.add(self._clock.monotonic() - begun_s, work.size_bytes, len(work.parts))
            self._post(self._committed, work)
        elif isinstance(work, Task):
            failed: OSError | None = None
            try:
                work.run()
            except OSError as error:
                logger.warning("background work failed: %s", error)
                failed = error
            self._post(work.done, failed)
        else:
            self._run_in_worker(lambda: self._remove(work))

    def _remove(self, work: Removal) -> None:
        try:
            if work.keep:
                self._filesystem.empty_tree(work.path)
            else:
                self._filesystem.remove_tree(work.path)
        except OSError as error:
            logger.warning("cannot remove %s: %s", work.path, error)
        self._post(work.done)


class InlineCommitter(FsyncThread):
    """Does all work at once in the caller's thread. For simulations, whose runs must be reproducible.

    Attributes:
        later: `call_later` of the simulation, if it has one.
    """

    later: Callable[[float, Callable[[], None]], object] | None = None

    _closed = False

    def _begin(self) -> None:
        self._run_in_worker = run_inline

    def submit_background(self, job: SyncBatch, done: Callable[[SyncBatch], None]) -> None:
        """Sync the job now."""
        self._sync_in_background(job, done)

    def submit(self, work: SyncBatch | Removal | Task) -> None:
        """Do the work now. After `close`, do nothing."""
        if not self._closed:
            self._do(work)

    def wake(self, delay_s: float) -> None:
        """Call `acks_due` after the delay, or at once if the simulation has no timer."""
        if self.later is not None:
            self.later(delay_s, self._acks_due)
        else:
            self._post(self._acks_due)

    def close(self) -> None:
        """Ignore later work."""
        self._closed = True


def run_inline(work: Callable[[], None]) -> None:
    """Do the work of a thread now, in a simulation."""
    work()
