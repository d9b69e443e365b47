"""The exchange type `x-consistent-hash`: a message goes to one of the bindings, the same for the same routing key, and
each of them gets a share of the keys that is its weight's of all weights.

The weight is the binding key, a whole number from 1 on. What is hashed is the routing key, or what the exchange's
arguments name: a header (`hash-header`) or a property (`hash-property`: message_id, correlation_id, timestamp).
Messages that do not have it go all to the same binding. Several bindings of one destination count as one with the sum
of their weights.

**How.** Every destination draws a number from the hash of the message and of its own label, and the highest draw wins,
after each is weighed (rendezvous hashing: of `-ln(draw) / weight` the smallest). So where a message goes depends on
the set of bindings alone: not on their order, nor on this process; and a binding that comes or goes takes or leaves
what is its own share, and moves nothing else. Destinations of equal weight are compared by their draws, without a
logarithm, so there is one for each weight that occurs.

Compiled by mypyc. Source: RabbitMQ's plugin rabbitmq_consistent_hash_exchange, for arguments, weights and texts (its
own ring, jump consistent hash, depends on the order of declarations); Thaler and Ravishankar 1998 for the method.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from math import log
from typing import TYPE_CHECKING, Final, final

from librt.strings import read_i32_le
from mypy_extensions import i64

from amqpd.routing.choice import key_hash, mixed, value_hash
from amqpd.routing.errors import BadBinding
from amqpd.routing.looks import HEADERS, PROPERTIES
from amqpd.routing.selector_fields import CORRELATION_ID, MESSAGE_ID, TIMESTAMP
from amqpd.routing.selector_ast import Selectable
from amqpd.routing.message_exchange import WholeMessage, label_of

if TYPE_CHECKING:
    from amqpd.routing.base import Arguments

HASH_HEADER: Final = "hash-header"
HASH_PROPERTY: Final = "hash-property"
HASHED_PROPERTIES: Final = {"correlation_id": CORRELATION_ID, "message_id": MESSAGE_ID, "timestamp": TIMESTAMP}
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_DRAWS: Final = 4294967296.0
_NOTHING: Final[list[object]] = []
_SEEDS_SIZE: Final = 8


def weight_of(key: str) -> int:
    """The weight that a binding key is. Raises: BadBinding with RabbitMQ's texts."""
    if _INTEGER.fullmatch(key) is None:
        shown = key.replace("\\", "\\\\").replace('"', '\\"')
        raise BadBinding("The binding key must be an integer: " + (f'<<"{shown}">>' if key else "<<>>"))
    weight = int(key)
    if weight < 1:
        raise BadBinding("The binding key must be greater than 0")
    return weight


@final
class Peers:
    """The destinations of one weight. seeds: of each, eight bytes."""

    def __init__(self) -> None:
        self.seeds = b""
        self.labels: list[str] = []
        self.destinations: list[object] = []
        self._places: dict[str, int] = {}

    def add(self, label: str, destination: object) -> None:
        self._places[label] = len(self.labels)
        self.labels.append(label)
        self.destinations.append(destination)
        self.seeds += blake2b(label.encode("utf-8", "surrogateescape"), digest_size=_SEEDS_SIZE).digest()

    def remove(self, label: str) -> None:
        """The last one takes its place: their order means nothing."""
        place = self._places.pop(label)
        last = len(self.labels) - 1
        seeds = self.seeds
        end = last * _SEEDS_SIZE
        if place != last:
            start = place * _SEEDS_SIZE
            self.labels[place] = self.labels[last]
            self.destinations[place] = self.destinations[last]
            self._places[self.labels[place]] = place
            seeds = seeds[:start] + seeds[end:] + seeds[start + _SEEDS_SIZE : end]
        self.seeds = seeds[:end]
        self.labels.pop()
        self.destinations.pop()

    def highest(self, hashed: i64) -> tuple[i64, i64]:
        """The highest draw of all, and whose it is. Cost: some 3 ns each."""
        seeds = self.seeds
        count: i64 = len(seeds) // _SEEDS_SIZE
        best: i64 = -1
        best_place: i64 = 0
        place: i64 = 0
        while place < count:
            first = i64(read_i32_le(seeds, place * 8))
            second = i64(read_i32_le(seeds, place * 8 + 4))
            drawn = mixed(hashed, first & 0xFFFFFFFF, second & 0xFFFFFFFF)
            if drawn > best or (drawn == best and self.labels[place] < self.labels[best_place]):
                best = drawn
                best_place = place
            place += 1
        return best, best_place


@final
class ConsistentHash(WholeMessage):
    """Matching structure of one x-consistent-hash exchange."""

    def __init__(self) -> None:
        super().__init__()
        self._header = ""
        self._property: int = -1
        # By label: the weights of its bindings together. By that: who has it.
        self._weights: dict[str, int] = {}
        self._peers: dict[int, Peers] = {}

    def configure(self, arguments: Arguments) -> None:
        header = arguments.get(HASH_HEADER)
        name = arguments.get(HASH_PROPERTY)
        if isinstance(header, str):
            self._header = header
            self.looks_at = HEADERS
        elif isinstance(name, str) and name in HASHED_PROPERTIES:
            self._property = HASHED_PROPERTIES[name]
            self.looks_at = PROPERTIES

    def validate(self, key: str, arguments: Arguments) -> None:
        """Raises: BadBinding where the key is no weight."""
        weight_of(key)

    def bind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Cost: some 2 us, and a copy of 8 bytes for each binding of this weight."""
        label = label_of(destination)
        self._weigh(label, destination, self._weights.get(label, 0) + weight_of(key))

    def unbind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Cost: likewise. Raises: KeyError if there is no such binding, an error of the caller."""
        label = label_of(destination)
        self._weigh(label, destination, self._weights[label] - weight_of(key))

    def _weigh(self, label: str, destination: object, weight: int) -> None:
        """This is its weight from now on; 0: it goes."""
        before = self._weights.get(label, 0)
        if before:
            peers = self._peers[before]
            peers.remove(label)
            if not peers.labels:
                del self._peers[before]
            del self._weights[label]
        if weight:
            self._weights[label] = weight
            if weight not in self._peers:
                self._peers[weight] = Peers()
            self._peers[weight].add(label, destination)

    def route(self, keys: list[str], message: Selectable) -> list[object]:
        """One destination, or none where nothing is bound. Cost: some 3 ns for each that is bound, 50 ns more for each
        weight that occurs.
        """
        if self.looks_at == HEADERS:
            return self._choose(value_hash(message.headers().get(self._header)))
        if self.looks_at == PROPERTIES:
            return self._choose(value_hash(message.field(self._property)))
        return self._choose(key_hash(keys[0]))  # rabbit: CC and BCC have no say

    def match(self, key: str, headers: Arguments | None) -> set[object]:
        return set(self._choose(key_hash(key)))

    def _choose(self, hashed: i64) -> list[object]:
        chosen: Peers | None = None
        chosen_place: i64 = 0
        lowest = 0.0
        alone = len(self._peers) == 1
        for weight, peers in self._peers.items():
            drawn, place = peers.highest(hashed)
            if alone:
                return [peers.destinations[place]]
            score = -log((float(drawn) + 0.5) / _DRAWS) / float(weight)
            if (
                chosen is None
                or score < lowest
                or (score == lowest and peers.labels[place] < chosen.labels[chosen_place])
            ):
                chosen, chosen_place, lowest = peers, place, score
        return _NOTHING if chosen is None else [chosen.destinations[chosen_place]]
