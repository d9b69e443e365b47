"""A local log whose batches are closed for Kafka, and the contents of a Kafka partition, read in several ways."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

from aiokafka import AIOKafkaConsumer, TopicPartition
from librt.strings import BytesWriter

from amqpd.kafka.config import KafkaAccess
from amqpd.kafka.connection import open_connection
from amqpd.kafka.consumer import KafkaReader
from amqpd.kafka.partition import Partition
from amqpd.kafka.producer import KafkaProducer, fetch_any_metadata
from amqpd.kafka.requests import Fetched, FetchPlace, ProducerId, decode_fetch, encode_fetch
from amqpd.storage.local_log import LocalLog
from amqpd.storage.log.appender import KafkaSequencer
from amqpd.storage.log.batch import HEADER_SIZE, BatchHeader, ClosedBatch, crc_fits
from amqpd.storage.log.record import Record, RecordRoute, read_offset_delta, record_stop
from amqpd.storage.storage import Storage

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses importlib.resources.read_text
    from kafka import KafkaConsumer
    from kafka import TopicPartition as KafkaTopicPartition
    from kafka.admin import KafkaAdminClient, NewTopic

ROUTE = RecordRoute(b"orders", b"eu.new")
PROPERTIES = b"\x10\x00\x02"
OUT_OF_RANGE = 1
MAGIC_AT = 16
"""The offset of the magic byte in a batch. The leader writes the bytes before it."""

Row = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes]], int]
"""Offset, key, value, headers, timestamp."""


async def read(access: KafkaAccess, topic: str, number: int, start: int, end: int) -> AsyncIterator[bytes]:
    """Yield batches as `KafkaReader.read`, with a new reader."""
    reader = KafkaReader(access)
    try:
        async for batch in reader.read(topic, number, start, end):
            yield batch
    finally:
        await reader.close()


class Logs:
    """A data directory. Its logs are written in the caller's thread."""

    def __init__(self, directory: Path) -> None:
        self.storage = Storage(directory, post=lambda function, *arguments: function(*arguments), inline=True)

    def new(self, name: str, held: ProducerId) -> LocalLog:
        """Create a log whose batches have this producer id and epoch."""
        _, log = self.storage.create_queue("v", name, "/")
        log.appender.replica = KafkaSequencer(held.producer_id, held.epoch)
        return log

    def turn(self) -> None:
        """End the loop turn: appended messages are written."""
        self.storage.commits.end_of_turn()


def take(log: LocalLog) -> list[ClosedBatch]:
    """Return the batches that were not offered to Kafka yet."""
    assert log.appender.replica is not None
    return log.appender.replica.take()


def append(log: LocalLog, *bodies: bytes, persistent: bool = True) -> None:
    """Append messages, in one batch if they fit."""
    for body in bodies:
        log.append_parts(ROUTE, PROPERTIES, body, persistent)


def on_disk(directory: str | Path) -> list[bytes]:
    """Return the batches in the segments of a log or of a Kafka partition."""
    return [batch for path in sorted(Path(directory).glob("*.log")) for batch in split_batches(path.read_bytes())]


def split_batches(data: bytes) -> list[bytes]:
    """Split consecutive batches."""
    found = []
    at = 0
    while at + int(HEADER_SIZE) <= len(data):
        size = int(BatchHeader(data, at).size)
        found.append(data[at : at + size])
        at += size
    assert at == len(data)
    return found


