"""A partition as the one who writes it sees it: what was offered to it, in order, and how far Kafka has it.

Its writer is the only one, so it knows each batch's offset beforehand. A batch is *waiting* until a request takes it,
*in flight* until that request is answered or its connection ends, and *held* (still in `order`) until it and all before
it are in Kafka; then the high watermark passes it.

Something odd (an error that passes, a broken connection, another leader) makes the partition *drain*: nothing more is
sent until nothing of it is in flight; then all that has no good answer goes again, the same bytes, oldest first.

Only the first WINDOW batches of those held are sent, which is as many as Kafka remembers of a producer: so it knows a
copy as one, and answers with the offset that the first has. It would not be enough to have no more than five in flight:
the oldest, stored, but answered by an error, and by one again when it is repeated, could meanwhile be passed by others.

While one is in flight messages behind it wait, and then go as one (`join`), for the broker would not look at them
before: so a thousand messages a second, a turn's batch each, are no thousand round trips. FULL_SIZE of them does not
wait. What was sent once stays as it was.

A batch that Kafka refuses (a right that was taken away, a topic's limit) closes the partition. Where `retry_ms` is
given it is only *refused*: all that is held is sent again after each such pause, until Kafka takes it.

The first batch goes alone. From a producer that it does not know a partition takes any sequence: if the first one were
refused for want of replicas, the second would be stored in its place.

Several batches of one partition as one, where they waited for each other: a broker carries out one request of a
connection after the other, and a request has one batch for a partition, so a batch costs a round trip however small.

Only messages are joined: who reads a batch sees by its first record whether it has messages, or is a barrier, or what
keeps a producer known. The records stay as they are but for their places in the batch; the numbers of their producer
go on from one batch to the next, so the first one's is that of all. The time is the last one's: a batch's time is that
of its end.

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
"""Bytes of what is joined: who reads a record of it again reads the batch."""

_SEQUENCE_MAX: Final[i64] = 0x7FFF_FFFF
_PRODUCER: Final[i64] = 43  # producer id and epoch, in the header
_SEQUENCE: Final[i64] = 53


def goes_on(before: ClosedBatch, batch: ClosedBatch) -> bool:
    """Whether the two may be one: messages of one producer and epoch, neighbours, neither compressed nor in parts."""
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
    """One batch of them all, each of which `goes_on` from the one before. Cost: a copy of each record, and the CRC.
    Raises: BadRecord where one has no records.
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
    """Records, whose offset deltas rise by `shift`."""
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
"""So many bytes of a partition go though others of it are on the way."""
_UNSENT: Final[i64] = -1
NO_LEADER: Final[i64] = -1
UNKNOWN: Final[i64] = -1
"""The next offset of a partition whose first batch will tell where it ends."""


@final
class QueuedBatch:
    """A batch on its way. offered_ms: since when, by the clock of whoever drives this. sent: what goes to Kafka, itself
    or itself and those in `joined`, which stand behind it in `Partition.order`, `follows` set.
    """

    def __init__(self, batch: ClosedBatch, offered_ms: i64) -> None:
        self.batch: ClosedBatch = batch
        self.number: i64 = _UNSENT  # among those of its partition that were sent
        self.offered_ms: i64 = offered_ms
        self.stored: bool = False  # it was answered well; what is before it was not yet
        self.sent: ClosedBatch = batch
        self.joined: list[QueuedBatch] = []
        self.follows: bool = False


