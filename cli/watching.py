"""The firehose, on and off.

Texts are rabbitmqctl 3.10's, measured. A vhost that is missing is 65 here; rabbitmqctl says that it is traced.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from amqpd.cli.command import Command, Context
from amqpd.cli.errors import NoSuchVhost

_USAGE: Final = "[--vhost <vhost>]"
_GROUP: Final = "Virtual hosts"


def _trace(on: bool, context: Context) -> None:
    context.say(f'{"Starting" if on else "Stopping"} tracing for vhost "{context.vhost}" ...')
    answer = context.client.send("POST", "/api/amqpd/trace", {"vhost": context.vhost, "on": on})
    answer.checked(NoSuchVhost(context.vhost))
    context.done(f"Trace {'enabled' if on else 'disabled'} for vhost {context.vhost}")


COMMANDS: Final = (
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
