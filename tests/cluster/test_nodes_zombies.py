"""An owner that stands still, or is cut off, while another takes its vhosts: behind the barrier nothing of it is
stored, it confirms nothing more, and serves nothing that is not its own when it comes back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import kafka_rig
import pytest
from account import Account
from amqpd_nodes import Node, NodeFailed, Nodes
from kafka_hosts import Host
from kafka_rig import Kafka
from nodes_load import Load
from nodes_story import (
    QUIET_MACHINE,
    SERVED_S_MAX,
    VHOSTS,
    count,
    epochs_never_fall,
    flowing,
    loaded,
    note,
    owner_of,
    owners_of,
    served,
    until,
)
from quickclient import Gone, connect

from amqpd.kafka.config import KafkaAccess

SEEN = r"zombie|epoch \d+ (behind|begins)|came back"
"""Of a planted fault: that a zombie has written, not that something took too long."""


def access_to(kafka: Kafka) -> KafkaAccess:
    return KafkaAccess(tuple(kafka.bootstrap.split(",")))


@asynccontextmanager
async def patient(node: Node, vhosts: Sequence[str]) -> AsyncIterator[Load]:
    """Clients that know no other node and have no heartbeats: while theirs stands still they wait for it, and hear from
    it what it says when it wakes up. They have a queue in each of these vhosts, an account, and its judge.
    """
    near = Load(Account(), [node.amqp], heartbeat_s=0, patience_s=300.0)
    queues = [f"{vhost}.near" for vhost in vhosts]
    for vhost, queue in zip(vhosts, queues, strict=True):
        await near.declare(vhost, queue)
        near.publish(vhost, queue, 50)
        near.consume(vhost, queue)
    try:
        await flowing(near, queues)
        yield near
        await flowing(near, queues, 180)
        await near.drain()
    finally:
        await near.leave()
    near.account.judge()


async def stopped_owner(nodes: Nodes, kafka: Kafka, times: int, stopped_s: float) -> None:
    """SIGSTOP of an owner for a minute. Only it has got what was published into `quiet`, whose partition the new owner
    has no reason to write to but for its barrier; that must not come after it wakes up.
    """
    async with loaded(nodes) as load:
        for turn in range(times):
            vhost = VHOSTS[turn % len(VHOSTS)]
            await load.declare(vhost, "quiet")
            zombie = await owner_of(nodes, vhost)
            his = [each for each, owner in (await owners_of(nodes)).items() if owner == zombie]
            async with patient(nodes[zombie], his):
                late = await connect(nodes[zombie].amqp[1], vhost=vhost, host=nodes[zombie].amqp[0], patience_s=300)
                confirms: list[int] = []
                late.on_confirm = lambda tag, multiple, acked, heard=confirms: heard.append(tag if acked else -tag)
                await late.confirm_select()
                since = time.monotonic()
                nodes.pause(zombie)
                late.publish("", "quiet", b"\x10\x00\x02", b"from the zombie")
                await served(load, his, since)
                await asyncio.sleep(max(0.0, since + stopped_s - time.monotonic()))
                nodes.resume(zombie)
                await asyncio.wait_for(late.gone.wait(), 120)
                assert all(tag < 0 for tag in confirms), "a zombie has confirmed"
                await flowing(load, VHOSTS)
                assert await owner_of(nodes, vhost) != 0
                getter = await connect(load.addresses[0][1], vhost=vhost, host=load.addresses[0][0], patience_s=300)
                assert await getter.get("quiet", no_ack=True) is None, "what the zombie had has been stored"
                getter.close()
    barriers = await epochs_never_fall(access_to(kafka), nodes.name)
    note("zombies", times=times, partitions=len(barriers), told=load.account.told())


async def test_an_owner_that_stood_still(nodes: Nodes, brokers: Kafka) -> None:
    """Acceptance 4."""
    await stopped_owner(nodes, brokers, count(1, 5), count(20, 60))


@pytest.mark.on_demand
async def test_without_the_barrier_a_zombie_writes_on(tmp_path: Path, brokers: Kafka) -> None:
    """Planted: the new owner writes no barriers to the queues' partitions."""
    with (
        Nodes(tmp_path, brokers, 3, name="planted-4", plant="no-barrier") as nodes,
        pytest.raises(AssertionError, match=SEEN) as seen,
    ):
        await stopped_owner(nodes, brokers, 3, 20)
    note("planted 4", seen=str(seen.value)[:300])


