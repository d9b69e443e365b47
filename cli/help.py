"""Help texts, made from the table of commands; and RabbitMQ's commands that amqpctl does not have.

A test checks every command name of RabbitMQ's tools: it works, it is answered as on a single node, or it is in
ELSEWHERE with its replacement. docs/compatibility.md is made from these lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TextIO

from amqpd import __version__
from amqpd.cli.command import GROUPS, Command
from amqpd.cli.options import BY_LONG, GENERAL, Option
from amqpd.cli.terminal import bold


def overview(commands: Mapping[str, Command], out: TextIO, program: str = "amqpctl") -> str:
    lines = [
        "",
        bold("Usage", out),
        "",
        f"{program} [--node <node>] [--timeout <timeout>] [--longnames] [--quiet] <command> [<command options>]",
        "",
        "Available commands:",
        "",
        *command_list(commands.values(), out),
        *_examples(program, out),
        bold("Which broker", out),
        "",
        "A broker on this machine: its data directory is ./amqpd-data, AMQPD_DATA_DIR or --data-dir. amqpctl uses the",
        "unix socket there, without a password. Any broker, over HTTP: --uri http://USER:PASSWORD@HOST:15672, or",
        "AMQPCTL_URI. HTTPS: --uri https://USER:PASSWORD@HOST:15671, with --tls-ca-cert-file for your own authority.",
        "",
        *general_options(out),
        "",
        f"Use '{program} help <command>' to learn more about a specific command",
    ]
    return "\n".join(lines) + "\n"


def _examples(program: str, out: TextIO) -> list[str]:
    if program not in {"amqpctl", "rabbitmqctl"}:
        return []
    lines = (
        "status",
        "add_vhost shop",
        "set_permissions -p shop guest '.*' '.*' '.*'",
        "list_queues -p shop name messages consumers --formatter pretty_table",
    )
    return [bold("Examples", out), "", *(f"  {program} {line}" for line in lines), ""]


def command_list(commands: Iterable[Command], out: TextIO) -> list[str]:
    """Return names and summaries, by group."""
    known = sorted(commands, key=lambda command: command.name)
    wide = max(len(command.name) for command in known)
    lines: list[str] = []
    for group in GROUPS:
        members = [f"   {one.name.ljust(wide)}  {one.summary}" for one in known if one.group == group]
        if members:
            lines += [f"{bold(group, out)}:", "", *members, ""]
    return lines


def of_command(command: Command, out: TextIO, program: str = "amqpctl") -> str:
    lines = ["", bold("Usage", out), "", command.usage_of(program), "", command.summary.rstrip(".") + ".", ""]
    details = [*command.details]
    if command.columns:
        default = " ".join(command.columns[: command.shown])
        details.append(("<column>", f"any of {', '.join(sorted(command.columns))}. Without columns: {default}"))
    options = [BY_LONG[name] for name in command.options]
    details += [(f"{_names(option)} {option.value}".rstrip(), option.text) for option in options]
    if details:
        lines += [bold("Arguments and Options", out), ""]
        for name, text in details:
            lines += [name, f"\t{text}", ""]
    lines += [bold("Examples", out), ""]
    for line, what in command.examples:
        lines += [f"  {program} {line}", f"\t{what}", ""]
    lines += general_options(out)
    return "\n".join(lines) + "\n"


def general_options(out: TextIO) -> list[str]:
    rows = [(f"{_names(option)} {option.value}".rstrip(), option.text) for option in GENERAL]
    wide = max(len(name) for name, _ in rows)
    return [
        bold("General Options", out),
        "",
        "Before or after the command.",
        "",
        *(f"  {name.ljust(wide)}  {text}" for name, text in rows),
    ]


def unknown(name: str, commands: Iterable[str], program: str = "amqpctl") -> str:
    """Return the text about an unknown command."""
    if name in ELSEWHERE:
        return (
            f"Command '{name}' of RabbitMQ is not part of this version of amqpctl ({__version__}): "
            f"{ELSEWHERE[name]}.\n'{program} help' shows what is."
        )
    from difflib import get_close_matches

    near = get_close_matches(name, list(commands), 1, 0.6)
    advice = f"Did you mean '{near[0]}'?" if near else f"'{program} help' shows all commands."
    return f"Command '{name}' not found.\n{advice}"


def _names(option: Option) -> str:
    return f"-{option.short}, --{option.long}" if option.short else f"--{option.long}"


_ERLANG: Final = "needs Erlang's runtime, which amqpd does not have"
_STOMP: Final = "amqpd has only AMQP 0-9-1"

ELSEWHERE: Final[dict[str, str]] = {
    "add_uaa_key": "amqpd has no logins by OAuth 2",
    "clear_auth_backend_cache": "amqpd does not cache logins",
    "consistent_hash_exchange_ring_state": "amqpd has no ring; `list_bindings` shows the weights",
    "decommission_mqtt_node": _STOMP,
    "decrypt_conf_value": "of RabbitMQ 4.1; use `decode`",
    "encrypt_conf_value": "of RabbitMQ 4.1; use `encode`",
    "erlang_cookie_hash": "amqpd has no cookie; file permissions protect the socket in the data directory",
    "erlang_cookie_sources": "amqpd has no cookie; file permissions protect the socket in the data directory",
    "exec": f"Elixir {_ERLANG}",
    "force_standalone_khepri_boot": "a node has no peers to leave, and the metadata is in SQLite",
    "list_amqp10_connections": _STOMP,
    "list_mqtt_connections": _STOMP,
    "list_stomp_connections": _STOMP,
    "list_web_mqtt_connections": _STOMP,
    "list_web_stomp_connections": _STOMP,
    "message_size_stats": "of RabbitMQ 4.1; the metrics have message sizes for each queue",
    "observer": f"{_ERLANG}; use `status`, `memory_breakdown` and `runtime_thread_stats`",
    "schema_info": "of Mnesia; amqpd's metadata is in SQLite, or in the database of `metadata.url`",
    "reconcile_vhosts": "of RabbitMQ 4.0; virtual hosts are on all nodes",
    "remote_shell": f"the shell {_ERLANG}",
}
"""Command of RabbitMQ -> why it is missing, and its replacement."""

_ONE_NODE: Final = """
    discover_peers join_cluster forget_cluster_node change_cluster_node_type update_cluster_nodes
    rename_cluster_node force_boot rebalance grow shrink add_member delete_member add_replica
    delete_replica transfer_leadership restart_stream post_upgrade
    await_online_quorum_plus_one await_online_synchronized_mirror await_online_nodes
    check_if_node_is_quorum_critical check_if_node_is_mirror_sync_critical
    check_if_new_quorum_queue_replicas_have_finished_initial_sync
"""
ONE_NODE: Final = frozenset(_ONE_NODE.split())
"""Commands that are answered as RabbitMQ answers them on a single node."""

_NOTHING_TO_DO: Final = """
    force_gc reclaim_quorum_memory force_checkpoint reset_stats_db activate_free_disk_space_monitoring
    deactivate_free_disk_space_monitoring sync_queue cancel_sync_queue set_stream_retention_policy
    list_channel_interceptors list_stream_connections list_stream_consumers list_stream_publishers
    list_stream_consumer_groups list_stream_group_consumers federation_status
    restart_federation_link shovel_status delete_shovel restart_shovel hipe_compile list_deprecated_features
"""
NOTHING_TO_DO: Final = frozenset(_NOTHING_TO_DO.split())
"""Commands whose feature does not exist or needs no command. They say so, with RabbitMQ's exit code."""
