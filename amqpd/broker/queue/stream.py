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

The order of a stream: every consumer reads the log at its own place, and nothing is taken.

All that is in the log is `ready`, whoever has read it; it leaves by retention alone. So `take` gives nothing out, and
`scan`, with which a pump begins, serves the readers (stream.py) instead: in the queue's round robin each gets a
share, until nobody can take more or the turn's is used up. Who has come to the high watermark rests, and all who do go
on together when it has moved; who waits for the disk goes on when that has answered. Whose filter has looked at a share
and found no end stands in line with all that search (broker/flow/loop_turn.py), and leaves the others their turns.

What a consumer is shown is safe: below the high watermark, so it is never taken back by a crash.

It knows its queue, from the first consumer until `clear`.

What the readers of one stream read: slices of its log, checked, with the places of the records in them.

A reader asks for the slice that has its offset. Where another one has just read there, it gets the same slice: readers
that are near each other cost one reading. Where none has, a cursor that stands there reads
on, or another one looks the place up. What is kept is bounded: the slices of late by `bytes_max` of the stream's
window, cursors (each has a chunk of 256 KiB at most) by CURSORS_MAX; slices are the smaller the more readers there are,
and hold the batches that their records stand in (of 64 KiB; of larger ones the bodies alone).

Nothing above the high watermark is read, and nothing waits for the disk here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import Consumer, QueueBase, QueueEntry
from amqpd.broker.flow.loop_turn import DEAR_PROPERTIES_BYTES
from amqpd.broker.message import LogMessageFactory, Message
from amqpd.broker.queue.config import SEGMENT_AGE_MS, QueueConfig
from amqpd.broker.queue.ready_order import ReadyOrder
from amqpd.broker.queue.services import BYTES_MAX, QueueServices
from amqpd.broker.queue.store import QueueStore
from amqpd.broker.queue.stream_filter import RecordView, filter_of
from amqpd.broker.stream_message import AGO, FIRST, LAST, NEXT, OFFSET, TIME, StreamDeliveryEncoder, StreamStart
from amqpd.storage.log.record import RecordViews
from amqpd.storage.queue_log import Cursor, QueueLog
from amqpd.storage.retention_policy import CleanerPolicy, RetentionPolicy

# What fits the processor's nearer caches, with what is made of it.
SLICE_BYTES_MAX: Final = 64 * 1024
SLICE_BYTES_MIN: Final = 32 * 1024
SLICES_MAX: Final = 8
CURSORS_MAX: Final = 16


@final
class LogChunk:
    """Some records that follow each other. start: whoever looks for this offset or a later one below next_offset finds
    it here.
    """

    def __init__(self, start: i64, places: RecordViews) -> None:
        self.start: Final[i64] = start
        self.next_offset: Final[i64] = places.next_offset
        self.places: Final[RecordViews] = places
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
class ChunkPosition:
    """A cursor, and where it stands."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor: Final[Cursor] = cursor
        self.next_offset: i64 = -1


@final
class LogChunks:
    """Of one stream. readers_count: how many read, which the slices' size follows. bytes_max: set by the stream's
    window; less than FULL where many logs share the memory, and then a cursor at the end keeps nothing.
    """

    def __init__(self, from_log: LogMessageFactory) -> None:
        self.dresser: Final = StreamDeliveryEncoder(from_log)
        self.readers_count: i64 = 0
        self._recent: list[LogChunk] = []
        self._idle: list[ChunkPosition] = []

    def at(
        self, log: QueueLog, offset: i64, bytes_max: i64, reader: Callable[[], None], held: ChunkPosition | None
    ) -> tuple[LogChunk | None, ChunkPosition | None]:
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
            places = place.cursor.views_below_hw(offset, self._slice_bytes(bytes_max), reader)
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
        piece = LogChunk(offset, places)
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

    def _place(self, log: QueueLog, offset: i64) -> ChunkPosition:
        """One that stands there, a new one, or the one that was not asked for longest."""
        idle = self._idle
        index: i64 = 0
        for place in idle:
            if place.next_offset == offset:
                del idle[index]
                return place
            index += 1
        if index < CURSORS_MAX and index < self.readers_count:
            return ChunkPosition(log.new_cursor())
        return idle.pop(0) if idle else ChunkPosition(log.new_cursor())

    def give_back(self, place: ChunkPosition) -> None:
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

    def __init__(self, slices: LogChunks) -> None:
        self.slices: Final = slices
        self.names: dict[str, StreamReader] = {}
        self.moved: list[StreamReader] = []
        self.resting: dict[StreamReader, None] = {}
        self.line_offset: i64 = -1


@final
class StreamReader(QueueBase):
    """One consumer's. queue: what is read. stored: the offset that is stored under its name; -1: none."""

    def __init__(self, shared: Shared, queue: QueueBase, log: QueueLog, consumer: Consumer, stored: i64) -> None:
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
        self._slice: LogChunk | None = None
        self._index: i64 = 0
        self._place: ChunkPosition | None = None  # waits for the disk
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
            place = self._place = ChunkPosition(log.new_cursor())
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

    def _pass_over(self, places: RecordViews, index: i64) -> None:
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

    def schedule_dispatch(self) -> None:
        self.stream.schedule_dispatch()

    # -- home

    def ack(self, entry: QueueEntry) -> None:
        stream = self.stream
        stream.unacked_count -= 1
        stream.acked_count += 1
        if self._tracks:
            self._acknowledged(entry.offset)

    def settle_times(self, entry: QueueEntry, count: i64) -> None:
        self.stream.unacked_count -= count
        self.stream.acked_count += count
        if self._tracks:  # each has its own, then
            self._acknowledged(entry.offset)

    def reject(self, entry: QueueEntry) -> None:
        """A front end that refuses basic.reject does not come here; for another one it is an ack."""
        self.ack(entry)

    def requeue(self, entry: QueueEntry, counts: bool, failed: bool = True) -> None:
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
            self.stream.schedule_dispatch()

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

    def take_new_offset(self) -> i64:
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


