"""A channel: one conversation on a connection, and the hot half of basic.

Each of its parts is an object of its own: what it publishes (broker/publish/publisher.py), what is to be confirmed
of that (`PublisherConfirms`), its open transaction (`Transaction`), and what it delivers (`ChannelConsumers`). The rest
of each AMQP class lives in the `on_*` module named after it; those are handed a channel and a command.

A publish: `publish` has the publisher find the message's route and count it, offers it to the queues and notes it for
its confirm. It makes no task, decodes no table and formats no string.

While a command waits for the disk (a declaration), the channel is `busy`: its owner keeps its later commands in
order and hands them over afterwards.

Confirm mode: basic.ack and basic.nack for what a channel has published.

A publish is acked once every log that it has to be in is safe (broker/publish/confirms.py); one that a queue has
refused is nacked at once, one whose log failed when that is known. An ack may stand for all before it, so it must not
name one that was nacked.

What channels count.

An open transaction: the publishes and settlements of a channel that count together, at its commit.

A publish was checked and routed when it was made. What is settled stays unacked, in its place, until then.
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
from amqpd.errors import AmqpError, PreconditionFailed

if TYPE_CHECKING:
    from amqpd.broker.consumer import QueueBase, QueueEntry
    from amqpd.broker.flow.loop_turn import LoopTurn
    from amqpd.broker.session import Session
    from amqpd.channel.consumer import ReplyConsumer


@final
class PublisherConfirms(ConfirmTracker):
    """Of one channel, from its confirm.select on. Its sequences are the client's: the first publish is 1."""

    def __init__(self, turn: LoopTurn, output: Output, number: i64) -> None:
        super().__init__(turn)
        self._output = output
        self._number = number
        # Refused and not yet passed by a confirm.
        self._nacked: set[int] = set()

    def nack(self) -> None:
        """A queue has refused the last publish. What comes before it may still wait for its log."""
        self._nacked.add(self.sequence)
        self._output.send_nack(self._number, self.sequence, False)

    def confirmed(self, first: i64, last: i64) -> None:
        if self._nacked:
            last = self._skip_nacked(last)
        if last >= first:
            self._output.send_ack(self._number, last, last > first)

    def refused(self, first: i64, last: i64) -> None:
        if self._nacked:
            last = self._skip_nacked(last)  # it has been told of those
        if last >= first:
            self._output.send_nack(self._number, last, last > first)

    def _skip_nacked(self, sequence: i64) -> i64:
        """The last sequence up to this one that is to be acked."""
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
    """In the order of CHANNEL_COUNTERS. Cost: its consumers."""
    confirmed = channel.confirms.confirmed_sequence if channel.confirms is not None else 0
    deliveries = channel.deliveries
    had = QueueDeliveryStats()
    if deliveries.served is not None:
        had.add(deliveries.served.whole)
    for consumer in deliveries.consumers.values():
        had.add_consumer(consumer)
    # Delivery tags begin with 1. Direct replies are in no consumer's count that could be found here.
    no_ack = deliveries.next_tag - 1 - had.deliver - had.get - had.get_no_ack
    return (
        channel.published_count,
        confirmed,
        *(had.deliver, no_ack, had.get, had.get_no_ack, had.redeliver, deliveries.acked_count, had.get_empty),
        *(channel.returned_count, channel.dropped_count),
    )


def had_by_queue(deliveries: ChannelConsumers) -> dict[QueueBase, QueueDeliveryStats]:
    """What a channel has had from each queue. Cost: its consumers and such queues."""
    found: dict[QueueBase, QueueDeliveryStats] = {}
    served = deliveries.served
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
_RECORD_BYTES: Final[i64] = 24  # lengths in a record


@final
class Transaction:
    """Of one channel, from its tx.select on; after a commit or rollback the next one begins in it."""

    def __init__(self) -> None:
        self.publishes: list[tuple[Route, Message]] = []
        # Delivery tag, entry, and what is to be done: 0 ack, 1 requeue, 2 discard, 3 give
        # back (basic.py).
        self.settlements: list[tuple[i64, QueueEntry, i64]] = []
        self._bytes: i64 = 0
        self._replicated_bytes: i64 = 0  # of the records of those for queues that Kafka keeps
        # A large commit is being worked off: what it settles is its own, whatever becomes of the channel.
        self.committing = False

    def add_publish(self, route: Route, message: Message) -> None:
        """Raises: PreconditionFailed where it is too much, or numbered by its producer
        (broker/publish/idempotence.py).
        """
        if message.info is not None and message.info.has_producer_id:
            raise PreconditionFailed("x-producer-id: a transaction takes no messages with producer's numbers")
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
        if route.kept:
            reserve(route.destinations)

    def add_ack(self, settled: list[tuple[i64, QueueEntry]], action: i64) -> None:
        """Notes how these are settled at the commit."""
        for tag, entry in settled:
            entry.in_transaction = True
            self.settlements.append((tag, entry, action))

    def refuse(self) -> None:
        """What was published in it is not committed: what exchanges keep of it goes."""
        for route, _ in self.publishes:
            if route.kept:
                refuse(route.destinations)

    def clear(self) -> None:
        """The next one begins. Who commits has taken both lists before."""
        self.publishes = []
        self.settlements = []
        self._bytes = 0
        self._replicated_bytes = 0


