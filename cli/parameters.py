"""Runtime parameters of components, and global ones: set, cleared, listed. Texts and exit codes as of policies."""

from __future__ import annotations

from typing import Any, Final

from amqpd.cli.client import quoted
from amqpd.cli.command import Command, Context
from amqpd.cli.errors import DATA, UNAVAILABLE, Failure, NoSuchVhost, UsageError
from amqpd.cli.formatters import compact
from amqpd.cli.policies import NO_PARAMETER, json_of

GROUP: Final = "Parameters"


def set_parameter(context: Context) -> None:
    component, name, text = context.operands
    context.say(
        f'Setting runtime parameter "{name}" for component "{component}" to "{text}" in vhost "{context.vhost}" ...'
    )
    answer = context.client.send("PUT", _path(context, component, name), {"value": json_of(text)})
    answer.checked(NoSuchVhost(context.vhost))
    context.done()


def clear_parameter(context: Context) -> None:
    component, name = context.operands
    context.say(f'Clearing runtime parameter "{name}" for component "{component}" on vhost "{context.vhost}" ...')
    if component == "policy":  # rabbit: whether or not there is one
        raise Failure(UNAVAILABLE, "policies may not be cleared using this method")
    context.client.send("DELETE", _path(context, component, name)).checked(NO_PARAMETER)
    context.done()


def list_parameters(context: Context) -> None:
    context.say(f'Listing runtime parameters for vhost "{context.vhost}" ...')
    # Whether the vhost is there.
    context.client.send("GET", f"/api/policies/{quoted(context.vhost)}").checked(NoSuchVhost(context.vhost))
    found = [item for item in context.client.get("/api/parameters") if item["vhost"] == context.vhost]
    _show(context, ("component", "name", "value"), found)


def set_global_parameter(context: Context) -> None:
    name, text = context.operands
    context.say(f'Setting global runtime parameter "{name}" to "{text}" ...')
    context.client.send("PUT", _global(name), {"value": json_of(text)}).checked()
    context.done()


def clear_global_parameter(context: Context) -> None:
    name = context.operands[0]
    context.say(f'Clearing global runtime parameter "{name}" ...')
    context.client.send("DELETE", _global(name)).checked(NO_PARAMETER)
    context.done()


def list_global_parameters(context: Context) -> None:
    context.say("Listing global runtime parameters ...")
    _show(context, ("name", "value"), context.client.get("/api/global-parameters"))


def _path(context: Context, component: str, name: str) -> str:
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
_NAME: Final = ("<name>", "parameter name (identifier)")
_VALUE: Final = ("<value>", "the value, as JSON")
_TABLE: Final = ("no-table-headers",)

COMMANDS: Final = (
    Command(
        "clear_global_parameter",
        GROUP,
        "Removes a global parameter",
        clear_global_parameter,
        "<name>",
        1,
        1,
        (_NAME,),
        examples=(("clear_global_parameter team", "exit code 69 if there is none"),),
    ),
    Command(
        "clear_parameter",
        GROUP,
        "Clears a runtime parameter",
        clear_parameter,
        "[--vhost <vhost>] <component_name> <name>",
        2,
        2,
        (_COMPONENT, _NAME),
        examples=(("clear_parameter operator_policy cap", "as clear_operator_policy cap"),),
    ),
    Command(
        "list_global_parameters",
        GROUP,
        "Lists global runtime parameters",
        list_global_parameters,
        "[--no-table-headers] [--timeout <timeout>]",
        options=_TABLE,
        examples=(("list_global_parameters --formatter json", "the values are JSON texts"),),
    ),
    Command(
        "list_parameters",
        GROUP,
        "Shows the parameters of a vhost",
        list_parameters,
        "[--vhost <vhost>] [--no-table-headers] [--timeout <timeout>]",
        options=_TABLE,
        examples=(("list_parameters -p shop", "operator policies are among them"),),
    ),
    Command(
        "set_global_parameter",
        GROUP,
        "Sets a parameter of the whole broker",
        set_global_parameter,
        "<name> <value>",
        2,
        2,
        (_NAME, _VALUE),
        examples=(("set_global_parameter cluster_name '\"shop\"'", "what clients are told in server-properties"),),
    ),
    Command(
        "set_parameter",
        GROUP,
        "Sets a runtime parameter",
        set_parameter,
        "[--vhost <vhost>] <component_name> <name> <value>",
        3,
        3,
        (_COMPONENT, _NAME, _VALUE),
        examples=(
            (
                'set_parameter operator_policy cap \'{"pattern":".*","definition":{"max-length":9},"priority":0}\'',
                "as set_operator_policy cap '.*' '{\"max-length\":9}'",
            ),
        ),
    ),
)
