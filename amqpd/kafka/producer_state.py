"""Batches to Kafka, in order and once each, without a socket: which go with which request, and what an answer means.

All of it is written under one producer id and epoch, which stand in the batches' headers. Whoever drives it has a
connection to each broker that leads one of the partitions:

    offer(partition, batch)          a log's next batch
    take(leader, now)                the next request to that broker, None: nothing to send; IN_FLIGHT_MAX at a time
    answered(call, data, now)        its answer; `lost(call, now)`: its connection ended before one came
    leads(partition, broker, now)    who leads it now

and is told through a `Producer`: how far a partition is safe, that it takes nothing more, that a leader is to be looked
up, that all is over.

Invariants:

- A partition's batches are stored in the order in which they were offered, each once, whatever is lost or repeated on
  the way: what has no known outcome is sent again as it was, and Kafka knows the copy by its sequence.
- A batch is answered with the offset that it has here. Any other offset means that somebody else writes to the
  partition, or that Kafka has lost something: all ends (`fenced`), and nothing after it is believed.
- Nothing is safe before an answer says so, and all before it is.
- Behind the end nothing is sent, and answers that still come change nothing.

Compiled by mypyc. Times are milliseconds of one clock that never goes back.

The first record that a new owner writes to a partition: behind it nothing of the one before is stored.

Kafka learns of a new epoch in a partition by the first batch there that has it, and from then on refuses batches of
the one before. So the owner writes this one to each of its partitions, free ones too, before it serves anything; it
takes an offset, which the owner does not know beforehand and learns by it.

    key      the transactional id, so that compacted topics take it
    value    null
    header   `amqpd-barrier`: producer id and epoch, in figures, with a space between

It is no message: it has neither the header `exchange` nor `properties`.
"""

from __future__ import annotations

from collections import deque
from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64, mypyc_attr

from amqpd.kafka.partition import NO_LEADER, UNKNOWN, Partition, QueuedBatch
from amqpd.kafka.requests import ProduceAnswer, TopicBatches, decode_produce, encode_produce
from amqpd.kafka.wire import DUPLICATE, FENCED, LEADER, NONE, PARTITION, SEQUENCE, BadAnswer, code_of
from amqpd.storage.log.batch import ClosedBatch, close_batch
from amqpd.storage.log.record import varint

REQUEST_SIZE_BYTES_MAX: Final[i64] = 16 << 20
"""Of batches in a request; one that is larger goes alone. Kafka takes 100 MiB (`socket.request.max.bytes`)."""

IN_FLIGHT_MAX: Final[i64] = 2
"""Requests on the way to one broker: one that it is at, which it answers before it reads the next, and that one. What
else there is goes with the third, all together.
"""

FOREIGN: Final[i64] = -2
"""Why a partition is closed that somebody else has written to; no code of Kafka's."""

PAUSE_MS: Final[i64] = 100
"""Before what had no good answer is sent again."""


@mypyc_attr(allow_interpreted_subclasses=True)
class PartitionProducer:
    """Who is told. Called in the middle of `answered`, `lost` and `take`: it may offer, and calls nothing else here."""

    def moved(self, partition: Partition) -> None:
        """The partition's high watermark has risen."""
        raise NotImplementedError

    def refused(self, partition: Partition) -> None:
        """The partition takes nothing more, or nothing now: `closed` or `refused`, and `text`, say why. What was above
        its high watermark may be in Kafka or not. `moved` says that a partition that was refused takes more.
        """
        raise NotImplementedError

    def leader_wanted(self, partition: Partition) -> None:
        """Nothing is sent to it before `leads` is called, if only with the same broker."""
        raise NotImplementedError

    def fenced(self, text: str) -> None:
        """All is over; once. What is above the high watermarks may be in Kafka or not."""
        raise NotImplementedError


@final
class ProduceCall:
    """One request: `encode` has its bytes. partitions, offered: what it carries, side by side, each partition once."""

    def __init__(self) -> None:
        self.partitions: list[Partition] = []
        self.offered: list[QueuedBatch] = []

    def encode(self, scratch: BytesWriter, correlation_id: i64, client_id: bytes, timeout_ms: i64) -> list[bytes]:
        """See `encode_produce`."""
        topics: list[TopicBatches] = []
        found: dict[bytes, TopicBatches] = {}
        for index, partition in enumerate(self.partitions):
            batches = found.get(partition.topic)
            if batches is None:
                batches = found[partition.topic] = TopicBatches(partition.topic)
                topics.append(batches)
            batches.add(partition.number, self.offered[index].sent)
        return encode_produce(scratch, correlation_id, client_id, timeout_ms, topics)


