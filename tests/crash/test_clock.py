"""A wall clock that jumps forwards and back: expiry, heartbeats and retention do not follow it.

Tests with a process run the broker under a preloaded library that adds an offset, read from a file, to the time of day.
It leaves the monotonic clock alone, as on a machine whose clock is set. Tests with a simulated clock cover jumps that a
broker meets in weeks.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from numbered import Publisher, number_of
from quickclient import connect
from simulated_filesystem import SimulatedClock, SimulatedFileSystem
from time_search import offset_at
from wall_clock import WallClock

from amqpd.storage.local_log import LocalLog
from amqpd.storage.log.record import RecordRoute
from amqpd.storage.retention_policy import RetentionPolicy
from amqpd.storage.storage import Storage
from amqpd.testing import BrokerProcess

DAY_S = 86400
TTL_S = 2.0


@pytest.mark.slow
async def test_wall_clock_jumps_change_neither_ttl_nor_heartbeat_nor_log(tmp_path: Path) -> None:
    clock = WallClock(tmp_path)
    broker = BrokerProcess(tmp_path / "data", env=clock.env, settings={"storage.segment_size_bytes": 1 << 16})
    jumps_s = (400 * DAY_S, -400 * DAY_S, 3600)
    try:
        await asyncio.to_thread(broker.start)
        link = await connect(broker.amqp_port, heartbeat_s=3)
        for queue in ("kept", "short"):
            await link.declare_queue(queue)
        await link.confirm_select()
        publisher = Publisher(link)
        for jump_s in jumps_s:
            published_s = asyncio.get_running_loop().time()
            link.publish("", "short", b"\x11\x00\x02\x042000", b"short")
            publisher.queue_of[len(publisher.queue_of) + 1] = "short"
            clock.jump(jump_s)
            (node,) = await asyncio.to_thread(broker.api, "GET", "/api/nodes")
            assert 0 <= node["uptime"] < 3600 * 1000
            ready = 1
            while ready:
                for _ in range(5):
                    publisher.publish("kept")
                assert await publisher.answered(), f"no confirms after a jump to {jump_s} s"
                _, ready, _ = await link.declare_queue("short", passive=True)
                age_s = asyncio.get_running_loop().time() - published_s
                assert ready or age_s > TTL_S - 0.1, f"expired after {age_s:.1f} s of {TTL_S}, jump to {jump_s} s"
                assert age_s < 20 * TTL_S, f"not expired after {age_s:.1f} s of {TTL_S}, jump to {jump_s} s"
                await asyncio.sleep(0.1)
        assert not link.gone.is_set(), "the heartbeat monitor used the wall clock"
        assert "Traceback" not in broker.stderr, broker.stderr
        await asyncio.to_thread(broker.kill)
        await link.gone.wait()
        clock.jump(-800 * DAY_S)  # the timestamps in the log are in the future now
        await asyncio.to_thread(broker.start)
        link = await connect(broker.amqp_port)
        expected = [number for number, queue in publisher.queue_of.items() if queue == "kept"]
        received = []
        while (message := await link.get("kept", no_ack=True)) is not None:
            received.append(number_of(message.body))
        assert received == expected and not publisher.nacked and not publisher.doubled
        link.close()
        await asyncio.to_thread(broker.stop)
        command = [sys.executable, "-P", "-m", "amqpd.cli", "verify_log", str(broker.data_dir)]
        checked = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout + checked.stderr
    finally:
        await asyncio.to_thread(broker.kill)


def clock_state(broker: BrokerProcess) -> Any:
    return broker.api("GET", "/api/amqpd/clock")


@pytest.mark.slow
def test_clock_jump_is_held_until_operator_accepts_it(tmp_path: Path) -> None:
    """A jump found at a start holds retention until `accept_clock`; a restart does not accept it."""
    clock = WallClock(tmp_path)
    broker = BrokerProcess(tmp_path / "data", env=clock.env)
    try:
        broker.start()
        assert clock_state(broker) == {"state": "steady", "jump_s": 0.0, "held_for_s": 0}
        clock.jump(DAY_S)
        broker.kill()
        broker.start()
        state = clock_state(broker)
        assert state["state"] == "held" and abs(state["jump_s"] - DAY_S) < 2 and 3500 < state["held_for_s"] <= 3600
        assert "the wall clock was set before this start: it is now 86400 s ahead" in broker.stderr
        assert "Wall clock: set, 86400 s ahead" in broker.ctl("status").stdout
        assert broker.ctl("accept_clock").returncode == 0
        broker.kill()
        broker.start()
        assert clock_state(broker)["state"] == "steady"
    finally:
        broker.kill()


# -- with a simulated clock


class ReopenedLog:
    """A log that is reopened several times, and the clock's time at each append."""

    def __init__(self, policy: RetentionPolicy | None) -> None:
        self.clock = SimulatedClock()
        self.filesystem = SimulatedFileSystem()
        self.policy = policy
        self.times: dict[int, int] = {}
        self.posted: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.storage: Storage
        self.store: LocalLog
        self.open()

    def open(self) -> None:
        self.storage = Storage(
            "/data",
            post=lambda function, *arguments: self.posted.append((function, arguments)),
            clock=self.clock,
            filesystem=self.filesystem,
            segment_size_bytes=2000,
            boot_id="1" * 32,
            inline=True,
        )
        self.store = self.storage.open_queue("v", "q", "q", "/", self.policy)

    def reopen(self, *, clean: bool) -> None:
        if clean:
            self.storage.close(clean=True)
        self.filesystem = self.filesystem.killed()
        self.open()

    def run_posted(self) -> None:
        self.storage.commits.end_of_turn()
        while self.posted:
            function, arguments = self.posted.pop(0)
            function(*arguments)

    def append(self, count: int) -> None:
        for _ in range(count):
            offset = self.store.append_parts(RecordRoute(b"x", b"k"), b"\x10\x00\x02", bytes(90), True)
            self.times[offset] = self.clock.now_ms
        self.run_posted()

    def offsets(self) -> list[int]:
        return [record.offset for record in self.store.cursor.read(0, 1 << 30).records]


