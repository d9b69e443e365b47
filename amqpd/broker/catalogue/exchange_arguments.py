"""Every argument of exchange.declare that means something to the broker: one row each, as of queues.

Exchange types look at arguments of their own. What has no row is kept and shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from amqpd.broker.queues.argument_checks import Context, Row, erlang_type, is_text
from amqpd.broker.queues.arguments import NO_POLICY
from amqpd.errors import PreconditionFailed


def _alternate(row: Row, value: object, context: Context) -> None:
    if not isinstance(value, str):
        raise PreconditionFailed(
            f"invalid type '{erlang_type(value)}' for arg '{row.name}' "
            f"in exchange '{context.name}' in vhost '{context.vhost}'"
        )


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
    )
}


def validate(exchange: str, vhost: str, arguments: Mapping[str, object]) -> None:
    """Raises: PreconditionFailed."""
    context = Context(exchange, vhost, arguments)
    for name, value in arguments.items():
        row = ROWS.get(name)
        if row is not None:
            row.check(row, value, context)


def compared_names() -> list[str]:
    return [row.name for row in ROWS.values() if row.compared]


def alternate_of(arguments: Mapping[str, object], effective: Mapping[str, object] = NO_POLICY) -> str:
    """The exchange's alternate; "" for none. effective: by policy key, what the policies that match it say together.

    rabbit: the argument holds where both say something.
    """
    value = arguments.get("alternate-exchange", effective.get("alternate-exchange"))
    return value if isinstance(value, str) else ""
