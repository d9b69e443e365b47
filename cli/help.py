"""Help texts, made from the table of commands, so that none can be out of date."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TextIO

from amqpd import __version__
from amqpd.cli.options import BY_LONG, GENERAL, Option
from amqpd.cli.command import GROUPS, Command
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
        "The one whose data directory is ./amqpd-data, AMQPD_DATA_DIR or --data-dir: over its unix socket, without a",
        "password. Or any one, over HTTP: --uri http://USER:PASSWORD@HOST:15672, or AMQPCTL_URI; over HTTPS:",
        "--uri https://USER:PASSWORD@HOST:15671, with --tls-ca-cert-file where the authority is your own.",
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
    """Names and summaries under their headings."""
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
        "Before or behind the command.",
        "",
        *(f"  {name.ljust(wide)}  {text}" for name, text in rows),
    ]


def unknown(name: str, commands: Iterable[str], program: str = "amqpctl") -> str:
    """What to say about a command that is not there."""
    from amqpd.cli.elsewhere import ELSEWHERE

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
