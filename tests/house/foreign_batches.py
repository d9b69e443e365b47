"""Record batches of other programs, checked in one call. The broker checks them in slices (kafka_server/produce.py)."""

from __future__ import annotations

from amqpd.storage.log.appender import BatchCheck
from amqpd.storage.log.batch import ClosedBatch


def check_batches(data: bytes, transactional: bool = False) -> list[ClosedBatch]:
    """Return the batches in `data`, in order, still with their original offsets. Raises: BadBatch."""
    batches: list[ClosedBatch] = []
    position = 0
    while position < len(data):
        check = BatchCheck(data, position, len(data), transactional)
        check.run()
        batches.append(check.batch())
        position += check.size
    return batches
