"""Several batches of one partition as one, where they waited for each other: a broker carries out one request of a
connection after the other, and a request has one batch for a partition, so a batch costs a round trip however small.

Only messages are joined: who reads a batch sees by its first record whether it has messages, or is a barrier, or what
keeps a producer known. The records stay as they are but for their places in the batch; the numbers of their producer
go on from one batch to the next, so the first one's is that of all. The time is the last one's: a batch's time is that
of its end.

Compiled by mypyc.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from amqpd.storage.log.batch import BatchHeader, ClosedBatch, close_batch
from amqpd.storage.log.record import read_varint, record_stop, varint_size, write_varint

JOINED_SIZE_MAX: Final[i64] = 512 * 1024
"""Bytes of what is joined: who reads a record of it again reads the batch."""

_SEQUENCE_MAX: Final[i64] = 0x7FFF_FFFF
_PRODUCER: Final[i64] = 43  # producer id and epoch, in the header
_SEQUENCE: Final[i64] = 53


def goes_on(before: ClosedBatch, batch: ClosedBatch) -> bool:
    """Whether the two may be one: messages of one producer and epoch, neighbours, neither compressed nor in parts."""
    if not before.joins or not batch.joins:
        return False
    header = BatchHeader(before.header, 0)
    sequence: i64 = header.base_sequence + (before.last_offset - before.base_offset + 1)
    return (
        batch.base_offset == before.last_offset + 1
        and sequence <= _SEQUENCE_MAX
        and BatchHeader(batch.header, 0).base_sequence == sequence
        and batch.header[_PRODUCER:_SEQUENCE] == before.header[_PRODUCER:_SEQUENCE]
    )


def join(batches: list[ClosedBatch]) -> ClosedBatch:
    """One batch of them all, each of which `goes_on` from the one before. Cost: a copy of each record, and the CRC.
    Raises: BadRecord where one has no records.
    """
    first = batches[0]
    last = batches[len(batches) - 1]
    header = BatchHeader(first.header, 0)
    writer = BytesWriter()
    writer.write(first.records)
    body_size: i64 = first.body_size_bytes
    for index in range(1, len(batches)):
        batch = batches[index]
        body_size += batch.body_size_bytes
        _add(writer, batch.records, batch.base_offset - first.base_offset)
    records = writer.getvalue()
    one = close_batch(
        writer,
        records,
        first.base_offset,
        last.last_offset - first.base_offset + 1,
        header.epoch,
        0,
        last.timestamp_ms,
        body_size,
        header.producer_id,
        header.base_sequence,
        -1,
        [],
        header.producer_epoch,
    )
    one.joins = True
    return one


def _add(writer: BytesWriter, data: bytes, shift: i64) -> None:
    """Records, whose offset deltas rise by `shift`."""
    end: i64 = len(data)
    position: i64 = 0
    while position < end:
        start: i64 = 0
        stop: i64 = 0
        delta: i64 = 0
        time_end: i64 = 0
        rest: i64 = 0
        start, stop = record_stop(data, position, end)
        _, time_end = read_varint(data, start + 1)
        delta, rest = read_varint(data, time_end)
        delta += shift
        write_varint(writer, time_end - start + varint_size(delta) + stop - rest)
        while start < time_end:  # attributes and time, two bytes
            writer.append(data[start])
            start += 1
        write_varint(writer, delta)
        writer.write(data[rest:stop])
        position = stop
