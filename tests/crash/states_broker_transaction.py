"""A transaction in a life of states_broker_life.py: the channel's own tx.commit, with a fake connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from states_broker_ledger import ASKED, SAFE, Place, Sent
from states_broker_life import BrokerLife
from states_ledger import Violation

from amqpd.channel import handlers
from amqpd.channel.basic import ACK
from amqpd.channel.channel import Channel
from amqpd.channel.frame_writer import Output
from amqpd.channel.interfaces import ChannelState, ConnectionInterface
from amqpd.errors import HardError, SoftError
from amqpd.protocol.methods import TxCommit, TxSelect
from amqpd.protocol.properties import Properties, encode_properties

PERSISTENT = encode_properties(Properties(delivery_mode=2, headers={"n": 0}))


class UnreadOutput(Output):
    """An output that no socket reads."""

    def want_flush(self) -> None:
        self.flush_wanted = True


class FakeConnection(ConnectionInterface):
    """A connection without a socket. answered: called at tx.commit-ok."""

    def __init__(self, life: BrokerLife, answered: Callable[[], None]) -> None:
        super().__init__()
        self._life = life
        self._answered = answered

    def call_soon(self, function: Callable[[], None]) -> None:
        self._life.soon(function)

    def finish_busy(self, channel: ChannelState, reply: bytes) -> None:
        channel.busy = False
        self._answered()

    def fail_channel(self, channel: ChannelState, error: SoftError) -> None:
        raise Violation(f"a commit fails on a disk that does not: {error}")

    def fail(self, error: HardError) -> None:
        raise Violation(f"a commit fails on a disk that does not: {error}")


class WalkTransaction:
    """One transaction. sent: its publishes. acked: the messages that it acks."""

    def __init__(self, life: BrokerLife, counts: dict[str, int], size: int, taken: list[Sent]) -> None:
        self._life = life
        self.acked = taken
        self.sent = [self._new(queue, size) for queue, count in counts.items() for _ in range(count)]
        self.channel = Channel(life.publisher.session, UnreadOutput(), FakeConnection(life, self._answered), 1)

    def _new(self, queue: str, size: int) -> Sent:
        ledger = self._life.ledger
        number = ledger.number
        ledger.number += 1
        sent = Sent(number, (b"%s%d." % (self._life.prefix, number)).ljust(size, b"-"), "", queue, queue)
        sent.places[queue] = Place(self._life.path(queue))
        sent.transaction = number + 1
        ledger.sent[sent.body] = sent
        return sent

    def commit(self) -> None:
        """Start the commit, without ending the turn."""
        life, channel = self._life, self.channel
        handlers.tx_select(channel, TxSelect())
        transaction: Any = channel.transaction
        number = self.sent[0].transaction
        for sent in self.sent:
            sent.transaction = number
            route, message = life.compose(sent, PERSISTENT)
            transaction.add_publish(route, message)
        life.ledger.version += 1
        for tag, sent in enumerate(self.acked, 1):
            _, entry = life.released(sent)
            channel.deliveries.unacked.add(tag, entry)
            transaction.add_ack([(tag, entry)], ACK)
            (place,) = sent.places.values()
            sent.over, sent.acked_in = True, number
            place.left, place.asked_ms = ASKED, 0
        handlers.tx_commit(channel, TxCommit())

    def _answered(self) -> None:
        self._life.ledger.version += 1
        for sent in self.sent:
            sent.promise = sent.places[sent.queue].promise = SAFE
        for sent in self.acked:
            for place in sent.places.values():
                place.left = SAFE
