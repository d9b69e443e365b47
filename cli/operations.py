"""Queues emptied and deleted, connections closed."""

from __future__ import annotations

import re
from typing import Final

from amqpd.cli.command import Command, Context
from amqpd.cli.errors import UNAVAILABLE, USAGE, Failure

_PID: Final = re.compile(r"<[^<>]+@[^<>]*\.[0-9]+\.[0-9]+>")


def purge_queue(context: Context) -> None:
    name = context.operands[0]
    context.say(f"Purging queue '{name}' in vhost '{context.vhost}' ...")
    answer = context.client.send("POST", "/api/amqpd/purge_queue", {"vhost": context.vhost, "queue": name})
    answer.checked(Failure(UNAVAILABLE, "Queue not found"))
    context.done()


def delete_queue(context: Context) -> None:
    name = context.operands[0]
    if_empty, if_unused = "if-empty" in context.line.given, "if-unused" in context.line.given
    conditions = ["if queue is empty"] * if_empty + ["if queue is unused"] * if_unused
    condition = f"{' and '.join(conditions)} " if conditions else ""
    context.say(f"Deleting queue '{name}' on vhost '{context.vhost}' {condition}...")
    body = {"vhost": context.vhost, "queue": name, "if_empty": if_empty, "if_unused": if_unused}
    answer = context.client.send("POST", "/api/amqpd/delete_queue", body)
    # rabbit: all three are 64
    if answer.status == 400 and answer.reason.endswith("in use"):
        raise Failure(USAGE, "Queue is in use")
    if answer.status == 400 and answer.reason.endswith("not empty"):
        raise Failure(USAGE, "Queue is not empty")
    answer.checked(Failure(USAGE, "Queue not found"))
    context.done(f"Queue was successfully deleted with {answer.data['message_count']} ready messages")


def close_connection(context: Context) -> None:
    pid, reason = context.operands
    context.say(f"Closing connection {pid}, reason: {reason}...")
    if _PID.fullmatch(pid) is None:
        raise Failure(UNAVAILABLE, f'invalid pid "{pid}". See: amqpctl list_connections pid name')
    answer = context.client.send("POST", "/api/amqpd/close_connection", {"pid": pid, "reason": reason})
    if answer.status == 404:
        context.note(f"There is no connection {pid}. Was it already closed?")  # rabbit: exit 0
    else:
        answer.checked()
    context.done()


def close_all_connections(context: Context) -> None:
    reason = context.operands[0]
    everywhere = context.everywhere("vhost")
    limit = context.line.number("limit")
    body: dict[str, object] = {
        "reason": reason,
        "limit": limit,
        "per_connection_delay_ms": context.line.number("per-connection-delay"),
    }
    if not everywhere:
        body["vhost"] = context.vhost
    scope = f"to node {context.node} (across all vhosts)" if everywhere else f"in vhost {context.vhost}"
    context.say(f"Closing {limit or 'all'} connections {scope}, reason: {reason}...")
    context.patient()
    answer = context.client.send("POST", "/api/amqpd/close_all_connections", body).checked()
    context.done(f"Closed {answer.data['closed']} connections")


COMMANDS: Final = (
    Command(
        "close_all_connections",
        "Operations",
        "Closes the connections of a vhost, or all of the node",
        close_all_connections,
        "[--vhost <vhost> --limit <limit>] [--global] [--per-connection-delay <delay>] <explanation>",
        1,
        1,
        (("<explanation>", "why; clients see it with code 320"),),
        ("limit", "global", "per-connection-delay"),
        examples=(
            ("close_all_connections 'maintenance'", "those of vhost /"),
            ("close_all_connections --global --per-connection-delay 50 'maintenance'", "all, twenty a second"),
        ),
    ),
    Command(
        "close_connection",
        "Operations",
        "Closes the connection with this pid",
        close_connection,
        "<connection pid> <explanation>",
        2,
        2,
        (
            ("<connection pid>", "connection identifier, see list_connections pid"),
            ("<explanation>", "why; the client sees it with code 320"),
        ),
        examples=(("close_connection '<amqpd@host.3.0>' 'too many channels'", "quotes, because of < and >"),),
    ),
    Command(
        "delete_queue",
        "Queues",
        "Deletes a queue",
        delete_queue,
        "[--vhost <vhost>] <queue_name> [--if-empty|-e] [--if-unused|-u] [--timeout <timeout>]",
        1,
        1,
        (("<queue_name>", "the queue"),),
        ("if-empty", "if-unused"),
        examples=(("delete_queue -p shop orders --if-empty", "exit code 64 if messages wait in it"),),
    ),
    Command(
        "purge_queue",
        "Queues",
        "Deletes the messages of a queue",
        purge_queue,
        "[--vhost <vhost>] <queue> [--timeout <timeout>]",
        1,
        1,
        (("<queue>", "the queue; messages that consumers have not acked stay theirs"),),
        examples=(("purge_queue -p shop orders", "the ready messages are gone"),),
    ),
)
