"""Cluster commands: members, vhosts and their nodes, replicas, and the import of a broker's data.

A single broker answers as RabbitMQ does on a single node: reading commands show one running node, and commands that
would change the membership are refused with RabbitMQ's exit code. The commands with a fixed answer are in
`fixed_answers`. In a cluster over Kafka the commands work at any node.

`cluster_import` copies a stopped broker's data directory into the running cluster. A program of its own
(`python -m amqpd.dump`) reads the directory and does not change it. First the definitions are imported, then the
messages of each durable queue in their order, with their exchange and routing key. If one of the queues exists
already, nothing is imported. If the import is interrupted, the source is complete, and the messages imported so far
stay: delete the vhosts in the cluster and start again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import IO, Any, Final

from amqpd.cli.checks import alarms_of, listener_item, listeners_of
from amqpd.cli.client import quoted
from amqpd.cli.command import MONITORING, OPERATIONS, Context, command
from amqpd.cli.errors import DATA, SOFTWARE, UNAVAILABLE, AppRuns, Failure, UsageError
from amqpd.cli.terminal import bold

GROUP: Final = "Cluster"
Found = dict[str, Any]


def cluster_of(context: Context) -> Found | None:
    """Return the node's view of its cluster; None for a single broker."""
    found: Found = context.client.get("/api/amqpd/cluster")
    return found if found["clustered"] else None


def many_nodes(context: Context, cluster: Found, found: Found) -> None:
    """Extend `found`, the answer of `cluster_status` about one node, to all nodes of the cluster."""
    known = {each["name"]: each for each in context.client.get("/api/nodes")}
    names = sorted({*known, *(each["name"] for each in cluster["nodes"])})
    running = [name for name in names if known.get(name, {}).get("running")]
    listeners: dict[str, list[Found]] = {name: [] for name in running}
    for one in context.client.get("/api/overview")["listeners"]:
        listeners.setdefault(one["node"], []).append(listener_item(one, one["node"]))
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
    """Return the sections of `cluster_status` that RabbitMQ does not have."""
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


NODE: Final = ("<node>", "name of a node")
REPLICATION: Final = "Replication"
QUEUE: Final = ("<queue>", "name of a queue in the vhost")
_command = partial(command, GROUP)
_monitoring = partial(command, MONITORING)


@_command(
    "Checks Kafka and the settings of a node before its first start",
    "[<file>]",
    (("<file>", "the node's settings file; AMQPD_* variables count too"),),
    examples=(("check_cluster amqpd.toml", "a line for each check; exit code 69 if one fails"),),
    needs_app=False,
)
def check_cluster(context: Context) -> None:
    """Run the check as a program of its own, because amqpctl imports nothing of the server."""
    files = [f"--config={name}" for name in context.operands]
    code = subprocess.run([sys.executable, "-P", "-m", "amqpd.cluster.check", *files], check=False).returncode
    if code:
        raise Failure(code, "not all checks have passed, see above")


@_command(
    "Moves a vhost to another node of a cluster",
    "<vhost> <node>",
    (
        ("<vhost>", "the vhost; its clients are closed with code 320 and can reconnect to any node"),
        ("<node>", "name of a node, as cluster_status shows it"),
    ),
    examples=(("move_vhost shop amqpd@two", "returns when the other node serves the vhost"),),
)
def move_vhost(context: Context) -> None:
    name, node = context.operands
    context.info(f"Moving vhost '{name}' to node {node} ...")
    context.no_timeout()
    body = {"vhost": name, "node": node}
    found = context.client.send("POST", "/api/amqpd/move_vhost", body).checked().data
    others = [each for each in found["vhosts"] if each != name]
    context.success(f"moved with it, because they share its slot: {', '.join(others)}" if others else "")


def rebalance(context: Context, cluster: Found | None) -> None:
    """Spread vhosts over the nodes; a single broker (None) moves nothing. rabbit: the answer is a list of moves."""
    moves: dict[str, str] = {}
    if cluster is not None:
        context.no_timeout()
        moves = context.client.send("POST", "/api/amqpd/rebalance").checked().data["moves"]
    value = [{"vhost": name, "node": node} for name, node in sorted(moves.items())]
    text = "\n".join(f"vhost '{each['vhost']}' goes to node {each['node']}" for each in value)
    context.answer({"node": context.node, "result": "ok", "value": value}, text)


LOOK_S: Final = 1.0
ALONE: Final = "Nodes of amqpd join and leave a cluster by the settings cluster.*, not by this command"


@_command(
    "Displays the nodes of the cluster, or the single broker: versions, alarms, listeners, vhosts",
    examples=(("cluster_status --formatter json", "JSON with RabbitMQ's keys"),),
)
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
        "alarms": alarms_of(context, local=False),
        "cluster_name": context.client.get("/api/cluster-name")["name"],
        "disk_nodes": [node],
        "feature_flags": flags,
        "listeners": {node: listeners_of(context)},
        "maintenance_status": {node: "under maintenance" if about["is_under_maintenance"] else "not under maintenance"},
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


