"""Messages of a queue shown, moved, copied, deleted, sent back to where they died or rewound; the jobs that do it.

A command that begins a job shows how far it is until it has ended; --detach leaves it to itself. Interrupted, the job
goes on: stop_job ends it.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

from amqpd.cli.client import Answer, quoted
from amqpd.cli.command import Command, Context
from amqpd.cli.errors import SOFTWARE, UNAVAILABLE, USAGE, Failure, UsageError
from amqpd.cli.listings import Item, Listing, plain, value, wanted

PAGE_COUNT: Final = 100
BROWSE_COUNT: Final = 100
"""Messages that are shown where --limit does not say how many."""
WAIT_MS: Final = 500
"""How often a job's progress is shown."""

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


def browse_queue(context: Context) -> None:
    columns = wanted(MESSAGES, context.operands[1:])
    left = context.line.number("limit") or BROWSE_COUNT
    query: dict[str, object] = _begin(context)
    if "where" in context.line.given:
        query["where"] = context.line.given["where"]
    context.say(f"Browsing queue {context.operands[0]} in vhost {context.vhost} ...")
    rows: list[list[Any]] = []
    while left > 0:
        asked = urlencode({**query, "count": min(left, PAGE_COUNT)})
        answer = context.client.send("GET", f"{_queue(context)}/messages?{asked}")
        if not answer.ok:
            raise _failure(answer)
        items: list[Item] = answer.data["messages"]
        rows += [[value(item, MESSAGES, name) for name in columns] for item in items]
        left -= len(items)
        if answer.data["ended"]:
            break
        query["offset"] = answer.data["next_offset"]
    context.show(columns, rows)
    if not rows and answer.data["hint"]:
        context.note(answer.data["hint"])


def move_messages(context: Context) -> None:
    _run(context, "Moving messages of", {"action": "move", **_target(context)})


def copy_messages(context: Context) -> None:
    _run(context, "Copying messages of", {"action": "copy", **_target(context), **_begin(context)})


def delete_messages(context: Context) -> None:
    given = context.line.given
    if "where" not in given and "limit" not in given:
        raise UsageError("delete_messages needs --where, or --limit; purge_queue deletes all that is ready")
    _run(context, "Deleting messages of", {"action": "delete"})


def redrive(context: Context) -> None:
    _run(context, "Sending back dead letters of", {"action": "redrive"})


def rewind_queue(context: Context) -> None:
    given = context.line.given
    body: dict[str, object] = {"action": "rewind"}
    if ("to-time" in given) == ("to-offset" in given):
        raise UsageError("--to-time or --to-offset is needed, one of them")
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
        raise UsageError("--to-queue or --to-exchange is needed, one of them")
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
    context.say(f"{what} queue '{context.operands[0]}' in vhost '{context.vhost}' ...")
    detach = "detach" in given
    answer = context.client.send("POST", f"{_queue(context)}/jobs", {**body, "wait_ms": 0 if detach else WAIT_MS})
    if not answer.ok:
        raise _failure(answer)
    job = answer.data
    if detach:
        context.done(f"Job {job['id']} has begun: amqpctl list_jobs")
        return
    try:
        job = _follow(context, job)
    except KeyboardInterrupt:
        raise Failure(SOFTWARE, f"job {job['id']} goes on. To stop it: amqpctl stop_job {job['id']}") from None
    _tell(context, job)


def _follow(context: Context, job: Item) -> Item:
    while job["ended"] is None:
        waits = f", waits: {job['reason']}" if job["state"] == "waiting" else ""
        context.note(f"{job['done']} of {job['messages']} messages, {job['rate']} per second{waits}")
        answer = context.client.send("GET", f"/api/amqpd/jobs/{quoted(job['id'])}?wait_ms={WAIT_MS}")
        if answer.status == 404:
            raise Failure(UNAVAILABLE, f"job {job['id']} is not known any more: the broker was restarted")
        if not answer.ok:
            raise _failure(answer)
        job = answer.data
    return job


def _tell(context: Context, job: Item) -> None:
    verb = DONE[job["action"]]
    if job["hint"]:
        context.note(job["hint"])
    left = "".join(f"\n{count} left: {why}" for why, count in sorted(job["left"].items()))
    if job["action"] == "rewind":
        left = f" from offset {job['from_offset']} on{left}"
    if job["dry_run"]:
        context.done(f"{job['done']} messages would be {verb}{left}")
        return
    text = f"{job['done']} messages {verb}{left}"
    if job["state"] != "done":
        raise Failure(SOFTWARE, f"{job['state']}: {job['reason'] or 'by hand'}; {text}")
    context.done(text)


def list_jobs(context: Context) -> None:
    columns = wanted(JOBS, context.operands)
    context.say("Listing jobs ...")
    items = context.client.get(JOBS.path)
    context.show(columns, [[value(item, JOBS, name) for name in columns] for item in items])


def stop_job(context: Context) -> None:
    id_ = context.operands[0]
    context.say(f"Stopping job {id_} ...")
    answer = context.client.send("DELETE", f"/api/amqpd/jobs/{quoted(id_)}")
    if not answer.ok:
        raise _failure(answer)
    context.done(f"Job {id_} is {answer.data['state']} after {answer.data['done']} messages")


