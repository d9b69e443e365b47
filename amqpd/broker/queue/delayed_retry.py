"""Retry with delay: what came back and waits in its queue for its next try.

x-delayed-retry-type, x-delayed-retry-min, x-delayed-retry-max and x-delayed-retry-levels say what waits and how long
(config.py); here it does.

It is neither ready nor unacked. It counts in the queue's lengths (rabbit: the same), where it goes before what is
ready: it was there first, and the one that is due first goes first. Its time to live, which goes on, ends the waiting.
When its time has come it is ready again at its place (`QueueBase.ready_again`), and behaves as what was requeued. One
timer a queue watches the first that is due; what is due at once goes in slices.

**Over a restart.** The log notes with the delivery count when a message is due, by wall clock
(`QueueLog.mark_delayed`), with the turn in which it came back: after a kill it waits for the rest of its time, and
counts as redelivered; after a power cut, or with a log of another kind, what was not noted is ready at once. A wall
clock that was set back makes nobody wait longer than the rule's longest time. What waited at a start is found in slices
before the queue is open (`find`), so that none of it is delivered early. It is passed over by the ready order
(`restore`), and becomes an entry when it is due first; of very many the size of a body is an equal share of all until
then. Queues with groups take it as ready.

**Memory.** An entry a message that waits, beside what the log's books have of it. Its body is kept while all of a
queue's have HELD_BYTES_MAX together, or where no log has it that lasts; else it is read when it is delivered.

Compiled by mypyc.
"""

from __future__ import annotations

import logging
from heapq import heapify, heappop, heappush
from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import QueueBase, QueueEntry, within
from amqpd.broker.flow.timers import Timer
from amqpd.broker.queue.config import RetryPolicy
from amqpd.broker.queue.offset_bitmap import OffsetBitmap
from amqpd.broker.queue.ready_order import ReadyOrder
from amqpd.broker.queue.services import QueueServices
from amqpd.broker.queue.store import QueueStore
from amqpd.storage.queue_log import QueueLog

log = logging.getLogger(__name__)

HELD_BYTES_MAX: Final = 256 * 1024
# How long a slice of what is due, or is found at a start, may take, looked at once per LOOK_COUNT messages; a clock
# that stands still ends none.
SLICE_MS: Final = 2
LOOK_COUNT: Final = 32
SLICE_COUNT_MAX: Final = 4096
# Until a log that could not be read is tried again.
FAILED_MS: Final = 1000
# Of what waited at a start so many are read for their size; some 10 us each.
MEASURED_COUNT_MAX: Final = 64


@final
class DelayedEntry:
    """An entry that waits. due_ms: monotonic. sized: the size of its body is known. held: its body is in memory, and
    counts in HELD_BYTES_MAX."""

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
        # Compiled, a class with a comparison has none of its own accord.
        return id(self)


