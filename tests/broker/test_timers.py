"""The timer wheel: order, cancel, one call_later for the next tick, a budget per run."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

from amqpd.broker.flow.timers import TICK_MS, CallTimer, Timers
from amqpd.broker.queue.expiry import QueueExpiry
from amqpd.storage.clock_watch import ClockWatch
from amqpd.storage.filesystem import Clock


def expiries(room, *expires_ms: int) -> list[QueueExpiry]:
    return [room.queue(f"q{number}", x_expires=ms).enforcement.lease for number, ms in enumerate(expires_ms)]


def test_timers_fire_in_due_order(room) -> None:
    expiries(room, 300, 100, 200)
    room.advance(320)
    assert room.expired == ["q1", "q2", "q0"]


def test_timer_fires_never_early_and_at_most_a_tick_late(room) -> None:
    for due_ms in range(1, 40):
        queue = room.queue("q", x_expires=due_ms)
        room.advance(due_ms - 1)
        assert not queue.deleted
        room.advance(1 + TICK_MS)
        assert queue.deleted


def test_cancelled_timer_does_not_fire(room) -> None:
    expiry, other = expiries(room, 50, 50)
    room.timers.cancel(expiry)
    room.timers.cancel(expiry)
    assert expiry.tick == -1
    room.advance(60)
    assert room.expired == ["q1"]
    assert other.tick == -1


def test_only_the_next_tick_is_scheduled_on_the_loop(room) -> None:
    expiries(room, *[1000 + number for number in range(500)])
    assert len(room._later) <= 2
    assert room.timers.armed_count() == 500


def test_earlier_timer_fires_before_an_older_later_one(room) -> None:
    expiries(room, 100_000)
    early_queue = room.queue("soon", x_expires=10)
    room.advance(15)
    assert early_queue.deleted
    assert room.expired == ["soon"]


def test_arm_sooner_never_postpones_a_timer(room) -> None:
    (expiry,) = expiries(room, 100)
    tick = expiry.tick
    room.timers.arm_sooner(expiry, room.timers.now_ms() + 5000)
    assert expiry.tick == tick
    room.timers.arm_sooner(expiry, room.timers.now_ms() + 20)
    assert expiry.tick < tick
    assert room.timers.armed_count() == 1


def test_long_run_is_split_over_several_turns(room) -> None:
    """Time passes while timers fire. The rest fires in a later run and no timer is lost."""
    expiries(room, *[50] * 30)
    expire = room.expire

    def slow_expire(queue):
        room.clock.now_ms += 1
        expire(queue)

    room.expire = slow_expire
    room.clock.now_ms += 60
    room.timers.run()
    assert 0 < len(room.expired) < 30
    room.advance(10)
    assert len(room.expired) == 30


def test_no_timer_fires_after_stop(room) -> None:
    expiry, other = expiries(room, 10, 5000)
    room.timers.stop()
    assert (expiry.tick, other.tick, room.timers.armed_count()) == (-1, -1, 0)
    expiry.renew()
    room.advance(50)
    assert room.expired == []


def test_wall_times_are_converted_to_monotonic_times(room) -> None:
    now = room.timers.now_ms()
    assert room.timers.from_wall(room.timers.wall_ms() - 700) == now - 700
    assert room.timers.from_wall(room.timers.wall_ms() + 700) == now


class FakeLoop(Clock):
    """Calls that were requested and neither made nor cancelled, and a clock that moves to the next of them."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.calls: list[tuple[float, Callable[[], None]]] = []

    def monotonic(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, function: Callable[[], None]) -> Any:
        call = (self.now_s + delay_s, function)
        self.calls.append(call)

        def cancel() -> None:
            if call in self.calls:
                self.calls.remove(call)

        return SimpleNamespace(cancel=cancel)

    def run_next(self) -> None:
        call = min(self.calls, key=itemgetter(0))
        self.calls.remove(call)
        self.now_s = max(self.now_s, call[0])
        call[1]()


def test_short_timers_beside_a_long_one_leave_no_calls_on_the_loop() -> None:
    """Otherwise each call requests the next one when it runs, and their number grows as long as the broker lives."""
    loop = FakeLoop()
    timers = Timers(loop.call_later, ClockWatch(loop))
    fired: list[str] = []
    long, short = CallTimer(lambda: fired.append("long")), CallTimer(lambda: fired.append("short"))
    timers.arm(long, timers.now_ms() + 1000)
    for number in range(20):
        timers.arm(short, timers.now_ms() + 10)
        while len(fired) == number:
            loop.run_next()
        timers.run()  # as after a test has moved the clock
        assert len(loop.calls) == 1
    while loop.calls:
        loop.run_next()
    assert fired == ["short"] * 20 + ["long"]
    assert 1001.0 <= loop.now_s < 1001.0 + 2 * TICK_MS / 1000


def test_cancelled_timers_leave_nothing_in_the_wheel() -> None:
    """Otherwise each deleted queue with x-expires leaves its tick in memory until that time, for up to ten years."""
    loop = FakeLoop()
    timers = Timers(loop.call_later, ClockWatch(loop))
    fired: list[int] = []
    for number in range(10_000):
        timer = CallTimer(lambda number=number: fired.append(number))
        timers.arm(timer, timers.now_ms() + 3_600_000 + TICK_MS * number)
        if number % 1000:
            timers.cancel(timer)
    assert len(timers._buckets) == 10
    assert len(timers._ticks) < 200
    while loop.calls:
        loop.run_next()
    assert fired == list(range(0, 10_000, 1000))
    assert not timers._buckets
    assert not timers._ticks


def test_timer_that_cancels_the_others_of_its_tick_leaves_the_later_ones(room) -> None:
    """The tick's bucket is then empty before its run has ended, and the ticks may be listed again meanwhile."""
    fired: list[str] = []
    now = room.timers.now_ms()
    far = [CallTimer(lambda: fired.append("far")) for _ in range(200)]
    same = CallTimer(lambda: fired.append("same"))

    def cancel_all() -> None:
        fired.append("first")
        for timer in (same, *far):
            room.timers.cancel(timer)

    room.timers.arm(CallTimer(cancel_all), now + 100)
    room.timers.arm(same, now + 100)
    room.timers.arm(CallTimer(lambda: fired.append("later")), now + 104)
    for number, timer in enumerate(far):
        room.timers.arm(timer, now + 1000 + TICK_MS * number)
    room.advance(120)
    assert fired == ["first", "later"]
    assert room.timers.armed_count() == 0


def test_timer_armed_and_cancelled_for_one_tick_lists_the_tick_a_few_times(room) -> None:
    timer = CallTimer(lambda: None)
    for _ in range(1000):
        room.timers.arm(timer, room.timers.now_ms() + 1000)
        room.timers.cancel(timer)
    assert len(room.timers._ticks) < 200
