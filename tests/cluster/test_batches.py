"""A batch of a local log and the same batch in Kafka are equal from the magic byte on. The tests read them back with
Kafka's protocol, from Kafka's files, with kafka-python, with aiokafka and with Java's tools.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kafka_logs import (
    MAGIC_AT,
    PROPERTIES,
    ROUTE,
    Logs,
    Producer,
    append,
    contents,
    create_topic,
    fetch_all,
    on_disk,
    read_with_aiokafka,
    read_with_kafka_python,
    rows,
    send_unmerged,
    take,
)
from kafka_rig import Kafka, run_java
from librt.strings import BytesWriter

from amqpd.kafka.config import KafkaAccess
from amqpd.kafka.producer import init_producer_id
from amqpd.storage.local_log import LocalLog
from amqpd.storage.log.batch import (
    COMPRESSION,
    GZIP,
    LOG_APPEND_TIME,
    LZ4,
    SNAPPY,
    TRANSIENT,
    ZSTD,
    BatchHeader,
    ClosedBatch,
    close_batch,
)
from amqpd.storage.log.prepared import PreparedTransaction
from amqpd.storage.log.record import Record


def fill(logs: Logs, log: LocalLog) -> None:
    """Write batches of every kind that a queue's log can contain."""
    append(log, b"one")
    logs.turn()
    append(log, *(b"message %d" % number for number in range(150)))  # 64, 64, 22
    logs.turn()
    append(log, b"kept", b"in memory", b"kept", persistent=False)
    append(log, b"again on disk")
    logs.turn()
    for codec in (GZIP, SNAPPY, LZ4, ZSTD):
        log.appender.codec = codec
        append(log, *(b'{"number": %d, "state": "the same in all"}' % number for number in range(300)))
        logs.turn()
    append(log, b"x")  # too small to compress
    logs.turn()
    log.appender.codec = 0
    parts = [b"part %d " % number * 10_000 for number in range(4)]
    log.append_large(ROUTE, PROPERTIES, parts, sum(len(part) for part in parts), True)
    logs.turn()
    log.append_tombstone(ROUTE, PROPERTIES)
    append(log, b"")
    prepared = PreparedTransaction()
    for number in range(10):
        body = b"in one transaction %d" % number
        prepared.append(ROUTE, PROPERTIES + body, 0, len(PROPERTIES), len(PROPERTIES), len(PROPERTIES + body), True)
    prepared.close()
    log.append_prepared(prepared)
    logs.turn()


def records_of(log: LocalLog) -> list[Record]:
    return list(log.cursor.read(0, 1 << 30).records)


async def test_stored_batch_equals_the_batch_in_kafka(
    kafka: Kafka, access: KafkaAccess, topic: str, tmp_path: Path
) -> None:
    create_topic(kafka.bootstrap, topic)
    held = await init_producer_id(access, topic)
    logs = Logs(tmp_path)
    log = logs.new("tasks", held)
    fill(logs, log)
    ours = on_disk(log.directory)
    async with Producer(access) as producer:
        partition = send_unmerged(producer.kafka.open(topic, 0, 0))
        producer.offer(partition, take(log))
        await producer.until(partition)
        assert producer.ended == producer.refused == []
        assert partition.high_watermark == log.next_offset

    headers = [BatchHeader(batch, 0) for batch in ours]
    assert len(ours) == len(headers) >= 12
    assert {int(header.attributes) for header in headers} == {0, GZIP, SNAPPY, LZ4, ZSTD}
    assert {(int(header.producer_id), int(header.producer_epoch)) for header in headers} == {
        (held.producer_id, held.epoch)
    }
    assert [int(header.base_sequence) for header in headers] == [int(header.base_offset) for header in headers]

    fetched = await fetch_all(access, topic, 0)
    stored = on_disk(kafka.partition_directory(1, topic, 0))
    for kafka_batches in (fetched, stored):
        assert [batch[MAGIC_AT:] for batch in kafka_batches] == [batch[MAGIC_AT:] for batch in ours]
        assert [batch[:12] for batch in kafka_batches] == [batch[:12] for batch in ours]  # offset and length
    assert await fetch_all(access, topic, 0, size_max=1000) == fetched  # no partial batch is taken for a whole one

    wanted = rows(records_of(log))
    assert len(wanted) == log.next_offset
    assert read_with_kafka_python(kafka.bootstrap, topic, 0, len(wanted)) == wanted
    assert await read_with_aiokafka(access, topic, 0, len(wanted)) == wanted


