"""A member of a share group as a consumer of a classic or quorum queue.

The queue's own acks are the state of its messages, so members and AMQP consumers compete for them by the same rules:

    acquire           delivery, with a credit as large as the ShareFetch request asks for
    accept            ack
    release           requeue, as basic.nack: it counts as an attempt for the delivery limit
    reject            reject without requeue: the message is dead-lettered
    lock expires      requeue, as the timeout of a consumer
    session ends      requeue, as a closed channel

The delivery count of a record is one more than the times it was returned. An acknowledgement is written to the queue's
log before it is answered.

The records of a response have ascending offsets, because clients skip others. A message that the queue delivers out of
order, such as one of a lower priority, is held for the next response. So the queue's order is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpd.broker import consume
from amqpd.broker.consumer import NO_ARGUMENTS, Consumer, QueueBase, QueueEntry, within
from amqpd.broker.flow.timers import CallTimer
from amqpd.kafka_server import errors
from amqpd.kafka_server.message_records import OutgoingRecord, encode_batch, record_of
from amqpd.kafka_server.share_wire import ACCEPT, GAP, RELEASE, RENEW, AckRange, OffsetRange, ranges_of

if TYPE_CHECKING:
    from amqpd.broker.message import Message
    from amqpd.broker.queue.queue import Queue
    from amqpd.broker.session import Session

LOCKS_MAX: Final = 2000
"""Records of a topic that one member may have acquired. Kafka: group.share.partition.max.record.locks."""

WORK_MAX: Final = 50_000
"""Work to convert messages for one ShareFetch request, in units of `record_work`: 2000 messages with few headers."""


class FetchCredit:
    """How many records a ShareFetch request may still acquire, over all its topics.

    Attributes:
        is_strict: no more records may be acquired, also if a batch of a stream has more.
        wake: called when a topic has something for the response.
    """

    def __init__(self, records: int, is_strict: bool, size_bytes: int, wake: Callable[[], None]) -> None:
        self.records = records
        self.is_strict = is_strict
        self.size_bytes = size_bytes
        self.wake = wake
        self._work = WORK_MAX

    def is_used_up(self) -> bool:
        return self.records <= 0 or self.size_bytes <= 0 or self._work <= 0

    def use(self, size_bytes: int, records: int = 1, work: int = 0) -> None:
        """Use the credit of some records. work: to convert them, in units of `record_work`."""
        self.records -= records
        self.size_bytes -= size_bytes
        self._work -= work


class ShareSource:
    """One topic in the session of a member: where its records come from.

    Attributes:
        error: why it has no records any more; 0 for none.
    """

    error: int = errors.NONE

    def allow(self, credit: FetchCredit | None) -> None:
        """Acquire records while there is credit, from now on. None: acquire no more."""
        raise NotImplementedError

    def take(self) -> tuple[list[OffsetRange], list[bytes]]:
        """Return what was acquired since the last call, in ascending order of the offsets: ranges, record batches."""
        raise NotImplementedError

    def acknowledge(self, acks: Sequence[AckRange], done: Callable[[int], None]) -> None:
        """Acknowledge all offsets of the ranges or, if one of them is not acquired, none.

        done: called with the error code when the acknowledgements survive a kill of the broker; maybe at once.
        """
        raise NotImplementedError

    def on_offsets_lost(self, queue: QueueBase, ranges: list[tuple[int, int]]) -> None:
        """Handle a failed write of the queue's log, see `BrokerListener`."""

    def close(self) -> None:
        """Release everything that is acquired: the session ends."""
        raise NotImplementedError


class _Lock(NamedTuple):
    """An acquired message. due_ms: when it is requeued."""

    entry: QueueEntry
    due_ms: int


