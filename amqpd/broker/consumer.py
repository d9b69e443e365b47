"""What one delivery is made of: an entry, the consumer that has it, whose turn it is, and the queue it came from.

They name each other by nature, so they live together. An `QueueEntry` is a message's place in one queue: it goes from
the queue to the channel's unacked list and, when it is requeued, back. A `Consumer` takes entries; a channel's derives
from it. A `QueueBase` is what an entry came from and is settled with: a `Queue`, which those below and beside it do not
name.

Invariant: an entry is settled, rejected or requeued exactly once, with the source it came from.

Where a route ends.

Who is told of every message that is published in a vhost, and of every delivery: the firehose, while it is on.

Whoever publishes or delivers knows this base class only. Nobody asks for it on the message path: a route that is traced
has no short way (`Route.only`), a consumer that is traced begins each delivery anew (`ChannelConsumer.trace`).
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
    """These queues' logs are being opened: what needs them is tried again when they are (opening.when_open)."""

    def __init__(self, destinations: list[Destination]) -> None:
        super().__init__()
        self.destinations = destinations


class Versioned:
    """Something routes depend on. A route made under another version is made anew."""

    def __init__(self) -> None:
        self.version: i64 = 0


class Destination(Versioned):
    """Where a route ends: a queue, or the consumer behind a direct reply-to key."""

    def __init__(self) -> None:
        super().__init__()
        # Whether a confirm has to wait for a log that is synced.
        self.durable = False
        # Whether it keeps every message, whatever its delivery mode.
        self.keeps_all = False
        # Whether a message that ends here has been routed. False: an exchange keeps something of it for itself
        # (broker/publish/deduplication.py); such a destination is offered each message after the
        # others.
        self.is_queue = True
        # Likewise, and only what all of them have taken.
        self.requires_all_accepted = False

    def prepare(self) -> None:
        """Called before the first use: a queue that was there before the start reads its log now.

        Raises: NotOpenYet while that takes the disk; ResourceError where it cannot be read; the next call tries again.
        """

    def can_open(self) -> bool:
        """As `prepare`, for those who can do without: False where the log cannot be read now. It may wait for the disk,
        and the loop with it.
        """
        return True

    def when_open(self, done: Callable[[], object]) -> None:
        """Calls `done` once it is open or could not be opened, after `prepare` has raised NotOpenYet."""
        done()

    def log(self) -> QueueLog | None:
        """The synced log that a persistent message to here ends in, if any."""
        return None

    def is_deleted(self) -> bool:
        """Whether it takes nothing any more: the queue is deleted, the consumer cancelled."""
        return False

    def enqueue(self, message: Message) -> bool:
        """Takes the message. False: refused (overflow reject-publish, a log that accepts nothing), the publisher is
        nacked."""
        raise NotImplementedError

    def accepts_with(self, targets: list[Destination]) -> bool:
        """Of one that is not `routed`: where else the message goes. Whether it is to go here, too."""
        return True

    def reserve(self) -> None:
        """Likewise: the message waits for its transaction's commit, or for those that have it before."""

    def refuse(self) -> None:
        """Likewise: the publish has failed, what was offered here or reserved is as if it had not been."""

    def begin_transaction(self) -> None:
        """What is offered until `end_transaction`, in the same turn, is there after a crash as a whole or not at all.

        Raises: LogFailed.
        """

    def end_transaction(self) -> None:
        """Ends it. Raises nothing."""

    def takes_prepared(self) -> bool:
        """Whether `enqueue_prepared` may be called: there is a log, and no rule looks at single messages."""
        return False

    def enqueue_prepared(self, prepared: PreparedTransaction, first: list[Message]) -> None:
        """Takes all messages of a transaction at once. first: the oldest of them, for the window."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class TraceHook:
    """Of one vhost. connection, user: whose the channel of this number is."""

    def published(
        self,
        message: Message,
        keys: list[str],
        destinations: list[Destination],
        connection: str,
        user: str,
        number: i64,
    ) -> None:
        """It was published under these keys (its own, then CC and BCC), and goes to these destinations."""
        raise NotImplementedError

    def delivered(
        self, message: Message, queue: str, redelivered: bool, connection: str, user: str, number: i64
    ) -> None:
        """It was taken from the queue of this name, by a consumer or basic.get."""
        raise NotImplementedError

    def is_behind(self) -> bool:
        """Whether publishers should let it have its turn."""
        raise NotImplementedError


@final
class QueueEntry:
    """A message's place in one queue: (queue, offset), and what has happened to it there.

    message: None when only the log holds it; the queue reads it back when it is delivered again.
    delivery_count: how often it was returned, as far as known.
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
        # Who has it, between delivery and settlement; None after basic.get.
        self.consumer: Consumer | None = None
        # Settled in a transaction that is not committed yet.
        self.in_transaction = False

    def give_back(self) -> None:
        """Who had it gives it back, or refuses it: it is nobody's now."""
        if self.consumer is not None:
            self.consumer.given_back_count += 1
            self.consumer = None

    def __lt__(self, other: QueueEntry) -> bool:
        return self.offset < other.offset

    def __hash__(self) -> int:
        # Compiled, a class with a comparison has none of its own accord.
        return id(self)


