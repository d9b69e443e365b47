"""The firehose, on and off; events as they happen.

Texts are rabbitmqctl 3.10's, measured. A vhost that is missing is 65 here; rabbitmqctl says that it is traced.
"""

from __future__ import annotations

import re
import time
from functools import partial
from typing import Final

from amqpd.cli.command import Command, Context
from amqpd.cli.errors import NoSuchVhost, UsageError
from amqpd.cli.formatters import compact

_USAGE: Final = "[--vhost <vhost>]"
_GROUP: Final = "Virtual hosts"
FOLLOW_S: Final = 0.25


def _trace(on: bool, context: Context) -> None:
    context.say(f'{"Starting" if on else "Stopping"} tracing for vhost "{context.vhost}" ...')
    answer = context.client.send("POST", "/api/amqpd/trace", {"vhost": context.vhost, "on": on})
    answer.checked(NoSuchVhost(context.vhost))
    context.done(f"Trace {'enabled' if on else 'disabled'} for vhost {context.vhost}")


def consume_event_stream(context: Context) -> None:
    """rabbit: an object of JSON a line, whatever --formatter says. Asks again and again, as log_tail_stream does."""
    given = context.line.given
    seconds = context.line.number("duration") if "duration" in given else None
    try:
        pattern = re.compile(given.get("pattern", ""))
    except re.error as error:
        raise UsageError(f"Invalid options for this command:\n--pattern : {error}") from None
    span = "" if seconds is None else f" for {seconds} seconds"
    context.note(f"Streaming events from node {context.node}{span} ...")
    deadline = None if seconds is None else time.monotonic() + seconds
    position = context.client.get("/api/amqpd/events")["position"]
    while True:
        found = context.client.get(f"/api/amqpd/events?position={position}")
        position = found["position"]
        if found["lost"]:
            context.err.write(f"{found['lost']} events were too many and are not shown\n")
        for each in found["events"]:
            if pattern.search(each["event"]):
                context.out.write(compact(each) + "\n")
        context.out.flush()
        if deadline is not None and time.monotonic() >= deadline:
            return
        if not found["events"]:
            time.sleep(FOLLOW_S)


COMMANDS: Final = (
    Command(
        "consume_event_stream",
        "Monitoring, observability and health checks",
        "Displays what happens in the broker as it happens: an object of JSON a line",
        consume_event_stream,
        "[--duration <seconds>] [--pattern <pattern>]",
        options=("duration", "pattern"),
        examples=(
            ("consume_event_stream --pattern '^queue' --duration 60", "queues created and deleted within a minute"),
        ),
    ),
    Command(
        "trace_off",
        _GROUP,
        "Stops the firehose of a vhost",
        partial(_trace, False),
        _USAGE,
        examples=(("trace_off -p shop", "messages of shop are copied no more"),),
    ),
    Command(
        "trace_on",
        _GROUP,
        "Starts the firehose of a vhost: copies of what is published and delivered, until the next start",
        partial(_trace, True),
        _USAGE,
        examples=(("trace_on -p shop", "copies go through amq.rabbitmq.trace of shop"),),
    ),
)
