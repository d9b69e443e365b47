"""A record of ours in partitions: what is given out behind it holds nothing of another.

A slot's owner writes a barrier into a partition that is new, and a record of its epoch behind what a deleted queue has
left in one. Whoever asks gets those that have taken it; what Kafka refuses is closed, and costs the others nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from amqpd.kafka.producer import KafkaProducer, KafkaRefused
from amqpd.kafka.keyed_records import Keyed
from amqpd.kafka.partition import Partition
from amqpd.kafka.requests import ProducerId


class PartitionWriter(Protocol):
    """Who numbers what goes to the slot's partitions (`SlotLogs`). held: producer id and epoch."""

    held: ProducerId

    @property
    def producer(self) -> KafkaProducer: ...

    def write(self, partition: Partition, records: list[Keyed]) -> None:
        """One batch behind what was offered; `producer.flush` sends it."""

    def may_write(self, partition: Partition) -> bool:
        """False: batches of an epoch before are on the way, behind which the next one waits."""


class Marks:
    """Of one slot. key: the slot's transactional id, which its barriers and markers have."""

    def __init__(self, writer: PartitionWriter, key: str) -> None:
        self.producer = writer.producer
        self._writer = writer
        self._key = key

    async def fence(self, new: list[Partition]) -> None:
        """A barrier of ours is stored in these. Raises: KafkaRefused, one of them is closed, or all has ended."""
        held = self._writer.held
        await self.producer.fence(new, self._key, held)
        if held is not self._writer.held:
            # A later epoch has begun meanwhile, and knew nothing of them.
            await self.mark(new)

    async def stored(self, partitions: Iterable[Partition]) -> list[Partition]:
        """Those of them that take more, once all that was offered to them is in Kafka. Raises: KafkaRefused, all has
        ended.
        """
        while True:
            left = [each for each in partitions if not each.closed]
            try:
                await self.producer.stored(left)
            except KafkaRefused:
                if self.producer.ended or self.producer.closed:
                    raise
            else:
                return left

    async def mark(self, partitions: list[Partition]) -> list[Partition]:
        """A record of ours is stored behind all that is in them; returns those that have taken it. Raises:
        KafkaRefused, all has ended.
        """
        marked: list[Partition] = []
        for each in partitions:
            while not each.closed and not self._writer.may_write(each):
                await self.stored([each])
            if not each.closed:
                self._writer.write(each, [Keyed(self._key.encode(), None)])
                marked.append(each)
        self.producer.flush()
        return await self.stored(marked)
