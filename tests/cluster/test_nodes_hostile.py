"""Who means harm, or only well: garbage at the inner port, silent sockets, a foreign record in a topic, messages that
are too large. Refused, and nobody else is disturbed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import warnings

import pytest
from amqpd_nodes import Nodes
from kafka_rig import Kafka
from nodes_story import VHOSTS, count, flowing, loaded, note, owner_of, topics_of
from quickclient import Gone, connect

from amqpd.cluster.access import KafkaAccess

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses importlib.resources.read_text
    from kafka import KafkaProducer

PERSISTENT = b"\x10\x00\x02"
SILENT = 1000


@pytest.mark.on_demand
async def test_nobody_else_is_disturbed(nodes: Nodes, brokers: Kafka) -> None:
    """Acceptance 15; what the inner port refuses in detail is held by tests/relay."""
    async with loaded(nodes, publishers=1) as load:
        await _garbage(nodes)
        await _silence(nodes)
        await flowing(load, VHOSTS)
        await _too_large(nodes)
        await flowing(load, VHOSTS)
        sessions = len(load.account.sessions)
        await _foreign(nodes, brokers, "red")
        await flowing(load, VHOSTS)
        assert load.account.nacked == 0 or len(load.account.sessions) > sessions
    note("hostile", told=load.account.told())


async def _garbage(nodes: Nodes) -> None:
    for node in nodes:
        for data in (b"GET / HTTP/1.1\r\n\r\n", b"AMQP\x00\x00\x09\x01", os.urandom(4096), b"\x00" * 70_000):
            reader, writer = await asyncio.open_connection(*node.inner)
            with contextlib.suppress(ConnectionError):
                writer.write(data)
                await writer.drain()
                assert b"amqpd" not in await asyncio.wait_for(reader.read(), 30)
            writer.transport.abort()


async def _silence(nodes: Nodes) -> None:
    node = next(iter(nodes))
    opened = []
    for _ in range(count(100, SILENT)):
        with contextlib.suppress(OSError):
            opened.append(await asyncio.open_connection(*node.inner))
    ends = [asyncio.wait_for(reader.read(), 60) for reader, _ in opened]
    for end in await asyncio.gather(*ends, return_exceptions=True):
        assert not isinstance(end, TimeoutError), "a silent socket is kept"
    for _, writer in opened:
        writer.transport.abort()


async def _too_large(nodes: Nodes) -> None:
    node = next(iter(nodes))
    link = await connect(node.amqp[1], vhost="red", patience_s=120)
    link.publish("", "red", PERSISTENT, bytes(64 << 20))
    with pytest.raises(Gone):
        await link.qos(1)
    await link.gone.wait()
    assert link.close_code in (406, 320, 0), link.why
    assert "larger than" in link.why, link.why


async def _foreign(nodes: Nodes, brokers: Kafka, vhost: str) -> None:
    """Somebody writes into the partition of a queue that is in use."""
    await owner_of(nodes, vhost)
    access = KafkaAccess(tuple(brokers.bootstrap.split(",")))
    producer = await asyncio.to_thread(KafkaProducer, bootstrap_servers=brokers.bootstrap.split(","))
    try:
        for topic, partitions in (await topics_of(access, nodes.name)).items():
            if not topic.endswith((".meta", ".settled")):
                for number in range(partitions):
                    producer.send(topic, b"not one of ours", partition=number)
        await asyncio.to_thread(producer.flush, 60)
    finally:
        await asyncio.to_thread(producer.close)
