"""Base classes of destinations, delays, traces, queue entries, consumers and queues; the round robin of consumers.

They refer to each other, so they share a module. `Queue`, channels and exchanges derive from them and are imported
by none of the modules that use only these interfaces.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64, mypyc_attr

from amqpd.broker.message import Message
from amqpd.broker.stream_message import StreamDeliveryEncoder, StreamStart
from amqpd.routing.selector import Selector
from amqpd.storage.log.record import RecordViews
from amqpd.storage.queue_log import QueueLog

if TYPE_CHECKING:
    from amqpd.storage.log.prepared import PreparedTransaction


class LogNotOpen(Exception):
    """The logs of these queues are being opened. The caller retries its command afterwards (log_opener.when_open)."""

    def __init__(self, destinations: list[Destination]) -> None:
        super().__init__()
        self.destinations = destinations


class Versioned:
    """Something that routes depend on. A change of `version` invalidates the routes that were made with it."""

    def __init__(self) -> None:
        self.version: i64 = 0


class Destination(Versioned):
    """The end of a route: a queue, a direct reply-to consumer, or the state of an exchange.

    Attributes:
        durable: a confirm may have to wait for a synced log.
        keeps_all: stores every message, transient ones too.
        is_queue: a message that arrives here is routed. False for exchange state (broker/publish/deduplication.py),
            which gets each message after all queues.
        requires_all_accepted: exchange state that gets only messages that all queues accepted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.durable = False
        self.keeps_all = False
        self.is_queue = True
        self.requires_all_accepted = False

    def prepare(self) -> None:
        """Open the log before the first use after a start.

        Raises:
            LogNotOpen: the log is being opened; the caller retries its command afterwards.
            ResourceError: the log cannot be read. The next call tries again.
        """

    def when_open(self, done: Callable[[], object]) -> None:
        """Call `done` when the log is open or failed to open, after `prepare` raised LogNotOpen."""
        done()

    def log(self) -> QueueLog | None:
        """Return the synced log that stores persistent messages sent here, if any."""
        return None

    def is_deleted(self) -> bool:
        """Return whether it accepts nothing more: the queue is deleted, or the consumer is cancelled."""
        return False

    def enqueue(self, message: Message) -> bool:
        """Take the message.

        Return False if it is refused, by reject-publish or a failed log; the publisher is then nacked.
        """
        raise NotImplementedError

    def accepts_with(self, targets: list[Destination]) -> bool:
        """Return whether to store the message, given its other destinations.

        Only for destinations that are not queues.
        """
        return True

    def reserve(self) -> None:
        """Count a message that waits for its commit or for other destinations.

        Only for destinations that are not queues.
        """

    def refuse(self) -> None:
        """Undo a stored or reserved message whose publish failed. Only for destinations that are not queues."""

    def begin_transaction(self) -> None:
        """Begin a log transaction: after a crash, all messages enqueued before `end_transaction` exist or none.

        Both calls must be in the same turn.

        Raises:
            LogFailed: the log accepts nothing.
        """

    def end_transaction(self) -> None:
        """End the log transaction. Raises nothing."""

    def takes_prepared(self) -> bool:
        """Return whether `enqueue_prepared` is possible: there is a log, and no rule depends on single messages."""
        return False

    def enqueue_prepared(self, prepared: PreparedTransaction, first: list[Message]) -> None:
        """Take all messages of a transaction at once.

        Args:
            first: the oldest of them, to keep in memory.
        """
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class DelayHook:
    """The delayed messages of one exchange, for publishers. broker/delayed implements it.

    An exchange delays messages if its type is `x-delayed-message`, or if an argument or policy sets `x-delayed`.
    """

    def destination(self, keys: list[str], headers: Mapping[str, object], strict: bool) -> Destination | None:
        """Return the destination that holds the message until it is due, or None if it is not delayed.

        Args:
            keys: the routing key, then those of CC and BCC.
            strict: raise PreconditionFailed (406) for an invalid delay. Otherwise an invalid delay is none, and a
                delay above ten years is ten years.
        """
        raise NotImplementedError

    def count(self) -> i64:
        """Return how many messages wait, as far as known: after a start it takes a moment. Cost: a step per bucket."""
        raise NotImplementedError

    def drop(self, done: Callable[[], None]) -> None:
        """Drop the waiting messages, because the exchange is deleted. `done` is called when this is durable."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class DelayHooks:
    """The delayed messages of all exchanges of the broker."""

    def wheel(self, vhost: str, vhost_id: str, exchange: str) -> DelayHook:
        """Return the delayed messages of an exchange, created if necessary. The first message creates its files."""
        raise NotImplementedError

    def remove_vhost(self, vhost: str) -> list[QueueLog]:
        """Drop the delayed messages of a deleted vhost. Return their logs; the caller removes them."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class TraceHook:
    """Receiver of every publish and delivery of one vhost: the firehose, or the recorder of `amqpd.testing`.

    The message path does not check for it. A traced route has no direct destination (`Route.only`), and a traced
    consumer caches no delivery head (`ChannelConsumer.deliver`).
    """

    def published(
        self,
        message: Message,
        keys: list[str],
        destinations: list[Destination],
        connection: str,
        user: str,
        number: i64,
    ) -> None:
        """Record a publish.

        Args:
            keys: the routing key, then those of CC and BCC.
            number: the channel number.
        """
        raise NotImplementedError

    def delivered(
        self, message: Message, queue: str, redelivered: bool, connection: str, user: str, number: i64
    ) -> None:
        """Record a delivery or a basic.get from the named queue."""
        raise NotImplementedError

    def dead_lettered(self, message: Message, queue: str, reason: str, destinations: list[Destination]) -> None:
        """Record a dead letter that was published. The firehose has none.

        Args:
            message: the dead letter, with x-death.
            queue: where it died.
            reason: the one in x-death.
        """

    def is_behind(self) -> bool:
        """Return whether publishers should pause so that the trace can catch up."""
        raise NotImplementedError


