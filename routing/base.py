"""Exchange types: the interface, its errors, and the parts of a message that a route can depend on.

An exchange type is the matching structure of one exchange. The broker creates one instance per exchange, adds every
binding to it and asks it for the destinations of a message. Names, durability, alternate exchanges and permissions
belong to the vhost. Destinations are opaque: they need a hash and equality.

A type that decides once per message, or that needs more than key and headers, derives from `MessageExchangeType`
(`message_exchange.py`). `registry.py` has the type names and the plugins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol, TypeAlias

FieldValue: TypeAlias = object
"""bool, int, float, str, bytes, bytearray, Decimal, None, list, dict; a subclass of int for a timestamp."""

Arguments: TypeAlias = Mapping[str, FieldValue]


class ExchangeType(Protocol):
    """The matching structure of one exchange."""

    @property
    def depends_on(self) -> int:
        """Return the parts of a message that decide its route: the numbers below, added up.

        If that is ROUTING_KEY alone, publishers cache the route of a key until the next bind or unbind. For all other
        types the broker calls `match` for each message. The value is fixed once the exchange exists.
        """

    def validate(self, key: str, arguments: Arguments) -> None:
        """Check a binding before `bind`. Raises: BadBinding, whose text goes to the client."""

    def bind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Add a binding. The caller guarantees that this (key, arguments, destination) does not exist yet."""

    def unbind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Remove an existing binding. Other bindings of the same destination stay.

        The caller guarantees that the binding exists; KeyError otherwise.
        """

    def match(self, key: str, headers: Arguments | None) -> set[object]:
        """Return the destinations of a message, each once. Must not raise.

        The set may be the internal one of the exchange type: callers do not change it and drop it at the next bind or
        unbind.

        Args:
            key: the routing key, at most 255 bytes.
            headers: decoded; None if the message has none, or if `depends_on` does not include HEADERS.
        """


class RoutingError(Exception):
    """Base class of all errors of this package. `amqpd.errors.translate` maps them to reply codes."""


class BadBinding(RoutingError):
    """A key or arguments that this exchange type does not accept. RabbitMQ: 406."""


class BadSelector(RoutingError):
    """A selector that is invalid or too large. The text has the position and the cause. RabbitMQ: 406."""


class UnknownExchangeType(RoutingError):
    """A type name that is neither built in nor installed as a plugin. RabbitMQ 3.x: 503."""

    def __init__(self, name: str) -> None:
        super().__init__(f"unknown exchange type '{name}'")
        self.name = name


ROUTING_KEY: Final = 1
HEADERS: Final = 2
PROPERTIES: Final = 4
RANDOMNESS: Final = 8
"""Equal messages may have different destinations."""
HISTORY: Final = 16
"""The route depends on earlier messages, or the exchange type stores something about each message."""
