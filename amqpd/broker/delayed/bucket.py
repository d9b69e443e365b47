"""A bucket of the wheel: messages that are due within one stretch of time, in a log of their own.

    level    0         1        2       3        4
    width    8.2 s     4.4 min  2.3 h   3.1 d    99 d       32 times the one before

A message goes to the lowest level where its bucket is less than REACH buckets away: what is due within five minutes to
level 0, within three hours to level 1. Before a bucket of level 1 or above begins, LEAD widths of the level below, its
messages go down (cascade.py); by then whatever comes for the same time goes to the level below at once. A bucket of
level 0 is loaded one width before it begins: the places of its messages, by their millisecond, 8 bytes each. So a
message is written once or twice as a rule, five times in ten years, as far as the last level reaches, and memory holds
the places of the next 16 seconds.

The directory of a bucket's log is called `level.position.nonce.parent`: its place in time, eight random digits of its
own, and those of the bucket whose messages it took over (`-`: none). Two logs may have the same place in time: those of
an earlier life of the broker take nothing more, and those that take over what another one had, nothing else.
"""

from __future__ import annotations

import secrets
from typing import Final, NamedTuple, final

from mypy_extensions import i64

from amqpd.storage.log.record import Record
from amqpd.storage.queue_log import Cursor, QueueLog

LEVEL_COUNT: Final = 5
REACH: Final = 40
LEAD: Final = 8
# A piece that is read at once.
READ_BYTES: Final = 64 * 1024
_NO_RECORDS: Final[list[Record]] = []  # never written to


class Place(NamedTuple):
    """Which bucket: its stretch of time begins `position` widths after 1970."""

    level: int
    position: int


def shift(level: i64) -> i64:
    """The width of a level's buckets is 2 to the power of this, in milliseconds."""
    return 13 + 5 * level


def place_of(due_ms: i64, now_ms: i64, level_max: i64) -> Place:
    """Where a message belongs that is due then. What is over belongs to now. level_max: 0 to 4."""
    if due_ms < now_ms:
        due_ms = now_ms
    level: i64 = 0
    while level < level_max and (due_ms >> shift(level)) - (now_ms >> shift(level)) >= REACH:
        level += 1
    return Place(level, due_ms >> shift(level))


def place_below(due_ms: i64, now_ms: i64, level: i64) -> Place:
    """Where a message goes down to from a bucket of this level, 1 or above. What is over keeps its place in time, so
    that a backlog comes out in its order, and of a bucket at most 32 others become.
    """
    if due_ms < now_ms:
        return Place(level - 1, due_ms >> shift(level - 1))
    return place_of(due_ms, now_ms, level - 1)


class Named(NamedTuple):
    """What the name of a bucket's directory says."""

    place: Place
    nonce: str
    parent: str


def new_name(place: Place, parent: str) -> str:
    """Of a directory. parent: the nonce of the bucket whose messages it is to take over; "" for none."""
    return f"{place.level}.{place.position}.{secrets.token_hex(4)}.{parent or '-'}"


def parse_name(name: str) -> Named | None:
    """None: that is no bucket."""
    parts = name.split(".")
    if len(parts) != 4 or not (parts[0].isdecimal() and parts[1].isdecimal()):
        return None
    level, position = int(parts[0]), int(parts[1])
    if level >= LEVEL_COUNT or position >= 1 << 50:
        return None
    return Named(Place(level, position), parts[2], "" if parts[3] == "-" else parts[3])


@final
class Bucket:
    """taking: it takes messages. active: its messages count, are released and go down; else it is about to take over
    another one's. opened: its log is ready. loaded: its messages have their places in the wheel's slots.

    pending: places in the slots. out: offsets that are on their way to their queues, and bytes of their bodies.
    again: some of what it has may have been released already, before a crash.
    """

    def __init__(self, place: Place, name: str, chain: list[str], store: QueueLog, opened: bool) -> None:
        level: i64 = place.level
        self.place = place
        self.level = level
        self.chain = chain
        self.nonce = name.split(".")[2]
        self.store = store
        self.start_ms: i64 = place.position << shift(level)
        self.end_ms: i64 = (place.position + 1) << shift(level)
        # When it is loaded, or its messages go down.
        self.work_ms: i64 = self.start_ms - (1 << shift(0) if level == 0 else LEAD << shift(level - 1))
        self.taking = False
        self.active = True
        self.opened = opened
        self.loaded = False
        # Loading and going down: up to where.
        self.job_offset: i64 = 0
        self.job_end: i64 = -1
        # It has nothing to do until somebody calls.
        self.waiting = False
        self.gone = False
        self.again = False
        self.pending: i64 = 0
        self.out: dict[int, i64] = {}
        self.number: i64 = -1
        self._cursor: Cursor | None = None
        self._window: list[Record] = _NO_RECORDS
        self._window_at: i64 = 0

    @property
    def count(self) -> i64:
        return self.store.record_count if self.opened else 0

    def cursor(self) -> Cursor:
        cursor = self._cursor
        if cursor is None:
            cursor = self.store.new_cursor()
            self._cursor = cursor
        return cursor

    def rest(self) -> None:
        """It is not read for now: what its reader holds is given back."""
        self.forget_window()
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None

    def forget_window(self) -> None:
        """Something in it has been settled."""
        self._window = _NO_RECORDS
        self._window_at = 0

    def record(self, offset: i64, ahead: bool) -> Record | None:
        """The message at this offset; None: it is settled, or could not be read. ahead: those behind it come next.

        Raises: OSError. Cost: 0.3 us where it goes on, some 10 us else.
        """
        window = self._window
        count: i64 = len(window)
        while self._window_at < count:
            record = window[self._window_at]
            if record.offset > offset:
                break
            self._window_at += 1
            if record.offset == offset:
                return record
        fetch = self.cursor().read(offset, READ_BYTES if ahead else 1)
        self._window = fetch.records
        self._window_at = 0
        if fetch.records and fetch.records[0].offset == offset:
            self._window_at = 1
            return fetch.records[0]
        return None
