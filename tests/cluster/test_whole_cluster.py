"""Three nodes over one Kafka broker, used through any node: clients, HTTP API, amqpctl."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from amqpd_nodes import NodeFailed, Nodes
from kafka_rig import Kafka
from pika.exceptions import ConnectionClosedByBroker

VHOSTS = ("one", "two", "three")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, kafka: Kafka) -> Iterator[Nodes]:
    """Three nodes with one vhost each."""
    single = {"cluster.replication_factor": 1, "cluster.required_insync": 1, "cluster.slots": 4}
    with Nodes(tmp_path_factory.mktemp("whole"), kafka, 3, name="whole", settings=single) as three:
        for name in VHOSTS:
            three.add_vhost(name, node=1)
        for number, name in enumerate(VHOSTS, 1):
            three.ctl(2, "move_vhost", name, three[number].name)
        yield three


def connect(nodes: Nodes, number: int, vhost: str) -> pika.BlockingConnection:
    host, port = nodes[number].amqp
    return pika.BlockingConnection(pika.ConnectionParameters(host, port, vhost, socket_timeout=60, stack_timeout=60))


def owners(nodes: Nodes, node_number: int) -> dict[str, str]:
    found: Any = nodes.api(node_number, "GET", "/api/amqpd/cluster")
    return {each["name"]: each["node"] for each in found["vhosts"]}


def test_moved_vhost_is_on_its_new_node(nodes: Nodes) -> None:
    wanted = {name: nodes[number].name for number, name in enumerate(VHOSTS, 1)}
    for node_number in (1, 2, 3):
        nodes.until(lambda node_number=node_number: wanted.items() <= owners(nodes, node_number).items(), "all know it")


def test_client_reaches_any_vhost_through_any_node(nodes: Nodes) -> None:
    for number in (1, 2, 3):
        for vhost in VHOSTS:
            connection = connect(nodes, number, vhost)
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare(f"q{number}", durable=True)
            durable = pika.BasicProperties(delivery_mode=2)
            channel.basic_publish("", f"q{number}", f"{number} {vhost}".encode(), durable, mandatory=True)
            connection.close()
    for vhost in VHOSTS:
        connection = connect(nodes, 1, vhost)
        channel = connection.channel()
        for number in (1, 2, 3):
            assert channel.basic_get(f"q{number}", auto_ack=True)[2] == f"{number} {vhost}".encode()
        connection.close()


def test_lists_are_equal_on_all_nodes(nodes: Nodes) -> None:
    for number in (1, 2, 3):
        nodes.api(number, "PUT", f"/api/queues/{VHOSTS[number - 1]}/listed{number}", {})
    lists = [nodes.api(number, "GET", "/api/queues?sort=name&columns=vhost,name,node") for number in (1, 2, 3)]
    assert lists[0] == lists[1] == lists[2]
    assert {f"listed{number}" for number in (1, 2, 3)} <= {each["name"] for each in lists[0]}
    running = [(each["name"], each["running"]) for each in nodes.api(2, "GET", "/api/nodes")]
    assert running == [(nodes[number].name, True) for number in (1, 2, 3)]


def test_users_and_vhosts_created_on_any_node_are_on_all_nodes(nodes: Nodes) -> None:
    for number in (1, 2, 3):
        name = f"u{number}"
        nodes.api(number, "PUT", f"/api/users/{name}", {"password": name, "tags": ""})
        nodes.api(number, "PUT", f"/api/vhosts/of-{name}", {"protected_from_deletion": True})
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        nodes.api(number, "PUT", f"/api/permissions/of-{name}/{name}", everything)
        for other in (1, 2, 3):
            host, port = nodes[other].amqp
            login = pika.PlainCredentials(name, name)
            parameters = pika.ConnectionParameters(host, port, f"of-{name}", login, socket_timeout=60)
            pika.BlockingConnection(parameters).close()
        found = nodes.api(number % 3 + 1, "GET", f"/api/vhosts/of-{name}")
        assert found["protected_from_deletion"] is True


def test_amqpctl_cluster_status(nodes: Nodes) -> None:
    found = json.loads(nodes.ctl(3, "cluster_status", "--formatter", "json"))
    names = [nodes[number].name for number in (1, 2, 3)]
    assert found["running_nodes"] == found["disk_nodes"] == names
    assert set(found["listeners"]) == set(found["versions"]) == set(found["maintenance_status"]) == set(names)
    text = nodes.ctl(1, "cluster_status")
    assert f"Vhost: two, node: {nodes[2].name}, slot: " in text
    assert "A confirm means: replicated, 1 copies, 1 in sync" in text


def test_moving_a_vhost_closes_its_connections(nodes: Nodes) -> None:
    direct, relayed = connect(nodes, 3, "three"), connect(nodes, 1, "three")
    nodes.ctl(1, "move_vhost", "three", nodes[2].name)
    for connection in (direct, relayed):
        with pytest.raises(ConnectionClosedByBroker) as closed:
            connection.process_data_events(60)
        assert (closed.value.reply_code, closed.value.reply_text) == (
            320,
            "CONNECTION_FORCED - vhost 'three' is moving",
        )
    connect(nodes, 3, "three").close()
    nodes.ctl(1, "move_vhost", "three", nodes[3].name)
    assert owners(nodes, 2)["three"] == nodes[3].name


def test_move_to_unknown_node_or_of_unknown_vhost_fails(nodes: Nodes) -> None:
    with pytest.raises(NodeFailed, match="no node 'nobody' in the cluster"):
        nodes.ctl(1, "move_vhost", "one", "nobody")
    with pytest.raises(NodeFailed, match="vhost 'none' does not exist"):
        nodes.ctl(1, "move_vhost", "none", nodes[1].name)


def test_definitions_can_be_imported_and_exported_on_any_node(nodes: Nodes) -> None:
    document = {
        "users": [{"name": "d", "password": "d", "tags": ""}],
        "vhosts": [{"name": f"d{number}"} for number in range(4)],
        "permissions": [
            {"user": "d", "vhost": f"d{number}", "configure": ".*", "write": ".*", "read": ".*"} for number in range(4)
        ],
        "queues": [
            {"name": "q", "vhost": f"d{number}", "durable": True, "auto_delete": False, "arguments": {}}
            for number in range(4)
        ],
    }
    nodes.api(2, "POST", "/api/definitions", document)
    found = nodes.api(3, "GET", "/api/definitions")
    assert {f"d{number}" for number in range(4)} <= {each["vhost"] for each in found["queues"]}
    nodes.api(1, "POST", "/api/definitions", document)  # a repeated import changes nothing


def test_drain_moves_vhosts_away_and_revive_allows_them_again(nodes: Nodes) -> None:
    """This test is the last, because it moves vhosts."""
    nodes.ctl(3, "drain")
    assert nodes[3].name not in owners(nodes, 3).values()
    nodes.until(lambda: nodes[3].name not in owners(nodes, 1).values(), "the others know it")
    status = json.loads(nodes.ctl(1, "cluster_status", "--formatter", "json"))
    assert status["maintenance_status"][nodes[3].name] == "under maintenance"
    connect(nodes, 1, "three").close()
    nodes.ctl(3, "revive")
    nodes.ctl(1, "rebalance", "all")
    nodes.until(lambda: nodes[3].name in owners(nodes, 1).values(), "it has some again")
