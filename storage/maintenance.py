"""Background maintenance of logs: retention, compaction, rolling of old or drained segments, delayed deletion of
files.

A timer calls `maintain` on the loop. It starts a round over all logs and yields to the loop after each SLICE_S.
Retention costs a step per segment. A roll writes at once, as in an append; the fsync thread deletes files. A
cleaning (compaction.py) has its own thread. One log is cleaned at a time: each log that a round finds dirty once, the
dirtiest first. Then the loop replaces the segments and the fsync thread renames the files. During a cleaning nothing of
that log is removed, and deletion of its queue waits until the cleaner stops.

A stop of the broker waits only until the cleaner notices it; the next start completes the segments that are ready.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from operator import itemgetter

from amqpd.storage import compaction, retention
from amqpd.storage.clock_watch import ClockWatch
from amqpd.storage.compaction import Cancelled, Cleaning
from amqpd.storage.filesystem import FileSystem, OpenFile
from amqpd.storage.fsync_thread import FsyncThread, Task
from amqpd.storage.local_log import LocalLog
from amqpd.storage.log.log import Log
from amqpd.storage.log.record import BadRecord
from amqpd.storage.log.segment import Segment
from amqpd.storage.queue_log import LogFailed, LogUnusable

logger = logging.getLogger(__name__)

SLICE_S = 0.005


class LogMaintenance:
    """Rounds over all logs, and the running cleaning.

    Args:
        committer, post: see `Storage`.
        gather: puts a log into the next sync job.
        segment_age_ms: see `retention.roll_idle`.
        inline: no thread and no slices, for simulations.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        watch: ClockWatch,
        committer: FsyncThread,
        post: Callable[..., object],
        gather: Callable[[LocalLog], None],
        boot: tuple[int, int],
        segment_age_ms: int,
        inline: bool,
    ) -> None:
        self._filesystem = filesystem
        self._watch = watch
        self._committer = committer
        self._post = post
        self._gather = gather
        self._boot = boot
        self._segment_age_ms = segment_age_ms
        self._inline = inline
        self._remaining: list[LocalLog] = []  # of the round
        self._found: list[tuple[float, LocalLog]] = []  # dirty logs of the round, with their dirty ratios
        self._uncleaned: list[tuple[float, LocalLog]] = []  # those of the last round, the dirtiest last
        self._due: list[str] = []
        self._store: LocalLog | None = None  # being cleaned
        self._cleaning: Cleaning | None = None
        self._thread: threading.Thread | None = None
        self._rename_count = 0  # rename tasks in the fsync thread
        self._waiting: list[Callable[[], None]] = []
        self._stopped = False  # another process may own the directory now

    def maintain(self, stores: Iterable[LocalLog]) -> None:
        """Start a round, unless one is running. Raises nothing.

        Cost: 1 us per log and a step per segment of logs with retention; the first round recovers these.
        """
        if self._stopped or self._remaining:
            return
        self._remaining = list(stores)
        self._run_slice()

    def _run_slice(self) -> None:
        if self._stopped:
            return
        clock = self._watch.clock
        now_ms = self._watch.agreed_ms()
        began = clock.monotonic()
        while self._remaining:
            store = self._remaining.pop()
            self._maintain_log(store, now_ms)
            cleaning = self._plan_cleaning(store, now_ms)
            if cleaning is not None:
                self._found.append((cleaning.dirty_ratio, store))
            if self._remaining and not self._inline and clock.monotonic() - began >= SLICE_S:
                self._post(self._run_slice)
                return
        due, self._due = self._due, []
        if due:
            self._committer.submit(Task(lambda: self._unlink(due), _nothing))
        self._uncleaned, self._found = sorted(self._found, key=itemgetter(0)), []
        self._clean_next()

    def _maintain_log(self, store: LocalLog, now_ms: int) -> None:
        log = store.log
        if store.deleted:
            return
        if log.policy is None:
            compaction.note_progress(log)
        if not store.failed:
            try:
                if log.policy is not None:
                    if not store.ready and not log.policy.removes:
                        return  # recovery would be useless
                    if not store.local and not store.open_soon(_opened):
                        return  # the log must be read from Kafka first
                    retention.retain(store, now_ms)
                    store.write()
                    self._wake(store)
                elif log.removals.retention is not None:
                    if retention.expire_acked(store, now_ms, self._segment_age_ms):
                        store.write()
                        self._wake(store)
                elif retention.roll_idle(store, now_ms, self._segment_age_ms):
                    store.write()
                    self._wake(store)
            except (OSError, LogFailed, LogUnusable) as error:
                logger.warning("retention of queue %s failed: %s", store.name, error)
        if log.removals.renamed_paths:
            self._due += log.removals.take_due(now_ms)

    def _unlink(self, paths: list[str]) -> None:
        for path in paths:
            self._filesystem.unlink(path)

    # -- cleaning

    def _plan_cleaning(self, store: LocalLog, now_ms: int) -> Cleaning | None:
        if store.deleted or store.failed or not store.ready or store is self._store:
            return None
        policy = store.log.policy
        if policy is None:
            return compaction.plan_reclaim(store.log, self._boot) if store.local else None
        if policy.compaction is None:
            return None
        return compaction.plan_cleaning(store.log, policy.compaction, now_ms, self._boot)

    def _clean_next(self) -> None:
        """Clean the dirtiest log that the last round has found and that was not cleaned since."""
        if self._stopped or self._store is not None or self._rename_count > 0 or not self._uncleaned:
            return  # a cleaning that failed may still have renames: the next round continues
        journal = self._committer.journal
        if journal is not None and journal.stopped:  # it has data of segments that must keep their names
            return
        while self._uncleaned:
            store = self._uncleaned.pop()[1]
            cleaning = self._plan_cleaning(store, self._watch.agreed_ms())
            if cleaning is not None:
                self._begin_cleaning(store, cleaning)
                return

    def _begin_cleaning(self, store: LocalLog, cleaning: Cleaning) -> None:
        cleaning.log.cleaning = True
        self._store = store
        self._cleaning = cleaning
        if self._inline:
            self._run(cleaning)
        else:
            self._thread = threading.Thread(target=self._run, args=(cleaning,), name="amqpd-cleaner", daemon=True)
            self._thread.start()

    def _run(self, cleaning: Cleaning) -> None:
        """Do one cleaning, in the cleaner thread, and post the result."""
        complete = False
        try:
            compaction.clean(cleaning, self._yield_to_loop)
            complete = True
        except Cancelled:
            logger.info("compaction of %s cancelled", cleaning.log.directory)
        except (OSError, BadRecord) as error:
            logger.warning("compaction of %s failed: %s", cleaning.log.directory, error)
        except Exception:  # a bug; but retention must not be blocked
            logger.exception("compaction of %s failed", cleaning.log.directory)
        self._post(self._cleaning_done, cleaning, complete)

    def _yield_to_loop(self) -> None:
        """Let the loop's thread run between two batches; otherwise the interpreter would switch only after 5 ms."""
        if not self._inline:
            self._filesystem.pause(0)

    def _cleaning_done(self, cleaning: Cleaning, complete: bool) -> None:
        store = self._store
        if self._stopped:
            return
        if store is None or store.deleted:
            self._end_cleaning(cleaning)
            return
        now_ms = self._watch.agreed_ms()
        for group, segment in cleaning.done:
            if segment is None:  # removed like any settled segment
                for view in group if cleaning.policy is not None else ():
                    cleaning.log.ack(view.base, view.end - 1, 0)
                continue
            try:
                delivered_mark, returned = cleaning.log.delivered_mark, store.returned
                work, held = compaction.publish_cleaned(cleaning.log, group, segment, now_ms, delivered_mark, returned)
            except OSError as error:
                logger.error("compacted segments of queue %s must wait for the next start: %s", store.name, error)
                self._block_until_restart(cleaning.log)
                return
            self._rename_count += 1
            done = self._rename_callback(cleaning, segment, held, complete)
            self._committer.submit(Task(partial(self._rename, work), done))
        store.recompute_counts()
        store.write()
        if self._rename_count == 0:
            self._finish(cleaning, complete)

    def _rename(self, work: Callable[[], None]) -> None:
        # The journal may have data of the segment whose name the new one takes.
        self._committer.empty_journal()
        work()

    def _rename_callback(
        self, cleaning: Cleaning, segment: Segment, held: list[OpenFile], complete: bool
    ) -> Callable[[OSError | None], None]:
        def rename_done(error: OSError | None) -> None:
            self._rename_count -= 1
            if self._stopped:
                return
            # A sync failed and is never repeated; the next start completes the cleaning.
            if error is not None:
                cleaning.log.failed = True
                self._block_until_restart(cleaning.log)
                return
            compaction.on_renamed(segment, held)
            if self._rename_count == 0 and cleaning.log.cleaning and self._cleaning is cleaning:
                self._finish(cleaning, complete)

        return rename_done

    def _block_until_restart(self, log: Log) -> None:
        """Leave the log closed to retention and cleaning until the next start: it has new and old files."""
        logger.error("no retention or compaction in %s before the next start", log.directory)
        self._release_log()

    def _finish(self, cleaning: Cleaning, complete: bool) -> None:
        store = self._store
        if complete and store is not None and not store.deleted:
            if cleaning.policy is None:
                self._on_rewritten(store, cleaning)
            else:
                self._on_compacted(store, cleaning)
        self._end_cleaning(cleaning)
        if store is not None and not store.deleted:
            self._wake(store)

    def _on_rewritten(self, store: LocalLog, cleaning: Cleaning) -> None:
        freed = cleaning.freed_bytes()
        if freed > 0:
            logger.info("queue %s: sparse segments rewritten, %d bytes less", store.name, freed)
            self._uncleaned.append((0.0, store))  # a cleaning takes a limited number of segments

    def _on_compacted(self, store: LocalLog, cleaning: Cleaning) -> None:
        path = f"{cleaning.log.directory}/{compaction.CLEANER_OFFSET}"
        # The next job writes it, after it has synced the directory.
        unsynced = cleaning.log.unsynced
        unsynced.checkpoints.append((path, compaction.encode_clean_offsets(cleaning.new_history())))
        unsynced.add_directory(cleaning.log.directory)
        logger.info(
            "queue %s: compacted up to offset %d, %d records removed",
            store.name,
            cleaning.clean_end,
            cleaning.dropped_count,
        )

    def _end_cleaning(self, cleaning: Cleaning) -> None:
        cleaning.log.cleaning = False
        self._release_log()

    def _release_log(self) -> None:
        self._cleaning = None
        self._store = None
        waiting, self._waiting = self._waiting, []
        for action in waiting:
            action()
        self._clean_next()

    def _wake(self, store: LocalLog) -> None:
        if store.log.dirty:
            self._gather(store)

    # -- deletion and stop

    def is_cleaning(self, store: LocalLog) -> bool:
        return self._store is store

    def when_free(self, store: LocalLog, action: Callable[[], None]) -> None:
        """Call `action` when the log is not being cleaned; cancel its cleaning."""
        if self._store is not store:
            action()
            return
        if self._cleaning is not None:
            self._cleaning.cancelled = True
        self._waiting.append(action)

    def stop(self) -> None:
        """Cancel the cleaning and block until its thread ends, which takes a batch. Nothing runs afterwards."""
        self._stopped = True
        if self._cleaning is not None:
            self._cleaning.cancelled = True
        if self._thread is not None:
            self._thread.join()


def _opened() -> None:
    """Do nothing: the next round finds the log open."""


def _nothing(error: OSError | None) -> None:
    """Do nothing: the error was logged, and the next start deletes the file."""
