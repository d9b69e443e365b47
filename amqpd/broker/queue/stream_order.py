"""The order of a stream: every consumer reads the log at its own place, and nothing is taken.

All that is in the log is `ready`, whoever has read it; it leaves by retention alone. So `take` gives nothing out, and
`scan`, with which a pump begins, serves the readers (stream.py) instead: in the queue's round robin each gets a
share, until nobody can take more or the turn's is used up. Who has come to the high watermark rests, and all who do go
on together when it has moved; who waits for the disk goes on when that has answered. Whose filter has looked at a share
and found no end stands in line with all that search (flow/scans.py), and leaves the others their turns.

What a consumer is shown is safe: below the high watermark, so it is never taken back by a crash.

It knows its queue, from the first consumer until `clear`.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import Consumer, Entry, Source
from amqpd.broker.message import FromLog, Message
from amqpd.broker.queue.store import Backing
from amqpd.broker.queue.compaction import SEGMENT_AGE_MS
from amqpd.broker.queue.services import QueueHost
from amqpd.broker.queue.ready_order import ReadyOrder
from amqpd.broker.queue.config import Rules
from amqpd.broker.queue.stream import END, MORE, Shared, StreamReader
from amqpd.broker.queue.stream_slices import Slices
from amqpd.broker.queue.windows import BYTES_MAX
from amqpd.storage.retention_policy import CleanerPolicy, RetentionPolicy
from amqpd.storage.queue_log import QueueLog

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

    def __init__(self, backing: Backing, host: QueueHost) -> None:
        super().__init__(backing)
        self._host = host
        self._queue: Source | None = None
        self._shared = Shared(Slices(FromLog()))
        # Asked to be told when the high watermark moves.
        self._asked = False
        # How many readers have a filter; those that have looked long enough for now.
        self._filters_count: i64 = 0
        self._searching: dict[Consumer, None] = {}

    # -- the log

    def opened(self, queue: Source) -> None:
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

    def obey(self, rules: Rules) -> None:
        store = self.backing.store
        if store is not None:
            self._host.keep(store, retention_of(rules))
        self.backing.compacts = "compact" in rules.cleanup

    def look_at_first(self, queue: Source) -> None:
        """Nothing of a stream has a time to live."""

    def add(self, queue: Source, message: Message, offset: i64) -> bool:
        """It is shown to readers when it is safe."""
        queue.ready_count += 1
        queue.ready_bytes += message.body_size
        if not self._asked and queue.round_robin.has_ready():
            queue.pump_later()  # one became able to take when there was nothing, and has not looked since
        return True

    def unwritten(self, queue: Source, ranges: list[tuple[int, int]]) -> None:
        """Nobody has seen them."""
        self._recounted()

    # -- consumers

    def join(self, queue: Source, consumer: Consumer) -> None:
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

    def leave(self, queue: Source, consumer: Consumer) -> None:
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

    def _store_moved(self, queue: Source) -> None:
        moved = self._shared.moved
        if moved:
            self._shared.moved = []
            for reader in moved:
                offset = reader.take_moved()
                if offset >= 0:
                    self._host.store_offset(queue.id, reader.consumer_name, offset)

    # -- out

    def scan(self, queue: Source) -> bool:
        """Serves the readers. False: nothing is to be taken."""
        self._store_moved(queue)
        granted = False
        if self._filters_count > 0:
            granted = self._host.turn.scans.begin(queue, self._host.turn.number)
            if granted:
                searching = self._searching
                self._searching = {}
                for consumer in searching:
                    queue.round_robin.back(consumer)
        if self._serve(queue, granted):
            queue.pump_later()
        if self._searching and not queue.scan_wanted:
            self._host.turn.scans.wait(queue)
            self._host.turn.want()
        return False

    def _serve(self, queue: Source, granted: bool) -> bool:
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
                robin.rest(consumer)
                self._searching[consumer] = None
                continue
            if reader.offset < 0:
                reader.begin(self._host.timers.wall_ms())
            ended = reader.deliver(self.bytes_max)
            left -= reader.looked_count + SHARE_COST
            if searches:
                scans.looked_at(reader.looked_count)
            if ended != MORE:
                robin.rest(consumer)
                if ended == END:
                    shared.resting[reader] = None
                    self._ask(queue)
            elif searches and not granted:
                robin.rest(consumer)
                self._searching[consumer] = None
            consumer.share_ended()  # when it rests: there may be room for it at once
        return True

    def _ask(self, queue: Source) -> None:
        store = self.backing.store
        if self._asked or store is None or store.failed:
            return
        if self.bytes_max < BYTES_MAX:
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
                queue.round_robin.back(reader.consumer)
        queue.pump_later()

    def resumed(self, queue: Source) -> None:
        self._queue = queue
        self._safe_moved(True)

    def at_hand(self, queue: Source) -> bool:
        return True

    def take(self, queue: Source) -> Entry | None:
        """basic.get is refused."""
        return None

    def head(self, queue: Source) -> Entry | None:
        return None

    def mark_delivered(self, store: QueueLog, offset: i64) -> None:
        """Nobody asks."""

    def note_arrival(self, now_ms: i64) -> None:
        """A stream has no time to live."""

    # -- ends

    def purge(self, queue: Source) -> None:
        """It is refused: what others have not read would go."""
        raise NotImplementedError

    def clear(self, queue: Source) -> None:
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


def retention_of(rules: Rules) -> RetentionPolicy:
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
