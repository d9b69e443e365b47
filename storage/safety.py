"""Who waits until a log is safe up to some offset.

A confirm over local logs does not come here: they are made safe together, and `CommitCycle.on_commit` names the
generation (commit/). This is for logs whose high watermark moves on its own, and for whoever waits for one offset of
one log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import final

from mypy_extensions import i64


@final
class Safety:
    """The waiting of one log, by offset: the first one that is not safe ends each look."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Callable[[bool], None]]] = deque()
        self._unwritten: list[Callable[[bool], None]] = []  # who waited for what could not be written

    def wait(self, offset: i64, done: Callable[[bool], None]) -> None:
        """`done(True)` once the high watermark has passed `offset`, `done(False)` when the log fails before.

        Cost: O(1) where it is the highest offset so far; a stream's readers ask for the lowest, seldom.
        """
        waiting = self._waiting
        waiting.append((offset, done))
        place = len(waiting) - 1
        while place > 0 and waiting[place - 1][0] > offset:
            waiting[place] = waiting[place - 1]
            place -= 1
        waiting[place] = (offset, done)

    def moved(self, high_watermark: i64) -> None:
        """Offsets below `high_watermark` are safe: who waited for them is told, in the order of waiting."""
        if self._unwritten:
            unwritten = self._unwritten
            self._unwritten = []
            for done in unwritten:
                done(False)
        waiting = self._waiting
        while waiting and waiting[0][0] < high_watermark:
            waiting.popleft()[1](True)

    def failed(self) -> None:
        """What is not safe by now will not be."""
        waiting = self._waiting
        while waiting:
            waiting.popleft()[1](False)

    def not_written(self, first: i64, last: i64) -> None:
        """`first` to `last` are a gap now, which the high watermark passes over: who waits for them is told with the
        next call of `moved`, since this is in the middle of a write.
        """
        waiting = self._waiting
        self._unwritten += [each[1] for each in waiting if first <= each[0] <= last]
        left = [each for each in waiting if each[0] < first or each[0] > last]
        waiting.clear()
        waiting.extend(left)

    def cut(self, end: i64) -> None:
        """What was at `end` and beyond is gone, and will not be safe."""
        waiting = self._waiting
        gone = [each for each in waiting if each[0] >= end]
        while waiting and waiting[-1][0] >= end:
            waiting.pop()
        for _, done in gone:
            done(False)