@final
class ProducerState:
    """The batches of one producer id and epoch. over: fenced, nothing is sent any more."""

    def __init__(self, told: PartitionProducer, request_size_bytes_max: i64 = REQUEST_SIZE_BYTES_MAX) -> None:
        self._told: PartitionProducer = told
        self._request_size_bytes_max: i64 = request_size_bytes_max
        self._ready: dict[int, deque[Partition]] = {}
        self._paused: list[Partition] = []
        self._calls: i64 = 0
        self.over: bool = False

    # -- what there is to send

    def offer(self, partition: Partition, batch: ClosedBatch, now_ms: i64) -> None:
        """The partition's next batch. Nothing where it takes nothing more. Raises: ValueError, see `Partition`."""
        if self.over or partition.closed != 0:
            return
        partition.offer(batch, now_ms)
        self._list(partition)

    def leads(self, partition: Partition, broker: i64, now_ms: i64) -> None:
        """That broker leads it; NO_LEADER: none does, which another look may find."""
        if partition.leader == broker:
            self._list(partition)
            return
        if partition.in_flight > 0:
            partition.drain(now_ms)
        partition.leader = broker
        partition.listed = False  # what stands in the list of the one before is passed over there
        self._list(partition)

    def _list(self, partition: Partition) -> None:
        if partition.listed or not partition.waiting or partition.leader == NO_LEADER:
            return
        partition.listed = True
        ready = self._ready.get(partition.leader)
        if ready is None:
            ready = self._ready[partition.leader] = deque()
        ready.append(partition)

    def leaders(self) -> list[int]:
        """The brokers for which there is something, or may be."""
        return [leader for leader, ready in self._ready.items() if ready]

    def paused_until(self, now_ms: i64) -> i64:
        """When the first partition that pauses goes on; -1: none does. Those whose pause is over are listed."""
        first: i64 = -1
        if not self._paused:
            return first
        left: list[Partition] = []
        for partition in self._paused:
            if partition.not_before_ms <= now_ms:
                self._list(partition)
            else:
                left.append(partition)
                if first < 0 or partition.not_before_ms < first:
                    first = partition.not_before_ms
        self._paused = left
        return first

    def take(self, leader: i64, now_ms: i64) -> ProduceCall | None:
        """The next request to that broker: the next batch of each partition that has one, the one that waited longest
        first, as many as fit. None: there is nothing. Cost: some 0.5 us a partition.
        """
        ready = self._ready.get(leader)
        if ready is None or self.over:
            return None
        self._calls += 1
        number: i64 = self._calls
        call: ProduceCall | None = None
        size: i64 = 0
        left: i64 = len(ready)
        while left > 0:
            left -= 1
            partition = ready.popleft()
            if partition.leader != leader or partition.call == number:
                continue  # it has come here twice, by way of another leader
            if not partition.sendable(now_ms):
                partition.listed = False
                continue
            batch_size: i64 = partition.next_size()
            if call is not None and size + batch_size > self._request_size_bytes_max:
                ready.appendleft(partition)
                break
            size += batch_size
            if call is None:
                call = ProduceCall()
            call.partitions.append(partition)
            call.offered.append(partition.take(number))
            if partition.sendable(now_ms):
                ready.append(partition)
            else:
                partition.listed = False
        return call

    # -- what came of it

    def lost(self, call: ProduceCall, now_ms: i64) -> None:
        """No answer will come: what the request carried may be in Kafka or not."""
        for partition in call.partitions:
            self._again(partition, now_ms)
            self._came_back(partition)

    def answered(self, call: ProduceCall, data: bytes, now_ms: i64) -> None:
        """The answer to it. Raises: BadAnswer where it is none; the call then counts as lost."""
        try:
            answers = decode_produce(data)
            found = _in_order(call, answers)
        except BadAnswer:
            self.lost(call, now_ms)
            raise
        for index, partition in enumerate(call.partitions):
            if not self.over and partition.closed == 0:
                self._judge(partition, call.offered[index], found[index], now_ms)
            self._came_back(partition)

    def _judge(self, partition: Partition, offered: QueuedBatch, answer: ProduceAnswer, now_ms: i64) -> None:
        code: i64 = answer.code
        if code == 0 or code == DUPLICATE:
            expected: i64 = offered.batch.base_offset
            if partition.next_offset == UNKNOWN and answer.base_offset >= 0:
                partition.learn(offered, answer.base_offset)
                self._told.moved(partition)
            elif answer.base_offset != expected and not (code == DUPLICATE and answer.base_offset < 0):
                text = f"a batch of offset {expected} is stored at {answer.base_offset}"
                if partition.shared:
                    partition.close(FOREIGN, f"{text}: somebody else writes to it")
                    self._told.refused(partition)
                else:
                    self._fence(partition, text)
            elif partition.stored(offered):
                self._told.moved(partition)
            return
        row = code_of(code)
        remedy = row.remedy
        if remedy == SEQUENCE:
            if partition.oldest_unstored() is offered and not partition.draining:
                at = offered.batch.base_offset
                self._fence(partition, f"{row.name} for the batch at {at}, and all before it is stored")
                return
            self._again(partition, now_ms)
        elif remedy == FENCED:
            self._fence(partition, f"{row.name} {answer.text}".rstrip())
        elif remedy == PARTITION:
            text = f"{row.name} {answer.text}".rstrip()
            first: bool = partition.refused == 0
            if partition.retry_ms > 0:
                partition.refuse(code, text, now_ms)
            else:
                partition.close(code, text)
            if first:
                self._told.refused(partition)
        elif remedy == LEADER:
            self._again(partition, now_ms)
            partition.leader = NO_LEADER
            partition.listed = False
            self._told.leader_wanted(partition)
        else:
            self._again(partition, now_ms)

    def _again(self, partition: Partition, now_ms: i64) -> None:
        if not self.over and partition.closed == 0:
            partition.drain(now_ms + PAUSE_MS)

    def _came_back(self, partition: Partition) -> None:
        drained: bool = partition.draining
        partition.came_back()
        if self.over or partition.closed != 0 or partition.draining:
            return
        if drained and partition.waiting:
            self._paused.append(partition)
        else:
            self._list(partition)

    def _fence(self, partition: Partition, text: str) -> None:
        name = partition.topic.decode("utf-8", "replace")
        self.end(f"{name} {partition.number}: {text}")

    def end(self, text: str) -> None:
        """Nothing more is sent, and no answer believed."""
        if not self.over:
            self.over = True
            self._ready.clear()
            self._paused.clear()
            self._told.fenced(text)


