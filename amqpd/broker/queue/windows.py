"""How much of each log its queue may hold in memory, so that all of them together stay within bounds.

A queue with a log holds a window of what is ready (ready_order.py); the rest waits in the log. Up to QUEUES_FULL queues
have a whole window each. From there on the windows shrink as the queues double, down to a floor: a thousand queues with
backlogs hold some 130 MB where whole windows would be gigabytes. A window that is smaller costs reading from the log
what did not fit, and nothing else.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

QUEUES_FULL: Final = 32
COUNT_MAX: Final = 4096
COUNT_MIN: Final = 32
BYTES_MAX: Final = 4 * 1024 * 1024
BYTES_MIN: Final = 32 * 1024


class Window:
    """What may be held in memory: `count_max` entries, `bytes_max` of their bodies."""

    def __init__(self, count_max: i64, bytes_max: i64) -> None:
        self.count_max = count_max
        self.bytes_max = bytes_max


class Windows:
    """Of all queues with logs; one per broker. `count_max`, `bytes_max`: of each window just now."""

    def __init__(self) -> None:
        self.count_max: i64 = COUNT_MAX
        self.bytes_max: i64 = BYTES_MAX
        self._windows: set[Window] = set()
        self._shares: i64 = QUEUES_FULL  # how many windows the whole is cut into

    def add(self, window: Window) -> None:
        """Of another queue with a log. Cost: O(1), and now and then a step for each."""
        self._windows.add(window)
        if len(self._windows) > self._shares:
            self._cut(2 * self._shares)
        else:
            self._set(window)

    def remove(self, window: Window) -> None:
        """Its queue is deleted."""
        self._windows.discard(window)
        if self._shares > QUEUES_FULL and len(self._windows) < self._shares // 4:
            self._cut(self._shares // 2)

    def replace(self, old: Window, new: Window) -> None:
        """The queue of one goes on with the other."""
        if old in self._windows:
            self._windows.discard(old)
            self._windows.add(new)

    def _cut(self, shares: i64) -> None:
        self._shares = shares
        self.count_max = max(COUNT_MIN, COUNT_MAX * QUEUES_FULL // shares)
        self.bytes_max = max(BYTES_MIN, BYTES_MAX * QUEUES_FULL // shares)
        for window in self._windows:
            self._set(window)

    def _set(self, window: Window) -> None:
        window.count_max = self.count_max
        window.bytes_max = self.bytes_max
