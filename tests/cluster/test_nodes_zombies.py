"""An owner is stopped or cut off while another node takes its vhosts. After the barrier nothing of the old owner is
stored. It confirms nothing more, and after its return it serves nothing that it does not own.
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
    check_epochs_never_fall,
    count,
    loaded,
    note,
    owner_of,
    owners_of,
    until,
    wait_until_flowing,
    wait_until_served,
)
from quickclient import Gone, connect

from amqpd.kafka.config import KafkaAccess

SEEN = r"zombie|epoch \d+ (behind|begins)|came back"
"""Failure texts that show a planted fault: a zombie has written. A timeout does not count."""


def access_to(kafka: Kafka) -> KafkaAccess:
    return KafkaAccess(tuple(kafka.bootstrap.split(",")))


@asynccontextmanager
async def patient_clients(node: Node, vhosts: Sequence[str]) -> AsyncIterator[Load]:
    """Clients that know no other node and have no heartbeats: they wait for a stopped node and see what it sends when
    it wakes up. They have one queue in each vhost and a judged account.
    """
    patient_load = Load(Account(), [node.amqp], heartbeat_s=0, patience_s=300.0)
    queues = [f"{vhost}.near" for vhost in vhosts]
    for vhost, queue in zip(vhosts, queues, strict=True):
        await patient_load.declare(vhost, queue)
        patient_load.publish(vhost, queue, 50)
        patient_load.consume(vhost, queue)
    try:
        await wait_until_flowing(patient_load, queues)
        yield patient_load
        await wait_until_flowing(patient_load, queues, 180)
        await patient_load.drain()
    finally:
        await patient_load.leave()
    patient_load.account.judge()


async def stop_owner(nodes: Nodes, kafka: Kafka, times: int, stopped_s: float) -> None:
    """Suspend an owner (SIGSTOP). Only the zombie has the messages published to `quiet`. The new owner writes only its
    barrier there, so no message may appear after the zombie wakes up.
    """
    async with loaded(nodes) as load:
        for turn in range(times):
            vhost = VHOSTS[turn % len(VHOSTS)]
            await load.declare(vhost, "quiet")
            zombie = await owner_of(nodes, vhost)
            zombie_vhosts = [each for each, owner in (await owners_of(nodes)).items() if owner == zombie]
            async with patient_clients(nodes[zombie], zombie_vhosts):
                late = await connect(nodes[zombie].amqp[1], vhost=vhost, host=nodes[zombie].amqp[0], patience_s=300)
                confirms: list[int] = []
                late.on_confirm = lambda tag, multiple, acked, confirms=confirms: confirms.append(
                    tag if acked else -tag
                )
                await late.confirm_select()
                since = time.monotonic()
                nodes.pause(zombie)
                late.publish("", "quiet", b"\x10\x00\x02", b"from the zombie")
                await wait_until_served(load, zombie_vhosts, since)
                await asyncio.sleep(max(0.0, since + stopped_s - time.monotonic()))
                nodes.resume(zombie)
                await asyncio.wait_for(late.gone.wait(), 120)
                assert all(tag < 0 for tag in confirms), "a zombie has confirmed"
                await wait_until_flowing(load, VHOSTS)
                assert await owner_of(nodes, vhost) != 0
                getter = await connect(load.addresses[0][1], vhost=vhost, host=load.addresses[0][0], patience_s=300)
                assert await getter.get("quiet", no_ack=True) is None, "what the zombie had has been stored"
                getter.close()
    barriers = await check_epochs_never_fall(access_to(kafka), nodes.name)
    note("zombies", times=times, partitions=len(barriers), told=load.account.summary())


async def test_suspended_owner_writes_nothing_after_the_takeover(nodes: Nodes, brokers: Kafka) -> None:
    """Acceptance 4."""
    await stop_owner(nodes, brokers, count(1, 5), count(20, 60))


@pytest.mark.on_demand
async def test_planted_no_barrier_lets_a_suspended_zombie_write(tmp_path: Path, brokers: Kafka) -> None:
    """Planted fault: the new owner writes no barriers to the queues' partitions."""
    with (
        Nodes(tmp_path, brokers, 3, name="planted-4", plant="no-barrier") as nodes,
        pytest.raises(AssertionError, match=SEEN) as failure,
    ):
        await stop_owner(nodes, brokers, 3, 20)
    note("planted 4", seen=str(failure.value)[:300])


