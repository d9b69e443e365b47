"""A table of bindings: key -> set of destinations, with a count per binding.

A key is a routing key, a pattern or a set of header conditions. Different bindings may have the same meaning (`#` and
`#.#`, or arguments that this type ignores), so each (key, destination) is counted. Repeats are rare and stored apart;
`match` returns the set of a key as it is.

Invariants: no set is empty. A key keeps its set object while the key is in the table, so an index may refer to it.
"""

from __future__ import annotations

from typing import final


@final
class BindingTable:
    """Key -> destinations, each with the number of its bindings."""

    def __init__(self) -> None:
        self._destinations: dict[object, set[object]] = {}
        self._repeats: dict[tuple[object, object], int] = {}

    def add(self, key: object, destination: object) -> set[object]:
        """Add a binding and return the set of its key. Cost: O(1)."""
        destinations = self._destinations.get(key)
        if destinations is None:
            destinations = {destination}
            self._destinations[key] = destinations
        elif destination in destinations:
            pair = (key, destination)
            self._repeats[pair] = self._repeats.get(pair, 0) + 1
        else:
            destinations.add(destination)
        return destinations

    def remove(self, key: object, destination: object) -> bool:
        """Remove a binding. Return True if it was the last one of this key. Raises: KeyError. Cost: O(1)."""
        pair = (key, destination)
        repeats = self._repeats.get(pair, 0)
        if repeats > 1:
            self._repeats[pair] = repeats - 1
            return False
        if repeats == 1:
            del self._repeats[pair]
            return False
        destinations = self._destinations[key]
        destinations.remove(destination)
        if destinations:
            return False
        del self._destinations[key]
        return True

    def get(self, key: object) -> set[object] | None:
        """Return the set of this key itself, or None."""
        return self._destinations.get(key)


def union(found: list[set[object]]) -> set[object]:
    """Return the union of these sets; a single set is returned as it is.

    Callers must not change it. Cost: their sizes.
    """
    if len(found) == 1:
        return found[0]
    together: set[object] = set()
    for destinations in found:
        together |= destinations
    return together