class Producer:
    """A `KafkaProducer` that can wait for its partitions."""

    def __init__(self, access: KafkaAccess, **arguments: Any) -> None:
        self.news = asyncio.Event()
        self.refused: list[Partition] = []
        self.ended: list[str] = []
        self.kafka = KafkaProducer(
            access,
            on_moved=lambda _: self.news.set(),
            on_refused=self._on_refused,
            on_fenced=self._on_fenced,
            **{"delivery_timeout_s": 300, **arguments},
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kafka.close()

    def _on_refused(self, partition: Partition) -> None:
        self.refused.append(partition)
        self.news.set()

    def _on_fenced(self, text: str) -> None:
        self.ended.append(text)
        self.news.set()

    def offer(self, partition: Partition, batches: list[ClosedBatch]) -> None:
        """Offer batches and send them now."""
        self.kafka.offer(partition, batches)
        self.kafka.flush()

    async def until(self, *partitions: Partition, timeout_s: float = 300) -> None:
        """Wait until everything offered is in Kafka, or something was refused."""
        async with asyncio.timeout(timeout_s):
            while not (self.ended or self.refused) and any(each.order for each in partitions):
                self.news.clear()
                await self.news.wait()


def send_unmerged(partition: Partition) -> Partition:
    """Make the partition send batch by batch, without merging."""
    partition.full_size, partition.joined_size_max = 1, 0
    return partition


def contents(batches: list[bytes]) -> list[tuple[int, bytes]]:
    """Return offset and content (from the key on) of each record, regardless of batches. Uncompressed batches only."""
    found = []
    for batch in batches:
        header = BatchHeader(batch, 0)
        assert not header.is_compressed() and crc_fits(batch, 0, header)
        position = int(HEADER_SIZE)
        while position < len(batch):
            start, stop = record_stop(batch, position, len(batch))
            delta, at = read_offset_delta(batch, start)
            found.append((int(header.base_offset) + delta, batch[at:stop]))
            position = stop
    return found


async def fetch(access: KafkaAccess, topic: str, partition: int, offset: int = 0, size_max: int = 1 << 20) -> Fetched:
    """Return the answer to one Fetch."""
    metadata = await fetch_any_metadata(access, [topic.encode()])
    assert metadata is not None
    leader = metadata.leaders[topic.encode(), partition]
    connection = await open_connection(access, *metadata.brokers[leader])
    try:
        place = FetchPlace(topic.encode(), partition, offset, size_max)
        data = await connection.request(
            lambda number: encode_fetch(BytesWriter(), number, b"test", 500, size_max, [place])
        )
    finally:
        await connection.close()
    code, (found,) = decode_fetch(data)
    assert code == 0
    return found


async def first_offset(access: KafkaAccess, topic: str, partition: int) -> int:
    """Return the log start offset."""
    consumer = AIOKafkaConsumer(enable_auto_commit=False, **access.aiokafka_options())
    await consumer.start()
    try:
        place = TopicPartition(topic, partition)
        return int((await consumer.beginning_offsets([place]))[place])
    finally:
        await consumer.stop()


async def fetch_all(access: KafkaAccess, topic: str, partition: int, size_max: int = 1 << 20) -> list[bytes]:
    """Return all batches of a partition."""
    found: list[bytes] = []
    offset = 0
    while True:
        answer = await fetch(access, topic, partition, offset, size_max)
        if answer.code == OUT_OF_RANGE and offset == 0:  # records at the front were deleted
            offset = await first_offset(access, topic, partition)
            if offset:
                continue
        assert answer.code == 0, f"{topic} {partition} at {offset}: {answer.code}"
        batches = answer.batches()
        found += batches
        if not batches:
            return found
        offset = int(BatchHeader(batches[-1], 0).last_offset) + 1
        if offset >= answer.high_watermark:
            return found


def rows(records: list[Record]) -> list[Row]:
    """Return our records as rows, as another program reads them."""
    return [
        (
            record.offset,
            b"eu.new",
            None if record.tombstone else record.body,
            [("exchange", b"orders"), ("properties", record.properties)],
            record.timestamp_ms,
        )
        for record in records
    ]


def read_with_kafka_python(bootstrap: str, topic: str, partition: int, count: int) -> list[Row]:
    """Read with kafka-python's consumer."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False)
    try:
        at = KafkaTopicPartition(topic, partition)
        consumer.assign([at])
        consumer.seek(at, 0)
        found: list[Row] = []
        while len(found) < count:
            for records in consumer.poll(timeout_ms=1000).values():
                found += [(each.offset, each.key, each.value, list(each.headers), each.timestamp) for each in records]
        return found
    finally:
        consumer.close()


async def read_with_aiokafka(access: KafkaAccess, topic: str, partition: int, count: int) -> list[Row]:
    """Read with aiokafka's consumer, using the same access settings."""
    consumer = AIOKafkaConsumer(auto_offset_reset="earliest", enable_auto_commit=False, **access.aiokafka_options())
    await consumer.start()
    try:
        at = TopicPartition(topic, partition)
        consumer.assign([at])
        consumer.seek(at, 0)
        found: list[Row] = []
        while len(found) < count:
            for records in (await consumer.getmany(at, timeout_ms=1000)).values():
                found += [(each.offset, each.key, each.value, list(each.headers), each.timestamp) for each in records]
        return found
    finally:
        await consumer.stop()


def create_topic(bootstrap: str, name: str, partitions: int = 1, copies: int = 1, **configs: str) -> None:
    """Create a topic as queues' topics are created."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        topic = NewTopic(name, num_partitions=partitions, replication_factor=copies, topic_configs=settings)
        admin.create_topics([topic])
    finally:
        admin.close()


def delete_topic(bootstrap: str, name: str) -> None:
    """Delete a topic, as a foreign program would."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.delete_topics([name])
    finally:
        admin.close()