async def cut_owner_off(nodes: Nodes, kafka: Kafka, hosts: Sequence[Host], how: str) -> None:
    """Cut the owner off from Kafka only. After 12 s it must have closed all connections to its vhosts. The other nodes
    serve them, also for clients that reconnect to it. After the cut it owns nothing it should not.
    """
    brokers = [host.address for host in hosts[:3]]
    async with loaded(nodes) as load:
        alone = await owner_of(nodes, "red")
        zombie_vhosts = [each for each, owner in (await owners_of(nodes)).items() if owner == alone]
        async with patient_clients(nodes[alone], zombie_vhosts) as patient_load:
            since, before = time.monotonic(), set(patient_load.links)
            load.reset_silences()
            patient_load.reset_silences()
            if how != "to Kafka":
                nodes[alone].host.drop_from(*brokers)
            if how != "from Kafka":
                nodes[alone].host.drop_to(*brokers)
            await asyncio.sleep(12)
            assert not patient_load.links & before, "a connection is open to a vhost that another node serves"
            took = await wait_until_served(load, zombie_vhosts, since)
            for vhost in zombie_vhosts:
                assert await owner_of(nodes, vhost) != alone
            await wait_until_flowing(
                patient_load, [f"{vhost}.near" for vhost in zombie_vhosts]
            )  # through the node that is cut off
            await until(
                lambda: all(each.all_received_since(since + 12, zombie_vhosts) for each in (load, patient_load)), 180
            )
            stood_still_s = [round(each.silent_s(zombie_vhosts), 1) for each in (load, patient_load)]
            if QUIET_MACHINE:
                assert max(stood_still_s) <= SERVED_S_MAX, stood_still_s
            status = await asyncio.to_thread(nodes.api, alone, "GET", "/api/amqpd/cluster")
            assert (status["kafka_answers"], status["cut_off"]) == (False, "")
            nodes[alone].host.heal()
            await wait_until_flowing(load, VHOSTS)
    barriers = await check_epochs_never_fall(access_to(kafka), nodes.name)
    seconds = {vhost: round(each, 1) for vhost, each in took.items()}
    note(
        "cut off",
        how=how,
        served=seconds,
        stood_still_s=stood_still_s,
        partitions=len(barriers),
        told=load.account.summary(),
    )


@pytest.mark.on_demand
@pytest.mark.parametrize("how", ["both ways", "from Kafka", "to Kafka"])
async def test_owner_cut_off_from_kafka_confirms_nothing(
    far_nodes: Nodes, far_brokers: Kafka, hosts: list[Host], how: str
) -> None:
    """Acceptance 3."""
    await cut_owner_off(far_nodes, far_brokers, hosts, how)


@pytest.mark.on_demand
async def test_owner_cut_off_from_kafka_and_peers_closes_its_connections(far_nodes: Nodes, hosts: list[Host]) -> None:
    """The node cannot ask which node serves the vhosts. It closes connections with the reason and accepts none."""
    nodes = far_nodes
    async with loaded(nodes) as load:
        alone = await owner_of(nodes, "red")
        zombie_vhosts = [each for each, owner in (await owners_of(nodes)).items() if owner == alone]
        node = nodes[alone]
        others = [host.address for host in hosts if host is not node.host]
        since = time.monotonic()
        load.reset_silences()
        node.host.drop_from(*others)
        node.host.drop_to(*others)
        took = await wait_until_served(load, zombie_vhosts, since)
        await until(lambda: load.all_received_since(since + 12, zombie_vhosts), 180)
        stood_still_s = round(load.silent_s(zombie_vhosts), 1)
        with pytest.raises(Gone, match="reaches neither Kafka nor another node"):
            await connect(node.amqp[1], vhost="red", host=node.amqp[0])
        status = await asyncio.to_thread(nodes.api, alone, "GET", "/api/amqpd/cluster")
        assert not status["kafka_answers"]
        assert "connect to another node" in status["cut_off"]
        assert await asyncio.to_thread(nodes.metric, alone, "amqpd_cluster_kafka_outage_seconds") > 0
        with pytest.raises(NodeFailed, match="503.*reaches neither Kafka"):
            await asyncio.to_thread(nodes.api, alone, "GET", "/health/ready")
        node.host.heal()
        await until(lambda: node.log_text.count("clients are accepted again") == 1, 60)
        await wait_until_flowing(load, VHOSTS)
    note("alone", served={vhost: round(each, 1) for vhost, each in took.items()}, stood_still_s=stood_still_s)
    if QUIET_MACHINE:
        assert stood_still_s <= SERVED_S_MAX


@pytest.mark.on_demand
async def test_planted_no_barrier_lets_a_cut_off_zombie_write(
    far_brokers: Kafka, hosts: list[Host], tmp_path: Path
) -> None:
    """Planted fault: the new owner writes no barriers to the queues' partitions."""
    for host in hosts:
        host.heal()
    with (
        Nodes(tmp_path, far_brokers, 3, name="planted-3", hosts=hosts[3:], plant="no-barrier") as nodes,
        pytest.raises(AssertionError, match=SEEN) as failure,
    ):
        await cut_owner_off(nodes, far_brokers, hosts, "from Kafka")
    note("planted 3", seen=str(failure.value)[:300])


@pytest.mark.on_demand
async def test_owner_with_expired_transactional_id_stays_fenced(tmp_path: Path) -> None:
    """Acceptance 13: the transactional id expires while the owner is stopped, so the new owner gets another producer
    id.
    """
    kafka_rig.need(kafka_rig.missing())
    await stop_forgotten_owner(tmp_path, "")


@pytest.mark.on_demand
async def test_planted_no_old_barrier_lets_a_forgotten_owner_write(tmp_path: Path) -> None:
    """Planted fault: a takeover with another producer id writes its barrier only under that id."""
    kafka_rig.need(kafka_rig.missing())
    with pytest.raises(AssertionError, match=SEEN) as failure:
        await stop_forgotten_owner(tmp_path, "no-old-barrier")
    note("planted 13", seen=str(failure.value)[:300])


async def stop_forgotten_owner(tmp_path: Path, plant: str) -> None:
    settings = {
        "transactional.id.expiration.ms": "4000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "1000",
    }
    with (
        Kafka(tmp_path / "kafka", settings=settings) as kafka,
        Nodes(tmp_path, kafka, 2, name="forgotten", plant=plant) as nodes,
    ):
        await stop_owner(nodes, kafka, 1, 30)
