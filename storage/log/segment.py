"""One segment of a log: files, indexes, and what is known of it in memory.

`base <= offset < end`; `end - base - settled.count` messages are live. The last segment of a log is *active*, all
others are *sealed*: their `.log` is never appended to again. A sealed segment whose messages are all settled is
*gone* once its `.log` is removed. The object and the `.settled` file stay until all earlier segments are gone too.

Files, named by the base offset in 20 digits:

    .log            record batches (batch.py)
    .index          Kafka's offset index. Entries of 8 bytes: relative offset u32 (last offset of a batch minus the
                    base), position u32 (start of that batch). One entry per 4096 bytes of log; none for the first batch
    .timeindex      Kafka's time index. Entries of 12 bytes: timestamp i64 (latest in the segment so far), relative
                    offset u32 (of the last record of the batch with it). Added with an index entry if the time is
                    later than in the previous one
    .settled        acknowledgements (ack_set.py); not a file of Kafka

Both indexes are sparse and never synced, because they can be rebuilt from the log. Entries of the active segment are
in memory; they reach `.index` at the end of a turn and `.timeindex` when the segment is sealed. Indexes of sealed
segments are read when a look-up needs them, and the last ones stay in memory (`LoadedIndexes`).

A segment object is small and there is one per 64 MiB of log, so memory does not grow with the backlog. Descriptors
and indexes are opened on demand and dropped by `release`.
"""

from __future__ import annotations

import logging
import struct
from bisect import bisect_right

from librt.strings import BytesWriter

from amqpd.storage.acks import ack_set
from amqpd.storage.acks.ack_set import AckSet, encode_entry
from amqpd.storage.filesystem import APPEND, READ, FileSystem, OpenFile
from amqpd.storage.log.batch import HEADER_SIZE, BatchHeader, ClosedBatch

INTERVAL_BYTES = 4096
_OFFSET_ENTRY = struct.Struct(">II")
_TIME_ENTRY = struct.Struct(">qI")
OFFSET_ENTRY_SIZE = _OFFSET_ENTRY.size
TIME_ENTRY_SIZE = _TIME_ENTRY.size


