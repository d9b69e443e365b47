"""Delayed retry: returned messages that wait in their queue for the next delivery.

Arguments: x-delayed-retry-type, x-delayed-retry-min, x-delayed-retry-max and x-delayed-retry-levels.

`RetryPolicy` (config.py) decides which messages wait, and how long. A waiting message is neither ready nor unacked. It
counts for length limits (rabbit: the same). A full queue drops waiting messages before ready ones, in the order of
their due times. The end of a message's time to live also ends its wait. Then the message is ready again at its old
place, like a requeued one. One timer per queue watches the message that is due first. Due
messages become ready in slices.

**Restart.** The log stores with the delivery count when a message is due, by wall clock (`QueueLog.mark_delayed`), in
the turn of its return. After a kill the message waits for the rest of its time and counts as redelivered. After a power
cut, or with another type of log, messages whose time was not stored are ready at once. If the wall clock was set back,
a message waits at most the longest time of the rule. `find` searches the log in slices before the queue opens, so no
waiting message is delivered early. The ready order skips these messages (`restore`). Each becomes an entry when it is
due first. Until it is read, a message counts an equal share of all body bytes. Queues with groups treat them as ready.

**Memory.** One entry per waiting message, besides the log's own data. Bodies stay in memory up to HELD_BYTES_MAX per
queue, or if no durable log has them. Other bodies are read at delivery.

Compiled by mypyc.
"""

from __future__ import annotations

import logging
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import QueueEntry, within
from amqpd.broker.flow.timers import Timer
from amqpd.broker.queue.config import RetryPolicy
from amqpd.broker.queue.offset_bitmap import OffsetBitmap
from amqpd.broker.queue.ready_order import ReadyOrder
from amqpd.broker.queue.services import QueueServices
from amqpd.broker.queue.store import QueueStore
from amqpd.storage.queue_log import QueueLog

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue

log = logging.getLogger(__name__)

HELD_BYTES_MAX: Final = 256 * 1024
# Duration of a slice, at a start or when messages are due. The clock is read once per LOOK_COUNT messages.
# SLICE_COUNT_MAX ends a slice if the clock does not advance.
SLICE_MS: Final = 2
LOOK_COUNT: Final = 32
SLICE_COUNT_MAX: Final = 4096
# Delay until a log that could not be read is read again.
FAILED_MS: Final = 1000
# Waiting messages that are read at a start to get their size; 10 us each.
MEASURED_COUNT_MAX: Final = 64


@final
class DelayedEntry:
    """A waiting message.

    Attributes:
        due_ms: End of the wait, monotonic.
        sized: The size of its body is known.
        held: Its body is in memory and counts in HELD_BYTES_MAX.
    """

    def __init__(self, entry: QueueEntry, due_ms: i64, sized: bool) -> None:
        self.entry = entry
        self.due_ms = due_ms
        self.sized = sized
        self.held = False

    def __lt__(self, other: DelayedEntry) -> bool:
        if self.due_ms != other.due_ms:
            return self.due_ms < other.due_ms
        return self.entry.offset < other.entry.offset

    def __hash__(self) -> int:
        # A compiled class with a comparison has no hash of its own.
        return id(self)


