"""How a log's batches are closed when Kafka is to have them as they are, and those that it has not been given yet.

Kafka refuses a batch that says when it was appended (LogAppendTime), and one with a control record; attributes that it
leaves free it drops as soon as it recomputes them. So a batch for it has no attribute but its compression; its time
stands in it as CreateTime, the same for all its records. It is numbered: producer id, epoch, and a sequence that goes
on from batch to batch, record by record, and behind 2147483647 begins with 0 again.

A transient message of such a log is stored as a persistent one. A transaction is one batch: Kafka's markers are its
own. Offsets are Kafka's too, so a batch that could not be written here goes there all the same: there is no gap.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from amqpd.storage.log.batch import ClosedBatch

SEQUENCE_MAX: Final[i64] = 0x7FFF_FFFF


@final
class Replica:
    """What an `Appender` closes batches by. sequence: of the next record. closed: batches in order, until taken."""

    def __init__(self, producer_id: i64, epoch: i64, sequence: i64 = 0) -> None:
        self.producer_id: i64 = producer_id
        self.epoch: i64 = epoch
        self.sequence: i64 = sequence
        self.closed: list[ClosedBatch] = []

    def number(self, count: i64) -> i64:
        """The sequence of the first of the next `count` records."""
        first: i64 = self.sequence
        self.sequence = (first + count) & SEQUENCE_MAX
        return first

    def take(self) -> list[ClosedBatch]:
        """The batches that were closed since the last call, in order."""
        closed = self.closed
        self.closed = []
        return closed
