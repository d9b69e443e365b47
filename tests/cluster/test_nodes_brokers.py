"""Kafka brokers are killed, restarted and suspended under load: no message is lost and stalls are bounded."""

from __future__ import annotations

import asyncio
import signal
import time
from statistics import median

from amqpd_nodes import Nodes
from kafka_rig import Kafka
from nodes_story import QUIET_MACHINE, VHOSTS, count, loaded, note, wait_until_confirming, wait_until_flowing

STALL_S_MAX = 30.0
"""Kafka waits 9 s (`broker.session.timeout.ms`) before it elects leaders in place of a killed broker."""
SUSPENDED_S_MAX = 20.0
"""A suspended broker keeps its connections open: nodes ask other brokers for the new leader."""


async def test_killed_and_restarted_brokers_lose_no_message(nodes: Nodes, brokers: Kafka) -> None:
    """Acceptance 6: one of three brokers is killed under load, then all three are restarted in turn."""
    stalls: list[float] = []
    signals = [signal.SIGKILL] * count(1, 50) + [signal.SIGTERM] * count(1, 3)
    async with loaded(nodes) as load:
        for turn, kill_signal in enumerate(signals):
            victim = 1 + turn % len(brokers.brokers)
            since = time.monotonic()
            await asyncio.to_thread(brokers.kill, victim, kill_signal)
            await wait_until_confirming(load, VHOSTS, 240)
            stalls.append(time.monotonic() - since)
            brokers.start(victim, wait=False)
            await asyncio.to_thread(brokers.wait_until_ready)
            await wait_until_flowing(load, VHOSTS, 240)
            await asyncio.to_thread(brokers.wait_until_in_sync)
    print(f"stalls: {len(stalls)}, median {median(stalls):.1f} s, at most {max(stalls):.1f} s")
    note("brokers", stalls=[round(each, 1) for each in stalls], told=load.account.summary())
    if QUIET_MACHINE:
        assert max(stalls) <= STALL_S_MAX


async def test_suspended_brokers_lose_no_message(nodes: Nodes, brokers: Kafka) -> None:
    """Acceptance 6: each of the three brokers in turn is suspended under load for half a minute."""
    stalls: list[float] = []
    async with loaded(nodes) as load:
        for turn in range(count(1, 9)):
            victim = 1 + turn % len(brokers.brokers)
            since = time.monotonic()
            brokers.suspend(victim)
            try:
                await wait_until_confirming(load, VHOSTS, 240)
                stalls.append(time.monotonic() - since)
                await asyncio.sleep(max(0.0, since + 30 - time.monotonic()))
                await wait_until_confirming(load, VHOSTS, 240)
            finally:
                brokers.resume(victim)
            await asyncio.to_thread(brokers.wait_until_ready)
            await wait_until_flowing(load, VHOSTS, 240)
            await asyncio.to_thread(brokers.wait_until_in_sync)
    print(f"stalls: {len(stalls)}, median {median(stalls):.1f} s, at most {max(stalls):.1f} s")
    note("suspended brokers", stalls=[round(each, 1) for each in stalls], told=load.account.summary())
    if QUIET_MACHINE:
        assert max(stalls) <= SUSPENDED_S_MAX
