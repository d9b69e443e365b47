"""Delays of the event loop: a timer every INTERVAL_S measures how late it runs.

If a step blocks the loop for 50 ms, a timer that is due meanwhile runs up to 50 ms late. Over some minutes, the
histogram shows how often and how long clients wait.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from typing import Final

INTERVAL_S: Final = 0.25
BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)


class LoopLag:
    """A histogram of the delays. Cost: 4 timers a second, about 10 us each.

    Attributes:
        counts: by bucket, one more than BOUNDS_S.
        total_s: the sum of all delays.
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0
        self._due_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Measure until `stop`."""
        self._due_at = loop.time() + INTERVAL_S
        self._timer = loop.call_at(self._due_at, self._measure, loop)

    def _measure(self, loop: asyncio.AbstractEventLoop) -> None:
        self.add(max(0.0, loop.time() - self._due_at))
        self.start(loop)

    def add(self, late_s: float) -> None:
        self.counts[bisect_left(BOUNDS_S, late_s)] += 1
        self.total_s += late_s

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
