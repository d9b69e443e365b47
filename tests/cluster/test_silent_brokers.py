"""A broker that hangs and keeps its connections open: work goes on as soon as another broker leads, not when an answer
is given up.
"""

from __future__ import annotations

import asyncio

import pytest
from fake_kafka import FETCH, METADATA, PRODUCE, FakeKafka
from kafka_logs import Producer

from amqpd.kafka import connection as connections
from amqpd.kafka import producer as producers
from amqpd.kafka.consumer import FollowedPartition, KafkaReader, TopicFollower
from amqpd.kafka.keyed_records import KeyedRecord, keyed_batch
from amqpd.kafka.partition import UNKNOWN, Partition
from amqpd.kafka.producer import fetch_any_metadata, init_producer_id, take_over
from amqpd.kafka.requests import ProducerId
from amqpd.storage.log.batch import BatchHeader, ClosedBatch

FIND_COORDINATOR = 10
GIVEN_S = 15
"""Far below the 30 s after which an answer is given up."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch, fake: FakeKafka) -> None:
    """An answer is late after a twentieth of a second."""
    monkeypatch.setattr(connections, "SILENT_S", 0.05)
    monkeypatch.setattr(connections, "SILENT_AGAIN_S", 0.05)
    monkeypatch.setattr(producers, "NEXT_BROKER_S", 0.05)
    fake.create("t", 2)


def batch(held: ProducerId, offset: int) -> ClosedBatch:
    """The one behind the barrier at `offset`."""
    return keyed_batch([KeyedRecord(b"key", b"value")], offset, 1_700_000_000_000, held.producer_id, held.epoch, 1)


async def opened(producer: Producer, fake: FakeKafka) -> tuple[Partition, ProducerId]:
    """A partition that broker 1 leads, with a barrier."""
    assert fake.topics["t"][0].leader == 1
    partition = producer.kafka.open("t", 0, UNKNOWN)
    return partition, await take_over(producer.kafka, "slot", [partition])


def offsets(fake: FakeKafka) -> list[int]:
    return [int(BatchHeader(each, 0).base_offset) for each in fake.topics["t"][0].batches]


async def test_a_batch_goes_to_the_leader_that_is_elected(fake: FakeKafka) -> None:
    async with asyncio.timeout(GIVEN_S), Producer(fake.access) as producer:
        partition, held = await opened(producer, fake)
        fake.hang(1)
        asked = fake.asked[METADATA]
        producer.offer(partition, [batch(held, 1)])
        await fake.until_asked(METADATA, asked + 3)  # broker 1 leads as yet: others are asked again
        assert partition.order
        fake.lead("t", 0, 2)
        await producer.until(partition)
        assert (partition.high_watermark, producer.ended, producer.refused) == (2, [], [])
        fake.go_on(1)
        assert offsets(fake) == [0, 1]


async def test_a_slow_leader_keeps_its_connection(fake: FakeKafka) -> None:
    """Nothing is sent twice to a broker that answers late and is still the leader."""
    async with asyncio.timeout(GIVEN_S), Producer(fake.access) as producer:
        partition, held = await opened(producer, fake)
        produced, asked = fake.asked[PRODUCE], fake.asked[METADATA]
        fake.hang(1)
        producer.offer(partition, [batch(held, 1)])
        await fake.until_asked(METADATA, asked + 3)
        fake.go_on(1)
        await producer.until(partition)
        assert fake.asked[PRODUCE] == produced + 1
        assert offsets(fake) == [0, 1]


async def test_a_broker_that_hangs_before_the_connection_is_ready(fake: FakeKafka) -> None:
    async with asyncio.timeout(8), Producer(fake.access) as producer:
        held = await init_producer_id(fake.access, "slot")
        fake.hang(1)
        asked = fake.asked[METADATA]
        partition = producer.kafka.open("t", 0, UNKNOWN)
        fence = asyncio.create_task(producer.kafka.fence([partition], "slot", held))
        await fake.until_asked(METADATA, asked + 3)
        fake.lead("t", 0, 2)
        await fence
        assert offsets(fake) == [0]


async def test_what_is_read_goes_on(fake: FakeKafka) -> None:
    async with asyncio.timeout(GIVEN_S), Producer(fake.access) as producer:
        partition, held = await opened(producer, fake)
        producer.offer(partition, [batch(held, 1)])
        await producer.until(partition)
    reader = KafkaReader(fake.access)
    try:
        async with asyncio.timeout(GIVEN_S):
            assert await reader.offsets("t", [0]) == {0: 2}  # a connection is there
            fake.hang(1)
            read = asyncio.create_task(everything(reader))
            await fake.until_asked(METADATA, fake.asked[METADATA] + 2)
            fake.lead("t", 0, 2)
            assert await read == [0, 1]
    finally:
        await reader.close()


async def everything(reader: KafkaReader) -> list[int]:
    return [int(BatchHeader(each, 0).base_offset) async for each in reader.read("t", 0, 0, 2)]


async def test_what_is_followed_goes_on(fake: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SILENT_S", 1.0)  # a Fetch waits for half a second, as it may

    async def take(_: FollowedPartition, __: bytes) -> None:
        pass

    follower = TopicFollower(fake.access, take)
    try:
        async with asyncio.timeout(GIVEN_S), Producer(fake.access) as producer:
            followed = follower.follow("t", 0)
            partition, held = await opened(producer, fake)
            await follower.wait_reached(followed, 1)
            await fake.until_asked(FETCH, fake.asked[FETCH] + 1)
            fake.hang(1)
            fake.lead("t", 0, 2)
            producer.offer(partition, [batch(held, 1)])
            await producer.until(partition)
            await follower.wait_reached(followed, 2)
    finally:
        await follower.close()


async def test_the_next_broker_is_asked_beside_one_that_hangs(fake: FakeKafka) -> None:
    fake.hang(1)
    async with asyncio.timeout(8):
        metadata = await fetch_any_metadata(fake.access, [b"t"])
        assert metadata is not None
        assert len(metadata.brokers) == 2


async def test_a_coordinator_that_hangs(fake: FakeKafka) -> None:
    """A producer id comes from the next coordinator, once there is one."""
    fake.hang(1)
    fake.coordinator = 1
    async with asyncio.timeout(8):
        task = asyncio.create_task(init_producer_id(fake.access, "slot"))
        await fake.until_asked(FIND_COORDINATOR, 2)
        fake.coordinator = 2
        assert (await task).epoch == 0
