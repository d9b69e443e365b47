"""The fanout exchange: a message goes to everything that is bound. Source: AMQP 0-9-1, 3.1.3.2.

Also the sample for exchange types of your own: copy this file, change `match`, name the class in your package's entry
points, group `amqpd.exchange_types`. README.md of this package says the rest.

The direct exchange: a message goes where its routing key was bound, to the letter.

Source: AMQP 0-9-1, 3.1.3.1. Binding arguments have no meaning here (RabbitMQ keeps them, and so does the broker: two
bindings that differ in them only are two bindings).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, final

from amqpd.routing.base import ROUTING_KEY
from amqpd.routing.bindings import BindingTable

if TYPE_CHECKING:
    from amqpd.routing.base import Arguments


@final
class Fanout:
    """Matching structure of one fanout exchange."""

    depends_on: ClassVar[int] = ROUTING_KEY

    def __init__(self) -> None:
        self._binding_counts: dict[object, int] = {}
        self._destinations: set[object] = set()

    def validate(self, key: str, arguments: Arguments) -> None:
        """Key and arguments mean nothing here, so none are wrong; otherwise raise BadBinding."""

    def bind(self, key: str, arguments: Arguments, destination: object) -> None:
        """One more binding to `destination`. Cost: O(1)."""
        self._binding_counts[destination] = self._binding_counts.get(destination, 0) + 1
        self._destinations.add(destination)

    def unbind(self, key: str, arguments: Arguments, destination: object) -> None:
        """One binding less; `destination` stays while another binding leads there. Cost: O(1)."""
        self._binding_counts[destination] -= 1
        if not self._binding_counts[destination]:
            del self._binding_counts[destination]
            self._destinations.discard(destination)

    def match(self, key: str, headers: Arguments | None) -> set[object]:
        """Everything bound: this exchange's own set, not to be changed. Cost: O(1)."""
        return self._destinations


@final
class Direct:
    """Matching structure of one direct exchange."""

    depends_on: ClassVar[int] = ROUTING_KEY

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
