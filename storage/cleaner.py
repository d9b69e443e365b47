"""Compaction: of each key a log keeps the last record.

A log whose policy has a `CleanerPolicy` is cleaned in the background, one log at a time, the dirtiest first. What lies
below its *first dirty offset* was cleaned before; what lies between that and the active segment is *dirty*. When enough
of the bytes is dirty, a cleaning reads the dirty part into a map of keys (a 16-byte digest of each, and its last
offset; bounded in bytes: what does not fit waits for the next cleaning), and then writes every sealed segment anew
without the records that a later one of the same key supersedes, small neighbours together into one. Records keep their
offsets; the holes count as settled. A record without a key stays.

**Tombstones.** A record with a null value takes what was before it away, and goes itself when it has been in the clean
part for `tombstone_retention_ms`, so that a reader that began before has the time to see it. In the log's directory
`cleaner-offset-checkpoint` says since when what is clean: a line `first dirty offset, milliseconds` for each cleaning,
the last line their CRC-32C. Without it everything is dirty.

The new files are made and put in their place by compaction.py, which also says what a crash leaves. All of this module but
`plan` runs in a thread of its own, on sealed files and copies. It gives way after each batch, and within a large one.
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

from amqpd.storage.filesystem import READ, FileSystem
from amqpd.storage.retention_policy import CleanerPolicy
from amqpd.storage.log.batch import (
    COMPRESSION,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    TRANSIENT,
    BatchHeader,
    crc_fits,
)
from amqpd.storage.log.compression import compress, plain
from amqpd.storage.log.record import BadRecord, Record, read_offset_delta, read_record, read_varint, record_stop
from amqpd.storage.log.segment import Segment
from amqpd.storage.acks.ack_set import SettledSet

if TYPE_CHECKING:
    from amqpd.storage.log.log import Log

logger = logging.getLogger(__name__)

CLEANER_OFFSET: Final = "cleaner-offset-checkpoint"
_COVERED: Final = struct.Struct(">hiqqqhii")
_BEFORE_CRC: Final = struct.Struct(">qiibI")
_SLOT_SIZE: Final = 24
_CHUNK_SIZE: Final = 1 << 20
_GIVE_WAY_RECORDS: Final = 64


class Cancelled(Exception):
    """The log is being deleted, or the broker stops."""


class OffsetMap:
    """Digest of a key -> the last offset it was seen at, in three flat arrays: no object for a key."""

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
        """Notes the offset, which is above all before; False when the map is full and the key is not in it."""
        slot, high, low = self._find(key)
        if self._offsets[slot] < 0:
            if self.count >= self.capacity:
                return False
            self.count += 1
            self._high[slot], self._low[slot] = high, low
        self._offsets[slot] = offset
        return True

    def get(self, key: bytes) -> int:
        """The last offset of the key, -1 where it is not in the map."""
        return int(self._offsets[self._find(key)[0]])


def encode_clean_offsets(history: list[tuple[int, int]]) -> bytes:
    """The text of `cleaner-offset-checkpoint`: (first dirty offset, since when) of each cleaning, oldest first."""
    text = "".join(f"{offset} {time_ms}\n" for offset, time_ms in history).encode()
    return text + f"{value(text)}\n".encode()


def decode_clean_offsets(data: bytes) -> list[tuple[int, int]]:
    """What `encode_clean_offsets` was given; empty where the text is damaged."""
    try:
        text, _, crc = data.rstrip(b"\n").rpartition(b"\n")
        if value(text + b"\n") != int(crc):
            return []
        lines = [line.split() for line in text.decode("ascii").splitlines()]
        return [(int(offset), int(time_ms)) for offset, time_ms in lines]
    except ValueError:
        return []


def read_clean_offsets(filesystem: FileSystem, directory: str) -> list[tuple[int, int]]:
    """What `encode_clean_offsets` was given; empty where the file is missing or damaged."""
    try:
        return decode_clean_offsets(filesystem.read_file(f"{directory}/{CLEANER_OFFSET}"))
    except OSError:
        return []


@dataclass
class View:
    """A sealed segment as it is when the cleaning begins."""

    segment: Segment
    base: int
    end: int
    size: int
    path: str
    settled: SettledSet


@dataclass
class Cleaning:
    """One cleaning of one log. groups: the segments that go into one, in order. history: the lines of
    `cleaner-offset-checkpoint`.

    done: (the views of a group, the segment that replaces them, None where nothing is left of them) in order.
    """

    log: Log
    policy: CleanerPolicy
    views: list[View]
    history: list[tuple[int, int]]
    first_dirty: int
    dirty_ratio: float
    now_ms: int
    boot: tuple[int, int]
    clean_end: int = 0  # everything below is clean when this is done
    map: OffsetMap = field(default_factory=lambda: OffsetMap(0))
    cancelled: bool = False
    dropped_count: int = 0
    done: list[tuple[list[View], Segment | None]] = field(default_factory=list)

    def new_history(self) -> list[tuple[int, int]]:
        """The checkpoint's next content: what is older than the tombstones' time is one line."""
        history = [each for each in self.history if each[0] < self.clean_end]
        history.append((self.clean_end, self.now_ms))
        old = [each for each in history if each[1] <= self.now_ms - self.policy.tombstone_retention_ms]
        return old[-1:] + history[len(old) :]

    def keeps_tombstone(self, offset: int) -> bool:
        for end, since_ms in self.history:
            if offset < end:
                return since_ms > self.now_ms - self.policy.tombstone_retention_ms
        return True


def plan(log: Log, policy: CleanerPolicy, now_ms: int, boot: tuple[int, int]) -> Cleaning | None:
    """What there is to clean, None if nothing. On the loop; cost: a step per segment, copies of their settled sets."""
    sealed = [segment for segment in log.segments[:-1] if segment.sealed and not segment.gone and segment.live > 0]
    if not sealed or any(segment.removing or segment.swapping or segment.dirty() for segment in sealed):
        return None
    history = read_clean_offsets(log.filesystem, log.directory)
    first_dirty = min(history[-1][0], sealed[-1].end) if history else 0
    total = sum(segment.size for segment in sealed)
    dirty = sum(segment.size for segment in sealed if segment.end > first_dirty)
    if not dirty or dirty < policy.min_dirty_ratio * total:
        return None
    views = [View(each, each.base, each.end, each.size, each.prefix + ".log", each.settled.copy()) for each in sealed]
    return Cleaning(log, policy, views, history, first_dirty, dirty / total, now_ms, boot)


def fill_map(cleaning: Cleaning, filesystem: FileSystem, give_way: Callable[[], None]) -> None:
    """Reads the dirty part into the map; sets `clean_end`. Cost: 3 us a record, interpreted. Raises: OSError."""
    dirty = [view for view in cleaning.views if view.end > cleaning.first_dirty]
    most = sum(view.end - view.base for view in dirty) * _SLOT_SIZE * 4 // 3 + 8 * _SLOT_SIZE
    cleaning.map = OffsetMap(min(most, cleaning.policy.map_size_bytes))
    cleaning.clean_end = cleaning.views[-1].end
    for view in dirty:
        for piece in batches(filesystem, view):
            if cleaning.cancelled:
                raise Cancelled
            give_way()
            for number, (record, _, _) in enumerate(records(piece)):
                if number % _GIVE_WAY_RECORDS == _GIVE_WAY_RECORDS - 1:
                    give_way()
                if record.offset < cleaning.first_dirty or view.settled.contains(record.offset):
                    continue
                key = cleaning.policy.key(record)
                if key is not None and not cleaning.map.put(key, record.offset):
                    cleaning.clean_end = record.offset
                    return


@dataclass
class Piece:
    """One good batch, plain: `header` stands at `at` in `data`. codec: how it is compressed in the file."""

    data: bytes
    at: int
    header: BatchHeader
    codec: int


def batches(filesystem: FileSystem, view: View) -> Iterator[Piece]:
    """The good batches of a sealed segment. What is damaged is passed over as readers do: see `reader.py`.

    Raises: OSError; BadRecord where something is damaged that nobody has noted as lost yet: it is not for the cleaner
    to throw away.
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
            good = header is not None and header.plausible() and crc_fits(chunk, at, header)
            if header is None or not good or not expected <= header.base_offset <= header.last_offset < view.end:
                raise BadRecord(f"{view.path} is damaged at {position}")
            yield Piece(*plain(chunk, at, header), int(header.attributes & COMPRESSION))
            expected = int(header.last_offset) + 1
            position += int(header.size)
    finally:
        filesystem.close(fd)


