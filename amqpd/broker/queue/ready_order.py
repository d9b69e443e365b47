"""Ready order of a queue: its ready messages, and which one is next.

A queue has one ready order for life: `FifoOrder` (fifo.py) by arrival, `PriorityOrder` (priority.py) by priority,
`GroupedOrder` (grouped_order.py) by group. A stream has a `StreamOrder` (stream.py), from which nothing is taken. Only
a `FifoOrder` can change: `FilteredOrder` (filtered.py) replaces it while consumers have filters.

The order keeps a window of entries in memory (`MemoryWindow`) and reads the others from the log. The queue is an
argument of each call, so that order and queue form no reference cycle.

Invariants:
- Only the ready order changes `ready_count` and `ready_bytes` of its queue.
- A message that `take` returned is not returned again before `requeue`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from amqpd.broker.consumer import Consumer, QueueEntry
from amqpd.broker.message import Message
from amqpd.broker.queue.config import QueueConfig
from amqpd.broker.queue.offset_bitmap import OffsetBitmap
from amqpd.broker.queue.scan_index import MemoryIndex
from amqpd.broker.queue.services import BYTES_MAX, COUNT_MAX, MemoryWindow, QueueServices
from amqpd.broker.queue.store import QueueStore
from amqpd.storage.log.record import Record
from amqpd.storage.queue_log import QueueLog

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue

# Limits of the window of a transient queue, which gets a temporary log when it is full. A durable queue has a smaller
# one (services.py), because its log has every message.
TRANSIENT_COUNT_MAX: Final = 32768
TRANSIENT_BYTES_MAX: Final = 16 * 1024 * 1024


class ReadyOrder:
    """Base class of the ready orders.

    Attributes:
        memory: limits of the window, and the body bytes in it.
        reading: the disk reads the next messages; the queue's `log_arrived` is called afterwards.
    """

    def __init__(self, backing: QueueStore) -> None:
        self.backing = backing
        if backing.store is None:
            self.memory = MemoryWindow(TRANSIENT_COUNT_MAX, TRANSIENT_BYTES_MAX)
        else:
            self.memory = MemoryWindow(COUNT_MAX, BYTES_MAX)
        self.reading = False

    def is_reading(self) -> bool:
        """Return whether the disk was asked for the next message. The queue's `log_arrived` is called with it."""
        return self.reading

    def on_log_opened(self, queue: Queue) -> None:
        """Prepare for the messages of a log that was opened. The queue's counts are set; no message is read yet."""

    def on_log_resumed(self, queue: Queue) -> None:
        """Continue after the log had failed and accepts messages again."""
        queue.schedule_dispatch()

    def apply_config(self, rules: QueueConfig) -> None:
        """Apply new rules of the queue."""

    def add_consumer(self, queue: Queue, consumer: Consumer) -> None:
        """Prepare for a consumer that will be served, for example give it a position in the stream."""

    def remove_consumer(self, queue: Queue, consumer: Consumer) -> None:
        """Remove a consumer that gets no more messages."""

    def load_head(self, queue: Queue) -> None:
        """Load the first ready message into memory, and no other.

        If the disk must be read, the message arrives later.

        Raises:
            OSError: the log cannot be read.
        """
        raise NotImplementedError

    def needs_head(self) -> bool:
        """Return whether `load_head` asked the disk and no message has arrived in memory yet."""
        return False

    # -- figures

    def memory_count(self) -> i64:
        """Return the number of entries in the window."""
        return 0

    def in_memory(self) -> list[QueueEntry]:
        """Return the ready entries in memory, in no order; none for a stream."""
        return []

    def is_cold(self, offset: i64) -> bool:
        """Return whether an unsettled message that is not in memory is ready. Unacked ones of locked groups count."""
        return False

    def first_at_hand(self) -> Message | None:
        """Return the next message if it is known and in memory. Reads nothing."""
        return None

    def scan(self, queue: Queue) -> bool:
        """Read the part of the log that the order must know before the first delivery, a slice per call.

        A stream serves its consumers here, each at its own position.

        Returns:
            True if the order can return messages; False if the queue must dispatch again, or if a stream did
            everything.
        """
        return True

    # -- incoming messages

    def add(self, queue: Queue, message: Message, offset: i64) -> bool:
        """Make a message ready that was just appended.

        Returns: False if memory is full and the queue has no log yet. The caller then starts a temporary log.
        """
        raise NotImplementedError

    def add_prepared(self, queue: Queue, offset: i64, count: i64, size_bytes: i64, first: list[Message]) -> None:
        """Make `count` messages ready that were just appended from `offset` on.

        Args:
            first: the oldest of them, for the window.
        """
        raise NotImplementedError

    def skip_to(self, offset: i64) -> None:
        """Pass over a message that was just appended and goes straight to a consumer. No message is ready."""
        raise NotImplementedError

    def requeue(self, queue: Queue, entry: QueueEntry) -> None:
        """Make a taken entry ready again, at its place."""
        raise NotImplementedError

    def reserve(self, entry: QueueEntry) -> None:
        """Account for a taken entry that waits for a retry. `requeue` or `unreserve` ends that."""

    def unreserve(self, queue: Queue, entry: QueueEntry) -> None:
        """Note that a reserved entry will not return. Only groups need this: the entry locks its group."""

    def exclude_offsets(self, offsets: OffsetBitmap) -> None:
        """Pass over these offsets of a log that was just opened: they wait for their next try.

        Each will be requeued or settled. Called before `on_log_opened`. The order keeps the set.
        """

    # -- outgoing messages

    def is_next_in_memory(self, queue: Queue) -> bool:
        """Return whether `take` works without the disk. If not, `queue.log_arrived` is called after the read."""
        raise NotImplementedError

    def take(self, queue: Queue) -> QueueEntry | None:
        """Remove and return the next ready entry with its message, or None if nothing is ready.

        Raises:
            OSError: the log cannot be read; the entry stays at its place.

        Cost: O(1), and one read of the log per window.
        """
        raise NotImplementedError

    def head(self, queue: Queue) -> QueueEntry | None:
        """Return the entry that `take` would return, and leave it. Return None also while the disk reads it."""
        raise NotImplementedError

    def mark_delivered(self, store: QueueLog, offset: i64) -> None:
        """Mark a message before its delivery: after a kill it counts as redelivered."""
        raise NotImplementedError

    def drop_expired(self, queue: Queue, host: QueueServices, arrived_max_ms: i64, count_max: i64) -> i64:
        """Drop messages that arrived by `arrived_max_ms` (monotonic), from the head on, whole log batches at once.

        Returns: the number dropped, at most `count_max` plus a batch; 0 if messages must be checked one by one.
        """
        return 0

    def stamp_arrival(self, now_ms: i64) -> None:
        """Set `now_ms` as arrival of messages in memory whose arrival is unknown: a time to live begins."""
        for entry in self.in_memory():
            message = entry.message
            if message is not None and message.arrived_ms == 0 and message.logged_ms == 0:
                message.arrived_ms = now_ms

    # -- ends

    def purge(self, queue: Queue) -> None:
        """Settle all ready messages."""
        raise NotImplementedError

    def clear(self, queue: Queue) -> None:
        """Drop everything from memory: the queue is deleted."""
        raise NotImplementedError

    def drop_unwritten(self, queue: Queue, ranges: list[tuple[int, int]]) -> None:
        """Drop ready messages that the log could not write. ranges: offsets, ends included."""
        raise NotImplementedError


class SearchableOrder(ReadyOrder):
    """Base class of the orders that a `LogScan` searches (scan.py): it takes messages out of their middle."""

    def begin_search(self, index: MemoryIndex) -> None:
        """Begin to update the index of a search: it follows what enters and leaves memory."""
        raise NotImplementedError

    def end_search(self, index: MemoryIndex) -> None:
        raise NotImplementedError

    def begin_slice(self, queue: Queue) -> bool:
        """Prepare a slice of a search. Return False if it must not look at messages yet."""
        return True

    def is_ready_in_log(self, record: Record) -> bool:
        """Return whether an unsettled record that is not in memory is ready."""
        raise NotImplementedError

    def take_from_log(self, queue: Queue, record: Record) -> QueueEntry:
        """Take a message for which `is_ready_in_log` is true."""
        raise NotImplementedError

    def take_held(self, queue: Queue, wanted: Mapping[QueueEntry, Message], index: MemoryIndex) -> None:
        """Take these entries of the index, all of them in memory. Cost: a step for each entry in memory."""
        raise NotImplementedError
