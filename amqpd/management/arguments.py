"""Arguments of queues and exchanges, and policy keys: names, types and meanings for a form that offers them.

The rows come from the broker's tables (`broker/queue/arguments.py`, `broker/vhost/exchange.py`). Arguments that are
ignored or refused are not included. RabbitMQ has no such path.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypedDict

from amqpd.broker.queue import arguments as queue_arguments
from amqpd.broker.queue.argument_checks import ArgumentSpec
from amqpd.broker.vhost import exchange
from amqpd.management.request import ApiRequest, ApiResponse, Role, reply
from amqpd.management.router import ApiRoute


class ArgumentValue(TypedDict):
    """unit: the unit of a number, empty for none. words: the values of a choice."""

    value: Literal["text", "flag", "number", "choice"]
    unit: str
    words: list[str]


class PolicyKeyItem(ArgumentValue):
    """operator: whether operator policies have this key."""

    name: str
    operator: bool


class Argument(ArgumentValue):
    """types: the types of queue or exchange that take it; null for all."""

    of: Literal["queue", "exchange"]
    name: str
    meaning: str
    types: list[str] | None
    policy: PolicyKeyItem | None


_UNITS: Final = {"ms": "ms", "bytes": "bytes", "messages": "messages", "number": ""}


def known_arguments() -> list[dict[str, Any]]:
    """Return an item for each argument of a queue or an exchange that has an effect."""
    tables = (("queue", queue_arguments.ROWS), ("exchange", exchange.ROWS))
    return [_item(of, row) for of, rows in tables for row in rows.values() if row.takes]


def _item(of: str, row: ArgumentSpec) -> dict[str, Any]:
    """Return one argument for a form.

    `types` are the types of queue or exchange that take it, null for all. `policy` is the policy key with the same
    effect, null if there is none.
    """
    key = row.policy
    return {
        "of": of,
        "name": row.name,
        "meaning": row.meaning,
        "types": None if row.kinds is None else sorted(row.kinds),
        **_value(row.takes),
        "policy": key and {"name": key.name, "operator": key.operator, **_value(key.takes or row.takes)},
    }


def _value(takes: str) -> dict[str, Any]:
    """Return the type (text, flag, number or choice), the unit of a number and the words of a choice."""
    if takes in _UNITS:
        return {"value": "number", "unit": _UNITS[takes], "words": []}
    if "|" in takes:
        return {"value": "choice", "unit": "", "words": takes.split("|")}
    return {"value": takes, "unit": "", "words": []}


async def get_arguments(call: ApiRequest) -> ApiResponse:
    """List the arguments of queues and exchanges, and the policy keys with the same effect; with types, units and
    meanings.
    """
    return reply(known_arguments())


ROUTES: Final = (ApiRoute("GET", "api/amqpd/arguments", Role.MANAGEMENT, get_arguments),)
