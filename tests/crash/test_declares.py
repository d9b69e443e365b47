"""Clients that declare and bind many queues without waiting for replies, over kills and power cuts.

After each start a queue or binding whose declaration was answered exists, and others exist as a whole or not at all.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from faults_disk import LoopDisk, skip_or_fail, stop_process
from quickclient import Gone, Link, connect

from amqpd.testing import BrokerProcess

CLIENTS: Final = 3
BATCH: Final = 100
EXCHANGE: Final = "declares"


class Declared:
    """Names by the progress of their declarations; bindings have the name of their queue.

    Attributes:
        sent: queues whose declaration was sent.
        queues, bindings: answered ones.
    """

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.queues: set[str] = set()
        self.bindings: set[str] = set()
        self.has_batch = asyncio.Event()  # since it was cleared, BATCH bindings were answered
        self._answered_count = 0

    async def declare(self, link: Link, name: str) -> None:
        self.sent.add(name)
        with suppress(Gone):
            await link.declare_queue(name)
            self.queues.add(name)

    async def bind(self, link: Link, name: str) -> None:
        with suppress(Gone):
            await link.bind(name, EXCHANGE, name)
            self.bindings.add(name)
            self._answered_count += 1
            if self._answered_count % BATCH == 0:
                self.has_batch.set()

    async def declare_on(self, port: int, prefix: str) -> None:
        """Send batches of declarations, each queue with its binding, until the broker is gone."""
        link = await connect(port)
        number = 0
        while not link.gone.is_set():
            names = [f"{prefix}.{number + index}" for index in range(BATCH)]
            number += BATCH
            await asyncio.gather(*(step(link, name) for name in names for step in (self.declare, self.bind)))

    def judge(self, broker: BrokerProcess) -> None:
        """Compare with the lists of a broker after its start."""
        api: Any = broker.api
        queues = {each["name"] for each in api("GET", "/api/queues?columns=name") or ()}
        found = api("GET", f"/api/exchanges/%2F/{EXCHANGE}/bindings/source") or ()
        bindings = {each["destination"]: each["routing_key"] for each in found}
        assert not self.queues - queues, f"answered, but lost: {sorted(self.queues - queues)[:9]}"
        assert not self.bindings - set(bindings), f"binding lost: {sorted(self.bindings - set(bindings))[:9]}"
        assert queues <= self.sent, "a queue that no client declared"
        assert set(bindings) <= queues and all(bindings[name] == name for name in bindings)


async def lives(broker: BrokerProcess, count: int, seed: int, disk: LoopDisk | None) -> None:
    rng = random.Random(seed)
    declared = Declared()
    for life in range(count + 1):
        await asyncio.to_thread(broker.start)
        await asyncio.to_thread(declared.judge, broker)
        if life == count:
            break
        link = await connect(broker.amqp_port)
        await link.declare_exchange(EXCHANGE)
        declared.has_batch.clear()
        clients = [
            asyncio.create_task(declared.declare_on(broker.amqp_port, f"{life}.{client}")) for client in range(CLIENTS)
        ]
        await declared.has_batch.wait()
        await asyncio.sleep(rng.uniform(0.0, 0.2))
        if disk is not None:
            await asyncio.to_thread(stop_process, broker.pid)
            await asyncio.to_thread(disk.cut)
        await asyncio.to_thread(broker.kill)
        await link.gone.wait()
        await asyncio.gather(*clients)
        if disk is not None:
            await asyncio.to_thread(disk.unmount)
            await asyncio.to_thread(disk.mount)
    assert "Traceback" not in broker.stderr, broker.stderr
    counts = [len(each) for each in (declared.queues, declared.bindings, declared.sent)]
    print(f"\n{count} lives: {counts[0]} queues and {counts[1]} bindings answered, of {counts[2]} queues")


async def test_answered_declarations_survive_kills(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", settings={"log.level": "warning"})
    try:
        await lives(broker, 2, seed=1, disk=None)
    finally:
        await asyncio.to_thread(broker.kill)


@pytest.mark.slow
async def test_answered_declarations_survive_power_cuts(tmp_path: Path) -> None:
    skip_or_fail("power cut", await asyncio.to_thread(LoopDisk.why_not))
    disk = LoopDisk(tmp_path, 256 << 20)
    settings = {"log.level": "warning", "limits.disk_free_bytes": 1 << 20}
    broker = BrokerProcess(disk.path / "data", settings=settings)
    try:
        disk.mount()
        await lives(broker, 3, seed=2, disk=disk)
    finally:
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(disk.unmount)
