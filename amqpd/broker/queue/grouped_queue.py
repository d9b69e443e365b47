"""A queue with groups (x-group-by), and who gets what: grouped_order.py knows what is ready, and of which group.

A consumer that can take gets the oldest message that it may have: of a free group, or of one that it holds. Where
something is free it goes to whose turn it is among those of the highest priority that can take (strict round robin, as
everywhere); what is for one consumer alone goes to that one, whoever else waits. So groups spread over the consumers as
they come, nobody waits behind a group that another one holds, and no group waits for ever behind a busier one.

A basic.get takes the oldest message of a free group, and holds that group until it is answered.

Compiled by mypyc.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from amqpd.broker.consumer import Consumer, QueueEntry, RoundRobin
from amqpd.broker.queue.config import QueueConfig
from amqpd.broker.queue.filtered import PUMP_COUNT_MAX
from amqpd.broker.queue.grouped_order import GroupedOrder
from amqpd.broker.queue.message_groups import GroupNode, GroupOwner
from amqpd.broker.queue.queue import Queue
from amqpd.broker.queue.services import QueueServices
from amqpd.storage.queue_log import QueueLog

# What became of a try to give somebody something.
_GIVEN: Final = 0
_NOTHING: Final = 1
_WAITS: Final = 2


@final
class GroupedQueue(Queue):
    """As `Queue`. rules.group_by is not empty."""

    def __init__(
        self,
        host: QueueServices,
        name: str,
        durable: bool,
        auto_delete: bool,
        exclusive_owner: object,
        arguments: dict[str, object],
        rules: QueueConfig,
        store: QueueLog | None,
    ) -> None:
        super().__init__(host, name, durable, auto_delete, exclusive_owner, arguments, rules, store)
        order = self.order
        assert isinstance(order, GroupedOrder)  # Queue has chosen it by the rules
        self.grouped = order
        # Those that can take, as far as is known; the queue's own round robin names nobody.
        self._anybody = RoundRobin()
        self.round_robin.set_restrictions(rules.single_active, True)

    # -- consumers ---------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        self._anybody.consumers.append(consumer)
        super().add_consumer(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        self._collect()
        self._anybody.remove(consumer)
        consumer.parked = True  # it stands nowhere any more
        super().remove_consumer(consumer)

    def _collect(self) -> None:
        """Who has become ready is asked again."""
        robin = self.round_robin
        if not robin.has_ready():
            return
        order = self.grouped
        for consumer in robin.pop_ready():
            if robin.single_active and consumer is not robin.consumers[0]:
                consumer.parked = True  # stands by
                continue
            self._anybody.enter(consumer)
            holder = order.holders.get(consumer)
            if holder is not None:  # one that is about to leave has none any more
                order.call(holder)

    # -- out ---------------------------------------------------------------------------------------------------------

    def _pump(self) -> bool:
        if self.getters is not None:
            self.getters.call()
        order = self.grouped
        host = self.host
        scans = host.turn.scans
        scans.begin(self, host.turn.number)
        order.begin()
        count: i64 = 0
        while self.ready_count > 0:
            self._collect()
            given = self._give_next()
            if given == _WAITS:
                break
            if given == _NOTHING:
                anyone = self._anybody.peek() is not None
                if not order.look_further(self, scans, anyone):
                    break
                continue
            count += 1
            if count >= PUMP_COUNT_MAX:
                self.schedule_dispatch()
                break
        if self.ready_count > 0 and order.hot_count == 0:
            order.head(self)  # what has a time to live is seen, whoever wants it
        self._go_on_later()
        return count < PUMP_COUNT_MAX

    def _go_on_later(self) -> None:
        """Where a slice was over, the next turn goes on."""
        if self.grouped.behind and not self.scan_wanted:
            turn = self.host.turn
            turn.scans.wait(self)
            turn.schedule()

    def _give_next(self) -> i64:
        """Somebody gets something of what is in memory."""
        order = self.grouped
        free = order.first_free()
        if free is not None:
            consumer = self._anybody.pick()
            if consumer is not None:
                holder = order.holders[consumer]
                own = holder.first()
                if own is not None and own.offset < free.offset:
                    free = own
                return self._give(holder, free)
        while True:
            caller = order.caller()
            if caller is None:
                return _NOTHING
            consumer = caller.consumer
            own = caller.first()
            if own is None or consumer.parked:
                order.asked()
            elif not consumer.can_take():
                self._anybody.park(consumer)
                order.asked()
            else:
                order.next_caller()
                return self._give(caller, own)

    def _give(self, holder: GroupOwner, head: GroupNode) -> i64:
        order = self.grouped
        if not order.has_message(self, head):
            return _WAITS if order.reading else _GIVEN
        entry = order.claim(self, head, holder)
        if not self.ended(entry):
            self.deliver_to(holder.consumer, entry)
        return _GIVEN

    def _take_at_hand(self) -> QueueEntry | None:
        """What a basic.get takes: it holds the group. None also while the disk is asked for it, or a slice is over."""
        if self.round_robin.halted:
            return None
        order = self.grouped
        host = self.host
        scans = host.turn.scans
        scans.begin(self, host.turn.number)
        order.begin()
        while self.ready_count > 0:
            free = order.first_free()
            if free is not None:
                if order.has_message(self, free):
                    return order.claim(self, free, None)
                if order.reading:
                    break
            elif not order.look_further(self, scans, True):
                self._go_on_later()
                order.reading = order.reading or order.behind
                break
        return None

    def get(self, no_ack: bool) -> QueueEntry | None:
        entry = super().get(no_ack)
        if no_ack and entry is not None:
            self.grouped.unreserve(self, entry)
        return entry

    # -- home --------------------------------------------------------------------------------------------------------

    def ack(self, entry: QueueEntry) -> None:
        super().ack(entry)
        self.grouped.unreserve(self, entry)

    def discard(self, entry: QueueEntry, reason: str) -> None:
        if self.makes_dead_letters():
            self.grouped.leaves(entry)
        super().discard(entry, reason)
        self.grouped.unreserve(self, entry)
