"""A log: the segments of one directory, appended to at the end, settled anywhere, given back when settled.

Owns the directory: files appear with the first append, and so does the directory itself. `append` writes batches,
`settle` takes ranges, `flush` writes what `.settled` must tell; none of them syncs. What they dirtied is handed to the
committer by `collect` and comes back through `synced`.

Invariants: bytes behind `Segment.size` of a log file are never read and are cut off before more is appended. A file
whose sync failed is never synced or appended to again. A segment is removed only by a job that has synced what settled
it, and only when it is sealed; the active one is sealed early when all in it is settled, so that it can go.
"""

from __future__ import annotations

import errno
import logging
from bisect import bisect_right
from typing import TYPE_CHECKING

from amqpd.storage.commit.job import JobPart
from amqpd.storage.filesystem import FileSystem, MappedBytes, OpenFile, Reserve
from amqpd.storage.keep.policy import RetentionPolicy
from amqpd.storage.log import checkpoint
from amqpd.storage.log.batch import ClosedBatch
from amqpd.storage.log.segment import Segment
from amqpd.storage.settle import settled
from amqpd.storage.settle.removal import Removals
from amqpd.storage.settle.settled_files import FULL, PASSING, SettledFiles

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

PARTS_MAX = 512  # batches in one writev: two parts each, and IOV_MAX is 1024
IOV_MAX = 1024
INDEX_ENTRIES_MIN = 16  # so many new ones are written together, fewer when the segment is sealed or the broker stops
SPILL_SYNC_SIZE = 16 << 20  # bytes of a temporary log that may wait for the kernel to write them
POSITION_MAX = 1 << 30  # positions are u32 in the index, and Kafka reads them as i32


