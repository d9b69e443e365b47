"""What this package has to complain about, in its own words.

`amqpd.errors.translate` maps these to reply codes; nothing here knows a number. The texts go to the client as they are.
"""

from __future__ import annotations


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
