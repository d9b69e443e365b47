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

What exchange types share that choose one of their bindings: hashes that are the same in every process, and the
bindings in one order.

Hashes are 32 bits. `mixed` is a bijection of its first argument for each seed, with an avalanche over all bits, so that
neighbouring keys are as far apart as any; every product in it fits 63 bits, compiled or not. Source of its constants:
https://github.com/skeeto/hash-prospector (public domain). Texts are hashed by zlib's CRC-32 and mixed after that.

Compiled by mypyc.

The exchange type `x-modulus-hash`: the hash of the routing key, modulo the number of bindings, is the one a message
goes to. Cheaper than `x-consistent-hash`, and nearly every key moves when a binding comes or goes.

Binding keys and arguments mean nothing; each binding is one of the choices, so a queue bound twice gets twice as much.
Bindings are counted in the order of what they lead to, so that keys stay where they are after a restart. The keys of
CC and BCC are hashed with the routing key.

Compiled by mypyc. Source: RabbitMQ's plugin rabbitmq_sharding, and RabbitMQ 4.3 for the order; which binding a key
comes to is our own.

The exchange types `x-random` and `x-local-random`: each message goes to one of the bindings, by chance.

Each binding is one of the choices: a queue bound twice gets twice as much. Keys and arguments mean nothing to
`x-random`. `x-local-random` takes bindings of classic queues only, with an empty key: where there is one node, every
queue is local, and that is all that tells it from `x-random`.

Compiled by mypyc. Source: RabbitMQ's plugin rabbitmq_random_exchange; RabbitMQ 4.0 for `x-local-random` and its texts.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from decimal import Decimal
from hashlib import blake2b
from math import log
from random import random as random_number
from typing import TYPE_CHECKING, Final, final
from zlib import crc32

from librt.strings import read_i32_le
from mypy_extensions import i64, mypyc_attr

from amqpd.routing.base import HEADERS, PROPERTIES, RANDOMNESS, BadBinding
from amqpd.routing.message_exchange import MessageExchangeType, destination_label
from amqpd.routing.selector_ast import Selectable
from amqpd.routing.selector_fields import CORRELATION_ID, MESSAGE_ID, TIMESTAMP

if TYPE_CHECKING:
    from amqpd.routing.base import Arguments


_MASK: Final = 0xFFFFFFFF


def mix_bits(value: i64, seed: i64, second_seed: i64) -> i64:
    """32 bits out of three times 32."""
    x = value ^ seed
    x ^= x >> 16
    x = (x * 0x21F0AAAD) & _MASK
    x ^= second_seed
    x ^= x >> 15
    x = (x * 0x735A2D97) & _MASK
    return x ^ (x >> 15)


def key_hash(key: str) -> i64:
    """Of a routing key. Cost: some 100 ns."""
    return crc32(key.encode("utf-8", "surrogateescape"))


def keys_hash(keys: list[str]) -> i64:
    """Of all routing keys of a message; of one, as `key_hash`."""
    return key_hash(keys[0]) if len(keys) == 1 else crc32("\0".join(keys).encode("utf-8", "surrogateescape"))


def value_hash(value: object) -> i64:
    """Of a field's value; None: it is absent. Values of different types are different."""
    if isinstance(value, str):
        return key_hash(value)
    return crc32(stable_encoding(value))


def stable_encoding(value: object) -> bytes:
    """The same for the same value, in whatever process and order of keys."""
    if isinstance(value, str):
        return b"s" + value.encode("utf-8", "surrogateescape")
    if isinstance(value, (bytes, bytearray)):
        return b"b" + bytes(value)
    if isinstance(value, list):
        return b"[" + b",".join([stable_encoding(item) for item in value]) + b"]"
    if isinstance(value, dict):
        pairs = sorted([(str(name), stable_encoding(item)) for name, item in value.items()])
        return b"{" + b",".join([stable_encoding(name) + b"=" + item for name, item in pairs]) + b"}"
    if isinstance(value, (float, Decimal)):
        return b"f" + str(value).encode()
    return type(value).__name__.encode() + b":" + str(value).encode()


