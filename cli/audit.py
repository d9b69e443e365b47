"""The audit log, shown: who did what, from where, and whether it succeeded."""

from __future__ import annotations

import time
from typing import Any, Final
from urllib.parse import urlencode

from amqpd.cli.client import Answer
from amqpd.cli.command import Command, Context
from amqpd.cli.errors import USAGE, Failure, UsageError
from amqpd.cli.formatters import BY_NAME
from amqpd.cli.listings import Item, Listing, plain, value, wanted

PATH: Final = "/api/audit"
PAGE_COUNT: Final = 500
SHOWN_COUNT: Final = 100
"""Records that are shown where neither --since nor --limit says which."""
FOLLOW_S: Final = 1.0

RECORDS: Final = Listing(
    PATH,
    ("time", "event", "vhost", "name", "user", "peer", "result", "count", "reason"),
    plain(
        "time", "event", "vhost", "name", "user", "peer", "result", "count", "reason", "front_end", "connection",
        "details", "offset",
    ),
)  # fmt: skip


def audit_log(context: Context) -> None:
    columns = wanted(RECORDS, context.operands)
    given = context.line.given
    follow: bool = "follow" in given
    if follow and context.line.formatter == "json" and not context.line.stream:
        raise UsageError("--follow goes on without end, which --formatter json cannot show: json_stream, or csv")
    query: dict[str, object] = {each: given[each] for each in ("since", "until", "where") if each in given}
    left = context.line.number("limit")
    if "since" not in given and "where" not in given:
        query["last"] = left or SHOWN_COUNT
    context.say("Audit log ...")
    rows: list[list[Any]] = []
    shown = False
    try:
        while True:
            count = min(left, PAGE_COUNT) if left else PAGE_COUNT
            answer = context.client.send("GET", f"{PATH}?{urlencode({**query, 'count': count})}")
            if not answer.ok:
                raise _failure(answer)
            items: list[Item] = answer.data["records"]
            rows += [[value(item, RECORDS, name) for name in columns] for item in items]
            query = {each: it for each, it in query.items() if each not in ("since", "last")}
            query["offset"] = answer.data["next_offset"]
            full = bool(left) and len(items) >= left
            left = max(0, left - len(items))
            over = full or answer.data["ended"]
            if over and answer.data["lost"]:
                context.note(f"{answer.data['lost']} records could not be written and are lost")
            if not follow:
                if over:
                    context.show(columns, rows)
                    return
                continue
            if rows:
                _show_more(context, columns, rows, first=not shown)
                rows, shown = [], True
            if full:
                return
            if over:
                time.sleep(FOLLOW_S)
    except KeyboardInterrupt:
        return


def _show_more(context: Context, columns: Any, rows: list[list[Any]], *, first: bool) -> None:
    """A part of a list that goes on: with headings once."""
    context.out.write(BY_NAME[context.line.formatter](columns, rows, context.line.headers and first))
    context.out.flush()


def _failure(answer: Answer) -> Failure:
    return Failure(USAGE, answer.reason) if answer.status == 400 else answer.failure()


COMMANDS: Final = (
    Command(
        "audit_log",
        "Logs",
        "Shows who declared, deleted, changed or logged in, from where and with what result",
        audit_log,
        "[--since <time>] [--until <time>] [--where <SQL>] [--limit <number>] [--follow] [--no-table-headers] "
        "[<column> ...]",
        0,
        None,
        (),
        ("since", "until", "where", "limit", "follow", "no-table-headers"),
        RECORDS.names(),
        len(RECORDS.default),
        (
            ("audit_log", f"the last {SHOWN_COUNT} records"),
            ("audit_log --where \"event = 'queue.deleted' AND name = 'orders'\"", "who deleted my queue"),
            ("audit_log --since 2026-11-22T08:00:00 --formatter json", "all since then, as JSON"),
            ("audit_log --follow", "the last records, and those that come, until it is stopped"),
        ),
        needs_app=False,
    ),
)
