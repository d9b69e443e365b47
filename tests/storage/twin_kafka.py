"""An in-memory Kafka, as far as a producer of prepared batches sees it.

Partitions check epochs and sequences, leaders change, responses fail or never arrive. The rules are those of Kafka's
ProducerAppendInfo and ProducerStateEntry: five batches of a producer are remembered, a duplicate of one of them is
answered with its offset, and a batch that leaves a gap is refused.

The module also simulates the network: requests and responses wait here until a test lets them proceed. Requests of a
cut connection may still be executed later.
"""

from __future__ import annotations

import random
import warnings
from collections import deque
from dataclasses import dataclass, field

from librt.strings import BytesWriter

from amqpd.kafka.partition import Partition
from amqpd.kafka.producer_state import ProduceCall, ProducerState
from amqpd.storage.log.batch import BatchHeader, ClosedBatch, close_batch, crc_fits
from amqpd.storage.log.record import read_offset_delta, read_varint, record_stop, varint

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses importlib.resources.read_text
    from kafka.protocol.producer import ProduceRequest, ProduceResponse

REMEMBERED = 5
TOO_LARGE = 10
"""Refused now and accepted later, for instance while a topic's size limit is lower or a permission is missing."""
OUT_OF_ORDER, STALE_EPOCH, NOT_LEADER, TIMED_OUT, NOT_ENOUGH, NOT_ENOUGH_AFTER = 45, 47, 6, 7, 19, 20
VERSION = 9


def record(delta: int, value: bytes) -> bytes:
    """A record without key and headers."""
    content = b"\0\0" + varint(delta) + varint(-1) + varint(len(value)) + value + b"\0"
    return varint(len(content)) + content


def values_of(data: bytes) -> list[int]:
    """Return the values of a batch's records. Check its checksum, record positions and counts."""
    header = BatchHeader(data, 0)
    assert (header.size, crc_fits(data, 0, header)) == (len(data), True)
    position, found = 61, []
    while position < header.size:
        start, stop = record_stop(data, position, header.size)
        delta, at = read_offset_delta(data, start)
        assert delta == len(found)
        _, at = read_varint(data, at)
        _, at = read_varint(data, at)
        found.append(int.from_bytes(data[at : at + 8], "big"))
        position = stop
    assert len(found) == header.count == header.last_offset - header.base_offset + 1
    return found


def batch_at(
    offset: int, count: int, producer_id: int = 9, epoch: int = 0, sequence: int | None = None, size: int = 0
) -> ClosedBatch:
    """A batch whose records hold their own offset and `size` more bytes."""
    records = b"".join(record(each, (offset + each).to_bytes(8, "big") + bytes(size)) for each in range(count))
    first = offset if sequence is None else sequence
    batch = close_batch(BytesWriter(), records, offset, count, 0, 0, 1, 0, producer_id, first, -1, [], epoch)
    batch.joins = True
    return batch


@dataclass
class TwinPartition:
    """The log of one partition's leader. stored: the offset that each record should have."""

    leader: int = 1
    epoch: int = -1
    stored: list[int] = field(default_factory=list)
    last_sequence: int = -1
    remembered: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def append(self, data: bytes) -> tuple[int, int]:
        """Append a batch. Return (code, base offset)."""
        epoch = int.from_bytes(data[51:53], "big")
        sequence = int.from_bytes(data[53:57], "big")
        count = int.from_bytes(data[57:61], "big")
        if epoch < self.epoch:
            return STALE_EPOCH, -1
        if epoch > self.epoch:
            if self.epoch >= 0 and sequence != 0:
                return OUT_OF_ORDER, -1
            self.epoch, self.last_sequence = epoch, sequence - 1
            self.remembered.clear()
        for first, number, offset in self.remembered:
            if (first, number) == (sequence, count):
                return 0, offset
        if sequence != self.last_sequence + 1:
            return OUT_OF_ORDER, -1
        base = len(self.stored)
        self.stored += values_of(data)
        self.last_sequence = sequence + count - 1
        self.remembered.append((sequence, count, base))
        return 0, base


@dataclass
class SentRequest:
    """A request in flight. answer: the broker's response. is_cut: its connection was cut."""

    leader: int
    call: ProduceCall
    data: bytes
    answer: bytes | None = None
    is_cut: bool = False


