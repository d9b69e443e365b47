"""A log: the segments of one directory, appended to at the end, acknowledged anywhere, removed when acknowledged.

The log owns its directory; directory and files are created with the first append. writer.py writes batches, `ack`
records acknowledged ranges, `flush` writes the entries of `.settled` files. None of them syncs. `unsynced` collects
what they wrote, `collect` moves it into the next job of the fsync thread, and `synced` takes the result and moves the
high watermark.

Invariants:
- Bytes of a log file after `Segment.size` are never read. They are cut off before more is appended.
- A file whose sync failed is neither synced nor appended to again.
- Only a sealed segment is removed, by a job that has synced its acknowledgements. The active segment is sealed early
  if all its messages are settled, so that it can be removed.
- Records below the high watermark are synced, and so are their acknowledgements. External readers (exports, Kafka's
  tools) read only those. The file that tells them may be behind, never ahead.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable
from typing import Final, final

from mypy_extensions import i64

from amqpd.storage.acks import ack_set
from amqpd.storage.acks.ack_files import DISK_FULL_ERRORS, FULL, AckFileWriter
from amqpd.storage.acks.segment_removal import SegmentRemoval
from amqpd.storage.filesystem import FileSystem, MappedBytes, OpenFile, Reserve
from amqpd.storage.log import checkpoint
from amqpd.storage.log.producer_state import Producers, snapshot_path
from amqpd.storage.log.segment import Segment
from amqpd.storage.log.transactions import Transactions
from amqpd.storage.retention_policy import RetentionPolicy
from amqpd.storage.sync_job import JournalSwitch, SyncPart

SPILL_SYNC_SIZE: Final[i64] = 16 << 20  # bytes of a temporary log that may be dirty in the page cache


@final
class DirtyFiles:
    """Files and names of one log that the next job must sync.

    A file in these lists has `dirty` set, so it is listed once.

    Attributes:
        files: `.log` files.
        ack_files: `.settled` files.
        journaled: files with bytes that are in the journal and that no sync of the file has covered.
        closed: some files were closed before their sync (`Log.close_descriptors`).
        directories: directories with new names.
        paths: small files, already closed.
        checkpoints: (path, text), to be written after all of that is synced.
        syncs_start: see `SyncPart`.
    """

    def __init__(self) -> None:
        self.files: list[OpenFile] = []
        self.ack_files: list[OpenFile] = []
        self.journaled: list[OpenFile] = []
        self.closed: bool = False
        self.directories: list[str] = []
        self.paths: list[str] = []
        self.checkpoints: list[tuple[str, bytes]] = []
        self.syncs_start: bool = False
        # What was written to `_captured_file` from this position on; None if a part of it is missing.
        self._captured: list[bytes] = []
        self._captured_file: OpenFile | None = None
        self._captured_position: i64 = 0
        self._captured_size: i64 = 0
        self._spilled: i64 = 0  # bytes of a temporary log since its last sync
        self._spilled_due: bool = False  # the next job syncs them

    @property
    def needs_job(self) -> bool:
        """Return whether a job is needed. Checkpoints alone wait for the next one."""
        return bool(self.files or self.ack_files or self.closed or self.directories or self.paths)

    def add_log_file(self, file: OpenFile) -> None:
        """Add a `.log` file that was written to."""
        if not file.dirty:
            file.dirty = True
            self.files.append(file)

    def capture(self, file: OpenFile, position: i64, data: list[bytes], size: i64) -> None:
        """Keep what is written to a `.log` file for the journal. Call it before `add_log_file`.

        Args:
            data: the bytes, with `size` bytes altogether. The caller does not use the list any more.
        """
        if not file.dirty:
            self._captured = data
            self._captured_file = file
            self._captured_position = position
            self._captured_size = size
        elif file is self._captured_file:
            self._captured.extend(data)
            self._captured_size += size

    def take_captured(self, part: SyncPart, end: i64) -> None:
        """Offer the bytes of the only file in `part` for the journal, if all up to position `end` were captured."""
        file = self._captured_file
        if file is None:
            return
        if len(part.files) == 1 and part.files[0] is file and self._captured_position + self._captured_size == end:
            part.journal_path = file.path
            part.journal_position = self._captured_position
            part.journal_data = self._captured
            if not file.journaled:
                file.journaled = True
                self.journaled.append(file)
        self.drop_captured()

    def drop_captured(self) -> None:
        """Forget what was captured: the files will be synced."""
        self._captured = []
        self._captured_file = None

    def collect_journaled(self, part: SyncPart) -> None:
        """Move the files whose bytes only the journal has into `part`. Closed ones need a sync of the whole disk."""
        part.covers_journal = True
        for file in self.journaled:
            file.journaled = False
            if file.fd < 0:
                part.closed = part.closed or not file.removed
            elif file not in part.files:
                file.pins += 1
                part.files.append(file)
        self.journaled = []

    def collect_ack_files(self, part: SyncPart) -> None:
        """Move the `.settled` files into `part`."""
        for file in self.ack_files:
            file.dirty = False
            file.pins += 1
            part.files.append(file)
        self.ack_files.clear()

    def add_ack_file(self, file: OpenFile) -> None:
        """Add a `.settled` file that was written to."""
        if not file.dirty:
            file.dirty = True
            self.ack_files.append(file)

    def add_directory(self, directory: str) -> None:
        """Add a directory that has a new name."""
        if directory not in self.directories:
            self.directories.append(directory)

    def count_spilled(self, size: i64) -> i64:
        """Count bytes written to a temporary log. Return how many of them the next job must sync, mostly 0.

        No durability is promised for them. But if too many dirty pages wait for the disk, the kernel blocks the
        writer, which is the event loop. So the fsync thread syncs them now and then, and publishers are throttled as
        for other unsynced bytes.
        """
        self._spilled += size
        if self._spilled < SPILL_SYNC_SIZE:
            return 0
        size = self._spilled
        self._spilled = 0
        self._spilled_due = True
        return size

    def collect(self, part: SyncPart, settled_too: bool, durable: bool, failed: bool) -> None:
        """Move everything into `part`.

        The files of a failed log are only forgotten. So are those of a temporary log, unless `count_spilled`
        has asked for a sync.

        Args:
            settled_too: include `.settled` files even if nothing in this job depends on them.
        """
        spilled = self._spilled_due
        self._spilled_due = False
        if failed or not durable:
            if failed or not spilled:  # a later sync of a failed file may succeed wrongly
                for file in self.files + self.ack_files:
                    file.dirty = False
                self.files.clear()
                self.ack_files.clear()
            self.closed = False
            self.directories = []
            self.paths = []
        part.closed = self.closed
        self.closed = False
        files = self.files[:]
        self.files.clear()
        if settled_too or self.directories or self.checkpoints:
            files += self.ack_files
            self.ack_files.clear()
        for file in files:
            file.dirty = False
            file.pins += 1
        part.files = files
        part.directories = self.directories
        part.paths = self.paths
        part.checkpoints = self.checkpoints
        part.syncs_start = self.syncs_start
        self.directories = []
        self.paths = []
        self.checkpoints = []
        self.syncs_start = False

    def remove_file(self, file: OpenFile) -> None:
        """Forget a file that will be closed without a sync because another one replaces it."""
        if file.dirty:
            (self.files if file in self.files else self.ack_files).remove(file)

    def drop_closed_files(self) -> None:
        """Forget files that were closed and deleted."""
        for waiting in (self.files, self.ack_files):
            waiting[:] = [file for file in waiting if file.fd >= 0]

    def drop_open_files(self, closed: bool) -> None:
        """Forget all files: they will be closed before their sync.

        Args:
            closed: whether the next job must sync the whole disk instead.
        """
        for waiting in (self.files, self.ack_files):
            for file in waiting:
                file.dirty = False
                self.closed = closed
            waiting.clear()

    def clear_files(self) -> None:
        """Forget all files: they are closed and will not be synced."""
        self.files.clear()
        self.ack_files.clear()
        self.journaled = []
        self.closed = False

    def clear_paths(self) -> None:
        """Forget directories, small files and checkpoints."""
        self.directories = []
        self.paths = []
        self.checkpoints = []
        self.syncs_start = False


logger = logging.getLogger(__name__)


@final
class HighWatermark:
    """The high watermark of one log, and the mapped file `high-watermark` for external readers.

    Attributes:
        offset: records below it are safe.
        journal_from: records from here up to `offset` are only safe by the journal; -1: all are synced. The file has
            this offset then, because external readers know no journal.
    """

    def __init__(self, filesystem: FileSystem, directory: str) -> None:
        self.offset: i64 = 0
        self.journal_from: i64 = -1
        self._filesystem: FileSystem = filesystem
        self._directory: str = directory
        self._published: i64 = 0
        self._file: MappedBytes | None = None

    @property
    def unpublished(self) -> bool:
        """Return whether the file is behind `offset`."""
        return self._synced() > self._published

    def _synced(self) -> i64:
        return self.offset if self.journal_from < 0 else self.journal_from

    def on_journaled(self, end: i64) -> None:
        """Move the offset to `end`: the journal has the records below it."""
        if end > self.offset:
            if self.journal_from < 0:
                self.journal_from = self.offset
            self.offset = end

    def on_synced(self, end: i64) -> None:
        """Record that the files are synced up to `end`."""
        if 0 <= self.journal_from < end:
            self.journal_from = end
        if self.journal_from >= self.offset:
            self.journal_from = -1

    def on_failed(self) -> None:
        """Move the offset back to what is synced: this process cannot read the rest any more."""
        self.offset = self._synced()
        self.journal_from = -1

    @property
    def mapped(self) -> bool:
        """Return whether the file is open, which takes a descriptor."""
        return self._file is not None

    def begin(self, offset: i64) -> None:
        """Set the offset that recovery has found. It counts as published."""
        self.offset = offset
        self.journal_from = -1
        self._published = offset

    def publish(self, has_files: bool, stable_end: i64) -> None:
        """Write the last stable offset to the file, if the log has files.

        Cost: a page fault, and one page and one inode at the next sync: as much as a write.
        """
        self._published = self._synced()
        if stable_end > self._published:
            stable_end = self._published
        if not has_files:
            return
        try:
            file = self._file
            if file is None:
                file = self._file = self._map_file(f"{self._directory}/{checkpoint.HIGH_WATERMARK}")
                self._filesystem.open_file_count += 1
            file[0 : checkpoint.HIGH_WATERMARK_SIZE] = checkpoint.encode_high_watermark(stable_end)
            if self._filesystem.has_too_many_open:
                self.close()
        except OSError as error:  # external readers then see an older end
            logger.warning("%s: cannot write the high watermark: %s", self._directory, error)

    def _map_file(self, path: str) -> MappedBytes:
        try:
            return self._filesystem.map(path, checkpoint.HIGH_WATERMARK_SIZE)
        except OSError as error:
            if not self._filesystem.can_retry_after(error):
                raise
            return self._filesystem.map(path, checkpoint.HIGH_WATERMARK_SIZE)

    def close(self) -> None:
        """Close the file; the next `publish` opens it again."""
        file = self._file
        if file is not None:
            file.close()
            self._file = None
            self._filesystem.open_file_count -= 1


NEVER = JournalSwitch()
INDEX_ENTRIES_MIN = 16  # entries written together; fewer when the segment is sealed or the broker stops


class Log:
    """One directory of segments. It is created empty; recovery.py fills `segments`, `end` and `epochs` from the disk.

    Args:
        directory_chain: directories to create, outermost first; the last one is the log's own.
        description: returns the text of the queue.json file.
        boot: the boot id of the machine as two signed words.
        durable: whether the log is synced and has `.settled` files.

    Attributes:
        end: the log end offset.
        delivered_mark: no offset above it was delivered, as the files say; it may run ahead of the deliveries.
        policy: retention policy, for logs that keep messages.
        deleted_end: records below were deleted, by retention or a client; 0 if none were, or it is unknown.
        cleaning: compaction works on the sealed segments.
        is_replaying: settled messages are being made live again; compaction must not remove them.
        clean: the directory has a clean-shutdown mark.
        recovery_rest: writes of recovery that are still due before anything else is written; None if done.
        begun: this process has written to the log.
        sealed: sealed segments whose files are closed after the next sync.
        found: the segment of the last look-up.
        refused_errno: of the last failed write of acknowledgements or an index; None after one that succeeded.
        producers: numbers of idempotent producers; None if there are none.
        transactions: those of producers that are not ended; None if there are none.
        replicated: the log is a cache of a Kafka partition, and the cluster moves the watermark.
        capture: whether to keep what is written for the journal; the logs of other things than queues never do.
        on_ack_entry: for a replicated log, receives the entries that would go to `.settled`.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        directory_chain: list[str],
        description: Callable[[], bytes],
        segment_size_bytes: int,
        boot: tuple[int, int],
        reserve: Reserve,
        durable: bool,
    ) -> None:
        self.filesystem = filesystem
        self.chain = directory_chain
        self.directory = directory_chain[-1]
        self._description = description
        self.segment_size_bytes = segment_size_bytes
        self.reclaim_size_bytes = min(segment_size_bytes, 16 << 20)
        self.durable = durable
        self.segments: list[Segment] = []
        self.end = 0
        self.delivered_mark = -1
        self.epochs: list[tuple[int, ...]] = []
        self.epoch = 0
        self.policy: RetentionPolicy | None = None
        self.cleaning = False
        self.is_replaying = False
        self.failed = False
        self.error: OSError | None = None
        self.refused_errno: int | None = None
        self.clean = False
        self.recovery_rest: Callable[[], None] | None = None
        self.begun = False
        self.unsynced = DirtyFiles()
        self.capture = NEVER
        self.ack_file_writer = AckFileWriter(filesystem, boot, reserve, self.unsynced.ack_files)
        self.watermark = HighWatermark(filesystem, self.directory)
        self.sealed: list[Segment] = []
        self.found: Segment | None = None
        self.removals = SegmentRemoval(self.directory)
        self._work_failed = False  # the last work after a sync
        self._snapshot_failed = False  # a job has perhaps not written its snapshot of the producers
        self.producers: Producers | None = None
        self.transactions: Transactions | None = None
        # Producer -> (epoch, first offset) of aborted transactions; a full disk may not have taken their entries.
        self._unwritten_aborts: dict[int, tuple[int, int]] = {}
        # What `cursor.log_start` has found: the first record that is not settled, and the start of the log.
        self.start_of_aborted: tuple[int, int] = (-1, -1)
        self.deleted_end: i64 = 0
        self.replicated = False
        self.on_ack_entry: Callable[[int, int, int, int], object] | None = None

    # -- beginning, segments

    def next_epoch(self) -> int:
        """Return the leader epoch of new batches: one more than that of the previous process."""
        if self.begun:
            return self.epoch
        return self.epochs[-1][0] + 1 if self.epochs else 0

    def begin(self) -> None:
        """Prepare the first write of this process: directory, queue.json, new leader epoch, no clean-shutdown mark.

        Raises: OSError.
        """
        self.finish_recovery()
        filesystem = self.filesystem
        for index, path in enumerate(self.chain):
            # An existing directory may have been made by a process that was killed before it synced the name.
            if (filesystem.mkdir(path) or path not in filesystem.safe_directories) and index > 0 and not self.clean:
                self.unsynced.directories.append(self.chain[index - 1])
        readable = f"{self.directory}/queue.json"
        text = self._description()
        if filesystem.read_optional(readable) != text:  # missing, damaged, or written by an earlier version
            filesystem.replace_file(readable, text, sync=False)
            self.unsynced.paths.append(readable)
        if self.removals.export_hold is not None:
            self.removals.export_hold.write()
        if self.segments and self.durable:
            # Write the boot id before removing the clean mark: without both, all messages would count as delivered.
            self.ack_file_writer.entry_writer(self.segments[-1])
            self.ack_file_writer.flush()
        if self.clean:
            filesystem.unlink(f"{self.directory}/{checkpoint.CLEAN_SHUTDOWN}")
            self.clean = False
        self.epoch = self.next_epoch()
        self._write_epochs()
        self.unsynced.directories.append(self.directory)
        self.begun = True

    def _write_epochs(self) -> None:
        if self.durable:
            epochs = [*self.epochs, (self.epoch, self.end)]
            path = f"{self.directory}/{checkpoint.LEADER_EPOCH}"
            self.filesystem.replace_file(path, checkpoint.encode_lines(epochs), sync=False)
            self.epochs = epochs
            self.unsynced.paths.append(path)

    def new_segment(self, base: int) -> Segment:
        segment = Segment(self.filesystem, self.directory, base)
        segment.reset_index()
        file = segment.open_log(create=True)
        if self.filesystem.file_size(file.fd) > 0:  # an earlier creation failed half-way
            self.filesystem.truncate(file.fd, 0)
        self.segments.append(segment)
        self.unsynced.add_directory(self.directory)  # first: the new name needs a sync even if the rest fails
        if self.durable:
            self.ack_file_writer.entry_writer(segment)
            if self.delivered_mark >= base:  # ahead: the file with the mark may be removed first
                self.add_ack_entry(segment, ack_set.DELIVERED, self.delivered_mark, 0, 0)
            self.ack_file_writer.flush()
        return segment

    def seal(self) -> None:
        """Seal the active segment: write totals and indexes. Its files are closed after the next sync. Raises:
        OSError.
        """
        segment = self.segments[-1]
        self.write_totals(segment)
        segment.flush_index()
        segment.write_time_index()
        segment.sealed = True
        self.sealed.append(segment)
        if self.durable:
            point = checkpoint.encode_lines([(segment.end,)])
            self.unsynced.checkpoints.append((f"{self.directory}/{checkpoint.RECOVERY_POINT}", point))
            if self.producers is not None:
                self.producers.due = True
        if segment.live == 0:
            self.removals.wanted = True

    def roll(self) -> None:
        """Seal the active segment and create the next one, empty. Raises: OSError."""
        if not self.begun:
            self.begin()
        self.seal()
        self.new_segment(self.end)

    def write_totals(self, segment: Segment) -> None:
        """Write to `.settled` what the segment contains, and which offsets will not count after a restart."""
        for first, last in segment.gaps:
            self.add_ack_entry(segment, ack_set.SETTLED, first, last, 0)
        segment.gaps = []
        for first, last, size in segment.acked_transient + segment.transient:
            self.add_ack_entry(segment, ack_set.TRANSIENT, first, last, size)
        self.add_ack_entry(segment, ack_set.TOTALS, segment.end, segment.size, segment.body_bytes)
        self.add_ack_entry(segment, ack_set.TIMES, segment.first_timestamp_ms, segment.max_timestamp_ms, 0)

    # -- the start

    def start_offset(self) -> int:
        """Return the first offset that is not settled, `end` if there is none. Cost: a step per settled segment."""
        for segment in self.segments:
            if not segment.is_removed and segment.live > 0:
                return segment.settled.first_free()
        return self.end

    def kept_start(self) -> int:
        """Return the offset for Kafka's log-start checkpoint.

        With a retention policy, an aborted transaction at the start of the log does not move it.
        """
        if self.policy is None:
            return self.start_offset()
        for segment in self.segments:
            if not segment.is_removed and segment.live > 0:
                return max(segment.base, self.deleted_end)
        return self.end

    def checkpoint_start(self, offset: int) -> None:
        """Update Kafka's log-start checkpoint with the next job: everything below was deleted, and is settled.

        `.settled` files are authoritative. The checkpoint tells what was deleted from what was aborted. It is synced
        if the offset is within a segment: deleted records before it are still there.
        """
        self.deleted_end = offset
        if self.durable:
            start = checkpoint.encode_lines([(offset,)])
            self.unsynced.checkpoints.append((f"{self.directory}/{checkpoint.LOG_START}", start))
            segment = self.segment_of(offset)
            if self.policy is not None and segment is not None and segment.base < offset:
                self.unsynced.syncs_start = True

    # -- settling

    def segment_of(self, offset: int) -> Segment | None:
        """Return the segment that contains `offset`, None if there is none.

        Cost: O(1) for the segment of the last look-up and for the active one, else a bisection.
        """
        segment = self.found
        if segment is not None and segment.base <= offset < segment.end and not segment.is_removed:
            return segment
        segments = self.segments
        if segments and offset >= segments[-1].base:
            segment = segments[-1]
        else:
            index = bisect_right(segments, offset, key=base_of) - 1
            if index < 0:
                return None
            segment = segments[index]
        if offset >= segment.end:
            return None
        self.found = segment
        return segment

    def ack(self, first: int, last: int, body_size_bytes: int) -> int:
        """Settle a range and return how many of its offsets were live. Offsets that are not in the log are skipped.

        Args:
            body_size_bytes: size of all bodies in the range. Each segment gets its share.
        """
        added = 0
        offset = first
        while offset <= last:
            segment = self.segment_of(offset)
            if segment is None:
                index = bisect_right(self.segments, offset, key=base_of)
                if index >= len(self.segments):
                    break
                offset = self.segments[index].base
                continue
            stop = min(last, segment.end - 1)
            new = segment.settled.add(offset, stop)
            if new:
                added += new
                share = body_size_bytes
                if stop < last:  # the rest of the range is in another segment
                    share = body_size_bytes * new // (last - first + 1)
                if segment.live == 0:  # all of it, even if the caller did not know the size
                    share = max(0, segment.body_bytes - segment.settled_body_bytes)
                body_size_bytes = max(0, body_size_bytes - share)
                segment.settled_body_bytes += share
                if segment.transient:
                    segment.ack_transient(offset, stop, share)
                self.add_ack_entry(segment, ack_set.SETTLED, offset, stop, share)
                if segment.sealed and segment.live == 0:
                    self.removals.wanted = True
            offset = stop + 1
        return added

    def mark_returned(self, offset: int, packed: int) -> None:
        """Record for the next `flush` that a message was returned.

        Args:
            packed: its delivery count and due time (ack_set.py).
        """
        segment = self.segment_of(offset)
        if segment is not None and not segment.is_removed and segment.live > 0:
            self.add_ack_entry(
                segment, ack_set.RETURNED, offset, packed & ack_set.COUNT_MAX, packed >> ack_set.DELIVERY_COUNT_BITS
            )

    def mark_delivered(self, offset: int, ahead: int) -> None:
        """Record a delivery mark of `offset` + `ahead` for the next `flush`. No offset above the mark is delivered
        before the next mark is recorded.

        The mark may run ahead in its own segment, because that file can be removed, or past the end of the log.
        """
        segment = self.delivered_mark_segment(offset)
        if segment is None:
            return
        mark = offset + ahead
        if segment is not self.segments[-1]:
            mark = max(offset, min(mark, segment.end - 1))
        self.delivered_mark = max(self.delivered_mark, mark)
        self.add_ack_entry(segment, ack_set.DELIVERED, mark, 0, 0)

    def delivered_mark_segment(self, offset: int) -> Segment | None:
        """Return the segment whose `.settled` file records the delivery of `offset`.

        That is the segment of the offset. If there is none, or if it is removed or about to be, it is the last
        segment.
        """
        segment = self.segment_of(offset)
        if segment is None or segment.is_removed or segment.live == 0:
            there = [each for each in self.segments if not each.is_removed]
            return there[-1] if there else None
        return segment

    def mark_lost(self, segment: Segment, first: int, last: int) -> int:
        """Settle offsets that are unreadable, and record them as lost. Return how many were live."""
        last = min(last, segment.end - 1)
        added = segment.settled.add(first, last)
        if added:
            segment.lost.append((first, last))
            self.add_ack_entry(segment, ack_set.LOST, first, last, 0)
            if segment.sealed and segment.live == 0:
                self.removals.wanted = True
        return added

    def add_ack_entry(self, segment: Segment, kind: int, a: int, b: int, c: int) -> None:
        if self.durable and not segment.is_removed:
            self.ack_file_writer.add_entry(segment, kind, a, b, c)
        elif self.on_ack_entry is not None:
            self.on_ack_entry(kind, a, b, c)

    def flush_index(self) -> None:
        """Write all new entries of the active segment to `.index`. Without them, damage costs more after a kill.

        Raises nothing.
        """
        active = self.segments[-1] if self.segments and self.durable and not self.failed else None
        if active is not None and not active.sealed and not active.is_removed:
            try:
                active.flush_index()
            except OSError as error:
                self.on_error(error)

    def flush(self) -> None:
        """Write entries to `.settled` files, and to `.index` if there are many. Seal the active segment if all of it
        is settled.

        Raises nothing.
        """
        segments = self.segments
        active = segments[-1] if segments else None
        try:
            if active is not None and not active.sealed:
                if active.size >= self.reclaim_size_bytes and active.live == 0 and not self.failed:
                    self.roll()
                else:
                    active.flush_index(INDEX_ENTRIES_MIN)
        except OSError as error:
            self.on_error(error)
        if self.ack_file_writer.pending:
            try:
                self._flush_settled()
                self.removals.full = False
                self.refused_errno = None
            except OSError as error:
                self.on_error(error)
                self.removals.full = error.errno in FULL
            if self.removals.postponed and (self.removals.full or not self.ack_file_writer.pending):
                self.removals.postponed = False
                self.removals.wanted = True

    def _flush_settled(self) -> None:
        try:
            if not self.begun:
                self.begin()
            self.ack_file_writer.flush()
        except OSError as error:
            if not self.filesystem.can_retry_after(error):
                raise
            if not self.begun:
                self.begin()
            self.ack_file_writer.flush()

    def on_error(self, error: OSError) -> None:
        """Record a failed write that was not one of batches. Log it, unless it is the repetition of a failed one."""
        self.error = error
        if error.errno not in DISK_FULL_ERRORS:
            self.failed = True
        if error.errno != self.refused_errno:
            self.refused_errno = error.errno
            logger.error("%s: a write failed: %s", self.directory, error)

    # -- syncing

    @property
    def dirty(self) -> bool:
        """Return whether a job has something to do."""
        return self.unsynced.needs_job or (self.removals.wanted and not self.cleaning and not self.failed)

    def collect(self, part: SyncPart, settled_too: bool = True) -> None:
        """Move everything that needs a sync into `part`.

        Args:
            settled_too: if False, acknowledgements may wait for a later job unless this one depends on them. They
                cost a sync of their own, and no confirm promises them.
        """
        part.is_repeated = self._work_failed
        settled_too = settled_too or self.removals.wanted or self.ack_file_writer.renaming
        self.unsynced.collect(part, settled_too, self.durable, self.failed)
        self.ack_file_writer.collect(part)
        if part.renames and self.directory not in part.directories:
            part.directories.append(self.directory)  # else the new file and its facts could be lost
        part.end_offset = self.segments[-1].end if self.segments else 0  # not `end`: later offsets were not written
        # Without a snapshot, the removal of a segment would lose its producers, and their messages could be sent again.
        producers = self.producers
        is_missing = self._snapshot_failed and self.removals.wanted
        if producers is not None and (producers.due or is_missing) and not self.failed and self.durable:
            producers.due = self._snapshot_failed = False
            snapshot = (snapshot_path(self.directory, part.end_offset), self.encode_snapshot(part.end_offset))
            part.checkpoints.insert(0, snapshot)  # before the recovery point, and before a segment is removed
        if (
            self.removals.wanted and not self.cleaning and not self.failed
        ):  # acknowledgements of a failed log are not safe
            self.removals.collect(self.segments, self.kept_start(), self.deleted_end, part)
        if self.capture.used:
            self._offer_to_journal(part)

    def _offer_to_journal(self, part: SyncPart) -> None:
        """Offer a part that consists of appended batches alone for the journal. Any other part also syncs what only
        the journal has: other work may follow its syncs.
        """
        unsynced = self.unsynced
        other = bool(part.closed or part.paths or part.directories) or part.has_work_after_sync()
        if not other and not self.failed and self.durable and self.segments:
            unsynced.take_captured(part, self.segments[-1].size)
        else:
            unsynced.drop_captured()
        if not part.journal_path and unsynced.journaled and (other or part.files):
            unsynced.collect_journaled(part)

    def collect_background(self, part: SyncPart) -> None:
        """Move what no confirm waits for into `part`: files whose bytes the journal has, and acknowledgements."""
        part.end_offset = self.segments[-1].end if self.segments else 0
        self.unsynced.collect_journaled(part)
        # A rewritten file is synced with its renaming, and segments are removed by a job with their acknowledgements.
        if not (self.failed or self.removals.wanted or self.ack_file_writer.renaming):
            self.unsynced.collect_ack_files(part)

    def encode_snapshot(self, end: int) -> bytes:
        """Return the snapshot of the producers below offset `end`. There are some."""
        assert self.producers is not None
        transactions = self.transactions
        found: dict[int, tuple[int, int]] = {} if transactions is None else transactions.open_at(end)
        self._forget_written_aborts()
        return self.producers.encode(end, {**found, **self._unwritten_aborts})

    def stable_end(self) -> int:
        """Return the last stable offset; without open transactions it is the high watermark.

        Kafka: it is not below the start of the log, whose records were deleted.
        """
        end = self.watermark.offset
        transactions = self.transactions
        return end if transactions is None else max(transactions.stable_end(end), min(self.deleted_end, end))

    def end_transactions(self) -> bool:
        """Settle the messages of aborted transactions whose marker is synced. Return whether there were any.

        The entries are written at once: the next snapshot of the producers does not name these transactions any more,
        so recovery would not look for their messages.
        """
        transactions = self.transactions
        if transactions is None or self.failed:
            return False
        aborted = False
        for ended in transactions.take_ended(self.watermark.offset):
            if not ended.commits:
                aborted = True
                self._unwritten_aborts.setdefault(ended.producer_id, (ended.epoch, ended.first))
                for first, last, size in ended.parts():
                    self.ack(first, last, size)
        if len(transactions) == 0:
            self.transactions = None
        if aborted:
            self.flush()
            self._forget_written_aborts()
        return aborted

    def _forget_written_aborts(self) -> None:
        if self._unwritten_aborts and not self.ack_file_writer.pending:
            self._unwritten_aborts = {}

    def synced(self, part: SyncPart, now_ms: int, publish: bool) -> bool:
        """Process the result of a job, on the loop. After a failure the log is sealed at its last synced offset.

        Args:
            publish: write the high watermark file now; otherwise the caller does it later.

        Returns: whether messages of aborted transactions were settled, which changes the counts.
        """
        has_aborted = False
        for file in part.files:
            file.unpin()
        if part.failed:
            self._on_sync_failed()
        elif not self.failed:
            if part.unfinished:
                self._work_failed = self._snapshot_failed = True
            elif self._work_failed and part.has_work_after_sync():
                self._work_failed = False
            if part.journaled:
                self.watermark.on_journaled(part.end_offset)
            elif not self.replicated:
                self.watermark.offset = max(self.watermark.offset, part.end_offset)
                if part.covers_journal:
                    self.watermark.on_synced(part.end_offset)
            has_aborted = self.transactions is not None and self.end_transactions()
            if part.directories:
                self.filesystem.safe_directories.update(self.chain[:-1])
            if publish:
                self.publish()
            if part.removed:
                self.found = None
                self.segments = self.removals.on_removed(self.segments, part, now_ms)
                self.unsynced.drop_closed_files()
                if self.removals.wanted:
                    self.unsynced.add_directory(self.directory)
        self.ack_file_writer.synced(part)
        if self.sealed:
            self._release_sealed()
        return has_aborted

    def _on_sync_failed(self) -> None:
        self.failed = True
        self.watermark.on_failed()

    def _release_sealed(self) -> None:
        sealed, self.sealed = self.sealed, []
        for segment in sealed:
            if segment.dirty():
                self.sealed.append(segment)
            else:
                segment.release()

    def background_synced(self, part: SyncPart) -> None:
        """Process the result of a job with files of `collect_background`, on the loop."""
        for file in part.files:
            file.unpin()
        if part.failed:
            self._on_sync_failed()
        elif not self.failed and part.covers_journal:
            self.watermark.on_synced(part.end_offset)
        if self.sealed:
            self._release_sealed()

    def publish(self) -> None:
        """Write the high watermark file for external readers. They read committed messages only."""
        self.watermark.publish(self.durable and len(self.segments) > 0, self.stable_end())

    def finish_recovery(self) -> None:
        """Write what recovery has found, if that is still due: on a full disk a log is opened and drained without it.

        Raises: OSError.
        """
        write = self.recovery_rest
        if write is None:
            return
        try:
            write()
        except OSError as error:
            if error.errno not in FULL or not self.ack_file_writer.reserve.release():
                raise
            write()
        self.recovery_rest = None

    # -- closing

    def reset(self) -> None:
        """Return to the state after construction, before another recovery of this log."""
        self._drop_state()
        self.end = 0
        self.watermark.offset = 0
        self.producers = None
        self.transactions = None
        self._unwritten_aborts = {}
        self.start_of_aborted = (-1, -1)
        self.deleted_end = 0
        self.epochs = []
        self.clean = False

    def _drop_state(self) -> None:
        self.close_files()
        self.segments = []
        self.recovery_rest = None
        self.sealed = []
        self.found = None
        self.unsynced.clear_paths()
        self.ack_file_writer.pending = []
        self.removals.wanted = False

    def open_file_count(self) -> int:
        """Return the number of open descriptors."""
        mapped = 1 if self.watermark.mapped else 0
        return mapped + sum([len(segment.open_files()) for segment in self.segments])

    @property
    def is_pinned(self) -> bool:
        """Return whether a sync or a read-ahead uses one of the files."""
        return True in [file.pins > 0 for segment in self.segments for file in segment.open_files()]

    def close_descriptors(self) -> bool:
        """Close all descriptors, also of files that are not synced, because too many are open.

        A job with such a log syncs the whole disk (fsync_thread.py). Return False, and close none, while a sync or a
        read-ahead uses one.
        """
        if self.is_pinned:
            return False
        self.unsynced.drop_open_files(self.durable)
        for segment in self.segments:
            segment.release()
        self.watermark.close()
        return True

    def release(self) -> bool:
        """Close all descriptors. Return False, and close none, if a file is dirty or in use. They are opened again on
        demand.
        """
        if self.is_pinned or True in [segment.dirty() for segment in self.segments]:
            return False
        for segment in self.segments:
            segment.release()
        self.sealed = []
        if self.watermark.unpublished and not self.failed:
            self.publish()
        self.watermark.close()
        return True

    def close_files(self) -> None:
        """Close everything, synced or not. The log is not used afterwards."""
        for segment in self.segments:
            segment.release()
        self.unsynced.clear_files()
        self.watermark.close()

    def abandon(self) -> None:
        """Stop writing and syncing: the directory will be removed."""
        self._drop_state()
        self.failed = True
        self.durable = False


def base_of(segment: Segment) -> int:
    return segment.base
