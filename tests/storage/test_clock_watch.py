"""The clock watch: a jump of the wall clock is held until it is accepted, over restarts too."""

from __future__ import annotations

import logging

import pytest
from simulated_filesystem import SimulatedClock, SimulatedFileSystem

from amqpd.storage.clock_watch import GAP_MS_MAX, HOLD_MS, JUMP_MS, SAVE_MS, ClockWatch
from amqpd.storage.filesystem import Clock

DAY_MS = 86_400_000


class House:
    """A data directory that outlives its watch; the wall clock can be set, and the machine can start again."""

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
        """How far `steady_ms` and `agreed_ms` are from the wall clock."""
        return self.watch.steady_ms() - self.clock.time_ms(), self.watch.agreed_ms() - self.clock.time_ms()


@pytest.fixture
def house() -> House:
    return House()


def test_drift_is_followed(house: House) -> None:
    for _ in range(100):
        house.clock.now_ms += 5000
        house.clock.jump_ms += JUMP_MS
        assert house.shift() == (0, 0)
    assert not house.watch.held


@pytest.mark.parametrize("jump_ms", [JUMP_MS + 1, DAY_MS])
def test_a_jump_ahead_makes_nothing_due_or_old(house: House, jump_ms: int, caplog: pytest.LogCaptureFixture) -> None:
    house.clock.jump_ms += jump_ms
    assert house.shift() == (-jump_ms, -jump_ms)
    house.clock.now_ms += HOLD_MS - 1
    assert house.shift() == (-jump_ms, -jump_ms), "both go on with the uptime"
    assert house.watch.held and house.watch.jump_ms == jump_ms and house.watch.remaining_ms == 1
    house.clock.now_ms += 1
    assert house.shift() == (0, 0)
    assert not house.watch.held and house.watch.jump_ms == 0
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "the wall clock was set: it is now" in caplog.text and "amqpctl accept_clock" in caplog.text


def test_after_a_jump_back_what_was_stamped_since_is_young(house: House) -> None:
    house.clock.jump_ms -= DAY_MS
    assert house.shift() == (DAY_MS, 0)
    house.watch.accept()
    assert house.shift() == (0, 0)


def test_a_clock_that_goes_back_to_where_it_was_ends_the_hold(house: House) -> None:
    house.clock.jump_ms += DAY_MS
    house.watch.check()
    house.clock.now_ms += 5000
    house.clock.jump_ms -= DAY_MS - 100
    assert house.shift() == (0, 0)
    assert not house.watch.held


def test_each_jump_begins_the_time_anew(house: House) -> None:
    house.clock.jump_ms += DAY_MS
    house.watch.check()
    house.clock.now_ms += HOLD_MS - 1
    house.clock.jump_ms += DAY_MS
    house.watch.check()
    house.clock.now_ms += HOLD_MS - 1
    assert house.shift() == (-2 * DAY_MS, -2 * DAY_MS)
    house.clock.now_ms += 1
    assert house.shift() == (0, 0)


def test_a_hold_of_nothing_follows_each_jump(house: House) -> None:
    house.hold_ms = 0
    house.start()
    house.clock.jump_ms += DAY_MS
    assert house.shift() == (0, 0)


def test_a_process_that_stood_between_its_two_readings_saw_no_jump() -> None:
    class Stopped(SimulatedClock):
        stop_ms = 0

        def time_ms(self) -> int:
            found = super().time_ms()
            self.now_ms += self.stop_ms
            self.stop_ms = 0
            return found

    clock = Stopped()
    watch = ClockWatch(clock)
    clock.stop_ms = DAY_MS
    watch.check()
    assert not watch.held


def test_a_restart_hides_no_jump(house: House) -> None:
    house.clock.now_ms += SAVE_MS
    house.watch.tick()
    house.clock.now_ms += 3 * DAY_MS  # the broker was away, the machine was not
    house.clock.jump_ms += DAY_MS
    house.start()
    assert house.shift() == (-DAY_MS, -DAY_MS)
    house.clock.now_ms += HOLD_MS // 2
    house.watch.tick()
    house.start()
    assert house.watch.held and house.shift() == (-DAY_MS, -DAY_MS)


def test_a_broker_that_was_away_for_days_sees_no_jump(house: House) -> None:
    house.clock.now_ms += 40 * DAY_MS
    house.start()
    assert not house.watch.held


def boot_again(house: House, off_ms: int) -> None:
    """The machine starts again: its uptime begins at 0, and the wall clock shows `off_ms` more than before."""
    wall_ms = house.clock.time_ms() + off_ms
    house.watch.save()
    house.boot += "a"
    house.clock.now_ms = 0
    house.clock.jump_ms = wall_ms
    house.start()


@pytest.mark.parametrize("off_ms", [0, 3 * DAY_MS, GAP_MS_MAX])
def test_a_machine_that_was_off_for_days_is_believed(house: House, off_ms: int) -> None:
    boot_again(house, off_ms)
    assert not house.watch.held


def test_after_a_boot_a_clock_before_the_last_time_is_not_believed(house: House) -> None:
    """A machine without a battery starts in 1970; minutes later the network sets its clock, two days on."""
    boot_again(house, -house.clock.time_ms())
    assert house.watch.held
    steady_ms = house.watch.steady_ms()
    assert steady_ms == 1_700_000_000_000 and house.watch.agreed_ms() == 0
    house.clock.now_ms += 300_000
    house.clock.jump_ms = steady_ms + 2 * DAY_MS
    assert house.shift() == (-2 * DAY_MS, -2 * DAY_MS)
    house.clock.now_ms += HOLD_MS
    assert house.shift() == (0, 0)


@pytest.mark.parametrize(("jump_ms", "off_ms"), [(0, GAP_MS_MAX + 1), (DAY_MS, DAY_MS)])
def test_after_a_boot_a_clock_far_ahead_or_one_that_was_held_waits(house: House, jump_ms: int, off_ms: int) -> None:
    house.clock.jump_ms += jump_ms
    house.watch.check()
    boot_again(house, off_ms)
    assert house.watch.held and house.watch.jump_ms == off_ms + jump_ms


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"boot_id": "a"}'])
def test_a_file_that_cannot_be_read_holds_nothing(house: House, data: bytes) -> None:
    house.filesystem.replace_file("/data/clock", data, sync=False)
    house.clock.jump_ms += DAY_MS
    house.start()
    assert not house.watch.held


def test_the_file_is_written_once_a_minute_and_when_something_changes(house: House) -> None:
    def written() -> bytes:
        return house.filesystem.read_file("/data/clock")

    first = written()
    house.clock.now_ms += SAVE_MS - 1
    house.watch.tick()
    assert written() == first
    house.clock.now_ms += 1
    house.watch.tick()
    second = written()
    assert second != first
    house.clock.jump_ms += DAY_MS
    house.watch.tick()
    assert written() != second


def test_the_real_clock_drifts_at_most() -> None:
    watch = ClockWatch(Clock())
    watch.check()
    assert not watch.held and abs(watch.steady_ms() - watch.clock.time_ms()) <= 1
