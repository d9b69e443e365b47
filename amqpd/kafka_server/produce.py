"""Produce.

Produce requests are large, so they are read and written here, without objects of kafka-python. The records of a
request are copied once, into the batch that the log writes.

A request names topics, their partitions, and one record batch for each. The batches are checked
(storage/log/appender.py) and appended as they are. The reply is sent when all of them are synced, for acks 1 as for
acks -1. A request with acks 0 has no reply; an error closes the connection, as in Kafka.

    no batch, several, a control batch,      87 INVALID_RECORD, with a text
    a bad record, unknown attributes
    wrong length, header or checksum         2 CORRUPT_MESSAGE
    magic 0 or 1                             43 UNSUPPORTED_FOR_MESSAGE_FORMAT
    larger than amqp.message_size_max_bytes  10 MESSAGE_TOO_LARGE; clients then split the batch
    or RECORDS_MAX, or decompresses to more
    than 16 MiB
    a time more than an hour ahead or        32 INVALID_TIMESTAMP; retention by age would keep records of the future
    before 1970, or LogAppendTime
    an unknown codec                         76 UNSUPPORTED_COMPRESSION_TYPE
    of a transaction, but not of the one of  48 INVALID_TXN_STATE, 49 INVALID_PRODUCER_ID_MAPPING
    the request's transactional id, or not
    of one while its producer has one here
    without a transactional id, or with one  53 TRANSACTIONAL_ID_AUTHORIZATION_FAILED, as in Kafka
    that the user may not write
    a stream whose log is a topic of Kafka   42 INVALID_REQUEST
    the log failed or cannot be opened       56 STORAGE_ERROR

**Idempotent producers.** InitProducerId (transaction_requests.py) returns a random id, unique also over restarts. The
log knows the last five batches of each producer, also after a kill (storage/log/producer_state.py):

    one of these batches                stored already: the reply has its first offset, and waits until it is synced
    the next sequence                   appended
    another sequence                    45 OUT_OF_ORDER_SEQUENCE_NUMBER
    a higher epoch                      appended if its sequence is 0, otherwise 45
    a lower epoch                       47 INVALID_PRODUCER_EPOCH
    an unknown producer, any sequence   appended: the producer was silent for a day, or retention removed its batches

queue_produce.py has batches for classic and quorum queues.

**Waiting.** A Produce request waits while a log is being opened, during a resource alarm, and while too many bytes are
unsynced. Its connection then handles no further request. So batches keep their order, and a connection has at most one
waiting request in memory. A request with much work continues in later turns (pace.py): one with many partitions, and
one with a batch of many records or headers.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpd.broker.vhost.limits import PRODUCER_BYTE_RATE
from amqpd.kafka_server import errors, topics
from amqpd.kafka_server.connection import Api, Call
from amqpd.kafka_server.messages import RequestHeader
from amqpd.kafka_server.pace import SLICE_S, Steps
from amqpd.kafka_server.queue_produce import QueueBatch, RefusedBatch
from amqpd.kafka_server.quotas import count_bytes
from amqpd.kafka_server.request_reader import INT16, INT32, INT64, RequestReader, encoded_length
from amqpd.kafka_server.transactions import TransactionPartition
from amqpd.storage.local_log import LocalLog
from amqpd.storage.log.appender import BadBatch, BatchCheck, BatchTooLarge, DamagedBatch
from amqpd.storage.log.batch import (
    CODECS,
    COMPRESSION,
    CONTROL,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
)
from amqpd.storage.log.producer_state import SEQUENCE_MAX
from amqpd.storage.queue_log import LogFailed

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue
    from amqpd.storage.log.producer_state import Producer


FLEXIBLE: Final = 9
PARTITIONS_MAX: Final = 4096
"""Partitions in one request."""
RECORDS_MAX: Final = 100_000
"""Records in one batch. Their check takes 15 ms."""
AHEAD_MS_MAX: Final = 3_600_000
"""How far the time of a record may be ahead of the broker's clock. Kafka: message.timestamp.after.max.ms."""
STEP_COUNT: Final = 32
"""Partitions that are decoded or encoded in one step."""
ERROR_TEXT_MAX: Final = 500

