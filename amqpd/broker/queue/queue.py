"""A queue: its messages in their ready order, its consumers, its rules, and who gets what next.

    identity     name, vhost, kind, flags, arguments
    consumers    whose turn it is (consumer.py: RoundRobin)
    order        what is ready and which is next (ready_order.py: by arrival, by level)
    rules        what it obeys beside that (config.py), at work in `enforcement` and `expiry`; a plain queue has neither
    backing      where its messages lie (store.py): a log, a temporary one, or memory

Messages come in at `offer`, get an offset, and leave through `pump` (or `get`) to a consumer; `settle` ends them,
`requeue` brings them back to their place. Rules are exchanged as a whole while the queue runs: `obey`.

Invariant: ready_bytes = body bytes of what is ready; after a restart what the log says. One owner: the loop's thread.

What a quorum queue tells a consumer: how often a message came back.

basic.get that found nothing in memory: it waits until the disk has answered, and is given once more then.

How a consumer comes to a queue, and how it leaves: what the queue's order and its filters do for it.

What a queue does otherwise when it keeps what is settled (x-retain): storage/acks/retained.py keeps it.

Its messages go into its log whoever waits for them: elsewhere one that goes straight to a consumer without acks never
touches it. A queue that is not durable has no log that could keep anything: an argument is refused there, a policy has
no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

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
from amqpd.protocol.field_table import Int64
from amqpd.protocol.properties import scan_properties, with_headers
from amqpd.storage.log.prepared import PreparedTransaction
from amqpd.storage.queue_log import QueueLog


def for_consumer(entry: QueueEntry, counts_shown: bool) -> Message | None:
    """The entry's message as a consumer sees it. counts_shown: by the queue's rules."""
    message = entry.message
    return with_delivery_count(entry, message) if counts_shown and message is not None else message


def with_delivery_count(entry: QueueEntry, message: Message) -> Message:
    """rabbit: quorum queues tell how often a message came back, in the header x-delivery-count."""
    count: int = entry.delivery_count
    properties = with_headers(message.properties(), {"x-delivery-count": Int64(count)})
    info = scan_properties(properties, 0, len(properties))
    return make_message(message.envelope, properties, message.body(), message.persistent, info)


@final
class GetWaiters:
    """Those of one queue that wait, in order."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], object]] = []

    def add(self, getter: Callable[[], object]) -> None:
        """Calls it when there may be an answer, once."""
        self._waiting.append(getter)

    def call(self) -> None:
        """There may be one. Who finds the disk asked again adds himself again. Raises: what one of them raises; the
        others are still to be called.
        """
        waiting = self._waiting
        self._waiting = []
        done: i64 = 0
        try:
            for getter in waiting:
                done += 1
                getter()
        finally:
            if done < len(waiting):
                self._waiting = waiting[done:] + self._waiting

    def __len__(self) -> int:
        return len(self._waiting)


def attach_consumer(queue: Queue, consumer: Consumer) -> None:
    """It is served from the next pump on. The caller has checked what it asks for."""
    order = queue.order
    order.join(queue, consumer)
    if consumer.arguments.selector is not None and isinstance(order, FifoOrder):
        queue.use_filtered_order()
    if queue.filters is not None:
        queue.filters.join(consumer)
    queue.add_consumer(consumer)


def detach_consumer(queue: Queue, consumer: Consumer) -> None:
    """It gets nothing more; what it has unacked stays with its front end."""
    queue.order.leave(queue, consumer)
    if queue.filters is not None:
        queue.filters.leave(consumer)
    queue.remove_consumer(consumer)


def apply_retention(host: QueueServices, backing: QueueStore, rules: QueueConfig) -> None:
    """The queue's log keeps from now on what these rules say, which may be nothing."""
    store = backing.store
    if store is not None and not backing.spilled:
        host.retain(store, rules.retain_ms, rules.retain_bytes)


def enqueue_retained(queue: QueueBase, backing: QueueStore, order: ReadyOrder, message: Message) -> bool:
    """Appends it, and has the queue pumped. False: the log accepts nothing."""
    queue.published_count += 1
    if message.info is not None and message.info.expiration is not None:
        queue.track_expiration(message)
    offset = backing.append(message)
    if offset < 0:
        return False
    order.add(queue, message, offset)
    queue.schedule_dispatch()
    return True


