"""Commands about queues and messages: browse, move, copy, delete, redrive, rewind, jobs, delayed messages, trace,
purge, delete; and commands that close connections.

A command that starts a job shows its progress until the job ends, or returns at once with --detach. Ctrl-C ends the
command but not the job: stop_job ends that.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

from amqpd.cli.client import quoted
from amqpd.cli.command import OPERATIONS, Context, command
from amqpd.cli.errors import SOFTWARE, UNAVAILABLE, USAGE, Failure, UsageError
from amqpd.cli.listings import Item, Listing, plain, show_items, value, wanted

PAGE_COUNT: Final = 100
BROWSE_COUNT: Final = 100
"""Number of messages without --limit."""
WAIT_MS: Final = 500
"""Interval between two lines of a job's progress."""

DONE: Final = {"move": "moved", "copy": "copied", "delete": "deleted", "redrive": "sent back", "rewind": "rewound"}

MESSAGES: Final = Listing(
    "/api/queues/{vhost}/{queue}/messages",
    ("offset", "time", "state", "routing_key", "payload_bytes", "payload"),
    {
        **plain("offset", "time", "state", "redelivered", "delivery_count", "exchange", "routing_key", "payload_bytes"),
        **plain("payload", "payload_encoding", "properties"),
        "headers": ("properties", "headers"),
        "message_id": ("properties", "message_id"),
    },
)
JOBS: Final = Listing(
    "/api/amqpd/jobs",
    ("id", "action", "vhost", "queue", "state", "done", "rate"),
    plain(
        "id", "action", "vhost", "queue", "to_queue", "to_exchange", "routing_key", "where", "limit", "dry_run",
        "from_offset", "state", "reason", "messages", "done", "looked_at", "under_way", "left", "begun", "ended",
        "rate", "user",
    ),
)  # fmt: skip


def _queue(context: Context) -> str:
    return f"/api/queues/{quoted(context.vhost)}/{quoted(context.operands[0])}"


_QUEUE: Final = ("<queue>", "queue with the messages")
_SOME: Final = "[--where <SQL>] [--limit <number>] [--dry-run] [--detach]"
_TO: Final = "--to-queue <queue> | --to-exchange <exchange> [--routing-key <key>]"
DELAYED: Final = Listing(
    "/api/delayed/{vhost}",
    ("id", "exchange", "due", "routing_keys"),
    plain("id", "exchange", "due", "routing_keys", "published_to", "payload_bytes", "persistent", "vhost"),
)
FOUND: Final = Listing(
    "/api/amqpd/trace/{vhost}",
    ("queue", "offset", "time", "state", "redelivered", "connection", "consumer", "reason"),
    plain(
        "queue", "offset", "time", "state", "redelivered", "connection", "consumer", "reason", "exchange",
        "routing_key", "channel", "user", "count", "moved_from",
    ),
)  # fmt: skip
_command = partial(command, "Queues")


@_command(
    "Shows messages of a queue or stream, without changing them",
    "[--vhost <vhost>] [--where <SQL>] [--from-offset <offset> | --from-time <time>] [--limit <number>] "
    "[--no-table-headers] <queue> [<column> ...]",
    (_QUEUE,),
    columns=MESSAGES.names(),
    shown=len(MESSAGES.default),
    examples=(
        ("browse_queue orders", f"the first {BROWSE_COUNT} messages, also unacked ones"),
        ("browse_queue --where \"customer = 'acme'\" orders offset headers", "messages with this header"),
        ("browse_queue --from-time 2026-11-22T08:00:00 --formatter json orders", "messages since then, as JSON"),
    ),
)
def browse_queue(context: Context) -> None:
    columns = wanted(MESSAGES, context.operands[1:])
    left = context.line.number("limit") or BROWSE_COUNT
    query: dict[str, object] = _begin(context)
    if "where" in context.line.given:
        query["where"] = context.line.given["where"]
    context.info(f"Browsing queue {context.operands[0]} in vhost {context.vhost} ...")
    rows: list[list[Any]] = []
    while left > 0:
        asked = urlencode({**query, "count": min(left, PAGE_COUNT)})
        found = context.client.send("GET", f"{_queue(context)}/messages?{asked}").accepted().data
        items: list[Item] = found["messages"]
        rows += [[value(item, MESSAGES, name) for name in columns] for item in items]
        left -= len(items)
        if found["ended"]:
            break
        query["offset"] = found["next_offset"]
    context.show(columns, rows)
    if not rows and found["hint"]:
        context.warn(found["hint"])


