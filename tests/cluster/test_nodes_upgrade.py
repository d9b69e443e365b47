"""Upgrade node by node as in docs/cluster.md, under load: from the amqpd of another environment to this one.

TEST_CLUSTER_BEFORE=/older/bin/python .venv/bin/python -P -m pytest -m on_demand tests/cluster/test_nodes_upgrade.py
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from amqpd_nodes import Nodes
from kafka_rig import Kafka
from nodes_story import VHOSTS, check_epochs_never_fall, loaded, note, owners_of, wait_until_flowing

from amqpd.kafka.config import KafkaAccess

BEFORE = os.environ.get("TEST_CLUSTER_BEFORE", "")

pytestmark = [
    pytest.mark.on_demand,
    pytest.mark.skipif(not BEFORE, reason="TEST_CLUSTER_BEFORE names no Python that has the amqpd of before"),
]


async def test_upgrade_node_by_node_causes_no_nack(tmp_path: Path, brokers: Kafka) -> None:
    nodes = Nodes(tmp_path, brokers, 3, name="upgraded")
    for node in nodes:
        node.python = BEFORE
    with nodes:
        async with loaded(nodes, unread=True) as load:
            for node in nodes:
                await asyncio.to_thread(nodes.ctl, node.number, "drain")
                await wait_until_flowing(load, VHOSTS)
                assert node.number not in (await owners_of(nodes)).values(), "the drained node still owns a vhost"
                await asyncio.to_thread(nodes.stop, node.number)
                node.python = sys.executable
                nodes.start(node.number, wait=False)
                await asyncio.to_thread(nodes.wait_until_ready, node.number)
                await asyncio.to_thread(nodes.ctl, node.number, "await_online_nodes", "3")
                await wait_until_flowing(load, VHOSTS)
            await asyncio.to_thread(nodes.ctl, 1, "rebalance", "all")
            await wait_until_flowing(load, VHOSTS)
            assert load.account.nacked == 0
        await check_epochs_never_fall(KafkaAccess(tuple(brokers.bootstrap.split(","))), nodes.name)
        note("upgraded", before=_version(BEFORE), to=_version(sys.executable), told=load.account.summary())
    for node in nodes:
        assert "Traceback" not in node.log_text, node.log_text[-4000:]


def _version(python: str) -> str:
    result = subprocess.run([python, "-P", "-m", "amqpd", "--version"], capture_output=True, text=True, check=True)
    return result.stdout.strip()
