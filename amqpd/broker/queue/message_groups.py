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

Of which group a message is (x-group-by): its routing key, or the value of one of its headers.

A header's value names a group where it is text or a whole number, which is told by its digits, whatever their width: 42
and "42" are one group. A message without that header, or with anything else in it (true, 1.5, a table), is of no group.
A routing key is always one, the empty one too.

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

# Entries of a line or heap whose message has gone, beyond as many as are still there.
GONE_MAX: Final = 64


@final
class GroupNode:
    """A ready message. returned: it came back. in_line: it stands in the order's line, else in its heap `behind`."""

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
        # Compiled, a class with a comparison has none of its own accord.
        return id(self)


@final
class GroupOwner:
    """A consumer of the queue. groups: how many it holds. own: heads of them, the oldest first. called: it stands in
    the line of those with something of their own. gone: it gets nothing any more.
    """

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.groups: i64 = 0
        self.own: list[GroupNode] = []
        self.called = False
        self.gone = False

    def put(self, head: GroupNode) -> None:
        """It has become the head of a group that is this one's."""
        own = self.own
        if len(own) > 2 * self.groups + GONE_MAX:
            own = [each for each in own if self._is_own(each)]
            heapify(own)
            self.own = own
        heappush(own, head)

    def first(self) -> GroupNode | None:
        """The oldest message that is for this one alone."""
        own = self.own
        while own:
            head = own[0]
            if self._is_own(head):
                return head
            heappop(own)
        return None

    def _is_own(self, head: GroupNode) -> bool:
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
        self.holder: GroupOwner | None = None
        self.returned: list[GroupNode] | None = None
        self.first: GroupNode | None = None
        self.last: GroupNode | None = None
        self.count: i64 = 0
        self.passed_count: i64 = 0
        self.skipped_from: i64 = 0
        self.refused: i64 = 0
        # Of `returned`: those that were taken out of the middle.
        self.gone: i64 = 0

    def head(self) -> GroupNode | None:
        """The first in memory; nothing of the group that is ready is before it."""
        returned = self.returned
        first = self.first
        while self.gone > 0 and returned and returned[0].entry is None:
            heappop(returned)
            self.gone -= 1
        if returned and (first is None or returned[0].offset < first.offset):
            return returned[0]
        return first

    def append(self, node: GroupNode) -> None:
        """Behind all that are in memory."""
        last = self.last
        if last is None:
            self.first = node
        else:
            last.next = node
        self.last = node
        self.count += 1

    def put_back(self, node: GroupNode) -> None:
        """It came back."""
        returned = self.returned
        if returned is None:
            returned = []
            self.returned = returned
        heappush(returned, node)

    def pop(self, head: GroupNode) -> None:
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

    def cut(self, kept: i64) -> GroupNode | None:
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
class LazyQueue:
    """Waiting messages, ascending. Those that have gone are passed over at the front, and thrown out when they are more
    than half of all."""

    def __init__(self) -> None:
        self._nodes: list[GroupNode] = []
        self._head: i64 = 0

    def append(self, node: GroupNode, live_max: i64) -> None:
        """live_max: no more than so many of those in line have not gone. Cost: O(1) on average."""
        nodes = self._nodes
        if len(nodes) - self._head > 2 * live_max + GONE_MAX:
            nodes = [each for each in nodes[self._head :] if each.entry is not None]
            self._nodes = nodes
            self._head = 0
        nodes.append(node)

    def first(self) -> GroupNode | None:
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

    def nodes(self) -> list[GroupNode]:
        """All, and some that have gone."""
        return self._nodes[self._head :]

    def all(self) -> list[GroupNode]:
        """Those that have not gone."""
        return [each for each in self._nodes[self._head :] if each.entry is not None]

    def clear(self) -> None:
        self._nodes.clear()
        self._head = 0


ROUTING_KEY: Final = "routing_key"
HEADER: Final = "header:"
_STRING: Final = 0x53  # S


def is_group_by(text: str) -> bool:
    """Whether it says of which group a message is: `routing_key` or `header:NAME`, a name of at most 255 bytes."""
    name = text[len(HEADER) :].encode("utf-8", "surrogateescape")
    return text == ROUTING_KEY or (text.startswith(HEADER) and 1 <= len(name) <= 255)


@final
class GroupKey:
    """Of one queue. group_by: as `is_group_by` allows it."""

    def __init__(self, group_by: str) -> None:
        self.group_by: Final = group_by
        name = group_by[len(HEADER) :] if group_by != ROUTING_KEY else ""
        self._header: Final = name.encode("utf-8", "surrogateescape")

    def of_message(self, message: Message) -> str | None:
        """None: of no group. Cost: some 20 ns by routing key, 100 by a header that is text."""
        if not self._header:
            return message.envelope.routing_key
        info = message.info
        if info is None or info.headers_start == 0:
            return None
        return header_text(message.content, PROPERTIES_START + info.headers_start, self._header)

    def of_record(self, record: Record) -> str | None:
        """The same of what lies in a log; None also where a foreign program has written what is no properties."""
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
    """What the header `name` says, of the table whose length stands at `start`; None where that is neither text nor a
    whole number. Of equal names the first counts. Raises: CodecError for a table that is none.
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
    # mypyc makes an int of what is known to be one: a bool is seen before that, or never.
    if isinstance(value, bool | Timestamp) or not isinstance(value, int):
        return None
    return str(int(value))
