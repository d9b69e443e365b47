"""Batches to Kafka, in order and once each, without sockets. Also the epoch fence, a new owner's first record.

`ProducerState` decides which batches each request carries and what an answer means. All batches have one producer
id and epoch in their headers. Its driver has a connection to each broker that leads one of the partitions, and
calls:

    offer(partition, batch)              the next batch of a log
    take_request(leader, now)            the next request to that broker, or None; IN_FLIGHT_MAX at a time
    on_answer(call, data, now)           the answer to a request
    on_no_answer(call, now)              the connection ended before the answer
    set_leader(partition, broker, now)   the leader of a partition

It calls the driver (`KafkaProducer.moved`, `refused`, `leader_wanted`, `fenced`) during `on_answer`,
`on_no_answer` and `take_request`; these may call `offer` and no other method.

Invariants:

- A partition's batches are stored once each and in the order of `offer`, even if requests are lost or repeated. A
  batch with an unknown outcome is sent again unchanged; Kafka recognises the copy by its sequence.
- Kafka answers a batch with the offset that it has here. Another offset means that another program writes to the
  partition, or that Kafka has lost data. Then all ends (`fenced`), and no later answer is believed.
- A batch is safe only after the answers for it and for all earlier batches.
- After the end nothing is sent, and answers change nothing.

The epoch fence: in each partition, Kafka learns a new epoch from the first batch with it, and then refuses batches
of earlier epochs. So a new owner writes a fence to all its partitions, also to unused ones, before it serves
clients. The fence takes an offset. The owner learns the end of the partition from the answer.

    key      the transactional id: compacted topics require a key
    value    null
    header   `amqpd-barrier`: producer id and epoch in decimal, separated by a space

The fence is no message: it has neither the header `exchange` nor `properties`.

Compiled by mypyc. Times are milliseconds of one clock that never goes back.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64

from amqpd.kafka.partition import NO_LEADER, UNKNOWN, Partition, QueuedBatch
from amqpd.kafka.requests import ProduceAnswer, TopicBatches, decode_produce, encode_produce
from amqpd.kafka.wire import DUPLICATE, FENCED, LEADER, PARTITION, SEQUENCE, BadAnswer, code_of
from amqpd.storage.log.batch import ClosedBatch, close_batch
from amqpd.storage.log.record import varint

if TYPE_CHECKING:
    from amqpd.kafka.producer import KafkaProducer

REQUEST_SIZE_BYTES_MAX: Final[i64] = 16 << 20
"""Largest size of the batches in a request; a larger batch is sent alone. Kafka accepts 100 MiB
(`socket.request.max.bytes`).
"""

IN_FLIGHT_MAX: Final[i64] = 2
"""Requests in flight to one broker: a broker answers one before it reads the next. All batches that wait meanwhile
are sent together in the third.
"""

FOREIGN: Final[i64] = -2
"""`Partition.closed` when another program has written to the partition; not a code of Kafka."""

PAUSE_MS: Final[i64] = 100
"""Pause before batches without a good answer are sent again."""


@final
class ProduceCall:
    """One Produce request. `partitions` and `offered` are parallel lists; each partition occurs once."""

    def __init__(self) -> None:
        self.partitions: list[Partition] = []
        self.offered: list[QueuedBatch] = []

    def encode(self, scratch: BytesWriter, correlation_id: i64, client_id: bytes, timeout_ms: i64) -> list[bytes]:
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
    """The batches of one producer id and epoch.

    Attributes:
        is_ended: Nothing is sent any more, because Kafka refused the epoch or the driver ended the producer.
    """

    def __init__(self, events: KafkaProducer, request_size_bytes_max: i64 = REQUEST_SIZE_BYTES_MAX) -> None:
        self._events: KafkaProducer = events
        self._request_size_bytes_max: i64 = request_size_bytes_max
        self._ready: dict[int, deque[Partition]] = {}
        self._paused: list[Partition] = []
        self._calls: i64 = 0
        self.is_ended: bool = False

    # -- batches and requests

    def offer(self, partition: Partition, batch: ClosedBatch, now_ms: i64) -> None:
        """Add the partition's next batch; do nothing if it takes no more batches. Raises ValueError, see
        `Partition.offer`.
        """
        if self.is_ended or partition.closed != 0:
            return
        partition.offer(batch, now_ms)
        self._make_ready(partition)

    def set_leader(self, partition: Partition, broker: i64, now_ms: i64) -> None:
        """Set the leader of a partition. NO_LEADER: there is none at the moment."""
        if partition.leader == broker:
            self._make_ready(partition)
            return
        if partition.in_flight > 0:
            partition.drain(now_ms)
        partition.leader = broker
        partition.listed = False  # `take_request` skips the entry in the old leader's list
        self._make_ready(partition)

    def _make_ready(self, partition: Partition) -> None:
        if partition.listed or not partition.waiting or partition.leader == NO_LEADER:
            return
        partition.listed = True
        ready = self._ready.get(partition.leader)
        if ready is None:
            ready = self._ready[partition.leader] = deque()
        ready.append(partition)

    def leaders(self) -> list[int]:
        """Return the brokers that may have something to be sent."""
        return [leader for leader, ready in self._ready.items() if ready]

    def paused_until(self, now_ms: i64) -> i64:
        """Return when the first pause of a partition ends, or -1. Partitions whose pause is over become ready."""
        first: i64 = -1
        if not self._paused:
            return first
        left: list[Partition] = []
        for partition in self._paused:
            if partition.not_before_ms <= now_ms:
                self._make_ready(partition)
            else:
                left.append(partition)
                if first < 0 or partition.not_before_ms < first:
                    first = partition.not_before_ms
        self._paused = left
        return first

    def take_request(self, leader: i64, now_ms: i64) -> ProduceCall | None:
        """Return the next request to that broker, or None if there is nothing to send.

        The request has the next batch of each ready partition, in the order in which they became ready, as many as
        fit.

        Cost: about 0.5 us per partition.
        """
        ready = self._ready.get(leader)
        if ready is None or self.is_ended:
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
                continue  # it was listed twice, through a change of leaders
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
            call.offered.append(partition.take_batch(number))
            if partition.sendable(now_ms):
                ready.append(partition)
            else:
                partition.listed = False
        return call

    # -- answers

    def on_no_answer(self, call: ProduceCall, now_ms: i64) -> None:
        """Account for a request without an answer: its batches may be stored or not."""
        for partition in call.partitions:
            self._send_again(partition, now_ms)
            self._end_request(partition)

    def on_answer(self, call: ProduceCall, data: bytes, now_ms: i64) -> None:
        """Account for the answer to a request. Raises BadAnswer if it does not fit; the request then counts as lost."""
        try:
            answers = decode_produce(data)
            found = _answers_in_order(call, answers)
        except BadAnswer:
            self.on_no_answer(call, now_ms)
            raise
        for index, partition in enumerate(call.partitions):
            if not self.is_ended and partition.closed == 0:
                self._apply_answer(partition, call.offered[index], found[index], now_ms)
            self._end_request(partition)

    def _apply_answer(self, partition: Partition, offered: QueuedBatch, answer: ProduceAnswer, now_ms: i64) -> None:
        code: i64 = answer.code
        if code == 0 or code == DUPLICATE:
            expected: i64 = offered.batch.base_offset
            if partition.next_offset == UNKNOWN and answer.base_offset >= 0:
                partition.set_end(offered, answer.base_offset)
                self._events.moved(partition)
            elif answer.base_offset != expected and not (code == DUPLICATE and answer.base_offset < 0):
                text = f"a batch of offset {expected} is stored at {answer.base_offset}"
                if partition.shared:
                    partition.close(FOREIGN, f"{text}: another program writes to the partition")
                    self._events.refused(partition)
                else:
                    self._fence(partition, text)
            elif partition.mark_stored(offered):
                self._events.moved(partition)
            return
        row = code_of(code)
        remedy = row.remedy
        if remedy == SEQUENCE:
            if partition.oldest_unstored() is offered and not partition.draining:
                at = offered.batch.base_offset
                self._fence(partition, f"{row.name} for the batch at {at}, but all earlier batches are stored")
                return
            self._send_again(partition, now_ms)
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
                self._events.refused(partition)
        elif remedy == LEADER:
            self._send_again(partition, now_ms)
            partition.leader = NO_LEADER
            partition.listed = False
            self._events.leader_wanted(partition)
        else:
            self._send_again(partition, now_ms)

    def _send_again(self, partition: Partition, now_ms: i64) -> None:
        if not self.is_ended and partition.closed == 0:
            partition.drain(now_ms + PAUSE_MS)

    def _end_request(self, partition: Partition) -> None:
        drained: bool = partition.draining
        partition.end_request()
        if self.is_ended or partition.closed != 0 or partition.draining:
            return
        if drained and partition.waiting:
            self._paused.append(partition)
        else:
            self._make_ready(partition)

    def _fence(self, partition: Partition, text: str) -> None:
        name = partition.topic.decode("utf-8", "replace")
        self.end(f"{name} {partition.number}: {text}")

    def end(self, text: str) -> None:
        """End the producer: nothing more is sent, and answers are ignored."""
        if not self.is_ended:
            self.is_ended = True
            self._ready.clear()
            self._paused.clear()
            self._events.fenced(text)


def _answers_in_order(call: ProduceCall, answers: list[ProduceAnswer]) -> list[ProduceAnswer]:
    """Return the answers in the order of the request's partitions. Raises BadAnswer if one is missing."""
    count: i64 = len(call.partitions)
    if len(answers) != count:
        raise BadAnswer(f"{len(answers)} partitions are answered, {count} were requested")
    fits: bool = True
    for index, answer in enumerate(answers):  # Kafka usually keeps the order
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
            raise BadAnswer("a requested partition is not answered")
        found.append(one)
    return found


HEADER: Final = b"amqpd-barrier"
_NULL: Final = varint(-1)


def epoch_fence(key: bytes, producer_id: i64, epoch: i64, timestamp_ms: i64) -> ClosedBatch:
    """Return an epoch fence of sequence 0 and base offset 0. timestamp_ms: wall clock."""
    content = f"{producer_id} {epoch}".encode()
    record = b"".join(
        (
            b"\0\0\0",  # attributes, timestamp delta, offset delta
            varint(len(key)),
            key,
            _NULL,
            varint(1),
            varint(len(HEADER)),
            HEADER,
            varint(len(content)),
            content,
        )
    )
    records = varint(len(record)) + record
    return close_batch(BytesWriter(), records, 0, 1, 0, 0, timestamp_ms, 0, producer_id, 0, -1, [], epoch)
