"""Ready order and readers of a stream: each consumer reads the log at its own position, and nothing is taken.

    StreamOrder    the ready order: serves the readers from `scan`; `take` returns nothing
    StreamReader   the position of one consumer, and its acked offset
    LogChunks      chunks of the log in memory, shared by readers that are near each other

All records in the log are ready until retention removes them. A reader delivers only records below the high watermark,
so a crash never removes a record that a consumer has seen. `StreamReader.deliver` is the one place that decides whether
a consumer gets a record, by its filter (stream_filter.py).

A dispatch gives each reader a share, in the queue's round robin, until no consumer can take more or the turn's share is
used. A reader at the high watermark rests until the watermark moves. A reader that waits for the disk continues when
the data has arrived. A reader with a filter waits for scan time (broker/flow/loop_turn.py) if its share ended before
the end of the log. So it does not take the turns of others.

A delivery's source is its reader. An ack gives credit and settles nothing. Nothing is returned to the stream: a
consumer reads unacked records again when it, or a consumer with its name, begins at the stored offset. The committed
offset is known for readers with a name (x-stream-consumer-name) and for those of a single active consumer queue. A
dispatch stores the offset of a name, once for any number of acks. If several readers use one name, the one that began
last counts. When it has ended, the others can store a higher offset. A waiting single active consumer has not begun.

Memory is bounded: chunks by the stream's memory window, cursors (256 KiB at most each) by CURSORS_MAX. A chunk is
smaller if there are more readers, and it keeps the batches of its records in memory. Of a batch above 64 KiB it keeps
only the bodies. Nothing here waits for the disk.

The order refers to its queue from the first consumer until `clear`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

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
from amqpd.storage.local_log import LocalLog
from amqpd.storage.log.record import RecordViews
from amqpd.storage.queue_log import Cursor, QueueLog
from amqpd.storage.retention_policy import CleanerPolicy, RetentionPolicy

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue

# A chunk and its encoded deliveries should fit the processor's near caches.
SLICE_BYTES_MAX: Final = 64 * 1024
SLICE_BYTES_MIN: Final = 32 * 1024
SLICES_MAX: Final = 8
CURSORS_MAX: Final = 16


@final
class LogChunk:
    """Consecutive records of the log in memory.

    Attributes:
        start: a look-up of any offset from here to before next_offset finds this chunk.
    """

    def __init__(self, start: i64, places: RecordViews) -> None:
        self.start: Final[i64] = start
        self.next_offset: Final[i64] = places.next_offset
        self.places: Final[RecordViews] = places
        self.count: Final[i64] = places.count
        # A view for each of `places.shared_fields`; empty until a filter needs one.
        self._views: list[RecordView | None] = []

    def view(self, index: i64) -> RecordView:
        """Return the record at `index` as filters see it. Records with equal properties share one view."""
        number = self.places.shared_fields_index(index)
        if not self._views:
            self._views = [None] * len(self.places.shared_fields)
        view = self._views[number]
        if view is None:
            alike = self.places.shared_fields[number]
            if number > 0:
                view = self._views[number - 1]
            if view is None or not view.has_fields(alike):
                view = RecordView(alike)
            self._views[number] = view
        return view


@final
class ChunkPosition:
    """A cursor, and the offset at which it continues."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor: Final[Cursor] = cursor
        self.next_offset: i64 = -1


