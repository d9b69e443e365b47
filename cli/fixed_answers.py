"""Commands whose answer is fixed: RabbitMQ's answer on a single node without shovels, federation and mirrors.

Scripts call these commands, so they must exist. One row per command says what it checks and what it answers. Texts
and exit codes are RabbitMQ 3.10.8's, measured. In a cluster, Kafka keeps the copies of queues, and a vhost moves as
a whole: some rows have a text for it.
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

from amqpd.cli.client import quoted
from amqpd.cli.cluster import ALONE, GROUP, NODE, NOT_FOUND, QUEUE, REPLICATION, cluster_of, needs_stopped_app, queue_of
from amqpd.cli.command import MONITORING, OPERATIONS, Command, Context
from amqpd.cli.errors import UNAVAILABLE, Failure

NOTHING: Final = "nothing"
PING: Final = "ping"
STOPPED_APP: Final = "stopped app"
ANY_QUEUE: Final = "any queue"


class FixedAnswer(NamedTuple):
    """The checks and the answer of one command.

    Texts may contain `{0}` and `{1}` for operands, `{node}`, `{vhost}` and `{timeout_s}`.

    Attributes:
        info: the informational line
        needs: the check before the answer: NOTHING, PING, STOPPED_APP, ANY_QUEUE, or the type of the queue `{0}`
        message: text of a success
        refusal: text of a failure with exit code 69
        in_cluster: text of the failure in a cluster
        columns: columns of an empty list
        result: JSON of a success; None: the usual JSON of `Context.success`
    """

    info: str = ""
    needs: str = PING
    message: str = ""
    refusal: str = ""
    in_cluster: str = ""
    columns: tuple[str, ...] = ()
    result: object = None


def answer(fixed: FixedAnswer, context: Context) -> None:
    """Make the check of a command, then answer. Raises: Failure (69); AppRuns (64)."""
    timeout_s = 120 if context.line.timeout_s is None else context.line.timeout_s
    words = {"node": context.node, "vhost": context.vhost, "timeout_s": timeout_s}
    if fixed.needs == STOPPED_APP:
        needs_stopped_app(context)
    if fixed.info:
        context.info(fixed.info.format(*context.operands, **words))
    if fixed.needs == PING:
        context.client.get("/api/amqpd/ping")
    elif fixed.needs == ANY_QUEUE:
        path = f"/api/queues/{quoted(context.vhost)}/{quoted(context.operands[0])}?columns=name"
        context.client.send("GET", path).checked(NOT_FOUND)
    elif fixed.needs not in {NOTHING, STOPPED_APP}:
        queue_of(context, fixed.needs)
    if fixed.in_cluster and cluster_of(context) is not None:
        raise Failure(UNAVAILABLE, fixed.in_cluster)
    if fixed.refusal:
        raise Failure(UNAVAILABLE, fixed.refusal.format(**words))
    if fixed.columns:
        context.show(fixed.columns, [])
    elif fixed.result is not None:
        context.answer(fixed.result, fixed.message.format(**words))
    else:
        context.success(fixed.message)


def _row(
    name: str,
    group: str,
    summary: str,
    fixed: FixedAnswer,
    example: tuple[str, str],
    *operands: tuple[str, str],
    usage: str = "",
    options: tuple[str, ...] | None = None,
    needs_app: bool = True,
) -> Command:
    usage = usage or " ".join(operand for operand, _ in operands)
    run = partial(answer, fixed)
    return Command(
        group, run, summary, usage, operands, options, own_name=name, examples=(example,), needs_app=needs_app
    )


_TIMEOUT: Final = "[--timeout <timeout>]"
_VHOST: Final = "[--vhost <vhost>]"
_ON_QUEUE: Final = f"{_VHOST} <queue> {_TIMEOUT}"
_ON_NODE: Final = f"{_VHOST} <queue> <node> {_TIMEOUT}"
_COPIES: Final = "Kafka keeps the copies of queues; cluster.replication_factor is their number"
_MOVES: Final = "the node of a vhost serves all its queues: `move_vhost` moves the vhost to another node"
_ONLY_NODE: Final = "seems to be the only one in a single node cluster, the {} does not apply"
_NO_SHOVEL: Final = "Shovel with the given name was not found on the target node '{node}': amqpd runs none"
_NO_LINK: Final = "Link with the given ID was not found on the target node '{node}': amqpd runs none"
_CRITICAL: Final = "Health check: stopping this node must not leave"
_STORE: Final = "SQLite, or the database in metadata.url"
_SHOVEL: Final = ("<name>", "name of a shovel")


def _critical(question: str) -> FixedAnswer:
    text = _ONLY_NODE.format("check")
    result = {"result": "ok", "message": f"Target node {text}"}
    return FixedAnswer(
        f"Checking if node {{node}} is critical for {question} ...", PING, f"Node {{node}} {text}", result=result
    )


def _wait(until: str) -> FixedAnswer:
    return FixedAnswer(
        f"Will wait for {until} for {{timeout_s}} seconds...", PING, f"Target node {_ONLY_NODE.format('command')}"
    )


COMMANDS: Final = (
    # -- members of a cluster
    _row("force_boot", GROUP, "Lets the node start without its peers; amqpd needs none to start",
         FixedAnswer(needs=STOPPED_APP), ("force_boot", "after stop_app: nothing to do"), needs_app=False),
    _row("join_cluster", GROUP,
         "Makes the node a member of another cluster: refused, the settings cluster.* do this in amqpd",
         FixedAnswer("Clustering with {0}", STOPPED_APP, refusal=ALONE),
         ("join_cluster rabbit@other", "exit code 69, after stop_app"), NODE, needs_app=False),
    _row("update_cluster_nodes", GROUP,
         "Copies the list of members from another node: refused, amqpd's nodes find each other in Kafka",
         FixedAnswer("Will seed the next start from {0}", STOPPED_APP, refusal=ALONE),
         ("update_cluster_nodes rabbit@other", "exit code 69, after stop_app"), NODE, needs_app=False),
    # -- replicas of queues and streams
    _row("add_member", REPLICATION, "Adds a replica of a quorum queue: refused, Kafka keeps the copies in a cluster",
         FixedAnswer("Adding a replica for queue {0} on node {1}...", "quorum", refusal="node_not_running",
                     in_cluster=_COPIES),
         ("add_member -p shop orders rabbit@other", "exit code 69"), QUEUE, NODE, usage=_ON_NODE,
         options=("membership",)),
    _row("add_replica", REPLICATION, "Adds a replica of a stream: refused, Kafka keeps the copies in a cluster",
         FixedAnswer("Adding a replica for queue {0} on node {1}...", "stream", refusal="node_not_running",
                     in_cluster=_COPIES),
         ("add_replica events rabbit@other", "exit code 69"), QUEUE, NODE, usage=_ON_NODE),
    _row("delete_replica", REPLICATION, "Removes a replica of a stream: refused, a stream has one",
         FixedAnswer("Removing a replica of queue {0} on node {1}...", "stream", refusal="node_not_running",
                     in_cluster=_COPIES),
         ("delete_replica events rabbit@other", "exit code 69"), QUEUE, NODE, usage=_ON_NODE),
    _row("grow", GROUP, "Adds replicas of quorum queues on a node: no effect, Kafka keeps the copies",
         FixedAnswer("Growing quorum queues on {0}...", result=[]),
         ("grow rabbit@other all", "exit code 0, no queue changes"),
         NODE, ("<all | even>", "which queues"), usage=f"{_VHOST} <node> <all | even> {_TIMEOUT}",
         options=("vhost-pattern", "queue-pattern", "errors-only")),
    _row("shrink", GROUP, "Removes replicas of quorum queues from a node: no effect",
         FixedAnswer("Shrinking quorum queues on {0}...", result=[]),
         ("shrink rabbit@other", "exit code 0, no queue changes"),
         NODE, usage=f"{_VHOST} <node> {_TIMEOUT}", options=("errors-only",)),
    _row("force_checkpoint", REPLICATION,
         "Makes quorum queues write a checkpoint: no effect, their logs write them regularly",
         FixedAnswer("Forcing a checkpoint of {0} ...", "quorum"),
         ("force_checkpoint orders", "exit code 0, no effect"),
         QUEUE, usage=_ON_QUEUE),
    _row("restart_stream", REPLICATION, "Restarts a stream with another leader: no effect, a stream has one leader",
         FixedAnswer("Restarting stream {0} ...", "stream"), ("restart_stream events", "exit code 0, no effect"),
         QUEUE, usage=_ON_QUEUE),
    _row("transfer_leadership", REPLICATION,
         "Moves the leader of a quorum queue: refused, move_vhost moves whole vhosts",
         FixedAnswer("Transferring leadership of {0} ...", "quorum",
                     refusal="there is no other node that could lead it",
                     in_cluster=_MOVES),
         ("transfer_leadership orders rabbit@other", "exit code 69"), QUEUE, NODE, usage=_ON_NODE),
    # -- mirrors
    _row("sync_queue", REPLICATION, "Synchronises the mirrors of a queue: refused, no queue has mirrors",
         FixedAnswer("Synchronising queue '{0}' in vhost '{vhost}' ...", ANY_QUEUE, refusal="not_mirrored"),
         ("sync_queue orders", "exit code 69"), QUEUE, usage=f"{_VHOST} <queue>"),
    _row("cancel_sync_queue", REPLICATION, "Stops synchronising mirrors of a queue: no effect, no queue has mirrors",
         FixedAnswer("Stopping synchronising queue '{0}' in vhost '{vhost}' ...", ANY_QUEUE),
         ("cancel_sync_queue orders", "exit code 0, no effect"), QUEUE, usage=f"{_VHOST} <queue>"),
    # -- upgrades and checks that compare a node with its peers
    _row("await_online_quorum_plus_one", "Upgrade",
         "Waits until quorum queues do not need this node: does not apply to a single node",
         _wait("a quorum + 1 of nodes to be online for all quorum queues"),
         ("await_online_quorum_plus_one", "exit code 0: it does not apply"), usage=_TIMEOUT),
    _row("await_online_synchronized_mirror", "Upgrade",
         "Waits until mirrored queues do not need this node: does not apply to a single node",
         _wait("a synchronised mirror be online for all classic mirrored queues"),
         ("await_online_synchronized_mirror", "exit code 0: it does not apply"), usage=_TIMEOUT),
    _row("post_upgrade", "Upgrade", "Runs tasks after an upgrade: no effect, the broker does them when it starts",
         FixedAnswer("Executing post upgrade tasks..."), ("post_upgrade", "exit code 0, no effect"),
         usage=_TIMEOUT),
    _row("check_if_node_is_quorum_critical", MONITORING, f"{_CRITICAL} quorum queues without a majority",
         _critical("quorum of any quorum queues"),
         ("check_if_node_is_quorum_critical", "exit code 0: it does not apply to a single node"), usage=_TIMEOUT),
    _row("check_if_node_is_mirror_sync_critical", MONITORING, f"{_CRITICAL} mirrored queues without a mirror",
         _critical("data safety of any classic mirrored queues"),
         ("check_if_node_is_mirror_sync_critical", "exit code 0: it does not apply to a single node"), usage=_TIMEOUT),
    _row("check_for_quorum_queues_without_an_elected_leader", MONITORING,
         "Health check that all quorum queues have a leader",
         FixedAnswer(message="Node reported all quorum queue as having responsive leader replicas",
                     result={"result": "ok"}),
         ("check_for_quorum_queues_without_an_elected_leader", "exit code 0: one node leads all of them"),
         usage=_TIMEOUT),
    _row("check_if_new_quorum_queue_replicas_have_finished_initial_sync", MONITORING,
         "Health check that no new replica of a quorum queue is still copying",
         FixedAnswer("Checking if node {node} runs promotable replicas of any queues ...", PING,
                     "Node {node} reported no queues with promotable replicas", result={"result": "ok"}),
         ("check_if_new_quorum_queue_replicas_have_finished_initial_sync", "exit code 0: a single node has none"),
         usage=_TIMEOUT),
    _row("check_if_any_deprecated_features_are_used", MONITORING,
         "Fails if a deprecated feature is in use: amqpd has none",
         FixedAnswer("Checking if any deprecated features are used ...", PING,
                     "Node {node} reported no deprecated features in use", result={"result": "ok"}),
         ("check_if_any_deprecated_features_are_used", "exit code 0")),
    # -- metadata store, memory, disk, statistics
    _row("metadata_store_status", MONITORING, f"Displays the state of the metadata store: {_STORE}",
         FixedAnswer("Status of the metadata store on node {node} ...", PING, "The metadata store is open"),
         ("metadata_store_status", "the store is open: without it the broker does not start"), needs_app=False),
    _row("check_if_metadata_store_is_initialized", MONITORING, f"Health check of the metadata store: {_STORE}",
         FixedAnswer("Checking the metadata store on node {node} ...", PING, "Metadata store is initialized"),
         ("check_if_metadata_store_is_initialized", "exit code 0 if the broker answers"), needs_app=False),
    _row("check_if_metadata_store_is_initialized_with_data", MONITORING,
         "Health check of the metadata store and its content: after the first start it has a vhost",
         FixedAnswer("Checking the metadata store on node {node} ...",
                     PING, "Metadata store is initialized, with data"),
         ("check_if_metadata_store_is_initialized_with_data", "exit code 0 if the broker answers"), needs_app=False),
    _row("force_gc", OPERATIONS, "Frees memory: no effect, amqpd always frees it",
         FixedAnswer("Will ask node {node} to free memory"), ("force_gc", "exit code 0, no effect"), needs_app=False),
    _row("hipe_compile", OPERATIONS, "Does nothing, as in RabbitMQ",
         FixedAnswer("This command is a no-op: amqpd's hot modules are compiled when it is built"),
         ("hipe_compile /tmp/x", "exit code 0"), ("<directory>", "not used"), needs_app=False),
    _row("reset_stats_db", OPERATIONS, "Resets the statistics: no effect, amqpd has no database of statistics",
         FixedAnswer("Resetting statistics of node {node} ..."), ("reset_stats_db", "exit code 0, no effect"),
         usage="[--all]"),
    _row("activate_free_disk_space_monitoring", OPERATIONS,
         "Watches the free disk space: no effect, amqpd always watches it",
         FixedAnswer("Activating free disk space monitoring on node {node} ..."),
         ("activate_free_disk_space_monitoring", "exit code 0, no effect")),
    # Without free space on the disk, the broker could not keep what it confirms.
    _row("deactivate_free_disk_space_monitoring", OPERATIONS,
         "Stops watching the free disk space: refused, amqpd always watches it",
         FixedAnswer(needs=NOTHING,
                     refusal="the free space is always watched; set_disk_free_limit 0 lets publishers fill the disk"),
         ("deactivate_free_disk_space_monitoring", "exit code 69, and a command to use instead")),
    # -- interceptors, shovels, federation
    _row("list_channel_interceptors", MONITORING, "Lists channel interceptors: always empty, amqpd has none",
         FixedAnswer("Listing channel interceptors ...", columns=("name",)),
         ("list_channel_interceptors", "an empty list")),
    _row("shovel_status", OPERATIONS, "Displays shovels: always empty, amqpd has no shovels",
         FixedAnswer("Shovel status ...", columns=("name", "vhost", "type", "state")),
         ("shovel_status", "an empty list")),
    _row("delete_shovel", OPERATIONS, "Deletes a shovel: refused, amqpd has no shovels",
         FixedAnswer("Deleting shovel {0} ...", refusal=_NO_SHOVEL), ("delete_shovel s", "exit code 69"), _SHOVEL,
         usage=f"{_VHOST} <name>"),
    _row("restart_shovel", OPERATIONS, "Restarts a shovel: refused, amqpd has no shovels",
         FixedAnswer("Restarting dynamic Shovel {0} ...", refusal=_NO_SHOVEL),
         ("restart_shovel s", "exit code 69"), _SHOVEL, usage=f"{_VHOST} <name>"),
    _row("federation_status", OPERATIONS, "Displays federation links: always empty, amqpd has no federation",
         FixedAnswer("Listing federation links ...", columns=("upstream", "status")),
         ("federation_status", "an empty list"), usage="[--only-down]"),
    _row("restart_federation_link", OPERATIONS, "Restarts a federation link: refused, amqpd has no federation",
         FixedAnswer("Restarting federation link {0} ...", refusal=_NO_LINK),
         ("restart_federation_link id", "exit code 69"),
         ("<link_id>", "ID of a federation link")),
)  # fmt: skip
