"""Filters of consumers (x-filter): the ready order of a queue with filters, and its dispatch.

    FilterCursor       how far one selector has searched the queue
    FilteredOrder      the ready order; messages can be taken out of its middle
    FilteredConsumers  the consumers by filter, and which one is next

`FilteredOrder` replaces `FifoOrder` when the first consumer with a filter comes. Ready messages are in three places:

    back     requeued entries, at any offset; `returned` is a heap of them
    hot      a window in memory, ascending, without the messages that a filter has taken
    the log  all messages from `cold_offset` on that are neither settled nor in `ahead`

`ahead` has one bit for each message that was taken out of the log out of order. The window skips these messages,
whether they are unacked, settled or requeued. Messages that no filter wants need no memory, so a million of them cost
nothing. A cursor reads messages that are only in the log with its own reader (log_reader.py).

Invariants: `ready_count` is the number of messages in these three places. `refused_count` of a cursor is the number of
those below its position, except requeued messages that it must still check.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64, mypyc_attr

from amqpd.broker.consumer import Consumer, QueueEntry, RoundRobin
from amqpd.broker.flow.loop_turn import ScanBudget
from amqpd.broker.message import Message, MessageRoute, MessageView
from amqpd.broker.queue.fifo import FifoOrder
from amqpd.broker.queue.log_reader import QueueLogReader
from amqpd.broker.queue.offset_bitmap import OffsetBitmap
from amqpd.broker.queue.services import QueueServices
from amqpd.routing.selector import Selector
from amqpd.storage.log.record import Record
from amqpd.storage.queue_log import QueueLog

if TYPE_CHECKING:
    from amqpd.broker.queue.queue import Queue

_SCANNED_ENOUGH: i64 = 64


@mypyc_attr(allow_interpreted_subclasses=True)
class MessagePredicate:
    """A condition on messages that is more than a selector (scan.py)."""

    def wants(self, message: Message) -> bool:
        """Return whether the message matches. Called once per message, in queue order. Must not keep the message."""
        raise NotImplementedError


@final
class FilterCursor:
    """The search of one selector in the queue: its position and its results. Consumers with equal selectors share it.

    Ready messages below `position` were checked and do not match. They are only counted (`refused_count`). A requeued
    message is checked again, wherever it is (`again`).

    Attributes:
        bit: Its bit in the masks of `FilteredOrder.back`.
        robin: Its consumers, in the order in which they are served.
        matched_offset: Offset of the message that matches; -1 if none is known.
        matched_back: The requeued message that matches.
        again: Heap of requeued messages to check; some of them may have left the queue since.
        behind: The slice ended before the search did.
        judge: Used instead of the selector, if set.
        arrived: Called instead of `queue.log_arrived` after a disk read, if set.
        place: Its reader of the log.
    """

    def __init__(self, selector: Selector, bit: int) -> None:
        self.selector = selector
        self.bit = bit
        self.robin = RoundRobin()
        self.position: i64 = 0
        self.refused_count: i64 = 0
        self.matched_offset: i64 = -1
        self.matched_back: QueueEntry | None = None
        # The last record that matched, and its message.
        self._matched_record: Record | None = None
        self._matched_message: Message | None = None
        self.again: list[QueueEntry] = []
        self.behind = False
        # The last answer of the selector, and the properties and route for which it was given. Consecutive messages
        # of the log often share these two objects.
        self.asked_content: bytes = b""
        self.asked_envelope: MessageRoute | None = None
        self.answer = False
        self.judge: MessagePredicate | None = None
        self.arrived: Callable[[], None] | None = None
        self.place = QueueLogReader()

    def next_again(self, back: dict[QueueEntry, int]) -> QueueEntry | None:
        """Return the first requeued message that must be checked. back: `FilteredOrder.back`."""
        again = self.again
        while again:
            entry = again[0]
            refused_by = back.get(entry, -1)
            if refused_by >= 0 and refused_by & self.bit == 0:
                return entry
            heappop(again)
        return None

    def tidy(self, back: dict[QueueEntry, int]) -> None:
        """Remove messages from `again` that have left the queue, before they outnumber the others."""
        if len(self.again) > 2 * len(back) + _SCANNED_ENOUGH:
            self.again = [entry for entry, refused_by in back.items() if refused_by & self.bit == 0]
            heapify(self.again)

    def begin_anew(self, back: dict[QueueEntry, int]) -> None:
        """Restart the search at the front of the queue."""
        self.position = 0
        self.refused_count = 0
        self.matched_offset = -1
        self.matched_back = None
        self.again = list(back)
        heapify(self.again)
        self.place.forget()
        self._matched_record = None
        self._matched_message = None

    def matches(self, record: Record, message: Message) -> None:
        """Record a match in the log."""
        self.position = record.offset
        self.matched_offset = record.offset
        self._matched_record = record
        self._matched_message = message

    def message_of(self, record: Record) -> Message | None:
        """Return the message of the last match and forget it. None: the last match was another record."""
        message = self._matched_message if record is self._matched_record else None
        self._matched_record = None
        self._matched_message = None
        return message


def free_bit(cursors: list[FilterCursor]) -> int:
    """Return the lowest bit that no cursor uses."""
    used = 0
    for cursor in cursors:
        used |= cursor.bit
    return ~used & (used + 1)


_FAR: Final = 1 << 62
# Results of `find` (NOTHING) and `_scan` that are not offsets. -1 is an offset: of a message that no log could write.
NOTHING: Final = -2
_NONE: Final = -3
_STOPPED: Final = -4
_ENOUGH: Final = 64
# From this number on, settling a range of messages is cheaper than settling each.
RANGE_MIN: Final = 32
# Messages with decoded headers in memory.
VIEWS_MAX: Final = 256


@final
class FilteredOrder(FifoOrder):
    """Ready messages in order of arrival, for a queue whose consumers have filters. It continues a plain order.

    Attributes:
        back: Ready requeued message -> mask of the cursors that have refused it since.
        ahead: Offsets above `cold_offset` that were taken out of order.
        rewinding: Settled messages are being made ready again (replay.py). `ahead` has them until they are ready.
        cursors: Those of consumers' filters, and of other searches (scan.py).
    """

    def __init__(self, plain: FifoOrder) -> None:
        super().__init__(plain.backing)
        self.back: dict[QueueEntry, int] = {}
        if plain.returned is not None:
            self.returned = plain.returned
            for entry in plain.returned:
                self.back[entry] = 0
        self.ahead = OffsetBitmap()
        self.rewinding = False
        self.cursors: list[FilterCursor] = []
        self._back_place = QueueLogReader()
        # Messages in memory, so that several cursors decode the headers once. Cleared after each pump.
        self._views: dict[Message, MessageView] = {}
        self.go_on_from(plain)

    def exclude_offsets(self, offsets: OffsetBitmap) -> None:
        self.ahead = offsets

    def is_plain(self) -> bool:
        """Return whether a plain order can replace this one, if no message is unacked."""
        return not self.cursors and not self.ahead and not self.back and not self.rewinding

    def skip_to_end(self) -> None:
        """Move to the end of the log when no message is ready: all offsets in `ahead` are below new messages."""
        self.ahead.clear()
        self.cold_offset = self.backing.next_offset

    def to_plain(self) -> FifoOrder:
        """Return a plain order that continues with its messages."""
        plain = FifoOrder(self.backing)
        plain.go_on_from(self)
        self._back_place.close()
        return plain

    # -- filters -----------------------------------------------------------------------------------------------------

    def add_cursor(self, cursor: FilterCursor) -> None:
        """Add a cursor that searches from the front of the queue."""
        cursor.begin_anew(self.back)
        for entry in self.back:
            self.back[entry] &= ~cursor.bit
        self.cursors.append(cursor)

    def remove_cursor(self, cursor: FilterCursor) -> None:
        self.cursors.remove(cursor)
        cursor.place.close()

    def end_pump(self) -> None:
        """Forget the decoded headers."""
        self._views.clear()

    def find(self, queue: Queue, cursor: FilterCursor, scans: ScanBudget) -> i64:
        """Find the first ready message that matches the cursor's selector.

        Returns: Its offset, for `claim`; NOTHING if there is none, or if the slice ended or a disk read is pending.
        Raises:
            OSError: The log could not be read.
        Cost: a bisection for a known match; else 1 us per message, and its read from the log.
        """
        while True:
            again = cursor.next_again(self.back)
            limit: i64 = _FAR if again is None else again.offset
            if cursor.position < limit:
                offset = self._scan(queue, cursor, limit, scans)
                if offset != _NONE:
                    return offset if offset >= 0 else NOTHING
            if again is None:
                return NOTHING
            if again is cursor.matched_back and again.message is not None:
                return limit
            if scans.is_used_up:
                cursor.behind = True
                return NOTHING
            held = again.message is not None
            if not held and not self._read_again(queue, again):
                if again in self.back:
                    return NOTHING  # a disk read is pending
                continue
            message = again.message
            scans.step(0 if message is None else message.header_size)
            if message is not None and self._matches(cursor, message, True):
                cursor.matched_back = again
                return limit
            if not held:
                again.message = None
            heappop(cursor.again)
            self.back[again] |= cursor.bit
            cursor.refused_count += 1

    def _scan(self, queue: Queue, cursor: FilterCursor, limit: i64, scans: ScanBudget) -> i64:
        """Return the offset of the first match from the cursor's position on and below `limit`.

        Otherwise return _NONE, or _STOPPED if the slice ended or a disk read is pending.
        """
        if cursor.position < self.cold_offset:
            hot = self.hot
            index = hot.index_from(cursor.position)
            size = hot.after_last()
            while index < size:
                entry = hot.at(index)
                offset = entry.offset
                if offset >= limit:
                    cursor.position = limit
                    return _NONE
                if offset == cursor.matched_offset:
                    return offset
                if scans.is_used_up:
                    cursor.behind = True
                    return _STOPPED
                message = entry.message
                scans.step(0 if message is None else message.header_size)
                if message is not None and self._matches(cursor, message, True):
                    cursor.position = offset
                    cursor.matched_offset = offset
                    return offset
                cursor.position = offset + 1
                cursor.refused_count += 1
                index += 1
            cursor.position = self.cold_offset
        end = self.backing.next_offset
        if cursor.position >= end:
            return _NONE
        return self._scan_log(queue, cursor, limit, scans)

    def _scan_log(self, queue: Queue, cursor: FilterCursor, limit: i64, scans: ScanBudget) -> i64:
        store = self.backing.store
        end = self.backing.next_offset
        place = cursor.place
        while store is not None:
            record = place.record(cursor.position)
            if record is None:
                arrived = queue.log_arrived if cursor.arrived is None else cursor.arrived
                if not place.read_on(store, cursor.position, self.memory.read_bytes(), arrived):
                    return _STOPPED
                record = place.record(cursor.position)
                if record is None:
                    break
            offset = record.offset
            if offset >= limit:
                cursor.position = limit
                return _NONE
            if offset == cursor.matched_offset and not self.ahead.has(offset):
                return offset
            if scans.is_used_up:
                cursor.behind = True
                return _STOPPED
            if self.ahead.has(offset):
                scans.step(0)
                cursor.position = offset + 1
                continue
            scans.step(len(record.properties))
            message = self._message(queue, record)
            if self._matches(cursor, message, False):
                cursor.matches(record, message)
                return offset
            cursor.position = offset + 1
            cursor.refused_count += 1
        cursor.position = end
        place.release_memory()
        return _NONE

    def _message(self, queue: Queue, record: Record) -> Message:
        message = self.backing.message(record)
        info = message.info
        if info is not None and info.expiration is not None:
            queue.track_expiration(message)
        return message

    def _matches(self, cursor: FilterCursor, message: Message, shared: bool) -> bool:
        """Return whether the message matches. shared: other cursors check the same object."""
        if cursor.judge is not None:
            return cursor.judge.wants(message)
        content = message.content
        if message.started and content is cursor.asked_content and message.envelope is cursor.asked_envelope:
            return cursor.answer  # consecutive messages of the log share all but the body
        selector = cursor.selector
        view = None
        if shared and selector.needs_headers and len(self.cursors) > 1:
            view = self._views.get(message)
            if view is None:
                view = MessageView(message)
                if len(self._views) >= VIEWS_MAX:
                    self._views.clear()
                self._views[message] = view
        if view is None:
            view = MessageView(message)
        answer = selector.matches(view)
        if message.started and not selector.depends_on_time:
            cursor.asked_content = content
            cursor.asked_envelope = message.envelope
            cursor.answer = answer
        return answer

    def _read_again(self, queue: Queue, entry: QueueEntry) -> bool:
        """Read a requeued message.

        Returns: False if a disk read is pending, or if the log has lost the message; then the entry is removed.
        """
        store = self.backing.store
        if store is not None and self.backing.is_logged(entry.offset):
            place = self._back_place
            if not place.read(store, entry.offset, 1, queue.log_arrived):
                return False
            record = place.record(entry.offset)
            if record is not None and record.offset == entry.offset:
                entry.message = self._message(queue, record)
                return True
        self._leave_back(queue, entry)
        return False

    def claim(self, queue: Queue, cursor: FilterCursor, offset: i64) -> QueueEntry:
        """Remove and return the message that `find` has just found. It is no longer ready."""
        matched = cursor.matched_back
        if matched is not None and matched.offset == offset and matched is cursor.next_again(self.back):
            heappop(cursor.again)
            cursor.matched_back = None
            self._leave_back(queue, matched)
            return matched
        cursor.matched_offset = -1
        if offset < self.cold_offset:
            entry = self.hot.remove_at(self.hot.index_from(offset))
            self.memory.hot_bytes -= entry.body_size
        else:
            record = cursor.place.record(offset)
            store = self.backing.store
            assert record is not None and store is not None  # `find` has read it
            message = cursor.message_of(record) or self.backing.message(record)
            entry = QueueEntry(queue, offset, message, store.redelivered(offset))
            entry.delivery_count = record.delivery_count
            self.ahead.add(offset)
        cursor.position = offset + 1
        queue.uncount_ready(entry.body_size)
        for other in self.cursors:
            if other is not cursor and other.position > offset:
                other.refused_count -= 1
        return entry

    def _leave_back(self, queue: Queue, entry: QueueEntry) -> None:
        refused_by = self.back.pop(entry)
        queue.uncount_ready(entry.body_size)
        for cursor in self.cursors:
            if refused_by & cursor.bit != 0:
                cursor.refused_count -= 1

    def _first_back(self) -> QueueEntry | None:
        """Return the requeued message with the lowest offset."""
        returned = self.returned
        if returned is None:
            return None
        while returned:
            if returned[0] in self.back:
                return returned[0]
            heappop(returned)
        return None

    # -- incoming messages ---------------------------------------------------------------------------------------------

    def add(self, queue: Queue, message: Message, offset: i64) -> bool:
        if queue.ready_count == 0:
            self.ahead.clear()  # all taken messages are before this one
        added = super().add(queue, message, offset)
        if self.cursors:
            queue.schedule_dispatch()
        return added

    def add_prepared(self, queue: Queue, offset: i64, count: i64, size_bytes: i64, first: list[Message]) -> None:
        if queue.ready_count == 0:
            self.ahead.clear()
        super().add_prepared(queue, offset, count, size_bytes, first)

    def skip_to(self, offset: i64) -> None:
        self.cold_offset = offset + 1
        self.ahead.clear()
        store = self.backing.store
        if store is not None:
            self.mark_delivered(store, offset)

    def requeue(self, queue: Queue, entry: QueueEntry) -> None:
        super().requeue(queue, entry)
        back = self.back
        back[entry] = 0
        for cursor in self.cursors:
            heappush(cursor.again, entry)
            cursor.tidy(back)
        returned = self.returned
        if returned is not None and len(returned) > 2 * len(back) + _ENOUGH:
            returned = list(back)
            heapify(returned)
            self.returned = returned

    # -- outgoing messages ---------------------------------------------------------------------------------------------

    def needs_head(self) -> bool:
        return False

    def load_head(self, queue: Queue) -> None:
        self.head(queue)

    def in_memory(self) -> list[QueueEntry]:
        return [*self.back, *self.hot.entries()]

    def is_cold(self, offset: i64) -> bool:
        return offset >= self.cold_offset and not self.ahead.has(offset)

    def first_at_hand(self) -> Message | None:
        back = self._first_back()
        if back is not None and self._is_back_first(back):
            return back.message
        return self.hot.first().message if self.hot else None

    def _is_back_first(self, back: QueueEntry) -> bool:
        """Return whether the requeued message is before all other ready ones."""
        if self.hot:
            return back.offset < self.hot.first().offset
        return back.offset < self.cold_offset

    def take(self, queue: Queue) -> QueueEntry | None:
        while queue.ready_count > 0:
            back = self._first_back()
            if back is None or not self._is_back_first(back):
                if self.hot or self._refill(queue):
                    entry = self._take_hot(queue)
                    if entry is not None:
                        return entry
                    continue
                if back is None:
                    # The log has fewer messages than were counted (a damaged batch): correct the count.
                    queue.ready_count = 0
                    queue.ready_bytes = 0
                    return None
            if back.message is None:
                self.backing.read_back(back)  # if this raises, the entry keeps its place
            self._leave_back(queue, back)
            if back.message is not None:
                return back
        return None

    def _take_hot(self, queue: Queue) -> QueueEntry | None:
        back = self._first_back()
        if back is not None and self._is_back_first(back):
            return None  # the messages just read are after it
        entry = self.hot.popleft()
        self.memory.hot_bytes -= entry.body_size
        queue.uncount_ready(entry.body_size)
        offset = entry.offset
        for cursor in self.cursors:
            if cursor.position > offset:
                cursor.refused_count -= 1
        return entry

    def head(self, queue: Queue) -> QueueEntry | None:
        if queue.ready_count == 0 or not self.is_next_in_memory(queue):
            return None
        back = self._first_back()
        if back is None or (self.hot and not self._is_back_first(back)):
            return self.hot.first() if self.hot else None
        if back.message is None:
            self.backing.read_back(back)
        return back

    def mark_delivered(self, store: QueueLog, offset: i64) -> None:
        # `QueueLog.mark_delivered` would also mark all earlier messages, which may be undelivered.
        store.mark_returned(offset, store.delivery_count(offset))

    def is_next_in_memory(self, queue: Queue) -> bool:
        store = self.backing.store
        if self.hot or store is None:
            return True
        self._skip_taken()
        back = self._first_back()
        if back is not None and back.offset < self.cold_offset:
            return True
        self.reading = False
        fetch = store.cursor.read_if_cached(self.cold_offset, self.memory.read_bytes(), queue.log_arrived)
        if not self._keep(queue, store, fetch.records):
            if fetch.waiting:
                self.cold_offset = fetch.next_offset
                self.reading = True
            elif fetch.records:
                # All of them were taken out of order: the next turn reads more.
                self.reading = True
                queue.schedule_dispatch()
        return not self.reading

    def _refill(self, queue: Queue) -> bool:
        store = self.backing.store
        if store is None:
            return False
        self.reading = False
        self._skip_taken()
        while True:
            records = store.cursor.read(self.cold_offset, self.memory.read_bytes()).records
            if not records or self._keep(queue, store, records):
                return len(self.hot) > 0

    def _skip_taken(self) -> None:
        """Move `cold_offset` past messages that were taken out of order, so that no turn is spent on reading them."""
        if self.ahead.has(self.cold_offset):
            self.cold_offset = self.ahead.first_absent(self.cold_offset)

    def _keep(self, queue: Queue, store: QueueLog, records: list[Record]) -> bool:
        ahead = self.ahead
        for record in records:
            if ahead.has(record.offset):
                self.cold_offset = record.offset + 1
            else:
                self._window_from(queue, store, record)
        ahead.drop_below(self.cold_offset)
        return len(self.hot) > 0

    def drop_expired(self, queue: Queue, host: QueueServices, arrived_max_ms: i64, count_max: i64) -> i64:
        """Drop nothing: the caller takes messages one by one, because unacked messages are between them."""
        return 0

    # -- removal of many messages --------------------------------------------------------------------------------------

    def purge(self, queue: Queue) -> None:
        backing = self.backing
        store = backing.store
        size = queue.ready_bytes
        if store is not None:
            for entry in self.in_memory():
                backing.settle(entry)
                size -= entry.body_size
            first = self.cold_offset
            if first < backing.log_start:
                first = backing.log_start
            # Unacked messages are in `ahead`, so they are not in the gaps.
            for begin, end in self.ahead.gaps(first, store.next_offset - 1):
                if end - begin >= RANGE_MIN:
                    store.ack_range(begin, end, size if size > 0 else 0)
                    size = 0
                    continue
                while begin <= end:
                    store.ack(begin, size if size > 0 else 0)
                    size = 0
                    begin += 1
            store.write_acks_this_turn()
        self.clear(queue)
        self.cold_offset = backing.next_offset

    def clear(self, queue: Queue) -> None:
        super().clear(queue)
        self.ahead.clear()
        self.back.clear()
        self._begin_anew()

    def drop_unwritten(self, queue: Queue, ranges: list[tuple[int, int]]) -> None:
        super().drop_unwritten(queue, ranges)
        if self.returned is not None:
            # Messages that are in memory only have lost their offset. Those that have left the queue lose it later.
            self.returned = list(self.back)
            heapify(self.returned)
        self._begin_anew()

    def _cold_count(self, first: i64, last: i64) -> i64:
        count: i64 = 0
        for begin, end in self.ahead.gaps(max(first, self.cold_offset), last):
            count += end - begin + 1
        return count

    def _begin_anew(self) -> None:
        for entry in self.back:
            self.back[entry] = 0
        for cursor in self.cursors:
            cursor.begin_anew(self.back)


# Different selectors per queue.
FILTERS_MAX: Final = 8
# Deliveries of one pump; then other queues and sockets have their turn.
PUMP_COUNT_MAX: Final = 1000


@final
class FilteredConsumers:
    """The consumers of one queue with filters, and their dispatch.

    A filter determines which messages a consumer gets; consumers without one get any. While the queue has a filter, the
    next consumer depends on the message, so the queue's own round robin is empty. Each filter has a round robin of its
    consumers (`FilterCursor.robin`), and the consumers without a filter have another one.

    `pump` asks each filter with a consumer that has credit for its first match, and delivers the lowest of them. Among
    the consumers that want it, the highest priority wins, then the consumer that was served longest ago. A filter that
    is still searching does not delay the others. So each consumer gets its messages in queue order.

    Equal selectors are one filter. A filter begins at the front with its first consumer, and ends with its last one.

    Attributes:
        order: The ready order of the queue.
        asked: The last pump has asked all consumers; it did not stop at PUMP_COUNT_MAX.
    """

    def __init__(self, queue: Queue, host: QueueServices, plain: FifoOrder) -> None:
        self._queue = queue
        self._host = host
        self._scans = host.turn.scans
        self.order = FilteredOrder(plain)
        # Filters of consumers. `order.cursors` also has those of other searches.
        self._cursors: list[FilterCursor] = []
        # Consumers without a filter.
        self._unfiltered = RoundRobin()
        self._filter_of: dict[Consumer, FilterCursor] = {}
        self._served_count: i64 = 0
        # The choice of `_next`: filter and offset. None: the head, for a consumer without a filter.
        self._filter: FilterCursor | None = None
        self._offset: i64 = 0
        self.asked = True

    # -- consumers

    def full(self, selector: Selector) -> bool:
        """Return whether this selector would be one filter too many."""
        return len(self._cursors) >= FILTERS_MAX and self._find(selector) is None

    def _find(self, selector: Selector) -> FilterCursor | None:
        for cursor in self._cursors:
            if cursor.selector == selector:
                return cursor
        return None

    def add_consumer(self, consumer: Consumer) -> None:
        """Add a consumer to the cursor of its filter, or to those without one. The queue adds it next."""
        selector = consumer.arguments.selector
        robin = self._queue.round_robin
        if selector is None:
            if robin.filtered:
                self._unfiltered.consumers.append(consumer)
            return
        if not robin.filtered:
            robin.set_restrictions(robin.single_active, True)
            self._unfiltered.consumers += robin.consumers
        cursor = self._find(selector)
        if cursor is None:
            cursor = FilterCursor(selector, free_bit(self.order.cursors))
            self.order.add_cursor(cursor)
            self._cursors.append(cursor)
        cursor.robin.consumers.append(consumer)
        self._filter_of[consumer] = cursor

    def remove_consumer(self, consumer: Consumer) -> None:
        """Prepare for the removal of a consumer from the queue."""
        robin = self._queue.round_robin
        if not robin.filtered:
            return
        self._distribute_ready()
        cursor = self._filter_of.pop(consumer, None)
        if cursor is None:
            self._unfiltered.remove(consumer)
            consumer.parked = True  # it is in no round robin any more
            return
        cursor.robin.remove(consumer)
        consumer.parked = True
        if not cursor.robin.consumers:
            self.order.remove_cursor(cursor)
            self._cursors.remove(cursor)
        if not self._cursors:
            robin.set_restrictions(robin.single_active, False)
            for other in self._unfiltered.pop_ready():
                robin.enter(other)
            self._unfiltered.consumers.clear()
            self._queue.schedule_dispatch()

    def _distribute_ready(self) -> None:
        """Move consumers that have credit again to the round robin of their filter."""
        robin = self._queue.round_robin
        if not robin.has_ready():
            return
        for consumer in robin.pop_ready():
            if robin.single_active and consumer is not robin.consumers[0]:
                consumer.parked = True  # waits until it is the single active consumer
                continue
            cursor = self._filter_of.get(consumer)
            if cursor is None:
                self._unfiltered.enter(consumer)
            else:
                cursor.robin.enter(consumer)

    def unmatched_count(self) -> i64:
        """Return how many ready messages no consumer wants: all filters have refused them.

        The number is 0 while there is a consumer without a filter.
        """
        robin = self._queue.round_robin
        if not robin.filtered:
            return 0
        if robin.single_active:
            active = self._filter_of.get(robin.consumers[0])
            return active.refused_count if active is not None else 0
        if self._unfiltered.consumers:
            return 0
        least = self._cursors[0]
        for cursor in self._cursors:
            if cursor.position < least.position:
                least = cursor
        return least.refused_count

    # -- dispatch

    def pump(self) -> FifoOrder | None:
        """Deliver ready messages to the consumers that want them.

        Returns: None; or if no consumer has a filter any more, the order with which the queue continues.
        """
        queue = self._queue
        if not queue.round_robin.filtered:
            return self._order_without()
        order = self.order
        self._scans.begin(queue, self._host.turn.number)
        for cursor in self._cursors:
            cursor.behind = False
        self._distribute_ready()
        count: i64 = 0
        while queue.ready_count > 0:
            consumer = self._next()
            if consumer is None:
                break
            cursor_chosen = self._filter
            if cursor_chosen is None:
                self._unfiltered.pick()
                entry = order.take(queue)
                if entry is None:
                    break
            else:
                cursor_chosen.robin.pick()
                entry = order.claim(queue, cursor_chosen, self._offset)
            self._served_count += 1
            consumer.served = self._served_count
            if not queue.discard_if_expired(entry):
                queue.deliver_to(consumer, entry)
            count += 1
            if count >= PUMP_COUNT_MAX:
                queue.schedule_dispatch()
                break
        self.asked = count < PUMP_COUNT_MAX
        order.end_pump()
        if queue.ready_count > 0:
            order.head(queue)  # loads the head, so that its time to live is watched
        if not queue.scan_wanted:
            for cursor in self._cursors:
                if cursor.behind:
                    self._scans.enqueue(queue)
                    self._host.turn.schedule()
                    break
        return None

    def _next(self) -> Consumer | None:
        """Choose the consumer of the next message; store filter and offset in `_filter` and `_offset`."""
        queue = self._queue
        order = self.order
        best: Consumer | None = None
        for cursor in self._cursors:
            consumer = cursor.robin.peek()
            if consumer is None:
                continue
            offset = order.find(queue, cursor, self._scans)
            if offset != NOTHING and (best is None or offset < self._offset or self._is_before(consumer, offset, best)):
                best = consumer
                self._filter = cursor
                self._offset = offset
        consumer = self._unfiltered.peek()
        if consumer is not None:
            head = order.head(queue)
            if head is not None:
                offset = head.offset
                if best is None or offset < self._offset or self._is_before(consumer, offset, best):
                    best = consumer
                    self._filter = None
                    self._offset = offset
        return best

    def _is_before(self, consumer: Consumer, offset: i64, other: Consumer) -> bool:
        """Return whether the consumer gets the message before `other`, if both want the same one."""
        if offset != self._offset or consumer.priority < other.priority:
            return False
        return consumer.priority > other.priority or consumer.served < other.served

    def _order_without(self) -> FifoOrder:
        """Return a plain order, if no ready or unacked message is out of order; else the present one."""
        queue = self._queue
        order = self.order
        if queue.ready_count == 0:
            order.skip_to_end()
        if queue.unacked_count + queue.delayed_count > 0 or not order.is_plain():
            return order
        return order.to_plain()
