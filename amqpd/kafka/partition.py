"""The batches of one partition on their way to Kafka, in order.

The producer is the only writer of the partition, so it knows the offset of each batch before Kafka answers. A batch
is *waiting* until a request takes it. It is *in flight* until the request is answered or its connection ends. It
stays in `order` until Kafka has stored it and all earlier batches; then the high watermark passes it.

- Errors: after a temporary error, a lost connection or a change of the leader, the partition *drains*. It sends
  nothing until no batch is in flight. Then all batches without a good answer are sent again, oldest first, with the
  same bytes.
- Window: only the first WINDOW batches of `order` are sent. Kafka remembers that many batches of a producer,
  recognises copies of them and answers with their offset. A limit on the batches in flight is not enough. The
  oldest may be stored, get two error answers, and meanwhile be passed by five later batches.
- First batch: it is sent alone. A partition accepts any sequence from a producer that it does not know. If it
  refused the first batch for lack of replicas, it would store the second one in its place.
- Joining: while a batch is in flight, later batches of messages wait; then they are sent as one (`join`). A broker
  executes one request of a connection at a time, and a request has one batch per partition, so each batch costs a
  round trip. From FULL_SIZE bytes on they do not wait. A batch that was sent once never changes.
- Refusal: a batch that Kafka refuses (missing rights, a topic's limit) closes the partition. With `retry_ms` the
  partition is only *refused*: it sends all its batches again after each such pause, until Kafka accepts them.

Only batches of messages are joined. Their first record tells readers whether a batch has messages, is an epoch
fence, or keeps a producer known. Joining changes the offset deltas of the records. The joined batch has the first
batch's sequence and the last one's time: a batch's time is that of its end.

Compiled by mypyc.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64

from amqpd.storage.log.batch import BatchHeader, ClosedBatch, close_batch
from amqpd.storage.log.record import read_varint, record_stop, varint_size, write_varint

JOINED_SIZE_MAX: Final[i64] = 512 * 1024
"""Size limit of a joined batch: a redelivery reads the whole batch for one record."""

_SEQUENCE_MAX: Final[i64] = 0x7FFF_FFFF
_PRODUCER: Final[i64] = 43  # offset in the header of the producer id and epoch
_SEQUENCE: Final[i64] = 53


def can_join(before: ClosedBatch, batch: ClosedBatch) -> bool:
    """Return whether `batch` may be joined behind `before`.

    Both must be neighbours with messages of one producer and epoch, neither compressed nor in parts.
    """
    if not before.joins or not batch.joins:
        return False
    header = BatchHeader(before.header, 0)
    sequence: i64 = header.base_sequence + (before.last_offset - before.base_offset + 1)
    return (
        batch.base_offset == before.last_offset + 1
        and sequence <= _SEQUENCE_MAX
        and BatchHeader(batch.header, 0).base_sequence == sequence
        and batch.header[_PRODUCER:_SEQUENCE] == before.header[_PRODUCER:_SEQUENCE]
    )


def join(batches: list[ClosedBatch]) -> ClosedBatch:
    """Join batches. Each must satisfy `can_join` with the one before it.

    Cost: a copy of each record, and the CRC.
    Raises: BadRecord if a batch has no records.
    """
    first = batches[0]
    last = batches[len(batches) - 1]
    header = BatchHeader(first.header, 0)
    writer = BytesWriter()
    writer.write(first.records)
    body_size: i64 = first.body_size_bytes
    for index in range(1, len(batches)):
        batch = batches[index]
        body_size += batch.body_size_bytes
        _add(writer, batch.records, batch.base_offset - first.base_offset)
    records = writer.getvalue()
    one = close_batch(
        writer,
        records,
        first.base_offset,
        last.last_offset - first.base_offset + 1,
        header.epoch,
        0,
        last.timestamp_ms,
        body_size,
        header.producer_id,
        header.base_sequence,
        -1,
        [],
        header.producer_epoch,
    )
    one.joins = True
    return one


def _add(writer: BytesWriter, data: bytes, shift: i64) -> None:
    """Append records with their offset deltas raised by `shift`."""
    end: i64 = len(data)
    position: i64 = 0
    while position < end:
        start: i64 = 0
        stop: i64 = 0
        delta: i64 = 0
        time_end: i64 = 0
        rest: i64 = 0
        start, stop = record_stop(data, position, end)
        _, time_end = read_varint(data, start + 1)
        delta, rest = read_varint(data, time_end)
        delta += shift
        write_varint(writer, time_end - start + varint_size(delta) + stop - rest)
        while start < time_end:  # attributes and time, two bytes
            writer.append(data[start])
            start += 1
        write_varint(writer, delta)
        writer.write(data[rest:stop])
        position = stop


WINDOW: Final[i64] = 5
FULL_SIZE: Final[i64] = 256 * 1024
"""Bytes of waiting batches that are sent although other batches of the partition are in flight."""
_UNSENT: Final[i64] = -1
NO_LEADER: Final[i64] = -1
UNKNOWN: Final[i64] = -1
"""Next offset of a partition whose end is not known. The answer to its first batch tells it."""


@final
class QueuedBatch:
    """A batch that was offered and is not stored yet.

    Attributes:
        offered_ms: When it was offered, by the producer's clock.
        number: Its number among the sent batches of the partition.
        stored: Kafka has stored it, but not yet all earlier ones.
        sent: The bytes for Kafka: this batch, or this batch joined with those in `joined`.
        joined: Later batches of `Partition.order` that are part of `sent`; their `follows` is set.
    """

    def __init__(self, batch: ClosedBatch, offered_ms: i64) -> None:
        self.batch: ClosedBatch = batch
        self.number: i64 = _UNSENT
        self.offered_ms: i64 = offered_ms
        self.stored: bool = False
        self.sent: ClosedBatch = batch
        self.joined: list[QueuedBatch] = []
        self.follows: bool = False


@final
class Partition:
    """One partition of a topic and its batches. No other program writes to it.

    Attributes:
        next_offset: Offset of the next batch that is offered. UNKNOWN: the first batch is an epoch fence, and its
            answer tells the offset.
        high_watermark: All lower offsets are stored on all in-sync replicas.
        leader: Id of the broker that leads the partition, or NO_LEADER.
        closed: Kafka's error code if nothing more is sent, with its words in `text`; 0 if the partition is open.
        refused: Kafka's error code for the oldest batch while a retry is due, with its words in `text`.
        retry_ms: Pause before a refused batch is sent again; 0: a refusal closes the partition.
        listed: The partition is in its leader's list of partitions with something to send.
        shared: Other programs may write to the partition by mistake, which closes only this partition. Without it
            such a write ends the producer.
        call: Number of the last request that took a batch.
        unsafe_bytes: Bytes of all batches in `order`.
        waiting_bytes: Bytes of the batches in `waiting`.
        full_size: So many waiting bytes do not wait for the batches in flight.
        joined_size_max: Size limit of a joined batch in bytes.
    """

    def __init__(self, topic: bytes, number: i64, next_offset: i64) -> None:
        self.topic: bytes = topic
        self.number: i64 = number
        self.next_offset: i64 = next_offset
        self.high_watermark: i64 = next_offset
        self.leader: i64 = NO_LEADER
        self.closed: i64 = 0
        self.refused: i64 = 0
        self.retry_ms: i64 = 0
        self.text: str = ""
        self.listed: bool = False
        self.shared: bool = False
        self.draining: bool = False
        self.in_flight: i64 = 0
        self._window: i64 = 1
        self._count: i64 = 0
        self.call: i64 = 0
        self.unsafe_bytes: i64 = 0
        self.waiting_bytes: i64 = 0
        self.full_size: i64 = FULL_SIZE
        self.joined_size_max: i64 = JOINED_SIZE_MAX
        self.not_before_ms: i64 = 0
        self.order: deque[QueuedBatch] = deque()
        self.waiting: deque[QueuedBatch] = deque()

    def offer(self, batch: ClosedBatch, now_ms: i64) -> None:
        """Add the next batch. Raises ValueError if it does not follow the last one."""
        if self.next_offset == UNKNOWN:
            if self.order:
                raise ValueError("a batch follows an epoch fence whose offset is not known yet")
        elif batch.base_offset != self.next_offset:
            raise ValueError(f"a batch at offset {batch.base_offset}, expected {self.next_offset}")
        else:
            self.next_offset = batch.last_offset + 1
        self.unsafe_bytes += batch.size
        self.waiting_bytes += batch.size
        offered = QueuedBatch(batch, now_ms)
        self.order.append(offered)
        self.waiting.append(offered)

    def sendable(self, now_ms: i64) -> bool:
        """Return whether the next request to the leader may take a batch."""
        if self.draining or not self.waiting or self.closed != 0 or now_ms < self.not_before_ms:
            return False
        if self.in_flight > 0 and self.waiting_bytes < self.full_size and self.waiting[0].batch.joins:
            return False
        oldest: i64 = self.order[0].number
        number: i64 = self.waiting[0].number
        return oldest == _UNSENT or (number if number != _UNSENT else self._count) < oldest + self._window

    def next_size(self) -> i64:
        """Return the size of the batch that `take_batch` will return. From now on its content does not change."""
        offered = self.waiting[0]
        if offered.number == _UNSENT and not offered.joined and len(self.waiting) > 1:
            self._join(offered)
        return offered.sent.size

    def _join(self, offered: QueuedBatch) -> None:
        """Join the batches that wait behind the first one to it. None of them has been sent."""
        waiting = self.waiting
        waiting.popleft()
        size: i64 = offered.batch.size
        batches = [offered.batch]
        while waiting:
            batch = waiting[0].batch
            size += batch.size
            if size > self.joined_size_max or not can_join(batches[len(batches) - 1], batch):
                break
            follower = waiting.popleft()
            follower.follows = True
            offered.joined.append(follower)
            batches.append(batch)
        waiting.appendleft(offered)
        if offered.joined:
            offered.sent = join(batches)

    def take_batch(self, call: i64) -> QueuedBatch:
        """Take the next batch for the request with the number `call`."""
        self.next_size()
        self.in_flight += 1
        self.call = call
        offered = self.waiting.popleft()
        if offered.number == _UNSENT:
            offered.number = self._count
            self._count += 1
        self.waiting_bytes -= offered.batch.size
        for follower in offered.joined:
            self.waiting_bytes -= follower.batch.size
        return offered

    def drain(self, not_before_ms: i64) -> None:
        """Stop sending until no batch is in flight: a batch that was sent has no good answer."""
        if not_before_ms > self.not_before_ms:
            self.not_before_ms = not_before_ms
        self.draining = True

    def refuse(self, code: i64, text: str, now_ms: i64) -> None:
        """Note that Kafka refuses the oldest batch; it is sent again after `retry_ms`."""
        self.refused = code
        self.text = text
        self.drain(now_ms + self.retry_ms)

    def end_request(self) -> None:
        """Account for the end of a request that carried a batch, with or without an answer."""
        self.in_flight -= 1
        self.end_drain()

    def end_drain(self) -> None:
        """If nothing is in flight, make all batches without a good answer wait again."""
        if self.draining and self.in_flight == 0:
            self.draining = False
            self.waiting = deque([offered for offered in self.order if not offered.stored and not offered.follows])
            self.waiting_bytes = 0
            for offered in self.order:
                if not offered.stored:
                    self.waiting_bytes += offered.batch.size

    def oldest_unstored(self) -> QueuedBatch | None:
        """Return the first batch that is not known to be stored."""
        for offered in self.order:
            if not offered.stored:
                return offered
        return None

    def set_end(self, offered: QueuedBatch, base_offset: i64) -> None:
        """Set the offsets from the answer to the epoch fence: all lower offsets are of earlier owners."""
        self.order.popleft()
        self.unsafe_bytes -= offered.batch.size
        self._window = WINDOW
        self.next_offset = base_offset + 1 + offered.batch.last_offset - offered.batch.base_offset
        self.high_watermark = self.next_offset

    def mark_stored(self, offered: QueuedBatch) -> bool:
        """Mark a batch as stored. Return whether the high watermark has risen."""
        offered.stored = True
        for follower in offered.joined:
            follower.stored = True
        self._window = WINDOW
        self.refused = 0
        order = self.order
        before: i64 = self.high_watermark
        while order and order[0].stored:
            batch = order.popleft().batch
            self.high_watermark = batch.last_offset + 1
            self.unsafe_bytes -= batch.size
        return self.high_watermark > before

    def close(self, code: i64, text: str) -> None:
        """Send nothing more. The outcome of the batches in `order` stays unknown."""
        self.closed = code
        self.text = text
        self.waiting.clear()
        self.order.clear()
        self.unsafe_bytes = 0
        self.waiting_bytes = 0
