"""Replicas of queues and streams, as RabbitMQ answers on a single node: each has one, where its vhost is, and it leads.

What asks is told so; what would add or move a replica finds no other node, or is told that copies are Kafka's and a
vhost moves as a whole. Exit codes and texts are RabbitMQ's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from amqpd.cli.client import quoted
from amqpd.cli.clustering import cluster_of
from amqpd.cli.clustering import rebalance as even_out
from amqpd.cli.command import Command, Context
from amqpd.cli.errors import UNAVAILABLE, Failure, UsageError

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


def rebalance(context: Context) -> None:
    kind = context.operands[0]
    if kind not in KINDS:
        raise Failure(UNAVAILABLE, f"type {kind} is not supported. Try one of {', '.join(KINDS)}.")
    context.say(f"Re-balancing leaders of {kind} queues...")
    even_out(context, cluster_of(context))


def many_members(saying: str, context: Context) -> None:
    """grow and shrink. rabbit: no quorum queue has a replica on that node, so there is nothing to show."""
    context.say(f"{saying} on {context.operands[0]}...")
    context.client.get("/api/amqpd/ping")
    context.answer([], "")


def one_member(saying: str, kind: str, context: Context) -> None:
    context.say(f"{saying} queue {context.operands[0]} on node {context.operands[1]}...")
    queue_of(context, kind)
    if kind == "quorum" and saying.startswith("Removing"):
        if context.operands[1] == context.node:
            raise Failure(UNAVAILABLE, "last_member")
        context.done()  # rabbit: on a node that has none it is gone already
        return
    if cluster_of(context) is not None:
        raise Failure(UNAVAILABLE, COPIES)
    raise Failure(UNAVAILABLE, "node_not_running")


def quorum_status(context: Context) -> None:
    context.say(f"Status of quorum queue {context.operands[0]} on node {context.node} ...")
    queue = queue_of(context, "quorum")
    columns = ("Node Name", "Raft State", "Membership")
    context.show(columns, [[queue.get("node", context.node), "leader", "voter"]])


def stream_status(context: Context) -> None:
    context.say(f"Status of stream {context.operands[0]} on node {context.node} ...")
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
    context.say(f"Peeking at quorum queue {name} at position {text} on node {context.node} ...")
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
    context.say(f"Will flush Raft WAL of quorum queue {name} ...")
    path = f"/api/queues/{quoted(context.vhost)}/{quoted(name)}"
    missing = Failure(UNAVAILABLE, f"Target queue was not found in virtual host '{context.vhost}'")
    if context.client.send("GET", path).checked(missing).data.get("type") != "quorum":
        raise Failure(UNAVAILABLE, f"queue '{name}' is no quorum queue")
    context.done()


def one_leader(kind: str, context: Context) -> None:
    context.say(f"Transferring leadership of {context.operands[0]} ...")
    queue_of(context, kind)
    if cluster_of(context) is not None:
        raise Failure(UNAVAILABLE, "a queue is served where its vhost is: `move_vhost` takes the vhost to another node")
    raise Failure(UNAVAILABLE, "there is no other node that could lead it")


def nothing_to_do(saying: str, kind: str, context: Context) -> None:
    context.say(f"{saying} {context.operands[0]} ...")
    queue_of(context, kind)
    context.done()


def coordinator_status(context: Context) -> None:
    context.say("Getting the status of the stream coordinator ...")
    context.client.get("/api/amqpd/ping")
    context.show(("Node Name", "Raft State"), [[context.node, "leader"]])


def does_not_apply(saying: str, context: Context) -> None:
    timeout_s = 120 if context.line.timeout_s is None else context.line.timeout_s
    context.say(f"{saying} for {timeout_s} seconds...")
    context.client.get("/api/amqpd/ping")
    context.done("Target node seems to be the only one in a single node cluster, the command does not apply")


def post_upgrade(context: Context) -> None:
    context.say("Executing post upgrade tasks...")
    context.client.get("/api/amqpd/ping")
    context.done()


_QUEUE: Final = ("<queue>", "name of a queue of the vhost")
_NODE: Final = ("<node>", "name of a node")


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


COMMANDS: Final = (
    _command(
        "add_member", "Adds a replica of a quorum queue: refused, in a cluster copies are Kafka's",
        partial(one_member, "Adding a replica for", "quorum"), "add_member -p shop orders rabbit@other", "69",
        _QUEUE, _NODE, options=("membership",),
    ),
    _command(
        "delete_member", "Removes a replica of a quorum queue: it has one",
        partial(one_member, "Removing a replica of", "quorum"), "delete_member orders rabbit@other", "69",
        _QUEUE, _NODE,
    ),
    _command(
        "add_replica", "Adds a replica of a stream: refused, in a cluster copies are Kafka's",
        partial(one_member, "Adding a replica for", "stream"), "add_replica events rabbit@other", "69", _QUEUE, _NODE,
    ),
    _command(
        "delete_replica", "Removes a replica of a stream: it has one",
        partial(one_member, "Removing a replica of", "stream"), "delete_replica events rabbit@other", "69",
        _QUEUE, _NODE,
    ),
    _command(
        "grow", "Adds replicas of quorum queues on a node: changes none, copies are Kafka's",
        partial(many_members, "Growing quorum queues"), "grow rabbit@other all", "0, and no queue is changed",
        _NODE, ("<all | even>", "which queues"), group="Cluster",
        options=("vhost-pattern", "queue-pattern", "errors-only"),
    ),
    _command(
        "shrink", "Removes replicas of quorum queues from a node: changes none",
        partial(many_members, "Shrinking quorum queues"), "shrink rabbit@other", "0, and no queue is changed",
        _NODE, group="Cluster", options=("errors-only",),
    ),
    _command(
        "rebalance", "Distributes vhosts over the nodes; where there is one it has all", rebalance, "rebalance all",
        "0; a node by itself moves nothing", ("<all | classic | quorum | stream>", "which queues"), group="Cluster",
        options=("vhost-pattern", "queue-pattern"),
    ),
    _command(
        "quorum_status", "Displays who leads a quorum queue", quorum_status, "quorum_status -p shop orders",
        "the node that serves its vhost leads it", _QUEUE, group=MONITORING,
    ),
    _command(
        "stream_status", "Displays who writes a stream, and what is in it", stream_status, "stream_status events",
        "the node that serves its vhost writes it", _QUEUE, group=MONITORING,
    ),
    _command(
        "coordinator_status", "Displays who coordinates streams", coordinator_status, "coordinator_status",
        "the only node does", group=MONITORING,
    ),
    _command(
        "peek", "Shows the message at a position of a queue, and leaves it as it is", peek, "peek orders 1", "the 1st",
        _QUEUE, ("<position>", "place among its messages, from 1"), group=MONITORING,
    ),
    _command(
        "reclaim_quorum_memory", "Frees what a quorum queue keeps in memory: it is freed as it goes",
        reclaim_quorum_memory, "reclaim_quorum_memory orders", "0, nothing to do", _QUEUE, group="Operations",
    ),
    _command(
        "force_checkpoint", "Makes quorum queues write a checkpoint: their logs have them as they grow",
        partial(nothing_to_do, "Forcing a checkpoint of", "quorum"), "force_checkpoint orders", "0, nothing to do",
        _QUEUE,
    ),
    _command(
        "transfer_leadership", "Moves the leader of a quorum queue: refused, move_vhost moves all of a vhost",
        partial(one_leader, "quorum"), "transfer_leadership orders rabbit@other", "69", _QUEUE, _NODE,
    ),
    _command(
        "restart_stream", "Restarts a stream with another leader: there is one",
        partial(nothing_to_do, "Restarting stream", "stream"), "restart_stream events", "0, nothing to do", _QUEUE,
    ),
    _command(
        "await_online_quorum_plus_one", "Waits until quorum queues could do without this node: there is no other",
        partial(does_not_apply, "Will wait for a quorum + 1 of nodes to be online for all quorum queues"),
        "await_online_quorum_plus_one", "0: it does not apply", group="Upgrade",
    ),
    _command(
        "await_online_synchronized_mirror", "Waits until mirrored queues could do without this node: there is no other",
        partial(does_not_apply, "Will wait for a synchronised mirror be online for all classic mirrored queues"),
        "await_online_synchronized_mirror", "0: it does not apply", group="Upgrade",
    ),
    _command(
        "post_upgrade", "Runs what has to follow an upgrade: nothing has", post_upgrade, "post_upgrade",
        "0: a new version has done it at its start", group="Upgrade",
    ),
)
