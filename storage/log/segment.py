"""One segment: a `.log` file, its two indexes, its `.settled` file, and what is known of it in memory.

`base <= offset < end`; `end - base - settled.count` messages are live. The last segment of a log is *active*, the
others are *sealed*: nothing is appended to their `.log` any more. A sealed segment whose messages are all settled is
*gone* once its `.log` is removed; the object (and the `.settled` file) stay until everything before it is gone too.

An object is small and a log has one for each 64 MiB, so memory does not follow the backlog. Descriptors and indexes are
opened on demand and dropped by `release`.

The two sparse indexes of a segment, in Kafka's formats. Neither is ever synced: both can be rebuilt from the log.

`.index`: entries of 8 bytes, relative offset u32 (of the last record of a batch, less the segment's base offset) and
position u32 (where that batch starts). One entry each time 4096 bytes of log have gone by; a segment's first batch has
none.

`.timeindex`: entries of 12 bytes, timestamp i64 (largest in the segment so far) and relative offset u32 (of the last
record of the batch that had it). Added with an index entry, when the time is later than that of the entry before.

The active segment's entries are kept in memory and appended to their files at the end of the turn (`.index`) or when
the segment is sealed (`.timeindex`); those of a sealed segment are read when a look-up needs them.
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
    """Offset -> position. `flushed`: how many of its bytes are in the file."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data[: len(data) // OFFSET_ENTRY_SIZE * OFFSET_ENTRY_SIZE])
        self.flushed = len(self.data)

    def __len__(self) -> int:
        return len(self.data) // OFFSET_ENTRY_SIZE

    def add(self, relative_offset: int, position: int) -> None:
        """A batch that ends with `relative_offset` starts at `position`. Both must be above those before."""
        self.data += _OFFSET_ENTRY.pack(relative_offset, position)

    def entry(self, number: int) -> tuple[int, int]:
        """(relative offset, position) of the entry; 0 <= number < len."""
        relative_offset, position = _OFFSET_ENTRY.unpack_from(self.data, number * OFFSET_ENTRY_SIZE)
        return relative_offset, position

    def floor(self, relative_offset: int) -> tuple[int, int]:
        """The last entry that is not above `relative_offset`, (-1, 0) if there is none. Cost: a bisection.

        The batch with the offset is the one at that position or one behind it.
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
        """The first indexed position behind `position`, -1 if there is none."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[1] <= position:
                low = middle + 1
            else:
                high = middle
        return self.entry(low)[1] if low < len(self) else -1

    def cut(self, size: int) -> None:
        """Forgets the entries at and behind position `size`."""
        number = len(self)
        while number and self.entry(number - 1)[1] >= size:
            number -= 1
        del self.data[number * OFFSET_ENTRY_SIZE :]
        self.flushed = min(self.flushed, len(self.data))

    def plausible(self, log_size: int) -> bool:
        """Whether its entries rise and stay inside the log. Cost: one step per entry."""
        before = (-1, -1)
        for entry in _OFFSET_ENTRY.iter_unpack(bytes(self.data)):
            if entry[0] <= before[0] or entry[1] <= before[1]:
                return False
            before = (entry[0], entry[1])
        return before[1] < log_size