_ACKS_AND_TIMEOUT: Final = struct.Struct(">hi")
_RESULT: Final = struct.Struct(">ihqq")  # partition, error, base offset, log append time
_MAGIC_AT: Final = 16
_NO_TIME: Final = -1


class PartitionBatch(NamedTuple):
    """One partition of a request.

    Attributes:
        start, end: of the record batch in the frame; -1 for null.
    """

    partition: int
    start: int
    end: int


class ProducedTopic(NamedTuple):
    """One topic of a request. name: as it was sent, UTF-8."""

    name: bytes
    parts: list[PartitionBatch]


class ProduceRequest(NamedTuple):
    """A decoded request.

    Attributes:
        transactional_id: of the transaction of its transactional batches; None without one.
    """

    transactional_id: str | None
    acks: int
    topics: list[ProducedTopic]


# -- bytes


def decode_steps(frame: bytes, header: RequestHeader) -> Steps[ProduceRequest]:
    """Return the Produce request in a frame.

    Cost: about 3 us per partition, independent of the size of the records. Raises: MalformedRequest.
    """
    reader = RequestReader(frame, header.size, header.version >= FLEXIBLE)
    transactional_id = reader.nullable_text()
    acks, _ = reader.unpack(_ACKS_AND_TIMEOUT)
    found: list[ProducedTopic] = []
    left = PARTITIONS_MAX
    for _ in range(reader.count(PARTITIONS_MAX, 3)):
        name = reader.string()
        parts: list[PartitionBatch] = []
        for _ in range(reader.count(left, 5)):
            left -= 1
            (index,) = reader.unpack(INT32)
            parts.append(PartitionBatch(index, *reader.bytes_range()))
            reader.end_struct()
            if left % STEP_COUNT == 0:
                yield
        reader.end_struct()
        found.append(ProducedTopic(name, parts))
    reader.end_struct()
    return ProduceRequest(transactional_id, acks, found)


class Result(NamedTuple):
    """The answer for one partition.

    Attributes:
        offset: of the first record; -1 after an error.
        log_start: the first offset of the log, -1 if it is unknown.
        text: why the batch was refused; "" for the text that clients have for the code.
    """

    error: int
    offset: int = -1
    log_start: int = -1
    text: str = ""


def encode_steps(request: ProduceRequest, results: list[Result], version: int, throttle_ms: int = 0) -> Steps[bytes]:
    """Return the body of the response. results: in the order of the request."""
    flexible = version >= FLEXIBLE
    out = bytearray(encoded_length(len(request.topics), INT32, flexible))
    number = 0
    for topic in request.topics:
        out += encoded_length(len(topic.name), INT16, flexible)
        out += topic.name
        out += encoded_length(len(topic.parts), INT32, flexible)
        for part in topic.parts:
            result = results[number]
            number += 1
            if number % STEP_COUNT == 0:
                yield
            out += _RESULT.pack(part.partition, result.error, result.offset, _NO_TIME)
            if version >= 5:
                out += INT64.pack(result.log_start)
            if version >= 8:
                text = result.text[:ERROR_TEXT_MAX].encode()
                out += encoded_length(0, INT32, flexible)  # no record errors
                out += encoded_length(len(text) if text else -1, INT16, flexible)
                out += text
            if flexible:
                out += b"\0"
        if flexible:
            out += b"\0"
    out += INT32.pack(throttle_ms)
    if flexible:
        out += b"\0"
    return bytes(out)


# -- Produce


class _Checking(NamedTuple):
    """A batch whose records are being checked, for an open log."""

    partition: topics.TopicPartition
    part: PartitionBatch
    store: LocalLog
    header: BatchHeader
    check: BatchCheck


