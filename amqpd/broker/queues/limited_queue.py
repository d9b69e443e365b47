"""A queue with limits: on length, on age, on deliveries, on its own life; and with a dead-letter exchange.

It obeys x-message-ttl, x-max-length, x-max-length-bytes, x-overflow, x-expires, x-dead-letter-exchange and
-routing-key, x-delivery-limit, and shows x-delivery-count. `queue_kinds` makes one when a declaration asks for any of
these; a plain queue pays nothing for them.

Limits count what is ready, not what is unacked. A queue that is full drops from its head or refuses the newcomer
(x-overflow). An entry that ends here for a reason (expired, maxlen, rejected, delivery_limit) goes through `discard`:
settled at once without a dead-letter exchange, else handed to `deadletter`, which settles it in the log when its
targets have it.

A transaction displaces what is before it when it is in the log as a whole, at the end of its turn: nothing is read in
its middle, which would write a part of it, and nothing goes for what a full disk has not taken.

Invariant: ready_bytes = body bytes of what is ready; after a restart what the log says.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from amqpd.broker.delivery import Consumer, Entry, Source
from amqpd.broker.destination import NotOpenYet
from amqpd.broker.flow.timers import Timer, Timers
from amqpd.broker.message import Message, make_message
from amqpd.broker.queues.expiry import Expiry, Lease
from amqpd.broker.queues.host import QueueHost
from amqpd.broker.queues.queue import Queue
from amqpd.errors import ResourceError
from amqpd.protocol.codec import Long
from amqpd.protocol.properties import scan, with_headers
from amqpd.storage.queue_log import QueueLog

DROP_HEAD: Final = 0
REJECT_PUBLISH: Final = 1
REJECT_PUBLISH_DLX: Final = 2
_OVERFLOWS: Final = ("drop-head", "reject-publish", "reject-publish-dlx")
# After a start: how long until a queue looks for what went over its time meanwhile.
WAKE_MS: Final = 20
# Until a log that could not be opened is tried again.
RETRY_MS: Final = 1000


class Waker(Timer):
    """Opens a queue's log soon after the start, so that what expired meanwhile goes without anybody asking."""

    def __init__(self, queue: Source, timers: Timers) -> None:
        super().__init__()
        self.queue = queue
        self._timers = timers

    def fire(self) -> None:
        queue = self.queue
        if queue.deleted:
            return
        try:
            queue.prepare()
        except NotOpenYet:
            queue.when_open(self.fire)
        except ResourceError:  # `prepare` has told
            self._timers.arm(self, self._timers.now_ms() + RETRY_MS)


