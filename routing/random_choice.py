"""The exchange types `x-random` and `x-local-random`: each message goes to one of the bindings, by chance.

Each binding is one of the choices: a queue bound twice gets twice as much. Keys and arguments mean nothing to
`x-random`. `x-local-random` takes bindings of classic queues only, with an empty key: where there is one node, every
queue is local, and that is all that tells it from `x-random`.

Compiled by mypyc. Source: RabbitMQ's plugin rabbitmq_random_exchange; RabbitMQ 4.0 for `x-local-random` and its texts.
"""

from __future__ import annotations

from collections.abc import Callable
from random import random as random_number
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import mypyc_attr

from amqpd.routing.choice import Choices
from amqpd.routing.errors import BadBinding
from amqpd.routing.looks import CHANCE
from amqpd.routing.selector_ast import Selectable
from amqpd.routing.message_exchange import WholeMessage

if TYPE_CHECKING:
    from amqpd.routing.base import Arguments

_NOTHING: Final[list[object]] = []
_MODULES: Final = {"quorum": "rabbit_quorum_queue", "stream": "rabbit_stream_queue"}


@mypyc_attr(allow_interpreted_subclasses=True)
class Random(WholeMessage):
    """Matching structure of one x-random exchange. chance: a number from 0 up to 1, another one each time."""

    def __init__(self, chance: Callable[[], float] = random_number) -> None:
        super().__init__()
        self.looks_at = CHANCE
        self._chance = chance
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
        count = len(destinations)
        if count < 2:
            return destinations if count else _NOTHING
        return [destinations[int(self._chance() * count)]]


@final
class LocalRandom(Random):
    """Matching structure of one x-local-random exchange."""

    def validate(self, key: str, arguments: Arguments) -> None:
        """Raises: BadBinding where there is a key."""
        if key:
            raise BadBinding(f"Non empty binding '{key}' key not permitted")

    def validate_destination(self, kind: str) -> None:
        """Raises: BadBinding for an exchange, and for queues that RabbitMQ keeps on several nodes."""
        if kind == "exchange":
            raise BadBinding("Destination not found")
        if kind in _MODULES:
            raise BadBinding(f"Queue type {_MODULES[kind]} not valid for this exchange type")
