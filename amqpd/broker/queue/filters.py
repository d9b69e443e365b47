"""Consumers with filters (x-filter): a consumer gets only what its selector matches, the others get anything.

Whose turn it is depends on the message, so while there is one filter the queue's round robin names nobody: consumers
stand in the round robin of their filter (`FilterCursor.robin`), those without in one of their own. `pump` asks each
filter with somebody to serve for the first message that matches, and gives the lowest of them to whoever was served
longest ago among those of the highest priority who want it. A filter that has not looked so far yet neither waits for
it nor is waited for: each of its consumers gets what it wants in the queue's order.

Equal selectors are one filter; FILTERS_MAX of them a queue. A filter begins with its first consumer, at the front, and
is forgotten with its last.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import Consumer, RoundRobin, Source
from amqpd.broker.queue.fifo import FifoOrder
from amqpd.broker.queue.filter_cursor import FilterCursor, free_bit
from amqpd.broker.queue.filtered import NOTHING, FilteredOrder
from amqpd.broker.queue.services import QueueHost
from amqpd.routing.selector import Selector

FILTERS_MAX: Final = 8
# How many deliveries one call of pump makes before other queues and sockets have their turn.
PUMP_COUNT_MAX: Final = 1000


@final
class Filters:
    """Of one queue, whose order until now is `plain`."""

    def __init__(self, queue: Source, host: QueueHost, plain: FifoOrder) -> None:
        self._queue = queue
        self._host = host
        self._scans = host.turn.scans
        self.order = FilteredOrder(plain)
        host.windows.replace(plain, self.order)
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
            robin.restrict(robin.single_active, True)
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
            robin.restrict(robin.single_active, False)
            for other in self._anybody.take_ready():
                robin.enter(other)
            self._anybody.consumers.clear()
            self._queue.pump_later()

    def _collect(self) -> None:
        """Who has become ready goes to those who want the same."""
        robin = self._queue.round_robin
        if not robin.has_ready():
            return
        for consumer in robin.take_ready():
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
                queue.hand_over(consumer, entry)
            count += 1
            if count >= PUMP_COUNT_MAX:
                queue.pump_later()
                break
        self.asked = count < PUMP_COUNT_MAX
        order.end_pump()
        if queue.ready_count > 0:
            order.head(queue)  # what has a time to live is seen, whoever wants it
        if not queue.scan_wanted:
            for cursor in self._cursors:
                if cursor.behind:
                    self._scans.wait(queue)
                    self._host.turn.want()
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
        self._host.windows.replace(order, plain)
        return plain
