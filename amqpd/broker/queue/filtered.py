"""The ready order of arrival where consumers have filters (x-filter): messages are taken out of its middle too.

It is `FifoOrder` but for what a filter has taken before its turn, and takes its place when the first consumer with a
filter comes. What is ready lies in

    back       entries that came back, wherever their place is; `returned` is the heap of them
    hot        a window in memory, ascending; what a filter takes out of it is gone from it
    the log    everything from `cold_offset` on that is neither settled nor in `ahead`

`ahead` has one bit for each message that was taken out of the log before its turn: whatever becomes of it, the window
passes it over when it comes there. What no filter wants stays where it is, and nothing is kept of it; so a million of
them cost no memory. The cursors (filtered.py) are here, as they are told what comes back, and what leaves.

Invariant: ready_count = len(back) + len(hot) + unsettled records from cold_offset on that are not in `ahead`;
for each cursor refused_count = those of them below its position, but for what came back and it has not looked at again.

The place of one filter (x-filter) in a queue: how far its selector has looked, and what it has found.

All consumers with equal selectors share one. What is ready below `position` was looked at and is not wanted: it is
counted (`refused_count`) and not remembered, as it stays where it is. What came back (was requeued) is looked at once
more, wherever it lies: `again`. What is in the log alone is read from a place of the filter's own (log_reader.py).

Consumers with filters (x-filter): a consumer gets only what its selector matches, the others get anything.

Whose turn it is depends on the message, so while there is one filter the queue's round robin names nobody: consumers
stand in the round robin of their filter (`FilterCursor.robin`), those without in one of their own. `pump` asks each
filter with somebody to serve for the first message that matches, and gives the lowest of them to whoever was served
longest ago among those of the highest priority who want it. A filter that has not looked so far yet neither waits for
it nor is waited for: each of its consumers gets what it wants in the queue's order.

Equal selectors are one filter; FILTERS_MAX of them a queue. A filter begins with its first consumer, at the front, and
is forgotten with its last.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from amqpd.broker.consumer import Consumer, QueueBase, QueueEntry, RoundRobin
from amqpd.broker.flow.loop_turn import ScanBudget
from amqpd.broker.message import Message, MessageRoute, MessageView
from amqpd.broker.queue.fifo import FifoOrder
from amqpd.broker.queue.log_reader import QueueLogReader
from amqpd.broker.queue.offset_bitmap import OffsetBitmap
from amqpd.broker.queue.services import QueueServices
from amqpd.routing.selector import Selector
from amqpd.storage.log.record import Record
from amqpd.storage.queue_log import QueueLog

_SCANNED_ENOUGH: i64 = 64


@mypyc_attr(allow_interpreted_subclasses=True)
class MessagePredicate:
    """Who wants a message or does not, where that takes more than a selector (scan.py)."""

    def wants(self, message: Message) -> bool:
        """Asked once for each message, in the order of the queue. Keeps nothing of it."""
        raise NotImplementedError


@final
class FilterCursor:
    """Of one selector. bit: stands for it in `FilteredOrder.back`. robin: those of its consumers that may be served.

    matched_offset: the message there is known to match, or -1. matched_back: the one that came back and does.
    behind: the slice was over before it came to the end. refused_count: ready messages that do not match. judge: asked
    in the selector's place, where there is one; arrived: called in the queue's place when the disk has answered. place:
    where it reads the log.
    """

    def __init__(self, selector: Selector, bit: int) -> None:
        self.selector = selector
        self.bit = bit
        self.robin = RoundRobin()
        self.position: i64 = 0
        self.refused_count: i64 = 0
        self.matched_offset: i64 = -1
        self.matched_back: QueueEntry | None = None
        # The record that was found to match last, and the message it is.
        self._matched_record: Record | None = None
        self._matched_message: Message | None = None
        self.again: list[QueueEntry] = []
        self.behind = False
        # Of which properties, before a body from the log, and of which route it was asked last, and what it said.
        self.asked_content: bytes = b""
        self.asked_envelope: MessageRoute | None = None
        self.answer = False
        self.judge: MessagePredicate | None = None
        self.arrived: Callable[[], None] | None = None
        self.place = QueueLogReader()

    def next_again(self, back: dict[QueueEntry, int]) -> QueueEntry | None:
        """The first of what came back and is still to be looked at. back: what is there of it (`FilteredOrder`)."""
        again = self.again
        while again:
            entry = again[0]
            refused_by = back.get(entry, -1)
            if refused_by >= 0 and refused_by & self.bit == 0:
                return entry
            heappop(again)
        return None

    def tidy(self, back: dict[QueueEntry, int]) -> None:
        """What has gone meanwhile is forgotten, before it becomes more than there is."""
        if len(self.again) > 2 * len(back) + _SCANNED_ENOUGH:
            self.again = [entry for entry, refused_by in back.items() if refused_by & self.bit == 0]
            heapify(self.again)

    def begin_anew(self, back: dict[QueueEntry, int]) -> None:
        """It has looked at nothing yet."""
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
        """It stands at a record of the log that matches."""
        self.position = record.offset
        self.matched_offset = record.offset
        self._matched_record = record
        self._matched_message = message

    def message_of(self, record: Record) -> Message | None:
        """The message of a record that `matches` was told of last; None: it is another one. Forgotten then."""
        message = self._matched_message if record is self._matched_record else None
        self._matched_record = None
        self._matched_message = None
        return message


def free_bit(cursors: list[FilterCursor]) -> int:
    """The lowest bit that stands for none of them."""
    used = 0
    for cursor in cursors:
        used |= cursor.bit
    return ~used & (used + 1)


_FAR: Final = 1 << 62
# What `find` answers beside an offset (-1 is one, of what no log could take), and `_scan`.
NOTHING: Final = -2
_NONE: Final = -3
_STOPPED: Final = -4
_ENOUGH: Final = 64
# So many messages in a row are settled as one range at less cost than each by itself.
RANGE_MIN: Final = 32
# Messages whose headers are held decoded.
VIEWS_MAX: Final = 256


@final
class FilteredOrder(FifoOrder):
    """Of one queue. plain: the order until now, whose messages it goes on with."""

    def __init__(self, plain: FifoOrder) -> None:
        super().__init__(plain.backing)
        # What came back and is ready: which cursors have refused it since, one bit each.
        self.back: dict[QueueEntry, int] = {}
        if plain.returned is not None:
            self.returned = plain.returned
            for entry in plain.returned:
                self.back[entry] = 0
        self.ahead = OffsetBitmap()
        # Settled messages are being taken back (replay.py); `ahead` has them until they are ready.
        self.rewinding = False
        self.cursors: list[FilterCursor] = []
        self._back_place = QueueLogReader()
        # Of messages in memory, so that several cursors decode the headers once; while a pump lasts.
        self._views: dict[Message, MessageView] = {}
        self.go_on_from(plain)

    def exclude(self, offsets: OffsetBitmap) -> None:
        self.ahead = offsets

    def is_plain(self) -> bool:
        """Whether a plain order would do, if nothing is unacked."""
        return not self.cursors and not self.ahead and not self.back and not self.rewinding

    def pass_all(self) -> None:
        """Nothing is ready: whatever was taken lies before what is to come."""
        self.ahead.clear()
        self.cold_offset = self.backing.next_offset

    def to_plain(self) -> FifoOrder:
        """The plain order that goes on with its messages."""
        plain = FifoOrder(self.backing)
        plain.go_on_from(self)
        self._back_place.close()
        return plain

    # -- filters -----------------------------------------------------------------------------------------------------

    def add_cursor(self, cursor: FilterCursor) -> None:
        """It looks at everything from the front on."""
        cursor.begin_anew(self.back)
        for entry in self.back:
            self.back[entry] &= ~cursor.bit
        self.cursors.append(cursor)

    def remove_cursor(self, cursor: FilterCursor) -> None:
        self.cursors.remove(cursor)
        cursor.place.close()

    def end_pump(self) -> None:
        """Nothing more is looked at just now: no message is held."""
        self._views.clear()

    def find(self, queue: QueueBase, cursor: FilterCursor, scans: ScanBudget) -> i64:
        """The offset of the first ready message that the cursor's selector matches, as `claim` takes it. NOTHING: there
        is none, or it is not known yet, as the slice is over or the disk is asked. Cost: a bisection where it is known;
        else some 1 us a message it looks at, and what reading it from the log costs. Raises: OSError.
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
            if scans.over:
                cursor.behind = True
                return NOTHING
            held = again.message is not None
            if not held and not self._read_again(queue, again):
                if again in self.back:
                    return NOTHING  # the disk is asked
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

    def _scan(self, queue: QueueBase, cursor: FilterCursor, limit: i64, scans: ScanBudget) -> i64:
        """The first match from the cursor's position on and below `limit`."""
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
                if scans.over:
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

    def _scan_log(self, queue: QueueBase, cursor: FilterCursor, limit: i64, scans: ScanBudget) -> i64:
        store = self.backing.store
        end = self.backing.next_offset
        place = cursor.place
        while store is not None:
            record = place.record(cursor.position)
            if record is None:
                arrived = queue.log_arrived if cursor.arrived is None else cursor.arrived
                if not place.read_on(store, cursor.position, self._read_bytes(), arrived):
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
            if scans.over:
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
        place.rest()
        return _NONE

    def _message(self, queue: QueueBase, record: Record) -> Message:
        message = self.backing.message(record)
        info = message.info
        if info is not None and info.expiration is not None:
            queue.track_expiration(message)
        return message

    def _matches(self, cursor: FilterCursor, message: Message, shared: bool) -> bool:
        """shared: the other cursors look at this very object, too."""
        if cursor.judge is not None:
            return cursor.judge.wants(message)
        content = message.content
        if message.started and content is cursor.asked_content and message.envelope is cursor.asked_envelope:
            return cursor.answer  # what follows each other in the log shares all but the body
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

    def _read_again(self, queue: QueueBase, entry: QueueEntry) -> bool:
        """Reads an entry that came back. False: the disk is asked; or the log has lost it, and it is gone."""
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

    def claim(self, queue: QueueBase, cursor: FilterCursor, offset: i64) -> QueueEntry:
        """The message that `find` has just found, with its message, is ready no more."""
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
            assert record is not None and store is not None  # `find` has seen it
            message = cursor.message_of(record) or self.backing.message(record)
            entry = QueueEntry(queue, offset, message, store.redelivered(offset))
            entry.delivery_count = record.delivery_count
            self.ahead.add(offset)
        cursor.position = offset + 1
        self._uncount(queue, entry)
        for other in self.cursors:
            if other is not cursor and other.position > offset:
                other.refused_count -= 1
        return entry

    def _uncount(self, queue: QueueBase, entry: QueueEntry) -> None:
        queue.ready_count -= 1
        queue.ready_bytes -= entry.body_size
        if queue.ready_count == 0:
            queue.ready_bytes = 0

    def _leave_back(self, queue: QueueBase, entry: QueueEntry) -> None:
        refused_by = self.back.pop(entry)
        self._uncount(queue, entry)
        for cursor in self.cursors:
            if refused_by & cursor.bit != 0:
                cursor.refused_count -= 1

    def _first_back(self) -> QueueEntry | None:
        """The lowest of what came back."""
        returned = self.returned
        if returned is None:
            return None
        while returned:
            if returned[0] in self.back:
                return returned[0]
            heappop(returned)
        return None

    # -- in ----------------------------------------------------------------------------------------------------------

    def add(self, queue: QueueBase, message: Message, offset: i64) -> bool:
        if queue.ready_count == 0:
            self.ahead.clear()  # whatever was taken lies before it
        added = super().add(queue, message, offset)
        if self.cursors:
            queue.schedule_dispatch()
        return added

    def add_prepared(self, queue: QueueBase, offset: i64, count: i64, size_bytes: i64, first: list[Message]) -> None:
        if queue.ready_count == 0:
            self.ahead.clear()
        super().add_prepared(queue, offset, count, size_bytes, first)

    def skip_to(self, offset: i64) -> None:
        self.cold_offset = offset + 1
        self.ahead.clear()
        store = self.backing.store
        if store is not None:
            self.mark_delivered(store, offset)

    def requeue(self, queue: QueueBase, entry: QueueEntry) -> None:
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

    # -- out ---------------------------------------------------------------------------------------------------------

    def needs_head(self) -> bool:
        return False

    def load_head(self, queue: QueueBase) -> None:
        self.head(queue)

    def first_at_hand(self) -> Message | None:
        back = self._first_back()
        if back is not None and self._is_first(back):
            return back.message
        return self.hot.first().message if self.hot else None

    def _is_first(self, back: QueueEntry) -> bool:
        """Whether it is before all else that is ready."""
        if self.hot:
            return back.offset < self.hot.first().offset
        return back.offset < self.cold_offset

    def take(self, queue: QueueBase) -> QueueEntry | None:
        while queue.ready_count > 0:
            back = self._first_back()
            if back is None or not self._is_first(back):
                if self.hot or self._refill(queue):
                    entry = self._take_hot(queue)
                    if entry is not None:
                        return entry
                    continue
                if back is None:
                    # The log holds less than was counted (a damaged batch): the count follows the log.
                    queue.ready_count = 0
                    queue.ready_bytes = 0
                    return None
            if back.message is None:
                self.backing.read_back(back)  # it stays in its place where that raises
            self._leave_back(queue, back)
            if back.message is not None:
                return back
        return None

    def _take_hot(self, queue: QueueBase) -> QueueEntry | None:
        back = self._first_back()
        if back is not None and self._is_first(back):
            return None  # what was read lies behind it
        entry = self.hot.popleft()
        self.memory.hot_bytes -= entry.body_size
        self._uncount(queue, entry)
        offset = entry.offset
        for cursor in self.cursors:
            if cursor.position > offset:
                cursor.refused_count -= 1
        return entry

    def head(self, queue: QueueBase) -> QueueEntry | None:
        if queue.ready_count == 0 or not self.is_next_in_memory(queue):
            return None
        back = self._first_back()
        if back is None or (self.hot and not self._is_first(back)):
            return self.hot.first() if self.hot else None
        if back.message is None:
            self.backing.read_back(back)
        return back

    def mark_delivered(self, store: QueueLog, offset: i64) -> None:
        # Not by a mark that stands for all before it, which may never have been delivered.
        store.mark_returned(offset, store.delivery_count(offset))

    def is_next_in_memory(self, queue: QueueBase) -> bool:
        store = self.backing.store
        if self.hot or store is None:
            return True
        back = self._first_back()
        if back is not None and back.offset < self.cold_offset:
            return True
        self.reading = False
        fetch = store.cursor.read_if_cached(self.cold_offset, self._read_bytes(), queue.log_arrived)
        if not self._keep(queue, store, fetch.records):
            if fetch.waiting:
                self.cold_offset = fetch.next_offset
                self.reading = True
            elif fetch.records:
                # All of them were taken before their turn: the next turn goes on.
                self.reading = True
                queue.schedule_dispatch()
        return not self.reading

    def _refill(self, queue: QueueBase) -> bool:
        store = self.backing.store
        if store is None:
            return False
        self.reading = False
        while True:
            records = store.cursor.read(self.cold_offset, self._read_bytes()).records
            if not records or self._keep(queue, store, records):
                return len(self.hot) > 0

    def _keep(self, queue: QueueBase, store: QueueLog, records: list[Record]) -> bool:
        ahead = self.ahead
        for record in records:
            if ahead.has(record.offset):
                self.cold_offset = record.offset + 1
            else:
                self._window_from(queue, store, record)
        ahead.drop_below(self.cold_offset)
        return len(self.hot) > 0

    def drop_expired(self, queue: QueueBase, host: QueueServices, arrived_max_ms: i64, count_max: i64) -> i64:
        """They are looked at one by one: unacked messages lie between them."""
        return 0

    # -- ends --------------------------------------------------------------------------------------------------------

    def purge(self, queue: QueueBase) -> None:
        backing = self.backing
        store = backing.store
        size = queue.ready_bytes
        if store is not None:
            for entry in [*self.back, *self.hot.rest()]:
                backing.settle(entry)
                size -= entry.body_size
            first = self.cold_offset
            if first < backing.log_start:
                first = backing.log_start
            # What is unacked lies between them.
            for begin, end in self.ahead.gaps(first, store.next_offset - 1):
                if end - begin >= RANGE_MIN:
                    store.settle_range(begin, end, size if size > 0 else 0)
                    size = 0
                    continue
                while begin <= end:
                    store.settle(begin, size if size > 0 else 0)
                    size = 0
                    begin += 1
            store.settle_with_turn()
        self.clear(queue)
        self.cold_offset = backing.next_offset

    def clear(self, queue: QueueBase) -> None:
        super().clear(queue)
        self.ahead.clear()
        self.back.clear()
        self._begin_anew()

    def unwritten(self, queue: QueueBase, ranges: list[tuple[int, int]]) -> None:
        super().unwritten(queue, ranges)
        if self.returned is not None:
            # Those that are in memory alone now have no offset any more.
            self.returned = list(self.back)
            heapify(self.returned)
        self._begin_anew()

    def _begin_anew(self) -> None:
        for entry in self.back:
            self.back[entry] = 0
        for cursor in self.cursors:
            cursor.begin_anew(self.back)