@_command(
    "Moves messages of a queue to another queue or to an exchange",
    f"[--vhost <vhost>] {_TO} {_SOME} <queue>",
    (_QUEUE,),
    examples=(
        ("move_messages --to-queue later orders", "all ready messages"),
        ("move_messages --to-queue later --where \"customer = 'acme'\" orders", "the messages of one customer"),
    ),
)
def move_messages(context: Context) -> None:
    _run(context, "Moving messages of", {"action": "move", **_target(context)})


@_command(
    "Copies messages of a queue or stream to another queue or to an exchange",
    f"[--vhost <vhost>] {_TO} [--from-offset <offset> | --from-time <time>] {_SOME} <queue>",
    (_QUEUE,),
    examples=(("copy_messages --to-queue test --limit 1000 orders", "the first 1000 messages"),),
)
def copy_messages(context: Context) -> None:
    _run(context, "Copying messages of", {"action": "copy", **_target(context), **_begin(context)})


@_command(
    "Deletes messages of a queue, without dead-lettering them",
    f"[--vhost <vhost>] {_SOME} <queue>",
    (_QUEUE,),
    examples=(("delete_messages --where \"kind = 'test'\" orders", "messages of a test"),),
)
def delete_messages(context: Context) -> None:
    given = context.line.given
    if "where" not in given and "limit" not in given:
        raise UsageError("delete_messages needs --where, or --limit; purge_queue deletes all that is ready")
    _run(context, "Deleting messages of", {"action": "delete"})


@_command(
    "Sends dead letters back to the queues where they died first",
    f"[--vhost <vhost>] {_SOME} <queue>",
    (("<queue>", "queue with the dead letters"),),
    examples=(
        ("redrive --dry-run failed", "the number of messages that can go back, and why others cannot"),
        ("redrive --limit 100 failed", "the first 100 messages, as a test"),
    ),
)
def redrive(context: Context) -> None:
    _run(context, "Sending back dead letters of", {"action": "redrive"})


@_command(
    "Puts settled messages since a time or offset back into their queue, or copies them to another one",
    "[--vhost <vhost>] --to-time <time> | --to-offset <offset> [--until-time <time> | --until-offset <offset>] "
    f"[--to-queue <queue>] {_SOME} <queue>",
    (("<queue>", "queue that retains settled messages (x-retain)"),),
    examples=(
        ("rewind_queue --to-time 2026-11-21T08:00:00 --dry-run orders", "only the number of messages"),
        ("rewind_queue --to-offset 5000 --where \"customer = 'acme'\" orders", "the messages of one customer"),
        ("rewind_queue --to-offset 0 --to-queue audit orders", "all retained messages, into another queue"),
    ),
)
def rewind_queue(context: Context) -> None:
    given = context.line.given
    body: dict[str, object] = {"action": "rewind"}
    if ("to-time" in given) == ("to-offset" in given):
        raise UsageError("one of --to-time and --to-offset is needed")
    if "until-time" in given and "until-offset" in given:
        raise UsageError("--until-time or --until-offset, not both")
    for option, name in (("to-offset", "offset"), ("until-offset", "until_offset")):
        if option in given:
            body[name] = context.line.number(option)
    for option, name in (("to-time", "time"), ("until-time", "until_time"), ("to-queue", "to_queue")):
        if option in given:
            body[name] = given[option]
    _run(context, "Rewinding", body)


def _target(context: Context) -> dict[str, object]:
    given = context.line.given
    if ("to-queue" in given) == ("to-exchange" in given):
        raise UsageError("one of --to-queue and --to-exchange is needed")
    body: dict[str, object] = {}
    for option in ("to-queue", "to-exchange", "routing-key"):
        if option in given:
            body[option.replace("-", "_")] = given[option]
    return body


