"""Real power cuts: the disk of a broker under load stops at an arbitrary moment.

The disk is an ext4 on a loop device. The tests need root and a loop device, and skip visibly without them. The machine
itself keeps running, so its boot id does not change; the test therefore writes another boot id into the data directory,
as a broker would find it after a real power cut.
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


async def power_cuts(tmp_path: Path, cuts: int, seed: int, *, journal: bool = False) -> None:
    reason = await asyncio.to_thread(LoopDisk.why_not)
    skip_or_fail("power cut", reason)
    rng = random.Random(seed)
    ledger = Ledger(QUEUES, PUBLISHERS, power=True)
    disk = LoopDisk(tmp_path, 1 << 30 if journal else 512 << 20)  # a journal is created with 512 MiB free only
    data_dir = disk.path / "data"
    settings = {
        "storage.segment_size_bytes": 1 << 20,
        "storage.journal": journal,
        "log.level": "warning",
        "limits.disk_free_bytes": 1 << 20,
    }
    restored = 0  # starts that restored something from the journal
    broker = BrokerProcess(data_dir, settings=settings)
    cut_count = 0
    try:
        disk.mount()
        for cut in range(cuts):
            await asyncio.to_thread(broker.start)
            if cut == 0:
                await prepare(broker.amqp_port)
            crowd = Crowd(broker.amqp_port, ledger)
            starting = asyncio.create_task(crowd.start())
            if cut % 5 == 3:
                await asyncio.sleep(rng.uniform(0.0, 0.2))
            else:
                await until_confirmed(ledger, 50, starting)
                await asyncio.sleep(rng.uniform(0.1, 1.0))
            crowd.ended = True
            at = time.monotonic()
            await asyncio.to_thread(stop_process, broker.pid)
            await asyncio.to_thread(disk.cut)
            await asyncio.to_thread(broker.kill)
            await crowd.gone()
            await starting
            ledger.killed(at)
            await asyncio.to_thread(disk.unmount)
            await asyncio.to_thread(disk.mount)
            (data_dir / "boot-id").write_text(f"{cut:032x}\n")
            cut_count += 1
            restored += "were restored from" in broker.stderr
            if cut % 10 == 9:
                await asyncio.to_thread(broker.start)
                await drain(broker.amqp_port, ledger)
                await end_broker(broker, None, ledger)
        await asyncio.to_thread(broker.start)
        await drain(broker.amqp_port, ledger)
        assert "Traceback" not in broker.stderr, broker.stderr
        for item in broker.api("GET", "/api/queues") or ():  # type: ignore[attr-defined]
            assert not item["degraded"], f"degraded after a power cut: {item['name']} {item['lost_offsets']}"
        restored += "were restored from" in broker.stderr
        assert (data_dir / "journal").exists() == journal
    finally:
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(disk.unmount)
    # After a power cut all remaining messages are marked as redelivered, since deliveries are not synced.
    ledger.judge(1 << 60)
    assert ledger.confirmed_count > 20 * cuts, f"too little load: {ledger.totals()}"
    print(f"\n{cut_count} power cuts, seed {seed}: {ledger.totals()}, {restored} starts restored data from a journal")


@pytest.mark.slow
async def test_two_power_cuts_lose_no_confirmed_message(tmp_path: Path) -> None:
    await power_cuts(tmp_path, 2, seed=1)


@pytest.mark.slow
async def test_two_power_cuts_with_a_journal_lose_no_confirmed_message(tmp_path: Path) -> None:
    await power_cuts(tmp_path, 2, seed=2, journal=True)


@pytest.mark.ci_long
@pytest.mark.timeout(1700)
async def test_twelve_power_cuts_with_a_journal_lose_no_confirmed_message(tmp_path: Path) -> None:
    await power_cuts(tmp_path, 12, seed=12, journal=True)


@pytest.mark.ci_long
@pytest.mark.timeout(1700)
async def test_twenty_power_cuts_lose_no_confirmed_message(tmp_path: Path) -> None:
    await power_cuts(tmp_path, 20, seed=20)


@pytest.mark.on_demand
@pytest.mark.timeout(0)
async def test_many_power_cuts(tmp_path: Path) -> None:
    cuts = int(os.environ.get("TEST_CRASH_CUTS", "500"))
    await power_cuts(tmp_path, cuts, seed=int(os.environ.get("TEST_CRASH_SEED", "500")))


def test_simulated_power_cut_loses_only_unsynced_files(tmp_path: Path) -> None:
    """Checks the test's own fault: after the cut a synced file is there, an unsynced one is not."""
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
