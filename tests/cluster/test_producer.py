"""Batches to a real Kafka over breaking connections. None is lost, repeated, reordered or confirmed too early, and a
fenced owner is notified.
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
    append,
    contents,
    create_topic,
    fetch,
    fetch_all,
    on_disk,
    send_unmerged,
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
"""Cuts in each direction. Each cut is tested in a partition of its own."""
UNDISTURBED = 5
"""Runs without cuts. The shortest of them limits the positions of the cuts."""


@pytest.fixture
async def proxy(kafka: Kafka) -> AsyncIterator[TcpProxy]:
    """A proxy between the producer and the broker."""
    broker = kafka.brokers[1]
    async with TcpProxy(broker.proxy_port, (broker.host.address, broker.proxied_port)) as tcp_proxy:
        yield tcp_proxy


class Source:
    """The messages of one log, sent batch by batch to one partition."""

    def __init__(self, logs: Logs, held: ProducerId, number: int) -> None:
        self.log: LocalLog = logs.new(f"tasks {number}", held)
        self.logs = logs
        self.next = count()

    def turn(self, messages: int) -> None:
        append(self.log, *(b"message %d" % next(self.next) for _ in range(messages)))
        self.logs.turn()


async def send_all(producer: Producer, source: Source, topic: str, number: int, merged: bool) -> None:
    """Send all batches of the source and wait until Kafka has stored them. merged: waiting batches may be merged."""
    partition = producer.kafka.open(topic, number, 0)
    if not merged:
        send_unmerged(partition)
    for turn in range(BATCHES):
        source.turn(1 + turn % 3)
        producer.offer(partition, take(source.log))
        if turn % 4 == 0:
            await asyncio.sleep(0.001)
    await producer.until(partition)
    assert producer.ended == producer.refused == []
    assert partition.high_watermark == partition.next_offset == source.log.next_offset


async def check(access: KafkaAccess, source: Source, topic: str, number: int, merged: bool) -> None:
    """Check that Kafka has exactly the log's messages, once and in order."""
    kafka_batches = await fetch_all(access, topic, number)
    ours = on_disk(source.log.directory)
    assert contents(kafka_batches) == contents(ours)
    if merged:
        assert len(kafka_batches) < len(ours)
        return
    assert [batch[MAGIC_AT:] for batch in kafka_batches] == [batch[MAGIC_AT:] for batch in ours]
    assert [batch[:8] for batch in kafka_batches] == [batch[:8] for batch in ours]


