"""What named consumers of streams have stored: shown, set and deleted; what a stream remembers of its publishers."""

from __future__ import annotations

from typing import Final

from amqpd.cli.client import Answer, quoted
from amqpd.cli.command import Command, Context
from amqpd.cli.errors import USAGE, Failure, UsageError
from amqpd.cli.listings import Listing, plain, value, wanted

OFFSETS: Final = Listing(
    "/api/queues/{vhost}/{queue}/offsets",
    ("name", "offset", "lag"),
    plain("name", "offset", "lag", "time"),
)


def _path(context: Context, *names: str) -> str:
    path = OFFSETS.path.format(vhost=quoted(context.vhost), queue=quoted(context.operands[0]))
    return "/".join((path, *map(quoted, names)))


def list_stream_offsets(context: Context) -> None:
    columns = wanted(OFFSETS, context.operands[1:])
    context.say(f"Listing stored offsets of queue {context.operands[0]} in vhost {context.vhost} ...")
    answer = _checked(context.client.send("GET", _path(context)))
    context.show(columns, [[value(item, OFFSETS, name) for name in columns] for item in answer.data])


def set_stream_offset(context: Context) -> None:
    queue, name, text = context.operands
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise UsageError(f"The offset should be a whole number that is at least 0, not '{text}'")
    context.say(f"Setting the stored offset of consumer '{name}' of queue '{queue}' in vhost '{context.vhost}' ...")
    _checked(context.client.send("PUT", _path(context, name), {"offset": int(text)}))
    context.done()


def delete_stream_offset(context: Context) -> None:
    queue, name = context.operands
    context.say(f"Deleting the stored offset of consumer '{name}' of queue '{queue}' in vhost '{context.vhost}' ...")
    _checked(context.client.send("DELETE", _path(context, name)))
    context.done()


def list_stream_tracking(context: Context) -> None:
    """rabbit: of 3.13. Publishers' sequence numbers are kept by queues with x-deduplication, and not by name."""
    kinds = [name for name in ("all", "offset", "writer") if name in context.line.given]
    if len(kinds) > 1:
        raise UsageError("Specify only one of --all, --offset, --writer.")
    context.say(f"Listing tracking information for stream {context.operands[0]} ...")
    found = _checked(context.client.send("GET", _path(context))).data
    value_of = "offset" if kinds == ["offset"] else "offset (sequence)"
    columns = ("type", "name", value_of)
    context.show(columns, [] if kinds == ["writer"] else [["offset", each["name"], each["offset"]] for each in found])


def _checked(answer: Answer) -> Answer:
    """Raises: Failure; 64 of a queue that is no stream, and of an offset out of bounds."""
    if answer.status == 400:
        raise Failure(USAGE, answer.reason)
    return answer.checked()


_QUEUE: Final = ("<queue>", "a stream")
_NAME: Final = ("<consumer name>", "what its consumers give as x-stream-consumer-name")

COMMANDS: Final = (
    Command(
        "list_stream_offsets",
        "Queues",
        "Lists how far the named consumers of a stream have come",
        list_stream_offsets,
        "[--vhost <vhost>] [--no-table-headers] <queue> [<column> ...]",
        1,
        None,
        (_QUEUE,),
        ("no-table-headers",),
        OFFSETS.names(),
        len(OFFSETS.default),
        (
            ("list_stream_offsets -p shop orders", "each name, the offset it reads next, how many lie behind that"),
            ("list_stream_offsets -p shop orders name time", "when each was stored, in ms since 1970"),
        ),
    ),
    Command(
        "list_stream_tracking",
        "Stream plugin",
        "Lists what a stream remembers by name: offsets of consumers",
        list_stream_tracking,
        "[--vhost <vhost>] [--all | --offset | --writer] [--no-table-headers] <queue>",
        1,
        1,
        (_QUEUE,),
        ("all", "offset", "writer", "no-table-headers"),
        examples=(("list_stream_tracking -p shop orders --offset", "each name and its offset"),),
    ),
    Command(
        "set_stream_offset",
        "Queues",
        "Sets the offset that a named consumer of a stream reads next",
        set_stream_offset,
        "[--vhost <vhost>] <queue> <consumer name> <offset>",
        3,
        3,
        (_QUEUE, _NAME, ("<offset>", "of the next message it gets; 0 is the first there ever was")),
        examples=(("set_stream_offset -p shop orders billing 0", "its next consumer reads everything again"),),
    ),
    Command(
        "delete_stream_offset",
        "Queues",
        "Deletes the offset that is stored for a named consumer of a stream",
        delete_stream_offset,
        "[--vhost <vhost>] <queue> <consumer name>",
        2,
        2,
        (_QUEUE, _NAME),
        examples=(("delete_stream_offset -p shop orders billing", "as if it had never consumed"),),
    ),
)
