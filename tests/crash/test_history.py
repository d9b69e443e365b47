"""A history of everything clients do, over kills and power cuts: each copy of each message is accounted for.

`test_kill.py` counts publishes and acks under pressure; this one is about all that moves a message: rejects, requeues,
dead letters of four reasons, priorities, transactions, purges, deletions; and about a stream, its readers, their stored
offsets and the policies that cut its head. What is judged: `history_judge.py`, `streams_story.py`.
`-m ci_long` runs ten kills and three cuts, `make torture` 500 and 100; TEST_CRASH_CYCLES, TEST_CRASH_CUTS and
TEST_CRASH_SEED set others.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable
from http.client import HTTPException
from pathlib import Path

import pytest
from faults_disk import LoopDisk, skip_or_fail, stop_process
from history import Event, History
from history_judge import Judge
from history_load import Crowd, drain, prepare
from streams_load import look

from amqpd.testing import BrokerProcess

EPOCH_LIVES = 10
SETTINGS = {"storage.segment_size_bytes": 1 << 20, "storage.upkeep_interval_s": 0.2, "log.level": "warning"}
CLEANLY = 0.1
"""How many lives end by SIGTERM, under load as well."""
AT_STAKE = {
    *("purged", "deleted", "committed", "rolled back", "ruled"),
    *("publish-again", "refused", "moved, by a job", "redriven, by a job", "cancelled", "rewound"),
}
"""A run without these has proved nothing about them."""
STREAM_COUNT = 1200
"""So many messages retention must cut some of, whatever its policies were."""
AT_ONCE = 0.2
"""How many lives end while the load only begins."""


async def until_the_load_runs(crowd: Crowd, history: History, what: set[str]) -> None:
    """However long a busy machine takes to get there. what: has to have happened as well, in this life or before."""
    wanted = history.confirmed + 50
    deadline = time.monotonic() + 240
    published = history.stream.totals
    while history.confirmed < wanted or not what <= history.seen or (what and published["published"] < STREAM_COUNT):
        assert time.monotonic() < deadline, "the load does not begin"
        crowd.failed()
        await asyncio.sleep(0.02)


async def lives(broker: BrokerProcess, count: int, seed: int, end: Callable[[int], Awaitable[str]]) -> None:
    """Load until `end` (which says how the life ended), so many times; some more lives end by SIGTERM. Drained and
    accounted for every EPOCH_LIVES.
    """
    choose = random.Random(seed)
    history, judge = History(), Judge()
    said: list[str] = []  # by brokers, of what went wrong

    async def over(crowd: Crowd | None, ending: Awaitable[str]) -> None:
        if crowd is not None:
            crowd.ended = True
        at = time.monotonic()
        how = await ending
        if crowd is not None:
            await crowd.gone()  # what was in the sockets is heard first
        history.events.append(Event(at, "ended", more=how))
        history.note("over", more=how)
        judge.take(history.events)
        history.events.clear()
        lines = [line for line in broker.stderr.splitlines() if " ERROR " in line]
        said.extend(f"life {history.stream.life}: {line}" for line in lines)
        history.stream.ended(how)
        history.groups.ended()
        assert "Traceback" not in broker.stderr, broker.stderr

    async def ask(verb: str, path: str, value: object) -> object:
        try:
            return await asyncio.to_thread(broker.api, verb, path, value, 120.0)
        except HTTPException as error:
            raise OSError("the broker has gone") from error

    async def stop() -> str:
        await asyncio.to_thread(broker.stop, 120.0)
        return "stop"

    ended = life = 0
    while ended < count:
        await asyncio.to_thread(broker.start)
        await prepare(broker.amqp_port, ask)
        await look(broker.amqp_port, ask, history.stream)
        crowd = Crowd(broker.amqp_port, ask, history, seed * 1_000_003 + life * 100)
        crowd.start()
        cleanly = choose.random() < CLEANLY
        last = ended == count - 1 and not cleanly
        if choose.random() < AT_ONCE and not last:
            await asyncio.sleep(choose.uniform(0.0, 0.2))
        else:
            await until_the_load_runs(crowd, history, AT_STAKE if last else set())
            await asyncio.sleep(choose.uniform(0.2, 2.0))
        await over(crowd, stop() if cleanly else end(life))
        ended += not cleanly
        life += 1
        if life % EPOCH_LIVES == 0 or last:
            await asyncio.to_thread(broker.start)
            await drain(broker.amqp_port, ask, history)
            await look(broker.amqp_port, ask, history.stream)
            await over(None, stop())
            judge.account()
    totals = ", ".join(f"{each} {number}" for each, number in sorted(judge.totals.items()))
    streams = ", ".join(f"{each} {number}" for each, number in history.stream.totals.items())
    streams += f"; groups: {history.groups.deliveries} given"
    found = history.violations + judge.violations + history.stream.violations + history.groups.failures
    print(f"\nseed {seed}: {totals}; stream: {streams}; {len(found)} violations")
    # The first violation comes first, because pytest's summary shows one line.
    assert not found, "\n".join([*found, f"seed {seed}: {totals}", judge.tell(), *said[-50:]])
    assert judge.totals["copies accounted for"] > 20 * count, f"hardly any load: {totals}"
    assert history.stream.totals["cut"], f"retention has cut nothing: {streams}"
    assert judge.totals["settled for certain, ack"], f"no ack was old enough to count: {totals}"


async def kills(data_dir: Path, count: int, seed: int) -> None:
    broker = BrokerProcess(data_dir, settings=SETTINGS, start_timeout_s=120)

    async def kill(life: int) -> str:
        await asyncio.to_thread(broker.kill)
        return "kill"

    try:
        await lives(broker, count, seed, kill)
    finally:
        await asyncio.to_thread(broker.kill)


async def cuts(directory: Path, count: int, seed: int) -> None:
    """As `test_faults_power.py`: an ext4 of its own ends between two instructions, and the boot id is another one."""
    reason = await asyncio.to_thread(LoopDisk.why_not)
    skip_or_fail("power cut", reason)
    disk = LoopDisk(directory, 512 << 20)
    data_dir = disk.path / "data"
    settings = SETTINGS | {"limits.disk_free_bytes": 1 << 20}
    broker = BrokerProcess(data_dir, settings=settings, start_timeout_s=120)

    def cut_now(life: int) -> None:
        stop_process(broker.pid)
        disk.cut()
        broker.kill()
        disk.unmount()
        disk.mount()
        (data_dir / "boot-id").write_text(f"{life:032x}\n")

    async def cut(life: int) -> str:
        # In one thread: those who ask a stopped broker hold all the others until they give up.
        await asyncio.to_thread(cut_now, life)
        return "cut"

    try:
        disk.mount()
        await lives(broker, count, seed, cut)
    finally:
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(disk.unmount)


@pytest.mark.slow
async def test_two_kills(tmp_path: Path) -> None:
    await kills(tmp_path / "data", 2, seed=5)


@pytest.mark.ci_long
@pytest.mark.timeout(1200)
async def test_ten_kills(tmp_path: Path) -> None:
    await kills(tmp_path / "data", 10, seed=10)


@pytest.mark.ci_long
@pytest.mark.timeout(1200)
async def test_three_cuts(tmp_path: Path) -> None:
    await cuts(tmp_path, 3, seed=30)


@pytest.mark.on_demand
@pytest.mark.timeout(0)
async def test_history_over_kills(tmp_path: Path) -> None:
    cycles = int(os.environ.get("TEST_CRASH_CYCLES", "500"))
    await kills(tmp_path / "data", cycles, seed=int(os.environ.get("TEST_CRASH_SEED", "500")))


@pytest.mark.on_demand
@pytest.mark.timeout(0)
async def test_history_over_cuts(tmp_path: Path) -> None:
    count = int(os.environ.get("TEST_CRASH_CUTS", "100"))
    await cuts(tmp_path, count, seed=int(os.environ.get("TEST_CRASH_SEED", "100")))
