"""Storage: all logs of one data directory.

`Storage` creates, opens and deletes logs, one per queue. It connects what they share: group commit
(group_commit.py), recovery (`LogRecoveryQueue`), descriptors and reserve (fd_budget.py), maintenance
(maintenance.py) and removal of directories (directory_removal.py). It runs on the loop's thread. The fsync thread
and the workers get immutable work and post results back.

A start locks the directory and reads no log. A clean stop syncs everything and writes a mark into each log, so that
the next start does not scan it.

**Recovery.** The first use of a log recovers it (`recover`) and waits for the disk. `open_soon` does not wait: it
reads logs one after another for SLICE_S per loop turn. A thread then does the file writes of recovery
(log/recovery.py), and callers are notified at the end. `recover` completes such a log at once.

After a power cut, the clean-shutdown marks do not prove which messages were delivered. When every open log has
recorded this, the data directory stores the new boot id.
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
from amqpd.storage.fsync_thread import JOURNAL_FROM, SYNCFS_FROM, FsyncThread, InlineCommitter, Removal, run_inline
from amqpd.storage.group_commit import GroupCommit
from amqpd.storage.journal import Journal
from amqpd.storage.local_log import LocalLog, LogKeeper
from amqpd.storage.log import recovery
from amqpd.storage.log.checkpoint import FORMAT_WITH_DELAYS, FORMAT_WITH_JOURNAL, FORMAT_WITH_TRANSACTIONS
from amqpd.storage.log.log import Log
from amqpd.storage.log.writer import mark_clean, needs_mark
from amqpd.storage.loop_log import LogContext
from amqpd.storage.maintenance import LogMaintenance
from amqpd.storage.queue_json import describe
from amqpd.storage.queue_log import LogUnusable, QueueLog
from amqpd.storage.retention_policy import RetentionPolicy
from amqpd.storage.worker import ReadAhead, WorkerThread

logger = logging.getLogger(__name__)

# Seconds of reading one log before other work runs on the loop.
SLICE_S: Final = 0.004


class LogRecoveryQueue:
    """Logs being recovered. Loop thread only, except the file writes.

    Args:
        post: calls a function with arguments on the loop, from any thread.
        strict: see `recovery.RecoveryReader`.
        inline: no thread and no slices, for simulations.

    Attributes:
        cut_noted: every log has recorded the power cut.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        data_directory: DataDirectory,
        clock: Clock,
        post: Callable[..., object],
        *,
        strict: bool,
        inline: bool,
    ) -> None:
        self.cut_noted = not data_directory.power_cut
        self._filesystem = filesystem
        self._data_directory = data_directory
        self._clock = clock
        self._post = post
        self._strict = strict
        self._thread = None if inline else WorkerThread("amqpd-recovery")
        self._readings: dict[LocalLog, recovery.RecoveryReader] = {}  # not read to the end
        # Reading in slices failed; `recover` reports the error to its caller.
        self._failed: set[LocalLog] = set()
        self._scheduled = False
        self._read: dict[LocalLog, recovery.RecoveredLog] = {}  # read, not in use yet
        self._without_power_cut_note: set[LocalLog] = set()  # logs that have not recorded the power cut

    def register(self, store: LocalLog) -> None:
        """Register an existing log, which must record a power cut if there was one."""
        if not self.cut_noted:
            self._without_power_cut_note.add(store)

    def recover(self, store: LocalLog) -> None:
        """Recover the log now. Waits for the disk, or for the thread that recovers it.

        Raises: as `RecoveryReader` and `RecoveredLog`; the caller may try again.
        """
        opening = self._read.pop(store, None)
        if opening is None:
            opening = self._read_all(store)
        opening.write()  # waits if the thread does it now
        opening.finish()
        self._without_power_cut_note.discard(store)
        if not self.cut_noted and not self._without_power_cut_note:
            # Every log has recorded the power cut, so the next start need not.
            self.cut_noted = True
            self._data_directory.write_boot_id()

    def open_soon(self, store: LocalLog, done: Callable[[], None]) -> bool:
        if store.ready:
            return True
        opening = self._read.get(store)
        if opening is None:
            reading = self._readings.get(store)
            if reading is None:
                if self._thread is None or store in self._failed:
                    opening = self._read_all(store)
                else:
                    reading = self._new_reader(store)
                    try:
                        opening = reading.read_slice(SLICE_S)
                    except OSError:
                        opening = self._read_all(store)
            if opening is None:
                # Its slice has just ended, or it waits for another turn.
                assert reading is not None
                reading.callbacks.append(done)
                self._readings[store] = reading
                self._schedule_slice()
                return False
            if self._is_complete(store, opening):
                store.recover()
                return True
        elif opening.is_reported:  # the callback was called before
            store.recover()
            return True
        opening.callbacks.append(done)
        return False

    def _is_complete(self, store: LocalLog, opening: recovery.RecoveredLog) -> bool:
        """Return True if the log is completely read and nothing must be written. Otherwise start the writes."""
        self._read[store] = opening
        if self._thread is None or not opening.needs_write:
            return True
        self._thread.call(partial(self._write, opening))
        return False

    def _schedule_slice(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._post(self._read_slice)

    def _read_slice(self) -> None:
        """Read a slice of the oldest log in the queue."""
        self._scheduled = False
        if not self._readings:
            return
        store, reading = next(iter(self._readings.items()))
        try:
            opening = reading.read_slice(SLICE_S)
        except Exception as error:
            if not isinstance(error, OSError | LogUnusable):
                logger.exception("the log of queue '%s' cannot be read", store.name)
            del self._readings[store]
            self._failed.add(store)
            _call_all(reading.callbacks)  # their `recover` raises the error
        else:
            if opening is not None:
                del self._readings[store]
                if self._is_complete(store, opening):
                    opening.is_reported = True
                    _call_all(reading.callbacks)
                else:
                    opening.callbacks += reading.callbacks
        if self._readings:
            self._schedule_slice()

    def _new_reader(self, store: LocalLog) -> recovery.RecoveryReader:
        data_directory = self._data_directory
        return recovery.RecoveryReader(
            store, data_directory.boot, self._clock, power_cut=data_directory.power_cut, strict=self._strict
        )

    def _read_all(self, store: LocalLog) -> recovery.RecoveredLog:
        """Read the log, or the rest of it, at once."""
        self._failed.discard(store)
        reading = self._readings.pop(store, None)
        if reading is None:
            reading = self._new_reader(store)
        elif reading.callbacks:
            self._post(_call_all, reading.callbacks)
        try:
            return reading.read_all()
        except OSError as error:
            if not self._filesystem.can_retry_after(error):
                raise
            return self._new_reader(store).read_all()

    def _write(self, opening: recovery.RecoveredLog) -> None:
        """Do the file writes of a recovery, in the recovery thread."""
        opening.write()
        self._post(self._written, opening)

    def _written(self, opening: recovery.RecoveredLog) -> None:
        opening.is_reported = True
        waiting, opening.callbacks = opening.callbacks, []
        _call_all(waiting)

    def remove(self, store: LocalLog) -> None:
        """Remove a log that is being deleted."""
        self._without_power_cut_note.discard(store)
        self._failed.discard(store)
        reading = self._readings.pop(store, None)
        if reading is not None:
            reading.close()
        opening = self._read.pop(store, None)
        if opening is not None:
            opening.cancel()  # its file writes may still run, and have no effect

    def close(self) -> None:
        """Stop recovery of logs that are not in use. Blocks for the one being written."""
        for reading in self._readings.values():
            reading.close()
        self._readings.clear()
        for opening in self._read.values():
            opening.cancel()
        if self._thread is not None:
            self._thread.close()


def _call_all(waiting: list[Callable[[], None]]) -> None:
    for done in waiting:
        done()


SEGMENT_SIZE_BYTES = 64 << 20


class Storage(LogKeeper):
    """All logs of a data directory; one object per directory and process. Loop thread only.

    Args:
        post: calls a function with arguments on the loop, from any thread (`loop.call_soon_threadsafe`).
        later: calls a function on the loop after a delay in seconds (`loop.call_later`). With it, settled offsets
            are written every 50 ms, otherwise in each turn.
        segment_age_ms: `maintain` rolls an active segment whose first message is older; -1 for never.
        open_file_count_max: descriptors for logs; default 3/4 of the process limit, at most 4,096.
        strict: damage is an error (DamagedLog).
        boot_id: the machine's boot id, 32 hexadecimal digits with or without dashes; default: from /proc.
        inline: no thread: `end_of_turn` syncs each group itself, for simulations.
        journal_size_bytes: size of the journal (journal.py), which the first commit of several logs creates. 0: no
            journal; an existing one is read and deleted.
        journal_from: logs in a commit from which on it uses the journal.

    Attributes:
        context: shared by all logs; `dirty` are those that the end of the running turn writes.
        data_directory: its lock, format, and the paths of queues.

    Raises: DataDirectoryInUse; OSError; UnknownFormat for a directory of a newer version, which is not changed.
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
        journal_size_bytes: int = 0,
        journal_from: int = JOURNAL_FROM,
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
        self.replicates = False  # True on a node of a cluster: logs of durable queues are in Kafka
        self._stores: dict[LocalLog, None] = {}  # in order of creation, so that simulations are reproducible
        self._closed = False
        reserve_path = f"{self.data_dir}/{RESERVE}"
        self._resources = FdBudget(filesystem, clock, self._stores, reserve_path, open_file_count_max)
        self._ahead = ReadAhead(filesystem, post)
        self.context = LogContext(clock, None if inline else self._ahead)
        self.context.has_ticks = later is not None
        self.data_directory = DataDirectory(filesystem, self.data_dir, boot_id)
        self.boot_id = self.data_directory.boot_id
        self.power_cut = self.data_directory.power_cut
        self.journal = Journal(filesystem, self.data_dir, journal_size_bytes)
        self.journal.recover()
        self._recovery_queue = LogRecoveryQueue(
            filesystem, self.data_directory, clock, post, strict=strict, inline=inline
        )
        filesystem.remove_tree(f"{self.data_dir}/{SPILL}")
        self._resources.take_reserve()
        self._worker = WorkerThread("amqpd-removal")
        if not inline:
            filesystem.closer = self._close_later
        commits = self.commits = GroupCommit(self.context, filesystem, self._resources, later)
        committer_class = InlineCommitter if inline else FsyncThread
        self._committer = committer_class(
            filesystem,
            self.data_directory.lock_fd,
            post,
            commits.committed,
            commits.submit_waiting,
            self._worker.call,
            clock,
        )
        self.sync_times = self._committer.times
        if isinstance(self._committer, InlineCommitter):
            self._committer.later = later
        commits.start(self._committer)
        commits.journal_from = self._committer.journal_from = journal_from
        self._post = post
        self._inline = inline
        if self.journal.fd >= 0 and journal_size_bytes == 0:
            self.journal.remove()
        elif self.journal.fd >= 0:
            self._use_journal()
        elif journal_size_bytes > 0:
            commits.on_journal_wanted = self._want_journal
        self.directory_remover = DirectoryRemover(
            filesystem, self._committer, self._worker.call if not inline else run_inline
        )
        watch, boot = self.clock_watch, self.data_directory.boot
        self._maintenance = LogMaintenance(
            filesystem, watch, self._committer, post, commits.enqueue, boot, segment_age_ms, inline
        )

    # -- the journal

    def _want_journal(self) -> None:
        """Create the journal, in another thread, because that writes all of it."""
        if self._inline:
            self._create_journal()
        else:
            self._worker.call(self._create_journal)

    def _create_journal(self) -> None:
        try:
            if not self.journal.has_room_on_disk():
                logger.info("no journal until the next start: too little disk space is free")
                return
            self.journal.create()
        except OSError as error:
            logger.warning("no journal until the next start: %s", error)
            return
        self._post(self._use_journal)

    def _use_journal(self) -> None:
        if self._closed:
            return
        try:
            self.data_directory.raise_format(FORMAT_WITH_JOURNAL)
        except OSError as error:
            logger.warning("no journal until the next start: %s", error)
            return
        self._committer.journal = self.journal
        self.commits.use_journal(self.journal)

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
        """Return a new queue id (128 random bits, hexadecimal) and an empty log. The first append creates the files.

        Args:
            policy: see `set_policy`; for logs that keep messages after reading.
            queue_id: if the queue's row has one already.
            vhost_name, auto_delete, arguments: for its queue.json; arguments are an encoded field table.
        """
        queue_id = queue_id or secrets.token_hex(16)
        log = self._queue_log(vhost_id, queue_id, name, vhost_name, auto_delete, arguments)
        store = self._add(LocalLog(self.context, log, vhost_id, queue_id, name, self, True))
        self.set_policy(store, policy)
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
        """Return the log of an existing queue. Reads nothing: the first use, or `recover`, recovers it."""
        log = self._queue_log(vhost_id, queue_id, name, vhost_name, auto_delete, arguments)
        store = self._add(LocalLog(self.context, log, vhost_id, queue_id, name, self, False))
        self.set_policy(store, policy)
        return store

    def open_system_queue(
        self, directory: str, queue_id: str, name: str, vhost_name: str, arguments: bytes
    ) -> LocalLog:
        """Return the log of a system queue, in a directory beside `vhosts`. Otherwise like `open_queue`."""
        description = partial(describe, name, vhost_name, False, arguments, queue_id)
        log = self._log([self.data_dir, f"{self.data_dir}/{directory}"], description)
        return self._add(LocalLog(self.context, log, "", queue_id, name, self, False))

    def recover_all(self) -> None:
        """Recover every open log now. Raises: OSError; UnknownFormat; DamagedLog (strict only)."""
        for store in list(self._stores):
            store.recover()

    def temporary_queue(self, first_offset: int = 0) -> LocalLog:
        """Return a log that is never synced; the next start deletes it. `delete_queue` deletes its files now.

        Args:
            first_offset: the offset of the first record; the queue has earlier messages in memory.
        """
        queue_id = secrets.token_hex(16)
        root = f"{self.data_dir}/{SPILL}"
        log = self._log([root, f"{root}/{queue_id}"], partial(describe, "", "", False, b"", queue_id), durable=False)
        store = self._add(LocalLog(self.context, log, "", queue_id, "", self, True))
        store.next_offset = first_offset
        return store

    # -- logs that do not belong to a queue

    def create_log(self, chain: list[str], name: str, vhost_name: str, vhost_id: str) -> LocalLog:
        """Return an empty log in the last directory of `chain`, which starts at the data directory.

        The log does not belong to a queue; `name` is for its queue.json. The first append creates the files.
        """
        return self._log_at(chain, name, vhost_name, vhost_id, True)

    def open_log(self, chain: list[str], name: str, vhost_name: str, vhost_id: str) -> LocalLog:
        """Return the existing log of `create_log`. Reads nothing, like `open_queue`."""
        return self._log_at(chain, name, vhost_name, vhost_id, False)

    def _log_at(self, chain: list[str], name: str, vhost_name: str, vhost_id: str, ready: bool) -> LocalLog:
        log_id = os.path.basename(chain[-1])
        log = self._log(chain, partial(describe, name, vhost_name, False, b"", log_id))
        return self._add(LocalLog(self.context, log, vhost_id, log_id, name, self, ready))

    def _add(self, store: LocalLog) -> LocalLog:
        self._stores[store] = None
        if not store.ready:
            self._recovery_queue.register(store)
        return store

    def retire_directory(self, chain: list[str], stores: Sequence[QueueLog], done: Callable[[], None]) -> None:
        """Delete a directory with these logs: rename it as a whole, then remove its content.

        The metadata does not know it. `done` is called on the loop when no crash can restore it.
        """

        def renamed() -> None:
            done()
            self.directory_remover.remove(chain[-1])

        self._retire_chain(chain, [store for store in stores if isinstance(store, LocalLog)], renamed)

    def delay_chain(self, vhost_id: str, *names: str) -> list[str]:
        """Return the directories of delayed messages of a vhost.

        `names`: none, an exchange, or an exchange and a bucket.
        """
        chain = self.data_directory.vhost_chain(vhost_id)
        for name in ("delays", *names):
            chain.append(f"{chain[-1]}/{name}")
        return chain

    def require_delay_format(self) -> None:
        """Raise the format version before the first delayed message. Raises: OSError.

        Older versions would not see delayed messages, and do not start with this format.
        """
        self.data_directory.raise_format(FORMAT_WITH_DELAYS)

    def require_transaction_format(self) -> None:
        """Raise the format version before the first transaction of a Kafka producer. Raises: OSError."""
        self.data_directory.raise_format(FORMAT_WITH_TRANSACTIONS)

    def set_policy(self, store: LocalLog, policy: RetentionPolicy | None) -> None:
        """Set the retention policy of a log; the next `maintain` applies it. None: settled messages are removed."""
        size = policy.segment_size_bytes if policy is not None else -1
        store.log.policy = policy
        store.log.segment_size_bytes = size if size > 0 else self.segment_size_bytes
        store.log.removals.delay_ms = policy.file_delete_delay_ms if policy is not None else 0
        store.appender.codec = policy.codec if policy is not None else 0

    def retain(self, store: LocalLog, max_age_ms: int, max_bytes: int) -> None:
        """Set how long settled messages remain in the log (acks/retained.py). The excess is removed soon.

        Args:
            max_age_ms, max_bytes: -1 for no limit; both -1 ends the retention.
        """
        removals = store.log.removals
        retention = removals.retention
        if max_age_ms < 0 and max_bytes < 0:
            if retention is not None:
                retention.stop()
            removals.retention = None
            store.log.segment_size_bytes = self.segment_size_bytes
        else:
            if retention is None:
                retention = removals.retention = AckedRetention(self.clock_watch, self.retained)
            retention.max_age_ms, retention.max_bytes = max_age_ms, max_bytes
            store.log.segment_size_bytes = retention.segment_size_bytes(self.segment_size_bytes)
        self.on_export_hold_changed(store)

    def replay(self, store: LocalLog) -> AckedReplay:
        """Return the replay of settled messages: see acks/replay.py."""
        return AckedReplay(store, self._committer.submit, self.commits.enqueue, self._maintenance.when_free)

    def find_export_hold(self, store: QueueLog) -> ExportHold | None:
        """Return the export hold of the log, None if it never had one."""
        return store.log.removals.export_hold if isinstance(store, LocalLog) else None

    def export_hold(self, store: QueueLog) -> ExportHold:
        """Return the export hold, created if necessary; it is empty until it has exporters.

        Raises: TypeError for a log that is not local.
        """
        if not isinstance(store, LocalLog):
            raise TypeError(f"the log of queue '{store.name}' is not on this disk")
        removals = store.log.removals
        if removals.export_hold is None:
            removals.export_hold = ExportHold(self.filesystem, store.log.chain, store.name, self.export_losses)
        return removals.export_hold

    def on_export_hold_changed(self, store: QueueLog) -> None:
        """Release messages that a changed export hold no longer keeps. The next commit deletes them."""
        if isinstance(store, LocalLog) and store.ready and not store.failed:
            store.log.removals.wanted = True
            self.commits.enqueue(store)

    def maintain(self) -> None:
        """Run a round of maintenance: see maintenance.py. A timer calls it. Raises nothing.

        Cost: 1 us per log and a step per segment of logs with retention, in slices of 5 ms.
        """
        self._maintenance.maintain(list(self._stores))

    def delete_queue(self, store: LocalLog, done: Callable[[], None] | None = None) -> None:
        """Delete a log that has no row in the metadata. Its files are removed after the running syncs.

        Deletions that a client waits for use `retire_queue`. A commit that waits for this log counts as complete.

        Args:
            done: called on the loop when the files are gone.
        """
        self._detach(store)
        removal = Removal(store.log.directory, done if done is not None else _nothing)
        self._maintenance.when_free(store, lambda: self._committer.submit(removal))

    def remove_local_files(self, store: QueueLog) -> None:
        """Delete the local files of a queue that continues on another node."""
        store.remove()

    def retire_queue(self, store: LocalLog, done: Callable[[], None]) -> None:
        """Delete a log by renaming its directory (directory_removal.py).

        A commit that waits for this log counts as complete.

        `done` is called on the loop when the rename is synced.
        """
        self._detach(store)
        self._maintenance.when_free(store, lambda: self.directory_remover.rename(store.log.chain, done))

    def retire_vhost(self, vhost_id: str, stores: Sequence[QueueLog], done: Callable[[], None]) -> None:
        """Like `retire_queue`, for the directory of a vhost and its logs. Logs on other nodes retire one by one."""
        local = [store for store in stores if isinstance(store, LocalLog)]
        left = 1 + len(stores) - len(local)

        def one_done() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self.data_directory.forget_vhost(vhost_id)
                done()

        for store in stores:
            if not isinstance(store, LocalLog):
                store.retire(one_done)
        self._retire_chain(self.data_directory.vhost_chain(vhost_id), local, one_done)

    def _retire_chain(self, chain: list[str], stores: Sequence[LocalLog], done: Callable[[], None]) -> None:
        def renamed() -> None:
            self._forget_directory(chain[-1])
            done()

        for store in stores:
            self._detach(store)
        for store in stores:
            if self._maintenance.is_cleaning(store):
                self._maintenance.when_free(store, lambda: self.directory_remover.rename(chain, renamed))
                return
        self.directory_remover.rename(chain, renamed)

    def _forget_directory(self, path: str) -> None:
        """Drop the paths of a deleted directory. Cost: 0.1 us per path if the directory had logs below it."""
        safe = self.filesystem.safe_directories
        if path in safe:
            safe.difference_update([each for each in safe if each == path or each.startswith(f"{path}/")])

    def _detach(self, store: LocalLog) -> None:
        store.deleted = True  # the running tick skips it
        store.failed = True
        self._stores.pop(store, None)
        self._recovery_queue.remove(store)
        self.commits.remove(store)
        store.dispose()
        if store.log.removals.retention is not None:
            store.log.removals.retention.stop()
        store.log.abandon()
        store.on_high_watermark()

    def _queue_log(
        self, vhost_id: str, queue_id: str, name: str, vhost_name: str, auto_delete: bool, arguments: bytes
    ) -> Log:
        description = partial(describe, name, vhost_name, auto_delete, arguments, queue_id)
        log = self._log(self.data_directory.queue_chain(vhost_id, queue_id), description)
        log.capture = self.context.capture  # only these have directories whose names are never used again
        return log

    def _log(self, chain: list[str], description: Callable[[], bytes], durable: bool = True) -> Log:
        """Return the log in the last directory of `chain`. `description` returns its queue.json."""
        size_bytes, boot, reserve = self.segment_size_bytes, self.data_directory.boot, self._resources.reserve
        return Log(self.filesystem, chain, description, size_bytes, boot, reserve, durable)

    def recover(self, store: LocalLog) -> None:
        """Recover the log from the disk before its first use. Raises: OSError; UnknownFormat; DamagedLog."""
        self._recovery_queue.recover(store)
        if find_hold(self.filesystem, store.log.directory):
            self.export_hold(store).load()
        if store.log.dirty:  # recovered data must be synced, and settled data removed
            self.commits.enqueue(store)

    def open_soon(self, store: LocalLog, done: Callable[[], None]) -> bool:
        """Return whether the log is usable now. Otherwise recover it in the background.

        `done` is called on the loop when `recover` will not wait for the disk any more. Raises: as `recover`.
        """
        return self._recovery_queue.open_soon(store, done)

    def _close_later(self, fd: int) -> None:
        self._worker.call(partial(self.filesystem.close, fd))

    # -- stop

    def close(self, *, clean: bool) -> None:
        """End the threads. Blocks for the syncs; `on_commit` is called on the loop or, at the end, in this method.

        Args:
            clean: write and sync everything first, and write the clean-shutdown marks.
        """
        if self._closed:
            return
        self._closed = True
        self.commits.stop()
        self._maintenance.stop()
        self._committer.close()
        self.filesystem.closer = None
        self._recovery_queue.close()
        self._worker.close()
        self._ahead.worker.close()
        self.commits.finish_job()
        if clean:
            self._close_clean()
        for store in self._stores:
            store.log.close_files()
        self.journal.close()
        self.data_directory.close()

    def _close_clean(self) -> None:
        self._sync_unopened()
        self._write_shutdown_state([store for store in self._stores if store.ready])
        self.commits.sync_all(self._stores, self.data_directory.lock_fd)
        # Their messages moved to other logs, or their transaction was aborted, which the sync above made safe.
        late = [store for store in self._stores if store.has_unwritten_acks or (store.ready and store.unsynced)]
        if late:
            self._write_shutdown_state(late)
            self.commits.sync_all(late, self.data_directory.lock_fd)
        if not self.journal.stopped:
            try:
                self.journal.empty()
            except OSError as error:  # the next start compares its data with the logs
                logger.warning("cannot empty the journal: %s", error)
        self._mark_clean()
        if self._recovery_queue.cut_noted:
            self.data_directory.remove_boot_id()

    def _write_shutdown_state(self, stores: list[LocalLog]) -> None:
        for store in stores:
            store.write_shutdown_state()
            if self.filesystem.has_too_many_open:
                store.close_unsynced_files()

    def _mark_clean(self) -> None:
        """Write the clean-shutdown marks. Many of them share one sync: a sync for each takes minutes on a slow disk."""
        stores = [store for store in self._stores if needs_mark(store.log)]
        together = len(stores) >= SYNCFS_FROM
        for store in stores:
            try:
                mark_clean(store.log, store.delivered_mark, sync=not together)
            except OSError as error:  # the next start checks more
                logger.warning("cannot write the clean-shutdown mark of queue %s: %s", store.name, error)
        if together:
            try:
                self.filesystem.syncfs(self.data_directory.lock_fd)
            except OSError as error:
                logger.warning("cannot sync the clean-shutdown marks: %s", error)

    def _sync_unopened(self) -> None:
        """Sync what a kill left in the page cache of logs that were not opened since.

        Their clean marks are then true.
        """
        if self.data_directory.was_unclean and not all(store.ready for store in self._stores):
            try:
                self.filesystem.syncfs(self.data_directory.lock_fd)
            except OSError as error:
                # Those logs have no clean mark: the next start scans them.
                logger.error("data of the previous process could not be synced: %s", error)


def _nothing() -> None:
    """Do nothing, for a caller that passed no callback."""
