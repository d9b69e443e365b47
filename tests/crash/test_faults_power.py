"""Power cuts for real: a broker under load on an ext4 of its own, whose disk ends between two instructions.

Needs root and a loop device, and skips visibly elsewhere. The machine goes on, so its boot id is what it was: the test
writes another one into the data directory, which is what a broker finds there after a real cut.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest
from faults_disk import LoopDisk, skip_or_fail, stop_process
from ledger import Ledger
from loadrun import PUBLISHERS, QUEUES, Crowd, drain, end_broker, prepare, until_confirmed

from amqpd.testing import BrokerProcess


async def power_cuts(tmp_path: Path, cuts: int, seed: int) -> None:
    reason = await asyncio.to_thread(LoopDisk.why_not)
    skip_or_fail("power cut", reason)
    choose = random.Random(seed)
    ledger = Ledger(QUEUES, PUBLISHERS, power=True)
    disk = LoopDisk(tmp_path, 512 << 20)
    data_dir = disk.path / "data"
    settings = {"storage.segment_size_bytes": 1 << 20, "log.level": "warning", "limits.disk_free_bytes": 1 << 20}
    broker = BrokerProcess(data_dir, settings=settings)
    torn = 0
    try:
        disk.mount()
        for cut in range(cuts):
            await asyncio.to_thread(broker.start)
            if cut == 0:
                await prepare(broker.amqp_port)
            crowd = Crowd(broker.amqp_port, ledger)
            begins = asyncio.create_task(crowd.start())
            if cut % 5 == 3:
                await asyncio.sleep(choose.uniform(0.0, 0.2))
            else:
                await until_confirmed(ledger, 50, begins)
                await asyncio.sleep(choose.uniform(0.1, 1.0))
            crowd.ended = True
            at = time.monotonic()
            await asyncio.to_thread(stop_process, broker.pid)
            await asyncio.to_thread(disk.cut)
            await asyncio.to_thread(broker.kill)
            await crowd.gone()
            await begins
            ledger.killed(at)
            await asyncio.to_thread(disk.unmount)
            await asyncio.to_thread(disk.mount)
            (data_dir / "boot-id").write_text(f"{cut:032x}\n")
            torn += 1
            if cut % 10 == 9:
                await asyncio.to_thread(broker.start)
                await drain(broker.amqp_port, ledger)
                await end_broker(broker, None, ledger)
        await asyncio.to_thread(broker.start)
        await drain(broker.amqp_port, ledger)
        assert "Traceback" not in broker.stderr, broker.stderr
        for item in broker.api("GET", "/api/queues") or ():  # type: ignore[attr-defined]
            assert not item["degraded"], f"a power cut damages nothing: {item['name']} {item['lost_offsets']}"
    finally:
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(disk.unmount)
    # After a power cut nobody knows what was seen, and everything that is there says redelivered.
    ledger.judge(1 << 60)
    assert ledger.confirmed_count > 20 * cuts, f"hardly any load: {ledger.totals()}"
    print(f"\n{torn} power cuts, seed {seed}: {ledger.totals()}")


@pytest.mark.slow
async def test_two_power_cuts(tmp_path: Path) -> None:
    await power_cuts(tmp_path, 2, seed=1)


@pytest.mark.ci_long
@pytest.mark.timeout(1700)
async def test_twenty_power_cuts(tmp_path: Path) -> None:
    await power_cuts(tmp_path, 20, seed=20)


@pytest.mark.on_demand
@pytest.mark.timeout(0)
async def test_many_power_cuts(tmp_path: Path) -> None:
    cuts = int(os.environ.get("TEST_CRASH_CUTS", "500"))
    await power_cuts(tmp_path, cuts, seed=int(os.environ.get("TEST_CRASH_SEED", "500")))


def test_the_cut_takes_what_was_not_synced(tmp_path: Path) -> None:
    """The fault itself: an unsynced file is gone, a synced one is not."""
    reason = LoopDisk.why_not()
    skip_or_fail("power cut", reason)
    with LoopDisk(tmp_path, 16 << 20) as disk:
        safe = os.open(disk.path / "safe", os.O_RDWR | os.O_CREAT, 0o600)
        os.write(safe, b"kept")
        os.fsync(safe)
        os.write(safe, b"lost")
        lost = os.open(disk.path / "lost", os.O_RDWR | os.O_CREAT, 0o600)
        os.write(lost, b"never synced")
        disk.cut()
        os.close(safe)
        os.close(lost)
        disk.unmount()
        disk.mount()
        assert (disk.path / "safe").read_bytes() == b"kept"
        assert not (disk.path / "lost").exists()