class Log:
    """See the module. Made empty; recovery.py fills `segments`, `end`, `epochs` of one that is on the disk.

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
        self.synced_end = 0
        self.marked = -1  # offsets above it were not delivered, as the files tell: they may run ahead of the truth
        self.epochs: list[tuple[int, ...]] = []
        self.epoch = 0
        self.policy: RetentionPolicy | None = None  # of a log that keeps
        self._spilled = 0  # bytes of a log that is not durable, since its last sync; whether the next job syncs it
        self._spilled_due = False
        self.cleaning = False  # the cleaner is at work on its sealed segments
        self.failed = False
        self.error: OSError | None = None
        self.clean = False  # a clean-shutdown mark stands in the directory
        self.recovery_rest: Callable[[], None] | None = None  # what recovery has to write before this life does
        self._published = 0
        self._begun = False
        self._dirty: list[OpenFile] = []
        self._settled_dirty: list[OpenFile] = []
        self._closed_dirty = False  # some were closed before they were synced: see `shed`
        self.settled_files = SettledFiles(filesystem, boot, reserve, self._settled_dirty)
        self._directories: list[str] = []
        self._paths: list[str] = []
        self._checkpoints: list[tuple[str, bytes]] = []
        self._sealed: list[Segment] = []  # files to close after the next sync
        self._high_watermark: MappedBytes | None = None
        self._last: Segment | None = None  # where the last offset was found
        self.removals = Removals(self.directory)

    # -- appending

    def append(self, batches: list[ClosedBatch]) -> int:
        """Writes batches to the log. Returns how many got there whole; when not all, `error` says why.

        On a full disk (or where no file can be opened just now) the file is cut back to the last whole batch (whole
        transaction) and the log stays usable; on any other error it is `failed`. The offsets of batches that did not
        get there are never used again.
        """
        self.error = None
        total = len(batches)
        done = 0
        try:
            while done < total:
                try:
                    segment = self._writable(batches[done])
                    segment.open_log(create=True)
                except OSError as error:
                    if not self.filesystem.room_after(error):
                        raise
                    segment = self._writable(batches[done])
                stop = self._run_length(segment, batches, done)
                written = self._write_run(segment, batches, done, stop)
                done += written
                self._raise_error()
        except OSError as error:
            self.error = error
            if error.errno not in PASSING:
                self.failed = True
            done = self._back_to_transaction_start(batches, done)
        if total:
            self.end = max(self.end, batches[total - 1].last_offset + 1)
        return done

    def _raise_error(self) -> None:
        """What `_write_run` has met. A method, since in `append` the error is known to be None, to mypyc too."""
        if self.error is not None:
            raise self.error

    def _writable(self, batch: ClosedBatch) -> Segment:
        if not self._begun:
            self.begin()
        segments = self.segments
        if not segments or segments[-1].sealed:
            return self._new_segment(batch.base_offset)
        segment = segments[-1]
        size = segment.size + batch.size
        inside = 0 <= batch.transaction_start < batch.base_offset
        if segment.size > 0 and ((size > self.segment_size_bytes and not inside) or size > POSITION_MAX):
            self.seal()
            return self._new_segment(batch.base_offset)
        return segment

    def _run_length(self, segment: Segment, batches: list[ClosedBatch], start: int) -> int:
        """Index behind the last batch that goes into `segment` with the one at `start`."""
        size = segment.size
        stop = start
        total = min(len(batches), start + PARTS_MAX)
        while stop < total:
            size += batches[stop].size
            if stop > start and size > self.segment_size_bytes:
                break
            stop += 1
        return stop

    def _write_run(self, segment: Segment, batches: list[ClosedBatch], start: int, stop: int) -> int:
        """One writev (more if it was short, or where large messages come in many parts). Returns the number of whole
        batches that are in the file.
        """
        file = segment.open_log(create=True)
        parts: list[bytes] = []
        for index in range(start, stop):
            batch = batches[index]
            parts.append(batch.header)
            parts.append(batch.records)
            parts += batch.more
        written = 0
        try:
            for first in range(0, len(parts), IOV_MAX):
                group = parts[first : first + IOV_MAX] if len(parts) > IOV_MAX else parts
                wanted = sum([len(part) for part in group])
                done = self.filesystem.writev(file.fd, group)
                written += done
                if done < wanted:
                    rest = b"".join(group)
                    while done < wanted:
                        more = self.filesystem.write(file.fd, rest[done:])
                        if more <= 0:
                            raise OSError(errno.ENOSPC, "short write")
                        done += more
                        written += more
        except OSError as error:
            self.error = error
        if not file.dirty:
            file.dirty = True
            self._dirty.append(file)
        index = start
        while index < stop and written >= batches[index].size:
            batch = batches[index]
            written -= batch.size
            self._fill_gap(segment, batch.base_offset)
            segment.appended(batch)
            if batch.attributes & 0x4000:
                segment.add_transient(batch.base_offset, batch.last_offset, batch.body_size_bytes)
            if batch.attributes & 0x20:
                self.settle(batch.base_offset, batch.last_offset, 0)
            index += 1
        if written > 0:
            self._cut_file(file, segment.size)
        return index - start

    def _fill_gap(self, segment: Segment, offset: int) -> None:
        """Offsets that were given out and never written count as settled."""
        if offset > segment.end:
            first = segment.end
            segment.end = offset
            segment.settled.add(first, offset - 1)
            self._note(segment, settled.SETTLED, first, offset - 1, 0)

    def _cut_file(self, file: OpenFile, size: int) -> None:
        try:
            self.filesystem.truncate(file.fd, size)
        except OSError as error:
            self.error = error
            self.failed = True  # what stands behind `size` cannot be told from a batch any more

    def _back_to_transaction_start(self, batches: list[ClosedBatch], done: int) -> int:
        """Takes back the batches of the transaction that the failed one belongs to. Returns the number that stay."""
        if done >= len(batches) or batches[done].transaction_start < 0:
            return done
        start = batches[done].transaction_start
        keep = done
        while keep > 0 and batches[keep - 1].transaction_start == start:
            keep -= 1
        for index in range(done - 1, keep - 1, -1):
            batch = batches[index]
            segment = self.segment_of(batch.base_offset)
            if segment is None:
                continue
            segment.cut(segment.size - batch.size, batch.base_offset, segment.body_bytes - batch.body_size_bytes)
            try:
                self._cut_file(segment.open_log(), segment.size)
            except OSError as error:
                self.error = error
                self.failed = True
        return keep

    def next_epoch(self) -> int:
        """The leader epoch of what is appended in this life: one more than that of the life before."""
        if self._begun:
            return self.epoch
        return self.epochs[-1][0] + 1 if self.epochs else 0

    def begin(self) -> None:
        """What comes before the first write of this life: directory, new epoch, no clean mark. Raises: OSError."""
        self.finish_recovery()
        filesystem = self.filesystem
        for index, path in enumerate(self.chain):
            # One that is there may have been made by a process that was killed before it synced the name.
            if (filesystem.mkdir(path) or path not in filesystem.safe_directories) and index > 0 and not self.clean:
                self._directories.append(self.chain[index - 1])
        readable = f"{self.directory}/queue.json"
        text = self._description()
        if filesystem.read_if_there(readable) != text:  # missing, damaged, or of an earlier version
            filesystem.replace_file(readable, text, sync=False)
            self._paths.append(readable)
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
        if self.durable:
            epochs = [*self.epochs, (self.epoch, self.end)]
            path = f"{self.directory}/{checkpoint.LEADER_EPOCH}"
            filesystem.replace_file(path, checkpoint.encode_lines(epochs), sync=False)
            self.epochs = epochs
            self._paths.append(path)
        self._directories.append(self.directory)
        self._begun = True

    def _new_segment(self, base: int) -> Segment:
        segment = Segment(self.filesystem, self.directory, base)
        segment.begin_index()
        file = segment.open_log(create=True)
        if self.filesystem.file_size(file.fd) > 0:  # a creation that failed half-way
            self.filesystem.truncate(file.fd, 0)
        self.segments.append(segment)
        if self.directory not in self._directories:  # first: whatever fails behind it, the new name needs its sync
            self._directories.append(self.directory)
        if self.durable:
            self.settled_files.entries(segment)
            if self.marked >= base:  # the mark ran ahead into this segment; the file that tells it may go before
                self._note(segment, settled.DELIVERED, self.marked, 0, 0)
            self.settled_files.flush()
        return segment

    def seal(self) -> None:
        """Ends the active segment: totals and indexes are written, its files closed after the next sync. Raises:
        OSError.
        """
        segment = self.segments[-1]
        self.note_totals(segment)
        segment.flush_index()
        segment.write_time_index()
        segment.sealed = True
        self._sealed.append(segment)
        if self.durable:
            point = checkpoint.encode_lines([(segment.end,)])
            self._checkpoints.append((f"{self.directory}/{checkpoint.RECOVERY_POINT}", point))
        if segment.live == 0:
            self.removals.wanted = True

    def roll(self) -> None:
        """Seals the active segment and begins the next, which is empty. Raises: OSError."""
        if not self._begun:
            self.begin()
        self.seal()
        self._new_segment(self.end)

    def note_totals(self, segment: Segment) -> None:
        """Tells `.settled` what the segment holds and which of it will not count after a restart."""
        for first, last in segment.gaps:
            self._note(segment, settled.SETTLED, first, last, 0)
        segment.gaps = []
        for first, last, size in segment.transient_gone + segment.transient:
            self._note(segment, settled.TRANSIENT, first, last, size)
        self._note(segment, settled.TOTALS, segment.end, segment.size, segment.body_bytes)
        self._note(segment, settled.TIMES, segment.first_timestamp_ms, segment.max_timestamp_ms, 0)

    def replace(self, old: list[Segment], new: Segment) -> list[OpenFile]:
        """The cleaner's `new` segment stands for `old`, which are neighbours. Its files are opened and held: swap.py.

        Returns what has to be unpinned. Raises: OSError, before anything is changed.
        """
        held = [new.open_log(), new.open_settled()]
        for file in held:
            file.pins += 1
        for segment in old:
            for file in segment.open_files():
                if file.dirty:
                    (self._dirty if file in self._dirty else self._settled_dirty).remove(file)
            segment.release()
            segment.gone = True
        index = self.segments.index(old[0])
        self.segments[index : index + len(old)] = [new]
        self._sealed = [segment for segment in self._sealed if segment not in old]
        settled_paths = [f"{segment.prefix}.settled" for segment in old]  # recovery wanted them synced; the new one is
        self._paths = [path for path in self._paths if path not in settled_paths]
        self._last = None
        if new.live == 0:
            self.removals.wanted = True
        return held

    def note_cleaned(self, path: str, text: bytes) -> None:
        """All of a cleaning is in place: its checkpoint follows with the next job, which syncs the directory first."""
        self._checkpoints.append((path, text))
        if self.directory not in self._directories:
            self._directories.append(self.directory)

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
            self._checkpoints.append((f"{self.directory}/{checkpoint.LOG_START}", checkpoint.encode_lines([(offset,)])))

    # -- settling

    def segment_of(self, offset: int) -> Segment | None:
        """The segment whose range `offset` is in. Cost: O(1) for the one asked for last, else a bisection."""
        segment = self._last
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
        self._last = segment
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
                self._note(segment, settled.SETTLED, offset, stop, share)
                if segment.sealed and segment.live == 0:
                    self.removals.wanted = True
            offset = stop + 1
        return added

    def mark_returned(self, offset: int, count: int) -> None:
        """Notes for the next `flush` that `offset` was given back, and had been delivered `count` times."""
        segment = self.segment_of(offset)
        if segment is not None and not segment.gone and segment.live > 0:
            self._note(segment, settled.RETURNED, offset, count, 0)

    def mark_delivered(self, offset: int, ahead: int) -> None:
        """Notes a delivery mark for the next `flush`: nothing above `offset` + `ahead` is delivered before another one
        is told. It runs ahead in its own segment only, whose file may go, or beyond the end of the log.
        """
        segment = self.marked_in(offset)
        if segment is None:
            return
        mark = offset + ahead
        if segment is not self.segments[-1]:
            mark = max(offset, min(mark, segment.end - 1))
        self.marked = max(self.marked, mark)
        self._note(segment, settled.DELIVERED, mark, 0, 0)

    def marked_in(self, offset: int) -> Segment | None:
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
            self._note(segment, settled.LOST, first, last, 0)
            if segment.sealed and segment.live == 0:
                self.removals.wanted = True
        return added

    def _note(self, segment: Segment, kind: int, a: int, b: int, c: int) -> None:
        if self.durable and not segment.gone:
            self.settled_files.note(segment, kind, a, b, c)

    def flush_index(self) -> None:
        """All new entries of the active segment to `.index`: without them damage in the middle costs more after a kill.
        Raises nothing.
        """
        active = self.segments[-1] if self.segments else None
        if active is not None and not active.sealed and not active.gone and self.durable and not self.failed:
            try:
                active.flush_index()
            except OSError as error:
                self._trouble(error)

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
            self._trouble(error)
        if self.settled_files.pending:
            try:
                self._flush_settled()
                self.removals.full = False
            except OSError as error:
                self._trouble(error)
                self.removals.full = error.errno in FULL
            if self.removals.postponed and (self.removals.full or not self.settled_files.pending):
                self.removals.postponed = False
                self.removals.wanted = True

    def _flush_settled(self) -> None:
        try:
            if not self._begun:
                self.begin()
            self.settled_files.flush()
        except OSError as error:
            if not self.filesystem.room_after(error):
                raise
            if not self._begun:
                self.begin()
            self.settled_files.flush()

    def _trouble(self, error: OSError) -> None:
        self.error = error
        if error.errno not in PASSING:
            self.failed = True
        logger.error("writing %s: %s", self.directory, error)

    # -- syncing

    @property
    def dirty(self) -> bool:
        """Whether there is something for a job."""
        removable = self.removals.wanted and not self.cleaning
        files = self._dirty or self._settled_dirty or self._closed_dirty
        return bool(files or self._directories or self._paths or removable)

    def collect(self, part: JobPart, settled_too: bool = True) -> None:
        """Moves everything that needs a sync into `part`.

        settled_too: else what was settled may wait for a later job, when nothing of this one rests on it. It costs a
        sync of its own, and tells nothing that a confirm promises.
        """
        spilled, self._spilled_due = self._spilled_due, False
        if self.failed or not self.durable:
            if self.failed or not spilled:  # a failed log's files are not synced again, lest a success be believed
                for file in self._dirty + self._settled_dirty:
                    file.dirty = False
                self._dirty.clear()
                self._settled_dirty.clear()
            self._closed_dirty = False
            self._directories = []
            self._paths = []
        part.closed, self._closed_dirty = self._closed_dirty, False
        files = self._dirty[:]
        self._dirty.clear()
        if settled_too or self._directories or self._checkpoints or self.removals.wanted or self.settled_files.renaming:
            files += self._settled_dirty
            self._settled_dirty.clear()
        for file in files:
            file.dirty = False
            file.pins += 1
        part.files = files
        part.directories, self._directories = self._directories, []
        part.paths, self._paths = self._paths, []
        part.checkpoints, self._checkpoints = self._checkpoints, []
        self.settled_files.collect(part)
        if part.renames and self.directory not in part.directories:
            part.directories.append(self.directory)  # the new file's name, or what it alone tells would be lost
        part.end_offset = self.segments[-1].end if self.segments else 0  # behind it are offsets that were not written
        if self.removals.wanted and not self.cleaning and not self.failed:  # a failed log's settlements are not safe
            self.removals.collect(self.segments, self.start_offset(), part)

    def spilled(self, size: int) -> int:
        """Notes `size` bytes written to a log that need not last. Returns how many the next job syncs, mostly none.

        Nothing is promised of them. But the kernel stops whoever writes when too much waits for the disk, and that
        would be the loop; so the committer takes the disk's time, and publishers are held as for any unsynced bytes.
        """
        self._spilled += size
        if self._spilled < SPILL_SYNC_SIZE:
            return 0
        size, self._spilled = self._spilled, 0
        self._spilled_due = True
        return size

    def synced(self, part: JobPart, now_ms: int, publish: bool) -> None:
        """The job is done, on the loop. After a failed one the log is sealed at what was synced before. publish: else
        the caller does it later.
        """
        for file in part.files:
            file.unpin()
        if part.failed:
            self.failed = True
        elif not self.failed:
            self.synced_end = max(self.synced_end, part.end_offset)
            if part.directories:
                self.filesystem.safe_directories.update(self.chain[:-1])
            if publish:
                self.publish()
            if part.removed:
                self._last = None
                self.segments = self.removals.done(self.segments, part, now_ms)
                # Their files are gone and closed, whatever was written to them meanwhile.
                for waiting in (self._dirty, self._settled_dirty):
                    waiting[:] = [file for file in waiting if file.fd >= 0]
                if self.removals.wanted and self.directory not in self._directories:
                    self._directories.append(self.directory)
        self.settled_files.synced(part)
        sealed, self._sealed = self._sealed, []
        for segment in sealed:
            if segment.dirty():
                self._sealed.append(segment)
            else:
                segment.release()

    @property
    def unpublished(self) -> bool:
        """Whether readers outside do not yet know all that is synced."""
        return self.synced_end > self._published

    def publish(self) -> None:
        """Tells readers outside how far the log is synced. Cost: a page fault and, at the next sync, a page and an
        inode more: as much as a write.
        """
        self._published = self.synced_end
        if not self.durable or not self.segments:
            return
        try:
            if self._high_watermark is None:
                path = f"{self.directory}/{checkpoint.HIGH_WATERMARK}"
                self._high_watermark = self._map(path)
                self.filesystem.open_file_count += 1
            data = checkpoint.encode_high_watermark(self.synced_end)
            self._high_watermark[0 : checkpoint.HIGH_WATERMARK_SIZE] = data
            if self.filesystem.crowded:
                self._unmap()
        except OSError as error:  # readers outside then see an older end; nothing in here depends on it
            logger.warning("high watermark of %s: %s", self.directory, error)

    def _map(self, path: str) -> MappedBytes:
        try:
            return self.filesystem.map(path, checkpoint.HIGH_WATERMARK_SIZE)
        except OSError as error:
            if not self.filesystem.room_after(error):
                raise
            return self.filesystem.map(path, checkpoint.HIGH_WATERMARK_SIZE)

    def _unmap(self) -> None:
        if self._high_watermark is not None:
            self._high_watermark.close()
            self._high_watermark = None
            self.filesystem.open_file_count -= 1

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

    def after_recovery(self, *, clean: bool) -> None:
        """What a kill left in the page cache counts from now on, so the next job syncs it."""
        for segment in self.segments:
            if segment.sealed and segment.live == 0:
                self.removals.wanted = True
        if clean:
            self.synced_end = self._published = self.end
            return
        if not self.segments:
            return
        self._directories += [parent for parent in self.chain[:-1] if parent not in self.filesystem.safe_directories]
        self._directories += self.chain[-2:]
        # What was settled in an earlier life may be in the page cache only; drained segments go with the next job.
        self._paths += [
            f"{segment.prefix}.settled"
            for segment in self.segments
            if segment.settled_size != 0 and (segment.gone or segment is not self.segments[-1])
        ]
        for segment in self.segments[-1:]:
            if segment.gone:
                continue
            log_file = segment.open_log()
            if not log_file.dirty:
                log_file.dirty = True
                self._dirty.append(log_file)
            if segment.settled_size:
                settled_file = segment.open_settled()
                if not settled_file.dirty:
                    settled_file.dirty = True
                    self._settled_dirty.append(settled_file)

    # -- closing

    def reset(self) -> None:
        """As it was made: recovery begins, perhaps for another time, after one that could not open a file."""
        self.close_files()
        self.segments = []
        self.end = self.synced_end = 0
        self.epochs = []
        self.clean = False
        self.recovery_rest = None
        self._sealed = []
        self._last = None
        self._directories = []
        self._paths = []
        self._checkpoints = []
        self.settled_files.pending = []
        self.removals.wanted = False

    def open_file_count(self) -> int:
        """Descriptors open just now."""
        mapped = 1 if self._high_watermark is not None else 0
        return mapped + sum([len(segment.open_files()) for segment in self.segments])

    def shed(self) -> bool:
        """Closes all descriptors, also of what is not synced: too many are open, and a job that has such a log in it
        syncs the whole disk (committer.py). False if that would give none back, as a sync is at work on them.
        """
        for segment in self.segments:
            for file in segment.open_files():
                if file.pins > 0:
                    return False
        for waiting in (self._dirty, self._settled_dirty):
            for file in waiting:
                file.dirty = False
                self._closed_dirty = self.durable
            waiting.clear()
        for segment in self.segments:
            segment.release()
        self._unmap()
        return True

    def release(self) -> bool:
        """Closes all descriptors if nothing is dirty or at work; False if something is. They are opened again on
        demand.
        """
        for segment in self.segments:
            for file in segment.open_files():
                if file.dirty or file.pins > 0:
                    return False
        for segment in self.segments:
            segment.release()
        self._sealed = []
        if self.unpublished and not self.failed:
            self.publish()
        self._unmap()
        return True

    def close_files(self) -> None:
        """Closes everything, synced or not. The log is not used afterwards."""
        for segment in self.segments:
            segment.release()
        self._dirty.clear()
        self._settled_dirty.clear()
        self._closed_dirty = False
        self._unmap()

    def abandon(self) -> None:
        """The directory is about to be removed: nothing more is written or synced."""
        self.close_files()
        self.segments = []
        self.recovery_rest = None
        self._sealed = []
        self._last = None
        self._directories = []
        self._paths = []
        self._checkpoints = []
        self.settled_files.pending = []
        self.removals.wanted = False
        self.failed = True
        self.durable = False

    def finish(self) -> None:
        """Before a clean stop: totals of the active segment, and its indexes, so that the next start need not scan
        it.
        """
        if not self._begun or self.failed or not self.segments or not self.durable:
            return
        active = self.segments[-1]
        try:
            if not active.sealed:
                self.note_totals(active)
                self.settled_files.flush()
                active.flush_index()
                active.write_time_index()
        except OSError as error:
            self._trouble(error)

    def mark_clean(self, delivered: int) -> None:
        """Leaves the clean-shutdown mark. Everything is written and synced. delivered: the highest offset that was, and
        no more than that. Raises: OSError.
        """
        if not self.durable or not self._begun or self.failed or not self.segments:
            return
        if self.unpublished:
            self.publish()
        active = self.segments[-1]
        path = f"{self.directory}/{checkpoint.CLEAN_SHUTDOWN}"
        mark = checkpoint.encode_clean(self.end, active.base, active.size, delivered)
        self.filesystem.replace_file(path, mark, sync=True)


def _base_of(segment: Segment) -> int:
    return segment.base
