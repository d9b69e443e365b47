"""Nodes that have little to do: they go on being served, and what that costs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from amqpd_nodes import Nodes
from kafka_rig import Kafka
from nodes_load import Load
from nodes_story import LONG, VHOSTS, count, flowing, loaded, note

IDLE_S = count(40, 120)


async def idle(nodes: Nodes) -> None:
    async with loaded(nodes, publishers=1, rate=5) as load:
        begun = len(load.account.sessions)
        await asyncio.sleep(IDLE_S)
        await flowing(load, VHOSTS)
        assert len(load.account.sessions) == begun, f"connections were closed: {load.closes}"
    note("idle", seconds=IDLE_S, told=load.account.told())


@pytest.mark.on_demand
async def test_idle_hours(tmp_path: Path, brokers: Kafka) -> None:
    """Acceptance 14: Kafka's library lets a member go that is not polled for 10 s here, for a minute else."""
    with Nodes(tmp_path, brokers, 3, name="idle", plant="short-poll") as nodes:
        await idle(nodes)


@pytest.mark.on_demand
async def test_without_polls_the_group_is_lost(tmp_path: Path, brokers: Kafka) -> None:
    """Planted: the group is joined, and not polled."""
    with (
        Nodes(tmp_path, brokers, 3, name="planted-14", plant="short-poll,no-poll") as nodes,
        pytest.raises(AssertionError),
    ):
        await idle(nodes)


@pytest.mark.on_demand
async def test_many_idle_queues(nodes: Nodes) -> None:
    """Acceptance 11: 100 vhosts with 500 durable queues on three nodes: memory, requests to Kafka, declare p99."""
    vhosts, queues = count(10, 100), 5
    empty = sum(_rss_mib(node.process.pid) for node in nodes if node.process is not None)
    load = Load(account=_none(), addresses=[node.amqp for node in nodes])
    times: list[float] = []
    for number in range(vhosts):
        vhost = f"vhost-{number}"
        await asyncio.to_thread(nodes.add_vhost, vhost)
        link = await load._connect(vhost)
        for queue in range(queues):
            began = time.monotonic()
            await link.declare_queue(f"queue-{queue}")
            times.append(time.monotonic() - began)
        link.close()
        await link.gone.wait()
    await asyncio.sleep(10)
    full = sum(_rss_mib(node.process.pid) for node in nodes if node.process is not None)
    began, cpu = time.monotonic(), _cpu_s(nodes)
    await asyncio.sleep(30 if LONG else 10)
    idle_cpu = (_cpu_s(nodes) - cpu) / (time.monotonic() - began)
    times.sort()
    note(
        "many",
        vhosts=vhosts,
        queues=len(times),
        mib_before=round(empty),
        mib_after=round(full),
        declare_ms_p50=round(times[len(times) // 2] * 1000, 1),
        declare_ms_p99=round(times[len(times) * 99 // 100] * 1000, 1),
        idle_processor_share=round(idle_cpu, 3),
    )
    await load.leave()


def _none():
    from account import Account

    return Account()


def _rss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _cpu_s(nodes: Nodes) -> float:
    total = 0.0
    for node in nodes:
        assert node.process is not None
        fields = Path(f"/proc/{node.process.pid}/stat").read_text("ascii").rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / 100
    return total
