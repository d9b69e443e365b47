"""amqpctl: from the command line to the exit code.

`main` is the console script, under whatever name it is called (tools.py). `run` does the work with everything handed
in, so tests need no process. Nothing a user types ends in a traceback.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Final, TextIO

from amqpd.cli import help as help_texts
from amqpd.cli.options import TIMEOUT_S, CommandLine, check_options, otherwise, parse, where
from amqpd.cli.client import Client
from amqpd.cli.command import Command, Context
from amqpd.cli.errors import INTERRUPTED, OK, USAGE, AppRuns, AppStopped, Failure, UnknownCommand, UsageError
from amqpd.cli.terminal import bold, red
from amqpd.cli.tls import WARNING, tls_of
from amqpd.cli.tools import TOOLS, Tool, tool_of

_CREDENTIALS: Final = re.compile(r"://[^/\s]*@")


def main() -> int:
    """The console script: exit code of the command line in sys.argv."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # names are UTF-8, whatever the locale
    try:
        program, arguments = tool_of(sys.argv)
        code = run(arguments, sys.stdout, sys.stderr, sys.stdin, os.environ, program)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `| head`: whoever read has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    return code


def run(
    arguments: Sequence[str],
    out: TextIO,
    err: TextIO,
    stdin: TextIO,
    environment: Mapping[str, str],
    program: str = "amqpctl",
) -> int:
    """Does one command. Returns its exit code (errors.py). Cost: one request for most. program: of tools.py."""
    tool = TOOLS[program]
    try:
        line = parse(arguments, tool.options)
        return _run(tool, line, arguments, out, err, stdin, environment)
    except Failure as failure:
        out.flush()
        err.write(_shown(failure, err) + "\n")
        return failure.exit_code


def _run(
    tool: Tool,
    line: CommandLine,
    arguments: Sequence[str],
    out: TextIO,
    err: TextIO,
    stdin: TextIO,
    environment: Mapping[str, str],
) -> int:
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
    client = Client(uri, data_dir, node, timeout_s, command.needs_app)
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
        command.run(Context(line, client, out, err, stdin, tool.name, tool.commands))
        if client.missing:
            out.flush()
            names = ", ".join(sorted(client.missing))
            err.write(f"Warning: nodes of the cluster that do not answer, and whose part is missing: {names}\n")
    except (UsageError, AppStopped, AppRuns) as failure:
        out.flush()
        given = f"Arguments given:\n\t{_without_passwords(arguments, command)}"
        usage = f"{bold('Usage', err)}\n\n{command.usage_of(tool.name)}"
        err.write(f"{_shown(failure, err)}\n{given}\n\n{usage}\n")
        return failure.exit_code
    finally:
        client.close()
    return OK


def _dry_run(command: Command, line: CommandLine, client: Client) -> None:
    """Raises: UsageError for columns that are none; Failure where the command needs a broker and there is none."""
    if command.columns:
        asked = {name for operand in line.operands[command.least :] for name in operand.split(",") if name}
        if unknown := sorted(asked - set(command.columns)):
            raise UsageError(f"Info key(s) {','.join(unknown)} are not supported")
    if command.needs_app:
        client.get("/api/amqpd/ping")


def _shown(failure: Failure, err: TextIO) -> str:
    """With its `Error` in red, on a terminal."""
    text = failure.shown()
    word, colon, rest = text.partition(":")
    return red(word + colon, err) + rest if word.startswith("Error") else text


def _without_passwords(arguments: Sequence[str], command: Command) -> str:
    """The command line as it may be repeated in a terminal or a log."""
    if "<password>" in command.usage:
        return f"{command.name} ..."
    return _CREDENTIALS.sub("://***@", " ".join(arguments))


def _node_name(long: bool) -> str:
    """What amqpd calls itself on this machine."""
    host = os.uname().nodename
    return f"amqpd@{host if long else host.partition('.')[0]}"
