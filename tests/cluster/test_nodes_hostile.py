"""Who means harm, or only well: garbage and replayed preambles at the inner port, silent sockets, a foreign record in a
topic, messages that are too large, a thousand topics at once. Refused, or done, and nobody else is disturbed.
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
from nodes_story import QUIET_MACHINE, VHOSTS, count, flowing, loaded, note, owner_of, topics_of
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
"""Of 99 in 100 messages of others, from publisher to consumer."""
PERSISTENT = b"\x10\x00\x02"
SILENT = 1000


@pytest.mark.on_demand
async def test_nobody_else_is_disturbed(nodes: Nodes, brokers: Kafka) -> None:
    """Acceptance 15; what the inner port refuses in detail is held by tests/relay."""
    async with loaded(nodes, publishers=1) as load:
        await _garbage(nodes)
        await asyncio.to_thread(_replayed, nodes)
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


def _replayed(nodes: Nodes) -> None:
    """What a node has said, and somebody has overheard: said again to the same one and to another."""
    change = peer_link.encode_preamble(PeerConnector("somebody", SECRET.encode()).preamble(peer_link.WRITE))
    for node in nodes:
        with _spoken(node) as (sock, nonce):
            der = sock.getpeercert(binary_form=True)
            assert der is not None
            said = peer_link.frame_preamble(
                change, peer_link.compute_proof(SECRET.encode(), nonce, hashlib.sha256(der).hexdigest(), change)
            )
            sock.sendall(said)
            assert _answer(sock) == peer_link.WELCOME
        for each in nodes:
            with _spoken(each) as (sock, _):
                sock.sendall(said)
                assert _answer(sock) == peer_link.WRONG_SECRET


@contextlib.contextmanager
def _spoken(node: Node) -> Iterator[tuple[ssl.SSLSocket, bytes]]:
    """A TLS connection to its inner port, and its nonce."""
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


@pytest.mark.on_demand
async def test_a_thousand_topics_at_once(tmp_path: Path, brokers: Kafka) -> None:
    """Acceptance 15: one client has so many queues with a topic each made, and asks for all of them at once. They are
    made: the operator has allowed it, and vhost limits are there for who wants less. Others are served meanwhile.
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
            made = asyncio.create_task(_declare_topics(nodes, topics))
            beside = await _declares_beside(nodes, made)
            await made
            took = time.monotonic() - began
            await flowing(load, VHOSTS)
            meanwhile = _lateness(load.account, began, began + took)
            assert load.account.nacked == 0
            assert load.closes == [], "somebody else's connection was closed"
            found = nodes.api(1, "GET", "/api/vhosts/hostile", timeout_s=60)
            assert found["name"] == "hostile"
            nodes.api(1, "DELETE", "/api/vhosts/hostile", timeout_s=300)
            await flowing(load, VHOSTS)
        note(
            "topics",
            made=topics,
            seconds=round(took, 1),
            late_ms_before=_shares(quiet),
            late_ms_meanwhile=_shares(meanwhile),
            declare_ms_beside=_shares(beside),
            told=load.account.told(),
        )
        if QUIET_MACHINE:
            assert _shares(meanwhile)["p99"] <= LATE_MS_MAX
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
    """Seconds that a client in another vhost waits for a queue, again and again."""
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
    """Of what was published between those times: seconds from its publisher to its consumer."""
    return [
        copy.first_at - sent
        for seen in account.seen.values()
        for name, copy in seen.items()
        if since <= (sent := account.sessions[name.session].sent_at(name.sequence)) < until
    ]


def _shares(seconds: list[float]) -> dict[str, float]:
    found = sorted(seconds)
    return {
        name: round(found[min(len(found) - 1, int(len(found) * share))] * 1000, 1)
        for name, share in (("p50", 0.5), ("p99", 0.99), ("most", 1.0))
    }
