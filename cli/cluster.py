"""Commands about a cluster, as RabbitMQ answers them on a single node, which amqpd is.

What only reads says so: one node, running. What would change the membership is refused with RabbitMQ's exit code.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Final

from amqpd.cli.checks import alarms_of, listeners_of
from amqpd.cli.clustering import cluster_of, many_nodes
from amqpd.cli.clustering import sections as cluster_sections
from amqpd.cli.command import Command, Context
from amqpd.cli.errors import SOFTWARE, UNAVAILABLE, AppRuns, Failure, UsageError
from amqpd.cli.terminal import bold

GROUP: Final = "Cluster"
LOOK_S: Final = 1.0
ALONE: Final = "Nodes of amqpd join and leave a cluster by the settings cluster.*, not by this command"


def cluster_status(context: Context) -> None:
    about = context.client.get("/api/amqpd/status?totals=false")
    node = about["node"]
    context.say(f"Cluster status of node {node} ...")
    flags = context.client.get("/api/feature-flags")
    version = {
        "erlang_version": about["erlang_version"],
        "rabbitmq_name": about["product_name"],
        "rabbitmq_version": about["rabbitmq_version"],
    }
    found: dict[str, Any] = {
        "alarms": alarms_of(context),
        "cluster_name": context.client.get("/api/cluster-name")["name"],
        "disk_nodes": [node],
        "feature_flags": flags,
        "listeners": {node: listeners_of(context)},
        "maintenance_status": {node: _maintenance(about)},
        "partitions": {},
        "ram_nodes": [],
        "running_nodes": [node],
        "versions": {node: version},
    }
    cluster = cluster_of(context)
    if cluster is not None:
        many_nodes(context, cluster, found)
    if context.line.formatter in {"json", "erlang"}:
        context.answer(found, "")
    else:
        context.out.write(_text(context, found, cluster))


def _maintenance(about: dict[str, Any]) -> str:
    return "under maintenance" if about["is_under_maintenance"] else "not under maintenance"


def _text(context: Context, found: dict[str, Any], cluster: dict[str, Any] | None) -> str:
    """rabbit: its sections, in its order."""
    versions = [
        f"{node}: {about['rabbitmq_name']} {about['rabbitmq_version']} on {about['erlang_version']}"
        for node, about in found["versions"].items()
    ]
    sections = (
        ("Basics", [f"Cluster name: {found['cluster_name']}"]),
        ("Disk Nodes", found["disk_nodes"]),
        ("Running Nodes", found["running_nodes"]),
        *(cluster_sections(cluster) if cluster is not None else ()),
        ("Versions", versions),
        ("Maintenance status", [f"Node: {node}, status: {so}" for node, so in found["maintenance_status"].items()]),
        ("Alarms", found["alarms"] or ["(none)"]),
        ("Network Partitions", ["(none)"]),
        (
            "Listeners",
            [
                f"Node: {node}, interface: {one['interface']}, port: {one['port']}, protocol: {one['protocol']}, "
                f"purpose: {one['purpose']}"
                for node, listeners in found["listeners"].items()
                for one in listeners
            ],
        ),
        ("Feature flags", [f"Flag: {each['name']}, state: {each['state']}" for each in found["feature_flags"]]),
    )
    return "\n".join(
        f"{bold(title, context.out)}\n\n" + "".join(f"{line}\n" for line in lines) for title, lines in sections
    )


def await_online_nodes(context: Context) -> None:
    """rabbit: 70 where there are not so many in time. A node by itself never has a second one, so nobody waits."""
    text = context.operands[0]
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"Bad argument: {text} is no number of nodes")
    timeout_s = 300 if context.line.timeout_s is None else context.line.timeout_s
    context.say(
        f"Will wait for at least {text} nodes to join the cluster of {context.node}. Timeout: {timeout_s} seconds."
    )
    cluster = cluster_of(context)
    until = time.monotonic() + timeout_s
    while cluster is not None and len(cluster["nodes"]) < int(text) and time.monotonic() < until:
        time.sleep(min(LOOK_S, max(0.0, until - time.monotonic())))
        cluster = cluster_of(context)
    if cluster is not None and len(cluster["nodes"]) < int(text):
        there = ", ".join(sorted(each["name"] for each in cluster["nodes"]))
        raise Failure(SOFTWARE, f"Error: after {timeout_s} seconds there are {len(cluster['nodes'])} nodes: {there}")
    if cluster is None and int(text) > 1:
        raise Failure(SOFTWARE, f"Error: not enough nodes will join {context.node}'s cluster. {ALONE}.")
    context.done()


def needs_stopped_app(context: Context) -> None:
    """Raises: AppRuns (64)."""
    if context.client.get("/api/amqpd/app")["running"]:
        raise AppRuns


def refused(saying: str, context: Context) -> None:
    needs_stopped_app(context)
    context.say(f"{saying} {context.operands[0]}")
    raise Failure(UNAVAILABLE, ALONE)


def change_cluster_node_type(context: Context) -> None:
    kind = context.operands[0]
    if kind not in {"disc", "disk", "ram"}:
        raise UsageError("Bad argument: the node type must be either disc or ram.")
    needs_stopped_app(context)
    context.say(f"Turning {context.node} into a {kind} node")
    if kind == "ram":
        raise Failure(UNAVAILABLE, "Non-clustered nodes can only be disc nodes.")
    context.done("Node type is already disc")


def forget_cluster_node(context: Context) -> None:
    name = context.operands[0]
    context.say(f"Removing node {name} from the cluster")
    cluster = cluster_of(context)
    if cluster is not None and any(each["name"] == name for each in cluster["nodes"]):
        raise Failure(UNAVAILABLE, f"node {name} runs: `drain` moves its vhosts, and once stopped it has left")
    raise Failure(UNAVAILABLE, "The node selected is not in the cluster.")


def force_boot(context: Context) -> None:
    """A single node waits for no other: nothing is to be forced."""
    needs_stopped_app(context)
    context.done()


def discover_peers(context: Context) -> None:
    context.say("Discovering peers nodes ...")
    cluster = cluster_of(context)
    peers = [] if cluster is None else [each["name"] for each in cluster["nodes"] if each["name"] != cluster["node"]]
    context.done("\n".join(sorted(peers)) or "No peers discovered")


def rename_cluster_node(context: Context) -> None:
    """rabbit: needs the node stopped; ours is named after its machine."""
    context.client.get("/api/amqpd/ping")
    raise UsageError("this command requires the target node to be stopped; amqpd's is named after its machine")


_NODE: Final = ("<node>", "name of a node")

COMMANDS: Final = (
    Command(
        "await_online_nodes",
        GROUP,
        "Waits until so many nodes are in the cluster; a node by itself is one",
        await_online_nodes,
        "<count> [--timeout <timeout>]",
        1,
        1,
        (("<count>", "1 succeeds when the broker runs; more need a cluster"),),
        examples=(("await_online_nodes 1", "0: the broker runs"),),
    ),
    Command(
        "change_cluster_node_type",
        GROUP,
        "Accepts disc, which every node is",
        change_cluster_node_type,
        "<disc | ram>",
        1,
        1,
        (("<disc | ram>", "disc succeeds; ram is for clusters"),),
        examples=(("change_cluster_node_type disc", "after stop_app"),),
        needs_app=False,
    ),
    Command(
        "cluster_status",
        GROUP,
        "Displays the nodes of the cluster, or the one there is: versions, alarms, listeners, vhosts",
        cluster_status,
        "[--timeout <timeout>]",
        examples=(("cluster_status --formatter json", "with RabbitMQ's keys"),),
    ),
    Command(
        "discover_peers",
        "Monitoring, observability and health checks",
        "Shows the other nodes of the cluster, which find each other in Kafka",
        discover_peers,
        examples=(("discover_peers", "none where the node is by itself"),),
        needs_app=False,
    ),
    Command(
        "force_boot",
        GROUP,
        "Lets the node start without its peers, of which it has none",
        force_boot,
        examples=(("force_boot", "after stop_app: nothing to do"),),
        needs_app=False,
    ),
    Command(
        "forget_cluster_node",
        GROUP,
        "Refused: a node that has stopped is no longer in the cluster",
        forget_cluster_node,
        "<node>",
        1,
        1,
        (_NODE,),
        examples=(("forget_cluster_node rabbit@other", "69: it is not in the cluster"),),
        needs_app=False,
    ),
    Command(
        "join_cluster",
        GROUP,
        "Makes the node a member of another cluster: refused, nodes of amqpd join by the settings cluster.*",
        partial(refused, "Clustering with"),
        "<node>",
        1,
        1,
        (_NODE,),
        examples=(("join_cluster rabbit@other", "69, after stop_app"),),
        needs_app=False,
    ),
    Command(
        "rename_cluster_node",
        GROUP,
        "Renames nodes: amqpd's is named after its machine",
        rename_cluster_node,
        "<old> <new>",
        2,
        2,
        (("<old> <new>", "names of a node"),),
        examples=(("rename_cluster_node rabbit@a rabbit@b", "64 while it runs"),),
        needs_app=False,
    ),
    Command(
        "update_cluster_nodes",
        GROUP,
        "Takes over another node's list of members: refused, amqpd's nodes find each other in Kafka",
        partial(refused, "Will seed the next start from"),
        "<node>",
        1,
        1,
        (_NODE,),
        examples=(("update_cluster_nodes rabbit@other", "69, after stop_app"),),
        needs_app=False,
    ),
)