@final
class DelayedRetries(Timer):
    """Of one queue, whose `delayed_count` and `delayed_bytes` nobody else changes."""

    def __init__(self, queue: QueueBase, host: QueueServices, backing: QueueStore) -> None:
        super().__init__()
        self._queue = queue
        self._host = host
        self._timers = host.timers
        self._backing = backing
        self._rule: RetryPolicy | None = None
        # What is due first is here; of what waits since a start, the rest is in the other one: when, and its offset.
        self._heap: list[DelayedEntry] = []
        self._earlier: list[tuple[int, int]] = []
        # Until the log is open: the offsets that `find` has yet to look at, the next one last; those that wait.
        self._unseen: list[int] | None = None
        self._found = OffsetBitmap()
        # What a message of that counts as, until its size is known.
        self._share_bytes: i64 = 0
        self._held_bytes: i64 = 0

    def obey(self, rule: RetryPolicy | None) -> None:
        """This rule from now on. What waits keeps its time; without a rule it is due at once."""
        self._rule = rule
        if self._unseen is not None:
            self._forget_earlier()  # it is found anew, by this rule
        if rule is None and self._heap:
            self._timers.arm(self, self._timers.now_ms())

    # -- in

    def wait(self, entry: QueueEntry, failed: bool, until_ms: i64) -> bool:
        """Whether an entry that comes back has to wait: then it does. until_ms: when its time to live is over."""
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
        """A slice of going over what an earlier life of the broker has given back, for what still waits. The log is not
        open yet: nothing else changes it. True: that was all. Cost: 0.5 us a message, uncompiled.
        """
        rule = self._rule
        if rule is None:
            return True
        unseen = self._unseen
        if unseen is None:
            unseen = store.given_back()
            unseen.reverse()  # in order, as they were given back, the heap costs least
            self._unseen = unseen
        timers = self._timers
        now_ms = timers.now_ms()
        steady_ms = timers.steady_ms()
        earlier = self._earlier
        count: i64 = 0
        while unseen:
            offset = unseen.pop()
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
        return len(unseen) == 0

    def restore(self, store: QueueLog) -> OffsetBitmap:
        """The log has just been opened: what waits since an earlier life of the broker is not ready. Returns the
        offsets, which the ready order is to pass over. Each becomes an entry when it is due first.
        """
        while not self.find(store):
            pass  # of a queue that could not wait for the slices
        found = self._found
        self._unseen = None
        self._found = OffsetBitmap()
        if self._earlier:
            self._count_earlier(len(self._earlier))
            self._measure_first()
            self._timers.arm(self, self._heap[0].due_ms)
        return found

    def _forget_earlier(self) -> None:
        self._unseen = None
        self._earlier = []
        self._found = OffsetBitmap()

    def _count_earlier(self, count: i64) -> None:
        """They are not ready; each has an equal share of the bytes."""
        queue = self._queue
        share = queue.ready_bytes // queue.ready_count
        self._share_bytes = share
        queue.ready_count -= count
        queue.ready_bytes = queue.ready_bytes - share * count if queue.ready_count > 0 else 0
        queue.delayed_count += count
        queue.delayed_bytes += share * count

    def _measure_first(self) -> None:
        """The true sizes of those that are due first."""
        count: i64 = 0
        while self._earlier and count < MEASURED_COUNT_MAX:
            count += 1
            delayed = self._draw()
            try:
                self._measure(delayed)
                delayed.entry.message = None
            except OSError as error:
                log.warning("queue %r: what waits in it could not be read yet: %s", self._queue.name, error)
                break

    def _draw(self) -> DelayedEntry:
        """The first of what waits since the start becomes an entry."""
        due_ms, offset = heappop(self._earlier)
        entry = QueueEntry(self._queue, offset, None, True)
        entry.body_size = self._share_bytes
        store = self._backing.store
        if store is not None:
            entry.delivery_count = store.delivery_count(offset)
        delayed = DelayedEntry(entry, due_ms, False)
        heappush(self._heap, delayed)
        return delayed

    def _draw_first(self) -> None:
        """The heap's first has changed: the one that is due first is there again."""
        if not self._earlier:
            return
        heap = self._heap
        due_ms, offset = self._earlier[0]
        if not heap or heap[0].due_ms > due_ms or (heap[0].due_ms == due_ms and heap[0].entry.offset > offset):
            self._draw()

    # -- out

    def fire(self) -> None:
        """What is due is ready again: a slice of it, and asks for the next one."""
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
                self._let_go(heap[0])
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

    def _let_go(self, delayed: DelayedEntry) -> None:
        """The first is ready again. Raises: OSError, and it stays."""
        entry = delayed.entry
        there = delayed.sized
        if not there:
            there = self._measure(delayed)
            entry.message = None  # it is read when it is delivered
        if there:
            self._queue.make_ready(entry)
        self._leave(delayed)

    def take_first(self) -> QueueEntry | None:
        """The one that is due first waits no more; the caller ends it. None: there is none. Raises: OSError."""
        heap = self._heap
        while heap:
            delayed = heap[0]
            there = delayed.sized or self._measure(delayed)
            self._leave(delayed)
            if there:
                return delayed.entry
        return None

    def _measure(self, delayed: DelayedEntry) -> bool:
        """The true size of one that waited at the start. False: the log has lost it. Raises: OSError."""
        entry = delayed.entry
        self._backing.read_back(entry)
        message = entry.message
        if message is None:
            return False
        more = message.body_size - entry.body_size
        entry.body_size = message.body_size
        delayed.sized = True
        queue = self._queue
        queue.delayed_bytes += more
        if queue.ready_count > 0:
            queue.ready_bytes = queue.ready_bytes - more if queue.ready_bytes > more else 0
        return True

    def _leave(self, delayed: DelayedEntry) -> None:
        """The first of the heap waits no more."""
        heappop(self._heap)
        self._uncount(delayed)
        self._draw_first()

    def _uncount(self, delayed: DelayedEntry) -> None:
        size = delayed.entry.body_size
        queue = self._queue
        queue.delayed_count -= 1
        queue.delayed_bytes -= size
        if delayed.held:
            self._held_bytes -= size

    # -- ends

    def purge(self, order: ReadyOrder) -> i64:
        """Settles all that waits, before what is ready is. Returns how many they were."""
        while self._earlier:
            self._draw()
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
        """The queue is deleted."""
        self._timers.cancel(self)
        self._heap = []
        self._forget_earlier()
        self._held_bytes = 0
        self._queue.delayed_count = 0
        self._queue.delayed_bytes = 0

    def unwritten(self, ranges: list[tuple[int, int]], order: ReadyOrder) -> None:
        """The log could not take these offsets: what of them is in memory stays there, the rest is gone."""
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
        self._draw_first()
