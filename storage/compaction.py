"""Log compaction: the log keeps the last record of each key. The same code removes the settled records of work queues.

A log whose policy has a `CleanerPolicy` is cleaned in the background, one log at a time, the dirtiest first.
Records below its *first dirty offset* were cleaned before; records from there to the active segment are *dirty*.
When enough bytes are dirty, a cleaning reads the dirty records into a map: a 16-byte digest per key, and the key's
last offset. The map is limited in bytes; the rest waits for the next cleaning. Then the cleaner rewrites every
sealed segment without the superseded records and joins small neighbours. Records keep their offsets, and gaps count
as settled. A record without a key remains.

Segments with records of open transactions of producers are not cleaned.

**Sparse segments.** The log of a work queue removes a segment when all its messages are settled, so a few waiting
messages would keep whole files. `plan_reclaim` looks for segments whose bytes are mostly settled. A cleaning without
a policy rewrites them with the live messages alone; the log keeps no checkpoint of it.

**Tombstones.** A record with a null value removes earlier records of its key. It is removed itself after
`tombstone_retention_ms` in the clean part, so that readers that started before can see it.
`cleaner-offset-checkpoint` in the log's directory has a line `first dirty offset, milliseconds` per cleaning and a
CRC-32C in the last line. Without this file everything is dirty.

**Replacing segments:**

cleaner thread      write and sync `.log.cleaned`, `.settled.cleaned` and both indexes; rename `.settled.cleaned` to
                    `.settled.swap`, sync the directory, rename `.log.cleaned` to `.log.swap`, sync the directory. From
                    here on the new segment is valid
loop thread         (`publish_cleaned`) rename the old `.log` files to `.deleted`; readers use the new segment, which is
                    still named `.log.swap` and is open
fsync thread        sync the directory, delete the other old files, sync the directory, rename the new files

**After a crash** (`finish_swaps`, at recovery), `.cleaned` files are deleted. A `.log.swap` is complete. The
directory is synced first, because a kill may have come before its sync. Then the old segments in its range are
removed, except their entries about messages, and the file gets its final name.

A `.log.swap` is accepted only if `.settled.swap` or `.settled` names its size and end, and either every batch is
good or the deletion of the old logs has begun. If that entry is damaged, every batch must be good, and no log may
be in its range. Any other file is renamed `.foreign`, and nothing is removed for it. A `.settled.swap` without a
`.log.swap` is merged into `.settled`: it settles records superseded by later ones, which are synced.

During a cleaning, no segment of the log is removed and no `.settled` file rewritten, so these names are not used
otherwise. Except for both plans and `publish_cleaned`, this module runs in the cleaner thread, on sealed files and
copies. It yields to the loop after each batch, and within large ones.
"""

from __future__ import annotations

import hashlib
import logging
import struct
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from google_crc32c import extend, value

from amqpd.storage.acks import ack_set
from amqpd.storage.acks.ack_set import AckFileReader, recorded_end
from amqpd.storage.filesystem import APPEND, READ, FileSystem, OpenFile
from amqpd.storage.log.batch import (
    COMPRESSION,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    TRANSIENT,
    BatchHeader,
    compress,
    crc_fits,
    decompressed,
)
from amqpd.storage.log.record import BadRecord, Record, read_offset_delta, read_record, read_varint, record_stop
from amqpd.storage.log.segment import REWRITE_FROM, Segment, segment_name
from amqpd.storage.retention_policy import CleanerPolicy

if TYPE_CHECKING:
    from amqpd.storage.log.log import Log


logger = logging.getLogger(__name__)

CLEANER_OFFSET: Final = "cleaner-offset-checkpoint"
_COVERED: Final = struct.Struct(">hiqqqhii")
_BEFORE_CRC: Final = struct.Struct(">qiibI")
_SLOT_SIZE: Final = 24
_CHUNK_SIZE: Final = 1 << 20
_YIELD_RECORDS: Final = 64
_STEADY: Final = 0.9  # share of the live messages that must be left since the last look
_MERGED_MIN: Final = 8  # neighbouring small segments that become one
_RECLAIMED_MAX: Final = 32  # segments of a cleaning, because none of the log is removed meanwhile


class Cancelled(Exception):
    """The log is being deleted, or the broker stops."""


