"""Batches into a real Kafka over connections that end anywhere: nothing is lost, doubled or reordered, nothing is
called safe that is not there; and whoever was overtaken is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest
from kafka_logs import (
    MAGIC_AT,
    Logs,
    Producer,
    apart,
    append,
    contents,
    create_topic,
    fetch,
    fetch_all,
    on_disk,
    take,
)
from kafka_rig import Kafka
from tcp_proxy import FROM_BROKER, TO_BROKER, TcpProxy

from amqpd.kafka.config import KafkaAccess
from amqpd.kafka.connection import KafkaDisconnected, open_connection
from amqpd.kafka.producer import KafkaRefused, init_producer_id
from amqpd.kafka.requests import ProducerId
from amqpd.storage.local_log import LocalLog

BATCHES = 12
CUTS = 40
"""In each direction; each is a partition of its own."""
UNDISTURBED = 5
"""Of which the shortest says where there is something to cut."""


@pytest.fixture
async def proxy(kafka: Kafka) -> AsyncIterator[TcpProxy]:
    """Between us and the broker."""
    broker = kafka.brokers[1]
    async with TcpProxy(broker.proxy_port, (broker.host.address, broker.proxied_port)) as between:
        yield between


class Story:
    """Messages of one log, batch by batch, into one partition."""

    def __init__(self, logs: Logs, held: ProducerId, number: int) -> None:
        self.log: LocalLog = logs.new(f"tasks {number}", held)
        self.logs = logs
        self.next = count()

    def turn(self, messages: int) -> None:
        append(self.log, *(b"message %d" % next(self.next) for _ in range(messages)))
        self.logs.turn()


async def tell(producer: Producer, story: Story, topic: str, number: int, joined: bool) -> None:
    """All of the story, a turn at a time, until Kafka has it. joined: what waits goes as one."""
    partition = producer.kafka.open(topic, number, 0)
    if not joined:
        apart(partition)
    for turn in range(BATCHES):
        story.turn(1 + turn % 3)
        producer.offer(partition, take(story.log))
        if turn % 4 == 0:
            await asyncio.sleep(0.001)
    await producer.until(partition)
    assert producer.ended == producer.refused == []
    assert partition.high_watermark == partition.next_offset == story.log.next_offset


async def check(access: KafkaAccess, story: Story, topic: str, number: int, joined: bool) -> None:
    """What Kafka has is what the log has, each once, in order."""
    theirs = await fetch_all(access, topic, number)
    ours = on_disk(story.log.directory)
    assert contents(theirs) == contents(ours)
    if joined:
        assert len(theirs) < len(ours)
        return
    assert [batch[MAGIC_AT:] for batch in theirs] == [batch[MAGIC_AT:] for batch in ours]
    assert [batch[:8] for batch in theirs] == [batch[:8] for batch in ours]


@pytest.mark.parametrize("joined", [False, True])
async def test_a_connection_that_ends_anywhere(
    kafka: Kafka, access: KafkaAccess, proxy: TcpProxy, topic: str, tmp_path: Path, joined: bool
) -> None:
    create_topic(kafka.bootstrap, topic, 1 + 2 * CUTS + UNDISTURBED)
    held = await init_producer_id(access, topic)
    logs = Logs(tmp_path)
    through = KafkaAccess((kafka.proxied,))

    runs = []  # bytes; who asks for the topic until the broker knows it has more
    for number in (0, *range(1 + 2 * CUTS, 1 + 2 * CUTS + UNDISTURBED)):
        undisturbed = Story(logs, held, number)
        proxy.begin()
        async with Producer(through) as producer:
            await tell(producer, undisturbed, topic, number, joined)
        await check(access, undisturbed, topic, number, joined)
        runs.append(dict(proxy.passed))
        assert proxy.cuts == 0
    passed = {way: min(run[way] for run in runs) for way in (TO_BROKER, FROM_BROKER)}
    assert min(passed.values()) > 500

    points = [(way, 1 + (passed[way] - 1) * step // CUTS) for way in (TO_BROKER, FROM_BROKER) for step in range(CUTS)]
    cuts = 0
    for number, (way, point) in enumerate(points, 1):
        story = Story(logs, held, number)
        later = point + passed[way] // 3  # what is sent again is cut too
        proxy.begin(**{"to_broker" if way == TO_BROKER else "from_broker": [point, later]})
        async with Producer(through) as producer:
            await tell(producer, story, topic, number, joined)
        await check(access, story, topic, number, joined)
        cuts += proxy.cuts
    assert cuts > len(points)


@pytest.mark.parametrize("joined", [False, True])
async def test_many_partitions_over_a_connection_that_ends_again_and_again(
    kafka: Kafka, access: KafkaAccess, proxy: TcpProxy, topic: str, tmp_path: Path, joined: bool
) -> None:
    partitions = 30
    create_topic(kafka.bootstrap, topic, partitions)
    held = await init_producer_id(access, topic)
    logs = Logs(tmp_path)
    stories = [Story(logs, held, number) for number in range(partitions)]
    proxy.begin(to_broker=[4000 * step for step in range(1, 12)], from_broker=[3000 * step for step in range(1, 5)])
    async with Producer(KafkaAccess((kafka.proxied,))) as producer:
        opened = [producer.kafka.open(topic, number, 0) for number in range(partitions)]
        for partition in () if joined else opened:
            apart(partition)
        for _ in range(10):
            for story, partition in zip(stories, opened, strict=True):
                story.turn(2)
                producer.kafka.offer(partition, take(story.log))
            producer.kafka.flush()
            await asyncio.sleep(0.01)
        await producer.until(*opened)
        assert producer.ended == producer.refused == []
    assert proxy.cuts >= 8
    for number, story in enumerate(stories):
        await check(access, story, topic, number, joined)


async def test_a_connection_that_falls_silent(
    kafka: Kafka, access: KafkaAccess, proxy: TcpProxy, topic: str, tmp_path: Path
) -> None:
    """Nobody says that it has ended: what was asked is asked again over another, and is there once."""
    create_topic(kafka.bootstrap, topic)
    logs = Logs(tmp_path)
    story = Story(logs, await init_producer_id(access, topic), 0)
    proxy.begin()
    async with Producer(KafkaAccess((kafka.proxied,)), answer_timeout_s=2) as producer:
        partition = apart(producer.kafka.open(topic, 0, 0))
        for _ in range(3):
            story.turn(2)
            producer.offer(partition, take(story.log))
            await producer.until(partition)
            assert proxy.hold() >= 1
            for _ in range(4):
                story.turn(1)
                producer.offer(partition, take(story.log))
        await producer.until(partition)
        assert producer.ended == producer.refused == []
        assert partition.high_watermark == story.log.next_offset == 18
    await check(access, story, topic, 0, joined=False)


async def test_who_was_overtaken_is_told(kafka: Kafka, access: KafkaAccess, topic: str, tmp_path: Path) -> None:
    """The new epoch's first batch fences the old one in that partition, and there only."""
    create_topic(kafka.bootstrap, topic, 2)
    logs = Logs(tmp_path)
    old = await init_producer_id(access, topic)
    before, elsewhere = Story(logs, old, 0), Story(logs, old, 1)
    async with Producer(access) as first:
        partition, other = first.kafka.open(topic, 0, 0), first.kafka.open(topic, 1, 0)
        before.turn(3)
        first.offer(partition, take(before.log))
        await first.until(partition)

        new = await init_producer_id(access, topic)
        assert (new.producer_id, new.epoch) == (old.producer_id, old.epoch + 1)
        elsewhere.turn(1)
        first.offer(other, take(elsewhere.log))
        await first.until(other)
        assert first.ended == []

        after = logs.new("after", new)
        append(after, b"skipped", b"skipped", b"skipped")
        logs.turn()
        take(after)
        assert after.appender.replica is not None
        after.appender.replica.sequence = 0
        append(after, b"of the new owner")
        logs.turn()
        async with Producer(access) as second:
            taken = second.kafka.open(topic, 0, 3)
            second.offer(taken, take(after))
            await second.until(taken)
            assert taken.high_watermark == 4

        before.turn(1)
        first.offer(partition, take(before.log))
        await first.until(partition)
        assert len(first.ended) == 1
        assert "INVALID_PRODUCER_EPOCH" in first.ended[0] or "PRODUCER_FENCED" in first.ended[0]
        assert partition.high_watermark == 3
    fetched = await fetch(access, topic, 0)
    assert fetched.high_watermark == 4

    with pytest.raises(KafkaRefused, match="PRODUCER_FENCED|INVALID_PRODUCER_EPOCH"):
        await init_producer_id(access, topic, old)
    renewed = await init_producer_id(access, topic, new)
    assert (renewed.producer_id, renewed.epoch) == (new.producer_id, new.epoch + 1)


