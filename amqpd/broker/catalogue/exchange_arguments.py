"""Every argument of exchange.declare that means something to the broker: one row each, as of queues.

A row may be of some exchange types only (`kinds`); to the others, and where an argument has no row, it means nothing:
it is kept and shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from amqpd.broker.queues.argument_checks import Context, Row, erlang_type, is_text
from amqpd.broker.queues.arguments import NO_POLICY
from amqpd.errors import PreconditionFailed
from amqpd.routing.consistent_hash import HASH_HEADER, HASH_PROPERTY, HASHED_PROPERTIES


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
        ),
        Row(
            HASH_HEADER,
            _hash_header,
            True,
            "consistent_hash",
            "the header that is hashed in place of the routing key",
            kinds=frozenset(("x-consistent-hash",)),
        ),
        Row(
            HASH_PROPERTY,
            _hash_property,
            True,
            "consistent_hash",
            "the property that is: message_id, correlation_id or timestamp",
            kinds=frozenset(("x-consistent-hash",)),
        ),
    )
}


def validate(exchange: str, vhost: str, kind: str, arguments: Mapping[str, object]) -> None:
    """kind: the exchange's type. Raises: PreconditionFailed."""
    context = Context(exchange, vhost, arguments)
    for name, value in arguments.items():
        row = ROWS.get(name)
        if row is not None and _is_of(row, kind):
            row.check(row, value, context)


def _is_of(row: Row, kind: str) -> bool:
    return row.kinds is None or kind in row.kinds


def compared_names(kind: str) -> list[str]:
    """Those that two declarations of an exchange of this type must agree on.

    RabbitMQ compares alternate-exchange only, and has what else is asked for ignored.
    """
    return [row.name for row in ROWS.values() if row.compared and _is_of(row, kind)]


def alternate_of(arguments: Mapping[str, object], effective: Mapping[str, object] = NO_POLICY) -> str:
    """The exchange's alternate; "" for none. effective: by policy key, what the policies that match it say together.

    rabbit: the argument holds where both say something.
    """
    value = arguments.get("alternate-exchange", effective.get("alternate-exchange"))
    return value if isinstance(value, str) else ""
