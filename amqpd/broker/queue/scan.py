"""Messages out of the middle of a queue, for who is no consumer: found by a `Judge`, taken one by one, settled or given
back (broker/surgery).

    FifoSearch    through a cursor of its own in the order that consumers with filters use (filtered.py), which a
                  queue has for as long as somebody searches
    LogSearch     over what memory alone has, then over its log in order of offset; what is in memory it knows by an
                  index (scan_index.py): `LevelSearch` of a queue with priorities, `GroupedSearch` (grouped_search.py)
                  of one with groups

What is unacked is not ready, so nobody takes it; where it comes back before the search has ended, a `FifoSearch` looks
at it. What was taken is counted as unacked and belongs to no consumer; it is marked in the log as delivered, so that it
counts as redelivered after a kill. Nothing here waits for the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop
from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from amqpd.broker.consumer import Entry
from amqpd.broker.flow.scans import Scans
from amqpd.broker.message import Message
from amqpd.broker.queue.fifo import FifoOrder
from amqpd.broker.queue.filter_cursor import FilterCursor, Judge, free_bit
from amqpd.broker.queue.filtered import NOTHING, FilteredOrder
from amqpd.broker.queue.filters import Filters
from amqpd.broker.queue.priority import LevelOrder
from amqpd.broker.queue.queue import Queue
from amqpd.broker.queue.reading import SLICE_MS, LogReader, Search
from amqpd.broker.queue.scan_index import SearchIndex
from amqpd.routing.selector import EVERYTHING
from amqpd.storage.log.record import Record

# Of what came back to a queue with priorities: how many of them one slice notes in its index.
COOL_COUNT: Final = 8192


@mypyc_attr(allow_interpreted_subclasses=True)
class TakingSearch(Search):
    """One that takes out what it finds."""

    def settle(self, entry: Entry) -> None:
        queue = self.queue
        queue.let_go(entry.body_size)
        queue.backing.settle(entry)

    def give_back(self, entry: Entry) -> None:
        self.ended = False
        self.queue.requeue(entry, False)
        self.queue.pump_later()


@final
class FifoSearch(TakingSearch):
    """Of a queue in order of arrival."""

    def __init__(self, queue: Queue, judge: Judge, wake: Callable[[], None]) -> None:
        super().__init__(queue, judge, wake)
        order = queue.order
        assert isinstance(order, FifoOrder)
        filters = queue.filters
        if filters is None:
            filters = Filters(queue, queue.host, order)
            queue.filters = filters
            queue.order = filters.order
        self._order: FilteredOrder = filters.order
        self._scans = Scans(queue.host.timers)
        cursor = FilterCursor(EVERYTHING, free_bit(self._order.cursors))
        cursor.judge = judge
        cursor.arrived = wake
        self._order.add_cursor(cursor)
        self._cursor = cursor

    def collect(self, entries: list[Entry], count_max: i64, bytes_max: i64) -> None:
        queue = self.queue
        order = self._order
        cursor = self._cursor
        scans = self._scans
        backing = queue.backing
        self.waits = False
        scans.begin_alone(SLICE_MS)
        count: i64 = 0
        while count < count_max and bytes_max > 0:
            cursor.behind = False
            offset = order.find(queue, cursor, scans)
            if offset == NOTHING:
                if not cursor.behind:
                    self.ended = cursor.position >= self.end and cursor.next_again(order.back) is None
                    self.waits = not self.ended
                break
            if offset >= self.end:
                self.ended = True
                break
            if offset < 0:
                self._pass_over(cursor)
                continue
            entry = order.claim(queue, cursor, offset)
            if queue.ended(entry):
                continue
            queue.hold(entry.body_size)
            store = backing.store
            if store is not None and offset >= backing.log_start:
                if cursor.refused_count == 0:
                    store.mark_delivered(offset)  # as is all before it
                else:
                    order.mark_delivered(store, offset)
            entries.append(entry)
            count += 1
            bytes_max -= entry.body_size
        if count == count_max and not scans.over:
            # Who has room for no more is not to wait for what is not there.
            cursor.behind = False
            offset = order.find(queue, cursor, scans)
            nothing = offset == NOTHING and not cursor.behind and cursor.next_again(order.back) is None
            self.ended = offset >= self.end or (nothing and cursor.position >= self.end)
        self.position = cursor.position

    def _pass_over(self, cursor: FilterCursor) -> None:
        """What came back and has no place in the log, which could not take it: it stays."""
        entry = cursor.next_again(self._order.back)
        assert entry is not None  # else it had a place
        self._order.back[entry] |= cursor.bit
        cursor.matched_back = None
        cursor.refused_count += 1

    def close(self) -> None:
        if self._cursor in self._order.cursors:
            self._order.remove_cursor(self._cursor)
        if not self.queue.deleted:
            self.queue.pump_later()  # which goes on with a plain order, where that will do


@mypyc_attr(allow_interpreted_subclasses=True)
class LogSearch(TakingSearch):
    """Over what memory alone has, then over the log in order of offset. What comes back behind its place is looked at
    once more.
    """

    def __init__(self, queue: Queue, judge: Judge, wake: Callable[[], None]) -> None:
        super().__init__(queue, judge, wake)
        self._scans = Scans(queue.host.timers)
        self._reader = LogReader(wake)
        self._from_memory = True
        self._index = SearchIndex(queue.backing, self.end)

    # -- the queue's order, of each kind

    def _begin_slice(self) -> bool:
        """False: the order is not at hand just now, and nothing is looked at."""
        return True

    def _has_logged(self, record: Record) -> bool:
        """Whether what is not in memory is ready."""
        raise NotImplementedError

    def _take_logged(self, record: Record) -> Entry:
        """It is ready no more."""
        raise NotImplementedError

    def _want(self, entry: Entry, message: Message) -> None:
        """It is in memory, maybe without its message, and is taken out when the slice ends."""
        raise NotImplementedError

    def _end_slice(self) -> None:
        """What is wanted of what is in memory is ready no more."""
        raise NotImplementedError

    # -- a slice

    def collect(self, entries: list[Entry], count_max: i64, bytes_max: i64) -> None:
        queue = self.queue
        self.waits = False
        self._scans.begin_alone(SLICE_MS)
        if not self._begin_slice() or not self._index.fill(self._scans):
            return
        found: list[Entry] = []
        try:
            if self._from_memory:
                self._look_at_memory(found, count_max, bytes_max)
            else:
                self._look_at_log(found, count_max, bytes_max)
        finally:
            self._end_slice()
        for entry in found:
            if queue.ended(entry):
                continue
            queue.hold(entry.body_size)
            store = queue.backing.store
            if store is not None and entry.offset >= queue.backing.log_start:
                queue.order.mark_delivered(store, entry.offset)
            entries.append(entry)

    def _look_at_memory(self, found: list[Entry], count_max: i64, bytes_max: i64) -> None:
        """Those that no log has."""
        scans = self._scans
        backing = self.queue.backing
        alone = self._index.alone
        while alone:
            offset = alone[0]
            entry = self._index.entries.get(offset)
            message = None if entry is None else entry.message
            if entry is None or message is None or offset < self.position:
                heappop(alone)
                continue
            if scans.over:
                return
            scans.step(message.header_size)
            wanted = self.judge.wants(message)
            if wanted and (len(found) >= count_max or bytes_max <= 0):
                return
            heappop(alone)
            self.position = offset + 1
            if wanted:
                self._want(entry, message)
                found.append(entry)
                bytes_max -= entry.body_size
        self._from_memory = False
        self.position = backing.log_start
        if backing.store is None:
            self.ended = True

    def _look_at_log(self, found: list[Entry], count_max: i64, bytes_max: i64) -> None:
        queue = self.queue
        scans = self._scans
        store = queue.backing.store
        while not scans.over:
            if store is None or self.position >= self.end:
                self.ended = True
                return
            record = self._reader.next(store, self.position)
            if record is None:
                self.waits = self._reader.waits
                self.ended = not self.waits
                return
            if record.offset >= self.end:
                self.ended = True
                return
            self.position = record.offset + 1
            scans.step(len(record.properties))
            entry = self._index.entries.get(record.offset)
            if entry is None and not self._has_logged(record):
                continue
            message = queue.backing.message(record)
            if not self.judge.wants(message):
                continue
            if len(found) >= count_max or bytes_max <= 0:
                self.position = record.offset  # there is more, for when there is room
                return
            if entry is None:
                entry = self._take_logged(record)
            else:
                self._want(entry, message)
            found.append(entry)
            bytes_max -= entry.body_size

    def give_back(self, entry: Entry) -> None:
        super().give_back(entry)
        if not self.queue.backing.has(entry.offset):
            self._from_memory = True
        if entry.offset < self.position:
            self.position = entry.offset

    def close(self) -> None:
        self._reader.close()


@final
class LevelSearch(LogSearch):
    """Of a queue with priorities, whatever the level. What is requeued behind its place is not looked at."""

    def __init__(self, queue: Queue, judge: Judge, wake: Callable[[], None]) -> None:
        super().__init__(queue, judge, wake)
        order = queue.order
        assert isinstance(order, LevelOrder)
        self._order = order
        # Of one `collect`: what is to be taken out of memory.
        self._wanted: dict[Entry, None] = {}
        self._index.begin(order.in_memory(), [])
        order.indexes.append(self._index)

    def _begin_slice(self) -> bool:
        order = self._order
        if not order.at_hand(self.queue):
            self.waits = True  # its index is being made
            return False
        return order.cool(COOL_COUNT)

    def _has_logged(self, record: Record) -> bool:
        return self._order.is_cold(record.offset)

    def _take_logged(self, record: Record) -> Entry:
        return self._order.take_cold(self.queue, record)

    def _want(self, entry: Entry, message: Message) -> None:
        entry.message = message
        self._wanted[entry] = None

    def _end_slice(self) -> None:
        if self._wanted:
            self._order.take_held(self.queue, self._wanted)
            self._wanted = {}

    def close(self) -> None:
        super().close()
        if self._index in self._order.indexes:
            self._order.indexes.remove(self._index)
