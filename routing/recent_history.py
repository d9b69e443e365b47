"""The exchange type `x-recent-history`: a fanout that remembers the last messages, for those who are bound later.

Matching is that of a fanout, with one destination more: the `keeper`, which the broker brings, takes every message and
gives the last ones to what is newly bound. It is there without a binding, too.

Compiled by mypyc. Source: RabbitMQ's plugin rabbitmq_recent_history_exchange.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from amqpd.routing.selector_ast import Selectable
from amqpd.routing.message_exchange import WholeMessage

if TYPE_CHECKING:
    from amqpd.routing.base import Arguments

LENGTH: Final = "x-recent-history-length"
LENGTH_DEFAULT: Final = 20
NO_STORE: Final = "x-recent-history-no-store"


@final
class RecentHistory(WholeMessage):
    """Matching structure of one x-recent-history exchange."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[object, int] = {}
        self._destinations: set[object] = set()
        self.keeper: object = None

    def keep(self, keeper: object) -> None:
        """From now on every message goes to it, too."""
        self.keeper = keeper
        self._destinations.add(keeper)

    def bind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Cost: O(1)."""
        self._counts[destination] = self._counts.get(destination, 0) + 1
        self._destinations.add(destination)

    def unbind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Cost: O(1)."""
        self._counts[destination] -= 1
        if not self._counts[destination]:
            del self._counts[destination]
            self._destinations.discard(destination)

    def route(self, keys: list[str], message: Selectable) -> set[object]:
        """Everything bound, and the keeper: this exchange's own set. Cost: O(1)."""
        return self._destinations

    def match(self, key: str, headers: Arguments | None) -> set[object]:
        return self._destinations
