"""Policies and operator policies: set, cleared, listed.

Texts and exit codes are rabbitmqctl 3.10's, measured: a missing vhost is 65, but 69 for the commands that clear.
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any, Final, NamedTuple

from amqpd.cli.client import quoted
from amqpd.cli.command import Command, Context
from amqpd.cli.errors import DATA, UNAVAILABLE, Failure, NoSuchVhost, UsageError
from amqpd.cli.formatters import compact

_COLUMNS: Final = ("vhost", "name", "pattern", "apply-to", "definition", "priority")

NO_PARAMETER: Final = Failure(UNAVAILABLE, "Parameter does not exist")
"""rabbit: also where there is no such vhost."""

_PRIORITY: Final = re.compile("-?[0-9]{1,10}")


class _Words(NamedTuple):
    """What sets the commands of one kind of policy apart. setting: what one is called where it is set."""

    path: str
    setting: str
    clearing: str
    listing: str


_USERS: Final = _Words("policies", "policy", "policy", "policies")
_OPERATORS: Final = _Words(
    "operator-policies", "operator policy override", "operator policy", "operator policy overrides"
)


def _set(words: _Words, context: Context) -> None:
    name, pattern, text = context.operands
    given = context.line.given
    priority = given.get("priority", "0")
    if _PRIORITY.fullmatch(priority) is None:
        raise UsageError(f"Invalid options for this command:\n--priority : {priority}")
    context.say(
        f'Setting {words.setting} "{name}" for pattern "{pattern}" to "{text}" with priority "{priority}" '
        f'for vhost "{context.vhost}" ...'
    )
    body = {
        "pattern": pattern,
        "definition": json_of(text),
        "priority": int(priority),
        "apply-to": given.get("apply-to", "all"),
    }
    context.patient()
    context.client.send("PUT", _path(words, context, name), body).checked(NoSuchVhost(context.vhost))
    context.done()


def _clear(words: _Words, context: Context) -> None:
    name = context.operands[0]
    context.say(f'Clearing {words.clearing} "{name}" on vhost "{context.vhost}" ...')
    context.patient()
    context.client.send("DELETE", _path(words, context, name)).checked(NO_PARAMETER)
    context.done()


def _list(words: _Words, context: Context) -> None:
    context.say(f'Listing {words.listing} for vhost "{context.vhost}" ...')
    answer = context.client.send("GET", f"/api/{words.path}/{quoted(context.vhost)}")
    found = answer.checked(NoSuchVhost(context.vhost)).data
    for item in found:
        item["definition"] = compact(item["definition"])
    context.show(_COLUMNS, [[item[column] for column in _COLUMNS] for item in found])


def _path(words: _Words, context: Context, name: str) -> str:
    if not name:
        raise UsageError("Bad argument: the name cannot be an empty string", DATA)
    return f"/api/{words.path}/{quoted(context.vhost)}/{quoted(name)}"


def json_of(text: str) -> Any:
    """Raises: Failure (69) with rabbitmqctl's text."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise Failure(UNAVAILABLE, f"JSON decoding error. Reason: {error}") from None


_NAME: Final = ("<name>", "policy name (identifier)")
_SET_DETAILS: Final = (
    _NAME,
    ("<pattern>", "regular expression (RE2, unanchored) that the names of queues and exchanges must match"),
    ("<definition>", "what holds for them, as JSON; docs/policies.md lists the keys"),
)
_SET_USAGE: Final = "[--vhost <vhost>] [--priority <priority>] [--apply-to <apply-to>] <name> <pattern> <definition>"
_LIST_USAGE: Final = "[--vhost <vhost>] [--no-table-headers] [--timeout <timeout>]"
GROUP: Final = "Policies"

COMMANDS: Final = (
    Command(
        "clear_operator_policy",
        GROUP,
        "Clears an operator policy",
        partial(_clear, _OPERATORS),
        "[--vhost <vhost>] <name>",
        1,
        1,
        (("<name>", "Name of operator policy to clear (remove)"),),
        examples=(("clear_operator_policy cap", "what policies and arguments say holds again"),),
    ),
    Command(
        "clear_policy",
        GROUP,
        "Clears (removes) a policy",
        partial(_clear, _USERS),
        "[--vhost <vhost>] <name>",
        1,
        1,
        (("<name>", "the policy"),),
        examples=(("clear_policy -p shop orders", "exit code 69 if there is none"),),
    ),
    Command(
        "list_operator_policies",
        GROUP,
        "Shows the operator policies of a vhost",
        partial(_list, _OPERATORS),
        _LIST_USAGE,
        options=("no-table-headers",),
        examples=(("list_operator_policies -p shop", "by priority, the lowest first"),),
    ),
    Command(
        "list_policies",
        GROUP,
        "Shows the policies of a vhost",
        partial(_list, _USERS),
        _LIST_USAGE,
        options=("no-table-headers",),
        examples=(("list_policies -p shop --formatter json", "for programs"),),
    ),
    Command(
        "set_operator_policy",
        GROUP,
        "Sets an operator policy, whose limits hold whatever a policy says",
        partial(_set, _OPERATORS),
        _SET_USAGE,
        3,
        3,
        _SET_DETAILS,
        ("priority", "apply-to"),
        examples=(
            ("set_operator_policy cap '.*' '{\"max-length\":100000}'", "no queue holds more, whatever it was declared"),
        ),
    ),
    Command(
        "set_policy",
        GROUP,
        "Makes a policy, or changes it",
        partial(_set, _USERS),
        _SET_USAGE,
        3,
        3,
        _SET_DETAILS,
        ("priority", "apply-to"),
        examples=(
            ('set_policy ttl \'^logs\\.\' \'{"message-ttl":60000}\' --apply-to queues', "a minute, then they go"),
            (
                'set_policy --priority 1 dlx \'^orders$\' \'{"dead-letter-exchange":"dead"}\'',
                "of two that match the higher priority holds",
            ),
        ),
    ),
)