class Run:
    """A producer, the Kafka twin and the network between them, driven by a random number generator."""

    def __init__(self, seed: int, partitions: int = 3, brokers: int = 2) -> None:
        self.random = random.Random(seed)
        self.now = 0
        self.brokers = list(range(1, brokers + 1))
        self.twins = [TwinPartition() for _ in range(partitions)]
        self.producing = ProducerState(self, 2000)
        self.partitions = [Partition(b"orders", number, 0) for number in range(partitions)]
        self.wanted: set[Partition] = set(self.partitions)
        self.sent: list[SentRequest] = []
        self.late_requests: list[SentRequest] = []
        self.fence_errors: list[str] = []
        self.closed: list[Partition] = []
        self.high_watermarks: dict[int, int] = dict.fromkeys(range(partitions), 0)
        self.answered = 0
        self.resent = 0
        self.joined = 0
        self.refusals = 0
        self.more_faults: tuple[int, ...] = ()
        self._seen: set[tuple[int, int]] = set()
        self._bytes: dict[tuple[int, int], bytes] = {}

    # -- callbacks of `ProducerState`

    def moved(self, partition: Partition) -> None:
        twin = self.twins[partition.number]
        assert partition.high_watermark > self.high_watermarks[partition.number]
        self.high_watermarks[partition.number] = partition.high_watermark
        assert twin.stored[: partition.high_watermark] == list(range(partition.high_watermark))

    def refused(self, partition: Partition) -> None:
        if partition.closed:
            self.closed.append(partition)
        else:
            assert partition.refused == TOO_LARGE
            self.refusals += 1

    def leader_wanted(self, partition: Partition) -> None:
        self.wanted.add(partition)

    def fenced(self, text: str) -> None:
        self.fence_errors.append(text)

    # -- the network

    def look_up(self) -> None:
        for partition in sorted(self.wanted, key=lambda each: each.number):
            self.producing.set_leader(partition, self.twins[partition.number].leader, self.now)
        self.wanted.clear()

    def send(self) -> None:
        self.producing.paused_until(self.now)
        for leader in self.producing.leaders():
            while sum(each.leader == leader for each in self.sent) < 5:
                call = self.producing.take_request(leader, self.now)
                if call is None:
                    break
                assert len({each.number for each in call.partitions}) == len(call.partitions)
                for partition, offered in zip(call.partitions, call.offered, strict=True):
                    assert partition.in_flight <= 5
                    key = (partition.number, offered.batch.base_offset)
                    self.resent += key in self._seen
                    self._seen.add(key)
                    self.joined += len(offered.joined) > 0
                    assert self._bytes.setdefault(key, offered.sent.records) == offered.sent.records, "sent as another"
                data = b"".join(call.encode(BytesWriter(), 1, b"", 1000))
                self.sent.append(SentRequest(leader, call, data))

    def carry_out(self, sent: SentRequest, fault: int = 0) -> None:
        """The broker executes the request. fault: a code that it answers instead, before or after the append."""
        kinds = ProduceResponse.TopicProduceResponse
        of_one = kinds.PartitionProduceResponse
        topics = []
        for topic in ProduceRequest.decode(sent.data, version=VERSION, header=True, framed=True).topic_data:
            rows = []
            for each in topic.partition_data:
                twin = self.twins[each.index]
                code, offset = NOT_LEADER, -1
                if twin.leader == sent.leader and fault not in {NOT_ENOUGH, TOO_LARGE}:
                    code, offset = twin.append(bytes(each.records))
                elif twin.leader == sent.leader:
                    code = fault
                if code == 0 and fault in {TIMED_OUT, NOT_ENOUGH_AFTER}:
                    code, offset = fault, -1
                rows.append(of_one(index=each.index, error_code=code, base_offset=offset, log_append_time_ms=-1))
            self.random.shuffle(rows)
            topics.append(kinds(name=topic.name, partition_responses=rows))
        message = ProduceResponse(responses=topics, throttle_time_ms=0)
        message.API_VERSION = VERSION
        message.with_header(correlation_id=1)
        sent.answer = bytes(message.encode(header=True))

    def answer(self, leader: int) -> None:
        """The oldest response of that broker arrives."""
        sent = next(each for each in self.sent if each.leader == leader)
        assert sent.answer is not None
        self.sent.remove(sent)
        self.answered += 1
        self.producing.on_answer(sent.call, sent.answer, self.now)

    def cut(self, leader: int) -> None:
        """Cut the connection to that broker. Requests not executed by then may be executed later."""
        cut_requests = [each for each in self.sent if each.leader == leader]
        self.sent = [each for each in self.sent if each.leader != leader]
        self.late_requests += [each for each in cut_requests if each.answer is None]
        for each in cut_requests:
            self.producing.on_no_answer(each.call, self.now)

    def oldest_open(self, leader: int) -> SentRequest | None:
        """The oldest request that the broker has not executed; it executes them in order."""
        return next((each for each in self.sent if each.leader == leader and each.answer is None), None)

    # -- random steps

    def step(self, faults: bool) -> None:
        self.now += self.random.randrange(60)
        leader = self.random.choice(self.brokers)
        dice = self.random.random()
        if dice < 0.3:
            partition = self.random.choice(self.partitions)
            count = self.random.randrange(1, 5)
            self.producing.offer(partition, batch_at(partition.next_offset, count), self.now)
        elif dice < 0.5:
            self.send()
        elif dice < 0.7:
            sent = self.oldest_open(leader)
            if sent is not None:
                fault = self.random.choice((0, 0, TIMED_OUT, NOT_ENOUGH, NOT_ENOUGH_AFTER, *self.more_faults))
                fault = fault if faults else 0
                self.carry_out(sent, fault)
        elif dice < 0.9:
            oldest = next((each for each in self.sent if each.leader == leader), None)
            if oldest is not None and oldest.answer is not None:
                self.answer(leader)
        elif dice < 0.94:
            self.look_up()
        elif faults and dice < 0.96:
            self.random.choice(self.twins).leader = self.random.choice(self.brokers)
        elif faults and dice < 0.98:
            self.cut(leader)
        elif faults and self.late_requests:
            self.carry_out(self.late_requests.pop(0))

    def run_to_end(self) -> None:
        """Run without further faults until all batches are stored."""
        for _ in range(2000):
            self.now += 50
            self.look_up()
            self.send()
            for leader in self.brokers:
                while (sent := self.oldest_open(leader)) is not None:
                    self.carry_out(sent)
                while any(each.leader == leader for each in self.sent):
                    self.answer(leader)
            if self.late_requests:
                self.carry_out(self.late_requests.pop(0))
            if not self.sent and not self.late_requests and not any(each.order for each in self.partitions):
                return
        raise AssertionError("the run does not end")
