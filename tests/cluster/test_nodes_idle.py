"""Nodes that have little to do for long: their vhosts go on being served."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from amqpd_nodes import Nodes
from kafka_rig import Kafka
from nodes_story import VHOSTS, count, flowing, loaded, note, owner_of, owners_of, served

IDLE_S = count(40, 120)


async def idle(nodes: Nodes, served_s: float = 60.0) -> None:
    """At the end an owner is killed: nodes that have all left the group go on with what they serve, and nobody else
    ever takes it.
    """
    async with loaded(nodes, publishers=1, rate=5) as load:
        begun = len(load.account.sessions)
        await asyncio.sleep(IDLE_S)
        await flowing(load, VHOSTS)
        more = len(load.account.sessions) - begun
        assert not more, f"connections were closed: {load.closes}"
        victim = await owner_of(nodes, VHOSTS[0])
        his = [vhost for vhost, owner in (await owners_of(nodes)).items() if owner == victim]
        since = time.monotonic()
        nodes.kill(victim)
        took = await served(load, his, since, served_s)
        await flowing(load, VHOSTS)
    note("idle", seconds=IDLE_S, served=round(max(took.values()), 1), told=load.account.told())


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
        pytest.raises(AssertionError, match="are not served within|connections were closed"),
    ):
        await idle(nodes, 30)