# How many records one pump looks at before other queues and sockets have their turn; a reader's share of it counts as
# SHARE_COST more.
PUMP_COUNT_MAX: Final = 1024
SHARE_COST: Final = 8
# x-stream-max-segment-size-bytes below and above these counts as the nearer one: a file for each batch is none of a
# log's business, and an index has positions of 32 bits.
SEGMENT_SIZE_BYTES_MIN: Final = 64 * 1024
SEGMENT_SIZE_BYTES_MAX: Final = 1 << 30


@final
class StreamOrder(ReadyOrder):
    """Of one stream."""

    def __init__(self, backing: QueueStore, host: QueueServices) -> None:
        super().__init__(backing)
        self._host = host
        self._queue: QueueBase | None = None
        self._shared = Shared(LogChunks(LogMessageFactory()))
        # Asked to be told when the high watermark moves.
        self._asked = False
        # How many readers have a filter; those that have looked long enough for now.
        self._filters_count: i64 = 0
        self._searching: dict[Consumer, None] = {}

    # -- the log

    def opened(self, queue: QueueBase) -> None:
        store = self.backing.store
        assert store is not None  # a stream is durable
        self._queue = queue
        store.recounted = self._recounted

    def _recounted(self) -> None:
        """Retention has removed something, or a write has failed."""
        queue = self._queue
        store = self.backing.store
        if queue is not None and store is not None:
            queue.ready_count = store.record_count
            queue.ready_bytes = store.size_bytes
            self._shared.slices.forget()

    def obey(self, rules: QueueConfig) -> None:
        store = self.backing.store
        if store is not None:
            self._host.keep(store, retention_of(rules))
        self.backing.compacts = "compact" in rules.cleanup

    def load_head(self, queue: QueueBase) -> None:
        """Nothing of a stream has a time to live."""

    def add(self, queue: QueueBase, message: Message, offset: i64) -> bool:
        """It is shown to readers when it is safe."""
        queue.ready_count += 1
        queue.ready_bytes += message.body_size
        if not self._asked and queue.round_robin.has_ready():
            queue.schedule_dispatch()  # one became able to take when there was nothing, and has not looked since
        return True

    def unwritten(self, queue: QueueBase, ranges: list[tuple[int, int]]) -> None:
        """Nobody has seen them."""
        self._recounted()

    # -- consumers

    def join(self, queue: QueueBase, consumer: Consumer) -> None:
        """It begins where it asks to, now; one that stands in a line when it is its turn."""
        store = self.backing.store
        assert store is not None  # a stream is durable
        shared = self._shared
        stored: i64 = -1
        if consumer.arguments.consumer_name:
            self._store_moved(queue)
            stored = self._host.stored_offset(queue.id, consumer.arguments.consumer_name)
        if not queue.consumers:
            shared.line_offset = -1
        reader = StreamReader(shared, queue, store, consumer, stored)
        consumer.reader = reader
        shared.slices.readers_count += 1
        if reader.filter is not None:
            self._filters_count += 1
        if not reader.in_line or not queue.consumers:
            reader.begin(self._host.timers.wall_ms())

    def leave(self, queue: QueueBase, consumer: Consumer) -> None:
        """What it has acked is stored; the next in its line goes on behind that."""
        reader = consumer.reader
        if not isinstance(reader, StreamReader):
            return
        if reader.filter is not None:
            self._filters_count -= 1
            self._searching.pop(consumer, None)
        reader.note_passed_over()
        reader.end()
        consumer.reader = None  # which knows its consumer
        consumer.entry_for_all = None  # as it does
        name = reader.consumer_name
        if name:
            self._store_moved(queue)
            self._host.settle_offset(queue.id, name)
        if self._shared.slices.readers_count == 0:
            self._shared.slices.close()

    def _store_moved(self, queue: QueueBase) -> None:
        moved = self._shared.moved
        if moved:
            self._shared.moved = []
            for reader in moved:
                offset = reader.take_new_offset()
                if offset >= 0:
                    self._host.store_offset(queue.id, reader.consumer_name, offset)

    # -- out

    def scan(self, queue: QueueBase) -> bool:
        """Serves the readers. False: nothing is to be taken."""
        self._store_moved(queue)
        granted = False
        if self._filters_count > 0:
            granted = self._host.turn.scans.begin(queue, self._host.turn.number)
            if granted:
                searching = self._searching
                self._searching = {}
                for consumer in searching:
                    queue.round_robin.unpark(consumer)
        if self._serve(queue, granted):
            queue.schedule_dispatch()
        if self._searching and not queue.scan_wanted:
            self._host.turn.scans.wait(queue)
            self._host.turn.schedule()
        return False

    def _serve(self, queue: QueueBase, granted: bool) -> bool:
        """A share to one reader after the other. Whether there is more than a pump's. granted: it is the turn of those
        that search; else one that does looks at a share of what has come in, and then stands in line for more.
        """
        robin = queue.round_robin
        shared = self._shared
        scans = self._host.turn.scans
        left: i64 = PUMP_COUNT_MAX
        while left > 0:
            consumer = robin.pick()
            if consumer is None:
                return False
            reader = consumer.reader
            assert isinstance(reader, StreamReader)  # `join` has made it
            searches = reader.filter is not None
            if searches and scans.over:
                robin.park(consumer)
                self._searching[consumer] = None
                continue
            if reader.offset < 0:
                reader.begin(self._host.timers.wall_ms())
            ended = reader.deliver(self.memory.bytes_max)
            left -= reader.looked_count + SHARE_COST
            if searches:
                scans.looked_at(reader.looked_count)
            if ended != MORE:
                robin.park(consumer)
                if ended == END:
                    shared.resting[reader] = None
                    self._ask(queue)
            elif searches and not granted:
                robin.park(consumer)
                self._searching[consumer] = None
            consumer.share_ended()  # when it rests: there may be room for it at once
        return True

    def _ask(self, queue: QueueBase) -> None:
        store = self.backing.store
        if self._asked or store is None or store.failed:
            return
        if self.memory.bytes_max < BYTES_MAX:
            self._shared.slices.rest()
        self._queue = queue
        self._asked = True
        store.when_safe(store.high_watermark, self._safe_moved)

    def _safe_moved(self, safe: bool) -> None:
        """It has, or what was at it could not be written and is passed over; or nothing comes any more."""
        self._asked = False
        queue = self._queue
        store = self.backing.store
        if queue is None or store is None or store.failed:
            return
        resting = self._shared.resting
        if resting:
            self._shared.resting = {}
            for reader in resting:
                queue.round_robin.unpark(reader.consumer)
        queue.schedule_dispatch()

    def resumed(self, queue: QueueBase) -> None:
        self._queue = queue
        self._safe_moved(True)

    def is_next_in_memory(self, queue: QueueBase) -> bool:
        return True

    def take(self, queue: QueueBase) -> QueueEntry | None:
        """basic.get is refused."""
        return None

    def head(self, queue: QueueBase) -> QueueEntry | None:
        return None

    def mark_delivered(self, store: QueueLog, offset: i64) -> None:
        """Nobody asks."""

    def stamp_arrival(self, now_ms: i64) -> None:
        """A stream has no time to live."""

    # -- ends

    def purge(self, queue: QueueBase) -> None:
        """It is refused: what others have not read would go."""
        raise NotImplementedError

    def clear(self, queue: QueueBase) -> None:
        self._shared.slices.close()
        self._shared.resting.clear()
        self._shared.moved.clear()
        self._searching.clear()
        self._queue = None
        store = self.backing.store
        if store is not None:
            store.recounted = None
        queue.ready_count = 0
        queue.ready_bytes = 0


def retention_of(rules: QueueConfig) -> RetentionPolicy:
    """What a stream with these rules keeps, and how it is stored: x-max-age, x-max-length-bytes, x-compact,
    x-stream-max-segment-size-bytes, x-compression.
    """
    compacts, deletes = "compact" in rules.cleanup, "delete" in rules.cleanup
    age_ms: int = rules.max_age_ms if deletes else -1
    bytes_max: int = rules.length_bytes_max if deletes else -1
    roll_ms: int = age_ms
    if compacts:
        roll_ms = SEGMENT_AGE_MS if age_ms < 0 else min(age_ms, SEGMENT_AGE_MS)
    size: int = rules.segment_size_bytes
    if size >= 0:
        size = min(max(size, SEGMENT_SIZE_BYTES_MIN), SEGMENT_SIZE_BYTES_MAX)
    return RetentionPolicy(
        max_age_ms=age_ms,
        max_bytes=bytes_max,
        segment_age_ms=roll_ms,
        segment_size_bytes=size,
        compaction=CleanerPolicy() if compacts else None,
        codec=rules.codec,
    )
