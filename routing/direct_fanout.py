"""The exchange types direct and fanout.

direct: a message goes to the bindings with exactly its routing key. fanout: a message goes to all bindings. Both ignore
binding arguments; the broker still stores them, as RabbitMQ does.

`Fanout` is the example for a new type: copy it, change `match`, and register the class (README.md).

Source: AMQP 0-9-1, 3.1.3.1 and 3.1.3.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, final

from amqpd.routing.base import ROUTING_KEY
from amqpd.routing.bindings import BindingTable

if TYPE_CHECKING:
    from amqpd.routing.base import Arguments


@final
class Fanout:
    """The matching structure of a fanout exchange."""

    depends_on: ClassVar[int] = ROUTING_KEY

    def __init__(self) -> None:
        self._binding_counts: dict[object, int] = {}
        self._destinations: set[object] = set()

    def validate(self, key: str, arguments: Arguments) -> None:
        """Accept every binding. Another type raises BadBinding here."""

    def bind(self, key: str, arguments: Arguments, destination: object) -> None:
        self._binding_counts[destination] = self._binding_counts.get(destination, 0) + 1
        self._destinations.add(destination)

    def unbind(self, key: str, arguments: Arguments, destination: object) -> None:
        self._binding_counts[destination] -= 1
        if not self._binding_counts[destination]:
            del self._binding_counts[destination]
            self._destinations.discard(destination)

    def match(self, key: str, headers: Arguments | None) -> set[object]:
        """Return all destinations: the internal set. Cost: O(1)."""
        return self._destinations


@final
class Direct:
    """The matching structure of a direct exchange."""

    depends_on: ClassVar[int] = ROUTING_KEY

    def __init__(self) -> None:
        self._table = BindingTable()

    def validate(self, key: str, arguments: Arguments) -> None:
        """Accept every key."""

    def bind(self, key: str, arguments: Arguments, destination: object) -> None:
        self._table.add(key, destination)

    def unbind(self, key: str, arguments: Arguments, destination: object) -> None:
        self._table.remove(key, destination)

    def match(self, key: str, headers: Arguments | None) -> set[object]:
        """Return the destinations bound with exactly `key`: the internal set. Cost: one look-up."""
        destinations = self._table.get(key)
        return destinations if destinations is not None else set()
