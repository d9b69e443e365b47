"""The topic exchange: routing keys are words between dots, bindings are patterns of words.

Source: AMQP 0-9-1, 3.1.3.3; where that is silent, RabbitMQ: see `trie`, which does the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, final

from amqpd.routing.looks import ROUTING_KEY
from amqpd.routing.trie import Trie

if TYPE_CHECKING:
    from amqpd.routing.base import Arguments


@final
class Topic:
    """Matching structure of one topic exchange."""

    looks_at: ClassVar[int] = ROUTING_KEY

    def __init__(self) -> None:
        self._trie = Trie()

    def validate(self, key: str, arguments: Arguments) -> None:
        """Every key is a good pattern: matching is cheap whatever it says."""

    def bind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Cost: the words of the pattern."""
        self._trie.add(key, destination)

    def unbind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Cost: the words of the pattern."""
        self._trie.remove(key, destination)

    def match(self, key: str, headers: Arguments | None) -> set[object]:
        """Destinations with a pattern that accepts `key`; not to be changed. Cost: see `Trie.match`."""
        return self._trie.match(key)
