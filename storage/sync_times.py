"""Histograms of the group commit: how long groups take to sync, how large they are, how old acks are when written.

Counts are by bucket, not added up; the last is of what is above all bounds. The committer's thread alone writes those
of `SyncTimes`, once per group: a reader sees at most one group that is counted in one of them and not yet in another.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
BOUNDS_BYTES: Final = (1024, 4096, 16384, 65536, 262144, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
BOUNDS_ACKS_S: Final = (0.01, 0.025, 0.05, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
BOUNDS_LOGS: Final = (1, 2, 4, 8, 16, 64, 256, 1024, 4096)


class SyncTimes:
    """total_s, total_bytes, total_logs: of all groups together."""

    def __init__(self) -> None:
        self.by_time = [0] * (len(BOUNDS_S) + 1)
        self.by_bytes = [0] * (len(BOUNDS_BYTES) + 1)
        self.by_logs = [0] * (len(BOUNDS_LOGS) + 1)
        self.total_s = 0.0
        self.total_bytes = 0
        self.total_logs = 0

    def add(self, took_s: float, size_bytes: int, logs: int) -> None:
        """One group. Cost: 1 us."""
        self.by_time[bisect_left(BOUNDS_S, took_s)] += 1
        self.by_bytes[bisect_left(BOUNDS_BYTES, size_bytes)] += 1
        self.by_logs[bisect_left(BOUNDS_LOGS, logs)] += 1
        self.total_s += took_s
        self.total_bytes += size_bytes
        self.total_logs += logs

    @property
    def count(self) -> int:
        """Groups."""
        return sum(self.by_time)


class AckAges:
    """How old the oldest ack was, each time that acks were written. The loop's thread writes it, 20 times a second."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_ACKS_S) + 1)
        self.total_s = 0.0

    def add(self, age_s: float) -> None:
        """Acks were written, the oldest of them of this age."""
        self.counts[bisect_left(BOUNDS_ACKS_S, age_s)] += 1
        self.total_s += age_s
