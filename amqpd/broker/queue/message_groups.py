"""Message groups (x-group-by): the parts of the ready order of a queue with groups.

    Group       the ready messages of one group in order, and the consumer that has its unacked messages
    GroupNode   a ready message in memory
    GroupOwner  a consumer of the queue: the groups that it has, and their next messages
    LazyQueue   a queue of nodes; taken nodes are removed later
    GroupKey    the function from a message to its group

A group is locked while a message of it is unacked. Its ready messages are then for its owner only. A locked group has
no owner if the consumer has been cancelled, or if a basic.get took the message: then no consumer gets its messages.

The ready messages of a group are in three places, in this order: the heap `returned`, the list from `first` to `last`,
and the log from `passed_from` on. The last are those that a reader passed over while the group was locked.

The group of a message is its routing key, or the value of one header (`header:NAME`). The value must be text or a whole
number; a number counts as its decimal digits, so 42 and "42" are one group. A message without the header, or with
another type in it, belongs to no group. The empty routing key is a group.

Compiled by mypyc.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import Consumer, QueueEntry
from amqpd.broker.message import Message
from amqpd.protocol.field_table import CodecError, Timestamp, decode_table, field_end, read_u16, read_u32
from amqpd.protocol.frame import PROPERTIES_START
from amqpd.protocol.properties import CONTENT_ENCODING, CONTENT_TYPE, HEADERS
from amqpd.storage.log.record import Record

# A heap or `LazyQueue` may hold this many taken nodes more than it holds ready ones.
GONE_MAX: Final = 64


@final
class GroupNode:
    """A ready message in memory. It is in several heaps and queues at once, and leaves most of them late.

    Attributes:
        entry: The message; None once it was taken from one of them.
        returned: It was requeued.
        in_line: It is in `GroupedWindow`'s queue of arrivals, otherwise in its heap of messages that came out of order.
        next: The next message of the group's list.
    """

    def __init__(self, entry: QueueEntry, group: Group, returned: bool, in_line: bool) -> None:
        self.entry: QueueEntry | None = entry
        self.offset: i64 = entry.offset
        self.group = group
        self.returned = returned
        self.in_line = in_line
        self.next: GroupNode | None = None

    def __lt__(self, other: GroupNode) -> bool:
        return self.offset < other.offset

    def __hash__(self) -> int:
        # A compiled class with a comparison has no hash of its own.
        return id(self)


@final
class GroupOwner:
    """A consumer of the queue.

    Attributes:
        group_count: Number of groups that it has.
        heads: Heap of the first messages of these groups. Nodes that are no heads any more leave it late.
        offered: It is in `GroupedWindow`'s queue of owners with a message of their own.
        cancelled: It gets no more messages.
    """

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.group_count: i64 = 0
        self.heads: list[GroupNode] = []
        self.offered = False
        self.cancelled = False

    def add_head(self, head: GroupNode) -> None:
        """Add the new first message of one of its groups."""
        heads = self.heads
        if len(heads) > 2 * self.group_count + GONE_MAX:
            heads = [each for each in heads if self._has_head(each)]
            heapify(heads)
            self.heads = heads
        heappush(heads, head)

    def first(self) -> GroupNode | None:
        """Return the oldest message that only this consumer may get."""
        heads = self.heads
        while heads:
            head = heads[0]
            if self._has_head(head):
                return head
            heappop(heads)
        return None

    def _has_head(self, head: GroupNode) -> bool:
        group = head.group
        return head.entry is not None and group.owner is self and group.retrying_count == 0 and group.head() is head


@final
class Group:
    """The ready messages of one group, and its lock.

    Attributes:
        key: Common to its messages. None: one message without a group, which is a group by itself.
        unacked_count: Unacked messages, those that wait for a retry included.
        retrying_count: Unacked messages that wait for a retry. While there are any, the group gets no deliveries.
        owner: The consumer that has the unacked messages; None if there is none.
        returned: Heap of requeued messages.
        gone_count: Nodes of `returned` that were taken from its middle.
        first, last, count: The list of the other messages in memory.
        passed_count: Ready messages that a reader of the log passed over. None of them is below `passed_from`.
        refused_by: Number of the second reading that had no room for the first of them (grouped_log.py).
    """

    def __init__(self, key: str | None) -> None:
        self.key = key
        self.unacked_count: i64 = 0
        self.retrying_count: i64 = 0
        self.owner: GroupOwner | None = None
        self.returned: list[GroupNode] | None = None
        self.gone_count: i64 = 0
        self.first: GroupNode | None = None
        self.last: GroupNode | None = None
        self.count: i64 = 0
        self.passed_count: i64 = 0
        self.passed_from: i64 = 0
        self.refused_by: i64 = 0

    def head(self) -> GroupNode | None:
        """Return the first message in memory. No ready message of the group is before it."""
        returned = self.returned
        first = self.first
        while self.gone_count > 0 and returned and returned[0].entry is None:
            heappop(returned)
            self.gone_count -= 1
        if returned and (first is None or returned[0].offset < first.offset):
            return returned[0]
        return first

    def append(self, node: GroupNode) -> None:
        """Add a message behind all others in memory."""
        last = self.last
        if last is None:
            self.first = node
        else:
            last.next = node
        self.last = node
        self.count += 1

    def add_returned(self, node: GroupNode) -> None:
        returned = self.returned
        if returned is None:
            returned = []
            self.returned = returned
        heappush(returned, node)

    def pop_head(self, head: GroupNode) -> None:
        """Remove the first message, which is `head`."""
        if head.returned:
            returned = self.returned
            assert returned is not None  # `head` is in it
            heappop(returned)
            return
        first = head.next
        self.first = first
        if first is None:
            self.last = None
        head.next = None
        self.count -= 1

    def truncate(self, count: i64) -> GroupNode | None:
        """Keep the first `count` messages of the list. Return the first of the others; `next` leads to the rest."""
        if self.count <= count:
            return None
        self.count = count
        node = self.first
        if count == 0:
            self.first = None
            self.last = None
            return node
        while node is not None and count > 1:
            node = node.next
            count -= 1
        assert node is not None  # the list has more messages than `count`
        self.last = node
        rest = node.next
        node.next = None
        return rest

    def remove_gone(self) -> None:
        """Remove the messages that were taken from the middle. Cost: one step per message in memory."""
        returned = self.returned
        if returned is not None and 2 * self.gone_count >= len(returned):
            returned = [each for each in returned if each.entry is not None]
            heapify(returned)
            self.returned = returned
            self.gone_count = 0
        node = self.first
        self.first = None
        self.last = None
        self.count = 0
        while node is not None:
            after = node.next
            node.next = None
            if node.entry is not None:
                self.append(node)
            node = after

    def clear_ready(self) -> None:
        """Drop all ready messages. The lock stays."""
        self.first = None
        self.last = None
        self.returned = None
        self.count = 0
        self.gone_count = 0
        self.passed_count = 0

    def is_empty(self) -> bool:
        """Return whether the group has neither ready nor unacked messages."""
        return self.unacked_count == 0 and self.first is None and not self.returned and self.passed_count == 0


@final
class LazyQueue:
    """Nodes in ascending order of offset. Taken nodes stay until they are at the front or more than half of all."""

    def __init__(self) -> None:
        self._nodes: list[GroupNode] = []
        self._head: i64 = 0

    def append(self, node: GroupNode, ready_max: i64) -> None:
        """Add a node. ready_max: upper bound of the nodes that are still ready. Cost: O(1) amortized."""
        nodes = self._nodes
        if len(nodes) - self._head > 2 * ready_max + GONE_MAX:
            nodes = [each for each in nodes[self._head :] if each.entry is not None]
            self._nodes = nodes
            self._head = 0
        nodes.append(node)

    def first(self) -> GroupNode | None:
        """Return the first node that is ready."""
        nodes = self._nodes
        head = self._head
        size: i64 = len(nodes)
        while head < size:
            node = nodes[head]
            if node.entry is not None:
                self._set_head(head, size)
                return node
            head += 1
        self._set_head(head, size)
        return None

    def drop_first(self) -> None:
        """Remove the node that `first` returned."""
        self._set_head(self._head + 1, len(self._nodes))

    def _set_head(self, head: i64, size: i64) -> None:
        if head >= size:
            self._nodes.clear()
            head = 0
        elif head >= 1024 and head * 2 >= size:
            del self._nodes[:head]
            head = 0
        self._head = head

    def nodes(self) -> list[GroupNode]:
        """Return the nodes, some of which may be taken."""
        return self._nodes[self._head :]

    def ready_nodes(self) -> list[GroupNode]:
        return [each for each in self._nodes[self._head :] if each.entry is not None]

    def clear(self) -> None:
        self._nodes.clear()
        self._head = 0


ROUTING_KEY: Final = "routing_key"
HEADER: Final = "header:"
_STRING: Final = 0x53  # S


def is_group_by(text: str) -> bool:
    """Return whether the text is a valid `x-group-by`: `routing_key` or `header:NAME`, a name of at most 255 bytes."""
    name = text[len(HEADER) :].encode("utf-8", "surrogateescape")
    return text == ROUTING_KEY or (text.startswith(HEADER) and 1 <= len(name) <= 255)


@final
class GroupKey:
    """The group of a message. group_by: a text that `is_group_by` accepts."""

    def __init__(self, group_by: str) -> None:
        name = group_by[len(HEADER) :] if group_by != ROUTING_KEY else ""
        self._header: Final = name.encode("utf-8", "surrogateescape")

    def of_message(self, message: Message) -> str | None:
        """Return the group's key; None for no group. Cost: 20 ns by routing key, 100 ns by a text header."""
        if not self._header:
            return message.envelope.routing_key
        info = message.info
        if info is None or info.headers_start == 0:
            return None
        return header_text(message.content, PROPERTIES_START + info.headers_start, self._header)

    def of_record(self, record: Record) -> str | None:
        """Return the key of a record of a log; None also if another program wrote invalid properties."""
        if not self._header:
            return record.routing_key.decode("utf-8", "surrogateescape")
        properties = record.properties
        size: i64 = len(properties)
        if size < 6:
            return None
        flags = read_u16(properties, 0)
        if flags & HEADERS == 0:
            return None
        position: i64 = 2
        if flags & CONTENT_TYPE != 0:
            position += 1 + properties[position]
        if flags & CONTENT_ENCODING != 0 and position < size:
            position += 1 + properties[position]
        try:
            return header_text(properties, position, self._header)
        except CodecError:
            return None


def header_text(data: bytes, start: i64, name: bytes) -> str | None:
    """Return the value of the header `name` as text. `start`: where the length of the table is.

    Returns: None if the value is neither text nor a whole number. The first of several headers of that name counts.
    Raises: CodecError if the table is invalid.
    """
    size: i64 = len(data)
    if size - start < 4:
        raise CodecError("table length is cut off")
    end = start + 4 + read_u32(data, start)
    if end > size:
        raise CodecError("table is longer than what holds it")
    wanted: i64 = len(name)
    position = start + 4
    while position < end:
        length: i64 = data[position]
        after = position + 1 + length
        if after >= end:
            raise CodecError("entry of a table is cut off")
        stop = field_end(data, after, end)
        if length == wanted and data[position + 1 : after] == name:
            if data[after] == _STRING:
                return data[after + 5 : stop].decode("utf-8", "surrogateescape")
            return _number(data, start, name)
        position = stop
    return None


def _number(data: bytes, start: i64, name: bytes) -> str | None:
    headers, _ = decode_table(data, start)
    value = headers.get(name.decode("utf-8", "surrogateescape"))
    # bool and Timestamp are subclasses of int.
    if isinstance(value, bool | Timestamp) or not isinstance(value, int):
        return None
    return str(int(value))
