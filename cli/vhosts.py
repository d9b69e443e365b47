"""What is known of a vhost: description, tags, default queue type, protection from deletion; and the cluster's name.

Texts and exit codes of `set_vhost_tags` and `set_cluster_name` are rabbitmqctl 3.10's, measured; the others came with
later ones.
"""

from __future__ import annotations

from typing import Final

from amqpd.cli.alarms import GROUP as CONFIGURATION
from amqpd.cli.client import quoted
from amqpd.cli.command import Command, Context
from amqpd.cli.errors import DATA, NoSuchVhost, UsageError
from amqpd.cli.users import VHOST_KEYS

GROUP: Final = "Virtual hosts"


def update_vhost_metadata(context: Context) -> None:
    name = _named(context)
    given = context.line.given
    body: dict[str, object] = {key: given[option] for option, key in VHOST_KEYS.items() if option in given}
    if not body:
        raise UsageError("at least one of --description, --tags, --default-queue-type is needed")
    context.say(f'Updating metadata of vhost "{name}" ...')
    _change(context, name, body)


def set_vhost_tags(context: Context) -> None:
    name = _named(context)
    tags = context.operands[1:]
    context.say(f'Setting tags for virtual host "{name}" to [{", ".join(tags)}] ...')
    _change(context, name, {"tags": list(tags)})


def enable_protection(context: Context) -> None:
    name = _named(context)
    context.say(f'Protecting virtual host "{name}" from removal ...')
    _guard(context, "POST", name)


def disable_protection(context: Context) -> None:
    name = _named(context)
    context.say(f'Removing protection from removal of virtual host "{name}" ...')
    _guard(context, "DELETE", name)


def set_cluster_name(context: Context) -> None:
    name = context.operands[0]
    context.say(f"Setting cluster name to {name} ...")
    context.client.send("PUT", "/api/cluster-name", {"name": name}).checked()
    context.done()


def _change(context: Context, name: str, body: dict[str, object]) -> None:
    """Of a vhost that is there."""
    answer = context.client.send("PUT", f"/api/vhosts/{quoted(name)}", body, {"If-Match": "*"})
    if answer.status == 412:
        raise NoSuchVhost(name)
    answer.checked()
    context.done()


def _guard(context: Context, method: str, name: str) -> None:
    context.client.send(method, f"/api/vhosts/{quoted(name)}/deletion/protection").checked(NoSuchVhost(name))
    context.done()


def _named(context: Context) -> str:
    if not context.operands[0]:
        raise UsageError("Bad argument: vhost cannot be an empty string", DATA)
    return context.operands[0]


_VHOST: Final = ("<vhost>", "the vhost")

COMMANDS: Final = (
    Command(
        "disable_vhost_deletion_protection",
        GROUP,
        "Lets a virtual host be deleted again",
        disable_protection,
        "<vhost>",
        1,
        1,
        (_VHOST,),
        examples=(("disable_vhost_deletion_protection shop", "then: amqpctl delete_vhost shop"),),
    ),
    Command(
        "enable_vhost_deletion_protection",
        GROUP,
        "Protects a virtual host from being deleted",
        enable_protection,
        "<vhost>",
        1,
        1,
        (_VHOST,),
        examples=(("enable_vhost_deletion_protection shop", "delete_vhost shop ends with exit code 69 from now on"),),
    ),
    Command(
        "set_vhost_tags",
        GROUP,
        "Sets virtual host tags",
        set_vhost_tags,
        "<vhost> <tag> [...]",
        1,
        None,
        (_VHOST, ("<tag>", "any words; none removes all tags")),
        examples=(("set_vhost_tags shop web eu", "instead of the tags it had"),),
    ),
    Command(
        "update_vhost_metadata",
        GROUP,
        "Updates metadata (tags, description, default queue type) of a virtual host",
        update_vhost_metadata,
        "<vhost> [--description <description> --tags <tag1>,<tag2> --default-queue-type <quorum|classic|stream>]",
        1,
        1,
        (_VHOST,),
        tuple(VHOST_KEYS),
        examples=(
            ("update_vhost_metadata shop --description 'web shop' --tags web,eu", "the rest stays as it is"),
            ("update_vhost_metadata shop --default-queue-type quorum", "of queues that are declared from now on"),
        ),
    ),
    Command(
        "set_cluster_name",
        CONFIGURATION,
        "Sets the cluster name",
        set_cluster_name,
        "<name>",
        1,
        1,
        (("<name>", "what clients are told in server-properties, from the next connection on"),),
        examples=(("set_cluster_name shop", "as set_global_parameter cluster_name '\"shop\"'"),),
    ),
)
