"""Messages that wait until they are due: shown, and cancelled."""

from __future__ import annotations

from typing import Final

from amqpd.cli.client import quoted
from amqpd.cli.command import Command, Context
from amqpd.cli.errors import UNAVAILABLE, USAGE, Failure, UsageError
from amqpd.cli.listings import Listing, plain, value, wanted

LIMIT_MAX: Final = 10_000
DELAYED: Final = Listing(
    "/api/delayed/{vhost}",
    ("id", "exchange", "due", "routing_keys"),
    plain("id", "exchange", "due", "routing_keys", "published_to", "payload_bytes", "persistent", "vhost"),
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
    context.say(f"Listing delayed messages in vhost {context.vhost} ...")
    answer = context.client.send("GET", path)
    if answer.status == 404:
        raise Failure(UNAVAILABLE, answer.reason)
    if not answer.ok:
        raise answer.failure()
    context.show(columns, [[value(item, DELAYED, name) for name in columns] for item in answer.data])


def cancel_delayed_message(context: Context) -> None:
    message = context.operands[0]
    context.say(f"Cancelling delayed message '{message}' in vhost '{context.vhost}' ...")
    answer = context.client.send("DELETE", f"{DELAYED.path.format(vhost=quoted(context.vhost))}/{quoted(message)}")
    if answer.status in (400, 404):
        raise Failure(UNAVAILABLE if answer.status == 404 else USAGE, answer.reason)
    if not answer.ok:
        raise answer.failure()
    context.done()


COMMANDS: Final = (
    Command(
        "list_delayed_messages",
        "Queues",
        "Lists the messages that wait until they are due, those that are due next first",
        list_delayed_messages,
        "[--vhost <vhost>] [--exchange <exchange>] [--limit <number>] [--no-table-headers] [<column> ...]",
        0,
        None,
        (),
        ("exchange", "limit", "no-table-headers"),
        DELAYED.names(),
        len(DELAYED.default),
        (
            ("list_delayed_messages -p shop", "the next 100: their ids, and when they are due, in ms since 1970"),
            ("list_delayed_messages --exchange reminders --limit 5 id due", "the next five of one exchange"),
        ),
    ),
    Command(
        "cancel_delayed_message",
        "Queues",
        "Cancels a message that waits until it is due",
        cancel_delayed_message,
        "[--vhost <vhost>] <id>",
        1,
        1,
        (("<id>", "as list_delayed_messages shows it"),),
        examples=(("cancel_delayed_message -p shop 018bcfe56800-00018bcfe5680000", "it is not delivered any more"),),
    ),
)
