"""Counted sets of destinations: the part that every exchange type has in common.

A table maps a key (a routing key, a pattern, a set of header conditions) to the destinations bound under it. Several
bindings may say the same thing twice (`#` and `#.#`, or equal keys with arguments that do not matter here), so each
(key, destination) is counted; all but the first are remembered apart, because they are rare and a set per key is what
`match` hands out.

Invariants: no set in the table is empty; a set keeps its identity as long as its key is in the table, so an index may
point at it.
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
        """Counts one binding and returns the set of this key. Cost: O(1)."""
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
        """Takes one binding away; True when it was the last one under this key. Cost: O(1).

        Raises: KeyError if there is no such binding, which is an error of the caller.
        """
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
        """The table's own set under this key, None when there is none."""
        return self._destinations.get(key)


def union(found: list[set[object]]) -> set[object]:
    """All destinations of these sets, not to be changed: where there is one set, that itself. Cost: their sizes."""
    if len(found) == 1:
        return found[0]
    together: set[object] = set()
    for destinations in found:
        together |= destinations
    return together