def _failure(answer: Answer) -> Failure:
    """Of what is missing: 69. Of what cannot be done: 64."""
    if answer.status == 404:
        return Failure(UNAVAILABLE, answer.reason)
    return Failure(USAGE, answer.reason) if answer.status == 400 else answer.failure()


_QUEUE: Final = ("<queue>", "the queue that the messages are in")
_SOME: Final = "[--where <SQL>] [--limit <number>] [--dry-run] [--detach]"
_SOME_OPTIONS: Final = ("where", "limit", "detach")
_TO: Final = "--to-queue <queue> | --to-exchange <exchange> [--routing-key <key>]"

COMMANDS: Final = (
    Command(
        "browse_queue",
        "Queues",
        "Shows messages of a queue or stream, and leaves them as they are",
        browse_queue,
        "[--vhost <vhost>] [--where <SQL>] [--from-offset <offset> | --from-time <time>] [--limit <number>] "
        "[--no-table-headers] <queue> [<column> ...]",
        1,
        None,
        (_QUEUE,),
        ("where", "from-offset", "from-time", "limit", "no-table-headers"),
        MESSAGES.names(),
        len(MESSAGES.default),
        (
            ("browse_queue orders", f"the first {BROWSE_COUNT} messages, unacked ones too"),
            ("browse_queue --where \"customer = 'acme'\" orders offset headers", "those whose header says so"),
            ("browse_queue --from-time 2026-11-22T08:00:00 --formatter json orders", "what came since, as JSON"),
        ),
    ),
    Command(
        "move_messages",
        "Queues",
        "Moves messages of a queue to another one, or to an exchange",
        move_messages,
        f"[--vhost <vhost>] {_TO} {_SOME} <queue>",
        1,
        1,
        (_QUEUE,),
        ("to-queue", "to-exchange", "routing-key", *_SOME_OPTIONS),
        examples=(
            ("move_messages --to-queue later orders", "all that is ready"),
            ("move_messages --to-queue later --where \"customer = 'acme'\" orders", "one customer's"),
        ),
    ),
    Command(
        "copy_messages",
        "Queues",
        "Copies messages of a queue or stream to another queue, or to an exchange",
        copy_messages,
        f"[--vhost <vhost>] {_TO} [--from-offset <offset> | --from-time <time>] {_SOME} <queue>",
        1,
        1,
        (_QUEUE,),
        ("to-queue", "to-exchange", "routing-key", "from-offset", "from-time", *_SOME_OPTIONS),
        examples=(("copy_messages --to-queue test --limit 1000 orders", "the first thousand"),),
    ),
    Command(
        "delete_messages",
        "Queues",
        "Deletes messages of a queue, without dead-lettering them",
        delete_messages,
        f"[--vhost <vhost>] {_SOME} <queue>",
        1,
        1,
        (_QUEUE,),
        _SOME_OPTIONS,
        examples=(("delete_messages --where \"kind = 'test'\" orders", "what some test has left"),),
    ),
    Command(
        "redrive",
        "Queues",
        "Sends dead letters back to the queues where they died first",
        redrive,
        f"[--vhost <vhost>] {_SOME} <queue>",
        1,
        1,
        (("<queue>", "the queue that the dead letters are in"),),
        _SOME_OPTIONS,
        examples=(
            ("redrive --dry-run failed", "how many would go, and why the others would not"),
            ("redrive --limit 100 failed", "the first hundred, to see whether they succeed now"),
        ),
    ),
    Command(
        "rewind_queue",
        "Queues",
        "Puts back what was settled since some time or offset, as far as the queue retains it, or copies it elsewhere",
        rewind_queue,
        "[--vhost <vhost>] --to-time <time> | --to-offset <offset> [--until-time <time> | --until-offset <offset>] "
        f"[--to-queue <queue>] {_SOME} <queue>",
        1,
        1,
        (("<queue>", "the queue, which retains what was settled (x-retain)"),),
        ("to-time", "to-offset", "until-time", "until-offset", "to-queue", *_SOME_OPTIONS),
        examples=(
            ("rewind_queue --to-time 2026-11-21T08:00:00 --dry-run orders", "how many it would be"),
            ("rewind_queue --to-offset 5000 --where \"customer = 'acme'\" orders", "one customer's, again"),
            ("rewind_queue --to-offset 0 --to-queue audit orders", "all there is, into another queue"),
        ),
    ),
    Command(
        "list_jobs",
        "Queues",
        "Lists the jobs that move, copy, delete, redrive or rewind messages, and the last that have ended",
        list_jobs,
        "[--no-table-headers] [<column> ...]",
        0,
        None,
        (),
        ("no-table-headers",),
        JOBS.names(),
        len(JOBS.default),
        (("list_jobs id queue state reason done left", "what they wait for, and what they left"),),
    ),
    Command(
        "stop_job",
        "Queues",
        "Stops a job; what it has not moved stays where it is",
        stop_job,
        "<job>",
        1,
        1,
        (("<job>", "its id, see list_jobs"),),
        examples=(("stop_job 3", "the job with the id 3"),),
    ),
)
