"""The assignors of the consumer protocol (KIP-848): which member gets which partitions.

    uniform   all members get the same number of partitions, or as near to it as their subscriptions allow. A member
              keeps the partitions that it had, except those that others must get.
    range     of each topic, the members in their order get contiguous ranges. Topics with the same number of partitions
              and the same members are assigned in the same way, so that equal keys of both are at one member.

An assignor is a function without state. It gets the members in their order, each with the topics to which it has
subscribed and their number of partitions, and the assignment before. Members with the same subscription should share
one mapping: their topics are then looked at once.

Cost: 1 to 3 us a partition, so 10 to 25 ms for 10,000 partitions and 1,000 members. With different subscriptions
uniform needs 2 us more for each topic of each subscription.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush
from typing import Final, TypeAlias

Partition: TypeAlias = tuple[bytes, int]
"""Topic id (16 bytes) and number."""
Partitions: TypeAlias = frozenset[Partition]
Topics: TypeAlias = Mapping[bytes, int]
"""Topic id -> number of partitions."""
Assignment: TypeAlias = dict[str, Partitions]
"""Member id -> its partitions."""
Assignor: TypeAlias = Callable[[Mapping[str, Topics], Mapping[str, Partitions]], Assignment]

NO_PARTITIONS: Final[Partitions] = frozenset()
PASSES_MAX: Final = 20
"""Passes over all topics that balance members with different subscriptions. One or two are enough, as a rule."""


def partitions_of(topics: Topics) -> set[Partition]:
    """Return all partitions of these topics."""
    return {(topic, index) for topic, count in topics.items() for index in range(count)}


def _classes(members: Mapping[str, Topics]) -> list[tuple[Topics, list[str]]]:
    """Return the subscriptions with their members, in their order."""
    classes: dict[int, tuple[Topics, list[str]]] = {}
    for member, topics in members.items():
        classes.setdefault(id(topics), (topics, []))[1].append(member)
    return list(classes.values())


# -- uniform


def assign_uniform(members: Mapping[str, Topics], previous: Mapping[str, Partitions]) -> Assignment:
    """Assign the same number of partitions to each member, with as few changes as possible."""
    if not members:
        return {}
    classes = _classes(members)
    if all(topics == classes[0][0] for topics, _ in classes):
        return _assign_equal(list(members), partitions_of(classes[0][0]), previous)
    return _MixedAssignment(classes, previous).result()


def _assign_equal(members: list[str], everything: set[Partition], previous: Mapping[str, Partitions]) -> Assignment:
    """Assign to members with one subscription: the numbers differ by one at most."""
    least, extra = divmod(len(everything), len(members))
    assignment = {member: previous.get(member, NO_PARTITIONS) & everything for member in members}
    # The members that have most may keep one partition more than the others.
    members = sorted(members, key=lambda member: -len(assignment[member]))
    unassigned = set(everything)
    rooms: list[tuple[str, int]] = []
    for number, member in enumerate(members):
        quota = least + (number < extra)
        kept = assignment[member]
        if len(kept) > quota:
            kept = assignment[member] = frozenset(sorted(kept)[:quota])
        unassigned -= kept
        if len(kept) < quota:
            rooms.append((member, quota - len(kept)))
    # One to each in turn, so that the partitions of a topic are spread.
    added: dict[str, list[Partition]] = {member: [] for member, _ in rooms}
    rest = iter(sorted(unassigned))
    while rooms:
        for member, _ in rooms:
            added[member].append(next(rest))
        rooms = [(member, room - 1) for member, room in rooms if room > 1]
    for member, partitions in added.items():
        assignment[member] |= frozenset(partitions)
    return assignment


class _MixedAssignment:
    """Assigns to members with different subscriptions: no move of one partition makes it more even.

    Each subscription has a heap of its members by their number of partitions. An entry of a heap whose number is old is
    dropped when it is on top.
    """

    def __init__(self, classes: list[tuple[Topics, list[str]]], previous: Mapping[str, Partitions]) -> None:
        self._owned: dict[str, set[Partition]] = {}
        self._class_of: dict[str, int] = {}
        self._heaps: list[list[tuple[int, str]]] = []
        self._counts: dict[bytes, int] = {}
        self._subscribed: dict[bytes, list[int]] = {}  # topic -> numbers of the subscriptions that contain it
        self._owners: dict[Partition, str] = {}
        for number, (topics, members) in enumerate(classes):
            everything = partitions_of(topics)
            for topic, count in topics.items():
                self._counts[topic] = count
                self._subscribed.setdefault(topic, []).append(number)
            for member in members:
                kept = previous.get(member, NO_PARTITIONS) & everything
                self._owned[member] = set(kept)
                self._owners.update(dict.fromkeys(kept, member))
                self._class_of[member] = number
            self._heaps.append([(len(self._owned[member]), member) for member in members])
            heapify(self._heaps[-1])

    def result(self) -> Assignment:
        # Topics with few subscriptions first: their partitions have the least choice.
        for topic in sorted(self._counts, key=lambda topic: (len(self._subscribed[topic]), topic)):
            for index in range(self._counts[topic]):
                if (topic, index) not in self._owners:
                    self._move((topic, index), self._least(topic))
        for _ in range(PASSES_MAX):
            if not self._balance():
                break
        return {member: frozenset(owned) for member, owned in self._owned.items()}

    def _balance(self) -> bool:
        """Move partitions to members that have at least two less. Return whether any was moved."""
        moved = False
        for topic, count in self._counts.items():
            least = self._least(topic)
            for index in range(count):
                partition = (topic, index)
                if len(self._owned[self._owners[partition]]) > len(self._owned[least]) + 1:
                    self._move(partition, least)
                    least = self._least(topic)
                    moved = True
        return moved

    def _least(self, topic: bytes) -> str:
        """Return the member with the fewest partitions of those that have subscribed to the topic."""
        return min(self._top(self._heaps[number]) for number in self._subscribed[topic])[1]

    def _top(self, heap: list[tuple[int, str]]) -> tuple[int, str]:
        while heap[0][0] != len(self._owned[heap[0][1]]):
            heappop(heap)
        return heap[0]

    def _move(self, partition: Partition, member: str) -> None:
        owner = self._owners.get(partition)
        if owner is not None:
            self._owned[owner].remove(partition)
            self._push(owner)
        self._owners[partition] = member
        self._owned[member].add(partition)
        self._push(member)

    def _push(self, member: str) -> None:
        heappush(self._heaps[self._class_of[member]], (len(self._owned[member]), member))


# -- range


def assign_range(members: Mapping[str, Topics], _: Mapping[str, Partitions]) -> Assignment:
    """Assign contiguous ranges of each topic. The assignment before does not matter."""
    order = {member: number for number, member in enumerate(members)}
    classes = _classes(members)
    counts: dict[bytes, int] = {}
    subscribed: dict[bytes, list[int]] = {}
    for number, (topics, _members) in enumerate(classes):
        for topic, count in topics.items():
            counts[topic] = count
            subscribed.setdefault(topic, []).append(number)
    merged: dict[tuple[int, ...], list[str]] = {}
    assigned: dict[str, list[Partition]] = {member: [] for member in members}
    for topic, count in counts.items():
        numbers = tuple(subscribed[topic])
        subscribers = merged.get(numbers)
        if subscribers is None:
            everyone = [member for number in numbers for member in classes[number][1]]
            subscribers = merged[numbers] = sorted(everyone, key=order.__getitem__)
        least, extra = divmod(count, len(subscribers))
        start = 0
        for number, member in enumerate(subscribers[:count]):
            end = start + least + (number < extra)
            assigned[member] += [(topic, index) for index in range(start, end)]
            start = end
    return {member: frozenset(partitions) for member, partitions in assigned.items()}


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
"""By name."""
DEFAULT: Final = "uniform"