@final
class LogChunks:
    """The chunks and cursors of one stream.

    Attributes:
        readers_count: the number of readers; chunks are smaller if there are more.
    """

    def __init__(self, from_log: LogMessageFactory) -> None:
        self.dresser: Final = StreamDeliveryEncoder(from_log)
        self.readers_count: i64 = 0
        self._recent: list[LogChunk] = []
        self._idle: list[ChunkPosition] = []

    def at(
        self, log: QueueLog, offset: i64, bytes_max: i64, arrived: Callable[[], None], held: ChunkPosition | None
    ) -> tuple[LogChunk | None, ChunkPosition | None]:
        """Return the chunk with the first record at or after `offset`.

        Args:
            bytes_max: the limit of the stream's memory window.
            arrived: called on the loop when the disk has delivered.
            held: the position that an earlier call returned for the same reader.

        Returns:
            (chunk, None); (None, position) if that position waits for the disk; (None, None) at the last stable
            offset.

        Raises:
            OSError: the log cannot be read.
        """
        for chunk in self._recent:
            if chunk.start <= offset < chunk.next_offset:
                if held is not None:
                    self.release_position(held)
                return chunk, None
        if offset >= log.last_stable_offset:
            if held is not None:
                self.release_position(held)
            return None, None
        position = held if held is not None else self._idle_position(log, offset)
        try:
            places = position.cursor.views_below_hw(offset, self._chunk_bytes(bytes_max), arrived)
        except OSError:
            if held is None:
                self.release_position(position)
            raise
        position.next_offset = places.next_offset
        if places.count == 0 and places.waiting:
            return None, position
        self.release_position(position)
        if places.count == 0 and places.next_offset <= offset:
            return None, None  # the safe part ends with offsets that were removed
        chunk = LogChunk(offset, places)
        recent = self._recent
        recent.insert(0, chunk)
        if len(recent) > SLICES_MAX or len(recent) * self._chunk_bytes(bytes_max) > bytes_max:
            recent.pop()
        return chunk, None

    def _chunk_bytes(self, bytes_max: i64) -> i64:
        size = bytes_max // (2 * (self.readers_count + 1))
        if size > SLICE_BYTES_MAX:
            return SLICE_BYTES_MAX
        return size if size > SLICE_BYTES_MIN else SLICE_BYTES_MIN

    def _idle_position(self, log: QueueLog, offset: i64) -> ChunkPosition:
        """Return an idle cursor at `offset`, otherwise a new one or the one idle for longest."""
        idle = self._idle
        index: i64 = 0
        for position in idle:
            if position.next_offset == offset:
                del idle[index]
                return position
            index += 1
        if index < CURSORS_MAX and index < self.readers_count:
            return ChunkPosition(log.new_cursor())
        return idle.pop(0) if idle else ChunkPosition(log.new_cursor())

    def release_position(self, position: ChunkPosition) -> None:
        """Make a position idle. If there are too many, the one idle for longest is closed."""
        if len(self._idle) >= CURSORS_MAX:
            self._idle.pop(0).cursor.close()
        self._idle.append(position)

    def release_memory(self) -> None:
        """Release all memory while no reader reads and memory is short."""
        for position in self._idle:
            position.cursor.release()
        self._recent.clear()

    def forget(self) -> None:
        """Drop the chunks: the log may have lost these records."""
        self._recent.clear()

    def close(self) -> None:
        """Release everything: there are no readers."""
        for position in self._idle:
            position.cursor.close()
        self._idle.clear()
        self._recent.clear()


# How a reader's share of a turn ended.
MORE: Final = 0  # the share is used up
END: Final = 1  # at the high watermark
DISK: Final = 2  # the disk is being read
FULL: Final = 3  # the consumer takes no more
# A reader's share: records delivered or skipped before the next reader is served.
SHARE_COUNT: Final = 256
NAMES_MAX: Final = 10_000
"""Names of which a stream knows the last reader. As many have a stored offset."""
ACKED_MAX: Final = 1024
"""Offsets acked above an unacked one that a reader remembers, if it does not have as many unacked ones."""
_FROM_NOW: Final = StreamStart(NEXT)


@final
class SharedReaderState:
    """State that the readers of one stream share.

    Attributes:
        names: for the last NAMES_MAX names, the number of the reader that began last; negative if it has ended.
        begun_count: readers with a name that have begun. It numbers them.
        moved: readers whose committed offset must be stored.
        resting: readers at the high watermark.
        line_offset: where the next single active consumer continues; -1 if none has read yet.
    """

    def __init__(self, slices: LogChunks) -> None:
        self.slices: Final = slices
        self.names: dict[str, int] = {}
        self.begun_count = 0
        self.moved: list[StreamReader] = []
        self.resting: dict[StreamReader, None] = {}
        self.line_offset: i64 = -1


