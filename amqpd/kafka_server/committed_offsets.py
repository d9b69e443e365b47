"""The committed offsets of all consumer groups: one compacted log, outside the vhosts, and its content in memory.

The log is the directory `kafka-offsets` in the data directory. A record's key names vhost, group, topic and partition;
its value is the offset. The last record of a key counts, and a record without a value removes it; compaction
(storage/compaction.py) drops the others. Both have a version in the first byte; a record of an unknown version is
kept and ignored. Records whose first byte is another one belong to `CommittedOffsets.others`: share_states.py has those
of share groups.

    key     version 1, then vhost id, group, topic (a length of 2 bytes and UTF-8 each), partition (int32)
    value   version 1, offset (int64), leader epoch (int32), time of the commit in ms (int64), id of the
            partition's stream (16 bytes), metadata (UTF-8, the rest)

A commit is appended at once, and in memory and answered when it is synced, so no client sees an offset that a crash
could take back. A failed write changes nothing. If the log refuses everything after a failed sync, commits fail until
the next start, and what was committed stays readable.

The ids of vhost and stream make a deleted vhost's or partition's offsets void at once, also if the broker is killed
before their removal is in the log: a new one of the same name has another id.

The log is opened and read in slices of the event loop. Memory: some 300 bytes and the metadata per offset.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpd.storage.log.record import Record, RecordRoute
from amqpd.storage.queue_log import LogFailed, LogUnusable
from amqpd.storage.retention_policy import CleanerPolicy, RetentionPolicy

if TYPE_CHECKING:
    from amqpd.broker.flow.loop_turn import LoopTurn
    from amqpd.storage.local_log import LocalLog
    from amqpd.storage.queue_log import Cursor
    from amqpd.storage.storage import Storage

log = logging.getLogger(__name__)

DIRECTORY: Final = "kafka-offsets"
QUEUE_ID: Final = "0" * 31 + "2"
"""In the log's queue.json; no random id is equal to it."""
METADATA_BYTES_MAX: Final = 4096
VHOST_BYTES_MAX: Final = 64 << 20
"""Memory of the offsets of one vhost."""
ENTRY_BYTES: Final = 300
SEGMENT_BYTES: Final = 16 << 20
SEGMENT_AGE_MS: Final = 24 * 3_600_000
SLICE_BYTES: Final = 64 * 1024
REMOVALS_PER_TURN: Final = 200
RETRY_MS: Final = 5000

_VERSION: Final = b"\x01"
_VALUE: Final = struct.Struct(">qiq16s")
_INT16: Final = struct.Struct(">H")
_INT32: Final = struct.Struct(">i")
_NO_PROPERTIES: Final = b"\0\0"


class OffsetKey(NamedTuple):
    """The place of an offset."""

    vhost_id: str
    group: str
    topic: str
    partition: int