def records(piece: Piece) -> Iterator[tuple[Record, int, int]]:
    """(record, where its bytes start, where they end) of a batch; none of a marker. Raises: BadRecord."""
    header = piece.header
    if header.control():
        return
    position, end = piece.at + int(HEADER_SIZE), piece.at + int(header.size)
    for _ in range(header.count):
        start, stop = record_stop(piece.data, position, end)
        delta, key = read_offset_delta(piece.data, start)
        persistent = not header.transient()
        offset = header.base_offset + delta
        time_ms = header.max_timestamp_ms
        if not header.attributes & LOG_APPEND_TIME:
            time_ms = header.base_timestamp_ms + read_varint(piece.data, start + 1)[0]
        yield read_record(piece.data, key, stop, offset, time_ms, persistent), position, int(stop)
        position = int(stop)


@dataclass
class Kept:
    """What stays of a batch: the records, and their bytes. codec: how it was compressed, and is again."""

    header: BatchHeader
    records: list[Record]
    parts: list[bytes]
    codec: int

    def encoded(self, last_offset: int) -> bytes:
        """The batch, with `last_offset` as its last: that of its last record, or of holes behind it.

        What is left of a transaction is complete: it was, before it got here. So neither flag nor marker is needed.
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


def kept_of(piece: Piece, cleaning: Cleaning, view: View, give_way: Callable[[], None]) -> Kept:
    """The batch without what goes."""
    kept = Kept(piece.header, [], [], piece.codec)
    for number, (record, start, stop) in enumerate(records(piece)):
        if number % _GIVE_WAY_RECORDS == _GIVE_WAY_RECORDS - 1:
            give_way()
        if view.settled.contains(record.offset):
            continue
        key = cleaning.policy.key(record)
        if key is not None and record.offset < cleaning.clean_end:
            superseded = cleaning.map.get(key) > record.offset
            if superseded or (record.tombstone and not cleaning.keeps_tombstone(record.offset)):
                cleaning.dropped_count += 1
                continue
        kept.records.append(record)
        kept.parts.append(piece.data[start:stop])
    return kept
