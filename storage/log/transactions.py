"""Transactions of Kafka's producers in one log: which are open, and where the *last stable offset* is.

A producer writes its transaction with other batches between: batches with the transactional attribute, then one marker,
a control batch that says commit or abort. Readers of committed messages stop at the last stable offset: the first
offset of the oldest transaction that has no synced marker.

    commit    nothing is written: its messages are read when the last stable offset has passed them
    abort     when the marker is synced, the messages are settled, like those that retention has removed. So no reader
              needs a list of aborted transactions, and compaction removes them
    marker    is counted as a message without a body, and is no message for readers. A consumer of Kafka's protocol
              needs its offset, to get past a transaction that it does not read

A log without an open transaction has no object of this class. Memory: at most 24 bytes per batch of an open
transaction.

**Recovery** scans from the first offset of the oldest transaction that the producers' snapshot names as open
(producer_state.py), and finds parts and markers again. So it reads nothing that is older than the oldest open
transaction or the recovery point.

Compiled by mypyc. Source: Kafka, ProducerStateManager.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from typing import Final, final

from mypy_extensions import i64

from amqpd.storage.log.batch import BatchHeader

_FIELDS: Final = 3


@final
class ProducerTransaction:
    """A transaction in one log, until its marker is synced.

    Attributes:
        first: its first offset.
        marker: offset of the marker; -1 while it is open.
        commits: the marker says commit.
    """

    def __init__(self, producer_id: i64, epoch: i64, first: i64) -> None:
        self.producer_id: i64 = producer_id
        self.epoch: i64 = epoch
        self.first: i64 = first
        self.marker: i64 = -1
        self.commits: bool = False
        self._parts = array("q")  # first offset, last offset, size of the bodies of each part

    def add_part(self, first: i64, last: i64, body_size_bytes: i64, joins: bool) -> None:
        """Add the offsets of a batch. joins: it makes no new part if it follows the one before."""
        parts = self._parts
        if joins and len(parts) > 0 and parts[-2] + 1 == first:
            parts[-2] = last
            parts[-1] += body_size_bytes
        else:
            parts.extend((first, last, body_size_bytes))

    def parts(self) -> list[tuple[int, int, int]]:
        """Return (first offset, last offset, size of bodies) of its parts, in order."""
        parts = self._parts
        return [(parts[at], parts[at + 1], parts[at + 2]) for at in range(0, len(parts), _FIELDS)]

    def drop_from(self, offset: i64) -> bool:
        """Forget what is at `offset` and above. Return whether something is left.

        A part that contains the offset is cut, and its size is then too large.
        """
        if self.marker >= offset:
            self.marker = -1
        parts = self._parts
        while len(parts) > 0 and parts[-3] >= offset:
            del parts[-_FIELDS:]
        if len(parts) > 0 and parts[-2] >= offset:
            parts[-2] = offset - 1
        return len(parts) > 0


@final
class Transactions:
    """The transactions of one log whose marker is missing or not synced."""

    def __init__(self) -> None:
        self._all: OrderedDict[int, ProducerTransaction] = OrderedDict()  # by first offset, which is their order
        self._open: dict[int, ProducerTransaction] = {}  # by producer
        self._ended: list[ProducerTransaction] = []  # in the order of their markers

    def __len__(self) -> int:
        return len(self._all)

    def stable_end(self, high_watermark: i64) -> i64:
        """Return the last stable offset."""
        for first in self._all:
            if first < high_watermark:
                return first
            break
        return high_watermark

    def first_open(self, producer_id: i64) -> i64:
        """Return the first offset of the open transaction of a producer; -1 if it has none."""
        transaction = self._open.get(producer_id)
        return -1 if transaction is None else transaction.first

    def open_at(self, end: i64) -> dict[int, tuple[int, int]]:
        """Return producer -> (epoch, first offset) of the transactions that begin below `end`.

        Ended ones, which `take_ended` has not returned, are included: it is not written yet that they are aborted.
        """
        found: dict[int, tuple[int, int]] = {}
        for each in self._all.values():
            if each.first < end and each.producer_id not in found:
                found[each.producer_id] = (each.epoch, each.first)
        return found

    def on_batch(self, header: BatchHeader, body_size_bytes: i64, joins: bool = True) -> None:
        """Add a batch of a transaction.

        Args:
            header: with the offsets that the batch has in the log.
            joins: False to have a part for each batch: recovery needs each in one segment.
        """
        transaction = self._open.get(header.producer_id)
        if transaction is None:
            transaction = ProducerTransaction(header.producer_id, header.producer_epoch, header.base_offset)
            self._open[header.producer_id] = transaction
            self._all[header.base_offset] = transaction
        transaction.add_part(header.base_offset, header.last_offset, body_size_bytes, joins)

    def on_marker(self, header: BatchHeader, commits: bool) -> None:
        """End the transaction of the producer. It may have none in this log."""
        transaction = self._open.pop(header.producer_id, None)
        if transaction is not None:
            transaction.marker = header.base_offset
            transaction.commits = commits
            self._ended.append(transaction)

    def take_ended(self, high_watermark: i64) -> list[ProducerTransaction]:
        """Remove and return the transactions whose marker is below the high watermark. Cost: a step for each."""
        ended = [each for each in self._ended if each.marker < high_watermark]
        if ended:
            self._ended = [each for each in self._ended if each.marker >= high_watermark]
            for each in ended:
                del self._all[each.first]
        return ended

    def undo_from(self, first: i64) -> None:
        """Forget what is at `first` and above: it is not in the log. Cost: a step per transaction."""
        for each in list(self._all.values()):
            if each.drop_from(first):
                if each.marker < 0 and self._open.get(each.producer_id) is not each:
                    self._open[each.producer_id] = each  # any later one of this producer will be dropped next
                continue
            del self._all[each.first]
            if self._open.get(each.producer_id) is each:
                del self._open[each.producer_id]
        self._ended = [each for each in self._ended if each.marker >= 0]
