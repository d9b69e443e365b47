"""The direct exchange: a message goes where its routing key was bound, to the letter.

Source: AMQP 0-9-1, 3.1.3.1. Binding arguments have no meaning here (RabbitMQ keeps them, and so does the broker: two
bindings that differ in them only are two bindings).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, final

from amqpd.routing.bindings import BindingTable
from amqpd.routing.looks import ROUTING_KEY

if TYPE_CHECKING:
    from amqpd.routing.base import Arguments


@final
class Direct:
    """Matching structure of one direct exchange."""

    looks_at: ClassVar[int] = ROUTING_KEY

    def __init__(self) -> None:
        self._table = BindingTable()

    def validate(self, key: str, arguments: Arguments) -> None:
        """Every key is a good key."""

    def bind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Cost: O(1)."""
        self._table.add(key, destination)

    def unbind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Cost: O(1)."""
        self._table.remove(key, destination)

    def match(self, key: str, headers: Arguments | None) -> set[object]:
        """Destinations bound with exactly `key`: this exchange's own set, not to be changed. Cost: one look-up."""
        destinations = self._table.get(key)
        return destinations if destinations is not None else set()