def _begin(context: Context) -> dict[str, object]:
    given = context.line.given
    if "from-offset" in given and "from-time" in given:
        raise UsageError("--from-offset or --from-time, not both")
    if "from-offset" in given:
        return {"offset": context.line.number("from-offset")}
    return {"time": given["from-time"]} if "from-time" in given else {}


def _run(context: Context, what: str, body: dict[str, object]) -> None:
    given = context.line.given
    if "where" in given:
        body["where"] = given["where"]
    if "limit" in given:
        body["limit"] = context.line.number("limit")
    if "dry-run" in given:
        body["dry_run"] = True
    context.info(f"{what} queue '{context.operands[0]}' in vhost '{context.vhost}' ...")
    detach = "detach" in given
    body["wait_ms"] = 0 if detach else WAIT_MS
    job = context.client.send("POST", f"{_queue(context)}/jobs", body).accepted().data
    if detach:
        context.success(f"Job {job['id']} has begun: amqpctl list_jobs")
        return
    try:
        job = _follow(context, job)
    except KeyboardInterrupt:
        raise Failure(SOFTWARE, f"job {job['id']} continues. To stop it: amqpctl stop_job {job['id']}") from None
    _tell(context, job)


def _follow(context: Context, job: Item) -> Item:
    while job["ended"] is None:
        waits = f", waits: {job['reason']}" if job["state"] == "waiting" else ""
        context.warn(f"{job['done']} of {job['messages']} messages, {job['rate']} per second{waits}")
        answer = context.client.send("GET", f"/api/amqpd/jobs/{quoted(job['id'])}?wait_ms={WAIT_MS}")
        if answer.status == 404:
            raise Failure(UNAVAILABLE, f"job {job['id']} is unknown: the broker was restarted")
        job = answer.accepted().data
    return job


def _tell(context: Context, job: Item) -> None:
    verb = DONE[job["action"]]
    if job["hint"]:
        context.warn(job["hint"])
    left = "".join(f"\n{count} left: {why}" for why, count in sorted(job["left"].items()))
    if job["action"] == "rewind":
        left = f" from offset {job['from_offset']} on{left}"
    if job["dry_run"]:
        context.success(f"{job['done']} messages would be {verb}{left}")
        return
    text = f"{job['done']} messages {verb}{left}"
    if job["state"] != "done":
        raise Failure(SOFTWARE, f"{job['state']}: {job['reason'] or 'by hand'}; {text}")
    context.success(text)


@_command(
    "Lists running and recent jobs that move, copy, delete, redrive or rewind messages",
    "[--no-table-headers] [<column> ...]",
    columns=JOBS.names(),
    shown=len(JOBS.default),
    examples=(
        (
            "list_jobs id queue state reason done left",
            "with the reason for waiting, and messages left in the queue",
        ),
    ),
)
def list_jobs(context: Context) -> None:
    columns = wanted(JOBS, context.operands)
    context.info("Listing jobs ...")
    show_items(context, JOBS, columns, context.client.get(JOBS.path))


@_command(
    "Stops a job; messages that it has not moved stay in their queue",
    "<job>",
    (("<job>", "ID of the job, see list_jobs"),),
    examples=(("stop_job 3", "stops the job with the ID 3"),),
)
def stop_job(context: Context) -> None:
    id_ = context.operands[0]
    context.info(f"Stopping job {id_} ...")
    job = context.client.send("DELETE", f"/api/amqpd/jobs/{quoted(id_)}").accepted().data
    context.success(f"Job {id_} is {job['state']} after {job['done']} messages")


LIMIT_MAX: Final = 10_000


