"""How much of each log its queue may hold in memory, so that all of them together stay within bounds.

A queue with a log holds a window of what is ready (queue.py); the rest waits in the log. Up to QUEUES_FULL queues have
a whole window each. From there on the windows shrink as the queues double, down to a floor: a thousand queues with
backlogs hold some 130 MB where whole windows would be gigabytes. A window that is smaller costs reading from the log
what did not fit, and nothing else.
"""

from __future__ import annotations

from typing import Final

from amqpd.broker.delivery import Source

QUEUES_FULL: Final = 32
COUNT_MAX: Final = 4096
COUNT_MIN: Final = 32
BYTES_MAX: Final = 4 * 1024 * 1024
BYTES_MIN: Final = 32 * 1024


class Windows:
    """Of all queues with logs; one per broker. `count_max`, `bytes_max`: of each window just now."""

    def __init__(self) -> None:
        self.count_max = COUNT_MAX
        self.bytes_max = BYTES_MAX
        self._queues: set[Source] = set()
        self._shares = QUEUES_FULL  # how many windows the whole is cut into

    def add(self, queue: Source) -> None:
        """Another queue with a log. Cost: O(1), and now and then a step for each."""
        self._queues.add(queue)
        if len(self._queues) > self._shares:
            self._cut(2 * self._shares)
        else:
            self._set(queue)

    def remove(self, queue: Source) -> None:
        """It is deleted."""
        self._queues.discard(queue)
        if self._shares > QUEUES_FULL and len(self._queues) < self._shares // 4:
            self._cut(self._shares // 2)

    def _cut(self, shares: int) -> None:
        self._shares = shares
        self.count_max = max(COUNT_MIN, COUNT_MAX * QUEUES_FULL // shares)
        self.bytes_max = max(BYTES_MIN, BYTES_MAX * QUEUES_FULL // shares)
        for queue in self._queues:
            self._set(queue)

    def _set(self, queue: Source) -> None:
        queue.set_window(self.count_max, self.bytes_max)
