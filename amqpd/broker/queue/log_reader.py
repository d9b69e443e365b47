"""Reader of a queue's log from a position of its own, in pieces, without waiting for the disk.

Records that were read and not processed stay in the reader, so a caller that stops in the middle of a piece continues
there. A reader keeps at most one piece and the buffer of a cursor in memory; after `release_memory` it keeps nothing.

Compiled by mypyc.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.queue.services import COLD_READ_BYTES
from amqpd.storage.log.record import Record
from amqpd.storage.queue_log import Cursor, QueueLog

# Kinds of records that a reader returns: unsettled ones; unsettled ones below the high watermark; settled ones that
# the files still have.
LIVE: Final = 0
SAFE: Final = 1
SETTLED: Final = 2


@final
class QueueLogReader:
    """A position in a log, for one user.

    Attributes:
        kind: LIVE, SAFE or SETTLED.
        log: the log that was read last.
        read_offset: where the next piece begins.
        waits: the last `next` met a read of the disk.
        behind: only for SETTLED: the last `next` passed many unsettled records and returned None; call it again.
    """

    def __init__(self, kind: i64 = LIVE) -> None:
        self.kind: Final = kind
        self.log: QueueLog | None = None
        self.read_offset: i64 = 0
        self._cursor: Cursor | None = None
        self._records: list[Record] = []
        self._at: i64 = 0
        self._begin: i64 = 0
        self.waits = False
        self.behind = False
        self._asked: i64 = 0

    def next(self, log: QueueLog, offset: i64, arrived: Callable[[], None]) -> Record | None:
        """Return the first record from `offset` on, for a search. None: no more, or `waits` or `behind` is set.

        Args:
            arrived: called when the disk has delivered.

        Raises:
            OSError: the log cannot be read.

        Cost: Low while offsets ascend; a lower offset reads again.
        """
        if self.log is not log or offset < self._asked:
            self.forget()
        self._asked = offset
        self.waits = False
        record = self.record(offset)
        if record is None:
            before = offset if self.read_offset < offset else self.read_offset
            self.waits = not self.read_on(log, offset, COLD_READ_BYTES, arrived)
            record = self.record(offset)
            self.behind = record is None and self.kind == SETTLED and self.read_offset > before
        return record

    def record(self, offset: i64) -> Record | None:
        """Return the first record in memory at or after `offset`, and keep it."""
        records = self._records
        at = self._at
        size: i64 = len(records)
        while at < size:
            record = records[at]
            if record.offset >= offset:
                self._at = at
                return record
            at += 1
        self._at = at
        return None

    def go_to(self, offset: i64) -> None:
        """Continue at `offset` or later. Records in memory are kept if `offset` is in their range."""
        if offset < self._begin or offset >= self.read_offset:
            self._records = []
        self._at = 0

    def read(self, log: QueueLog, offset: i64, size_bytes: i64, arrived: Callable[[], None] | None) -> bool:
        """Read the next piece, from `offset` at the earliest.

        Args:
            arrived: called when the disk has delivered; None to wait for the disk (only for LIVE).

        Returns: False if the disk is being read. At the end of the log True, with no record.

        Raises:
            OSError: the log cannot be read.
        """
        cursor = self._cursor
        if cursor is None or self.log is not log:
            cursor = log.new_cursor()
            self._cursor = cursor
            self.log = log
        self._records = []
        self._at = 0
        self._begin = offset
        if arrived is None:
            fetch = cursor.read(offset, size_bytes)
        elif self.kind == SETTLED:
            fetch = cursor.read_settled(offset, size_bytes, arrived)
        elif self.kind == SAFE:
            fetch = cursor.read_safe(offset, size_bytes, arrived)
        else:
            fetch = cursor.read_if_cached(offset, size_bytes, arrived)
        self._records = fetch.records
        self.read_offset = fetch.next_offset
        return len(fetch.records) > 0 or not fetch.waiting

    def read_on(self, log: QueueLog, offset: i64, size_bytes: i64, arrived: Callable[[], None]) -> bool:
        """Read from the end of the last piece, or from `offset` if that is later. Returns and raises as `read`."""
        if self.log is log and self.read_offset > offset:
            offset = self.read_offset
        return self.read(log, offset, size_bytes, arrived)

    def forget(self) -> None:
        """Drop all records in memory; they will be read again."""
        self._records = []
        self._at = 0
        self._begin = 0
        self.read_offset = 0

    def release_memory(self) -> None:
        """Release the memory at the end of the log. The position stays."""
        self._records = []
        self._at = 0
        if self._cursor is not None:
            self._cursor.release()

    def close(self) -> None:
        """Release everything: no further reads."""
        self._records = []
        self._at = 0
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None
        self.log = None
