"""The wheel: order, cancelling, one call_later for the next tick, a budget per run."""

from __future__ import annotations

from amqpd.broker.flow.timers import TICK_MS
from amqpd.broker.queue.expiry import QueueExpiry


def leases(room, *expires_ms: int) -> list[QueueExpiry]:
    return [room.queue(f"q{number}", x_expires=ms).enforcement.lease for number, ms in enumerate(expires_ms)]


def test_they_fire_in_the_order_of_their_times(room) -> None:
    leases(room, 300, 100, 200)
    room.advance(320)
    assert room.expired == ["q1", "q2", "q0"]


def test_never_early_and_at_most_a_tick_late(room) -> None:
    for due_ms in range(1, 40):
        queue = room.queue("q", x_expires=due_ms)
        room.advance(due_ms - 1)
        assert not queue.deleted
        room.advance(1 + TICK_MS)
        assert queue.deleted


def test_a_cancelled_one_does_not_fire(room) -> None:
    lease, other = leases(room, 50, 50)
    room.timers.cancel(lease)
    room.timers.cancel(lease)
    assert lease.tick == -1
    room.advance(60)
    assert room.expired == ["q1"]
    assert other.tick == -1


def test_the_loop_is_asked_for_the_next_tick_only(room) -> None:
    leases(room, *[1000 + number for number in range(500)])
    assert len(room._later) <= 2
    assert room.timers.armed_count() == 500


def test_an_earlier_one_is_not_kept_waiting_by_a_later_one(room) -> None:
    leases(room, 100_000)
    leases_now = room.queue("soon", x_expires=10)
    room.advance(15)
    assert leases_now.deleted
    assert room.expired == ["soon"]


def test_arm_sooner_never_moves_back(room) -> None:
    (lease,) = leases(room, 100)
    tick = lease.tick
    room.timers.arm_sooner(lease, room.timers.now_ms() + 5000)
    assert lease.tick == tick
    room.timers.arm_sooner(lease, room.timers.now_ms() + 20)
    assert lease.tick < tick
    assert room.timers.armed_count() == 1


def test_a_long_run_gives_way_to_the_loop(room) -> None:
    """Time passes while timers fire: the rest is done in another run, and nothing is forgotten."""
    leases(room, *[50] * 30)
    drop = room.expire

    def slow(queue):
        room.clock.now_ms += 1
        drop(queue)

    room.expire = slow
    room.clock.now_ms += 60
    room.timers.run()
    assert 0 < len(room.expired) < 30
    room.advance(10)
    assert len(room.expired) == 30


def test_nothing_fires_after_the_stop(room) -> None:
    lease, other = leases(room, 10, 5000)
    room.timers.stop()
    assert (lease.tick, other.tick, room.timers.armed_count()) == (-1, -1, 0)
    lease.renew()
    room.advance(50)
    assert room.expired == []


def test_wall_times_of_the_past_and_of_the_future(room) -> None:
    now = room.timers.now_ms()
    assert room.timers.from_wall(room.timers.wall_ms() - 700) == now - 700
    assert room.timers.from_wall(room.timers.wall_ms() + 700) == now
