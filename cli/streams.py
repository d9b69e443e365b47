"""Stream commands: stored offsets of named consumers, super streams, retention, and lists of the stream protocol.

A super stream is an exchange with one stream per partition. Clients of RabbitMQ's stream protocol see one stream;
AMQP clients publish to the exchange with the routing key of a partition. The lists of the stream protocol's clients
are empty, because amqpd's streams are read over AMQP. Texts and codes are rabbitmq-streams 3.10's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from amqpd.cli.client import quoted
from amqpd.cli.command import Command, Context, command, named_columns
from amqpd.cli.errors import DATA, SOFTWARE, UNAVAILABLE, Failure, UsageError
from amqpd.cli.listings import Listing, plain, show_items, wanted

OFFSETS: Final = Listing(
    "/api/queues/{vhost}/{queue}/offsets", ("name", "offset", "lag"), plain("name", "offset", "lag", "time")
)


def _path(context: Context, *names: str) -> str:
    path = OFFSETS.path.format(vhost=quoted(context.vhost), queue=quoted(context.operands[0]))
    return "/".join((path, *map(quoted, names)))


_QUEUE: Final = ("<queue>", "a stream")
_NAME: Final = ("<consumer name>", "the consumers' x-stream-consumer-name")
GROUP: Final = "Stream plugin"
_SUPER_STREAM: Final = ("<name>", "name of the exchange; its streams are called <name>-<routing key>")
_OWN: Final = (
    "partitions", "routing-keys", "exchange-type", "max-length-bytes", "max-age", "stream-max-segment-size-bytes",
    "leader-locator", "initial-cluster-size",
)  # fmt: skip
_command = partial(command, "Queues")
_stream = partial(command, GROUP)


@_command(
    "Lists the stored offsets of a stream's named consumers",
    "[--vhost <vhost>] [--no-table-headers] <queue> [<column> ...]",
    (_QUEUE,),
    columns=OFFSETS.names(),
    shown=len(OFFSETS.default),
    examples=(
        ("list_stream_offsets -p shop orders", "names, next offsets, and messages after them"),
        ("list_stream_offsets -p shop orders name time", "times of storing, in ms since 1970"),
    ),
)
def list_stream_offsets(context: Context) -> None:
    columns = wanted(OFFSETS, context.operands[1:])
    context.info(f"Listing stored offsets of queue {context.operands[0]} in vhost {context.vhost} ...")
    show_items(context, OFFSETS, columns, context.client.send("GET", _path(context)).accepted().data)


@_command(
    "Sets the offset that a named consumer of a stream reads next",
    "[--vhost <vhost>] <queue> <consumer name> <offset>",
    (_QUEUE, _NAME, ("<offset>", "offset of the next message; 0 is the first message of the stream")),
    examples=(("set_stream_offset -p shop orders billing 0", "the next consumer begins at the start"),),
)
def set_stream_offset(context: Context) -> None:
    queue, name, text = context.operands
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise UsageError(f"The offset should be a whole number that is at least 0, not '{text}'")
    context.info(f"Setting the stored offset of consumer '{name}' of queue '{queue}' in vhost '{context.vhost}' ...")
    context.client.send("PUT", _path(context, name), {"offset": int(text)}).accepted()
    context.success()


@_command(
    "Deletes the stored offset of a named consumer of a stream",
    "[--vhost <vhost>] <queue> <consumer name>",
    (_QUEUE, _NAME),
    examples=(("delete_stream_offset -p shop orders billing", "the next consumer begins as a new one"),),
)
def delete_stream_offset(context: Context) -> None:
    queue, name = context.operands
    context.info(f"Deleting the stored offset of consumer '{name}' of queue '{queue}' in vhost '{context.vhost}' ...")
    context.client.send("DELETE", _path(context, name)).accepted()
    context.success()


@command(
    "Stream plugin",
    "Lists offsets that a stream has stored for named consumers",
    "[--vhost <vhost>] [--all | --offset | --writer] [--no-table-headers] <queue>",
    (_QUEUE,),
    examples=(("list_stream_tracking -p shop orders --offset", "names and offsets"),),
)
def list_stream_tracking(context: Context) -> None:
    """rabbit: of 3.13. There are no rows of publishers: amqpd keeps their sequence numbers, but not by name."""
    kinds = [name for name in ("all", "offset", "writer") if name in context.line.given]
    if len(kinds) > 1:
        raise UsageError("Specify only one of --all, --offset, --writer.")
    context.info(f"Listing tracking information for stream {context.operands[0]} ...")
    found = context.client.send("GET", _path(context)).accepted().data
    value_of = "offset" if kinds == ["offset"] else "offset (sequence)"
    columns = ("type", "name", value_of)
    context.show(columns, [] if kinds == ["writer"] else [["offset", each["name"], each["offset"]] for each in found])


UNITS: Final = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
EXCHANGE_TYPES: Final = ("direct", "x-murmur2-hash")
"""direct: the routing key is a partition's. x-murmur2-hash: as Kafka's producers choose a partition for a key."""
LOCATORS: Final = ("client-local", "random", "least-leaders")
_PERIOD: Final = re.compile(r"P(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")
_PERIOD_S: Final = (31_536_000, 2_592_000, 604_800, 86_400, 3_600, 60, 1)


def _size(context: Context, option: str) -> int:
    text = context.line.given[option].lower()
    found = re.fullmatch(r"([0-9]{1,18})(kb|mb|gb|tb)?", text)
    if found is None:
        raise UsageError(f"Invalid value for --{option}, valid example values: 100gb, 50mb")
    return int(found[1]) * UNITS[found[2] or ""]


def _age(text: str) -> str:
    """Convert an ISO 8601 period to a value of x-max-age."""
    found = _PERIOD.fullmatch(text)
    if found is None or not any(found.groups()):
        raise UsageError("Invalid value for --max-age, valid example values: P10D, PT24H")
    return f"{sum(int(part) * size for part, size in zip(found.groups(), _PERIOD_S, strict=True) if part)}s"


def _arguments(context: Context) -> dict[str, Any]:
    """Return the arguments of the streams, in RabbitMQ's order, which list_queues shows."""
    given = context.line.given
    arguments: dict[str, Any] = {}
    if "leader-locator" in given:
        if given["leader-locator"] not in LOCATORS:
            raise UsageError(f"Invalid value for --leader-locator, valid values: {', '.join(LOCATORS)}")
        arguments["x-queue-leader-locator"] = given["leader-locator"]
    if "initial-cluster-size" in given:
        arguments["x-initial-cluster-size"] = context.line.number("initial-cluster-size")
    if "stream-max-segment-size-bytes" in given:
        arguments["x-stream-max-segment-size-bytes"] = _size(context, "stream-max-segment-size-bytes")
    if "max-age" in given:
        arguments["x-max-age"] = _age(given["max-age"])
    if "max-length-bytes" in given:
        arguments["x-max-length-bytes"] = _size(context, "max-length-bytes")
    return {**arguments, "x-queue-type": "stream"}


