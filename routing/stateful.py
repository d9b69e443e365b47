"""The exchange types x-message-deduplication and x-recent-history: fanouts with a memory that the broker provides.

x-message-deduplication: a message whose header `x-deduplication-header` was seen before goes nowhere; the type of the
value does not matter. A message without that header goes to all bindings. The memory forgets the oldest value when it
is full (`x-cache-size`) and each value after `x-cache-ttl` (of the exchange or the message). The destinations of a new
message include an entry of the memory, so that the value is stored when the message is in its queues, not before.

x-recent-history: the recorder is one more destination, also without a binding. It gets every message, and the broker
gives the last ones to a new binding.

Compiled by mypyc. Source: the plugin rabbitmq-message-deduplication (https://github.com/noxdafox), README; RabbitMQ's
plugin rabbitmq_recent_history_exchange.
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
    """The values that one exchange has seen."""

    def route_once(self, value: object, ttl: object, bound: Collection[object]) -> Collection[object]:
        """Return the destinations of a message with this header value.

        For a new value: all of `bound`, and the entry to store. For a known value: nothing; or the destination that
        waits until the first message is safe, if that is not certain yet.

        Args:
            value: the value of the message's deduplication header.
            ttl: the value of its header `x-cache-ttl`; None if absent.
        """
        raise NotImplementedError


@final
class Deduplication(MessageExchangeType):
    """The matching structure of an x-message-deduplication exchange. Without a memory it is a fanout."""

    def __init__(self) -> None:
        super().__init__()
        self.depends_on = HEADERS | HISTORY
        self.memory: DeduplicationMemory | None = None
        self._bound = Fanout()

    def bind(self, key: str, arguments: Arguments, destination: object) -> None:
        self._bound.bind(key, arguments, destination)

    def unbind(self, key: str, arguments: Arguments, destination: object) -> None:
        self._bound.unbind(key, arguments, destination)

    def route(self, keys: list[str], message: Selectable) -> Collection[object]:
        """Return the destinations. Cost: decoding the headers, a look-up, and all bindings."""
        bound = self._bound.match("", None)
        if self.memory is None or not bound:
            return bound  # a message without a destination does not count as seen
        headers = message.headers()
        if DEDUPLICATION_HEADER not in headers:
            return bound
        return self.memory.route_once(headers[DEDUPLICATION_HEADER], headers.get(CACHE_TTL), bound)


HISTORY_LENGTH: Final = "x-recent-history-length"
HISTORY_LENGTH_DEFAULT: Final = 20
NO_STORE: Final = "x-recent-history-no-store"


@final
class RecentHistory(MessageExchangeType):
    """The matching structure of an x-recent-history exchange."""

    def __init__(self) -> None:
        super().__init__()
        self._bound = Fanout()
        self.recorder: object = None

    def attach_recorder(self, recorder: object) -> None:
        """Send every message to `recorder` too."""
        self.recorder = recorder
        self._bound.bind("", {}, recorder)

    def bind(self, key: str, arguments: Arguments, destination: object) -> None:
        self._bound.bind(key, arguments, destination)

    def unbind(self, key: str, arguments: Arguments, destination: object) -> None:
        self._bound.unbind(key, arguments, destination)

    def route(self, keys: list[str], message: Selectable) -> set[object]:
        """Return all destinations and the recorder: the internal set. Cost: O(1)."""
        return self._bound.match("", None)

    def match(self, key: str, headers: Arguments | None) -> set[object]:
        return self._bound.match("", None)
