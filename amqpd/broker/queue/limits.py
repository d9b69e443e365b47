"""A queue's rules at work: what comes in, what has to go for it, and the clocks.

It obeys x-max-length, x-max-length-bytes, x-overflow, x-expires and x-delivery-limit, has what waits for its next try
(delayed_retry.py), and wakes a queue after a start whose messages may have gone over their x-message-ttl meanwhile. A
queue with plain rules has none of it.

Limits count what is ready or waits for its next try, not what is unacked. A queue that is full drops from its head,
what waits before what is ready, or refuses the newcomer (x-overflow). An entry that ends here for a reason (expired,
maxlen, rejected, delivery_limit) goes through `Queue.discard`: settled at once without a dead-letter exchange, else
dead-lettered, and settled in the log when its targets have it.

Where a new rule makes much of a queue too much, it goes in slices: SLICE_MS of work, then the loop has its turn, and
nothing is delivered before the last of it has gone. Meanwhile each newcomer displaces DISPLACED_COUNT.

A transaction displaces what is before it when it is in the log as a whole, at the end of its turn: nothing is read in
its middle, which would write a part of it, and nothing goes for what a full disk has not taken.
"""

from __future__ import annotations

import logging
from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import LogNotOpen, QueueBase, QueueEntry
from amqpd.broker.flow.timers import Timer, Timers
from amqpd.broker.message import Message
from amqpd.broker.queue.config import QueueConfig
from amqpd.broker.queue.delayed_retry import DelayedRetries
from amqpd.broker.queue.expiry import NEVER, MessageTtl, QueueExpiry
from amqpd.broker.queue.offset_bitmap import OffsetBitmap
from amqpd.broker.queue.ready_order import ReadyOrder
from amqpd.broker.queue.services import QueueServices
from amqpd.broker.queue.store import QueueStore
from amqpd.errors import ResourceError
from amqpd.storage.queue_log import QueueLog

log = logging.getLogger(__name__)

# After a start: how long until a queue looks for what went over its time meanwhile.
WAKE_MS: Final = 20
# Until a log that could not be opened is tried again.
RETRY_MS: Final = 1000
# How long a slice of what goes may take, looked at once per SLICE_COUNT messages.
SLICE_MS: Final = 2
SLICE_COUNT: Final = 256
# So many go for each that comes while others wait for the next slice: a flood must not outrun it.
DISPLACED_COUNT: Final = 2


@final
class StartupExpiryTimer(Timer):
    """Opens a queue's log soon after the start, so that what expired meanwhile goes without anybody asking."""

    def __init__(self, queue: QueueBase, timers: Timers) -> None:
        super().__init__()
        self.queue = queue
        self._timers = timers
        timers.arm(self, timers.now_ms() + WAKE_MS)

    def fire(self) -> None:
        queue = self.queue
        if queue.deleted:
            return
        try:
            queue.prepare()
        except LogNotOpen:
            queue.when_open(self.fire)
        except ResourceError:  # `prepare` has told
            self._timers.arm(self, self._timers.now_ms() + RETRY_MS)