async def cut_off(nodes: Nodes, kafka: Kafka, hosts: Sequence[Host], how: str) -> None:
    """Its clients still reach it, and so do the other nodes. After 12 s it has ended all connections to what was its,
    so it confirms and delivers nothing more; the others serve that, and clients that come back to it too. Once it is
    healed it owns nothing that it should not.
    """
    brokers = [host.address for host in hosts[:3]]
    async with loaded(nodes) as load:
        alone = await owner_of(nodes, "red")
        his = [each for each, owner in (await owners_of(nodes)).items() if owner == alone]
        async with patient(nodes[alone], his) as near:
            since, before = time.monotonic(), set(near.links)
            load.listen_anew()
            near.listen_anew()
            if how != "to Kafka":
                nodes[alone].host.drop_from(*brokers)
            if how != "from Kafka":
                nodes[alone].host.drop_to(*brokers)
            await asyncio.sleep(12)
            assert not near.links & before, "a connection is open to a vhost that another node serves"
            took = await served(load, his, since)
            for vhost in his:
                assert await owner_of(nodes, vhost) != alone
            await flowing(near, [f"{vhost}.near" for vhost in his])  # through the node that is cut off
            await until(lambda: all(each.all_heard_since(since + 12, his) for each in (load, near)), 180)
            stood_still_s = [round(each.silent_s(his), 1) for each in (load, near)]
            if QUIET_MACHINE:
                assert max(stood_still_s) <= SERVED_S_MAX, stood_still_s
            told = await asyncio.to_thread(nodes.api, alone, "GET", "/api/amqpd/cluster")
            assert (told["kafka_answers"], told["cut_off"]) == (False, "")
            nodes[alone].host.heal()
            await flowing(load, VHOSTS)
    barriers = await epochs_never_fall(access_to(kafka), nodes.name)
    seconds = {vhost: round(each, 1) for vhost, each in took.items()}
    note(
        "cut off",
        how=how,
        served=seconds,
        stood_still_s=stood_still_s,
        partitions=len(barriers),
        told=load.account.told(),
    )


@pytest.mark.on_demand
@pytest.mark.parametrize("how", ["both ways", "from Kafka", "to Kafka"])
async def test_an_owner_that_is_cut_off_from_kafka(
    far_nodes: Nodes, far_brokers: Kafka, hosts: list[Host], how: str
) -> None:
    """Acceptance 3."""
    await cut_off(far_nodes, far_brokers, hosts, how)


@pytest.mark.on_demand
async def test_an_owner_that_reaches_nobody_but_its_clients(far_nodes: Nodes, hosts: list[Host]) -> None:
    """It cannot ask who serves them, so it sends them away, with the reason, and lets nobody in."""
    nodes = far_nodes
    async with loaded(nodes) as load:
        alone = await owner_of(nodes, "red")
        his = [each for each, owner in (await owners_of(nodes)).items() if owner == alone]
        node = nodes[alone]
        others = [host.address for host in hosts if host is not node.host]
        since = time.monotonic()
        load.listen_anew()
        node.host.drop_from(*others)
        node.host.drop_to(*others)
        took = await served(load, his, since)
        await until(lambda: load.all_heard_since(since + 12, his), 180)
        stood_still_s = round(load.silent_s(his), 1)
        with pytest.raises(Gone, match="reaches neither Kafka nor another node"):
            await connect(node.amqp[1], vhost="red", host=node.amqp[0])
        told = await asyncio.to_thread(nodes.api, alone, "GET", "/api/amqpd/cluster")
        assert not told["kafka_answers"]
        assert "connect to another node" in told["cut_off"]
        with pytest.raises(NodeFailed, match="503.*reaches neither Kafka"):
            await asyncio.to_thread(nodes.api, alone, "GET", "/health/ready")
        node.host.heal()
        await until(lambda: node.told.count("clients are accepted again") == 1, 60)
        await flowing(load, VHOSTS)
    note("alone", served={vhost: round(each, 1) for vhost, each in took.items()}, stood_still_s=stood_still_s)
    if QUIET_MACHINE:
        assert stood_still_s <= SERVED_S_MAX


@pytest.mark.on_demand
async def test_without_the_barrier_one_that_is_cut_off_writes_on(
    far_brokers: Kafka, hosts: list[Host], tmp_path: Path
) -> None:
    """Planted: the new owner writes no barriers to the queues' partitions."""
    for host in hosts:
        host.heal()
    with (
        Nodes(tmp_path, far_brokers, 3, name="planted-3", hosts=hosts[3:], plant="no-barrier") as nodes,
        pytest.raises(AssertionError, match=SEEN) as seen,
    ):
        await cut_off(nodes, far_brokers, hosts, "from Kafka")
    note("planted 3", seen=str(seen.value)[:300])


@pytest.mark.on_demand
async def test_an_owner_whom_kafka_has_forgotten(tmp_path: Path) -> None:
    """Acceptance 13: its transactional id has expired while it stood still: the new owner has another producer id."""
    kafka_rig.need(kafka_rig.missing())
    await forgotten_owner(tmp_path, "")


@pytest.mark.on_demand
async def test_without_the_barrier_under_the_old_id_it_writes_on(tmp_path: Path) -> None:
    """Planted: a takeover that gets another producer id writes its barrier under that one alone."""
    kafka_rig.need(kafka_rig.missing())
    with pytest.raises(AssertionError, match=SEEN) as seen:
        await forgotten_owner(tmp_path, "no-old-barrier")
    note("planted 13", seen=str(seen.value)[:300])


async def forgotten_owner(tmp_path: Path, plant: str) -> None:
    settings = {
        "transactional.id.expiration.ms": "4000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "1000",
    }
    with (
        Kafka(tmp_path / "kafka", settings=settings) as kafka,
        Nodes(tmp_path, kafka, 2, name="forgotten", plant=plant) as nodes,
    ):
        await stopped_owner(nodes, kafka, 1, 30)
