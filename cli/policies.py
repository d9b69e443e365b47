"""Policies, operator policies, runtime parameters and global parameters: set, clear, list.

Texts and exit codes are rabbitmqctl 3.10's, measured: a missing vhost is 65, but 69 for the commands that clear.

Policies that ask for mirrors of classic queues (`ha-mode` and others) have no effect in amqpd, and RabbitMQ 4
refuses them. Commands of 3.13 find these policies and remove the keys, before a definitions file is imported into
RabbitMQ 4.
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any, Final, NamedTuple

from amqpd.cli.client import quoted
from amqpd.cli.command import MONITORING, Command, Context, command
from amqpd.cli.errors import DATA, UNAVAILABLE, Failure, UsageError, VhostNotFound
from amqpd.cli.formatters import compact, json_cell

_COLUMNS: Final = ("vhost", "name", "pattern", "apply-to", "definition", "priority")

NO_PARAMETER: Final = Failure(UNAVAILABLE, "Parameter does not exist")
"""rabbit: also if the vhost does not exist."""

_PRIORITY: Final = re.compile("-?[0-9]{1,10}")


class _Words(NamedTuple):
    """Path and words of one kind of policy. `setting`: its name in the text of the set command."""

    path: str
    setting: str
    clearing: str
    listing: str


_USERS: Final = _Words("policies", "policy", "policy", "policies")
_OPERATORS: Final = _Words(
    "operator-policies", "operator policy override", "operator policy", "operator policy overrides"
)


_NAME: Final = ("<name>", "policy name (identifier)")
_SET_DETAILS: Final = (
    _NAME,
    ("<pattern>", "regular expression (RE2, unanchored) that the names of queues and exchanges must match"),
    ("<definition>", "the policy's keys and values, as JSON; docs/policies.md lists the keys"),
)
_SET_USAGE: Final = "[--vhost <vhost>] [--priority <priority>] [--apply-to <apply-to>] <name> <pattern> <definition>"
_LIST_USAGE: Final = "[--vhost <vhost>] [--no-table-headers] [--timeout <timeout>]"
_command = partial(command, "Policies")


@_command(
    "Sets an operator policy. Its limits apply in addition to other policies",
    _SET_USAGE,
    _SET_DETAILS,
    examples=(("set_operator_policy cap '.*' '{\"max-length\":100000}'", "no queue can have more messages"),),
)
def set_operator_policy(context: Context) -> None:
    _set(_OPERATORS, context)


@_command(
    "Creates or changes a policy",
    _SET_USAGE,
    _SET_DETAILS,
    examples=(
        ("set_policy ttl '^logs\\.' '{\"message-ttl\":60000}' --apply-to queues", "messages expire after a minute"),
        (
            "set_policy --priority 1 dlx '^orders$' '{\"dead-letter-exchange\":\"dead\"}'",
            "the matching policy with the higher priority applies",
        ),
    ),
)
def set_policy(context: Context) -> None:
    _set(_USERS, context)


def _set(words: _Words, context: Context) -> None:
    name, pattern, text = context.operands
    given = context.line.given
    priority = given.get("priority", "0")
    if _PRIORITY.fullmatch(priority) is None:
        raise UsageError(f"Invalid options for this command:\n--priority : {priority}")
    context.info(
        f'Setting {words.setting} "{name}" for pattern "{pattern}" to "{text}" with priority "{priority}" '
        f'for vhost "{context.vhost}" ...'
    )
    body = {
        "pattern": pattern,
        "definition": json_of(text),
        "priority": int(priority),
        "apply-to": given.get("apply-to", "all"),
    }
    context.no_timeout()
    context.change("PUT", _path(words, context, name), body, missing=VhostNotFound(context.vhost))


@_command(
    "Removes an operator policy",
    "[--vhost <vhost>] <name>",
    (("<name>", "the operator policy"),),
    examples=(("clear_operator_policy cap", "queues follow their policies and arguments again"),),
)
def clear_operator_policy(context: Context) -> None:
    _clear(_OPERATORS, context)


@_command(
    "Removes a policy",
    "[--vhost <vhost>] <name>",
    (("<name>", "the policy"),),
    examples=(("clear_policy -p shop orders", "exit code 69 if there is none"),),
)
def clear_policy(context: Context) -> None:
    _clear(_USERS, context)


def _clear(words: _Words, context: Context) -> None:
    name = context.operands[0]
    context.info(f'Clearing {words.clearing} "{name}" on vhost "{context.vhost}" ...')
    context.no_timeout()
    context.change("DELETE", _path(words, context, name), missing=NO_PARAMETER)


@_command(
    "Shows the operator policies of a vhost",
    _LIST_USAGE,
    examples=(("list_operator_policies -p shop", "by priority, the lowest first"),),
)
def list_operator_policies(context: Context) -> None:
    _list(_OPERATORS, context)


@_command(
    "Shows the policies of a vhost",
    _LIST_USAGE,
    examples=(("list_policies -p shop --formatter json", "for programs"),),
)
def list_policies(context: Context) -> None:
    _list(_USERS, context)


def _list(words: _Words, context: Context) -> None:
    context.info(f'Listing {words.listing} for vhost "{context.vhost}" ...')
    answer = context.client.send("GET", f"/api/{words.path}/{quoted(context.vhost)}")
    found = answer.checked(VhostNotFound(context.vhost)).data
    context.show(_COLUMNS, [[json_cell(item[column]) for column in _COLUMNS] for item in found])


def _path(words: _Words, context: Context, name: str) -> str:
    if not name:
        raise UsageError("Bad argument: the name cannot be an empty string", DATA)
    return f"/api/{words.path}/{quoted(context.vhost)}/{quoted(name)}"


def json_of(text: str) -> Any:
    """Parse JSON. Raises: Failure (69) with rabbitmqctl's text."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise Failure(UNAVAILABLE, f"JSON decoding error. Reason: {error}") from None


