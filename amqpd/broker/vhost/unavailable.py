"""What stands in for an exchange type whose package is not installed any more.

The exchange is kept with its bindings and comes back whole when the package does. Until then it matches nothing,
takes no new binding, and a publish that comes to it is refused: what it would have gone to cannot be known. A dead
letter that comes to it goes nowhere, as one to an exchange that is not there.
"""

from __future__ import annotations

from amqpd.routing.errors import BadBinding
from amqpd.routing.base import Arguments
from amqpd.routing.looks import ROUTING_KEY


class Unavailable:
    """The `ExchangeType` of such an exchange."""

    looks_at = ROUTING_KEY

    def __init__(self, kind: str) -> None:
        self.reason = (
            f"its type '{kind}' is not installed; install the package that brings it (its entry point is in "
            "amqpd.exchange_types) and restart amqpd, or delete the exchange"
        )

    def validate(self, key: str, arguments: Arguments) -> None:
        """Nobody can say which bindings are good. Raises: BadBinding."""
        raise BadBinding(f"the exchange takes no binding: {self.reason}")

    def bind(self, key: str, arguments: Arguments, destination: object) -> None:
        """The vhost keeps it."""

    def unbind(self, key: str, arguments: Arguments, destination: object) -> None:
        """The vhost forgets it."""

    def match(self, key: str, headers: Arguments | None) -> set[object]:
        """Nothing."""
        return set()