@_command(
    "Lists delayed messages, the next due message first",
    "[--vhost <vhost>] [--exchange <exchange>] [--limit <number>] [--no-table-headers] [<column> ...]",
    columns=DELAYED.names(),
    shown=len(DELAYED.default),
    examples=(
        ("list_delayed_messages -p shop", "the next 100: IDs, and due times in ms since 1970"),
        ("list_delayed_messages --exchange reminders --limit 5 id due", "the next five messages of one exchange"),
    ),
)
def list_delayed_messages(context: Context) -> None:
    columns = wanted(DELAYED, context.operands)
    given = context.line.given
    path = DELAYED.path.format(vhost=quoted(context.vhost))
    if "exchange" in given:
        path += f"/{quoted(given['exchange'])}"
    if "limit" in given:
        limit = context.line.number("limit")
        if not 1 <= limit <= LIMIT_MAX:
            raise UsageError(f"The limit should be a whole number from 1 to {LIMIT_MAX}, not '{limit}'")
        path += f"?limit={limit}"
    context.info(f"Listing delayed messages in vhost {context.vhost} ...")
    show_items(context, DELAYED, columns, context.client.get(path))


@_command(
    "Cancels a delayed message",
    "[--vhost <vhost>] <id>",
    (("<id>", "ID of the message, see list_delayed_messages"),),
    examples=(("cancel_delayed_message -p shop 018bcfe56800-00018bcfe5680000", "deletes the message"),),
)
def cancel_delayed_message(context: Context) -> None:
    message = context.operands[0]
    context.info(f"Cancelling delayed message '{message}' in vhost '{context.vhost}' ...")
    path = f"{DELAYED.path.format(vhost=quoted(context.vhost))}/{quoted(message)}"
    context.client.send("DELETE", path).accepted()
    context.success()


_PID: Final = re.compile(r"<(?!0\.)[^<>]+\.[0-9]+\.[0-9]+>")  # rabbit: refuses <0.1.2>, which names no node


@_command(
    "Deletes the ready messages of a queue",
    "[--vhost <vhost>] <queue> [--timeout <timeout>]",
    (("<queue>", "the queue; unacked messages stay with their consumers"),),
    examples=(("purge_queue -p shop orders", "the queue has no ready messages"),),
)
def purge_queue(context: Context) -> None:
    name = context.operands[0]
    context.info(f"Purging queue '{name}' in vhost '{context.vhost}' ...")
    body = {"vhost": context.vhost, "queue": name}
    context.change("POST", "/api/amqpd/purge_queue", body, Failure(UNAVAILABLE, "Queue not found"))


@_command(
    "Deletes a queue",
    "[--vhost <vhost>] <queue_name> [--if-empty|-e] [--if-unused|-u] [--timeout <timeout>]",
    (("<queue_name>", "the queue"),),
    examples=(("delete_queue -p shop orders --if-empty", "exit code 64 if the queue has messages"),),
)
def delete_queue(context: Context) -> None:
    name = context.operands[0]
    if_empty, if_unused = "if-empty" in context.line.given, "if-unused" in context.line.given
    conditions = ["if queue is empty"] * if_empty + ["if queue is unused"] * if_unused
    condition = f"{' and '.join(conditions)} " if conditions else ""
    context.info(f"Deleting queue '{name}' on vhost '{context.vhost}' {condition}...")
    body = {"vhost": context.vhost, "queue": name, "if_empty": if_empty, "if_unused": if_unused}
    answer = context.client.send("POST", "/api/amqpd/delete_queue", body)
    # rabbit: all three errors are 64
    if answer.status == 400 and answer.reason.endswith("in use"):
        raise Failure(USAGE, "Queue is in use")
    if answer.status == 400 and answer.reason.endswith("not empty"):
        raise Failure(USAGE, "Queue is not empty")
    answer.checked(Failure(USAGE, "Queue not found"))
    context.success(f"Queue was successfully deleted with {answer.data['message_count']} ready messages")


