"""A queue's consumers, and whose turn it is.

They are served in strict round robin among those of the highest priority that have credit and room to write. One
without is parked, at no cost to the others, until its channel says that it is back.
"""

from __future__ import annotations

from collections import deque

from amqpd.broker.delivery import Consumer


class RoundRobin:
    """See the module. Cost: O(1), a step per consumer that has to be parked."""

    def __init__(self) -> None:
        self.consumers: list[Consumer] = []
        # Those that are ready, highest priority first; parked ones are in no group.
        self.groups: list[deque[Consumer]] = []
        # x-single-active-consumer: the first of `consumers` is served, the others stand by.
        self.single_active = False

    @property
    def exclusive(self) -> bool:
        """Whether the one that is there allows no other."""
        return len(self.consumers) > 0 and self.consumers[0].exclusive

    def add(self, consumer: Consumer) -> None:
        """It has its turn behind those that are ready."""
        self.consumers.append(consumer)
        self._enter(consumer)

    def remove(self, consumer: Consumer) -> bool:
        """It takes nothing more. True: it was the single active one, and the next in line is to be activated."""
        consumer.cancelled = True
        if consumer not in self.consumers:
            return False
        first = self.consumers[0]
        self.consumers.remove(consumer)
        self._leave(consumer)
        return self.single_active and first is consumer and len(self.consumers) > 0

    def back(self, consumer: Consumer) -> bool:
        """A parked consumer may have credit or room again. False: it was not parked."""
        if not consumer.parked or consumer.cancelled:
            return False
        consumer.parked = False
        self._enter(consumer)
        return True

    def pick(self) -> Consumer | None:
        """Whose turn it is, moved to the end of its group. Parks those that cannot take."""
        groups = self.groups
        while groups:
            group = groups[0]
            consumer = group[0]
            if consumer.can_take() and (not self.single_active or consumer is self.consumers[0]):
                if len(group) > 1:
                    group.rotate(-1)
                return consumer
            consumer.parked = True
            group.popleft()
            if not group:
                del groups[0]
        return None

    def _enter(self, consumer: Consumer) -> None:
        index = 0
        for group in self.groups:
            if group[0].priority == consumer.priority:
                group.append(consumer)
                return
            if group[0].priority < consumer.priority:
                break
            index += 1
        group = deque()
        group.append(consumer)
        self.groups.insert(index, group)

    def _leave(self, consumer: Consumer) -> None:
        if consumer.parked:
            consumer.parked = False
            return
        for group in self.groups:
            if group[0].priority == consumer.priority:
                group.remove(consumer)
                if not group:
                    self.groups.remove(group)
                return
