"""Brokers of Kafka that are killed, restarted and suspended under the nodes' load: nothing lost, stalls bounded."""

from __future__ import annotations

import asyncio
import signal
import time
from statistics import median

from amqpd_nodes import Nodes
from kafka_rig import Kafka
from nodes_story import QUIET_MACHINE, VHOSTS, confirming, count, flowing, loaded, note

STALL_S_MAX = 30.0
"""Kafka gives a killed broker 9 s (`broker.session.timeout.ms`) before another leads its partitions."""
SUSPENDED_S_MAX = 20.0
"""A suspended broker keeps its connections open: nodes ask other brokers who leads instead of it."""


async def test_brokers_that_are_killed_and_restarted(nodes: Nodes, brokers: Kafka) -> None:
    """Acceptance 6: one of three killed under load, then a rolling restart of all three."""
    stalls: list[float] = []
    ways = [signal.SIGKILL] * count(1, 50) + [signal.SIGTERM] * count(1, 3)
    async with loaded(nodes) as load:
        for turn, how in enumerate(ways):
            victim = 1 + turn % len(brokers.brokers)
            since = time.monotonic()
            await asyncio.to_thread(brokers.kill, victim, how)
            await confirming(load, VHOSTS, 240)
            stalls.append(time.monotonic() - since)
            brokers.start(victim, wait=False)
            await asyncio.to_thread(brokers.wait_until_there)
            await flowing(load, VHOSTS, 240)
            await asyncio.to_thread(brokers.wait_until_in_sync)
    print(f"stalls: {len(stalls)}, median {median(stalls):.1f} s, at most {max(stalls):.1f} s")
    note("brokers", stalls=[round(each, 1) for each in stalls], told=load.account.told())
    if QUIET_MACHINE:
        assert max(stalls) <= STALL_S_MAX


async def test_brokers_that_are_suspended(nodes: Nodes, brokers: Kafka) -> None:
    """Acceptance 6: one of three hangs under load for half a minute and goes on, each of them in turn."""
    stalls: list[float] = []
    async with loaded(nodes) as load:
        for turn in range(count(1, 9)):
            victim = 1 + turn % len(brokers.brokers)
            since = time.monotonic()
            brokers.suspend(victim)
            try:
                await confirming(load, VHOSTS, 240)
                stalls.append(time.monotonic() - since)
                await asyncio.sleep(max(0.0, since + 30 - time.monotonic()))
                await confirming(load, VHOSTS, 240)
            finally:
                brokers.resume(victim)
            await asyncio.to_thread(brokers.wait_until_there)
            await flowing(load, VHOSTS, 240)
            await asyncio.to_thread(brokers.wait_until_in_sync)
    print(f"stalls: {len(stalls)}, median {median(stalls):.1f} s, at most {max(stalls):.1f} s")
    note("suspended brokers", stalls=[round(each, 1) for each in stalls], told=load.account.told())
    if QUIET_MACHINE:
        assert max(stalls) <= SUSPENDED_S_MAX
