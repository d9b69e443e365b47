"""Before and after maintenance: `drain`, `revive`; `reload`. rabbit: `rabbitmq-upgrade drain`, which knows no grace."""

from __future__ import annotations

from typing import Final

from amqpd.cli.command import Command, Context
from amqpd.cli.errors import UsageError

GROUP: Final = "Operations"
GRACE_MAX_S: Final = 3600


def drain(context: Context) -> None:
    grace_s = context.line.number("grace") if "grace" in context.line.given else 0
    if not 0 <= grace_s <= GRACE_MAX_S:
        raise UsageError(f"--grace is from 0 to {GRACE_MAX_S} seconds")
    context.say(
        f"Will put node {context.node} into maintenance mode. The node will no longer serve any client traffic!"
    )
    context.patient()  # it answers when the grace is over
    context.client.send("POST", "/api/amqpd/drain", {"grace_s": grace_s}).checked()
    context.done()


def revive(context: Context) -> None:
    context.say(
        f"Will put node {context.node} back into regular operating mode. The node will again serve client traffic."
    )
    context.client.send("POST", "/api/amqpd/revive").checked()
    context.done()


def reload(context: Context) -> None:
    context.say(f"Reading the settings of node {context.node} again ...")
    context.patient()  # definitions may be many
    found = context.client.send("POST", "/api/amqpd/reload").checked().data
    for text, names in (("changed", found["changed"]), ("needs a restart", found["waiting"])):
        for name in names:
            context.out.write(f"{text}: {name}\n")
    if found["imported"]:
        context.out.write(f"imported again: {found['imported']}\n")
    context.done()


COMMANDS: Final = (
    Command(
        "reload", GROUP, "Reads the settings again, as SIGHUP does, certificates and definitions too", reload,
        examples=(("reload", "names what changed, and what needs a restart"),), needs_app=False,
    ),
    Command(
        "drain", GROUP, "Puts the broker into maintenance mode: nobody gets in, who is in has to go", drain,
        usage="[--grace <seconds>]",
        details=(("--grace <seconds>", "how long clients may go by themselves before they are closed; 0"),),
        options=("grace",),
        examples=(("drain --grace 30", "stops the broker's traffic; messages and the admin API stay"),),
        needs_app=False,
    ),
    Command(
        "revive", GROUP, "Ends maintenance mode: clients can connect again", revive,
        examples=(("revive", "on the same ports"),), needs_app=False,
    ),
)  # fmt: skip