def _text(context: Context, found: dict[str, Any], cluster: dict[str, Any] | None) -> str:
    """Return the status as text, with RabbitMQ's sections in its order."""
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


@_command(
    "Waits until the cluster has this number of nodes; a single broker has one",
    details=(("<count>", "1 succeeds if the broker runs; a higher number needs a cluster"),),
    examples=(("await_online_nodes 1", "exit code 0 if the broker runs"),),
)
def await_online_nodes(context: Context) -> None:
    """rabbit: 70 after the timeout. A single broker never gets a second node, so it answers at once."""
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
    """Check that AMQP is stopped. Raises: AppRuns (64)."""
    if context.client.get("/api/amqpd/app")["running"]:
        raise AppRuns


@_command(
    "Changes the type of the node: disc is accepted, ram is refused",
    "<disc | ram>",
    (("<disc | ram>", "disc succeeds, because every node of amqpd is a disc node"),),
    examples=(("change_cluster_node_type disc", "after stop_app"),),
    needs_app=False,
)
def change_cluster_node_type(context: Context) -> None:
    kind = context.operands[0]
    if kind not in {"disc", "disk", "ram"}:
        raise UsageError("Bad argument: the node type must be either disc or ram.")
    needs_stopped_app(context)
    context.info(f"Turning {context.node} into a {kind} node")
    if kind == "ram":
        raise Failure(UNAVAILABLE, "Non-clustered nodes can only be disc nodes.")
    context.success("Node type is already disc")


@_command(
    "Removes a node from the cluster: refused, a stopped node has already left it",
    "<node>",
    (NODE,),
    examples=(("forget_cluster_node rabbit@other", "exit code 69: it is not in the cluster"),),
    needs_app=False,
)
def forget_cluster_node(context: Context) -> None:
    name = context.operands[0]
    context.info(f"Removing node {name} from the cluster")
    cluster = cluster_of(context)
    if cluster is not None and any(each["name"] == name for each in cluster["nodes"]):
        raise Failure(UNAVAILABLE, f"node {name} runs: `drain` moves its vhosts; it leaves the cluster when it stops")
    raise Failure(UNAVAILABLE, "The node selected is not in the cluster.")


@_monitoring(
    "Shows the other nodes of the cluster",
    "",
    examples=(("discover_peers", "no names for a single broker"),),
    needs_app=False,
)
def discover_peers(context: Context) -> None:
    context.info("Discovering peers nodes ...")
    cluster = cluster_of(context)
    peers = [] if cluster is None else [each["name"] for each in cluster["nodes"] if each["name"] != cluster["node"]]
    context.success("\n".join(sorted(peers)) or "No peers discovered")


@_command(
    "Renames nodes: refused, a node's name comes from its machine or from cluster.node",
    "<old> <new>",
    (("<old> <new>", "old and new name of a node"),),
    examples=(("rename_cluster_node rabbit@a rabbit@b", "exit code 64"),),
    needs_app=False,
)
def rename_cluster_node(context: Context) -> None:
    """rabbit: the node must be stopped. amqpd's name comes from its machine."""
    context.client.get("/api/amqpd/ping")
    raise UsageError("this command requires the target node to be stopped; amqpd's is named after its machine")


OWN: Final = frozenset({"cluster_name", "internal_cluster_id"})
"""Global parameters that the cluster keeps: they are not imported."""


@command(
    "Cluster",
    "Imports the vhosts and messages of a stopped broker's data directory",
    "<directory>",
    (("<directory>", "data directory of a stopped broker"),),
    examples=(("cluster_import /var/lib/amqpd", "into the cluster of this node"),),
)
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
    context.success(f"{queues} queues, {messages} messages; {directory} is unchanged")


def _check_new(context: Context, definitions: dict[str, Any]) -> None:
    """Raises: Failure if one of the queues exists already."""
    there = {each["name"] for each in context.client.get("/api/vhosts?columns=name")}
    for vhost in sorted({each["vhost"] for each in definitions["queues"]} & there):
        names = {each["name"] for each in context.client.get(f"/api/queues/{quoted(vhost)}?columns=name")}
        both = sorted(names & {each["name"] for each in definitions["queues"] if each["vhost"] == vhost})
        if both:
            raise Failure(DATA, f"vhost '{vhost}' has a queue '{both[0]}' already: nothing was imported")


@contextmanager
def _lines(directory: str) -> Iterator[Iterator[dict[str, Any]]]:
    """Yield the lines of the reading program. Raises: Failure, with that program's text, if it fails."""
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


PAGE_COUNT: Final = 100
KINDS: Final = ("all", "classic", "quorum", "stream")
NOT_FOUND: Final = Failure(UNAVAILABLE, "not_found")


