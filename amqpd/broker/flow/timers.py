"""Timers of the broker: one wheel of buckets.

A timer is in the bucket of its tick, and the event loop wakes only for the next used tick: ten thousand idle queues
cost one `call_later`. Arming and cancelling cost a dict entry, and a heap push for the first timer of a tick. A
timer fires at its time or up to one tick later. After RUN_MS_MAX other events get the loop, then firing continues.

Times are milliseconds of the monotonic clock, so changes of the wall clock do not matter. `from_wall` converts
wall-clock times from logs; a future time counts as now. storage/clock_watch.py holds back sudden jumps of the wall
clock from `from_wall`, `agreed_ms` and `steady_ms`.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64, mypyc_attr

if TYPE_CHECKING:
    from asyncio import TimerHandle

    from amqpd.storage.clock_watch import ClockWatch
    from amqpd.storage.filesystem import Clock

TICK_MS: Final = 4
RUN_MS_MAX: Final = 5
STALE_TICKS_MAX: Final = 64
"""Ticks without a bucket that the heap may always have."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Timer:
    """Base class of timers. Override `fire`.

    Attributes:
        tick: the bucket; -1 if not armed.
    """

    def __init__(self) -> None:
        self.tick: i64 = -1

    def fire(self) -> None:
        """Do the work that is due. The timer is not armed any more."""
        raise NotImplementedError


@final
class CallTimer(Timer):
    """A timer that calls a function."""

    def __init__(self, call: Callable[[], None]) -> None:
        super().__init__()
        self._call = call

    def fire(self) -> None:
        self._call()

    def release(self) -> None:
        """Release the function. Called by `Timers.discard`."""
        self._call = _do_nothing


def _do_nothing() -> None:
    """A discarded timer has nothing to do."""


@final
class Timers:
    """The timer wheel.

    Args:
        call_later: the event loop's, with seconds and function. A fake one may return None.
        watch: the clock, shared with the storage.
    """

    def __init__(
        self, call_later: Callable[[float, Callable[[], None]], TimerHandle | None], watch: ClockWatch
    ) -> None:
        self._call_later = call_later
        self._watch = watch
        self._clock: Clock = watch.clock
        self._buckets: dict[int, dict[Timer, None]] = {}
        # A heap. It may have ticks twice, and ticks without a bucket: their timers were cancelled.
        self._ticks: list[int] = []
        # The next tick requested from the loop, -1 for none, and the last request. There is one at a time: a second
        # one would request another one when it runs, so their number would grow with each timer that is armed.
        self._wake: i64 = -1
        self._wake_handle: TimerHandle | None = None
        self._stopped = False

    def stop(self) -> None:
        """Cancel all timers and ignore later ones: the broker stops."""
        self._stopped = True
        for bucket in self._buckets.values():
            for timer in bucket:
                timer.tick = -1
        self._buckets.clear()
        self._ticks.clear()

    def now_ms(self) -> i64:
        """Return monotonic milliseconds."""
        return int(self._clock.monotonic() * 1000)

    def wall_ms(self) -> i64:
        """Return milliseconds since 1970 by the wall clock, for timestamps."""
        return self._clock.time_ms()

    def steady_ms(self) -> i64:
        """Return milliseconds since 1970 without a jump that is held back, for deadlines."""
        return self._watch.steady_ms()

    def agreed_ms(self) -> i64:
        """Return milliseconds since 1970, lower while a jump ahead is held back, for the age of timestamps."""
        return self._watch.agreed_ms()

    def from_wall(self, wall_ms: i64) -> i64:
        """Return the monotonic time of a past wall-clock time.

        A timestamp ahead of the clock was made before the clock was set back; its age is then computed by
        `steady_ms`.
        """
        age_ms = self.agreed_ms() - wall_ms
        if age_ms < 0:
            age_ms = self.steady_ms() - wall_ms
        return self.now_ms() - (age_ms if age_ms > 0 else 0)

    def arm(self, timer: Timer, due_ms: i64) -> None:
        """Fire the timer at `due_ms`, at the next tick at the earliest. Replaces its earlier time."""
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
        self._wake_at(tick)

    def arm_sooner(self, timer: Timer, due_ms: i64) -> None:
        """Arm the timer unless it is due earlier already."""
        if timer.tick < 0 or due_ms < (timer.tick - 1) * TICK_MS:
            self.arm(timer, due_ms)

    def cancel(self, timer: Timer) -> None:
        if timer.tick >= 0:
            bucket = self._buckets.get(timer.tick)
            if bucket is not None:
                bucket.pop(timer, None)
                if not bucket:
                    self._remove_bucket(timer.tick)
            timer.tick = -1

    def _remove_bucket(self, tick: i64) -> None:
        """Remove the empty bucket of a tick, which may be years ahead.

        Cost: constant on average. The tick stays in the heap until half of the heap is such ticks.
        """
        del self._buckets[tick]
        if len(self._ticks) > 2 * len(self._buckets) + STALE_TICKS_MAX:
            self._ticks = sorted(self._buckets)

    def discard(self, timer: CallTimer) -> None:
        """Cancel the timer for good, and release its function.

        Call it at the end of an object that has a timer for one of its methods: otherwise the two keep each other.
        """
        self.cancel(timer)
        timer.release()

    def armed_count(self) -> int:
        return sum([len(bucket) for bucket in self._buckets.values()])

    def next_due_ms(self) -> i64:
        """Return the time at which `run` fires a timer next; -1 if none is armed. A cancelled timer may count."""
        return self._ticks[0] * TICK_MS if self._ticks else -1

    def run(self) -> None:
        """Fire what is due. The event loop calls this, and a test that has moved the clock."""
        self._wake = -1
        try:
            self._run()
        finally:
            if self._ticks:
                self._wake_at(self._ticks[0])

    def _run(self) -> None:
        started = self.now_ms()
        now_tick: i64 = started // TICK_MS
        while self._ticks and self._ticks[0] <= now_tick:
            tick = self._ticks[0]
            bucket = self._buckets.get(tick)
            if bucket is None:
                heappop(self._ticks)
                continue
            for timer in list(bucket):
                if timer not in bucket:
                    continue  # cancelled by a timer that fired before
                del bucket[timer]
                timer.tick = -1
                timer.fire()
                if self.now_ms() - started >= RUN_MS_MAX:
                    return
            self._buckets.pop(tick, None)  # a timer may have cancelled the last ones

    def _wake_at(self, tick: i64) -> None:
        if self._wake >= 0 and self._wake <= tick:
            return
        if self._wake_handle is not None:
            self._wake_handle.cancel()
        self._wake = tick
        due_ms: int = tick * TICK_MS
        delay_s = due_ms / 1000 - self._clock.monotonic()
        self._wake_handle = self._call_later(delay_s if delay_s > 0.0 else 0.0, self.run)
