"""A wall clock that jumps, forwards and back: what waits, waits as long as it would have; what is kept is kept.

For real: a broker under a preloaded library that adds to the time of day what stands in a file (the monotonic clock is
left alone, as on a machine whose clock is set). At the seam: a simulated clock, for what a broker only meets in weeks.
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
async def test_a_live_broker_whose_clock_is_set(tmp_path: Path) -> None:
    clock = WallClock(tmp_path)
    broker = BrokerProcess(tmp_path / "data", env=clock.env, settings={"storage.segment_size_bytes": 1 << 16})
    jumps = (400 * DAY_S, -400 * DAY_S, 3600)
    try:
        await asyncio.to_thread(broker.start)
        link = await connect(broker.amqp_port, heartbeat_s=3)
        for queue in ("kept", "short"):
            await link.declare_queue(queue)
        await link.confirm_select()
        publisher = Publisher(link)
        for jump in jumps:
            born = asyncio.get_running_loop().time()
            link.publish("", "short", b"\x11\x00\x02\x042000", b"short")
            publisher.queue_of[len(publisher.queue_of) + 1] = "short"
            clock.jump(jump)
            left = 1
            while left:
                for _ in range(5):
                    publisher.publish("kept")
                assert await publisher.answered(), f"no confirms after a jump to {jump} s"
                _, left, _ = await link.declare_queue("short", passive=True)
                age_s = asyncio.get_running_loop().time() - born
                assert left or age_s > TTL_S - 0.1, f"expired after {age_s:.1f} s of {TTL_S}, jump to {jump} s"
                assert age_s < 20 * TTL_S, f"not expired after {age_s:.1f} s of {TTL_S}, jump to {jump} s"
                await asyncio.sleep(0.1)
        assert not link.gone.is_set(), "the heartbeat believed the wall clock"
        assert "Traceback" not in broker.stderr, broker.stderr
        await asyncio.to_thread(broker.kill)
        await link.gone.wait()
        clock.jump(-800 * DAY_S)  # what the log holds lies in the future now
        await asyncio.to_thread(broker.start)
        link = await connect(broker.amqp_port)
        wanted = [number for number, queue in publisher.queue_of.items() if queue == "kept"]
        found = []
        while (message := await link.get("kept", no_ack=True)) is not None:
            found.append(number_of(message.body))
        assert found == wanted and not publisher.nacked and not publisher.doubled
        link.close()
        await asyncio.to_thread(broker.stop)
        command = [sys.executable, "-P", "-m", "amqpd.cli", "verify_log", str(broker.data_dir)]
        checked = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout + checked.stderr
    finally:
        await asyncio.to_thread(broker.kill)


def state_of(broker: BrokerProcess) -> Any:
    return broker.api("GET", "/api/amqpd/clock")


@pytest.mark.slow
def test_an_operator_accepts_a_clock_that_was_set(tmp_path: Path) -> None:
    """A restart does not accept it."""
    clock = WallClock(tmp_path)
    broker = BrokerProcess(tmp_path / "data", env=clock.env)
    try:
        broker.start()
        assert state_of(broker) == {"state": "steady", "jump_s": 0.0, "held_for_s": 0}
        clock.jump(DAY_S)
        broker.kill()
        broker.start()
        found = state_of(broker)
        assert found["state"] == "held" and abs(found["jump_s"] - DAY_S) < 2 and 3500 < found["held_for_s"] <= 3600
        assert "the wall clock was set before this start: it is now 86400 s ahead" in broker.stderr
        assert "Wall clock: set, 86400 s ahead" in broker.ctl("status").stdout
        assert broker.ctl("accept_clock").returncode == 0
        broker.kill()
        broker.start()
        assert state_of(broker)["state"] == "steady"
    finally:
        broker.kill()


# -- at the seam


class Kept:
    """A log that keeps, over lives, and the time of each message as the broker took it."""

    def __init__(self, policy: RetentionPolicy | None) -> None:
        self.clock = SimulatedClock()
        self.filesystem = SimulatedFileSystem()
        self.policy = policy
        self.times: dict[int, int] = {}
        self.posted: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.storage: Storage
        self.store: LocalLog
        self.begin()

    def begin(self) -> None:
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

    def again(self, *, clean: bool) -> None:
        if clean:
            self.storage.close(clean=True)
        self.filesystem = self.filesystem.killed()
        self.begin()

    def loop(self) -> None:
        self.storage.commits.end_of_turn()
        while self.posted:
            function, arguments = self.posted.pop(0)
            function(*arguments)

    def append(self, count: int) -> None:
        for _ in range(count):
            offset = self.store.append_parts(RecordRoute(b"x", b"k"), b"\x10\x00\x02", bytes(90), True)
            self.times[offset] = self.clock.now_ms
        self.loop()

    def offsets(self) -> list[int]:
        return [record.offset for record in self.store.cursor.read(0, 1 << 30).records]


def walk(house: Kept, chance: random.Random, steps: int, look: Callable[[], None]) -> None:
    """Appends under a clock that mostly goes on, and now and then jumps by up to a month."""
    for step in range(steps):
        house.append(chance.randint(1, 3))
        jump = chance.random()
        if jump < 0.15:
            house.clock.now_ms = max(1_000_000_000_000, house.clock.now_ms + chance.randint(-30, 30) * DAY_S * 1000)
        else:
            house.clock.now_ms += chance.randint(0, 5000)
        look()
        if step % 17 == 16:
            house.again(clean=step % 2 == 0)


@pytest.mark.parametrize("seed", range(6))
def test_a_time_is_found_whatever_the_clock_did(seed: int) -> None:
    """The first message in the order of the log that was appended at that time or later."""
    house = Kept(RetentionPolicy())
    chance = random.Random(seed)
    walk(house, chance, 80, lambda: None)
    times = sorted({*house.times.values()})
    assert any(house.times[offset] > house.times[offset + 1] for offset in list(house.times)[:-1]), "it never went back"
    for time_ms in [0, *chance.sample(times, 30), *(each + 1 for each in chance.sample(times, 30))]:
        wanted = min([offset for offset, at in house.times.items() if at >= time_ms], default=house.store.next_offset)
        assert offset_at(house.store, time_ms) == wanted
    assert [record.timestamp_ms for record in house.store.cursor.read(0, 1 << 30).records] == list(house.times.values())


@pytest.mark.parametrize("seed", range(6))
def test_retention_takes_nothing_that_is_young_by_the_clock_of_the_moment(seed: int) -> None:
    """What lies in the future is young; and when the clock is right again, retention goes on."""
    max_age_ms = 5 * DAY_S * 1000
    house = Kept(RetentionPolicy(max_age_ms=max_age_ms, segment_age_ms=DAY_S * 1000, file_delete_delay_ms=0))

    def look() -> None:
        before = house.offsets()
        house.storage.maintain()
        house.loop()
        gone = set(before) - set(house.offsets())
        young = [each for each in gone if house.times[each] >= house.clock.now_ms - max_age_ms]
        assert not young, f"{young} are {[house.clock.now_ms - house.times[each] for each in young]} ms old"

    walk(house, random.Random(seed), 80, look)
    house.clock.now_ms = max(house.times.values()) + 2 * max_age_ms
    house.storage.maintain()
    house.loop()
    house.append(1)
    assert house.offsets() == [max(house.times)]