@final
class ConsumerArguments:
    """What a consumer asks for beside its flags, as one immutable value (broker/queue/consumer_arguments.py makes it).

    values: by the names of the fields below, checked; what is not in it was not asked for. table: the arguments as they
    came, encoded, for whoever shows them. priority: x-priority, which `RoundRobin` obeys. timeout_ms:
    x-consumer-timeout, -1 for none. selector: x-filter, None for everything. Of streams: start: x-stream-offset.
    consumer_name: x-stream-consumer-name, "" for none. filter_values: x-stream-filter, empty for all; match_unfiltered:
    x-stream-match-unfiltered.
    """

    def __init__(self, values: Mapping[str, object], table: bytes) -> None:
        self.table: Final[bytes] = table
        priority = values.get("priority")
        self.priority: Final[int] = priority if isinstance(priority, int) else 0
        timeout_ms = values.get("timeout_ms")
        self.timeout_ms: Final[i64] = timeout_ms if isinstance(timeout_ms, int) else -1
        selector = values.get("selector")
        self.selector: Final[Selector | None] = selector if isinstance(selector, Selector) else None
        start = values.get("start")
        self.start: Final[StreamStart | None] = start if isinstance(start, StreamStart) else None
        name = values.get("consumer_name")
        self.consumer_name: Final[str] = name if isinstance(name, str) else ""
        wanted = values.get("filter_values")
        self.filter_values: Final[frozenset[str]] = wanted if isinstance(wanted, frozenset) else frozenset()
        self.match_unfiltered: Final[bool] = values.get("match_unfiltered") is True


NO_ARGUMENTS: Final = ConsumerArguments({}, b"")


@mypyc_attr(allow_interpreted_subclasses=True)
class Consumer:
    """Who takes messages from a queue: each front end has its own kind (a channel's is `ChannelConsumer`)."""

    def __init__(self, queue: QueueBase, tag: str, no_ack: bool, exclusive: bool, arguments: ConsumerArguments) -> None:
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.arguments = arguments
        self.priority = arguments.priority
        self.parked = False
        self.cancelled = False
        # Deliveries that wait for an answer.
        self.in_flight: i64 = 0
        # All that it got, what of it had been delivered before, and what it gave back or refused.
        self.delivered_count: i64 = 0
        self.redelivered_count: i64 = 0
        self.given_back_count: i64 = 0
        # Where there are filters: when it was served last, by the queue's count of such deliveries.
        self.served: i64 = 0
        # Of a stream: its place, and the source of what it gets.
        self.reader: QueueBase | None = None
        # Of a stream: stands for each of its deliveries, where nobody wants to know which is settled.
        self.entry_for_all: QueueEntry | None = None

    def can_take(self) -> bool:
        """Whether there is credit and room to write. A parked consumer waits for `QueueBase.activate`."""
        raise NotImplementedError

    def deliver(self, message: Message, entry: QueueEntry | None, redelivered: bool) -> None:
        """Writes one delivery. entry: what the consumer will settle; None where no answer is expected."""
        raise NotImplementedError

    def obey_timeout(self, queue_timeout_ms: i64) -> None:
        """The queue's x-consumer-timeout is this from now on; -1: it has none. Of interest to who counts the time."""

    def deliver_places(
        self,
        dresser: StreamDeliveryEncoder,
        places: RecordViews,
        start: i64,
        stop: i64,
        source: QueueBase,
        tracked: bool,
    ) -> i64:
        """Writes deliveries of a stream: the record at `start`, and those behind it and before `stop` that are like it,
        while it can take more. Returns where it stopped. tracked: `source` wants to know which one is settled; else
        one entry, whose offset says nothing, may stand for all."""
        number = places.alike_number(start)
        while True:
            message = dresser.message(places, start)
            self.deliver(message, QueueEntry(source, places.offset(start), message, False), False)
            start += 1
            if start >= stop or places.alike_number(start) != number or not self.can_take():
                return start

    def share_ended(self) -> None:
        """Of a stream: it has its share of this turn, and others have theirs before it gets more."""

    def trace(self, tap: TraceHook | None) -> None:
        """Its deliveries are told to the tap from now on; None: to nobody. Of interest to a front end's consumers."""

    def cancel(self) -> None:
        """The queue is gone: tells the client (consumer cancel notification) and forgets the consumer."""
        raise NotImplementedError


