"""tx.*: publishes and settlements that count together.

Within a transaction publishes are checked and kept, settlements are checked and noted; `commit` does them, in the order
publishes then settlements, and answers when all of it is synced. A crash before the answer leaves, per queue, all of a
transaction's publishes or none. Across queues nothing is promised.

A queue whose log has failed refuses the commit, and nothing of it is done; where a log fails under it, what other
queues took is there. Either is a 406 on the channel, which gives back what it had unacked; the connection lives on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amqpd.channel.commit import SMALL_COUNT, Commit
from amqpd.channel.on_basic import settle_collected
from amqpd.errors import PreconditionFailed
from amqpd.protocol import commands
from amqpd.protocol.commands import TX_COMMIT, TxCommit, TxCommitOk, TxRollback, TxRollbackOk, TxSelect, TxSelectOk

if TYPE_CHECKING:
    from amqpd.broker.destination import Destination
    from amqpd.channel.channel import Channel
    from amqpd.storage.queue_log import QueueLog


def select(channel: Channel, _command: TxSelect) -> None:
    if channel.confirming:
        raise PreconditionFailed("cannot switch from confirm to tx mode")
    channel.transactional = True
    channel.output.send(channel.number, TxSelectOk())


def commit(channel: Channel, _command: TxCommit) -> None:
    _check(channel)
    count = len(channel.tx_settlements) + len(channel.tx_publishes)
    if count > SMALL_COUNT or sum(len(route.destinations) for route, _ in channel.tx_publishes) > SMALL_COUNT:
        _commit_in_slices(channel)
        return
    publishes = [(channel.still_there(route), message) for route, message in channel.tx_publishes]
    whole: dict[Destination, None] = {}  # with a log that gets something persistent
    concerned: set[QueueLog] = set()
    for route, message in publishes:
        for destination in route.destinations:
            log = destination.log()
            if log is not None:
                concerned.add(log)
                if message.persistent:
                    whole[destination] = None
    settlements = channel.tx_settlements
    stores = {store for _, entry, _ in settlements if (store := entry.queue.log()) is not None}
    for store in concerned | stores:
        if store.failed and not store.deleted:
            raise PreconditionFailed(f"the log of queue '{store.name}' has failed, nothing is committed", TX_COMMIT)
    channel.tx_publishes = []
    channel.tx_settlements = []
    channel.tx_bytes = 0
    for destination in whole:
        destination.begin_transaction()
    try:
        for route, message in publishes:
            channel.dispatch(route, message)
    finally:
        for destination in whole:
            destination.end_transaction()
    for tag, entry, action in settlements:
        entry.in_transaction = False
        channel.unacked.take_one(tag)
        settle_collected(channel, entry, action)
    channel.busy = True
    channel.commit_reply(commands.frame(channel.number, TxCommitOk()), list(stores))


def _commit_in_slices(channel: Channel) -> None:
    large = Commit(channel, channel.tx_publishes, channel.tx_settlements)
    channel.tx_publishes = []
    channel.tx_settlements = []
    channel.tx_bytes = 0
    large.start()


def rollback(channel: Channel, _command: TxRollback) -> None:
    """Forgets the publishes; what was settled is unacked again."""
    _check(channel)
    channel.tx_publishes.clear()
    for _, entry, _ in channel.tx_settlements:
        entry.in_transaction = False
    channel.tx_settlements.clear()
    channel.tx_bytes = 0
    channel.output.send(channel.number, TxRollbackOk())


def _check(channel: Channel) -> None:
    if not channel.transactional:
        raise PreconditionFailed("channel is not transactional")


HANDLERS: dict[int, Any] = {
    commands.TX_SELECT: select,
    commands.TX_COMMIT: commit,
    commands.TX_ROLLBACK: rollback,
}
