"""The table of commands. One more command: a `Command` in the module it belongs to; this table, the help and the tests
find it there. cli/README.md names it too, and a test sees to that."""

from __future__ import annotations

from typing import Final

from amqpd.cli import alarms, audit, backup, checks, cipher_suites, cluster, clustering, definitions, delayed, diagnostics, encryption, evaluate, export, features, hashing, limits, listings, logs, maintenance, mirroring, moving, nodes, operations, parameters, policies, replicas, shell, startup, streams, super_streams, queues, threads, trace, rabbitmq_compat, users, vhosts, watching
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
    (("<command>", "the command; without one, all of them"),),
    ("list-commands",),
    examples=(("help list_queues", "usage, columns and examples of list_queues"),),
)

COMMANDS: Final[dict[str, Command]] = {
    command.name: command
    for command in (
        HELP,
        *nodes.COMMANDS,
        *users.COMMANDS,
        *limits.COMMANDS,
        *vhosts.COMMANDS,
        *listings.COMMANDS,
        *logs.COMMANDS,
        *maintenance.COMMANDS,
        *backup.COMMANDS,
        *audit.COMMANDS,
        *trace.COMMANDS,
        *operations.COMMANDS,
        *alarms.COMMANDS,
        *evaluate.COMMANDS,
        *policies.COMMANDS,
        *parameters.COMMANDS,
        *streams.COMMANDS,
        *queues.COMMANDS,
        *delayed.COMMANDS,
        *watching.COMMANDS,
        *export.COMMANDS,
        *startup.COMMANDS,
        *cluster.COMMANDS,
        *clustering.COMMANDS,
        *checks.COMMANDS,
        *diagnostics.COMMANDS,
        *cipher_suites.COMMANDS,
        *definitions.COMMANDS,
        *features.COMMANDS,
        *rabbitmq_compat.COMMANDS,
        *replicas.COMMANDS,
        *super_streams.COMMANDS,
        *hashing.COMMANDS,
        *encryption.COMMANDS,
        *mirroring.COMMANDS,
        *moving.COMMANDS,
        *threads.COMMANDS,
        *shell.COMMANDS,
    )
}
