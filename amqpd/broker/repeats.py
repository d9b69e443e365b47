"""What happens again and again is written once and then counted.

The first of its kind is written at once. Those that follow within the window are one record at its end, the last of
them, with their count; while they go on there is one record a window. So a hundred thousand wrong passwords of one
address are a record at once and one a minute, and a client that logs in for each message is one an hour.

Bounded: SOURCES_MAX kinds are told apart; further ones are counted together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Final

from amqpd.broker.record import Record

SOURCES_MAX: Final = 10_000
SWEEP_MAX: Final = 200
USERS_MAX: Final = 10


class _Window:
    """since: monotonic seconds. users: names that were tried in it, the first USERS_MAX of them."""

    def __init__(self, since: float, last: Record) -> None:
        self.since = since
        self.last = last
        self.count = 0
        self.users: dict[str, None] = {}


class Repeats:
    """write: appends a record. later: the loop's call_later; a timer runs while a window is open only."""

    def __init__(
        self,
        write: Callable[[Record], object],
        later: Callable[[float, Callable[[], None]], object],
        window_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._later = later
        self._window_s = window_s
        self._clock = clock
        self._open: dict[Hashable, _Window] = {}  # in the order of their beginnings
        self._armed = False

    def __len__(self) -> int:
        return len(self._open)

    def add(self, kind: Hashable, record: Record) -> None:
        """It happened. kind: what counts as the same. Cost: 1 us where it is a repetition."""
        window = self._open.get(kind)
        if window is None and len(self._open) >= SOURCES_MAX:
            kind = None  # all the others
            window = self._open.get(kind)
        if window is None:
            self._write(record)
            self._open[kind] = _Window(self._clock(), record)
            self._arm(self._window_s)
            return
        window.last = record
        window.count += 1
        if len(window.users) < USERS_MAX:
            window.users[record.user] = None

    def _arm(self, delay_s: float) -> None:
        if not self._armed:
            self._armed = True
            self._later(max(delay_s, 0.01), self._sweep)

    def _sweep(self) -> None:
        """Ends the windows that are over, SWEEP_MAX of them."""
        self._armed = False
        now = self._clock()
        for _ in range(SWEEP_MAX):
            if not self._open:
                return
            kind = next(iter(self._open))
            window = self._open[kind]
            if now - window.since < self._window_s:
                break
            del self._open[kind]
            if window.count:
                self._tell(window)
                self._open[kind] = _Window(now, window.last)  # what goes on is told again a window later
        if self._open:
            self._arm(self._window_s - (now - next(iter(self._open.values())).since))

    def finish(self) -> None:
        """The broker stops: what is counted is written."""
        for window in self._open.values():
            if window.count:
                self._tell(window)
        self._open.clear()

    def _tell(self, window: _Window) -> None:
        record = window.last
        about = {**record.about, "users": list(window.users)} if len(window.users) > 1 else record.about
        self._write(record._replace(times=window.count, about=about))