class TimeIndex:
    """Time -> offset."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data[: len(data) // TIME_ENTRY_SIZE * TIME_ENTRY_SIZE])

    def __len__(self) -> int:
        return len(self.data) // TIME_ENTRY_SIZE

    def add(self, timestamp_ms: int, relative_offset: int) -> None:
        """Adds an entry if `timestamp_ms` is later than the last one's, so that times and offsets only rise."""
        if not self.data or timestamp_ms > self.entry(len(self) - 1)[0]:
            self.data += _TIME_ENTRY.pack(timestamp_ms, relative_offset)

    def entry(self, number: int) -> tuple[int, int]:
        """(timestamp in ms, relative offset) of the entry; 0 <= number < len."""
        timestamp_ms, relative_offset = _TIME_ENTRY.unpack_from(self.data, number * TIME_ENTRY_SIZE)
        return timestamp_ms, relative_offset

    def offset_before(self, timestamp_ms: int) -> int:
        """Relative offset from which on to look for the first record of `timestamp_ms` or later. Cost: a bisection."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[0] < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return self.entry(low - 1)[1] if low else 0

    def cut(self, relative_offset: int) -> None:
        """Forgets the entries at and behind `relative_offset`."""
        number = len(self)
        while number and self.entry(number - 1)[1] >= relative_offset:
            number -= 1
        del self.data[number * TIME_ENTRY_SIZE :]


logger = logging.getLogger(__name__)

REWRITE_FROM = 256 * 1024  # bytes
_NEVER_MS = 1 << 62


def segment_name(base: int) -> str:
    """The 20 digits that the files of the segment share."""
    return f"{base:020d}"


class Segment:
    """What is known of one segment. `size`: bytes of whole batches in its log. `body_bytes`: of the bodies in it."""

    def __init__(self, filesystem: FileSystem, directory: str, base: int) -> None:
        self._filesystem = filesystem
        self.prefix = f"{directory}/{segment_name(base)}"
        self.base = base
        self.end = base
        self.size = 0
        self.body_bytes = 0
        self.settled = AckSet(base)
        self.settled_body_bytes = 0
        # Of those: bytes of transient messages that a scan would count again. (Not those of `transient_gone`.)
        self.settled_transient_bytes = 0
        self.settled_size = 0  # bytes in the .settled file; 0: there is none yet
        self.entries: BytesWriter | None = None  # for the .settled file, at the end of the turn
        self.settled_begun = False  # the .settled file was written to in this life
        self.rewrite_from = REWRITE_FROM  # size at which the .settled file is written anew
        self.log_suffix = ".log"  # or what it is called until it gets that name: see compaction.py
        self.swapping = False  # the one that is written to is still called .settled.swap
        self.lost: list[tuple[int, int]] = []
        self.gaps: list[tuple[int, int]] = []  # found by a scan; as good as settled
        self.max_timestamp_ms = -1
        self.first_timestamp_ms = -1
        self.transient: list[tuple[int, int, int]] = []  # (first, last, bytes of live bodies), appended in this life
        self.transient_gone: list[tuple[int, int, int]] = []  # of an earlier life: settled by the restart
        self.sealed = False
        self.removing = False
        self.gone = False
        self.log_file: OpenFile | None = None
        self.settled_file: OpenFile | None = None
        self._index_file: OpenFile | None = None
        self._index: OffsetIndex | None = None
        self._times: TimeIndex | None = None
        self._since_entry = 0

    @property
    def live(self) -> int:
        """Messages that are not settled."""
        return self.end - self.base - self.settled.count

    def open_log(self, *, create: bool = False) -> OpenFile:
        """The log's descriptor, opened when it is not. Raises: OSError."""
        file = self.log_file
        if file is None:
            flags = APPEND if create or not self.sealed else READ
            file = self.log_file = OpenFile(self._filesystem, self.prefix + self.log_suffix, flags)
        return file

    def open_settled(self) -> OpenFile:
        """The `.settled` file's descriptor, made when there is none. Raises: OSError."""
        file = self.settled_file
        if file is None:
            name = ".settled.swap" if self.swapping else ".settled"
            file = self.settled_file = OpenFile(self._filesystem, self.prefix + name, APPEND)
        return file

    def compacted(self, boot: tuple[int, int], delivered_mark: int, returned: dict[int, int]) -> bytes:
        """What a new `.settled` file starts with: all that is known, each fact once.

        boot: the boot id for a BOOT entry. delivered_mark: -1 for none. returned: offset -> tally (ack_set.py).
        """
        parts = [
            encode_entry(ack_set.HEADER, self.base, ack_set.VERSION, 0),
            encode_entry(ack_set.BOOT, boot[0], boot[1], 0),
        ]
        parts += [encode_entry(ack_set.TRANSIENT, *each) for each in self.transient_gone]
        body_bytes = self.settled_body_bytes - sum(each[2] for each in self.transient_gone)
        if self.sealed:
            parts += [encode_entry(ack_set.TRANSIENT, *each) for each in self.transient]
            parts.append(encode_entry(ack_set.TOTALS, self.end, self.size, self.body_bytes))
            parts.append(encode_entry(ack_set.TIMES, self.first_timestamp_ms, self.max_timestamp_ms, 0))
        if self.settled.range_count() >= 0:
            parts += [encode_entry(ack_set.SETTLED, first, last, 0) for first, last in self.settled.ranges()]
        else:
            for start in range(self.base, self.settled.highest + 1, 128):
                low, high = self.settled.words(start)
                if low or high:
                    parts.append(encode_entry(ack_set.BITS, start, low, high))
        body_bytes = max(0, body_bytes)
        parts.append(encode_entry(ack_set.BYTES, body_bytes, min(self.settled_transient_bytes, body_bytes), 0))
        parts += [encode_entry(ack_set.LOST, first, last, 0) for first, last in self.lost]
        if delivered_mark >= 0:
            parts.append(encode_entry(ack_set.DELIVERED, delivered_mark, 0, 0))
        for offset, told in returned.items():
            if self.base <= offset < self.end:
                count, due_ms = told & ack_set.COUNT_MAX, told >> ack_set.TALLY_BITS
                parts.append(encode_entry(ack_set.RETURNED, offset, count, due_ms))
        return b"".join(parts)

    def begin_index(self) -> None:
        """Starts with empty indexes: the segment is new, or about to be scanned."""
        self._index = OffsetIndex()
        self._times = TimeIndex()
        self._since_entry = 0

    def appended(self, batch: ClosedBatch) -> None:
        """Takes note of a batch that now stands at the end of the log, and indexes it."""
        self.note(batch.last_offset, batch.size, batch.timestamp_ms)
        self.body_bytes += batch.body_size_bytes

    def note(self, last_offset: int, size: int, timestamp_ms: int) -> None:
        """A batch of `size` bytes that ends with `last_offset` follows; its body bytes are the caller's to add."""
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
        """The offset index; read from its file when it is not in memory. One that cannot be right is made anew."""
        index = self._index
        if index is None:
            index = self.stored_index()
            if not index.plausible(self.size) or (self.size > 4 * INTERVAL_BYTES and not len(index)):
                return self.walk_index()
            self._index = index
        return index

    def index_next(self) -> None:
        """The next batch gets an index entry, whatever the distance to the last one."""
        self._since_entry = INTERVAL_BYTES + 1

    def stored_index(self) -> OffsetIndex:
        """What stands in the `.index` file, good or bad."""
        return OffsetIndex(self._stored(".index"))

    def walk_index(self) -> OffsetIndex:
        """Makes the offset index anew from the headers in the log. Cost: one small read a batch.

        Where a header is damaged it goes on at the next position that the old index knows and that has one.
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
            if not header.plausible() or header.base_offset < expected or header.last_offset >= self.end:
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
        try:
            self._filesystem.replace_file(self.prefix + ".index", bytes(index.data), sync=False)
            index.flushed = len(index.data)
        except OSError as error:
            logger.warning("%s.index could not be written anew: %s", self.prefix, error)
        return index

    def flush_index(self, entries_min: int = 1) -> None:
        """Appends new index entries to `.index`, if there are so many. Never synced. Raises: OSError."""
        index = self._index
        if index is None or len(index.data) - index.flushed < entries_min * OFFSET_ENTRY_SIZE:
            return
        if self._index_file is None:
            self._index_file = OpenFile(self._filesystem, self.prefix + ".index", APPEND)
        self._filesystem.write_whole(self._index_file.fd, bytes(index.data[index.flushed :]))
        index.flushed = len(index.data)

    def rewrite_index(self) -> None:
        """Makes both index files agree with memory. What stands in them and is right stays, so that a start after a
        kill need not write: a file that is written over costs 2 ms on ext4. Raises: OSError.
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
            self.write_time_index()  # that of an active segment is written when it is sealed

    def _stored(self, suffix: str) -> bytes:
        return self._filesystem.read_if_there(self.prefix + suffix)

    def write_time_index(self) -> None:
        """Writes `.timeindex` from memory, with the latest time as its last entry. Raises: OSError."""
        times = self._times
        if times is not None:
            if self.size > 0:
                times.add(self.max_timestamp_ms, self.end - 1 - self.base)
            self._filesystem.replace_file(self.prefix + ".timeindex", bytes(times.data), sync=False)

    def load_times(self) -> None:
        """Reads both indexes of an active segment after a clean stop, so that they can be continued."""
        self.index()
        self._since_entry = INTERVAL_BYTES + 1
        self._times = TimeIndex(self._stored(".timeindex"))
        if len(self._times):
            self.max_timestamp_ms = max(self.max_timestamp_ms, self._times.entry(len(self._times) - 1)[0])

    def times(self) -> TimeIndex:
        """The time index; read from its file when it is not in memory. It may be damaged: see cursor.py."""
        times = self._times
        if times is None:
            times = self._times = TimeIndex(self._stored(".timeindex"))
        return times

    def latest_ms(self) -> int:
        """The latest time of a batch in it. Cost: none, or one small read a batch where nothing tells it.

        Where the batches cannot be read either it is in the far future: age removes nothing it does not know.
        """
        if self.max_timestamp_ms < 0 and self.size > 0 and not self.gone:
            fd = self.open_log().fd
            position = latest = 0
            while position + HEADER_SIZE <= self.size:
                data = self._filesystem.pread(fd, HEADER_SIZE, position)
                header = BatchHeader(data, 0) if len(data) == HEADER_SIZE else None
                if header is None or not header.plausible():
                    return _NEVER_MS
                latest = max(latest, header.max_timestamp_ms)
                position += header.size
            self.max_timestamp_ms = latest
        return self.max_timestamp_ms

    def cut(self, size: int, end: int, body_bytes: int) -> None:
        """The log has been cut to `size` bytes, its last record is before `end`. Index entries behind go."""
        self.size = size
        self.end = end
        self.body_bytes = body_bytes
        if self._index is not None:
            flushed = self._index.flushed
            self._index.cut(size)
            if self._index.flushed < flushed:
                self.rewrite_index()
        if self._times is not None:
            self._times.cut(max(0, end - self.base))
        self._since_entry = INTERVAL_BYTES + 1

    def forget_settled(self, end: int) -> None:
        """The log has been cut before `end`, by recovery or while it is open: what was settled, lost or transient at
        `end` and beyond never was, since those offsets are used again. A range that `end` lies in keeps what is before.
        """
        ranges = self.settled.ranges()
        self.settled = AckSet(self.base)
        for first, last in ranges:
            if first < end:
                self.settled.add(first, min(last, end - 1))
        self.lost = [(first, min(last, end - 1)) for first, last in self.lost if first < end]
        self.gaps = [(first, min(last, end - 1)) for first, last in self.gaps if first < end]
        self.transient_gone = [each for each in self.transient_gone if each[1] < end]  # the rest stays settled
        self.transient = [
            # Several batches stand as one range, so the bytes of a part are its share.
            (first, min(last, end - 1), body_bytes * (min(last + 1, end) - first) // (last + 1 - first))
            for first, last, body_bytes in self.transient
            if first < end
        ]

    def add_transient(self, first: int, last: int, body_bytes: int) -> None:
        """Offsets that will not count after a restart."""
        if self.transient and self.transient[-1][1] + 1 == first:
            before = self.transient.pop()
            first, body_bytes = before[0], before[2] + body_bytes
        self.transient.append((first, last, body_bytes))

    def kind_end(self, offset: int) -> int:
        """Where messages of the other kind than that at `offset` begin, transient or not: settled bytes are told by
        kind. Cost: a bisection where any are transient.
        """
        ranges = self.transient
        if not ranges:
            return self.end
        index = bisect_right(ranges, offset, key=_first_of) - 1
        if index >= 0 and offset <= ranges[index][1]:
            return ranges[index][1] + 1
        return ranges[index + 1][0] if index + 1 < len(ranges) else self.end

    def settle_transient(self, first: int, last: int, body_bytes: int) -> None:
        """A range was settled, with these bytes of bodies: what of it is transient will not count again after a
        restart. Of a range that has others too it is their share.
        """
        ranges = self.transient
        index = max(0, bisect_right(ranges, first, key=_first_of) - 1)
        while index < len(ranges) and ranges[index][0] <= last:
            low, high, left = ranges[index]
            both = min(high, last) - max(low, first) + 1
            if both > 0:
                share = min(left, body_bytes * both // (last - first + 1))
                ranges[index] = (low, high, left - share)
                self.settled_transient_bytes += share
            index += 1

    def settle_gone(self, offset: int, body_bytes: int) -> None:
        """What a scan has found as transient was settled in an earlier life, with these bytes of bodies, and `.settled`
        says so. Of the range that `offset` is in the rest is told as transient.
        """
        parts = self.transient_gone
        index = bisect_right(parts, offset, key=_first_of) - 1
        if index >= 0 and offset <= parts[index][1]:
            first, last, size = parts[index]
            share = min(size, body_bytes)
            parts[index] = (first, last, size - share)
            self.settled_transient_bytes += share

    def open_files(self) -> list[OpenFile]:
        """The descriptors that are open just now."""
        return [file for file in (self.log_file, self.settled_file, self._index_file) if file is not None]

    def dirty(self) -> bool:
        """Whether one of its files has bytes that were not yet given to a sync."""
        return True in [file.dirty for file in self.open_files()]

    def release(self) -> None:
        """Closes descriptors and, where the segment is sealed, forgets the indexes. Nothing may be dirty."""
        for file in self.open_files():
            file.close()
        self.log_file = self.settled_file = self._index_file = None
        if self.sealed:
            self._index = self._times = None

    def files(self) -> list[str]:
        """Paths to remove with the segment, the `.settled` file last: until it goes it is the sign of purpose."""
        return [self.prefix + suffix for suffix in (".log", ".index", ".timeindex", ".settled.swap", ".settled")]


def _first_of(part: tuple[int, int, int]) -> int:
    return part[0]
