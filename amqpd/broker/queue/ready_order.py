"""The ready order of a queue: which of its messages is next, and where it is until then.

A queue has one for life: `FifoOrder` (fifo.py) is order of arrival, `PriorityOrder` (priority.py) is by priority, and
`StreamOrder` (stream.py) gives out what it does not take. Only `FifoOrder` gives way, to `FilteredOrder`
(filtered.py) and back, as consumers with filters come and go. Nobody but the order changes the queue's
`ready_count` and `ready_bytes`: whether what `take` gives out is ready no more is for the order to say.

An order knows its queue's backing and is handed the queue with each call, so the two hold each other in no circle. It
keeps a window of entries in memory (`MemoryWindow`: how much) and reads the rest from the log.

Invariant: what it has given out by `take` it gives out again only after `put_back`.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from amqpd.broker.consumer import Consumer, QueueBase, QueueEntry
from amqpd.broker.message import Message
from amqpd.broker.queue.config import QueueConfig
from amqpd.broker.queue.offset_bitmap import OffsetBitmap
from amqpd.broker.queue.services import MemoryWindow, QueueServices
from amqpd.broker.queue.store import QueueStore
from amqpd.storage.queue_log import QueueLog

# The window in memory, per queue. A durable queue's is small, its log has everything anyway; a transient queue's is
# what it may hold before it needs a temporary log.
HOT_COUNT_MAX: Final = 4096
HOT_BYTES_MAX: Final = 4 * 1024 * 1024
TRANSIENT_COUNT_MAX: Final = 32768
TRANSIENT_BYTES_MAX: Final = 16 * 1024 * 1024
# What one reading of the log brings back.
COLD_READ_BYTES: Final = 256 * 1024


class ReadyOrder:
    """One queue's. hot_bytes: of the bodies in the window. reading: the disk is asked for what comes next, and the
    queue's `log_arrived` is called when it has answered.
    """

    def __init__(self, backing: QueueStore) -> None:
        self.backing = backing
        if backing.store is None:
            self.memory = MemoryWindow(TRANSIENT_COUNT_MAX, TRANSIENT_BYTES_MAX)
        else:
            self.memory = MemoryWindow(HOT_COUNT_MAX, HOT_BYTES_MAX)
        self.reading = False

    def is_reading(self) -> bool:
        """Return whether the disk was asked for the next message. The queue's `log_arrived` is called with it."""
        return self.reading

    def opened(self, queue: QueueBase) -> None:
        """The log is known, and the queue's counts are those of the log; nothing is read yet."""

    def resumed(self, queue: QueueBase) -> None:
        """The log, which had failed, takes more."""
        queue.schedule_dispatch()

    def obey(self, rules: QueueConfig) -> None:
        """The queue's rules are these from now on."""

    def join(self, queue: QueueBase, consumer: Consumer) -> None:
        """A consumer is about to be served. Where each has a place of its own it gets it here."""

    def leave(self, queue: QueueBase, consumer: Consumer) -> None:
        """A consumer gets nothing more."""

    def load_head(self, queue: QueueBase) -> None:
        """The first ready message comes into memory, and no more: nobody may ask for the others. Where that takes the
        disk, it is looked at when it has come. Raises: OSError.
        """
        raise NotImplementedError

    def needs_head(self) -> bool:
        """Whether nothing is in memory yet, so that what `look_at_first` has asked the disk for is still wanted."""
        return False

    # -- to be shown

    def memory_count(self) -> i64:
        """Entries in the window."""
        return 0

    def first_at_hand(self) -> Message | None:
        """The message that is next, where it is in memory and that is known; nothing is read for it."""
        return None

    def scan(self, queue: QueueBase) -> bool:
        """Whether it knows all it has to know to give something out. Else a turn's share of the log was read, and the
        queue is pumped again; or its consumers were served, each at its own place.
        """
        return True

    # -- in

    def add(self, queue: QueueBase, message: Message, offset: i64) -> bool:
        """The message, just appended, is ready. False: memory is full, and the queue has no log yet: it spills."""
        raise NotImplementedError

    def add_prepared(self, queue: QueueBase, offset: i64, count: i64, size_bytes: i64, first: list[Message]) -> None:
        """So many messages, just appended from `offset` on, are ready. first: the oldest of them, for the window."""
        raise NotImplementedError

    def skip_to(self, offset: i64) -> None:
        """A message, just appended, goes straight to a consumer, as nothing is ready."""
        raise NotImplementedError

    def requeue(self, queue: QueueBase, entry: QueueEntry) -> None:
        """What was taken is ready again, at its place."""
        raise NotImplementedError

    def reserve(self, entry: QueueEntry) -> None:
        """What was taken waits elsewhere and will be put back, or `release`d."""

    def unreserve(self, queue: QueueBase, entry: QueueEntry) -> None:
        """What was taken will not be put back. Of interest where what is taken holds up something else."""

    def exclude(self, offsets: OffsetBitmap) -> None:
        """The log, which has just been opened, has these, and they are not ready: they will be put back, or end. Called
        before `opened`; the order keeps the set.
        """

    # -- out

    def is_next_in_memory(self, queue: QueueBase) -> bool:
        """Whether `take` need not wait for the disk. If not, `queue.log_arrived` is called when it has answered."""
        raise NotImplementedError

    def take(self, queue: QueueBase) -> QueueEntry | None:
        """The next ready entry, with its message. None: nothing is ready. Cost: O(1), a reading of the log once per
        window. Raises: OSError, and the entry stays in its place.
        """
        raise NotImplementedError

    def head(self, queue: QueueBase) -> QueueEntry | None:
        """The entry that `take` would return; it stays where it is. None also while the disk is asked for it."""
        raise NotImplementedError

    def mark_delivered(self, store: QueueLog, offset: i64) -> None:
        """A consumer is about to see it: after a kill it counts as redelivered."""
        raise NotImplementedError

    def drop_expired(self, queue: QueueBase, host: QueueServices, arrived_max_ms: i64, count_max: i64) -> i64:
        """As `QueueBase.drop_old`."""
        return 0

    def stamp_arrival(self, now_ms: i64) -> None:
        """A time to live begins: what is in memory, and nobody has noted when it came, begins to age now."""
        raise NotImplementedError

    # -- ends

    def purge(self, queue: QueueBase) -> None:
        """Settles all that is ready."""
        raise NotImplementedError

    def clear(self, queue: QueueBase) -> None:
        """The queue is deleted: nothing is ready, and nothing stays in memory."""
        raise NotImplementedError

    def unwritten(self, queue: QueueBase, ranges: list[tuple[int, int]]) -> None:
        """The log could not take these offsets (inclusive): what of them is ready goes."""
        raise NotImplementedError