@final
class StreamReader(QueueBase):
    """The position of one consumer in a stream, and the source of its deliveries.

    Attributes:
        stream: the queue that is read.
        stored: the offset stored under the consumer's name, or -1.
        offset: the next record to look at; -1 before `begin`.
        in_line: the queue has a single active consumer, and this consumer may wait for its turn.
        looked_count: the number of records that the last share looked at.
    """

    def __init__(self, shared: SharedReaderState, queue: Queue, log: QueueLog, consumer: Consumer, stored: i64) -> None:
        super().__init__(queue.name, queue.vhost_name)
        self.kind = queue.kind
        self.logged = True  # a delivery keeps no message in memory
        self.stream = queue
        self.consumer = consumer
        arguments = consumer.arguments
        self.consumer_name = arguments.consumer_name
        self.filter: Final = filter_of(arguments)
        self._skipped = False  # records were skipped since the offset was last stored
        self.stored: i64 = stored
        self.offset: i64 = -1
        self.in_line = queue.round_robin.single_active
        self.looked_count: i64 = 0
        self._shared = shared
        self._log = log
        # x-stream-offset as a time: older records are skipped until the first delivery.
        self._from_ms: i64 = -1
        self._seeks_last = False
        self._chunk: LogChunk | None = None
        self._index: i64 = 0
        self._waiting_position: ChunkPosition | None = None  # waits for the disk
        # Unacked offsets in order; offsets that were acked before lower ones.
        self._unacked: deque[int] = deque()
        self._acked: set[int] = set()
        self._offset_changed = False
        self._tracks = self.in_line or self.consumer_name != ""
        self._number = 0  # see SharedReaderState.names

    # -- begin

    def begin(self, now_ms: i64) -> None:
        """Set the position that the consumer asked for (x-stream-offset).

        A stored offset, or that of the previous single active consumer, has priority.

        Args:
            now_ms: wall clock.
        """
        log = self._log
        if self.consumer_name:
            names = self._shared.names
            self._shared.begun_count += 1
            self._number = self._shared.begun_count
            names.pop(self.consumer_name, None)  # the new key is the last one
            names[self.consumer_name] = self._number
            if len(names) > NAMES_MAX:
                del names[next(iter(names))]
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
            self.offset = 0  # removed records are skipped
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
        """Go to the last record batch. Return False while the disk is read."""
        log = self._log
        position = self._waiting_position
        if position is None:
            position = self._waiting_position = ChunkPosition(log.new_cursor())
        offset = position.cursor.last_batch_offset(log.last_stable_offset, self.log_arrived)
        if offset < 0:
            return False
        self._waiting_position = None
        self._shared.slices.release_position(position)
        self._seeks_last = False
        self.offset = offset
        return True

    # -- deliver

    def deliver(self, bytes_max: i64) -> i64:
        """Deliver a share of the next records. The consumer can take at least one.

        Args:
            bytes_max: the limit of the stream's memory window.

        Returns: MORE, END, DISK or FULL.

        Raises:
            OSError: the log cannot be read.
        """
        self.looked_count = 0
        if self._seeks_last and not self._seek_last():
            return DISK
        consumer = self.consumer
        stream = self.stream
        filter_ = self.filter
        dresser = self._shared.slices.dresser
        while True:
            chunk = self._chunk
            if chunk is None or self._index >= chunk.count:
                chunk, self._waiting_position = self._shared.slices.at(
                    self._log, self.offset, bytes_max, self.log_arrived, self._waiting_position
                )
                self._chunk = chunk
                if chunk is None:
                    self.note_passed_over()
                    return END if self._waiting_position is None else DISK
                self._index = chunk.places.index_of(self.offset)
            places = chunk.places
            while self._index < chunk.count:
                index = self._index
                left = SHARE_COUNT - self.looked_count
                if left <= 0:
                    self.note_passed_over()
                    return MORE
                if places.timestamp_ms(index) < self._from_ms or (
                    filter_ is not None and not filter_.wants(chunk.view(index))
                ):
                    self._skip(places, index)
                    continue
                if self.looked_count > 0 and not consumer.can_take():
                    return FULL
                self._from_ms = -1
                # Move on first: a record whose delivery raises is not tried again.
                self._index = index + 1
                self.offset = places.offset(index) + 1
                stop = index + 1
                if self._tracks:
                    self._unacked.append(places.offset(index))
                elif filter_ is None:
                    stop = index + left if index + left < chunk.count else chunk.count
                stopped = consumer.deliver_records(dresser, places, index, stop, self, self._tracks)
                self.looked_count += stopped - index
                stream.delivered_count += stopped - index
                stream.unacked_count += stopped - index
                self._index = stopped
                self.offset = places.offset(stopped - 1) + 1
            self.offset = chunk.next_offset
            if consumer.cancelled:
                return FULL

    def _skip(self, places: RecordViews, index: i64) -> None:
        """Skip a record that the filter rejects. Large properties count as several records."""
        self._index = index + 1
        self.offset = places.offset(index) + 1
        self._skipped = True
        size: i64 = len(places.shared_fields[places.shared_fields_index(index)].properties)
        self.looked_count += 1 + size // DEAR_PROPERTIES_BYTES

    def log_arrived(self) -> None:
        if not self.deleted:
            self.stream.activate(self.consumer)

    def schedule_dispatch(self) -> None:
        self.stream.schedule_dispatch()

    # -- settle

    def ack(self, entry: QueueEntry) -> None:
        """Count an ack: it gives credit, and may move the committed offset."""
        stream = self.stream
        stream.unacked_count -= 1
        stream.acked_count += 1
        if self._tracks:
            self._record_ack(entry.offset)

    def settle_times(self, entry: QueueEntry, count: i64) -> None:
        self.stream.unacked_count -= count
        self.stream.acked_count += count
        if self._tracks:  # then each delivery has an entry of its own
            self._record_ack(entry.offset)

    def reject(self, entry: QueueEntry) -> None:
        """Ack the entry. AMQP channels refuse basic.reject on a stream and never call this."""
        self.ack(entry)

    def requeue(self, entry: QueueEntry, counts: bool, failed: bool = True) -> None:
        """Forget a delivery that its consumer returned. Its offset stays unacked."""
        self.stream.unacked_count -= 1

    def _record_ack(self, offset: i64) -> None:
        """Move the committed offset if no lower offset is unacked, and have it stored by the next dispatch."""
        unacked = self._unacked
        if not unacked or unacked[0] != offset:
            self._acked.add(offset)
            if len(self._acked) >= ACKED_MAX and 2 * len(self._acked) >= len(unacked):
                self._drop_acked()
            return
        unacked.popleft()
        acked = self._acked
        while acked and unacked and unacked[0] in acked:
            acked.discard(unacked.popleft())
        if self.consumer_name and not self._offset_changed:
            self._offset_changed = True
            self._shared.moved.append(self)
            self.stream.schedule_dispatch()

    def _drop_acked(self) -> None:
        """Forget acked offsets above one that stays unacked. Cost: linear; runs when half of the offsets are acked."""
        acked = self._acked
        self._unacked = deque([offset for offset in self._unacked if offset not in acked])
        acked.clear()

    def committed(self) -> i64:
        """Return the offset below which every record is acked or was skipped; -1 if acks are not tracked."""
        if not self._tracks or self.offset < 0:
            return -1
        return self._unacked[0] if self._unacked else self.offset

    def note_passed_over(self) -> None:
        """Have the skipped records stored as acked, so that the filter need not check them again."""
        if self._skipped and self.consumer_name and not self._offset_changed:
            self._offset_changed = True
            self._shared.moved.append(self)

    def take_new_offset(self, stored: i64) -> i64:
        """Return the offset to store under the name; -1 if there is none.

        Args:
            stored: the offset that is stored now. A replaced reader can only move it forward, and only after the end of
                the later one.
        """
        self._offset_changed = False
        self._skipped = False
        number = self._shared.names.get(self.consumer_name, self._number)
        offset = self.committed()
        if abs(number) == self._number or (number < 0 and offset > stored):
            return offset
        return -1

    # -- end

    def end(self) -> None:
        """End the reader: its consumer gets nothing more. Deliveries may still be acked."""
        if self.deleted:
            return
        self.deleted = True
        shared = self._shared
        if self.in_line and self.offset >= 0:
            shared.line_offset = self.committed()
        if self.consumer_name and shared.names.get(self.consumer_name) == self._number:
            shared.names[self.consumer_name] = -self._number
        shared.slices.readers_count -= 1
        shared.resting.pop(self, None)
        self._chunk = None
        position = self._waiting_position
        if position is not None:  # the disk still reads for it, so other readers cannot use it
            position.cursor.close()
            self._waiting_position = None


