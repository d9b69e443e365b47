"""The exchange type `x-message-deduplication`: a fanout that lets each message through once.

What tells whether it is the same message is its header `x-deduplication-header`, whatever its type; a message without
it goes to everything bound. What has been seen is kept by a `Memory`, which the broker brings: until the cache is full
(`x-cache-size`, then the oldest goes) or its time is over (`x-cache-ttl`, of the exchange or of the message). A message
that is let through has an entry of the memory among its destinations, so that it is remembered when it is in the
queues, and not before.

Compiled by mypyc. Source: the plugin rabbitmq-message-deduplication (https://github.com/noxdafox), README.

The exchange type `x-recent-history`: a fanout that remembers the last messages, for those who are bound later.

Matching is that of a fanout, with one destination more: the `recorder`, which the broker brings, takes every message
and gives the last ones to what is newly bound. It is there without a binding, too.

Compiled by mypyc. Source: RabbitMQ's plugin rabbitmq_recent_history_exchange.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import mypyc_attr

from amqpd.routing.base import HEADERS, HISTORY
from amqpd.routing.direct_fanout import Fanout
from amqpd.routing.message_exchange import MessageExchangeType
from amqpd.routing.selector_ast import Selectable

if TYPE_CHECKING:
    from amqpd.routing.base import Arguments


DEDUPLICATION_HEADER: Final = "x-deduplication-header"
CACHE_TTL: Final = "x-cache-ttl"
CACHE_SIZE: Final = "x-cache-size"
CACHE_PERSISTENCE: Final = "x-cache-persistence"


@mypyc_attr(allow_interpreted_subclasses=True)
class DeduplicationMemory:
    """What an exchange has seen."""

    def route_once(self, value: object, ttl: object, bound: Collection[object]) -> Collection[object]:
        """Where a message goes: all that is `bound`, with the entry to be made when it is there; nothing, or who knows
        whether the first one is safe, where this value has been seen.

        value: of the header. ttl: of the message's own header; None: it has none.
        """
        raise NotImplementedError


@final
class Deduplication(MessageExchangeType):
    """Matching structure of one x-message-deduplication exchange. Without a memory it is a fanout."""

    def __init__(self) -> None:
        super().__init__()
        self.depends_on = HEADERS | HISTORY
        self.memory: DeduplicationMemory | None = None
        self._bound = Fanout()

    def bind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Cost: O(1)."""
        self._bound.bind(key, arguments, destination)

    def unbind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Cost: O(1)."""
        self._bound.unbind(key, arguments, destination)

    def route(self, keys: list[str], message: Selectable) -> Collection[object]:
        """Cost: the decoding of the headers, a look-up, and all that is bound."""
        bound = self._bound.match("", None)
        if self.memory is None or not bound:
            return bound  # what goes nowhere has not been seen
        headers = message.headers()
        if DEDUPLICATION_HEADER not in headers:
            return bound
        return self.memory.route_once(headers[DEDUPLICATION_HEADER], headers.get(CACHE_TTL), bound)


HISTORY_LENGTH: Final = "x-recent-history-length"
HISTORY_LENGTH_DEFAULT: Final = 20
NO_STORE: Final = "x-recent-history-no-store"


@final
class RecentHistory(MessageExchangeType):
    """Matching structure of one x-recent-history exchange."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[object, int] = {}
        self._destinations: set[object] = set()
        self.recorder: object = None

    def attach_recorder(self, recorder: object) -> None:
        """From now on every message goes to it, too."""
        self.recorder = recorder
        self._destinations.add(recorder)

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
        """Everything bound, and the recorder: this exchange's own set. Cost: O(1)."""
        return self._destinations

    def match(self, key: str, headers: Arguments | None) -> set[object]:
        return self._destinations
