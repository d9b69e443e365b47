"""One consumer's place in a stream: what it gets next, and how far it has acked.

A reader is the source of what it gives out: an ack comes back to it, is credit, and settles nothing. Nothing is ever
given back: what a consumer has not acked it gets again when it, or who goes on under its name, reads there again.

    offset      of the next record to look at
    committed   all below it is acked, in order; known of readers that have a name (x-stream-consumer-name), or stand
                in a line of which one is served (x-single-active-consumer)

What a named reader has committed is stored when the queue is pumped next, once however many acks there were; of two
that read under one name the one that began last is believed.

**Which records a consumer wants** is decided in one place: `StreamReader.deliver` asks `filter` (stream_filter.py).
What is not wanted is passed over; a long way without anything wanted ends with the turn's share, as a delivery would.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import Consumer, Entry, Source
from amqpd.broker.flow.scans import DEAR_PROPERTIES_BYTES
from amqpd.broker.queue.stream_filter import filter_of
from amqpd.broker.queue.stream_slices import Place, Slice, Slices
from amqpd.broker.stream_start import AGO, FIRST, LAST, NEXT, OFFSET, TIME, StreamStart
from amqpd.storage.log.places import Places
from amqpd.storage.queue_log import QueueLog

# How a reader's share of a turn ended: there is more; at the high watermark; the disk is asked; its consumer is full.
MORE: Final = 0
END: Final = 1
DISK: Final = 2
FULL: Final = 3
# What one reader delivers or passes over before it is the next one's turn.
SHARE_COUNT: Final = 256
_FROM_NOW: Final = StreamStart(NEXT)


@final
class Shared:
    """What the readers of one stream share.

    names: who stores what is committed under a name. moved: readers whose committed offset is to be stored. resting:
    those that stand at the high watermark, and go on when it has moved.
    line_offset: where the next of a line of single active consumers goes on; -1: nobody has read yet.
    """

    def __init__(self, slices: Slices) -> None:
        self.slices: Final = slices
        self.names: dict[str, StreamReader] = {}
        self.moved: list[StreamReader] = []
        self.resting: dict[StreamReader, None] = {}
        self.line_offset: i64 = -1


@final
class StreamReader(Source):
    """One consumer's. queue: what is read. stored: the offset that is stored under its name; -1: none."""

    def __init__(self, shared: Shared, queue: Source, log: QueueLog, consumer: Consumer, stored: i64) -> None:
        super().__init__(queue.name, queue.vhost_name)
        self.kind = queue.kind
        self.logged = True  # nothing of a delivery stays in memory
        self.stream = queue
        self.consumer = consumer
        arguments = consumer.arguments
        self.consumer_name = arguments.consumer_name
        self.filter: Final = filter_of(arguments)
        self._passed_over = False  # since its place was last to be stored
        self.stored: i64 = stored
        # Of the next record to look at; -1: it has not begun.
        self.offset: i64 = -1
        self.in_line = queue.round_robin.single_active
        # How many records its last share looked at.
        self.looked_count: i64 = 0
        self._shared = shared
        self._log = log
        # From there on records count that are not older: x-stream-offset as a time.
        self._from_ms: i64 = -1
        self._seeks_last = False
        self._slice: Slice | None = None
        self._index: i64 = 0
        self._place: Place | None = None  # waits for the disk
        # Delivered and not acked, in order; acked before others that are not.
        self._unacked: deque[int] = deque()
        self._acked: set[int] = set()
        self._moved = False
        self._tracks = self.in_line or self.consumer_name != ""
        if self.consumer_name:
            shared.names[self.consumer_name] = self

    # -- where it begins

    def begin(self, now_ms: i64) -> None:
        """Its place is what its consumer asked for (x-stream-offset), as of now; unless it goes on for another one, or
        under its name. now_ms: wall clock.
        """
        log = self._log
        if self.in_line and self._shared.line_offset >= 0:
            self.offset = self._shared.line_offset
            return
        if self.stored >= 0:
            self.offset = min(self.stored, log.next_offset)
            return
        start = self.consumer.arguments.start
        if start is None:
            start = _FROM_NOW
        kind = start.kind
        if kind == FIRST:
            self.offset = 0  # what is gone is passed over
        elif kind == OFFSET:
            self.offset = min(max(start.number, 0), log.next_offset)
        elif kind == TIME and start.number > now_ms:  # rabbit: the same as `next`
            self.offset = log.next_offset
        elif kind in (TIME, AGO):
            self._from_ms = start.number if kind == TIME else now_ms - start.number
            self.offset = log.offset_before(self._from_ms)
        else:
            self._seeks_last = kind == LAST
            self.offset = log.next_offset

    def _seek_last(self) -> bool:
        """Whether the last record batch has been found; else the disk is asked."""
        log = self._log
        place = self._place
        if place is None:
            place = self._place = Place(log.new_cursor())
        offset = place.cursor.last_batch(log.high_watermark, self.log_arrived)
        if offset < 0:
            return False
        self._place = None
        self._shared.slices.give_back(place)
        self._seeks_last = False
        self.offset = offset
        return True

    # -- out

    def deliver(self, bytes_max: i64) -> i64:
        """A share of what comes next, to its consumer, which can take one. bytes_max: of the stream's window.

        Returns MORE, END, DISK or FULL. Raises: OSError.
        """
        self.looked_count = 0
        if self._seeks_last and not self._seek_last():
            return DISK
        consumer = self.consumer
        stream = self.stream
        filter_ = self.filter
        dresser = self._shared.slices.dresser
        while True:
            piece = self._slice
            if piece is None or self._index >= piece.count:
                piece, self._place = self._shared.slices.at(
                    self._log, self.offset, bytes_max, self.log_arrived, self._place
                )
                self._slice = piece
                if piece is None:
                    self.note_passed_over()
                    return END if self._place is None else DISK
                self._index = piece.places.index_of(self.offset)
            places = piece.places
            while self._index < piece.count:
                index = self._index
                left = SHARE_COUNT - self.looked_count
                if left <= 0:
                    self.note_passed_over()
                    return MORE
                if places.timestamp_ms(index) < self._from_ms or (
                    filter_ is not None and not filter_.wants(piece.view(index))
                ):
                    self._pass_over(places, index)
                    continue
                if self.looked_count > 0 and not consumer.can_take():
                    return FULL
                self._from_ms = -1
                # What cannot be delivered is not tried again.
                self._index = index + 1
                self.offset = places.offset(index) + 1
                stop = index + 1
                if self._tracks:
                    self._unacked.append(places.offset(index))
                elif filter_ is None:
                    stop = index + left if index + left < piece.count else piece.count
                stopped = consumer.deliver_places(dresser, places, index, stop, self, self._tracks)
                self.looked_count += stopped - index
                stream.delivered_count += stopped - index
                stream.unacked_count += stopped - index
                self._index = stopped
                self.offset = places.offset(stopped - 1) + 1
            self.offset = piece.next_offset
            if consumer.cancelled:
                return FULL

    def _pass_over(self, places: Places, index: i64) -> None:
        """It is not wanted. Looking at many headers counts for more than one."""
        self._index = index + 1
        self.offset = places.offset(index) + 1
        self._passed_over = True
        size: i64 = len(places.alikes[places.alike_number(index)].properties)
        self.looked_count += 1 + size // DEAR_PROPERTIES_BYTES

    def log_arrived(self) -> None:
        """The disk has answered."""
        if not self.deleted:
            self.stream.activate(self.consumer)

    def pump_later(self) -> None:
        self.stream.pump_later()

    # -- home

    def settle(self, entry: Entry) -> None:
        stream = self.stream
        stream.unacked_count -= 1
        stream.acked_count += 1
        if self._tracks:
            self._acknowledged(entry.offset)

    def settle_times(self, entry: Entry, count: i64) -> None:
        self.stream.unacked_count -= count
        self.stream.acked_count += count
        if self._tracks:  # each has its own, then
            self._acknowledged(entry.offset)

    def reject(self, entry: Entry) -> None:
        """A front end that refuses basic.reject does not come here; for another one it is an ack."""
        self.settle(entry)

    def requeue(self, entry: Entry, counts: bool, failed: bool = True) -> None:
        """Its consumer has gone, or gives it up: it stays where it is, and its offset is not acked."""
        self.stream.unacked_count -= 1

    def _acknowledged(self, offset: i64) -> None:
        unacked = self._unacked
        if not unacked or unacked[0] != offset:
            self._acked.add(offset)
            return
        unacked.popleft()
        acked = self._acked
        while acked and unacked and unacked[0] in acked:
            acked.discard(unacked.popleft())
        if self.consumer_name and not self._moved:
            self._moved = True
            self._shared.moved.append(self)
            self.stream.pump_later()

    def committed(self) -> i64:
        """All below it is acked, or was not wanted; -1 where nobody keeps account of it."""
        if not self._tracks or self.offset < 0:
            return -1
        return self._unacked[0] if self._unacked else self.offset

    def note_passed_over(self) -> None:
        """What it passed over since its last ack is to be stored under its name as acked, not to be looked at again."""
        if self._passed_over and self.consumer_name and not self._moved:
            self._moved = True
            self._shared.moved.append(self)

    def take_moved(self) -> i64:
        """What is to be stored under its name; -1: nothing, another reader has the name by now."""
        self._moved = False
        self._passed_over = False
        owner = self._shared.names.get(self.consumer_name)
        return self.committed() if owner is None or owner is self else -1

    # -- its end

    def end(self) -> None:
        """Its consumer takes nothing more. What it has not answered may still be acked."""
        if self.deleted:
            return
        self.deleted = True
        shared = self._shared
        if self.in_line and self.offset >= 0:
            shared.line_offset = self.committed()
        if self.consumer_name and shared.names.get(self.consumer_name) is self:
            del shared.names[self.consumer_name]
        shared.slices.readers_count -= 1
        shared.resting.pop(self, None)
        self._slice = None
        place = self._place
        if place is not None:  # it is called when the disk has answered, and is of no use to others until then
            place.cursor.close()
            self._place = None
