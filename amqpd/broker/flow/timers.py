"""Everything that is due later: one wheel of buckets per broker.

A timer stands in the bucket of its tick; the event loop is asked for the next tick in use and for nothing else, so ten
thousand sleeping queues cost one `call_later`. Arming and cancelling cost a dict entry, the first timer of a tick a
heap push. Timers fire at their time or up to one tick later, in the order in which they were armed for a tick; after
RUN_MS_MAX of firing the loop gets its turn, the rest follows at once.

Times are milliseconds of the monotonic clock: a step of the wall clock moves nothing. `from_wall` places what a log
remembers by wall clock; what seems to lie in the future counts as now. A jump of the wall clock is held back from
`from_wall`, `agreed_ms` and `steady_ms` as storage/clock_watch.py says.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

if TYPE_CHECKING:
    from amqpd.storage.clock_watch import ClockWatch
    from amqpd.storage.filesystem import Clock

TICK_MS: Final = 4
RUN_MS_MAX: Final = 5


class Timer:
    """Something that comes due. Derive and override `fire`."""

    def __init__(self) -> None:
        # The bucket it stands in; -1: it is not armed.
        self.tick: i64 = -1

    def fire(self) -> None:
        """Its time has come; it is not armed any more."""
        raise NotImplementedError


@final
class Timers:
    """The wheel of everything that is due later.

    call_later: (seconds, function), of the event loop. watch: of the storage, with the clock of both.
    """

    def __init__(self, call_later: Callable[[float, Callable[[], None]], object], watch: ClockWatch) -> None:
        self._call_later = call_later
        self._watch = watch
        self._clock: Clock = watch.clock
        self._buckets: dict[int, dict[Timer, None]] = {}
        self._ticks: list[int] = []
        # The tick the loop was last asked for; -1: none.
        self._wake: i64 = -1
        self._stopped = False

    def stop(self) -> None:
        """The broker stops: nothing fires any more, nothing can be armed."""
        self._stopped = True
        for bucket in self._buckets.values():
            for timer in bucket:
                timer.tick = -1
        self._buckets.clear()
        self._ticks.clear()

    def now_ms(self) -> i64:
        """Monotonic milliseconds."""
        return int(self._clock.monotonic() * 1000)

    def wall_ms(self) -> i64:
        """Milliseconds since 1970, as the wall clock shows it: for stamps."""
        return self._clock.time_ms()

    def steady_ms(self) -> i64:
        """Milliseconds since 1970, without a jump that is held: for what is due later."""
        return self._watch.steady_ms()

    def agreed_ms(self) -> i64:
        """Milliseconds since 1970, less while a jump ahead is held: for how old a stamp is."""
        return self._watch.agreed_ms()

    def from_wall(self, wall_ms: i64) -> i64:
        """Return the monotonic time of a moment in the past that is known by wall clock.

        A stamp that is later than the wall clock was made before the clock was set back: its age is by the steady time.
        """
        age_ms = self.agreed_ms() - wall_ms
        if age_ms < 0:
            age_ms = self.steady_ms() - wall_ms
        return self.now_ms() - (age_ms if age_ms > 0 else 0)

    def arm(self, timer: Timer, due_ms: i64) -> None:
        """Fires it at `due_ms`, at the earliest with the next tick; not at the time it was armed for before."""
        if self._stopped:
            return
        tick: i64 = (due_ms + TICK_MS - 1) // TICK_MS
        soonest: i64 = self.now_ms() // TICK_MS + 1
        if tick < soonest:
            tick = soonest
        if timer.tick == tick:
            return
        self.cancel(timer)
        timer.tick = tick
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = {}
            self._buckets[tick] = bucket
            heappush(self._ticks, tick)
        bucket[timer] = None
        self._ask(tick)

    def arm_sooner(self, timer: Timer, due_ms: i64) -> None:
        """As `arm`, but a timer that is due earlier already stays as it is."""
        if timer.tick < 0 or due_ms < (timer.tick - 1) * TICK_MS:
            self.arm(timer, due_ms)

    def cancel(self, timer: Timer) -> None:
        """It will not fire."""
        if timer.tick >= 0:
            bucket = self._buckets.get(timer.tick)
            if bucket is not None:
                bucket.pop(timer, None)
            timer.tick = -1

    def armed_count(self) -> int:
        return sum([len(bucket) for bucket in self._buckets.values()])

    def run(self) -> None:
        """Fires what is due. Called by the loop."""
        self._wake = -1
        try:
            self._run()
        finally:
            if self._ticks:
                self._ask(self._ticks[0])

    def _run(self) -> None:
        started = self.now_ms()
        now_tick: i64 = started // TICK_MS
        while self._ticks and self._ticks[0] <= now_tick:
            tick = self._ticks[0]
            bucket = self._buckets[tick]
            for timer in list(bucket):
                if timer not in bucket:
                    continue  # one that fired before it has cancelled it
                del bucket[timer]
                timer.tick = -1
                timer.fire()
                if self.now_ms() - started >= RUN_MS_MAX:
                    return
            heappop(self._ticks)
            del self._buckets[tick]

    def _ask(self, tick: i64) -> None:
        if self._wake >= 0 and self._wake <= tick:
            return
        self._wake = tick
        due_ms: int = tick * TICK_MS
        delay_s = due_ms / 1000 - self._clock.monotonic()
        self._call_later(delay_s if delay_s > 0.0 else 0.0, self.run)
