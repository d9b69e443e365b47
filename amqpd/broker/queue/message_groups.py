"""What the ready order of a queue with groups is made of: groups, messages that wait in them, consumers that hold them.

    Group     what is ready of one group, in order, and who has the rest: `unacked` messages are with `holder`
    Waiting   a ready message in memory. It stands in several lines at once (its group's, that of all, that of what
              is free), is taken out of one, and passed over in the others: its `entry` is None by then
    Holder    a consumer of the queue: how many groups are its own just now, and what of them is ready
    Line      in at the end, out at the front

A group is locked while anything of it is unacked. What is ready of it then is for its holder alone, and for nobody
where the holder has gone, or is a basic.get. Messages of a group are in three places, in this order: `returned`, the
chain from `first` to `last`, and the log, from `passed_from` on: what was passed over there while the group was locked.

Compiled by mypyc.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import Consumer, Entry

# Entries of a line or heap whose message has gone, beyond as many as are still there.
GONE_MAX: Final = 64


@final
class Waiting:
    """A ready message. returned: it came back. in_line: it stands in the order's line, else in its heap `behind`."""

    def __init__(self, entry: Entry, group: Group, returned: bool, in_line: bool) -> None:
        self.entry: Entry | None = entry
        self.offset: i64 = entry.offset
        self.group = group
        self.returned = returned
        self.in_line = in_line
        self.next: Waiting | None = None

    def __lt__(self, other: Waiting) -> bool:
        return self.offset < other.offset

    def __hash__(self) -> int:
        # Compiled, a class with a comparison has none of its own accord.
        return id(self)


@final
class Holder:
    """A consumer of the queue. groups: how many it holds. own: heads of them, the oldest first. called: it stands in
    the line of those with something of their own. gone: it gets nothing any more.
    """

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.groups: i64 = 0
        self.own: list[Waiting] = []
        self.called = False
        self.gone = False

    def put(self, head: Waiting) -> None:
        """It has become the head of a group that is this one's."""
        own = self.own
        if len(own) > 2 * self.groups + GONE_MAX:
            own = [each for each in own if self._is_own(each)]
            heapify(own)
            self.own = own
        heappush(own, head)

    def first(self) -> Waiting | None:
        """The oldest message that is for this one alone."""
        own = self.own
        while own:
            head = own[0]
            if self._is_own(head):
                return head
            heappop(own)
        return None

    def _is_own(self, head: Waiting) -> bool:
        group = head.group
        return head.entry is not None and group.holder is self and group.waits == 0 and group.head() is head


@final
class Group:
    """key: what its messages have in common; None: one message that is of no group, and so is one by itself.

    unacked: how many are, or wait for their next try; waits: how many of them do that. count: of the chain.
    passed_count: how many are in the log alone, of those that were looked at; none of them is
    below `passed_from`. refused: the number of the reading that could not take the first of them (grouped_log.py).
    """

    def __init__(self, key: str | None) -> None:
        self.key = key
        self.unacked: i64 = 0
        self.waits: i64 = 0
        self.holder: Holder | None = None
        self.returned: list[Waiting] | None = None
        self.first: Waiting | None = None
        self.last: Waiting | None = None
        self.count: i64 = 0
        self.passed_count: i64 = 0
        self.passed_from: i64 = 0
        self.refused: i64 = 0
        # Of `returned`: those that were taken out of the middle.
        self.gone: i64 = 0

    def head(self) -> Waiting | None:
        """The first in memory; nothing of the group that is ready is before it."""
        returned = self.returned
        first = self.first
        while self.gone > 0 and returned and returned[0].entry is None:
            heappop(returned)
            self.gone -= 1
        if returned and (first is None or returned[0].offset < first.offset):
            return returned[0]
        return first

    def append(self, node: Waiting) -> None:
        """Behind all that are in memory."""
        last = self.last
        if last is None:
            self.first = node
        else:
            last.next = node
        self.last = node
        self.count += 1

    def put_back(self, node: Waiting) -> None:
        """It came back."""
        returned = self.returned
        if returned is None:
            returned = []
            self.returned = returned
        heappush(returned, node)

    def pop(self, head: Waiting) -> None:
        """The head goes."""
        if head.returned:
            returned = self.returned
            assert returned is not None  # it stands there
            heappop(returned)
            return
        first = head.next
        self.first = first
        if first is None:
            self.last = None
        head.next = None
        self.count -= 1

    def cut(self, kept: i64) -> Waiting | None:
        """What is behind the first `kept` of the chain leaves it: the first of those, which leads to the others."""
        if self.count <= kept:
            return None
        self.count = kept
        node = self.first
        if kept == 0:
            self.first = None
            self.last = None
            return node
        while node is not None and kept > 1:
            node = node.next
            kept -= 1
        assert node is not None  # there are more than that
        self.last = node
        rest = node.next
        node.next = None
        return rest

    def is_empty(self) -> bool:
        """Whether nothing of it is ready or unacked: it may be forgotten."""
        return self.unacked == 0 and self.first is None and not self.returned and self.passed_count == 0


@final
class Line:
    """Waiting messages, ascending. Those that have gone are passed over at the front, and thrown out when they are more
    than half of all."""

    def __init__(self) -> None:
        self._nodes: list[Waiting] = []
        self._head: i64 = 0

    def append(self, node: Waiting, live_max: i64) -> None:
        """live_max: no more than so many of those in line have not gone. Cost: O(1) on average."""
        nodes = self._nodes
        if len(nodes) - self._head > 2 * live_max + GONE_MAX:
            nodes = [each for each in nodes[self._head :] if each.entry is not None]
            self._nodes = nodes
            self._head = 0
        nodes.append(node)

    def first(self) -> Waiting | None:
        """The first that has not gone."""
        nodes = self._nodes
        head = self._head
        size: i64 = len(nodes)
        while head < size:
            node = nodes[head]
            if node.entry is not None:
                self._set(head, size)
                return node
            head += 1
        self._set(head, size)
        return None

    def drop_first(self) -> None:
        """The first has not gone, but does not belong here any more."""
        self._set(self._head + 1, len(self._nodes))

    def _set(self, head: i64, size: i64) -> None:
        if head >= size:
            self._nodes.clear()
            head = 0
        elif head >= 1024 and head * 2 >= size:
            del self._nodes[:head]
            head = 0
        self._head = head

    def nodes(self) -> list[Waiting]:
        """All, and some that have gone."""
        return self._nodes[self._head :]

    def all(self) -> list[Waiting]:
        """Those that have not gone."""
        return [each for each in self._nodes[self._head :] if each.entry is not None]

    def clear(self) -> None:
        self._nodes.clear()
        self._head = 0
