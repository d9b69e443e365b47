"""The committer: one thread that makes what was written safe, and says so.

A `SyncBatch` is everything the stores wrote since the last one: group commit, without an object per message. The thread
syncs its files and directories, then does what was waiting for that (checkpoints, removing settled segments), then
posts the job back to the loop. While it works the next job fills, so the size of a group finds itself.

Many dirty files are synced by one `syncfs`. That reports no file, so when it fails each file gets one `fdatasync`; the
descriptors still remember an error they were not told of. (Of a log with files that were closed for want of descriptors
nothing remembers: with a `syncfs` that fails it has failed.) A file whose sync failed is never synced again: after the
failure the kernel calls its pages clean, and a second sync would succeed without the data.

Histograms of the group commit: how long groups take to sync, how large they are, how old acks are when written.

Counts are by bucket, not added up; the last is of what is above all bounds. The committer's thread alone writes those
of `SyncTimes`, once per group: a reader sees at most one group that is counted in one of them and not yet in another.
"""

from __future__ import annotations

import errno
import logging
import queue
import threading
from bisect import bisect_left
from collections.abc import Callable
from typing import Final

from amqpd.storage.acks.ack_files import FULL
from amqpd.storage.acks.segment_removal import DELETED
from amqpd.storage.filesystem import Clock, FileSystem
from amqpd.storage.log.producer_state import SUFFIX, write_snapshot
from amqpd.storage.sync_job import SyncBatch, SyncPart

BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
BOUNDS_BYTES: Final = (1024, 4096, 16384, 65536, 262144, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
BOUNDS_ACKS_S: Final = (0.01, 0.025, 0.05, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
BOUNDS_LOGS: Final = (1, 2, 4, 8, 16, 64, 256, 1024, 4096)


class SyncTimes:
    """total_s, total_bytes, total_logs: of all groups together."""

    def __init__(self) -> None:
        self.by_time = [0] * (len(BOUNDS_S) + 1)
        self.by_bytes = [0] * (len(BOUNDS_BYTES) + 1)
        self.by_logs = [0] * (len(BOUNDS_LOGS) + 1)
        self.total_s = 0.0
        self.total_bytes = 0
        self.total_logs = 0

    def add(self, took_s: float, size_bytes: int, logs: int) -> None:
        """One group. Cost: 1 us."""
        self.by_time[bisect_left(BOUNDS_S, took_s)] += 1
        self.by_bytes[bisect_left(BOUNDS_BYTES, size_bytes)] += 1
        self.by_logs[bisect_left(BOUNDS_LOGS, logs)] += 1
        self.total_s += took_s
        self.total_bytes += size_bytes
        self.total_logs += logs

    @property
    def count(self) -> int:
        """Groups."""
        return sum(self.by_time)


class AckAges:
    """How old the oldest ack was, each time that acks were written. The loop's thread writes it, 20 times a second."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_ACKS_S) + 1)
        self.total_s = 0.0

    def add(self, age_s: float) -> None:
        """Acks were written, the oldest of them of this age."""
        self.counts[bisect_left(BOUNDS_ACKS_S, age_s)] += 1
        self.total_s += age_s


logger = logging.getLogger(__name__)

SYNCFS_FROM = 9  # files; below it one fdatasync each is cheaper (measured: 200 files 20 ms one by one, 3 ms together)
SETTLED_FILES = (".settled", ".settled.swap")
OPEN_TRIES = 50
OPEN_RETRY_S = 0.1


class Task:
    """Work of any kind, in its order between the jobs: `run` in the thread, then `done` on the loop.

    run raises OSError, which is logged and given to `done`, or nothing.
    """

    def __init__(self, run: Callable[[], None], done: Callable[[OSError | None], None]) -> None:
        self.run = run
        self.done = done


class Removal:
    """A directory to remove, then `done` to call on the loop. keep: only what is in it goes."""

    def __init__(self, path: str, done: Callable[[], None], *, keep: bool = False) -> None:
        self.path = path
        self.done = done
        self.keep = keep


def patiently(filesystem: FileSystem, sync: Callable[[str], None], path: str) -> None:
    """Opens and syncs what is at `path`. With no descriptor to be had it takes the spare one, and else waits: nothing
    has failed to be synced then.

    Raises: OSError, after some seconds without a descriptor or as soon as anything else goes wrong.
    """
    spare = False
    for left in range(OPEN_TRIES, 0, -1):
        try:
            sync(path)
            break
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE} or left == 1:
                raise
        if filesystem.give_spare():
            spare = True
        else:
            filesystem.pause(OPEN_RETRY_S)
    if spare:
        filesystem.keep_spare()


def _sync_part(filesystem: FileSystem, part: SyncPart) -> None:
    if part.closed:  # what the disk forgot of it nobody can tell any more
        part.failed = True
        logger.error("sync failed: files that were closed before it", extra={"queue": part.name})
        return
    try:
        for file in part.files:
            filesystem.fdatasync(file.fd)
        for path in part.paths:
            patiently(filesystem, filesystem.fsync_file, path)
        for path in part.directories:
            patiently(filesystem, filesystem.fsync_dir, path)
    except OSError as error:
        part.failed = True
        logger.error("sync failed: %s", error, extra={"queue": part.name})


def _follow(filesystem: FileSystem, part: SyncPart) -> None:
    """What was waiting for the part's syncs. Where a checkpoint finds no room it comes once more, behind the removal of
    segments, which makes some; `.settled` files go behind it in any case. Raises: OSError.
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
        part.renamed = False
        filesystem.rename(source, target)
        part.renamed = True


def _write_checkpoints(filesystem: FileSystem, part: SyncPart) -> None:
    for path, data in part.checkpoints:
        if path.endswith(SUFFIX):
            write_snapshot(filesystem, path, data)
        else:
            filesystem.replace_file(path, data, sync=False)


def run_job(filesystem: FileSystem, job: SyncBatch, root_fd: int) -> None:
    """Makes the job's files safe; marks the parts that failed. root_fd: a descriptor on the data directory's disk."""
    together = tried = False
    if job.file_count() >= SYNCFS_FROM or job.closed():
        try:
            filesystem.syncfs(root_fd)
            together = True
        except OSError as error:
            logger.error("syncfs failed, syncing file by file: %s", error)
            tried = True
    if not together:
        for part in job.parts:
            _sync_part(filesystem, part)
        if tried and not any(part.failed for part in job.parts):  # nobody owns up to the error: nothing can be trusted
            for part in job.parts:
                part.failed = True
    for part in job.parts:
        if part.failed or not part.follows():
            continue
        try:
            _follow(filesystem, part)
        except OSError as error:  # costs time at the next start, or space until then; never a message
            logger.warning("after the sync: %s", error, extra={"queue": part.name})


class FsyncThread:
    """Runs jobs on its thread.

    post: calls a function on the loop, from any thread. committed: what is called there with each job done.
    settle_due: what is called there when a `wake` has come due. elsewhere: has a function called by another thread:
    removing a long log takes seconds, in which nothing would be synced. times: how long its jobs took.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        root_fd: int,
        post: Callable[..., object],
        committed: Callable[[SyncBatch], None],
        settle_due: Callable[[], None],
        elsewhere: Callable[[Callable[[], None]], None],
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._filesystem = filesystem
        self._root_fd = root_fd
        self._post = post
        self._committed = committed
        self._settle_due = settle_due
        self._elsewhere = elsewhere
        self.times = SyncTimes()
        self._begin()

    def _begin(self) -> None:
        self._queue: queue.SimpleQueue[SyncBatch | Removal | Task | float | None] = queue.SimpleQueue()
        self._filesystem.keep_spare()
        self._thread = threading.Thread(target=self._run, name="amqpd-committer", daemon=True)
        self._thread.start()

    def submit(self, work: SyncBatch | Removal | Task) -> None:
        """Hands over work; done in order."""
        self._queue.put(work)

    def wake(self, delay_s: float) -> None:
        """Calls `settle_due` on the loop after `delay_s`, unless a job comes first, whose end does as much."""
        self._queue.put(delay_s)

    def close(self) -> None:
        """Does what was handed over, then ends the thread."""
        self._queue.put(None)
        self._thread.join()
        self._filesystem.give_spare()

    def _run(self) -> None:
        delay_s: float | None = None
        while True:
            try:
                work = self._queue.get(timeout=delay_s)
            except queue.Empty:
                delay_s = None
                self._post(self._settle_due)
                continue
            if work is None:
                return
            if isinstance(work, float):
                delay_s = work
                continue
            if isinstance(work, SyncBatch):
                delay_s = None  # behind other work, which is rare, the waiting begins anew
            self._do(work)
            del work  # who asked for it is not kept until the next

    def _do(self, work: SyncBatch | Removal | Task) -> None:
        if isinstance(work, SyncBatch):
            begun_s = self._clock.monotonic()
            try:
                run_job(self._filesystem, work, self._root_fd)
            except Exception:  # a bug; but without an answer every publisher would wait for ever
                logger.exception("the committer failed")
                for part in work.parts:
                    part.failed = True
            self.times.add(self._clock.monotonic() - begun_s, work.size_bytes, len(work.parts))
            self._post(self._committed, work)
        elif isinstance(work, Task):
            failed: OSError | None = None
            try:
                work.run()
            except OSError as error:
                logger.warning("in the background: %s", error)
                failed = error
            self._post(work.done, failed)
        else:
            self._elsewhere(lambda: self._remove(work))

    def _remove(self, work: Removal) -> None:
        try:
            if work.keep:
                self._filesystem.empty_tree(work.path)
            else:
                self._filesystem.remove_tree(work.path)
        except OSError as error:
            logger.warning("removing %s: %s", work.path, error)
        self._post(work.done)


class InlineCommitter(FsyncThread):
    """Does each piece of work at once, in the caller's thread: for simulations, where every run must be the same.

    later: the simulation's `call_later`, if it has one.
    """

    later: Callable[[float, Callable[[], None]], object] | None = None

    _closed = False

    def _begin(self) -> None:
        self._elsewhere = _at_once

    def submit(self, work: SyncBatch | Removal | Task) -> None:
        """Does it; after `close` nothing, as the thread."""
        if not self._closed:
            self._do(work)

    def wake(self, delay_s: float) -> None:
        """Calls `settle_due` when it is time; where there is no clock that calls, at once."""
        if self.later is not None:
            self.later(delay_s, self._settle_due)
        else:
            self._post(self._settle_due)

    def close(self) -> None:
        """Nothing is ever waiting."""
        self._closed = True


def _at_once(work: Callable[[], None]) -> None:
    work()
