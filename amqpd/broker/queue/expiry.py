"""Time to live of messages (`MessageTtl`: x-message-ttl, `expiration`) and of unused queues (`QueueExpiry`: x-expires).

The smaller of x-message-ttl and the message's own `expiration` counts from its arrival. Messages expire only at the
head of the queue (rabbit: the same), so one timer per queue watches the head. A requeued message keeps its arrival
time. A message from the log uses the time of its record: messages age while the broker is down.

Expired messages are dropped in slices of SLICE_MS. Between two slices (`pump_later`) the event loop does its other
work. If the queue has a time to live, `ReadyOrder.drop_expired` drops whole batches of the log.

A time to live of 0 means "deliver or drop". A queue with groups, filters or x-retain asks its consumers at the end of a
turn. Until all have been asked, `_fresh_from` protects the messages of this turn.

A queue gets its `MessageTtl` with the rule x-message-ttl, or with its first message that has an `expiration`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import QueueEntry
from amqpd.broker.flow.timers import Timer, Timers
from amqpd.broker.message import Message, expiration_ms
from amqpd.broker.queue.services import QueueServices

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue

NEVER: Final = 1 << 61
# Duration of a slice, in whole milliseconds of the clock. The clock is read once per SLICE_COUNT messages.
SLICE_MS: Final = 2
SLICE_COUNT: Final = 256
# If the last slice left expired messages, the next one drops at least this many, and twice the messages published in
# between, even on a busy machine: expiry must be faster than a flood of publishes. FLOOD_COUNT_MAX is the maximum, the
# number of the smallest messages that one loop turn can read.
DROP_COUNT_MIN: Final = 1000
FLOOD_COUNT_MAX: Final = 16384
# Ends a slice if the clock does not advance.
DROP_COUNT_MAX: Final = 65536


@final
class MessageTtl(Timer):
    """Time to live of the messages of one queue.

    Attributes:
        ttl_ms: x-message-ttl; -1 for none.
        behind: The last slice left expired messages.
    """

    def __init__(self, queue: Queue, host: QueueServices) -> None:
        super().__init__()
        self.queue = queue
        self.ttl_ms: i64 = -1
        self._host = host
        self._timers = host.timers
        self._turn = host.turn
        self.behind = False
        # The queue's published_count at the end of the last slice.
        self._published_count: i64 = 0
        # Messages from this offset on have not been offered to all consumers yet, so they do not expire.
        self._fresh_from: i64 = NEVER

    def apply_config(self, ttl_ms: i64) -> None:
        """Replace the queue's own time to live. -1: none."""
        self.ttl_ms = ttl_ms
        self.behind = False
        self._timers.cancel(self)
        self.arm()

    def deadline(self, message: Message) -> i64:
        """Return when the message expires, in monotonic ms; NEVER if it has no time to live."""
        ttl_ms = self.ttl_ms
        info = message.info
        if info is not None and info.expiration is not None:
            own_ms = info.expiration_ms
            if own_ms < 0:  # not in plain digits
                own_ms = expiration_ms(info.expiration)
                info.expiration_ms = own_ms
            if ttl_ms < 0 or own_ms < ttl_ms:
                ttl_ms = own_ms
        if ttl_ms < 0:
            return NEVER
        return arrived_ms(message, self._timers) + ttl_ms

    def is_over(self, entry: QueueEntry) -> bool:
        message = entry.message
        if message is None or entry.offset >= self._fresh_from:
            return False
        due_ms = self.deadline(message)
        return due_ms <= self._turn.now_ms()

    def on_ready(self, message: Message, offset: i64, late: bool, may_lead: bool) -> None:
        """Watch a message that has become ready.

        rabbit: a time to live of 0 means "deliver or drop", so consumers are asked before it expires.

        Args:
            late: The next pump will offer it to consumers. If false, no consumer had credit for it.
            may_lead: It may be the head although the queue has other messages.
        """
        queue = self.queue
        if late and queue.consumers and self.deadline(message) <= self._turn.now_ms():
            if offset < self._fresh_from:
                self._fresh_from = offset
            queue.schedule_dispatch()
        elif may_lead or queue.ready_count == 1:
            self.arm()

    def on_dispatched(self, asked: bool) -> None:
        """Set the timer after a pump.

        Args:
            asked: The pump offered all messages to all consumers, so that they may expire now.
        """
        if asked:
            self._fresh_from = NEVER
        if not self.behind:
            self._watch_head()

    def arm(self) -> None:
        """Set the timer for the head, which may have changed. If the log cannot be read, a later dispatch does it."""
        try:
            self._watch_head()
        except OSError as error:
            self.queue.pump_failed(error)

    def _watch_head(self) -> None:
        """Set the timer for the head. An expired head is dropped at once."""
        due_ms = self._head_due()
        if due_ms == NEVER:
            return
        if due_ms <= self._turn.now_ms():
            self.drop()
        else:
            self._timers.arm_sooner(self, due_ms)

    def fire(self) -> None:
        try:
            self.drop()
        except OSError as error:
            self.queue.pump_failed(error)  # the retried dispatch continues

    def drop(self) -> bool:
        """Drop one slice of expired messages, and schedule the next slice.

        Returns: False if expired messages are left for the next turn.

        Raises:
            OSError: the log cannot be read.
        """
        queue = self.queue
        timers = self._timers
        now_ms = timers.now_ms()
        dead_letters = queue.makes_dead_letters()
        least: i64 = 0
        if self.behind:
            least = DROP_COUNT_MIN + 2 * (queue.published_count - self._published_count)
            if least > FLOOD_COUNT_MAX:
                least = FLOOD_COUNT_MAX
        dropped: i64 = 0
        due_ms = NEVER
        done = False
        while not done:
            looked_at = dropped
            while dropped - looked_at < SLICE_COUNT:
                old: i64 = 0
                if dead_letters and self._host.dead_letters.is_behind():
                    due_ms = self._head_due()
                    done = True
                    break
                if self.ttl_ms >= 0 and self._fresh_from == NEVER:
                    old = queue.order.drop_expired(queue, self._host, now_ms - self.ttl_ms, SLICE_COUNT)
                    dropped += old
                if old == 0:
                    due_ms = self._head_due()
                    if due_ms > now_ms:
                        done = True
                        break
                    entry = queue.take()
                    if entry is not None:
                        queue.discard(entry, "expired")
                    dropped += 1
            if dropped >= DROP_COUNT_MAX or (dropped >= least and timers.now_ms() - now_ms >= SLICE_MS):
                break
        if dropped:
            self._turn.schedule()
        if not done:
            due_ms = self._head_due()
        self.behind = due_ms <= now_ms
        self._published_count = queue.published_count
        if self.behind:
            self._turn.pump_later(queue)
        elif due_ms != NEVER:
            timers.arm_sooner(self, due_ms)
        return not self.behind

    def _head_due(self) -> i64:
        if self.queue.ready_count == 0:
            return NEVER
        head = self.queue.order.head(self.queue)
        if head is None or head.message is None or head.offset >= self._fresh_from:
            return NEVER
        return self.deadline(head.message)


