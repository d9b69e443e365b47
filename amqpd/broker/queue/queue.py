"""A queue of a vhost, without groups: its messages, its consumers, and the calls between them.

A `Queue` combines these parts:

    round_robin   the consumers, and which one is served next (../consumer.py)
    order         the ready messages, and which one is next (ready_order.py)
    backing       the store of the messages (store.py: a log, a temporary log, or memory only)
    rules         the settings as one immutable value (config.py); `apply_config` exchanges it while the queue runs
    enforcement   length limits, delivery limit, delayed retries, x-expires (limits.py); None if no rule needs it
    expiry        time to live of messages (expiry.py); None until a message has one
    filters       consumers with x-filter (filtered.py); None while there are none
    opening       opens the log after a start (log_opening.py); None if the log is open or the queue has none

A publisher calls `enqueue`. The store assigns an offset, and the ready order then has the message. At the end of the
loop turn `dispatch` delivers ready messages to consumers with credit; `get` serves basic.get. A channel ends a delivery
by `ack` or `reject`, or returns it by `requeue`. `discard` ends a message for a reason: the broker dead-letters it, or
the log settles it.

A message that goes straight to a consumer without acks never touches the log. A queue with x-retain is the exception:
it appends every message. x-retain needs the log of a durable queue: the argument is refused for other queues, and
a policy with it has no effect there.

Invariant: `ready_bytes` is the number of body bytes of all ready messages; after a restart the log supplies it.
Only the event loop's thread calls a queue.
"""

from __future__ import annotations

from collections.abc import Callable

from mypy_extensions import i64

from amqpd.broker.consumer import Consumer, QueueBase, QueueEntry
from amqpd.broker.message import Message, make_message
from amqpd.broker.queue.config import QueueConfig
from amqpd.broker.queue.expiry import MessageTtl
from amqpd.broker.queue.fifo import FifoOrder
from amqpd.broker.queue.filtered import PUMP_COUNT_MAX, FilteredConsumers
from amqpd.broker.queue.grouped_order import GroupedOrder
from amqpd.broker.queue.limits import QueueLimits
from amqpd.broker.queue.log_opening import LogOpening
from amqpd.broker.queue.priority import PriorityOrder
from amqpd.broker.queue.ready_order import ReadyOrder
from amqpd.broker.queue.services import QueueServices
from amqpd.broker.queue.store import QueueStore
from amqpd.broker.queue.stream import StreamOrder
from amqpd.broker.queue.types import kind_of
from amqpd.protocol.field_table import Int64
from amqpd.protocol.properties import scan_properties, with_headers
from amqpd.storage.local_log import LocalLog
from amqpd.storage.log.batch import ClosedBatch
from amqpd.storage.log.prepared import PreparedTransaction
from amqpd.storage.queue_log import QueueLog


def for_consumer(entry: QueueEntry, counts_shown: bool) -> Message | None:
    """Return the entry's message as a consumer receives it. counts_shown: the queue's rule of this name."""
    message = entry.message
    return with_delivery_count(entry, message) if counts_shown and message is not None else message


def with_delivery_count(entry: QueueEntry, message: Message) -> Message:
    """Return a copy of the message with the header x-delivery-count: how often it was returned to the queue.

    rabbit: a quorum queue adds this header.
    """
    count: int = entry.delivery_count
    properties = with_headers(message.properties(), {"x-delivery-count": Int64(count)})
    info = scan_properties(properties, 0, len(properties))
    return make_message(message.envelope, properties, message.body(), message.persistent, info)