async def test_somebody_else_in_the_partition_ends_it(
    kafka: Kafka, access: KafkaAccess, topic: str, tmp_path: Path
) -> None:
    """Under an id of his own he is not fenced: the offset tells."""
    create_topic(kafka.bootstrap, topic)
    logs = Logs(tmp_path)
    ours = Story(logs, await init_producer_id(access, topic), 0)
    theirs = Story(logs, await init_producer_id(access, topic + "-other"), 1)
    async with Producer(access) as producer, Producer(access) as other:
        partition = producer.kafka.open(topic, 0, 0)
        ours.turn(2)
        producer.offer(partition, take(ours.log))
        await producer.until(partition)
        foreign = other.kafka.open(topic, 0, 0)
        theirs.turn(1)
        other.offer(foreign, take(theirs.log))
        await other.until(foreign)
        assert other.ended == [f"{topic} 0: a batch of offset 0 is stored at 2"]
        ours.turn(2)
        producer.offer(partition, take(ours.log))
        await producer.until(partition)
        assert producer.ended == [f"{topic} 0: a batch of offset 2 is stored at 3"]
        assert partition.high_watermark == 2


async def test_a_partition_takes_any_sequence_from_who_it_does_not_know(
    kafka: Kafka, access: KafkaAccess, topic: str, tmp_path: Path
) -> None:
    """Which is why the first batch goes alone: Kafka would store the second in its place."""
    create_topic(kafka.bootstrap, topic)
    logs = Logs(tmp_path)
    story = Story(logs, await init_producer_id(access, topic), 0)
    story.turn(2)
    story.turn(1)
    first, second = take(story.log)
    async with Producer(access) as producer:
        partition = producer.kafka.open(topic, 0, 2)
        producer.offer(partition, [second])
        await producer.until(partition)
        assert producer.ended == [f"{topic} 0: a batch of offset 2 is stored at 0"]
    async with Producer(access) as producer:
        partition = producer.kafka.open(topic, 0, 0)
        producer.offer(partition, [first])
        await producer.until(partition)
        assert "OUT_OF_ORDER_SEQUENCE_NUMBER" in producer.ended[0]


