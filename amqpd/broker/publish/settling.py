"""Settles at their sources what is safe at its targets, in slices: one sync may make a hundred thousand safe at once.

A slice comes with the sync; what is left has later turns of the loop. What the broker is stopped with is settled at
once, as is all that comes then, so that nothing is published again after a clean stop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.flow.timers import Timers
from amqpd.broker.flow.loop_turn import Turn
from amqpd.broker.publish.origin import Pending

# How long a slice may take, looked at once per STEP_COUNT offsets, and how many it settles in any case.
SLICE_MS: Final = 2
STEP_COUNT: Final = 256
SLICE_COUNT_MAX: Final = 8192


@final
class Settling:
    """The republisher's. call_soon: calls a function in the next turn of the loop."""

    def __init__(self, turn: Turn, timers: Timers, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._turn = turn
        self._timers = timers
        self._call_soon = call_soon
        self._line: deque[Pending] = deque()
        self._scheduled = False
        self._stopped = False

    def add(self, pending: Pending) -> None:
        """It is safe. `work` settles it."""
        self._line.append(pending)

    def work(self) -> None:
        """A slice."""
        line = self._line
        if not line:
            return
        timers = self._timers
        begun_ms = timers.now_ms()
        count: i64 = 0
        while line and (self._stopped or (count < SLICE_COUNT_MAX and timers.now_ms() - begun_ms < SLICE_MS)):
            end = count + STEP_COUNT
            while line and count < end:
                pending = line[0]
                first = pending.first
                last = first + STEP_COUNT - 1
                if last >= pending.last:
                    last = pending.last
                    line.popleft()
                pending.first = last + 1
                count += last - first + 1
                pending.origin.safe(first, last, pending.size)
        if line and not self._scheduled:
            self._scheduled = True
            self._call_soon(self._work_on)
        self._turn.want()

    def _work_on(self) -> None:
        """Called by the loop."""
        self._scheduled = False
        self.work()

    def stop(self) -> None:
        """The broker stops."""
        self._stopped = True
        self.work()
