"""A channel, with its publisher confirms, its transaction and its statistics.

A channel owns a `Publisher`, a `PublisherConfirms` or a `Transaction`, and its `ChannelConsumers`. This module
has the methods that run per message; handlers.py and basic.py have the others, as functions of a channel and a
command.

`Channel.publish` does all the work of a publish in one call: it finds the route, offers the message to the
queues and records it for the confirm. It creates no task, decodes no table and formats no string.

While a command waits for the disk, for example a declaration, the channel is `busy`. The connection then queues
the channel's later commands and runs them afterwards. Declarations and bindings behind a declaration run at once, so
that many share a commit; their replies keep the order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from amqpd.broker.message import Message
from amqpd.broker.publish.confirms import ConfirmTracker
from amqpd.broker.publish.fanout import WIDE_COUNT, SlicedFanout
from amqpd.broker.publish.publisher import Publisher
from amqpd.broker.publish.route import Route, refuse, reserve
from amqpd.channel.consumer import ChannelConsumers
from amqpd.channel.frame_writer import Output
from amqpd.channel.interfaces import ChannelState, ConnectionInterface
from amqpd.channel.stats import QueueDeliveryStats
from amqpd.errors import PreconditionFailed

if TYPE_CHECKING:
    from amqpd.broker.consumer import QueueBase, QueueEntry
    from amqpd.broker.flow.loop_turn import LoopTurn
    from amqpd.broker.session import Session
    from amqpd.channel.consumer import ReplyConsumer
    from amqpd.channel.replies import DeferredReply


@final
class PublisherConfirms(ConfirmTracker):
    """The confirms of one channel in confirm mode.

    The channel acks a publish when every log that must contain it is safe (broker/publish/confirms.py). It
    nacks a publish at once if a queue refused it, and later if its log failed. One ack can cover all earlier
    publishes, so an ack never names a nacked publish. Sequence numbers are the client's delivery tags: the
    first publish is 1.
    """

    def __init__(self, turn: LoopTurn, output: Output, number: i64) -> None:
        super().__init__(turn)
        self._output = output
        self._number = number
        # Sequences that a queue refused and that no later ack or nack covers yet.
        self._nacked: set[int] = set()

    def nack(self) -> None:
        """Send a nack for the last publish: a queue refused it. Earlier publishes may still wait for their logs."""
        self._nacked.add(self.sequence)
        # rabbit: the nack is multiple, also of one publish, if all earlier publishes were answered
        all_answered = len(self._nacked) == self.sequence - self.confirmed_sequence
        self._output.send_nack(self._number, self.sequence, all_answered)

    def confirmed(self, first: i64, last: i64) -> None:
        if self._nacked:
            last = self._skip_nacked(last)
        if last >= first:
            self._output.send_ack(self._number, last, last > first)

    def refused(self, first: i64, last: i64) -> None:
        if self._nacked:
            last = self._skip_nacked(last)  # the client has a nack for these already
        if last >= first:
            self._output.send_nack(self._number, last, last > first)

    def _skip_nacked(self, sequence: i64) -> i64:
        """Return the last sequence, up to this one, that has no nack yet."""
        last = sequence
        nacked = self._nacked
        while last in nacked:
            last -= 1
        self._nacked = {each for each in nacked if each > sequence}
        return last


CHANNEL_COUNTERS: Final = (
    *("publish", "confirm", "deliver", "deliver_no_ack", "get", "get_no_ack", "redeliver", "ack", "get_empty"),
    *("return_unroutable", "drop_unroutable"),
)


def channel_counts(channel: Channel) -> tuple[int, ...]:
    """Return the channel's counters in the order of CHANNEL_COUNTERS. Cost: linear in the channel's consumers."""
    confirmed = channel.confirms.confirmed_sequence if channel.confirms is not None else 0
    deliveries = channel.deliveries
    had = QueueDeliveryStats()
    if deliveries.queue_stats is not None:
        had.add(deliveries.queue_stats.totals)
    for consumer in deliveries.consumers.values():
        had.add_consumer(consumer)
    # Delivery tags begin with 1. Deliveries of direct replies are not in `had`, so no_ack is computed from the tag.
    no_ack = deliveries.next_tag - 1 - had.deliver - had.get - had.get_no_ack
    return (
        channel.publisher.published_count,
        confirmed,
        *(had.deliver, no_ack, had.get, had.get_no_ack, had.redeliver, deliveries.acked_count, had.get_empty),
        *(channel.returned_count, channel.dropped_count),
    )


def stats_by_queue(deliveries: ChannelConsumers) -> dict[QueueBase, QueueDeliveryStats]:
    """Return the channel's delivery statistics for each queue that still exists.

    Cost: linear in the channel's consumers and the queues it received from.
    """
    found: dict[QueueBase, QueueDeliveryStats] = {}
    served = deliveries.queue_stats
    if served is not None:
        for queue, had in served.queues.items():
            if not queue.deleted:
                found[queue] = QueueDeliveryStats()
                found[queue].add(had)
    for consumer in deliveries.consumers.values():
        found.setdefault(consumer.queue, QueueDeliveryStats()).add_consumer(consumer)
    return found


PUBLISHES_MAX: Final = 100_000
BYTES_MAX: Final = 64 * 1024 * 1024
_RECORD_BYTES: Final[i64] = 24  # the length fields of a record


@final
class Transaction:
    """The open transaction of a channel in tx mode.

    After commit or rollback the same object holds the next one.

    A publish is checked and routed when the client sends it, not at the commit. An entry that the client
    settles stays in the unacked list until the commit.

    Attributes:
        publishes: route and message of each publish.
        acks: delivery tag, entry and action: ACK, REQUEUE, DISCARD or GIVE_BACK (basic.py).
        committing: a commit of several turns is running. It owns its settlements, even if the channel closes.
    """

    def __init__(self) -> None:
        self.publishes: list[tuple[Route, Message]] = []
        self.acks: list[tuple[i64, QueueEntry, i64]] = []
        self._bytes: i64 = 0
        self._replicated_bytes: i64 = 0  # record bytes of messages for queues that Kafka replicates
        self.committing = False

    def add_publish(self, route: Route, message: Message) -> None:
        """Add a publish, to be offered to its queues at the commit.

        Raises:
            PreconditionFailed: the transaction is too large, or the message has a producer id
                (broker/publish/idempotence.py).
        """
        if message.info is not None and message.info.has_producer_id:
            raise PreconditionFailed("x-producer-id: a transaction accepts no messages with a producer id")
        self._bytes += message.size_bytes()
        if len(self.publishes) >= PUBLISHES_MAX or self._bytes > BYTES_MAX:
            raise PreconditionFailed("transaction is too large: at most 100000 messages or 64 MiB")
        if route.transaction_bytes_max >= 0:
            self._replicated_bytes += message.size_bytes() + message.envelope.record_route().fixed_size + _RECORD_BYTES
            if self._replicated_bytes > route.transaction_bytes_max:
                raise PreconditionFailed(
                    "transaction is too large: for queues of a cluster at most "
                    f"{route.transaction_bytes_max} bytes, which is one record batch"
                )
        self.publishes.append((route, message))
        if route.has_state:
            reserve(route.destinations)

    def add_ack(self, settled: list[tuple[i64, QueueEntry]], action: i64) -> None:
        """Mark these entries, to be settled at the commit."""
        for tag, entry in settled:
            entry.in_transaction = True
            self.acks.append((tag, entry, action))

    def cancel_reservations(self) -> None:
        """Undo the reservations that the publishes made in exchange state, for example in a deduplication table."""
        for route, _ in self.publishes:
            if route.has_state:
                refuse(route.destinations)

    def clear(self) -> None:
        """Begin the next transaction. A commit takes both lists before it calls this."""
        self.publishes = []
        self.acks = []
        self._bytes = 0
        self._replicated_bytes = 0


# Commands of one channel that may wait for their commits at the same time.
AHEAD_MAX: Final = 256


@final
class Channel(ChannelState):
    """One open channel.

    Attributes:
        returned_count: unroutable messages sent back because they were mandatory.
        dropped_count: unroutable messages dropped.
        confirms: set by confirm.select. A channel never has both `confirms` and `transaction`.
        transaction: set by tx.select.
        last_queue: the queue declared last; an empty queue name in a command means this queue.
        unanswered: commands that wait for their commits, in order (replies.py).
        ahead_max: a declaration runs before the unanswered commands have their replies if there are fewer of them than
            this. 0 if a command must wait for all of them.
    """

    def __init__(self, session: Session, output: Output, owner: ConnectionInterface, number: i64) -> None:
        super().__init__(number)
        self.session = session
        self.output = output
        self.owner = owner
        self.publisher = Publisher(session)
        self.returned_count: i64 = 0
        self.dropped_count: i64 = 0
        self.confirms: PublisherConfirms | None = None
        self.transaction: Transaction | None = None
        self.deliveries = ChannelConsumers(session, output, owner, number)
        self.reply_consumer: ReplyConsumer | None = None
        self.last_queue = ""
        self.unanswered: list[DeferredReply] = []
        self.ahead_max: i64 = AHEAD_MAX

    def publish(
        self,
        method: bytes,
        content: bytes,
        header_size: i64,
        body_size: i64,
        frame_payload_max: i64,
        same_as_last: bool,
    ) -> None:
        """Process one complete basic.publish.

        Args:
            content: header and body frames. For a large body it is the header frame; `owner.parts` has the
                body.
            same_as_last: as in FrameHandler.on_publish.

        Raises:
            PreconditionFailed: the transaction is too large.
            LogNotOpen: nothing was done; the connection retries the publish when the logs are open.
            AmqpError: see `Publisher.accept`.
        """
        publisher = self.publisher
        message = publisher.accept(
            method, content, header_size, body_size, frame_payload_max, self.owner.parts, same_as_last
        )
        if publisher.crowded:
            publisher.crowded = False
            self.owner.yield_to_others()
        route = publisher.route
        transaction = self.transaction
        if transaction is not None:
            if route.tap is not None:  # rabbit: the trace shows a publish when it is made, not at the commit
                publisher.trace_publish(route.tap, route, message, self.number)
            transaction.add_publish(route, message)
            return
        only = route.only
        if only is not None:
            accepted = only.enqueue(message)  # the same as `Publisher.offer`, with one call less
        else:
            if route.tap is not None:
                publisher.trace_publish(route.tap, route, message, self.number)
            if len(route.destinations) > WIDE_COUNT:
                self.owner.begin_waiting(self)
                SlicedFanout(self.session, route, message, self.confirms is not None, self._on_fanout_done).step()
                return
            accepted = publisher.offer(route, message)
            self.on_routed(route, message)
        confirms = self.confirms
        if confirms is not None:
            confirms.add(route, message)
            if not accepted:
                confirms.nack()

    def on_routed(self, route: Route, message: Message) -> None:
        """Account for a publish that went to several queues or to none. Return an unroutable mandatory message."""
        count: i64 = len(route.destinations)
        self.owner.needs_output_check = True
        if count > 1 and route.routed:
            self.owner.fanout_count += count
        elif not route.routed and not route.mandatory:
            self.dropped_count += 1
        elif not route.routed:
            confirms = self.confirms
            if confirms is not None:
                # Earlier publishes wait for no log either. Their ack must precede the return, as they preceded this
                # publish.
                confirms.confirm_early()
            self.returned_count += 1
            self.session.vhost.counts.returned_count += 1
            self.output.send_return(self.number, message)

    def _on_fanout_done(self, accepted: bool) -> None:
        """Confirm or nack a publish that was offered in slices. All its queues have it, synced where necessary."""
        confirms = self.confirms
        if confirms is not None and not self.closing:
            confirms.add_safe()
            if not accepted:
                confirms.nack()
        self.owner.finish_waiting(self)

    def ack(self, tag: i64, multiple: bool) -> None:
        """Handle basic.ack.

        Raises:
            PreconditionFailed: the tag is not outstanding.
        """
        if self.transaction is None:
            self.deliveries.ack(tag, multiple)
        else:
            self.collect(self.transaction, tag, multiple, 0)

    def collect(self, transaction: Transaction, tag: i64, multiple: bool, action: i64) -> None:
        """Add settlements to the open transaction.

        Args:
            action: ACK, REQUEUE, DISCARD or GIVE_BACK (basic.py).

        Raises:
            PreconditionFailed: the tag is not outstanding.
        """
        unacked = self.deliveries.unacked
        transaction.add_ack(unacked.entries_up_to(tag) if multiple else unacked.entries_at(tag), action)
