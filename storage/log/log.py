"""A log: the segments of one directory, appended to at the end, settled anywhere, given back when settled.

Owns the directory: files appear with the first append, and so does the directory itself. Batches are written to it by
writer.py, `settle` takes ranges, `flush` writes what `.settled` must tell; none of them syncs. What they dirtied is
noted in `unsynced`, handed to the committer by `collect`, and comes back through `synced`, which moves the `watermark`.

Invariants: bytes behind `Segment.size` of a log file are never read and are cut off before more is appended. A file
whose sync failed is never synced or appended to again. A segment is removed only by a job that has synced what settled
it, and only when it is sealed; the active one is sealed early when all in it is settled, so that it can go.

What of a log waits for a sync: its files, the names of new ones, and what may be written once those are safe.

The log notes it here as it writes; `collect` moves it into the log's part of the next job (storage/sync_job.py). A file
that is noted has `dirty` set, so that it stands here once.

How far a log is safe (its high watermark), and the small mapped file that tells readers outside.

What is below the watermark was synced, with all that settles it; readers outside (exports, Kafka's tools) read no
further. They may be told later than is true, never more.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable
from typing import Final, final

from mypy_extensions import i64

from amqpd.storage.acks import ack_set
from amqpd.storage.acks.ack_files import FULL, PASSING, AckFileWriter
from amqpd.storage.acks.segment_removal import SegmentRemoval
from amqpd.storage.filesystem import FileSystem, MappedBytes, OpenFile, Reserve
from amqpd.storage.log import checkpoint
from amqpd.storage.log.producer_state import Producers, snapshot_path
from amqpd.storage.log.segment import Segment
from amqpd.storage.retention_policy import RetentionPolicy
from amqpd.storage.sync_job import SyncPart

SPILL_SYNC_SIZE: Final[i64] = 16 << 20  # bytes of a temporary log that may wait for the kernel to write them


@final
class DirtyFiles:
    """What of one log was written and waits for the next job to sync it.

    files: `.log` files that were written to. settled: `.settled` files. closed: some were closed before they were
    synced (`Log.shed`). directories: with new names. paths: of small files, closed already.
    checkpoints: (path, text), written when all of that is safe.
    """

    def __init__(self) -> None:
        self.files: list[OpenFile] = []
        self.settled: list[OpenFile] = []
        self.closed: bool = False
        self.directories: list[str] = []
        self.paths: list[str] = []
        self.checkpoints: list[tuple[str, bytes]] = []
        self._spilled: i64 = 0  # bytes of a log that is not durable, since its last sync
        self._spilled_due: bool = False  # the next job syncs them

    @property
    def any(self) -> bool:
        """Whether there is something; checkpoints alone wait for the next that there is."""
        return bool(self.files or self.settled or self.closed or self.directories or self.paths)

    def note(self, file: OpenFile) -> None:
        """A `.log` file was written to."""
        if not file.dirty:
            file.dirty = True
            self.files.append(file)

    def note_settled(self, file: OpenFile) -> None:
        """A `.settled` file was."""
        if not file.dirty:
            file.dirty = True
            self.settled.append(file)

    def note_directory(self, directory: str) -> None:
        """There is a new name in it."""
        if directory not in self.directories:
            self.directories.append(directory)

    def spilled(self, size: i64) -> i64:
        """Notes `size` bytes written to a log that need not last. Returns how many the next job syncs, mostly none.

        Nothing is promised of them. But the kernel stops whoever writes when too much waits for the disk, and that
        would be the loop; so the committer takes the disk's time, and publishers are held as for any unsynced bytes.
        """
        self._spilled += size
        if self._spilled < SPILL_SYNC_SIZE:
            return 0
        size = self._spilled
        self._spilled = 0
        self._spilled_due = True
        return size

    def collect(self, part: SyncPart, settled_too: bool, durable: bool, failed: bool) -> None:
        """Moves it into `part`, `.settled` files only when `settled_too`. durable, failed: of the log."""
        spilled = self._spilled_due
        self._spilled_due = False
        if failed or not durable:
            if failed or not spilled:  # a failed log's files are not synced again, lest a success be believed
                for file in self.files + self.settled:
                    file.dirty = False
                self.files.clear()
                self.settled.clear()
            self.closed = False
            self.directories = []
            self.paths = []
        part.closed = self.closed
        self.closed = False
        files = self.files[:]
        self.files.clear()
        if settled_too or self.directories or self.checkpoints:
            files += self.settled
            self.settled.clear()
        for file in files:
            file.dirty = False
            file.pins += 1
        part.files = files
        part.directories = self.directories
        part.paths = self.paths
        part.checkpoints = self.checkpoints
        self.directories = []
        self.paths = []
        self.checkpoints = []

    def forget_file(self, file: OpenFile) -> None:
        """It is about to be closed, unsynced: another one stands for it."""
        if file.dirty:
            (self.files if file in self.files else self.settled).remove(file)

    def drop_closed_files(self) -> None:
        """Some were removed, and closed, whatever had been written to them meanwhile."""
        for waiting in (self.files, self.settled):
            waiting[:] = [file for file in waiting if file.fd >= 0]

    def shed_files(self, closed: bool) -> None:
        """All files are about to be closed. closed: the next job has to sync the disk for them."""
        for waiting in (self.files, self.settled):
            for file in waiting:
                file.dirty = False
                self.closed = closed
            waiting.clear()

    def forget_files(self) -> None:
        """All files are closed, and nobody will sync them."""
        self.files.clear()
        self.settled.clear()
        self.closed = False

    def forget_names(self) -> None:
        """Nor the rest."""
        self.directories = []
        self.paths = []
        self.checkpoints = []


logger = logging.getLogger(__name__)


@final
class HighWatermark:
    """The high watermark of one log, and the mapped file that tells it. offset: the high watermark."""

    def __init__(self, filesystem: FileSystem, directory: str) -> None:
        self.offset: i64 = 0
        self._filesystem: FileSystem = filesystem
        self._directory: str = directory
        self._published: i64 = 0
        self._file: MappedBytes | None = None

    @property
    def unpublished(self) -> bool:
        """Whether readers outside do not yet know it."""
        return self.offset > self._published

    @property
    def mapped(self) -> bool:
        """Whether the file is open, which takes a descriptor."""
        return self._file is not None

    def begin(self, offset: i64) -> None:
        """Recovery has found it; the file is as good as told."""
        self.offset = offset
        self._published = offset

    def publish(self, there: bool) -> None:
        """Tells readers outside. there: the log has files for them. Cost: a page fault and, at the next sync, a page
        and an inode more: as much as a write.
        """
        self._published = self.offset
        if not there:
            return
        try:
            file = self._file
            if file is None:
                file = self._file = self._map(f"{self._directory}/{checkpoint.HIGH_WATERMARK}")
                self._filesystem.open_file_count += 1
            file[0 : checkpoint.HIGH_WATERMARK_SIZE] = checkpoint.encode_high_watermark(self.offset)
            if self._filesystem.crowded:
                self.close()
        except OSError as error:  # readers outside then see an older end; nothing in here depends on it
            logger.warning("high watermark of %s: %s", self._directory, error)

    def _map(self, path: str) -> MappedBytes:
        try:
            return self._filesystem.map(path, checkpoint.HIGH_WATERMARK_SIZE)
        except OSError as error:
            if not self._filesystem.room_after(error):
                raise
            return self._filesystem.map(path, checkpoint.HIGH_WATERMARK_SIZE)

    def close(self) -> None:
        """The file is opened again on demand."""
        file = self._file
        if file is not None:
            file.close()
            self._file = None
            self._filesystem.open_file_count -= 1


INDEX_ENTRIES_MIN = 16  # so many new ones are written together, fewer when the segment is sealed or the broker stops


class Log:
    """One directory of segments. Made empty; recovery.py fills `segments`, `end`, `epochs` of one on the disk.

    directory_chain: the directories to make on the way to `directory`, outermost first, it being the last.
    description: gives the text of its queue.json, should it be written. boot: the machine's boot id as two signed
    words. durable: whether it is ever synced and keeps `.settled` files.
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
        self.end = 0  # offsets below it are taken
        self.delivered_mark = -1  # as the files tell it, which may run ahead: nothing above it was delivered
        self.epochs: list[tuple[int, ...]] = []
        self.epoch = 0
        self.policy: RetentionPolicy | None = None  # of a log that keeps
        self.cleaning = False  # the cleaner is at work on its sealed segments
        self.failed = False
        self.error: OSError | None = None
        self.clean = False  # a clean-shutdown mark stands in the directory
        self.recovery_rest: Callable[[], None] | None = None  # what recovery has to write before this life does
        self.begun = False  # this life has written to it
        self.unsynced = DirtyFiles()
        self.settled_files = AckFileWriter(filesystem, boot, reserve, self.unsynced.settled)
        self.watermark = HighWatermark(filesystem, self.directory)
        self.sealed: list[Segment] = []  # files to close after the next sync
        self.found: Segment | None = None  # where the last offset was found
        self.removals = SegmentRemoval(self.directory)
        self.producers: Producers | None = None  # who has numbered what is in it, if anybody has
        # Of a cache (cluster/replicated_log.py): others move the watermark, and are told what is settled.
        self.replicated = False
        self.noted: Callable[[int, int, int, int], object] | None = None

    # -- beginning, segments

    def next_epoch(self) -> int:
        """The leader epoch of what is appended in this life: one more than that of the life before."""
        if self.begun:
            return self.epoch
        return self.epochs[-1][0] + 1 if self.epochs else 0

    def begin(self) -> None:
        """What comes before the first write of this life: directory, new epoch, no clean mark. Raises: OSError."""
        self.finish_recovery()
        filesystem = self.filesystem
        for index, path in enumerate(self.chain):
            # One that is there may have been made by a process that was killed before it synced the name.
            if (filesystem.mkdir(path) or path not in filesystem.safe_directories) and index > 0 and not self.clean:
                self.unsynced.directories.append(self.chain[index - 1])
        readable = f"{self.directory}/queue.json"
        text = self._description()
        if filesystem.read_if_there(readable) != text:  # missing, damaged, or of an earlier version
            filesystem.replace_file(readable, text, sync=False)
            self.unsynced.paths.append(readable)
        if self.removals.hold is not None:
            self.removals.hold.write()
        if self.segments and self.durable:
            # The boot id before the clean mark goes: without either, everything would count as delivered.
            self.settled_files.entries(self.segments[-1])
            self.settled_files.flush()
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
        segment.begin_index()
        file = segment.open_log(create=True)
        if self.filesystem.file_size(file.fd) > 0:  # a creation that failed half-way
            self.filesystem.truncate(file.fd, 0)
        self.segments.append(segment)
        self.unsynced.note_directory(self.directory)  # first: whatever fails behind it, the new name needs its sync
        if self.durable:
            self.settled_files.entries(segment)
            if self.delivered_mark >= base:  # it ran ahead into this segment; the file that tells it may go before
                self.note(segment, ack_set.DELIVERED, self.delivered_mark, 0, 0)
            self.settled_files.flush()
        return segment

    def seal(self) -> None:
        """Ends the active segment: writes totals and indexes; its files close with the next sync. Raises: OSError."""
        segment = self.segments[-1]
        self.note_totals(segment)
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
        """Seals the active segment and begins the next, which is empty. Raises: OSError."""
        if not self.begun:
            self.begin()
        self.seal()
        self.new_segment(self.end)

    def note_totals(self, segment: Segment) -> None:
        """Tells `.settled` what the segment holds and which of it will not count after a restart."""
        for first, last in segment.gaps:
            self.note(segment, ack_set.SETTLED, first, last, 0)
        segment.gaps = []
        for first, last, size in segment.transient_gone + segment.transient:
            self.note(segment, ack_set.TRANSIENT, first, last, size)
        self.note(segment, ack_set.TOTALS, segment.end, segment.size, segment.body_bytes)
        self.note(segment, ack_set.TIMES, segment.first_timestamp_ms, segment.max_timestamp_ms, 0)

    # -- where it starts

    def start_offset(self) -> int:
        """The first offset that is not settled, `end` if all are. Cost: a step per drained segment at the head."""
        for segment in self.segments:
            if not segment.gone and segment.live > 0:
                return segment.settled.first_free()
        return self.end

    def note_start(self, offset: int) -> None:
        """Retention has moved the start: Kafka's checkpoint follows with the next job. (`.settled` is the truth.)"""
        if self.durable:
            start = checkpoint.encode_lines([(offset,)])
            self.unsynced.checkpoints.append((f"{self.directory}/{checkpoint.LOG_START}", start))

    # -- settling

    def segment_of(self, offset: int) -> Segment | None:
        """The segment whose range `offset` is in. Cost: O(1) for the one asked for last, else a bisection."""
        segment = self.found
        if segment is not None and segment.base <= offset < segment.end and not segment.gone:
            return segment
        segments = self.segments
        if segments and offset >= segments[-1].base:
            segment = segments[-1]
        else:
            index = bisect_right(segments, offset, key=_base_of) - 1
            if index < 0:
                return None
            segment = segments[index]
        if offset >= segment.end:
            return None
        self.found = segment
        return segment

    def settle(self, first: int, last: int, body_size_bytes: int) -> int:
        """Settles a range; offsets that are not in the log are passed over. Returns how many were live."""
        added = 0
        offset = first
        while offset <= last:
            segment = self.segment_of(offset)
            if segment is None:
                index = bisect_right(self.segments, offset, key=_base_of)
                if index >= len(self.segments):
                    break
                offset = self.segments[index].base
                continue
            stop = min(last, segment.end - 1)
            new = segment.settled.add(offset, stop)
            if new:
                added += new
                share = body_size_bytes
                if stop < last:  # the range goes on in another segment
                    share = body_size_bytes * new // (last - first + 1)
                if segment.live == 0:  # all of it, also where the caller did not know how much that is
                    share = max(0, segment.body_bytes - segment.settled_body_bytes)
                body_size_bytes = max(0, body_size_bytes - share)
                segment.settled_body_bytes += share
                if segment.transient:
                    segment.settle_transient(offset, stop, share)
                self.note(segment, ack_set.SETTLED, offset, stop, share)
                if segment.sealed and segment.live == 0:
                    self.removals.wanted = True
            offset = stop + 1
        return added

    def mark_returned(self, offset: int, told: int) -> None:
        """Notes for the next `flush` that `offset` was given back. told: its tally (ack_set.py)."""
        segment = self.segment_of(offset)
        if segment is not None and not segment.gone and segment.live > 0:
            self.note(segment, ack_set.RETURNED, offset, told & ack_set.COUNT_MAX, told >> ack_set.TALLY_BITS)

    def mark_delivered(self, offset: int, ahead: int) -> None:
        """Notes a delivery mark for the next `flush`: nothing above `offset` + `ahead` is delivered before another one
        is told. It runs ahead in its own segment only, whose file may go, or beyond the end of the log.
        """
        segment = self.delivered_mark_segment(offset)
        if segment is None:
            return
        mark = offset + ahead
        if segment is not self.segments[-1]:
            mark = max(offset, min(mark, segment.end - 1))
        self.delivered_mark = max(self.delivered_mark, mark)
        self.note(segment, ack_set.DELIVERED, mark, 0, 0)

    def delivered_mark_segment(self, offset: int) -> Segment | None:
        """Whose `.settled` tells that `offset` was delivered: its own segment's, or, when it is in none or in one that
        is gone or about to go, the last one's.
        """
        segment = self.segment_of(offset)
        if segment is None or segment.gone or segment.live == 0:
            there = [each for each in self.segments if not each.gone]
            return there[-1] if there else None
        return segment

    def note_lost(self, segment: Segment, first: int, last: int) -> int:
        """Offsets that cannot be read any more: settled, and remembered as lost. Returns how many were live."""
        last = min(last, segment.end - 1)
        added = segment.settled.add(first, last)
        if added:
            segment.lost.append((first, last))
            self.note(segment, ack_set.LOST, first, last, 0)
            if segment.sealed and segment.live == 0:
                self.removals.wanted = True
        return added

    def note(self, segment: Segment, kind: int, a: int, b: int, c: int) -> None:
        if self.durable and not segment.gone:
            self.settled_files.note(segment, kind, a, b, c)
        elif self.noted is not None:
            self.noted(kind, a, b, c)

    def flush_index(self) -> None:
        """All new entries of the active segment to `.index`: without them damage in the middle costs more after a kill.
        Raises nothing.
        """
        active = self.segments[-1] if self.segments and self.durable and not self.failed else None
        if active is not None and not active.sealed and not active.gone:
            try:
                active.flush_index()
            except OSError as error:
                self.on_error(error)

    def flush(self) -> None:
        """Entries to `.settled`, to `.index` if they are many; a drained active segment is sealed."""
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
        if self.settled_files.pending:
            try:
                self._flush_settled()
                self.removals.full = False
            except OSError as error:
                self.on_error(error)
                self.removals.full = error.errno in FULL
            if self.removals.postponed and (self.removals.full or not self.settled_files.pending):
                self.removals.postponed = False
                self.removals.wanted = True

    def _flush_settled(self) -> None:
        try:
            if not self.begun:
                self.begin()
            self.settled_files.flush()
        except OSError as error:
            if not self.filesystem.room_after(error):
                raise
            if not self.begun:
                self.begin()
            self.settled_files.flush()

    def on_error(self, error: OSError) -> None:
        """A write for the log, not of its batches, has failed."""
        self.error = error
        if error.errno not in PASSING:
            self.failed = True
        logger.error("writing %s: %s", self.directory, error)

    # -- syncing

    @property
    def dirty(self) -> bool:
        """Whether there is something for a job."""
        return self.unsynced.any or (self.removals.wanted and not self.cleaning)

    def collect(self, part: SyncPart, settled_too: bool = True) -> None:
        """Moves everything that needs a sync into `part`.

        settled_too: else what was settled may wait for a later job, when nothing of this one rests on it. It costs a
        sync of its own, and tells nothing that a confirm promises.
        """
        settled_too = settled_too or self.removals.wanted or self.settled_files.renaming
        self.unsynced.collect(part, settled_too, self.durable, self.failed)
        self.settled_files.collect(part)
        if part.renames and self.directory not in part.directories:
            part.directories.append(self.directory)  # the new file's name, or what it alone tells would be lost
        part.end_offset = self.segments[-1].end if self.segments else 0  # behind it are offsets that were not written
        if self.producers is not None and self.producers.due and not self.failed and self.durable:
            self.producers.due = False
            snapshot = (snapshot_path(self.directory, part.end_offset), self.producers.encode(part.end_offset))
            part.checkpoints.insert(0, snapshot)  # before the recovery point, and before a segment goes
        if self.removals.wanted and not self.cleaning and not self.failed:  # a failed log's settlements are not safe
            self.removals.collect(self.segments, self.start_offset(), part)

    def synced(self, part: SyncPart, now_ms: int, publish: bool) -> None:
        """The job is done, on the loop. After a failed one the log is sealed at what was synced before. publish: else
        the caller does it later.
        """
        for file in part.files:
            file.unpin()
        if part.failed:
            self.failed = True
        elif not self.failed:
            if not self.replicated:
                self.watermark.offset = max(self.watermark.offset, part.end_offset)
            if part.directories:
                self.filesystem.safe_directories.update(self.chain[:-1])
            if publish:
                self.publish()
            if part.removed:
                self.found = None
                self.segments = self.removals.done(self.segments, part, now_ms)
                self.unsynced.drop_closed_files()
                if self.removals.wanted:
                    self.unsynced.note_directory(self.directory)
        self.settled_files.synced(part)
        sealed, self.sealed = self.sealed, []
        for segment in sealed:
            if segment.dirty():
                self.sealed.append(segment)
            else:
                segment.release()

    def publish(self) -> None:
        """Tells readers outside how far the log is synced."""
        self.watermark.publish(self.durable and len(self.segments) > 0)

    def finish_recovery(self) -> None:
        """Writes what recovery has found, if it has not yet: on a full disk the log is read, and given back, without.
        Raises: OSError.
        """
        write = self.recovery_rest
        if write is None:
            return
        try:
            write()
        except OSError as error:
            if error.errno not in FULL or not self.settled_files.reserve.release():
                raise
            write()
        self.recovery_rest = None

    # -- closing

    def reset(self) -> None:
        """As it was made: recovery begins, perhaps for another time, after one that could not open a file."""
        self._forget()
        self.end = 0
        self.watermark.offset = 0
        self.producers = None
        self.epochs = []
        self.clean = False

    def _forget(self) -> None:
        self.close_files()
        self.segments = []
        self.recovery_rest = None
        self.sealed = []
        self.found = None
        self.unsynced.forget_names()
        self.settled_files.pending = []
        self.removals.wanted = False

    def open_file_count(self) -> int:
        """Descriptors open just now."""
        mapped = 1 if self.watermark.mapped else 0
        return mapped + sum([len(segment.open_files()) for segment in self.segments])

    @property
    def pinned(self) -> bool:
        """Whether a sync or the reading ahead is at work on one of its files."""
        return True in [file.pins > 0 for segment in self.segments for file in segment.open_files()]

    def shed(self) -> bool:
        """Closes all descriptors, also of what is not synced: too many are open, and a job that has such a log in it
        syncs the whole disk (fsync_thread.py). False if that would give none back, as a sync is at work on them.
        """
        if self.pinned:
            return False
        self.unsynced.shed_files(self.durable)
        for segment in self.segments:
            segment.release()
        self.watermark.close()
        return True

    def release(self) -> bool:
        """Closes all descriptors if nothing is dirty or at work; False if something is. They are opened again on
        demand.
        """
        if self.pinned or True in [segment.dirty() for segment in self.segments]:
            return False
        for segment in self.segments:
            segment.release()
        self.sealed = []
        if self.watermark.unpublished and not self.failed:
            self.publish()
        self.watermark.close()
        return True

    def close_files(self) -> None:
        """Closes everything, synced or not. The log is not used afterwards."""
        for segment in self.segments:
            segment.release()
        self.unsynced.forget_files()
        self.watermark.close()

    def abandon(self) -> None:
        """The directory is about to be removed: nothing more is written or synced."""
        self._forget()
        self.failed = True
        self.durable = False


def _base_of(segment: Segment) -> int:
    return segment.base
