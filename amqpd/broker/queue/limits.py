"""The rules of a queue in operation: length limits, overflow, returns and timers.

`QueueLimits` obeys x-max-length, x-max-length-bytes, x-overflow, x-expires and x-delivery-limit, and owns the messages
that wait for a retry (delayed_retry.py). After a start it opens the log of a queue that may have expired messages. A
queue with plain rules has no `QueueLimits`.

Length limits count ready messages and those that wait for a retry, not unacked ones. A full queue refuses new messages,
or drops waiting messages and then the head (x-overflow). Dropped, expired and rejected messages go through
`Queue.discard`. It settles the message at once, or sends it to the dead letter exchange and settles it when the target
queues have it.

If a new rule makes the queue much too long, messages are dropped in slices of SLICE_MS. Between two slices the event
loop does its other work, and the queue delivers nothing. Meanwhile each new message drops DISPLACED_COUNT others.

A transaction drops messages only at the end of its turn, when the log has all of it. A read in its middle would write
a part of it. And no message may be dropped for a new one that a full disk refuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import LogNotOpen, QueueEntry
from amqpd.broker.flow.timers import CallTimer
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

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue

# Delay after a start until a queue looks for expired messages.
WAKE_MS: Final = 20
# Delay until the next try to open a log.
RETRY_MS: Final = 1000
# Duration of a slice of drops. The clock is read once per SLICE_COUNT messages.
SLICE_MS: Final = 2
SLICE_COUNT: Final = 256
# Messages dropped for each new one while more slices are needed: dropping must be faster than a flood of publishes.
DISPLACED_COUNT: Final = 2


@final
class QueueLimits:
    """Length limits, overflow, delivery limit, retries and x-expires of one queue. Exists only if a rule is set.

    Attributes:
        lease: Timer of x-expires.
        retries: Messages that wait for a retry. Made when a rule needs it; from then on it stays.
    """

    def __init__(self, queue: Queue, host: QueueServices, backing: QueueStore, rules: QueueConfig) -> None:
        self._queue = queue
        self._host = host
        self._backing = backing
        self.rules = rules
        self.lease: QueueExpiry | None = None
        self.retries: DelayedRetries | None = None
        self._startup_timer: CallTimer | None = None
        # The length must be checked before the next dispatch.
        self._check_due = False
        # One slice was dropped; the next turn drops more.
        self._behind = False

    def apply_config(self, rules: QueueConfig, opened: bool) -> None:
        """Replace the rules. opened: the log is open, so the counts of ready messages are known."""
        queue = self._queue
        host = self._host
        self.rules = rules
        if self.retries is None and rules.retry is not None:
            self.retries = DelayedRetries(queue, host, self._backing)
        if self.retries is not None:
            self.retries.apply_config(rules.retry)
        lease = self.lease
        if lease is not None and lease.expires_ms != rules.expires_ms:
            host.timers.cancel(lease)
            lease = None
        if lease is None and rules.expires_ms >= 0:
            lease = QueueExpiry(queue, host, rules.expires_ms)
            lease.renew()
        self.lease = lease
        if opened:
            self._behind = False
            if queue.ready_count + queue.delayed_count > 0:
                if self.enforce_length():
                    queue.schedule_dispatch()  # the new head may be expired
                host.turn.schedule()
        elif self._startup_timer is None and (rules.ttl_ms >= 0 or rules.dead_letter_exchange is not None):
            self._startup_timer = CallTimer(self._open_log)
            host.timers.arm(self._startup_timer, host.timers.now_ms() + WAKE_MS)

    def _open_log(self) -> None:
        """Open the log soon after the start, so that expired messages are dropped without a client's command."""
        queue = self._queue
        timer = self._startup_timer
        if queue.deleted or timer is None:
            return
        try:
            queue.prepare()
        except LogNotOpen:
            queue.when_open(self._open_log)
        except ResourceError:  # `prepare` has logged it
            self._host.timers.arm(timer, self._host.timers.now_ms() + RETRY_MS)

    def is_needed(self) -> bool:
        """Return whether plain rules still need this object: some messages still wait for a retry."""
        return self.retries is not None and self._queue.delayed_count > 0

    def end(self) -> None:
        """Cancel all timers and forget waiting messages: the queue is deleted, or has plain rules now."""
        if self.retries is not None:
            self.retries.end()
            self.retries = None
        self._check_due = False
        self._behind = False
        if self.lease is not None:
            self._host.timers.cancel(self.lease)
            self.lease = None
        if self._startup_timer is not None:
            self._host.timers.cancel(self._startup_timer)
            self._startup_timer = None

    def on_log_opened(self) -> None:
        """Enforce the length limits when the log has been opened."""
        if self.rules.drops_head and self._is_full():
            # The broker was killed after an append and before it settled the dropped message.
            self._check_due = True
            try:
                self.before_dispatch()
            except OSError as error:
                self._queue.pump_failed(error)  # the retried pump continues
            self._host.turn.schedule()

    def accepts(self, message: Message) -> bool:
        queue = self._queue
        for admission in self.rules.admissions:
            if self._dispatches_late() and not queue.has_room(1, message.body_size):
                self._dispatch_first()
            if not admission.admits(queue, self._host, message):
                return False
        return True

    def _dispatches_late(self) -> bool:
        """Return whether consumers are served at the end of a turn, not at each message."""
        return self._queue.round_robin.filtered or self.rules.retains

    def _dispatch_first(self) -> None:
        """Dispatch before the length is enforced.

        With filters, groups or x-retain, the messages of this turn are still ready. Consumers with credit get them
        before they count for the limit.
        """
        if self._backing.in_transaction:
            return
        try:
            self._queue.dispatch()
        except OSError as error:
            self._queue.pump_failed(error)

    def on_enqueued(self, message: Message, expiry: MessageTtl | None) -> None:
        """Handle a new ready message in a queue with x-retain, which serves its consumers at the end of the turn.

        As in other queues, consumers get it before length limits and time to live apply.
        """
        if expiry is not None:
            late = not (self._backing.in_transaction and len(self.rules.admissions) > 0)
            expiry.on_ready(message, self._backing.next_offset - 1, late, False)
        if self._is_full():
            self._dispatch_first()

    def enforce_length(self) -> bool:
        """Drop messages that exceed the length limits. Return whether the head may have changed.

        If the log cannot be read, a later dispatch drops them: the message that was just enqueued or returned stays.
        """
        if not self.rules.drops_head or self._backing.in_transaction or not self._is_full():
            return False
        try:
            if self._behind:
                self._drop(DISPLACED_COUNT)
                return True
            if self._queue.round_robin.filtered or self.rules.counts_shown:
                self._dispatch_first()  # rabbit: a quorum queue delivers returned messages before the limit applies
            self._drop_head()
        except OSError as error:
            self._check_due = True
            self._queue.pump_failed(error)  # the retried pump continues
            return False
        return True

    def wait_for_retry(self, entry: QueueEntry, failed: bool, expiry: MessageTtl | None, order: ReadyOrder) -> bool:
        """Let a returned entry wait for its retry, if the rules say so. Return whether it waits.

        Args:
            failed: As for `Queue.requeue`.
        """
        retries = self.retries
        if retries is None:
            return False
        until_ms = NEVER
        was_read = False
        if expiry is not None:
            if entry.message is None:  # unacked entries of a durable queue have none in memory
                self._backing.try_read_back(entry)
                was_read = True
            if entry.message is not None:
                until_ms = expiry.deadline(entry.message)
        if not retries.wait(entry, failed, until_ms):
            if was_read:
                entry.message = None
            return False
        order.reserve(entry)
        self.enforce_length()
        return True

    def find_delayed(self, store: QueueLog) -> bool:
        """Find, in slices, the messages of an opened log that wait for their next try. Return whether all are found.

        In a queue with groups no message waits after a restart.
        """
        return self.retries is None or len(self.rules.group_by) > 0 or self.retries.find(store)

    def restore(self, store: QueueLog) -> OffsetBitmap:
        """See `DelayedRetries.restore`."""
        if self.retries is None or self.rules.group_by:
            return OffsetBitmap()
        return self.retries.restore(store)

    def purge(self, order: ReadyOrder) -> i64:
        """Drop the messages that wait for a retry. Return their number."""
        return self.retries.purge(order) if self.retries is not None else 0

    def end_transaction(self) -> None:
        if self.rules.drops_head and self._is_full():
            self._check_due = True
            self._queue.schedule_dispatch()

    def before_dispatch(self) -> bool:
        """Drop messages for a transaction or a new rule.

        Returns:
            False if the dispatch must wait: the log could not be written and `drop_unwritten` comes first, or the next
            turn must drop more.
        """
        if self._check_due:
            store = self._backing.store
            if store is not None:
                store.flush_batches()
                if store.failed_ranges:
                    return False
            if self.rules.drops_head:
                if self._dispatches_late():
                    self._check_due = False
                    self._dispatch_first()
                    self._check_due = True
                self._drop_head()
            self._check_due = False
        elif self._behind:
            self._drop_head()
        return not self._behind

    def drop_unwritten(self, ranges: list[tuple[int, int]], order: ReadyOrder) -> None:
        """Remove waiting messages that the log could not write, and check the length again."""
        if self.retries is not None:
            self.retries.drop_unwritten(ranges, order)
        if self._check_due:
            self._queue.schedule_dispatch()

    def _is_full(self) -> bool:
        queue = self._queue
        if queue.has_room(0, 0):
            return False
        if not self.rules.counts_shown:
            return True
        # rabbit: in a quorum queue, consumers have what their credit covers. Here it may wait for room in the output.
        covered: i64 = min(queue.round_robin.unused_credit(), queue.ready_count)
        return covered < queue.ready_count + queue.delayed_count and not queue.has_room(-covered, 0)

    def _drop_head(self) -> None:
        """Drop everything that exceeds a length limit, or one slice of it."""
        queue = self._queue
        host = self._host
        timers = host.timers
        was_behind = self._behind
        self._behind = False
        if not was_behind and self._drop(SLICE_COUNT):
            return
        until_ms = timers.now_ms() + SLICE_MS
        dead_letters = queue.makes_dead_letters()
        while timers.now_ms() < until_ms and not (dead_letters and host.dead_letters.is_behind()):
            if self._drop(SLICE_COUNT):
                return
        self._behind = self._is_full()
        if self._behind:
            queue.schedule_dispatch()
            host.turn.schedule()

    def _drop(self, count: i64) -> bool:
        """Drop at most `count` messages that exceed a length limit, waiting ones first.

        Returns: True if no more exceed it, or the next one cannot be read now.
        """
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
