"""The exchange types that choose one binding: x-consistent-hash, x-modulus-hash, x-random, x-local-random.

**x-consistent-hash.** A message with the same routing key always goes to the same binding, and each binding gets its
weight's share of the keys. The binding key is the weight, a whole number from 1. The exchange hashes the routing key,
or a header (`hash-header`), or a property (`hash-property`: message_id, correlation_id, timestamp); all messages
without it go to one binding. Several bindings of a destination count as one with the sum of their weights.

The method is weighted rendezvous hashing. Each destination draws a number from the hash of the message and its own
label; the smallest `-ln(draw) / weight` wins. So the choice depends only on the set of bindings, not on their order or
on the process. A new or removed binding moves its own share of the keys and no other key. Destinations of equal weight
compare their draws; one logarithm per distinct weight is enough.

**x-modulus-hash.** The hash of all routing keys (CC and BCC too), modulo the number of bindings. It is cheaper, but
nearly all keys move when the number of bindings changes. Binding keys and arguments are ignored. Each binding is one
choice, so a queue that is bound twice gets twice as much. The bindings are ordered by their destinations' labels, so
keys stay with their queues after a restart.

**x-random.** A random binding per message; each binding is one choice. **x-local-random** accepts only classic queues
with an empty binding key. RabbitMQ prefers the queues of the client's node; with one node that is the only difference.

**Hashes** have 32 bits and are the same in every process, compiled or not: all products fit 63 bits. Texts are hashed
by zlib's CRC-32, then mixed.

Compiled by mypyc. Sources:

- RabbitMQ's plugin rabbitmq_consistent_hash_exchange: arguments, weights, texts. Its jump hash depends on the order of
  declarations.
- RabbitMQ's plugins rabbitmq_sharding and rabbitmq_random_exchange; RabbitMQ 4.3 for the order in x-modulus-hash and
  4.0 for x-local-random.
- Thaler and Ravishankar 1998 for rendezvous hashing.
- https://github.com/skeeto/hash-prospector (public domain) for the constants of `mix_bits`.
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
    """Return 32 bits that depend on all 96 bits of the arguments.

    For fixed seeds it is a bijection with an avalanche over all bits, so neighbouring keys get unrelated hashes.
    """
    x = value ^ seed
    x ^= x >> 16
    x = (x * 0x21F0AAAD) & _MASK
    x ^= second_seed
    x ^= x >> 15
    x = (x * 0x735A2D97) & _MASK
    return x ^ (x >> 15)


def key_hash(key: str) -> i64:
    """Return the hash of a routing key. Cost: about 100 ns."""
    return crc32(key.encode("utf-8", "surrogateescape"))


def keys_hash(keys: list[str]) -> i64:
    """Return the hash of all routing keys of a message. For one key it equals `key_hash`."""
    return key_hash(keys[0]) if len(keys) == 1 else crc32("\0".join(keys).encode("utf-8", "surrogateescape"))


def value_hash(value: object) -> i64:
    """Return the hash of a field value. `value` None: the field is absent. A text and a number differ: "1" and 1."""
    if isinstance(value, str):
        return key_hash(value)
    return crc32(stable_encoding(value))


def stable_encoding(value: object) -> bytes:
    """Return bytes that are the same for equal values in every process. The order of dict keys does not matter."""
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
    """The bindings in the order of their destinations' labels."""

    def __init__(self) -> None:
        self._labels: list[str] = []
        self.destinations: list[object] = []

    def add(self, destination: object) -> None:
        """Add a binding. Cost: a binary search and a list insertion."""
        label = destination_label(destination)
        place = bisect_left(self._labels, label)
        self._labels.insert(place, label)
        self.destinations.insert(place, destination)

    def remove(self, destination: object) -> None:
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
    """Return the weight in a binding key. Raises: BadBinding with RabbitMQ's texts."""
    if _INTEGER.fullmatch(key) is None:
        shown = key.replace("\\", "\\\\").replace('"', '\\"')
        raise BadBinding("The binding key must be an integer: " + (f'<<"{shown}">>' if key else "<<>>"))
    weight = int(key)
    if weight < 1:
        raise BadBinding("The binding key must be greater than 0")
    return weight