class ShareQueueConsumer(Consumer, ShareSource):
    """The consumer.

    Args:
        queue: with an open log; `consume.check_exclusive` has passed.
    """

    def __init__(self, session: Session, queue: Queue, tag: str, lock_ms: int) -> None:
        Consumer.__init__(self, queue, tag, False, False, NO_ARGUMENTS)
        self._session = session
        self._source = queue
        self._lock_ms = lock_ms
        self._timers = session.broker.timers
        self._locks: dict[int, _Lock] = {}  # by offset, in order of their time
        self._timer = CallTimer(self._on_time)
        self._credit: FetchCredit | None = None
        self._records: list[tuple[OutgoingRecord, int]] = []  # with delivery counts
        self._held: tuple[OutgoingRecord, int] | None = None
        consume.start_consumer(queue, self)

    # -- Consumer

    def can_take(self) -> bool:
        credit = self._credit
        if credit is None or self._held is not None:
            return False
        return not credit.is_used_up() and len(self._locks) < LOCKS_MAX

    def deliver(self, message: Message, entry: QueueEntry | None, redelivered: bool) -> None:
        assert entry is not None  # it consumes with acks
        self.in_flight += 1
        self.delivered_count += 1
        if redelivered:
            self.redelivered_count += 1
        entry.consumer = self
        offset = int(entry.offset)
        record = record_of(message, offset, self._timers.wall_ms())
        if entry.queue.logged:
            entry.message = None  # its log has the message
        due_ms = self._timers.now_ms() + self._lock_ms
        self._locks[offset] = _Lock(entry, due_ms)
        self._timers.arm_sooner(self._timer, due_ms)
        item = (record, max(int(entry.delivery_count) + 1, 2 if redelivered else 1))
        if self._records and offset < self._records[-1][0].offset:
            self._held = item
        else:
            self._add(item)

    def _add(self, item: tuple[OutgoingRecord, int]) -> None:
        self._records.append(item)
        if self._credit is not None:
            record = item[0]
            self._credit.use(len(record.key_and_rest), work=record.work)
            self._credit.wake()

    def cancel(self) -> None:
        self.error = errors.UNKNOWN_TOPIC_ID
        if self._credit is not None:
            self._credit.wake()

    # -- ShareSource

    def allow(self, credit: FetchCredit | None) -> None:
        self._credit = credit
        if credit is None:
            return
        if self.error != errors.NONE:
            credit.wake()
        held, self._held = self._held, None
        if held is not None and held[0].offset in self._locks:
            self._add(held)
        self._source.activate(self)

    def take(self) -> tuple[list[OffsetRange], list[bytes]]:
        records = [item for item in self._records if item[0].offset in self._locks]
        self._records = []
        if not records:
            return [], []
        acquired = ranges_of((record.offset, count) for record, count in records)
        return acquired, [encode_batch([record for record, _ in records])]

    def acknowledge(self, acks: Sequence[AckRange], done: Callable[[int], None]) -> None:
        locks = self._locks
        for each in acks:
            for offset in range(each.first, each.last + 1):
                if offset not in locks and each.type_at(offset) != GAP:
                    done(errors.INVALID_RECORD_STATE)
                    return
        now_ms = self._timers.now_ms()
        for each in acks:
            for offset in range(each.first, each.last + 1):
                lock = locks.pop(offset, None)
                if lock is not None:
                    self._end(lock.entry, each.type_at(offset), offset, now_ms)
        store = self._source.store
        if store is not None:
            store.write_acks_this_turn()
        self._returned()
        done(errors.NONE)

    def _end(self, entry: QueueEntry, kind: int, offset: int, now_ms: int) -> None:
        if kind == RENEW:
            self._locks[offset] = _Lock(entry, now_ms + self._lock_ms)
            return
        self.in_flight -= 1
        if kind == ACCEPT:
            entry.queue.ack(entry)
            return
        entry.detach()
        if kind == RELEASE:
            entry.queue.requeue(entry, True)
        else:  # REJECT, or GAP: the client cannot see the record
            entry.queue.reject(entry)

    def _returned(self) -> None:
        """Serve what was returned, and use the credit that is free again."""
        if not self._source.deleted:
            self._source.activate(self)
            self._source.schedule_dispatch()
        self._session.turn.schedule()

    def _on_time(self) -> None:
        """Requeue the messages whose locks have expired."""
        now_ms = self._timers.now_ms()
        while self._locks:
            offset, lock = next(iter(self._locks.items()))
            if lock.due_ms > now_ms:
                self._timers.arm(self._timer, lock.due_ms)
                break
            del self._locks[offset]
            self._requeue(lock.entry, False)
        self._returned()

    def _requeue(self, entry: QueueEntry, failed: bool) -> None:
        self.in_flight -= 1
        entry.detach()
        entry.queue.requeue(entry, True, failed)

    def on_offsets_lost(self, queue: QueueBase, ranges: list[tuple[int, int]]) -> None:
        if queue is self._source:
            for offset, lock in self._locks.items():
                if within(offset, ranges):
                    lock.entry.offset = -1

    def close(self) -> None:
        self._credit = None
        self._timers.discard(self._timer)
        if not self.cancelled:
            consume.stop_consumer(self._session, self._source, self)
        locks, self._locks = self._locks, {}
        for lock in locks.values():
            self._requeue(lock.entry, True)
        self._records = []
        self._held = None
        self._returned()
