"""Faults at Kafka's Produce requests, one kind after the other, under the nodes' load: nothing that was confirmed is
lost, nothing is reordered or confirmed twice.
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
from nodes_story import PATIENCE_S, VHOSTS, count, flowing, loaded, note, until


async def faults(
    tmp_path: Path, rounds: int, kinds: Sequence[str] = KINDS, plant: str = "", patience_s: float = PATIENCE_S
) -> None:
    """Each kind of fault so many times, at every fifteenth Produce request of two nodes."""
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
                    await flowing(load, VHOSTS)
                note("faults", done=dict(proxy.done), produces=proxy.produces, told=load.account.told())


@pytest.mark.ci_long
async def test_faults_at_each_request_in_turn(tmp_path: Path) -> None:
    """Acceptance 7. Kafka answers as it does when copies are missing, leaders move, a request is lost or late; what the
    protocol does with each is held against a Kafka in memory as well (tests/storage/test_replicated_producing.py).
    """
    await faults(tmp_path, count(2, 40))


@pytest.mark.on_demand
async def test_a_refusal_that_is_taken_for_stored_loses_messages(tmp_path: Path) -> None:
    """Planted: a Produce request that Kafka has refused is taken for stored. That batches go again in another order
    cannot be planted so that messages come in another one: Kafka refuses all but the next sequence.
    """
    with pytest.raises(AssertionError, match="confirmed messages are lost"):
        await faults(tmp_path, 20, ["NOT_ENOUGH_REPLICAS"], plant="refused-is-stored", patience_s=20)