@pytest.mark.parametrize("merged", [False, True])
async def test_connection_cut_at_any_byte_loses_and_repeats_nothing(
    kafka: Kafka, access: KafkaAccess, proxy: TcpProxy, topic: str, tmp_path: Path, merged: bool
) -> None:
    create_topic(kafka.bootstrap, topic, 1 + 2 * CUTS + UNDISTURBED)
    held = await init_producer_id(access, topic)
    logs = Logs(tmp_path)
    through = KafkaAccess((kafka.proxied,))

    runs = []  # bytes; the number varies with the look-ups until the broker knows the topic
    for number in (0, *range(1 + 2 * CUTS, 1 + 2 * CUTS + UNDISTURBED)):
        undisturbed = Source(logs, held, number)
        proxy.begin()
        async with Producer(through) as producer:
            await send_all(producer, undisturbed, topic, number, merged)
        await check(access, undisturbed, topic, number, merged)
        runs.append(dict(proxy.passed))
        assert proxy.cuts == 0
    passed = {direction: min(run[direction] for run in runs) for direction in (TO_BROKER, FROM_BROKER)}
    assert min(passed.values()) > 500

    points = [
        (direction, 1 + (passed[direction] - 1) * step // CUTS)
        for direction in (TO_BROKER, FROM_BROKER)
        for step in range(CUTS)
    ]
    cuts = 0
    for number, (direction, point) in enumerate(points, 1):
        source = Source(logs, held, number)
        later = point + passed[direction] // 3  # cuts the retry too
        proxy.begin(**{"to_broker" if direction == TO_BROKER else "from_broker": [point, later]})
        async with Producer(through) as producer:
            await send_all(producer, source, topic, number, merged)
        await check(access, source, topic, number, merged)
        cuts += proxy.cuts
    assert cuts > len(points)


@pytest.mark.parametrize("merged", [False, True])
async def test_many_partitions_over_a_connection_cut_repeatedly(
    kafka: Kafka, access: KafkaAccess, proxy: TcpProxy, topic: str, tmp_path: Path, merged: bool
) -> None:
    partitions = 30
    create_topic(kafka.bootstrap, topic, partitions)
    held = await init_producer_id(access, topic)
    logs = Logs(tmp_path)
    sources = [Source(logs, held, number) for number in range(partitions)]
    proxy.begin(to_broker=[4000 * step for step in range(1, 12)], from_broker=[3000 * step for step in range(1, 5)])
    async with Producer(KafkaAccess((kafka.proxied,))) as producer:
        opened = [producer.kafka.open(topic, number, 0) for number in range(partitions)]
        for partition in () if merged else opened:
            send_unmerged(partition)
        for _ in range(10):
            for source, partition in zip(sources, opened, strict=True):
                source.turn(2)
                producer.kafka.offer(partition, take(source.log))
            producer.kafka.flush()
            await asyncio.sleep(0.01)
        await producer.until(*opened)
        assert producer.ended == producer.refused == []
    assert proxy.cuts >= 8
    for number, source in enumerate(sources):
        await check(access, source, topic, number, merged)


async def test_silent_connection_is_replaced_and_batches_are_stored_once(
    kafka: Kafka, access: KafkaAccess, proxy: TcpProxy, topic: str, tmp_path: Path
) -> None:
    """The socket stays open, so the producer notices the failure only by its timeout."""
    create_topic(kafka.bootstrap, topic)
    logs = Logs(tmp_path)
    source = Source(logs, await init_producer_id(access, topic), 0)
    proxy.begin()
    async with Producer(KafkaAccess((kafka.proxied,)), answer_timeout_s=2) as producer:
        partition = send_unmerged(producer.kafka.open(topic, 0, 0))
        for _ in range(3):
            source.turn(2)
            producer.offer(partition, take(source.log))
            await producer.until(partition)
            assert proxy.hold() >= 1
            for _ in range(4):
                source.turn(1)
                producer.offer(partition, take(source.log))
        await producer.until(partition)
        assert producer.ended == producer.refused == []
        assert partition.high_watermark == source.log.next_offset == 18
    await check(access, source, topic, 0, merged=False)


async def test_producer_fenced_by_a_later_epoch_is_notified(
    kafka: Kafka, access: KafkaAccess, topic: str, tmp_path: Path
) -> None:
    """The first batch of the new epoch fences the old one, in that partition only."""
    create_topic(kafka.bootstrap, topic, 2)
    logs = Logs(tmp_path)
    old = await init_producer_id(access, topic)
    before, elsewhere = Source(logs, old, 0), Source(logs, old, 1)
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


async def test_foreign_producer_in_the_partition_ends_it(
    kafka: Kafka, access: KafkaAccess, topic: str, tmp_path: Path
) -> None:
    """A producer with another id is not fenced; the unexpected offset shows it."""
    create_topic(kafka.bootstrap, topic)
    logs = Logs(tmp_path)
    ours = Source(logs, await init_producer_id(access, topic), 0)
    kafka_batches = Source(logs, await init_producer_id(access, topic + "-other"), 1)
    async with Producer(access) as producer, Producer(access) as other:
        partition = producer.kafka.open(topic, 0, 0)
        ours.turn(2)
        producer.offer(partition, take(ours.log))
        await producer.until(partition)
        foreign = other.kafka.open(topic, 0, 0)
        kafka_batches.turn(1)
        other.offer(foreign, take(kafka_batches.log))
        await other.until(foreign)
        assert other.ended == [f"{topic} 0: a batch of offset 0 is stored at 2"]
        ours.turn(2)
        producer.offer(partition, take(ours.log))
        await producer.until(partition)
        assert producer.ended == [f"{topic} 0: a batch of offset 2 is stored at 3"]
        assert partition.high_watermark == 2


async def test_partition_accepts_any_first_sequence_of_an_unknown_producer(
    kafka: Kafka, access: KafkaAccess, topic: str, tmp_path: Path
) -> None:
    """So the first batch must be sent alone: Kafka would store the second one in its place."""
    create_topic(kafka.bootstrap, topic)
    logs = Logs(tmp_path)
    source = Source(logs, await init_producer_id(access, topic), 0)
    source.turn(2)
    source.turn(1)
    first, second = take(source.log)
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


async def test_batch_waits_for_a_topic_created_later(
    kafka: Kafka, access: KafkaAccess, topic: str, tmp_path: Path
) -> None:
    logs = Logs(tmp_path)
    source = Source(logs, await init_producer_id(access, topic), 0)
    async with Producer(access) as producer:
        partition = producer.kafka.open(topic, 0, 0)
        source.turn(2)
        producer.offer(partition, take(source.log))
        await asyncio.sleep(0.3)
        create_topic(kafka.bootstrap, topic)
        await producer.until(partition)
        assert partition.high_watermark == 2
    await check(access, source, topic, 0, merged=False)


async def test_delivery_timeout_ends_the_partition(access: KafkaAccess, topic: str, tmp_path: Path) -> None:
    """The topic is never created."""
    logs = Logs(tmp_path)
    source = Source(logs, await init_producer_id(access, topic), 0)
    async with Producer(access, delivery_timeout_s=1.5) as producer:
        partition = producer.kafka.open(topic, 0, 0)
        source.turn(2)
        producer.offer(partition, take(source.log))
        await producer.until(partition)
        assert producer.ended == [f"{topic} 0: no answer within 1.5 s"]


async def test_server_that_is_not_kafka_is_refused(access: KafkaAccess) -> None:
    """One server answers with HTTP, the other closes the connection."""

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
