"""A record batch that comes back from Kafka, for a cache of what is live of its log: what of it is settled, and whether
it holds messages at all.

A batch of ours has records with the header `properties`; of one that has none all is passed over: a barrier, what is
written hourly, or a batch that somebody else has written. So is one that we would never write (transactional, control),
and one that cannot be read.

Compiled by mypyc.
"""

from __future__ import annotations

import logging
from typing import Final, final

from mypy_extensions import i64

from amqpd.storage.log.batch import CONTROL, HEADER_SIZE, TRANSACTIONAL, BatchHeader, ClosedBatch
from amqpd.storage.log.compression import plain
from amqpd.storage.log.record import BadRecord, read_offset_delta, read_record, record_stop, value_size
from amqpd.kafka.keyed_records import read_keyed
from amqpd.cluster.replicated_acks import Told

logger = logging.getLogger(__name__)

_FOREIGN: Final[i64] = TRANSACTIONAL | CONTROL


@final
class Filled:
    """What came of one. batch: None where nothing of it is live. runs: what of it is settled, both ends inclusive;
    settled_bytes: of the bodies in them. foreign_count: of its records, where somebody else has written it.
    """

    def __init__(self) -> None:
        self.batch: ClosedBatch | None = None
        self.runs: list[tuple[int, int]] = []
        self.settled_bytes: i64 = 0
        self.foreign_count: i64 = 0
        self.total_bytes: i64 = 0
        self.live_count: i64 = 0
        # The run that is open, where it begins; the first offset that nothing is known of.
        self._run: i64 = -1
        self._next_offset: i64 = 0

    def begin(self, offset: i64) -> None:
        """The batch's first."""
        self._next_offset = offset

    def record(self, offset: i64, settled: bool, size: i64) -> None:
        """The next one; offsets before it that no record has count as settled."""
        self.total_bytes += size
        if settled:
            self.settled_bytes += size
            if self._run < 0:
                self._run = self._next_offset
        else:
            self.live_count += 1
            if self._run < 0 and offset > self._next_offset:
                self._run = self._next_offset
            if self._run >= 0:
                self.runs.append((self._run, offset - 1))
                self._run = -1
        self._next_offset = offset + 1

    def end(self, last_offset: i64) -> None:
        """There are no more."""
        if self._run < 0 and self._next_offset <= last_offset:
            self._run = self._next_offset
        if self._run >= 0:
            self.runs.append((self._run, last_offset))


def look_over(data: bytes, first_offset: i64, told: Told, name: str) -> Filled:
    """One batch, whole, its checksum right. first_offset: what is below is not of this log. name: of its queue, for
    what is logged. Cost: some 50 ns a record, and a copy of the batch.
    """
    filled = Filled()
    header = BatchHeader(data, 0)
    if header.last_offset < first_offset:
        return filled
    if header.attributes & _FOREIGN != 0:
        filled.foreign_count = header.count
        return filled
    try:
        if not _records(data, header, first_offset, told, filled):
            filled.foreign_count = _foreign(data, header)
            return filled
    except BadRecord as error:
        logger.error("queue '%s': the batch at %d in Kafka cannot be read: %s", name, header.base_offset, error)
        filled.foreign_count = header.count
        return filled
    if filled.live_count > 0:
        filled.batch = ClosedBatch(
            data[:HEADER_SIZE],
            data[HEADER_SIZE:],
            header.base_offset,
            header.last_offset,
            header.max_timestamp_ms,
            filled.total_bytes,
            0,
            -1,
            [],
        )
    return filled


def _records(data: bytes, header: BatchHeader, first_offset: i64, told: Told, filled: Filled) -> bool:
    """Whether they are messages of ours. Raises: BadRecord."""
    image, at, whole = plain(data, 0, header)
    end: i64 = at + whole.size
    position: i64 = at + HEADER_SIZE
    left: i64 = whole.count
    filled.begin(header.base_offset)
    while left > 0:
        start: i64 = 0
        stop: i64 = 0
        delta: i64 = 0
        fields: i64 = 0
        start, stop = record_stop(image, position, end)
        delta, fields = read_offset_delta(image, start)
        offset: i64 = whole.base_offset + delta
        if left == whole.count and not read_record(image, fields, stop, offset, 0, True).properties:
            return False
        settled: bool = offset < first_offset or told.settled(offset)
        filled.record(offset, settled, value_size(image, start, stop))
        position = stop
        left -= 1
    filled.end(header.last_offset)
    return True


def _foreign(data: bytes, header: BatchHeader) -> i64:
    """How many of its records are somebody else's: a barrier, and what is written hourly, is one record alone that has
    no value.
    """
    return 0 if header.count == 1 and read_keyed(data)[0].value is None else header.count
