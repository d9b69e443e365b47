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
from amqpd.cli.command import Command, Context
from amqpd.cli.errors import DATA, UNAVAILABLE, Failure, UsageError, VhostNotFound
from amqpd.cli.formatters import compact

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
    context.client.send("PUT", _path(words, context, name), body).checked(VhostNotFound(context.vhost))
    context.success()


def _clear(words: _Words, context: Context) -> None:
    name = context.operands[0]
    context.info(f'Clearing {words.clearing} "{name}" on vhost "{context.vhost}" ...')
    context.no_timeout()
    context.client.send("DELETE", _path(words, context, name)).checked(NO_PARAMETER)
    context.success()


def _list(words: _Words, context: Context) -> None:
    context.info(f'Listing {words.listing} for vhost "{context.vhost}" ...')
    answer = context.client.send("GET", f"/api/{words.path}/{quoted(context.vhost)}")
    found = answer.checked(VhostNotFound(context.vhost)).data
    for item in found:
        item["definition"] = compact(item["definition"])
    context.show(_COLUMNS, [[item[column] for column in _COLUMNS] for item in found])


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


_NAME: Final = ("<name>", "policy name (identifier)")
_SET_DETAILS: Final = (
    _NAME,
    ("<pattern>", "regular expression (RE2, unanchored) that the names of queues and exchanges must match"),
    ("<definition>", "the policy's keys and values, as JSON; docs/policies.md lists the keys"),
)
_SET_USAGE: Final = "[--vhost <vhost>] [--priority <priority>] [--apply-to <apply-to>] <name> <pattern> <definition>"
_LIST_USAGE: Final = "[--vhost <vhost>] [--no-table-headers] [--timeout <timeout>]"
GROUP: Final = "Policies"

COMMANDS: Final = (
    Command(
        "clear_operator_policy",
        GROUP,
        "Removes an operator policy",
        partial(_clear, _OPERATORS),
        "[--vhost <vhost>] <name>",
        1,
        1,
        (("<name>", "the operator policy"),),
        examples=(("clear_operator_policy cap", "queues follow their policies and arguments again"),),
    ),
    Command(
        "clear_policy",
        GROUP,
        "Removes a policy",
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
        "Sets an operator policy. Its limits apply in addition to other policies",
        partial(_set, _OPERATORS),
        _SET_USAGE,
        3,
        3,
        _SET_DETAILS,
        ("priority", "apply-to"),
        examples=(("set_operator_policy cap '.*' '{\"max-length\":100000}'", "no queue can have more messages"),),
    ),
    Command(
        "set_policy",
        GROUP,
        "Creates or changes a policy",
        partial(_set, _USERS),
        _SET_USAGE,
        3,
        3,
        _SET_DETAILS,
        ("priority", "apply-to"),
        examples=(
            ("set_policy ttl '^logs\\.' '{\"message-ttl\":60000}' --apply-to queues", "messages expire after a minute"),
            (
                "set_policy --priority 1 dlx '^orders$' '{\"dead-letter-exchange\":\"dead\"}'",
                "the matching policy with the higher priority applies",
            ),
        ),
    ),
)


MONITORING: Final = "Monitoring, observability and health checks"
COLUMNS: Final = ("vhost", "name", "pattern", "apply-to", "definition", "priority")
KINDS: Final = {"policies": "Policy", "operator-policies": "Operator policy"}


def mirroring(context: Context, kind: str) -> list[dict[str, Any]]:
    """Return the policies of all vhosts that ask for mirrors. `kind` is a key of KINDS."""
    found: list[dict[str, Any]] = context.client.get(f"/api/{kind}")
    return [each for each in found if any(key.startswith("ha-") for key in each["definition"])]


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


def show(kind: str, context: Context) -> None:
    context.info(f"Listing {kind.replace('-', ' ')} with classic queue mirroring ...")
    rows = [
        [compact(each[name]) if name == "definition" else each[name] for name in COLUMNS]
        for each in mirroring(context, kind)
    ]
    context.show(COLUMNS, rows)


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


def _listing(kind: str) -> Command:
    name = f"list_{kind.replace('-', '_')}_with_classic_queue_mirroring"
    return Command(
        name,
        MONITORING,
        f"Lists {kind.replace('-', ' ')} that ask for mirrors of classic queues; amqpd makes none",
        partial(show, kind),
        "[--no-table-headers] [--timeout <timeout>]",
        options=("no-table-headers",),
        examples=((name, "policies of all virtual hosts"),),
    )


