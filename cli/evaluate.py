"""`eval`: five expressions that clients' own test suites send to RabbitMQ, and no others.

There is no Erlang here, and nothing is evaluated: an expression is compared with those below, as it stands, white
space included, and each is a call of the admin API, for administrators. What it answers is printed as Erlang has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from amqpd.cli.client import Answer
from amqpd.cli.command import Command, Context
from amqpd.cli.errors import DATA, UNAVAILABLE, Failure, UsageError
from amqpd.cli.formatters import compact

_BINARY: Final = '<<"([^"\\\\\\x00-\\x1f]*)">>'
_BINARIES: Final = f"\\[((?:{_BINARY}(?:, ?{_BINARY})*)?)\\]"


def _alarm(method: str, context: Context, found: re.Match[str]) -> None:
    _send(context, method, f"alarms/{found[1]}")
    _ok(context)


def _set_channel_max(context: Context, found: re.Match[str]) -> None:
    _send(context, "PUT", "channel_max", {"value": int(found[1])})
    _ok(context)


def _set_loopback_users(context: Context, found: re.Match[str]) -> None:
    _send(context, "PUT", "loopback_users", {"value": re.findall(_BINARY, found[1])})
    _ok(context)


def _get_loopback_users(context: Context, _found: re.Match[str]) -> None:
    users = _send(context, "GET", "loopback_users").data["value"]
    if context.line.formatter == "json":
        context.out.write(compact({"node": context.node, "result": "ok", "value": users}) + "\n")
    else:
        context.out.write("[" + ",".join(f'<<"{user}">>' for user in users) + "]\n")


def _send(context: Context, method: str, path: str, body: object = None) -> Answer:
    return context.client.send(method, f"/api/amqpd/{path}", body).checked()


def _ok(context: Context) -> None:
    if context.line.formatter == "json":
        context.done()
    else:
        context.out.write("ok\n")


KNOWN: Final[tuple[tuple[str, str, Callable[[Context, re.Match[str]], Any]], ...]] = (
    (
        "rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []}).",
        r"rabbit_alarm:set_alarm\(\{\{resource_limit, (memory|disk), node\(\)\}, \[\]\}\)\.",
        partial(_alarm, "PUT"),
    ),
    (
        "rabbit_alarm:clear_alarm({resource_limit, memory, node()}).",
        r"rabbit_alarm:clear_alarm\(\{resource_limit, (memory|disk), node\(\)\}\)\.",
        partial(_alarm, "DELETE"),
    ),
    (
        "application:set_env(rabbit, channel_max, 2047).",
        r"application:set_env\(rabbit, channel_max, ([0-9]{1,9})\)\.",
        _set_channel_max,
    ),
    (
        'application:set_env(rabbit, loopback_users, [<<"guest">>]).',
        rf"application:set_env\(rabbit, loopback_users, {_BINARIES}\)\.",
        _set_loopback_users,
    ),
    (
        "{ok, V} = application:get_env(rabbit, loopback_users), V.",
        r"\{ok, V\} = application:get_env\(rabbit, loopback_users\), V\.",
        _get_loopback_users,
    ),
)
"""An example of each, what it has to look like, and what is done."""


def evaluate(context: Context) -> None:
    if context.operands:
        text = context.operands[0]
    else:
        text = "" if context.stdin.isatty() else context.stdin.read().rstrip("\r\n")
    if not context.operands and not text:
        raise Failure(DATA, "Expression to evaluate is not provided via argument or stdin")
    if not text.strip():
        raise UsageError('"Expression must not be blank"')
    _do(context, text)


def evaluate_file(context: Context) -> None:
    import os

    path = context.operands[0]
    if not os.path.exists(path):  # noqa: PTH110 - pathlib is 3 ms of start-up
        raise UsageError(f'"File {path} does not exist"')
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - likewise
            text = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(DATA, f"{path} cannot be read: {error}") from None
    _do(context, text)


def _do(context: Context, text: str) -> None:
    for _, pattern, call in KNOWN:
        found = re.fullmatch(pattern, text)
        if found is not None:
            call(context, found)
            return
    known = "".join(f"\n  {example}" for example, _, _ in KNOWN)
    raise Failure(UNAVAILABLE, f"amqpctl evaluates no Erlang. It knows these expressions, as they stand:{known}")


COMMANDS: Final = (
    Command(
        "eval",
        "Operations",
        "Does what five expressions of clients' test suites ask of RabbitMQ; evaluates nothing else",
        evaluate,
        "<expression>",
        0,
        1,
        (
            ("<expression>", "one of these, read from standard input when missing:"),
            *((example, "or disk" if "memory" in example else "until the next start") for example, _, _ in KNOWN),
        ),
        examples=(
            ("eval 'rabbit_alarm:set_alarm({{resource_limit, disk, node()}, []}).'", "as set_alarm disk"),
            ("eval 'application:set_env(rabbit, loopback_users, []).'", "guest may connect from other machines"),
        ),
    ),
    Command(
        "eval_file",
        "Operations",
        "Does what eval does, with the expression in a file",
        evaluate_file,
        "<file>",
        1,
        1,
        (("<file>", "file with one of the expressions of eval"),),
        examples=(("eval_file alarm.erl", "as eval with what is in it"),),
    ),
)
