"""What one delivery is made of: an entry, the consumer that has it, and the queue it came from.

The three name each other by nature, so they live together. An `Entry` is a message's place in one queue: it goes from
the queue to the channel's unacked list and, when it is requeued, back to its place. A `Consumer` takes entries; a
channel's derives from it. A `Source` is what an entry came from and is settled with. `Queue` is the one there is;
everything below it (turn, windows, timers of a queue) and beside it (channels) names the source, not the queue.

Invariant: an entry is settled, rejected or requeued exactly once, with the source it came from.
"""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from amqpd.broker.destination import Destination
from amqpd.broker.message import Message


@final
class Entry:
    """A message's place in one queue: (queue, offset), and what has happened to it there.

    message: None when only the log holds it; the queue reads it back when it is delivered again.
    delivery_count: how often it was returned, as far as known.
    """

    def __init__(self, queue: Source, offset: i64, message: Message | None, redelivered: bool) -> None:
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

    def __lt__(self, other: Entry) -> bool:
        return self.offset < other.offset


class Consumer:
    """Who takes messages from a queue. The channel's consumer and the direct reply-to one derive from it."""

    def __init__(self, queue: Source, tag: str, no_ack: bool, exclusive: bool, priority: int) -> None:
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.priority = priority
        self.parked = False
        self.cancelled = False
        # Deliveries that wait for an answer.
        self.in_flight: i64 = 0

    def can_take(self) -> bool:
        """Whether there is credit and room to write. A parked consumer is asked again only after `Source.activate`."""
        raise NotImplementedError

    def deliver(self, message: Message, entry: Entry | None, redelivered: bool) -> None:
        """Writes one delivery. entry: what the consumer will settle; None where no answer is expected."""
        raise NotImplementedError

    def cancel(self) -> None:
        """The queue is gone: tells the client (consumer cancel notification) and forgets the consumer."""
        raise NotImplementedError


class Source(Destination):
    """What entries come from, and what they are settled with. Counts are plain integers, read by metrics and the admin
    API.

    A bare `Source` holds nothing and belongs to no vhost: the consumer of direct replies has one.
    """

    def __init__(self, name: str, vhost_name: str) -> None:
        super().__init__()
        self.name = name
        self.vhost_name = vhost_name
        # Its row in queues/kinds.py.
        self.kind = "classic"
        self.deleted = False
        # Whether every message is in a log that lasts as long as the queue.
        self.logged = False
        # It stands in the turn's list of those to be pumped.
        self.pump_wanted = False
        self.ready_count: i64 = 0
        self.unacked_count: i64 = 0
        self.published_count: i64 = 0
        self.delivered_count: i64 = 0
        self.delivered_no_ack_count: i64 = 0
        self.get_count: i64 = 0
        self.get_no_ack_count: i64 = 0
        self.redelivered_count: i64 = 0
        self.acked_count: i64 = 0

    # -- what channels ask

    def settle(self, entry: Entry) -> None:
        """The entry is done with: acked, or rejected without requeue."""
        raise NotImplementedError

    def reject(self, entry: Entry) -> None:
        """The entry is refused for good; it may be dead-lettered."""
        raise NotImplementedError

    def requeue(self, entry: Entry, counts: bool) -> None:
        """Back to its place, marked redelivered. counts: whether this return counts as a delivery attempt.

        The caller pumps when it has returned all it has.
        """
        raise NotImplementedError

    def activate(self, consumer: Consumer) -> None:
        """A parked consumer may have credit or room again."""

    # -- what the turn and its helpers ask

    def pump(self) -> None:
        """Delivers what is ready to whoever can take it."""
        raise NotImplementedError

    def pump_later(self) -> None:
        """`pump` is called at the end of this turn, once however often it is asked for."""
        raise NotImplementedError

    def pump_failed(self, error: Exception) -> None:
        """`pump` has raised: it is tried again in a while."""
        raise NotImplementedError

    def set_window(self, count_max: int, bytes_max: int) -> None:
        """How many entries, and body bytes of them, it may hold in memory."""
        raise NotImplementedError

    # -- what its opening asks

    def begin_to_open(self) -> bool:
        """Reads the log. Whether that was all, or failed; else `opened` is called when the disk has answered."""
        raise NotImplementedError

    def opened(self) -> None:
        """The disk has answered."""
        raise NotImplementedError

    # -- what its clocks ask

    def in_use(self) -> bool:
        """Whether somebody consumes from it."""
        raise NotImplementedError

    def head(self) -> Entry | None:
        """The entry that `take` would return, with its message; it stays where it is. None also while the disk is asked
        for it: `pump` is called when it has answered.
        """
        raise NotImplementedError

    def take(self) -> Entry | None:
        """The next ready entry, with its message; the caller settles it or counts it as unacked. None: none is ready.

        Raises: OSError where its log cannot be read; the entry stays in its place then.
        """
        raise NotImplementedError

    def discard(self, entry: Entry, reason: str) -> None:
        """A ready entry that was taken ends here. reason: expired, maxlen, as a dead letter says it."""
        raise NotImplementedError

    def drop_old(self, arrived_max_ms: i64, count_max: i64) -> i64:
        """Ends what arrived by then, monotonic milliseconds, from the head on; a batch of a log goes whole.

        Returns how many went, `count_max` and a batch at most; 0 where they have to be looked at one by one.
        """
        raise NotImplementedError

    def leaves_letters(self) -> bool:
        """Whether what ends here goes to a dead-letter exchange."""
        raise NotImplementedError


def within(offset: i64, ranges: list[tuple[int, int]]) -> bool:
    """Whether the offset is in one of the ranges, ends included."""
    for first, last in ranges:  # noqa: SIM110  # a generator would cost a nested function when compiled
        if first <= offset <= last:
            return True
    return False
