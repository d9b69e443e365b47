"""In-memory partitions, and a producer that stores the offered batches when the test says so.

The producer has the interface of `KafkaProducer` that `SlotLogs` uses. Each owner has its own, as after a takeover:
`take_over` writes an epoch fence to each partition.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from librt.strings import BytesWriter

from amqpd.kafka.partition import UNKNOWN, Partition, QueuedBatch
from amqpd.kafka.producer import KafkaRefused
from amqpd.kafka.producer_state import epoch_fence
from amqpd.kafka.requests import ProducerId
from amqpd.storage.log.appender import with_base_offset
from amqpd.storage.log.batch import BatchHeader, ClosedBatch

NOW_MS = 1_700_000_000_000


class FakeKafka:
    """(topic, partition) -> its batches as bytes, each at its offset. epoch: the last one that was given out."""

    def __init__(self) -> None:
        self.stored: dict[tuple[str, int], list[bytes]] = {}
        self.epoch = -1
        self.fetched_bytes = 0
        self.before_read: Callable[[str, int, int], None] = _nothing

    def end(self, topic: str, number: int) -> int:
        batches = self.stored.setdefault((topic, number), [])
        return int(BatchHeader(batches[-1], 0).last_offset) + 1 if batches else 0

    def store(self, topic: str, number: int, batch: ClosedBatch) -> int:
        """Store a batch. Return its offset."""
        base = self.end(topic, number)
        placed = with_base_offset(BytesWriter(), batch, base, 7)
        self.stored[topic, number].append(b"".join([placed.header, placed.records, *placed.more]))
        return base

    async def read(self, topic: str, number: int, start: int, end: int) -> AsyncIterator[bytes]:
        for batch in list(self.stored.get((topic, number), [])):
            header = BatchHeader(batch, 0)
            if header.last_offset >= start and header.base_offset < end:
                self.before_read(topic, number, int(header.base_offset))
                self.fetched_bytes += len(batch)
                yield batch

    def compact(self, topic: str, number: int, keep: Callable[[list[bytes]], list[bytes]]) -> None:
        self.stored[topic, number] = keep(self.stored[topic, number])


class FakeProducer:
    """The writer of some partitions until another producer takes them over."""

    def __init__(self, kafka: FakeKafka) -> None:
        self.kafka = kafka
        self.partitions: list[Partition] = []
        self.on_moved: Callable[[Partition], None] = _nothing
        self.on_refused: Callable[[Partition], None] = _nothing
        self.on_fenced: Callable[[str], None] = _nothing
        kafka.epoch += 1
        self.held = ProducerId(0, 1000, kafka.epoch)
        self.at_once = False
        self.ended = ""

    def take_over(self, topic: str, number: int) -> Partition:
        """Take over a partition by an epoch fence."""
        partition = Partition(topic.encode(), number, UNKNOWN)
        self.partitions.append(partition)
        partition.offer(epoch_fence(b"slot", self.held.producer_id, self.held.epoch, NOW_MS), 0)
        self.store(partition)
        return partition

    def offer(self, partition: Partition, batches: Iterable[ClosedBatch]) -> None:
        for batch in batches:
            header = BatchHeader(batch.header, 0)
            assert (header.producer_id, header.producer_epoch) == (self.held.producer_id, self.held.epoch)
            if not partition.closed and not self.ended:
                partition.offer(batch, 0)

    def flush(self) -> None:
        if self.at_once:
            self.store_all()

    def store(self, partition: Partition, count: int = 1 << 30) -> None:
        """Store and answer the first `count` waiting batches."""
        while partition.order and count > 0:
            offered: QueuedBatch = partition.order[0]
            base = self.kafka.store(partition.topic.decode(), int(partition.number), offered.batch)
            if partition.next_offset == UNKNOWN:
                partition.set_end(offered, base)
            else:
                assert base == offered.batch.base_offset
                partition.mark_stored(offered)
            count -= 1
            self.on_moved(partition)

    def store_all(self) -> None:
        for partition in self.partitions:
            self.store(partition)

    def refuse_now(self, partition: Partition, code: int, text: str) -> None:
        """Refuse the partition's batches until they are stored."""
        partition.refuse(code, text, 0)
        self.on_refused(partition)

    def refuse(self, partition: Partition, code: int, text: str) -> None:
        partition.close(code, text)
        self.on_refused(partition)

    def fence(self, text: str) -> None:
        self.ended = text
        self.on_fenced(text)

    async def wait_stored(self, partitions: Iterable[Partition]) -> None:
        partitions_left = list(partitions)
        for each in partitions_left:
            if each.closed or self.ended:
                raise KafkaRefused(self.ended or each.text)
            self.store(each)


def _nothing(*_: Any) -> None:
    """A callback that does nothing."""
