"""What holds publishers back: limits of memory and disk, alarms by hand, until the broker's next start; and the clock.

Texts, units and exit codes are rabbitmqctl 3.10's, measured; `set_alarm`, `clear_alarm`, `accept_clock` are ours.
"""

from __future__ import annotations

import re
from typing import Final

from amqpd.cli.command import Command, Context
from amqpd.cli.errors import DATA, UsageError

GROUP: Final = "Configuration and Environment"
ALARMS: Final = ("memory", "disk")

_SIZE: Final = re.compile(r"([0-9]{1,18})(?:([kmg])(i?b)?)?", re.IGNORECASE)


def size_bytes(text: str) -> int:
    """rabbit: `k`, `KiB` are 1024 bytes, `kB` 1000; likewise M and G. Raises: UsageError (65)."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise _bad()
    size = int(found[1])
    for _ in range(" kmg".index((found[2] or " ").lower())):
        size *= 1000 if (found[3] or "").lower() == "b" else 1024
    return size


def _fraction(text: str) -> float:
    """Raises: UsageError (65)."""
    try:
        return float(text)
    except ValueError:
        raise _bad() from None


def _bad(why: str = ".") -> UsageError:
    return UsageError(f"Bad argument{why}", DATA)


def _check_count(context: Context, word: str) -> None:
    """`word VALUE`, or one value alone. Raises: UsageError."""
    most = 2 if context.operands[0] == word else 1
    if len(context.operands) < most:
        raise UsageError("not enough arguments.")
    if len(context.operands) > most:
        raise UsageError("too many arguments.")


def set_disk_free_limit(context: Context) -> None:
    _check_count(context, "mem_relative")
    text = context.operands[-1]
    body: dict[str, object]
    if len(context.operands) == 2:
        fraction = _fraction(text)
        if not 0 <= fraction < float("inf"):
            raise _bad()
        body, said = {"mem_relative": fraction}, f"{text} times the total RAM"
    else:
        body, said = {"bytes": size_bytes(text)}, f"{text} bytes"
    context.say(f"Setting disk free limit on {context.node} to {said} ...")
    _change(context, "PUT", "disk_free_limit", body)


def set_vm_memory_high_watermark(context: Context) -> None:
    _check_count(context, "absolute")
    text = context.operands[-1]
    body: dict[str, object]
    if len(context.operands) == 2:
        limit_bytes = size_bytes(text)
        if not limit_bytes:
            raise _bad()
        body, said = {"bytes": limit_bytes}, f"{text} bytes"
    else:
        share = _fraction(text)
        if not 0 <= share <= 1:
            raise _bad(": The threshold should be a fraction between 0.0 and 1.0")
        body, said = {"share": share}, text
    context.say(f"Setting memory threshold on {context.node} to {said} ...")
    _change(context, "PUT", "memory_high_watermark", body)


def set_alarm(context: Context) -> None:
    kind = _alarm(context)
    context.say(f"Setting alarm '{kind}' on {context.node} ...")
    _change(context, "PUT", f"alarms/{kind}")


def clear_alarm(context: Context) -> None:
    kind = _alarm(context)
    context.say(f"Clearing alarm '{kind}' on {context.node} ...")
    _change(context, "DELETE", f"alarms/{kind}")


def accept_clock(context: Context) -> None:
    context.say(f"Accepting the wall clock of {context.node} ...")
    found = context.client.send("GET", "/api/amqpd/clock").checked().data
    if found["state"] == "steady":
        context.note("No jump of the clock is held")
    _change(context, "PUT", "clock")


def _alarm(context: Context) -> str:
    kind = context.operands[0]
    if kind not in ALARMS:
        raise _bad(f": there is no alarm '{kind}', it is memory or disk")
    return kind


def _change(context: Context, method: str, path: str, body: object = None) -> None:
    context.client.send(method, f"/api/amqpd/{path}", body).checked()
    context.done()


_KIND: Final = ("<alarm>", "memory or disk")
_LIMIT: Final = "in bytes, or with a unit: kB, MB, GB (1000), k, KiB, M, MiB, G, GiB (1024)"

COMMANDS: Final = (
    Command(
        "accept_clock",
        GROUP,
        "Lets retention, time to live and delays follow a wall clock that was set",
        accept_clock,
        "",
        0,
        0,
        (),
        examples=(("accept_clock", "date and 'amqpctl status' first: what is too old by this clock is deleted"),),
    ),
    Command(
        "clear_alarm",
        GROUP,
        "Ends an alarm that was set by hand",
        clear_alarm,
        "<alarm>",
        1,
        1,
        (_KIND,),
        examples=(("clear_alarm memory", "publishers go on, unless the memory is low indeed"),),
    ),
    Command(
        "set_alarm",
        GROUP,
        "Holds publishers as if memory or disk were low, until clear_alarm or the next start",
        set_alarm,
        "<alarm>",
        1,
        1,
        (_KIND,),
        examples=(("set_alarm disk", "who publishes gets connection.blocked: low on disk"),),
    ),
    Command(
        "set_disk_free_limit",
        GROUP,
        "Changes the free disk space below which publishers are held",
        set_disk_free_limit,
        "<disk_limit> | mem_relative <fraction>",
        1,
        2,
        (
            ("<disk_limit>", f"{_LIMIT}; the setting limits.disk_free_bytes is for good"),
            ("mem_relative <fraction>", "so many times the memory of the machine"),
        ),
        examples=(
            ("set_disk_free_limit 1GB", "with less free space publishers are held"),
            ("set_disk_free_limit mem_relative 1.5", "as much as half again of the memory"),
        ),
    ),
    Command(
        "set_vm_memory_high_watermark",
        GROUP,
        "Sets the vm_memory_high_watermark setting",
        set_vm_memory_high_watermark,
        "<fraction> | absolute <value>",
        1,
        2,
        (
            ("<fraction>", "a number between 0.0 and 1.0; the setting limits.memory_high_watermark is for good"),
            ("absolute <value>", _LIMIT),
        ),
        examples=(
            ("set_vm_memory_high_watermark 0.4", "the default"),
            ("set_vm_memory_high_watermark absolute 2GB", "with more in use publishers are held"),
        ),
    ),
)
