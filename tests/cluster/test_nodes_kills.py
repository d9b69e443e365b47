"""Nodes are killed, stopped and restarted under load. No confirmed message is lost, order is kept, repeats are flagged
redelivered, and another node soon serves the vhosts.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from amqpd_nodes import Nodes
from kafka_rig import Kafka
from nodes_story import (
    PATIENCE_S,
    VHOSTS,
    check_epochs_never_fall,
    count,
    judge_times,
    loaded,
    note,
    owner_of,
    owners_of,
    start_and_wait,
    wait_until_flowing,
    wait_until_served,
)

from amqpd.kafka.config import KafkaAccess


async def kill_owners(nodes: Nodes, times: int, patience_s: float = PATIENCE_S) -> None:
    """Kill -9 the owner of one vhost after the other, with five confirming publishers per vhost."""
    took: list[float] = []
    async with loaded(nodes, publishers=5, unread=True, patience_s=patience_s) as load:
        for turn in range(times):
            victim = await owner_of(nodes, VHOSTS[turn % len(VHOSTS)])
            victim_vhosts = [vhost for vhost, owner in (await owners_of(nodes)).items() if owner == victim]
            since = time.monotonic()
            nodes.kill(victim)
            took += (await wait_until_served(load, victim_vhosts, since)).values()
            await start_and_wait(nodes, victim)
            await wait_until_flowing(load, VHOSTS)
    judge_times("kill -9 of an owner, to the first delivery elsewhere", took)
    note("kills", kills=times, seconds=sorted(round(each, 2) for each in took), told=load.account.summary())


async def test_killed_owners_lose_no_confirmed_message(nodes: Nodes, brokers: Kafka) -> None:
    """Acceptance 2."""
    await kill_owners(nodes, count(2, 50))
    await check_epochs_never_fall(KafkaAccess(tuple(brokers.bootstrap.split(","))), nodes.name)


@pytest.mark.on_demand
async def test_planted_early_confirms_lose_messages(tmp_path: Path, brokers: Kafka) -> None:
    """Planted fault: a message is confirmed as soon as it is in the node's own log."""
    with (
        Nodes(tmp_path, brokers, 3, name="planted-2", plant="confirm-early") as nodes,
        pytest.raises(AssertionError, match="confirmed messages are lost"),
    ):
        await kill_owners(nodes, 2, patience_s=20)


async def test_clean_stop_hands_over_within_seconds(nodes: Nodes) -> None:
    """The aim is 4 s: the node leaves the group, so there is no wait for its session timeout."""
    took: list[float] = []
    async with loaded(nodes) as load:
        for turn in range(count(1, 20)):
            leaving = await owner_of(nodes, VHOSTS[turn % len(VHOSTS)])
            victim_vhosts = [vhost for vhost, owner in (await owners_of(nodes)).items() if owner == leaving]
            since = time.monotonic()
            nodes.start_stop(leaving)
            took += (await wait_until_served(load, victim_vhosts, since)).values()
            await asyncio.to_thread(nodes.wait_until_ended, leaving)
            await start_and_wait(nodes, leaving)
            await wait_until_flowing(load, VHOSTS)
        assert load.account.nacked == 0
    judge_times("a clean stop, to the first delivery elsewhere", took, 8.0, 4.0)
    note("stops", seconds=sorted(round(each, 2) for each in took), told=load.account.summary())


async def test_rolling_restart_causes_no_nack_and_only_short_gaps(nodes: Nodes) -> None:
    """Acceptance 12: no gap of 5 s in any vhost, and publishers that reconnect see no nack."""
    took: list[float] = []
    async with loaded(nodes) as load:
        for number in [node.number for node in nodes]:
            before = await owners_of(nodes)
            since = time.monotonic()
            nodes.start_stop(number)
            took += (
                await wait_until_served(load, [vhost for vhost in VHOSTS if before[vhost] == number], since)
            ).values()
            await asyncio.to_thread(nodes.wait_until_ended, number)
            await start_and_wait(nodes, number)
            await wait_until_flowing(load, VHOSTS)
        assert load.account.nacked == 0
    if took:
        judge_times("a rolling restart, gap of a vhost", took, 5.0, 5.0)
    note("rolling", seconds=sorted(round(each, 2) for each in took), told=load.account.summary())