def _partitions(context: Context) -> list[str]:
    """Return the routing keys of the partitions."""
    given = context.line.given
    if "partitions" in given and "routing-keys" in given:
        raise UsageError("'Specify --partitions or routing-keys, not both.'")
    if "routing-keys" in given:
        keys = [key.strip() for key in given["routing-keys"].split(",") if key.strip()]
        return list(dict.fromkeys(keys))
    count = context.line.number("partitions") if "partitions" in given else 3
    if count < 1:
        raise UsageError("'The partition number must be greater than 0'")
    return [str(number) for number in range(count)]


@_stream(
    "Adds a super stream: an exchange with a stream for each partition",
    "[--vhost <vhost>] [--partitions <number> | --routing-keys <keys>] [--exchange-type <type>] <name>",
    (_SUPER_STREAM,),
    own_options=_OWN,
    examples=(
        ("add_super_stream invoices --partitions 3", "streams invoices-0, invoices-1 and invoices-2"),
        ("add_super_stream invoices --exchange-type x-murmur2-hash", "Kafka's partition for each routing key"),
        ("add_super_stream invoices --routing-keys eu,us --max-age P7D", "messages are kept for a week"),
    ),
)
def add_super_stream(context: Context) -> None:
    """Create the exchange and all streams, or nothing after an error. rabbit: 70 if a name is taken."""
    name = context.operands[0]
    keys, arguments = _partitions(context), _arguments(context)
    context.info("Adding a super stream ...")
    vhost = quoted(context.vhost)
    exchange = f"/api/exchanges/{vhost}/{quoted(name)}"
    queues = [f"/api/queues/{vhost}/{quoted(f'{name}-{key}')}" for key in keys]
    for path, what in [(exchange, "an exchange"), *((path, "a queue") for path in queues)]:
        if context.client.send("GET", f"{path}?columns=name").ok:
            taken = name if path == exchange else f"{name}-{keys[queues.index(path)]}"
            raise Failure(SOFTWARE, f"there is already {what} named {taken}")
    made: list[str] = []
    try:
        kind = context.line.given.get("exchange-type", EXCHANGE_TYPES[0])
        if kind not in EXCHANGE_TYPES:
            raise UsageError(f"Invalid value for --exchange-type, valid values: {', '.join(EXCHANGE_TYPES)}")
        body = {"type": kind, "durable": True, "arguments": {"x-super-stream": True}}
        _made(context, made, exchange, body)
        for place, (key, path) in enumerate(zip(keys, queues, strict=True)):
            _made(context, made, path, {"durable": True, "arguments": arguments})
            binding = f"/api/bindings/{vhost}/e/{quoted(name)}/q/{quoted(f'{name}-{key}')}"
            about = {"routing_key": key, "arguments": {"x-stream-partition-order": place}}
            context.client.send("POST", binding, about).checked()
    except Failure:
        for path in reversed(made):
            context.client.send("DELETE", path)
        raise
    context.success(f"Super stream {name} has been created")


