"""Clients that are cut off from the node they are connected to, while that node is well: they go on by another one."""

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
from nodes_story import VHOSTS, flowing, loaded, note, owner_of, owners_of, served, until
from quickclient import connect

pytestmark = pytest.mark.on_demand  # wants to be root
TRANSIENT = b"\x10\x00\x01"
KEPT = 200


def missing_since(account: Account, before: float) -> list[Name]:
    """Confirmed, published before then, and not delivered yet."""
    return [name for _, name in account.missing() if account.sessions[name.session].sent_at(name.sequence) < before]


async def cut_from_clients(nodes: Nodes, network: Network, direct: bool = False, served_s: float = 60.0) -> None:
    """The node that serves `red`, and perhaps more, is cut off from all clients, and from nobody else: it stays the
    owner, and the others pass its clients on to it. So they find again what no other node has: transient queues, too.

    direct: only clients of what that node serves, else of all vhosts, the node having passed the others on.
    """
    for vhost in VHOSTS:
        await asyncio.to_thread(nodes.add_vhost, vhost)
    before = await owners_of(nodes)
    cut = nodes[before["red"]]
    vhosts = [vhost for vhost in VHOSTS if before[vhost] == before["red"] or not direct]
    clients = Load(Account(cut=True), [cut.amqp])
    async with loaded(nodes, vhosts, load=clients) as load:
        near = await connect(cut.amqp[1], vhost="red", host=cut.amqp[0], patience_s=60)
        await near.declare_queue("in memory", durable=False)
        for number in range(KEPT):
            near.publish("", "in memory", TRANSIENT, b"%d" % number)
        assert await near.declare_queue("in memory", passive=True, durable=False) == ("in memory", KEPT, 0)
        since = time.monotonic()
        cut.host.drop_from(network.address)
        cut.host.drop_to(network.address)
        load.addresses = [node.amqp for node in nodes]
        took = await served(load, vhosts, since, served_s)
        near.abort()
        await flowing(load, vhosts)
        assert await owners_of(nodes) == before, "nobody has taken what a node goes on serving"
        other = next(node for node in nodes if node is not cut)
        far = await connect(other.amqp[1], vhost="red", host=other.amqp[0], patience_s=60)
        for number in range(KEPT):
            found = await far.get("in memory", no_ack=True)
            assert found is not None and found.body == b"%d" % number
        assert await far.get("in memory", no_ack=True) is None
        far.close()
        await far.gone.wait()
        # The node misses its clients, and gives to others what they had.
        await until(lambda: not missing_since(load.account, time.monotonic() - 3 * HEARTBEAT_S), 60)
        cut.host.heal()
        await flowing(load, vhosts)
        assert await owner_of(nodes, "red") == before["red"]
    note("cut", seconds=sorted(round(each, 1) for each in took.values()), told=load.account.told())


async def test_clients_that_are_cut_from_their_node(far_nodes: Nodes, network: Network) -> None:
    """Acceptance 5."""
    await cut_from_clients(far_nodes, network)


async def test_without_passing_on_they_are_not_served(
    far_brokers: Kafka, hosts: list[Host], network: Network, tmp_path: Path
) -> None:
    """Planted: no node passes clients on to another."""
    with (
        Nodes(tmp_path, far_brokers, 3, name="planted-5", hosts=hosts[3:], plant="no-relay") as nodes,
        pytest.raises(AssertionError, match="are not served within"),
    ):
        await cut_from_clients(nodes, network, direct=True, served_s=30)
