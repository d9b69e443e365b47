"""Faults at Kafka's Produce requests, one kind after the other, under the nodes' load: nothing that was confirmed is
lost, nothing is reordered or confirmed twice.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import kafka_rig
import pytest
from amqpd_nodes import Nodes
from kafka_faults import KINDS, FaultyProxy
from kafka_rig import Kafka
from nodes_story import VHOSTS, count, flowing, loaded, note, until


@pytest.mark.ci_long
async def test_faults_at_each_request_in_turn(tmp_path: Path) -> None:
    """Acceptance 7. Kafka answers as it does when copies are missing, leaders move, a request is lost or late; what the
    protocol does with each is held against a Kafka in memory as well (tests/storage/test_replicated_producing.py).
    """
    kafka_rig.need(kafka_rig.missing())
    rounds = count(2, 40)
    with Kafka(tmp_path / "kafka") as kafka:
        broker = kafka.brokers[1]
        target = (broker.host.address, broker.proxied_port)
        async with FaultyProxy(broker.proxy_port, target) as proxy:
            settings = {"cluster.kafka": kafka.proxied}
            with Nodes(tmp_path, kafka, 2, settings=settings, begin=False) as nodes:
                for node in nodes:
                    nodes.start(node.number, wait=False)
                for node in nodes:
                    await asyncio.to_thread(nodes.wait_until_ready, node.number)
                async with loaded(nodes) as load:
                    proxy.every = 15
                    await until(lambda: min(proxy.done[kind] for kind in KINDS) >= rounds, 600)
                    proxy.every = 0
                    await flowing(load, VHOSTS)
                note("faults", done=dict(proxy.done), produces=proxy.produces, told=load.account.told())
