"""What the readers of one stream read: slices of its log, checked, with the places of the records in them.

A reader asks for the slice that has its offset. Where another one has just read there, it gets the same slice: readers
that are near each other cost one reading. Where none has, a cursor that stands there reads
on, or another one looks the place up. What is kept is bounded: the slices of late by `bytes_max` of the stream's
window, cursors (each has a chunk of 256 KiB at most) by CURSORS_MAX; slices are the smaller the more readers there are,
and hold the batches that their records stand in (of 64 KiB; of larger ones the bodies alone).

Nothing above the high watermark is read, and nothing waits for the disk here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.message import FromLog
from amqpd.broker.queue.stream_filter import RecordView
from amqpd.broker.stream_message import Dresser
from amqpd.storage.log.places import Places
from amqpd.storage.queue_log import Cursor, QueueLog

# What fits the processor's nearer caches, with what is made of it.
SLICE_BYTES_MAX: Final = 64 * 1024
SLICE_BYTES_MIN: Final = 32 * 1024
SLICES_MAX: Final = 8
CURSORS_MAX: Final = 16


@final
class Slice:
    """Some records that follow each other. start: whoever looks for this offset or a later one below next_offset finds
    it here.
    """

    def __init__(self, start: i64, places: Places) -> None:
        self.start: Final[i64] = start
        self.next_offset: Final[i64] = places.next_offset
        self.places: Final[Places] = places
        self.count: Final[i64] = places.count
        # What filters look at: of each of `places.alikes`; empty until one does.
        self._views: list[RecordView | None] = []

    def view(self, index: i64) -> RecordView:
        """The record there as filters see it: one with the record before where they have the same properties."""
        number = self.places.alike_number(index)
        if not self._views:
            self._views = [None] * len(self.places.alikes)
        view = self._views[number]
        if view is None:
            alike = self.places.alikes[number]
            if number > 0:
                view = self._views[number - 1]
            if view is None or not view.serves(alike):
                view = RecordView(alike)
            self._views[number] = view
        return view


@final
class Place:
    """A cursor, and where it stands."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor: Final[Cursor] = cursor
        self.next_offset: i64 = -1


@final
class Slices:
    """Of one stream. readers_count: how many read, which the slices' size follows. bytes_max: set by the stream's
    window; less than FULL where many logs share the memory, and then a cursor at the end keeps nothing.
    """

    def __init__(self, from_log: FromLog) -> None:
        self.dresser: Final = Dresser(from_log)
        self.readers_count: i64 = 0
        self._recent: list[Slice] = []
        self._idle: list[Place] = []

    def at(
        self, log: QueueLog, offset: i64, bytes_max: i64, reader: Callable[[], None], held: Place | None
    ) -> tuple[Slice | None, Place | None]:
        """(the slice with what comes at `offset`, None), (None, the place that waits for the disk), or (None, None) at
        the high watermark. reader: called on the loop when the disk has answered; the place is given as `held` then.

        Raises: OSError.
        """
        for piece in self._recent:
            if piece.start <= offset < piece.next_offset:
                if held is not None:
                    self.give_back(held)
                return piece, None
        if offset >= log.high_watermark:
            if held is not None:
                self.give_back(held)
            return None, None
        place = held if held is not None else self._place(log, offset)
        try:
            places = place.cursor.places_safe(offset, self._slice_bytes(bytes_max), reader)
        except OSError:
            if held is None:
                self.give_back(place)
            raise
        place.next_offset = places.next_offset
        if places.count == 0 and places.waiting:
            return None, place
        self.give_back(place)
        if places.count == 0 and places.next_offset <= offset:
            return None, None  # what is safe ends with offsets that are not there any more
        piece = Slice(offset, places)
        recent = self._recent
        recent.insert(0, piece)
        if len(recent) > SLICES_MAX or len(recent) * self._slice_bytes(bytes_max) > bytes_max:
            recent.pop()
        return piece, None

    def _slice_bytes(self, bytes_max: i64) -> i64:
        size = bytes_max // (2 * (self.readers_count + 1))
        if size > SLICE_BYTES_MAX:
            return SLICE_BYTES_MAX
        return size if size > SLICE_BYTES_MIN else SLICE_BYTES_MIN

    def _place(self, log: QueueLog, offset: i64) -> Place:
        """One that stands there, a new one, or the one that was not asked for longest."""
        idle = self._idle
        index: i64 = 0
        for place in idle:
            if place.next_offset == offset:
                del idle[index]
                return place
            index += 1
        if index < CURSORS_MAX and index < self.readers_count:
            return Place(log.new_cursor())
        return idle.pop(0) if idle else Place(log.new_cursor())

    def give_back(self, place: Place) -> None:
        """Nobody waits at it any more. One that nobody has asked for longest may go for it."""
        if len(self._idle) >= CURSORS_MAX:
            self._idle.pop(0).cursor.close()
        self._idle.append(place)

    def rest(self) -> None:
        """Nobody reads just now, and memory is short: no bytes are kept."""
        for place in self._idle:
            place.cursor.release()
        self._recent.clear()

    def forget(self) -> None:
        """What was read may not be there any more."""
        self._recent.clear()

    def close(self) -> None:
        """Nobody reads any more."""
        for place in self._idle:
            place.cursor.close()
        self._idle.clear()
        self._recent.clear()