def _in_order(call: ProduceCall, answers: list[ProduceAnswer]) -> list[ProduceAnswer]:
    """One answer for each partition of the call, in its order. Raises: BadAnswer."""
    count: i64 = len(call.partitions)
    if len(answers) != count:
        raise BadAnswer(f"{len(answers)} partitions are answered, {count} were asked")
    fits: bool = True
    for index, answer in enumerate(answers):  # Kafka keeps the order, mostly
        partition = call.partitions[index]
        if answer.partition != partition.number or answer.topic != partition.topic:
            fits = False
            break
    if fits:
        return answers
    by_name: dict[tuple[bytes, int], ProduceAnswer] = {}
    for answer in answers:
        by_name[answer.topic, answer.partition] = answer
    found: list[ProduceAnswer] = []
    for partition in call.partitions:
        one = by_name.get((partition.topic, partition.number))
        if one is None:
            raise BadAnswer("a partition that was asked is not answered")
        found.append(one)
    return found


__all__ = ["NONE", "PartitionProducer", "ProduceCall", "ProducerState"]


HEADER: Final = b"amqpd-barrier"
_NULL: Final = varint(-1)


def epoch_fence(key: bytes, producer_id: i64, epoch: i64, timestamp_ms: i64, base_offset: i64) -> ClosedBatch:
    """The batch, of sequence 0. base_offset: 0 where it is not known. timestamp_ms: wall clock, milliseconds."""
    told = f"{producer_id} {epoch}".encode()
    record = b"".join(
        (
            b"\0\0\0",  # attributes, timestamp delta, offset delta
            varint(len(key)),
            key,
            _NULL,
            varint(1),
            varint(len(HEADER)),
            HEADER,
            varint(len(told)),
            told,
        )
    )
    records = varint(len(record)) + record
    return close_batch(BytesWriter(), records, base_offset, 1, 0, 0, timestamp_ms, 0, producer_id, 0, -1, [], epoch)
