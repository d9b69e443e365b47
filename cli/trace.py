"""Where messages with an id are, and where they have been, as far as the logs of a vhost tell."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

from amqpd.cli.client import quoted
from amqpd.cli.command import Command, Context
from amqpd.cli.errors import UNAVAILABLE, Failure
from amqpd.cli.listings import Item, Listing, plain, value, wanted

FOUND: Final = Listing(
    "/api/amqpd/trace/{vhost}",
    ("queue", "offset", "time", "state", "redelivered", "connection", "consumer", "reason"),
    plain(
        "queue", "offset", "time", "state", "redelivered", "connection", "consumer", "reason", "exchange",
        "routing_key", "channel", "user", "count", "moved_from",
    ),
)  # fmt: skip


def trace_message(context: Context) -> None:
    columns = wanted(FOUND, context.operands[1:])
    id_ = context.operands[0]
    query: dict[str, object] = {"id": id_}
    if "correlation-id" in context.line.given:
        query["by"] = "correlation_id"
    context.say(f"Looking for message {id_} in vhost {context.vhost} ...")
    found: list[Item] = []
    going_on: dict[str, object] = {}
    skipped = 0
    while True:
        path = f"/api/amqpd/trace/{quoted(context.vhost)}?{urlencode({**query, **going_on})}"
        answer = context.client.send("GET", path)
        if answer.status == 404:
            raise Failure(UNAVAILABLE, answer.reason)
        if not answer.ok:
            raise answer.failure()
        found += answer.data["found"]
        skipped += answer.data["skipped"]
        if answer.data["next"] is None:
            break
        going_on = answer.data["next"]
        context.note(f"{len(found)} found, looking at queue {going_on['queue']}, offset {going_on['offset']}")
    rows = [*found, *_gone(found)]
    context.show(columns, [[_shown(item, name) for name in columns] for item in rows])
    if not found:
        context.note("No log has it: it was never stored here, or has gone from the logs since it was settled")
    if skipped:
        context.note(f"{skipped} queues may not be read, or cannot be opened, and were not looked at")


def _shown(item: Item, name: str) -> Any:
    return value(item, FOUND, name) if name in item else ""


def _gone(found: list[Item]) -> list[Item]:
    """Where x-death says that it was, and no log has it any more."""
    there = {item["queue"] for item in found}
    gone: dict[tuple[str, str], Item] = {}
    for item in found:
        for death in item["deaths"] if isinstance(item["deaths"], list) else []:
            if not isinstance(death, dict) or death.get("queue") in there:
                continue
            queue, reason = str(death.get("queue")), str(death.get("reason"))
            told = {"queue": queue, "state": "gone", "reason": reason, "count": death.get("count", 1)}
            gone.setdefault((queue, reason), {**told, "exchange": death.get("exchange", "")})
    return list(gone.values())


COMMANDS: Final = (
    Command(
        "trace_message",
        "Queues",
        "Shows where messages with an id are, and where they have been as far as the logs still tell",
        trace_message,
        "[--vhost <vhost>] [--correlation-id] [--no-table-headers] <id> [<column> ...]",
        1,
        None,
        (("<id>", "the property message_id"),),
        ("correlation-id", "no-table-headers"),
        FOUND.names(),
        len(FOUND.default),
        (
            ("trace_message 8f1c", "the queues that have it: ready, unacked (and at whom), settled, or gone"),
            ("trace_message --correlation-id order-7 queue state time", "all messages of one conversation"),
        ),
    ),
)