class OffsetIndex:
    """Relative offset -> position.

    Attributes:
        flushed: how many of its bytes are in the file.
    """

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data[: len(data) // OFFSET_ENTRY_SIZE * OFFSET_ENTRY_SIZE])
        self.flushed = len(self.data)

    def __len__(self) -> int:
        return len(self.data) // OFFSET_ENTRY_SIZE

    def add(self, relative_offset: int, position: int) -> None:
        """Add a batch that ends with `relative_offset`. Both numbers must be above the previous ones."""
        self.data += _OFFSET_ENTRY.pack(relative_offset, position)

    def entry(self, number: int) -> tuple[int, int]:
        """Return (relative offset, position) of an entry; 0 <= number < len."""
        relative_offset, position = _OFFSET_ENTRY.unpack_from(self.data, number * OFFSET_ENTRY_SIZE)
        return relative_offset, position

    def floor(self, relative_offset: int) -> tuple[int, int]:
        """Return the last entry that is not above `relative_offset`, (-1, 0) if there is none.

        The batch with the offset is at this position or later. Cost: a bisection.
        """
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[0] <= relative_offset:
                low = middle + 1
            else:
                high = middle
        return self.entry(low - 1) if low else (-1, 0)

    def next_position(self, position: int) -> int:
        """Return the first indexed position after `position`, -1 if there is none."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[1] <= position:
                low = middle + 1
            else:
                high = middle
        return self.entry(low)[1] if low < len(self) else -1

    def truncate(self, size: int) -> None:
        """Remove the entries at position `size` and later."""
        number = len(self)
        while number and self.entry(number - 1)[1] >= size:
            number -= 1
        del self.data[number * OFFSET_ENTRY_SIZE :]
        self.flushed = min(self.flushed, len(self.data))

    def plausible(self, log_size: int) -> bool:
        """Return whether offsets and positions increase and stay inside the log. Cost: a step per entry."""
        before = (-1, -1)
        for entry in _OFFSET_ENTRY.iter_unpack(bytes(self.data)):
            if entry[0] <= before[0] or entry[1] <= before[1]:
                return False
            before = (entry[0], entry[1])
        return before[1] < log_size


class TimeIndex:
    """Timestamp -> relative offset."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data[: len(data) // TIME_ENTRY_SIZE * TIME_ENTRY_SIZE])

    def __len__(self) -> int:
        return len(self.data) // TIME_ENTRY_SIZE

    def add(self, timestamp_ms: int, relative_offset: int) -> None:
        """Add an entry if `timestamp_ms` is later than in the last one, so that times and offsets increase."""
        if not self.data or timestamp_ms > self.entry(len(self) - 1)[0]:
            self.data += _TIME_ENTRY.pack(timestamp_ms, relative_offset)

    def entry(self, number: int) -> tuple[int, int]:
        """Return (timestamp in ms, relative offset) of an entry; 0 <= number < len."""
        timestamp_ms, relative_offset = _TIME_ENTRY.unpack_from(self.data, number * TIME_ENTRY_SIZE)
        return timestamp_ms, relative_offset

    def offset_before(self, timestamp_ms: int) -> int:
        """Return the relative offset from which to search for the first record of `timestamp_ms` or later. Cost: a
        bisection.
        """
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[0] < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return self.entry(low - 1)[1] if low else 0

    def truncate(self, relative_offset: int) -> None:
        """Remove the entries at `relative_offset` and later."""
        number = len(self)
        while number and self.entry(number - 1)[1] >= relative_offset:
            number -= 1
        del self.data[number * TIME_ENTRY_SIZE :]


logger = logging.getLogger(__name__)

REWRITE_FROM = 256 * 1024  # bytes
_NEVER_MS = 1 << 62


def segment_name(base: int) -> str:
    """Return the 20 digits in the file names of a segment."""
    return f"{base:020d}"


class Segment:
    """State of one segment in memory; see the module docstring.

    Attributes:
        size: bytes of whole batches in its `.log`.
        body_bytes: size of all bodies in it.
        settled_body_bytes: size of the settled bodies.
        settled_transient_bytes: the part of it that belongs to transient messages, without those in `acked_transient`.
            A scan would count them again.
        settled_size: bytes of the `.settled` file; 0: there is none; -1: it must be rewritten.
        unwritten_entries: entries for the `.settled` file, written at the end of the turn.
        settled_begun: this process has written to the `.settled` file.
        rewrite_from: size at which the `.settled` file is rewritten.
        log_suffix: `.log`, or the temporary name that compaction gave it.
        swapping: the file in use is still named `.settled.swap`.
        lost: offset ranges that are unreadable.
        gaps: offset ranges without messages, found by a scan. They count as settled.
        transient: (first, last, size of live bodies) of transient messages appended by this process.
        acked_transient: the same of earlier processes; the restart has settled them.
        seen_live: `live` at the last round of compaction; -1 before.
        steady: few messages were settled between the last two rounds.
    """

    def __init__(self, filesystem: FileSystem, directory: str, base: int) -> None:
        self._filesystem = filesystem
        self.prefix = f"{directory}/{segment_name(base)}"
        self.base = base
        self.end = base
        self.size = 0
        self.body_bytes = 0
        self.settled = AckSet(base)
        self.settled_body_bytes = 0
        self.settled_transient_bytes = 0
        self.settled_size = 0
        self.unwritten_entries: BytesWriter | None = None
        self.settled_begun = False
        self.rewrite_from = REWRITE_FROM
        self.log_suffix = ".log"
        self.swapping = False
        self.lost: list[tuple[int, int]] = []
        self.gaps: list[tuple[int, int]] = []
        self.max_timestamp_ms = -1
        self.first_timestamp_ms = -1
        self.transient: list[tuple[int, int, int]] = []
        self.acked_transient: list[tuple[int, int, int]] = []
        self.seen_live = -1
        self.steady = False
        self.sealed = False
        self.removing = False
        self.is_removed = False
        self.log_file: OpenFile | None = None
        self.settled_file: OpenFile | None = None
        self._index_file: OpenFile | None = None
        self._index: OffsetIndex | None = None
        self._times: TimeIndex | None = None
        self._since_entry = 0

    @property
    def live(self) -> int:
        """Number of messages that are not settled."""
        return self.end - self.base - self.settled.count

    def open_log(self, *, create: bool = False) -> OpenFile:
        """Return the descriptor of the `.log`, opened if necessary. Raises: OSError."""
        file = self.log_file
        if file is None:
            flags = APPEND if create or not self.sealed else READ
            file = self.log_file = OpenFile(self._filesystem, self.prefix + self.log_suffix, flags)
        return file

    def open_settled(self) -> OpenFile:
        """Return the descriptor of the `.settled` file, created if necessary. Raises: OSError."""
        file = self.settled_file
        if file is None:
            name = ".settled.swap" if self.swapping else ".settled"
            file = self.settled_file = OpenFile(self._filesystem, self.prefix + name, APPEND)
        return file

    def encode_ack_file(self, boot: tuple[int, int], delivered_mark: int, returned: dict[int, int]) -> bytes:
        """Return the content of a new `.settled` file with all that is known, each fact once.

        Args:
            boot: the boot id, for a BOOT entry.
            delivered_mark: -1 for none.
            returned: offset -> packed delivery count and due time (ack_set.py).
        """
        parts = [
            encode_entry(ack_set.HEADER, self.base, ack_set.VERSION, 0),
            encode_entry(ack_set.BOOT, boot[0], boot[1], 0),
        ]
        parts += [encode_entry(ack_set.TRANSIENT, *each) for each in self.acked_transient]
        body_bytes = self.settled_body_bytes - sum(each[2] for each in self.acked_transient)
        if self.sealed:
            parts += [encode_entry(ack_set.TRANSIENT, *each) for each in self.transient]
            parts.append(encode_entry(ack_set.TOTALS, self.end, self.size, self.body_bytes))
            parts.append(encode_entry(ack_set.TIMES, self.first_timestamp_ms, self.max_timestamp_ms, 0))
        parts += ack_set.encode_offsets(self.settled)
        body_bytes = max(0, body_bytes)
        parts.append(encode_entry(ack_set.BYTES, body_bytes, min(self.settled_transient_bytes, body_bytes), 0))
        parts += [encode_entry(ack_set.LOST, first, last, 0) for first, last in self.lost]
        if delivered_mark >= 0:
            parts.append(encode_entry(ack_set.DELIVERED, delivered_mark, 0, 0))
        for offset, packed in returned.items():
            if self.base <= offset < self.end:
                count, due_ms = packed & ack_set.COUNT_MAX, packed >> ack_set.DELIVERY_COUNT_BITS
                parts.append(encode_entry(ack_set.RETURNED, offset, count, due_ms))
        return b"".join(parts)

    def reset_index(self) -> None:
        """Start with empty indexes: the segment is new or will be scanned."""
        self._index = OffsetIndex()
        self._times = TimeIndex()
        self._since_entry = 0

    def on_append(self, batch: ClosedBatch) -> None:
        """Record a batch that was appended to the log, and index it."""
        self.add_batch(batch.last_offset, batch.size, batch.timestamp_ms)
        self.body_bytes += batch.body_size_bytes

    def add_batch(self, last_offset: int, size: int, timestamp_ms: int) -> None:
        """Record a batch of `size` bytes at the end. The caller adds its body bytes."""
        index, times = self._index, self._times
        if timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = timestamp_ms
        if self.size == 0:
            self.first_timestamp_ms = timestamp_ms
        if index is not None and self._since_entry > INTERVAL_BYTES:
            index.add(last_offset - self.base, self.size)
            if times is not None:
                times.add(self.max_timestamp_ms, last_offset - self.base)
            self._since_entry = 0
        self._since_entry += size
        self.size += size
        self.end = last_offset + 1

    def index(self) -> OffsetIndex:
        """Return the offset index, read from its file if necessary. An implausible file is rebuilt."""
        index = self._index
        if index is None:
            index = self.stored_index()
            if not index.plausible(self.size) or (self.size > 4 * INTERVAL_BYTES and not len(index)):
                return self.walk_index()
            self._index = index
            self._on_loaded()
        return index

    def _on_loaded(self) -> None:
        if self.sealed:
            size_bytes = sum([len(each.data) for each in (self._index, self._times) if each is not None])
            self._filesystem.indexes.add(self, size_bytes)

    def drop_indexes(self) -> None:
        """Drop the indexes of a sealed segment. The next look-up reads them again."""
        self._index = self._times = None
        self._filesystem.indexes.remove(self)

    def index_next(self) -> None:
        """Give the next batch an index entry, at any distance from the last one."""
        self._since_entry = INTERVAL_BYTES + 1

    def stored_index(self) -> OffsetIndex:
        """Return the content of the `.index` file without a check."""
        return OffsetIndex(self._stored(".index"))

    def walk_index(self) -> OffsetIndex:
        """Rebuild the offset index from the batch headers in the log. Cost: one small read per batch.

        After a damaged header it continues at the next position of the old index with a good header.
        """
        index = OffsetIndex()
        stored = self.stored_index()
        fd = self.open_log().fd
        position = since = 0
        expected = self.base
        while position >= 0 and position + HEADER_SIZE <= self.size:
            data = self._filesystem.pread(fd, HEADER_SIZE, position)
            if len(data) < HEADER_SIZE:
                break
            header = BatchHeader(data, 0)
            if not header.is_plausible() or header.base_offset < expected or header.last_offset >= self.end:
                position = stored.next_position(position)
                since = INTERVAL_BYTES + 1
                continue
            if since > INTERVAL_BYTES:
                index.add(header.last_offset - self.base, position)
                since = 0
            since += header.size
            position += header.size
            expected = header.last_offset + 1
        index.flushed = 0
        self._index = index
        self._on_loaded()
        try:
            self._filesystem.replace_file(self.prefix + ".index", bytes(index.data), sync=False)
            index.flushed = len(index.data)
        except OSError as error:
            logger.warning("%s.index: cannot write the rebuilt index: %s", self.prefix, error)
        return index

    def flush_index(self, entries_min: int = 1) -> None:
        """Append new entries to `.index` if there are at least `entries_min`. No sync. Raises: OSError."""
        index = self._index
        if index is None or len(index.data) - index.flushed < entries_min * OFFSET_ENTRY_SIZE:
            return
        if self._index_file is None:
            self._index_file = OpenFile(self._filesystem, self.prefix + ".index", APPEND)
        self._filesystem.write_whole(self._index_file.fd, bytes(index.data[index.flushed :]))
        index.flushed = len(index.data)

    def rewrite_index(self) -> None:
        """Make both index files agree with memory. Correct content stays, so that a start after a kill need not
        write: overwriting a file costs 2 ms on ext4.

        Raises: OSError.
        """
        index = self._index
        if index is not None:
            stored = self._stored(".index")
            if stored and len(stored) % OFFSET_ENTRY_SIZE == 0 and bytes(index.data).startswith(stored):
                index.flushed = len(stored)
                self.flush_index()
            elif stored or index.data:
                self._filesystem.replace_file(self.prefix + ".index", bytes(index.data), sync=False)
                index.flushed = len(index.data)
        times = self._times
        if times is not None and (self.sealed or not bytes(times.data).startswith(self._stored(".timeindex"))):
            self.write_time_index()  # an active segment writes it when it is sealed

    def _stored(self, suffix: str) -> bytes:
        return self._filesystem.read_optional(self.prefix + suffix)

    def write_time_index(self) -> None:
        """Write `.timeindex` from memory, with the latest time as its last entry. Raises: OSError."""
        times = self._times
        if times is not None:
            if self.size > 0:
                times.add(self.max_timestamp_ms, self.end - 1 - self.base)
            self._filesystem.replace_file(self.prefix + ".timeindex", bytes(times.data), sync=False)

    def load_times(self) -> None:
        """Read both indexes of an active segment after a clean stop, to continue them."""
        self.index()
        self._since_entry = INTERVAL_BYTES + 1
        self._times = TimeIndex(self._stored(".timeindex"))
        if len(self._times):
            self.max_timestamp_ms = max(self.max_timestamp_ms, self._times.entry(len(self._times) - 1)[0])

    def times(self) -> TimeIndex:
        """Return the time index, read from its file if necessary. The file may be damaged (cursor.py)."""
        times = self._times
        if times is None:
            times = self._times = TimeIndex(self._stored(".timeindex"))
            self._on_loaded()
        return times

    def latest_ms(self) -> int:
        """Return the latest time of a batch, or a time in the far future if the batches are unreadable: retention by
        age must not remove what it cannot date.

        Cost: none if the time is known, else one small read per batch.
        """
        if self.max_timestamp_ms < 0 and self.size > 0 and not self.is_removed:
            fd = self.open_log().fd
            position = latest = 0
            while position + HEADER_SIZE <= self.size:
                data = self._filesystem.pread(fd, HEADER_SIZE, position)
                header = BatchHeader(data, 0) if len(data) == HEADER_SIZE else None
                if header is None or not header.is_plausible():
                    return _NEVER_MS
                latest = max(latest, header.max_timestamp_ms)
                position += header.size
            self.max_timestamp_ms = latest
        return self.max_timestamp_ms

    def truncate(self, size: int, end: int, body_bytes: int) -> None:
        """Record that the log was cut to `size` bytes and now ends before offset `end`. Later index entries go."""
        self.size = size
        self.end = end
        self.body_bytes = body_bytes
        if self._index is not None:
            flushed = self._index.flushed
            self._index.truncate(size)
            if self._index.flushed < flushed:
                try:
                    self.rewrite_index()
                except OSError as error:  # it can be rebuilt, and the caller must cut the log
                    logger.warning("%s.index: cannot write it: %s", self.prefix, error)
        if self._times is not None:
            self._times.truncate(max(0, end - self.base))
        self._since_entry = INTERVAL_BYTES + 1

    def truncate_acks(self, end: int) -> None:
        """Forget settled, lost and transient offsets at `end` and above. Recovery has cut the log there, so these
        offsets are used again.
        """
        ranges = self.settled.ranges()
        self.settled = AckSet(self.base)
        for first, last in ranges:
            if first < end:
                self.settled.add(first, min(last, end - 1))
        self.lost = [(first, min(last, end - 1)) for first, last in self.lost if first < end]
        self.gaps = [(first, min(last, end - 1)) for first, last in self.gaps if first < end]
        self.acked_transient = [each for each in self.acked_transient if each[1] < end]  # other ranges stay settled
        self.transient = [
            # A range may be several batches, so a part of it gets its share of the bytes.
            (first, min(last, end - 1), body_bytes * (min(last + 1, end) - first) // (last + 1 - first))
            for first, last, body_bytes in self.transient
            if first < end
        ]

    def add_transient(self, first: int, last: int, body_bytes: int) -> None:
        """Add offsets that will not count after a restart."""
        if self.transient and self.transient[-1][1] + 1 == first:
            before = self.transient.pop()
            first, body_bytes = before[0], before[2] + body_bytes
        self.transient.append((first, last, body_bytes))

    def same_durability_end(self, offset: int) -> int:
        """Return where the run of messages of the same kind as `offset` (transient or persistent) ends.

        `.settled` counts settled bytes by kind. Cost: a bisection if there are transient messages.
        """
        ranges = self.transient
        if not ranges:
            return self.end
        index = bisect_right(ranges, offset, key=_first_of) - 1
        if index >= 0 and offset <= ranges[index][1]:
            return ranges[index][1] + 1
        return ranges[index + 1][0] if index + 1 < len(ranges) else self.end

    def ack_transient(self, first: int, last: int, body_bytes: int) -> None:
        """Record that a range with bodies of this size was settled. A scan after a restart will not count its
        transient part again.

        In a mixed range the transient messages get their share of the bytes.
        """
        ranges = self.transient
        index = max(0, bisect_right(ranges, first, key=_first_of) - 1)
        while index < len(ranges) and ranges[index][0] <= last:
            low, high, left = ranges[index]
            overlap = min(high, last) - max(low, first) + 1
            if overlap > 0:
                share = min(left, body_bytes * overlap // (last - first + 1))
                ranges[index] = (low, high, left - share)
                self.settled_transient_bytes += share
            index += 1

    def take_transient_bytes(self, size: int) -> None:
        """Count bodies of transient messages in this segment as settled, at unknown offsets."""
        for index, (low, high, left) in enumerate(self.transient):
            share = min(left, size)
            self.transient[index] = (low, high, left - share)
            self.settled_transient_bytes += share
            size -= share

    def ack_transient_again(self, offset: int, body_bytes: int) -> None:
        """Record that transient messages found by a scan were already settled by an earlier process, as `.settled`
        says.

        Args:
            offset: in the range of `acked_transient`.
            body_bytes: size of their bodies.
        """
        parts = self.acked_transient
        index = bisect_right(parts, offset, key=_first_of) - 1
        if index >= 0 and offset <= parts[index][1]:
            first, last, size = parts[index]
            share = min(size, body_bytes)
            parts[index] = (first, last, size - share)
            self.settled_transient_bytes += share

    def open_files(self) -> list[OpenFile]:
        """Return the open descriptors."""
        return [file for file in (self.log_file, self.settled_file, self._index_file) if file is not None]

    def dirty(self) -> bool:
        """Return whether one of its files has bytes that no sync has taken."""
        return True in [file.dirty for file in self.open_files()]

    def release(self) -> None:
        """Close descriptors, and drop the indexes of a sealed segment. No file may be dirty."""
        for file in self.open_files():
            file.close()
        self.log_file = self.settled_file = self._index_file = None
        if self.sealed:
            self.drop_indexes()

    def files(self) -> list[str]:
        """Return the paths to remove with the segment. `.settled` is last: it shows that the removal was intended."""
        return [self.prefix + suffix for suffix in (".log", ".index", ".timeindex", ".settled.swap", ".settled")]


def _first_of(part: tuple[int, int, int]) -> int:
    return part[0]