KINDS: Final = {"policies": "Policy", "operator-policies": "Operator policy"}


def mirroring(context: Context, kind: str) -> list[dict[str, Any]]:
    """Return the policies of all vhosts that ask for mirrors. `kind` is a key of KINDS."""
    found: list[dict[str, Any]] = context.client.get(f"/api/{kind}")
    return [each for each in found if any(key.startswith("ha-") for key in each["definition"])]


_COMPONENT: Final = ("<component_name>", "component name: operator_policy or vhost-limits")
_PARAMETER: Final = ("<name>", "parameter name (identifier)")
_VALUE: Final = ("<value>", "the value, as JSON")
_parameter_command = partial(command, "Parameters")


@command(
    MONITORING,
    "Fails if a policy asks for mirrors of classic queues",
    own_name="check_if_cluster_has_classic_queue_mirroring_policy",
    examples=(("check_if_cluster_has_classic_queue_mirroring_policy", "exit code 69 and names, if there are any"),),
)
def check(context: Context) -> None:
    context.info("Checking if cluster has any classic queue mirroring policy ...")
    found = {kind: mirroring(context, kind) for kind in KINDS}
    if not any(found.values()):
        context.answer({"result": "ok"}, "Cluster reported no policies enabling classic queue mirroring")
        return
    if context.line.formatter == "json":
        answer = {
            "result": "error",
            "policies": found["policies"],
            "operator_policies": found["operator-policies"],
            "message": "Cluster reported policies enabling classic queue mirroring",
        }
        context.out.write(compact(answer) + "\n")
    lines = [
        f"{title} {each['name']} enables classic queue mirroring"
        for kind, title in KINDS.items()
        for each in found[kind]
    ]
    raise Failure(UNAVAILABLE, "\n".join(lines))


def _mirroring_command(kind: str) -> Command:
    """Return the command that lists the policies of `mirroring`."""
    title = kind.replace("-", " ")
    name = f"list_{kind.replace('-', '_')}_with_classic_queue_mirroring"

    @command(
        MONITORING,
        f"Lists {title} that ask for mirrors of classic queues; amqpd makes none",
        "[--no-table-headers] [--timeout <timeout>]",
        own_name=name,
        examples=((name, "policies of all virtual hosts"),),
    )
    def run(context: Context) -> None:
        context.info(f"Listing {title} with classic queue mirroring ...")
        context.show(_COLUMNS, [[json_cell(each[name]) for name in _COLUMNS] for each in mirroring(context, kind)])

    return run


COMMANDS: Final = tuple(map(_mirroring_command, KINDS))