@final
class OrderedBindings:
    """Bindings in the order of their destinations' labels, each of them one choice."""

    def __init__(self) -> None:
        self._labels: list[str] = []
        self.destinations: list[object] = []

    def add(self, destination: object) -> None:
        """Cost: a search, and a move of what stands behind it."""
        label = destination_label(destination)
        place = bisect_left(self._labels, label)
        self._labels.insert(place, label)
        self.destinations.insert(place, destination)

    def remove(self, destination: object) -> None:
        """Cost: likewise. Raises: KeyError if there is no such binding, an error of the caller."""
        label = destination_label(destination)
        place = bisect_left(self._labels, label)
        if place == len(self._labels) or self._labels[place] != label:
            raise KeyError(label)
        del self._labels[place]
        del self.destinations[place]


HASH_HEADER: Final = "hash-header"
HASH_PROPERTY: Final = "hash-property"
HASHED_PROPERTIES: Final = {"correlation_id": CORRELATION_ID, "message_id": MESSAGE_ID, "timestamp": TIMESTAMP}
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_DRAWS: Final = 4294967296.0
_NO_DESTINATIONS: Final[list[object]] = []
_SEEDS_SIZE: Final = 8


def parse_weight(key: str) -> int:
    """The weight that a binding key is. Raises: BadBinding with RabbitMQ's texts."""
    if _INTEGER.fullmatch(key) is None:
        shown = key.replace("\\", "\\\\").replace('"', '\\"')
        raise BadBinding("The binding key must be an integer: " + (f'<<"{shown}">>' if key else "<<>>"))
    weight = int(key)
    if weight < 1:
        raise BadBinding("The binding key must be greater than 0")
    return weight


@final
class EqualWeightGroup:
    """The destinations of one weight. seeds: of each, eight bytes."""

    def __init__(self) -> None:
        self.seeds = b""
        self.labels: list[str] = []
        self.destinations: list[object] = []
        self._positions: dict[str, int] = {}

    def add(self, label: str, destination: object) -> None:
        self._positions[label] = len(self.labels)
        self.labels.append(label)
        self.destinations.append(destination)
        self.seeds += blake2b(label.encode("utf-8", "surrogateescape"), digest_size=_SEEDS_SIZE).digest()

    def remove(self, label: str) -> None:
        """The last one takes its place: their order means nothing."""
        place = self._positions.pop(label)
        last = len(self.labels) - 1
        seeds = self.seeds
        end = last * _SEEDS_SIZE
        if place != last:
            start = place * _SEEDS_SIZE
            self.labels[place] = self.labels[last]
            self.destinations[place] = self.destinations[last]
            self._positions[self.labels[place]] = place
            seeds = seeds[:start] + seeds[end:] + seeds[start + _SEEDS_SIZE : end]
        self.seeds = seeds[:end]
        self.labels.pop()
        self.destinations.pop()

    def highest_draw(self, hashed: i64) -> tuple[i64, i64]:
        """The highest draw of all, and whose it is. Cost: some 3 ns each."""
        seeds = self.seeds
        count: i64 = len(seeds) // _SEEDS_SIZE
        best: i64 = -1
        best_place: i64 = 0
        place: i64 = 0
        while place < count:
            first = i64(read_i32_le(seeds, place * 8))
            second = i64(read_i32_le(seeds, place * 8 + 4))
            drawn = mix_bits(hashed, first & 0xFFFFFFFF, second & 0xFFFFFFFF)
            if drawn > best or (drawn == best and self.labels[place] < self.labels[best_place]):
                best = drawn
                best_place = place
            place += 1
        return best, best_place


