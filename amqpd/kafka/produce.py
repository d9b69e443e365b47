"""Produce, version 9: record batches to Kafka, as they stand in a log.

    request   transactional id (null) | acks -1 | timeout i32 ms | topics: name, partitions: index i32, records
    answer    topics: name, partitions: index i32, code i16, base offset i64, time i64, log start offset i64, errors of
              single records, a text | throttled i32 ms

All of it compact, with no tagged fields of ours. One batch per partition and request, as Kafka wants it. A batch goes
as it is but for its base offset, which has to be 0 there: the partition's leader writes its own, and its epoch, over
the first 16 bytes, which the checksum does not cover. Equal from the magic byte on is what is stored.

Version 9 is the first of the flexible ones, and the same as 10 to 12 for who uses no transactions; 13 names topics by
id. Kafka 4 has 3 to 13.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64

from amqpd.storage.log.batch import ClosedBatch
from amqpd.kafka.wire import BadAnswer, Reader, uvarint_size, write_compact, write_int16, write_int32, write_uvarint
from amqpd.kafka.requests import PRODUCE, head_size, read_head, write_head

VERSION: Final[i64] = 9
ACKS_ALL: Final[i64] = -1
_ZERO_OFFSET: Final = b"\0\0\0\0\0\0\0\0"
_OFFSET_SIZE: Final[i64] = 8
_COPIED_MAX: Final[i64] = 16 * 1024  # records of a batch that are copied into the request; larger ones go as they are
# The least that an element of each array takes.
_TOPIC_LEAST: Final[i64] = 3
_PARTITION_LEAST: Final[i64] = 33
_RECORD_ERROR_LEAST: Final[i64] = 6


@final
class TopicBatches:
    """What goes to one topic with one request. partitions, batches: side by side, each partition once."""

    def __init__(self, topic: bytes) -> None:
        self.topic: bytes = topic
        self.partitions: list[int] = []
        self.batches: list[ClosedBatch] = []

    def add(self, partition: i64, batch: ClosedBatch) -> None:
        """One batch more."""
        self.partitions.append(partition)
        self.batches.append(batch)

    def size(self) -> i64:
        """Bytes in a request."""
        size: i64 = uvarint_size(len(self.topic) + 1) + len(self.topic) + uvarint_size(len(self.batches) + 1) + 1
        for batch in self.batches:
            size += 4 + uvarint_size(batch.size + 1) + batch.size + 1
        return size


def encode_produce(
    scratch: BytesWriter, correlation_id: i64, client_id: bytes, timeout_ms: i64, topics: list[TopicBatches]
) -> list[bytes]:
    """A request, its length before it, in parts to be written one behind the other.

    scratch: any writer, emptied here. timeout_ms: for how long Kafka waits for the replicas. Cost: some 1 us and 0.3 us
    a batch; one copy of the records of small ones, none of large ones.
    """
    size: i64 = head_size(client_id) + 1 + 2 + 4 + uvarint_size(len(topics) + 1) + 1
    for topic in topics:
        size += topic.size()
    parts: list[bytes] = []
    scratch.truncate(0)
    write_head(scratch, size, PRODUCE, VERSION, correlation_id, client_id)
    scratch.append(0)  # no transactional id
    write_int16(scratch, ACKS_ALL)
    write_int32(scratch, timeout_ms)
    write_uvarint(scratch, len(topics) + 1)
    for topic in topics:
        write_compact(scratch, topic.topic)
        batches = topic.batches
        write_uvarint(scratch, len(batches) + 1)
        for index, batch in enumerate(batches):
            partition: i64 = topic.partitions[index]
            write_int32(scratch, partition)
            write_uvarint(scratch, batch.size + 1)
            scratch.write(_ZERO_OFFSET)
            scratch.write(batch.header[_OFFSET_SIZE:])
            if len(batch.records) <= _COPIED_MAX:
                scratch.write(batch.records)
            else:
                parts.append(scratch.getvalue())
                parts.append(batch.records)
                scratch.truncate(0)
            if batch.more:
                parts.append(scratch.getvalue())
                parts += batch.more
                scratch.truncate(0)
            scratch.append(0)  # no tagged fields
        scratch.append(0)
    scratch.append(0)
    parts.append(scratch.getvalue())
    return parts


@final
class ProduceAnswer:
    """What became of one partition's batch. code: Kafka's. base_offset: where it stands, -1 where it does not."""

    def __init__(self, topic: bytes, partition: i64, code: i64, base_offset: i64, text: str) -> None:
        self.topic: bytes = topic
        self.partition: i64 = partition
        self.code: i64 = code
        self.base_offset: i64 = base_offset
        self.text: str = text


def decode_produce(data: bytes) -> list[ProduceAnswer]:
    """The answer in a frame, partition by partition. Cost: some 1 us and 0.5 us a partition. Raises: BadAnswer."""
    reader = Reader(data)
    read_head(reader)
    answers: list[ProduceAnswer] = []
    topics: i64 = reader.count(_TOPIC_LEAST)
    while topics > 0:
        topic = reader.compact()
        left: i64 = reader.count(_PARTITION_LEAST)
        while left > 0:
            partition: i64 = reader.int32()
            code: i64 = reader.int16()
            base_offset: i64 = reader.int64()
            reader.int64()  # the time of an append: queues' topics keep the publisher's
            reader.int64()  # log start offset
            text = _read_texts(reader)
            reader.pass_tags()
            answers.append(ProduceAnswer(topic, partition, code, base_offset, text))
            left -= 1
        reader.pass_tags()
        topics -= 1
    reader.int32()  # throttled: Kafka holds its answers back by itself
    reader.pass_tags()
    reader.finish()
    return answers


def _read_texts(reader: Reader) -> str:
    """What Kafka says about single records and about the batch, for people; mostly nothing."""
    said: list[bytes] = []
    left: i64 = reader.count(_RECORD_ERROR_LEAST)
    while left > 0:
        reader.int32()
        of_record = reader.compact_or_none()
        if of_record is not None and len(said) < 3:
            said.append(of_record)
        reader.pass_tags()
        left -= 1
    of_batch = reader.compact_or_none()
    if of_batch is not None:
        said.append(of_batch)
    return b"; ".join(said).decode("utf-8", "replace") if said else ""


__all__ = ["ACKS_ALL", "VERSION", "BadAnswer", "ProduceAnswer", "TopicBatches", "decode_produce", "encode_produce"]