async def test_a_topic_that_comes_later(kafka: Kafka, access: KafkaAccess, topic: str, tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    story = Story(logs, await init_producer_id(access, topic), 0)
    async with Producer(access) as producer:
        partition = producer.kafka.open(topic, 0, 0)
        story.turn(2)
        producer.offer(partition, take(story.log))
        await asyncio.sleep(0.3)
        create_topic(kafka.bootstrap, topic)
        await producer.until(partition)
        assert partition.high_watermark == 2
    await check(access, story, topic, 0, joined=False)


async def test_what_waits_too_long_ends_it(access: KafkaAccess, topic: str, tmp_path: Path) -> None:
    """There is no such topic, and never will be."""
    logs = Logs(tmp_path)
    story = Story(logs, await init_producer_id(access, topic), 0)
    async with Producer(access, delivery_timeout_s=1.5) as producer:
        partition = producer.kafka.open(topic, 0, 0)
        story.turn(2)
        producer.offer(partition, take(story.log))
        await producer.until(partition)
        assert producer.ended == [f"{topic} 0: no answer within 1.5 s"]


async def test_what_is_no_kafka(access: KafkaAccess) -> None:
    """It closes, says something else, or says nothing that ends."""

    async def web_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    for server in (web_server, closing):
        listening = await asyncio.start_server(server, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        with pytest.raises(KafkaDisconnected, match="has ended"):
            await open_connection(access, "127.0.0.1", port)
        listening.close()
        await listening.wait_closed()
