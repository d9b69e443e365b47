"""The groups of a queue with groups (x-group-by), and their ready messages in memory.

Each ready message in memory is in the list of its group (message_groups.py). The first message of each group is also in

    _new_heads, _other_heads   if the group is free. Any consumer may get these.
    GroupOwner.heads           if a consumer has the group. Only that consumer may get these.

`claim` locks the group of a message that is given out; `release` unlocks it when all its unacked messages are settled
or requeued. `_arrivals` and `_late` have all messages in memory, for expiry and length limits: those take the oldest
message of the queue, locked or not.

A group is known while it has a message in memory, unacked or passed over (grouped_log.py). So there are never more
groups than messages.

Compiled by mypyc.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, final

from mypy_extensions import i64

from amqpd.broker.consumer import Consumer, QueueEntry
from amqpd.broker.queue.message_groups import GONE_MAX, Group, GroupNode, GroupOwner, LazyQueue
from amqpd.broker.queue.scan_index import MemoryIndex
from amqpd.broker.queue.services import MemoryWindow

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue


@final
class GroupedWindow:
    """The groups of one queue and their messages in memory. It changes the queue's `ready_count` and `ready_bytes`.

    Attributes:
        memory: How much may be in memory.
        hot_count: Messages in memory, without requeued ones.
        returned_count: Requeued messages. They are always in memory.
        groups: The known groups, by key.
        locked_count: Groups with unacked messages.
        unacked: Message -> its group.
        retrying: The unacked messages that wait for a retry.
        owners: The queue's consumers.
        passed_count: Ready messages that were passed over in the log. None of them is below `passed_low`.
        cold_groups: Groups whose ready messages were all passed over, so that none is in memory.
        indexes: The indexes of running searches (scan.py). They follow what enters and leaves memory.
    """

    def __init__(self, memory: MemoryWindow) -> None:
        self.memory = memory
        self.hot_count: i64 = 0
        self.returned_count: i64 = 0
        self.groups: dict[str, Group] = {}
        self.locked_count: i64 = 0
        self.unacked: dict[QueueEntry, Group] = {}
        self.retrying: dict[QueueEntry, None] = {}
        self.owners: dict[Consumer, GroupOwner] = {}
        self.passed_count: i64 = 0
        self.passed_low: i64 = 0
        self.cold_groups: dict[Group, None] = {}
        self.indexes: list[MemoryIndex] = []
        self._arrivals = LazyQueue()
        self._late: list[GroupNode] = []
        self._late_count: i64 = 0
        self._new_heads = LazyQueue()
        self._other_heads: list[GroupNode] = []
        # Owners that may have a message of their own, in the order in which they are asked.
        self._offered: deque[GroupOwner] = deque()

    # -- figures -----------------------------------------------------------------------------------------------------

    def groups_held(self, consumer: Consumer) -> i64:
        """Return how many groups the consumer has now."""
        owner = self.owners.get(consumer)
        return 0 if owner is None else owner.group_count

    def groups_waiting(self) -> i64:
        """Return how many locked groups have ready messages, as far as the log was read. Cost: a step per group."""
        count: i64 = 0
        for group in self.groups.values():
            if group.unacked_count > 0 and (group.passed_count > 0 or group.head() is not None):
                count += 1
        return count

    # -- consumers ---------------------------------------------------------------------------------------------------

    def add_owner(self, consumer: Consumer) -> None:
        self.owners[consumer] = GroupOwner(consumer)

    def remove_owner(self, consumer: Consumer) -> None:
        """Remove a cancelled consumer. Its unacked messages keep their groups locked until they are settled."""
        owner = self.owners.pop(consumer, None)
        if owner is not None:
            owner.cancelled = True
            owner.heads.clear()

    def offer(self, owner: GroupOwner) -> None:
        """Note that the owner may have a message of its own."""
        if not owner.offered and not owner.cancelled and owner.heads:
            owner.offered = True
            self._offered.append(owner)

    def first_offered(self) -> GroupOwner | None:
        """Return the owner to ask next. It stays the first until `drop_offered` or `rotate_offered`."""
        offered = self._offered
        while offered:
            owner = offered[0]
            if not owner.cancelled:
                return owner
            owner.offered = False
            offered.popleft()
        return None

    def drop_offered(self) -> None:
        """Remove the first offered owner: it has no message of its own, or no credit."""
        self._offered.popleft().offered = False

    def rotate_offered(self) -> None:
        """Ask the other owners first: the first one has got a message."""
        self._offered.rotate(-1)

    # -- incoming messages -------------------------------------------------------------------------------------------

    def group_of(self, key: str | None) -> Group:
        """Return the group of this key, made if it is not known. None: a group for one message."""
        if key is None:
            return Group(None)
        group = self.groups.get(key)
        if group is None:
            group = Group(key)
            self.groups[key] = group
        return group

    def append(self, group: Group, entry: QueueEntry, in_line: bool) -> None:
        """Add a ready message behind all of its group. in_line: its offset is also above all others in memory."""
        node = GroupNode(entry, group, False, in_line)
        if in_line:
            self._arrivals.append(node, self.hot_count)
        else:
            self._add_late(node)
        self.hot_count += 1
        if entry.message is not None:
            self.memory.hot_bytes += entry.body_size
        for index in self.indexes:
            index.add_ready(node.offset, entry, node)
        group.append(node)
        if group.passed_count > 0:
            self.cold_groups.pop(group, None)
        if group.head() is node:
            if in_line and group.unacked_count == 0:
                self._new_heads.append(node, self.hot_count)
            else:
                self._head_changed(group, node)

    def requeue(self, queue: Queue, entry: QueueEntry, group: Group) -> None:
        """Add a message that was taken. It goes to its place by offset, and its group is unlocked for it."""
        node = GroupNode(entry, group, True, False)
        group.add_returned(node)
        self._add_late(node)
        for index in self.indexes:
            index.add_ready(node.offset, entry, node)
        self.returned_count += 1
        if group.passed_count > 0:
            self.cold_groups.pop(group, None)
        queue.ready_count += 1
        queue.ready_bytes += entry.body_size
        if group.head() is node:
            self._head_changed(group, node)
        self.release(queue, entry)

    def _add_late(self, node: GroupNode) -> None:
        late = self._late
        if len(late) > 2 * self._late_count + GONE_MAX:
            late = [each for each in late if each.entry is not None]
            heapify(late)
            self._late = late
        heappush(late, node)
        self._late_count += 1

    def _head_changed(self, group: Group, head: GroupNode) -> None:
        """The group has a new first message, or was unlocked: make `head` visible to the consumers that may get it."""
        if group.unacked_count == 0:
            heads = self._other_heads
            if len(heads) > 2 * (self.hot_count + self.returned_count) + GONE_MAX:
                heads = [each for each in dict.fromkeys(heads) if _is_free_head(each)]
                heapify(heads)
                self._other_heads = heads
            heappush(heads, head)
            return
        owner = group.owner
        if owner is not None and not owner.cancelled and group.retrying_count == 0:
            owner.add_head(head)
            self.offer(owner)

    # -- outgoing messages -------------------------------------------------------------------------------------------

    def first_free(self) -> GroupNode | None:
        """Return the oldest message that any consumer may get."""
        new = self._new_heads.first()
        while new is not None and not _is_free_head(new):
            self._new_heads.drop_first()
            new = self._new_heads.first()
        heads = self._other_heads
        while heads:
            node = heads[0]
            if _is_free_head(node):
                return node if new is None or node.offset < new.offset else new
            heappop(heads)
        return new

    def oldest(self) -> GroupNode | None:
        """Return the oldest message in memory, locked or not."""
        first = self._arrivals.first()
        late = self._late
        while late:
            node = late[0]
            if node.entry is not None:
                return node if first is None or node.offset < first.offset else first
            heappop(late)
        return first

    def claim(self, queue: Queue, head: GroupNode, owner: GroupOwner | None) -> QueueEntry:
        """Take the first message of a group and lock the group. owner: None for a basic.get."""
        entry = self._pop(queue, head)
        group = head.group
        if group.unacked_count == 0:
            self.locked_count += 1
            group.owner = owner
            if owner is not None:
                owner.group_count += 1
        group.unacked_count += 1
        self.unacked[entry] = group
        after = group.head()
        if after is not None:
            self._head_changed(group, after)
        elif group.passed_count > 0:
            self.cold_groups[group] = None
        return entry

    def drop(self, queue: Queue, head: GroupNode) -> QueueEntry:
        """Take the first message of a group for good. The group is not locked by it."""
        entry = self._pop(queue, head)
        self._after_removal(head.group)
        return entry

    def drop_all(self, queue: Queue, nodes: list[GroupNode]) -> None:
        """Take these messages for good, wherever they are in their groups. Cost: a step per message of the groups."""
        groups: dict[Group, None] = {}
        for node in nodes:
            entry = node.entry
            if entry is None:
                continue
            groups[node.group] = None
            if node.returned:
                node.group.gone_count += 1
            self._uncount(queue, node, entry)
        for group in groups:
            group.remove_gone()
            self._after_removal(group)

    def _after_removal(self, group: Group) -> None:
        head = group.head()
        if head is not None:
            self._head_changed(group, head)
        elif group.passed_count > 0:
            self.cold_groups[group] = None
        else:
            self.drop_if_empty(group)

    def _pop(self, queue: Queue, head: GroupNode) -> QueueEntry:
        entry = head.entry
        assert entry is not None  # only ready nodes are heads
        head.group.pop_head(head)
        self._uncount(queue, head, entry)
        return entry

    def _uncount(self, queue: Queue, node: GroupNode, entry: QueueEntry) -> None:
        if node.returned:
            self._remove_node(node)
            self.returned_count -= 1
        else:
            self._remove_hot(node, entry)
        queue.uncount_ready(entry.body_size)

    def _remove_node(self, node: GroupNode) -> None:
        node.entry = None
        for index in self.indexes:
            index.remove(node.offset)
        if not node.in_line:
            self._late_count -= 1

    def _remove_hot(self, node: GroupNode, entry: QueueEntry) -> None:
        self._remove_node(node)
        self.hot_count -= 1
        if entry.message is not None:
            self.memory.hot_bytes -= entry.body_size

    def unload(self, group: Group, count: i64) -> i64:
        """Drop all messages of the group from memory but the first `count`. They stay ready, in the log.

        Returns: The lowest offset of them; -1 if there are none.
        """
        node = group.truncate(count)
        if node is None:
            return -1
        first = node.offset
        while node is not None:
            entry = node.entry
            assert entry is not None  # taken nodes leave the list at once
            self._remove_hot(node, entry)
            group.passed_count += 1
            self.passed_count += 1
            after = node.next
            node.next = None
            node = after
        return first

    # -- settled and requeued messages -------------------------------------------------------------------------------

    def release(self, queue: Queue, entry: QueueEntry) -> None:
        """A message that was claimed is settled or requeued. Unlock its group if this was the last one."""
        group = self.unacked.pop(entry, None)
        if group is None:
            return
        group.unacked_count -= 1
        was_retrying = entry in self.retrying
        if was_retrying:
            del self.retrying[entry]
            group.retrying_count -= 1
        head = group.head()
        if group.unacked_count > 0:
            if group.unacked_count == group.retrying_count:
                _remove_owner_of(group)
            elif was_retrying and head is not None:
                self._head_changed(group, head)
                queue.schedule_dispatch()
            elif was_retrying and group.passed_count > 0:
                self.cold_groups[group] = None
                queue.schedule_dispatch()
            return
        self.locked_count -= 1
        _remove_owner_of(group)
        if head is not None:
            self._head_changed(group, head)
            queue.schedule_dispatch()
        elif group.passed_count > 0:
            queue.schedule_dispatch()
        else:
            self.drop_if_empty(group)

    def hold_for_retry(self, entry: QueueEntry) -> None:
        """A message that was claimed waits for a retry: its group gets no deliveries until the retry.

        A consumer with other unacked messages of the group stays its owner.
        """
        group = self.unacked.get(entry)
        if group is not None:
            self.retrying[entry] = None
            group.retrying_count += 1
            if group.unacked_count == group.retrying_count:
                _remove_owner_of(group)

    def drop_if_empty(self, group: Group) -> None:
        key = group.key
        if key is not None and group.is_empty():
            self.groups.pop(key, None)

    # -- all messages ------------------------------------------------------------------------------------------------

    def ready_nodes(self) -> list[GroupNode]:
        """Return all messages in memory."""
        return self._arrivals.ready_nodes() + [each for each in self._late if each.entry is not None]

    def nodes(self) -> list[GroupNode]:
        """Return all messages in memory, and some that were taken. Cost: 2 ns each."""
        return self._arrivals.nodes() + self._late

    def lowest(self, least: i64) -> i64:
        """Return `least`, or the lowest offset in memory if that is lower. Requeued messages do not count."""
        first = self._arrivals.first()
        if first is not None and first.offset < least:
            least = first.offset
        for node in self._late:
            if node.entry is not None and not node.returned and node.offset < least:
                least = node.offset
        return least

    def clear_ready(self, queue: Queue) -> None:
        """Drop all ready messages, passed ones included. Groups with unacked messages stay locked."""
        for index in self.indexes:
            index.clear()
        for node in self.ready_nodes():
            node.entry = None
            node.next = None
            node.group.clear_ready()
        for group in list(self.groups.values()):
            group.passed_count = 0
            self.drop_if_empty(group)
        for owner in self.owners.values():
            owner.heads.clear()
        self._arrivals.clear()
        self._new_heads.clear()
        self._late.clear()
        self._late_count = 0
        self._other_heads.clear()
        self.cold_groups.clear()
        self.passed_count = 0
        self.returned_count = 0
        self.hot_count = 0
        self.memory.hot_bytes = 0
        queue.ready_count = 0
        queue.ready_bytes = 0

    def clear_unacked(self) -> None:
        """The queue is deleted: unlock all groups."""
        for group in self.unacked.values():
            group.owner = None
        self.unacked.clear()
        self.retrying.clear()
        self.groups.clear()
        self.locked_count = 0


def _is_free_head(node: GroupNode) -> bool:
    group = node.group
    return node.entry is not None and group.unacked_count == 0 and group.head() is node


def _remove_owner_of(group: Group) -> None:
    owner = group.owner
    if owner is not None:
        owner.group_count -= 1
        group.owner = None