@final
class QueueEntry:
    """A message's place in one queue (queue, offset), and its state there.

    An entry goes from the queue to a channel's unacked list, and back if it is requeued. It is settled, rejected or
    requeued exactly once, in its own queue.

    Attributes:
        message: None if only the log has it; the queue reads it back for a redelivery.
        delivery_count: how often it was returned, as far as known.
        consumer: has the delivery; None after basic.get.
        in_transaction: settled in an open transaction.
    """

    def __init__(self, queue: QueueBase, offset: i64, message: Message | None, redelivered: bool) -> None:
        self.queue = queue
        self.offset = offset
        self.message = message
        self.body_size: i64 = 0
        if message is not None:
            self.body_size = message.body_size
        self.redelivered = redelivered
        self.delivery_count: i64 = 0
        self.consumer: Consumer | None = None
        self.in_transaction = False

    def detach(self) -> None:
        """Detach the entry from its consumer, which returned or rejected it."""
        if self.consumer is not None:
            self.consumer.given_back_count += 1
            self.consumer = None

    def __lt__(self, other: QueueEntry) -> bool:
        return self.offset < other.offset

    def __hash__(self) -> int:
        # mypyc generates no hash for a class with a comparison.
        return id(self)


@final
class ConsumerArguments:
    """The arguments of a consumer, immutable. broker/queue/consumer_arguments.py creates them.

    Attributes:
        table: the encoded arguments as received, for lists.
        priority: x-priority.
        timeout_ms: x-consumer-timeout, -1 for none.
        selector: x-filter, None for all messages.
        start: x-stream-offset.
        consumer_name: x-stream-consumer-name, "" for none.
        filter_values: x-stream-filter, empty for all messages.
        match_unfiltered: x-stream-match-unfiltered.
    """

    def __init__(
        self,
        table: bytes,
        priority: int = 0,
        timeout_ms: i64 = -1,
        selector: Selector | None = None,
        start: StreamStart | None = None,
        consumer_name: str = "",
        filter_values: frozenset[str] = frozenset(),
        match_unfiltered: bool = False,
    ) -> None:
        self.table: Final = table
        self.priority: Final = priority
        self.timeout_ms: Final = timeout_ms
        self.selector: Final = selector
        self.start: Final = start
        self.consumer_name: Final = consumer_name
        self.filter_values: Final = filter_values
        self.match_unfiltered: Final = match_unfiltered


NO_ARGUMENTS: Final = ConsumerArguments(b"")


