"""What exchange types share that choose one of their bindings: hashes that are the same in every process, and the
bindings in one order.

Hashes are 32 bits. `mixed` is a bijection of its first argument for each seed, with an avalanche over all bits, so that
neighbouring keys are as far apart as any; every product in it fits 63 bits, compiled or not. Source of its constants:
https://github.com/skeeto/hash-prospector (public domain). Texts are hashed by zlib's CRC-32 and mixed after that.

Compiled by mypyc.
"""

from __future__ import annotations

from bisect import bisect_left
from decimal import Decimal
from typing import Final, final
from zlib import crc32

from mypy_extensions import i64

from amqpd.routing.message_exchange import label_of

_MASK: Final = 0xFFFFFFFF


def mixed(value: i64, seed: i64, second_seed: i64) -> i64:
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
    return crc32(encoded(value))


def encoded(value: object) -> bytes:
    """The same for the same value, in whatever process and order of keys."""
    if isinstance(value, str):
        return b"s" + value.encode("utf-8", "surrogateescape")
    if isinstance(value, (bytes, bytearray)):
        return b"b" + bytes(value)
    if isinstance(value, list):
        return b"[" + b",".join([encoded(item) for item in value]) + b"]"
    if isinstance(value, dict):
        pairs = sorted([(str(name), encoded(item)) for name, item in value.items()])
        return b"{" + b",".join([encoded(name) + b"=" + item for name, item in pairs]) + b"}"
    if isinstance(value, (float, Decimal)):
        return b"f" + str(value).encode()
    return type(value).__name__.encode() + b":" + str(value).encode()


@final
class Choices:
    """Bindings in the order of their destinations' labels, each of them one choice."""

    def __init__(self) -> None:
        self._labels: list[str] = []
        self.destinations: list[object] = []

    def add(self, destination: object) -> None:
        """Cost: a search, and a move of what stands behind it."""
        label = label_of(destination)
        place = bisect_left(self._labels, label)
        self._labels.insert(place, label)
        self.destinations.insert(place, destination)

    def remove(self, destination: object) -> None:
        """Cost: likewise. Raises: KeyError if there is no such binding, an error of the caller."""
        label = label_of(destination)
        place = bisect_left(self._labels, label)
        if place == len(self._labels) or self._labels[place] != label:
            raise KeyError(label)
        del self._labels[place]
        del self.destinations[place]
