"""tx.commit over several loop turns.

handlers.py commits small transactions in one turn. `TransactionCommit` runs the large ones, in slices of
SLICE_S, and all that have both persistent publishes and settlements. The channel is busy from tx.commit to the
answer. The stages:

    check     check that no log has failed; otherwise commit nothing
    sort      group messages by queue; encode them if the queue has a log and no rules for single messages
    append    queue by queue, each log's part in one turn as one log transaction
    sync      wait until all publishes are on the disk
    settle    acks, rejects, requeues
    answer    tx.commit-ok when the settlements are on the disk too

After a crash a queue has all of the publishes or none, and a settlement is on the disk only if the publishes
are. A running commit continues if its channel or connection closes, so it is never left half done. If a log
fails or a queue refuses, nothing is settled and the channel gets a 406.

Exception to SLICE_S: a queue with a log and with limits or priorities takes its part message by message in one
log transaction, and that part is not cut.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import Destination, QueueEntry
from amqpd.broker.message import Message
from amqpd.broker.publish.confirms import when_safe
from amqpd.broker.publish.route import Route, refuse
from amqpd.broker.publish.router import by_name
from amqpd.broker.queue.queue import Queue
from amqpd.broker.queue.services import COUNT_MAX
from amqpd.channel.basic import apply_tx_ack
from amqpd.errors import InternalError, PreconditionFailed
from amqpd.protocol import methods
from amqpd.protocol.methods import TxCommitOk
from amqpd.storage.log.prepared import PreparedTransaction
from amqpd.storage.queue_log import LogFailed, QueueLog

if TYPE_CHECKING:
    from amqpd.channel.channel import Channel, Transaction

log = logging.getLogger(__name__)

# Time for the commit in one turn.
SLICE_S: Final = 0.003
# Operations between two checks of the clock.
_STEP: Final[i64] = 64
# Offers to queues plus settlements that one turn commits without slices.
SMALL_COUNT: Final = 1000

_CHECK: Final = 0
_SORT: Final = 1
_APPEND: Final = 2
_SYNC: Final = 3
_SETTLE: Final = 4
_DONE: Final = 5


def reply_when_safe(channel: Channel, logs: Collection[QueueLog], settled: Collection[QueueLog]) -> None:
    """Send tx.commit-ok when the appends to `logs` and the settlements are safe, or fail the channel.

    Args:
        settled: the logs of the settled entries.
    """
    turn = channel.session.turn
    turn.is_sync_urgent = True
    when_safe(turn, logs, functools.partial(_reply, channel, list(settled)))


def _reply(channel: Channel, settled: list[QueueLog], safe: bool) -> None:
    remote: list[QueueLog] = []
    for store in settled:
        if store.failed and not store.deleted:
            safe = False
        elif not store.local:
            remote.append(store)
    if not safe or not remote:
        _send_reply(channel, safe)
        return
    answers: list[bool] = []

    def answer(settled: bool) -> None:
        answers.append(settled)
        if len(answers) == len(remote):
            _send_reply(channel, all(answers))

    for store in remote:
        store.when_acks_safe(answer)


def _send_reply(channel: Channel, safe: bool) -> None:
    if safe:
        channel.owner.finish_busy(channel, methods.frame(channel.number, TxCommitOk()))
    else:
        fail(channel)


def route_at_commit(channel: Channel, route: Route) -> Route:
    """Return the route of a publish that waited in a transaction, without the queues that were deleted meanwhile.

    rabbit: a publish is routed when it arrives, by the default exchange to names: the routing key, CC and BCC. The
    queues of these names may come later.
    """
    now = route.without_deleted()
    keys = route.keys or [now.envelope.routing_key]
    if not now.envelope.exchange and now.queue_count < len(keys):
        found = dict.fromkeys(by_name(channel.session.vhost, key) for key in keys)
        return now.to([destination for destination in found if destination is not None])
    return now


def commit_failed() -> PreconditionFailed:
    """Return the error of a commit during which a log failed or a queue refused. rabbit: 406 with this text."""
    return PreconditionFailed("partial tx completion", methods.TX_COMMIT)


def fail(channel: Channel) -> None:
    channel.owner.fail_channel(channel, commit_failed())


@final
class QueuePart:
    """The messages that one queue gets.

    Attributes:
        prepared: the encoded records, if the queue takes them at once.
        messages: all messages, or the first COUNT_MAX if there is `prepared`.
        persistent: the part must be on the disk before the answer.
    """

    def __init__(
        self, destination: Destination, prepared: PreparedTransaction | None, synced_log: QueueLog | None
    ) -> None:
        self.destination = destination
        self.prepared = prepared
        self.synced_log = synced_log
        self.messages: list[Message] = []
        self.persistent = False

    def add(self, message: Message) -> None:
        if message.persistent or self.destination.keeps_all:
            self.persistent = True
        prepared = self.prepared
        if prepared is None:
            self.messages.append(message)
            return
        destination = self.destination
        if message.info is not None and message.info.expiration is not None and isinstance(destination, Queue):
            destination.track_expiration(message)
        _prepare(prepared, message)
        if len(self.messages) < COUNT_MAX:
            self.messages.append(message)


def _prepare(prepared: PreparedTransaction, message: Message) -> None:
    route = message.envelope.record_route()
    if message.body_size == message.frame_payload_max:
        content = message.content
        header_end = message.header_size - 1
        if message.body_size == 0:
            prepared.append(route, content, 19, header_end, 0, 0, message.persistent)
        else:
            prepared.append(route, content, 19, header_end, header_end + 8, len(content) - 1, message.persistent)
        return
    source = message.unframed()
    end = len(source) - message.body_size
    prepared.append(route, source, 0, end, end, len(source), message.persistent)


@final
class TransactionCommit:
    """A tx.commit that runs through the stages. `start` begins it; each turn schedules the next."""

    def __init__(
        self,
        channel: Channel,
        transaction: Transaction,
        publishes: list[tuple[Route, Message]],
        settlements: list[tuple[i64, QueueEntry, i64]],
    ) -> None:
        self.channel = channel
        self.transaction = transaction
        self._stage = _CHECK
        # Both lists are consumed from their ends, so that each slice frees memory.
        publishes.reverse()
        settlements.reverse()
        self._publishes = publishes
        self._settlements = settlements
        self._parts: dict[Destination, QueuePart] = {}
        self._waiting: list[QueuePart] = []
        self._logs: set[QueueLog] = set()
        self._settled_logs: set[QueueLog] = set()
        # Destinations that are exchange state, not queues.
        self._exchange_states: list[Destination] = []
        self._checked_count: i64 = 0
        self._syncs: i64 = 0
        self._failed = False
        self._refused = False  # by a full queue; other queues have their messages

    def start(self) -> None:
        self.channel.busy = True
        self.transaction.committing = True
        self.channel.owner.call_soon(self.run_slice)

    def start_at_sync(self, logs: Collection[QueueLog]) -> None:
        """Begin a small commit: its publishes are appended to these logs already, only the sync is missing."""
        self._stage = _SYNC
        self._check_logs(math.inf)
        self.channel.busy = True
        self.transaction.committing = True
        self._syncs += 1
        when_safe(self.channel.session.turn, logs, self._synced)

    def run_slice(self) -> None:
        """Run the commit for one turn's share."""
        try:
            self._work(time.monotonic() + SLICE_S)
        except (OSError, LogFailed) as error:
            log.error("a transaction failed: %s", error, extra={"connection": self.channel.session.name})
            self._fail()
        except Exception as bug:
            log.exception("a bug in amqpd, please report it", extra={"connection": self.channel.session.name})
            self._fail()
            self.channel.owner.fail(InternalError(f"{type(bug).__name__}", methods.TX_COMMIT))

    def _work(self, deadline: float) -> None:
        if self._stage == _CHECK and self._check_logs(deadline):
            self._stage = _SORT
        if self._stage == _SORT and self._sort(deadline):
            self._stage = _APPEND
            self._waiting = list(self._parts.values())
            self._waiting.reverse()
            self._parts.clear()
        if self._stage == _APPEND and not self._failed and self._append(deadline):
            self._stage = _SYNC
        if self._failed and self._syncs == 0:
            self._fail()
            return
        if self._stage == _SYNC:
            if self._syncs > 0:
                return  # `_synced` continues
            if self._refused:
                self._fail()
                return
            self._stage = _SETTLE
        if self._stage == _SETTLE and self._settle(deadline):
            self._answer()
            return
        self.channel.owner.call_soon(self.run_slice)

    def _check_logs(self, deadline: float) -> bool:
        """Collect the logs of the settlements and check them. Return whether all are checked."""
        settlements = self._settlements
        count: i64 = len(settlements)
        while self._checked_count < count:
            store = settlements[self._checked_count][1].queue.log()
            if store is not None and store not in self._settled_logs:
                self._settled_logs.add(store)
                self._check_log(store)
            self._checked_count += 1
            if self._checked_count % _STEP == 0 and time.monotonic() >= deadline:
                return False
        return True

    def _check_log(self, store: QueueLog) -> None:
        if store.failed and not store.deleted:
            self._failed = True

    def _sort(self, deadline: float) -> bool:
        channel = self.channel
        publishes = self._publishes
        last: Route | None = None
        route: Route | None = None
        count: i64 = 0
        while publishes:
            original, message = publishes.pop()
            if route is None or original is not last:
                last = original
                route = route_at_commit(channel, original)
            if not route.routed:
                channel.session.vhost.unroutable_count += 1
                if not route.mandatory:
                    channel.dropped_count += 1
                elif not channel.closing:
                    channel.returned_count += 1
                    channel.session.vhost.counts.returned_count += 1
                    channel.output.send_return(channel.number, message)
                    channel.owner.needs_output_check = True
            for destination in route.destinations:
                if not destination.is_queue:
                    self._exchange_states.append(destination)
                part = self._parts.get(destination)
                if part is None:
                    part = self._part(destination)
                part.add(message)
                count += 1
            if count >= _STEP:
                count = 0
                if time.monotonic() >= deadline:
                    return False
        return True

    def _part(self, destination: Destination) -> QueuePart:
        store = destination.log()
        if store is not None:
            self._logs.add(store)
            self._check_log(store)
        prepared: PreparedTransaction | None = None
        if destination.takes_prepared():
            prepared = PreparedTransaction(store is not None and not store.local)
        part = QueuePart(destination, prepared, store)
        self._parts[destination] = part
        return part

    def _append(self, deadline: float) -> bool:
        wrote = False
        while self._waiting:
            part = self._waiting[len(self._waiting) - 1]
            wrote = wrote or part.synced_log is not None
            if part.destination.is_deleted() or self._append_part(part, deadline):
                self._waiting.pop()
            if time.monotonic() >= deadline:
                break
        if wrote:
            # In the turn of the append: `when_safe` reports on the commit group of the turn in which it is called.
            self._syncs += 1
            when_safe(self.channel.session.turn, self._logs, self._synced)
        return not self._waiting

    def _append_part(self, part: QueuePart, deadline: float) -> bool:
        """Return whether the queue has all of its part."""
        destination = part.destination
        prepared = part.prepared
        messages = part.messages
        store = part.synced_log
        if prepared is not None:
            prepared.close()
            destination.enqueue_prepared(prepared, messages)
            return True
        if store is not None and part.persistent:
            destination.begin_transaction()
            try:
                for message in messages:
                    self._offer(destination, message)
            finally:
                destination.end_transaction()
            return True
        done: i64 = 0
        count: i64 = len(messages)
        while done < count:
            self._offer(destination, messages[done])
            done += 1
            if done % _STEP == 0 and time.monotonic() >= deadline:
                break
        del messages[:done]
        return not messages

    def _offer(self, destination: Destination, message: Message) -> None:
        if not destination.enqueue(message):
            self._refused = True

    def _synced(self, safe: bool) -> None:
        self._syncs -= 1
        if not safe:
            self._failed = True
        if self._syncs == 0 and self._stage == _SYNC:
            self.channel.owner.call_soon(self.run_slice)

    def _settle(self, deadline: float) -> bool:
        channel = self.channel
        settlements = self._settlements
        count: i64 = 0
        while settlements:
            tag, entry, action = settlements.pop()
            entry.in_transaction = False
            if not channel.closing:
                channel.deliveries.unacked.take_one(tag)
            apply_tx_ack(channel, entry, action)
            count += 1
            if count % _STEP == 0 and time.monotonic() >= deadline:
                # Write the settlements of each turn: a turn's share is not the whole transaction.
                channel.session.turn.schedule()
                return False
        return True

    def _answer(self) -> None:
        self._stage = _DONE
        self.transaction.committing = False
        reply_when_safe(self.channel, (), self._settled_logs)

    def _fail(self) -> None:
        """End without settling: a log failed or a queue refused.

        Entries return to their queues with the channel's others.
        """
        channel = self.channel
        self.transaction.committing = False
        self._stage = _DONE
        self._publishes.clear()
        self._waiting.clear()
        refuse(self._exchange_states)
        self._parts.clear()
        if channel.closing:
            # The closed channel left these entries to the commit.
            entries = [entry for _, entry, _ in reversed(self._settlements)]
            for entry in entries:
                entry.in_transaction = False
            channel.deliveries.requeue(entries, True)
        self._settlements.clear()
        fail(channel)