MIRROR_COMMANDS: Final = (
    Command(
        "check_if_cluster_has_classic_queue_mirroring_policy",
        MONITORING,
        "Fails if a policy asks for mirrors of classic queues",
        check,
        "[--timeout <timeout>]",
        examples=(("check_if_cluster_has_classic_queue_mirroring_policy", "exit code 69 and names, if there are any"),),
    ),
    *(_listing(kind) for kind in KINDS),
    Command(
        "remove_classic_queue_mirroring_from_policies",
        "Policies",
        "Removes ha-mode and similar keys from all policies, and policies without other keys",
        remove,
        "[--timeout <timeout>]",
        examples=(("remove_classic_queue_mirroring_from_policies", "before an upgrade to RabbitMQ 4"),),
    ),
)


PARAMETER_GROUP: Final = "Parameters"


def set_parameter(context: Context) -> None:
    component, name, text = context.operands
    context.info(
        f'Setting runtime parameter "{name}" for component "{component}" to "{text}" in vhost "{context.vhost}" ...'
    )
    answer = context.client.send("PUT", _parameter_path(context, component, name), {"value": json_of(text)})
    answer.checked(VhostNotFound(context.vhost))
    context.success()


def clear_parameter(context: Context) -> None:
    component, name = context.operands
    context.info(f'Clearing runtime parameter "{name}" for component "{component}" on vhost "{context.vhost}" ...')
    if component == "policy":  # rabbit: also if it does not exist
        raise Failure(UNAVAILABLE, "policies may not be cleared using this method")
    context.client.send("DELETE", _parameter_path(context, component, name)).checked(NO_PARAMETER)
    context.success()


def list_parameters(context: Context) -> None:
    context.info(f'Listing runtime parameters for vhost "{context.vhost}" ...')
    # Only to check that the vhost exists.
    context.client.send("GET", f"/api/policies/{quoted(context.vhost)}").checked(VhostNotFound(context.vhost))
    found = [item for item in context.client.get("/api/parameters") if item["vhost"] == context.vhost]
    _show(context, ("component", "name", "value"), found)


def set_global_parameter(context: Context) -> None:
    name, text = context.operands
    context.info(f'Setting global runtime parameter "{name}" to "{text}" ...')
    context.client.send("PUT", _global(name), {"value": json_of(text)}).checked()
    context.success()


def clear_global_parameter(context: Context) -> None:
    name = context.operands[0]
    context.info(f'Clearing global runtime parameter "{name}" ...')
    context.client.send("DELETE", _global(name)).checked(NO_PARAMETER)
    context.success()


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


_COMPONENT: Final = ("<component_name>", "component name: operator_policy or vhost-limits")
_PARAMETER: Final = ("<name>", "parameter name (identifier)")
_VALUE: Final = ("<value>", "the value, as JSON")
_TABLE: Final = ("no-table-headers",)

PARAMETER_COMMANDS: Final = (
    Command(
        "clear_global_parameter",
        PARAMETER_GROUP,
        "Removes a global parameter",
        clear_global_parameter,
        "<name>",
        1,
        1,
        (_PARAMETER,),
        examples=(("clear_global_parameter team", "exit code 69 if there is none"),),
    ),
    Command(
        "clear_parameter",
        PARAMETER_GROUP,
        "Removes a runtime parameter",
        clear_parameter,
        "[--vhost <vhost>] <component_name> <name>",
        2,
        2,
        (_COMPONENT, _PARAMETER),
        examples=(("clear_parameter operator_policy cap", "as clear_operator_policy cap"),),
    ),
    Command(
        "list_global_parameters",
        PARAMETER_GROUP,
        "Lists global runtime parameters",
        list_global_parameters,
        "[--no-table-headers] [--timeout <timeout>]",
        options=_TABLE,
        examples=(("list_global_parameters --formatter json", "values are JSON texts"),),
    ),
    Command(
        "list_parameters",
        PARAMETER_GROUP,
        "Shows the parameters of a vhost",
        list_parameters,
        "[--vhost <vhost>] [--no-table-headers] [--timeout <timeout>]",
        options=_TABLE,
        examples=(("list_parameters -p shop", "the list includes operator policies"),),
    ),
    Command(
        "set_global_parameter",
        PARAMETER_GROUP,
        "Sets a parameter of the whole broker",
        set_global_parameter,
        "<name> <value>",
        2,
        2,
        (_PARAMETER, _VALUE),
        examples=(("set_global_parameter cluster_name '\"shop\"'", "the name in server-properties"),),
    ),
    Command(
        "set_parameter",
        PARAMETER_GROUP,
        "Sets a runtime parameter",
        set_parameter,
        "[--vhost <vhost>] <component_name> <name> <value>",
        3,
        3,
        (_COMPONENT, _PARAMETER, _VALUE),
        examples=(
            (
                'set_parameter operator_policy cap \'{"pattern":".*","definition":{"max-length":9},"priority":0}\'',
                "as set_operator_policy cap '.*' '{\"max-length\":9}'",
            ),
        ),
    ),
)
