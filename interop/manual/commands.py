"""docs/reference/amqpctl.md: every command with usage, options, columns and examples, from amqpctl's table."""

from __future__ import annotations

from amqpd.cli.command import GROUPS, Command
from amqpd.cli.commands import COMMANDS
from amqpd.cli.options import BY_LONG, GENERAL, Option
from interop.manual.markdown import MADE, cell, code, codes, table

HEAD = """\
# Commands of amqpctl

Every command, as `amqpctl help COMMAND` shows it. How amqpctl finds its broker, its formats and exit codes:
[amqpctl](../amqpctl.md).

## Options of every command

"""


def _named(option: Option) -> str:
    both = f"-{option.short}, --{option.long}" if option.short else f"--{option.long}"
    return code(f"{both} {option.value}".strip())


def _command(command: Command) -> str:
    parts = [f"### {command.name}\n", f"`amqpctl {command.name} {command.usage}".rstrip() + "`\n"]
    parts.append(cell(command.summary).rstrip(".") + ".\n")
    rows = [(code(name), cell(text)) for name, text in command.details]
    rows += [(_named(option), cell(option.text)) for option in map(BY_LONG.__getitem__, command.options)]
    if rows:
        parts.append(table(("", ""), rows))
    if command.columns:
        parts.append(f"Columns: {codes(command.columns)}. Without any: {codes(command.columns[: command.shown])}.\n")
    if command.examples:
        parts.append("\n".join(f"- {code('amqpctl ' + line)}: {cell(what)}" for line, what in command.examples) + "\n")
    return "\n".join(parts)


def text() -> str:
    known = sorted(COMMANDS.values(), key=lambda command: command.name)
    parts = [MADE, HEAD, table(("", ""), [(_named(option), cell(option.text)) for option in GENERAL])]
    for group in GROUPS:
        members = [command for command in known if command.group == group]
        if members:
            parts.append(f"\n## {group}\n\n" + "\n".join(map(_command, members)))
    return "".join(parts)
