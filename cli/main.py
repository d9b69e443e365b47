"""amqpctl: from the command line to the exit code.

`main` is the console script. `run` gets everything as arguments, so tests need no process. No input of a user ends
in a traceback.

RabbitMQ has one tool per task, and scripts call the tools by name. `amqpctl` has the commands of all of them, except
rabbitmq-plugins: its words (`list`, `set`) mean something only there. amqpctl acts as one of these tools if it is
called by that name (`amqpctl install_aliases DIR` installs the names), or if the name is its first word. It then has
the commands and options of that tool and shows its name. `rabbitmqctl` is all of amqpctl.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TextIO

from amqpd.cli import help as help_texts
from amqpd.cli.client import WARNING, ApiClient, tls_of
from amqpd.cli.command import Command, Context, named_columns
from amqpd.cli.commands import COMMANDS, PLUGIN_COMMANDS
from amqpd.cli.errors import INTERRUPTED, IO_ERROR, OK, USAGE, AppRuns, AppStopped, Failure, UnknownCommand, UsageError
from amqpd.cli.formatters import compact
from amqpd.cli.options import PLUGINS, SPECIFIC, TIMEOUT_S, CommandLine, Option, check_options, otherwise, parse, where
from amqpd.cli.terminal import bold, red, visible_lines, write_message


class Tool(NamedTuple):
    """A name of amqpctl, with its commands and the options that they have besides the general ones."""

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

OF_ALL: Final = _some("autocomplete help version")

TOOLS: Final[dict[str, Tool]] = {
    tool.name: tool
    for tool in (
        Tool("amqpctl", COMMANDS),
        Tool("rabbitmqctl", COMMANDS),
        Tool("rabbitmq-diagnostics", DIAGNOSTICS),
        Tool("rabbitmq-plugins", {**OF_ALL, **PLUGIN_COMMANDS}, PLUGINS),
        Tool("rabbitmq-queues", QUEUES),
        Tool("rabbitmq-streams", STREAMS),
        Tool("rabbitmq-upgrade", UPGRADE),
    )
}


def tool_of(words: Sequence[str]) -> tuple[str, list[str]]:
    """Split a whole command line into the program's name and its arguments."""
    program = words[0].rpartition("/")[2] if words else ""
    arguments = list(words[1:])
    if program not in TOOLS:
        program = "amqpctl"
    if program == "amqpctl" and arguments and arguments[0] in TOOLS:
        program = arguments.pop(0)
    return program, arguments


_SECRETS: Final = ("<password>", "<passphrase>", "<expression>")
"""Operands that may be or contain a password, as usages name them."""
_CREDENTIALS: Final = re.compile(r"(?:(://)\S*|(?<![^\s=])[^\s=/:]+:(?!//)\S*)@")
"""User and password of a URL, also if it lacks its scheme, or if the password has a character that it must not have."""


def main() -> int:
    """Run the command line in sys.argv. Return the exit code."""
    out, err, stdin = _streams()
    try:
        program, arguments = tool_of(sys.argv)
        code = run(arguments, out, err, stdin, os.environ, program)
        out.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `| head` has read all that it needs
        _drop_output(out)
        return OK
    except OSError as error:  # a full disk
        _drop_output(out)
        with suppress(OSError):
            err.write(f"Error: standard output cannot be written: {error.strerror}\n")
        return IO_ERROR
    return code


def _streams() -> tuple[TextIO, TextIO, TextIO]:
    """Return standard output, error and input. Those that are closed take what is written, and are empty."""
    out, err = sys.stdout or io.StringIO(), sys.stderr or io.StringIO()
    for stream in (out, err):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # names are UTF-8 in every locale
    return out, err, sys.stdin or io.StringIO()


def _drop_output(out: TextIO) -> None:
    """Send the rest of the buffer to /dev/null, or it fails again when Python ends."""
    with suppress(io.UnsupportedOperation):  # it was closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


