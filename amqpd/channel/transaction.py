"""An open transaction: the publishes and settlements of a channel that count together, at its commit.

A publish was checked and routed when it was made. What is settled stays unacked, in its place, until then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from amqpd.broker.message import Message
from amqpd.broker.publish.offering import refuse, reserve
from amqpd.broker.publish.route import Route
from amqpd.errors import PreconditionFailed

if TYPE_CHECKING:
    from amqpd.broker.consumer import Entry

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
        self.settlements: list[tuple[i64, Entry, i64]] = []
        self._bytes: i64 = 0
        self._replicated_bytes: i64 = 0  # of the records of those for queues that Kafka keeps
        # A large commit is being worked off: what it settles is its own, whatever becomes of the channel.
        self.committing = False

    def keep(self, route: Route, message: Message) -> None:
        """Raises: PreconditionFailed where it is too much, or numbered by its producer (publishing/once.py)."""
        if message.info is not None and message.info.numbered:
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

    def collect(self, settled: list[tuple[i64, Entry]], action: i64) -> None:
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
