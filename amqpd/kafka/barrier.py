"""The first record that a new owner writes to a partition: behind it nothing of the one before is stored.

Kafka learns of a new epoch in a partition by the first batch there that has it, and from then on refuses batches of
the one before. So the owner writes this one to each of its partitions, free ones too, before it serves anything; it
takes an offset, which the owner does not know beforehand and learns by it.

    key      the transactional id, so that compacted topics take it
    value    null
    header   `amqpd-barrier`: producer id and epoch, in figures, with a space between

It is no message: it has neither the header `exchange` nor `properties`.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from amqpd.storage.log.batch import ClosedBatch, close_batch
from amqpd.storage.log.record import varint

HEADER: Final = b"amqpd-barrier"
_NULL: Final = varint(-1)


def barrier(key: bytes, producer_id: i64, epoch: i64, timestamp_ms: i64, base_offset: i64) -> ClosedBatch:
    """The batch, of sequence 0. base_offset: 0 where it is not known. timestamp_ms: wall clock, milliseconds."""
    told = f"{producer_id} {epoch}".encode()
    record = b"".join(
        (
            b"\0\0\0",  # attributes, timestamp delta, offset delta
            varint(len(key)),
            key,
            _NULL,
            varint(1),
            varint(len(HEADER)),
            HEADER,
            varint(len(told)),
            told,
        )
    )
    records = varint(len(record)) + record
    return close_batch(BytesWriter(), records, base_offset, 1, 0, 0, timestamp_ms, 0, producer_id, 0, -1, [], epoch)