FILTERS_MAX: Final = 8
# How many deliveries one call of pump makes before other queues and sockets have their turn.
PUMP_COUNT_MAX: Final = 1000


@final
class FilteredConsumers:
    """Of one queue, whose order until now is `plain`."""

    def __init__(self, queue: QueueBase, host: QueueServices, plain: FifoOrder) -> None:
        self._queue = queue
        self._host = host
        self._scans = host.turn.scans
        self.order = FilteredOrder(plain)
        # Those of consumers; the order has those of who else searches, too (scan.py).
        self._cursors: list[FilterCursor] = []
        # Those without a filter; the filter of the others.
        self._anybody = RoundRobin()
        self._filter_of: dict[Consumer, FilterCursor] = {}
        self._served: i64 = 0
        # What `_next` has chosen; None: the head.
        self._filter: FilterCursor | None = None
        self._offset: i64 = 0
        # Whether the last pump has asked everybody, and did not end with its share.
        self.asked = True

    # -- consumers

    def full(self, selector: Selector) -> bool:
        """Whether there are as many filters as there may be, and this would be another one."""
        return len(self._cursors) >= FILTERS_MAX and self._find(selector) is None

    def _find(self, selector: Selector) -> FilterCursor | None:
        for cursor in self._cursors:
            if cursor.selector == selector:
                return cursor
        return None

    def join(self, consumer: Consumer) -> None:
        """It is about to be added to the queue's consumers."""
        selector = consumer.arguments.selector
        robin = self._queue.round_robin
        if selector is None:
            if robin.filtered:
                self._anybody.consumers.append(consumer)
            return
        if not robin.filtered:
            robin.set_restrictions(robin.single_active, True)
            self._anybody.consumers += robin.consumers
        cursor = self._find(selector)
        if cursor is None:
            cursor = FilterCursor(selector, free_bit(self.order.cursors))
            self.order.add_cursor(cursor)
            self._cursors.append(cursor)
        cursor.robin.consumers.append(consumer)
        self._filter_of[consumer] = cursor

    def leave(self, consumer: Consumer) -> None:
        """It is about to be removed from them."""
        robin = self._queue.round_robin
        if not robin.filtered:
            return
        self._collect()
        cursor = self._filter_of.pop(consumer, None)
        if cursor is None:
            self._anybody.remove(consumer)
            consumer.parked = True  # it stands nowhere any more
            return
        cursor.robin.remove(consumer)
        consumer.parked = True
        if not cursor.robin.consumers:
            self.order.remove_cursor(cursor)
            self._cursors.remove(cursor)
        if not self._cursors:
            robin.set_restrictions(robin.single_active, False)
            for other in self._anybody.pop_ready():
                robin.enter(other)
            self._anybody.consumers.clear()
            self._queue.schedule_dispatch()

    def _collect(self) -> None:
        """Who has become ready goes to those who want the same."""
        robin = self._queue.round_robin
        if not robin.has_ready():
            return
        for consumer in robin.pop_ready():
            if robin.single_active and consumer is not robin.consumers[0]:
                consumer.parked = True  # stands by
                continue
            cursor = self._filter_of.get(consumer)
            if cursor is None:
                self._anybody.enter(consumer)
            else:
                cursor.robin.enter(consumer)

    def unmatched_count(self) -> i64:
        """Ready messages that nobody wants: every filter has refused them, and there is no consumer without one."""
        robin = self._queue.round_robin
        if not robin.filtered:
            return 0
        if robin.single_active:
            active = self._filter_of.get(robin.consumers[0])
            return active.refused_count if active is not None else 0
        if self._anybody.consumers:
            return 0
        least = self._cursors[0]
        for cursor in self._cursors:
            if cursor.position < least.position:
                least = cursor
        return least.refused_count

    # -- out

    def pump(self) -> FifoOrder | None:
        """Delivers to those who want it what is ready. Where no consumer has a filter any more: the order with which
        the queue goes on by itself; a plain one where that will do.
        """
        queue = self._queue
        if not queue.round_robin.filtered:
            return self._order_without()
        order = self.order
        self._scans.begin(queue, self._host.turn.number)
        for cursor in self._cursors:
            cursor.behind = False
        self._collect()
        count: i64 = 0
        while queue.ready_count > 0:
            consumer = self._next()
            if consumer is None:
                break
            cursor_chosen = self._filter
            if cursor_chosen is None:
                self._anybody.pick()
                entry = order.take(queue)
                if entry is None:
                    break
            else:
                cursor_chosen.robin.pick()
                entry = order.claim(queue, cursor_chosen, self._offset)
            self._served += 1
            consumer.served = self._served
            if not queue.ended(entry):
                queue.deliver_to(consumer, entry)
            count += 1
            if count >= PUMP_COUNT_MAX:
                queue.schedule_dispatch()
                break
        self.asked = count < PUMP_COUNT_MAX
        order.end_pump()
        if queue.ready_count > 0:
            order.head(queue)  # what has a time to live is seen, whoever wants it
        if not queue.scan_wanted:
            for cursor in self._cursors:
                if cursor.behind:
                    self._scans.wait(queue)
                    self._host.turn.schedule()
                    break
        return None

    def _next(self) -> Consumer | None:
        """Who gets the next message, and by which filter."""
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
        consumer = self._anybody.peek()
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
        """Both want the message at this offset: whether it is the consumer's turn."""
        if offset != self._offset or consumer.priority < other.priority:
            return False
        return consumer.priority > other.priority or consumer.served < other.served

    def _order_without(self) -> FifoOrder:
        """A plain one, where nothing that is ready or may come back was passed over."""
        queue = self._queue
        order = self.order
        if queue.ready_count == 0:
            order.pass_all()
        if queue.unacked_count + queue.delayed_count > 0 or not order.is_plain():
            return order
        plain = order.to_plain()
        return plain
