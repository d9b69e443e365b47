"""The place of one filter (x-filter) in a queue: how far its selector has looked, and what it has found.

All consumers with equal selectors share one. What is ready below `position` was looked at and is not wanted: it is
counted (`refused_count`) and not remembered, as it stays where it is. What came back (was requeued) is looked at once
more, wherever it lies: `again`. What is in the log alone is read through a cursor of the filter's own, a piece at a
time.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop
from typing import final

from mypy_extensions import i64, mypyc_attr

from amqpd.broker.delivery import Entry, RoundRobin
from amqpd.broker.message import Envelope, Message
from amqpd.routing.selector import Selector
from amqpd.storage.log.record import Record
from amqpd.storage.queue_log import Cursor, QueueLog

_ENOUGH: i64 = 64


@mypyc_attr(allow_interpreted_subclasses=True)
class Judge:
    """Who wants a message or does not, where that takes more than a selector (searching.py)."""

    def wants(self, message: Message) -> bool:
        """Asked once for each message, in the order of the queue. Keeps nothing of it."""
        raise NotImplementedError


@final
class FilterCursor:
    """Of one selector. bit: stands for it in `FilteredOrder.back`. robin: those of its consumers that may be served.

    matched_offset: the message there is known to match, or -1. matched_back: the one that came back and does.
    behind: the slice was over before it came to the end. refused_count: ready messages that do not match. judge: asked
    in the selector's place, where there is one; arrived: called in the queue's place when the disk has answered.
    """

    def __init__(self, selector: Selector, bit: int) -> None:
        self.selector = selector
        self.bit = bit
        self.robin = RoundRobin()
        self.position: i64 = 0
        self.refused_count: i64 = 0
        self.matched_offset: i64 = -1
        self.matched_back: Entry | None = None
        self.again: list[Entry] = []
        self.behind = False
        # Of which properties, before a body from the log, and of which route it was asked last, and what it said.
        self.asked_content: bytes = b""
        self.asked_envelope: Envelope | None = None
        self.answer = False
        self.judge: Judge | None = None
        self.arrived: Callable[[], None] | None = None
        self._log: QueueLog | None = None
        self._cursor: Cursor | None = None
        self._records: list[Record] = []
        self._at: i64 = 0
        self._read_offset: i64 = 0

    def next_again(self, back: dict[Entry, int]) -> Entry | None:
        """The first of what came back and is still to be looked at. back: what is there of it (`FilteredOrder`)."""
        again = self.again
        while again:
            entry = again[0]
            refused_by = back.get(entry, -1)
            if refused_by >= 0 and refused_by & self.bit == 0:
                return entry
            heappop(again)
        return None

    def tidy(self, back: dict[Entry, int]) -> None:
        """What has gone meanwhile is forgotten, before it becomes more than there is."""
        if len(self.again) > 2 * len(back) + _ENOUGH:
            self.again = [entry for entry, refused_by in back.items() if refused_by & self.bit == 0]
            heapify(self.again)

    def begin_anew(self, back: dict[Entry, int]) -> None:
        """It has looked at nothing yet."""
        self.position = 0
        self.refused_count = 0
        self.matched_offset = -1
        self.matched_back = None
        self.again = list(back)
        heapify(self.again)
        self._records = []
        self._at = 0
        self._read_offset = 0

    # -- what the log alone has

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

    def read(self, log: QueueLog, offset: i64, size_bytes: i64, arrived: Callable[[], None]) -> bool:
        """Reads on, from `offset` at the earliest. False: the disk is asked, and `arrived` is called when it has
        answered. Nothing is read where the log has no more. Raises: OSError.
        """
        cursor = self._cursor
        if cursor is None or self._log is not log:
            cursor = log.new_cursor()
            self._cursor = cursor
            self._log = log
            self._read_offset = 0
        if self._read_offset < offset:
            self._read_offset = offset
        if self.arrived is not None:
            arrived = self.arrived
        fetch = cursor.read_at_hand(self._read_offset, size_bytes, arrived)
        self._records = fetch.records
        self._at = 0
        self._read_offset = fetch.next_offset
        return len(fetch.records) > 0 or not fetch.waiting

    def rest(self) -> None:
        """It has come to the end: the bytes it holds go."""
        self._records = []
        self._at = 0
        if self._cursor is not None:
            self._cursor.release()

    def close(self) -> None:
        """Its last consumer has gone."""
        self._records = []
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None
        self._log = None


def free_bit(cursors: list[FilterCursor]) -> int:
    """The lowest bit that stands for none of them."""
    used = 0
    for cursor in cursors:
        used |= cursor.bit
    return ~used & (used + 1)
