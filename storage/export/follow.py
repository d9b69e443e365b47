"""When an export with `--follow` begins a batch: files of many small batches are slow to read.

A batch begins when enough bytes of log wait, when its first message has waited long enough, or when the batch is as
large as it may be. What waits at the start of a run does not wait longer, so restarts do not delay messages for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

MIN_BATCH_BYTES: Final = 128 << 20
MAX_BATCH_AGE_S: Final = 60.0


class BatchTrigger:
    """Decides whether the waiting messages are enough for a batch.

    Args:
        bytes_min: Bytes of log that are enough.
        age_max_s: Longest time from the first look that saw waiting messages to the batch.
    """

    def __init__(self, bytes_min: int, age_max_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._bytes_min = bytes_min
        self._age_max_s = age_max_s
        self._clock = clock
        self._due_at: float | None = clock()

    def wait_s(self, waiting_bytes: int, *, is_full: bool) -> float:
        """Return the longest time until the batch; 0: it begins now.

        Args:
            waiting_bytes: Bytes of log from the first waiting message on.
            is_full: More messages would not be part of the batch.
        """
        now = self._clock()
        if self._due_at is None:
            self._due_at = now + self._age_max_s
        if is_full or waiting_bytes >= self._bytes_min:
            return 0.0
        return max(0.0, self._due_at - now)

    def reset(self) -> None:
        """Account for a look without waiting messages, or for a batch."""
        self._due_at = None


__all__ = ["MAX_BATCH_AGE_S", "MIN_BATCH_BYTES", "BatchTrigger"]
