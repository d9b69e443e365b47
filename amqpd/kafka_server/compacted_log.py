"""A compacted log of the Kafka listener, outside the vhosts: all of its content is in memory.

A directory of the data directory. The last record of a key counts, and a record without a value removes it; compaction
(storage/compaction.py) drops the others. Subclasses encode keys and values and keep the content.

A change becomes visible when it is synced, so no client sees what a crash could take back. If the log refuses
everything after a failed sync, changes fail until the next start, and the content stays readable. The log is read in
slices of the event loop. A change with many records is encoded in slices, too, and then appended as a whole; changes
that come meanwhile wait for it.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from amqpd.storage.log.prepared import PreparedTransaction
from amqpd.storage.log.record import Record, RecordRoute
from amqpd.storage.queue_log import LogFailed, LogUnusable
from amqpd.storage.retention_policy import CleanerPolicy, RetentionPolicy

if TYPE_CHECKING:
    from amqpd.broker.flow.loop_turn import LoopTurn
    from amqpd.storage.local_log import LocalLog
    from amqpd.storage.queue_log import Cursor
    from amqpd.storage.storage import Storage

log = logging.getLogger(__name__)

SEGMENT_BYTES: Final = 16 << 20
SEGMENT_AGE_MS: Final = 24 * 3_600_000
SLICE_BYTES: Final = 64 * 1024
RETRY_MS: Final = 5000
RECORDS_AT_ONCE: Final = 200
"""Records of a change that are encoded in one slice, at some 5 us each."""

_NO_PROPERTIES: Final = b"\0\0"


@dataclass(frozen=True)
class LogHost:
    """Services of the broker for a compacted log.

    Attributes:
        later: calls a function when there is time for a slice.
        now_ms: returns monotonic milliseconds.
    """

    storage: Storage
    turn: LoopTurn
    call_soon: Callable[[Callable[[], None]], object]
    later: Callable[[Callable[[], None]], object]
    now_ms: Callable[[], int]


LogRecord = tuple[bytes, bytes | None]
"""Key and value; None removes the key."""


def ignore_result(_safe: bool) -> None:
    """Ignore the result of a write: a later write, sweep or start does it again."""


_INT16: Final = struct.Struct(">H")


def encode_text(text: str) -> bytes:
    """Return a text in a key or value: a length of 2 bytes and UTF-8."""
    data = text.encode("utf-8", "surrogatepass")
    return _INT16.pack(len(data)) + data


def decode_text(data: bytes, position: int) -> tuple[str, int]:
    """Return a text and the position after it. Raises: ValueError, struct.error: the data are damaged."""
    end = position + 2 + _INT16.unpack_from(data, position)[0]
    if end > len(data):
        raise ValueError("a text that ends early")
    return data[position + 2 : end].decode("utf-8", "surrogatepass"), end


class _Change:
    """A change that waits, because it, or one before it, has many records.

    Attributes:
        records: not encoded yet.
        done: see `CompactedLog.append`.
    """

    def __init__(self, count: int, records: Iterator[LogRecord], done: Callable[[bool], None]) -> None:
        self.count = count
        self.records = records
        self.done = done
        self.prepared = PreparedTransaction()

    def prepare_some(self) -> bool:
        """Encode some records. Return whether all are encoded."""
        prepared = self.prepared
        for _, (key, value) in zip(range(RECORDS_AT_ONCE), self.records, strict=False):
            if value is None:
                prepared.append_tombstone(RecordRoute(b"", key), _NO_PROPERTIES)
            else:
                data = _NO_PROPERTIES + value
                prepared.append(RecordRoute(b"", key), data, 0, 2, 2, len(data), True)
        return prepared.count == self.count


class CompactedLog:
    """The log. Loop thread only.

    Args:
        loaded: called once the log is read.

    Attributes:
        directory: set by each subclass: its name in the data directory.
        queue_id: set by each subclass: in the log's queue.json; no random id may be equal to it.
        content: set by each subclass: what it has, for the broker's log.
        is_loaded: before, nothing may be asked or changed.
        has_failed: the log could not be opened or read; `load` tries again, at most every RETRY_MS.
        is_stopped: the broker stops.
    """

    directory: ClassVar[str]
    queue_id: ClassVar[str]
    content: ClassVar[str]

    def __init__(self, host: LogHost, loaded: Callable[[], None]) -> None:
        self.is_loaded = False
        self.has_failed = False
        self.is_stopped = False
        self.call_soon = host.call_soon
        self._storage = host.storage
        self._turn = host.turn
        self._later = host.later
        self._now_ms = host.now_ms
        self._loaded = loaded
        self._store: LocalLog | None = None
        self._cursor: Cursor | None = None
        self._position = self._end = 0
        self._is_loading = False
        self._retry_ms = 0
        self._open_changes = 0  # neither synced nor failed
        self._last_offset = -1  # of the last record that was appended
        self._changes: deque[_Change] = deque()  # not appended yet

    # -- for subclasses

    def clear(self) -> None:
        """Forget the content: the log is read from its start."""
        raise NotImplementedError

    def take(self, key: bytes, value: bytes | None) -> bool:
        """Apply a record that was read, None for a removal. Return False if its version is unknown."""
        raise NotImplementedError

    # -- reading the log

    def load(self) -> bool:
        """Begin to read the log, if that has not begun, or has failed some time ago. Return whether it is read."""
        is_early = self.has_failed and self._now_ms() < self._retry_ms
        if not (self.is_loaded or self._is_loading or self.is_stopped or is_early):
            self._is_loading = True
            self._open()
        return self.is_loaded

    def _open(self) -> None:
        if self.is_stopped:
            return
        try:
            if self._store is None:
                self._store = self._storage.open_system_queue(self.directory, self.queue_id, self.directory, "", b"")
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
        self.clear()
        self._cursor = self._store.new_cursor()
        self._position, self._end = 0, end
        self._read()

    def _read(self) -> None:
        """Read one slice, and the next one in another turn."""
        cursor = self._cursor
        if self.is_stopped or cursor is None:
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
            self.call_soon(self._read)
            return
        cursor.close()
        self._cursor = None
        self.is_loaded, self.has_failed, self._is_loading = True, False, False
        self._loaded()

    def _take(self, record: Record) -> None:
        if not self.take(record.routing_key, None if record.tombstone else record.body):
            log.warning("%s: the record at offset %d is not read: an unknown version", self.directory, record.offset)

    def _on_failed(self, error: Exception) -> None:
        log.error("the %s cannot be read: %s", self.content, error)
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None
        self.has_failed, self._is_loading = True, False
        self._retry_ms = self._now_ms() + RETRY_MS

    # -- changes

    def append(self, count: int, records: Iterable[LogRecord], done: Callable[[bool], None]) -> None:
        """Append keys with values, or with None to remove them.

        `done(True)` is called when all are synced; `done(False)` if they could not be written. After a crash the log
        has all of them or none.

        Args:
            count: the number of records.
            records: made one by one, maybe later.
        """
        if not count:
            done(True)
            return
        assert self.is_loaded
        self._open_changes += 1
        if count <= RECORDS_AT_ONCE and not self._changes:
            self._append(count, records, done)
            return
        self._changes.append(_Change(count, iter(records), done))
        if len(self._changes) == 1:
            self._later(self._prepare)

    def _append(self, count: int, records: Iterable[LogRecord], done: Callable[[bool], None]) -> None:
        store = self._store
        assert store is not None
        encoded = list(records)  # before the log's transaction begins: it must end
        try:
            if count > 1:
                store.begin_transaction()
            for key, value in encoded:
                route = RecordRoute(b"", key)
                if value is None:
                    offset = store.append_tombstone(route, _NO_PROPERTIES)
                else:
                    offset = store.append_parts(route, _NO_PROPERTIES, value, True)
            if count > 1:
                store.end_transaction()
        except (LogFailed, OSError) as error:
            self._end_change(done, error)
            return
        self._wait(offset, done)

    def _prepare(self) -> None:
        """Encode some records of the first change that waits, and append it when all are."""
        if self.is_stopped:
            return
        change = self._changes.popleft()
        try:
            if change.count <= RECORDS_AT_ONCE:
                self._append(change.count, change.records, change.done)
            elif change.prepare_some():
                self._append_prepared(change)
            else:
                self._changes.appendleft(change)
        finally:
            if self._changes:
                self._later(self._prepare)

    def _append_prepared(self, change: _Change) -> None:
        store = self._store
        assert store is not None
        change.prepared.close()
        try:
            first = store.append_prepared(change.prepared)
        except (LogFailed, OSError) as error:
            self._end_change(change.done, error)
            return
        self._wait(first + change.count - 1, change.done)

    def _wait(self, offset: int, done: Callable[[bool], None]) -> None:
        """Wait for a record. The marker after it does not tell whether it was written."""
        assert self._store is not None
        self._last_offset = offset
        self._turn.schedule()
        self._store.when_safe(offset, partial(self._appended, done))

    def _appended(self, done: Callable[[bool], None], safe: bool) -> None:
        self._end_change(done, None if safe else OSError("the write or its sync failed"))
        self._turn.schedule()

    def _end_change(self, done: Callable[[bool], None], error: Exception | None) -> None:
        if error is not None:
            log.error("the %s cannot be changed: %s", self.content, error)
        self._open_changes -= 1
        done(error is None)

    def after_changes(self, call: Callable[[], None]) -> None:
        """Call the function when all changes so far are visible or have failed: at once if there are none."""
        store = self._store
        if self._changes:
            self._changes[-1].done = _both(self._changes[-1].done, call)
        elif self._open_changes == 0 or store is None:
            call()
        else:
            store.when_safe(self._last_offset, lambda _safe: call())

    def stop(self) -> None:
        """Read and append nothing more: the broker stops. Changes that are appended are still synced and answered."""
        self.is_stopped = True
        self._changes.clear()  # their clients are disconnected, and the log is closed before their turn


def _both(done: Callable[[bool], None], call: Callable[[], None]) -> Callable[[bool], None]:
    """Return a function that calls `done`, then `call`."""

    def both(safe: bool) -> None:
        done(safe)
        call()

    return both
