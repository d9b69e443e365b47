"""The table of all commands.

To add a command, decorate a function by `command` in the module it belongs to. This table, the help and the tests find
it there.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
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
from amqpd.cli.command import PLUGIN_GROUP, Command, Context, command
from amqpd.cli.errors import USAGE, Failure


@command(
    "Help",
    "Explains a command",
    "(<command> | [--list-commands])",
    (("<command>", "the command; without it, the list of all commands"),),
    own_name="help",
    examples=(("help list_queues", "usage, columns and examples of list_queues"),),
    needs=0,
)
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


_MODULES: Final = (
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


def _commands_of(module: ModuleType) -> Iterator[Command]:
    """Yield the decorated functions of a module, and the commands in its tuple COMMANDS."""
    yield from (each for each in vars(module).values() if isinstance(each, Command))
    yield from getattr(module, "COMMANDS", ())


_ALL: Final = {each.name: each for module in _MODULES for each in _commands_of(module)}
PLUGIN_COMMANDS: Final = {name: each for name, each in _ALL.items() if each.group == PLUGIN_GROUP}
"""The commands of rabbitmq-plugins, which no other tool has."""
COMMANDS: Final = {
    show_help.name: show_help,
    **{name: each for name, each in _ALL.items() if each.group != PLUGIN_GROUP},
}
