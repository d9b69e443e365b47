"""The exchange type `x-modulus-hash`: the hash of the routing key, modulo the number of bindings, is the one a message
goes to. Cheaper than `x-consistent-hash`, and nearly every key moves when a binding comes or goes.

Binding keys and arguments mean nothing; each binding is one of the choices, so a queue bound twice gets twice as much.
Bindings are counted in the order of what they lead to, so that keys stay where they are after a restart. The keys of
CC and BCC are hashed with the routing key.

Compiled by mypyc. Source: RabbitMQ's plugin rabbitmq_sharding, and RabbitMQ 4.3 for the order; which binding a key
comes to is our own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from amqpd.routing.choice import Choices, keys_hash, mixed
from amqpd.routing.selector_ast import Selectable
from amqpd.routing.message_exchange import WholeMessage

if TYPE_CHECKING:
    from amqpd.routing.base import Arguments

_NOTHING: Final[list[object]] = []


@final
class ModulusHash(WholeMessage):
    """Matching structure of one x-modulus-hash exchange."""

    def __init__(self) -> None:
        super().__init__()
        self._choices = Choices()

    def bind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Cost: some 2 us, and a move of what stands behind it."""
        self._choices.add(destination)

    def unbind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Cost: likewise. Raises: KeyError if there is no such binding, an error of the caller."""
        self._choices.remove(destination)

    def route(self, keys: list[str], message: Selectable) -> list[object]:
        """One destination, or none where nothing is bound. Cost: O(1)."""
        destinations = self._choices.destinations
        count: i64 = len(destinations)
        if count == 0:
            return _NOTHING
        return [destinations[mixed(keys_hash(keys), 0, 0) % count]]
