"""Time in a life whose storage is paced, and a rule of its own for what a delivery mark may say there.

A broker writes settlements up to SETTLE_MS after the end of their turn, and a delivery mark that runs ahead of the
deliveries once these have gone on for a while (storage/DECISIONS.md). `Timers` stands for the loop's `call_later`, on a
simulated clock. `ChannelConsumers` knows how far the mark may be ahead: it looks at times and offsets alone, and not at
what the storage counts.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from typing import Final

from simulated_filesystem import SimulatedClock

SETTLE_MS: Final = 50  # after the end of its turn a settlement is in the file
SYNC_MS: Final = 100  # later it is synced, where a sync takes no time and the loop turns
AHEAD_MAX: Final = 64  # offsets
AHEAD_TICKS: Final = 3
# Deliveries went on for four ticks of 50 ms: the first may have come just before the first of them. Two of them have a
# tick and a turn between them at most, on either side.
STEADY_MS: Final = 150
PAUSE_MS: Final = 150
TICK_MAX_MS: Final = 100
REMEMBERED_MS: Final = 2000


class Timers:
    """What is to be called later. clock: is moved to the time of each call."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self._number += 1
        insort(self._waiting, (self._clock.now_ms + round(delay_s * 1000), self._number, call))

    def next(self, until_ms: int) -> Callable[[], None] | None:
        """The first call that is due by then; None when there is no more: the clock says `until_ms`."""
        if self._waiting and self._waiting[0][0] <= until_ms:
            due_ms, _, call = self._waiting.pop(0)
            self._clock.now_ms = max(due_ms, self._clock.now_ms)
            return call
        self._clock.now_ms = until_ms
        return None


class Deliveries:
    """Of one queue in one life."""

    def __init__(self) -> None:
        self._recent: list[tuple[int, int]] = []  # when, and by how many offsets the deliveries went on

    def note(self, now_ms: int, advance: int) -> None:
        self._recent = [each for each in self._recent if each[0] >= now_ms - REMEMBERED_MS]
        self._recent.append((now_ms, advance))

    def ahead_max(self, now_ms: int) -> int:
        """Offsets beyond the last delivery that the mark may cover."""
        begun_ms = now_ms
        for time_ms, _ in reversed(self._recent):
            if begun_ms - time_ms > PAUSE_MS:
                break
            begun_ms = time_ms
        if now_ms - begun_ms < STEADY_MS:
            return 0
        most = max(
            sum(advance for other_ms, advance in self._recent if time_ms <= other_ms <= time_ms + TICK_MAX_MS)
            for time_ms, _ in self._recent
        )
        return min(AHEAD_MAX, AHEAD_TICKS * most)