class OffsetMap:
    """Digest of a key -> its last offset, in three flat arrays without an object per key."""

    def __init__(self, size_bytes: int) -> None:
        slots = max(4, size_bytes // _SLOT_SIZE)
        self.capacity = slots * 3 // 4
        self.count = 0
        self._slots = slots
        self._high = array("Q", bytes(8 * slots))
        self._low = array("Q", bytes(8 * slots))
        self._offsets = array("q", b"\xff" * (8 * slots))

    def _find(self, key: bytes) -> tuple[int, int, int]:
        digest = hashlib.blake2b(key, digest_size=16).digest()
        high, low = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big")
        slot = high % self._slots
        while self._offsets[slot] >= 0 and (self._high[slot] != high or self._low[slot] != low):
            slot = slot + 1 if slot + 1 < self._slots else 0
        return slot, high, low

    def put(self, key: bytes, offset: int) -> bool:
        """Store the offset, which is above all earlier ones. Return False if the map is full and lacks the key."""
        slot, high, low = self._find(key)
        if self._offsets[slot] < 0:
            if self.count >= self.capacity:
                return False
            self.count += 1
            self._high[slot], self._low[slot] = high, low
        self._offsets[slot] = offset
        return True

    def get(self, key: bytes) -> int:
        """Return the last offset of the key, -1 if the map lacks it."""
        return int(self._offsets[self._find(key)[0]])


def encode_clean_offsets(history: list[tuple[int, int]]) -> bytes:
    """Encode `cleaner-offset-checkpoint`. `history`: (first dirty offset, time) of each cleaning, oldest first."""
    text = "".join(f"{offset} {time_ms}\n" for offset, time_ms in history).encode()
    return text + f"{value(text)}\n".encode()


def decode_clean_offsets(data: bytes) -> list[tuple[int, int]]:
    """Decode `cleaner-offset-checkpoint`; empty if it is damaged."""
    try:
        text, _, crc = data.rstrip(b"\n").rpartition(b"\n")
        if value(text + b"\n") != int(crc):
            return []
        lines = [line.split() for line in text.decode("ascii").splitlines()]
        return [(int(offset), int(time_ms)) for offset, time_ms in lines]
    except ValueError:
        return []


def read_clean_offsets(filesystem: FileSystem, directory: str) -> list[tuple[int, int]]:
    """Read `cleaner-offset-checkpoint`; empty if it is missing or damaged."""
    try:
        return decode_clean_offsets(filesystem.read_file(f"{directory}/{CLEANER_OFFSET}"))
    except OSError:
        return []


class CleanerView:
    """A sealed segment at the beginning of the cleaning."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.base = segment.base
        self.end = segment.end
        self.size = segment.size
        self.path = segment.prefix + ".log"
        self.settled = segment.settled.copy()
        self.settled_body_bytes = segment.settled_body_bytes
        self.settled_transient_bytes = segment.settled_transient_bytes


@dataclass
class Cleaning:
    """One cleaning of one log.

    Attributes:
        policy: None if it removes settled records only.
        runs: the segments to clean. Those of a run have no other live segments between them.
        history: the lines of `cleaner-offset-checkpoint`.
        dirty_ratio: share of the bytes that are dirty, or settled.
        delivered_mark: of the queue at the beginning. The files that have it may be deleted.
        done: in order, (the old segments of a group, the segment that replaces them or None if nothing remains).
    """

    log: Log
    policy: CleanerPolicy | None
    runs: list[list[CleanerView]]
    history: list[tuple[int, int]]
    first_dirty: int
    dirty_ratio: float
    now_ms: int
    boot: tuple[int, int]
    delivered_mark: int = -1
    clean_end: int = 0  # everything below is clean at the end of this cleaning
    map: OffsetMap = field(default_factory=lambda: OffsetMap(0))
    cancelled: bool = False
    dropped_count: int = 0
    done: list[tuple[list[CleanerView], Segment | None]] = field(default_factory=list)

    def freed_bytes(self) -> int:
        """Return by how much the files have become smaller."""
        return sum(sum(view.size for view in group) - (new.size if new is not None else 0) for group, new in self.done)

    def new_history(self) -> list[tuple[int, int]]:
        """Return the next checkpoint. Cleanings older than the tombstone retention share one line."""
        assert self.policy is not None
        history = [each for each in self.history if each[0] < self.clean_end]
        history.append((self.clean_end, self.now_ms))
        old = [each for each in history if each[1] <= self.now_ms - self.policy.tombstone_retention_ms]
        return old[-1:] + history[len(old) :]

    def removes(self, record: Record) -> bool:
        """Return whether the policy removes a live record: it is superseded, or an old tombstone."""
        if self.policy is None or record.offset >= self.clean_end:
            return False
        key = self.policy.key(record)
        if key is None:
            return False
        return self.map.get(key) > record.offset or (record.tombstone and not self._keeps_tombstone(record.offset))

    def _keeps_tombstone(self, offset: int) -> bool:
        assert self.policy is not None
        for end, since_ms in self.history:
            if offset < end:
                return since_ms > self.now_ms - self.policy.tombstone_retention_ms
        return True


def plan_cleaning(log: Log, policy: CleanerPolicy, now_ms: int, boot: tuple[int, int]) -> Cleaning | None:
    """Return the cleaning that the log needs, None for none. Loop thread.

    Cost: a step per segment, and copies of their ack sets.
    """
    stable_end = log.stable_end()
    sealed = [
        segment
        for segment in log.segments[:-1]
        if segment.sealed and not segment.is_removed and segment.live > 0 and segment.end <= stable_end
    ]
    if not sealed or any(segment.removing or segment.swapping or segment.dirty() for segment in sealed):
        return None
    history = read_clean_offsets(log.filesystem, log.directory)
    first_dirty = min(history[-1][0], sealed[-1].end) if history else 0
    total = sum(segment.size for segment in sealed)
    dirty = sum(segment.size for segment in sealed if segment.end > first_dirty)
    if not dirty or dirty < policy.min_dirty_ratio * total:
        return None
    runs = [[CleanerView(each) for each in sealed]]
    return Cleaning(log, policy, runs, history, first_dirty, dirty / total, now_ms, boot)


def note_progress(log: Log) -> None:
    """Note which segments of a work queue's log have lost a tenth of their live messages since the last call.

    They wait for the next round, because they may soon be removed as a whole. Cost: a step per segment.
    """
    for segment in log.segments[:-1]:
        segment.steady = segment.live > _STEADY * segment.seen_live >= 0
        segment.seen_live = segment.live


def plan_reclaim(log: Log, boot: tuple[int, int]) -> Cleaning | None:
    """Return a cleaning of the sparse segments of a work queue's log, None if there are none. Loop thread.

    Settled messages that are kept, for an export, a replay or retention, are left alone.

    Cost: a step per segment, and copies of the ack sets of those to clean.
    """
    if len(log.segments) < 2 or not log.durable or log.is_replaying or log.removals.retention is not None:
        return None
    end = log.stable_end()
    if log.removals.export_hold is not None:
        end = min([end, *log.removals.export_hold.exported.values()])
    runs: list[list[Segment]] = [[]]
    for segment in log.segments[:-1]:
        if segment.removing:
            return None  # its files go at any moment
        if segment.is_removed or segment.live == 0:
            continue
        wanted = segment.steady and (_is_small(log, segment) or _garbage_bytes(log, segment) > 0)
        if wanted and segment.end <= end and not segment.lost and not _is_changing(segment):
            runs[-1].append(segment)
        elif runs[-1]:
            runs.append([])
    chosen = [run for each in runs for run in _worthwhile(log, each)]
    chosen = _first(chosen, _RECLAIMED_MAX)
    if not chosen:
        return None
    size = sum(segment.size for run in chosen for segment in run)
    garbage = sum(_garbage_bytes(log, segment) for run in chosen for segment in run)
    views = [[CleanerView(segment) for segment in run] for run in chosen]
    return Cleaning(log, None, views, [], 0, garbage / size, 0, boot, log.delivered_mark)


def _is_changing(segment: Segment) -> bool:
    """Return whether it is not sealed, acknowledgements are not synced, or the `.settled` file is being replaced."""
    return not segment.sealed or segment.swapping or segment.unwritten_entries is not None or segment.dirty()


def _is_small(log: Log, segment: Segment) -> bool:
    return segment.size <= log.segment_size_bytes // 8


def _garbage_bytes(log: Log, segment: Segment) -> int:
    """Return the bytes of settled messages, by the size of their bodies; 0 if it is not worth a new file."""
    if segment.body_bytes <= 0:
        return 0
    garbage = segment.size * min(segment.settled_body_bytes, segment.body_bytes) // segment.body_bytes
    return garbage if garbage >= max(segment.size // 2, log.segment_size_bytes // 8) else 0


def _worthwhile(log: Log, run: list[Segment]) -> list[list[Segment]]:
    """Return the parts of a run to clean: all of a long run, which merges small segments; else the sparse ones."""
    if len(run) >= _MERGED_MIN:
        return [run]
    return [[segment] for segment in run if _garbage_bytes(log, segment)]


def _first(runs: list[list[Segment]], count: int) -> list[list[Segment]]:
    """Return the runs up to `count` segments; the last one may be cut."""
    found: list[list[Segment]] = []
    for run in runs:
        if count <= 0:
            break
        found.append(run[:count])
        count -= len(run)
    return found


def fill_map(cleaning: Cleaning, filesystem: FileSystem, yield_to_loop: Callable[[], None]) -> None:
    """Read the dirty records into the map and set `clean_end`. Cost: 3 us per record, interpreted. Raises: OSError."""
    policy = cleaning.policy
    cleaning.clean_end = cleaning.runs[-1][-1].end
    if policy is None:
        return
    dirty = [view for view in cleaning.runs[0] if view.end > cleaning.first_dirty]
    most = sum(view.end - view.base for view in dirty) * _SLOT_SIZE * 4 // 3 + 8 * _SLOT_SIZE
    cleaning.map = OffsetMap(min(most, policy.map_size_bytes))
    for view in dirty:
        for piece in batches(filesystem, view):
            if cleaning.cancelled:
                raise Cancelled
            yield_to_loop()
            for number, (record, _, _) in enumerate(records(piece)):
                if number % _YIELD_RECORDS == _YIELD_RECORDS - 1:
                    yield_to_loop()
                if record.offset < cleaning.first_dirty or view.settled.contains(record.offset):
                    continue
                key = policy.key(record)
                if key is not None and not cleaning.map.put(key, record.offset):
                    cleaning.clean_end = record.offset
                    return


@dataclass
class CleanedRange:
    """A good batch, decompressed.

    Attributes:
        header: the header of the batch, which begins at `at` in `data`.
        codec: compression in the file.
    """

    data: bytes
    at: int
    header: BatchHeader
    codec: int


def batches(filesystem: FileSystem, view: CleanerView) -> Iterator[CleanedRange]:
    """Yield the good batches of a sealed segment. Known damage is skipped, as in log/reader.py.

    Raises: OSError; BadRecord for damage that is not recorded as lost yet: the cleaner must not remove it.
    """
    fd = filesystem.open(view.path, READ)
    try:
        position, chunk, start = 0, b"", 0
        expected = view.base
        while position < view.size:
            at = position - start
            if at + HEADER_SIZE > len(chunk) or at + BatchHeader(chunk, at).size > len(chunk):
                wanted = _CHUNK_SIZE
                if at + HEADER_SIZE <= len(chunk):
                    wanted = max(wanted, min(int(BatchHeader(chunk, at).size), view.size - position))
                chunk, start, at = filesystem.pread(fd, wanted, position), position, 0
                if len(chunk) >= HEADER_SIZE and BatchHeader(chunk, 0).size > len(chunk):
                    wanted = min(max(int(BatchHeader(chunk, 0).size), 0), view.size - position)
                    chunk = filesystem.pread(fd, wanted, position)
            header = BatchHeader(chunk, at) if at + HEADER_SIZE <= len(chunk) else None
            good = header is not None and header.is_plausible() and crc_fits(chunk, at, header)
            if header is None or not good or not expected <= header.base_offset <= header.last_offset < view.end:
                raise BadRecord(f"{view.path} is damaged at {position}")
            yield CleanedRange(*decompressed(chunk, at, header), int(header.attributes & COMPRESSION))
            expected = int(header.last_offset) + 1
            position += int(header.size)
    finally:
        filesystem.close(fd)


def records(piece: CleanedRange) -> Iterator[tuple[Record, int, int]]:
    """Yield (record, start, end of its bytes) of a batch; nothing for a transaction marker. Raises: BadRecord."""
    header = piece.header
    if header.is_control():
        return
    position, end = piece.at + int(HEADER_SIZE), piece.at + int(header.size)
    for _ in range(header.count):
        start, stop = record_stop(piece.data, position, end)
        delta, key = read_offset_delta(piece.data, start)
        persistent = not header.is_transient()
        offset = header.base_offset + delta
        time_ms = header.max_timestamp_ms
        if not header.attributes & LOG_APPEND_TIME:
            time_ms = header.base_timestamp_ms + read_varint(piece.data, start + 1)[0]
        yield read_record(piece.data, key, stop, offset, time_ms, persistent), position, int(stop)
        position = int(stop)


@dataclass
class KeptRecord:
    """The remaining records of a batch and their bytes. `codec` is the old and new compression."""

    header: BatchHeader
    records: list[Record]
    parts: list[bytes]
    codec: int

    def encoded(self, last_offset: int) -> bytes:
        """Encode the batch. `last_offset` is the one of its last record, or of the gap after it.

        A transaction in a sealed segment is complete, so the batch needs no transaction flag and no marker.
        """
        header = self.header
        body = b"".join(self.parts)
        attributes = int(header.attributes) & (LOG_APPEND_TIME | TRANSIENT)
        if self.codec and len(packed := compress(self.codec, body)) < len(body):
            body = packed
            attributes |= self.codec
        delta, first_ms, last_ms = last_offset - header.base_offset, header.base_timestamp_ms, header.max_timestamp_ms
        covered = _COVERED.pack(attributes, delta, first_ms, last_ms, -1, -1, -1, len(self.records))
        length = HEADER_SIZE - LENGTH_OVERHEAD + len(body)
        crc = extend(value(covered), body)
        return _BEFORE_CRC.pack(header.base_offset, length, header.epoch, 2, crc) + covered + body


def without_removed(
    piece: CleanedRange, cleaning: Cleaning, view: CleanerView, yield_to_loop: Callable[[], None]
) -> KeptRecord:
    """Return the batch without removed records."""
    kept = KeptRecord(piece.header, [], [], piece.codec)
    for number, (record, start, stop) in enumerate(records(piece)):
        if number % _YIELD_RECORDS == _YIELD_RECORDS - 1:
            yield_to_loop()
        if view.settled.contains(record.offset):
            continue
        if cleaning.removes(record):
            cleaning.dropped_count += 1
            continue
        kept.records.append(record)
        kept.parts.append(piece.data[start:stop])
    return kept


_OF_MESSAGES = (ack_set.SETTLED, ack_set.BITS, ack_set.RETURNED, ack_set.DELIVERED, ack_set.LOST, ack_set.TRANSIENT)
_SUFFIXES = (".log", ".index", ".timeindex", ".settled", ".settled.swap")


def clean(cleaning: Cleaning, yield_to_loop: Callable[[], None]) -> None:
    """Do all work of the cleaner thread. Cost: two reads and one write of the log.

    Raises: OSError, BadRecord, Cancelled; earlier entries of `cleaning.done` remain valid.
    """
    filesystem = cleaning.log.filesystem
    fill_map(cleaning, filesystem, yield_to_loop)
    for group in _groups(cleaning):
        try:
            segment = _write(cleaning, group, yield_to_loop)
        except BaseException:
            _unlink_cleaned(filesystem, group[0])
            raise
        if segment is not None and segment.size == 0:
            _unlink_cleaned(filesystem, group[0])
            cleaning.done.append((group, None))
        elif segment is not None:
            _commit(filesystem, cleaning.log.directory, segment)
            cleaning.done.append((group, segment))


def _groups(cleaning: Cleaning) -> list[list[CleanerView]]:
    """Return groups of neighbours that fit into one segment, below `clean_end`."""
    groups: list[list[CleanerView]] = []
    for run in cleaning.runs:
        size = -1
        for view in run:
            if view.base >= cleaning.clean_end:
                break
            fits = 0 <= size <= cleaning.log.segment_size_bytes - view.size
            if fits and view.end - groups[-1][0].base < 0x7FFF_FFFF:
                groups[-1].append(view)
                size += view.size
            else:
                groups.append([view])
                size = view.size
    return groups


def _write(cleaning: Cleaning, group: list[CleanerView], yield_to_loop: Callable[[], None]) -> Segment | None:
    """Return the group's new segment with synced files, or an empty one; None if nothing would change."""
    log = cleaning.log
    filesystem = log.filesystem
    segment = Segment(filesystem, log.directory, group[0].base)
    segment.reset_index()
    dropped, whole = cleaning.dropped_count, True
    fd = filesystem.open(segment.prefix + ".log.cleaned", APPEND)
    try:
        last: KeptRecord | None = None
        for view in group:
            for piece in batches(filesystem, view):
                if cleaning.cancelled:
                    raise Cancelled
                yield_to_loop()
                if view.settled.next_free(piece.header.base_offset) > piece.header.last_offset:
                    whole = False
                    continue
                kept = without_removed(piece, cleaning, view, yield_to_loop)
                whole = whole and not piece.header.is_control() and len(kept.records) == piece.header.count
                if not kept.records:
                    continue
                if last is not None:
                    _append(filesystem, fd, segment, last, last.records[-1].offset)
                last = kept
        # The last batch covers the gap at the end, so that the log alone shows where it ends.
        if last is not None:
            _append(filesystem, fd, segment, last, group[-1].end - 1)
        if len(group) == 1 and whole:
            _unlink_cleaned(filesystem, group[0])
            cleaning.dropped_count = dropped
            return None
        if segment.size == 0:
            return segment
        filesystem.fdatasync(fd)
    finally:
        filesystem.close(fd)
    segment.sealed = True
    segment.lost = [lost for view in group for lost in view.segment.lost]
    _write_small(filesystem, segment, segment.encode_ack_file(cleaning.boot, cleaning.delivered_mark, {}))
    return segment


def _append(filesystem: FileSystem, fd: int, segment: Segment, kept: KeptRecord, last_offset: int) -> None:
    data = kept.encoded(last_offset)
    filesystem.write_whole(fd, data)
    expected = segment.end
    bodies = 0
    for record in kept.records:
        segment.settled.add(expected, record.offset - 1)
        expected = int(record.offset) + 1
        bodies += len(record.body)
    segment.settled.add(expected, last_offset)
    if kept.header.is_transient():
        segment.add_transient(kept.records[0].offset, kept.records[-1].offset, bodies)
    segment.add_batch(last_offset, len(data), int(kept.header.max_timestamp_ms))
    segment.body_bytes += bodies


def _write_small(filesystem: FileSystem, segment: Segment, data: bytes) -> None:
    """Write `.settled`, which has the bytes `data`, and the indexes. Raises: OSError."""
    segment.times().add(segment.max_timestamp_ms, segment.end - 1 - segment.base)
    for suffix, content in (
        (".settled", data),
        (".index", bytes(segment.index().data)),
        (".timeindex", bytes(segment.times().data)),
    ):
        fd = filesystem.open(segment.prefix + suffix + ".cleaned", APPEND)
        try:
            filesystem.write_whole(fd, content)
            if suffix == ".settled":
                filesystem.fdatasync(fd)
        finally:
            filesystem.close(fd)
    segment.settled_begun = True
    segment.settled_size = len(data)
    segment.rewrite_from = max(2 * len(data), REWRITE_FROM)


def _unlink_cleaned(filesystem: FileSystem, view: CleanerView) -> None:
    for suffix in _SUFFIXES[:4]:
        filesystem.unlink(view.path.removesuffix(".log") + suffix + ".cleaned")


def _commit(filesystem: FileSystem, directory: str, segment: Segment) -> None:
    prefix = segment.prefix
    filesystem.rename(prefix + ".settled.cleaned", prefix + ".settled.swap")
    filesystem.fsync_dir(directory)
    filesystem.rename(prefix + ".log.cleaned", prefix + ".log.swap")
    filesystem.fsync_dir(directory)


def _replace(log: Log, old: list[Segment], new: Segment) -> list[OpenFile]:
    """Replace the neighbours `old` by `new` in the log. Return the files of `new`, open and pinned.

    Raises: OSError, before any change.
    """
    held = [new.open_log(), new.open_settled()]
    for file in held:
        file.pins += 1
    unsynced = log.unsynced
    for segment in old:
        for file in segment.open_files():
            unsynced.remove_file(file)
        segment.release()
        segment.is_removed = True
    index = log.segments.index(old[0])
    log.segments[index : index + len(old)] = [new]
    log.sealed = [segment for segment in log.sealed if segment not in old]
    # Recovery wanted these synced; the new file is.
    settled_paths = [f"{segment.prefix}.settled" for segment in old]
    unsynced.paths = [path for path in unsynced.paths if path not in settled_paths]
    log.found = None
    if new.live == 0:
        log.removals.wanted = True
    return held


def publish_cleaned(
    log: Log, group: list[CleanerView], segment: Segment, now_ms: int, delivered_mark: int, returned: dict[int, int]
) -> tuple[Callable[[], None], list[OpenFile]]:
    """Make `segment` replace those of the group. Loop thread.

    Offsets settled or lost since the beginning of the cleaning are settled in the new segment too.

    Args:
        delivered_mark, returned: of the queue; the files that contained them are deleted.

    Returns: work for the fsync thread, and files for `on_renamed` after it.
    Raises: OSError.
    """
    filesystem = log.filesystem
    segment.log_suffix = ".log.swap"
    segment.swapping = True
    first = log.segments.index(group[0].segment)
    stop = log.segments.index(group[-1].segment) + 1
    old = log.segments[first:stop]  # includes those removed meanwhile
    log.flush()
    held = _replace(log, old, segment)
    for each in old:
        for suffix in _SUFFIXES[:3]:
            if filesystem.exists(each.prefix + suffix):
                filesystem.rename(each.prefix + suffix, each.prefix + suffix + ".deleted")
    log.removals.schedule([each.prefix + suffix for each in old for suffix in _SUFFIXES[:3]], now_ms)
    changed = delivered_mark >= 0
    if delivered_mark >= 0:
        log.mark_delivered(delivered_mark, 0)
    for offset, told in _returned_in(segment, returned):
        changed = True
        log.mark_returned(offset, told)
    for view in group:
        changed = _settle_meanwhile(log, view, segment) or changed
        for lost in view.segment.lost:
            if lost not in segment.lost:
                segment.lost.append(lost)
    log.flush()
    fd = held[1].fd if changed else -1
    return lambda: _rename_files(filesystem, log.directory, segment, old, fd), held


def _returned_in(segment: Segment, returned: dict[int, int]) -> list[tuple[int, int]]:
    """Return the items of `returned` in the segment. Cost: a step per item, or per live message if these are fewer."""
    if len(returned) <= segment.live:
        return [(offset, told) for offset, told in returned.items() if segment.base <= offset < segment.end]
    found: list[tuple[int, int]] = []
    offset = segment.settled.next_free(segment.base)
    while offset < segment.end:
        if offset in returned:
            found.append((offset, returned[offset]))
        offset = segment.settled.next_free(offset + 1)
    return found


def _settle_meanwhile(log: Log, view: CleanerView, new: Segment) -> bool:
    """Settle in `new` what was settled in the old segment since the beginning of the cleaning. Return whether it was
    anything.

    Cost: a step per range of these offsets, and some ns per byte of the ack set.
    """
    old = view.segment
    if old.settled.count == view.settled.count:
        return False
    since = old.settled.copy()
    since.remove_all(view.settled)
    for low, high in since.ranges():
        log.ack(low, high, 0)
    size = old.settled_body_bytes - view.settled_body_bytes
    transient = old.settled_transient_bytes - view.settled_transient_bytes
    if size > 0 and new.live > 0:  # without live messages, `Log.ack` has counted all of them
        new.settled_body_bytes += size
        new.take_transient_bytes(transient)
        log.add_ack_entry(new, ack_set.BYTES, size, transient, 0)
    return True


def _rename_files(
    filesystem: FileSystem, directory: str, segment: Segment, old: list[Segment], settled_fd: int
) -> None:
    """Delete the other old files and rename the new ones. Fsync thread. Raises: OSError.

    Args:
        settled_fd: the descriptor of the new `.settled` file if it was written since, else -1.
    """
    if settled_fd >= 0:
        filesystem.fdatasync(settled_fd)
    filesystem.fsync_dir(directory)
    for each in old[1:]:
        for suffix in _SUFFIXES[3:]:
            filesystem.unlink(each.prefix + suffix)
    filesystem.fsync_dir(directory)
    for suffix in (".index", ".timeindex"):
        filesystem.rename(f"{segment.prefix}{suffix}.cleaned", segment.prefix + suffix)
    filesystem.rename(segment.prefix + ".settled.swap", segment.prefix + ".settled")
    filesystem.rename(segment.prefix + ".log.swap", segment.prefix + ".log")


def on_renamed(segment: Segment, held: list[OpenFile]) -> None:
    """Finish on the loop after the fsync thread has renamed the files."""
    segment.log_suffix = ".log"
    segment.swapping = False
    segment.drop_indexes()  # their files have their names now
    for file in held:
        file.unpin()


def finish_swaps(filesystem: FileSystem, directory: str, names: list[str]) -> bool:
    """Complete cleanings that a crash interrupted, or delete their files. For recovery.

    Returns: True if files changed, so that `names` is outdated.
    Raises: OSError.
    """
    swaps = sorted(name for name in names if name.endswith(".log.swap") and name[:20].isdigit() and len(name) == 29)
    # The swap files may not be synced yet, and the old segments must not be removed before.
    if swaps:
        filesystem.fsync_dir(directory)
    for name in swaps:
        base = int(name[:20])
        end = _accepted_end(filesystem, directory, name, names)
        if end < 0:
            logger.error("%s/%s is not from a compaction: it is renamed .foreign", directory, name)
            filesystem.rename(f"{directory}/{name}", f"{directory}/{name}.foreign")
            continue
        logger.info("%s/%s: completed an interrupted compaction", directory, name)
        old = [other for other in names if other[20:] in _SUFFIXES and base < _base(other) < end]
        if f"{name[:20]}.settled.swap" in names:  # else `.settled` is the new file
            old.append(f"{name[:20]}.settled")
        _keep_entries(filesystem, directory, base, [other for other in old if other in names])
        for other in old:
            filesystem.unlink(f"{directory}/{other}")
        for suffix in (".log", ".index", ".timeindex"):
            filesystem.unlink(f"{directory}/{name[:20]}{suffix}")
        filesystem.fsync_dir(directory)
        filesystem.rename(f"{directory}/{name}", f"{directory}/{segment_name(base)}.log")
        filesystem.fsync_dir(directory)
    return bool(swaps)


def _base(name: str) -> int:
    return int(name[:20]) if name[:20].isdigit() else -1


def _keep_entries(filesystem: FileSystem, directory: str, base: int, names: list[str]) -> None:
    """Copy the entries about messages from the old `.settled` files into the new one, and sync it.

    Messages may have been settled or delivered since the beginning of the cleaning.
    """
    kept_entries = []
    for name in names:
        if name[20:] in (".settled", ".settled.swap"):
            entries = AckFileReader(filesystem.read_file(f"{directory}/{name}")).entries
            kept_entries += [ack_set.encode_entry(*entry) for entry in entries if entry[0] in _OF_MESSAGES]
    if not kept_entries:
        return
    path = f"{directory}/{segment_name(base)}.settled"
    if filesystem.exists(path + ".swap"):
        path += ".swap"
    fd = filesystem.open(path, APPEND)
    try:
        rest = filesystem.file_size(fd) % ack_set.ENTRY_SIZE
        if rest:  # a torn entry, which would shift all later ones
            filesystem.truncate(fd, filesystem.file_size(fd) - rest)
        filesystem.write_whole(fd, b"".join(kept_entries))
        filesystem.fdatasync(fd)
    finally:
        filesystem.close(fd)


def _accepted_end(filesystem: FileSystem, directory: str, name: str, names: list[str]) -> int:
    """Return the end of the new segment, -1 if the file is not acceptable (see the module). Cost: reads the file."""
    base = int(name[:20])
    end, whole = _good_end(filesystem, directory, name)
    told = _recorded_end(filesystem, f"{directory}/{name[:20]}", filesystem.size(f"{directory}/{name}"))
    stop = max(end, told)
    if end <= base and not told:
        return -1
    suffixes_in_range = [other[20:] for other in names if other[:20].isdigit() and base <= int(other[:20]) < stop]
    if not told:
        return end if whole and ".log" not in suffixes_in_range else -1
    deletion_begun = ".log.deleted" in suffixes_in_range or f"{name[:20]}.log" not in names
    return told if whole or deletion_begun else -1


def _good_end(filesystem: FileSystem, directory: str, name: str) -> tuple[int, bool]:
    """Return the offset after the last good batch, and whether the whole file consists of good batches."""
    base = int(name[:20])
    path = f"{directory}/{name}"
    segment = Segment(filesystem, directory, base)
    segment.end, segment.size = base + 0x7FFF_FFFF, filesystem.size(path)
    view = CleanerView(segment)
    view.path = path
    end = base
    try:
        for piece in batches(filesystem, view):
            end = int(piece.header.last_offset) + 1
    except BadRecord:
        return end, False
    return end, True


def _recorded_end(filesystem: FileSystem, prefix: str, size: int) -> int:
    """Return the end in `.settled.swap` or `.settled` for a log of this size, 0 for none."""
    for suffix in (".settled.swap", ".settled"):
        if filesystem.exists(prefix + suffix):
            end = recorded_end(AckFileReader(filesystem.read_file(prefix + suffix)).entries, size)
            if end:
                return end
    return 0