def run(
    arguments: Sequence[str],
    out: TextIO,
    err: TextIO,
    stdin: TextIO,
    environment: Mapping[str, str],
    program: str = "amqpctl",
) -> int:
    """Run one command. Return its exit code. Cost: one request for most commands."""
    try:
        return _run(TOOLS[program], arguments, out, err, stdin, environment)
    except Failure as failure:
        out.flush()
        write_message(err, _shown(failure, err) + "\n")
        return failure.exit_code


def _run(
    tool: Tool, arguments: Sequence[str], out: TextIO, err: TextIO, stdin: TextIO, environment: Mapping[str, str]
) -> int:
    line = parse(arguments, tool.options)
    if "version" in line.given and not line.command:
        line = line._replace(command="version", given={k: v for k, v in line.given.items() if k != "version"})
    if not line.command:
        text = help_texts.overview(tool.commands, out, tool.name)
        if "help" in line.given:
            out.write(text)
            return OK
        if line.wrong:
            raise UsageError("\n".join(["Invalid options:", *line.wrong]))
        err.write(text)
        return USAGE
    command = tool.commands.get(line.command)
    if command is None:
        raise UnknownCommand(help_texts.unknown(line.command, tool.commands, tool.name))
    if "help" in line.given:
        out.write(help_texts.of_command(command, out, tool.name))
        return OK
    uri, data_dir = where(line, environment)
    node = line.given.get("node") or _node_name("longnames" in line.given)
    timeout_s = TIMEOUT_S if line.timeout_s is None else line.timeout_s
    client = ApiClient(uri, data_dir, node, timeout_s, command.needs_app)
    client.otherwise = otherwise(line, environment)
    try:
        check_options(line, command.options)
        client.tls = tls_of(line, environment, uri)
        if client.tls.insecure:
            err.write(WARNING)
        command.check(line.operands)
        if "dry-run" in line.given and "--dry-run" not in command.usage:
            _dry_run(command, line, client)
            return OK
        command.run(Context(line, client, out, err, stdin, tool.name, tool.commands, environment))
        if client.missing:
            out.flush()
            names = ", ".join(sorted(client.missing))
            err.write(f"Warning: these nodes of the cluster do not answer, so their part is missing: {names}\n")
    except Failure as failure:
        out.flush()
        if command.has_json_errors and line.formatter == "json":
            write_message(err, compact({"result": "error", "node": node, "message": failure.text}) + "\n")
            return failure.exit_code
        if not isinstance(failure, UsageError | AppStopped | AppRuns):
            raise
        given = f"Arguments given:\n\t{_without_passwords(arguments, command)}"
        usage = f"{bold('Usage', err)}\n\n{command.usage_of(tool.name)}"
        write_message(err, f"{_shown(failure, err)}\n{given}\n\n{usage}\n")
        return failure.exit_code
    finally:
        client.close()
    return OK


def _dry_run(command: Command, line: CommandLine, client: ApiClient) -> None:
    """Check columns and, if the command needs it, the broker. Raises: UsageError; Failure."""
    if command.columns:
        named_columns(command.columns, line.operands[command.least :])
    if command.needs_app:
        client.get("/api/amqpd/ping")


def _shown(failure: Failure, err: TextIO) -> str:
    """Return the text, which can have names of others, with control characters as escapes.

    On a terminal `Error` is red.
    """
    text = visible_lines(failure.shown())
    word, colon, rest = text.partition(":")
    return red(word + colon, err) + rest if word.startswith("Error") else text


def _without_passwords(arguments: Sequence[str], command: Command) -> str:
    """Return the command line without passwords, to be shown or logged."""
    if any(word in command.usage for word in _SECRETS):
        return f"{command.name} ..."
    return _CREDENTIALS.sub(r"\1***@", " ".join(arguments))


def _node_name(long: bool) -> str:
    """Return the name that amqpd has on this machine."""
    host = os.uname().nodename
    return f"amqpd@{host if long else host.partition('.')[0]}"
