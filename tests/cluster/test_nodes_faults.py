"""Faults at Kafka's Produce requests under load, one kind after the other. No confirmed message is lost, none is
reordered or confirmed twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import kafka_rig
import pytest
from amqpd_nodes import Nodes
from kafka_faults import KINDS, FaultyProxy
from kafka_rig import Kafka
from nodes_story import PATIENCE_S, VHOSTS, count, loaded, note, until, wait_until_flowing


async def faults(
    tmp_path: Path, rounds: int, kinds: Sequence[str] = KINDS, plant: str = "", patience_s: float = PATIENCE_S
) -> None:
    """Inject each kind of fault `rounds` times, at every fifteenth Produce request of two nodes."""
    kafka_rig.need(kafka_rig.missing())
    with Kafka(tmp_path / "kafka") as kafka:
        broker = kafka.brokers[1]
        target = (broker.host.address, broker.proxied_port)
        async with FaultyProxy(broker.proxy_port, target, kinds=kinds) as proxy:
            settings = {"cluster.kafka": kafka.proxied}
            with Nodes(tmp_path, kafka, 2, settings=settings, plant=plant, begin=False) as nodes:
                for node in nodes:
                    nodes.start(node.number, wait=False)
                for node in nodes:
                    await asyncio.to_thread(nodes.wait_until_ready, node.number)
                async with loaded(nodes, unread=True, patience_s=patience_s) as load:
                    proxy.every = 15
                    await until(lambda: min(proxy.done[kind] for kind in kinds) >= rounds, 600)
                    proxy.every = 0
                    await wait_until_flowing(load, VHOSTS)
                note("faults", done=dict(proxy.done), produces=proxy.produces, told=load.account.summary())


@pytest.mark.ci_long
async def test_produce_faults_lose_no_confirmed_message(tmp_path: Path) -> None:
    """Acceptance 7. The faults imitate missing replicas, moving leaders, and lost or late requests.
    tests/storage/test_replicated_producing.py checks each against a Kafka in memory.
    """
    await faults(tmp_path, count(2, 40))


@pytest.mark.on_demand
async def test_planted_refused_is_stored_loses_messages(tmp_path: Path) -> None:
    """Planted fault: a refused Produce request is taken for stored. A changed batch order cannot be planted, because
    Kafka accepts only the next sequence.
    """
    with pytest.raises(AssertionError, match="confirmed messages are lost"):
        await faults(tmp_path, 20, ["NOT_ENOUGH_REPLICAS"], plant="refused-is-stored", patience_s=20)
