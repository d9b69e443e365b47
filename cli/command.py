"""Commands, and the context in which they run."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, TextIO

from amqpd.cli.client import ApiClient
from amqpd.cli.erlang import term
from amqpd.cli.errors import DATA, Failure, UsageError
from amqpd.cli.formatters import BY_NAME, Row, aligned, compact, json_lines
from amqpd.cli.options import GENERAL_NAMES, TIMEOUT_S, CommandLine
from amqpd.cli.terminal import bold, visible_lines, write_message

MONITORING: Final = "Monitoring, observability and health checks"
CONFIGURATION: Final = "Configuration and Environment"
OPERATIONS: Final = "Operations"
PLUGIN_GROUP: Final = "Plugin Management"
GROUPS: Final = (
    "Help",
    "Nodes",
    "Cluster",
    "Replication",
    "Users",
    "Access Control",
    MONITORING,
    "Parameters",
    "Policies",
    "Virtual hosts",
    CONFIGURATION,
    "Definitions",
    "Feature flags",
    OPERATIONS,
    "Queues",
    "Stream plugin",
    "Kafka groups",
    PLUGIN_GROUP,
    "Upgrade",
    "Logs",
)
"""rabbitmqctl's headings, in its order. `Kafka groups` and `Logs` are amqpd's own."""


_OPTION: Final = re.compile("--([a-z-]+)")
_VALUE: Final = re.compile("--[a-z-]+ <[^>]*>")
_BRACKETS: Final = re.compile(r"\[[^][]*\]")
_OPTIONAL: Final = re.compile(r"\[[^][]*--[^][]*\]")
"""Innermost brackets that have an option."""


class Context:
    """One run of one command: its command line, its client of the broker, its output.

    `info` writes lines that `-q` hides; `answer`, `show` and `success` write the result; `warn` writes to standard
    error.

    Attributes:
        program: the name under which amqpctl was called
        commands: the commands of that program
        environment: variables
    """

    def __init__(
        self,
        line: CommandLine,
        client: ApiClient,
        out: TextIO,
        err: TextIO,
        stdin: TextIO,
        program: str,
        commands: Mapping[str, Command],
        environment: Mapping[str, str],
    ) -> None:
        self.line = line
        self.operands = line.operands
        self.vhost = line.vhost
        self.client = client
        self.node = client.node
        self.out = out
        self.err = err
        self.stdin = stdin
        self.program = program
        self.commands = commands
        self.environment = environment

    def with_line(self, line: CommandLine) -> Context:
        """Return a copy with another command line, for a command that runs other commands."""
        return Context(line, self.client, self.out, self.err, self.stdin, self.program, self.commands, self.environment)

    @property
    def timeout_ms(self) -> int:
        timeout_s = self.line.timeout_s
        return 1000 * (TIMEOUT_S if timeout_s is None else timeout_s)

    def info(self, text: str) -> None:
        """Write an informational line, except with --quiet, --silent, and before JSON and CSV."""
        if not self.line.quiet and self.line.formatter not in {"json", "csv"}:
            self.out.write(visible_lines(text) + "\n")
            self.out.flush()

    def success(self, message: str = "") -> None:
        """Report that a change succeeded. rabbit: --quiet keeps the message, JSON wraps it."""
        shown = message if self.line.formatter in {"json", "erlang"} else visible_lines(message)
        self.answer({"message": message} if message else {"node": self.node, "result": "ok"}, shown)

    def change(
        self, method: str, path: str, body: object = None, missing: Failure | None = None, message: str = ""
    ) -> None:
        """Send a change and report success. Raises: as `ApiClient.send` and `ApiAnswer.checked`."""
        self.client.send(method, path, body).checked(missing)
        self.success(message)

    def answer(self, value: object, text: str) -> None:
        """Write `value` for a JSON or Erlang formatter, else `text`. rabbit: an empty text is no line."""
        if self.line.formatter == "json":
            self.out.write(compact(value) + "\n")
        elif self.line.formatter == "erlang" and (text or not isinstance(value, dict)):
            self.out.write(term(text if value == {"message": text} else value) + "\n")
        elif text:
            self.out.write(text + "\n")

    def show(self, columns: Sequence[str], rows: Sequence[Row]) -> None:
        if self.line.stream:
            self.out.write(json_lines(columns, rows))
        elif "formatter" not in self.line.given and self.out.isatty():
            self.out.write(aligned(columns, rows, self.line.headers, lambda text: bold(text, self.out)))
        else:
            self.out.write(BY_NAME[self.line.formatter](columns, rows, self.line.headers))

    def warn(self, text: str) -> None:
        """Write a line to standard error, except with --quiet."""
        if not self.line.quiet:
            write_message(self.err, visible_lines(text) + "\n")

    def no_timeout(self) -> None:
        """Wait for the broker without limit, unless --timeout is given. For work that can take long."""
        if self.line.timeout_s is None:
            self.client.timeout_s = None

    def all_vhosts(self, one: str) -> bool:
        """Return whether --global is given. Raises: UsageError if the option `one`, which names one thing, is too."""
        if "global" in self.line.given and one in self.line.given:
            raise UsageError(f"Invalid options for this command:\n--global : excludes --{one}")
        return "global" in self.line.given

    def password(self, number: int) -> str:
        """Return operand `number`, or the first line of standard input. A terminal is asked without echo.

        Raises: Failure (65) without a password.
        """
        if len(self.operands) > number:
            return self.operands[number]
        if self.stdin is sys.stdin and self.stdin.isatty():
            from getpass import getpass

            text = getpass("Password: ")
        else:
            text = self.stdin.readline().rstrip("\r\n")
        if not text:
            raise Failure(DATA, "Password is not provided via argument or stdin")
        return text


def named_columns(known: Collection[str], operands: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that the user names, each once; `a,b` is `a b`. Raises: UsageError with all unknown ones."""
    asked = dict.fromkeys(name for operand in operands for name in operand.split(",") if name)
    if unknown := sorted(asked.keys() - set(known)):
        raise UsageError(f"Info key(s) {','.join(unknown)} are not supported")
    return tuple(asked)