class Queue(QueueBase):
    """One queue of a vhost; `GroupedQueue` (grouped_queue.py) is one with groups. host: what it needs of the broker
    around it. exclusive_owner: the connection that declared it exclusive, or None. store: its log, which may be there
    from an earlier life; None: it has none.
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
        self.keeps_all = rules.stream or (store is not None and not store.local)
        self.round_robin.set_restrictions(rules.single_active, False)
        self.backing = QueueStore(store)
        if rules.stream:
            self.order: ReadyOrder = StreamOrder(self.backing, host)
        elif rules.level_max >= 0:
            self.order = PriorityOrder(self.backing, rules.level_max)
        elif rules.group_by:
            self.order = GroupedOrder(self.backing, rules.group_by)
        else:
            self.order = FifoOrder(self.backing)
        # None: the log is open, or there is none.
        self.opening = None if store is None else LogOpening(self, store, host.open_soon)
        # Dead letters of its own that wait to be published and that only the log has.
        self.dead_letters_logged_count: i64 = 0
        # Made when a basic.get has to wait for the disk.
        self.getters: GetWaiters | None = None
        # Made for the first consumer with a filter.
        self.filters: FilteredConsumers | None = None
        # Watches the head from the first message on that has a time to live.
        self.expiry: MessageTtl | None = None
        self.rules = rules
        self.enforcement: QueueLimits | None = None
        if not rules.plain:
            self.apply_config(rules)

    # -- rules -------------------------------------------------------------------------------------------------------

    def apply_config(self, rules: QueueConfig) -> None:
        """These rules, all of them, from now on: clocks are set anew, what is over a length goes, nothing else does.

        A time to live counts from a message's arrival, where that was noted or the log knows it, else from now.
        Raises: ValueError where level_max or single_active differ: a queue has one ready order, and one way to serve
        its consumers, for life.
        """
        if rules.level_max != self.rules.level_max or rules.single_active != self.rules.single_active:
            raise ValueError("a queue keeps its levels and its single active consumer for life")
        if rules.consumer_timeout_ms != self.rules.consumer_timeout_ms:
            for consumer in self.consumers:
                consumer.obey_timeout(rules.consumer_timeout_ms)
        if self.logged and (rules.retains or self.rules.retains):
            apply_retention(self.host, self.backing, rules)
        self.rules = rules
        if self.expiry is None and rules.ttl_ms >= 0:
            self.expiry = MessageTtl(self, self.host, -1)
        expiry = self.expiry
        if expiry is not None and expiry.ttl_ms != rules.ttl_ms:
            if expiry.ttl_ms < 0 and self.ready_count > 0:
                self.order.stamp_arrival(expiry.now_ms())
            expiry.obey(rules.ttl_ms)
        enforcement = self.enforcement
        if rules.plain and (enforcement is None or not enforcement.needed()):
            if enforcement is not None:
                enforcement.end()
                self.enforcement = None
            return
        if enforcement is None:
            enforcement = QueueLimits(self, self.host, self.backing, rules)
            self.enforcement = enforcement
        enforcement.obey(rules, self.opening is None)
        self.order.obey(rules)

    def use_filtered_order(self) -> FilteredConsumers:
        """Exchange the FIFO order for one that gives out messages from its middle. `_pump` changes back when it can.

        Only for a queue whose order is a `FifoOrder`; a `FilteredOrder` stays.
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
        if self.expiry is None:
            self.expiry = MessageTtl(self, self.host, -1)
        self.expiry.note_arrival(message)

    def touch(self) -> None:
        """Somebody declared it, got from it, began or ceased to consume: a lease (x-expires) begins anew."""
        if self.enforcement is not None:
            self.enforcement.used()

    # -- its log -----------------------------------------------------------------------------------------------------

    @property
    def store(self) -> QueueLog | None:
        """Its log, a temporary one included."""
        return self.backing.store

    def prepare(self) -> None:
        if self.opening is not None:
            self.opening.prepare()

    def can_open(self) -> bool:
        return self.opening is None or self.opening.can_open()

    def when_open(self, done: Callable[[], object]) -> None:
        if self.opening is None:
            done()
        else:
            self.opening.when_done(done)

    def find_delayed(self, log: QueueLog) -> bool:
        return self.opening is None or self.enforcement is None or self.enforcement.find_delayed(log)

    def log_opened(self, log: QueueLog) -> None:
        self.opening = None
        self.backing.next_offset = log.next_offset
        self.ready_count = log.record_count
        self.ready_bytes = log.size_bytes
        if self.enforcement is not None:
            waiting = self.enforcement.restore(log)
            if waiting and isinstance(self.order, FifoOrder):
                self.use_filtered_order()
            self.order.exclude(waiting)
        self.order.opened(self)
        if self.enforcement is not None:
            self.enforcement.opened()
        if self.ready_count > 0:
            # Reading the head shows whether it has a time to live, which may be over.
            self._look_at_head()

    def _look_at_head(self) -> None:
        try:
            self.order.load_head(self)
            if self.expiry is not None:
                self.expiry.fire()
        except OSError as error:
            self.pump_failed(error)

    def log_arrived(self) -> None:
        if self.deleted:
            return
        if self.order.is_reading():
            try:
                # What has a time to live is seen now, whether or not there is somebody to take it.
                self.order.head(self)
            except OSError as error:
                self.pump_failed(error)
                return
        elif self.ready_count > 0 and self.order.needs_head():
            self._look_at_head()
        self.schedule_dispatch()

    def log(self) -> QueueLog | None:
        return None if self.backing.spilled else self.backing.store

    # -- in ----------------------------------------------------------------------------------------------------------

    def enqueue(self, message: Message) -> bool:
        enforcement = self.enforcement
        if enforcement is None:
            return self._take_in(message)
        if self.rules.ttl_ms >= 0:
            self.track_expiration(message)
        if not enforcement.accepts(message):
            self.published_count += 1
            return False
        if self.rules.stream:
            self.published_count += 1
            persistent = message.persistent
            message.persistent = True  # rabbit: a stream keeps it whatever its delivery mode
            offset = self.backing.append(message)
            message.persistent = persistent  # for the others it goes to
            return offset >= 0 and self.order.add(self, message, offset)
        kept = self.rules.retains and self.logged
        accepted = enqueue_retained(self, self.backing, self.order, message) if kept else self._take_in(message)
        if kept:
            enforcement.on_enqueued(message, self.expiry)
        if enforcement.enforce_length() and self.expiry is not None:
            self.expiry.arm()
        return accepted

    def _take_in(self, message: Message) -> bool:
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
                    # Delivered at most once whatever happens: it never touches the log.
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
            backing.spill(self.host.temporary_log(offset), message)
        if self.expiry is not None:
            late = self.round_robin.filtered and not (backing.in_transaction and self.rules.admissions)
            self.expiry.came(message, offset, late, self.rules.level_max >= 0)
        return True

    def begin_transaction(self) -> None:
        self.backing.begin_transaction()
        if self.enforcement is not None:
            self.enforcement.begin_transaction()

    def end_transaction(self) -> None:
        self.backing.end_transaction()
        if self.enforcement is not None:
            self.enforcement.end_transaction()

    def takes_prepared(self) -> bool:
        plain = self.rules.plain and self.rules.level_max < 0
        return plain and self.backing.store is not None and not self.backing.spilled

    def enqueue_prepared(self, prepared: PreparedTransaction, first: list[Message]) -> None:
        store = self.backing.store
        assert store is not None  # takes_prepared has looked
        count = prepared.count
        offset = store.append_prepared(prepared)
        self.published_count += count
        self.backing.next_offset = offset + count
        self.order.add_prepared(self, offset, count, prepared.body_bytes(), first)
        if self.expiry is not None and self.ready_count == count:
            self.expiry.arm()
        self.schedule_dispatch()

    # -- out ---------------------------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Delivers what is ready to whoever can take it; is called again where there is more than a turn's share."""
        halted = self.round_robin.halted or not self.order.scan(self)
        if halted or (self.enforcement is not None and not self.enforcement.before_dispatch()):
            return
        if self.expiry is not None and self.expiry.behind and not self.expiry.drop():
            return  # what is over still stands before what could be delivered; the next turn goes on
        asked = self._pump()
        if self.expiry is not None:
            self.expiry.pumped(asked)

    def schedule_dispatch(self) -> None:
        self.host.turn.pump_later(self)

    def pump_failed(self, error: Exception) -> None:
        self.host.pump_failed(self, error)

    def _pump(self) -> bool:
        if self.getters is not None:
            self.getters.call()
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
                    return False  # a slice went; the next turn goes on
            else:
                self.deliver_to(consumer, entry)
            if count >= PUMP_COUNT_MAX:
                self.schedule_dispatch()
                return False
        return True

    def when_ready(self, done: Callable[[], object]) -> None:
        """Calls `done` when there may be an answer for a `get` that found the disk being asked."""
        if self.getters is None:
            self.getters = GetWaiters()
        self.getters.add(done)

    def ended(self, entry: QueueEntry) -> bool:
        over = self.expiry is not None and self.expiry.is_over(entry)
        if over:
            self.discard(entry, "expired")
        return over

    def deliver_to(self, consumer: Consumer, entry: QueueEntry) -> None:
        message = entry.message
        assert message is not None  # take() has read it
        if self.rules.counts_shown and entry.delivery_count > 0:
            # The entry keeps the message as it was published: it may be counted again, or dead-lettered.
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
        """basic.get: the next entry, settled at once or counted as unacked. None: the queue is empty, or `waits`."""
        entry = self._take_at_hand()
        expiry = self.expiry
        if expiry is not None:
            while entry is not None and self.ended(entry):
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
        """As `take`, but None also while the disk is asked for it."""
        if self.round_robin.halted or (self.ready_count > 0 and not self.order.is_next_in_memory(self)):
            return None
        return self.order.take(self)

    def waits(self) -> bool:
        """Whether `get` found nothing because the disk is asked for it, or nobody is served now: see `when_ready`."""
        return (self.order.is_reading() or self.round_robin.halted) and self.ready_count > 0

    def take(self) -> QueueEntry | None:
        return self.order.take(self)

    def head(self) -> QueueEntry | None:
        return self.order.head(self)

    # -- home --------------------------------------------------------------------------------------------------------

    def ack(self, entry: QueueEntry) -> None:
        self.uncount_unacked(entry.body_size)
        self.acked_count += 1
        backing = self.backing
        store = backing.store
        if store is not None and entry.offset >= backing.log_start:
            store.settle(entry.offset, entry.body_size)

    def reject(self, entry: QueueEntry) -> None:
        self.uncount_unacked(entry.body_size)
        self.acked_count += 1
        self.discard(entry, "rejected")

    def discard(self, entry: QueueEntry, reason: str) -> None:
        if self.makes_dead_letters():
            self.host.dead_letter(self, entry, entry.message, reason)
        else:
            self.backing.settle(entry)

    def makes_dead_letters(self) -> bool:
        return self.rules.dead_letter_exchange is not None and not self.deleted

    def drop_old(self, arrived_max_ms: i64, count_max: i64) -> i64:
        return self.order.drop_expired(self, self.host, arrived_max_ms, count_max)

    def requeue(self, entry: QueueEntry, counts: bool, failed: bool = True) -> None:
        self.uncount_unacked(entry.body_size)
        if self.deleted:
            return
        enforcement = self.enforcement
        if counts and enforcement is not None and enforcement.limits_return(entry):
            self.discard(entry, "delivery_limit")
            return
        entry.redelivered = True
        if counts:
            entry.delivery_count += 1
            if enforcement is not None and enforcement.delays(entry, failed, self.expiry, self.order):
                return
        self.backing.mark_returned(entry, 0)
        self.order.requeue(self, entry)
        if enforcement is not None:
            enforcement.enforce_length()

    def make_ready(self, entry: QueueEntry) -> None:
        self.order.requeue(self, entry)

    def purge(self) -> i64:
        """Removes what is ready or waits for its next try; unacked messages stay. Returns how many went."""
        count = self.ready_count
        if self.enforcement is not None:
            count += self.enforcement.purge(self.order)
        self.order.purge(self)
        if self.getters is not None and len(self.getters) > 0:
            self.schedule_dispatch()
        return count

    def dispose(self) -> None:
        """The queue is deleted: nothing of it stays in memory. Its log is the broker's to remove."""
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None  # it knows the queue, which is to go without a collector
        if self.enforcement is not None:
            self.enforcement.end()
            self.enforcement = None
        self.opening = None
        self.filters = None
        if self.getters is not None:
            self.getters.call()
        self.order.clear(self)
        if self.backing.spilled:
            self.backing.drop_spill()

    def on_write_failed(self, ranges: list[tuple[int, int]]) -> None:
        """The log could not take these offsets (inclusive); their publishers are told. What of them is ready goes.

        What a consumer holds already stays with it, and has no place to come back to.
        """
        self.order.unwritten(self, ranges)
        self.backing.unwritten(ranges)
        # The sizes of those that were in the log alone are known to nobody any more.
        self.ready_bytes = min(self.ready_bytes, self.backing.most_bytes(self.order.memory.hot_bytes))
        if self.enforcement is not None:
            self.enforcement.unwritten(ranges, self.order)
