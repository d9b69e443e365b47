"""Index by offset of the ready messages in memory, for a search through a queue (scan.py).

A queue can have a hundred thousand returned messages in memory, so the index is filled in slices. The ready order
updates it for each message that enters or leaves memory. The cost of a slice of the search does not depend on the
number of messages in memory. An order without searches has an empty list of indexes.

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
    """The index of one search, with offsets below `end`.

    Attributes:
        entries: ready messages in memory.
        nodes: their nodes, for a queue with groups.
        alone: heap of the offsets that no log has; some may be gone.
    """

    def __init__(self, backing: QueueStore, end: i64) -> None:
        self.entries: dict[int, QueueEntry] = {}
        self.nodes: dict[int, GroupNode] = {}
        self.alone: list[int] = []
        self._backing = backing
        self._end = end
        # What was in memory at the beginning, the progress of `fill`, and offsets removed before `fill` met them.
        self._first_entries: list[QueueEntry] = []
        self._first_nodes: list[GroupNode] = []
        self._at: i64 = 0
        self._gone: set[int] = set()
        self._filling = True

    def begin(self, entries: list[QueueEntry], nodes: list[GroupNode]) -> None:
        """Set what is in memory at the beginning. One list is empty; entries may leave before `fill` meets them."""
        self._first_entries = entries
        self._first_nodes = nodes

    def fill(self, scans: ScanBudget) -> bool:
        """Continue to fill the index. Return False if the slice ended first."""
        if not self._filling:
            return True
        nodes = self._first_nodes
        entries = self._first_entries
        count: i64 = len(nodes) + len(entries)
        while self._at < count:
            if scans.is_used_up:
                return False
            stop = self._at + LOOK_COUNT
            if stop > count:
                stop = count
            scans.count_checked(stop - self._at)
            while self._at < stop:
                if nodes:
                    node = nodes[self._at]
                    if node.entry is not None and node.offset not in self.entries:
                        self.add_ready(node.offset, node.entry, node)
                else:
                    entry = entries[self._at]
                    if entry.offset not in self._gone and entry.offset not in self.entries:
                        self.add_ready(entry.offset, entry, None)
                self._at += 1
        self._filling = False
        self._first_nodes = []
        self._first_entries = []
        self._gone.clear()
        return True

    def add_ready(self, offset: i64, entry: QueueEntry, node: GroupNode | None) -> None:
        if offset < 0 or offset >= self._end:
            return
        self.entries[offset] = entry
        if node is not None:
            self.nodes[offset] = node
        if not self._backing.is_logged(offset):
            heappush(self.alone, offset)

    def remove(self, offset: i64) -> None:
        """Remove a message that is no longer in memory or no longer ready."""
        self.entries.pop(offset, None)
        self.nodes.pop(offset, None)
        if self._filling:
            self._gone.add(offset)

    def clear(self) -> None:
        """Remove everything: the queue has no ready message."""
        self.entries.clear()
        self.nodes.clear()
        self.alone.clear()
        self._first_nodes = []
        self._first_entries = []
        self._gone.clear()
        self._at = 0
