"""The table of all commands.

To add a command, write a `Command` in the module it belongs to. This table, the help and the tests find it there.
"""

from __future__ import annotations

from typing import Final

from amqpd.cli import (
    backup,
    checks,
    cluster,
    definitions,
    diagnostics,
    encryption,
    export,
    export_compaction,
    fixed_answers,
    kafka_groups,
    listings,
    logs,
    message_import,
    nodes,
    policies,
    queues,
    rabbitmq_compat,
    shell,
    sql,
    streams,
    users,
    vhosts,
)
from amqpd.cli import help as help_texts
from amqpd.cli.command import Command, Context
from amqpd.cli.errors import USAGE, Failure


def show_help(context: Context) -> None:
    commands = context.commands
    if "list-commands" in context.line.given:
        context.out.write("\n".join(help_texts.command_list(commands.values(), context.out)))
    elif not context.operands:
        context.out.write(help_texts.overview(commands, context.out, context.program))
    elif context.operands[0] in commands:
        context.out.write(help_texts.of_command(commands[context.operands[0]], context.out, context.program))
    else:
        raise Failure(USAGE, "\n" + help_texts.unknown(context.operands[0], commands, context.program))


HELP: Final = Command(
    "help",
    "Help",
    "Explains a command",
    show_help,
    "(<command> | [--list-commands])",
    0,
    1,
    (("<command>", "the command; without it, the list of all commands"),),
    ("list-commands",),
    examples=(("help list_queues", "usage, columns and examples of list_queues"),),
)

COMMANDS: Final[dict[str, Command]] = {
    command.name: command
    for command in (
        HELP,
        *nodes.COMMANDS,
        *users.COMMANDS,
        *vhosts.LIMIT_COMMANDS,
        *vhosts.COMMANDS,
        *listings.COMMANDS,
        *logs.COMMANDS,
        *nodes.MAINTENANCE_COMMANDS,
        *backup.COMMANDS,
        *diagnostics.AUDIT_COMMANDS,
        *queues.TRACE_COMMANDS,
        *queues.MESSAGE_COMMANDS,
        *nodes.ALARM_COMMANDS,
        *rabbitmq_compat.EVAL_COMMANDS,
        *policies.COMMANDS,
        *policies.PARAMETER_COMMANDS,
        *streams.COMMANDS,
        *kafka_groups.COMMANDS,
        *queues.COMMANDS,
        *queues.DELAYED_COMMANDS,
        *diagnostics.WATCH_COMMANDS,
        *export.COMMANDS,
        *export_compaction.COMMANDS,
        *sql.COMMANDS,
        *message_import.COMMANDS,
        *nodes.STARTUP_COMMANDS,
        *cluster.COMMANDS,
        *cluster.CLUSTERING_COMMANDS,
        *checks.COMMANDS,
        *diagnostics.COMMANDS,
        *rabbitmq_compat.CIPHER_SUITE_COMMANDS,
        *definitions.COMMANDS,
        *rabbitmq_compat.FEATURE_FLAG_COMMANDS,
        *rabbitmq_compat.COMMANDS,
        *cluster.REPLICA_COMMANDS,
        *fixed_answers.COMMANDS,
        *streams.SUPER_STREAM_COMMANDS,
        *users.PASSWORD_COMMANDS,
        *encryption.COMMANDS,
        *policies.MIRROR_COMMANDS,
        *cluster.MOVE_COMMANDS,
        *diagnostics.THREAD_COMMANDS,
        *shell.COMMANDS,
    )
}