@mypyc_attr(allow_interpreted_subclasses=True)
class Consumer:
    """Base class of a queue's consumers. Each front end derives its own, for example `ChannelConsumer`.

    Attributes:
        parked: not in the round robin, because it had no credit or room.
        in_flight: unacked deliveries.
        redelivered_count: deliveries of messages that were delivered before.
        given_back_count: deliveries returned or rejected.
        served: number of the last filtered delivery, by the queue's count.
        reader: for a stream, the position and source of deliveries.
        entry_for_all: for a stream, the entry shared by all deliveries if single offsets are not tracked.
    """

    def __init__(self, queue: QueueBase, tag: str, no_ack: bool, exclusive: bool, arguments: ConsumerArguments) -> None:
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.arguments = arguments
        self.priority = arguments.priority
        self.parked = False
        self.cancelled = False
        self.in_flight: i64 = 0
        self.delivered_count: i64 = 0
        self.redelivered_count: i64 = 0
        self.given_back_count: i64 = 0
        self.served: i64 = 0
        self.reader: QueueBase | None = None
        self.entry_for_all: QueueEntry | None = None

    def can_take(self) -> bool:
        """Return whether there is credit and room in the output. A parked consumer waits for `QueueBase.activate`."""
        raise NotImplementedError

    def unused_credit(self) -> i64:
        """Return how many more messages may be unacked; 0 if there is no limit."""
        return 0

    def deliver(self, message: Message, entry: QueueEntry | None, redelivered: bool) -> None:
        """Write one delivery.

        Args:
            entry: to be settled by the consumer; None if no ack is expected.
        """
        raise NotImplementedError

    def apply_timeout(self, queue_timeout_ms: i64) -> None:
        """Apply the queue's x-consumer-timeout; -1 for none. Consumers without timeouts ignore it."""

    def deliver_records(
        self,
        encoder: StreamDeliveryEncoder,
        views: RecordViews,
        start: i64,
        stop: i64,
        source: QueueBase,
        tracked: bool,
    ) -> i64:
        """Deliver the stream record at `start`, and the equal ones before `stop` while the consumer can take more.

        Args:
            tracked: `source` must know which offset is settled. If False, one entry without an offset can represent
                all deliveries.

        Returns: the index of the first record not delivered.
        """
        number = views.shared_fields_index(start)
        while True:
            message = encoder.message(views, start)
            self.deliver(message, QueueEntry(source, views.offset(start), message, False), False)
            start += 1
            if start >= stop or views.shared_fields_index(start) != number or not self.can_take():
                return start

    def on_dispatch_end(self) -> None:
        """End a stream consumer's share of this turn: other consumers follow."""

    def set_tap(self, tap: TraceHook | None) -> None:
        """Report deliveries to this trace from now on; None ends tracing. Consumers without tracing ignore it."""

    def cancel(self) -> None:
        """Notify the client that the queue is gone (basic.cancel), and remove the consumer."""
        raise NotImplementedError


