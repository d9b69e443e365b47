"""Services of the broker for queues, and the memory windows of all queues.

A queue calls its `QueueServices` and therefore imports neither vhost nor broker. One object serves all queues of a
vhost.

A queue with a log keeps a window of its ready messages in memory (ready_order.py). Up to QUEUES_FULL queues have
a window of full size. With more queues the windows shrink, down to a minimum: a thousand queues with backlogs use about
130 MB instead of gigabytes. With a smaller window the queue reads more from its log; nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64, mypyc_attr

from amqpd.broker.consumer import DelayHooks, QueueEntry
from amqpd.broker.flow.loop_turn import LoopTurn
from amqpd.broker.flow.timers import Timers
from amqpd.broker.message import Message
from amqpd.broker.queue.log_opener import FailedQueueRetry, LogOpener
from amqpd.storage.storage import Storage

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue

QUEUES_FULL: Final = 32
COUNT_MAX: Final = 4096
COUNT_MIN: Final = 32
BYTES_MAX: Final = 4 * 1024 * 1024
BYTES_MIN: Final = 32 * 1024
# Size of one read of the log.
COLD_READ_BYTES: Final = 256 * 1024


class MemoryWindow:
    """Limits of the ready messages of one queue in memory.

    Attributes:
        count_max: limit of ready messages.
        bytes_max: limit of the bytes of their bodies.
        hot_bytes: bytes of the bodies in memory, counted by the queue's ready order.
    """

    def __init__(self, count_max: i64, bytes_max: i64) -> None:
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.hot_bytes: i64 = 0

    def is_full(self, hot_count: i64) -> bool:
        """Return whether no further message fits, with `hot_count` messages in memory."""
        return hot_count >= self.count_max or self.hot_bytes >= self.bytes_max

    def read_bytes(self) -> i64:
        """Return the bytes of one read of the log: fewer for a small window."""
        return COLD_READ_BYTES if self.bytes_max >= 16 * COLD_READ_BYTES else self.bytes_max // 16


class MemoryWindows:
    """The memory windows of all queues with logs. The broker has one object.

    Attributes:
        count_max, bytes_max: the present limits of each window.
    """

    def __init__(self) -> None:
        self.count_max: i64 = COUNT_MAX
        self.bytes_max: i64 = BYTES_MAX
        self._windows: set[MemoryWindow] = set()
        self._shares: i64 = QUEUES_FULL  # the memory of QUEUES_FULL full windows is divided by this

    def add(self, window: MemoryWindow) -> None:
        """Add the window of another queue. Cost: O(1); a step per window when their number has doubled."""
        self._windows.add(window)
        if len(self._windows) > self._shares:
            self._cut(2 * self._shares)
        else:
            self._set(window)

    def remove(self, window: MemoryWindow) -> None:
        """Remove the window of a deleted queue."""
        self._windows.discard(window)
        if self._shares > QUEUES_FULL and len(self._windows) < self._shares // 4:
            self._cut(self._shares // 2)

    def _cut(self, shares: i64) -> None:
        self._shares = shares
        self.count_max = max(COUNT_MIN, COUNT_MAX * QUEUES_FULL // shares)
        self.bytes_max = max(BYTES_MIN, BYTES_MAX * QUEUES_FULL // shares)
        for window in self._windows:
            self._set(window)

    def _set(self, window: MemoryWindow) -> None:
        window.count_max = self.count_max
        window.bytes_max = self.bytes_max


class DeadLetterSink:
    """Base class of `DeadLetterPublisher` (publish/dead_letter.py): queues are below that package."""

    def add(self, queue: Queue, entry: QueueEntry | None, message: Message | None, reason: str) -> None:
        """Publish a message to the queue's dead-letter exchange soon. Cost: O(1).

        Args:
            entry: settled in the queue's log when the targets are safe; None if the message was never in the queue.
            message: None if only the log has it.
        """
        raise NotImplementedError

    def add_range(self, queue: Queue, first: i64, last: i64, reason: str) -> None:
        """Publish all unsettled messages with these offsets, ends included. Only the queue's log has them.

        No message below `first` may be ready.
        """
        raise NotImplementedError

    def is_behind(self) -> bool:
        """Return whether too many dead letters wait in memory, so that expiry and length limits must pause."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class OffsetStore:
    """Base class of `ConsumerOffsets` (vhost/consumer_offsets.py): stored offsets of named stream consumers.

    A stored offset is the *next* one to read.
    """

    def admit(self, queue_id: str, name: str) -> bool:
        """Admit a new consumer. Return False if the queue has too many other names: it then stores no offset."""
        raise NotImplementedError

    def get(self, queue_id: str, name: str) -> int | None:
        """Return the next offset to read; None if the name has none."""
        raise NotImplementedError

    def put(self, queue_id: str, name: str, offset: int) -> None:
        """Store the offset of an admitted consumer: it has acked everything below. Cost: under 1 us."""
        raise NotImplementedError

    def settle(self, queue_id: str, name: str) -> None:
        """Write the changed offsets in this loop turn, because a consumer ends."""
        raise NotImplementedError


@final
class QueueServices:
    """The broker as the queues of one vhost see it.

    Attributes:
        turn: dispatches queues at the end of the loop turn.
        timers: the clock, and the timers of time to live and leases.
        windows: the memory windows of all queues of the broker.
        opener: opens logs after a start.
        pump_retries: retries queues whose dispatch failed.
        expire: deletes a queue whose lease is over (x-expires). rabbit: its messages are not dead-lettered.
        delays: the delayed messages of exchanges.
    """

    def __init__(
        self,
        vhost_name: str,
        vhost_id: str,
        turn: LoopTurn,
        timers: Timers,
        windows: MemoryWindows,
        storage: Storage,
        opener: LogOpener,
        pump_retries: FailedQueueRetry,
        dead_letters: DeadLetterSink,
        stored_offsets: OffsetStore,
        expire: Callable[[Queue], object],
        delays: DelayHooks,
    ) -> None:
        self.vhost_name = vhost_name
        self.vhost_id = vhost_id
        self.turn = turn
        self.timers = timers
        self.windows = windows
        self.storage = storage
        self.opener = opener
        self.pump_retries = pump_retries
        self.dead_letters = dead_letters
        self.stored_offsets = stored_offsets
        self.expire = expire
        self.delays = delays