def arrived_ms(message: Message, timers: Timers) -> i64:
    """Return when the message arrived, in monotonic ms. A message without an arrival time gets the time now."""
    if message.arrived_ms == 0:
        message.arrived_ms = timers.from_wall(message.logged_ms) if message.logged_ms > 0 else timers.now_ms()
    return message.arrived_ms


@final
class QueueExpiry(Timer):
    """Timer of x-expires: deletes a queue that was not used for `expires_ms`. A queue with consumers is in use."""

    def __init__(self, queue: Queue, host: QueueServices, expires_ms: i64) -> None:
        super().__init__()
        self.queue = queue
        self.expires_ms = expires_ms
        self._host = host
        self._timers = host.timers
        self._used_ms: i64 = 0

    def renew(self) -> None:
        """Record a use of the queue. Cost: reading the clock; the timer is moved only when it fires."""
        self._used_ms = self._timers.now_ms()
        if self.tick < 0:
            self._timers.arm(self, self._used_ms + self.expires_ms)

    def fire(self) -> None:
        queue = self.queue
        if queue.deleted or queue.consumers:
            return  # the last consumer calls `renew` when it leaves
        due_ms = self._used_ms + self.expires_ms
        if self._timers.now_ms() < due_ms:
            self._timers.arm(self, due_ms)
        else:
            self._host.expire(queue)