class Queue(QueueBase):
    """A queue of a vhost. `GroupedQueue` (grouped_queue.py) is the class of queues with groups.

    Attributes:
        host: the services of the broker (services.py).
        exclusive_owner: the connection that declared the queue exclusive, or None.
        keeps_all: every message needs a synced log, transient ones too.
        dead_letters_logged_count: dead letters of this queue that wait to be published and that only its log has.
        getters: the basic.get commands that wait for the disk, in order.
        filters: created for the first consumer with a filter.
        expiry: created for the first message with a time to live.

    Args:
        store: the log, perhaps with messages of an earlier run; None for a transient queue.
    """

    def __init__(
        self,
        host: QueueServices,
        name: str,
        durable: bool,
        auto_delete: bool,
        exclusive_owner: object,
        arguments: dict[str, object],
        rules: QueueConfig,
        store: QueueLog | None,
    ) -> None:
        super().__init__(name, host.vhost_name)
        self.host = host
        self.durable = durable
        self.auto_delete = auto_delete
        self.exclusive_owner = exclusive_owner
        self.arguments = arguments
        self.logged = store is not None
        self.keeps_all = kind_of(arguments).durable_only or (store is not None and not store.local)
        self.round_robin.set_restrictions(rules.single_active, False)
        self.backing = QueueStore(store, self.keeps_all)
        if rules.stream:
            self.order: ReadyOrder = StreamOrder(self.backing, host)
        elif rules.level_max >= 0:
            self.order = PriorityOrder(self.backing, rules.level_max)
        elif rules.group_by:
            self.order = GroupedOrder(self.backing, rules.group_by)
        else:
            self.order = FifoOrder(self.backing)
        self.opening = None if store is None else LogOpening(self, store, host.opener)
        self.dead_letters_logged_count: i64 = 0
        self.getters: list[Callable[[], object]] = []
        self.filters: FilteredConsumers | None = None
        self.expiry: MessageTtl | None = None
        self.rules = rules
        self.enforcement: QueueLimits | None = None
        if not rules.plain:
            self.apply_config(rules)

    # -- rules -------------------------------------------------------------------------------------------------------

    def apply_config(self, rules: QueueConfig) -> None:
        """Exchange the rules while the queue runs.

        Clocks start again, and messages above a new length limit are dropped. A time to live counts from the arrival of
        a message if the message or the log knows it, otherwise from now.

        Raises:
            ValueError: level_max or single_active differ. A queue keeps its ready order and its single active consumer.
        """
        if rules.level_max != self.rules.level_max or rules.single_active != self.rules.single_active:
            raise ValueError("a queue cannot change its priorities or its single active consumer")
        if rules.consumer_timeout_ms != self.rules.consumer_timeout_ms:
            for consumer in self.consumers:
                consumer.apply_timeout(rules.consumer_timeout_ms)
        if self.logged and (rules.retains or self.rules.retains):
            store = self.backing.store
            if isinstance(store, LocalLog):
                self.host.storage.retain(store, rules.retain_ms, rules.retain_bytes)
        self.rules = rules
        if self.expiry is None and rules.ttl_ms >= 0:
            self.expiry = MessageTtl(self, self.host)
        expiry = self.expiry
        if expiry is not None and expiry.ttl_ms != rules.ttl_ms:
            if expiry.ttl_ms < 0 and self.ready_count > 0:
                self.order.stamp_arrival(self.host.turn.now_ms())
            expiry.apply_config(rules.ttl_ms)
        enforcement = self.enforcement
        if rules.plain and (enforcement is None or not enforcement.is_needed()):
            if enforcement is not None:
                enforcement.end()
                self.enforcement = None
            return
        if enforcement is None:
            enforcement = QueueLimits(self, self.host, self.backing, rules)
            self.enforcement = enforcement
        enforcement.apply_config(rules, self.opening is None)
        self.order.apply_config(rules)

    def use_filtered_order(self) -> FilteredConsumers:
        """Replace the FIFO order by a `FilteredOrder`, which can take messages from its middle.

        `_pump` changes back when no consumer has a filter. Only for a queue whose order is a `FifoOrder` or already
        a `FilteredOrder`.
        """
        filters = self.filters
        if filters is None:
            order = self.order
            assert isinstance(order, FifoOrder)
            filters = FilteredConsumers(self, self.host, order)
            self.filters = filters
            self.order = filters.order
        return filters

    def track_expiration(self, message: Message) -> None:
        """Track the time to live of a message. The first call creates `expiry`."""
        if self.expiry is None:
            self.expiry = MessageTtl(self, self.host)
        if message.arrived_ms == 0 and message.logged_ms == 0:
            message.arrived_ms = self.host.turn.now_ms()

    def touch(self) -> None:
        """Renew the lease of x-expires after a declaration, a basic.get, or a consumer's begin or end."""
        if self.enforcement is not None and self.enforcement.lease is not None:
            self.enforcement.lease.renew()

    def has_room(self, count: i64, size_bytes: i64) -> bool:
        """Return whether the length limits permit so many more ready messages and body bytes.

        Messages that wait for a retry count.
        """
        count += self.ready_count + self.delayed_count
        return self.rules.stream or not self.rules.is_over(count, self.ready_bytes + self.delayed_bytes + size_bytes)

    # -- consumers ---------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        """Add a consumer, served from the next dispatch on. The caller has checked its arguments."""
        order = self.order
        order.add_consumer(self, consumer)
        if consumer.arguments.selector is not None and isinstance(order, FifoOrder):
            self.use_filtered_order()
        if self.filters is not None:
            self.filters.add_consumer(consumer)
        super().add_consumer(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        self.order.remove_consumer(self, consumer)
        if self.filters is not None:
            self.filters.remove_consumer(consumer)
        super().remove_consumer(consumer)

    # -- the log -----------------------------------------------------------------------------------------------------

    @property
    def store(self) -> QueueLog | None:
        """Return the log, a temporary one included, or None."""
        return self.backing.store

    def prepare(self) -> None:
        if self.opening is not None:
            self.opening.prepare()

    def can_open(self) -> bool:
        """Open the log now and wait for the disk. Return False if the log cannot be read."""
        return self.opening is None or self.opening.can_open()

    def when_open(self, done: Callable[[], object]) -> None:
        """Call `done` when the log is open or failed to open; at once if it is open already."""
        if self.opening is None:
            done()
        else:
            self.opening.when_done(done)

    def log_opened(self, log: QueueLog) -> None:
        """Take over the log after a start: next offset, counts, and the messages that wait for their next try.

        Then load the first ready message, because its time to live may be over.
        """
        self.opening = None
        self.backing.next_offset = log.next_offset
        self.ready_count = log.record_count
        self.ready_bytes = log.size_bytes
        if self.enforcement is not None:
            waiting = self.enforcement.restore(log)
            if waiting and isinstance(self.order, FifoOrder):
                self.use_filtered_order()
            self.order.exclude_offsets(waiting)
        self.order.on_log_opened(self)
        if self.enforcement is not None:
            self.enforcement.on_log_opened()
        if self.ready_count > 0:
            self._load_head()

    def _load_head(self) -> None:
        try:
            self.order.load_head(self)
            if self.expiry is not None:
                self.expiry.fire()
        except OSError as error:
            self.pump_failed(error)

    def log_arrived(self) -> None:
        """Continue after the disk has delivered messages: check the expiry of the head, schedule a dispatch."""
        if self.deleted:
            return
        if self.order.is_reading():
            try:
                # Reading the head shows its time to live, so that it can expire without a consumer.
                self.order.head(self)
            except OSError as error:
                self.pump_failed(error)
                return
        elif self.ready_count > 0 and self.order.needs_head():
            self._load_head()
        self.schedule_dispatch()

    def log(self) -> QueueLog | None:
        """Return the synced log of a durable queue; None for a transient queue, which has at most a temporary log."""
        return None if self.backing.spilled else self.backing.store

    # -- enqueue -----------------------------------------------------------------------------------------------------

    def enqueue(self, message: Message) -> bool:
        """Take a message from a publisher. A consumer with credit gets it at once if no other message is ready.

        Returns:
            False if a limit refuses the message (reject-publish) or the log has failed; the publisher is then nacked.
        """
        enforcement = self.enforcement
        if enforcement is None:
            return self._enqueue_plain(message)
        if self.rules.ttl_ms >= 0:
            self.track_expiration(message)
        if not enforcement.accepts(message):
            self.published_count += 1
            return False
        if self.rules.stream:
            self.published_count += 1
            offset = self.backing.append(message)
            return offset >= 0 and self.order.add(self, message, offset)
        if self.rules.retains and self.logged:
            accepted = self._enqueue_retained(message)
            enforcement.on_enqueued(message, self.expiry)
        else:
            accepted = self._enqueue_plain(message)
        if enforcement.enforce_length() and self.expiry is not None:
            self.expiry.arm()
        return accepted

    def _enqueue_plain(self, message: Message) -> bool:
        """Enqueue a message that no limit refuses. Return False if its log has failed.

        If nothing is ready and a consumer has credit, the message goes to the consumer at once; the log is skipped for
        a consumer without acks. Otherwise the message is appended to the store and becomes ready.
        """
        self.published_count += 1
        if message.info is not None and message.info.expiration is not None:
            self.track_expiration(message)
        backing = self.backing
        if self.ready_count == 0:
            if backing.spilled and self.dead_letters_logged_count == 0:
                backing.drop_spill()
            consumer = self.round_robin.pick()
            if consumer is not None:
                if consumer.no_ack:
                    # At most once anyway: the log is not needed.
                    self.delivered_no_ack_count += 1
                    if backing.numbered and not backing.log_passthrough(message):
                        return False
                    consumer.deliver(message, None, False)
                    return True
                offset = backing.append(message)
                if offset < 0:
                    return False
                self.count_unacked(message.body_size)
                self.delivered_count += 1
                self.order.skip_to(offset)
                consumer.deliver(message, QueueEntry(self, offset, message, False), False)
                return True
        offset = backing.append(message)
        if offset < 0:
            return False
        if not self.order.add(self, message, offset):
            backing.spill(self.host.storage.temporary_queue(first_offset=offset), message)
        if self.expiry is not None:
            late = self.round_robin.filtered and not (backing.in_transaction and self.rules.admissions)
            self.expiry.on_ready(message, offset, late, self.rules.level_max >= 0)
        return True

    def _enqueue_retained(self, message: Message) -> bool:
        """Append a message to a queue with x-retain and schedule a dispatch. Return False if the log has failed."""
        self.published_count += 1
        if message.info is not None and message.info.expiration is not None:
            self.track_expiration(message)
        offset = self.backing.append(message)
        if offset < 0:
            return False
        self.order.add(self, message, offset)
        self.schedule_dispatch()
        return True

    def enqueue_batches(self, batches: list[ClosedBatch]) -> i64:
        """Append record batches of another program to a stream and return the offset of the first record.

        Their records count as published messages, and consumers get them when they are safe. The log also has their
        producers from then on. The caller has opened the log and schedules the turn.

        Args:
            batches: checked by `BatchCheck`.

        Raises: LogFailed; the queue is unchanged.
        """
        store = self.backing.store
        assert isinstance(store, LocalLog) and isinstance(self.order, StreamOrder)  # a stream is durable
        size_bytes: i64 = store.size_bytes
        first = store.appender.append_checked(batches)
        count: i64 = store.next_offset - first
        self.published_count += count
        self.backing.next_offset = store.next_offset
        self.order.add_batches(self, count, store.size_bytes - size_bytes)
        return first

    def begin_transaction(self) -> None:
        self.backing.begin_transaction()

    def end_transaction(self) -> None:
        """End the log transaction. Length limits are applied now."""
        self.backing.end_transaction()
        if self.enforcement is not None:
            self.enforcement.end_transaction()

    def takes_prepared(self) -> bool:
        """Return whether `enqueue_prepared` is possible: a durable log, no limit, no priorities."""
        plain = self.rules.plain and self.rules.level_max < 0
        return plain and self.backing.store is not None and not self.backing.spilled

    def enqueue_prepared(self, prepared: PreparedTransaction, first: list[Message]) -> None:
        """Append a whole transaction to the log by one call. first: its oldest messages, to keep in memory."""
        store = self.backing.store
        assert store is not None  # takes_prepared checked it
        count = prepared.count
        offset = store.append_prepared(prepared)
        self.published_count += count
        self.backing.next_offset = offset + count
        self.order.add_prepared(self, offset, count, prepared.body_bytes(), first)
        if self.expiry is not None and self.ready_count == count:
            self.expiry.arm()
        self.schedule_dispatch()

    # -- deliver -----------------------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Deliver ready messages to consumers with credit. The loop turn calls this at its end.

        Does not wait for the disk: if the next message is not in memory, the queue asks for it and `log_arrived`
        continues.
        Limits and expiry are applied first. A dispatch with more work than one turn's share schedules itself again.
        """
        halted = self.round_robin.halted or not self.order.scan(self)
        if halted or (self.enforcement is not None and not self.enforcement.before_dispatch()):
            return
        if self.expiry is not None and self.expiry.behind and not self.expiry.drop():
            return  # expired messages are still ahead; the next turn continues
        asked = self._pump()
        if self.expiry is not None:
            self.expiry.on_dispatched(asked)

    def schedule_dispatch(self) -> None:
        self.host.turn.pump_later(self)

    def pump_failed(self, error: Exception) -> None:
        """Have the broker log an exception of `dispatch` and call it again later."""
        self.host.pump_retries.failed(self, error)

    def _pump(self) -> bool:
        """Serve the waiting basic.get commands, then the consumers, at most PUMP_COUNT_MAX messages.

        Returns: True if no ready message can be delivered now; False if the next turn must continue.
        """
        self._call_getters()
        if self.filters is not None:
            order = self.filters.pump()
            if order is None:
                return self.filters.asked
            if order is not self.order:
                self.order = order
                self.filters = None
        count: i64 = 0
        while self.ready_count > 0:
            if (
                self.backing.store is not None
                and self.round_robin.has_ready()
                and not self.order.is_next_in_memory(self)
            ):
                return True
            consumer = self.round_robin.pick()
            if consumer is None:
                return True
            entry = self.order.take(self)
            if entry is None:
                return True
            count += 1
            if self.expiry is not None and self.expiry.is_over(entry):
                self.discard(entry, "expired")
                if not self.expiry.drop():
                    return False  # a slice was dropped; the next turn continues
            else:
                self.deliver_to(consumer, entry)
            if count >= PUMP_COUNT_MAX:
                self.schedule_dispatch()
                return False
        return True

    def when_ready(self, done: Callable[[], object]) -> None:
        """Call `done` when a `get` that waits for the disk may find a message."""
        self.getters.append(done)

    def _call_getters(self) -> None:
        """Call the basic.get commands that wait. One whose message is still on the disk waits again.

        Raises: the exception of a command. The commands after it stay.
        """
        if not self.getters:
            return
        called_count: i64 = 0
        try:
            for getter in list(self.getters):
                called_count += 1
                getter()
        finally:
            del self.getters[:called_count]

    def discard_if_expired(self, entry: QueueEntry) -> bool:
        """Discard a taken entry if its time to live is over. Return whether it is."""
        over = self.expiry is not None and self.expiry.is_over(entry)
        if over:
            self.discard(entry, "expired")
        return over

    def deliver_to(self, consumer: Consumer, entry: QueueEntry) -> None:
        """Deliver a taken entry to a consumer: count it, and mark it in the log.

        A consumer without acks settles the entry at once. For other consumers the log marks the entry as delivered, so
        that it counts as redelivered after a kill.
        """
        message = entry.message
        assert message is not None  # take() read it
        if self.rules.counts_shown and entry.delivery_count > 0:
            # The entry keeps the original: it may be returned again, or dead-lettered.
            message = with_delivery_count(entry, message)
        if entry.redelivered:
            self.redelivered_count += 1
        backing = self.backing
        if consumer.no_ack:
            self.delivered_no_ack_count += 1
            backing.settle_with_turn(entry)
            consumer.deliver(message, None, entry.redelivered)
        else:
            self.delivered_count += 1
            self.count_unacked(entry.body_size)
            store = backing.store
            if store is not None and entry.offset >= backing.log_start:
                self.order.mark_delivered(store, entry.offset)
            consumer.deliver(message, entry, entry.redelivered)

    def get(self, no_ack: bool) -> QueueEntry | None:
        """Take the next entry for a basic.get.

        Args:
            no_ack: settle the entry at once; otherwise it is unacked.

        Returns: None if the queue is empty, or if the command must wait: see `must_wait`.
        """
        entry = self._take_at_hand()
        expiry = self.expiry
        if expiry is not None:
            while entry is not None and self.discard_if_expired(entry):
                expiry.drop()
                entry = self._take_at_hand()
            expiry.arm()
        if entry is None:
            return None
        backing = self.backing
        if no_ack:
            self.get_no_ack_count += 1
            backing.settle_with_turn(entry)
        else:
            self.get_count += 1
            self.count_unacked(entry.body_size)
            store = backing.store
            if store is not None and entry.offset >= backing.log_start:
                self.order.mark_delivered(store, entry.offset)
        if entry.redelivered:
            self.redelivered_count += 1
        return entry

    def _take_at_hand(self) -> QueueEntry | None:
        """Take the next entry. Return None also while the disk reads it, or while no consumer is served."""
        if self.round_robin.halted or (self.ready_count > 0 and not self.order.is_next_in_memory(self)):
            return None
        return self.order.take(self)

    def must_wait(self) -> bool:
        """Return whether the queue has ready messages although `get` returned None. The caller uses `when_ready`.

        Either the disk is being read, or the queue serves no consumer at present (`RoundRobin.suspend`).
        """
        return (self.order.is_reading() or self.round_robin.halted) and self.ready_count > 0

    def take(self) -> QueueEntry | None:
        """Remove and return the next ready entry with its message, or None. May wait for the disk.

        The caller settles it or counts it as unacked.

        Raises:
            OSError: the log cannot be read; the entry stays.
        """
        return self.order.take(self)

    # -- settle ------------------------------------------------------------------------------------------------------

    def ack(self, entry: QueueEntry) -> None:
        """Settle an entry that its consumer acked, or rejected without a dead-letter exchange."""
        self.uncount_unacked(entry.body_size)
        self.acked_count += 1
        backing = self.backing
        store = backing.store
        if store is not None and entry.offset >= backing.log_start:
            store.ack(entry.offset, entry.body_size)

    def reject(self, entry: QueueEntry) -> None:
        self.uncount_unacked(entry.body_size)
        self.acked_count += 1
        self.discard(entry, "rejected")

    def discard(self, entry: QueueEntry, reason: str) -> None:
        """End a taken entry that is not acked: dead-letter it, or settle it if the queue has no dead-letter exchange.

        Args:
            reason: expired, maxlen, rejected or delivery_limit, as the header x-death shows it.
        """
        if self.makes_dead_letters():
            self.host.dead_letters.add(self, entry, entry.message, reason)
        else:
            self.backing.settle(entry)

    def makes_dead_letters(self) -> bool:
        """Return whether discarded messages go to a dead-letter exchange."""
        return self.rules.dead_letter_exchange is not None and not self.deleted

    def requeue(self, entry: QueueEntry, counts: bool, failed: bool = True) -> None:
        """Return an unacked entry to its place in the ready order. The caller dispatches after all returns.

        The entry is marked as redelivered. It is discarded if it exceeds the delivery limit, and it waits first if
        delayed retries apply. A deleted queue forgets it.

        Args:
            counts: the return counts as a delivery attempt.
            failed: the message was rejected or its consumer is gone; False if the consumer returned it.
        """
        self.uncount_unacked(entry.body_size)
        if self.deleted:
            return
        enforcement = self.enforcement
        if counts and 0 <= self.rules.delivery_limit <= entry.delivery_count:
            self.discard(entry, "delivery_limit")
            return
        entry.redelivered = True
        if counts:
            entry.delivery_count += 1
            if enforcement is not None and enforcement.wait_for_retry(entry, failed, self.expiry, self.order):
                return
        self.backing.mark_returned(entry, 0)
        self.order.requeue(self, entry)
        if enforcement is not None:
            enforcement.enforce_length()

    def purge(self) -> i64:
        """Remove the messages that are ready or wait for their next try. Return their number. Unacked ones stay."""
        count = self.ready_count
        if self.enforcement is not None:
            count += self.enforcement.purge(self.order)
        self.order.purge(self)
        if self.getters:
            self.schedule_dispatch()
        return count

    def dispose(self) -> None:
        """Release everything in memory after the queue was deleted. The broker removes the log.

        Parts that refer to the queue are dropped, so that no reference cycle is left for the garbage collector.
        """
        if self.expiry is not None:
            self.host.timers.cancel(self.expiry)
            self.expiry = None  # it refers to the queue
        if self.enforcement is not None:
            self.enforcement.end()
            self.enforcement = None
        self.opening = None
        self.filters = None
        self._call_getters()
        self.order.clear(self)
        if self.backing.spilled:
            self.backing.drop_spill()

    def on_write_failed(self, ranges: list[tuple[int, int]]) -> None:
        """Drop ready messages that the log could not write; the broker nacks their publishers.

        An unacked message stays with its consumer, and exists only in memory.

        Args:
            ranges: offsets, ends included.
        """
        self.order.drop_unwritten(self, ranges)
        self.backing.forget_unwritten(ranges)
        # The sizes of dropped messages that were only in the log are unknown: use an upper bound.
        most_bytes = self.backing.most_bytes(self.order.memory.hot_bytes) if self.ready_count > 0 else 0
        self.ready_bytes = min(self.ready_bytes, most_bytes)
        if self.enforcement is not None:
            self.enforcement.drop_unwritten(ranges, self.order)
