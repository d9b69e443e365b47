"""tx.*: publishes and settlements that count together.

Within a transaction publishes are checked and kept, settlements are checked and noted; `commit` does them, in the order
publishes then settlements, and answers when all of it is synced. A crash before the answer leaves, per queue, all of a
transaction's publishes or none. Across queues nothing is promised, but that no settlement is there without the
persistent publishes: they are synced first. Where there are both, that is tx_commit.py's, however few they are.

A queue whose log has failed refuses the commit, and nothing of it is done; where a log fails under it, or a queue is
full (x-overflow=reject-publish), what other queues took is there and nothing is settled. Each is a 406 on the channel,
which gives back what it had unacked; the connection lives on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amqpd.channel.tx_commit import SMALL_COUNT, Commit, answer, partial
from amqpd.channel.basic import settle_collected
from amqpd.channel.transaction import Transaction
from amqpd.errors import PreconditionFailed
from amqpd.protocol import commands
from amqpd.protocol.commands import TX_COMMIT, TxCommit, TxRollback, TxRollbackOk, TxSelect, TxSelectOk

if TYPE_CHECKING:
    from amqpd.broker.destination import Destination
    from amqpd.channel.channel import Channel
    from amqpd.storage.queue_log import QueueLog


def select(channel: Channel, _command: TxSelect) -> None:
    if channel.confirms is not None:
        raise PreconditionFailed("cannot switch from confirm to tx mode")
    if channel.transaction is None:
        channel.transaction = Transaction()
        channel.deliveries.begin_transactions()
    channel.output.send(channel.number, TxSelectOk())


def commit(channel: Channel, _command: TxCommit) -> None:
    transaction = _transaction(channel)
    kept, settlements = transaction.publishes, transaction.settlements
    count = len(settlements) + len(kept)
    if count > SMALL_COUNT or sum(len(route.destinations) for route, _ in kept) > SMALL_COUNT:
        transaction.clear()
        Commit(channel, transaction, kept, settlements).start()
        return
    publishes = [(route.still_there(), message) for route, message in kept]
    whole: dict[Destination, QueueLog] = {}  # with a log that gets something persistent
    concerned: set[QueueLog] = set()
    for route, message in publishes:
        for destination in route.destinations:
            log = destination.log()
            if log is not None:
                concerned.add(log)
                if message.persistent or destination.keeps_all:
                    whole[destination] = log
    settled = {log for _, entry, _ in settlements if (log := entry.queue.log()) is not None}
    for log in concerned | settled:
        if log.failed and not log.deleted:
            transaction.refuse()
            raise PreconditionFailed(f"the log of queue '{log.name}' has failed, nothing is committed", TX_COMMIT)
    transaction.clear()
    accepted = True
    for destination in whole:
        destination.begin_transaction()
    try:
        for route, message in publishes:
            accepted = channel.publisher.offer(route, message) and accepted
            channel.offered(route, message)
    finally:
        for destination in whole:
            destination.end_transaction()
    if not accepted:
        raise partial()
    if whole and settlements:
        Commit(channel, transaction, [], settlements).settle_behind(whole.values())
        return
    for tag, entry, action in settlements:
        entry.in_transaction = False
        channel.deliveries.unacked.take_one(tag)
        settle_collected(channel, entry, action)
    channel.busy = True
    answer(channel, whole.values(), settled)


def rollback(channel: Channel, _command: TxRollback) -> None:
    """Forgets the publishes; what was settled is unacked again."""
    transaction = _transaction(channel)
    for _, entry, _ in transaction.settlements:
        entry.in_transaction = False
    transaction.refuse()
    transaction.clear()
    channel.output.send(channel.number, TxRollbackOk())


def _transaction(channel: Channel) -> Transaction:
    if channel.transaction is None:
        raise PreconditionFailed("channel is not transactional")
    return channel.transaction


HANDLERS: dict[int, Any] = {
    commands.TX_SELECT: select,
    commands.TX_COMMIT: commit,
    commands.TX_ROLLBACK: rollback,
}
