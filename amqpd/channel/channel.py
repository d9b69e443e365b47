"""A channel: one conversation on a connection, and the hot half of basic.

Each of its parts is an object of its own: what it publishes (broker/publish/publisher.py), what is to be confirmed
of that (`Confirms`), its open transaction (`Transaction`), and what it delivers (`Deliveries`). The rest of each AMQP
class lives in the `on_*` module named after it; those are handed a channel and a command.

A publish: `publish` has the publisher find the message's route and count it, offers it to the queues and notes it for
its confirm. It makes no task, decodes no table and formats no string.

While a command waits for the disk (a declaration), the channel is `busy`: its owner keeps its later commands in
order and hands them over afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mypy_extensions import i64

from amqpd.broker.message import Message
from amqpd.broker.publish.publisher import Publisher
from amqpd.broker.publish.route import Route
from amqpd.broker.publish.fanout import WIDE_COUNT, Spread
from amqpd.channel.confirms import Confirms
from amqpd.channel.consumer import Deliveries
from amqpd.channel.frame_writer import Output
from amqpd.channel.interfaces import ChannelOwner, ChannelState
from amqpd.channel.transaction import Transaction
from amqpd.errors import AmqpError

if TYPE_CHECKING:
    from amqpd.broker.session import Session
    from amqpd.channel.reply_to import ReplyConsumer


@final
class Channel(ChannelState):
    """One open channel."""

    def __init__(self, session: Session, output: Output, owner: ChannelOwner, number: i64) -> None:
        super().__init__(number)
        self.session = session
        self.output = output
        self.owner = owner
        self.publisher = Publisher(session)
        # What reached no queue: sent back as mandatory, or dropped.
        self.returned_count: i64 = 0
        self.dropped_count: i64 = 0
        # From confirm.select or tx.select on; never both.
        self.confirms: Confirms | None = None
        self.transaction: Transaction | None = None
        self.deliveries = Deliveries(session, output, owner, number)
        self.reply_consumer: ReplyConsumer | None = None
        # What an empty queue name means: the queue that was declared last.
        self.last_queue = ""

    def publish(
        self, method: bytes, content: bytes, header_size: i64, body_size: i64, frame_payload_max: i64, alike: bool
    ) -> None:
        """A whole basic.publish. Of a large body `content` is the header frame, and the owner has its `parts`.

        alike: as CommandSink.on_publish has it. Raises: as `Publisher.accept`; PreconditionFailed for a transaction
        that is too large; NotOpenYet: nothing of it is done, and it is given again.
        """
        publisher = self.publisher
        message = publisher.accept(method, content, header_size, body_size, frame_payload_max, self.owner.parts, alike)
        if publisher.crowded:
            publisher.crowded = False
            self.owner.want_share()
        route = publisher.route
        transaction = self.transaction
        if transaction is not None:
            if route.tap is not None:  # rabbit: a publish is traced when it is made, not when it is committed
                publisher.tapped(route.tap, route, message, self.number)
            transaction.keep(route, message)
            return
        only = route.only
        if only is not None:
            accepted = only.offer(message)  # as `Publisher.offer`, and a call less
        else:
            if route.tap is not None:
                publisher.tapped(route.tap, route, message, self.number)
            if len(route.destinations) > WIDE_COUNT:
                self.owner.begin_waiting(self)
                Spread(self.session, route, message, self.confirms is not None, self._spread_ended).step()
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
        self.owner.wants_look = True
        if count > 1 and route.routed:
            self.owner.offers += count
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

    def refusal(self, method: bytes) -> AmqpError | None:
        """What `publish` would raise for that method at once; None where it would take it: see Publisher.refusal."""
        return self.publisher.refusal(method)

    def ack(self, tag: i64, multiple: bool) -> None:
        """basic.ack. Raises: PreconditionFailed for a tag that is not outstanding."""
        if self.transaction is None:
            self.deliveries.ack(tag, multiple)
        else:
            self.collect(self.transaction, tag, multiple, 0)

    def collect(self, transaction: Transaction, tag: i64, multiple: bool, action: i64) -> None:
        """Settles within the open transaction: noted, done at commit. Raises: as `ack`. action: see Transaction."""
        unacked = self.deliveries.unacked
        transaction.collect(unacked.up_to(tag) if multiple else unacked.at(tag), action)