async def test_waiting_batches_are_merged_into_fewer(
    kafka: Kafka, access: KafkaAccess, topic: str, tmp_path: Path
) -> None:
    """The messages are unchanged, and so are compressed and large batches. Timestamps are those of the merged batch."""
    create_topic(kafka.bootstrap, topic)
    logs = Logs(tmp_path)
    log = logs.new("tasks", await init_producer_id(access, topic))
    fill(logs, log)
    ours = on_disk(log.directory)
    async with Producer(access) as producer:
        partition = producer.kafka.open(topic, 0, 0)
        producer.offer(partition, take(log))
        await producer.until(partition)
        assert producer.ended == producer.refused == []
        assert partition.high_watermark == log.next_offset

    kafka_batches = await fetch_all(access, topic, 0)
    assert len(kafka_batches) < len(ours) - 3
    packed = [batch[MAGIC_AT:] for batch in ours if BatchHeader(batch, 0).is_compressed()]
    assert [batch[MAGIC_AT:] for batch in kafka_batches if BatchHeader(batch, 0).is_compressed()] == packed
    plain = [[batch for batch in side if not BatchHeader(batch, 0).is_compressed()] for side in (kafka_batches, ours)]
    assert contents(plain[0]) == contents(plain[1])

    wanted = rows(records_of(log))
    for found in (
        read_with_kafka_python(kafka.bootstrap, topic, 0, len(wanted)),
        await read_with_aiokafka(access, topic, 0, len(wanted)),
    ):
        assert [row[:-1] for row in found] == [row[:-1] for row in wanted]
        times = [row[-1] for row in found]
        assert times == sorted(times)
        assert all(time >= row[-1] for time, row in zip(times, wanted, strict=True))


async def test_java_tools_read_the_batches(kafka: Kafka, access: KafkaAccess, topic: str, tmp_path: Path) -> None:
    create_topic(kafka.bootstrap, topic)
    held = await init_producer_id(access, topic)
    logs = Logs(tmp_path)
    log = logs.new("tasks", held)
    fill(logs, log)
    async with Producer(access) as producer:
        partition = send_unmerged(producer.kafka.open(topic, 0, 0))
        producer.offer(partition, take(log))
        await producer.until(partition)
    records = records_of(log)

    printed = run_java(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", kafka.bootstrap, "--topic", topic, "--partition", "0", "--offset", "earliest"),
        *("--max-messages", str(len(records)), "--timeout-ms", "60000"),
        *("--property", "print.key=true", "--property", "print.offset=true", "--property", "print.timestamp=true"),
        *("--property", "null.literal=NULL"),
    )
    assert printed.splitlines() == [
        f"CreateTime:{record.timestamp_ms}\tOffset:{record.offset}\teu.new\t"
        + ("NULL" if record.tombstone else record.body.decode())
        for record in records
    ]

    for directory in (Path(log.directory), kafka.partition_directory(1, topic, 0)):
        files = sorted(str(path) for path in directory.glob("*.log"))
        dumped = run_java("kafka.tools.DumpLogSegments", "--deep-iteration", "--files", ",".join(files))
        assert "isvalid: false" not in dumped
        batches = re.findall(r"baseOffset: (\d+) lastOffset: (\d+) count: (\d+) baseSequence: (\d+)", dumped)
        firsts = [int(BatchHeader(each, 0).base_offset) for each in on_disk(directory)]
        assert [int(first) for first, *_ in batches] == firsts
        assert set(re.findall(r"producerId: (\d+) producerEpoch: (\d+)", dumped)) == {
            (str(held.producer_id), str(held.epoch))
        }
        assert len(re.findall(r"\| offset: \d+ ", dumped)) == len(records)