@final
class RoundRobin:
    """A queue's consumers, and whose turn it is.

    They are served in strict round robin among those of the highest priority that have credit and room to write. One
    without is parked until its channel says that it is back. Cost: O(1), a step per consumer that has to be parked.
    """

    def __init__(self) -> None:
        self.consumers: list[Consumer] = []
        # Those that are ready: one alone, or several in groups, highest priority first. Parked ones are in none.
        self._alone: Consumer | None = None
        self._groups: list[deque[Consumer]] = []
        # x-single-active-consumer: the first of `consumers` is served, the others stand by.
        self.single_active = False
        # One has a filter: whose turn depends on the message, `pick` names nobody (broker/queue/filtered.py); see also
        # `halt`.
        self.filtered = self.halted = False
        self._restricted = False  # one of these

    def set_restrictions(self, single_active: bool, filtered: bool) -> None:
        """Not everybody who can take is served, or everybody again."""
        self.single_active, self.filtered = single_active, filtered
        self._restricted = single_active or filtered or self.halted

    def suspend(self, on: bool) -> None:
        """Nobody is served, until it is over."""
        self.halted = on
        self.set_restrictions(self.single_active, self.filtered)

    @property
    def exclusive(self) -> bool:
        """Whether the one that is there allows no other."""
        return len(self.consumers) > 0 and self.consumers[0].exclusive

    def add(self, consumer: Consumer) -> None:
        """It has its turn behind those that are ready."""
        self.consumers.append(consumer)
        self.enter(consumer)

    def remove(self, consumer: Consumer) -> bool:
        """It takes nothing more. True: it was the single active one, and the next in line is to be activated."""
        consumer.cancelled = True
        if consumer not in self.consumers:
            return False
        first = self.consumers[0]
        self.consumers.remove(consumer)
        self._leave(consumer)
        return self.single_active and first is consumer and len(self.consumers) > 0

    def unpark(self, consumer: Consumer) -> bool:
        """A parked consumer may have credit or room again. False: it was not parked."""
        if not consumer.parked or consumer.cancelled:
            return False
        consumer.parked = False
        self.enter(consumer)
        return True

    def park(self, consumer: Consumer) -> None:
        """It is parked until `back`, though it might take: there is nothing for it just now. Cost: O(1) for the one
        that was picked last."""
        for group in self._groups:
            if group[-1] is consumer:
                group.pop()
                if not group:
                    self._groups.remove(group)
                consumer.parked = True
                return
        self._leave(consumer)
        consumer.parked = True

    def has_ready(self) -> bool:
        """Whether there is one that is not parked."""
        return self._alone is not None or len(self._groups) > 0

    def pick(self) -> Consumer | None:
        """Whose turn it is, moved to the end of its group. Parks those that cannot take."""
        if self._restricted:
            return self._pick_restricted()
        alone = self._alone
        if alone is not None:
            if alone.can_take():
                return alone
            alone.parked = True
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
            consumer.parked = True
            group.popleft()
            if not group:
                del groups[0]
        return None

    def peek(self) -> Consumer | None:
        """Whose turn it is, and stays. Parks those that cannot take."""
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
        """Those that are not parked, the highest priority first: none is from now on, until it enters again."""
        ready: list[Consumer] = []
        if self._alone is not None:
            ready.append(self._alone)
            self._alone = None
        for group in self._groups:
            ready += group
        self._groups.clear()
        return ready

    def enter(self, consumer: Consumer) -> None:
        """One of `consumers` is ready; it has its turn behind those that are."""
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
    """What entries come from, and what they are settled with: a queue as those below and beside it see it. Counts are
    read by metrics and the admin API. A bare `QueueBase` holds nothing and is in no vhost: that of direct replies.
    """

    def __init__(self, name: str, vhost_name: str) -> None:
        super().__init__()
        self.name = name
        self.vhost_name = vhost_name
        # In the metadata; "" for one that is not there.
        self.id = ""
        # Its row in broker/queue/types.py.
        self.kind = "classic"
        self.deleted = False
        # Whether every message is in a log that lasts as long as the queue.
        self.logged = False
        # It stands in the turn's list of those to be pumped.
        self.pump_wanted = False
        # It stands in the line of those that look for what filters want (broker/flow/loop_turn.py).
        self.scan_wanted = False
        self.round_robin = RoundRobin()
        # What is ready, and body bytes of it; what is with consumers, likewise.
        self.ready_count: i64 = 0
        self.ready_bytes: i64 = 0
        self.unacked_count: i64 = 0
        self.unacked_bytes: i64 = 0
        # What came back and waits for its next try, and body bytes of it (broker/queue/delayed_retry.py).
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

    # -- what is unacked

    def count_unacked(self, body_size: i64) -> None:
        """A message of that size is with a consumer."""
        self.unacked_count += 1
        self.unacked_bytes += body_size

    def uncount_unacked(self, body_size: i64) -> None:
        """It is no more."""
        self.unacked_count -= 1
        self.unacked_bytes -= body_size

    # -- consumers

    @property
    def consumers(self) -> list[Consumer]:
        """All of them, in the order in which they came."""
        return self.round_robin.consumers

    def add_consumer(self, consumer: Consumer) -> None:
        """The caller has checked exclusiveness. Delivery begins with the next pump."""
        self.round_robin.add(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        """It takes nothing more; what it has unacked stays with its channel."""
        if self.round_robin.remove(consumer):
            self.activate(self.round_robin.consumers[0])

    def activate(self, consumer: Consumer) -> None:
        """A parked consumer may have credit or room again."""
        if self.round_robin.unpark(consumer) and self.ready_count > 0 and not self.pump_wanted:
            self.schedule_dispatch()

    # -- what channels ask

    def ack(self, entry: QueueEntry) -> None:
        """The entry is done with: acked, or rejected without requeue."""
        raise NotImplementedError

    def settle_times(self, entry: QueueEntry, count: i64) -> None:
        """So many deliveries for which the entry stands are done with."""
        for _ in range(count):
            self.ack(entry)

    def reject(self, entry: QueueEntry) -> None:
        """The entry is refused for good; it may be dead-lettered."""
        raise NotImplementedError

    def requeue(self, entry: QueueEntry, counts: bool, failed: bool = True) -> None:
        """Back to its place, marked redelivered, or to wait for its next try. counts: whether this return counts as a
        delivery attempt. failed: it was rejected, or whoever had it is gone; else it was given back.

        The caller pumps when it has returned all it has.
        """
        raise NotImplementedError

    # -- what its filters ask

    def deliver_to(self, consumer: Consumer, entry: QueueEntry) -> None:
        """A ready entry that was taken goes to the consumer."""
        raise NotImplementedError

    def ended(self, entry: QueueEntry) -> bool:
        """Whether the time to live of an entry that was taken is over; then it has ended here."""
        raise NotImplementedError

    # -- what the turn, its log and its opening ask

    def find_delayed(self, log: QueueLog) -> bool:
        """The log can be read. A slice of finding what waits in it for its next try; True: all of that is known."""
        raise NotImplementedError

    def log_opened(self, log: QueueLog) -> None:
        """Its log can be used from now on. What waits in it and is not found yet is found at once."""
        raise NotImplementedError

    def log_arrived(self) -> None:
        """The disk has answered what was read ahead."""
        raise NotImplementedError

    def dispatch(self) -> None:
        """Delivers what is ready to whoever can take it."""
        raise NotImplementedError

    def schedule_dispatch(self) -> None:
        """`pump` is called at the end of this turn, once however often it is asked for."""
        raise NotImplementedError

    def pump_failed(self, error: Exception) -> None:
        """`pump` has raised: it is tried again in a while."""
        raise NotImplementedError

    # -- what its ready order and its clocks ask

    def make_ready(self, entry: QueueEntry) -> None:
        """An entry that has waited for its next try is ready, at its place. Raises: OSError, and nothing changes."""
        raise NotImplementedError

    def track_expiration(self, message: Message) -> None:
        """The message has a time to live. It begins now, if it is not known when it began."""
        raise NotImplementedError

    def head(self) -> QueueEntry | None:
        """The entry that `take` would return, with its message; it stays where it is. None also while the disk is asked
        for it: `pump` is called when it has answered."""
        raise NotImplementedError

    def take(self) -> QueueEntry | None:
        """The next ready entry, with its message; the caller settles it or counts it as unacked. None: none is ready.

        Raises: OSError where its log cannot be read; the entry stays in its place then.
        """
        raise NotImplementedError

    def discard(self, entry: QueueEntry, reason: str) -> None:
        """A ready entry that was taken ends here. reason: expired, maxlen, as a dead letter says it."""
        raise NotImplementedError

    def drop_old(self, arrived_max_ms: i64, count_max: i64) -> i64:
        """Ends what arrived by then, monotonic milliseconds, from the head on; a batch of a log goes whole.

        Returns how many went, `count_max` and a batch at most; 0 where they have to be looked at one by one.
        """
        raise NotImplementedError

    def makes_dead_letters(self) -> bool:
        """Whether what ends here goes to a dead-letter exchange."""
        raise NotImplementedError


def within(offset: i64, ranges: list[tuple[int, int]]) -> bool:
    """Whether the offset is in one of the ranges, ends included."""
    for first, last in ranges:  # noqa: SIM110  # a generator would cost a nested function when compiled
        if first <= offset <= last:
            return True
    return False
