"""Nodes with little load for a long time: their vhosts stay served."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from amqpd_nodes import Nodes
from kafka_rig import Kafka
from nodes_story import VHOSTS, count, loaded, note, owner_of, owners_of, wait_until_flowing, wait_until_served

IDLE_S = count(40, 120)


async def idle(nodes: Nodes, served_s: float = 60.0) -> None:
    """Run a small load, then kill an owner. A takeover proves that the nodes are still in the group."""
    async with loaded(nodes, publishers=1, rate=5) as load:
        sessions_before = len(load.account.sessions)
        await asyncio.sleep(IDLE_S)
        await wait_until_flowing(load, VHOSTS)
        more = len(load.account.sessions) - sessions_before
        assert not more, f"connections were closed: {load.closes}"
        victim = await owner_of(nodes, VHOSTS[0])
        victim_vhosts = [vhost for vhost, owner in (await owners_of(nodes)).items() if owner == victim]
        since = time.monotonic()
        nodes.kill(victim)
        seconds_by_vhost = await wait_until_served(load, victim_vhosts, since, served_s)
        await wait_until_flowing(load, VHOSTS)
    note("idle", seconds=IDLE_S, served=round(max(seconds_by_vhost.values()), 1), told=load.account.summary())


@pytest.mark.on_demand
async def test_idle_nodes_stay_in_the_group(tmp_path: Path, brokers: Kafka) -> None:
    """Acceptance 14. A member that is not polled leaves the group after 10 s here, otherwise after a minute."""
    with Nodes(tmp_path, brokers, 3, name="idle", plant="short-poll") as nodes:
        await idle(nodes)


@pytest.mark.on_demand
async def test_planted_no_poll_loses_the_group(tmp_path: Path, brokers: Kafka) -> None:
    """Planted fault: the nodes join the group but never poll."""
    with (
        Nodes(tmp_path, brokers, 3, name="planted-14", plant="short-poll,no-poll") as nodes,
        pytest.raises(AssertionError, match="are not served within|connections were closed"),
    ):
        await idle(nodes, 30)
