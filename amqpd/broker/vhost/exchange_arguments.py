"""Every argument of exchange.declare that means something to the broker: one row each, as of queues.

A row may be of some exchange types only (`kinds`); to the others, and where an argument has no row, it means nothing:
it is kept and shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from amqpd.broker.queue.argument_checks import Context, Row, erlang_type, is_integer, is_text
from amqpd.broker.queue.arguments import NO_POLICY
from amqpd.errors import PreconditionFailed
from amqpd.routing.hashing import HASH_HEADER, HASH_PROPERTY, HASHED_PROPERTIES
from amqpd.routing.stateful import PERSISTENCE, SIZE, TTL
from amqpd.routing.headers import erlang_term
from amqpd.routing.recent_history import LENGTH


def _text(row: Row, value: object, context: Context) -> str:
    if not isinstance(value, str):
        raise PreconditionFailed(
            f"invalid type '{erlang_type(value)}' for arg '{row.name}' "
            f"in exchange '{context.name}' in vhost '{context.vhost}'"
        )
    return value


def _alternate(row: Row, value: object, context: Context) -> None:
    _text(row, value, context)


def _hash_header(row: Row, value: object, context: Context) -> None:
    _text(row, value, context)
    if HASH_PROPERTY in context.arguments:
        raise PreconditionFailed("hash-header and hash-property are mutually exclusive")


def _hash_property(row: Row, value: object, context: Context) -> None:
    name = _text(row, value, context)
    if HASH_HEADER in context.arguments:
        raise PreconditionFailed("hash-header and hash-property are mutually exclusive")
    if name not in HASHED_PROPERTIES:
        raise PreconditionFailed(f"Unsupported property: {name}")


def _history_length(row: Row, value: object, context: Context) -> None:
    if not is_integer(value) or not isinstance(value, int) or value < 1:
        raise PreconditionFailed(f"Invalid argument {erlang_term(value)}, '{row.name}' must be a positive integer")


def _cache_number(row: Row, value: object, context: Context) -> None:
    """A whole number from 1 on, or its digits: the plugin takes these, too."""
    if isinstance(value, str) and len(value) <= 20 and value.isascii() and value.isdecimal():
        value = int(value)
    if not is_integer(value) or not isinstance(value, int) or not 0 < value <= _CACHE_NUMBER_MAX:
        raise _bad_cache_number(row.name)


def _bad_cache_number(name: str) -> PreconditionFailed:
    begin = "Missing or invalid argument" if name == SIZE else "Invalid argument"
    return PreconditionFailed(f"{begin}, '{name}' must be an integer greater than 0")


def _cache_persistence(row: Row, value: object, context: Context) -> None:
    if value not in ("disk", "memory"):
        raise PreconditionFailed(f"Invalid argument, '{row.name}' must be either 'disk' or 'memory'")


_DEDUPLICATION: Final = "x-message-deduplication"
_CACHE_NUMBER_MAX: Final = 2**53


def _anything(_row: Row, _value: object, _context: Context) -> None:
    """The type judges it: see `routing_type`."""


def _boolean(row: Row, value: object, context: Context) -> None:
    if not isinstance(value, bool):
        raise PreconditionFailed(
            f"invalid arg '{row.name}' for exchange '{context.name}' in vhost '{context.vhost}': "
            f"{{unacceptable_type,{erlang_type(value)}}}"
        )


def is_flag(value: object) -> bool:
    return isinstance(value, bool)


DELAYED_MESSAGE: Final = "x-delayed-message"
"""The exchange type of this name is a way to wait in front of another one, which finds the destinations."""

ROWS: Final[dict[str, Row]] = {
    row.name: row
    for row in (
        Row(
            "alternate-exchange",
            _alternate,
            True,
            "exchange",
            "where messages go that no binding takes",
            policy="alternate-exchange",
            accepts=is_text,
            called="alternate exchange name",
            takes="text",
        ),
        Row(
            HASH_HEADER,
            _hash_header,
            True,
            "consistent_hash",
            "the header that is hashed in place of the routing key",
            kinds=frozenset(("x-consistent-hash",)),
            takes="text",
        ),
        Row(
            HASH_PROPERTY,
            _hash_property,
            True,
            "consistent_hash",
            "the property that is: message_id, correlation_id or timestamp",
            kinds=frozenset(("x-consistent-hash",)),
            takes="message_id|correlation_id|timestamp",
        ),
        Row(
            LENGTH,
            _history_length,
            True,
            "recent_history",
            "how many messages a new binding gets; default 20",
            kinds=frozenset(("x-recent-history",)),
            takes="messages",
        ),
        Row(
            SIZE,
            _cache_number,
            True,
            "deduplication",
            "how many ids are known at most; required",
            kinds=frozenset((_DEDUPLICATION,)),
            takes="number",
        ),
        Row(
            TTL,
            _cache_number,
            True,
            "deduplication",
            "how many ms each is known; default: while there is room",
            kinds=frozenset((_DEDUPLICATION,)),
            takes="ms",
        ),
        Row(
            PERSISTENCE,
            _cache_persistence,
            True,
            "deduplication",
            "memory (default) or disk, where the exchange is durable",
            kinds=frozenset((_DEDUPLICATION,)),
            takes="memory|disk",
        ),
        Row(
            "x-delayed-type",
            _anything,
            True,
            "exchange_arguments",
            "of an x-delayed-message exchange: the type by which it routes; any but itself",
            takes="text",
        ),
        Row(
            "x-delayed",
            _boolean,
            True,
            "exchange",
            "whether messages with a header x-deliver-at or x-delay wait here until they are due",
            policy="delayed-message",
            accepts=is_flag,
            called="delayed-message value",
            takes="flag",
        ),
    )
}


def validate(exchange: str, vhost: str, kind: str, arguments: Mapping[str, object]) -> None:
    """kind: the exchange's type. Raises: PreconditionFailed."""
    context = Context(exchange, vhost, arguments)
    if routing_type(kind, arguments) == _DEDUPLICATION and SIZE not in arguments:
        raise _bad_cache_number(SIZE)
    for name, value in arguments.items():
        row = ROWS.get(name)
        if row is not None and _is_of(row, kind, arguments):
            row.check(row, value, context)


