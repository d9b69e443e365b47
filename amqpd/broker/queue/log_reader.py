"""A place in a queue's log from which somebody reads on, a piece at a time, without ever waiting for the disk.

What was read and not looked at yet is held (`record`), so that whoever has to stop in the middle of a piece goes on
there. It holds one piece and a cursor's bytes at most, and nothing after `rest`.

Compiled by mypyc.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from mypy_extensions import i64

from amqpd.storage.log.record import Record
from amqpd.storage.queue_log import Cursor, QueueLog

# What is read without waiting for the disk: what is live, that of it which is below the high watermark, or what is
# settled and still there.
LIVE: Final = 0
SAFE: Final = 1
SETTLED: Final = 2


@final
class QueueLogReader:
    """One reader's. kind: LIVE, SAFE or SETTLED. log: which was read last. read_offset: where the next piece begins."""

    def __init__(self, kind: i64 = LIVE) -> None:
        self.kind: Final = kind
        self.log: QueueLog | None = None
        self.read_offset: i64 = 0
        self._cursor: Cursor | None = None
        self._records: list[Record] = []
        self._at: i64 = 0
        self._begin: i64 = 0

    def record(self, offset: i64) -> Record | None:
        """The first that was read and is not below `offset`; it stays."""
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
        """The next to be looked at is at `offset` or behind it. What is held is kept, if it goes on from there."""
        if offset < self._begin or offset >= self.read_offset:
            self._records = []
        self._at = 0

    def read(self, log: QueueLog, offset: i64, size_bytes: i64, arrived: Callable[[], None] | None) -> bool:
        """Reads the next piece, from `offset` at the earliest. False: the disk is asked, and `arrived` is called when
        it has answered. Nothing is read where the log has no more. arrived None: waits for the disk, for what is live.
        Raises: OSError.
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
        """`read`, from where the last piece has ended if that is behind `offset`."""
        if self.log is log and self.read_offset > offset:
            offset = self.read_offset
        return self.read(log, offset, size_bytes, arrived)

    def forget(self) -> None:
        """Whatever was read is to be read again."""
        self._records = []
        self._at = 0
        self._begin = 0
        self.read_offset = 0

    def rest(self) -> None:
        """It has come to the end: the bytes it holds go."""
        self._records = []
        self._at = 0
        if self._cursor is not None:
            self._cursor.release()

    def close(self) -> None:
        """Nobody reads on."""
        self._records = []
        self._at = 0
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None
        self.log = None
