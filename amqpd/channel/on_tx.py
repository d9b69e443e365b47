"""tx.*: publishes and settlements that count together.

Within a transaction publishes are checked and kept, settlements are checked and noted; `commit` does them, in the order
publishes then settlements, and answers when all of it is synced. A crash before the answer leaves, per queue, all of a
transaction's publishes or none. Across queues nothing is promised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amqpd.broker.queue import Queue
from amqpd.channel.on_basic import reject_entries, requeue_all
from amqpd.errors import PreconditionFailed
from amqpd.protocol import commands
from amqpd.protocol.commands import TxCommit, TxCommitOk, TxRollback, TxRollbackOk, TxSelect, TxSelectOk

if TYPE_CHECKING:
    from amqpd.channel.channel import Channel

ACK, REQUEUE, DISCARD = 0, 1, 2


def select(channel: Channel, _command: TxSelect) -> None:
    if channel.confirming:
        raise PreconditionFailed("cannot switch from confirm to tx mode")
    channel.transactional = True
    channel.connection.send(channel.number, TxSelectOk())


def commit(channel: Channel, _command: TxCommit) -> None:
    _check(channel)
    publishes = [(channel.still_there(route), message) for route, message in channel.tx_publishes]
    settlements = channel.tx_settlements
    channel.tx_publishes = []
    channel.tx_settlements = []
    channel.tx_bytes = 0
    logs = {
        log
        for route, message in publishes
        if message.persistent
        for destination in route.destinations
        if (log := destination.log()) is not None
    }
    for log in logs:
        log.begin_transaction()
    for route, message in publishes:
        channel.dispatch(route, message)
    for log in logs:
        log.end_transaction()
    touched: dict[Queue, None] = {}
    for tag, entry, action in settlements:
        entry.in_transaction = False
        channel.take(tag, False)
        touched[entry.queue] = None
        if action == ACK:
            channel.settle(entry)
        elif action == DISCARD:
            reject_entries(channel, [entry])
        else:
            requeue_all(channel, [entry])
    channel.busy = True
    channel.commit_reply(commands.frame(channel.number, TxCommitOk()))


def rollback(channel: Channel, _command: TxRollback) -> None:
    """Forgets the publishes; what was settled is unacked again."""
    _check(channel)
    channel.tx_publishes.clear()
    for _, entry, _ in channel.tx_settlements:
        entry.in_transaction = False
    channel.tx_settlements.clear()
    channel.tx_bytes = 0
    channel.connection.send(channel.number, TxRollbackOk())


def _check(channel: Channel) -> None:
    if not channel.transactional:
        raise PreconditionFailed("channel is not transactional")


HANDLERS: dict[int, Any] = {
    commands.TX_SELECT: select,
    commands.TX_COMMIT: commit,
    commands.TX_ROLLBACK: rollback,
}
