"""Queue with groups (x-group-by): it chooses the consumer of each message. `GroupedOrder` has the messages.

A consumer with credit gets the oldest message that it may have: of a free group, or of a group that it already has. The
message of a free group goes to the next consumer in turn among those of the highest priority with credit (strict round
robin). The message of a locked group goes to the owner of the group, even if other consumers wait. So groups spread
over the consumers, no consumer waits behind a locked group, and no group waits for ever behind a busier one.

A basic.get takes the oldest message of a free group and locks the group until that message is answered.

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

# Results of one try to deliver a message.
_DELIVERED: Final = 0
_NOTHING: Final = 1
_WAITS: Final = 2


@final
class GroupedQueue(Queue):
    """A queue whose rules have a `group_by`."""

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
        assert isinstance(order, GroupedOrder)  # the base class chose it by the rules
        self.grouped: Final = order
        self._window: Final = order.window
        # Consumers that may have credit. The queue's own round robin picks none: it only notes who has got credit.
        self._takers = RoundRobin()
        self.round_robin.set_restrictions(rules.single_active, True)

    # -- consumers ---------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        self._takers.consumers.append(consumer)
        super().add_consumer(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        self._window.remove_owner(consumer)  # first, so that `_collect_ready` does not offer it
        self._collect_ready()
        self._takers.remove(consumer)
        consumer.parked = True  # it is in no round robin any more
        super().remove_consumer(consumer)

    def _collect_ready(self) -> None:
        """Consumers that have got credit again are candidates again."""
        robin = self.round_robin
        if not robin.has_ready():
            return
        for consumer in robin.pop_ready():
            if robin.single_active and consumer is not robin.consumers[0]:
                consumer.parked = True  # only the first of a single active consumer is served
                continue
            self._takers.enter(consumer)
            owner = self._window.owners.get(consumer)
            if owner is not None:  # None: the consumer is being cancelled
                self._window.offer(owner)

    # -- outgoing messages ---------------------------------------------------------------------------------------------

    def _pump(self) -> bool:
        self._call_getters()
        order = self.grouped
        host = self.host
        scans = host.turn.scans
        scans.begin(self, host.turn.number)
        order.log.begin_dispatch()
        count: i64 = 0
        while self.ready_count > 0:
            self._collect_ready()
            result = self._deliver_next()
            if result == _WAITS:
                break
            if result == _NOTHING:
                has_credit = self._takers.peek() is not None
                if not order.log.read_further(self, scans, has_credit):
                    break
                continue
            count += 1
            if count >= PUMP_COUNT_MAX:
                self.schedule_dispatch()
                break
        if self.ready_count > 0 and self._window.hot_count == 0:
            order.head(self)  # so that expiry sees its time to live
        self._continue_next_turn()
        return count < PUMP_COUNT_MAX

    def _continue_next_turn(self) -> None:
        """If the slice is over, continue in the next turn."""
        if self.grouped.log.sliced and not self.scan_wanted:
            turn = self.host.turn
            turn.scans.enqueue(self)
            turn.schedule()

    def _deliver_next(self) -> i64:
        """Deliver one message of those in memory.

        Returns: _DELIVERED; _WAITS if its body comes from the disk; _NOTHING if no consumer can take one.
        """
        window = self._window
        free = window.first_free()
        if free is not None:
            consumer = self._takers.pick()
            if consumer is not None:
                owner = window.owners[consumer]
                own = owner.first()
                if own is not None and own.offset < free.offset:
                    free = own
                return self._deliver(owner, free)
        while True:
            offered = window.first_offered()
            if offered is None:
                return _NOTHING
            consumer = offered.consumer
            own = offered.first()
            if own is None or consumer.parked:
                window.drop_offered()
            elif not consumer.can_take():
                self._takers.park(consumer)
                window.drop_offered()
            else:
                window.rotate_offered()
                return self._deliver(offered, own)

    def _deliver(self, owner: GroupOwner, head: GroupNode) -> i64:
        log = self.grouped.log
        if not log.load_message(self, head):
            return _WAITS if log.reading else _DELIVERED
        entry = self._window.claim(self, head, owner)
        if not self.discard_if_expired(entry):
            self.deliver_to(owner.consumer, entry)
        return _DELIVERED

    def _take_at_hand(self) -> QueueEntry | None:
        """Take a message for a basic.get. None may also mean that the disk was asked, or that the slice is over."""
        if self.round_robin.halted:
            return None
        log = self.grouped.log
        host = self.host
        scans = host.turn.scans
        scans.begin(self, host.turn.number)
        log.begin_dispatch()
        while self.ready_count > 0:
            free = self._window.first_free()
            if free is not None:
                if log.load_message(self, free):
                    return self._window.claim(self, free, None)
                if log.reading:
                    break
            elif not log.read_further(self, scans, True):
                self._continue_next_turn()
                log.reading = log.reading or log.sliced
                break
        return None

    def get(self, no_ack: bool) -> QueueEntry | None:
        entry = super().get(no_ack)
        if no_ack and entry is not None:
            self._window.release(self, entry)
        return entry

    # -- settled messages ----------------------------------------------------------------------------------------------

    def ack(self, entry: QueueEntry) -> None:
        super().ack(entry)
        self._window.release(self, entry)

    def discard(self, entry: QueueEntry, reason: str) -> None:
        if self.makes_dead_letters():
            self.grouped.start_dead_letter(entry)
        super().discard(entry, reason)
        self._window.release(self, entry)
