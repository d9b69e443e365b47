"""Three brokers on three hosts: a leader is killed, a leader is cut off, a broker returns."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from kafka_logs import MAGIC_AT, Logs, Producer, append, create_topic, fetch_all, on_disk, take
from kafka_rig import Kafka

from amqpd.kafka.config import KafkaAccess
from amqpd.kafka.producer import init_producer_id

pytestmark = pytest.mark.on_demand  # two minutes on a quiet machine
PARTITIONS = 6


def addresses(kafka: Kafka) -> KafkaAccess:
    return KafkaAccess(tuple(kafka.bootstrap.split(",")))


async def test_publishing_survives_killed_and_unreachable_leaders(
    replicated_kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    """At the end Kafka has every message once and in order."""
    kafka = replicated_kafka
    access = addresses(kafka)
    create_topic(kafka.bootstrap, topic, PARTITIONS, 3)
    held = await init_producer_id(access, topic, timeout_s=120)
    logs = Logs(tmp_path)
    written = [logs.new(f"tasks {number}", held) for number in range(PARTITIONS)]
    async with Producer(access, answer_timeout_s=4, delivery_timeout_s=300) as producer:
        partitions = [producer.kafka.open(topic, number, 0) for number in range(PARTITIONS)]
        number = 0

        async def publish(turns: int) -> None:
            nonlocal number
            for _ in range(turns):
                number += 1
                for log, partition in zip(written, partitions, strict=True):
                    append(log, *(b"message %d" % number for _ in range(3)))
                    logs.turn()
                    producer.offer(partition, take(log))
                await asyncio.sleep(0.02)

        async def wait_until_stored() -> None:
            await producer.until(*partitions, timeout_s=240)
            assert producer.ended == producer.refused == []

        await publish(20)
        await wait_until_stored()
        leaders = {int(partition.leader) for partition in partitions}
        assert leaders == {1, 2, 3}

        await asyncio.gather(publish(50), asyncio.to_thread(kafka.kill, 1))
        await wait_until_stored()
        assert 1 not in {int(partition.leader) for partition in partitions}
        kafka.start(1, wait=False)
        await asyncio.to_thread(kafka.wait_until_ready)

        host = kafka.brokers[2].host
        host.unplug()
        try:
            await publish(50)
            await wait_until_stored()
            assert 2 not in {int(partition.leader) for partition in partitions}
        finally:
            host.plug()
        await publish(20)
        await wait_until_stored()

    for partition, log in zip(partitions, written, strict=True):
        assert partition.high_watermark == log.next_offset == 3 * 140
        kafka_batches = await fetch_all(access, topic, int(partition.number))
        assert [batch[MAGIC_AT:] for batch in kafka_batches] == [batch[MAGIC_AT:] for batch in on_disk(log.directory)]
        assert [batch[:8] for batch in kafka_batches] == [batch[:8] for batch in on_disk(log.directory)]


async def test_publish_waits_while_too_few_replicas_are_in_sync(
    replicated_kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    """With min.insync.replicas=3 and two brokers nothing is acknowledged; with three again everything is."""
    kafka = replicated_kafka
    access = addresses(kafka)
    create_topic(kafka.bootstrap, topic, 1, 3, min_insync_replicas="3")
    held = await init_producer_id(access, topic, timeout_s=120)
    logs = Logs(tmp_path)
    log = logs.new("tasks", held)
    async with Producer(access, answer_timeout_s=4, delivery_timeout_s=300) as producer:
        partition = producer.kafka.open(topic, 0, 0)
        append(log, b"first")
        logs.turn()
        producer.offer(partition, take(log))
        await producer.until(partition)
        assert partition.high_watermark == 1
        leader = int(partition.leader)
        other = next(number for number in kafka.brokers if number != leader)
        await asyncio.to_thread(kafka.kill, other)
        for text in (b"second", b"third"):
            append(log, text)
            logs.turn()
            producer.offer(partition, take(log))
        await asyncio.sleep(2)
        assert partition.high_watermark == 1
        assert producer.ended == producer.refused == []
        kafka.start(other, wait=False)
        await producer.until(partition, timeout_s=240)
        assert partition.high_watermark == 3
    kafka_batches = await fetch_all(access, topic, 0)
    assert [batch[MAGIC_AT:] for batch in kafka_batches] == [batch[MAGIC_AT:] for batch in on_disk(log.directory)]
