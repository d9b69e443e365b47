"""Hostile or careless clients: garbage and replayed preambles at the inner port, silent sockets, a foreign record in a
topic, too large messages, a thousand topics at once. Each is refused or done, and other clients are not disturbed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import ssl
import struct
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from account import Account
from amqpd_nodes import SECRET, Node, Nodes
from kafka_rig import Kafka
from nodes_story import QUIET_MACHINE, VHOSTS, count, loaded, note, owner_of, topics_of, wait_until_flowing
from quickclient import Gone, connect, field_table, shortstr

from amqpd.cluster import peer_link
from amqpd.cluster.peer_link import PeerConnector, peer_context
from amqpd.kafka.config import KafkaAccess

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses importlib.resources.read_text
    from kafka import KafkaProducer
    from kafka.admin import KafkaAdminClient

TOPICS = 1000
LATE_MS_MAX = 2000
"""Limit for the 99th percentile of the time from publisher to consumer, for other clients."""
PERSISTENT = b"\x10\x00\x02"
SILENT = 1000


@pytest.mark.on_demand
async def test_hostile_clients_do_not_disturb_others(nodes: Nodes, brokers: Kafka) -> None:
    """Acceptance 15. tests/relay checks the refusals of the inner port in detail."""
    async with loaded(nodes, publishers=1) as load:
        await _garbage(nodes)
        await asyncio.to_thread(_replayed, nodes)
        await _silence(nodes)
        await wait_until_flowing(load, VHOSTS)
        await _too_large(nodes)
        await wait_until_flowing(load, VHOSTS)
        sessions = len(load.account.sessions)
        await _foreign_record(nodes, brokers, "red")
        await wait_until_flowing(load, VHOSTS)
        assert load.account.nacked == 0 or len(load.account.sessions) > sessions
    note("hostile", told=load.account.summary())


async def _garbage(nodes: Nodes) -> None:
    for node in nodes:
        for data in (b"GET / HTTP/1.1\r\n\r\n", b"AMQP\x00\x00\x09\x01", os.urandom(4096), b"\x00" * 70_000):
            reader, writer = await asyncio.open_connection(*node.inner)
            with contextlib.suppress(ConnectionError):
                writer.write(data)
                await writer.drain()
                assert b"amqpd" not in await asyncio.wait_for(reader.read(), 30)
            writer.transport.abort()


def _replayed(nodes: Nodes) -> None:
    """Send an overheard preamble of a node again, to the same node and to another."""
    change = peer_link.encode_preamble(PeerConnector("somebody", SECRET.encode()).preamble(peer_link.WRITE))
    for node in nodes:
        with _greeted_socket(node) as (sock, nonce):
            der = sock.getpeercert(binary_form=True)
            assert der is not None
            preamble = peer_link.frame_preamble(
                change, peer_link.compute_proof(SECRET.encode(), nonce, hashlib.sha256(der).hexdigest(), change)
            )
            sock.sendall(preamble)
            assert _answer(sock) == peer_link.WELCOME
        for each in nodes:
            with _greeted_socket(each) as (sock, _):
                sock.sendall(preamble)
                assert _answer(sock) == peer_link.WRONG_SECRET


@contextlib.contextmanager
def _greeted_socket(node: Node) -> Iterator[tuple[ssl.SSLSocket, bytes]]:
    """Connect to the node's inner port with TLS and read its nonce."""
    with peer_context().wrap_socket(socket.create_connection(node.inner, timeout=60)) as sock:
        hello = b""
        while len(hello) < peer_link.HELLO_BYTES:
            hello += sock.recv(100)
        yield sock, hello[len(peer_link.GREETING) :]


def _answer(sock: ssl.SSLSocket) -> int:
    answered = peer_link.decode_answer(sock.recv(100))
    assert answered is not None
    return answered.answer


async def _silence(nodes: Nodes) -> None:
    node = next(iter(nodes))
    opened = []
    for _ in range(count(100, SILENT)):
        with contextlib.suppress(OSError):
            opened.append(await asyncio.open_connection(*node.inner))
    ends = [asyncio.wait_for(reader.read(), 60) for reader, _ in opened]
    for end in await asyncio.gather(*ends, return_exceptions=True):
        assert not isinstance(end, TimeoutError), "a silent socket is kept open"
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


