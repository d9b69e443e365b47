"""What of a queue is in memory, by offset, for who goes over the queue and is no consumer (scan.py).

It is made in slices, since a hundred thousand messages may have come back, and its order tells it of what comes and
goes from then on: a slice of the search costs what it looks at, however much is in memory. An order has a list of
those who want to be told, which is empty unless somebody searches.

Compiled by mypyc.
"""

from __future__ import annotations

from heapq import heappush
from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import QueueEntry
from amqpd.broker.flow.loop_turn import ScanBudget
from amqpd.broker.queue.message_groups import GroupNode
from amqpd.broker.queue.store import QueueStore

LOOK_COUNT: Final = 256


@final
class MemoryIndex:
    """Of one search, up to the offset `end`. entries: what is in memory and ready; nodes: of a queue with groups, where
    each stands. alone: a heap of offsets that no log has; some may have gone.
    """

    def __init__(self, backing: QueueStore, end: i64) -> None:
        self.entries: dict[int, QueueEntry] = {}
        self.nodes: dict[int, GroupNode] = {}
        self.alone: list[int] = []
        self._backing = backing
        self._end = end
        # What was in memory at the beginning, how far it was looked at, and what of it has gone meanwhile.
        self._first_entries: list[QueueEntry] = []
        self._first_nodes: list[GroupNode] = []
        self._at: i64 = 0
        self._gone: set[int] = set()
        self._filling = True

    def begin(self, entries: list[QueueEntry], nodes: list[GroupNode]) -> None:
        """One of both is what is in memory, some of which may have gone."""
        self._first_entries = entries
        self._first_nodes = nodes

    def fill(self, scans: ScanBudget) -> bool:
        """Goes on with what was there at the beginning. False: the slice is over before it is done."""
        if not self._filling:
            return True
        nodes = self._first_nodes
        entries = self._first_entries
        count: i64 = len(nodes) + len(entries)
        while self._at < count:
            if scans.over:
                return False
            stop = self._at + LOOK_COUNT
            if stop > count:
                stop = count
            scans.looked_at(stop - self._at)
            while self._at < stop:
                if nodes:
                    node = nodes[self._at]
                    if node.entry is not None and node.offset not in self.entries:
                        self.came(node.offset, node.entry, node)
                else:
                    entry = entries[self._at]
                    if entry.offset not in self._gone and entry.offset not in self.entries:
                        self.came(entry.offset, entry, None)
                self._at += 1
        self._filling = False
        self._first_nodes = []
        self._first_entries = []
        self._gone.clear()
        return True

    def came(self, offset: i64, entry: QueueEntry, node: GroupNode | None) -> None:
        """It is in memory, and ready."""
        if offset < 0 or offset >= self._end:
            return
        self.entries[offset] = entry
        if node is not None:
            self.nodes[offset] = node
        if not self._backing.is_logged(offset):
            heappush(self.alone, offset)

    def went(self, offset: i64) -> None:
        """It is not in memory any more, or not ready."""
        self.entries.pop(offset, None)
        self.nodes.pop(offset, None)
        if self._filling:
            self._gone.add(offset)

    def clear(self) -> None:
        """Nothing is ready any more."""
        self.entries.clear()
        self.nodes.clear()
        self.alone.clear()
        self._first_nodes = []
        self._first_entries = []
        self._gone.clear()
        self._at = 0