def _is_of(row: Row, kind: str, arguments: Mapping[str, object]) -> bool:
    """One that delays first takes the arguments of the type it routes by, too."""
    if row.kinds is None or kind in row.kinds:
        return True
    return kind == DELAYED_MESSAGE and arguments.get("x-delayed-type") in row.kinds


def compared_names(kind: str, arguments: Mapping[str, object]) -> list[str]:
    """Those that two declarations of an exchange of this type and with these arguments must agree on.

    RabbitMQ compares alternate-exchange only, and has what else is asked for ignored.
    """
    return [row.name for row in ROWS.values() if row.compared and _is_of(row, kind, arguments)]


def alternate_of(arguments: Mapping[str, object], effective: Mapping[str, object] = NO_POLICY) -> str:
    """The exchange's alternate; "" for none. effective: by policy key, what the policies that match it say together.

    rabbit: the argument holds where both say something.
    """
    value = arguments.get("alternate-exchange", effective.get("alternate-exchange"))
    return value if isinstance(value, str) else ""


def delays_of(kind: str, arguments: Mapping[str, object], effective: Mapping[str, object] = NO_POLICY) -> bool:
    """Whether an exchange of this type delays messages. effective: as of `alternate_of`; the argument comes first."""
    return kind == DELAYED_MESSAGE or arguments.get("x-delayed", effective.get("delayed-message")) is True


def routing_type(kind: str, arguments: Mapping[str, object]) -> str:
    """The exchange type that finds the destinations of an exchange of this one. Raises: PreconditionFailed.

    rabbit: the texts are the plugin's.
    """
    if kind != DELAYED_MESSAGE:
        return kind
    routes_as = arguments.get("x-delayed-type")
    if routes_as == DELAYED_MESSAGE:
        raise PreconditionFailed("Invalid argument, 'x-delayed-type' can't be used for 'x-delayed-message'")
    if not isinstance(routes_as, str):
        raise PreconditionFailed("Invalid argument, 'x-delayed-type' must be an existing exchange type")
    return routes_as
