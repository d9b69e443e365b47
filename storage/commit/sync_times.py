"""How long the groups of the group commit take to sync, and how large they are: three histograms.

The committer's thread alone writes them, once per group; whoever reads them sees some group counted in one and not yet
in the other, at most. Counts are by bucket, not added up; the last is of what is above all bounds.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
BOUNDS_BYTES: Final = (1024, 4096, 16384, 65536, 262144, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
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