class CommittedOffset(NamedTuple):
    """A committed offset.

    Attributes:
        metadata: the client's text.
        commit_ms: since 1970.
        stream_id: of the partition to which it was committed, 16 bytes.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    stream_id: bytes

    @property
    def size_bytes(self) -> int:
        return ENTRY_BYTES + len(self.metadata)


GroupOffsets = dict[tuple[str, int], CommittedOffset]
"""(topic, partition) -> offset."""


def encode_key(key: OffsetKey) -> bytes:
    parts = [_VERSION]
    for text in key[:3]:
        data = text.encode("utf-8", "surrogatepass")
        parts += (_INT16.pack(len(data)), data)
    return b"".join((*parts, _INT32.pack(key.partition)))


def decode_key(data: bytes) -> OffsetKey | None:
    """Return the key; None if its version is unknown or it is damaged."""
    if data[:1] != _VERSION:
        return None
    texts: list[str] = []
    position = 1
    try:
        for _ in range(3):
            size = _INT16.unpack_from(data, position)[0]
            position += 2
            texts.append(data[position : position + size].decode("utf-8", "surrogatepass"))
            position += size
        return OffsetKey(texts[0], texts[1], texts[2], _INT32.unpack_from(data, position)[0])
    except (struct.error, UnicodeDecodeError):
        return None


def encode_value(value: CommittedOffset) -> bytes:
    fixed = _VALUE.pack(value.offset, value.leader_epoch, value.commit_ms, value.stream_id)
    return _VERSION + fixed + value.metadata.encode("utf-8", "surrogatepass")


def decode_value(data: bytes) -> CommittedOffset | None:
    """Return the value; None if its version is unknown or it is damaged."""
    if data[:1] != _VERSION or len(data) <= _VALUE.size:
        return None
    offset, leader_epoch, commit_ms, stream_id = _VALUE.unpack_from(data, 1)
    metadata = data[1 + _VALUE.size :].decode("utf-8", "replace")
    return CommittedOffset(offset, leader_epoch, metadata, commit_ms, stream_id)


class CommittedOffsets:
    """All committed offsets. Loop thread only.

    Args:
        loaded: called once the log is read.
        now_ms: monotonic milliseconds.

    Attributes:
        is_loaded: before, nothing may be asked or changed.
        has_failed: the log could not be opened or read; `load` tries again, at most every RETRY_MS.
        others: by the first byte of the key, the function that takes key and value (None: removed) of such a record.
    """

    def __init__(
        self,
        storage: Storage,
        turn: LoopTurn,
        call_soon: Callable[[Callable[[], None]], object],
        now_ms: Callable[[], int],
        loaded: Callable[[], None],
    ) -> None:
        self.is_loaded = False
        self.has_failed = False
        self.others: dict[int, Callable[[bytes, bytes | None], None]] = {}
        self._storage = storage
        self._turn = turn
        self._call_soon = call_soon
        self._now_ms = now_ms
        self._loaded = loaded
        self._store: LocalLog | None = None
        self._cursor: Cursor | None = None
        self._position = self._end = 0
        self._is_loading = False
        self._retry_ms = 0
        self._tables: dict[str, dict[str, GroupOffsets]] = {}  # vhost id -> group -> offsets
        self._sizes: dict[str, int] = {}  # vhost id -> bytes
        self._removals: deque[OffsetKey] = deque()
        self._is_removing = False
        self._is_stopped = False

    # -- reading the log

    def load(self) -> bool:
        """Begin to read the log, if that has not begun, or has failed some time ago. Return whether it is read."""
        is_early = self.has_failed and self._now_ms() < self._retry_ms
        if not (self.is_loaded or self._is_loading or self._is_stopped or is_early):
            self._is_loading = True
            self._open()
        return self.is_loaded

    def _open(self) -> None:
        if self._is_stopped:
            return
        try:
            if self._store is None:
                self._store = self._storage.open_system_queue(DIRECTORY, QUEUE_ID, DIRECTORY, "", b"")
                policy = RetentionPolicy(
                    segment_size_bytes=SEGMENT_BYTES, segment_age_ms=SEGMENT_AGE_MS, compaction=CleanerPolicy()
                )
                self._storage.set_policy(self._store, policy)
            if not self._store.open_soon(self._open):
                return
            self._store.recover()
        except (OSError, LogUnusable) as error:
            self._on_failed(error)
            return
        end = self._store.next_offset
        if end <= self._store.high_watermark:
            self._begin_reading(end, True)
        else:  # what a kill left unsynced is synced first
            self._store.when_safe(end - 1, partial(self._begin_reading, end))
            self._turn.schedule()

    def _begin_reading(self, end: int, safe: bool) -> None:
        assert self._store is not None
        if not safe:
            self._on_failed(OSError("the log cannot be synced"))
            return
        self._tables.clear()
        self._sizes.clear()
        self._cursor = self._store.new_cursor()
        self._position, self._end = 0, end
        self._read()

    def _read(self) -> None:
        """Read one slice, and the next one in another turn."""
        cursor = self._cursor
        if self._is_stopped or cursor is None:
            return
        try:
            found = cursor.read_safe(self._position, SLICE_BYTES, self._read)
        except OSError as error:
            self._on_failed(error)
            return
        self._position = found.next_offset
        for record in found.records:
            self._take(record)
        if found.waiting:
            return
        if found.records and self._position < self._end:
            self._call_soon(self._read)
            return
        cursor.close()
        self._cursor = None
        self.is_loaded, self.has_failed, self._is_loading = True, False, False
        self._loaded()

    def _take(self, record: Record) -> None:
        other = self.others.get(record.routing_key[0]) if record.routing_key else None
        if other is not None:
            other(record.routing_key, None if record.tombstone else record.body)
            return
        key = decode_key(record.routing_key)
        if key is None:
            log.warning("%s: the record at offset %d is not read: an unknown version", DIRECTORY, record.offset)
            return
        value = None if record.tombstone else decode_value(record.body)
        if value is not None or record.tombstone:
            self._set(key, value)

    def _on_failed(self, error: Exception) -> None:
        log.error("the committed offsets of Kafka's groups cannot be read: %s", error)
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None
        self.has_failed, self._is_loading = True, False
        self._retry_ms = self._now_ms() + RETRY_MS

    # -- look-ups

    def groups(self, vhost_id: str) -> Mapping[str, GroupOffsets]:
        """Return the offsets of the groups of a vhost that have any. Read only."""
        return self._tables.get(vhost_id, {})

    def of_group(self, vhost_id: str, group: str) -> Mapping[tuple[str, int], CommittedOffset]:
        """Return the offsets of a group. Read only."""
        return self._tables.get(vhost_id, {}).get(group, {})

    def vhost_ids(self) -> list[str]:
        return list(self._tables)

    def has_room(self, vhost_id: str, size_bytes: int) -> bool:
        """Return whether the vhost may have so many bytes more."""
        return self._sizes.get(vhost_id, 0) + size_bytes <= VHOST_BYTES_MAX

    # -- changes

    def change(self, changes: Sequence[tuple[OffsetKey, CommittedOffset | None]], done: Callable[[bool], None]) -> None:
        """Commit offsets, or remove them (None).

        `done(True)` is called when the changes are synced and visible; `done(False)` if they could not be written. Then
        none of them is visible, and after a crash some may be.
        """
        encoded = [(encode_key(key), None if value is None else encode_value(value)) for key, value in changes]
        self.append(encoded, partial(self._changed, changes, done))

    def append(self, records: Sequence[tuple[bytes, bytes | None]], done: Callable[[bool], None]) -> None:
        """Append records with key and value, None to remove the key. `done` is called as in `change`."""
        store = self._store
        if not records:
            done(True)
            return
        assert self.is_loaded and store is not None
        try:
            for key, value in records:
                route = RecordRoute(b"", key)
                if value is None:
                    offset = store.append_tombstone(route, _NO_PROPERTIES)
                else:
                    offset = store.append_parts(route, _NO_PROPERTIES, value, True)
        except (LogFailed, OSError) as error:
            self._on_refused(error)
            done(False)
            return
        self._turn.schedule()
        store.when_safe(offset, partial(self._appended, done))

    def _appended(self, done: Callable[[bool], None], safe: bool) -> None:
        if not safe:
            self._on_refused(OSError("the write or its sync failed"))
        done(safe)
        self._turn.schedule()

    def _changed(
        self,
        changes: Sequence[tuple[OffsetKey, CommittedOffset | None]],
        done: Callable[[bool], None],
        safe: bool,
    ) -> None:
        if safe:
            for key, value in changes:
                self._set(key, value)
        done(safe)

    def _on_refused(self, error: Exception) -> None:
        log.error("offsets of Kafka's groups cannot be written: %s", error)

    def _set(self, key: OffsetKey, value: CommittedOffset | None) -> None:
        groups = self._tables.setdefault(key.vhost_id, {})
        offsets = groups.setdefault(key.group, {})
        place = (key.topic, key.partition)
        old = offsets.pop(place, None)
        size = self._sizes.get(key.vhost_id, 0)
        if old is not None:
            size -= old.size_bytes
        if value is not None:
            offsets[place] = value
            size += value.size_bytes
        self._sizes[key.vhost_id] = size
        if not offsets:
            del groups[key.group]
            if not groups:
                del self._tables[key.vhost_id]
                del self._sizes[key.vhost_id]

    def remove_later(self, keys: Iterable[OffsetKey]) -> None:
        """Remove offsets for which no client waits, some in each turn. Until then they are visible."""
        self._removals.extend(keys)
        if self._removals and not self._is_removing:
            self._is_removing = True
            self._call_soon(self._remove_some)

    def _remove_some(self) -> None:
        if self._is_stopped or not self._removals:
            self._is_removing = False
            return
        changes: list[tuple[OffsetKey, None]] = []
        while self._removals and len(changes) < REMOVALS_PER_TURN:
            key = self._removals.popleft()
            if (key.topic, key.partition) in self.of_group(key.vhost_id, key.group):
                changes.append((key, None))
        self.change(changes, self._removed)

    def _removed(self, safe: bool) -> None:
        if safe:
            self._call_soon(self._remove_some)
        else:  # the next start or sweep removes them
            self._removals.clear()
            self._is_removing = False

    def keys_of(self, vhost_id: str, group: str | None = None) -> list[OffsetKey]:
        """Return the keys of all offsets of a vhost, or of one group."""
        groups = self.groups(vhost_id)
        names = list(groups) if group is None else [group] if group in groups else []
        return [OffsetKey(vhost_id, name, *place) for name in names for place in groups[name]]

    def stop(self) -> None:
        """Read and remove nothing more: the broker stops. Commits are still synced and answered."""
        self._is_stopped = True