@final
class ConsistentHash(MessageExchangeType):
    """Matching structure of one x-consistent-hash exchange."""

    def __init__(self) -> None:
        super().__init__()
        self._header = ""
        self._property: int = -1
        # By label: the weights of its bindings together. By that: who has it.
        self._weights: dict[str, int] = {}
        self._groups: dict[int, EqualWeightGroup] = {}

    def configure(self, arguments: Arguments) -> None:
        header = arguments.get(HASH_HEADER)
        name = arguments.get(HASH_PROPERTY)
        if isinstance(header, str):
            self._header = header
            self.depends_on = HEADERS
        elif isinstance(name, str) and name in HASHED_PROPERTIES:
            self._property = HASHED_PROPERTIES[name]
            self.depends_on = PROPERTIES

    def validate(self, key: str, arguments: Arguments) -> None:
        """Raises: BadBinding where the key is no weight."""
        parse_weight(key)

    def bind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Cost: some 2 us, and a copy of 8 bytes for each binding of this weight."""
        label = destination_label(destination)
        self._set_weight(label, destination, self._weights.get(label, 0) + parse_weight(key))

    def unbind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Cost: likewise. Raises: KeyError if there is no such binding, an error of the caller."""
        label = destination_label(destination)
        self._set_weight(label, destination, self._weights[label] - parse_weight(key))

    def _set_weight(self, label: str, destination: object, weight: int) -> None:
        """This is its weight from now on; 0: it goes."""
        before = self._weights.get(label, 0)
        if before:
            peers = self._groups[before]
            peers.remove(label)
            if not peers.labels:
                del self._groups[before]
            del self._weights[label]
        if weight:
            self._weights[label] = weight
            if weight not in self._groups:
                self._groups[weight] = EqualWeightGroup()
            self._groups[weight].add(label, destination)

    def route(self, keys: list[str], message: Selectable) -> list[object]:
        """One destination, or none where nothing is bound. Cost: some 3 ns for each that is bound, 50 ns more for each
        weight that occurs.
        """
        if self.depends_on == HEADERS:
            return self._choose(value_hash(message.headers().get(self._header)))
        if self.depends_on == PROPERTIES:
            return self._choose(value_hash(message.field(self._property)))
        return self._choose(key_hash(keys[0]))  # rabbit: CC and BCC have no say

    def match(self, key: str, headers: Arguments | None) -> set[object]:
        return set(self._choose(key_hash(key)))

    def _choose(self, hashed: i64) -> list[object]:
        chosen: EqualWeightGroup | None = None
        chosen_place: i64 = 0
        lowest = 0.0
        alone = len(self._groups) == 1
        for weight, peers in self._groups.items():
            drawn, place = peers.highest_draw(hashed)
            if alone:
                return [peers.destinations[place]]
            score = -log((float(drawn) + 0.5) / _DRAWS) / float(weight)
            if (
                chosen is None
                or score < lowest
                or (score == lowest and peers.labels[place] < chosen.labels[chosen_place])
            ):
                chosen, chosen_place, lowest = peers, place, score
        return _NO_DESTINATIONS if chosen is None else [chosen.destinations[chosen_place]]


@final
class ModulusHash(MessageExchangeType):
    """Matching structure of one x-modulus-hash exchange."""

    def __init__(self) -> None:
        super().__init__()
        self._bindings = OrderedBindings()

    def bind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Cost: some 2 us, and a move of what stands behind it."""
        self._bindings.add(destination)

    def unbind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Cost: likewise. Raises: KeyError if there is no such binding, an error of the caller."""
        self._bindings.remove(destination)

    def route(self, keys: list[str], message: Selectable) -> list[object]:
        """One destination, or none where nothing is bound. Cost: O(1)."""
        destinations = self._bindings.destinations
        count: i64 = len(destinations)
        if count == 0:
            return _NO_DESTINATIONS
        return [destinations[mix_bits(keys_hash(keys), 0, 0) % count]]


_UNSUPPORTED_QUEUE_TYPES: Final = {"quorum": "rabbit_quorum_queue", "stream": "rabbit_stream_queue"}


@mypyc_attr(allow_interpreted_subclasses=True)
class Random(MessageExchangeType):
    """Matching structure of one x-random exchange. chance: a number from 0 up to 1, another one each time."""

    def __init__(self, chance: Callable[[], float] = random_number) -> None:
        super().__init__()
        self.depends_on = RANDOMNESS
        self._random_number = chance
        self._bindings = OrderedBindings()

    def bind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Cost: some 2 us, and a move of what stands behind it."""
        self._bindings.add(destination)

    def unbind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Cost: likewise. Raises: KeyError if there is no such binding, an error of the caller."""
        self._bindings.remove(destination)

    def route(self, keys: list[str], message: Selectable) -> list[object]:
        """One destination, or none where nothing is bound. Cost: O(1)."""
        destinations = self._bindings.destinations
        count = len(destinations)
        if count < 2:
            return destinations if count else _NO_DESTINATIONS
        return [destinations[int(self._random_number() * count)]]


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
        if kind in _UNSUPPORTED_QUEUE_TYPES:
            raise BadBinding(f"Queue type {_UNSUPPORTED_QUEUE_TYPES[kind]} not valid for this exchange type")