class LimitedQueue(Queue):
    """See the module. The arguments have been validated."""

    def __init__(
        self,
        host: QueueHost,
        name: str,
        durable: bool,
        auto_delete: bool,
        exclusive_owner: object,
        arguments: dict[str, object],
        store: QueueLog | None,
    ) -> None:
        super().__init__(host, name, durable, auto_delete, exclusive_owner, arguments, store)
        timers = host.timers
        self.ready_bytes: i64 = 0
        self.ttl_ms: i64 = number_argument(arguments, "x-message-ttl")
        self.length_max: i64 = number_argument(arguments, "x-max-length")
        self.length_bytes_max: i64 = number_argument(arguments, "x-max-length-bytes")
        self.delivery_limit: i64 = number_argument(arguments, "x-delivery-limit")
        self.overflow: i64 = 0
        overflow = arguments.get("x-overflow")
        if isinstance(overflow, str) and overflow in _OVERFLOWS:
            self.overflow = _OVERFLOWS.index(overflow)
        self.dead_letter_exchange: str | None = text_argument(arguments, "x-dead-letter-exchange")
        self.dead_letter_key: str | None = text_argument(arguments, "x-dead-letter-routing-key")
        self.lease: Lease | None = None
        self._waker: Waker | None = None
        # A transaction is being offered; one has been, and the length is to be looked at.
        self._in_transaction = False
        self._look_due = False
        expires_ms = number_argument(arguments, "x-expires")
        if expires_ms >= 0:
            self.lease = Lease(self, host, expires_ms)
            self.lease.renew()
        if self.ttl_ms >= 0:
            self.expiry = Expiry(self, host, self.ttl_ms)
        if store is not None and (self.ttl_ms >= 0 or self.dead_letter_exchange is not None):
            self._waker = Waker(self, timers)
            timers.arm(self._waker, timers.now_ms() + WAKE_MS)

    def recovered(self) -> None:
        store = self.store
        if store is not None:
            self.ready_bytes = store.size_bytes
            if self.overflow == DROP_HEAD and self._is_full(0, 0):
                # A kill came between an append and the settlement of what it displaced.
                self._drop_head()
                self.host.turn.want()

    # -- in ----------------------------------------------------------------------------------------------------------

    def offer(self, message: Message) -> bool:
        if self.ttl_ms >= 0:
            self.watch(message)
        if self.overflow != DROP_HEAD:
            # rabbit: also when a consumer waits, so nothing passes a limit of 0
            if self._is_full(1, message.body_size):
                self.published_count += 1
                if self.overflow == REJECT_PUBLISH_DLX and self.dead_letter_exchange is not None:
                    self.host.dead_letter(self, None, message, "maxlen")
                return False
            return super().offer(message)
        accepted = super().offer(message)
        if not self._in_transaction and self._is_full(0, 0):
            self._drop_head()
        return accepted

    def begin_transaction(self) -> None:
        super().begin_transaction()
        self._in_transaction = True

    def end_transaction(self) -> None:
        super().end_transaction()
        self._in_transaction = False
        if self.overflow == DROP_HEAD and self._is_full(0, 0):
            self._look_due = True
            self.pump_later()

    def pump(self) -> None:
        if self._look_due:
            store = self.store
            if store is not None:
                store.flush_batches()
                if store.failed_ranges:
                    return  # `unwritten` has it look again
            self._drop_head()
            self._look_due = False
        super().pump()

    def _is_full(self, more: i64, more_bytes: i64) -> bool:
        if self.length_max >= 0 and self.ready_count + more > self.length_max:
            return True
        return self.length_bytes_max >= 0 and self.ready_bytes + more_bytes > self.length_bytes_max

    def _drop_head(self) -> None:
        while self.ready_count > 0 and self._is_full(0, 0):
            entry = self.take()
            if entry is None:
                return
            self.discard(entry, "maxlen")

    def enqueue(self, message: Message) -> bool:
        self.ready_bytes += message.body_size
        if super().enqueue(message):
            return True
        self.ready_bytes -= message.body_size
        return False

    # -- out ---------------------------------------------------------------------------------------------------------

    def take(self) -> Entry | None:
        entry = super().take()
        if entry is not None:
            self.ready_bytes -= entry.body_size
        if self.ready_count == 0:
            self.ready_bytes = 0
        return entry

    def _hand_over(self, consumer: Consumer, entry: Entry) -> None:
        if self.kind != "quorum" or entry.delivery_count == 0:
            super()._hand_over(consumer, entry)
            return
        # The entry keeps the message as it was published: it may be counted again, or dead-lettered.
        message = entry.message
        entry.message = self.outgoing(entry)
        super()._hand_over(consumer, entry)
        if entry.message is not None:
            entry.message = message

    def outgoing(self, entry: Entry) -> Message | None:
        """rabbit: quorum queues tell how often a message came back, in the header x-delivery-count."""
        message = entry.message
        if self.kind != "quorum" or message is None:
            return message
        count: int = entry.delivery_count
        properties = with_headers(message.properties(), {"x-delivery-count": Long(count)})
        info = scan(properties, 0, len(properties))
        return make_message(message.envelope, properties, message.body(), message.persistent, info)

    def drop_old(self, arrived_max_ms: i64, count_max: i64) -> i64:
        """Cost: some 0.1 us a message in memory, 0.3 where it is to be a letter; half of that in the log."""
        if self.returned:
            return 0
        letters = self.leaves_letters()
        hot = self.hot
        timers = self.host.timers
        count: i64 = 0
        while hot and count < count_max:
            entry = hot.first()
            message = entry.message
            if message is None:
                break
            if message.arrived_ms == 0:
                message.arrived_ms = timers.from_wall(message.logged_ms)
            if message.arrived_ms > arrived_max_ms:
                break
            hot.popleft()
            size = entry.body_size
            self.hot_bytes -= size
            self.ready_bytes -= size
            if letters:
                self.host.dead_letter(self, entry, message, "expired")
            else:
                self.settle_log(entry)
            count += 1
        self.ready_count -= count
        store = self.store
        if store is not None and not hot and self.ready_count > 0 and count < count_max:
            logged_max_ms: i64 = timers.wall_ms() - (timers.now_ms() - arrived_max_ms)
            cold: i64 = 0
            size_bytes: i64 = 0
            first: i64 = self.cold_offset
            self.cold_offset, cold, size_bytes = store.pass_older(first, logged_max_ms, count_max - count, not letters)
            if letters and cold > 0:
                self.host.dead_letter_range(self, first, self.cold_offset - 1, "expired")
            self.ready_count -= cold
            self.ready_bytes -= size_bytes
            count += cold
        if self.ready_count <= 0:
            self.ready_count = 0
            self.ready_bytes = 0
        return count

    # -- home --------------------------------------------------------------------------------------------------------

    def leaves_letters(self) -> bool:
        return self.dead_letter_exchange is not None and not self.deleted

    def discard(self, entry: Entry, reason: str) -> None:
        if not self.leaves_letters():
            self.settle_log(entry)
            return
        self.host.dead_letter(self, entry, entry.message, reason)

    def reject(self, entry: Entry) -> None:
        self.unacked_count -= 1
        self.acked_count += 1
        self.discard(entry, "rejected")

    def requeue(self, entry: Entry, counts: bool) -> None:
        if counts and self.delivery_limit >= 0 and entry.delivery_count >= self.delivery_limit and not self.deleted:
            self.unacked_count -= 1
            self.discard(entry, "delivery_limit")
            return
        super().requeue(entry, counts)
        if not self.deleted:
            self.ready_bytes += entry.body_size
            if self.overflow == DROP_HEAD and self._is_full(0, 0):
                self._drop_head()

    def purge(self) -> i64:
        count = self.purge_ready(self.ready_bytes)
        self.ready_bytes = 0
        return count

    def unwritten(self, ranges: list[tuple[int, int]]) -> None:
        before = self.hot_bytes
        super().unwritten(ranges)
        self.ready_bytes -= before - self.hot_bytes
        store = self.store
        if store is not None and self.ready_bytes > store.size_bytes:
            # The sizes of those that were in the log alone are known to nobody any more.
            self.ready_bytes = store.size_bytes
        self.look_again()

    def look_again(self) -> None:
        """What could not be written is forgotten: the length is what it is."""
        if self._look_due:
            self.pump_later()

    def used(self) -> None:
        if self.lease is not None:
            self.lease.renew()

    def forget(self) -> None:
        super().forget()
        self.ready_bytes = 0
        self._look_due = False
        if self.lease is not None:
            self.lease.cancel()
            self.lease = None
        if self._waker is not None:
            self.host.timers.cancel(self._waker)
            self._waker = None


def number_argument(arguments: dict[str, object], name: str) -> i64:
    """-1: not given."""
    value = arguments.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value < 1 << 60 else 1 << 60
    return -1


def text_argument(arguments: dict[str, object], name: str) -> str | None:
    value = arguments.get(name)
    return value if isinstance(value, str) else None
