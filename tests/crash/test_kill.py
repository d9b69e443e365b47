"""kill -9 under load: what was confirmed is there, and what returns says so.

`test_kill_under_load` is the short form; `-m ci_long` runs twenty, `-m on_demand` a thousand cycles.
`TEST_CRASH_CYCLES` and `TEST_CRASH_SEED` set others.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest
from ledger import Ledger
from loadrun import (
    MARKED_UNSEEN_MAX,
    PUBLISHERS,
    QUEUES,
    Crowd,
    drain,
    end_broker,
    prepare,
    space_comes_back,
    until_confirmed,
)

from amqpd.testing import BrokerProcess

SEGMENT_SIZE_BYTES = 1 << 20


async def kill_cycles(data_dir: Path, cycles: int, seed: int) -> Ledger:
    """Load, kill, start again; now and then a second kill before the load is back. Drained, judged and measured."""
    choose = random.Random(seed)
    ledger = Ledger(QUEUES, PUBLISHERS)
    settings = {"storage.segment_size_bytes": SEGMENT_SIZE_BYTES, "log.level": "warning"}
    broker = BrokerProcess(data_dir, settings=settings)
    starts = []
    try:
        for cycle in range(cycles):
            begun = time.monotonic()
            await asyncio.to_thread(broker.start)
            starts.append(time.monotonic() - begun)
            assert broker.ready is not None
            if cycle == 0:
                await prepare(broker.amqp_port)
            crowd = Crowd(broker.amqp_port, ledger)
            begins = asyncio.create_task(crowd.start())
            if cycle % 5 == 3:
                await asyncio.sleep(choose.uniform(0.0, 0.2))
            else:
                await until_confirmed(ledger, 200, begins)
                await asyncio.sleep(choose.uniform(0.2, 2.0))
            await end_broker(broker, crowd, ledger)
            await begins
            assert "Traceback" not in broker.stderr, broker.stderr
            if cycle % 10 == 9:  # a smaller backlog: rolls and removals of the next cycles start from nothing
                await asyncio.to_thread(broker.start)
                await drain(broker.amqp_port, ledger)
                await end_broker(broker, None, ledger)
        await asyncio.to_thread(broker.start)
        await drain(broker.amqp_port, ledger)
        ledger.judge(MARKED_UNSEEN_MAX)
        # A few segments: the active one of each queue, one sealed with it, and what a 1 MiB message adds.
        held = await space_comes_back(data_dir, len(QUEUES) * 3 * SEGMENT_SIZE_BYTES)
        assert "Traceback" not in broker.stderr, broker.stderr
        assert broker.ready is not None
        start = f"{held} bytes held; slowest start {max(starts):.2f} s"
        print(f"\n{broker.ready.build}, seed {seed}: {ledger.totals()}; {start}")
    finally:
        await asyncio.to_thread(broker.kill)
    assert ledger.confirmed_count > 100 * cycles, f"hardly any load: {ledger.totals()}"
    assert ledger.judged_acks > cycles, f"hardly an ack was old enough to count: {ledger.totals()}"
    assert ledger.redeliveries, "no kill left anything unacked: the load is not what it should be"
    return ledger


@pytest.mark.slow
async def test_kill_under_load(tmp_path: Path) -> None:
    await kill_cycles(tmp_path / "data", 5, seed=1)


@pytest.mark.ci_long
@pytest.mark.timeout(1700)
async def test_twenty_kills_under_load(tmp_path: Path) -> None:
    await kill_cycles(tmp_path / "data", 20, seed=20)


@pytest.mark.on_demand
@pytest.mark.timeout(0)
async def test_many_kills_under_load(tmp_path: Path) -> None:
    cycles = int(os.environ.get("TEST_CRASH_CYCLES", "1000"))
    seed = int(os.environ.get("TEST_CRASH_SEED", "50"))
    await kill_cycles(tmp_path / "data", cycles, seed)