@final
class DelayedRetries(Timer):
    """The messages of one queue that wait for a retry. Only this class changes `delayed_count` and `delayed_bytes`."""

    def __init__(self, queue: Queue, host: QueueServices, backing: QueueStore) -> None:
        super().__init__()
        self._queue = queue
        self._host = host
        self._timers = host.timers
        self._backing = backing
        self._rule: RetryPolicy | None = None
        # The heap has the entry that is due first. `_earlier` is a heap of (due_ms, offset): messages that wait since
        # before the start and have no entry yet.
        self._heap: list[DelayedEntry] = []
        self._earlier: list[tuple[int, int]] = []
        # Both until the log is open: offsets that `find` must still check, the next one last; offsets that wait.
        self._unchecked: list[int] | None = None
        self._found = OffsetBitmap()
        # Bytes that a message of `_earlier` counts until its size is known.
        self._mean_size_bytes: i64 = 0
        self._held_bytes: i64 = 0

    def apply_config(self, rule: RetryPolicy | None) -> None:
        """Replace the rule. Waiting messages keep their time; without a rule they are due at once."""
        self._rule = rule
        if self._unchecked is not None:
            self._forget_earlier()  # `find` begins again with this rule
        if rule is None and self._heap:
            self._timers.arm(self, self._timers.now_ms())

    # -- begin of a wait

    def wait(self, entry: QueueEntry, failed: bool, until_ms: i64) -> bool:
        """Let a returned entry wait, if the rule says so. Return whether it waits.

        Args:
            until_ms: When its time to live ends.
        """
        rule = self._rule
        if rule is None:
            return False
        delay_ms = rule.delay_ms(failed, entry.delivery_count)
        timers = self._timers
        now_ms = timers.now_ms()
        if until_ms - now_ms < delay_ms:
            delay_ms = until_ms - now_ms
        if delay_ms <= 0:
            return False
        self._backing.mark_returned(entry, timers.steady_ms() + delay_ms)
        delayed = DelayedEntry(entry, now_ms + delay_ms, True)
        if not self._backing.spilled and self._backing.is_logged(entry.offset):
            if self._held_bytes + entry.body_size > HELD_BYTES_MAX:
                entry.message = None
            elif entry.message is not None:
                delayed.held = True
                self._held_bytes += entry.body_size
        heappush(self._heap, delayed)
        queue = self._queue
        queue.delayed_count += 1
        queue.delayed_bytes += entry.body_size
        timers.arm_sooner(self, delayed.due_ms)
        return True

    def find(self, store: QueueLog) -> bool:
        """Search one slice of the messages returned before the start for those that still wait.

        The log is not open yet, so nothing else changes it.

        Returns: True when all are checked.
        Cost: 0.5 us per message, uncompiled.
        """
        rule = self._rule
        if rule is None:
            return True
        unchecked = self._unchecked
        if unchecked is None:
            unchecked = store.returned_offsets()
            unchecked.reverse()  # the heap is cheapest in the order of returns
            self._unchecked = unchecked
        timers = self._timers
        now_ms = timers.now_ms()
        steady_ms = timers.steady_ms()
        earlier = self._earlier
        count: i64 = 0
        while unchecked:
            offset = unchecked.pop()
            left_ms: i64 = store.due_ms(offset) - steady_ms
            if left_ms > 0:
                if left_ms > rule.longest_ms:
                    left_ms = rule.longest_ms
                until_ms: int = now_ms + left_ms
                heappush(earlier, (until_ms, offset))
                self._found.add(offset)
            count += 1
            if count >= SLICE_COUNT_MAX or (count % LOOK_COUNT == 0 and timers.now_ms() - now_ms >= SLICE_MS):
                break
        return len(unchecked) == 0

    def restore(self, store: QueueLog) -> OffsetBitmap:
        """Count the messages that waited before the start as waiting, when the log has just been opened.

        Each becomes an entry when it is due first.

        Returns: Their offsets. The ready order must skip them.
        """
        while not self.find(store):
            pass  # the queue was needed before all slices were done
        found = self._found
        self._unchecked = None
        self._found = OffsetBitmap()
        if self._earlier:
            self._count_earlier(len(self._earlier))
            self._measure_first()
            self._timers.arm(self, self._heap[0].due_ms)
        return found

    def _forget_earlier(self) -> None:
        self._unchecked = None
        self._earlier = []
        self._found = OffsetBitmap()

    def _count_earlier(self, count: i64) -> None:
        """Subtract them from the ready messages, each with an equal share of the bytes."""
        queue = self._queue
        share = queue.ready_bytes // queue.ready_count
        self._mean_size_bytes = share
        queue.ready_count -= count
        queue.ready_bytes = queue.ready_bytes - share * count if queue.ready_count > 0 else 0
        queue.delayed_count += count
        queue.delayed_bytes += share * count

    def _measure_first(self) -> None:
        """Read the sizes of the messages that are due first."""
        count: i64 = 0
        while self._earlier and count < MEASURED_COUNT_MAX:
            count += 1
            delayed = self._make_first_entry()
            try:
                self._measure(delayed)
                delayed.entry.message = None
            except OSError as error:
                log.warning("queue %r: messages waiting for a retry could not be read yet: %s", self._queue.name, error)
                break

    def _make_first_entry(self) -> DelayedEntry:
        """Make an entry for the first message of `_earlier`."""
        due_ms, offset = heappop(self._earlier)
        entry = QueueEntry(self._queue, offset, None, True)
        entry.body_size = self._mean_size_bytes
        store = self._backing.store
        if store is not None:
            entry.delivery_count = store.delivery_count(offset)
        delayed = DelayedEntry(entry, due_ms, False)
        heappush(self._heap, delayed)
        return delayed

    def _ensure_first(self) -> None:
        """Ensure that the heap has the message that is due first, after its first one has changed."""
        if not self._earlier:
            return
        heap = self._heap
        due_ms, offset = self._earlier[0]
        if not heap or heap[0].due_ms > due_ms or (heap[0].due_ms == due_ms and heap[0].entry.offset > offset):
            self._make_first_entry()

    # -- end of a wait

    def fire(self) -> None:
        """Make one slice of due messages ready, and set the timer for the next one."""
        queue = self._queue
        if queue.deleted:
            return
        timers = self._timers
        heap = self._heap
        now_ms = timers.now_ms()
        again_ms = now_ms
        count: i64 = 0
        try:
            while heap and (heap[0].due_ms <= now_ms or self._rule is None):
                if count >= SLICE_COUNT_MAX or (count % LOOK_COUNT == 0 and timers.now_ms() - now_ms >= SLICE_MS):
                    break
                count += 1
                self._make_ready(heap[0])
        except OSError as error:
            queue.pump_failed(error)
            again_ms = now_ms + FAILED_MS
        if heap:
            due_ms = heap[0].due_ms
            if due_ms < again_ms or self._rule is None:
                due_ms = again_ms
            timers.arm(self, due_ms)
        queue.schedule_dispatch()
        self._host.turn.schedule()

    def _make_ready(self, delayed: DelayedEntry) -> None:
        """Make the first entry ready. Raises: OSError; then it continues to wait."""
        entry = delayed.entry
        is_in_log = delayed.sized
        if not is_in_log:
            is_in_log = self._measure(delayed)
            entry.message = None  # read again at delivery
        if is_in_log:
            self._queue.order.requeue(self._queue, entry)
        self._remove_first(delayed)

    def take_first(self) -> QueueEntry | None:
        """Remove and return the message that is due first, for the caller to drop. Raises: OSError."""
        heap = self._heap
        while heap:
            delayed = heap[0]
            is_in_log = delayed.sized or self._measure(delayed)
            self._remove_first(delayed)
            if is_in_log:
                return delayed.entry
        return None

    def _measure(self, delayed: DelayedEntry) -> bool:
        """Read a message that waited at the start, and correct the byte counts by its size.

        Returns: False if the log has lost it.
        Raises:
            OSError: The log could not be read.
        """
        entry = delayed.entry
        self._backing.read_back(entry)
        message = entry.message
        if message is None:
            return False
        added_bytes = message.body_size - entry.body_size
        entry.body_size = message.body_size
        delayed.sized = True
        queue = self._queue
        queue.delayed_bytes += added_bytes
        if queue.ready_count > 0:
            queue.ready_bytes = queue.ready_bytes - added_bytes if queue.ready_bytes > added_bytes else 0
        return True

    def _remove_first(self, delayed: DelayedEntry) -> None:
        heappop(self._heap)
        self._uncount(delayed)
        self._ensure_first()

    def _uncount(self, delayed: DelayedEntry) -> None:
        size = delayed.entry.body_size
        queue = self._queue
        queue.delayed_count -= 1
        queue.delayed_bytes -= size
        if delayed.held:
            self._held_bytes -= size

    # -- removal of all

    def purge(self, order: ReadyOrder) -> i64:
        """Settle all waiting messages, before the ready ones. Return their number."""
        while self._earlier:
            self._make_first_entry()
        heap = self._heap
        queue = self._queue
        self._heap = []
        self._timers.cancel(self)
        for delayed in heap:
            self._uncount(delayed)
            self._backing.settle(delayed.entry)
            order.unreserve(queue, delayed.entry)
        return len(heap)

    def end(self) -> None:
        """Forget all waiting messages: the queue is deleted, or has plain rules now."""
        self._timers.cancel(self)
        self._heap = []
        self._forget_earlier()
        self._held_bytes = 0
        self._queue.delayed_count = 0
        self._queue.delayed_bytes = 0

    def drop_unwritten(self, ranges: list[tuple[int, int]], order: ReadyOrder) -> None:
        """Handle offsets that the log could not write: messages in memory stay there, the others are lost."""
        kept: list[DelayedEntry] = []
        for delayed in self._heap:
            entry = delayed.entry
            if within(entry.offset, ranges):
                if entry.message is None:
                    self._uncount(delayed)
                    order.unreserve(self._queue, entry)
                    continue
                entry.offset = -1
            kept.append(delayed)
        heapify(kept)
        self._heap = kept
        self._ensure_first()