@final
class RoundRobin:
    """The consumers of a queue and the order in which they are served.

    The consumers of the highest priority with credit and room are served in strict round robin. A consumer without
    credit is parked until its channel activates it.

    Cost: O(1), plus a step for each consumer that is parked.

    Attributes:
        single_active: x-single-active-consumer: only the first of `consumers` is served.
        filtered: a consumer has a filter, so the message decides; `pick` returns None (broker/queue/filtered.py).
        halted: no consumer is served: see `suspend`.
    """

    def __init__(self) -> None:
        self.consumers: list[Consumer] = []
        # Consumers that are not parked: a single one, or groups by priority, highest first.
        self._alone: Consumer | None = None
        self._groups: list[deque[Consumer]] = []
        # Those of the parked ones that have credit, and wait for room.
        self._stalled: dict[Consumer, None] = {}
        self.single_active = False
        self.filtered = self.halted = False
        self._restricted = False  # single_active, filtered or halted

    def set_restrictions(self, single_active: bool, filtered: bool) -> None:
        """Set or clear the rules that exclude consumers."""
        self.single_active, self.filtered = single_active, filtered
        self._restricted = single_active or filtered or self.halted

    def suspend(self, on: bool) -> None:
        """Stop or resume serving consumers."""
        self.halted = on
        self.set_restrictions(self.single_active, self.filtered)

    @property
    def exclusive(self) -> bool:
        """Return whether the present consumer excludes others."""
        return len(self.consumers) > 0 and self.consumers[0].exclusive

    def add(self, consumer: Consumer) -> None:
        """Add a consumer at the end of its priority."""
        self.consumers.append(consumer)
        self.enter(consumer)

    def remove(self, consumer: Consumer) -> bool:
        """Remove a consumer. Return True if it was the single active one and the caller must activate the next."""
        consumer.cancelled = True
        self._stalled.pop(consumer, None)
        if consumer not in self.consumers:
            return False
        first = self.consumers[0]
        self.consumers.remove(consumer)
        self._leave(consumer)
        return self.single_active and first is consumer and len(self.consumers) > 0

    def unpark(self, consumer: Consumer) -> bool:
        """Make a parked consumer ready again. Return False if it was not parked."""
        if not consumer.parked or consumer.cancelled:
            return False
        self._leave(consumer)
        self.enter(consumer)
        return True

    def park(self, consumer: Consumer) -> None:
        """Park a consumer for which there is no message at present. Cost: O(1) for the consumer picked last."""
        for group in self._groups:
            if group[-1] is consumer:
                group.pop()
                if not group:
                    self._groups.remove(group)
                consumer.parked = True
                return
        self._leave(consumer)
        consumer.parked = True

    def unused_credit(self) -> i64:
        """Return the limited credit of the consumers that are served. Cost: linear in those that have some."""
        total: i64 = 0
        if self.filtered:
            return total
        if self.single_active:
            return self.consumers[0].unused_credit() if self.consumers else total
        if self._alone is not None:
            total += self._alone.unused_credit()
        for group in self._groups:
            for consumer in group:
                total += consumer.unused_credit()
        for consumer in self._stalled:
            total += consumer.unused_credit()
        return total

    def has_ready(self) -> bool:
        """Return whether a consumer is not parked."""
        return self._alone is not None or len(self._groups) > 0

    def pick(self) -> Consumer | None:
        """Return the next consumer and move it to the end of its group. Parks consumers that cannot take a message."""
        if self._restricted:
            return self._pick_restricted()
        alone = self._alone
        if alone is not None:
            if alone.can_take():
                return alone
            self._set_parked(alone)
            self._alone = None
            return None
        groups = self._groups
        while groups:
            group = groups[0]
            consumer = group[0]
            if consumer.can_take():
                if len(group) > 1:
                    group.rotate(-1)
                return consumer
            self._set_parked(consumer)
            group.popleft()
            if not group:
                del groups[0]
        return None

    def _set_parked(self, consumer: Consumer) -> None:
        consumer.parked = True
        if consumer.unused_credit() > 0:
            self._stalled[consumer] = None

    def peek(self) -> Consumer | None:
        """Return the next consumer without moving it. Parks consumers that cannot take a message."""
        consumer = self.pick()
        if consumer is not None and self._groups:
            self._groups[0].rotate(1)
        return consumer

    def _pick_restricted(self) -> Consumer | None:
        if self.filtered or self.halted:
            return None
        first = self.consumers[0] if self.consumers else None
        if self._alone is not None and self._alone is first and first.can_take():
            return first
        active: Consumer | None = None
        for consumer in self.pop_ready():
            if consumer is first and consumer.can_take():
                active = consumer
            else:
                consumer.parked = True
        self._alone = active
        return active

    def pop_ready(self) -> list[Consumer]:
        """Remove and return the consumers that are not parked, highest priority first. `enter` adds them again."""
        ready: list[Consumer] = []
        if self._alone is not None:
            ready.append(self._alone)
            self._alone = None
        for group in self._groups:
            ready += group
        self._groups.clear()
        return ready

    def enter(self, consumer: Consumer) -> None:
        """Add one of `consumers` at the end of the ready ones of its priority."""
        if not self._groups:
            alone = self._alone
            if alone is None:
                self._alone = consumer
                return
            self._alone = None
            self._join(alone)
        self._join(consumer)

    def _join(self, consumer: Consumer) -> None:
        index = 0
        for group in self._groups:
            if group[0].priority == consumer.priority:
                group.append(consumer)
                return
            if group[0].priority < consumer.priority:
                break
            index += 1
        group = deque()
        group.append(consumer)
        self._groups.insert(index, group)

    def _leave(self, consumer: Consumer) -> None:
        if consumer.parked:
            consumer.parked = False
            if self._stalled:
                self._stalled.pop(consumer, None)
            return
        if consumer is self._alone:
            self._alone = None
            return
        for group in self._groups:
            if group[0].priority == consumer.priority:
                group.remove(consumer)
                if not group:
                    self._groups.remove(group)
                return


