"""Time in a paced life, and an independent rule for how far ahead a delivery mark may be.

A broker writes settlements up to SETTLE_MS after the end of their turn. A delivery mark runs ahead of the deliveries
when these have continued for a while (storage/DECISIONS.md). `Timers` replaces the loop's `call_later`, on a
simulated clock. `Deliveries` computes how far the mark may be ahead from times and offsets alone, not from the
storage's counters.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from typing import Final

from simulated_filesystem import SimulatedClock

SETTLE_MS: Final = 50  # from the end of a turn until its settlements are in the file
SYNC_MS: Final = 100  # from then until they are synced, if a sync takes no time and the loop runs
AHEAD_MAX: Final = 64  # offsets
AHEAD_TICKS: Final = 3
# Deliveries continued for four ticks of 50 ms; the first may have come just before the first tick. Between two
# deliveries there is at most a tick and a turn, on either side.
STEADY_MS: Final = 150
PAUSE_MS: Final = 150
TICK_MAX_MS: Final = 100
REMEMBERED_MS: Final = 2000


class Timers:
    """Pending timers. clock: moved to the time of each call."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self._number += 1
        insort(self._waiting, (self._clock.now_ms + round(delay_s * 1000), self._number, call))

    def next(self, until_ms: int) -> Callable[[], None] | None:
        """Return the first call that is due by `until_ms`, or set the clock to `until_ms` and return None."""
        if self._waiting and self._waiting[0][0] <= until_ms:
            due_ms, _, call = self._waiting.pop(0)
            self._clock.now_ms = max(due_ms, self._clock.now_ms)
            return call
        self._clock.now_ms = until_ms
        return None


class Deliveries:
    """The deliveries of one queue in one life."""

    def __init__(self) -> None:
        self._recent: list[tuple[int, int]] = []  # time, and number of offsets delivered

    def note(self, now_ms: int, advance: int) -> None:
        self._recent = [each for each in self._recent if each[0] >= now_ms - REMEMBERED_MS]
        self._recent.append((now_ms, advance))

    def ahead_max(self, now_ms: int) -> int:
        """Return how many offsets beyond the last delivery the mark may cover."""
        start_ms = now_ms
        for time_ms, _ in reversed(self._recent):
            if start_ms - time_ms > PAUSE_MS:
                break
            start_ms = time_ms
        if now_ms - start_ms < STEADY_MS:
            return 0
        delivered_max = max(
            sum(advance for other_ms, advance in self._recent if time_ms <= other_ms <= time_ms + TICK_MAX_MS)
            for time_ms, _ in self._recent
        )
        return min(AHEAD_MAX, AHEAD_TICKS * delivered_max)
