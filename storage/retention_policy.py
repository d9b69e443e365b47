"""What a log is to keep, as its owner says it: plain values, which retention.py and compaction.py act on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from amqpd.storage.log.record import Record

FILE_DELETE_DELAY_MS = 60_000


def routing_key(record: Record) -> bytes | None:
    """The key that a record has on the disk."""
    return record.routing_key or None


@dataclass(frozen=True)
class CleanerPolicy:
    """How a log is compacted.

    key: of a record; None: it has none and stays. min_dirty_ratio: share of the sealed bytes that must be dirty.
    tombstone_retention_ms: see compaction.py. map_size_bytes: what the map of keys may take, 24 bytes for each, a
    quarter free.
    """

    key: Callable[[Record], bytes | None] = routing_key
    min_dirty_ratio: float = 0.5
    tombstone_retention_ms: int = 24 * 3_600_000
    map_size_bytes: int = 64 << 20


@dataclass(frozen=True)
class RetentionPolicy:
    """What a log keeps. -1: no limit.

    segment_age_ms: a segment whose first record is older is rolled, so that age can take effect where little is
    appended. segment_size_bytes: at which the active segment is rolled; -1: that of all logs. file_delete_delay_ms: how
    long removed files stay, renamed `.deleted`. compaction: see compaction.py.
    codec: how batches are compressed from now on, a number of storage/log/batch.py; what stands there stays as it is.
    """

    max_age_ms: int = -1
    max_bytes: int = -1
    max_records: int = -1
    segment_age_ms: int = -1
    segment_size_bytes: int = -1
    file_delete_delay_ms: int = FILE_DELETE_DELAY_MS
    compaction: CleanerPolicy | None = None
    codec: int = 0

    @property
    def removes(self) -> bool:
        """Whether anything may ever go by it."""
        limits = (self.max_age_ms, self.max_bytes, self.max_records)
        return max(limits) >= 0 or self.compaction is not None
