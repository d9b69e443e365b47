"""Logins that were tried: how many went well and how many did not, by protocol and, where asked for, by source.

RabbitMQ's paths and fields; `amqpctl list_node_auth_attempt_stats` shows them.
"""

from __future__ import annotations

from typing import Any, Final

from amqpd.management.request import NO_CONTENT, Call, Reply, Role
from amqpd.management.listing import listing
from amqpd.management.overview import this_node
from amqpd.management.router import Route


def _counts(count: list[int]) -> dict[str, int]:
    right, wrong = count
    return {"auth_attempts": right + wrong, "auth_attempts_succeeded": right, "auth_attempts_failed": wrong}


async def by_protocol(call: Call) -> Reply:
    """Logins tried, by protocol."""
    this_node(call)
    found = call.broker.auth.attempts.by_protocol

    def item(protocol: str) -> dict[str, Any]:
        return {"protocol": protocol, **_counts(found[protocol])}

    return await listing(call, list(found), item, str)


async def by_source(call: Call) -> Reply:
    """Those since `PUT /api/amqpd/auth_attempt_sources`: 10,000 at most, see amqpd/auth/login_throttle.py."""
    this_node(call)
    found = list(call.broker.auth.attempts.by_source.items())

    def item(entry: tuple[Any, list[int]]) -> dict[str, Any]:
        source, count = entry
        return {
            "remote_address": source.address,
            "username": source.user,
            "protocol": source.protocol,
            **_counts(count),
        }

    return await listing(call, found, item, lambda entry: str(entry[0]))


async def forget(call: Call) -> Reply:
    """Sets the counts of logins to zero."""
    this_node(call)
    call.broker.auth.attempts.forget()
    return NO_CONTENT


async def forget_sources(call: Call) -> Reply:
    """Counts of logins by address begin anew."""
    this_node(call)
    call.broker.auth.attempts.forget(sources_only=True)
    return NO_CONTENT


async def track_sources(call: Call) -> Reply:
    """Counts logins by address and user, or no more: what was kept goes then."""
    attempts = call.broker.auth.attempts
    attempts.track_sources = call.flag("on")
    if not attempts.track_sources:
        attempts.forget(sources_only=True)
    return NO_CONTENT


_PATH: Final = "api/auth/attempts/{node}"

ROUTES: Final = (
    Route("GET", _PATH, Role.MONITORING, by_protocol),
    Route("DELETE", _PATH, Role.ADMINISTRATOR, forget),
    Route("GET", f"{_PATH}/source", Role.MONITORING, by_source),
    Route("DELETE", f"{_PATH}/source", Role.ADMINISTRATOR, forget_sources),
    Route("PUT", "api/amqpd/auth_attempt_sources", Role.ADMINISTRATOR, track_sources),
)
