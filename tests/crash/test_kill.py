"""kill -9 under load: confirmed messages are there, and repeated deliveries are marked as redelivered.

`test_kill_under_load` is the short form; `-m ci_long` runs twenty cycles, `-m on_demand` a thousand.
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


async def kill_cycles(data_dir: Path, cycles: int, seed: int, *, journal: bool = False) -> Ledger:
    """Load, kill and restart `cycles` times, every fifth time before the load is back. Then drain and judge."""
    rng = random.Random(seed)
    ledger = Ledger(QUEUES, PUBLISHERS)
    settings = {
        "storage.segment_size_bytes": SEGMENT_SIZE_BYTES,
        "storage.journal": journal,
        "log.level": "warning",
    }
    broker = BrokerProcess(data_dir, settings=settings)
    starts = []
    try:
        for cycle in range(cycles):
            start_s = time.monotonic()
            await asyncio.to_thread(broker.start)
            starts.append(time.monotonic() - start_s)
            assert broker.ready is not None
            if cycle == 0:
                await prepare(broker.amqp_port)
            crowd = Crowd(broker.amqp_port, ledger)
            load_starting = asyncio.create_task(crowd.start())
            if cycle % 5 == 3:
                await asyncio.sleep(rng.uniform(0.0, 0.2))
            else:
                await until_confirmed(ledger, 200, load_starting)
                await asyncio.sleep(rng.uniform(0.2, 2.0))
            await end_broker(broker, crowd, ledger)
            await load_starting
            assert "Traceback" not in broker.stderr, broker.stderr
            if cycle % 10 == 9:  # empty the backlog: the next cycles roll and remove segments from the start
                await asyncio.to_thread(broker.start)
                await drain(broker.amqp_port, ledger)
                await end_broker(broker, None, ledger)
        await asyncio.to_thread(broker.start)
        await drain(broker.amqp_port, ledger)
        ledger.judge(MARKED_UNSEEN_MAX)
        # Per queue: the active segment, one sealed segment, and space for a 1 MiB message.
        held_bytes = await space_comes_back(data_dir, len(QUEUES) * 3 * SEGMENT_SIZE_BYTES)
        assert "Traceback" not in broker.stderr, broker.stderr
        assert broker.ready is not None
        assert (data_dir / "journal").exists() == journal
        start = f"{held_bytes} bytes held; slowest start {max(starts):.2f} s"
        print(f"\n{broker.ready.build}, seed {seed}: {ledger.totals()}; {start}")
    finally:
        await asyncio.to_thread(broker.kill)
    assert ledger.confirmed_count > 100 * cycles, f"too little load: {ledger.totals()}"
    assert ledger.judged_acks > cycles, f"too few acks were old enough to be judged: {ledger.totals()}"
    assert ledger.redeliveries, "no kill left an unacked message: the load is wrong"
    return ledger


@pytest.mark.slow
async def test_five_kills_under_load_lose_no_confirmed_message(tmp_path: Path) -> None:
    await kill_cycles(tmp_path / "data", 5, seed=1)


@pytest.mark.slow
async def test_three_kills_with_a_journal_lose_no_confirmed_message(tmp_path: Path) -> None:
    await kill_cycles(tmp_path / "data", 3, seed=3, journal=True)


@pytest.mark.ci_long
@pytest.mark.timeout(1700)
async def test_twenty_kills_under_load_lose_no_confirmed_message(tmp_path: Path) -> None:
    await kill_cycles(tmp_path / "data", 20, seed=20)


@pytest.mark.on_demand
@pytest.mark.timeout(0)
async def test_many_kills_under_load_lose_no_confirmed_message(tmp_path: Path) -> None:
    cycles = int(os.environ.get("TEST_CRASH_CYCLES", "1000"))
    seed = int(os.environ.get("TEST_CRASH_SEED", "50"))
    await kill_cycles(tmp_path / "data", cycles, seed)