@final
class Partition:
    """One partition of a topic, which nobody else writes to. next_offset: of the next batch that is offered; UNKNOWN:
    the first one is a barrier, and the answer to it tells.

    high_watermark: below it everything is in Kafka, on all in-sync replicas. leader: the broker that leads it. closed:
    Kafka's code why nothing more is sent, and in `text` its words; 0: it is open. listed: it stands in its leader's
    list of those that have something to send. call: the number of the last request that took a batch of it.
    unsafe_bytes: of what is held; waiting_bytes: of what is waiting. full_size: so many of these do not wait for what
    is in flight. retry_ms: pause before a refused batch is sent again; 0: it closes the partition. refused: Kafka's
    code for the oldest batch while such a try is due, with its words in `text`. joined_size_max: of what goes as one.
    shared: others may write to it by mistake, which closes it, and it alone; elsewhere it is the end of all.
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
        """The next batch. Raises: ValueError when it does not follow the last one."""
        if self.next_offset == UNKNOWN:
            if self.order:
                raise ValueError("a batch behind a barrier that has no offset yet")
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
        """Whether a batch may go with the next request to its leader."""
        if self.draining or not self.waiting or self.closed != 0 or now_ms < self.not_before_ms:
            return False
        if self.in_flight > 0 and self.waiting_bytes < self.full_size and self.waiting[0].batch.joins:
            return False
        oldest: i64 = self.order[0].number
        number: i64 = self.waiting[0].number
        return oldest == _UNSENT or (number if number != _UNSENT else self._count) < oldest + self._window

    def next_size(self) -> i64:
        """Bytes of the batch that `take` gives: from here on it is what it is."""
        offered = self.waiting[0]
        if offered.number == _UNSENT and not offered.joined and len(self.waiting) > 1:
            self._join(offered)
        return offered.sent.size

    def _join(self, offered: QueuedBatch) -> None:
        """Those that wait behind the first go with it, as far as they may. None of them was ever sent."""
        waiting = self.waiting
        waiting.popleft()
        size: i64 = offered.batch.size
        batches = [offered.batch]
        while waiting:
            batch = waiting[0].batch
            size += batch.size
            if size > self.joined_size_max or not goes_on(batches[len(batches) - 1], batch):
                break
            follower = waiting.popleft()
            follower.follows = True
            offered.joined.append(follower)
            batches.append(batch)
        waiting.appendleft(offered)
        if offered.joined:
            offered.sent = join(batches)

    def take(self, call: i64) -> QueuedBatch:
        """The next batch goes out, with the request of that number."""
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
        """Something that was sent has no good answer."""
        if not_before_ms > self.not_before_ms:
            self.not_before_ms = not_before_ms
        self.draining = True

    def refuse(self, code: i64, text: str, now_ms: i64) -> None:
        """Kafka does not take the oldest batch now: it is sent again after `retry_ms`."""
        self.refused = code
        self.text = text
        self.drain(now_ms + self.retry_ms)

    def came_back(self) -> None:
        """A request that carried a batch of it is answered, or never will be. The last one ends the draining."""
        self.in_flight -= 1
        self.end_drain()

    def end_drain(self) -> None:
        """Where nothing is in flight, all that has no good answer is waiting again."""
        if self.draining and self.in_flight == 0:
            self.draining = False
            self.waiting = deque([offered for offered in self.order if not offered.stored and not offered.follows])
            self.waiting_bytes = 0
            for offered in self.order:
                if not offered.stored:
                    self.waiting_bytes += offered.batch.size

    def oldest_unstored(self) -> QueuedBatch | None:
        """The first batch that is not known to be in Kafka."""
        for offered in self.order:
            if not offered.stored:
                return offered
        return None

    def learn(self, offered: QueuedBatch, base_offset: i64) -> None:
        """The barrier is stored there: all below is of those who wrote before."""
        self.order.popleft()
        self.unsafe_bytes -= offered.batch.size
        self._window = WINDOW
        self.next_offset = base_offset + 1 + offered.batch.last_offset - offered.batch.base_offset
        self.high_watermark = self.next_offset

    def stored(self, offered: QueuedBatch) -> bool:
        """That batch is in Kafka. Returns whether the high watermark has risen."""
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
        """Nothing more is sent, and what is held never will be known to be in Kafka."""
        self.closed = code
        self.text = text
        self.waiting.clear()
        self.order.clear()
        self.unsafe_bytes = 0
        self.waiting_bytes = 0
