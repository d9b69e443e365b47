"""Limits of memory and disk, alarms by hand, the clock, and what else may be changed until the next start.

What is for good is a setting. For operators, and for clients' own test suites (`amqpctl eval`).
"""

from __future__ import annotations

from typing import Any, Final

from amqpd.broker.flow.alarms import REASONS
from amqpd.management.request import NO_CONTENT, BadRequest, Call, NotThere, Reply, Role, number, reply
from amqpd.management.router import Route

BYTES_MAX: Final = (1 << 63) - 1
CHANNEL_MAX: Final = 65535
RELATIVE_MAX: Final = 1000.0
USERS_MAX: Final = 1000


async def memory_high_watermark(call: Call) -> Reply:
    """Sets the memory alarm, above which publishers have to wait: a share of the memory, or bytes. Checked at once."""
    alarms, fields = call.broker.alarms, call.fields()
    if "bytes" in fields:
        alarms.limit_memory_bytes(number("bytes", fields["bytes"], 1, BYTES_MAX))
    else:
        alarms.limit_memory_share(_fraction(call, "share", 1))
    alarms.look()
    return reply({"limit_bytes": alarms.memory_limit_bytes})


async def disk_free_limit(call: Call) -> Reply:
    """Sets the disk alarm, below which publishers have to wait: bytes, or a multiple of the memory there is. Checked
    at once.
    """
    alarms, fields = call.broker.alarms, call.fields()
    if "bytes" in fields:
        limit_bytes = number("bytes", fields["bytes"], 0, BYTES_MAX)
    else:
        limit_bytes = int(alarms.memory_total_bytes * _fraction(call, "mem_relative", RELATIVE_MAX))
    alarms.disk_free_limit_bytes = limit_bytes
    alarms.look()
    return reply({"limit_bytes": limit_bytes})


def _fraction(call: Call, name: str, most: float) -> float:
    """Raises: BadRequest."""
    value = call.fields().get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= most:
        raise BadRequest(f"{name} is a number from 0 to {most:g}")
    return float(value)


async def set_alarm(call: Call) -> Reply:
    """Raises an alarm by hand."""
    call.broker.alarms.raise_by_hand(_kind(call))
    return NO_CONTENT


async def clear_alarm(call: Call) -> Reply:
    """Over, unless memory or disk are low indeed."""
    call.broker.alarms.clear_by_hand(_kind(call))
    return NO_CONTENT


def _kind(call: Call) -> str:
    """Raises: NotThere."""
    kind = call.params["name"]
    if kind not in REASONS:
        raise NotThere(f"there is no alarm '{kind}': memory or disk")
    return kind


def clock_state(call: Call) -> dict[str, Any]:
    """Return whether a jump of the wall clock is held, by how much it is ahead, and for how long it is held."""
    watch = call.broker.storage.clock_watch
    return {
        "state": "held" if watch.held else "steady",
        "jump_s": watch.jump_ms / 1000,
        "held_for_s": -(-watch.left_ms // 1000),
    }


async def get_clock(call: Call) -> Reply:
    """Whether a jump of the wall clock is held; `jump_s` is below 0 when the clock went back."""
    return reply(clock_state(call))


async def accept_clock(call: Call) -> Reply:
    """Accepts the wall clock as it is: retention, time to live and delays follow it now."""
    watch = call.broker.storage.clock_watch
    watch.accept()
    watch.save()
    return reply(clock_state(call))


async def set_channel_max(call: Call) -> Reply:
    """What connections that log in from now on are offered; 0: no limit."""
    call.broker.channel_max = number("value", call.fields().get("value"), 0, CHANNEL_MAX)
    return NO_CONTENT


async def get_loopback_users(call: Call) -> Reply:
    """Users who may log in from this machine only."""
    return reply({"value": sorted(call.broker.auth.loopback_users)})


async def set_loopback_users(call: Call) -> Reply:
    """Who is let in from a loopback address only, from the next login on."""
    value = call.fields().get("value")
    if not isinstance(value, list) or len(value) > USERS_MAX or not all(isinstance(name, str) for name in value):
        raise BadRequest(f"value is a list of at most {USERS_MAX} names")
    call.broker.auth.loopback_users = frozenset(value)
    return NO_CONTENT


ROUTES: Final = (
    Route("PUT", "api/amqpd/memory_high_watermark", Role.ADMINISTRATOR, memory_high_watermark),
    Route("PUT", "api/amqpd/disk_free_limit", Role.ADMINISTRATOR, disk_free_limit),
    Route("PUT", "api/amqpd/alarms/{name}", Role.ADMINISTRATOR, set_alarm),
    Route("DELETE", "api/amqpd/alarms/{name}", Role.ADMINISTRATOR, clear_alarm),
    Route("GET", "api/amqpd/clock", Role.MONITORING, get_clock),
    Route("PUT", "api/amqpd/clock", Role.ADMINISTRATOR, accept_clock),
    Route("PUT", "api/amqpd/channel_max", Role.ADMINISTRATOR, set_channel_max),
    Route("GET", "api/amqpd/loopback_users", Role.ADMINISTRATOR, get_loopback_users),
    Route("PUT", "api/amqpd/loopback_users", Role.ADMINISTRATOR, set_loopback_users),
)
