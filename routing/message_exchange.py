"""Base class of exchange types that decide once per message.

The broker calls an ordinary type for each routing key of a message (CC and BCC add keys), with the headers only. A type
derives from `MessageExchangeType` if two answers for one message would be wrong, or if it needs more than headers:
`message_id`, randomness, earlier messages.

Compiled by mypyc; plugins may subclass it.
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
    """A message with only a routing key and headers. The headers are decoded and must not be changed."""

    def __init__(self, key: str, headers: dict[str, object]) -> None:
        self._key = key
        self._headers = headers

    def headers(self) -> dict[str, object]:
        return self._headers

    def field(self, number: int) -> object:
        return self._key if number == ROUTING_KEY_FIELD else None


def destination_label(destination: object) -> str:
    """Return kind and name of a destination: a label that is unique and the same after a restart.

    An exchange has the attribute `destination_type`. In tests a destination may be its own name.
    """
    kind = getattr(destination, "destination_type", "queue")
    name = getattr(destination, "name", destination)
    return f"{kind}:{name}"


@mypyc_attr(allow_interpreted_subclasses=True)
class MessageExchangeType:
    """The matching structure of an exchange that decides once per message."""

    def __init__(self) -> None:
        # See `ExchangeType`. A type may set it in `configure`, if it depends on the arguments of the exchange.
        self.depends_on: int = ROUTING_KEY

    def configure(self, arguments: Arguments) -> None:
        """Apply the arguments of the exchange, which are valid. Called once, before the first `bind`."""

    def validate(self, key: str, arguments: Arguments) -> None:
        """Check a binding before `bind`. Raises: BadBinding, whose text goes to the client."""

    def validate_destination(self, kind: str) -> None:
        """Check the type of a destination: "classic", "quorum", "stream" or "exchange". Raises: BadBinding."""

    def bind(self, key: str, arguments: Arguments, destination: object) -> None:
        """See `ExchangeType.bind`."""
        raise NotImplementedError

    def unbind(self, key: str, arguments: Arguments, destination: object) -> None:
        """See `ExchangeType.unbind`."""
        raise NotImplementedError

    def route(self, keys: list[str], message: Selectable) -> Collection[object]:
        """Return the destinations of a message, each once. Callers must not change the result. Must not raise.

        Args:
            keys: the routing key, then those of CC and BCC.
        """
        raise NotImplementedError

    def match(self, key: str, headers: Arguments | None) -> set[object]:
        """Return the destinations of a message that has only this key and these headers."""
        return set(self.route([key], RoutedMessage(key, {} if headers is None else dict(headers))))
