"""A broker hangs with open connections. Work must continue as soon as another broker leads, not only after a request
timeout.
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
TEST_LIMIT_S = 15
"""Much less than the request timeout of 30 s."""


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch, fake: FakeKafka) -> None:
    """Treat an answer as late after 0.05 s."""
    monkeypatch.setattr(connections, "SILENT_S", 0.05)
    monkeypatch.setattr(connections, "SILENT_AGAIN_S", 0.05)
    monkeypatch.setattr(producers, "NEXT_BROKER_S", 0.05)
    fake.create("t", 2)


def batch(held: ProducerId, offset: int) -> ClosedBatch:
    """Return the batch that follows a barrier at `offset`."""
    return keyed_batch([KeyedRecord(b"key", b"value")], offset, 1_700_000_000_000, held.producer_id, held.epoch, 1)


async def open_with_barrier(producer: Producer, fake: FakeKafka) -> tuple[Partition, ProducerId]:
    """Open a partition that broker 1 leads, and write a barrier."""
    assert fake.topics["t"][0].leader == 1
    partition = producer.kafka.open("t", 0, UNKNOWN)
    return partition, await take_over(producer.kafka, "slot", [partition])


def offsets(fake: FakeKafka) -> list[int]:
    return [int(BatchHeader(each, 0).base_offset) for each in fake.topics["t"][0].batches]


async def test_waiting_batch_goes_to_the_new_leader(fake: FakeKafka) -> None:
    async with asyncio.timeout(TEST_LIMIT_S), Producer(fake.access) as producer:
        partition, held = await open_with_barrier(producer, fake)
        fake.hang(1)
        requests_before = fake.request_counts[METADATA]
        producer.offer(partition, [batch(held, 1)])
        await fake.wait_for_requests(METADATA, requests_before + 3)  # broker 1 still leads: other brokers are asked
        assert partition.order
        fake.lead("t", 0, 2)
        await producer.until(partition)
        assert (partition.high_watermark, producer.ended, producer.refused) == (2, [], [])
        fake.resume(1)
        assert offsets(fake) == [0, 1]


async def test_slow_leader_gets_each_batch_once(fake: FakeKafka) -> None:
    """A broker that answers late and still leads gets nothing twice."""
    async with asyncio.timeout(TEST_LIMIT_S), Producer(fake.access) as producer:
        partition, held = await open_with_barrier(producer, fake)
        produced, requests_before = fake.request_counts[PRODUCE], fake.request_counts[METADATA]
        fake.hang(1)
        producer.offer(partition, [batch(held, 1)])
        await fake.wait_for_requests(METADATA, requests_before + 3)
        fake.resume(1)
        await producer.until(partition)
        assert fake.request_counts[PRODUCE] == produced + 1
        assert offsets(fake) == [0, 1]


async def test_broker_that_hangs_during_connect_is_replaced(fake: FakeKafka) -> None:
    async with asyncio.timeout(8), Producer(fake.access) as producer:
        held = await init_producer_id(fake.access, "slot")
        fake.hang(1)
        requests_before = fake.request_counts[METADATA]
        partition = producer.kafka.open("t", 0, UNKNOWN)
        fence = asyncio.create_task(producer.kafka.fence([partition], "slot", held))
        await fake.wait_for_requests(METADATA, requests_before + 3)
        fake.lead("t", 0, 2)
        await fence
        assert offsets(fake) == [0]


async def test_read_continues_at_the_new_leader(fake: FakeKafka) -> None:
    async with asyncio.timeout(TEST_LIMIT_S), Producer(fake.access) as producer:
        partition, held = await open_with_barrier(producer, fake)
        producer.offer(partition, [batch(held, 1)])
        await producer.until(partition)
    reader = KafkaReader(fake.access)
    try:
        async with asyncio.timeout(TEST_LIMIT_S):
            assert await reader.offsets("t", [0]) == {0: 2}  # a connection exists
            fake.hang(1)
            read = asyncio.create_task(read_offsets(reader))
            await fake.wait_for_requests(METADATA, fake.request_counts[METADATA] + 2)
            fake.lead("t", 0, 2)
            assert await read == [0, 1]
    finally:
        await reader.close()


async def read_offsets(reader: KafkaReader) -> list[int]:
    return [int(BatchHeader(each, 0).base_offset) async for each in reader.read("t", 0, 0, 2)]


async def test_follower_continues_at_the_new_leader(fake: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SILENT_S", 1.0)  # a Fetch may take half a second

    async def take(_: FollowedPartition, __: bytes) -> None:
        pass

    follower = TopicFollower(fake.access, take)
    try:
        async with asyncio.timeout(TEST_LIMIT_S), Producer(fake.access) as producer:
            followed = follower.follow("t", 0)
            partition, held = await open_with_barrier(producer, fake)
            await follower.wait_reached(followed, 1)
            await fake.wait_for_requests(FETCH, fake.request_counts[FETCH] + 1)
            fake.hang(1)
            fake.lead("t", 0, 2)
            producer.offer(partition, [batch(held, 1)])
            await producer.until(partition)
            await follower.wait_reached(followed, 2)
    finally:
        await follower.close()


async def test_metadata_comes_from_another_broker_if_one_hangs(fake: FakeKafka) -> None:
    fake.hang(1)
    async with asyncio.timeout(8):
        metadata = await fetch_any_metadata(fake.access, [b"t"])
        assert metadata is not None
        assert len(metadata.brokers) == 2


async def test_producer_id_comes_from_the_next_coordinator(fake: FakeKafka) -> None:
    """The first coordinator hangs until another one is found."""
    fake.hang(1)
    fake.coordinator = 1
    async with asyncio.timeout(8):
        task = asyncio.create_task(init_producer_id(fake.access, "slot"))
        await fake.wait_for_requests(FIND_COORDINATOR, 2)
        fake.coordinator = 2
        assert (await task).epoch == 0
