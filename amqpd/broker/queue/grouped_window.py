"""What of a queue with groups is in memory: which message may be given to whom, and which group is whose.

Every ready message in memory stands in its group (message_groups.py). The head of a group is besides in one of these,
the oldest first, as long as it is the head:

    what is free         `_fresh` (as they came) and `_again` (all others): heads of groups of which nothing is unacked
    a holder's own       `GroupOwner.own`: heads of the groups that are his; `_callers` are the holders to be asked

Whoever takes a message locks its group (`claim`) until all that is unacked of it is settled or back (`release`). The
oldest of all that are in memory, whoever may have it, is for expiry and length limits: `_line` and `_behind`.

A group is known while something of it is in memory, unacked or passed over, so there are never more of them than
entries. What is passed over is counted here and read by `GroupedOrder` (grouped_order.py), which derives from this.

Compiled by mypyc.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush

from mypy_extensions import i64

from amqpd.broker.consumer import Consumer, QueueBase, QueueEntry
from amqpd.broker.message import Message
from amqpd.broker.queue.message_groups import GONE_MAX, Group, GroupKey, GroupNode, GroupOwner, LazyQueue
from amqpd.broker.queue.ready_order import ReadyOrder
from amqpd.broker.queue.scan_index import MemoryIndex
from amqpd.broker.queue.store import QueueStore


class GroupedWindow(ReadyOrder):
    """Of one queue. locked_count: groups of which something is unacked. hot_count: in memory, but for what came back.

    passed_count: messages that were passed over; none of them is below `passed_low`. starving: groups of which
    something is ready, but nothing in memory.
    """

    def __init__(self, backing: QueueStore, group_by: str) -> None:
        super().__init__(backing)
        self.key = GroupKey(group_by)
        self.groups: dict[str, Group] = {}
        self.held: dict[QueueEntry, Group] = {}
        # Those of them that wait for their next try.
        self.held_back: dict[QueueEntry, None] = {}
        self.holders: dict[Consumer, GroupOwner] = {}
        self.locked_count: i64 = 0
        self.hot_count: i64 = 0
        self.passed_count: i64 = 0
        self.passed_low: i64 = 0
        self.unloaded: dict[Group, None] = {}
        self._returned_count: i64 = 0
        self._line = LazyQueue()
        self._behind: list[GroupNode] = []
        self._behind_count: i64 = 0
        self._fresh = LazyQueue()
        self._again: list[GroupNode] = []
        self._callers: deque[GroupOwner] = deque()
        # Of those who search.
        self.indexes: list[MemoryIndex] = []

    # -- for who looks at it

    def memory_count(self) -> i64:
        return self.hot_count

    def first_at_hand(self) -> Message | None:
        node = self.first_free()
        return node.entry.message if node is not None and node.entry is not None else None

    def groups_held(self, consumer: Consumer) -> i64:
        """How many groups are the consumer's just now."""
        holder = self.holders.get(consumer)
        return 0 if holder is None else holder.groups

    def groups_waiting(self) -> i64:
        """How many groups that are locked have something ready, as far as they were looked at. Cost: a step per group
        that is known."""
        count: i64 = 0
        for group in self.groups.values():
            if group.unacked > 0 and (group.passed_count > 0 or group.head() is not None):
                count += 1
        return count

    # -- consumers

    def join(self, queue: QueueBase, consumer: Consumer) -> None:
        self.holders[consumer] = GroupOwner(consumer)

    def leave(self, queue: QueueBase, consumer: Consumer) -> None:
        """What it has unacked keeps its groups locked, until that is settled or back."""
        holder = self.holders.pop(consumer, None)
        if holder is not None:
            holder.gone = True
            holder.own.clear()

    def call(self, holder: GroupOwner) -> None:
        """It may have something of its own: it is asked."""
        if not holder.called and not holder.gone and holder.own:
            holder.called = True
            self._callers.append(holder)

    def caller(self) -> GroupOwner | None:
        """The next to be asked; it stays so until `asked`."""
        callers = self._callers
        while callers:
            holder = callers[0]
            if not holder.gone:
                return holder
            holder.called = False
            callers.popleft()
        return None

    def asked(self) -> None:
        """The `caller` has nothing of its own, or takes nothing just now."""
        self._callers.popleft().called = False

    def next_caller(self) -> None:
        """The `caller` has got one: the others come first now."""
        self._callers.rotate(-1)

    # -- in

    def group_of(self, key: str | None) -> Group:
        """The group of this key, a new one if it is not known."""
        if key is None:
            return Group(None)
        group = self.groups.get(key)
        if group is None:
            group = Group(key)
            self.groups[key] = group
        return group

    def append(self, group: Group, entry: QueueEntry, in_line: bool) -> None:
        """A message that is ready comes into memory, behind all of its group. in_line: and behind all others."""
        node = GroupNode(entry, group, False, in_line)
        if in_line:
            self._line.append(node, self.hot_count)
        else:
            self._put_behind(node)
        self.hot_count += 1
        if entry.message is not None:
            self.hot_bytes += entry.body_size
        for index in self.indexes:
            index.came(node.offset, entry, node)
        group.append(node)
        if group.passed_count > 0:
            self.unloaded.pop(group, None)
        if group.head() is node:
            if in_line and group.unacked == 0:
                self._fresh.append(node, self.hot_count)
            else:
                self._head_changed(group, node)

    def _put_behind(self, node: GroupNode) -> None:
        behind = self._behind
        if len(behind) > 2 * self._behind_count + GONE_MAX:
            behind = [each for each in behind if each.entry is not None]
            heapify(behind)
            self._behind = behind
        heappush(behind, node)
        self._behind_count += 1

    def _head_changed(self, group: Group, head: GroupNode) -> None:
        """The group has another head, or is locked no more: whoever may have it finds it."""
        if group.unacked == 0:
            again = self._again
            if len(again) > 2 * (self.hot_count + self._returned_count) + GONE_MAX:
                again = [each for each in dict.fromkeys(again) if _is_free_head(each)]
                heapify(again)
                self._again = again
            heappush(again, head)
            return
        holder = group.holder
        if holder is not None and not holder.gone and group.waits == 0:
            holder.put(head)
            self.call(holder)

    def requeue(self, queue: QueueBase, entry: QueueEntry) -> None:
        group = self.held.get(entry)
        if group is None:  # somebody took it who is no consumer
            message = entry.message
            if message is None:
                self.backing.read_back(entry)
                message, entry.message = entry.message, None
            group = self.group_of(self.key.of_message(message) if message is not None else None)
        node = GroupNode(entry, group, True, False)
        group.put_back(node)
        self._put_behind(node)
        for index in self.indexes:
            index.came(node.offset, entry, node)
        self._returned_count += 1
        if group.passed_count > 0:
            self.unloaded.pop(group, None)
        queue.ready_count += 1
        queue.ready_bytes += entry.body_size
        if group.head() is node:
            self._head_changed(group, node)
        self.unreserve(queue, entry)

    # -- out

    def first_free(self) -> GroupNode | None:
        """The oldest message that anybody may have."""
        fresh = self._fresh.first()
        while fresh is not None and not _is_free_head(fresh):
            self._fresh.drop_first()
            fresh = self._fresh.first()
        again = self._again
        while again:
            node = again[0]
            if _is_free_head(node):
                return node if fresh is None or node.offset < fresh.offset else fresh
            heappop(again)
        return fresh

    def oldest(self) -> GroupNode | None:
        """The oldest message in memory, whoever may have it."""
        first = self._line.first()
        behind = self._behind
        while behind:
            node = behind[0]
            if node.entry is not None:
                return node if first is None or node.offset < first.offset else first
            heappop(behind)
        return first

    def claim(self, queue: QueueBase, head: GroupNode, holder: GroupOwner | None) -> QueueEntry:
        """The head of a group that is free, or the holder's, is unacked from now on. holder None: of a basic.get."""
        entry = self._pop(queue, head)
        group = head.group
        if group.unacked == 0:
            self.locked_count += 1
            group.holder = holder
            if holder is not None:
                holder.groups += 1
        group.unacked += 1
        self.held[entry] = group
        after = group.head()
        if after is not None:
            self._head_changed(group, after)
        elif group.passed_count > 0:
            self.unloaded[group] = None
        return entry

    def drop(self, queue: QueueBase, head: GroupNode) -> QueueEntry:
        """The head of a group leaves for good, whosever the group is."""
        entry = self._pop(queue, head)
        group = head.group
        after = group.head()
        if after is not None:
            self._head_changed(group, after)
        elif group.passed_count > 0:
            self.unloaded[group] = None
        else:
            self._forget(group)
        return entry

    def _pop(self, queue: QueueBase, head: GroupNode) -> QueueEntry:
        entry = head.entry
        assert entry is not None  # whoever has found it has looked
        head.group.pop(head)
        self._uncount(queue, head, entry)
        return entry

    def _uncount(self, queue: QueueBase, node: GroupNode, entry: QueueEntry) -> None:
        """It has left its group."""
        node.entry = None
        for index in self.indexes:
            index.went(node.offset)
        if not node.in_line:
            self._behind_count -= 1
        if node.returned:
            self._returned_count -= 1
        else:
            self.hot_count -= 1
            if entry.message is not None:
                self.hot_bytes -= entry.body_size
        queue.ready_count -= 1
        queue.ready_bytes -= entry.body_size
        if queue.ready_count == 0:
            queue.ready_bytes = 0

    # -- home

    def unreserve(self, queue: QueueBase, entry: QueueEntry) -> None:
        """What was claimed is settled, or back: its group may be free again, for whoever comes first."""
        group = self.held.pop(entry, None)
        if group is None:
            return
        group.unacked -= 1
        waited = entry in self.held_back
        if waited:
            del self.held_back[entry]
            group.waits -= 1
        head = group.head()
        if group.unacked > 0:
            if group.unacked == group.waits:
                self._part(group)
            elif waited and head is not None:
                self._head_changed(group, head)
                queue.schedule_dispatch()
            elif waited and group.passed_count > 0:
                self.unloaded[group] = None
                queue.schedule_dispatch()
            return
        self.locked_count -= 1
        self._part(group)
        if head is not None:
            self._head_changed(group, head)
            queue.schedule_dispatch()
        elif group.passed_count > 0:
            queue.schedule_dispatch()
        else:
            self._forget(group)

    def reserve(self, entry: QueueEntry) -> None:
        """What was claimed waits elsewhere and will be put back: until then nobody gets anything of its group. Who has
        more of it keeps it."""
        group = self.held.get(entry)
        if group is not None:
            self.held_back[entry] = None
            group.waits += 1
            if group.unacked == group.waits:
                self._part(group)

    def _part(self, group: Group) -> None:
        """Nobody has anything of it any more."""
        holder = group.holder
        if holder is not None:
            holder.groups -= 1
            group.holder = None

    def _forget(self, group: Group) -> None:
        key = group.key
        if key is not None and group.is_empty():
            self.groups.pop(key, None)

    # -- ends

    def waiting(self) -> list[GroupNode]:
        """All that is in memory."""
        return self._line.all() + [each for each in self._behind if each.entry is not None]

    def nodes(self) -> list[GroupNode]:
        """The same, and some that have gone. Cost: 2 ns each."""
        return self._line.nodes() + self._behind

    def forget_ready(self, queue: QueueBase) -> None:
        """Nothing is ready any more; groups stay locked."""
        for index in self.indexes:
            index.clear()
        for node in self.waiting():
            node.entry = None
            node.next = None
            group = node.group
            group.first = None
            group.last = None
            group.returned = None
            group.count = 0
            group.gone = 0
        for group in list(self.groups.values()):
            group.passed_count = 0
            self._forget(group)
        for holder in self.holders.values():
            holder.own.clear()
        self._line.clear()
        self._fresh.clear()
        self._behind.clear()
        self._behind_count = 0
        self._again.clear()
        self.unloaded.clear()
        self.passed_count = 0
        self._returned_count = 0
        self.hot_count = 0
        self.hot_bytes = 0
        queue.ready_count = 0
        queue.ready_bytes = 0

    def forget_held(self) -> None:
        """The queue is deleted: what is unacked has nothing to come back to."""
        for group in self.held.values():
            group.holder = None
        self.held.clear()
        self.held_back.clear()
        self.groups.clear()
        self.locked_count = 0


def _is_free_head(node: GroupNode) -> bool:
    group = node.group
    return node.entry is not None and group.unacked == 0 and group.head() is node
