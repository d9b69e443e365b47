"""What is unacked for too long: x-consumer-timeout, without a note on any delivery.

A clock of its own looks after each consumer that has a timeout (and after what basic.get took of a queue that has one).
At each tick it notes where the channel's delivery tags stand. What is still unacked below a tag that was noted a
timeout ago is overdue. So a delivery pays nothing, whoever has no timeout has no clock, and a tick costs what has been
settled since the last one: `_first`, the oldest that may be unacked, only moves forward.

A delivery is noticed up to two ticks after its time; a tick is an eighth of the timeout, a minute at most, TICK_MS_MIN
at least. What a transaction has acked is not overdue before it is rolled back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from amqpd.broker.flow.timers import Timer, Timers

if TYPE_CHECKING:
    from amqpd.broker.consumer import Consumer, Source
    from amqpd.channel.unacked import Unacked

TICK_MS_MIN: Final = 20
TICK_MS_MAX: Final = 60_000
TICKS: Final = 8


@final
class Overdue(Timer):
    """The clock of one consumer, or of one queue's basic.gets: consumer is None then.

    over: called when something is unacked for `timeout_ms` and more; the clock stands then.
    """

    def __init__(
        self,
        timers: Timers,
        unacked: Unacked,
        queue: Source,
        consumer: Consumer | None,
        timeout_ms: i64,
        over: Callable[[Overdue], object],
    ) -> None:
        super().__init__()
        self._over = over
        self.queue = queue
        self.consumer = consumer
        self.timeout_ms = timeout_ms
        self._timers = timers
        self._unacked = unacked
        self._first: i64 = 0
        # (ms, tag): what was delivered before that time has a tag below it. Oldest first; TICKS and some of them.
        self._marks: deque[tuple[i64, i64]] = deque()

    def start(self) -> None:
        """It runs, if it does not. What is unacked by then counts from now."""
        if self.tick < 0:
            self._marks.clear()
            self.fire()

    def change(self, timeout_ms: i64) -> None:
        """Another timeout for all that is unacked, from when it was delivered as far as that is noted."""
        self.timeout_ms = timeout_ms
        self._timers.cancel(self)
        self.fire()

    def stop(self) -> None:
        self._timers.cancel(self)
        self._marks.clear()

    def idle(self) -> bool:
        """Whether nothing is unacked that it looks after."""
        return self._unacked.first_of(self._first, self.queue, self.consumer, True) < 0

    def fire(self) -> None:
        now = self._timers.now_ms()
        unacked = self._unacked
        first = unacked.first_of(self._first, self.queue, self.consumer, True)
        due = now + self._tick_ms()
        marks = self._marks
        if first < 0:
            self._first = unacked.end()
            marks.clear()
            if self.consumer is None or self.consumer.cancelled:
                return  # whoever gets the next one starts it again
        else:
            self._first = first
            first = unacked.first_of(first, self.queue, self.consumer, False)
            marks.append((now, unacked.end()))
            while marks[0][1] <= self._first or (len(marks) > 1 and marks[1][0] + self.timeout_ms <= now):
                marks.popleft()  # the second says all that the first does, where it is a timeout old itself
            if first >= 0:
                for ms, tag in marks:
                    if tag > first:
                        if ms + self.timeout_ms <= now:
                            self._over(self)
                            return
                        if ms + self.timeout_ms < due:
                            due = ms + self.timeout_ms
                        break
        self._timers.arm(self, due)

    def _tick_ms(self) -> i64:
        tick_ms = self.timeout_ms // TICKS
        if tick_ms < TICK_MS_MIN:
            return TICK_MS_MIN
        return tick_ms if tick_ms < TICK_MS_MAX else TICK_MS_MAX