async def _foreign_record(nodes: Nodes, brokers: Kafka, vhost: str) -> None:
    """Write a foreign record into the partition of a queue in use."""
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


@pytest.mark.on_demand
async def test_thousand_topics_at_once_do_not_disturb_others(tmp_path: Path, brokers: Kafka) -> None:
    """Acceptance 15: one client declares a thousand queues with own topics at once. All are created, because
    cluster.kafka_topics allows it; vhost limits can forbid it. Other clients are served meanwhile.
    """
    settings = {"cluster.kafka_topics": r"many\..*"}
    topics = count(100, TOPICS)
    with Nodes(tmp_path, brokers, 3, name="topics", settings=settings) as nodes:
        async with loaded(nodes) as load:
            await asyncio.to_thread(nodes.add_vhost, "hostile")
            since = time.monotonic()
            await asyncio.sleep(10)
            quiet = _lateness(load.account, since, time.monotonic() - 1)
            began = time.monotonic()
            declaring = asyncio.create_task(_declare_topics(nodes, topics))
            declare_times = await _declares_beside(nodes, declaring)
            await declaring
            took = time.monotonic() - began
            await wait_until_flowing(load, VHOSTS)
            meanwhile = _lateness(load.account, began, began + took)
            assert load.account.nacked == 0
            assert load.closes == [], "a connection of another client was closed"
            found = nodes.api(1, "GET", "/api/vhosts/hostile", timeout_s=60)
            assert found["name"] == "hostile"
            nodes.api(1, "DELETE", "/api/vhosts/hostile", timeout_s=300)
            await wait_until_flowing(load, VHOSTS)
        note(
            "topics",
            made=topics,
            seconds=round(took, 1),
            late_ms_before=_percentiles(quiet),
            late_ms_meanwhile=_percentiles(meanwhile),
            declare_ms_beside=_percentiles(declare_times),
            told=load.account.summary(),
        )
        if QUIET_MACHINE:
            assert _percentiles(meanwhile)["p99"] <= LATE_MS_MAX
        await asyncio.to_thread(nodes.until, lambda: not _own_topics(brokers), "the topics are gone", 300)


def _own_topics(brokers: Kafka) -> list[str]:
    admin = KafkaAdminClient(bootstrap_servers=brokers.bootstrap.split(","))
    try:
        return [name for name in admin.list_topics() if name.startswith("many.")]
    finally:
        admin.close()


async def _declare_topics(nodes: Nodes, topics: int) -> None:
    link = await connect(nodes[1].amqp[1], vhost="hostile", patience_s=300 + 3 * topics)
    tables = [field_table(shortstr("x-kafka-topic") + b"S" + _longstr(f"many.{each}")) for each in range(topics)]
    await asyncio.gather(*(link.declare_queue(f"q{each}", table=table) for each, table in enumerate(tables)))
    link.close()
    await link.gone.wait()


async def _declares_beside(nodes: Nodes, until: asyncio.Task[None]) -> list[float]:
    """Declare queues in another vhost until the task is done. Return the seconds of each declaration."""
    took = []
    link = await connect(nodes[2].amqp[1], vhost="red", patience_s=300)
    number = 0
    while not until.done():
        began = time.monotonic()
        await link.declare_queue(f"beside-{number}")
        took.append(time.monotonic() - began)
        number += 1
        await asyncio.sleep(0.2)
    link.close()
    await link.gone.wait()
    return took


def _longstr(text: str) -> bytes:
    return struct.pack(">I", len(text)) + text.encode()


def _lateness(account: Account, since: float, until: float) -> list[float]:
    """Return the seconds from publisher to consumer of the messages published between those times."""
    return [
        copy.first_at - sent
        for seen in account.seen.values()
        for name, copy in seen.items()
        if since <= (sent := account.sessions[name.session].sent_at(name.sequence)) < until
    ]


def _percentiles(seconds: list[float]) -> dict[str, float]:
    found = sorted(seconds)
    return {
        name: round(found[min(len(found) - 1, int(len(found) * share))] * 1000, 1)
        for name, share in (("p50", 0.5), ("p99", 0.99), ("most", 1.0))
    }
