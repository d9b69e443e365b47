"""Help texts, made from the table of commands, so that none can be out of date."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TextIO

from amqpd import __version__
from amqpd.cli.arguments import BY_LONG, GENERAL, Option
from amqpd.cli.command import GROUPS, Command

ELSEWHERE: Final = frozenset({
    "autocomplete", "await_online_nodes", "await_startup", "cancel_sync_queue", "change_cluster_node_type",
    "close_all_user_connections", "cluster_status", "decode",
    "disable_feature_flag", "enable_feature_flag", "encode", "environment", "eval_file", "exec",
    "export_definitions", "force_boot", "force_gc", "force_reset", "forget_cluster_node", "hipe_compile",
    "import_definitions", "join_cluster", "list_ciphers", "list_feature_flags", "list_hashes",
    "list_node_auth_attempt_stats", "list_unresponsive_queues", "list_user_topic_permissions",
    "node_health_check", "rename_cluster_node", "report", "reset", "restart_vhost",
    "resume_listeners", "rotate_logs", "schema_info", "set_log_level",
    "shutdown", "suspend_listeners", "sync_queue",
    "update_cluster_nodes", "wait",
})  # fmt: skip
"""Commands of rabbitmqctl 3.10 that amqpctl does not have: told apart from mistyped ones."""


def bold(text: str, out: TextIO) -> str:
    """Bold on a terminal; rabbitmqctl sends the escapes into files too, which helps nobody."""
    return f"\x1b[1m{text}\x1b[0m" if out.isatty() else text


def overview(commands: Mapping[str, Command], out: TextIO) -> str:
    lines = [
        "",
        bold("Usage", out),
        "",
        "amqpctl [--node <node>] [--timeout <timeout>] [--longnames] [--quiet] <command> [<command options>]",
        "",
        "Available commands:",
        "",
        *command_list(commands.values(), out),
        bold("Examples", out),
        "",
        "  amqpctl status",
        "  amqpctl add_vhost shop",
        "  amqpctl set_permissions -p shop guest '.*' '.*' '.*'",
        "  amqpctl list_queues -p shop name messages consumers --formatter pretty_table",
        "",
        bold("Which broker", out),
        "",
        "The one whose data directory is ./amqpd-data, AMQPD_DATA_DIR or --data-dir: over its unix socket, without a",
        "password. Or any one, over HTTP: --uri http://USER:PASSWORD@HOST:15672, or AMQPCTL_URI.",
        "",
        *general_options(out),
        "",
        "Use 'amqpctl help <command>' to learn more about a specific command",
    ]
    return "\n".join(lines) + "\n"


def command_list(commands: Iterable[Command], out: TextIO) -> list[str]:
    """Names and summaries under their headings."""
    known = sorted(commands, key=lambda command: command.name)
    wide = max(len(command.name) for command in known)
    lines: list[str] = []
    for group in GROUPS:
        members = [f"   {one.name.ljust(wide)}  {one.summary}" for one in known if one.group == group]
        if members:
            lines += [f"{bold(group, out)}:", "", *members, ""]
    return lines


def of_command(command: Command, out: TextIO) -> str:
    lines = ["", bold("Usage", out), "", command.usage_line, "", command.summary.rstrip(".") + ".", ""]
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
        lines += [f"  amqpctl {line}", f"\t{what}", ""]
    lines += general_options(out)
    return "\n".join(lines) + "\n"


def general_options(out: TextIO) -> list[str]:
    rows = [(f"{_names(option)} {option.value}".rstrip(), option.text) for option in GENERAL]
    wide = max(len(name) for name, _ in rows)
    return [
        bold("General Options", out),
        "",
        "Before or behind the command.",
        "",
        *(f"  {name.ljust(wide)}  {text}" for name, text in rows),
    ]


def unknown(name: str, commands: Iterable[str]) -> str:
    """What to say about a command that is not there."""
    if name in ELSEWHERE:
        return (
            f"Command '{name}' of rabbitmqctl is not part of this version of amqpctl ({__version__}).\n"
            "'amqpctl help' shows what is."
        )
    from difflib import get_close_matches

    near = get_close_matches(name, list(commands), 1, 0.6)
    advice = f"Did you mean '{near[0]}'?" if near else "'amqpctl help' shows all commands."
    return f"Command '{name}' not found.\n{advice}"


def _names(option: Option) -> str:
    return f"-{option.short}, --{option.long}" if option.short else f"--{option.long}"
