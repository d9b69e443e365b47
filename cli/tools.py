"""The names this program goes by, and which commands each of them has.

RabbitMQ comes with a tool per trade, and scripts call them by name. `amqpctl` has the commands of all of them but
rabbitmq-plugins', whose words (`list`, `set`) mean something only there. Called by the name of one of them
(`amqpctl install_aliases DIR` puts them there), or with that name as its first word, it is that tool: its commands, its
options, its name in what it says. `rabbitmqctl` is all of amqpctl.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from amqpd.cli import plugins
from amqpd.cli.options import PLUGINS, SPECIFIC, Option
from amqpd.cli.command import Command
from amqpd.cli.commands import COMMANDS, HELP
from amqpd.cli.nodes import VERSION


class Tool(NamedTuple):
    """name: as it is called; options: those of its commands, beside the general ones."""

    name: str
    commands: Mapping[str, Command]
    options: Sequence[Option] = SPECIFIC


def _some(names: str) -> dict[str, Command]:
    return {name: COMMANDS[name] for name in names.split()}


DIAGNOSTICS: Final = _some(
    "autocomplete help version wait cluster_status list_user_limits list_users list_permissions "
    "list_topic_permissions list_user_permissions list_user_topic_permissions list_vhosts alarms check_alarms "
    "check_certificate_expiration check_if_node_is_mirror_sync_critical check_if_node_is_quorum_critical "
    "check_if_cluster_has_classic_queue_mirroring_policy consume_event_stream maybe_stuck runtime_thread_stats "
    "check_if_new_quorum_queue_replicas_have_finished_initial_sync list_stream_tracking list_stream_consumer_groups "
    "check_local_alarms check_port_connectivity check_port_listener check_protocol_listener check_running "
    "check_virtual_hosts cipher_suites discover_peers erlang_version is_booting is_running list_bindings "
    "list_channels list_connections list_consumers list_exchanges list_hashes list_network_interfaces "
    "list_node_auth_attempt_stats list_queues list_unresponsive_queues listeners log_location log_tail "
    "log_tail_stream memory_breakdown ping quorum_status report server_version status stream_status tls_versions "
    "list_global_parameters list_parameters list_operator_policies list_policies list_policies_that_match "
    "list_vhost_limits certificates command_line_arguments disable_auth_attempt_source_tracking "
    "enable_auth_attempt_source_tracking environment os_env reset_node_auth_attempt_metrics resolve_hostname "
    "resolver_info federation_status shovel_status list_stream_connections list_stream_consumers list_ciphers "
    "list_stream_publishers list_feature_flags list_deprecated_features check_if_any_deprecated_features_are_used "
    "check_for_quorum_queues_without_an_elected_leader reclaim_quorum_memory node_health_check "
    "metadata_store_status check_if_metadata_store_is_initialized check_if_metadata_store_is_initialized_with_data"
)
QUEUES: Final = _some(
    "autocomplete help version check_if_new_quorum_queue_replicas_have_finished_initial_sync "
    "check_if_cluster_has_classic_queue_mirroring_policy list_policies_with_classic_queue_mirroring "
    "list_operator_policies_with_classic_queue_mirroring grow rebalance shrink add_member delete_member "
    "transfer_leadership force_checkpoint "
    "check_if_node_is_mirror_sync_critical check_if_node_is_quorum_critical peek quorum_status stream_status "
    "reclaim_quorum_memory"
)
STREAMS: Final = _some(
    "autocomplete help version list_stream_tracking list_stream_consumer_groups list_stream_group_consumers "
    "add_replica delete_replica stream_status restart_stream coordinator_status "
    "set_stream_retention_policy add_super_stream delete_super_stream list_stream_connections list_stream_consumers "
    "list_stream_publishers"
)
UPGRADE: Final = _some(
    "autocomplete help version drain revive await_online_quorum_plus_one await_online_synchronized_mirror post_upgrade"
)

OF_ALL: Final = (COMMANDS["autocomplete"], HELP, VERSION)

TOOLS: Final[dict[str, Tool]] = {
    tool.name: tool
    for tool in (
        Tool("amqpctl", COMMANDS),
        Tool("rabbitmqctl", COMMANDS),
        Tool("rabbitmq-diagnostics", DIAGNOSTICS),
        Tool("rabbitmq-plugins", {each.name: each for each in (*OF_ALL, *plugins.COMMANDS)}, PLUGINS),
        Tool("rabbitmq-queues", QUEUES),
        Tool("rabbitmq-streams", STREAMS),
        Tool("rabbitmq-upgrade", UPGRADE),
    )
}
ALIASES: Final = tuple(name for name in TOOLS if name != "amqpctl")


def tool_of(words: Sequence[str]) -> tuple[str, list[str]]:
    """The program's name and what stands behind it. words: a whole command line."""
    program = words[0].rpartition("/")[2] if words else ""
    arguments = list(words[1:])
    if program not in TOOLS:
        program = "amqpctl"
    if program == "amqpctl" and arguments and arguments[0] in TOOLS:
        program = arguments.pop(0)
    return program, arguments
