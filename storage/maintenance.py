"""The background work of the logs: retention, compaction, segments that are old or drained, files whose delay is over.

`maintain` is called by the owner from a timer, on the loop, and begins a round over all logs; after each SLICE_S it
lets the loop have its turn. Retention costs a step per segment. What a roll writes is written there and then, as when
a message is appended; files are removed by the committer's thread. A cleaning (compaction.py, compaction.py) has a
thread of its own, one at a time, the dirtiest log first; when it is done, the loop puts the new segments in place and
the committer's thread gives them their names. Meanwhile nothing of that log is removed; a queue that is deleted waits
for the cleaner to let go.

A stop of the broker does not wait for a cleaning to end, only for the thread to notice: what it has finished is put in
place at the next start.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

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
    """The rounds over all logs, and the one cleaning at work.

    committer, post: as `Storage` has them. gather: hands a store to the next job. inline: no thread and no slices, for
    simulations. segment_age_ms: see `retention.roll_idle`.
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
        self._round: list[LocalLog] = []
        self._left: list[LocalLog] = []  # of the round
        self._due: list[str] = []
        self._store: LocalLog | None = None  # being cleaned
        self._cleaning: Cleaning | None = None
        self._thread: threading.Thread | None = None
        self._naming = 0  # tasks with the committer
        self._waiting: list[Callable[[], None]] = []
        self._stopped = False  # the directory may be another process's by now

    def maintain(self, stores: Iterable[LocalLog]) -> None:
        """A round; nothing while the last one is under way. Raises nothing.

        Cost: 1 us per log, a step per segment of those that keep; their first round recovers them.
        """
        if self._stopped or self._left:
            return
        self._round = list(stores)
        self._left = list(self._round)
        self._go_on()

    def _go_on(self) -> None:
        if self._stopped:
            return
        clock = self._watch.clock
        now_ms = self._watch.agreed_ms()
        began = clock.monotonic()
        while self._left:
            self._look_after(self._left.pop(), now_ms)
            if self._left and not self._inline and clock.monotonic() - began >= SLICE_S:
                self._post(self._go_on)
                return
        due, self._due = self._due, []
        if due:
            self._committer.submit(Task(lambda: self._unlink(due), _nothing))
        stores, self._round = self._round, []
        if self._store is None:
            self._clean_dirtiest(stores, now_ms)

    def _look_after(self, store: LocalLog, now_ms: int) -> None:
        log = store.log
        if store.deleted:
            return
        if not store.failed:
            try:
                if log.policy is not None:
                    if not store.ready and not log.policy.removes:
                        return  # it is not opened for nothing
                    if not store.local and not store.open_soon(_opened):
                        return  # it is read from Kafka first
                    retention.retain(store, now_ms)
                    store.write()
                    self._wake(store)
                elif log.removals.retention is not None:
                    if retention.let_go(store, now_ms, self._segment_age_ms):
                        store.write()
                        self._wake(store)
                elif retention.roll_idle(store, now_ms, self._segment_age_ms):
                    store.write()
                    self._wake(store)
            except (OSError, LogFailed, LogUnusable) as error:
                logger.warning("retention of queue %s: %s", store.name, error)
        if log.removals.waiting:
            self._due += log.removals.due(now_ms)

    def _unlink(self, paths: list[str]) -> None:
        for path in paths:
            self._filesystem.unlink(path)

    # -- cleaning

    def _clean_dirtiest(self, stores: Iterable[LocalLog], now_ms: int) -> None:
        best: Cleaning | None = None
        for store in stores:
            policy = store.log.policy
            if policy is None or policy.compaction is None or store.failed or not store.ready:
                continue
            found = compaction.plan(store.log, policy.compaction, now_ms, self._boot)
            if found is not None and (best is None or found.dirty_ratio > best.dirty_ratio):
                best, self._store = found, store
        if best is None:
            return
        best.log.cleaning = True
        self._cleaning = best
        if self._inline:
            self._run(best)
        else:
            self._thread = threading.Thread(target=self._run, args=(best,), name="amqpd-cleaner", daemon=True)
            self._thread.start()

    def _run(self, cleaning: Cleaning) -> None:
        """In the cleaner's thread."""
        whole = False
        try:
            compaction.clean(cleaning, self._give_way)
            whole = True
        except Cancelled:
            logger.info("cleaning of %s given up", cleaning.log.directory)
        except (OSError, BadRecord) as error:
            logger.warning("cleaning of %s: %s", cleaning.log.directory, error)
        except Exception:  # a bug; but the log must not stay closed for retention
            logger.exception("cleaning of %s failed", cleaning.log.directory)
        self._post(self._cleaned, cleaning, whole)

    def _give_way(self) -> None:
        """Lets the loop's thread run: between two batches rather than when the interpreter insists, 5 ms later."""
        if not self._inline:
            self._filesystem.pause(0)

    def _cleaned(self, cleaning: Cleaning, whole: bool) -> None:
        store = self._store
        if self._stopped:
            return
        if store is None or store.deleted:
            self._free(cleaning)
            return
        now_ms = self._watch.agreed_ms()
        for group, segment in cleaning.done:
            if segment is None:  # as if read: its files go as those of any settled segment
                for view in group:
                    cleaning.log.settle(view.base, view.end - 1, 0)
                continue
            try:
                delivered_mark, returned = cleaning.log.delivered_mark, store.returned
                work, held = compaction.publish_cleaned(cleaning.log, group, segment, now_ms, delivered_mark, returned)
            except OSError as error:
                logger.error("cleaned segments of queue %s wait for the next start: %s", store.name, error)
                self._keep_closed(cleaning.log)
                return
            self._naming += 1
            self._committer.submit(Task(work, self._named(cleaning, segment, held, whole)))
        store.recount()
        store.write()
        if self._naming == 0:
            self._finish(cleaning, whole)

    def _named(
        self, cleaning: Cleaning, segment: Segment, held: list[OpenFile], whole: bool
    ) -> Callable[[OSError | None], None]:
        def named(error: OSError | None) -> None:
            self._naming -= 1
            if self._stopped:
                return
            if error is not None:  # a sync failed, and is never tried again; the next start finishes it
                cleaning.log.failed = True
                self._keep_closed(cleaning.log)
                return
            compaction.placed(segment, held)
            if self._naming == 0 and cleaning.log.cleaning and self._cleaning is cleaning:
                self._finish(cleaning, whole)

        return named

    def _keep_closed(self, log: Log) -> None:
        """New files stand beside old ones: nothing of the log is removed or cleaned before the next start."""
        logger.error("no retention in %s before the next start", log.directory)
        self._let_go()

    def _finish(self, cleaning: Cleaning, whole: bool) -> None:
        store = self._store
        if whole and store is not None and not store.deleted:
            path = f"{cleaning.log.directory}/{compaction.CLEANER_OFFSET}"
            # It follows with the next job, which syncs the directory first.
            unsynced = cleaning.log.unsynced
            unsynced.checkpoints.append((path, compaction.encode_clean_offsets(cleaning.new_history())))
            unsynced.note_directory(cleaning.log.directory)
            logger.info(
                "queue %s: compacted up to offset %d, %d records gone",
                store.name,
                cleaning.clean_end,
                cleaning.dropped_count,
            )
        self._free(cleaning)
        if store is not None and not store.deleted:
            self._wake(store)

    def _free(self, cleaning: Cleaning) -> None:
        cleaning.log.cleaning = False
        self._let_go()

    def _let_go(self) -> None:
        self._cleaning = None
        self._store = None
        waiting, self._waiting = self._waiting, []
        for action in waiting:
            action()

    def _wake(self, store: LocalLog) -> None:
        if store.log.dirty:
            self._gather(store)

    # -- others

    def is_at(self, store: LocalLog) -> bool:
        """Whether a cleaner is at work in the store's directory."""
        return self._store is store

    def when_free(self, store: LocalLog, action: Callable[[], None]) -> None:
        """Calls `action` once no cleaner is at work in the store's directory; a cleaning of it is given up."""
        if self._store is not store:
            action()
            return
        if self._cleaning is not None:
            self._cleaning.cancelled = True
        self._waiting.append(action)

    def stop(self) -> None:
        """Gives a cleaning up. Blocks until its thread has noticed, a batch's time. Nothing is done after that."""
        self._stopped = True
        if self._cleaning is not None:
            self._cleaning.cancelled = True
        if self._thread is not None:
            self._thread.join()


def _opened() -> None:
    """The next round finds it open."""


def _nothing(error: OSError | None) -> None:
    """What could not be removed has been logged; the next start of the broker removes it."""