@final
class EqualWeightGroup:
    """The destinations of one weight. `seeds` has eight bytes per destination."""

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
        """Remove a destination. The last one takes its position: the order has no meaning."""
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
        """Return the highest draw and the position of its destination. Cost: about 3 ns per destination."""
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
    """The matching structure of an x-consistent-hash exchange."""

    def __init__(self) -> None:
        super().__init__()
        self._header = ""
        self._property: int = -1
        # The sum of the weights of each label; the destinations of each sum.
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
        """Raises: BadBinding if the key is not a weight."""
        parse_weight(key)

    def bind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Add a binding. Cost: about 2 us, and a copy of 8 bytes per destination of this weight."""
        label = destination_label(destination)
        self._set_weight(label, destination, self._weights.get(label, 0) + parse_weight(key))

    def unbind(self, key: str, arguments: Arguments, destination: object) -> None:
        label = destination_label(destination)
        self._set_weight(label, destination, self._weights[label] - parse_weight(key))

    def _set_weight(self, label: str, destination: object, weight: int) -> None:
        """Set the weight of a destination; 0 removes it."""
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
        """Return one destination, or none if nothing is bound.

        Cost: about 3 ns per destination and 50 ns per distinct weight.
        """
        if self.depends_on == HEADERS:
            return self._choose(value_hash(message.headers().get(self._header)))
        if self.depends_on == PROPERTIES:
            return self._choose(value_hash(message.field(self._property)))
        return self._choose(key_hash(keys[0]))  # rabbit: CC and BCC do not count

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


@mypyc_attr(allow_interpreted_subclasses=True)
class OrderedExchange(MessageExchangeType):
    """An exchange whose destinations are in the order of their names; keys and arguments of bindings do not count."""

    def __init__(self) -> None:
        super().__init__()
        self._bindings = OrderedBindings()

    def bind(self, key: str, arguments: Arguments, destination: object) -> None:
        """Add a binding. Cost: about 2 us, and a list insertion."""
        self._bindings.add(destination)

    def unbind(self, key: str, arguments: Arguments, destination: object) -> None:
        self._bindings.remove(destination)


@final
class ModulusHash(OrderedExchange):
    """The matching structure of an x-modulus-hash exchange."""

    def route(self, keys: list[str], message: Selectable) -> list[object]:
        """Return one destination, or none if nothing is bound. Cost: O(1)."""
        destinations = self._bindings.destinations
        count: i64 = len(destinations)
        if count == 0:
            return _NO_DESTINATIONS
        return [destinations[mix_bits(keys_hash(keys), 0, 0) % count]]


_UNSUPPORTED_QUEUE_TYPES: Final = {"quorum": "rabbit_quorum_queue", "stream": "rabbit_stream_queue"}


@mypyc_attr(allow_interpreted_subclasses=True)
class Random(OrderedExchange):
    """The matching structure of an x-random exchange. `chance` returns random numbers from 0 to below 1."""

    def __init__(self, chance: Callable[[], float] = random_number) -> None:
        super().__init__()
        self.depends_on = RANDOMNESS
        self._random_number = chance

    def route(self, keys: list[str], message: Selectable) -> list[object]:
        """Return one destination, or none if nothing is bound. Cost: O(1)."""
        destinations = self._bindings.destinations
        count = len(destinations)
        if count < 2:
            return destinations if count else _NO_DESTINATIONS
        return [destinations[int(self._random_number() * count)]]


@final
class LocalRandom(Random):
    """The matching structure of an x-local-random exchange."""

    def validate(self, key: str, arguments: Arguments) -> None:
        """Raises: BadBinding if the key is not empty."""
        if key:
            raise BadBinding(f"Non empty binding '{key}' key not permitted")

    def validate_destination(self, kind: str) -> None:
        """Raises: BadBinding for an exchange, and for queue types that RabbitMQ replicates."""
        if kind == "exchange":
            raise BadBinding("Destination not found")
        if kind in _UNSUPPORTED_QUEUE_TYPES:
            raise BadBinding(f"Queue type {_UNSUPPORTED_QUEUE_TYPES[kind]} not valid for this exchange type")
