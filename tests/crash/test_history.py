"""A history of all client actions, over kills and power cuts: each copy of each message is accounted for.

`test_kill.py` counts publishes and acks under high load. This module covers everything else that moves a message:
rejects, requeues, dead letters with four reasons, priorities, transactions, purges, deletions. It also covers a stream
with its readers, stored offsets and retention policies. `history_judge.py` and `streams_story.py` list the rules.

`-m ci_long` runs ten kills and three cuts, `make torture` 500 and 100. TEST_CRASH_CYCLES, TEST_CRASH_CUTS and
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
CLEAN_STOP_SHARE = 0.1
"""The share of lives that end by SIGTERM, also under load."""
ACTIONS_REQUIRED = {
    *("purged", "deleted", "committed", "rolled back", "ruled"),
    *("publish-again", "refused", "moved, by a job", "redriven, by a job", "cancelled", "rewound"),
}
"""Actions that must happen in a run, since otherwise the run does not test them."""
STREAM_COUNT = 1200
"""With so many messages, retention must delete some under every policy."""
EARLY_END_SHARE = 0.2
"""The share of lives that end while the load starts."""


async def wait_for_load(crowd: Crowd, history: History, required: set[str]) -> None:
    """Wait until 50 more messages are confirmed, and until the `required` actions have happened in any life.

    The long deadline is for slow machines.
    """
    expected = history.confirmed + 50
    deadline = time.monotonic() + 240
    published = history.stream.totals
    while (
        history.confirmed < expected
        or not required <= history.seen
        or (required and published["published"] < STREAM_COUNT)
    ):
        assert time.monotonic() < deadline, "the load does not start"
        crowd.failed()
        await asyncio.sleep(0.02)


async def lives(broker: BrokerProcess, count: int, seed: int, end: Callable[[int], Awaitable[str]]) -> None:
    """Run the load until `end` ends the broker, `count` times; some further lives end by SIGTERM.

    `end` returns how the life ended. Every EPOCH_LIVES lives the queues are drained and all messages are accounted for.
    """
    rng = random.Random(seed)
    history, judge = History(), Judge()
    error_lines: list[str] = []  # ERROR lines of the brokers' logs

    async def end_life(crowd: Crowd | None, end_of_broker: Awaitable[str]) -> None:
        if crowd is not None:
            crowd.ended = True
        at = time.monotonic()
        how = await end_of_broker
        if crowd is not None:
            await crowd.gone()  # first read what is still in the sockets
        history.events.append(Event(at, "ended", more=how))
        history.note("over", more=how)
        judge.take(history.events)
        history.events.clear()
        lines = [line for line in broker.stderr.splitlines() if " ERROR " in line]
        error_lines.extend(f"life {history.stream.life}: {line}" for line in lines)
        history.stream.ended(how)
        history.groups.ended()
        assert "Traceback" not in broker.stderr, broker.stderr

    async def ask(verb: str, path: str, value: object) -> object:
        try:
            return await asyncio.to_thread(broker.api, verb, path, value, 120.0)
        except HTTPException as error:
            raise OSError("the broker has ended") from error

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
        cleanly = rng.random() < CLEAN_STOP_SHARE
        last = ended == count - 1 and not cleanly
        if rng.random() < EARLY_END_SHARE and not last:
            await asyncio.sleep(rng.uniform(0.0, 0.2))
        else:
            await wait_for_load(crowd, history, ACTIONS_REQUIRED if last else set())
            await asyncio.sleep(rng.uniform(0.2, 2.0))
        await end_life(crowd, stop() if cleanly else end(life))
        ended += not cleanly
        life += 1
        if life % EPOCH_LIVES == 0 or last:
            await asyncio.to_thread(broker.start)
            await drain(broker.amqp_port, ask, history)
            await look(broker.amqp_port, ask, history.stream)
            await end_life(None, stop())
            judge.account()
    totals = ", ".join(f"{each} {number}" for each, number in sorted(judge.totals.items()))
    streams = ", ".join(f"{each} {number}" for each, number in history.stream.totals.items())
    streams += f"; groups: {history.groups.deliveries} deliveries"
    found = history.violations + judge.violations + history.stream.violations + history.groups.failures
    print(f"\nseed {seed}: {totals}; stream: {streams}; {len(found)} violations")
    # The first violation is on the first line, which pytest's summary shows.
    assert not found, "\n".join([*found, f"seed {seed}: {totals}", judge.tell(), *error_lines[-50:]])
    assert judge.totals["copies accounted for"] > 20 * count, f"too little load: {totals}"
    assert history.stream.totals["cut"], f"retention deleted nothing: {streams}"
    assert judge.totals["settled for certain, ack"], f"no ack was old enough to be judged: {totals}"


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
    """Cut the power as `test_faults_power.py` does: on an ext4 of its own, with another boot id after each cut."""
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
        # One thread for all steps: requests to the stopped broker may occupy the other threads until they time out.
        await asyncio.to_thread(cut_now, life)
        return "cut"

    try:
        disk.mount()
        await lives(broker, count, seed, cut)
    finally:
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(disk.unmount)


@pytest.mark.slow
async def test_history_of_two_kills_has_no_violation(tmp_path: Path) -> None:
    await kills(tmp_path / "data", 2, seed=5)


@pytest.mark.ci_long
@pytest.mark.timeout(1200)
async def test_history_of_ten_kills_has_no_violation(tmp_path: Path) -> None:
    await kills(tmp_path / "data", 10, seed=10)


@pytest.mark.ci_long
@pytest.mark.timeout(1200)
async def test_history_of_three_power_cuts_has_no_violation(tmp_path: Path) -> None:
    await cuts(tmp_path, 3, seed=30)


@pytest.mark.on_demand
@pytest.mark.timeout(0)
async def test_long_history_of_kills_has_no_violation(tmp_path: Path) -> None:
    cycles = int(os.environ.get("TEST_CRASH_CYCLES", "500"))
    await kills(tmp_path / "data", cycles, seed=int(os.environ.get("TEST_CRASH_SEED", "500")))


@pytest.mark.on_demand
@pytest.mark.timeout(0)
async def test_long_history_of_power_cuts_has_no_violation(tmp_path: Path) -> None:
    count = int(os.environ.get("TEST_CRASH_CUTS", "100"))
    await cuts(tmp_path, count, seed=int(os.environ.get("TEST_CRASH_SEED", "100")))
