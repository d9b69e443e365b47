"""Super streams: an exchange, and a stream for each partition bound to it. Clients of RabbitMQ's stream protocol know
them as one; AMQP publishes to the exchange under a partition's routing key. Texts and codes: rabbitmq-streams 3.10.

Also the lists of that protocol's clients, of which amqpd has none: streams are read over AMQP.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from amqpd.cli.client import quoted
from amqpd.cli.command import Command, Context
from amqpd.cli.errors import DATA, SOFTWARE, UNAVAILABLE, Failure, UsageError

GROUP: Final = "Stream plugin"
UNITS: Final = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
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
    """ISO 8601 to what x-max-age takes."""
    found = _PERIOD.fullmatch(text)
    if found is None or not any(found.groups()):
        raise UsageError("Invalid value for --max-age, valid example values: P10D, PT24H")
    return f"{sum(int(part) * size for part, size in zip(found.groups(), _PERIOD_S, strict=True) if part)}s"


def _arguments(context: Context) -> dict[str, Any]:
    """rabbit: in this order, which list_queues shows."""
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
    """Their routing keys."""
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


def add_super_stream(context: Context) -> None:
    """All of it, or, when something is in the way, nothing. rabbit: 70 where a name is taken."""
    name = context.operands[0]
    keys, arguments = _partitions(context), _arguments(context)
    context.say("Adding a super stream ...")
    vhost = quoted(context.vhost)
    exchange = f"/api/exchanges/{vhost}/{quoted(name)}"
    queues = [f"/api/queues/{vhost}/{quoted(f'{name}-{key}')}" for key in keys]
    for path, what in [(exchange, "an exchange"), *((path, "a queue") for path in queues)]:
        if context.client.send("GET", f"{path}?columns=name").ok:
            taken = name if path == exchange else f"{name}-{keys[queues.index(path)]}"
            raise Failure(SOFTWARE, f"there is already {what} named {taken}")
    made: list[str] = []
    try:
        body = {"type": "direct", "durable": True, "arguments": {"x-super-stream": True}}
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
    context.done(f"Super stream {name} has been created")


def _made(context: Context, made: list[str], path: str, body: dict[str, Any]) -> None:
    context.client.send("PUT", path, body).checked(Failure(SOFTWARE, f"vhost '{context.vhost}' does not exist"))
    made.append(path)


def delete_super_stream(context: Context) -> None:
    name = context.operands[0]
    context.say("Deleting a super stream ...")
    vhost = quoted(context.vhost)
    exchange = f"/api/exchanges/{vhost}/{quoted(name)}"
    missing = Failure(SOFTWARE, "stream_not_found")
    found = context.client.send("GET", exchange).checked(missing).data
    if not found["arguments"].get("x-super-stream"):
        raise missing
    context.patient()
    for binding in context.client.get(f"{exchange}/bindings/source"):
        if binding["destination_type"] == "queue" and "x-stream-partition-order" in binding["arguments"]:
            context.client.send("DELETE", f"/api/queues/{vhost}/{quoted(binding['destination'])}").checked(missing)
    context.client.send("DELETE", exchange).checked(missing)
    context.done(f"Super stream {name} has been deleted")


def list_nobody(what: str, columns: Sequence[str], context: Context) -> None:
    asked = [name for operand in context.operands for name in operand.split(",") if name]
    if unknown := sorted(set(asked) - set(columns)):
        raise UsageError(f"Info key(s) {','.join(unknown)} are not supported")
    context.say(f"Listing stream {what.replace('_', ' ')} ...")
    context.client.get("/api/amqpd/ping")
    context.show(asked or columns, [])


def no_group(context: Context) -> None:
    """Raises: Failure."""
    if not {"stream", "reference"} <= set(context.line.given):
        raise UsageError("not enough arguments.")
    context.say("Listing group consumers ...")
    context.client.get("/api/amqpd/ping")
    raise Failure(DATA, "The group does not exist")


def set_retention(context: Context) -> None:
    """rabbit: 3.10 has it; a policy does it here, as in later versions."""
    name, text = context.operands
    context.say(f"Setting retention policy of stream queue {name} to {text} ...")
    path = f"/api/queues/{quoted(context.vhost)}/{quoted(name)}?columns=name"
    context.client.send("GET", path).checked(Failure(UNAVAILABLE, "not_found"))
    policy = f"amqpctl set_policy -p '{context.vhost}' NAME '^{name}$' '{{\"max-age\":\"{text}\"}}' --apply-to streams"
    raise Failure(UNAVAILABLE, f"a policy does this, and keeps it: {policy}")


_NAME: Final = ("<name>", "of the exchange; its streams are called <name>-<routing key>")
_OWN: Final = (
    "partitions", "routing-keys", "max-length-bytes", "max-age", "stream-max-segment-size-bytes", "leader-locator",
    "initial-cluster-size",
)  # fmt: skip
LISTS: Final = {
    "connections": ("conn_name", "user", "peer_host", "peer_port", "state", "vhost"),
    "consumers": ("connection_pid", "subscription_id", "stream", "messages_consumed", "offset", "credits"),
    "consumer_groups": ("stream", "reference", "partition_index", "consumers"),
    "publishers": ("connection_pid", "publisher_id", "stream", "reference", "messages_published"),
}


def _list(what: str) -> Command:
    name = f"list_stream_{what}"
    return Command(
        name,
        GROUP,
        f"Lists {what.replace('_', ' ')} of the stream protocol, which amqpd does not speak: there are none",
        partial(list_nobody, what, LISTS[what]),
        "[<column> ...] [--no-table-headers] [--timeout <timeout>]",
        0,
        None,
        options=("no-table-headers",),
        columns=LISTS[what],
        shown=len(LISTS[what]),
        examples=((name, "an empty list; list_consumers has those of AMQP"),),
    )


COMMANDS: Final = (
    Command(
        "add_super_stream",
        GROUP,
        "Adds a super stream: an exchange with a stream for each partition",
        add_super_stream,
        "[--vhost <vhost>] [--partitions <number> | --routing-keys <keys>] <name>",
        1,
        1,
        (_NAME,),
        _OWN,
        examples=(
            ("add_super_stream invoices --partitions 3", "streams invoices-0, invoices-1 and invoices-2"),
            ("add_super_stream invoices --routing-keys eu,us --max-age P7D", "each keeps a week"),
        ),
    ),
    Command(
        "delete_super_stream",
        GROUP,
        "Deletes a super stream: its streams, with what is in them, and its exchange",
        delete_super_stream,
        "[--vhost <vhost>] <name>",
        1,
        1,
        (_NAME,),
        examples=(("delete_super_stream invoices", "70 where there is none"),),
    ),
    _list("connections"),
    _list("consumers"),
    _list("publishers"),
    _list("consumer_groups"),
    Command(
        "list_stream_group_consumers",
        GROUP,
        "Lists consumers of a group of the stream protocol, which amqpd does not speak: there is none",
        no_group,
        "[--vhost <vhost>] --stream <stream> --reference <reference>",
        options=("stream", "reference"),
        examples=(("list_stream_group_consumers --stream s --reference app", "65: there is no group"),),
    ),
    Command(
        "set_stream_retention_policy",
        "Policies",
        "Says which policy sets how long a stream keeps messages",
        set_retention,
        "[--vhost <vhost>] <stream> <max-age>",
        2,
        2,
        (("<stream>", "name of a stream"), ("<max-age>", "as x-max-age takes it: 7D, 12h")),
        examples=(("set_stream_retention_policy events 7D", "69, and the set_policy that does it"),),
    ),
)
