"""Groups of Kafka's clients: lists, members, offsets and lag, reset, deletion.

A reset does what `kafka-consumer-groups --reset-offsets` does. It changes the offsets at once; `--dry-run` only shows
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from amqpd.cli.client import quoted
from amqpd.cli.command import Context, command
from amqpd.cli.errors import UsageError
from amqpd.cli.formatters import BY_NAME, Row, aligned, compact
from amqpd.cli.listings import Listing, plain, show_items, wanted

GROUPS: Final = Listing(
    "/api/amqpd/kafka/groups/{vhost}",
    ("name", "type", "state", "member_count", "lag"),
    plain("name", "type", "state", "member_count", "lag", "protocol_type", "protocol"),
)
MEMBERS: Final = ("member", "client_id", "host", "assignment")
OFFSETS: Final = ("topic", "partition", "offset", "end_offset", "lag", "member")
CHANGES: Final = ("topic", "partition", "old_offset", "new_offset")
_TARGETS: Final = ("to-earliest", "to-latest", "to-offset", "to-datetime", "shift-by")


def _path(context: Context) -> str:
    return f"{GROUPS.path.format(vhost=quoted(context.vhost))}/{quoted(context.operands[0])}"


_GROUP: Final = ("<group>", "the group.id of its consumers")
_command = partial(command, "Kafka groups")


@_command(
    "Lists groups of Kafka's clients, with state and lag",
    "[--vhost <vhost>] [--no-table-headers] [<column> ...]",
    columns=GROUPS.names(),
    shown=len(GROUPS.default),
    examples=(
        ("list_kafka_groups -p shop", "names, states, numbers of members, and lag in records"),
        ("list_kafka_groups name protocol", "names and assignors"),
    ),
)
def list_kafka_groups(context: Context) -> None:
    columns = wanted(GROUPS, context.operands)
    context.info(f"Listing Kafka groups for vhost {context.vhost} ...")
    show_items(context, GROUPS, columns, context.client.get(GROUPS.path.format(vhost=quoted(context.vhost))))


@_command(
    "Shows members, committed offsets and lag of a group of Kafka's clients",
    "[--vhost <vhost>] [--no-table-headers] <group>",
    (_GROUP,),
    examples=(
        ("describe_kafka_group -p shop billing", "a table of members, and a table of offsets"),
        ("describe_kafka_group billing --formatter json", "the same as an object"),
    ),
)
def describe_kafka_group(context: Context) -> None:
    context.info(f"Describing Kafka group {context.operands[0]} in vhost {context.vhost} ...")
    group = context.client.get(_path(context))
    if context.line.formatter == "json":
        context.out.write(compact(group) + "\n")
        return
    context.info(f"type {group['type']}, state {group['state']}, protocol {group['protocol'] or 'none'}")
    members = [[each["id"], each["client_id"], each["host"], _assignment(each)] for each in group["members"]]
    offsets = [
        [each[name] for name in ("topic", "partition", "offset", "end_offset", "lag", "member_id")]
        for each in group["offsets"]
    ]
    _write(context, MEMBERS, members)
    if members and offsets:
        context.out.write("\n")
    _write(context, OFFSETS, offsets)


def _assignment(member: dict[str, Any]) -> str:
    """Return a member's partitions as text: `orders: 0, 1; logs: 0`."""
    return "; ".join(
        f"{topic}: {', '.join(map(str, partitions))}" for topic, partitions in member["assignment"].items()
    )


def _write(context: Context, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Write a table with aligned columns, or in the format of the command line."""
    if context.line.formatter == "table":
        context.out.write(aligned(columns, rows, context.line.headers, lambda text: text))
    else:
        context.out.write(BY_NAME[context.line.formatter](columns, rows, context.line.headers))


@_command(
    "Sets committed offsets of a group of Kafka's clients that has no members",
    "[--vhost <vhost>] <group> --topic <topic> [--partition <number>] (--to-earliest | --to-latest | "
    "--to-offset <offset> | --to-datetime <time> | --shift-by <number>) [--dry-run]",
    (_GROUP,),
    own_options=("topic", "partition", *_TARGETS, "no-table-headers"),
    examples=(
        ("reset_kafka_offsets billing --topic orders --to-earliest --dry-run", "the change, without making it"),
        ("reset_kafka_offsets billing --topic orders --to-datetime 2026-11-28T08:00:00", "records since then"),
        ("reset_kafka_offsets billing --topic orders --shift-by -10", "the last ten records again"),
    ),
)
def reset_kafka_offsets(context: Context) -> None:
    given = context.line.given
    if not given.get("topic"):
        raise UsageError("--topic is needed")
    body: dict[str, Any] = {"topic": given["topic"], "dry_run": "dry-run" in given, **_target(context)}
    if "partition" in given:
        body["partition"] = context.line.number("partition")
    verb = "Computing" if body["dry_run"] else "Setting"
    context.info(f"{verb} offsets of Kafka group {context.operands[0]} in vhost {context.vhost} ...")
    context.no_timeout()  # a search for a time reads the log
    changes = context.client.send("POST", f"{_path(context)}/offsets", body).checked().data
    context.show(CHANGES, [[each[name] for name in ("topic", "partition", "before", "after")] for each in changes])


def _target(context: Context) -> dict[str, Any]:
    """Return the field of the request that says where the group continues. Raises: UsageError."""
    options = [name for name in _TARGETS if name in context.line.given]
    if len(options) != 1:
        raise UsageError(f"exactly one of --{', --'.join(_TARGETS)} is needed")
    option, text = options[0], context.line.given[options[0]]
    if option in ("to-earliest", "to-latest"):
        return {"to": option.removeprefix("to-")}
    if option == "to-datetime":
        return {"time": text}
    if option == "to-offset":
        return {"offset": context.line.number(option)}
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        raise UsageError(f"Invalid options for this command:\n--shift-by : {text}")
    return {"shift": int(text)}


@_command(
    "Deletes a group of Kafka's clients that has no members, with its offsets",
    "[--vhost <vhost>] <group>",
    (_GROUP,),
    examples=(("delete_kafka_group -p shop billing", "its consumers begin as a new group"),),
)
def delete_kafka_group(context: Context) -> None:
    context.info(f"Deleting Kafka group {context.operands[0]} in vhost {context.vhost} ...")
    context.change("DELETE", _path(context))
