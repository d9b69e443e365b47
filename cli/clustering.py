"""A cluster over Kafka, from any of its nodes: who is in it, which node runs which vhost, vhosts that are to move."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, Final

from amqpd.cli.checks import PURPOSES
from amqpd.cli.command import Command, Context
from amqpd.cli.errors import Failure

GROUP: Final = "Cluster"
Found = dict[str, Any]


def cluster_of(context: Context) -> Found | None:
    """What the node knows of its cluster; None where it runs by itself."""
    found: Found = context.client.get("/api/amqpd/cluster")
    return found if found["clustered"] else None


def many_nodes(context: Context, cluster: Found, found: Found) -> None:
    """Puts all of the cluster's nodes where `cluster_status` has the one that answers. found: its answer."""
    known = {each["name"]: each for each in context.client.get("/api/nodes")}
    names = sorted({*known, *(each["name"] for each in cluster["nodes"])})
    running = [name for name in names if known.get(name, {}).get("running")]
    listeners: dict[str, list[Found]] = {name: [] for name in running}
    for one in context.client.get("/api/overview")["listeners"]:
        address = one["ip_address"]
        shown = {
            "interface": f"[{address}]" if ":" in address else address or "[::]",
            "node": one["node"],
            "port": one["port"],
            "protocol": one["protocol"],
            "purpose": PURPOSES.get(one["protocol"], one["protocol"]),
        }
        listeners.setdefault(one["node"], []).append(shown)
    draining = {each["name"] for each in cluster["nodes"] if each["draining"]}
    versions = {}
    for name in running:
        program = {each["name"]: each for each in known[name]["applications"]}["rabbit"]
        about = {"erlang_version": known[name]["platform"], "rabbitmq_name": program["description"]}
        versions[name] = {**about, "rabbitmq_version": program["version"]}
    states = {True: "under maintenance", False: "not under maintenance"}
    found.update(
        disk_nodes=names,
        running_nodes=running,
        versions=versions,
        listeners=listeners,
        maintenance_status={
            name: states[name in draining or bool(known[name].get("being_drained"))] for name in running
        },
        vhosts=cluster["vhosts"],
        confirms=cluster["confirms"],
        metadata_node=cluster["metadata_node"],
    )


def sections(cluster: Found) -> tuple[tuple[str, list[str]], ...]:
    """What `cluster_status` says of a cluster beside RabbitMQ's sections."""
    confirms = cluster["confirms"]
    promise = (
        f"A confirm means: {confirms['promise']}, {confirms['replication_factor']} copies, "
        f"{confirms['required_insync']} in sync"
    )
    vhosts = [
        f"Vhost: {each['name']}, node: {each['node'] or '(moving)'}, slot: {each['slot']}" for each in cluster["vhosts"]
    ]
    state = "answers" if cluster["kafka_answers"] else "does not answer this node"
    brokers, keeper = ", ".join(cluster["kafka"]), cluster["metadata_node"] or "(moving)"
    kafka = [
        f"Brokers: {brokers}",
        f"Kafka {state}",
        *([cluster["cut_off"]] if cluster["cut_off"] else []),
        f"Users and vhosts kept by: {keeper}",
        promise,
    ]
    return (("Vhosts", vhosts or ["(none)"]), ("Kafka", kafka))


def check_cluster(context: Context) -> None:
    """A program of its own: amqpctl imports nothing of the server."""
    files = [f"--config={name}" for name in context.operands]
    code = subprocess.run([sys.executable, "-P", "-m", "amqpd.cluster.check", *files], check=False).returncode
    if code:
        raise Failure(code, "a node with these settings would not start")


def move_vhost(context: Context) -> None:
    name, node = context.operands
    context.say(f"Moving vhost '{name}' to node {node} ...")
    context.patient()
    body = {"vhost": name, "node": node}
    found = context.client.send("POST", "/api/amqpd/move_vhost", body).checked().data
    others = [each for each in found["vhosts"] if each != name]
    context.done(f"with it, as they share its slot: {', '.join(others)}" if others else "")


def rebalance(context: Context, cluster: Found | None) -> None:
    """cluster: None has nothing to even out. rabbit: what it moved, as a list."""
    moves: dict[str, str] = {}
    if cluster is not None:
        context.patient()
        moves = context.client.send("POST", "/api/amqpd/rebalance").checked().data["moves"]
    value = [{"vhost": name, "node": node} for name, node in sorted(moves.items())]
    text = "\n".join(f"vhost '{each['vhost']}' goes to node {each['node']}" for each in value)
    context.answer({"node": context.node, "result": "ok", "value": value}, text)


COMMANDS: Final = (
    Command(
        "check_cluster", GROUP, "Checks Kafka and the settings of a node before its first start", check_cluster,
        "[<file>]", 0, 1, (("<file>", "settings of the node, beside those in AMQPD_* variables"),),
        examples=(("check_cluster amqpd.toml", "a line for each check; 69 when one has failed"),), needs_app=False,
    ),
    Command(
        "move_vhost", GROUP, "Moves a vhost to another node of a cluster", move_vhost, "<vhost> <node>", 2, 2,
        (("<vhost>", "its clients are closed with 320, and find it again at any node"),
         ("<node>", "name of a node, as cluster_status shows it")),
        examples=(("move_vhost shop amqpd@two", "returns when it is there"),),
    ),
)  # fmt: skip
