"""What a queue needs of the broker around it, and no more.

The queue is handed one at construction and calls it; the broker's side (broker/queue_services.py) derives from it. So a
queue knows neither its vhost nor the broker, and a test brings a host of its own. One host serves all queues of a
vhost.

How much of each log its queue may hold in memory, so that all of them together stay within bounds.

A queue with a log holds a window of what is ready (ready_order.py); the rest waits in the log. Up to QUEUES_FULL queues
have a whole window each. From there on the windows shrink as the queues double, down to a floor: a thousand queues with
backlogs hold some 130 MB where whole windows would be gigabytes. A window that is smaller costs reading from the log
what did not fit, and nothing else.
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


class MemoryWindow:
    """How much of one queue may be in memory.

    Attributes:
        count_max: Limit of ready messages.
        bytes_max: Limit of the bytes of their bodies.
        hot_bytes: Bytes of the bodies that are in memory now. The queue's ready order counts them.
    """

    def __init__(self, count_max: i64, bytes_max: i64) -> None:
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.hot_bytes: i64 = 0

    def is_full(self, hot_count: i64) -> bool:
        """Return whether no further message fits, with `hot_count` messages in memory."""
        return hot_count >= self.count_max or self.hot_bytes >= self.bytes_max


class MemoryWindows:
    """Of all queues with logs; one per broker. `count_max`, `bytes_max`: of each window just now."""

    def __init__(self) -> None:
        self.count_max: i64 = COUNT_MAX
        self.bytes_max: i64 = BYTES_MAX
        self._windows: set[MemoryWindow] = set()
        self._shares: i64 = QUEUES_FULL  # how many windows the whole is cut into

    def add(self, window: MemoryWindow) -> None:
        """Of another queue with a log. Cost: O(1), and now and then a step for each."""
        self._windows.add(window)
        if len(self._windows) > self._shares:
            self._cut(2 * self._shares)
        else:
            self._set(window)

    def remove(self, window: MemoryWindow) -> None:
        """Its queue is deleted."""
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
    """vhost_name, vhost_id: whose queues they are. turn: pumps them at its end. timers: clock, time to live, leases.
    windows: of all queues of the broker, what each may hold in memory.
    """

    def __init__(self, vhost_name: str, vhost_id: str, turn: LoopTurn, timers: Timers, windows: MemoryWindows) -> None:
        self.vhost_name = vhost_name
        self.vhost_id = vhost_id
        self.turn = turn
        self.timers = timers
        self.windows = windows

    def open_soon(self, opening: LogOpening) -> bool:
        """Begins it, or goes on with it. Whether the log is open, or cannot be; else `opening.end` is called then."""
        raise NotImplementedError

    def pump_failed(self, queue: QueueBase, error: Exception) -> None:
        """The queue's log could not be read, or its pump has a bug: it is tried again in a while."""
        raise NotImplementedError

    def temporary_log(self, start_offset: i64) -> QueueLog:
        """A log that is never synced and gone with the broker; its first record gets `start_offset`."""
        raise NotImplementedError

    def declare_export(self, log: QueueLog, name: str, bytes_max: int | None) -> None:
        """x-export: what is settled stays in the log until the export of this name has it. bytes_max: None: default."""
        raise NotImplementedError

    def retain(self, log: QueueLog, max_age_ms: i64, max_bytes: i64) -> None:
        """x-retain: what is settled stays in the log until it is older, or more; -1: no such limit; both: it goes."""
        raise NotImplementedError

    def rewind(self, log: QueueLog) -> AckedReplay:
        """To make settled messages of it live again."""
        raise NotImplementedError

    def keep(self, log: QueueLog, policy: RetentionPolicy) -> None:
        """What a stream's log keeps from now on."""
        raise NotImplementedError

    def admit_name(self, queue_id: str, name: str) -> bool:
        """Whether a consumer of that name may store how far it has come; False: too many others do."""
        raise NotImplementedError

    def stored_offset(self, queue_id: str, name: str) -> i64:
        """The next offset that the consumer of that name reads; -1: nothing is stored."""
        raise NotImplementedError

    def store_offset(self, queue_id: str, name: str, offset: i64) -> None:
        """All below it is acked. It is written soon, with others. Cost: 1 us."""
        raise NotImplementedError

    def settle_offset(self, queue_id: str, name: str) -> None:
        """A consumer of that name ends: what is stored is written in this turn."""
        raise NotImplementedError

    def delaying(self, exchange: str) -> DelayHook:
        """The messages that the exchange of this name delays."""
        raise NotImplementedError

    def end_delays(self) -> list[QueueLog]:
        """The vhost is deleted: so is what its exchanges have delayed. Returns the logs, which are to go."""
        raise NotImplementedError

    def expire(self, queue: QueueBase) -> None:
        """x-expires: nobody has used it for long enough. Its messages are not dead-lettered (rabbit: neither)."""
        raise NotImplementedError

    def dead_letter(self, queue: QueueBase, entry: QueueEntry | None, message: Message | None, reason: str) -> None:
        """Publishes it to the queue's dead-letter exchange, soon; settles `entry` in its log when that is safe."""
        raise NotImplementedError

    def dead_letter_range(self, queue: QueueBase, first: i64, last: i64, reason: str) -> None:
        """The same for all that the queue's log alone holds between these offsets, ends included."""
        raise NotImplementedError

    def dead_letters_behind(self) -> bool:
        """Whether what is over has to wait for dead letters."""
        raise NotImplementedError
