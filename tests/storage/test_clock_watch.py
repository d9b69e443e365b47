"""The clock watch: a jump of the wall clock is held until it is accepted, also over restarts."""

from __future__ import annotations

import logging

import pytest
from simulated_filesystem import SimulatedClock, SimulatedFileSystem

from amqpd.storage.clock_watch import GAP_MS_MAX, HOLD_MS, JUMP_MS, SAVE_MS, ClockWatch
from amqpd.storage.filesystem import Clock

DAY_MS = 86_400_000


class Machine:
    """A data directory that outlives its clock watch, on a machine whose clock can be set and that can reboot."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.filesystem = SimulatedFileSystem()
        self.filesystem.mkdir("/data")
        self.hold_ms = HOLD_MS
        self.boot = "a"
        self.watch = self.start()

    def start(self) -> ClockWatch:
        self.watch = ClockWatch(self.clock)
        self.watch.begin(self.filesystem, "/data", self.boot, self.hold_ms)
        return self.watch

    def shift(self) -> tuple[int, int]:
        """Differences of `steady_ms` and `agreed_ms` from the wall clock."""
        return self.watch.steady_ms() - self.clock.time_ms(), self.watch.agreed_ms() - self.clock.time_ms()


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_clock_drift_is_followed(machine: Machine) -> None:
    for _ in range(100):
        machine.clock.now_ms += 5000
        machine.clock.jump_ms += JUMP_MS
        assert machine.shift() == (0, 0)
    assert not machine.watch.held


@pytest.mark.parametrize("jump_ms", [JUMP_MS + 1, DAY_MS])
def test_jump_ahead_is_ignored_until_the_hold_ends(
    machine: Machine, jump_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    machine.clock.jump_ms += jump_ms
    assert machine.shift() == (-jump_ms, -jump_ms)
    machine.clock.now_ms += HOLD_MS - 1
    assert machine.shift() == (-jump_ms, -jump_ms), "both advance with the uptime"
    assert machine.watch.held and machine.watch.jump_ms == jump_ms and machine.watch.remaining_ms == 1
    machine.clock.now_ms += 1
    assert machine.shift() == (0, 0)
    assert not machine.watch.held and machine.watch.jump_ms == 0
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "the wall clock was set: it is now" in caplog.text and "amqpctl accept_clock" in caplog.text


def test_after_jump_back_agreed_time_follows_but_steady_time_does_not(machine: Machine) -> None:
    machine.clock.jump_ms -= DAY_MS
    assert machine.shift() == (DAY_MS, 0)
    machine.watch.accept()
    assert machine.shift() == (0, 0)


def test_hold_ends_when_the_clock_is_set_back(machine: Machine) -> None:
    machine.clock.jump_ms += DAY_MS
    machine.watch.check()
    machine.clock.now_ms += 5000
    machine.clock.jump_ms -= DAY_MS - 100
    assert machine.shift() == (0, 0)
    assert not machine.watch.held


def test_second_jump_restarts_the_hold(machine: Machine) -> None:
    machine.clock.jump_ms += DAY_MS
    machine.watch.check()
    machine.clock.now_ms += HOLD_MS - 1
    machine.clock.jump_ms += DAY_MS
    machine.watch.check()
    machine.clock.now_ms += HOLD_MS - 1
    assert machine.shift() == (-2 * DAY_MS, -2 * DAY_MS)
    machine.clock.now_ms += 1
    assert machine.shift() == (0, 0)


def test_hold_of_0_ms_accepts_each_jump(machine: Machine) -> None:
    machine.hold_ms = 0
    machine.start()
    machine.clock.jump_ms += DAY_MS
    assert machine.shift() == (0, 0)


def test_pause_between_the_two_clock_readings_is_no_jump() -> None:
    class PausedClock(SimulatedClock):
        pause_ms = 0

        def time_ms(self) -> int:
            found = super().time_ms()
            self.now_ms += self.pause_ms
            self.pause_ms = 0
            return found

    clock = PausedClock()
    watch = ClockWatch(clock)
    clock.pause_ms = DAY_MS
    watch.check()
    assert not watch.held


def test_jump_during_a_restart_is_held(machine: Machine) -> None:
    machine.clock.now_ms += SAVE_MS
    machine.watch.tick()
    machine.clock.now_ms += 3 * DAY_MS  # the broker was down, the machine was not
    machine.clock.jump_ms += DAY_MS
    machine.start()
    assert machine.shift() == (-DAY_MS, -DAY_MS)
    machine.clock.now_ms += HOLD_MS // 2
    machine.watch.tick()
    machine.start()
    assert machine.watch.held and machine.shift() == (-DAY_MS, -DAY_MS)


def test_broker_down_for_40_days_sees_no_jump(machine: Machine) -> None:
    machine.clock.now_ms += 40 * DAY_MS
    machine.start()
    assert not machine.watch.held


def reboot(machine: Machine, off_ms: int) -> None:
    """Reboot the machine: the uptime restarts at 0, and the wall clock shows `off_ms` more than before."""
    wall_ms = machine.clock.time_ms() + off_ms
    machine.watch.save()
    machine.boot += "a"
    machine.clock.now_ms = 0
    machine.clock.jump_ms = wall_ms
    machine.start()


@pytest.mark.parametrize("off_ms", [0, 3 * DAY_MS, GAP_MS_MAX])
def test_wall_clock_is_accepted_after_the_machine_was_off(machine: Machine, off_ms: int) -> None:
    reboot(machine, off_ms)
    assert not machine.watch.held


def test_clock_before_the_last_known_time_is_held_after_boot(machine: Machine) -> None:
    """A machine without a battery starts in 1970. Minutes later the network sets its clock, two days ahead."""
    reboot(machine, -machine.clock.time_ms())
    assert machine.watch.held
    steady_ms = machine.watch.steady_ms()
    assert steady_ms == 1_700_000_000_000 and machine.watch.agreed_ms() == 0
    machine.clock.now_ms += 300_000
    machine.clock.jump_ms = steady_ms + 2 * DAY_MS
    assert machine.shift() == (-2 * DAY_MS, -2 * DAY_MS)
    machine.clock.now_ms += HOLD_MS
    assert machine.shift() == (0, 0)


@pytest.mark.parametrize(("jump_ms", "off_ms"), [(0, GAP_MS_MAX + 1), (DAY_MS, DAY_MS)])
def test_clock_far_ahead_or_held_before_is_held_after_boot(machine: Machine, jump_ms: int, off_ms: int) -> None:
    machine.clock.jump_ms += jump_ms
    machine.watch.check()
    reboot(machine, off_ms)
    assert machine.watch.held and machine.watch.jump_ms == off_ms + jump_ms


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"boot_id": "a"}'])
def test_unreadable_clock_file_holds_no_jump(machine: Machine, data: bytes) -> None:
    machine.filesystem.replace_file("/data/clock", data, sync=False)
    machine.clock.jump_ms += DAY_MS
    machine.start()
    assert not machine.watch.held


def test_clock_file_is_written_once_a_minute_and_after_a_jump(machine: Machine) -> None:
    def written() -> bytes:
        return machine.filesystem.read_file("/data/clock")

    first = written()
    machine.clock.now_ms += SAVE_MS - 1
    machine.watch.tick()
    assert written() == first
    machine.clock.now_ms += 1
    machine.watch.tick()
    second = written()
    assert second != first
    machine.clock.jump_ms += DAY_MS
    machine.watch.tick()
    assert written() != second


def test_real_clock_shows_no_jump() -> None:
    watch = ClockWatch(Clock())
    watch.check()
    assert not watch.held and abs(watch.steady_ms() - watch.clock.time_ms()) <= 1