class Command(NamedTuple):
    """A command. Its usage says how many operands it needs, and which options it has.

    In a usage `<name>` is an operand, `[...]` may be missing, `...` is any number, `--name <value>` is an option.

    Attributes:
        usage_text: the usage text after the command's name; None: the operands of `details`, and --timeout
        details: (operand or option, meaning)
        own_options: long names of the command's own options; None: those in its usage
        columns: columns that a list can show; the first `shown` are the default
        examples: (command line, its effect)
        needs_app: after stop_app the command is refused, as rabbitmqctl refuses it
        has_json_errors: with a JSON formatter errors are JSON, too. rabbit: only those of some commands are
        needs: minimum number of operands; None: as in its usage
        own_name: the command's name, if it is not that of its function
    """

    group: str
    run: Callable[[Context], None]
    summary: str
    usage_text: str | None = None
    details: tuple[tuple[str, str], ...] = ()
    own_options: tuple[str, ...] | None = None
    columns: tuple[str, ...] = ()
    shown: int = 0
    examples: tuple[tuple[str, str], ...] = ()
    needs_app: bool = True
    has_json_errors: bool = False
    needs: int | None = None
    own_name: str = ""

    @property
    def name(self) -> str:
        return self.own_name or self.run.__name__

    @property
    def usage(self) -> str:
        """Return the usage text after the command's name."""
        if self.usage_text is not None:
            return self.usage_text
        return " ".join([*(operand for operand, _ in self.details), "[--timeout <timeout>]"])

    @property
    def options(self) -> tuple[str, ...]:
        """Return the long names of the command's own options."""
        if self.own_options is not None:
            return self.own_options
        return tuple(dict.fromkeys(name for name in _OPTION.findall(self.usage) if name not in GENERAL_NAMES))

    @property
    def least(self) -> int:
        """Return the minimum number of operands."""
        if self.needs is not None:
            return self.needs
        return _BRACKETS.sub("", self._operands()).count("<")

    @property
    def most(self) -> int | None:
        """Return the maximum number of operands; None: any number."""
        operands = self._operands()
        return None if "..." in operands else operands.count("<")

    def _operands(self) -> str:
        """Return the usage without its options and their values."""
        text, before = self.usage, ""
        while text != before:
            text, before = _OPTIONAL.sub("", text), text
        return _VALUE.sub("", text)

    def usage_of(self, program: str) -> str:
        return f"{program} [--node <node>] [--longnames] [--quiet] {self.name} {self.usage}".rstrip()

    def check(self, operands: Sequence[str]) -> None:
        """Check the number of operands. Raises: UsageError."""
        if len(operands) < self.least:
            raise UsageError("not enough arguments.")
        if self.most is not None and len(operands) > self.most:
            raise UsageError("too many arguments.")


def command(
    group: str,
    summary: str,
    usage: str | None = None,
    details: tuple[tuple[str, str], ...] = (),
    *,
    own_options: tuple[str, ...] | None = None,
    columns: tuple[str, ...] = (),
    shown: int = 0,
    examples: tuple[tuple[str, str], ...] = (),
    needs_app: bool = True,
    has_json_errors: bool = False,
    needs: int | None = None,
    own_name: str = "",
) -> Callable[[Callable[[Context], None]], Command]:
    """Return a decorator that makes a function a command. The parameters are the attributes of `Command`."""
    rest = (usage, details, own_options, columns, shown, examples, needs_app, has_json_errors, needs, own_name)
    return lambda run: Command(group, run, summary, *rest)
