"""What a channel has delivered and its client has not settled yet, by delivery tag.

A list whose index is the tag less `_base_tag`; None marks what is settled or needs no answer. So an ack in order, out
of order, or multiple costs O(1) per message. What a transaction has settled stays in its place until the commit.
What a consumer's timeout has taken is noted as late: its answer, which may still come, means nothing and is no error.

Invariant: nothing but None stands before `_head`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import QueueEntry
from amqpd.errors import PreconditionFailed

if TYPE_CHECKING:
    from amqpd.broker.consumer import Consumer, QueueBase

# Settled places at the front that may stand before the list is moved up.
_SETTLED_MAX: Final = 1024
# Late tags that are known; beyond, the oldest are unknown again, as whatever is settled is.
LATE_MAX: Final = 100_000


@final
class Unacked:
    """One channel's. Who raises PreconditionFailed here does so for a tag that is not outstanding."""

    def __init__(self) -> None:
        self._entries: list[QueueEntry | None] = []
        self._head: i64 = 0
        self._base_tag: i64 = 1
        self._late: dict[i64, None] = {}
        # An entry has come several times: of a stream one stands for many deliveries.
        self.repeats = False

    def add(self, tag: i64, entry: QueueEntry) -> None:
        """The delivery of this tag, the highest so far, waits for its answer."""
        entries = self._entries
        if not entries:
            self._base_tag = tag
        entries.append(entry)

    def add_times(self, tag: i64, entry: QueueEntry, count: i64) -> None:
        """As `add`, for so many deliveries from this tag on."""
        if not self._entries:
            self._base_tag = tag
        if count == 1:
            self._entries.append(entry)
        else:
            self.repeats = True
            times: int = count
            self._entries += [entry] * times

    def skip(self) -> None:
        """A delivery that needs no answer: its tag keeps the list in step."""
        if self._entries:
            self._entries.append(None)

    def split_shared(self) -> None:
        """Each delivery has an entry of its own from here on, also where one stood for many of a stream. Cost: all of
        them.
        """
        entries = self._entries
        seen: dict[QueueEntry, None] = {}
        for position in range(len(entries)):
            entry = entries[position]
            if entry is None:
                continue
            if entry in seen:
                own = QueueEntry(entry.queue, entry.offset, entry.message, entry.redelivered)
                own.consumer = entry.consumer
                entries[position] = own
            else:
                seen[entry] = None

    def entries(self) -> list[QueueEntry]:
        """All of them, in the order of delivery."""
        return [entry for entry in self._entries if entry is not None]

    def count(self) -> int:
        """Cost: all of them."""
        return len(self.entries())

    def clear(self) -> None:
        self._entries.clear()
        self._head = 0
        self._late.clear()

    def end(self) -> i64:
        """Above every tag that is outstanding now, and not above one that comes."""
        count: i64 = len(self._entries)
        return self._base_tag + count

    def first_of(self, tag: i64, queue: QueueBase, consumer: Consumer | None, in_transaction: bool) -> i64:
        """The first tag, from this one on, of what this consumer has of the queue, or basic.get (None); -1: none.

        in_transaction: what an open transaction has settled counts, too. Cost: the places passed.
        """
        entries = self._entries
        size: i64 = len(entries)
        position = tag - self._base_tag
        if position < self._head:
            position = self._head
        while position < size:
            entry = entries[position]
            if (
                entry is not None
                and entry.consumer is consumer
                and entry.queue is queue
                and (in_transaction or not entry.in_transaction)
            ):
                return self._base_tag + position
            position += 1
        return -1

    def take_late(self, queue: QueueBase, consumer: Consumer | None) -> list[QueueEntry]:
        """Removes what `first_of` counts but for what a transaction has settled; answers to it are late from now on."""
        taken: list[QueueEntry] = []
        late = self._late
        tag = self.first_of(0, queue, consumer, False)
        while tag >= 0:
            entry = self._entries[tag - self._base_tag]
            assert entry is not None  # first_of has looked
            taken.append(entry)
            self._entries[tag - self._base_tag] = None
            late[tag] = None
            tag = self.first_of(tag + 1, queue, consumer, False)
        while len(late) > LATE_MAX:
            del late[next(iter(late))]
        self._advance(self._head)
        return taken

    def timed_out(self, tag: i64) -> bool:
        """Whether this is the answer to what a timeout has taken. It is said once: a second answer is one too many."""
        if tag not in self._late:
            return False
        del self._late[tag]
        return True

    def at(self, tag: i64) -> list[tuple[i64, QueueEntry]]:
        """The entry of this tag, with the tag. It stays; none if it is late. Raises: PreconditionFailed."""
        if tag in self._late:
            return []
        index = self._index(tag)
        return self._between(index, index)

    def up_to(self, tag: i64) -> list[tuple[i64, QueueEntry]]:
        """Those up to this tag (0: all) that no transaction has settled, with their tags. They stay.

        Raises: PreconditionFailed.
        """
        return self._between(self._head, self._last_index(tag))

    def take(self, tag: i64, multiple: bool) -> list[QueueEntry]:
        """Removes one (none if it is late), or all up to the tag (0: all). Raises: PreconditionFailed."""
        if multiple:
            return self.take_multiple(tag)
        return [] if self.timed_out(tag) else [self.take_one(tag)]

    def take_one(self, tag: i64) -> QueueEntry:
        """Raises: PreconditionFailed."""
        index = self._index(tag)
        entry = self._entries[index]
        assert entry is not None  # _index has looked
        self._entries[index] = None
        if index == self._head:
            self._advance(index + 1)
        return entry

    def take_multiple(self, tag: i64) -> list[QueueEntry]:
        """Removes all up to the tag (0: all). Raises: PreconditionFailed."""
        index = self._last_index(tag)
        entries = self._entries
        taken: list[QueueEntry] = []
        position = self._head
        while position <= index:
            entry = entries[position]
            if entry is not None:
                taken.append(entry)
                entries[position] = None
            position += 1
        self._advance(index + 1)
        return taken

    def take_runs(self, tag: i64) -> list[tuple[QueueEntry, i64]]:
        """As `take_multiple`: each entry with how many deliveries of it stood behind each other. Cost: some 5 ns each.

        Raises: PreconditionFailed.
        """
        index = self._last_index(tag)
        entries = self._entries
        taken: list[tuple[QueueEntry, i64]] = []
        position = self._head
        while position <= index:
            entry = entries[position]
            start = position
            position += 1
            if entry is None:
                continue
            while position <= index and entries[position] is entry:
                position += 1
            taken.append((entry, position - start))
        if position > 0:
            del entries[:position]
            self._base_tag += position
        self._head = 0
        self._advance(0)
        return taken

    def take_outstanding(self) -> list[QueueEntry]:
        """Removes what no open transaction has settled, in the order of delivery: for basic.recover."""
        taken: list[QueueEntry] = []
        entries = self._entries
        size: i64 = len(entries)
        position = self._head
        while position < size:
            entry = entries[position]
            if entry is not None and not entry.in_transaction:
                taken.append(entry)
                entries[position] = None
            position += 1
        self._advance(self._head)
        return taken

    def _between(self, position: i64, last: i64) -> list[tuple[i64, QueueEntry]]:
        found: list[tuple[i64, QueueEntry]] = []
        while position <= last:
            entry = self._entries[position]
            if entry is not None and not entry.in_transaction:
                found.append((self._base_tag + position, entry))
            position += 1
        return found

    def _index(self, tag: i64) -> i64:
        index = tag - self._base_tag
        if index < 0 or index >= len(self._entries):
            raise _unknown_tag(tag)
        entry = self._entries[index]
        if entry is None or entry.in_transaction:
            raise _unknown_tag(tag)
        return index

    def _last_index(self, tag: i64) -> i64:
        if tag == 0:
            # spec: 1.8.3.13 tag zero with multiple means all outstanding, none included
            count: i64 = len(self._entries)
            return count - 1
        if tag in self._late:
            index = tag - self._base_tag
            if index >= len(self._entries):
                index = len(self._entries) - 1
            return index if index >= self._head else self._head - 1
        return self._index(tag)

    def _advance(self, head: i64) -> None:
        entries = self._entries
        size: i64 = len(entries)
        while head < size and entries[head] is None:
            head += 1
        if head >= size:
            entries.clear()
            head = 0
        elif head > _SETTLED_MAX and head * 2 > size:
            del entries[:head]
            self._base_tag += head
            head = 0
        self._head = head


def shared_entry(consumer: Consumer, source: QueueBase) -> QueueEntry:
    """The entry for all that a consumer has of a stream whose reader keeps no account of offsets."""
    entry = consumer.entry_for_all
    if entry is None or entry.queue is not source:
        entry = consumer.entry_for_all = QueueEntry(source, -1, None, False)
    return entry


def _unknown_tag(tag: i64) -> PreconditionFailed:
    shown: int = tag
    if shown < 0:
        shown += 1 << 64
    return PreconditionFailed(f"unknown delivery tag {shown}")
