"""Retention and compaction policies of a log: plain values that retention.py and compaction.py use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from amqpd.storage.log.record import Record

FILE_DELETE_DELAY_MS = 60_000


def routing_key(record: Record) -> bytes | None:
    return record.routing_key or None


@dataclass(frozen=True)
class CleanerPolicy:
    """Compaction of a log.

    Attributes:
        key: returns the key of a record; None if it has none and remains.
        min_dirty_ratio: share of the sealed bytes that must be dirty.
        tombstone_retention_ms: see compaction.py.
        map_size_bytes: limit of the key map; a key takes 24 bytes, and a quarter remains free.
    """

    key: Callable[[Record], bytes | None] = routing_key
    min_dirty_ratio: float = 0.5
    tombstone_retention_ms: int = 24 * 3_600_000
    map_size_bytes: int = 64 << 20


@dataclass(frozen=True)
class RetentionPolicy:
    """Retention of a log. -1 means no limit.

    Attributes:
        segment_age_ms: roll a segment whose first record is older, so that age works with few appends.
        segment_size_bytes: roll the active segment at this size; -1 for the default of all logs.
        file_delete_delay_ms: how long removed files remain, renamed to `.deleted`.
        compaction: see compaction.py.
        codec: compression of new batches, a number of log/batch.py. Existing batches do not change.
    """

    max_age_ms: int = -1
    max_bytes: int = -1
    segment_age_ms: int = -1
    segment_size_bytes: int = -1
    file_delete_delay_ms: int = FILE_DELETE_DELAY_MS
    compaction: CleanerPolicy | None = None
    codec: int = 0

    @property
    def removes(self) -> bool:
        """True if the policy can remove messages."""
        return max(self.max_age_ms, self.max_bytes) >= 0 or self.compaction is not None
