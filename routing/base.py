"""What an exchange type is.

An exchange type is the matching structure of one exchange and nothing else: names, durability, alternate exchanges and
permissions belong to the vhost. The broker makes one instance per exchange, tells it of every binding, and asks it
where a message goes. Destinations are opaque here; they need a hash and an equality, no more.

A type that answers for a message as a whole, however many routing keys it has, or that looks at more than headers,
derives from `WholeMessage` (message_exchange.py). Which types there are, and how guests join: `registry.py`.

What this package has to complain about, in its own words.

`amqpd.errors.translate` maps these to reply codes; nothing here knows a number. The texts go to the client as they are.

What of a message an exchange type looks at, which decides whether its answer may be kept.

The answer of a type that looks at the routing key alone holds for every message with that key, until the next bind or
unbind: publishers keep it. Any other is asked for each message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol, TypeAlias

FieldValue: TypeAlias = object
"""A decoded field: bool int float str bytes bytearray Decimal None list dict, or a subclass of int for a timestamp."""

Arguments: TypeAlias = Mapping[str, FieldValue]


class ExchangeType(Protocol):
    """The matching structure of one exchange."""

    @property
    def depends_on(self) -> int:
        """What of a message has a say: numbers of `base.py`, added up. ROUTING_KEY alone: the route may be kept by it.
        Fixed once the exchange is made.
        """

    def validate(self, key: str, arguments: Arguments) -> None:
        """Called before `bind`. Raises: BadBinding, whose text goes to the client."""

    def bind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Adds a binding. The caller guarantees that this (key, arguments, destination) is not there yet."""

    def unbind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Removes a binding. The caller guarantees that it is there; others to the same destination stay."""

    def match(self, key: str, headers: Arguments | None) -> set[object]:
        """Destinations of a message, each once.

        key: the routing key, at most 255 bytes as sent. headers: decoded; None when the message has none or when
        `depends_on` is without HEADERS. Raises: nothing.
        The set may be the exchange type's own: callers neither change it nor keep it beyond the next bind or unbind.
        """


class RoutingError(Exception):
    """Root of everything that routing raises on purpose."""


class BadBinding(RoutingError):
    """The key or the arguments of a binding mean nothing to this exchange type. RabbitMQ: 406."""


class BadSelector(RoutingError):
    """A selector that cannot be understood, or is too large. The text says where, and what. RabbitMQ: 406."""


class UnknownExchangeType(RoutingError):
    """Neither a built-in nor an installed guest has this name. RabbitMQ 3.x: 503."""

    def __init__(self, name: str) -> None:
        super().__init__(f"unknown exchange type '{name}'")
        self.name = name


ROUTING_KEY: Final = 1
HEADERS: Final = 2
PROPERTIES: Final = 4
RANDOMNESS: Final = 8
"""Equal messages may go different ways."""
HISTORY: Final = 16
"""What went before has a say, or it keeps something of what it is asked for."""
