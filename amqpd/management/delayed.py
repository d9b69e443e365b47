"""Delayed messages: /delayed, those of a vhost or an exchange, and one that is cancelled. RabbitMQ has no such routes.

To look takes the read permission on the exchange, to cancel write: who may publish a message may take it back. What
they say stays with the broker: bodies are not shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from amqpd.broker.delayed.listing import Found, cancel, first
from amqpd.broker.delayed.stored import from_name
from amqpd.management.request import NO_CONTENT, BadRequest, Call, NotAuthorised, NotThere, Reply, Role, number, reply
from amqpd.management.router import Route
from amqpd.management.time_slice import Slices

if TYPE_CHECKING:
    from amqpd.broker.vhost.vhost import VHost
    from amqpd.broker.delayed.timing_wheel import Wheel

LIMIT: Final = 100
LIMIT_MAX: Final = 10_000


async def get_delayed(call: Call) -> Reply:
    """Delayed messages that are due next: `limit` of them (100), of the exchange, or of all in the vhost that he may
    read.
    """
    vhost = call.vhost()
    limit = number("limit", call.query.get("limit", LIMIT), 1, LIMIT_MAX)
    if "exchange" in call.params:
        exchange = call.exchange()
        call.check(vhost.name, "read", "exchange", exchange.name)
        wheels = [wheel for wheel in call.broker.delays.of_vhost(vhost.name) if wheel.exchange == exchange.name]
    else:
        wheels = _allowed(call, vhost, "read")
    slices = Slices()
    items: list[dict[str, Any]] = []
    for found in first(wheels, limit):
        if found is not None:
            items = [_item(vhost, each) for each in found]
        elif slices.due:
            await slices.rest()
    return reply(items)


def _allowed(call: Call, vhost: VHost, kind: Literal["read", "write"]) -> list[Wheel]:
    found = []
    for wheel in call.broker.delays.of_vhost(vhost.name):
        try:
            call.check(vhost.name, kind, "exchange", wheel.exchange)
        except NotAuthorised:
            continue
        found.append(wheel)
    return found


def _item(vhost: VHost, found: Found) -> dict[str, Any]:
    return {
        "id": found.id,
        "vhost": vhost.name,
        "exchange": found.exchange,
        "due": found.due_ms,
        "published_to": found.published_to,
        "routing_keys": found.routing_keys,
        "payload_bytes": found.size_bytes,
        "persistent": found.persistent,
    }


async def delete_delayed(call: Call) -> Reply:
    """Cancels the delayed message; 204 when it will not be delivered, 404 where it is not there, or on its way to its
    queues already."""
    vhost = call.vhost()
    name = call.params["id"]
    try:
        due_ms, message_number = from_name(name)
    except ValueError:
        raise BadRequest(f"'{name}' is no id of a delayed message") from None
    slices = Slices()
    for wheel in _allowed(call, vhost, "write"):
        for found in cancel([wheel], due_ms, message_number):
            if found:
                return NO_CONTENT
            if slices.due:
                await slices.rest()
    raise NotThere(f"no message '{name}' is delayed in vhost '{vhost.name}'")


ROUTES: Final = (
    Route("GET", "api/delayed/{vhost}", Role.MANAGEMENT, get_delayed),
    Route("GET", "api/delayed/{vhost}/{exchange}", Role.MANAGEMENT, get_delayed),
    Route("DELETE", "api/delayed/{vhost}/{id}", Role.MANAGEMENT, delete_delayed),
)
