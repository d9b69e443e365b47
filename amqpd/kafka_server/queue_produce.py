"""Batches of producers for classic and quorum queues: each record becomes a message.

A message goes the way of every other one (`Queue.enqueue`), so limits, time to live, priorities and dead letters apply,
and a consumer with credit gets it at once. The queue's log stores each message with its producer and sequence, as for
numbered messages of AMQP (broker/publish/idempotence.py). So a batch that is sent again, also after a kill in its
middle, adds only the messages that are missing.

A queue that refuses a message (overflow reject-publish) ends the batch with 7 REQUEST_TIMED_OUT. The messages before it
stay. Producers send such a batch again until their own time is over, so a full queue holds them back. Codes after which
they give up at once would let them use the sequences of the batch for other records, which would then look known.

A message of the batch that could not be written (full disk) ends the batch, too, with 56 STORAGE_ERROR. The
messages after it would otherwise hide it: the reply waits for the last one, and a repetition would look known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from amqpd.broker.publish.publisher import needs_validation, validate_properties
from amqpd.errors import PreconditionFailed
from amqpd.kafka_server import errors
from amqpd.kafka_server.message_records import BatchRecord, message_of, record_work, records_of
from amqpd.protocol.field_table import CodecError
from amqpd.storage.log.batch import NO_PRODUCER, BatchHeader
from amqpd.storage.log.producer_state import SEQUENCE_MAX, Producer
from amqpd.storage.log.record import BadRecord
from amqpd.storage.queue_log import LogFailed

if TYPE_CHECKING:
    from amqpd.auth.internal_backend import User
    from amqpd.broker.message import Message
    from amqpd.broker.queue.queue import Queue
    from amqpd.storage.local_log import LocalLog

SLICE_WORK: Final = 2000
"""Work for records of a batch without a look at the clock, in units of `record_work`: some ms."""


class RefusedBatch(Exception):
    """A batch is not appended.

    Attributes:
        error: Kafka's code.
        text: for the client.
    """

    def __init__(self, error: int, text: str = "") -> None:
        super().__init__(text)
        self.error = error
        self.text = text


class QueueBatch:
    """A batch whose records are being enqueued.

    Attributes:
        offset: of the first message; -1 if the queue had it before.
        last_offset: of the last message; -1 if there is none in the log.
        is_duplicate: the queue had all messages before.
    """

    def __init__(self, queue: Queue, store: LocalLog, user: User, batch: bytes) -> None:
        self.offset = self.last_offset = -1
        self.is_duplicate = False
        self.queue = queue
        self.store = store
        header = BatchHeader(batch, 0)
        self._producer_id = int(header.producer_id)
        self._epoch = int(header.producer_epoch)
        self._base_sequence = int(header.base_sequence)
        self._count = int(header.count)
        self._user = user
        self._batch = batch
        self._is_checked = False
        self._number = 0
        self._skip_count = 0
        self._unwritten_end = 0  # of the log, when the first message was enqueued
        self._records: Iterator[BatchRecord] = records_of(batch)

    def _known_count(self, count: int) -> int:
        """Return how many records at the start of the batch the queue has already. Raises: RefusedBatch."""
        last = self.store.producers().find(self._producer_id, self.queue.host.timers.agreed_ms())
        if last is None:
            return 0
        if self._epoch < last.epoch:
            text = f"epoch {self._epoch} is older than the producer's epoch {last.epoch}"
            raise RefusedBatch(errors.INVALID_PRODUCER_EPOCH, text)
        expected = (last.sequence + 1) & SEQUENCE_MAX if self._epoch == last.epoch else 0
        known = (expected - self._base_sequence) & SEQUENCE_MAX
        if known > SEQUENCE_MAX // 2 or (known > 0 and self._epoch != last.epoch):
            text = f"sequence {self._base_sequence} of epoch {self._epoch}, expected {expected}"
            raise RefusedBatch(errors.OUT_OF_ORDER_SEQUENCE_NUMBER, text)
        if known >= count:
            self.is_duplicate = True
            self.last_offset = int(last.offset)
        return min(known, count)

    def enqueue_some(self) -> bool:
        """Check the next records; after the last one begin again and enqueue them. Return whether all are enqueued.

        Raises: RefusedBatch: a record cannot be a message, the batch is not the next one of its producer, or the
        queue does not take a message. In the first two cases nothing is enqueued.
        """
        return self._enqueue_slice() if self._is_checked else self._check_slice()

    def _check_slice(self) -> bool:
        work = 0
        try:
            for record in self._records:
                _checked_message(record, self._user)
                work += record_work(len(record.headers))
                if work >= SLICE_WORK:
                    return False
        except BadRecord as error:
            raise RefusedBatch(errors.INVALID_RECORD, str(error)) from None
        if self._producer_id >= 0:
            self._skip_count = self._known_count(self._count)
        self._is_checked = True
        self._unwritten_end = int(self.store.unwritten_end)
        self._records = records_of(self._batch)
        return False

    def _enqueue_slice(self) -> bool:
        work = 0
        self._check_written()
        for record in self._records:
            number, self._number = self._number, self._number + 1
            work += record_work(len(record.headers))
            if number >= self._skip_count:
                self._enqueue_one(record, number)
            if work >= SLICE_WORK:
                return False
        return True

    def _check_written(self) -> None:
        """Check that no message could not be written since the first one. Raises: RefusedBatch."""
        if self.store.unwritten_end != self._unwritten_end:
            raise RefusedBatch(errors.STORAGE_ERROR)

    def _enqueue_one(self, record: BatchRecord, number: int) -> None:
        """Enqueue the record with this number in the batch. Raises: RefusedBatch."""
        try:
            is_accepted = self._enqueue(message_of(record), (self._base_sequence + number) & SEQUENCE_MAX)
        except LogFailed:
            raise RefusedBatch(errors.STORAGE_ERROR) from None
        if not is_accepted:
            if self.store.failed:
                raise RefusedBatch(errors.STORAGE_ERROR)
            raise RefusedBatch(errors.REQUEST_TIMED_OUT, f"queue '{self.queue.name}' is full")

    def _enqueue(self, message: Message, sequence: int) -> bool:
        queue, store = self.queue, self.store
        offset = int(store.next_offset)
        if self._producer_id < 0:
            accepted = queue.enqueue(message)
        else:
            queue.backing.numbered = True
            store.set_producer(self._producer_id, self._epoch, sequence)
            try:
                accepted = queue.enqueue(message)
            finally:
                queue.backing.numbered = False
                store.set_producer(NO_PRODUCER, 0, -1)
        if accepted and store.next_offset > offset:
            self._check_written()
            if self.offset < 0 and self._skip_count == 0:
                self.offset = offset
            self.last_offset = offset
            if self._producer_id >= 0:
                self._record(sequence)
        return accepted

    def _record(self, sequence: int) -> None:
        now_ms = self.queue.host.timers.wall_ms()
        producer = Producer(self._producer_id, self._epoch, sequence, self.store.next_offset - 1, now_ms)
        self.store.producers().record(producer, self.store.high_watermark)


def _checked_message(record: BatchRecord, user: User) -> None:
    """Check that a record can be a message of this user. Raises: RefusedBatch."""
    try:
        message = message_of(record)
        if message.info is not None and needs_validation(message.info):
            validate_properties(user, message.info, message.properties())
    except CodecError as error:
        raise RefusedBatch(errors.INVALID_RECORD, str(error)) from None
    except PreconditionFailed as error:
        raise RefusedBatch(errors.INVALID_RECORD, error.text) from None
