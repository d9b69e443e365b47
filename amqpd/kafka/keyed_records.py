"""Records with a key and a value in a record batch: what compacted topics hold. Of equal keys the last one counts, and
a null value (a *tombstone*) ends its key.

`keyed_batch` makes one batch of them, with Kafka's attributes (none) and the writer's numbers; `read_keyed` has them
back from a batch as it stands in a partition, whoever wrote it. A record's own headers are passed over.

Compiled by mypyc.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter
from mypy_extensions import i64

from amqpd.storage.log.batch import HEADER_SIZE, BatchHeader, ClosedBatch, close_batch
from amqpd.storage.log.compression import plain
from amqpd.storage.log.record import BadRecord, read_offset_delta, read_varint, record_stop, varint_size, write_varint

_NO_BYTES: Final = b""
_NULL: Final[i64] = -1


@final
class Keyed:
    """One record. value: None is a tombstone."""

    def __init__(self, key: bytes, value: bytes | None) -> None:
        self.key: bytes = key
        self.value: bytes | None = value

    def size(self) -> i64:
        """Bytes that it takes in a batch, at most."""
        value = self.value
        return len(self.key) + (len(value) if value is not None else 0) + 24


def keyed_batch(
    records: list[Keyed], base_offset: i64, timestamp_ms: i64, producer_id: i64, epoch: i64, sequence: i64
) -> ClosedBatch:
    """The batch of `records`, of which there is one at least, all of the time `timestamp_ms` (since 1970).

    Cost: some 0.3 us a record, and the CRC.
    """
    writer = BytesWriter()
    delta: i64 = 0
    for record in records:
        value = record.value
        key_size: i64 = len(record.key)
        value_size: i64 = len(value) if value is not None else _NULL
        size: i64 = 2 + varint_size(delta) + varint_size(key_size) + key_size + 1
        size += 1 if value_size < 0 else varint_size(value_size) + value_size
        write_varint(writer, size)
        writer.append(0)
        writer.append(0)
        write_varint(writer, delta)
        write_varint(writer, key_size)
        writer.write(record.key)
        write_varint(writer, value_size)
        if value is not None:
            writer.write(value)
        writer.append(0)  # no headers
        delta += 1
    return close_batch(
        BytesWriter(),
        writer.getvalue(),
        base_offset,
        delta,
        0,
        0,
        timestamp_ms,
        0,
        producer_id,
        sequence,
        -1,
        [],
        epoch,
    )


def read_keyed(batch: bytes) -> list[Keyed]:
    """The records of a whole batch whose checksum is right, in order; those of a control batch are none.

    Raises: BadRecord.
    """
    header = BatchHeader(batch, 0)
    if header.control():
        return []
    data, at, header = plain(batch, 0, header)
    found: list[Keyed] = []
    end: i64 = at + header.size
    position: i64 = at + HEADER_SIZE
    left: i64 = header.count
    while left > 0:
        start: i64 = 0
        stop: i64 = 0
        size: i64 = 0
        start, stop = record_stop(data, position, end)
        _, start = read_offset_delta(data, start)
        size, start = read_varint(data, start)
        key = _NO_BYTES
        if size > 0:
            if start + size > stop:
                raise BadRecord("a key runs past the end of its record")
            key = data[start : start + size]
            start += size
        size, start = read_varint(data, start)
        value: bytes | None = None
        if size >= 0:
            if start + size > stop:
                raise BadRecord("a value runs past the end of its record")
            value = data[start : start + size]
        found.append(Keyed(key, value))
        position = stop
        left -= 1
    return found