@command(
    OPERATIONS,
    "Closes the connection with this pid",
    "<connection pid> <explanation>",
    (
        ("<connection pid>", "connection identifier, see list_connections pid"),
        ("<explanation>", "reason; the client gets it with code 320"),
    ),
    examples=(("close_connection '<amqpd@host.3.0>' 'too many channels'", "a shell needs the quotes"),),
)
def close_connection(context: Context) -> None:
    pid, reason = context.operands
    context.info(f"Closing connection {pid}, reason: {reason}...")
    if _PID.fullmatch(pid) is None:
        raise Failure(UNAVAILABLE, f'invalid pid "{pid}". See: amqpctl list_connections pid name')
    answer = context.client.send("POST", "/api/amqpd/close_connection", {"pid": pid, "reason": reason})
    if answer.status == 404:
        context.warn(f"There is no connection {pid}. Was it already closed?")  # rabbit: exit 0
    else:
        answer.checked()
    context.success()


@command(
    OPERATIONS,
    "Closes the connections of a vhost, or all connections",
    "[--vhost <vhost> --limit <limit>] [--global] [--per-connection-delay <delay>] <explanation>",
    (("<explanation>", "reason; clients get it with code 320"),),
    examples=(
        ("close_all_connections 'maintenance'", "the connections of vhost /"),
        ("close_all_connections --global --per-connection-delay 50 'maintenance'", "all, 20 per second"),
    ),
)
def close_all_connections(context: Context) -> None:
    reason = context.operands[0]
    everywhere = context.all_vhosts("vhost")
    limit = context.line.number("limit")
    body: dict[str, object] = {
        "reason": reason,
        "limit": limit,
        "per_connection_delay_ms": context.line.number("per-connection-delay"),
    }
    if not everywhere:
        body["vhost"] = context.vhost
    scope = f"to node {context.node} (across all vhosts)" if everywhere else f"in vhost {context.vhost}"
    context.info(f"Closing {limit or 'all'} connections {scope}, reason: {reason}...")
    context.no_timeout()
    answer = context.client.send("POST", "/api/amqpd/close_all_connections", body).checked()
    context.success(f"Closed {answer.data['closed']} connections")


@_command(
    "Shows the present and earlier queues of messages with an ID, as far as the logs have them",
    "[--vhost <vhost>] [--correlation-id] [--no-table-headers] <id> [<column> ...]",
    (("<id>", "the property message_id"),),
    columns=FOUND.names(),
    shown=len(FOUND.default),
    examples=(
        ("trace_message 8f1c", "its queues and states: ready, unacked (with the consumer), settled or gone"),
        ("trace_message --correlation-id order-7 queue state time", "all messages with one correlation_id"),
    ),
)
def trace_message(context: Context) -> None:
    columns = wanted(FOUND, context.operands[1:])
    id_ = context.operands[0]
    query: dict[str, object] = {"id": id_}
    if "correlation-id" in context.line.given:
        query["by"] = "correlation_id"
    context.info(f"Looking for message {id_} in vhost {context.vhost} ...")
    found: list[Item] = []
    going_on: dict[str, object] = {}
    skipped = 0
    while True:
        answer = context.client.get(f"/api/amqpd/trace/{quoted(context.vhost)}?{urlencode({**query, **going_on})}")
        found += answer["found"]
        skipped += answer["skipped"]
        if answer["next"] is None:
            break
        going_on = answer["next"]
        context.warn(f"{len(found)} found, looking at queue {going_on['queue']}, offset {going_on['offset']}")
    rows = [*found, *_gone(found)]
    context.show(columns, [[value(item, FOUND, name) if name in item else "" for name in columns] for item in rows])
    if not found:
        context.warn("No log has the message: it was never stored here, or it was settled and deleted from the logs")
    if skipped:
        context.warn(f"{skipped} queues were not searched: no permission to read, or no access to the log")


def _gone(found: list[Item]) -> list[Item]:
    """Return the queues in x-death whose logs do not have the message any more."""
    there = {item["queue"] for item in found}
    gone: dict[tuple[str, str], Item] = {}
    for item in found:
        for death in item["deaths"] if isinstance(item["deaths"], list) else []:
            if not isinstance(death, dict) or death.get("queue") in there:
                continue
            queue, reason = str(death.get("queue")), str(death.get("reason"))
            place = {"queue": queue, "state": "gone", "reason": reason, "count": death.get("count", 1)}
            gone.setdefault((queue, reason), {**place, "exchange": death.get("exchange", "")})
    return list(gone.values())