def with_attributes(batch: ClosedBatch, attributes: int) -> ClosedBatch:
    """Return the batch with other attributes and a valid checksum. Kafka has no such batch."""
    header = BatchHeader(batch.header, 0)
    count = int(header.count)
    return close_batch(
        BytesWriter(), batch.records, batch.base_offset, count, 0, attributes, batch.timestamp_ms, 0,
        header.producer_id, header.base_sequence, -1, batch.more, header.producer_epoch,
    )  # fmt: skip


async def test_kafka_replaces_log_append_time(kafka: Kafka, access: KafkaAccess, topic: str, tmp_path: Path) -> None:
    """The leader sets the time of an append and rewrites the batch and its checksum. A log stored in Kafka therefore
    closes batches such that Kafka leaves them unchanged.
    """
    create_topic(kafka.bootstrap, topic)
    held = await init_producer_id(access, topic)
    logs = Logs(tmp_path)
    log = logs.new("tasks", held)
    append(log, b"a", b"b")
    logs.turn()
    (batch,) = take(log)
    sent = with_attributes(batch, int(LOG_APPEND_TIME | TRANSIENT))
    async with Producer(access) as producer:
        partition = producer.kafka.open(topic, 0, 0)
        producer.offer(partition, [sent])
        await producer.until(partition)
        assert (partition.closed, partition.high_watermark) == (0, 2)
    (kafka_batches,) = await fetch_all(access, topic, 0)
    assert kafka_batches[MAGIC_AT:] != (sent.header + sent.records)[MAGIC_AT:]
    assert kafka_batches[MAGIC_AT:] == (batch.header + batch.records)[MAGIC_AT:]


async def test_kafka_drops_the_transient_bit_when_it_recompresses(
    kafka: Kafka, access: KafkaAccess, topic: str, tmp_path: Path
) -> None:
    """A topic that stores batches as sent keeps the bit; a topic with compression.type=gzip drops it. So batches in
    Kafka must not carry this bit.
    """
    create_topic(kafka.bootstrap, topic)
    create_topic(kafka.bootstrap, topic + "-gzip", compression_type="gzip")
    held = await init_producer_id(access, topic)
    logs = Logs(tmp_path)
    log = logs.new("tasks", held)
    append(log, *(b"the same" for _ in range(60)))
    logs.turn()
    (batch,) = take(log)
    marked = with_attributes(batch, int(TRANSIENT))
    for name, kept in ((topic, True), (topic + "-gzip", False)):
        async with Producer(access) as producer:
            partition = producer.kafka.open(name, 0, 0)
            producer.offer(partition, [marked])
            await producer.until(partition)
            assert partition.high_watermark == 60
        (kafka_batches,) = await fetch_all(access, name, 0)
        header = BatchHeader(kafka_batches, 0)
        assert header.is_transient() == kept
        assert int(header.attributes & COMPRESSION) == (0 if kept else GZIP)


@pytest.mark.parametrize("body_size", [900_000, 1_100_000])
async def test_message_over_max_message_bytes_is_refused_alone(
    kafka: Kafka, access: KafkaAccess, topic: str, tmp_path: Path, body_size: int
) -> None:
    """Kafka's limit here is 1 MiB for the batch. The other partition is not affected."""
    create_topic(kafka.bootstrap, topic, 2)
    held = await init_producer_id(access, topic)
    logs = Logs(tmp_path)
    log, other = logs.new("tasks", held), logs.new("others", held)
    log.append_large(ROUTE, PROPERTIES, [bytes(body_size)], body_size, True)
    append(log, b"behind")
    append(other, b"elsewhere")
    logs.turn()
    async with Producer(access) as producer:
        first, second = producer.kafka.open(topic, 0, 0), producer.kafka.open(topic, 1, 0)
        producer.kafka.offer(first, take(log))
        producer.offer(second, take(other))
        await producer.until(second)
        await producer.until(first)
        assert producer.ended == []
        assert second.high_watermark == 1
        if body_size > 1 << 20:
            assert (first.closed, first.high_watermark) == (10, 0), first.text
        else:
            assert (first.closed, first.high_watermark) == (0, 2)
