"""Clients are cut off from a healthy node: they continue through another node."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from account import Account, Name
from amqpd_nodes import Nodes
from kafka_hosts import Host, Network
from kafka_rig import Kafka
from nodes_load import HEARTBEAT_S, Load
from nodes_story import VHOSTS, loaded, note, owner_of, owners_of, until, wait_until_flowing, wait_until_served
from quickclient import connect

pytestmark = pytest.mark.on_demand  # needs root
TRANSIENT = b"\x10\x00\x01"
MESSAGE_COUNT = 200


def missing_since(account: Account, before: float) -> list[Name]:
    """Return confirmed messages that were published before that time and not yet delivered."""
    return [name for _, name in account.missing() if account.sessions[name.session].sent_at(name.sequence) < before]


async def cut_from_clients(nodes: Nodes, network: Network, direct: bool = False, served_s: float = 60.0) -> None:
    """Cut the owner of `red` off from all clients, but not from Kafka or the other nodes. It remains the owner, and the
    other nodes proxy its clients to it. So transient queues, which only that node has, stay reachable.

    direct: only clients of vhosts that this node serves; otherwise clients of all vhosts, which this node proxies.
    """
    for vhost in VHOSTS:
        await asyncio.to_thread(nodes.add_vhost, vhost)
    before = await owners_of(nodes)
    cut = nodes[before["red"]]
    vhosts = [vhost for vhost in VHOSTS if before[vhost] == before["red"] or not direct]
    clients = Load(Account(cut=True), [cut.amqp])
    async with loaded(nodes, vhosts, load=clients) as load:
        direct_link = await connect(cut.amqp[1], vhost="red", host=cut.amqp[0], patience_s=60)
        await direct_link.declare_queue("in memory", durable=False)
        for number in range(MESSAGE_COUNT):
            direct_link.publish("", "in memory", TRANSIENT, b"%d" % number)
        assert await direct_link.declare_queue("in memory", passive=True, durable=False) == (
            "in memory",
            MESSAGE_COUNT,
            0,
        )
        since = time.monotonic()
        cut.host.drop_from(network.address)
        cut.host.drop_to(network.address)
        load.addresses = [node.amqp for node in nodes]
        seconds_by_vhost = await wait_until_served(load, vhosts, since, served_s)
        direct_link.abort()
        await wait_until_flowing(load, vhosts)
        assert await owners_of(nodes) == before, "a vhost of a healthy node was taken over"
        other = next(node for node in nodes if node is not cut)
        proxied_link = await connect(other.amqp[1], vhost="red", host=other.amqp[0], patience_s=60)
        for number in range(MESSAGE_COUNT):
            found = await proxied_link.get("in memory", no_ack=True)
            assert found is not None and found.body == b"%d" % number
        assert await proxied_link.get("in memory", no_ack=True) is None
        proxied_link.close()
        await proxied_link.gone.wait()
        # The node drops the unreachable clients and redelivers their messages to others.
        await until(lambda: not missing_since(load.account, time.monotonic() - 3 * HEARTBEAT_S), 60)
        cut.host.heal()
        await wait_until_flowing(load, vhosts)
        assert await owner_of(nodes, "red") == before["red"]
    note("cut", seconds=sorted(round(each, 1) for each in seconds_by_vhost.values()), told=load.account.summary())


async def test_clients_cut_off_from_their_node_continue_via_another(far_nodes: Nodes, network: Network) -> None:
    """Acceptance 5."""
    await cut_from_clients(far_nodes, network)


async def test_planted_no_relay_leaves_clients_unserved(
    far_brokers: Kafka, hosts: list[Host], network: Network, tmp_path: Path
) -> None:
    """Planted fault: no node proxies clients to another node."""
    with (
        Nodes(tmp_path, far_brokers, 3, name="planted-5", hosts=hosts[3:], plant="no-relay") as nodes,
        pytest.raises(AssertionError, match="are not served within"),
    ):
        await cut_from_clients(nodes, network, direct=True, served_s=30)
