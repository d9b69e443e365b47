"""Time to live: which message at a queue's head is over, and when the next one will be.

A message is over `x-message-ttl` or its own `expiration`, whichever is smaller, after it arrived. Messages leave a
queue for it only at the head (rabbit: the same), so one timer per queue watches the head and nothing else; a requeued
message is as old as it was. What a log gives back is as old as its record: messages go on ageing while the broker is
down.

What is over goes in slices: SLICE_MS of work, then the loop has its turn, and the next slice comes with it
(`pump_later`), so a flood that expires delays the others by no more than that. Where the queue's own time to live
decides and there is nobody to send a dead letter to, it goes by the batch: `ReadyOrder.drop_old`.

A time to live of 0 is "deliver or drop". A queue with groups, with consumers' filters or with x-retain asks its
consumers at the end of a turn: what came in it and is over at once is `fresh` until they have all been asked.

A plain queue gets its `MessageTtl` with the first message that carries an expiration, one with `x-message-ttl` at its
declaration or when the rule comes. `QueueExpiry` is the other clock of a queue: `x-expires`, for a queue that nobody
uses.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import QueueBase, QueueEntry
from amqpd.broker.flow.timers import Timer, Timers
from amqpd.broker.message import Message, expiration_ms
from amqpd.broker.queue.services import QueueServices

NEVER: Final = 1 << 61
# How long a slice may take, in the clock's whole milliseconds; looked at once per SLICE_COUNT messages.
SLICE_MS: Final = 2
SLICE_COUNT: Final = 256
# While it is behind, so many go in any case and twice as many as came since the last slice, however busy the machine:
# a flood must not outrun the end of its messages. At most what a turn reads of the smallest messages.
DROP_COUNT_MIN: Final = 1000
FLOOD_COUNT_MAX: Final = 16384
# A clock that stands still ends no slice.
DROP_COUNT_MAX: Final = 65536


@final
class MessageTtl(Timer):
    """Watches the head of `queue`. ttl_ms: the queue's own; -1: it has none."""

    def __init__(self, queue: QueueBase, host: QueueServices, ttl_ms: i64) -> None:
        super().__init__()
        self.queue = queue
        self.ttl_ms = ttl_ms
        self._host = host
        self._timers = host.timers
        self._turn = host.turn
        # Whether the last slice left some that were over, and what the queue had been given by then.
        self.behind = False
        self._published_count: i64 = 0
        # From this offset on nobody has been asked yet whether he takes it: it is not over, whatever its time to live.
        self._fresh_from: i64 = NEVER

    def obey(self, ttl_ms: i64) -> None:
        """The queue's own time to live is another one from now on, or is none any more (-1)."""
        self.ttl_ms = ttl_ms
        self.behind = False
        self._timers.cancel(self)
        self.arm()

    def now_ms(self) -> i64:
        """The turn's time: behind the clock by as much as the turn has lasted."""
        return self._turn.now_ms()

    def note_arrival(self, message: Message) -> None:
        """Its time to live begins now, if it is not known when it began."""
        if message.arrived_ms == 0 and message.logged_ms == 0:
            message.arrived_ms = self.now_ms()

    def deadline(self, message: Message) -> i64:
        """When it is over, monotonic milliseconds; NEVER if nothing limits it."""
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
        return due_ms != NEVER and due_ms <= self.now_ms()

    def came(self, message: Message, offset: i64, late: bool, may_lead: bool) -> None:
        """The message has become ready at this offset. late: consumers are asked for it by the next pump; else whoever
        could take it would have got it. may_lead: it may be the head though it is not alone.

        rabbit: a time to live of 0 is "deliver or drop": who can take it gets it.
        """
        queue = self.queue
        if late and queue.consumers and self.deadline(message) <= self.now_ms():
            if offset < self._fresh_from:
                self._fresh_from = offset
            queue.schedule_dispatch()
        elif may_lead or queue.ready_count == 1:
            self.arm()

    def pumped(self, asked: bool) -> None:
        """The queue has been pumped. asked: all its consumers, for all that they can have; else the next turn goes
        on.
        """
        if asked:
            self._fresh_from = NEVER
        if not self.behind:
            self.arm()

    def arm(self) -> None:
        """The head may be another one: its time is watched from now on, and if it is over it goes at once."""
        due_ms = self._head_due()
        if due_ms == NEVER:
            return
        if due_ms <= self.now_ms():
            self.fire()
        else:
            self._timers.arm_sooner(self, due_ms)

    def fire(self) -> None:
        """Drops what is over at the head, in order: a slice of it, and asks for the next one."""
        self.drop()

    def drop(self) -> bool:
        """As `fire`. False: what is over is still at the head, for the next turn."""
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
                if dead_letters and self._host.dead_letters_behind():
                    due_ms = self._head_due()
                    done = True
                    break
                if self.ttl_ms >= 0 and self._fresh_from == NEVER:
                    old = queue.drop_old(now_ms - self.ttl_ms, SLICE_COUNT)
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

    def cancel(self) -> None:
        self._timers.cancel(self)

    def _head_due(self) -> i64:
        if self.queue.ready_count == 0:
            return NEVER
        head = self.queue.head()
        if head is None or head.message is None or head.offset >= self._fresh_from:
            return NEVER
        return self.deadline(head.message)


def arrived_ms(message: Message, timers: Timers) -> i64:
    """When its time to live began, monotonic milliseconds. A message that nobody has noted begins to age now."""
    if message.arrived_ms == 0:
        message.arrived_ms = timers.from_wall(message.logged_ms) if message.logged_ms > 0 else timers.now_ms()
    return message.arrived_ms


@final
class QueueExpiry(Timer):
    """x-expires: `queue` is deleted when it was not used for `expires_ms`. A queue with consumers is in use."""

    def __init__(self, queue: QueueBase, host: QueueServices, expires_ms: i64) -> None:
        super().__init__()
        self.queue = queue
        self.expires_ms = expires_ms
        self._host = host
        self._timers = host.timers
        self._used_ms: i64 = 0

    def renew(self) -> None:
        """Cost: a look at the clock; the timer is moved only when it fires."""
        self._used_ms = self._timers.now_ms()
        if self.tick < 0:
            self._timers.arm(self, self._used_ms + self.expires_ms)

    def fire(self) -> None:
        queue = self.queue
        if queue.deleted or queue.consumers:
            return  # the last consumer renews the lease when it leaves
        due_ms = self._used_ms + self.expires_ms
        if self._timers.now_ms() < due_ms:
            self._timers.arm(self, due_ms)
        else:
            self._host.expire(queue)

    def cancel(self) -> None:
        self._timers.cancel(self)
