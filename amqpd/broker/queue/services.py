"""Services of the broker for queues, and the memory windows of all queues.

A queue calls its `QueueServices` and therefore imports neither vhost nor broker. The broker's implementation is
broker/queue_services.py; one object serves all queues of a vhost. A test can pass its own.

A queue with a log keeps a window of its ready messages in memory (ready_order.py). Up to QUEUES_FULL queues have
a window of full size. With more queues the windows shrink, down to a minimum: a thousand queues with backlogs use about
130 MB instead of gigabytes. With a smaller window the queue reads more from its log; nothing else changes.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr

from amqpd.broker.consumer import QueueBase, QueueEntry
from amqpd.broker.delay_hook import DelayHook
from amqpd.broker.flow.loop_turn import LoopTurn
from amqpd.broker.flow.timers import Timers
from amqpd.broker.message import Message
from amqpd.broker.queue.log_opening import LogOpening
from amqpd.storage.acks.replay import AckedReplay
from amqpd.storage.queue_log import QueueLog
from amqpd.storage.retention_policy import RetentionPolicy

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


@mypyc_attr(allow_interpreted_subclasses=True)
class QueueServices:
    """The broker as the queues of one vhost see it.

    Attributes:
        turn: dispatches queues at the end of the loop turn.
        timers: the clock, and the timers of time to live and leases.
        windows: the memory windows of all queues of the broker.
    """

    def __init__(self, vhost_name: str, vhost_id: str, turn: LoopTurn, timers: Timers, windows: MemoryWindows) -> None:
        self.vhost_name = vhost_name
        self.vhost_id = vhost_id
        self.turn = turn
        self.timers = timers
        self.windows = windows

    def open_soon(self, opening: LogOpening) -> bool:
        """Begin or continue to open a log.

        Returns: True if the log is open or cannot be opened; otherwise `opening.end` is called later.
        """
        raise NotImplementedError

    def pump_failed(self, queue: QueueBase, error: Exception) -> None:
        """Log an exception of `dispatch` (a read error or a bug), and dispatch the queue again later."""
        raise NotImplementedError

    def temporary_log(self, start_offset: i64) -> QueueLog:
        """Create a log that is never synced and ends with the process. Its first record gets `start_offset`."""
        raise NotImplementedError

    def declare_export(self, log: QueueLog, name: str, bytes_max: int | None) -> None:
        """Keep settled messages in the log until the export `name` has read them (x-export).

        Args:
            bytes_max: limit of what is kept; None for the default.
        """
        raise NotImplementedError

    def set_acked_retention(self, log: QueueLog, max_age_ms: i64, max_bytes: i64) -> None:
        """Keep settled messages in the log up to an age and a size (x-retain).

        Args:
            max_age_ms, max_bytes: -1 for no such limit. If both are -1, nothing is kept any more.
        """
        raise NotImplementedError

    def rewinder(self, log: QueueLog) -> AckedReplay:
        """Return the object that makes settled messages of the log ready again."""
        raise NotImplementedError

    def set_stream_retention(self, log: QueueLog, policy: RetentionPolicy) -> None:
        """Set the retention policy of a stream's log."""
        raise NotImplementedError

    def admit_name(self, queue_id: str, name: str) -> bool:
        """Return whether a consumer of this name may store its offset. False if the queue has too many names."""
        raise NotImplementedError

    def stored_offset(self, queue_id: str, name: str) -> i64:
        """Return the next offset of the named consumer, or -1 if none is stored."""
        raise NotImplementedError

    def store_offset(self, queue_id: str, name: str, offset: i64) -> None:
        """Store that the named consumer acked all offsets below `offset`. Written later with others. Cost: 1 us."""
        raise NotImplementedError

    def settle_offset(self, queue_id: str, name: str) -> None:
        """Write the stored offset in this turn: a consumer of this name has ended."""
        raise NotImplementedError

    def delay_hook(self, exchange: str) -> DelayHook:
        """Return the delayed messages of the named exchange."""
        raise NotImplementedError

    def end_delays(self) -> list[QueueLog]:
        """Drop all delayed messages of a deleted vhost. Return their logs; the caller removes them."""
        raise NotImplementedError

    def expire(self, queue: QueueBase) -> None:
        """Delete a queue whose lease is over (x-expires).

        rabbit: its messages are not dead-lettered.
        """
        raise NotImplementedError

    def dead_letter(self, queue: QueueBase, entry: QueueEntry | None, message: Message | None, reason: str) -> None:
        """Publish a message to the queue's dead-letter exchange soon.

        `entry` is settled in its log when the targets have the message safely.
        """
        raise NotImplementedError

    def dead_letter_range(self, queue: QueueBase, first: i64, last: i64, reason: str) -> None:
        """Dead-letter all messages between these offsets, ends included, that only the queue's log has."""
        raise NotImplementedError

    def dead_letters_behind(self) -> bool:
        """Return whether too many dead letters wait, so that expiry and length limits must pause."""
        raise NotImplementedError