def queue_of(context: Context, kind: str) -> dict[str, Any]:
    """Return the queue of the first operand, which must have the type `kind`. Raises: Failure."""
    path = f"/api/queues/{quoted(context.vhost)}/{quoted(context.operands[0])}"
    found: dict[str, Any] = context.client.send("GET", path).checked(NOT_FOUND).data
    if found.get("type") != kind:
        raise Failure(UNAVAILABLE, f"queue '{found['name']}' is a {found.get('type')} queue: {kind} queues only")
    return found


@command(
    "Cluster",
    "Distributes vhosts over the nodes of the cluster; no effect on a single broker",
    "[--vhost <vhost>] <all | classic | quorum | stream> [--timeout <timeout>]",
    (("<all | classic | quorum | stream>", "accepted, without effect"),),
    own_name="rebalance",
    own_options=("vhost-pattern", "queue-pattern"),
    examples=(("rebalance all", "the list of moved vhosts"),),
)
def rebalance_leaders(context: Context) -> None:
    kind = context.operands[0]
    if kind not in KINDS:
        raise Failure(UNAVAILABLE, f"type {kind} is not supported. Try one of {', '.join(KINDS)}.")
    context.info(f"Re-balancing leaders of {kind} queues...")
    rebalance(context, cluster_of(context))


@command(
    REPLICATION,
    "Removes a replica of a quorum queue: the only one cannot be removed",
    "[--vhost <vhost>] <queue> <node> [--timeout <timeout>]",
    (
        QUEUE,
        NODE,
    ),
    examples=(("delete_member orders rabbit@other", "exit code 0: it has no replica"),),
)
def delete_member(context: Context) -> None:
    name, node = context.operands
    context.info(f"Removing a replica of queue {name} on node {node}...")
    queue_of(context, "quorum")
    if node == context.node:
        raise Failure(UNAVAILABLE, "last_member")
    context.success()  # rabbit: the replica on a node that has none is removed already


@_monitoring(
    "Displays the leader of a quorum queue",
    "[--vhost <vhost>] <queue> [--timeout <timeout>]",
    (QUEUE,),
    examples=(("quorum_status -p shop orders", "the node that serves the vhost"),),
)
def quorum_status(context: Context) -> None:
    context.info(f"Status of quorum queue {context.operands[0]} on node {context.node} ...")
    queue = queue_of(context, "quorum")
    columns = ("Node Name", "Raft State", "Membership")
    context.show(columns, [[queue.get("node", context.node), "leader", "voter"]])


@_monitoring(
    "Displays the writer of a stream, its messages and readers",
    "[--vhost <vhost>] <queue> [--timeout <timeout>]",
    (QUEUE,),
    examples=(("stream_status events", "the writer is the node that serves the vhost"),),
)
def stream_status(context: Context) -> None:
    context.info(f"Status of stream {context.operands[0]} on node {context.node} ...")
    queue = queue_of(context, "stream")
    columns = ("role", "node", "messages", "first_offset", "readers")
    node = queue.get("node", context.node)
    row = ["writer", node, queue.get("messages"), queue.get("retained_first_offset"), queue.get("consumers")]
    context.show(columns, [row])


@_monitoring(
    "Shows the message at a position of a queue, without changing the queue",
    "[--vhost <vhost>] <queue> <position> [--timeout <timeout>]",
    (
        QUEUE,
        ("<position>", "position of the message, from 1"),
    ),
    examples=(("peek orders 1", "the first message"),),
)
def peek(context: Context) -> None:
    """Show the message at a position, counted from 1. Cost: the messages before it are read too."""
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


@command(
    OPERATIONS,
    "Frees the memory of a quorum queue: no effect, amqpd always frees it",
    "[--vhost <vhost>] <queue> [--timeout <timeout>]",
    (QUEUE,),
    examples=(("reclaim_quorum_memory orders", "exit code 0, no effect"),),
)
def reclaim_quorum_memory(context: Context) -> None:
    """Check the queue and do nothing: amqpd syncs logs as they grow and frees their memory."""
    name = context.operands[0]
    context.info(f"Will flush Raft WAL of quorum queue {name} ...")
    path = f"/api/queues/{quoted(context.vhost)}/{quoted(name)}"
    missing = Failure(UNAVAILABLE, f"Target queue was not found in virtual host '{context.vhost}'")
    if context.client.send("GET", path).checked(missing).data.get("type") != "quorum":
        raise Failure(UNAVAILABLE, f"queue '{name}' is no quorum queue")
    context.success()


@_monitoring("Displays the coordinator of streams", examples=(("coordinator_status", "always the node that answers"),))
def coordinator_status(context: Context) -> None:
    context.info("Getting the status of the stream coordinator ...")
    context.client.get("/api/amqpd/ping")
    context.show(("Node Name", "Raft State"), [[context.node, "leader"]])
