"""Vhost properties, limits of vhosts and users, and the cluster's name.

Texts and exit codes are rabbitmqctl 3.10's, measured; commands that came later have those of later versions. For
limits, a missing vhost is 65, but 69 if limits are cleared; a missing user is 69. Setting the limits of a vhost
replaces all of them; setting limits of a user keeps the others.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from amqpd.cli.client import quoted
from amqpd.cli.command import CONFIGURATION, Context, command
from amqpd.cli.errors import UNAVAILABLE, UsageError, VhostNotFound
from amqpd.cli.formatters import compact
from amqpd.cli.policies import NO_PARAMETER, json_of
from amqpd.cli.users import VHOST_KEYS, named, no_user

_VHOST: Final = ("<vhost>", "the vhost")
_USER: Final = ("<username>", "name of the user")
_command = partial(command, "Virtual hosts")
_user_command = partial(command, "Users")


@_command(
    "Updates metadata (tags, description, default queue type) of a virtual host",
    "<vhost> [--description <description> --tags <tag1>,<tag2> --default-queue-type <quorum|classic|stream>]",
    (_VHOST,),
    examples=(
        ("update_vhost_metadata shop --description 'web shop' --tags web,eu", "other properties do not change"),
        ("update_vhost_metadata shop --default-queue-type quorum", "for queues that are declared from now on"),
    ),
)
def update_vhost_metadata(context: Context) -> None:
    name = named(context, "vhost")
    given = context.line.given
    body: dict[str, object] = {key: given[option] for option, key in VHOST_KEYS.items() if option in given}
    if not body:
        raise UsageError("at least one of --description, --tags, --default-queue-type is needed")
    context.info(f'Updating metadata of vhost "{name}" ...')
    _change(context, name, body)


@_command(
    "Sets virtual host tags",
    "<vhost> <tag> [...]",
    (_VHOST, ("<tag>", "any words; none removes all tags")),
    examples=(("set_vhost_tags shop web eu", "replaces its tags"),),
    needs=1,
)
def set_vhost_tags(context: Context) -> None:
    name = named(context, "vhost")
    tags = context.operands[1:]
    context.info(f'Setting tags for virtual host "{name}" to [{", ".join(tags)}] ...')
    _change(context, name, {"tags": list(tags)})


@_command(
    "Protects a virtual host from deletion",
    "<vhost>",
    (_VHOST,),
    examples=(("enable_vhost_deletion_protection shop", "delete_vhost shop ends with exit code 69"),),
)
def enable_vhost_deletion_protection(context: Context) -> None:
    name = named(context, "vhost")
    context.info(f'Protecting virtual host "{name}" from removal ...')
    _guard(context, "POST", name)


@_command(
    "Removes the protection of a virtual host from deletion",
    "<vhost>",
    (_VHOST,),
    examples=(("disable_vhost_deletion_protection shop", "then: amqpctl delete_vhost shop"),),
)
def disable_vhost_deletion_protection(context: Context) -> None:
    name = named(context, "vhost")
    context.info(f'Removing protection from removal of virtual host "{name}" ...')
    _guard(context, "DELETE", name)


@command(
    CONFIGURATION,
    "Sets the cluster name",
    "<name>",
    (("<name>", "the name in server-properties, for new connections"),),
    examples=(("set_cluster_name shop", "same as set_global_parameter cluster_name '\"shop\"'"),),
)
def set_cluster_name(context: Context) -> None:
    name = context.operands[0]
    context.info(f"Setting cluster name to {name} ...")
    context.change("PUT", "/api/cluster-name", {"name": name})


def _change(context: Context, name: str, body: dict[str, object]) -> None:
    """Change a vhost. Raises: VhostNotFound instead of creating it."""
    answer = context.client.send("PUT", f"/api/vhosts/{quoted(name)}", body, {"If-Match": "*"})
    if answer.status == 412:
        raise VhostNotFound(name)
    answer.checked()
    context.success()


def _guard(context: Context, method: str, name: str) -> None:
    context.change(method, f"/api/vhosts/{quoted(name)}/deletion/protection", missing=VhostNotFound(name))


DEFAULT_USER: Final = "guest"


@_command(
    "Sets virtual host limits",
    "[--vhost <vhost>] <definition>",
    (("<definition>", "a JSON object: max-connections, max-queues; -1: no limit, 0: none allowed"),),
    examples=(
        ('set_vhost_limits -p shop \'{"max-connections": 100, "max-queues": 1000}\'', "for new ones"),
        ("set_vhost_limits -p shop '{\"max-connections\": 0}'", "refuse new connections; open ones stay"),
    ),
)
def set_vhost_limits(context: Context) -> None:
    text = context.operands[0]
    context.info(f'Setting vhost limits to "{text}" for vhost "{context.vhost}" ...')
    context.change("PUT", _parameter(context), {"value": json_of(text)}, missing=VhostNotFound(context.vhost))


@_command(
    "Clears virtual host limits",
    "[--vhost <vhost>]",
    examples=(("clear_vhost_limits -p shop", "exit code 69 if there are none"),),
)
def clear_vhost_limits(context: Context) -> None:
    context.info(f'Clearing vhost "{context.vhost}" limits ...')
    context.change("DELETE", _parameter(context), missing=NO_PARAMETER)


@_command(
    "Shows the limits of vhosts",
    "[--vhost <vhost>] [--global] [--no-table-headers]",
    examples=(
        ("list_vhost_limits -p shop", "JSON"),
        ("list_vhost_limits --global", "one row for each vhost with limits"),
    ),
)
def list_vhost_limits(context: Context) -> None:
    if context.all_vhosts("vhost"):
        context.info("Listing limits for all vhosts ...")
        _show_all(context, "vhost", context.client.get("/api/vhost-limits"))
        return
    context.info(f'Listing limits for vhost "{context.vhost}" ...')
    answer = context.client.send("GET", f"/api/vhost-limits/{quoted(context.vhost)}")
    found = answer.checked(VhostNotFound(context.vhost)).data
    text = compact(found[0]["value"]) if found and found[0]["value"] else ""
    if context.line.formatter == "json":  # rabbit: the JSON as a text value
        context.out.write(compact({"node": context.node, "result": "ok", "value": text}) + "\n")
    else:
        context.out.write(text + "\n")


@_user_command(
    "Sets user limits",
    "<username> <definition>",
    (
        _USER,
        (
            "<definition>",
            "a JSON object: max-connections, max-channels, producer_byte_rate, consumer_byte_rate; -1: no limit",
        ),
    ),
    examples=(("set_user_limits alice '{\"max-connections\": 10}'", "other limits do not change"),),
)
def set_user_limits(context: Context) -> None:
    user, text = context.operands
    context.info(f'Setting user limits to "{text}" for user "{user}" ...')
    context.change("PUT", _user("amqpd/", user), {"value": json_of(text)}, missing=no_user(user, UNAVAILABLE))


@_user_command(
    "Removes limits of a user",
    "<username> <limit_type> | all",
    (_USER, ("<limit_type>", "max-connections, max-channels, producer_byte_rate, consumer_byte_rate or all")),
    examples=(("clear_user_limits alice max-channels", "exit code 0, also if it was not set"),),
)
def clear_user_limits(context: Context) -> None:
    user, name = context.operands
    if name == "all":
        context.info(f'Clearing all limits for user "{user}" ...')
        path = _user("amqpd/", user)
    else:
        context.info(f'Clearing "{name}" limit for user "{user}" ...')
        path = f"{_user('', user)}/{quoted(name)}"
    context.change("DELETE", path, missing=no_user(user, UNAVAILABLE))


@_user_command(
    "Shows the limits of users",
    "[--user <username>] [--global]",
    (("--no-table-headers", "with --global"),),
    own_options=("user", "global", "no-table-headers"),
    examples=(
        ("list_user_limits --user alice", "JSON; without --user, the limits of guest"),
        ("list_user_limits --global", "one row for each user with limits"),
    ),
)
def list_user_limits(context: Context) -> None:
    if context.all_vhosts("user"):
        context.info("Listing limits for all users ...")
        _show_all(context, "user", context.client.get("/api/user-limits"))
        return
    user = context.line.given.get("user", DEFAULT_USER)
    context.info(f'Listing limits for user "{user}" ...')
    found = context.client.send("GET", _user("", user)).checked(no_user(user, UNAVAILABLE)).data
    context.success(compact(found[0]["value"] if found else {}))


def _parameter(context: Context) -> str:
    return f"/api/parameters/vhost-limits/{quoted(context.vhost)}/limits"


def _user(prefix: str, user: str) -> str:
    return f"/api/{prefix}user-limits/{quoted(user)}"


def _show_all(context: Context, kind: str, items: list[dict[str, Any]]) -> None:
    context.show((kind, "limits"), [(item[kind], compact(item["value"])) for item in items])