def append_under_jumping_clock(log: ReopenedLog, rng: random.Random, steps: int, check: Callable[[], None]) -> None:
    """Append while the clock advances; at 15 % of the steps it jumps by up to 30 days, forwards or back."""
    for step in range(steps):
        log.append(rng.randint(1, 3))
        if rng.random() < 0.15:
            log.clock.now_ms = max(1_000_000_000_000, log.clock.now_ms + rng.randint(-30, 30) * DAY_S * 1000)
        else:
            log.clock.now_ms += rng.randint(0, 5000)
        check()
        if step % 17 == 16:
            log.reopen(clean=step % 2 == 0)


@pytest.mark.parametrize("seed", range(6))
def test_offset_at_time_is_found_after_clock_jumps(seed: int) -> None:
    """`offset_at` finds the first message in log order that was appended at that time or later."""
    log = ReopenedLog(RetentionPolicy())
    rng = random.Random(seed)
    append_under_jumping_clock(log, rng, 80, lambda: None)
    times = sorted({*log.times.values()})
    assert any(log.times[offset] > log.times[offset + 1] for offset in list(log.times)[:-1]), (
        "the clock never jumped back"
    )
    for time_ms in [0, *rng.sample(times, 30), *(each + 1 for each in rng.sample(times, 30))]:
        expected = min([offset for offset, at in log.times.items() if at >= time_ms], default=log.store.next_offset)
        assert offset_at(log.store, time_ms) == expected
    assert [record.timestamp_ms for record in log.store.cursor.read(0, 1 << 30).records] == list(log.times.values())


@pytest.mark.parametrize("seed", range(6))
def test_retention_keeps_messages_young_by_current_clock(seed: int) -> None:
    """A timestamp in the future counts as young. When the clock is right again, retention deletes what has expired."""
    max_age_ms = 5 * DAY_S * 1000
    log = ReopenedLog(RetentionPolicy(max_age_ms=max_age_ms, segment_age_ms=DAY_S * 1000, file_delete_delay_ms=0))

    def check() -> None:
        before = log.offsets()
        log.storage.maintain()
        log.run_posted()
        gone = set(before) - set(log.offsets())
        young = [each for each in gone if log.times[each] >= log.clock.now_ms - max_age_ms]
        assert not young, f"{young} are {[log.clock.now_ms - log.times[each] for each in young]} ms old"

    append_under_jumping_clock(log, random.Random(seed), 80, check)
    log.clock.now_ms = max(log.times.values()) + 2 * max_age_ms
    log.storage.maintain()
    log.run_posted()
    log.append(1)
    assert log.offsets() == [max(log.times)]