# Records that one dispatch looks at before other queues and sockets are served. Each reader's share costs SHARE_COST in
# addition.
PUMP_COUNT_MAX: Final = 1024
SHARE_COST: Final = 8
# Limits of x-stream-max-segment-size-bytes; other values are moved to the nearest. The minimum avoids a file per batch;
# the maximum is due to the index, which has positions of 32 bits.
SEGMENT_SIZE_BYTES_MIN: Final = 64 * 1024
SEGMENT_SIZE_BYTES_MAX: Final = 1 << 30


@final
class StreamOrder(ReadyOrder):
    """The ready order of one stream."""

    def __init__(self, backing: QueueStore, host: QueueServices) -> None:
        super().__init__(backing)
        self._host = host
        self._queue: Queue | None = None
        self._shared = SharedReaderState(LogChunks(LogMessageFactory()))
        # `_high_watermark_moved` will be called when the high watermark moves.
        self._watching = False
        # Number of readers with a filter; the ones that wait for scan time.
        self._filters_count: i64 = 0
        self._searching: dict[Consumer, None] = {}

    # -- the log

    def on_log_opened(self, queue: Queue) -> None:
        """Watch the log: retention changes the counts."""
        store = self.backing.store
        assert store is not None  # a stream is durable
        self._queue = queue
        store.on_counts_changed = self._recounted

    def _recounted(self) -> None:
        """Update the counts: retention removed records, or a write failed."""
        queue = self._queue
        store = self.backing.store
        if queue is not None and store is not None:
            queue.ready_count = store.record_count
            queue.ready_bytes = store.size_bytes
            self._shared.slices.forget()

    def apply_config(self, rules: QueueConfig) -> None:
        store = self.backing.store
        if isinstance(store, LocalLog):
            self._host.storage.set_policy(store, retention_of(rules))
        self.backing.compacts = "compact" in rules.cleanup

    def load_head(self, queue: Queue) -> None:
        """Do nothing: messages of a stream have no time to live."""

    def add(self, queue: Queue, message: Message, offset: i64) -> bool:
        """Count a new record. Readers see it when it is safe."""
        self.add_batches(queue, 1, message.body_size)
        return True

    def add_batches(self, queue: Queue, count: i64, size_bytes: i64) -> None:
        """Count new records. size_bytes: of their bodies."""
        queue.ready_count += count
        queue.ready_bytes += size_bytes
        if not self._watching and queue.round_robin.has_ready():
            queue.schedule_dispatch()  # a consumer got credit when there was no record

    def drop_unwritten(self, queue: Queue, ranges: list[tuple[int, int]]) -> None:
        """Update the counts. No reader has seen the lost records."""
        self._recounted()

    # -- consumers

    def add_consumer(self, queue: Queue, consumer: Consumer) -> None:
        """Create the reader of a consumer. It begins now; a waiting single active consumer begins on its turn."""
        store = self.backing.store
        assert store is not None  # a stream is durable
        shared = self._shared
        stored: int | None = None
        if consumer.arguments.consumer_name:
            self._store_moved(queue)
            stored = self._host.stored_offsets.get(queue.id, consumer.arguments.consumer_name)
        if not queue.consumers:
            shared.line_offset = -1
        reader = StreamReader(shared, queue, store, consumer, -1 if stored is None else stored)
        consumer.reader = reader
        shared.slices.readers_count += 1
        if reader.filter is not None:
            self._filters_count += 1
        if not reader.in_line or not queue.consumers:
            reader.begin(self._host.timers.wall_ms())

    def remove_consumer(self, queue: Queue, consumer: Consumer) -> None:
        """End the reader and store its acked offset. The next single active consumer continues there."""
        reader = consumer.reader
        if not isinstance(reader, StreamReader):
            return
        if reader.filter is not None:
            self._filters_count -= 1
            self._searching.pop(consumer, None)
        reader.note_passed_over()
        reader.end()
        consumer.reader = None  # it refers to its consumer
        consumer.entry_for_all = None  # it refers to the reader
        name = reader.consumer_name
        if name:
            self._store_moved(queue)
            self._host.stored_offsets.settle(queue.id, name)
        if self._shared.slices.readers_count == 0:
            self._shared.slices.close()

    def _store_moved(self, queue: Queue) -> None:
        """Store the committed offsets that have changed."""
        moved = self._shared.moved
        if moved:
            self._shared.moved = []
            offsets = self._host.stored_offsets
            for reader in moved:
                stored = offsets.get(queue.id, reader.consumer_name)
                offset = reader.take_new_offset(-1 if stored is None else stored)
                if offset >= 0:
                    offsets.put(queue.id, reader.consumer_name, offset)

    # -- deliver

    def scan(self, queue: Queue) -> bool:
        """Serve the readers. Return False: `take` has nothing to return."""
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
            self._host.turn.scans.enqueue(queue)
            self._host.turn.schedule()
        return False

    def _serve(self, queue: Queue, granted: bool) -> bool:
        """Give one reader after the other a share.

        Args:
            granted: the queue has scan time, so readers with filters may continue. Otherwise such a reader looks at
                one share of new records and then waits for scan time.

        Returns: True if the turn's share was used up and there is more.
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
            assert isinstance(reader, StreamReader)  # `add_consumer` created it
            searches = reader.filter is not None
            if searches and scans.is_used_up:
                robin.park(consumer)
                self._searching[consumer] = None
                continue
            if reader.offset < 0:
                reader.begin(self._host.timers.wall_ms())
            ended = reader.deliver(self.memory.bytes_max)
            left -= reader.looked_count + SHARE_COST
            if searches:
                scans.count_checked(reader.looked_count)
            if ended != MORE:
                robin.park(consumer)
                if ended == END:
                    shared.resting[reader] = None
                    self._watch_high_watermark(queue)
            elif searches and not granted:
                robin.park(consumer)
                self._searching[consumer] = None
            consumer.on_dispatch_end()  # after parking it: there may be room for it at once
        return True

    def _watch_high_watermark(self, queue: Queue) -> None:
        """Have `_high_watermark_moved` called once, unless that is pending or the log has failed."""
        store = self.backing.store
        if self._watching or store is None or store.failed:
            return
        if self.memory.bytes_max < BYTES_MAX:
            self._shared.slices.release_memory()
        self._queue = queue
        self._watching = True
        store.when_safe(store.high_watermark, self._high_watermark_moved)

    def _high_watermark_moved(self, safe: bool) -> None:
        """Wake resting readers: the high watermark moved, also past records that could not be written."""
        self._watching = False
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

    def on_log_resumed(self, queue: Queue) -> None:
        self._queue = queue
        self._high_watermark_moved(True)

    def is_next_in_memory(self, queue: Queue) -> bool:
        return True

    def take(self, queue: Queue) -> QueueEntry | None:
        """Return None: basic.get is refused."""
        return None

    def head(self, queue: Queue) -> QueueEntry | None:
        return None

    def mark_delivered(self, store: QueueLog, offset: i64) -> None:
        """Do nothing: a stream has no delivery marks."""

    # -- ends

    def purge(self, queue: Queue) -> None:
        """Refuse: other consumers may not have read the records."""
        raise NotImplementedError

    def clear(self, queue: Queue) -> None:
        self._shared.slices.close()
        self._shared.resting.clear()
        self._shared.moved.clear()
        self._searching.clear()
        self._queue = None
        store = self.backing.store
        if store is not None:
            store.on_counts_changed = None
        queue.ready_count = 0
        queue.ready_bytes = 0


def retention_of(rules: QueueConfig) -> RetentionPolicy:
    """Return the retention policy of a stream.

    It follows x-max-age, x-max-length-bytes, x-compact, x-stream-max-segment-size-bytes and x-compression.
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