class QueueBase(Destination):
    """The source of queue entries: a queue as consumers, channels, filters and the loop turn see it.

    A bare `QueueBase` has no messages and is in no vhost; direct replies use one.

    Attributes:
        id: in the metadata; "" without a row.
        kind: a row of broker/queue/types.py.
        logged: every message is in a log that lasts as long as the queue.
        pump_wanted: the turn will call `dispatch`.
        scan_wanted: waits for scan time (broker/flow/loop_turn.py).
        ready_bytes, unacked_bytes, delayed_bytes: body bytes.
        delayed_count: returned messages that wait for their next try (broker/queue/delayed_retry.py).
    """

    def __init__(self, name: str, vhost_name: str) -> None:
        super().__init__()
        self.name = name
        self.vhost_name = vhost_name
        self.id = ""
        self.kind = "classic"
        self.deleted = False
        self.logged = False
        self.pump_wanted = False
        self.scan_wanted = False
        self.round_robin = RoundRobin()
        self.ready_count: i64 = 0
        self.ready_bytes: i64 = 0
        self.unacked_count: i64 = 0
        self.unacked_bytes: i64 = 0
        self.delayed_count: i64 = 0
        self.delayed_bytes: i64 = 0
        self.published_count: i64 = 0
        self.delivered_count: i64 = 0
        self.delivered_no_ack_count: i64 = 0
        self.get_count: i64 = 0
        self.get_no_ack_count: i64 = 0
        self.redelivered_count: i64 = 0
        self.get_empty_count: i64 = 0
        self.acked_count: i64 = 0

    def is_deleted(self) -> bool:
        return self.deleted

    # -- counts

    def uncount_ready(self, body_size: i64) -> None:
        self.ready_count -= 1
        self.ready_bytes -= body_size
        if self.ready_count == 0:
            self.ready_bytes = 0

    def count_unacked(self, body_size: i64) -> None:
        self.unacked_count += 1
        self.unacked_bytes += body_size

    def uncount_unacked(self, body_size: i64) -> None:
        self.unacked_count -= 1
        self.unacked_bytes -= body_size

    # -- consumers

    @property
    def consumers(self) -> list[Consumer]:
        """Return all consumers in order of arrival."""
        return self.round_robin.consumers

    def add_consumer(self, consumer: Consumer) -> None:
        """Add a consumer, served from the next dispatch on. The caller has checked exclusiveness."""
        self.round_robin.add(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        """Remove a consumer. Its unacked deliveries stay with its channel."""
        if self.round_robin.remove(consumer):
            self.activate(self.round_robin.consumers[0])

    def activate(self, consumer: Consumer) -> None:
        """Schedule a dispatch for a parked consumer that may have credit or room again."""
        if self.round_robin.unpark(consumer) and self.ready_count > 0 and not self.pump_wanted:
            self.schedule_dispatch()

    # -- called by channels

    def ack(self, entry: QueueEntry) -> None:
        """Settle the entry: acked, or rejected without requeue."""
        raise NotImplementedError

    def settle_times(self, entry: QueueEntry, count: i64) -> None:
        """Settle `count` deliveries of a shared stream entry."""
        for _ in range(count):
            self.ack(entry)

    def reject(self, entry: QueueEntry) -> None:
        """Reject the entry; it can be dead-lettered."""
        raise NotImplementedError

    def requeue(self, entry: QueueEntry, counts: bool, failed: bool = True) -> None:
        """Return the entry to its place, marked as redelivered, or let it wait for its next try.

        The caller dispatches after all returns.

        Args:
            counts: the return counts as a delivery attempt.
            failed: the message was rejected or its consumer is gone; False if the consumer returned it.
        """
        raise NotImplementedError

    # -- called by the loop turn

    def dispatch(self) -> None:
        """Deliver ready messages to consumers with credit."""
        raise NotImplementedError

    def schedule_dispatch(self) -> None:
        """Call `dispatch` at the end of this turn, once for any number of calls."""
        raise NotImplementedError

    def pump_failed(self, error: Exception) -> None:
        """Handle an exception of `dispatch`, and retry later."""
        raise NotImplementedError


def within(offset: i64, ranges: list[tuple[int, int]]) -> bool:
    """Return whether the offset is in one of the ranges, ends included."""
    for first, last in ranges:  # noqa: SIM110  # a generator would cost a nested function when compiled
        if first <= offset <= last:
            return True
    return False
