"""Dead-lettering: what a queue could not or would not deliver is published once more, to where the queue says.

The message goes to `x-dead-letter-exchange` under `x-dead-letter-routing-key`, or under its own keys (CC included).
What its headers tell then, and which of its targets would make a cycle, is dead_letter.py's. An exchange that is missing
drops it. Order, slices, retries, and that a crash loses none, are the republisher's.

A crash, or the next owner of a vhost, may publish one again, and then it says so (deaths.REDELIVERED): what is about
to be published is marked in its queue's log as what is delivered is, so the next life knows of which there may be a
copy already. The mark is written with the turn, before what that turn appends elsewhere is safe.

A dead letter that a log can give back is not kept in memory when many wait: a range of offsets waits in its place, so
that a million messages that expire at once leave their queue at once, for some bytes. What only memory has is bounded:
while too much of it waits, queues drop nothing more for its age (`is_behind`).

Source: RabbitMQ 3.10, https://www.rabbitmq.com/docs/dlx.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.vhost.vhost import VHost
from amqpd.broker.consumer import Entry
from amqpd.broker.message import Envelope, Message
from amqpd.broker.publish.dead_letter import Dresser
from amqpd.broker.publish.origin import Dressed, Origin, Went
from amqpd.broker.publish.republisher import Republisher
from amqpd.broker.queue.queue import Queue
from amqpd.storage.queue_log import QueueLog

# Dead letters that wait with their messages in memory, where a log has them too.
HELD_MAX: Final = 1000
# From how many on, or from how many bytes in memory, queues drop nothing more for its age.
BEHIND_COUNT: Final = 65536
BEHIND_BYTES: Final = 32 * 1024 * 1024
# Why messages end that no consumer was given.
NOT_DELIVERED: Final = ("expired", "maxlen")


@final
class Dying(Origin):
    """Messages of one queue that end for one reason. reason: as x-death says it: expired, maxlen, rejected, ..."""

    def __init__(self, dead_letters: DeadLetters, queue: Queue, reason: str) -> None:
        super().__init__("dead-letter")
        self.dead_letters = dead_letters
        self.queue = queue
        self.reason = reason

    def log(self) -> QueueLog | None:
        return self.queue.store

    def lasts(self) -> bool:
        return self.queue.log() is not None

    def gone(self) -> bool:
        return self.queue.deleted

    def envelope_of(self, exchange: bytes, routing_key: bytes) -> Envelope:
        return self.queue.backing.envelope(exchange, routing_key)

    def dress(self, envelope: Envelope, properties: bytes) -> Dressed | None:
        return self.dead_letters.dress(self, envelope, properties)

    def safe(self, first: i64, last: i64, size: i64) -> None:
        # A transient queue may have been given a temporary log since, which begins behind these.
        if self.queue.backing.has(first):
            super().safe(first, last, size)

    def kept(self, offset: i64) -> None:
        """Its vhost leaves: whoever has it next finds the message where it was."""

    def waits(self, count: i64) -> None:
        self.queue.dead_letters_logged_count += count

    def about(self) -> dict[str, object]:
        return {"vhost": self.queue.vhost_name, "queue": self.queue.name}


@final
class DeadLetters:
    """One per broker. vhosts: all there are, by name."""

    def __init__(self, republisher: Republisher, vhosts: Mapping[str, VHost]) -> None:
        self._republisher = republisher
        self._dresser = Dresser(vhosts)
        # The slice that the dresser's memory is of.
        self._slice: i64 = -1
        # By the queue's kind and the reason: how many were published.
        self.went: dict[tuple[str, str], Went] = {}
        # Of the last one: they come in floods of the same kind.
        self._dying: Dying | None = None

    def add(self, queue: Queue, entry: Entry | None, message: Message | None, reason: str) -> None:
        """Publishes it before long. Cost: O(1).

        entry: settled in the queue's log when its targets are safe; None: it never had a place there. message: None
        where only the log has it.
        """
        dying = self._dying_of(queue, reason)
        offset: i64 = -1 if entry is None else entry.offset
        if entry is not None and not entry.redelivered and reason in NOT_DELIVERED:
            store = queue.store
            if store is not None and queue.backing.has(offset):
                queue.order.mark_delivered(store, offset)
        held = message is not None and (entry is None or len(self._republisher.line) < HELD_MAX)
        if not held and queue.backing.has(offset):
            if entry is not None:
                entry.message = None
            self._republisher.add_range(dying, offset, offset)
        elif message is not None:
            self._republisher.add(dying, message, offset)

    def add_range(self, queue: Queue, first: i64, last: i64, reason: str) -> None:
        """Publishes all messages with these offsets that are not settled; the queue's log has them, and nobody else.
        Of all that was before them nothing is ready.
        """
        store = queue.store
        if store is not None:
            store.mark_delivered(last)
        self._republisher.add_range(self._dying_of(queue, reason), first, last)

    def _dying_of(self, queue: Queue, reason: str) -> Dying:
        dying = self._dying
        if dying is None or dying.queue is not queue or dying.reason != reason:
            dying = Dying(self, queue, reason)
            self._dying = dying
            went = self.went.get((queue.kind, reason))
            if went is None:
                went = dying.went
                self.went[(queue.kind, reason)] = went
            dying.went = went
        return dying

    def is_behind(self) -> bool:
        """Whether a queue that drops a backlog should let what is under way go first: it fills memory."""
        republisher = self._republisher
        return len(republisher.line) >= BEHIND_COUNT or republisher.held_bytes >= BEHIND_BYTES

    def dress(self, dying: Dying, envelope: Envelope, properties: bytes) -> Dressed | None:
        """As `Origin.dress`: the message with this death in its headers, and where it goes."""
        republisher = self._republisher
        if self._slice != republisher.slice_number:
            self._slice = republisher.slice_number
            self._dresser.begin(republisher.timers.wall_ms() // 1000)
        again = dying.again
        if not again:
            store = dying.queue.store
            again = store is not None and dying.queue.backing.has(dying.offset) and store.seen_earlier(dying.offset)
        return self._dresser.dress(dying.queue, envelope, properties, dying.reason, again)
