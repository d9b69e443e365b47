"""The place of one filter (x-filter) in a queue: how far its selector has looked, and what it has found.

All consumers with equal selectors share one. What is ready below `position` was looked at and is not wanted: it is
counted (`refused_count`) and not remembered, as it stays where it is. What came back (was requeued) is looked at once
more, wherever it lies: `again`. What is in the log alone is read from a place of the filter's own (log_reader.py).
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop
from typing import final

from mypy_extensions import i64, mypyc_attr

from amqpd.broker.consumer import Entry, RoundRobin
from amqpd.broker.message import Envelope, Message
from amqpd.broker.queue.log_reader import LogPlace
from amqpd.routing.selector import Selector
from amqpd.storage.log.record import Record

_ENOUGH: i64 = 64


@mypyc_attr(allow_interpreted_subclasses=True)
class Judge:
    """Who wants a message or does not, where that takes more than a selector (scan.py)."""

    def wants(self, message: Message) -> bool:
        """Asked once for each message, in the order of the queue. Keeps nothing of it."""
        raise NotImplementedError


@final
class FilterCursor:
    """Of one selector. bit: stands for it in `FilteredOrder.back`. robin: those of its consumers that may be served.

    matched_offset: the message there is known to match, or -1. matched_back: the one that came back and does.
    behind: the slice was over before it came to the end. refused_count: ready messages that do not match. judge: asked
    in the selector's place, where there is one; arrived: called in the queue's place when the disk has answered. place:
    where it reads the log.
    """

    def __init__(self, selector: Selector, bit: int) -> None:
        self.selector = selector
        self.bit = bit
        self.robin = RoundRobin()
        self.position: i64 = 0
        self.refused_count: i64 = 0
        self.matched_offset: i64 = -1
        self.matched_back: Entry | None = None
        # The record that was found to match last, and the message it is.
        self._matched_record: Record | None = None
        self._matched_message: Message | None = None
        self.again: list[Entry] = []
        self.behind = False
        # Of which properties, before a body from the log, and of which route it was asked last, and what it said.
        self.asked_content: bytes = b""
        self.asked_envelope: Envelope | None = None
        self.answer = False
        self.judge: Judge | None = None
        self.arrived: Callable[[], None] | None = None
        self.place = LogPlace()

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
        self.place.forget()
        self._matched_record = None
        self._matched_message = None

    def matches(self, record: Record, message: Message) -> None:
        """It stands at a record of the log that matches."""
        self.position = record.offset
        self.matched_offset = record.offset
        self._matched_record = record
        self._matched_message = message

    def message_of(self, record: Record) -> Message | None:
        """The message of a record that `matches` was told of last; None: it is another one. Forgotten then."""
        message = self._matched_message if record is self._matched_record else None
        self._matched_record = None
        self._matched_message = None
        return message


def free_bit(cursors: list[FilterCursor]) -> int:
    """The lowest bit that stands for none of them."""
    used = 0
    for cursor in cursors:
        used |= cursor.bit
    return ~used & (used + 1)