def _made(context: Context, made: list[str], path: str, body: dict[str, Any]) -> None:
    context.client.send("PUT", path, body).checked(Failure(SOFTWARE, f"vhost '{context.vhost}' does not exist"))
    made.append(path)


@_stream(
    "Deletes a super stream: its exchange and its streams with all messages",
    "[--vhost <vhost>] <name>",
    (_SUPER_STREAM,),
    examples=(("delete_super_stream invoices", "exit code 70 if it does not exist"),),
)
def delete_super_stream(context: Context) -> None:
    name = context.operands[0]
    context.info("Deleting a super stream ...")
    vhost = quoted(context.vhost)
    exchange = f"/api/exchanges/{vhost}/{quoted(name)}"
    missing = Failure(SOFTWARE, "stream_not_found")
    found = context.client.send("GET", exchange).checked(missing).data
    if not found["arguments"].get("x-super-stream"):
        raise missing
    context.no_timeout()
    for binding in context.client.get(f"{exchange}/bindings/source"):
        if binding["destination_type"] == "queue" and "x-stream-partition-order" in binding["arguments"]:
            context.client.send("DELETE", f"/api/queues/{vhost}/{quoted(binding['destination'])}").checked(missing)
    context.change("DELETE", exchange, missing=missing, message=f"Super stream {name} has been deleted")


def list_empty(what: str, columns: Sequence[str], context: Context) -> None:
    asked = named_columns(columns, context.operands)
    context.info(f"Listing stream {what.replace('_', ' ')} ...")
    context.client.get("/api/amqpd/ping")
    context.show(asked or columns, [])


@_stream(
    "Lists consumers of a group of the stream protocol: refused, amqpd does not have it",
    "[--vhost <vhost>] --stream <stream> --reference <reference>",
    examples=(("list_stream_group_consumers --stream s --reference app", "exit code 65: there is no group"),),
)
def list_stream_group_consumers(context: Context) -> None:
    if not {"stream", "reference"} <= set(context.line.given):
        raise UsageError("not enough arguments.")
    context.info("Listing group consumers ...")
    context.client.get("/api/amqpd/ping")
    raise Failure(DATA, "The group does not exist")


@command(
    "Policies",
    "Sets the age limit of a stream: refused, the answer shows the policy that does it",
    "[--vhost <vhost>] <stream> <max-age>",
    (("<stream>", "name of a stream"), ("<max-age>", "a value of x-max-age: 7D, 12h")),
    examples=(("set_stream_retention_policy events 7D", "exit code 69, and a set_policy command"),),
)
def set_stream_retention_policy(context: Context) -> None:
    """Refuse, and show the policy that does it. rabbit: 3.10 has the command, later versions use policies."""
    name, text = context.operands
    context.info(f"Setting retention policy of stream queue {name} to {text} ...")
    path = f"/api/queues/{quoted(context.vhost)}/{quoted(name)}?columns=name"
    context.client.send("GET", path).checked(Failure(UNAVAILABLE, "not_found"))
    policy = f"amqpctl set_policy -p '{context.vhost}' NAME '^{name}$' '{{\"max-age\":\"{text}\"}}' --apply-to streams"
    raise Failure(UNAVAILABLE, f"a policy does this, and keeps it: {policy}")


LISTS: Final = {
    "connections": ("conn_name", "user", "peer_host", "peer_port", "state", "vhost"),
    "consumers": ("connection_pid", "subscription_id", "stream", "messages_consumed", "offset", "credits"),
    "consumer_groups": ("stream", "reference", "partition_index", "consumers"),
    "publishers": ("connection_pid", "publisher_id", "stream", "reference", "messages_published"),
}


def _empty_list(what: str) -> Command:
    """Return a command that lists nothing."""
    name, columns = f"list_stream_{what}", LISTS[what]
    return _stream(
        f"Lists {what.replace('_', ' ')} of the stream protocol: always empty, amqpd does not have it",
        "[<column> ...] [--no-table-headers] [--timeout <timeout>]",
        own_name=name,
        columns=columns,
        shown=len(columns),
        examples=((name, "an empty list; list_consumers shows AMQP consumers"),),
    )(partial(list_empty, what, columns))


COMMANDS: Final = tuple(map(_empty_list, LISTS))
