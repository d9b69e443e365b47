"""Records with a key and a value as they come out of `meta`, in parts; amqpd/kafka/keyed_records.py makes batches.

    key      bytes, never null: compaction keeps the last record of each
    value    bytes; null takes the key away
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from amqpd.storage.log.batch import BatchCursor, BatchHeader
from amqpd.storage.log.compression import plain
from amqpd.storage.log.record import Record

READ_PART: Final = 256 * 1024
"""Bytes of values that are decoded at a time, so that a large batch does not hold the loop."""


class Keyed(NamedTuple):
    """One record. value: None, a tombstone."""

    offset: int
    key: bytes
    value: bytes | None


def record_size(key: bytes, value: bytes | None) -> int:
    """Bytes that it takes in a batch, at most."""
    return 24 + len(key) + (0 if value is None else len(value))


def keyed_records(batch: bytes) -> Iterator[list[Keyed]]:
    """The records of a batch that Kafka gave, in parts of some READ_PART bytes; of a control batch none. Raises:
    BadRecord, in a batch whose checksum is right: a program wrote it that is none of ours.
    """
    data, at, header = plain(batch, 0, BatchHeader(batch, 0))
    cursor = BatchCursor(data, at, header)
    while cursor.remaining > 0:
        records: list[Record] = []
        cursor.read(0, None, {}, READ_PART, records)
        yield [Keyed(int(each.offset), each.routing_key, None if each.tombstone else each.body) for each in records]