class PendingProduce:
    """A Produce request, until its reply.

    It appends one batch after the other, and stops while it must wait.
    """

    def __init__(self, call: Call, request: ProduceRequest) -> None:
        self._call = call
        self._frame = call.frame
        self._size_bytes = len(call.frame)
        self._request = request
        self._parts = [(topic.name, part) for topic in self._request.topics for part in topic.parts]
        self._results = [Result(errors.STORAGE_ERROR)] * len(self._parts)
        self._next = 0
        self._checking: _Checking | None = None  # the next batch, whose records are being checked
        self._queued: QueueBatch | None = None  # a batch for a work queue whose messages are being enqueued
        self._unsafe_count = 1  # batches that are not synced, and the request until all are appended
        self._held = False
        self._until_s = 0.0  # end of the slice

    def run(self) -> None:
        """Append batches until the request is done or must wait."""
        connection = self._call.connection
        if connection.closed:
            return
        broker = connection.server.broker
        self._until_s = time.monotonic() + SLICE_S
        while self._next < len(self._parts):
            turn = broker.turn
            if broker.alarm_reason:
                self._hold()
                connection.when_unblocked = self.run
                return
            if turn.commits.unsynced_bytes >= turn.unsynced_bytes_max:
                self._hold()
                turn.call_when_below_limit(self.run)
                return
            if not self._begin_part():
                return
            if self._next < len(self._parts) and time.monotonic() >= self._until_s:
                self._hold()
                connection.server.pace.later(self.run)
                return
        self._free_frame()
        self._unsafe_count -= 1
        if self._request.acks == 0:
            self._end_without_reply()
        elif self._unsafe_count == 0:
            self._reply()
        self._release()

    def _hold(self) -> None:
        """Wait: the connection handles no further request."""
        if not self._held:
            self._held = True
            self._call.connection.on_close.append(self._free_frame)
            self._call.connection.hold(True)

    def _free_frame(self) -> None:
        """Free the memory of the request: it is done, or its connection is closed."""
        self._frame = self._call.frame = b""
        self._checking = self._queued = None

    def _release(self) -> None:
        if self._held and not self._call.connection.closed:
            self._held = False
            self._call.connection.on_close.remove(self._free_frame)
            self._call.connection.hold(False)

    def _begin_part(self) -> bool:
        """Find the next batch's partition and append the batch. Return False if it waits for the opening of the log."""
        number = self._next
        name, part = self._parts[number]
        if self._is_in_work():
            self._attempt(number, self._continue_part)
            return True
        try:
            partition = self._find_partition(name, part)
        except RefusedBatch as refused:
            self._end_part(number, Result(refused.error, text=refused.text))
            return True
        opened_now = True
        queue = partition.queue

        def then(opened: bool) -> None:
            if self._call.connection.closed:
                return
            if opened and not queue.deleted:
                self._attempt(number, partial(self._check_part, partition, part))
            else:
                error = errors.UNKNOWN_TOPIC_OR_PARTITION if queue.deleted else errors.STORAGE_ERROR
                self._end_part(number, Result(error))
            if not opened_now:
                self.run()

        topics.open_queue(queue, then)
        opened_now = False
        if self._next == number and not self._is_in_work():
            self._hold()
            return False
        return True

    def _is_in_work(self) -> bool:
        """Return whether a batch is being checked or enqueued."""
        return self._checking is not None or self._queued is not None

    def _find_partition(self, name: bytes, part: PartitionBatch) -> topics.TopicPartition:
        """Return the partition. Raises: RefusedBatch."""
        request = self._request
        if request.acks not in (0, 1, -1):
            raise RefusedBatch(errors.INVALID_REQUIRED_ACKS)
        try:
            found = topics.find_partition(self._call.session, name.decode(), part.partition, "write")
        except UnicodeDecodeError:
            raise RefusedBatch(errors.UNKNOWN_TOPIC_OR_PARTITION) from None
        if isinstance(found, int):
            if found == errors.TOPIC_AUTHORIZATION_FAILED:
                topics.record_refusal(self._call.session, "Produce", f"topic '{name.decode()}'")
            raise RefusedBatch(found)
        return found

    def _attempt(self, number: int, work: Callable[[], None]) -> None:
        """Do some work for a batch. An error ends its part."""
        try:
            work()
            return
        except RefusedBatch as refused:
            result = Result(refused.error, text=refused.text)
        except BadBatch as error:
            result = Result(_error_of(error), text=str(error))
        except LogFailed:
            result = Result(errors.STORAGE_ERROR)
        self._checking = self._queued = None
        self._end_part(number, result)

    def _check_part(self, partition: topics.TopicPartition, part: PartitionBatch) -> None:
        """Begin to check a batch for the open log of its stream or queue. Raises: RefusedBatch, BadBatch, LogFailed."""
        store = partition.queue.store
        if not isinstance(store, LocalLog) or not store.local:
            raise RefusedBatch(errors.INVALID_REQUEST, "the log of this queue is a topic of a Kafka cluster")
        broker = self._call.connection.server.broker
        frame, start, end = self._frame, part.start, part.end
        _check_header(frame, start, end, broker.message_size_max_bytes, broker.timers.wall_ms())
        header = BatchHeader(frame, start)
        transactional = header.attributes & TRANSACTIONAL != 0
        if partition.is_work_queue and transactional:
            raise RefusedBatch(errors.INVALID_REQUEST, "transactions are for streams only")
        check = BatchCheck(frame, start, end, transactional)
        self._checking = _Checking(partition, part, store, header, check)
        self._continue_part()

    def _continue_part(self) -> None:
        """Check or enqueue more of a batch, and append it once it is checked.

        Raises: RefusedBatch, BadBatch, LogFailed.
        """
        if self._queued is not None:
            self._enqueue_some(self._queued)
            return
        checking = self._checking
        if checking is None or not checking.check.run(self._until_s):
            return
        _check_time(checking.check.max_timestamp_ms, self._call.connection.server.broker.timers.wall_ms())
        queue = checking.partition.queue
        if queue.deleted:
            raise RefusedBatch(errors.UNKNOWN_TOPIC_OR_PARTITION)
        self._checking = None
        if checking.partition.is_work_queue:
            batch = self._frame[checking.part.start : checking.part.end]
            self._queued = QueueBatch(queue, checking.store, self._call.session.user, batch)
            return
        offset, last = self._append(checking)
        self._end_appended(self._next, queue, offset, last)

    def _end_appended(self, number: int, queue: Queue, offset: int, last: int) -> None:
        """End a part whose records are in the log; the reply waits until the record at `last` is safe."""
        store = queue.store
        assert store is not None  # it was appended to
        self._end_part(number, Result(errors.NONE, offset, store.log_start()))
        if self._request.acks != 0 and last >= 0:
            self._unsafe_count += 1
            store.when_safe(last, lambda safe: self._on_safe(number, queue, safe))

    def _enqueue_some(self, queued: QueueBatch) -> None:
        """Enqueue some messages of the batch, and end the part after the last. Raises: RefusedBatch."""
        queue = queued.queue
        try:
            if queue.deleted:
                raise RefusedBatch(errors.UNKNOWN_TOPIC_OR_PARTITION)
            is_done = queued.enqueue_some()
        finally:
            self._call.connection.server.broker.turn.schedule()
        if is_done:
            self._queued = None
            if queued.is_duplicate:
                queued.store.flush_batches()  # a record from before a restart is synced only on request
            self._end_appended(self._next, queue, queued.offset, queued.last_offset)

    def _append(self, checking: _Checking) -> tuple[int, int]:
        """Return the offsets of the first and the last record of the batch, which is appended now or was before.

        Raises: RefusedBatch, LogFailed.
        """
        broker = self._call.connection.server.broker
        partition, store, header = checking.partition, checking.store, checking.header
        transactional = header.attributes & TRANSACTIONAL != 0
        if header.producer_id >= 0:
            last = find_duplicate(store.producers().find(header.producer_id, broker.timers.agreed_ms()), header)
            if last >= 0:
                if last >= store.high_watermark:
                    store.flush_batches()  # a batch from before a restart is synced only on request
                    broker.turn.schedule()
                return last - header.count + 1, last
        if transactional:
            self._check_transaction(header, partition)
        elif store.log.transactions is not None and store.log.transactions.first_open(header.producer_id) >= 0:
            raise RefusedBatch(errors.INVALID_TXN_STATE, "the producer has an open transaction in this partition")
        offset = partition.queue.enqueue_batches([checking.check.batch()])
        broker.turn.schedule()
        return offset, store.next_offset - 1

    def _check_transaction(self, header: BatchHeader, partition: topics.TopicPartition) -> None:
        """Check that the batch belongs to an ongoing transaction. Raises: RefusedBatch."""
        name = self._request.transactional_id
        if name is None:
            raise RefusedBatch(
                errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transactional batch without transactional id"
            )
        session = self._call.session
        coordinator = self._call.connection.server.coordinator.transactions
        if not topics.is_permitted(session, name, "write"):
            raise RefusedBatch(errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if coordinator.load_error():
            raise RefusedBatch(errors.NOT_LEADER_OR_FOLLOWER)  # clients try again
        producer = (int(header.producer_id), int(header.producer_epoch))
        place = TransactionPartition(partition.topic.name, bytes.fromhex(partition.queue.id), partition.number)
        error = coordinator.write_error(session.vhost, name, producer, place)
        if error:
            raise RefusedBatch(errors.INVALID_PRODUCER_EPOCH if error == errors.PRODUCER_FENCED else error)

    def _end_part(self, number: int, result: Result) -> None:
        self._results[number] = result
        self._next = number + 1

    def _on_safe(self, number: int, queue: Queue, safe: bool) -> None:
        self._unsafe_count -= 1
        if not safe:
            self._results[number] = Result(errors.UNKNOWN_TOPIC_OR_PARTITION if queue.deleted else errors.STORAGE_ERROR)
        if self._unsafe_count == 0:
            self._reply()

    def _reply(self) -> None:
        call = self._call
        throttle_ms = count_bytes(call, PRODUCER_BYTE_RATE, self._size_bytes)
        call.connection.server.pace.run(call.connection, self._reply_steps(throttle_ms))

    def _reply_steps(self, throttle_ms: int) -> Steps[None]:
        call = self._call
        call.reply_bytes((yield from encode_steps(self._request, self._results, call.version, throttle_ms)))

    def _end_without_reply(self) -> None:
        call = self._call
        for result, (name, part) in zip(self._results, self._parts, strict=True):
            if result.error != errors.NONE:
                where = f"partition {part.partition} of topic '{name.decode(errors='replace')[:ERROR_TEXT_MAX]}'"
                call.connection.close(f"records without acks for {where} were refused: {result.error} {result.text}")
                return
        count_bytes(call, PRODUCER_BYTE_RATE, self._size_bytes)
        call.reply_nothing()


def _check_header(frame: bytes, start: int, end: int, size_max_bytes: int, now_ms: int) -> None:
    """Check what the log does not check: the fields that Kafka's producers may set. Raises: RefusedBatch."""
    size = end - start
    if start < 0 or size == 0:
        raise RefusedBatch(errors.INVALID_RECORD, "there is no record batch")
    if size <= _MAGIC_AT:
        raise RefusedBatch(errors.CORRUPT_MESSAGE, f"a record batch of {size} bytes")
    if frame[start + _MAGIC_AT] < 2:
        raise RefusedBatch(errors.UNSUPPORTED_FOR_MESSAGE_FORMAT, "only record batches with magic 2 are accepted")
    if size < HEADER_SIZE:
        raise RefusedBatch(errors.CORRUPT_MESSAGE, f"a record batch of {size} bytes")
    if size > size_max_bytes:
        raise RefusedBatch(
            errors.MESSAGE_TOO_LARGE, f"a record batch of {size} bytes; at most {size_max_bytes} are accepted"
        )
    header = BatchHeader(frame, start)
    if HEADER_SIZE <= header.size < size:
        raise RefusedBatch(errors.INVALID_RECORD, "more than one record batch for a partition")
    if header.count > RECORDS_MAX:
        raise RefusedBatch(errors.MESSAGE_TOO_LARGE, f"a record batch of {header.count} records; at most {RECORDS_MAX}")
    if header.attributes & TRANSACTIONAL and header.producer_id < 0:
        raise RefusedBatch(errors.INVALID_RECORD, "a transactional batch without a producer")
    if header.attributes & CONTROL:
        raise RefusedBatch(errors.INVALID_RECORD, "producers cannot send control batches")
    if header.attributes & LOG_APPEND_TIME:
        raise RefusedBatch(errors.INVALID_TIMESTAMP, "producers cannot send LogAppendTime")
    if min(header.base_timestamp_ms, header.max_timestamp_ms) < _NO_TIME:
        raise RefusedBatch(errors.INVALID_TIMESTAMP, "a time before 1970")
    _check_time(header.max_timestamp_ms, now_ms)
    if header.attributes & COMPRESSION >= len(CODECS):
        raise RefusedBatch(errors.UNSUPPORTED_COMPRESSION_TYPE, f"unknown codec {header.attributes & COMPRESSION}")
    if header.attributes & ~(COMPRESSION | TRANSACTIONAL):
        raise RefusedBatch(errors.INVALID_RECORD, f"unknown attributes {header.attributes:#x}")


def _check_time(time_ms: int, now_ms: int) -> None:
    if time_ms > now_ms + AHEAD_MS_MAX:
        raise RefusedBatch(errors.INVALID_TIMESTAMP, "a time more than an hour ahead of the broker's clock")


def _error_of(error: BadBatch) -> int:
    """Return the error code of a batch that the log refuses."""
    if isinstance(error, BatchTooLarge):
        return errors.MESSAGE_TOO_LARGE
    return errors.CORRUPT_MESSAGE if isinstance(error, DamagedBatch) else errors.INVALID_RECORD


def find_duplicate(last: Producer | None, header: BatchHeader) -> int:
    """Return the offset of the last record of a batch that is stored already, -1 if the batch must be appended.

    Args:
        last: the state of its producer, None if it is unknown.

    Raises: RefusedBatch, 45 or 47: the batch is not the next one of its producer.
    """
    if last is None:
        return -1
    epoch, first = header.producer_epoch, header.base_sequence
    if epoch < last.epoch:
        raise RefusedBatch(
            errors.INVALID_PRODUCER_EPOCH, f"epoch {epoch} is older than the producer's epoch {last.epoch}"
        )
    stored = last.find_batch(epoch, first, (first + header.count - 1) & SEQUENCE_MAX)
    if stored >= 0:
        return stored
    expected = (last.sequence + 1) & SEQUENCE_MAX if epoch == last.epoch else 0
    if first != expected:
        raise RefusedBatch(
            errors.OUT_OF_ORDER_SEQUENCE_NUMBER, f"sequence {first} of epoch {epoch}, expected {expected}"
        )
    return -1


def _handle_produce(call: Call) -> Steps[None]:
    PendingProduce(call, (yield from decode_steps(call.frame, call.header))).run()


APIS: Final = (Api(0, "Produce", 3, 11, FLEXIBLE, _handle_produce),)