@command(
    "Policies",
    "Removes ha-mode and similar keys from all policies, and policies without other keys",
    own_name="remove_classic_queue_mirroring_from_policies",
    examples=(("remove_classic_queue_mirroring_from_policies", "before an upgrade to RabbitMQ 4"),),
)
def remove(context: Context) -> None:
    """Remove the keys, and policies that have no other keys."""
    context.info("Removing classic queue mirroring from policies ...")
    for kind, title in KINDS.items():
        for each in mirroring(context, kind):
            path = f"/api/{kind}/{quoted(each['vhost'])}/{quoted(each['name'])}"
            left = {key: value for key, value in each["definition"].items() if not key.startswith("ha-")}
            if left:
                body = {key: each[key] for key in ("pattern", "apply-to", "priority")} | {"definition": left}
                context.client.send("PUT", path, body).checked()
            else:
                context.client.send("DELETE", path).checked()
            context.info(f"{title} {each['name']} of vhost '{each['vhost']}' {'changed' if left else 'removed'}")
    context.success()


@_parameter_command(
    "Sets a runtime parameter",
    "[--vhost <vhost>] <component_name> <name> <value>",
    (_COMPONENT, _PARAMETER, _VALUE),
    examples=(
        (
            'set_parameter operator_policy cap \'{"pattern":".*","definition":{"max-length":9},"priority":0}\'',
            "as set_operator_policy cap '.*' '{\"max-length\":9}'",
        ),
    ),
)
def set_parameter(context: Context) -> None:
    component, name, text = context.operands
    context.info(
        f'Setting runtime parameter "{name}" for component "{component}" to "{text}" in vhost "{context.vhost}" ...'
    )
    path = _parameter_path(context, component, name)
    context.change("PUT", path, {"value": json_of(text)}, VhostNotFound(context.vhost))


@_parameter_command(
    "Removes a runtime parameter",
    "[--vhost <vhost>] <component_name> <name>",
    (_COMPONENT, _PARAMETER),
    examples=(("clear_parameter operator_policy cap", "as clear_operator_policy cap"),),
)
def clear_parameter(context: Context) -> None:
    component, name = context.operands
    context.info(f'Clearing runtime parameter "{name}" for component "{component}" on vhost "{context.vhost}" ...')
    if component == "policy":  # rabbit: also if it does not exist
        raise Failure(UNAVAILABLE, "policies may not be cleared using this method")
    context.change("DELETE", _parameter_path(context, component, name), missing=NO_PARAMETER)


@_parameter_command(
    "Shows the parameters of a vhost",
    "[--vhost <vhost>] [--no-table-headers] [--timeout <timeout>]",
    examples=(("list_parameters -p shop", "the list includes operator policies"),),
)
def list_parameters(context: Context) -> None:
    context.info(f'Listing runtime parameters for vhost "{context.vhost}" ...')
    # Only to check that the vhost exists.
    context.client.send("GET", f"/api/policies/{quoted(context.vhost)}").checked(VhostNotFound(context.vhost))
    found = [item for item in context.client.get("/api/parameters") if item["vhost"] == context.vhost]
    _show(context, ("component", "name", "value"), found)


@_parameter_command(
    "Sets a parameter of the whole broker",
    "<name> <value>",
    (_PARAMETER, _VALUE),
    examples=(("set_global_parameter cluster_name '\"shop\"'", "the name in server-properties"),),
)
def set_global_parameter(context: Context) -> None:
    name, text = context.operands
    context.info(f'Setting global runtime parameter "{name}" to "{text}" ...')
    context.change("PUT", _global(name), {"value": json_of(text)})


@_parameter_command(
    "Removes a global parameter",
    "<name>",
    (_PARAMETER,),
    examples=(("clear_global_parameter team", "exit code 69 if there is none"),),
)
def clear_global_parameter(context: Context) -> None:
    name = context.operands[0]
    context.info(f'Clearing global runtime parameter "{name}" ...')
    context.change("DELETE", _global(name), missing=NO_PARAMETER)


@_parameter_command(
    "Lists global runtime parameters",
    "[--no-table-headers] [--timeout <timeout>]",
    examples=(("list_global_parameters --formatter json", "values are JSON texts"),),
)
def list_global_parameters(context: Context) -> None:
    context.info("Listing global runtime parameters ...")
    _show(context, ("name", "value"), context.client.get("/api/global-parameters"))


def _parameter_path(context: Context, component: str, name: str) -> str:
    return f"/api/parameters/{_named(component)}/{quoted(context.vhost)}/{_named(name)}"


def _global(name: str) -> str:
    return f"/api/global-parameters/{_named(name)}"


def _named(name: str) -> str:
    if not name:
        raise UsageError("Bad argument: a name cannot be an empty string", DATA)
    return quoted(name)


def _show(context: Context, columns: tuple[str, ...], items: list[dict[str, Any]]) -> None:
    rows = [[compact(item[column]) if column == "value" else item[column] for column in columns] for item in items]
    context.show(columns, rows)
