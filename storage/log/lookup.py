"""Where in a log a time begins.

The first segment whose latest batch is not before the time has the answer, if it has one. There `.timeindex` leads to
an offset up to which everything is earlier; from there on records are looked at. An entry is believed only if the batch
it names ends there and is itself early enough; where it does not, the segment is looked at from its start. So a damaged
or missing `.timeindex` costs time and gives the same answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpd.storage.log.batch import HEADER_SIZE, BatchHeader, crc_fits

if TYPE_CHECKING:
    from amqpd.storage.log.log import Log
    from amqpd.storage.log.segment import Segment
    from amqpd.storage.queue_log import QueueLog


def offset_at(store: QueueLog, timestamp_ms: int) -> int:
    """The offset of the first message appended at `timestamp_ms` or later; `next_offset` where there is none.

    timestamp_ms: the broker's time of appending, since 1970. Where the clock went back in between, the first in the
    order of the log. Cost: a step per segment, three small reads, and some batches. Waits for the disk. Raises:
    OSError.
    """
    store.recover()
    store.flush_batches()
    offset = int(store.offset_before(timestamp_ms))
    cursor = store.new_cursor()
    try:
        while records := cursor.read(offset, 65536).records:
            for record in records:
                if record.timestamp_ms >= timestamp_ms:
                    return int(record.offset)
            offset = int(records[-1].offset) + 1
    finally:
        cursor.close()
    return int(store.next_offset)


def offset_before(log: Log, timestamp_ms: int) -> int:
    """See `QueueLog.offset_before`. All that was appended is in the segments."""
    for segment in log.segments:
        if segment.gone or segment.live == 0 or segment.latest_ms() < timestamp_ms:
            continue
        relative = segment.times().offset_before(timestamp_ms)
        if 0 < relative < segment.end - segment.base and _early(log, segment, relative, timestamp_ms):
            return segment.base + relative + 1
        return segment.base
    return log.end


def _early(log: Log, segment: Segment, relative: int, timestamp_ms: int) -> bool:
    """Whether a good batch before `timestamp_ms` ends at the relative offset, as a time index entry says."""
    found, position = segment.index().floor(relative)
    if found != relative:
        return False
    filesystem, fd = log.filesystem, segment.open_log().fd
    data = filesystem.pread(fd, int(HEADER_SIZE), position)
    if len(data) < HEADER_SIZE:
        return False
    header = BatchHeader(data, 0)
    if not header.plausible() or header.last_offset != segment.base + relative or position + header.size > segment.size:
        return False
    data = filesystem.pread(fd, int(header.size), position)
    return crc_fits(data, 0, header) and header.max_timestamp_ms < timestamp_ms
