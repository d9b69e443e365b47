"""What the readers of one stream read: slices of its log, decoded, as the messages that consumers get.

A reader asks for the slice that has its offset. Where another one has just read there, it gets the same slice, and so
the same messages: readers that are near each other cost one reading. Where none has, a cursor that stands there reads
on, or another one looks the place up. What is kept is bounded: the slices of late by `bytes_max` of the stream's
window, cursors (each has a chunk of 256 KiB) by CURSORS_MAX; slices are the smaller the more readers there are.

Nothing above the high watermark is read, and nothing waits for the disk here.

A message is delivered with the header `x-stream-offset`, behind the headers it has. Its offset is the only thing that
differs between two messages alike, so what stands before and behind it is made once for all that are (`Dresser`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from librt.strings import BytesWriter, write_i64_be
from mypy_extensions import i64

from amqpd.broker.message import FRAME_PAYLOAD_BYTES, Envelope, FromLog, Message, begun, make_message, write_begun
from amqpd.broker.queues.stream_filter import RecordView
from amqpd.protocol.codec import Long, encode_entry
from amqpd.protocol.frames import PROPERTIES_START
from amqpd.protocol.properties import headers_place, with_entries, with_headers
from amqpd.storage.log.record import Record
from amqpd.storage.queue_log import Cursor, QueueLog

# What fits the processor's nearer caches, with what is made of it.
SLICE_BYTES_MAX: Final = 64 * 1024
SLICE_BYTES_MIN: Final = 32 * 1024
SLICES_MAX: Final = 8
CURSORS_MAX: Final = 16
OFFSET_HEADER: Final = "x-stream-offset"
_NAME: Final = OFFSET_HEADER.encode()
_ENTRY: Final = encode_entry(OFFSET_HEADER, Long(0))
_NONE: Final = b"no bytes of a record"  # by identity


@final
class Dresser:
    """Makes messages of what a stream's log gives back: see the module."""

    def __init__(self, from_log: FromLog) -> None:
        self._from_log = from_log
        self._out = BytesWriter()
        # Of the record before.
        self._exchange: bytes = _NONE
        self._routing_key: bytes = _NONE
        self._properties: bytes = _NONE
        self._size: i64 = -1
        self._envelope: Envelope | None = None
        # The header frame up to the offset; from behind it to the end of the head of the body's frame.
        self._before: bytes = _NONE
        self._behind: bytes = _NONE

    def message(self, record: Record) -> Message:
        """Cost: some 100 ns where it is like the record before; the body stays where it is."""
        size: i64 = len(record.body)
        if record.routing_key is not self._routing_key or record.exchange is not self._exchange:
            self._envelope = self._from_log.envelope(record.exchange, record.routing_key)
            self._exchange = record.exchange
            self._routing_key = record.routing_key
        envelope = self._envelope
        assert envelope is not None  # made above
        if size == 0 or size > FRAME_PAYLOAD_BYTES:
            properties = with_headers(record.properties, {OFFSET_HEADER: Long(record.offset)})
            return make_message(envelope, properties, record.body, True, None)
        if record.properties is not self._properties or size != self._size:
            self._prepare(record.properties, size)
        out = self._out
        out.truncate(0)
        out.write(self._before)
        write_i64_be(out, record.offset)
        out.write(self._behind)
        return begun(envelope, out.getvalue(), record.body, size)

    def _prepare(self, properties: bytes, size: i64) -> None:
        """Cost: under 1 us; 5 where a publisher has set the header himself."""
        if _NAME in properties:
            dressed = with_headers(properties, {OFFSET_HEADER: Long(-1)})
            other = with_headers(properties, {OFFSET_HEADER: Long(0)})
            at = first_difference(dressed, other)
        else:
            dressed = with_entries(properties, _ENTRY)
            _, stop = headers_place(dressed, 0, len(dressed))
            at = stop - 8
        out = self._out
        out.truncate(0)
        write_begun(out, dressed, size)
        whole = out.getvalue()
        at += PROPERTIES_START
        self._before = whole[:at]
        self._behind = whole[at + 8 :]
        self._properties = properties
        self._size = size


def first_difference(one: bytes, other: bytes) -> i64:
    """Where two texts of one length begin to differ."""
    at: i64 = 0
    while one[at] == other[at]:
        at += 1
    return at


@final
class Slice:
    """Some records that follow each other. start: whoever looks for this offset or a later one below next_offset finds
    it here. shared: several readers have asked for it, and what one has made of a record is kept in `messages`, at the
    same place. (A message that nobody keeps is where the one before it was: it costs half.)
    """

    def __init__(self, start: i64, records: list[Record], next_offset: i64) -> None:
        self.start: Final[i64] = start
        self.next_offset: Final[i64] = next_offset
        self.records: Final[list[Record]] = records
        self.messages: Final[list[Message | None]] = [None] * len(records)
        self.count: Final[i64] = len(records)
        self.shared = False
        # What filters look at, at the same places; empty until one does.
        self._views: list[RecordView | None] = []

    def view(self, index: i64) -> RecordView:
        """The record there as filters see it: one with the record before where they have the same properties."""
        if not self._views:
            self._views = [None] * len(self.records)
        view = self._views[index]
        if view is None:
            record = self.records[index]
            if index > 0:
                view = self._views[index - 1]
            if view is None or not view.serves(record):
                view = RecordView(record)
            self._views[index] = view
        return view

    def index_of(self, offset: i64) -> i64:
        """The first record of this offset or a later one. Cost: a bisection."""
        low: i64 = 0
        high: i64 = self.count
        while low < high:
            middle = (low + high) // 2
            if self.records[middle].offset < offset:
                low = middle + 1
            else:
                high = middle
        return low


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
                piece.shared = True
                return piece, None
        if offset >= log.high_watermark:
            if held is not None:
                self.give_back(held)
            return None, None
        place = held if held is not None else self._place(log, offset)
        try:
            fetch = place.cursor.read_safe(offset, self._slice_bytes(bytes_max), reader)
        except OSError:
            if held is None:
                self.give_back(place)
            raise
        place.next_offset = fetch.next_offset
        if not fetch.records and fetch.waiting:
            return None, place
        self._idle.append(place)
        if not fetch.records and fetch.next_offset <= offset:
            return None, None  # what is safe ends with offsets that are not there any more
        piece = Slice(offset, fetch.records, fetch.next_offset)
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
        """Nobody waits at it any more."""
        if len(self._idle) < CURSORS_MAX:
            self._idle.append(place)
        else:
            place.cursor.close()

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
