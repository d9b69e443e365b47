"""Commands about a cluster, as RabbitMQ answers them on a single node, which amqpd is.

What only reads says so: one node, running. What would change the membership is refused with RabbitMQ's exit code.

A cluster over Kafka, from any of its nodes: who is in it, which node runs which vhost, vhosts that are to move.

`cluster_import`: what a stopped broker's data directory holds, into the running cluster that is asked.

The directory is read by a program of its own (`python -m amqpd.dump`), and stays as it is. First its definitions go
to the cluster, then the messages of each durable queue, in their order, with the exchange and routing key they came by.
A queue that is there already is never added to: then nothing is imported.

If it ends in the middle, nothing is lost at the source, and what has arrived stays: delete the vhosts in the cluster
and begin anew.

Replicas of queues and streams, as RabbitMQ answers on a single node: each has one, where its vhost is, and it leads.

What asks is told so; what would add or move a replica finds no other node, or is told that copies are Kafka's and a
vhost moves as a whole. Exit codes and texts are RabbitMQ's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import IO, Any, Final

from amqpd.cli.checks import PURPOSES, alarms_of, listeners_of
from amqpd.cli.client import quoted
from amqpd.cli.command import Command, Context
from amqpd.cli.errors import DATA, SOFTWARE, UNAVAILABLE, AppRuns, Failure, UsageError
from amqpd.cli.terminal import bold

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


def cluster_sections(cluster: Found) -> tuple[tuple[str, list[str]], ...]:
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
    context.info(f"Moving vhost '{name}' to node {node} ...")
    context.no_timeout()
    body = {"vhost": name, "node": node}
    found = context.client.send("POST", "/api/amqpd/move_vhost", body).checked().data
    others = [each for each in found["vhosts"] if each != name]
    context.success(f"with it, as they share its slot: {', '.join(others)}" if others else "")


def rebalance(context: Context, cluster: Found | None) -> None:
    """cluster: None has nothing to even out. rabbit: what it moved, as a list."""
    moves: dict[str, str] = {}
    if cluster is not None:
        context.no_timeout()
        moves = context.client.send("POST", "/api/amqpd/rebalance").checked().data["moves"]
    value = [{"vhost": name, "node": node} for name, node in sorted(moves.items())]
    text = "\n".join(f"vhost '{each['vhost']}' goes to node {each['node']}" for each in value)
    context.answer({"node": context.node, "result": "ok", "value": value}, text)


CLUSTERING_COMMANDS: Final = (
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


LOOK_S: Final = 1.0
ALONE: Final = "Nodes of amqpd join and leave a cluster by the settings cluster.*, not by this command"


def cluster_status(context: Context) -> None:
    about = context.client.get("/api/amqpd/status?totals=false")
    node = about["node"]
    context.info(f"Cluster status of node {node} ...")
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
    context.info(
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
    context.success()


def needs_stopped_app(context: Context) -> None:
    """Raises: AppRuns (64)."""
    if context.client.get("/api/amqpd/app")["running"]:
        raise AppRuns


def refused(saying: str, context: Context) -> None:
    needs_stopped_app(context)
    context.info(f"{saying} {context.operands[0]}")
    raise Failure(UNAVAILABLE, ALONE)


def change_cluster_node_type(context: Context) -> None:
    kind = context.operands[0]
    if kind not in {"disc", "disk", "ram"}:
        raise UsageError("Bad argument: the node type must be either disc or ram.")
    needs_stopped_app(context)
    context.info(f"Turning {context.node} into a {kind} node")
    if kind == "ram":
        raise Failure(UNAVAILABLE, "Non-clustered nodes can only be disc nodes.")
    context.success("Node type is already disc")


def forget_cluster_node(context: Context) -> None:
    name = context.operands[0]
    context.info(f"Removing node {name} from the cluster")
    cluster = cluster_of(context)
    if cluster is not None and any(each["name"] == name for each in cluster["nodes"]):
        raise Failure(UNAVAILABLE, f"node {name} runs: `drain` moves its vhosts, and once stopped it has left")
    raise Failure(UNAVAILABLE, "The node selected is not in the cluster.")


def force_boot(context: Context) -> None:
    """A single node waits for no other: nothing is to be forced."""
    needs_stopped_app(context)
    context.success()


def discover_peers(context: Context) -> None:
    context.info("Discovering peers nodes ...")
    cluster = cluster_of(context)
    peers = [] if cluster is None else [each["name"] for each in cluster["nodes"] if each["name"] != cluster["node"]]
    context.success("\n".join(sorted(peers)) or "No peers discovered")


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


OWN: Final = frozenset({"cluster_name", "internal_cluster_id"})
"""Global parameters that a cluster has of its own."""


def cluster_import(context: Context) -> None:
    (directory,) = context.operands
    context.info(f"Importing {directory} into node {context.node} ...")
    context.no_timeout()
    queues = messages = 0
    with _lines(directory) as lines:
        definitions = next(lines)["definitions"]
        parameters = definitions.get("global_parameters", [])
        definitions["global_parameters"] = [each for each in parameters if each["name"] not in OWN]
        _check_new(context, definitions)
        context.client.send("POST", "/api/definitions", definitions).checked()
        for line in lines:
            if "messages" in line:
                path = f"/api/amqpd/append/{quoted(line['vhost'])}/{quoted(line['queue'])}"
                context.client.send("POST", path, {"messages": line["messages"]}).checked()
            elif "count" in line:
                queues, messages = queues + 1, messages + line["count"]
                left = f", {line['left']} left out" if line["left"] else ""
                context.info(f"queue '{line['queue']}' in vhost '{line['vhost']}': {line['count']} messages{left}")
    context.success(f"{queues} queues, {messages} messages; {directory} is left as it was")


def _check_new(context: Context, definitions: dict[str, Any]) -> None:
    """Raises: Failure, a queue of them is there already."""
    there = {each["name"] for each in context.client.get("/api/vhosts?columns=name")}
    for vhost in sorted({each["vhost"] for each in definitions["queues"]} & there):
        names = {each["name"] for each in context.client.get(f"/api/queues/{quoted(vhost)}?columns=name")}
        both = sorted(names & {each["name"] for each in definitions["queues"] if each["vhost"] == vhost})
        if both:
            raise Failure(DATA, f"vhost '{vhost}' has a queue '{both[0]}' already: nothing is imported")


@contextmanager
def _lines(directory: str) -> Iterator[Iterator[dict[str, Any]]]:
    """What the reading program writes. Raises: Failure, with its own words, where it cannot go to its end."""
    command = [sys.executable, "-P", "-m", "amqpd.dump", directory]
    reading = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert reading.stdout is not None  # a pipe
    try:
        yield _read(reading, reading.stdout)
    finally:
        reading.kill()
        reading.communicate()


def _read(reading: subprocess.Popen[bytes], out: IO[bytes]) -> Iterator[dict[str, Any]]:
    for text in out:
        line = json.loads(text)
        if "end" in line:
            return
        yield line
    said = reading.communicate()[1].decode("utf-8", "replace").strip().splitlines()
    raise Failure(DATA, said[-1] if said else f"reading ended with exit code {reading.returncode}")


MOVE_COMMANDS: Final = (
    Command(
        "cluster_import", "Cluster", "Brings a stopped broker's vhosts and messages into this one", cluster_import,
        "<directory>", 1, 1, (("<directory>", "data directory of a broker that does not run"),),
        examples=(("cluster_import /var/lib/amqpd", "into the cluster that this node is of"),),
    ),
)  # fmt: skip


REPLICATION: Final = "Replication"
MONITORING: Final = "Monitoring, observability and health checks"
PAGE_COUNT: Final = 100
KINDS: Final = ("all", "classic", "quorum", "stream")
COPIES: Final = "copies of queues are Kafka's, as many for all as cluster.replication_factor says"
NOT_FOUND: Final = Failure(UNAVAILABLE, "not_found")


def queue_of(context: Context, kind: str) -> dict[str, Any]:
    """The queue of the first operand. kind: what it has to be. Raises: Failure."""
    path = f"/api/queues/{quoted(context.vhost)}/{quoted(context.operands[0])}"
    found: dict[str, Any] = context.client.send("GET", path).checked(NOT_FOUND).data
    if found.get("type") != kind:
        raise Failure(UNAVAILABLE, f"queue '{found['name']}' is a {found.get('type')} queue: {kind} queues only")
    return found


def rebalance_leaders(context: Context) -> None:
    kind = context.operands[0]
    if kind not in KINDS:
        raise Failure(UNAVAILABLE, f"type {kind} is not supported. Try one of {', '.join(KINDS)}.")
    context.info(f"Re-balancing leaders of {kind} queues...")
    rebalance(context, cluster_of(context))


def many_members(saying: str, context: Context) -> None:
    """grow and shrink. rabbit: no quorum queue has a replica on that node, so there is nothing to show."""
    context.info(f"{saying} on {context.operands[0]}...")
    context.client.get("/api/amqpd/ping")
    context.answer([], "")


def one_member(saying: str, kind: str, context: Context) -> None:
    context.info(f"{saying} queue {context.operands[0]} on node {context.operands[1]}...")
    queue_of(context, kind)
    if kind == "quorum" and saying.startswith("Removing"):
        if context.operands[1] == context.node:
            raise Failure(UNAVAILABLE, "last_member")
        context.success()  # rabbit: on a node that has none it is gone already
        return
    if cluster_of(context) is not None:
        raise Failure(UNAVAILABLE, COPIES)
    raise Failure(UNAVAILABLE, "node_not_running")


def quorum_status(context: Context) -> None:
    context.info(f"Status of quorum queue {context.operands[0]} on node {context.node} ...")
    queue = queue_of(context, "quorum")
    columns = ("Node Name", "Raft State", "Membership")
    context.show(columns, [[queue.get("node", context.node), "leader", "voter"]])


def stream_status(context: Context) -> None:
    context.info(f"Status of stream {context.operands[0]} on node {context.node} ...")
    queue = queue_of(context, "stream")
    columns = ("role", "node", "messages", "first_offset", "readers")
    node = queue.get("node", context.node)
    row = ["writer", node, queue.get("messages"), queue.get("retained_first_offset"), queue.get("consumers")]
    context.show(columns, [row])


def peek(context: Context) -> None:
    """The message at this place among those of the queue, counted from 1. Cost: all in front of it are read."""
    name, text = context.operands
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise UsageError("Bad argument: position value must be a positive integer")
    context.info(f"Peeking at quorum queue {name} at position {text} on node {context.node} ...")
    path = f"/api/queues/{quoted(context.vhost)}/{quoted(name)}/messages"
    missing = Failure(UNAVAILABLE, f"Target queue was not found in virtual host '{context.vhost}'")
    left, offset = int(text), ""
    while True:
        found = context.client.send("GET", f"{path}?count={min(left, PAGE_COUNT)}{offset}").checked(missing).data
        if len(found["messages"]) >= left:
            break
        left -= len(found["messages"])
        if found["ended"]:
            raise Failure(UNAVAILABLE, f"queue '{name}' has no message at position {text}")
        offset = f"&offset={found['next_offset']}"
    item = found["messages"][left - 1]
    context.show(("keys", "values"), [[key, item[key]] for key in sorted(item)])


def reclaim_quorum_memory(context: Context) -> None:
    """Logs are synced as they grow, and their memory is freed: there is nothing to do."""
    name = context.operands[0]
    context.info(f"Will flush Raft WAL of quorum queue {name} ...")
    path = f"/api/queues/{quoted(context.vhost)}/{quoted(name)}"
    missing = Failure(UNAVAILABLE, f"Target queue was not found in virtual host '{context.vhost}'")
    if context.client.send("GET", path).checked(missing).data.get("type") != "quorum":
        raise Failure(UNAVAILABLE, f"queue '{name}' is no quorum queue")
    context.success()


def one_leader(kind: str, context: Context) -> None:
    context.info(f"Transferring leadership of {context.operands[0]} ...")
    queue_of(context, kind)
    if cluster_of(context) is not None:
        raise Failure(UNAVAILABLE, "a queue is served where its vhost is: `move_vhost` takes the vhost to another node")
    raise Failure(UNAVAILABLE, "there is no other node that could lead it")


def nothing_to_do(saying: str, kind: str, context: Context) -> None:
    context.info(f"{saying} {context.operands[0]} ...")
    queue_of(context, kind)
    context.success()


def coordinator_status(context: Context) -> None:
    context.info("Getting the status of the stream coordinator ...")
    context.client.get("/api/amqpd/ping")
    context.show(("Node Name", "Raft State"), [[context.node, "leader"]])


def does_not_apply(saying: str, context: Context) -> None:
    timeout_s = 120 if context.line.timeout_s is None else context.line.timeout_s
    context.info(f"{saying} for {timeout_s} seconds...")
    context.client.get("/api/amqpd/ping")
    context.success("Target node seems to be the only one in a single node cluster, the command does not apply")


def post_upgrade(context: Context) -> None:
    context.info("Executing post upgrade tasks...")
    context.client.get("/api/amqpd/ping")
    context.success()


_QUEUE: Final = ("<queue>", "name of a queue of the vhost")


def _command(
    name: str,
    summary: str,
    run: Callable[[Context], None],
    example: str,
    effect: str,
    *operands: tuple[str, str],
    group: str = REPLICATION,
    options: tuple[str, ...] = (),
) -> Command:
    words = " ".join(operand for operand, _ in operands)
    usage = f"[--vhost <vhost>] {words} [--timeout <timeout>]" if operands else "[--timeout <timeout>]"
    count = len(operands)
    return Command(name, group, summary, run, usage, count, count, operands, options, (), 0, ((example, effect),))


REPLICA_COMMANDS: Final = (
    _command(
        "add_member",
        "Adds a replica of a quorum queue: refused, in a cluster copies are Kafka's",
        partial(one_member, "Adding a replica for", "quorum"),
        "add_member -p shop orders rabbit@other",
        "69",
        _QUEUE,
        _NODE,
        options=("membership",),
    ),
    _command(
        "delete_member",
        "Removes a replica of a quorum queue: it has one",
        partial(one_member, "Removing a replica of", "quorum"),
        "delete_member orders rabbit@other",
        "69",
        _QUEUE,
        _NODE,
    ),
    _command(
        "add_replica",
        "Adds a replica of a stream: refused, in a cluster copies are Kafka's",
        partial(one_member, "Adding a replica for", "stream"),
        "add_replica events rabbit@other",
        "69",
        _QUEUE,
        _NODE,
    ),
    _command(
        "delete_replica",
        "Removes a replica of a stream: it has one",
        partial(one_member, "Removing a replica of", "stream"),
        "delete_replica events rabbit@other",
        "69",
        _QUEUE,
        _NODE,
    ),
    _command(
        "grow",
        "Adds replicas of quorum queues on a node: changes none, copies are Kafka's",
        partial(many_members, "Growing quorum queues"),
        "grow rabbit@other all",
        "0, and no queue is changed",
        _NODE,
        ("<all | even>", "which queues"),
        group="Cluster",
        options=("vhost-pattern", "queue-pattern", "errors-only"),
    ),
    _command(
        "shrink",
        "Removes replicas of quorum queues from a node: changes none",
        partial(many_members, "Shrinking quorum queues"),
        "shrink rabbit@other",
        "0, and no queue is changed",
        _NODE,
        group="Cluster",
        options=("errors-only",),
    ),
    _command(
        "rebalance",
        "Distributes vhosts over the nodes; where there is one it has all",
        rebalance_leaders,
        "rebalance all",
        "0; a node by itself moves nothing",
        ("<all | classic | quorum | stream>", "which queues"),
        group="Cluster",
        options=("vhost-pattern", "queue-pattern"),
    ),
    _command(
        "quorum_status",
        "Displays who leads a quorum queue",
        quorum_status,
        "quorum_status -p shop orders",
        "the node that serves its vhost leads it",
        _QUEUE,
        group=MONITORING,
    ),
    _command(
        "stream_status",
        "Displays who writes a stream, and what is in it",
        stream_status,
        "stream_status events",
        "the node that serves its vhost writes it",
        _QUEUE,
        group=MONITORING,
    ),
    _command(
        "coordinator_status",
        "Displays who coordinates streams",
        coordinator_status,
        "coordinator_status",
        "the only node does",
        group=MONITORING,
    ),
    _command(
        "peek",
        "Shows the message at a position of a queue, and leaves it as it is",
        peek,
        "peek orders 1",
        "the 1st",
        _QUEUE,
        ("<position>", "place among its messages, from 1"),
        group=MONITORING,
    ),
    _command(
        "reclaim_quorum_memory",
        "Frees what a quorum queue keeps in memory: it is freed as it goes",
        reclaim_quorum_memory,
        "reclaim_quorum_memory orders",
        "0, nothing to do",
        _QUEUE,
        group="Operations",
    ),
    _command(
        "force_checkpoint",
        "Makes quorum queues write a checkpoint: their logs have them as they grow",
        partial(nothing_to_do, "Forcing a checkpoint of", "quorum"),
        "force_checkpoint orders",
        "0, nothing to do",
        _QUEUE,
    ),
    _command(
        "transfer_leadership",
        "Moves the leader of a quorum queue: refused, move_vhost moves all of a vhost",
        partial(one_leader, "quorum"),
        "transfer_leadership orders rabbit@other",
        "69",
        _QUEUE,
        _NODE,
    ),
    _command(
        "restart_stream",
        "Restarts a stream with another leader: there is one",
        partial(nothing_to_do, "Restarting stream", "stream"),
        "restart_stream events",
        "0, nothing to do",
        _QUEUE,
    ),
    _command(
        "await_online_quorum_plus_one",
        "Waits until quorum queues could do without this node: there is no other",
        partial(does_not_apply, "Will wait for a quorum + 1 of nodes to be online for all quorum queues"),
        "await_online_quorum_plus_one",
        "0: it does not apply",
        group="Upgrade",
    ),
    _command(
        "await_online_synchronized_mirror",
        "Waits until mirrored queues could do without this node: there is no other",
        partial(does_not_apply, "Will wait for a synchronised mirror be online for all classic mirrored queues"),
        "await_online_synchronized_mirror",
        "0: it does not apply",
        group="Upgrade",
    ),
    _command(
        "post_upgrade",
        "Runs what has to follow an upgrade: nothing has",
        post_upgrade,
        "post_upgrade",
        "0: a new version has done it at its start",
        group="Upgrade",
    ),
)