@final
class QueueLimits:
    """Of one queue whose rules are not plain."""

    def __init__(self, queue: QueueBase, host: QueueServices, backing: QueueStore, rules: QueueConfig) -> None:
        self._queue = queue
        self._host = host
        self._backing = backing
        self.rules = rules
        self.lease: QueueExpiry | None = None
        # Made when a rule says that something waits before it is delivered again.
        self.retries: DelayedRetries | None = None
        self._waker: StartupExpiryTimer | None = None
        # A transaction is being offered; one has been, and the length is to be looked at.
        self._in_transaction = False
        self._look_due = False
        # A slice of what has to go went, and the next turn goes on.
        self._behind = False

    def obey(self, rules: QueueConfig, opened: bool) -> None:
        """These rules from now on. opened: the log is, so that what is ready is known."""
        queue = self._queue
        host = self._host
        self.rules = rules
        if self.retries is None and rules.retry is not None:
            self.retries = DelayedRetries(queue, host, self._backing)
        if self.retries is not None:
            self.retries.obey(rules.retry)
        lease = self.lease
        if lease is not None and lease.expires_ms != rules.expires_ms:
            lease.cancel()
            lease = None
        if lease is None and rules.expires_ms >= 0:
            lease = QueueExpiry(queue, host, rules.expires_ms)
            lease.renew()
        self.lease = lease
        if opened:
            self._behind = False
            if queue.ready_count + queue.delayed_count > 0:
                try:
                    if self.enforce_length():
                        queue.schedule_dispatch()  # the head is another one, whose time may be over
                except OSError as error:
                    self._look_due = True
                    queue.pump_failed(error)  # the pump that is tried again goes on with it
                host.turn.schedule()
        elif self._waker is None and (rules.ttl_ms >= 0 or rules.dead_letter_exchange is not None):
            self._waker = StartupExpiryTimer(queue, host.timers)

    def needed(self) -> bool:
        """Whether there is something to do though the rules are plain: what waits is being made ready."""
        return self.retries is not None and self._queue.delayed_count > 0

    def end(self) -> None:
        """The queue is deleted, or its rules are plain from now on."""
        if self.retries is not None:
            self.retries.end()
            self.retries = None
        self._look_due = False
        self._behind = False
        if self.lease is not None:
            self.lease.cancel()
            self.lease = None
        if self._waker is not None:
            self._host.timers.cancel(self._waker)
            self._waker = None

    def opened(self) -> None:
        """The log is known."""
        if self.rules.drops_head and self._is_full():
            # A kill came between an append and the settlement of what it displaced.
            self._look_due = True
            try:
                self.before_dispatch()
            except OSError as error:
                self._queue.pump_failed(error)  # the pump that is tried again goes on with it
            self._host.turn.schedule()

    def used(self) -> None:
        """The lease begins anew."""
        if self.lease is not None:
            self.lease.renew()

    def accepts(self, message: Message) -> bool:
        """Whether the queue may take the message."""
        queue = self._queue
        for admission in self.rules.admissions:
            if self._serves_late() and self.rules.is_over(
                queue.ready_count + queue.delayed_count + 1,
                queue.ready_bytes + queue.delayed_bytes + message.body_size,
            ):
                self._serve()
            if not admission.admits(queue, self._host, message):
                return False
        return True

    def _serves_late(self) -> bool:
        """Whether consumers are asked at the end of a turn, not by each message."""
        return self._queue.round_robin.filtered or self.rules.retains

    def _serve(self) -> None:
        """Where consumers have filters, and with groups or x-retain, what came in this turn is still ready: whoever
        wants it and can take it gets it before it counts as too much."""
        if self._in_transaction:
            return
        try:
            self._queue.dispatch()
        except OSError as error:
            self._queue.pump_failed(error)

    def on_enqueued(self, message: Message, expiry: MessageTtl | None) -> None:
        """The message has become ready in a queue with x-retain, which serves its consumers at the end of the turn: as
        in others they come before its lengths and its time to live."""
        if expiry is not None:
            late = not (self._in_transaction and len(self.rules.admissions) > 0)
            expiry.came(message, self._backing.next_offset - 1, late, False)
        if self._is_full():
            self._serve()

    def enforce_length(self) -> bool:
        """Something has become ready: what it displaces goes. Whether anything did, so that the head is another one."""
        if not self.rules.drops_head or self._in_transaction or not self._is_full():
            return False
        if self._behind:
            self._drop(DISPLACED_COUNT)
            return True
        if self._queue.round_robin.filtered:
            self._serve()
        self._drop_head()
        return True

    def limits_return(self, entry: QueueEntry) -> bool:
        """Whether an entry that comes back was delivered as often as it may be."""
        limit = self.rules.delivery_limit
        return limit >= 0 and entry.delivery_count >= limit

    def delays(self, entry: QueueEntry, failed: bool, expiry: MessageTtl | None, order: ReadyOrder) -> bool:
        """Return whether a returned entry waits for its next try, and let it wait. failed: as `QueueBase.requeue`."""
        retries = self.retries
        if retries is None:
            return False
        until_ms = NEVER
        was_read = False
        if expiry is not None:
            was_read = entry.message is None and self._read_back(entry)
            if entry.message is not None:
                until_ms = expiry.deadline(entry.message)
        if not retries.wait(entry, failed, until_ms):
            if was_read:
                entry.message = None
            return False
        order.reserve(entry)
        self.enforce_length()
        return True

    def _read_back(self, entry: QueueEntry) -> bool:
        """A consumer's entry of a durable queue has no message: when its time to live is over its log knows. Cost: some
        10 us."""
        try:
            self._backing.read_back(entry)
        except OSError as error:
            log.warning("queue %r: the end of a message's time to live could not be read: %s", self._queue.name, error)
        return entry.message is not None

    def find_delayed(self, store: QueueLog) -> bool:
        """As `QueueBase.find_delayed`. With groups nothing waits over a restart."""
        return self.retries is None or len(self.rules.group_by) > 0 or self.retries.find(store)

    def restore(self, store: QueueLog) -> OffsetBitmap:
        """As `DelayedRetries.restore`: the log has just been opened."""
        if self.retries is None or self.rules.group_by:
            return OffsetBitmap()
        return self.retries.restore(store)

    def purge(self, order: ReadyOrder) -> i64:
        """What waits for its next try goes. Returns how many they were."""
        return self.retries.purge(order) if self.retries is not None else 0

    def begin_transaction(self) -> None:
        self._in_transaction = True

    def end_transaction(self) -> None:
        self._in_transaction = False
        if self.rules.drops_head and self._is_full():
            self._look_due = True
            self._queue.schedule_dispatch()

    def before_dispatch(self) -> bool:
        """What a transaction or a new rule displaces goes. False: the log could not be written, and `unwritten` comes
        first; or a slice went, and the next turn goes on."""
        if self._look_due:
            store = self._backing.store
            if store is not None:
                store.flush_batches()
                if store.failed_ranges:
                    return False
            if self.rules.drops_head:
                if self._serves_late():
                    self._look_due = False
                    self._serve()
                    self._look_due = True
                self._drop_head()
            self._look_due = False
        elif self._behind:
            self._drop_head()
        return not self._behind

    def unwritten(self, ranges: list[tuple[int, int]], order: ReadyOrder) -> None:
        """What could not be written is forgotten: the length is what it is."""
        if self.retries is not None:
            self.retries.unwritten(ranges, order)
        if self._look_due:
            self._queue.schedule_dispatch()

    def _is_full(self) -> bool:
        queue = self._queue
        return self.rules.is_over(queue.ready_count + queue.delayed_count, queue.ready_bytes + queue.delayed_bytes)

    def _drop_head(self) -> None:
        """All that is over a length, or a slice of it."""
        queue = self._queue
        host = self._host
        timers = host.timers
        was_behind = self._behind
        self._behind = False
        if not was_behind and self._drop(SLICE_COUNT):
            return
        until_ms = timers.now_ms() + SLICE_MS
        dead_letters = queue.makes_dead_letters()
        while timers.now_ms() < until_ms and not (dead_letters and host.dead_letters_behind()):
            if self._drop(SLICE_COUNT):
                return
        self._behind = self._is_full()
        if self._behind:
            queue.schedule_dispatch()
            host.turn.schedule()

    def _drop(self, count: i64) -> bool:
        """So many of what is over a length go. Whether there are no more, or the next one cannot be had now."""
        queue = self._queue
        while queue.ready_count + queue.delayed_count > 0 and self._is_full():
            if count == 0:
                return False
            count -= 1
            entry: QueueEntry | None = None
            if self.retries is not None:
                entry = self.retries.take_first()
            if entry is None:
                entry = queue.take()
            if entry is None:
                return True
            queue.discard(entry, "maxlen")
        return True
