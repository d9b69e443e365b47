"""A deque of queue entries, for the ready messages in memory.

It does the same as `collections.deque`, but compiled code calls it natively: 3 ns per call instead of 30 ns. Every
message that waits passes through it.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import QueueEntry

# The list is shifted when more places than this are empty at its front.
_EMPTY_MAX: Final = 1024


@final
class EntryDeque:
    """A deque of entries: append at the end, pop at the front. The list has None before `_head`."""

    def __init__(self) -> None:
        self._entries: list[QueueEntry | None] = []
        self._head: i64 = 0

    def __len__(self) -> int:
        return len(self._entries) - self._head

    def __bool__(self) -> bool:
        return len(self._entries) > 0

    def append(self, entry: QueueEntry) -> None:
        self._entries.append(entry)

    def first(self) -> QueueEntry:
        """Return the first entry. Raises: IndexError if there is none."""
        entry = self._entries[self._head]
        assert entry is not None  # as the class says
        return entry

    def popleft(self) -> QueueEntry:
        """Remove and return the first entry. Cost: O(1) on average. Raises: IndexError if there is none."""
        entries = self._entries
        head = self._head
        entry = entries[head]
        assert entry is not None  # as the class says
        entries[head] = None
        head += 1
        size: i64 = len(entries)
        if head == size:
            entries.clear()
            head = 0
        elif head >= _EMPTY_MAX and head * 2 >= size:
            del entries[:head]
            head = 0
        self._head = head
        return entry

    def after_last(self) -> i64:
        """Return the index after the last entry, for `index_from` and `at`."""
        return len(self._entries)

    def at(self, index: i64) -> QueueEntry:
        """Return the entry at an index of `index_from`. Indexes are valid until an entry is removed."""
        entry = self._entries[index]
        assert entry is not None  # `index_from` returns no index before `_head`
        return entry

    def index_from(self, offset: i64) -> i64:
        """Return the index of the first entry at `offset` or above; `after_last()` if there is none.

        Cost: a bisection.
        """
        low = self._head
        high: i64 = len(self._entries)
        while low < high:
            middle = (low + high) >> 1
            if self.at(middle).offset < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def remove_at(self, index: i64) -> QueueEntry:
        """Remove and return the entry at an index. Cost: O(1) at the front, else O(n): 1 us for 4096 entries."""
        if index == self._head:
            return self.popleft()
        entry = self.at(index)
        del self._entries[index]
        return entry

    def clear(self) -> None:
        self._entries.clear()
        self._head = 0

    def entries(self) -> list[QueueEntry]:
        return [entry for entry in self._entries if entry is not None]