@final
class Channel(ChannelState):
    """One open channel."""

    def __init__(self, session: Session, output: Output, owner: ConnectionInterface, number: i64) -> None:
        super().__init__(number)
        self.session = session
        self.output = output
        self.owner = owner
        self.publisher = Publisher(session)
        # What reached no queue: sent back as mandatory, or dropped.
        self.returned_count: i64 = 0
        self.dropped_count: i64 = 0
        # From confirm.select or tx.select on; never both.
        self.confirms: PublisherConfirms | None = None
        self.transaction: Transaction | None = None
        self.deliveries = ChannelConsumers(session, output, owner, number)
        self.reply_consumer: ReplyConsumer | None = None
        # What an empty queue name means: the queue that was declared last.
        self.last_queue = ""

    def publish(
        self,
        method: bytes,
        content: bytes,
        header_size: i64,
        body_size: i64,
        frame_payload_max: i64,
        same_as_last: bool,
    ) -> None:
        """A whole basic.publish. Of a large body `content` is the header frame, and the owner has its `parts`.

        same_as_last: as in FrameHandler.on_publish. Raises: as `Publisher.accept`; PreconditionFailed for a transaction
        that is too large; NotOpenYet: nothing of it is done, and it is given again.
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
            if route.tap is not None:  # rabbit: a publish is traced when it is made, not when it is committed
                publisher.tapped(route.tap, route, message, self.number)
            transaction.add_publish(route, message)
            return
        only = route.only
        if only is not None:
            accepted = only.enqueue(message)  # as `Publisher.offer`, and a call less
        else:
            if route.tap is not None:
                publisher.tapped(route.tap, route, message, self.number)
            if len(route.destinations) > WIDE_COUNT:
                self.owner.begin_waiting(self)
                SlicedFanout(self.session, route, message, self.confirms is not None, self._spread_ended).step()
                return
            accepted = publisher.offer(route, message)
            self.offered(route, message)
        confirms = self.confirms
        if confirms is not None:
            confirms.add(route, message)
            if not accepted:
                confirms.nack()

    @property
    def published_count(self) -> i64:
        return self.publisher.published_count

    def offered(self, route: Route, message: Message) -> None:
        """A publish went to several queues, or to none: then it is returned if it must be."""
        count: i64 = len(route.destinations)
        self.owner.needs_output_check = True
        if count > 1 and route.routed:
            self.owner.fanout_count += count
        elif not route.routed and not route.mandatory:
            self.dropped_count += 1
        elif not route.routed:
            confirms = self.confirms
            if confirms is not None:
                # What came before needs no disk either: its ack stands before the return, as its publish did.
                confirms.confirm_early()
            self.returned_count += 1
            self.session.vhost.counts.returned_count += 1
            self.output.send_return(self.number, message)

    def _spread_ended(self, accepted: bool) -> None:
        """A publish to very many queues is in all of them, and on the disk where it has to be; or one refused it."""
        confirms = self.confirms
        if confirms is not None and not self.closing:
            confirms.add_safe()
            if not accepted:
                confirms.nack()
        self.owner.finish_waiting(self)

    def publish_error(self, method: bytes) -> AmqpError | None:
        """Return the error that `publish` would raise for this method, or None: see Publisher.publish_error."""
        return self.publisher.publish_error(method)

    def ack(self, tag: i64, multiple: bool) -> None:
        """basic.ack. Raises: PreconditionFailed for a tag that is not outstanding."""
        if self.transaction is None:
            self.deliveries.ack(tag, multiple)
        else:
            self.collect(self.transaction, tag, multiple, 0)

    def collect(self, transaction: Transaction, tag: i64, multiple: bool, action: i64) -> None:
        """Settles within the open transaction: noted, done at commit. Raises: as `ack`. action: see Transaction."""
        unacked = self.deliveries.unacked
        transaction.add_ack(unacked.up_to(tag) if multiple else unacked.at(tag), action)
