"""The base of exchange types that answer once for a message, however many routing keys it has (CC and BCC bring more),
and that may look at all of it.

Ordinary types are asked for each key by itself, and need no base. A type derives from this one where two answers for
one message would be wrong (one of several queues gets it) or where headers do not do (`message_id`, chance, memory).

A destination is opaque to a type; what tells it from the others is its label, which is the same after a restart.
Compiled by mypyc; guests may subclass it.

A message as an exchange sees it that is given its routing key and headers, and nothing else of it. Compiled by
mypyc.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, final

from mypy_extensions import mypyc_attr

from amqpd.routing.base import ROUTING_KEY
from amqpd.routing.selector_ast import Selectable
from amqpd.routing.selector_fields import ROUTING_KEY_FIELD

if TYPE_CHECKING:
    from amqpd.routing.base import Arguments


@final
class RoutedMessage(Selectable):
    """headers: decoded, not to be changed."""

    def __init__(self, key: str, headers: dict[str, object]) -> None:
        self._key = key
        self._headers = headers

    def headers(self) -> dict[str, object]:
        return self._headers

    def field(self, number: int) -> object:
        return self._key if number == ROUTING_KEY_FIELD else None


def destination_label(destination: object) -> str:
    """What tells a destination from others, in this life and the next: its kind and its name.

    An exchange says of itself that it is one (`destination_type`); a test's destinations are their own names.
    """
    kind = getattr(destination, "destination_type", "queue")
    name = getattr(destination, "name", destination)
    return f"{kind}:{name}"


@mypyc_attr(allow_interpreted_subclasses=True)
class MessageExchangeType:
    """Matching structure of one exchange whose type looks at messages as a whole."""

    def __init__(self) -> None:
        # As `ExchangeType` has it. A type whose answer depends on its exchange's arguments says so in `configure`.
        self.depends_on: int = ROUTING_KEY

    def configure(self, arguments: Arguments) -> None:
        """The arguments of the exchange, which are checked. Called once, before anything is bound."""

    def validate(self, key: str, arguments: Arguments) -> None:
        """Called before `bind`. Raises: BadBinding, whose text goes to the client."""

    def validate_destination(self, kind: str) -> None:
        """Likewise. kind: of queue ("classic", "quorum", "stream"), or "exchange". Raises: BadBinding."""

    def bind(self, key: str, arguments: Arguments, destination: object) -> None:
        """As `ExchangeType.bind`."""
        raise NotImplementedError

    def unbind(self, key: str, arguments: Arguments, destination: object) -> None:
        """As `ExchangeType.unbind`."""
        raise NotImplementedError

    def route(self, keys: list[str], message: Selectable) -> Collection[object]:
        """Destinations of a message with these routing keys (its own first, then those of CC and BCC), each once; not
        to be changed. Raises: nothing.
        """
        raise NotImplementedError

    def match(self, key: str, headers: Arguments | None) -> set[object]:
        """As `ExchangeType.match`: of a message with this key alone. For types that look at nothing else."""
        return set(self.route([key], RoutedMessage(key, {} if headers is None else dict(headers))))
